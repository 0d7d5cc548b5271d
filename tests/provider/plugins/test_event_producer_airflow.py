"""Event producer plugin in the real scheduler and in the processes of tasks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsar_native import Message
from support.airflow_stack import AirflowStack
from support.brokers import Broker
from support.publish_tasks import read_all
from support.until import wait_until

_DAG = """
@task
def good():
    return 1

@task(retries=0)
def bad():
    raise RuntimeError("no more")

@task
def skipped():
    from airflow.sdk.exceptions import AirflowSkipException
    raise AirflowSkipException("not today")

good() >> [bad(), skipped()]
"""


def events(broker: Broker, topic: str, run_id: str) -> list[tuple[dict[str, Any], Message]]:
    """Return the events of a run, with their messages, in the order they were published."""
    found = [(json.loads(message.data()), message) for message in read_all(broker, topic)]
    return [each for each in found if each[0]["run_id"] == run_id]


@pytest.mark.proves("A24")
def test_event_producer_publishes_runs_and_tasks(
    airflow: AirflowStack, event_topics: dict[str, str], broker: Broker
) -> None:
    airflow.write_dag("events_of_a_run", _DAG)
    run = airflow.run("events_of_a_run")
    assert run.state == "failed"
    runs = wait_until(
        lambda: found if len(found := events(broker, event_topics["dag_run"], run.run_id)) == 2 else None, 30
    )
    assert [body["event"] for body, _ in runs] == ["dag_run.running", "dag_run.failed"]
    body, message = runs[1]
    assert body["dag_id"] == "events_of_a_run" and body["source"] == "tests" and body["schema_version"] == 1
    assert body["run_type"] == "manual" and body["start_date"] and body["end_date"]
    assert message.partition_key() == f"events_of_a_run/{run.run_id}"
    # Those of a task are sent before its process ends, so they are all there.
    tasks = [body for body, _ in events(broker, event_topics["task_instance"], run.run_id)]
    by_task: dict[str, list[str]] = {}
    for body in tasks:
        by_task.setdefault(body["task_id"], []).append(body["event"].partition(".")[2])
    assert by_task == {"good": ["running", "success"], "bad": ["running", "failed"], "skipped": ["running", "skipped"]}
    (failed,) = [body for body in tasks if body["event"] == "task_instance.failed"]
    assert failed["error"] == "no more" and failed["try_number"] == 1 and failed["map_index"] == -1
    other = airflow.run(airflow.write_dag("no_events_of_this", "@task\ndef one(): pass\none()"))
    assert other.state == "success"
    assert events(broker, event_topics["task_instance"], other.run_id) == []
