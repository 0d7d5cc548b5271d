"""What comes from several consumers in turn, up to the ends their topics had at the beginning: messages, or rows.

Rules: the end is a position asked for when the flow begins; what was published since is left for the next batch. A
partition is done when its end, or anything behind it, has come; consumers with nothing left are not asked any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pyarrow

    from pulsar_native import ArrowBatch, Consumer, EntryRange, Message, MessageId

T = TypeVar("T")
Part = tuple["EntryRange", "pyarrow.RecordBatch"]


class BatchReceiver:
    """The messages of some consumers. Not thread-safe."""

    def __init__(self, consumers: Sequence[Consumer], *, until_end: bool, idle_seconds: float) -> None:
        self._active = list(consumers)
        self._idle_seconds = idle_seconds
        self._turn = 0
        # Where each partition that has something ends, and whose it is; None without ends.
        self._open: dict[str, tuple[int, int, int]] | None = None
        self._owners: dict[str, Consumer] = {}
        if until_end:
            self._open = {}
            for consumer in consumers:
                for last, acknowledged in consumer.get_positions():
                    if last.entry_id() >= 0 and _entry(acknowledged) < _entry(last):
                        name = last.topic_name() or consumer.topic()
                        self._open[name] = _place(last)
                        self._owners[name] = consumer
            self._active = list(dict.fromkeys(self._owners.values()))
        self._quiet_since = time.monotonic()

    @property
    def ended(self) -> str | None:
        """The reason why nothing more is to be waited for, None while there is."""
        if self._open is None:
            return None
        if not self._open:
            return "end"
        return "idle" if time.monotonic() - self._quiet_since > self._idle_seconds else None

    def next(self, millis: float) -> Message | None:
        """Return the next message that belongs to the batch, None when none came in time or the end is reached."""
        message = self._take(millis, _receive)
        if message is None or self._open is None:
            return message
        name, here = message.topic_name(), _place(message.message_id())
        end = self._open.get(name)
        if end is None or here > end:
            # Published since the batch began. Behind the end nothing of this partition is missing any more.
            self._close(name)
            return None
        self._quiet_since = time.monotonic()
        if here == end:
            self._close(name)
        return message

    def next_rows(self, millis: float, max_rows: int, max_bytes: int) -> list[Part]:
        """Return the next rows that belong to the batch, with their entries; none when none came in time."""

        def receive(consumer: Consumer, timeout: int) -> ArrowBatch | None:
            received = consumer.receive_arrow(max_rows=max_rows, max_bytes=max_bytes, timeout_millis=timeout)
            return received if len(received) else None

        received = self._take(millis, receive)
        if received is None:
            return []
        parts = [within for part in received.parts() if (within := self._within(part)) is not None]
        if parts:
            self._quiet_since = time.monotonic()
        return parts

    def _within(self, part: Part) -> Part | None:
        """Return what of some rows lies before the end of their partition."""
        if self._open is None:
            return part
        entries, rows = part
        end = self._open.get(entries.topic)
        if end is None:
            return None
        if _place(entries.last_message_id()) >= end:
            self._close(entries.topic)
        ledger, last, _ = end
        if entries.ledger_id < ledger or (entries.ledger_id == ledger and entries.last_entry <= last):
            return part
        if entries.ledger_id > ledger or entries.first_entry > last:
            return None
        entries = replace(entries, last_entry=last)
        return entries, rows.slice(0, len(entries))

    def _close(self, name: str) -> None:
        if self._open is not None and self._open.pop(name, None) is not None:
            self._active = list(dict.fromkeys(self._owners[each] for each in self._open))

    def _take(self, millis: float, receive: Callable[[Consumer, int], T | None]) -> T | None:
        count = len(self._active)
        # Of several each gets a short look: the one that has something must not wait for those that have not.
        for _ in range(count):
            consumer = self._active[self._turn % count]
            self._turn += 1
            taken = receive(consumer, max(1, round(millis / count)))
            if taken is not None:
                return taken
        return None


def _receive(consumer: Consumer, timeout: int) -> Message | None:
    from pulsar_native.exceptions import Timeout

    try:
        return consumer.receive(timeout_millis=timeout)
    except Timeout:
        return None


def _entry(message_id: MessageId) -> tuple[int, int]:
    return message_id.ledger_id(), message_id.entry_id()


def _place(message_id: MessageId) -> tuple[int, int, int]:
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
