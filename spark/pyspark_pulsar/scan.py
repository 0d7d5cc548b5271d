"""Scan of a load: splits planned in the driver's process, and rows counted by the tasks that read them.

`spark.read.format("pulsar")` starts three Python processes in the driver (search for data sources, schema, plan), each
with imports and connections of its own: more than a small load reads. Rules: the same options, reader and splits as
that read has, so that the rows are the same. The rows are a frame of Spark's, read by `mapInArrow`'s operator, or are
written by the tasks themselves (`parquet_writer`). The counts of a task reach the driver once, with its success. Splits
are pickled one by one, since every task of a frame gets all of them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.accumulators import AccumulatorParam

from pyspark_pulsar.manifest import Delivered
from pyspark_pulsar.positions import Position
from pyspark_pulsar.tables import IDENTITY

if TYPE_CHECKING:
    import pyarrow
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from pyspark_pulsar.batch_reader import PulsarBatchReader


class Counted(NamedTuple):
    """Rows read by one task of one range, and the task's codec."""

    topic: str
    delivered: Delivered
    codec: str


Counts = dict[tuple[int, int], Counted]
"""Counts by number of the split and of its range."""


class _Counts(AccumulatorParam[Counts]):
    """Accumulator of the counts."""

    def zero(self, value: Counts) -> Counts:
        return {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:
        value1.update(value2)
        return value1


class Scan:
    """Planned scan: its splits, pickled, and what the tasks have counted when a job over them has ended."""

    def __init__(self, spark: SparkSession, reader: PulsarBatchReader, columns: StructType) -> None:
        self.columns = columns
        self.reader = reader
        self.splits = [pickle.dumps(split) for split in reader.splits(spark.sparkContext.defaultParallelism)]
        self.counts = spark.sparkContext.accumulator({}, _Counts())
        self._spark = spark

    @cached_property
    def frame(self) -> DataFrame:
        """Rows as a frame; each action on it reads them, and counts them."""
        # One row, the number of its split, in each partition.
        numbers = self._spark.range(0, len(self.splits), 1, max(1, len(self.splits)))
        return _map_in_arrow(numbers, _reading(self.reader, self.splits, self.counts), self.columns)

    def delivered(self) -> dict[str, Delivered]:
        """Return number, first and last row by topic partition."""
        found: dict[str, Delivered] = {}
        for each in self.counts.value.values():
            known, own = found.get(each.topic), each.delivered
            found[each.topic] = (
                own
                if known is None
                else Delivered(known.rows + own.rows, min(known.first, own.first), max(known.last, own.last))
            )
        return found

    def codec(self) -> str | None:
        """Return the codec of the tasks, "python" if any had that, None if there was no task with rows."""
        found = {each.codec for each in self.counts.value.values()}
        return max(found, default=None)


def columns_of(options: Mapping[str, str]) -> StructType:
    """Return the columns of a read with these options. Blocks if values are decoded by the topic's schema."""
    from pyspark_pulsar.source import DefaultSource

    return DefaultSource(dict(options)).schema()


def scan(spark: SparkSession, options: Mapping[str, str], columns: StructType) -> Scan:
    """Return the scan of a batch read; the columns must have those that identify a message. Plans it, which blocks.

    Raises what `spark.read.format("pulsar")` and its planner raise.
    """
    from pyspark_pulsar.source import DefaultSource

    return Scan(spark, DefaultSource(dict(options)).reader(columns), columns)


_Map = Callable[["Iterator[pyarrow.RecordBatch]"], "Iterator[pyarrow.RecordBatch]"]


def _map_in_arrow(frame: DataFrame, function: _Map, columns: StructType) -> DataFrame:
    """Return the result of `frame.mapInArrow`, which would import pandas, although nothing here needs it."""
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf = UserDefinedFunction(function, columns, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    given: Any = udf(*(frame[name] for name in frame.columns))
    plan: Any = frame
    return DataFrame(plan._jdf.mapInArrow(given._jc, False, None), frame.sparkSession)


def _reading(reader: PulsarBatchReader, splits: list[bytes], counts: Accumulator[Counts]) -> _Map:
    def read(numbers: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                found: Counts = {}
                yield from counted_batches(reader, number, splits[number], found)
                counts.add(found)

    return read


def counted_batches(
    reader: PulsarBatchReader, number: int, split: bytes, found: Counts
) -> Iterator[pyarrow.RecordBatch]:
    """Return the record batches of a pickled split, and add the counts of its ranges to `found`. Called in a task."""
    for index, part in enumerate(pickle.loads(split).parts()):
        tally = _Tally()
        for rows in reader.read(part):
            tally.add(rows)
            yield rows
        found.update(tally.counted(number, index))


class _Tally:
    """Number, first and last row of one range, whose rows are in the order of the topic."""

    def __init__(self) -> None:
        self._rows = 0
        self._topic = ""
        self._first: Position | None = None
        self._last: Any = None

    def add(self, batch: pyarrow.RecordBatch) -> None:
        """Count a record batch."""
        if not batch.num_rows:
            return
        if self._first is None:
            self._topic, self._first = _place(batch, 0)
        self._rows += batch.num_rows
        self._last = batch.slice(batch.num_rows - 1)

    def counted(self, number: int, index: int) -> Counts:
        """Return the counts for the accumulator."""
        from pulsar_native.diagnostics import codec

        if self._first is None:
            return {}
        delivered = Delivered(self._rows, self._first, _place(self._last, 0)[1])
        return {(number, index): Counted(self._topic, delivered, codec())}


def _place(batch: pyarrow.RecordBatch, row: int) -> tuple[str, Position]:
    topic, *place = (batch.column(name)[row].as_py() for name in IDENTITY)
    return topic, Position(*place)
