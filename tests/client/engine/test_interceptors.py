"""Producers and consumers with interceptors on a fake broker: once a message, and told of every outcome."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native.config import ConsumerConfig, ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.engine.interceptor_chain import ConsumerChain, ProducerChain
from pulsar_native.engine.interceptors import InterceptedConsumer, InterceptedProducer
from pulsar_native.engine.producer.bulk_send import BulkSend, Slice
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.enums import ConsumerType, InitialPosition, PartitionsRoutingMode
from pulsar_native.exceptions import (
    AlreadyClosed,
    CumulativeAcknowledgementNotAllowedError,
    ProducerQueueIsFull,
    TransactionConflict,
)
from pulsar_native.interceptors import ConsumerInterceptor, ProducerInterceptor
from pulsar_native.message import Message, OutgoingMessage
from pulsar_native.message_id import MessageId
from pulsar_native.schema import BytesSchema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.entry import parse_entry
from support.fake_broker import FakeBroker, frame, receipt, swallow
from support.fake_coordinators import Coordinators
from support.fake_topic import FakeTopic
from support.until import until

Cores = Callable[..., ClientCore]
TOPIC = "persistent://public/default/t"


class Marking(ProducerInterceptor):
    """Producer's interceptor that marks messages and records what it is told."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.told: list[tuple[bytes, MessageId | None, type[Exception] | None]] = []
        self.partitions: list[int] = []
        self.closed = 0

    def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
        self.seen.append(message.payload)
        return OutgoingMessage(message.payload + b"!", partition_key="marked")

    def on_send_acknowledgement(
        self, producer: Any, message: OutgoingMessage, message_id: MessageId | None, error: Exception | None
    ) -> None:
        self.told.append((message.payload, message_id, None if error is None else type(error)))

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        self.partitions.append(partitions)

    def close(self) -> None:
        self.closed += 1


async def producing(core: ClientCore, marking: Marking, **options: Any) -> TopicProducer:
    """Return a producer whose messages pass the interceptor."""
    chain = ProducerChain([marking], lambda message: b"")
    options = {"batching_enabled": False, **options}
    producer = await core.create_producer(ProducerConfig(topic="t", **options), BytesSchema(), chain)
    chain.bind(marking)
    assert isinstance(producer, InterceptedProducer)
    return producer


def bodies(fake: FakeBroker) -> list[bytes]:
    """Return the payloads that were sent."""
    return [bytes(parse_entry(seen.payload).body) for seen in fake.seen(Kind.SEND)]


@pytest.mark.parametrize("way", ["enqueue", "fast", "waiting", "routed"])
async def test_each_way_to_send_passes_the_interceptor(fake: FakeBroker, cores: Cores, way: str) -> None:
    marking = Marking()
    producer = await producing(cores(fake.url), marking)
    told: list[object] = []

    def callback(error: object, place: object) -> None:
        told.append((error, place))

    full = {
        "enqueue": lambda: producer.enqueue(b"x", b"", None, callback),
        "fast": lambda: producer.fast_send()(b"x", callback),
        "waiting": lambda: producer.fast_send_sync()(b"x", callback),  # type: ignore[arg-type]
        "routed": lambda: producer.route(b"x", None).enqueue(b"x", b"", None, callback),
    }[way]()
    assert full is None
    await until(lambda: told)
    place = MessageId(-1, 1, 0, -1)
    assert marking.seen == [b"x"] and bodies(fake) == [b"x!"] and told == [(None, place)]
    assert marking.told == [(b"x!", place, None)]
    assert parse_entry(fake.seen(Kind.SEND)[0].payload).metadata.partition_key == "marked"


async def test_message_waiting_for_room_is_intercepted_once(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.SEND] = swallow
    marking = Marking()
    producer = await producing(cores(fake.url), marking, max_pending_messages=1)
    assert producer.enqueue(b"a", b"", None, None) is None
    full = producer.enqueue(b"b", b"", None, None)
    assert full is not None and full.retry is not None and not marking.told
    again = full.retry()
    assert again is not None and again.retry is not None and marking.seen == [b"a", b"b"]
    (seen,) = await asyncio.to_thread(fake.wait, Kind.SEND)
    seen.peer.send(receipt(seen.command.send, 0))
    await until(lambda: marking.told)
    assert again.retry() is None
    await asyncio.to_thread(fake.wait, Kind.SEND, 2)
    assert marking.seen == [b"a", b"b"] and bodies(fake) == [b"a!", b"b!"]


async def test_intercepted_waiting_message_routed_once(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[TOPIC] = 2
    fake.answers[Kind.SEND] = swallow
    routed: list[bytes] = []

    def router(message: Any, _metadata: Any) -> int:
        routed.append(message.data())
        return len(routed) % 2

    producer = await producing(
        cores(fake.url),
        Marking(),
        max_pending_messages=1,
        message_routing_mode=PartitionsRoutingMode.CustomPartition,
        message_router=router,
    )
    fulls = [producer.enqueue(body, b"", None, None) for body in (b"a", b"b", b"c")]
    full = fulls[2]
    for _ in range(3):
        assert full is not None and full.retry is not None
        full = full.retry()
    assert full is not None and routed == [b"a!", b"b!", b"c!"]


async def test_message_given_up_is_told_once(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.SEND] = swallow
    marking = Marking()
    producer = await producing(cores(fake.url), marking, max_pending_messages=1)
    producer.enqueue(b"a", b"", None, None)
    full = producer.enqueue(b"b", b"", None, None)
    assert full is not None and isinstance(full.refusal(), ProducerQueueIsFull)
    assert marking.told == [(b"b!", None, ProducerQueueIsFull)]
    await producer.close(0.01)
    assert marking.told[1:] == [(b"a!", None, AlreadyClosed)] and marking.closed == 1
    with pytest.raises(AlreadyClosed):
        producer.enqueue(b"c", b"", None, None)
    assert marking.told[2:] == [(b"c!", None, AlreadyClosed)]


async def test_partition_is_chosen_after_the_interceptors(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[TOPIC] = 4
    marking = Marking()
    producer = await producing(cores(fake.url), marking)
    work = BulkSend(producer)
    work.add(Slice([b"%d" % number for number in range(8)], None, None, lambda _row: None))
    assert work.push() is None
    done = asyncio.Event()
    work.flush_then(lambda: asyncio.get_running_loop().call_soon_threadsafe(done.set))
    await asyncio.wait_for(done.wait(), 10)
    # All have the interceptor's key.
    assert len({seen.command.send.producer_id for seen in fake.seen(Kind.SEND)}) == 1
    assert len(work.result()) == 8 == len(marking.told)


async def test_interceptors_told_of_new_partitions(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[TOPIC] = 2
    marking = Marking()
    producer = await producing(cores(fake.url), marking)
    await producer.update_partitions()
    assert not marking.partitions
    fake.partitions[TOPIC] = 3
    await producer.update_partitions()
    assert marking.partitions == [3]


class Hearing(ConsumerInterceptor):
    """Consumer's interceptor that records the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object, type[Exception] | None]] = []
        self.closed = 0

    def on_acknowledge(self, consumer: Any, message_id: MessageId, error: Exception | None) -> None:
        self.calls.append(("single", message_id.entry_id(), None if error is None else type(error)))

    def on_acknowledge_cumulative(self, consumer: Any, message_id: MessageId, error: Exception | None) -> None:
        self.calls.append(("cumulative", message_id.entry_id(), None if error is None else type(error)))

    def on_negative_acks_send(self, consumer: Any, message_ids: set[MessageId]) -> None:
        self.calls.append(("negative", {each.entry_id() for each in message_ids}, None))

    def close(self) -> None:
        self.closed += 1


class Arriving(Hearing):
    """Interceptor that also sees messages as they arrive."""

    def on_arrival(self, consumer: Any, message: Message) -> Message:
        self.calls.append(("arrival", message.data(), None))
        return message


async def hearing(
    core: ClientCore, heard: ConsumerInterceptor, **options: Any
) -> tuple[MultiTopicsConsumer, ConsumerChain]:
    """Return a consumer with the interceptor, and its chain, which is not bound yet."""
    chain = ConsumerChain([heard], reads=False)
    config = ConsumerConfig(subscription_name="s", initial_position=InitialPosition.Earliest, **options)
    consumer = await core.subscribe(["t"], config, VersionedDecoder(BytesSchema()), None, chain)
    assert isinstance(consumer, InterceptedConsumer)
    return consumer, chain


async def taken(consumer: MultiTopicsConsumer) -> Message:
    """Return the next message."""
    message: Message = await until(consumer.dequeue)
    return message


async def test_acknowledgements_are_told_with_their_outcome(fake: FakeBroker, cores: Cores) -> None:
    FakeTopic(fake, b"a", b"b", b"c")
    heard = Hearing()
    consumer, chain = await hearing(cores(fake.url), heard, consumer_type=ConsumerType.Shared)
    chain.bind(heard)
    messages = [await taken(consumer) for _ in range(3)]
    consumer.acknowledge_message(messages[0])
    consumer.acknowledge([messages[1].message_id()])
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(messages[2].message_id())
    assert heard.calls == [
        ("single", 0, None),
        ("single", 1, None),
        ("cumulative", 2, CumulativeAcknowledgementNotAllowedError),
    ]
    await consumer.close()
    assert heard.closed == 1


async def test_arrived_before_bound_are_opened_then(fake: FakeBroker, cores: Cores) -> None:
    topic = FakeTopic(fake, b"a")
    heard = Arriving()
    consumer, chain = await hearing(cores(fake.url), heard)
    await until(lambda: consumer.children[0].queued_messages())
    assert not heard.calls
    chain.bind(heard)
    await until(lambda: heard.calls)
    topic.publish(b"b")
    await until(lambda: len(heard.calls) == 2)
    # Nothing has been taken: they were opened on arrival.
    assert heard.calls == [("arrival", b"a", None), ("arrival", b"b", None)]


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("cumulative", [False, True])
async def test_ack_in_transaction_is_told(fake: FakeBroker, cores: Cores, refused: bool, cumulative: bool) -> None:
    def answer(_peer: Any, command: Any) -> list[bytes]:
        response = pb.CommandAckResponse(consumer_id=command.ack.consumer_id, request_id=command.ack.request_id)
        if refused:
            response.error = pb.TransactionConflict
        return [frame(Kind.ACK_RESPONSE, ackResponse=response)]

    told: list[tuple[str, MessageId, type[Exception] | None]] = []

    class Told(ConsumerInterceptor):
        def on_acknowledge(self, consumer: Any, message_id: MessageId, error: Exception | None) -> None:
            told.append(("one", message_id, None if error is None else type(error)))

        def on_acknowledge_cumulative(self, consumer: Any, message_id: MessageId, error: Exception | None) -> None:
            told.append(("cumulative", message_id, None if error is None else type(error)))

    Coordinators(fake)
    fake.answers[Kind.ACK] = answer
    core = cores(fake.url)
    consumer, _ = await hearing(core, Told())
    work = await core.new_transaction(60.0)
    place = MessageId(-1, 1, 5)
    with pytest.raises(TransactionConflict) if refused else contextlib.nullcontext():
        await asyncio.wait_for(consumer.acknowledge_in(work, [place], cumulative=cumulative), 10)
    await until(lambda: told)
    assert told == [("cumulative" if cumulative else "one", place, TransactionConflict if refused else None)]
