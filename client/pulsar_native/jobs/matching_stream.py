"""Endless stream of a durable subscription's messages that match, on the caller's loop, each settled on its own.

For programs that store something for each message: a message is acknowledged after `acknowledge`, redelivered after
`redeliver`, and published as a dead letter by `dead_letter`. Rules: messages that do not match are acknowledged at
once. Those that cannot be decoded become dead letters, acknowledged when the broker has stored the letter. No more than
`receiver_queue_size` messages are unsettled, and the broker is granted permits for as many. The stream never ends by an
error of the broker: it reconnects, and by other settings if those it has are outdated. `initial_position` is that of
the first connection to a cluster: where the subscription is missing later, as in a topic that was made again, it begins
at the first message. Nothing here blocks the loop; a plain function as a predicate runs in a thread. What was decrypted
is published nowhere: such a message becomes no dead letter, it stays unacknowledged.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs import validation
from pulsar_native.jobs.async_iteration import is_generator
from pulsar_native.jobs.batch import metadata_of
from pulsar_native.jobs.codecs import WriterSchema, decode
from pulsar_native.jobs.consume_options import DECODERS
from pulsar_native.jobs.dead_letters import (
    PRODUCER_OPTIONS,
    DeadLetterOptions,
    check_persistent,
    copied_options,
    dead_letter_properties,
)
from pulsar_native.jobs.failures import explain, reason_of
from pulsar_native.jobs.first_subscription import FirstSubscription
from pulsar_native.jobs.matched_value import matched_value
from pulsar_native.jobs.matching import MessageMatch
from pulsar_native.jobs.message_event import DEFAULT_LIMIT_BYTES, PAYLOADS, event_of
from pulsar_native.jobs.private_keys import checked_paths, readable_key_reader_of

if TYPE_CHECKING:
    from pulsar_native import InitialPosition, Message
    from pulsar_native.asyncio import Client, Consumer, Producer
    from pulsar_native.crypto import KeyReader
    from pulsar_native.jobs.interfaces import StreamLog

POSITIONS = ("latest", "earliest")
Predicate = Callable[[Mapping[str, Any]], "bool | Awaitable[bool]"]

# The loop is given to others after so many messages, even if more are there.
_TURN = 32
_CLOSE_SECONDS = 5
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
# Interval of warnings of one kind, and of errors.
_LOG_SECONDS, _ERROR_SECONDS = 10, 60
# Interval of the questions whether a consumer without connection has outdated settings, and a missing topic exists.
_CHECK_SECONDS = 30.0
_REDELIVERY_MS = (1_000, 60_000)
_NO_MATCH = object()


@dataclass(frozen=True)
class StreamOptions:
    """Subscription, decoding and events of a stream. Raises ValueError, with the name of the field.

    :param subscription: name of the Shared subscription; created if it does not exist.
    :param topics: topics, partitioned or not; exactly one of `topics` and `topic_pattern` is needed. Of several, those
        that do not exist are asked for every 30 s, and received from their first message on.
    :param topic_pattern: regular expression for whole names; tenant and namespace literally. The topics of the
        subscription's dead letters are left out: see `DeadLetterOptions.without_dead_letters`.
    :param initial_position: start of a subscription that does not exist when the stream begins: latest (default) or
        earliest.
    :param decode: auto (default: the schema each message was published with), json, text or bytes.
    :param payload: none, ids or value (default): see `message_event.event_of`.
    :param payload_limit_bytes: limit of an event as JSON. Default 16384, at least 1024.
    :param receiver_queue_size: limit of unsettled messages, and of prefetched ones. Default 200; 1 to 10000.
    :param max_redeliver_count: redeliveries of a message whose predicate fails, before it becomes a dead letter.
        Default 16.
    :param dead_letter_topic: default `TOPIC-SUBSCRIPTION-DLQ`. It gets a subscription of the same name as the stream's,
        and must not be one of the topics.
    :param properties: properties of the subscription, and of its consumer.
    :param private_keys: paths of the keys of encrypted messages, by the keys' names. Default none. A message that is
        not decrypted is not received, and stays unacknowledged.
    """

    subscription: str
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    initial_position: str = "latest"
    decode: str = "auto"
    payload: str = "value"
    payload_limit_bytes: int = DEFAULT_LIMIT_BYTES
    receiver_queue_size: int = 200
    max_redeliver_count: int = 16
    dead_letter_topic: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    private_keys: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validation.text("subscription", self.subscription)
        if bool(self.topics) == bool(self.topic_pattern):
            validation.refuse("exactly one of topic and topic_pattern is needed")
        for topic in self.topics:
            validation.text("topic", topic)
        if self.topic_pattern is not None:
            try:
                re.compile(validation.text("topic_pattern", self.topic_pattern))
            except re.error as error:
                validation.refuse(f"topic_pattern={self.topic_pattern!r} is not a regular expression: {error}")
        for name, allowed in (("initial_position", POSITIONS), ("decode", DECODERS), ("payload", PAYLOADS)):
            object.__setattr__(self, name, validation.choice(name, getattr(self, name), allowed))
        _whole("payload_limit_bytes", self.payload_limit_bytes, 1024)
        _whole("receiver_queue_size", self.receiver_queue_size, 1, maximum=10_000)
        _whole("max_redeliver_count", self.max_redeliver_count, 0)
        if self.dead_letter_topic is not None:
            check_persistent("dead_letter_topic", validation.text("dead_letter_topic", self.dead_letter_topic))
            self.dead_letters.check_apart(self.topics)
        object.__setattr__(self, "private_keys", checked_paths(self.private_keys))

    @property
    def dead_letters(self) -> DeadLetterOptions:
        """The topics of dead letters."""
        return DeadLetterOptions(
            self.subscription, self.dead_letter_topic, max_redeliver_count=self.max_redeliver_count
        )


Key = tuple[int, int, int, int]


@dataclass
class Delivery:
    """One message that is to be settled; the stream renews it when the broker delivers the message again."""

    message: Message
    consumer: Consumer[Any]

    @property
    def key(self) -> Key:
        """The message's id in its cluster."""
        return _key(self.message)


class MatchingStream:
    """Stream of the matching messages of one subscription. For one task at a time; settling may be another task's.

    :param connect: returns a client for the running loop; called at every (re)connection.
    :param match: conditions on messages; see `MessageMatch`.
    :param predicate: called with the record of a message that fulfils `match` (the fields of a JSONL output:
        value, encoding, key, properties, times, topic, message_id …); a false result is no match. May be a coroutine
        function. A message for which it raises is redelivered, and becomes a dead letter in the end.
    :param redact: removes secrets from the text of an exception of the predicate. Default: none is removed.
    :param is_outdated: returns True if `connect` would use other settings now: the stream reconnects then. Asked
        every 30 s while the consumer has no connection for one of its topics, since a client tries again by the same
        settings indefinitely. Default: never asked.
    :param log: takes one line per connection and per failure, at most one of each in ten seconds, and an error once a
        minute while messages that were encrypted cannot become dead letters.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Client]],
        options: StreamOptions,
        log: StreamLog,
        match: MessageMatch | None = None,
        predicate: Predicate | None = None,
        redact: Callable[[str], str] = str,
        is_outdated: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._connect = connect
        self._is_outdated = is_outdated
        self._options = options
        self._log = log
        self._match = match or MessageMatch()
        self._predicate = predicate
        self._redact = redact
        self._reads_value = options.payload == "value" or self._match.needs_value or predicate is not None
        self._client: Client | None = None
        self._key_reader: KeyReader | None = None
        self._subscription = FirstSubscription(options.initial_position)
        self._producers: dict[str, Producer[Any]] = {}
        self._unsettled: dict[Key, Delivery] = {}
        self._room = asyncio.Event()
        self._logged: dict[str, float] = {}
        self._next_check = 0.0
        # Topics of the list that do not exist yet.
        self._missing: list[str] = []

    # ---- receiving ---------------------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[tuple[dict[str, Any] | None, Delivery]]:
        """Yield the event of each matching message with its delivery, for ever; cancelling loses no message.

        A cancelled call leaves the connection to `aclose`, so that what was stored by then can still be acknowledged.
        """
        pause = _FIRST_PAUSE
        while True:
            started = time.monotonic()
            try:
                async with aclosing(self._connected()) as received:
                    async for pair in received:
                        yield pair
            except Exception as error:
                # Whatever fails here, the watcher goes on: an ended one would lose events without anybody noticing.
                text = explain(error, action=f"The subscription {self._options.subscription}", stage="receive")
                self._warn("connection", "%s; the next attempt follows in %.0f s", text, pause)
                await self._disconnect()
            if time.monotonic() - started > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)

    async def _connected(self) -> AsyncGenerator[tuple[dict[str, Any] | None, Delivery], None]:
        self._client = await self._connect()
        self._key_reader = await asyncio.to_thread(readable_key_reader_of, self._options.private_keys)
        consumer = await self._subscription.consumer(self._client, self._subscribe)
        self._next_check = time.monotonic() + _CHECK_SECONDS
        self._log.info(
            "Receiving from %s by the subscription %s", ", ".join(consumer.topics()), self._options.subscription
        )
        handled = 0
        while True:
            await self._wait_for_room()
            message = await self._next(consumer)
            if known := self._unsettled.get(_key(message)):
                # Delivered again by a reconnection, while its event is being stored.
                known.message, known.consumer = message, consumer
                continue
            event = await self._judged(message, consumer)
            if event is not _NO_MATCH:
                delivery = Delivery(message, consumer)
                self._unsettled[delivery.key] = delivery
                yield event, delivery
            handled += 1
            if handled % _TURN == 0:
                await asyncio.sleep(0)

    async def _next(self, consumer: Consumer[Any]) -> Message:
        """Return the next message; raises `NotConnected` where the stream is to connect again."""
        from pulsar_native.exceptions import Timeout

        if self._is_outdated is None and not self._missing:
            return await consumer.receive()
        while True:
            now = time.monotonic()
            # By the time, not after a silence: of several topics some may go on.
            if now >= self._next_check:
                self._next_check = now + _CHECK_SECONDS
                await self._check(consumer)
            with suppress(Timeout):
                return await consumer.receive(math.ceil(1000 * (self._next_check - now)))

    async def _check(self, consumer: Consumer[Any]) -> None:
        """Raise `NotConnected` for a consumer without connection and with old settings, or if a missing topic exists.

        A request that fails says nothing about a topic.
        """
        from pulsar_native import InitialPosition
        from pulsar_native.exceptions import NotConnected, PulsarException

        if self._is_outdated is not None and not consumer.is_connected() and await self._is_outdated():
            raise NotConnected("the consumer has no connection, and the settings have changed since")
        assert self._client is not None
        found: list[str] = []
        with suppress(PulsarException):
            for topic in self._missing:
                if await self._exists(self._client, topic, InitialPosition.Earliest):
                    found.append(topic)
        if found:
            raise NotConnected(f"{', '.join(found)} did not exist, and does now")

    async def _wait_for_room(self) -> None:
        while len(self._unsettled) >= self._options.receiver_queue_size:
            self._room.clear()
            await self._room.wait()

    async def _subscribe(
        self, client: Client, initial_position: InitialPosition, *, start_paused: bool
    ) -> Consumer[Any]:
        from pulsar_native import TopicNotFound

        topics, pattern = list(self._options.topics), self._options.topic_pattern
        self._missing = []
        if pattern is not None:
            wanted = self._options.dead_letters.without_dead_letters(re.compile(pattern))
            return await self._consumer(client, wanted, initial_position, start_paused=start_paused)
        try:
            return await self._consumer(client, topics, initial_position, start_paused=start_paused)
        except TopicNotFound:
            # Those that exist do not wait for the others.
            self._missing = [topic for topic in topics if not await self._exists(client, topic, initial_position)]
            there = [topic for topic in topics if topic not in self._missing]
            if not there or not self._missing:
                raise
        self._warn("missing", "There is no topic %s; asked again every %d s", ", ".join(self._missing), _CHECK_SECONDS)
        return await self._consumer(client, there, initial_position, start_paused=start_paused)

    async def _exists(self, client: Client, topic: str, initial_position: InitialPosition) -> bool:
        """Return True if a topic exists, which has the subscription then.

        A request for its partitions would not do: the broker knows no non-persistent topic that it has not loaded.
        """
        from pulsar_native import TopicNotFound

        try:
            consumer = await self._consumer(client, [topic], initial_position, start_paused=True)
        except TopicNotFound:
            return False
        await consumer.close()
        return True

    async def _consumer(
        self,
        client: Client,
        wanted: list[str] | re.Pattern[str],
        initial_position: InitialPosition,
        *,
        start_paused: bool,
    ) -> Consumer[Any]:
        from pulsar_native import ConsumerType, MultiplierRedeliveryBackoff

        options = self._options
        return await client.subscribe(
            wanted,
            options.subscription,
            ConsumerType.Shared,
            schema=WriterSchema() if self._reads_value and options.decode == "auto" else None,
            initial_position=initial_position,
            start_paused=start_paused,
            receiver_queue_size=options.receiver_queue_size,
            max_total_receiver_queue_size_across_partitions=options.receiver_queue_size,
            properties=dict(options.properties),
            subscription_properties=dict(options.properties),
            # Of a batch entry only the messages that were not settled are delivered again.
            batch_index_ack_enabled=True,
            # What it does not decrypt is not received, and stays in the subscription.
            crypto_key_reader=self._key_reader,
            negative_ack_redelivery_backoff=MultiplierRedeliveryBackoff(
                min_delay_ms=_REDELIVERY_MS[0], max_delay_ms=_REDELIVERY_MS[1]
            ),
        )

    # ---- one message -------------------------------------------------------------------------------------------------

    async def _judged(self, message: Message, consumer: Consumer[Any]) -> Any:
        """Return the event of a message that matches, or `_NO_MATCH` for one that was settled here."""
        if not self._match.matches_metadata(message):
            await consumer.acknowledge(message)
            return _NO_MATCH
        decoded: tuple[Any, str] | None = None
        try:
            tested = None
            if self._reads_value:
                decoded = decode(message, self._options.decode)
                tested = matched_value(message, decoded) if self._match.needs_value else None
            event = event_of(message, self._options.payload, decoded, self._options.payload_limit_bytes)
        except Exception as error:
            # A decoder may raise any exception for unexpected bytes.
            await self._bury(message, consumer, error)
            return _NO_MATCH
        try:
            matches = self._match.matches_value(tested) and await self._predicted(message, decoded)
        except Exception as error:
            await self._failed(message, consumer, error)
            return _NO_MATCH
        if not matches:
            await consumer.acknowledge(message)
            return _NO_MATCH
        return event

    async def _predicted(self, message: Message, decoded: tuple[Any, str] | None) -> bool:
        if self._predicate is None:
            return True
        assert decoded is not None
        record = {"value": decoded[0], "encoding": decoded[1], **metadata_of(message)}
        try:
            if inspect.iscoroutinefunction(self._predicate):
                result = self._predicate(record)
            else:
                result = await asyncio.to_thread(_called, self._predicate, record)
            if inspect.isawaitable(result):
                result = await result
            if is_generator(result):
                raise TypeError("the predicate is a generator function, of which nothing has run")
            return bool(result)
        except BaseException as error:
            if not _is_of_caller(error):
                _raise_ordinary(error)
            raise

    def _reason(self, error: Exception) -> str:
        return reason_of(error, self._redact)

    async def _failed(self, message: Message, consumer: Consumer[Any], error: Exception) -> None:
        if message.redelivery_count() >= self._options.max_redeliver_count:
            await self._bury(message, consumer, error)
            return
        self._warn("match", "Matching %s failed; it is redelivered: %s", _place(message), self._reason(error))
        await consumer.negative_acknowledge(message)

    async def _bury(self, message: Message, consumer: Consumer[Any], cause: Exception | None) -> None:
        """Publish a message as a dead letter and acknowledge it; where that fails it is redelivered.

        So is one that was encrypted: nothing would be encrypted in the dead-letter topic.
        """
        from pulsar_native.exceptions import PulsarException

        why = "it was rejected" if cause is None else self._reason(cause)
        if message.encryption_context() is not None:
            if self._is_due("encrypted", _ERROR_SECONDS):
                self._log.error(
                    "%s was encrypted, and would not be as a dead letter: it is not published, stays unacknowledged, "
                    "and is redelivered: %s",
                    *(_place(message), why),
                )
            await consumer.negative_acknowledge(message)
            return
        try:
            topic = await self._publish_dead_letter(message, cause)
        except (PulsarException, OSError) as error:
            text = explain(error, action=f"The dead letter of {_place(message)}", stage="publish")
            self._warn("letter", "%s; the message is redelivered", text)
            await consumer.negative_acknowledge(message)
            return
        self._warn("buried", "%s went to %s: %s", _place(message), topic, why)
        await consumer.acknowledge(message)

    async def _publish_dead_letter(self, message: Message, cause: Exception | None) -> str:
        options = self._options.dead_letters
        topic = options.dead_topic(options.source_of(message))
        producer = self._producers.get(topic)
        if producer is None:
            producer = self._producers[topic] = await self._dead_letter_producer(topic)
        payload = None if message.has_null_value() else message.data()
        parts = dead_letter_properties(message, options.subscription, cause, self._redact)
        await producer.send(payload, properties=parts, **copied_options(message))
        return topic

    async def _dead_letter_producer(self, topic: str) -> Producer[Any]:
        from pulsar_native import ConsumerBusy, ConsumerType, InitialPosition

        assert self._client is not None
        # A broker without retention drops messages of a topic without a subscription. Busy: it exists, and others
        # consume from it.
        with suppress(ConsumerBusy):
            subscription = await self._client.subscribe(
                topic,
                self._options.subscription,
                ConsumerType.Shared,
                initial_position=InitialPosition.Earliest,
                receiver_queue_size=1,
            )
            await subscription.close()
        return await self._client.create_producer(topic, **PRODUCER_OPTIONS)

    # ---- settling ----------------------------------------------------------------------------------------------------

    async def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge a message; does not wait for the broker. On a closed connection it will be redelivered."""
        self._settled(delivery)
        from pulsar_native.exceptions import PulsarException

        with suppress(PulsarException):
            await delivery.consumer.acknowledge(delivery.message)

    async def redeliver(self, delivery: Delivery) -> None:
        """Have a message redelivered after 1 s, later after up to a minute."""
        self._settled(delivery)
        from pulsar_native.exceptions import PulsarException

        with suppress(PulsarException):
            await delivery.consumer.negative_acknowledge(delivery.message)

    async def dead_letter(self, delivery: Delivery, cause: Exception | None = None) -> None:
        """Publish a message as a dead letter and acknowledge it; one that was encrypted is redelivered instead."""
        self._settled(delivery)
        from pulsar_native.exceptions import PulsarException

        with suppress(PulsarException):
            await self._bury(delivery.message, delivery.consumer, cause)

    def _settled(self, delivery: Delivery) -> None:
        if self._unsettled.get(delivery.key) is delivery:
            del self._unsettled[delivery.key]
        self._room.set()

    async def aclose(self) -> None:
        """Close the connection; unsettled messages are redelivered to another consumer of the subscription."""
        await self._disconnect()
        self._unsettled.clear()

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        self._producers.clear()
        if client is None:
            return
        try:
            # Sends the last acknowledgements.
            async with asyncio.timeout(_CLOSE_SECONDS):
                await client.close(timeout=_CLOSE_SECONDS)
        except Exception:
            client.shutdown()

    def _warn(self, kind: str, text: str, *args: object) -> None:
        if self._is_due(kind, _LOG_SECONDS):
            self._log.warning(text, *args)

    def _is_due(self, kind: str, seconds: float) -> bool:
        """Return True, and note the time, if nothing of this kind was logged for so many seconds."""
        now = time.monotonic()
        if now - self._logged.get(kind, -seconds) < seconds:
            return False
        self._logged[kind] = now
        return True


def _key(message: Message) -> Key:
    found = message.message_id()
    return found.ledger_id(), found.entry_id(), found.partition(), found.batch_index()


def _called(predicate: Predicate, record: Mapping[str, Any]) -> Any:
    """Return a predicate's result; see `_raise_ordinary` for its exceptions."""
    try:
        return predicate(record)
    except BaseException as error:
        _raise_ordinary(error)
        raise


def _raise_ordinary(error: BaseException) -> None:
    """Raise a RuntimeError in place of an exception that has another meaning to Python or asyncio."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return
    what = "called sys.exit" if isinstance(error, SystemExit) else f"raised {type(error).__name__}"
    raise RuntimeError(f"the predicate {what}") from error


def _is_of_caller(error: BaseException) -> bool:
    """Return True for a cancellation of the running task, and for the close of the coroutine that calls this."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    # A close raises in the caller's own frame; what a predicate raises has its frames, too.
    traceback = error.__traceback__
    return isinstance(error, GeneratorExit) and traceback is not None and traceback.tb_next is None


def _whole(name: str, value: object, minimum: int, *, maximum: float = math.inf) -> None:
    validation.number(name, value, minimum, maximum=maximum)
    if not isinstance(value, int):
        validation.refuse(f"{name} must be a whole number, not {value!r}")


def _place(message: Message) -> str:
    return f"the message {message.message_id()} of {message.topic_name()}"
