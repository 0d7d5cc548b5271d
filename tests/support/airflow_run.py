"""One DAG run of a real Airflow: its states, XComs, rendered fields and logs, read at every call.

Standard library only. States come from the REST interface, logs from the files themselves: a log shows there what a
task has written so far.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.airflow_processes import AirflowProcesses

FINAL = ("success", "failed")
RUN_SECONDS = 300.0
# Fields of a log entry that say no more than which task instance wrote it.
_HIDDEN = frozenset(
    (
        *("timestamp", "level", "logger", "filename", "lineno"),
        *("ti_id", "dag_id", "run_id", "task_id", "map_index", "try_number"),
    )
)


@dataclass(frozen=True)
class Run:
    """One DAG run of a stack, by its ids; every method reads the present state."""

    dag_id: str
    run_id: str
    processes: AirflowProcesses = field(repr=False, compare=False)
    logs: Path = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.dag_id}/{self.run_id}"

    @property
    def path(self) -> str:
        """Return the run's path in the REST interface."""
        return f"/dags/{quoted(self.dag_id)}/dagRuns/{quoted(self.run_id)}"

    def task_path(self, task_id: str, map_index: int = -1) -> str:
        """Return the path of a task instance."""
        return f"{self.path}/taskInstances/{quoted(task_id)}" + (f"/{map_index}" if map_index >= 0 else "")

    def store_path(self, task_id: str) -> str:
        """Return the path of a task's state store."""
        return f"{self.path}/taskInstances/{quoted(task_id)}/state-store"

    @property
    def state(self) -> str:
        """Return the run's state: queued, running, success or failed."""
        return str(self.info()["state"])

    def info(self) -> dict[str, Any]:
        """Return all the REST interface tells of the run, such as data_interval_start."""
        found: dict[str, Any] = self._get(self.path)
        return found

    def tasks(self) -> list[dict[str, Any]]:
        """Return all the REST interface tells of each task instance."""
        found: list[dict[str, Any]] = self._get(f"{self.path}/taskInstances?limit=100")["task_instances"]
        return found

    def task(self, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """Return all the REST interface tells of one task instance."""
        found: dict[str, Any] = self._get(self.task_path(task_id, map_index))
        return found

    def task_states(self) -> dict[str, str]:
        """Return the state of each task, mapped ones as task[0]; "None" for one not yet looked at."""
        return {_name(task): str(task["state"]) for task in self.tasks()}

    def tries(self) -> dict[str, int]:
        """Return how many tries each task has had; clearing goes on counting."""
        return {_name(task): int(task["try_number"]) for task in self.tasks()}

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """Return an XCom, None where there is none."""
        path = f"{self.path}/taskInstances/{quoted(task_id)}/xcomEntries/{quoted(key)}"
        try:
            return self._get(f"{path}?map_index={map_index}&stringify=false")["value"]
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def rendered(self, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """Return the rendered fields Airflow shows of a task."""
        return dict(self.task(task_id, map_index)["rendered_fields"])

    def log_files(self, task_id: str, try_number: int | None = None, map_index: int = -1) -> list[Path]:
        """Return the files of a task's log, those of triggers behind those of their try; of every try, or one."""
        folder = self.logs / f"dag_id={self.dag_id}" / f"run_id={self.run_id}" / f"task_id={task_id}"
        if map_index >= 0:
            folder /= f"map_index={map_index}"
        wanted = f"attempt={'*' if try_number is None else try_number}.log*"
        return sorted(folder.glob(wanted), key=lambda path: (int(path.name.split("=")[1].split(".")[0]), path.name))

    def log(self, task_id: str, try_number: int | None = None, map_index: int = -1) -> str:
        """Return a task's log, of every try or of one: a line of text per entry, its fields as key=value behind."""
        lines = []
        for path in self.log_files(task_id, try_number, map_index):
            lines += [_line(line) for line in path.read_text(errors="replace").splitlines()]
        return "\n".join(lines)

    def wait(self, timeout: float = RUN_SECONDS) -> Run:
        """Wait for the run's end, in whatever state, and return the run."""
        self.processes.wait_for(f"the end of {self}", lambda: self.state in FINAL, timeout, self.report)
        return self

    def succeeded(self) -> Run:
        """Fail with the tasks' logs unless the run has succeeded; returns the run."""
        if self.state != "success":
            raise AssertionError(f"{self} is {self.state}\n{self.report()}")
        return self

    def report(self) -> str:
        """Return each task's state and the end of its log, for a failure's text."""
        parts = []
        for task in self.tasks():
            log = self.log(task["task_id"], None, task["map_index"])
            parts.append(f"--- {_name(task)}: {task['state']}, try {task['try_number']}\n{log[-3000:]}")
        return "\n".join(parts)

    def _get(self, path: str) -> Any:
        return self.processes.call("GET", f"/api/v2{path}")


def reports(runs: Iterable[Run]) -> str:
    """Return the reports of several runs."""
    return "\n".join(f"=== {run}: {run.state}\n{run.report()}" for run in runs)


def quoted(text: str) -> str:
    """Return a name as a part of a path."""
    return urllib.parse.quote(text, safe="")


def _name(task: Mapping[str, Any]) -> str:
    return str(task["task_id"]) if task["map_index"] < 0 else f"{task['task_id']}[{task['map_index']}]"


def _line(text: str) -> str:
    """Return one line of a log file, which Airflow writes as a JSON object, as text."""
    try:
        entry = json.loads(text)
    except ValueError:
        return text
    if not isinstance(entry, dict):
        return text
    more = "".join(f" {key}={value}" for key, value in entry.items() if key not in _HIDDEN and key != "event")
    return f"{entry.get('level', '')}: {entry.get('event', '')}{more}"
