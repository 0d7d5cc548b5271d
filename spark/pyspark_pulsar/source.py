"""The data source `pulsar`.

Spark creates it in planner processes and pickles it with its options into plans and tasks: options are checked before
that, and none may have a secret. Rules: nothing connects here, except to read the topic's schema if values are decoded
by it; imports at the top are those that exist wherever PySpark is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark_pulsar.batch_reader import PulsarBatchReader
    from pyspark_pulsar.options import ReadOptions
    from pyspark_pulsar.value_schema import ValueSchema


class DefaultSource(DataSource):
    """Data source of Apache Pulsar topics, for batch and streaming reads and writes.

    `spark.read.format("pulsar").option("service.url", …).option("topic", …).load()`; likewise `spark.readStream`,
    `df.write.mode("append")…save()` and `df.writeStream…start()`. Option names are the JVM connector's and the Java
    client's (see `options` and `write_options`). Rows are in the order of the topic within a topic partition.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "pulsar"

    def schema(self) -> StructType:
        """Return the columns; raises `InvalidConfiguration` for a wrong option.

        With valueFormat=auto, reads the topic's schema, which blocks; otherwise does no I/O.
        """
        from pyspark_pulsar.schema import columns_type

        # Spark does not pass the kind of read here.
        options = self._read_options(None)
        if options.values is None:
            return columns_type(options.columns)
        from pyspark_pulsar.topic_schema import read_schema

        return read_schema(options).struct()

    def reader(self, schema: StructType) -> PulsarBatchReader:
        """Return the batch reader; raises `InvalidConfiguration` for a wrong option or schema. I/O as for `schema`."""
        from pyspark_pulsar.batch_reader import PulsarBatchReader, PulsarPushdownReader
        from pyspark_pulsar.pushdown import pushes_filters

        options = self._read_options(False)
        # Spark applies the filter pushed last to every use of the same DataFrame or view: only a read that asks for it
        # takes filters.
        takes_filters = options.push_down_predicate and pushes_filters()
        made = PulsarPushdownReader if takes_filters else PulsarBatchReader
        return made(options, _values(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the streaming reader; raises `InvalidConfiguration` for a wrong option or schema.

        I/O as for `schema`.
        """
        from pyspark_pulsar.stream_reader import PulsarStreamReader

        options = self._read_options(True)
        return PulsarStreamReader(options, _values(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer; raises `InvalidConfiguration` for a wrong option or column. Does no I/O."""
        from pyspark_pulsar.write_options import WriteOptions
        from pyspark_pulsar.writer import PulsarBatchWriter

        _refuse_overwrite(overwrite, 'mode("append")')
        return PulsarBatchWriter(WriteOptions.parse(self.options, streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the streaming writer; raises `InvalidConfiguration` for a wrong option or column. Does no I/O."""
        from pyspark_pulsar.stream_writer import PulsarStreamWriter
        from pyspark_pulsar.write_options import WriteOptions

        _refuse_overwrite(overwrite, 'outputMode("append") or outputMode("update")')
        return PulsarStreamWriter(WriteOptions.parse(self.options, streaming=True), schema)

    def _read_options(self, streaming: bool | None) -> ReadOptions:
        from pyspark_pulsar.options import ReadOptions

        return ReadOptions.parse(self.options, streaming=streaming)


def _values(options: ReadOptions, schema: StructType) -> ValueSchema | None:
    """Return the decoding of a read with these columns, None for raw values; raises `InvalidConfiguration`."""
    if options.values is None:
        from pyspark_pulsar.schema import check_schema

        check_schema(schema, options.columns)
        return None
    from pyspark_pulsar.topic_schema import read_schema

    return read_schema(options, schema)


def _refuse_overwrite(overwrite: bool, instead: str) -> None:
    from pulsar_native.exceptions import OperationNotSupported

    if overwrite:
        raise OperationNotSupported(f"A topic cannot be overwritten, only appended to; use {instead}")
