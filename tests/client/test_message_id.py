"""Message ids: order, equality, and bytes that the Java and the official Python client write and read too."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pulsar as official
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native import message_id
from pulsar_native.exceptions import InvalidMessage
from pulsar_native.message_id import MessageId
from pulsar_native.wire import _impl
from pulsar_native.wire import pulsar_api_pb2 as pb

MAX_I64 = (1 << 63) - 1
MAX_I32 = (1 << 31) - 1

positions = st.tuples(
    st.integers(-1, 3) | st.integers(-1, MAX_I32),
    st.integers(-1, 3) | st.integers(-1, MAX_I64),
    st.integers(-1, 3) | st.integers(-1, MAX_I64),
    st.integers(-1, 3) | st.integers(-1, MAX_I32),
)


def fields(message_id: MessageId) -> tuple[int, ...]:
    return (
        message_id.partition(),
        message_id.ledger_id(),
        message_id.entry_id(),
        message_id.batch_index(),
        message_id.batch_size(),
    )


# What a Java client 4.2.4 wrote.
JAVA = {
    "earliest": (MessageId.earliest, "08 ffffffffffffffffff01 10 ffffffffffffffffff01 30 00"),
    "latest": (MessageId.latest, "08 ffffffffffffffff7f 10 ffffffffffffffff7f 30 00"),
    "batch": (MessageId(-1, 119, 2, 1, batch_size=3), "08 77 10 02 20 01 30 03"),
}


@pytest.mark.proves("C170")
@pytest.mark.parametrize("name", JAVA)
def test_bytes_are_those_of_the_java_client(name: str) -> None:
    message_id, text = JAVA[name]
    data = bytes.fromhex(text)
    assert message_id.serialize() == data
    assert MessageId.deserialize(data) == message_id
    assert fields(MessageId.deserialize(data)) == fields(message_id)


class Inputs:
    """Numbers and bytes of any kind, to compare the two codecs on."""

    numbers = st.integers(-(1 << 70), 1 << 70) | st.integers(-2, 300)
    data = st.binary(max_size=40) | st.lists(
        st.tuples(st.sampled_from([0x08, 0x10, 0x18, 0x20, 0x30, 0x3A, 0x50, 0x0A]), st.integers(0, 1 << 66)),
        max_size=8,
    ).map(lambda pairs: b"".join(message_id._varint(tag) + message_id._varint(value) for tag, value in pairs))


def outcome(decode: Callable[[bytes, str | None], MessageId], data: bytes) -> object:
    """Return the fields of what is decoded, or the error's text."""
    try:
        found = decode(data, "t")
    except InvalidMessage as error:
        return str(error)
    return fields(found), found.topic_name(), found.first_chunk_message_id()


@pytest.mark.usefixtures("implementation")
@given(Inputs.data, st.lists(Inputs.numbers, min_size=5, max_size=5))
def test_message_id_codecs_do_the_same(data: bytes, numbers: list[int]) -> None:
    general = outcome(lambda body, topic: message_id._decode_any(body, topic, 0), data)
    assert outcome(message_id.decode, data) == outcome(_impl.decode_message_id, data) == general
    position = MessageId(*numbers[:4], batch_size=numbers[4])
    assert _impl.encode_message_id(position) == message_id.encode(position) == position.serialize()


@pytest.mark.proves("C170")
@given(positions)
def test_the_official_client_reads_ours_and_we_read_its(position: tuple[int, int, int, int]) -> None:
    ours, theirs = MessageId(*position), official.MessageId(*position)
    theirs_of_ours = official.MessageId.deserialize(ours.serialize())
    assert theirs_of_ours.partition() == position[0]
    assert theirs_of_ours.ledger_id() == position[1]
    assert theirs_of_ours.entry_id() == position[2]
    assert theirs_of_ours.batch_index() == position[3]
    ours_of_theirs = MessageId.deserialize(theirs.serialize())
    assert fields(ours_of_theirs) == (*position, 0)
    assert ours_of_theirs == ours


@given(positions, positions)
def test_order_refines_the_official_clients(
    first: tuple[int, int, int, int], second: tuple[int, int, int, int]
) -> None:
    ours, theirs = (MessageId(*first), MessageId(*second)), (official.MessageId(*first), official.MessageId(*second))
    assert (ours[0] == ours[1]) == (theirs[0] == theirs[1])
    assert (ours[0] < ours[1]) + (ours[0] == ours[1]) + (ours[0] > ours[1]) == 1
    assert ours[0] != ours[1] or hash(ours[0]) == hash(ours[1])
    # The official client leaves ids that differ in their partition only without an order.
    if theirs[0] < theirs[1]:
        assert ours[0] < ours[1]
    elif theirs[1] < theirs[0]:
        assert ours[1] < ours[0]


@given(positions, st.integers(0, 5000), positions | st.none())
def test_bytes_and_pickles_lose_nothing(
    position: tuple[int, int, int, int], size: int, first: tuple[int, int, int, int] | None
) -> None:
    chunk = None if first is None else MessageId(*first)
    message_id = MessageId(*position, batch_size=size, topic="persistent://public/default/t", first_chunk=chunk)
    for again in (
        MessageId.deserialize(message_id.serialize(), "persistent://public/default/t"),
        pickle.loads(pickle.dumps(message_id)),
    ):
        assert fields(again) == fields(message_id)
        assert again.topic_name() == "persistent://public/default/t"
        assert again.first_chunk_message_id() == chunk
        assert str(again) == str(message_id)


@given(positions, st.integers(0, 5000))
def test_bytes_are_the_protocols_message(position: tuple[int, int, int, int], size: int) -> None:
    data = pb.MessageIdData.FromString(MessageId(*position, batch_size=size).serialize())
    signed = [value - (1 << 64) if value >> 63 else value for value in (data.ledgerId, data.entryId)]
    assert (data.partition, *signed, data.batch_index, data.batch_size) == (*position, size)


def test_bytes_with_fields_of_other_clients_are_read() -> None:
    first = pb.MessageIdData(ledgerId=1, entryId=2, partition=-1, batch_index=-1)
    data = pb.MessageIdData(
        ledgerId=5, entryId=6, partition=-1, batch_index=3, ack_set=[-2, 1], first_chunk_message_id=first
    )
    read = MessageId.deserialize(data.SerializeToString())
    assert fields(read) == (-1, 5, 6, 3, 0)
    assert read.first_chunk_message_id() == MessageId(-1, 1, 2, -1)


@given(st.binary(max_size=40))
def test_other_bytes_are_refused_or_read_but_never_break(data: bytes) -> None:
    try:
        read = MessageId.deserialize(data)
    except InvalidMessage:
        return
    assert MessageId.deserialize(read.serialize()) == read


@pytest.mark.parametrize(
    "data", [b"", b"\x08", b"\x08\x01", b"\x10\x01", b"hello", b"\x08" + b"\xff" * 11, b"\x08\x01\x10\x02\x3a\x05\x08"]
)
def test_bytes_that_are_no_id(data: bytes) -> None:
    with pytest.raises(InvalidMessage, match="serialized message id"):
        MessageId.deserialize(data)


def test_an_entry_comes_before_its_messages_and_partitions_last() -> None:
    ordered = [
        MessageId.earliest,
        MessageId(0, 1, 0, -1),
        MessageId(0, 1, 0, 0),
        MessageId(1, 1, 0, 0),
        MessageId(0, 1, 0, 1),
        MessageId(0, 1, 1, -1),
        MessageId(0, 2, 0, -1),
        MessageId.latest,
    ]
    shuffled = ordered[4:] + ordered[:4]
    assert sorted(shuffled) == ordered


def test_topic_and_size_take_no_part_in_equality() -> None:
    plain, other = MessageId(0, 1, 2, 3), MessageId(0, 1, 2, 3, batch_size=9, topic="t")
    assert plain == other and hash(plain) == hash(other) and len({plain, other}) == 1
    assert (plain.topic_name(), other.topic_name()) == (None, "t")
    assert MessageId.wrap(plain) is plain
    assert plain != (0, 1, 2, 3)
    with pytest.raises(TypeError):
        assert plain < (0, 1, 2, 3)  # type: ignore[operator]
    assert (str(plain), repr(plain)) == ("1:2:0:3", "MessageId(1:2:0:3)")
