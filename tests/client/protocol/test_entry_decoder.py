"""Entry decoder: order of the steps, filtered messages, and undecodable entries."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import environments
from pulsar_native.arrow.entry_slice import EntrySlice
from pulsar_native.enums import CompressionType, ConsumerCryptoFailureAction
from pulsar_native.exceptions import CryptoError
from pulsar_native.message import KeyedMessage, Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.ack_grouping import words_of
from pulsar_native.protocol.data_keys import NO_KEYS, Decryptor
from pulsar_native.protocol.entry_decoder import (
    Corrupt,
    Decoded,
    Delivery,
    ReceivedEntry,
    StartFilter,
    Undecryptable,
    UniformSpans,
    decode,
)
from pulsar_native.schema import BytesSchema, InvalidRecord, KeyValueEncodingType, KeyValueSchema, StringSchema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.wire import _impl
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.codec import split_batch
from pulsar_native.wire.entry import parse_entry
from support.consumer_cores import command
from support.entry_bytes import PUBLISHED, assemble, batch_entry, metadata_of, single_entry

pytestmark = pytest.mark.usefixtures("implementation")

Reasons = pb.CommandAck.ValidationError
ANYWHERE = StartFilter(None, False)
BROKER = pb.BrokerEntryMetadata(broker_timestamp=1_700_000_000_123, index=41)


class Upper:
    """A schema that shows which version it was asked for."""

    # The version is looked at.
    decode_any = None

    def decode(self, data: bytes, version: bytes | None) -> Any:
        return data.upper(), version


def delivery(
    payload: bytes, *, ack_words: Sequence[int] = (), key: tuple[int, int] = (5, 6), count: int = 0
) -> Delivery:
    message = pb.CommandMessage(
        consumer_id=1,
        message_id=pb.MessageIdData(ledgerId=key[0], entryId=key[1]),
        redelivery_count=count,
        ack_set=ack_words,
    )
    return Delivery(message, payload, 3)


def decoded(
    payload: bytes,
    *,
    start: StartFilter = ANYWHERE,
    missing: int | None = None,
    max_message_size: int = 5 << 20,
    together: Any = None,
    decryptor: Decryptor = NO_KEYS,
    **of_delivery: Any,
) -> Decoded:
    whole = decode(
        delivery(payload, **of_delivery),
        topic="persistent://public/default/t-partition-2",
        partition=2,
        schema=Upper(),
        start=start,
        missing=missing,
        max_message_size=max_message_size,
        together=together,
        decryptor=decryptor,
    )
    assert whole is not None
    return whole


# --- what is given out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", CompressionType)
def test_decode_single_message(compression: CompressionType) -> None:
    payload = single_entry(
        b"hello" * 50,
        compression=compression,
        sequence_id=9,
        event_time=5,
        properties=[pb.KeyValue(key="a", value="1"), pb.KeyValue(key="a", value="2")],
        partition_key="k",
        ordering_key=b"ord",
        schema_version=b"\0\0\0\0\0\0\0\x03",
    )
    result = decoded(payload, count=4)
    assert result.wanted == 1
    (message,) = result.messages()
    assert message.data() == b"hello" * 50 and len(message) == 250
    assert message.value() == (b"HELLO" * 50, b"\0\0\0\0\0\0\0\x03")
    assert message.message_id() == MessageId(2, 5, 6, -1)
    assert (message.message_id().batch_size(), message.message_id().topic_name()) == (0, message.topic_name())
    assert message.properties() == {"a": "2"}
    assert (message.partition_key(), message.ordering_key(), message.event_timestamp()) == ("k", "ord", 5)
    assert (message.sequence_id(), message.producer_name(), message.publish_timestamp()) == (9, "p", PUBLISHED)
    assert (message.redelivery_count(), message.int_schema_version()) == (4, 3)
    assert (message.index(), message.broker_publish_time()) == (None, None)


@pytest.mark.proves("C82")
@pytest.mark.parametrize(("fields", "cluster"), [({}, None), ({"replicated_from": "west"}, "west")])
def test_decode_tells_the_cluster_of_origin(fields: dict[str, Any], cluster: str | None) -> None:
    batch = decoded(batch_entry([b"one", b"two"], **fields)).messages()
    for message in (*batch, *decoded(single_entry(b"one", **fields)).messages()):
        assert message.replicated_from() == cluster
        assert pickle.loads(pickle.dumps(message)).replicated_from() == cluster


@pytest.mark.parametrize("compression", CompressionType)
@pytest.mark.parametrize("broker", [None, BROKER])
def test_decode_batch(compression: CompressionType, broker: pb.BrokerEntryMetadata | None) -> None:
    payload = batch_entry(
        [b"one", b"", b"three"],
        first_sequence_id=7,
        singles=[{"partition_key": "a"}, {"null_value": True}, {"properties": {"x": "y"}, "event_time": 8}],
        compression=compression,
        broker=broker,
    )
    result = decoded(payload)
    messages = result.messages()
    assert [message.data() for message in messages] == [b"one", b"", b"three"]
    assert [message.message_id() for message in messages] == [MessageId(2, 5, 6, index) for index in range(3)]
    assert {message.message_id().batch_size() for message in messages} == {3}
    assert [message.sequence_id() for message in messages] == [7, 8, 9]
    assert [message.has_key() for message in messages] == [True, False, False]
    assert messages[1].has_null_value() and messages[1].value() is None
    assert (messages[2].properties(), messages[2].event_timestamp()) == ({"x": "y"}, 8)
    # The entry's index is that of its last message.
    assert [message.index() for message in messages] == ([39, 40, 41] if broker else [None] * 3)
    assert messages[0].broker_publish_time() == (1_700_000_000_123 if broker else None)


def test_decode_batch_sequence_id_of_batch_only() -> None:
    parts = []
    for payload in (b"one", b"two"):
        meta = pb.SingleMessageMetadata(payload_size=3).SerializeToString()
        parts += [len(meta).to_bytes(4, "big"), meta, payload]
    payload = assemble(metadata_of(20, num_messages_in_batch=2), b"".join(parts))
    assert [message.sequence_id() for message in decoded(payload).messages()] == [20, 21]


@given(count=st.integers(1, 300), length=st.integers(0, 300), key=st.none() | st.text(max_size=3), data=st.data())
def test_uniform_spans_equal_scan(count: int, length: int, key: str | None, data: st.DataObject) -> None:
    payload = batch_entry([b"x" * length] * count, first_sequence_id=200, singles=[{"partition_key": key}] * count)
    result = decoded(payload)
    assert result.places is not None
    assert isinstance(result.places, UniformSpans) == (count >= 8 and _impl.name == "python")
    body = result.entry.body
    assert list(result.places) == split_batch(body, count)
    assert result.payload_bytes() == count * length and result.sizes(range(count)) == [length] * count
    first = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(first, count))
    some = result.messages_between(first, stop)
    assert [message.sequence_id() for message in some] == list(range(200 + first, 200 + stop))
    assert all(message.data() == b"x" * length and message.partition_key() == (key or "") for message in some)


@pytest.mark.parametrize(
    ("payloads", "others"),
    [
        # Of one size at a fixed distance; of several sizes, short ones and long ones: each is searched otherwise.
        ([b"12345678"] * 100, {"partition_key": ""}),
        ([bytes(index) for index in range(100)], {}),
        ([bytes(200 + index) for index in range(100)], {}),
    ],
)
def test_decode_compacted_out_filtered(payloads: list[bytes], others: dict[str, Any]) -> None:
    singles = [{} if index in (0, 57, 99) else others for index in range(100)]
    payload = batch_entry(payloads, compacted_out=[0, 57, 99], singles=singles, first_sequence_id=1000)
    kept = [message.batch_index for message in decoded(payload).messages()]
    assert kept == [index for index in range(100) if index not in (0, 57, 99)]
    assert decoded(batch_entry(payloads, compacted_out=range(100))).wanted == 0


def test_decode_compaction_mark_in_payload_ignored() -> None:
    for payloads in ([b"x\x20\x01x"] * 100, [b"\x20\x01" * (100 + index) for index in range(100)]):
        for singles in (None, [{"properties": {"\x20": "\x01"}}] * 100, [{"properties": {"k": "\x20\x01"}}] * 100):
            result = decoded(batch_entry(payloads, singles=singles))
            assert result.is_whole_batch and [message.data() for message in result.messages()] == payloads


@pytest.mark.proves("C129")
@given(st.data())
def test_decode_batch_filtered_messages(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 80))
    open_bits = st.integers(0, (1 << count) - 1)
    ack_words = data.draw(st.none() | open_bits.filter(bool).map(lambda bits: words_of(bits, count)))
    missing = data.draw(st.none() | open_bits)
    compacted = data.draw(st.sets(st.integers(0, count - 1), max_size=5))
    start = data.draw(st.none() | st.integers(0, count))
    inclusive = data.draw(st.booleans())
    payloads = [b"%d" % index for index in range(count)]
    payload = batch_entry(payloads, compacted_out=sorted(compacted))
    result = decoded(
        payload,
        ack_words=ack_words or (),
        missing=missing,
        start=ANYWHERE if start is None else StartFilter(MessageId(2, 5, 6, start), inclusive),
    )
    expected = []
    for index in range(count):
        bits = [word & ((1 << 64) - 1) for word in ack_words or ()]
        open_at_broker = ack_words is None or (index // 64 < len(bits) and bits[index // 64] >> index % 64 & 1)
        open_here = missing is None or missing >> index & 1
        behind = start is None or index > start or (inclusive and index == start)
        if open_at_broker and open_here and behind and index not in compacted:
            expected.append(index)
    assert result.wanted == len(expected)
    assert [message.message_id().batch_index() for message in result.messages()] == expected
    assert [message.data() for message in result.messages()] == [b"%d" % index for index in expected]
    # The same for columns: also when it goes on in the middle.
    first = data.draw(st.integers(0, count))
    indexes = result.indexes(first)
    assert list(indexes) == [index for index in expected if index >= first]
    assert result.sizes(indexes) == [len(message) for message in result.messages_from(first)]
    if indexes:
        entry_slice = EntrySlice(result.entry, indexes)
        assert list(entry_slice.part.picked()) == list(indexes) and len(entry_slice.part) == len(indexes)
        assert [message.data() for message in entry_slice.messages()] == [b"%d" % index for index in indexes]
        taken = (1 << count) - 1 if entry_slice.bits is None else entry_slice.bits
        assert [index for index in range(count) if taken >> index & 1] == list(indexes)


@pytest.mark.parametrize(
    ("start", "inclusive", "wanted"),
    [
        (MessageId(2, 5, 6, -1), False, 0),
        (MessageId(2, 5, 6, -1), True, 1),
        (MessageId(2, 5, 6, 0), False, 0),
        (MessageId(2, 5, 6, 0), True, 1),
        (MessageId(2, 5, 5, -1), False, 1),
        (MessageId(2, 5, 5, 9), True, 1),
        (MessageId(2, 5, 7, -1), True, 0),
        (MessageId(2, 4, 99, -1), False, 1),
        (MessageId(2, 6, 0, -1), True, 0),
        (MessageId.earliest, False, 1),
        (MessageId.latest, False, 1),
        (MessageId.latest, True, 1),
        (MessageId(2, 5, -1, -1), False, 1),
    ],
)
def test_decode_single_message_and_start(start: MessageId, inclusive: bool, wanted: int) -> None:
    result = decoded(single_entry(b"x"), start=StartFilter(start, inclusive))
    assert result.wanted == wanted and len(result.messages()) == wanted
    assert result.indexes() == range(wanted)


@given(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(-1, 4)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.booleans(),
    st.integers(1, 4),
)
def test_start_filter_compares_positions(
    start: tuple[int, int, int], key: tuple[int, int], inclusive: bool, count: int
) -> None:
    ledger, entry, index = start
    first = StartFilter(MessageId(0, ledger, entry, index), inclusive).first_index(key, count)
    # Index -1 names the whole entry: exclusive, the entry is left out as a whole.
    from_index = (0 if inclusive else count) if index < 0 else index + (not inclusive)
    left = [i for i in range(count) if key > (ledger, entry) or (key == (ledger, entry) and i >= from_index)]
    assert list(range(first, count)) == left


def test_decode_ack_set_words() -> None:
    assert delivery(b"").ack_words is None
    made = delivery(b"", ack_words=[-2, 1], key=(8, 9), count=2)
    assert (made.ack_words, made.ledger_id, made.entry_id, made.redelivery_count, made.attachment) == (
        (-2, 1),
        8,
        9,
        2,
        3,
    )


# --- what cannot be read ----------------------------------------------------------------------------------------


def refused(payload: bytes, **options: Any) -> Corrupt:
    with pytest.raises(Corrupt) as caught:
        decoded(payload, **options)
    return caught.value


@pytest.mark.parametrize("broker", [None, BROKER])
def test_decode_damaged_byte_is_checksum_error(broker: pb.BrokerEntryMetadata | None) -> None:
    good = batch_entry([b"one", b"two"], broker=broker)
    bad = bytearray(good)
    bad[-1] ^= 1
    assert decoded(good).wanted == 2
    error = refused(bytes(bad))
    assert (error.reason, error.permits) == (Reasons.ChecksumMismatch, 1)


@pytest.mark.proves("C125")
@pytest.mark.parametrize("payload", [b"", b"\0\0\0\x05abc", assemble(b"\xff\xff\xff", b"x"), assemble(b"", b"x")])
def test_decode_garbage_metadata_is_checksum_error(payload: bytes) -> None:
    assert refused(payload).reason == Reasons.ChecksumMismatch


@pytest.mark.proves("C126")
@pytest.mark.parametrize("compression", [kind for kind in CompressionType if kind is not CompressionType.NONE])
def test_decode_oversized_claim_not_decompressed(compression: CompressionType) -> None:
    payload = single_entry(b"x" * 100, compression=compression)
    huge = metadata_of(0, uncompressed_size=(1 << 32) - 1, compression=compression.value)
    body = payload[payload.index(b"\x0e\x01") + 10 + int.from_bytes(payload[6:10], "big") :]
    error = refused(assemble(huge, body))
    assert (error.reason, error.permits) == (Reasons.UncompressedSizeCorruption, 1)


@pytest.mark.parametrize("compression", [kind for kind in CompressionType if kind is not CompressionType.NONE])
def test_decode_malformed_compression(compression: CompressionType) -> None:
    metadata = metadata_of(0, uncompressed_size=100, compression=compression.value, num_messages_in_batch=7)
    error = refused(assemble(metadata, b"certainly not compressed"))
    assert (error.reason, error.permits) == (Reasons.DecompressionError, 7)


def test_decode_unknown_codec() -> None:
    metadata = metadata_of(0, uncompressed_size=100).SerializeToString() + b"\x40\x63"
    assert refused(assemble(metadata, b"?")).reason == Reasons.DecompressionError


@pytest.mark.parametrize("body", [b"", b"\0\0\0\x02\x18", b"\xff\xff\xff\xff", b"\0\0\0\x02\x18\x7fxx"])
def test_decode_batch_sizes_mismatch(body: bytes) -> None:
    error = refused(assemble(metadata_of(0, num_messages_in_batch=3), body))
    assert (error.reason, error.permits) == (Reasons.BatchDeSerializeError, 3)


def test_decode_encrypted_entry_is_not_corrupt() -> None:
    keys = [pb.EncryptionKeys(key="k", value=b"v")]
    with pytest.raises(Undecryptable, match="key reader") as caught:
        decoded(assemble(metadata_of(0, num_messages_in_batch=3, encryption_keys=keys), b"secret"))
    assert caught.value.permits == 3


ENCRYPTED = assemble(
    metadata_of(
        8, num_messages_in_batch=3, encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")], partition_key="p"
    ),
    b"secret",
)


class KeyRing(Decryptor):
    """Decrypt to a body given, or fail."""

    def __init__(self, action: ConsumerCryptoFailureAction, plain: bytes | None = None) -> None:
        super().__init__(None, action, lambda: 0.0)
        self.plain = plain

    def decrypt(self, metadata: pb.MessageMetadata, body: bytes) -> bytes:
        assert body == b"secret"
        if self.plain is None:
            raise CryptoError("wrong key")
        return self.plain


@pytest.mark.proves("C181", "C182")
def test_decode_encrypted_entry() -> None:
    plain = batch_entry([b"one", b"two", b"three"] * 50, compression=CompressionType.ZSTD)
    parsed = parse_entry(plain)
    parsed.metadata.encryption_keys.add(key="k", value=b"v")
    ring = KeyRing(ConsumerCryptoFailureAction.FAIL, bytes(parsed.body))
    result = decoded(assemble(parsed.metadata, b"secret"), decryptor=ring)
    assert [message.data() for message in result.messages()] == [b"one", b"two", b"three"] * 50
    context = result.messages()[4].encryption_context()
    assert context is not None and not context.is_decryption_failed() and context.batch_size() == 150
    # Decrypted, but not what its metadata say: damage like any other.
    ring.plain = b"not compressed"
    with pytest.raises(Corrupt) as caught:
        decoded(assemble(parsed.metadata, b"secret"), decryptor=ring)
    assert caught.value.reason == Reasons.DecompressionError


@pytest.mark.proves("C182")
def test_decode_undecryptable_follows_failure_action() -> None:
    with pytest.raises(Undecryptable, match="wrong key") as kept:
        decoded(ENCRYPTED, decryptor=KeyRing(ConsumerCryptoFailureAction.FAIL))
    assert kept.value.permits == 3
    with pytest.raises(Corrupt, match="wrong key") as discarded:
        decoded(ENCRYPTED, decryptor=KeyRing(ConsumerCryptoFailureAction.DISCARD))
    assert (discarded.value.reason, discarded.value.permits) == (Reasons.DecryptionError, 3)
    consume = KeyRing(ConsumerCryptoFailureAction.CONSUME)
    result = decoded(ENCRYPTED, decryptor=consume)
    (message,) = result.messages()
    assert result.wanted == 1 and message.data() == b"secret" and message.partition_key() == "p"
    assert message.message_id() == MessageId(2, 5, 6, -1) and message.sequence_id() == 8
    context = message.encryption_context()
    assert context is not None and context.is_decryption_failed() and context.batch_size() == 3
    assert len(result.indexes()) == 1
    assert isinstance(result.entry, ReceivedEntry)
    result.entry.schema = VersionedDecoder(BytesSchema())
    assert message.value() == b"secret"
    for schema in (StringSchema(), KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)):
        result.entry.schema = VersionedDecoder(schema)
        (message,) = result.messages()
        with pytest.raises(InvalidRecord, match="still encrypted"):
            message.value()
    # A start behind the entry leaves it out, one inside gives it out: which of its messages are wanted cannot be told.
    for start, wanted in ((MessageId(2, 5, 6, -1), 0), (MessageId(2, 5, 6, 2), 0), (MessageId(2, 5, 6, 1), 1)):
        assert decoded(ENCRYPTED, decryptor=consume, start=StartFilter(start, False)).wanted == wanted


@given(
    st.binary(max_size=120),
    st.integers(-2, 1000),
    st.sampled_from([0, 1, 2, 3, 4]),
    st.integers(0, 1 << 32).map(lambda size: size & 0xFFFFFFFF) | st.integers(0, 200),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=2),
)
def test_decode_hostile_entries(body: bytes, count: int, compression: int, size: int, words: list[int]) -> None:
    metadata = metadata_of(0, num_messages_in_batch=count, compression=compression, uncompressed_size=size)
    try:
        result = decoded(assemble(metadata, body), ack_words=words)
        assert len(result.messages()) == result.wanted
        for message in result.messages():
            message.data()
    except Corrupt as error:
        assert error.permits >= 1


@given(st.binary(max_size=120))
def test_decode_any_bytes(payload: bytes) -> None:
    with contextlib.suppress(Corrupt, Undecryptable):
        decoded(payload)


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
@pytest.mark.parametrize("encode", [single_entry, lambda body, **fields: batch_entry([body], **fields)])
def test_decode_releases_received_payload(encode: Any, compression: CompressionType) -> None:
    entry = decoded(encode(b"hello" * 50, compression=compression)).entry
    assert entry.parsed.body == b"" and b"hello" * 50 in entry.body


def test_decode_producer_name_invalid_utf8_replaced() -> None:
    payload = assemble(metadata_of(producer_name="pp").SerializeToString().replace(b"pp", b"p\xff"), b"body")
    (message,) = decoded(payload).messages()
    assert message.producer_name() == "p\ufffd"


# --- pickling ---------------------------------------------------------------------------------------------------

PICKLED = {
    "single": single_entry(b"hello", partition_key="k", properties=[pb.KeyValue(key="a", value="1")]),
    "compressed": single_entry(b"hello", compression=CompressionType.LZ4, schema_version=b"\0\3"),
    "batch": batch_entry(
        [b"first" * 99, b"hello"], singles=[{}, {"partition_key": "k", "event_time": 5}], broker=BROKER
    ),
}


def seen(message: Message) -> tuple[object, ...]:
    """Return what a message shows."""
    id_ = message.message_id()
    return (
        type(message), message.data(), message.value(), id_, id_.batch_size(), id_.topic_name(), message.properties(),
        message.partition_key(), message.event_timestamp(), message.publish_timestamp(), message.producer_name(),
        message.sequence_id(), message.redelivery_count(), message.schema_version(), message.index(),
        message.broker_publish_time(), message.has_null_value(), len(message),
    )  # fmt: skip


@pytest.mark.parametrize("name", PICKLED)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda message: pickle.loads(pickle.dumps(message))])
def test_message_copies_equal(name: str, copied: Callable[[Message], Message]) -> None:
    message = decoded(PICKLED[name], count=2).messages()[-1]
    assert seen(copied(message)) == seen(copied(copied(message))) == seen(message)


def test_message_pickle_without_rest_of_batch() -> None:
    message = decoded(PICKLED["batch"]).messages()[-1]
    assert b"hello" in pickle.dumps(message) and b"firstfirst" not in pickle.dumps(message)


_SHOW = "import pickle, sys; m = pickle.load(sys.stdin.buffer); print(m, m.data(), m.partition_key(), m.index())"


@pytest.mark.parametrize("codec", ["python"] if environments.no_speedups() else ["python", "compiled"])
def test_message_pickle_loads_with_each_codec(codec: str) -> None:
    message = decoded(PICKLED["batch"]).messages()[-1]
    message.entry.schema = None
    loaded = subprocess.run(
        [sys.executable, "-c", _SHOW], input=pickle.dumps(message), env={**os.environ, _impl.VARIABLE: codec},
        capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert loaded.stdout.decode().strip() == f"{message} b'hello' k 41"


def test_decode_keyed_schema_messages() -> None:
    """Told per entry, so that other schemas pay nothing."""

    class Pairs(Upper):
        takes_key = True

    for payload in (single_entry(b"a"), batch_entry([b"a", b"b"])):
        for schema, kind in ((Upper(), Message), (Pairs(), KeyedMessage)):
            found = decode(
                delivery(payload), topic="t", partition=-1, schema=schema, start=ANYWHERE, missing=None,
                together=lambda *_: None,
            max_message_size=5 << 20,
            ).messages()  # fmt: skip
            assert found and {type(message) for message in found} == {kind}


def test_delivery_cost_counts_open_messages() -> None:
    batch = batch_entry([b"x"] * 5)
    assert Delivery(command(0), batch, 1).undecoded_cost() == 5
    assert Delivery(command(0, words=[0b10110]), batch, 1).undecoded_cost() == 3
    assert Delivery(command(0), single_entry(b"x"), 1).undecoded_cost() == 1
    assert Delivery(command(0), b"damaged", 1).undecoded_cost() == 1
