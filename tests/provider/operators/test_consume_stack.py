"""ConsumeBatchOperator on real Airflow processes: killed at each step, cleared, deleted, marked failed, timed out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_native import AdminClient, Client
from support.airflow_run import Run
from support.airflow_stack import AirflowStack
from support.brokers import Broker, NewTopic
from support.consuming import beside, fill, texts

pytestmark = pytest.mark.airflow

# Each step can be held, in the first try, until the test lets it go on; or ends the process as kill -9 does.
_HEADER = """
import os, signal, time
from pulsar_native.jobs import batch_output, consuming

FOLDER = {folder!r}

def reach(step):
    if os.path.exists(os.path.join(FOLDER, "die at " + step)):
        os.unlink(os.path.join(FOLDER, "die at " + step))
        os.kill(os.getpid(), signal.SIGKILL)
    if os.path.exists(os.path.join(FOLDER, "hold at " + step)):
        print("holding at", step)
        deadline = time.monotonic() + 100
        while os.path.exists(os.path.join(FOLDER, "hold at " + step)) and time.monotonic() < deadline:
            time.sleep(0.1)
        print("going on from", step)

def stepped(function, before, after):
    def call(*arguments, **options):
        reach(before)
        found = function(*arguments, **options)
        reach(after)
        return found
    return call

consuming.ConsumeJob._receive = stepped(consuming.ConsumeJob._receive, "subscribed", "received")
consuming.AtomicFile.commit = stepped(consuming.AtomicFile.commit, "writing", "written")
consuming.acknowledge = stepped(consuming.acknowledge, "noted", "acknowledged")

def process(manifest):
    print("processing", manifest["count"])
    reach("processing")
    if os.path.exists(os.path.join(FOLDER, "fail")):
        raise ValueError("the step after consuming failed")
"""
_BODY = """
ConsumeBatchOperator(
    task_id="batch", topic={topic!r}, subscription="sub", path={path!r}, max_messages={most},
    process=process, retries={retries}, retry_delay=datetime.timedelta(seconds=1), {more}
)
"""


class Consuming:
    """A DAG with one ConsumeBatchOperator, its topic with 30 messages in entries of 7, and its folder."""

    def __init__(self, airflow: AirflowStack, client: Client, name: str, folder: Path) -> None:
        self.airflow, self.client, self.topic, self.folder = airflow, client, name, folder
        self.path = folder / "{{ run_id }}.jsonl"
        fill(client, name, range(30), batch=7)

    def dag(self, dag_id: str, *, retries: int = 1, path: str | None = None, more: str = "") -> str:
        """Write the DAG."""
        body = _BODY.format(topic=self.topic, path=path or str(self.path), most=20, retries=retries, more=more)
        return self.airflow.write_dag(dag_id, body, header=_HEADER.format(folder=str(self.folder)))

    def say(self, word: str) -> Path:
        """Tell the task what to do at a step."""
        path = self.folder / word
        path.touch()
        return path

    def output(self, run: Run) -> Path:
        """Return the output of a run."""
        return self.folder / f"{run.run_id}.jsonl"

    def rest(self) -> list[str]:
        """Return what the subscription has not acknowledged."""
        from pulsar_native import InitialPosition, Timeout

        found = []
        with self.client.subscribe(self.topic, "sub", initial_position=InitialPosition.Earliest) as consumer:
            try:
                while True:
                    found.append(consumer.receive(2000).data().decode())
            except Timeout:
                return found


@pytest.fixture
def consuming(airflow: AirflowStack, broker: Broker, client: Client, topic: NewTopic, tmp_path: Path) -> Consuming:
    """Give what writes a DAG that consumes."""
    airflow.define_connection(service_url=broker.service_url, admin_url=broker.admin_url)
    return Consuming(airflow, client, topic(), tmp_path)


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def whole(consuming: Consuming, run: Run) -> None:
    """Check that a run holds its 20 messages once, and the subscription the other 10."""
    written = texts(consuming.output(run))
    assert written == [str(n) for n in range(20)]
    assert consuming.rest() == [str(n) for n in range(20, 30)]
    assert run.xcom("batch")["count"] == 20
    assert beside(consuming.output(run))["state"] == "acknowledged"


@pytest.mark.proves("A11", "K4", "A12")
@pytest.mark.parametrize(
    "step", ["subscribed", "received", "writing", "written", "processing", "noted", "acknowledged"]
)
def test_killed_at_each_step_then_retried(step: str, consuming: Consuming) -> None:
    dag_id = consuming.dag(f"consume_die_{step}")
    consuming.say(f"die at {step}")
    run = consuming.airflow.run(dag_id).succeeded()
    assert run.tries() == {"batch": 2}
    assert not (consuming.folder / f"die at {step}").exists()
    whole(consuming, run)
    # Nothing is left of the try that died.
    left = {path.name for path in consuming.folder.iterdir()}
    assert left == {f"{run.run_id}.jsonl", f"_{run.run_id}.jsonl.manifest.json"}


@pytest.mark.proves("K4")
def test_failing_step_keeps_the_same_messages(consuming: Consuming) -> None:
    dag_id = consuming.dag("consume_fails", retries=1)
    fail = consuming.say("fail")
    run = consuming.airflow.run(dag_id)
    assert run.state == "failed" and run.tries() == {"batch": 2}
    assert consuming.rest() == [str(n) for n in range(30)]
    report = run.xcom("batch", "consume_failure")
    assert (report["stage"], report["count"], report["acknowledged"]) == ("process", 20, "nothing")
    fail.unlink()
    consuming.airflow.clear(run).succeeded()
    whole(consuming, run)


@pytest.mark.proves("A12")
def test_cleared_expired_and_deleted_runs_keep_their_batch(consuming: Consuming) -> None:
    airflow = consuming.airflow
    dag_id = consuming.dag("consume_lives")
    run = airflow.run(dag_id).succeeded()
    manifest, output = run.xcom("batch"), consuming.output(run)
    written = output.read_bytes()
    airflow.clear(run).succeeded()
    assert run.xcom("batch") == manifest and run.log("batch").count("processing 20") == 2
    # Its note is gone: the manifest beside the output is what is left.
    assert airflow.expire_state(run, "batch") == ["consumed"]
    airflow.clear(run).succeeded()
    assert run.xcom("batch") == manifest
    # The run is deleted and made again under its id, and its output has lost a byte.
    airflow.delete_run(run)
    output.write_bytes(written[:-2] + b"\n")
    again = airflow.run(dag_id, run_id=run.run_id).succeeded()
    assert again.xcom("batch") == manifest and output.read_bytes() == written
    # The output is gone, its manifest too: the state has the ids.
    for path in consuming.folder.iterdir():
        path.unlink()
    airflow.clear(again).succeeded()
    assert again.xcom("batch") == manifest and output.read_bytes() == written
    whole(consuming, again)
    # Another run takes what is left, and only that.
    other = airflow.run(dag_id).succeeded()
    assert texts(consuming.output(other)) == [str(n) for n in range(20, 30)]


@pytest.mark.proves("A29")
@pytest.mark.parametrize("step", ["subscribed", "received", "written", "processing"])
def test_marked_failed_acknowledges_nothing(step: str, consuming: Consuming, admin: AdminClient) -> None:
    dag_id = consuming.dag(f"consume_mark_{step}", retries=0)
    hold = consuming.say(f"hold at {step}")
    run = consuming.airflow.run(dag_id, wait=False)
    consuming.airflow.wait_log(run, "batch", f"holding at {step}")
    consuming.airflow.mark_failed(run, "batch")
    # The connection goes at once, although the task itself is held.
    wait_until(lambda: admin.stats(consuming.topic)["subscriptions"]["sub"]["consumers"] == [], seconds=15)
    hold.unlink()
    assert run.wait().state == "failed"
    assert consuming.rest() == [str(n) for n in range(30)]
    names = {path.name for path in consuming.folder.iterdir() if not path.name.startswith("_")}
    assert names <= ({f"{run.run_id}.jsonl"} if step in ("written", "processing") else set())
    consuming.airflow.clear(run).succeeded()
    whole(consuming, run)


@pytest.mark.parametrize("stage", ["receive", "process"])
def test_time_out_ends_within_two_seconds(stage: str, consuming: Consuming) -> None:
    more = "execution_timeout=datetime.timedelta(seconds=8),"
    if stage == "receive":
        more += " until_end=False,"
    dag_id = consuming.dag(f"consume_times_out_{stage}", retries=0, more=more)
    if stage == "process":
        consuming.say("hold at processing")
    else:
        # Only 10 of the 20 it wants.
        run = consuming.airflow.run(consuming.dag("consume_before_time_out", retries=0)).succeeded()
    run = consuming.airflow.run(dag_id)
    assert run.state == "failed"
    task = run.task("batch")
    # The time of the whole process, its start included, less what the operator may take.
    assert "AirflowTaskTimeout" in run.log("batch")
    began, ended = _logged(run, "Task instance is in running state"), _logged(run, "Task failed with exception")
    out = _logged(run, "Process timed out")
    assert 0 <= ended - out < 2, (began, out, ended, task["duration"])
    report = run.xcom("batch", "consume_failure")
    assert (report["stage"], report["count"], report["acknowledged"]) == (
        stage, 20 if stage == "process" else 10, "nothing",
    )  # fmt: skip
    assert f"'stage': '{stage}'" in run.log("batch")
    assert len(consuming.rest()) == (30 if stage == "process" else 10)


def _logged(run: Run, text: str) -> float:
    """Return when a task logged a text, in seconds since 1970."""
    from datetime import datetime

    for path in run.log_files("batch"):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if text in entry.get("event", ""):
                return datetime.fromisoformat(entry["timestamp"]).timestamp()
    return 0.0


def test_two_runs_at_once_take_turns_or_fail(consuming: Consuming) -> None:
    airflow = consuming.airflow
    dag_id = consuming.dag("consume_twice", retries=3)
    hold = consuming.say("hold at processing")
    first = airflow.run(dag_id, wait=False)
    airflow.wait_log(first, "batch", "holding at processing")
    second = airflow.run(dag_id, wait=False)
    airflow.wait_log(second, "batch", "Another consumer, perhaps of an earlier try, holds the subscription")
    hold.unlink()
    first.wait().succeeded()
    second.wait().succeeded()
    # One after the other: each message in one of the two, and none left.
    parts = [texts(consuming.output(run)) for run in (first, second)]
    assert sorted(int(value) for part in parts for value in part) == list(range(30))
    assert consuming.rest() == []


def test_two_runs_at_once_with_one_path(consuming: Consuming) -> None:
    airflow = consuming.airflow
    shared = str(consuming.folder / "one.jsonl")
    dag_id = consuming.dag("consume_one_path", path=shared, more="subscription_type='Shared',")
    hold = consuming.say("hold at processing")
    first = airflow.run(dag_id, wait=False)
    airflow.wait_log(first, "batch", "holding at processing")
    second = airflow.run(dag_id)
    # At once and without a retry: waiting would not help, and nothing was received.
    assert second.state == "failed" and second.tries() == {"batch": 1}
    assert "being written by another run" in second.log("batch")
    hold.unlink()
    first.wait().succeeded()
    assert len(texts(Path(shared))) == 20 and len(consuming.rest()) == 10


def test_runs_know_of_cut_entries(consuming: Consuming) -> None:
    dag_id = consuming.dag("consume_cut")
    first = consuming.airflow.run(dag_id).succeeded()
    cut: Any = first.xcom("batch", "consume_cut_entries_undated")["entries"]
    # 20 messages end behind the sixth one of the third entry.
    (entry,) = cut[consuming.topic]
    assert entry[2:4] == [f"{0b111111:x}", 7]
    second = consuming.airflow.run(dag_id).succeeded()
    assert texts(consuming.output(second)) == [str(n) for n in range(20, 30)]
