"""Table formats of a load's output: Delta Lake and Apache Iceberg.

The rows of an interval replace exactly those that a condition selects, or are merged by message. Rules: the session
brings the format's package; nothing of it is imported. A load is one commit of the table, made of rows that were staged
and counted before, so that readers see the old interval or the new one. The table is created by its first load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.jobs.interval import iso
from pyspark_pulsar.options import parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARQUET, DELTA, ICEBERG = "parquet", "delta", "iceberg"
FORMATS = (PARQUET, DELTA, ICEBERG)
OVERWRITE, MERGE = "overwrite", "merge"
# Columns that identify a message: every load writes them.
IDENTITY = ("__topic", "__ledgerId", "__entryId", "__batchIndex")
_TABLE_ONLY = ("table", "mode", "replace_where")
# A class of each format's package, and the package.
_PACKAGES = {
    DELTA: ("io.delta.tables.DeltaTable", "io.delta:delta-spark"),
    ICEBERG: ("org.apache.iceberg.spark.SparkCatalog", "org.apache.iceberg:iceberg-spark-runtime"),
}


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options of a table: its format, its name in a catalog (None for a Delta table at output.path), and the mode.

    `replace_where` is the condition of the rows that an overwrite replaces, None for a merge.
    """

    format: str
    name: str | None
    mode: str
    replace_where: str | None

    @staticmethod
    def parse(output: Mapping[str, Any], source: Mapping[str, str], metadata: Sequence[str]) -> TableOptions | None:
        """Return the options of an output, None for Parquet; raises `InvalidConfiguration`. No I/O."""
        kind = output.get("format", PARQUET)
        if kind not in FORMATS:
            raise InvalidConfiguration(f"output.format must be one of {', '.join(FORMATS)}, not {kind!r}")
        given = {name: output[name] for name in _TABLE_ONLY if output.get(name) is not None}
        for name, value in given.items():
            if kind == PARQUET:
                raise InvalidConfiguration(f"output.{name} needs output.format delta or iceberg")
            if not isinstance(value, str) or not value.strip():
                raise InvalidConfiguration(f"output.{name} must be a text that is not empty")
        if kind == PARQUET:
            return None
        if kind == ICEBERG and "table" not in given:
            raise InvalidConfiguration("output.format iceberg needs output.table, such as catalog.database.table")
        mode = given.get("mode", OVERWRITE)
        if mode not in (OVERWRITE, MERGE):
            raise InvalidConfiguration(f"output.mode must be {OVERWRITE} or {MERGE}, not {mode!r}")
        if mode == MERGE and "replace_where" in given:
            raise InvalidConfiguration(f"output.replace_where is for mode {OVERWRITE}: a merge goes by message")
        where = None if mode == MERGE else given.get("replace_where") or _interval_condition(source, metadata)
        return TableOptions(kind, given.get("table"), mode, where)

    def canonical(self) -> dict[str, str | None]:
        """Return the parts of the request that determine the rows."""
        return {"format": self.format, "table": self.name, "mode": self.mode, "replace_where": self.replace_where}


def _interval_condition(source: Mapping[str, str], metadata: Sequence[str]) -> str:
    folded = {name.lower(): value for name, value in source.items()}
    bounds = [folded.get(name) for name in ("startingtime", "endingtime")]
    if None in bounds or "__publishTime" not in metadata:
        raise InvalidConfiguration(
            "An overwrite must know which rows of the table are the interval's: give startingTime, endingTime and "
            "the column __publishTime in metadata, or output.replace_where, such as hour = 1 with a column of derive"
        )
    start, end = (iso(parse_time("interval", str(bound))) for bound in bounds)
    return f"__publishTime >= TIMESTAMP '{start}' AND __publishTime < TIMESTAMP '{end}'"


class Table:
    """Table of one load. Blocks; for the driver."""

    def __init__(self, spark: SparkSession, options: TableOptions, path: str, partition_by: Sequence[str]) -> None:
        self._spark = spark
        self._options = options
        self._path = path
        self._partition_by = tuple(partition_by)

    def check(self) -> None:
        """Raise `InvalidConfiguration` unless the session has the format's package."""
        name, package = _PACKAGES[self._options.format]
        context: Any = self._spark.sparkContext
        try:
            context._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
        except Exception as error:  # py4j wraps ClassNotFoundException and NoClassDefFoundError.
            raise InvalidConfiguration(
                f"output.format {self._options.format} needs the package {package} for this version of Spark "
                "(--packages or --jars), with its spark.sql.extensions and catalogs"
            ) from error

    def check_rows(self, rows: DataFrame) -> None:
        """Raise `InvalidConfiguration` for rows that the condition of an overwrite does not select.

        They would stay in the table when the load is done again, and be there twice.
        """
        from pyspark.sql import functions

        if self._options.replace_where is None:
            return
        selected = functions.coalesce(functions.expr(self._options.replace_where), functions.lit(False))
        if not rows.where(~selected).isEmpty():
            raise InvalidConfiguration(
                f"Rows of the load do not satisfy output.replace_where ({self._options.replace_where}): they would be "
                "in the table twice when the load is done again"
            )

    def write(self, rows: DataFrame) -> None:
        """Commit the rows: create the table, or replace the rows of the condition, or merge by message."""
        if not self._exists():
            self._create(rows)
        elif self._options.mode == MERGE:
            self._merge(rows)
        else:
            self._overwrite(rows)

    def _exists(self) -> bool:
        if self._options.name is not None:
            return self._spark.catalog.tableExists(self._options.name)
        context: Any = self._spark.sparkContext
        session: Any = self._spark
        return bool(context._jvm.io.delta.tables.DeltaTable.isDeltaTable(session._jsparkSession, self._path))

    def _create(self, rows: DataFrame) -> None:
        from pyspark.sql import functions

        if self._options.name is None:
            rows.write.format(DELTA).partitionBy(*self._partition_by).mode("errorifexists").save(self._path)
            return
        writer = rows.writeTo(self._options.name).using(self._options.format)
        if self._partition_by:
            first, *others = (functions.col(f"`{name}`") for name in self._partition_by)
            writer = writer.partitionedBy(first, *others)
        writer.create()

    def _overwrite(self, rows: DataFrame) -> None:
        from pyspark.sql import functions

        condition = str(self._options.replace_where)
        if self._options.name is not None:
            rows.writeTo(self._options.name).overwrite(functions.expr(condition))
        else:
            rows.write.format(DELTA).mode("overwrite").option("replaceWhere", condition).save(self._path)

    def _merge(self, rows: DataFrame) -> None:
        target = self._options.name or f"delta.`{self._path}`"
        same = " AND ".join(f"old.`{name}` = new.`{name}`" for name in IDENTITY)
        self._spark.sql(
            f"MERGE INTO {target} AS old USING {{new}} AS new ON {same} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            new=rows,
        )
