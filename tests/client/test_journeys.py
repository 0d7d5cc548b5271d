"""Files of the client that one call runs through, as docs/architecture.md lists them."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

import pulsar_native
from pulsar_native import Client
from support.brokers import Broker, NewTopic

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
MOST_FILES_OF_SEND = 12


class Trace:
    """Files of the package whose functions were called, in order, in threads that began while it was installed."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self._root = Path(pulsar_native.__file__).parent
        self._is_on = False

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        """Record a call; for `sys.setprofile`."""
        if self._is_on and event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(self._root):
                self.files[path.relative_to(self._root).as_posix()] = None

    def of(self, function: Callable[[], object]) -> list[str]:
        """Return the files that a call runs through, in both threads."""
        self.files.clear()
        sys.setprofile(self.profile)
        self._is_on = True
        try:
            function()
        finally:
            self._is_on = False
            sys.setprofile(None)
        return list(self.files)


@pytest.fixture
def trace() -> Iterator[Trace]:
    """Give a trace that the client's loop thread, if it begins in the test, takes part in."""
    made = Trace()
    threading.setprofile(made.profile)
    yield made
    threading.setprofile(None)


def listed(heading: str) -> list[str]:
    """Return the files in the table below a heading of the page."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([a-z_/]+\.py)` \|", section, re.MULTILINE)


def test_send_runs_through_the_files_listed(broker: Broker, topic: NewTopic, trace: Trace) -> None:
    with Client(broker.service_url) as client, client.create_producer(topic()) as producer:
        producer.send(b"first")
        # A ping or a timer may come in between, and a slow receipt is left to the loop: the shortest way counts.
        found = min((trace.of(lambda: producer.send(b"x")) for _ in range(20)), key=len)
    assert found == listed("The journey of a message out")
    assert len(found) <= MOST_FILES_OF_SEND


def test_trace_sees_the_loop_thread(broker: Broker, topic: NewTopic, trace: Trace) -> None:
    name = topic()
    with Client(broker.service_url) as client:
        client.get_topic_partitions(name)
        assert "engine/lookup.py" in trace.of(lambda: client.get_topic_partitions(name))
