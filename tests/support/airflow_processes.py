"""Run real Airflow components (api-server, scheduler, dag-processor, triggerer) for a test, on ports of their own.

Standard library only. Rules: every component is a session of processes of its own (its name is the one given at its
start) and ends with the `with` block, or with the process of the tests; all listen on 127.0.0.1; what they write is
kept in the folder `processes` of Airflow's home.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker import free_port

_READY_SECONDS = 240
_OPEN_PATHS = ("/auth/token", "/api/v2/monitor/health")


class AirflowProcesses:
    """Processes of one Airflow with a migrated home; `start` names the components, the api-server first.

    `env` is added to `base`, the variables of this process where none are given; `python` names the environment.
    """

    def __init__(
        self,
        home: Path,
        env: Mapping[str, str],
        *,
        base: Mapping[str, str] | None = None,
        python: Path = Path(sys.executable),
    ) -> None:
        self.command = str(python.with_name("airflow"))
        self._folder = home / "processes"
        self._folder.mkdir(exist_ok=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._token: str | None = None
        self.env = {
            **(os.environ if base is None else base),
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
            self.launch(component)
        self.wait_for("the api-server", lambda: self.call("GET", "/api/v2/monitor/health"))
        return self

    def launch(self, component: str, *options: str, name: str = "") -> None:
        """Start one component with options of its command, under a name, and return at once."""
        name = name or component
        if self.runs(name):
            raise ValueError(f"the component {name} runs already")
        command = [self.command, component, *options]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._started[name] = subprocess.Popen(
                command, env=self.env, stdout=log, stderr=log, start_new_session=True, preexec_fn=_end_with_parent
            )

    def runs(self, name: str) -> bool:
        """Return whether the component of that name runs."""
        return name in self._started and self._started[name].poll() is None

    def revive(self) -> list[str]:
        """Start components again that ended by themselves, as a service manager does, and return their names."""
        ended = [name for name in self._started if not self.runs(name)]
        for name in ended:
            process = self._started.pop(name)
            _signal_session(process.pid, signal.SIGKILL)
            component, *options = process.args[1:]  # type: ignore[index]
            self.launch(str(component), *map(str, options), name=name)
        return ended

    def kill(self, name: str) -> None:
        """Kill one component and all it started with SIGKILL, as a crash of its machine does."""
        process = self._started.pop(name)
        _signal_session(process.pid, signal.SIGKILL)
        process.wait(10)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call the REST interface as the administrator and return its JSON; a refusal's text is a note of the error."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data, method=method)
        request.add_header("Content-Type", "application/json")
        if path not in _OPEN_PATHS:
            if self._token is None:
                self._token = self.call("GET", "/auth/token")["access_token"]
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            error.add_note(f"{method} {path}: {error.read().decode(errors='replace')[:2000]}")
            raise

    def wait_for(
        self,
        what: str,
        ask: Callable[[], Any],
        seconds: float = _READY_SECONDS,
        report: Callable[[], str] | None = None,
    ) -> Any:
        """Ask until the answer is true and return it; fails after `seconds`, with the report, or when a component ends.

        An interface that is not up yet, and what is not found, count as no answer. Blocking.
        """
        deadline = time.monotonic() + seconds
        pause = 0.1
        while True:
            if found := _answer(ask):
                return found
            ended = [name for name in self._started if not self.runs(name)]
            if ended or time.monotonic() > deadline:
                why = f"{', '.join(ended)} ended" if ended else f"not within {seconds:.0f} s"
                told = report() if report and not ended else ""
                raise AssertionError(f"{what} did not come ({why})\n{self.tails()}\n{told}")
            time.sleep(pause)
            pause = min(0.5, pause * 1.5)

    def stop(self) -> None:
        """End all components and what they started."""
        for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            for process in self._started.values():
                _signal_session(process.pid, number)
            deadline = time.monotonic() + patience
            while any(_session(process.pid) for process in self._started.values()) and time.monotonic() < deadline:
                for process in self._started.values():
                    process.poll()
                time.sleep(0.05)
        self._started.clear()

    def tails(self, characters: int = 2000) -> str:
        """Return the end of what each component wrote."""
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-characters:]}" for log in sorted(self._folder.iterdir())
        )

    def processes(self) -> Iterator[tuple[int, str]]:
        """Return the process ids and titles of the components and of all they started."""
        for process in self._started.values():
            for pid in _session(process.pid):
                yield pid, _title(pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except urllib.error.HTTPError as error:
        if error.code != 404 and error.code < 500:
            raise
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        pass
    return None


def _title(pid: int) -> str:
    """Return a process's command line, which Airflow sets to a title, or "" for none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def parents() -> dict[int, int]:
    """Return the parent of every process there is."""
    return {pid: fields[1] for pid, fields in _stats()}


def _session(leader: int) -> list[int]:
    """Return the processes of a session that have not ended (tasks have groups, not sessions, of their own)."""
    return [pid for pid, fields in _stats() if fields[3] == leader and fields[0] != ord("Z")]


def _stats() -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    """Return of every process its id and its state, parent, group and session."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent, group, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                yield int(entry.name), (ord(state), int(parent), int(group), int(session))


def _signal_session(leader: int, number: signal.Signals) -> None:
    for pid in _session(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _end_with_parent() -> None:
    """Have the kernel end a component when the process of the tests is gone, killed too."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, Linux only
