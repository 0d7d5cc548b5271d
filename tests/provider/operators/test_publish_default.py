"""PublishOperator on a broker as Pulsar is installed: no deduplication, no retention, inactive topics deleted."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from pulsar_native import AdminClient, Client, InitialPosition
from support.brokers import Broker
from support.publish_tasks import publish, texts
from support.tasks import StateStore, context_of, define_connection


@pytest.fixture
def conn(default_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> str:
    """Define a connection to the broker with its admin URL."""
    urls = {"service_url": default_broker.service_url, "admin_url": default_broker.admin_url}
    return define_connection(monkeypatch, "pulsar_default", **urls)


@pytest.fixture
def plain_conn(default_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> str:
    """Define a connection to the broker without an admin URL."""
    return define_connection(monkeypatch, "pulsar_default", service_url=default_broker.service_url)


@pytest.fixture
def default_admin(default_broker: Broker) -> Iterator[AdminClient]:
    """Give an admin client of the broker."""
    with AdminClient(default_broker.admin_url) as made:
        yield made


@pytest.fixture(params=[0, 2], ids=["plain", "partitioned"])
def name(request: pytest.FixtureRequest, default_admin: AdminClient) -> str:
    """Give the name of a topic nobody else uses, of a partitioned one that exists."""
    found = f"persistent://public/default/default-{uuid.uuid4().hex[:12]}"
    if request.param:
        default_admin.create_partitioned_topic(found, request.param)
    return found


def run(topic: str, messages: object = ("a", "b"), **options: Any) -> dict[str, Any]:
    """Publish as the operator does by default."""
    options.setdefault("deduplicate", "auto")
    manifest: dict[str, Any] = publish(topic, messages, **options).execute(context_of())
    return manifest


def received(broker: Broker, topic: str, subscription: str) -> list[str]:
    """Return what waits for a subscription."""
    with Client(broker.service_url) as client:
        consumer = client.subscribe(topic, subscription, initial_position=InitialPosition.Latest)
        return sorted(consumer.receive(5000).data().decode() for _ in range(2))


def test_publish_on_default_broker_names_missing_settings(
    conn: str, name: str, default_broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = run(name)
    assert (manifest["stored"], manifest["deduplicated"], manifest["repeatable"]) == (2, False, False)
    assert sorted(texts(default_broker, name)) == ["a", "b"]
    lines = capsys.readouterr().out.splitlines()
    kept = [line for line in lines if "neither a subscription nor retention" in line]
    assert len(kept) == 1 and "create_subscription" in kept[0] and "retention_minutes" in kept[0]
    assert sum("has no deduplication" in line for line in lines) == 1


@pytest.mark.parametrize("with_admin", [True, False])
def test_publish_creates_a_subscription_that_keeps_all(
    with_admin: bool,
    name: str,
    default_broker: Broker,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    request.getfixturevalue("conn" if with_admin else "plain_conn")
    assert run(name, create_subscription="loader")["stored"] == 2
    assert "neither a subscription nor retention" not in capsys.readouterr().out
    assert received(default_broker, name, "loader") == ["a", "b"]


def test_publish_leaves_an_existing_subscription_alone(
    conn: str, name: str, default_broker: Broker, default_admin: AdminClient
) -> None:
    run(name, create_subscription="loader")
    with Client(default_broker.service_url) as client:
        consumer = client.subscribe(name, "loader")  # Exclusive: nobody else may join.
        for _ in range(2):
            consumer.acknowledge(consumer.receive(5000))
        run(name, ["c", "d"], create_subscription="loader")
        assert sorted(consumer.receive(5000).data() for _ in range(2)) == [b"c", b"d"]
    assert default_admin.subscriptions(name) == ["loader"]


def test_publish_raises_the_retention_of_the_topic(
    conn: str, name: str, default_broker: Broker, default_admin: AdminClient, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name)
    assert default_admin.get_retention(name, applied=True) == (0, 0)
    capsys.readouterr()
    run(name, ["c"], deduplicate=False, retention_minutes=60)
    assert default_admin.get_retention(name, applied=True) == (60, -1)
    assert "neither a subscription nor retention" not in capsys.readouterr().out
    run(name, retention_minutes=30, retention_mb=100)
    assert default_admin.get_retention(name) == (60, -1), "it is never lowered"
    assert default_admin.get_retention("public/default") is None


def test_publish_retention_without_admin_url_raises(plain_conn: str, name: str, default_broker: Broker) -> None:
    with pytest.raises(AirflowFailException, match="need the admin URL"):
        run(name, retention_mb=100)
    assert texts(default_broker, name) == []


def test_publish_demanding_deduplication_fails_there(conn: str, name: str, default_broker: Broker) -> None:
    with pytest.raises(AirflowException, match="has no deduplication"):
        publish(name, ["a"], deduplicate=True).execute(context_of(store=StateStore()))
    assert texts(default_broker, name) == []
