"""JSON schema of records, or of dictionaries with an Avro definition.

Rules: the registered Avro definition has the official Python client's text, so that both clients share one version.
Messages are compact JSON in UTF-8; enumerations are written by value and bytes as text, as by the official client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

from pulsar_native._type_names import class_name, origin
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.base import Schema, mismatch
from pulsar_native.schema.datum_check import DatumCheck, compile_check
from pulsar_native.schema.errors import InvalidJson, InvalidRecord, InvalidText
from pulsar_native.schema.info import SchemaType
from pulsar_native.schema.models import Model, is_model
from pulsar_native.schema.record import Record, record_definition, record_from, record_values

T = TypeVar("T")
R = TypeVar("R")

# `json.loads` spends as much time on finding the encoding and looking for space around the object as on the object.
_scan: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]


class JsonSchema(Schema[T], Generic[T]):
    """JSON schema of a record class, or of dictionaries. Thread-safe; does not block.

    With dataclasses and models, enumerations are written by name, dates and times as the numbers of their Avro type.
    Dictionaries are checked against the definition when they are encoded: missing values without default and wrong
    types raise `InvalidRecord`, and defaults are filled in. Raises `InvalidConfiguration` for a class or definition
    that cannot be used.

    :param record_cls: subclass of `Record`, dataclass, or pydantic model; another class with a class method `schema`
        that returns its definition, which is written by `vars` and made by keywords; or a definition.
    :param schema_definition: Avro definition of dictionaries, as a dict or JSON text; with a class, the class is used.
    :param ignore_unknown_fields: True leaves out keys that the definition does not have, instead of raising. Default
        False.
    """

    @overload
    def __init__(self: JsonSchema[R], record_cls: type[R]) -> None: ...
    @overload
    def __init__(
        self: JsonSchema[dict[str, object]],
        record_cls: Mapping[str, object] | str | None = None,
        schema_definition: Mapping[str, object] | str | None = None,
        *,
        ignore_unknown_fields: bool = False,
    ) -> None: ...
    def __init__(
        self,
        record_cls: type | Mapping[str, object] | str | None = None,
        schema_definition: Mapping[str, object] | str | None = None,
        *,
        ignore_unknown_fields: bool = False,
    ) -> None:
        self._record_cls, self._model, self._definition = record_source(record_cls, schema_definition, json=True)
        super().__init__(self._record_cls, SchemaType.JSON, self._definition, "JSON")
        self._ignore_unknown_fields = ignore_unknown_fields

    def encode(self, obj: T) -> bytes:
        """Return compact JSON in UTF-8; raises `InvalidRecord`."""
        value: object = obj
        if self._model is not None:
            value = self._model.encode(obj)
        elif self._record_cls is None:
            value = self._check(obj)
        elif not isinstance(obj, self._record_cls):
            raise mismatch(obj, self._record_cls.__name__)
        else:
            value = record_values(obj)
        try:
            return _write_json(value).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRecord(f"The value cannot be written in JSON: {error}") from error

    def decode(self, data: bytes) -> T:
        """Return the record, or the dictionary, of a JSON object; raises `InvalidRecord`."""
        values = self._values(data)
        decoded: Any = values
        if self._model is not None:
            decoded = self._model.decode(values)
        elif self._record_cls is not None:
            decoded = record_from(self._record_cls, values)
        result: T = decoded
        return result

    @staticmethod
    def _values(data: bytes) -> dict[str, Any]:
        if type(data) is bytes:
            try:
                text = data.decode()
                scanned, end = _scan(text, 0)
                if end == len(text) and type(scanned) is dict:
                    return scanned
            except (ValueError, StopIteration, RecursionError):
                # Not the usual form, or an error: both are found out below.
                pass
        try:
            values = json.loads(data if isinstance(data, bytes | str) else bytes(data))
        except json.JSONDecodeError as error:
            raise InvalidJson(error.msg, error.doc, error.pos) from error
        except UnicodeDecodeError as error:
            raise InvalidText(*error.args) from error
        except (ValueError, RecursionError) as error:
            raise InvalidRecord(f"The message is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise InvalidRecord(f"The message is JSON, but no object: {type(values).__name__}")
        return values

    def validate(self, data: bytes) -> None:
        """Raise `InvalidRecord` unless the bytes are a JSON object with the definition's fields, or more."""
        value = self._values(data)
        if self._record_cls is not None or self._model is not None:
            self.decode(data)
            return
        try:
            check = compile_check(self._definition, ignore_unknown_fields=True, bytes_as_text=True)
        except InvalidConfiguration:
            return  # Not an Avro definition, as old clients register for JSON: nothing is checked.
        check(value)

    def __getstate__(self) -> dict[str, Any]:
        # Compiled functions do not pickle: `_check` is made again. Copied in one step: another thread may make it now.
        state = self.__dict__.copy()
        state.pop("_check", None)
        return state

    @cached_property
    def _check(self) -> DatumCheck:
        # Compiled with the first message encoded: a consumer of an invalid old definition does not need it.
        return compile_check(self._definition, ignore_unknown_fields=self._ignore_unknown_fields, bytes_as_text=True)


def record_source(
    record_cls: object, schema_definition: object, *, json: bool
) -> tuple[type[Any] | None, Model[Any] | None, dict[str, object]]:
    """Return record class or model of a schema, both None for dictionaries, and its definition.

    A record class is derived from Record, or is another one with a class method `schema`, which the official client
    takes, too. Raises `InvalidConfiguration` for anything else.
    """
    if isinstance(record_cls, Mapping | str):
        record_cls, schema_definition = None, record_cls
    if record_cls is None:
        return None, None, _definition_of(schema_definition)
    if isinstance(record_cls, Record) or (not isinstance(record_cls, type) and is_model(type(record_cls))):
        record_cls = type(record_cls)
    if isinstance(record_cls, type) and issubclass(record_cls, Record):
        return record_cls, None, _definition_of(record_definition(record_cls))
    if isinstance(record_cls, type) and is_model(record_cls):
        model: Model[Any] = Model(record_cls, json=json)
        return None, model, model.definition
    describe = getattr(record_cls, "schema", None)
    # A Record of the official client belongs to its schemas only.
    if isinstance(record_cls, type) and callable(describe) and not origin(record_cls):
        return record_cls, None, _definition_of(describe())
    shown = class_name(record_cls if isinstance(record_cls, type) else type(record_cls))
    raise InvalidConfiguration(
        f"The record class must be derived from Record, or be a dataclass or a pydantic model, not {shown}"
    )


def _definition_of(given: object) -> dict[str, object]:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise InvalidConfiguration(f"The schema definition is not JSON: {error}") from error
    if not isinstance(given, Mapping):
        raise InvalidConfiguration(
            "A JSON or Avro schema needs a record class, or a schema_definition: a dictionary, or its text"
        )
    return dict(given)


def _plain(value: object) -> object:
    """Return the JSON form of a value that JSON does not know."""
    if isinstance(value, Record):
        return record_values(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return vars(value)  # In an object of a class that has a definition, as by the official client.
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _json_writer() -> Callable[[object], str]:
    encoder = json.JSONEncoder(default=_plain, separators=(",", ":"), ensure_ascii=False)
    names: dict[str, Any] = vars(json.encoder)
    make, text = names.get("c_make_encoder"), names.get("encode_basestring")
    if make is None:
        return encoder.encode
    try:
        # Without the memory of containers that finds circles: these end as a RecursionError.
        write = make(None, _plain, text, None, ":", ",", False, False, True)
    except TypeError:
        # Another version's arguments.
        return encoder.encode
    return lambda value: "".join(write(value, 0))


# Made once: `json.dumps` makes an encoder for each value, and so does `JSONEncoder.encode` with its compiled part.
_write_json = _json_writer()
