"""Client of the asyncio API on a fake broker: belongs to one loop, starts no thread, ends once."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Coroutine

import pytest

from pulsar_native import CloseReport, MessageId
from pulsar_native.asyncio import Client
from pulsar_native.exceptions import AlreadyClosed, InvalidConfiguration, OperationNotSupported
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker, swallow
from support.until import until


async def test_client_connects_on_first_use_without_thread(fake: FakeBroker) -> None:
    async with Client(fake.url) as client:
        await asyncio.sleep(0)
        assert not fake.peers
        await client.get_topic_partitions("t")
        assert len(fake.peers) == 1
        assert all(thread.name != "pulsar-native-engine" for thread in threading.enumerate())
    assert fake.peers[0].gone.wait(10)


async def test_client_of_another_loop_refused(fake: FakeBroker, client: Client) -> None:
    await client.get_topic_partitions("t")

    def elsewhere() -> None:
        asyncio.run(client.get_topic_partitions("t"))

    with pytest.raises(OperationNotSupported, match="one for each loop"):
        await asyncio.to_thread(elsewhere)


async def test_producer_on_another_loop_sends_nothing(fake: FakeBroker, client: Client) -> None:
    """The call would queue a message, and fail with the error of a future it cannot wait for."""
    producer = await client.create_producer("t")
    for method, *arguments in (
        (producer.send, b"m"),
        (producer.enqueue, b"m"),
        (producer.send_many, [b"m"]),
        (producer.flush,),
        (producer.close,),
    ):
        with pytest.raises(OperationNotSupported, match="another event loop"):
            await asyncio.to_thread(asyncio.run, called(method, *arguments))
    assert producer.is_connected()
    await producer.flush()
    assert not fake.seen(Kind.SEND)


async def test_consumer_on_another_loop_stays_as_it_is(fake: FakeBroker, client: Client) -> None:
    consumer = await client.subscribe("t", "s")
    for method, *arguments in ((consumer.seek, MessageId.earliest), (consumer.close,)):
        with pytest.raises(OperationNotSupported, match="another event loop"):
            await asyncio.to_thread(asyncio.run, called(method, *arguments))
    assert consumer.is_connected() and not fake.seen(Kind.SEEK)


async def called(method: Callable[..., Awaitable[object]], *arguments: object) -> None:
    """Call a method of the asyncio API in the running loop."""
    await method(*arguments)


async def test_client_close_on_another_loop_refused(fake: FakeBroker) -> None:
    client = Client(fake.url)
    producer = await client.create_producer("t", batching_max_publish_delay_ms=60_000)
    sent = await producer.enqueue(b"waits for its batch")

    def elsewhere() -> None:
        asyncio.run(client.close())

    with pytest.raises(OperationNotSupported, match="one for each loop"):
        await asyncio.to_thread(elsewhere)
    report = await client.close()
    assert [each.sent for each in report.producers] == [1] and (await sent).entry_id() == 0


def test_client_outside_of_a_loop_refused(fake: FakeBroker) -> None:
    coroutine = Client(fake.url).get_topic_partitions("t")
    with pytest.raises(RuntimeError, match="no running event loop"):
        coroutine.send(None)


async def test_client_closed_refuses_everything(fake: FakeBroker) -> None:
    client = Client(fake.url)
    producer = await client.create_producer("t")
    await client.close()
    for call in (
        client.close,
        lambda: client.create_producer("t"),
        lambda: client.subscribe("t", "s"),
        lambda: client.get_topic_partitions("t"),
        lambda: producer.send(b"x"),
        producer.close,
    ):
        with pytest.raises(AlreadyClosed):
            await call()  # type: ignore[operator]


@pytest.mark.parametrize(
    "begin",
    [
        lambda client: client.create_producer("t"),
        lambda client: client.subscribe("t", "s"),
        lambda client: client.create_reader("t", MessageId.earliest),
        lambda client: client.create_table_view("t"),
        lambda client: client.get_topic_partitions("t"),
        lambda client: client.new_transaction(),
    ],
    ids=["producer", "consumer", "reader", "table_view", "partitions", "transaction"],
)
async def test_client_close_ends_calls_in_progress(
    fake: FakeBroker, begin: Callable[[Client], Coroutine[None, None, object]]
) -> None:
    fake.answers[Kind.CONNECT] = swallow
    client = Client(fake.url)
    call = asyncio.create_task(begin(client))
    await asyncio.to_thread(fake.wait, Kind.CONNECT)
    await client.close()
    with pytest.raises(AlreadyClosed):
        await call


async def test_client_close_reports_its_parts(fake: FakeBroker) -> None:
    client = Client(fake.url)
    producer = await client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    sent = await producer.enqueue(b"waits for its batch")
    await client.subscribe("other", "s")
    report = await client.close()
    assert [each.sent for each in report.producers] == [1] and (await sent).entry_id() == 0
    assert [each.topic for each in report.consumers] == ["persistent://public/default/other"]


async def test_client_shutdown_sends_no_closing_command(fake: FakeBroker) -> None:
    fake.answers[Kind.SEND] = swallow
    client = Client(fake.url)
    sent = await (await client.create_producer("t")).enqueue(b"x")
    client.shutdown()
    with pytest.raises(AlreadyClosed):
        await asyncio.wait_for(sent, 10)
    assert await asyncio.to_thread(fake.peers[0].gone.wait, 10) and not fake.seen(Kind.CLOSE_PRODUCER)
    client.shutdown()
    assert await client.close() == CloseReport()


async def test_client_collected_closes_its_connection(fake: FakeBroker) -> None:
    client = Client(fake.url)
    await client.get_topic_partitions("t")
    del client
    gc.collect()
    await until(fake.peers[0].gone.is_set)


async def test_client_kept_by_its_producer(fake: FakeBroker) -> None:
    producer = await Client(fake.url).create_producer("t")
    gc.collect()
    await producer.send(b"x")
    await producer._client.close()  # type: ignore[attr-defined]


async def test_client_of_config_connects_alike(fake: FakeBroker) -> None:
    first = Client(fake.url, operation_timeout_seconds=7, listener_name="inside")
    async with first, Client.from_config(first.config) as second:
        assert second.config == first.config
        await second.create_producer("t")
    assert fake.seen(Kind.LOOKUP)[0].command.lookupTopic.advertised_listener_name == "inside"


def test_client_option_of_wrong_name_or_value_refused() -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        Client("pulsar://127.0.0.1:1", no_such_option=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidConfiguration, match="operation_timeout_seconds"):
        Client("pulsar://127.0.0.1:1", operation_timeout_seconds=-1)
