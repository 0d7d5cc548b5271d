"""Exit codes of the command line, and the errors that have one of their own."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes, documented in `--help`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_MET = 3
    PERMANENT = 4
    INTERRUPTED = 130
    BROKEN_PIPE = 141


EXIT_CODES = """\
exit codes:
  0    done
  1    failed; the same command may succeed later (broker not reachable, time-out, full disk)
  2    wrong arguments; nothing was sent or received
  3    the condition asked for does not hold (lag --max, --fail-empty, check)
  4    failed, and no retry helps (credentials, missing permission, wrong name, another schema, existing output)
  130  interrupted (Ctrl-C)
  141  the reader of the output has gone (broken pipe)
"""


class UsageError(Exception):
    """Raised for wrong arguments, before anything is sent or received."""


class ConditionNotMet(Exception):
    """Raised when everything was done and the condition that was asked for does not hold."""
