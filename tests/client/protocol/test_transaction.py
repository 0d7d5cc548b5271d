"""Transaction state machine, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native.config import ProducerConfig
from pulsar_native.enums import TransactionState
from pulsar_native.exceptions import InvalidTxnStatusError, NotConnected, Timeout, TransactionConflict
from pulsar_native.message import OutgoingMessage
from pulsar_native.protocol.producer import NoRoomForChunks, ProducerCore
from pulsar_native.protocol.transaction import NotRegistered, TransactionCore
from pulsar_native.txn_id import TxnId
from pulsar_native.wire.entry import parse_entry
from pulsar_native.wire.frames import FrameDecoder

TOPIC = "persistent://public/default/t"
SUB = (TOPIC, "sub")


@pytest.fixture
def core() -> TransactionCore:
    """Give a transaction of 10 seconds that began at 100."""
    return TransactionCore(TxnId(3, 7), 10.0, 100.0)


def test_counts_pending_operations(core: TransactionCore) -> None:
    core.begin(100.0)
    core.begin(101.0)
    core.begin_end(commit=True)
    assert core.state is TransactionState.COMMITTING
    with pytest.raises(InvalidTxnStatusError, match=r"\(3,7\) is COMMITTING"):
        core.begin(102.0)
    assert not core.finish(None)
    assert core.finish(None)
    assert core.seal()
    core.ended(None)
    assert core.state is TransactionState.COMMITTED


def test_failed_operation_aborts(core: TransactionCore) -> None:
    first, second = Timeout("first"), Timeout("second")
    core.begin(100.0)
    core.begin(100.0)
    core.finish(first)
    # It takes more: who looks at the outcome is told of it, who does not finds out at the end.
    core.begin(100.0)
    core.finish(second)
    core.finish(None)
    core.begin_end(commit=True)
    assert not core.seal()
    assert core.failure is first
    core.ended(None)
    assert core.state is TransactionState.ABORTED


def test_failed_end_raises(core: TransactionCore) -> None:
    core.begin_end(commit=False)
    assert core.state is TransactionState.ABORTING and not core.seal()
    core.ended(NotConnected())
    assert core.state is TransactionState.ERROR
    with pytest.raises(InvalidTxnStatusError, match="is ERROR"):
        core.begin_end(commit=False)


@pytest.mark.parametrize("begin", [lambda core: core.begin(110.0), lambda core: core.check_writable(TOPIC, 110.0)])
def test_deadline_ends_writes(core: TransactionCore, begin: Callable[[TransactionCore], Any]) -> None:
    core.begin(109.9)
    core.check_writable(TOPIC, 109.9)
    # Also when nobody has looked at the clock yet.
    with pytest.raises(InvalidTxnStatusError, match="timed out after 10 s"):
        begin(core)
    assert core.expire()
    assert core.state is TransactionState.TIME_OUT and core.is_sealed
    with pytest.raises(InvalidTxnStatusError, match="timed out after 10 s"):
        core.begin_end(commit=True)
    core.ended(None)
    assert core.state is TransactionState.TIME_OUT


def test_deadline_ignored_after_end_began(core: TransactionCore) -> None:
    core.begin_end(commit=True)
    core.seal()
    assert not core.expire()
    with pytest.raises(InvalidTxnStatusError):
        core.check_writable(TOPIC, 101.0)
    core.ended(None)
    assert core.state is TransactionState.COMMITTED


def test_refused_partition(core: TransactionCore) -> None:
    error = core.refused["other"] = NotConnected()
    core.check_writable(TOPIC, 101.0)
    with pytest.raises(NotConnected) as raised:
        core.check_writable("other", 101.0)
    assert raised.value is error


def test_give_up(core: TransactionCore) -> None:
    core.give_up()
    assert core.state is TransactionState.ERROR and core.is_sealed
    ended = TransactionCore(TxnId(0, 0), 1.0, 0.0)
    ended.begin_end(commit=True)
    ended.seal()
    ended.ended(None)
    ended.give_up()
    assert ended.state is TransactionState.COMMITTED


def test_acknowledge_entries_or_words(core: TransactionCore) -> None:
    items = core.acknowledge(SUB, [((1, 1), -1, 0), ((1, 2), 0, 3), ((1, 2), 2, 3), ((1, 3), 64, 70)])
    assert items == [(1, 1, None, 0), (1, 2, [0b010], 3), (1, 3, [-1, 0b111110], 70)]
    # Only what is asked for now: the broker puts it together with what it has.
    assert core.acknowledge(SUB, [((1, 2), 1, 3)]) == [(1, 2, [0b101], 3)]
    assert core.acknowledged(SUB) == {(1, 1): 1, (1, 2): 0b111, (1, 3): 1 << 64}
    assert core.acknowledge((TOPIC, "other"), [((1, 1), -1, 0)]) == [(1, 1, None, 0)]
    whole = [((2, 1), index, 2) for index in range(2)]
    assert core.acknowledge(SUB, whole) == [(2, 1, None, 2)]


@pytest.mark.parametrize("again", [[((1, 1), -1, 0)], [((5, 5), -1, 0), ((1, 2), 0, 3)], [((9, 9), 1, 2)] * 2])
def test_acknowledge_counts_message_once(core: TransactionCore, again: list[Any]) -> None:
    core.acknowledge(SUB, [((1, 1), -1, 0), ((1, 2), 0, 3)])
    with pytest.raises(TransactionConflict, match="already"):
        core.acknowledge(SUB, again)
    assert core.acknowledged(SUB) == {(1, 1): 1, (1, 2): 1}


# ---- in a producer ---------------------------------------------------------------------------------------------------


def producer(**options: Any) -> ProducerCore:
    """Return a connected producer."""
    made = ProducerCore(
        ProducerConfig(topic=TOPIC, **options), 1, topic=TOPIC, partition=-1, max_pending=options.get("room", 0)
    )
    made.connected("p", -1, b"", 5_000)
    return made


def add(core: ProducerCore, payload: bytes, transaction: TransactionCore | None, now: float = 101.0) -> list[Any]:
    """Send a message and return what is to be written."""
    message = OutgoingMessage(payload)
    message.transaction = transaction
    return core.add(payload, b"", message, None, now, 0)


def frames(ops: list[Any]) -> list[Any]:
    """Return command and metadata of what is to be written."""
    found = FrameDecoder().receive(b"".join(bytes(part) for op in ops for part in op.parts))
    return [(frame.command.send, parse_entry(frame.payload).metadata) for frame in found]


def test_add_before_registration_raises(core: TransactionCore) -> None:
    made = producer(batching_enabled=True)
    with pytest.raises(NotRegistered) as raised:
        add(made, b"x", core)
    assert raised.value.transaction is core and not made.pending_messages and not made.batch_is_open
    made.transactions.add(core)
    add(made, b"x", core)
    assert made.pending_messages == 1


def test_batch_has_one_transaction(core: TransactionCore) -> None:
    made, other = producer(batching_enabled=True), TransactionCore(TxnId(0, 0), 10.0, 100.0)
    made.transactions |= {core, other}
    ops = [op for transaction in (core, core, None, None, other, core) for op in add(made, b"x", transaction)]
    ops += made.close_batch()
    ids = [
        ((send.txnid_most_bits, send.txnid_least_bits) if send.HasField("txnid_most_bits") else None, send.num_messages)
        for send, _ in frames(ops)
    ]
    assert ids == [((3, 7), 2), (None, 2), ((0, 0), 1), ((3, 7), 1)]
    for send, metadata in frames(ops):
        assert metadata.HasField("txnid_most_bits") == send.HasField("txnid_most_bits")
        assert (metadata.txnid_most_bits, metadata.txnid_least_bits) == (send.txnid_most_bits, send.txnid_least_bits)


def test_own_entries_and_chunks_in_transaction(core: TransactionCore) -> None:
    made = producer(batching_enabled=True)
    made.transactions.add(core)
    add(made, b"open", None)
    kind = made.kind_in(core, None, 101.0)
    ops = made.add_entry([b"a", b"b"], 2, None, None, lambda *_: None, 101.0, 0, kind)
    assert [send.txnid_least_bits for send, _ in frames(ops)] == [0, 7]
    chunking = producer(chunking_enabled=True, batching_enabled=False)
    chunking.transactions.add(core)
    sent = frames(add(chunking, b"x" * 12_000, core))
    assert len(sent) > 2 and {send.txnid_least_bits for send, _ in sent} == {7}
    assert all(send.is_chunk and metadata.txnid_most_bits == 3 for send, metadata in sent)


def test_remove_ended_from_queue_and_batch(core: TransactionCore) -> None:
    made = producer(batching_enabled=True)
    made.transactions.add(core)
    add(made, b"plain", None)
    made.close_batch()
    add(made, b"in it", core)
    made.close_batch()
    add(made, b"behind", None)
    made.close_batch()
    add(made, b"open", core)
    assert made.remove_ended(109.9) == []
    taken = made.remove_ended(110.0)
    assert [(op.sequence_id, op.transaction) for op in taken] == [(1, core), (3, core)]
    assert [op.sequence_id for op in made.queue.ops] == [0, 2] and made.pending_messages == 2
    assert not made.transactions
    # Receipts of what was written before mean nothing any more, and disturb nothing.
    assert [made.queue.receipt(number)[1] is not None for number in (0, 1, 2)] == [True, False, True]


def test_remove_doubtful_unless_deduplicated(core: TransactionCore) -> None:
    made = producer(batching_enabled=False)
    made.transactions.add(core)
    add(made, b"in it", core)
    add(made, b"plain", None)
    made.disconnected()
    # Not written yet, so written for the first time on the next connection.
    add(made, b"later", core)
    assert made.remove_doubtful(0) == []
    assert [op.sequence_id for op in made.remove_doubtful(-1)] == [0]
    assert [op.sequence_id for op in made.queue.ops] == [1, 2] and made.pending_messages == 2
    made.disconnected()
    assert [op.sequence_id for op in made.remove_doubtful(-1)] == [2]


def test_plain_batch_stays_open(core: TransactionCore) -> None:
    made = producer(batching_enabled=True)
    made.transactions.add(core)
    add(made, b"in it", core)
    add(made, b"plain", None)
    core.expire()
    assert len(made.remove_ended(101.0)) == 1
    assert made.batch_is_open
    with pytest.raises(InvalidTxnStatusError):
        add(made, b"late", core)


def test_has_room_in_transaction(core: TransactionCore) -> None:
    made = ProducerCore(
        ProducerConfig(topic=TOPIC, chunking_enabled=True, batching_enabled=False), 1,
        topic=TOPIC, partition=-1, max_pending=3,
    )  # fmt: skip
    made.connected("p", -1, b"", 5_000)
    made.transactions.add(core)
    add(made, b"x", core)
    with pytest.raises(NoRoomForChunks):
        add(made, b"x" * 12_000, core)


def test_acknowledge_whole_batch_then_message_raises(core: TransactionCore) -> None:
    assert core.acknowledge(SUB, [((1, 1), -1, 3)]) == [(1, 1, None, 3)]
    assert core.acknowledged(SUB) == {(1, 1): 0b111}
    with pytest.raises(TransactionConflict, match="1:1:2"):
        core.acknowledge(SUB, [((1, 1), 2, 3)])
