"""Table formats of a load's output: Delta Lake and Apache Iceberg.

The rows of an interval replace exactly those that a condition selects, or are merged by message. Without a condition of
the request, they are the rows of the load's topics in its interval: topics may share a table. Rules: the session
brings the format's package; nothing of it is imported. A load is one commit of the table, made of rows that were staged
and counted before, so that readers see the old interval or the new one. The table is created by its first load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.jobs.interval import iso
from pyspark_pulsar.options import parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriterV2, SparkSession

PARQUET, DELTA, ICEBERG = "parquet", "delta", "iceberg"
FORMATS = (PARQUET, DELTA, ICEBERG)
OVERWRITE, MERGE = "overwrite", "merge"
# Columns that identify a message: every load writes them.
IDENTITY = ("__topic", "__ledgerId", "__entryId", "__batchIndex")
# Of Iceberg's error for a condition that may select a part of a file's rows only.
_NOT_WHOLE = "Cannot delete file where some"
# Setting of a session by which a merge into a Delta table adds the columns of the rows.
_ADDS_COLUMNS = "spark.databricks.delta.schema.autoMerge.enabled"
_NEW, _ABSENT = "not in the table", "only in the table"
_TABLE_ONLY = ("table", "mode", "replace_where")
# A class of each format's package, and the package.
_PACKAGES = {
    DELTA: ("io.delta.tables.DeltaTable", "io.delta:delta-spark"),
    ICEBERG: ("org.apache.iceberg.spark.SparkCatalog", "org.apache.iceberg:iceberg-spark-runtime"),
}


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options of a table: its format, its name in a catalog (None for a Delta table at output.path), and the mode.

    `replace_where` is the condition of the rows that an overwrite replaces, None for a merge. `by_topic` is True for
    the default one, the interval, of which only the rows of the load's topics are replaced.
    """

    format: str
    name: str | None
    mode: str
    replace_where: str | None
    by_topic: bool = False

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
        by_topic = mode == OVERWRITE and "replace_where" not in given
        return TableOptions(kind, given.get("table"), mode, where, by_topic)

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


def _topics_condition(topics: Sequence[str]) -> str:
    """Return the condition of the rows of topics and of all their partitions, also such that were added since.

    Others have such names, too: the dead-letter topic of a partition is called orders-partition-0-NAME-DLQ.
    """
    named = _texts(topics)
    return f"__topic IN ({named}) OR regexp_replace(__topic, '-partition-(0|[1-9][0-9]*)$', '') IN ({named})"


def _texts(values: Iterable[str]) -> str:
    """Return texts as literals of Spark SQL."""
    return ", ".join(_text(value) for value in values)


def _text(value: str) -> str:
    """Return a text as a literal of Spark SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


class Table:
    """Table of one load. Blocks; for the driver."""

    def __init__(self, spark: SparkSession, options: TableOptions, path: str, partition_by: Sequence[str]) -> None:
        self._spark = spark
        self._options = options
        self._path = path
        self._partition_by = tuple(partition_by)
        self._condition = options.replace_where

    def select_topics(self, topics: Sequence[str]) -> None:
        """Limit the default condition of an overwrite to the rows of these topics, those of the load."""
        if self._options.by_topic:
            self._condition = f"{self._options.replace_where} AND ({_topics_condition(topics)})"

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

        if self._condition is None:
            return
        selected = functions.coalesce(functions.expr(self._condition), functions.lit(False))
        if not rows.where(~selected).isEmpty():
            raise InvalidConfiguration(
                f"Rows of the load do not satisfy output.replace_where ({self._condition}): they would be "
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
        if self._options.format == ICEBERG:
            # By default the statistics of a file have the first 16 characters, which topics have in common.
            writer = writer.tableProperty("write.metadata.metrics.column.__topic", "full")
        if self._partition_by:
            first, *others = (functions.col(f"`{name}`") for name in self._partition_by)
            writer = writer.partitionedBy(first, *others)
        writer.create()

    def _overwrite(self, rows: DataFrame) -> None:
        names = self._names(rows) if self._options.by_topic else []
        condition = str(self._condition)
        if names:
            # Formats replace by comparisons of a column only.
            condition = f"{self._options.replace_where} AND __topic IN ({_texts(names)})"
        elif self._options.by_topic:
            # Nothing to replace, and nothing to add.
            return
        if self._options.name is None:
            rows.write.format(DELTA).mode("overwrite").option("replaceWhere", condition).save(self._path)
        elif not self._replaces(rows.writeTo(self._options.name), condition):
            self._overwrite_files(rows, self._options.name, names)

    def _names(self, rows: DataFrame) -> list[str]:
        """Return the topics, partitions by their own names, of the rows, and of those in the table to be replaced."""
        found = (
            self._present()
            .where(str(self._condition))
            .select("__topic")
            .union(rows.select("__topic"))
            .distinct()
            .collect()
        )
        return sorted(row[0] for row in found)

    def _present(self) -> DataFrame:
        """Return the rows that the table has."""
        read = self._spark.read
        return read.table(self._options.name) if self._options.name else read.format(DELTA).load(self._path)

    def _replaces(self, writer: DataFrameWriterV2, condition: str) -> bool:
        """Replace the rows of a condition; return False where it may select a part of a file only, as Iceberg sees."""
        from pyspark.sql import functions

        try:
            writer.overwrite(functions.expr(condition))
        except Exception as error:  # py4j wraps Iceberg's error, and Spark may.
            if not self._options.by_topic or _NOT_WHOLE not in str(error):
                raise
            return False
        return True

    def _overwrite_files(self, rows: DataFrame, name: str, names: Sequence[str]) -> None:
        """Replace whole files of an Iceberg table by a condition that selects rows of no other topic, else raise.

        By its statistics, a file with rows of several partitions may have topics between them, too.
        """
        from pyspark.sql import functions

        interval = str(self._options.replace_where)
        # Rows that another load adds from here on are a conflict.
        head = self._spark.table(f"{name}.refs").where("name = 'main'").first()
        others = ~functions.coalesce(functions.expr(str(self._condition)), functions.lit(False))
        for wider in (interval, f"{interval} AND __topic BETWEEN {_text(names[0])} AND {_text(names[-1])}"):
            if head is None or not self._spark.table(name).where(wider).where(others).isEmpty():
                continue
            writer = rows.writeTo(name).option("isolation-level", "serializable")
            if self._replaces(writer.option("validate-from-snapshot-id", str(head["snapshot_id"])), wider):
                return
        raise InvalidConfiguration(
            f"{name} has rows of other topics in the interval, and Iceberg replaces whole files, which it cannot "
            "tell apart by topic: partition the table by __topic (output.partition_by for a new one), or load "
            "each topic into a table of its own"
        )

    def _merge(self, rows: DataFrame) -> None:
        self._check_columns(rows)
        target = self._options.name or f"delta.`{self._path}`"
        same = " AND ".join(f"old.`{name}` = new.`{name}`" for name in IDENTITY)
        self._spark.sql(
            f"MERGE INTO {target} AS old USING {{new}} AS new ON {same} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            new=rows,
        )

    def _check_columns(self, rows: DataFrame) -> None:
        """Raise `InvalidConfiguration` unless rows to be merged have just the table's columns.

        A merge ignores those that the table does not have, unless Delta Lake adds them.
        """
        if self._options.format == DELTA and self._spark.conf.get(_ADDS_COLUMNS, "false") == "true":
            return
        given, present = ({name.lower(): name for name in frame.columns} for frame in (rows, self._present()))
        new = [name for folded, name in given.items() if folded not in present]
        absent = [name for folded, name in present.items() if folded not in given]
        if new or absent:
            found = [f"{', '.join(names)} {which}" for names, which in ((new, _NEW), (absent, _ABSENT)) if names]
            raise InvalidConfiguration(
                f"Rows cannot be merged into the table: {'; '.join(found)}. Change the table (ALTER TABLE), or the "
                "load's columns"
            )
