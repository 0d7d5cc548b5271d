"""What the faces do with arguments: checking, refusing by name, and putting messages together."""

from __future__ import annotations

import time
from collections import deque
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native import arguments
from pulsar_native.arguments import BatchCollector
from pulsar_native.config import BatchReceivePolicy
from pulsar_native.exceptions import InvalidConfiguration, InvalidMessage
from pulsar_native.message import Message, OutgoingMessage
from pulsar_native.message_id import MessageId
from pulsar_native.schema import KeyValue, KeyValueEncodingType, KeyValueSchema, StringSchema
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.codec import parse_single

NOTHING: dict[str, Any] = {
    "properties": None,
    "partition_key": None,
    "ordering_key": None,
    "sequence_id": None,
    "replication_clusters": None,
    "disable_replication": False,
    "event_timestamp": None,
    "deliver_at": None,
    "deliver_after": None,
}


def outgoing(payload: bytes | None = b"x", **parts: Any) -> OutgoingMessage:
    return arguments.outgoing(payload, **{**NOTHING, **parts})


# --- outgoing messages ------------------------------------------------------------------------------------------


def test_a_plain_message() -> None:
    message = outgoing(b"abc")
    assert message.payload == b"abc" and message.is_plain and not message.needs_own_entry
    assert arguments.encoded_fields(message) == b""


def test_a_null_value() -> None:
    message = outgoing(None)
    assert (message.payload, message.null_value, message.is_plain) == (b"", True, False)
    assert parse_single(arguments.encoded_fields(message) + b"\x18\x00").null_value


def test_a_message_with_everything() -> None:
    message = outgoing(
        b"abc",
        properties={"a": "1", "é": "2"},
        partition_key="key",
        ordering_key="ord",
        sequence_id=7,
        replication_clusters=["west"],
        event_timestamp=123,
        deliver_at=999,
    )
    assert (message.sequence_id, message.replicate_to, message.deliver_at) == (7, ["west"], 999)
    assert message.needs_own_entry and not message.is_plain
    single = parse_single(arguments.encoded_fields(message) + b"\x18\x03")
    assert {pair.key: pair.value for pair in single.properties} == {"a": "1", "é": "2"}
    assert (single.partition_key, single.partition_key_b64_encoded) == ("key", False)
    assert (single.ordering_key, single.event_time, single.null_value) == (b"ord", 123, False)


def test_a_key_of_bytes_travels_as_base64() -> None:
    message = outgoing(partition_key=b"key1")
    # client.md F.9: the text that is hashed to the partition, too.
    assert (message.partition_key, message.key_is_base64) == ("a2V5MQ==", True)
    assert parse_single(arguments.encoded_fields(message) + b"\x18\x01").partition_key_b64_encoded
    assert outgoing(partition_key="").partition_key == "" and not outgoing(partition_key="").is_plain


def test_replication_off() -> None:
    assert outgoing(disable_replication=True).replicate_to == ["__local__"]
    with pytest.raises(InvalidMessage, match="exclude each other"):
        outgoing(disable_replication=True, replication_clusters=["west"])


def test_delays() -> None:
    for delay in (timedelta(seconds=5), 5000):
        before = time.time_ns() // 1_000_000
        at = outgoing(deliver_after=delay).deliver_at
        assert at is not None and before + 5000 <= at <= time.time_ns() // 1_000_000 + 5000
    assert outgoing(deliver_at=0).needs_own_entry
    with pytest.raises(InvalidMessage, match="exclude each other"):
        outgoing(deliver_at=1, deliver_after=1)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"properties": {"a": 1}}, "properties must be a mapping of str to str"),
        ({"properties": {b"a": "1"}}, "properties must be a mapping of str to str"),
        ({"properties": [("a", "1")]}, "properties must be a mapping of str to str"),
        ({"partition_key": 5}, "partition_key must be str or bytes, not int"),
        ({"ordering_key": b"o"}, "ordering_key must be str, not bytes"),
        ({"sequence_id": -1}, "sequence_id must be a non-negative int"),
        ({"sequence_id": True}, "sequence_id must be a non-negative int"),
        ({"sequence_id": 1.0}, "sequence_id must be a non-negative int"),
        ({"sequence_id": 1 << 63}, "sequence_id must be a non-negative int"),
        ({"event_timestamp": -5}, "event_timestamp must be a non-negative int"),
        ({"event_timestamp": 1 << 64}, "event_timestamp must be a non-negative int"),
        ({"deliver_at": "soon"}, "deliver_at must be"),
        ({"deliver_at": 1 << 63}, "deliver_at must be"),
        ({"deliver_after": "soon"}, "deliver_after must be"),
        ({"replication_clusters": "west"}, "replication_clusters must be a list of str"),
        ({"replication_clusters": [1]}, "replication_clusters must be a list of str"),
    ],
)
def test_wrong_parts_are_refused_before_anything_is_sent(parts: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidMessage, match=told):
        outgoing(**parts)


# --- acknowledging ----------------------------------------------------------------------------------------------


class Entry:
    """As much of an entry as a message's id needs."""

    ledger_id, entry_id, partition, topic = 1, 2, 0, "persistent://public/default/t"
    redelivery_count, batch_size, is_batch, first_chunk = 0, 3, True, None


def message_of(index: int, size: int = 0) -> Message:
    return Message(Entry(), index, 0, 0, size)  # type: ignore[arg-type]


def test_ids_of() -> None:
    message = message_of(1)
    place = MessageId(0, 1, 2, 1)
    assert arguments.ids_of(message) == [place]
    assert arguments.ids_of(place) == [place]
    assert arguments.ids_of([message, MessageId(0, 9, 9)]) == [place, MessageId(0, 9, 9)]
    assert arguments.ids_of(()) == []
    for wrong in (None, 5, b"x", "id", [5]):
        with pytest.raises(InvalidMessage, match="message id"):
            arguments.ids_of(wrong)  # type: ignore[arg-type]


# --- batch receive ----------------------------------------------------------------------------------------------


def sizes(policy: BatchReceivePolicy, lengths: list[int]) -> int:
    """Return how many messages of these lengths make a batch complete, 0 when they do not."""
    collector = BatchCollector(policy, 0.0)
    for count, length in enumerate(lengths, 1):
        if collector.add(message_of(0, length)):
            assert len(collector.messages) == count
            return count
    return 0


def test_a_batch_is_complete_by_count_or_by_bytes_whichever_is_first() -> None:
    assert sizes(BatchReceivePolicy(max_num_messages=3), [1] * 9) == 3
    assert sizes(BatchReceivePolicy(max_num_messages=3, max_num_bytes=100), [60, 40, 1]) == 2
    assert sizes(BatchReceivePolicy(max_num_messages=3, max_num_bytes=100), [99, 0, 0]) == 3
    assert sizes(BatchReceivePolicy(max_num_messages=-1, max_num_bytes=0), [10**9] * 9) == 0


@given(
    runs=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=12), max_size=12),
    count=st.integers(0, 40),
    size=st.integers(0, 300),
)
def test_what_is_taken_at_once_is_as_much_as_what_is_taken_one_by_one(
    runs: list[list[int]], count: int, size: int
) -> None:
    policy = BatchReceivePolicy(max_num_messages=count or -1, max_num_bytes=size, timeout_ms=1)
    each = [length for run in runs for length in run]
    collector, complete = BatchCollector(policy, 0.0), False
    for run in runs:
        entry: Any = Entry()
        entry.body = bytes(sum(run) + 5 * len(run))
        ready = deque(Message(entry, index, 0, 0, length) for index, length in enumerate(run))
        # As the faces do: the first comes from the consumer, those that follow it from the hand.
        complete = collector.add(ready.popleft()) or collector.add_all(ready)
        if complete:
            break
    assert complete is (sizes(policy, each) > 0)
    assert list(map(len, collector.messages)) == each[: sizes(policy, each) or len(each)]


def test_a_batch_ends_at_its_time() -> None:
    assert BatchCollector(BatchReceivePolicy(timeout_ms=200), 10.0).deadline == pytest.approx(10.2)
    assert BatchCollector(BatchReceivePolicy(timeout_ms=0), 10.0).deadline is None


def test_encoded_fields_are_those_of_the_protocol() -> None:
    message = outgoing(properties={"a": "b"}, event_timestamp=5)
    expected = pb.SingleMessageMetadata(properties=[pb.KeyValue(key="a", value="b")], event_time=5, payload_size=1)
    assert parse_single(arguments.encoded_fields(message) + b"\x18\x01") == expected


# --- values -----------------------------------------------------------------------------------------------------


def test_values_by_schemas_of_any_kind() -> None:
    pairs = KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)
    inline = KeyValueSchema(StringSchema(), StringSchema())
    assert arguments.encoded(StringSchema(), "v", "k") == (b"v", "k", False)
    assert arguments.encoded(StringSchema(), None, "k") == (None, "k", False)
    assert arguments.encoded(pairs, KeyValue("k", "v"), None) == (b"v", b"k", False)
    assert arguments.encoded(pairs, KeyValue(None, None), None) == (None, None, True)
    assert arguments.encoded(pairs, None, None) == (None, None, False)
    assert arguments.encoded(inline, KeyValue(None, "v"), "k") == (b"\xff" * 4 + b"\0\0\0\x01v", "k", False)
    with pytest.raises(InvalidMessage, match="partition_key must not be given"):
        arguments.encoded(pairs, KeyValue("k", "v"), "k")


def test_a_null_key_stands_in_the_message() -> None:
    message = outgoing(b"v", null_partition_key=True, schema_version=b"\1")
    assert message.null_partition_key and message.schema_version == b"\1"
    fields = pb.SingleMessageMetadata.FromString(arguments.encoded_fields(message) + b"\x18\0")
    assert fields.null_partition_key and not fields.HasField("partition_key")


def test_time_outs() -> None:
    assert arguments.deadline(None, 7.0) is None
    assert arguments.deadline(250, 7.0) == 7.25
    for wrong in ("5", True, timedelta(seconds=1)):
        with pytest.raises(InvalidConfiguration, match="timeout_millis must be a number"):
            arguments.deadline(wrong, 0.0)  # type: ignore[arg-type]
