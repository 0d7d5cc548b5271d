"""Decoding of record batches by the topic's registered schema, in a task.

Rules: primitives and JSON become columns without a Python object per row; Avro and Protobuf are read message by message
and become columns a batch at a time. Each message is read with its writer's schema and resolved to that of the read. A
message that cannot be decoded is never a row of nulls without a sign: it fails the read, is counted, or is a row with
its payload. A null payload is a row of nulls. Imports are in functions where they need pyarrow or pyspark.
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pulsar_native.arrow.values import primitive_array
from pulsar_native.exceptions import InvalidMessage
from pulsar_native.schema import AvroSchema, SchemaInfo, SchemaType
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.key_value import KeyValueEncodingType, split_info, split_payload
from pulsar_native.schema.protobuf_definition import is_repeated, native_class
from pulsar_native.schema.protobuf_schema import parse_message
from pyspark_pulsar.arrow_types import arrow_schema
from pyspark_pulsar.decoding import with_column_types, with_fields
from pyspark_pulsar.options import DROPMALFORMED, FAILFAST
from pyspark_pulsar.positions import Position
from pyspark_pulsar.schema import with_full_names
from pyspark_pulsar.value_schema import ValueSchema, is_map, value_struct

if TYPE_CHECKING:
    import pyarrow

_log = logging.getLogger("pyspark_pulsar")
_PLACE = ("__ledgerId", "__entryId", "__batchIndex")
# Of pyarrow for a value that does not fit a type, besides its own subclasses of these.
_MISFITS = (ValueError, TypeError, OverflowError, NotImplementedError, RecursionError)

Wrong = dict[int, str]
"""Reasons of the rows that cannot be decoded, by row."""
Versions = Sequence[tuple[int | None, int, int]]
"""Schema versions of consecutive rows: version, first row, last row plus one."""
FindSchema = Callable[[int], SchemaInfo]


class PartDecoder(Protocol):
    """Decoder of one payload column into one Arrow array, a struct for records."""

    def decode(self, payloads: pyarrow.Array, versions: Versions) -> tuple[pyarrow.Array, Wrong]:
        """Return the values, null for null payloads and wrong ones, and the wrong rows."""


class ValueDecoder:
    """Decoder of the record batches of one split. Not thread-safe; `find` returns the topic's schema of a version.

    `source_columns` are the columns that it needs. `rows` and `dropped` count the messages so far.
    """

    def __init__(self, topic: str, schema: ValueSchema, find: FindSchema) -> None:
        self._topic = topic
        self._schema = schema
        self._mode, self._corrupt = schema.options.mode, schema.options.corrupt_column
        self._arrow_schema = arrow_schema(schema.struct())
        # By FAILFAST, values that nobody asked for are neither read nor checked. The other modes decode whole values,
        # so that a message is wrong whichever columns are read.
        wanted = {
            field.name: field.type
            for field in arrow_schema(value_struct(schema.info))
            if self._mode != FAILFAST or field.name in schema.fields
        }
        self._parts = _parts(schema, wanted, _Finder(find)) if wanted or self._mode != FAILFAST else None
        needed: list[str] = []
        if self._parts is not None:
            needed += ["value", *_PLACE, *(["__schemaVersion"] if self._parts.is_versioned else [])]
            needed += ["__key"] if schema.separates_key else []
        metadata = [name for name in schema.columns if name not in schema.fields and name != self._corrupt]
        self.source_columns = tuple(dict.fromkeys([*needed, *metadata]))
        self.rows = self.dropped = 0
        self._first_dropped = ""

    def decode(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """Return the batch with the columns of the read; raises `InvalidMessage` by mode FAILFAST."""
        import pyarrow as pa

        if self._parts is None:
            return batch
        self.rows += batch.num_rows
        found, wrong = self._parts.decode(batch)
        payloads = batch["value"]
        if wrong and self._mode == FAILFAST:
            row = min(wrong)
            raise InvalidMessage(
                f"Message {_id(batch, row)} cannot be decoded by the schema of {self._topic}: {wrong[row]}. Read with "
                "mode=PERMISSIVE to have such messages in a column, with mode=DROPMALFORMED to leave them out, or with "
                "valueFormat=raw",
                topic=self._topic,
            )
        if wrong and self._mode == DROPMALFORMED:
            self._first_dropped = self._first_dropped or f"{_id(batch, min(wrong))}: {wrong[min(wrong)]}"
            self.dropped += len(wrong)
        marks = pa.array([row in wrong for row in range(batch.num_rows)]) if wrong else None
        columns = [self._column(name, batch, found, payloads, marks) for name in self._schema.columns]
        made = pa.RecordBatch.from_arrays(columns, schema=self._arrow_schema)
        return made.filter(_inverted(marks)) if wrong and self._mode == DROPMALFORMED else made

    def _column(self, name: str, batch: Any, found: dict[str, Any], payloads: Any, marks: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if name in found:
            # A pair has two payloads: a wrong one makes both null.
            return found[name] if marks is None else pc.if_else(marks, pa.scalar(None, found[name].type), found[name])
        if name != self._corrupt:
            return batch[name]
        if marks is None:
            return pa.nulls(batch.num_rows, pa.binary())
        return pc.if_else(marks, payloads, pa.scalar(None, pa.binary()))

    def report(self) -> None:
        """Log how many messages were left out, if any."""
        if self.dropped:
            _log.warning(
                "%s: left out %d of %d messages that cannot be decoded; the first is %s",
                self._topic, self.dropped, self.rows, self._first_dropped,
            )  # fmt: skip


def _inverted(marks: Any) -> Any:
    import pyarrow.compute as pc

    return pc.invert(marks)


def _id(batch: pyarrow.RecordBatch, row: int) -> str:
    ledger, entry, index = (batch[name][row].as_py() for name in _PLACE)
    return str(Position(ledger, entry, index))


class _Finder:
    """Schemas of a topic by version, each fetched once."""

    def __init__(self, find: FindSchema) -> None:
        self._find = find
        self._known: dict[int, SchemaInfo] = {}

    def of(self, version: int) -> SchemaInfo:
        if version not in self._known:
            self._known[version] = self._find(version)
        return self._known[version]


class _Parts:
    """Decoder of a batch into the wanted columns of the value."""

    def __init__(self, decoder: PartDecoder, names: Sequence[str], is_record: bool, is_versioned: bool) -> None:
        self._decoder = decoder
        self._names = names
        self._is_record = is_record
        self.is_versioned = is_versioned

    def decode(self, batch: Any) -> tuple[dict[str, Any], Wrong]:
        versions = _runs(batch["__schemaVersion"]) if self.is_versioned else [(None, 0, batch.num_rows)]
        found, wrong = self._decoder.decode(batch["value"], versions)
        columns = found.flatten() if self._is_record else [found] * len(self._names)
        return dict(zip(self._names, columns, strict=True)), wrong


class _Pairs:
    """Decoder of a batch of pairs into the wanted ones of `key` and `value`."""

    def __init__(
        self, parts: dict[str, PartDecoder], wanted: Sequence[str], separated: bool, is_versioned: bool
    ) -> None:
        self._parts = parts
        self._wanted = wanted
        self._separated = separated
        self.is_versioned = is_versioned

    def decode(self, batch: Any) -> tuple[dict[str, Any], Wrong]:
        versions = _runs(batch["__schemaVersion"]) if self.is_versioned else [(None, 0, batch.num_rows)]
        wrong: Wrong = {}
        if self._separated:
            payloads = {"key": batch["__key"], "value": batch["value"]}
        else:
            payloads, wrong = _split_pairs(batch["value"])
        found = {}
        for name in self._wanted:
            found[name], more = self._parts[name].decode(payloads[name], versions)
            wrong |= {row: f"its {name}: {reason}" for row, reason in more.items()}
        return found, wrong


def _split_pairs(column: Any) -> tuple[dict[str, Any], Wrong]:
    import pyarrow as pa

    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    wrong: Wrong = {}
    for row, payload in enumerate(column.to_pylist()):
        key = value = None
        if payload is not None:
            try:
                key, value = split_payload(payload)
            except InvalidRecord as error:
                wrong[row] = error.message
        keys.append(key)
        values.append(value)
    return {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}, wrong


def _runs(versions: Any) -> Versions:
    import pyarrow.compute as pc

    if not len(versions):
        return []
    encoded = pc.run_end_encode(versions)
    ends = encoded.run_ends.to_pylist()
    return list(zip(encoded.values.to_pylist(), [0, *ends[:-1]], ends, strict=True))


def _parts(schema: ValueSchema, wanted: dict[str, Any], finder: _Finder) -> _Parts | _Pairs:
    info = schema.info
    if info.type is SchemaType.KEY_VALUE:
        both = split_info(info)
        infos = {"key": both[0], "value": both[1]}
        made = {
            name: _decoder(infos[name], kind, _find_part(finder, index))
            for index, (name, kind) in enumerate(zip(("key", "value"), map(wanted.get, ("key", "value")), strict=True))
            if kind is not None
        }
        is_versioned = any(infos[name].type is SchemaType.AVRO for name in made)
        return _Pairs(made, list(wanted), both[2] is KeyValueEncodingType.SEPARATED, is_versioned)
    is_record = info.type in (SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF_NATIVE)
    kind = _struct(wanted) if is_record else next(iter(wanted.values()), None)
    return _Parts(_decoder(info, kind, finder.of), list(wanted), is_record, info.type is SchemaType.AVRO)


def _find_part(finder: _Finder, index: int) -> FindSchema:
    def find(version: int) -> SchemaInfo:
        part = split_info(finder.of(version))[index]
        assert isinstance(part, SchemaInfo)
        return part

    return find


def _struct(types: dict[str, Any]) -> Any:
    import pyarrow as pa

    return pa.struct([pa.field(name, kind) for name, kind in types.items()])


def _decoder(info: SchemaInfo, kind: Any, find: FindSchema) -> PartDecoder:
    """Return the decoder of a schema into an Arrow type; for a record this has the wanted fields only."""
    if info.type is SchemaType.AVRO:
        return AvroDecoder(info, kind, find)
    if info.type is SchemaType.JSON:
        return JsonDecoder(kind)
    if info.type is SchemaType.PROTOBUF_NATIVE:
        return ProtobufDecoder(info, kind)
    return PrimitiveDecoder(info.type)


class PrimitiveDecoder:
    """Decoder of a primitive schema, a column at a time."""

    def __init__(self, kind: SchemaType) -> None:
        self._kind = kind

    def decode(self, payloads: pyarrow.Array, versions: Versions) -> tuple[pyarrow.Array, Wrong]:
        """Return the values; see `primitive_array`."""
        return primitive_array(self._kind, payloads)


class AvroDecoder:
    """Decoder of Avro records: read by the writer's schema, resolved to the wanted fields of this one.

    A payload without a schema version is read by this schema. One with bytes after the record is not of its schema.
    """

    def __init__(self, info: SchemaInfo, kind: pyarrow.StructType, find: FindSchema) -> None:
        self._kind = kind
        self._own = _plain_definition(info)
        self._find = find
        # The reader's schema decides the order of the fields, Arrow takes them by name.
        wanted = with_fields(self._own.definition(), [field.name for field in kind])
        schema = AvroSchema(schema_definition=wanted).exact()
        self._avro: Any = schema.with_writer_schemas(self._writer)

    def _writer(self, version: bytes) -> SchemaInfo:
        number = int.from_bytes(version, "big", signed=True)
        if number < 0:
            return self._own
        found = self._find(number)
        return _plain_definition(found) if found.type is SchemaType.AVRO else found

    def decode(self, payloads: pyarrow.Array, versions: Versions) -> tuple[pyarrow.Array, Wrong]:
        """Return the records as structs."""
        import pyarrow as pa

        parts = []
        wrong: Wrong = {}
        for version, start, end in versions:
            packed = (-1 if version is None else version).to_bytes(8, "big", signed=True)
            decode = partial(self._avro.decode_many, schema_version=packed)
            found, more = _structs(self._kind, payloads[start:end].to_pylist(), decode)
            parts.append(found)
            wrong |= {start + row: reason for row, reason in more.items()}
        return (pa.concat_arrays(parts) if parts else pa.array([], self._kind)), wrong


def _plain_definition(info: SchemaInfo) -> SchemaInfo:
    text = json.dumps(with_column_types(with_full_names(info.definition()))).encode()
    return SchemaInfo(info.name(), info.type, text, info.properties(), info.version)


def _structs(kind: Any, payloads: Sequence[bytes | None], decode_many: Callable[[Any], list[Any]]) -> tuple[Any, Wrong]:
    """Return decoded payloads as an array; where that fails, each on its own, so that only the wrong ones are null."""
    import pyarrow as pa

    try:
        return pa.array(decode_many(payloads), kind), {}
    except _MISFITS:  # InvalidRecord is one of them.
        pass
    values: list[Any] = []
    wrong: Wrong = {}
    for row, payload in enumerate(payloads):
        try:
            (value,) = decode_many([payload])
            pa.array([value], kind)
        except _MISFITS as error:
            value = None
            wrong[row] = error.message if isinstance(error, InvalidRecord) else f"{error} ({type(error).__name__})"
        values.append(value)
    return pa.array(values, kind), wrong


class JsonDecoder:
    """Decoder of JSON objects: a batch at once by pyarrow's parser, or each on its own where it refuses them.

    Fields that the columns do not have are left out, and missing ones are null. Bytes are base64, as in Java.
    """

    def __init__(self, kind: pyarrow.StructType) -> None:
        self._kind = kind
        # pyarrow's parser has no maps, and takes bytes for text.
        self._is_simple = not any(_has_maps_or_bytes(field.type) for field in kind)
        self._fits = _json_converter(kind)

    def decode(self, payloads: pyarrow.Array, versions: Versions) -> tuple[pyarrow.Array, Wrong]:
        """Return the objects as structs."""
        import pyarrow as pa

        if self._is_simple and len(payloads):
            try:
                found = self._parsed_at_once(payloads)
            except pa.ArrowException:
                found = None
            if found is not None:
                return found, {}
        return _structs(self._kind, payloads.to_pylist(), self._decode_many)

    def _parsed_at_once(self, payloads: Any) -> Any:
        """Return the structs, or None if the payloads are not certainly one object each.

        Each text begins with { and ends with }, and they are joined by line breaks, which JSON allows inside an object
        only beside other tokens and never between } and {: an object cannot reach into the next text. So every text has
        at least one object, and as many objects as texts are one for each.
        """
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.json as pj

        texts = pc.fill_null(payloads, b"{}").cast(pa.string())
        trimmed = pc.utf8_trim_whitespace(texts)
        if not pc.all(pc.and_(pc.starts_with(trimmed, "{"), pc.ends_with(trimmed, "}"))).as_py():
            return None
        joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "\n")[0].as_buffer()
        if not self._kind.num_fields or joined.size >= (1 << 31) - 1:
            return None
        table = pj.read_json(
            pa.BufferReader(joined),
            # One block: objects may have line breaks, at which larger texts would be cut.
            pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
            pj.ParseOptions(
                explicit_schema=pa.schema(list(self._kind)), newlines_in_values=True, unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != len(texts):
            return None
        columns = [table.column(field.name).combine_chunks().cast(field.type) for field in self._kind]
        mask = payloads.is_null() if payloads.null_count else None
        return pa.StructArray.from_arrays(columns, fields=list(self._kind), mask=mask)

    def _decode_many(self, payloads: Sequence[bytes | None]) -> list[Any]:
        return [None if payload is None else self._fits(_json_object(payload)) for payload in payloads]


def _json_object(payload: bytes) -> dict[str, Any]:
    try:
        found = json.loads(payload.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRecord(f"it is JSON, but no object: {type(found).__name__}")
    return found


def _has_maps_or_bytes(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_map(kind) or pa.types.is_binary(kind):
        return True
    return any(_has_maps_or_bytes(kind.field(index).type) for index in range(kind.num_fields))


def _json_converter(kind: Any) -> Callable[[Any], Any]:
    """Return the function that prepares a value of JSON for an Arrow type."""
    import pyarrow as pa

    types = pa.types
    if types.is_binary(kind):
        return lambda value: None if value is None else b64decode(value, validate=True)
    if types.is_map(kind):
        item = _json_converter(kind.item_type)
        return lambda value: None if value is None else [(key, item(each)) for key, each in _of(dict, value).items()]
    if types.is_list(kind):
        one = _json_converter(kind.value_type)
        return lambda value: None if value is None else [one(each) for each in _of(list, value)]
    if types.is_struct(kind):
        fields = {field.name: _json_converter(field.type) for field in kind}
        return lambda value: (
            None if value is None else {name: fit(_of(dict, value).get(name)) for name, fit in fields.items()}
        )
    if types.is_integer(kind):
        return _integer
    if types.is_floating(kind):
        return _floating
    wanted = bool if types.is_boolean(kind) else str
    return lambda value: None if value is None else _of(wanted, value)


def _of(kind: type | tuple[type, ...], value: Any) -> Any:
    # Python's booleans are integers too.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        names = kind.__name__ if isinstance(kind, type) else "number"
        raise InvalidRecord(f"a value is of type {type(value).__name__}, not {names}")
    return value


def _integer(value: Any) -> Any:
    # pyarrow would cut fractions without a sign.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None if value is None else _of(int, value)


def _floating(value: Any) -> Any:
    # pyarrow's parser rounds an integer to the nearest float, but pyarrow refuses a Python integer that is not exact.
    return None if value is None else float(_of((int, float), value))


class ProtobufDecoder:
    """Decoder of PROTOBUF_NATIVE messages: parsed one by one, then a column at a time.

    An unset field is null if the message can tell (message fields, oneof, optional), else its default. Fields of older
    and newer writers are resolved by Protobuf's own rules.
    """

    def __init__(self, info: SchemaInfo, kind: pyarrow.StructType) -> None:
        self._class: Any = native_class(info)
        self._kind = kind
        by_name = self._class.DESCRIPTOR.fields_by_name
        self._get = {field.name: _getter(by_name[field.name]) for field in kind}

    def decode(self, payloads: pyarrow.Array, versions: Versions) -> tuple[pyarrow.Array, Wrong]:
        """Return the messages as structs."""
        import pyarrow as pa

        messages: list[Any] = []
        wrong: Wrong = {}
        for row, payload in enumerate(payloads.to_pylist()):
            message = None
            if payload is not None:
                try:
                    message = parse_message(self._class, payload)
                except InvalidRecord as error:
                    wrong[row] = error.message
            messages.append(message)
        columns = [
            pa.array([None if message is None else self._get[field.name](message) for message in messages], field.type)
            for field in self._kind
        ]
        mask = pa.array([message is None for message in messages], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(self._kind), mask=mask), wrong


def _getter(field: Any) -> Callable[[Any], Any]:
    """Return the function that takes a field's value out of a message."""
    name = field.name
    if is_map(field):
        inner = _converter(field.message_type.fields_by_name["value"])
        return lambda message: [(key, inner(found[key])) for found in (getattr(message, name),) for key in found]
    convert = _converter(field)
    if is_repeated(field):
        return lambda message: [convert(value) for value in getattr(message, name)]
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _converter(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None:
        getters = {each.name: _getter(each) for each in field.message_type.fields}
        return lambda message: {name: get(message) for name, get in getters.items()}
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        # A number without a name comes from a newer writer.
        return lambda value: names.get(value, str(value))
    if field.type in (4, 6):  # uint64 and fixed64, which are decimals.
        from decimal import Decimal

        return Decimal
    return _same


def _same(value: Any) -> Any:
    return value


def decoded(batches: Iterator[pyarrow.RecordBatch], decoder: ValueDecoder) -> Iterator[pyarrow.RecordBatch]:
    """Yield the batches of a split decoded, and log at the end how many messages were left out."""
    try:
        for batch in batches:
            found = decoder.decode(batch)
            if found.num_rows:
                yield found
    finally:
        decoder.report()
