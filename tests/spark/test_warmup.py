"""Warm-up of a load: the client is connected beside the session's start, and errors are left to the plan."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pulsar_native import Client
from pyspark_pulsar import clients
from pyspark_pulsar.clients import close_clients, shared_client
from pyspark_pulsar.request import LoadRequest
from pyspark_pulsar.warmup import start_warm_up
from support.brokers import Broker, NewTopic
from support.publishing import Publish


@pytest.fixture(autouse=True)
def _no_clients() -> Iterator[None]:
    """Begin and end without clients of this process."""
    close_clients()
    yield
    close_clients()


def request(source: dict[str, str], tmp_path: Path) -> LoadRequest:
    """Return the request of a whole topic."""
    return LoadRequest.parse(
        json.dumps({"source": source, "output": {"path": f"file://{tmp_path}/out"}, "interval": "all"})
    )


def warm_up(made: LoadRequest) -> None:
    """Run the warm-up to its end."""
    thread = start_warm_up(made)
    thread.join(60)
    assert not thread.is_alive()


def test_warm_up_connects_the_client_of_the_plan(
    broker: Broker, topic: NewTopic, publish: Publish, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    publish(name, ["a", "b"])
    made = request({"service.url": broker.service_url, "topic": name}, tmp_path)
    warm_up(made)
    (entry,) = clients._entries.values()
    with shared_client(made.read_options()) as (client, _):
        assert client is entry.client
    broker.wait_unsubscribed(f"{name}-partition-0")


@pytest.mark.parametrize("given", ["topic", "topics", "topicsPattern"])
def test_warm_up_creates_no_topic(broker: Broker, namespace: Callable[[], str], tmp_path: Path, given: str) -> None:
    name = f"persistent://{namespace()}/missing"
    warm_up(request({"service.url": broker.service_url, given: name}, tmp_path))
    space = name.removeprefix("persistent://").rpartition("/")[0]
    assert broker.admin("GET", f"persistent/{space}") == []


def test_warm_up_leaves_errors_to_the_plan(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"pulsar://127.0.0.1:{free.getsockname()[1]}"
        warm_up(request({"service.url": url, "topic": "t", "pulsar.client.operationTimeoutMs": "300"}, tmp_path))
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("reference", ["conf:spark.pulsar.token", "file:token.txt"])
def test_warm_up_without_session_reads_no_reference(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    def connect(config: object) -> Client:
        raise AssertionError("connected without the credentials")

    monkeypatch.setattr(clients.Client, "from_config", connect)
    warm_up(request({"service.url": broker.service_url, "topic": "t", "credentialsRef": reference}, tmp_path))
    assert not clients._entries
