"""Partition poller of a push consumer: dequeues messages of one partition, filters them, and tracks unfinished ones.

Rules: one round dequeues at most a pull batch, and nothing while a limit is exceeded, or while the partition pauses
after an error. Filtered-out messages are acknowledged immediately. The position of a broadcasting member stays before
an entry that was not delivered, as it cannot be decrypted. A message of a retry topic is decoded by the schema of the
topic it was published to, whose filter it has passed. After a lost connection the broker redelivers what is unfinished:
a message a handler has is not accepted twice; one no handler has begun is forgotten, since it is redelivered here or to
another member. A non-persistent topic redelivers nothing, and its message ids are all the same: no message is compared
or forgotten there. On the loop only, except `holds`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pulsar_native._callback_errors import CALLBACK_ERRORS, cancels_task
from pulsar_native._loggers import get_logger
from pulsar_native.engine.consumer.consumer import PartitionConsumer
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.enums import ConsumerCryptoFailureAction
from pulsar_native.exceptions import PulsarException, log_text
from pulsar_native.message import KeyedMessage, Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.dead_letter import REAL_TOPIC
from pulsar_native.push.config import PushConsumerConfig, TagFilter, is_unawaited
from pulsar_native.push.flow_control import FlowControl, Limits
from pulsar_native.push.handler_errors import interrupts_program
from pulsar_native.push.process_queue import Ascending, ProcessQueue, Taken
from pulsar_native.schema.base import Schema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.topic import TopicName

_log = get_logger("pulsar_native.push_consumer")

Item = Taken[Message]
MessageFilter = Callable[[Message], bool]
_Key = tuple[int, int, int]

# Pause before the next attempt, in seconds.
THROTTLED = 0.050
SUSPENDED = 1.0
FAILED = 1.0
_EVERY = 1000


@dataclass
class Counts:
    """Counters of a push consumer; see `PushConsumerStats`."""

    rounds: int = 0
    taken: int = 0
    filtered: int = 0
    duplicates: int = 0
    succeeded: int = 0
    failed: int = 0
    sent_back: int = 0
    dead_letters: int = 0
    dropped: int = 0
    throttled: dict[str, int] = field(default_factory=lambda: {"count": 0, "size": 0, "span": 0, "memory": 0})


class Subscribed:
    """One topic of a push consumer: its consumer, its filter, and a poller for each of its partitions."""

    def __init__(self, consumer: MultiTopicsConsumer, topic: TopicName, tags: TagFilter) -> None:
        self.consumer = consumer
        self.topic = topic
        self.tags = tags
        self.pollers: dict[PartitionConsumer, PartitionPoller] = {}


class PartitionPoller:
    """Poller of one partition, between the consumer and the handler."""

    def __init__(
        self,
        source: Subscribed,
        child: PartitionConsumer,
        config: PushConsumerConfig,
        counts: Counts,
        *,
        orderly: bool,
        broadcasting: bool,
        hooks: list[MessageFilter],
        wake: Callable[[], None],
    ) -> None:
        self.source = source
        self.child = child
        self.queue: ProcessQueue[Message] = ProcessQueue()
        self.not_before = 0.0
        # Start of a broadcasting member: everything up to it is done. Added partitions are read from their beginning.
        has_start = broadcasting and child.topic.is_persistent
        self.start: MessageId | None = MessageId.earliest if has_start else None
        self.is_retry = source.topic not in (child.topic, child.topic.base)
        # Of a retry topic all topics of the push consumer, which may share it, or be it; else none.
        self.sharing: Mapping[TopicName, tuple[TagFilter, Schema[Any]]] = {}
        # One for each of those topics: the versions are those of the retry topic.
        self._decoders: dict[TopicName, VersionedDecoder] = {}
        self._config = config
        self._counts = counts
        self._orderly = orderly
        self._broadcasting = broadcasting
        self._hooks = hooks
        self._wake = wake
        self._flow = FlowControl(self._limits(1))
        # Unfinished messages count against it, when that is configured.
        self._memory = child.client.memory if config.within_memory_limit else None
        self._held: set[_Key] = set()
        self._attachment = child.attachment
        self._is_stored = child.topic.is_persistent
        # On a shared subscription, or with redeliveries, the order proves nothing.
        self._ascending = Ascending() if broadcasting else None
        # With another action, what cannot be decrypted is done, or is handed over.
        self._keeps_undecrypted = has_start and config.crypto_failure_action is ConsumerCryptoFailureAction.FAIL
        # A message whose writer schema is being fetched; those behind it wait.
        self._first: Message | None = None
        self._fetch: asyncio.Task[None] | None = None
        self._errors = 0

    def _limits(self, partitions: int) -> Limits:
        config = self._config
        return Limits.of(
            queue=config.pull_threshold_for_queue,
            queue_size=config.pull_threshold_size_for_queue,
            topic=config.pull_threshold_for_topic,
            topic_size=config.pull_threshold_size_for_topic,
            span=None if self._orderly else config.consume_concurrently_max_span,
            partitions=partitions,
        )

    def share_limits(self, partitions: int) -> None:
        """Divide the topic's limits among this number of partitions."""
        self._flow.limits = self._limits(partitions)

    # --- polling ----------------------------------------------------------------------------------------------------

    def poll(self, now: float) -> list[Item]:
        """Return the next messages for the handler: at most a pull batch, often none."""
        if now < self.not_before or not self.may_have_more:
            return []
        self.check_attachment()
        stopped = self._flow.check(self.queue, memory_is_full=self._memory_is_full)
        if stopped is not None:
            self._counts.throttled[stopped.reason.value] += 1
            self.not_before = now + THROTTLED
            if stopped.text is not None:
                _log.warning("%s: %s", self.child.describe(), stopped.text)
            return []
        return self._poll(now)

    def _poll(self, now: float) -> list[Item]:
        items: list[Item] = []
        try:
            for seen in range(self._config.pull_batch_size):
                message = self._next()
                if message is None:
                    break
                if seen == 0 and self._config.pull_interval:
                    self.not_before = now + self._config.pull_interval / 1000
                item = self._accept(message)
                if item is not None:
                    items.append(item)
                    if self._memory_is_full:
                        break
        except PulsarException as error:
            self.failed(error, now)
        return items

    @property
    def _memory_is_full(self) -> bool:
        return self._memory is not None and self._memory.is_over(1)

    def _next(self) -> Message | None:
        message, self._first = self._first, None
        if message is None:
            message = self.child.dequeue()
            if self._keeps_undecrypted and self.child.undecodable.undecrypted_count:
                self._keep_position()
            if message is not None and self.sharing:
                message = self._with_own_schema(message)
        if message is None:
            return None
        decoder = message.entry.schema
        version = decoder.wanted(message.schema_version_bytes()) if decoder.needs_writer else None
        if version is None:
            return message
        self._first = message
        self._fetch = self.child.engine.spawn(self._fetch_schema(message, version))
        return None

    def _keep_position(self) -> None:
        """Have the position stay before an entry that was not delivered: messages behind it are not accepted yet."""
        if self.queue.keep_offset():
            self._keeps_undecrypted = False
            _log.warning(
                "%s: an entry cannot be decrypted and is not delivered: the stored position stays before it, and it "
                "and what is behind it come again at the next start; set crypto_key_reader, or crypto_failure_action "
                "DISCARD to pass over it",
                self.child.describe(),
            )  # fmt: skip

    def _with_own_schema(self, message: Message) -> Message:
        """Return a message of a retry topic with the schema of its topic, which may not be that of this consumer."""
        topic = self._subscribed(self.topic_of(message))
        if topic is None or topic == self.source.topic:
            return message
        decoder = self._decoders.get(topic)
        if decoder is None:
            decoder = self._decoders[topic] = VersionedDecoder(self.sharing[topic][1])
        # A copy: others of its batch may be of other topics.
        arguments: Any = message.__reduce__()[1]
        copied: Message = (KeyedMessage if decoder.takes_key else Message)(*arguments)
        copied.entry.schema = decoder
        return copied

    def _subscribed(self, topic: TopicName) -> TopicName | None:
        """Return the name of those `sharing` by which a topic or partition is subscribed to, None if it is not."""
        return next((name for name in (topic, topic.base) if name in self.sharing), None)

    async def _fetch_schema(self, message: Message, version: bytes) -> None:
        try:
            await self.child.client.load_writer_schema(message, version)
        except CALLBACK_ERRORS as error:
            if cancels_task(error):
                raise
            # Any other error, too: without a pause the next poll would fetch it again at once.
            self.failed(error, self.child.engine.loop.time())
        finally:
            self._fetch = None
            self._wake()

    def failed(self, error: BaseException, now: float) -> None:
        """Pause after an error."""
        self.not_before = now + FAILED
        if self._errors % _EVERY == 0:
            text = log_text(error) if isinstance(error, PulsarException) else type(error).__name__
            _log.warning("%s: cannot fetch, next try in %g s: %s", self.child.describe(), FAILED, text)
        self._errors += 1

    def _accept(self, message: Message) -> Item | None:
        key = _key_of(message) if self._is_stored else None
        if key is not None:
            self._watch_order(message, key)
            if key in self._held:
                self._counts.duplicates += 1
                return None
        if not self._wants(message):
            self._counts.filtered += 1
            self.queue.skip(message)
            self._acknowledge(message)
            return None
        self._counts.taken += 1
        if key is not None:
            self._held.add(key)
        if self._memory is not None:
            self._memory.receive(len(message))
        return self.queue.put(message, len(message))

    def _watch_order(self, message: Message, key: _Key) -> None:
        if self._ascending is not None and (behind := self._ascending.goes_back(key)) is not None:
            _log.warning(
                "%s: the position went backwards, from %d:%d:%d to %s: was the subscription moved?",
                self.child.describe(), *behind, message.message_id(),
            )  # fmt: skip

    def _wants(self, message: Message) -> bool:
        tags = self._tags_for(message) if self.is_retry or self.sharing else self.source.tags
        if tags is not None and not tags.wants(message) and not _is_encrypted_batch(message):
            return False
        return all(self._passes(hook, message) for hook in self._hooks)

    def _tags_for(self, message: Message) -> TagFilter | None:
        """Return the filter for a message of a retry topic, None for one sent back: that has passed it before."""
        topic = self._subscribed(self.child.topic)
        return None if topic is None or self._origin(message) is not None else self.sharing[topic][0]

    def _passes(self, hook: MessageFilter, message: Message) -> bool:
        # A lost message is worse than an extra one: where a filter fails, the handler gets the message.
        try:
            passes: object = hook(message)
            # The usual results first: this runs for each message.
            if isinstance(passes, bool):
                return passes
            if passes is not None and not is_unawaited(passes):
                return bool(passes)
        except BaseException as error:
            if interrupts_program(error):
                raise
            _log.exception("A filter failed for %s, which the handler gets", message.message_id())
            return True
        _log.warning("A filter returned %r for %s, which the handler gets", passes, message.message_id())
        return True

    @property
    def may_have_more(self) -> bool:
        """True if the next poll may return something immediately."""
        return self._fetch is None and (self._first is not None or self.child.may_have_more())

    # --- ownership of dequeued messages -----------------------------------------------------------------------------

    def check_attachment(self) -> None:
        """Forget messages no handler has begun once the broker redelivers them."""
        if self.child.attachment != self._attachment:
            self._attachment = self.child.attachment
            # A topic that was made again has other schemas under the same versions.
            self._decoders.clear()
            self.drop_waiting()

    def check_right(self) -> None:
        """Forget messages no handler has begun when the broker may have redelivered them to another member
        (orderly).
        """
        self.check_attachment()
        if not self._broadcasting and (self.child.connection is None or self.child.is_active is False):
            self.drop_waiting()

    def drop_waiting(self) -> None:
        """Forget messages no handler has begun, which are redelivered."""
        if not self._broadcasting and self._is_stored:
            # It comes again behind those, and would be before them.
            self._first = None
            for item in self._let_go(self.queue.drop_waiting()):
                self._held.discard(_key_of(item.position))

    def _let_go(self, items: list[Item]) -> list[Item]:
        """Subtract messages that left the queue from the memory limit, and return them."""
        if self._memory is not None and items:
            self._memory.release_received(sum(item.size for item in items))
        return items

    def holds(self, item: Item) -> bool:
        """Return True if a message is still ours. Thread-safe."""
        return self.queue.holds(item)

    # --- finished messages ------------------------------------------------------------------------------------------

    def finish(self, items: Iterable[Item], *, acknowledge: bool = True) -> int:
        """Remove finished messages and acknowledge them; return how many were still ours."""
        done = self._let_go(self.queue.finish(items))
        for item in done:
            self._held.discard(_key_of(item.position))
            if acknowledge:
                self._acknowledge(item.position)
        return len(done)

    def _acknowledge(self, message: Message) -> None:
        # A broadcasting member stores its offsets itself; the broker has none for it.
        if not self._broadcasting and self.child.is_alive:
            self.child.acknowledge_message(message)

    def moved(self, place: MessageId | None) -> None:
        """Forget everything: the partition is read from another position on."""
        self._let_go(self.queue.clear())
        self.queue.begin_at(None)
        self._held.clear()
        self._first = None
        self._ascending = Ascending() if self._broadcasting else None
        self.start = place

    @property
    def position(self) -> MessageId | None:
        """Position up to which everything is done, None when nothing is yet and no start is known."""
        message = self.queue.done_up_to
        return self.start if message is None else message.message_id()

    @property
    def oldest(self) -> MessageId | None:
        """Lowest unfinished position, None when everything is done."""
        item = self.queue.oldest()
        return None if item is None else item.position.message_id()

    def topic_of(self, message: Message) -> TopicName:
        """Return the topic a message was published to; for one of the retry topic, its original topic."""
        origin = self._origin(message) if self.is_retry or self.sharing else None
        return self.child.topic if origin is None else origin

    def _origin(self, message: Message) -> TopicName | None:
        """Return the original topic of a message of the retry topic, None for one that was not sent back."""
        # Any producer may have written the property: an invalid topic name is ignored.
        with contextlib.suppress(PulsarException):
            return TopicName.parse(message.properties().get(REAL_TOPIC, ""))
        return None

    def stop(self) -> None:
        """Stop the background tasks of this partition."""
        if self._fetch is not None:
            self._fetch.cancel()
        # Messages handlers still have do not count any more.
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.release_received(self.queue.bytes)


def _is_encrypted_batch(message: Message) -> bool:
    """Return True for a batch that is handed over encrypted (CONSUME): which tags its messages have is unknown."""
    context = message.encryption_context()
    return context is not None and context.is_decryption_failed() and context.batch_size() != -1


def _key_of(message: Message) -> _Key:
    entry = message.entry
    return (entry.ledger_id, entry.entry_id, message.batch_index)
