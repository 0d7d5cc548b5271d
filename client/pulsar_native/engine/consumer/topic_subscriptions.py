"""Topics of a multi-topics consumer, and the `PartitionConsumer`s of their partitions.

Rules: all partitions of a topic are subscribed or none. The lists are replaced, never changed, since other threads read
them without a lock. A message id is routed to its consumer by its topic. Changes are on the loop; reading is
thread-safe.
"""

from __future__ import annotations

import asyncio
import logging
import random
import string
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.consumer.close import close, unsubscribe
from pulsar_native.engine.consumer.consumer import ConsumerClient, PartitionConsumer
from pulsar_native.engine.consumer.seek import open_at_start
from pulsar_native.engine.lookup import BrokerOfTopic
from pulsar_native.engine.loop import gather, gather_settled
from pulsar_native.enums import ConsumerType, SubscriptionMode
from pulsar_native.exceptions import (
    AlreadyClosed,
    InvalidConfiguration,
    NotConnected,
    OperationNotSupported,
    PulsarException,
    log_text,
)
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.topic_pattern import TopicPattern
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pulsar_native.engine.consumer.ack_grouping_tracker import AckGroupingTracker
    from pulsar_native.engine.consumer.consumer_events import ConsumerEvents

_log = logging.getLogger("pulsar_native.consumer")


class PatternWatcher(Protocol):
    """Watcher of the topics of a pattern."""

    pattern: TopicPattern

    async def open(self) -> None: ...
    def leave(self, topic: TopicName) -> None: ...
    def stay(self, topic: TopicName) -> None: ...


class SubscriptionsClient(ConsumerClient, Protocol):
    """Client of a consumer of several topics."""

    def retire(self, parts: list[PartitionConsumer]) -> None: ...


class TopicSubscriptions(ABC):
    """Topics of a `MultiTopicsConsumer`, which inherits it."""

    def __init__(
        self,
        client: SubscriptionsClient,
        config: ConsumerConfig,
        topics: dict[TopicName, int],
        schema: VersionedDecoder,
        wire_schema: pb.Schema | None,
    ) -> None:
        self.client = client
        # One name for all partitions, also of topics that are added later.
        self.name = config.consumer_name or "".join(random.choices(string.ascii_lowercase + string.digits, k=5))
        self.config = config
        self.topics = topics
        # Watcher of the pattern, if any, and whether the topics may change, for this or another reason.
        self.pattern: PatternWatcher | None = None
        self.changes = False
        self._schema = schema
        self._wire_schema = wire_schema
        self._ended = False
        self._paused = False
        # True during a strict pause.
        self.held = False
        # True if an API dequeues from the prefetch buffers.
        self.prefetches = False
        self._tasks: list[asyncio.Task[None]] = []
        # Listener that is notified when a partition's consumer becomes active or inactive (Failover).
        self.activity: ConsumerEvents | None = None
        # One decoder per topic, shared by its partitions.
        self._decoders = {topic: schema.for_topic() for topic in topics}
        names = [name for topic, count in topics.items() for name in _names(topic, count)]
        start = config.start_message_id
        if len(names) > 1 and start is not None and start not in (MessageId.earliest, MessageId.latest):
            raise InvalidConfiguration(
                "Over several topics or partitions a reader starts at MessageId.earliest or latest, as an id belongs "
                "to one of them; move each with seek(function) then"
            )
        if config.receiver_queue_size == 0 and (len(names) != 1 or any(topics.values())):
            raise InvalidConfiguration(
                "receiver_queue_size=0 is for one topic without partitions: of several it is not known which "
                "to ask for the next message; use receiver_queue_size=1, or subscribe to one partition by its name"
            )
        self.children = [self._child(name, len(names)) for name in names]
        self._by_topic = {child.topic.full: child for child in self.children}
        # By topic, the trackers whose fast path the APIs may use directly: `AckGroupingTracker.fast_path`.
        self.fast_acks: dict[str, AckGroupingTracker] = {}
        self._offer_fast_acks(self.children)

    @abstractmethod
    def _arrived(self, child: PartitionConsumer) -> None:
        """Process a consumer's arrival of messages. On the loop."""

    async def open(self, broker: BrokerOfTopic | None = None) -> None:
        """Subscribe to every partition; the first failure closes the others and is raised.

        `broker` serves the only topic, if that is known: it is not looked up then.
        """
        if len(self.children) == 1:
            self.children[0].assign(broker)
        try:
            await gather_settled(open_at_start(child) for child in self.children)
            if self.pattern is not None:
                self.changes = True
                await self.pattern.open()
        except BaseException:
            self._stop_growth()
            self._ended = True
            await gather(close(child) for child in self.children)
            raise
        if self.config.auto_update_partitions and (self.changes or any(self.topics.values())):
            self.add_task(self.client.engine.spawn(self._watch_growth()))

    async def _watch_growth(self) -> None:
        while True:
            await asyncio.sleep(self.config.auto_update_partitions_interval_seconds)
            for topic, count in list(self.topics.items()):
                if count:
                    try:
                        await self.update_partitions(topic)
                    except PulsarException as error:
                        _log.warning("%s: cannot join new partitions yet: %s", self.describe(topic), log_text(error))

    async def update_partitions(self, topic: TopicName) -> None:
        """Subscribe to added partitions; failures are retried next time."""
        known = self.topics[topic]
        count = await self.client.partition_count(topic, auto_create=not self.changes)
        if count < known:
            _log.warning("%s has %d partitions, fewer than the %d consumed: ignored", topic, count, known)
        if count <= known or topic not in self.topics:
            return
        config = self.config
        if config.subscription_mode is SubscriptionMode.NonDurable:
            # Messages published before the partition was discovered have no subscription to wait in.
            config = config.replace(start_message_id=MessageId.earliest)
        total = len(self.children) + count - known
        added = [self._child(topic.with_partition(index), total, config) for index in range(known, count)]
        await self._join(topic, count, added)
        _log.info("%s now has %d partitions", self.describe(topic), count)

    async def add_topic(self, topic: TopicName, count: int) -> None:
        """Subscribe to one more topic, with all its partitions or not at all."""
        if topic in self.topics:
            return
        self._decoders[topic] = self._schema.for_topic()
        names = _names(topic, count)
        try:
            await self._join(topic, count, [self._child(name, len(self.children) + len(names)) for name in names])
        except BaseException:
            self._decoders.pop(topic, None)
            raise

    async def _join(self, topic: TopicName, count: int, added: list[PartitionConsumer]) -> None:
        try:
            await gather_settled(open_at_start(child) for child in added)
            if self._ended:
                raise AlreadyClosed("The consumer was closed meanwhile", topic=topic.full)
        except BaseException:
            await gather(close(child) for child in added)
            raise
        self._put_in(topic, count, added)

    def _put_in(self, topic: TopicName, count: int, added: list[PartitionConsumer]) -> None:
        self._by_topic.update((child.topic.full, child) for child in added)
        self._offer_fast_acks(added)
        if self.prefetches:
            for child in added:
                child.enable_prefetch()
        self.children = [*self.children, *added]
        if self._paused:
            # The pause may have begun after they were created.
            for child in added:
                child.pause(strict=self.held)
        self.topics = {**self.topics, topic: count}

    def _remove_consumers(self, topic: TopicName) -> list[PartitionConsumer]:
        """Stop receiving from a topic and return its consumers; their queued messages are dropped."""
        gone = [child for child in self.children if child.topic == topic or child.topic.base == topic]
        self.changes = True
        self.topics = {name: count for name, count in self.topics.items() if name != topic}
        self.children = [child for child in self.children if child not in gone]
        for child in gone:
            self._by_topic.pop(child.topic.full, None)
            self.fast_acks.pop(child.topic.full, None)
        self._decoders.pop(topic, None)
        return gone

    async def remove_topic(self, topic: TopicName) -> None:
        """Remove a topic that was deleted."""
        gone = self._remove_consumers(topic)
        for child in gone:
            child.drop_queued()
        await gather(close(child) for child in gone)
        self.client.retire(gone)

    async def unsubscribe_topic(self, name: str, *, force: bool = False) -> None:
        """Delete the subscription of one of the topics and go on with the others."""
        topic = TopicName.parse(name)
        if topic not in self.topics:
            raise InvalidConfiguration(
                f"The consumer does not read {topic}; its topics are {', '.join(map(str, self.topics)) or 'none'}"
            )
        count, decoder = self.topics[topic], self._decoders[topic]
        # Order of events: first the watcher excludes the topic, else its task would subscribe again
        # immediately. Then the consumers are removed: one that is closing would look like a closed one to those who
        # wait for messages.
        if self.pattern is not None:
            self.pattern.leave(topic)
        own = self._remove_consumers(topic)
        try:
            await gather_settled(unsubscribe(child, force=force) for child in own)
        except BaseException:
            if self.pattern is not None:
                self.pattern.stay(topic)
            self._decoders[topic] = decoder
            self._put_in(topic, count, own)
            raise
        for child in own:
            child.drop_queued()
        self.client.retire(own)

    # --- partition consumers ----------------------------------------------------------------------------------------

    def _child(self, name: TopicName, count: int, config: ConsumerConfig | None = None) -> PartitionConsumer:
        across = self.config.max_total_receiver_queue_size_across_partitions
        size = self.config.receiver_queue_size
        if count > 1:
            size = min(size, max(1, across // count))
        child = PartitionConsumer(
            self.client,
            config or self.config,
            name,
            name=self.name,
            queue_size=size,
            schema=self._decoders[name] if name in self._decoders else self._decoders[name.base],
            wire_schema=self._wire_schema,
            on_arrival=self._arrived,
            # A deleted topic must not be created again because its consumer reconnects.
            create_topic=not self.changes,
        )
        if self._paused:
            child.pause(strict=self.held)
        if self.config.consumer_type is ConsumerType.Failover:
            child.on_activity = self._active_changed
        return child

    def _active_changed(self, is_active: bool, partition: int) -> None:
        if self.activity is not None:
            self.activity.changed(is_active, partition)

    def _offer_fast_acks(self, children: Iterable[PartitionConsumer]) -> None:
        self.fast_acks.update({child.topic.full: child.acks for child in children if child.acks.allows_fast_path})

    def describe(self, topic: TopicName) -> str:
        """Return a short name for logs."""
        return f"Consumer {self.name} of {topic} ({self.config.subscription_name})"

    # --- reading (thread-safe) ----------------------------------------------------------------------------------------

    def owner(self, message_id: MessageId) -> PartitionConsumer:
        """Return the consumer a message id belongs to."""
        if not self.changes and len(self.children) == 1:
            return self.children[0]
        topic = message_id.topic_name()
        if topic is not None:
            child = self._by_topic.get(topic)
            if child is None:
                raise self._unread("message id", topic, OperationNotSupported)
            return child
        if len(self.topics) == 1 and message_id.partition() >= 0:
            name = next(iter(self.topics)).with_partition(message_id.partition())
            child = self._by_topic.get(name.full)
            if child is not None:
                return child
        raise OperationNotSupported(
            "The message id does not say its topic, and this consumer reads several; "
            "use the message itself, or MessageId.deserialize(..., topic=...)"
        )

    def _unread(self, what: str, topic: str, kind: type[PulsarException] = InvalidConfiguration) -> PulsarException:
        if self.changes:
            # The topic may have been removed a moment ago.
            return NotConnected(f"The {what} is of {topic}, which this consumer does not read, or no longer")
        return kind(f"The {what} is of {topic}, which this consumer does not read")

    def add_task(self, task: asyncio.Task[None]) -> None:
        """Have a task end with the consumer."""
        self._tasks.append(task)

    def _stop_growth(self) -> None:
        for task in self._tasks:
            task.cancel()


def _names(topic: TopicName, partitions: int) -> list[TopicName]:
    return [topic.with_partition(index) for index in range(partitions)] if partitions else [topic]
