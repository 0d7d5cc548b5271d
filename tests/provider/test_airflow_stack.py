"""The real Airflow of the tests: what its helpers do is what Airflow does."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.airflow_stack import AirflowStack

pytestmark = pytest.mark.airflow

_HELD = """
@task(retries=1, retry_delay=datetime.timedelta(seconds=1))
def held(gate, ti=None):
    import os, time
    print("try", ti.try_number, "began")
    deadline = time.monotonic() + 120
    while not os.path.exists(gate):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return ti.try_number

held({gate!r})
"""


def held(airflow: AirflowStack, dag_id: str, gate: Path) -> str:
    """Write a DAG whose task waits until the file `gate` is there."""
    return airflow.write_dag(dag_id, _HELD.format(gate=str(gate)))


def process_ids(airflow: AirflowStack, title: str) -> set[int]:
    """Return the processes of the stack whose title has a text in it."""
    return {pid for pid, found in airflow.processes.processes() if title in found}


def test_run_returns_states_xcom_rendered_and_log(airflow: AirflowStack) -> None:
    conn_id = airflow.define_connection("stack_reads", host="somewhere", service_url="pulsar://somewhere:1")
    airflow.add_variable("stack_reads", "a value")
    airflow.write_dag(
        "stack_reads",
        """
        @task(task_id="first")
        def first(day, dag_run=None):
            from airflow.sdk import BaseHook, Variable
            connection = BaseHook.get_connection("stack_reads")
            print("variable:", Variable.get("stack_reads"))
            return [connection.host, connection.extra_dejson["service_url"], dag_run.conf["more"]]

        @task
        def each(number):
            return number * 2

        first("{{ ds }}") >> each.expand(number=[1, 2])
        """,
    )
    run = airflow.run("stack_reads", logical_date=datetime(2026, 2, 3, tzinfo=UTC), conf={"more": 7}).succeeded()
    assert conn_id == "stack_reads"
    assert run.task_states() == {"first": "success", "each[0]": "success", "each[1]": "success"}
    assert run.xcom("first") == ["somewhere", "pulsar://somewhere:1", 7]
    assert run.xcom("each", map_index=1) == 4
    assert run.xcom("first", "no such key") is None
    assert run.rendered("first")["op_args"] == ["2026-02-03"]
    assert "variable: a value" in run.log("first", 1)
    assert "variable: a value" not in run.log("each", map_index=0)


def test_write_dag_reports_the_import_error_then_mends(airflow: AirflowStack) -> None:
    with pytest.raises(AssertionError, match="no_such_module_of_ours"):
        airflow.write_dag("stack_broken", "import no_such_module_of_ours")
    for answer in (1, 2):
        airflow.write_dag("stack_broken", f"@task\ndef say():\n    return {answer}\n\nsay()")
        assert airflow.run("stack_broken").succeeded().xcom("say") == answer


def test_failed_run_shows_its_log_and_clears(airflow: AirflowStack, tmp_path: Path) -> None:
    airflow.write_dag(
        "stack_clear",
        f"""
        @task
        def good():
            return 1

        @task
        def bad():
            import os
            if not os.path.exists({str(tmp_path / "mended")!r}):
                raise ValueError("not mended yet")

        good() >> bad()
        """,
    )
    run = airflow.run("stack_clear")
    with pytest.raises(AssertionError, match="not mended yet"):
        run.succeeded()
    (tmp_path / "mended").touch()
    airflow.clear(run, only_failed=True).succeeded()
    assert run.tries() == {"good": 1, "bad": 2}
    airflow.clear(run, ["good"]).succeeded()
    assert run.tries() == {"good": 2, "bad": 2}


@pytest.mark.parametrize(
    "target", ["task", *(pytest.param(target, marks=pytest.mark.slow) for target in ("supervisor", "all"))]
)
def test_kill_task_while_running_retries(airflow: AirflowStack, tmp_path: Path, target: str) -> None:
    run = airflow.run(held(airflow, f"stack_kill_{target}", tmp_path / "gate"), wait=False)
    airflow.wait_log(run, "held", "try 1 began")
    instance = run.task("held")["id"]
    assert len(process_ids(airflow, instance)) == 2
    assert airflow.kill_task(run, "held", target=target) == 1  # type: ignore[arg-type]
    (tmp_path / "gate").touch()
    run.wait().succeeded()
    assert run.xcom("held") == 2
    airflow.processes.wait_for("the end of the first try", lambda: not process_ids(airflow, instance), 30)


def test_terminate_task_calls_on_kill(airflow: AirflowStack) -> None:
    airflow.write_dag(
        "stack_terminate",
        """
        from airflow.sdk import BaseOperator

        class Waiting(BaseOperator):
            def execute(self, context):
                import threading
                self.killed = threading.Event()
                print("waiting now")
                raise RuntimeError("killed" if self.killed.wait(60) else "never killed")

            def on_kill(self):
                self.killed.set()

        Waiting(task_id="waiting")
        """,
    )
    run = airflow.run("stack_terminate", wait=False)
    airflow.wait_log(run, "waiting", "waiting now")
    assert airflow.terminate_task(run, "waiting") == 1
    assert run.wait().state == "failed"
    assert "'exc_value': 'killed'" in run.log("waiting")


def test_mark_failed_ends_the_running_task(airflow: AirflowStack, tmp_path: Path) -> None:
    run = airflow.run(held(airflow, "stack_mark", tmp_path / "gate"), wait=False)
    airflow.wait_log(run, "held", "try 1 began")
    instance = run.task("held")["id"]
    with pytest.raises(AssertionError, match=r"held success in .*not within 1 s[\s\S]*try 1 began"):
        airflow.wait_task(run, "held", "success", timeout=1)
    airflow.mark_failed(run, "held")
    assert run.wait().state == "failed"
    airflow.processes.wait_for("the end of its processes", lambda: not process_ids(airflow, instance), 30)
    airflow.mark_success(run, "held")
    assert run.task_states() == {"held": "success"}


def test_deferred_task_survives_the_triggerer(airflow: AirflowStack, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    airflow.write_dag(
        "stack_defer",
        f"""
        FileSensor(task_id="wait", filepath={str(gate)!r}, fs_conn_id="stack_files", deferrable=True, poke_interval=0.5)
        """,
        header="from airflow.providers.standard.sensors.filesystem import FileSensor",
    )
    airflow.define_connection("stack_files", conn_type="fs", path="/")
    run = airflow.run("stack_defer", wait=False)
    airflow.wait_task(run, "wait", "deferred")
    airflow.kill_triggerer()
    gate.touch()
    assert process_ids(airflow, "triggerer") == set()
    airflow.start_triggerer()
    run.wait().succeeded()
    # The try itself, and the trigger in whichever triggerers ran it.
    assert len(run.log_files("wait")) >= 2


def test_second_triggerer_takes_over(airflow: AirflowStack, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    airflow.define_connection("stack_files", conn_type="fs", path="/")
    airflow.write_dag(
        "stack_two",
        f"""
        FileSensor(task_id="wait", filepath={str(gate)!r}, fs_conn_id="stack_files", deferrable=True, poke_interval=0.5)
        """,
        header="from airflow.providers.standard.sensors.filesystem import FileSensor",
    )
    run = airflow.run("stack_two", wait=False)
    airflow.wait_task(run, "wait", "deferred")
    airflow.start_triggerer()
    airflow.kill_triggerer(0)
    gate.touch()
    run.wait().succeeded()


def test_deleted_run_is_made_again_without_its_state(airflow: AirflowStack) -> None:
    airflow.write_dag(
        "stack_again",
        """
        @task
        def count(task_state_store=None):
            number = task_state_store.get("number", default=0) + 1
            task_state_store.set("number", number)
            task_state_store.set("kept", "yes")
            return number

        count()
        """,
    )
    run = airflow.run("stack_again", run_id="the_run").succeeded()
    airflow.clear(run).succeeded()
    assert run.xcom("count") == 2
    assert airflow.task_state(run, "count") == {"number": 2, "kept": "yes"}
    assert airflow.expire_state(run, "count", "number") == ["number"]
    assert airflow.task_state(run, "count") == {"kept": "yes"}
    airflow.clear(run).succeeded()
    assert run.xcom("count") == 1
    airflow.delete_run(run)
    assert airflow.runs("stack_again") == []
    again = airflow.run("stack_again", run_id="the_run").succeeded()
    assert again == run
    assert (again.xcom("count"), again.tries()) == (1, {"count": 1})


def test_backfill_has_real_intervals(airflow: AirflowStack) -> None:
    airflow.write_dag(
        "stack_backfill",
        """
        @task
        def interval(data_interval_start=None, data_interval_end=None):
            return [data_interval_start.isoformat(), data_interval_end.isoformat()]

        interval()
        """,
        schedule="CronDataIntervalTimetable('0 * * * *', timezone='UTC')",
        options="catchup=False, end_date=datetime.datetime(2026, 1, 2)",
    )
    runs = airflow.backfill("stack_backfill", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 2, tzinfo=UTC))
    assert [run.succeeded().xcom("interval") for run in runs] == [
        [f"2026-01-01T{hour:02}:00:00+00:00", f"2026-01-01T{hour + 1:02}:00:00+00:00"] for hour in range(3)
    ]


def test_processes_of_others_are_not_found(airflow: AirflowStack) -> None:
    assert os.getpid() not in {pid for pid, _ in airflow.processes.processes()}
    titles = [title for _, title in airflow.processes.processes()]
    assert sum("LocalExecutor" in title for title in titles) == 4


def test_tidy_ends_what_a_test_left(airflow: AirflowStack, tmp_path: Path) -> None:
    run = airflow.run(held(airflow, "stack_left", tmp_path / "gate"), wait=False)
    airflow.wait_log(run, "held", "try 1 began")
    instance = run.task("held")["id"]
    airflow.start_triggerer()
    airflow.tidy()
    assert run.state == "failed"
    assert not process_ids(airflow, instance)
    assert not (airflow.dags / "stack_left.py").exists()
    with pytest.raises(ValueError, match="number of triggerers, 1, not 1"):
        airflow.kill_triggerer(1)


def test_tidy_revives_a_scheduler_that_ended(airflow: AirflowStack) -> None:
    scheduler = next(pid for pid, title in airflow.processes.processes() if "airflow scheduler" in title)
    os.kill(scheduler, signal.SIGKILL)
    with pytest.raises(AssertionError, match="scheduler ended"):
        airflow.processes.wait_for("what never comes", lambda: None, 20)
    airflow.tidy()
    airflow.write_dag("stack_revived", "@task\ndef say():\n    return 1\n\nsay()")
    assert airflow.run("stack_revived").succeeded().xcom("say") == 1
