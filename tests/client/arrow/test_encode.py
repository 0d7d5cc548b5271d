"""Arrow tables to messages, compared with single messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.arrow.encode import TableRows
from pulsar_native.exceptions import InvalidConfiguration, InvalidMessage
from pulsar_native.wire.codec import encode_single_fields

pytestmark = pytest.mark.usefixtures("implementation")


def rows_of(table: Any, **options: Any) -> TableRows:
    settings: dict[str, Any] = {"value": "value", "key": None, "properties": (), "event_time": None, "encode": None}
    return TableRows(table, **{**settings, **options})


ROW = st.fixed_dictionaries(
    {
        "value": st.none() | st.binary(max_size=20),
        "key": st.none() | st.text(max_size=5),
        "city": st.none() | st.sampled_from(["a", "b", ""]),
        "at": st.none() | st.integers(1, 1 << 40),
    }
)


@given(st.lists(ROW, max_size=40), st.integers(1, 50), st.integers(0, 10))
def test_table_rows_slices_equal_rows(rows: list[dict[str, Any]], size: int, offset: int) -> None:
    schema = pa.schema([("value", pa.binary()), ("key", pa.string()), ("city", pa.string()), ("at", pa.int64())])
    table = pa.Table.from_pylist(rows, schema).slice(offset)
    found: list[tuple[bytes, bytes, str | None]] = []
    for payloads, fields, keys, message in rows_of(table, key="key", properties=["city"], event_time="at").slices(size):
        assert len(payloads) == len(fields) == len(keys) <= size
        found += zip(payloads, fields, keys, strict=True)
        for row, payload in enumerate(payloads):
            made = message(row)
            assert made.payload == payload and made.partition_key == keys[row]
    wanted = [
        (
            row["value"] or b"",
            encode_single_fields(
                {"city": row["city"]} if row["city"] is not None else None,
                row["key"],
                event_time=row["at"] or 0,
                null_value=row["value"] is None,
            ),
            row["key"],
        )
        for row in rows[offset:]
    ]
    assert found == wanted


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
@given(texts=st.lists(st.none() | st.text(max_size=8), max_size=30), start=st.integers(0, 5))
def test_table_rows_payloads_of_sliced_tables(kind: Any, texts: list[str | None], start: int) -> None:
    values = pa.array(texts, pa.string()).cast(kind).slice(start)
    parts = [part[0] for part in rows_of(pa.record_batch({"value": values})).slices(7)]
    assert [payload for part in parts for payload in part] == [(text or "").encode() for text in texts[start:]]


def test_table_rows_value_only_has_no_fields() -> None:
    ((payloads, fields, keys, message),) = rows_of(pa.table({"value": [b"x"]})).slices(10)
    assert (payloads, fields, keys, message(0)) == ([b"x"], None, None, None)


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
def test_table_rows_byte_keys_maps_times(text: Any) -> None:
    table = pa.table(
        {
            "value": ["x"],
            "key": [b"\xff"],
            "map": pa.array([[("a", "1")]], pa.map_(text, text)),
            "at": pa.array([1_500_000], pa.timestamp("us")),
        }
    )
    rows = rows_of(table, key="key", properties="map", event_time="at")
    ((_, fields, keys, message),) = rows.slices(10)
    key = encode_single_fields(partition_key="/w==", key_is_base64=True)
    assert fields == [encode_single_fields({"a": "1"}) + key + encode_single_fields(event_time=1500)]
    made = message(0)
    assert (keys, made.key_is_base64, made.properties, made.event_timestamp) == (["/w=="], True, {"a": "1"}, 1500)


@pytest.mark.parametrize(("unit", "at"), [("us", -1), ("us", -999), ("us", -5000), ("ns", -1), ("ms", -1), ("s", -1)])
def test_table_rows_time_before_1970_raises(unit: str, at: int) -> None:
    table = pa.table({"value": ["x", "y", "z"], "at": pa.array([None, 0, at], pa.timestamp(unit, "GMT+9"))})
    with pytest.raises(InvalidMessage, match="An event time must be milliseconds since 1970, not -"):
        list(rows_of(table, event_time="at").slices(10))
    ((_, fields, _, _),) = rows_of(table.slice(0, 2), event_time="at").slices(10)
    assert fields == [b"", b""]


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
def test_table_rows_null_property_raises_naming_it(text: Any) -> None:
    kind = pa.map_(text, text)
    column = pa.chunked_array([pa.array([[("a", "b")]], kind), pa.array([None, [("x", "y"), ("z", None)]], kind)])
    table = pa.table({"value": [b"1", b"2", b"3"], "map": column})
    with pytest.raises(InvalidConfiguration, match="Column 'map' has no value for the property 'z' in row 2"):
        rows_of(table, properties="map")
    assert rows_of(table.slice(0, 2), properties="map")
