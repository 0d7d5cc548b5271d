"""Entries: prefixes, checksum, metadata, and malformed input."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.exceptions import ChecksumError, InvalidMessage
from pulsar_native.wire import _impl
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.checksum import crc32c
from pulsar_native.wire.entry import parse_entry

pytestmark = pytest.mark.usefixtures("implementation")

METADATA = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1_700_000_000_000)
BODY = b"the body"


def entry(
    metadata: pb.MessageMetadata | bytes = METADATA,
    body: bytes = BODY,
    *,
    checksum: bool = True,
    broker: pb.BrokerEntryMetadata | None = None,
) -> bytes:
    data = metadata if isinstance(metadata, bytes) else metadata.SerializeToString()
    sized = struct.pack(">I", len(data)) + data + body
    parts = [b"\x0e\x01" + struct.pack(">I", crc32c(sized))] if checksum else []
    if broker is not None:
        block = broker.SerializeToString()
        parts.insert(0, b"\x0e\x02" + struct.pack(">I", len(block)) + block)
    return b"".join([*parts, sized])


BROKER = pb.BrokerEntryMetadata(broker_timestamp=1_700_000_000_123, index=41)


@pytest.mark.parametrize("broker", [None, BROKER])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("verify", [True, False])
def test_parse_entry_four_forms(broker: pb.BrokerEntryMetadata | None, checksum: bool, verify: bool) -> None:
    parsed = parse_entry(entry(checksum=checksum, broker=broker), verify)
    assert parsed.metadata == METADATA
    assert parsed.body == BODY
    assert (parsed.broker_timestamp, parsed.index) == ((1_700_000_000_123, 41) if broker else (None, None))
    assert parsed.checksum_ok is (True if checksum and verify else None)
    assert (parsed.is_batch, parsed.num_messages) == (False, 1)


def test_parse_entry_known_bytes() -> None:
    # 0e02, size 9, {1: timestamp, 2: index}, then 0e01, the checksum over all that follows.
    covered = bytes.fromhex("00000007 0a0170 1002 1803") + b"hello"
    data = bytes.fromhex("0e02 00000009 08 80e8eda8b831 10 04".replace(" ", "")) + b"\x0e\x01"
    parsed = parse_entry(data + struct.pack(">I", crc32c(covered)) + covered)
    assert (parsed.broker_timestamp, parsed.index) == (1_698_745_250_816, 4)
    assert (parsed.metadata.producer_name, parsed.metadata.sequence_id, parsed.metadata.publish_time) == ("p", 2, 3)
    assert bytes(parsed.body) == b"hello"


@pytest.mark.parametrize("broker", [None, BROKER])
def test_parse_entry_every_damaged_byte_detected(
    broker: pb.BrokerEntryMetadata | None,
) -> None:
    whole = entry(broker=broker)
    covered = len(whole) - len(entry(checksum=False))
    assert covered >= 6
    for place in range(covered - 4, len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        with pytest.raises(ChecksumError):
            parse_entry(bytes(damaged))


def test_parse_entry_checksum_excludes_broker_metadata() -> None:
    later = pb.BrokerEntryMetadata(broker_timestamp=5, index=6)
    sized = entry(checksum=True)
    block = later.SerializeToString()
    parsed = parse_entry(b"\x0e\x02" + struct.pack(">I", len(block)) + block + sized)
    assert (parsed.broker_timestamp, parsed.index, parsed.checksum_ok) == (5, 6, True)


def test_parse_entry_batch_by_presence_of_count() -> None:
    for count in (1, 2, 1000):
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1, num_messages_in_batch=count)
        parsed = parse_entry(entry(metadata))
        assert (parsed.is_batch, parsed.num_messages) == (True, count)


@pytest.mark.parametrize("count", [0, -1, -(2**31)])
def test_parse_entry_hostile_count_is_one_permit(count: int) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1, num_messages_in_batch=count)
    assert parse_entry(entry(metadata)).num_messages == 1


@pytest.mark.proves("C125")
@pytest.mark.parametrize(
    "metadata",
    [
        b"\xff\xff\xff\xff",  # no protobuf
        b"\x0a\x7fabc",  # a name that would end behind the metadata
        b"\x0a\x01p\x10\x02",  # no publish time
        b"",
    ],
)
@pytest.mark.parametrize("checksum", [True, False])
def test_parse_entry_garbage_metadata_is_checksum_error(metadata: bytes, checksum: bool) -> None:
    with pytest.raises(ChecksumError, match="metadata"):
        parse_entry(entry(metadata, checksum=checksum))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\x05\x0a\x01p",  # metadata that would end behind the entry
        b"\0\0\0\x08\x0a\x01p\x10\x02\x18\x03",  # the same, although what is there can be read
        b"\xff\xff\xff\xff" + bytes(20),
        b"\x0e\x01",
        b"\x0e\x01\0\0\0",
        b"\x0e\x01\0\0\0\0",  # a checksum of nothing: no metadata
        b"\x0e\x02",
        b"\x0e\x02\0\0\0\x09\x08",
        b"\x0e\x02\0\0\0\0",
        b"\x0e\x02\xff\xff\xff\xff" + bytes(20),
        b"\x0e\x02\0\0\0\x02\xff\xff" + entry(),
    ],
)
def test_parse_entry_malformed_is_checksum_error(data: bytes) -> None:
    with pytest.raises(ChecksumError):
        parse_entry(data)


@pytest.mark.parametrize(
    "field",
    [
        "e0808080808000 05",  # the event time with a tag of seven bytes
        "b2808080808000 016b",  # the key, the same
        "32 818080808000 6b",  # the key with a size of six bytes
        "22 0b 0a 818080808000 61 1201 62",  # a property's key, the same
    ],
)
def test_parse_entry_overlong_number_is_checksum_error(field: str) -> None:
    with pytest.raises(ChecksumError, match="metadata"):
        parse_entry(entry(METADATA.SerializeToString() + bytes.fromhex(field.replace(" ", ""))))


def test_parse_entry_truncated_is_checksum_error() -> None:
    whole = entry(broker=BROKER)
    for length in range(len(whole)):
        with pytest.raises(ChecksumError):
            parse_entry(whole[:length])


def test_parse_entry_unknown_compression_raises() -> None:
    metadata = METADATA.SerializeToString() + b"\x40\x09" + b"\x48\x80\x08"  # compression 9, uncompressed size 1024
    with pytest.raises(InvalidMessage, match="codec 9"):
        parse_entry(entry(metadata))


def test_parse_entry_size_without_compression() -> None:
    metadata = METADATA.SerializeToString() + b"\x48\x80\x08" + b"\x40\x00"
    assert parse_entry(entry(metadata)).body == BODY
    assert parse_entry(entry(METADATA.SerializeToString() + b"\x48\x80\x08")).body == BODY


@given(st.binary(max_size=80), st.booleans())
def test_parse_entry_garbage(data: bytes, verify: bool) -> None:
    with suppress(ChecksumError, InvalidMessage):
        assert len(parse_entry(data, verify).body) <= len(data)


@given(st.integers(0, 200), st.integers(0, 255))
def test_parse_entry_unverified_damage(place: int, value: int) -> None:
    data = bytearray(entry(broker=BROKER))
    data[place % len(data)] = value
    with suppress(ChecksumError, InvalidMessage):
        parse_entry(bytes(data), verify=False)


METADATA_FIELDS: list[dict[str, Any]] = [
    {},
    {"num_messages_in_batch": 5, "highest_sequence_id": 11, "event_time": 1},
    {"num_messages_in_batch": 0},
    {"num_messages_in_batch": -3},
    {"compression": pb.ZSTD, "uncompressed_size": 4_000_000_000},
    {"properties": [pb.KeyValue(key="k", value="v")], "partition_key": "key", "partition_key_b64_encoded": True},
    {"ordering_key": b"o", "schema_version": b"\0" * 8, "null_value": True, "null_partition_key": True},
    {"deliver_at_time": 7, "replicated_from": "a", "replicate_to": ["b", "c"], "txnid_least_bits": 1},
    {"txnid_most_bits": 2, "marker_type": 20},
    {"encryption_keys": [pb.EncryptionKeys(key="k", value=b"v")], "encryption_param": b"p"},
    {"uuid": "u", "num_chunks_from_msg": 3, "chunk_id": 1, "total_chunk_msg_size": 9},
    {"num_chunks_from_msg": 1},
    {"compacted_batch_indexes": [0, 2], "num_messages_in_batch": 3},
    {"schema_id": b"\1"},
]


@pytest.mark.parametrize("own", METADATA_FIELDS)
def test_parse_entry_attributes_of_metadata(own: dict[str, Any]) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1_700_000_000_000, **own)
    parsed = parse_entry(entry(metadata))
    assert parsed.metadata == metadata and parsed.metadata is parsed.metadata
    assert bytes(parsed.body) == BODY and parsed.checksum_ok is True
    assert parsed.is_batch is ("num_messages_in_batch" in own)
    assert parsed.num_messages == max(1, own.get("num_messages_in_batch", 1))
    assert (parsed.publish_time, parsed.compression) == (1_700_000_000_000, own.get("compression", 0))
    assert parsed.uncompressed_size == own.get("uncompressed_size", 0)
    assert parsed.is_encrypted is ("encryption_keys" in own)
    assert parsed.is_chunk is (own.get("num_chunks_from_msg", 0) > 1)
    assert parsed.is_compacted is ("compacted_batch_indexes" in own)


@given(st.sampled_from(METADATA_FIELDS), st.data())
def test_parse_entry_damaged_same_with_either_codec(own: dict[str, Any], data: st.DataObject) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=300, **own)
    broker = data.draw(st.sampled_from([None, BROKER]))
    raw = bytearray(entry(metadata, checksum=data.draw(st.booleans()), broker=broker))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.integers(0, len(raw))) :]

    def outcome() -> object:
        try:
            parsed = parse_entry(bytes(raw), verify=False)
        except (ChecksumError, InvalidMessage) as error:
            return type(error), str(error)
        return (
            parsed.metadata, bytes(parsed.body), parsed.is_batch, parsed.num_messages, parsed.publish_time,
            parsed.compression, parsed.uncompressed_size, parsed.is_encrypted, parsed.is_chunk, parsed.is_compacted,
            parsed.index, parsed.broker_timestamp, parsed.checksum_ok,
        )  # fmt: skip

    chosen = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_impl, "scan_entry", lambda payload, verify: None)
        assert chosen == outcome()
