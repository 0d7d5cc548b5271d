"""A whole Airflow for a test session: api-server, scheduler with LocalExecutor, dag-processor and triggerer.

Standard library only. The fixture `airflow` (tests/provider/conftest.py) gives one `AirflowStack` per session, with a
home and a database of its own, never those of `dag.test()`. Every wait is bounded, and a failure shows the states and
logs of the tasks and what the components wrote last. Each test names its DAGs so that no other test has the same;
after it what it left running is ended and its DAG files are removed (`tidy`).

| call | effect |
| --- | --- |
| `write_dag(id, body)` | a file whose `with DAG(...)` block holds the body; waits until it is parsed |
| `write_dag_file(id, text)` | the same with the whole text of the file |
| `run(id, logical_date=…, conf=…, run_id=…, wait=True)` | a `Run`: `state`, `xcom()`, `log()`, … (airflow_run.py) |
| `clear(run, task_ids=None, only_failed=False)` | clear tasks as a person does, and wait for the run's end |
| `mark_failed(run, task_id)`, `mark_success(run, task_id)` | set a task's state, the run's where none is named |
| `delete_run(run)`, `run(…, run_id=run.run_id)` | a run that is forgotten, and made again |
| `backfill(id, start, end)` | a real backfill; its runs in order |
| `runs(id)`, `wait_runs(id, count)`, `pause(id)`, `unpause(id)` | what the scheduler makes by the timetable |
| `wait_task(run, task_id, "deferred")` | wait for a task's state |
| `wait_log(run, task_id, text)` | wait until a task has logged a text |
| `kill_task(run, task_id, target="task")`, `terminate_task(…)` | SIGKILL, SIGTERM to the processes of this try |
| `start_triggerer()`, `kill_triggerer(index=0)` | one more triggerer; SIGKILL of one |
| `task_state(run, task_id)` | what the task state store keeps for a task |
| `expire_state(run, task_id, key=None)` | its rows are removed, as when they expire |
| `define_connection(conn_id, **extra)`, `add_variable(key, value)` | seen by all components |
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.error
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from support.airflow_metadata import Metadata, SqliteMetadata
from support.airflow_processes import AirflowProcesses, parents
from support.airflow_run import FINAL, RUN_SECONDS, Run, quoted, reports

# Times a task or run is marked before a refusal counts.
_MARK_TRIES = 5
_HEADER = """\
import datetime
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, task
"""
# Module of each operator and sensor. A DAG imports those it names, as users' do: each process of a task imports them.
_MODULES = {
    "ConsumeBatchOperator": "operators.consume",
    "PublishOperator": "operators.publish",
    "PulsarSparkLoadOperator": "operators.spark",
    "MessageSensor": "sensors.message",
    "SubscriptionSensor": "sensors.subscription",
    "TopicSensor": "sensors.topic",
}
# Short intervals make tests short; what decides that something is dead stays far above a pause of a busy machine.
_SETTINGS = {
    "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__PARALLELISM": "4",
    "AIRFLOW__CORE__FERNET_KEY": "ZmVybmV0LWtleS1vZi10aGUtdGVzdHMtMzItYnl0ZXM=",
    "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    "AIRFLOW__SCHEDULER__ENABLE_TRACEMALLOC": "False",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "1",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "1",
    "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
    "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
}


class AirflowStack:
    """One running Airflow; blocking, for one thread. `start` it once, `stop` it at the end."""

    def __init__(
        self,
        home: Path,
        env: Mapping[str, str] | None = None,
        *,
        metadata: Metadata | None = None,
        python: Path = Path(sys.executable),
    ) -> None:
        """Prepare a home; `env` is added to the variables of all components and so of every task.

        `metadata` is the database, by default SQLite in the home; `python` is the interpreter of the environment that
        has Airflow.
        """
        self.home = home
        self.dags, self.logs = home / "dags", home / "logs"
        self.metadata: Metadata = metadata or SqliteMetadata(home / "airflow.db")
        self.dags.mkdir(parents=True)
        settings = {
            **_SETTINGS,
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.logs),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.metadata.url,
            **(env or {}),
        }
        base = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        self.processes = AirflowProcesses(home, settings, base=base, python=python)
        self._triggerers: list[str] = []
        self._written: list[str] = []

    # ---- life --------------------------------------------------------------------------------------------------------

    def start(self) -> AirflowStack:
        """Migrate the database and start all components; returns when each has reported itself healthy."""
        migrated = subprocess.run(
            [self.processes.command, "db", "migrate"],
            env=self.processes.env, capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        if migrated.returncode:
            raise AssertionError(f"airflow db migrate failed:\n{migrated.stdout[-2000:]}{migrated.stderr[-2000:]}")
        for component in ("api-server", "dag-processor"):
            self.processes.launch(component)
        self._launch_scheduler()
        self.start_triggerer(wait=False)
        self.processes.wait_for("a healthy Airflow", self._healthy)
        return self

    def stop(self) -> None:
        """End all components and everything they started."""
        self.processes.stop()

    def tidy(self) -> None:
        """End what the last test left: its runs fail, their processes are killed, its DAG files are removed.

        Triggerers are brought back to one, and components that have ended by themselves are started again.
        """
        self.processes.revive()
        for dag_id in dict.fromkeys(self._written):
            with contextlib.suppress(urllib.error.HTTPError):
                self._call("PATCH", f"/dags/{quoted(dag_id)}", {"is_paused": True})
            left = [run for run in self.runs(dag_id) if run.state not in FINAL]
            ids = {task["id"] for run in left for task in run.tasks()}
            for run in left:
                with contextlib.suppress(urllib.error.HTTPError):
                    self.mark_failed(run)
            self._end_processes(ids)
            (self.dags / f"{dag_id}.py").unlink(missing_ok=True)
        self._written.clear()
        while len(self._triggerers) > 1:
            self.kill_triggerer()
        if not self._triggerers:
            self.start_triggerer()

    def _end_processes(self, ids: set[str]) -> None:
        """Wait shortly for the processes of task instances to end, then kill them."""
        deadline = time.monotonic() + 5
        while found := [pid for pid, title in self.processes.processes() if _instance_of(title) in ids]:
            if time.monotonic() > deadline:
                _signal_all(found, signal.SIGKILL)
            time.sleep(0.1)

    def _healthy(self) -> bool:
        health = self._call("GET", "/monitor/health")
        return all(
            health[name]["status"] == "healthy" for name in ("metadatabase", "scheduler", "triggerer", "dag_processor")
        )

    # ---- triggerers --------------------------------------------------------------------------------------------------

    def start_triggerer(self, *options: str, wait: bool = True) -> None:
        """Start one more triggerer, with options of its command; with `wait` it returns when it has registered."""
        numbers = [int(name.rpartition("-")[2]) for name in self._triggerers]
        name = f"triggerer-{next(number for number in range(100) if number not in numbers)}"
        before = self._triggerer_jobs() if wait else set()
        self.processes.launch("triggerer", "--skip-serve-logs", *options, name=name)
        self._triggerers.append(name)
        if wait:
            self.processes.wait_for(f"the {name}", lambda: self._triggerer_jobs() - before)

    def kill_triggerer(self, index: int = 0) -> None:
        """Kill a triggerer, counted from the oldest, with all its processes; another takes its triggers after 10 s."""
        if not 0 <= index < len(self._triggerers):
            raise ValueError(f"index must be below the number of triggerers, {len(self._triggerers)}, not {index}")
        self.processes.kill(self._triggerers.pop(index))

    def _triggerer_jobs(self) -> set[int]:
        found = self._call("GET", "/jobs?job_type=TriggererJob&limit=100&order_by=-id")
        return {job["id"] for job in found["jobs"]}

    # ---- DAGs --------------------------------------------------------------------------------------------------------

    def write_dag(
        self,
        dag_id: str,
        body: str,
        *,
        schedule: str = "None",
        options: str = "",
        header: str = "",
    ) -> str:
        """Write a DAG whose `with DAG(...)` block holds `body`, wait until it is parsed, and return its id.

        `schedule` and `options` (such as "catchup=True") are source text; `header` is put behind the usual imports.
        """
        more = f", {options}" if options else ""
        if "start_date=" not in options:
            more += ", start_date=datetime.datetime(2026, 1, 1)"
        opening = f"with DAG({dag_id!r}, schedule={schedule}{more}) as dag:\n"
        inner = textwrap.indent(textwrap.dedent(body).strip(), "    ")
        source = f"{textwrap.dedent(header)}\n{opening}{inner}\n"
        imports = "".join(
            f"from airflow_provider_pulsar.{module} import {name}\n"
            for name, module in _MODULES.items()
            if name in source
        )
        return self.write_dag_file(dag_id, f"{_HEADER}{imports}\n{source}")

    def write_dag_file(self, dag_id: str, text: str, *, timeout: float = 60) -> str:
        """Write the whole file of a DAG, new or changed, wait until it is parsed as it stands, and return the id."""
        path = self.dags / f"{dag_id}.py"
        self._written.append(dag_id)
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        written = time.time()
        fresh.replace(path)
        self.processes.wait_for(f"the DAG {dag_id} of {path}", lambda: self._is_parsed(dag_id, path, written), timeout)
        return dag_id

    def _is_parsed(self, dag_id: str, path: Path, written: float) -> bool:
        if error := self._import_error(path, written):
            raise AssertionError(f"{path.name} cannot be imported:\n{error}")
        dag = self._call("GET", f"/dags/{quoted(dag_id)}")
        parsed = dag["last_parsed_time"]
        if dag["is_stale"] or parsed is None or _time(parsed) < written:
            return False
        source = self._call("GET", f"/dagSources/{quoted(dag_id)}")["content"]
        return bool(source == path.read_text())

    def _import_error(self, path: Path, written: float) -> str | None:
        found = self._call("GET", "/importErrors?limit=100")["import_errors"]
        return next(
            (
                str(error["stack_trace"])
                for error in found
                if Path(error["filename"]).name == path.name and _time(error["timestamp"]) >= written
            ),
            None,
        )

    def dag(self, dag_id: str) -> dict[str, Any]:
        """Return all the REST interface tells of a DAG, such as timetable_summary and next_dagrun_run_after."""
        found: dict[str, Any] = self._call("GET", f"/dags/{quoted(dag_id)}")
        return found

    def pause(self, dag_id: str) -> None:
        """Keep the scheduler from making and advancing runs of a DAG."""
        self._call("PATCH", f"/dags/{quoted(dag_id)}", {"is_paused": True})

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler make and advance runs of a DAG (DAGs begin unpaused)."""
        self._call("PATCH", f"/dags/{quoted(dag_id)}", {"is_paused": False})

    # ---- runs --------------------------------------------------------------------------------------------------------

    def run(
        self,
        dag_id: str,
        *,
        logical_date: datetime | str | None = None,
        run_after: datetime | str | None = None,
        data_interval: tuple[datetime | str, datetime | str] | None = None,
        conf: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        wait: bool = True,
        timeout: float = RUN_SECONDS,
    ) -> Run:
        """Start a run as the trigger button does and return it; with `wait` at its end, in whatever state.

        Without `data_interval` the DAG's timetable infers it from `logical_date`; without both there is none.
        """
        body: dict[str, Any] = {"logical_date": _text(logical_date), "conf": dict(conf or {})}
        if run_id is not None:
            body["dag_run_id"] = run_id
        if run_after is not None:
            body["run_after"] = _text(run_after)
        if data_interval is not None:
            body["data_interval_start"], body["data_interval_end"] = map(_text, data_interval)
        made = self._call("POST", f"/dags/{quoted(dag_id)}/dagRuns", body)
        run = self._run(dag_id, made["dag_run_id"])
        return run.wait(timeout) if wait else run

    def runs(self, dag_id: str) -> list[Run]:
        """Return the DAG's runs, by logical date (those without one by when they were due)."""
        try:
            found = self._call("GET", f"/dags/{quoted(dag_id)}/dagRuns?limit=100")["dag_runs"]
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
            raise
        found.sort(key=lambda run: _time(run["logical_date"] or run["run_after"]))
        return [self._run(dag_id, run["dag_run_id"]) for run in found]

    def wait_runs(self, dag_id: str, count: int, *, timeout: float = RUN_SECONDS) -> list[Run]:
        """Wait until a DAG has at least `count` runs and all of them have ended, and return them."""

        def ended() -> list[Run] | None:
            found = self.runs(dag_id)
            return found if len(found) >= count and all(run.state in FINAL for run in found) else None

        found: list[Run] = self.processes.wait_for(
            f"the end of {count} runs of {dag_id}", ended, timeout, lambda: reports(self.runs(dag_id))
        )
        return found

    def clear(
        self,
        run: Run,
        task_ids: Iterable[str | tuple[str, int]] | None = None,
        *,
        only_failed: bool = False,
        downstream: bool = False,
        wait: bool = True,
        timeout: float = RUN_SECONDS,
    ) -> Run:
        """Clear a run's tasks, which then run again: all, or those named, by id or (task id, map index)."""
        body: dict[str, Any] = {
            "dry_run": False,
            "dag_run_id": run.run_id,
            "only_failed": only_failed,
            "include_downstream": downstream,
            "reset_dag_runs": True,
        }
        if task_ids is not None:
            body["task_ids"] = [each if isinstance(each, str) else list(each) for each in task_ids]
        cleared = self._call("POST", f"/dags/{quoted(run.dag_id)}/clearTaskInstances", body)
        if not cleared["total_entries"]:
            raise AssertionError(f"nothing was cleared of {run}\n{run.report()}")
        return run.wait(timeout) if wait else run

    def mark_failed(self, run: Run, task_id: str | None = None, *, map_index: int = -1) -> None:
        """Mark a task, or the whole run, as failed; its supervisor then ends what runs, within a second or two."""
        self._mark(run, task_id, map_index, "failed")

    def mark_success(self, run: Run, task_id: str | None = None, *, map_index: int = -1) -> None:
        """Mark a task, or the whole run, as succeeded."""
        self._mark(run, task_id, map_index, "success")

    def _mark(self, run: Run, task_id: str | None, map_index: int, state: str) -> None:
        path, body = run.path, {"state": state}
        if task_id is not None:
            path, body = run.task_path(task_id, map_index), {"new_state": state}
        for tries in reversed(range(_MARK_TRIES)):
            try:
                self._call("PATCH", path, body)
                return
            except urllib.error.HTTPError as error:
                # On SQLite Airflow answers so, with nothing changed, where another process writes at that moment.
                if error.code != 500 or not tries:
                    raise
            time.sleep(1)

    def delete_run(self, run: Run) -> None:
        """Delete a run that has ended, and with it all that Airflow keeps of it but its logs."""
        self._call("DELETE", run.path)

    def backfill(
        self,
        dag_id: str,
        start: datetime | str,
        end: datetime | str,
        *,
        reprocess: Literal["none", "failed", "completed"] = "none",
        max_active_runs: int = 4,
        conf: Mapping[str, Any] | None = None,
        wait: bool = True,
        timeout: float = 240,
    ) -> list[Run]:
        """Backfill the intervals whose logical date is from `start` to `end`, both included, and return their runs."""
        body = {
            "dag_id": dag_id,
            "from_date": _text(start),
            "to_date": _text(end),
            "reprocess_behavior": reprocess,
            "max_active_runs": max_active_runs,
            "dag_run_conf": dict(conf or {}),
        }
        number = self._create_backfill(body)
        # The runs are made within the request; the backfill itself is marked as completed up to half a minute late.
        first, last = _time(_text(start)), _time(_text(end))
        found = self._call("GET", f"/dags/{quoted(dag_id)}/dagRuns?limit=100&run_type=backfill")["dag_runs"]
        found.sort(key=lambda run: _time(run["logical_date"]))
        made = [self._run(dag_id, run["dag_run_id"]) for run in found if first <= _time(run["logical_date"]) <= last]
        if wait:
            self.processes.wait_for(
                f"the end of backfill {number} of {dag_id}",
                lambda: all(run.state in FINAL for run in made),
                timeout,
                lambda: reports(made),
            )
        return made

    def _create_backfill(self, body: Mapping[str, Any]) -> int:
        """Create a backfill and return its number.

        On SQLite Airflow refuses that now and then (503, and 500 in 3.3.0): its savepoint has read when another process
        writes, and can no longer write. It then takes back the runs it has made, which ends a scheduler that has just
        read them; so the next attempts are made without one. Airflow 3.3.0 leaves an empty backfill behind.
        """
        tries = 5
        try:
            while True:
                try:
                    return int(self._call("POST", "/backfills", body)["id"])
                except urllib.error.HTTPError as error:
                    tries -= 1
                    if error.code not in (500, 503) or not tries:
                        raise
                if self.processes.runs("scheduler"):
                    self.processes.kill("scheduler")
                for left in self._call("GET", f"/backfills?dag_id={quoted(body['dag_id'])}")["backfills"]:
                    if left["completed_at"] is None:
                        self._call("PUT", f"/backfills/{left['id']}/cancel")
                time.sleep(0.5)
        finally:
            if not self.processes.runs("scheduler"):
                self._launch_scheduler()

    def _launch_scheduler(self) -> None:
        self.processes.launch("scheduler", "--skip-serve-logs")

    # ---- tasks -------------------------------------------------------------------------------------------------------

    def wait_task(
        self,
        run: Run,
        task_id: str,
        states: str | Sequence[str],
        *,
        map_index: int = -1,
        try_number: int | None = None,
        timeout: float = RUN_SECONDS,
    ) -> str:
        """Wait until a task (in its `try_number`th try, where given) is in one of `states`, and return which one.

        Fails at once where the run has ended in another state.
        """
        wanted = (states,) if isinstance(states, str) else tuple(states)

        def seen() -> str | None:
            run_ended = run.state in FINAL
            task = run.task(task_id, map_index)
            if task["state"] in wanted and try_number in (None, task["try_number"]):
                return str(task["state"])
            if run_ended:
                raise AssertionError(f"{task_id} ended as {task['state']}, not {wanted}\n{run.report()}")
            return None

        return str(self.processes.wait_for(f"{task_id} {'/'.join(wanted)} in {run}", seen, timeout, run.report))

    def wait_log(
        self,
        run: Run,
        task_id: str,
        text: str,
        *,
        map_index: int = -1,
        try_number: int | None = None,
        timeout: float = RUN_SECONDS,
        is_marked: bool = False,
    ) -> str:
        """Wait until the log of a task holds `text` and return the log.

        It fails at once where the run ended without, unless `is_marked`: a run that was given a state has ended before
        its processes have.
        """

        def seen() -> str | None:
            run_ended = not is_marked and run.state in FINAL
            log = run.log(task_id, try_number, map_index)
            if text in log:
                return log
            if run_ended:
                raise AssertionError(f"{run} ended and {task_id} did not log {text!r}\n{run.report()}")
            return None

        return str(self.processes.wait_for(f"{text!r} in the log of {task_id} of {run}", seen, timeout, run.report))

    def kill_task(
        self,
        run: Run,
        task_id: str,
        *,
        map_index: int = -1,
        target: Literal["task", "supervisor", "all"] = "task",
        timeout: float = 30,
    ) -> int:
        """Kill a running try with SIGKILL and return its number.

        `target`: "task" is the process that runs the operator, as the kernel's out-of-memory killer takes it (the
        supervisor reports that at once); "supervisor" the process that watches it, which leaves the task to itself;
        "all" both and everything they started, as when a pod or a machine is lost (the scheduler finds out by the
        missing heartbeat, after 20 s).
        """
        return self._signal_task(run, task_id, map_index, signal.SIGKILL, target, timeout)

    def terminate_task(self, run: Run, task_id: str, *, map_index: int = -1, timeout: float = 30) -> int:
        """Send SIGTERM to the process that runs the operator and return the try's number.

        Airflow then calls `on_kill` and lets `execute` go on: the try ends when `execute` does.
        """
        return self._signal_task(run, task_id, map_index, signal.SIGTERM, "task", timeout)

    def _signal_task(
        self, run: Run, task_id: str, map_index: int, number: signal.Signals, target: str, timeout: float
    ) -> int:
        def found() -> tuple[int, int, int] | None:
            task = run.task(task_id, map_index)
            titles = {title: pid for pid, title in self.processes.processes() if _instance_of(title) == task["id"]}
            supervisor = next((pid for title, pid in titles.items() if "LocalExecutor" in title), 0)
            runner = next((pid for title, pid in titles.items() if "LocalExecutor" not in title), 0)
            # The runner takes its title when it has got what to run; before that there is no try to kill.
            return (int(task["try_number"]), supervisor, runner) if supervisor and runner else None

        try_number, supervisor, runner = self.processes.wait_for(
            f"a process of {task_id} of {run}", found, timeout, run.report
        )
        pids = {"task": [runner], "supervisor": [supervisor], "all": [supervisor, *_below(supervisor)]}[target]
        _signal_all(pids, number)
        return int(try_number)

    def task_state(self, run: Run, task_id: str, *, map_index: int = -1) -> dict[str, Any]:
        """Return what the task state store keeps for a task of a run, by key."""
        found = self._call("GET", f"{run.store_path(task_id)}?map_index={map_index}&limit=100")
        return {row["key"]: row["value"] for row in found["task_state_store"]}

    def expire_state(self, run: Run, task_id: str, key: str | None = None, *, map_index: int = -1) -> list[str]:
        """Remove the rows of the task state store (one key, or all) as `airflow db clean` does; returns their keys.

        Rows written to never expire are removed too: a backend may lose them all the same.
        """
        present = self.task_state(run, task_id, map_index=map_index)
        keys = [key] if key is not None else list(present)
        if missing := sorted(set(keys) - set(present)):
            raise AssertionError(f"{task_id} of {run} has no state {', '.join(missing)}, only {sorted(present)}")
        for each in keys:
            self._call("DELETE", f"{run.store_path(task_id)}/{quoted(each)}?map_index={map_index}")
        return keys

    # ---- settings ----------------------------------------------------------------------------------------------------

    def define_connection(self, conn_id: str = "pulsar_default", *, conn_type: str = "pulsar", **extra: Any) -> str:
        """Store a connection, new or changed, and return its id; host, port, login, password, schema are not extra."""
        names = ("host", "port", "login", "password", "schema")
        standard = {name: extra.pop(name) for name in names if name in extra}
        body = {"connection_id": conn_id, "conn_type": conn_type, **standard, "extra": json.dumps(extra)}
        self._put(f"/connections/{quoted(conn_id)}", "/connections", body)
        return conn_id

    def add_variable(self, key: str, value: str) -> None:
        """Store a variable, new or changed."""
        self._put(f"/variables/{quoted(key)}", "/variables", {"key": key, "value": value})

    def _put(self, path: str, collection: str, body: Mapping[str, Any]) -> None:
        with contextlib.suppress(urllib.error.HTTPError):
            self._call("DELETE", path)
        self._call("POST", collection, body)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _run(self, dag_id: str, run_id: str) -> Run:
        return Run(dag_id, run_id, self.processes, self.logs)

    def _call(self, method: str, path: str, body: object = None) -> Any:
        return self.processes.call(method, f"/api/v2{path}", body)


def _instance_of(title: str) -> str:
    """Return the id of the task instance that a process is titled with, "" for another process."""
    return title.rpartition(" ")[2] if title.startswith("airflow worker -- ") else ""


def _below(pid: int) -> list[int]:
    """Return all processes below one, the deepest first."""
    children = [child for child, parent in parents().items() if parent == pid]
    return [each for child in children for each in [*_below(child), child]]


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _text(moment: datetime | str | None) -> str | None:
    """Return a time as the REST interface wants it."""
    return moment.isoformat() if isinstance(moment, datetime) else moment


def _time(text: str | None) -> float:
    assert text is not None
    return datetime.fromisoformat(text).timestamp()
