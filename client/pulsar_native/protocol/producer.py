"""Producer state machine for one topic or partition: sequence ids, the open batch, and the pending queue.

Rules: the unit is the entry (a batch, or a single message); an entry keeps its exact bytes until its receipt, so that a
resend has the batch boundaries the broker's deduplication has recorded. The order of ids, queue and bytes is the order
of `add`. A batch of one is written as a plain message, as Java 4.x does. Messages whose sequence id may be known to the
broker never share a batch with new ones, since the broker drops a batch as a whole; nor do messages of different
schemas or transactions, which are attributes of the entry. A message too large for one entry may be split into chunks:
entries of one sequence id that are queued, given up and rejected together; each has a receipt of its own, and the last
chunk's completes the message. `_frame` is the only function that turns a finished body, compressed and split, into the
bytes of an entry.

Messages that have nothing but a payload arrive through `fast_path` in bulk. The checks `add` makes per message,
`open_fast_path` makes once for many; `drain_fast_path` assigns their ids and places in the batch, and runs first in
every method that depends on those.

Not thread-safe, but for `fast_path`: the engine holds the producer's lock around every call. `now` is monotonic
seconds, `wall_ms` is milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, repeat

from pulsar_native._callback_errors import is_of_signal_handler
from pulsar_native._loggers import get_logger
from pulsar_native._message_fields import FastPathBuffer
from pulsar_native.config import ProducerConfig
from pulsar_native.enums import BatchingType, CompressionType
from pulsar_native.exceptions import MessageTooBig, PulsarException, Timeout, UnknownError
from pulsar_native.message import OutgoingMessage
from pulsar_native.protocol.batch_builder import (
    BatchBuilder,
    BatchKey,
    described_by,
    shared_keys,
    single_fields,
    split_by_key,
)
from pulsar_native.protocol.data_keys import Encryptor
from pulsar_native.protocol.send_op import Callback, ChunkOp, PendingQueue, SendCallback, SendOp
from pulsar_native.protocol.transaction import NotRegistered, TransactionCore
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire._impl import encode_batch, fitting
from pulsar_native.wire.compression import compress
from pulsar_native.wire.frames import DEFAULT_MAX_MESSAGE_SIZE

_log = get_logger(__name__)

# An entry of exactly the broker's maximum size passes the broker but not its storage: this margin avoids that.
_SIZE_RESERVE = 128
# Upper bound of the batch overhead per message in bytes: size, header, sequence id.
_PER_MESSAGE = 24
# The chunk metadata count the message's bytes in an int32.
_MAX_CHUNKED = (1 << 31) - 1


class NoRoomForChunks(Exception):
    """Raised when the chunks of a message do not fit into the queue now; none was added. `needed` is their number."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


class ProducerCore:
    """Producer state machine. Not thread-safe."""

    def __init__(
        self,
        config: ProducerConfig,
        producer_id: int,
        *,
        topic: str,
        partition: int,
        max_pending: int = 0,
        encryptor: Encryptor | None = None,
    ) -> None:
        self.queue = PendingQueue(-1 if config.initial_sequence_id is None else config.initial_sequence_id)
        # Transactions in which the broker has registered this partition, until they end.
        self.transactions: set[TransactionCore] = set()
        self.config = config
        self.producer_id = producer_id
        self.topic = topic
        self.partition = partition
        self.name = config.producer_name or ""
        self.schema_version: bytes | None = None
        self.max_message_size = DEFAULT_MAX_MESSAGE_SIZE
        self.last_pushed = self.queue.last_published
        # What the broker's deduplication had at the last attachment: the highest id, -1 for none.
        self._last_at_broker = -1
        self._next_sequence_id = self.last_pushed + 1
        # Batches that could not be encoded: completed by the engine after it has released the lock.
        self.failed: list[tuple[SendOp, PulsarException]] = []
        # Bytes reserved of the client's memory limit for messages still to arrive through the fast path.
        self.reserved_bytes = 0
        self.fast_path = FastPathBuffer()
        # Capacity of the open fast path: messages, payload bytes; and when it was opened.
        self._offered = (0, 0)
        self._opened = (0.0, 0)
        # Entries that are queued and not returned yet: built from late appends, or in an interrupted call.
        self._late: list[SendOp] = []
        self.batching = config.batching_enabled
        self._max_messages = config.batching_max_messages
        self._max_bytes = config.batching_max_allowed_size_in_bytes
        self._compression = config.compression_type
        self._by_key = config.batching_type is BatchingType.KeyBased
        self._chunking = config.chunking_enabled
        self._max_chunk = config.chunk_max_message_size if config.chunk_max_message_size > 0 else _MAX_CHUNKED
        self._max_pending = max_pending
        self._encryptor = encryptor
        self._batch_room = self._room_of_a_batch()
        self.open_batch = BatchBuilder()

    # --- connection -----------------------------------------------------------------------------------------------

    def connected(self, name: str, last_sequence_id: int, schema_version: bytes, max_message_size: int) -> None:
        """Apply the fields of PRODUCER_SUCCESS; the first time, continue from the sequence id the broker has stored."""
        self.drain_fast_path()
        self.name = name
        self.max_message_size = max_message_size
        self._batch_room = self._room_of_a_batch()
        self.schema_version = schema_version or None
        queue = self.queue
        queue.stored = max(queue.stored, last_sequence_id)
        self._last_at_broker = last_sequence_id
        queue.keep_last_chunks(last_sequence_id)
        if not queue.ops and not self.open_batch.payloads and queue.last_published < last_sequence_id:
            self.last_pushed = max(self.last_pushed, last_sequence_id)
            if self.config.initial_sequence_id is None and self._next_sequence_id == 0:
                queue.last_published = last_sequence_id
                self._next_sequence_id = last_sequence_id + 1

    def disconnected(self) -> None:
        """Record the loss of the connection: pending entries may be stored."""
        self.queue.disconnected()

    def _room_of_a_batch(self) -> int:
        encryption = 0 if self._encryptor is None else self._encryptor.overhead
        return self.max_message_size - _SIZE_RESERVE - 256 - encryption

    # --- sending --------------------------------------------------------------------------------------------------

    @property
    def batch_is_open(self) -> bool:
        """True while messages wait in an unfinished batch."""
        return bool(self.open_batch.payloads)

    @property
    def pending_messages(self) -> int:
        """Number of messages that wait for their receipts."""
        # The queue counts entries; the open batch and the fast path are counted on demand.
        return self.queue.messages + len(self.open_batch.payloads) + len(self.fast_path.items)

    @property
    def pending_bytes(self) -> int:
        """Number of bytes that wait for their receipts."""
        return self.queue.bytes + self.open_batch.payload_bytes + self._coming_bytes()

    @property
    def spare_bytes(self) -> int:
        """Bytes reserved of the client's memory limit for messages not appended yet."""
        return max(0, self.reserved_bytes - self._coming_bytes())

    def _coming_bytes(self) -> int:
        return sum(len(item[0]) if type(item) is tuple else len(item) for item in list(self.fast_path.items))

    def batch_due(self) -> float:
        """Time at which the open batch must be closed."""
        return self.open_batch.created + self.config.batching_max_publish_delay_ms / 1000

    def add(
        self,
        payload: bytes,
        fields: bytes,
        extras: OutgoingMessage | None,
        callback: SendCallback | None,
        now: float,
        wall_ms: int,
    ) -> list[SendOp]:
        """Add one message and return the entries that became ready, to be written in this order.

        `fields` are the encoded optional fields, `extras` the message itself when it has any. Raises `MessageTooBig`,
        `NoRoomForChunks` or `NotRegistered`, or the transaction's error when it accepts no more, without side effects.
        """
        if self.fast_path.capacity or self.fast_path.items:
            late = self.drain_fast_path()
            try:
                return late + self._add(payload, fields, extras, callback, now, wall_ms)
            except BaseException:
                self._late = late + self._late
                raise
        return self._add(payload, fields, extras, callback, now, wall_ms)

    def _add(
        self,
        payload: bytes,
        fields: bytes,
        extras: OutgoingMessage | None,
        callback: SendCallback | None,
        now: float,
        wall_ms: int,
    ) -> list[SendOp]:
        explicit: int | None = None
        kind: BatchKey = None
        if extras is not None:
            explicit, kind = extras.sequence_id, extras.schema_version
            if extras.transaction is not None:
                kind = self.kind_in(extras.transaction, extras.schema_version, now)
        sequence_id = self._next_sequence_id if explicit is None else explicit
        if not self.batching or (extras is not None and extras.needs_own_entry):
            return self._add_single(payload, extras, kind, callback, sequence_id, now, wall_ms)
        size = len(payload) + len(fields) + _PER_MESSAGE
        duplicate = sequence_id <= self.last_pushed
        # Too large for any batch: compressed, it may still fit as an entry of its own. Or sent before without a
        # receipt: the broker may or may not have it, and would drop a whole batch for one message that it has.
        if size > self.max_message_size - _SIZE_RESERVE or (duplicate and sequence_id > self.queue.stored):
            return self._add_single(payload, extras, kind, callback, sequence_id, now, wall_ms)
        batch = self.open_batch
        ready: list[SendOp] = []
        if batch.ids and (
            batch.size + size > self._max_bytes
            or batch.size + size > self._batch_room
            or duplicate != batch.potential_duplicates
            or (kind is not batch.kind and kind != batch.kind)
        ):
            ready = self._close()
            batch = self.open_batch
        if not batch.ids:
            batch.created = now
            batch.wall = wall_ms
            self._opened = now, wall_ms
            batch.potential_duplicates = duplicate
            batch.first_key = extras
            batch.kind = kind
        batch.add_ids(sequence_id, 1)
        # Inlined `_note`, without a call: this runs for each message. Before the calls, at which a signal handler may
        # raise: the id is used then in any case.
        if sequence_id >= self._next_sequence_id:
            self._next_sequence_id = sequence_id + 1
        if not duplicate:
            self.last_pushed = sequence_id
        batch.size += size
        batch.payload_bytes += len(payload)
        batch.payloads.append(payload)
        batch.fields.append(fields)
        batch.callbacks.append(callback)
        if len(batch.ids) >= self._max_messages or batch.size >= self._max_bytes:
            ready += self._close()
        return ready

    def open_fast_path(self, messages: int, payload_bytes: int) -> None:
        """Open the fast path for as much as the open batch can hold without being full.

        It stays closed where `add` must check each message: no batch is open; the batch is of a transaction, another
        schema or messages the broker may know; or the broker may know the next ids. Call it with a drained fast path.
        """
        batch = self.open_batch
        count = len(batch.ids)
        is_fresh = not batch.potential_duplicates and self._next_sequence_id > self.last_pushed
        if not count or batch.kind is not None or not is_fresh:
            return
        size = min(self._max_bytes - 1, self._batch_room) - batch.size
        messages = min(messages, self._max_messages - 1 - count)
        lately = [len(batch.payloads[row]) + len(batch.fields[row]) for row in range(max(0, count - 16), count)]
        largest = max(lately)
        if largest != min(lately):
            # So that few messages exceed the size; unused capacity is granted at the next opening.
            largest = max(largest, 2 * batch.size // count)
        space = min(messages, size // (largest + _PER_MESSAGE), payload_bytes // (largest or 1))
        if space > 0:
            self._offered = messages, size
            self.fast_path.max_payload = largest
            self.fast_path.capacity = space
            self.fast_path.is_open = True

    def drain_late(self, now: float, wall_ms: int) -> list[SendOp]:
        """Process messages appended too late for their batch; return the entries to write."""
        self._opened = now, wall_ms
        return self.drain_fast_path()

    def drain_fast_path(self) -> list[SendOp]:
        """Close the fast path and add its messages to the open batch; return the entries that became ready.

        That list is empty unless several threads appended more than the capacity, or too late.
        """
        fast_path = self.fast_path
        if fast_path.is_open:
            fast_path.close()
        offered, self._offered = self._offered, (0, 0)
        late, self._late = self._late, []
        if not fast_path.items:
            return late
        payloads, callbacks, fields, payload_bytes = fast_path.drain()
        count = len(payloads)
        self.reserved_bytes -= payload_bytes
        size = payload_bytes + count * _PER_MESSAGE + (0 if fields is None else sum(map(len, fields)))
        if count > offered[0] or size > offered[1]:
            queued = len(self.queue.ops)
            try:
                self._add_late(zip(payloads, callbacks or repeat(None), fields or repeat(b""), strict=False))
            finally:
                self._late = [*late, *islice(self.queue.ops, queued, None)]
            late, self._late = self._late, []
            return late
        batch, start = self.open_batch, self._next_sequence_id
        # The one call of these steps: a signal handler may run, and raise, at a call.
        batch.add_ids(start, count)
        batch.payloads += payloads
        batch.payload_bytes += payload_bytes
        batch.fields += [b""] * count if fields is None else fields
        batch.callbacks += [None] * count if callbacks is None else callbacks
        batch.size += size
        self._next_sequence_id = start + count
        self.last_pushed = start + count - 1
        return late

    def _add_late(self, rows: Iterator[tuple[bytes, SendCallback | None, bytes]]) -> None:
        """Add messages (payload, callback, fields) that are accepted: one that cannot be added goes to `failed`."""
        number: int | None = None
        try:
            for row in rows:
                number = self._next_sequence_id
                self._add_accepted(*row)
                number = None
        except BaseException:
            # A signal handler's: nothing else passes.
            self.open_batch.repair()
            self._add_late(rows if number is None or self._is_added(number) else chain([row], rows))
            raise

    def _add_accepted(self, payload: bytes, callback: SendCallback | None, fields: bytes) -> None:
        try:
            self._add(payload, fields, described_by(fields), callback, *self._opened)
        except Exception as error:
            if is_of_signal_handler(error):
                raise
            number = self._next_sequence_id
            op = SendOp(number, number, (), [callback], len(payload), self._opened[0])
            self.failed.append((op, _failure(error)))

    def _is_added(self, sequence_id: int) -> bool:
        """Return True if the last message has this id, and is in the open batch or in an entry."""
        return sequence_id in self.open_batch.ids or any(op.highest_sequence_id == sequence_id for op in self.queue.ops)

    def kind_in(self, transaction: TransactionCore, version: bytes | None, now: float) -> BatchKey:
        """Return the batch key of a message in a transaction; raises `NotRegistered`, or the error when it accepts no
        more.
        """
        transaction.check_writable(self.topic, now)
        if transaction not in self.transactions:
            raise NotRegistered(transaction)
        return version, transaction

    def fits(self, payloads: list[bytes], fields: list[bytes] | None, limit: int) -> tuple[int, int]:
        """Return how many messages, from the first on, `add_entry` may accept as one entry, and how many bytes their
        payloads have; fewer than two messages: none.

        None also where each message must be checked by itself, as `add` does: without batching or with key-based
        batching, and when the broker may know the next ids.
        """
        plain = self.batching and self.config.batching_type is BatchingType.Default
        if not plain or self._next_sequence_id <= self.last_pushed:
            return 0, 0
        most = min(self._max_bytes, self._batch_room)
        return fitting(payloads, fields, min(limit, self._max_messages), most, _PER_MESSAGE)

    def add_entry(
        self,
        payloads: list[bytes],
        payload_bytes: int,
        fields: list[bytes] | None,
        first: OutgoingMessage | None,
        callback: Callback,
        now: float,
        wall_ms: int,
        kind: BatchKey = None,
    ) -> list[SendOp]:
        """Add as many messages as `fits` returned as one entry, behind the open batch; return the entries to write.

        `first` has the first message's key. `callback` is called once, with the id of the last message.
        """
        ready = self.close_batch()
        batch, count = BatchBuilder(), len(payloads)
        start = self._next_sequence_id
        batch.payloads = payloads
        batch.payload_bytes = payload_bytes
        batch.add_ids(start, count)
        # The empty list stands for no fields.
        batch.fields = fields if fields is not None else []
        batch.callbacks = [None] * (count - 1)
        batch.callbacks.append(callback)
        batch.created, batch.wall, batch.first_key, batch.kind = now, wall_ms, first, kind
        self.open_batch = batch
        self._next_sequence_id = start + count
        self.last_pushed = start + count - 1
        return ready + self._close()

    def _note(self, sequence_id: int) -> None:
        if sequence_id >= self._next_sequence_id:
            self._next_sequence_id = sequence_id + 1
        if sequence_id > self.last_pushed:
            self.last_pushed = sequence_id

    def _add_single(
        self,
        payload: bytes,
        extras: OutgoingMessage | None,
        kind: BatchKey,
        callback: SendCallback | None,
        sequence_id: int,
        now: float,
        wall_ms: int,
    ) -> list[SendOp]:
        metadata, transaction = self._metadata(sequence_id, wall_ms, kind)
        if extras is not None:
            single_fields(metadata, extras)
        body = self._compressed(metadata, payload, 1)
        if self._chunking and len(body) > min(self._max_chunk, self._body_limit(metadata)):
            return self._add_chunks(metadata, payload, body, callback, now, transaction)
        parts = self._frame(metadata, body, sequence_id, sequence_id, 1, transaction)
        ready = self._close()
        op = SendOp(sequence_id, sequence_id, parts, [callback], len(payload), now)
        op.transaction = transaction
        self._note(sequence_id)
        self.queue.append(op)
        ready.append(op)
        return ready

    def _add_chunks(
        self,
        metadata: pb.MessageMetadata,
        payload: bytes,
        body: bytes,
        callback: SendCallback | None,
        now: float,
        transaction: TransactionCore | None,
    ) -> list[SendOp]:
        """Split a message into chunks: all of them are queued, or none."""
        sequence_id = metadata.sequence_id
        size = self._chunk_size(metadata, len(body))
        count = -(-len(body) // size)
        self._check_room_for(count)
        metadata.num_chunks_from_msg = count
        is_alone = sequence_id <= self._last_at_broker
        view = memoryview(body)
        places: list[tuple[int, int, int]] = []
        ops: list[SendOp] = []
        for chunk_id in range(count - 1 if is_alone else 0, count):
            is_last = chunk_id == count - 1
            _set_counted_id(metadata, sequence_id if is_last else sequence_id - 1)
            metadata.chunk_id = chunk_id
            # Each chunk is encrypted separately.
            metadata.ClearField("encryption_keys")
            piece = view[chunk_id * size : (chunk_id + 1) * size]
            parts = self._frame(metadata, piece, sequence_id, sequence_id, 1, transaction, is_chunk=True)
            taken = (callback, len(payload)) if is_last else (None, 0)
            op = ChunkOp(sequence_id, parts, *taken, now, is_last=is_last, places=places)
            op.transaction = transaction
            op.is_alone = is_alone
            ops.append(op)
        self._note(sequence_id)
        for each in ops:
            self.queue.append(each)
        return ops

    def _chunk_size(self, metadata: pb.MessageMetadata, total: int) -> int:
        """Write the metadata the chunks share, and return the size of all chunks but the last."""
        if total > _MAX_CHUNKED:
            raise MessageTooBig(f"A message in chunks can have {_MAX_CHUNKED} bytes, not {total}", topic=self.topic)
        metadata.uuid = f"{self.name}-{metadata.sequence_id}"
        metadata.total_chunk_msg_size = total
        # The largest values of these fields: their encoded width counts.
        metadata.num_chunks_from_msg = metadata.chunk_id = total
        if not metadata.sequence_id:
            _set_counted_id(metadata, -1)
        space = self._body_limit(metadata)
        if space < 1:
            raise MessageTooBig(
                f"The metadata of the message alone take more than the {self.max_message_size} bytes of the broker's "
                "maxMessageSize; send fewer or shorter properties",
                topic=self.topic,
            )
        return min(space, self._max_chunk)

    def _check_room_for(self, chunks: int) -> None:
        limit = self._max_pending
        if limit and chunks > limit:
            raise MessageTooBig(
                f"The message makes {chunks} chunks, more than ever fit into the queue of {limit} messages; raise "
                "max_pending_messages or chunk_max_message_size",
                topic=self.topic,
            )
        if limit and self.pending_messages + chunks > limit:
            raise NoRoomForChunks(chunks)

    def _body_limit(self, metadata: pb.MessageMetadata) -> int:
        """Return the maximum body size of an entry with these metadata, in bytes."""
        encryption = 0 if self._encryptor is None else self._encryptor.overhead
        return self.max_message_size - _SIZE_RESERVE - metadata.ByteSize() - encryption

    def close_batch(self) -> list[SendOp]:
        """Build an entry of the open batch, or one per key; an empty list when there is none."""
        self._late = self.drain_fast_path()
        return self._close()

    def _close(self) -> list[SendOp]:
        """As `close_batch`, without draining the fast path: the caller has drained it."""
        batch, late = self.open_batch, self._late
        if late:
            self._late = []
        if not batch.ids:
            return late or []
        parts = [batch]
        try:
            self.open_batch = BatchBuilder()
            if not self._by_key:
                ready = self._entry_of(batch, batch.ids[0])
                return late + ready if late else ready
            # The broker's deduplication requires increasing ids. Those of several keys interleave, so each entry is
            # sent with its highest id only, in that order, as Java's key-based batches are.
            parts = sorted(split_by_key(batch), key=lambda part: max(part.ids))
            ready = [*late]
            for part in parts:
                ready += self._entry_of(part, max(part.ids))
        except BaseException:
            # A signal handler's: nothing else passes.
            self._keep(parts, late)
            raise
        return ready

    def _keep(self, parts: list[BatchBuilder], late: list[SendOp]) -> None:
        """Keep what an interrupted `_close` has built for the next call to return, and the rest of its batch open: the
        messages are accepted, and sent with the next ones.
        """
        own = {id(part.callbacks) for part in parts}
        queued = [op for op in self.queue.ops if id(op.callbacks) in own]
        self._late = late + queued
        own -= {id(op.callbacks) for op in chain(queued, (op for op, _ in self.failed))}
        left = [part for part in parts if id(part.callbacks) in own]
        if not left:
            return
        batch = left[0]
        for part in left[1:]:
            batch.ids = [*batch.ids, *part.ids]
            batch.payloads += part.payloads
            batch.fields += part.fields
            batch.callbacks += part.callbacks
        batch.fields = batch.fields or [b""] * len(batch.ids)
        batch.payload_bytes = sum(map(len, batch.payloads))
        batch.size = batch.payload_bytes + sum(map(len, batch.fields)) + len(batch.ids) * _PER_MESSAGE
        self.open_batch = batch

    def _entry_of(self, batch: BatchBuilder, sequence_id: int) -> list[SendOp]:
        """Build an entry of a batch and queue it; a batch that cannot be encoded goes to `failed`."""
        size, count = batch.payload_bytes, len(batch.ids)
        highest = max(batch.ids) if batch.potential_duplicates else batch.ids[-1]
        try:
            metadata, transaction = self._metadata(batch.ids[0], batch.wall, batch.kind)
            if count == 1:
                if batch.first_key is not None:
                    single_fields(metadata, batch.first_key)
                body = batch.payloads[0]
            else:
                shared_keys(metadata, batch.first_key)
                metadata.num_messages_in_batch = count
                metadata.highest_sequence_id = highest
                body = encode_batch(batch.payloads, batch.ids, batch.fields)
            body = self._compressed(metadata, body, count)
            parts = self._frame(metadata, body, sequence_id, highest, count, transaction)
        except Exception as error:
            if is_of_signal_handler(error):
                raise
            op = SendOp(sequence_id, highest, (), batch.callbacks, size, batch.created)
            self.failed.append((op, _failure(error)))
            return []
        op = SendOp(sequence_id, highest, parts, batch.callbacks, size, batch.created)
        op.transaction = transaction
        self.queue.append(op)
        return [op]

    def _metadata(
        self, sequence_id: int, wall_ms: int, kind: BatchKey
    ) -> tuple[pb.MessageMetadata, TransactionCore | None]:
        metadata = pb.MessageMetadata(producer_name=self.name, sequence_id=sequence_id, publish_time=wall_ms)
        transaction: TransactionCore | None = None
        if isinstance(kind, tuple):
            kind, transaction = kind
            metadata.txnid_most_bits, metadata.txnid_least_bits = transaction.txn_id
        version = self.schema_version if kind is None else kind
        if version:
            metadata.schema_version = version
        return metadata, transaction

    def _compressed(self, metadata: pb.MessageMetadata, body: bytes, count: int) -> bytes:
        """Return the body compressed as configured, and record the compression in the metadata."""
        if self._compression is not CompressionType.NONE and len(body) > self.config.compression_min_msg_body_size:
            metadata.compression = int(self._compression)  # type: ignore[assignment]
            metadata.uncompressed_size = len(body)
            return compress(self._compression, body)
        if count == 1:
            metadata.uncompressed_size = len(body)
        return body

    def _frame(
        self,
        metadata: pb.MessageMetadata,
        body: bytes | memoryview,
        sequence_id: int,
        highest_sequence_id: int,
        count: int,
        transaction: TransactionCore | None,
        *,
        is_chunk: bool = False,
    ) -> list[bytes | memoryview]:
        """Return the bytes of an entry: its body is compressed and, of a chunked message, one chunk."""
        if self._encryptor is not None:
            body = self._encryptor.encrypt(metadata, bytes(body))
        encoded = metadata.SerializeToString()
        if len(encoded) + len(body) > self.max_message_size - _SIZE_RESERVE:
            raise MessageTooBig(
                f"The message has {len(body)} bytes after compression ({len(encoded)} more of metadata); the broker "
                f"takes {self.max_message_size}. Make it smaller, create the producer with chunking_enabled=True "
                "(and batching_enabled=False), or raise the broker's maxMessageSize",
                topic=self.topic,
            )
        return commands.send(
            producer_id=self.producer_id,
            sequence_id=sequence_id,
            highest_sequence_id=highest_sequence_id,
            count=count,
            metadata=encoded,
            payload=body,
            is_chunk=is_chunk,
            txn_id=None if transaction is None else transaction.txn_id,
        )

    # --- receipts and time-outs -------------------------------------------------------------------------------------

    def expire(self, now: float) -> list[SendOp]:
        """If the oldest message is overdue, remove and return everything pending, the open batch too."""
        due = self.next_expiry()
        if due is None or now < due:
            return []
        return self.drain()

    def next_expiry(self) -> float | None:
        """Return when the oldest message is overdue, None when nothing is pending or no time-out is set."""
        timeout = self.config.send_timeout_millis / 1000
        if not timeout:
            return None
        if self.queue.ops:
            return self.queue.ops[0].created + timeout
        return self.open_batch.created + timeout if self.open_batch.payloads else None

    def drain(self) -> list[SendOp]:
        """Empty the queue and the open batch and return their entries, oldest first."""
        self.close_batch()
        return self.queue.drain()

    def remove_ended(self, now: float) -> list[SendOp]:
        """Remove and return entries of transactions that end or have timed out, which must not be written any more."""
        ended = {each for each in self.transactions if each.is_sealed or now >= each.deadline}
        if not ended:
            return []
        if isinstance(self.open_batch.kind, tuple) and self.open_batch.kind[1] in ended:
            self.close_batch()
        self.transactions -= ended
        return self.queue.remove(lambda op: op.transaction in ended)

    def remove_doubtful(self, last_sequence_id: int) -> list[SendOp]:
        """Remove and return entries that may be stored already and would be duplicated in their transaction by a
        resend.

        `last_sequence_id` is the one of PRODUCER_SUCCESS: a broker with deduplication that has messages of this
        producer returns its highest id, and drops what is resent. A broker that returns none would store it a second
        time.
        """
        if last_sequence_id >= 0 or not self.transactions:
            return []
        return self.queue.remove_doubtful()

    def timeout_error(self, reason: str = "") -> Timeout:
        """Return the error for messages without a receipt in time, with the reason if it is known."""
        seconds = self.config.send_timeout_millis / 1000
        text = f"The broker confirmed nothing within send_timeout_millis ({seconds:g} s)"
        return Timeout(f"{text}; {reason}" if reason else text, topic=self.topic)


def _set_counted_id(metadata: pb.MessageMetadata, sequence_id: int) -> None:
    """Write the sequence id that a broker counts as stored when it reads the entry at the topic's next load.

    There it takes every chunk for a whole message, and drops the last one when that is sent again: only the last one
    may have the message's id. -1, before the first message, is that of an unsigned field; the default of the other
    field is 0.
    """
    metadata.sequence_id = sequence_id % (1 << 64)
    metadata.ClearField("highest_sequence_id")
    if sequence_id < 0:
        metadata.highest_sequence_id = metadata.sequence_id


def _failure(error: Exception) -> PulsarException:
    """Return the error of messages that were accepted: any, since their callbacks must learn of it."""
    if isinstance(error, PulsarException):
        return error
    unforeseen = UnknownError(f"The messages cannot be encoded: {type(error).__name__}")
    unforeseen.__cause__ = error
    return unforeseen
