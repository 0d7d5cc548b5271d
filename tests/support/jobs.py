"""Parts of a job made by hand: received messages, and a state and a log in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.schema import BytesSchema, Schema
from pulsar_native.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
PUBLISHED = 1_700_000_000_000


def cut_note(
    entries: Mapping[str, list[Any]], number: int = 1, marks: Mapping[str, list[int]] | None = None
) -> dict[str, Any]:
    """Return an earlier batch's note on entries it has in part, of no subscription."""
    return {"subscription": [], "number": number, "entries": entries, "marks": marks or {}}


class _Entry:
    """An entry with one message's fields."""

    def __init__(self, body: bytes, message_id: MessageId, published: int, schema: Schema[Any], fields: Any) -> None:
        self.body, self.schema = body, schema
        self.topic = message_id.topic_name()
        self.partition = message_id.partition()
        self.ledger_id, self.entry_id = message_id.ledger_id(), message_id.entry_id()
        self.batch_size, self.is_batch = message_id.batch_size(), message_id.batch_size() > 0
        self.first_chunk = message_id.first_chunk_message_id()
        self.publish_time, self.producer_name = published, "p"
        self.redelivery_count, self.schema_version, self.broker_timestamp = 0, None, None
        self.encryption_context = None
        self._fields = fields

    def fields(self, meta_start: int, payload_start: int) -> Any:
        return self._fields

    def index_of(self, batch_index: int) -> int | None:
        return None

    def decode(self, data: bytes) -> Any:
        return self.schema.decode(data)


def received(
    payload: bytes = b"x",
    entry: int = 0,
    index: int = -1,
    size: int = 0,
    *,
    ledger: int = 7,
    topic: str = TOPIC,
    first_chunk: MessageId | None = None,
    published: int = PUBLISHED,
    schema: Schema[Any] | None = None,
    properties: Mapping[str, str] | None = None,
    **fields: Any,
) -> Message:
    """Return a received message; `fields` are those of its metadata."""
    message_id = MessageId(-1, ledger, entry, index, batch_size=size, topic=topic, first_chunk=first_chunk)
    pairs = [pb.KeyValue(key=key, value=value) for key, value in (properties or {}).items()]
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=5, publish_time=published, properties=pairs, **fields)
    made = _Entry(payload, message_id, published, schema or BytesSchema(), metadata)
    return Message(made, index, 0, 0, len(payload))


class MemoryState:
    """A job's state in memory, kept as JSON; `saved` counts the writes."""

    def __init__(self, value: Mapping[str, Any] | None = None) -> None:
        self._text = None if value is None else json.dumps(value)
        self.saved = 0

    def get(self) -> dict[str, Any] | None:
        """Return the value."""
        return None if self._text is None else dict(json.loads(self._text))

    def set(self, value: Mapping[str, Any]) -> None:
        """Keep the value."""
        self._text = json.dumps(value)
        self.saved += 1

    def delete(self) -> None:
        """Delete the value."""
        self._text = None


class MemoryLog:
    """A log in memory."""

    def __init__(self) -> None:
        self.infos: list[str] = []
        self.warnings: list[str] = []
        self.errors: list[str] = []

    def info(self, event: str, /, *args: Any) -> None:
        """Keep a record."""
        self.infos.append(event % args)

    def warning(self, event: str, /, *args: Any) -> None:
        """Keep a warning."""
        self.warnings.append(event % args)

    def error(self, event: str, /, *args: Any) -> None:
        """Keep an error."""
        self.errors.append(event % args)
