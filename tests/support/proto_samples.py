"""Protobuf message classes for tests, made without a compiler: of files built as descriptors.

`flights/flight_data_v2.proto` (proto2, package `demo.flights`, no Java options) imports `flights/common.proto` (proto3,
one Java file a message, package `com.example.common` there); together they have every kind of field.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = (
    "DOUBLE", "FLOAT", "INT64", "UINT64", "INT32", "FIXED64", "FIXED32", "BOOL", "STRING", "BYTES", "UINT32",
    "SFIXED32", "SFIXED64", "SINT32", "SINT64",
)  # fmt: skip


def _field(name: str, number: int, kind: str, label: str = "OPTIONAL", of: str = "", default: str = "") -> _Field:
    made = _Field(
        name=name, number=number, type=_Field.Type.Value(f"TYPE_{kind}"), label=_Field.Label.Value(f"LABEL_{label}")
    )
    if of:
        made.type_name = of
    if default:
        made.default_value = default
    return made


def _common() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="flights/common.proto", package="demo.common", syntax="proto3")
    file.options.java_package = "com.example.common"
    file.options.java_multiple_files = True
    place = file.message_type.add(name="Place")
    place.field.extend([_field("airport_code", 1, "STRING"), _field("gate", 2, "INT32")])
    kind = file.enum_type.add(name="Cabin")
    kind.value.add(name="ECONOMY", number=0)
    kind.value.add(name="FIRST", number=1)
    return file


def _flights() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="flights/flight_data_v2.proto", package="demo.flights", dependency=["flights/common.proto"]
    )
    flight = file.message_type.add(name="Flight")
    flight.field.extend(
        [
            _field("carrier", 1, "STRING", "REQUIRED"),
            _field("delay", 2, "INT32", default="7"),
            _field("note", 3, "STRING", default='say "hi"'),
            _field("cabin", 4, "ENUM", of=".demo.common.Cabin", default="FIRST"),
            _field("origin", 5, "MESSAGE", of=".demo.common.Place"),
            _field("stops", 6, "MESSAGE", "REPEATED", of=".demo.common.Place"),
            _field("crew", 7, "MESSAGE", "REPEATED", of=".demo.flights.Flight.Crew"),
            _field("weights", 8, "MESSAGE", "REPEATED", of=".demo.flights.Flight.WeightsEntry"),
            _field("next", 9, "MESSAGE", of=".demo.flights.Flight"),
            _field("on_time", 10, "BOOL", default="true"),
            _field("ratio", 11, "DOUBLE", default="0.5"),
            _field("many", 12, "INT64", "REPEATED"),
        ]
    )
    flight.field.extend(_field(f"a_{kind.lower()}", 20 + index, kind) for index, kind in enumerate(_SCALARS))
    crew = flight.nested_type.add(name="Crew")
    crew.field.extend([_field("name", 1, "STRING"), _field("role", 2, "ENUM", of=".demo.flights.Flight.Crew.Role")])
    role = crew.enum_type.add(name="Role")
    role.value.add(name="PILOT", number=1)
    role.value.add(name="STEWARD", number=2)
    weights = flight.nested_type.add(name="WeightsEntry")
    weights.options.map_entry = True
    weights.field.extend([_field("key", 1, "STRING"), _field("value", 2, "DOUBLE")])
    return file


def files() -> descriptor_pb2.FileDescriptorSet:
    """Return the two files, what is imported first."""
    return descriptor_pb2.FileDescriptorSet(file=[_common(), _flights()])


def message_class(name: str) -> Any:
    """Return a message's class, such as `demo.flights.Flight`, in a pool of its own."""
    pool = descriptor_pool.DescriptorPool()
    for file in files().file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
