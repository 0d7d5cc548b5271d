"""Payload processing: what the messages of a processor look like, and entries whose processor fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pulsar_native import MessagePayloadContext, PayloadMessage
from pulsar_native.enums import CompressionType
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.ack_grouping import words_of
from pulsar_native.protocol.entry_decoder import Decoded, Delivery, StartFilter, Unprocessable, decode
from pulsar_native.schema import BytesSchema
from pulsar_native.wire import pulsar_api_pb2 as pb
from support.entry_bytes import batch_entry, single_entry

pytestmark = pytest.mark.usefixtures("implementation")

BROKER = pb.BrokerEntryMetadata(broker_timestamp=1, index=41)

Process = Callable[[bytes, MessagePayloadContext], Iterable[PayloadMessage]]


class Processor:
    """Processor of a function."""

    def __init__(self, process: Process) -> None:
        self.process = process


def decoded(
    payload: bytes, process: Process, *, ack_words: Sequence[int] = (), start: Any = None, together: Any = None
) -> Decoded:
    message = pb.CommandMessage(
        consumer_id=1, message_id=pb.MessageIdData(ledgerId=5, entryId=6), ack_set=list(ack_words)
    )
    whole = decode(
        Delivery(message, payload, 3),
        topic="persistent://public/default/t",
        partition=-1,
        schema=BytesSchema(),
        start=StartFilter(start, True),
        missing=None,
        max_message_size=5 << 20,
        together=together,
        processor=Processor(process),
    )
    assert whole is not None
    return whole


def data_of(messages: Iterable[Message]) -> list[bytes]:
    return [message.data() for message in messages]


def lines(payload: bytes, context: MessagePayloadContext) -> Iterable[PayloadMessage]:
    """Return a message of each line."""
    for line in payload.splitlines():
        yield PayloadMessage(line, properties={"of": context.get_property("name") or "", "line": line.decode()})


def as_they_are(payload: bytes, context: MessagePayloadContext) -> list[PayloadMessage]:
    return context.messages(payload)


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
def test_one_message_becomes_several(compression: CompressionType) -> None:
    payload = single_entry(
        b"one\ntwo\nthree",
        compression=compression,
        sequence_id=9,
        partition_key="k",
        event_time=5,
        properties=[pb.KeyValue(key="name", value="old"), pb.KeyValue(key="name", value="n")],
    )
    result = decoded(payload, lines)
    messages = result.messages()
    assert (result.wanted, result.num_published) == (3, 1)
    assert data_of(messages) == [b"one", b"two", b"three"]
    assert [message.message_id() for message in messages] == [MessageId(-1, 5, 6, index) for index in range(3)]
    assert {message.message_id().batch_size() for message in messages} == {3}
    assert messages[2].properties() == {"of": "n", "line": "three"}
    # Of the entry they have what a batch's messages have of it, and not its message's own fields.
    assert {message.sequence_id() for message in messages} == {9}
    assert not messages[0].has_key() and messages[0].event_timestamp() == 0
    assert messages[0].producer_name() == "p"


def test_fields_of_messages_are_kept() -> None:
    given = [
        PayloadMessage(None, partition_key=b"\xff", ordering_key="o", event_timestamp=8, sequence_id=7),
        PayloadMessage(b"", partition_key="k"),
    ]
    first, second = decoded(single_entry(b"x"), lambda *_: given).messages()
    assert first.has_null_value() and first.key_bytes() == b"\xff"
    assert (first.ordering_key(), first.event_timestamp(), first.sequence_id()) == ("o", 8, 7)
    assert (second.data(), second.has_null_value(), second.partition_key()) == (b"", False, "k")


def test_one_message_stays_one() -> None:
    payload = single_entry(b"abc", sequence_id=9, partition_key="old", properties=[pb.KeyValue(key="a", value="b")])
    (message,) = decoded(payload, lambda body, _: [PayloadMessage(body.upper(), partition_key="new")]).messages()
    assert message.message_id() == MessageId(-1, 5, 6, -1)
    assert (message.data(), message.partition_key(), message.properties()) == (b"ABC", "new", {})
    assert message.sequence_id() == 9
    (null,) = decoded(payload, lambda *_: [PayloadMessage(None, sequence_id=3)]).messages()
    assert null.has_null_value() and null.sequence_id() == 3 and not null.has_key()


@pytest.mark.parametrize("broker", [None, BROKER], ids=["no-index", "index"])
def test_own_format_of_a_batch_is_kept(broker: pb.BrokerEntryMetadata | None) -> None:
    payload = batch_entry(
        [b"one", b"", b"three"],
        first_sequence_id=7,
        singles=[
            {"partition_key": "/w==", "key_is_base64": True, "ordering_key": b"o"},
            {"null_value": True},
            {"properties": {"x": "y"}, "event_time": 8},
        ],
        broker=broker,
    )
    seen: list[Any] = []

    def process(body: bytes, context: MessagePayloadContext) -> list[PayloadMessage]:
        seen.append((context.is_batch, context.num_messages, context.get_property("x")))
        return context.messages(body)

    messages = decoded(payload, process).messages()
    assert seen == [(True, 3, None)]
    plain = decoded(payload, as_they_are).messages()
    for message, other in zip(messages, plain, strict=True):
        assert message.message_id() == other.message_id()
    assert [message.data() for message in messages] == [b"one", b"", b"three"]
    assert [message.sequence_id() for message in messages] == [7, 8, 9]
    assert messages[0].key_bytes() == b"\xff" and messages[0].ordering_key() == "o"
    assert messages[1].has_null_value()
    assert (messages[2].properties(), messages[2].event_timestamp()) == ({"x": "y"}, 8)
    assert [message.index() for message in messages] == ([39, 40, 41] if broker else [None] * 3)


def test_own_format_of_one_message_is_kept() -> None:
    payload = single_entry(b"a", sequence_id=9, event_time=5, partition_key="k", ordering_key=b"o", null_value=False)
    (message,) = decoded(payload, as_they_are).messages()
    assert (message.data(), message.partition_key(), message.ordering_key()) == (b"a", "k", "o")
    assert (message.event_timestamp(), message.sequence_id(), message.message_id()) == (5, 9, MessageId(-1, 5, 6, -1))


def test_own_format_without_compacted_messages() -> None:
    payload = batch_entry([b"one", b"two"], compacted_out=[0])
    assert data_of(decoded(payload, as_they_are).messages()) == [b"two"]


def test_other_number_of_messages_has_no_index() -> None:
    payload = batch_entry([b"a\nb", b"c"], broker=BROKER)

    def process(body: bytes, context: MessagePayloadContext) -> list[PayloadMessage]:
        return [replace(each, data=line) for each in context.messages(body) for line in (each.data or b"").split(b"\n")]

    messages = decoded(payload, process).messages()
    assert data_of(messages) == [b"a", b"b", b"c"]
    assert [message.index() for message in messages] == [None] * 3
    assert messages[0].broker_publish_time() == 1


def test_acknowledged_and_started_at_by_their_numbers() -> None:
    payload = single_entry(b"a\nb\nc")
    assert data_of(decoded(payload, lines, ack_words=words_of(0b101, 3)).messages()) == [b"a", b"c"]
    assert data_of(decoded(payload, lines, start=MessageId(-1, 5, 6, 1)).messages()) == [b"b", b"c"]


def test_no_message() -> None:
    result = decoded(batch_entry([b"a", b"b"]), lambda *_: [])
    assert (result.is_empty, result.wanted, result.num_published, result.messages()) == (True, 0, 2, [])
    assert not decoded(single_entry(b"a"), lines).is_empty


def raising(payload: bytes, context: MessagePayloadContext) -> Iterable[PayloadMessage]:
    yield PayloadMessage(payload)
    raise KeyError("no such format")


@pytest.mark.parametrize(
    ("process", "words"),
    [
        (raising, "KeyError: 'no such format'"),
        (lambda *_: [b"a"], "it must return PayloadMessages, not bytes"),
        (lambda *_: None, "TypeError: 'NoneType' object is not iterable"),
        (lambda *_: [PayloadMessage(b"a", properties={"a": "\ud800"})] * 2, "cannot be written as UTF-8"),
        (lambda *_: [PayloadMessage(b"a", ordering_key="\ud800")] * 2, "UnicodeEncodeError"),
        (lambda body, context: context.messages(body[:-1]), "InvalidMessage"),
    ],
    ids=["raises", "bytes", "none", "properties", "ordering-key", "no-batch"],
)
def test_failed_processor_delivers_nothing(process: Process, words: str) -> None:
    with pytest.raises(Unprocessable, match=f"message_payload_processor failed: .*{words}") as caught:
        decoded(batch_entry([b"a", b"b"]), process)
    assert caught.value.permits == 2


def test_chunks_become_no_several_messages() -> None:
    payload = single_entry(b"a\nb", num_chunks_from_msg=2, uuid="u", chunk_id=1, total_chunk_msg_size=3)

    class Whole:
        first = (5, 5)

        def body(self) -> bytes:
            return b"a\nb"

    with pytest.raises(Unprocessable, match="a message in chunks cannot become 2 messages"):
        decoded(payload, lines, together=lambda *_: Whole())
    (message,) = decoded(payload, as_they_are, together=lambda *_: Whole()).messages()
    assert message.message_id().first_chunk_message_id() == MessageId(-1, 5, 5, -1)
