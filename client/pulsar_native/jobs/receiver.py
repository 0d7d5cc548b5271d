"""Receiver of several consumers in turn, up to the ends of their topics at the start: messages, or rows.

Rules: the end is the last position at the start; later messages are left for the next batch. A partition is done when
its end, or a later message, has arrived; its consumer is not polled any more. Redelivered messages are returned once.
The quiet time that ends a batch early is one in which the broker could have delivered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pulsar_native.jobs.failures import is_permanent

if TYPE_CHECKING:
    import pyarrow

    from pulsar_native import ArrowBatch, Client, Consumer, EntryRange, Message, MessageId

T = TypeVar("T")
Part = tuple["EntryRange", "pyarrow.RecordBatch"]


class BatchReceiver:
    """Messages of several consumers. Not thread-safe."""

    def __init__(
        self,
        client: Client,
        consumers: Sequence[Consumer],
        *,
        until_end: bool,
        idle_seconds: float,
        ordered: bool = False,
    ) -> None:
        """Get the end of each partition; `ordered` if the subscription delivers each partition in order.

        `client` is that of the consumers.
        """
        self._client = client
        self._consumers = list(consumers)
        self._active = list(consumers)
        self._given = _Given(ordered)
        # Last id and mark-delete position of each partition at the start.
        self.positions: list[tuple[MessageId, MessageId]] = []
        self._idle_seconds = idle_seconds
        self._turn = 0
        # End and consumer of each partition with messages; None without ends.
        self._open: dict[str, tuple[int, int, int]] | None = None
        self._owners: dict[str, Consumer] = {}
        if until_end:
            self._open = {}
            for consumer in consumers:
                for last, acknowledged in consumer.get_positions():
                    self.positions.append((last, acknowledged))
                    if last.entry_id() >= 0 and _entry(acknowledged) < _entry(last):
                        name = last.topic_name() or consumer.topic()
                        self._open[name] = _place(last)
                        self._owners[name] = consumer
            self._active = list(dict.fromkeys(self._owners.values()))
        self._quiet_since = time.monotonic()
        # True if the brokers have answered since the last message.
        self._is_answered = False
        # Since when a consumer has no connection, and whether its topics were looked up since.
        self._lost_since: float | None = None
        self._is_looked_up = False
        # Consumers with a topic that was deleted: they need not be connected again.
        self._gone: set[Consumer] = set()

    def check_connected(self) -> None:
        """Restart the quiet time unless the broker could have delivered; to be called when nothing arrived.

        Blocks up to the client's operation time-out where it asks a broker: at the end of the quiet time. Raises
        `Timeout` for one that does not answer, `NotConnected` if a consumer had no connection for as long; a consumer
        of a topic that was deleted is left out.
        """
        if self._open is None:
            return
        now = time.monotonic()
        active = [consumer for consumer in self._active if consumer not in self._gone]
        lost = [consumer for consumer in active if not consumer.is_connected()]
        if lost:
            self._wait_for(lost, now)
        elif self._lost_since is not None:
            self._restart_quiet_time()
        elif not self._is_answered and now - self._quiet_since > self._idle_seconds:
            self._ask(active, now)

    def _wait_for(self, lost: Sequence[Consumer], now: float) -> None:
        """Wait for the next call; raises `NotConnected` if that was long enough."""
        from pulsar_native.exceptions import NotConnected

        limit = self._client.config.operation_timeout_seconds
        if self._lost_since is None:
            self._lost_since, self._is_looked_up = now, False
        elif now - self._lost_since > min(limit, self._idle_seconds) and not self._is_looked_up:
            self._is_looked_up = True
            self._gone.update(consumer for consumer in lost if self._has_deleted_topic(consumer))
        elif now - self._lost_since > limit:
            raise NotConnected(
                f"the consumer of {lost[0].topic()} has had no connection for more than {limit:g} s "
                "(operation_timeout_seconds): check that the broker is up. Nothing was acknowledged, and a retry "
                "consumes the messages again"
            )
        # Not from now: a look-up may have taken long.
        self._quiet_since, self._is_answered = time.monotonic(), False

    def _has_deleted_topic(self, consumer: Consumer) -> bool:
        from pulsar_native.exceptions import PulsarException, TopicNotFound

        for topic in consumer.topics():
            try:
                self._client.get_partition_count(topic)
            except TopicNotFound:
                return True
            except PulsarException:
                # Nothing is known of the others, either.
                return False
        return False

    def _ask(self, active: Sequence[Consumer], began: float) -> None:
        """Ask the brokers, as one that is stalled keeps its connections."""
        from pulsar_native.exceptions import ConnectError, NotConnected, Timeout

        try:
            for consumer in active:
                consumer.get_positions()
        except (ConnectError, NotConnected) as error:
            if isinstance(error, Timeout) or is_permanent(error):
                raise
            # Lost with the request on its way: waited for as long as every lost connection, from the next call on.
            self._restart_quiet_time()
            return
        self._is_answered = True
        # A broker that was stalled delivers after its answer: that is waited for as long as the answer was.
        now = time.monotonic()
        self._quiet_since = now - max(0.0, self._idle_seconds - (now - began))

    def _restart_quiet_time(self) -> None:
        self._quiet_since, self._is_answered, self._lost_since = time.monotonic(), False, None

    def check_decrypted(self) -> None:
        """Raise `CryptoError` if messages were left out because they cannot be decrypted: the batch has a gap."""
        from pulsar_native import CryptoError

        failed = sum(consumer.stats().total_decryption_failed for consumer in self._consumers)
        if failed:
            raise CryptoError(
                f"{failed} entries cannot be decrypted, so the batch would have gaps; they stay in the subscription. "
                "Give private_keys with the keys they were encrypted for"
            )

    @property
    def ended(self) -> str | None:
        """Reason for the end of the batch, None until then."""
        if self._open is None:
            return None
        if not self._open:
            return "end"
        return "idle" if time.monotonic() - self._quiet_since > self._idle_seconds else None

    def next(self, millis: float) -> Message | None:
        """Return the next message of the batch, None if none arrived in time or the end is reached."""
        message = self._take(millis, _receive)
        if message is None:
            return None
        name, here = message.topic_name(), _place(message.message_id())
        if self._open is None:
            return message if self._given.is_new(name, here) else None
        end = self._open.get(name)
        if end is None or here > end:
            # Published after the start. After the end, no message of this partition is missing.
            self._close(name)
            return None
        self._restart_quiet_time()
        if here == end:
            self._close(name)
        return message if self._given.is_new(name, here) else None

    def next_rows(self, millis: float, max_rows: int, max_bytes: int) -> list[Part]:
        """Return the next rows of the batch with their entries, none if none arrived in time."""

        def receive(consumer: Consumer, timeout: int) -> ArrowBatch | None:
            received = consumer.receive_arrow(max_rows=max_rows, max_bytes=max_bytes, timeout_millis=timeout)
            return received if len(received) else None

        received = self._take(millis, receive)
        if received is None:
            return []
        parts = [within for part in received.parts() if (within := self._within(part)) is not None]
        if parts:
            self._restart_quiet_time()
        return [new for part in parts for new in self._given.new_rows(part)]

    def _within(self, part: Part) -> Part | None:
        """Return the rows before the end of their partition."""
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
        # Several consumers are polled for a short time each, so that one without messages does not delay others.
        for _ in range(count):
            consumer = self._active[self._turn % count]
            self._turn += 1
            taken = receive(consumer, max(1, round(millis / count)))
            if taken is not None:
                return taken
        return None


class _Given:
    """Messages returned so far: for ordered partitions the last position, else the messages of every entry."""

    def __init__(self, ordered: bool) -> None:
        self._ordered = ordered
        self._last: dict[str, tuple[int, int, int]] = {}
        self._entries: dict[tuple[str, int, int], int] = {}

    def is_new(self, topic: str, place: tuple[int, int, int]) -> bool:
        """Record a message and return True if it was not returned before."""
        if self._ordered:
            if place <= self._last.get(topic, (-1, -1, -1)):
                return False
            self._last[topic] = place
            return True
        ledger, entry, index = place
        bits, bit = self._entries.get((topic, ledger, entry), 0), 1 << max(0, index)
        self._entries[topic, ledger, entry] = bits | bit
        return not bits & bit

    def new_rows(self, part: Part) -> Iterator[Part]:
        """Record rows and yield those not returned before."""
        entries, _ = part
        last = self._last.get(entries.topic, (-1, -1, -1))
        if self._ordered and _place(entries.first_message_id()) > last:
            self._last[entries.topic] = _place(entries.last_message_id())
            yield part
            return
        if not self._ordered and self._add_whole(entries):
            yield part
            return
        for each, rows in split_entries(part):
            size = each.batch_size
            indexes = each.indexes if each.indexes is not None else (1 << max(1, size)) - 1
            fresh = 0
            for index in range(indexes.bit_length()):
                place = (each.ledger_id, each.first_entry, index if size else -1)
                if indexes >> index & 1 and self.is_new(each.topic, place):
                    fresh |= 1 << index
            if fresh == indexes:
                yield each, rows
            elif fresh:
                yield select_indexes((each, rows), fresh)

    def _add_whole(self, entries: EntryRange) -> bool:
        """Record whole entries and return True; False if one was returned in part before."""
        keys = [(entries.topic, entries.ledger_id, entry) for entry in entries.entries]
        if entries.indexes is not None or any(key in self._entries for key in keys):
            return False
        self._entries.update(dict.fromkeys(keys, (1 << max(1, entries.batch_size)) - 1))
        return True


def split_entries(part: Part) -> Iterator[Part]:
    """Yield the rows of each entry."""
    entries, rows = part
    start = 0
    for entry in entries.entries:
        one = replace(entries, first_entry=entry, last_entry=entry)
        yield one, rows.slice(start, len(one))
        start += len(one)


def select_indexes(part: Part, wanted: int) -> Part:
    """Return the rows of one batch entry whose index is in a bit set."""
    import pyarrow as pa

    entries, rows = part
    held = entries.indexes if entries.indexes is not None else (1 << entries.batch_size) - 1
    present = [index for index in range(held.bit_length()) if held >> index & 1]
    mask = pa.array([bool(wanted >> index & 1) for index in present])
    return replace(entries, indexes=held & wanted), rows.filter(mask)


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
