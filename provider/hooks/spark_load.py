"""spark-submit of a load: environment variables for its process only, its result from the output, no orphans.

Rules: secrets of the started process go into its environment, never on a command line. On Linux a spark-submit ends
with its task, also after SIGKILL, so that a retry finds no other writer.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_provider_pulsar.extras import missing
from airflow_provider_pulsar.hooks.spark_rest import SparkRestServer

try:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
except ImportError as error:
    raise missing("spark", "The Spark load") from error

_RESULT = '{"pulsar_load":'
_PR_SET_PDEATHSIG = 1
# Lines of Spark's log that tell where a web interface is: the driver's own, or YARN's tracking page.
_UI = re.compile(r"(?:SparkUI.*started at|tracking URL:)\s+(https?://[^\s,]+)")


class SparkLoadHook(SparkSubmitHook):
    """Spark submit hook with variables for the started process only, which reads the load's last line.

    `process_env` may be filled until `submit`. `result` is the load's last line, None if its driver runs elsewhere or
    printed nothing.
    """

    def __init__(self, *, process_env: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.process_env: dict[str, str] = dict(process_env or {})
        self.result: dict[str, Any] | None = None
        self.ui_url: str | None = None
        self.on_ui_url: Callable[[str], None] = _ignore

    @classmethod
    def of(cls, plain: SparkSubmitHook, process_env: Mapping[str, str]) -> SparkLoadHook:
        """Return a hook with the arguments of a plain one, which the base operator has created."""
        made = cls.__new__(cls)
        made.__dict__.update(plain.__dict__)
        made.process_env = dict(process_env)
        made.result = None
        made.ui_url = None
        made.on_ui_url = _ignore
        return made

    @property
    def is_local(self) -> bool:
        """True if driver and executors are one process tree on this machine."""
        return str(self._connection["master"]).startswith("local")

    @property
    def has_rest_status(self) -> bool:
        """True if the driver runs in a standalone cluster, whose master has a REST server."""
        return bool(self._should_track_driver_status)

    @property
    def rest_server(self) -> SparkRestServer:
        """REST server of the master."""
        return SparkRestServer.of(self._connection)

    @property
    def has_driver_here(self) -> bool:
        """True if the driver's output is that of spark-submit: every deploy mode but cluster."""
        return self.is_local or self._connection["deploy_mode"] != "cluster"

    def hand_over_file(self, path: str) -> None:
        """Add a file that Spark copies to the driver and every executor."""
        self._files = f"{self._files},{path}" if self._files else path

    def set_arguments(self, arguments: list[str]) -> None:
        """Set the arguments of the application."""
        self._application_args = arguments

    def forget_variable(self, name: str) -> None:
        """Remove a variable of the started process."""
        self.process_env.pop(name, None)
        if self._env:
            self._env.pop(name, None)

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run spark-submit, whose process ends with this one; a standalone cluster's driver is asked of its master."""
        if self.has_rest_status:
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
        properties = {str(name): str(text) for name, text in (self._conf or {}).items()}
        properties |= {"spark.master": str(self._connection["master"]), "spark.app.name": str(self._name)}
        if self._driver_memory:
            properties["spark.driver.memory"] = str(self._driver_memory)
        env = {name: str(text) for name, text in (self._env_vars or {}).items()}
        driver_id = self.rest_server.create(args, properties, env)
        self.log.info("The master started the driver %s", driver_id)
        return driver_id

    def on_kill(self) -> None:
        """End the load: the driver of a standalone cluster by REST, else as the base class does."""
        if not self.has_rest_status:
            super().on_kill()
        elif self._driver_id:
            self.rest_server.kill(self._driver_id)

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


def _ignore(url: str) -> None:
    """Do nothing with the address of a web interface."""


def _ending_with_parent() -> Callable[[], None]:
    """Return the function that makes the kernel kill a child process when its parent thread has ended."""
    # Looked up before the fork: few operations are safe in the child of a process with threads.
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return arrange
