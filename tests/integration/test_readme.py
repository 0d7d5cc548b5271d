"""The README's examples run as they stand, against the real broker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.brokers import Broker

README = Path(__file__).resolve().parents[2] / "README.md"


def _block(heading: str) -> str:
    text = README.read_text(encoding="utf-8")
    found = re.search(rf"^## {heading}\n.*?```python\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the README has no example under {heading}"
    return found[1]


@pytest.mark.parametrize(
    ("heading", "printed"), [("Client", "b'hello'"), ("asyncio", ""), ("A listener container", "b'42'")]
)
def test_an_example_of_the_readme_runs(heading: str, printed: str, broker: Broker) -> None:
    program = _block(heading).replace("pulsar://localhost:6650", broker.service_url)
    assert broker.service_url in program
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
