"""Batches whose metadata have one layout: the same columns as protobuf's own reading, for any bytes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_native.arrow import columns
from pulsar_native.arrow.columns import ALL_COLUMNS, EntryRows, record_batch
from pulsar_native.arrow.uniform import EVENT_TIME, PAYLOAD_SIZE, SEQUENCE_ID, Layout, numbers, texts
from pulsar_native.exceptions import InvalidMessage
from pulsar_native.wire import _impl
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.codec import encode_batch, encode_single_fields
from pulsar_native.wire.entry import ParsedEntry

NOW = 1_700_000_000_123
SINGLES = ("__key", "__eventTime", "__messageProperties", "__sequenceId")


@pytest.fixture(autouse=True)
def _plain_python() -> Any:
    before = _impl.name
    _impl.select("python")
    yield
    _impl.select(before)


def entry(body: bytes, count: int, skip: bytes | None = None, first: int = 0) -> EntryRows:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=NOW, num_messages_in_batch=count)
    return EntryRows(ParsedEntry(metadata, memoryview(body)), body, 12, 5, first, count, skip)


def read(part: EntryRows, names: tuple[str, ...] = ALL_COLUMNS) -> pa.RecordBatch | str:
    """Return the record batch, or the text of its error."""
    try:
        batch = record_batch([part], names, topic="t", partition=0)
    except InvalidMessage as error:
        return error.message
    batch.validate(full=True)
    return batch


def parsed_one_by_one(part: EntryRows, names: tuple[str, ...] = ALL_COLUMNS) -> pa.RecordBatch | str:
    """Read the same without layouts."""
    with mock.patch.object(columns, "_WORTH_A_LAYOUT", 1 << 31):
        return read(part, names)


def taken(part: EntryRows) -> bool:
    """Return True if the batch is read by its layout: no message of it is parsed."""
    with mock.patch.object(columns, "_parsed", side_effect=AssertionError("parsed")):
        try:
            record_batch([part], ALL_COLUMNS, topic="t", partition=0)
        except AssertionError:
            return False
    return True


@st.composite
def regular(draw: st.DrawFn) -> tuple[bytes, int]:
    """Return the body of a batch of one layout, its fields in any order, and the number of messages."""
    count = draw(st.integers(32, 60))
    names = draw(st.lists(st.text("abc", min_size=1, max_size=3), unique=True, max_size=3))
    sizes = [draw(st.integers(0, 140)) for _ in names]
    key_size = draw(st.none() | st.integers(0, 20))
    time = draw(st.sampled_from([None, 1, NOW, 1 << 62]))
    first_id = draw(st.sampled_from([0, 5, 200, 1 << 20, 1 << 40]))
    payload = draw(st.sampled_from([0, 3, 100, 200]))
    varies = draw(st.booleans())
    order = draw(st.permutations(range(len(names) + 5)))
    flags = draw(
        st.lists(st.sampled_from([b"\x20\x00", b"\x30\x00", b"\x48\x00", b"\x50\x00", b"\x3a\x01z"]), max_size=2)
    )
    bodies = []
    for index in range(count):
        # Payloads of 0 and 3 bytes have sizes of one byte, the others of two.
        length = payload + (index % 3 if varies and payload else 0)
        parts: list[bytes] = [
            pb.SingleMessageMetadata(
                properties=[pb.KeyValue(key=name, value=f"{index % 10}"[:size].ljust(size, "v"))], payload_size=1
            ).SerializeToString()[:-2]
            for name, size in zip(names, sizes, strict=True)
        ]
        parts.append(b"\x18" + _varint(length))
        parts.append(b"\x40" + _varint(first_id + index % 7))
        if key_size is not None:
            key = f"{index}".rjust(key_size, "k")[:key_size].encode()
            parts.append(b"\x12" + _varint(key_size) + key)
        if time is not None:
            parts.append(b"\x28" + _varint(time + index % 5))
        parts.append(b"".join(flags))
        own = b"".join(parts[place] for place in order if place < len(parts))
        bodies.append(len(own).to_bytes(4, "big") + own + bytes([index]) * length)
    return b"".join(bodies), count


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


@given(regular(), st.data())
def test_uniform_batch_equals_parsed(batch: tuple[bytes, int], data: st.DataObject) -> None:
    body, count = batch
    skip = data.draw(st.none() | st.binary(min_size=count, max_size=count).map(lambda each: bytes(x & 1 for x in each)))
    part = entry(body, count, skip, data.draw(st.integers(0, 3)))
    names = data.draw(st.sampled_from([ALL_COLUMNS, ("value",), SINGLES, ("__key", "value")]))
    expected = parsed_one_by_one(part, names)
    found = read(part, names)
    assert isinstance(found, pa.RecordBatch) and found.equals(expected)


@settings(max_examples=300)
@given(regular(), st.data())
def test_uniform_batch_damaged_equals_parsed(batch: tuple[bytes, int], data: st.DataObject) -> None:
    body, count = bytearray(batch[0]), batch[1]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, min(len(body), 4000) - 1))
        body[place] = data.draw(st.integers(0, 255))
    part = entry(bytes(body), count)
    expected, found = parsed_one_by_one(part), read(part)
    assert type(found) is type(expected)
    assert found.equals(expected) if isinstance(found, pa.RecordBatch) else found == expected


def encoded(count: int = 40, **fields: Any) -> EntryRows:
    """Return an entry of messages with these fields; a list has one value for each message."""
    own = [
        encode_single_fields(
            **{name: value[index] if isinstance(value, list) else value for name, value in fields.items()}
        )
        for index in range(count)
    ]
    return entry(encode_batch([bytes([index]) * 100 for index in range(count)], range(1000, 1000 + count), own), count)


@pytest.mark.parametrize(
    "fields",
    [
        {"event_time": [NOW + index for index in range(40)]},
        {"partition_key": [f"key-{index:03}" for index in range(40)]},
        {"partition_key": "", "event_time": NOW},
        {"properties": [{"a": f"{index:02}", "b": "é" * 80} for index in range(40)], "ordering_key": b"o"},
    ],
    ids=["event-time", "key", "empty-key", "properties"],
)
def test_uniform_batch_is_not_parsed(fields: dict[str, Any]) -> None:
    part = encoded(**fields)
    assert taken(part)
    found = read(part)
    assert isinstance(found, pa.RecordBatch) and found.equals(parsed_one_by_one(part))


@pytest.mark.parametrize(
    "fields",
    [
        {"event_time": [NOW if index != 20 else 5 for index in range(40)]},
        {"partition_key": [f"key-{index}" for index in range(40)]},
        {"partition_key": "a2V5", "key_is_base64": True},
        {
            "partition_key": [f"key-{index:03}" for index in range(40)],
            "null_value": [index == 20 for index in range(40)],
        },
        {"properties": [{"a" if index != 20 else "c": "1"} for index in range(40)]},
    ],
    ids=["event-time-of-another-size", "key-of-another-size", "key-in-base64", "null-value", "other-property"],
)
def test_mixed_batch_is_parsed(fields: dict[str, Any]) -> None:
    part = encoded(**fields)
    assert not taken(part)
    found = read(part)
    assert isinstance(found, pa.RecordBatch) and found.equals(parsed_one_by_one(part))


def test_uniform_times_beyond_columns_are_null() -> None:
    part = encoded(event_time=[(1 << 62) + index for index in range(40)])
    found = read(part, ("__eventTime",))
    assert taken(part) and isinstance(found, pa.RecordBatch) and found.column(0).null_count == 40


@pytest.mark.parametrize(
    "meta",
    [
        b"\x18\x05",
        b"\x40\x05",
        b"\x18\x05\x40\x80",
        b"\x18\x05\x18\x05\x40\x01",
        b"\x18\x05\x40" + b"\x80" * 9 + b"\x01",
        b"\x18\x05\x40\x01\x12\x09key",
        b"\x18\x05\x40\x01\x12\x01a\x12\x01b",
        b"\x18\x05\x40\x01\x48\x01",
        b"\x18\x05\x40\x01\x30\x01",
        b"\x18\x05\x40\x01\x58\x01",
        b"\x18\x05\x40\x01\x0a\x06\x12\x01v\x0a\x01k",
        b"\x18\x05\x40\x01\x0a\x03\x0a\x01k",
        b"\x18\x05\x40\x01" + 2 * b"\x0a\x06\x0a\x01k\x12\x01v",
        b"\x18\x05\x40\x01\x3a\xa0\x1f" + b"x" * 4000 + b"\x3a\x78" + b"x" * 120,
    ],
)
def test_layout_of_rare_metadata_is_none(meta: bytes) -> None:
    assert Layout.of(meta) is None


def test_layout_names_the_places() -> None:
    found = Layout.of(b"\x18\x05\x28\x81\x01\x12\x03key\x0a\x07\x0a\x01k\x12\x02vv\x40\x09")
    assert found is not None
    assert found.numbers == {PAYLOAD_SIZE: range(1, 2), EVENT_TIME: range(3, 5), SEQUENCE_ID: range(20, 21)}
    assert (found.key, found.properties) == (range(7, 10), [(b"k", range(17, 19))])


def test_numbers_and_texts_of_a_table() -> None:
    table = numpy.frombuffer(b"\x81\x01ab" + b"\xff\x7fcd", numpy.uint8).reshape(2, 4)
    assert numbers(numpy, table, range(2)).tolist() == [129, 16383]
    data, ends = texts(numpy, table, [range(3, 4), range(2, 3)], 10)
    assert (data, numpy.frombuffer(ends, numpy.int32).tolist()) == (b"badc", [11, 12, 13, 14])
