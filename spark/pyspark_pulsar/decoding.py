"""Decoding of the column `value` of a read into typed columns, inside Spark.

JSON is parsed by Spark's own parser; Avro by fastavro in an Arrow function per record batch, without pandas and without
a JVM package. Rules: a value that cannot be parsed fails the load instead of becoming a row of nulls; a message without
a value becomes a row of nulls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from pulsar_native.exceptions import InvalidConfiguration, InvalidMessage
from pyspark_pulsar.arrow_types import arrow_type
from pyspark_pulsar.positions import Position
from pyspark_pulsar.schema import NAMED, registered_type

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

# Names that no message has.
_KEY, _WRONG, _PARSED = "__pyspark_pulsar_value", "__pyspark_pulsar_wrong", "__pyspark_pulsar_parsed"


def decode_json(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return the frame with `value` as a struct of the schema, parsed from JSON text: one object for each message."""
    from pyspark.sql import functions
    from pyspark.sql.types import ByteType, MapType, ShortType, StringType, StructType

    # Spark's parser takes an empty text for a row of nulls and ignores what follows the first object. So the text is
    # parsed as the first of two entries of a map: there are not just these two where the text is not just one value.
    text = functions.concat(
        functions.lit(f'{{"{_KEY}":{{"value":'),
        functions.col("value").cast("string"),
        functions.lit(f',"{_KEY}":{{}}}}}}'),
    )
    wide, narrow = _nullable(schema, ShortType()), _nullable(schema, ByteType())
    kind = StructType().add(_KEY, MapType(StringType(), wide)).add(_WRONG, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _WRONG}
    parsed = functions.from_json(text, kind, options)
    entries, wrong = functions.col(f"{_PARSED}.{_KEY}"), functions.col(f"{_PARSED}.{_WRONG}")
    is_pair = (functions.size(entries) == 2) & functions.map_contains_key(entries, _KEY)
    is_right, value = wrong.isNull() & is_pair & entries["value"].isNotNull(), entries["value"]
    if narrow != wide:
        is_right, value = is_right & _fits(value, narrow), value.cast(narrow)
    found = (
        functions.when(functions.col("value").isNull(), None)
        .when(is_right, value)
        .otherwise(functions.raise_error(_malformed()))
    )
    return frame.withColumn(_PARSED, parsed).withColumn("value", found).drop(_PARSED)


def _nullable(kind: DataType, byte: DataType) -> DataType:
    """Return a type with all its parts nullable, and with another type for its TINYINTs.

    These are parsed as SMALLINT: Spark's parser takes 128 to 255 for negative numbers.
    """
    from pyspark.sql.types import ArrayType, ByteType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        return StructType([StructField(part.name, _nullable(part.dataType, byte), True) for part in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType, byte), True)
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _nullable(kind.valueType, byte), True)
    return byte if isinstance(kind, ByteType) else kind


def _fits(column: Column, kind: DataType) -> Column:
    """Return the condition that the SMALLINTs of a parsed column fit the TINYINTs of its type."""
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, ByteType, MapType, StructType

    yes = functions.lit(True)
    if isinstance(kind, ByteType):
        found = column.between(-128, 127)
    elif isinstance(kind, StructType):
        found = reduce(and_, (_fits(column[part.name], part.dataType) for part in kind), yes)
    elif isinstance(kind, ArrayType):
        inner = kind.elementType
        found = functions.forall(column, lambda item: _fits(item, inner))
    elif isinstance(kind, MapType):
        inner = kind.valueType
        found = functions.forall(functions.map_values(column), lambda item: _fits(item, inner))
    else:
        return yes
    return functions.coalesce(found, yes)


def _malformed() -> Column:
    """Return the text of the error for a message that is not one JSON object of the schema."""
    from pyspark.sql import functions

    from pyspark_pulsar.tables import IDENTITY

    topic, ledger, entry, index = map(functions.col, IDENTITY)
    place = functions.concat_ws(":", ledger, entry, functions.when(index >= 0, index))
    text = (
        "MALFORMED_RECORD_IN_PARSING: message %s of %s is not one JSON object with the columns of value.schema, or of "
        "the registered schema. Load it with value.format raw, or with auto and value.mode"
    )
    return functions.format_string(text, place, topic)


def decode_avro(frame: DataFrame, definition: str) -> DataFrame:
    """Return the frame with `value` as a struct, read as Avro of the writer's `definition`."""
    from pyspark.sql import functions

    from pyspark_pulsar.tables import IDENTITY

    schema = registered_type(definition, logical=True)
    if not hasattr(functions, "arrow_udf"):
        raise InvalidConfiguration('The format "avro" needs Spark 4.1 or newer; "auto" and "raw" do not')
    decode = functions.arrow_udf(avro_decoder(definition, schema), schema)
    column: Column = decode(functions.col("value"), *map(functions.col, IDENTITY))
    return frame.withColumn("value", column)


def avro_decoder(definition: str, schema: StructType) -> Callable[..., pyarrow.Array]:
    """Return the function that turns an Arrow array of Avro bytes into one of structs; it runs in Python workers.

    Its other arrays are the messages' identity, for the error of a value that is not one record of the definition.
    """
    import pyarrow

    kind = arrow_type(schema)
    plain = with_column_types(json.loads(definition))

    def decode(values: Any, topics: Any, ledgers: Any, entries: Any, indexes: Any) -> Any:
        import fastavro

        writer = fastavro.parse_schema(plain)
        rows = []
        for row, value in enumerate(values.to_pylist()):
            try:
                rows.append(None if value is None else _avro_record(value, writer))
            except Exception as error:  # Wrong bytes raise almost anything.
                place = Position(*(part[row].as_py() for part in (ledgers, entries, indexes)))
                raise InvalidMessage(
                    f"Message {place} of {topics[row]} is not one Avro record of value.schema, or of the registered "
                    f"schema ({type(error).__name__}: {error}). Load it with value.format raw, or with auto and "
                    "value.mode"
                ) from error
        return pyarrow.array(rows, kind)

    # Spark reads the type of the function from its annotations.
    names = ("values", "topics", "ledgers", "entries", "indexes", "return")
    decode.__annotations__ = dict.fromkeys(names, pyarrow.Array)
    return decode


def _avro_record(value: bytes, writer: Any) -> Any:
    """Return the record of one value; raises also where bytes are left: it was written by another definition."""
    import io

    import fastavro

    stream = io.BytesIO(value)
    record = fastavro.schemaless_reader(stream, writer, None)
    if left := len(value) - stream.tell():
        raise ValueError(f"bytes after the record: {left}")
    return record


def with_column_types(avro: Any) -> Any:
    """Return the definition without the logical types that have no column type, so that their plain values are read.

    These are times of day (not every Spark version has a type for them), UUIDs, and decimals of over 38 digits.
    """
    if isinstance(avro, list):
        return [with_column_types(member) for member in avro]
    if not isinstance(avro, dict):
        return avro
    kept = {
        name: with_column_types(value) if name in ("type", "items", "values", "fields") else value
        for name, value in avro.items()
    }
    logical = str(kept.get("logicalType", ""))
    if logical.startswith("time-") or logical == "uuid" or (logical == "decimal" and int(kept["precision"]) > 38):
        del kept["logicalType"]
    return kept


def with_fields(record: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return a definition with full names that has some of the record's fields.

    A type whose definition was in a field left out is defined where it is used first.
    """
    named = dict(_named_types(record))
    seen: set[str] = set()

    def of(avro: Any) -> Any:
        if isinstance(avro, list):
            return [of(member) for member in avro]
        if isinstance(avro, str):
            return of(named[avro]) if avro in named and avro not in seen else avro
        if avro["type"] in NAMED:
            if avro["name"] in seen:
                return avro["name"]
            seen.add(avro["name"])
        made = {**avro, **{part: of(avro[part]) for part in ("type", "items", "values") if part in avro}}
        if "fields" in avro:
            made["fields"] = [{**field, "type": of(field["type"])} for field in avro["fields"]]
        return made

    found: dict[str, Any] = of({**record, "fields": [field for field in record["fields"] if field["name"] in names]})
    return found


def _named_types(avro: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named types that a definition has, by name."""
    if isinstance(avro, Mapping):
        if avro.get("type") in NAMED:
            yield avro["name"], avro
        avro = [avro[part] for part in ("type", "items", "values", "fields") if part in avro]
    if isinstance(avro, list):
        for part in avro:
            yield from _named_types(part)
