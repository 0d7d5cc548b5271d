"""Client of the sync API on a fake broker: connects on first use, ends once, and releases the engine's thread."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any

import pytest

import pulsar_native
from pulsar_native import Client, ConsumerEventListener, ConsumerType
from pulsar_native.engine.consumer.listener import ListenerThreads
from pulsar_native.engine.loop import Engine
from pulsar_native.engine.waiter import Wait
from pulsar_native.exceptions import AlreadyClosed, InvalidConfiguration, OperationNotSupported, PulsarException
from pulsar_native.message_id import MessageId
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker, swallow
from support.until import wait_until

WRONG_SCHEMA: Any = "none"


class Listener(ConsumerEventListener):
    """Event listener that is never called."""

    def became_active(self, consumer: object, partition: int) -> None:
        raise NotImplementedError

    def became_inactive(self, consumer: object, partition: int) -> None:
        raise NotImplementedError


def engine_threads() -> list[threading.Thread]:
    """Return the threads of engines."""
    return [thread for thread in threading.enumerate() if thread.name == "pulsar-native-engine"]


@pytest.fixture
def no_engine() -> None:
    """Wait for the end of engines that other tests have given back."""
    gc.collect()
    for thread in engine_threads():
        thread.join(10)


@pytest.mark.usefixtures("no_engine")
def test_client_connects_on_first_use(fake: FakeBroker) -> None:
    with Client(fake.url) as client:
        assert not fake.peers and not engine_threads()
        client.get_topic_partitions("t")
        assert len(fake.peers) == len(engine_threads()) == 1
    assert not engine_threads() and fake.peers[0].gone.wait(10)


def test_client_closed_refuses_everything(fake: FakeBroker) -> None:
    client = Client(fake.url)
    producer = client.create_producer("t")
    client.close()
    for call in (
        client.close,
        lambda: client.create_producer("t"),
        lambda: client.subscribe("t", "s"),
        lambda: client.get_topic_partitions("t"),
        lambda: producer.send(b"x"),
        producer.close,
    ):
        with pytest.raises(AlreadyClosed):
            call()


def test_client_never_used_closes_without_engine(fake: FakeBroker) -> None:
    client = Client(fake.url)
    report = client.close()
    assert report == pulsar_native.CloseReport() and not fake.peers
    with pytest.raises(AlreadyClosed):
        client.close()


def test_client_that_never_connected_ends_listener_threads() -> None:
    before = set(threading.enumerate())
    client = Client("pulsar://127.0.0.1:1")
    with pytest.raises(InvalidConfiguration):
        # Refused after the threads of the listener were started, before the engine is.
        client.subscribe("t", "s", ConsumerType.Failover, schema=WRONG_SCHEMA, consumer_event_listener=Listener())
    begun = set(threading.enumerate()) - before
    assert any(thread.name.startswith("pulsar-native-listener") for thread in begun)
    client.close()
    for thread in begun:
        thread.join(10)
        assert not thread.is_alive()


def test_client_close_reports_its_parts(fake: FakeBroker) -> None:
    client = Client(fake.url)
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    producer.send_async(b"waits for its batch", None)
    client.subscribe("other", "s")
    report = client.close()
    assert [each.sent for each in report.producers] == [1]
    assert [each.topic for each in report.consumers] == ["persistent://public/default/other"]
    closings = fake.seen(Kind.CLOSE_PRODUCER, Kind.CLOSE_CONSUMER)
    assert {seen.command.type for seen in closings} == {Kind.CLOSE_PRODUCER, Kind.CLOSE_CONSUMER}


@pytest.mark.parametrize("place", [(ListenerThreads, "join"), (Wait, "wait")], ids=lambda place: place[0].__name__)
def test_client_close_interrupted_drops_connections(
    place: tuple[type, str], fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    # It keeps the engine's thread running, whose end would close the connections.
    with Client(fake.url) as other:
        other.get_topic_partitions("t")
        client = Client(fake.url)
        client.create_producer("t")
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(*place, interrupted)
            client.close()
        assert fake.peers[1].gone.wait(10) and not fake.peers[0].gone.is_set()
        with pytest.raises(AlreadyClosed):
            client.close()


CREATIONS: dict[str, Callable[[Client], object]] = {
    "producer": lambda client: client.create_producer("t"),
    "consumer": lambda client: client.subscribe(["a", "b"], "s"),
    "reader": lambda client: client.create_reader(["a", "b"], MessageId.earliest),
    "table view": lambda client: client.create_table_view("t"),
}


@pytest.mark.parametrize("kind", CREATIONS)
def test_interrupted_creation_leaves_nothing_open(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    wait = Wait.wait

    def interrupted(call: Wait, seconds: float | None = None) -> bool:
        # When all is done, and the caller was woken.
        wait(call, 10)
        raise KeyboardInterrupt

    def on_loop(engine: Engine, coroutine: Coroutine[Any, Any, Any], discard: Callable[[Any], object]) -> Any:
        return engine.run(coroutine, discard=discard)

    with Client(fake.url) as client:
        client.get_topic_partitions("t")
        core = client._core
        assert core is not None
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Engine, "run_eager", on_loop)
            patched.setattr(Wait, "wait", interrupted)
            CREATIONS[kind](client)
        wait_until(lambda: not core.producers and not core.consumers)
        made = len(fake.seen(Kind.PRODUCER)) + len(fake.seen(Kind.SUBSCRIBE))
        assert made == len(fake.seen(Kind.CLOSE_PRODUCER)) + len(fake.seen(Kind.CLOSE_CONSUMER)) > 0


@pytest.mark.parametrize("method", [Client.close, Client.shutdown])
def test_client_end_inside_callback_refused(method: Callable[[Client], object], fake: FakeBroker) -> None:
    raised: SimpleQueue[PulsarException] = SimpleQueue()

    def callback(_result: pulsar_native.Result, _id: MessageId) -> None:
        try:
            method(client)
        except PulsarException as error:
            raised.put(error)

    client = Client(fake.url)
    client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=1).send_async(b"x", callback)
    assert isinstance(raised.get(timeout=10), OperationNotSupported)
    assert [each.sent for each in client.close().producers] == [0]


def test_client_shutdown_sends_no_closing_command(fake: FakeBroker) -> None:
    fake.answers[Kind.SEND] = swallow
    client = Client(fake.url)
    producer = client.create_producer("t")
    told: list[pulsar_native.Result] = []
    producer.send_async(b"x", lambda result, _id: told.append(result))
    client.shutdown()
    assert told == [pulsar_native.Result.AlreadyClosed]
    assert fake.peers[0].gone.wait(10) and not fake.seen(Kind.CLOSE_PRODUCER)
    client.shutdown()
    assert client.close() == pulsar_native.CloseReport()


@pytest.mark.usefixtures("no_engine")
def test_client_collected_ends_its_engine(fake: FakeBroker) -> None:
    client = Client(fake.url)
    client.get_topic_partitions("t")
    del client
    assert not engine_threads() and fake.peers[0].gone.wait(10)


@pytest.mark.parametrize("end", ["collected", "shutdown", "close"])
def test_client_end_leaves_no_listener_thread(fake: FakeBroker, end: str) -> None:
    client = Client(fake.url)
    client.subscribe("t", "sub", message_listener=lambda _consumer, _message: None)
    (thread,) = client._listeners._threads
    # The thread is still running a task when the client ends.
    client._listeners.assign()(lambda: time.sleep(0.2))
    if end == "collected":
        del client
        gc.collect()
    else:
        getattr(client, end)()
    assert not thread.is_alive()


def test_client_dropped_beside_a_busy_engine_returns(fake: FakeBroker) -> None:
    is_free = threading.Event()
    client = Client(fake.url)
    producer = client.create_producer("t")
    producer.send_async(b"x", lambda _result, _id: is_free.wait(60))
    wait_until(lambda: bool(fake.seen(Kind.SEND)))
    del client, producer
    assert engine_threads()
    is_free.set()
    wait_until(lambda: not engine_threads())


def test_client_kept_by_its_producer(fake: FakeBroker) -> None:
    producer = Client(fake.url).create_producer("t")
    gc.collect()
    producer.send(b"x")
    assert not fake.peers[0].gone.is_set()
    producer._client.close()  # type: ignore[attr-defined]


def test_client_of_config_connects_alike(fake: FakeBroker) -> None:
    first = Client(fake.url, operation_timeout_seconds=7, listener_name="inside")
    with first, Client.from_config(first.config) as second:
        assert second.config == first.config and second.config.operation_timeout_seconds == 7
        second.create_producer("t")
    assert fake.seen(Kind.LOOKUP)[0].command.lookupTopic.advertised_listener_name == "inside"


def test_client_logger_gets_records_until_close(fake: FakeBroker) -> None:
    records: list[logging.LogRecord] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger = logging.Logger("own", logging.INFO)
    logger.addHandler(Kept())
    client = Client(fake.url, logger=logger)
    client.create_producer("t")
    client.close()
    before = len(records)
    assert any("is connected to" in record.getMessage() for record in records)
    with Client(fake.url) as other:
        other.create_producer("t")
    assert len(records) == before


def test_client_option_of_wrong_name_or_value_refused() -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        Client("pulsar://127.0.0.1:1", no_such_option=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidConfiguration, match="operation_timeout_seconds"):
        Client("pulsar://127.0.0.1:1", operation_timeout_seconds=-1)


def test_partition_count_does_not_create_by_default(fake: FakeBroker) -> None:
    fake.partitions["persistent://public/default/t"] = 3
    with Client(fake.url) as client:
        assert client.get_partition_count("t") == 3
        assert client.get_topic_partitions("t") == [f"persistent://public/default/t-partition-{n}" for n in range(3)]
        asked = [seen.command.partitionMetadata for seen in fake.seen(Kind.PARTITIONED_METADATA)]
        assert [each.metadata_auto_creation_enabled for each in asked] == [False, True]
