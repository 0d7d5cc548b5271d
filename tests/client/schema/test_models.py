"""Schemas of dataclasses and pydantic models: definitions, values both ways, evolution, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal, NewType, Optional
from uuid import UUID

import pydantic
import pytest

import pulsar_native.schema as ours
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema import AvroSchema, AvroType, InvalidRecord, JsonSchema
from support.record_twins import Color

Code = NewType("Code", str)
MOMENT = datetime(2026, 11, 21, 1, 2, 3, 456789, UTC)
ID = UUID("12345678-1234-5678-1234-567812345678")


class Cabin(Enum):
    ECONOMY = 1
    FIRST = 2


@dataclass
class Place:
    airport: str
    gate: int = 1


@dataclass
class Flight:
    _avro_namespace: ClassVar[str] = "demo"

    carrier: Code
    delay: int
    ratio: float
    on_time: bool
    raw: bytes
    origin: Place
    cabin: Cabin
    at: datetime
    day: date
    clock: time
    price: Decimal
    id: UUID
    note: str | None
    kind: Literal["in", "out"]
    stops: list[Place] = field(default_factory=list)
    tags: tuple[str, ...] = ()
    weights: dict[str, float] = field(default_factory=dict)
    next: Optional[Flight] = None  # noqa: UP045 - both spellings are to work
    seats: Annotated[int, AvroType("int")] = 5
    local: Annotated[datetime, AvroType({"type": "long", "logicalType": "local-timestamp-millis"})] = datetime(
        2026, 1, 1
    )
    upgraded: Cabin | None = Cabin.FIRST
    computed: int = field(init=False, default=0)


def flight(**more: Any) -> Flight:
    values: dict[str, Any] = {
        "carrier": Code("UA"), "delay": -3, "ratio": 0.5, "on_time": True, "raw": b"\x01a",
        "origin": Place("JFK", 7), "cabin": Cabin.ECONOMY, "at": MOMENT, "day": date(2026, 11, 21),
        "clock": time(1, 2, 3, 4), "price": Decimal("12.50"), "id": ID, "note": None, "kind": "in",
    }  # fmt: skip
    return Flight(**(values | more))


FULL = flight(
    stops=[Place("BOS")],
    tags=("a", "b"),
    weights={"x": 1.5},
    next=flight(note="inner"),
    upgraded=None,
    local=datetime(2026, 5, 5, 1, 2, 3, 4000),
)


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_dataclasses_there_and_back(kind: Any) -> None:
    schema = kind(Flight)
    for value in (flight(), FULL):
        back = schema.decode(schema.encode(value))
        assert back == value and type(back) is Flight
        assert isinstance(back.tags, tuple)
        schema.validate(schema.encode(value))
    assert schema.decode(schema.encode(flight(ratio=1))).ratio == 1.0


def test_the_definition_of_a_dataclass() -> None:
    definition = AvroSchema(Flight).schema_info().definition()
    assert (definition["name"], definition["namespace"]) == ("Flight", "demo")
    fields: Any = definition["fields"]
    types = {each["name"]: each["type"] for each in fields}
    place = {"type": "record", "name": "Place"}
    place["fields"] = [{"name": "airport", "type": "string"}, {"name": "gate", "type": "long", "default": 1}]  # type: ignore[assignment]
    assert types == {
        "carrier": "string",
        "delay": "long",
        "ratio": "double",
        "on_time": "boolean",
        "raw": "bytes",
        "origin": place,
        "cabin": {"type": "enum", "name": "Cabin", "symbols": ["ECONOMY", "FIRST"]},
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "day": {"type": "int", "logicalType": "date"},
        "clock": {"type": "long", "logicalType": "time-micros"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18},
        "id": {"type": "string", "logicalType": "uuid"},
        "note": ["null", "string"],
        "kind": "string",
        "stops": {"type": "array", "items": "Place"},
        "tags": {"type": "array", "items": "string"},
        "weights": {"type": "map", "values": "double"},
        "next": ["null", "demo.Flight"],
        "seats": "int",
        "local": {"type": "long", "logicalType": "local-timestamp-millis"},
        # A default other than null must be of the union's first type.
        "upgraded": ["Cabin", "null"],
    }
    defaults = {each["name"]: each["default"] for each in fields if "default" in each}
    assert defaults == {
        "stops": [],
        "tags": [],
        "weights": {},
        "next": None,
        "seats": 5,
        "local": 1767225600000,
        "upgraded": "FIRST",
    }


def test_json_has_numbers_names_and_text() -> None:
    schema = JsonSchema(Flight)
    written = json.loads(schema.encode(flight()))
    assert (written["at"], written["day"], written["clock"]) == (1795222923456789, 20778, 3723000004)
    assert (written["price"], written["id"], written["cabin"], written["raw"]) == ("12.50", str(ID), "ECONOMY", "\x01a")
    registered: Any = schema.schema_info().definition()["fields"]
    assert next(each["type"] for each in registered if each["name"] == "price") == "string"


@dataclass
class Old:
    name: str


@dataclass(frozen=True)
class Home:
    street: str
    number: int = 1


@dataclass
class New:
    name: str
    at: datetime = MOMENT
    price: Decimal = Decimal("-1.25")
    id: UUID = ID
    raw: bytes = b"\xff\x00"
    day: date = date(2026, 1, 1)
    home: Home = Home("Long Lane", 2)
    maybe: int | None = None
    cabin: Cabin = Cabin.FIRST
    clock: time = time(1)


New.__name__ = "Old"  # as it would be in a newer version of the program


def test_old_rows_get_the_defaults_of_a_newer_class() -> None:
    assert JsonSchema(New).decode(JsonSchema(Old).encode(Old("x"))) == New("x")
    newer = AvroSchema(New).with_writer_schemas(lambda version: AvroSchema(Old).schema_info())
    assert newer.decode_versioned(AvroSchema(Old).encode(Old("x")), bytes(8)) == New("x")
    made: Any = make_dataclass("Old", [("name", str), ("place", Place, field(default_factory=lambda: Place("made")))])
    assert JsonSchema(made).decode(b'{"name": "x"}') == made("x", Place("made"))
    # New names in a message are ignored by an older class.
    assert JsonSchema(Old).decode(JsonSchema(New).encode(New("x", raw=b"a"))) == Old("x")


class Customer(pydantic.BaseModel):
    name: str
    age: Annotated[int, pydantic.Field(ge=0), AvroType("int")] = 0
    born: date | None = None
    mail: list[str] = pydantic.Field(default_factory=list)
    home: Place | None = None
    renamed: str = pydantic.Field("d", alias="Renamed")


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_pydantic_models(kind: Any) -> None:
    schema = kind(Customer)
    for value in (
        Customer(name="Ann"),
        Customer(name="Bob", age=3, born=date(2000, 1, 1), mail=["m"], home=Place("JFK"), Renamed="r"),
    ):
        assert schema.decode(schema.encode(value)) == value
    fields: Any = schema.schema_info().definition()["fields"]
    assert [each["name"] for each in fields] == ["name", "age", "born", "mail", "home", "renamed"]
    assert fields[1] == {"name": "age", "type": "int", "default": 0}
    assert fields[3]["default"] == []
    unchecked = Customer.model_construct(name="x", age=-1)
    with pytest.raises(InvalidRecord, match=r"(?s)checks of Customer.*greater than or equal"):
        schema.decode(schema.encode(unchecked))


class Choices(pydantic.BaseModel):
    number: int = pydantic.Field(validation_alias=pydantic.AliasChoices("n", "no"))
    other: str = pydantic.Field("d", alias="number")


class Paths(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    first: int = pydantic.Field(validation_alias=pydantic.AliasPath("all", 0))
    choices: Choices = pydantic.Field(validation_alias=pydantic.AliasChoices(pydantic.AliasPath("all", 1), "c"))


class Generated(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        alias_generator=pydantic.AliasGenerator(validation_alias=lambda name: pydantic.AliasChoices(name.upper()))
    )
    number: int


class Swapped(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    x: int = pydantic.Field(alias="y")
    y: int = pydantic.Field(alias="x")


CHOICES = Choices.model_validate({"n": 1, "number": "o"})


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(CHOICES, id="choices"),
        pytest.param(Paths.model_validate({"all": [2, CHOICES]}), id="paths"),
        pytest.param(Generated.model_validate({"NUMBER": 1}), id="generated"),
        pytest.param(Swapped.model_construct(x=1, y=2), id="swapped"),
    ],
)
def test_pydantic_validation_aliases_decode(kind: Any, value: pydantic.BaseModel) -> None:
    schema = kind(type(value))
    assert schema.decode(schema.encode(value)) == value
    fields: Any = schema.schema_info().definition()["fields"]
    assert [each["name"] for each in fields] == list(type(value).model_fields)


class _Older(pydantic.BaseModel):
    """Model as of pydantic 2.10, which cannot take names when the class does not."""

    number: int = pydantic.Field(validation_alias=pydantic.AliasChoices("n", "no"))

    @classmethod
    def model_validate(cls, obj: Any) -> Any:  # type: ignore[override]
        """Return an object."""
        return super().model_validate(obj)


class _OlderByName(_Older):
    model_config = pydantic.ConfigDict(populate_by_name=True)


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_pydantic_alias_choices_without_names(kind: Any) -> None:
    with pytest.raises(InvalidConfiguration, match=r"^_Older has fields with AliasChoices .* need pydantic 2\.11"):
        kind(_Older)
    schema = kind(_OlderByName)
    assert schema.decode(schema.encode(_OlderByName.model_construct(number=1))) == _OlderByName.model_construct(
        number=1
    )


def test_definitions_in_place_of_a_class() -> None:
    definition = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]}
    for kind in (AvroSchema, JsonSchema):
        for given in (definition, json.dumps(definition)):
            schema: Any = kind(given)
            assert schema.schema_info() == kind(schema_definition=definition).schema_info()
            assert schema.decode(schema.encode({"n": 1})) == {"n": 1}
        with pytest.raises(InvalidConfiguration, match="not JSON"):
            kind("{")
        with pytest.raises(InvalidConfiguration, match="definition: a dictionary"):
            kind("[]")


@pytest.mark.parametrize(
    ("hint", "match"),
    [
        (object, r"Odd\.it: the type object has no Avro type.*AvroType"),
        (Any, "has no Avro type"),
        (complex, "complex has no Avro type"),
        (list, "list has no Avro type"),
        (dict[int, str], r"dict\[int, str\] has no Avro type"),
        (int | str, "union of several types"),
        (tuple[int, str], "any length and one type"),
        (list[complex], r"Odd\.it\[\]: the type complex"),
        (Annotated[int, AvroType("string")], "int cannot be written as the Avro type 'string'"),
        (Annotated[Decimal, AvroType("double")], "Decimal cannot be written"),
        (Literal[1, 2], "has no Avro type"),
    ],
)
def test_types_that_are_refused(hint: Any, match: str) -> None:
    with pytest.raises(InvalidConfiguration, match=match):
        JsonSchema(make_dataclass("Odd", [("it", hint)]))


def test_classes_that_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="no fields"):
        JsonSchema(make_dataclass("Empty", []))
    with pytest.raises(InvalidConfiguration, match="dataclass or a pydantic model, not int"):
        JsonSchema(int)
    with pytest.raises(InvalidConfiguration, match=r"Odd\.it: the default must be int, not str"):
        AvroSchema(make_dataclass("Odd", [("it", int, field(default="x"))]))
    hidden: Any = make_dataclass("Hidden", [("it", "Nowhere")])
    with pytest.raises(InvalidConfiguration, match="define what they name in the module"):
        JsonSchema(hidden)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"delay": "3"}, r"Flight\.delay must be int, not str"),
        ({"delay": True}, r"Flight\.delay must be int, not bool"),
        ({"delay": 1 << 63}, "out of the range of long"),
        ({"seats": 1 << 31}, "out of the range of int"),
        ({"origin": {"airport": "x"}}, r"Flight\.origin must be Place, not dict"),
        ({"origin": Place(5)}, r"Flight\.origin\.airport must be str, not int"),  # type: ignore[arg-type]
        ({"stops": [Place("a"), Place("b", "c")]}, r"Flight\.stops\[1\]\.gate must be int"),  # type: ignore[arg-type]
        ({"weights": {"a": "b"}}, r"Flight\.weights\['a'\] must be float"),
        ({"weights": {1: 1.0}}, "str keys"),
        ({"at": datetime(2026, 1, 1)}, r"Flight\.at has no timezone.*local-timestamp"),
        ({"local": MOMENT}, "local has a timezone"),
        ({"day": MOMENT}, "must be date, not datetime"),
        ({"clock": time(1, tzinfo=UTC)}, "clock has a timezone"),
        ({"cabin": "BUSINESS"}, "must be one of ECONOMY, FIRST"),
        ({"kind": "up"}, "must be one of in, out"),
        ({"note": 5}, r"Flight\.note must be str"),
        ({"stops": "text"}, "stops must be list, not str"),
    ],
)
@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_values_that_do_not_fit(kind: Any, more: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidRecord, match=match):
        kind(Flight).encode(flight(**more))


def test_other_values_and_bytes_that_do_not_fit() -> None:
    schema = JsonSchema(Place)
    with pytest.raises(InvalidRecord, match="type Place, not Old"):
        schema.encode(Old("x"))  # type: ignore[arg-type]
    for data, match in (
        (b"{}", r"Place lacks the field 'airport'"),
        (b'{"airport": 1}', r"Place\.airport must be str, not int"),
        (b'{"airport": null}', "must be str, not NoneType"),
        (b"[]", "no object"),
    ):
        with pytest.raises(InvalidRecord, match=match):
            schema.decode(data)
    with pytest.raises(InvalidRecord, match="raw is not UTF-8"):
        JsonSchema(Flight).encode(flight(raw=b"\xff"))
    with pytest.raises(InvalidRecord, match="does not fit the Avro schema"):
        AvroSchema(Flight).encode(flight(price=Decimal("1e-30")))
    text = JsonSchema(Flight).encode(flight()).replace(str(ID).encode(), b"no id")
    with pytest.raises(InvalidRecord, match="'no id', which is no UUID"):
        JsonSchema(Flight).decode(text)
    moved = JsonSchema(Flight).encode(flight()).replace(b"1795222923456789", b"9" * 18)
    with pytest.raises(InvalidRecord, match="Python cannot hold as datetime"):
        JsonSchema(Flight).decode(moved)


def test_moments_and_texts() -> None:
    east = flight(at=MOMENT.astimezone(timezone(timedelta(hours=9))))
    for kind in (AvroSchema, JsonSchema):
        schema: Any = kind(Flight)
        assert schema.encode(east) == schema.encode(flight())
    texts: Any = make_dataclass(
        "Texts", [("at", Annotated[datetime, AvroType("string")]), ("price", Annotated[Decimal, AvroType("string")])]
    )
    for kind in (AvroSchema, JsonSchema):
        schema = kind(texts)
        value = texts(MOMENT, Decimal("1.10"))
        assert schema.decode(schema.encode(value)) == value
    assert b"2026-11-21T01:02:03.456789+00:00" in JsonSchema(texts).encode(texts(MOMENT, Decimal(1)))


def test_a_model_is_told_by_its_class_even_in_an_instance() -> None:
    schema: Any = JsonSchema(Place("x"))  # type: ignore[call-overload]
    assert schema.decode(b'{"airport": "JFK"}') == Place("JFK")
    assert ours.schema_from_info(schema.schema_info()).decode(b'{"airport": "JFK"}') == {"airport": "JFK"}


class Plain:
    """A class that is no record, but says what it is."""

    definition: ClassVar[Any] = {
        "type": "record",
        "name": "Plain",
        "fields": [
            {"name": "course", "type": "string"},
            {"name": "color", "type": ["null", {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}]},
        ],
    }

    def __init__(self, course: str, color: Any = None) -> None:
        self.course, self.color = course, color

    @classmethod
    def schema(cls) -> Any:
        """Return the definition."""
        return cls.definition


def test_class_with_a_definition_as_by_official() -> None:
    for kind in (AvroSchema, JsonSchema):
        schema: Any = kind(Plain)
        assert schema.schema_info().definition() == Plain.definition
        read = schema.decode(schema.encode(Plain("x", Color.RED)))
        assert type(read) is Plain and read.course == "x"
        for wrong in ({"course": "x"}, None):
            with pytest.raises(InvalidRecord, match="type Plain"):
                schema.encode(wrong)
        with pytest.raises(InvalidRecord):
            schema.encode(Plain(5, color=object()))  # type: ignore[arg-type]
    assert AvroSchema(Plain).encode(Plain("x", Color.RED)) == b"\x02x\x02\x00"
    assert JsonSchema(Plain).encode(Plain("x", Plain("y"))) == b'{"course":"x","color":{"course":"y","color":null}}'
    with pytest.raises(InvalidRecord, match="constructor of Plain"):
        JsonSchema(Plain).decode(b'{"course": "x", "zzz": 1}')


@pytest.mark.parametrize("wrong", [None, 5, "no json", []], ids=["none", "int", "text", "list"])
def test_class_with_a_wrong_definition_is_refused(wrong: object) -> None:
    kind = type("Odd", (), {"schema": staticmethod(lambda: wrong)})
    for schema in (AvroSchema, JsonSchema):
        with pytest.raises(InvalidConfiguration):
            schema(kind)
