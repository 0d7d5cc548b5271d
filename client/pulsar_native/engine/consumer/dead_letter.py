"""Dead-letter router of a consumer: producers for the dead-letter and retry topics, and the copies sent to them.

Rules: a producer is created with the first copy that needs it, one for each schema the originals were written with, so
that a copy keeps its schema, and again after an attachment: a version may stand for another schema then. A payload that
does not fit its schema is copied like any other, as nothing is decoded. The original is acknowledged when its copy is
stored, and not before; when the copy fails, the original is redelivered. Nothing here blocks a thread that receives. On
the loop, except where said.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import string
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from pulsar_native._loggers import get_logger
from pulsar_native.config import ConsumerConfig, DeadLetterPolicy, ProducerConfig
from pulsar_native.engine.client_context import ClientContext
from pulsar_native.engine.consumer.ack_receipts import Done, completing
from pulsar_native.engine.consumer.consumer_context import ConsumerContext
from pulsar_native.engine.handler import State
from pulsar_native.engine.loop import gather, wait_for_shared
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.exceptions import AlreadyClosed, PulsarException, TopicNotFound
from pulsar_native.message import Message, OutgoingMessage, copied_key
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.backoff import Backoff
from pulsar_native.protocol.dead_letter import (
    DEFAULT_MAX_RECONSUME_TIMES,
    DeadLetterTracker,
    Verdict,
    dead_letter_topic,
    letter_properties,
    next_try,
    old_dead_letter_topic,
    old_retry_letter_topic,
    retry_letter_topic,
)
from pulsar_native.protocol.entry_decoder import Decoded
from pulsar_native.schema.base import Schema
from pulsar_native.schema.info import SchemaInfo
from pulsar_native.topic import TopicName
from pulsar_native.wire.codec import encode_single_fields
from pulsar_native.wire.entry import EntryKey

_log = get_logger("pulsar_native.consumer")

Acknowledge = Callable[[Message, Done], None]
Dead = list[tuple[EntryKey, Decoded]]

_ALPHANUMERIC = string.ascii_letters + string.digits
# Delays between attempts to send dead letters that fail, in seconds.
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 60.0


async def with_retry_topic(
    client: ClientContext, topics: list[TopicName], config: ConsumerConfig
) -> tuple[list[TopicName], ConsumerConfig]:
    """Return the topics extended by the retry topic, and the configuration with the names of retry and dead-letter
    topic.

    The names derive from the first topic. Those of clients before 2.8 are used where such a topic exists.
    """
    given = config.dead_letter_policy or DeadLetterPolicy(max_redeliver_count=DEFAULT_MAX_RECONSUME_TIMES)
    first, subscription = topics[0], config.subscription_name
    retry, dead = given.retry_letter_topic, given.dead_letter_topic
    if retry is None:
        old = old_retry_letter_topic(first, subscription)
        retry = old if await _exists(client, old) else retry_letter_topic(first.full, subscription)
    if dead is None:
        old = old_dead_letter_topic(first, subscription)
        dead = old if await _exists(client, old) else dead_letter_topic(first.full, subscription)
    policy = given.replace(retry_letter_topic=retry, dead_letter_topic=dead)
    names = list(dict.fromkeys([*topics, TopicName.parse(retry)]))
    return names, config.replace(dead_letter_policy=policy)


async def _exists(client: ClientContext, topic: str) -> bool:
    try:
        await client.topic_partition_count(topic, auto_create=False)
    except TopicNotFound:
        return False
    return True


class _AsWritten(Schema[bytes]):
    """A schema as registered, for payloads that were encoded with it before."""

    def __init__(self, info: SchemaInfo) -> None:
        self._info = info

    def encode(self, obj: bytes) -> bytes:
        """Return the bytes unchanged, whether they fit the schema or not."""
        return obj

    def decode(self, data: bytes) -> bytes:
        """Return the bytes unchanged."""
        return data


class DeadLetterClient(ClientContext, Protocol):
    """Client of a consumer with a dead-letter topic."""

    async def create_producer(self, config: ProducerConfig, schema: Schema[Any] | None) -> TopicProducer: ...
    def count_dead_letter(self, topic: TopicName, subscription_name: str) -> None: ...


class EntryAcks(Protocol):
    """Acknowledgements of a consumer's entries."""

    def add(self, key: EntryKey, batch_index: int, batch_size: int) -> None: ...
    def still_open(self, decoded: Decoded) -> list[Message]: ...


class DeadLetterRouter:
    """Dead-letter router of a partition's consumer."""

    def __init__(
        self,
        context: ConsumerContext,
        policy: DeadLetterPolicy,
        client: DeadLetterClient,
        redeliver: Callable[[list[EntryKey]], None],
    ) -> None:
        self._context = context
        self._client = client
        self._redeliver = redeliver
        # Tracker of the same consumer, which sets this when it is created.
        self.acks: EntryAcks
        self._policy = policy
        subscription = context.config.subscription_name
        self.dead_letter_topic = policy.dead_letter_topic or dead_letter_topic(context.topic.full, subscription)
        self.retry_letter_topic = policy.retry_letter_topic or retry_letter_topic(context.topic.full, subscription)
        self._dead: DeadLetterTracker[Decoded] = DeadLetterTracker(policy.max_redeliver_count)
        self._producers: dict[tuple[str, bytes | None], asyncio.Task[TopicProducer]] = {}
        # Those with a schema of the attachment before.
        self._outdated: set[tuple[str, bytes | None]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        # Timers that give failed entries back for another try.
        self._later: list[asyncio.TimerHandle] = []
        self._backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY, random.random)
        self._closed = False

    # --- bookkeeping (under the consumer's lock, any thread) --------------------------------------------------------

    def should_redirect(self, decoded: Decoded) -> bool:
        """Return True if the entry exceeded `max_redeliver_count` and goes to the dead-letter topic instead."""
        entry = decoded.entry
        verdict = self._dead.delivered(entry.key, entry.redelivery_count, decoded)
        engine = self._context.engine
        if verdict is Verdict.SEND:
            engine.call(self._send_dead, [(entry.key, decoded)])
        elif verdict is Verdict.ACKNOWLEDGE:
            # Not immediately: the lock it needs is held here.
            engine.call(engine.loop.call_soon, self.acks.add, entry.key, -1, 0)
        return verdict is not Verdict.GIVE

    def split_dead(self, entries: list[EntryKey]) -> list[EntryKey]:
        """Send those of the entries to redeliver that reached the limit to the dead-letter topic; return the others."""
        dead, others = self._dead.refused(entries)
        if dead:
            self._context.engine.call(self._send_dead, dead)
        return others

    def acknowledged(self, entry: EntryKey) -> None:
        """Remove an entry that the application acknowledged."""
        self._dead.acknowledged(entry)

    def reattached(self) -> None:
        """Forget entries at their last delivery, but not dead letters in transit, and which schemas versions are."""
        self._outdated.update(key for key in self._producers if key[1] is not None)
        self._dead.reattached(time.monotonic())

    def on_seek(self) -> None:
        """Forget all entries: the subscription was moved."""
        self._dead.on_seek()

    # --- dead letters -------------------------------------------------------------------------------------------------

    def _send_dead(self, dead: Dead) -> None:
        """Send entries to the dead-letter topic, in the background."""
        if not self._closed:
            self._spawn(self._send_all_dead(dead))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._context.engine.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_all_dead(self, dead: Dead) -> None:
        failed = [
            key for key in await asyncio.gather(*(self._send_dead_entry(*each) for each in dead)) if key is not None
        ]
        if not failed:
            self._backoff.reset()
            return
        loop = self._context.engine.loop
        # They count as in transit meanwhile: redeliveries of them are dropped.
        later = loop.call_later(self._backoff.next(loop.time()), self._give_back, failed)
        self._later = [*(each for each in self._later if each.when() > loop.time()), later]

    async def _send_dead_entry(self, key: EntryKey, decoded: Decoded) -> EntryKey | None:
        """Send the open messages of an entry and acknowledge it; return it when that failed."""
        messages = self.acks.still_open(decoded)
        outcomes = await asyncio.gather(*(self.send_to_dlq(message) for message in messages), return_exceptions=True)
        failure = next((each for each in outcomes if isinstance(each, BaseException)), None)
        if failure is None:
            with self._context.lock:
                self._dead.arrived(key, time.monotonic())
            # The size, so that statistics count all its messages.
            self.acks.add(key, -1, decoded.entry.batch_size)
            return None
        if not isinstance(failure, Exception):
            raise failure
        for message, outcome in zip(messages, outcomes, strict=True):
            if not isinstance(outcome, BaseException):
                # Its copy is stored: only the rest of the batch is redelivered.
                self.acks.add(key, message.batch_index, message.entry.batch_size)
        _log.warning(
            "%s: cannot send %d:%d to the dead-letter topic %s, it is redelivered: %s",
            self._context.describe(), *key, self.dead_letter_topic, failure,
            exc_info=None if isinstance(failure, PulsarException) else failure,
        )  # fmt: skip
        return key

    def _give_back(self, failed: list[EntryKey]) -> None:
        context = self._context
        with context.lock:
            for key in failed:
                self._dead.failed(key)
        if context.is_alive():
            self._redeliver(failed)

    async def send_to_dlq(self, message: Message) -> MessageId:
        """Send a copy of a message to the dead-letter topic; the caller acknowledges the original."""
        return await self._copy(message, self.dead_letter_topic, self._properties(message, None), None)

    # --- retry topic ------------------------------------------------------------------------------------------------

    async def reconsume_later(
        self, message: Message, delay_ms: int, properties: Mapping[str, str] | None, acknowledge: Acknowledge
    ) -> None:
        """Send a copy of a message to the retry topic and acknowledge the original; on failure it is redelivered."""
        copying = self.send_again(message, delay_ms, properties)
        # When it is cancelled, too: the copy may have been stored.
        await self._context.engine.shield(self._replace(message, copying, acknowledge))

    async def _replace(
        self, message: Message, copying: Coroutine[Any, Any, MessageId], acknowledge: Acknowledge
    ) -> None:
        context = self._context
        try:
            context.check_usable()
            await copying
        except BaseException:
            copying.close()
            if context.is_alive():
                self._redeliver([(message.entry.ledger_id, message.entry.entry_id)])
            raise
        done: asyncio.Future[None] = context.engine.loop.create_future()
        acknowledge(message, completing(done))
        await done

    async def send_again(self, message: Message, delay_ms: int, properties: Mapping[str, str] | None) -> MessageId:
        """Send a copy to the retry topic, or to the dead-letter topic after the last try.

        The caller acknowledges the original.
        """
        again = next_try(self._properties(message, properties), delay_ms, self._policy.max_redeliver_count)
        if again.is_dead:
            return await self._copy(message, self.dead_letter_topic, again.properties, None)
        deliver_at = time.time_ns() // 1_000_000 + delay_ms if delay_ms else None
        return await self._copy(message, self.retry_letter_topic, again.properties, deliver_at)

    def _properties(self, message: Message, additional: Mapping[str, str] | None) -> dict[str, str]:
        made = letter_properties(
            message.properties(),
            topic=message.topic_name(),
            message_id=message.message_id(),
            subscription=self._context.config.subscription_name,
        )
        return {**made, **(additional or {})}

    # --- copies -------------------------------------------------------------------------------------------------------

    async def _copy(
        self, message: Message, topic: str, properties: dict[str, str], deliver_at: int | None
    ) -> MessageId:
        producer = await self._producer(topic, message)
        outgoing = _outgoing(message, properties, deliver_at)
        fields = encode_single_fields(
            properties,
            outgoing.partition_key,
            outgoing.key_is_base64,
            message.ordering_key_bytes(),
            outgoing.event_timestamp or 0,
            outgoing.null_value,
            outgoing.null_partition_key,
        )
        child = producer.route(outgoing.payload, outgoing)
        future: asyncio.Future[MessageId] = self._context.engine.loop.create_future()

        def done(error: PulsarException | None, message_id: MessageId | None) -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(message_id)  # type: ignore[arg-type]

        while (full := child.enqueue(outgoing.payload, fields, outgoing, done)) is not None:
            await self._room(full.wait_for_room)
        message_id = await future
        if topic == self.dead_letter_topic:
            self._client.count_dead_letter(self._context.topic, self._context.config.subscription_name)
        return message_id

    async def _room(self, wait_for_room: Callable[[Callable[[], None]], None]) -> None:
        released = asyncio.Event()
        # Called in the thread that releases the memory.
        wait_for_room(lambda: self._context.engine.call(released.set))
        await released.wait()

    async def _producer(self, topic: str, message: Message) -> TopicProducer:
        if self._closed:
            raise AlreadyClosed("The consumer is closed", topic=self._context.topic.full)
        key = (topic, message.schema_version_bytes())
        task = self._producers.get(key)
        if task is not None and task.done() and (key in self._outdated or not _is_usable(task)):
            self._close_replaced(task)
            task = None
        if task is None:
            self._outdated.discard(key)
            task = self._context.engine.spawn(self._open(*key))
            self._producers[key] = task
        return await wait_for_shared(task)

    def _close_replaced(self, task: asyncio.Task[TopicProducer]) -> None:
        """Close a producer that is not used any more, if there is one: its other partitions may be open."""
        if (producer := _opened_by(task)) is not None:
            self._spawn(_close(producer))

    async def _open(self, topic: str, version: bytes | None) -> TopicProducer:
        client = self._client
        schema = None
        if version is not None:
            with contextlib.suppress(TopicNotFound):
                info = await client.writer_schema(self._context.topic.full, version)
                schema = _AsWritten(info)
        return await client.create_producer(self._config_of(topic), schema)

    def _config_of(self, topic: str) -> ProducerConfig:
        policy = self._policy
        options: dict[str, Any] = {"batching_enabled": False, "block_if_queue_full": False}
        chosen = policy.dead_letter_producer_options
        if topic == self.dead_letter_topic:
            context = self._context
            mark = "".join(random.choices(_ALPHANUMERIC, k=5))
            name = f"{context.topic.full}-{context.config.subscription_name}-{context.name}-{mark}-DLQ"
            options["producer_name"] = name
            options["initial_subscription_name"] = policy.initial_subscription_name
        else:
            chosen = policy.retry_letter_producer_options
        options.update(chosen)
        # A message received in chunks must fit; chunking and batching exclude each other.
        chunks = not options["batching_enabled"] and TopicName.parse(topic).is_persistent
        return ProducerConfig.from_mapping({"chunking_enabled": chunks, **options, "topic": topic})

    # --- end ----------------------------------------------------------------------------------------------------------

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` for copies in transit."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=seconds)

    async def close(self, seconds: float) -> None:
        """Wait for copies in transit, and close the producers, all within `seconds`."""
        loop = self._context.engine.loop
        deadline = loop.time() + seconds
        await self.drain(seconds)
        self._closed = True
        left = max(0.0, deadline - loop.time())
        await gather(producer.close(left) for producer in self._opened())

    def abandon(self) -> None:
        """Close without a message to the broker."""
        self._closed = True
        for later in self._later:
            later.cancel()
        self._later.clear()
        for task in [*self._tasks, *self._producers.values()]:
            if not task.done():
                task.cancel()
        for producer in self._opened():
            producer.abandon()
        self._producers.clear()

    def _opened(self) -> list[TopicProducer]:
        opened = [_opened_by(task) for task in self._producers.values()]
        return [producer for producer in opened if producer is not None]


def _opened_by(task: asyncio.Task[TopicProducer]) -> TopicProducer | None:
    """Return the producer a task has created, None when there is none."""
    return None if not task.done() or task.cancelled() or task.exception() is not None else task.result()


def _is_usable(task: asyncio.Task[TopicProducer]) -> bool:
    """Return True if a producer exists and still works: one of a terminated topic, say, is created again."""
    producer = _opened_by(task)
    return producer is not None and all(child.state in (State.READY, State.CONNECTING) for child in producer.children)


async def _close(producer: TopicProducer) -> None:
    """Close a producer that may still be sending; when that is cancelled, without the broker's response."""
    try:
        # With a time limit a lost connection is waited for.
        await producer.close(producer.client.config.operation_timeout_seconds)
    finally:
        producer.abandon()


def _outgoing(message: Message, properties: dict[str, str], deliver_at: int | None) -> OutgoingMessage:
    key, key_is_base64 = copied_key(message)
    return OutgoingMessage(
        message.data(),
        properties=properties,
        partition_key=key,
        key_is_base64=key_is_base64,
        ordering_key=message.ordering_key_bytes(),
        event_timestamp=message.event_timestamp() or None,
        deliver_at=deliver_at,
        null_value=message.has_null_value(),
        null_partition_key=message.has_null_partition_key(),
    )
