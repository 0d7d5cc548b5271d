"""Codecs of jobs: values to bytes for publishing, bytes to JSON values after consuming.

Rules: the registered schema is exactly the definition given. Bytes are written to JSON as marked base64 only.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from pulsar_native import Message
from pulsar_native.jobs import validation
from pulsar_native.jobs.json_values import json_safe
from pulsar_native.jobs.publish_options import checked
from pulsar_native.schema import (
    AvroSchema,
    InvalidRecord,
    JsonSchema,
    KeyValueSchema,
    Schema,
    SchemaInfo,
    StringSchema,
    WriterSchemas,
    schema_from_info,
)


class EncodedBytes(Schema[bytes]):
    """Schema to register for values that are encoded already, when they are checked."""

    def __init__(self, info: SchemaInfo) -> None:
        super().__init__()
        self._info = info

    def encode(self, obj: bytes) -> bytes:
        """Return the bytes."""
        return obj

    def decode(self, data: bytes) -> bytes:
        """Return the bytes."""
        return data

    def schema_info(self) -> SchemaInfo:
        """Return what the registry is told."""
        return self._info


class Codec:
    """Encoder of values by a schema's name and definition; `to_register` is the topic's schema, or None."""

    def __init__(self, schema: str | None, definition: Mapping[str, Any] | None, *, from_texts: bool = False) -> None:
        schema = checked("schema", schema)
        self.to_register: EncodedBytes | None = None
        self.description = json.dumps([schema, definition], sort_keys=True, default=str)
        try:
            self._from_texts = _conversions(definition) if from_texts and definition else None
            self._from_table = _table_conversions(definition, schema == "avro") if definition else None
        except (KeyError, TypeError, AttributeError) as error:
            validation.refuse(f"the schema's definition is no Avro record: {type(error).__name__}: {error}")
        self._encode: Callable[[Any], bytes] = _plain
        real: Schema[Any] | None = None
        if schema == "string":
            real = StringSchema()
        elif schema == "json":
            real = JsonSchema(None, definition)
        elif schema == "avro":
            real = AvroSchema(None, definition, ignore_unknown_fields=False)
        if real is not None:
            self._encode = real.encode
            self.to_register = EncodedBytes(real.schema_info())

    def encode(self, value: Any) -> bytes | None:
        """Return the bytes of a value, None for a null value; raises ValueError or its subclass `InvalidRecord`."""
        return None if value is None else self._encode(value)

    def typed(self, row: Any, rows: str | None) -> Any:
        """Return a row of texts or of a table with the definition's types; anything else unchanged.

        `rows` is the source's. Raises ValueError.
        """
        convert = {"texts": self._from_texts, "table": self._from_table}.get(rows or "")
        if convert is None or not isinstance(row, Mapping):
            return row
        return {name: convert[name](name, each) if name in convert else each for name, each in row.items()}


def _plain(value: Any) -> bytes:
    """Return bytes unchanged, text in UTF-8, and anything else as compact JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    try:
        return json.dumps(
            value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_json_value
        ).encode()
    except (TypeError, ValueError) as error:
        where = f" (the field {name!r})" if (name := _unwritten(value)) is not None else ""
        validation.refuse(f"it is neither bytes nor text, and cannot be written in JSON: {error}{where}")


def _unwritten(value: Any) -> str | None:
    """Return the name of the first field that has no form in JSON, None for another value."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            try:
                json.dumps(each, allow_nan=False, default=_json_value)
            except (TypeError, ValueError):
                return str(name)
    return None


def _json_value(value: Any) -> Any:
    """Return the JSON form of another type: ISO-8601 for times and durations, exact text for decimals, UUIDs, IPs."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, Decimal | UUID) or type(value).__module__ == "ipaddress":
        return str(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _duration(value: timedelta) -> str:
    """Return a duration in ISO-8601, such as P1DT5400S; a negative one has negative parts."""
    sign, size = ("-", -value) if value < timedelta(0) else ("", value)
    seconds = f"{size.seconds}.{size.microseconds:06d}".rstrip("0").rstrip(".") if size.microseconds else size.seconds
    return f"P{sign}{size.days}DT{sign}{seconds}S"


# ---- texts of a CSV file ---------------------------------------------------------------------------------------------

_TRUE, _FALSE = ("true", "t", "yes", "1"), ("false", "f", "no", "0")


def _flag(text: str) -> bool:
    folded = text.strip().lower()
    if folded not in _TRUE + _FALSE:
        raise ValueError("not a truth value")
    return folded in _TRUE


_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "boolean": _flag,
    "string": str,
    "bytes": str.encode,
}


def _conversions(definition: Mapping[str, Any]) -> dict[str, Callable[[str, Any], Any]]:
    """Return the conversion of each record field from the text of a CSV column."""
    found = {}
    for each in definition.get("fields", ()):
        kinds = each["type"] if isinstance(each["type"], list) else [each["type"]]
        plain = [kind["type"] if isinstance(kind, Mapping) else kind for kind in kinds]
        found[each["name"]] = _conversion("null" in plain, next((_FROM_TEXT[k] for k in plain if k in _FROM_TEXT), str))
    return found


def _conversion(nullable: bool, convert: Callable[[str], Any]) -> Callable[[str, Any], Any]:
    def one(name: str, text: Any) -> Any:
        if not isinstance(text, str) or (nullable and text in ("", "NA", "null")):
            return text if not isinstance(text, str) else None
        try:
            return convert(text)
        except ValueError:
            validation.refuse(f"the column {name!r} holds {text[:60]!r}, which is no {convert.__name__.strip('_')}")

    return one


# ---- rows of a table -------------------------------------------------------------------------------------------------

_UNITS = {"millis": 1000, "micros": 1_000_000, "nanos": 1_000_000_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _table_conversions(definition: Mapping[str, Any], is_avro: bool) -> dict[str, Callable[[str, Any], Any]]:
    """Return the conversion of each record field from a table's value."""
    found = {}
    for each in definition.get("fields", ()):
        kinds = each["type"] if isinstance(each["type"], list) else [each["type"]]
        kind = next((kind for kind in kinds if kind != "null"), "null")
        logical = kind.get("logicalType") if isinstance(kind, Mapping) else None
        plain = kind.get("type") if isinstance(kind, Mapping) else kind
        found[each["name"]] = _table_conversion(plain, logical, is_avro)
    return found


def _table_conversion(plain: Any, logical: Any, is_avro: bool) -> Callable[[str, Any], Any]:
    def one(name: str, value: Any) -> Any:
        if isinstance(value, float) and plain in ("int", "long") and value.is_integer():
            return int(value)  # pandas stores integers with a missing value as floats.
        if plain == "string" and not isinstance(value, str) and value is not None:
            return _json_value(value) if isinstance(value, datetime | date | time | Decimal | UUID) else value
        if isinstance(value, Decimal) and plain in ("float", "double"):
            return float(value)
        if isinstance(value, datetime) and plain == "long":
            return _moment(value, str(logical or "timestamp-millis"), keep=is_avro and logical is not None)
        if isinstance(value, date) and plain == "int" and not (is_avro and logical == "date"):
            return value.toordinal() - _EPOCH.toordinal()
        return value

    return one


def _moment(value: datetime, logical: str, *, keep: bool) -> datetime | int:
    """Return a time as Avro's logical type needs it: unchanged with `keep`, else its count of units since 1970."""
    is_local = logical.startswith("local-")
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if keep:
        return aware.replace(tzinfo=None) if is_local else aware
    since = aware.replace(tzinfo=UTC) - _EPOCH if is_local else aware - _EPOCH
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return micros * _UNITS.get(logical.rpartition("-")[2], 1000) // 1_000_000


# ---- after consuming -------------------------------------------------------------------------------------------------


class WriterSchema(Schema[Any]):
    """Decoder of each message by its writer's schema; bytes without a schema, pairs as {"key": …, "value": …}."""

    # Unknown until the version of a message is known.
    separates_key = True

    def __init__(self, find: WriterSchemas | None = None) -> None:
        super().__init__()
        self._find = find
        self._decoders: dict[bytes, Schema[Any]] = {}

    def encode(self, obj: Any) -> bytes:
        """Raise: this schema only decodes."""
        raise InvalidRecord("RegisteredSchema decodes only")

    def decode(self, data: bytes) -> Any:
        """Return the bytes: without a version no schema is known."""
        return data

    def decode_versioned(self, data: bytes, schema_version: bytes | None) -> Any:
        """Return the value, decoded by the schema of that version."""
        return self.decode_separated(None, data, schema_version)

    def decode_separated(self, key: bytes | None, data: bytes | None, schema_version: bytes | None) -> Any:
        """Return the value, decoded by the schema of that version, with the key where that separates it."""
        if not schema_version or self._find is None:
            return data
        decoder = self._decoders.get(schema_version)
        if decoder is None:
            decoder = self._decoders[schema_version] = schema_from_info(self._find(schema_version))
        if isinstance(decoder, KeyValueSchema):
            pair = decoder.decode_separated(key, data, schema_version)
            return None if pair is None else pair._asdict()
        return None if data is None else decoder.decode(data)

    def with_writer_schemas(self, find: WriterSchemas) -> WriterSchema:
        """Return the schema for one topic."""
        return WriterSchema(find)


def decode(message: Message, decoder: str) -> tuple[Any, str]:
    """Return a message's value as JSON, and its encoding: json, text, base64 or null.

    Raises `InvalidRecord` for bytes that the decoder cannot decode.
    """
    if message.has_null_value():
        return None, "null"
    if decoder == "bytes":
        return base64.b64encode(message.data()).decode(), "base64"
    if decoder == "text":
        return _text(message.data()), "text"
    if decoder == "json":
        # Python reads NaN, Infinity and numbers beyond a float's range, which JSON cannot hold.
        return json_safe(_parsed(message.data())), "json"
    value = message.value()
    if isinstance(value, bytes):
        # Without a registered schema, text stays text, so that the file is readable.
        try:
            return value.decode(), "text"
        except UnicodeDecodeError:
            return base64.b64encode(value).decode(), "base64"
    return json_safe(value), "text" if isinstance(value, str) else "json"


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRecord(f"The message is not text in UTF-8 ({error.reason} at byte {error.start})") from error


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise InvalidRecord(f"The message is not JSON: {error}") from error
