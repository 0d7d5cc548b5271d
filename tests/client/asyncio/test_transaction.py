"""Transaction of the asyncio API on a fake broker: what its block does at the end, and which error is raised."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_native.asyncio import Client
from pulsar_native.enums import TransactionState
from pulsar_native.exceptions import InvalidTxnStatusError, NotAllowedError, OperationNotSupported
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker, Peer
from support.fake_coordinators import Coordinators
from support.until import until


@pytest.fixture(autouse=True)
def coordinators(fake: FakeBroker) -> Coordinators:
    """Give the coordinators of the fake broker."""
    return Coordinators(fake)


def actions(fake: FakeBroker) -> list[int]:
    """Return what END_TXN asked for: 0 to commit, 1 to abort."""
    return [seen.command.endTxn.txn_action for seen in fake.seen(Kind.END_TXN)]


async def test_block_commits_at_its_end(fake: FakeBroker, client: Client) -> None:
    async with await client.new_transaction() as transaction:
        assert transaction.state() is TransactionState.OPEN and not actions(fake)
    assert actions(fake) == [0] and transaction.state() is TransactionState.COMMITTED
    with pytest.raises(InvalidTxnStatusError):
        await transaction.commit()


async def test_block_error_aborts_and_is_raised(fake: FakeBroker, client: Client) -> None:
    transaction = await client.new_transaction()
    with pytest.raises(KeyError):
        async with transaction:
            raise KeyError("of the block")
    assert actions(fake) == [1] and transaction.state() is TransactionState.ABORTED


async def test_block_error_precedes_failed_abort(
    client: Client, coordinators: Coordinators, caplog: pytest.LogCaptureFixture
) -> None:
    coordinators.errors[Kind.END_TXN] = [pb.TransactionNotFound]
    with pytest.raises(KeyError):
        async with await client.new_transaction():
            raise KeyError("of the block")
    assert "could not be aborted" in caplog.text


async def test_block_after_time_out_raises(client: Client) -> None:
    with pytest.raises(InvalidTxnStatusError):
        async with await client.new_transaction(timeout_seconds=0.05) as transaction:
            await until(lambda: transaction.state() is TransactionState.TIME_OUT)


async def test_commit_cancelled_goes_on(fake: FakeBroker, client: Client, coordinators: Coordinators) -> None:
    held: list[tuple[Peer, pb.BaseCommand]] = []
    transaction = await client.new_transaction()
    fake.answers[Kind.END_TXN] = lambda peer, command: held.append((peer, command)) or ()
    committing = asyncio.create_task(transaction.commit())
    await until(lambda: held)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    peer, command = held[0]
    peer.send(*coordinators._answer(peer, command))
    await until(lambda: transaction.state() is TransactionState.COMMITTED)
    assert actions(fake) == [0]


async def test_failed_send_aborts_and_raises_its_error(
    fake: FakeBroker, client: Client, coordinators: Coordinators
) -> None:
    coordinators.errors[Kind.ADD_PARTITION_TO_TXN] = [pb.NotAllowedError]
    producer = await client.create_producer("t")
    transaction = await client.new_transaction()
    with pytest.raises(NotAllowedError):
        await producer.send(b"x", txn=transaction)
    with pytest.raises(NotAllowedError):
        await transaction.commit()
    assert actions(fake) == [1] and not fake.seen(Kind.SEND)


async def test_end_on_another_loop_is_refused(fake: FakeBroker, client: Client) -> None:
    transaction = await client.new_transaction()
    for end in (transaction.commit, transaction.abort):
        with pytest.raises(OperationNotSupported, match="another event loop"):
            await asyncio.to_thread(asyncio.run, end())
    assert transaction.state() is TransactionState.OPEN and not actions(fake)
    await transaction.abort()
