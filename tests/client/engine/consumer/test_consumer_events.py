"""Consumer event listener: order, no loss, exceptions, on a thread and on the loop."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native.engine.consumer.consumer_events import ConsumerEvents
from support.other_thread import OWN_ERRORS, Own, in_other_thread
from support.until import until


class Consumer:
    """Stands for an API's consumer."""


_FAULTS: dict[int, type[BaseException]] = {1: asyncio.CancelledError, 3: SystemExit, 5: ZeroDivisionError}


class Noting:
    """Note what is told; raise at every second word."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any, int]] = []

    def _note(self, what: str, consumer: Any, partition: int) -> None:
        self.log.append((what, consumer, partition))
        if len(self.log) % 2:
            raise _FAULTS[len(self.log)]("the listener's own fault")

    def became_active(self, consumer: Any, partition: int) -> Any:
        self._note("active", consumer, partition)

    def became_inactive(self, consumer: Any, partition: int) -> Any:
        self._note("inactive", consumer, partition)


class NotingLater(Noting):
    """The same with coroutines, of which the first words take the longest."""

    async def became_active(self, consumer: Any, partition: int) -> None:
        await self._rounds()
        self._note("active", consumer, partition)

    async def became_inactive(self, consumer: Any, partition: int) -> None:
        await self._rounds()
        self._note("inactive", consumer, partition)

    async def _rounds(self) -> None:
        for _ in range(20 - 4 * len(self.log)):
            await asyncio.sleep(0)


WORDS = [(False, 0), (True, 1), (True, 0), (False, 1), (True, 1)]


def told(consumer: Consumer) -> list[tuple[str, Any, int]]:
    return [("active" if is_active else "inactive", consumer, partition) for is_active, partition in WORDS]


@pytest.mark.parametrize("early", range(len(WORDS) + 1))
def test_consumer_events_on_thread(early: int, caplog: pytest.LogCaptureFixture) -> None:
    work: deque[Callable[[], None]] = deque()
    listener, consumer = Noting(), Consumer()
    activity = ConsumerEvents(listener, work.append)
    for word in WORDS[:early]:
        activity.changed(*word)
    assert not work, "there is no consumer to tell of yet"
    activity.bind(consumer)
    for word in WORDS[early:]:
        activity.changed(*word)
    assert not listener.log, "nothing is told on the loop"
    while work:
        work.popleft()()
    assert listener.log == told(consumer)
    assert caplog.text.count("the listener's own fault") >= 3


@pytest.mark.parametrize("kind", [Noting, NotingLater])
def test_consumer_events_on_loop(kind: type[Noting]) -> None:
    listener, consumer = kind(), Consumer()

    async def body() -> None:
        activity = ConsumerEvents(listener)
        activity.changed(*WORDS[0])
        activity.changed(*WORDS[1])
        activity.bind(consumer)
        activity.changed(*WORDS[2])
        await until(lambda: len(listener.log) == 3)
        activity.changed(*WORDS[3])
        activity.changed(*WORDS[4])
        await until(lambda: len(listener.log) == 5)

    asyncio.run(body())
    assert listener.log == told(consumer)


@pytest.mark.parametrize("kind", [Noting, NotingLater])
def test_consumer_events_on_a_threads_loop(kind: type[Noting], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_FAULTS, 1, Own)
    listener, consumer = kind(), Consumer()

    async def body() -> None:
        events = ConsumerEvents(listener)
        events.bind(consumer)
        for word in WORDS[:2]:
            events.changed(*word)
        # In the same task: its first error has not ended it.
        await until(lambda: len(listener.log) == 2, 10)

    in_other_thread(asyncio.run, body())
    assert listener.log == told(consumer)[:2]


@pytest.mark.parametrize("kind", OWN_ERRORS)
def test_consumer_events_error_of_any_class_isolated(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    monkeypatch.setitem(_FAULTS, 1, kind)
    work: deque[Callable[[], None]] = deque()
    listener, consumer = Noting(), Consumer()
    events = ConsumerEvents(listener, work.append)
    events.bind(consumer)
    for word in WORDS[:2]:
        events.changed(*word)
    while work:
        in_other_thread(work.popleft())
    assert listener.log == told(consumer)[:2] and "the listener's own fault" in caplog.text


def test_consumer_events_collected_consumer_ignored() -> None:
    work: deque[Callable[[], None]] = deque()
    listener, consumer = Noting(), Consumer()
    activity = ConsumerEvents(listener, work.append)
    activity.bind(consumer)
    activity.changed(True, 0)
    del consumer
    gc.collect()
    work.popleft()()
    assert listener.log == []
