"""Listener push consumers when members, brokers and connections come and go."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native import (
    ConsumeOrder,
)
from pulsar_native.push.partition_poller import PartitionPoller
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.push_consumers import (
    IN_ORDER,
    SUCCESS,
    Gate,
    Recorder,
    Started,
    backlog,
    numbered,
    publish,
)
from support.relay import NewRelay

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]


@pytest.mark.proves("C223")
def test_partitions_are_shared_out_anew_when_members_come_and_go(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic(partitions=4)
    options = {"consumer_group": "members", "orderly": True, "consume_order": ConsumeOrder.PARTITION}
    first, second = Recorder(IN_ORDER), Recorder(IN_ORDER)
    consume(client, name, first, instance_name="1", **options)

    def everything(round_name: str) -> tuple[set[int], set[int]]:
        for partition in range(4):
            publish(api, client, f"{name}-partition-{partition}", [f"{round_name}{partition}".encode()])
        expected = {f"{round_name}{partition}".encode() for partition in range(4)}
        eventually(lambda: expected <= {*first.seen, *second.seen})
        prefix = round_name.encode()
        return tuple(  # type: ignore[return-value]
            {int(content[-1:]) for content in recorder.seen if content.startswith(prefix)}
            for recorder in (first, second)
        )

    assert everything("a") == ({0, 1, 2, 3}, set())
    leaving = consume(client, name, second, instance_name="2", **options)

    def shared() -> bool:
        counts = [0, 0]
        for which, recorder in enumerate((first, second)):
            counts[which] = sum(1 for content in recorder.seen if content.startswith(mark))
        return counts == [2, 2]

    rounds = iter("bcdefghijklm")
    deadline = time.monotonic() + 30
    while True:
        mark = next(rounds).encode()
        everything(mark.decode())
        if shared():
            break
        assert time.monotonic() < deadline
    leaving.shutdown()
    eventually(lambda: everything(next(rounds).upper())[0] == {0, 1, 2, 3})


@pytest.mark.proves("C227", "C207")
def test_consuming_goes_on_after_an_unload_and_a_lost_connection(
    api: Api, client: Any, broker: Broker, relay: NewRelay, topic: NewTopic, consume: Started,
    eventually: Eventually, stats: Stats,
) -> None:  # fmt: skip
    name = topic()
    proxy = relay(broker.service_url)
    service = api.client(proxy.service_url, starting_backoff_interval_ms=50)
    recorder = Recorder()
    push_consumer = consume(service, name, recorder)
    publish(api, client, name, numbered(10, "a"))
    eventually(lambda: push_consumer.stats().succeeded == 10)
    broker.admin("PUT", name.replace("://", "/") + "/unload")
    publish(api, client, name, numbered(10, "b"))
    eventually(lambda: set(numbered(10, "b")) <= set(recorder.seen))
    proxy.cut()
    publish(api, client, name, numbered(10, "c"))
    eventually(lambda: set(numbered(10, "c")) <= set(recorder.seen))
    eventually(lambda: backlog(stats, name, push_consumer.config.consumer_group) == 0)


@pytest.mark.proves("C207")
def test_one_partitions_trouble_does_not_end_the_intake(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    poll = PartitionPoller.poll
    failed: list[float] = []

    def fail_once(poller: PartitionPoller, now: float) -> Any:
        if poller.child.topic.full == name and poller.may_have_more and not failed:
            failed.append(time.monotonic())
            raise RuntimeError("trouble")
        return poll(poller, now)

    monkeypatch.setattr(PartitionPoller, "poll", fail_once)
    handled: list[float] = []
    push_consumer = consume(
        client, name, Recorder(lambda _given, _context: handled.append(time.monotonic()) or SUCCESS)
    )
    publish(api, client, name, [b"late"])
    eventually(lambda: push_consumer.stats().succeeded == 1)
    # The next try comes after a second.
    assert handled[0] - failed[0] >= 0.99


def test_what_a_handler_has_is_not_taken_twice_after_a_lost_connection(
    api: Api, client: Any, broker: Broker, relay: NewRelay, topic: NewTopic, consume: Started,
    eventually: Eventually, stats: Stats,
) -> None:  # fmt: skip
    name = topic()
    proxy = relay(broker.service_url)
    service = api.client(proxy.service_url, starting_backoff_interval_ms=50)
    gate = Gate()
    push_consumer = consume(service, name, gate, consume_thread_max=2)
    publish(api, client, name, numbered(6))
    eventually(lambda: push_consumer.stats().unfinished == 6 and len(gate.recorder.seen) == 2)
    proxy.cut()
    # The two that are in work come again, too, and are known; the others were forgotten, and are taken anew.
    eventually(lambda: push_consumer.stats().duplicates == 2)
    eventually(lambda: push_consumer.stats().unfinished == 6)
    gate.opened.set()
    eventually(lambda: backlog(stats, name, push_consumer.config.consumer_group) == 0)
    assert sorted(gate.recorder.seen) == numbered(6)
