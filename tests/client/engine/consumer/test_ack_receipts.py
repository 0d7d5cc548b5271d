"""Ack receipts for responses a real broker does not send: errors, silence, none at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer.ack_receipts import AllDone, completing
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.exceptions import (
    AlreadyClosed,
    NotConnected,
    PulsarException,
    Timeout,
    TransactionConflict,
    UnknownError,
)
from pulsar_native.interceptors import ConsumerInterceptor
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.apis import Api
from support.entry_bytes import single_entry
from support.fake_broker import FakeBroker, Peer, delivery, frame, swallow
from support.until import until

Cores = Callable[..., ClientCore]
Subscribed = Callable[..., Any]

RECEIPTS: dict[str, Any] = {"ack_receipt_enabled": True, "acknowledgment_group_time_ms": 20}


def answered(_peer: Peer, command: pb.BaseCommand, error: int | None = None) -> Iterable[bytes]:
    answer = pb.CommandAckResponse(consumer_id=command.ack.consumer_id, request_id=command.ack.request_id)
    if error is not None:
        answer.error = error  # type: ignore[assignment]
        answer.message = "as the test wants it"
    return [frame(Kind.ACK_RESPONSE, ackResponse=answer)]


async def take(fake: FakeBroker, consumer: MultiTopicsConsumer, count: int) -> list[Message]:
    fake.peers[-1].send(*(delivery(0, single_entry(b"%d" % number), number) for number in range(count)))
    return [await until(consumer.dequeue) for _ in range(count)]


def acknowledging(consumer: MultiTopicsConsumer, message: Message) -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    consumer.acknowledge_message(message, completing(future))
    return future


@pytest.mark.asyncio
@pytest.mark.proves("C139")
async def test_ack_receipt_error_fails_own_group_only(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    def first_fails(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        return answered(peer, command, pb.TransactionConflict if len(fake.seen(Kind.ACK)) == 1 else None)

    fake.answers[Kind.ACK] = first_fails
    consumer = await subscribed(cores(fake.url), **RECEIPTS)
    messages = await take(fake, consumer, 3)
    group = [acknowledging(consumer, message) for message in messages[:2]]
    outcomes = await asyncio.wait_for(asyncio.gather(*group, return_exceptions=True), 10)
    assert all(isinstance(outcome, TransactionConflict) for outcome in outcomes)
    assert isinstance(outcomes[0], PulsarException) and outcomes[0].topic == "persistent://public/default/t"
    await asyncio.wait_for(acknowledging(consumer, messages[2]), 10)
    # What failed is the application's to do again.
    await asyncio.wait_for(acknowledging(consumer, messages[0]), 10)
    assert [len(seen.command.ack.message_id) for seen in fake.seen(Kind.ACK)] == [2, 1, 1]


@pytest.mark.asyncio
async def test_ack_receipt_error_of_either_request(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    def cumulative_fails(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        bad = command.ack.ack_type == pb.CommandAck.Cumulative
        return answered(peer, command, pb.UnknownError if bad else None)

    fake.answers[Kind.ACK] = cumulative_fails
    consumer = await subscribed(cores(fake.url), **RECEIPTS)
    messages = await take(fake, consumer, 5)
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    consumer.children[0].acknowledge_cumulative(messages[1].message_id(), completing(future))
    other = acknowledging(consumer, messages[4])
    outcomes = await asyncio.wait_for(asyncio.gather(future, other, return_exceptions=True), 10)
    assert [type(outcome) for outcome in outcomes] == [UnknownError] * 2
    assert [seen.command.ack.ack_type for seen in fake.seen(Kind.ACK)] == [
        pb.CommandAck.Cumulative, pb.CommandAck.Individual,
    ]  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.proves("C139")
async def test_ack_receipt_silence_times_out(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.answers[Kind.ACK] = swallow
    consumer = await subscribed(cores(fake.url, operation_timeout_seconds=0.3), **RECEIPTS)
    (message,) = await take(fake, consumer, 1)
    with pytest.raises(Timeout):
        await asyncio.wait_for(acknowledging(consumer, message), 10)
    assert consumer.is_connected


@pytest.mark.asyncio
@pytest.mark.proves("C111")
async def test_ack_receipt_old_broker_not_awaited(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.connected.protocol_version = 16
    fake.answers[Kind.ACK] = swallow
    consumer = await subscribed(cores(fake.url), **RECEIPTS)
    (message,) = await take(fake, consumer, 1)
    await asyncio.wait_for(acknowledging(consumer, message), 10)
    (seen,) = await asyncio.to_thread(fake.wait, Kind.ACK)
    assert not seen.command.ack.HasField("request_id")


@pytest.mark.asyncio
async def test_ack_receipt_seek_ends_wait(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.answers[Kind.ACK] = swallow
    consumer = await subscribed(cores(fake.url, starting_backoff_interval_ms=20), **RECEIPTS)
    messages = await take(fake, consumer, 2)
    waiting = acknowledging(consumer, messages[0])
    await asyncio.to_thread(fake.wait, Kind.ACK)
    await consumer.seek(MessageId(-1, 1, 0))
    with pytest.raises(NotConnected, match="seek"):
        await asyncio.wait_for(waiting, 10)


def test_all_done_first_error_after_last_response() -> None:
    told: list[PulsarException | None] = []
    errors = [None, UnknownError("a"), Timeout("b")]
    all_done = AllDone(3, told.append)
    for error in errors[:2]:
        all_done(error)
    assert told == []
    all_done(errors[2])
    assert told == [errors[1]]


@pytest.mark.proves("C139")
@pytest.mark.parametrize("name", ["blocking", "asyncio"])
def test_acknowledge_raises_broker_error_in_both_apis(fake: FakeBroker, name: str) -> None:
    fake.answers[Kind.ACK] = lambda peer, command: answered(peer, command, pb.TransactionConflict)
    api = Api(name)
    try:
        consumer = api.client(fake.url).subscribe("t", "s", ack_receipt_enabled=True)
        fake.wait(Kind.FLOW)
        fake.peers[-1].send(*(delivery(0, single_entry(b"x"), number) for number in range(4)))
        messages = [consumer.receive(10_000) for _ in range(4)]
        for call in (
            lambda: consumer.acknowledge(messages[0]),
            lambda: consumer.acknowledge([messages[1].message_id(), messages[2]]),
            lambda: consumer.acknowledge_cumulative(messages[3]),
        ):
            with pytest.raises(TransactionConflict, match="as the test wants it"):
                call()
    finally:
        api.close()


@pytest.mark.proves("C141")
@pytest.mark.parametrize("name", ["blocking", "asyncio"])
def test_ack_receipt_notifies_interceptors(fake: FakeBroker, name: str) -> None:
    heard: list[tuple[str, int, str | None]] = []

    class Hearing(ConsumerInterceptor):
        def on_acknowledge(self, consumer: Any, message_id: MessageId, error: Exception | None) -> None:
            heard.append(("one", message_id.entry_id(), error and type(error).__name__))

        def on_acknowledge_cumulative(self, consumer: Any, message_id: MessageId, error: Exception | None) -> None:
            heard.append(("all", message_id.entry_id(), error and type(error).__name__))

    def second_fails(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        return answered(peer, command, pb.TransactionConflict if len(fake.seen(Kind.ACK)) == 2 else None)

    fake.answers[Kind.ACK] = second_fails
    api = Api(name)
    try:
        consumer = api.client(fake.url).subscribe("t", "s", ack_receipt_enabled=True, interceptors=[Hearing()])
        fake.wait(Kind.FLOW)
        fake.peers[-1].send(*(delivery(0, single_entry(b"x"), number) for number in range(4)))
        messages = [consumer.receive(10_000) for _ in range(4)]
        consumer.acknowledge(messages[0])
        with pytest.raises(TransactionConflict):
            consumer.acknowledge([messages[2]])
        consumer.acknowledge_cumulative(messages[3])
        consumer.close()
        for late in (consumer.acknowledge, consumer.acknowledge_cumulative):
            with pytest.raises(AlreadyClosed):
                late(messages[1])
    finally:
        api.close()
    assert heard == [
        ("one", 0, None),
        ("one", 2, "TransactionConflict"),
        ("all", 3, None),
        ("one", 1, "AlreadyClosed"),
        ("all", 1, "AlreadyClosed"),
    ]


@pytest.mark.asyncio
async def test_ack_receipt_resent_counts_once(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.answers[Kind.ACK] = swallow
    consumer = await subscribed(cores(fake.url, starting_backoff_interval_ms=20), **RECEIPTS)
    messages = await take(fake, consumer, 3)
    waiting = [acknowledging(consumer, message) for message in messages]
    await asyncio.to_thread(fake.wait, Kind.ACK)
    fake.answers[Kind.ACK] = answered
    fake.peers[-1].close(reset=True)
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert consumer.children[0].acks.sent == 3
