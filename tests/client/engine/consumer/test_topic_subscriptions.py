"""Topic subscriptions of a consumer: partitions, queue sizes, pauses, and the consumer a message id belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer.consumer import PartitionConsumer
from pulsar_native.engine.consumer.topic_subscriptions import SubscriptionEvents, TopicSubscriptions
from pulsar_native.enums import ConsumerType, SubscriptionMode
from pulsar_native.exceptions import InvalidConfiguration, NotConnected, OperationNotSupported
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.schema import BytesSchema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.topic import TopicName
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker

Cores = Callable[..., ClientCore]
A, B = TopicName.parse("a"), TopicName.parse("b")


def subscriptions(core: ClientCore, topics: dict[TopicName, int], **options: Any) -> TopicSubscriptions:
    """Return subscriptions to topics with their numbers of partitions, not opened."""
    events = {name: options.pop(name) for name in ("arriving", "allows_fast_acks") if name in options}
    config = ConsumerConfig(subscription_name="s", **options)
    return TopicSubscriptions(
        core,
        config,
        topics,
        VersionedDecoder(BytesSchema()),
        None,
        SubscriptionEvents(on_arrival=_ignore, on_active_change=_never, **events),
    )


def _ignore(_child: PartitionConsumer) -> None:
    pass


def _never(_is_active: bool, _partition: int) -> None:
    pytest.fail("not a Failover subscription")


def message_id(topic: TopicName, partition: int = -1) -> MessageId:
    return MessageId(partition, 7, 1, topic=topic.full)


async def test_partitions_share_one_name_and_the_total_queue(cores: Cores) -> None:
    made = subscriptions(
        cores("pulsar://127.0.0.1:1"), {A: 3, B: 0}, max_total_receiver_queue_size_across_partitions=100
    )
    assert [child.topic for child in made.children] == [*(A.with_partition(index) for index in range(3)), B]
    assert {child.name for child in made.children} == {made.name}
    assert {child.core.permits.size for child in made.children} == {25}
    alone = subscriptions(cores("pulsar://127.0.0.1:1"), {A: 0}, max_total_receiver_queue_size_across_partitions=100)
    assert alone.children[0].core.permits.size == 1000


@pytest.mark.parametrize("topics", [{A: 0, B: 0}, {A: 1}, {}])
async def test_queue_of_zero_only_for_one_plain_topic(cores: Cores, topics: dict[TopicName, int]) -> None:
    core = cores("pulsar://127.0.0.1:1")
    with pytest.raises(InvalidConfiguration, match="receiver_queue_size=0"):
        subscriptions(core, topics, receiver_queue_size=0)
    assert subscriptions(core, {A: 0}, receiver_queue_size=0).children[0].core.permits.on_demand


async def test_start_id_refused_over_several_partitions(cores: Cores) -> None:
    core = cores("pulsar://127.0.0.1:1")
    reading: dict[str, Any] = {"subscription_mode": SubscriptionMode.NonDurable}
    with pytest.raises(InvalidConfiguration, match="earliest or latest"):
        subscriptions(core, {A: 2}, start_message_id=message_id(A, 0), **reading)
    assert len(subscriptions(core, {A: 2}, start_message_id=MessageId.earliest, **reading).children) == 2
    assert len(subscriptions(core, {A: 0}, start_message_id=message_id(A), **reading).children) == 1


async def test_owner_found_by_topic_or_partition(cores: Cores) -> None:
    core = cores("pulsar://127.0.0.1:1")
    made = subscriptions(core, {A: 2})
    assert made.owner(message_id(A.with_partition(1), 1)) is made.children[1]
    # An id created elsewhere may have its partition only.
    assert made.owner(MessageId(1, 7, 1)) is made.children[1]
    with pytest.raises(OperationNotSupported, match="does not say its topic"):
        made.owner(MessageId(-1, 7, 1))
    with pytest.raises(OperationNotSupported, match="does not read"):
        made.owner(message_id(B))
    # An application may write a topic's name short, or without its partition.
    assert made.owner(MessageId(1, 7, 1, topic="a")) is made.children[1]


@pytest.mark.parametrize("partitions", [0, 1])
async def test_owner_single_consumer_compares_topic(cores: Cores, partitions: int) -> None:
    made = subscriptions(cores("pulsar://127.0.0.1:1"), {A: partitions})
    (child,) = made.children
    for topic in (child.topic.full, A.full, "a", None):
        assert made.owner(MessageId(partitions - 1, 7, 1, topic=topic)) is child
    for other in (message_id(B), message_id(A.with_partition(1), 1)):
        with pytest.raises(OperationNotSupported, match="does not read"):
            made.owner(other)


async def test_owner_of_removed_topic_may_be_retried(cores: Cores) -> None:
    made = subscriptions(cores("pulsar://127.0.0.1:1"), {A: 0, B: 0})
    await made.remove_topic(B)
    assert list(made.topics) == [A] and made.fast_acks.keys() == {A.full}
    with pytest.raises(NotConnected, match="or no longer"):
        made.owner(message_id(B))
    with pytest.raises(NotConnected):
        made.consumer_of("message", B.full)
    with pytest.raises(InvalidConfiguration, match="its topics are"):
        made.check_topic(B)


async def test_fast_acks_not_offered_to_interceptors(cores: Cores) -> None:
    core = cores("pulsar://127.0.0.1:1")
    assert subscriptions(core, {A: 2}).fast_acks.keys() == {A.with_partition(index).full for index in range(2)}
    assert not subscriptions(core, {A: 2}, allows_fast_acks=False).fast_acks


async def test_topic_added_during_pause_is_paused(fake: FakeBroker, cores: Cores) -> None:
    made = subscriptions(cores(fake.url), {A: 0}, consumer_type=ConsumerType.Shared)
    await made.open()
    fake.wait(Kind.FLOW)
    made.pause(strict=True)
    await made.add_topic(B, 2)
    assert list(made.topics.items()) == [(A, 0), (B, 2)]
    assert all(child.core.is_held and child.core.permits.is_paused for child in made.children)
    assert len(fake.seen(Kind.FLOW)) == 1
    made.resume()
    fake.wait(Kind.FLOW, 3)
    assert not any(child.core.permits.is_paused for child in made.children)
    await made.close()
    assert made.has_ended and len(fake.seen(Kind.CLOSE_CONSUMER)) == 3


async def test_topic_added_during_close_is_closed(fake: FakeBroker, cores: Cores) -> None:
    made = subscriptions(cores(fake.url), {A: 0})
    await made.open()
    await made.close()
    with pytest.raises(Exception, match="closed meanwhile"):
        await made.add_topic(B, 0)
    assert list(made.topics) == [A] and len(fake.seen(Kind.CLOSE_CONSUMER)) == 2


async def test_interceptors_lock_may_be_acquired_again(cores: Cores) -> None:
    def arriving(messages: list[Message]) -> list[Message]:
        return messages

    (child,) = subscriptions(cores("pulsar://127.0.0.1:1"), {A: 0}, arriving=arriving).children
    with child.lock:
        assert child.queued_messages() == 0
