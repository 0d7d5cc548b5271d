"""Messages as the application sees them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from pulsar_native.message import KeyedMessage, Message, OutgoingMessage, RoutedMessage, copied_key
from pulsar_native.message_id import MessageId
from pulsar_native.wire import pulsar_api_pb2 as pb


class Entry:
    """An entry of the test: a body, and the fields every message of it has."""

    def __init__(self, body: bytes, fields: Any, **attributes: Any) -> None:
        self.body = body
        self._fields = fields
        self.asked: list[tuple[int, int]] = []
        self.ledger_id, self.entry_id, self.partition = 7, 8, 2
        self.topic = "persistent://public/default/t-partition-2"
        self.redelivery_count = 3
        self.batch_size, self.is_batch = 0, False
        self.first_chunk: MessageId | None = None
        self.publish_time, self.producer_name = 1234, "p"
        self.replicated_from: str | None = None
        self.schema_version: bytes | None = None
        self.broker_timestamp: int | None = None
        self.first_sequence_id = 100
        vars(self).update(attributes)

    def fields(self, meta_start: int, payload_start: int) -> Any:
        self.asked.append((meta_start, payload_start))
        return self._fields

    def index_of(self, batch_index: int) -> int | None:
        return 40 + max(batch_index, 0)

    def decode(self, data: bytes) -> Any:
        return data.decode().upper()

    def decode_separated(self, key: bytes | None, data: bytes | None) -> Any:
        return key, data


def single(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=5, publish_time=1234, **fields)


def test_reading_a_message_costs_nothing_before_it_is_asked_for() -> None:
    entry = Entry(b"..hello..", single(event_time=9))
    message = Message(entry, -1, 0, 2, 7)
    assert (message.data(), len(message), message.value()) == (b"hello", 5, "HELLO")
    assert (message.publish_timestamp(), message.producer_name(), message.redelivery_count()) == (1234, "p", 3)
    # Whether the value is null, `value` knows by the bytes: nothing there marks it.
    assert entry.asked == []
    assert (message.event_timestamp(), message.sequence_id()) == (9, 5)
    assert entry.asked == [(0, 2)]


@pytest.mark.proves("C82")
def test_ids_tell_where_the_message_lies() -> None:
    alone = Message(Entry(b"x", single()), -1, 0, 0, 1).message_id()
    assert alone == MessageId(2, 7, 8, -1)
    assert (alone.batch_size(), alone.topic_name()) == (0, "persistent://public/default/t-partition-2")
    first = MessageId(2, 7, 5)
    entry = Entry(b"x", single(), is_batch=True, batch_size=4, first_chunk=first)
    batched = Message(entry, 3, 0, 0, 1)
    assert batched.message_id() == MessageId(2, 7, 8, 3)
    assert (batched.message_id().batch_size(), batched.message_id().first_chunk_message_id()) == (4, first)
    assert (batched.topic_name(), batched.index()) == ("persistent://public/default/t-partition-2", 43)
    assert repr(batched) == f"<Message {batched.message_id()} of persistent://public/default/t-partition-2, 1 bytes>"


@pytest.mark.proves("C82")
def test_keys() -> None:
    text = Message(Entry(b"", single(partition_key="é", ordering_key=b"o")), -1, 0, 0, 0)
    assert (text.partition_key(), text.key_bytes(), text.ordering_key()) == ("é", "é".encode(), "o")
    assert text.has_key() and not text.has_base64_encoded_key()
    raw = Message(Entry(b"", single(partition_key="a2V5MQ==", partition_key_b64_encoded=True)), -1, 0, 0, 0)
    assert (raw.partition_key(), raw.key_bytes()) == ("a2V5MQ==", b"key1") and raw.has_base64_encoded_key()
    none = Message(Entry(b"", single()), -1, 0, 0, 0)
    assert (none.partition_key(), none.ordering_key(), none.has_key()) == ("", "", False)
    assert Message(Entry(b"", single(partition_key="")), -1, 0, 0, 0).has_key()


def with_raw(fields: bytes) -> Message:
    """Return a message whose metadata have these encoded fields, too."""
    return Message(Entry(b"", pb.MessageMetadata.FromString(single().SerializeToString() + fields)), -1, 0, 0, 0)


@pytest.mark.parametrize("mark", [b"", b"\x88\x01\x01"])
def test_key_invalid_utf8_replaced_bytes_kept(mark: bytes) -> None:
    message = with_raw(b"\x32\x03k\xff\xfe" + mark)
    assert (message.partition_key(), message.key_bytes(), message.has_key()) == ("k\ufffd\ufffd", b"k\xff\xfe", True)
    assert copied_key(message) == ("a//+", True)


@pytest.mark.parametrize("text", ["abc", "é", "a2V5M"])
def test_key_bytes_wrong_base64_as_published(text: str) -> None:
    message = Message(Entry(b"", single(partition_key=text, partition_key_b64_encoded=True)), -1, 0, 0, 0)
    assert (message.key_bytes(), copied_key(message)) == (text.encode(), (text, True))


def test_copied_key_as_published() -> None:
    assert copied_key(Message(Entry(b"", single(partition_key="é")), -1, 0, 0, 0)) == ("é", False)
    assert copied_key(Message(Entry(b"", single()), -1, 0, 0, 0)) == (None, False)


def test_properties_invalid_utf8_replaced() -> None:
    message = with_raw(b"\x22\x06\x0a\x01a\x12\x01\xff" + b"\x22\x06\x0a\x01\xfe\x12\x01b")
    assert message.properties() == {"a": "\ufffd", "\ufffd": "b"}


def test_of_a_repeated_property_the_last_counts() -> None:
    pairs = [pb.KeyValue(key="a", value="1"), pb.KeyValue(key="b", value=""), pb.KeyValue(key="a", value="2")]
    assert Message(Entry(b"", single(properties=pairs)), -1, 0, 0, 0).properties() == {"a": "2", "b": ""}


def test_a_null_value_is_not_decoded() -> None:
    message = Message(Entry(b"", single(null_value=True)), -1, 0, 0, 0)
    assert message.has_null_value() and message.value() is None and message.data() == b""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"partition_key": "aw==", "partition_key_b64_encoded": True}, (b"k", b"v")),
        ({"partition_key": "k"}, (b"k", b"v")),
        ({"null_partition_key": True}, (None, b"v")),
        ({}, (None, b"v")),
        ({"partition_key": "k", "null_value": True}, (b"k", None)),
    ],
)
def test_a_value_with_a_part_in_the_key(fields: dict[str, Any], expected: tuple[bytes | None, bytes | None]) -> None:
    entry = Entry(b"v", single(**fields))
    assert KeyedMessage(entry, -1, 0, 0, 1).value() == expected


def test_schema_versions() -> None:
    assert Message(Entry(b"", single()), -1, 0, 0, 0).int_schema_version() is None
    entry = Entry(b"", single(), schema_version=b"\0\0\0\0\0\0\1\2")
    message = Message(entry, -1, 0, 0, 0)
    assert (message.schema_version(), message.int_schema_version()) == ("\0\0\0\0\0\0\1\2", 258)
    assert message.schema_version_bytes() == b"\0\0\0\0\0\0\1\2"
    assert message  # though its payload is empty


def test_sequence_ids_of_a_batch_numbered_only_as_a_whole() -> None:
    numbered = Entry(b"", pb.SingleMessageMetadata(payload_size=0, sequence_id=7), is_batch=True, batch_size=3)
    assert Message(numbered, 2, 0, 0, 0).sequence_id() == 7
    old = Entry(b"", pb.SingleMessageMetadata(payload_size=0), is_batch=True, batch_size=3)
    assert Message(old, 2, 0, 0, 0).sequence_id() == 102


@pytest.mark.parametrize(
    ("parts", "plain", "own"),
    [
        ({}, True, False),
        ({"sequence_id": 5}, True, False),
        ({"partition_key": ""}, False, False),
        ({"properties": {"a": "b"}}, False, False),
        ({"ordering_key": "o"}, False, False),
        ({"event_timestamp": 1}, False, False),
        ({"null_value": True}, False, False),
        ({"null_partition_key": True}, False, False),
        ({"deliver_at": 0}, True, True),
        ({"replicate_to": ["west"]}, True, True),
        ({"replicate_to": []}, True, False),
    ],
)
def test_what_a_message_on_its_way_out_needs(parts: dict[str, Any], plain: bool, own: bool) -> None:
    message = OutgoingMessage(b"x", **parts)
    assert (message.is_plain, message.needs_own_entry) == (plain, own)


def test_routed_message_shows_what_was_given() -> None:
    parts: dict[str, Any] = {
        "properties": {"a": "b"},
        "partition_key": "a2V5",
        "key_is_base64": True,
        "ordering_key": b"first",
        "sequence_id": 7,
        "event_timestamp": 5,
        "null_partition_key": True,
        "schema_version": (3).to_bytes(8, "big"),
    }
    message = RoutedMessage(OutgoingMessage(b"xyz", **parts))
    assert (message.data(), message.value(), len(message)) == (b"xyz", b"xyz", 3)
    assert (message.partition_key(), message.has_key(), message.has_base64_encoded_key()) == ("a2V5", True, True)
    assert (message.ordering_key(), message.ordering_key_bytes()) == ("first", b"first")
    assert (message.properties(), message.event_timestamp(), message.sequence_id()) == ({"a": "b"}, 5, 7)
    assert (message.has_null_value(), message.has_null_partition_key()) == (False, True)
    assert message.int_schema_version() == 3 and message.schema_version_bytes() == parts["schema_version"]
    assert message.schema_version() == "\0\0\0\0\0\0\0\3" and "3 bytes" in repr(message)


def test_routed_message_copies_and_key_bytes() -> None:
    message = RoutedMessage(OutgoingMessage(b"x", partition_key="a2V5MQ==", key_is_base64=True))
    for routed in (message, copy.copy(message), pickle.loads(pickle.dumps(message))):
        assert (routed.data(), routed.key_bytes(), routed.has_base64_encoded_key()) == (b"x", b"key1", True)
    assert RoutedMessage(OutgoingMessage(b"x", partition_key="é")).key_bytes() == "é".encode()


def test_routed_message_has_nothing_of_a_stored_one() -> None:
    message = RoutedMessage(OutgoingMessage(b"", null_value=True))
    assert (message.partition_key(), message.has_key(), message.has_base64_encoded_key()) == ("", False, False)
    assert (message.ordering_key(), message.ordering_key_bytes(), message.properties()) == ("", None, {})
    assert (message.event_timestamp(), message.publish_timestamp(), message.sequence_id()) == (0, 0, -1)
    assert (message.schema_version(), message.schema_version_bytes(), message.int_schema_version()) == ("", None, None)
    assert (message.producer_name(), message.topic_name(), message.message_id()) == ("", "", MessageId())
    assert message.replicated_from() is message.reader_schema() is None  # type: ignore[func-returns-value]
    assert message.encryption_context() is message.index() is message.broker_publish_time() is None  # type: ignore[func-returns-value]
    assert message.redelivery_count() == 0 and message.has_null_value()
