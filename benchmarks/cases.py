"""Workloads of run.py, and the peers that can run each."""

from __future__ import annotations

from dataclasses import dataclass

# Actions that read what is filled in first.
READING = (
    "receive", "receive-getters", "receive-timeout", "receive-key-shared", "receive-asyncio", "listener",
    "batch-receive", "columns", "columns-full", "has-more", "receive-json", "receive-avro",
)  # fmt: skip
# What the peers besides the two Python clients do; the drain has no getters, acknowledgements or columns to tell apart.
JAVA = ("publish", "publish-callback", "send-many", "send-table", "receive", "batch-receive", "columns")
DRAIN = ("receive", "batch-receive", "columns")


@dataclass(frozen=True)
class Case:
    """One workload: what worker.py is to do, and with how many messages of which size."""

    name: str
    action: str
    size: int
    messages: int
    compression: str = "NONE"
    # What a reading case finds in its topic: batches, or entries of one message.
    batched: bool = True
    # The topic's number of partitions; 0: it has none.
    partitions: int = 0
    # Whether its messages have a key, two properties and an event time.
    described: bool = False
    # Whether the measured client connects by TLS.
    tls: bool = False
    # Consumers of one Shared subscription, in one process.
    consumers: int = 1

    @property
    def is_reading(self) -> bool:
        """True if it reads what is filled in first."""
        return self.action in READING

    @property
    def takes_new_topics(self) -> bool:
        """True if each measurement has a topic of its own; a partitioned one is kept, since making it takes long."""
        return self.action.startswith("publish") and not self.partitions

    def suits(self, peer: str) -> bool:
        """Return whether a peer takes part: the Python clients always, the drain where it can.

        The Java client takes part in the plain cases only, as its warm-up takes longer than all else.
        """
        if peer == "java":
            is_plain = self.batched and not self.partitions and not self.tls and self.compression == "NONE"
            return self.action in JAVA and is_plain and self.size <= 1024
        return peer != "drain" or self.action in DRAIN


CASES = (
    Case("publish 100 B", "publish", 100, 1_000_000),
    Case("publish 1 KB", "publish", 1024, 100_000),
    Case("publish 1 KB LZ4", "publish", 1024, 100_000, "LZ4"),
    Case("publish 1 KB ZSTD", "publish", 1024, 100_000, "ZSTD"),
    Case("publish 64 KB", "publish", 65_536, 2_000),
    Case("publish 1 KB, TLS", "publish", 1024, 50_000, tls=True),
    Case("publish, 16 partitions", "publish", 100, 300_000, partitions=16),
    Case("publish, 256 partitions", "publish", 100, 300_000, partitions=256),
    Case("send_many 100 B", "send-many", 100, 1_000_000),
    Case("send_table 100 B", "send-table", 100, 1_000_000),
    Case("publish 100 B, callback", "publish-callback", 100, 100_000),
    Case("publish, key + 2 properties", "publish", 100, 200_000, described=True),
    Case("publish, key + 2 p., callback", "publish-callback", 100, 50_000, described=True),
    Case("publish JSON value", "publish-json", 0, 30_000),
    Case("publish Avro value", "publish-avro", 0, 30_000),
    Case("asyncio send, 1,000 at a time", "publish-asyncio", 100, 100_000),
    Case("receive + ack 100 B", "receive", 100, 1_000_000),
    Case("receive + ack 1 KB", "receive", 1024, 100_000),
    Case("receive + ack 1 KB LZ4", "receive", 1024, 100_000, "LZ4"),
    Case("receive + ack 1 KB ZSTD", "receive", 1024, 100_000, "ZSTD"),
    Case("receive + ack 64 KB", "receive", 65_536, 2_000),
    Case("receive + ack 1 KB, TLS", "receive", 1024, 50_000, tls=True),
    Case("receive, key + all getters", "receive-getters", 100, 200_000, described=True),
    Case("receive + ack, 4 partitions", "receive", 100, 300_000, partitions=4),
    Case("receive + ack, 16 partitions", "receive", 100, 300_000, partitions=16),
    Case("receive + ack, 256 partitions", "receive", 100, 300_000, partitions=256),
    Case("receive + ack, ack time-out", "receive-timeout", 100, 300_000),
    Case("receive + ack, Key_Shared", "receive-key-shared", 100, 200_000, described=True),
    Case("receive + ack JSON value", "receive-json", 0, 30_000),
    Case("receive + ack Avro value", "receive-avro", 0, 30_000),
    Case("listener + ack 100 B", "listener", 100, 300_000),
    Case("listener, 1 consumer", "listeners", 100, 10_000, batched=False),
    Case("listener, 1,000 consumers", "listeners", 100, 10_000, batched=False, consumers=1_000),
    Case("asyncio receive + ack", "receive-asyncio", 100, 100_000),
    Case("batch_receive 100 B", "batch-receive", 100, 1_000_000),
    Case("batch_receive 1 KB", "batch-receive", 1024, 100_000),
    Case("columns 100 B", "columns", 100, 1_000_000),
    Case("columns 1 KB", "columns", 1024, 100_000),
    Case("columns 1 KB LZ4", "columns", 1024, 100_000, "LZ4"),
    Case("columns 1 KB ZSTD", "columns", 1024, 100_000, "ZSTD"),
    Case("columns 64 KB", "columns", 65_536, 2_000),
    Case("columns 100 B, all fields", "columns-full", 100, 500_000, described=True),
    Case("sync send, non-persistent", "latency", 100, 3_000),
    Case("receive + ack, unbatched", "receive", 100, 100_000, batched=False),
    Case("read while there is more", "has-more", 100, 100_000),
    Case("message id to bytes and back", "message-ids", 100, 200_000),
    Case("client: create, ask, close", "client", 100, 100),
)

# Cases of control.py, which measures both clients in turns in one process, and the rows of each.
CONTROL = {
    "partitions": ("partitions of a topic",),
    "producer": ("producer: create", "producer: close"),
    "consumer": ("consumer: create", "consumer: close"),
    "reader": ("reader: create", "reader: close"),
    "last message": ("last message id", "has message, at the end"),
}
CONTROL_PAIRS = 300
CONTROL_WARM_UP_PAIRS = 2_000
