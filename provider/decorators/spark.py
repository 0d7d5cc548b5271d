"""`@task.pulsar_spark`: a function with a Spark session that knows `format("pulsar")`, and a connection's options.

Rules: the connection's secret is no option and no configuration of Spark. With a local master it is in this process's
environment while the session lasts; a remote Spark must have it already, at the connection's `spark_credentials_ref`.
A kill ends the session and what it runs: a server of Spark Connect would go on with it, and commit it.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, XComArg
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator
from airflow.sdk.exceptions import AirflowException

from airflow_provider_pulsar.decorators._signature import original, refuse_given, task_decorator, without_parameters
from airflow_provider_pulsar.exceptions import CheckedArguments
from airflow_provider_pulsar.extras import missing
from airflow_provider_pulsar.spark_options import CREDENTIALS_VARIABLE, source_options
from airflow_provider_pulsar.task_client import TaskKilled
from pulsar_native.jobs import validation
from pulsar_native.jobs.async_iteration import completed

try:
    from airflow.providers.apache.spark.operators.spark_pyspark import PySparkOperator
except ImportError as error:
    raise missing("spark", "@task.pulsar_spark") from error

if TYPE_CHECKING:
    from airflow_provider_pulsar.hooks.pulsar import PulsarHook

log = logging.getLogger(__name__)

# Limit of the wait for Spark at a kill: Airflow kills the process 5 s after it has asked it to end.
_KILL_SECONDS = 4.0
# Parameters of the function that the task fills.
GIVEN = ("spark", "pulsar")


class _SparkDecoratedOperator(CheckedArguments, DecoratedOperator, PySparkOperator):  # type: ignore[misc]  # both have op_kwargs
    """PySparkOperator that also gives its function the options of a Pulsar connection."""

    template_fields: Sequence[str] = tuple(
        dict.fromkeys([*DecoratedOperator.template_fields, *PySparkOperator.template_fields])
    )
    custom_operator_name = "@task.pulsar_spark"
    # A coroutine function runs within the call, in which the session lasts.
    is_async = False

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        pulsar_conn_id: str = "pulsar_default",
        conn_id: str | None = None,
        config_kwargs: Mapping[str, Any] | None = None,
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.pulsar_conn_id = pulsar_conn_id
        self._session: Any = None
        self._killed = self._ended = False
        validation.text("pulsar_conn_id", pulsar_conn_id)
        if conn_id is not None and not isinstance(conn_id, str | XComArg):
            validation.refuse(f"conn_id must be the id of a connection of Spark, not {conn_id!r}")
        if config_kwargs is not None and not isinstance(config_kwargs, Mapping):
            validation.refuse(
                f"config_kwargs must be a mapping of Spark's settings, not {type(config_kwargs).__name__}"
            )
        whole = original(python_callable)
        validation.no_generator("the function of @task.pulsar_spark", whole)
        for each in inspect.signature(whole).parameters.values():
            if each.name in GIVEN and each.kind is each.POSITIONAL_ONLY:
                validation.refuse(f"@task.pulsar_spark gives {each.name} to its function by name: leave out the /")
        refuse_given("@task.pulsar_spark", GIVEN, op_kwargs)
        function = without_parameters(python_callable, GIVEN)
        super().__init__(
            python_callable=function,
            op_args=op_args,
            op_kwargs=op_kwargs,
            kwargs_to_upstream={
                "python_callable": function,
                "op_args": op_args,
                "op_kwargs": op_kwargs,
                "conn_id": conn_id,
                "config_kwargs": None if config_kwargs is None else dict(config_kwargs),
            },
            **kwargs,
        )

    def execute_callable(self) -> Any:
        """Call the function with the session and the options, the secret within reach of Spark.

        Raises `TaskKilled` for a function that fails after a kill.
        """
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook

        self._ended = False
        hook = PulsarHook(self.pulsar_conn_id)
        options = source_options(hook.connection_options())
        with self._credentials(hook) as reference:
            if reference is not None:
                options["credentialsRef"] = reference
            whole, function = self.python_callable, original(self.python_callable)

            def call(*args: Any, spark: Any, **more: Any) -> Any:
                from pyspark_pulsar import register

                self._session = spark
                # A kill before has found no session to end.
                self._check_killed()
                register(spark)
                given = {
                    name: value for name, value in (("spark", spark), ("pulsar", options)) if _takes(function, name)
                }
                return completed(function(*args, **more, **given), "the function")

            # The base class calls this attribute, and checks nothing any more.
            self.python_callable = call
            try:
                return super().execute_callable()  # type: ignore[no-untyped-call]
            except Exception as error:
                # Which error a session raises that is ended within a call is left to chance; few name the cause.
                if not isinstance(error, TaskKilled):
                    self._check_killed(error)
                raise
            finally:
                self.python_callable = whole
                # A kill from here on is ignored; one before is forgotten in the next line.
                self._ended = True
                self._session, self._killed = None, False

    def _check_killed(self, cause: Exception | None = None) -> None:
        """Raise `TaskKilled` if the task was killed."""
        if self._killed:
            raise TaskKilled("The function of @task.pulsar_spark: the task was killed") from cause

    def on_kill(self) -> None:
        """End the session and what it runs. Waits for Spark up to 4 s."""
        if self._ended:
            # Airflow kills a task after its time-out, too, when the function has ended: the next try is another one.
            return
        self._killed = True
        if self._session is not None:
            # In a thread: the one that is interrupted here may be waiting for the same server, which may be away.
            ending = threading.Thread(target=_end, args=(self._session,), name="spark-on-kill", daemon=True)
            ending.start()
            ending.join(_KILL_SECONDS)

    @contextmanager
    def _credentials(self, hook: PulsarHook) -> Iterator[str | None]:
        """Yield the reference of the connection's secret, None without authentication."""
        own = hook.connection_options().get("spark_credentials_ref")
        credentials = None if own else hook.credentials()
        if credentials is None:
            yield None if own is None else str(own)
            return
        if not self._is_local():
            raise AirflowException(
                f"The secret of {self.pulsar_conn_id!r} cannot be handed to a Spark elsewhere without standing in its "
                "configuration: put it where that Spark has it, and name the place in the connection's field "
                "spark_credentials_ref, as env:NAME or file:/path"
            )
        kept = os.environ.get(CREDENTIALS_VARIABLE)
        os.environ[CREDENTIALS_VARIABLE] = json.dumps(credentials)
        try:
            yield f"env:{CREDENTIALS_VARIABLE}"
        finally:
            os.environ.pop(CREDENTIALS_VARIABLE, None)
            if kept is not None:
                os.environ[CREDENTIALS_VARIABLE] = kept

    def _is_local(self) -> bool:
        """Return True if the session is in this process, as PySparkOperator reads connection and `config_kwargs`."""
        config, host = self.config_kwargs, None
        if self.conn_id:
            connection = BaseHook.get_connection(self.conn_id)
            if connection.conn_type == "spark_connect":
                return False
            config, host = {**connection.extra_dejson, **config}, connection.host
        return not config.get("spark.remote") and str(config.get("spark.master") or host or "local").startswith("local")


def _end(session: Any) -> None:
    """Interrupt what a session runs, and stop it, so that the function begins nothing more."""
    try:
        session.interruptAll()
    except Exception as error:
        # The server may be away, and a session of Spark 3.5 without Spark Connect has no such call.
        log.warning("The work of the Spark session cannot be interrupted: %s", error)
    session.stop()


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def pulsar_spark_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Make a task with a Spark session for topics: `@task.pulsar_spark(conn_id="spark_default")`.

    The function gets, where its parameters name them, `spark`, the session, and `pulsar`, the connection's options:
    `spark.read.format("pulsar").options(**pulsar).option("topic", "orders").load()`. The session is stopped afterwards.
    It may be a coroutine function. The task needs pyspark in the worker's environment, or pyspark-client for Spark
    Connect, and pyspark-pulsar there and in the environment of Spark's workers.

    :param python_callable: the function; given where the decorator is used without arguments.
    :param multiple_outputs: push each key of a returned dict as an XCom of its own. Default: as the annotation says.
    :param kwargs: `pulsar_conn_id` (default pulsar_default), `conn_id` (a connection of Spark or Spark Connect, default
        a local Spark), `config_kwargs` (Spark's configuration, templated), and the parameters of every task.

    A connection with a secret needs a local master, or `spark_credentials_ref` in the connection for any other.
    """
    return task_decorator(
        python_callable,
        GIVEN,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_SparkDecoratedOperator,
        **kwargs,
    )
