"""What push consumers do with their handlers' answers, on a real broker: order, retries, dead letters, hanging."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import pulsar_native.push.consume_message_service as service
from pulsar_native import (
    ConsumeFromWhere,
    ConsumeOrder,
    ConsumeOrderlyStatus,
    ConsumerType,
    InitialPosition,
    Message,
    MessageModel,
)
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.push_consumers import IN_ORDER, LATER, SUCCESS, SUSPEND, Gate, Recorder, Started, numbered, publish

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]
ReadAll = Callable[[str], list[Message]]

GROUP = "results"
COMMIT, ROLLBACK = ConsumeOrderlyStatus.COMMIT, ConsumeOrderlyStatus.ROLLBACK


def backlog(stats: Stats, name: str) -> int:
    return int(stats(name)["subscriptions"][GROUP]["msgBacklog"])


def tries_of(message: Message) -> int:
    return int(message.properties().get("RECONSUMETIMES", "0"))


def keyed(api: Api, client: Any, name: str, keys: str, count: int) -> list[bytes]:
    """Publish messages of several keys by turns, and return their contents."""
    producer = client.create_producer(name, batching_enabled=False)
    contents = []
    for number in range(count):
        for key in keys:
            contents.append(f"{key}{number}".encode())
            producer.send(contents[-1], partition_key=key)
    producer.close()
    return contents


# --- concurrent -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("C218", "N6")
def test_a_handler_can_succeed_with_a_part_of_its_batch(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats
) -> None:
    def part(messages: list[Message], context: Any) -> Any:
        if tries_of(messages[0]) == 0:
            context.ack_index = 2
        return SUCCESS

    name = topic()
    publish(api, client, name, numbered(5))
    recorder = Recorder(part)
    push_consumer = consume(
        client, name, recorder, consumer_group=GROUP, consume_message_batch_max_size=5, delay_levels_ms=[0]
    )
    eventually(lambda: len(recorder.seen) == 7)
    # One call of five; of them two came again, each with its try counted.
    assert recorder.calls[0] == numbered(5) and sorted(recorder.seen[5:]) == [b"3", b"4"]
    assert {context.topic for context in recorder.contexts} == {name}
    eventually(lambda: backlog(stats, name) == 0)
    counts = push_consumer.stats()
    assert (counts.succeeded, counts.failed, counts.sent_back, counts.unfinished) == (5, 2, 2, 0)


@pytest.mark.proves("C218")
def test_of_a_batch_of_the_producer_only_what_failed_comes_again(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=200)
    api.send_all(producer, numbered(10))
    recorder = Recorder(
        lambda messages, _: LATER if messages[0].data() == b"4" and not tries_of(messages[0]) else SUCCESS
    )
    consume(client, name, recorder, consumer_group=GROUP, delay_levels_ms=[0])
    eventually(lambda: len(recorder.seen) == 11)
    assert sorted(recorder.seen) == sorted([*numbered(10), b"4"])
    eventually(lambda: backlog(stats, name) == 0)


@pytest.mark.proves("C218", "C219")
@pytest.mark.parametrize("failure", ["later", "none", "error", "nonsense", "context"])
def test_what_counts_as_a_failure(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, failure: str
) -> None:
    def fail(messages: list[Message], context: Any) -> Any:
        if tries_of(messages[0]):
            return SUCCESS
        if failure == "context":
            context.ack_index, context.delay_level_when_next_consume = "all", None
            return SUCCESS
        if failure == "error":
            raise ValueError("no")
        return {"later": LATER, "none": None, "nonsense": True}[failure]

    name = topic()
    publish(api, client, name, [b"x"])
    recorder = Recorder(fail)
    push_consumer = consume(client, name, recorder, delay_levels_ms=[0])
    eventually(lambda: push_consumer.stats().succeeded == 1)
    assert recorder.seen == [b"x", b"x"]


@pytest.mark.proves("C219", "C220", "N6")
def test_failed_messages_come_back_after_the_delay_of_their_level(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    def answer(messages: list[Message], context: Any) -> Any:
        times.append((tries_of(messages[0]), time.monotonic()))
        if tries_of(messages[0]) == 1:
            # The client's own level.
            context.delay_level_when_next_consume = 1
        return SUCCESS if tries_of(messages[0]) == 3 else LATER

    times: list[tuple[int, float]] = []
    name = topic()
    publish(api, client, name, [b"x"])
    # Level 3 + tries: 3 s first; then level 1 by the handler; then beyond the table, its last.
    consume(client, name, Recorder(answer), delay_levels_ms=[1000, 60_000, 3000])
    eventually(lambda: len(times) == 4)
    assert [tries for tries, _ in times] == [0, 1, 2, 3]
    waited = [later - earlier for (_, earlier), (_, later) in pairwise(times)]
    # The broker takes delays with its tick of one second, to either side.
    assert waited[0] >= 1.9 and waited[1] < 30 and waited[2] >= 1.9


@pytest.mark.proves("C219", "C221", "N6")
def test_level_minus_one_is_a_dead_letter_at_once(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats, read_all: ReadAll
) -> None:
    def refuse(_messages: list[Message], context: Any) -> Any:
        context.delay_level_when_next_consume = -1
        return LATER

    name = topic()
    (place,) = publish(api, client, name, [b"bad"], partition_key="k", properties={"own": "1"})
    push_consumer = consume(client, name, Recorder(refuse), consumer_group=GROUP)
    eventually(lambda: push_consumer.stats().dead_letters == 1)
    (letter,) = read_all(f"{name}-{GROUP}-DLQ")
    assert (letter.data(), letter.partition_key(), letter.properties()["own"]) == (b"bad", "k", "1")
    assert letter.properties()["REAL_TOPIC"] == name
    assert letter.properties()["ORIGIN_MESSAGE_ID"] == f"{place.ledger_id()}:{place.entry_id()}:-1"
    eventually(lambda: backlog(stats, name) == 0)


@pytest.mark.proves("C221", "N6")
@pytest.mark.parametrize("most", [-1, 0, 2])
def test_after_the_last_try_a_message_is_a_dead_letter(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, read_all: ReadAll, most: int
) -> None:
    name, dead = topic(), topic("dead")
    publish(api, client, name, [b"bad"])
    recorder = Recorder(LATER)
    push_consumer = consume(
        client, name, recorder, max_reconsume_times=most, delay_levels_ms=[0], dead_letter_topic=dead
    )
    eventually(lambda: push_consumer.stats().dead_letters == 1)
    tries = 16 if most == -1 else most
    assert len(recorder.seen) == tries + 1 and push_consumer.stats().sent_back == tries
    (letter,) = read_all(dead)
    assert letter.data() == b"bad"


@pytest.mark.proves("C219")
def test_what_cannot_be_put_back_is_tried_here_again(
    api: Api,
    client: Any,
    broker: Broker,
    topic: NewTopic,
    consume: Started,
    eventually: Eventually,
    stats: Stats,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "LOCAL_RETRY", 0.3)
    name, retry = topic(), topic("retry")
    recorder = Recorder(lambda _messages, _context: LATER if len(recorder.calls) < 3 else SUCCESS)
    push_consumer = consume(client, name, recorder, consumer_group=GROUP, retry_letter_topic=retry, delay_levels_ms=[0])
    # The retry topic takes nothing any more.
    broker.admin("POST", retry.replace("://", "/") + "/terminate")
    publish(api, client, name, [b"x"])
    eventually(lambda: push_consumer.stats().succeeded == 1)
    assert recorder.seen == [b"x"] * 3 and push_consumer.stats().sent_back == 0
    eventually(lambda: backlog(stats, name) == 0)


@pytest.mark.proves("C219")
def test_a_dead_letter_that_is_refused_gets_another_try(
    api: Api, client: Any, broker: Broker, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name, dead = topic(), topic("dead")
    client.create_producer(dead).close()
    broker.admin("POST", dead.replace("://", "/") + "/terminate")
    recorder = Recorder(lambda messages, _: SUCCESS if tries_of(messages[0]) else LATER)
    push_consumer = consume(client, name, recorder, max_reconsume_times=0, dead_letter_topic=dead, delay_levels_ms=[0])
    publish(api, client, name, [b"x"])
    eventually(lambda: push_consumer.stats().succeeded == 1)
    assert recorder.seen == [b"x", b"x"] and push_consumer.stats().sent_back == 1


@pytest.mark.proves("C222", "N6")
def test_a_handler_that_hangs_loses_its_message_to_another_member(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    hanging, healthy = Gate(), Recorder()
    options: dict[str, Any] = {"consumer_group": GROUP, "delay_levels_ms": [0]}
    stuck = consume(
        client, name, hanging, instance_name="hangs", consume_thread_max=1, consume_timeout_minutes=0.5 / 60, **options
    )
    publish(api, client, name, [b"x"])
    eventually(lambda: hanging.recorder.seen == [b"x"])
    consume(client, name, healthy, instance_name="healthy", **options)
    # The member that hangs may get it again: it is one of the group.
    eventually(lambda: stuck.stats().sent_back >= 1)
    eventually(lambda: healthy.seen == [b"x"] or stuck.stats().unfinished == 1)
    if not healthy.seen:
        stuck.shutdown(0)
        eventually(lambda: healthy.seen == [b"x"])
    hanging.opened.set()
    eventually(lambda: backlog(stats, name) == 0)


# --- orderly ----------------------------------------------------------------------------------------------------------


class InOrder:
    """A handler that fails at first at chosen messages, and notes per key what it was given and who ran at a time."""

    def __init__(self, fails: dict[bytes, int]) -> None:
        self._fails = dict(fails)
        self._lock = threading.Lock()
        self._running: set[str | None] = set()
        self.overlaps = 0
        self.seen: defaultdict[str | None, list[bytes]] = defaultdict(list)
        self.attempts: list[tuple[bytes, int]] = []

    def __call__(self, messages: list[Message], context: Any) -> Any:
        (message,) = messages
        with self._lock:
            self.overlaps += context.key in self._running
            self._running.add(context.key)
            left = self._fails.get(message.data(), 0)
            self._fails[message.data()] = left - 1
            self.seen[context.key].append(message.data())
            if left > 0 or context.attempts:
                self.attempts.append((message.data(), context.attempts))
        time.sleep(0.002)
        with self._lock:
            self._running.discard(context.key)
        return SUSPEND if left > 0 else IN_ORDER


@pytest.mark.proves("C216", "C217", "N6")
def test_a_key_that_fails_is_suspended_and_keeps_its_order_while_others_go_on(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    handler = InOrder({b"a1": 3})
    push_consumer = consume(
        client, name, handler, orderly=True, consumer_group=GROUP, suspend_current_queue_time_millis=1000
    )
    assert stats(name)["subscriptions"][GROUP]["type"] == "Key_Shared"
    keyed(api, client, name, "abc", 8)
    eventually(lambda: len(handler.seen["b"]) == len(handler.seen["c"]) == 8)
    # While a rests at its second message.
    assert handler.seen["a"][:2] == [b"a0", b"a1"] and b"a2" not in handler.seen["a"]
    eventually(lambda: push_consumer.stats().succeeded == 24)
    assert handler.seen["a"] == [b"a0", *[b"a1"] * 4, *numbered(8, "a")[2:]]
    assert handler.seen["b"] == numbered(8, "b") and handler.seen["c"] == numbered(8, "c")
    assert handler.attempts == [(b"a1", 0), (b"a1", 1), (b"a1", 2), (b"a1", 3)] and handler.overlaps == 0
    eventually(lambda: backlog(stats, name) == 0)


@pytest.mark.proves("C217")
def test_the_time_of_a_suspension_is_the_handlers_within_bounds(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    def answer(_messages: list[Message], context: Any) -> Any:
        times.append(time.monotonic())
        assert context.suspend_current_queue_time_millis == 30_000
        # Below the smallest: ten milliseconds.
        context.suspend_current_queue_time_millis = {1: 800, 2: 0}.get(len(times), 0)
        return None if len(times) < 3 else IN_ORDER

    times: list[float] = []
    name = topic()
    publish(api, client, name, [b"x"])
    push_consumer = consume(client, name, answer, orderly=True, suspend_current_queue_time_millis=30_000)
    eventually(lambda: push_consumer.stats().succeeded == 1)
    assert len(times) == 3 and times[1] - times[0] >= 0.8 and times[2] - times[1] >= 0.01


@pytest.mark.proves("C217")
def test_without_auto_commit_nothing_is_done_before_it_is_committed(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats
) -> None:
    answers = iter([IN_ORDER, IN_ORDER, ROLLBACK, IN_ORDER, IN_ORDER, COMMIT, IN_ORDER])

    def answer(_messages: list[Message], context: Any) -> Any:
        context.auto_commit = False
        return next(answers)

    name = topic()
    publish(api, client, name, numbered(4))
    recorder = Recorder(answer)
    options: dict[str, Any] = {"consumer_group": GROUP, "orderly": True, "suspend_current_queue_time_millis": 10}
    push_consumer = consume(client, name, recorder, **options)
    eventually(lambda: len(recorder.seen) == 7)
    # Rolled back after three; committed at the third of the second time; the fourth never was.
    assert recorder.seen == [b"0", b"1", b"2", b"0", b"1", b"2", b"3"]
    eventually(lambda: push_consumer.stats().succeeded == 3)
    eventually(lambda: backlog(stats, name) == 1)
    assert push_consumer.shutdown(0).unfinished == 1
    again = Recorder(IN_ORDER)
    consume(client, name, again, **options)
    eventually(lambda: again.seen == [b"3"])


@pytest.mark.proves("C217", "C221", "N6")
def test_an_orderly_message_that_fails_too_often_makes_way(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats, read_all: ReadAll
) -> None:
    name = topic(partitions=2)
    handler = InOrder({b"a1": 100})
    push_consumer = consume(
        client, name, handler, orderly=True, consumer_group=GROUP, max_reconsume_times=2,
        suspend_current_queue_time_millis=10,
    )  # fmt: skip
    keyed(api, client, name, "ab", 4)
    eventually(lambda: push_consumer.stats().dead_letters == 1)
    eventually(lambda: push_consumer.stats().succeeded == 7)
    assert handler.seen["a"] == [b"a0", b"a1", b"a1", b"a1", b"a2", b"a3"]
    (letter,) = read_all(f"{name}-{GROUP}-DLQ")
    assert letter.data() == b"a1"
    for partition in (0, 1):
        eventually(lambda partition=partition: backlog(stats, f"{name}-partition-{partition}") == 0)


@pytest.mark.proves("C216")
def test_a_partition_has_one_member_and_its_successor_goes_on_in_order(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, stats: Stats
) -> None:
    name = topic()
    options: dict[str, Any] = {
        "consumer_group": GROUP, "orderly": True, "consume_order": ConsumeOrder.PARTITION,
        "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
    }  # fmt: skip
    publish(api, client, name, numbered(20))
    gate = Gate(lambda content: content == b"5", answer=IN_ORDER)
    first = consume(client, name, gate, instance_name="1", **options)
    eventually(lambda: len(gate.recorder.seen) == 6)
    second = Recorder(IN_ORDER)
    consume(client, name, second, instance_name="2", **options)
    assert stats(name)["subscriptions"][GROUP]["type"] == "Failover"
    time.sleep(0.3)
    assert not second.seen and gate.recorder.seen == numbered(6)
    first.shutdown(0)
    gate.opened.set()
    eventually(lambda: len(second.seen) == 15)
    # From the one that was not done on, in order.
    assert second.seen == numbered(20)[5:]
    time.sleep(0.2)
    assert gate.recorder.seen == numbered(6)


@pytest.mark.proves("C216")
def test_what_waits_goes_with_the_right_to_its_partition(
    api: Api, client: Any, broker: Broker, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, numbered(10))
    gate = Gate(lambda content: content == b"2", answer=IN_ORDER)
    push_consumer = consume(
        client, name, gate, orderly=True, consume_order=ConsumeOrder.PARTITION, consumer_group=GROUP
    )
    eventually(lambda: push_consumer.stats().unfinished == 8)
    # The broker gives everything anew; what waited here is not handled twice.
    broker.admin("PUT", name.replace("://", "/") + "/unload")
    eventually(lambda: push_consumer.stats().duplicates >= 1)
    gate.opened.set()
    eventually(lambda: push_consumer.stats().succeeded >= 10 and not push_consumer.stats().unfinished)
    # The first two may come again: an unloading broker may lose what it was told a moment ago.
    seen = gate.recorder.seen
    assert list(dict.fromkeys(seen)) == numbered(10)
    assert all(seen.count(content) == 1 for content in numbered(10)[2:])


def test_orderly_consuming_works_in_broadcasting(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually, tmp_path: Any
) -> None:
    name = topic()
    handler = InOrder({b"a1": 100, b"b2": 1})
    push_consumer = consume(
        client, name, handler, orderly=True, max_reconsume_times=1, suspend_current_queue_time_millis=10,
        message_model=MessageModel.BROADCASTING, offset_store_folder=str(tmp_path),
    )  # fmt: skip
    keyed(api, client, name, "ab", 4)
    # Messages come one by one: for a moment there may be none unfinished in between.
    eventually(lambda: sum(map(len, handler.seen.values())) == 10)
    eventually(lambda: push_consumer.stats().unfinished == 0 and push_consumer.stats().dropped == 1)
    assert handler.seen["a"] == [b"a0", b"a1", b"a1", b"a2", b"a3"]
    assert handler.seen["b"] == [b"b0", b"b1", b"b2", b"b2", b"b3"]


def test_a_handler_may_shut_its_push_consumer_down(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    reports: list[Any] = []
    name = topic()

    def answer(_messages: list[Message], _context: Any) -> Any:
        reports.append(push_consumer.shutdown(200))
        return SUCCESS

    push_consumer = consume(client, name, answer)
    publish(api, client, name, [b"x"])
    eventually(lambda: len(reports) == 1)
    assert reports[0].unfinished == 1 and push_consumer.state.name == "SHUTDOWN_ALREADY"


@pytest.mark.proves("C219")
def test_the_ordinary_consumer_reads_what_a_push_consumer_puts_back(
    api: Api, client: Any, topic: NewTopic, consume: Started, eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, [b"x"])
    push_consumer = consume(
        client, name, Recorder(LATER), consumer_group=GROUP, delay_levels_ms=[0], max_reconsume_times=3
    )
    eventually(lambda: push_consumer.stats().sent_back >= 1)
    push_consumer.shutdown(5000)
    # The names and properties of the retry topic are those of `enable_retry`.
    consumer = client.subscribe(
        name, GROUP, ConsumerType.Shared, initial_position=InitialPosition.Earliest, enable_retry=True
    )
    message = consumer.receive(15_000)
    assert message.topic_name() == f"{name}-{GROUP}-RETRY" and tries_of(message) >= 1
    assert message.properties()["REAL_TOPIC"] == name
