"""Fields: what each takes and keeps, held against the official client's fields where these are right."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import fastavro
import pulsar.schema as official
import pytest

import pulsar_native.schema as ours
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema import InvalidRecord
from support.record_twins import Color, Fruit

SCALARS = ["Null", "Boolean", "Integer", "Long", "Float", "Double", "Bytes", "String"]


def holder(field: Any, module: Any = ours) -> Any:
    """Return a record class with one field x."""
    return type(module.Record)("Holder", (module.Record,), {"x": field})


def definition(field: Any) -> object:
    """Return the entry of the field in a record's definition."""
    return holder(field).schema()["fields"][0]


@pytest.mark.parametrize("name", SCALARS)
def test_types_are_named_as_in_the_official_client(name: str) -> None:
    mine, theirs = getattr(ours, name)(), getattr(official, name)()
    assert mine.type() == theirs.type() == mine.schema()
    assert holder(mine).schema() == holder(theirs, official).schema()


def scalar(name: str, required: bool) -> Callable[[Any], Any]:
    """Return what makes a scalar field of a module."""
    return lambda module: getattr(module, name)(required=required)


VALUES: list[object] = [None, True, 3, 2**31 - 1, -1.5, "text", b"bytes", "", [], ["a"], [b"a"], {}, {"a": 1}, {1: "a"}]
VALUES += [Color.RED, "RED", 1, "PINK", 99, ("a",), [None], {"a": None}, {"a": "b"}, [1], [[1]], [True]]


MAKERS: dict[str, Callable[[Any], Any]] = {
    **{name: scalar(name, False) for name in SCALARS},
    **{f"required {name}": scalar(name, True) for name in SCALARS},
    "enum": lambda m: m.CustomEnum(Color),
    "required enum": lambda m: m.CustomEnum(Color, required=True),
    "list of texts": lambda m: m.Array(m.String()),
    "list of numbers": lambda m: m.Array(m.Integer()),
    "list of lists": lambda m: m.Array(m.Array(m.Integer())),
    "required list": lambda m: m.Array(m.String(), required=True),
    "map": lambda m: m.Map(m.Integer()),
    "required map": lambda m: m.Map(m.String(), required=True),
    "default number": lambda m: m.Integer(default=7),
    "default text": lambda m: m.String(default="d"),
    "default true": lambda m: m.Boolean(default=True),
    "default member": lambda m: m.CustomEnum(Color, default=Color.BLUE),
    "default list": lambda m: m.Array(m.String(), default=["d"]),
    "default map": lambda m: m.Map(m.Integer(), default={"d": 1}),
}


@pytest.mark.parametrize("name", MAKERS)
def test_values_are_taken_and_refused_as_in_the_official_client(name: str) -> None:
    make = MAKERS[name]
    for value in VALUES:
        mine, theirs = outcome(make(ours), ours, value), outcome(make(official), official, value)
        if make(ours).type() == "bytes" and not isinstance(value, bytes | str | None):
            theirs = TypeError  # the official client checks nothing here
        if theirs == [b"a"]:
            theirs = ["a"]  # the official client decodes a String's bytes, but not those in an array
        assert (mine, type(mine)) == (theirs, type(theirs)), f"{name}: {value!r}"


def outcome(field: Any, module: Any, value: object) -> Any:
    """Return what a record keeps of a value, or TypeError."""
    try:
        return holder(field, module)(x=value).x
    except TypeError as error:
        if module is ours:
            assert isinstance(error, InvalidRecord) and isinstance(error, ValueError)
            assert "'x" in str(error)
        return TypeError


@pytest.mark.parametrize(("kind", "bits"), [(ours.Integer, 32), (ours.Long, 64)])
def test_integers_have_the_range_of_their_avro_type(kind: Any, bits: int) -> None:
    record = holder(kind())
    edge = 1 << bits - 1
    assert (record(x=edge - 1).x, record(x=-edge).x) == (edge - 1, -edge)
    for value in (edge, -edge - 1):
        with pytest.raises(InvalidRecord, match="out of the range"):
            record(x=value)


def test_members_of_enumerations_by_name_and_by_value() -> None:
    class Letter(Enum):
        a = "b"
        b = "a"
        c = "z"

    record = holder(ours.CustomEnum(Letter))
    assert [record(x=value).x for value in ("a", "b", "z", Letter.c)] == [Letter.a, Letter.b, Letter.c, Letter.c]
    with pytest.raises(InvalidRecord, match=r"a member of Letter \(a, b, c\), not str 'q'"):
        record(x="q")
    assert holder(Color)(x="RED").x is Color.RED  # the class alone is a field as well


def test_items_are_converted_at_every_depth() -> None:
    class Item(ours.Record):
        q = ours.String()

    record = holder(ours.Map(ours.Array(ours.Map(Item()))))
    value = record(x={"a": [{"b": {"q": b"c"}}]}).x
    assert value == {"a": [{"b": Item(q="c")}]}
    assert holder(ours.Array(ours.CustomEnum(Color)))(x=["RED", 2]).x == [Color.RED, Color.GREEN]
    assert holder(ours.Array(Fruit))(x=["pear"]).x == [Fruit.pear]
    with pytest.raises(InvalidRecord, match=r"'x\[\]\[\]\[\]'"):
        record(x={"a": [{"b": 3}]})


def test_a_required_default_is_written_as_avro_writes_it() -> None:
    class Item(ours.Record):
        color = ours.CustomEnum(Color)
        data = ours.Bytes()

    options: dict[str, Any] = {"required_default": True}
    assert definition(ours.Integer(default=5, **options)) == {"name": "x", "default": 5, "type": ["null", "int"]}
    assert definition(ours.Integer(**options)) == {"name": "x", "default": None, "type": ["null", "int"]}
    for field, default in [
        (ours.Bytes(default=b"a\xff", **options), "a\u00ff"),
        (ours.CustomEnum(Color, default=Color.RED, **options), "RED"),
        (Item(default=Item(color="RED", data=b"\x01"), **options), {"color": "RED", "data": "\x01"}),
        (ours.Array(Item(), default=[Item(color="RED")], **options), [{"color": "RED", "data": None}]),
        (ours.Map(ours.Integer(), default={"a": 1}, **options), {"a": 1}),
    ]:
        entry: Any = definition(field)
        assert entry["default"] == default
        json.dumps(entry)


def test_an_array_of_an_enumeration_is_valid_avro() -> None:
    """The official client writes the word "enum" there, which is no type."""
    items = {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN", "BLUE"]}
    for field in (ours.Array(ours.CustomEnum(Color)), ours.Array(Color)):
        assert definition(field) == {"name": "x", "type": ["null", {"type": "array", "items": items}]}
        fastavro.parse_schema(holder(field).schema())


@pytest.mark.parametrize(
    "make",
    [
        lambda: ours.Array(int),
        lambda: ours.Array(ours.String),
        lambda: ours.Map(3),
        lambda: ours.CustomEnum(int),  # type: ignore[arg-type]
        lambda: ours.CustomEnum(Color.RED),  # type: ignore[arg-type]
    ],
)
def test_unusable_fields_are_refused_at_once(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidConfiguration, match="not "):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ours.Integer(default="x"),
        lambda: ours.Long(default=1.5),
        lambda: ours.String(default=3),
        lambda: ours.Boolean(default=1),  # type: ignore[arg-type]
        lambda: ours.Float(default="x"),
        lambda: ours.Null(default=3),
        lambda: ours.Array(ours.String(), default=[1]),
        lambda: ours.Map(ours.String(), default={1: "a"}),  # type: ignore[dict-item]
        lambda: ours.CustomEnum(Color, default="PINK"),
    ],
)
def test_unusable_defaults_are_refused_at_once(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidRecord, match="'default"):
        make()


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(InvalidRecord, match="not UTF-8"):
        holder(ours.String())(x=b"\xff")
    assert holder(ours.Bytes())(x="\u00fc").x == b"\xc3\xbc"


def test_enum_field_has_the_members_by_value() -> None:
    assert ours.CustomEnum(Color).values == official.CustomEnum(Color).values == {each.value: each for each in Color}


@pytest.mark.parametrize(
    ("field", "given", "add", "same", "changed"),
    [
        (ours.Array(ours.String()), [], lambda value: value.append("late"), ["late"], [b"a"]),
        (ours.Map(ours.Integer()), {}, lambda value: value.update(k=1), {"k": 1}, None),
        (ours.Array(ours.Map(ours.String())), [{}], lambda value: value[0].update(k="v"), [{"k": "v"}], [{"k": b"v"}]),
    ],
    ids=["array", "map", "array_of_maps"],
)
def test_container_not_converted_is_kept(field: Any, given: Any, add: Any, same: Any, changed: Any) -> None:
    record = holder(field)
    built, assigned = record(x=given), record()
    assigned.x = given
    add(given)
    assert built.x is given and assigned.x is given
    assert json.loads(ours.JsonSchema(record).encode(built)) == {"x": same}
    assert changed is None or record(x=changed).x is not changed


def test_container_default_is_copied() -> None:
    given = ["a"]
    record = holder(ours.Array(ours.String(), default=given))
    given.append("b")
    record().x.append("c")
    assert record().x == ["a"]


def test_enum_aliases_are_no_symbols() -> None:
    class Aliased(Enum):
        RED = 1
        CRIMSON = 1  # noqa: PIE796
        GREEN = 2

    record = holder(Aliased)
    assert record.schema()["fields"][0]["type"][1]["symbols"] == ["RED", "GREEN"]
    assert record(x="CRIMSON").x is Aliased.RED
    schema = ours.AvroSchema(record)
    assert schema.decode(schema.encode(record(x=Aliased.CRIMSON))).x is Aliased.RED


def test_validate_type_overridden_is_called() -> None:
    class Address(ours.String):
        def validate_type(self, name: str, val: object) -> Any:
            val = super().validate_type(name, val)
            if "@" not in val:
                raise ValueError(f"{name} is no address")
            return val.lower()

    class Shorter(Address):
        """A class below, which overrides nothing."""

    record = holder(Shorter(default="X@y"))
    assert (record().x, record(x=b"A@b").x) == ("x@y", "a@b")
    made = record()
    for value, error in (("nobody", ValueError), (5, InvalidRecord)):
        with pytest.raises(error, match="x"):
            made.x = value
    with pytest.raises(ValueError, match="no address"):
        ours.JsonSchema(record).decode(b'{"x": "nobody"}')


def test_type_overridden_is_written_and_accepted() -> None:
    class Timestamp(ours.Field[datetime]):
        def type(self) -> Any:
            return {"type": "long", "logicalType": "timestamp-millis"}

        def python_type(self) -> Any:
            return datetime

    class Flexible(ours.Long):
        def python_type(self) -> Any:
            return (int, datetime)

    when = datetime(2024, 1, 2, tzinfo=UTC)
    record = holder(Timestamp())
    assert record.schema()["fields"][0]["type"] == ["null", {"type": "long", "logicalType": "timestamp-millis"}]
    schema = ours.AvroSchema(record)
    assert schema.decode(schema.encode(record(x=when))).x == when
    with pytest.raises(InvalidRecord, match="'x' must be"):
        record(x=5)
    assert (holder(Flexible())(x=when).x, holder(ours.Array(Flexible()))(x=[when]).x) == (when, [when])


def test_schema_info_overridden_is_written() -> None:
    class Identifier(ours.String):
        def schema_info(self, defined_names: set[str]) -> Any:
            return {"type": super().schema_info(defined_names), "logicalType": "uuid"}

    written = {"type": "string", "logicalType": "uuid"}
    assert definition(Identifier()) == {"name": "x", "type": ["null", written]}
    assert definition(ours.Array(Identifier(), required=True))["type"]["items"] == written  # type: ignore[index]
    assert holder(Identifier())(x=b"a").x == "a"
