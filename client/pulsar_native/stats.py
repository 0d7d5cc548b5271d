"""Statistics of clients, producers and consumers, and reports of `close()`: immutable values.

Rules: names are the Java client's in snake_case. `num_…` values and rates are those of the running interval, which
restarts with each log record (`stats_interval_in_seconds` of the client) and is `interval_seconds` old; `total_…`
values count from the object's creation. With statistics off every count is 0; queue sizes are always valid. Bytes are
payloads before compression. Values of a partitioned topic are the sums over its partitions; its percentiles are those
of all entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class ProducerStats:
    """Statistics of a producer. Latencies are milliseconds from the `send` of an entry to its receipt."""

    topic: str = ""
    producer_name: str = ""
    interval_seconds: float = 0.0
    num_msgs_sent: int = 0
    num_bytes_sent: int = 0
    num_send_failed: int = 0
    num_acks_received: int = 0
    send_msgs_rate: float = 0.0
    send_bytes_rate: float = 0.0
    send_latency_millis_50pct: float = 0.0
    send_latency_millis_75pct: float = 0.0
    send_latency_millis_95pct: float = 0.0
    send_latency_millis_99pct: float = 0.0
    send_latency_millis_999pct: float = 0.0
    send_latency_millis_max: float = 0.0
    total_msgs_sent: int = 0
    total_bytes_sent: int = 0
    total_send_failed: int = 0
    total_acks_received: int = 0
    pending_queue_size: int = 0
    partition_stats: Mapping[str, ProducerStats] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, kw_only=True)
class ConsumerStats:
    """Statistics of a consumer or reader. A message counts as received when the application has it.

    A cumulative acknowledgement counts once. Failed receives are calls that raised, time-outs excluded, and entries
    discarded because they are damaged or cannot be decrypted. `total_decryption_failed` counts entries, delivered
    again or not.
    """

    topic: str = ""
    subscription_name: str = ""
    consumer_name: str = ""
    interval_seconds: float = 0.0
    num_msgs_received: int = 0
    num_bytes_received: int = 0
    num_receive_failed: int = 0
    num_batch_receive_failed: int = 0
    num_acks_sent: int = 0
    num_acks_failed: int = 0
    num_negative_acks: int = 0
    num_ack_timeouts: int = 0
    rate_msgs_received: float = 0.0
    rate_bytes_received: float = 0.0
    total_msgs_received: int = 0
    total_bytes_received: int = 0
    total_receive_failed: int = 0
    total_batch_receive_failed: int = 0
    total_decryption_failed: int = 0
    total_acks_sent: int = 0
    total_acks_failed: int = 0
    total_negative_acks: int = 0
    total_ack_timeouts: int = 0
    msg_num_in_receiver_queue: int = 0
    partition_stats: Mapping[str, ConsumerStats] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, kw_only=True)
class ClientStats:
    """Statistics of a client: its open producers and consumers, and totals that include closed ones."""

    connections: int = 0
    # Payloads of messages without a receipt, and of receiver queues that scale.
    memory_used_bytes: int = 0
    memory_limit_bytes: int = 0
    total_msgs_sent: int = 0
    total_bytes_sent: int = 0
    total_send_failed: int = 0
    total_acks_received: int = 0
    total_msgs_received: int = 0
    total_bytes_received: int = 0
    total_acks_sent: int = 0
    total_acks_failed: int = 0
    producers: tuple[ProducerStats, ...] = ()
    consumers: tuple[ConsumerStats, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProducerClose:
    """Result of closing a producer, in messages; `left` had no receipt in time: they failed and may still be stored."""

    topic: str
    producer_name: str
    sent: int
    failed: int
    left: int


@dataclass(frozen=True, kw_only=True)
class ConsumerClose:
    """Result of closing a consumer. `queued` messages had arrived and were not received; the broker redelivers them.

    `acks_sent` and `acks_left` count the gathered acknowledgements: sent at closing, and lost for lack of a connection.
    `unacked` is the broker's count of messages delivered to this consumer in entries not fully acknowledged (0 on
    Exclusive and Failover subscriptions, for which it keeps no count); `backlog` is its count of the subscription's
    entries that are not acknowledged. The broker is asked for both when the client is closed, and by a `close` with a
    time limit. They are None otherwise, for readers, whose subscription ends with them, and if the broker did not
    answer before the consumer was closed.
    """

    topic: str
    subscription_name: str
    consumer_name: str
    queued: int
    acks_sent: int
    acks_left: int
    unacked: int | None = None
    backlog: int | None = None


@dataclass(frozen=True, kw_only=True)
class CloseReport:
    """Result of closing a client, producer or consumer: per topic or partition, and in total."""

    seconds: float = 0.0
    producers: tuple[ProducerClose, ...] = ()
    consumers: tuple[ConsumerClose, ...] = ()

    @property
    def complete(self) -> bool:
        """True if every message has a receipt or failed, and every acknowledgement was sent."""
        return not self.left and not self.acks_left

    @property
    def sent(self) -> int:
        """Number of pending messages that got their receipts."""
        return sum(each.sent for each in self.producers)

    @property
    def failed(self) -> int:
        """Number of pending messages that failed, by the broker's error or the send time-out."""
        return sum(each.failed for each in self.producers)

    @property
    def left(self) -> int:
        """Number of messages without a receipt at the time limit."""
        return sum(each.left for each in self.producers)

    @property
    def acks_left(self) -> int:
        """Number of acknowledgements that could not be sent."""
        return sum(each.acks_left for each in self.consumers)

    def __str__(self) -> str:
        return (
            f"closed in {self.seconds:.3f} s: {self.sent} messages sent, {self.failed} failed, {self.left} left; "
            f"{sum(each.acks_sent for each in self.consumers)} acknowledgements sent, {self.acks_left} left, "
            f"{sum(each.queued for each in self.consumers)} messages not taken"
        )
