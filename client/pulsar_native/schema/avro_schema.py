"""Avro schema of records, or of dictionaries with an Avro definition.

Rules: needs the package fastavro (extra `avro`), imported when a schema is created. A message is read with its writer's
schema, found by the version in its metadata, and resolved to this one. The definition's text equals the official Python
client's, so that both clients share one version.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

from pulsar_native._callback_errors import is_of_signal_handler
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.avro_resolution import prepare
from pulsar_native.schema.base import Schema, WriterSchemas, mismatch
from pulsar_native.schema.datum_check import DatumCheck, compile_check
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.info import SchemaType
from pulsar_native.schema.json_schema import record_source
from pulsar_native.schema.record import Record, record_from, record_values
from pulsar_native.wire import _impl

T = TypeVar("T")
R = TypeVar("R")

# Modules and compiled functions do not pickle; the rest is made again when it is needed.
_NOT_PICKLED = frozenset({"_at_versions", "_check", "_fastavro", "_own_shape", "_writers"})


class AvroSchema(Schema[T], Generic[T]):
    """Avro schema of a record class, or of dictionaries. Thread-safe; blocks only to fetch a writer's schema.

    Dates, times, decimals and UUIDs are Avro's logical types. Of a union of records a dictionary is written as one that
    has all of its keys, else as the one with most of them; `(name, value)` with the full name of a type, or a key
    "-type" with that of a record, chooses another. Raises `InvalidConfiguration` for a class or definition that cannot
    be used.

    :param record_cls: subclass of `Record`, dataclass, or pydantic model; another class with a class method `schema`
        that returns its definition, which is written by `vars` and made by keywords; or a definition.
    :param schema_definition: Avro definition of dictionaries, as a dict or JSON text; with a class, the class is used.
    :param ignore_unknown_fields: False raises `InvalidRecord` for keys that the definition does not have. Default True:
        they are left out, as by the official client.
    """

    # Whether `decode` is called with the version, too.
    _decode_has_version = True

    @overload
    def __init__(self: AvroSchema[R], record_cls: type[R], schema_definition: object = None) -> None: ...
    @overload
    def __init__(
        self: AvroSchema[dict[str, object]],
        record_cls: Mapping[str, object] | str | None = None,
        schema_definition: Mapping[str, object] | str | None = None,
        *,
        ignore_unknown_fields: bool = True,
    ) -> None: ...
    def __init__(
        self,
        record_cls: type | Mapping[str, object] | str | None = None,
        schema_definition: Any = None,
        *,
        ignore_unknown_fields: bool = True,
    ) -> None:
        self._fastavro = _import_fastavro()
        # `_schema` is what subclasses of the official client's class know the definition by.
        self._record_cls, self._model, self._schema = record_source(record_cls, schema_definition, json=False)
        super().__init__(self._record_cls, SchemaType.AVRO, self._schema, "AVRO")
        self._parsed = self._parse(self._schema)
        self._flat = _flat_fields(self._schema)
        self._ignore_unknown_fields = ignore_unknown_fields
        self._is_exact = False
        self._find_writer: WriterSchemas | None = None
        self._writers: dict[bytes, tuple[Any, Any]] = {}
        # Version that `decode` reads without being given one, and this schema at the versions of messages.
        self._version: bytes | None = None
        self._at_versions: dict[bytes, AvroSchema[T]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # One written for the official client has no such parameter.
        cls._decode_has_version = "schema_version" in inspect.signature(cls.decode).parameters

    def encode(self, obj: T) -> bytes:
        """Return Avro binary without any header; raises `InvalidRecord`."""
        value: Any = obj
        if self._model is not None:
            value = self._model.encode(obj)
        elif self._record_cls is None:
            value = self._check(obj)
        elif isinstance(obj, self._record_cls):
            # Of primitive fields the record has just what is to be written.
            written = self._write_flat(obj.__dict__)
            if written is not None:
                return written
            value = _plain(obj if isinstance(obj, Record) else vars(obj))
        else:
            raise mismatch(obj, self._record_cls.__name__)
        if type(value) is dict and (written := self._write_flat(value)) is not None:
            return written
        out = io.BytesIO()
        try:
            self._fastavro.schemaless_writer(out, self._parsed, value)
        except Exception as error:
            if is_of_signal_handler(error):
                raise
            raise InvalidRecord(f"The value does not fit the Avro schema: {_said(error)}") from error
        return out.getvalue()

    def decode(self, data: bytes, schema_version: bytes | None = None) -> T:
        """Return the record, or the dictionary, of a payload.

        After `with_writer_schemas` the payload is read with its writer's schema, which may block once per version.
        Raises `InvalidRecord` for bytes that do not fit, and errors of fetching the schema.
        """
        writer, reader = self._writer_and_reader(schema_version)
        try:
            values = self._read(data, writer, reader)
        except Exception as error:
            if is_of_signal_handler(error):
                raise
            raise InvalidRecord(f"The message does not fit the Avro schema: {_said(error)}") from error
        decoded: Any = values
        if self._model is not None:
            decoded = self._model.decode(values)
        elif self._record_cls is not None:
            decoded = record_from(self._record_cls, values)
        result: T = decoded
        return result

    def decode_many(self, payloads: Iterable[bytes | None], schema_version: bytes | None) -> list[T | None]:
        """Return the values of payloads of one schema version, None for null; see `decode`."""
        if self._model is not None or self._record_cls is not None or type(self).decode is not AvroSchema.decode:
            return super().decode_many(payloads, schema_version)
        writer, reader = self._writer_and_reader(schema_version)
        try:
            return [None if data is None else self._read(data, writer, reader) for data in payloads]
        except Exception as error:
            if is_of_signal_handler(error):
                raise
            raise InvalidRecord(f"A message does not fit the Avro schema: {_said(error)}") from error

    def _read(self, data: bytes, writer: Any, reader: Any) -> Any:
        """Return the value of a payload; raises what fastavro raises, and `ValueError` for bytes left over if exact."""
        if self._flat is not None and reader is None:
            values = _impl.read_flat(data, *self._flat)
            if values is not None:
                return values
        stream = io.BytesIO(data)
        found = self._fastavro.schemaless_reader(stream, writer, reader)
        if self._is_exact and (left := len(data) - stream.tell()):
            raise ValueError(f"bytes after the record: {left}")
        return found

    def _write_flat(self, values: dict[str, Any]) -> bytes | None:
        """Return a record encoded, None for what is left to fastavro."""
        return None if self._flat is None else _impl.write_flat(values, *self._flat)

    def _writer_and_reader(self, version: bytes | None) -> tuple[Any, Any]:
        """Return the parsed schemas to read a payload with; the reader's is None where both are the same."""
        version = version or self._version
        if version and self._find_writer is not None:
            return self._writer_of(version)
        return self._parsed, None

    def validate(self, data: bytes) -> None:
        """Raise `InvalidRecord` unless the bytes are one message of this schema."""
        stream = io.BytesIO(data)
        try:
            self._fastavro.schemaless_reader(stream, self._parsed, None)
        except Exception as error:
            if is_of_signal_handler(error):
                raise
            raise InvalidRecord(f"The bytes do not fit the Avro schema: {_said(error)}") from error
        if stream.tell() != len(data):
            raise InvalidRecord(f"The bytes go on for {len(data) - stream.tell()} bytes after the Avro record")

    def decode_versioned(self, data: bytes, schema_version: bytes | None) -> T:
        """Return the value of a payload by its schema version; see `decode`."""
        if self._decode_has_version:
            return self.decode(data, schema_version)
        return (self._at_version(schema_version) if schema_version else self).decode(data)

    def _at_version(self, version: bytes) -> AvroSchema[T]:
        """Return this schema for payloads of a version, for a subclass whose `decode` is not given the version."""
        found = self._at_versions.get(version)
        if found is None:
            found = self._at_versions[version] = self._copied()
            found._version = version
        return found

    def __getstate__(self) -> dict[str, Any]:
        # Copied in one step: another thread may compile what is missing.
        state = self.__dict__.copy()
        for name in _NOT_PICKLED:
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fastavro = _import_fastavro()
        self._writers = {}
        self._at_versions = {}

    def _copied(self) -> AvroSchema[T]:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def with_writer_schemas(self, find: WriterSchemas) -> AvroSchema[T]:
        """Return this schema for one topic; `find` returns the schema of a version, once per version."""
        bound = self._copied()
        bound._find_writer = find
        bound._writers = {}
        bound._at_versions = {}
        return bound

    def exact(self) -> AvroSchema[T]:
        """Return this schema, raising `InvalidRecord` also for bytes after the record, which Java's client ignores."""
        made = self._copied()
        made._is_exact = True
        return made

    def _writer_of(self, version: bytes) -> tuple[Any, Any]:
        found = self._writers.get(version)
        if found is None:
            assert self._find_writer is not None
            info = self._find_writer(version)
            if info.type is not SchemaType.AVRO:
                raise InvalidRecord(f"The message was written with a schema of kind {info.type.name}, not AVRO")
            found = (self._parsed, None) if info.data == self._info.data else self._resolved(info.definition())
            # Two threads may fetch the same schema; one of the two is kept.
            self._writers[version] = found
        return found

    def _resolved(self, definition: dict[str, object]) -> tuple[Any, Any]:
        """Return a writer's definition and this one, parsed to be read with: all records of a topic are of one type.

        Avro resolves only records of one name, or of one that is an alias of the reader's: the writer's becomes one.
        """
        writer = self._parse(definition)
        if _shape(writer, {}) == self._own_shape:
            # Only names of the types differ. Nothing is resolved then, which is faster.
            return self._parsed, None
        name, own = writer.get("name"), self._parsed.get("name")
        reader = self._parsed
        if name is not None and own is not None and _simple(name) != _simple(own):
            reader = self._parse({**self._schema, "aliases": [*reader.get("aliases", ()), name]})
        return prepare(self._fastavro, writer, reader)

    @cached_property
    def _own_shape(self) -> Any:
        return _shape(self._parsed, {})

    def _parse(self, definition: Mapping[str, object]) -> Any:
        try:
            return self._fastavro.parse_schema(definition)
        except Exception as error:
            raise InvalidConfiguration(f"The schema definition is not Avro: {_said(error)}") from error

    @cached_property
    def _check(self) -> DatumCheck:
        return compile_check(
            self._schema,
            ignore_unknown_fields=self._ignore_unknown_fields,
            logical_types=True,
            tuple_notation=True,
        )


def _import_fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise InvalidConfiguration("Avro schemas need the package fastavro: install pulsar-native[avro]") from error
    return fastavro


# As in `wire/_speedups.pyx`: 8 is added where null is first in a union, 16 where it is last.
_PRIMITIVES = {"boolean": 1, "int": 2, "long": 3, "float": 4, "double": 5, "bytes": 6, "string": 7}


def _flat_fields(definition: Mapping[str, Any]) -> tuple[tuple[str, ...], bytes] | None:
    """Return names and kinds of a record's fields for `_impl.read_flat`; None if any is not primitive or nullable."""
    if definition.get("type") != "record" or not isinstance(definition.get("fields"), list):
        return None
    fields = definition["fields"]
    kinds = [kind for field in fields if (kind := _kind_of(field.get("type"))) is not None]
    return (tuple(field["name"] for field in fields), bytes(kinds)) if len(kinds) == len(fields) else None


# What does not change how a value is read with its own definition.
_UNREAD = frozenset({"doc", "default", "aliases", "order", "__fastavro_parsed", "__named_schemas"})


def _shape(parsed: Any, names: dict[str, tuple[int, str]]) -> Any:
    """Return a parsed type without what is not read: the root's name, namespaces, texts and defaults.

    `names` are the full names so far, each with its number in the definition and what remains of it.
    """
    if isinstance(parsed, list):
        return [_shape(branch, names) for branch in parsed]
    if not isinstance(parsed, dict):
        return names.get(parsed, parsed)
    shape = {key: value for key, value in parsed.items() if key not in _UNREAD}
    if "name" in shape:
        # First of all, since the fields may refer to it.
        name = shape["name"]
        names[name] = shape["name"] = (len(names), _simple(name) if names else "")
    for key in ("type", "items", "values"):
        if key in shape:
            shape[key] = _shape(shape[key], names)
    if "fields" in shape:
        shape["fields"] = [(field["name"], _shape(field["type"], names)) for field in shape["fields"]]
    return shape


def _simple(name: str) -> str:
    """Return the name of a type without its namespace."""
    return name.rpartition(".")[2]


def _kind_of(kind: object) -> int | None:
    """Return the number of a field's type, None if it is neither primitive nor a union of such a type and null."""
    if isinstance(kind, str):
        return _PRIMITIVES.get(kind)
    if isinstance(kind, list) and len(kind) == 2 and kind.count("null") == 1:
        at = kind.index("null")
        other = kind[1 - at]
        number = _PRIMITIVES.get(other) if isinstance(other, str) else None
        return None if number is None else number + (16 if at else 8)
    return None


_SCALARS = frozenset({bool, bytes, float, int, str, type(None)})


def _plain(value: Any) -> Any:
    """Return a record as dictionaries, lists and names of enumeration members."""
    if isinstance(value, Record):
        return {name: item if type(item) in _SCALARS else _plain(item) for name, item in record_values(value).items()}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _said(error: Exception) -> str:
    return f"{str(error)[:300] or 'the data ends too early'} ({type(error).__name__})"
