"""Connection handler in isolation: creation in time, reconnection with back-off, timers, and what waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.handler import Handler, State
from pulsar_native.exceptions import (
    AlreadyClosed,
    AuthorizationError,
    ConnectError,
    NotConnected,
    PulsarException,
    ServiceUnitNotReady,
    Timeout,
    TopicTerminated,
)
from pulsar_native.service_url import Address
from pulsar_native.topic import TopicName
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.fake_broker import HOST, FakeBroker, found, swallow
from support.until import until

Cores = Callable[..., ClientCore]
FAST = {"starting_backoff_interval_ms": 1, "max_backoff_interval_ms": 5}


class Attached(Handler):
    """Handler that has no command of its own: an attachment succeeds, or raises what the test wants next."""

    def __init__(self, client: ClientCore, *errors: BaseException) -> None:
        super().__init__(client, TopicName.parse("t"))
        self.errors: list[BaseException] = list(errors)
        self.connections: list[Connection] = []
        self.attempts = 0
        self.given_up: list[PulsarException] = []

    def describe(self) -> str:
        return "the handler"

    async def attach(self, connection: Connection) -> None:
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        self.connections.append(connection)
        self.connection = connection

    def is_registered(self, connection: Connection) -> bool:
        return connection in self.connections

    def is_final(self, error: PulsarException) -> bool:
        return isinstance(error, TopicTerminated)

    def gave_up(self, error: PulsarException) -> None:
        self.given_up.append(error)


async def test_open_retries_transient_errors(fake: FakeBroker, cores: Cores) -> None:
    handler = Attached(cores(fake.url, **FAST), ServiceUnitNotReady("moving"), ServiceUnitNotReady("moving"))
    await handler.open()
    assert handler.attempts == 3 and handler.state is State.READY and handler.is_connected


async def test_open_permanent_error_fails_at_once(fake: FakeBroker, cores: Cores) -> None:
    handler = Attached(cores(fake.url, **FAST), AuthorizationError("no"))
    with pytest.raises(AuthorizationError) as caught:
        await handler.open()
    assert handler.attempts == 1 and handler.state is State.FAILED and handler.failure is caught.value
    assert caught.value.topic == "persistent://public/default/t"


async def test_open_again_after_failure(fake: FakeBroker, cores: Cores) -> None:
    handler = Attached(cores(fake.url, **FAST), AuthorizationError("not yet"))
    with pytest.raises(AuthorizationError):
        await handler.open()
    handler.state, handler.failure = State.CONNECTING, None
    await handler.open()
    assert handler.is_connected


async def test_lost_connection_reconnects_after_errors(fake: FakeBroker, cores: Cores) -> None:
    handler = Attached(cores(fake.url, **FAST))
    await handler.open()
    handler.errors = [AuthorizationError("the cluster is starting"), ServiceUnitNotReady("moving")]
    handler.on_connection_lost(handler.connections[0], "the test")
    assert handler.state is State.CONNECTING and not handler.is_connected
    connection = await handler.ready(10)
    assert handler.attempts == 4 and connection is handler.connection and handler.is_connected


async def test_last_disconnected_timestamp_is_the_last_one(fake: FakeBroker, cores: Cores) -> None:
    handler = Attached(cores(fake.url, **FAST))
    await handler.open()
    assert handler.last_disconnected_timestamp == 0
    before = time.time_ns() // 1_000_000
    handler.on_connection_lost(handler.connections[0], "the test")
    lost = handler.last_disconnected_timestamp
    assert before <= lost <= time.time() * 1000
    connection = await handler.ready(10)
    assert handler.last_disconnected_timestamp == lost
    await asyncio.sleep(0.002)
    handler.on_closed_by_broker(connection, None)
    assert lost < handler.last_disconnected_timestamp <= time.time() * 1000


async def test_disconnect_reason_is_kept_and_logged(
    fake: FakeBroker, cores: Cores, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Attached(cores(fake.url, **FAST))
    await handler.open()
    with caplog.at_level("INFO"):
        handler.on_connection_lost(handler.connections[0], "the test")
        assert handler.disconnect_reason == "the connection was lost: the test"
        connection = await handler.ready(10)
        handler.on_closed_by_broker(connection, None)
    assert handler.disconnect_reason == "the broker closed it, but not the connection"
    for reason in ("the connection was lost: the test", "the broker closed it, but not the connection"):
        assert f"the handler is disconnected from {fake.address}: {reason}" in caplog.text


async def test_loss_of_another_connection_is_ignored(fake: FakeBroker, cores: Cores) -> None:
    handler = Attached(cores(fake.url, **FAST))
    await handler.open()
    handler.on_connection_lost(object(), "the test")  # type: ignore[arg-type]
    assert handler.is_connected and not handler.uses_loop


async def test_final_error_at_reconnect_gives_up(fake: FakeBroker, cores: Cores) -> None:
    handler = Attached(cores(fake.url, **FAST))
    await handler.open()
    error = TopicTerminated("the end")
    handler.errors = [ServiceUnitNotReady("moving"), error]
    handler.on_closed_by_broker(handler.connections[0], None)
    await until(lambda: handler.given_up)
    assert handler.given_up == [error] and handler.failure is error and handler.attempts == 3


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, asyncio.CancelledError])
async def test_odd_error_at_reconnect_is_retried(
    fake: FakeBroker, cores: Cores, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    handler = Attached(cores(fake.url, **FAST))
    await handler.open()
    handler.errors = [error("very-secret")]
    handler.on_closed_by_broker(handler.connections[0], None)
    await handler.ready(10)
    assert handler.attempts == 3
    assert f"the handler is not connected yet: {error.__name__}" in caplog.text and "very-secret" not in caplog.text


async def test_assigned_broker_is_tried_without_lookup(fake: FakeBroker, cores: Cores) -> None:
    with FakeBroker() as other:
        handler = Attached(cores(fake.url, **FAST))
        await handler.open()
        lookups = len(fake.seen(Kind.LOOKUP))
        handler.on_closed_by_broker(handler.connections[0], Address(HOST, other.port))
        connection = await handler.ready(10)
        assert connection.broker.endswith(str(other.port)) and len(fake.seen(Kind.LOOKUP)) == lookups
        # The next time the lookup decides again.
        handler.on_connection_lost(connection, "the test")
        connection = await handler.ready(10)
        assert connection.broker.endswith(str(fake.port)) and len(fake.seen(Kind.LOOKUP)) == lookups + 1


async def test_ready_times_out_while_disconnected(fake: FakeBroker, cores: Cores) -> None:
    handler = Attached(cores(fake.url, starting_backoff_interval_ms=60_000, max_backoff_interval_ms=60_000))
    await handler.open()
    handler.on_connection_lost(handler.connections[0], "the test")
    with pytest.raises(NotConnected, match="the handler is not connected to a broker: the connection was lost: the te"):
        await handler.ready(0.01)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ServiceUnitNotReady("moving", broker="pulsar://b"), "ServiceUnitNotReady: moving (broker pulsar://b)"),
        (RuntimeError("very-secret"), "RuntimeError"),
        (TimeoutError(), "no answer in time"),
        (Timeout("late"), "Timeout: late"),
    ],
    ids=["broker", "odd", "timeout", "own-timeout"],
)
async def test_why_not_connected_until_attached(
    fake: FakeBroker, cores: Cores, error: BaseException, text: str
) -> None:
    handler = Attached(cores(fake.url, **FAST))
    await handler.open()
    handler.errors = [error] * 1000
    handler.on_connection_lost(handler.connections[0], "the test")
    await until(lambda: handler.attempts > 2)
    assert handler.why_not_connected == f"the last attempt to reconnect failed: {text}"
    handler.errors.clear()
    await handler.ready(10)
    # The next loss has reasons of its own.
    handler.on_connection_lost(handler.connections[-1], "again")
    assert handler.why_not_connected == "the connection was lost: again"


async def test_leave_wakes_those_who_wait(fake: FakeBroker, cores: Cores) -> None:
    handler = Attached(cores(fake.url, starting_backoff_interval_ms=60_000, max_backoff_interval_ms=60_000))
    await handler.open()
    handler.on_connection_lost(handler.connections[0], "the test")
    waiting = asyncio.create_task(handler.ready(60))
    await asyncio.sleep(0)
    handler.state = State.CLOSED
    handler.leave()
    with pytest.raises(AlreadyClosed):
        await asyncio.wait_for(waiting, 10)
    with pytest.raises(AlreadyClosed):
        await handler.ready(60)


async def test_leave_ends_timers_and_takes_no_more(fake: FakeBroker, cores: Cores) -> None:
    handler = Attached(cores(fake.url))
    called: list[int] = []
    handler.call_later(0, lambda: called.append(1))
    handler.leave()
    handler.call_later(0, lambda: called.append(2))
    later = asyncio.Event()
    asyncio.get_running_loop().call_later(0.001, later.set)
    await later.wait()
    assert not called and not handler.uses_loop


async def test_call_later_replaces_waiting_call(fake: FakeBroker, cores: Cores) -> None:
    handler = Attached(cores(fake.url))
    called: list[float] = []
    started = asyncio.get_running_loop().time()
    done = asyncio.Event()

    def function() -> None:
        called.append(asyncio.get_running_loop().time() - started)

    for seconds in (0.01, 600.0, 0.05):
        handler.call_later(seconds, function)
    handler.call_later(0.1, done.set)
    await done.wait()
    assert len(called) == 1 and called[0] >= 0.04
    handler.leave()


async def test_closed_handler_does_not_reconnect(fake: FakeBroker, cores: Cores) -> None:
    handler = Attached(cores(fake.url, **FAST))
    await handler.open()
    handler.state = State.CLOSED
    handler.on_connection_lost(handler.connections[0], "the test")
    assert not handler.uses_loop and handler.attempts == 1


async def test_request_time_out_names_option_and_handler(fake: FakeBroker, cores: Cores) -> None:
    handler = Attached(cores(fake.url, operation_timeout_seconds=0.5))
    await handler.open()
    request_id = handler.client.next_request_id()
    frame = commands.lookup("persistent://public/default/t", request_id, authoritative=False, listener_name=None)
    fake.answers[Kind.LOOKUP] = swallow
    with pytest.raises(Timeout, match=r"the handler: .*operation_timeout_seconds \(0\.5\)") as caught:
        await handler.ask(request_id, frame, handler.connections[0], pb.CommandLookupTopicResponse)
    assert caught.value.topic == "persistent://public/default/t"


@pytest.mark.parametrize(
    ("closed", "error"), [("handler", AlreadyClosed), ("client", AlreadyClosed), ("connection", NotConnected)]
)
async def test_request_after_loss_tells_what_closed(
    fake: FakeBroker, cores: Cores, closed: str, error: type[PulsarException]
) -> None:
    handler = Attached(cores(fake.url))
    await handler.open()
    handler.connections[0].close("the test")
    if closed == "handler":
        handler.leave()
    elif closed == "client":
        # A shutdown drops the connections of handlers that have not seen it yet.
        handler.client.closed = True
    request_id = handler.client.next_request_id()
    frame = commands.get_last_message_id(0, request_id)
    try:
        with pytest.raises(error):
            await handler.ask(request_id, frame, handler.connections[0], pb.CommandGetLastMessageIdResponse)
    finally:
        handler.client.closed = False


@pytest.mark.parametrize(
    ("closed", "error"), [("handler", AlreadyClosed), ("client", AlreadyClosed), ("connection", ConnectError)]
)
async def test_request_on_a_connection_closed_by_the_end(
    fake: FakeBroker, cores: Cores, closed: str, error: type[PulsarException]
) -> None:
    core = cores(fake.url)
    handler = Attached(core)
    await handler.open()
    request_id, (connection,) = handler.client.next_request_id(), handler.connections
    frame = commands.lookup("persistent://public/default/t", request_id, authoritative=False, listener_name=None)
    fake.answers[Kind.LOOKUP] = swallow
    asked = asyncio.create_task(handler.ask(request_id, frame, connection, pb.CommandLookupTopicResponse))
    await until(lambda: len(fake.seen(Kind.LOOKUP)) == 2)
    # As while it unsubscribes.
    handler.state = State.CLOSING
    if closed == "handler":
        handler.leave()
    core.closed = closed == "client"
    connection.close("the test")
    with pytest.raises(error):
        await asked
    # For the fixture, which closes it.
    core.closed = False


async def test_lookup_elsewhere_moves_the_handler(fake: FakeBroker, cores: Cores) -> None:
    with FakeBroker() as other:
        handler = Attached(cores(fake.url, **FAST))
        await handler.open()
        fake.answers[Kind.LOOKUP] = lambda _peer, command: [found(command, other.url)]
        handler.on_connection_lost(handler.connections[0], "the test")
        connection = await handler.ready(10)
        assert connection.broker.endswith(str(other.port))
