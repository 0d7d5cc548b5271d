"""The broker fixtures stand on a real broker, shared, private and secured; the official client is the witness."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import pulsar_native
from broker import BrokerError, Standalone
from support.brokers import (
    RUNNER,
    SHARED_BROKERS,
    Broker,
    NewTopic,
    OwnBroker,
    admin,
    broker_of_runner,
    shared_by_run,
)
from support.cursors import wait_for_stored_acknowledgement
from support.relay import Command, NewRelay

pulsar = pytest.importorskip("pulsar")


def quiet(service_url: str, **options: object) -> object:
    """Return an official client that logs errors only."""
    return pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **options)


def test_shared_broker_serves_topics_with_and_without_partitions(broker: Broker, topic: NewTopic) -> None:
    plain, partitioned = topic("plain"), topic("parts", partitions=3)
    assert plain != topic("plain")
    client = quiet(broker.service_url)
    assert client.get_topic_partitions(plain) == [plain]  # type: ignore[attr-defined]
    assert len(client.get_topic_partitions(partitioned)) == 3  # type: ignore[attr-defined]
    client.close()  # type: ignore[attr-defined]


def test_shared_by_run_one_broker_ends_with_runner(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = subprocess.Popen(["sleep", "300"])
    monkeypatch.setenv(SHARED_BROKERS, str(tmp_path))
    monkeypatch.setenv(RUNNER, str(runner.pid))
    try:
        with shared_by_run("some", tmp_path_factory, heap="512m") as first:
            pass
        with shared_by_run("some", tmp_path_factory, heap="512m") as again:
            assert again.service_url == first.service_url and again.healthy()
            assert again.process_id() == first.process_id()
    finally:
        runner.kill()
        runner.wait()
    wait_until(lambda: again.process_id() is None)
    assert not again.healthy(1)


@pytest.mark.parametrize(
    ("process", "suite", "is_given"),
    [("gw0", None, True), ("gw2", None, True), ("gw0", "integration", True), ("gw1", "integration", False)],
)
def test_broker_of_runner_is_not_for_each_process(
    monkeypatch: pytest.MonkeyPatch, process: str, suite: str | None, is_given: bool
) -> None:
    monkeypatch.setenv("PULSAR_TEST_SERVICE_URL", "pulsar://127.0.0.1:1")
    monkeypatch.setenv("PULSAR_TEST_ADMIN_URL", "http://127.0.0.1:2")
    given = Broker("pulsar://127.0.0.1:1", "http://127.0.0.1:2")
    assert broker_of_runner(process, suite) == (given if is_given else None)
    monkeypatch.delenv("PULSAR_TEST_ADMIN_URL")
    assert broker_of_runner(process, suite) is None


def test_a_client_stays_on_the_relay(broker: Broker, topic: NewTopic, relay: NewRelay) -> None:
    through = relay(broker.service_url)
    client = quiet(through.service_url)
    client.create_producer(topic()).send(b"hello")  # type: ignore[attr-defined]
    assert through.count(Command.SEND) == 1
    assert through.wait_for(Command.SEND_RECEIPT)
    client.close()  # type: ignore[attr-defined]


def timer_slacks(broker: Standalone) -> set[int]:
    """Return how late the timers of a broker's own client may wake, in ns."""
    tasks = Path("/proc", (broker.folder / "java.pid").read_text(), "task").glob("*")
    timers = [task.name for task in tasks if (task / "comm").read_text().strip() == "broker-client-s"]
    return {int(Path("/proc", timer, "timerslack_ns").read_text()) for timer in timers}


def test_killed_broker_comes_back_with_ports_and_data(own_broker: OwnBroker) -> None:
    private = own_broker(deduplication=True)
    before = private.service_url
    client = quiet(private.service_url)
    client.create_producer("kept").send(b"precious")  # type: ignore[attr-defined]
    libraries = "tmp/*rocksdb*.so"
    assert (unpacked := list(private.folder.glob(libraries)))
    private.kill()
    client.close()  # type: ignore[attr-defined]
    assert not private.healthy(1)
    private.start().wait_ready()
    # Those that the kill left are gone, and it has its own.
    assert list(private.folder.glob(libraries)) and not any(library.exists() for library in unpacked)
    assert private.service_url == before
    # Only root may set it for another process.
    assert 10_000_000 in timer_slacks(private) or os.geteuid() != 0
    with pytest.raises(BrokerError, match="already runs"):
        private.start()
    client = quiet(private.service_url)
    reader = client.create_reader("kept", pulsar.MessageId.earliest)  # type: ignore[attr-defined]
    assert reader.read_next(5000).data() == b"precious"
    client.close()  # type: ignore[attr-defined]


def test_secure_broker_wants_a_token_on_both_ports(secure_broker: Standalone) -> None:
    token, authority = secure_broker.token(), str(secure_broker.certificates.authority)
    namespaces = admin(secure_broker.admin_url, "GET", "namespaces/public", token=token)
    assert isinstance(namespaces, list) and "public/default" in namespaces
    good = pulsar.AuthenticationToken(token)
    for url, more in (
        (secure_broker.service_url, {}),
        (secure_broker.service_url_tls, {"tls_trust_certs_file_path": authority}),
    ):
        client = quiet(url, authentication=good, **more)
        client.create_producer("secured").send(b"1")  # type: ignore[attr-defined]
        client.close()  # type: ignore[attr-defined]
    client = quiet(secure_broker.service_url, authentication=pulsar.AuthenticationToken(secure_broker.token("nobody")))
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer("secured")  # type: ignore[attr-defined]
    client.close()  # type: ignore[attr-defined]


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until the answer is true; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s"
        time.sleep(0.1)


# Settings that decide what becomes of a message, as the broker itself tells them: the testing profile's, the default's.
_SETTINGS = {
    "transactionCoordinatorEnabled": ("true", "false"),
    "systemTopicEnabled": ("true", "true"),
    "topicLevelPoliciesEnabled": ("true", "true"),
    "acknowledgmentAtBatchIndexLevelEnabled": ("true", "true"),
    "exposingBrokerEntryMetadataToClientEnabled": ("true", "false"),
    "brokerDeleteInactiveTopicsEnabled": ("false", "true"),
    "brokerDeleteInactiveTopicsFrequencySeconds": ("60", "60"),
    "brokerDeleteInactiveTopicsMode": ("delete_when_no_subscriptions", "delete_when_no_subscriptions"),
    "brokerDeduplicationEnabled": ("false", "false"),
    "defaultRetentionTimeInMinutes": ("-1", "0"),
    "defaultRetentionSizeInMB": ("-1", "0"),
}


def test_profiles_are_configured_as_they_say(broker: Broker, default_broker: Broker) -> None:
    testing, default = (each.admin("GET", "brokers/configuration/runtime") for each in (broker, default_broker))
    assert isinstance(testing, dict) and isinstance(default, dict)
    assert {name: (testing[name], default[name]) for name in _SETTINGS} == _SETTINGS
    assert testing["numTransactionReplayThreadPoolSize"] == "1"
    assert "AppendIndexMetadataInterceptor" in testing["brokerEntryMetadataInterceptors"]
    assert default["brokerEntryMetadataInterceptors"] == "[]"


def test_unknown_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="testing, default, not 'fast'"):
        Standalone(tmp_path / "broker", profile="fast")


def trimmed(broker: Broker) -> list[bytes]:
    """Return what a topic still holds of a message that its only subscription acknowledged, in a closed ledger."""
    name = f"persistent/public/default/retained-{id(broker):x}"
    topic = name.replace("persistent/", "persistent://", 1)
    client = quiet(broker.service_url)
    consumer = client.subscribe(topic, "only")  # type: ignore[attr-defined]
    producer = client.create_producer(topic)  # type: ignore[attr-defined]
    producer.send(b"done with")
    consumer.acknowledge_cumulative(consumer.receive(10_000))
    consumer.close()
    wait_for_stored_acknowledgement(broker, topic, "only")
    # The next message goes to a ledger of its own; the one before it can then be given up.
    broker.admin("PUT", f"{name}/unload")
    producer.send(b"still open")

    def ledgers() -> int:
        broker.admin("POST", f"{name}/trim")
        found = broker.admin("GET", f"{name}/internalStats")
        assert isinstance(found, dict)
        return len(found["ledgers"])

    kept = broker.admin("GET", "brokers/configuration/runtime")
    assert isinstance(kept, dict)
    if kept["defaultRetentionTimeInMinutes"] == "0":
        wait_until(lambda: ledgers() == 1)
    else:
        assert ledgers() == 2
    reader = client.create_reader(topic, pulsar.MessageId.earliest)  # type: ignore[attr-defined]
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(10_000).data())
    client.close()  # type: ignore[attr-defined]
    return found


def test_default_profile_retains_nothing(broker: Broker, default_broker: Broker) -> None:
    assert trimmed(broker) == [b"done with", b"still open"]
    assert trimmed(default_broker) == [b"still open"]


def test_default_profile_deletes_inactive_topics(own_broker: OwnBroker) -> None:
    often = own_broker(profile="default", conf={"brokerDeleteInactiveTopicsFrequencySeconds": "1"}, heap="512m")
    client = quiet(often.service_url)
    producer = client.create_producer("kept")  # type: ignore[attr-defined]
    other = client.create_producer("left")  # type: ignore[attr-defined]
    producer.send(b"1")
    other.send(b"1")
    other.close()

    def exists(name: str) -> bool:
        found = admin(often.admin_url, "GET", "persistent/public/default")
        return f"persistent://public/default/{name}" in str(found)

    wait_until(lambda: not exists("left"))
    assert exists("kept"), "a topic with a producer is active"
    client.close()  # type: ignore[attr-defined]


def test_default_profile_has_no_index_of_messages(broker: Broker, default_broker: Broker) -> None:
    seen = []
    for each in (broker, default_broker):
        with pulsar_native.Client(each.service_url) as client:
            reader = client.create_reader("numbered", pulsar_native.MessageId.latest)
            client.create_producer("numbered").send(b"1")
            message = reader.read_next(10_000)
            seen.append((message.index() is not None, message.broker_publish_time() is not None))
    assert seen == [(True, True), (False, False)]


def test_default_profile_stores_a_sequence_id_twice(
    broker: Broker, default_broker: Broker, namespace: Callable[[], str]
) -> None:
    deduplicated = namespace()
    broker.admin("POST", f"namespaces/{deduplicated}/deduplication", True)
    stored = []
    for url, topic in (
        (broker.service_url, f"persistent://{deduplicated}/twice"),
        (default_broker.service_url, "persistent://public/default/twice"),
    ):
        client = quiet(url)
        for _ in range(2):
            producer = client.create_producer(topic, producer_name="same")  # type: ignore[attr-defined]
            producer.send(b"once?", sequence_id=7)
            producer.close()
        reader = client.create_reader(topic, pulsar.MessageId.earliest)  # type: ignore[attr-defined]
        count = 0
        while reader.has_message_available():
            reader.read_next(10_000)
            count += 1
        stored.append(count)
        client.close()  # type: ignore[attr-defined]
    assert stored == [1, 2]
