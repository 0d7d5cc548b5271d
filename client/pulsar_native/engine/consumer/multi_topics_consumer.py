"""Multi-topics consumer: the `PartitionConsumer`s of one or several topics behind one `dequeue`; the APIs' consumer.

Rules: every partition has its own queue and permits; consumers with messages are in a ring and are dequeued in turns,
so that a busy partition does not starve the others. A turn is one message, or a few where the APIs dequeue from the
prefetch buffer without the lock (see `prefetch_buffer`). Every subscription is independent: a client that subscribes
twice has two consumers, which the broker accepts or rejects as if they were of different clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from pulsar_native._loggers import get_logger
from pulsar_native._message_fields import MessageQueue
from pulsar_native.arrow.batch import ArrowBatch, EntryRange
from pulsar_native.arrow.columns import EntryRows
from pulsar_native.arrow.entry_slice import BatchBudget, EntrySlice
from pulsar_native.config import ConsumerConfig
from pulsar_native.config.base import MAX_U64
from pulsar_native.engine.consumer import seek
from pulsar_native.engine.consumer.ack_receipts import AllDone, Done
from pulsar_native.engine.consumer.close import close_inline
from pulsar_native.engine.consumer.consumer import PartitionConsumer
from pulsar_native.engine.consumer.dead_letter import DeadLetterRouter
from pulsar_native.engine.consumer.first_subscribe import FirstSubscribe
from pulsar_native.engine.consumer.topic_subscriptions import (
    SubscriptionEvents,
    SubscriptionsClient,
    TopicSubscriptions,
)
from pulsar_native.engine.handler import State
from pulsar_native.engine.lookup import BrokerOfTopic
from pulsar_native.engine.loop import check_generation, gather, gather_settled, track_fork
from pulsar_native.exceptions import (
    AlreadyClosed,
    InvalidConfiguration,
    OperationNotSupported,
    PulsarException,
)
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.topic_pattern import TopicPattern
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.stats import ConsumerClose
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pulsar_native.engine.consumer.consumer_events import ConsumerEvents
    from pulsar_native.engine.interceptor_chain import ConsumerChain
    from pulsar_native.engine.transaction import TransactionWork

_log = get_logger("pulsar_native.consumer")

# Messages prefetched at a partition's turn while others have messages, too.
_PREFETCH_OF_TURN = 31
# Longest wait of `has_message_available` for an entry the broker has. One that has not arrived then (the broker may
# withhold it, by an entry filter or a dispatch rate) counts as a message.
_ENTRY_SECONDS = 5.0
Wake = Callable[[], None]
T = TypeVar("T")
SeekTarget = MessageId | int
"""Seek target: an id, or a publish time in ms since 1970."""
SeekTargets = list[tuple[PartitionConsumer, SeekTarget]]


class MultiTopicsClient(SubscriptionsClient, Protocol):
    """Client of a consumer of topics."""

    def forget(self, handler: MultiTopicsConsumer) -> None: ...


class PatternWatcher(Protocol):
    """Watcher of the topics of a pattern."""

    pattern: TopicPattern

    async def open(self) -> None: ...
    def leave(self, topic: TopicName) -> None: ...
    def stay(self, topic: TopicName) -> None: ...


class MultiTopicsConsumer:
    """Consumer of a topic, of all partitions of a topic, or of several topics."""

    def __init__(
        self,
        client: MultiTopicsClient,
        config: ConsumerConfig,
        topics: dict[TopicName, int],
        schema: VersionedDecoder,
        wire_schema: pb.Schema | None,
        first: FirstSubscribe | None = None,
    ) -> None:
        self.client = client
        self.config = config
        if config.batch_receive_policy.max_num_messages > config.receiver_queue_size > 0:
            _log.warning(
                "max_num_messages of the batch receive policy is %d, but the receiver queue holds %d messages: "
                "batch_receive() returns at most so many",
                config.batch_receive_policy.max_num_messages,
                config.receiver_queue_size,
            )
        # True if permits depend on whether a receiver waits.
        self._wants = config.receiver_queue_size == 0 or config.auto_scaled_receiver_queue_size_enabled
        # Prefetch buffer of the partition whose turn it is; always empty where no API dequeues from it.
        self.prefetched: MessageQueue[Message] = MessageQueue()
        self._ring: deque[PartitionConsumer] = deque()
        self._waiters: deque[Wake] = deque()
        self.on_ready: Wake | None = None
        # True while all partitions are unsubscribed, of which the first to be closed are no end yet.
        self._is_unsubscribing = False
        # Set with every arrival. On the loop.
        self._arrival = asyncio.Event()
        # Interceptors; the APIs pass arriving messages to them.
        self.chain: ConsumerChain | None = None
        # Listener that is notified when a partition's consumer becomes active or inactive (Failover).
        self.activity: ConsumerEvents | None = None
        self.pattern: PatternWatcher | None = None
        self.subscriptions = TopicSubscriptions(client, config, topics, schema, wire_schema, self._events(), first)
        # The same object all the time: the APIs keep it.
        self.fast_acks = self.subscriptions.fast_acks
        track_fork(self)

    def _events(self) -> SubscriptionEvents:
        return SubscriptionEvents(on_arrival=self._arrived, on_active_change=self._active_changed)

    def _active_changed(self, is_active: bool, partition: int) -> None:
        if self.activity is not None:
            self.activity.changed(is_active, partition)

    async def open(self, broker: BrokerOfTopic | None = None, deadline: float | None = None) -> None:
        """Subscribe to every partition; the first failure closes the others and is raised.

        `broker` serves the only topic, if that is known: it is not looked up then. The `deadline` is that of all.
        """
        subscriptions = self.subscriptions
        try:
            await subscriptions.open(broker, deadline)
            if self.pattern is not None:
                subscriptions.changes = True
                await self.pattern.open()
        except BaseException:
            await subscriptions.close()
            raise
        subscriptions.start_growth()

    # --- topics (thread-safe) ---------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Consumer name, the same for all partitions."""
        return self.subscriptions.name

    @property
    def topics(self) -> dict[TopicName, int]:
        """Topics with their numbers of partitions, 0 for one without."""
        return self.subscriptions.topics

    @property
    def children(self) -> list[PartitionConsumer]:
        """Consumers of the partitions."""
        return self.subscriptions.children

    @property
    def held(self) -> bool:
        """True during a strict pause."""
        return self.subscriptions.is_held

    def owner(self, message_id: MessageId) -> PartitionConsumer:
        """Return the consumer a message id belongs to."""
        return self.subscriptions.owner(message_id)

    def add_task(self, task: asyncio.Task[None]) -> None:
        """Have a task end with the consumer."""
        self.subscriptions.add_task(task)

    # --- data path (thread-safe) ------------------------------------------------------------------------------------

    def _arrived(self, child: PartitionConsumer) -> None:
        """Add a consumer with messages to the ring, and wake a waiting receiver. On the loop."""
        if not child.queued:
            child.queued = True
            self._ring.append(child)
        # Order of events: the delivery is queued before the waiters are read, and a waiter looks for deliveries after
        # it has registered; so one of the two always sees the other.
        self._wake_first()
        self._arrival.set()
        if self.on_ready is not None:
            self.on_ready()

    def dequeue(self) -> Message | None:
        """Return the next message, None when there is none yet; raises when the consumer is closed."""
        # While others wait as well, the following messages are theirs.
        return self._next(
            self._dequeue_and_prefetch
            if self.subscriptions.prefetches and len(self._waiters) < 2
            else PartitionConsumer.dequeue
        )

    def _dequeue_and_prefetch(self, child: PartitionConsumer) -> Message | None:
        message = child.dequeue(_PREFETCH_OF_TURN if self._ring else sys.maxsize)
        if message is not None:
            # What another thread has left in the buffer of another partition is dequeued at that partition's turn.
            self.prefetched = child.core.prefetch.messages
        return message

    def dequeue_within(self, most: int) -> Message | Literal[False] | None:
        """As `dequeue`, but return False where the next message has more than `most` payload bytes: it stays queued."""
        prefetches = self.subscriptions.prefetches and len(self._waiters) < 2

        def take(child: PartitionConsumer) -> Message | Literal[False] | None:
            if not prefetches:
                message = child.dequeue_within(most)
            else:
                message = child.dequeue_within(most, _PREFETCH_OF_TURN if self._ring else sys.maxsize)
                if message is not None and message is not False:
                    self.prefetched = child.core.prefetch.messages
            if message is False and not child.queued:
                # It has not had its turn: behind the others, a partition of large messages could never have one.
                child.queued = True
                self._ring.appendleft(child)
                if self._waiters:
                    # As in `_next`.
                    self._wake_first()
            return message

        return self._next(take)

    def start_prefetch(self) -> None:
        """Have `dequeue` prefetch, for an API without processing between dequeue and return.

        After each call of it the API pops from `prefetched`, until that is empty.
        """
        self.subscriptions.prefetches = True
        for child in self.children:
            child.enable_prefetch()

    def clear_after_fork(self) -> None:
        """Clear the buffers the APIs use without a check: in a forked child, without a lock."""
        self.fast_acks.clear()
        for child in self.children:
            child.core.prefetch.messages.clear()

    def dequeue_rows(self) -> tuple[PartitionConsumer, EntryRows] | None:
        """Return the next entry for columns with its consumer, None when there is none yet."""

        def slice_of(child: PartitionConsumer) -> tuple[PartitionConsumer, EntryRows] | None:
            part = child.dequeue_rows()
            return None if part is None else (child, part)

        return self._next(slice_of)

    def dequeue_slice(self, budget: BatchBudget) -> tuple[PartitionConsumer, EntrySlice | None] | None:
        """Return what fits of the next entry, with its consumer; a slice of None when nothing fits."""

        def slice_of(child: PartitionConsumer) -> tuple[PartitionConsumer, EntrySlice | None] | None:
            entry_slice = child.dequeue_slice(budget)
            return (child, entry_slice) if entry_slice is not None or budget.full or budget.locked is not None else None

        return self._next(slice_of)

    def _next(self, take: Callable[[PartitionConsumer], T | None]) -> T | None:
        try:
            while True:
                try:
                    child = self._ring.popleft()
                except IndexError:
                    break
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
        except BaseException:
            # The handler of a signal may raise anywhere, as Ctrl-C does.
            self._complete_ring()
            raise
        self._check_open()
        return None

    def _complete_ring(self) -> None:
        """Add the consumers with messages that are not in the ring: a turn was interrupted.

        One whose turn it is in another thread is in the ring twice then, which ends with its messages.
        """
        for child in self.children:
            if child.may_have_more() and child not in self._ring:
                child.queued = True
                self._ring.append(child)
        self._wake_first()

    def _check_open(self) -> None:
        if self.subscriptions.has_ended:
            raise AlreadyClosed("The consumer is closed")
        for child in self.children:
            if self._has_ended(child):
                raise child.failure or AlreadyClosed("The consumer is closed", topic=child.topic.full)

    def _has_ended(self, child: PartitionConsumer) -> bool:
        """Return True if a partition's end is the end of those who wait for messages."""
        return child.state is State.FAILED if self._is_unsubscribing else child.has_ended

    def may_have_more(self) -> bool:
        """Return True if `dequeue` may return a message, or would raise."""
        if self._ring or self.subscriptions.has_ended:
            return True
        return any(map(self._has_ended, self.children))

    def _wake_first(self) -> None:
        try:
            wake = self._waiters[0]
        except IndexError:
            # The last one may go at any time.
            return
        wake()

    def wait_then(self, wake: Wake) -> None:
        """Add a waiter: `wake` is called when there is a message and all earlier waiters were served.

        A woken waiter dequeues first and then calls `forget_wait`, which wakes the next one; so does one whose wait is
        interrupted at any step, this call included: those behind it would wait for it.
        """
        self._waiters.append(wake)
        if self._wants:
            self._notify_receive_wait()
        self.acknowledge_read()
        if self.may_have_more():
            self._wake_first()

    def _notify_receive_wait(self) -> None:
        for child in self.children:
            child.on_receive_wait()

    def forget_wait(self, wake: Wake) -> None:
        """Remove a waiter, served or not, or not added; the next one is woken when there is more."""
        with contextlib.suppress(ValueError):
            self._waiters.remove(wake)
        if not self._waiters:
            return
        if self._wants:
            self._notify_receive_wait()
        if self.may_have_more():
            self._wake_first()

    def has_waiters(self) -> bool:
        """Return True if others wait already."""
        return bool(self._waiters)

    def note_failed_receive(self, *, batch: bool = False) -> None:
        """Count a receive that raised instead of returning messages."""
        # In a forked child another thread may have held the counter's lock.
        check_generation(self.client.engine.generation)
        # Without topics there is no recorder.
        for child in self.children[:1]:
            child.note("batch_receive_failed" if batch else "receive_failed")

    # --- acknowledging (thread-safe) --------------------------------------------------------------------------------

    def acknowledge_message(self, message: Message, done: Done | None = None) -> None:
        """Acknowledge one received message; `done` waits for the receipt."""
        self.subscriptions.consumer_of("message", message.entry.topic).acknowledge_message(message, done)

    def acknowledge(self, ids: Iterable[MessageId], done: Done | None = None) -> None:
        """Acknowledge messages of any of the topics; `done` waits for the receipts."""
        grouped: dict[PartitionConsumer, list[MessageId]] = {}
        owner = self.subscriptions.owner
        for message_id in ids:
            grouped.setdefault(owner(message_id), []).append(message_id)
        if done is not None and len(grouped) > 1:
            done = AllDone(len(grouped), done)
        for child, own in grouped.items():
            child.acknowledge(own, done)
        if done is not None and not grouped:
            done(None)

    def acknowledge_rows(self, received: ArrowBatch, done: Done | None = None) -> None:
        """Acknowledge a received Arrow batch; `done` waits for the receipts."""
        grouped = self._by_owner(received)
        if done is not None and len(grouped) > 1:
            done = AllDone(len(grouped), done)
        for child, own in grouped.items():
            child.acknowledge_ranges(own, done)
        if done is not None and not grouped:
            done(None)

    def refuse_rows(self, received: ArrowBatch) -> None:
        """Request redelivery of a received Arrow batch after the configured delay."""
        for child, own in self._by_owner(received).items():
            for each in own:
                for entry in each.entries:
                    child.negative_acknowledge(MessageId(-1, each.ledger_id, entry, -1), each.redelivery_count)

    def _by_owner(self, received: ArrowBatch) -> dict[PartitionConsumer, list[EntryRange]]:
        grouped: dict[PartitionConsumer, list[EntryRange]] = {}
        for each in received.ranges:
            child = self.subscriptions.consumer_of("entry", each.topic)
            grouped.setdefault(child, []).append(each)
        return grouped

    async def acknowledge_in(
        self, work: TransactionWork, ids: Sequence[MessageId], *, cumulative: bool = False
    ) -> None:
        """Acknowledge messages in a transaction, or everything up to one; returns after the response. On the loop."""
        parts: dict[PartitionConsumer, list[MessageId]] = {}
        for message_id in ids:
            parts.setdefault(self.owner(message_id), []).append(message_id)
        for child in parts:
            child.acks.check_transactional(cumulative=cumulative)
        operation = work.begin()
        # A cancelled caller waits no longer, but the end of the transaction does.
        await self.client.engine.shield(work.acknowledge(parts, operation, cumulative=cumulative))

    async def reconsume_later(
        self, messages: Sequence[Message], delay_ms: int, properties: Mapping[str, str] | None
    ) -> None:
        """Send copies of messages to the retry topic, or after the last try the dead-letter topic, and acknowledge.

        Those that fail are redelivered; the first error is raised after all were tried.
        """
        routers = [self._dead_letter_router_of(message) for message in messages]
        await gather_settled(
            own.reconsume_later(each, delay_ms, properties, self.acknowledge_message)
            for own, each in zip(routers, messages, strict=True)
        )

    async def reconsume_later_cumulative(
        self, message: Message, delay_ms: int, properties: Mapping[str, str] | None
    ) -> None:
        """Send a copy of a message as `reconsume_later` does, and acknowledge everything up to it in its partition."""
        router = self._dead_letter_router_of(message)
        self.owner(message.message_id()).acks.check_cumulative()
        await router.reconsume_later(
            message, delay_ms, properties, lambda each, done: self.acknowledge_cumulative(each.message_id(), done)
        )

    def _dead_letter_router_of(self, message: Message) -> DeadLetterRouter:
        routers = self.owner(message.message_id()).dead_letter_router
        if routers is None or not self.config.enable_retry:
            raise InvalidConfiguration("reconsume_later needs a retry topic: subscribe with enable_retry=True")
        return routers

    def acknowledge_cumulative(self, message_id: MessageId, done: Done | None = None) -> None:
        """Acknowledge everything up to and including a message in its topic or partition; `done` waits for it."""
        self.owner(message_id).acknowledge_cumulative(message_id, done)

    def acknowledge_read(self) -> None:
        """Acknowledge what a reader has returned, of the partitions of which nothing is queued."""
        if self.config.is_reader:
            for child in self.children:
                child.acknowledge_read()

    def redeliver_all(self) -> None:
        """Request redelivery of everything unacknowledged."""
        for child in self.children:
            child.redeliver(None)

    def pause(self, *, strict: bool = False) -> None:
        """Grant no more permits; messages already permitted still arrive, but not at the application if strict.
        Thread-safe.
        """
        self.subscriptions.pause(strict=strict)

    def resume(self) -> None:
        """Grant the permits collected since `pause`, and go on. Thread-safe."""
        self.subscriptions.resume()

    @contextlib.contextmanager
    def put_back_on_error(self, message: Message, collected: list[Message]) -> Iterator[None]:
        """If the block raises, queue a dequeued message again, and before it those collected, which are then none.

        Messages that a seek or a redelivery concerns meanwhile are dropped, as the queue is. Thread-safe.
        """
        restarts = self.restarts()
        try:
            yield
        except BaseException:
            self.put_back([*collected, message], restarts)
            collected.clear()
            raise

    def restarts(self) -> dict[PartitionConsumer, int]:
        """Return the number of restarts of each partition, for `drop_outdated` and `put_back`. Thread-safe."""
        return {child: child.core.restarts for child in self.children}

    def drop_outdated(self, collected: list[Message], restarts: Mapping[PartitionConsumer, int]) -> None:
        """Remove the messages of partitions that have restarted since: they are redelivered, or not wanted any more."""
        for child, number in restarts.items():
            if child.core.restarts != number:
                outdated = [message for message in collected if message.entry.topic == child.topic.full]
                collected[:] = [message for message in collected if message.entry.topic != child.topic.full]
                child.count_dropped(outdated)

    def put_back(
        self, messages: Sequence[Message], restarts: Mapping[PartitionConsumer, int] = MappingProxyType({})
    ) -> None:
        """Queue messages again that the application did not receive. Thread-safe.

        :param restarts: numbers of restarts of the partitions when the messages were dequeued. Default: not checked.
        """
        by_owner: dict[PartitionConsumer, list[Message]] = {}
        for message in messages:
            # The messages of a topic that was removed meanwhile are redelivered to its next consumer.
            with contextlib.suppress(PulsarException):
                by_owner.setdefault(self.owner(message.message_id()), []).append(message)
        for child, own in by_owner.items():
            child.put_back(own, restarts.get(child))
            # Others may wait; and a pause may have ended meanwhile.
            child.engine.call(child.look_again)

    @property
    def asks_for_each(self) -> bool:
        """True without a queue: a permit is granted for each message when a receiver waits for it."""
        return self.config.receiver_queue_size == 0

    # --- control ----------------------------------------------------------------------------------------------------

    def seek_targets(self, target: SeekTarget | Callable[[str], SeekTarget | None]) -> SeekTargets:
        """Return the target of each consumer; raises before anything is moved. Thread-safe.

        `earliest`, `latest` and times apply to every partition, another id to its own; a function is called for each
        partition with its full name, and does not move it when it returns None.
        """
        if callable(target):
            asked = [(child, target(child.topic.full)) for child in self.children]
            return [(child, _checked(where)) for child, where in asked if where is not None]
        where = _checked(target)
        if isinstance(where, MessageId) and where not in (MessageId.earliest, MessageId.latest):
            return [(self.owner(where), where)]
        return [(child, where) for child in self.children]

    async def seek(self, target: SeekTarget | Callable[[str], SeekTarget | None]) -> None:
        """Seek to a target; see `seek_targets`."""
        await self.move(self.seek_targets(target))

    async def move(self, targets: SeekTargets) -> None:
        """Seek to the result of `seek_targets`; when one fails the others have moved all the same.

        Goes on when the caller is cancelled: the broker would move, and this consumer would not know.
        """
        engine = self.client.engine
        await engine.enter_loop()
        await engine.shield(gather_settled(seek.move(child, where) for child, where in targets))

    async def last_message_ids(self) -> list[MessageId]:
        """Return the last message id of every partition."""
        return await self._of_each(seek.last_message_id, self.children)

    async def _of_each(
        self, ask: Callable[[PartitionConsumer], Coroutine[Any, Any, T]], children: Sequence[PartitionConsumer]
    ) -> list[T]:
        """Return what the broker answers for each of the partitions; by the calling thread, if it is only one."""
        if len(children) != 1:
            await self.client.engine.enter_loop()
        return await gather(ask(child) for child in children)

    def dequeued_ids(self) -> list[MessageId]:
        """Return the id of the last dequeued message of every partition that has one. Thread-safe."""
        for child in self.children:
            child.count_dequeued()
        taken = [child.position.last_dequeued_message_id for child in self.children]
        return [message_id for message_id in taken if message_id is not None]

    async def positions(self) -> list[tuple[MessageId, MessageId]]:
        """Return the last id and the mark-delete position of every partition."""
        return await self._of_each(seek.last_and_mark, self.children)

    async def last_message_id(self) -> MessageId:
        """Return the last message id of an unpartitioned topic."""
        if len(self.children) != 1:
            raise OperationNotSupported("There is one last id for each partition; use get_last_message_ids()")
        return await seek.last_message_id(self.children[0])

    def has_queued(self) -> bool:
        """Return True if a message can be dequeued immediately. Thread-safe."""
        return any(child.has_queued() for child in self.children)

    async def _ends_ahead(self) -> list[tuple[PartitionConsumer, MessageId]]:
        """Return the partitions with entries that are still to be dequeued, and their last message ids."""
        children = self.children
        ends = await self._of_each(seek.end_ahead, children)
        return [(child, end) for child, end in zip(children, ends, strict=True) if end is not None]

    async def has_entry_available(self) -> bool:
        """Return True if any partition has an entry to read, of which it is not known that it holds no message."""
        return self.has_queued() or bool(await self._ends_ahead())

    async def has_message_available(self) -> bool:
        """Return True if any partition has a message to read; if none has, a reader acknowledges what it returned.

        Waits for the next entry where the broker has one: it may be a chunk of a message that no producer completed,
        and an application that then reads would wait without end. By the calling thread (`Engine.run_eager`) as long as
        it need not wait.
        """
        found = await self._has_message_available()
        if not found:
            self.acknowledge_read()
        return found

    async def _has_message_available(self) -> bool:
        if self.has_queued():
            return True
        ahead = await self._ends_ahead()
        if not ahead or self.config.receiver_queue_size == 0:
            # With a queue of 0 nothing arrives unless a receiver waits.
            return bool(ahead)
        await self.client.engine.enter_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENTRY_SECONDS):
                while not self.has_queued():
                    ahead = [(child, end) for child, end in ahead if seek.is_ahead(child, end)]
                    if not ahead:
                        return False
                    self._check_open()
                    self._arrival.clear()
                    await self._arrival.wait()
        return True

    async def leave(self, topic: str | None, *, force: bool = False) -> None:
        """Unsubscribe from one topic, or from all and close; the only topic of a plain consumer is all."""
        subscriptions = self.subscriptions
        name = None if topic is None else TopicName.parse(topic)
        if name is None or (self.pattern is None and list(subscriptions.topics) == [name]):
            await self.unsubscribe(force=force)
            return
        subscriptions.check_topic(name)
        # Order of events: first the watcher excludes the topic, else its task would subscribe again immediately.
        if self.pattern is not None:
            self.pattern.leave(name)
        try:
            await subscriptions.unsubscribe_topic(name, force=force)
        except BaseException:
            if self.pattern is not None:
                self.pattern.stay(name)
            raise

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription of every partition and close; the first failure is raised when all were tried.

        After a failure the partitions whose subscription remains are consumed as before, and may be unsubscribed again.
        """
        self._is_unsubscribing = True
        try:
            await self.subscriptions.unsubscribe(force=force)
        finally:
            # Those that were closed are removed, or all are.
            self._is_unsubscribing = False
        self.ended()

    async def close(self, timeout: float | None = None, *, counted: bool = False) -> tuple[ConsumerClose, ...]:
        """Close every partition's consumer, within `timeout` seconds, else the operation time-out.

        With a time limit, or with `counted`, the broker is asked for its counts of what is unacknowledged.
        """
        try:
            return tuple(await self.subscriptions.close(timeout, counted=counted or timeout is not None))
        finally:
            # A cancelled close has ended the consumer, too: those who wait for messages learn it.
            self.ended()

    def close_inline(self, timeout: float | None = None) -> tuple[ConsumerClose, ...] | None:
        """As `close`, in the calling thread if that is possible; else None, without effect. Thread-safe, blocks.

        Interceptors are called on the loop before the close returns, several partitions are closed concurrently.
        """
        children = self.children
        takes_loop = type(self) is not MultiTopicsConsumer or self.subscriptions.has_tasks or self.pattern is not None
        if takes_loop or len(children) != 1:
            return None
        report = close_inline(children[0], timeout, self.ended, counted=timeout is not None)
        if report is None:
            return None
        self.subscriptions.has_ended = True
        return (report,)

    def abandon(self) -> None:
        """Close without a message to the broker."""
        for child in self.children:
            child.abandon()
        self.ended()

    def ended(self) -> None:
        """Release everything: no more messages will be received."""
        self.subscriptions.stop_tasks()
        self.subscriptions.has_ended = True
        self.client.forget(self)
        # Without partition consumers nothing else wakes those who wait.
        self._wake_first()
        if self.on_ready is not None:
            self.on_ready()

    @property
    def is_closed(self) -> bool:
        """True after the consumer was closed."""
        return self.subscriptions.has_ended

    @property
    def description(self) -> str:
        """The topic's name, the names of several, or the pattern."""
        if self.pattern is not None:
            return self.pattern.pattern.text
        return ",".join(topic.full for topic in self.topics)

    @property
    def has_reached_end(self) -> bool:
        """True if every topic is terminated and everything in it acknowledged."""
        return bool(self.children) and all(child.reached_end for child in self.children)

    @property
    def is_connected(self) -> bool:
        """True if every partition is connected; False in a forked child."""
        is_usable = not self.subscriptions.has_ended and not self.client.engine.is_inherited
        return is_usable and all(child.is_connected for child in self.children)

    @property
    def last_disconnected_timestamp(self) -> int:
        """Time of any current partition's last disconnection in ms since 1970, 0 if there was none."""
        return max((child.last_disconnected_timestamp for child in self.children), default=0)


def _checked(target: object) -> SeekTarget:
    if isinstance(target, MessageId):
        return target
    if isinstance(target, bool) or not isinstance(target, int) or not 0 <= target <= MAX_U64:
        raise InvalidConfiguration(f"Seek needs a MessageId or a publish time in ms since 1970, not {target!r}")
    return target
