"""`python -m pulsar_native`: the exit code of the process is the command's."""

from __future__ import annotations

import subprocess
import sys


def test_module_runs_the_command_line() -> None:
    def code(*arguments: str) -> int:
        command = [sys.executable, "-m", "pulsar_native", *arguments]
        return subprocess.run(command, capture_output=True, timeout=240, check=False).returncode

    assert code("--help") == 0
    assert code() == 2
    assert code("lag", "t", "--url", "pulsar://localhost:1") == 2
