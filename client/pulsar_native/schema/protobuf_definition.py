"""Definitions of Protobuf messages for the registry: their Avro form (PROTOBUF), or their files (PROTOBUF_NATIVE).

Rules: the texts equal the Java client's, byte for byte if Java's class was generated from the same file, so that both
languages share one version. Namespaces are those of the Java classes, as in Avro's Protobuf support (file options
`java_package`, `java_outer_classname` and `java_multiple_files`). Pure functions.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import Message

from pulsar_native._callback_errors import is_of_signal_handler
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.info import SchemaInfo
from pulsar_native.wire.hashing import java_string_hash

_Field = descriptor_pb2.FieldDescriptorProto
_TEXT = {"type": "string", "avro.java.string": "String"}
_NUMBERS: dict[int, tuple[str, object]] = {
    **dict.fromkeys((_Field.TYPE_INT32, _Field.TYPE_UINT32, _Field.TYPE_SINT32), ("int", 0)),
    **dict.fromkeys((_Field.TYPE_FIXED32, _Field.TYPE_SFIXED32), ("int", 0)),
    **dict.fromkeys((_Field.TYPE_INT64, _Field.TYPE_UINT64, _Field.TYPE_SINT64), ("long", 0)),
    **dict.fromkeys((_Field.TYPE_FIXED64, _Field.TYPE_SFIXED64), ("long", 0)),
    _Field.TYPE_FLOAT: ("float", 0.0),
    _Field.TYPE_DOUBLE: ("double", 0.0),
    _Field.TYPE_BOOL: ("boolean", False),
    _Field.TYPE_BYTES: ("bytes", ""),
}
_UNSIGNED: dict[int, int] = {
    _Field.TYPE_UINT32: 32,
    _Field.TYPE_FIXED32: 32,
    _Field.TYPE_UINT64: 64,
    _Field.TYPE_FIXED64: 64,
}


def avro_definition(message: Descriptor) -> bytes:
    """Return the Avro form of a message, as Java registers it for PROTOBUF; raises `InvalidConfiguration`."""
    return _json(_AvroForm().record(message, ""))


def parsing_info(message: Descriptor) -> dict[str, str]:
    """Return the properties that Java registers with a definition: the fields by number, and its two switches."""
    described: list[Any] = list(message.fields)
    fields = [
        {
            "number": field.number,
            "name": field.name,
            "type": _Field.Type.Name(field.type)[len("TYPE_") :],
            "label": _label(field),
            "definition": None,
        }
        for field in described
    ]
    return {
        "__alwaysAllowNull": "true",
        "__jsr310ConversionEnabled": "false",
        "__PARSING_INFO__": _json(fields).decode(),
    }


def native_definition(message: Descriptor) -> bytes:
    """Return the files of a message, as Java registers them for PROTOBUF_NATIVE."""
    found: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    _gather(message.file, found)
    files = descriptor_pb2.FileDescriptorSet(file=[found[name] for name in _in_javas_order(list(found))])
    return _json(
        {
            "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
            "rootMessageTypeName": message.full_name,
            "rootFileDescriptorName": message.file.name,
        }
    )


def native_class(info: SchemaInfo) -> type[Message]:
    """Return a message class created from a registered PROTOBUF_NATIVE definition; raises `InvalidRecord`."""
    given = info.definition()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(str(given["fileDescriptorSet"])))
        waiting = {file.name: file for file in files.file}
        pool = descriptor_pool.DescriptorPool()
        while waiting:
            # Each file after those it imports; a registered definition has all of them.
            ready = [file for file in waiting.values() if not waiting.keys() & set(file.dependency)]
            if not ready:
                raise ValueError("its files import each other")
            for file in ready:
                pool.Add(waiting.pop(file.name))
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(str(given["rootMessageTypeName"])))
    except Exception as error:
        if is_of_signal_handler(error):
            raise
        # The library raises its own errors, TypeError and KeyError for damaged descriptors.
        raise InvalidRecord(
            f"The definition of the PROTOBUF_NATIVE schema {info.name()!r} is damaged: {error}"
        ) from error


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _label(field: Any) -> str:
    if is_repeated(field):
        return "LABEL_REPEATED"
    return "LABEL_REQUIRED" if _is_required(field) else "LABEL_OPTIONAL"


# Protobuf 6 replaced `label` by two properties, and 7 removed it.
def is_repeated(field: Any) -> bool:
    """Return True if a field is a list or a map, in all supported versions of the library."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _is_required(field: Any) -> bool:
    return bool(field.is_required if hasattr(field, "is_required") else field.label == field.LABEL_REQUIRED)


def _gather(file: FileDescriptor, found: dict[str, descriptor_pb2.FileDescriptorProto]) -> None:
    for dependency in file.dependencies:
        if dependency.name not in found:
            _gather(dependency, found)
    proto = descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb)
    # Names that the compiler gives to Java's generated classes and leaves out of Python's.
    for name, message in file.message_types_by_name.items():
        _name_in_json(next(each for each in proto.message_type if each.name == name), message)
    for extension in proto.extension:
        extension.json_name = file.extensions_by_name[extension.name].json_name
    found[file.name] = proto


def _name_in_json(proto: descriptor_pb2.DescriptorProto, message: Descriptor) -> None:
    for field in proto.field:
        field.json_name = message.fields_by_name[field.name].json_name
    for extension in proto.extension:
        extension.json_name = message.extensions_by_name[extension.name].json_name
    for nested in proto.nested_type:
        _name_in_json(nested, message.nested_types_by_name[nested.name])


def _in_javas_order(names: list[str]) -> list[str]:
    """Return names in the order of Java's HashMap: another order would be another text, and another version."""
    buckets = 16
    while len(names) > buckets * 3 // 4:
        buckets *= 2

    def bucket(name: str) -> int:
        hashed = java_string_hash(name) & 0xFFFFFFFF
        return (hashed ^ hashed >> 16) & buckets - 1

    return sorted(names, key=bucket)


class _AvroForm:
    """Definition under construction: named types are written once, then referred to."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def record(self, message: Descriptor, around: str) -> object:
        space = _namespace(message.file, message.containing_type)
        return self._named(message.name, space, around) or {
            "type": "record",
            "name": message.name,
            **self._space(space, around),
            "fields": [self._field(field, space) for field in message.fields],
        }

    def _enum(self, enum: Any, around: str) -> object:
        space = _namespace(enum.file, enum.containing_type)
        return self._named(enum.name, space, around) or {
            "type": "enum",
            "name": enum.name,
            **self._space(space, around),
            "symbols": [value.name for value in enum.values],
        }

    def _named(self, name: str, space: str, around: str) -> str | None:
        full = f"{space}.{name}" if space else name
        if full in self._seen:
            return name if space == around else full
        self._seen.add(full)
        return None

    @staticmethod
    def _space(space: str, around: str) -> dict[str, str]:
        return {} if space == around else {"namespace": space}

    def _field(self, field: Any, around: str) -> dict[str, object]:
        single = self._single(field, around)
        entry: dict[str, object] = {"name": field.name}
        entry["type"] = {"type": "array", "items": single} if is_repeated(field) else single
        if not _is_required(field):
            default = _default(field)
            # JSON has no infinity.
            if not isinstance(default, float) or math.isfinite(default):
                entry["default"] = default
        return entry

    def _single(self, field: Any, around: str) -> object:
        if field.type in _NUMBERS:
            return _NUMBERS[field.type][0]
        if field.type == _Field.TYPE_STRING:
            return _TEXT
        if field.type == _Field.TYPE_ENUM:
            return self._enum(field.enum_type, around)
        if field.type == _Field.TYPE_MESSAGE:
            made = self.record(field.message_type, around)
            return made if is_repeated(field) or _is_required(field) else ["null", made]
        raise InvalidConfiguration(
            f"The field {field.full_name} is a group, which has no Avro form: use ProtobufNativeSchema"
        )


def _default(field: Any) -> object:
    if is_repeated(field):
        return []
    if field.type == _Field.TYPE_MESSAGE:
        return None
    value: Any = field.default_value
    if field.type == _Field.TYPE_ENUM:
        # Without its own default the library returns the first value's number, as Java does.
        return field.enum_type.values_by_number[value].name
    if field.type in _UNSIGNED and value >= 1 << (_UNSIGNED[field.type] - 1):
        return value - (1 << _UNSIGNED[field.type])
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _namespace(file: FileDescriptor, containing: Descriptor | None) -> str:
    """Return the name of the container of a type's Java class: package, outer class, enclosing messages."""
    options = file.GetOptions()
    package: str = options.java_package if options.HasField("java_package") else file.package
    around: list[str] = []
    while containing is not None:
        around.insert(0, containing.name)
        containing = containing.containing_type
    if not options.java_multiple_files:
        if options.HasField("java_outer_classname"):
            around.insert(0, options.java_outer_classname)
        else:
            stem = file.name.rpartition("/")[2].rpartition(".")[0]
            around.insert(0, "".join(part.capitalize() for part in stem.split("_")))
    inner = "$".join(around)
    return f"{package}.{inner}" if inner else package
