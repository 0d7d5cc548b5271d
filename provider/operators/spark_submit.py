"""Mixin for SparkSubmit operators: the application they submit can reach Pulsar by an Airflow connection.

Rules: the connection's secret never reaches the command line, `--conf`, a log, a rendered field or XCom: with a local
master it is in the environment of the started process, otherwise in a private file passed by `--files` and removed
afterwards; the application gets its reference only. Everything is added to the hook when it is about to submit, after
rendering, so that nothing of it is stored, and a task that finds its application running hands nothing over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pulsar import credentials_file
from airflow_provider_pulsar.exceptions import CheckedArguments, staged
from airflow_provider_pulsar.extras import missing
from airflow_provider_pulsar.hooks.spark_rest import NOT_FOUND
from airflow_provider_pulsar.hooks.spark_submit import PulsarSparkSubmitHook
from airflow_provider_pulsar.links.pulsar import SparkUILink
from airflow_provider_pulsar.spark_options import CREDENTIALS_VARIABLE, referenced_key, refuse_secrets
from airflow_provider_pulsar.spark_properties import CREDENTIALS_REF, is_set, with_connection
from pulsar_native.jobs import interval as intervals
from pulsar_native.jobs import validation

try:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
except ImportError as error:
    raise missing("spark", "PulsarSparkSubmitMixin") from error

if TYPE_CHECKING:
    import jinja2
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context
    from pydantic import JsonValue

    from airflow_provider_pulsar.hooks.pulsar import PulsarHook


class PulsarSparkSubmitMixin(CheckedArguments, SparkSubmitOperator):
    """Give the application of a SparkSubmit operator a Pulsar connection.

    Name it before the operator, which may be SparkSubmitOperator or any class derived from it, with a hook of its own
    too: `class LoadOrders(PulsarSparkSubmitMixin, SparkSubmitOperator): ...`. The application, in Python, reads the
    options back: `spark.read.format("pulsar").options(**connection_options(spark))`, with `connection_options` of
    `pyspark_pulsar`.

    :param pulsar_conn_id: the connection of type pulsar. What is no secret in it becomes Spark properties:
        spark.pulsar.service.url, spark.pulsar.admin.url, spark.pulsar.client.listenerName and so on. Those that `conf`
        has already are left. The secret is passed by reference, spark.pulsar.credentialsRef: with a local master in an
        environment variable, otherwise in a file that Spark copies to driver and executors and that is removed when the
        task ends; with `spark_credentials_ref` in the connection Spark has it itself.
    :param spark_environment: folder of the Python environment that holds pyspark and pyspark-pulsar: its
        `bin/spark-submit` is run, and its Python in the workers. Left out, `spark-submit` is looked for on PATH.

    All other parameters are those of the operator; an `execute` of the class itself must call that of `super()`. A
    secret of Pulsar in `conf` or `env_vars` raises ValueError. A driver that a standalone master starts (deploy mode
    cluster) needs `spark_credentials_ref` where the connection has a secret; one in Python is started by the master's
    REST server, as spark-submit refuses it. On Linux a spark-submit ends with its task. A link to Spark's web
    interface: `SparkUILink()` in the class's `operator_extra_links`.
    """

    # No template_fields or links here: they would hide those of the operator behind it.
    _submit_hook: PulsarSparkSubmitHook | None = None

    def __init__(
        self, *, pulsar_conn_id: str = "pulsar_default", spark_environment: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.pulsar_conn_id = pulsar_conn_id
        self.spark_environment = spark_environment
        self._pulsar_context: Context | None = None
        self._pulsar_credentials: Path | None = None
        self._check_mappings(is_rendered=False)
        # Not that of a derived class, whose attributes are not set yet.
        PulsarSparkSubmitMixin._refuse_pulsar_secrets(self)

    @property
    def _hook(self) -> PulsarSparkSubmitHook | None:
        return self._submit_hook

    @_hook.setter
    def _hook(self, hook: SparkSubmitHook | None) -> None:
        """Take the hook that the operator has made, by whatever `_get_hook` there is."""
        extended = None if hook is None else PulsarSparkSubmitHook.of(hook)
        if extended is not None:
            extended.is_python = str(self.application).endswith(".py")
            extended.on_submit = self._prepare_submit
            extended.on_ui_url = self._push_ui_url
        self._submit_hook = extended

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: jinja2.Environment,
        seen_oids: set[int],
    ) -> None:
        """Render the fields, and raise for a secret before Airflow stores them; called for mapped tasks too."""
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        if parent is self:
            with staged(f"The application of {self.task_id}", "arguments"):
                self._check_mappings(is_rendered=True)
                self._refuse_pulsar_secrets()

    def execute(self, context: Context) -> Any:
        """Submit the application with the connection."""
        result = self._submit_with_connection(context)
        self._forget_job(context)
        return result

    def get_job_status(self, external_id: JsonValue, context: Context) -> str:
        """Return the state of an earlier try's job; a driver its standalone master does not know is submitted again."""
        hook = self._hook
        if hook is None or not hook.has_standalone_driver:
            return super().get_job_status(external_id, context)
        try:
            status = hook.rest_server.status(str(external_id))
        except AirflowException as error:
            raise AirflowException(
                f"The state of the driver {external_id}, which an earlier try started, is not known: {error}"
            ) from error
        if status.state == NOT_FOUND:
            self.log.warning("The driver %s of an earlier try is gone: %s", external_id, status.message)
        return status.state

    def on_kill(self) -> None:
        """Stop the application and remove the credentials."""
        try:
            super().on_kill()
        finally:
            self._remove_credentials()

    def _submit_with_connection(self, context: Context) -> Any:
        self._check_mappings(is_rendered=True)
        self._refuse_pulsar_secrets()
        self._pulsar_context = context
        try:
            return super().execute(context)
        finally:
            self._remove_credentials()

    def _forget_job(self, context: Context) -> None:
        """Forget the job of a finished run: a cleared run must submit again instead of finding the finished job."""
        store: Any = context.get("task_state_store")
        if store is not None:
            for key in (self.external_id_key, self._K8S_DRIVER_STATUS_KEY):
                store.delete(key)

    # ---- before the submit -------------------------------------------------------------------------------------------

    def _prepare_submit(self, hook: PulsarSparkSubmitHook) -> None:
        """Add the connection to what is about to be submitted."""
        hook.process_env |= self._process_env()
        pulsar = self._pulsar_hook()
        properties = with_connection(hook.properties, pulsar.connection_options())
        if not is_set(properties, CREDENTIALS_REF) and (reference := self._hand_over(hook, pulsar)):
            properties[CREDENTIALS_REF] = reference
        hook.set_properties(properties)

    def _hand_over(self, hook: PulsarSparkSubmitHook, pulsar: PulsarHook) -> str | None:
        """Store the secret where Spark can read it and return its reference, None without authentication."""
        # If Spark has the credentials itself, Airflow need not pass them, nor have them.
        if own := pulsar.connection_options().get("spark_credentials_ref"):
            return str(own)
        credentials = pulsar.credentials()
        if credentials is None:
            return None
        if hook.has_standalone_driver:
            raise AirflowFailException(
                "Credentials cannot be handed over to a driver that a standalone master starts: put them where drivers "
                "and executors run, and name the place in the connection's spark_credentials_ref (env:NAME, file:/path)"
            )
        secret = json.dumps(credentials)
        if hook.is_local:
            hook.process_env[CREDENTIALS_VARIABLE] = secret
            return f"env:{CREDENTIALS_VARIABLE}"
        # A hook of a user's may submit again.
        if self._pulsar_credentials is None:
            self._pulsar_credentials = credentials_file.write(secret)
            hook.hand_over_file(str(self._pulsar_credentials))
        return f"file:{self._pulsar_credentials.name}"

    def _remove_credentials(self) -> None:
        if self._pulsar_credentials is not None:
            self._pulsar_credentials.unlink(missing_ok=True)
            self._pulsar_credentials = None
        if self._submit_hook is not None:
            self._submit_hook.forget_variable(CREDENTIALS_VARIABLE)

    def _process_env(self) -> dict[str, str]:
        if not self.spark_environment:
            return {}
        folder = os.path.join(self.spark_environment, "bin")
        python = os.path.join(folder, "python")
        if not os.path.exists(os.path.join(folder, "spark-submit")):
            validation.refuse(f"spark_environment: there is no spark-submit in {folder}; install pyspark there")
        env = {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}", "PYSPARK_DRIVER_PYTHON": python}
        # The worker's environment must not reach Spark's: another pyspark may be on its path.
        env |= {"PYSPARK_PYTHON": python, "PYTHONPATH": ""}
        homes = sorted(Path(self.spark_environment).glob("lib/python3*/site-packages/pyspark"))
        return {**env, "SPARK_HOME": str(homes[-1])} if homes else env

    def _pulsar_hook(self) -> PulsarHook:
        # Who parses DAGs needs no client.
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook

        return PulsarHook(self.pulsar_conn_id)

    def _push_ui_url(self, url: str) -> None:
        """Make the link work while the application runs: Airflow itself stores links when a task has ended."""
        ti: Any = None if self._pulsar_context is None else self._pulsar_context.get("ti")
        if ti is not None and any(isinstance(link, SparkUILink) for link in self.operator_extra_links):
            ti.xcom_push(key=SparkUILink().xcom_key, value=url)

    def _check_mappings(self, *, is_rendered: bool) -> None:
        """Raise for `conf` and `env_vars` that are no mappings, in which no secret is found; no value is repeated."""
        for name in ("conf", "env_vars"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping) and (is_rendered or is_known(value)):
                validation.refuse(f"{name} must be a mapping of names to values, not {type(value).__name__}")

    def _refuse_pulsar_secrets(self) -> None:
        """Raise for secrets that would reach a command line, a log or a stored field; no value is repeated."""
        conf = self.conf if isinstance(self.conf, Mapping) else {}
        reference = next((str(text) for name, text in conf.items() if is_set({name: text}, CREDENTIALS_REF)), "")
        refuse_secrets("conf", self.conf, referenced_key("conf", reference))
        refuse_secrets("env_vars", self.env_vars)


def is_known(value: object) -> bool:
    """Return True unless a value is known only after rendering: a template, or the result of an upstream task."""
    return not intervals.is_template(value) or (isinstance(value, Collection) and not isinstance(value, str))
