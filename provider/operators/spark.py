"""Spark load operator: one interval of a topic into a Parquet path or a table, by spark-submit in Spark's environment.

Rules: the interval is explicit. The connection is handed over as `PulsarSparkSubmitMixin` does it, in the request
instead of Spark's properties; the request has the reference of the secret only. A retry replays the manifest of its
run, unless that is from before the end of the interval. Success is the load's own report, in its output or its
manifest, never an exit code alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferralTimeout

from airflow_provider_pulsar.arguments import Given, expanded_names
from airflow_provider_pulsar.context import storage_path
from airflow_provider_pulsar.exceptions import staged
from airflow_provider_pulsar.extras import missing
from airflow_provider_pulsar.hooks.spark_rest import FINISHED, NOT_FOUND, TIMEOUT
from airflow_provider_pulsar.lineage import LineageMethods, TaskLineage
from airflow_provider_pulsar.links.pulsar import PulsarTopicLink, SparkUILink
from airflow_provider_pulsar.operators.spark_submit import PulsarSparkSubmitMixin, is_known
from airflow_provider_pulsar.spark_options import (
    LoadColumns,
    LoadOutput,
    LoadValue,
    referenced_key,
    refuse_literals,
    refuse_secrets,
    source_options,
)
from airflow_provider_pulsar.spark_properties import is_set
from airflow_provider_pulsar.state import TaskState
from pulsar_native.jobs import interval as intervals
from pulsar_native.jobs import secrets, validation
from pulsar_native.topic import TopicName

try:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    import pyspark_pulsar  # noqa: F401  # The constructor needs it.
except ImportError as error:
    raise missing("spark", "PulsarSparkLoadOperator") from error

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context
    from pydantic import JsonValue

    from airflow_provider_pulsar.hooks.spark_submit import PulsarSparkSubmitHook

_STATE = "pulsar_load"
# State of an earlier try's job that does not load what is wanted now: a new one is submitted.
_CHANGED = "OTHER_REQUEST"
# Exit codes of the load application without retries: wrong request or refused credentials, and data loss.
_FINAL = {2: "the request or the credentials were refused", 3: "data the interval needs is no longer in the topic"}
_START_OPTIONS, _END_OPTIONS = ("startingtime", "startingoffsets"), ("endingtime", "endingoffsets")
# Options of the source that arguments of the operator stand for, in lower case.
_OWN_OPTIONS = {
    **dict.fromkeys(("topic", "topics", "topicspattern"), "the argument topic names what is loaded"),
    **dict.fromkeys(("columns", "includemetadata"), "the argument metadata names the columns"),
    "valueformat": "the argument value_format stands for it",
    "mode": "the argument value_mode stands for it",
    "columnnameofcorruptrecord": "the argument corrupt_column stands for it",
    "pushdownpredicate": "a load has no query with a filter, and reads all rows",
    "service.url": "the address belongs to the connection and its secret; an address that only Spark uses is the "
    "connection's field spark_service_url",
}
# Characters of the names of DAG and task in that of the commit log, which a file system limits.
_READABLE = 100
# In a template: what differs between the runs of a DAG.
_OF_RUN = re.compile(
    r"""\{[{%][^}]*?(?<![\w.'"])(?:ds|ts|ds_nodash|ts_nodash|ts_nodash_with_tz|run_id|logical_date|prev_\w+"""
    r"""|data_interval_(?:start|end)|triggering_asset_events"""
    r"""|(?:ti|task_instance|dag_run)\.(?!dag_id\b|task_id\b)\w+)\b"""
)
_PATHS = ("output_path", "commits", "manifest", "spark_environment")
_TEXTS = ("topic", *_PATHS, "subscription", "table", "replace_where", "value_schema", "corrupt_column")


class PulsarSparkLoadOperator(LineageMethods, PulsarSparkSubmitMixin, SparkSubmitOperator):
    """Load the messages of an interval of a topic; retries and cleared runs write each row once.

    :param topic: the topic; a partitioned one is read partition by partition. Templated, as are the parameters of
        paths, bounds, `commits` and `subscription`.
    :param output_path: the Parquet path of this interval; it is replaced as a whole, so each interval needs its own.
        With another `output_format` the place of a Delta table without a name; manifest and staged rows are beside it.
    :param interval_start: first publish time that belongs to the interval: a datetime, ISO-8601 text (UTC without
        zone) or ms, inclusive. With `since` it is the start of the first load.
    :param interval_end: first publish time that no longer belongs to it. Both bounds must be there and differ; runs of
        `@hourly` and the like have none in Airflow 3: use `CronDataIntervalTimetable`.
    :param interval: "all" loads everything in the topic at the time of the run.
    :param since: "last_success" loads from where the last successful load of `commits` ended, by message id, up to the
        last message there is: for runs without a data interval. A run that is cleared loads what it loaded before.
    :param commits: folder of the commit log of `since`, on a filesystem of Spark's; by default hidden beside the
        output, named after DAG, task and topic (and connection, in a task that is mapped over connections).
    :param subscription: a durable subscription the load keeps on the topic: made when it is missing, moved behind what
        was loaded. It holds messages on a broker without retention, and the topic itself.
    :param min_rows: fail, and leave the output as it was, when there are fewer rows than this (default 0).
    :param allow_empty: accept no rows without a proof that none were lost (default False: an empty load succeeds only
        where a message from before the interval, or the topic's retention, shows that nothing was removed).
    :param value_format: how values are encoded: json, avro, raw for a binary column, or auto: by the schema registered
        for the topic, of any kind, each message by its own version (needs an admin URL in the connection).
    :param value_schema: the columns of a JSON value as Spark DDL, or the Avro definition as JSON; left out, the schema
        registered for the topic is used, which needs an admin URL in the connection.
    :param value_mode: with auto, values that cannot be decoded: FAILFAST (default) fails, DROPMALFORMED leaves out the
        message, PERMISSIVE keeps it with its bytes in `corrupt_column`.
    :param corrupt_column: the column of PERMISSIVE, by default `_corrupt`.
    :param derive: further columns, name to Spark SQL expression.
    :param partition_by: columns whose values become folders.
    :param metadata: metadata columns to keep.
    :param output_format: parquet (default), delta or iceberg; Spark must have the format's package, extensions and
        catalog (`packages`, `conf`).
    :param output_writer: who writes the Parquet files: "spark", "pyarrow" (the tasks themselves, in about half the
        time, where Spark computes nothing: raw or auto values, no `derive`, no `partition_by`, a local or shared
        filesystem), or "auto" (default): pyarrow where it can.
    :param table: the table's name in a catalog, such as "catalog.database.table"; iceberg needs one. Templated.
    :param write_mode: of a table: "overwrite" (default) replaces the rows of `replace_where` by those loaded; "merge"
        updates the messages that the table has and adds the others.
    :param replace_where: of an overwrite, the SQL condition of the rows that belong to the interval, by default the
        interval of `__publishTime`. Templated.
    :param manifest: path of the manifest, by default beside the output.
    :param source_options: further options of `format("pulsar")`, such as `timeSlackMs`; they win over those of the
        connection. A secret, the topic and `service.url` are refused. With `credentialsRef` the connection's secret is
        not handed over.
    :param verify_manifest: with deploy mode cluster, read the manifest to see that the load is done (default True); the
        path must be one that Airflow's ObjectStoragePath can read.
    :param deferrable: wait in the triggerer for the driver of a standalone cluster (deploy mode cluster), which its
        master's REST server knows; the worker is free meanwhile. With any other master the task waits itself. Default
        `[operators] default_deferrable`.
    :param pulsar_conn_id: the connection of type pulsar.
    :param conn_id: the Spark connection. With a standalone master and deploy mode cluster the driver is started by the
        master's REST server, as spark-submit refuses Python there; application, py_files and the interpreter
        (spark.pyspark.python) are those of the workers, and so are the credentials (`spark_credentials_ref`).
    :param spark_environment: folder of the Python environment that holds pyspark and pyspark-pulsar: its
        `bin/spark-submit` is run, and its Python in the workers. Left out, `spark-submit` is looked for on PATH.
    :param application: path of the load application, where Spark does not find that of this environment.

    All other parameters are those of SparkSubmitOperator. Returns the load's result: rows, partitions, path, manifest,
    seconds. Wrong requests, refused credentials and lost data fail without retries.
    """

    operator_extra_links = (*SparkSubmitOperator.operator_extra_links, PulsarTopicLink(), SparkUILink())
    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "topic",
        "output_path",
        "interval_start",
        "interval_end",
        "commits",
        "subscription",
        "manifest",
        "table",
        "replace_where",
        "source_options",
        "spark_environment",
    )

    def __init__(
        self,
        *,
        topic: str,
        output_path: str,
        interval_start: datetime | str | int | None = None,
        interval_end: datetime | str | int | None = None,
        interval: str | None = None,
        since: str | None = None,
        commits: str | None = None,
        subscription: str | None = None,
        min_rows: int = 0,
        allow_empty: bool = False,
        value_format: str = "json",
        value_schema: str | None = None,
        value_mode: str | None = None,
        corrupt_column: str | None = None,
        derive: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        metadata: Sequence[str] | None = None,
        output_format: str = "parquet",
        output_writer: str = "auto",
        table: str | None = None,
        write_mode: str | None = None,
        replace_where: str | None = None,
        manifest: str | None = None,
        source_options: Mapping[str, str] | str | None = None,
        verify_manifest: bool = True,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        pulsar_conn_id: str = "pulsar_default",
        spark_environment: str | None = None,
        name: str = "pulsar-load",
        **kwargs: Any,
    ) -> None:
        value = LoadValue(value_format, value_schema, value_mode, corrupt_column)
        output = LoadOutput(output_format, table, write_mode, replace_where, output_writer)
        output.check(since)
        if not topic or not output_path:
            validation.refuse("PulsarSparkLoadOperator needs a topic and an output_path")
        if "application_args" in kwargs:
            validation.refuse("application_args is made by PulsarSparkLoadOperator; use its own arguments")
        partition_by = _names("partition_by", partition_by)
        if metadata is not None:
            metadata = _names("metadata", metadata)
        derive = validation.texts("derive", derive)
        columns = LoadColumns(derive, partition_by, metadata)
        output.check_writer(value, columns)
        min_rows = validation.whole("min_rows", min_rows, 0)
        if not isinstance(allow_empty, bool):
            validation.refuse(f"allow_empty must be True or False, not {allow_empty!r}")
        if commits is not None and since is None:
            validation.refuse("commits needs since='last_success': other loads have no commit log")
        super().__init__(pulsar_conn_id=pulsar_conn_id, spark_environment=spark_environment, name=name, **kwargs)
        self.topic = topic
        self.output_path = output_path
        self.interval_start = interval_start
        self.interval_end = interval_end
        self.interval = interval
        self.since = since
        self.commits = commits
        self.subscription = subscription
        self.min_rows = min_rows
        self.allow_empty = allow_empty
        self.value_format = value_format.lower()
        self.value_schema = value_schema
        self.value_mode = value_mode
        self.corrupt_column = corrupt_column
        self.output_format = output_format
        self.output_writer = output_writer
        self.table = table
        self.write_mode = write_mode
        self.replace_where = replace_where
        self.derive = derive
        self.partition_by = partition_by
        self.metadata = metadata
        self.manifest = manifest
        # A template of the whole mapping is known only after rendering.
        options = {} if source_options is None else source_options
        self.source_options: Any = dict(options) if isinstance(options, Mapping) else options
        self.verify_manifest = verify_manifest
        self.deferrable = deferrable
        # A given bound that renders to nothing is an error; a bound that is left out may be missing.
        self._has_start = interval_start is not None
        self._identity: Mapping[str, Any] = {}
        self._is_changed = False
        self._lineage = TaskLineage()
        for name in _PATHS:
            if isinstance(path := getattr(self, name), os.PathLike):
                setattr(self, name, os.fspath(path))
        self._given = Given(self, "commits", "subscription", "manifest", "table", "replace_where", "spark_environment")
        self._check_texts(is_rendered=False)
        self._check_log_folder()
        self._refuse_pulsar_secrets()
        self._bounds(is_rendered=False)
        output.check_overwrite(columns, has_times=self._has_times())

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]  # ours returns the result
        """Run the load and return its result."""
        with staged(f"The load of {self.topic}", "arguments"):
            self._given.check(self)
            self._has_start |= "interval_start" in expanded_names(self)
            self._check_texts(is_rendered=True)
            self._check_mappings(is_rendered=True)
            self._refuse_pulsar_secrets()
            self._bounds(is_rendered=True)
        if not self.application:
            from pyspark_pulsar.load import application

            self.application = application()
        state = self._begin(context)
        self._check_request()
        self.log.info("Loading %s into %s", self.topic, self.output_path)
        try:
            self._submit_with_connection(context)
        except AirflowException as error:
            raise self._failure(error) from error
        except OSError as error:
            raise AirflowException(f"The load of {self.topic} failed at the stage 'submit': {error}") from error
        return self._end(context, state, self._verified_result())

    def _begin(self, context: Context) -> TaskState:
        """Set what every process of this try needs, and return the task's state."""
        # As the api-server shows it: a short name is one of the connection's default namespace.
        self.topic = self._pulsar_hook().topic_name(self.topic)
        state = TaskState(context, _STATE)
        self._identify(context, state)
        return state

    def _end(self, context: Context, state: TaskState, result: dict[str, Any]) -> dict[str, Any]:
        """Forget the job of a load that is done, report it, and return its result."""
        self._forget_job(context)
        state.delete()
        self._report(context, result)
        return result

    # ---- jobs of earlier tries ---------------------------------------------------------------------------------------

    def get_job_status(self, external_id: JsonValue, context: Context) -> str:
        """Return the state of an earlier try's job; it is ended and forgotten if it loads another request."""
        status, job_id = super().get_job_status(external_id, context), str(external_id)
        if self._is_changed:
            self.log.warning(
                "The job %s (%s) of an earlier try loads another request: arguments or the connection were changed "
                "since. It is ended, and the load is submitted again", job_id, status,
            )  # fmt: skip
            if self._hook is not None and self.is_job_active(status):
                self._hook.end_job(job_id)
            self._forget_job(context)
            self._keep_attempt(TaskState(context, _STATE))
            return _CHANGED
        return FINISHED if status == NOT_FOUND and self._is_done() else status

    # ---- waiting for the driver of a standalone cluster --------------------------------------------------------------

    def poll_until_complete(self, external_id: JsonValue, context: Context) -> None:
        """Wait until the driver is done, in the triggerer if that is wanted and possible."""
        hook, driver_id = self._hook, str(external_id)
        if hook is None or not hook.is_started_by_rest:
            super().poll_until_complete(external_id, context)
            return
        hook._driver_id = driver_id
        if self.deferrable:
            from airflow_provider_pulsar.triggers.spark import GRACE_SECONDS, SparkDriverTrigger

            limit = self.execution_timeout
            end_time = None if limit is None else time.time() + limit.total_seconds()
            self.defer(
                trigger=SparkDriverTrigger(
                    hook.rest_server.urls, driver_id, self._status_poll_interval, end_time=end_time
                ),
                method_name="execute_complete",
                # Kept here too: without `durable` the state store does not know of the job.
                kwargs={"attempt": self._identity["attempt"]},
                timeout=None if limit is None else limit + timedelta(seconds=GRACE_SECONDS),
            )
        status = hook.rest_server.wait(driver_id, self._status_poll_interval)
        self._check_driver(driver_id, status.state, status.message)

    def execute_complete(
        self, context: Context, event: Mapping[str, Any] | None = None, attempt: str | None = None
    ) -> dict[str, Any]:
        """Return the result of the load whose driver is done, or raise for one that failed."""
        state = self._begin(context)
        if attempt is not None:
            self._identity = {**self._identity, "attempt": attempt}
        if event is None or "state" not in event:
            raise AirflowException(f"The trigger waiting for the load of {self.topic} sent no event")
        self._check_driver(str(event["driver_id"]), str(event["state"]), str(event["message"]))
        return self._end(context, state, self._remote_result())

    def _check_driver(self, driver_id: str, state: str, message: str) -> None:
        more = f": {message}" if message else ""
        if state == TIMEOUT:
            raise TaskDeferralTimeout(
                f"The load of {self.topic} took longer than execution_timeout ({self.execution_timeout}); its driver "
                f"{driver_id}{more}"
            )
        if state == NOT_FOUND:
            if self._is_done():
                return
            raise AirflowException(
                f"The driver {driver_id} of the load of {self.topic} is gone{more}, as after a restart of a master "
                "without recovery (spark.deploy.recoveryMode); the manifest does not tell that the load is done, so "
                "the next try submits it again"
            )
        if state != FINISHED:
            raise AirflowException(
                f"The load of {self.topic} failed: its driver {driver_id} ended as {state}{more}. The driver's log is "
                "on the worker that ran it; the master's page links to it"
            )

    # ---- reports -----------------------------------------------------------------------------------------------------

    def _report(self, context: Context, result: Mapping[str, Any]) -> None:
        """Report topic and output; the load is done, so no error of reporting may fail the task."""
        hook = self._pulsar_hook()
        try:
            self._lineage.begin(hook)
            ids = self._ids(result) if self.outlets else None
            self._lineage.succeed(self, context, hook, result, read=[self.topic], partitions=ids)
        except AirflowException as error:
            self.log.warning("The lineage of the load could not be reported: %s", error)

    def _ids(self, result: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return first and last message id by partition, None if the manifest cannot be read from here."""
        try:
            parts = json.loads(storage_path(str(result.get("manifest"))).read_text())["partitions"]
            return {part["topic"]: part for part in parts if part.get("first")}
        except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError):
            return None

    # ---- request -----------------------------------------------------------------------------------------------------

    def _check_texts(self, *, is_rendered: bool) -> None:
        """Raise for an argument that is no text, as far as it is known yet."""
        for name in _TEXTS:
            value = getattr(self, name)
            if (value is not None or name in ("topic", "output_path")) and (is_rendered or is_known(value)):
                validation.text(name, value)

    def _check_log_folder(self) -> None:
        """Raise if the default commit log of `since` would lie in another folder in each run, and so be a new one."""
        if not self.since or self.commits is not None or not isinstance(self.output_path, str):
            return
        folder = self.output_path.rstrip("/").rpartition("/")[0]
        if found := _OF_RUN.search(folder):
            validation.refuse(
                f"since={self.since!r} keeps its commit log in the folder of the outputs, {folder!r}, which "
                f"{found[0].strip('{% ')!r} makes another one in each run: each would load everything again. Give "
                "commits a folder that stays"
            )

    def _refuse_pulsar_secrets(self) -> None:
        super()._refuse_pulsar_secrets()
        options = self.source_options
        if not isinstance(options, Mapping):
            if not is_known(options):
                return
            validation.refuse("source_options must be a mapping of option names to texts")
        if found := secrets.secret_names(options):
            refuse_literals("source_options", found)
        if not all(isinstance(each, str) or not is_known(each) for pair in options.items() for each in pair):
            validation.refuse("source_options must be a mapping of option names to texts")
        reference = next((str(text) for name, text in options.items() if name.lower() == "credentialsref"), "")
        refuse_secrets("conf", self.conf, referenced_key("source_options", reference))
        names = [name.lower() for name in options]
        if double := [name for name in options if names.count(name.lower()) > 1]:
            validation.refuse(
                f"source_options has one option twice ({', '.join(double)}): case is ignored; leave one out"
            )
        for name in options:
            if reason := _OWN_OPTIONS.get(name.lower()):
                validation.refuse(f"source_options must not have {name!r}: {reason}")

    def _bounds(self, *, is_rendered: bool) -> dict[str, str]:
        """Return the bounds as options of the source; raises for an invalid interval, as far as it is known yet."""
        names = list(self.source_options) if isinstance(self.source_options, Mapping) else []
        starts, ends = ([name for name in names if name.lower() in known] for known in (_START_OPTIONS, _END_OPTIONS))
        # A bound rendered to None differs from one that is left out.
        start = "None" if self._has_start and self.interval_start is None else self.interval_start
        bounds = intervals.Bounds(start, self.interval_end, self.interval, self.since, starts, ends)
        return bounds.options(is_rendered=is_rendered)

    def _has_times(self) -> bool:
        """Return True if both bounds are publish times, also such that are not known yet."""
        options = self.source_options if isinstance(self.source_options, Mapping) else {}
        starts, ends = (
            bound is not None or is_set(options, option)
            for bound, option in ((self.interval_start, "startingTime"), (self.interval_end, "endingTime"))
        )
        return starts and ends

    def _check_request(self) -> None:
        """Raise for what the application would refuse, before Spark starts: options of the source and the like."""
        from pyspark_pulsar.request import LoadRequest

        with staged(f"The load of {self.topic}", "arguments"):
            LoadRequest.parse(json.dumps(self._request(self._pulsar_hook().connection_options(), None)))

    def _request(self, options: Mapping[str, object], reference: str | None) -> dict[str, Any]:
        # Names of options have no case: the connection's option would stand beside that of the user.
        ours = {name: text for name, text in source_options(options).items() if not is_set(self.source_options, name)}
        source = {**ours, "topic": self.topic, **self.source_options}
        source.update(self._bounds(is_rendered=True))
        if reference:
            source["credentialsRef"] = reference
        value = LoadValue(self.value_format, self.value_schema, self.value_mode, self.corrupt_column)
        request: dict[str, Any] = {
            "source": source,
            "value": value.part(),
            "output": {"path": self.output_path, "partition_by": self.partition_by, **self._output().part()},
            "run": self._identity["run"],
            "attempt": self._identity["attempt"],
            "min_rows": self.min_rows,
            "allow_empty": self.allow_empty,
        }
        optional = {
            "interval": self.interval,
            "since": self.since,
            "commits": self._commits() if self.since else None,
            "map_index": self._identity["map_index"] if self.since else None,
            "subscription": self.subscription,
            "derive": self.derive or None,
            "metadata": self.metadata,
            "manifest": self.manifest or None,
        }
        return {**request, **{name: part for name, part in optional.items() if part is not None}}

    def _output(self) -> LoadOutput:
        return LoadOutput(self.output_format, self.table, self.write_mode, self.replace_where, self.output_writer)

    def _commits(self) -> str:
        from pyspark_pulsar.request import split_path

        return self.commits or f"{split_path(self.output_path)[0]}.{self._identity['log']}.commits"

    def _log_name(self, dag_id: str) -> str:
        """Return the name of the default commit log: that of what is loaded, in every run and mapped or not.

        A map index is a place in the list of one run: the same topic may have another one in the next.
        """
        with staged(f"The load of {self.topic}", "arguments"):
            names = [dag_id, self.task_id, TopicName.parse(self.topic).full]
        # Clusters may have topics of one name. Otherwise the connection may get another id.
        if "pulsar_conn_id" in expanded_names(self):
            names.append(self.pulsar_conn_id)
        digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]
        return f"{dag_id}.{self.task_id}"[:_READABLE] + f".{digest}"

    def _identify(self, context: Context, state: TaskState) -> None:
        """Set the names of this run, task and attempt; a reconnected job of the same request keeps its attempt."""
        ti: Any = context.get("ti")
        map_index = getattr(ti, "map_index", None)
        store: Any = context.get("task_state_store")
        kept = state.get() if store is not None and store.get(self.external_id_key) else None
        dag_id = getattr(ti, "dag_id", "dag")
        # Neither run nor log has the map index: when a run is cleared, its list may have changed.
        self._identity = {
            "run": context["run_id"],
            "map_index": None if map_index is None or map_index < 0 else map_index,
            "log": self._log_name(dag_id) if self.since and not self.commits else None,
            "attempt": uuid.uuid4().hex,
        }
        request = self._request(self._pulsar_hook().connection_options(), None)
        del request["attempt"]
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        self._identity = {**self._identity, "request": digest}
        # An older version has kept no digest.
        self._is_changed = kept is not None and kept.get("request", digest) != digest
        # The job of another request is ended first: until then the state is that of the job.
        if self._is_changed:
            return
        if kept is not None:
            self._identity = {**self._identity, "attempt": str(kept["attempt"])}
        self._keep_attempt(state)

    def _keep_attempt(self, state: TaskState) -> None:
        state.set({name: self._identity[name] for name in ("attempt", "request")})

    # ---- result ------------------------------------------------------------------------------------------------------

    def _failure(self, error: AirflowException) -> AirflowException:
        result = self._hook.result if self._hook is not None else None
        if result is None or isinstance(error, AirflowFailException):
            return error
        code = result.get("exit_code")
        stage = result.get("stage") or "start"
        text = f"The load of {self.topic} failed at the stage '{stage}': {result.get('error')}"
        if code in _FINAL:
            return AirflowFailException(f"{text} ({_FINAL[code]}; a retry would not help)")
        return AirflowException(text)

    def _verified_result(self) -> dict[str, Any]:
        """Return the load's own report; raises without one, whatever spark-submit returned."""
        hook = self._hook
        if hook is not None and hook.result is not None:
            if hook.result.get("exit_code") != 0:
                raise self._failure(AirflowException("spark-submit ended well although the load failed"))
            return hook.result
        if hook is None or hook.has_driver_here:
            raise AirflowException(
                f"spark-submit ended with exit code 0, but the load of {self.topic} printed no result: it was not run, "
                "or its output was kept back. See the log above; nothing tells that it is done"
            )
        return self._remote_result()

    def _remote_result(self) -> dict[str, Any]:
        """Return the result of a driver that ran elsewhere."""
        if not self.verify_manifest:
            return {"status": "done", "path": self.output_path, "manifest": self._manifest_path()}
        return self._result_of_manifest()

    def _manifest_path(self) -> str:
        from pyspark_pulsar.request import LoadRequest, beside

        if self.manifest:
            return self.manifest
        # That of a table is named after the request: several intervals have theirs in one folder.
        if self.output_format.lower() == "parquet":
            return beside(self.output_path)
        # The same for every try, whatever the reference of the secret was.
        request = self._request(self._pulsar_hook().connection_options(), None)
        return LoadRequest.parse(json.dumps(request)).manifest

    def _is_done(self) -> bool:
        """Return True if the manifest can be read and tells that this load is done."""
        try:
            self._result_of_manifest()
        except AirflowException:
            return False
        return True

    def _result_of_manifest(self) -> dict[str, Any]:
        """Return the result of a remote driver from its manifest."""
        path = self._manifest_path()
        try:
            found = json.loads(storage_path(path).read_text())
        except (OSError, ValueError, ImportError) as error:
            raise AirflowException(
                f"The manifest {path} cannot be read ({type(error).__name__}: {error}), so nothing tells that the load "
                "is done: give manifest a path that Spark writes and Airflow reads, or verify_manifest=False to trust "
                "the exit code of spark-submit"
            ) from error
        is_ours = found.get("attempt") == self._identity["attempt"]
        if found.get("status") != "done" or not is_ours:
            raise AirflowException(
                f"spark-submit ended well, but the manifest {path} does not tell that this load is done: its status is "
                f"{found.get('status')!r}, written by {'this' if is_ours else 'another'} try"
            )
        return {
            "status": "done",
            "exit_code": 0,
            "rows": found["rows"],
            "partitions": len(found["partitions"]),
            "path": self.output_path,
            "manifest": path,
            "seconds": found["seconds"],
        }

    # ---- spark-submit ------------------------------------------------------------------------------------------------

    def _prepare_submit(self, hook: PulsarSparkSubmitHook) -> None:
        hook.process_env |= self._process_env()
        pulsar = self._pulsar_hook()
        has_own = is_set(self.source_options, "credentialsRef")
        request = self._request(pulsar.connection_options(), None if has_own else self._hand_over(hook, pulsar))
        hook.set_arguments(["--request", json.dumps(request)])

    # ---- OpenLineage -------------------------------------------------------------------------------------------------

    def _openlineage(self) -> OperatorLineage[Any, Any]:
        from airflow_provider_pulsar import openlineage

        hook = self._pulsar_hook()
        url, topic = self._lineage.service_url or hook.service_url(), hook.topic_name(self.topic)
        result = self._lineage.result
        fields: list[tuple[str, str]] = []
        if self.value_schema:
            fields = (openlineage.avro_fields if self.value_format == "avro" else openlineage.ddl_fields)(
                self.value_schema
            )
        # Where a catalog keeps a table is known to Spark only.
        path = openlineage.path_name(self.output_path)
        return openlineage.lineage(
            self.pulsar_conn_id,
            result,
            inputs=[openlineage.input_dataset(openlineage.topic_name(url, topic), result, fields)],
            outputs=[] if self.table else [openlineage.output_dataset(path, result, fields)],
        )

    def on_kill(self) -> None:
        """Stop the load and remove its credentials."""
        # Without a hook nothing was started.
        if self._hook is not None:
            super().on_kill()


def _names(name: str, value: Any) -> list[str]:
    """Return the names of columns; raises ValueError for anything else."""
    is_list = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    if not is_list or not all(isinstance(each, str) and each.strip() for each in value):
        validation.refuse(f"{name} must be a list of column names, not {type(value).__name__}")
    return list(value)
