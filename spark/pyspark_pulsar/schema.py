"""Columns of a read, and Spark's types for a registered schema.

Names and types of the first six metadata columns are the JVM connector's. The Arrow types that Spark derives from
`spark_schema` equal those of the client's record batches, which `batch_reader` does not check again. Rules: pyspark is
imported in functions, so that this module loads without it. A registered type without a column type raises.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pulsar_native.exceptions import InvalidConfiguration

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

# Columns that the JVM connector adds to the value, in its order.
_JVM_METADATA = ("__key", "__topic", "__messageId", "__publishTime", "__eventTime", "__messageProperties")
_MORE_METADATA = (
    "__partition", "__sequenceId", "__producerName", "__ledgerId", "__entryId", "__batchIndex", "__schemaVersion",
)  # fmt: skip
METADATA_COLUMNS = _JVM_METADATA + _MORE_METADATA
DEFAULT_COLUMNS = ("value", *_JVM_METADATA)
SOURCE_COLUMNS = ("value", *METADATA_COLUMNS)

_DDL = {
    "value": "BINARY",
    "__key": "BINARY",
    "__topic": "STRING",
    "__messageId": "BINARY",
    "__publishTime": "TIMESTAMP",
    "__eventTime": "TIMESTAMP",
    "__messageProperties": "MAP<STRING, STRING>",
    "__partition": "INT",
    "__sequenceId": "BIGINT",
    "__producerName": "STRING",
    "__ledgerId": "BIGINT",
    "__entryId": "BIGINT",
    "__batchIndex": "INT",
    "__schemaVersion": "BIGINT",
}


def ddl(columns: Sequence[str]) -> str:
    """Return the columns as a Spark schema text."""
    return ", ".join(f"`{name}` {_DDL[name]}" for name in columns)


def columns_type(columns: Sequence[str]) -> StructType:
    """Return the columns as a Spark schema. Not as text: Spark reads TIMESTAMP in it by spark.sql.timestampType."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(name, metadata_type(name), True) for name in columns])


def metadata_type(name: str) -> DataType:
    """Return Spark's type of a source column."""
    from pyspark.sql.types import MapType, StringType

    return MapType(StringType(), StringType(), True) if _DDL[name].startswith("MAP") else simple_type(_DDL[name])


def simple_type(name: str) -> DataType:
    """Return Spark's type by its name in DDL, without the session that Spark's own parser needs."""
    from pyspark.sql import types

    known: dict[str, Callable[[], DataType]] = {
        "BINARY": types.BinaryType,
        "STRING": types.StringType,
        "BOOLEAN": types.BooleanType,
        "TINYINT": types.ByteType,
        "SMALLINT": types.ShortType,
        "INT": types.IntegerType,
        "BIGINT": types.LongType,
        "FLOAT": types.FloatType,
        "DOUBLE": types.DoubleType,
        "TIMESTAMP": types.TimestampType,
        "TIMESTAMP_NTZ": types.TimestampNTZType,
        "DATE": types.DateType,
        "DECIMAL(20)": lambda: types.DecimalType(20, 0),
    }
    return known[name]()


def check_schema(given: StructType, columns: Sequence[str]) -> None:
    """Raise `InvalidConfiguration` unless the schema given to `spark.read.schema` equals that of the columns."""
    wanted = [(name, _DDL[name].replace(" ", "").lower()) for name in columns]
    found = [(field.name, field.dataType.simpleString().replace(" ", "").lower()) for field in given.fields]
    if found != wanted or not all(field.nullable for field in given.fields):
        raise InvalidConfiguration(
            f"The schema of this read is {ddl(columns)}; leave .schema(...) out and choose columns with option columns"
        )


def named_twice(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once, which Spark compares without regard to case, folded and sorted."""
    folded = [name.lower() for name in names]
    return sorted({name for name in folded if folded.count(name) > 1})


def metadata_among(names: Iterable[str]) -> list[str]:
    """Return the names that are those of metadata columns, without regard to case."""
    known = {name.lower() for name in METADATA_COLUMNS}
    return [name for name in names if name.lower() in known]


def struct_of(text: str) -> StructType:
    """Return the columns of a Spark schema text; raises `InvalidConfiguration`. Needs a session: Spark parses it."""
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(text)
    except ParseException as error:
        raise InvalidConfiguration(f"The schema {text[:200]!r} is not a list of columns: {error}") from error
    if not isinstance(found, StructType):
        raise InvalidConfiguration(
            f"The schema {text[:200]!r} is not a list of columns: write for example a INT, b STRING"
        )
    if double := named_twice(found.names):
        raise InvalidConfiguration(f"The schema {text[:200]!r} has columns twice: {', '.join(double)}")
    return found


def registered_type(definition: str, *, logical: bool) -> StructType:
    """Return Spark's type for a registered record (an Avro definition, also of JSON schemas).

    `logical` uses Avro's logical types for dates, timestamps and decimals; a JSON value has their plain numbers. Raises
    `InvalidConfiguration` for recursive records, for unions of several types, and for anything but a record. No I/O.
    """
    from pyspark.sql.types import StructType

    try:
        parsed = json.loads(definition)
    except ValueError as error:
        raise InvalidConfiguration(f"The registered schema is not an Avro definition: {error}") from error
    found = _Types(logical).of(with_full_names(parsed), "value")
    if not isinstance(found, StructType):
        raise InvalidConfiguration(
            "The registered schema is not a record; give a schema for the value, or read raw values"
        )
    return found


# Types of Avro with a name, and without.
NAMED = ("record", "enum", "fixed")
_UNNAMED = ("null", "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map")


def with_full_names(avro: Any) -> Any:
    """Return the definition with the full names of its named types, where they are defined and where they are used."""
    return _FullNames().of(avro, "")


class _FullNames:
    """Names of one definition, resolved by Avro's rules."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def of(self, avro: Any, namespace: str) -> Any:
        if isinstance(avro, list):
            return [self.of(member, namespace) for member in avro]
        if isinstance(avro, Mapping):
            return self._complex(avro, namespace)
        if avro in NAMED or avro in _UNNAMED:
            return avro
        full = _full_name(str(avro), namespace)
        # As in Java, a name that the namespace does not have is one without a namespace.
        return avro if avro in self._known and full not in self._known else full

    def _complex(self, avro: Mapping[str, Any], namespace: str) -> dict[str, Any]:
        made = dict(avro)
        if made.get("type") in NAMED:
            own = made.pop("namespace", None)
            made["name"] = _full_name(str(made.get("name")), namespace if own is None else own)
            self._known.add(made["name"])
            namespace = made["name"].rpartition(".")[0]
            if "aliases" in made:
                made["aliases"] = [_full_name(alias, namespace) for alias in made["aliases"]]
        if "fields" in made:
            made["fields"] = [{**field, "type": self.of(field["type"], namespace)} for field in made["fields"]]
        return made | {part: self.of(made[part], namespace) for part in ("type", "items", "values") if part in made}


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


class _Types:
    """Conversion of one Avro definition with full names into Spark types."""

    def __init__(self, logical: bool) -> None:
        self._logical = logical
        self._named: dict[str, DataType] = {}
        self._open: list[str] = []

    def of(self, avro: Any, where: str) -> DataType:
        if isinstance(avro, list):
            return self._union(avro, where)
        if isinstance(avro, Mapping):
            return self._complex(avro, where)
        if avro in self._named:
            return self._named[avro]
        if avro in self._open:
            raise InvalidConfiguration(f"{where}: the record {avro} contains itself, which no column type can")
        return _primitive(str(avro), where)

    def _union(self, members: Sequence[Any], where: str) -> DataType:
        real = [member for member in members if member != "null"]
        if len(real) != 1:
            raise InvalidConfiguration(
                f"{where}: a union of several types has no column type; give a schema for the value, or read raw values"
            )
        return self.of(real[0], where)

    def _complex(self, avro: Mapping[str, Any], where: str) -> DataType:
        from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType

        kind = avro.get("type")
        if kind == "record":
            return self._record(avro, where)
        if kind == "array":
            return ArrayType(self.of(avro["items"], where), True)
        if kind == "map":
            return MapType(StringType(), self.of(avro["values"], where), True)
        if kind in ("enum", "fixed"):
            decimal = self._decimal(avro) if kind == "fixed" else None
            found = decimal or (StringType() if kind == "enum" else BinaryType())
            self._named[str(avro.get("name"))] = found
            return found
        if self._logical and "logicalType" in avro:
            return self._logical_type(avro, where)
        return self.of(kind, where)

    def _record(self, avro: Mapping[str, Any], where: str) -> DataType:
        from pyspark.sql.types import StructField, StructType

        name = str(avro.get("name"))
        if name in self._open:
            raise InvalidConfiguration(f"{where}: the record {name} contains itself, which no column type can")
        self._open.append(name)
        fields = avro.get("fields", [])
        # All nullable: a message may have no value, and JSON may lack any field.
        made = [
            StructField(field["name"], self.of(field["type"], f"{where}.{field['name']}"), True) for field in fields
        ]
        self._open.pop()
        self._named[name] = StructType(made)
        return self._named[name]

    def _decimal(self, avro: Mapping[str, Any]) -> DataType | None:
        from pyspark.sql.types import DecimalType

        if not self._logical or avro.get("logicalType") != "decimal" or int(avro.get("precision", 0)) > 38:
            return None
        return DecimalType(int(avro["precision"]), int(avro.get("scale", 0)))

    def _logical_type(self, avro: Mapping[str, Any], where: str) -> DataType:
        from pyspark.sql.types import DateType, StringType, TimestampNTZType, TimestampType

        kind = str(avro["logicalType"])
        if kind == "decimal":
            return self._decimal(avro) or self.of(avro["type"], where)
        if kind == "date":
            return DateType()
        if kind in ("timestamp-millis", "timestamp-micros"):
            return TimestampType()
        if kind in ("local-timestamp-millis", "local-timestamp-micros"):
            return TimestampNTZType()
        return StringType() if kind == "uuid" else self.of(avro["type"], where)


def _primitive(name: str, where: str) -> DataType:
    from pyspark.sql.types import BinaryType, BooleanType, DoubleType, FloatType, IntegerType, LongType, StringType

    types: dict[str, type[DataType]] = {
        "boolean": BooleanType,
        "int": IntegerType,
        "long": LongType,
        "float": FloatType,
        "double": DoubleType,
        "bytes": BinaryType,
        "string": StringType,
    }
    if name not in types:
        raise InvalidConfiguration(f"{where}: the type {name!r} has no column type")
    return types[name]()
