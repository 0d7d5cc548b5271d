"""Batch codec: encoded and decoded, against protobuf, and malformed batches."""

from __future__ import annotations

import random
import struct
from array import array
from contextlib import suppress
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.exceptions import InvalidMessage
from pulsar_native.wire import _impl, codec
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.codec import (
    parse_single,
    payload_size,
    same_size,
    sequence_fields,
)
from support.wire_strategies import U64, batches, fields

pytestmark = pytest.mark.usefixtures("implementation")

Batch = tuple[list[bytes], list[int], list[dict[str, Any]]]


def plainly(body: bytes, count: int) -> list[tuple[pb.SingleMessageMetadata, bytes]]:
    """Read a batch the slow and obvious way."""
    messages = []
    for _ in range(count):
        size = int.from_bytes(body[:4], "big")
        single = pb.SingleMessageMetadata.FromString(body[4 : 4 + size])
        stop = 4 + size + single.payload_size
        assert stop <= len(body)
        messages.append((single, body[4 + size : stop]))
        body = body[stop:]
    assert not body
    return messages


def other_clients(payloads: list[bytes], singles: list[pb.SingleMessageMetadata]) -> bytes:
    """Write a batch as clients do that leave the order of fields to protobuf: by number."""
    parts = []
    for payload, single in zip(payloads, singles, strict=True):
        single.payload_size = len(payload)
        data = single.SerializeToString()
        parts += [struct.pack(">I", len(data)), data, payload]
    return b"".join(parts)


def test_encode_batch_known_bytes() -> None:
    assert _impl.encode_batch([b"hello", b""], [5, 300]) == bytes.fromhex(
        "00000004 1805 4005 68656c6c6f 00000005 1800 40ac02".replace(" ", "")
    )
    own = _impl.encode_single_fields({"a": "b"}, "k", event_time=1, null_value=True)
    assert own == bytes.fromhex("0a06 0a0161 120162 12016b 2801 4801".replace(" ", ""))
    with_own = _impl.encode_batch([b"x"], [0], [own])
    assert with_own == bytes.fromhex("00000013 1801 0a06 0a0161 120162 12016b 2801 4801 4000 78".replace(" ", ""))


@given(fields)
def test_encode_single_fields_read_by_protobuf(own: dict[str, Any]) -> None:
    single = pb.SingleMessageMetadata.FromString(_impl.encode_single_fields(**own))
    assert {pair.key: pair.value for pair in single.properties} == own.get("properties", {})
    assert [pair.key for pair in single.properties] == list(own.get("properties", {}))
    assert single.HasField("partition_key") == ("partition_key" in own)
    assert single.partition_key == own.get("partition_key", "")
    assert single.HasField("ordering_key") == ("ordering_key" in own)
    assert single.ordering_key == own.get("ordering_key", b"")
    assert single.event_time == own.get("event_time", 0)
    assert single.null_value == own.get("null_value", False)
    assert single.null_partition_key == own.get("null_partition_key", False)
    assert not single.HasField("partition_key_b64_encoded")


def test_encode_single_fields_base64_flag_with_key() -> None:
    single = pb.SingleMessageMetadata.FromString(_impl.encode_single_fields(None, "a2V5MQ==", True))
    assert (single.partition_key, single.partition_key_b64_encoded) == ("a2V5MQ==", True)
    assert _impl.encode_single_fields(key_is_base64=True) == b""
    assert _impl.encode_single_fields({}) == _impl.encode_single_fields() == b""


@pytest.mark.parametrize("wrong", [{"properties": {"a": "\ud800"}}, {"properties": {"\ud800": ""}}])
def test_encode_single_fields_invalid_unicode_raises(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        _impl.encode_single_fields(**wrong)


@pytest.mark.parametrize("wrong", [{"partition_key": "\udfff"}, {"event_time": -1}, {"event_time": U64 + 1}])
def test_encode_single_fields_invalid_values_raise(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        _impl.encode_single_fields(**wrong)


@given(batches())
def test_encode_batch_read_by_protobuf(batch: Batch) -> None:
    payloads, ids, own = batch
    encoded = [_impl.encode_single_fields(**one) for one in own]
    body = _impl.encode_batch(payloads, ids, encoded)
    read = plainly(body, len(payloads))
    assert [payload for _, payload in read] == payloads
    assert [single.sequence_id for single, _ in read] == ids
    for (single, payload), data in zip(read, encoded, strict=True):
        expected = pb.SingleMessageMetadata.FromString(data)
        expected.payload_size = len(payload)
        expected.sequence_id = single.sequence_id
        assert single == expected
    if not any(encoded):
        assert _impl.encode_batch(payloads, ids) == body == _impl.encode_batch(payloads, ids, [b""] * len(ids))


@given(batches(), st.sampled_from([0, 100, 127, 16_000, U64 - 3, -2]))
def test_encode_batch_of_consecutive_ids_as_range(batch: Batch, first: int) -> None:
    payloads, _, own = batch
    encoded = [_impl.encode_single_fields(**one) for one in own]
    ids = range(first, first + len(payloads))
    assert _impl.encode_batch(payloads, ids, encoded) == _impl.encode_batch(payloads, list(ids), encoded)
    with pytest.raises(ValueError):
        _impl.encode_batch(payloads, range(len(payloads) + 1), encoded)


def test_encode_batch_of_ids_with_steps() -> None:
    assert _impl.encode_batch([b"a", b"b"], range(3, 7, 2)) == _impl.encode_batch([b"a", b"b"], [3, 5])


_SIZED = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=9)), max_size=12)


@given(_SIZED, st.booleans(), st.integers(0, 14), st.integers(0, 200), st.integers(0, 9))
def test_fitting_counts_as_one_by_one(
    messages: list[tuple[bytes, bytes]], with_fields: bool, count: int, most: int, overhead: int
) -> None:
    payloads, fields = [payload for payload, _ in messages], [own for _, own in messages] if with_fields else None
    used = taken = size = 0
    for payload, own in messages[:count]:
        used += len(payload) + overhead + (len(own) if with_fields else 0)
        if used > most:
            break
        taken, size = taken + 1, size + len(payload)
    assert _impl.fitting(payloads, fields, count, most, overhead) == (taken, size)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], True), ([b"a", b""], True), ([b"a", "b"], False), ([bytearray(b"a")], False), ([None], False)],
)
def test_only_bytes_looks_at_each(values: list[Any], expected: bool) -> None:
    assert _impl.only_bytes(values) is expected


def _ends(values: list[bytes], first: int, code: str) -> memoryview:
    return memoryview(array(code, accumulate(map(len, values), initial=first)))


@given(st.binary(max_size=3), st.lists(st.binary(max_size=5), max_size=8), st.sampled_from("iq"))
def test_cut_values_returns_what_was_joined(before: bytes, values: list[bytes], code: str) -> None:
    data = memoryview(before + b"".join(values) + b"after")
    assert _impl.cut_values(data, _ends(values, len(before), code)) == values


def test_cut_values_of_empty_buffer() -> None:
    assert _impl.cut_values(memoryview(b""), _ends([b"", b""], 0, "i")) == [b"", b""]


@pytest.mark.parametrize("positions", [[0, 4], [-1, 2], [0, 3, 2], [2, 1, 3], [4, 4]])
def test_cut_values_outside_of_buffer_raise(positions: list[int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        _impl.cut_values(memoryview(b"abc"), memoryview(array("q", positions)))


@given(batches(), st.booleans())
def test_split_batch_of_any_writer(batch: Batch, ours: bool) -> None:
    payloads, ids, own = batch
    encoded = [_impl.encode_single_fields(**one) for one in own]
    if ours:
        body = _impl.encode_batch(payloads, ids, encoded)
    else:
        singles = [pb.SingleMessageMetadata.FromString(one) for one in encoded]
        for single, number in zip(singles, ids, strict=True):
            if number % 3:  # older clients write no sequence id into a message
                single.sequence_id = number
        body = other_clients(payloads, singles)
    places = _impl.split_batch(memoryview(body), len(payloads))
    assert places == _impl.split_batch(body, len(payloads))
    assert [body[payload:stop] for _, payload, stop in places] == payloads
    expected = [single for single, _ in plainly(body, len(payloads))]
    assert [parse_single(body[start:payload]) for start, payload, _ in places] == expected
    assert [payload_size(body, start, payload) for start, payload, _ in places] == list(map(len, payloads))
    assert places[0][0] == 4 and places[-1][2] == len(body)
    packed = _impl.scan_spans(body, len(payloads))
    assert (packed is None) == (_impl.name == "python")
    if packed is not None:
        assert list(packed) == places == packed[:] and packed[-1] == places[-1] and packed[1:3] == places[1:3]
        assert len(packed) == len(places) and packed.payload_bytes == sum(map(len, payloads))
        assert packed.may_be_compacted == _impl.may_be_compacted(body, places)
        with pytest.raises(IndexError):
            packed[len(places)]


def test_scan_spans_leaves_the_rest_to_split_batch() -> None:
    body = _impl.encode_batch([b"a", b"bc"], [0, 1])
    for count, data in ((0, body), (3, body), (2, body[:-1]), (1 << 40, body), (2, bytes(9))):
        assert _impl.scan_spans(data, count) is None
    # Bytes behind the last message are ignored, as there.
    packed = _impl.scan_spans(body + b"more", 2)
    assert packed is None or list(packed) == _impl.split_batch(body, 2)


@given(batches(plain=True))
def test_encode_batch_plain_read_and_split(batch: Batch) -> None:
    payloads, ids, _ = batch
    body = _impl.encode_batch(payloads, ids)
    read = plainly(body, len(payloads))
    assert [(single.sequence_id, payload) for single, payload in read] == list(zip(ids, payloads, strict=True))
    assert [body[start:stop] for _, start, stop in _impl.split_batch(body, len(payloads))] == payloads


def test_split_batch_unknown_fields_skipped() -> None:
    # Field 16 of each kind in front of the payload's size: number, 8 bytes, text, 4 bytes.
    for later in (b"\x80\x01\xff\x01", b"\x81\x01" + bytes(8), b"\x82\x01\x02ab", b"\x85\x01" + bytes(4)):
        for payload in (b"xyz", bytes(200)):
            single = later + pb.SingleMessageMetadata(payload_size=len(payload), sequence_id=1).SerializeToString()
            body = struct.pack(">I", len(single)) + single + payload
            assert plainly(body, 1)[0][1] == payload
            assert _impl.split_batch(body * 10, 10)[9][2] == len(body) * 10


def test_encode_batch_ids_range_or_any() -> None:
    payloads = [b"a", b"b", b"c"]
    assert _impl.encode_batch(payloads, range(126, 129)) == _impl.encode_batch(payloads, [126, 127, 128])
    for ids in ([5, 4, 3], [7, 7, 7], [0, 1, 3], [127, 128, 1 << 63], [U64 - 1, U64, 0]):
        assert [single.sequence_id for single, _ in plainly(_impl.encode_batch(payloads, ids), 3)] == ids


def test_encode_batch_lengths_differ_raises() -> None:
    for ids, own in (([1], ()), ([1, 2, 3], ()), ([1, 2], [b""]), ([1, 2], [b"\x48\x01"])):
        with pytest.raises(ValueError):
            _impl.encode_batch([b"a", b"b"], ids, own)
    assert _impl.encode_batch([], []) == b""


def test_encode_batch_sizes_at_varint_borders() -> None:
    for size in (0, 1, 127, 128, 16_383, 16_384, 70_000):
        for count in (1, 7, 8, 9, 100):
            payloads = [bytes([i % 256]) * size for i in range(count)]
            body = _impl.encode_batch(payloads, range(100, 100 + count))
            assert [body[start:stop] for _, start, stop in _impl.split_batch(body, count)] == payloads


def test_encode_batch_runs_broken_anywhere() -> None:
    generator = random.Random(5)
    for _ in range(300):
        payloads: list[bytes] = []
        while len(payloads) < 200:
            payloads += [bytes(generator.randrange(4))] * generator.choice((1, 2, 3, 7, 8, 9, 16, 17, 63, 64, 65, 90))
        body = _impl.encode_batch(payloads, range(generator.choice((0, 60, 16_300)), 1 << 40)[: len(payloads)])
        assert [body[start:stop] for _, start, stop in _impl.split_batch(body, len(payloads))] == payloads


def test_same_size_whole_batch_only() -> None:
    body = _impl.encode_batch([bytes(9)] * 20, range(20))
    assert same_size(body, 20) == same_size(body, 9) == (4, 9)
    assert same_size(body, 21) is None
    assert same_size(_impl.encode_batch([bytes(9)] * 19 + [b""], range(20)), 20) is None
    assert same_size(_impl.encode_batch([bytes(9)] * 20, range(120, 140)), 20) is None  # ids of one and of two bytes
    assert same_size(b"", 0) is None


def test_sequence_fields_equal_batch() -> None:
    assert sequence_fields(126, 5) == b""  # of two widths
    assert sequence_fields(128, 3) == bytes.fromhex("408001 408101 408201".replace(" ", ""))
    body = _impl.encode_batch([b""] * 3, range(128, 131))
    assert sequence_fields(128, 3) == b"".join(
        body[start + 2 : payload] for start, payload, _ in _impl.split_batch(body, 3)
    )


def test_split_batch_ignores_trailing_bytes() -> None:
    body = _impl.encode_batch([b"a", b"bc"], [1, 2])
    assert _impl.split_batch(body + b"\xff" * 30, 2) == _impl.split_batch(body, 2)
    assert _impl.split_batch(body, 1) == _impl.split_batch(body, 2)[:1]


HUGE = struct.pack(">I", 0x7FFFFFFF)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\0",  # metadata without a payload size
        b"\0\0\0\x02\x18",  # metadata that would end behind the batch
        b"\0\0\0\x02\x18\x05abcd",  # a payload that would
        b"\0\0\0\x04\x18\x05\x40\x00abcd",
        HUGE + b"\x18\x05\x40\x00" + bytes(50),
        b"\xff\xff\xff\xff" + b"\x18\x05\x40\x00" + bytes(50),
        b"\0\0\0\x0b\x18" + b"\xff" * 9 + b"\x01" + bytes(50),  # a payload size of -1
        b"\0\0\0\x06\x18\xff\xff\xff\xff\x07" + bytes(50),  # of 2 GiB
        b"\0\0\0\x06\x18\xff\xff\xff\xff\x0f" + bytes(50),  # of -1 in 32 bits
        b"\0\0\0\x0c\x18" + b"\xff" * 11 + bytes(50),  # a number that does not end
        b"\0\0\0\x02\x18\x80" + bytes(50),  # one that would end behind the metadata
        b"\0\0\0\x01\x18" + bytes(50),
        b"\0\0\0\x03\x40\x01\x40" + bytes(50),
        b"\0\0\0\x02\x12\x7f" + bytes(50),  # a key that would end behind the metadata
        b"\0\0\0\x04\x12\xff\xff\x7f" + bytes(50),
        b"\0\0\0\x02\x0b\x0c" + bytes(50),  # groups
        b"\0\0\0\x04\x0d\x00\x00\x00" + bytes(50),  # a fixed number that would end behind the metadata
        b"\0\0\0\x0d\x18" + b"\x80" * 11 + b"\0" + bytes(50),  # a number of more than 64 bits
        b"\0\0\0\x07\x0b\x0c\0\0\0\x18\x01" + bytes(50),
        b"\0\0\0\x02\x40\x01" + bytes(50),  # a sequence id and no payload size
        b"\0\0\0\x01\x18\x05abcd" * 20,  # where the metadata end, the payload would go on as they should
        b"\0\0\0\0\x18\x06abcd" * 20,
    ],
)
@pytest.mark.parametrize("count", [1, 2, 9])
def test_split_batch_size_mismatch_raises(body: bytes, count: int) -> None:
    good = _impl.encode_batch([b"x"] * 3, [1, 2, 3])
    for before in (0, 3):
        with pytest.raises(InvalidMessage):
            _impl.split_batch(good * (before // 3) + body, before + count)


@pytest.mark.parametrize("count", [0, -1, -(2**31)])
def test_split_batch_empty_raises(count: int) -> None:
    with pytest.raises(InvalidMessage):
        _impl.split_batch(_impl.encode_batch([b"x"], [1]), count)


@pytest.mark.parametrize("size", [0, 1, 100])
def test_split_batch_count_too_high_raises(size: int) -> None:
    for payloads in ([bytes(size)] * 1000, [bytes(size + i % 5) for i in range(1000)]):
        body = _impl.encode_batch(payloads, range(1000))
        for count in (1001, 2**31 - 1):
            with pytest.raises(InvalidMessage):
                _impl.split_batch(body, count)


def test_split_batch_truncated_raises() -> None:
    own = [_impl.encode_single_fields({"k": "v"}), b""] * 6
    body = _impl.encode_batch([b"abc"] * 12, range(12), own)
    for length in range(len(body)):
        with pytest.raises(InvalidMessage):
            _impl.split_batch(body[:length], 12)


@given(st.binary(max_size=120), st.integers(1, 50))
def test_split_batch_garbage(body: bytes, count: int) -> None:
    with suppress(InvalidMessage):
        last = 0
        for start, payload, stop in _impl.split_batch(body, count):
            assert last + 4 == start <= payload <= stop <= len(body)
            last = stop


@given(batches(), st.data())
def test_split_batch_damage_stays_in_bounds(batch: Batch, data: st.DataObject) -> None:
    payloads, ids, own = batch
    body = bytearray(_impl.encode_batch(payloads, ids, [_impl.encode_single_fields(**one) for one in own]))
    for _ in range(3):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(body)
    with suppress(InvalidMessage):
        last = 0
        for start, payload, stop in _impl.split_batch(damaged, len(payloads)):
            assert last + 4 == start <= payload <= stop <= len(damaged)
            last = stop
            with suppress(InvalidMessage):
                parse_single(damaged[start:payload])


class CountedBytes(bytes):
    """Bytes that count how many of them were read by slices."""

    read = 0

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        self.read += len(part) if isinstance(part, bytes) else 1
        return part


def test_split_batch_hostile_pattern_linear_reads() -> None:
    def reads(count: int) -> int:
        # Runs just long enough to be looked at closely, and then broken at once.
        payloads = ([b"a"] * 2 + [b"bc"] + [b"a"] * 7) * (count // 10)
        body = CountedBytes(_impl.encode_batch(payloads, [1] * len(payloads)))
        assert len(codec.split_batch(body, len(payloads))) == len(payloads)
        return body.read

    # The compiled codec has no look-ahead, so the plain one is measured with either.
    small = reads(2_000)
    assert small > 0
    assert reads(64_000) < 32 * small * 1.5


@pytest.mark.parametrize("meta", [b"\xff\xff", b"\x0a\x7f", b"\x40\x01", b""])
def test_parse_single_invalid_raises(meta: bytes) -> None:
    with pytest.raises(InvalidMessage):
        parse_single(meta)
