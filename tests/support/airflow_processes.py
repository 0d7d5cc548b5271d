"""Run real Airflow components (api-server, scheduler, dag-processor) for a test, on ports of their own.

Standard library only. Rules: every component is a process group of its own and ends with the `with` block; all listen
on 127.0.0.1; what they write is kept in the folder `processes` of Airflow's home.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker import free_port

_READY_SECONDS = 120


class AirflowProcesses:
    """Keep one Airflow with a migrated home running; `start` names the components, the api-server first."""

    def __init__(self, home: Path, env: Mapping[str, str]) -> None:
        self._folder = home / "processes"
        self._folder.mkdir(exist_ok=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._started: list[subprocess.Popen[bytes]] = []
        self._env = {
            **os.environ,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": "a-secret-of-the-tests-that-is-long-enough-for-hmac",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "2",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            **env,
        }

    def start(self, *components: str) -> Self:
        """Start components by their command words; blocks until the api-server answers."""
        for component in components:
            command = [str(Path(sys.executable).with_name("airflow")), component]
            with (self._folder / f"{component}.log").open("wb") as log:
                self._started.append(
                    subprocess.Popen(command, env=self._env, stdout=log, stderr=log, start_new_session=True)
                )
        self.wait_for("the api-server", lambda: self.call("GET", "/api/v2/monitor/health"))
        return self

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call the REST interface as the administrator and return its JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data, method=method)
        request.add_header("Content-Type", "application/json")
        if path != "/auth/token" and path != "/api/v2/monitor/health":
            request.add_header("Authorization", f"Bearer {self.call('GET', '/auth/token')['access_token']}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def wait_for(self, what: str, ask: Any, seconds: float = _READY_SECONDS) -> Any:
        """Ask until the answer is true; an interface that is not up yet counts as no answer. Blocking, bounded."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                if found := ask():
                    return found
            if time.monotonic() > deadline or any(each.poll() is not None for each in self._started):
                raise AssertionError(f"{what} did not come: {self._tails()}")
            time.sleep(0.5)

    def stop(self) -> None:
        """End all components and what they started."""
        for number, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, 10)):
            for process in self._started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            for process in self._started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(patience)
        self._started.clear()

    def _tails(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted(self._folder.iterdir()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
