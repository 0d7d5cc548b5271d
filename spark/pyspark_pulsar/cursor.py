"""Durable subscription of a streaming read (option predefinedSubscription), so that the broker keeps unread messages.

It holds messages and delivers none: the checkpoint alone determines the messages read. Rules: it is moved only to
positions that Spark has finished and logged, which Spark reports when it plans the batch after that, so it is one batch
behind. It never moves past a message to be read, nor past the last one that was read, and it outlives the query.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from pulsar_native import Client, Consumer, ConsumerType, InitialPosition, MessageId
from pulsar_native.exceptions import PulsarException
from pulsar_native.topic import TopicName
from pyspark_pulsar.positions import Position

_log = logging.getLogger("pyspark_pulsar")


class DurableCursor:
    """Subscription of every topic partition of a query. Blocks; for one thread; close it when done."""

    def __init__(self, client: Client, subscription: str) -> None:
        self._client = client
        self._subscription = subscription
        self._consumers: dict[str, Consumer] = {}
        self._moved_to: dict[str, Position] = {}

    def hold(self, topics: Sequence[str]) -> None:
        """Subscribe to new partitions: from then on the broker keeps the messages after the cursor.

        Raises `ConsumerBusy` if another query uses the subscription.
        """
        for topic in topics:
            if topic not in self._consumers:
                # With a queue of 0 the broker sends no message.
                self._consumers[topic] = self._client.subscribe(
                    topic,
                    self._subscription,
                    ConsumerType.Exclusive,
                    initial_position=InitialPosition.Earliest,
                    receiver_queue_size=0,
                    acknowledgment_group_time_ms=0,
                    ack_receipt_enabled=True,
                )
        for gone in self._consumers.keys() - set(topics):
            self._consumers.pop(gone).close()

    def advance(self, positions: Mapping[str, Position | None]) -> None:
        """Acknowledge the messages before these positions, except the last one of each partition.

        Failures are logged and repeated by the next call.
        """
        for topic, position in positions.items():
            consumer = self._consumers.get(topic)
            earlier = self._moved_to.get(topic)
            if consumer is None or position is None or earlier == position:
                continue
            done = _last_done(position, earlier, TopicName.parse(topic).partition)
            try:
                if done is not None:
                    consumer.acknowledge_cumulative(done)
                self._moved_to[topic] = position
            except PulsarException as error:
                _log.warning(
                    "The subscription %s of %s stays where it is (%s): more is kept than needed, nothing is lost",
                    self._subscription,
                    topic,
                    type(error).__name__,
                )

    def __enter__(self) -> DurableCursor:
        return self

    def __exit__(self, *failure: object) -> None:
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()


def _last_done(position: Position, earlier: Position | None, partition: int) -> MessageId | None:
    """Return the last entry to acknowledge for a position; `earlier` is the one before it, if known. None for nothing.

    Whole entries are acknowledged, so a partly read one is kept. The last one that was read is kept too, with its
    ledger: it is the proof that nothing was removed between it and the next message (`check_retained`).
    """
    kept = position.entry if position.batch >= 0 else position.entry - 1
    if kept > 0:
        return MessageId(partition, position.ledger, kept - 1)
    # How many entries earlier ledgers have is not known, but that a finished position was reached there.
    if earlier is not None and earlier.ledger < position.ledger and earlier.entry > 0:
        return MessageId(partition, earlier.ledger, earlier.entry - 1)
    return None
