"""Decoding of a batch's body outside a consumer: the official client's `MessageBatch`.

May not do: decrypt or decompress. The body is the part of an entry after its metadata.
"""

from __future__ import annotations

from typing import Self

from pulsar_native.exceptions import InvalidMessage
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.entry_decoder import Delivery, ReceivedEntry
from pulsar_native.schema import BytesSchema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.codec import split_batch
from pulsar_native.wire.entry import ParsedEntry


class MessageBatch:
    """Decoder of an entry's body into messages: `MessageBatch().with_message_id(id).parse_from(data, count)`."""

    def __init__(self) -> None:
        self._place = MessageId()

    def with_message_id(self, msg_id: MessageId) -> Self:
        """Set the message id of the entry, to which each message adds its batch index.

        :param msg_id: id of the entry. Raises `InvalidMessage` for another type.
        """
        if not isinstance(msg_id, MessageId):
            raise InvalidMessage(f"with_message_id takes a MessageId, not {type(msg_id).__name__}")
        self._place = msg_id
        return self

    def parse_from(self, data: bytes, size: int) -> list[Message[bytes]]:
        """Return the messages of an uncompressed body; raises `InvalidMessage` for a malformed one.

        :param data: the body.
        :param size: number of messages.
        """
        if size == 0:
            return []
        body = bytes(data)
        places = split_batch(body, size)
        place = self._place
        metadata = pb.MessageMetadata(producer_name="", sequence_id=0, publish_time=0, num_messages_in_batch=size)
        command = pb.CommandMessage(consumer_id=0, message_id=pb.MessageIdData(ledgerId=0, entryId=0))
        entry = ReceivedEntry(
            ParsedEntry(metadata, memoryview(body)),
            body,
            Delivery(command, body, 0),
            topic=place.topic_name() or "",
            partition=place.partition(),
            schema=VersionedDecoder(BytesSchema()),
        )
        # Set here, because the command cannot express the empty id.
        entry.ledger_id, entry.entry_id = place.ledger_id(), place.entry_id()
        return [Message(entry, index, *each) for index, each in enumerate(places)]
