"""Dead-letter router with topics that refuse, missing responses, and closing consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pulsar_native.config import DeadLetterPolicy
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.engine.handler import State
from pulsar_native.enums import ConsumerType
from pulsar_native.exceptions import AlreadyClosed, PulsarException
from pulsar_native.message import Message
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.entry import parse_entry
from support.clock import LoopClock
from support.entry_bytes import assemble, batch_entry, metadata_of, single_entry
from support.fake_broker import MAXU, FakeBroker, Peer, delivery, failure, frame, receipt, swallow
from support.fake_schemas import SCHEMA, WIDER, avro_entry, serve_schema, wider_entry
from support.until import until

Cores = Callable[..., ClientCore]
Subscribed = Callable[..., Any]

SHARED: dict[str, Any] = {
    "consumer_type": ConsumerType.Shared,
    "negative_ack_redelivery_delay_ms": 100,
    "acknowledgment_group_time_ms": 0,
    "dead_letter_policy": DeadLetterPolicy(max_redeliver_count=1, dead_letter_topic="dead"),
}


def unknown_schema(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
    answer = pb.CommandGetSchemaResponse(request_id=command.getSchema.request_id, error_code=pb.TopicNotFound)
    return [frame(Kind.GET_SCHEMA_RESPONSE, getSchemaResponse=answer)]


def send_failure(command: pb.BaseCommand) -> bytes:
    error = pb.CommandSendError(
        producer_id=command.send.producer_id,
        sequence_id=command.send.sequence_id,
        error=pb.NotAllowedError,
        message="no",
    )
    return frame(Kind.SEND_ERROR, send_error=error)


async def take(consumer: MultiTopicsConsumer, count: int = 1) -> list[Message]:
    return [await until(consumer.dequeue) for _ in range(count)]


async def nothing_comes(consumer: MultiTopicsConsumer) -> None:
    """Check that nothing that was sent before is delivered: a request and its answer keep their places."""
    await consumer.client.partition_count(TopicName.parse("another"))
    assert consumer.dequeue() is None


def refuse(consumer: MultiTopicsConsumer, message: Message) -> None:
    consumer.children[0].negative_acknowledge(message.message_id())


def acknowledged(fake: FakeBroker) -> list[tuple[int, int]]:
    return [(each.ledgerId, each.entryId) for seen in fake.seen(Kind.ACK) for each in seen.command.ack.message_id]


@pytest.mark.asyncio
@pytest.mark.proves("C149", "C152")
async def test_dead_letter_original_acked_after_receipt(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.answers[Kind.SEND] = swallow
    consumer = await subscribed(cores(fake.url), **SHARED)
    fake.peers[-1].send(delivery(0, single_entry(b"x"), 7, redelivery_count=1))
    (message,) = await take(consumer)
    refuse(consumer, message)
    (sent,) = await asyncio.to_thread(fake.wait, Kind.SEND)
    # It came again by the broker's own doing: never to the application, nor to the dead-letter topic.
    fake.peers[-1].send(delivery(0, single_entry(b"x"), 7, redelivery_count=2))
    await nothing_comes(consumer)
    assert not fake.seen(Kind.ACK) and not fake.seen(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    sent.peer.send(receipt(sent.command.send, 0))
    await asyncio.to_thread(fake.wait, Kind.ACK)
    assert acknowledged(fake) == [(1, 7)] and len(fake.seen(Kind.SEND)) == 1
    # That acknowledgement was lost, say: it is given once more.
    fake.peers[-1].send(delivery(0, single_entry(b"x"), 7))
    await nothing_comes(consumer)
    await asyncio.to_thread(fake.wait, Kind.ACK, 2)
    assert acknowledged(fake) == [(1, 7)] * 2 and len(fake.seen(Kind.SEND)) == 1


@pytest.mark.asyncio
@pytest.mark.proves("C149")
async def test_dead_letter_over_limit_never_delivered(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), receiver_queue_size=4, **SHARED)
    batch = batch_entry([b"a", b"b", b"c"])
    # Two of three are open yet.
    fake.peers[-1].send(delivery(0, batch, 3, redelivery_count=2, ack_set=[0b110]), delivery(0, single_entry(b"y"), 4))
    (message,) = await take(consumer)
    assert message.data() == b"y"
    await asyncio.to_thread(fake.wait, Kind.SEND, 2)
    await asyncio.to_thread(fake.wait, Kind.ACK)
    assert acknowledged(fake) == [(1, 3)]
    # What is not given out gives its permits back.
    flows = await asyncio.to_thread(fake.wait, Kind.FLOW, 2)
    assert sum(seen.command.flow.messagePermits for seen in flows) == 4 + 2


@pytest.mark.asyncio
async def test_dead_letter_key_invalid_utf8_kept(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), **SHARED)
    metadata = metadata_of().SerializeToString() + b"\x32\x02\xff\xfe" + b"\x22\x06\x0a\x01a\x12\x01\xff"
    fake.peers[-1].send(delivery(0, assemble(metadata, b"x"), 3, redelivery_count=2))
    await until_sent(fake, consumer)
    (sent,) = fake.seen(Kind.SEND)
    copied = parse_entry(sent.payload).metadata
    assert (copied.partition_key, copied.partition_key_b64_encoded) == ("//4=", True)
    assert {pair.key: pair.value for pair in copied.properties}["a"] == "\ufffd"
    await asyncio.to_thread(fake.wait, Kind.ACK)
    assert acknowledged(fake) == [(1, 3)]


async def until_sent(fake: FakeBroker, consumer: MultiTopicsConsumer, count: int = 1) -> None:
    def sent() -> bool:
        assert consumer.dequeue() is None
        return len(fake.seen(Kind.SEND)) >= count

    await until(sent)


@pytest.mark.asyncio
async def test_dead_letter_any_failure_redelivers(
    fake: FakeBroker,
    cores: Cores,
    subscribed: Subscribed,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> bytes:
        raise AttributeError("of another kind")

    consumer = await subscribed(cores(fake.url), **SHARED)
    with monkeypatch.context() as patch:
        patch.setattr("pulsar_native.engine.consumer.dead_letter.encode_single_fields", broken)
        fake.peers[-1].send(delivery(0, single_entry(b"x"), 7, redelivery_count=2))
        await until_requested(fake, consumer, 1)
    assert "AttributeError: of another kind" in caplog.text and not fake.seen(Kind.SEND)
    fake.peers[-1].send(delivery(0, single_entry(b"x"), 7, redelivery_count=3))
    await until_sent(fake, consumer)
    await asyncio.to_thread(fake.wait, Kind.ACK)
    assert acknowledged(fake) == [(1, 7)]


@pytest.mark.asyncio
@pytest.mark.proves("C149")
async def test_dead_letter_partial_batch_failure(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    def second_fails(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        count = len(fake.seen(Kind.SEND))
        return [send_failure(command) if count == 2 else receipt(command.send, count)]

    fake.answers[Kind.SEND] = second_fails
    consumer = await subscribed(cores(fake.url), batch_index_ack_enabled=True, **SHARED)
    fake.peers[-1].send(delivery(0, batch_entry([b"a", b"b", b"c"]), 3, redelivery_count=1))
    messages = await take(consumer, 3)
    refuse(consumer, messages[0])
    await asyncio.to_thread(fake.wait, Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    sets = [list(each.ack_set) for seen in fake.seen(Kind.ACK) for each in seen.command.ack.message_id]
    assert sets[-1] == [0b010]
    fake.peers[-1].send(delivery(0, batch_entry([b"a", b"b", b"c"]), 3, redelivery_count=2, ack_set=[0b010]))
    await nothing_comes(consumer)
    await asyncio.to_thread(fake.wait, Kind.SEND, 4)
    await until(lambda: not fake.seen(Kind.ACK)[-1].command.ack.message_id[0].ack_set)
    assert len(fake.seen(Kind.SEND)) == 4


@pytest.mark.asyncio
@pytest.mark.proves("C149")
@pytest.mark.parametrize("batch_index", [True, False])
async def test_dead_letter_batch_counts_each_message(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, batch_index: bool
) -> None:
    consumer = await subscribed(cores(fake.url), batch_index_ack_enabled=batch_index, **SHARED)
    (child,) = consumer.children
    fake.peers[-1].send(delivery(0, batch_entry([b"a", b"b", b"c"]), 3, redelivery_count=1))
    acked, *refused = await take(consumer, 3)
    child.acknowledge_message(acked)
    for message in refused:
        refuse(consumer, message)
    await asyncio.to_thread(fake.wait, Kind.ACK, 1 + batch_index)
    assert len(fake.seen(Kind.SEND)) == 2
    assert child.acks.sent == 3


@pytest.mark.asyncio
@pytest.mark.proves("C149")
async def test_dead_letter_retries_back_off(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.answers[Kind.PRODUCER] = lambda peer, command: [failure(command.producer.request_id, pb.AuthorizationError)]
    consumer = await subscribed(cores(fake.url), **SHARED)
    for count in range(2, 6):
        fake.peers[-1].send(delivery(0, single_entry(b"x"), 7, redelivery_count=count))
        await until_requested(fake, consumer, count - 1)
    tries = [seen.at for seen in fake.seen(Kind.PRODUCER)]
    asked = [seen.at for seen in fake.seen(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)]
    pauses = [after - before for before, after in zip(tries, asked, strict=True)]
    assert all(pause >= 0.09 * 2**number for number, pause in enumerate(pauses))


async def until_requested(fake: FakeBroker, consumer: MultiTopicsConsumer, count: int) -> None:
    def requested() -> bool:
        assert consumer.dequeue() is None
        return len(fake.seen(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)) >= count

    await until(requested)


@pytest.mark.asyncio
@pytest.mark.proves("C152")
async def test_dead_letter_close_waits_for_copies(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    fake.answers[Kind.SEND] = swallow
    consumer = await subscribed(cores(fake.url), **SHARED)
    fake.peers[-1].send(delivery(0, single_entry(b"x"), 7, redelivery_count=1))
    (message,) = await take(consumer)
    refuse(consumer, message)
    (sent,) = await asyncio.to_thread(fake.wait, Kind.SEND)
    closing = asyncio.create_task(consumer.close())
    # The operation time-out is 5 s.
    await clock.advance(3)
    assert not closing.done() and not fake.seen(Kind.CLOSE_CONSUMER)
    sent.peer.send(receipt(sent.command.send, 0))
    await asyncio.wait_for(closing, 10)
    order = [seen.command.type for seen in fake.seen(Kind.ACK, Kind.CLOSE_CONSUMER, Kind.CLOSE_PRODUCER)]
    assert order == [Kind.ACK, Kind.CLOSE_PRODUCER, Kind.CLOSE_CONSUMER]
    assert not consumer.client.producers


@pytest.mark.asyncio
async def test_dead_letter_close_keeps_its_limit(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = LoopClock(monkeypatch)
    consumer = await subscribed(cores(fake.url, operation_timeout_seconds=60), **SHARED)
    # Two producers, one for each schema of the originals, and one copy that is never stored.
    fake.answers[Kind.GET_SCHEMA] = unknown_schema
    fake.answers[Kind.CLOSE_PRODUCER] = swallow
    for number, fields in enumerate([{}, {"schema_version": b"1"}]):
        fake.peers[-1].send(delivery(0, single_entry(b"x", **fields), number, redelivery_count=2))
        await until_sent(fake, consumer, number + 1)
    assert len(consumer.client.producers) == 2
    await until(lambda: len(acknowledged(fake)) == 2)
    fake.answers[Kind.SEND] = swallow
    fake.peers[-1].send(delivery(0, single_entry(b"x"), 7, redelivery_count=2))
    await until_sent(fake, consumer, 3)
    closing = asyncio.create_task(consumer.close(timeout=8))
    await clock.advance(7)
    assert not closing.done() and not fake.seen(Kind.CLOSE_PRODUCER)
    await clock.advance(2)
    await asyncio.wait_for(closing, 5)
    await asyncio.to_thread(fake.wait, Kind.CLOSE_CONSUMER)
    assert len(fake.seen(Kind.CLOSE_PRODUCER)) == 2 and not consumer.client.producers


@pytest.mark.asyncio
async def test_dead_letter_replaced_producer_is_closed(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.partitions["persistent://public/default/dead"] = 3
    consumer = await subscribed(cores(fake.url), **SHARED)
    producers = consumer.client.producers
    for number in range(3):
        fake.peers[-1].send(delivery(0, single_entry(b"x"), number, redelivery_count=2))
        await until_sent(fake, consumer, number + 1)
        await until(lambda count=number: len(fake.seen(Kind.CLOSE_PRODUCER)) == 2 * count and len(producers) == 1)
        await until(lambda count=number: len(acknowledged(fake)) == count + 1)
        (producer,) = producers
        child = producer.children[0]
        error = pb.CommandSendError(
            producer_id=child.core.producer_id, sequence_id=0, error=pb.TopicTerminatedError, message="no"
        )
        fake.peers[-1].send(frame(Kind.SEND_ERROR, send_error=error))
        await until(lambda lost=child: lost.state is State.TERMINATED)
    await consumer.close()
    assert len(fake.seen(Kind.PRODUCER)) == 9 and not producers


async def test_dead_letter_schema_of_its_attachment(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), **SHARED)
    producers, plain = consumer.client.producers, single_entry(b"x")
    serve_schema(fake, SCHEMA)
    for number, entry in enumerate((plain, avro_entry(1), avro_entry(2))):
        fake.peers[-1].send(delivery(0, entry, number, redelivery_count=2))
        await until_sent(fake, consumer, number + 1)
    # The topic was deleted, and made again with another schema of the same version.
    serve_schema(fake, WIDER)
    closed = pb.CommandCloseConsumer(consumer_id=0, request_id=MAXU)
    fake.peers[-1].send(frame(Kind.CLOSE_CONSUMER, close_consumer=closed))
    await until(lambda: len(fake.seen(Kind.SUBSCRIBE)) == 2 and len(fake.seen(Kind.FLOW)) > 1)
    for number, entry in enumerate((plain, wider_entry(4), wider_entry(5)), 3):
        fake.peers[-1].send(delivery(0, entry, number, redelivery_count=2))
        await until_sent(fake, consumer, number + 1)
    made = [seen.command.producer.schema.schema_data for seen in fake.seen(Kind.PRODUCER)]
    assert made == [b"", SCHEMA.schema_info().data, WIDER.schema_info().data]
    await until(lambda: len(fake.seen(Kind.CLOSE_PRODUCER)) == 1 and len(producers) == 2)
    await until(lambda: len(acknowledged(fake)) == 6)


async def test_dead_letter_works_after_refused_unsubscribe(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed
) -> None:
    fake.answers[Kind.UNSUBSCRIBE] = lambda _peer, command: [failure(command.unsubscribe.request_id, pb.MetadataError)]
    consumer = await subscribed(cores(fake.url), **SHARED)
    with pytest.raises(PulsarException, match="as the test wants it"):
        await consumer.unsubscribe()
    fake.peers[-1].send(delivery(0, single_entry(b"x"), 7, redelivery_count=1))
    (message,) = await take(consumer)
    refuse(consumer, message)
    await asyncio.to_thread(fake.wait, Kind.ACK)
    assert acknowledged(fake) == [(1, 7)] and len(fake.seen(Kind.SEND)) == 1
    fake.answers.pop(Kind.UNSUBSCRIBE)
    await consumer.unsubscribe()
    assert len(fake.seen(Kind.CLOSE_PRODUCER)) == 1 and not consumer.client.producers


@pytest.mark.asyncio
@pytest.mark.proves("C151")
async def test_dead_letter_shutdown_ends_retry(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    core = cores(fake.url)
    consumer = await subscribed(core, consumer_type=ConsumerType.Shared, enable_retry=True)
    fake.answers[Kind.PRODUCER] = swallow
    fake.peers[-1].send(delivery(consumer.children[0].consumer_id, single_entry(b"x"), 7))
    (message,) = await take(consumer)
    retrying = asyncio.create_task(consumer.reconsume_later([message], 100, None))
    await asyncio.to_thread(fake.wait, Kind.PRODUCER)
    core.shutdown()
    with pytest.raises(PulsarException) as raised:
        await asyncio.wait_for(retrying, 10)
    assert isinstance(raised.value, AlreadyClosed)


@pytest.mark.asyncio
async def test_reconsume_later_cancelled_ends(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), **SHARED, enable_retry=True)
    fake.answers[Kind.SEND] = swallow
    fake.peers[-1].send(delivery(consumer.children[0].consumer_id, single_entry(b"x"), 7))
    messages = await take(consumer)
    replacing = asyncio.create_task(consumer.reconsume_later(messages, 0, None))
    (sent,) = await asyncio.to_thread(fake.wait, Kind.SEND)
    replacing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replacing
    # The copy is stored: the original must not come again.
    sent.peer.send(receipt(sent.command.send, 0))
    await asyncio.to_thread(fake.wait, Kind.ACK)
    assert acknowledged(fake) == [(1, 7)] and not fake.seen(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
