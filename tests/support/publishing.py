"""Messages on a real broker, in batches of a known shape, with the ids they got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pulsar_native import Client, MessageId, Producer


class Publish(Protocol):
    """Publish groups of values, each group as one batch (one entry), and return all message ids in order."""

    def __call__(self, topic: str, *groups: Sequence[str | bytes], **message: Any) -> list[MessageId]:
        """Publish; `message` are further arguments of send (partition_key, properties, event_timestamp)."""


def publish_groups(client: Client, topic: str, *groups: Sequence[str | bytes], **message: Any) -> list[MessageId]:
    """Publish with a client of the caller's; see `Publish`."""
    found: dict[int, MessageId] = {}
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    try:
        number = 0
        for group in groups:
            for value in group:
                _send(producer, value, found, number, message)
                number += 1
            producer.flush()
    finally:
        producer.close()
    return [found[index] for index in range(number)]


def _send(
    producer: Producer, value: str | bytes, found: dict[int, MessageId], number: int, message: dict[str, Any]
) -> None:
    """Send one value without waiting; its id goes to `found` under its number: a failed one is missed there."""

    def done(result: Any, message_id: MessageId | None) -> None:
        if message_id is not None and int(result) == 0:
            found[number] = message_id

    producer.send_async(value.encode() if isinstance(value, str) else value, done, **message)
