"""Entries to Arrow record batches: whole columns at a time, straight from the entries' bytes.

May not do: receive, decompress or acknowledge; import pyarrow before it is needed; need numpy (it is used if present).

Rules: the columns are those of the Spark source, all nullable, so that a batch equals what Spark derives from its
schema. Values an entry's messages share are written once and repeated as bytes; a batch of messages of one size without
metadata of their own is copied by its stride; messages whose metadata have one layout are read column by column with
numpy; only the others are parsed one by one, by protobuf's C parser, which was measured to be faster than one inlined
here (1.6 against 2.0 us for a key and two properties). Small batches, and entries of one message without a batch, are
scanned as a run by the compiled codec, and added one by one without it. The caller limits a batch to a few MiB: fresh
memory costs more than parsing.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from pulsar_native.arrow.arrays import MapColumn, NumberColumn, TextColumn, numpy_or_none, ramps, utf8
from pulsar_native.arrow.package import import_pyarrow
from pulsar_native.arrow.uniform import EVENT_TIME, SEQUENCE_ID, Layout, numbers, texts
from pulsar_native.exceptions import InvalidMessage
from pulsar_native.message_id import MessageId
from pulsar_native.wire import _impl
from pulsar_native.wire.codec import parse_single, same_size, sequence_fields
from pulsar_native.wire.entry import ParsedEntry
from pulsar_native.wire.frames import varint
from pulsar_native.wire.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata

if TYPE_CHECKING:
    import pyarrow

    from pulsar_native.wire._speedups import Singles

ALL_COLUMNS: tuple[str, ...] = (
    "value",
    "__key",
    "__topic",
    "__messageId",
    "__publishTime",
    "__eventTime",
    "__messageProperties",
    "__partition",
    "__sequenceId",
    "__producerName",
    "__ledgerId",
    "__entryId",
    "__batchIndex",
    "__schemaVersion",
)
"""All columns, in the order the Spark source shows them."""

_SINGLE_COLUMNS = frozenset({"__key", "__eventTime", "__messageProperties", "__sequenceId"})
_U64 = (1 << 64) - 1
_MAX_MILLIS = ((1 << 63) - 1) // 1000
_NULL_VALUE = b"\x48\x01"  # SingleMessageMetadata.null_value = true
_SMALL_BODY = 32 * 1024  # bytes; a step for each batch up to this size costs more than copying it
_WORTH_A_LAYOUT = 32  # messages; below, parsing them is as fast
_HIGH = bytes(range(128, 256))  # varint bytes with the continuation bit

# Metadata with nothing but payload size and sequence id. Each is followed by a 0, which begins no field.
_PLAIN = re.compile(rb"(?>\x18[\x80-\xff]{0,4}+[\x00-\x7f](?>\x40[\x80-\xff]{0,9}+[\x00-\x7f])?+\x00)*+").fullmatch

_Fields = SingleMessageMetadata | MessageMetadata


@dataclass(slots=True)
class EntryRows:
    """Messages of one entry: those with batch index `first` up to, not including, `last` (0 and 1 without a batch).

    `body` is the decompressed body, `skip` has a byte per batch index, not 0 where the message is to be left out
    (acknowledged or compacted away), `first_chunk` is set for a message assembled from chunks.
    """

    parsed: ParsedEntry
    body: bytes
    ledger_id: int
    entry_id: int
    first: int
    last: int
    skip: bytes | None = None
    first_chunk: MessageId | None = None

    def picked(self) -> Sequence[int]:
        """Return the batch indexes of the slice."""
        if self.skip is None:
            return range(self.first, self.last)
        return [index for index in range(self.first, self.last) if not self.skip[index]]

    def __len__(self) -> int:
        if self.skip is None:
            return self.last - self.first
        return self.skip.count(b"\0", self.first, self.last)

    @property
    def nbytes(self) -> int:
        """Approximate bytes of the entry that the slice covers; for limiting a record batch."""
        return len(self.body) * len(self) // self.parsed.num_messages


def record_batch(
    slices: Sequence[EntryRows],
    columns: Sequence[str] = ALL_COLUMNS,
    *,
    topic: str,
    partition: int,
    value_type: str = "binary",
) -> pyarrow.RecordBatch:
    """Return the messages of some entries as one record batch with the requested columns, in that order.

    Pure, CPU-bound, thread-safe; needs pyarrow (extra `arrow`). `value_type` is "binary" or "string". Null are: the
    value of a null message, a missing key, an event time that is not set or not within Arrow's microseconds. Invalid
    UTF-8 in text is replaced, as in Java. Raises `InvalidMessage`, naming the entry, when a batch is malformed, and
    `ValueError` for an unknown column or more than 2 GiB in one.
    """
    import pyarrow as pa

    unknown = [name for name in columns if name not in ALL_COLUMNS]
    if unknown or value_type not in ("binary", "string"):
        raise ValueError(f"There is no column {unknown[0]}" if unknown else f"A value cannot be {value_type}")
    builder = _Builder(columns, topic, partition)
    for is_batch, parts in groupby(slices, key=lambda part: part.parsed.is_batch):
        if is_batch:
            builder.add_batches([part for part in parts if len(part)])
        else:
            builder.add_unbatched([part for part in parts if len(part)])
    types = _types(pa, value_type)
    arrays = [builder.finish(pa, name, types[name]) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([(name, types[name]) for name in columns]))


def arrow_schema(columns: Sequence[str] = ALL_COLUMNS) -> pyarrow.Schema:
    """Return the Arrow schema of these columns as `receive_arrow` and `arrow_batches` return them. Needs pyarrow."""
    pa = import_pyarrow("arrow_schema")
    types = _types(pa, "binary")
    schema: pyarrow.Schema = pa.schema([(name, types[name]) for name in columns])
    return schema


def _types(pa: Any, value_type: str) -> dict[str, Any]:
    time = pa.timestamp("us", tz="UTC")
    return {
        "value": pa.string() if value_type == "string" else pa.binary(),
        "__key": pa.binary(),
        "__topic": pa.string(),
        "__messageId": pa.binary(),
        "__publishTime": time,
        "__eventTime": time,
        "__messageProperties": pa.map_(pa.string(), pa.string()),
        "__partition": pa.int32(),
        "__sequenceId": pa.int64(),
        "__producerName": pa.string(),
        "__ledgerId": pa.int64(),
        "__entryId": pa.int64(),
        "__batchIndex": pa.int32(),
        "__schemaVersion": pa.int64(),
    }


class _Builder:
    """Builder of the requested columns, entry by entry."""

    def __init__(self, columns: Sequence[str], topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._rows = 0
        self._columns: dict[str, Any] = {name: _NEW[name]() for name in columns}
        self._wants_singles = not _SINGLE_COLUMNS.isdisjoint(columns)

    def add_unbatched(self, parts: list[EntryRows]) -> None:
        """Add entries of one message each, column by column: each entry is a row."""
        self._rows += len(parts)
        for name, column in self._columns.items():
            if name in _OF_ENTRY:
                of_entry = _OF_ENTRY[name]
                column.extend_optional([of_entry(part) for part in parts])
        if "__batchIndex" in self._columns:
            self._columns["__batchIndex"].repeat(-1, len(parts))
        if "__messageId" in self._columns:
            self._add_entry_ids(parts)
        found = _impl.scan_entries(parts)
        if found is not None:
            self._add_found(found)
            return
        metas = [part.parsed.metadata for part in parts]
        try:
            self._add_singles(metas, [part.body for part in parts], metas, [0] * len(metas))
        except InvalidMessage:
            for part in parts:
                with self._naming(part):
                    _key(part.parsed.metadata)
            raise

    def add_batches(self, parts: list[EntryRows]) -> None:
        """Add batches: small ones that follow each other in one step, the others one by one."""
        for is_small, run in groupby(parts, key=_is_small):
            several = list(run)
            if not is_small or len(several) == 1 or not self._add_run(several):
                for part in several:
                    self.add_batch(part)

    def _add_run(self, parts: list[EntryRows]) -> bool:
        """Add batches with the compiled codec; return False when that is missing or any is not ordinary."""
        columns = self._columns
        found = ids = None
        if (self._wants_singles or "value" in columns) and (found := _impl.scan_batches(parts)) is None:
            return False
        if "__messageId" in columns:
            ids = _impl.batch_ids(parts, self._partition, columns["__messageId"].size)
            if ids is None:
                return False
            columns["__messageId"].packed(ids[0], len(ids[0]), ids[1])
        counts = list(map(len, parts))
        self._rows += sum(counts)
        for name, column in columns.items():
            if name == "__producerName":
                for part, count in zip(parts, counts, strict=True):
                    column.repeat(_OF_ENTRY[name](part), count)
            elif name in _OF_ENTRY:
                of_entry = _OF_ENTRY[name]
                column.repeat_each([of_entry(part) for part in parts], counts)
        if "__batchIndex" in columns:
            columns["__batchIndex"].packed(ramps([part.picked() for part in parts]))
        if found is not None:
            self._add_found(found)
        return True

    def add_batch(self, part: EntryRows) -> None:
        """Add messages of a batch, at least one: shared values are written once."""
        picked = part.picked()
        count = len(picked)
        self._rows += count
        for name, column in self._columns.items():
            if name in _OF_ENTRY:
                column.repeat(_OF_ENTRY[name](part), count)
        if "__batchIndex" in self._columns:
            self._columns["__batchIndex"].extend(picked)
        if "__messageId" in self._columns:
            self._add_message_ids(part, picked)
        if self._wants_singles or "value" in self._columns:
            with self._naming(part):
                if not self._add_scanned(part) and not self._add_one_size(part, picked):
                    self._add_mixed(part, picked)

    def _add_entry_ids(self, parts: list[EntryRows]) -> None:
        column = self._columns["__messageId"]
        found = _impl.entry_ids(parts, self._partition, column.size)
        if found is None:
            column.extend([_id_head(part, self._partition) + _id_tail(part) for part in parts])
        else:
            column.packed(found[0], len(found[0]), found[1])

    def _add_message_ids(self, part: EntryRows, picked: Sequence[int]) -> None:
        column = self._columns["__messageId"]
        head, tail = _id_head(part, self._partition), _id_tail(part)
        if not isinstance(picked, range):
            column.extend([head + b"\x20" + varint(index) + tail for index in picked])
            return
        # Indexes of one width give ids of one width, which one join builds.
        for low, high in ((0, 1 << 7), (1 << 7, 1 << 14), (1 << 14, 1 << 31)):
            inside = range(max(low, picked.start), min(high, picked.stop))
            if inside:
                ids = head + (tail + head).join(_id_indexes(inside)) + tail
                column.block(ids, len(ids) // len(inside), len(inside))

    @contextmanager
    def _naming(self, part: EntryRows) -> Iterator[None]:
        """Add the entry's id to an error."""
        try:
            yield
        except InvalidMessage as error:
            text = f"Entry {part.ledger_id}:{part.entry_id} cannot be read: {error.message}"
            raise InvalidMessage(text, topic=self._topic) from error

    def _add_scanned(self, part: EntryRows) -> bool:
        """Add a batch with the compiled codec; return False when that is missing or the batch is not ordinary."""
        found = _impl.scan_batch(part.body, part.first, part.last, part.skip, part.parsed.metadata.sequence_id)
        if found is None:
            return False
        self._add_found(found)
        return True

    def _add_found(self, found: Singles) -> None:
        """Add messages that the compiled codec has scanned."""
        columns = self._columns
        if "value" in columns:
            column = columns["value"]
            column.packed(found, found.value_bytes, *found.values(column.size))
        if "__sequenceId" in columns:
            columns["__sequenceId"].packed(found.sequence_ids())
        for name, there in (
            ("__key", found.has_keys),
            ("__eventTime", found.has_event_times),
            ("__messageProperties", found.has_properties),
        ):
            if name in columns and not there:
                columns[name].nothing(found.count)
            elif name in columns:
                _ADD_SCANNED[name](columns[name], found)

    def _add_one_size(self, part: EntryRows, picked: Sequence[int]) -> bool:
        """Add a batch of messages of one size, whose metadata are plain or of one layout; return False otherwise."""
        sizes = same_size(part.body, part.last)
        if sizes is None:
            return False
        size, length = sizes
        if not _plain_heads(part.body, part.last, *sizes):
            numpy = numpy_or_none()
            if numpy is None or not self._add_uniform(_heads(numpy, part.body, picked, size, length)):
                return False
            if "value" in self._columns:
                self._columns["value"].block(_strided(part.body, picked, size, length), length, len(picked))
            return True
        if "value" in self._columns:
            self._columns["value"].block(_strided(part.body, picked, size, length), length, len(picked))
        if self._wants_singles:
            stride = 4 + size + length
            starts = [4 + index * stride for index in picked]
            self._add_plain([part.body[start : start + size] for start in starts], part, picked)
        return True

    def _add_uniform(self, table: Any) -> bool:
        """Add the columns of metadata of one layout, the rows of a table of bytes; return False if they have none."""
        layout = Layout.of(table[0].tobytes()) if len(table) >= _WORTH_A_LAYOUT else None
        if layout is None or not layout.fits(table):
            return False
        numpy, columns, count = numpy_or_none(), self._columns, len(table)
        if "__sequenceId" in columns:
            columns["__sequenceId"].packed(numbers(numpy, table, layout.numbers[SEQUENCE_ID]).tobytes())
        if "__eventTime" in columns:
            if EVENT_TIME in layout.numbers:
                _add_times(columns["__eventTime"], numpy, numbers(numpy, table, layout.numbers[EVENT_TIME]))
            else:
                columns["__eventTime"].nothing(count)
        if "__key" in columns:
            if layout.key is None:
                columns["__key"].nothing(count)
            else:
                keys, _ = texts(numpy, table, [layout.key], 0)
                columns["__key"].block(keys, len(layout.key), count)
        if "__messageProperties" in columns:
            _add_properties_of(columns["__messageProperties"], numpy, table, layout)
        return True

    def _add_mixed(self, part: EntryRows, picked: Sequence[int]) -> None:
        body = part.body
        places = _impl.split_batch(body, part.last)
        places = places[part.first :] if part.skip is None else [places[index] for index in picked]
        metas = [body[start:payload] for start, payload, _ in places]
        values = [body[payload:stop] for _, payload, stop in places]
        if _PLAIN(metas[0] + b"\0") and _PLAIN(b"\0".join(metas) + b"\0"):
            if "value" in self._columns:
                self._columns["value"].extend(values)
            self._add_plain(metas, part, picked)
        elif (table := _table(metas)) is not None and self._add_uniform(table):
            if "value" in self._columns:
                self._columns["value"].extend(values)
        elif self._wants_singles:
            self._add_singles(_parsed(metas), values, repeat(part.parsed.metadata), picked)
        else:
            nulls = [_NULL_VALUE in meta and parse_single(meta).null_value for meta in metas]
            _add_values(self._columns["value"], values, nulls)

    def _add_plain(self, metas: list[bytes], part: EntryRows, picked: Sequence[int]) -> None:
        """Add the columns of messages that have nothing but their sequence ids."""
        count = len(metas)
        for name in ("__key", "__eventTime", "__messageProperties"):
            if name in self._columns:
                self._columns[name].nothing(count)
        if "__sequenceId" in self._columns:
            first = parse_single(metas[0]).sequence_id
            # Nearly always they count up: encoding that and comparing is faster than parsing them.
            expected = b"" if first >> 62 else sequence_fields(first, count)
            width = len(expected) // count
            if width and b"".join([meta[-width:] for meta in metas]) == expected:
                self._columns["__sequenceId"].extend(range(first, first + count))
            else:
                self._add_sequence_ids(_parsed(metas), repeat(part.parsed.metadata), picked)

    def _add_singles(
        self,
        singles: Sequence[_Fields],
        values: Sequence[bytes],
        entries: Iterable[MessageMetadata],
        picked: Sequence[int],
    ) -> None:
        """Add messages with metadata of their own; without a batch these are the entry's."""
        columns = self._columns
        if "value" in columns:
            _add_values(columns["value"], values, [single.null_value for single in singles])
        if "__key" in columns:
            columns["__key"].extend_optional(_keys(singles))
        if "__eventTime" in columns:
            times = [single.event_time for single in singles]
            columns["__eventTime"].extend_optional([_micros(time) if time else None for time in times])
        if "__messageProperties" in columns:
            columns["__messageProperties"].extend([single.properties for single in singles])
        if "__sequenceId" in columns:
            self._add_sequence_ids(singles, entries, picked)

    def _add_sequence_ids(
        self, singles: Sequence[_Fields], entries: Iterable[MessageMetadata], picked: Sequence[int]
    ) -> None:
        # Old clients number only the batch: its id is the first message's.
        ids = [
            single.sequence_id if single.HasField("sequence_id") else entry.sequence_id + index
            for single, entry, index in zip(singles, entries, picked, strict=False)
        ]
        self._columns["__sequenceId"].extend(list(map(_signed, ids)))

    def finish(self, pa: Any, name: str, kind: Any) -> Any:
        """Return a column as an Arrow array."""
        column = self._columns[name]
        if name == "__topic":
            column.repeat(self._topic.encode(), self._rows)
        elif name == "__partition":
            column.repeat(self._partition, self._rows)
        return column.finish(pa, kind)


_NEW: dict[str, Callable[[], Any]] = {
    "value": TextColumn,
    "__key": TextColumn,
    "__topic": TextColumn,
    "__messageId": TextColumn,
    "__publishTime": partial(NumberColumn, "q"),
    "__eventTime": partial(NumberColumn, "q"),
    "__messageProperties": MapColumn,
    "__partition": partial(NumberColumn, "i"),
    "__sequenceId": partial(NumberColumn, "q"),
    "__producerName": TextColumn,
    "__ledgerId": partial(NumberColumn, "q"),
    "__entryId": partial(NumberColumn, "q"),
    "__batchIndex": partial(NumberColumn, "i"),
    "__schemaVersion": partial(NumberColumn, "q"),
}


def _add_keys(column: TextColumn, found: Singles) -> None:
    keys, ends, missing = found.keys(column.size)
    column.packed(keys, len(keys), ends, missing)


def _add_event_times(column: NumberColumn, found: Singles) -> None:
    column.packed(*found.event_times())


def _add_properties(column: MapColumn, found: Singles) -> None:
    ends, names, values = found.properties(column.keys.rows, column.keys.size, column.values.size)
    column.keys.packed(names[0], len(names[0]), names[1])
    column.values.packed(values[0], len(values[0]), values[1])
    column.ends(ends)


_ADD_SCANNED: dict[str, Callable[[Any, Singles], None]] = {
    "__key": _add_keys,
    "__eventTime": _add_event_times,
    "__messageProperties": _add_properties,
}

_OF_ENTRY: dict[str, Callable[[EntryRows], bytes | int | None]] = {
    "__publishTime": lambda part: _micros(part.parsed.publish_time),
    "__producerName": lambda part: utf8(part.parsed.metadata.producer_name),
    "__ledgerId": lambda part: _signed(part.ledger_id),
    "__entryId": lambda part: _signed(part.entry_id),
    "__schemaVersion": lambda part: _version(part.parsed.metadata.schema_version),
}
"""Columns all messages of an entry share."""


def _is_small(part: EntryRows) -> bool:
    return len(part.body) <= _SMALL_BODY


def _signed(value: int) -> int:
    """Return the number an unsigned field of 64 bits holds as Arrow's signed one."""
    return (value + (1 << 63) & _U64) - (1 << 63)


def _version(version: bytes) -> int | None:
    """Return the number of a schema version, None without a schema, or for another registry's form of versions."""
    return int.from_bytes(version, "big", signed=True) if len(version) == 8 else None


def _micros(millis: int) -> int | None:
    return millis * 1000 if millis <= _MAX_MILLIS else None


def _parsed(metas: Iterable[bytes]) -> list[SingleMessageMetadata]:
    try:
        return [SingleMessageMetadata.FromString(meta) for meta in metas]
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidMessage("A message's metadata in a batch cannot be parsed") from error


def _keys(singles: Sequence[_Fields]) -> list[bytes | None]:
    return [
        _key(single) if (key := single.partition_key) == "" or single.partition_key_b64_encoded else utf8(key)
        for single in singles
    ]


def _key(single: _Fields) -> bytes | None:
    """Return the key if it is not plain text: missing, empty, or bytes encoded as base64."""
    if not single.HasField("partition_key"):
        return None
    try:
        return b64decode(single.partition_key) if single.partition_key_b64_encoded else utf8(single.partition_key)
    except ValueError as error:
        raise InvalidMessage("A key of bytes is no base64 text") from error


def _id_head(part: EntryRows, partition: int) -> bytes:
    """Return a serialised message id up to its batch index."""
    head = b"\x08" + varint(part.ledger_id & _U64) + b"\x10" + varint(part.entry_id & _U64)
    return head + b"\x18" + varint(partition) if partition >= 0 else head


def _id_tail(part: EntryRows) -> bytes:
    """Return a serialised message id from behind its batch index on."""
    tail = b"\x30" + varint(part.parsed.num_messages if part.parsed.is_batch else 0)
    if part.first_chunk is None:
        return tail
    chunk = part.first_chunk.serialize()
    return tail + b"\x3a" + varint(len(chunk)) + chunk


def _id_indexes(picked: range) -> Sequence[bytes]:
    common = _common_indexes()
    if picked.stop <= len(common):
        return common[picked.start : picked.stop]
    return [b"\x20" + varint(index) for index in picked]


@cache
def _common_indexes() -> tuple[bytes, ...]:
    return tuple(b"\x20" + varint(index) for index in range(4096))


def _add_values(column: TextColumn, values: Sequence[bytes], nulls: Sequence[bool]) -> None:
    if True in nulls:
        column.extend_optional([None if null else value for value, null in zip(values, nulls, strict=True)])
    else:
        column.extend(values)


def _plain_heads(body: bytes, count: int, size: int, length: int) -> bool:
    """Return True if metadata that all begin with the same payload size have only a sequence id behind it."""
    stride = 4 + size + length
    first = 6 if body[5] < 128 else 7
    columns = [body[start : start + (count - 1) * stride + 1 : stride] for start in range(first, 4 + size)]
    if len(columns) < 2:
        return not columns
    tags, *more, last = columns
    return tags == b"\x40" * count and last.isascii() and not any(column.translate(None, _HIGH) for column in more)


def _heads(numpy: Any, body: bytes, picked: Sequence[int], size: int, length: int) -> Any:
    """Return the metadata of messages of one size as the rows of a table of bytes."""
    stride, count = 4 + size + length, picked[-1] + 1
    table = numpy.frombuffer(body, numpy.uint8, count * stride).reshape(count, stride)[:, 4 : 4 + size]
    return table[picked.start : picked.stop] if isinstance(picked, range) else table[picked]


def _table(metas: list[bytes]) -> Any:
    """Return metadata as the rows of a table of bytes; None if they differ in size, or without numpy."""
    size, numpy = len(metas[0]), numpy_or_none()
    if numpy is None or len(metas) < _WORTH_A_LAYOUT or any(len(meta) != size for meta in metas):
        return None
    return numpy.frombuffer(b"".join(metas), numpy.uint8).reshape(len(metas), size)


def _add_times(column: NumberColumn, numpy: Any, times: Any) -> None:
    """Add times in milliseconds, as microseconds."""
    missing = (times == 0) | (times > _MAX_MILLIS)
    nulls = numpy.flatnonzero(missing).tolist() if missing.any() else ()
    column.packed((numpy.where(missing, 0, times) * 1000).tobytes(), nulls)


def _add_properties_of(column: MapColumn, numpy: Any, table: Any, layout: Layout) -> None:
    count, pairs = len(table), len(layout.properties)
    if not pairs:
        column.nothing(count)
        return
    names = [name for name, _ in layout.properties]
    row = numpy.frombuffer(b"".join(names), numpy.uint8)
    starts = [sum(map(len, names[:index])) for index in range(pairs)]
    places = [range(start, start + len(name)) for start, name in zip(starts, names, strict=True)]
    keys, key_ends = texts(numpy, numpy.broadcast_to(row, (count, len(row))), places, column.keys.size)
    values, value_ends = texts(numpy, table, [place for _, place in layout.properties], column.values.size)
    ends = column.keys.rows + pairs * numpy.arange(1, count + 1, dtype=numpy.int64)
    column.keys.packed(keys, len(keys), key_ends)
    column.values.packed(values, len(values), value_ends)
    column.ends(ends.astype(numpy.int32).tobytes())


def _strided(body: bytes, picked: Sequence[int], size: int, length: int) -> bytes:
    """Return the payloads of messages of one size, joined."""
    stride = 4 + size + length
    numpy = numpy_or_none()
    if numpy is None or not length:
        starts = [4 + size + index * stride for index in picked]
        return b"".join([body[start : start + length] for start in starts])
    count = picked[-1] + 1
    table = numpy.frombuffer(body, numpy.uint8, count * stride).reshape(count, stride)[:, 4 + size :]
    chosen = table[picked.start : picked.stop] if isinstance(picked, range) else table[picked]
    return bytes(chosen.tobytes())
