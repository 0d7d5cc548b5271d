"""Entry decoder: from the payload of a MESSAGE command to messages (verify, decrypt, decompress, split, filter).

Order of the steps: broker metadata, checksum, metadata, ack state, decrypt, chunk assembly, decompress, batch split. An
unreadable entry raises `Corrupt`, with the validation error the broker receives when the entry is discarded. No clock,
no I/O: an entry whose key must be fetched first raises `KeyWanted`. Runs in the thread that receives, or on the loop of
the asyncio API.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from itertools import pairwise
from typing import Any, Protocol, overload

from pulsar_native._message_fields import (
    DeliveryFields,
    EntryFields,
    MessageQueue,
    SingleEntryDecoder,
    SingleFields,
    make_messages,
    make_uniform_messages,
    text_of,
)
from pulsar_native.crypto import EncryptionContext
from pulsar_native.enums import CompressionType, ConsumerCryptoFailureAction
from pulsar_native.exceptions import ChecksumError, CryptoError, InvalidMessage, PulsarException
from pulsar_native.message import KeyedMessage, Message
from pulsar_native.message_id import MessageId
from pulsar_native.payload_processor import MessagePayloadProcessor
from pulsar_native.protocol.ack_grouping import NO_ENTRY, AckGroup, bits_of
from pulsar_native.protocol.chunk_assembly import ChunkedMessage
from pulsar_native.protocol.data_keys import NO_KEYS, Decryptor, KeyWanted, context_of
from pulsar_native.protocol.payload_processing import process
from pulsar_native.protocol.unacked_tracker import UnackedMessageRedeliveryTracker
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.info import SchemaType
from pulsar_native.wire import _impl
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire._impl import may_be_compacted, payload_bytes, split_batch
from pulsar_native.wire.codec import COMPACTED_OUT, parse_single, same_size
from pulsar_native.wire.compression import decompress
from pulsar_native.wire.entry import EntryKey, ParsedEntry, parse_entry

_ValidationError = pb.CommandAck.ValidationError

Together = Callable[[EntryKey, ParsedEntry, bytes | memoryview], ChunkedMessage | None]
"""Function that accepts a chunk and returns its message when all chunks are present."""


# Attributes of an entry that are pickled as they are.
_PICKLED = (
    "batch_size", "body", "decryption_failed", "entry_id", "first_chunk", "is_batch", "ledger_id", "partition",
    "publish_time", "redelivery_count", "schema", "topic",
)  # fmt: skip


class Corrupt(Exception):
    """Raised when an entry cannot be read and must be discarded; `reason` is the protocol's ValidationError."""

    def __init__(self, reason: int, permits: int, cause: PulsarException) -> None:
        super().__init__(str(cause))
        self.reason = reason
        self.permits = permits


class Undecryptable(Exception):
    """Raised when this consumer has no key for an entry: it is not delivered and stays unacknowledged."""

    def __init__(self, permits: int, cause: CryptoError) -> None:
        super().__init__(cause.message)
        self.permits = permits


class Unprocessable(Exception):
    """Raised when the payload processor failed for an entry: it is not delivered and stays unacknowledged."""

    def __init__(self, permits: int, cause: PulsarException) -> None:
        super().__init__(cause.message)
        self.permits = permits


NotDecoded = Corrupt | Undecryptable | Unprocessable


class Delivery(DeliveryFields):
    """MESSAGE command as received: ids, redelivery count, ack set, and the undecoded payload."""

    __slots__ = ()

    def cost(self, count: int) -> int:
        """Return how many permits it cost, with `count` messages: of a partly acknowledged batch only the open ones."""
        return count if self.ack_words is None else bits_of(self.ack_words).bit_count()

    def undecoded_cost(self) -> int:
        """Return how many permits it cost, undecoded."""
        try:
            return self.cost(parse_entry(self.payload, verify=False).num_messages)
        except PulsarException:
            return 1


class ReceivedEntry(EntryFields):
    """Decoded entry, shared by its messages, which read their fields from it."""

    __slots__ = ()

    parsed: ParsedEntry

    @property
    def encryption_context(self) -> EncryptionContext | None:
        """The entry's encryption context, None when it was not encrypted."""
        return context_of(self.parsed.metadata, failed=self.decryption_failed)

    @property
    def key(self) -> tuple[int, int]:
        """Ledger id and entry id."""
        return self.ledger_id, self.entry_id

    @property
    def producer_name(self) -> str:
        """The producer's name."""
        name = self.parsed.metadata.producer_name
        return name if isinstance(name, str) else text_of(name)

    @property
    def replicated_from(self) -> str | None:
        """Cluster of origin, None for an entry that was published in this one."""
        cluster = self.parsed.metadata.replicated_from
        return text_of(cluster) or None

    @property
    def first_sequence_id(self) -> int:
        """The sequence id of the first message."""
        return self.parsed.metadata.sequence_id

    @property
    def schema_version(self) -> bytes | None:
        """Schema version of the entry, None without a schema."""
        return self.parsed.metadata.schema_version or None

    @property
    def broker_timestamp(self) -> int | None:
        """Broker timestamp in ms since 1970, None when the broker does not expose it."""
        return self.parsed.broker_timestamp

    def index_of(self, batch_index: int) -> int | None:
        """Return the broker index of a message, derived from the entry's, which is that of its last message."""
        last = self.parsed.index
        return None if last is None else last - self.parsed.num_messages + 1 + max(batch_index, 0)

    def fields(self, meta_start: int, payload_start: int) -> SingleFields:
        """Return a message's own fields: from the single metadata in a batch, else from the entry's metadata."""
        if not self.is_batch:
            return self.parsed.metadata
        fields: SingleFields = _impl.single_fields(self.body, meta_start, payload_start)
        return fields

    def decode(self, data: bytes) -> Any:
        """Return a payload decoded with the consumer's schema."""
        if self.decryption_failed:
            self._check_bytes_wanted()
        decode_any = self.schema.decode_any
        return self.schema.decode(data, self.schema_version) if decode_any is None else decode_any(data)

    def decode_separated(self, key: bytes | None, data: bytes | None) -> Any:
        """Return the value of a key and a payload; None stands for null parts."""
        if self.decryption_failed:
            self._check_bytes_wanted()
        return self.schema.decode_separated(key, data, self.schema_version)

    def _check_bytes_wanted(self) -> None:
        """Raise for encrypted bytes, which other schemas than that of bytes would decode to a wrong value."""
        if self.schema.info.type is not SchemaType.BYTES:
            raise InvalidRecord(
                "The message is still encrypted: it could not be decrypted, and the crypto failure action is CONSUME; "
                "data() returns the encrypted bytes"
            )

    def __reduce__(self) -> tuple[object, ...]:
        # In plain types, so that the other codec can read it.
        parsed = self.parsed
        state: dict[str, Any] = {name: getattr(self, name) for name in _PICKLED}
        state["parsed"] = ParsedEntry(parsed.metadata, b"", parsed.broker_timestamp, parsed.index, parsed.checksum_ok)
        return _unpickled, (state,)


def _unpickled(state: dict[str, Any]) -> ReceivedEntry:
    entry = ReceivedEntry.__new__(ReceivedEntry)
    for name, value in state.items():
        setattr(entry, name, value)
    return entry


MessageSpan = tuple[int, int, int]
"""Offsets of a message in its entry's body: start of the metadata, start and end of the payload."""


class UniformSpans:
    """Computed offsets of a batch whose messages have metadata of one size and payloads of one size."""

    __slots__ = ("_count", "length", "size", "stride")

    def __init__(self, count: int, size: int, length: int) -> None:
        self._count = count
        self.size = size
        self.length = length
        self.stride = 4 + size + length

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[MessageSpan]:
        return zip(*self.columns(0, self._count), strict=True)

    def columns(self, first: int, stop: int) -> tuple[range, range, range]:
        """Return the metadata starts, payload starts and payload ends of the messages from `first` to `stop`."""
        stride = self.stride
        at, behind = first * stride, stop * stride
        return (
            range(at + 4, behind + 4, stride),
            range(at + 4 + self.size, behind + 4 + self.size, stride),
            range(at + stride, behind + stride, stride),
        )


class PackedSpans(Protocol):
    """Offsets of a batch's messages as 32-bit numbers, with their sums (see `wire._impl.scan_spans`)."""

    @property
    def packed(self) -> bytes: ...
    @property
    def payload_bytes(self) -> int: ...
    @property
    def may_be_compacted(self) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[MessageSpan]: ...
    @overload
    def __getitem__(self, index: int) -> MessageSpan: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[MessageSpan]: ...


MessageSpans = list[MessageSpan] | UniformSpans | PackedSpans


def _spans_of(body: bytes, count: int) -> MessageSpans:
    """Return the offsets of a batch's messages; raises `InvalidMessage` where they do not fit."""
    packed = _impl.scan_spans(body, count)
    if packed is not None:
        return packed
    uniform = same_size(body, count)
    return split_batch(body, count) if uniform is None else UniformSpans(count, *uniform)


def _kind_of(schema: Any) -> type[Message]:
    """Return the class of messages whose values a schema decodes."""
    return KeyedMessage if getattr(schema, "takes_key", False) else Message


class Decoded:
    """Decoding result of a delivery: the entry, and which of its messages are to be delivered."""

    __slots__ = ("entry", "num_published", "places", "skip", "wanted")

    def __init__(self, entry: ReceivedEntry, places: MessageSpans | None, wanted: int, skip: bytes | None):
        self.entry = entry
        # By the producer's count, as permits are: a payload processor may make more or fewer messages of them.
        self.num_published: int = entry.parsed.num_messages
        self.places = places
        self.wanted = wanted
        self.skip = skip

    def messages(self) -> list[Message]:
        """Return the messages to deliver, in order."""
        places, skip = self.places, self.skip
        if places is None:
            return [self._kind()(self.entry, -1, 0, 0, len(self.entry.body))] if self.wanted else []
        if skip is None:
            return self.messages_between(0, len(places))
        kind, entry = self._kind(), self.entry
        return [kind(entry, index, *place) for index, place in enumerate(places) if not skip[index]]

    def messages_between(self, first: int, stop: int) -> list[Message]:
        """Return the messages of a batch with indexes from `first` to `stop`, filtered out or not."""
        places = self.places
        assert places is not None
        if isinstance(places, UniformSpans):
            return make_uniform_messages(self._kind(), self.entry, first, stop, places.size, places.length)
        return make_messages(self._kind(), self.entry, first, stop, places[first:stop])

    def extend_queue(self, queue: MessageQueue[Message], first: int, stop: int) -> None:
        """Add the messages of a batch with indexes from `first` to `stop` to a queue, filtered out or not."""
        places = self.places
        assert places is not None
        if isinstance(places, UniformSpans):
            queue.extend_uniform(self._kind(), self.entry, first, stop, places.size, places.length)
        elif isinstance(places, list):
            queue.extend_places(self._kind(), self.entry, first, stop, places)
        else:
            queue.extend_packed(self._kind(), self.entry, first, stop, places.packed)

    def message_at(self, index: int) -> Message:
        """Return the message of a batch with this index."""
        (message,) = self.messages_between(index, index + 1)
        return message

    def _kind(self) -> type[Message]:
        return _kind_of(self.entry.schema)

    @property
    def is_whole_batch(self) -> bool:
        """True for a batch of which every message is to be delivered."""
        return self.skip is None and self.places is not None

    @property
    def is_empty(self) -> bool:
        """True for an entry of which the payload processor made no message."""
        return self.places is not None and not len(self.places)

    @property
    def is_single(self) -> bool:
        """True for an entry of one message that needs nothing but parsing, as `SingleEntryDecoder` takes them."""
        parsed = self.entry.parsed
        needs_more = parsed.compression or parsed.is_encrypted or parsed.is_chunk or parsed.is_compacted
        return parsed.num_messages == 1 and not needs_more

    @property
    def has_writer(self) -> bool:
        """True if its messages are read with the schema of their writer, which may be another for each entry."""
        return getattr(self.entry.schema, "needs_writer", False)

    @property
    def is_readable(self) -> bool:
        """True unless the schema of the writer is needed and not known yet."""
        return not self.has_writer or self.entry.schema.wanted(self.entry.schema_version) is None

    def payload_bytes(self) -> int:
        """Return the payload bytes of the messages to deliver."""
        places, skip = self.places, self.skip
        if places is None:
            return len(self.entry.body)
        if skip is None:
            if isinstance(places, UniformSpans):
                return places.length * len(places)
            return payload_bytes(places) if isinstance(places, list) else places.payload_bytes
        return sum(end - start for index, (_, start, end) in enumerate(places) if not skip[index])

    def indexes(self, first: int = 0) -> Sequence[int]:
        """Return the batch indexes of the messages to deliver, from `first` on; 0 for an unbatched message."""
        count = self.wanted if self.places is None else len(self.places)
        if self.skip is None:
            return range(first, count)
        return [index for index in range(first, count) if not self.skip[index]]

    def sizes(self, indexes: Sequence[int]) -> list[int]:
        """Return the payload sizes of these messages, in bytes."""
        places = self.places
        if places is None:
            return [len(self.entry.body)]
        if isinstance(places, UniformSpans):
            return [places.length] * len(indexes)
        return [places[index][2] - places[index][1] for index in indexes]

    def messages_from(self, first: int) -> list[Message]:
        """Return the messages to deliver, from an index on."""
        if self.is_whole_batch:
            return self.messages_between(first, self.wanted)
        messages = self.messages()
        return [message for message in messages if message.batch_index >= first] if first else messages


class StartFilter:
    """Filter for messages before a start: the broker starts at a whole entry, and always inclusive.

    A chunked message has the position of its last chunk; its earlier chunks are not compared. Without `drops_entries`
    only the entry of the start is filtered.
    """

    __slots__ = ("_batch_index", "_drops_entries", "_inclusive", "_key")

    def __init__(self, start: MessageId | None, inclusive: bool, *, drops_entries: bool = True) -> None:
        known = start is not None and start.entry_id() >= 0 and start != MessageId.latest
        self._key = (start.ledger_id(), start.entry_id()) if known and start is not None else None
        self._batch_index = start.batch_index() if start is not None else -1
        self._inclusive = inclusive
        self._drops_entries = drops_entries

    @property
    def covered_to(self) -> EntryKey:
        """Entry behind which no message is filtered out."""
        return self._key or NO_ENTRY

    def first_index(self, key: tuple[int, int], count: int) -> int:
        """Return the index of the entry's first message at or behind the start, `count` when there is none."""
        if self._key is None or key > self._key:
            return 0
        if key < self._key:
            return count if self._drops_entries else 0
        if self._batch_index < 0:
            return 0 if self._inclusive else count
        return min(count, self._batch_index + (0 if self._inclusive else 1))


def decode(
    delivery: Delivery,
    *,
    topic: str,
    partition: int,
    schema: Any,
    start: StartFilter,
    missing: int | None,
    max_message_size: int,
    together: Together,
    decryptor: Decryptor = NO_KEYS,
    processor: MessagePayloadProcessor | None = None,
) -> Decoded | None:
    """Return the decoded entry of a delivery; None for a chunk of an incomplete message.

    Raises `Corrupt`, `Undecryptable`, `Unprocessable` or `KeyWanted`, without side effects. With the crypto failure
    action CONSUME, an entry that cannot be decrypted is returned as one message with the encrypted body.

    `missing` is the bit set of unacknowledged messages, None when nothing of the entry was acknowledged here.
    `together` assembles chunks.
    """
    try:
        parsed = parse_entry(delivery.payload)
    except ChecksumError as error:
        raise Corrupt(_ValidationError.ChecksumMismatch, 1, error) from error
    except InvalidMessage as error:
        raise Corrupt(_ValidationError.DecompressionError, 1, error) from error
    permits = parsed.num_messages
    if parsed.is_encrypted and not _decrypt(parsed, permits, decryptor):
        whole_entry = bytes(parsed.body)
        return _undecrypted(
            ReceivedEntry(parsed, whole_entry, delivery, topic=topic, partition=partition, schema=schema), start
        )
    piece: bytes | memoryview = parsed.body
    first_chunk: MessageId | None = None
    if parsed.is_chunk:
        whole = together((delivery.ledger_id, delivery.entry_id), parsed, piece)
        if whole is None:
            return None
        piece = whole.body()
        first_chunk = MessageId(partition, *whole.first, -1, topic=topic)
    body = _decompressed(parsed, piece, permits, max_message_size)
    if processor is not None:
        parsed, body = _processed(processor, parsed, permits, body)
    entry = ReceivedEntry(parsed, body, delivery, topic=topic, partition=partition, schema=schema)
    entry.first_chunk = first_chunk
    decoded = _split(entry, delivery, start, missing)
    decoded.num_published = permits
    return decoded


def _split(entry: ReceivedEntry, delivery: Delivery, start: StartFilter, missing: int | None) -> Decoded:
    """Return an entry with the offsets of its messages."""
    count = entry.parsed.num_messages
    if not count:
        return Decoded(entry, [], 0, None)
    first = start.first_index(entry.key, count)
    if not entry.is_batch:
        return Decoded(entry, None, 0 if first else 1, None)
    try:
        places = _spans_of(entry.body, count)
    except InvalidMessage as error:
        raise Corrupt(_ValidationError.BatchDeSerializeError, count, error) from error
    skip = _skipped(entry, delivery, places, first, missing)
    return Decoded(entry, places, count if skip is None else skip.count(0), skip)


def _processed(
    processor: MessagePayloadProcessor, parsed: ParsedEntry, permits: int, body: bytes
) -> tuple[ParsedEntry, bytes]:
    """Return an entry as its processor has read it, and its body."""
    try:
        return process(processor, parsed, body)
    except InvalidMessage as error:
        raise Unprocessable(permits, error) from error


def _parsed(payload: bytes, verify: bool) -> ParsedEntry | None:
    """Return the parsed entry, None for an unreadable one."""
    try:
        return parse_entry(payload, verify)
    except PulsarException:
        return None


def _decrypt(parsed: ParsedEntry, permits: int, decryptor: Decryptor) -> bool:
    """Replace the body by the decrypted one; return False when it is to be consumed encrypted."""
    try:
        parsed.body = memoryview(decryptor.decrypt(parsed.metadata, bytes(parsed.body)))
    except CryptoError as error:
        if decryptor.action is ConsumerCryptoFailureAction.CONSUME:
            return False
        if decryptor.action is ConsumerCryptoFailureAction.DISCARD:
            raise Corrupt(_ValidationError.DecryptionError, permits, error) from error
        raise Undecryptable(permits, error) from error
    return True


def _undecrypted(entry: ReceivedEntry, start: StartFilter) -> Decoded:
    """Return an encrypted entry as one message: the number of messages in it is unknown."""
    count = entry.parsed.num_messages
    wanted = 1 if start.first_index(entry.key, count) < count else 0
    entry.decryption_failed = True
    entry.is_batch = False
    entry.batch_size = 0
    return Decoded(entry, None, wanted, None)


def _decompressed(parsed: ParsedEntry, body: bytes | memoryview, permits: int, max_message_size: int) -> bytes:
    """Return the uncompressed body of an entry, or of the message assembled from its chunks."""
    if not parsed.compression:
        return bytes(body)
    kind = CompressionType(parsed.compression)
    # The uncompressed size may exceed the broker's maximum message size, which applies to the compressed one, but is
    # bounded: to 64 times the size received in chunks, or the maximum message size if that is larger.
    limit = max(max(max_message_size, len(body)) * 64, _plausible(parsed.uncompressed_size))
    try:
        return decompress(kind, body, parsed.uncompressed_size, limit)
    except InvalidMessage as error:
        oversize = parsed.uncompressed_size > limit
        reason = _ValidationError.UncompressedSizeCorruption if oversize else _ValidationError.DecompressionError
        raise Corrupt(reason, permits, error) from error


def _plausible(size: int) -> int:
    return size if size < 1 << 28 else 0


def _skipped(
    entry: ReceivedEntry,
    delivery: Delivery,
    places: MessageSpans,
    first: int,
    missing: int | None,
) -> bytes | None:
    """Return one byte per message, 1 = filtered out, or None when all are to be delivered."""
    count = len(places)
    compacted = entry.parsed.is_compacted
    whole = not first and delivery.ack_words is None and missing is None and not compacted
    if whole and not _may_be_compacted(entry.body, places):
        return None
    skip = bytearray(count)
    skip[:first] = b"\1" * first
    known = (1 << count) - 1
    if delivery.ack_words is not None:
        known &= bits_of(delivery.ack_words)
    if missing is not None:
        known &= missing
    for index in range(first, count):
        if not known >> index & 1:
            skip[index] = 1
    for index, (meta, payload, _) in enumerate(places):
        if not skip[index] and parse_single(entry.body[meta:payload]).compacted_out:
            skip[index] = 1
    return bytes(skip) if any(skip) else None


def _may_be_compacted(body: bytes, places: MessageSpans) -> bool:
    """Return True if any message may have the compacted-out mark; a false positive only costs a slower check."""
    if isinstance(places, UniformSpans):
        # One scan over the metadata bytes of all messages.
        stop = len(places) * places.stride
        columns = [body[4 + offset : stop : places.stride] for offset in range(places.size)]
        tag, value = COMPACTED_OUT
        return any(
            tag in first and value in then and (tag, value) in zip(first, then, strict=True)
            for first, then in pairwise(columns)
        )
    return may_be_compacted(body, places) if isinstance(places, list) else places.may_be_compacted


def single_parser() -> Callable[[bytes, bool], Any]:
    """Return the parser of a `SingleEntryDecoder`: it returns None for what it cannot read."""
    return _parsed if _impl.name == "python" else _impl.scan_entry


def single_entry_decoder(topic: str, partition: int, schema: Any) -> SingleEntryDecoder:
    """Return a decoder of the entries of one message that need nothing but parsing."""
    return SingleEntryDecoder(
        single_parser(), _impl.only_place, ReceivedEntry, _kind_of(schema), topic, partition, schema
    )


class EntryAcks(Protocol):
    """Acknowledgements of a consumer: those grouped, and those the application has appended without a lock."""

    late: UnackedMessageRedeliveryTracker | None

    @property
    def entries(self) -> AckGroup: ...
    @property
    def fast_path(self) -> Sized: ...
    def catch_up(self) -> None:
        """Gather what was appended without a lock."""

    def add_empty(self, key: EntryKey) -> None:
        """Acknowledge an entry of which the payload processor made no message."""

    def resend(self, key: EntryKey) -> None:
        """Acknowledge again the part of a batch the broker seems not to have received."""


class Undecodable(Protocol):
    """Handler of the entries that cannot be decoded, or not yet."""

    def on_undecodable(self, delivery: Delivery, error: NotDecoded) -> int:
        """Handle an undecodable delivery and return its permits."""

    def fetch_key(self, wanted: KeyWanted) -> None:
        """Have a private key read; deliveries wait until `ConsumerCore.on_key_fetched`."""


class DeadLetters(Protocol):
    """Router of entries to the dead-letter topic."""

    def should_redirect(self, decoded: Decoded) -> bool:
        """Return True if the entry exceeded `max_redeliver_count` and goes to the dead-letter topic instead."""


class Received(Protocol):
    """Statistics of received messages."""

    def received(self, messages: int, size: int) -> None: ...


class EntryDecoder:
    """Decoder of one consumer's deliveries, with what is known of them: acknowledgements, dead letters, statistics.

    Called under the consumer's lock: it is the `Decoding` of a `ConsumerCore`. The ack states of a batch at the broker
    and here are compared here.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        schema: Any,
        *,
        acks: EntryAcks,
        together: Together,
        decryptor: Decryptor,
        undecodable: Undecodable,
        dead_letters: DeadLetters | None,
        recorder: Received | None,
        max_message_size: Callable[[], int],
        processor: MessagePayloadProcessor | None = None,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._acks = acks
        self._group = acks.entries
        self._fast_path = acks.fast_path
        self._together = together
        self._decryptor = decryptor
        self._dead_letters = dead_letters
        self._recorder = recorder
        self._max_message_size = max_message_size
        self._processor = processor
        self.on_undecodable = undecodable.on_undecodable
        self.fetch_key = undecodable.fetch_key
        self.use_schema(schema)

    def use_schema(self, schema: Any) -> None:
        """Decode with another schema from now on: one is of one attachment."""
        self._schema = schema
        self._singles = single_entry_decoder(self._topic, self._partition, schema)

    def is_acknowledged(self, key: EntryKey) -> bool:
        """Return True if the entry was acknowledged here and must not be delivered."""
        if self._fast_path:
            self._acks.catch_up()
        return self._group.covers(key)

    def decode(self, delivery: Delivery, start: StartFilter) -> Decoded | None:
        """Return the decoded delivery, None for a chunk of a message that is not complete yet.

        Raises `KeyWanted`, `Corrupt`, `Undecryptable` and `Unprocessable`.
        """
        missing = self._group.open_here((delivery.ledger_id, delivery.entry_id))
        decoded = decode(
            delivery,
            together=self._together,
            topic=self._topic,
            partition=self._partition,
            schema=self._schema,
            start=start,
            missing=missing,
            max_message_size=self._max_message_size(),
            decryptor=self._decryptor,
            processor=self._processor,
        )
        if self._processor is not None and decoded is not None and decoded.is_empty:
            self._acks.add_empty(decoded.entry.key)
        elif decoded is not None and decoded.entry.is_batch and (missing is not None or delivery.ack_words is not None):
            self._compare_acks(delivery, decoded, missing)
        return decoded

    def decode_singles(
        self, deliveries: deque[Delivery], attachment: int, epoch: int, after: EntryKey, most: int, most_bytes: int
    ) -> list[Message]:
        """Remove and decode entries of one message, up to the first that needs more than parsing, or is not behind
        `after` and the one before it; may return none.

        At most `most` messages, and none more when they have `most_bytes` payload bytes.
        """
        if self._dead_letters is not None or self._acks.late is not None or self._processor is not None:
            return []
        if self._fast_path:
            self._acks.catch_up()
        after = max(self._group.covered_to, after)
        messages = self._singles.decode(deliveries, attachment, epoch, after, self._group.complete, most, most_bytes)
        if self._recorder is not None and messages:
            self._recorder.received(len(messages), sum(map(len, messages)))
        return messages

    def _compare_acks(self, delivery: Delivery, decoded: Decoded, missing: int | None) -> None:
        """Compare the ack states of a batch at the broker and here."""
        key, size = decoded.entry.key, decoded.entry.batch_size
        there = (1 << size) - 1 if delivery.ack_words is None else bits_of(delivery.ack_words)
        self._group.add_entry(key, there, size)
        if missing is not None and there & ~missing:
            # An acknowledgement in transit when the connection was lost may not have arrived; the messages stay
            # filtered out here, but the broker must receive it before another consumer gets them.
            self._acks.resend(key)

    def admit(self, decoded: Decoded) -> int:
        """Return how many messages to deliver and count them; 0 where the entry goes to the dead-letter topic."""
        late, router = self._acks.late, self._dead_letters
        if late is not None:
            late.delivered(decoded.entry.key, decoded.entry.redelivery_count)
        if router is not None and decoded.wanted > 0 and router.should_redirect(decoded):
            return 0
        if self._recorder is not None and decoded.wanted:
            self._recorder.received(decoded.wanted, decoded.payload_bytes())
        return decoded.wanted

    def on_dropped(self, messages: int, size: int) -> None:
        """Count decoded messages that are dropped, and their payload bytes."""
        if self._recorder is not None:
            self._recorder.received(-messages, -size)
