"""TopicSensor on real Airflow processes: killed, cleared, deleted, expired, marked failed, timed out, twice at once."""

from __future__ import annotations

import time

import pytest

from pulsar_native import AdminClient, Client
from support.airflow_run import Run
from support.airflow_stack import AirflowStack
from support.brokers import Broker, NewTopic

MODES = ("poke", "reschedule", "deferrable")
_SENSORS = """
for mode in {modes!r}:
    TopicSensor(
        task_id=mode, topic={topic!r}, messages=5, deferrable=mode == "deferrable", retries=1,
        # Airflow may lose a task that is rescheduled before its executor was seen to end.
        poke_interval=5 if mode == "reschedule" else 1,
        retry_delay=datetime.timedelta(seconds=1), timeout={timeout}, max_retry_delay=datetime.timedelta(seconds=1),
        **({{}} if mode == "deferrable" else {{"mode": mode}}),
    )
"""


@pytest.fixture
def stack(airflow: AirflowStack, broker: Broker) -> AirflowStack:
    """Give the real Airflow with the default connection to the shared broker."""
    airflow.define_connection(service_url=broker.service_url, admin_url=broker.admin_url)
    return airflow


def sensors(stack: AirflowStack, dag_id: str, topic: str, *, timeout: int = 120) -> str:
    """Write a DAG with a sensor in each mode."""
    return stack.write_dag(dag_id, _SENSORS.format(modes=MODES, topic=topic, timeout=timeout))


def send(client: Client, topic: str, count: int) -> None:
    """Publish messages, an entry each."""
    producer = client.create_producer(topic)
    for _ in range(count):
        producer.send(b"x")
    producer.close()


def nothing_is_left(admin: AdminClient, topic: str) -> None:
    """Check that no subscription of a sensor stays at the broker; a reader's goes with its connection."""
    deadline = time.monotonic() + 30
    while left := admin.subscriptions(topic):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def waiting(stack: AirflowStack, run: Run) -> None:
    """Wait until each sensor has looked."""
    for mode in MODES:
        stack.wait_log(run, mode, "Waiting for")
    stack.wait_task(run, "deferrable", "deferred")


def found(run: Run) -> set[int]:
    """Return how many messages each sensor says it found."""
    return {run.xcom(mode)["messages"] for mode in MODES}


@pytest.mark.proves("A16")
def test_killed_expired_and_deleted_waits_continue(
    stack: AirflowStack, client: Client, admin: AdminClient, topic: NewTopic
) -> None:
    name = topic()
    send(client, name, 3)
    dag_id = sensors(stack, "sensor_disturbed", name)
    # Two runs at once do not know of each other.
    runs = [stack.run(dag_id, run_id=f"run_{number}", wait=False) for number in range(2)]
    for run in runs:
        waiting(stack, run)
    stack.kill_task(runs[0], "poke")
    stack.kill_triggerer()
    stack.expire_state(runs[0], "reschedule")
    stack.start_triggerer()
    stack.wait_task(runs[0], "poke", "running")
    send(client, name, 2)
    for run in runs:
        assert found(run.wait().succeeded()) == {5}
    assert runs[0].tries()["poke"] == 2
    # What was seen once is looked for again: by a cleared run, and by one that is deleted and made again.
    assert found(stack.clear(runs[0]).succeeded()) == {5}
    stack.delete_run(runs[1])
    assert found(stack.run(dag_id, run_id="run_1").succeeded()) == {5}
    nothing_is_left(admin, name)


@pytest.mark.proves("A16", "A29")
def test_marked_and_timed_out_waits_end(
    stack: AirflowStack, client: Client, admin: AdminClient, topic: NewTopic
) -> None:
    name = topic()
    send(client, name, 1)
    marked = stack.run(sensors(stack, "sensor_marked", name), wait=False)
    late = stack.run(sensors(stack, "sensor_late", name, timeout=3), wait=False)
    waiting(stack, marked)
    for mode in MODES:
        stack.mark_failed(marked, mode)
    assert marked.wait().task_states() == dict.fromkeys(MODES, "failed")
    assert late.wait().task_states() == dict.fromkeys(MODES, "failed")
    # A time-out is final: a sensor is not tried again for it. A rescheduled one Airflow itself may lose, and try again.
    assert {late.tries()[mode] for mode in ("poke", "deferrable")} == {1}, late.report()
    for mode in MODES:
        assert "last: 1 messages are there" in late.log(mode), late.log(mode)[-2000:]
    nothing_is_left(admin, name)
