"""Schemas: records, fields, their errors, what is registered, and values read with another schema than written."""

from __future__ import annotations

import enum
import io
import json
from types import ModuleType
from typing import Any

from compat.program import Env, Observed, program, text


class Color(enum.Enum):
    RED = 1
    GREEN = 2


def _classes(schema: ModuleType) -> tuple[Any, Any]:
    class Inner(schema.Record):  # type: ignore[misc, name-defined]
        a = schema.Integer()
        b = schema.String(default="none")

    class Outer(schema.Record):  # type: ignore[misc, name-defined]
        flag = schema.Boolean()
        number = schema.Integer(required=True)
        big = schema.Long(default=5)
        real = schema.Float()
        double = schema.Double()
        data = schema.Bytes()
        name = schema.String(required=True)
        color = Color
        inner = Inner()
        list = schema.Array(schema.Integer())
        records = schema.Array(Inner())
        map = schema.Map(schema.String())

    return Inner, Outer


def _naming(env: Env, name: str, call: Any) -> Any:
    """Return the error of a call, and whether its text names the field."""
    try:
        call()
    except Exception as error:
        return [env.describe(error), name in str(error)]
    return None


@program()
def schema_of_a_record(pulsar: ModuleType, env: Env) -> Observed:
    _, outer = _classes(pulsar.schema)
    return {"schema": outer.schema(), "order": [each["name"] for each in outer.schema()["fields"]]}


@program()
def schema_info_of_a_record(pulsar: ModuleType, env: Env) -> Observed:
    inner, _ = _classes(pulsar.schema)
    names: set[str] = set()
    first, again = inner.schema_info(names), inner.schema_info(names)
    return {"first": first, "again": again, "names": sorted(names)}


@program()
def sorted_and_named(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema

    class Named(schema.Record):  # type: ignore[misc, name-defined]
        _avro_namespace = "com.example"
        _sorted_fields = True
        b = schema.Integer(default=3, required_default=True)
        a = schema.String()

    return {"schema": Named.schema()}


@program()
def record_values(pulsar: ModuleType, env: Env) -> Observed:
    inner, outer = _classes(pulsar.schema)
    made = outer(number=1, name="n", color=Color.GREEN, inner=inner(a=2), list=[1, 2], map={"a": "b"})
    return {
        "defaults": [made.flag, made.big, made.real, made.data, made.records, made.inner.b],
        "values": [made.number, made.name, made.color.name, made.inner.a, made.list, made.map],
        "empty": [outer().number, outer().name, outer().color, outer().inner is not None],
        "equal": [inner(a=1) == inner(a=1), inner(a=1) == inner(a=2), inner(a=1) != inner(a=2)],
        "from dicts": [
            outer(inner={"a": 9}).inner.a, outer(records=[{"a": 1}, {"a": 2}]).records[1].a,
        ],
        "unknown": env.error(lambda: inner(nonsense=5)),
        "type": [made.type(), made.python_type() is outer],
        "position": env.error(lambda: inner(1, 2, 3, 4)),
    }  # fmt: skip


@program()
def record_text(pulsar: ModuleType, env: Env) -> Observed:
    inner, _ = _classes(pulsar.schema)
    return {"str": str(inner(a=1, b="x")), "dict": sorted(inner(a=1).__dict__)}


@program()
def record_attributes(pulsar: ModuleType, env: Env) -> Observed:
    inner, outer = _classes(pulsar.schema)
    made = inner(a=1)
    made.a = 5

    def undeclared() -> None:
        made.nonsense = 1

    def read() -> Any:
        return made.nothing

    def wrong() -> None:
        made.a = "x"

    made.b = None
    return {
        "set": made.a,
        "none gives the default": made.b,
        "undeclared": _naming(env, "nonsense", undeclared),
        "read": env.error(read),
        "wrong": env.error(wrong),
        "still": made.a,
        "sub-record": env.error(lambda: outer(inner=5)),
        "without a class": env.error(lambda: pulsar.schema.Record(a=1)),
    }


WRONG: dict[str, Any] = {
    "flag": "x", "number": "x", "big": 1.5, "real": "x", "double": "x", "name": 5, "color": "BLUE", "inner": "x",
    "list": "x", "records": [5], "map": "x",
}  # fmt: skip


@program()
def type_errors(pulsar: ModuleType, env: Env) -> Observed:
    _, outer = _classes(pulsar.schema)
    schema = pulsar.schema
    tries = {name: (name, lambda name=name: outer(**{name: WRONG[name]})) for name in WRONG} | {
        "color number": ("color", lambda: outer(color=9)),
        "color float": ("color", lambda: outer(color=1.5)),
        "list of text": ("list", lambda: outer(list=["x"])),
        "map of numbers": ("map", lambda: outer(map={"a": 5})),
        "map keys": ("map", lambda: outer(map={5: "a"})),
        "null": ("field", lambda: schema.Null().validate_type("field", 5)),
        "default": ("default", lambda: schema.Integer(default="x")),
        "enum class": ("int", lambda: schema.CustomEnum(int)),
        "array class": ("int", lambda: schema.Array(int)),
        "map class": ("int", lambda: schema.Map(int)),
    }
    return {label: _naming(env, *each) for label, each in tries.items()}


FIELDS = ("Null", "Boolean", "Integer", "Long", "Float", "Double", "Bytes", "String")


@program(cases={name: (name,) for name in FIELDS})
def field(pulsar: ModuleType, env: Env, name: str) -> Observed:
    made = getattr(pulsar.schema, name)()
    kinds = made.python_type()
    values: list[Any] = [None, True, 1, 1.5, "x", b"x", []]
    return {
        "type": made.type(),
        "schema": made.schema(),
        "info": made.schema_info(set()),
        "python": [each.__name__ for each in (kinds if isinstance(kinds, tuple) else (kinds,))],
        "default": made.default(),
        "required default": made.required_default(),
        "values": [
            env.error(lambda: made.validate_type("f", value)) or repr(made.validate_type("f", value))  # noqa: B023
            for value in values
        ],
        "field": isinstance(made, pulsar.schema.Field),
    }


@program()
def field_options(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    return {
        "default": schema.Integer(5).default(),
        "keywords": schema.String(default="x", required=True, required_default=True).required_default(),
        "positions": schema.Long(1, True, True).required_default(),
        "required none": _naming(env, "field", lambda: schema.Integer(required=True).validate_type("field", None)),
        "text of bytes": schema.String().validate_type("f", b"abc"),
        "bytes of text": text(schema.Bytes().validate_type("f", "abc")),
        "false": schema.Boolean(default=True).default(),
    }


@program()
def compound_fields(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    inner, _ = _classes(schema)
    choice = schema.CustomEnum(Color, default=Color.RED)
    return {
        "array": [schema.Array(schema.String()).type(), schema.Array(schema.String()).schema()],
        "array of records": schema.Array(inner()).schema(),
        "map": [schema.Map(schema.Long()).type(), schema.Map(schema.Long()).schema()],
        "python": [
            schema.Array(schema.String()).python_type().__name__,
            schema.Map(schema.Long()).python_type().__name__,
        ],
        "enum": [choice.type(), choice.schema(), choice.default().name, choice.python_type().__name__],
        "enum values": [choice.validate_type("f", each).name for each in (Color.GREEN, "GREEN", 2)],
        "enum none": choice.validate_type("f", None),
        "nested": schema.Array(schema.Array(schema.Integer())).schema(),
    }


@program()
def schema_info(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    inner, _ = _classes(schema)
    found = {}
    for made in (schema.BytesSchema(), schema.StringSchema(), schema.JsonSchema(inner), schema.AvroSchema(inner)):
        info = made.schema_info()
        definition = info.schema()
        found[type(made).__name__] = [
            info.name(), str(info.schema_type()), json.loads(definition or "null"),
        ]  # fmt: skip
    return found


@program()
def schema_text(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    return {
        "str": [str(schema.BytesSchema()), str(schema.StringSchema())],
        "same": pulsar.BytesSchema is schema.BytesSchema,
        "subclass": issubclass(schema.JsonSchema, schema.Schema),
    }


@program()
def encode_and_decode(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    inner, _ = _classes(schema)
    made = inner(a=1, b="x")
    return {
        "bytes": [text(schema.BytesSchema().encode(b"x")), text(schema.BytesSchema().decode(b"x"))],
        "string": [text(schema.StringSchema().encode("ü")), schema.StringSchema().decode(b"x")],
        "json": json.loads(schema.JsonSchema(inner).encode(made)),
        "json back": str(schema.JsonSchema(inner).decode(b'{"a": 7, "b": "y"}').a),
        "avro": schema.AvroSchema(inner).encode(made).hex(),
        "avro back": schema.AvroSchema(inner).decode(schema.AvroSchema(inner).encode(made)) == made,
        "wrong": [
            env.error(lambda: schema.BytesSchema().encode("x")), env.error(lambda: schema.StringSchema().encode(b"x")),
            env.error(lambda: schema.JsonSchema(inner).encode({"a": 1})),
            env.error(lambda: schema.AvroSchema(inner).encode({"a": 1})),
            env.error(lambda: schema.JsonSchema(inner).encode(None)),
        ],
    }  # fmt: skip


@program()
def send_of_the_wrong_type(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    inner, _ = _classes(schema)
    client = env.client()
    texts = client.create_producer(env.topic("text"), schema=schema.StringSchema())
    records = client.create_producer(env.topic("json"), schema=schema.JsonSchema(inner))
    return {
        "bytes": env.error(lambda: texts.send(b"x")),
        "number": env.error(lambda: texts.send(5)),
        "dict": env.error(lambda: records.send({"a": 1})),
        "text": env.error(lambda: records.send("x")),
        "async": env.error(lambda: records.send_async("x", lambda result, place: None)),
    }


@program(cases={"json": ("JsonSchema",), "avro": ("AvroSchema",)})
def round_trip(pulsar: ModuleType, env: Env, kind: str) -> Observed:
    schema = pulsar.schema
    inner, outer = _classes(schema)
    made, client, topic = getattr(schema, kind)(outer), env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", schema=made)
    producer = client.create_producer(topic, schema=made)
    sent = outer(number=1, name="n", color=Color.GREEN, inner=inner(a=2), list=[1], map={"a": "b"}, real=1.5)
    if kind == "AvroSchema":
        sent.data = b"\x00\xff"
    producer.send(sent)
    message = consumer.receive(10_000)
    value = message.value()
    return {
        "values": [value.number, value.name, value.list, value.map, value.big, value.real, value.flag],
        "inner": [type(value.inner).__name__, value.inner.a, value.inner.b],
        "class": isinstance(value, outer),
        "color": str(value.color),
        "version": [type(message.schema_version()).__name__, len(message.schema_version())],
    }


@program()
def schema_version(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", schema=schema.StringSchema())
    client.create_producer(topic, schema=schema.StringSchema()).send("x")
    plain = client.subscribe(env.topic("plain"), "sub")
    client.create_producer(env.topic("plain")).send(b"x")
    version = consumer.receive(10_000).schema_version()
    none = plain.receive(10_000).schema_version()
    return {"type": type(version).__name__, "value": repr(version), "none": repr(none)}


@program()
def avro_dicts(pulsar: ModuleType, env: Env) -> Observed:
    definition = {
        "type": "record", "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "string"], "default": None}],
    }  # fmt: skip
    made, client, topic = pulsar.schema.AvroSchema(None, definition), env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", schema=made)
    producer = client.create_producer(topic, schema=made)
    producer.send({"a": 1, "b": "x"})
    producer.send({"a": 2, "unknown": 5})
    producer.send({"a": 3})
    return {
        "values": [each.value() for each in env.drain(consumer, 3)],
        "not a dict": env.error(lambda: producer.send(5)),
        "missing": env.error(lambda: producer.send({"b": "x"})),
        "wrong": env.error(lambda: producer.send({"a": "x"})),
        "neither": env.error(lambda: pulsar.schema.AvroSchema(None)),
        "info": json.loads(made.schema_info().schema())["name"],
    }


@program()
def avro_earlier_version(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema

    class First(schema.Record):  # type: ignore[misc, name-defined]
        a = schema.Integer()

    class Second(schema.Record):  # type: ignore[misc, name-defined]
        a = schema.Integer()
        b = schema.String(default="new", required_default=True)

    client, topic = env.client(), env.topic()
    First.__name__ = Second.__name__ = "Event"
    consumer = client.subscribe(topic, "sub", schema=schema.AvroSchema(First))
    client.create_producer(topic, schema=schema.AvroSchema(First)).send(First(a=1))
    client.create_producer(topic, schema=schema.AvroSchema(Second)).send(Second(a=2, b="x"))
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=schema.AvroSchema(Second))
    old = [each.value().a for each in env.drain(consumer, 2)]
    values = [reader.read_next(5000).value() for _ in range(2)]
    return {"old class": old, "new class": [[each.a, each.b] for each in values]}


@program()
def avro_other_class_name(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema

    class Writer(schema.Record):  # type: ignore[misc, name-defined]
        a = schema.Integer()
        b = schema.String()

    class Reader(schema.Record):  # type: ignore[misc, name-defined]
        a = schema.Integer()

    client, topic = env.client(), env.topic()
    client.create_producer(topic, schema=schema.AvroSchema(Writer)).send(Writer(a=1, b="x"))
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=schema.AvroSchema(Reader))
    return {"a": reader.read_next(5000).value().a}


@program()
def incompatible(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    inner, _ = _classes(schema)
    client, topic = env.client(), env.topic()
    client.create_producer(topic, schema=schema.StringSchema())
    return {
        "producer": env.error(lambda: client.create_producer(topic, schema=schema.JsonSchema(inner))),
        "consumer": env.error(lambda: client.subscribe(topic, "sub", schema=schema.JsonSchema(inner))),
        "bytes": env.error(lambda: client.subscribe(topic, "sub")),
    }


@program()
def own_schema(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    base = schema.BytesSchema().schema_info()

    class Doubled(schema.BytesSchema):  # type: ignore[misc, name-defined]
        def encode(self, obj: Any) -> bytes:
            encoded: bytes = super().encode(obj)
            return encoded * 2

        def decode(self, data: bytes) -> Any:
            return ["decoded", data.decode()]

    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", schema=Doubled())
    client.create_producer(topic, schema=Doubled()).send(b"ab")
    message = consumer.receive(10_000)
    return {"data": text(message.data()), "value": message.value(), "name": base.name()}


@program()
def own_schema_from_the_base(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    kind = schema.BytesSchema().schema_info().schema_type()

    class Mine(schema.Schema):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(list, kind, None, "MINE")

        def encode(self, obj: Any) -> bytes:
            self._validate_object_type(obj)
            return json.dumps(obj).encode()

        def decode(self, data: bytes) -> Any:
            return json.loads(data)

    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", schema=Mine())
    producer = client.create_producer(topic, schema=Mine())
    producer.send([1, "a"])
    return {"value": consumer.receive(10_000).value(), "wrong": env.error(lambda: producer.send("x"))}


@program()
def string_null_value(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", schema=schema.StringSchema())
    client.create_producer(topic, schema=schema.StringSchema()).send(None)
    message = consumer.receive(10_000)
    return {"value": message.value(), "null": message.has_null_value()}


@program()
def json_values(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    _, outer = _classes(schema)
    made = schema.JsonSchema(outer)
    sent = json.loads(made.encode(outer(number=1, name="n", color=Color.RED, data=b"abc")))
    back = made.decode(json.dumps(sent).encode())
    return {
        "sent": {key: sent[key] for key in ("number", "name", "color", "data", "big", "flag", "list", "inner")},
        "back": [back.number, back.name, back.color.name, text(back.data)],
        "missing": made.decode(b'{"number": 5}').name,
        "unknown key": env.error(lambda: made.decode(b'{"number": 5, "nonsense": 1}')),
        "garbage": env.error(lambda: made.decode(b"garbage")),
        "nested": type(made.decode(b'{"inner": {"a": 1}}').inner).__name__,
        "records": type(made.decode(b'{"records": [{"a": 1}]}').records[0]).__name__,
    }


@program()
def protobuf_native(pulsar: ModuleType, env: Env) -> Observed:
    from google.protobuf import wrappers_pb2

    made = pulsar.schema.ProtobufNativeSchema(wrappers_pb2.StringValue)
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", schema=made)
    producer = client.create_producer(topic, schema=made)
    producer.send(wrappers_pb2.StringValue(value="x"))
    definition = json.loads(made.schema_info().schema())
    return {
        "value": consumer.receive(10_000).value().value,
        "str": str(made),
        "wrong class": env.error(lambda: pulsar.schema.ProtobufNativeSchema(int)),
        "no class": env.error(lambda: pulsar.schema.ProtobufNativeSchema("x")),
        "none": env.error(lambda: pulsar.schema.ProtobufNativeSchema(None)),
        "wrong value": env.error(lambda: producer.send("x")),
        "info": [made.schema_info().name(), str(made.schema_info().schema_type()), definition["rootMessageTypeName"]],
    }


@program()
def record_as_a_field(pulsar: ModuleType, env: Env) -> Observed:
    inner, _ = _classes(pulsar.schema)
    plain, full = inner(), inner(default=inner(a=5), required=True, required_default=True)
    return {
        "default": [plain.default(), full.default().a],
        "required default": [plain.required_default(), full.required_default()],
        "none": [plain.validate_type("f", None), _naming(env, "f", lambda: full.validate_type("f", None))],
        "wrong": [
            _naming(env, "f", lambda: plain.validate_type("f", 5)),
            _naming(env, "f", lambda: plain.validate_type("f", {"a": 1})),
        ],
        "right": plain.validate_type("f", inner(a=7)).a,
        "hash": env.error(lambda: hash(plain)),
        "ranges": env.error(lambda: pulsar.schema.AvroSchema(inner).encode(inner(a=2**40))),
        "bool": inner(a=True).a,
    }


@program()
def parent_fields(pulsar: ModuleType, env: Env) -> Observed:
    """The fields are those of the class itself."""
    schema = pulsar.schema

    class Parent(schema.Record):  # type: ignore[misc, name-defined]
        a = schema.Integer()

    class Child(Parent):
        b = schema.String()

    return {"schema": Child.schema(), "made": Child(a=1, b="x").b}


@program()
def payloads_that_do_not_fit(pulsar: ModuleType, env: Env) -> Observed:
    """Errors of `value()` when a topic has messages of producers without the schema."""
    schema = pulsar.schema
    inner, _ = _classes(schema)
    client, found = env.client(), {}
    for label, made in {"string": schema.StringSchema(), "json": schema.JsonSchema(inner)}.items():
        topic = env.topic(label)
        consumer = client.subscribe(topic, "sub", schema=made)
        producer = client.create_producer(topic)
        for content in (b"\xff\xfe", b"no json", b"[1]", b'{"a": "x"}'):
            producer.send(content)
        found[label] = [env.error(each.value) for each in env.drain(consumer, 4)]
    return found


@program()
def json_errors_of_python(pulsar: ModuleType, env: Env) -> Observed:
    inner, _ = _classes(pulsar.schema)
    try:
        pulsar.schema.JsonSchema(inner).decode(b"no json")
    except json.JSONDecodeError as error:
        return {"position": [error.pos, error.lineno, error.doc]}
    return {}


@program()
def json_bytes(pulsar: ModuleType, env: Env) -> Observed:
    inner, _ = _classes(pulsar.schema)
    return {"bytes": text(pulsar.schema.JsonSchema(inner).encode(inner(a=1, b="ü")))}


@program()
def definition_text(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    inner, _ = _classes(schema)
    made = (schema.BytesSchema(), schema.StringSchema(), schema.JsonSchema(inner), schema.AvroSchema(inner))
    return {type(each).__name__: each.schema_info().schema() for each in made}


PLAIN = {
    "type": "record", "name": "Plain",
    "fields": [{"name": "a", "type": "string"}, {"name": "b", "type": ["null", "int"], "default": None}],
}  # fmt: skip


@program(cases={"json": ("JsonSchema",), "avro": ("AvroSchema",)})
def class_with_a_definition(pulsar: ModuleType, env: Env, kind: str) -> Observed:
    """A record class that is no Record, as those of the package puavro."""

    class Plain:
        def __init__(self, **values: Any) -> None:
            self.__dict__.update(values)

        @classmethod
        def schema(cls) -> Any:
            return PLAIN

    made, client, topic = getattr(pulsar.schema, kind)(Plain), env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", schema=made)
    producer = client.create_producer(topic, schema=made)
    producer.send(Plain(a="x", b=5))
    value = consumer.receive(10_000).value()
    return {
        "value": [type(value) is Plain, vars(value)],
        "definition": json.loads(made.schema_info().schema()),
        "wrong": env.error(lambda: producer.send({"a": "x"})),
        "names": [made._record_cls is Plain, kind == "JsonSchema" or made._schema == PLAIN],
    }


@program()
def avro_class_written_by_a_subclass(pulsar: ModuleType, env: Env) -> Observed:
    """As the package puavro does it: dictionaries, written with fastavro."""
    import fastavro

    class Plain(dict[str, Any]):
        @classmethod
        def schema(cls) -> Any:
            return PLAIN

    class Own(pulsar.schema.AvroSchema):  # type: ignore[misc, name-defined]
        def encode(self, obj: Any) -> bytes:
            self._validate_object_type(obj)
            out = io.BytesIO()
            fastavro.schemaless_writer(out, self._schema, obj)
            return out.getvalue()

    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", schema=Own(Plain))
    producer = client.create_producer(topic, schema=Own(Plain))
    producer.send(Plain(a="x", b=5))
    value = consumer.receive(10_000).value()
    return {"value": [type(value) is Plain, value], "wrong": env.error(lambda: producer.send({"a": "x"}))}


@program()
def own_avro_decode(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    inner, _ = _classes(schema)

    class Own(schema.AvroSchema):  # type: ignore[misc, name-defined]
        def decode(self, data: bytes) -> Any:
            return ["decoded", super().decode(data).a]

    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", schema=Own(inner))
    client.create_producer(topic, schema=Own(inner)).send(inner(a=1))
    value = consumer.receive(10_000).value()
    return {"decode": Own(inner).decode(b"\x02\x02\x00"), "value": value if isinstance(value, list) else value.a}


@program()
def own_schema_reads_its_info(pulsar: ModuleType, env: Env) -> Observed:
    kind = pulsar.schema.BytesSchema().schema_info().schema_type()

    class Mine(pulsar.schema.Schema):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(None, kind, {"a": 1}, "MINE")

    info = Mine()._schema_info
    return {"info": [info.name(), json.loads(info.schema())]}


@program(cases={"json": ("JsonSchema",), "avro": ("AvroSchema",)})
def own_constructor(pulsar: ModuleType, env: Env, kind: str) -> Observed:
    schema = pulsar.schema

    class Refused(Exception):
        pass

    class Counted(schema.Record):  # type: ignore[misc, name-defined]
        a = schema.Integer()

        def __init__(self, *args: Any, **values: Any) -> None:
            super().__init__(*args, **values)
            if self.a == 13:
                raise Refused
            self.a = (self.a or 0) + 1

    class Holder(schema.Record):  # type: ignore[misc, name-defined]
        one = Counted()
        many = schema.Array(Counted())

    class Doubled(schema.Record):  # type: ignore[misc, name-defined]
        a = schema.Integer()
        b = schema.Integer(default=5)

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value * 2 if name == "a" else value)

    class Plain(schema.Record):  # type: ignore[misc, name-defined]
        a = schema.Integer()

    def again(value: Any) -> Any:
        made = getattr(schema, kind)(type(value))
        return made.decode(made.encode(value))

    def refused() -> Any:
        return getattr(schema, kind)(Counted).decode(getattr(schema, kind)(Plain).encode(Plain(a=13)))

    holder = again(Holder(one=Counted(a=1), many=[Counted(a=5)]))
    return {
        "made": Counted(a=1).a,
        "read": again(Counted(a=1)).a,
        "nested": [holder.one.a, [each.a for each in holder.many]],
        "set": [Doubled(a=1).a, Doubled(a=1).b, again(Doubled(a=1)).a],
        "refused": env.error(refused),
    }


@program()
def constructor_without_super(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema

    class Partial(schema.Record):  # type: ignore[misc, name-defined]
        a = schema.Integer()
        b = schema.String(default="not set")

        def __init__(self, a: int) -> None:
            self.a = a

    made = Partial(4)
    return {
        "avro": schema.AvroSchema(Partial).encode(made).hex(),
        "json": json.loads(schema.JsonSchema(Partial).encode(made)),
        "str": str(made),
        "field": isinstance(made.b, schema.String),
        "decode": env.error(lambda: schema.JsonSchema(Partial).decode(b'{"a": 4, "b": "x"}')),
    }


@program()
def nested_classes(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema

    class Outer(schema.Record):  # type: ignore[misc, name-defined]
        class Inner(schema.Record):  # type: ignore[misc, name-defined]
            x = schema.Integer()

        class Kind(enum.Enum):
            A = 1

        inner = Inner(x=4)
        kind = Kind

    made = Outer(inner=Outer.Inner(x=3), kind=Outer.Kind.A)
    return {
        "json": json.loads(schema.JsonSchema(Outer).encode(made)),
        "avro": schema.AvroSchema(Outer).encode(made).hex(),
        "attribute": [Outer.inner.x, isinstance(Outer.inner, Outer.Inner), str(Outer.kind.A)],
        "schema": Outer.schema(),
    }


@program()
def containers_changed_later(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema

    class Tagged(schema.Record):  # type: ignore[misc, name-defined]
        tags = schema.Array(schema.String())
        counts = schema.Map(schema.Integer())

    tags: list[str] = []
    counts: dict[str, int] = {}
    made, other = Tagged(tags=tags, counts=counts), Tagged()
    other.tags = late = []
    tags.append("a")
    counts["k"] = 1
    late.append("z")
    return {"sent": json.loads(schema.JsonSchema(Tagged).encode(made)), "set": other.tags}


@program()
def enumeration_aliases(pulsar: ModuleType, env: Env) -> Observed:
    class Aliased(enum.Enum):
        RED = 1
        CRIMSON = 1  # noqa: PIE796
        GREEN = 2

    class Painted(pulsar.schema.Record):  # type: ignore[misc, name-defined]
        color = Aliased

    made = Painted(color=Aliased.CRIMSON)
    return {
        "schema": Painted.schema(),
        "json": json.loads(pulsar.schema.JsonSchema(Painted).encode(made)),
        "avro": pulsar.schema.AvroSchema(Painted).encode(made).hex(),
    }


@program()
def overridden_definitions(pulsar: ModuleType, env: Env) -> Observed:
    schemas = pulsar.schema

    class Whole(schemas.Record):  # type: ignore[misc, name-defined]
        a = schemas.Long()

        @classmethod
        def schema(cls) -> Any:
            return {**super().schema(), "doc": "mine"}

    class Part(schemas.Record):  # type: ignore[misc, name-defined]
        a = schemas.Long()

        @classmethod
        def schema_info(cls, defined_names: set[str]) -> Any:
            made = super().schema_info(defined_names)
            return {**made, "doc": "mine"} if isinstance(made, dict) else made

    class Outer(schemas.Record):  # type: ignore[misc, name-defined]
        one = Part()
        two = Part()

    kinds = (schemas.AvroSchema, schemas.JsonSchema)
    return {
        each.__name__: [json.loads(kind(each).schema_info().schema()) for kind in kinds]
        for each in (Whole, Part, Outer)
    }


@program()
def overridden_fields(pulsar: ModuleType, env: Env) -> Observed:
    import datetime

    schema = pulsar.schema

    class Address(schema.String):  # type: ignore[misc, name-defined]
        def validate_type(self, name: str, val: Any) -> Any:
            val = super().validate_type(name, val)
            if val is not None and "@" not in val:
                raise ValueError(name)
            return val

    class Day(schema.String):  # type: ignore[misc, name-defined]
        def validate_type(self, name: str, val: Any) -> Any:
            return super().validate_type(name, val.isoformat() if isinstance(val, datetime.date) else val)

    class Identifier(schema.String):  # type: ignore[misc, name-defined]
        def schema_info(self, defined_names: set[str]) -> Any:
            return {"type": "string", "avro.java.string": "String"}

    class Timestamp(schema.Field):  # type: ignore[misc, name-defined]
        def type(self) -> Any:
            return {"type": "long", "logicalType": "timestamp-millis"}

        def python_type(self) -> Any:
            return datetime.datetime

    class Mail(schema.Record):  # type: ignore[misc, name-defined]
        to = Address()
        day = Day()
        id = Identifier()
        at = Timestamp()

    at = datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)
    made = Mail(to="a@b", day=datetime.date(2024, 1, 2), id="1", at=at)
    avro = schema.AvroSchema(Mail)
    return {
        "values": [made.to, made.day, made.id, str(made.at)],
        "schema": Mail.schema(),
        "avro": avro.encode(made).hex(),
        "back": str(avro.decode(avro.encode(made)).at),
        "address": env.error(lambda: Mail(to="nobody")),
        "number": env.error(lambda: Mail(to=5)),
        "time": env.error(lambda: Mail(at=5)),
    }


@program()
def record_fields(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema
    inner, outer = _classes(schema)
    fields = outer._fields
    return {
        "names": list(fields),
        "types": [each.type() for each in fields.values()],
        "record": isinstance(fields["inner"], inner),
        "values": {name: getattr(inner(a=1), name) for name in inner._fields},
        "enum": {key: str(member) for key, member in schema.CustomEnum(Color).values.items()},
    }


@program()
def avro_numbers_of_data_frames(pulsar: ModuleType, env: Env) -> Observed:
    import numpy as np

    def encoded(kind: Any, value: Any) -> Any:
        made = pulsar.schema.AvroSchema(None, {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})
        try:
            return made.encode({"a": value}).hex()
        except Exception as error:
            return env.describe(error)

    return {
        "integers": [encoded("int", np.int32(5)), encoded("long", np.int64(5)), encoded(["null", "int"], np.int64(5))],
        "reals": [
            encoded("float", np.float32(1.5)),
            encoded("double", np.float64(1.5)),
            encoded("double", np.int64(4)),
        ],
        "float for int": encoded("int", 1.0),
        "fraction for int": encoded("int", 1.5),
        "bool for int": encoded("int", True),
    }


@program()
def avro_values_of_dictionaries(pulsar: ModuleType, env: Env) -> Observed:
    import array
    import collections
    import datetime
    import decimal

    import numpy as np

    def encoded(kind: Any, *values: Any) -> Any:
        made = pulsar.schema.AvroSchema(None, {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})
        found = []
        for value in values:
            try:
                found.append(made.encode({"a": value}).hex())
            except Exception as error:
                found.append(env.describe(error))
        return found

    numbers, fixed = {"type": "array", "items": "int"}, {"type": "fixed", "name": "F", "size": 2}
    rows = [range(2), collections.deque([1, 2]), array.array("i", [1, 2])]
    return {
        "booleans": encoded("boolean", True, np.bool_(True), np.bool_(False)),
        "bytes": encoded("bytes", b"ab", bytearray(b"ab"), memoryview(b"ab")),
        "nullable bytes": encoded(["null", "bytes"], b"ab", bytearray(b"ab")),
        "fixed": encoded(fixed, b"ab", bytearray(b"ab"), memoryview(b"ab")),
        "arrays": encoded(numbers, [1, 2], (1, 2), np.array([1, 2]), *rows),
        "nullable arrays": encoded(["null", numbers], [1, 2], *rows),
        "decimals": encoded("float", decimal.Decimal("1.5")) + encoded("double", decimal.Decimal("0.1")),
        "dates": encoded({"type": "int", "logicalType": "date"}, datetime.date(2026, 1, 2), "2026-01-02"),
        "nullable NumPy": encoded(["null", numbers], np.array([1, 2])) + encoded(["null", "boolean"], np.bool_(True)),
        "set": encoded(numbers, {1}),
        "dictionary's values": encoded(numbers, {1: 1}.values()),
        "bytes for array": encoded(numbers, b"x", bytearray(b"x")),
        "numbers for boolean": encoded("boolean", 1, 0.5),
        "text for boolean": encoded("boolean", "false"),
        "bool for double": encoded("double", True),
    }


@program()
def payloads_that_end_early(pulsar: ModuleType, env: Env) -> Observed:
    inner, _ = _classes(pulsar.schema)
    made = pulsar.schema.AvroSchema(inner)
    return {"empty": env.error(lambda: made.decode(b"")), "text": env.error(lambda: made.decode(b"\x02\x02\x02\x0ab"))}
