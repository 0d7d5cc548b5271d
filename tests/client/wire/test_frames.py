"""Frames: encoding, and decoding of any split of the stream."""

from __future__ import annotations

import logging
import struct
import tracemalloc
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.exceptions import ProtocolViolation
from pulsar_native.wire import _impl
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.checksum import crc32c
from pulsar_native.wire.frames import VARINT_LAST, VARINT_MORE, Frame, FrameDecoder, encode_command, encode_send, varint
from support.wire_strategies import commands, described

pytestmark = pytest.mark.usefixtures("implementation")

LIMIT = 1 << 20
PING = pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())


def frame(command: bytes, payload: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(command) + len(payload), len(command)) + command + payload


def received(pieces: Iterable[bytes], limit: int = LIMIT) -> list[Frame]:
    """Feed pieces through one reused buffer, as a connection does."""
    decoder = FrameDecoder(limit, _impl.cut_messages)
    buffer = bytearray(1 << 16)
    frames: list[Frame] = []
    for piece in pieces:
        for start in range(0, len(piece), len(buffer)):
            part = piece[start : start + len(buffer)]
            buffer[: len(part)] = part
            frames += decoder.receive(memoryview(buffer)[: len(part)])
            buffer[:] = b"\xaa" * len(buffer)
    return frames


def test_encode_command_ping_known_bytes() -> None:
    # type = 18 (PING), and an empty message in field 18.
    assert encode_command(PING) == bytes.fromhex("00000009 00000005 0812 920100")


def test_encode_send_known_bytes() -> None:
    command = pb.BaseCommand(type=pb.BaseCommand.SEND, send=pb.CommandSend(producer_id=1, sequence_id=2))
    payload = b"hello"
    parts = encode_send(command, b"\x0a\x01p\x10\x02\x18\x03", payload)
    covered = bytes.fromhex("00000007 0a0170 1002 1803") + payload
    checksum = struct.pack(">I", crc32c(covered))
    expected = bytes.fromhex("00000022 00000008 0806 32 04 0801 1002 0e01") + checksum + covered
    assert b"".join(parts) == expected
    assert len(parts) == 2 and parts[1] is payload
    assert received([expected]) == [Frame(command, expected[16:])]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Frame], list[int]]:
    frames = [
        Frame(command, draw(st.binary(max_size=40) | st.just(bytes(70_000))))
        for command in draw(st.lists(commands(), max_size=6))
    ]
    size = sum(8 + one.command.ByteSize() + len(one.payload) for one in frames)
    return frames, sorted(draw(st.lists(st.integers(0, size), max_size=12)))


@given(streams())
def test_receive_any_split_same_frames(stream: tuple[list[Frame], list[int]]) -> None:
    frames, cuts = stream
    data = b"".join(frame(one.command.SerializeToString(), one.payload) for one in frames)
    pieces = [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert described(received(pieces)) == described(frames)
    assert all(type(one.payload) is bytes for one in received(pieces))


@given(streams())
def test_receive_byte_by_byte_same_frames(stream: tuple[list[Frame], list[int]]) -> None:
    frames = [Frame(one.command, one.payload[:50]) for one in stream[0]]
    data = b"".join(frame(one.command.SerializeToString(), one.payload) for one in frames)
    assert described(received(data[i : i + 1] for i in range(len(data)))) == described(frames)


def test_receive_large_frame_in_one_buffer() -> None:
    payload = bytes(8_000_000)
    head = frame(PING.SerializeToString(), payload)[:20]
    decoder = FrameDecoder(10_000_000)
    tracemalloc.start()
    try:
        decoder.receive(head)
        part = memoryview(payload)
        frames: list[Frame] = []
        for start in range(20 - 13, len(payload), 65_536):
            frames += decoder.receive(part[start : start + 65_536])
        assert frames == [Frame(PING, payload)]
        assert tracemalloc.get_traced_memory()[1] < 1.05 * len(payload)
    finally:
        tracemalloc.stop()


def test_receive_frame_at_size_limit() -> None:
    command = PING.SerializeToString()
    largest = frame(command, bytes(LIMIT - 8 - len(command)))
    assert len(largest) == LIMIT
    assert len(received([largest])[0].payload) == LIMIT - 8 - len(command)
    with pytest.raises(ProtocolViolation, match="exceeds the limit"):
        received([frame(command, bytes(LIMIT - 7 - len(command)))])


def test_max_frame_size_changes_between_frames() -> None:
    decoder = FrameDecoder(100)
    big = frame(PING.SerializeToString(), bytes(200))
    decoder.max_frame_size = 300
    assert len(decoder.receive(big)) == 1
    decoder.max_frame_size = 100
    with pytest.raises(ProtocolViolation):
        decoder.receive(big)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">II", LIMIT, 5),  # over the limit
        struct.pack(">II", 0xFFFFFFFF, 5),
        struct.pack(">II", 0, 0),  # no room for a command's size
        struct.pack(">II", 3, 0),
        struct.pack(">II", 4, 0),  # an empty command
        struct.pack(">II", 10, 0) + bytes(6),
        struct.pack(">II", 10, 7) + bytes(6),  # a command that would end behind its frame
        struct.pack(">II", 10, 0xFFFFFFFF) + bytes(6),
        frame(b"\xff\xff\xff\xff\xff\xff"),  # no protobuf
        frame(b"\x0a\x7f"),  # a field that would end behind the command
        frame(b"\x10\x05"),  # no type
        frame(b"\x08\x09"),  # MESSAGE without its message
        frame(b"\x08\x09\x4a\x02\x08\x01"),  # MESSAGE without a message id
        frame(b"\x08\x09\x12\x02\x08\x01"),  # MESSAGE with another command's field
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x03\x00\x02\x02\x50" + bytes(9),  # a TLS alert
    ],
)
def test_receive_hostile_frames_raise_at_any_split(data: bytes) -> None:
    for pieces in ([data], [data[i : i + 1] for i in range(len(data))], [data[:8], data[8:]]):
        with pytest.raises(ProtocolViolation):
            received(pieces)


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_receive_garbage(pieces: list[bytes]) -> None:
    try:
        frames = received(pieces)
    except ProtocolViolation:
        return
    assert sum(8 + len(one.payload) for one in frames) <= sum(map(len, pieces))


@given(commands(), st.integers(0, 100), st.integers(0, 255))
def test_receive_damaged_command(command: pb.BaseCommand, place: int, value: int) -> None:
    data = bytearray(frame(command.SerializeToString()))
    data[place % len(data)] = value
    with suppress(ProtocolViolation):
        received([bytes(data)])


def test_receive_after_violation_raises() -> None:
    decoder = FrameDecoder(LIMIT)
    with pytest.raises(ProtocolViolation):
        decoder.receive(struct.pack(">II", 4, 0))
    with pytest.raises(ProtocolViolation, match="before"):
        decoder.receive(encode_command(PING))


def test_receive_over_limit_allocates_nothing() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolViolation):
            FrameDecoder(LIMIT).receive(struct.pack(">II", 0x7FFFFFFF, 5) + PING.SerializeToString())
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("cut", [3, 8, 10, 12, 30])
def test_receive_unknown_command_skipped_logged_once(caplog: pytest.LogCaptureFixture, cut: int) -> None:
    unknown = frame(b"\x08\x63" + b"\x9a\x06\x02\x08\x01", bytes(20))  # type 99 with a field 99
    data = encode_command(PING) + unknown + unknown + encode_command(PING)
    cut += len(encode_command(PING))
    with caplog.at_level(logging.WARNING):
        assert received([data[:cut], data[cut:]]) == [Frame(PING, b""), Frame(PING, b"")]
    assert [record.getMessage() for record in caplog.records] == [
        "Skipping commands of type 99, which this client does not know"
    ]


def test_receive_unknown_error_code_accepted() -> None:
    data = frame(bytes.fromhex("080e 72 08 0805 1063 1a02 6f68"))  # ERROR, request 5, error 99, "oh"
    (got,) = received([data])
    assert (got.command.error.request_id, got.command.error.message) == (5, "oh")
    assert got.command.error.error == pb.UnknownError


def test_encode_command_missing_field_raises() -> None:
    with pytest.raises(Exception, match="request_id"):
        encode_command(pb.BaseCommand(type=pb.BaseCommand.SUCCESS, success=pb.CommandSuccess()))


# --- one command by itself ----------------------------------------------------------------------------------------


@given(st.integers(0, 1 << 40), st.integers(0, (1 << 64) - 1), commands(), st.data())
def test_only_command_whole_and_alone(number: int, entry: int, other: pb.BaseCommand, data: st.DataObject) -> None:
    place = pb.MessageIdData(ledgerId=7, entryId=entry)
    receipt = pb.CommandSendReceipt(producer_id=1, sequence_id=number, message_id=place)
    command = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT, send_receipt=receipt)
    whole = encode_command(command)
    decoder = FrameDecoder()
    assert decoder.only_command(whole) == command
    assert decoder.only_command(whole + whole) is None
    assert decoder.first_command(whole + whole) == (command, len(whole))
    assert decoder.only_command(encode_command(other)) in (None, other)
    assert decoder.only_command(frame(whole[8:], b"payload")) is None
    cut = data.draw(st.integers(1, len(whole) - 1))
    assert decoder.only_command(whole[:cut]) is None
    decoder.receive(whole[:cut])
    assert decoder.only_command(whole) is None, "it stands behind half a frame"
    assert [found.command for found in decoder.receive(whole[cut:])] == [command]
    assert decoder.only_command(frame(b"\x08\x07")) is None, "a receipt of nothing"


def delivery(message: pb.CommandMessage, payload: bytes = b"payload") -> bytes:
    return frame(pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=message).SerializeToString(), payload)


@pytest.mark.parametrize("partition", [None, -1, 0, 3])
@pytest.mark.parametrize("own", [{}, {"redelivery_count": 2}, {"consumer_epoch": 0}, {"ack_set": [-1, 5]}])
def test_receive_message_fields(own: dict[str, Any], partition: int | None) -> None:
    place = pb.MessageIdData(ledgerId=1 << 40, entryId=3)
    if partition is not None:
        place.partition = partition
    message = pb.CommandMessage(consumer_id=7, message_id=place, **own)
    (found, ping) = received([delivery(message) + frame(PING.SerializeToString())])
    assert found.payload == b"payload" and ping.command == PING
    command = found.command
    assert command.type == pb.BaseCommand.MESSAGE and command.HasField("type") and command.HasField("message")
    got = command.message
    assert (got.consumer_id, got.redelivery_count, list(got.ack_set)) == (
        7,
        own.get("redelivery_count", 0),
        own.get("ack_set", []),
    )
    assert (got.message_id.ledgerId, got.message_id.entryId) == (1 << 40, 3)
    assert got.message_id.partition == (-1 if partition is None else partition)
    assert got.HasField("consumer_epoch") is ("consumer_epoch" in own) and got.consumer_epoch == 0
    with pytest.raises(ValueError):
        got.HasField("nothing")


def test_receive_message_last_partition_counts() -> None:
    place = "0807 1003 1803 18ffffffffffffffffff01"
    body = bytes.fromhex(f"0809 4a15 0807 1211 {place}")
    (found,) = received([frame(body, b"payload")])
    assert found.command.message.message_id.partition == -1


@pytest.mark.parametrize(
    "command",
    [
        # Without an id; an id without an entry; a message id that ends behind the command; a size of 2^40.
        "0809 4a02 0807",
        "0809 4a06 0807 1202 0801",
        "0809 4a06 0807 1209 0801",
        "0809 4a80808080802000",
    ],
)
def test_receive_malformed_message_raises(command: str) -> None:
    with pytest.raises(ProtocolViolation):
        received([frame(bytes.fromhex(command.replace(" ", "")), b"payload")])


def test_receive_messages_up_to_size_limit() -> None:
    message = pb.CommandMessage(consumer_id=7, message_id=pb.MessageIdData(ledgerId=1, entryId=3))
    fits = delivery(message, bytes(LIMIT - len(delivery(message, b""))))
    assert len(fits) == LIMIT and len(received([delivery(message), fits])) == 2
    with pytest.raises(ProtocolViolation, match="exceeds the limit"):
        received([delivery(message) + delivery(message, bytes(LIMIT))])


def test_varint_width_borders() -> None:
    for bits in range(0, 65, 7):
        for value in {max(0, (1 << bits) - 1), min(1 << bits, (1 << 64) - 1)}:
            key = pb.KeyLongValue(key="", value=value).SerializeToString()
            assert varint(value) == key[3:]


def test_varint_tables_by_seven_bits() -> None:
    for value in range(128):
        assert VARINT_LAST[value] == varint(value) and VARINT_MORE[value] + b"\1" == varint(value + 128)
