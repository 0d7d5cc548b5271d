"""Output formats of a batch: JSONL and rows of a sink, by message, and Parquet, by columns.

Rules: a writer receives what the batch has room for and writes it to the output, which its caller makes durable. It
writes chunks, each in the order of topics and ids, and ends each chunk in the batch. Parquet has the client's columns
unchanged; nothing is decoded, and no object is created per message.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pulsar_native.jobs import validation
from pulsar_native.jobs.failures import JobRefused

if TYPE_CHECKING:
    import pyarrow

    from pulsar_native import EntryRange, Message
    from pulsar_native.jobs.batch import Batch
    from pulsar_native.jobs.interfaces import BatchSink
    from pulsar_native.jobs.message_handling import MessageHandler
    from pulsar_native.jobs.output import AtomicFile
    from pulsar_native.jobs.part_files import PartFiles
    from pulsar_native.jobs.receiver import BatchReceiver, Part

FORMATS = ("jsonl", "parquet")
# Number of lines, or bytes, that complete a chunk.
_CHUNK_LINES = 50_000
_CHUNK_BYTES = 16 * 1024 * 1024
# Number of rows, or bytes in memory, that complete a row group.
_GROUP_ROWS = 100_000
_GROUP_BYTES = 64 * 1024 * 1024


def format_of(path: str | None, chosen: str | None) -> str:
    """Return the chosen format, or that of a path's suffix."""
    if chosen is not None:
        return validation.choice("format", chosen, FORMATS)
    # The path may be another task's result that is not rendered yet.
    return "parquet" if isinstance(path, str) and path.lower().endswith(".parquet") else "jsonl"


class BatchWriter(Protocol):
    """Interface of batch writers."""

    def take(self, flow: BatchReceiver, batch: Batch, millis: float) -> bool:
        """Receive for up to a time and write; False if nothing arrived."""

    def finish(self, batch: Batch, check: Callable[[], None]) -> None:
        """Write the rest and complete the output. `check` may end the wait for it."""

    def discard(self) -> None:
        """Release the output, complete or not, before it is discarded."""


class _MessageWriter(ABC):
    """Receiver of messages one by one, for a writer of what the handler returns."""

    def __init__(self, handler: MessageHandler) -> None:
        self._handler = handler

    def take(self, flow: BatchReceiver, batch: Batch, millis: float) -> bool:
        """Receive one message, or results of the handler; False if there were none."""
        busy = self._handler.is_busy
        message = None if self._handler.is_full else flow.next(1 if busy else millis)
        if message is not None:
            self._handler.start(message, batch)
        for done, record, line in self._handler.results(batch, millis if message is None else 0):
            self._add(done, record, line, batch)
        return busy or message is not None

    @abstractmethod
    def _add(self, message: Message, record: dict[str, Any], line: bytes, batch: Batch) -> None:
        """Add a handled message to the batch and to what is to be written."""

    @abstractmethod
    def _write(self, batch: Batch) -> None:
        """Write what was added, and end the chunk if that is wanted."""

    def finish(self, batch: Batch, check: Callable[[], None]) -> None:
        """Wait for running calls of the handler and write the last chunk."""
        # Results of the last round are included.
        while True:
            check()
            for done, record, line in self._handler.results(batch, 200):
                self._add(done, record, line, batch)
            if not self._handler.is_busy:
                break
        self._write(batch)

    def discard(self) -> None:
        """Cancel running calls of the handler."""
        self._handler.close()


class JsonLinesWriter(_MessageWriter):
    """Writer of one JSON line per message."""

    def __init__(self, output: AtomicFile | PartFiles, handler: MessageHandler) -> None:
        super().__init__(handler)
        self._output = output
        self._lines: list[tuple[tuple[str, int, int, int], bytes, dict[str, Any]]] = []
        self._bytes = 0

    def _add(self, message: Message, record: dict[str, Any], line: bytes, batch: Batch) -> None:
        message_id = message.message_id()
        place = (message.topic_name(), message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
        batch.add(message)
        self._lines.append((place, line, record))
        self._bytes += len(line)
        if len(self._lines) >= _CHUNK_LINES or self._bytes >= _CHUNK_BYTES:
            self._write(batch)

    def _write(self, batch: Batch) -> None:
        self._lines.sort(key=lambda each: each[0])
        for _, line, _ in self._lines:
            self._output.write(line)
        batch.end_chunk(record for _, _, record in self._lines)
        self._lines, self._bytes = [], 0


class SinkWriter(_MessageWriter):
    """Writer of rows into a sink, in the order of reception. The batch is one chunk, as it is never written again.

    A message is added to the batch once its row is written; one whose row the sink rejects is a failed message.
    """

    def __init__(self, sink: BatchSink, rows: int, handler: MessageHandler) -> None:
        """Write `rows` rows at once."""
        super().__init__(handler)
        self._sink = sink
        self._size = rows
        self._waiting: list[tuple[Message, Any]] = []

    def _add(self, message: Message, record: dict[str, Any], line: bytes, batch: Batch) -> None:
        try:
            row = self._sink.row(message, record)
        except ValueError as error:
            self._handler.policy.failed(message, error, batch)
            return
        self._waiting.append((message, row))
        if len(self._waiting) >= self._size:
            self._write(batch)

    def _write(self, batch: Batch) -> None:
        waiting, self._waiting = self._waiting, []
        rejected: set[int] = set()

        def reject(index: int, error: Exception) -> None:
            rejected.add(index)
            self._handler.policy.failed(waiting[index][0], error, batch)

        self._sink.write([row for _, row in waiting], reject)
        for index, (message, _) in enumerate(waiting):
            if index not in rejected:
                batch.add(message)


class ParquetWriter:
    """Writer of a Parquet file with one row per message."""

    def __init__(self, output: AtomicFile | PartFiles) -> None:
        """Raises `JobRefused` without pyarrow."""
        from pulsar_native.arrow.package import import_pyarrow

        import_pyarrow("Parquet", JobRefused)
        self._output = output
        self._writer: Any = None
        self._waiting: list[Part] = []
        self._rows = self._bytes = 0

    def take(self, flow: BatchReceiver, batch: Batch, millis: float) -> bool:
        """Receive rows; False if none arrived."""
        parts = flow.next_rows(millis, *batch.room())
        for part in parts:
            for entries, rows in _without_known(part, batch):
                size = _payload_bytes(rows)
                if not batch.takes_rows(size):
                    return True
                batch.add_rows(entries, size, _publish_time(entries, rows))
                self._waiting.append((entries, rows))
                self._rows += rows.num_rows
                self._bytes += rows.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._write(batch)
        return bool(parts)

    def _write(self, batch: Batch) -> None:
        self._waiting.sort(key=lambda part: _first_place(part[0]))
        self.write_rows([rows for _, rows in self._waiting])
        batch.end_chunk()
        self._waiting, self._rows, self._bytes = [], 0, 0

    def write_rows(self, batches: list[pyarrow.RecordBatch]) -> None:
        """Write rows as one row group, or one in each file they are divided into; begins the file first."""
        import pyarrow as pa
        from pyarrow import parquet

        from pulsar_native import arrow_schema

        schema = arrow_schema()
        table = pa.Table.from_batches(batches, schema)
        while True:
            if self._writer is None:
                self._writer = parquet.ParquetWriter(self._output.file, schema)
            piece = table.slice(0, self._output.room)
            if piece.num_rows:
                self._writer.write_table(piece, row_group_size=piece.num_rows)
            table = table.slice(piece.num_rows)
            is_full = self._output.add(piece.num_rows)
            if not table.num_rows:
                return
            if is_full:
                self._roll()

    def _roll(self) -> None:
        self._writer.close()
        self._writer = None
        self._output.roll()

    def finish(self, batch: Batch, check: Callable[[], None]) -> None:
        """Write the last rows and the footer."""
        self._write(batch)
        self.close()

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()

    def discard(self) -> None:
        """Close the writer, which would write to a closed file when garbage-collected."""
        if self._writer is not None:
            # The output is discarded.
            with contextlib.suppress(Exception):
                self._writer.close()


def _without_known(part: Part, batch: Batch) -> list[Part]:
    """Return the rows that no earlier batch has; the others are acknowledged with this batch."""
    from pulsar_native.jobs.receiver import select_indexes, split_entries

    entries, _ = part
    if not batch.cut or not batch.cut.has(entries.topic, entries.ledger_id, entries.entries):
        return [part]
    found = []
    for each, rows in split_entries(part):
        key, time = (each.topic, each.ledger_id, each.first_entry), _publish_time(each, rows)
        held = each.indexes if each.indexes is not None else (1 << max(1, each.batch_size)) - 1
        known = held & batch.cut.known_indexes(key, each.batch_size, time)
        if known:
            batch.add_other_rows(select_indexes((each, rows), known)[0], time)
        if known != held:
            found.append(select_indexes((each, rows), held & ~known) if known else (each, rows))
    return found


def _publish_time(entries: EntryRange, rows: pyarrow.RecordBatch) -> int:
    """Return the publish time of a batch entry in ms."""
    if entries.batch_size <= 1 or not rows.num_rows:
        return 0
    millis: int = round(rows["__publishTime"][0].as_py().timestamp() * 1000)
    return millis


def _first_place(entries: EntryRange) -> tuple[str, int, int, int]:
    first = entries.first_message_id()
    return entries.topic, entries.ledger_id, entries.first_entry, first.batch_index()


def _payload_bytes(rows: pyarrow.RecordBatch) -> int:
    from pyarrow import compute

    return compute.sum(compute.binary_length(rows["value"])).as_py() or 0
