"""After a fork: the parent's client raises at once in the child, which makes its own; the parent goes on undisturbed.

Every child ends with `os._exit` and tells its findings through a pipe, so that nothing of pytest runs twice.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pulsar_native.asyncio
from pulsar_native import AlreadyClosed, AuthenticationToken, Client, ClientConfig, InitialPosition, MessageId
from support.brokers import Broker, NewTopic
from support.processes import in_child

pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")

ReadAll = Callable[..., list[Any]]
LIMIT_SECONDS = 120.0


def refusals(*calls: Callable[[], Any]) -> float:
    """Call each, which must raise; return the seconds the slowest took."""
    slowest = 0.0
    for call in calls:
        started = time.monotonic()
        try:
            call()
        except AlreadyClosed as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError("no error")
        slowest = max(slowest, time.monotonic() - started)
    return slowest


@pytest.fixture
def parent(broker: Broker) -> Iterator[Client]:
    """Give the parent's client."""
    with Client(broker.service_url) as made:
        yield made


def connections(broker: Broker, name: str) -> tuple[Any, Any]:
    """Return the addresses from which the topic's producer and consumer are connected: new ones mean a reconnect."""
    stats: Any = broker.admin("GET", name.replace("://", "/") + "/stats")
    return (
        [each["address"] for each in stats["publishers"]],
        [each["address"] for each in stats["subscriptions"]["sub"]["consumers"]],
    )


@pytest.mark.proves("N1")
@pytest.mark.parametrize("state", ["idle", "receiving", "sending"])
def test_fork_in_every_state(broker: Broker, parent: Client, topic: NewTopic, state: str, read_all: ReadAll) -> None:
    name, own = topic(), topic("childs-own")
    producer = parent.create_producer(name, batching_enabled=True, block_if_queue_full=True)
    consumer = parent.subscribe(name, "sub", initial_position=InitialPosition.Earliest)
    reader = parent.create_reader(name, MessageId.earliest)
    producer.send(b"0")
    before = connections(broker, name)
    stop = threading.Event()
    sent, received = 1, 0

    def send() -> None:
        nonlocal sent
        while not stop.is_set():
            producer.send_async(b"%d" % sent, None)
            sent += 1

    def receive() -> None:
        nonlocal received
        while True:
            message = consumer.receive()
            consumer.acknowledge(message)
            received += 1
            if message.data() == b"end":
                return

    working = [
        threading.Thread(target=each, daemon=True)
        for each in ({"sending": send, "receiving": receive}.get(state),)
        if each
    ]
    for thread in working:
        thread.start()

    def child() -> dict[str, Any]:
        slowest = refusals(
            lambda: producer.send(b"no"),
            lambda: producer.send_async(b"no", None),
            producer.flush,
            lambda: consumer.receive(10_000),
            consumer.batch_receive,
            lambda: consumer.acknowledge(MessageId(-1, 1, 1)),
            lambda: consumer.seek(MessageId.earliest),
            lambda: reader.read_next(10_000),
            reader.has_message_available,
            lambda: parent.create_producer(name),
            lambda: parent.subscribe(name, "sub"),
            lambda: parent.get_topic_partitions(name),
            parent.close,
        )
        with Client.from_config(parent.config) as mine:
            place = mine.create_producer(own).send(b"from the child")
            got = mine.create_reader(own, MessageId.earliest).read_next(10_000).data().decode()
        return {"slowest": slowest, "got": got, "entry": place.entry_id()}

    found = [in_child(child) for _ in range(3)]
    assert all(each["slowest"] < 5 and each["got"] == "from the child" for each in found)
    assert [each["entry"] for each in found] == [0, 1, 2]
    stop.set()
    if state == "sending":
        working[0].join(10)
    producer.send(b"end")
    if state == "receiving":
        working[0].join(20)
        assert received == 2
    # The parent's connections are the same ones, and nothing of the children is in its topic.
    assert connections(broker, name) == before
    values = [message.data() for message in read_all(name)]
    assert values == [b"%d" % number for number in range(sent)] + [b"end"]


@pytest.mark.proves("N1")
def test_fork_inside_the_asyncio_api(broker: Broker, topic: NewTopic) -> None:
    name, own = topic(), topic("childs-own")

    async def work() -> None:
        async with pulsar_native.asyncio.Client(broker.service_url) as client:
            producer = await client.create_producer(name)
            await producer.send(b"before the fork")
            reader = await client.create_reader(name, MessageId.earliest)
            assert await reader.has_message_available()
            consumer = await client.subscribe(name, "sub")
            waiting = asyncio.ensure_future(consumer.receive())
            await asyncio.sleep(0)

            def child() -> dict[str, Any]:
                # The parent's loop runs on this thread's stack: the child leaves it alone and starts anew.
                asyncio._set_running_loop(None)

                def call(make: Callable[[], Any]) -> Callable[[], Any]:
                    async def body() -> Any:
                        return await make()

                    return lambda: asyncio.run(body())

                slowest = refusals(
                    call(lambda: producer.send(b"no")),
                    call(lambda: consumer.receive(10_000)),
                    call(reader.has_message_available),
                    call(lambda: client.create_producer(name)),
                    call(client.close),
                )

                async def mine() -> str:
                    async with pulsar_native.asyncio.Client.from_config(client.config) as fresh:
                        await (await fresh.create_producer(own)).send(b"from the child")
                        reader = await fresh.create_reader(own, MessageId.earliest)
                        return (await reader.read_next(10_000)).data().decode()

                return {"slowest": slowest, "got": asyncio.run(mine())}

            found = in_child(child)
            assert found["slowest"] < 5 and found["got"] == "from the child"
            await producer.send(b"after the fork")
            assert (await asyncio.wait_for(waiting, 10)).data() == b"after the fork"

    asyncio.run(work())


@pytest.mark.proves("N1")
def test_a_child_that_ends_says_no_goodbye(broker: Broker, parent: Client, topic: NewTopic) -> None:
    name = topic()
    producer, consumer = parent.create_producer(name), parent.subscribe(name, "sub")
    before = connections(broker, name)
    # An orderly end, with all its clean-up, in the child of a process pool.
    context = multiprocessing.get_context("fork")
    child = context.Process(target=time.sleep, args=(0,))
    child.start()
    child.join(LIMIT_SECONDS)
    assert child.exitcode == 0
    producer.send(b"here")
    assert consumer.receive(10_000).data() == b"here"
    assert connections(broker, name) == before


@pytest.mark.proves("N2")
def test_a_description_travels_and_its_secret_does_not(
    broker: Broker, topic: NewTopic, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "token"
    secret.write_text("very-secret")
    config = ClientConfig(
        service_url=broker.service_url,
        operation_timeout_seconds=7,
        authentication=AuthenticationToken.from_reference(f"file://{secret}"),
    )
    packed = pickle.dumps(config)
    assert b"very-secret" not in packed
    # Resolved where it is used, with what the reference holds there and then.
    secret.write_text("newer")
    unpacked = pickle.loads(packed)
    assert unpacked.operation_timeout_seconds == 7
    assert unpacked.authentication.auth_data() == b"newer"
    literal = ClientConfig(service_url=broker.service_url, authentication=AuthenticationToken("very-secret"))
    with pytest.raises(TypeError, match="reference") as caught:
        pickle.dumps(literal)
    assert "very-secret" not in str(caught.value) and "very-secret" not in repr(literal)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        plain = pickle.dumps(ClientConfig(service_url=broker.service_url))
        assert pool.apply_async(_publish_from, (plain, topic())).get(60) == 0


def _publish_from(packed: bytes, name: str) -> int:
    with Client.from_config(pickle.loads(packed)) as client:
        return client.create_producer(name).send(b"from another process").entry_id()


@pytest.mark.proves("N2")
def test_live_objects_refuse_to_travel(parent: Client, topic: NewTopic) -> None:
    name = topic()
    live = (
        parent,
        parent.create_producer(name),
        parent.subscribe(name, "sub"),
        parent.create_reader(name, MessageId.earliest),
        pulsar_native.asyncio.Client(parent.config.service_url),
    )
    for each in live:
        with pytest.raises(TypeError, match=r"client\.config"):
            pickle.dumps(each)
