"""Values to columns inside Spark: JSON and Avro, and what does not parse."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar.decoding import decode_avro, decode_json, with_column_types
from pyspark_pulsar.schema import struct_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def values(spark: SparkSession, *payloads: bytes | None) -> DataFrame:
    """Return a frame with the payloads as its column `value`; the messages are 5:0, 5:1 and so on of a topic t."""
    rows = [
        (None if payload is None else bytearray(payload), "t", 5, entry, -1) for entry, payload in enumerate(payloads)
    ]
    return spark.createDataFrame(
        rows, "value BINARY, __topic STRING, __ledgerId LONG, __entryId LONG, __batchIndex INT"
    )


def test_decode_json_to_typed_columns(spark: SparkSession) -> None:
    frame = values(spark, b'{"a": 1, "b": {"c": ["x", "\xc3\xa9"]}, "other": 5}', b'{"a": null}', None)
    decoded = decode_json(frame, struct_of("a BIGINT, b STRUCT<c: ARRAY<STRING>>")).select("value.*")
    assert [row.asDict(recursive=True) for row in decoded.collect()] == [
        {"a": 1, "b": {"c": ["x", "é"]}},
        {"a": None, "b": None},
        {"a": None, "b": None},
    ]


@pytest.mark.parametrize(
    "payload",
    [
        b'{"a": "no number"}', b'{"a": 1', b"\xff\xfe", b"[1", b"", b"  ", b'{"a": 1}{"a": 2}', b'{"a": 1}\n{"a": 2}',
        b'{"a": 1} garbage', b'{"a": 1}}', b'{"a": 1}}}', b'{"a": 1}, "b": {"a": 2}', b'{"a": 1}, "value": {"a": 2}',
        b'[{"a": 1}]', b"1", b"null", b'""',
    ],
)  # fmt: skip
def test_decode_wrong_json_fails_the_read(spark: SparkSession, payload: bytes) -> None:
    decoded = decode_json(values(spark, b'{"a": 1}', payload), struct_of("a INT"))
    expected = "MALFORMED_RECORD_IN_PARSING: message 5:1 of t is not one JSON object"
    with pytest.raises((Py4JError, PySparkException), match=expected):
        decoded.collect()


def test_decode_json_takes_what_spark_parses(spark: SparkSession) -> None:
    frame = values(spark, b"{'a': NaN}", b' {"a": 1.5, "value": {"x": [1]}}\n', b"{}")
    rows = decode_json(frame, struct_of("a DOUBLE")).select("value.a").collect()
    assert [str(row["a"]) for row in rows] == ["nan", "1.5", "None"]


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        pytest.param("TINYINT", "%s", id="plain"),
        pytest.param("ARRAY<TINYINT>", "[null, %s]", id="array"),
        pytest.param("MAP<STRING, TINYINT>", '{"k": null, "j": %s}', id="map"),
        pytest.param("STRUCT<x: TINYINT NOT NULL, y: STRING>", '{"x": %s, "y": "t"}', id="struct"),
        pytest.param("ARRAY<STRUCT<`y.z`: MAP<STRING, ARRAY<TINYINT>>>>", '[null, {"y.z": {"k": [1, %s]}}]', id="all"),
    ],
)
def test_decode_json_tinyint_is_checked(spark: SparkSession, kind: str, form: str, ansi: str) -> None:
    texts = [f'{{"a": {form % number}}}' for number in (127, -128, "null")]
    before = str(spark.conf.get("spark.sql.ansi.enabled"))
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        decoded = decode_json(values(spark, *map(str.encode, texts), b"{}", None), struct_of(f"a {kind}"))
        rows = [row.asDict(recursive=True) for row in decoded.select("value.a").collect()]
        for number in (128, 255, 256, -129):
            wrong = decode_json(values(spark, f'{{"a": {form % number}}}'.encode()), struct_of(f"a {kind}"))
            with pytest.raises((Py4JError, PySparkException), match="MALFORMED_RECORD_IN_PARSING: message 5:0 of t"):
                wrong.collect()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    assert rows == [*map(json.loads, texts), {"a": None}, {"a": None}]
    found = decoded.select("value.a").schema["a"].dataType.simpleString()
    assert found == kind.lower().replace(", ", ",").replace(": ", ":").replace("`", "").replace(" not null", "")


DEFINITION: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "delay", "type": ["null", "double"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "legs", "type": {"type": "array", "items": {"type": "record", "name": "Leg", "fields": []}}},
    ],
}


def test_decode_avro_is_refused_by_older_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in Spark 4.0.
    monkeypatch.delattr("pyspark.sql.functions.arrow_udf", raising=False)
    with pytest.raises(InvalidConfiguration, match=r'"avro" needs Spark 4\.1 or newer; "auto" and "raw" do not'):
        decode_avro(values(spark), json.dumps({"type": "record", "name": "R", "fields": []}))


@pytest.mark.needs_spark("4.1")
def test_decode_avro_to_typed_columns(spark: SparkSession) -> None:
    at = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
    row = {
        "id": 7,
        "delay": None,
        "day": date(2013, 1, 1),
        "at": at,
        "clock": 1234,
        "price": Decimal("12.50"),
        "tags": {"carrier": "UA"},
        "legs": [],
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(with_column_types(DEFINITION)), row)
    frame = decode_avro(values(spark, out.getvalue(), None), json.dumps(DEFINITION)).select("value.*")
    first, second = frame.collect()
    # Spark gives a timestamp without its zone, in that of this process.
    assert first.asDict() == {**row, "at": at.astimezone().replace(tzinfo=None)}
    assert all(value is None for value in second)


@pytest.mark.needs_spark("4.1")
def test_decode_wrong_avro_fails_the_read(spark: SparkSession) -> None:
    decoded = decode_avro(values(spark, b"\x02"), json.dumps(DEFINITION))
    with pytest.raises(PySparkException, match=r"Message 5:0 of t is not one Avro record of value\.schema"):
        decoded.collect()


@pytest.mark.needs_spark("4.1")
def test_decode_avro_with_bytes_left_fails_the_read(spark: SparkSession) -> None:
    definition = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})
    # Two records of one number, and one of two numbers.
    decoded = decode_avro(values(spark, b"\x02", None, b"\x02\x04"), definition)
    with pytest.raises(PySparkException, match=r"Message 5:2 of t is not one Avro record .*bytes after the record: 1"):
        decoded.collect()
