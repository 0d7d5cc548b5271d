"""Progress on a terminal only, summaries and errors everywhere, secrets nowhere."""

from __future__ import annotations

import io

from pulsar_native.cli.progress import LOG_SECONDS, TERMINAL_SECONDS, Console
from support.cli import Terminal


def test_progress_rewrites_one_line_of_a_terminal() -> None:
    stream = Terminal()
    console = Console(stream)
    console.info("%s of %d", "1,000", 9)
    console.info("%s", "2")
    console.clear()
    assert stream.getvalue() == "\r1,000 of 9" + "\r2         " + "\r \r"
    assert console.progress_seconds == TERMINAL_SECONDS


def test_progress_elsewhere_is_silent_unless_verbose() -> None:
    silent, verbose = io.StringIO(), io.StringIO()
    Console(silent).info("at %d", 1)
    Console(verbose, verbose=True).info("at %d", 1)
    assert (silent.getvalue(), verbose.getvalue()) == ("", "at 1\n")
    assert Console(silent).progress_seconds == LOG_SECONDS


def test_quiet_leaves_warnings_and_errors() -> None:
    stream = Terminal()
    console = Console(stream, quiet=True)
    console.info("progress")
    console.summary("done")
    console.warning("look at %s", "this")
    console.error("failed")
    assert stream.getvalue() == "warning: look at this\nerror: failed\n"


def test_lines_replace_progress_and_are_redacted() -> None:
    stream = Terminal()
    console = Console(stream)
    console.redact = lambda text: text.replace("pass", "***")
    console.info("progress")
    console.error("the pass is wrong")
    console.summary("pass")
    assert stream.getvalue() == "\rprogress\r        \rerror: the *** is wrong\n***\n"
