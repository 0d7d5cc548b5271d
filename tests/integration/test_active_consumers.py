"""Who of several consumers is served: events of Failover subscriptions, and priority levels."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import time
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from pulsar_native import (
    Client,
    ConsumerType,
    InitialPosition,
    InvalidConfiguration,
    Message,
    TopicConfiguration,
)
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.relay import NewRelay

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest


class Hearing:
    """A consumer event listener that notes what it is told, and of whom."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.consumers: list[Any] = []
        self.threads: set[str] = set()

    def _note(self, what: str, consumer: Any, partition: int) -> None:
        self.consumers.append(consumer)
        self.threads.add(threading.current_thread().name)
        self.log.append((what, partition))

    def became_active(self, consumer: Any, partition: int) -> Any:
        self._note("active", consumer, partition)

    def became_inactive(self, consumer: Any, partition: int) -> Any:
        self._note("inactive", consumer, partition)

    def now(self) -> dict[int, str]:
        """Return the last word on every partition."""
        return {partition: what for what, partition in list(self.log)}

    def active(self) -> set[int]:
        return {partition for partition, what in self.now().items() if what == "active"}


class HearingLater(Hearing):
    """The same with coroutines."""

    async def became_active(self, consumer: Any, partition: int) -> None:
        await asyncio.sleep(0.01)
        self._note("active", consumer, partition)

    async def became_inactive(self, consumer: Any, partition: int) -> None:
        await asyncio.sleep(0.01)
        self._note("inactive", consumer, partition)


def failover(client: Any, name: str, listener: Any, consumer_name: str, **options: Any) -> Any:
    return client.subscribe(
        name,
        "sub",
        ConsumerType.Failover,
        consumer_name=consumer_name,
        consumer_event_listener=listener,
        initial_position=EARLIEST,
        **options,
    )


@pytest.mark.proves("C100")
@pytest.mark.parametrize("kind", [Hearing, HearingLater])
def test_closing_the_active_consumer_makes_the_other_one_active(
    api: Api, client: Any, topic: NewTopic, eventually: Eventually, kind: type[Hearing]
) -> None:
    if api.name == "blocking" and kind is HearingLater:
        kind = Hearing
    name = topic()
    heard = {who: kind() for who in "ab"}
    both = {who: failover(client, name, heard[who], who) for who in "ab"}
    producer = client.create_producer(name, batching_enabled=False)
    api.send_all(producer, [b"0", b"1"])
    # A topic without partitions: the broker chooses by a hash, and may choose anew when the second one comes.
    eventually(lambda: sorted(heard[who].now().get(-1, "") for who in "ab") == ["active", "inactive"])
    active, standby = sorted("ab", key=lambda who: heard[who].now()[-1])
    assert heard[active].active() == {-1} and heard[standby].active() == set()
    for who in "ab":
        consumer = both[who] if api.name == "blocking" else both[who].target
        assert all(each is consumer for each in heard[who].consumers)
        # Each change is told once.
        words = [what for what, _ in heard[who].log]
        assert all(before != after for before, after in pairwise(words))
    both[active].acknowledge(both[active].receive(10_000))
    before = list(heard[active].log)
    both[active].close()
    eventually(lambda: heard[standby].active() == {-1})
    assert heard[standby].log[-2:] == [("inactive", -1), ("active", -1)]
    # What was delivered before may wait for the next message: broker-behaviour.md#failover-stall.
    api.send_all(producer, [b"2"])
    assert [both[standby].receive(10_000).data() for _ in range(2)] == [b"1", b"2"]
    assert heard[active].log == before
    for each in heard.values():
        told_on = {name.split("-")[0] for name in each.threads}
        assert told_on == ({"pulsar"} if api.name == "blocking" else {"test"})
        assert all("listener" in name for name in each.threads) or api.name == "asyncio"


@pytest.mark.proves("C100", "C103")
def test_per_partition_level_and_name_pick_the_active_one(
    api: Api, client: Any, broker: Broker, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic(partitions=3)
    heard = {who: Hearing() for who in "abc"}
    consumers = {
        "a": failover(client, name, heard["a"], "a", priority_level=1),
        "c": failover(client, name, heard["c"], "c"),
        "b": failover(client, name, heard["b"], "b"),
    }

    def shares() -> list[set[int]]:
        return [heard[who].active() for who in "abc"]

    # The level counts first; among the best, sorted by name, the partitions are dealt out.
    eventually(lambda: shares() == [set(), {0, 2}, {1}])
    producers = [client.create_producer(f"{name}-partition-{partition}") for partition in range(3)]

    def publish(first: int) -> None:
        for number, producer in enumerate(producers, first):
            producer.send(b"%d" % number)

    publish(0)
    assert sorted(consumers["b"].receive(10_000).data() for _ in range(2)) == [b"0", b"2"]
    assert consumers["c"].receive(10_000).data() == b"1"
    consumers["b"].close()
    eventually(lambda: heard["c"].active() == {0, 1, 2})
    assert heard["a"].active() == set()
    # What was delivered before may wait for the next message: broker-behaviour.md#failover-stall.
    publish(3)
    assert sorted(consumers["c"].receive(10_000).data() for _ in range(5)) == [b"0", b"2", b"3", b"4", b"5"]
    consumers["c"].close()
    eventually(lambda: heard["a"].active() == {0, 1, 2})
    publish(6)
    assert sorted(consumers["a"].receive(10_000).data() for _ in range(9)) == [b"%d" % n for n in range(9)]


@pytest.mark.proves("C100")
def test_one_that_raises_loses_nothing_and_a_lost_connection_counts_anew(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually, caplog: Any
) -> None:
    class Raising(Hearing):
        def _note(self, what: str, consumer: Any, partition: int) -> None:
            super()._note(what, consumer, partition)
            raise ZeroDivisionError("a listener's own fault")

    name = topic(partitions=2)
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    heard = Raising()
    consumer = failover(client, name, heard, "only")
    eventually(lambda: heard.active() == {0, 1})
    assert sorted(heard.log) == [("active", 0), ("active", 1)]
    through.cut()
    eventually(lambda: len(heard.log) == 4)
    assert sorted(heard.log[2:]) == [("active", 0), ("active", 1)]
    api.send_all(api.client(broker.service_url).create_producer(name), [b"x"])
    assert consumer.receive(10_000).data() == b"x"
    assert "a listener's own fault" in caplog.text


@pytest.mark.proves("C100")
def test_only_failover_has_events(api: Api) -> None:
    client = api.client("pulsar://127.0.0.1:1")
    for kind in (ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared):
        with pytest.raises(InvalidConfiguration, match=r"consumer_type=ConsumerType\.Failover"):
            client.subscribe("t", "sub", kind, consumer_event_listener=Hearing())
    with pytest.raises(InvalidConfiguration, match="object has no became_active"):
        client.subscribe("t", "sub", ConsumerType.Failover, consumer_event_listener=object())


def test_the_listener_keeps_no_client_alive(broker: Broker, topic: NewTopic) -> None:
    client = Client(broker.service_url)

    class Silent:
        def became_active(self, consumer: Any, partition: int) -> None: ...
        def became_inactive(self, consumer: Any, partition: int) -> None: ...

    consumer = failover(client, topic(), Silent(), "only")
    gone = weakref.ref(client)
    del client, consumer
    gc.collect()
    assert gone() is None


@pytest.mark.proves("C103")
def test_a_lower_level_is_served_when_the_higher_has_no_permits(
    client: Any, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    """The table of the sources: who gets the first seven messages, by level and permits."""
    name = topic()
    table = {"C1": (0, 2), "C2": (0, 1), "C3": (0, 1), "C4": (1, 2), "C5": (1, 1)}
    consumers = {
        who: client.subscribe(
            name, "sub", ConsumerType.Shared, consumer_name=who, priority_level=level, receiver_queue_size=permits
        )
        for who, (level, permits) in table.items()
    }

    def served() -> dict[str, int]:
        found = stats(name)["subscriptions"]["sub"]["consumers"]
        return {each["consumerName"]: each["unackedMessages"] for each in found}

    producer = client.create_producer(name, batching_enabled=False)
    order: list[str] = []
    for number in range(7):
        producer.send(b"%d" % number)
        counts = eventually(lambda number=number: (s := served()) and sum(s.values()) == number + 1 and s)
        (got,) = (who for who in table if counts[who] > order.count(who))
        order.append(got)
    assert order == ["C1", "C2", "C3", "C1", "C4", "C5", "C4"]
    # Nobody has a permit left; the first one that is given back decides.
    producer.send(b"7")
    taken: list[Message] = [consumers["C5"].receive(10_000)]
    eventually(lambda: sum(served().values()) == 8)
    assert taken[0].data() == b"5" and served()["C5"] == 2
    for who in table:
        for number in [place for place, each in enumerate(order) if each == who and place != 5]:
            assert consumers[who].receive(10_000).data() == b"%d" % number


def test_levels_below_nought_are_refused(api: Api) -> None:
    started = time.monotonic()
    with pytest.raises(InvalidConfiguration, match="priority_level"):
        api.client("pulsar://127.0.0.1:1").subscribe("t", "sub", ConsumerType.Shared, priority_level=-1)
    assert time.monotonic() - started < 5


@pytest.mark.proves("C103")
@pytest.mark.parametrize("by", ["names", "pattern"])
def test_topics_of_one_consumer_have_levels_of_their_own(
    client: Any, namespace: Callable[[], str], stats: Stats, eventually: Eventually, by: str
) -> None:
    space = namespace()
    names = [f"persistent://{space}/{name}" for name in ("orders", "lines")]
    for name in names:
        client.create_producer(name).close()
    topics = names if by == "names" else re.compile(f"persistent://{space}/.*")

    def subscribe(subscription: str, who: str, first: Any, second: Any) -> None:
        options = [TopicConfiguration(first, priority_level=0), TopicConfiguration(second, priority_level=1)]
        client.subscribe(
            topics,
            subscription,
            ConsumerType.Failover,
            consumer_name=who,
            priority_level=7,
            topic_configurations=options,
        )

    # Of consumers of one level the topic's name picks one, the same on both subscriptions.
    orders, lines = names[0], re.compile(".*/lines")
    subscribe("one", "a", orders, lines)
    subscribe("one", "b", lines, orders)
    subscribe("two", "a", lines, orders)
    subscribe("two", "b", orders, lines)

    def active(subscription: str) -> list[str]:
        return [stats(name)["subscriptions"][subscription]["activeConsumerName"] for name in names]

    eventually(lambda: (active("one"), active("two")) == (["a", "b"], ["b", "a"]))
