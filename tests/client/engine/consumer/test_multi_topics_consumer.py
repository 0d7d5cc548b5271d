"""Multi-topics consumer on a fake broker: turns of the topics, waiters, and calls divided among the partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pulsar_native import Client
from pulsar_native.arrow.batch import EntryRange
from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer import multi_topics_consumer
from pulsar_native.engine.consumer.arrow_receiver import ArrowReceiver
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.engine.handler import State
from pulsar_native.engine.metrics.reports import of_consumer
from pulsar_native.enums import ConsumerType, SubscriptionMode
from pulsar_native.exceptions import (
    AlreadyClosed,
    InvalidConfiguration,
    NotConnected,
    OperationNotSupported,
    PulsarException,
)
from pulsar_native.message_id import MessageId
from pulsar_native.schema import BytesSchema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.clock import LoopClock
from support.entry_bytes import single_entry
from support.fake_broker import FakeBroker, Peer, delivery, failure, frame, permits, success
from support.until import until, wait_until

Cores = Callable[..., ClientCore]

A, B = TopicName.parse("a"), TopicName.parse("b")


async def subscribe(core: ClientCore, *topics: str, **options: Any) -> MultiTopicsConsumer:
    """Subscribe to topics; acknowledgements are sent at once."""
    config = ConsumerConfig(subscription_name="s", **{"acknowledgment_group_time_ms": 0, **options})
    return await core.subscribe(list(topics or ("a", "b")), config, VersionedDecoder(BytesSchema()), None)


async def deliver(fake: FakeBroker, consumer: MultiTopicsConsumer, number: int, count: int, *, first: int = 0) -> None:
    """Deliver so many messages to one of the partitions."""
    child = consumer.children[number]
    queued = len(child.core.all_deliveries)
    name = child.topic.full.rpartition("/")[2]
    entries = range(first, first + count)
    fake.peers[-1].send(*(delivery(child.consumer_id, single_entry(f"{name}{at}".encode()), at) for at in entries))
    await until(lambda: len(child.core.all_deliveries) == queued + count)


def contents(consumer: MultiTopicsConsumer) -> list[bytes]:
    found = []
    while (message := consumer.dequeue()) is not None:
        found.append(message.data())
    return found


def place(topic: TopicName, entry: int) -> MessageId:
    return MessageId(-1, 1, entry, topic=topic.full)


def acked(fake: FakeBroker) -> list[tuple[int, list[int]]]:
    """Return the acknowledged entries by consumer, in order."""
    acks = [seen.command.ack for seen in fake.seen(Kind.ACK)]
    return [(ack.consumer_id, [data.entryId for data in ack.message_id]) for ack in acks]


async def seen_acks(fake: FakeBroker, count: int) -> list[tuple[int, list[int]]]:
    await asyncio.to_thread(fake.wait, Kind.ACK, count)
    return acked(fake)


# --- turns ------------------------------------------------------------------------------------------------------


async def test_dequeue_takes_topics_in_turns(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    await deliver(fake, consumer, 0, 4)
    await deliver(fake, consumer, 1, 2)
    assert contents(consumer) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"a3"]
    await deliver(fake, consumer, 1, 1, first=2)
    assert contents(consumer) == [b"b2"]


async def test_dequeue_prefetches_one_turn_of_messages(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    consumer.start_prefetch()
    await deliver(fake, consumer, 0, 40)
    await deliver(fake, consumer, 1, 1)
    first = consumer.dequeue()
    assert first is not None and first.data() == b"a0" and len(consumer.prefetched) == 31
    consumer.prefetched.clear()
    second = consumer.dequeue()
    assert second is not None and second.data() == b"b0" and not consumer.prefetched
    # Alone, as many as there are.
    assert consumer.dequeue() is not None and len(consumer.prefetched) == 7


async def test_dequeue_with_other_waiters_prefetches_none(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    consumer.start_prefetch()
    for _ in range(2):
        consumer.wait_then(lambda: None)
    await deliver(fake, consumer, 0, 3)
    # The following messages are theirs.
    assert consumer.dequeue() is not None and not consumer.prefetched


async def test_fork_clears_buffers_used_without_check(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url), acknowledgment_group_time_ms=100)
    consumer.start_prefetch()
    await deliver(fake, consumer, 0, 3)
    assert consumer.dequeue() is not None and consumer.prefetched and consumer.fast_acks
    consumer.clear_after_fork()
    assert not consumer.prefetched and not consumer.fast_acks


# --- joining partitions -----------------------------------------------------------------------------------------


class Subscribes:
    """Answers to SUBSCRIBE: none for the topics of `held`, else success."""

    def __init__(self, fake: FakeBroker, *held: TopicName) -> None:
        self.fake, self.held = fake, {topic.full for topic in held}
        fake.answers[Kind.SUBSCRIBE] = self.answer

    def answer(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked = command.subscribe
        return [] if asked.topic in self.held else [success(asked.request_id)]

    def of(self, topic: TopicName) -> list[Any]:
        """Return the requests for a topic."""
        return [seen for seen in self.fake.seen(Kind.SUBSCRIBE) if seen.command.subscribe.topic == topic.full]

    def release(self, topic: TopicName, error: int | None = None) -> None:
        """Answer the request for a held topic: success, or an error."""
        (seen,) = self.of(topic)
        request_id = seen.command.subscribe.request_id
        seen.peer.send(success(request_id) if error is None else failure(request_id, error))


async def join_two(
    fake: FakeBroker, cores: Cores, how: str
) -> tuple[MultiTopicsConsumer, asyncio.Task[None], Callable[[int | None], None]]:
    """Begin to join two partitions to a consumer of one: return it, the task, and what answers for the second.

    The first one has a message.
    """
    fake.partitions[A.full] = 1
    consumer = await subscribe(cores(fake.url), "a")
    if how == "growth":
        fake.partitions[A.full] = 3
        work, first, second = consumer.subscriptions.update_partitions(A), A.with_partition(1), A.with_partition(2)
    else:
        work, first, second = consumer.subscriptions.add_topic(B, 2), B.with_partition(0), B.with_partition(1)
    answers = Subscribes(fake, second)
    joining = asyncio.create_task(work)
    await until(lambda: answers.of(second) and len(permits(fake)) == 2)
    (seen,) = answers.of(first)
    seen.peer.send(delivery(seen.command.subscribe.consumer_id, single_entry(b"new"), 0))
    # On the same connection: when this one has arrived, the other one has.
    await deliver(fake, consumer, 0, 1)
    return consumer, joining, lambda error: answers.release(second, error)


@pytest.mark.parametrize("how", ["growth", "topic"])
async def test_join_delivers_when_all_have_joined(fake: FakeBroker, cores: Cores, how: str) -> None:
    consumer, joining, answer = await join_two(fake, cores, how)
    assert contents(consumer) == [b"a-partition-00"]
    woken: list[str] = []
    consumer.wait_then(lambda: woken.append("waiter"))
    consumer.on_ready = lambda: woken.append("ready")
    answer(None)
    await asyncio.wait_for(joining, 10)
    # Nothing more arrives: what had arrived is reported now.
    assert {"waiter", "ready"} <= set(woken)
    message = consumer.dequeue()
    assert message is not None and message.data() == b"new"
    consumer.acknowledge([message.message_id()])
    assert await seen_acks(fake, 1) == [(1, [0])]


@pytest.mark.parametrize("how", ["growth", "topic"])
async def test_join_failed_delivers_nothing(fake: FakeBroker, cores: Cores, how: str) -> None:
    consumer, joining, answer = await join_two(fake, cores, how)
    assert contents(consumer) == [b"a-partition-00"]
    answer(pb.AuthorizationError)
    with pytest.raises(PulsarException, match="as the test wants it"):
        await asyncio.wait_for(joining, 10)
    assert contents(consumer) == [] and consumer.topics == {A: 1}


async def test_update_partitions_twice_subscribes_once(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[A.full] = 1
    consumer = await subscribe(cores(fake.url), "a", consumer_type=ConsumerType.Shared)
    fake.partitions[A.full] = 3
    await asyncio.gather(*(consumer.subscriptions.update_partitions(A) for _ in range(2)))
    assert len(consumer.children) == len(fake.seen(Kind.SUBSCRIBE)) == 3


async def test_leave_during_growth_joins_nothing(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[A.full] = 1
    consumer = await subscribe(cores(fake.url))
    fake.partitions[A.full] = 2
    answers = Subscribes(fake, A.with_partition(1))
    growing = asyncio.create_task(consumer.subscriptions.update_partitions(A))
    await until(lambda: answers.of(A.with_partition(1)))
    await consumer.leave("a")
    answers.release(A.with_partition(1))
    with pytest.raises(AlreadyClosed, match="closed meanwhile"):
        await asyncio.wait_for(growing, 10)
    assert consumer.topics == {B: 0} and len(fake.seen(Kind.CLOSE_CONSUMER)) == 1


# --- waiters ----------------------------------------------------------------------------------------------------


async def test_waiters_woken_in_their_order(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    woken: list[str] = []

    def first() -> None:
        woken.append("first")

    def second() -> None:
        woken.append("second")

    consumer.wait_then(first)
    consumer.wait_then(second)
    assert consumer.has_waiters() and woken == []
    await deliver(fake, consumer, 0, 2)
    assert set(woken) == {"first"}
    assert consumer.dequeue() is not None
    woken.clear()
    # The next one is woken by the one before it, as there is more.
    consumer.forget_wait(first)
    assert woken == ["second"]
    assert consumer.dequeue() is not None and consumer.dequeue() is None
    consumer.forget_wait(second)
    consumer.forget_wait(second)
    assert not consumer.has_waiters() and woken == ["second"]


async def test_wait_with_message_there_wakes_at_once(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    await deliver(fake, consumer, 1, 1)
    woken: list[int] = []
    consumer.wait_then(lambda: woken.append(1))
    assert woken == [1]


async def test_wait_with_queue_of_zero_grants_one_permit(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url), "a", receiver_queue_size=0)
    assert consumer.asks_for_each and permits(fake) == []

    def wake() -> None:
        pass

    consumer.wait_then(wake)
    await asyncio.to_thread(fake.wait, Kind.FLOW)
    await deliver(fake, consumer, 0, 1)
    assert contents(consumer) == [b"a0"]
    consumer.forget_wait(wake)
    consumer.wait_then(wake)
    await asyncio.to_thread(fake.wait, Kind.FLOW, 2)
    assert permits(fake) == [1, 1]


async def test_close_wakes_waiters_and_listener(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url)
    consumer = await subscribe(core)
    woken: list[str] = []
    consumer.wait_then(lambda: woken.append("waiter"))
    consumer.on_ready = lambda: woken.append("listener")
    await consumer.close()
    assert {"waiter", "listener"} == set(woken) and consumer.may_have_more() and consumer.is_closed
    assert consumer not in core.consumers and not consumer.is_connected
    with pytest.raises(AlreadyClosed) as caught:
        consumer.dequeue()
    # A log of it would show an IndexError of the empty queue.
    assert caught.value.__context__ is None


async def test_last_disconnected_timestamp_is_the_latest_topics(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    await consumer.seek(1234)  # a close by the broker that is no disconnection
    assert consumer.last_disconnected_timestamp == 0
    for child, at in zip(consumer.children, (5, 7), strict=True):
        child.last_disconnected_timestamp = at
    assert consumer.last_disconnected_timestamp == 7
    # A pattern may have no topic now.
    consumer.subscriptions.children = []
    assert consumer.last_disconnected_timestamp == 0


async def test_dequeue_raises_failure_of_a_partition(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    child = consumer.children[1]
    child.failure = NotConnected("for good")
    await deliver(fake, consumer, 0, 1)
    child.gave_up(child.failure)
    # What is there comes first.
    first = consumer.dequeue()
    assert first is not None and first.data() == b"a0"
    assert consumer.may_have_more()
    with pytest.raises(NotConnected, match="for good"):
        consumer.dequeue()


# --- acknowledging ----------------------------------------------------------------------------------------------


async def test_acknowledge_divides_ids_by_topic(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    told: list[PulsarException | None] = []
    consumer.acknowledge([place(A, 1), place(B, 2), place(A, 3)], told.append)
    assert await seen_acks(fake, 2) == [(0, [1, 3]), (1, [2])]
    assert told == [None]
    consumer.acknowledge([], told.append)
    assert told == [None, None]
    # Nothing is acknowledged when one of them cannot be.
    with pytest.raises(OperationNotSupported, match="does not read"):
        consumer.acknowledge([place(A, 4), place(TopicName.parse("c"), 1)])
    consumer.acknowledge_cumulative(place(B, 9))
    assert await seen_acks(fake, 3) == [(0, [1, 3]), (1, [2]), (1, [9])]


async def test_acknowledge_done_after_all_receipts(fake: FakeBroker, cores: Cores) -> None:
    kept: list[tuple[Peer, bytes]] = []

    def later(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        answer = pb.CommandAckResponse(consumer_id=command.ack.consumer_id, request_id=command.ack.request_id)
        kept.append((peer, frame(Kind.ACK_RESPONSE, ackResponse=answer)))
        return ()

    fake.answers[Kind.ACK] = later
    consumer = await subscribe(cores(fake.url), ack_receipt_enabled=True)
    told: list[PulsarException | None] = []
    consumer.acknowledge([place(A, 1), place(B, 2)], told.append)
    await until(lambda: len(kept) == 2)
    kept[0][0].send(kept[0][1])
    await consumer.client.partition_count(A)
    assert told == []
    kept[1][0].send(kept[1][1])
    await until(lambda: told)
    assert told == [None]


async def test_acknowledge_message_goes_to_its_topic(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    await deliver(fake, consumer, 1, 1, first=5)
    message = consumer.dequeue()
    assert message is not None
    consumer.acknowledge_message(message)
    assert await seen_acks(fake, 1) == [(1, [5])]


async def test_rows_acked_or_refused_by_topic(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(
        cores(fake.url), consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=60_000
    )
    await deliver(fake, consumer, 0, 3)
    await deliver(fake, consumer, 1, 1)
    receiving = ArrowReceiver(consumer, ["value"], 100, 1 << 20)
    receiving.collect()
    received = receiving.result()
    assert [type(each) for each in received.ranges] == [EntryRange] * 2
    told: list[PulsarException | None] = []
    consumer.refuse_rows(received)
    assert [sorted(child.acks._nacks.due) for child in consumer.children] == [[(1, 0), (1, 1), (1, 2)], [(1, 0)]]
    consumer.acknowledge_rows(received, told.append)
    assert await seen_acks(fake, 2) == [(0, [0, 1, 2]), (1, [0])]
    assert told == [None] and not any(child.acks._nacks.due for child in consumer.children)
    await consumer.subscriptions.remove_topic(B)
    with pytest.raises(NotConnected, match="or no longer"):
        consumer.acknowledge_rows(received)


async def test_reconsume_later_without_retry_topic_raises(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    await deliver(fake, consumer, 0, 1)
    message = consumer.dequeue()
    assert message is not None
    with pytest.raises(InvalidConfiguration, match="enable_retry=True"):
        await consumer.reconsume_later([message], 1000, None)


@pytest.mark.parametrize("prefetches", [False, True])
async def test_dequeue_within_keeps_the_turn(fake: FakeBroker, cores: Cores, prefetches: bool) -> None:
    consumer = await subscribe(cores(fake.url))
    if prefetches:
        consumer.start_prefetch()
    await deliver(fake, consumer, 0, 2)
    await deliver(fake, consumer, 1, 1)
    assert consumer.dequeue_within(1) is False and consumer.dequeue_within(1) is False
    woken: list[int] = []
    consumer.wait_then(lambda: woken.append(1))
    assert consumer.dequeue_within(1) is False and len(woken) == 2
    found = [consumer.dequeue_within(2) for _ in range(4)]
    assert [message and message.data() for message in found[:3]] == [b"a0", b"b0", b"a1"]
    assert found[3] is None


async def test_put_back_queues_by_topic(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    await deliver(fake, consumer, 0, 2)
    await deliver(fake, consumer, 1, 1)
    messages = [message for _ in range(3) if (message := consumer.dequeue()) is not None]
    assert len(messages) == 3 and consumer.dequeue() is None
    woken: list[int] = []
    consumer.wait_then(lambda: woken.append(1))
    consumer.put_back(messages)
    # They look again: a strict pause may have ended meanwhile.
    await until(lambda: woken)
    assert sorted(contents(consumer)) == [b"a0", b"a1", b"b0"]
    await consumer.subscriptions.remove_topic(B)
    consumer.put_back(messages)
    await until(lambda: consumer.has_queued())
    assert contents(consumer) == [b"a0", b"a1"]


async def test_dropped_messages_count_as_not_received(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    await deliver(fake, consumer, 0, 2)
    await deliver(fake, consumer, 1, 1)
    restarts = consumer.restarts()
    messages = [message for _ in range(3) if (message := consumer.dequeue()) is not None]
    assert of_consumer(consumer).total_msgs_received == 3
    consumer.children[0].core.restarts += 1
    collected = list(messages)
    consumer.drop_outdated(collected, restarts)
    assert [message.data() for message in collected] == [b"b0"] and of_consumer(consumer).total_msgs_received == 1
    consumer.children[1].core.restarts += 1
    consumer.put_back(collected, restarts)
    assert of_consumer(consumer).total_bytes_received == 0 and not consumer.has_queued()


# --- positions --------------------------------------------------------------------------------------------------


async def test_seek_targets_by_kind_of_target(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    a, b = consumer.children
    for everywhere in (MessageId.earliest, MessageId.latest, 1234):
        assert consumer.seek_targets(everywhere) == [(a, everywhere), (b, everywhere)]
    assert consumer.seek_targets(place(B, 4)) == [(b, place(B, 4))]
    assert consumer.seek_targets({A.full: 7, B.full: None}.get) == [(a, 7)]
    for wrong in (-1, True, "5", 1.5, None):
        with pytest.raises(InvalidConfiguration, match="Seek needs"):
            consumer.seek_targets(wrong)  # type: ignore[arg-type]
    # Of any partition, before one is moved.
    with pytest.raises(InvalidConfiguration, match="Seek needs"):
        await consumer.seek({A.full: 7, B.full: -1}.get)
    assert not fake.seen(Kind.SEEK)


async def test_seek_failed_partition_moves_the_others(fake: FakeBroker, cores: Cores) -> None:
    def a_fails(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked = command.seek
        return [failure(asked.request_id, pb.MetadataError) if asked.consumer_id == 0 else success(asked.request_id)]

    fake.answers[Kind.SEEK] = a_fails
    consumer = await subscribe(cores(fake.url))
    with pytest.raises(PulsarException, match="as the test wants it"):
        await consumer.seek(1234)
    assert [seen.command.seek.message_publish_time for seen in fake.seen(Kind.SEEK)] == [1234] * 2
    assert [seen.command.subscribe.consumer_id for seen in fake.seen(Kind.SUBSCRIBE)][2:] == [1]
    assert consumer.is_connected


async def test_last_message_id_of_several_topics_raises(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url)
    consumer = await subscribe(core)
    with pytest.raises(OperationNotSupported, match="get_last_message_ids"):
        await consumer.last_message_id()
    assert [each.topic_name() for each in await consumer.last_message_ids()] == [A.full, B.full]
    assert len(await consumer.positions()) == 2
    assert (await (await subscribe(core, "a")).last_message_id()).topic_name() == A.full


async def test_dequeued_ids_are_of_started_topics(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    consumer.start_prefetch()
    assert consumer.dequeued_ids() == []
    await deliver(fake, consumer, 1, 3)
    consumer.dequeue()
    consumer.prefetched.popleft()
    # The prefetched one that the application took counts, the other one does not.
    assert [(each.topic_name(), each.entry_id()) for each in consumer.dequeued_ids()] == [(B.full, 1)]


# --- end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("timeout", "counted"), [(None, False), (None, True), (5.0, False)])
async def test_close_asks_counts_with_limit_or_counted(
    fake: FakeBroker, cores: Cores, timeout: float | None, counted: bool
) -> None:
    consumer = await subscribe(cores(fake.url))
    reports = await consumer.close(timeout, counted=counted)
    asked = 0 if timeout is None and not counted else 2
    assert len(fake.seen(Kind.CONSUMER_STATS)) == asked and len(fake.seen(Kind.CLOSE_CONSUMER)) == 2
    assert [each.topic for each in reports] == [A.full, B.full]


async def test_abandon_closes_without_request(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    consumer.abandon()
    await consumer.client.partition_count(A)
    assert consumer.is_closed and not fake.seen(Kind.CLOSE_CONSUMER)
    with pytest.raises(AlreadyClosed):
        consumer.dequeue()


async def test_close_without_topics_wakes_waiters(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    for topic in (A, B):
        await consumer.subscriptions.remove_topic(topic)
    assert consumer.dequeue() is None and not consumer.may_have_more()
    woken: list[int] = []
    consumer.wait_then(lambda: woken.append(1))
    assert woken == []
    await consumer.close()
    assert woken == [1] and consumer.may_have_more()
    with pytest.raises(AlreadyClosed):
        consumer.dequeue()


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_close_inline_of_one_topic_ends_the_consumer(fake: FakeBroker, timeout: float | None) -> None:
    with Client(fake.url, operation_timeout_seconds=5) as client:
        consumer = client.subscribe("a", "s")._inner
        connection = consumer.children[0].connection
        assert connection is not None
        # The first attempt has the loop prepare it.
        wait_until(connection.begin_inline_read)
        connection.end_inline_read()
        reports = consumer.close_inline(timeout)
        assert reports is not None and [each.topic for each in reports] == [A.full]
        assert consumer.is_closed and consumer not in consumer.client.consumers
        assert len(fake.seen(Kind.CONSUMER_STATS)) == (0 if timeout is None else 1)


def test_close_inline_of_several_topics_declines(fake: FakeBroker) -> None:
    with Client(fake.url, operation_timeout_seconds=5) as client:
        consumer = client.subscribe(["a", "b"], "s")._inner
        connection = consumer.children[0].connection
        assert connection is not None
        wait_until(connection.begin_inline_read)
        connection.end_inline_read()
        assert consumer.close_inline() is None and not consumer.is_closed
        assert consumer.is_connected and not fake.seen(Kind.CLOSE_CONSUMER)


async def test_leave_one_topic_keeps_the_others(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    await deliver(fake, consumer, 0, 1)
    with pytest.raises(InvalidConfiguration, match="its topics are"):
        await consumer.leave("c")
    await consumer.leave("a", force=True)
    (seen,) = fake.seen(Kind.UNSUBSCRIBE)
    assert (seen.command.unsubscribe.consumer_id, seen.command.unsubscribe.force) == (0, True)
    assert list(consumer.topics) == [B] and not consumer.is_closed and contents(consumer) == []
    await deliver(fake, consumer, 0, 1)
    assert contents(consumer) == [b"b0"]


@pytest.mark.parametrize("topic", [None, "a"])
async def test_leave_the_only_topic_ends_the_consumer(fake: FakeBroker, cores: Cores, topic: str | None) -> None:
    core = cores(fake.url)
    consumer = await subscribe(core, "a")
    await consumer.leave(topic)
    assert len(fake.seen(Kind.UNSUBSCRIBE)) == 1 and consumer.is_closed and consumer not in core.consumers


async def test_unsubscribe_failed_keeps_the_consumer(fake: FakeBroker, cores: Cores) -> None:
    def a_fails(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked = command.unsubscribe
        return [failure(asked.request_id, pb.MetadataError) if asked.consumer_id == 0 else success(asked.request_id)]

    fake.answers[Kind.UNSUBSCRIBE] = a_fails
    consumer = await subscribe(cores(fake.url))
    with pytest.raises(PulsarException, match="as the test wants it"):
        await consumer.leave(None)
    assert not consumer.is_closed and len(fake.seen(Kind.UNSUBSCRIBE)) == 2


class Unsubscribes:
    """Answers to UNSUBSCRIBE: refused for the consumers of `refused`, none for those of `held`, else success."""

    def __init__(self, fake: FakeBroker, *, refused: Iterable[int] = (), held: Iterable[int] = ()) -> None:
        self.fake, self.refused, self.held = fake, set(refused), set(held)
        fake.answers[Kind.UNSUBSCRIBE] = self.answer

    def answer(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked = command.unsubscribe
        if asked.consumer_id in self.held:
            return []
        if asked.consumer_id in self.refused:
            return [failure(asked.request_id, pb.MetadataError)]
        return [success(asked.request_id)]

    async def release(self, consumer_id: int) -> None:
        """Answer success to the request of a held consumer."""
        found = [seen for seen in self.fake.seen(Kind.UNSUBSCRIBE) if self._of(seen.command) == consumer_id]
        found[-1].peer.send(success(found[-1].command.unsubscribe.request_id))

    def asked(self) -> list[int]:
        """Return the consumers whose subscription was to be deleted, in order."""
        return [self._of(seen.command) for seen in self.fake.seen(Kind.UNSUBSCRIBE)]

    def _of(self, command: pb.BaseCommand) -> int:
        return command.unsubscribe.consumer_id


async def test_unsubscribe_failed_waits_for_the_others(fake: FakeBroker, cores: Cores) -> None:
    answers = Unsubscribes(fake, refused=[0], held=[1])
    consumer = await subscribe(cores(fake.url))
    first, second = consumer.children
    ending = asyncio.create_task(consumer.unsubscribe())
    await until(lambda: len(answers.asked()) == 2 and first.state is State.READY)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not ending.done() and second.state is State.CLOSING
    await answers.release(1)
    with pytest.raises(PulsarException, match="as the test wants it"):
        await asyncio.wait_for(ending, 10)
    assert second.state is State.CLOSED


async def test_unsubscribe_failed_in_part_consumes_the_rest(fake: FakeBroker, cores: Cores) -> None:
    answers = Unsubscribes(fake, refused=[0])
    core = cores(fake.url)
    consumer = await subscribe(core)
    await deliver(fake, consumer, 1, 1)
    with pytest.raises(PulsarException, match="as the test wants it"):
        await consumer.unsubscribe()
    assert [child.topic for child in consumer.children] == [A] and not consumer.is_closed and consumer.is_connected
    # What was queued of the other topic is no longer this subscription's.
    await deliver(fake, consumer, 0, 1)
    assert contents(consumer) == [b"a0"]
    with pytest.raises(NotConnected, match="or no longer"):
        consumer.acknowledge([place(B, 0)])
    answers.refused.clear()
    await consumer.unsubscribe()
    assert answers.asked() == [0, 1, 0] and consumer.is_closed and consumer not in core.consumers


async def test_leave_failed_in_part_consumes_the_rest(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[A.full] = 2
    answers = Unsubscribes(fake, refused=[0])
    consumer = await subscribe(cores(fake.url))
    with pytest.raises(PulsarException, match="as the test wants it"):
        await consumer.leave("a")
    kept = [child.topic for child in consumer.children]
    assert sorted(map(str, kept)) == sorted(map(str, [A.with_partition(0), B])) and set(consumer.topics) == {A, B}
    await deliver(fake, consumer, kept.index(A.with_partition(0)), 1)
    assert contents(consumer) == [b"a-partition-00"]
    answers.refused.clear()
    await consumer.leave("a")
    assert answers.asked() == [0, 1, 0] and list(consumer.topics) == [B]


async def test_unsubscribe_refused_still_joins_partitions(
    fake: FakeBroker, cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.partitions[A.full] = 1
    Unsubscribes(fake, refused=[0])
    clock = LoopClock(monkeypatch)
    core = cores(fake.url, operation_timeout_seconds=600)
    consumer = await subscribe(core, "a", auto_update_partitions_interval_seconds=60)
    with pytest.raises(PulsarException, match="as the test wants it"):
        await consumer.unsubscribe()
    fake.partitions[A.full] = 2
    await clock.advance(61)
    await until(lambda: consumer.topics == {A: 2})
    assert len(consumer.children) == 2


async def test_unsubscribe_joins_no_partition_meanwhile(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[A.full] = 1
    answers = Unsubscribes(fake, held=[0])
    consumer = await subscribe(cores(fake.url), "a")
    ending = asyncio.create_task(consumer.unsubscribe())
    await until(answers.asked)
    fake.partitions[A.full] = 2
    with pytest.raises(AlreadyClosed, match="closed meanwhile"):
        await consumer.subscriptions.update_partitions(A)
    assert len(fake.seen(Kind.CLOSE_CONSUMER)) == 1
    await answers.release(0)
    await asyncio.wait_for(ending, 10)
    assert consumer.is_closed


async def test_reached_end_when_every_topic_has(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url))
    for child in consumer.children:
        assert not consumer.has_reached_end
        ended = pb.CommandReachedEndOfTopic(consumer_id=child.consumer_id)
        fake.peers[0].send(frame(Kind.REACHED_END_OF_TOPIC, reachedEndOfTopic=ended))
        await until(lambda child=child: child.reached_end)
    assert consumer.has_reached_end and consumer.description == f"{A.full},{B.full}"


async def read_all(fake: FakeBroker, consumer: MultiTopicsConsumer) -> None:
    """Deliver two messages of each partition, and dequeue them."""
    for number in range(len(consumer.children)):
        await deliver(fake, consumer, number, 2)
    assert len(contents(consumer)) == 2 * len(consumer.children)


@pytest.mark.parametrize("how", ["wait", "available", "read"])
async def test_reader_acks_what_it_returned(fake: FakeBroker, cores: Cores, how: str) -> None:
    reader = await reader_of(fake, cores(fake.url))

    async def moment() -> None:
        if how == "wait":
            reader.wait_then(wake)
            reader.forget_wait(wake)
        elif how == "available":
            assert not await reader.has_message_available()
        else:
            reader.acknowledge_read()

    def wake() -> None:
        pass

    await read_all(fake, reader)
    assert acked(fake) == []
    ids = [child.consumer_id for child in reader.children]
    for _ in range(3):
        await moment()
    await reader.client.partition_count(TopicName.parse("another"))
    assert sorted(acked(fake)) == [(ids[0], [1]), (ids[1], [1])]
    await deliver(fake, reader, 1, 1, first=2)
    assert contents(reader) == [b"b2"]
    await moment()
    await reader.client.partition_count(TopicName.parse("another"))
    assert acked(fake)[2:] == [(ids[1], [2])]


async def test_consumer_acks_nothing_by_itself(fake: FakeBroker, cores: Cores) -> None:
    consumer = await subscribe(cores(fake.url), subscription_mode=SubscriptionMode.NonDurable)
    await read_all(fake, consumer)
    consumer.wait_then(list)
    consumer.acknowledge_read()
    await consumer.client.partition_count(TopicName.parse("another"))
    assert acked(fake) == []


# --- has_message_available --------------------------------------------------------------------------------------


def chunk_of_two(number: int) -> bytes:
    return single_entry(b"ab", uuid="m", chunk_id=number, num_chunks_from_msg=2, total_chunk_msg_size=4)


async def reader_of(fake: FakeBroker, core: ClientCore, *topics: str, **options: Any) -> MultiTopicsConsumer:
    """Return a reader of topics whose last entry is 1."""
    fake.set_last(1)
    mode = {"subscription_mode": SubscriptionMode.NonDurable, "start_message_id": MessageId.earliest}
    return await subscribe(core, *topics, **mode, **options)


async def asked(fake: FakeBroker, consumer: MultiTopicsConsumer) -> asyncio.Task[bool]:
    """Begin to ask for a message; return when the broker has answered for all partitions."""
    answered = len(fake.seen(Kind.GET_LAST_MESSAGE_ID)) + len(consumer.children)
    asking = asyncio.create_task(consumer.has_message_available())
    await asyncio.to_thread(fake.wait, Kind.GET_LAST_MESSAGE_ID, answered)
    await consumer.client.partition_count(TopicName.parse("another"))
    return asking


async def test_has_message_available_waits_for_entries(fake: FakeBroker, cores: Cores) -> None:
    consumer = await reader_of(fake, cores(fake.url))
    asking = await asked(fake, consumer)
    ids = [child.consumer_id for child in consumer.children]
    # Of a message that is never completed: it is no message, and the other topic has one.
    fake.peers[-1].send(delivery(ids[0], chunk_of_two(0), 1))
    await until(lambda: consumer.children[0].position.last_decoded == (1, 1))
    assert not asking.done() and await consumer.has_entry_available()
    fake.peers[-1].send(delivery(ids[1], single_entry(b"b"), 1))
    assert await asyncio.wait_for(asking, 4)
    assert contents(consumer) == [b"b"]
    assert not await consumer.has_message_available()


async def test_has_message_available_false_for_lone_chunk(fake: FakeBroker, cores: Cores) -> None:
    consumer = await reader_of(fake, cores(fake.url), "a")
    asking = await asked(fake, consumer)
    fake.peers[-1].send(delivery(consumer.children[0].consumer_id, chunk_of_two(0), 1))
    assert not await asyncio.wait_for(asking, 4) and not await consumer.has_entry_available()


async def test_has_message_available_true_for_withheld(
    fake: FakeBroker, cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_topics_consumer, "_ENTRY_SECONDS", 0.05)
    assert await (await reader_of(fake, cores(fake.url))).has_message_available()


async def test_has_message_available_zero_queue_waits_not(fake: FakeBroker, cores: Cores) -> None:
    # Nothing is sent to it until an application receives.
    consumer = await reader_of(fake, cores(fake.url), "a", receiver_queue_size=0)
    assert await asyncio.wait_for(consumer.has_message_available(), 4)


async def test_has_message_available_ends_when_closed(fake: FakeBroker, cores: Cores) -> None:
    consumer = await reader_of(fake, cores(fake.url), "a")
    asking = await asked(fake, consumer)
    await consumer.close()
    with pytest.raises(AlreadyClosed):
        await asyncio.wait_for(asking, 4)
