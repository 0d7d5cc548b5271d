"""Asset watchers on a real Airflow with PostgreSQL as metadata database, as in production: no event is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_native import AdminClient, Client
from support.airflow_metadata import PostgresMetadata
from support.airflow_stack import AirflowStack
from support.brokers import Broker, NewTopic
from support.postgres import Postgres
from support.watchers import two_triggerers, watch_and_kill


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, broker: Broker) -> Iterator[AirflowStack]:
    """Give an Airflow on PostgreSQL with two triggerers that must share the triggers."""
    with postgres.database() as name:
        metadata = PostgresMetadata(postgres, name)
        airflow = AirflowStack(tmp_path_factory.mktemp("airflow") / "home", metadata=metadata)
        try:
            yield airflow.start()
        finally:
            airflow.stop()


@pytest.mark.slow
@pytest.mark.airflow
@pytest.mark.timeout(600)
@pytest.mark.proves("A18", "A20", "K2", "K3", "K7")
def test_watchers_on_postgres_lose_nothing(
    stack: AirflowStack, broker: Broker, client: Client, admin: AdminClient, topic: NewTopic
) -> None:
    with two_triggerers(stack, broker):
        watch_and_kill(stack, client, admin, "watchers_postgres", topic(), topic("bytes"))


@pytest.mark.slow
@pytest.mark.airflow
@pytest.mark.timeout(600)
@pytest.mark.proves("A20")
def test_xcoms_on_postgres_hold_any_text(stack: AirflowStack, broker: Broker, client: Client, topic: NewTopic) -> None:
    """JSONB, in which PostgreSQL keeps XComs and what deferred tasks wait for, has neither NUL nor half a surrogate."""
    stack.define_connection(service_url=broker.service_url, admin_url=broker.admin_url)
    name = topic()
    producer = client.create_producer(name)
    wild = {"nul": b"a\x00b", "json": b'{"a": ["\\u0000", "\\ud800", 1%s]}' % (b"0" * 40)}
    for key, payload in wild.items():
        producer.send(payload, partition_key=key, properties={"p": "\x00"})
    dag_id = stack.write_dag(
        "any_text",
        f"""
        topic = {name!r}
        MessageSensor(
            task_id="poked", topic=topic, subscription="poked", match={{"key": "nul"}}, initial_position="earliest"
        )
        MessageSensor(
            task_id="deferred", topic=topic, subscription="deferred", match={{"key": "json"}}, deferrable=True,
            initial_position="earliest", decode="json",
        )
        ConsumeBatchOperator(task_id="inline", topic=topic, subscription="inline", inline=True)
        """,
    )
    run = stack.run(dag_id).succeeded()
    nul, value = ("YQBi", "base64"), {"a": ["?", "?", "1" + "0" * 40]}
    poked, deferred, (first, _) = run.xcom("poked"), run.xcom("deferred"), run.xcom("inline")["messages"]
    assert (poked["value"], poked["encoding"]) == (first["value"], first["encoding"]) == nul
    assert (deferred["value"], deferred["encoding"], deferred["properties"]) == (value, "json", {"p": "?"})
