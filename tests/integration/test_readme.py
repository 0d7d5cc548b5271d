"""The examples of the README and of the guides run as they stand, against the real broker."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from support.brokers import Broker

ROOT = Path(__file__).resolve().parents[2]


def _blocks(path: str) -> dict[str, str]:
    """Return the first example under each heading of a page."""
    parts = re.split(r"^## (.*)\n", (ROOT / path).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    found = {title: re.search(r"```python\n(.*?)```", text, re.DOTALL) for title, text in pairs}
    return {title: example[1] for title, example in found.items() if example is not None}


GUIDE = _blocks("docs/client.md")


def _run(program: str, broker: Broker) -> str:
    program = program.replace("pulsar://localhost:6650", broker.service_url)
    # Topics of their own, as the broker may have seen the example before.
    program = re.sub(r'"(greetings|orders|docs-)', rf'"\g<1>{secrets.token_hex(3)}', program)
    assert broker.service_url in program
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("heading", "printed"), [("Client", "b'hello'"), ("asyncio", ""), ("A push consumer", "b'42'")]
)
def test_an_example_of_the_readme_runs(heading: str, printed: str, broker: Broker) -> None:
    assert printed in _run(_blocks("README.md")[heading], broker)


# What each example of the guide prints, by its heading.
PRINTED = {
    "Connecting": "pulsar://",
    "Publishing": "100000 ",
    "Consuming": "b'4' 0",
    "How much is sent ahead": "b'1'\nb'2' 16777216",
    "When handling fails": "b'bad' persistent://public/default/docs-",
    "Positions, readers and tables": "b'b'\nb'c'\nb'red'",
    "Columns": "[{'value': b'1', '__key': b'ann'}, {'value': b'2', '__key': b'bob'}]",
    "Schemas": "Order(customer='ann', amount=12.5)\n12.5",
    "Encryption": "b'secret'",
    "What goes on": "ProducerStats(",
}


@pytest.mark.parametrize("heading", GUIDE)
def test_an_example_of_the_guide_runs(heading: str, broker: Broker) -> None:
    assert PRINTED[heading] in _run(GUIDE[heading], broker)
