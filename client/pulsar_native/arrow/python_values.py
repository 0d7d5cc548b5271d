"""Rows of Arrow data as Python's values: maps as dicts, and times without a timezone in one where that is wanted.

May not do: import pyarrow. Rules: columns without a map or such a time are converted by pyarrow alone. Its `to_pylist`
returns maps as lists of pairs, and has an option for dicts only in versions newer than the oldest one supported here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsar_native.schema.errors import InvalidRecord

if TYPE_CHECKING:
    import pyarrow

_Convert = Callable[[Any], Any]


def to_rows(arrow: Any, batch: pyarrow.RecordBatch, *, zone: Any = None) -> list[dict[str, Any]]:
    """Return the rows of a batch.

    :param arrow: the package pyarrow.
    :param batch: the record batch.
    :param zone: timezone, a `tzinfo`, of times without one. Default None: they stay without.

    Raises `InvalidRecord` for a map with one key twice, or with keys that are nested.
    """
    rows: list[dict[str, Any]] = batch.to_pylist()
    for field in batch.schema:
        convert = _conversion(arrow, field.type, zone)
        if convert is not None:
            for row in rows:
                row[field.name] = convert(row[field.name])
    return rows


def to_values(arrow: Any, column: pyarrow.Array, *, zone: Any = None) -> list[Any]:
    """Return the values of a column, as `to_rows` does."""
    values: list[Any] = column.to_pylist()
    convert = _conversion(arrow, column.type, zone)
    return values if convert is None else list(map(convert, values))


def _conversion(arrow: Any, kind: Any, zone: Any) -> _Convert | None:
    """Return the conversion of a type's values, None if they stay."""
    types, of = arrow.types, partial(_conversion, arrow, zone=zone)
    if types.is_timestamp(kind):
        return partial(_in_zone, zone) if zone is not None and kind.tz is None else None
    if types.is_map(kind):
        return partial(_dict_of, of(kind.key_type), of(kind.item_type))
    if types.is_struct(kind):
        fields = {field.name: found for field in kind if (found := of(field.type)) is not None}
        return partial(_fields, fields) if fields else None
    # Of dictionaries and run-end encoding (types of columns), and of each kind of list.
    inner = getattr(kind, "value_type", None)
    convert = None if inner is None else of(inner)
    if convert is None or types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return convert
    return partial(_each, convert)


def _in_zone(zone: Any, value: Any) -> Any:
    return None if value is None else value.replace(tzinfo=zone)


def _dict_of(key: _Convert | None, item: _Convert | None, pairs: Any) -> Any:
    if pairs is None:
        return None
    found = {}
    for name, value in pairs:
        name = name if key is None else key(name)
        # Of Arrow's types structs, lists and maps, which become dicts and lists.
        if isinstance(name, dict | list):
            raise InvalidRecord(f"A map has a key of the type {type(name).__name__}, which no dict can have")
        if name in found:
            raise InvalidRecord(f"A map has the key {name!r} twice")
        found[name] = value if item is None else item(value)
    return found


def _fields(fields: dict[str, _Convert], value: Any) -> Any:
    if value is None:
        return None
    return {**value, **{name: convert(value[name]) for name, convert in fields.items()}}


def _each(convert: _Convert, values: Any) -> Any:
    return None if values is None else list(map(convert, values))
