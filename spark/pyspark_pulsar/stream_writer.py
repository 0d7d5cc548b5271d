"""Streaming writer: publishes each micro-batch, with deduplication of repeated ones.

Spark repeats a micro-batch that it could not record as finished, with the same batch id. Deduplicated, a row's producer
name comes from the query and its Spark partition, and its sequence id from the batch id and the row's number: ids
increase from batch to batch whatever the number of partitions, and a repeated batch has the same ids. The rows of a
Spark partition and their order must then be the same as before: that holds for a plan repeated from the same offsets
without a shuffle, or with one that is sorted within partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

from pulsar_native.exceptions import OperationNotSupported
from pyspark_pulsar.publisher import Identity
from pyspark_pulsar.write_options import DEDUPLICATED, WriteOptions
from pyspark_pulsar.writer import as_batches, check_columns, publish, summary

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    _HAS_ARROW = True
except ImportError:  # Spark 4.0
    _HAS_ARROW = False
    DataSourceStreamArrowWriter = DataSourceStreamWriter  # type: ignore[assignment, misc]

_log = logging.getLogger("pyspark_pulsar")
# Local properties of a streaming query in its tasks.
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


class PulsarStreamWriter(DataSourceStreamArrowWriter):
    """Writer of the rows of each micro-batch to topics."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = check_columns(options, schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish the rows of a task and return after their receipts. Blocks; called in a task.

        Raises `WriteFailed` naming topic and row, and errors of the connection.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        identity = None
        if self._options.delivery_guarantee == DEDUPLICATED:
            identity = identity_of(context, self._options.producer_name)
        batches = iterator if _HAS_ARROW else as_batches(iterator, self._schema)
        return publish(self._options, self._columns, identity, partition, batches)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the published rows. Called in the driver after all tasks of the batch have succeeded."""
        _log.info("Batch %d: wrote %s", batchId, summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the rows published before a task failed, which stay. Called in the driver."""
        _log.warning("Batch %d has failed. What finished tasks have published stays: %s", batchId, summary(messages))


def identity_of(context: TaskContext | None, producer_name: str | None) -> Identity:
    """Return the writer of this task; raises `OperationNotSupported` if Spark does not pass query and batch."""
    query = context.getLocalProperty(_QUERY_ID) if context is not None else None
    batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
    name = producer_name or (f"spark-{query}" if query else None)
    if context is None or batch is None or name is None:
        raise OperationNotSupported(
            f"deliveryGuarantee={DEDUPLICATED} needs the ids of query and batch, which this version of Spark does not "
            f"tell its tasks: write with foreachBatch, pulsar.producer.producerName and batchId"
        )
    return Identity(name, context.partitionId(), int(batch))
