"""Batch collector: the messages of one `batch_receive`, collected until its policy is met."""

from __future__ import annotations

import sys
from collections import deque

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
        # An upper bound.
        self._bytes = 0
        self.messages: list[Message] = []
        self.deadline = now + policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None

    def clear(self) -> list[Message]:
        """Start again, and return what was collected."""
        messages, self.messages = self.messages, []
        self._bytes = 0
        return messages

    def add_all(self, ready: deque[Message]) -> bool:
        """Add messages from the left as long as there are any, and return True if the batch is complete."""
        take, collect = ready.popleft, self.messages.append
        policy = self._policy
        left = policy.max_num_messages - len(self.messages) if policy.max_num_messages > 0 else sys.maxsize
        most = policy.max_num_bytes if policy.max_num_bytes > 0 else sys.maxsize
        entry, exactly = None, False
        try:
            for _ in range(left):
                message = take()
                collect(message)
                if exactly:
                    self._bytes += len(message)
                elif message.entry is not entry:
                    # The messages of an entry together have no more bytes than it; where that is too many, each is
                    # counted.
                    entry = message.entry
                    self._bytes += len(entry.body)
                    exactly = self._bytes >= most
                    if exactly:
                        self._count()
                if exactly and self._bytes >= most:
                    return True
        except IndexError:
            # Another thread may dequeue from there, too.
            return False
        return True

    def _count(self) -> None:
        self._bytes = sum(map(len, self.messages))

    def add(self, message: Message) -> bool:
        """Add a message and return True if the batch is complete."""
        self.messages.append(message)
        self._bytes += len(message)
        policy = self._policy
        if 0 < policy.max_num_messages <= len(self.messages):
            return True
        if 0 < policy.max_num_bytes <= self._bytes:
            self._count()
            return policy.max_num_bytes <= self._bytes
        return False
