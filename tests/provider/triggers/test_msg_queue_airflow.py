"""Asset watchers on real Airflow processes: two triggerers, killed while events wait to be stored; none is lost.

`shared_stream_cohort_grace_period` has its default 0.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_native import AdminClient, Client, ConsumerType, InitialPosition
from support.airflow_stack import AirflowStack
from support.brokers import Broker, NewTopic
from support.dag_blocks import dag_blocks
from support.watchers import (
    MATCHES,
    Published,
    Watched,
    check,
    start_triggerer,
    subscribed,
    two_triggerers,
    wait,
    watch_and_kill,
)


@pytest.fixture
def stack(airflow: AirflowStack, broker: Broker) -> Iterator[AirflowStack]:
    """Give the real Airflow, its triggerer replaced by two that must share the triggers."""
    with two_triggerers(airflow, broker) as stack:
        yield stack


@pytest.mark.proves("A18", "A20", "K2", "K3", "K7")
def test_watchers_of_killed_triggerers_lose_nothing(
    stack: AirflowStack, client: Client, admin: AdminClient, topic: NewTopic
) -> None:
    watch_and_kill(stack, client, admin, "watchers_killed", topic(), topic("bytes"))


_DEFERRED = """
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import BaseOperator


class Wait(BaseOperator):
    def execute(self, context):
        trigger = MessageQueueTrigger(scheme="pulsar", topic={topic!r}, subscription="s", decode="json")
        self.defer(trigger=trigger, method_name="done")

    def done(self, context, event=None):
        return event
"""


def test_deferred_task_leaves_the_other_messages(
    airflow: AirflowStack, broker: Broker, client: Client, admin: AdminClient, topic: NewTopic
) -> None:
    airflow.define_connection(service_url=broker.service_url, admin_url=broker.admin_url)
    name = topic()
    client.subscribe(name, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest).close()
    with client.create_producer(name) as producer:
        for number in range(100):
            producer.send(b'{"__id__": %d}' % number)
    dag_id = airflow.write_dag("deferred_to_trigger", 'Wait(task_id="wait")', header=_DEFERRED.format(topic=name))
    for number in range(2):
        run = airflow.run(dag_id).succeeded()
        # As text, as Airflow takes the key for its own in an XCom.
        assert run.xcom("wait")["value"] == f'{{"__id__": {number}}}'

        def left() -> bool:
            stats = admin.stats(name, precise_backlog=True)["subscriptions"]["s"]
            return (stats["msgBacklog"], stats["consumers"]) == (99 - number, [])  # noqa: B023

        # The trigger is cancelled after the task was resumed.
        wait(airflow, "the end of the trigger", left)


@pytest.mark.proves("A18")
def test_events_page_dag_runs_as_printed(
    stack: AirflowStack, client: Client, admin: AdminClient, tmp_path: Path
) -> None:
    # Of two, one takes the watcher over where the other is late on a busy machine, and receives its messages again.
    stack.kill_triggerer()
    suffix = f"-{time.time_ns()}"
    (block,) = [each for each in dag_blocks() if each.page == "docs/airflow-events.md"]
    printed = block.moved(tmp_path, suffix)
    (dag_id,) = printed.dag_ids
    stack.write_dag_file(dag_id, printed.text)
    topic = f"persistent://public/default/large-orders{suffix}"
    # A new subscription begins at the end of its topic.
    wait(stack, "the subscription", lambda: subscribed(admin, topic))
    producer = client.create_producer(topic)
    # One after another: Airflow drops the wish for a run where an event is stored while it makes one of another.
    for count, (customer, amount) in enumerate((("ann", 250), ("cy", 101)), 1):
        for status in ("open", "paid"):
            value = {"customer": customer, "status": status, "amount": amount}
            producer.send(json.dumps(value).encode())
        runs = stack.wait_runs(dag_id, count)
        assert runs[-1].succeeded().xcom("collect") == [customer]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.proves("A18", "A21", "K3", "K7")
def test_watchers_of_10000_messages_lose_nothing(
    stack: AirflowStack, client: Client, admin: AdminClient, topic: NewTopic
) -> None:
    watched = Watched(stack, admin, topic(), topic("bytes"))
    watched.write("watchers_many")
    published = Published(client, watched.topic)
    published.publish(3000)
    for _ in range(2):
        wait(stack, "some events", lambda: sum(map(len, map(watched.seen, MATCHES))) >= 500, 300)
        # While it stores events, at any point.
        stack.kill_triggerer()
        start_triggerer(stack)
        published.publish(3400)
    watched.kill_between_receive_and_store(published, 200)
    wait(stack, "all events", lambda: watched.complete(published), 1500)
    assert published.count == 10_000
    check(watched, published, 3 * 3 * 200)
