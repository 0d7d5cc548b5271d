"""Transactions of a client: operations that the end waits for, failures that turn a commit into an abort, time-outs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest

from pulsar_native.config import ConsumerConfig, ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.engine.transaction import SendOperation, TransactionWork
from pulsar_native.enums import ConsumerType, TransactionState
from pulsar_native.exceptions import (
    InvalidTxnStatusError,
    MessageTooBig,
    NotAllowedError,
    PulsarException,
    TransactionConflict,
    UnknownError,
)
from pulsar_native.message import OutgoingMessage
from pulsar_native.message_id import MessageId
from pulsar_native.schema import BytesSchema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.fake_broker import MAXU, FakeBroker, Peer, frame, receipt, swallow
from support.fake_coordinators import Coordinators

Cores = Callable[..., ClientCore]


async def begin(fake: FakeBroker, cores: Cores, seconds: float = 60.0) -> TransactionWork:
    """Begin a transaction at a fake broker with one coordinator."""
    Coordinators(fake)
    return await cores(fake.url).new_transaction(seconds)


def actions(fake: FakeBroker) -> list[int]:
    """Return what END_TXN asked for: 0 to commit, 1 to abort."""
    return [seen.command.endTxn.txn_action for seen in fake.seen(Kind.END_TXN)]


def in_transaction(work: TransactionWork, payload: bytes) -> OutgoingMessage:
    """Return a message of a transaction."""
    message = OutgoingMessage(payload)
    message.transaction = work.core
    return message


async def send(producer: TopicProducer, work: TransactionWork, payload: bytes) -> None:
    """Send a message in a transaction; a partition that is not registered yet is waited for."""
    (child,) = producer.children
    message = in_transaction(work, payload)
    operation = work.sending(None)
    while (full := child.enqueue(payload, b"", message, operation, flush=True)) is not None:
        assert full.always_waits
        woken = asyncio.Event()
        full.wait_for_room(woken.set)
        await asyncio.wait_for(woken.wait(), 10)


async def test_end_waits_for_pending_operations(fake: FakeBroker, cores: Cores) -> None:
    work = await begin(fake, cores)
    first, second = work.begin(), work.begin()
    ending = asyncio.create_task(work.end(commit=True))
    first.finish(None)
    # A request and its answer: the loop has had many turns since.
    await work.client.topic_partition_count("t", auto_create=True)
    assert not ending.done() and not actions(fake)
    with pytest.raises(InvalidTxnStatusError):
        work.begin()
    second.finish(None)
    await asyncio.wait_for(ending, 10)
    assert actions(fake) == [0] and work.core.state is TransactionState.COMMITTED


async def test_failed_operation_turns_commit_into_abort(fake: FakeBroker, cores: Cores) -> None:
    work = await begin(fake, cores)
    failure = MessageTooBig("no")
    work.begin().finish(failure)
    with pytest.raises(MessageTooBig) as caught:
        await work.end(commit=True)
    assert caught.value is failure
    assert actions(fake) == [1] and work.core.state is TransactionState.ABORTED


async def test_foreign_error_of_operation_names_its_type_only(fake: FakeBroker, cores: Cores) -> None:
    work = await begin(fake, cores)
    work.begin().finish(ValueError("a secret"))
    with pytest.raises(UnknownError, match="ValueError") as caught:
        await work.end(commit=True)
    assert "secret" not in str(caught.value)


async def test_withdrawn_operation_fails_nothing(fake: FakeBroker, cores: Cores) -> None:
    work = await begin(fake, cores)
    operation = work.begin()
    operation.withdraw()
    operation.finish(MessageTooBig("too late: it has its outcome"))
    await work.end(commit=True)
    assert actions(fake) == [0]


async def test_send_operation_ends_though_callback_raises(fake: FakeBroker, cores: Cores) -> None:
    work = await begin(fake, cores)
    told: list[object] = []

    def broken(error: PulsarException | None, message_id: MessageId | None) -> None:
        told.append((error, message_id))
        raise KeyError("of the application")

    operation = work.sending(broken)
    assert isinstance(operation, SendOperation)
    with pytest.raises(KeyError):
        operation(None, MessageId(0, 1, 2))
    assert told == [(None, MessageId(0, 1, 2))]
    await asyncio.wait_for(work.end(commit=True), 10)


async def test_bulk_counts_until_its_messages_have_outcomes(fake: FakeBroker, cores: Cores) -> None:
    class Bulk:
        """Bulk send whose messages get their outcomes by hand."""

        done: Callable[[], None]

        def flush_then(self, done: Callable[[], None]) -> None:
            self.done = done

    work = await begin(fake, cores)
    with work.bulk(Bulk()) as bulk:
        pass
    ending = asyncio.create_task(work.end(commit=False))
    await work.client.topic_partition_count("t", auto_create=True)
    assert not ending.done()
    bulk.done()
    await asyncio.wait_for(ending, 10)
    assert actions(fake) == [1]


async def test_partition_registered_once_before_first_message(fake: FakeBroker, cores: Cores) -> None:
    work = await begin(fake, cores)
    producer = await work.client.create_producer(ProducerConfig(topic="t"), None)  # type: ignore[attr-defined]
    for number in range(3):
        await send(producer, work, b"%d" % number)
    await asyncio.wait_for(work.end(commit=True), 10)
    order = [seen.command.type for seen in fake.seen(Kind.ADD_PARTITION_TO_TXN, Kind.SEND, Kind.END_TXN)]
    assert order == [Kind.ADD_PARTITION_TO_TXN, Kind.SEND, Kind.SEND, Kind.SEND, Kind.END_TXN]
    added = fake.seen(Kind.ADD_PARTITION_TO_TXN)[0].command.addPartitionToTxn
    assert list(added.partitions) == ["persistent://public/default/t"]


async def test_refused_partition_fails_the_transaction(fake: FakeBroker, cores: Cores) -> None:
    own = Coordinators(fake)
    own.errors[Kind.ADD_PARTITION_TO_TXN] = [pb.NotAllowedError]
    core = cores(fake.url)
    work = await core.new_transaction(60.0)
    producer = await core.create_producer(ProducerConfig(topic="t"), None)
    with pytest.raises(NotAllowedError):
        await send(producer, work, b"x")
    assert not fake.seen(Kind.SEND)
    work.finish(None)
    with pytest.raises(NotAllowedError):
        await asyncio.wait_for(work.end(commit=True), 10)
    assert actions(fake) == [1]


async def test_end_sends_open_batches_at_once(fake: FakeBroker, cores: Cores) -> None:
    work = await begin(fake, cores)
    config = ProducerConfig(topic="t", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    producer = await work.client.create_producer(config, None)  # type: ignore[attr-defined]
    await send(producer, work, b"registers")
    message = in_transaction(work, b"waits")
    assert producer.enqueue(b"waits", b"", message, work.sending(None)) is None
    await asyncio.wait_for(work.end(commit=True), 10)
    assert len(fake.seen(Kind.SEND)) == 2 and actions(fake) == [0]


async def test_time_out_ends_it_and_aborts(fake: FakeBroker, cores: Cores) -> None:
    work = await begin(fake, cores, 0.05)
    await asyncio.to_thread(fake.wait, Kind.END_TXN)
    assert work.core.state is TransactionState.TIME_OUT and actions(fake) == [1]
    with pytest.raises(InvalidTxnStatusError):
        await work.end(commit=True)
    with pytest.raises(InvalidTxnStatusError):
        work.begin()


async def test_time_out_fails_messages_without_receipt(fake: FakeBroker, cores: Cores) -> None:
    held: list[tuple[Peer, pb.BaseCommand]] = []

    def hold(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        held.append((peer, command))
        return ()

    work = await begin(fake, cores, 0.3)
    producer = await work.client.create_producer(ProducerConfig(topic="t"), None)  # type: ignore[attr-defined]
    fake.answers[Kind.SEND] = hold
    await send(producer, work, b"x")
    await asyncio.to_thread(fake.wait, Kind.END_TXN)
    assert producer.children[0].core.pending_messages == 0
    # Its receipt comes too late, and is no message's.
    peer, command = held[0]
    peer.send(receipt(command.send, 3))
    await work.client.topic_partition_count("t", auto_create=True)
    assert producer.is_connected and producer.last_sequence_id == -1


async def test_begin_cancelled_is_aborted(fake: FakeBroker, cores: Cores) -> None:
    Coordinators(fake)
    answer = fake.answers[Kind.NEW_TXN]
    fake.answers[Kind.NEW_TXN] = swallow
    beginning = asyncio.create_task(cores(fake.url).new_transaction(60))
    (seen,) = await asyncio.to_thread(fake.wait, Kind.NEW_TXN)
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    seen.peer.send(*answer(seen.peer, seen.command))
    await asyncio.to_thread(fake.wait, Kind.END_TXN)
    assert actions(fake) == [1]


async def test_client_close_aborts_what_is_open(fake: FakeBroker, cores: Cores) -> None:
    Coordinators(fake)
    core = cores(fake.url)
    works = [await core.new_transaction(60.0) for _ in range(2)]
    await works[0].end(commit=True)
    await core.close()
    assert actions(fake) == [0, 1] and works[1].core.state is TransactionState.ABORTED


async def test_client_close_without_answer_gives_up(fake: FakeBroker, cores: Cores) -> None:
    Coordinators(fake)
    core = cores(fake.url, operation_timeout_seconds=1.0)
    work = await core.new_transaction(60.0)
    fake.answers[Kind.END_TXN] = swallow
    await asyncio.wait_for(core.close(), 10)
    assert work.core.state in (TransactionState.ERROR, TransactionState.ABORTING)
    assert not core.transactions.is_used


async def test_close_without_open_ones_returns(cores: Cores) -> None:
    # The last one may end between the client's look and this.
    transactions = cores("pulsar://127.0.0.1:1").transactions
    assert not transactions.is_used
    await transactions.close(5)


# --- acknowledgements in a transaction ------------------------------------------------------------------------------


def acked(command: pb.BaseCommand, error: int | None = None) -> bytes:
    """Return the answer to an ACK."""
    answer = pb.CommandAckResponse(consumer_id=command.ack.consumer_id, request_id=command.ack.request_id)
    if error is not None:
        answer.error, answer.message = error, "as the test wants it"  # type: ignore[assignment]
    return frame(Kind.ACK_RESPONSE, ackResponse=answer)


async def consuming(work: TransactionWork) -> MultiTopicsConsumer:
    config = ConsumerConfig(subscription_name="s", consumer_type=ConsumerType.Shared)
    return await work.client.subscribe(["t"], config, VersionedDecoder(BytesSchema()), None)  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("end", ["lost", "unloaded"])
async def test_ack_sent_again_after_its_answer_was_lost(fake: FakeBroker, cores: Cores, end: str) -> None:
    def first_is_lost(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        if len(fake.seen(Kind.ACK)) > 1:
            return [acked(command)]
        if end == "lost":
            peer.close()
            return []
        closing = pb.CommandCloseConsumer(consumer_id=command.ack.consumer_id, request_id=MAXU)
        return [frame(Kind.CLOSE_CONSUMER, close_consumer=closing)]

    Coordinators(fake)
    work = await cores(fake.url, starting_backoff_interval_ms=20).new_transaction(60.0)
    consumer = await consuming(work)
    fake.answers[Kind.ACK] = first_is_lost
    await asyncio.wait_for(consumer.acknowledge_in(work, [MessageId(-1, 1, 5)]), 10)
    assert len(fake.seen(Kind.ACK)) == 2 and len(fake.seen(Kind.ADD_SUBSCRIPTION_TO_TXN)) == 1
    await work.end(commit=True)
    assert actions(fake) == [0]


async def test_ack_conflict_after_lost_answer_says_so(fake: FakeBroker, cores: Cores) -> None:
    def lost_then_conflict(peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        if len(fake.seen(Kind.ACK)) > 1:
            return [acked(command, pb.TransactionConflict)]
        peer.close()
        return []

    Coordinators(fake)
    work = await cores(fake.url, starting_backoff_interval_ms=20).new_transaction(60.0)
    consumer = await consuming(work)
    fake.answers[Kind.ACK] = lost_then_conflict
    with pytest.raises(TransactionConflict, match="it may be this transaction's own") as caught:
        await asyncio.wait_for(consumer.acknowledge_in(work, [MessageId(-1, 1, 5)]), 10)
    assert caught.value.topic == "persistent://public/default/t"
    # A commit of it is an abort.
    with pytest.raises(TransactionConflict):
        await work.end(commit=True)
    assert actions(fake) == [1]


async def test_ack_conflict_at_once_blames_nothing_else(fake: FakeBroker, cores: Cores) -> None:
    work = await begin(fake, cores)
    consumer = await consuming(work)
    fake.answers[Kind.ACK] = lambda _peer, command: [acked(command, pb.TransactionConflict)]
    with pytest.raises(TransactionConflict) as caught:
        await asyncio.wait_for(consumer.acknowledge_in(work, [MessageId(-1, 1, 5)]), 10)
    assert "its own" not in str(caught.value)


async def test_ack_cancelled_fails_the_commit(fake: FakeBroker, cores: Cores) -> None:
    work = await begin(fake, cores)
    consumer = await consuming(work)
    fake.answers[Kind.ACK] = swallow
    asking = asyncio.create_task(consumer.acknowledge_in(work, [MessageId(-1, 1, 5)]))
    await asyncio.to_thread(fake.wait, Kind.ACK)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    # Whether it is acknowledged is not known.
    with pytest.raises(PulsarException):
        await work.end(commit=True)
    assert actions(fake) == [1]


async def test_ack_unanswered_at_time_out_raises(fake: FakeBroker, cores: Cores) -> None:
    work = await begin(fake, cores, 0.3)
    consumer = await consuming(work)
    fake.answers[Kind.ACK] = swallow
    with pytest.raises(PulsarException):
        await asyncio.wait_for(consumer.acknowledge_in(work, [MessageId(-1, 1, 5)]), 10)
    assert work.core.state is TransactionState.TIME_OUT
