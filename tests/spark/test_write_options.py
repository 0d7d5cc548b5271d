"""The options and the columns of a write: what they mean, and the refusals, each with the way out."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pulsar_native import CompressionType
from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar.write_columns import RecordEncoder, WriteColumns
from pyspark_pulsar.write_options import WriteOptions
from pyspark_pulsar.writer import check_columns

MINIMUM = {"service.url": "pulsar://localhost:6650", "topic": "t"}
DEDUPLICATED = {"deliveryGuarantee": "deduplicated"}


def schema(**columns: object) -> StructType:
    """Return a schema of columns by name."""
    return StructType([StructField(name, kind, True) for name, kind in columns.items()])  # type: ignore[arg-type]


def test_write_option_defaults() -> None:
    options = WriteOptions.parse(MINIMUM, streaming=False)
    assert options.topic == "persistent://public/default/t"
    assert (options.value_format, options.delivery_guarantee) == ("raw", "at-least-once")
    assert options.transaction_timeout_ms == 600_000
    assert pickle.loads(pickle.dumps(options)) == options


def test_write_producer_settings_have_the_java_names() -> None:
    given = {
        "pulsar.producer.compressiontype": "zstd",
        "pulsar.producer.batchingMaxPublishDelayMicros": "2500",
        "Pulsar.Producer.SendTimeoutMs": "5000",
        "pulsar.client.operationTimeoutMs": "10000",
        "checkpointLocation": "/c",
    }
    options = WriteOptions.parse({**MINIMUM, **given}, streaming=True)
    assert dict(options.producer_settings) == {
        "compression_type": CompressionType.ZSTD,
        "batching_max_publish_delay_ms": 2,
        "send_timeout_millis": 5000,
    }
    assert dict(options.client_settings) == {"operation_timeout_seconds": 10.0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topik": "t"}, "did you mean topic"),
        ({"topics": "a,b"}, "column topic"),
        ({"startingOffsets": "earliest"}, "There is no option startingOffsets"),
        ({"pulsar.producer.compressionTyp": "LZ4"}, "did you mean pulsar.producer.compressionType"),
        ({"pulsar.producer.compressionType": "zip"}, "one of NONE, LZ4, ZLib, ZSTD, SNAPPY"),
        ({"pulsar.producer.batchingMaxMessages": "0"}, "batching_max_messages"),
        ({"deliveryGuarantee": "exactly-once"}, "at-least-once, deduplicated, transactional"),
        ({"valueFormat": "xml"}, "raw, json, avro"),
        ({"authParams": "token:abc"}, "credentialsRef.* revoke it"),
        ({"pulsar.client.listenerName": "token:abc"}, "looks like a secret.* revoke it"),
        ({"batchId": "1"}, "deliveryGuarantee=deduplicated only"),
        ({"pulsar.producer.producerName": "p"}, "deliveryGuarantee=deduplicated only"),
        ({**DEDUPLICATED, "pulsar.producer.producerName": "p"}, "producerName and batchId together"),
        ({**DEDUPLICATED, "pulsar.producer.producerName": "p", "batchId": str(1 << 31)}, "below 2147483648"),
        ({**DEDUPLICATED, "pulsar.producer.producerName": "a b", "batchId": "1"}, "no blanks"),
        ({"transactionTimeoutMs": "5"}, "deliveryGuarantee=transactional"),
        ({"topic": "a/b"}, "topic: "),
        ({"path": "/x"}, "take no path"),
        ({"paths": '["/x"]'}, "take no path"),
        ({"provider": "pulsar"}, "tables are not supported; use CREATE TEMPORARY VIEW"),
    ],
)
def test_wrong_write_option_names_the_fix(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message) as refused:
        WriteOptions.parse({**MINIMUM, **given}, streaming=False)
    assert "abc" not in str(refused.value)


def test_batch_id_of_a_stream_raises() -> None:
    with pytest.raises(InvalidConfiguration, match="batch ids of its own"):
        WriteOptions.parse({**MINIMUM, **DEDUPLICATED, "batchId": "1"}, streaming=True)


TEXT, LONG, TIME = StringType(), LongType(), TimestampType()


@pytest.mark.parametrize(
    ("columns", "form", "message"),
    [
        ({"value": TEXT, "kee": TEXT}, "raw", "Column kee is nothing of a message; did you mean key"),
        ({"value": TEXT, "other": TEXT}, "raw", "known are value, __key"),
        ({"value": TEXT, "__publishTime": TIME}, "raw", "given by the broker"),
        ({"value": TEXT, "__topic": TEXT, "__messageId": TEXT}, "raw", "drop it, and __topic with it where"),
        ({"value": TEXT, "key": TEXT, "__key": TEXT}, "raw", "columns key and __key are both the key"),
        ({"value": TEXT, "VALUE": TEXT}, "raw", "columns twice: value"),
        ({"value": LONG}, "raw", "Column value is BIGINT: cast it to BINARY or STRING"),
        ({"value": TEXT}, "json", "needs a STRUCT column value"),
        ({"value": schema(a=LONG)}, "raw", "Set valueFormat to json or avro"),
        ({"a": LONG}, "raw", "Set valueFormat to json or avro"),
        ({"__key": TEXT}, "json", "no column value"),
        ({"value": TEXT, "key": LONG}, "raw", "must be BINARY or STRING: cast it"),
        ({"value": TEXT, "eventTime": TimestampNTZType()}, "raw", "a time without a zone"),
        ({"value": TEXT, "properties": MapType(TEXT, LONG)}, "raw", "MAP<STRING,STRING>"),
        ({"a": DecimalType(5, 2)}, "json", r"value.a: DECIMAL\(5,2\) has no form in json"),
        ({"a": BinaryType()}, "json", "BINARY has no form in json"),
        ({"a b": LONG}, "json", "letters, digits and _ only"),
        ({"value": schema(a=LONG, A=LONG, b=LONG)}, "json", "value has fields twice, as their case is ignored: a$"),
        ({"l": ArrayType(schema(b=LONG, B=LONG))}, "avro", r"value\.l has fields twice"),
        ({"a": MapType(LONG, TEXT)}, "avro", "keys of a map must be STRING"),
        ({"a": LONG, "__topik": TEXT}, "json", "did you mean __topic"),
    ],
)
def test_wrong_write_column_names_the_fix(columns: dict[str, object], form: str, message: str) -> None:
    fields = StructType([StructField(name, kind, True) for name, kind in columns.items()])  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match=message):
        WriteColumns.of(fields, form)


@pytest.mark.parametrize("name", ["__topic", "__TOPIC"])
def test_option_topic_with_source_topic_raises(name: str) -> None:
    options = WriteOptions.parse(MINIMUM, streaming=False)
    fields = schema(value=TEXT, **{name: TEXT})
    with pytest.raises(InvalidConfiguration, match=f"drop the column {name}, or leave the option topic out"):
        check_columns(options, fields)
    assert check_columns(options, schema(value=TEXT, topic=TEXT)).topic == "topic"
    assert check_columns(replace(options, topic=None), fields).topic == name


def test_records_of_paths_alike_have_own_names() -> None:
    inner = schema(x=LONG)
    columns = WriteColumns.of(schema(a=schema(b=inner), a_b=inner, a_b_=inner), "avro")
    a, *others = json.loads(columns.definition or "")["fields"]
    nested = a["type"][1]["fields"][0]
    assert [field["type"][1]["name"] for field in (a, nested, *others)] == [
        "value_a", "value_a_b", "value_a_b_", "value_a_b__"
    ]  # fmt: skip
    value = {"a": {"b": {"x": 1}}, "a_b": {"x": 2}, "a_b_": None}
    assert RecordEncoder(columns).encode(value)


def test_record_without_value_column_may_have_a_field_key() -> None:
    columns = WriteColumns.of(schema(key=TEXT, __key=TEXT, n=LONG), "json")
    assert (columns.value, columns.key, columns.is_record) == (("key", "n"), "__key", True)


def test_records_of_nested_types_are_encoded() -> None:
    import pyarrow

    inner = schema(at=TIME, day=DateType())
    columns = WriteColumns.of(schema(value=schema(m=MapType(TEXT, inner), l=ArrayType(inner))), "json")
    definition = json.loads(columns.definition or "")
    assert [field["name"] for field in definition["fields"]] == ["m", "l"]
    assert definition["fields"][0]["type"][1]["values"][1]["name"] == "value_m"
    kind = pyarrow.struct([("at", pyarrow.timestamp("us", "UTC")), ("day", pyarrow.date32())])
    record = pyarrow.struct([("m", pyarrow.map_(pyarrow.string(), kind)), ("l", pyarrow.list_(kind))])
    one = {"at": 1_500_000, "day": 2}
    (value,) = pyarrow.array([{"m": [("a", one), ("b", None)], "l": [one, None]}], record).to_pylist()
    encoded = json.loads(RecordEncoder(columns).encode(value) or b"")
    assert encoded == {"m": {"a": {"at": 1500, "day": 2}, "b": None}, "l": [{"at": 1500, "day": 2}, None]}
