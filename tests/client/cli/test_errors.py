"""Exit codes: those of shells where shells have one, and documented."""

from __future__ import annotations

import signal

from pulsar_native.cli.errors import EXIT_CODES, ExitCode


def test_exit_codes_are_documented() -> None:
    for code in ExitCode:
        assert f"\n  {code.value:<4} " in EXIT_CODES, code


def test_exit_codes_of_signals_are_the_shell_s() -> None:
    assert ExitCode.INTERRUPTED == 128 + signal.SIGINT
    assert ExitCode.BROKEN_PIPE == 128 + signal.SIGPIPE
