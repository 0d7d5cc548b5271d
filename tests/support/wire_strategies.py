"""Random commands, entries and batches for the tests of the wire formats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.frames import Frame

U64 = (1 << 64) - 1

u64 = st.one_of(st.integers(0, 300), st.integers(0, U64))
# Characters of one to four bytes, a NUL, and those that are tags on the wire.
texts = st.text("aZ9 \0\n\x12\x18@HP.é中😀", max_size=12)
long_texts = st.text("a\0H é中😀", max_size=200)


def described(frames: Iterable[Frame]) -> list[object]:
    """Return frames in a form that is the same for the light commands of the compiled decoder."""
    return [(described_command(one.command), one.payload) for one in frames]


def described_command(command: pb.BaseCommand) -> object:
    """Return a command, a MESSAGE with nothing rare in it as its fields."""
    if command.type != pb.BaseCommand.MESSAGE:
        return command
    message = command.message
    place: Any = message.message_id
    rare = ("batch_index", "batch_size", "first_chunk_message_id")
    if place is message or not (place.ack_set or any(place.HasField(name) for name in rare)):
        epoch = message.consumer_epoch if message.HasField("consumer_epoch") else None
        own = message.consumer_id, place.ledgerId, place.entryId, place.partition
        return *own, message.redelivery_count, tuple(message.ack_set), epoch
    return command


@st.composite
def message_commands(draw: st.DrawFn) -> pb.BaseCommand:
    """A MESSAGE command."""
    place = pb.MessageIdData(ledgerId=draw(u64), entryId=draw(u64), partition=draw(st.integers(-1, 9)))
    message = pb.CommandMessage(consumer_id=draw(u64), message_id=place, ack_set=draw(st.lists(st.integers(-9, 9))))
    return pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=message)


@st.composite
def commands(draw: st.DrawFn) -> pb.BaseCommand:
    """Some command a broker sends."""
    request = draw(u64)
    kinds = pb.BaseCommand
    return draw(
        st.sampled_from(
            [
                pb.BaseCommand(type=kinds.PING, ping=pb.CommandPing()),
                pb.BaseCommand(type=kinds.PONG),
                pb.BaseCommand(type=kinds.SUCCESS, success=pb.CommandSuccess(request_id=request)),
                pb.BaseCommand(
                    type=kinds.ERROR,
                    error=pb.CommandError(request_id=request, error=pb.TopicNotFound, message=draw(texts)),
                ),
                pb.BaseCommand(
                    type=kinds.CONNECTED,
                    connected=pb.CommandConnected(server_version=draw(texts), max_message_size=5 << 20),
                ),
            ]
        )
        | message_commands()
    )


# What a message of a batch may carry, as arguments of encode_single_fields.
fields = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.dictionaries(texts, texts | long_texts, max_size=3),
        "partition_key": texts,
        "ordering_key": st.binary(max_size=200),
        "event_time": st.integers(0, U64),
        "null_value": st.booleans(),
        "null_partition_key": st.booleans(),
    },
)


@st.composite
def batches(draw: st.DrawFn, plain: bool = False) -> tuple[list[bytes], list[int], list[dict[str, object]]]:
    """Payloads, sequence ids and fields of a batch; often of one size and consecutive, as real ones are."""
    count = draw(st.integers(1, 40))
    if draw(st.booleans()):
        payloads = [draw(st.binary(max_size=1) | st.just(bytes(200)))] * count
    else:
        payloads = draw(st.lists(st.binary(max_size=300), min_size=count, max_size=count))
    if draw(st.booleans()):
        first = draw(st.sampled_from([0, 100, 120, 16370, 2**31, 2**63 - 45, 2**64 - 45]))
        ids = list(range(first, first + count))
    else:
        ids = draw(st.lists(u64, min_size=count, max_size=count))
    if plain:
        return payloads, ids, [{}] * count
    own: list[dict[str, object]] = draw(st.lists(fields | st.just({}), min_size=count, max_size=count))
    return payloads, ids, own
