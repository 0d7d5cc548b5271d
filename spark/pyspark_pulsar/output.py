"""Output of a load: staged as Parquet beside the output path, counted, and then moved there or into a table.

Rules: the old output stays until the new rows are on disk and counted, so that a failed load changes nothing. The
output belongs to one load and is replaced as a whole. Names of staging folders and manifests begin with a dot, which
readers of the parent folder ignore. Every try has its own staging folder, so that a lost try cannot damage the next
one; the try that finishes removes those of others.

Order of `publish`: 1. rename the old output to a name of its own (".replaced-"); 2. rename the staging folder to the
output path, which must be free; if it is not, or the staging folder is gone, rename the old output back and raise;
3. remove the old output and staging folders of other tries, each renamed (".removed-") before it is deleted, so that
no other load publishes half of one. After a crash between 1 and 2 the next try renames the old output back
(`restore`). A rename is not atomic on object stores; the manifest records whether a load was finished.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark_pulsar.parquet_writer import OVERTAKEN, write_scan
from pyspark_pulsar.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from pyspark_pulsar.parquet_writer import ParquetFormat
    from pyspark_pulsar.scan import Scan

# About what a Spark job takes to start and end.
_FOOTER_SECONDS = 2.0
# The folder to rename is gone, or the name belongs to another one.
_NOT_RENAMED = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


class Output:
    """Rows of one load at one path, on any filesystem of Spark. Blocks; for the driver.

    `table` is the table they are for, None for a Parquet folder at the path; `suffix` tells loads into one path apart;
    `staging` is the staging folder of an earlier try, None for a new one.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        table: Table | None = None,
        suffix: str = "",
        staging: str | None = None,
    ) -> None:
        self._table = table
        self._schema: StructType | None = None
        self._spark = spark
        context: Any = spark.sparkContext
        self._paths: Any = context._jvm.org.apache.hadoop.fs.Path
        self._place: Any = self._paths(path)
        self._hidden = f".{self._place.getName()}{suffix}"
        self._staging: Any = self._beside("writing") if staging is None else self._paths(staging)
        self._files: Any = self._place.getFileSystem(context._jsc.hadoopConfiguration())

    @property
    def staging(self) -> str:
        """Staging folder of the rows."""
        return str(self._staging.toString())

    @property
    def is_staged(self) -> bool:
        """True if there is a staging folder."""
        return bool(self._files.exists(self._staging))

    @property
    def is_published(self) -> bool:
        """True if there is something at the output path."""
        return bool(self._files.exists(self._place))

    def write(self, frame: DataFrame, partition_by: Sequence[str]) -> None:
        """Write the frame to the staging folder."""
        self._schema = frame.schema
        writer = frame.write.mode("overwrite").option("partitionOverwriteMode", "static")
        # A table has partitions of its own.
        writer.partitionBy(*(partition_by if self._table is None else ())).parquet(self._staging.toString())

    def write_scan(self, scan: Scan, form: ParquetFormat) -> None:
        """Have the tasks of a scan write its rows to the staging folder, which must be local."""
        self._schema = scan.columns
        write_scan(self._spark, scan, str(self._staging.toUri().getPath()), form)

    @property
    def is_local(self) -> bool:
        """True on a filesystem of the operating system, which cluster and driver may share."""
        return str(self._files.getUri().getScheme()) == "file"

    def count_rows(self) -> int:
        """Return the number of rows in the staging folder, from the footers of the files.

        On a local filesystem they are read by pyarrow, elsewhere by Parquet's Java library.
        """
        counted = self._count_local() if self.is_local else None
        return self._count_by_jvm() if counted is None else counted

    def _count_local(self) -> int | None:
        """Return the number of rows in local files, None if pyarrow cannot read all of them."""
        import pyarrow
        from pyarrow import parquet

        def refuse(error: OSError) -> None:
            raise error

        found = 0
        try:
            for folder, _, names in os.walk(str(self._staging.toUri().getPath()), onerror=refuse):
                found += sum(
                    parquet.read_metadata(os.path.join(folder, name)).num_rows
                    for name in names
                    if name.endswith(".parquet")
                )
        except (OSError, pyarrow.ArrowException):
            return None
        return found

    def _count_by_jvm(self) -> int:
        """Return the number of rows; the footers are read by a Spark job if that takes longer than such a job."""
        context: Any = self._spark.sparkContext
        jvm, conf = context._jvm, context._jsc.hadoopConfiguration()
        found, until = 0, time.monotonic() + _FOOTER_SECONDS
        files = self._files.listFiles(self._staging, True)
        while files.hasNext():
            status = files.next()
            if not str(status.getPath().getName()).endswith(".parquet"):
                continue
            if time.monotonic() > until:
                return self._spark.read.schema("__topic STRING").parquet(self._staging.toString()).count()
            file = jvm.org.apache.parquet.hadoop.util.HadoopInputFile.fromStatus(status, conf)
            reader = jvm.org.apache.parquet.hadoop.ParquetFileReader.open(file)
            try:
                found += int(reader.getRecordCount())
            finally:
                reader.close()
        return found

    def check_rows(self) -> None:
        """Raise `InvalidConfiguration` for rows that the table would have twice after another load of the interval."""
        if self._table is not None:
            self._table.check_rows(self._rows())

    def _rows(self) -> DataFrame:
        reader = self._spark.read if self._schema is None else self._spark.read.schema(self._schema)
        return reader.parquet(self._staging.toString())

    def restore(self) -> None:
        """Rename the old output back where a crash left the output path without one."""
        left = self._left("replaced") if self._table is None and not self.is_published else []
        if left:
            self._rename(left[-1], self._place)

    def publish(self, *, is_committed: bool = False) -> None:
        """Replace the output by the staged rows.

        `is_committed`: the rows are in a commit log, so another load may have moved them already. Raises `OSError` if
        they are gone, or another load into the path ended at the same time.
        """
        if self.is_staged:
            if self._table is not None:
                try:
                    self._table.write(self._rows())
                finally:
                    # No commit log names them: the next try reads the messages again.
                    self.discard()
                self._remove_left()
                return
            if self._replace():
                self._remove_left()
                return
        if self.is_staged:
            raise OSError(
                f"{self._staging.toString()} could not be renamed to {self._place.toString()}: another load into it "
                "ended at the same time. A retry writes the rows again; let one run at a time load into a path"
            )
        if is_committed and self.is_published:
            return
        raise OSError(f"{self._staging.toString()} is gone: {OVERTAKEN}")

    def _replace(self) -> bool:
        """Rename the staging folder to the output path; return False, with the old output in place, if that failed."""
        old = self._beside("replaced")
        is_moved = False
        try:
            if self.is_published:
                self._rename(self._place, old)
            is_moved = self._rename(self._staging, self._place)
        finally:
            if not is_moved and self._files.exists(old):
                self._rename(old, self._place)
        return is_moved

    def _rename(self, source: Any, target: Any) -> bool:
        """Rename a folder to a free name; return False if another one has the name, or the folder is gone."""
        if self.is_local:
            # Hadoop would copy into a folder that has the name.
            try:
                os.rename(str(source.toUri().getPath()), str(target.toUri().getPath()))
            except OSError as error:
                if error.errno not in _NOT_RENAMED:
                    raise
                return False
            return True
        if self._files.exists(target) or not self._files.rename(source, target):
            return False
        # Hadoop moves a folder into one that has got the name meanwhile.
        inside = self._paths(target, source.getName())
        if not self._files.exists(inside):
            return True
        self._files.rename(inside, source)
        return False

    def discard(self) -> None:
        """Remove the staged rows."""
        self._files.delete(self._staging, True)

    def _remove_left(self) -> None:
        """Remove old outputs and staging folders of other tries of this output: killed ones, or those overtaken."""
        left = self._left("removed", "writing", "replaced")
        # In this order: a load that has renamed the output needs it again unless there is another one since.
        if not self.is_published:
            left = self._left("removed", "writing")
        for path in left:
            removed = self._beside("removed")
            if self._rename(path, removed):
                self._files.delete(removed, True)

    def _beside(self, kind: str) -> Any:
        """Return a new hidden path beside the output; names are in order of time."""
        name = f"{self._hidden}.{kind}-{time.time_ns()}-{uuid.uuid4().hex[:12]}"
        return self._paths(self._place.getParent(), name)

    def _left(self, *kinds: str) -> list[Any]:
        """Return the hidden paths of these kinds beside the output, those of a kind from the oldest on."""
        folder, prefixes = self._place.getParent(), tuple(f"{self._hidden}.{kind}-" for kind in kinds)
        found = [status.getPath() for status in self._files.listStatus(folder)] if self._files.exists(folder) else []
        named = {str(path.getName()): path for path in found}
        return [named[name] for name in sorted(named) if name.startswith(prefixes)]
