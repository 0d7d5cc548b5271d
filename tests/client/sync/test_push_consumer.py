"""Push consumer of the sync API on a fake broker: worker threads, their number, and what its calls refuse."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import pulsar_native.asyncio
from pulsar_native import Client, ConsumeConcurrentlyStatus, PushConsumer, PushConsumerConfig
from pulsar_native.exceptions import AlreadyClosed, InvalidConfiguration, NotAllowedError
from pulsar_native.push.core import ServiceState
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker
from support.fake_topic import FakeTopic
from support.until import wait_until

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


@pytest.fixture
def client(fake: FakeBroker) -> Iterator[Client]:
    """Give a client of the fake broker."""
    with Client(fake.url, operation_timeout_seconds=5) as made:
        yield made


def push_consumer(client: Client, listener: Any, **options: Any) -> PushConsumer:
    """Return a push consumer of the topic that is not started."""
    config = PushConsumerConfig(**{"consumer_group": "g", "consume_thread_min": 1, "consume_thread_max": 2, **options})
    made = PushConsumer(client, config)
    made.subscribe("t")
    made.register_message_listener(listener)
    return made


def workers() -> list[threading.Thread]:
    """Return the threads that call listeners."""
    return [each for each in threading.enumerate() if each.name.startswith("pulsar-native-push-consumer-")]


class AsyncCall:
    """An object whose call is a coroutine function."""

    async def __call__(self, *_args: Any) -> bool:
        return True


@pytest.mark.parametrize("wrong", [None, 5, AsyncCall(), AsyncCall().__call__])
def test_filter_not_callable_or_async_refused(client: Client, wrong: Any) -> None:
    made = push_consumer(client, lambda _messages, _context: SUCCESS)
    with pytest.raises(InvalidConfiguration, match="A filter message hook must be"):
        made.register_filter_message_hook(wrong)
    made.register_filter_message_hook(lambda _message: True)


def test_listener_called_in_worker_threads_up_to_most(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, *(b"%d" % number for number in range(5)))
    together, opened = threading.Semaphore(0), threading.Event()
    names: list[str] = []

    def listener(_messages: list[Any], _context: Any) -> ConsumeConcurrentlyStatus:
        names.append(threading.current_thread().name)
        together.release()
        assert opened.wait(10)
        return SUCCESS

    with push_consumer(client, listener, consume_message_batch_max_size=1) as made:
        assert together.acquire(timeout=10) and together.acquire(timeout=10)
        # Both threads are held; a third call would have been begun by now, in a round of the loop.
        client.get_topic_partitions("t")
        assert len(names) == len(set(names)) == 2 == len(workers())
        opened.set()
        wait_until(lambda: made.stats().succeeded == 5)
    for thread in workers():
        thread.join(10)
        assert not thread.is_alive()


def test_listener_error_is_a_failure_and_thread_goes_on(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a", b"b")

    def listener(messages: list[Any], _context: Any) -> ConsumeConcurrentlyStatus:
        if messages[0].data() == b"a":
            raise SystemExit
        return SUCCESS

    with push_consumer(client, listener, consume_thread_max=1, consume_message_batch_max_size=1) as made:
        wait_until(lambda: (made.stats().succeeded, made.stats().failed) == (1, 1))


def test_shutdown_waits_for_the_running_listener(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a")
    begun, opened = threading.Event(), threading.Event()

    def listener(_messages: list[Any], _context: Any) -> ConsumeConcurrentlyStatus:
        begun.set()
        assert opened.wait(10)
        return SUCCESS

    made = push_consumer(client, listener)
    made.start()
    assert begun.wait(10)
    assert made.shutdown(0).unfinished == 1
    opened.set()
    assert made.shutdown().unfinished == 1 and made.state is ServiceState.SHUTDOWN_ALREADY


def test_suspended_takes_no_messages_until_resumed(fake: FakeBroker, client: Client) -> None:
    topic = FakeTopic(fake)
    with push_consumer(client, lambda _messages, _context: SUCCESS) as made:
        made.suspend()
        client.get_topic_partitions("t")
        topic.publish(b"a")
        client.get_topic_partitions("t")
        assert made.stats().taken == 0
        made.resume()
        wait_until(lambda: made.stats().succeeded == 1)


def test_coroutine_listener_needs_the_other_api(client: Client) -> None:
    async def listener(_messages: list[Any], _context: Any) -> ConsumeConcurrentlyStatus:
        return SUCCESS

    made = PushConsumer(client, PushConsumerConfig(consumer_group="g"))
    with pytest.raises(InvalidConfiguration, match=r"pulsar_native\.asyncio"):
        made.register_message_listener(listener)
    with pytest.raises(InvalidConfiguration, match="needs a client of pulsar_native"):
        PushConsumer(pulsar_native.asyncio.Client("pulsar://127.0.0.1:1"), made.config)  # type: ignore[arg-type]


def test_changes_after_start_refused(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake)
    with push_consumer(client, lambda _messages, _context: SUCCESS) as made:
        for call in (
            made.start,
            lambda: made.subscribe("other"),
            lambda: made.unsubscribe("t"),
            lambda: made.register_filter_message_hook(lambda _message: True),
            lambda: made.register_message_listener(lambda _messages, _context: SUCCESS),
        ):
            with pytest.raises(NotAllowedError):
                call()
    assert len(fake.seen(Kind.SUBSCRIBE)) == len(fake.seen(Kind.CLOSE_CONSUMER))


def test_shutdown_before_start_forbids_it(fake: FakeBroker, client: Client) -> None:
    made = push_consumer(client, lambda _messages, _context: SUCCESS)
    assert made.shutdown().unfinished == 0 and not fake.peers
    with pytest.raises(NotAllowedError):
        made.start()


def test_listener_may_change_its_list(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a", b"b")
    seen: list[bytes] = []

    class Clearing:
        def consume_message_before(self, messages: Any, _context: Any) -> None:
            messages.clear()

        def consume_message_after(self, messages: Any, _context: Any, _status: Any) -> None:
            seen.extend(message.data() for message in messages)

    def listener(messages: list[Any], _context: Any) -> ConsumeConcurrentlyStatus:
        while messages:
            seen.append(messages.pop(0).data())
        return SUCCESS

    made = push_consumer(client, listener, consume_thread_max=1, consume_message_batch_max_size=1)
    made.register_consume_message_hook(Clearing())
    with made:
        wait_until(lambda: made.stats().succeeded == 2)
    assert seen == [b"a", b"a", b"b", b"b"]


def test_hook_cancelled_error_stops_nothing(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a", b"b")

    class Cancelled:
        def consume_message_before(self, _messages: Any, _context: Any) -> None:
            raise asyncio.CancelledError

        consume_message_after: Any = lambda *_args: None

    made = push_consumer(client, lambda _messages, _context: SUCCESS, consume_thread_max=1)
    made.register_consume_message_hook(Cancelled())
    with made:
        wait_until(lambda: made.stats().succeeded == 2)


def test_listener_awaitable_result_named_as_failure(
    fake: FakeBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    FakeTopic(fake, b"a")

    class Listener:
        async def __call__(self, _messages: list[Any], _context: Any) -> ConsumeConcurrentlyStatus:
            return SUCCESS

    listener = Listener()
    with pytest.raises(InvalidConfiguration, match=r"pulsar_native\.asyncio"):
        push_consumer(client, listener)
    with push_consumer(client, lambda messages, context: listener(messages, context)) as made:
        wait_until(lambda: made.stats().failed == 1)
    assert "only the push consumer of pulsar_native.asyncio awaits" in caplog.text


def test_schema_of_another_type_refused(client: Client) -> None:
    with pytest.raises(InvalidConfiguration, match="schema must be a Schema"):
        push_consumer(client, lambda _messages, _context: SUCCESS).subscribe("t", schema="str")  # type: ignore[arg-type]


def test_enter_after_shutdown_refused(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake)
    made = push_consumer(client, lambda _messages, _context: SUCCESS)
    with made, made:
        assert made.state is ServiceState.RUNNING
    with pytest.raises(NotAllowedError), made:
        pytest.fail("the block is not run")


class Own(BaseException):
    """An exception that is no Exception."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, SystemExit, Own])
def test_hook_error_of_any_class_stops_no_thread(fake: FakeBroker, client: Client, error: type[BaseException]) -> None:
    FakeTopic(fake, b"a", b"b", b"c")

    class Failing:
        def consume_message_before(self, _messages: Any, _context: Any) -> None:
            raise error

        consume_message_after: Any = consume_message_before

    made = push_consumer(
        client, lambda _messages, _context: SUCCESS, consume_thread_max=1, consume_message_batch_max_size=1
    )
    made.register_consume_message_hook(Failing())
    with made:
        wait_until(lambda: made.stats().succeeded == 3)


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, SystemExit, Own])
def test_filter_error_of_any_class_passes_messages(
    fake: FakeBroker, client: Client, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    FakeTopic(fake, b"a", b"b")

    def failing(_message: Any) -> bool:
        raise error

    made = push_consumer(client, lambda _messages, _context: SUCCESS)
    made.register_filter_message_hook(failing)
    with made:
        wait_until(lambda: made.stats().succeeded == 2)
    assert "A filter failed" in caplog.text


def test_shutdown_in_another_thread_ends_start(fake: FakeBroker, client: Client) -> None:
    fake.answers[Kind.SUBSCRIBE] = lambda _peer, _command: []
    made, errors = push_consumer(client, lambda _messages, _context: SUCCESS), list[BaseException]()

    def start() -> None:
        try:
            made.start()
        except AlreadyClosed as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    wait_until(lambda: fake.seen(Kind.SUBSCRIBE))
    assert made.shutdown().unfinished == 0 and made.state is ServiceState.SHUTDOWN_ALREADY
    thread.join(10)
    assert not thread.is_alive() and "while it was starting" in str(errors[0])


def test_shutdown_in_listener_does_not_wait_for_another(fake: FakeBroker, client: Client) -> None:
    FakeTopic(fake, b"a")
    begun, reports = threading.Event(), list[Any]()

    def listener(_messages: list[Any], _context: Any) -> ConsumeConcurrentlyStatus:
        begun.set()
        wait_until(lambda: made.state is ServiceState.SHUTDOWN_ALREADY)
        reports.append(made.shutdown())
        return SUCCESS

    made = push_consumer(client, listener)
    made.start()
    assert begun.wait(10)
    report = made.shutdown(60_000)
    assert (report.finished, report.unfinished) == (1, 0) and reports[0].unfinished == 1
