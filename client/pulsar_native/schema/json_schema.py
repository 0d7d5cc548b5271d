"""JSON messages, of records or of plain dictionaries with an Avro definition.

Rules: the registry is given the Avro definition, in the official Python client's very text, so that both clients
share one version. Messages are compact JSON in UTF-8; enumerations are written by value, bytes as text, as the
official client does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.base import Schema, mismatch
from pulsar_native.schema.datum_check import DatumCheck, compile_check
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.info import SchemaType
from pulsar_native.schema.record import Record, record_definition, record_from, record_values

T = TypeVar("T")
R = TypeVar("R", bound=Record)


class JsonSchema(Schema[T], Generic[T]):
    """JSON of a record class, or of dictionaries with `schema_definition` (an Avro definition as a dictionary).

    Dictionaries are checked against the definition when they are encoded: unknown names (unless
    `ignore_unknown_fields`), missing values without default, and wrong types are errors, and defaults are filled in.
    Thread-safe, never blocks.
    """

    @overload
    def __init__(self: JsonSchema[R], record_cls: type[R]) -> None: ...
    @overload
    def __init__(
        self: JsonSchema[dict[str, object]],
        record_cls: None = None,
        schema_definition: Mapping[str, object] | None = None,
        *,
        ignore_unknown_fields: bool = False,
    ) -> None: ...
    def __init__(
        self,
        record_cls: type[Record] | None = None,
        schema_definition: Mapping[str, object] | None = None,
        *,
        ignore_unknown_fields: bool = False,
    ) -> None:
        self._record_cls = checked_record_class(record_cls, schema_definition)
        self._definition = record_definition(self._record_cls) if self._record_cls else dict(schema_definition or {})
        super().__init__(self._record_cls, SchemaType.JSON, self._definition, "JSON")
        self._ignore_unknown_fields = ignore_unknown_fields

    def encode(self, obj: T) -> bytes:
        """Return compact JSON in UTF-8; raises `InvalidRecord`."""
        value: object = obj
        if self._record_cls is None:
            value = self._check(obj)
        elif not isinstance(obj, self._record_cls):
            raise mismatch(obj, self._record_cls.__name__)
        try:
            return json.dumps(value, default=_plain, separators=(",", ":"), ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRecord(f"The value cannot be written in JSON: {error}") from error

    def decode(self, data: bytes) -> T:
        """Return the record, or the dictionary, of a JSON object; raises `InvalidRecord`."""
        try:
            values = json.loads(data if isinstance(data, bytes | str) else bytes(data))
        except (ValueError, RecursionError) as error:
            raise InvalidRecord(f"The message is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise InvalidRecord(f"The message is JSON, but no object: {type(values).__name__}")
        decoded: Any = values if self._record_cls is None else record_from(self._record_cls, values)
        result: T = decoded
        return result

    @cached_property
    def _check(self) -> DatumCheck:
        # Compiled by the first message encoded: a consumer of an odd old definition never needs it.
        return compile_check(self._definition, ignore_unknown_fields=self._ignore_unknown_fields, bytes_as_text=True)


def checked_record_class(record_cls: object, schema_definition: object) -> type[Record] | None:
    """Return the record class of a schema's arguments, None for dictionaries; raises `InvalidConfiguration`."""
    if record_cls is None:
        if not isinstance(schema_definition, Mapping):
            raise InvalidConfiguration("A JSON or Avro schema needs a record class, or a schema_definition dictionary")
        return None
    if isinstance(record_cls, Record):
        record_cls = type(record_cls)
    if not isinstance(record_cls, type) or not issubclass(record_cls, Record):
        shown = record_cls.__name__ if isinstance(record_cls, type) else type(record_cls).__name__
        raise InvalidConfiguration(f"The record class must be derived from Record, not {shown}")
    return record_cls


def _plain(value: object) -> object:
    """Return what JSON has for a value that it does not know."""
    if isinstance(value, Record):
        return record_values(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
