"""Entries to record batches, compared row by row with a plain decoding of the same bytes."""

from __future__ import annotations

import base64
import datetime
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.arrow import arrays, columns
from pulsar_native.arrow.columns import ALL_COLUMNS, EntryRows, record_batch
from pulsar_native.exceptions import InvalidMessage
from pulsar_native.message_id import MessageId
from pulsar_native.wire import _impl
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.codec import encode_batch, encode_single_fields
from pulsar_native.wire.entry import ParsedEntry, parse_entry
from support.entry_bytes import assemble
from support.wire_strategies import U64, batches, fields

pytestmark = pytest.mark.usefixtures("implementation")

TOPIC = "persistent://public/default/über-partition-3"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NOW = 1_700_000_000_123

Batch = tuple[list[bytes], list[int], list[dict[str, Any]]]


def batch_slice(
    payloads: list[bytes],
    ids: list[int] | range,
    encoded: list[bytes] | None = None,
    *,
    first: int = 0,
    last: int | None = None,
    skip: bytes | None = None,
    entry: int = 5,
    body: bytes | None = None,
    publish_time: int = NOW,
    schema_version: bytes = b"",
) -> EntryRows:
    body = encode_batch(payloads, ids, encoded or ()) if body is None else body
    metadata = pb.MessageMetadata(
        producer_name="standalone-1-5",
        sequence_id=ids[0],
        publish_time=publish_time,
        num_messages_in_batch=len(payloads),
        schema_version=schema_version,
    )
    stop = len(payloads) if last is None else last
    # Parsed from bytes, as received: the compiled codec reads the sequence id itself.
    return EntryRows(parse_entry(assemble(metadata, body)), body, 12, entry, first, stop, skip)


def single_slice(
    payload: bytes,
    own: dict[str, Any] | None = None,
    entry: int = 6,
    wanted: bool = True,
    uuid_of: str | None = None,
    **more: Any,
) -> EntryRows:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=77, publish_time=NOW, uuid=uuid_of)
    # Field by field: the entry's metadata have the same names as a message's in a batch.
    for name, value in (own or {}).items():
        if name == "properties":
            metadata.properties.extend([pb.KeyValue(key=key, value=text) for key, text in value.items()])
        else:
            setattr(metadata, name, value)
    # Parsed from bytes, as received: the compiled codec reads the metadata itself.
    parsed = parse_entry(assemble(metadata, payload))
    return EntryRows(parsed, payload, 12, entry, 0 if wanted else 1, 1, **more)


def time_of(millis: int) -> datetime.datetime | None:
    """Return what a row holds for a time; Python's own dates end before Arrow's."""
    return EPOCH + datetime.timedelta(milliseconds=millis) if millis else None


def plain_rows(part: EntryRows, partition: int) -> list[dict[str, Any]]:
    """Read a slice message by message with protobuf only."""
    metadata = part.parsed.metadata
    found: list[dict[str, Any]] = []
    body = part.body
    count = metadata.num_messages_in_batch if part.parsed.is_batch else 1
    for index in range(count):
        single: pb.SingleMessageMetadata | pb.MessageMetadata = metadata
        value = body
        if part.parsed.is_batch:
            size = int.from_bytes(body[:4], "big")
            single = pb.SingleMessageMetadata.FromString(body[4 : 4 + size])
            stop = 4 + size + single.payload_size
            value, body = body[4 + size : stop], body[stop:]
        if not part.first <= index < part.last or (part.skip and part.skip[index]):
            continue
        key = single.partition_key.encode() if single.HasField("partition_key") else None
        if key is not None and single.partition_key_b64_encoded:
            key = base64.b64decode(key)
        number = single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id + index
        batch_index = index if part.parsed.is_batch else -1
        size = metadata.num_messages_in_batch if part.parsed.is_batch else 0
        version = int.from_bytes(metadata.schema_version, "big") if metadata.schema_version else None
        found.append(
            {
                "value": None if single.null_value else value,
                "__key": key,
                "__topic": TOPIC,
                "__messageId": MessageId(
                    partition,
                    part.ledger_id,
                    part.entry_id,
                    batch_index,
                    batch_size=size,
                    first_chunk=part.first_chunk,
                ).serialize(),
                "__publishTime": time_of(metadata.publish_time),
                "__eventTime": time_of(single.event_time),
                "__messageProperties": list({pair.key: pair.value for pair in single.properties}.items()),
                "__partition": partition,
                "__sequenceId": (number & U64) - (1 << 64 if number >> 63 & 1 else 0),
                "__producerName": metadata.producer_name,
                "__ledgerId": part.ledger_id,
                "__entryId": part.entry_id,
                "__batchIndex": batch_index,
                "__schemaVersion": version,
            }
        )
    return found


def check(slices: list[EntryRows], names: tuple[str, ...] = ALL_COLUMNS, partition: int = 3) -> pa.RecordBatch:
    """Compare the record batch with the plain reading; return it."""
    batch = record_batch(slices, names, topic=TOPIC, partition=partition)
    batch.validate(full=True)
    expected = [row for part in slices for row in plain_rows(part, partition)]
    assert batch.schema.names == list(names)
    assert batch.num_rows == len(expected) == sum(map(len, slices))
    for name in names:
        assert batch.column(name).to_pylist() == [row[name] for row in expected], name
    return batch


def _within_dates(own: dict[str, Any]) -> dict[str, Any]:
    # Times beyond the year 9999 have a test of their own: Python's dates cannot hold them.
    return {name: value % 253_402_300_800_000 if name == "event_time" else value for name, value in own.items()}


own_fields = fields.map(_within_dates)


@st.composite
def slices_of_batches(draw: st.DrawFn) -> EntryRows:
    payloads, ids, own = draw(batches(plain=draw(st.booleans())))
    encoded = [encode_single_fields(**_within_dates(one)) for one in own]
    body = encode_batch(payloads, ids, encoded)
    if draw(st.booleans()):
        # As other clients write it: fields in the order of their numbers, old ones without sequence ids.
        parts = []
        for payload, number, data in zip(payloads, ids, encoded, strict=True):
            single = pb.SingleMessageMetadata.FromString(data)
            single.payload_size = len(payload)
            if number % 3:
                single.sequence_id = number
            data = single.SerializeToString()
            parts += [len(data).to_bytes(4, "big"), data, payload]
        body = b"".join(parts)
    count = len(payloads)
    first = draw(st.integers(0, count))
    last = draw(st.integers(first, count))
    skip = draw(st.none() | st.lists(st.sampled_from([0, 0, 1, 255]), min_size=count, max_size=count).map(bytes))
    return batch_slice(payloads, ids, first=first, last=last, skip=skip, body=body)


@st.composite
def slices_of_singles(draw: st.DrawFn) -> EntryRows:
    return single_slice(draw(st.binary(max_size=50)), draw(own_fields), wanted=draw(st.booleans()))


some_slices = st.lists(slices_of_batches() | slices_of_singles(), max_size=5)
some_columns = st.lists(st.sampled_from(ALL_COLUMNS), unique=True, max_size=6).map(tuple) | st.just(ALL_COLUMNS)


@given(some_slices, some_columns, st.sampled_from([-1, 0, 3, 200]))
def test_record_batch_equals_plain_decoding(slices: list[EntryRows], names: tuple[str, ...], partition: int) -> None:
    if names:
        check(slices, names, partition)


@given(some_slices)
def test_record_batch_without_numpy_equals_plain_decoding(slices: list[EntryRows]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "numpy_or_none", lambda: None)
        patch.setattr(columns, "numpy_or_none", lambda: None)
        check(slices)


def test_record_batch_entries_of_one_message() -> None:
    own = {"properties": {"a": "b", "ü": ""}, "partition_key": "k", "event_time": NOW, "ordering_key": b"o"}
    based = {"partition_key": base64.b64encode(b"\0\xff").decode(), "partition_key_b64_encoded": True}
    parts = [single_slice(b"%d" % entry, own, entry=entry) for entry in (0, 127, 128, 1 << 40)]
    parts += [single_slice(b"", {"null_value": True}, entry=3), single_slice(b"v" * 300, based), single_slice(b"")]
    check(parts)
    check(parts, partition=-1)
    check([*parts, batch_slice([b"x", b"y"], range(2)), *parts])


def test_record_batch_entries_of_one_message_some_rare() -> None:
    rare = single_slice(b"rare", {"partition_key": "k"}, uuid_of="chunked")
    assert not isinstance(single_slice(b"v").parsed, ParsedEntry) or _impl.name == "python"
    assert isinstance(rare.parsed, ParsedEntry)
    check([single_slice(b"0", {"properties": {"a": "b"}}), rare, single_slice(b"2")])


@pytest.mark.parametrize("entry", [0, 127, 128, 1 << 40])
@pytest.mark.parametrize("partition", [-1, 3, 200])
def test_record_batch_run_of_small_batches(entry: int, partition: int) -> None:
    own = [{"properties": {"a": "b"}, "event_time": NOW}, {"partition_key": "k"}, {}]
    mixed = batch_slice([b"x", b"", b"yz"], [7, 8, 9], [encode_single_fields(**one) for one in own], entry=entry)
    long = [b"%d" % number for number in range(300)]
    parts = [
        mixed,
        batch_slice(long, range(300), first=100, last=290, entry=entry + 1),
        batch_slice(long, range(300), skip=bytes(number % 3 for number in range(300)), entry=entry + 2),
        batch_slice([b"a"], [1], first=1, entry=entry + 3),
        batch_slice([b"one"], [1 << 40], entry=entry + 4),
        # Old clients number the batch alone.
        batch_slice([b"abc"] * 4, [70] * 4, body=b"\0\0\0\x02\x18\x03abc" * 4, entry=entry + 5),
    ]
    found = check(parts, partition=partition)
    assert found.num_rows == 3 + 190 + 100 + 0 + 1 + 4
    check(parts, ("__batchIndex", "__ledgerId"), partition)
    check(parts, ("__messageId",), partition)


def test_record_batch_run_of_small_batches_is_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[EntryRows] = []
    add_batch = columns._Builder.add_batch

    def counting(builder: Any, part: EntryRows) -> None:
        added.append(part)
        add_batch(builder, part)

    monkeypatch.setattr(columns._Builder, "add_batch", counting)
    check([batch_slice([b"0", b"1"], range(2), entry=entry) for entry in range(50)])
    assert len(added) == (50 if _impl.name == "python" else 0)


@pytest.mark.parametrize("large", [0, 1, 2])
def test_record_batch_run_of_small_and_large_batches(large: int) -> None:
    sizes = [40_000 if place == large else 10 for place in range(3)]
    check([batch_slice([b"v" * size, b"w"], range(2), entry=place) for place, size in enumerate(sizes)])


def test_record_batch_run_with_a_rare_batch() -> None:
    twice = encode_single_fields({"a": "b"}) + encode_single_fields({"a": "c"})
    rare = batch_slice([b"x"], [0], [twice])
    check([batch_slice([b"0", b"1"], range(2)), rare, batch_slice([b"2"], [2])])
    chunked = batch_slice([b"x"], [0])
    chunked.first_chunk = MessageId(3, 12, 4, -1)
    check([batch_slice([b"0", b"1"], range(2)), chunked, batch_slice([b"2"], [2])])


def test_record_batch_run_damaged_names_its_entry() -> None:
    damaged = batch_slice([b"abc"] * 3, [7] * 3, body=b"\0\0\0\x04\x18\x03\x40\x85abc" * 3, entry=77)
    for names in (ALL_COLUMNS, ("__key",)):
        with pytest.raises(InvalidMessage, match="Entry 12:77"):
            record_batch([batch_slice([b"0"], [0]), damaged], names, topic=TOPIC, partition=3)


def test_record_batch_schema_versions() -> None:
    versions = (b"", (3).to_bytes(8, "big"), b"another form")
    slices = [batch_slice([b"x", b"y"], [0, 1], schema_version=version) for version in versions]
    slices.append(single_slice(b"x", {"schema_version": (258).to_bytes(8, "big")}))
    found = record_batch(slices, ("__schemaVersion",), topic=TOPIC, partition=3)
    # Not of eight bytes: no number.
    assert found["__schemaVersion"].to_pylist() == [None, None, 3, 3, None, None, 258]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 130, 300])
@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 1000, 16_384])
@pytest.mark.parametrize("first_id", [0, 120, 16_300, 1 << 40, (1 << 63) - 200, (1 << 64) - 400])
def test_record_batch_messages_of_one_size(count: int, size: int, first_id: int) -> None:
    payloads = [bytes([i % 256]) * size for i in range(count)]
    ids = range(first_id, first_id + count)
    check([batch_slice(payloads, ids), batch_slice(payloads, ids, first=count // 3, last=count - count // 3)])
    check([batch_slice(payloads, ids, skip=bytes(i % 3 == 0 for i in range(count)))])


@pytest.mark.parametrize("field", [b"\x48\x01", b"\x12\x01k", b"\x28\x05", b"\x0a\x04\x0a\x00\x12\x00", b"\x20\x00"])
@pytest.mark.parametrize("place", [0, 11, 19])
@pytest.mark.parametrize("names", [ALL_COLUMNS, ("value",), ("__key",), ("__batchIndex", "value")])
def test_record_batch_one_message_with_fields(field: bytes, place: int, names: tuple[str, ...]) -> None:
    payloads = [bytes([i]) * 30 for i in range(20)]
    encoded = [b""] * 20
    encoded[place] = field
    if field == b"\x48\x01":
        payloads[place] = b""
    check([batch_slice(payloads, range(20), encoded)], names)


@pytest.mark.parametrize("field", [b"\x48\x01", b"\x12\x01k", b"\x28\x05"])
def test_record_batch_one_size_all_with_fields(field: bytes) -> None:
    check([batch_slice([b"abc"] * 20, range(20), [field] * 20)])


def test_record_batch_one_size_with_another_field() -> None:
    # Where the others have a sequence id of three bytes, this one has an id of one byte and a null value.
    bodies = [encode_batch([b"abc"], [1 << 15]) for _ in range(20)]
    assert bodies[0][4:10] == bytes.fromhex("1803 40 808002".replace(" ", ""))
    bodies[9] = bodies[9][:6] + b"\x40\x05\x48\x01" + bodies[9][10:]
    body = b"".join(bodies)
    batch = check([batch_slice([b"abc"] * 20, [1 << 15] * 20, body=body)])
    assert batch.column("value").to_pylist()[8:11] == [b"abc", None, b"abc"]


def test_record_batch_one_size_without_sequence_id() -> None:
    batch = check([batch_slice([b"abc"] * 20, [7] * 20, body=b"\0\0\0\x04\x18\x03\x28\x05abc" * 20)])
    assert set(batch.column("__eventTime").to_pylist()) == {time_of(5)}


def test_record_batch_one_size_no_sequence_ids() -> None:
    check([batch_slice([b"abc"] * 20, [7] * 20, body=b"\0\0\0\x02\x18\x03abc" * 20)])


def test_record_batch_unterminated_sequence_id_raises() -> None:
    for count in (3, 20):
        part = batch_slice([b"abc"] * count, [7] * count, body=b"\0\0\0\x04\x18\x03\x40\x85abc" * count)
        for names in (ALL_COLUMNS, ("__key",)):
            with pytest.raises(InvalidMessage):
                record_batch([part], names, topic=TOPIC, partition=3)


def test_arrow_schema_equals_spark_schema() -> None:
    time = pa.timestamp("us", tz="UTC")
    expected = pa.schema(
        [
            pa.field("value", pa.binary(), True),
            pa.field("__key", pa.binary(), True),
            pa.field("__topic", pa.string(), True),
            pa.field("__messageId", pa.binary(), True),
            pa.field("__publishTime", time, True),
            pa.field("__eventTime", time, True),
            pa.field(
                "__messageProperties",
                pa.map_(pa.field("key", pa.string(), False), pa.field("value", pa.string(), True)),
                True,
            ),
            pa.field("__partition", pa.int32(), True),
            pa.field("__sequenceId", pa.int64(), True),
            pa.field("__producerName", pa.string(), True),
            pa.field("__ledgerId", pa.int64(), True),
            pa.field("__entryId", pa.int64(), True),
            pa.field("__batchIndex", pa.int32(), True),
            pa.field("__schemaVersion", pa.int64(), True),
        ]
    )
    for slices in ([], [single_slice(b"x")], [batch_slice([b"x"], [0])]):
        batch = record_batch(slices, topic=TOPIC, partition=3)
        assert batch.schema.equals(expected, check_metadata=True)
        assert batch.num_rows == len(slices)
    as_text = record_batch([single_slice("é".encode())], ("value",), topic=TOPIC, partition=3, value_type="string")
    assert as_text.schema.equals(pa.schema([pa.field("value", pa.string(), True)]))
    assert as_text.to_pylist() == [{"value": "é"}]


def test_record_batch_string_values_replace_bad_bytes() -> None:
    slices = [batch_slice([b"ok", b"\xff!", b""], [1, 2, 3], [b"", b"", b"\x48\x01"])]
    batch = record_batch(slices, ("value",), topic=TOPIC, partition=3, value_type="string")
    assert batch.column("value").to_pylist() == ["ok", "\ufffd!", None]


def test_record_batch_key_of_bytes_empty_missing() -> None:
    text = base64.b64encode(b"\x00\xff").decode()
    encoded = [
        encode_single_fields(None, text, True),
        encode_single_fields(partition_key=""),
        encode_single_fields(null_partition_key=True),
        encode_single_fields(None, "", True),
    ]
    batch = check([batch_slice([b"a", b"b", b"c", b"d"], [1, 2, 3, 4], encoded)])
    assert batch.column("__key").to_pylist() == [b"\x00\xff", b"", None, b""]
    own = {"partition_key": text, "partition_key_b64_encoded": True}
    assert check([single_slice(b"a", own)]).column("__key").to_pylist() == [b"\x00\xff"]


def test_record_batch_repeated_property_keeps_last() -> None:
    pair = b"\x0a\x06\x0a\x01k\x12\x01"
    batch = check([batch_slice([b"a"], [1], [pair + b"1" + pair + b"2"])])
    assert batch.column("__messageProperties").to_pylist() == [[("k", "2")]]


def test_record_batch_invalid_utf8() -> None:
    encoded = [b"\x12\x02\xff\xfe" + b"\x0a\x07\x0a\x01k\x12\x02\xffx"]
    batch = record_batch([batch_slice([b"a"], [1], encoded)], topic=TOPIC, partition=3)
    assert batch.column("__key").to_pylist() == [b"\xff\xfe"]
    assert batch.column("__messageProperties").to_pylist() == [[("k", "\ufffdx")]]


def test_record_batch_event_time_out_of_range_is_null() -> None:
    largest = (2**63 - 1) // 1000
    moments = [largest, largest + 1, U64, 0, 1]
    encoded = [encode_single_fields(event_time=moment) for moment in moments]
    names = ("__eventTime", "__publishTime")
    part = batch_slice([b"a"] * 5, range(5), encoded, publish_time=U64)
    batch = record_batch([part, single_slice(b"", {"event_time": U64})], names, topic=TOPIC, partition=3)
    micros = [value.value for value in batch.column("__eventTime")]
    assert micros == [largest * 1000, None, None, None, 1000, None]
    assert [value.value for value in batch.column("__publishTime")] == [*[None] * 5, NOW * 1000]


def test_record_batch_unsigned_ids() -> None:
    part = single_slice(b"x")
    part.ledger_id, part.entry_id = U64, (1 << 63) - 1
    batch = record_batch([part], ("__ledgerId", "__entryId", "__messageId"), topic=TOPIC, partition=-1)
    expected = MessageId(-1, -1, (1 << 63) - 1).serialize()
    assert batch.to_pylist() == [{"__ledgerId": -1, "__entryId": (1 << 63) - 1, "__messageId": expected}]


def test_record_batch_chunked_message_first_chunk_id() -> None:
    first = MessageId(3, 12, 4)
    batch = check([single_slice(b"whole", first_chunk=first)])
    (raw,) = batch.column("__messageId").to_pylist()
    assert MessageId.deserialize(raw).first_chunk_message_id() == first


def test_record_batch_beyond_index_table() -> None:
    count = 17_000
    check([batch_slice([b""] * count, range(count))], ("__messageId", "__batchIndex", "__sequenceId"))


def test_record_batch_column_order() -> None:
    names = ("__entryId", "value", "__topic")
    assert check([single_slice(b"x"), batch_slice([b"y", b"z"], [1, 2])], names).schema.names == list(names)


def test_record_batch_unknown_column_or_type_raises() -> None:
    with pytest.raises(ValueError, match="__nothing"):
        record_batch([], ("value", "__nothing"), topic=TOPIC, partition=3)
    with pytest.raises(ValueError, match="int32"):
        record_batch([], ("value",), topic=TOPIC, partition=3, value_type="int32")


def test_record_batch_malformed_batch_names_entry() -> None:
    good = encode_batch([b"abc"] * 3, range(3))
    for body, names in ((good[:-1], ALL_COLUMNS), (good[:-1], ("value",)), (b"\0\0\0\x04\x18\x00\xff\xff", ("__key",))):
        part = batch_slice([b"abc"] * 3, range(3), body=body, entry=9)
        part.last = 1 if len(body) == 8 else 3
        with pytest.raises(InvalidMessage, match=r"Entry 12:9 .*topic="):
            record_batch([single_slice(b"x"), part], names, topic=TOPIC, partition=3)


def test_record_batch_invalid_base64_key_names_entry() -> None:
    own = {"partition_key": "a", "partition_key_b64_encoded": True}
    encoded = [encode_single_fields(None, "a", True)]
    for part in (single_slice(b"x", own, entry=9), batch_slice([b"x"], [1], encoded, entry=9)):
        with pytest.raises(InvalidMessage, match=r"Entry 12:9 .*base64"):
            record_batch([single_slice(b"x"), part, single_slice(b"x")], topic=TOPIC, partition=3)


def test_rows_and_nbytes_of_slices() -> None:
    whole = batch_slice([bytes(96)] * 10, range(10))
    half = batch_slice([bytes(96)] * 10, range(10), first=5)
    skipping = batch_slice([bytes(96)] * 10, range(10), first=4, skip=b"\0" * 5 + b"\1" * 2 + b"\0" * 3)
    one = single_slice(bytes(50))
    assert [len(part) for part in (whole, half, skipping, one)] == [10, 5, 4, 1]
    assert [part.nbytes for part in (whole, half, skipping, one)] == [1040, 520, 416, 50]
    assert sum(map(len, (whole, half, one))) == 16
    assert len(single_slice(b"x", wanted=False)) == len(single_slice(b"x", skip=b"\1")) == 0
    check([whole, half, skipping, one, single_slice(b"x", skip=b"\1")])


def test_import_without_pyarrow_and_numpy() -> None:
    program = "import sys, pulsar_native.arrow.columns; print({'pyarrow', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "set()"
