"""Interceptors of producers, consumers and readers: base classes whose methods have no effect (PIP-23).

Rules: interceptors run in the order given. An exception is logged, and the message continues unchanged. They run in the
thread that sends, receives or acknowledges, or on the engine's loop (receipts, redeliveries, changes of partitions),
where they must not block. They get the API's producer, consumer or reader; on the asyncio API they must not wait for
its coroutines.
"""

from __future__ import annotations

from typing import Any

from pulsar_native.message import Message, OutgoingMessage
from pulsar_native.message_id import MessageId


class ProducerInterceptor:
    """Interceptor of a producer. Override the methods needed."""

    def eligible(self, message: OutgoingMessage) -> bool:
        """Return False to skip `before_send` for a message."""
        return True

    def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
        """Return the message to send: this one, changed or not, or another one.

        Called before the partition is chosen, so that a changed key has effect.

        :param producer: the producer.
        :param message: the encoded message, without an id.
        """
        return message

    def on_send_acknowledgement(
        self, producer: Any, message: OutgoingMessage, message_id: MessageId | None, error: Exception | None
    ) -> None:
        """Observe the result of a send; called before the sender gets it.

        :param producer: the producer.
        :param message: the message.
        :param message_id: its id, None if it failed.
        :param error: the error, None if it was stored.
        """

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        """Observe a larger number of partitions of a topic."""

    def close(self) -> None:
        """Release resources; called when the producer is closed."""


class ConsumerInterceptor:
    """Interceptor of a consumer. Override the methods needed."""

    def on_arrival(self, consumer: Any, message: Message) -> Message:
        """Return the message to queue: this one or another `Message`. Called when the message arrives.

        Overriding it has entries decoded on arrival, mostly on the engine's loop, with the consumer locked: it may
        acknowledge, and must not wait.
        """
        return message

    def before_consume(self, consumer: Any, message: Message) -> Message:
        """Return the message for the application: this one or another `Message`. Called before a listener."""
        return message

    def on_acknowledge(self, consumer: Any, message_id: MessageId, error: Exception | None) -> None:
        """Observe the acknowledgement of a message; `error` is None unless it failed."""

    def on_acknowledge_cumulative(self, consumer: Any, message_id: MessageId, error: Exception | None) -> None:
        """Observe a cumulative acknowledgement; `error` is None unless it failed."""

    def on_negative_acks_send(self, consumer: Any, message_ids: set[MessageId]) -> None:
        """Observe the redelivery of negatively acknowledged entries."""

    def on_ack_timeout_send(self, consumer: Any, message_ids: set[MessageId]) -> None:
        """Observe the redelivery of entries that were not acknowledged within the ack time-out."""

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        """Observe a larger number of partitions of a topic."""

    def close(self) -> None:
        """Release resources; called when the consumer is closed."""


class ReaderInterceptor:
    """Interceptor of a reader. Override the methods needed."""

    def before_read(self, reader: Any, message: Message) -> Message:
        """Return the message for the application: this one or another `Message`. Called before a listener."""
        return message

    def on_partitions_change(self, topic: str, partitions: int) -> None:
        """Observe a larger number of partitions of a topic."""

    def close(self) -> None:
        """Release resources; called when the reader is closed."""
