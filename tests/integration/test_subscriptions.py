"""Subscriptions: types, positions, permits, receiving one or many, listeners, on a real broker."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pulsar_native import (
    BatchReceivePolicy,
    Client,
    ConsumerBatchReceivePolicy,
    ConsumerBusy,
    ConsumerDeadLetterPolicy,
    ConsumerInterceptor,
    ConsumerType,
    InitialPosition,
    InvalidConfiguration,
    Message,
    MessageId,
    PulsarException,
    Timeout,
)
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.publishing import publish_groups
from support.raw import commands_of
from support.relay import TO_BROKER, Command, NewRelay

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest


def drain(consumer: Any, wait_ms: int = 400, least: int = 0) -> list[Message]:
    """Receive until nothing comes any more, but so many messages at least."""
    messages: list[Message] = []
    try:
        while True:
            messages.append(consumer.receive(wait_ms if len(messages) >= least else 10_000))
    except Timeout:
        return messages


def publish(api: Api, client: Any, name: str, contents: list[bytes], **message: Any) -> list[MessageId]:
    """Publish one entry for each content."""
    producer = client.create_producer(name, batching_enabled=False)
    ids = api.send_all(producer, contents, **message)
    producer.close()
    return ids


@pytest.mark.proves("C89")
@pytest.mark.parametrize("nothing", ["", " ", None])
def test_a_subscription_needs_a_name(api: Api, nothing: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="subscription_name"):
        api.client("pulsar://127.0.0.1:1").subscribe("topic", nothing)


def test_topics_are_checked_before_any_attempt_to_connect(api: Api) -> None:
    client = api.client("pulsar://127.0.0.1:1")
    for wrong in ([], ["good", 5], None, "a/b", ["good", "http://not/a/topic"]):
        with pytest.raises(PulsarException) as caught:
            client.subscribe(wrong, "sub")
        assert not caught.value.retryable


@pytest.mark.proves("C90")
class TestTypes:
    """Two consumers on one subscription, of each type."""

    def test_exclusive(self, api: Api, client: Any, broker: Broker, topic: NewTopic) -> None:
        name = topic()
        first = client.subscribe(name, "sub", ConsumerType.Exclusive)
        started = time.monotonic()
        for other in (client, api.client(broker.service_url)):
            with pytest.raises(ConsumerBusy):
                other.subscribe(name, "sub", ConsumerType.Exclusive)
        assert time.monotonic() - started < 5
        publish(api, client, name, [b"1", b"2"])
        assert [message.data() for message in drain(first, least=2)] == [b"1", b"2"]
        with pytest.raises(ConsumerBusy):
            client.subscribe(name, "sub", ConsumerType.Shared)

    def test_failover(self, api: Api, client: Any, topic: NewTopic) -> None:
        name = topic()
        both = [client.subscribe(name, "sub", ConsumerType.Failover, initial_position=EARLIEST) for _ in range(2)]
        publish(api, client, name, [b"%d" % number for number in range(10)])
        # The broker chooses who is active, and takes its time.
        shares: dict[Any, list[Message]] = {consumer: [] for consumer in both}
        deadline = time.monotonic() + 15
        while not any(shares.values()) and time.monotonic() < deadline:
            shares = {consumer: drain(consumer, 100) for consumer in both}
        active, standby = sorted(both, key=lambda consumer: -len(shares[consumer]))
        received = shares[active]
        assert len(received) == 10 and shares[standby] == []
        for message in received[:4]:
            active.acknowledge(message)
        active.close()
        # After the second that the hand-over takes; what was delivered before may wait for a new message:
        # broker-behaviour.md#failover-stall.
        time.sleep(1.5)
        publish(api, client, name, [b"10"])
        assert [standby.receive(10_000).data() for _ in range(7)] == [b"%d" % number for number in range(4, 11)]

    def test_shared(self, api: Api, client: Any, topic: NewTopic) -> None:
        name = topic()
        consumers = [client.subscribe(name, "sub", ConsumerType.Shared, receiver_queue_size=5) for _ in range(2)]
        publish(api, client, name, [b"%d" % number for number in range(20)])
        shares = [drain(consumer, least=1) for consumer in consumers]
        assert all(shares)
        assert sorted(int(m.data()) for share in shares for m in share) == list(range(20))

    def test_key_shared(self, api: Api, client: Any, topic: NewTopic) -> None:
        name = topic()
        consumers = [client.subscribe(name, "sub", ConsumerType.KeyShared) for _ in range(2)]
        producer = client.create_producer(name, batching_enabled=False)
        for number in range(60):
            api.send_all(producer, [b"%d" % number], partition_key=f"key{number % 20}")
        shares = [drain(consumer, least=1) for consumer in consumers]
        keys = [{message.partition_key() for message in share} for share in shares]
        assert all(keys) and not keys[0] & keys[1] and len(keys[0] | keys[1]) == 20
        by_key: dict[str, list[int]] = defaultdict(list)
        for share in shares:
            for message in share:
                by_key[message.partition_key()].append(int(message.data()))
        assert all(numbers == sorted(numbers) and len(numbers) == 3 for numbers in by_key.values())


@pytest.mark.proves("C37")
def test_errors_no_waiting_mends_come_at_once(client: Any, topic: NewTopic) -> None:
    name = topic()
    client.subscribe(name, "sub")
    for attempt in (
        lambda: client.subscribe(name, "sub"),
        lambda: client.subscribe(name, "sub", ConsumerType.Shared),
        lambda: client.create_producer(topic("part", partitions=2) + "-partition-7"),
    ):
        started = time.monotonic()
        with pytest.raises(PulsarException) as caught:
            attempt()
        assert time.monotonic() - started < 3 and not caught.value.retryable


@pytest.mark.proves("C91")
def test_durable_subscriptions_stay_and_others_leave_nothing(
    api: Api, client: Any, broker: Broker, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    path = name.replace("://", "/")
    publish(api, client, name, [b"%d" % number for number in range(6)])

    def cursors() -> list[str]:
        found: Any = broker.admin("GET", f"{path}/internalStats")
        return [each for each in found["cursors"] if not each.startswith("reader-")]

    durable = client.subscribe(name, "durable", initial_position=EARLIEST)
    for _ in range(3):
        durable.acknowledge(durable.receive(10_000))
    durable.close()
    assert cursors() == ["durable"]
    assert client.subscribe(name, "durable").receive(10_000).data() == b"3"
    # A reader's subscription is the one without a cursor; it goes on by itself after an unload.
    reader = client.create_reader(name, MessageId.earliest, subscription_role_prefix="mine")
    assert [reader.read_next(10_000).data() for _ in range(3)] == [b"0", b"1", b"2"]
    broker.admin("PUT", f"{path}/unload")
    assert [reader.read_next(10_000).data() for _ in range(3)] == [b"3", b"4", b"5"]
    reader.close()
    eventually(lambda: cursors() == ["durable"])


@pytest.mark.proves("C92")
def test_where_a_new_subscription_begins(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    publish(api, client, name, [b"before"])
    early = client.subscribe(name, "early", initial_position=EARLIEST)
    late = client.subscribe(name, "late", initial_position=InitialPosition.Latest)
    plain = client.subscribe(name, "plain")
    publish(api, client, name, [b"after"])
    assert [message.data() for message in drain(early, least=2)] == [b"before", b"after"]
    assert [[m.data() for m in drain(consumer, 200, least=1)] for consumer in (late, plain)] == [[b"after"]] * 2
    # The position of one that exists already is not touched.
    late.close()
    assert client.subscribe(name, "late", initial_position=EARLIEST).receive(10_000).data() == b"after"


@pytest.mark.proves("C99", "C104")
def test_names_and_properties_are_in_the_statistics(client: Any, topic: NewTopic, stats: Stats) -> None:
    name = topic()
    named = client.subscribe(name, "sub", ConsumerType.Shared, consumer_name="me", properties={"team": "flights"})
    chance = [client.subscribe(name, "sub", ConsumerType.Shared) for _ in range(2)]
    found = {each["consumerName"]: each["metadata"] for each in stats(name)["subscriptions"]["sub"]["consumers"]}
    assert named.consumer_name() == "me" and found["me"] == {"team": "flights"}
    names = {consumer.consumer_name() for consumer in chance}
    assert len(names) == 2 and all(names) and set(found) == names | {"me"}
    assert named.subscription_name() == "sub" and named.topic() == name


@pytest.mark.proves("C120")
def test_permits_go_back_by_half_queues(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic()
    through = relay(broker.service_url)
    publish(api, client, name, [b"x"] * 40)
    batching = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for _ in range(16):
        api.send_all(batching, [b"y"] * 10)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", receiver_queue_size=100, initial_position=EARLIEST
    )
    for _ in range(200):
        consumer.receive(10_000)
    through.wait_for(Command.FLOW, 5)
    granted = [each.flow.messagePermits for each in commands_of(through, Command.FLOW)]
    assert granted == [100, 50, 50, 50, 50]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_small_queues_never_run_dry(api: Api, client: Any, topic: NewTopic, size: int) -> None:
    name = topic()
    publish(api, client, name, [b"%d" % number for number in range(10)])
    batching = client.create_producer(name, batching_enabled=True)
    api.send_all(batching, [b"%d" % number for number in range(10, 30)])
    consumer = client.subscribe(name, "sub", receiver_queue_size=size, initial_position=EARLIEST)
    assert [int(consumer.receive(10_000).data()) for _ in range(30)] == list(range(30))


@pytest.mark.proves("C121")
def test_messages_of_an_old_connection_give_no_permits(
    api: Api, client: Any, broker: Broker, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic()
    publish(api, client, name, [b"%d" % number for number in range(120)])
    consumer = client.subscribe(name, "sub", receiver_queue_size=20, initial_position=EARLIEST)

    def permits() -> int:
        consumers = stats(name)["subscriptions"]["sub"]["consumers"]
        return int(consumers[0]["availablePermits"]) if consumers else -1

    seen: list[int] = []
    for round_ in range(1, 4):
        for _ in range(40):
            if len(seen) == 10 * round_:
                break
            message = consumer.receive(10_000)
            # An unloading broker may lose a cursor position told but not yet written: what comes twice is no gap.
            if int(message.data()) not in seen:
                seen.append(int(message.data()))
            consumer.acknowledge(message)
        assert seen == list(range(10 * round_))
        # Let the acknowledgements arrive: what is not acknowledged would rightly come again.
        backlog = 120 - 10 * round_
        eventually(lambda backlog=backlog: stats(name)["subscriptions"]["sub"]["msgBacklog"] == backlog)
        broker.admin("PUT", name.replace("://", "/") + "/unload")
        eventually(lambda: permits() >= 0)
        assert permits() <= 20
    rest = [int(message.data()) for message in drain(consumer, 1000, least=90)]
    assert [number for number in rest if number not in seen] == list(range(30, 120))
    assert 0 <= permits() <= 20


@pytest.mark.proves("C122")
class TestReceive:
    """Waiting for messages."""

    def test_it_waits_and_times_out(self, api: Api, client: Any, topic: NewTopic) -> None:
        name = topic()
        consumer = client.subscribe(name, "sub")
        started = time.monotonic()
        with pytest.raises(Timeout, match="250 ms"):
            consumer.receive(250)
        assert 0.24 < time.monotonic() - started < 5
        with pytest.raises(Timeout):
            consumer.receive(0)
        waiting: Future[Message] = Future()
        thread = threading.Thread(target=lambda: waiting.set_result(consumer.receive()))
        thread.start()
        thread.join(0.2)
        assert not waiting.done()
        (place,) = publish(api, client, name, [b"here"])
        assert waiting.result(10).message_id() == place
        thread.join(10)

    def test_those_who_wait_are_served_in_their_order(
        self, api: Api, client: Any, topic: NewTopic, eventually: Eventually
    ) -> None:
        name = topic()
        consumer = client.subscribe(name, "sub")
        producer = client.create_producer(name, batching_enabled=False)
        inner = (consumer.target if api.name == "asyncio" else consumer)._inner
        with ThreadPoolExecutor(10) as pool:
            waiting = []
            for number in range(10):
                waiting.append(pool.submit(consumer.receive, 20_000))
                eventually(lambda number=number: len(inner._waiters) == number + 1)
            for number in range(10):
                producer.send(b"%d" % number)
            assert [int(future.result(20).data()) for future in waiting] == list(range(10))


@pytest.mark.proves("C117", "C133")
class TestBatchReceive:
    """Several messages at once."""

    @staticmethod
    def consumer(client: Any, name: str, policy: BatchReceivePolicy | None) -> Any:
        return client.subscribe(name, "sub", initial_position=EARLIEST, batch_receive_policy=policy)

    def test_by_count(self, api: Api, client: Any, topic: NewTopic) -> None:
        name = topic()
        publish(api, client, name, [b"%d" % number for number in range(100)])
        consumer = self.consumer(client, name, ConsumerBatchReceivePolicy(30, -1, 1000))
        batches = [consumer.batch_receive() for _ in range(4)]
        assert [len(batch) for batch in batches] == [30, 30, 30, 10]
        assert [int(m.data()) for batch in batches for m in batch] == list(range(100))

    def test_by_bytes(self, api: Api, client: Any, topic: NewTopic) -> None:
        name = topic()
        publish(api, client, name, [bytes(300)] * 8)
        consumer = self.consumer(client, name, ConsumerBatchReceivePolicy(-1, 1024, 1000))
        assert [len(consumer.batch_receive()) for _ in range(3)] == [3, 3, 2]

    @pytest.mark.parametrize("batched", [False, True])
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"receiver_queue_size": 1},
            {"unacked_messages_timeout_ms": 60_000},
            {"interceptors": [ConsumerInterceptor()]},
            {"consumer_type": ConsumerType.Shared, "dead_letter_policy": ConsumerDeadLetterPolicy(3)},
        ],
        ids=["default", "small queue", "ack timeout", "interceptors", "dead letters"],
    )
    def test_by_bytes_nothing_lost(
        self, api: Api, client: Any, topic: NewTopic, batched: bool, options: dict[str, Any]
    ) -> None:
        name = topic(partitions=2)
        contents = [b"%03d" % number + bytes(number * 7 % 23) for number in range(200)]
        for partition in range(2):
            producer = client.create_producer(
                f"{name}-partition-{partition}", batching_enabled=batched, batching_max_messages=30
            )
            api.send_all(producer, contents[partition::2])
        consumer = client.subscribe(
            name, "sub", initial_position=EARLIEST,
            batch_receive_policy=ConsumerBatchReceivePolicy(5, 60, 1000), **options,
        )  # fmt: skip
        seen: dict[str, list[int]] = {}
        while batch := consumer.batch_receive():
            assert len(batch) <= 5 and sum(len(message) for message in batch) <= 60
            for message in batch:
                seen.setdefault(message.topic_name(), []).append(int(message.data()[:3]))
            consumer.acknowledge(batch)
        assert sorted(number for own in seen.values() for number in own) == list(range(200))
        assert len(seen) == 2 and all(own == sorted(own) for own in seen.values())

    def test_by_time_with_nothing(self, client: Any, topic: NewTopic) -> None:
        consumer = self.consumer(client, topic(), ConsumerBatchReceivePolicy(30, 1024, 200))
        started = time.monotonic()
        assert consumer.batch_receive() == []
        assert 0.19 < time.monotonic() - started < 5

    def test_default_and_none(self, api: Api, client: Any, topic: NewTopic) -> None:
        name = topic()
        consumer = self.consumer(client, name, None)
        assert consumer.batch_receive() == []
        publish(api, client, name, [b"x"] * 3)
        received: list[Message] = []
        deadline = time.monotonic() + 10
        while len(received) < 3 and time.monotonic() < deadline:
            received += consumer.batch_receive()
        assert len(received) == 3
        consumer.acknowledge(received)
        with pytest.raises(InvalidConfiguration, match="at least one"):
            ConsumerBatchReceivePolicy(-1, -1, -1)


@pytest.mark.proves("C98")
def test_a_listener_that_raises_loses_nothing(
    plain_client: Client, topic: NewTopic, stats: Stats, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    heard: list[bytes] = []

    def listen(consumer: Any, message: Message) -> None:
        heard.append(message.data())
        if int(message.data()) % 2:
            raise RuntimeError("the application's fault")
        consumer.acknowledge(message)

    consumer = plain_client.subscribe(
        name, "sub", ConsumerType.Shared, message_listener=listen, initial_position=EARLIEST
    )
    for use in (consumer.receive, consumer.batch_receive):
        with pytest.raises(InvalidConfiguration, match="message_listener"):
            use()
    producer = plain_client.create_producer(name)
    for number in range(10):
        producer.send(b"%d" % number)
    eventually(lambda: len(heard) == 10)
    assert [int(each) for each in heard] == list(range(10))
    eventually(lambda: stats(name)["subscriptions"]["sub"]["unackedMessages"] == 5)
    consumer.close()
    again = plain_client.subscribe(name, "sub", ConsumerType.Shared)
    assert sorted(int(message.data()) for message in drain(again, least=5)) == [1, 3, 5, 7, 9]
    assert "the application's fault" in caplog.text


@pytest.mark.proves("C132")
def test_a_listener_hears_the_messages_of_entries_in_their_order(
    plain_client: Client, topic: NewTopic, eventually: Eventually
) -> None:
    """Two consumers on one listener thread and partitions beside: each keeps its order, on the listener's thread."""
    names = [topic("a"), topic("b"), topic("split", partitions=3)]
    heard: list[tuple[str, str, int]] = []

    def listen(_consumer: Any, message: Message) -> None:
        heard.append((threading.current_thread().name, message.topic_name(), int(message.data())))

    consumers = [plain_client.subscribe(name, "sub", message_listener=listen) for name in names]
    parts = [*names[:2], *(f"{names[2]}-partition-{index}" for index in range(3))]
    for part in parts:
        publish_groups(
            plain_client, part, *([b"%d" % n for n in range(first, first + 25)] for first in (0, 25, 50, 75))
        )
    eventually(lambda: len(heard) == 100 * len(parts))
    for part in parts:
        assert [number for _, name, number in heard if name == part] == list(range(100))
    assert {thread for thread, _, _ in heard} == {"pulsar-native-listener-0"}
    for consumer in consumers:
        consumer.close()


@pytest.mark.proves("C127")
@pytest.mark.parametrize("batching", [True, False])
def test_the_brokers_time_and_index_are_there(api: Api, client: Any, topic: NewTopic, batching: bool) -> None:
    name = topic()
    consumer = client.subscribe(name, "sub")
    producer = client.create_producer(name, batching_enabled=batching, batching_max_publish_delay_ms=60_000)
    for count in (1, 5, 3):
        api.send_all(producer, [b"x"] * count)
    received = [consumer.receive(10_000) for _ in range(9)]
    assert [message.index() for message in received] == list(range(9))
    for message in received:
        assert abs(message.broker_publish_time() - message.publish_timestamp()) < 10_000
    fleeting = topic().replace("persistent", "non-persistent")
    consumer = client.subscribe(fleeting, "sub")
    publish(api, client, fleeting, [b"x"])
    message = consumer.receive(10_000)
    assert message.index() is None and message.broker_publish_time() is None


def test_one_message_is_never_given_to_two_threads(
    plain_client: Client, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    producer = plain_client.create_producer(name, batching_enabled=True, block_if_queue_full=True)
    consumer = plain_client.subscribe(name, "sub")
    taken: list[int] = []
    lock, all_came = threading.Lock(), threading.Event()

    def take() -> None:
        # When all have come, whoever finds nothing for a moment is done: one given twice comes until then.
        while (message := drain_one(consumer)) or not all_came.is_set():
            if message:
                with lock:
                    taken.append(int(message.data()))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(5000):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    try:
        eventually(lambda: len(taken) >= 5000)
    finally:
        all_came.set()
    for thread in threads:
        thread.join(30)
    assert sorted(taken) == list(range(5000))


def drain_one(consumer: Any) -> Message | None:
    """Receive one message, None when none comes for a moment."""
    try:
        return consumer.receive(500)  # type: ignore[no-any-return]
    except Timeout:
        return None


def test_frames_of_unknown_consumers_do_no_harm(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic()
    through = relay(broker.service_url)
    publish(api, client, name, [b"%d" % number for number in range(50)])
    own = api.client(through.service_url)
    # Messages are on their way when the consumer goes; the connection and its next consumer do not care.
    for _ in range(3):
        own.subscribe(name, "sub", initial_position=EARLIEST).close()
    assert own.subscribe(name, "sub").receive(10_000).data() == b"0"
    assert through.count(Command.SUBSCRIBE, TO_BROKER) == 4 and through.accepted <= 2
