"""Codecs of jobs: values to bytes for publishing, bytes to JSON values after consuming.

Rules: the registered schema is exactly the definition given. Bytes are written to JSON as marked base64 only.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

from pulsar_native import Message
from pulsar_native.jobs import validation
from pulsar_native.jobs.conversions import ColumnConversion, logical_conversion, table_conversions, text_conversions
from pulsar_native.jobs.json_values import json_safe
from pulsar_native.jobs.publish_options import checked
from pulsar_native.jobs.sources import JsonLine
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
            self._rows = _row_conversions(definition, schema == "avro", from_texts) if definition else {}
            logical = logical_conversion(definition, schema == "avro") if definition and schema else None
        except (KeyError, TypeError, AttributeError, ValueError) as error:
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
            encode = real.encode
            self._encode = encode if logical is None else lambda value: encode(logical(value))
            self.to_register = EncodedBytes(real.schema_info())

    def encode(self, value: Any) -> bytes | None:
        """Return the bytes of a value, None for a null value; raises ValueError or its subclass `InvalidRecord`."""
        return None if value is None else self._encode(value)

    def typed(self, row: Any, rows: str | None) -> Any:
        """Return a row of texts or of a table with the definition's types; anything else unchanged.

        `rows` is the source's. Raises ValueError.
        """
        convert = self._rows.get(rows)
        if not convert or not isinstance(row, Mapping):
            return row
        return {name: convert[name](name, each) if name in convert else each for name, each in row.items()}


def _row_conversions(
    definition: Mapping[str, Any], is_avro: bool, from_texts: bool
) -> dict[str | None, dict[str, ColumnConversion]]:
    """Return the conversions of columns by a source's `rows`."""
    found: dict[str | None, dict[str, ColumnConversion]] = {"table": table_conversions(definition)}
    if from_texts:
        found["texts"] = text_conversions(definition, is_avro)
    return found


def _plain(value: Any) -> bytes:
    """Return bytes unchanged, text in UTF-8, a line of JSON as it is, and anything else as compact JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, JsonLine):
        return value.text.encode()
    try:
        return _json_of(value)
    except (TypeError, ValueError) as error:
        where = f" (the field {name!r})" if (name := _unwritten(value)) is not None else ""
        validation.refuse(f"it is neither bytes nor text, and cannot be written in JSON: {error}{where}")


def _json_of(value: Any) -> bytes:
    """Return a value as compact JSON; raises TypeError or ValueError for one that has no form in it."""
    write = partial(json.dumps, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_json_value)
    try:
        return write(value).encode()
    except TypeError:
        # Unlike values, keys are not converted by `default`.
        return write(_with_json_keys(value)).encode()


def _with_json_keys(value: Any) -> Any:
    """Return a value with the JSON form of the keys of its dicts, nested ones too."""
    if isinstance(value, dict):
        return {_json_key(name): _with_json_keys(each) for name, each in value.items()}
    return [_with_json_keys(each) for each in value] if isinstance(value, list | tuple) else value


def _json_key(name: Any) -> Any:
    return name if name is None or isinstance(name, str | int | float) else _json_value(name)


def _unwritten(value: Any) -> str | None:
    """Return the name of the first field that has no form in JSON, None for another value."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            try:
                _json_of(each)
            except (TypeError, ValueError):
                return str(name)
    return None


def _json_value(value: Any) -> Any:
    """Return the JSON form of another type: ISO-8601 for times and durations, exact text for decimals, UUIDs, IPs."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, Decimal) and not value.is_finite():
        raise ValueError(f"{value} has no form in JSON")
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
