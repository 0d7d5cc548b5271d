"""Push consumer core: one polling loop that dequeues batches from topics and dispatches them to a handler.

Rules: one polling loop serves all topics and partitions; it waits for the broker's deliveries, not for a clock, and
returns to paused partitions when their pause is over. A push consumer starts once and stops once. A group is in a
process once under each instance name. Everything but the handlers runs on the engine's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from pulsar_native._callback_errors import CALLBACK_ERRORS, cancels_task
from pulsar_native._loggers import get_logger
from pulsar_native.config import ConsumerConfig
from pulsar_native.config.base import check_function
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer import seek
from pulsar_native.engine.consumer.consumer import PartitionConsumer
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.enums import ConsumerType, InitialPosition, SubscriptionMode
from pulsar_native.exceptions import AlreadyClosed, InvalidConfiguration, InvalidTopicName, NotAllowedError
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.dead_letter import dead_letter_topic
from pulsar_native.push.config import (
    ConsumeFromWhere,
    ConsumeMessageHook,
    ConsumeOrder,
    MessageModel,
    PushConsumerConfig,
    PushConsumerStats,
    ShutdownReport,
    TagFilter,
    check_consume_message_hook,
)
from pulsar_native.push.consume_message_service import (
    ConsumeMessageConcurrentlyService,
    ConsumeMessageOrderlyService,
    ConsumeMessageService,
    MessageDispatcher,
)
from pulsar_native.push.offset_store import OffsetStore
from pulsar_native.push.partition_poller import SUSPENDED, Counts, MessageFilter, PartitionPoller, Subscribed
from pulsar_native.schema.base import Schema
from pulsar_native.schema.registered import wire_schema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.topic import TopicName

_log = get_logger("pulsar_native.push_consumer")

# Pause in seconds of a partition whose stored offset is invalid, before it is read from its beginning.
MEND = 10.0
# How often the subscription of a group is tried again while members look whether there is one, and after how many
# seconds.
_MOST_RETRIES = 10
_RETRY_SECONDS = 0.1


class ServiceState(Enum):
    """State of a push consumer. START_FAILED is also the state during the start, so that a second start is refused."""

    CREATE_JUST = "created"
    START_FAILED = "start failed"
    RUNNING = "running"
    SHUTDOWN_ALREADY = "shut down"


class _Groups:
    """Groups that run in this process. Thread-safe; a forked child has another one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: set[tuple[object, ...]] = set()

    def join(self, member: tuple[object, ...]) -> bool:
        """Add a member; return False when it is present already."""
        with self._lock:
            if member in self._members:
                return False
            self._members.add(member)
            return True

    def leave(self, member: tuple[object, ...]) -> None:
        """Remove a member."""
        with self._lock:
            self._members.discard(member)


_groups = _Groups()


def _after_fork_in_child() -> None:
    # No group runs in the child, and another thread may have held the lock.
    global _groups
    _groups = _Groups()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class PushConsumerCore:
    """The engine's side of a push consumer."""

    def __init__(self, config: PushConsumerConfig) -> None:
        self.config = config
        self.state = ServiceState.CREATE_JUST
        self.topics: dict[TopicName, tuple[TagFilter, Schema[Any]]] = {}
        self.orderly: bool | None = None
        self.filters: list[MessageFilter] = []
        self.hooks: list[ConsumeMessageHook] = []
        self.counts = Counts()
        self.suspended = False
        self.service: ConsumeMessageService | None = None
        self._sources: list[Subscribed] = []
        self._pollers: list[PartitionPoller] = []
        self._store: OffsetStore | None = None
        # False during the start: one that fails leaves the stored offsets as they are.
        self._may_persist = False
        self._offsets: dict[str, MessageId] = {}
        # Topics this member, or in clustering its group, was started with before: partitions of them have offsets.
        self._known: set[TopicName] = set()
        self._wake = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._drained: asyncio.Event | None = None
        self._starting: asyncio.Task[None] | None = None
        # Set but from the start to the end of the shutdown, whose report all calls of it get.
        self._over = asyncio.Event()
        self._over.set()
        self.report = ShutdownReport(0, 0, {})
        self._dispatcher: MessageDispatcher | None = None
        self._client: ClientCore
        self._member: tuple[object, ...]
        self._broadcasting = config.message_model is MessageModel.BROADCASTING
        # True if a group without a subscription starts at a time.
        self._seeks_to_time = not self._broadcasting and config.consume_from_where is ConsumeFromWhere.TIMESTAMP

    # --- before the start ---------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str | None, schema: Schema[Any]) -> None:
        """Add a topic; a second time replaces its expression."""
        self.check_not_started()
        self.topics[TopicName.parse(topic)] = (TagFilter(expression), schema)

    def unsubscribe(self, topic: str) -> None:
        """Remove a topic."""
        self.check_not_started()
        self.topics.pop(TopicName.parse(topic), None)

    def register(self, *, orderly: bool) -> None:
        """Record the type of the handler; two types make the start fail."""
        self.check_not_started()
        if self.orderly not in (None, orderly):
            raise InvalidConfiguration(
                "A push consumer is concurrent or orderly, never both; it has a handler of the other kind"
            )
        self.orderly = orderly

    def add_filter(self, hook: MessageFilter) -> None:
        """Add a filter of messages."""
        self.check_not_started()
        check_function("A filter message hook", hook)
        self.filters.append(hook)

    def add_hook(self, hook: ConsumeMessageHook) -> None:
        """Add a hook around the calls of the handler."""
        self.check_not_started()
        check_consume_message_hook(hook)
        self.hooks.append(hook)

    def check_not_started(self) -> None:
        """Raise unless the push consumer has not been started yet."""
        if self.state is not ServiceState.CREATE_JUST:
            raise NotAllowedError(f"The push consumer was started before (it is: {self.state.value}); make a new one")

    # --- start --------------------------------------------------------------------------------------------------------

    async def start(
        self, client: ClientCore, make_dispatcher: Callable[[ConsumeMessageService], MessageDispatcher]
    ) -> None:
        """Check the configuration, join the group, load offsets, subscribe and begin to poll."""
        self.check_not_started()
        # A barrier: a concurrent start, or one after a failure, is refused.
        self.state = ServiceState.START_FAILED
        self._phase("check configuration")
        if self.orderly is None:
            raise InvalidConfiguration("A push consumer needs a handler: register_message_listener()")
        if not self.topics:
            raise InvalidConfiguration("A push consumer needs a topic: subscribe()")
        self._phase("join group")
        self._client = client
        self._member = (client.config.service_url, self.config.member_name, self.config.consumer_group)
        if not _groups.join(self._member):
            self.state = ServiceState.CREATE_JUST
            raise NotAllowedError(
                f"The group {self.config.consumer_group} is in this process already as {self.config.member_name}; "
                "use another group, or another instance_name for a second member"
            )
        self._over.clear()
        # A task of its own, which a shutdown can cancel without cancelling the caller.
        self._starting = client.engine.spawn(self._start(client, make_dispatcher))
        try:
            try:
                await self._starting
            finally:
                self._starting = None
            self._check_wanted()
        except BaseException as error:
            await self._end()
            if isinstance(error, asyncio.CancelledError) and not cancels_task(error):
                self._check_wanted()
            raise
        self.state = ServiceState.RUNNING
        self._phase("running")

    def _check_wanted(self) -> None:
        # Also where the shutdown came when the start's last step was done.
        if self.state is ServiceState.SHUTDOWN_ALREADY:
            raise AlreadyClosed("The push consumer was shut down while it was starting") from None

    def _phase(self, name: str) -> None:
        _log.info("Push consumer of group %s: %s", self.config.consumer_group, name)

    async def _start(
        self, client: ClientCore, make_dispatcher: Callable[[ConsumeMessageService], MessageDispatcher]
    ) -> None:
        if self._broadcasting:
            self._phase("load positions")
            config = self.config
            self._store = store = OffsetStore(config.offset_store_folder, config.member_name, config.consumer_group)
            await asyncio.to_thread(store.claim)
            self._offsets = await asyncio.to_thread(store.load)
            self._known = _topics_of(self._offsets)
        self._phase("start workers")
        self._start_consuming(client, make_dispatcher)
        self._phase("subscribe")
        for topic in self.topics:
            await self._open(client, topic)
        self._phase("find positions")
        for source in self._sources:
            await asyncio.gather(*(self._place(poller) for poller in source.pollers.values()))
        if self._store is not None:
            # At once, so that the next start knows each partition, also after a crash: what is not known by then is
            # new. Not only logged when it fails: the next start would lose what is published until then.
            await asyncio.to_thread(self._store.save_first, self._positions())
            self._may_persist = True
        self._phase("start poller")
        self._loop_task = client.engine.spawn(self._run())
        if self._broadcasting:
            self._tasks.append(client.engine.spawn(self._persist_regularly()))
        elif isinstance(self.service, ConsumeMessageConcurrentlyService):
            self._tasks.append(client.engine.spawn(self._watch_handlers(self.service)))

    def _start_consuming(
        self, client: ClientCore, make_dispatcher: Callable[[ConsumeMessageService], MessageDispatcher]
    ) -> None:
        kind = ConsumeMessageOrderlyService if self.orderly else ConsumeMessageConcurrentlyService
        # A cycle: the dispatcher reports to the service that submits to it.
        service = kind(client.engine, self.config, self.counts, self.hooks, self._on_done)
        self._dispatcher = service.dispatcher = make_dispatcher(service)
        self.service = service

    async def _open(self, client: ClientCore, topic: TopicName) -> None:
        tags, schema = self.topics[topic]
        decoder = VersionedDecoder(schema)
        config = self._consumer_config(topic)
        if self._seeks_to_time and topic.is_persistent:
            if await self._has_subscription(client, topic):
                self._known.add(topic.base)
            consumer = await self._subscribe_after_look(client, topic, config, decoder)
        else:
            consumer = await self._subscribe(client, topic, config, decoder)
        source = Subscribed(consumer, topic, tags)
        self._sources.append(source)
        consumer.on_ready = self._wake.set
        self._match_partitions(source)

    async def _has_subscription(self, client: ClientCore, topic: TopicName) -> bool:
        """Return True if the group has a subscription on the topic, or on one of its partitions, already.

        The mark-delete position does not show it: it is before the first entry of a ledger also where everything in
        earlier ledgers is acknowledged. But the broker refuses a non-durable subscription with the name of a durable
        one (broker-behaviour.md#non-durable-with-others).
        """
        config = ConsumerConfig(
            subscription_name=self.config.consumer_group,
            consumer_type=ConsumerType.Shared,
            subscription_mode=SubscriptionMode.NonDurable,
            start_paused=True,
        )
        try:
            consumer = await self._subscribe(client, topic, config, VersionedDecoder(self.topics[topic][1]))
        except NotAllowedError:
            return True
        await consumer.close()
        return False

    async def _subscribe_after_look(
        self, client: ClientCore, topic: TopicName, config: ConsumerConfig, decoder: VersionedDecoder
    ) -> MultiTopicsConsumer:
        """Subscribe the group while another member may look whether it has a subscription, which refuses this one.

        The broker may also remove the non-durable subscription of the own look a moment after its close.
        """
        for _ in range(_MOST_RETRIES):
            with contextlib.suppress(NotAllowedError):
                return await self._subscribe(client, topic, config, decoder)
            await asyncio.sleep(_RETRY_SECONDS)
        return await self._subscribe(client, topic, config, decoder)

    async def _subscribe(
        self, client: ClientCore, topic: TopicName, config: ConsumerConfig, decoder: VersionedDecoder
    ) -> MultiTopicsConsumer:
        return await client.subscribe([topic.full], config, decoder, wire_schema(self.topics[topic][1]))

    def _consumer_config(self, topic: TopicName) -> ConsumerConfig:
        config = self.config
        common: dict[str, Any] = {
            "consumer_name": config.member_name,
            # One batch in work, one prefetched.
            "receiver_queue_size": 2 * config.pull_batch_size,
            "auto_scaled_receiver_queue_size_enabled": config.within_memory_limit,
            "auto_update_partitions_interval_seconds": config.poll_name_server_interval / 1000,
            "crypto_key_reader": config.crypto_key_reader,
            "crypto_failure_action": config.crypto_failure_action,
        }
        if self._broadcasting:
            return ConsumerConfig(
                # Unique, even among connections whose loss the broker has not noticed yet.
                subscription_name=f"{config.consumer_group}-{config.member_name}-{secrets.token_hex(4)}",
                subscription_mode=SubscriptionMode.NonDurable,
                initial_position=InitialPosition.Latest,
                start_message_id=MessageId.earliest,
                **common,
            )
        policy = config.dead_letter_policy()
        if self.orderly and policy.dead_letter_topic is None:
            policy = policy.replace(dead_letter_topic=dead_letter_topic(topic.full, config.consumer_group))
        at_end = config.consume_from_where is ConsumeFromWhere.LAST_OFFSET
        return ConsumerConfig(
            subscription_name=config.consumer_group,
            consumer_type=self._consumer_type(),
            initial_position=InitialPosition.Latest if at_end else InitialPosition.Earliest,
            batch_index_ack_enabled=True,
            dead_letter_policy=policy,
            enable_retry=not self.orderly,
            **common,
        )

    def _consumer_type(self) -> ConsumerType:
        if not self.orderly:
            return ConsumerType.Shared
        return ConsumerType.KeyShared if self.config.consume_order is ConsumeOrder.KEY else ConsumerType.Failover

    def _match_partitions(self, source: Subscribed) -> None:
        """Create or remove pollers so that each partition has one, and divide the topic's limits among them."""
        children = source.consumer.children
        if len(children) == len(source.pollers) and all(child in source.pollers for child in children):
            return
        for child in children:
            if child not in source.pollers:
                source.pollers[child] = self._poller(source, child)
        for child in [child for child in source.pollers if child not in children]:
            source.pollers.pop(child).stop()
        own = [poller for poller in source.pollers.values() if not poller.is_retry]
        for poller in own:
            poller.share_limits(len(own))
        self._pollers = [poller for each in self._sources for poller in each.pollers.values()]
        # Each topic has a consumer of the retry topic they share, and the broker gives a message to any of these.
        retry_topics = {poller.child.topic.base for poller in self._pollers if poller.is_retry}
        for poller in self._pollers:
            poller.sharing = self.topics if poller.child.topic.base in retry_topics else {}

    def _poller(self, source: Subscribed, child: PartitionConsumer) -> PartitionPoller:
        return PartitionPoller(
            source,
            child,
            self.config,
            self.counts,
            orderly=bool(self.orderly),
            broadcasting=self._broadcasting,
            hooks=self.filters,
            wake=self._wake.set,
        )

    # --- positions ----------------------------------------------------------------------------------------------------

    async def _place(self, poller: PartitionPoller) -> None:
        """Seek a partition to the start of the member, or of a group without offsets."""
        child = poller.child
        if not child.topic.is_persistent:
            # Nothing is stored that could be read from a position.
            return
        where = self.config.consume_from_where
        if not self._broadcasting:
            if self._seeks_to_time and poller.source.topic.base not in self._known and not poller.is_retry:
                await seek.seek(child, None, self._start_time())
            return
        kept = self._offsets.get(child.topic.full)
        if kept is not None:
            await self._place_kept(poller, kept)
        elif where is not ConsumeFromWhere.FIRST_OFFSET and child.topic.base not in self._known:
            # A partition of a known topic was added while this member was down: it is read from its beginning, where
            # the consumer starts already.
            await self._place_new(poller, where)

    async def _place_new(self, poller: PartitionPoller, where: ConsumeFromWhere) -> None:
        """Skip what was published before the first start of the member, or before the configured time.

        The position is stored from now on: messages published while this member is down are not missed.
        """
        child = poller.child
        if where is ConsumeFromWhere.TIMESTAMP:
            await seek.seek(child, None, self._start_time())
            _, place = await seek.last_and_mark(child)
        else:
            place = await seek.last_message_id(child)
            if place.entry_id() >= 0:
                await seek.seek(child, place)
        if place.entry_id() >= 0:
            poller.start = place

    def _start_time(self) -> int:
        return self.config.start_time_ms(time.time_ns() // 1_000_000)

    async def _place_kept(self, poller: PartitionPoller, kept: MessageId) -> None:
        child = poller.child
        last = await seek.last_message_id(child)
        if (kept.ledger_id(), kept.entry_id()) > (last.ledger_id(), last.entry_id()):
            _log.warning(
                "%s: there is no position %s, the last is %s; in %g s the partition is read from its beginning",
                child.describe(), kept, last, MEND,
            )  # fmt: skip
            poller.not_before = time.monotonic() + MEND
            poller.moved(MessageId.earliest)
            # The consumer starts at the beginning already.
            return
        poller.start = kept
        if kept != MessageId.earliest:
            await seek.seek(child, kept)

    async def _persist_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.config.persist_consumer_offset_interval / 1000)
            await self._persist()

    async def _persist(self) -> None:
        """Write the offsets of a broadcasting member to its file; a disk error is logged."""
        if self._store is None or not self._may_persist:
            return
        await asyncio.to_thread(self._save, self._store, self._positions())

    def _positions(self) -> dict[str, MessageId]:
        """Return the offsets of all partitions, also of those that are not read any more."""
        for poller in self._pollers:
            place = poller.position
            if place is not None:
                self._offsets[poller.child.topic.full] = place
        return dict(self._offsets)

    def _save(self, store: OffsetStore, positions: dict[str, MessageId]) -> None:
        try:
            store.save(positions)
        except OSError as error:
            _log.error("The positions cannot be written to %s: %s", store.path, error)

    # --- polling ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Poll until the push consumer or the client stops."""
        try:
            while not self._client.closed:
                self._wake.clear()
                wait = self.round(time.monotonic())
                if wait == 0:
                    # Lets the handlers' results and the broker's deliveries run in between.
                    await asyncio.sleep(0)
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
        except CALLBACK_ERRORS as error:
            if cancels_task(error):
                raise
            _log.exception("Push consumer of group %s: polling failed, it shuts down", self.config.consumer_group)
            self.state = ServiceState.SHUTDOWN_ALREADY
            self.report = self.report_so_far()
            await self._end()
        finally:
            if self.state is ServiceState.RUNNING:
                self._abandon()

    def round(self, now: float) -> float | None:
        """Poll every partition once; return the seconds until the next round, None to wait for a wake-up."""
        self.counts.rounds += 1
        if self.suspended:
            return SUSPENDED
        assert self.service is not None
        waits: list[float] = []
        for source in self._sources:
            self._match_partitions(source)
        for poller in self._pollers:
            try:
                items = poller.poll(now)
                if items:
                    self.service.submit(poller, items)
            except Exception as error:
                # An error in one partition, of whatever kind, must not end the polling of all.
                _log.exception("%s: the poller failed", poller.child.describe())
                poller.failed(error, now)
            if poller.may_have_more:
                waits.append(max(0.0, poller.not_before - now))
        return min(waits, default=None)

    async def _watch_handlers(self, service: ConsumeMessageConcurrentlyService) -> None:
        """Check for hanging handlers once every time-out."""
        seconds = self.config.consume_timeout_minutes * 60
        while True:
            await asyncio.sleep(seconds)
            service.give_back_stuck(self._pollers, time.monotonic())

    def suspend(self) -> None:
        """Stop polling; messages dequeued before are handled."""
        self.suspended = True

    def resume(self) -> None:
        """Poll again."""
        self.suspended = False
        self._wake.set()

    def stats(self) -> PushConsumerStats:
        """Return counters and gauges. Thread-safe."""
        counts, pollers = self.counts, self._pollers
        return PushConsumerStats(
            rounds=counts.rounds,
            taken=counts.taken,
            filtered=counts.filtered,
            duplicates=counts.duplicates,
            succeeded=counts.succeeded,
            failed=counts.failed,
            sent_back=counts.sent_back,
            dead_letters=counts.dead_letters,
            dropped=counts.dropped,
            decryption_failed=sum(poller.child.undecodable.undecrypted_count for poller in pollers),
            throttled=dict(counts.throttled),
            unfinished=sum(len(poller.queue) for poller in pollers),
            unfinished_bytes=sum(poller.queue.bytes for poller in pollers),
        )

    # --- shutdown ---------------------------------------------------------------------------------------------------

    def _on_done(self) -> None:
        if self._drained is not None and not self._unfinished():
            self._drained.set()

    async def shutdown(self, await_termination_millis: int | None, *, in_handler: bool = False) -> ShutdownReport:
        """Stop polling, wait for running handlers, write offsets, unsubscribe locally; end a start that is under way.

        A second call waits for the first, also for one that was cancelled, and returns its report. One `in_handler`
        does not wait, as the first may wait for this handler.
        """
        if self.state is not ServiceState.RUNNING:
            self.never_started()
            if self._starting is not None:
                self.state = ServiceState.SHUTDOWN_ALREADY
                self._starting.cancel()
            if in_handler and not self._over.is_set():
                return self.report_so_far()
            await self._over.wait()
            return self.report
        self.state = ServiceState.SHUTDOWN_ALREADY
        self._phase("stop poller")
        self._stop_intake()
        limit = self.config.await_termination_millis_when_shutdown
        if await_termination_millis is not None:
            limit = await_termination_millis
        before = self._unfinished()
        try:
            if before and limit:
                await self._drain(limit / 1000)
        finally:
            self.report = self.report_so_far(before)
            self._phase("leave group")
            await self._end()
        return self.report

    def report_so_far(self, before: int = 0) -> ShutdownReport:
        """Return the report of a shutdown that ended now; `before` is how many messages were unfinished before."""
        return ShutdownReport(
            max(before - self._unfinished(), 0),
            self._unfinished(),
            {poller.child.topic.full: place for poller in self._pollers if (place := poller.oldest) is not None},
        )

    def never_started(self) -> None:
        """Record that a push consumer that was not started never will be."""
        if self.state is ServiceState.CREATE_JUST:
            self.state = ServiceState.SHUTDOWN_ALREADY

    async def _drain(self, seconds: float) -> None:
        self._phase("wait for handlers")
        self._drained = asyncio.Event()
        self._on_done()
        try:
            async with asyncio.timeout(seconds):
                await self._drained.wait()
        except TimeoutError:
            _log.warning("Handlers are not done after %g s; unfinished messages are redelivered", seconds)

    def _unfinished(self) -> int:
        return sum(len(poller.queue) for poller in self._pollers)

    def _stop_intake(self) -> None:
        current = asyncio.current_task()
        for task in (self._loop_task, *self._tasks):
            if task is not None and task is not current:
                task.cancel()
        for poller in self._pollers:
            poller.stop()

    def _stop_handlers(self, *, cancel_running: bool = True) -> None:
        if self.service is not None:
            self.service.stop()
        if self._dispatcher is not None:
            self._dispatcher.stop(cancel_running=cancel_running)

    async def _end(self) -> None:
        """Stop pollers and service, write offsets and leave the topics and the group."""
        self._stop_intake()
        self._stop_handlers()
        # Cancelling the caller must not leave the end half done: it continues, and ends what others wait for.
        ending = self._client.engine.spawn(self._leave())
        ending.add_done_callback(self._left)
        await asyncio.shield(ending)

    def _left(self, _ending: object = None) -> None:
        if self._store is not None:
            self._store.release()
        _groups.leave(self._member)
        self._over.set()

    async def _leave(self) -> None:
        results = await asyncio.gather(
            self._persist(), *(source.consumer.close() for source in self._sources), return_exceptions=True
        )
        for result in results:
            if isinstance(result, Exception):
                _log.warning("Push consumer of group %s did not end well: %s", self.config.consumer_group, result)

    def _abandon(self) -> None:
        """End with the client, which has closed the consumers already, or with the loop."""
        self.state = ServiceState.SHUTDOWN_ALREADY
        if self._client.closed:
            _log.info("Push consumer of group %s: the client was closed", self.config.consumer_group)
        else:
            _log.error("Push consumer of group %s: polling was interrupted, it ends", self.config.consumer_group)
        self.report = self.report_so_far()
        self._stop_intake()
        # A handler that closes the client is not cancelled by this, but all are when the loop ends.
        self._stop_handlers(cancel_running=not self._client.closed)
        if self._store is not None:
            # Written immediately: the loop may end with this task.
            self._save(self._store, self._positions())
        self._left()


def _topics_of(names: Iterable[str]) -> set[TopicName]:
    """Return the topics of which partitions have these names, from a file; what is no name of a topic is ignored."""
    topics = set()
    for name in names:
        with contextlib.suppress(InvalidTopicName):
            topics.add(TopicName.parse(name).base)
    return topics
