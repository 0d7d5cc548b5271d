"""Push consumer of the asyncio API on a fake broker: tasks, their number, cancelled listeners."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pulsar_native
from pulsar_native import ConsumeConcurrentlyStatus, PushConsumerConfig
from pulsar_native.asyncio import Client, PushConsumer
from pulsar_native.exceptions import AlreadyClosed, InvalidConfiguration, NotAllowedError
from pulsar_native.push.core import ServiceState
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker
from support.fake_topic import FakeTopic
from support.until import until

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def push_consumer(client: Client, listener: Any, **options: Any) -> PushConsumer:
    """Return a push consumer of the topic that is not started."""
    config = PushConsumerConfig(**{"consumer_group": "g", "consume_thread_min": 1, "consume_thread_max": 2, **options})
    made = PushConsumer(client, config)
    made.subscribe("t")
    made.register_message_listener(listener)
    return made


async def test_listener_has_at_most_so_many_calls(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, *(b"%d" % number for number in range(5)))
    running, most, opened = 0, 0, asyncio.Event()

    async def listener(_messages: list[Any], _context: Any) -> ConsumeConcurrentlyStatus:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await opened.wait()
        running -= 1
        return SUCCESS

    async with push_consumer(client, listener, consume_message_batch_max_size=1) as made:
        await until(lambda: running == 2)
        await client.get_topic_partitions("t")
        assert most == 2
        opened.set()
        await until(lambda: made.stats().succeeded == 5)
    assert most == 2


async def test_plain_function_is_a_listener(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a")
    async with push_consumer(client, lambda _messages, _context: SUCCESS) as made:
        await until(lambda: made.stats().succeeded == 1)


class Own(BaseException):
    """An exception that is no Exception."""


@pytest.mark.parametrize("error", [KeyError, asyncio.CancelledError, GeneratorExit, Own])
async def test_listener_error_is_a_failure(fake: FakeBroker, client: Client, error: type[BaseException]) -> None:
    FakeTopic(fake, b"a", b"b")

    async def listener(messages: list[Any], _context: Any) -> ConsumeConcurrentlyStatus:
        if messages[0].data() == b"a":
            raise error
        return SUCCESS

    async with push_consumer(client, listener, consume_thread_max=1, consume_message_batch_max_size=1) as made:
        await until(lambda: (made.stats().succeeded, made.stats().failed) == (1, 1))


async def test_shutdown_cancels_what_still_runs(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a")
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def listener(_messages: list[Any], _context: Any) -> ConsumeConcurrentlyStatus:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return SUCCESS

    made = push_consumer(client, listener)
    await made.start()
    await asyncio.wait_for(begun.wait(), 10)
    report = await made.shutdown(1)
    assert report.unfinished == 1 and await asyncio.wait_for(cancelled.wait(), 10)


async def test_suspended_takes_no_messages_until_resumed(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake)
    async with push_consumer(client, lambda _messages, _context: SUCCESS) as made:
        made.suspend()
        topic.publish(b"a")
        await client.get_topic_partitions("t")
        assert made.stats().taken == 0
        made.resume()
        await until(lambda: made.stats().succeeded == 1)


async def test_changes_after_start_refused(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake)
    made = push_consumer(client, lambda _messages, _context: SUCCESS)
    await made.start()
    with pytest.raises(NotAllowedError):
        await made.start()
    with pytest.raises(NotAllowedError):
        made.subscribe("other")
    await made.shutdown()
    assert (await made.shutdown()).unfinished == 0


async def test_client_of_the_other_api_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=r"needs a client of pulsar_native\.asyncio"):
        PushConsumer(pulsar_native.Client("pulsar://127.0.0.1:1"), PushConsumerConfig(consumer_group="g"))  # type: ignore[arg-type]


async def test_listener_may_close_the_client(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a")
    closed: list[Any] = []

    async def listener(_messages: list[Any], _context: Any) -> ConsumeConcurrentlyStatus:
        try:
            await client.close()
            await until(lambda: made.state is ServiceState.SHUTDOWN_ALREADY)
            await asyncio.sleep(0)
        finally:
            closed.append(asyncio.current_task())
        return SUCCESS

    made = push_consumer(client, listener)
    await made.start()
    (task,) = await until(lambda: closed)
    await asyncio.wait([task], timeout=10)
    assert task.done() and not task.cancelled()


async def test_schema_of_another_type_refused(client: Client) -> None:
    with pytest.raises(InvalidConfiguration, match="schema must be a Schema"):
        push_consumer(client, lambda _messages, _context: SUCCESS).subscribe("t", schema="str")  # type: ignore[arg-type]


async def test_enter_after_shutdown_refused(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake)
    made = push_consumer(client, lambda _messages, _context: SUCCESS)
    async with made:
        pass
    with pytest.raises(NotAllowedError):
        async with made:
            pytest.fail("the block is not run")


async def test_shutdown_in_listener_does_not_wait_for_another(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a")
    begun, reports = asyncio.Event(), list[Any]()

    async def listener(_messages: list[Any], _context: Any) -> ConsumeConcurrentlyStatus:
        begun.set()
        await until(lambda: made.state is ServiceState.SHUTDOWN_ALREADY)
        reports.append(await made.shutdown())
        return SUCCESS

    made = push_consumer(client, listener)
    await made.start()
    await asyncio.wait_for(begun.wait(), 10)
    report = await asyncio.wait_for(made.shutdown(60_000), 10)
    assert (report.finished, report.unfinished) == (1, 0) and reports[0].unfinished == 1
    assert await made.shutdown() == report


async def test_shutdown_ends_a_start(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SUBSCRIBE] = lambda _peer, _command: []
    made = push_consumer(client, lambda _messages, _context: SUCCESS)
    starting = asyncio.create_task(made.start())
    await until(lambda: fake.seen(Kind.SUBSCRIBE))
    assert (await asyncio.wait_for(made.shutdown(), 10)).unfinished == 0
    with pytest.raises(AlreadyClosed, match="while it was starting"):
        await starting
    assert made.state is ServiceState.SHUTDOWN_ALREADY
