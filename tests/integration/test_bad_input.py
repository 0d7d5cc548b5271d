"""What a wrong argument, address, name, token or size gets: a clear error in time, and nothing lost after it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker import free_port
from pulsar_native import (
    ClientConfig,
    ConnectError,
    InvalidConfiguration,
    InvalidTopicName,
    InvalidUrl,
    MessageId,
    MessageTooBig,
    PulsarException,
    Timeout,
    TopicNotFound,
)
from support.apis import Api
from support.brokers import Broker, NewTopic

ReadAll = Callable[..., list[Any]]


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("http://127.0.0.1:8080/admin", "host"),
        ("pulsar:/127.0.0.1", "scheme"),
        ("kafka://127.0.0.1:9092", "kafka"),
        ("127.0.0.1:6650", "scheme"),
        ("", "empty"),
        ("pulsar://", "host"),
        ("pulsar://127.0.0.1:99999", "99999"),
        ("pulsar://user:secret@127.0.0.1", "authentication"),
    ],
)
def test_a_wrong_service_url_is_told_at_once(api: Api, url: str, hint: str) -> None:
    with pytest.raises(InvalidUrl, match=hint) as caught:
        api.client(url)
    assert "secret" not in str(caught.value) and not caught.value.retryable


@pytest.mark.proves("N9")
def test_a_closed_port_is_told_within_the_time_out(api: Api, topic: NewTopic) -> None:
    port = free_port()
    client = api.client(f"pulsar://127.0.0.1:{port}", operation_timeout_seconds=1)
    name = topic()
    for call in (
        lambda: client.create_producer(name),
        lambda: client.subscribe(name, "sub"),
        lambda: client.create_reader(name, MessageId.earliest),
        lambda: client.get_topic_partitions(name),
    ):
        started = time.monotonic()
        with pytest.raises(ConnectError) as caught:
            call()
        assert time.monotonic() - started < 6
        error = caught.value
        assert error.retryable and error.topic == name and (error.attempts or 0) > 1
        assert error.broker == f"127.0.0.1:{port}" and str(port) in str(error)
        # What existing programs catch goes on working.
        assert isinstance(error, ConnectionError)


@pytest.fixture
def black_hole() -> Iterator[int]:
    """Give the port of a listener whose queue is full: connecting to it gets no answer at all."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        held = []
        for _ in range(8):
            each = socket.socket()
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
            held.append(each)
        yield listener.getsockname()[1]
        for each in held:
            each.close()


@pytest.mark.proves("C15")
def test_connecting_to_a_black_hole_is_bounded(api: Api, black_hole: int) -> None:
    client = api.client(f"pulsar://127.0.0.1:{black_hole}", connection_timeout_ms=600, operation_timeout_seconds=0.65)
    started = time.monotonic()
    with pytest.raises(PulsarException) as caught:
        client.get_topic_partitions("topic")
    assert 0.5 < time.monotonic() - started < 5
    assert isinstance(caught.value, ConnectError | Timeout) and caught.value.retryable


@pytest.mark.parametrize(
    "reply",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 100, b"\0\0\0\x01\0"],
    ids=["hangs up", "http", "noise", "bad sizes"],
)
def test_something_else_on_the_port(api: Api, reply: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    continue
                with peer:
                    peer.recv(1000)
                    peer.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            client = api.client(f"pulsar://127.0.0.1:{server.getsockname()[1]}", operation_timeout_seconds=1)
            started = time.monotonic()
            with pytest.raises(PulsarException) as caught:
                client.create_producer("topic")
            assert time.monotonic() - started < 5
            assert str(server.getsockname()[1]) in str(caught.value)
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize(
    "name",
    ["persistent://a/b", "http://a/b/c", "a/b", "persistent://pub lic/default/x", "persistent://a/b/c/d/e", "\n"],
)
def test_a_wrong_topic_name_fails_before_any_attempt_to_connect(api: Api, name: str) -> None:
    client = api.client("pulsar://127.0.0.1:1")
    for call in (
        lambda: client.create_producer(name),
        lambda: client.subscribe(name, "sub"),
        lambda: client.create_reader(name, MessageId.earliest),
    ):
        with pytest.raises((InvalidTopicName, InvalidConfiguration)) as caught:
            call()
        assert not caught.value.retryable


class TestUnknownTopic:
    """Topics and namespaces that do not exist."""

    def test_without_automatic_creation(
        self, api: Api, broker: Broker, client: Any, namespace: Callable[[], str], topic: NewTopic
    ) -> None:
        space = namespace()
        broker.admin("POST", f"namespaces/{space}/autoTopicCreation", {"allowAutoTopicCreation": False})
        name = topic(namespace=space)
        for call in (
            lambda: client.create_producer(name),
            lambda: client.subscribe(name, "sub"),
            lambda: client.get_partition_count(name),
        ):
            started = time.monotonic()
            with pytest.raises(TopicNotFound) as caught:
                call()
            assert time.monotonic() - started < 15, "half the operation time-out"
            assert caught.value.topic == name and name in str(caught.value) and not caught.value.retryable
        broker.admin("PUT", name.replace("://", "/"))
        client.create_producer(name).send(b"now it is there")

    @pytest.mark.parametrize("namespace_name", ["public/no-such-namespace", "no-such-tenant/default"])
    def test_in_an_unknown_namespace(self, api: Api, broker: Broker, namespace_name: str) -> None:
        client = api.client(broker.service_url, operation_timeout_seconds=2)
        name = f"persistent://{namespace_name}/topic"
        for call in (lambda: client.create_producer(name), lambda: client.subscribe(name, "sub")):
            started = time.monotonic()
            with pytest.raises(PulsarException, match=r"(?i)namespace|tenant|not found") as caught:
                call()
            assert time.monotonic() - started < 6 and caught.value.topic == name


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("operation_timeout_second", "operation_timeout_seconds"),
        ("conection_timeout_ms", "connection_timeout_ms"),
        ("authenticaton", "authentication"),
    ],
)
def test_a_wrong_option_is_told_with_the_nearest_right_one(wrong: str, right: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"'{right}'"):
        ClientConfig.from_mapping({"service_url": "pulsar://127.0.0.1", wrong: 1})


def test_a_wrong_option_of_either_api_is_told(api: Api) -> None:
    with pytest.raises((TypeError, InvalidConfiguration), match="operation_timeout_second"):
        api.client("pulsar://127.0.0.1", operation_timeout_second=1)


@pytest.mark.parametrize(
    "options",
    [
        {"operation_timeout_seconds": 0},
        {"operation_timeout_seconds": "30"},
        {"connection_timeout_ms": -1},
        {"authentication": "token"},
        {"tls_certificate_file_path": "only-one.pem"},
    ],
)
def test_wrong_values_of_the_client(api: Api, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration, match=next(iter(options))):
        api.client("pulsar://127.0.0.1", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"send_timeout_millis": -1},
        {"batching_max_messages": 0},
        {"max_pending_messages": -5},
        {"properties": {"a": 1}},
        {"producer_name": 5},
        {"message_router": "round robin"},
    ],
)
def test_wrong_values_of_a_producer(api: Api, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration, match=next(iter(options))):
        api.client("pulsar://127.0.0.1:1").create_producer("topic", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"receiver_queue_size": -1},
        {"unacked_messages_timeout_ms": 10},
        {"negative_ack_redelivery_delay_ms": -1},
        {"properties": {1: "a"}},
    ],
)
def test_wrong_values_of_a_consumer(api: Api, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration, match=next(iter(options))):
        api.client("pulsar://127.0.0.1:1").subscribe("topic", "sub", **options)


@pytest.mark.parametrize("start", [None, "earliest", b"\x08\x01", 5])
def test_a_wrong_start_position(api: Api, start: Any) -> None:
    with pytest.raises(InvalidConfiguration, match=r"MessageId\.earliest"):
        api.client("pulsar://127.0.0.1:1").create_reader("topic", start)


def test_an_empty_topic(client: Any, topic: NewTopic) -> None:
    name = topic()
    reader = client.create_reader(name, MessageId.earliest)
    assert not reader.has_message_available()
    assert list(reader.arrow_batches(timeout_millis=5000)) == []
    for call in (reader.read_next, client.subscribe(name, "sub").receive):
        started = time.monotonic()
        with pytest.raises(Timeout):
            call(200)
        assert time.monotonic() - started < 5


def test_a_payload_over_the_maximum_costs_nothing_else(
    api: Api, client: Any, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    outcomes = [api.enqueue(producer, b"%d" % number) for number in range(3)]
    with pytest.raises(MessageTooBig, match="5242880"):
        api.enqueue_refused(producer, os.urandom(5_300_000))
    outcomes += [api.enqueue(producer, b"%d" % number) for number in range(3, 6)]
    producer.flush()
    assert all(outcome.result(10)[0] == 0 for outcome in outcomes)
    assert [message.data() for message in read_all(name)] == [b"%d" % number for number in range(6)]


def test_a_value_the_schema_does_not_take(api: Api, client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    name = topic()
    producer = client.create_producer(name)
    for wrong in ("text", 5, {"a": 1}, [b"bytes"]):
        with pytest.raises((PulsarException, TypeError)):
            producer.send(wrong)
    producer.send(b"bytes")
    assert [message.data() for message in read_all(name)] == [b"bytes"]
