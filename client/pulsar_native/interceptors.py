"""What an application may hang into the way of messages: base classes whose methods do nothing.

Rules: interceptors run in the order given; one that raises is logged, is taken for not having
touched the message, and breaks nothing. They run in the thread that sends, receives or acknowledges, or on the engine's
loop (acknowledgements of sends, redeliveries, partitions): they must not block there. The live object they are given
is that of the API, whose awaitable methods the asyncio API's interceptors must not wait for.
"""

from __future__ import annotations

from typing import Any

from pulsar_native.message import Message, OutgoingMessage
from pulsar_native.message_id import MessageId


class ProducerInterceptor:
    """See messages on their way out. Override what is needed."""

    def eligible(self, message: OutgoingMessage) -> bool:
        """Return whether this interceptor cares for the message; asked before `before_send`."""
        return True

    def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
        """Return the message to send: this one, changed or not, or another. It is encoded and has no id yet.

        Runs before the partition is chosen, so that a changed key counts.
        """
        return message

    def on_send_acknowledgement(
        self, producer: Any, message: OutgoingMessage, message_id: MessageId | None, error: Exception | None
    ) -> None:
        """See what became of a message, before the sender does: an id, or an error and None."""

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        """Be told that the topic has more partitions now."""

    def close(self) -> None:
        """Be told that the producer is closed."""


class ConsumerInterceptor:
    """See messages on their way in, and what is said about them. Override what is needed."""

    def on_arrival(self, consumer: Any, message: Message) -> Message:
        """Return the message to queue: this one or another of its kind. Runs when it arrives, long before it is taken.

        Overriding it has entries opened as they arrive, mostly on the engine's loop, with the consumer locked:
        acknowledging there is fine, waiting for anything is not.
        """
        return message

    def before_consume(self, consumer: Any, message: Message) -> Message:
        """Return the message to hand out: this one or another of its kind. Runs before a listener does."""
        return message

    def on_acknowledge(self, consumer: Any, message_id: MessageId, error: Exception | None) -> None:
        """See that a message was acknowledged, or with an error that it could not be."""

    def on_acknowledge_cumulative(self, consumer: Any, message_id: MessageId, error: Exception | None) -> None:
        """See that everything up to a message was acknowledged, or with an error that it could not be."""

    def on_negative_acks_send(self, consumer: Any, message_ids: set[MessageId]) -> None:
        """See which entries are asked for again because they were refused."""

    def on_ack_timeout_send(self, consumer: Any, message_ids: set[MessageId]) -> None:
        """See which entries are asked for again because they were not acknowledged in time."""

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        """Be told that a topic has more partitions now."""

    def close(self) -> None:
        """Be told that the consumer is closed."""


class ReaderInterceptor:
    """See messages on their way into a reader. Override what is needed."""

    def before_read(self, reader: Any, message: Message) -> Message:
        """Return the message to hand out: this one or another of its kind. Runs before a listener does."""
        return message

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        """Be told that the topic has more partitions now."""

    def close(self) -> None:
        """Be told that the reader is closed."""
