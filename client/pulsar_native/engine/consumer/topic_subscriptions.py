"""Topic subscriptions of a multi-topics consumer: its topics, and the `PartitionConsumer`s of their partitions.

Rules: what happens to a partition is passed on by the functions of `SubscriptionEvents`, arrivals only when the
partition is in the lists: before, its messages could not be acknowledged. All partitions of a topic are subscribed or
none, except that where topics are not created, partitions that do not exist are left out until they do. The lists are
replaced, never changed, since other threads read them without a lock. A message id is routed to its consumer by its
topic. Changes are on the loop; reading is thread-safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pulsar_native._loggers import get_logger
from pulsar_native._message_fields import PendingAcks
from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.consumer.close import close, unsubscribe
from pulsar_native.engine.consumer.consumer import ConsumerClient, PartitionConsumer
from pulsar_native.engine.consumer.first_subscribe import FirstSubscribe, consumer_name
from pulsar_native.engine.consumer.seek import open_at_start
from pulsar_native.engine.handler import State
from pulsar_native.engine.lookup import BrokerOfTopic
from pulsar_native.engine.loop import gather, gather_settled
from pulsar_native.enums import ConsumerType, InitialPosition, SubscriptionMode
from pulsar_native.exceptions import (
    AlreadyClosed,
    InvalidConfiguration,
    NotConnected,
    OperationNotSupported,
    PulsarException,
    TopicNotFound,
    log_text,
)
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.consumer import Arriving
from pulsar_native.schema.versions import TopicDecoder, VersionedDecoder
from pulsar_native.stats import ConsumerClose
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.entry import EntryKey

_log = get_logger("pulsar_native.consumer")


class SubscriptionsClient(ConsumerClient, Protocol):
    """Client of a consumer of several topics."""

    def retire(self, parts: list[PartitionConsumer]) -> None: ...


@dataclass(frozen=True, slots=True)
class SubscriptionEvents:
    """Functions called for what happens to the partitions of a consumer; those that may be None are for interceptors.

    `on_active_change` is called on Failover subscriptions. With `allows_fast_acks` the APIs may acknowledge by the fast
    path, where nothing else sees the acknowledgement.
    """

    on_arrival: Callable[[PartitionConsumer], None]
    on_active_change: Callable[[bool, int], None]
    arriving: Arriving | None = None
    on_redelivery: Callable[[TopicName, str, list[EntryKey]], None] | None = None
    on_partitions_change: Callable[[TopicName, int], None] | None = None
    allows_fast_acks: bool = True


class TopicSubscriptions:
    """Topics of a `MultiTopicsConsumer`."""

    def __init__(
        self,
        client: SubscriptionsClient,
        config: ConsumerConfig,
        topics: dict[TopicName, int],
        schema: VersionedDecoder,
        wire_schema: pb.Schema | None,
        events: SubscriptionEvents,
        first: FirstSubscribe | None = None,
    ) -> None:
        self._client = client
        # One name for all partitions, also of topics that are added later.
        self.name = consumer_name(config) if first is None else first.name
        self.config = config
        self.topics = topics
        # Whether the topics may change, for a pattern or another reason.
        self.changes = False
        self._events = events
        self._schema = schema
        self._wire_schema = wire_schema
        # True after the consumer was closed.
        self.has_ended = False
        self._is_paused = config.start_paused
        # True during a strict pause.
        self.is_held = False
        # True while all partitions are unsubscribed.
        self._is_unsubscribing = False
        # True if an API dequeues from the prefetch buffers.
        self.prefetches = False
        self._tasks: list[asyncio.Task[None]] = []
        # Partitions that did not exist when their topic was subscribed to.
        self._missing: dict[TopicName, list[TopicName]] = {}
        # The period and a topics pattern both look for partitions: they must not subscribe to the same ones.
        self._update_lock = asyncio.Lock()
        # One decoder per topic, shared by its partitions.
        self._decoders = {topic: TopicDecoder(schema) for topic in topics}
        names = [name for topic, count in topics.items() for name in _names(topic, count)]
        _check_start(config, names)
        if config.receiver_queue_size == 0 and (len(names) != 1 or any(topics.values())):
            raise InvalidConfiguration(
                "receiver_queue_size=0 is for one topic without partitions: of several it is not known which "
                "to ask for the next message; use receiver_queue_size=1, or subscribe to one partition by its name"
            )
        self.children = [self._create(name, len(names), first=first, on_arrival=events.on_arrival) for name in names]
        self._by_topic = {child.topic.full: child for child in self.children}
        # By topic, where the APIs may add acknowledged messages without a lock: `AckGroupingTracker.fast_path`.
        self.fast_acks: dict[str, PendingAcks] = {}
        self._offer_fast_acks(self.children)

    async def open(self, broker: BrokerOfTopic | None = None, deadline: float | None = None) -> None:
        """Subscribe to every partition; the first failure is raised when all were tried.

        `broker` serves the only topic, if that is known: it is not looked up then. The `deadline` is that of all.
        """
        if len(self.children) == 1:
            (child,) = self.children
            child.assign(broker)
            await open_at_start(child, deadline)
            return
        await gather_settled(open_at_start(child, deadline) for child in self.children)

    def start_growth(self) -> None:
        """Look for new partitions from now on, where there may be any."""
        if self.config.auto_update_partitions and (self.changes or any(self.topics.values())):
            self.add_task(self._client.engine.spawn(self._watch_growth()))

    async def _watch_growth(self) -> None:
        while True:
            await asyncio.sleep(self.config.auto_update_partitions_interval_seconds)
            for topic, count in list(self.topics.items()):
                if count:
                    try:
                        await self.update_partitions(topic)
                    except PulsarException as error:
                        _log.warning("%s: cannot join new partitions yet: %s", self._describe(topic), log_text(error))

    async def update_partitions(self, topic: TopicName) -> None:
        """Subscribe to added partitions, and to those that did not exist before; failures are retried next time."""
        async with self._update_lock:
            await self._update_partitions(topic)

    async def _update_partitions(self, topic: TopicName) -> None:
        known = count = self.topics.get(topic, 0)
        if known and self.config.auto_update_partitions:
            count = await self._client.partition_count(topic, auto_create=not self.changes)
        if count < known:
            _log.warning("%s has %d partitions, fewer than the %d consumed: ignored", topic, count, known)
            count = known
        names = [*self._missing.get(topic, ()), *(topic.with_partition(index) for index in range(known, count))]
        if not names or topic not in self.topics:
            return
        config = self.config
        if config.subscription_mode is SubscriptionMode.NonDurable:
            # Messages published before the partition was discovered have no subscription to wait in.
            if config.is_reader:
                config = config.replace(start_message_id=MessageId.earliest)
            else:
                config = config.replace(initial_position=InitialPosition.Earliest)
        total = len(self.children) + len(names)
        await self._join(topic, count, [self._create(name, total, config) for name in names])
        if count == known:
            return
        _log.info("%s now has %d partitions", self._describe(topic), count)
        if self._events.on_partitions_change is not None:
            self._events.on_partitions_change(topic, count)

    @property
    def incomplete(self) -> list[TopicName]:
        """Topics with partitions that did not exist when they were subscribed to."""
        return [topic for topic, names in self._missing.items() if names]

    async def add_topic(self, topic: TopicName, count: int) -> None:
        """Subscribe to one more topic, with all its existing partitions or not at all."""
        if topic in self.topics:
            return
        self._decoders[topic] = TopicDecoder(self._schema)
        names = _names(topic, count)
        try:
            await self._join(topic, count, [self._create(name, len(self.children) + len(names)) for name in names])
        except BaseException:
            self._decoders.pop(topic, None)
            raise

    async def _join(self, topic: TopicName, count: int, added: list[PartitionConsumer]) -> None:
        is_growth = topic in self.topics
        try:
            found = await gather_settled(self._open_existing(child) for child in added)
            if self.has_ended or self._is_unsubscribing or (is_growth and topic not in self.topics):
                raise AlreadyClosed("The consumer, or its topic, was closed meanwhile", topic=topic.full)
            if not is_growth and not any(found):
                raise added[0].failure or TopicNotFound("The topic does not exist", topic=topic.full)
        except BaseException:
            await gather(close(child) for child in added)
            raise
        missing = [child.topic for child, exists in zip(added, found, strict=True) if not exists]
        if missing and missing != self._missing.get(topic):
            names = ", ".join(map(str, missing))
            _log.warning("%s: partitions that do not exist are not consumed yet: %s", self._describe(topic), names)
        self._missing[topic] = missing
        self._put_in(topic, count, [child for child, exists in zip(added, found, strict=True) if exists])

    async def _open_existing(self, child: PartitionConsumer) -> bool:
        """Subscribe; return False for a partition that does not exist, where topics are not created."""
        try:
            await open_at_start(child)
        except TopicNotFound:
            if not self.changes or child.state is not State.FAILED:
                raise
            return False
        return True

    def _put_in(self, topic: TopicName, count: int, added: list[PartitionConsumer]) -> None:
        self._by_topic.update((child.topic.full, child) for child in added)
        self._offer_fast_acks(added)
        if self.prefetches:
            for child in added:
                child.enable_prefetch()
        self.children = [*self.children, *added]
        if self._is_paused:
            # The pause may have begun after they were created.
            for child in added:
                child.pause(strict=self.is_held)
        self.topics = {**self.topics, topic: count}
        for child in added:
            child.start_delivery(self._events.on_arrival)

    def _remove_consumers(self, topic: TopicName) -> list[PartitionConsumer]:
        """Stop receiving from a topic and return its consumers; their queued messages are dropped."""
        gone = [child for child in self.children if child.topic == topic or child.topic.base == topic]
        self.topics = {name: count for name, count in self.topics.items() if name != topic}
        self._remove(gone)
        self._decoders.pop(topic, None)
        self._missing.pop(topic, None)
        return gone

    def _remove(self, gone: list[PartitionConsumer]) -> None:
        self.changes = True
        self.children = [child for child in self.children if child not in gone]
        for child in gone:
            self._by_topic.pop(child.topic.full, None)
            self.fast_acks.pop(child.topic.full, None)

    async def remove_topic(self, topic: TopicName) -> None:
        """Remove a topic that was deleted."""
        gone = self._remove_consumers(topic)
        for child in gone:
            child.drop_queued()
        await gather(close(child) for child in gone)
        self._client.retire(gone)

    def check_topic(self, topic: TopicName) -> None:
        """Raise for a topic that is not consumed."""
        if topic not in self.topics:
            raise InvalidConfiguration(
                f"The consumer does not read {topic}; its topics are {', '.join(map(str, self.topics)) or 'none'}"
            )

    async def unsubscribe_topic(self, topic: TopicName, *, force: bool = False) -> None:
        """Delete the subscription of one of the topics; on failure the partitions that still have it are consumed as
        before.
        """
        count, decoder, missing = self.topics[topic], self._decoders[topic], self._missing.get(topic, [])
        # Removed first: a consumer that is closing would look like a closed one to those who wait for messages.
        own = self._remove_consumers(topic)
        try:
            await gather_settled(unsubscribe(child, force=force) for child in own)
        except BaseException:
            self._decoders[topic], self._missing[topic] = decoder, missing
            deleted = _closed(own)
            self._put_in(topic, count, [child for child in own if child not in deleted])
            self._client.retire(deleted)
            raise
        for child in own:
            child.drop_queued()
        self._client.retire(own)

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription of every partition, and raise the first failure when all were tried.

        The partitions whose subscription was deleted are removed then, and their topics stay, or a pattern would
        subscribe to them again.
        """
        # Order of events: set first, so that a topic that is added concurrently is closed by its own task. The tasks go
        # on, as after a failure they are needed.
        self._is_unsubscribing = True
        try:
            await gather_settled(unsubscribe(child, force=force) for child in self.children)
        except BaseException:
            if not self.has_ended and (deleted := _closed(self.children)):
                self._remove(deleted)
                self._client.retire(deleted)
            raise
        finally:
            self._is_unsubscribing = False

    # --- partition consumers ----------------------------------------------------------------------------------------

    def _create(
        self,
        name: TopicName,
        count: int,
        config: ConsumerConfig | None = None,
        *,
        first: FirstSubscribe | None = None,
        on_arrival: Callable[[PartitionConsumer], None] | None = None,
    ) -> PartitionConsumer:
        across = self.config.max_total_receiver_queue_size_across_partitions
        size = self.config.receiver_queue_size
        if count > 1:
            size = min(size, max(1, across // count))
        events, is_failover = self._events, self.config.consumer_type is ConsumerType.Failover
        child = PartitionConsumer(
            self._client,
            config or self.config,
            name,
            name=self.name,
            queue_size=size,
            topic_decoder=self._decoders[name] if name in self._decoders else self._decoders[name.base],
            wire_schema=self._wire_schema,
            on_arrival=on_arrival or _not_yet,
            # A deleted topic must not be created again because its consumer reconnects.
            create_topic=not self.changes,
            arriving=events.arriving,
            on_redelivery=None if events.on_redelivery is None else partial(events.on_redelivery, name),
            on_active_change=events.on_active_change if is_failover else None,
            first=first,
        )
        if self._is_paused:
            child.pause(strict=self.is_held)
        return child

    def _offer_fast_acks(self, children: Iterable[PartitionConsumer]) -> None:
        if self._events.allows_fast_acks:
            self.fast_acks.update(
                {child.topic.full: child.acks.fast_path for child in children if child.acks.allows_fast_path}
            )

    def _describe(self, topic: TopicName) -> str:
        """Return a short name for logs."""
        return f"Consumer {self.name} of {topic} ({self.config.subscription_name})"

    # --- pause (thread-safe) ----------------------------------------------------------------------------------------

    def pause(self, *, strict: bool) -> None:
        """Pause every partition, also of topics that are added later."""
        # Order of events: set first, so that a topic that is added concurrently is paused by its own task.
        self._is_paused = True
        self.is_held = self.is_held or strict
        for child in self.children:
            child.pause(strict=strict)

    def resume(self) -> None:
        """Resume every partition."""
        self._is_paused = self.is_held = False
        for child in self.children:
            child.resume()

    # --- reading (thread-safe) ----------------------------------------------------------------------------------------

    def owner(self, message_id: MessageId) -> PartitionConsumer:
        """Return the consumer a message id belongs to."""
        topic = message_id.topic_name()
        if topic is not None:
            return self._by_topic.get(topic) or self._owner_by_name(topic, message_id.partition())
        if not self.changes and len(self.children) == 1:
            return self.children[0]
        if len(self.topics) == 1 and message_id.partition() >= 0:
            name = next(iter(self.topics)).with_partition(message_id.partition())
            child = self._by_topic.get(name.full)
            if child is not None:
                return child
        raise OperationNotSupported(
            "The message id does not say its topic, and this consumer reads several; "
            "use the message itself, or MessageId.deserialize(..., topic=...)"
        )

    def _owner_by_name(self, topic: str, partition: int) -> PartitionConsumer:
        """Return the consumer of a topic whose name may be short, or without its partition."""
        name = TopicName.parse(topic)
        if partition >= 0 and not name.is_partition:
            name = name.with_partition(partition)
        return self.consumer_of("message id", name.full, OperationNotSupported)

    def consumer_of(
        self, what: str, topic: str, kind: type[PulsarException] = InvalidConfiguration
    ) -> PartitionConsumer:
        """Return the consumer of a topic, or raise for `what`, which is of it."""
        child = self._by_topic.get(topic)
        if child is None:
            raise self._unread(what, topic, kind)
        return child

    def _unread(self, what: str, topic: str, kind: type[PulsarException]) -> PulsarException:
        if self.changes:
            # The topic may have been removed a moment ago.
            return NotConnected(f"The {what} is of {topic}, which this consumer does not read, or no longer")
        return kind(f"The {what} is of {topic}, which this consumer does not read")

    # --- end --------------------------------------------------------------------------------------------------------

    def add_task(self, task: asyncio.Task[None]) -> None:
        """Have a task end with the consumer."""
        self._tasks.append(task)

    @property
    def has_tasks(self) -> bool:
        """True if tasks of the loop belong to it. Thread-safe."""
        return bool(self._tasks)

    def stop_tasks(self) -> None:
        """Follow changes of topics and partitions no more."""
        for task in self._tasks:
            task.cancel()

    async def close(self, timeout: float | None = None, *, counted: bool = False) -> list[ConsumerClose]:
        """Close every partition's consumer, within `timeout` seconds, else the operation time-out.

        With `counted` the broker is asked for its counts.
        """
        self.stop_tasks()
        # Order of events: set first, so that a topic that is added concurrently sees it and is closed by its own task.
        self.has_ended = True
        return await gather(close(child, timeout, counted=counted) for child in self.children)


def _check_start(config: ConsumerConfig, names: list[TopicName]) -> None:
    start = config.start_message_id
    if len(names) > 1 and start is not None and start not in (MessageId.earliest, MessageId.latest):
        raise InvalidConfiguration(
            "Over several topics or partitions a reader starts at MessageId.earliest or latest, as an id belongs "
            "to one of them; move each with seek(function) then"
        )


def _not_yet(_child: PartitionConsumer) -> None:
    """Ignore an arrival: `_put_in` reports it."""


def _closed(children: Iterable[PartitionConsumer]) -> list[PartitionConsumer]:
    return [child for child in children if child.state is State.CLOSED]


def _names(topic: TopicName, partitions: int) -> list[TopicName]:
    return [topic.with_partition(index) for index in range(partitions)] if partitions else [topic]
