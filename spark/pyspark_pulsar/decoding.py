"""Decoding of the column `value` of a read into typed columns, inside Spark.

JSON is parsed by Spark's own parser; Avro by fastavro in an Arrow function per record batch, without pandas and without
a JVM package. Rules: a value that cannot be parsed fails the load instead of becoming a row of nulls; a message without
a value becomes a row of nulls.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar.arrow_types import arrow_type
from pyspark_pulsar.schema import registered_type

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


def decode_json(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return the frame with `value` as a struct of the schema, parsed from JSON text."""
    from pyspark.sql import functions

    parsed = functions.from_json(functions.col("value").cast("string"), schema, {"mode": "FAILFAST"})
    return frame.withColumn("value", parsed)


def decode_avro(frame: DataFrame, definition: str) -> DataFrame:
    """Return the frame with `value` as a struct, read as Avro of the writer's `definition`."""
    from pyspark.sql import functions

    schema = registered_type(definition, logical=True)
    if not hasattr(functions, "arrow_udf"):
        raise InvalidConfiguration('The format "avro" needs Spark 4.1 or newer; "auto" and "raw" do not')
    decode = functions.arrow_udf(avro_decoder(definition, schema), schema)
    column: Column = decode(functions.col("value"))
    return frame.withColumn("value", column)


def avro_decoder(definition: str, schema: StructType) -> Callable[[pyarrow.Array], pyarrow.Array]:
    """Return the function that turns an Arrow array of Avro bytes into one of structs; it runs in Python workers."""
    import pyarrow

    kind = arrow_type(schema)
    plain = with_column_types(json.loads(definition))

    def decode(values: Any) -> Any:
        import io

        import fastavro

        writer = fastavro.parse_schema(plain)
        rows = [
            None if value is None else fastavro.schemaless_reader(io.BytesIO(value), writer, None)
            for value in values.to_pylist()
        ]
        return pyarrow.array(rows, kind)

    # Spark reads the type of the function from its annotations.
    decode.__annotations__ = {"values": pyarrow.Array, "return": pyarrow.Array}
    return decode


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
