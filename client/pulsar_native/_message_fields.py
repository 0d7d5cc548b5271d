"""Steps of the data path per message: in plain Python, or compiled where that is built.

`Message`, its entry and the delivery inherit their fields from here, so that creating one, `data()` and `message_id()`
are compiled steps without a Python call; the decoder of entries of one message, queues of messages and of
acknowledgements, the buffer of messages to send, the calls of their callbacks, and methods of the APIs
(`compiled_form`), are compiled, too.
Plain Python is the reference. The choice is made at import, by the same environment variable as in `wire._impl`, which
reports a wrong value of it. Rules: no I/O; nothing of the wire format; each method of a queue is one atomic step, since
the APIs call them in any thread without a lock.
"""

from __future__ import annotations

import functools
import importlib
import os
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import accumulate, groupby, islice, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pulsar_native._callback_errors import callback_errors
from pulsar_native.message_id import MessageId

# Tag of the mark of a null value in a message's metadata in a batch.
_NULL_VALUE = 0x48
_PACKED = struct.Struct("=iii")
# Messages that `MessageQueue.drain_to` looks at and dequeues at once.
_DRAINED_AT_ONCE = 128

M = TypeVar("M", bound="MessageFields")
D = TypeVar("D", bound="DeliveryFields")
F = TypeVar("F", bound=Callable[..., Any])
_entry_of, _index_of = attrgetter("entry"), attrgetter("batch_index")
_TEXT = frozenset({str})

AckRun = tuple[Any, int, int, list[int] | None]
"""Consecutive messages of one entry: entry, first index, number, and the indexes where they do not count up by one."""


class SingleFields(Protocol):
    """Per-message fields: of a batch's SingleMessageMetadata, or of the entry's own MessageMetadata."""

    @property
    def event_time(self) -> int: ...
    @property
    def partition_key(self) -> str | bytes: ...
    @property
    def partition_key_b64_encoded(self) -> bool: ...
    @property
    def ordering_key(self) -> bytes: ...
    @property
    def null_value(self) -> bool: ...
    @property
    def sequence_id(self) -> int: ...
    @property
    def properties(self) -> Any: ...


def text_of(field: str | bytes) -> str:
    """Return a text field with invalid UTF-8 replaced; protobuf's runtime returns such text as the bytes it found."""
    return field if isinstance(field, str) else field.decode("utf-8", "replace")


class MessageFields:
    """Entry of a message, its index there and its offsets in the body."""

    __slots__ = ("_end", "_fields", "_meta_start", "_start", "batch_index", "entry")

    _fields: SingleFields

    def __init__(self, entry: Any, batch_index: int, meta_start: int, start: int, end: int) -> None:
        # Assignments only: this runs for every received message.
        self.entry = entry
        self.batch_index = batch_index
        self._meta_start = meta_start
        self._start = start
        self._end = end

    def data(self) -> bytes:
        """Return the payload as published, decompressed; b"" for a null value."""
        body: bytes = self.entry.body
        return body[self._start : self._end]

    def message_id(self) -> MessageId:
        """Return the message id: topic, ledger, entry, partition and batch index."""
        entry = self.entry
        return MessageId(
            entry.partition,
            entry.ledger_id,
            entry.entry_id,
            self.batch_index,
            batch_size=entry.batch_size if entry.is_batch else 0,
            topic=entry.topic,
            first_chunk=entry.first_chunk,
        )

    def properties(self) -> dict[str, str]:
        """Return the application's properties, invalid UTF-8 replaced; for a repeated key its last value."""
        pairs = self._single().properties
        if type(pairs) is dict:
            return dict(pairs)
        found = {pair.key: pair.value for pair in pairs}
        if {*map(type, found), *map(type, found.values())} <= _TEXT:
            return found
        return {text_of(key): text_of(value) for key, value in found.items()}

    def partition_key(self) -> str:
        """Return the key, "" if there is none; a bytes key as base64 text, as in the other clients.

        Invalid UTF-8 is replaced; `key_bytes()` returns such a key as published.
        """
        key = self._single().partition_key
        return key if isinstance(key, str) else text_of(key)

    def ordering_key(self) -> str:
        """Return the ordering key, which Key_Shared subscriptions prefer to the key; "" if there is none."""
        return self._single().ordering_key.decode("utf-8", "replace")

    def event_timestamp(self) -> int:
        """Return the event time that the application set, in milliseconds since 1970; 0 if it set none."""
        return self._single().event_time

    def publish_timestamp(self) -> int:
        """Return the publish time of the entry by the producer's clock, in milliseconds since 1970."""
        milliseconds: int = self.entry.publish_time
        return milliseconds

    def topic_name(self) -> str:
        """Return the full name of the topic, or partition, of the message."""
        topic: str = self.entry.topic
        return topic

    def redelivery_count(self) -> int:
        """Return the number of redeliveries (Shared and Key_Shared only)."""
        count: int = self.entry.redelivery_count
        return count

    def _single(self) -> SingleFields:
        """Return the message's own fields, read at the first call."""
        try:
            return self._fields
        except AttributeError:
            self._fields = self.entry.fields(self._meta_start, self._start)
            return self._fields

    def _may_be_null(self) -> bool:
        """Return False if the fields, not read, cannot mark a null value: in a batch, without the mark's tag."""
        start, stop = self._meta_start, self._start
        return start >= stop or self.entry.body.find(_NULL_VALUE, start, stop) >= 0

    def __len__(self) -> int:
        return self._end - self._start


class DeliveryFields:
    """Ids, redelivery count, ack set and undecoded payload of a MESSAGE command."""

    __slots__ = ("ack_words", "attachment", "entry_id", "epoch", "ledger_id", "payload", "redelivery_count")

    ack_words: Sequence[int] | None

    def __init__(self, message: Any, payload: bytes, attachment: int, epoch: int = 0) -> None:
        data = message.message_id
        self.ledger_id: int = data.ledgerId
        self.entry_id: int = data.entryId
        self.redelivery_count: int = message.redelivery_count
        self.ack_words = tuple(message.ack_set) or None
        self.payload = payload
        # Number of the subscription's attachment to a broker: a delivery of an older attachment returns no permit.
        self.attachment = attachment
        # Number of requests to redeliver everything when it arrived: one of an older epoch comes again.
        self.epoch = epoch


def make_deliveries(kind: type[D], frames: list[Any], attachment: int) -> list[D]:
    """Return the deliveries of MESSAGE frames, of epoch 0."""
    return [kind(frame.command.message, frame.payload, attachment) for frame in frames]


class EntryFields:
    """Attributes of a decoded entry. The body of `parsed` is released: it would keep the received payload."""

    __slots__ = (
        "batch_size",
        "body",
        "decryption_failed",
        "entry_id",
        "first_chunk",
        "is_batch",
        "ledger_id",
        "parsed",
        "partition",
        "publish_time",
        "redelivery_count",
        "schema",
        "topic",
    )

    def __init__(
        self, parsed: Any, body: bytes, delivery: DeliveryFields, *, topic: str, partition: int, schema: Any
    ) -> None:
        self.parsed = parsed
        parsed.body = b""
        self.body = body
        self.ledger_id = delivery.ledger_id
        self.entry_id = delivery.entry_id
        self.redelivery_count = delivery.redelivery_count
        self.is_batch: bool = parsed.is_batch
        self.batch_size: int = parsed.num_messages if parsed.is_batch else 0
        self.topic = topic
        self.partition = partition
        self.schema = schema
        # Publish time by the producer's clock, ms since 1970.
        self.publish_time: int = parsed.publish_time
        self.first_chunk: MessageId | None = None
        self.decryption_failed = False


class SingleEntryDecoder:
    """Decoder of entries of one message that need nothing but parsing: uncompressed, not encrypted, not a chunk.

    `parse` is called with a payload and True, `place_of` with the body of a batch of one; both return None for what is
    left to the usual decoder.
    """

    def __init__(
        self,
        parse: Callable[[bytes, bool], Any],
        place_of: Callable[[bytes], tuple[int, int, int] | None],
        entry_kind: Callable[..., Any],
        kind: Callable[..., Any],
        topic: str,
        partition: int,
        schema: Any,
    ) -> None:
        self._parse = parse
        self._place_of = place_of
        self._entry_kind = entry_kind
        self._kind = kind
        self._topic = topic
        self._partition = partition
        self._schema = schema

    def decode(
        self,
        deliveries: deque[Any],
        attachment: int,
        epoch: int,
        after: tuple[int, int],
        complete: Mapping[tuple[int, int], Any],
        most: int,
        most_bytes: int,
    ) -> list[Any]:
        """Remove deliveries from the left up to the first that is left to the usual decoder, and return their messages.

        That is one of another attachment or epoch, up to the position `after` or that of the one before it, or among
        the `complete` entries. At most `most` messages, and none more when they have `most_bytes` payload bytes. Others
        may append deliveries concurrently.
        """
        messages: list[Any] = []
        while deliveries and len(messages) < most and most_bytes > 0:
            delivery = deliveries[0]
            key = (delivery.ledger_id, delivery.entry_id)
            if delivery.attachment != attachment or delivery.epoch != epoch or delivery.ack_words is not None:
                break
            if key <= after or key in complete:
                break
            parsed = self._parse(delivery.payload, True)
            if parsed is None or parsed.num_messages != 1 or parsed.compression:
                break
            if parsed.is_encrypted or parsed.is_chunk or parsed.is_compacted:
                break
            body = bytes(parsed.body)
            place = self._place_of(body) if parsed.is_batch else (0, 0, len(body))
            if place is None:
                break
            deliveries.popleft()
            after = key
            entry = self._entry_kind(
                parsed, body, delivery, topic=self._topic, partition=self._partition, schema=self._schema
            )
            messages.append(self._kind(entry, 0 if parsed.is_batch else -1, *place))
            most_bytes -= place[2] - place[1]
        return messages


def make_messages(kind: type[M], entry: Any, first: int, stop: int, places: Iterable[tuple[int, int, int]]) -> list[M]:
    """Return messages of an entry with the indexes from `first` to `stop`; `places` are their offsets."""
    # `map` instead of a comprehension: a third less time per message.
    return list(map(kind, repeat(entry), range(first, stop), *zip(*places, strict=True)))


def make_uniform_messages(kind: type[M], entry: Any, first: int, stop: int, size: int, length: int) -> list[M]:
    """Return messages of an entry whose messages all have `size` bytes of metadata and `length` of payload."""
    stride = 4 + size + length
    at, behind = first * stride, stop * stride
    columns = (
        range(at + 4, behind + 4, stride),
        range(at + 4 + size, behind + 4 + size, stride),
        range(at + stride, behind + stride, stride),
    )
    return list(map(kind, repeat(entry), range(first, stop), *columns))


class MessageQueue(deque[M]):
    """Queue of received messages, of one entry or made before; compiled, the messages of an entry are made on dequeue.

    `popleft` and `pop` raise IndexError when it is empty.
    """

    __slots__ = ()

    def extend_places(
        self, kind: type[M], entry: Any, first: int, stop: int, places: list[tuple[int, int, int]]
    ) -> None:
        """Add messages of an entry with the indexes from `first` to `stop`; `places` are the offsets of all."""
        self.extend(make_messages(kind, entry, first, stop, places[first:stop]))

    def extend_packed(self, kind: type[M], entry: Any, first: int, stop: int, packed: bytes) -> None:
        """Add messages of an entry as `extend_places`; the offsets are packed as 32-bit numbers."""
        self.extend_places(kind, entry, first, stop, list(_PACKED.iter_unpack(packed)))

    def extend_uniform(self, kind: type[M], entry: Any, first: int, stop: int, size: int, length: int) -> None:
        """Add messages of an entry as `make_uniform_messages` returns them."""
        self.extend(make_uniform_messages(kind, entry, first, stop, size, length))

    def first_size(self) -> int:
        """Return the payload bytes of the first message, -1 when there is none."""
        try:
            message = self[0]
        except IndexError:
            return -1
        return message._end - message._start

    def drain_to(self, messages: list[M], count: int, most: int) -> int:
        """Move messages from the left to a list: at most `count`, up to the first that does not fit into `most` bytes.

        Return their payload bytes. Where another thread dequeues the first message concurrently, the one behind it is
        moved, whatever its size: put back, it could follow later messages.
        """
        left, before = most, len(messages)
        while count > 0:
            # Blocks take less time than single messages.
            try:
                ahead = list(islice(self, min(count, _DRAINED_AT_ONCE)))
            except RuntimeError:
                # Another thread has changed the queue meanwhile.
                continue
            sizes = [message._end - message._start for message in ahead]
            size, fitting = sum(sizes), len(sizes)
            if size > left:
                sums = list(accumulate(sizes))
                fitting = bisect_right(sums, left)
                size = sums[fitting - 1] if fitting else 0
            if not fitting:
                break
            left -= size
            count -= fitting
            try:
                messages.extend(islice(iter(self.popleft, None), fitting))
            except IndexError:
                # Another thread has dequeued from here, too, and nothing is left.
                fitting = 0
            if not fitting or messages[-1] is not ahead[fitting - 1]:
                left = most - sum([message._end - message._start for message in messages[before:]])
            if fitting < len(ahead):
                break
        return most - left


class PendingAcks(deque[Any]):
    """Acknowledged messages until the owner groups them; compiled, runs of them.

    While `is_open` the owner groups them by itself after a while; else `on_closed` is called with the message added. It
    has that begun and opens, or removes the message and raises.
    """

    __slots__ = ("_on_closed", "is_open")

    def __init__(self, on_closed: Callable[[Any], None]) -> None:
        super().__init__()
        self.is_open = False
        self._on_closed = on_closed

    def add(self, message: Any) -> None:
        """Add a message. Thread-safe; raises what `on_closed` raises."""
        self.append(message)
        # Order of events: append first, then read the flag; the owner clears the flag first and then groups, so one
        # side sees the other.
        if not self.is_open:
            self._on_closed(message)

    def take_runs(self) -> list[AckRun]:
        """Remove all messages and return them in runs of one entry each. Called by one thread at a time."""
        return self.take_parts(None, ())

    def take_parts(
        self, complete: dict[tuple[int, int], int] | None, partial: Container[tuple[int, int]]
    ) -> list[AckRun]:
        """As `take_runs`, but add whole entries to `complete`, by ledger and entry id with their numbers of messages.

        Not those in `partial`, which are returned as parts are. Of an entry in `complete` nothing is changed.
        """
        runs: list[AckRun] = []
        # No message equals the sentinel: `iter` is the quickest way to call again and again. What others append
        # meanwhile stays.
        for entry, run in groupby(islice(iter(self.popleft, None), len(self)), _entry_of):
            indexes = list(map(_index_of, run))
            first, number = indexes[0], len(indexes)
            ordered = indexes == list(range(first, first + number))
            whole = first < 0 or (first == 0 and ordered and number == entry.batch_size)
            if complete is not None and whole and (key := (entry.ledger_id, entry.entry_id)) not in partial:
                complete.setdefault(key, entry.batch_size or 1)
            else:
                runs.append((entry, first, number, None if ordered else indexes))
        return runs


class FastPathBuffer:
    """Lock-free buffer of messages that need no checks of their own, the hot path of publishing.

    Writers (no lock): 1. check that payload and encoded fields are at most `max_payload` and `items` fewer than
    `capacity`; 2. append the payload, or a tuple of it, its callback and its fields, if it has any (`has_tuples` is set
    before); 3. if `is_open` is not set, have the owner process late messages. Drainers hold the producer's lock and
    clear `capacity` and `is_open` before they read `items`, so one side always sees a concurrent append. Late appends
    may exceed `capacity`.
    """

    __slots__ = ("capacity", "has_tuples", "is_open", "items", "max_payload")

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.capacity = 0
        self.max_payload = 0
        self.is_open = False
        self.has_tuples = False

    def close(self) -> None:
        """Close the buffer: the next writer must have it reopened."""
        self.capacity = 0
        self.is_open = False

    def drain(self) -> tuple[list[bytes], list[Any] | None, list[bytes] | None, int]:
        """Empty the buffer; return the payloads, their callbacks and fields if there are any, and the payloads' bytes.

        The buffer must have been closed.
        """
        items = self.items
        taken = items[:]
        # Writers append concurrently: an item appended after the copy stays in the buffer.
        del items[: len(taken)]
        if not self.has_tuples:
            return taken, None, None, sum(map(len, taken))
        rows = [item if type(item) is tuple else (item, None, b"") for item in taken]
        payloads, callbacks, fields = zip(*rows, strict=True) if rows else ((), (), ())
        return list(payloads), list(callbacks), list(fields), sum(map(len, payloads))


def call_back(
    callbacks: Sequence[Any],
    outcome: tuple[Exception | None, Any],
    place: tuple[int, int, int] | None,
    topic: str,
    unstored: MessageId,
    failed: Callable[[], None],
) -> None:
    """Call the callbacks of an entry's messages, in a tuple with the result and an id, others with the error and an id.

    `outcome` is error and result, `place` partition, ledger and entry id of a stored entry. `failed` is called while an
    exception of a callback is handled.
    """
    error, result = outcome
    count = len(callbacks)
    message_id: MessageId | None = None
    for index, callback in enumerate(callbacks):
        if callback is None:
            continue
        if place is not None:
            message_id = MessageId(*place, index, batch_size=count, topic=topic)
        try:
            if type(callback) is tuple:
                callback[0](result, unstored if message_id is None else message_id)
            else:
                callback(error, message_id)
        except callback_errors():
            failed()


_PYTHON = (
    DeliveryFields, EntryFields, FastPathBuffer, MessageFields, MessageQueue, PendingAcks, SingleEntryDecoder,
    call_back, make_deliveries, make_messages, make_uniform_messages,
)  # fmt: skip
_NAMES = tuple(each.__name__ for each in _PYTHON)


def _chosen() -> Any:
    if os.environ.get("PULSAR_NATIVE_IMPL") == "python":
        return None
    try:
        return importlib.import_module("pulsar_native._message_speedups")
    except ImportError:
        return None


def compiled_form(reference: F) -> F:
    """Return the compiled form of a method of an API where it is built, else the method itself.

    The form takes the usual steps without a Python frame, and calls the method for everything else.
    """
    if _compiled is None:
        return reference
    form: F = getattr(_compiled, reference.__name__)
    functools.update_wrapper(form, reference)
    return form


_compiled: Any = _chosen()
is_compiled = _compiled is not None
if not TYPE_CHECKING and is_compiled:
    (
        DeliveryFields, EntryFields, FastPathBuffer, MessageFields, MessageQueue, PendingAcks, SingleEntryDecoder,
        call_back, make_deliveries, make_messages, make_uniform_messages,
    ) = (getattr(_compiled, name) for name in _NAMES)  # fmt: skip
