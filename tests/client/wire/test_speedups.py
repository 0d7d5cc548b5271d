"""Compiled codec against plain Python: same bytes, same columns, same errors."""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_native.arrow.columns import ALL_COLUMNS, EntryRows, record_batch
from pulsar_native.exceptions import InvalidMessage
from pulsar_native.wire import _impl as hot
from pulsar_native.wire import _speedups, codec
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.entry import ParsedEntry
from support.wire_strategies import U64, batches, fields, long_texts, texts

Batch = tuple[list[bytes], list[int], list[dict[str, Any]]]

# Metadata that protobuf reads and the compiled codec must leave alone, read the same, or refuse the same.
ODD = [
    b"\x18\x03\x40\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a sequence id of 64 bits
    b"\x98\x00\x03",  # a tag in two bytes
    b"\x18\x83\x80\x00",  # a number longer than it needs to be
    b"\x18\x03\x80\x01\x05",  # a field of a later protocol
    b"\x18\x03\x18\x02",  # two payload sizes
    b"\x18\x03\x10\x01",  # the key as a number
    b"\x18\x03\x0a\x00",  # a property without a key
    b"\x18\x03\x0a\x03\x0a\x01a",  # without a value
    b"\x18\x03\x0a\x06\x12\x01b\x0a\x01a",  # the value first
    b"\x18\x03\x0a\x08\x0a\x01a\x12\x01b\x18\x01",  # a field of a later protocol in a property
    b"\x18\x03" + b"\x0a\x06\x0a\x01a\x12\x01b" * 2,  # a property twice
    b"\x18\x03" + b"".join(b"\x0a\x06\x0a\x01%c\x12\x01b" % (65 + i) for i in range(40)),
    b"\x18\x03\x12\x02\xff\xfe",  # a key that is no text
    b"\x18\x03\x12\x01a\x12\x01b",  # two keys
    b"\x18\x03\x30\x01\x12\x04AAE=",  # a key of bytes
    b"\x18\x03\x30\x01\x12\x04AA==",
    b"\x18\x03\x30\x01\x12\x04A===",
    b"\x18\x03\x30\x01\x12\x04====",
    b"\x18\x03\x30\x01\x12\x05AA\nA=",
    b"\x18\x03\x30\x01\x12\x04A=AA",
    b"\x18\x03\x30\x01\x12\x03AAA",
    b"\x18\x03\x30\x01\x12\x04\xc3\xa9AA",
    b"\x18\x03\x30\x02\x12\x00",  # true written as 2
    b"\x18\x03\x30\x01",
    b"\x18\x03\x48\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x18\x03\x28\x00",
    b"\x18\x03\x28" + b"\xff" * 8 + b"\x7f",
    b"\x18\x03\x20\x01\x50\x01\x3a\x01o",
    b"\x18\x03\x0b\x0c",  # a group
    b"\x18\x03\x0d\x01\x02\x03\x04",
    b"\x18\x03\x00",
    b"\x18\x03\x12",
    b"\x18\x03\x12\x05ab",
    b"\x18\x03\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x18\x03\x0a\x04\x0a\x7fab",
    b"\x18\x03\x0a\x04\x0a\x00\x12\x7f",
    b"\x18\x03\x40",
    b"\x18\x03\x40\xff",
    b"",
]


def outcome(call: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """Return what a call gives: a value, or the error's class and text."""
    try:
        return ("ok", call(*arguments))
    except Exception as error:
        return (type(error), str(error))


def columns_of(
    name: str, body: bytes, count: int, names: tuple[str, ...], first: int = 0, skip: bytes | None = None
) -> Any:
    """Return a batch as a record batch, made by one implementation."""
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=U64 - 5, publish_time=1_700_000_000_000, num_messages_in_batch=count
    )
    part = EntryRows(ParsedEntry(metadata, memoryview(body)), body, 12, 5, first, count, skip)
    before = hot.name
    hot.select(name)
    try:
        # Twice, so that what begins behind other rows is seen as well.
        batch = record_batch([part, part], names, topic="persistent://public/default/t", partition=3)
    finally:
        hot.select(before)
    batch.validate(full=True)
    return [batch.column(column).cast("binary") if column == "value" else batch.column(column) for column in names]


def assert_same(body: bytes, count: int, names: tuple[str, ...] = ALL_COLUMNS, **more: Any) -> None:
    """Compare all that is read from a batch."""
    assert outcome(_speedups.split_batch, body, count) == outcome(codec.split_batch, body, count)
    if count > 0:
        python, compiled = (
            outcome(lambda name: columns_of(name, body, count, names, **more), name) for name in ("python", "compiled")
        )
        assert compiled == python


def written(batch: Batch) -> bytes:
    payloads, ids, own = batch
    return codec.encode_batch(payloads, ids, [codec.encode_single_fields(**one) for one in own])


def message(meta: bytes, payload: bytes = b"abc") -> bytes:
    return struct.pack(">I", len(meta)) + meta + payload


@given(batches(), st.booleans())
def test_speedups_encode_batch_equal(batch: Batch, as_range: bool) -> None:
    payloads, ids, own = batch
    numbers: Any = range(ids[0], ids[0] + len(ids)) if as_range else ids
    encoded = [codec.encode_single_fields(**one) for one in own]
    for written_fields in (encoded, (), [b""] * len(ids)):
        expected = codec.encode_batch(payloads, numbers, written_fields)
        assert _speedups.encode_batch(payloads, numbers, written_fields) == expected


def test_speedups_encode_batch_invalid_equal() -> None:
    cases: list[tuple[Any, ...]] = [
        ([b"a"], [1, 2]),
        ([b"a"], []),
        ([b"a", b"b"], [1, 2], [b""]),
        ([bytearray(b"a"), b"b"], [1, 2]),
        ([memoryview(b"a")], [1], [b"\x48\x01"]),
        ([b"a"], [-1]),
        ([b"a"], [U64 + 1]),
        ([b"a"], [True]),
        ([b"a"], ["1"]),
        ([b"a"], [None]),
        (["a"], [1]),
        ([None], [1]),
        ([b"a"], [1], [bytearray(b"\x48\x01")]),
        ([], []),
        ((), range(0)),
    ]
    for case in cases:
        python, compiled = outcome(codec.encode_batch, *case), outcome(_speedups.encode_batch, *case)
        assert compiled == python, case


class Sneaky(int):
    """A number that changes when it is asked again."""

    asked = 0

    def __index__(self) -> int:
        self.asked += 1
        return 1 << 60 if self.asked > 1 else 1


def test_speedups_changing_number_stays_in_bounds() -> None:
    assert _speedups.encode_batch([b"a"], [Sneaky(5)]) == codec.encode_batch([b"a"], [5])


@given(fields)
def test_speedups_single_fields_equal(own: dict[str, Any]) -> None:
    assert _speedups.encode_single_fields(**own) == codec.encode_single_fields(**own)


class Pairs(dict[str, str]):
    """Properties that come as something else than pairs."""

    def items(self) -> Any:
        return [("a",)]


@pytest.mark.parametrize(
    "arguments",
    [
        (None, "", True),
        ({"a": "\ud800"},),
        ({"\ud800": "a"},),
        ({"a": 7},),
        ({7: "a"},),
        (Pairs(a="b"),),
        (7,),
        (None, "\udfff"),
        (None, b"k"),
        (None, "k", False, "o"),
        (None, "k", 1, bytearray(b"o"), 5),
        (None, None, True, b"", 0, True, True),
        (None, None, False, None, -1),
        (None, None, False, None, U64),
        (None, None, False, None, U64 + 1),
        (None, None, False, None, 1.5),
        (None, None, False, None, True),
        (None, None, False, None, "1"),
        ({"k" * 200: "é" * 20_000}, "😀" * 100, True, bytes(300), 1 << 63, 1, 1),
    ],
)
def test_speedups_single_fields_odd_equal(arguments: tuple[Any, ...]) -> None:
    python, compiled = (
        outcome(codec.encode_single_fields, *arguments),
        outcome(_speedups.encode_single_fields, *arguments),
    )
    assert compiled == python


@given(batches() | batches(plain=True), st.data())
def test_speedups_sizes_and_marks_equal(batch: Batch, data: st.DataObject) -> None:
    payloads, ids, own = batch
    encoded = [codec.encode_single_fields(**one) for one in own]
    marked = data.draw(st.none() | st.integers(0, len(ids) - 1))
    if marked is not None:
        encoded[marked] += b"\x20\x01"
    body = codec.encode_batch(payloads, ids, encoded)
    places = codec.split_batch(body, len(ids))
    assert _speedups.payload_bytes(places) == codec.payload_bytes(places) == sum(map(len, payloads))
    for module in (codec, _speedups):
        # More may be found, never less.
        assert module.may_be_compacted(body, places) or marked is None
    assert not _speedups.may_be_compacted(b"\0\0\0\x02\x18\x02\x20\x01", [(4, 6, 8)])
    assert _speedups.may_be_compacted(b"abc", [(0, 99, 99)]) and _speedups.may_be_compacted(b"abc", [(-9, 2, 2)])


@given(st.none() | texts, st.lists(st.none() | texts | long_texts, max_size=20))
def test_speedups_text_fields_equal(name: str | None, values: list[str | None]) -> None:
    assert _speedups.text_fields(name, values) == codec.text_fields(name, values)


@pytest.mark.parametrize("name", [None, "a", "\ud800", ""])
@pytest.mark.parametrize("values", [["a", "\ud800"], ["a", 7], [b"a"], ["x" * 200, "y" * 20_000, "é"], []])
def test_speedups_text_fields_invalid_equal(name: str | None, values: list[Any]) -> None:
    assert outcome(_speedups.text_fields, name, values) == outcome(codec.text_fields, name, values)


@given(batches(plain=False) | batches(plain=True), st.data())
def test_speedups_columns_equal(batch: Batch, data: st.DataObject) -> None:
    body, count = written(batch), len(batch[0])
    first = data.draw(st.integers(0, count - 1))
    skip = data.draw(st.none() | st.binary(min_size=count, max_size=count))
    names = data.draw(st.just(ALL_COLUMNS) | st.lists(st.sampled_from(ALL_COLUMNS), unique=True, min_size=1).map(tuple))
    assert_same(body, count, names, first=first, skip=skip)


@given(batches(), st.data())
def test_speedups_damaged_batches_equal(batch: Batch, data: st.DataObject) -> None:
    body, count = bytearray(written(batch)), len(batch[0])
    for _ in range(data.draw(st.integers(1, 3))):
        # Near the beginning of messages damage does most.
        places = [
            place
            for start, stop, _ in codec.split_batch(written(batch), count)
            for place in (start - 1, start, stop - 1)
        ]
        place = data.draw(st.sampled_from(places) | st.integers(0, len(body) - 1))
        body[place] = data.draw(st.sampled_from([0, 1, 0x0A, 0x12, 0x18, 0x40, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    assert_same(bytes(body), count)


@given(batches(), st.data())
def test_speedups_truncated_batches_equal(batch: Batch, data: st.DataObject) -> None:
    body, count = written(batch), len(batch[0])
    assert_same(body[: data.draw(st.integers(0, len(body) - 1))], count)
    assert_same(body, count + data.draw(st.sampled_from([1, 2**31])))


@given(st.binary(max_size=120), st.integers(-2, 50))
def test_speedups_garbage_equal(body: bytes, count: int) -> None:
    assert_same(body, count)


@given(
    st.lists(st.sampled_from(ODD) | fields.map(lambda own: codec.encode_single_fields(**own)), min_size=1, max_size=4)
)
@example([ODD[1], ODD[0]])
def test_speedups_odd_metadata_equal(metas: list[bytes]) -> None:
    assert_same(b"".join(map(message, metas)), len(metas))


@pytest.mark.parametrize("meta", ODD)
@pytest.mark.parametrize("among", [0, 12])
def test_speedups_each_odd_case_equal(meta: bytes, among: int) -> None:
    ordinary = message(b"\x18\x03\x12\x01k\x40\x05") * among
    for stop in (0, 1, 2, 3):
        # The end of the batch inside and right behind the payload.
        body = ordinary + message(meta)
        assert_same(body[: len(body) - stop], among + 1)
        assert_same(body + ordinary, 2 * among + 1)


def test_speedups_every_batch_end_equal() -> None:
    own = [codec.encode_single_fields({"k": "v", "l": "w" * 130}, "key", ordering_key=b"o", event_time=1), b""]
    body = codec.encode_batch([b"abc", b""], [300, 1 << 40], own)
    for length in range(len(body)):
        assert_same(body[:length], 2)
        # The same with a byte in front, so that what lies behind is somebody else's memory at another alignment.
        assert outcome(_speedups.split_batch, memoryview(body)[:length], 2)[0] is InvalidMessage


def test_speedups_ordinary_batches_not_deferred() -> None:
    generator = random.Random(3)
    own = [
        codec.encode_single_fields(
            {"source": "a", "kind": f"é{i}"}, base64.b64encode(bytes([i])).decode(), i % 2 == 0, b"o", i
        )
        for i in range(200)
    ]
    body = codec.encode_batch([generator.randbytes(i) for i in range(200)], range(100, 300), own)
    found = _speedups.scan_batch(body, 20, 200, None, 0)
    assert found is not None and found.count == 180
    assert found.value_bytes == sum(range(20, 200))
    assert_same(body, 200, first=20)
    assert _speedups.scan_batch(body, 0, 201, None, 0) is None
    assert _speedups.scan_batch(body, 0, 200, bytes(199), 0) is None
    for first, last in ((-1, 5), (5, 4), (0, -1), (0, 1 << 62)):
        assert _speedups.scan_batch(body, first, last, None, 0) is None


def test_speedups_buffers_exact_size() -> None:
    body = codec.encode_batch([bytes(10)] * 5, range(5))
    found = _speedups.scan_batch(body, 0, 5, b"\0\1\0\0\0", 0)
    assert found is not None
    ends, nulls = found.values(7)
    assert struct.unpack("=4i", ends) == (17, 27, 37, 47) and nulls == []
    assert _speedups.join_parts([b"ab", found, b""]) == b"ab" + bytes(40)
    for wrong in ([bytearray(2)], [None], ["a"]):
        with pytest.raises(TypeError):
            _speedups.join_parts(wrong)  # type: ignore[arg-type]
    empty = _speedups.scan_batch(body, 0, 0, None, 0)
    assert empty is not None and empty.count == 0
    assert empty.keys(0) == (b"", b"", []) and empty.properties(0, 0, 0) == (b"", (b"", b""), (b"", b""))


def read_single(read: Callable[[bytes, int, int], Any], meta: bytes) -> Any:
    """Return all attributes of a message's metadata, read by one implementation from the middle of a body."""
    found = read(b"\x18\x01" + meta + b"\x18\x02", 2, 2 + len(meta))
    pairs = found.properties
    return (
        found.HasField("partition_key"), found.partition_key, found.partition_key_b64_encoded, found.ordering_key,
        found.HasField("sequence_id"), found.sequence_id, found.event_time, found.null_value, found.null_partition_key,
        pairs if type(pairs) is dict else {pair.key: pair.value for pair in pairs},
    )  # fmt: skip


@given(fields, st.none() | st.integers(0, U64), st.data())
def test_speedups_read_single_fields_equal(own: dict[str, Any], sequence_id: int | None, data: st.DataObject) -> None:
    meta = b"\x18\x03" + codec.encode_single_fields(**own)
    if sequence_id is not None:
        meta += pb.SingleMessageMetadata(payload_size=3, sequence_id=sequence_id).SerializeToString()
    assert outcome(read_single, _speedups.single_fields, meta) == outcome(read_single, codec.single_fields, meta)
    damaged = bytearray(meta[: data.draw(st.integers(1, len(meta)))])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    metas = bytes(damaged)
    assert outcome(read_single, _speedups.single_fields, metas) == outcome(read_single, codec.single_fields, metas)


@pytest.mark.parametrize("meta", ODD)
def test_speedups_read_single_odd_case_equal(meta: bytes) -> None:
    for stop in range(len(meta) + 1):
        part = meta[:stop]
        assert outcome(read_single, _speedups.single_fields, part) == outcome(read_single, codec.single_fields, part)


def test_speedups_read_single_outside_body_equal() -> None:
    for start, stop in ((0, 9), (-2, 2), (2, 1), (5, 7)):
        results = [outcome(read, b"\x18\x03", start, stop) for read in (_speedups.single_fields, codec.single_fields)]
        assert str(results[0]) == str(results[1])


def test_speedups_read_single_ordinary_not_deferred() -> None:
    meta = b"\x18\x03" + codec.encode_single_fields({"a": "é"}, "key", False, b"o", 5, True, True) + b"\x40\x07"
    made = _speedups.single_fields(meta, 0, len(meta))
    assert type(made).__name__ == "SingleFields"
    with pytest.raises(ValueError, match="event_time"):
        made.HasField("event_time")
