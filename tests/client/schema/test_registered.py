"""Schemas and the registry: the wire's form, schemas made from what is registered, with a real broker and its peer."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pulsar
import pulsar.schema as official
import pytest

import pulsar_native.schema as ours
from pulsar_native.admin import AdminClient
from pulsar_native.exceptions import InvalidConfiguration, InvalidMessage, OperationNotSupported
from pulsar_native.schema import SchemaInfo, SchemaType, info_from_wire, schema_from_info, wire_schema
from pulsar_native.wire import pulsar_api_pb2 as pb
from support.brokers import Broker, NewTopic
from support.record_samples import EVERY, MINE, THEIRS
from support.record_twins import Color, Rec

# The registry refuses the official definition of Null, a union of null and null.
USABLE = Rec("Usable", tuple((name, kind) for name, kind in EVERY.fields if name != "null"))

VALUES: dict[str, Any] = {
    "boolean": True,
    "string": "\u00fc",
    "bytes": b"ab",
    "color": Color.BLUE,
    "points": [{"x": 1}],
}


def test_bytes_are_no_schema_on_the_wire() -> None:
    assert wire_schema(None) is None
    assert wire_schema(ours.BytesSchema()) is None
    assert wire_schema(ours.Schema()) is None


@pytest.mark.parametrize(
    ("schema", "number"),
    [(ours.StringSchema(), 1), (ours.JsonSchema(MINE.record(EVERY)), 2), (ours.AvroSchema(MINE.record(EVERY)), 4)],
)
def test_the_wire_form_and_back(schema: Any, number: int) -> None:
    wire = wire_schema(schema)
    assert wire is not None
    info = schema.schema_info()
    assert (wire.type, wire.name, wire.schema_data) == (number, info.name(), info.data)
    assert info_from_wire(pb.Schema.FromString(wire.SerializeToString())) == info


class Odd(ours.Schema[object]):
    """A schema that says it is of some kind."""

    def __init__(self, kind: SchemaType) -> None:
        super().__init__(None, kind, None, "odd")

    def schema_info(self) -> SchemaInfo:
        """Return an info with properties."""
        return SchemaInfo("odd", self._info.type, b"\x00\xff", {"a": "b"})


def test_kinds_and_properties_on_the_wire() -> None:
    numbers = {kind: int(kind) for kind in SchemaType if kind > 0} | {SchemaType.AUTO_CONSUME: 21}
    for kind, number in numbers.items():
        wire = wire_schema(Odd(kind))
        assert wire is not None and wire.type == number
        assert pb.Schema.Type.Name(number).lower().replace("bool", "boolean") == kind.name.lower().replace("_", "")
        back = info_from_wire(wire, (7).to_bytes(8, "big"))
        assert back == Odd(kind).schema_info() and back.version == 7
    with pytest.raises(InvalidConfiguration, match="for producers"):
        wire_schema(Odd(SchemaType.AUTO_PUBLISH))


def test_unknown_kinds_from_the_broker() -> None:
    external = pb.Schema(name="x", schema_data=b"", type="External")
    with pytest.raises(OperationNotSupported, match="unknown kind 22"):
        info_from_wire(external)
    assert info_from_wire(pb.Schema(name="x", schema_data=b"")).type is SchemaType.NONE


def test_schemas_made_from_what_is_registered() -> None:
    record = MINE.value(EVERY, VALUES)
    for kind in (ours.JsonSchema, ours.AvroSchema):
        schema: Any = kind(MINE.record(EVERY))
        decoded = schema_from_info(schema.schema_info()).decode(schema.encode(record))
        assert isinstance(decoded, dict)
        assert (decoded["boolean"], decoded["string"], decoded["points"][0]["x"]) == (True, "\u00fc", 1)
    assert schema_from_info(ours.StringSchema().schema_info()).decode(b"text") == "text"
    for none in (SchemaType.BYTES, SchemaType.NONE):
        assert schema_from_info(SchemaInfo("x", none)).decode(b"\xff") == b"\xff"


def test_kinds_that_need_their_class_say_so() -> None:
    with pytest.raises(OperationNotSupported, match=r"its kind is PROTOBUF.*ProtobufSchema"):
        schema_from_info(SchemaInfo("x", SchemaType.PROTOBUF))


def test_a_registered_definition_that_is_none() -> None:
    with pytest.raises(InvalidMessage, match="not JSON"):
        schema_from_info(SchemaInfo("x", SchemaType.AVRO, b"{"))


# ---- a real broker's registry ----------------------------------------------------------------------------------------


@pytest.fixture
def peer(broker: Broker) -> Iterator[pulsar.Client]:
    """Give the official client."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with closing(pulsar.Client(broker.service_url, logger=logger)) as client:
        yield client


@pytest.mark.parametrize("kind", ["AvroSchema", "JsonSchema"])
def test_messages_of_the_official_client_are_decoded_by_the_registry(
    broker: Broker, topic: NewTopic, peer: pulsar.Client, kind: str
) -> None:
    name = topic()
    with closing(peer.create_producer(name, schema=getattr(official, kind)(THEIRS.record(USABLE)))) as producer:
        producer.send(THEIRS.value(USABLE, VALUES))
    info = AdminClient(broker.admin_url).get_schema(name)
    assert info is not None
    with closing(peer.create_reader(name, pulsar.MessageId.earliest)) as reader:
        data = reader.read_next(5000).data()
    decoded = schema_from_info(info).decode(data)
    assert (decoded["string"], decoded["points"][0]["x"], decoded["seven"]) == ("\u00fc", 1, 7)
    mine: Any = getattr(ours, kind)(MINE.record(USABLE))
    assert mine.decode(data) == MINE.value(USABLE, VALUES)


@pytest.mark.parametrize("kind", ["AvroSchema", "JsonSchema"])
def test_both_clients_share_one_version(broker: Broker, topic: NewTopic, peer: pulsar.Client, kind: str) -> None:
    name = topic()
    broker.admin("PUT", name.replace("://", "/"))
    mine: Any = getattr(ours, kind)(MINE.record(USABLE))
    info = mine.schema_info()
    body = {"type": info.type.name, "schema": info.data.decode(), "properties": {}}
    broker.admin("POST", f"schemas/{name.removeprefix('persistent://')}/schema", body)
    peer.create_producer(name, schema=getattr(official, kind)(THEIRS.record(USABLE))).close()
    latest = AdminClient(broker.admin_url).get_schema(name)
    assert latest is not None and latest.version == 0
    assert latest == SchemaInfo(name.rpartition("/")[2], info.type, info.data)


def test_the_official_client_reads_what_ours_encodes(topic: NewTopic, peer: pulsar.Client) -> None:
    for kind in ("AvroSchema", "JsonSchema"):
        name = topic(uuid.uuid4().hex)
        mine: Any = getattr(ours, kind)(MINE.record(USABLE))
        theirs = getattr(official, kind)(THEIRS.record(USABLE))
        with closing(peer.subscribe(name, "s", schema=theirs)) as consumer:
            with closing(peer.create_producer(name)) as producer:
                producer.send(mine.encode(MINE.value(USABLE, VALUES)))
            value = consumer.receive(5000).value()
        assert (value.string, value.color, value.points[0].x) == ("\u00fc", Color.BLUE, 1)
        assert json.dumps(value.texts) == "null"
