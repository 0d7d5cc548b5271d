"""Batch collector: the messages of one `batch_receive`, collected until its policy is met."""

from __future__ import annotations

import sys

from pulsar_native._message_fields import MessageQueue
from pulsar_native.config import BatchReceivePolicy, ConsumerConfig
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.message import Message


def batch_collector(config: ConsumerConfig, now: float) -> BatchCollector:
    """Return the collector of one batch receive; raises for a receiver queue of 0."""
    if config.receiver_queue_size == 0:
        raise InvalidConfiguration(
            "batch_receive() needs a queue: with receiver_queue_size=0 messages are requested one by one; use "
            "receive(), or a receiver_queue_size above 0"
        )
    return BatchCollector(config.batch_receive_policy, now)


class BatchCollector:
    """Collector of one batch receive's messages. `now` is monotonic seconds."""

    __slots__ = ("_bytes", "_policy", "deadline", "messages")

    def __init__(self, policy: BatchReceivePolicy, now: float) -> None:
        self._policy = policy
        self._bytes = 0
        self.messages: list[Message] = []
        self.deadline = now + policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None

    def clear(self) -> list[Message]:
        """Start again, and return what was collected."""
        messages, self.messages = self.messages, []
        self._bytes = 0
        return messages

    def add_all(self, ready: MessageQueue[Message]) -> bool:
        """Add messages from the left as long as there are any, and return True if the batch is complete."""
        policy = self._policy
        left = policy.max_num_messages - len(self.messages) if policy.max_num_messages > 0 else sys.maxsize
        most = policy.max_num_bytes if policy.max_num_bytes > 0 else sys.maxsize
        before = len(self.messages)
        self._bytes += ready.drain_to(self.messages, left, most - self._bytes)
        return len(self.messages) - before >= left or self._bytes >= most

    def add(self, message: Message) -> bool:
        """Add a message and return True if the batch is complete."""
        self.messages.append(message)
        self._bytes += len(message)
        policy = self._policy
        return 0 < policy.max_num_messages <= len(self.messages) or 0 < policy.max_num_bytes <= self._bytes
