"""First SUBSCRIBE: sent before the consumer is made, taken back when that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from pulsar_native import AuthorizationError, Client, ConsumerType, MessageId
from pulsar_native.engine import connection as connections
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer.consumer import PartitionConsumer
from pulsar_native.engine.consumer.first_subscribe import FirstSubscribe
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker, Peer, failure, frame, success
from support.until import wait_until

Make = Callable[[Client], Any]
MAKE: dict[str, Make] = {
    "consumer": lambda client: client.subscribe("t", "sub", consumer_type=ConsumerType.Failover),
    "reader": lambda client: client.create_reader("t", MessageId(-1, 7, 3)),
}
KINDS = pytest.mark.parametrize("kind", MAKE)


@pytest.fixture
def client(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Give a client on a connection that the calling thread may read."""
    monkeypatch.setattr(connections, "_INLINE_READ_SECONDS", 20.0)
    with Client(fake.url, operation_timeout_seconds=20) as made:
        made.get_topic_partitions("first")
        (connection,) = core_of(made).pool.connections()
        transport: Any = connection._transport
        assert not transport.begin_inline_read()
        wait_until(lambda: transport._watch is not None)
        yield made


def core_of(client: Client) -> ClientCore:
    """Return the engine's side of a client."""
    core = client._core
    assert core is not None
    return core


@pytest.fixture
def sent_when_made(monkeypatch: pytest.MonkeyPatch, fake: FakeBroker) -> list[int]:
    """Give the numbers of SUBSCRIBE that the broker has seen each time a consumer is made."""
    seen: list[int] = []
    made = MultiTopicsConsumer.__init__

    def init(self: MultiTopicsConsumer, *args: Any) -> None:
        # The request is on its way: it is waited for, which fails where it is sent later.
        wait_until(lambda: len(fake.seen(Kind.SUBSCRIBE)) == len(seen) + 1, 2)
        seen.append(len(fake.seen(Kind.SUBSCRIBE)))
        made(self, *args)

    monkeypatch.setattr(MultiTopicsConsumer, "__init__", init)
    return seen


@KINDS
def test_subscribe_is_sent_before_the_consumer_is_made(
    kind: str, client: Client, fake: FakeBroker, sent_when_made: list[int]
) -> None:
    part = MAKE[kind](client)
    assert sent_when_made == [1] and part.is_connected()
    (child,) = part._inner.children
    (request,) = (seen.command.subscribe for seen in fake.seen(Kind.SUBSCRIBE))
    assert (request.consumer_id, request.consumer_name) == (child.consumer_id, child.name)
    assert request.durable is (kind == "consumer")
    start = request.start_message_id
    assert (start.ledgerId, start.entryId) == ((0, 0) if kind == "consumer" else (7, 3))
    part.close()
    (closed,) = (seen.command.close_consumer for seen in fake.seen(Kind.CLOSE_CONSUMER))
    assert closed.consumer_id == child.consumer_id


def test_frames_before_the_response_reach_the_consumer(client: Client, fake: FakeBroker) -> None:
    """The broker tells a Failover consumer that it is active, and may send more, before it answers."""

    def subscribe(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        request = command.subscribe
        change = pb.CommandActiveConsumerChange(consumer_id=request.consumer_id, is_active=True)
        yield frame(Kind.ACTIVE_CONSUMER_CHANGE, active_consumer_change=change)
        yield success(request.request_id)

    fake.answers[Kind.SUBSCRIBE] = subscribe
    consumer = MAKE["consumer"](client)
    (child,) = consumer._inner.children
    wait_until(lambda: child.is_active)


@KINDS
def test_confirmed_subscribe_attaches_at_once(
    kind: str, client: Client, fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartitionConsumer, "attach", None)
    part = MAKE[kind](client)
    assert part.is_connected()
    wait_until(lambda: len(fake.seen(Kind.FLOW)) == 1)
    (granted,) = (seen.command.flow for seen in fake.seen(Kind.FLOW))
    assert granted.messagePermits == 1000


@pytest.mark.parametrize("kind", [*MAKE, "latest"])
def test_consumer_closed_after_its_response_subscribes_again(
    kind: str, client: Client, fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop may read the close before the calling thread has gone on."""
    closed: list[int] = []

    def subscribe(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        request = command.subscribe
        yield success(request.request_id)
        if not closed:
            closed.append(request.consumer_id)
            close = pb.CommandCloseConsumer(consumer_id=request.consumer_id, request_id=0)
            yield frame(Kind.CLOSE_CONSUMER, close_consumer=close)

    fake.answers[Kind.SUBSCRIBE] = subscribe
    send = FirstSubscribe.send

    def send_and_wait(self: FirstSubscribe, connection: connections.Connection, meanwhile: Callable[[], None]) -> None:
        send(self, connection, meanwhile)
        wait_until(lambda: not connection.has_consumer(self.consumer_id))

    monkeypatch.setattr(FirstSubscribe, "send", send_and_wait)
    part = client.create_reader("t", MessageId.latest) if kind == "latest" else MAKE[kind](client)
    assert len(fake.seen(Kind.SUBSCRIBE)) == 2 and part.is_connected()
    (connection,) = core_of(client).pool.connections()
    assert connection.has_consumer(closed[0])


@KINDS
def test_consumer_that_cannot_be_made_is_taken_back(
    kind: str, client: Client, fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(*_: object) -> None:
        raise ZeroDivisionError("no consumer")

    monkeypatch.setattr(MultiTopicsConsumer, "__init__", init)
    with pytest.raises(ZeroDivisionError):
        MAKE[kind](client)
    wait_until(lambda: len(fake.seen(Kind.CLOSE_CONSUMER)) == 1)
    (request,), (closed,) = fake.seen(Kind.SUBSCRIBE), fake.seen(Kind.CLOSE_CONSUMER)
    assert closed.command.close_consumer.consumer_id == request.command.subscribe.consumer_id
    (connection,) = core_of(client).pool.connections()
    assert not connection.has_consumer(request.command.subscribe.consumer_id)


@KINDS
def test_refused_subscribe_raises_with_the_topic(kind: str, client: Client, fake: FakeBroker) -> None:
    def refuse(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        yield failure(command.subscribe.request_id, pb.AuthorizationError, "not allowed")

    fake.answers[Kind.SUBSCRIBE] = refuse
    with pytest.raises(AuthorizationError, match="not allowed") as raised:
        MAKE[kind](client)
    assert raised.value.topic == "persistent://public/default/t"
    (request,) = fake.seen(Kind.SUBSCRIBE)
    (connection,) = core_of(client).pool.connections()
    assert not connection.has_consumer(request.command.subscribe.consumer_id)


def test_several_connections_per_broker_subscribe_as_usual(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request may take another connection: none is sent before the consumer has chosen its own."""
    sent: list[object] = []
    monkeypatch.setattr(FirstSubscribe, "send", lambda *args: sent.append(args))
    with Client(fake.url, operation_timeout_seconds=20, connections_per_broker=2) as several:
        for _ in range(8):
            assert MAKE["consumer"](several).is_connected()
    assert not sent


def test_first_subscribe_starts_at_first_chunk(client: Client, fake: FakeBroker) -> None:
    """Without it the other chunks cannot be assembled."""
    client.create_reader("t", MessageId(-1, 7, 5, first_chunk=MessageId(-1, 7, 3)))
    (request,) = (seen.command.subscribe for seen in fake.seen(Kind.SUBSCRIBE))
    assert (request.start_message_id.ledgerId, request.start_message_id.entryId) == (7, 3)


def test_reader_whose_last_id_is_refused_is_closed_at_the_broker(client: Client, fake: FakeBroker) -> None:
    fake.answers[Kind.GET_LAST_MESSAGE_ID] = lambda _peer, command: [
        failure(command.getLastMessageId.request_id, pb.AuthorizationError)
    ]
    with pytest.raises(AuthorizationError):
        client.create_reader("t", MessageId.latest)
    (subscribed,) = fake.seen(Kind.SUBSCRIBE)
    (closed,) = fake.wait(Kind.CLOSE_CONSUMER)
    assert closed.command.close_consumer.consumer_id == subscribed.command.subscribe.consumer_id
