"""Batch writer: checks columns in the driver, publishes in the tasks, and logs the published rows in the driver.

The object is pickled into every task with checked options, which have no secret. Rules: rows are appended to a topic.
Rows published by a task stay whatever the result of the job, unless the broker drops them as duplicates of an earlier
attempt or their transaction was aborted.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage

from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar.arrow_types import arrow_schema
from pyspark_pulsar.publisher import Identity, Published, Publisher
from pyspark_pulsar.task_input import TaskInput
from pyspark_pulsar.write_columns import WriteColumns
from pyspark_pulsar.write_options import DEDUPLICATED, TRANSACTIONAL, WriteOptions

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSourceArrowWriter

    _HAS_ARROW = True
except ImportError:  # Spark 4.0
    _HAS_ARROW = False
    DataSourceArrowWriter = DataSourceWriter  # type: ignore[assignment, misc]

_log = logging.getLogger("pyspark_pulsar")
_ROWS = 10_000


@dataclass(slots=True)
class PublishedRows(WriterCommitMessage):
    """Rows published by one task, by topic: number, dropped duplicates, first and last id."""

    partition: int
    topics: dict[str, Published]


class PulsarBatchWriter(DataSourceArrowWriter):
    """Writer of the rows of a DataFrame to topics."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = check_columns(options, schema)
        # One id for all attempts of all tasks of this write, and for a repeated job if the user gives it.
        self._job = options.producer_name or f"spark-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish the rows of a task and return after their receipts. Blocks; called in a task.

        Raises `WriteFailed` naming topic and row, and errors of the connection.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        identity = None
        if self._options.delivery_guarantee == DEDUPLICATED:
            identity = Identity(self._job, partition, self._options.batch_id or 0)
        batches = iterator if _HAS_ARROW else as_batches(iterator, self._schema)
        return publish(self._options, self._columns, identity, partition, batches)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the published rows. Called in the driver after all tasks have succeeded."""
        _log.info("Wrote %s", summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the rows published before a task failed, which stay. Called in the driver."""
        _log.warning("The write has failed. What finished tasks have published stays: %s", summary(messages))


def check_columns(options: WriteOptions, schema: StructType) -> WriteColumns:
    """Return the columns of a message's parts; raises `InvalidConfiguration` unless a row has a value and one topic."""
    columns = WriteColumns.of(schema, options.value_format)
    if columns.has_source_topic and options.topic is not None:
        raise InvalidConfiguration(
            f"The rows name the topic they were read from in column {columns.topic}, and option topic names another: "
            f"drop the column {columns.topic}, or leave the option topic out"
        )
    if columns.topic is None and options.topic is None:
        raise InvalidConfiguration("Name the topic with option topic, or add a column topic (STRING) to the DataFrame")
    return columns


def publish(
    options: WriteOptions,
    columns: WriteColumns,
    identity: Identity | None,
    partition: int,
    batches: Iterable[pyarrow.RecordBatch],
) -> PublishedRows:
    """Publish the batches of a task and return their rows. Blocks."""
    from pyspark import TaskContext

    is_checked = options.delivery_guarantee == TRANSACTIONAL and TaskContext.get() is not None
    rows = TaskInput() if is_checked else None
    with Publisher(options, columns, identity) as publisher:
        for batch in batches:
            publisher.publish(batch)
        if rows is not None:
            # What the other guarantees publish stays anyway.
            rows.check_complete()
        publisher.finish()
        return PublishedRows(partition, publisher.published)


def as_batches(rows: Iterable[Any], schema: StructType) -> Iterator[pyarrow.RecordBatch]:
    """Return rows as record batches of the schema, for Spark versions that pass rows only."""
    import pyarrow

    arrow = arrow_schema(schema)
    waiting: list[dict[str, Any]] = []
    for row in rows:
        waiting.append(row.asDict(recursive=True))
        if len(waiting) >= _ROWS:
            yield pyarrow.RecordBatch.from_pylist(waiting, schema=arrow)
            waiting = []
    if waiting:
        yield pyarrow.RecordBatch.from_pylist(waiting, schema=arrow)


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Return a text of the rows that tasks have published, by topic."""
    found: list[str] = []
    done = [message for message in messages if isinstance(message, PublishedRows)]
    for topic in dict.fromkeys(topic for message in done for topic in message.topics):
        parts = [message.topics[topic] for message in done if topic in message.topics]
        ids = [(part.first, part.last) for part in parts if part.first is not None]
        rows, dropped = sum(part.rows for part in parts), sum(part.duplicates for part in parts)
        again = f" ({dropped} were there before)" if dropped else ""
        found.append(f"{rows} rows to {topic}{again}, ids " + ", ".join(f"{first} to {last}" for first, last in ids))
    return "; ".join(found) or "no rows"
