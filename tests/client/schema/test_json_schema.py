"""JSON messages: exchanged with the official client both ways, and dictionaries checked against their definition."""

from __future__ import annotations

import json
from typing import Any

import pulsar.schema as official
import pytest
from hypothesis import given

import pulsar_native.schema as ours
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema import InvalidRecord, JsonSchema, SchemaType
from support.record_samples import DEFINITION, EVERY, MINE, POINT, THEIRS, VALUES
from support.record_twins import Color, plain

SCHEMA: Any = JsonSchema(MINE.record(EVERY))
PEER: Any = official.JsonSchema(THEIRS.record(EVERY))


@given(VALUES)
def test_messages_are_exchanged_with_the_official_client(values: dict[str, Any]) -> None:
    mine, theirs = MINE.value(EVERY, values), THEIRS.value(EVERY, values)
    encoded, official_bytes = SCHEMA.encode(mine), PEER.encode(theirs)
    assert json.loads(encoded) == json.loads(official_bytes)
    assert list(json.loads(encoded)) == list(json.loads(official_bytes))
    assert SCHEMA.decode(official_bytes) == mine
    read_by_peer = plain(PEER.decode(encoded), official.Record)
    assert read_by_peer == plain(mine, ours.Record) == plain(PEER.decode(official_bytes), official.Record)


def test_messages_are_compact() -> None:
    class Small(ours.Record):
        a = ours.String()
        b = ours.Integer()

    assert JsonSchema(Small).encode(Small(a="\u00fc", b=1)) == '{"a":"\u00fc","b":1}'.encode()


@pytest.mark.parametrize(
    "data",
    [
        b' {"x": 1}\n',
        b'\t{"x": 1} ',
        '\ufeff{"x": 1}'.encode(),
        '{"x": 1}'.encode("utf-16"),
        '{"x": 1}'.encode("utf-32-be"),
        b'{"x": 5, "x": 1}',
    ],
)
def test_messages_in_other_encodings_are_read(data: bytes) -> None:
    record = MINE.record(POINT)
    assert JsonSchema(record).decode(data) == record(x=1)


def test_messages_with_text_behind_the_object_do_not_fit() -> None:
    for data in (b'{"x": 1}{"x": 2}', b'{"x": 1} end', b'{"x": 1},', b'\xed\xa0\x80{"x": 1}'):
        with pytest.raises(InvalidRecord, match="not JSON"):
            JsonSchema(MINE.record(POINT)).decode(data)


def test_what_newer_and_older_writers_send() -> None:
    record = MINE.record(POINT)
    schema: Any = JsonSchema(record)
    assert schema.decode(b'{"x": 1, "color": "GREEN", "age": 3}') == record(x=1, color=Color.GREEN)
    assert schema.decode(b"{}") == record()
    assert schema.decode(memoryview(b'{"x": 1}')) == schema.decode('{"x": 1}') == record(x=1)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b"3", b"\xff", b'{"x": "text"}', b'{"color": "PINK"}', b"[" * 100_000]
)
def test_messages_that_do_not_fit(data: bytes) -> None:
    with pytest.raises(InvalidRecord) as caught:
        JsonSchema(MINE.record(POINT)).decode(data)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, TypeError)


def test_values_that_do_not_fit() -> None:
    schema: Any = JsonSchema(MINE.record(POINT))
    values: list[Any] = [None, {}, 3, MINE.record(EVERY)()]
    for value in values:
        with pytest.raises(InvalidRecord, match="of type Point, not"):
            schema.encode(value)
    binary = MINE.record(EVERY)(bytes=b"\xff")
    with pytest.raises(InvalidRecord, match="cannot be written in JSON"):
        SCHEMA.encode(binary)


def test_a_record_made_by_a_child_class_fits() -> None:
    record = MINE.record(POINT)
    child: Any = type("Child", (record,), {"x": ours.Integer()})
    schema: Any = JsonSchema(record)
    assert json.loads(schema.encode(child(x=1))) == {"x": 1}


# ---- dictionaries ----------------------------------------------------------------------------------------------------


def test_dictionaries_with_a_definition() -> None:
    schema = JsonSchema(schema_definition=DEFINITION)
    row: dict[str, object] = {"carrier": "UA", "delay": 3, "distance": 2, "raw": b"ab"}
    assert schema.encode(row) == b'{"carrier":"UA","delay":3,"distance":2,"raw":"ab"}'
    assert schema.decode(schema.encode(row)) == {**row, "raw": "ab"}
    assert schema.encode({"carrier": "UA"}) == b'{"carrier":"UA","delay":null,"distance":1.5,"raw":null}'
    info = schema.schema_info()
    assert (info.name(), info.type, info.definition()) == ("JSON", SchemaType.JSON, DEFINITION)
    assert info.data == json.dumps(DEFINITION, indent=1).encode()


def test_dictionaries_that_do_not_fit_are_errors_that_help() -> None:
    schema = JsonSchema(schema_definition=DEFINITION)
    wrong: list[tuple[dict[str, object], str]] = [
        ({}, "Flight lacks the field 'carrier'"),
        ({"carrier": "UA", "delays": 3}, "has the field 'delays'.*did you mean 'delay'"),
        ({"carrier": 3}, r"Flight\.carrier must be string, not int"),
        ({"carrier": "UA", "delay": 2**31}, r"Flight\.delay is 2147483648, out of the range of int"),
    ]
    for row, message in wrong:
        with pytest.raises(InvalidRecord, match=message):
            schema.encode(row)
    lenient = JsonSchema(schema_definition=DEFINITION, ignore_unknown_fields=True)
    assert b"delays" not in lenient.encode({"carrier": "UA", "delays": 3})


@pytest.mark.parametrize("arguments", [(), (None, None), (None, "text"), (dict,), (3,), (object(),)])
def test_unusable_arguments_are_refused_at_once(arguments: Any) -> None:
    with pytest.raises(InvalidConfiguration):
        JsonSchema(*arguments)


def test_a_consumer_needs_no_valid_definition() -> None:
    """Topics of very old Java clients have another kind of definition; reading needs none."""
    schema = JsonSchema(schema_definition={"type": "object", "id": "urn:x"})
    assert schema.decode(b'{"a": 1}') == {"a": 1}
    with pytest.raises(InvalidConfiguration, match="unknown type 'object'"):
        schema.encode({"a": 1})
