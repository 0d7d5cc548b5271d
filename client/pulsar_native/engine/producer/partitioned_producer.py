"""Producer of a topic: one `PartitionProducer`, or one for each partition behind a router; the APIs' producer.

Rules: all partitions are created or none, or, when they start lazily, one of them, which checks that publishing is
allowed; the partition of a message is chosen once; new partitions are discovered and joined, partitions never become
fewer.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from pulsar_native._loggers import get_logger
from pulsar_native._message_fields import FastPathBuffer
from pulsar_native.config import ProducerConfig
from pulsar_native.engine.handler import State
from pulsar_native.engine.lookup import BrokerOfTopic
from pulsar_native.engine.loop import gather, gather_settled
from pulsar_native.engine.producer.backpressure import Backpressure
from pulsar_native.engine.producer.close import close, close_inline
from pulsar_native.engine.producer.key_renewal import KeyRenewal
from pulsar_native.engine.producer.lazy_producer import LazyPartitionProducer
from pulsar_native.engine.producer.message_schemas import MessageSchemas
from pulsar_native.engine.producer.producer import PartitionProducer, ProducerClient
from pulsar_native.engine.waiter import SendWait
from pulsar_native.enums import PartitionsRoutingMode, ProducerAccessMode
from pulsar_native.exceptions import PulsarException, log_text
from pulsar_native.message import OutgoingMessage
from pulsar_native.protocol.routing import CustomRouting, RoundRobinRouting, Routing, SingleRouting
from pulsar_native.protocol.send_op import SendCallback
from pulsar_native.schema.base import Schema
from pulsar_native.schema.registered import wire_schema
from pulsar_native.stats import ProducerClose
from pulsar_native.topic import TopicName

_log = get_logger("pulsar_native.producer")


class TopicProducerClient(ProducerClient, Protocol):
    """Client of a topic's producer."""

    def forget(self, handler: TopicProducer) -> None: ...


class TopicProducer:
    """Producer of a topic, partitioned or not."""

    def __init__(
        self,
        client: TopicProducerClient,
        config: ProducerConfig,
        topic: TopicName,
        partitions: int,
        schema: Schema[Any],
    ) -> None:
        self.client = client
        self.config = config
        self.topic = topic
        self.is_partitioned = partitions > 0
        self.schema = schema
        self.message_schemas = MessageSchemas(self)
        self._schema = wire_schema(schema)
        self._routing = _routing(config)
        self._growth: asyncio.Task[None] | None = None
        # The other access modes mean exclusive access to a topic: they open every partition, as Java's do.
        self._lazy = (
            partitions > 1
            and config.lazy_start_partitioned_producers
            and config.access_mode is ProducerAccessMode.Shared
        )
        self._keys = KeyRenewal(client.engine, config, topic) if config.encryption_key_names else None
        names = [topic.with_partition(index) for index in range(partitions)] if partitions else [topic]
        self.children = [self._child(name, len(names)) for name in names]
        self._first = self.children[self._first_partition()]

    def _child(self, name: TopicName, count: int) -> PartitionProducer:
        limit = self.config.max_pending_messages
        across = self.config.max_pending_messages_across_partitions
        if self.is_partitioned and across:
            share = max(1, across // count)
            limit = min(limit, share) if limit else share
        kind = LazyPartitionProducer if self._lazy else PartitionProducer
        encryptor = None if self._keys is None else self._keys.encryptor
        return kind(self.client, self.config, name, max_pending=limit, schema=self._schema, encryptor=encryptor)

    def _first_partition(self) -> int:
        """Return the partition to create first: for lazy ones, one that the routing would choose, too."""
        if not self._lazy or self.config.message_router is not None:
            return 0
        return self._routing.choose(OutgoingMessage(b""), len(self.children), time.monotonic())

    async def open(self, broker: BrokerOfTopic | None = None, deadline: float | None = None) -> None:
        """Create the producer on every partition, unless lazy; the first failure closes the others and is raised.

        `broker` serves the topic, if that is known: it is not looked up then. The `deadline` is that of all partitions.
        """
        try:
            if self._keys is not None:
                await self._keys.start()
            # The first partition determines a generated name, so that all partitions share one, as in Java.
            self._first.assign(broker)
            await self._first.open(deadline)
            others = [child for child in self.children if child is not self._first]
            for child in others:
                self._share_name(child)
            if not self._lazy:
                await gather_settled(child.open(deadline) for child in others)
        except BaseException:
            # Together, as a broker that does not answer is waited for.
            await gather(close(child) for child in self.children)
            for child in self.children:
                child.abandon()
            self._stop_tasks()
            raise
        if self.is_partitioned and self.config.auto_update_partitions:
            self._growth = self.client.engine.spawn(self._watch_growth())

    def _share_name(self, child: PartitionProducer) -> None:
        if self.config.producer_name is None:
            child.core.name = self._first.core.name
            child._name_known = True

    async def _watch_growth(self) -> None:
        while True:
            await asyncio.sleep(self.config.auto_update_partitions_interval_seconds)
            try:
                await self.update_partitions()
            except PulsarException as error:
                _log.warning("%s: cannot see whether there are new partitions: %s", self.describe(), log_text(error))

    async def update_partitions(self) -> None:
        """Join added partitions; failures are retried next time."""
        count = await self.client.partition_count(self.topic)
        if count <= len(self.children):
            return
        added = [self._child(self.topic.with_partition(index), count) for index in range(len(self.children), count)]
        for child in added:
            self._share_name(child)
        try:
            if not self._lazy:
                await gather_settled(child.open() for child in added)
        except BaseException:
            await gather(close(child) for child in added)
            raise
        self.children = [*self.children, *added]
        _log.info("%s now has %d partitions", self.describe(), count)

    # --- data path (thread-safe) ------------------------------------------------------------------------------------

    def enqueue(
        self,
        payload: bytes,
        fields: bytes,
        extras: OutgoingMessage | None,
        callback: SendCallback | None,
        *,
        flush: bool = False,
        child: PartitionProducer | None = None,
    ) -> Backpressure | None:
        """Add a message; return the backpressure when it was not accepted. `child` is a partition chosen before."""
        child = child or self.route(payload, extras)
        full = child.enqueue(payload, fields, extras, callback, flush=flush)
        if full is None:
            return None
        return full.retried_by(partial(child.enqueue, payload, fields, extras, callback, flush=flush))

    def fast_send(self) -> Callable[[bytes, SendCallback | None], Backpressure | None]:
        """Return the fast path for messages that have only a payload; it takes payload and callback."""
        return self._enqueue_plain if self.is_partitioned else self.children[0].enqueue_plain

    def fast_path(self) -> tuple[FastPathBuffer, Callable[[], None]] | None:
        """Return the buffer of the fast path, and the function that processes late messages in it.

        None where each message takes its own way: to a partition, or through interceptors.
        """
        child = self.children[0]
        return None if self.is_partitioned else (child.core.fast_path, child.drain_late)

    @property
    def sends_described(self) -> bool:
        """True if messages with keys and properties may take a fast path: nothing on their way looks at those."""
        return self.config.batching_enabled and not self.is_partitioned

    def fast_send_described(self) -> Callable[[bytes, SendCallback | None, bytes], Backpressure | None]:
        """Return the fast path for messages with encoded fields, for where `sends_described` is true.

        It takes payload, callback and fields.
        """
        return self.children[0].enqueue_described

    def fast_send_sync(self) -> Callable[[bytes, SendWait], Backpressure | None]:
        """Return the fast path for such messages of a waiting sender: they are sent immediately."""
        return self._enqueue_reading_inline if self.is_partitioned else self.children[0].enqueue_reading_inline

    def _enqueue_reading_inline(self, payload: bytes, wait: SendWait) -> Backpressure | None:
        child = self.route(payload, None)
        full = child.enqueue_reading_inline(payload, wait)
        return None if full is None else full.retried_by(partial(child.enqueue_reading_inline, payload, wait))

    def _enqueue_plain(self, payload: bytes, callback: SendCallback | None) -> Backpressure | None:
        child = self.route(payload, None)
        full = child.enqueue_plain(payload, callback)
        return None if full is None else full.retried_by(partial(child.enqueue_plain, payload, callback))

    def route(self, payload: bytes, extras: OutgoingMessage | None) -> PartitionProducer:
        """Return the partition's producer for a message."""
        children = self.children
        if not self.is_partitioned:
            return children[0]
        if extras is None:
            return children[self._routing.choose_plain(payload, len(children), time.monotonic())]
        return children[self._routing.choose(extras, len(children), time.monotonic())]

    def describe(self) -> str:
        """Return a short name for logs."""
        return f"Producer {self.name} of {self.topic}"

    @property
    def name(self) -> str:
        """The producer's name, set by the application or generated by the broker."""
        return self._first.core.name

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id with a receipt, -1 initially."""
        return max(child.core.queue.last_published for child in self.children)

    @property
    def is_connected(self) -> bool:
        """True if every partition that is in use is connected; False in a forked child."""
        # All of none, in a child too, where nothing has been published yet.
        is_usable = not self.client.engine.is_inherited
        return is_usable and all(child.is_connected for child in self.children if child.is_started)

    @property
    def last_disconnected_timestamp(self) -> int:
        """Time of any partition's last disconnection in ms since 1970, 0 if there was none."""
        return max(child.last_disconnected_timestamp for child in self.children)

    @property
    def is_closed(self) -> bool:
        """True after the producer was closed."""
        return all(child.state is State.CLOSED for child in self.children)

    # --- end --------------------------------------------------------------------------------------------------------

    async def close(self, timeout: float | None = None) -> tuple[ProducerClose, ...]:
        """Flush, and close every partition, within `timeout` seconds, else the operation time-out."""
        self._stop_tasks()
        reports = await gather(close(child, timeout) for child in self.children)
        self.ended()
        return tuple(reports)

    def close_inline(self, timeout: float | None = None) -> tuple[ProducerClose, ...] | None:
        """As `close`, in the calling thread if that is possible; else None, without effect. Thread-safe, blocks.

        Interceptors are called on the loop before the close returns, several partitions are closed concurrently.
        """
        has_tasks = self._growth is not None or self._keys is not None
        if type(self) is not TopicProducer or len(self.children) != 1 or has_tasks:
            return None
        report = close_inline(self.children[0], timeout, self.ended)
        return None if report is None else (report,)

    def _stop_tasks(self) -> None:
        if self._growth is not None:
            self._growth.cancel()
        if self._keys is not None:
            self._keys.stop()

    def abandon(self) -> None:
        """Close without a message to the broker."""
        self._stop_tasks()
        for child in self.children:
            child.abandon()
        self.ended()

    def ended(self) -> None:
        """Release everything: no more messages will be sent."""
        self.client.forget(self)


def _routing(config: ProducerConfig) -> Routing:
    if config.message_router is not None:
        return CustomRouting(config.message_router)
    if config.message_routing_mode is PartitionsRoutingMode.UseSinglePartition:
        return SingleRouting(config.hashing_scheme, random.randrange(1 << 30))
    switch = 0.0
    if config.batching_enabled:
        switch = config.batching_max_publish_delay_ms / 1000 * config.round_robin_partition_switch_frequency
    return RoundRobinRouting(config.hashing_scheme, random.randrange(1 << 30), switch_seconds=switch)
