"""Files of the client that one call runs through, as docs/architecture.md lists them."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import FrameType

import pytest

import pulsar_native
import pulsar_native.asyncio as asyncio_api
from pulsar_native import Client
from support.brokers import Broker, NewTopic
from support.until import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
MOST_FILES_OF_SEND = 12
MOST_FILES_OF_RECEIVE = 13


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


class Publisher:
    """Producer of the asyncio API in a thread of its own."""

    def __init__(self, service_url: str, topic: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._service_url, self._topic = service_url, topic

    def __enter__(self) -> Publisher:
        self._thread.start()
        self._run(self._open())
        return self

    async def _open(self) -> None:
        self._client = asyncio_api.Client(self._service_url)
        self._producer = await self._client.create_producer(self._topic)

    def publish(self) -> None:
        """Publish one message and wait for its receipt."""
        self._run(self._send())

    async def _send(self) -> None:
        await self._producer.send(b"x")

    def _run(self, work: Coroutine[object, object, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def __exit__(self, *_: object) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


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


def test_receive_runs_through_the_files_listed(broker: Broker, topic: NewTopic, trace: Trace) -> None:
    name = topic()
    with Client(broker.service_url) as client:
        consumer = client.subscribe(name, "sub")
        # The publisher has a loop and a thread of its own, which are not traced.
        threading.setprofile(None)
        with Publisher(broker.service_url, name) as publisher:

            def arrive_and_receive() -> None:
                publisher.publish()
                # The ring is filled when the message is in the queue; looking at it calls nothing of the package.
                wait_until(lambda: bool(consumer._inner._ring))
                # As for the first message: what the entry before was like may shorten the way.
                consumer._inner.children[0].core._may_be_single = False
                consumer.receive()

            found = min((trace.of(arrive_and_receive) for _ in range(20)), key=len)
    # Compiled where they are built, and then without a call in Python.
    found = [file for file in found if file not in ("_message_fields.py", "wire/_impl.py")]
    assert found == listed("The journey of a message in")
    assert len(found) <= MOST_FILES_OF_RECEIVE


def test_trace_sees_the_loop_thread(broker: Broker, topic: NewTopic, trace: Trace) -> None:
    name = topic()
    with Client(broker.service_url) as client:
        client.get_topic_partitions(name)
        assert "engine/lookup.py" in trace.of(lambda: client.get_topic_partitions(name))
