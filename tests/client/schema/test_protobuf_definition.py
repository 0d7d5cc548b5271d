"""Definitions of Protobuf messages: equal to Java's, and damaged ones refused.

Java's texts were printed by the Java client 4.2.4: `Schema.PROTOBUF(Duration.class).getSchemaInfo()` and
`Schema.PROTOBUF_NATIVE(Duration.class).getSchemaInfo()`; for the files of `support.proto_samples`, built in Java from
the same descriptors, `ProtobufData.get().getSchema(descriptor)` and `ProtobufNativeSchemaUtils.serialize(descriptor)`.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import api_pb2, descriptor_pb2, duration_pb2, message_factory, struct_pb2

import pulsar_native.schema as ours
from pulsar_native.exceptions import InvalidConfiguration, InvalidMessage
from pulsar_native.schema import InvalidRecord, ProtobufNativeSchema, ProtobufSchema, SchemaInfo, SchemaType
from pulsar_native.schema.protobuf_definition import _in_javas_order
from support.proto_samples import files, message_class
from support.signals import TimeLimit, time_limit

FLIGHT = message_class("demo.flights.Flight")
JAVA: dict[str, str] = json.loads((Path(__file__).parent / "protobuf_from_java.json").read_text())


@pytest.mark.parametrize("kind", [duration_pb2.Duration, struct_pb2.Struct], ids=["Duration", "Struct"])
def test_definitions_of_googles_types_are_javas(kind: Any) -> None:
    name = kind.DESCRIPTOR.name
    avro, native = ProtobufSchema(kind).schema_info(), ProtobufNativeSchema(kind).schema_info()
    assert (avro.name(), avro.type) == ("", SchemaType.PROTOBUF)
    assert (native.name(), native.type) == ("", SchemaType.PROTOBUF_NATIVE)
    assert avro.schema() == JAVA[f"avro {name}"]
    assert native.schema() == JAVA[f"native {name}"]
    for info in (avro, native):
        assert info.properties() == {
            "__alwaysAllowNull": "true",
            "__jsr310ConversionEnabled": "false",
            "__PARSING_INFO__": JAVA[f"parsing {name}"],
        }


def test_every_kind_of_field_has_javas_avro_form() -> None:
    """Namespaces of outer classes, files and packages; defaults, required fields, maps, recursion."""
    assert ProtobufSchema(FLIGHT).schema_info().schema() == JAVA["avro Flight"]


def test_files_come_in_javas_order_with_json_names() -> None:
    native = json.loads(ProtobufNativeSchema(FLIGHT).schema_info().data)
    theirs = json.loads(JAVA["native Flight"])
    assert list(native) == list(theirs)
    assert native["rootMessageTypeName"] == theirs["rootMessageTypeName"] == "demo.flights.Flight"
    assert native["rootFileDescriptorName"] == theirs["rootFileDescriptorName"]
    mine = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(native["fileDescriptorSet"]))
    java = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(theirs["fileDescriptorSet"]))
    assert [file.name for file in mine.file] == [file.name for file in java.file]
    assert mine.file[0].message_type[0].field[9].json_name == "onTime"
    # Java's HashMap decides: not the order of imports.
    api = json.loads(ProtobufNativeSchema(api_pb2.Api).schema_info().data)
    found = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(api["fileDescriptorSet"]))
    names = [file.name.rpartition("/")[2] for file in found.file]
    assert names == ["api.proto", "source_context.proto", "type.proto", "any.proto"]


def test_damaged_native_definitions() -> None:
    whole = ProtobufNativeSchema(FLIGHT).schema_info()
    given = json.loads(whole.data)
    circle = files()
    circle.file[0].dependency.append(circle.file[1].name)
    for change in (
        {"rootMessageTypeName": "demo.flights.Other"},
        {"fileDescriptorSet": "AAAA"},
        {"fileDescriptorSet": base64.b64encode(circle.SerializeToString()).decode()},
    ):
        text = json.dumps({**given, **change}).encode()
        with pytest.raises(InvalidRecord, match="damaged"):
            ours.schema_from_info(SchemaInfo("x", SchemaType.PROTOBUF_NATIVE, text))
    with pytest.raises(InvalidMessage, match="not JSON"):
        ours.schema_from_info(SchemaInfo("x", SchemaType.PROTOBUF_NATIVE, b"{"))


def test_native_class_ended_by_time_limit_raises_it(monkeypatch: pytest.MonkeyPatch) -> None:
    info = ProtobufNativeSchema(FLIGHT).schema_info()
    with time_limit() as interrupted, pytest.raises(TimeLimit):
        monkeypatch.setattr(message_factory, "GetMessageClass", interrupted)
        ours.schema_from_info(info)


def test_groups_have_no_avro_form() -> None:
    from google.protobuf import descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(name="groups.proto", package="g")
    outer = file.message_type.add(name="Outer")
    outer.nested_type.add(name="Old")
    outer.field.add(name="old", number=1, type="TYPE_GROUP", label="LABEL_OPTIONAL", type_name=".g.Outer.Old")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("g.Outer"))
    with pytest.raises(InvalidConfiguration, match=r"group.*ProtobufNativeSchema"):
        ProtobufSchema(kind)
    ProtobufNativeSchema(kind)


@pytest.mark.parametrize(
    ("count", "order"),
    [
        (12, [6, 9, 8, 0, 10, 2, 1, 4, 7, 5, 11, 3]),
        (13, [12, 6, 0, 1, 5, 9, 8, 10, 2, 4, 7, 11, 3]),
        (25, [12, 6, 17, 22, 19, 1, 20, 14, 15, 9, 10, 2, 4, 7, 18, 0, 23, 13, 5, 8, 24, 11, 16, 21, 3]),
    ],
)
def test_many_files_come_in_the_order_of_javas_map(count: int, order: list[int]) -> None:
    """As a `HashMap` of Java 17 printed its values; it has twice the buckets from 13 and from 25 names on."""
    names = [f"demo/file_{number}.proto" for number in range(count)]
    assert _in_javas_order(names) == [names[number] for number in order]
