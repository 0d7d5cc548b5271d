"""Transaction of the sync API on a fake broker: what its block does at the end, and which error is raised."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from pulsar_native import Client
from pulsar_native.enums import TransactionState
from pulsar_native.exceptions import InvalidTxnStatusError, NotAllowedError, TransactionNotFound
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker
from support.fake_coordinators import Coordinators
from support.until import wait_until


@pytest.fixture
def coordinators(fake: FakeBroker) -> Coordinators:
    """Give the coordinators of the fake broker."""
    return Coordinators(fake)


@pytest.fixture
def client(fake: FakeBroker, coordinators: Coordinators) -> Iterator[Client]:
    """Give a client of the fake broker."""
    with Client(fake.url, operation_timeout_seconds=5) as made:
        yield made


def actions(fake: FakeBroker) -> list[int]:
    """Return what END_TXN asked for: 0 to commit, 1 to abort."""
    return [seen.command.endTxn.txn_action for seen in fake.seen(Kind.END_TXN)]


def test_block_commits_at_its_end(fake: FakeBroker, client: Client) -> None:
    with client.new_transaction() as transaction:
        assert transaction.state() is TransactionState.OPEN and not actions(fake)
    assert actions(fake) == [0] and transaction.state() is TransactionState.COMMITTED
    with pytest.raises(InvalidTxnStatusError):
        transaction.commit()


def test_block_error_aborts_and_is_raised(fake: FakeBroker, client: Client) -> None:
    with pytest.raises(KeyError), client.new_transaction() as transaction:
        raise KeyError("of the block")
    assert actions(fake) == [1] and transaction.state() is TransactionState.ABORTED


def test_block_error_precedes_failed_abort(
    fake: FakeBroker, client: Client, coordinators: Coordinators, caplog: pytest.LogCaptureFixture
) -> None:
    coordinators.errors[Kind.END_TXN] = [pb.TransactionNotFound]
    with pytest.raises(KeyError), client.new_transaction() as transaction:
        raise KeyError("of the block")
    assert "could not be aborted" in caplog.text and str(transaction.txn_id()) in caplog.text


def test_block_may_end_it_itself(fake: FakeBroker, client: Client) -> None:
    with client.new_transaction() as transaction:
        transaction.abort()
    assert actions(fake) == [1]


def test_block_after_time_out_raises(fake: FakeBroker, client: Client) -> None:
    with pytest.raises(InvalidTxnStatusError), client.new_transaction(timeout_seconds=0.05) as transaction:
        wait_until(lambda: transaction.state() is TransactionState.TIME_OUT)


def test_commit_refused_raises_the_brokers_error(client: Client, coordinators: Coordinators) -> None:
    coordinators.errors[Kind.END_TXN] = [pb.TransactionNotFound]
    transaction = client.new_transaction()
    with pytest.raises(TransactionNotFound):
        transaction.commit()
    assert transaction.state() is TransactionState.ERROR


def test_failed_send_aborts_and_raises_its_error(fake: FakeBroker, client: Client, coordinators: Coordinators) -> None:
    coordinators.errors[Kind.ADD_PARTITION_TO_TXN] = [pb.NotAllowedError]
    producer = client.create_producer("t")
    transaction = client.new_transaction()
    with pytest.raises(NotAllowedError):
        producer.send(b"x", txn=transaction)
    with pytest.raises(NotAllowedError):
        transaction.commit()
    assert actions(fake) == [1] and not fake.seen(Kind.SEND)


def test_transaction_is_not_picklable(client: Client) -> None:
    with client.new_transaction() as transaction, pytest.raises(TypeError, match="Transaction cannot be pickled"):
        pickle.dumps(transaction)
