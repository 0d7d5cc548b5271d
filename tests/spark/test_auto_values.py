"""Values decoded by the topic's registered schema into columns, on a real broker and Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pulsar_native import Client, schema
from pulsar_native.schema import AvroSchema, JsonSchema, KeyValue, KeyValueEncodingType, KeyValueSchema, Schema
from support.brokers import Broker, NewTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

Read = Callable[..., "DataFrame"]


@pytest.fixture
def auto(read: Read, broker: Broker) -> Read:
    """Give what reads a topic of the shared broker with its values decoded by the registered schema."""

    def load(topic: str, **options: str) -> DataFrame:
        return read(topic, admin_url=broker.admin_url, valueFormat="auto", **options)

    return load


def publish(client: Client, topic: str, kind: Schema[Any], *values: Any, **message: Any) -> None:
    """Publish values of a schema in one batch; bytes stand for payloads that are not of it, None for null values."""
    producer = client.create_producer(topic, schema=kind, batching_enabled=True)
    for value in values:
        producer.send_async(value, None, **message)
    producer.flush()
    producer.close()


def publish_payloads(client: Client, topic: str, *payloads: bytes, batched: bool = False) -> list[Any]:
    """Publish payloads without a schema at a topic that has one; return their ids."""
    producer = client.create_producer(topic, batching_enabled=batched)
    found = [producer.send(payload) for payload in payloads]
    producer.close()
    return found


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as dictionaries."""
    found: list[Row] = frame.collect()
    return [row.asDict(recursive=True) for row in found]


def local(moment: datetime) -> datetime:
    """Return a moment as Spark returns it: without a zone, in that of this process."""
    return moment.astimezone().replace(tzinfo=None)


AT = datetime(2013, 1, 1, 5, 15, 0, 250_000, tzinfo=UTC)
PLAIN = datetime(2013, 1, 1, 5, 15, 0, 250_001)
PRIMITIVES: list[tuple[Schema[Any], str, Any, Any]] = [
    (schema.StringSchema(), "string", "é", "é"),
    (schema.BooleanSchema(), "boolean", True, True),
    (schema.Int8Schema(), "tinyint", -7, -7),
    (schema.Int16Schema(), "smallint", -300, -300),
    (schema.Int32Schema(), "int", 1 << 30, 1 << 30),
    (schema.Int64Schema(), "bigint", -(1 << 62), -(1 << 62)),
    (schema.FloatSchema(), "float", 1.5, 1.5),
    (schema.DoubleSchema(), "double", 0.1, 0.1),
    (schema.DateSchema(), "timestamp", AT, local(AT)),
    (schema.TimestampSchema(), "timestamp", AT, local(AT)),
    (schema.InstantSchema(), "timestamp", AT, local(AT)),
    (schema.TimeSchema(), "bigint", AT.time(), 18_900_250),
    (schema.LocalDateSchema(), "date", date(2013, 1, 1), date(2013, 1, 1)),
    (schema.LocalTimeSchema(), "bigint", PLAIN.time(), 18_900_250_001_000),
    (schema.LocalDateTimeSchema(), "timestamp_ntz", PLAIN, PLAIN),
]


@pytest.mark.proves("S10")
def test_auto_primitives_have_column_types(auto: Read, client: Client, topic: NewTopic) -> None:
    for kind, type_name, value, expected in PRIMITIVES:
        name = topic(type(kind).__name__)
        publish(client, name, kind, value, None, value)
        frame = auto(name, columns="value")
        assert frame.schema["value"].dataType.simpleString() == type_name, kind
        assert [row["value"] for row in rows(frame)] == [expected, None, expected], kind


@pytest.mark.proves("S10")
def test_auto_without_schema_is_bytes(auto: Read, client: Client, topic: NewTopic) -> None:
    name = topic("none")
    publish_payloads(client, name, b"x")
    frame = auto(name)
    assert frame.schema.simpleString().startswith("struct<value:binary,__key:binary,__topic:string")
    assert bytes(rows(frame)[0]["value"]) == b"x"


FLIGHT: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "delay", "type": ["null", "double"], "default": None},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "legs", "type": {"type": "array", "items": {"type": "record", "name": "Leg", "fields": [
            {"name": "to", "type": "string"}]}}},
        {"name": "who", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}  # fmt: skip
UUID = "6f1b9a40-1f1d-4d0c-9e58-0a5f9a8f8a11"


def flight(number: int) -> dict[str, Any]:
    """Return a value of the definition."""
    return {
        "id": number, "delay": None if number % 2 else 1.5, "day": date(2013, 1, 1), "at": AT, "clock": AT.time(),
        "price": Decimal("12.50"), "tags": {"carrier": "UA"}, "legs": [{"to": "JFK"}], "who": UUID,
    }  # fmt: skip


@pytest.mark.proves("S10")
def test_auto_avro_fields_are_columns(auto: Read, client: Client, topic: NewTopic) -> None:
    name = topic("avro", partitions=2)
    publish(client, name, AvroSchema(FLIGHT), *(flight(number) for number in range(5)))
    frame = auto(name, includeMetadata="false")
    assert frame.schema.simpleString() == (
        "struct<id:bigint,delay:double,day:date,at:timestamp,clock:int,price:decimal(9,2),tags:map<string,string>,"
        "legs:array<struct<to:string>>,who:string>"
    )
    found = sorted(rows(frame), key=lambda row: row["id"])
    assert found == [{**flight(number), "at": local(AT), "clock": 18_900_250} for number in range(5)]
    # The fields asked for, between metadata columns.
    narrow = auto(name, columns="__partition,who,ID")
    assert narrow.columns == ["__partition", "who", "id"]
    assert sorted((row["id"], row["who"]) for row in rows(narrow)) == [(number, UUID) for number in range(5)]


def evolving(*extra: dict[str, Any]) -> dict[str, Any]:
    """Return a version of a definition that gains fields."""
    return {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}, *extra]}


@pytest.mark.proves("S10")
def test_auto_avro_versions_resolve_to_newest(auto: Read, client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic("versions")
    amount = {"name": "amount", "type": ["null", "double"], "default": None}
    place = {"name": "place", "type": "string", "default": "here"}
    versions = [evolving(), evolving(amount), evolving(place, amount)]
    values: list[dict[str, Any]] = [{"id": 1}, {"id": 2, "amount": 2.5}, {"id": 3, "amount": 3.5, "place": "there"}]
    for definition, value in zip(versions, values, strict=True):
        publish(client, name, AvroSchema(definition), value)
    publish(client, name, AvroSchema(versions[0]), {"id": 4}, {"id": 5})  # An old writer goes on.
    frame = auto(name, columns="value,__schemaVersion")
    assert frame.columns == ["id", "place", "amount", "__schemaVersion"]
    assert [tuple(row.values()) for row in rows(frame)] == [
        (1, "here", None, 0),
        (2, "here", 2.5, 1),
        (3, "there", 3.5, 2),
        (4, "here", None, 0),
        (5, "here", None, 0),
    ]
    # An analysed frame keeps its columns when the topic gets another version before it is planned.
    analysed = auto(name, columns="value,__schemaVersion")
    assert analysed.columns == frame.columns
    more = {"name": "more", "type": ["null", "int"], "default": None}
    publish(
        client, name, AvroSchema(evolving(place, amount, more)), {"id": 6, "amount": 1.0, "place": "new", "more": 7}
    )
    assert [row["id"] for row in rows(analysed)] == [1, 2, 3, 4, 5, 6]
    assert rows(auto(name, columns="more,id"))[-1] == {"more": 7, "id": 6}


PERSON: dict[str, Any] = {
    "type": "record",
    "name": "Person",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "age", "type": ["null", "int"], "default": None},
        {"name": "pets", "type": {"type": "array", "items": {"type": "record", "name": "Pet", "fields": [
            {"name": "kind", "type": "string"}]}}},
    ],
}  # fmt: skip


@pytest.mark.proves("S10")
def test_auto_json_fields_are_columns(auto: Read, client: Client, topic: NewTopic) -> None:
    name = topic("json")
    values = [{"name": "é\n", "age": 3, "pets": [{"kind": "cat"}]}, {"name": "", "age": None, "pets": []}]
    publish(client, name, JsonSchema(PERSON), *values, None)
    frame = auto(name, includeMetadata="false")
    assert frame.schema.simpleString() == "struct<name:string,age:int,pets:array<struct<kind:string>>>"
    assert rows(frame) == [*values, {"name": None, "age": None, "pets": None}]


def protobuf_class() -> Any:
    """Return a Protobuf message class with each kind of field."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    state = file.enum_type.add(name="State")
    state.value.add(name="OPEN", number=0)
    state.value.add(name="PAID", number=1)
    order = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate(
        {
            "id": kinds.TYPE_UINT64,
            "count": kinds.TYPE_UINT32,
            "data": kinds.TYPE_BYTES,
            "paid": kinds.TYPE_BOOL,
        }.items(),
        1,
    ):
        order.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    order.field.add(name="state", number=5, type=kinds.TYPE_ENUM, type_name=".shop.State", label=kinds.LABEL_OPTIONAL)
    order.field.add(name="first", number=6, type=kinds.TYPE_MESSAGE, type_name=".shop.Line", label=kinds.LABEL_OPTIONAL)
    order.field.add(name="lines", number=7, type=kinds.TYPE_MESSAGE, type_name=".shop.Line", label=kinds.LABEL_REPEATED)
    entry = order.nested_type.add(name="StockEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    order.field.add(
        name="stock", number=8, type=kinds.TYPE_MESSAGE, type_name=".shop.Order.StockEntry", label=kinds.LABEL_REPEATED
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


@pytest.mark.proves("S10")
def test_auto_protobuf_fields_are_columns(auto: Read, client: Client, topic: NewTopic) -> None:
    name, made = topic("protobuf"), protobuf_class()
    full = made(id=(1 << 64) - 1, count=(1 << 32) - 1, data=b"\xff", paid=True, state=1, stock={"a": 1})
    full.first.sku = "x"
    full.lines.add(sku="y")
    publish(client, name, schema.ProtobufNativeSchema(made), full, made())
    frame = auto(name, includeMetadata="false")
    assert frame.schema.simpleString() == (
        "struct<id:decimal(20,0),count:bigint,data:binary,paid:boolean,state:string,first:struct<sku:string>,"
        "lines:array<struct<sku:string>>,stock:map<string,bigint>>"
    )
    first, second = rows(frame)
    assert first == {
        "id": Decimal((1 << 64) - 1), "count": (1 << 32) - 1, "data": b"\xff", "paid": True, "state": "PAID",
        "first": {"sku": "x"}, "lines": [{"sku": "y"}], "stock": {"a": 1},
    }  # fmt: skip
    assert second == {
        "id": Decimal(0), "count": 0, "data": b"", "paid": False, "state": "OPEN", "first": None, "lines": [],
        "stock": {},
    }  # fmt: skip


@pytest.mark.proves("S10")
@pytest.mark.parametrize("encoding", list(KeyValueEncodingType), ids=lambda encoding: encoding.name)
def test_auto_key_value_has_two_columns(
    auto: Read, client: Client, topic: NewTopic, encoding: KeyValueEncodingType
) -> None:
    name = topic(f"pairs-{encoding.name}")
    amount = {"name": "amount", "type": ["null", "double"], "default": None}
    for definition in (evolving(), evolving(amount)):
        pair = KeyValueSchema(schema.StringSchema(), AvroSchema(definition), encoding)
        value = {"id": 7} if definition == evolving() else {"id": 8, "amount": 1.5}
        publish(client, name, pair, KeyValue("k", value), KeyValue("null", None))
    frame = auto(name, columns="key,value")
    assert frame.schema.simpleString() == "struct<key:string,value:struct<id:int,amount:double>>"
    assert [(row["key"], row["value"]) for row in rows(frame)] == [
        ("k", {"id": 7, "amount": None}),
        ("null", None),
        ("k", {"id": 8, "amount": 1.5}),
        ("null", None),
    ]
    assert [row["key"] for row in rows(auto(name, columns="key"))] == ["k", "null", "k", "null"]
    # All fields of the value, by default and by "*", also where one of them is named value.
    assert auto(name).columns[:3] == ["key", "value", "__key"]
    assert auto(name, columns="__entryId,*").columns == ["__entryId", "key", "value"]
    assert auto(name, includeMetadata="false").columns == ["key", "value"]


# ---- messages that are not of the schema ---------------------------------------------------------------------------


@pytest.fixture
def corrupt(client: Client, topic: NewTopic) -> tuple[str, Any]:
    """Give a topic with a number, a payload that is none, and a number; and the id of the wrong one."""
    name = topic("corrupt")
    # A producer without a schema may publish what it likes, as the namespace does not enforce schemas.
    good = schema.Int32Schema()
    (first, wrong, last) = publish_payloads(client, name, good.encode(1), b"wrong", good.encode(3))
    client.create_producer(name, schema=good).close()
    assert first < wrong < last
    return name, wrong


@pytest.mark.proves("S10")
def test_auto_corrupt_record_fails_naming_it(auto: Read, corrupt: tuple[str, Any]) -> None:
    name, wrong = corrupt
    position = f"{wrong.ledger_id()}:{wrong.entry_id()}"
    with pytest.raises((Py4JError, PySparkException)) as failed:
        auto(name).collect()
    text = str(failed.value)
    assert f"Message {position} cannot be decoded by the schema of {name}" in text
    assert "a message of INT32 has 4 bytes" in text and "mode=PERMISSIVE" in text
    # A read of other columns does not look at values.
    assert auto(name, columns="__entryId").count() == 3


@pytest.mark.proves("S10")
def test_auto_corrupt_record_becomes_column(auto: Read, corrupt: tuple[str, Any]) -> None:
    name, _ = corrupt
    frame = auto(name, mode="PERMISSIVE")
    assert frame.columns[:3] == ["value", "_corrupt", "__key"]
    assert [(row["value"], row["_corrupt"]) for row in rows(frame)] == [(1, None), (None, b"wrong"), (3, None)]
    renamed = auto(name, mode="permissive", columnNameOfCorruptRecord="bad", columns="__entryId,bad")
    assert [row["bad"] for row in rows(renamed)] == [None, b"wrong", None]


@pytest.mark.proves("S10")
def test_auto_corrupt_record_is_dropped(auto: Read, corrupt: tuple[str, Any]) -> None:
    name, _ = corrupt
    assert [row["value"] for row in rows(auto(name, mode="DROPMALFORMED"))] == [1, 3]
    assert auto(name, mode="DROPMALFORMED", columns="__entryId").count() == 2


# ---- errors --------------------------------------------------------------------------------------------------------


def failure(frame: Callable[[], Any]) -> str:
    """Return the text of the error that Spark reports."""
    with pytest.raises((Py4JError, PySparkException)) as failed:
        frame()
    return str(failed.value)


def test_auto_wrong_column_raises_with_hint(auto: Read, client: Client, topic: NewTopic) -> None:
    name = topic("columns")
    client.create_producer(name, schema=JsonSchema(PERSON)).close()
    assert "there is no column 'nmae'; did you mean name" in failure(lambda: auto(name, columns="nmae"))
    assert "a column is named twice" in failure(lambda: auto(name, columns="value,age"))


def test_auto_schema_without_columns_raises(auto: Read, client: Client, topic: NewTopic) -> None:
    union = evolving({"name": "u", "type": ["int", "string"]})
    hidden = evolving({"name": "__key", "type": "int"})
    folded = evolving({"name": "ID", "type": "int"})
    for definition, message in (
        (union, "value.u: a union of several types has no column type"),
        (hidden, "has a field __key: that is a metadata column, or read it with valueFormat=raw"),
        (folded, "differ in case only"),
    ):
        name = topic("unfit")
        client.create_producer(name, schema=AvroSchema(definition)).close()
        assert message in failure(lambda name=name: auto(name))
    name = topic("bare")
    client.create_producer(name, schema=AvroSchema({"type": "record", "name": "Bare", "fields": []})).send({})
    assert "no fields, so the read has no columns" in failure(lambda: auto(name, includeMetadata="false"))
    assert auto(name).count() == 1


def test_auto_topics_of_different_schemas_raise(
    auto: Read, read: Read, client: Client, broker: Broker, topic: NewTopic
) -> None:
    one, same, other = topic("one"), topic("same"), topic("other")
    publish(client, one, schema.Int32Schema(), 1)
    publish(client, same, schema.Int32Schema(), 2)
    publish(client, other, schema.StringSchema(), "x")
    url = {"service.url": broker.service_url, "admin.url": broker.admin_url, "valueFormat": "auto"}
    source = read(one).sparkSession.read.format("pulsar").options(**url)
    both = source.option("topics", f"{one},{same}").load()
    assert sorted(row["value"] for row in rows(both)) == [1, 2]
    assert f"The schemas of {one} and {other} differ" in failure(
        lambda: source.option("topics", f"{one},{other}").load()
    )


def test_auto_given_schema_must_be_the_topics(
    auto: Read, read: Read, client: Client, broker: Broker, topic: NewTopic
) -> None:
    name = topic("given")
    amount = {"name": "amount", "type": ["null", "double"], "default": None}
    publish(client, name, AvroSchema(evolving()), {"id": 1})
    publish(client, name, AvroSchema(evolving(amount)), {"id": 2, "amount": 2.5})
    source = read(name).sparkSession.read.format("pulsar").options(
        **{"service.url": broker.service_url, "admin.url": broker.admin_url, "topic": name, "valueFormat": "auto"}
    ).option("includeMetadata", "false")  # fmt: skip
    # The columns of an older version: newer messages are resolved to it.
    assert rows(source.schema("id INT").load()) == [{"id": 1}, {"id": 2}]
    text = failure(lambda: source.schema("id STRING").load().collect())
    assert "newest one of" in text and "struct<id:int,amount:double>" in text


# ---- streams -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("S10")
def test_auto_stream_decodes_several_versions(
    auto: Read, read: Read, client: Client, broker: Broker, topic: NewTopic, tmp_path: Any
) -> None:
    name = topic("stream")
    amount = {"name": "amount", "type": ["null", "double"], "default": None}
    publish(client, name, AvroSchema(evolving()), {"id": 1})
    publish(client, name, AvroSchema(evolving(amount)), {"id": 2, "amount": 2.5})
    session = read(name).sparkSession
    source = session.readStream.format("pulsar").options(
        **{"service.url": broker.service_url, "admin.url": broker.admin_url, "topic": name, "valueFormat": "auto",
           "startingOffsets": "earliest", "columns": "value"}
    )  # fmt: skip
    writer = source.load().writeStream.format("json").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
    assert query.awaitTermination(60)
    lines = [line for file in (tmp_path / "rows").glob("*.json") for line in file.read_text().splitlines()]
    assert [json.loads(line) for line in lines] == [{"id": 1}, {"id": 2, "amount": 2.5}]
