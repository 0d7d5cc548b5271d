"""Closing of a partition's consumer: what is sent in which order, the limit, and the report, on a fake broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pulsar_native import Client
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer.close import close, close_inline, unsubscribe
from pulsar_native.engine.consumer.consumer import PartitionConsumer
from pulsar_native.engine.handler import State
from pulsar_native.enums import ConsumerType, SubscriptionMode
from pulsar_native.exceptions import AlreadyClosed, NotConnected, PulsarException, Timeout
from pulsar_native.message_id import MessageId
from pulsar_native.stats import ConsumerClose
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.clock import LoopClock
from support.entry_bytes import single_entry
from support.fake_broker import FakeBroker, Peer, consumer_stats, delivery, failure, frame, success, swallow
from support.until import until, wait_until

Cores = Callable[..., ClientCore]
Subscribed = Callable[..., Any]

LATE_ACKS: dict[str, Any] = {"acknowledgment_group_time_ms": 60_000}
GOODBYE = Kind.ACK, Kind.CONSUMER_STATS, Kind.CLOSE_CONSUMER, Kind.UNSUBSCRIBE
ENTRY = MessageId(-1, 1, 0)


def counts(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
    """Answer CONSUMER_STATS."""
    return [consumer_stats(command, backlog=7, unacked=3)]


def goodbye(fake: FakeBroker) -> list[int]:
    """Return the kinds of the last commands, in order."""
    return [seen.command.type for seen in fake.seen(*GOODBYE)]


async def partition(core: ClientCore, subscribed: Subscribed, **options: Any) -> PartitionConsumer:
    (child,) = (await subscribed(core, **options)).children
    return child  # type: ignore[no-any-return]


class DeadLetters:
    """Dead letter router whose last dead letter is stored while the consumer is closed."""

    def __init__(self, consumer: PartitionConsumer) -> None:
        self.consumer = consumer
        self.seconds = 0.0
        self.state: State | None = None

    async def close(self, seconds: float) -> None:
        self.seconds, self.state = seconds, self.consumer.state
        self.consumer.acknowledge([ENTRY])

    def __getattr__(self, _name: str) -> Any:
        return lambda *_arguments: None


# --- close ------------------------------------------------------------------------------------------------------


async def test_close_acks_then_counts_then_request(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.answers[Kind.CONSUMER_STATS] = counts
    child = await partition(cores(fake.url), subscribed, **LATE_ACKS)
    fake.peers[0].send(delivery(0, single_entry(b"x"), 5), delivery(0, single_entry(b"y"), 6))
    await until(lambda: child.queued_messages() == 2)
    child.acknowledge([ENTRY])
    report = await close(child, counted=True)
    assert goodbye(fake) == [Kind.ACK, Kind.CONSUMER_STATS, Kind.CLOSE_CONSUMER]
    assert (report.topic, report.subscription_name, report.consumer_name) == (
        "persistent://public/default/t",
        "s",
        child.name,
    )
    assert (report.queued, report.acks_sent, report.acks_left) == (2, 1, 0)
    assert (report.unacked, report.backlog) == (3, 7)
    assert child.state is State.CLOSED
    with pytest.raises(AlreadyClosed):
        child.acknowledge([ENTRY])


@pytest.mark.parametrize("mode", [SubscriptionMode.Durable, SubscriptionMode.NonDurable])
async def test_close_asks_counts_only_where_wanted(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, mode: SubscriptionMode
) -> None:
    fake.answers[Kind.CONSUMER_STATS] = counts
    counted = mode is SubscriptionMode.NonDurable
    child = await partition(cores(fake.url), subscribed, subscription_mode=mode)
    report = await close(child, 5, counted=counted)
    # The counts of a reader mean nothing: its subscription ends with it.
    assert goodbye(fake) == [Kind.CLOSE_CONSUMER] and report.backlog is report.unacked is None


async def test_close_of_client_asks_for_counts(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.answers[Kind.CONSUMER_STATS] = counts
    core = cores(fake.url)
    await partition(core, subscribed)
    report = await core.close()
    assert goodbye(fake) == [Kind.CONSUMER_STATS, Kind.CLOSE_CONSUMER]
    assert [each.backlog for each in report.consumers] == [7]


@pytest.mark.parametrize("refused", [Kind.CONSUMER_STATS, Kind.CLOSE_CONSUMER], ids=["counts", "close"])
async def test_close_refused_by_broker_is_closed(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, refused: int
) -> None:
    def refuse(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        request = command.consumerStats if refused == Kind.CONSUMER_STATS else command.close_consumer
        return [failure(request.request_id, pb.ServiceNotReady)]

    fake.answers[Kind.CONSUMER_STATS] = counts
    fake.answers[refused] = refuse
    child = await partition(cores(fake.url), subscribed)
    connection = child.connection
    report = await close(child, counted=True)
    assert report.backlog == (None if refused == Kind.CONSUMER_STATS else 7)
    assert child.state is State.CLOSED and not fake.peers[0].gone.is_set()
    assert connection is not None and not connection.has_consumer(child.consumer_id)


async def test_close_without_response_ends_at_limit(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers[Kind.CONSUMER_STATS] = counts
    fake.answers[Kind.CLOSE_CONSUMER] = swallow
    child = await partition(cores(fake.url, operation_timeout_seconds=30), subscribed)
    clock = LoopClock(monkeypatch)
    closing = asyncio.ensure_future(close(child, 10, counted=True))
    await asyncio.to_thread(fake.wait, Kind.CLOSE_CONSUMER)
    await clock.advance(9)
    assert not closing.done() and child.state is State.CLOSING
    await clock.advance(1.5)
    report = await asyncio.wait_for(closing, 5)
    # Of a broker that counted in time, the counts are told all the same.
    assert report.backlog == 7 and child.state is State.CLOSED


async def outage(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> PartitionConsumer:
    """Return a consumer without connection that has an acknowledgement to send; its lookup is not answered."""
    child = await partition(cores(fake.url, starting_backoff_interval_ms=20), subscribed, **LATE_ACKS)
    child.acknowledge([ENTRY])
    fake.answers[Kind.LOOKUP] = swallow
    fake.peers[0].close()
    await until(lambda: child.connection is None)
    return child


async def test_close_with_limit_waits_to_send_acks(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    answer, lookups = fake.answers[Kind.LOOKUP], len(fake.seen(Kind.LOOKUP)) + 1
    child = await outage(fake, cores, subscribed)
    closing = asyncio.ensure_future(close(child, 5))
    asked = (await asyncio.to_thread(fake.wait, Kind.LOOKUP, lookups + 1))[-1]
    assert not closing.done()
    asked.peer.send(*answer(asked.peer, asked.command))
    report = await closing
    assert (report.acks_sent, report.acks_left) == (1, 0)
    assert goodbye(fake) == [Kind.ACK, Kind.CLOSE_CONSUMER]


async def test_close_without_limit_leaves_acks(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await outage(fake, cores, subscribed)
    # Nobody waits for a connection: the broker redelivers what was acknowledged.
    report = await asyncio.wait_for(close(child), 2)
    assert (report.acks_sent, report.acks_left) == (0, 1) and goodbye(fake) == []


async def test_close_during_outage_without_acks_at_once(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(cores(fake.url, starting_backoff_interval_ms=60_000), subscribed)
    fake.peers[0].close()
    await until(lambda: child.connection is None)
    report = await asyncio.wait_for(close(child, 60, counted=True), 5)
    assert child.state is State.CLOSED and report.acks_left == 0 and report.backlog is None


async def test_close_waits_for_dead_letters_first(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(cores(fake.url), subscribed, **LATE_ACKS)
    letters: Any = DeadLetters(child)
    child.dead_letter_router = letters
    report = await close(child, 4)
    # Their originals are acknowledged, which a consumer that is closing does no more.
    assert letters.state is State.READY and 3 < letters.seconds <= 4
    assert goodbye(fake) == [Kind.ACK, Kind.CLOSE_CONSUMER] and report.acks_sent == 1


async def test_close_counts_acks_sent_by_itself(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(cores(fake.url), subscribed, **LATE_ACKS)
    child.acknowledge([ENTRY, MessageId(-1, 1, 1)])
    child.acks.flush()
    child.acknowledge([MessageId(-1, 1, 2)])
    assert (await close(child)).acks_sent == 1


async def test_close_during_another_asks_only_once(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.answers[Kind.CLOSE_CONSUMER] = swallow
    child = await partition(cores(fake.url), subscribed)
    closing = asyncio.ensure_future(close(child))
    (seen,) = await asyncio.to_thread(fake.wait, Kind.CLOSE_CONSUMER)
    report = await asyncio.wait_for(close(child), 2)
    assert report.acks_sent == 0 and not closing.done()
    seen.peer.send(success(seen.command.close_consumer.request_id))
    await asyncio.wait_for(closing, 5)
    assert len(fake.seen(Kind.CLOSE_CONSUMER)) == 1


@pytest.mark.parametrize("waits_for", ["answer", "dead letters"])
async def test_close_cancelled_ends_consumer(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, waits_for: str
) -> None:
    fake.answers[Kind.CLOSE_CONSUMER] = swallow
    consumer = await subscribed(cores(fake.url), **LATE_ACKS)
    (child,) = consumer.children
    child.acknowledge([ENTRY])
    reached = asyncio.Event()
    if waits_for == "dead letters":

        class UnconfirmedDeadLetters:
            """Dead letters that are never confirmed."""

            async def close(self, _seconds: float) -> None:
                reached.set()
                await asyncio.Event().wait()

            def abandon(self) -> None: ...

        child.dead_letter_router = UnconfirmedDeadLetters()
    arrived = asyncio.Event()
    consumer.on_ready = arrived.set
    closing = asyncio.ensure_future(consumer.close())
    if waits_for == "dead letters":
        await asyncio.wait_for(reached.wait(), 5)
    else:
        await asyncio.to_thread(fake.wait, Kind.CLOSE_CONSUMER)
    connection = child.connection
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asyncio.to_thread(fake.wait, Kind.CLOSE_CONSUMER)
    assert goodbye(fake) == [Kind.ACK, Kind.CLOSE_CONSUMER] and child.state is State.CLOSED
    assert connection is not None and not connection.has_consumer(child.consumer_id)
    # A receiver that waits is woken.
    assert consumer.is_closed and arrived.is_set()


async def test_close_refuses_fast_acks_from_its_start(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.answers[Kind.CLOSE_CONSUMER] = swallow
    child = await partition(cores(fake.url), subscribed, acknowledgment_group_time_ms=1000)
    fake.peers[0].send(delivery(0, single_entry(b"x"), 5), delivery(0, single_entry(b"y"), 6))
    await until(lambda: child.queued_messages() == 2)
    first, second = child.dequeue(), child.dequeue()
    assert first is not None and second is not None
    child.acks.fast_path.add(first)
    closing = asyncio.ensure_future(close(child))
    (seen,) = await asyncio.to_thread(fake.wait, Kind.CLOSE_CONSUMER)
    # It would not be sent any more.
    with pytest.raises(AlreadyClosed):
        child.acks.fast_path.add(second)
    seen.peer.send(success(seen.command.close_consumer.request_id))
    report = await asyncio.wait_for(closing, 5)
    assert (report.acks_sent, report.acks_left) == (1, 0)


async def test_close_twice_reports_nothing(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(cores(fake.url), subscribed, **LATE_ACKS)
    child.acknowledge([ENTRY])
    await close(child)
    report = await close(child, 5, counted=True)
    assert (report.acks_sent, report.acks_left, report.backlog) == (0, 0, None)
    assert goodbye(fake) == [Kind.ACK, Kind.CLOSE_CONSUMER]


async def test_close_of_failed_consumer_asks_nothing(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    child = await partition(cores(fake.url), subscribed)
    child.gave_up(PulsarException("gone"))
    await close(child, 5, counted=True)
    assert child.state is State.CLOSED and goodbye(fake) == []


# --- unsubscribe ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
async def test_unsubscribe_sends_acks_then_request(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, force: bool
) -> None:
    child = await partition(cores(fake.url), subscribed, **LATE_ACKS)
    connection = child.connection
    child.acknowledge([ENTRY])
    await unsubscribe(child, force=force)
    # The request closes the consumer at the broker, too.
    assert goodbye(fake) == [Kind.ACK, Kind.UNSUBSCRIBE] and child.state is State.CLOSED
    assert fake.seen(Kind.UNSUBSCRIBE)[0].command.unsubscribe.force is force
    assert connection is not None and not connection.has_consumer(child.consumer_id)


async def test_unsubscribe_refused_keeps_attachment(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.answers[Kind.UNSUBSCRIBE] = lambda _peer, command: [failure(command.unsubscribe.request_id, pb.MetadataError)]
    child = await partition(cores(fake.url), subscribed)
    with pytest.raises(PulsarException, match="as the test wants it"):
        await unsubscribe(child, force=False)
    assert child.state is State.READY and child.is_connected and len(fake.seen(Kind.SUBSCRIBE)) == 1


async def test_unsubscribe_closed_by_broker_reconnects(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    def unload(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        closing = pb.CommandCloseConsumer(consumer_id=0, request_id=9)
        refused = failure(command.unsubscribe.request_id, pb.MetadataError)
        return [frame(Kind.CLOSE_CONSUMER, close_consumer=closing) + refused]

    fake.answers[Kind.UNSUBSCRIBE] = unload
    child = await partition(cores(fake.url, starting_backoff_interval_ms=20), subscribed)
    with pytest.raises(PulsarException):
        await unsubscribe(child, force=False)
    assert child.state is State.CONNECTING
    await until(lambda: child.is_connected)
    assert len(fake.seen(Kind.SUBSCRIBE)) == 2


@pytest.mark.parametrize("cancelled", [False, True], ids=["late", "cancelled"])
async def test_unsubscribe_unanswered_subscribes_again(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, cancelled: bool
) -> None:
    fake.answers[Kind.UNSUBSCRIBE] = swallow
    child = await partition(cores(fake.url, operation_timeout_seconds=20 if cancelled else 0.2), subscribed)
    asking = asyncio.create_task(unsubscribe(child, force=False))
    await asyncio.to_thread(fake.wait, Kind.UNSUBSCRIBE)
    if cancelled:
        asking.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else Timeout):
        await asking
    # The broker may have closed the consumer with its subscription.
    await asyncio.to_thread(fake.wait, Kind.SUBSCRIBE, 2)
    await until(lambda: child.is_connected)
    assert child.state is State.READY and goodbye(fake) == [Kind.UNSUBSCRIBE, Kind.CLOSE_CONSUMER]
    await close(child)
    assert goodbye(fake) == [Kind.UNSUBSCRIBE, Kind.CLOSE_CONSUMER, Kind.CLOSE_CONSUMER]


async def test_unsubscribe_pending_sends_negative_acks(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.answers[Kind.UNSUBSCRIBE] = swallow
    options: dict[str, Any] = {"consumer_type": ConsumerType.Shared, "negative_ack_redelivery_delay_ms": 100}
    child = await partition(cores(fake.url), subscribed, **options)
    child.negative_acknowledge(ENTRY)
    asking = asyncio.create_task(unsubscribe(child, force=False))
    # The broker may reject the request: then nothing but the timer would have it delivered again.
    (seen,) = await asyncio.to_thread(fake.wait, Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    assert child.state is State.CLOSING
    assert [place.entryId for place in seen.command.redeliverUnacknowledgedMessages.message_ids] == [0]
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_unsubscribe_refused_keeps_ack_timeout(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers[Kind.UNSUBSCRIBE] = swallow
    options: dict[str, Any] = {"consumer_type": ConsumerType.Shared, "unacked_messages_timeout_ms": 10_000}
    child = await partition(cores(fake.url, operation_timeout_seconds=60), subscribed, **options)
    fake.peers[0].send(delivery(0, single_entry(b"x"), 5))
    await until(lambda: child.queued_messages() == 1)
    assert child.dequeue() is not None
    clock = LoopClock(monkeypatch)
    asking = asyncio.create_task(unsubscribe(child, force=False))
    (seen,) = await asyncio.to_thread(fake.wait, Kind.UNSUBSCRIBE)
    # The timer is due while the request is on its way.
    await clock.advance(3)
    assert child.state is State.CLOSING and not fake.seen(Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    seen.peer.send(failure(seen.command.unsubscribe.request_id, pb.ConsumerBusy))
    with pytest.raises(PulsarException, match="as the test wants it"):
        await asyncio.wait_for(asking, 10)
    await clock.advance(12, steps=24)
    (redelivered,) = await asyncio.to_thread(fake.wait, Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    assert [place.entryId for place in redelivered.command.redeliverUnacknowledgedMessages.message_ids] == [5]


async def test_unsubscribe_refused_after_close_detaches(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.answers[Kind.UNSUBSCRIBE] = swallow
    child = await partition(cores(fake.url), subscribed)
    connection = child.connection
    asking = asyncio.create_task(unsubscribe(child, force=False))
    (seen,) = await asyncio.to_thread(fake.wait, Kind.UNSUBSCRIBE)
    await close(child)
    assert child.state is State.CLOSED and goodbye(fake) == [Kind.UNSUBSCRIBE]
    seen.peer.send(failure(seen.command.unsubscribe.request_id, pb.MetadataError))
    with pytest.raises(PulsarException, match="as the test wants it"):
        await asyncio.wait_for(asking, 10)
    await asyncio.to_thread(fake.wait, Kind.CLOSE_CONSUMER)
    assert child.state is State.CLOSED and connection is not None and not connection.has_consumer(child.consumer_id)


# --- close in the calling thread --------------------------------------------------------------------------------


def inline_consumer(client: Client, **options: Any) -> PartitionConsumer:
    """Return the partition's consumer behind one of the sync API, whose connection any thread may read."""
    (child,) = client.subscribe("t", "s", **options)._inner.children
    connection = child.connection
    assert connection is not None
    # The first attempt has the loop prepare it.
    wait_until(connection.begin_inline_read)
    connection.end_inline_read()
    return child  # type: ignore[no-any-return]


@pytest.mark.parametrize("has_timer", [False, True])
def test_close_inline_releases_before_the_response(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch, has_timer: bool
) -> None:
    released = threading.Event()
    order: list[str] = []

    def slow(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        # The broker works on it meanwhile.
        order.append("released" if released.wait(5) else "asked")
        return [success(command.close_consumer.request_id)]

    fake.answers[Kind.CLOSE_CONSUMER], fake.answers[Kind.CONSUMER_STATS] = slow, counts
    with Client(fake.url, operation_timeout_seconds=5) as client:
        child = inline_consumer(client, **LATE_ACKS)
        threads: list[tuple[int, State]] = []

        def then() -> None:
            threads.append((threading.get_ident(), child.state))
            released.set()

        if has_timer:
            child.acknowledge([ENTRY])
            wait_until(lambda: child.uses_loop)
        connection = child.connection
        assert connection is not None
        request, states = connection.request_inline, list[State]()

        def observed(*arguments: Any) -> Any:
            futures = request(*arguments)
            states.append(child.state)
            return futures

        monkeypatch.setattr(connection, "request_inline", observed)
        report = close_inline(child, None, then, counted=True)
        assert report is not None and order == ["released"] and states == [State.CLOSED]
        assert (report.acks_sent, report.backlog, report.unacked) == (int(has_timer), 7, 3)
        assert goodbye(fake) == [Kind.ACK] * has_timer + [Kind.CONSUMER_STATS, Kind.CLOSE_CONSUMER]
        # Timers belong to the loop, and so does their end.
        ((thread, state),) = threads
        assert (thread != threading.get_ident()) is has_timer and state is State.CLOSED
        assert not connection.has_consumer(child.consumer_id)


def test_close_inline_accepts_no_ack_before_it_sends(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(fake.url, operation_timeout_seconds=5) as client:
        child = inline_consumer(client)
        flush, states = child.acks.flush, list[State]()

        def observed() -> None:
            states.append(child.state)
            flush()

        monkeypatch.setattr(child.acks, "flush", observed)
        assert close_inline(child, None, lambda: None, counted=False) is not None
        # An acknowledgement is sent, or refused, but not lost in between.
        assert states == [State.CLOSING] and goodbye(fake) == [Kind.CLOSE_CONSUMER]


def test_close_inline_declines_without_effect(fake: FakeBroker) -> None:
    def never() -> None:
        pytest.fail("nothing was closed")

    with Client(fake.url, operation_timeout_seconds=5) as client:
        waiting = inline_consumer(client, ack_receipt_enabled=True)
        assert close_inline(waiting, None, never, counted=True) is None
        other = inline_consumer(client)
        assert other.connection is not None and other.connection.begin_inline_read()
        assert close_inline(other, None, never, counted=True) is None
        other.connection.end_inline_read()
        assert waiting.state is other.state is State.READY and goodbye(fake) == []
        ended: list[int] = []
        assert close_inline(other, None, lambda: ended.append(1), counted=False) is not None
        # Closed already.
        assert close_inline(other, None, never, counted=False) is None and ended == [1]


def test_close_inline_without_response_ends_at_limit(fake: FakeBroker) -> None:
    fake.answers[Kind.CLOSE_CONSUMER], fake.answers[Kind.CONSUMER_STATS] = swallow, counts
    with Client(fake.url, operation_timeout_seconds=60) as client:
        child = inline_consumer(client)
        ended: list[State] = []
        reports: list[ConsumerClose | None] = []

        def close_it() -> None:
            reports.append(close_inline(child, 0.2, lambda: ended.append(child.state), counted=True))

        # In a thread of its own, whose wait is limited.
        thread = threading.Thread(target=close_it, daemon=True)
        thread.start()
        thread.join(10)
        (report,) = reports
        assert report is not None and report.backlog == 7 and ended == [State.CLOSED]


def test_close_inline_of_lost_connection_is_closed(fake: FakeBroker) -> None:
    def hang_up(peer: Peer, _command: pb.BaseCommand) -> Iterable[bytes]:
        peer.close()
        return ()

    fake.answers[Kind.CONSUMER_STATS] = hang_up
    with Client(fake.url, operation_timeout_seconds=5) as client:
        child = inline_consumer(client)
        report = close_inline(child, 5, lambda: None, counted=True)
        assert report is not None and report.backlog is None and child.state is State.CLOSED


def test_close_inline_unsent_request_is_closed(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_arguments: Any) -> None:
        raise NotConnected("lost a moment ago")

    with Client(fake.url, operation_timeout_seconds=5) as client:
        child = inline_consumer(client)
        monkeypatch.setattr(child.connection, "request_inline", lost)
        ended: list[State] = []
        report = close_inline(child, None, lambda: ended.append(child.state), counted=True)
        assert report is not None and report.backlog is None and ended == [State.CLOSED]


def test_close_inline_interrupted_ends_on_the_loop(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    with Client(fake.url, operation_timeout_seconds=5) as client:
        child = inline_consumer(client)
        connection = child.connection
        assert connection is not None
        monkeypatch.setattr(connection, "request_inline", interrupted)
        ended: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            close_inline(child, None, lambda: ended.append(threading.get_ident()), counted=False)
        wait_until(lambda: ended)
        assert ended[0] != threading.get_ident() and child.state is State.CLOSED
        assert len(fake.wait(Kind.CLOSE_CONSUMER)) == 1 and not connection.has_consumer(child.consumer_id)
        # Others may read the connection again.
        assert connection.begin_inline_read()
        connection.end_inline_read()
