"""Parquet writer of a load: the tasks write the record batches that they read to files, with pyarrow.

Spark's writer copies each row out of the Arrow vectors and encodes it in the JVM, which costs more than the read.
Rules: the files have the schema, types, metadata, compression and names that Spark's writer gives them in this session;
where pyarrow cannot do that, `parquet_format` raises. A task writes a file of its own into a folder of attempts beside
the output, and the driver moves the files of the attempts that succeeded: those of failed and of speculative ones go
with that folder. For filesystems only that driver and executors see as local ones.
"""

from __future__ import annotations

import inspect
import os
import shutil
import socket
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsar_native.exceptions import OperationNotSupported
from pyspark_pulsar.arrow_types import arrow_schema
from pyspark_pulsar.scan import Counts, counted_batches

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

    from pyspark_pulsar.batch_reader import PulsarBatchReader
    from pyspark_pulsar.scan import Scan

# Arrow bytes of a row group. Spark's are of 128 MiB in the JVM; a Python worker has less memory.
_ROW_GROUP_BYTES = 64 << 20
# Codecs of spark.sql.parquet.compression.codec -> their names in pyarrow, and in the names of Spark's files.
_CODECS = {
    "none": ("none", ""),
    "uncompressed": ("none", ""),
    "snappy": ("snappy", ".snappy"),
    "gzip": ("gzip", ".gz"),
    "brotli": ("brotli", ".br"),
    "zstd": ("zstd", ".zstd"),
    "lz4_raw": ("lz4", ".lz4raw"),
}
OVERTAKEN = (
    "another load into the same path ended at the same time and removed it. A retry writes the rows again; let one run "
    "at a time load into a path"
)
_SHARED = "output.path must be on a filesystem that the driver and all executors share"
_INT96, _MICROS = "INT96", "TIMESTAMP_MICROS"
# Settings of Spark's writer -> their defaults, which are all that is followed.
_AS_DEFAULT = {
    "spark.sql.files.maxRecordsPerFile": "0",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "corrected",
    "spark.sql.parquet.int96RebaseModeInWrite": "corrected",
}


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    """Schema and encoding of the files; pickled into the tasks."""

    schema: pyarrow.Schema
    metadata: dict[str, str]
    codec: str
    suffix: str
    int96: bool


def parquet_format(spark: SparkSession, columns: StructType) -> ParquetFormat:
    """Return the format of Spark's writer in this session.

    Raises `OperationNotSupported` for what pyarrow does not write as Spark does; its text names the setting.
    """
    import pyarrow
    from pyarrow import parquet

    writer = parquet.ParquetWriter
    known = inspect.signature(writer).parameters
    if not ("store_decimal_as_integer" in known and hasattr(writer, "add_key_value_metadata")):
        raise OperationNotSupported(f"pyarrow {pyarrow.__version__} is too old to write files as Spark does")
    codec = _parquet_setting(spark, "compression.codec")
    if codec not in _CODECS:
        raise OperationNotSupported(f"spark.sql.parquet.compression.codec is {codec}, which pyarrow does not write")
    timestamps = _parquet_setting(spark, "outputTimestampType")
    if timestamps not in (_INT96, _MICROS):
        raise OperationNotSupported(f"spark.sql.parquet.outputTimestampType is {timestamps}: pyarrow writes {_MICROS}")
    kinds = {type(each).__name__ for each in _types(columns)}
    if timestamps == _INT96 and "TimestampNTZType" in kinds:
        raise OperationNotSupported(f"spark.sql.parquet.outputTimestampType is {_INT96}, and a column has no time zone")
    for name, wanted in _AS_DEFAULT.items():
        if (value := str(spark.conf.get(name)).lower()) != wanted:
            raise OperationNotSupported(f"{name} is {value}, which is for Spark's writer")
    context: Any = spark.sparkContext
    own = context._jsc.hadoopConfiguration().getPropsWithPrefix("parquet.")
    if not own.isEmpty():
        names = ", ".join(f"parquet.{name}" for name in sorted(own.keySet()))
        raise OperationNotSupported(f"Hadoop's configuration has {names}, for Parquet's Java library")
    metadata = {
        # Read back by Spark: the columns exactly as they were, and that dates are of the Gregorian calendar.
        "org.apache.spark.version": spark.version,
        "org.apache.spark.sql.parquet.row.metadata": columns.json(),
    }
    name, suffix = _CODECS[codec]
    return ParquetFormat(arrow_schema(columns), metadata, name, f"{suffix}.parquet", timestamps == _INT96)


def _parquet_setting(spark: SparkSession, name: str) -> str:
    value = str(spark.conf.get(f"spark.sql.parquet.{name}"))
    return value.upper() if name == "outputTimestampType" else value.lower()


def _types(kind: DataType) -> Iterator[DataType]:
    """Return a type and all types inside it."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    yield kind
    inner: Sequence[DataType] = ()
    if isinstance(kind, StructType):
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    for each in inner:
        yield from _types(each)


def write_scan(spark: SparkSession, scan: Scan, folder: str, form: ParquetFormat) -> None:
    """Write the rows of a scan to files in a new local folder, and count them in the scan. Blocks; for the driver.

    Raises what the tasks raise, as Spark reports it, and `OSError` if the driver does not find what they wrote, or
    another load has removed the folder.
    """
    attempts = f"{folder}.attempts"
    os.makedirs(folder)
    os.mkdir(attempts)
    try:
        names = _write_splits(spark, scan, attempts, form)
        if not names:
            # Readers find the columns in it.
            names = [_file_name(0, form)]
            _File(os.path.join(attempts, names[0]), form).close()
        for name in names:
            _take(os.path.join(attempts, name), os.path.join(folder, name))
    except Exception as error:
        if os.path.isdir(folder) and os.path.isdir(attempts):
            raise
        raise OSError(f"{folder} is gone: {OVERTAKEN}") from error
    finally:
        # A speculative attempt may still write into it; what is left goes with the staging folders of other tries.
        shutil.rmtree(attempts, ignore_errors=True)
    with open(os.path.join(folder, "_SUCCESS"), "wb"):
        pass


def _write_splits(spark: SparkSession, scan: Scan, folder: str, form: ParquetFormat) -> list[str]:
    """Write each split in a task, count the rows, and return the names of the files."""
    if not scan.splits:
        return []
    splits = spark.sparkContext.parallelize(list(enumerate(scan.splits)), len(scan.splits))
    written = splits.map(partial(_write_split, scan.reader, form, folder)).collect()
    for _, counts in written:
        scan.counts.add(counts)
    return [name for name, _ in written if name is not None]


def _take(file: str, place: str) -> None:
    try:
        os.rename(file, place)
    except FileNotFoundError as error:
        raise OSError(f"A task wrote {file}, which the driver does not find: {_SHARED}") from error


def _write_split(
    reader: PulsarBatchReader, form: ParquetFormat, folder: str, numbered: tuple[int, bytes]
) -> tuple[str | None, Counts]:
    """Write the rows of one split; return the file's name, None without rows, and the counts. Called in a task."""
    if not os.path.isdir(folder):
        raise OSError(f"{socket.gethostname()} has no folder {folder}, which the driver has made: {_SHARED}")
    number, split = numbered
    found: Counts = {}
    name = _file_name(number, form)
    file: _File | None = None
    try:
        for batch in counted_batches(reader, number, split, found):
            if batch.num_rows:
                file = file or _File(os.path.join(folder, name), form)
                file.add(batch)
    finally:
        # Of a failed task as well, so that no file is left open; the driver does not take it.
        if file is not None:
            file.close()
    return (None if file is None else name), found


def _file_name(number: int, form: ParquetFormat) -> str:
    """Return the name of an attempt's file: unique, so that two attempts of a task do not share one."""
    return f"part-{number:05}-{uuid.uuid4()}-c000{form.suffix}"


class _File:
    """Parquet file that is written in row groups of a bounded size."""

    def __init__(self, path: str, form: ParquetFormat) -> None:
        from pyarrow import parquet

        self._schema = form.schema
        self._writer = parquet.ParquetWriter(
            path, form.schema, compression=form.codec, use_deprecated_int96_timestamps=form.int96, store_schema=False,
            store_decimal_as_integer=True,
        )  # fmt: skip
        self._writer.add_key_value_metadata(form.metadata)
        self._held: list[pyarrow.RecordBatch] = []
        self._bytes = 0

    def add(self, batch: pyarrow.RecordBatch) -> None:
        """Add rows."""
        self._held.append(batch if batch.schema.equals(self._schema) else batch.cast(self._schema))
        self._bytes += batch.nbytes
        if self._bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is left, and the footer."""
        try:
            self._flush()
        finally:
            self._writer.close()

    def _flush(self) -> None:
        import pyarrow

        if self._held:
            rows = pyarrow.Table.from_batches(self._held, self._schema)
            self._held, self._bytes = [], 0
            self._writer.write_table(rows, row_group_size=rows.num_rows)
