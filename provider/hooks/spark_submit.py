"""spark-submit of a task: variables for its process only, what it tells in its output, no orphans.

Rules: secrets of the started process go into its environment, never on a command line. On Linux a spark-submit ends
with its task, also after SIGKILL, so that a retry finds no other writer. A user's own class of hook keeps its methods:
they come first, and `super()` in them reaches those of this module.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowException

from airflow_provider_pulsar.extras import missing
from airflow_provider_pulsar.hooks.spark_rest import UNREACHABLE, SparkRestServer

try:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
except ImportError as error:
    raise missing("spark", "spark-submit with a Pulsar connection") from error

_RESULT = '{"pulsar_load":'
_PR_SET_PDEATHSIG = 1
# Lines of Spark's log that tell where a web interface is: the driver's own, or YARN's tracking page.
_UI = re.compile(r"(?:SparkUI.*started at|tracking URL:)\s+(https?://[^\s,]+)")


class PulsarSparkSubmitHook(SparkSubmitHook):
    """Spark submit hook that an operator completes at the last moment, and whose process ends with the task.

    `on_submit` is called with the hook before anything is started, and `on_ui_url` with the address of the driver's web
    interface. `process_env` are variables of the started process only. `is_python` says that the application is a
    Python file, which a standalone master's REST server must start. `result` is the last line of the load application,
    None for other applications and for a driver elsewhere.
    """

    result: dict[str, Any] | None = None
    ui_url: str | None = None
    is_python = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._extend()

    @staticmethod
    def of(plain: SparkSubmitHook) -> PulsarSparkSubmitHook:
        """Return the same hook with the methods of this class behind those of its own; raises TypeError for others."""
        if not isinstance(plain, SparkSubmitHook):
            raise TypeError(f"The hook must be a SparkSubmitHook, not {type(plain).__name__}")
        hook: Any = plain
        if not isinstance(hook, PulsarSparkSubmitHook):
            own: Any = type(plain)
            hook.__class__ = _extended(own)
            hook._extend()
        extended: PulsarSparkSubmitHook = hook
        return extended

    def _extend(self) -> None:
        self.process_env: dict[str, str] = {}
        self.on_submit: Callable[[PulsarSparkSubmitHook], None] = _ignore
        self.on_ui_url: Callable[[str], None] = _ignore

    @property
    def is_local(self) -> bool:
        """True if driver and executors are one process tree on this machine."""
        return str(self._connection["master"]).startswith("local")

    @property
    def has_standalone_driver(self) -> bool:
        """True if the driver runs in a standalone cluster (deploy mode cluster)."""
        return bool(self._should_track_driver_status)

    @property
    def is_started_by_rest(self) -> bool:
        """True if the REST server of a standalone master starts the driver, and knows its status."""
        return self.has_standalone_driver and self.is_python

    @property
    def rest_server(self) -> SparkRestServer:
        """REST server of the master."""
        return SparkRestServer.of(self._connection)

    @property
    def has_driver_here(self) -> bool:
        """True if the driver's output is that of spark-submit: every deploy mode but cluster."""
        return self.is_local or self._connection["deploy_mode"] != "cluster"

    @property
    def properties(self) -> Mapping[str, Any]:
        """Spark's configuration as it is submitted."""
        return self._conf or {}

    def set_properties(self, properties: Mapping[str, Any]) -> None:
        """Set Spark's configuration; the operator's own is left as it is."""
        self._conf = dict(properties)

    def hand_over_file(self, path: str) -> None:
        """Add a file that Spark copies to the driver and every executor."""
        # `--files` replaces Spark's property.
        own = self._files or self._spark_property("spark.files")
        self._files = f"{own},{path}" if own else path

    def _spark_property(self, name: str) -> str | None:
        """Return a property as spark-submit finds it: in the configuration, in the properties file, or in Spark's."""
        if name in self.properties:
            return str(self.properties[name])
        if self._properties_file:
            return _property_of(Path(self._properties_file), name)
        env = {**os.environ, **self.process_env}
        home = env.get("SPARK_HOME")
        folder = env.get("SPARK_CONF_DIR") or (home and os.path.join(home, "conf"))
        return _property_of(Path(folder, "spark-defaults.conf"), name) if folder else None

    def set_arguments(self, arguments: list[str]) -> None:
        """Set the arguments of the application."""
        self._application_args = arguments

    def forget_variable(self, name: str) -> None:
        """Remove a variable of the started process."""
        self.process_env.pop(name, None)
        if self._env:
            self._env.pop(name, None)

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run spark-submit, whose process ends with this one, or start a standalone cluster's Python driver by REST."""
        self.on_submit(self)
        if self.is_started_by_rest:
            self._driver_id = self._create_driver(application)
            return self._driver_id
        if sys.platform == "linux":
            kwargs.setdefault("preexec_fn", _ending_with_parent())
        try:
            driver_id: str | None = super().submit(application, **kwargs)
            return driver_id
        finally:
            # The base class leaves the pipe open. A process still running is ended by `on_kill`, which needs it.
            process = self._submit_sp
            if process is not None and process.poll() is not None and process.stdout is not None:
                process.stdout.close()

    def _create_driver(self, application: str) -> str:
        """Start the driver by REST, as spark-submit refuses Python there, and return its id."""
        args = self._build_spark_submit_command(application)[1:]
        mode = args.index("--deploy-mode")
        # The spark-submit beside the driver runs it in its own process.
        del args[mode : mode + 2]
        properties = {str(name): str(text) for name, text in self.properties.items()}
        properties |= {"spark.master": str(self._connection["master"]), "spark.app.name": str(self._name)}
        if self._driver_memory:
            properties["spark.driver.memory"] = str(self._driver_memory)
        env = {name: str(text) for name, text in (self._env_vars or {}).items()}
        driver_id = self.rest_server.create(args, properties, env)
        self.log.info("The master started the driver %s", driver_id)
        return driver_id

    def _start_driver_status_tracking(self) -> None:
        if not self.is_started_by_rest:
            super()._start_driver_status_tracking()
            return
        status = self.rest_server.wait(str(self._driver_id), self._status_poll_interval)
        self._driver_status = status.state
        if status.message:
            self.log.error("The driver %s ended as %s: %s", self._driver_id, status.state, status.message)

    def on_kill(self) -> None:
        """End the application: the driver that the REST server has started by REST, else as the base class does."""
        if not self.is_started_by_rest:
            super().on_kill()
            return
        try:
            if self._driver_id:
                self.rest_server.kill(self._driver_id)
        finally:
            self._run_post_submit_commands()

    def end_job(self, job_id: str) -> None:
        """End the job of an earlier try; a standalone driver has ended when this returns."""
        if self.has_standalone_driver:
            self.rest_server.kill(job_id)
            status = self.rest_server.wait(job_id, self._status_poll_interval)
            if status.state == UNREACHABLE:
                raise AirflowException(f"The driver {job_id} of an earlier try may still run: {status.message}")
        elif self._is_yarn:
            self._kill_yarn_application(job_id)
        else:
            self._kubernetes_driver_pod = job_id.rpartition(":")[2]
            self._delete_driver_pod()

    def _build_spark_common_args(self) -> list[str]:
        args: list[str] = super()._build_spark_common_args()
        # Set here, because the base class puts its variables on the command line for some masters.
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
            if self.ui_url is None and (found := _UI.search(str(line))):
                self.ui_url = found[1]
                with contextlib.suppress(Exception):
                    self.on_ui_url(found[1])
            yield line


@functools.cache
def _extended(kind: Any) -> type[PulsarSparkSubmitHook]:
    """Return the class with the methods of a user's class before those of ours, under the name of the user's."""
    if kind is SparkSubmitHook:
        return PulsarSparkSubmitHook
    named = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    metaclass: Any = type(kind)
    made: type[PulsarSparkSubmitHook] = metaclass(kind.__name__, (kind, PulsarSparkSubmitHook), named)
    return made


def _property_of(path: Path, name: str) -> str | None:
    """Return a property of a file in the form of Java's, None without it; spark-submit reports an unreadable file."""
    with contextlib.suppress(OSError):
        text = path.read_text("utf-8", "replace")
        found = re.findall(rf"^[ \t]*{re.escape(name)}[ \t]*[ \t=:][ \t]*(\S.*)$", text, re.MULTILINE)
        return str(found[-1]).strip() if found else None
    return None


def _ignore(_: object) -> None:
    """Do nothing."""


def _ending_with_parent() -> Callable[[], None]:
    """Return the function that makes the kernel kill a child process when its parent thread has ended."""
    # Looked up before the fork: few operations are safe in the child of a process with threads.
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return arrange
