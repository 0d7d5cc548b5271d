"""The command line in this process, with streams in memory."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

from pulsar_native.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """Exit code and what was written."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[Any]:
        """The JSON lines of standard output."""
        return [json.loads(line) for line in self.out.splitlines()]


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def run(*arguments: str, stdin: bytes = b"", terminal: bool = False, **environment: str) -> Outcome:
    """Run a command; the environment is empty but for the variables given."""
    out, err = io.BytesIO(), Terminal() if terminal else io.StringIO()
    code = main(arguments, stdin=io.BytesIO(stdin), stdout=out, stderr=err, environment=environment)
    return Outcome(code, out.getvalue(), err.getvalue())
