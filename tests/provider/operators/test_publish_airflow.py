"""PublishOperator under a real scheduler: killed, cleared, deleted, timed out, marked as failed, twice at once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from support.airflow_stack import AirflowStack
from support.brokers import Broker
from support.publish_tasks import numbers, texts

COUNT = 600


@pytest.fixture
def stack(airflow: AirflowStack, broker: Broker) -> AirflowStack:
    """Give the real Airflow with a connection to the shared broker."""
    airflow.define_connection("pulsar_default", service_url=broker.service_url, admin_url=broker.admin_url)
    return airflow


_KILLED = """
def rows(ti, point):
    def stop():
        import time
        print("reached", point)
        time.sleep(120)

    def each():
        for number in range({count}):
            if ti.try_number == 1 and number == point:
                stop()
            yield {{"n": number}}

    if ti.try_number == 1 and point < 0:
        stop()
    return each()

for point, topic in enumerate({topics!r}):
    PublishOperator(
        task_id=f"at_{{point}}",
        topic=topic,
        messages=rows,
        op_kwargs={{"point": {points!r}[point]}},
        batching_max_messages=10,
        retries=1,
        retry_delay=datetime.timedelta(seconds=1),
    )
"""


@pytest.mark.proves("A8")
def test_publish_killed_at_any_step_stores_each_once(
    stack: AirflowStack, once: Callable[..., str], broker: Broker
) -> None:
    # Before the producer is there; before the first message; after one; in the middle; before the end.
    points = [-1, 0, 1, COUNT // 2, COUNT - 1]
    topics = [once(partitions=index % 3) for index in range(len(points))]
    stack.write_dag("publish_killed", _KILLED.format(count=COUNT, points=points, topics=topics))
    run = stack.run("publish_killed", wait=False)
    for index in range(len(points)):
        stack.wait_log(run, f"at_{index}", "reached")
        assert stack.kill_task(run, f"at_{index}") == 1
    run.wait().succeeded()
    for index, topic in enumerate(topics):
        assert numbers(broker, topic) == Counter(range(COUNT)), points[index]
        manifest = run.xcom(f"at_{index}")
        assert manifest["count"] == COUNT and manifest["deduplicated"] is True
    assert run.xcom("at_3")["duplicates"] > 0
    assert set(run.tries().values()) == {2}


_LISTED = "PublishOperator(task_id='publish', topic={topic!r}, messages={messages!r}{more})"


@pytest.mark.proves("A8")
def test_publish_mended_code_and_cleared_run(stack: AirflowStack, once: Callable[..., str], broker: Broker) -> None:
    name = once()
    wrong, right = ["wrong-1", "wrong-2"], ["right-1", "right-2", "right-3"]
    stack.write_dag("publish_mended", _LISTED.format(topic=name, messages=wrong, more=""))
    run = stack.run("publish_mended").succeeded()
    stack.clear(run).succeeded()
    assert run.xcom("publish")["duplicates"] == 2
    stack.write_dag("publish_mended", _LISTED.format(topic=name, messages=right, more=""))
    stack.clear(run)
    assert run.task_states() == {"publish": "failed"}
    log = run.log("publish", 3)
    assert "message 0 is not the one published before" in log and "on_changed='republish'" in log
    assert texts(broker, name) == wrong
    stack.write_dag("publish_mended", _LISTED.format(topic=name, messages=right, more=", on_changed='republish'"))
    stack.clear(run).succeeded()
    assert texts(broker, name) == [*wrong, *right]
    stack.clear(run).succeeded()
    assert texts(broker, name) == [*wrong, *right]
    assert run.xcom("publish")["generation"] == 2


@pytest.mark.proves("A8")
def test_publish_deleted_run_and_removed_state(stack: AirflowStack, once: Callable[..., str], broker: Broker) -> None:
    name = once()
    stack.write_dag("publish_deleted", _LISTED.format(topic=name, messages=["a", "b"], more=""))
    run = stack.run("publish_deleted", run_id="the_run").succeeded()
    stack.expire_state(run, "publish")
    stack.clear(run)
    assert run.task_states() == {"publish": "failed"}
    assert "nothing is remembered of an earlier try" in run.log("publish", 2)
    stack.delete_run(run)
    again = stack.run("publish_deleted", run_id="the_run")
    assert again.task_states() == {"publish": "failed"}
    assert re.search(r"deleted and made again.*mark the task as a success", again.log("publish"))
    assert texts(broker, name) == ["a", "b"]
    stack.write_dag(
        "publish_deleted", _LISTED.format(topic=name, messages=["a", "b"], more=", identity='{{ run_id }}/again'")
    )
    stack.clear(again).succeeded()
    assert texts(broker, name) == ["a", "b", "a", "b"]


_SLOW = """
def rows():
    import time
    for number in range({count}):
        if number == 100:
            print("reached")
        if number >= 100:
            time.sleep(0.05)
        yield {{"n": number}}

PublishOperator(task_id="publish", topic={topic!r}, messages=rows, batching_max_messages=10{more})
"""


@pytest.mark.proves("A6", "A29")
def test_publish_execution_timeout_ends_at_once(stack: AirflowStack, once: Callable[..., str], broker: Broker) -> None:
    name = once()
    more = ", execution_timeout=datetime.timedelta(seconds=4)"
    stack.write_dag("publish_timeout", _SLOW.format(count=COUNT, topic=name, more=more))
    run = stack.run("publish_timeout")
    assert run.task_states() == {"publish": "failed"}
    log = run.log_files("publish")[0].read_text()
    moments = {
        word: datetime.fromisoformat(found[1])
        for word in ("Process timed out", "Task failed with exception")
        if (found := re.search(rf'"timestamp":"([^"]+)"[^\n]*"event":"{word}', log))
    }
    assert (moments["Task failed with exception"] - moments["Process timed out"]).total_seconds() < 2
    manifest = run.xcom("publish", "publish_failure")
    assert manifest["first_error"].startswith("AirflowTaskTimeout") and manifest["stored"] >= 90
    # What was on its way when the time was over may have been stored without an answer.
    stored = sum(numbers(broker, name).values())
    assert manifest["stored"] <= stored <= manifest["stored"] + manifest["unconfirmed"] and manifest["stored_ids"]
    assert manifest["unconfirmed"] <= 20
    assert "ended early (AirflowTaskTimeout" in log


@pytest.mark.proves("A29")
def test_publish_marked_as_failed_sends_no_more(stack: AirflowStack, once: Callable[..., str], broker: Broker) -> None:
    name = once()
    stack.write_dag("publish_marked", _SLOW.format(count=COUNT, topic=name, more=""))
    run = stack.run("publish_marked", wait=False)
    stack.wait_log(run, "publish", "reached")
    stack.mark_failed(run, "publish")
    stack.wait_log(run, "publish", "ended early (the task was killed)", is_marked=True)
    stored = numbers(broker, name)
    assert 90 <= sum(stored.values()) < COUNT and stored == Counter(range(len(stored)))
    run.wait()
    stack.clear(run).succeeded()
    assert numbers(broker, name) == Counter(range(COUNT))


def test_publish_two_runs_at_once(
    stack: AirflowStack, once: Callable[..., str], broker: Broker, tmp_path: Path
) -> None:
    name = once(partitions=2)
    stack.write_dag("publish_twice", _SLOW.format(count=150, topic=name, more=""))
    runs = [stack.run("publish_twice", run_id=f"run_{number}", wait=False) for number in range(2)]
    for run in runs:
        run.wait().succeeded()
    assert numbers(broker, name) == Counter(dict.fromkeys(range(150), 2))
    names = [run.xcom("publish")["producer_name"] for run in runs]
    deployments = {each.split("/")[1] for each in names}
    assert len(set(names)) == 2 and len(deployments) == 1 and len(deployments.pop()) == 16
