"""What the faces call a consumer: the `PartitionConsumer`s of one or several topics behind one `take`.

Rules (client.md C94, C153-C155, C157, C159-C161): every partition keeps its own queue and permits; consumers that have
something stand in a ring and give one message a turn, so that a busy partition does not starve the others. An id finds
its consumer by the topic it carries. All partitions of a topic are subscribed or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.consumer import PartitionConsumer
from pulsar_native.engine.handler import State
from pulsar_native.exceptions import (
    AlreadyClosed,
    InvalidConfiguration,
    OperationNotSupported,
    PulsarException,
)
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.columns import EntrySlice

if TYPE_CHECKING:
    from pulsar_native.engine.client import ClientCore

_log = logging.getLogger("pulsar_native.consumer")

Wake = Callable[[], None]
T = TypeVar("T")


class TopicConsumer:
    """The consumer of a topic, of all partitions of a topic, or of several topics."""

    def __init__(
        self,
        client: ClientCore,
        config: ConsumerConfig,
        topics: dict[TopicName, int],
        schema: VersionedDecoder,
        wire_schema: pb.Schema | None,
    ) -> None:
        self.client = client
        self.config = config
        self.topics = topics
        self._wire_schema = wire_schema
        self._ring: deque[PartitionConsumer] = deque()
        self._waiters: deque[Wake] = deque()
        self._growth: asyncio.Task[None] | None = None
        self.on_ready: Wake | None = None
        # A decoder for each topic, shared by its partitions.
        self._decoders = {topic: schema.for_topic() for topic in topics}
        names = [name for topic, count in topics.items() for name in _names(topic, count)]
        self.children = [self._child(name, len(names)) for name in names]
        self._by_topic = {child.topic.full: child for child in self.children}

    def _child(self, name: TopicName, count: int) -> PartitionConsumer:
        across = self.config.max_total_receiver_queue_size_across_partitions
        size = self.config.receiver_queue_size
        if count > 1:
            size = min(size, max(1, across // count))
        return PartitionConsumer(
            self.client,
            self.config,
            name,
            queue_size=size,
            schema=self._decoders[name] if name in self._decoders else self._decoders[name.base],
            wire_schema=self._wire_schema,
            on_arrival=self._arrived,
        )

    async def open(self) -> None:
        """Subscribe to every partition; the first failure closes the others and is raised."""
        try:
            await _open_all(self.children)
        except BaseException:
            await asyncio.gather(*(child.close() for child in self.children))
            raise
        if self.config.auto_update_partitions and any(self.topics.values()):
            self._growth = self.client.engine.spawn(self._watch_growth())

    async def _watch_growth(self) -> None:
        while True:
            await asyncio.sleep(self.config.auto_update_partitions_interval_seconds)
            for topic, count in list(self.topics.items()):
                if count:
                    try:
                        await self.update_partitions(topic)
                    except PulsarException as error:
                        _log.warning("Cannot join the new partitions of %s yet: %s", topic, error)

    async def update_partitions(self, topic: TopicName) -> None:
        """Subscribe to partitions that were added since; what fails is tried again next time."""
        known = self.topics[topic]
        count = await self.client.partition_count(topic)
        if count <= known:
            return
        total = len(self.children) + count - known
        added = [self._child(topic.with_partition(index), total) for index in range(known, count)]
        try:
            await _open_all(added)
        except BaseException:
            await asyncio.gather(*(child.close() for child in added))
            raise
        self._by_topic.update((child.topic.full, child) for child in added)
        self.children = [*self.children, *added]
        self.topics[topic] = count
        _log.info("Consumer of %s now has %d partitions", topic, count)

    # --- data path (thread-safe) ------------------------------------------------------------------------------------

    def _arrived(self, child: PartitionConsumer) -> None:
        """Put a consumer that has something into the ring, and wake whoever waits. On the loop."""
        if not child.queued:
            child.queued = True
            self._ring.append(child)
        # Order of events: the delivery is queued before the waiters are looked at, and a waiter looks for deliveries
        # after it has registered; so one of the two always sees the other.
        self._wake_first()
        if self.on_ready is not None:
            self.on_ready()

    def take(self) -> Message | None:
        """Return the next message, None when there is none yet; raises when the consumer is closed."""
        return self._next(PartitionConsumer.take)

    def take_slice(self) -> tuple[PartitionConsumer, EntrySlice] | None:
        """Return the next entry for columns with its consumer, None when there is none yet."""

        def slice_of(child: PartitionConsumer) -> tuple[PartitionConsumer, EntrySlice] | None:
            part = child.take_slice()
            return None if part is None else (child, part)

        return self._next(slice_of)

    def _next(self, take: Callable[[PartitionConsumer], T | None]) -> T | None:
        while True:
            try:
                child = self._ring.popleft()
            except IndexError:
                self._check_open()
                return None
            child.queued = False
            taken = take(child)
            if child.may_have_more() and not child.queued:
                child.queued = True
                self._ring.append(child)
                if self._waiters:
                    # While this consumer was out of the ring, another thread found nothing and began to wait.
                    self._wake_first()
            if taken is not None:
                return taken

    def _check_open(self) -> None:
        for child in self.children:
            if child.state in (State.CLOSED, State.CLOSING, State.FAILED):
                raise child.failure or AlreadyClosed("The consumer is closed", topic=child.topic.full)

    def may_have_more(self) -> bool:
        """Return whether `take` may find something, or would raise."""
        if self._ring:
            return True
        return any(child.state in (State.CLOSED, State.FAILED) for child in self.children)

    def _wake_first(self) -> None:
        # Nobody waits, or the last one left meanwhile: nobody is woken then.
        with contextlib.suppress(IndexError):
            self._waiters[0]()

    def wait_then(self, wake: Wake) -> None:
        """Stand in line: `wake` is called when there is something and all who came before were served.

        Whoever is woken takes first and leaves the line with `forget_wait` then, which passes the turn on.
        """
        self._waiters.append(wake)
        if self.may_have_more():
            self._wake_first()

    def forget_wait(self, wake: Wake) -> None:
        """Leave the line, served or not; the next one is woken when there is more."""
        with contextlib.suppress(ValueError):
            self._waiters.remove(wake)
        if self._waiters and self.may_have_more():
            self._wake_first()

    def has_waiters(self) -> bool:
        """Return whether others wait already."""
        return bool(self._waiters)

    # --- acknowledging (thread-safe) --------------------------------------------------------------------------------

    def owner(self, message_id: MessageId) -> PartitionConsumer:
        """Return the consumer a message id belongs to."""
        if len(self.children) == 1:
            return self.children[0]
        topic = message_id.topic_name()
        if topic is not None:
            child = self._by_topic.get(topic)
            if child is None:
                raise InvalidConfiguration(f"The message id is of {topic}, which this consumer does not read")
            return child
        if len(self.topics) == 1 and message_id.partition() >= 0:
            name = next(iter(self.topics)).with_partition(message_id.partition())
            child = self._by_topic.get(name.full)
            if child is not None:
                return child
        raise InvalidConfiguration(
            "The message id does not say its topic, and this consumer reads several; "
            "use the message itself, or MessageId.deserialize(..., topic=...)"
        )

    def acknowledge_message(self, message: Message) -> None:
        """Acknowledge one received message."""
        children = self.children
        child = children[0] if len(children) == 1 else self._by_topic.get(message.entry.topic)
        if child is None:
            raise InvalidConfiguration(f"The message is of {message.entry.topic}, which this consumer does not read")
        child.acknowledge_message(message)

    def acknowledge(self, ids: Iterable[MessageId]) -> None:
        """Acknowledge messages of any of the topics."""
        if len(self.children) == 1:
            self.children[0].acknowledge(ids)
            return
        grouped: dict[PartitionConsumer, list[MessageId]] = {}
        for message_id in ids:
            grouped.setdefault(self.owner(message_id), []).append(message_id)
        for child, own in grouped.items():
            child.acknowledge(own)

    def redeliver_all(self) -> None:
        """Ask for everything unacknowledged again."""
        for child in self.children:
            child.redeliver(None)

    # --- control ----------------------------------------------------------------------------------------------------

    async def seek(self, target: MessageId | int) -> None:
        """Move to an id, or to a publish time in ms; `earliest`, `latest` and times go to every partition."""
        if isinstance(target, MessageId):
            if target in (MessageId.earliest, MessageId.latest):
                await asyncio.gather(*(child.seek(target) for child in self.children))
            else:
                await self.owner(target).seek(target)
            return
        if isinstance(target, bool) or not isinstance(target, int) or target < 0:
            raise InvalidConfiguration(f"Seek needs a MessageId or a publish time in ms since 1970, not {target!r}")
        await asyncio.gather(*(child.seek(None, target) for child in self.children))

    async def last_message_ids(self) -> list[MessageId]:
        """Return the last id of every partition."""
        return list(await asyncio.gather(*(child.last_message_id() for child in self.children)))

    async def positions(self) -> list[tuple[MessageId, MessageId]]:
        """Return the last id and the mark-delete position of every partition."""
        return list(await asyncio.gather(*(child.positions() for child in self.children)))

    async def last_message_id(self) -> MessageId:
        """Return the last id of a topic without partitions."""
        if len(self.children) > 1:
            raise OperationNotSupported("There is one last id for each partition; use get_last_message_ids()")
        return await self.children[0].last_message_id()

    async def has_message_available(self) -> bool:
        """Return whether any partition has a message to read."""
        answers = await asyncio.gather(*(child.has_message_available() for child in self.children))
        return any(answers)

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Remove the subscription on every partition."""
        self._stop_growth()
        results = await asyncio.gather(
            *(child.unsubscribe(force=force) for child in self.children), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        self.client.consumers.discard(self)

    async def close(self) -> None:
        """Close every partition's consumer."""
        self._stop_growth()
        await asyncio.gather(*(child.close() for child in self.children))
        self.client.consumers.discard(self)

    def abandon(self) -> None:
        """Close without a word to the broker."""
        self._stop_growth()
        for child in self.children:
            child.abandon()
        self.client.consumers.discard(self)

    def _stop_growth(self) -> None:
        if self._growth is not None:
            self._growth.cancel()

    @property
    def is_closed(self) -> bool:
        """Whether the consumer was closed."""
        return all(child.state is State.CLOSED for child in self.children)

    @property
    def is_connected(self) -> bool:
        """Whether every partition is connected now."""
        return all(child.is_connected for child in self.children)


def _names(topic: TopicName, partitions: int) -> list[TopicName]:
    return [topic.with_partition(index) for index in range(partitions)] if partitions else [topic]


async def _open_all(children: list[PartitionConsumer]) -> None:
    results = await asyncio.gather(*(child.open() for child in children), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
