"""Batch reader: plans splits in the planner's process and reads them in the tasks as Arrow record batches.

The object is pickled into every task: it holds checked options, without secrets. Rules: readers are created and closed
inside `partitions` and `read`, while the client belongs to the process (`clients`). No Python object per row. A read
that cannot be complete fails. Only `PulsarPushdownReader` has `pushFilters`, since Spark refuses a reader with it
unless a setting is on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pulsar_native.diagnostics import codec
from pulsar_native.exceptions import CryptoError, TopicNotFound
from pyspark_pulsar.broker import Broker, plan
from pyspark_pulsar.encryption import READ_ACTION, READ_KEYS
from pyspark_pulsar.offsets import Range, check_retained
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.pushdown import Pushed, narrow, push
from pyspark_pulsar.splitting import joined, split_ranges

if TYPE_CHECKING:
    import pyarrow

    from pulsar_native import Reader
    from pulsar_native.schema import SchemaInfo
    from pyspark_pulsar.value_schema import ValueSchema


_log = logging.getLogger("pyspark_pulsar")


class Split(InputPartition):
    """Split: the messages that a task reads, of one topic partition or of several small ones; no range is empty.

    Pickled into the plan: positions and names, no options and no secret. `starting_time` is that of a stream's
    checkpoint, which stands for that of the options; a batch read has those alone.
    """

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(ranges[0].topic)
        self.ranges = tuple(ranges)
        self.starting_time: int | None = None

    def parts(self) -> list[Split]:
        """Return a split for each range."""
        return [Split([item]) for item in self.ranges]

    def __repr__(self) -> str:
        return f"Split({', '.join(f'{item.topic} [{item.start}, {item.end})' for item in self.ranges)})"


def make_splits(ranges: Sequence[Range], *, joins: bool = True, slots: int | None = None) -> list[Split]:
    """Return the splits of the ranges, in the same order; `joins` lets small ranges share a split.

    `slots` is how many tasks run at a time, None if that is not known. An empty range has no split, since a task costs
    about 30 ms even without rows.
    """
    if joins:
        return [Split(each) for each in joined(ranges, slots)]
    return [Split([item]) for item in ranges if not item.is_empty]


class PulsarBatchReader(DataSourceReader):
    """Reader of frozen ranges of topic partitions."""

    def __init__(self, options: ReadOptions, values: ValueSchema | None = None) -> None:
        self._options = options
        self._values = values
        self._pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        """Return one split per topic partition with messages in the range, more or fewer by `splitting`.

        Blocks; called by the planner.
        """
        return self.splits()

    def splits(self, slots: int | None = None) -> list[Split]:
        """Return the splits for a number of tasks that run at a time, None if that is not known. Blocks."""
        log_codec()
        check_keys(self._options)
        if self._pushed.is_empty:
            ranges = plan(self._options)
        else:
            slack, pushed = self._options.time_slack_ms, self._pushed
            ranges = plan(self._options, pushed.wants, lambda item, probe: narrow(item, pushed, slack, probe))
        # Limits that the user gives decide how large a task is.
        pieces = split_ranges(self._options, ranges)
        return make_splits(pieces, joins=not self._options.has_split_limits, slots=slots)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Return the record batches of a split. Blocks while iterated; called in a task.

        Raises `DataLoss` if messages of the split were removed, or the topic deleted, before or during reading,
        `Timeout` if no message arrives, `InvalidMessage` for one that cannot be decoded, `CryptoError` for one that
        cannot be decrypted.
        """
        return read_split(self._options, partition, self._values, self._pushed)


class PulsarPushdownReader(PulsarBatchReader):
    """Batch reader that applies filters of the query itself."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Take filters on publish time, topic, partition, message id and key; return those that Spark must apply."""
        self._pushed, rest = push(filters)
        return rest


def read_split(
    options: ReadOptions, partition: InputPartition, values: ValueSchema | None = None, pushed: Pushed | None = None
) -> Iterator[pyarrow.RecordBatch]:
    """Return the record batches of a split, none for Spark's placeholder for no partitions; see `read` for errors.

    `values` is the decoding of the values, None for raw ones; `pushed` are filters to apply.
    """
    if isinstance(partition, Split):
        for item in partition.ranges:
            yield from _read_range(options, item, values, pushed or Pushed())


def _read_range(
    options: ReadOptions, item: Range, values: ValueSchema | None, pushed: Pushed
) -> Iterator[pyarrow.RecordBatch]:
    """Return the record batches of one range of a split; see `read_split`."""
    if values is None:
        return _batches(options, item, options.columns, pushed)
    return _decoded(options, item, values, pushed)


def _decoded(options: ReadOptions, item: Range, values: ValueSchema, pushed: Pushed) -> Iterator[pyarrow.RecordBatch]:
    from pyspark_pulsar.value_decoder import ValueDecoder, decoded

    def find(version: int) -> SchemaInfo:
        with Broker(options) as broker:
            found = broker.schema(item.topic, version)
        if found is None:
            raise TopicNotFound(
                f"Version {version} of the schema of {item.topic} is gone, and messages were written by it"
            )
        return found

    decoder = ValueDecoder(item.topic, values, find)
    yield from decoded(_batches(options, item, decoder.source_columns, pushed), decoder)


def _batches(
    options: ReadOptions, item: Range, columns: Sequence[str], pushed: Pushed
) -> Iterator[pyarrow.RecordBatch]:
    log_codec()
    check_keys(options)
    with Broker(options) as broker:
        if not broker.still_has(item.topic):
            return
        with closing(broker.reader(item.topic, item.start.message_id(item.partition))) as reader:
            _check(options, broker, item, reader)
            try:
                for batch in reader.arrow_batches(
                    end=item.end.message_id(item.partition),
                    columns=columns,
                    timeout_millis=options.poll_timeout_ms,
                    publish_time=pushed.within(options),
                ):
                    kept = pushed.of_keys(batch)
                    if kept.num_rows:
                        yield kept
            except CryptoError as error:
                raise CryptoError(
                    f"Messages of {item.topic} are encrypted: {_keys_to_give(options)} in option {READ_KEYS}, or set "
                    f"{READ_ACTION}=DISCARD to leave out those that cannot be decrypted ({error.message})"
                ) from error
            # Messages may have been trimmed during the read, which the broker does not report.
            _check(options, broker, item, reader)


def _keys_to_give(options: ReadOptions) -> str:
    return "the private key is not among those" if options.private_keys is not None else "give the private key"


def check_keys(options: ReadOptions) -> None:
    """Raise `CryptoError` for a private key that cannot be found. Blocks for a file."""
    if options.private_keys is not None:
        options.private_keys.check()


@cache
def log_codec() -> None:
    """Log the codec of this process at INFO, once."""
    _log.info("reading with the %s codec", codec())


def _check(options: ReadOptions, broker: Broker, item: Range, reader: Reader) -> None:
    """Raise `DataLoss` if messages of the range are gone."""
    # Whole ledgers are trimmed, never the one that is written: where the range begins in that, all of it is there.
    if options.finds_loss and reader.get_last_message_id().ledger_id() != item.start.ledger:
        with broker.probe(item.topic) as probe:
            check_retained(item.topic, item.start, probe.first())
