"""Records: definitions equal to the official client's, to the letter, and values that behave."""

from __future__ import annotations

import copy
import json
import pickle
from enum import Enum
from typing import Any

import fastavro
import pulsar.schema as official
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_native.schema as ours
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema import InvalidRecord
from pulsar_native.schema.record import record_from
from support.record_twins import Color, Fruit, Leaf, Many, Rec, Twins


def text_of(schema: Any) -> str:
    """Return the definition's text as it goes to the registry, of either side."""
    info = schema.schema_info()
    return str(info.schema())


def texts(description: Rec) -> tuple[str, str]:
    """Return our and the official text of a description, both as Avro and as JSON schemas."""
    mine, theirs = Twins(ours).record(description), Twins(official).record(description)
    assert text_of(ours.JsonSchema(mine)) == text_of(ours.AvroSchema(mine))
    assert text_of(official.JsonSchema(theirs)) == text_of(official.AvroSchema(theirs))
    return text_of(ours.AvroSchema(mine)), text_of(official.AvroSchema(theirs))


KINDS = ("Null", "Boolean", "Integer", "Long", "Float", "Double", "Bytes", "String")
INNER = Rec("Inner", (("q", Leaf("String")), ("p", Leaf("Integer", {"required": True}))))
SPACED = Rec("Spaced", (("z", Leaf("Long")), ("a", Leaf("Bytes"))), (("_avro_namespace", "a.b"),))
DESCRIPTIONS = {
    "empty": Rec("Empty", ()),
    "leaves": Rec("Leaves", tuple((kind.lower(), Leaf(kind)) for kind in KINDS)),
    "required": Rec("R", tuple((kind, Leaf(kind, {"required": True})) for kind in KINDS)),
    "defaults": Rec(
        "D",
        (
            ("none", Leaf("String", {"required_default": True})),
            ("text", Leaf("String", {"default": "ü", "required_default": True})),
            ("unwritten", Leaf("Integer", {"default": 5})),
            ("both", Leaf("Integer", {"default": 5, "required": True, "required_default": True})),
            ("yes", Leaf("Boolean", {"default": True, "required_default": True})),
            ("number", Leaf("Float", {"default": 1, "required_default": True})),
            ("member", Leaf("CustomEnum", {"default": Color.RED, "required_default": True}, Color)),
            ("list", Many("Array", Leaf("String"), {"default": ["a"], "required_default": True})),
            ("dict", Many("Map", Leaf("Integer"), {"default": {"a": 1}, "required_default": True})),
        ),
    ),
    "enums": Rec(
        "Enums",
        (
            ("a", Leaf("CustomEnum", {}, Color)),
            ("b", Leaf("CustomEnum", {"required": True}, Fruit)),
            ("again", Leaf("CustomEnum", {"required": True}, Color)),
        ),
    ),
    "nested": Rec("Outer", (("a", INNER), ("b", INNER), ("list", Many("Array", INNER)), ("map", Many("Map", INNER)))),
    "deep": Rec("Deep", (("x", Many("Map", Many("Array", Many("Map", Rec("Mid", (("inner", INNER),)))))),)),
    "required record": Rec("Outer", (("x", Rec(INNER.name, INNER.fields, (), True)), ("y", INNER))),
    "namespace": Rec("Outer", (("x", SPACED), ("y", Many("Array", SPACED))), (("_avro_namespace", "n.s"),)),
    "namespace inside": Rec("Outer", (("x", SPACED), ("y", SPACED), ("m", Many("Map", SPACED)))),
    "sorted": Rec("Sorted", (("z", INNER), ("b", Leaf("Long")), ("a", Leaf("Long"))), (("_sorted_fields", True),)),
    "hard names": Rec("H", tuple((n, Leaf("String")) for n in ("type", "name", "fields", "default", "required", "_x"))),
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_the_text_is_the_official_one(name: str) -> None:
    mine, theirs = texts(DESCRIPTIONS[name])
    assert mine == theirs
    fastavro.parse_schema(json.loads(mine))


LEAVES = st.builds(
    Leaf,
    st.sampled_from(["Boolean", "Integer", "Long", "Float", "Double", "Bytes", "String"]),
    # Both together mean null as the default of a type that is never null: no Avro reader takes that.
    st.sampled_from([{}, {"required": True}, {"required_default": True}]),
)


def records(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Rec]:
    """Return records whose name follows from their fields, so that equal names are equal types."""

    def build(fields: dict[str, Any], is_sorted: bool) -> Rec:
        attributes = (("_sorted_fields", True),) if is_sorted else ()
        pairs = tuple(fields.items())
        return Rec(f"R{abs(hash(repr((pairs, attributes))))}", pairs, attributes)

    names = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
    return st.builds(build, st.dictionaries(names, inner, max_size=5), st.booleans())


FIELDS = st.recursive(
    LEAVES, lambda inner: st.builds(Many, st.sampled_from(["Array", "Map"]), inner) | records(inner), max_leaves=12
)


@given(records(FIELDS))
def test_the_text_of_any_record_is_the_official_one(description: Rec) -> None:
    mine, theirs = texts(description)
    assert mine == theirs


def test_types_in_other_namespaces_are_written_so_that_avro_finds_them() -> None:
    """The official client refers by the bare name to a type that was defined inside another namespace."""
    color = Leaf("CustomEnum", {}, Color)
    inner = Rec("Inner", (("color", color),))
    spaced = Rec("N", (("i", inner), ("c", color)), (("_avro_namespace", "n.s"),))
    record = Twins(ours).record(Rec("Outer", (("n", spaced), ("i", inner), ("c", color))))
    schema = ours.AvroSchema(record)
    value = record(n={"c": "RED", "i": {"color": "GREEN"}}, i={"color": "RED"}, c="BLUE")
    assert schema.decode(schema.encode(value)) == value


def test_two_types_of_one_name_are_refused() -> None:
    other = Rec("Inner", (("different", Leaf("Long")),))
    record = Twins(ours).record(Rec("Outer", (("a", INNER), ("b", other))))
    with pytest.raises(InvalidConfiguration, match="'Inner'"):
        record.schema()


# ---- values ----------------------------------------------------------------------------------------------------------


class Engine(ours.Record):
    """A part of a plane."""

    maker = ours.String(default="unknown")
    thrust = ours.Double()


class Plane(ours.Record):
    """A record with every kind of default."""

    tail = ours.String(required=True)
    seats = ours.Integer(default=100)
    jet = ours.Boolean()
    color = ours.CustomEnum(Color, default=Color.GREEN)
    engine = Engine(thrust=5)
    spare = Engine(default=Engine(maker="old"))
    tags = ours.Array(ours.String(), default=["a"])


def test_what_is_left_out_gets_its_default() -> None:
    plane = Plane()
    assert (plane.tail, plane.seats, plane.jet, plane.color, plane.tags) == (None, 100, False, Color.GREEN, ["a"])
    assert (plane.engine, plane.spare) == (Engine(thrust=5), Engine())


def test_an_explicit_none() -> None:
    plane: Any = Plane(seats=None, jet=None, color=None, engine=None, spare=None, tags=None)
    assert (plane.seats, plane.jet, plane.color, plane.tags) == (100, False, None, None)
    assert plane.engine is None and plane.spare == Engine(maker="old")
    with pytest.raises(InvalidRecord, match="'tail' must be string, not NoneType"):
        Plane(tail=None)


def test_records_share_nothing() -> None:
    first, second = Plane(), Plane()
    assert first.tags is not None and first.engine is not None
    first.tags.append("b")
    first.engine.thrust = 7
    assert (second.tags, second.engine, Plane(spare=None).spare) == (["a"], Engine(thrust=5), Engine(maker="old"))


def test_setting_is_checked() -> None:
    plane: Any = Plane(tail="N1")
    plane.seats = 3
    plane.color = "RED"
    plane.engine = {"maker": "x"}
    assert (plane.seats, plane.color, plane.engine) == (3, Color.RED, Engine(maker="x"))
    for name, value in (("seats", "x"), ("tail", None), ("engine", Plane()), ("tags", [1])):
        with pytest.raises(InvalidRecord):
            setattr(plane, name, value)
    with pytest.raises(AttributeError, match="Plane has no field 'wings'"):
        plane.wings = 2
    assert plane.seats == 3


def test_values_of_the_usual_types_are_checked_as_others() -> None:
    """The constructor and messages store these without a call of the field."""

    class Upper(ours.String):
        def convert(self, name: str, value: object) -> str:
            return super().convert(name, value).upper()

    class Sample(ours.Record):
        small = ours.Integer()
        large = ours.Long()
        text = Upper()
        flag = ours.Boolean()
        ratio = ours.Double()

    made: Any = Sample
    lowest, highest = -(1 << 31), (1 << 31) - 1
    for number in (lowest, highest):
        assert made(small=number, text="a", flag=True, ratio=1.5).small == number
    read: Any = record_from(made, {"text": "a"})
    assert read.text == made(text="a").text == "A"
    for values in ({"small": highest + 1}, {"small": lowest - 1}, {"large": 1 << 63}, {"flag": 1}, {"ratio": "1"}):
        with pytest.raises(InvalidRecord):
            made(**values)
        with pytest.raises(InvalidRecord):
            record_from(made, values)
    # As in the official client, True is an int, and an int is a Double.
    assert (made(small=True).small, made(ratio=2).ratio) == (True, 2)


def test_unknown_names_are_ignored_as_newer_messages_may_have_them() -> None:
    assert Plane(tail="N1", wings=2) == Plane(tail="N1")
    assert Plane(engine={"maker": "x", "age": 3}).engine == Engine(maker="x")


def test_the_fields_are_those_of_the_class_alone() -> None:
    """As in the official client."""
    child: Any = type("Child", (Plane,), {"extra": ours.Long()})
    theirs: Any = type("Child", (Twins(official).record(INNER),), {"extra": official.Long()})
    assert child.schema() == theirs.schema()


def test_names_of_the_constructor_can_be_fields() -> None:
    record = type("R", (ours.Record,), {n: ours.String() for n in ("default", "required", "schema")})
    value: Any = record(default="a", required="b", schema="c")
    assert (value.default, value.required, value.schema) == ("a", "b", "c")
    encoded = ours.JsonSchema(record).encode(value)
    assert json.loads(encoded) == {"default": "a", "required": "b", "schema": "c"}
    assert ours.JsonSchema(record).decode(encoded) == value


def test_records_have_the_methods_of_fields() -> None:
    plain, full = Engine(), Engine(default=Engine(thrust=2.0), required=True, required_default=True)
    assert (plain.default(), plain.required_default(), plain.validate_type("f", None)) == (None, False, None)
    assert full.default() == Engine(thrust=2.0) and full.required_default() is True
    assert full.validate_type("f", plain) is plain
    for record, value in ((full, None), (plain, 5), (plain, {"thrust": 1.0})):
        with pytest.raises(InvalidRecord, match="'f' must be Engine"):
            record.validate_type("f", value)


def test_records_compare_show_copy_and_pickle() -> None:
    plane = Plane(tail="N1", engine=Engine(maker="x"))
    assert plane == Plane(tail="N1", engine=Engine(maker="x"))
    assert plane != Plane(tail="N2") and plane != Engine() and plane != 3
    assert repr(Engine(thrust=1.5)) == "Engine(maker='unknown', thrust=1.5)"
    assert str(Engine(thrust=1.5)) == "{'maker': 'unknown', 'thrust': 1.5}"
    for copied in (copy.deepcopy(plane), pickle.loads(pickle.dumps(plane))):
        assert copied == plane and copied.engine is not plane.engine
    with pytest.raises(TypeError, match="unhashable"):
        hash(plane)


# ---- classes with a constructor of their own -------------------------------------------------------------------------


class Refused(ValueError):
    """An error of a program's own."""


class Counted(ours.Record):
    """Changes what it is given, or refuses it."""

    a = ours.Integer()

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        if self.a == 13:
            raise Refused("unlucky")
        if self.a == 14:
            raise ValueError("even")
        self.a = (self.a or 0) + 1


class Made(ours.Record):
    """Made by `__new__`."""

    a = ours.Integer()
    made: Any

    def __new__(cls, *args: Any, **values: Any) -> Made:
        """Mark the record."""
        new = super().__new__(cls)
        new.__dict__["made"] = sorted(values)
        return new


class Doubled(ours.Record):
    """Doubles what is set."""

    a = ours.Integer()
    b = ours.Integer(default=5)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value * 2)


class Partial(ours.Record):
    """Leaves out fields."""

    a = ours.Integer()
    b = ours.String(default="never set")

    def __init__(self, a: int) -> None:
        self.a = a


class Holder(ours.Record):
    """Records in a record."""

    one = Counted()
    many = ours.Array(Counted())


KINDS_OF_SCHEMA = pytest.mark.parametrize("kind", [ours.AvroSchema, ours.JsonSchema], ids=["avro", "json"])


@KINDS_OF_SCHEMA
def test_decode_calls_own_constructor(kind: Any) -> None:
    schema = kind(Counted)
    assert schema.decode(schema.encode(Counted(a=1))).a == 3
    made = kind(Made)
    assert made.decode(made.encode(Made(a=1))).made == ["a"]
    nested = kind(Holder)
    read = nested.decode(nested.encode(Holder(one=Counted(a=1), many=[Counted(a=5)])))
    assert (read.one.a, [each.a for each in read.many]) == (3, [7])
    doubled = kind(Doubled)
    assert (Doubled(a=1).a, Doubled().b, doubled.decode(doubled.encode(Doubled(a=1))).a) == (2, 5, 4)


@KINDS_OF_SCHEMA
def test_decode_own_constructor_raises(kind: Any) -> None:
    plain_kind: Any = type("Counted", (ours.Record,), {"a": ours.Integer()})
    payloads = [kind(plain_kind).encode(plain_kind(a=a)) for a in (13, 14)]
    with pytest.raises(Refused):
        kind(Counted).decode(payloads[0])
    with pytest.raises(InvalidRecord, match="constructor of Counted: even") as caught:
        kind(Counted).decode(payloads[1])
    assert isinstance(caught.value, ValueError)
    with pytest.raises(InvalidRecord, match="constructor of Partial"):
        kind(Partial).decode(kind(Partial).encode(Partial(1)) if kind is ours.AvroSchema else b'{"zzz": 1}')


def test_decode_dataclass_replaces_constructor() -> None:
    plain_kind: Any = type("Late", (ours.Record,), {"a": ours.Integer()})
    schema = ours.JsonSchema(plain_kind)
    assert schema.decode(b'{"a": 1}').a == 1
    plain_kind.__init__ = lambda self, **values: ours.Record.__init__(self, a=values["a"] + 1)
    assert schema.decode(b'{"a": 1}').a == 2


def test_encode_leaves_out_fields_not_set() -> None:
    assert ours.AvroSchema(Partial).encode(Partial(4)) == b"\x02\x08\x00"
    assert ours.JsonSchema(Partial).encode(Partial(4)) == b'{"a":4}'
    assert (str(Partial(4)), repr(Partial(4))) == ("{'a': 4}", "Partial(a=4)")
    assert Partial(4) == Partial(4) != Partial(5)
    assert copy.deepcopy(Partial(4)) == Partial(4)


def test_fields_are_listed_as_by_the_official_client() -> None:
    assert list(Plane._fields) == ["tail", "seats", "jet", "color", "engine", "spare", "tags"]
    assert isinstance(Plane._fields["tail"], ours.String)
    assert isinstance(Plane._fields["engine"], Engine) and Plane._fields["engine"].type() == "Engine"


def test_class_attributes_stay_as_given() -> None:
    class Outer(ours.Record):
        class Inner(ours.Record):
            x = ours.Integer()

        class Kind(Enum):
            A = 1

        inner = Inner(x=4)
        kind = Kind

    made: Any = Outer(inner=Outer.Inner(x=3), kind=Outer.Kind.A)
    assert (made.inner.x, made.kind, Outer.inner.x) == (3, Outer.Kind.A, 4)
    assert made.Inner == Outer.Inner() and made.Kind is None


@pytest.mark.parametrize("kind", [ours.AvroSchema, ours.JsonSchema], ids=["avro", "json"])
def test_schema_overridden_is_registered(kind: Any) -> None:
    class Documented(ours.Record):
        a = ours.Long()

        @classmethod
        def schema(cls) -> Any:
            return {**super().schema(), "doc": "mine"}

    expected = {
        "type": "record",
        "name": "Documented",
        "fields": [{"name": "a", "type": ["null", "long"]}],
        "doc": "mine",
    }
    assert json.loads(text_of(kind(Documented))) == expected


def test_schema_info_overridden_is_registered() -> None:
    class Shared(ours.Record):
        b = ours.String()

    class Documented(ours.Record):
        shared = Shared()

        @classmethod
        def schema_info(cls, defined_names: set[str]) -> Any:
            made = super().schema_info(defined_names)
            return {**made, "doc": "mine"} if isinstance(made, dict) else made

    class Outer(ours.Record):
        one = Documented()
        two = Documented()
        shared = Shared()

    assert json.loads(text_of(ours.AvroSchema(Documented)))["doc"] == "mine"
    types = [entry["type"][1] for entry in json.loads(text_of(ours.AvroSchema(Outer)))["fields"]]
    assert types[0]["doc"] == "mine" and types[1:] == ["Documented", "Shared"]
    fastavro.parse_schema(json.loads(text_of(ours.AvroSchema(Outer))))


def test_method_named_schema_is_no_definition() -> None:
    class Named(ours.Record):
        a = ours.Long()

        def schema(self) -> str:  # type: ignore[override]
            return "mine"

    class Hidden(ours.Record):
        schema = ours.String()  # type: ignore[assignment]

    for record, name in ((Named, "a"), (Hidden, "schema")):
        fields = json.loads(text_of(ours.JsonSchema(record)))["fields"]
        assert [field["name"] for field in fields] == [name]
