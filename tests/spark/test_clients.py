"""Clients shared by the tasks of a process: kept between them, closed when idle, never across a fork or a change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyspark_pulsar.broker as broker_module
import pyspark_pulsar.clients as module
from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar.batch_reader import PulsarBatchReader
from pyspark_pulsar.clients import close_clients, shared_client
from pyspark_pulsar.options import ReadOptions
from support.brokers import Broker, NewTopic
from support.publishing import Publish
from support.relay import Command, NewRelay
from support.until import wait_until


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Begin and end without clients."""
    close_clients()
    yield
    close_clients()


def options(url: str, **more: str) -> ReadOptions:
    """Return the options of a read."""
    return ReadOptions.parse({"service.url": url, "topic": "t", **more})


@pytest.mark.proves("S14")
def test_tasks_of_a_process_share_a_client(broker: Broker, topic: NewTopic, publish: Publish, relay: NewRelay) -> None:
    name = topic(partitions=4)
    for partition in range(4):
        publish(f"{name}-partition-{partition}", [str(partition)])
    way = relay(broker.service_url)
    given = {"service.url": way.service_url, "topic": name, "columns": "value"}
    found = []
    for _ in range(2):
        reader = PulsarBatchReader(ReadOptions.parse(given))
        for split in reader.partitions():
            found += [value for batch in reader.read(split) for value in batch["value"].to_pylist()]
    assert sorted(found) == sorted([b"0", b"1", b"2", b"3"] * 2)
    assert way.count(Command.CONNECT) == 1


def test_idle_client_is_closed_and_recreated(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.05)
    read = options(broker.service_url)
    with shared_client(read) as (first, _), shared_client(read) as (same, _):
        assert same is first
        assert first.get_partition_count("persistent://public/default/none", auto_create=True) == 0
    wait_until(lambda: not module._entries, 5)
    with shared_client(read) as (second, _):
        assert second is not first


def test_uses_one_after_another_share_a_timer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[float] = []
    start = module._start_timer
    monkeypatch.setattr(module, "_start_timer", lambda *given: started.append(given[2]) or start(*given))
    read = options(broker.service_url)
    for _ in range(20):
        with shared_client(read) as (client, _):
            pass
    assert started == [module.IDLE_SECONDS]
    # The timer of the first use ends, and the client has been used since.
    ((key, entry),) = module._entries.items()
    entry.idle_since -= module.IDLE_SECONDS - 30
    module._close_idle(key, entry)
    assert len(started) == 2 and 29 < started[1] <= 30
    with shared_client(read) as (same, _):
        assert same is client
        # It ends during a use: the next release starts another one.
        module._close_idle(key, entry)
    assert started[2:] == [module.IDLE_SECONDS]


def test_changed_credentials_create_another_client(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    read = options(broker.service_url, credentialsRef=f"file:{file}")
    with shared_client(read) as (first, _):
        pass
    with shared_client(read) as (same, _):
        assert same is first
    file.write_text("two")
    with shared_client(read) as (second, _):
        assert second is not first
    with shared_client(options(broker.service_url)) as (anonymous, credentials):
        assert credentials is None and anonymous is not second


def test_forked_process_creates_its_own_client(broker: Broker) -> None:
    read = options(broker.service_url)
    with shared_client(read) as (client, _):
        client.get_partition_count("persistent://public/default/none", auto_create=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with shared_client(read) as (own, _):
                answer = own.get_partition_count("persistent://public/default/none", auto_create=True)
            code = 0 if own is not client and answer == 0 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_client_is_given_back_if_admin_client_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise InvalidConfiguration("no admin client")

    monkeypatch.setattr(broker_module, "admin_client", refuse)
    given = options("pulsar://127.0.0.1:1", **{"admin.url": "http://127.0.0.1:2"})
    # The error is held, and with it what the constructor has made.
    with pytest.raises(InvalidConfiguration) as failed:
        broker_module.Broker(given)
    assert failed.tb is not None
    assert [entry.users for entry in module._entries.values()] == [0]
