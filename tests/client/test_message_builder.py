"""Messages built from the arguments of send: checked, refused by name, encoded."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from pulsar_native import _message_builder
from pulsar_native.config import ProducerConfig
from pulsar_native.exceptions import InvalidMessage
from pulsar_native.message import OutgoingMessage
from pulsar_native.schema import (
    AvroSchema,
    JsonSchema,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    LocalDateTimeSchema,
    StringSchema,
)
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.codec import parse_single
from support.encodes_to import EncodesTo

NOTHING: dict[str, Any] = {
    "properties": None,
    "partition_key": None,
    "ordering_key": None,
    "sequence_id": None,
    "replication_clusters": None,
    "disable_replication": False,
    "event_timestamp": None,
    "deliver_at": None,
    "deliver_after": None,
}


def outgoing(payload: bytes | None = b"x", **parts: Any) -> OutgoingMessage:
    return _message_builder.outgoing(payload, **{**NOTHING, **parts})


def test_a_plain_message() -> None:
    message = outgoing(b"abc")
    assert message.payload == b"abc" and message.is_plain and not message.needs_own_entry
    assert _message_builder.encoded_fields(message) == b""


def test_a_null_value() -> None:
    message = outgoing(None)
    assert (message.payload, message.null_value, message.is_plain) == (b"", True, False)
    assert parse_single(_message_builder.encoded_fields(message) + b"\x18\x00").null_value


def test_a_message_with_everything() -> None:
    message = outgoing(
        b"abc",
        properties={"a": "1", "é": "2"},
        partition_key="key",
        ordering_key="ord",
        sequence_id=7,
        replication_clusters=["west"],
        event_timestamp=123,
        deliver_at=999,
    )
    assert (message.sequence_id, message.replicate_to, message.deliver_at) == (7, ["west"], 999)
    assert message.needs_own_entry and not message.is_plain
    single = parse_single(_message_builder.encoded_fields(message) + b"\x18\x03")
    assert {pair.key: pair.value for pair in single.properties} == {"a": "1", "é": "2"}
    assert (single.partition_key, single.partition_key_b64_encoded) == ("key", False)
    assert (single.ordering_key, single.event_time, single.null_value) == (b"ord", 123, False)


def test_a_key_of_bytes_travels_as_base64() -> None:
    message = outgoing(partition_key=b"key1")
    # The text that is hashed to the partition, too.
    assert (message.partition_key, message.key_is_base64) == ("a2V5MQ==", True)
    assert parse_single(_message_builder.encoded_fields(message) + b"\x18\x01").partition_key_b64_encoded
    assert outgoing(partition_key="").partition_key == "" and not outgoing(partition_key="").is_plain


def test_replication_off() -> None:
    assert outgoing(disable_replication=True).replicate_to == ["__local__"]


def test_options_unused_warn_once(caplog: pytest.LogCaptureFixture) -> None:
    _message_builder._warn_of_unused.cache_clear()
    for _ in range(2):
        assert outgoing(disable_replication=True, replication_clusters=["west"]).replicate_to == ["__local__"]
        assert (outgoing(deliver_at=1, deliver_after=5000).deliver_at or 0) > 5000
    assert [record.args for record in caplog.records] == [
        ("replication_clusters", "disable_replication"),
        ("deliver_at", "deliver_after"),
    ]
    with pytest.raises(InvalidMessage, match="deliver_at"):
        outgoing(deliver_at=-1, deliver_after=1)


def test_delays() -> None:
    for delay in (timedelta(seconds=5), 5000):
        before = time.time_ns() // 1_000_000
        at = outgoing(deliver_after=delay).deliver_at
        assert at is not None and before + 5000 <= at <= time.time_ns() // 1_000_000 + 5000
    assert outgoing(deliver_at=0).needs_own_entry


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"properties": {"a": 1}}, "properties must be a mapping of str to str"),
        ({"properties": {b"a": "1"}}, "properties must be a mapping of str to str"),
        ({"properties": [("a", "1")]}, "properties must be a mapping of str to str"),
        ({"partition_key": 5}, "partition_key must be str or bytes, not int"),
        ({"ordering_key": b"o"}, "ordering_key must be str, not bytes"),
        ({"sequence_id": -1}, "sequence_id must be a non-negative int"),
        ({"sequence_id": True}, "sequence_id must be a non-negative int"),
        ({"sequence_id": 1.0}, "sequence_id must be a non-negative int"),
        ({"sequence_id": 1 << 63}, "sequence_id must be a non-negative int"),
        ({"event_timestamp": -5}, "event_timestamp must be a non-negative int"),
        ({"event_timestamp": 1 << 64}, "event_timestamp must be a non-negative int"),
        ({"deliver_at": "soon"}, "deliver_at must be"),
        ({"deliver_at": 1 << 63}, "deliver_at must be"),
        ({"deliver_after": "soon"}, "deliver_after must be"),
        ({"replication_clusters": "west"}, "replication_clusters must be a list of str"),
        ({"replication_clusters": [1]}, "replication_clusters must be a list of str"),
        ({"replication_clusters": ["west", "\ud800"]}, "replication_clusters cannot be written as UTF-8"),
    ],
)
def test_wrong_parts_are_refused_before_anything_is_sent(parts: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidMessage, match=told):
        outgoing(**parts)


def test_encoded_fields_are_those_of_the_protocol() -> None:
    message = outgoing(properties={"a": "b"}, event_timestamp=5)
    expected = pb.SingleMessageMetadata(properties=[pb.KeyValue(key="a", value="b")], event_time=5, payload_size=1)
    assert parse_single(_message_builder.encoded_fields(message) + b"\x18\x01") == expected


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("payload", "text", "payload must be bytes, not str"),
        ("payload", None, "payload must be bytes, not NoneType"),
        ("properties", {"a": 5}, "properties must be a mapping"),
        ("partition_key", 5, "partition_key must be str or bytes"),
        ("ordering_key", 5, "ordering_key must be str"),
        ("sequence_id", "1", "sequence_id must be"),
        ("event_timestamp", "1", "event_timestamp must be"),
        ("deliver_at", "1", "deliver_at must be"),
        ("replicate_to", "eu", "replication_clusters must be a list"),
        ("schema_version", "1", "schema_version must be bytes"),
    ],
)
def test_intercepted_message_invalid_refused(field: str, value: Any, reason: str) -> None:
    message = outgoing(b"x")
    setattr(message, field, value)
    with pytest.raises(InvalidMessage, match=f"An interceptor made the message invalid: {reason}"):
        _message_builder.intercepted_fields(message)


def test_intercepted_message_bytes_taken_as_those_of_send() -> None:
    message = outgoing(b"x", ordering_key="o")
    payload: Any = bytearray(b"y")
    message.payload, message.partition_key, message.ordering_key = payload, b"\0", b"o"  # type: ignore[assignment]
    single = parse_single(_message_builder.intercepted_fields(message) + b"\x18\x01")
    assert (message.payload, type(message.payload)) == (b"y", bytes)
    assert (single.partition_key, single.partition_key_b64_encoded) == ("AA==", True)


def test_values_by_schemas_of_any_kind() -> None:
    pairs = KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)
    inline = KeyValueSchema(StringSchema(), StringSchema())
    assert _message_builder.encoded(StringSchema(), "v", "k") == (b"v", "k", False)
    assert _message_builder.encoded(StringSchema(), None, "k") == (None, "k", False)
    assert _message_builder.encoded(pairs, KeyValue("k", "v"), None) == (b"v", b"k", False)
    assert _message_builder.encoded(pairs, KeyValue(None, None), None) == (None, None, True)
    assert _message_builder.encoded(pairs, None, None) == (None, None, False)
    assert _message_builder.encoded(inline, KeyValue(None, "v"), "k") == (b"\xff" * 4 + b"\0\0\0\x01v", "k", False)
    with pytest.raises(InvalidMessage, match="partition_key must not be given"):
        _message_builder.encoded(pairs, KeyValue("k", "v"), "k")


def test_payload_of_a_separating_schema_checked() -> None:
    pairs = KeyValueSchema(StringSchema(), EncodesTo(bytearray(b"v")), KeyValueEncodingType.SEPARATED)
    payload, _, _ = _message_builder.encoded(pairs, KeyValue("k", b""), None)
    assert payload == b"v" and type(payload) is bytes
    wrong = KeyValueSchema(StringSchema(), EncodesTo(5), KeyValueEncodingType.SEPARATED)
    with pytest.raises(InvalidRecord, match="must be bytes, not int"):
        _message_builder.encoded(wrong, KeyValue("k", b""), None)


def test_a_null_key_stands_in_the_message() -> None:
    message = outgoing(b"v", null_partition_key=True, schema_version=b"\1")
    assert message.null_partition_key and message.schema_version == b"\1"
    fields = pb.SingleMessageMetadata.FromString(_message_builder.encoded_fields(message) + b"\x18\0")
    assert fields.null_partition_key and not fields.HasField("partition_key")


# ---- rows of tables --------------------------------------------------------------------------------------------------

_AT = datetime(2026, 1, 2, 3, 4, 5)
_TIMES = pa.table(
    {
        "at": pa.array([_AT], pa.timestamp("ms")),
        "ats": pa.array([[_AT]], pa.list_(pa.timestamp("us"))),
        "in": pa.array([{"at": _AT}], pa.struct({"at": pa.timestamp("ms")})),
    }
)


def payloads(table: pa.Table, schema: Any, value: Any) -> list[bytes]:
    """Return the payloads of a table's rows."""
    options: dict[str, Any] = {"value": value, "key": None, "properties": (), "event_time": None}
    slices = _message_builder.table_slices(table, schema, ProducerConfig(topic="t"), **options)
    return [payload for part in slices for payload in part.payloads]


@pytest.mark.usefixtures("west_of_utc")
def test_table_slices_naive_times_of_avro_in_utc() -> None:
    kind = {"type": "long", "logicalType": "timestamp-millis"}
    inner = {"type": "record", "name": "S", "fields": [{"name": "at", "type": kind}]}
    kinds = {"at": kind, "ats": {"type": "array", "items": kind}, "in": inner}
    fields = [{"name": name, "type": each} for name, each in kinds.items()]
    schema = AvroSchema(None, {"type": "record", "name": "R", "fields": fields})
    at = _AT.replace(tzinfo=UTC)
    (payload,) = payloads(_TIMES, schema, list(kinds))
    assert schema.decode(payload) == {"at": at, "ats": [at], "in": {"at": at}}
    single = AvroSchema(None, inner)
    (payload,) = payloads(_TIMES, single, "in")
    assert single.decode(payload) == {"at": at}


def test_table_slices_local_times_stay_naive() -> None:
    (payload,) = payloads(_TIMES, LocalDateTimeSchema(), "at")
    assert LocalDateTimeSchema().decode(payload) == _AT


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_table_slices_maps_are_dicts(kind: Any) -> None:
    field = {"name": "m", "type": {"type": "map", "values": "string"}}
    schema = kind(None, {"type": "record", "name": "R", "fields": [field]})
    table = pa.table({"m": pa.array([[("a", "1"), ("b", "2")]], pa.map_(pa.string(), pa.string()))})
    (payload,) = payloads(table, schema, ["m"])
    assert schema.decode(payload) == {"m": {"a": "1", "b": "2"}}
