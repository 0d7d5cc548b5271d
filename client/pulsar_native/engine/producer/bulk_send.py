"""Bulk send: many messages in one call, built into whole entries from slices of rows, with an outcome per row.

Rules: rows keep their order on each partition. The pending messages stay within the producer's queue and the client's
memory limit; the APIs wait for capacity and for the end, each in its own way. Nothing more is sent after the first
failure, so that no message follows a gap. Rows that cannot share an entry (a delivery time, clusters, a sequence id of
their own) are sent as single messages.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from pulsar_native.config import ProducerConfig
from pulsar_native.engine.producer.backpressure import Backpressure
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.engine.producer.producer import PartitionProducer
from pulsar_native.enums import Result
from pulsar_native.exceptions import AlreadyClosed, BulkSendError, PulsarException, Timeout
from pulsar_native.message import OutgoingMessage
from pulsar_native.message_id import MessageId
from pulsar_native.message_ids import MessageIds
from pulsar_native.protocol.send_op import Callback
from pulsar_native.protocol.transaction import TransactionCore

# With these, too, the broker may have stored the message and only its receipt is missing.
_UNCONFIRMED = (Timeout, AlreadyClosed)
_MAX_SLICE = 10_000


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows to send: payloads, encoded optional fields (None: no row has any) and keys (None: no row has one).

    `message` returns a row as a message, None when it has only a payload; `alone` are rows that must not share an
    entry.
    """

    payloads: list[bytes]
    fields: list[bytes] | None
    keys: list[str | None] | None
    message: Callable[[int], OutgoingMessage | None]
    alone: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Run:
    """Rows of a slice for one partition. `rows` count from the beginning of the whole send."""

    child: PartitionProducer
    rows: Sequence[int]
    payloads: list[bytes]
    fields: list[bytes] | None
    message: Callable[[int], OutgoingMessage | None]
    first_row: int
    alone: bool
    done: int = 0
    again: Callable[[], Backpressure | None] | None = None


class BulkSend:
    """One call of `send_many` or `send_table`. `add` and `push` belong to the calling thread."""

    def __init__(self, producer: TopicProducer, transaction: TransactionCore | None = None) -> None:
        self._transaction = transaction
        self.ids = MessageIds()
        self.failure: BaseException | None = None
        self._producer = producer
        self._runs: deque[_Run] = deque()
        self._used: dict[PartitionProducer, None] = {}
        self._errors: dict[int, BaseException] = {}
        self._lock = threading.Lock()
        self._confirmed = 0
        self._by_key: dict[str, PartitionProducer] = {}

    @property
    def confirmed(self) -> int:
        """Number of messages with a receipt. Thread-safe."""
        return self._confirmed

    # --- adding rows ------------------------------------------------------------------------------------------------

    def add_next(self, slices: Iterator[Slice]) -> bool:
        """Add the next slice; return False when there is none, or nothing more is to be sent."""
        if self.failure is not None:
            return False
        try:
            part = next(slices, None)
            if part is not None:
                self.add(part)
        except Exception as error:
            # An error of the application's iterable or one of its items: the outcome of earlier rows must be reported.
            self._fail(error)
            return False
        return part is not None

    async def add_next_async(self, slices: AsyncIterator[Slice]) -> bool:
        """Add the next slice of an asynchronous source, as `add_next` does."""
        if self.failure is not None:
            return False
        try:
            self.add(await anext(slices))
        except StopAsyncIteration:
            return False
        except Exception as error:
            self._fail(error)
            return False
        return True

    def add(self, part: Slice) -> None:
        """Add rows and choose their partitions; `push` sends them."""
        first_row = len(self.ids)
        self.ids._grow(len(part.payloads))
        if self._is_uniform(part):
            child = self._producer.route(b"", None)
            rows = range(first_row, first_row + len(part.payloads))
            self._runs.append(_Run(child, rows, part.payloads, part.fields, part.message, first_row, False))
            return
        latest: dict[PartitionProducer, _Run] = {}
        anywhere: PartitionProducer | None = None
        for index, payload in enumerate(part.payloads):
            key = part.keys[index] if part.keys is not None else None
            alone = index in part.alone
            if alone or self._chooses_singly():
                child = self._producer.route(payload, part.message(index))
            elif key is not None:
                child = self._child_of(key)
            else:
                child = anywhere = anywhere or self._producer.route(b"", None)
            run = latest.get(child)
            if run is None or run.alone != alone:
                run = latest[child] = _Run(child, [], [], None, part.message, first_row, alone)
                run.fields = [] if part.fields is not None else None
                self._runs.append(run)
            run.rows.append(first_row + index)  # type: ignore[attr-defined]
            run.payloads.append(payload)
            if part.fields is not None and run.fields is not None:
                run.fields.append(part.fields[index])

    def _is_uniform(self, part: Slice) -> bool:
        """Return True if all rows go to one partition, and all may share entries."""
        if part.alone:
            return False
        return not self._producer.is_partitioned or (part.keys is None and not self._chooses_singly())

    def _chooses_singly(self) -> bool:
        """Return True if the router must be called for every message."""
        config: ProducerConfig = self._producer.config
        return self._producer.is_partitioned and (config.message_router is not None or not config.batching_enabled)

    def _child_of(self, key: str) -> PartitionProducer:
        child = self._by_key.get(key)
        if child is None:
            child = self._producer.route(b"", OutgoingMessage(b"", partition_key=key))
            if len(self._by_key) < 100_000:
                self._by_key[key] = child
        return child

    # --- sending ----------------------------------------------------------------------------------------------------

    def push(self) -> Backpressure | None:
        """Send the added rows; return None when all are sent, else the backpressure to wait for. Never blocks."""
        while self._runs and self.failure is None:
            run = self._runs[0]
            self._used[run.child] = None
            try:
                full = self._push(run)
            except PulsarException as error:
                self._fail(error)
                break
            if full is not None:
                return full
            self._runs.popleft()
        self._runs.clear()
        return None

    def _push(self, run: _Run) -> Backpressure | None:
        while run.done < len(run.payloads) and self.failure is None:
            if not run.alone:
                at = run.done
                payloads = run.payloads[at:] if at else run.payloads
                fields = run.fields[at:] if at and run.fields is not None else run.fields
                first = run.message(run.rows[at] - run.first_row)
                entry = partial(self._entry_at, run.rows, at)
                taken = run.child.enqueue_entry(payloads, fields, first, entry, self._transaction)
                if isinstance(taken, Backpressure):
                    return taken
                if taken:
                    run.done += taken
                    continue
            full = self._push_single(run)
            if full is not None:
                return full
        return None

    def _push_single(self, run: _Run) -> Backpressure | None:
        if run.again is not None:
            again, run.again = run.again, None
            return self._tried(run, again())
        at = run.done
        row = run.rows[at]
        callback = self._entry((row,))
        message = run.message(row - run.first_row)
        if self._transaction is not None:
            message = message or OutgoingMessage(run.payloads[at])
            message.transaction = self._transaction
        fields = b"" if run.fields is None else run.fields[at]
        return self._tried(run, run.child.enqueue(run.payloads[at], fields, message, callback))

    def _tried(self, run: _Run, full: Backpressure | None) -> Backpressure | None:
        if full is None:
            run.done += 1
        else:
            run.again = full.retry
        return full

    def _entry_at(self, rows: Sequence[int], at: int, count: int) -> Callback:
        return self._entry(rows[at : at + count])

    def _entry(self, rows: Sequence[int]) -> Callback:
        number = self.ids._entry(rows)
        count = len(rows)

        def done(error: PulsarException | None, message_id: MessageId | None) -> None:
            if error is not None or message_id is None:
                self._fail(error, number)
                return
            self.ids._stored(number, message_id)
            with self._lock:
                self._confirmed += count

        return done

    def _fail(self, error: BaseException | None, number: int | None = None) -> None:
        with self._lock:
            if number is not None and error is not None:
                self._errors[number] = error
            self.failure = self.failure or error

    def flush_then(self, done: Callable[[], None]) -> None:
        """Send the open batches and call `done`, in any thread, once every outcome is known."""
        left = [len(self._used) + 1]

        def one_less(_error: PulsarException | None) -> None:
            with self._lock:
                left[0] -= 1
                last = not left[0]
            if last:
                done()

        for child in list(self._used):
            child.flush_then(one_less)
        one_less(None)

    # --- result -----------------------------------------------------------------------------------------------------

    def result(self) -> MessageIds:
        """Return the ids once every outcome is known, or raise: `BulkSendError`, or an error before any sending."""
        if self.failure is None:
            return self.ids
        if not self._used:
            raise self.failure
        stored, unconfirmed, not_stored = self._sorted_out()
        first = self.failure
        known = isinstance(first, PulsarException)
        raise BulkSendError(
            f"{_count(stored)} messages are stored, {_count(unconfirmed)} were sent without a receipt, "
            f"{_count(not_stored)} and what follows them are not stored; the first failure was: "
            f"{first if known else type(first).__name__}",
            stored=stored,
            unconfirmed=unconfirmed,
            not_stored=not_stored,
            message_ids=self.ids,
            retryable=first.retryable if isinstance(first, PulsarException) else False,
            result=first.result if isinstance(first, PulsarException) else Result.UnknownError,
            topic=self._producer.topic.full,
        ) from first

    def _sorted_out(self) -> tuple[tuple[range, ...], tuple[range, ...], tuple[range, ...]]:
        kinds = bytearray()
        for row in range(len(self.ids)):
            number, _ = self.ids._place(row)
            if self.ids.get(row) is not None:
                kinds.append(0)
            else:
                error = self._errors.get(number)
                kinds.append(1 if isinstance(error, _UNCONFIRMED) or getattr(error, "may_be_stored", False) else 2)
        return _ranges(kinds, 0), _ranges(kinds, 1), _ranges(kinds, 2)


def slice_size(config: ProducerConfig) -> int:
    """Return how many rows to add at once: entries are full, memory stays small."""
    return max(1, min(config.batching_max_messages, _MAX_SLICE))


def _count(ranges: Iterable[range]) -> int:
    return sum(map(len, ranges))


def _ranges(kinds: bytearray, kind: int) -> tuple[range, ...]:
    borders = [0, *(at for at, (a, b) in enumerate(pairwise(kinds), 1) if a != b), len(kinds)]
    return tuple(range(a, b) for a, b in pairwise(borders) if a < b and kinds[a] == kind)
