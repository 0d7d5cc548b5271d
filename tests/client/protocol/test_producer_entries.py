"""A producer's entries: chunks, key-based batches, and exact bytes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.config import ProducerConfig
from pulsar_native.enums import BatchingType, CompressionType
from pulsar_native.exceptions import InvalidConfiguration, MessageTooBig, NotAllowedError, PulsarException
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.producer import NoRoomForChunks, ProducerCore
from pulsar_native.protocol.send_op import ChunkOp, SendOp, SendReceipt
from pulsar_native.wire.compression import decompress
from support.entry_bytes import assemble
from support.producer_cores import TOPIC, add, bytes_of, core, read

# As an unsigned field has it.
MINUS_ONE = (1 << 64) - 1


def chunking(**options: Any) -> ProducerCore:
    return core(**{"batching_enabled": False, "chunking_enabled": True, "max_message_size": 2000, **options})


class Outcome:
    """A send callback that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[PulsarException | None, MessageId | None]] = []

    def __call__(self, error: PulsarException | None, place: MessageId | None) -> None:
        self.told.append((error, place))


def confirm(made: ProducerCore, entry: int) -> None:
    """Hand in the receipt of the oldest entry."""
    outcome, op = made.queue.receipt(made.queue.ops[0].sequence_id)
    assert outcome is SendReceipt.COMPLETED and op is not None
    op.complete(None, (2, 7, entry), TOPIC)


def chunks_of(made: ProducerCore) -> list[ChunkOp]:
    """Return the pending entries, all of them chunks."""
    return [op for op in made.queue.ops if isinstance(op, ChunkOp)]


# --- chunks -----------------------------------------------------------------------------------------------------


@pytest.mark.proves("C61")
def test_chunking_needs_persistent_topic_no_batching() -> None:
    with pytest.raises(InvalidConfiguration, match="batching_enabled=False"):
        ProducerConfig(topic="t", chunking_enabled=True, batching_enabled=True)
    with pytest.raises(InvalidConfiguration, match="persistent"):
        ProducerConfig(topic="non-persistent://a/b/t", chunking_enabled=True)
    with pytest.raises(InvalidConfiguration, match="chunk_max_message_size"):
        ProducerConfig(topic="t", chunking_enabled=True, chunk_max_message_size=-2)


@pytest.mark.proves("C61", "C80")
@given(
    size=st.integers(0, 5000),
    largest=st.integers(600, 3000),
    chunk=st.sampled_from([-1, 0, 300, 1500, 10_000]),
    compression=st.sampled_from([CompressionType.NONE, CompressionType.ZLib]),
)
def test_chunks_join_to_body_within_size(size: int, largest: int, chunk: int, compression: CompressionType) -> None:
    made = chunking(max_message_size=largest, chunk_max_message_size=chunk, compression_type=compression)
    payload = random.Random(size).randbytes(size)
    ops = add(made, payload, partition_key="k", properties={"a": "b" * 50})
    read_back = [read(op).entry for op in ops]
    body = b"".join(bytes(entry.body) for entry in read_back)
    if compression is not CompressionType.NONE:
        body = decompress(compression, body, size, 1 << 24)
    assert body == payload
    # Java's broker takes metadata and body up to the size of the handshake; some bytes stay free for its storage.
    assert all(len(e.metadata.SerializeToString()) + len(e.body) <= largest - 128 for e in read_back)
    assert chunk < 1 or all(len(entry.body) <= chunk for entry in read_back)
    chunked = len(ops) > 1
    for number, (op, entry) in enumerate(zip(ops, read_back, strict=True)):
        metadata = entry.metadata
        assert (metadata.partition_key, metadata.properties[0].key, metadata.uncompressed_size) == ("k", "a", size)
        assert read(op).command.is_chunk == chunked == metadata.HasField("uuid")
        # Only the last chunk counts as the message.
        is_counted = number == len(ops) - 1
        assert read(op).command.sequence_id == 0 and metadata.sequence_id == (0 if is_counted else MINUS_ONE)
        assert metadata.highest_sequence_id == (0 if is_counted else MINUS_ONE)
        if chunked:
            total = sum(len(each.body) for each in read_back)
            assert (metadata.uuid, metadata.num_chunks_from_msg) == ("the-name-0", len(ops))
            assert (metadata.chunk_id, metadata.total_chunk_msg_size) == (number, total)


def test_chunks_before_the_last_count_as_the_message_before() -> None:
    made = chunking()
    made.connected("the-name", 6, b"", 2000)
    entries = [read(op) for op in add(made, bytes(5000))]
    assert [entry.command.sequence_id for entry in entries] == [7, 7, 7]
    assert [entry.entry.metadata.sequence_id for entry in entries] == [6, 6, 7]
    assert not any(entry.entry.metadata.HasField("highest_sequence_id") for entry in entries)


def test_chunks_the_broker_has_are_sent_by_the_last() -> None:
    made = chunking(max_pending=10)
    outcomes = [Outcome() for _ in range(3)]
    for outcome in outcomes:
        add(made, bytes(5000), callback=outcome)
    # Attached again, the broker has the first two; the second time it has the third one, too.
    made.connected("the-name", 1, b"", 2000)
    waiting = [(op.sequence_id, op.is_alone) for op in chunks_of(made)]
    assert waiting == [(0, True), (1, True), (2, False), (2, False), (2, False)] and made.pending_messages == 5
    for place in (-1, -1, 7):
        confirm(made, place)
    made.connected("the-name", 2, b"", 2000)
    assert [(op.sequence_id, op.is_last, op.is_alone) for op in chunks_of(made)] == [(2, True, True)]
    confirm(made, -1)
    assert [(error, place.entry_id()) for outcome in outcomes for error, place in outcome.told] == [(None, -1)] * 3
    assert (made.pending_messages, made.pending_bytes) == (0, 0)
    # A message with an id that the broker has: the same.
    (again,) = add(made, bytes(5000), sequence_id=1)
    assert isinstance(again, ChunkOp) and again.is_alone and again.is_last
    # No longer deduplicated.
    made.connected("the-name", -1, b"", 2000)
    assert len(add(made, bytes(5000), sequence_id=2)) == 3


@pytest.mark.proves("C79", "C80")
def test_chunks_count_each_last_receipt_completes() -> None:
    made = chunking(max_pending=10)
    outcome = Outcome()
    ops = add(made, bytes(5000), callback=outcome)
    assert len(ops) == made.pending_messages == 3 and made.pending_bytes == 5000
    add(made, b"next")
    assert [op.sequence_id for op in made.queue.ops] == [0, 0, 0, 1]
    confirm(made, 5)
    assert (made.queue.last_published, outcome.told, made.pending_messages) == (-1, [], 3)
    confirm(made, 8)
    confirm(made, 9)
    ((error, place),) = outcome.told
    assert error is None and place is not None and made.queue.last_published == 0
    assert (place.entry_id(), place.partition(), place.batch_index()) == (9, 2, -1)
    first = place.first_chunk_message_id()
    assert first is not None and (first.ledger_id(), first.entry_id(), first.partition()) == (7, 5, 2)
    assert MessageId.deserialize(place.serialize()).first_chunk_message_id() == first
    confirm(made, 10)
    assert (made.pending_messages, made.pending_bytes, made.queue.last_published) == (0, 0, 1)


@pytest.mark.proves("C79", "C80")
def test_chunks_all_or_none_in_queue() -> None:
    made = chunking(max_pending=4)
    add(made, b"1")
    add(made, b"2")
    with pytest.raises(NoRoomForChunks) as full:
        add(made, bytes(5000))
    assert full.value.needed == 3 and made.pending_messages == 2
    confirm(made, 1)
    assert [op.sequence_id for op in add(made, bytes(5000))] == [2, 2, 2]
    with pytest.raises(MessageTooBig, match="max_pending_messages"):
        add(made, bytes(10_000))
    assert made.pending_messages == 4 and made.last_pushed == 2


@pytest.mark.proves("C80")
def test_chunk_metadata_too_large_raises() -> None:
    made = chunking(max_message_size=500)
    with pytest.raises(MessageTooBig, match="metadata"):
        add(made, b"x", properties={"a": "b" * 500})
    assert not made.queue.ops and made.pending_messages == 0


@pytest.mark.proves("C80")
def test_chunk_refused_fails_all() -> None:
    made = chunking()
    outcome = Outcome()
    add(made, bytes(5000), callback=outcome)
    add(made, b"next")
    confirm(made, 1)
    made.queue.refuse(0, NotAllowedError("no"))
    ((op, error),) = made.queue.take_refused()
    assert [each.sequence_id for each in made.queue.ops] == [1]
    op.complete(error, None, TOPIC)
    assert isinstance(outcome.told[0][0], NotAllowedError) and (made.pending_messages, made.pending_bytes) == (1, 4)
    # The receipt of a chunk that was on its way belongs to nobody any more.
    assert made.queue.receipt(0) == (SendReceipt.IGNORED, None)


@pytest.mark.proves("C80")
def test_chunk_timeout_fails_all() -> None:
    made = chunking()
    outcome = Outcome()
    add(made, bytes(5000), callback=outcome)
    confirm(made, 1)
    late = made.expire(1000.0)
    assert [op.size for op in late] == [0, 5000] and made.pending_messages == 0


@pytest.mark.proves("C65", "C80")
def test_chunk_duplicate_has_no_position() -> None:
    made = chunking()
    # The broker answers for the last chunk, the one it drops, before it has stored the others.
    for places in ([-1, -1, -1], [-1, 5, 6], [5, 6, -1]):
        outcome = Outcome()
        for op, number in zip(add(made, bytes(5000), callback=outcome), places, strict=True):
            op.complete(None, (2, min(number, 7), number), TOPIC)
        ((_, place),) = outcome.told
        assert place is not None and (place.ledger_id(), place.entry_id()) == (-1, -1)
        assert place.first_chunk_message_id() is None


def test_chunking_skipped_if_compressed_fits() -> None:
    made = chunking(compression_type=CompressionType.ZLib)
    (op,) = add(made, bytes(100_000))
    assert not read(op).command.is_chunk and not read(op).entry.metadata.HasField("uuid")


# --- by key -----------------------------------------------------------------------------------------------------


def by_key(**options: Any) -> ProducerCore:
    return core(**{"batching_type": BatchingType.KeyBased, **options})


def contents(ops: list[SendOp]) -> list[list[tuple[int, bytes]]]:
    return [read(op).messages for op in ops]


@pytest.mark.proves("C52", "C73")
def test_key_based_batches_by_highest_id() -> None:
    made = by_key()
    # The ordering key decides before the partition key; none is a key of its own.
    for number, parts in enumerate(
        [
            {"partition_key": "a"},
            {"partition_key": "b"},
            {"partition_key": "b"},
            {"partition_key": "a"},
            {"ordering_key": "a", "partition_key": "b"},
            {},
            {"partition_key": "a"},
            {"ordering_key": "a"},
        ]
    ):
        assert add(made, b"%d" % number, **parts) == []
    ops = made.close_batch()
    assert contents(ops) == [
        [(1, b"1"), (2, b"2")],
        [(5, b"5")],
        [(0, b"0"), (3, b"3"), (6, b"6")],
        [(4, b"4"), (7, b"7")],
    ]
    # As Java writes it: the command names the highest id twice, since ids must grow from one entry to the next.
    commands = [(read(op).command.sequence_id, read(op).command.highest_sequence_id) for op in ops]
    assert commands == [(2, 2), (5, 0), (6, 6), (7, 7)]
    metadata = [read(op).entry.metadata for op in ops]
    assert [(m.sequence_id, m.highest_sequence_id) for m in metadata] == [(1, 2), (5, 0), (0, 6), (4, 7)]
    assert [(m.partition_key, m.ordering_key) for m in metadata] == [("b", b""), ("", b""), ("a", b""), ("b", b"a")]
    assert [read(op).entry.is_batch for op in ops] == [True, False, True, True]
    for op in ops:
        assert made.queue.receipt(op.sequence_id)[1] is op
    assert (made.pending_messages, made.queue.last_published) == (0, 7)


@pytest.mark.proves("C54", "C55")
def test_key_based_batches_limits_over_all_keys() -> None:
    made = by_key(batching_max_messages=3)
    assert add(made, b"0", partition_key="a") == add(made, b"1", partition_key="b") == []
    assert contents(add(made, b"2", partition_key="a")) == [[(1, b"1")], [(0, b"0"), (2, b"2")]]


def test_key_based_batch_of_one_keeps_fields() -> None:
    made = by_key()
    parts: dict[str, Any] = {
        "partition_key": "aw==", "key_is_base64": True, "properties": {"x": "y"}, "event_timestamp": 9,
        "ordering_key": "é",
    }  # fmt: skip
    add(made, b"0", **parts)
    add(made, b"", partition_key="gone", null_value=True)
    one, gone = (read(op).entry.metadata for op in made.close_batch())
    assert (one.partition_key, one.partition_key_b64_encoded, one.event_time) == ("aw==", True, 9)
    assert (one.properties[0].value, one.ordering_key.decode()) == ("y", "é")
    assert gone.null_value and gone.partition_key == "gone"


# --- to the byte ------------------------------------------------------------------------------------------------


@pytest.mark.proves("C73")
def test_batch_bytes() -> None:
    made = core()
    add(made, b"one", partition_key="key")
    add(made, b"two", properties={"a": "b"})
    (op,) = made.close_batch()
    # Sizes of the metadata and of the payload, the message's own fields, its sequence id, the payload; twice.
    first = bytes.fromhex("00000009 1803 1203 6b6579 4000") + b"one"
    second = bytes.fromhex("0000000c 1803 0a06 0a0161 120162 4001") + b"two"
    assert bytes(read(op).entry.body) == first + second
    # Name, first id, publish time, the first message's key, number of messages, base64 flag, highest id.
    metadata = bytes.fromhex("0a08 7468652d6e616d65 1000 1880d095ffbc31 32036b6579 5802 880100 c00101")
    # SEND of producer 7: first id, number of messages, highest id.
    command = bytes.fromhex("0806 3208 0807 1000 1802 3001")
    rest = assemble(metadata, first + second)
    assert bytes_of(op) == len_of(4 + len(command) + len(rest)) + len_of(len(command)) + command + rest


def len_of(number: int) -> bytes:
    return number.to_bytes(4, "big")
