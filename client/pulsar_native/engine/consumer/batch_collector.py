"""Batch collector: the messages of one `batch_receive`, collected until its policy is met.

Rules: a batch of several messages has at most `max_num_bytes` payload bytes; a message that does not fit stays in the
consumer's queue and completes the batch. The first message of a batch always fits.
"""

from __future__ import annotations

import sys
from typing import Literal, Protocol

from pulsar_native._message_fields import MessageQueue
from pulsar_native.config import BatchReceivePolicy, ConsumerConfig
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.message import Message


class BatchFull(Exception):
    """Raised by `BatchCollector.dequeue` where the batch is complete without another message."""


class MessageSource(Protocol):
    """Consumer whose messages are collected."""

    def dequeue(self) -> Message | None: ...
    def dequeue_within(self, most: int) -> Message | Literal[False] | None: ...


def batch_collector(consumer: MessageSource, config: ConsumerConfig, now: float) -> BatchCollector:
    """Return the collector of one batch receive; raises for a receiver queue of 0."""
    if config.receiver_queue_size == 0:
        raise InvalidConfiguration(
            "batch_receive() needs a queue: with receiver_queue_size=0 messages are requested one by one; use "
            "receive(), or a receiver_queue_size above 0"
        )
    return BatchCollector(consumer, config.batch_receive_policy, now, config.receiver_queue_size)


class BatchCollector:
    """Collector of one batch receive's messages. `now` is monotonic seconds.

    A policy of more messages than the receiver queue holds means as many as that holds, as in the official clients.
    """

    __slots__ = ("_consumer", "_deadline", "_left", "_most", "_most_bytes", "messages")

    def __init__(self, consumer: MessageSource, policy: BatchReceivePolicy, now: float, queue_size: int) -> None:
        self._consumer = consumer
        self._most = min(policy.max_num_messages, queue_size) if policy.max_num_messages > 0 else sys.maxsize
        self._most_bytes = policy.max_num_bytes if policy.max_num_bytes > 0 else None
        self._deadline = now + policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None
        self._start()

    def _start(self) -> None:
        self.messages: list[Message] = []
        # Payload bytes that still fit.
        self._left = sys.maxsize if self._most_bytes is None else self._most_bytes

    def clear(self) -> list[Message]:
        """Start again, and return what was collected."""
        messages = self.messages
        self._start()
        return messages

    @property
    def deadline(self) -> float | None:
        """Monotonic seconds until which to wait for the next message; None without a limit."""
        # With all of its bytes a batch still takes the empty messages that are queued, but waits for none.
        return self._deadline if self._left > 0 else 0.0

    def dequeue(self) -> Message | None:
        """Return the next message, None when there is none yet; raises `BatchFull` if the batch ends before it."""
        if self._most_bytes is None or not self.messages:
            return self._consumer.dequeue()
        message = self._consumer.dequeue_within(self._left)
        if message is False or (message is None and self._left <= 0):
            raise BatchFull
        return message

    def add_all(self, ready: MessageQueue[Message]) -> bool:
        """Add messages from the left as long as they fit, and return True if the batch is complete."""
        messages = self.messages
        left = self._most - len(messages)
        self._left -= ready.drain_to(messages, left, self._left)
        return len(messages) >= self._most or len(ready) > 0

    def add(self, message: Message) -> bool:
        """Add a message and return True if the batch is complete."""
        self.messages.append(message)
        self._left -= len(message)
        return len(self.messages) >= self._most or self._left < 0
