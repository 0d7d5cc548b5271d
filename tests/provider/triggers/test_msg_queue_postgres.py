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


@pytest.fixture
def stack(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, broker: Broker) -> Iterator[AirflowStack]:
    """Give an Airflow on PostgreSQL with two triggerers that must share the triggers."""
    with postgres.database() as name:
        metadata = PostgresMetadata(postgres, name)
        airflow = AirflowStack(tmp_path_factory.mktemp("airflow") / "home", metadata=metadata)
        try:
            airflow.start()
            with two_triggerers(airflow, broker):
                yield airflow
        finally:
            airflow.stop()


@pytest.mark.airflow
@pytest.mark.timeout(300)
@pytest.mark.proves("A18", "A20", "K2", "K3", "K7")
def test_watchers_on_postgres_lose_nothing(
    stack: AirflowStack, client: Client, admin: AdminClient, topic: NewTopic
) -> None:
    watch_and_kill(stack, client, admin, "watchers_postgres", topic(), topic("bytes"))
