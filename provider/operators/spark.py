"""The Spark load: one interval of a topic into one Parquet path, by spark-submit in Spark's own environment.

Rules: the secret of the connection never reaches the command line, `--conf`, a log, a rendered field or XCom: local
masters get it in the environment of the one process that needs it, all others as a file of mode 0600 that is handed to
`--files` and removed afterwards; the request names only where it is. Everything is put together in `execute`, after
templates were rendered, so nothing of it is stored. A retry replays the manifest of the same run.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pulsar.hooks.pulsar import PulsarHook
from pulsar_native.jobs import validation

if TYPE_CHECKING:
    from airflow.sdk import Context

VALUE_FORMATS = ("json", "avro", "raw")
_RESULT = '{"pulsar_load":'
_VARIABLE = "PULSAR_CREDENTIALS"
# Exit codes of the load application that no retry mends: a wrong request or refused credentials, and lost data.
_FINAL = {2: "the request or the credentials were refused", 3: "data the interval needs is no longer in the topic"}


# Fields of the connection that the data source takes as options.
_OPTIONS = {
    "service_url": "service.url",
    "admin_url": "admin.url",
    "listener_name": "pulsar.client.listenerName",
    "tls_trust_certs_file_path": "pulsar.client.tlsTrustCertsFilePath",
    "tls_allow_insecure_connection": "pulsar.client.tlsAllowInsecureConnection",
    "tls_validate_hostname": "pulsar.client.tlsHostnameVerificationEnable",
}


class _LoadHook(SparkSubmitHook):
    """spark-submit with variables for the started process alone, and an eye on the load's last line."""

    def __init__(self, *, process_env: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.process_env = dict(process_env)
        self.result: dict[str, Any] | None = None

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are one process tree on this machine."""
        return str(self._connection["master"]).startswith("local")

    def hand_over_file(self, path: str) -> None:
        """Let Spark copy a file to the driver and every executor."""
        self._files = f"{self._files},{path}" if self._files else path

    def _build_spark_common_args(self) -> list[str]:
        args: list[str] = super()._build_spark_common_args()
        # Only now: what the base class puts on the command line for some masters must not include these.
        self._env = {**(self._env or {}), **self.process_env}
        return args

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        super()._process_spark_submit_log(self._watched(itr))

    def _watched(self, lines: Iterator[Any]) -> Iterator[Any]:
        for line in lines:
            start = str(line).find(_RESULT)
            if start >= 0:
                with contextlib.suppress(ValueError):
                    self.result = json.loads(str(line)[start:])["pulsar_load"]
            yield line


class PulsarSparkLoadOperator(SparkSubmitOperator):
    """Load the messages of a topic that belong to an interval into Parquet, retried and cleared without a double row.

    :param topic: the topic; a partitioned one is read partition by partition.
    :param output_path: the Parquet path of this interval; it is replaced as a whole, so each interval needs its own.
    :param interval_start: first publish time that belongs to the interval (ISO-8601 or ms), inclusive. Without both
        bounds everything in the topic at the time of the run is loaded.
    :param interval_end: first publish time that no longer belongs to it.
    :param value_format: how values are encoded: json, avro, or raw for a binary column.
    :param value_schema: the columns of a JSON value as Spark DDL, or the Avro definition as JSON; left out, the schema
        registered for the topic is used, which needs an admin URL in the connection.
    :param derive: further columns, name to Spark SQL expression.
    :param partition_by: columns whose values become folders.
    :param metadata: metadata columns to keep.
    :param manifest: path of the manifest, by default beside the output.
    :param source_options: further options of `format("pulsar")`, such as `timeSlackMs`; never a secret.
    :param pulsar_conn_id: the connection of type pulsar.
    :param conn_id: the Spark connection.
    :param spark_environment: folder of the Python environment that holds pyspark and pyspark-pulsar: its
        `bin/spark-submit` is run, and its Python in the workers. Left out, `spark-submit` is looked for on PATH.
    :param application: path of the load application, where Spark does not find that of this environment.

    All other parameters are those of SparkSubmitOperator. Returns the load's result: rows, partitions, path, manifest,
    seconds. Wrong requests, refused credentials and lost data fail without retries.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "topic",
        "output_path",
        "interval_start",
        "interval_end",
        "manifest",
        "source_options",
        "spark_environment",
    )

    def __init__(
        self,
        *,
        topic: str,
        output_path: str,
        interval_start: str | None = None,
        interval_end: str | None = None,
        value_format: str = "json",
        value_schema: str | None = None,
        derive: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        metadata: Sequence[str] | None = None,
        manifest: str | None = None,
        source_options: Mapping[str, str] | None = None,
        pulsar_conn_id: str = PulsarHook.default_conn_name,
        spark_environment: str | None = None,
        name: str = "pulsar-load",
        **kwargs: Any,
    ) -> None:
        validation.choice("value_format", value_format, VALUE_FORMATS)
        if not topic or not output_path:
            validation.refuse("PulsarSparkLoadOperator needs a topic and an output_path")
        if "application_args" in kwargs:
            validation.refuse("application_args is made by PulsarSparkLoadOperator; use its own arguments")
        if isinstance(partition_by, str):
            validation.refuse("partition_by must be a list of column names, not a text")
        super().__init__(name=name, **kwargs)
        self.topic = topic
        self.output_path = output_path
        self.interval_start = interval_start
        self.interval_end = interval_end
        self.value_format = value_format
        self.value_schema = value_schema
        self.derive = dict(derive or {})
        self.partition_by = list(partition_by)
        self.metadata = None if metadata is None else list(metadata)
        self.manifest = manifest
        self.source_options = dict(source_options or {})
        self.pulsar_conn_id = pulsar_conn_id
        self.spark_environment = spark_environment
        self._load_hook: _LoadHook | None = None
        self._credentials_file: str | None = None

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]  # ours returns the result
        """Run the load and return its result."""
        if not self.application:
            from pyspark_pulsar.load import application

            self.application = application()
        hook = self._get_hook()
        pulsar = PulsarHook(self.pulsar_conn_id)
        try:
            options = pulsar.connection_options()
            # Where Spark has the credentials by its own means, Airflow need not hand them over, nor even know them.
            own = options.get("spark_credentials_ref")
            reference = str(own) if own else self._hand_over(hook, pulsar.credentials())
            request = self._request(options, reference, context)
            self.application_args = hook._application_args = ["--request", json.dumps(request)]
            self._hook = hook
            self.log.info("Loading %s into %s", self.topic, self.output_path)
            try:
                super().execute(context)
            except AirflowException as error:
                raise self._failure(hook.result, error) from error
        finally:
            self._remove_credentials()
        if hook.result is None:
            # In the cluster deploy modes the driver's output is elsewhere; the manifest beside the output has it all.
            self.log.info("The load's own output is not here; see the manifest beside %s", self.output_path)
            return {"status": "done", "path": self.output_path, "manifest": self.manifest}
        return hook.result

    def _failure(self, result: Mapping[str, Any] | None, error: AirflowException) -> AirflowException:
        if result is None:
            return error
        code = result.get("exit_code")
        text = f"The load of {self.topic} failed: {result.get('error')}"
        if code in _FINAL:
            return AirflowFailException(f"{text} ({_FINAL[code]}; a retry would not help)")
        return AirflowException(text)

    def _get_hook(self) -> _LoadHook:
        if self._load_hook is None:
            plain = super()._get_hook()
            self._load_hook = _LoadHook.__new__(_LoadHook)
            # The base class builds the hook from its own arguments; ours is that hook with two abilities more.
            self._load_hook.__dict__.update(plain.__dict__)
            self._load_hook.process_env = self._process_env()
            self._load_hook.result = None
        return self._load_hook

    def _process_env(self) -> dict[str, str]:
        if not self.spark_environment:
            return {}
        folder = os.path.join(self.spark_environment, "bin")
        python = os.path.join(folder, "python")
        if not os.path.exists(os.path.join(folder, "spark-submit")):
            validation.refuse(f"spark_environment: there is no spark-submit in {folder}; install pyspark there")
        env = {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}", "PYSPARK_DRIVER_PYTHON": python}
        # The worker's own environment must not leak into Spark's: another pyspark may be on its path.
        env |= {"PYSPARK_PYTHON": python, "PYTHONPATH": ""}
        homes = sorted(Path(self.spark_environment).glob("lib/python3*/site-packages/pyspark"))
        return {**env, "SPARK_HOME": str(homes[-1])} if homes else env

    def _hand_over(self, hook: _LoadHook, credentials: Mapping[str, str] | None) -> str | None:
        """Bring the secret to where Spark can read it and return its reference, None without authentication."""
        if credentials is None:
            return None
        secret = json.dumps(credentials)
        if hook.is_local:
            hook.process_env[_VARIABLE] = secret
            return f"env:{_VARIABLE}"
        descriptor, path = tempfile.mkstemp(prefix="pulsar-credentials-", suffix=".json")
        # mkstemp makes the file readable by its owner only.
        with os.fdopen(descriptor, "w") as file:
            file.write(secret)
        self._credentials_file = path
        hook.hand_over_file(path)
        return f"file:{os.path.basename(path)}"

    def _request(self, options: Mapping[str, object], reference: str | None, context: Context) -> dict[str, Any]:
        source = {**_source_options(options), "topic": self.topic, **self.source_options}
        if self.interval_start:
            source["startingTime"] = str(self.interval_start)
        if self.interval_end:
            source["endingTime"] = str(self.interval_end)
        if reference:
            source["credentialsRef"] = reference
        value = {"format": self.value_format, **({"schema": self.value_schema} if self.value_schema else {})}
        request: dict[str, Any] = {
            "source": source,
            "value": value,
            "output": {"path": self.output_path, "partition_by": self.partition_by},
            "run": str(context["run_id"]),
        }
        if self.derive:
            request["derive"] = self.derive
        if self.metadata is not None:
            request["metadata"] = self.metadata
        if self.manifest:
            request["manifest"] = self.manifest
        return request

    def _remove_credentials(self) -> None:
        if self._credentials_file is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._credentials_file)
            self._credentials_file = None
        if self._load_hook is not None:
            self._load_hook.process_env.pop(_VARIABLE, None)
            if self._load_hook._env:
                self._load_hook._env.pop(_VARIABLE, None)

    def on_kill(self) -> None:
        """Stop the load and remove the credentials handed over."""
        try:
            super().on_kill()
        finally:
            self._remove_credentials()


def _source_options(connection: Mapping[str, object]) -> dict[str, str]:
    """Return the options of `format("pulsar")` for a connection's fields, as the texts Spark takes."""
    found = {}
    for field, option in _OPTIONS.items():
        value = connection.get(field)
        if value not in (None, ""):
            found[option] = str(value).lower() if isinstance(value, bool) else str(value)
    # The addresses as Spark sees them may differ from Airflow's.
    for field, option in (("spark_service_url", "service.url"), ("spark_admin_url", "admin.url")):
        if connection.get(field):
            found[option] = str(connection[field])
    timeout = connection.get("operation_timeout_seconds")
    if isinstance(timeout, int | float):
        found["pulsar.client.operationTimeoutMs"] = str(int(timeout * 1000))
    return found
