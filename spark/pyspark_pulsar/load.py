"""Load application: one bounded range of topics into one Parquet path, with a manifest, run by spark-submit.

    spark-submit … load.py --request '{"source": {…}, "output": {"path": …}}'

With --dry-run the plan is printed and nothing is written, here or at the broker.

Rules: the ends are frozen and written to the manifest before anything is read, so that a second run of the same request
reads the same messages and replaces the same path. Written rows are counted on disk and compared with those read. No
secret is on the command line, in the manifest or in the output. Exit codes: 0 done, 1 failed and a retry may help, 2
wrong request or credentials, 3 data loss. The last line of its own output is one JSON object that begins with
{"pulsar_load":.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pyspark_pulsar.credentials import CredentialsRef
    from pyspark_pulsar.manifest import Delivered, Document, Manifest
    from pyspark_pulsar.output import Output
    from pyspark_pulsar.parquet_writer import ParquetFormat
    from pyspark_pulsar.planning import Plan
    from pyspark_pulsar.request import LoadRequest
    from pyspark_pulsar.scan import Scan
    from pyspark_pulsar.tables import Table

DONE, FAILED, REFUSED, LOST = 0, 1, 2, 3

_REFUSALS = (
    "InvalidConfiguration",
    "InvalidTopicName",
    "InvalidUrl",
    "AuthenticationError",
    "AuthorizationError",
    "ErrorGettingAuthenticationData",
    "OperationNotSupported",
)
# An error of a task or of the planner is a text with the traceback of the Python process, or Spark's own error.
_OF_SPARK = re.compile(r"SparkException: (\[[A-Z_.]+\].*)")
# Spark's conditions of errors that a retry may end: another load has created the table, another try has removed the
# staged rows, Hive's metastore does not answer.
_RETRIED = ("TABLE_OR_VIEW_ALREADY_EXISTS", "DELTA_PATH_EXISTS", "PATH_NOT_FOUND", "_LEGACY_ERROR_TEMP_3065")
_LONGEST_MESSAGE = 2000
_IN_TRACEBACK = re.compile(r"(?:pulsar_native\.exceptions|pyspark_pulsar\.errors)\.(\w+): ?(.*)")
_OF_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\w.*)")


def application() -> str:
    """Return the path of this file, for spark-submit."""
    return os.path.abspath(__file__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a load; `exit_code` is for a scheduler, `stage` is the stage of a failure.

    `codec` is that of the tasks: "compiled", or "python", which is slower; None if no task had rows. `stages` are the
    seconds of a finished load by stage, "session" (imports and start of the session) first. `plan` is the result of a
    dry run: for each topic partition its first message and the end, exclusive, with the number of entries in between
    (batches of messages, and transaction markers), None without admin.url.
    """

    exit_code: int
    rows: int | None = None
    partitions: int | None = None
    replayed: bool = False
    path: str | None = None
    manifest: str | None = None
    seconds: float = 0.0
    error: str | None = None
    stage: str | None = None
    codec: str | None = None
    stages: Mapping[str, float] | None = None
    plan: Sequence[Mapping[str, Any]] | None = None

    def to_line(self) -> str:
        """Return the line of JSON that ends the output."""
        status = "failed" if self.exit_code != DONE else "done" if self.plan is None else "planned"
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps({"pulsar_load": {"status": status, **fields}})


def say(text: str) -> None:
    """Print one progress line and flush it."""
    print(f"pulsar-load: {text}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load of the arguments and return the exit code. Blocks; for a process of its own."""
    started = time.monotonic()
    try:
        outcome = _run(request_text(arguments), started, _options(arguments).dry_run)
    except Exception as error:
        code, message = judge(error)
        outcome = Outcome(code, seconds=round(time.monotonic() - started, 3), error=message)
        say(f"failed: {message}")
    print(outcome.to_line(), flush=True)
    return outcome.exit_code


def request_text(arguments: Sequence[str] | None) -> str:
    """Return the request of a command line; raises `InvalidConfiguration` for a wrong one or an unreadable file."""
    options = _options(arguments)
    if options.request is not None:
        return str(options.request)
    try:
        with open(options.request_file, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as error:
        _Parser().error(f"--request-file cannot be read: {error}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="load", description="Load Pulsar topics into Parquet.", allow_abbrev=False)
    one = parser.add_mutually_exclusive_group(required=True)
    one.add_argument("--request", metavar="JSON", help="what to load")
    one.add_argument("--request-file", metavar="PATH", help="a file with the same JSON")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and write nothing")
    return parser.parse_args(arguments)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        from pulsar_native.exceptions import InvalidConfiguration

        raise InvalidConfiguration(message)


def judge(error: BaseException) -> tuple[int, str]:
    """Return exit code and text for an error of the driver, or of a task as Spark reports it."""
    name, message = type(error).__name__, str(error)
    ours, spark_s = _IN_TRACEBACK.findall(message), _OF_SPARK.search(message)
    if ours:
        name, message = ours[-1]
    elif others := _OF_PYTHON.findall(message):
        message = others[-1]
    elif spark_s:
        message = spark_s[1]
    message = message.strip()[:_LONGEST_MESSAGE]
    if name == "DataLoss":
        return LOST, message
    return (REFUSED if name in _REFUSALS else FAILED), message or name


def _run(text: str, started: float, dry_run: bool) -> Outcome:
    from pyspark.sql import SparkSession

    from pyspark_pulsar.request import LoadRequest
    from pyspark_pulsar.warmup import start_warm_up

    request = LoadRequest.parse(text)
    start_warm_up(request)
    # Without a name of our own, which would replace that of spark-submit.
    spark = SparkSession.builder.getOrCreate()
    load = Load(spark, request, started)
    try:
        return load.dry_run() if dry_run else load.run()
    except Exception as error:
        code, message = judge(error)
        say(f"failed at the stage {load.stage}: {message}")
        return Outcome(code, seconds=round(time.monotonic() - started, 3), error=message, stage=load.stage)
    finally:
        _stop(spark)


def _stop(spark: SparkSession) -> None:
    """Stop the session at the end of the process.

    Only its JVM part: PySpark's `stop` also waits, up to a second, until the accumulators' connection is polled again.
    """
    from py4j.protocol import Py4JError

    context: Any = spark.sparkContext
    # A JVM that is gone has stopped; the outcome of the load stands.
    with suppress(Py4JError, OSError):
        context._jsc.stop()


class Load:
    """Execution of one request in a session. Blocks; used once.

    `stage` is the current stage: plan, read, check, commit, publish or complete.
    """

    stage = "session"
    _codec: str | None = None

    def __init__(self, spark: SparkSession, request: LoadRequest, started: float) -> None:
        self._spark = spark
        self._request = request
        self._started = self._entered = started
        self._stages: dict[str, float] = {}
        self._enter("plan")

    def run(self) -> Outcome:
        """Plan or replay, read, decode, write, count, move to the output, and complete the manifest."""
        return self._with_credentials(self._load)

    def dry_run(self) -> Outcome:
        """Plan or replay, and print the plan; write nothing and create no subscription."""
        return self._with_credentials(self._dry_run)

    def _with_credentials(self, work: Callable[[dict[str, str]], Outcome]) -> Outcome:
        from pyspark_pulsar.credentials import share

        self._set_time_zone()
        options = self._request.read_options()
        with ExitStack() as held:

            def shared(reference: CredentialsRef) -> CredentialsRef:
                made, forget = share(self._spark, reference)
                held.callback(forget)
                return made

            source = {name.lower(): value for name, value in self._request.source.items()}
            if options.credentials is not None:
                source["credentialsref"] = str(shared(options.credentials))
            if options.private_keys is not None:
                source[options.private_keys.option.lower()] = options.private_keys.mapped(shared)
            return work(source)

    def _set_time_zone(self) -> None:
        from pyspark.errors import IllegalArgumentException

        from pulsar_native.exceptions import InvalidConfiguration

        zone = self._request.time_zone
        try:
            self._spark.conf.set("spark.sql.session.timeZone", zone)
        except IllegalArgumentException as error:
            raise InvalidConfiguration(
                f"time_zone is {zone!r}, which Spark does not know; write a region such as Europe/Berlin or an offset "
                "such as +01:00"
            ) from error

    def _dry_run(self, source: dict[str, str]) -> Outcome:
        from pyspark_pulsar.manifest import Document
        from pyspark_pulsar.options import ReadOptions
        from pyspark_pulsar.planning import make_plan
        from pyspark_pulsar.splitting import count_entries

        document = Document(self._spark, self._request.manifest)
        plan = make_plan(self._spark, self._request, source, document, recovers=False)
        ranges = plan.manifest.ranges
        counts = count_entries(ReadOptions.parse(source), ranges)
        found = [
            {"topic": item.topic, "from": str(item.start), "to": str(item.end), "entries": count}
            for item, count in zip(ranges, counts, strict=True)
        ]
        for each in found:
            entries = "entries unknown without admin.url" if each["entries"] is None else f"{each['entries']:,} entries"
            say(f"would read {each['topic']} from {each['from']} up to {each['to']}: {entries}")
        say(f"dry run: {len(ranges)} topic partitions, nothing was written to {self._request.path}")
        seconds = round(self._elapsed(), 3)
        return Outcome(
            DONE, None, len(ranges), plan.replayed, self._request.path, self._request.manifest, seconds, plan=found
        )

    def _load(self, source: dict[str, str]) -> Outcome:
        from pyspark_pulsar.commits import CommitConflict
        from pyspark_pulsar.manifest import Document
        from pyspark_pulsar.options import ReadOptions
        from pyspark_pulsar.output import Output
        from pyspark_pulsar.planning import check_output, topics_of
        from pyspark_pulsar.retained import advance

        document = Document(self._spark, self._request.manifest)
        table = self._table()
        output = Output(self._spark, self._request.path, table, self._request.suffix)
        output.restore()
        plan = self._plan(document, source)
        if table is not None:
            table.select_topics(topics_of(self._request, plan.manifest.ranges))
        self._enter("read")
        try:
            delivered = self._write(output, self._scan(plan), plan.manifest)
            self._check_rows(plan, source, delivered)
            with _of_request("output.replace_where is no condition of the output's columns"):
                output.check_rows()
            # A load of other topics into the path may have ended since the plan.
            check_output(self._request, document)
        except BaseException:
            output.discard()
            raise
        self._enter("commit")
        try:
            self._commit(plan, output, delivered)
        except CommitConflict:
            # Any other failure may come after the commit, whose rows are these.
            output.discard()
            raise
        self._enter("publish")
        with _of_request("The rows cannot be written to the table (ALTER TABLE adds a new column)"):
            output.publish(is_committed=self._request.commits is not None)
        self._enter("complete")
        outcome = self._complete(document, plan, delivered)
        if self._request.subscription is not None:
            advance(
                ReadOptions.parse(source),
                self._request.subscription,
                plan.manifest.ranges,
                delivered,
                planned_at=plan.manifest.time,
                in_order=self._request.commits is not None,
            )
        return outcome

    def _table(self) -> Table | None:
        """Return the table of the output, None for Parquet; raises `InvalidConfiguration` if its package is missing."""
        from pyspark_pulsar.tables import Table

        request = self._request
        if request.table is None:
            return None
        table = Table(self._spark, request.table, request.path, request.partition_by)
        table.check()
        return table

    def _plan(self, document: Document, source: dict[str, str]) -> Plan:
        """Return the ranges to read; they are written to the manifest first."""
        from dataclasses import replace

        from pyspark_pulsar.options import ReadOptions
        from pyspark_pulsar.planning import make_plan
        from pyspark_pulsar.request import AUTO
        from pyspark_pulsar.retained import hold
        from pyspark_pulsar.scan import columns_of

        if self._request.subscription is not None:
            hold(ReadOptions.parse(source), self._request.subscription)
        plan = make_plan(self._spark, self._request, source, document)
        ranges = plan.manifest.ranges
        if self._request.value_format == AUTO and plan.manifest.columns is None:
            columns = columns_of(self._options(plan)).jsonValue()
            plan = replace(plan, manifest=replace(plan.manifest, columns=columns))
        if self._request.takes_registered and plan.manifest.definition is None:
            plan = replace(plan, manifest=replace(plan.manifest, definition=self._registered(plan.manifest)))
        if plan.replayed:
            say(f"replaying the plan of {plan.manifest.written_at}: {len(ranges)} topic partitions")
            return plan
        document.write(plan.manifest.to_json())
        filled = sum(1 for item in ranges if not item.is_empty)
        say(f"planned {len(ranges)} topic partitions, {filled} with messages ({self._elapsed():.1f} s)")
        return plan

    def _frame(self, frame: DataFrame, plan: Manifest) -> DataFrame:
        """Return the frame to write: the rows decoded, with derived and metadata columns."""
        from pyspark.sql import functions

        from pulsar_native.exceptions import InvalidConfiguration

        request = self._request
        with _of_request("The value cannot be decoded into these columns"):
            frame = self._decoded(frame, plan)
        if request.value_format in ("json", "avro"):
            kept = [functions.col(f"`{name}`") for name in request.source_columns()[1:]]
            frame = frame.select(functions.col("value.*"), *kept)
        for name, expression in request.derive.items():
            with _of_request(f"derive.{name} is not an expression of the columns"):
                frame = frame.withColumn(name, functions.expr(expression))
            if _has_generator(frame):
                raise InvalidConfiguration(
                    f"derive.{name} may make several rows, or none, of a message ({expression}), and a load writes one "
                    "row for each: keep the array or map as a column, and explode it where the output is read"
                )
        self._request.check_columns(frame.columns)
        return frame

    def _scan(self, plan: Plan) -> Scan:
        """Return the scan of the frozen ranges with the columns of the manifest, if it has some."""
        from pyspark.sql.types import StructType

        from pyspark_pulsar.scan import columns_of, scan

        options, kept = self._options(plan), plan.manifest.columns
        columns = columns_of(options) if kept is None else StructType.fromJson(dict(kept))
        return scan(self._spark, options, columns)

    def _options(self, plan: Plan) -> dict[str, str]:
        return {**plan.options, **self._request.column_options()}

    def _decoded(self, frame: DataFrame, plan: Manifest) -> DataFrame:
        from pyspark_pulsar.decoding import decode_avro, decode_json
        from pyspark_pulsar.request import AUTO
        from pyspark_pulsar.schema import registered_type, struct_of

        request = self._request
        if request.value_format in ("raw", AUTO):
            return frame
        given = request.value_schema
        definition = str(plan.definition if given is None else given)
        if request.value_format == "avro":
            return decode_avro(frame, definition)
        return decode_json(
            frame, registered_type(definition, logical=False) if given is None else struct_of(definition)
        )

    def _registered(self, plan: Manifest) -> str:
        """Return the definition of the topics' registered schema, which must be equal; blocks."""
        from pulsar_native.topic import TopicName
        from pyspark_pulsar.topic_schema import registered_definition

        topics = list(dict.fromkeys(TopicName.parse(item.topic).base.full for item in plan.ranges))
        return registered_definition(self._request.read_options(), topics, self._request.value_format.upper())

    def _write(self, output: Output, scan: Scan, plan: Manifest) -> dict[str, Delivered]:
        """Write the rows to the staging folder, count them, and return the delivered rows by topic partition."""
        form = self._own_format(output, scan)
        if form is None:
            frame = self._frame(scan.frame, plan)
            with Progress(self._spark), _of_request("The columns cannot be written to Parquet"):
                output.write(frame, self._request.partition_by)
        else:
            self._request.check_columns(scan.columns.names)
            with Progress(self._spark):
                output.write_scan(scan, form)
        self._enter("check")
        delivered, written = scan.delivered(), output.count_rows()
        self._codec = scan.codec()
        read = sum(part.rows for part in delivered.values())
        if written != read:
            raise RuntimeError(f"{read} rows were read and {written} written: {self._request.path} stays as it was")
        return delivered

    def _own_format(self, output: Output, scan: Scan) -> ParquetFormat | None:
        """Return the format of files that the tasks write themselves, None for Spark's writer.

        Raises `OperationNotSupported` if the request wants pyarrow where that cannot write as Spark does.
        """
        from pulsar_native.exceptions import OperationNotSupported
        from pyspark_pulsar.parquet_writer import parquet_format
        from pyspark_pulsar.request import PYARROW, SPARK

        request = self._request
        if request.writer == SPARK or request.needs_spark is not None:
            return None
        try:
            if not output.is_local:
                raise OperationNotSupported(f"{request.path} is not on a local or shared filesystem (file:)")
            return parquet_format(self._spark, scan.columns)
        except OperationNotSupported as error:
            if request.writer == PYARROW:
                raise OperationNotSupported(f"output.writer is pyarrow, but {error}") from error
            say(f"Spark writes the files, as pyarrow cannot: {error}")
            return None

    def _check_rows(self, plan: Plan, source: dict[str, str], delivered: dict[str, Delivered]) -> None:
        """Raise for too few rows, and for none if messages may have been lost; the output stays unchanged."""
        from pyspark_pulsar.options import ReadOptions
        from pyspark_pulsar.retained import check_empty

        rows, wanted = sum(part.rows for part in delivered.values()), self._request.min_rows
        if rows < wanted:
            raise RuntimeError(
                f"{rows:,} rows are fewer than min_rows={wanted:,}: {self._request.path} stays as it was"
            )
        # A repeated empty load was checked the first time.
        if self._request.allow_empty or plan.manifest.was_empty or plan.own is not None:
            return
        ranges = plan.emptied if rows else plan.manifest.ranges
        if ranges:
            options = ReadOptions.parse(source)
            check_empty(options, ranges, is_behind=plan.base is not None, subscription=self._request.subscription)

    def _commit(self, plan: Plan, output: Output, delivered: dict[str, Delivered]) -> None:
        """Write the ranges of this load to the commit log before its rows are moved to the output."""
        from pyspark_pulsar.commits import Commit, CommitLog

        request = self._request
        if request.commits is None or plan.own is not None:
            return
        number = 1 if plan.base is None else plan.base.number + 1
        rows = sum(part.rows for part in delivered.values())
        commit = Commit(
            number, request.run, request.path, output.staging, plan.manifest.ranges, rows, request.manifest,
            request.map_index,
        )  # fmt: skip
        CommitLog(self._spark, request.commits).add(commit)

    def _complete(self, document: Document, plan: Plan, delivered: dict[str, Delivered]) -> Outcome:
        from dataclasses import replace

        seconds = round(self._elapsed(), 3)
        done = replace(plan.manifest, delivered=delivered, seconds=seconds, is_done=True)
        document.write(done.to_json())
        self._enter("done")
        request, rows = self._request, done.rows or 0
        codec, stages = self._codec, dict(self._stages)
        with_codec = f", {codec} codec" if codec is not None else ""
        say(
            f"wrote {rows:,} rows in {seconds:.1f} s ({rows / max(seconds, 0.001):,.0f} rows/s{with_codec}) to "
            f"{request.path}"
        )
        return Outcome(
            DONE, rows, len(done.ranges), plan.replayed, request.path, request.manifest, seconds, codec=codec,
            stages=stages,
        )  # fmt: skip

    def _enter(self, stage: str) -> None:
        """End the current stage and begin the next one."""
        now = time.monotonic()
        self._stages[self.stage] = round(self._stages.get(self.stage, 0.0) + now - self._entered, 3)
        self.stage, self._entered = stage, now

    def _elapsed(self) -> float:
        return time.monotonic() - self._started


@contextmanager
def _of_request(what: str) -> Iterator[None]:
    """Raise `InvalidConfiguration` for what Spark refuses, such as the type of a column.

    None of these errors is the broker's: the topics were planned before, and those of the reading tasks are of another
    class.
    """
    from pyspark.errors import AnalysisException, UnsupportedOperationException

    from pulsar_native.exceptions import InvalidConfiguration

    try:
        yield
    except (AnalysisException, UnsupportedOperationException) as error:
        if error.getCondition() in _RETRIED:
            raise
        reason = str(error).strip().partition("\n")[0]
        raise InvalidConfiguration(f"{what}: {reason}") from error


def _has_generator(frame: DataFrame) -> bool:
    """Return True if an expression of a frame makes rows of its own, as explode, inline and stack do.

    json_tuple is planned like them, and makes one row of each.
    """
    plan: Any = frame
    nodes = [plan._jdf.queryExecution().analyzed()]
    while nodes:
        node = nodes.pop()
        if node.nodeName() == "Generate" and node.generator().prettyName() != "json_tuple":
            return True
        children = node.children()
        nodes += [children.apply(index) for index in range(children.size())]
    return False


class Progress:
    """Print the number of finished tasks during a write; a thread that lives as long as the `with` block."""

    def __init__(self, spark: SparkSession, every_seconds: float = 2.0) -> None:
        self._status = spark.sparkContext.statusTracker()
        self._every = every_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pulsar-load-progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        started, said = time.monotonic(), ""
        while not self._over.wait(self._every):
            done = running = tasks = 0
            for stage in self._status.getActiveStageIds():
                info: Any = self._status.getStageInfo(stage)
                if info is not None:
                    done, running, tasks = (
                        done + info.numCompletedTasks,
                        running + info.numActiveTasks,
                        tasks + info.numTasks,
                    )
            text = f"reading: {done} of {tasks} tasks done, {running} running"
            if tasks and text != said:
                say(f"{text} ({time.monotonic() - started:.0f} s)")
                said = text


if __name__ == "__main__":
    # A script's folder is first on the path; this one holds modules that others must not import as packages.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != os.path.dirname(application())]
    sys.exit(main())
