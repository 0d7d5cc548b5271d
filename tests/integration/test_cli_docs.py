"""The shell examples of the page on the command line run as they stand, in their order, in one folder."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from support.brokers import Broker

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
_BLOCK = re.compile(r"^(?:<!-- (prints|exits): ([^\n]*?) -->\n)?```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Shell(NamedTuple):
    """One block: what it must print, the exit code of its last command, its text."""

    prints: str
    exits: int
    script: str


def blocks() -> list[Shell]:
    found = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    return [
        Shell(said.replace("\\n", "\n") if kind == "prints" else "", int(said) if kind == "exits" else 0, script)
        for kind, said, script in found
    ]


@pytest.fixture
def shell(broker: Broker, tmp_path: Path) -> dict[str, str]:
    """Environment of the examples: this Python comes first."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PULSAR_SERVICE_URL": broker.service_url,
        "PULSAR_ADMIN_URL": broker.admin_url,
    }


def test_shell_examples_run_and_print(shell: dict[str, str], broker: Broker, tmp_path: Path) -> None:
    fresh, found = f"docs-{secrets.token_hex(3)}-", blocks()
    assert len(found) >= 8 and sum(bool(each.prints) for each in found) >= 6
    for prints, exits, script in found:
        text = script.replace("pulsar://localhost:6650", broker.service_url).replace("docs-cli-", fresh)
        text = text.replace("http://localhost:8080", broker.admin_url)
        done = subprocess.run(
            ["bash", "-e", "-c", text], cwd=tmp_path, env=shell, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == exits, f"{script}\n{done.stderr}"
        assert prints in done.stdout, f"{script}\n{done.stdout}\n{done.stderr}"
