"""Message payload processors (PIP-96): objects of an application that read entries of its own format.

Rules: values and protocols only; `protocol.payload_processing` calls the processor and encodes what it returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pulsar_native._message_checks import check_parts
from pulsar_native._type_names import type_name
from pulsar_native.exceptions import InvalidMessage


@dataclass(frozen=True, slots=True)
class PayloadMessage:
    """A message that a `MessagePayloadProcessor` has read from a payload. Immutable.

    Raises `InvalidMessage` for a field of another type or out of range.

    :param data: the message's payload, bytes, which the consumer's schema decodes; None for a null value.
    :param properties: the application's properties, str to str. Default none.
    :param partition_key: the key, str or bytes. Default None.
    :param ordering_key: the ordering key. Default None.
    :param event_timestamp: event time in milliseconds since 1970. Default None.
    :param sequence_id: sequence id, 0 to 2^63 - 1. Default None: the entry's.
    """

    data: bytes | None
    properties: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    partition_key: str | bytes | None = field(default=None, kw_only=True)
    ordering_key: str | None = field(default=None, kw_only=True)
    event_timestamp: int | None = field(default=None, kw_only=True)
    sequence_id: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes | None):
            raise InvalidMessage(f"data must be bytes, or None for a null value, not {type_name(self.data)}")
        check_parts(self.properties, self.partition_key, self.ordering_key, self.sequence_id, self.event_timestamp)


class MessagePayloadContext(Protocol):
    """Entry whose payload a processor reads (Java: MessagePayloadContext). Valid during the call of `process`."""

    @property
    def is_batch(self) -> bool:
        """True if the producer published the entry as a batch."""

    @property
    def num_messages(self) -> int:
        """Number of messages in the entry as its metadata say, 1 for an entry that is no batch."""

    def get_property(self, key: str) -> str | None:
        """Return a property of the entry, None if it has none of this key; those of a batch's messages are not here.

        :param key: the property's key.
        """

    def messages(self, payload: bytes) -> list[PayloadMessage]:
        """Return the messages of a payload in Pulsar's own format (Java: MessagePayloadProcessor.DEFAULT).

        :param payload: the payload that was passed to `process`, or another one, of as many messages.
        :raises InvalidMessage: the payload is no batch of `num_messages` messages.
        """


class MessagePayloadProcessor(Protocol):
    """Reader of an application's own format of entries, an option of `subscribe` (PIP-96).

    `process` is called with the decrypted, uncompressed payload of each entry delivered, of a message in chunks with
    the whole one, and returns the entry's messages in order, as a list or a generator.

    Several messages are numbered from 0, as those of a batch: each is acknowledged by itself, and the entry when all
    are. An entry without messages is acknowledged at once. So an entry must give the same messages each time, and with
    each consumer of the subscription. A message in chunks may not become several.

    An entry for which it raises an exception, or returns anything else, is not delivered and stays unacknowledged: the
    error is logged and counted (`ConsumerStats.total_receive_failed`). Java's client acknowledges such entries.

    It is called in a thread that receives (asyncio API: on the loop), under the consumer's lock: it must not block, nor
    use the consumer.
    """

    def process(self, payload: bytes, context: MessagePayloadContext) -> Iterable[PayloadMessage]: ...
