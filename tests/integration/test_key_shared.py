"""Key_Shared policies: ranges of hashes, their conflicts, delivery out of order; readers of a range of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import (
    ConsumerAssignError,
    ConsumerBusy,
    ConsumerKeySharedPolicy,
    ConsumerType,
    InitialPosition,
    InvalidConfiguration,
    KeySharedMode,
    Message,
    MessageId,
    Timeout,
)
from pulsar_native.wire.hashing import murmur3_32
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.raw import commands_of
from support.relay import Command, NewRelay

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest
KEYS = [f"key-{number}" for number in range(60)]


def hash_of(key: str | bytes) -> int:
    return murmur3_32(key if isinstance(key, bytes) else key.encode()) % 65_536


def sticky(*ranges: tuple[int, int], **options: Any) -> Any:
    return ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=list(ranges), **options)


def subscribe(client: Any, name: str, policy: Any, **options: Any) -> Any:
    options = {"initial_position": EARLIEST, **options}
    return client.subscribe(name, "sub", ConsumerType.KeyShared, key_shared_policy=policy, **options)


def publish_keys(api: Api, client: Any, name: str, **options: Any) -> None:
    producer = client.create_producer(name, **{"batching_enabled": False, **options})
    for key in KEYS:
        api.send_all(producer, [b"1", b"2"], partition_key=key)


def drain(consumer: Any, wait_ms: int = 500, least: int = 0) -> list[Message]:
    messages: list[Message] = []
    try:
        while True:
            messages.append(consumer.receive(wait_ms if len(messages) >= least else 10_000))
            consumer.acknowledge(messages[-1])
    except Timeout:
        return messages


@pytest.mark.proves("C90")
@pytest.mark.parametrize("partitions", [0, 3])
def test_sticky_ranges_get_the_keys_whose_hash_lies_in_them(
    api: Api, client: Any, topic: NewTopic, partitions: int
) -> None:
    name = topic(partitions=partitions)
    # Two ranges of one consumer around the other's; the bounds belong to them, which two of the keys show.
    hashes = sorted(hash_of(key) for key in KEYS)
    low, high = hashes[20], hashes[40]
    outer = subscribe(client, name, sticky((high + 1, 65_535), (0, low - 1)))
    inner = subscribe(client, name, sticky((low, high)))
    publish_keys(api, client, name)
    shares = [drain(consumer, least=2 * count) for consumer, count in ((inner, 21), (outer, 39))]
    wanted = [
        {key for key in KEYS if low <= hash_of(key) <= high},
        {key for key in KEYS if not low <= hash_of(key) <= high},
    ]
    assert [{message.partition_key() for message in share} for share in shares] == wanted
    assert [len(wanted[0]), len(wanted[1])] == [21, 39]
    for share in shares:
        for key in {message.partition_key() for message in share}:
            assert [message.data() for message in share if message.partition_key() == key] == [b"1", b"2"]


@pytest.mark.proves("C90")
def test_keys_without_a_consumer_wait_and_the_ordering_key_counts_first(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    key, other = "here", "elsewhere"
    assert hash_of(key) != hash_of(other)
    first = subscribe(client, name, sticky((hash_of(key), hash_of(key))))
    producer = client.create_producer(name, batching_enabled=False)
    api.send_all(producer, [b"other"], partition_key=other)
    api.send_all(producer, [b"bytes"], partition_key=key.encode())
    api.send_all(producer, [b"by ordering key"], partition_key=other, ordering_key=key)
    api.send_all(producer, [b"elsewhere by ordering key"], partition_key=key, ordering_key=other)
    assert [message.data() for message in drain(first, least=2)] == [b"bytes", b"by ordering key"]
    second = subscribe(client, name, sticky((hash_of(other), hash_of(other))))
    assert [message.data() for message in drain(second, least=2)] == [b"other", b"elsewhere by ordering key"]


@pytest.mark.proves("C90")
def test_a_range_of_another_consumer_is_refused_by_the_broker(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    first = subscribe(client, name, sticky((100, 200)))
    for taken in ((150, 300), (200, 200), (0, 65_535)):
        with pytest.raises(ConsumerAssignError, match=r"(?i)conflict") as caught:
            subscribe(client, name, sticky(taken))
        assert caught.value.topic == name and not caught.value.retryable
    # The other mode, too, while somebody is there.
    with pytest.raises(ConsumerBusy):
        subscribe(client, name, None)
    subscribe(client, name, sticky((0, 99), (201, 300)))
    first.close()
    subscribe(client, name, sticky((100, 200)))


@pytest.mark.proves("C90")
def test_out_of_order_delivery_is_asked_for_and_a_slow_consumer_holds_up_nobody(
    api: Api, client: Any, broker: Broker, relay: NewRelay, topic: NewTopic, stats: Stats
) -> None:
    name = topic()
    through = relay(broker.service_url)
    policy = ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)
    slow = subscribe(api.client(through.service_url), name, policy, receiver_queue_size=1000)
    (asked,) = commands_of(through, Command.SUBSCRIBE)
    assert asked.subscribe.keySharedMeta.allowOutOfOrderDelivery
    assert stats(name)["subscriptions"]["sub"]["allowOutOfOrderDelivery"] is True
    publish_keys(api, client, name)
    assert slow.receive(10_000).data() == b"1"
    # Of keys the slow consumer has unacknowledged messages of, the new one gets what comes after it.
    fast = subscribe(client, name, policy)
    publish_keys(api, client, name)
    got = {message.partition_key() for message in drain(fast, least=1)}
    assert got and got < set(KEYS)
    ordered = ConsumerKeySharedPolicy()
    with pytest.raises(ConsumerBusy):
        subscribe(client, name, ordered)


@pytest.mark.proves("C90")
def test_without_leave_for_disorder_a_new_consumer_waits_for_the_slow_one(
    api: Api, client: Any, topic: NewTopic
) -> None:
    name = topic()
    policy = ConsumerKeySharedPolicy(KeySharedMode.AutoSplit)
    slow = subscribe(client, name, policy)
    publish_keys(api, client, name)
    held = [slow.receive(10_000) for _ in range(2 * len(KEYS))]
    fast = subscribe(client, name, policy)
    publish_keys(api, client, name)
    assert drain(fast) == []
    slow.acknowledge(held)
    assert {message.data() for message in drain(fast, 2000, least=1)} == {b"1", b"2"}


def test_the_ranges_survive_an_unload(api: Api, client: Any, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    consumers = [subscribe(client, name, sticky(each)) for each in ((0, 32_767), (32_768, 65_535))]
    broker.admin("PUT", name.replace("://", "/") + "/unload")
    publish_keys(api, client, name)
    for consumer, low in zip(consumers, (0, 32_768), strict=True):
        keys = {message.partition_key() for message in drain(consumer, 2000, least=1)}
        assert keys == {key for key in KEYS if low <= hash_of(key) < low + 32_768}


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_reader_of_a_range_of_keys(api: Api, client: Any, topic: NewTopic, partitions: int) -> None:
    name = topic(partitions=partitions)
    publish_keys(api, client, name)
    reader = client.create_reader(name, MessageId.earliest, key_hash_range=[(0, 20_000), (40_000, 50_000)])
    wanted = [key for key in KEYS if hash_of(key) <= 20_000 or 40_000 <= hash_of(key) <= 50_000]
    read = [reader.read_next(10_000) for _ in range(2 * len(wanted))]
    assert sorted(message.partition_key() for message in read) == sorted(2 * wanted)
    with pytest.raises(Timeout):
        reader.read_next(300)


def test_what_cannot_be_is_refused_before_any_attempt_to_connect(api: Api) -> None:
    client = api.client("pulsar://127.0.0.1:1")
    with pytest.raises(InvalidConfiguration, match="ConsumerKeySharedPolicy"):
        client.subscribe("t", "sub", ConsumerType.KeyShared, key_shared_policy=KeySharedMode.Sticky)
    with pytest.raises(InvalidConfiguration, match="key_hash_range overlap"):
        client.create_reader("t", MessageId.earliest, key_hash_range=[(5, 9), (0, 5)])
