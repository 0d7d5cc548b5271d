"""The two forms a consumed batch is written in: JSONL, message by message, and Parquet, column by column.

Rules: a form takes from the flow what the batch has room for, and writes it to the output, which is made durable by
others. Parquet holds the client's columns as they come; nothing is decoded, and no object is made for each message.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from pulsar_native.jobs import validation

if TYPE_CHECKING:
    import pyarrow

    from pulsar_native.jobs.batch import Batch
    from pulsar_native.jobs.output import AtomicFile
    from pulsar_native.jobs.receiver import BatchReceiver

FORMATS = ("jsonl", "parquet")
# A row group is written when it has so many rows, or bytes in memory.
_GROUP_ROWS = 100_000
_GROUP_BYTES = 64 * 1024 * 1024


def format_of(path: str | None, chosen: str | None) -> str:
    """Return the format chosen, or the one a path's ending tells."""
    if chosen is not None:
        return validation.choice("format", chosen, FORMATS)
    return "parquet" if path is not None and path.lower().endswith(".parquet") else "jsonl"


class BatchWriter(Protocol):
    """How a batch is written."""

    def take(self, flow: BatchReceiver, batch: Batch, millis: float) -> bool:
        """Take what comes within a time; False when nothing did."""

    def finish(self) -> None:
        """Write what is left; the output is complete then."""

    def discard(self) -> None:
        """Let go of the output, complete or not, before it is discarded itself."""


class JsonLinesWriter:
    """A line of JSON for each message."""

    def __init__(self, output: AtomicFile, decoder: str) -> None:
        self._output = output
        self._decoder = decoder

    def take(self, flow: BatchReceiver, batch: Batch, millis: float) -> bool:
        """Take one message; False when none came."""
        from pulsar_native.jobs.batch import record_of
        from pulsar_native.jobs.output import json_line

        message = flow.next(millis)
        if message is None:
            return False
        record = record_of(message, self._decoder)
        line = json_line(record)
        if batch.takes(len(message), len(line)):
            self._output.write(line)
            batch.add(message, record, len(line))
        return True

    def finish(self) -> None:
        """Every line is written already."""

    def discard(self) -> None:
        """Nothing is held."""


class ParquetWriter:
    """A Parquet file with a row for each message."""

    def __init__(self, output: AtomicFile) -> None:
        self._output = output
        self._writer: Any = None
        self._waiting: list[pyarrow.RecordBatch] = []
        self._rows = self._bytes = 0

    def take(self, flow: BatchReceiver, batch: Batch, millis: float) -> bool:
        """Take some rows; False when none came."""
        parts = flow.next_rows(millis, *batch.room())
        for entries, rows in parts:
            size = _payload_bytes(rows)
            if not batch.takes(size, 0):
                break
            batch.add_rows(entries, size)
            self._waiting.append(rows)
            self._rows += rows.num_rows
            self._bytes += rows.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._write()
        return bool(parts)

    def _write(self) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        from pulsar_native import arrow_schema

        schema = arrow_schema()
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._output.file, schema)
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, schema), row_group_size=self._rows)
        self._waiting, self._rows, self._bytes = [], 0, 0

    def finish(self) -> None:
        """Write the last rows, and what makes the file complete."""
        self._write()
        self._writer.close()

    def discard(self) -> None:
        """End the writer, which would write to the closed file when it is collected."""
        if self._writer is not None:
            # Of an output that is not wanted any more.
            with contextlib.suppress(Exception):
                self._writer.close()


def _payload_bytes(rows: pyarrow.RecordBatch) -> int:
    from pyarrow import compute

    return compute.sum(compute.binary_length(rows["value"])).as_py() or 0
