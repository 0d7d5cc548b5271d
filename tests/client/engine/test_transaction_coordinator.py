"""Transaction coordinators that move, stay silent or refuse, and concurrent requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest

from pulsar_native.config import ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.transaction import TransactionWork
from pulsar_native.enums import TransactionState
from pulsar_native.exceptions import (
    InvalidTxnStatusError,
    NotAllowedError,
    OperationNotSupported,
    PulsarException,
    Timeout,
    TransactionNotFound,
)
from pulsar_native.message import OutgoingMessage
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker, Peer, frame, swallow
from support.fake_coordinators import ASSIGN, Coordinators

Cores = Callable[..., ClientCore]

TOPIC = "persistent://public/default/t"


async def begin(core: ClientCore, seconds: float = 60.0) -> TransactionWork:
    """Begin a transaction."""
    return await asyncio.wait_for(core.new_transaction(seconds), 10)


@pytest.mark.asyncio
async def test_coordinators_used_in_turn_connected_once(fake: FakeBroker, cores: Cores) -> None:
    Coordinators(fake, 3)
    core = cores(fake.url)
    assert not fake.seen()
    works = [await begin(core) for _ in range(7)]
    numbers = [work.core.txn_id.most_bits for work in works]
    assert [(a + 1) % 3 for a in numbers] == [*numbers[1:], (numbers[-1] + 1) % 3]
    connects = [seen.command.tcClientConnectRequest.tc_id for seen in fake.seen(Kind.TC_CLIENT_CONNECT_REQUEST)]
    assert sorted(connects) == [0, 1, 2]
    # Each after the lookup of its own partition, which has the broker load it.
    order = [seen.command for seen in fake.seen(Kind.LOOKUP, Kind.TC_CLIENT_CONNECT_REQUEST)]
    looked_up = [command.lookupTopic.topic for command in order if command.type == Kind.LOOKUP]
    assert looked_up == [f"{ASSIGN}-partition-{number}" for number in connects]
    assert fake.seen(Kind.NEW_TXN)[0].command.newTxn.txn_ttl_millis == 60_000


@pytest.mark.asyncio
async def test_coordinators_missing_raises(fake: FakeBroker, cores: Cores) -> None:
    with pytest.raises(OperationNotSupported, match="transactionCoordinatorEnabled=true"):
        await begin(cores(fake.url))


@pytest.mark.asyncio
async def test_coordinator_moved_is_looked_up(fake: FakeBroker, cores: Cores) -> None:
    own = Coordinators(fake)
    core = cores(fake.url, starting_backoff_interval_ms=10)
    await begin(core)
    own.errors[Kind.NEW_TXN] = [pb.TransactionCoordinatorNotFound]
    await begin(core)
    assert len(fake.seen(Kind.TC_CLIENT_CONNECT_REQUEST)) == 2
    own.errors[Kind.NEW_TXN] = [pb.NotAllowedError]
    with pytest.raises(NotAllowedError):
        await begin(core)


@pytest.mark.asyncio
async def test_coordinator_failed_connect_retried(fake: FakeBroker, cores: Cores) -> None:
    own = Coordinators(fake)
    own.errors[Kind.TC_CLIENT_CONNECT_REQUEST] = [pb.NotAllowedError]
    core = cores(fake.url)
    with pytest.raises(NotAllowedError):
        await begin(core)
    await begin(core)


@pytest.mark.asyncio
async def test_coordinator_at_most_1000_requests(fake: FakeBroker, cores: Cores) -> None:
    own = Coordinators(fake)
    # 1,200 requests and their answers: more than 5 s on a busy machine.
    core = cores(fake.url, operation_timeout_seconds=30)
    await begin(core)
    held: list[tuple[Peer, pb.BaseCommand]] = []
    fake.answers[Kind.NEW_TXN] = lambda peer, command: held.append((peer, command)) or ()
    tasks = [asyncio.create_task(core.new_transaction(60.0)) for _ in range(1_200)]
    await asyncio.to_thread(fake.wait, Kind.NEW_TXN, 1_001)
    # Answered behind one more.
    fake.peers[0].send(frame(Kind.PING))
    await asyncio.to_thread(fake.wait, Kind.PONG)
    assert len(held) == 1_000
    fake.answers[Kind.NEW_TXN] = own._answer
    for peer, command in held:
        peer.send(*own._answer(peer, command))
    works = await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert len({work.core.txn_id for work in works}) == 1_200


@pytest.mark.asyncio
async def test_end_transaction_without_response_raises(fake: FakeBroker, cores: Cores) -> None:
    Coordinators(fake)
    work = await begin(cores(fake.url, operation_timeout_seconds=1))
    fake.answers[Kind.END_TXN] = swallow
    with pytest.raises(Timeout):
        await asyncio.wait_for(work.end(commit=True), 10)
    assert work.core.state is TransactionState.ERROR
    with pytest.raises(InvalidTxnStatusError):
        await work.end(commit=False)


@pytest.mark.asyncio
@pytest.mark.parametrize("lost", [True, False])
async def test_end_transaction_not_found_after_lost_response(fake: FakeBroker, cores: Cores, lost: bool) -> None:
    own = Coordinators(fake)
    work = await begin(cores(fake.url, starting_backoff_interval_ms=10))

    def hangs_up(peer: Peer, _command: pb.BaseCommand) -> Iterable[bytes]:
        fake.answers[Kind.END_TXN] = own._answer
        peer.close()
        return ()

    own.errors[Kind.END_TXN] = [pb.TransactionNotFound]
    if lost:
        fake.answers[Kind.END_TXN] = hangs_up
        await asyncio.wait_for(work.end(commit=True), 10)
        assert work.core.state is TransactionState.COMMITTED
        return
    with pytest.raises(TransactionNotFound):
        await asyncio.wait_for(work.end(commit=True), 10)
    assert work.core.state is TransactionState.ERROR


@pytest.mark.asyncio
async def test_register_partition_refused_fails_transaction(fake: FakeBroker, cores: Cores) -> None:
    own = Coordinators(fake)
    core = cores(fake.url)
    producer = await core.create_producer(ProducerConfig(topic=TOPIC, batching_enabled=False), None)
    work = await begin(core)
    own.errors[Kind.ADD_PARTITION_TO_TXN] = [pb.NotAllowedError]
    message = OutgoingMessage(b"x")
    message.transaction = work.core
    full = producer.enqueue(b"x", b"", message, None)
    assert full is not None and full.always_waits
    decided = asyncio.Event()
    full.wait_for_room(decided.set)
    await asyncio.wait_for(decided.wait(), 10)
    with pytest.raises(NotAllowedError):
        producer.enqueue(b"x", b"", message, None)
    with pytest.raises(NotAllowedError):
        await work.end(commit=True)
    assert work.core.state is TransactionState.ABORTED
    assert [seen.command.endTxn.txn_action for seen in fake.seen(Kind.END_TXN)] == [pb.ABORT]
    assert not fake.seen(Kind.SEND)


@pytest.mark.asyncio
async def test_close_client_bounded_with_open_transactions(fake: FakeBroker, cores: Cores) -> None:
    Coordinators(fake)
    core = cores(fake.url)
    work = await begin(core)
    fake.answers[Kind.END_TXN] = swallow
    await asyncio.wait_for(core.close(0.3), 10)
    assert work.core.state is TransactionState.ERROR
    with pytest.raises(PulsarException):
        work.begin()
