"""Sensors that begin in the triggerer, on real Airflow processes: templates, a killed triggerer, handing over."""

from __future__ import annotations

import pytest

from pulsar_native import Client, InitialPosition
from pulsar_native.exceptions import Timeout
from support.airflow_stack import AirflowStack
from support.brokers import Broker, NewTopic

_SENSORS = """
common = dict(topic={topic!r}, deferrable=True, start_from_trigger=True, poke_interval=1, timeout=120)
MessageSensor(task_id="message", subscription="s", match={{"key": "{{{{ 'wan' ~ 'ted' }}}}"}}, **common)
SubscriptionSensor(task_id="backlog", subscription="other", backlog="{{{{ 2 + 1 }}}}", **common)
TopicSensor(task_id="count", messages="{{{{ 1 + 2 }}}}", **common)
"""


@pytest.mark.proves("A16", "A17")
def test_sensors_begin_in_the_triggerer(airflow: AirflowStack, broker: Broker, client: Client, topic: NewTopic) -> None:
    airflow.define_connection(service_url=broker.service_url, admin_url=broker.admin_url)
    name = topic()
    for subscription in ("s", "other"):
        client.subscribe(name, subscription, initial_position=InitialPosition.Earliest).close()
    producer = client.create_producer(name, batching_enabled=False)
    producer.send(b"first", partition_key="other")
    run = airflow.run(airflow.write_dag("sensors_started", _SENSORS.format(topic=name)), wait=False)
    for task in ("message", "backlog", "count"):
        airflow.wait_task(run, task, "deferred")
    airflow.kill_triggerer()
    producer.send(b"the one", partition_key="wanted")
    producer.send(b"last", partition_key="other")
    airflow.start_triggerer()
    run.wait().succeeded()
    assert run.xcom("message")["value"] == "the one"
    assert run.xcom("backlog") == {"topic": name, "subscription": "other", "backlog": 3}
    assert run.xcom("count")["messages"] == 3
    # Each task had one try, and the worker saw it only at its end.
    assert set(run.tries().values()) == {1}, run.report()
    assert "Acknowledged" in run.log("message")
    consumer = client.subscribe(name, "s")
    assert [consumer.receive(5000).data() for _ in range(2)] == [b"first", b"last"]
    with pytest.raises(Timeout):
        consumer.receive(300)
