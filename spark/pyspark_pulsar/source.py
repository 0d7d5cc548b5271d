"""The data source `pulsar` as Spark sees it.

Spark makes it in planner processes and pickles it, options included, into plans and tasks: the options are checked
before that, and none may hold a secret. Rules: nothing connects here; what is imported at the top must be there
wherever PySpark is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.datasource import SimpleDataSourceStreamReader

    from pyspark_pulsar.options import ReadOptions


class DefaultSource(DataSource):
    """Read Apache Pulsar topics: `spark.read.format("pulsar").option("service.url", …).option("topic", …).load()`.

    The option names are the JVM connector's (see `options`); rows come in the order of the topic within a topic
    partition.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "pulsar"

    def schema(self) -> str:
        """Return the columns as a Spark schema text; raises `InvalidConfiguration` for a wrong option. Does no I/O."""
        from pyspark_pulsar.schema import ddl

        return ddl(self._read_options().columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader; raises `InvalidConfiguration` for a wrong option or schema. Does no I/O."""
        from pyspark_pulsar.batch_reader import PulsarBatchReader
        from pyspark_pulsar.schema import check_schema

        options = self._read_options()
        check_schema(schema, options.columns)
        return PulsarBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Refuse: this version reads batches only."""
        _refuse(
            "streaming reads (spark.readStream)", "read bounded ranges with spark.read and startingTime / endingTime"
        )

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        """Refuse: this version reads batches only."""
        _refuse(
            "streaming reads (spark.readStream)", "read bounded ranges with spark.read and startingTime / endingTime"
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse: this version does not write."""
        _refuse("writing (df.write)", "publish with pulsar_native")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Refuse: this version does not write."""
        _refuse("streaming writes (df.writeStream)", "publish with pulsar_native")

    def _read_options(self) -> ReadOptions:
        from pyspark_pulsar.options import ReadOptions

        return ReadOptions.parse(self.options)


def _refuse(what: str, instead: str) -> NoReturn:
    from pulsar_native.exceptions import OperationNotSupported

    raise OperationNotSupported(f'The data source "pulsar" does not support {what} in this version; {instead}')
