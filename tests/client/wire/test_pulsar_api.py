"""Protocol definition: numbers, and the generated module against its source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

import pulsar_native.wire
from pulsar_native.message_id import MessageId
from pulsar_native.wire import pulsar_api_pb2 as pb

SOURCE = Path(pulsar_native.wire.__file__).parent / "pulsar_api.proto"

# Numbers of the commands: those a client sends or must understand.
COMMANDS = {*range(2, 41), *range(50, 58), *range(62, 69)}


def _messages(descriptors: dict[str, Descriptor]) -> dict[str, Descriptor]:
    found: dict[str, Descriptor] = {}
    for descriptor in descriptors.values():
        found[descriptor.name] = descriptor
        found |= _messages(dict(descriptor.nested_types_by_name))
    return found


def _declared() -> dict[str, set[tuple[str, int]]]:
    """Read names and numbers from the definition, message by message (an enumeration counts as its own)."""
    declared: dict[str, set[tuple[str, int]]] = {}
    stack: list[str] = []
    for line in SOURCE.read_text().splitlines():
        line = line.split("//")[0].strip()
        if opened := re.match(r"(?:message|enum) (\w+) \{", line):
            stack.append(opened[1])
            declared.setdefault(".".join(stack), set())
        if item := re.search(r"(\w+) = (\d+)(?: \[.*\])?;$", line):
            declared[".".join(stack)].add((item[1], int(item[2])))
        if line.endswith("}"):
            stack.pop()
    return declared


def _generated() -> dict[str, set[tuple[str, int]]]:
    generated: dict[str, set[tuple[str, int]]] = {}

    def add(prefix: str, descriptor: Descriptor) -> None:
        name = prefix + descriptor.name
        generated[name] = {(field.name, field.number) for field in descriptor.fields}
        for enum in descriptor.enum_types:
            generated[f"{name}.{enum.name}"] = {(value.name, value.number) for value in enum.values}
        for nested in descriptor.nested_types:
            add(f"{name}.", nested)

    for message in pb.DESCRIPTOR.message_types_by_name.values():
        add("", message)
    for enum in pb.DESCRIPTOR.enum_types_by_name.values():
        generated[enum.name] = {(value.name, value.number) for value in enum.values}
    return generated


def test_pb2_generated_from_definition() -> None:
    assert _generated() == _declared()


def test_commands_field_of_each_type() -> None:
    fields = pb.BaseCommand.DESCRIPTOR.fields_by_number
    assert set(pb.BaseCommand.Type.values()) == COMMANDS
    assert set(fields) == COMMANDS | {1}


@pytest.mark.parametrize(
    ("message", "field", "default"),
    [
        (pb.CommandProducerSuccess(), "last_sequence_id", -1),
        (pb.CommandProducerSuccess(), "producer_ready", True),
        (pb.CommandProducer(), "user_provided_producer_name", True),
        (pb.CommandSubscribe(), "force_topic_creation", True),
        (pb.CommandSubscribe(), "durable", True),
        (pb.CommandSend(), "num_messages", 1),
        (pb.CommandPartitionedTopicMetadata(), "metadata_auto_creation_enabled", True),
        (pb.CommandGetTopicsOfNamespaceResponse(), "changed", True),
        (pb.MessageIdData(), "partition", -1),
        (pb.MessageIdData(), "batch_index", -1),
        (pb.MessageMetadata(), "num_messages_in_batch", 1),
    ],
)
def test_defaults_not_zero(message: object, field: str, default: object) -> None:
    assert getattr(message, field) == default


def test_server_error_and_schema_numbers() -> None:
    assert [pb.ServerError.Name(number) for number in (0, 9, 14, 18, 22, 25)] == [
        "UnknownError",
        "ChecksumError",
        "TooManyRequests",
        "IncompatibleSchema",
        "NotAllowedError",
        "ProducerFenced",
    ]
    kinds = pb.Schema
    numbers = (kinds.String, kinds.Json, kinds.Avro, kinds.Int64, kinds.KeyValue, kinds.AutoConsume)
    assert numbers == (1, 2, 4, 9, 15, 21)


# Bytes the Java client wrote.
@pytest.mark.parametrize(
    ("golden", "message_id"),
    [
        ("08ffffffffffffffffff0110ffffffffffffffffff013000", MessageId.earliest),
        ("08ffffffffffffffff7f10ffffffffffffffff7f3000", MessageId.latest),
        ("087710022001 3003", MessageId(-1, 0x77, 2, 1, batch_size=3)),
    ],
)
def test_message_id_bytes_of_java(golden: str, message_id: MessageId) -> None:
    data = pb.MessageIdData.FromString(bytes.fromhex(golden))
    signed = [value - (1 << 64) if value >> 63 else value for value in (data.ledgerId, data.entryId)]
    expected = [message_id.ledger_id(), message_id.entry_id(), message_id.partition(), message_id.batch_index()]
    assert [*signed, data.partition, data.batch_index] == expected
    assert data.SerializeToString() == bytes.fromhex(golden) == message_id.serialize()
