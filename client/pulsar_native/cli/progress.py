"""Progress and summaries on standard error: one line that is rewritten on a terminal, nothing of it elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TextIO

# Seconds between two progress records of a job.
TERMINAL_SECONDS, LOG_SECONDS = 0.5, 5.0
_WIDTH = 100


class Console:
    """Standard error of one command, and the log of its job. Not thread-safe.

    Progress is shown on a terminal, or as lines with `verbose`; `quiet` leaves out all but warnings and errors. Every
    text passes `redact`.
    """

    def __init__(self, stream: TextIO, *, quiet: bool = False, verbose: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._verbose = verbose
        self._is_terminal = stream.isatty()
        self._shown = 0
        self.redact: Callable[[str], str] = str

    @property
    def progress_seconds(self) -> float:
        """Seconds between two progress records."""
        return TERMINAL_SECONDS if self._is_terminal else LOG_SECONDS

    def info(self, event: str, /, *args: Any) -> None:
        """Show progress."""
        if self._quiet:
            return
        text = self.redact(event % args if args else event)
        if self._verbose:
            self._line(text)
        elif self._is_terminal:
            text = text.replace("\n", " ")[:_WIDTH]
            self._stream.write(f"\r{text:<{self._shown}}")
            self._stream.flush()
            self._shown = len(text)

    def warning(self, event: str, /, *args: Any) -> None:
        """Show a warning on a line of its own."""
        self._line(f"warning: {self.redact(event % args if args else event)}")

    def summary(self, text: str) -> None:
        """Show the result of the command."""
        if not self._quiet:
            self._line(self.redact(text))

    def error(self, text: str) -> None:
        """Show the error that ended the command."""
        self._line(f"error: {self.redact(text)}")

    def clear(self) -> None:
        """Remove the progress line, before data is written to the same terminal."""
        if self._shown:
            self._stream.write(f"\r{'':<{self._shown}}\r")
            self._stream.flush()
            self._shown = 0

    def _line(self, text: str) -> None:
        self.clear()
        self._stream.write(f"{text}\n")
        self._stream.flush()
