"""Columns and registered schemas: Spark's types for them, and those that have none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import StructType, _parse_datatype_string

from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar.schema import (
    DEFAULT_COLUMNS,
    SOURCE_COLUMNS,
    check_schema,
    columns_type,
    ddl,
    registered_type,
    struct_of,
)


def record(*fields: Any, name: str = "R") -> str:
    """Return the definition of a record with fields of the given types, named a, b, c and so on."""
    made = [{"name": chr(ord("a") + index), "type": type_} for index, type_ in enumerate(fields)]
    return json.dumps({"type": "record", "name": name, "fields": made})


def test_schema_columns_are_those_of_the_jvm_connector() -> None:
    assert ddl(DEFAULT_COLUMNS) == (
        "`value` BINARY, `__key` BINARY, `__topic` STRING, `__messageId` BINARY, `__publishTime` TIMESTAMP, "
        "`__eventTime` TIMESTAMP, `__messageProperties` MAP<STRING, STRING>"
    )
    assert SOURCE_COLUMNS[7:] == (
        "__partition",
        "__sequenceId",
        "__producerName",
        "__ledgerId",
        "__entryId",
        "__batchIndex",
        "__schemaVersion",
    )


@pytest.mark.parametrize(
    ("avro", "ddl_type"),
    [
        ("boolean", "boolean"),
        ("int", "int"),
        (["null", "long"], "bigint"),
        (["double", "null"], "double"),
        ("float", "float"),
        ("string", "string"),
        ("bytes", "binary"),
        ({"type": "fixed", "name": "F", "size": 4}, "binary"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "array", "items": "int"}, "array<int>"),
        ({"type": "map", "values": ["null", "string"]}, "map<string,string>"),
        ({"type": "string", "avro.java.string": "String"}, "string"),
        ({"type": "record", "name": "N", "fields": [{"name": "x", "type": "int"}]}, "struct<x:int>"),
        ({"type": "int", "logicalType": "date"}, "int"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "bigint"),
    ],
)
def test_schema_avro_types_have_column_types(avro: Any, ddl_type: str) -> None:
    found = registered_type(record(avro), logical=False)
    assert found.simpleString() == f"struct<a:{ddl_type}>"
    assert found["a"].nullable


@pytest.mark.parametrize(
    ("avro", "ddl_type"),
    [
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp"),
        (["null", {"type": "long", "logicalType": "timestamp-micros"}], "timestamp"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "timestamp_ntz"),
        ({"type": "int", "logicalType": "time-millis"}, "int"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal(9,2)"),
        ({"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 5}, "decimal(5,0)"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 60}, "binary"),
        ({"type": "long", "logicalType": "of-tomorrow"}, "bigint"),
    ],
)
def test_schema_avro_logical_types(avro: Any, ddl_type: str) -> None:
    assert registered_type(record(avro), logical=True).simpleString() == f"struct<a:{ddl_type}>"


def test_schema_named_type_is_reused() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A"]}
    inner = {"type": "record", "name": "N", "fields": [{"name": "x", "type": "int"}]}
    found = registered_type(record(enum, ["null", "E"], inner, {"type": "array", "items": "N"}), logical=False)
    assert found.simpleString() == "struct<a:string,b:string,c:struct<x:int>,d:array<struct<x:int>>>"


IN_C = {"type": "record", "name": "P", "namespace": "com.c", "fields": [{"name": "x", "type": "int"}]}
IN_D = {"type": "record", "name": "P", "namespace": "com.d", "fields": [{"name": "y", "type": "string"}]}
X, Y = "struct<x:int>", "struct<y:string>"


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("com.c.R", [IN_C, IN_D, "P"], [X, Y, X]),
        ("com.d.R", [IN_C, IN_D | {"name": "com.d.P", "namespace": "com.c"}, ["null", "P"]], [X, Y, Y]),
        ("com.b.R", [IN_C, {"type": "array", "items": "com.c.P"}], [X, f"array<{X}>"]),
        ("com.b.P", [IN_C, {"type": "map", "values": {"type": "com.c.P"}}], [X, f"map<string,{X}>"]),
        # As Java writes a type that has no namespace.
        ("com.c.R", [IN_D | {"namespace": ""}, "P", IN_C, "P"], [Y, Y, X, X]),
        ("R", [{"type": "fixed", "name": "F", "namespace": "com.c", "size": 4, "logicalType": "decimal",
                "precision": 5}, "com.c.F"], ["decimal(5,0)"] * 2),
        ("com.c.R", [{"type": "enum", "name": "E", "symbols": ["A"]}, "com.c.E", "E"], ["string"] * 3),
    ],
)  # fmt: skip
def test_schema_named_types_resolve_by_namespace(name: str, fields: list[Any], expected: list[str]) -> None:
    found = registered_type(record(*fields, name=name), logical=True)
    assert [field.dataType.simpleString() for field in found.fields] == expected


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("no json", "not an Avro definition"),
        ('"string"', "not a record"),
        (record(["int", "string"]), r"value\.a: a union of several types"),
        (record(["null"]), r"value\.a: a union of several types"),
        (record("R"), "R contains itself"),
        (record({"type": "array", "items": "R"}), "R contains itself"),
        (record("Unknown"), "the type 'Unknown' has no column type"),
        (record(IN_C, "P", name="com.b.R"), "the type 'com.b.P' has no column type"),
        (record(["null", "R"], name="com.b.R"), r"com\.b\.R contains itself"),
    ],
)
def test_schema_without_column_type_raises_with_path(definition: str, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        registered_type(definition, logical=True)


@pytest.mark.usefixtures("spark")
def test_schema_given_by_user_must_match_columns() -> None:
    right = _parse_datatype_string(ddl(DEFAULT_COLUMNS))
    assert isinstance(right, StructType)
    check_schema(right, DEFAULT_COLUMNS)
    for wrong in ("value STRING", "value BINARY, __key STRING", "value BINARY NOT NULL"):
        given = _parse_datatype_string(wrong)
        assert isinstance(given, StructType)
        with pytest.raises(InvalidConfiguration, match=r"leave .schema.* out and choose columns with option columns"):
            check_schema(given, DEFAULT_COLUMNS if "," in wrong else ("value",))


@pytest.mark.usefixtures("spark")
def test_schema_text_equals_column_types() -> None:
    assert columns_type(SOURCE_COLUMNS) == _parse_datatype_string(ddl(SOURCE_COLUMNS))


@pytest.mark.usefixtures("spark")
def test_schema_text_is_parsed_or_raises() -> None:
    assert struct_of("a INT, `b c` STRING").simpleString() == "struct<a:int,b c:string>"
    for wrong in ("a INTEGRAL", "INT", "a INT,,"):
        with pytest.raises(InvalidConfiguration, match="is not a list of columns"):
            struct_of(wrong)
