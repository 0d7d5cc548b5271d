"""Messages of one producer of the asyncio API that wait for capacity, until they are queued or the producer is closed.

Rules: on the loop only. A lane holds what waits for one partition, or for one partition and transaction, in the order
of the calls; only the head is tried. A mark behind the last one of a lane tells a flush, a close or a bulk send that
all before it are queued or have failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from pulsar_native.engine.producer.backpressure import Backpressure
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.engine.producer.producer import PartitionProducer
from pulsar_native.exceptions import AlreadyClosed
from pulsar_native.stats import ProducerClose

_Attempt = Callable[[], Backpressure | None]

Counts = Counter[tuple[str, str]]
"""Numbers of messages by topic and outcome: `sent`, `failed`, and `left` before they were queued."""


class WaitingSends:
    """Lanes of messages that wait for capacity: each is the future for when it is queued, and the next attempt."""

    def __init__(self, inner: TopicProducer) -> None:
        self.lanes: dict[object, deque[tuple[asyncio.Future[None], _Attempt]]] = {}
        self._inner = inner
        self._loop = inner.client.engine.loop
        # Those that failed before they were queued.
        self._refused: Counts = Counter()

    def add(self, queued: asyncio.Future[None], lane: object, attempt: _Attempt, full: Backpressure | None) -> None:
        """Add a message behind all that wait in its lane; `full` if it was tried, as the first one.

        `queued` gets the outcome; cancelled, it gives the message up. Raises the backpressure's error for a message
        that does not wait.
        """
        if full is not None:
            self._check_may_wait(full)
            attempt = full.retry or attempt
        self.lanes.setdefault(lane, deque()).append((queued, attempt))
        if full is not None:
            self._send_later(lane, full)

    def _check_may_wait(self, full: Backpressure) -> None:
        if not (self._inner.config.block_if_queue_full or full.always_waits):
            raise full.refusal()

    def _send_later(self, lane: object, full: Backpressure) -> None:
        # The messages are queued later than in the call that wakes: its caller may hold a lock.
        def wake() -> None:
            self._loop.call_soon(self._send_waiting, lane)

        full.wait_for_room(wake)

    def _send_waiting(self, lane: object) -> None:
        """Queue the messages that wait in a lane, in order, as far as there is capacity.

        All in one step of the loop: the last one that has no capacity closes the fast path, so that no later message
        overtakes it.
        """
        waiting = self.lanes.get(lane)
        while waiting:
            queued, attempt = waiting[0]
            if not queued.done():
                try:
                    full = attempt()
                    if full is not None:
                        self._check_may_wait(full)
                        waiting[0] = queued, full.retry or attempt
                        self._send_later(lane, full)
                        return
                    queued.set_result(None)
                except Exception as error:
                    outcome = "left" if isinstance(error, AlreadyClosed) else "failed"
                    self._refused[_child_of(lane, self._inner).topic.full, outcome] += 1
                    queued.set_exception(error)
            waiting.popleft()
        self.lanes.pop(lane, None)

    async def queued(self, lanes: Iterable[object]) -> list[BaseException]:
        """Wait until all that waits in the lanes now is queued or has failed; return the errors of each lane's last
        message.

        Only what waits now: under steady traffic a lane may never be empty.
        """
        marks: list[asyncio.Future[None]] = []
        last_ones: list[asyncio.Future[None]] = []
        for lane in lanes:
            waiting = self.lanes[lane]
            last_ones += [queued for queued, attempt in reversed(waiting) if attempt is not _pass][:1]
            marks.append(self._loop.create_future())
            waiting.append((marks[-1], _pass))
        await asyncio.gather(*marks)
        outcomes = [last.exception() for last in last_ones if not last.cancelled()]
        return [error for error in outcomes if error is not None]

    # --- end --------------------------------------------------------------------------------------------------------

    async def before_close(self, deadline: float, *, waits_for_lost: bool) -> None:
        """Wait until all that waits now is queued, at most until the deadline.

        As for what is pending, a partition without a connection is waited for only with `waits_for_lost`.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                for child in self._inner.children:
                    await child.opening_ended(None)
                await self.queued(
                    [lane for lane in self.lanes if waits_for_lost or _child_of(lane, self._inner).is_connected]
                )

    def in_report(self, parts: Iterable[ProducerClose], before: Counts) -> tuple[ProducerClose, ...]:
        """Return the report of the closed producer with the messages that waited, from the `counts` before the close.

        What still waits fails first.
        """
        for lane in list(self.lanes):
            self._send_waiting(lane)
        counts = self.counts()
        counts.subtract(before)
        names = {child.topic.full: child.core.name for child in self._inner.children}
        return tuple(
            _with_waiting(part, counts) if names.get(part.topic) == part.producer_name else part for part in parts
        )

    def counts(self) -> Counts:
        """Return how many messages were sent, and failed, so far."""
        counts = self._refused.copy()
        for child in self._inner.children:
            counts[child.topic.full, "sent"] += child.confirmed_messages
            counts[child.topic.full, "failed"] += child.failed_messages
        return counts


def _pass() -> None:
    """Attempt of a mark."""


def _child_of(lane: Any, inner: TopicProducer) -> PartitionProducer:
    """Return the partition of a lane; any where interceptors run before it is chosen."""
    child = lane[0] if isinstance(lane, tuple) else lane
    return child if isinstance(child, PartitionProducer) else inner.children[0]


def _with_waiting(part: ProducerClose, counts: Counts) -> ProducerClose:
    topic = part.topic
    return dataclasses.replace(
        part,
        sent=counts[topic, "sent"],
        # What was left has failed at the end, too.
        failed=max(part.failed, counts[topic, "failed"] - part.left),
        left=part.left + counts[topic, "left"],
    )
