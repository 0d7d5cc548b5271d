"""Avro messages: exchanged with the official client byte by byte, evolved, and hostile ones refused."""

from __future__ import annotations

import datetime
import decimal
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pulsar.schema as official
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_native.schema as ours
from pulsar_native.exceptions import InvalidConfiguration, TopicNotFound
from pulsar_native.schema import AvroSchema, InvalidRecord, SchemaInfo, SchemaType
from pulsar_native.schema.avro_schema import _flat_fields
from pulsar_native.wire import _impl as hot
from support.record_samples import DEFINITION, EVERY, MINE, POINT, THEIRS, VALUES
from support.record_twins import Color, plain

SCHEMA: Any = AvroSchema(MINE.record(EVERY))
PEER: Any = official.AvroSchema(THEIRS.record(EVERY))
BY_DEFINITION: Any = AvroSchema(schema_definition=MINE.record(EVERY).schema())


@given(VALUES)
def test_messages_are_exchanged_with_the_official_client(values: dict[str, Any]) -> None:
    mine = MINE.value(EVERY, values)
    encoded = SCHEMA.encode(mine)
    assert encoded == PEER.encode(THEIRS.value(EVERY, values))
    assert SCHEMA.decode(encoded) == mine
    assert plain(PEER.decode(encoded), official.Record) == plain(mine, ours.Record)


@given(VALUES)
def test_dictionaries_are_written_and_read_as_records_are(values: dict[str, Any]) -> None:
    encoded = SCHEMA.encode(MINE.value(EVERY, values))
    decoded = BY_DEFINITION.decode(encoded)
    assert decoded == official.AvroSchema(None, schema_definition=MINE.record(EVERY).schema()).decode(encoded)
    assert BY_DEFINITION.encode(decoded) == encoded


@given(st.binary(max_size=200))
def test_hostile_bytes_are_refused_or_read_but_nothing_else(data: bytes) -> None:
    for schema in (SCHEMA, BY_DEFINITION):
        try:
            schema.decode(data)
        except InvalidRecord as error:
            assert "does not fit the Avro schema" in str(error) or "Field" in str(error)


def test_values_that_do_not_fit() -> None:
    schema: Any = AvroSchema(MINE.record(POINT))
    values: list[Any] = [None, {}, MINE.record(EVERY)()]
    for value in values:
        with pytest.raises(InvalidRecord, match="of type Point, not"):
            schema.encode(value)

    class Strict(ours.Record):
        name = ours.String(required=True)

    with pytest.raises(InvalidRecord, match="on field name"):
        AvroSchema(Strict).encode(Strict())


def test_dictionaries_that_do_not_fit_are_errors_that_help() -> None:
    schema = AvroSchema(schema_definition=DEFINITION, ignore_unknown_fields=False)
    wrong: list[tuple[Any, str]] = [
        ({}, "Flight lacks the field 'carrier'"),
        ({"carrier": "UA", "delays": 3}, "did you mean 'delay'"),
        ({"carrier": "UA", "delay": 1.5}, r"Flight\.delay must be int, not float"),
        ({"carrier": "UA", "raw": "text"}, r"Flight\.raw must be bytes, not str"),
        ("text", "Flight must be a dict"),
    ]
    for row, message in wrong:
        with pytest.raises(InvalidRecord, match=message):
            schema.encode(row)
    lenient = AvroSchema(schema_definition=DEFINITION)
    row = {"carrier": "UA", "delay": None, "distance": 1.5, "raw": None}
    assert lenient.decode(lenient.encode({"carrier": "UA", "delays": 3})) == row


def test_a_record_class_wins_over_a_definition() -> None:
    schema = AvroSchema(MINE.record(POINT), DEFINITION)
    assert schema.schema_info().definition()["name"] == "Point"


def test_logical_types_of_dictionaries() -> None:
    fields = {
        "day": {"type": "int", "logicalType": "date"},
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "amount": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
        "id": {"type": "string", "logicalType": "uuid"},
    }
    definition = {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields.items()]}
    schema = AvroSchema(schema_definition=definition)
    row: dict[str, object] = {
        "day": datetime.date(2013, 1, 31),
        "at": datetime.datetime(2013, 1, 31, 5, 15, 0, 123456, tzinfo=datetime.UTC),
        "amount": decimal.Decimal("12.34"),
        "id": uuid.UUID(int=5),
    }
    assert schema.decode(schema.encode(row)) == row
    assert schema.decode(schema.encode({**row, "at": 1_000_000, "amount": None}))["at"] == datetime.datetime(
        1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC
    )


# ---- evolution -------------------------------------------------------------------------------------------------------


class Old(ours.Record):
    """What an old writer wrote."""

    a = ours.Integer()
    gone = ours.String()


class New(ours.Record):
    """What a new reader wants."""

    added = ours.String(default="none", required_default=True)
    a = ours.Long()


OLD: Any = AvroSchema(type("Flight", (ours.Record,), {"a": ours.Integer(), "gone": ours.String()}))
NEW_RECORD: Any = type(
    "Flight", (ours.Record,), {"added": ours.String(default="none", required_default=True), "a": ours.Long()}
)
NEW: Any = AvroSchema(NEW_RECORD)
V0, V1 = (0).to_bytes(8, "big"), (1).to_bytes(8, "big")


def test_a_message_is_read_with_the_schema_it_was_written_with() -> None:
    asked: list[bytes] = []

    def find(version: bytes) -> SchemaInfo:
        asked.append(version)
        return {V0: OLD, V1: NEW}[version].schema_info()  # type: ignore[no-any-return]

    bound = NEW.with_writer_schemas(find)
    record = OLD.decode(OLD.encode(type(OLD.decode(b"\x02\x06\x00"))(a=3, gone="x")))
    old_bytes, new_bytes = OLD.encode(record), NEW.encode(NEW_RECORD(a=4, added="y"))
    for _ in range(3):
        assert bound.decode_versioned(old_bytes, V0) == NEW_RECORD(a=3, added="none")
        assert bound.decode(new_bytes, V1) == NEW_RECORD(a=4, added="y")
    assert asked == [V0, V1]
    assert bound.decode(new_bytes) == bound.decode_versioned(new_bytes, None) == NEW_RECORD(a=4, added="y")
    assert bound.encode(NEW_RECORD(a=4, added="y")) == new_bytes
    with pytest.raises(InvalidRecord):
        NEW.decode_versioned(old_bytes, V0)  # not bound to a topic: taken for its own


def test_two_topics_keep_their_versions_apart() -> None:
    first = NEW.with_writer_schemas(lambda version: OLD.schema_info())
    second = NEW.with_writer_schemas(lambda version: NEW.schema_info())
    new_bytes = NEW.encode(NEW_RECORD(a=4, added="y"))
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: second.decode(new_bytes, V0).added, range(20))) == {"y"}
    assert first.decode(OLD.encode(OLD.decode(b"\x02\x06\x00")), V0) == NEW_RECORD(a=3)


def test_writers_that_do_not_fit() -> None:
    def missing(version: bytes) -> SchemaInfo:
        raise TopicNotFound("no such version")

    with pytest.raises(TopicNotFound):
        NEW.with_writer_schemas(missing).decode(b"", V0)
    text = NEW.with_writer_schemas(lambda version: SchemaInfo("STRING", SchemaType.STRING))
    with pytest.raises(InvalidRecord, match="kind STRING"):
        text.decode(b"", V0)
    other: Any = AvroSchema(type("Flight", (ours.Record,), {"a": ours.String(required=True)}))
    unfit = NEW.with_writer_schemas(lambda version: other.schema_info())
    with pytest.raises(InvalidRecord, match="SchemaResolutionError"):
        unfit.decode(b"\x02a", V0)


# ---- configuration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "definition",
    [
        {},
        {"type": "record"},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "enum"}]},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": "x"}]},
        {"type": "recrod", "name": "R", "fields": []},
    ],
)
def test_definitions_that_are_not_avro_are_refused_at_once(definition: dict[str, object]) -> None:
    with pytest.raises(InvalidConfiguration, match="not Avro"):
        AvroSchema(schema_definition=definition)


@pytest.mark.parametrize("arguments", [(), (None, "text"), (dict,), (3,)])
def test_unusable_arguments_are_refused_at_once(arguments: Any) -> None:
    with pytest.raises(InvalidConfiguration):
        AvroSchema(*arguments)


def test_without_fastavro_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['fastavro'] = None\n"
        "import pulsar_native.schema as s\n"
        "class R(s.Record): a = s.Integer()\n"
        "print(s.JsonSchema(R).encode(R(a=1)).decode())\n"
        "try: s.AvroSchema(R)\n"
        "except s.avro_schema.InvalidConfiguration as e: print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        '{"a":1}',
        "Avro schemas need the package fastavro: install pulsar-native[avro]",
    ]


def test_enumerations_travel_by_name() -> None:
    schema: Any = AvroSchema(MINE.record(POINT))
    assert schema.decode(schema.encode(MINE.record(POINT)(color=3))).color is Color.BLUE
    by_definition: Any = AvroSchema(schema_definition=MINE.record(POINT).schema())
    assert by_definition.decode(by_definition.encode({"x": 1, "color": Color.RED})) == {"x": 1, "color": "RED"}


# --- records of primitive fields, which the compiled codec reads and writes -----------------------------------------

LONG = st.integers(-(1 << 63), (1 << 63) - 1)
FITTING: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": LONG,
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=200),
    "string": st.text(max_size=80),
}
ODD = st.sampled_from([None, True, 1 << 31, 1 << 63, 1, 1e300, float("inf"), "\ud800", b"", bytearray(b"a"), Color.RED])
KINDS = st.tuples(st.sampled_from(list(FITTING)), st.sampled_from(["plain", "null first", "null last"]))


def flat_definition(kinds: list[tuple[str, str]]) -> dict[str, Any]:
    unions: dict[str, Callable[[str], Any]] = {
        "plain": lambda kind: kind, "null first": lambda kind: ["null", kind], "null last": lambda kind: [kind, "null"]
    }  # fmt: skip
    fields = [{"name": f"f{number}", "type": unions[where](kind)} for number, (kind, where) in enumerate(kinds)]
    return {"type": "record", "name": "Flat", "fields": fields}


def outcomes(call: Callable[[], Any]) -> set[str]:
    """Return what a call gives or raises, plain Python and compiled if built, as text: a NaN is not equal to itself."""
    found = set()
    for name in hot.available():
        hot.select(name)
        try:
            found.add(repr(call()))
        except InvalidRecord as error:
            # fastavro names the stream by its address.
            found.add(re.sub(r"0x\w+", "", f"InvalidRecord: {error}"))
        finally:
            hot.select(os.environ.get(hot.VARIABLE) or None)
    return found


@given(st.lists(KINDS, min_size=1, max_size=6), st.data())
def test_flat_records_the_same_compiled(kinds: list[tuple[str, str]], data: st.DataObject) -> None:
    schema: Any = AvroSchema(schema_definition=flat_definition(kinds))
    value = {
        f"f{number}": data.draw(FITTING[kind] if where == "plain" else FITTING[kind] | st.none())
        for number, (kind, where) in enumerate(kinds)
    }
    assert len(outcomes(lambda: schema.encode(value))) == 1
    encoded = schema.encode(value)
    assert len(outcomes(lambda: schema.decode(encoded))) == 1
    for damaged in (encoded[: data.draw(st.integers(0, len(encoded)))], encoded + b"\2", data.draw(st.binary())):
        assert len(outcomes(lambda damaged=damaged: schema.decode(damaged))) == 1  # type: ignore[misc]
    odd = {**value, f"f{data.draw(st.integers(0, len(kinds)))}": data.draw(ODD)}
    assert len(outcomes(lambda: schema.encode(odd))) == 1
    del value["f0"]
    assert len(outcomes(lambda: schema.encode(value))) == 1


def test_flat_records_need_no_fastavro_per_value(monkeypatch: pytest.MonkeyPatch) -> None:
    class Flight(ours.Record):
        carrier = ours.String()
        number = ours.Integer()
        delay = ours.Double()
        on_time = ours.Boolean()

    schema: Any = AvroSchema(Flight)
    value = Flight(carrier="UA", number=-7, delay=0.5, on_time=True)
    # Nothing of the package is called.
    monkeypatch.setattr(schema, "_fastavro", None)
    try:
        hot.select("python")
        with pytest.raises(InvalidRecord):
            schema.encode(value)
        if "compiled" in hot.available():
            hot.select("compiled")
            assert schema.decode(schema.encode(value)) == value
            assert schema.encode(Flight()) == b"\0\0\0\2\0" and schema.decode(b"\0\0\0\2\1").on_time is True
    finally:
        hot.select(os.environ.get(hot.VARIABLE) or None)


@pytest.mark.parametrize(
    "kind",
    [["null", {"type": "long", "logicalType": "timestamp-millis"}], ["string", "int"], ["null", "string", "int"],
     {"type": "array", "items": "int"}, ["null"]],
)  # fmt: skip
def test_flat_records_exclude_other_fields(kind: Any) -> None:
    definition = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": kind}]}
    assert _flat_fields(definition) is None
    assert _flat_fields({**definition, "fields": definition["fields"][:1]}) == (("a",), b"\2")
