"""Columns of values that are decoded by the topic's registered schema (valueFormat=auto).

Rules: a record's fields are columns of their own, any other value is the column `value`, and a KEY_VALUE schema has the
columns `key` and `value`. All are nullable. A schema without column types raises, with the alternative. pyspark is
imported in functions, so that this module loads without it. Pure: no I/O.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsar_native.exceptions import InvalidConfiguration, PulsarException
from pulsar_native.schema import SchemaInfo, SchemaType
from pulsar_native.schema.key_value import KeyValueEncodingType, split_info
from pulsar_native.schema.protobuf_definition import is_repeated, native_class
from pyspark_pulsar.options import ALL_FIELDS, PERMISSIVE, ValueOptions
from pyspark_pulsar.schema import METADATA_COLUMNS, metadata_type, registered_type, simple_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_ADVICE = "read it with valueFormat=raw"

# A time of day is a number: not every Spark version has a column type for it.
_PRIMITIVES = {
    SchemaType.NONE: "BINARY",
    SchemaType.BYTES: "BINARY",
    SchemaType.STRING: "STRING",
    SchemaType.BOOLEAN: "BOOLEAN",
    SchemaType.INT8: "TINYINT",
    SchemaType.INT16: "SMALLINT",
    SchemaType.INT32: "INT",
    SchemaType.INT64: "BIGINT",
    SchemaType.FLOAT: "FLOAT",
    SchemaType.DOUBLE: "DOUBLE",
    SchemaType.DATE: "TIMESTAMP",
    SchemaType.TIMESTAMP: "TIMESTAMP",
    SchemaType.INSTANT: "TIMESTAMP",
    SchemaType.TIME: "BIGINT",
    SchemaType.LOCAL_DATE: "DATE",
    SchemaType.LOCAL_TIME: "BIGINT",
    SchemaType.LOCAL_DATE_TIME: "TIMESTAMP_NTZ",
}


def value_struct(info: SchemaInfo) -> StructType:
    """Return the value columns of a registered schema as a struct; raises `InvalidConfiguration`."""
    from pyspark.sql.types import StructType

    try:
        found = value_type(info)
    except InvalidConfiguration:
        raise
    except PulsarException as error:
        raise InvalidConfiguration(f"{error.message}; {_ADVICE}") from error
    return found if isinstance(found, StructType) else StructType().add("value", found, True)


def value_type(info: SchemaInfo) -> DataType:
    """Return Spark's type for the values of a schema, a struct for records and pairs; raises `InvalidConfiguration`."""
    from pyspark.sql.types import StructType

    if info.type is SchemaType.AVRO:
        return registered_type(info.schema(), logical=True)
    if info.type is SchemaType.JSON:
        return registered_type(info.schema(), logical=False)
    if info.type is SchemaType.PROTOBUF_NATIVE:
        return protobuf_type(native_class(info).DESCRIPTOR)
    if info.type is SchemaType.KEY_VALUE:
        key, value, _ = split_info(info)
        return StructType().add("key", value_type(key), True).add("value", value_type(value), True)
    if info.type in _PRIMITIVES:
        return simple_type(_PRIMITIVES[info.type])
    raise InvalidConfiguration(f"A schema of kind {info.type.name} has no column types: {_ADVICE}")


# By the numbers of FieldDescriptorProto.Type: 14 is an enumeration; those of uint64 and fixed64 need a decimal.
_PROTOBUF = {
    1: "DOUBLE", 2: "FLOAT", 3: "BIGINT", 4: "DECIMAL(20)", 5: "INT", 6: "DECIMAL(20)", 7: "BIGINT", 8: "BOOLEAN",
    9: "STRING", 12: "BINARY", 13: "BIGINT", 14: "STRING", 15: "INT", 16: "BIGINT", 17: "INT", 18: "BIGINT",
}  # fmt: skip


def protobuf_type(message: Any, around: tuple[str, ...] = ()) -> StructType:
    """Return Spark's type for a Protobuf message: enumerations by name, unsigned numbers in a type that holds them.

    Raises `InvalidConfiguration` for a message that contains itself.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    if message.full_name in around:
        raise InvalidConfiguration(f"The message {message.full_name} contains itself, which no column type can")
    around = (*around, message.full_name)

    def single(field: Any) -> DataType:
        if field.message_type is not None:
            return protobuf_type(field.message_type, around)
        return simple_type(_PROTOBUF[field.type])

    made = StructType()
    for field in message.fields:
        if is_map(field):
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            made = made.add(field.name, MapType(single(key), single(value), True), True)
        else:
            found = single(field)
            made = made.add(field.name, ArrayType(found, True) if is_repeated(field) else found, True)
    return made


def is_map(field: Any) -> bool:
    """Return True if a Protobuf field is a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """Registered schema that a read decodes with, and the columns of the read. Immutable and picklable.

    `info` is the schema of the columns: messages of another version are resolved to it. `fields` are the wanted columns
    of the value, `columns` all columns in order, with `options.corrupt_column` if the mode has it.
    """

    info: SchemaInfo
    fields: tuple[str, ...]
    columns: tuple[str, ...]
    options: ValueOptions

    @staticmethod
    def of(info: SchemaInfo, columns: Sequence[str], options: ValueOptions) -> ValueSchema:
        """Return the decoding of the wanted columns; raises `InvalidConfiguration` for one that is not there.

        In `columns`, `*` stands for all columns of the value, and so does `value` unless one of them has that name.
        """
        there = value_struct(info).names
        _check_names(there, options)
        known = {name.lower(): name for name in (*METADATA_COLUMNS, *there)}
        if options.mode == PERMISSIVE:
            known[options.corrupt_column.lower()] = options.corrupt_column
        found: list[str] = []
        for name in columns:
            if name == ALL_FIELDS or (name.lower() == "value" and "value" not in known):
                found += there
            elif name.lower() in known:
                found.append(known[name.lower()])
            else:
                raise InvalidConfiguration(f"columns: there is no column {name!r}; {_hint(name, known)}")
        if len(set(found)) < len(found):
            raise InvalidConfiguration("columns: a column is named twice")
        if options.mode == PERMISSIVE and options.corrupt_column not in found:
            found.insert(_behind_values(found, there), options.corrupt_column)
        if not found:
            # Of rows without columns Spark would count none.
            raise InvalidConfiguration(
                "The registered record has no fields, so the read has no columns: name a metadata column, such as "
                "columns=__messageId, or leave includeMetadata out"
            )
        return ValueSchema(info, tuple(name for name in found if name in there), tuple(found), options)

    @property
    def separates_key(self) -> bool:
        """True if a part of the value is the message's key."""
        return self.info.type is SchemaType.KEY_VALUE and split_info(self.info)[2] is KeyValueEncodingType.SEPARATED

    def struct(self) -> StructType:
        """Return the columns as Spark's schema."""
        from pyspark.sql.types import BinaryType, StructType

        values, made = value_struct(self.info), StructType()
        for name in self.columns:
            if name in self.fields:
                made = made.add(values[name])
            else:
                made = made.add(name, metadata_type(name) if name in METADATA_COLUMNS else BinaryType(), True)
        return made


def _behind_values(found: Sequence[str], values: Iterable[str]) -> int:
    return max((found.index(name) + 1 for name in values if name in found), default=0)


def _check_names(names: Sequence[str], options: ValueOptions) -> None:
    folded = [name.lower() for name in names]
    taken = {name.lower(): "that is a metadata column" for name in METADATA_COLUMNS}
    if options.mode == PERMISSIVE:
        taken[options.corrupt_column.lower()] = "set columnNameOfCorruptRecord to another name"
    for name in names:
        if name.lower() in taken:
            reason = taken[name.lower()]
            raise InvalidConfiguration(f"The topic's schema has a field {name}: {reason}, or {_ADVICE}")
        if folded.count(name.lower()) > 1:
            raise InvalidConfiguration(f"The topic's schema has fields {name} that differ in case only: {_ADVICE}")


def _hint(name: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, 1)
    return f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(known.values())}"
