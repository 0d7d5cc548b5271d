"""What a client, its producers and its consumers have done: immutable figures, as `stats()` returns them.

Rules: names are the Java client's in snake_case. `num_…` figures and rates are of the running interval, which begins
anew whenever a record is logged (`stats_interval_in_seconds` of the client) and is `interval_seconds` old;
`total_…` figures count from the object's creation. With recording off every count is 0; queue sizes are always told.
Bytes are payloads as the application gave or got them, before compression. The figures of a partitioned topic are the
sums of its partitions'; its percentiles are those of all entries together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class ProducerStats:
    """What a producer did. Latencies are milliseconds from the message's (a batch's first) `send` to the receipt."""

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
    """What a consumer or reader did. A message counts as received when the application has it.

    A cumulative acknowledgement counts once. Failed receives are calls that raised (a time-out is no failure) and
    entries that were discarded because they are damaged or cannot be decrypted.
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
    total_acks_sent: int = 0
    total_acks_failed: int = 0
    total_negative_acks: int = 0
    total_ack_timeouts: int = 0
    msg_num_in_receiver_queue: int = 0
    partition_stats: Mapping[str, ConsumerStats] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, kw_only=True)
class ClientStats:
    """What a client's open producers and consumers did; the totals have those that were closed, too."""

    connections: int = 0
    # Of messages waiting for their receipts, and received and waiting to be taken where that is limited.
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
    """How a producer ended, in messages: `left` were not confirmed in time, they failed and may still be stored."""

    topic: str
    producer_name: str
    sent: int
    failed: int
    left: int


@dataclass(frozen=True, kw_only=True)
class ConsumerClose:
    """How a consumer ended. `queued` messages had arrived and were not taken; the broker delivers them again.

    `acks_sent` and `acks_left` count the acknowledgements the closing found unsent: delivered to the broker, and lost
    for want of a connection. `unacked` is the broker's count of messages given to this consumer in entries that are not
    wholly acknowledged (0 on Exclusive and Failover subscriptions, where it keeps none), `backlog` that of the entries
    the subscription still has to give or get acknowledged; None when it did not answer before the goodbye.
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
    """What closing a client, producer or consumer did: per topic or partition, and in sum."""

    seconds: float = 0.0
    producers: tuple[ProducerClose, ...] = ()
    consumers: tuple[ConsumerClose, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether nothing was left: every message confirmed or failed, every acknowledgement sent."""
        return not self.left and not self.acks_left

    @property
    def sent(self) -> int:
        """Messages that were waiting for their receipts and got them."""
        return sum(each.sent for each in self.producers)

    @property
    def failed(self) -> int:
        """Messages that failed meanwhile, by the broker's word or the send time-out."""
        return sum(each.failed for each in self.producers)

    @property
    def left(self) -> int:
        """Messages that had no receipt when the time was up."""
        return sum(each.left for each in self.producers)

    @property
    def acks_left(self) -> int:
        """Acknowledgements that could not be sent."""
        return sum(each.acks_left for each in self.consumers)

    def __str__(self) -> str:
        return (
            f"closed in {self.seconds:.3f} s: {self.sent} messages sent, {self.failed} failed, {self.left} left; "
            f"{sum(each.acks_sent for each in self.consumers)} acknowledgements sent, {self.acks_left} left, "
            f"{sum(each.queued for each in self.consumers)} messages not taken"
        )
