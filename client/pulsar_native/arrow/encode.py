"""Arrow tables to messages: whole columns become payloads and encoded fields, a slice of rows at a time.

May not do: send; import pyarrow before it is needed.

Rules: all columns are checked before the first slice. Repeating values of a column (a key, a property, a time) are
encoded once. A null value is a message without value (a tombstone), a null key or property is left out.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pulsar_native.arrow.package import import_pyarrow
from pulsar_native.arrow.python_values import to_rows, to_values
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.message import OutgoingMessage
from pulsar_native.wire import _impl

if TYPE_CHECKING:
    import pyarrow

_Encode = Callable[[Any], bytes]


class _Memo(dict[Any, bytes]):
    """Encoded values of one column, each encoded once; bounded."""

    def __init__(self, encode: _Encode) -> None:
        self._encode = encode

    def __missing__(self, value: Any) -> bytes:
        found = b"" if value is None else self._encode(value)
        if len(self) < 100_000:
            self[value] = found
        return found


class TableRows:
    """Rows of a table or record batch as messages; one object per call."""

    def __init__(
        self,
        table: pyarrow.Table | pyarrow.RecordBatch,
        *,
        value: str | Sequence[str],
        key: str | None,
        properties: str | Sequence[str] | Mapping[str, str],
        event_time: str | None,
        encode: Callable[[Any], bytes] | None,
        zone: Any = None,
    ) -> None:
        pa = import_pyarrow("send_table")
        if not isinstance(table, pa.Table | pa.RecordBatch):
            raise InvalidConfiguration(f"send_table takes a pyarrow Table or RecordBatch, not {type(table).__name__}")
        self._arrow = pa
        self._table = table
        self._encode = encode
        self._zone = zone
        self._value = [value] if isinstance(value, str) else list(value)
        self._record = not isinstance(value, str)
        self._key = key
        self._event_time = event_time
        self._map: str | None = None
        self._properties: dict[str, str] = {}
        if isinstance(properties, str):
            self._map = properties
        elif isinstance(properties, Mapping):
            self._properties = dict(properties)
        else:
            self._properties = {name: name for name in properties}
        self._check()
        self._key_of_bytes = _Memo(_key_of_bytes)
        self._time_field = _Memo(lambda millis: _impl.encode_single_fields(event_time=millis))

    # --- checking ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        types = self._arrow.types
        for name in self._value:
            self._type(name)
        if not self._value:
            raise InvalidConfiguration("send_table needs at least one column for the value")
        if self._encode is None and (self._record or not _is_bytes(self._arrow, self._type(self._value[0]))):
            raise InvalidConfiguration(
                f"Column {self._value[0]!r} is {self._type(self._value[0])}; without a schema the value must "
                "be one column of bytes or text: cast it, or create the producer with a schema"
            )
        if self._key is not None and not _is_bytes(self._arrow, self._type(self._key)):
            raise InvalidConfiguration(
                f"Column {self._key!r} cannot be the key: it is {self._type(self._key)}, not text"
            )
        for name in self._properties.values():
            kind = self._type(name)
            if types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind):
                raise InvalidConfiguration(f"Column {name!r} cannot be a property: {kind} has no text form")
        if self._map is not None:
            self._check_map(self._map)
        if self._event_time is not None:
            kind = self._type(self._event_time)
            if not (types.is_timestamp(kind) or types.is_integer(kind)):
                raise InvalidConfiguration(
                    f"Column {self._event_time!r} cannot be the event time: it is {kind}, neither a timestamp nor a "
                    "whole number of milliseconds"
                )

    def _check_map(self, name: str) -> None:
        if not _is_text_map(self._arrow, self._type(name)):
            raise InvalidConfiguration(f"Column {name!r} holds no properties: it is no map of text to text")
        wrong = null_property(self._column(self._table, name))
        if wrong is not None:
            raise InvalidConfiguration(
                f"Column {name!r} has no value for the property {wrong[1]!r} in row {wrong[0]}: leave it out of the map"
            )

    def _type(self, name: str) -> Any:
        names = self._table.schema.names
        if names.count(name) != 1:
            raise InvalidConfiguration(f"The table has no single column {name!r}; it has {', '.join(names)}")
        kind = self._table.schema.field(name).type
        return kind.value_type if self._arrow.types.is_dictionary(kind) else kind

    # --- slices -----------------------------------------------------------------------------------------------------

    def slices(self, size: int) -> Iterator[tuple[list[bytes], list[bytes] | None, list[str | None] | None, Any]]:
        """Yield payloads, encoded fields, keys, and a function that returns a row as a message, `size` rows at most."""
        for batch in self._batches():
            for start in range(0, batch.num_rows, size):
                yield self._slice(batch.slice(start, size))

    def _batches(self) -> Iterator[pyarrow.RecordBatch]:
        if isinstance(self._table, self._arrow.RecordBatch):
            yield self._table
        else:
            yield from self._table.to_batches()

    def _slice(self, batch: pyarrow.RecordBatch) -> Any:
        payloads, nulls = self._payloads(batch)
        columns: list[list[bytes]] = []
        properties = self._property_values(batch)
        for name, values in properties.items():
            columns.append(_impl.text_fields(name, values))
        maps = None
        if self._map is not None:
            maps = [dict(pairs or ()) for pairs in self._column(batch, self._map).to_pylist()]
            columns.append([_impl.encode_single_fields(pairs) for pairs in maps])
        keys = times = None
        raw_keys: list[Any] = []
        if self._key is not None:
            raw_keys = self._column(batch, self._key).to_pylist()
            of_bytes = any(isinstance(key, bytes) for key in raw_keys)
            if of_bytes:
                columns.append(list(map(self._key_of_bytes.__getitem__, raw_keys)))
                keys = [None if key is None else base64.b64encode(key).decode() for key in raw_keys]
            else:
                columns.append(_impl.text_fields(None, raw_keys))
                keys = raw_keys
        if self._event_time is not None:
            times = self._times(batch)
            columns.append(list(map(self._time_field.__getitem__, times)))
        if nulls is not None:
            mark = _impl.encode_single_fields(null_value=True)
            columns.append([mark if missing else b"" for missing in nulls])
        fields = list(map(b"".join, zip(*columns, strict=True))) if columns else None

        def message(row: int) -> OutgoingMessage | None:
            if not columns:
                return None
            found = {name: values[row] for name, values in properties.items() if values[row] is not None}
            return OutgoingMessage(
                payloads[row],
                properties={**found, **(maps[row] if maps is not None else {})} or None,
                partition_key=keys[row] if keys is not None else None,
                key_is_base64=bool(raw_keys) and isinstance(raw_keys[row], bytes),
                event_timestamp=times[row] if times is not None else None,
                null_value=nulls is not None and nulls[row],
            )

        return payloads, fields, keys, message

    def _column(self, batch: pyarrow.Table | pyarrow.RecordBatch, name: str) -> Any:
        column = batch.column(batch.schema.get_field_index(name))
        if self._arrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        return column

    def _payloads(self, batch: pyarrow.RecordBatch) -> tuple[list[bytes], list[bool] | None]:
        if self._encode is not None:
            encode = self._encode
            if self._record:
                rows = to_rows(self._arrow, batch.select(self._value), zone=self._zone)
                return [encode(row) for row in rows], None
            values = to_values(self._arrow, self._column(batch, self._value[0]), zone=self._zone)
            nulls = [item is None for item in values] if None in values else None
            return [b"" if item is None else encode(item) for item in values], nulls
        column = self._column(batch, self._value[0])
        nulls = column.is_null().to_pylist() if column.null_count else None
        return _bytes_of(self._arrow, column), nulls

    def _property_values(self, batch: pyarrow.RecordBatch) -> dict[str, list[Any]]:
        text = self._arrow.string()
        return {name: self._column(batch, column).cast(text).to_pylist() for name, column in self._properties.items()}

    def _times(self, batch: pyarrow.RecordBatch) -> list[Any]:
        column = self._column(batch, self._event_time or "")
        if self._arrow.types.is_timestamp(column.type):
            import pyarrow.compute as compute

            millis = column.cast(self._arrow.timestamp("ms", column.type.tz), safe=False).cast(self._arrow.int64())
            # The cast cuts towards zero, which is no event time: a time before 1970 stays negative, which raises.
            is_before = compute.less(column.cast(self._arrow.int64()), 0)
            column = compute.if_else(is_before, compute.min_element_wise(millis, -1), millis)
        return list(column.to_pylist())


def null_property(column: pyarrow.Array | pyarrow.ChunkedArray) -> tuple[int, str] | None:
    """Return row and name of the first property without a value in a column of maps, None if there is none."""
    first = 0
    for chunk in getattr(column, "chunks", [column]):
        # The items are those of the whole array, of which the chunk may be a slice.
        if chunk.items.null_count:
            for row, pairs in enumerate(chunk.to_pylist(), first):
                for name, value in pairs or ():
                    if value is None:
                        return row, name
        first += len(chunk)
    return None


def _key_of_bytes(key: bytes) -> bytes:
    return _impl.encode_single_fields(partition_key=base64.b64encode(key).decode(), key_is_base64=True)


def _is_bytes(arrow: Any, kind: Any) -> bool:
    types = arrow.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or _is_text(arrow, kind)
    )


def _is_text_map(arrow: Any, kind: Any) -> bool:
    return bool(arrow.types.is_map(kind) and _is_text(arrow, kind.key_type) and _is_text(arrow, kind.item_type))


def _is_text(arrow: Any, kind: Any) -> bool:
    return bool(arrow.types.is_string(kind) or arrow.types.is_large_string(kind))


def _bytes_of(arrow: Any, column: Any) -> list[bytes]:
    """Return a column of bytes or text as bytes, b"" for nulls, cut from its buffer without intermediate objects."""
    count = len(column)
    if not count:
        return []
    buffers = column.buffers()
    if arrow.types.is_fixed_size_binary(column.type):
        width = column.type.byte_width
        packed = buffers[1].slice(column.offset * width, count * width).to_pybytes()
        return [packed[at : at + width] for at in range(0, count * width, width)]
    large = arrow.types.is_large_binary(column.type) or arrow.types.is_large_string(column.type)
    ends = memoryview(buffers[1]).cast("q" if large else "i")[column.offset : column.offset + count + 1]
    if buffers[2] is None or ends[0] == ends[-1]:
        return [b""] * count
    return _impl.cut_values(memoryview(buffers[2]).cast("B"), ends)
