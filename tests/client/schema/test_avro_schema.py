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
from functools import partial
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
from support.signals import TimeLimit, time_limit

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


@pytest.mark.parametrize(
    ("called", "step"),
    [
        ("schemaless_writer", lambda schema: schema.encode({"a": [1]})),
        ("schemaless_reader", lambda schema: schema.decode(b"\x02\x02\x00")),
        ("schemaless_reader", lambda schema: schema.decode_many([b"\x02\x02\x00"], None)),
        ("schemaless_reader", lambda schema: schema.validate(b"\x02\x02\x00")),
    ],
    ids=["encode", "decode", "decode_many", "validate"],
)
def test_avro_ended_by_time_limit_raises_it(
    called: str, step: Callable[[AvroSchema[Any]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    field = {"name": "a", "type": {"type": "array", "items": "int"}}
    schema = AvroSchema(None, schema_definition={"type": "record", "name": "R", "fields": [field]})
    step(schema)
    with time_limit() as interrupted, pytest.raises(TimeLimit):
        monkeypatch.setattr(schema._fastavro, called, interrupted)
        step(schema)


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


class OwnDecode(AvroSchema[Any]):
    """A `decode` as the official client's has it, which is not given the version."""

    def decode(self, data: bytes) -> Any:  # type: ignore[override]
        """Return the value in a list."""
        return [super().decode(data)]


class OwnDecodeOfVersion(AvroSchema[Any]):
    """A `decode` that is given the version."""

    def decode(self, data: bytes, schema_version: bytes | None = None) -> Any:
        """Return the version and the value."""
        return schema_version, super().decode(data, schema_version)


def test_subclass_decode_reads_writers_versions() -> None:
    bound = OwnDecode(NEW_RECORD).with_writer_schemas(lambda v: {V0: OLD, V1: NEW}[v].schema_info())
    old_bytes, new_bytes = OLD.encode(OLD.decode(b"\x02\x06\x00")), NEW.encode(NEW_RECORD(a=4, added="y"))
    for _ in range(2):
        assert bound.decode_versioned(old_bytes, V0) == [NEW_RECORD(a=3, added="none")]
        assert bound.decode_versioned(new_bytes, V1) == [NEW_RECORD(a=4, added="y")]
    assert bound.decode_many([new_bytes, None], V1) == [[NEW_RECORD(a=4, added="y")], None]
    assert bound.decode(new_bytes) == bound.decode_versioned(new_bytes, None) == [NEW_RECORD(a=4, added="y")]
    other = bound.with_writer_schemas(lambda version: NEW.schema_info())
    assert other.decode_versioned(new_bytes, V0) == [NEW_RECORD(a=4, added="y")]


def test_subclass_decode_of_dictionaries_is_called() -> None:
    schema = OwnDecode(None, NEW_RECORD.schema())
    assert schema.decode_many([NEW.encode(NEW_RECORD(a=4, added="y"))], V1) == [[{"added": "y", "a": 4}]]


def test_subclass_decode_with_a_version_is_given_it() -> None:
    bound = OwnDecodeOfVersion(NEW_RECORD).with_writer_schemas(lambda version: NEW.schema_info())
    new_bytes = NEW.encode(NEW_RECORD(a=4, added="y"))
    assert bound.decode_versioned(new_bytes, V1) == (V1, NEW_RECORD(a=4, added="y"))


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


INNER: dict[str, Any] = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}


def _named(name: str, *fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, **more, "fields": [{"name": field, "type": kind} for field, kind in fields]}


@pytest.mark.parametrize(
    ("writer", "reader", "row"),
    [
        pytest.param(
            _named("Order", ("p", INNER), ("q", "a.b.I"), namespace="a.b"),
            _named("Order", ("p", INNER), ("q", "I")),
            {"p": {"x": 1}, "q": {"x": 2}},
            id="full-name-reference",
        ),
        pytest.param(
            _named("a.b.Node", ("v", "int"), ("n", ["null", "a.b.Node"])),
            _named("Tree", ("v", "long"), ("n", ["null", "Tree"])),
            {"v": 1, "n": {"v": 2, "n": None}},
            id="refers-to-itself-by-full-name",
        ),
        pytest.param(
            _named("Node", ("v", "int"), ("n", ["null", "Node"]), namespace="a.b"),
            _named("x.y.Tree", ("n", ["null", "x.y.Tree"])),
            {"n": {"n": None}},
            id="refers-to-itself",
        ),
        pytest.param(
            _named("value", ("value", "int"), doc="the value"),
            _named("R", ("value", "long")),
            {"value": 1},
            id="field-of-the-record's-name",
        ),
        pytest.param(
            _named("Order", ("p", _named("R", ("x", "int"))), ("q", "R")),
            _named("R", ("p", _named("b.R", ("x", "int"))), ("q", "b.R")),
            {"p": {"x": 1}, "q": {"x": 2}},
            id="inner-record-of-the-reader's-name",
        ),
    ],
)
def test_writer_of_other_names_read(writer: dict[str, Any], reader: dict[str, Any], row: dict[str, Any]) -> None:
    wrote, reads = AvroSchema(writer), AvroSchema(reader)
    full = {"v": 1, "n": {"v": 2, "n": None}} if "v" not in row and "n" in row else row
    bound = reads.with_writer_schemas(lambda version: wrote.schema_info())
    assert bound.decode(wrote.encode(full), V0) == row
    # Its own messages are read as before, also with a version.
    own = reads.with_writer_schemas(lambda version: reads.schema_info())
    assert own.decode(reads.encode(row), V1) == row


@pytest.mark.parametrize(
    ("writer", "is_same"),
    [
        pytest.param(_named("Purchase", ("p", INNER), ("q", "a.I"), namespace="a", doc="x"), True, id="other-root"),
        pytest.param(_named("Order", ("p", {**INNER, "name": "b.I"}), ("q", "b.I")), True, id="other-namespace"),
        pytest.param(_named("Order", ("p", INNER), ("q", "I"), ("more", "int")), False, id="other-fields"),
    ],
)
def test_writer_of_same_fields_unresolved(writer: dict[str, Any], is_same: bool) -> None:
    schema = AvroSchema(_named("Order", ("p", INNER), ("q", "I")))
    bound = schema.with_writer_schemas(lambda version: AvroSchema(writer).schema_info())
    row = {"p": {"x": 1}, "q": {"x": 2}}
    assert bound.decode(AvroSchema(writer).encode({**row, "more": 3}), V0) == row
    # Resolving takes twice the time.
    assert (bound._writer_and_reader(V0) == (schema._parsed, None)) is is_same


def test_writer_of_two_types_for_one_resolved() -> None:
    schema = AvroSchema(_named("Order", ("p", INNER), ("q", "I")))
    writer = AvroSchema(_named("Order", ("p", INNER), ("q", {**INNER, "name": "b.I"})))
    bound = schema.with_writer_schemas(lambda version: writer.schema_info())
    assert bound._writer_and_reader(V0) == (writer._parsed, schema._parsed)


def test_writer_inner_record_other_name_refused() -> None:
    writer = AvroSchema(_named("O", ("p", INNER)))
    reader = AvroSchema(_named("O", ("p", {**INNER, "name": "J"})))
    with pytest.raises(InvalidRecord, match="SchemaResolutionError"):
        reader.with_writer_schemas(lambda version: writer.schema_info()).decode(writer.encode({"p": {"x": 1}}), V0)


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


# --- unions -----------------------------------------------------------------------------------------------------------


def record_of(name: str, *fields: Any, **more: Any) -> dict[str, Any]:
    """Return a record of fields: a name is an int, a pair is a name and a type, a triple has a default too."""
    named = [(field, "int") if isinstance(field, str) else field for field in fields]
    return {
        "type": "record",
        "name": name,
        "fields": [dict(zip(("name", "type", "default"), field, strict=False)) for field in named],
        **more,
    }


NOTE = record_of("Note", "id", ("note", ["null", "string"], None))
PAYMENT = record_of("Payment", "id", ("amount", "double"))
PAID: dict[str, object] = {"id": 1, "amount": 9.5}
HOLDERS: dict[str, tuple[Any, Any]] = {
    "field": ([NOTE, PAYMENT], PAID),
    "nullable": (["null", NOTE, PAYMENT], PAID),
    "array": ({"type": "array", "items": [NOTE, PAYMENT]}, [PAID, {"id": 2, "note": "n"}]),
    "map": ({"type": "map", "values": [NOTE, PAYMENT]}, {"k": PAID}),
    "nested": (record_of("Inner", ("f", [NOTE, PAYMENT])), {"f": PAID}),
    "nullable-nested": (["null", record_of("Inner", ("f", [NOTE, PAYMENT]))], {"f": PAID}),
    "nullable-array": (["null", {"type": "array", "items": [NOTE, PAYMENT]}], [PAID]),
    "nested-fields": ([record_of("A", ("p", NOTE)), record_of("B", ("p", PAYMENT))], {"p": PAID}),
    "union-in-union": ([record_of("A", ("p", NOTE)), record_of("B", ("p", ["Note", PAYMENT]))], {"p": PAID}),
}


def union_schemas(union: Any, **options: Any) -> tuple[Any, Any]:
    """Return the schema of a record whose field f is of this type, and the official client's."""
    definition = record_of("R", ("f", union), namespace="a.b")
    return AvroSchema(schema_definition=definition, **options), official.AvroSchema(None, schema_definition=definition)


@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_union_takes_the_record_with_all_fields(holder: str, strict: bool) -> None:
    union, value = HOLDERS[holder]
    schema, _ = union_schemas(union, ignore_unknown_fields=not strict)
    assert schema.decode(schema.encode({"f": value}))["f"] == value


@pytest.mark.parametrize("separated", [False, True], ids=["inline", "separated"])
def test_union_in_key_value(separated: bool) -> None:
    part, _ = union_schemas([NOTE, PAYMENT])
    kind = ours.KeyValueEncodingType
    pair = ours.KeyValueSchema(part, part, kind.SEPARATED if separated else kind.INLINE)
    value = ours.KeyValue({"f": PAID}, {"f": PAID})
    if separated:
        assert pair.decode_separated(*pair.encode_separated(value), None) == value
    else:
        assert pair.decode(pair.encode(value)) == value


FIELD = st.tuples(st.sampled_from("abcde"), st.just("int")) | st.tuples(
    st.sampled_from("abcde"), st.just("int"), st.just(7)
)
FIELDS = st.lists(FIELD, max_size=4, unique_by=lambda field: field[0])
EXTRA = st.sampled_from(["null", "int", {"type": "map", "values": "int"}, {"type": "map", "values": "string"}])


@given(
    st.lists(FIELDS, min_size=1, max_size=4),
    st.none() | EXTRA,
    st.dictionaries(st.sampled_from("abcdef"), st.integers(-99, 99)),
    st.data(),
)
def test_union_chosen_as_by_official(
    records: list[list[Any]], extra: Any, value: dict[str, int], data: st.DataObject
) -> None:
    union: list[Any] = [record_of(f"R{number}", *fields) for number, fields in enumerate(records)]
    if extra is not None:
        union.insert(data.draw(st.integers(0, len(union))), extra)
    schema, peer = union_schemas(union)
    try:
        expected = peer.encode({"f": value})
    except ValueError:
        with pytest.raises(InvalidRecord):
            schema.encode({"f": value})
    else:
        assert schema.encode({"f": value}) == expected


CHOICES: dict[str, tuple[Any, Any, Any]] = {
    "record": ([NOTE, PAYMENT], ("a.b.Payment", PAID), PAID),
    "smaller-record": ([NOTE, record_of("Id", "id")], ("a.b.Id", {"id": 1}), {"id": 1}),
    "nullable-record": (["null", NOTE], ("a.b.Note", {"id": 1}), {"id": 1, "note": None}),
    "type-key": ([NOTE, record_of("Id", "id")], {"-type": "a.b.Id", "id": 1}, {"id": 1}),
    "type-key-nullable": (["null", PAYMENT], {"-type": "a.b.Payment", **PAID}, PAID),
    "null": (["null", "int"], ("null", None), None),
    "nullable-string": (["null", "string"], ("string", "s"), "s"),
    "long": (["int", "long"], ("long", 5), 5),
    "float": (["float", "double"], ("float", 0.1), pytest.approx(0.1)),
    "enum": (["string", {"type": "enum", "name": "E", "symbols": ["X"]}], ("a.b.E", "X"), "X"),
    "array": (["null", {"type": "array", "items": "int"}], ("array", [1]), [1]),
    "map": ([PAYMENT, {"type": "map", "values": "double"}], ("map", PAID), {"id": 1.0, "amount": 9.5}),
    "type-key-of-a-map": ([PAYMENT, {"type": "map", "values": "string"}], {"-type": "x"}, {"-type": "x"}),
}


@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
@pytest.mark.parametrize("choice", CHOICES)
def test_union_explicit_choice(choice: str, strict: bool) -> None:
    union, value, decoded = CHOICES[choice]
    schema, peer = union_schemas(union, ignore_unknown_fields=not strict)
    encoded = schema.encode({"f": value})
    assert encoded == peer.encode({"f": value})
    assert schema.decode(encoded)["f"] == decoded
    items = {"type": "array", "items": union}
    schema, peer = union_schemas(items, ignore_unknown_fields=not strict)
    assert schema.encode({"f": [value]}) == peer.encode({"f": [value]})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (("a.b.Payment", {"id": 1}), r"^R\.f lacks the field 'amount'"),
        (("a.b.Payment", {"id": 1, "amount": "x"}), r"^R\.f\.amount must be double, not str$"),
        (("a.b.Other", PAID), r"^R\.f must be a dict for a\.b\.Note, not tuple, and must be a dict for a\.b\.Payment"),
        (("Payment", PAID, 1), "not tuple"),
        ({"-type": "a.b.Other", **PAID}, r"^R\.f must be a dict for a\.b\.Note, not for 'a\.b\.Other', and"),
    ],
    ids=["missing", "wrong-type", "unknown-name", "no-pair", "unknown-type-key"],
)
def test_union_explicit_choice_refused(value: Any, message: str) -> None:
    schema, _ = union_schemas([NOTE, PAYMENT])
    with pytest.raises(InvalidRecord, match=message):
        schema.encode({"f": value})


def test_union_tuple_as_a_list_is_kept() -> None:
    schema, _ = union_schemas(["null", {"type": "array", "items": "string"}])
    for value in (("null", "a"), ("array", "a"), ("a", "b"), ("a",), ()):
        assert schema.decode(schema.encode({"f": value}))["f"] == list(value)


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
    ("kind", "value"),
    [("int", 5), (["null", "string"], "x"), ({"type": "array", "items": "int"}, [5])],
    ids=["flat", "nullable", "array"],
)
def test_exact_refuses_bytes_after_the_record(kind: Any, value: Any) -> None:
    fields = [{"name": "a", "type": "int"}, {"name": "b", "type": kind}]
    both: Any = AvroSchema({"type": "record", "name": "R", "fields": fields})
    first: Any = AvroSchema({"type": "record", "name": "R", "fields": fields[:1]})
    data = both.encode({"a": 1, "b": value})
    # The second reads what the first has written.
    for schema, read in (
        (both, {"a": 1, "b": value}),
        (first.with_writer_schemas(lambda _: both.schema_info()), {"a": 1}),
    ):
        exact = schema.exact()
        for decode in (partial(schema.decode, data + b"\2", V0), partial(exact.decode, data, V0)):
            assert outcomes(decode) == {repr(read)}
        assert outcomes(partial(exact.decode_many, [data, None], V0)) == {repr([read, None])}
        for decode in (partial(exact.decode, data + b"\2", V0), partial(exact.decode_many, [data + b"\2"], V0)):
            (refused,) = outcomes(decode)
            assert refused.endswith("does not fit the Avro schema: bytes after the record: 1 (ValueError)")
    assert outcomes(partial(first.decode, data)) == {"{'a': 1}"}
    (refused,) = outcomes(partial(first.exact().decode, data))
    assert refused.startswith("InvalidRecord: ")


@pytest.mark.parametrize(
    "kind",
    [["null", {"type": "long", "logicalType": "timestamp-millis"}], ["string", "int"], ["null", "string", "int"],
     {"type": "array", "items": "int"}, ["null"]],
)  # fmt: skip
def test_flat_records_exclude_other_fields(kind: Any) -> None:
    definition = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": kind}]}
    assert _flat_fields(definition) is None
    assert _flat_fields({**definition, "fields": definition["fields"][:1]}) == (("a",), b"\2")
