"""Rows of Arrow data: maps as dicts, naive times in UTC where that is wanted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from pulsar_native.arrow.python_values import to_rows, to_values
from pulsar_native.schema import InvalidRecord

_AT = datetime(2026, 1, 2, 3, 4, 5)
_UTC = _AT.replace(tzinfo=UTC)
_NAIVE = pa.timestamp("ms")
_MAP = pa.map_(pa.string(), pa.int32())


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (_MAP, [("a", 1), ("b", None)], {"a": 1, "b": None}),
        (_MAP, [], {}),
        (_MAP, None, None),
        (pa.map_(pa.string(), _MAP), [("a", [("b", 1)]), ("c", None)], {"a": {"b": 1}, "c": None}),
        (pa.list_(_MAP), [[("a", 1)], None], [{"a": 1}, None]),
        (pa.list_(_MAP), None, None),
        (pa.list_(_MAP, 1), [[("a", 1)]], [{"a": 1}]),
        (pa.large_list(_MAP), [[("a", 1)]], [{"a": 1}]),
        (pa.struct({"m": _MAP, "n": pa.int8()}), {"m": [("a", 1)], "n": 5}, {"m": {"a": 1}, "n": 5}),
        (pa.struct({"m": _MAP}), None, None),
        (pa.list_(pa.int8()), [1, None], [1, None]),
    ],
    ids=[
        "map",
        "empty",
        "null",
        "maps",
        "list",
        "null_list",
        "fixed_list",
        "large_list",
        "struct",
        "null_struct",
        "int",
    ],
)
def test_to_rows_maps_are_dicts(kind: Any, value: Any, found: Any) -> None:
    column = pa.array([value, None], kind)
    batch = pa.record_batch({"other": pa.array(["x", "y"]), "value": column})
    assert to_rows(pa, batch) == [{"other": "x", "value": found}, {"other": "y", "value": None}]
    assert to_values(pa, column) == [found, None]


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (_NAIVE, _AT, _UTC),
        (pa.timestamp("s"), None, None),
        (pa.timestamp("us", "UTC"), _UTC, _UTC),
        (pa.list_(_NAIVE), [_AT, None], [_UTC, None]),
        (pa.struct({"at": _NAIVE}), {"at": _AT}, {"at": _UTC}),
        (pa.map_(_NAIVE, _NAIVE), [(_AT, _AT)], {_UTC: _UTC}),
    ],
    ids=["plain", "null", "aware", "list", "struct", "map"],
)
def test_to_rows_naive_times_in_utc(kind: Any, value: Any, found: Any) -> None:
    batch = pa.record_batch({"value": pa.array([value], kind)})
    assert to_rows(pa, batch, zone=UTC) == [{"value": found}]


def test_to_values_naive_times_of_dictionary_in_utc() -> None:
    column = pa.array([_AT, None, _AT], _NAIVE).dictionary_encode()
    assert to_values(pa, column, zone=UTC) == [_UTC, None, _UTC]


def test_to_values_naive_times_of_run_ends_in_utc() -> None:
    column = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([_AT, None], _NAIVE))
    assert to_values(pa, column, zone=UTC) == [_UTC, _UTC, None]


def test_to_rows_naive_times_stay() -> None:
    assert to_rows(pa, pa.record_batch({"value": pa.array([_AT], _NAIVE)})) == [{"value": _AT}]


def test_to_rows_map_with_a_key_twice_raises() -> None:
    batch = pa.record_batch({"value": pa.array([[("a", 1), ("a", 2)]], _MAP)})
    with pytest.raises(InvalidRecord, match="A map has the key 'a' twice"):
        to_rows(pa, batch)


@pytest.mark.parametrize(
    ("kind", "key", "words"),
    [(pa.struct({"x": pa.int8()}), {"x": 1}, "dict"), (pa.list_(pa.int8()), [1], "list")],
    ids=["struct", "list"],
)
def test_to_rows_map_with_nested_keys_raises(kind: Any, key: Any, words: str) -> None:
    batch = pa.record_batch({"value": pa.array([[(key, 1)]], pa.map_(kind, pa.int8()))})
    with pytest.raises(InvalidRecord, match=f"A map has a key of the type {words}, which no dict can have"):
        to_rows(pa, batch)
