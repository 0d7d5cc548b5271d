"""The columns of a write: which one is what of a message, and records as JSON or Avro.

    value                                  the value: BINARY or STRING as it is, or a STRUCT (valueFormat json, avro)
    key, eventTime, properties, topic      or, as a read names them, __key, __eventTime, __messageProperties, __topic

Without a column `value` all columns that are none of the second kind make the record. Rules: a column that is nothing
of a message is refused, never dropped; everything is checked when the write is planned. Pure: no I/O.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema import AvroSchema, JsonSchema, Schema, SchemaType
from pulsar_native.schema.errors import InvalidRecord

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_PLAIN = {"key": "key", "eventTime": "event_time", "properties": "properties", "topic": "topic"}
_METADATA = {
    "__key": "key",
    "__eventTime": "event_time",
    "__messageProperties": "properties",
    "__topic": "topic",
}
_TYPES = {
    "key": ("binary", "string"),
    "event_time": ("timestamp", "bigint"),
    "properties": ("map<string,string>",),
    "topic": ("string",),
}
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EPOCH_DAY = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class WriteColumns:
    """Column of each message field; None if there is none. `definition` is the record's Avro definition."""

    value: tuple[str, ...]
    is_record: bool
    key: str | None = None
    event_time: str | None = None
    properties: str | None = None
    topic: str | None = None
    value_format: str = "raw"
    definition: str | None = None

    @property
    def has_source_topic(self) -> bool:
        """True if the topic of a row is the one that it was read from."""
        return self.topic is not None and self.topic.lower() == "__topic"

    @staticmethod
    def of(schema: StructType, value_format: str) -> WriteColumns:
        """Return the message fields of a DataFrame's columns; raises `InvalidConfiguration` naming column and fix."""
        from pyspark.sql.types import StructType

        names = [field.name for field in schema.fields]
        double = _twice(names)
        if double:
            raise InvalidConfiguration(f"The DataFrame has columns twice: {', '.join(double)}")
        folded = [name.lower() for name in names]
        has_value = "value" in folded
        roles = {**_METADATA, **(_PLAIN if has_value else {})}
        found = _roles(schema, roles)
        rest = [name for name in names if name not in found.values() and name.lower() != "value"]
        _refuse_rest(rest, roles, has_value)
        if has_value:
            name = names[folded.index("value")]
            kind = schema[name].dataType
            if not isinstance(kind, StructType):
                _check_raw(kind, value_format)
                return WriteColumns((name,), False, **found)
            record = kind
        else:
            if not rest:
                raise InvalidConfiguration("The DataFrame has no column value, nor any other for the value")
            record = StructType([schema[name] for name in rest])
        if value_format == "raw":
            raise InvalidConfiguration(
                "Set valueFormat to json or avro to write records, or make one column value of BINARY or STRING, with "
                "to_json for example"
            )
        definition = json.dumps(record_definition(record, value_format))
        value = (name,) if has_value else tuple(rest)
        return WriteColumns(value, not has_value, **found, value_format=value_format, definition=definition)


def _twice(names: Sequence[str]) -> list[str]:
    """Return the names that are there twice, as they differ in case at the most, in lower case."""
    counts = Counter(name.lower() for name in names)
    return sorted(name for name, count in counts.items() if count > 1)


def _roles(schema: StructType, roles: Mapping[str, str]) -> dict[str, str]:
    folded = {name.lower(): name for name in roles}
    found: dict[str, str] = {}
    for field in schema.fields:
        if field.name.lower() not in folded:
            continue
        role = roles[folded[field.name.lower()]]
        kind = field.dataType.simpleString()
        if role in found:
            raise InvalidConfiguration(f"The columns {found[role]} and {field.name} are both the {role}: drop one")
        if kind not in _TYPES[role]:
            raise InvalidConfiguration(
                f"Column {field.name} is {kind.upper()}; as the {role} of a message it must be "
                f"{' or '.join(map(str.upper, _TYPES[role]))}" + _hint_of(role, kind)
            )
        found[role] = field.name
    return found


def _hint_of(role: str, kind: str) -> str:
    if role == "event_time" and kind == "timestamp_ntz":
        return ": a time without a zone says no moment; use to_utc_timestamp or a session time zone"
    return ": cast it"


def _refuse_rest(rest: list[str], roles: Mapping[str, str], has_value: bool) -> None:
    from pyspark_pulsar.schema import METADATA_COLUMNS

    for name in rest:
        if name in METADATA_COLUMNS:
            raise InvalidConfiguration(
                f"Column {name} is given by the broker or the producer: drop it, and __topic with it where option "
                "topic names the topic"
            )
        if has_value or name.startswith("__"):
            near = difflib.get_close_matches(name.lower(), [role.lower() for role in roles], 1, 0.6)
            known = {role.lower(): role for role in roles}
            hint = f"did you mean {known[near[0]]}?" if near else f"known are value, {', '.join(roles)}; drop it"
            raise InvalidConfiguration(f"Column {name} is nothing of a message; {hint}")


def _check_raw(kind: DataType, value_format: str) -> None:
    if value_format != "raw":
        raise InvalidConfiguration(
            f"valueFormat={value_format} needs a STRUCT column value, or columns that make the record; value is "
            f"{kind.simpleString().upper()}"
        )
    if kind.simpleString() not in ("binary", "string"):
        raise InvalidConfiguration(
            f"Column value is {kind.simpleString().upper()}: cast it to BINARY or STRING, or make it a STRUCT and set "
            "valueFormat"
        )


# ---- records ---------------------------------------------------------------------------------------------------------


def record_definition(record: StructType, value_format: str) -> dict[str, Any]:
    """Return the Avro definition of a record; raises `InvalidConfiguration` for an unsupported type."""
    return _Definitions(value_format).record(record, "value")


class _Definitions:
    """Conversion of Spark types into an Avro definition; every record is named after its path."""

    def __init__(self, value_format: str) -> None:
        self._format = value_format
        self._names: set[str] = set()

    def record(self, record: StructType, where: str) -> dict[str, Any]:
        name = where.replace(".", "_")
        while name in self._names:  # As of a.b and a_b.
            name += "_"
        self._names.add(name)
        # Which a schema may have, but no columns to read it into.
        double = _twice([field.name for field in record.fields])
        if double:
            raise InvalidConfiguration(f"{where} has fields twice, as their case is ignored: {', '.join(double)}")
        fields = []
        for field in record.fields:
            if not _AVRO_NAME.fullmatch(field.name):
                raise InvalidConfiguration(
                    f"{where}.{field.name}: a field's name has letters, digits and _ only; rename it"
                )
            kind = self._of(field.dataType, f"{where}.{field.name}")
            fields.append({"name": field.name, "type": ["null", kind], "default": None})
        return {"type": "record", "name": name, "fields": fields}

    def _of(self, kind: DataType, where: str) -> Any:
        from pyspark.sql import types

        if isinstance(kind, types.StructType):
            return self.record(kind, where)
        if isinstance(kind, types.ArrayType):
            return {"type": "array", "items": ["null", self._of(kind.elementType, where)]}
        if isinstance(kind, types.MapType):
            if not isinstance(kind.keyType, types.StringType):
                raise InvalidConfiguration(f"{where}: the keys of a map must be STRING; cast them")
            return {"type": "map", "values": ["null", self._of(kind.valueType, where)]}
        return self._plain(kind, where)

    def _plain(self, kind: DataType, where: str) -> Any:
        from pyspark.sql import types

        name = kind.simpleString()
        if name in _AVRO_TYPES:
            return _AVRO_TYPES[name]
        unit = "micros" if self._format == "avro" else "millis"
        if isinstance(kind, types.TimestampType):
            return {"type": "long", "logicalType": f"timestamp-{unit}"}
        if isinstance(kind, types.TimestampNTZType):
            return {"type": "long", "logicalType": f"local-timestamp-{unit}"}
        if isinstance(kind, types.DateType):
            return {"type": "int", "logicalType": "date"}
        if self._format == "avro" and isinstance(kind, types.DecimalType):
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        if self._format == "avro" and isinstance(kind, types.BinaryType):
            return "bytes"
        raise InvalidConfiguration(f"{where}: {name.upper()} has no form in {self._format}; cast it, to STRING perhaps")


_AVRO_TYPES = {
    "boolean": "boolean",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
}


class EncodedSchema(Schema[bytes]):
    """Schema of a record for a producer of encoded values."""

    def __init__(self, kind: SchemaType, definition: Mapping[str, object]) -> None:
        super().__init__(bytes, kind, dict(definition), kind.name)

    def encode(self, obj: bytes) -> bytes:
        """Return the bytes as they are."""
        return obj

    def decode(self, data: bytes) -> bytes:
        """Return the bytes as they are."""
        return data


class RecordEncoder:
    """Encoder of the records of one write, from Arrow values. Thread-safe; created in the task."""

    def __init__(self, columns: WriteColumns) -> None:
        assert columns.definition is not None
        self.definition = json.loads(columns.definition)
        is_avro = columns.value_format == "avro"
        self.schema = EncodedSchema(SchemaType.AVRO if is_avro else SchemaType.JSON, self.definition)
        schema = AvroSchema(self.definition) if is_avro else JsonSchema(self.definition)
        self._encode: Callable[[Any], bytes] = schema.encode
        self._convert = _converter(self.definition, is_avro, "value")

    def encode(self, record: Mapping[str, Any] | None) -> bytes | None:
        """Return the bytes of a record, None for null; raises `InvalidRecord`."""
        return None if record is None else self._encode(self._convert(record))


def _converter(definition: Any, is_avro: bool, where: str) -> Callable[[Any], Any]:
    """Return the conversion of an Arrow value to the schema's; null stays null."""
    if isinstance(definition, list):
        convert = _converter(definition[1], is_avro, where)
        return convert if convert is _same else lambda value: None if value is None else convert(value)
    if not isinstance(definition, dict):
        return partial(_finite, where) if not is_avro and definition in ("float", "double") else _same
    kind = definition["type"]
    if kind == "record":
        fields = {
            field["name"]: _converter(field["type"], is_avro, f"{where}.{field['name']}")
            for field in definition["fields"]
        }
        return lambda value: {name: convert(value[name]) for name, convert in fields.items()}
    if kind == "array":
        item = _converter(definition["items"], is_avro, where)
        return lambda value: [item(each) for each in value]
    if kind == "map":
        item = _converter(definition["values"], is_avro, where)
        # Arrow returns a map as pairs.
        return lambda value: {key: item(each) for key, each in dict(value).items()}
    return _same if is_avro else _IN_JSON.get(str(definition.get("logicalType")), _same)


def _same(value: Any) -> Any:
    return value


def _finite(where: str, value: float) -> float:
    if not math.isfinite(value):
        raise InvalidRecord(f"{where} is {value}, which JSON does not have: make it null, or set valueFormat=avro")
    return value


def _millis(value: datetime) -> int:
    moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value
    passed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (passed.days * 86_400 + passed.seconds) * 1000 + passed.microseconds // 1000


def _days(value: date) -> int:
    return value.toordinal() - _EPOCH_DAY


_IN_JSON: dict[str, Callable[[Any], Any]] = {
    "timestamp-millis": _millis,
    "local-timestamp-millis": _millis,
    "date": _days,
}
