"""A Spark standalone cluster on this machine: a master and workers as processes of their own, without our packages.

The workers' Python has what a cluster's has (protobuf, pyarrow and so on), but neither pulsar_native nor
pyspark_pulsar: they come with the job, or not at all. Rules: ports are given by the system, traffic stays on 127.0.0.1,
everything ends with `stop`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from class_archive import JVM_OPTIONS

_OURS = re.compile(r"_?(pulsar_native|pyspark_pulsar)\b|__editable__|.*\.pth$")
_SECONDS = 240
# All JVMs of a cluster live for seconds, as the tests' other drivers: with their options they start in half the CPU.
_JAVA = os.environ.get("SPARK_SUBMIT_OPTS", JVM_OPTIONS)
# Settings of an application for its executors, and its driver where that runs in the cluster.
JAVA_CONF = {f"spark.{role}.extraJavaOptions": _JAVA for role in ("driver", "executor")}


def bare_python(folder: Path) -> Path:
    """Make an interpreter with this environment's packages except ours and return its path."""
    packages = folder / "packages"
    packages.mkdir(parents=True)
    for entry in (Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages").iterdir():
        if not _OURS.match(entry.name):
            (packages / entry.name).symlink_to(entry)
    # -S leaves out site-packages and what they put on the path.
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH${{PYTHONPATH:+:}}{packages}" exec "{sys.executable}" -S "$@"\n'
    )
    python.chmod(0o755)
    return python


class SparkCluster:
    """One master and its workers; blocking. `start` once, `stop` at the end."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        home: Path | None = None,
        python: Path | None = None,
        rest: bool = False,
    ) -> None:
        """Prepare a cluster; `home` and `python` are another Spark and interpreter than this environment's.

        With `rest` the master has its REST server, at `rest_port`.
        """
        if home is None:
            import pyspark

            home = Path(pyspark.__file__).parent
        self.home = home
        self.folder = folder
        self.python = bare_python(folder) if python is None else python
        self._workers = workers
        self._rest = rest
        self.rest_port = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def start(self) -> SparkCluster:
        """Start all processes and wait until every worker is registered."""
        self._launch("master", "master.Master", "--port", "0", "--webui-port", "0")
        self.url = self._wait("master", r"Starting Spark master at (spark://\S+)")
        if self._rest:
            self.rest_port = int(self._wait("master", r"Started REST server for submitting applications.* port (\d+)"))
        for number in range(self._workers):
            work = self.folder / f"work-{number}"
            self._launch(
                f"worker-{number}", "worker.Worker", "--port", "0", "--webui-port", "0", "--cores", "1",
                "--memory", "600m", "--work-dir", str(work), self.url,
            )  # fmt: skip
        for number in range(self._workers):
            self._wait(f"worker-{number}", r"(Successfully registered with master)")
        return self

    def submit(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run spark-submit in client mode and return how it ended."""
        command = [
            str(self.home / "bin" / "spark-submit"), "--master", self.url, "--executor-memory", "512m",
            "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1",
            "--conf", "spark.driver.bindAddress=127.0.0.1",
            "--conf", f"spark.sql.warehouse.dir={self.folder}/warehouse",
            "--conf", f"spark.executor.extraJavaOptions={_JAVA}",
            *arguments,
        ]  # fmt: skip
        return subprocess.run(
            command, env={**self._env(), **(env or {})}, cwd=self.folder,
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    def stop(self) -> None:
        """End all processes and what they started."""
        for process in reversed(self._processes):
            for number in (signal.SIGTERM, signal.SIGKILL):
                if process.poll() is None:
                    os.killpg(process.pid, number)
                    try:
                        process.wait(10)
                    except subprocess.TimeoutExpired:
                        continue

    def _env(self) -> dict[str, str]:
        dropped = ("PYTHONPATH", "SPARK_", "PYSPARK_", "PULSAR_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        enabled = str(self._rest).lower()
        return {
            **kept,
            "SPARK_MASTER_OPTS": f"-Dspark.master.rest.enabled={enabled} -Dspark.master.rest.port=0",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA,
            "SPARK_SUBMIT_OPTS": _JAVA,
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
        }

    def _launch(self, name: str, main: str, *arguments: str) -> None:
        command = [str(self.home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", "--host", "127.0.0.1"]
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, *arguments],
                    env=self._env(),
                    cwd=self.folder,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _wait(self, name: str, pattern: str) -> str:
        deadline = time.monotonic() + _SECONDS
        while True:
            text = (self.folder / f"{name}.log").read_text(errors="replace")
            if found := re.search(pattern, text):
                return found[1]
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise AssertionError(f"{name} of the Spark cluster did not get ready:\n{text[-2000:]}")
            time.sleep(0.2)
