"""Executors of message listeners on a real broker: threads, order, rejections, pauses and closes."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pulsar_native import Client, InitialPosition, InvalidConfiguration, Message
from support.brokers import Broker, NewTopic

Eventually = Callable[..., Any]

EARLIEST = InitialPosition.Earliest

pytestmark = pytest.mark.proves("C98")


class ByKey:
    """An executor with a thread for each of some keys, as an application would write it."""

    def __init__(self, count: int) -> None:
        self.pools = [ThreadPoolExecutor(1, thread_name_prefix=f"by-key-{number}") for number in range(count)]

    def execute(self, message: Message, runnable: Callable[[], None]) -> None:
        self.pools[int(message.partition_key() or 0) % len(self.pools)].submit(runnable)

    def close(self) -> None:
        for pool in self.pools:
            pool.shutdown()


class Kept:
    """An executor whose calls the test runs."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def execute(self, _message: Message, runnable: Callable[[], None]) -> None:
        self.calls.put(runnable)

    def run(self, count: int) -> None:
        for _ in range(count):
            self.calls.get(timeout=10)()


def publish(client: Client, name: str, count: int, first: int = 0) -> None:
    producer = client.create_producer(name)
    for number in range(first, first + count):
        producer.send(b"%d" % number, partition_key=str(number % 3))
    producer.close()


def test_the_executor_decides_on_the_thread_of_each_call(
    plain_client: Client, topic: NewTopic, eventually: Eventually
) -> None:
    name, executor = topic(), ByKey(3)
    heard: dict[str, list[int]] = defaultdict(list)

    def listen(consumer: Any, message: Message) -> None:
        heard[threading.current_thread().name].append(int(message.data()))
        consumer.acknowledge(message)

    consumer = plain_client.subscribe(
        name,
        "sub",
        initial_position=EARLIEST,
        message_listener=listen,
        message_listener_executor=executor,
        receiver_queue_size=4,
    )
    publish(plain_client, name, 60)
    eventually(lambda: sum(map(len, heard.values())) == 60)
    assert heard == {f"by-key-{key}_0": list(range(key, 60, 3)) for key in range(3)}
    eventually(lambda: consumer.get_positions()[0][1] == consumer.get_last_message_id())
    consumer.close()
    executor.close()


@pytest.mark.parametrize("size", [0, 3])
def test_no_more_calls_are_outstanding_than_the_queue_holds(
    plain_client: Client, topic: NewTopic, eventually: Eventually, size: int
) -> None:
    name, executor, heard = topic(), Kept(), list[bytes]()
    plain_client.subscribe(
        name,
        "sub",
        initial_position=EARLIEST,
        message_listener=lambda _consumer, message: heard.append(message.data()),
        message_listener_executor=executor,
        receiver_queue_size=size,
    )
    publish(plain_client, name, 10)
    eventually(lambda: executor.calls.qsize() == max(1, size))
    executor.run(10)
    assert heard == [b"%d" % number for number in range(10)]


def test_a_rejected_message_counts_as_failed(
    plain_client: Client, topic: NewTopic, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    name, heard, rejected = topic(), list[bytes](), list[bytes]()

    class Rejects:
        def execute(self, message: Message, runnable: Callable[[], None]) -> None:
            if message.data() == b"1" and not rejected:
                rejected.append(message.data())
                raise RuntimeError("no thread is left")
            runnable()

    def listen(consumer: Any, message: Message) -> None:
        heard.append(message.data())
        consumer.acknowledge(message)

    consumer = plain_client.subscribe(
        name, "sub", initial_position=EARLIEST, message_listener=listen, message_listener_executor=Rejects()
    )
    publish(plain_client, name, 3)
    eventually(lambda: heard == [b"0", b"2"])
    assert f"The message listener executor of consumer {consumer.consumer_name()} of {name} failed" in caplog.text
    consumer.redeliver_unacknowledged_messages()
    eventually(lambda: heard == [b"0", b"2", b"1"])


@pytest.mark.parametrize("how", ["strict", "listener"])
def test_a_call_that_is_outstanding_in_a_pause_is_made_after_it(
    plain_client: Client, topic: NewTopic, eventually: Eventually, how: str
) -> None:
    name, executor, heard = topic(), Kept(), list[bytes]()
    consumer = plain_client.subscribe(
        name,
        "sub",
        initial_position=EARLIEST,
        message_listener=lambda _consumer, message: heard.append(message.data()),
        message_listener_executor=executor,
        receiver_queue_size=4,
    )
    publish(plain_client, name, 6)
    eventually(lambda: executor.calls.qsize() == 4)
    executor.run(1)
    if how == "strict":
        consumer.pause(strict=True)
    else:
        consumer.pause_message_listener()
    # Whatever the order in which they find that they may not begin.
    calls = [executor.calls.get(timeout=10) for _ in range(3)]
    for call in reversed(calls):
        call()
    assert heard == [b"0"]
    if how == "strict":
        consumer.resume()
    else:
        consumer.resume_message_listener()
    executor.run(5)
    assert heard == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("what", ["consumer", "client"])
def test_a_close_waits_for_running_calls_only(
    broker: Broker, topic: NewTopic, eventually: Eventually, what: str
) -> None:
    name, executor, heard = topic(), Kept(), list[bytes]()
    began, gate = threading.Event(), threading.Event()

    def listen(consumer: Any, message: Message) -> None:
        began.set()
        gate.wait(20)
        consumer.acknowledge(message)
        heard.append(message.data())

    client = Client(broker.service_url)
    publish(client, name, 3)
    consumer = client.subscribe(
        name, "sub", initial_position=EARLIEST, message_listener=listen, message_listener_executor=executor
    )
    eventually(lambda: executor.calls.qsize() == 3)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(executor.run, 1)
        assert began.wait(10)
        closing = pool.submit(consumer.close if what == "consumer" else client.close)
        eventually(lambda: consumer._is_closing or not client._listeners.is_open)
        assert not closing.done()
        gate.set()
        closing.result(20)
        running.result(20)
    executor.run(2)
    assert heard == [b"0"]
    if what == "consumer":
        client.close()
    with Client(broker.service_url) as other:
        assert other.subscribe(name, "sub").receive(10_000).data() == b"1"


class NoMethod:
    """Not an executor."""


class Coroutine:
    """An executor that would have to be awaited."""

    async def execute(self, _message: Message, _runnable: Callable[[], None]) -> None: ...


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"message_listener_executor": Kept()}, "needs a message_listener"),
        ({"message_listener": print, "message_listener_executor": NoMethod()}, "execute must be a function"),
        ({"message_listener": print, "message_listener_executor": Coroutine()}, "execute must be a plain function"),
    ],
)
def test_an_executor_that_cannot_be_used_is_refused(options: dict[str, Any], said: str) -> None:
    with Client("pulsar://127.0.0.1:1") as client, pytest.raises(InvalidConfiguration, match=said):
        client.subscribe("t", "sub", **options)
