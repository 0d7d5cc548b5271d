"""The batch reader: plans splits in the planner's process, reads them in the tasks, as Arrow record batches.

The object is pickled into every task: it holds checked options, which have no secret. Rules: clients are made inside
`partitions` and `read`, and closed there, whatever happens; no Python object per row; a read that cannot be whole
fails. `pushFilters` is not overridden, for that would force a Spark setting on every user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_pulsar.broker import Broker, plan
from pyspark_pulsar.offsets import Range, check_retained
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.splits import Split, make_splits

if TYPE_CHECKING:
    import pyarrow


class PulsarBatchReader(DataSourceReader):
    """Read frozen ranges of topic partitions."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return one split per topic partition that holds messages of the range. Blocking; the planner calls it."""
        return make_splits(plan(self._options))

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Return the record batches of a split. Blocking while iterated; called in a task.

        Raises `TopicNotFound` when the topic was deleted after the plan, `DataLoss` when messages of the split are
        gone before or after reading, `Timeout` when the topic stalls.
        """
        if isinstance(partition, Split):
            return self._batches(partition.range)
        return iter(())  # Spark's stand-in for "no partitions"

    def _batches(self, item: Range) -> Iterator[pyarrow.RecordBatch]:
        options = self._options
        with Broker(options) as broker:
            broker.partitions(item.topic)  # a reader of a topic that was deleted meanwhile would create it
            self._check(broker, item)
            reader = broker.reader(item.topic, item.start.message_id(item.partition))
            try:
                yield from reader.arrow_batches(
                    end=item.end.message_id(item.partition),
                    columns=options.columns,
                    timeout_millis=options.poll_timeout_ms,
                    publish_time=(options.starting_time, options.ending_time),
                )
            finally:
                reader.close()
            # Trimming may have overtaken the reader, which the broker does not tell.
            self._check(broker, item)

    def _check(self, broker: Broker, item: Range) -> None:
        if self._options.fail_on_data_loss:
            with broker.probe(item.topic) as probe:
                check_retained(item.topic, item.start, probe.first())
