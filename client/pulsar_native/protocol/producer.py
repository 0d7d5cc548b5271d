"""One producer on one topic or partition: sequence ids, the open batch, and the queue of what has no receipt yet.

Rules: the unit is the entry (a batch, or a single message); an entry keeps its exact bytes until its receipt, so that
a resend has the boundaries the broker's deduplication knows. Order of ids, queue and bytes is the order of `add`. A
batch of one is written as a plain message, as Java 4.x does. Messages whose sequence id may be known to the broker
never share a batch with fresh ones, since the broker drops a batch as a whole. Ids and receipts follow client.md A.3
(C63-C66, C73-C75).

Not thread-safe: the engine holds the producer's lock around every call. `now` is monotonic seconds, `wall_ms` is
milliseconds since 1970.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto

from pulsar_native.config import ProducerConfig
from pulsar_native.enums import CompressionType
from pulsar_native.exceptions import MessageTooBig, PulsarException, Timeout
from pulsar_native.message import OutgoingMessage
from pulsar_native.message_id import MessageId
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.checksum import crc32c
from pulsar_native.wire.codec import encode_batch
from pulsar_native.wire.compression import compress
from pulsar_native.wire.frames import DEFAULT_MAX_MESSAGE_SIZE

_log = logging.getLogger(__name__)

Callback = Callable[[PulsarException | None, MessageId | None], None]

# An entry of exactly the broker's maximum passes the broker but not its storage (client.md F.1): keep clear of it.
_SIZE_RESERVE = 128
# What a batch adds to each message at most, for keeping a batch below the maximum: size, header, sequence id.
_PER_MESSAGE = 24


class SendOp:
    """One entry on its way: its bytes, and whom to tell."""

    __slots__ = ("callbacks", "count", "created", "highest_sequence_id", "parts", "sequence_id", "size", "written")

    def __init__(
        self,
        sequence_id: int,
        highest_sequence_id: int,
        parts: Sequence[bytes | memoryview],
        callbacks: list[Callback | None],
        size: int,
        created: float,
    ) -> None:
        self.sequence_id = sequence_id
        self.highest_sequence_id = highest_sequence_id
        self.parts = parts
        self.callbacks = callbacks
        self.count = len(callbacks)
        self.size = size
        self.created = created
        self.written = False

    def complete(self, error: PulsarException | None, place: tuple[int, int, int] | None, topic: str) -> None:
        """Call the callbacks, each with its own message id; `place` is (partition, ledger, entry)."""
        for index, callback in enumerate(self.callbacks):
            if callback is None:
                continue
            message_id = None if place is None else self._id(place, index, topic)
            try:
                callback(error, message_id)
            except Exception:
                # The application's callback is not ours to trust: the other messages' callbacks are still owed.
                _log.exception("A send callback failed")

    def _id(self, place: tuple[int, int, int], index: int, topic: str) -> MessageId:
        partition, ledger, entry = place
        if self.count == 1:
            return MessageId(partition, ledger, entry, -1, topic=topic)
        return MessageId(partition, ledger, entry, index, batch_size=self.count, topic=topic)

    def is_intact(self) -> bool:
        """Return whether the bytes still have the checksum they were given: if so, they were damaged on the way."""
        head, body = self.parts
        start = 8 + int.from_bytes(head[4:8], "big") + 2
        return crc32c(body, crc32c(head[start + 4 :])) == int.from_bytes(head[start : start + 4], "big")


class Receipt(Enum):
    """What a receipt means for the queue."""

    COMPLETED = auto()
    IGNORED = auto()
    OUT_OF_STEP = auto()


class _OpenBatch:
    """Messages collected for one entry."""

    __slots__ = (
        "callbacks",
        "created",
        "fields",
        "first_key",
        "ids",
        "payloads",
        "potential_duplicates",
        "size",
        "wall",
    )

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.ids: list[int] = []
        self.fields: list[bytes] = []
        self.callbacks: list[Callback | None] = []
        self.size = 0
        self.created = 0.0
        self.wall = 0
        self.first_key: OutgoingMessage | None = None
        self.potential_duplicates = False


class ProducerCore:
    """State machine of one producer. Not thread-safe."""

    def __init__(self, config: ProducerConfig, producer_id: int, *, topic: str, partition: int) -> None:
        self.config = config
        self.producer_id = producer_id
        self.topic = topic
        self.partition = partition
        self.name = config.producer_name or ""
        self.schema_version: bytes | None = None
        self.max_message_size = DEFAULT_MAX_MESSAGE_SIZE
        initial = config.initial_sequence_id
        self.last_published = -1 if initial is None else initial
        self.last_pushed = self.last_published
        # The broker's deduplication drops everything up to this id, as far as we were told.
        self._stored = -1
        self._next_sequence_id = self.last_published + 1
        self.pending: deque[SendOp] = deque()
        # Batches that could not be encoded: completed by the engine once it has let go of the lock.
        self.failed: list[tuple[SendOp, PulsarException]] = []
        self.pending_messages = 0
        self.pending_bytes = 0
        self.batching = config.batching_enabled
        self._max_messages = config.batching_max_messages
        self._max_bytes = config.batching_max_allowed_size_in_bytes
        self._compression = config.compression_type
        self._batch = _OpenBatch()

    # --- connection -----------------------------------------------------------------------------------------------

    def connected(self, name: str, last_sequence_id: int, schema_version: bytes, max_message_size: int) -> None:
        """Take what PRODUCER_SUCCESS told; the first time, continue from the ids the broker has stored."""
        self.name = name
        self.max_message_size = max_message_size
        self.schema_version = schema_version or None
        self._stored = max(self._stored, last_sequence_id)
        if not self.pending and not self._batch.ids and self.last_published < last_sequence_id:
            self.last_pushed = max(self.last_pushed, last_sequence_id)
            if self.config.initial_sequence_id is None and self._next_sequence_id == 0:
                self.last_published = last_sequence_id
                self._next_sequence_id = last_sequence_id + 1

    # --- sending --------------------------------------------------------------------------------------------------

    @property
    def batch_is_open(self) -> bool:
        """Whether messages wait in an unfinished batch."""
        return bool(self._batch.ids)

    def batch_due(self) -> float:
        """Return when the open batch must be closed."""
        return self._batch.created + self.config.batching_max_publish_delay_ms / 1000

    def has_room(self, limit: int) -> bool:
        """Return whether one more message may wait for its receipt; limit 0 = no limit."""
        return not limit or self.pending_messages < limit

    def add(
        self,
        payload: bytes,
        fields: bytes,
        extras: OutgoingMessage | None,
        callback: Callback | None,
        now: float,
        wall_ms: int,
    ) -> list[SendOp]:
        """Take one message and return the entries that became ready, to be written in this order.

        `fields` are the encoded optional fields, `extras` the message itself when it has any. Raises `MessageTooBig`
        without having taken anything.
        """
        explicit = None if extras is None else extras.sequence_id
        sequence_id = self._next_sequence_id if explicit is None else explicit
        if not self.batching or (extras is not None and extras.needs_own_entry):
            return self._add_single(payload, extras, callback, sequence_id, now, wall_ms)
        size = len(payload) + len(fields) + _PER_MESSAGE
        duplicate = sequence_id <= self.last_pushed
        # Too large for any batch: compressed, it may still fit as an entry of its own. Sent before without a receipt:
        # the broker may have it or not, and would drop a batch for one message that it has.
        if size > self.max_message_size - _SIZE_RESERVE or (duplicate and sequence_id > self._stored):
            return self._add_single(payload, extras, callback, sequence_id, now, wall_ms)
        batch = self._batch
        ready: list[SendOp] = []
        if batch.ids and (
            batch.size + size > self._max_bytes
            or batch.size + size > self.max_message_size - _SIZE_RESERVE - 256
            or duplicate != batch.potential_duplicates
        ):
            ready = self.close_batch()
            batch = self._batch
        if not batch.ids:
            batch.created = now
            batch.wall = wall_ms
            batch.potential_duplicates = duplicate
            batch.first_key = extras
        batch.payloads.append(payload)
        batch.ids.append(sequence_id)
        batch.fields.append(fields)
        batch.callbacks.append(callback)
        batch.size += size
        self._note(sequence_id, len(payload))
        if len(batch.ids) >= self._max_messages or batch.size >= self._max_bytes:
            ready += self.close_batch()
        return ready

    def _note(self, sequence_id: int, size: int) -> None:
        if sequence_id >= self._next_sequence_id:
            self._next_sequence_id = sequence_id + 1
        if sequence_id > self.last_pushed:
            self.last_pushed = sequence_id
        self.pending_messages += 1
        self.pending_bytes += size

    def _add_single(
        self,
        payload: bytes,
        extras: OutgoingMessage | None,
        callback: Callback | None,
        sequence_id: int,
        now: float,
        wall_ms: int,
    ) -> list[SendOp]:
        metadata = self._metadata(sequence_id, wall_ms)
        _single_fields(metadata, extras)
        parts = self._encode(metadata, payload, sequence_id, 1)
        ready = self.close_batch()
        op = SendOp(sequence_id, sequence_id, parts, [callback], len(payload), now)
        self._note(sequence_id, len(payload))
        self.pending.append(op)
        ready.append(op)
        return ready

    def close_batch(self) -> list[SendOp]:
        """Make an entry of the open batch; none when it is empty."""
        batch = self._batch
        if not batch.ids:
            return []
        self._batch = _OpenBatch()
        size = sum(map(len, batch.payloads))
        highest = max(batch.ids) if batch.potential_duplicates else batch.ids[-1]
        metadata = self._metadata(batch.ids[0], batch.wall)
        try:
            if len(batch.ids) == 1:
                _single_fields(metadata, batch.first_key)
                parts = self._encode(metadata, batch.payloads[0], highest, 1)
            else:
                first = batch.first_key
                if first is not None and first.partition_key is not None:
                    metadata.partition_key = first.partition_key
                    metadata.partition_key_b64_encoded = first.key_is_base64
                metadata.num_messages_in_batch = len(batch.ids)
                metadata.highest_sequence_id = highest
                body = encode_batch(batch.payloads, batch.ids, batch.fields)
                parts = self._encode(metadata, body, highest, len(batch.ids))
        except PulsarException as error:
            op = SendOp(batch.ids[0], highest, (), batch.callbacks, size, batch.created)
            self._release(op)
            self.failed.append((op, error))
            return []
        op = SendOp(batch.ids[0], highest, parts, batch.callbacks, size, batch.created)
        self.pending.append(op)
        return [op]

    def _metadata(self, sequence_id: int, wall_ms: int) -> pb.MessageMetadata:
        metadata = pb.MessageMetadata(producer_name=self.name, sequence_id=sequence_id, publish_time=wall_ms)
        if self.schema_version:
            metadata.schema_version = self.schema_version
        return metadata

    def _encode(
        self, metadata: pb.MessageMetadata, body: bytes, highest_sequence_id: int, count: int
    ) -> list[bytes | memoryview]:
        if self._compression is not CompressionType.NONE and len(body) > self.config.compression_min_msg_body_size:
            metadata.compression = int(self._compression)  # type: ignore[assignment]
            metadata.uncompressed_size = len(body)
            body = compress(self._compression, body)
        elif count == 1:
            metadata.uncompressed_size = len(body)
        encoded = metadata.SerializeToString()
        if len(encoded) + len(body) > self.max_message_size - _SIZE_RESERVE:
            raise MessageTooBig(
                f"The message has {len(body)} bytes after compression ({len(encoded)} more of metadata); the broker "
                f"takes {self.max_message_size}. Make it smaller or raise the broker's maxMessageSize",
                topic=self.topic,
            )
        return commands.send(
            producer_id=self.producer_id,
            sequence_id=metadata.sequence_id,
            highest_sequence_id=highest_sequence_id,
            count=count,
            metadata=encoded,
            payload=body,
        )

    # --- answers --------------------------------------------------------------------------------------------------

    def receipt(self, sequence_id: int) -> tuple[Receipt, SendOp | None]:
        """Match a receipt with the oldest entry: a lower id was given up before, a higher one means we lost step."""
        if not self.pending or sequence_id < self.pending[0].sequence_id:
            return Receipt.IGNORED, None
        op = self.pending[0]
        if sequence_id > op.sequence_id:
            return Receipt.OUT_OF_STEP, None
        self.pending.popleft()
        self._release(op)
        self.last_published = max(self.last_published, op.highest_sequence_id)
        self._stored = max(self._stored, op.highest_sequence_id)
        return Receipt.COMPLETED, op

    def fail(self, sequence_id: int) -> SendOp | None:
        """Take the oldest entry out of the queue when it has this id: the broker refuses it for good."""
        if self.pending and self.pending[0].sequence_id == sequence_id:
            op = self.pending.popleft()
            self._release(op)
            return op
        return None

    def expire(self, now: float) -> list[SendOp]:
        """When the oldest message is overdue, give up everything pending, the open batch too, and return it."""
        due = self.next_expiry()
        if due is None or now < due:
            return []
        return self.drain()

    def next_expiry(self) -> float | None:
        """Return when the oldest message is overdue, None when nothing waits or no time-out is set."""
        timeout = self.config.send_timeout_millis / 1000
        if not timeout:
            return None
        if self.pending:
            return self.pending[0].created + timeout
        return self._batch.created + timeout if self._batch.ids else None

    def drain(self) -> list[SendOp]:
        """Empty the queue and the open batch and return all of it, oldest first."""
        self.close_batch()
        ops = list(self.pending)
        self.pending.clear()
        for op in ops:
            self._release(op)
        return ops

    def timeout_error(self) -> Timeout:
        """Return the error for messages that had no receipt in time."""
        seconds = self.config.send_timeout_millis / 1000
        return Timeout(f"The broker confirmed nothing within send_timeout_millis ({seconds:g} s)", topic=self.topic)

    def _release(self, op: SendOp) -> None:
        self.pending_messages -= op.count
        self.pending_bytes -= op.size


def _single_fields(metadata: pb.MessageMetadata, extras: OutgoingMessage | None) -> None:
    """Write the fields of a message that is not part of a batch into the entry's metadata."""
    if extras is None:
        return
    if extras.properties:
        metadata.properties.extend(pb.KeyValue(key=key, value=value) for key, value in extras.properties.items())
    if extras.partition_key is not None:
        metadata.partition_key = extras.partition_key
        metadata.partition_key_b64_encoded = extras.key_is_base64
    if extras.ordering_key:
        metadata.ordering_key = extras.ordering_key.encode()
    if extras.event_timestamp:
        metadata.event_time = extras.event_timestamp
    if extras.replicate_to:
        metadata.replicate_to.extend(extras.replicate_to)
    if extras.deliver_at is not None:
        metadata.deliver_at_time = extras.deliver_at
    if extras.null_value:
        metadata.null_value = True
