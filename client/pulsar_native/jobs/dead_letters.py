"""Dead letters and retry letters of a job: copies of messages that could not be handled, with their origin.

Rules: topics and properties have the Java client's names. A letter is held until `flush`, which returns when the broker
has stored it, so that the original is acknowledged afterwards. A dead-letter topic gets a subscription before its first
letter, since a broker without retention drops messages without a subscription. A message is never copied to the topic
that it is in, and a pattern leaves out the topics of its subscription's own copies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs import validation
from pulsar_native.jobs.failures import JobFailed, text_of
from pulsar_native.jobs.json_values import encodable

if TYPE_CHECKING:
    from pulsar_native import Client, Message, MessageId, Producer
    from pulsar_native.topic import TopicName

_HELD_BYTES = 8 * 1024 * 1024
_CAUSE_LENGTH = 1000
# A copy has more properties than its message, which may have the largest size already, or more in chunks. Chunking and
# batching exclude each other.
PRODUCER_OPTIONS: dict[str, Any] = {"batching_enabled": False, "chunking_enabled": True}
"""Options of the producers of dead letters and retry letters."""

# Domain of a pattern, and tenant and namespace, literally.
_DOMAINS = ("", "persistent://", "non-persistent://")
_NAMESPACE = re.compile(r"[-=:.\w]+/[-=:.\w]+", re.ASCII)


@dataclass(frozen=True)
class DeadLetterOptions:
    """Topics of dead letters and retry letters; the defaults are `{topic}-{subscription}-DLQ` and `…-RETRY`.

    Topics that are not persistent raise ValueError, as does one topic for both.
    """

    subscription: str
    dead_letter_topic: str | None = None
    retry_letter_topic: str | None = None
    max_redeliver_count: int = 16
    retry_delay_seconds: float = 60
    initial_subscription_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("dead_letter_topic", "retry_letter_topic"):
            if (topic := getattr(self, name)) is not None:
                check_persistent(name, topic)
        dead, retry = self.dead_letter_topic, self.retry_letter_topic
        if dead is not None and retry is not None and _base(dead) == _base(retry):
            validation.refuse(
                f"dead_letter_topic={dead!r} and retry_letter_topic={retry!r} are the same topic: dead letters would "
                "be received again"
            )

    def check_apart(self, topics: Sequence[str]) -> None:
        """Raise ValueError for a dead-letter or retry topic, given by name, that is one of the topics consumed."""
        consumed = {_base(topic): topic for topic in topics}
        for name in ("dead_letter_topic", "retry_letter_topic"):
            given = getattr(self, name)
            if given is not None and (topic := consumed.get(_base(given))) is not None:
                validation.refuse(
                    f"{name}={given!r} is also a topic that is consumed ({topic}): its messages would be copied into "
                    "the topic they are in; name another one, or leave it out"
                )

    def without_dead_letters(self, pattern: re.Pattern[str]) -> re.Pattern[str]:
        """Return a topic pattern without the topics of this subscription's dead letters and retry letters.

        Those of other names than the default are left out, too. A pattern that itself names `-DLQ` or `-RETRY` is for
        these topics, and only the topics of dead letters of dead letters are left out. The broker lists all topics of
        the namespace, which are matched in the client.
        """
        domain, namespace, whole = _parts(pattern.pattern)
        if domain not in _DOMAINS or not _NAMESPACE.fullmatch(namespace) or not whole.startswith(f"{namespace}/"):
            # The client refuses it by a clear error.
            return pattern
        times = 2 if "-DLQ" in whole or "-RETRY" in whole else 1
        names = [f".*(?:-{re.escape(self.subscription)}-(?:DLQ|RETRY)){{{times}}}"]
        for given in (self.dead_letter_topic, self.retry_letter_topic):
            if given is not None and (topic := _parsed(given).base).namespace == namespace:
                names.append(re.escape(topic.local_name))
        # The pattern as a whole begins before the namespace: its alternatives need not be in a group. A line break ends
        # a comment of a verbose one.
        end = "\n" if pattern.flags & re.VERBOSE else ""
        return re.compile(
            f"{domain}{namespace}/(?<=(?=(?:{whole}{end})\\Z){namespace}/)"
            f"(?-i:(?!(?:{'|'.join(names)})(?:-partition-[0-9]+)?\\Z)).*",
            # No effect on names. With a flag the client sends no pattern to the broker, which may know no assertions.
            pattern.flags | re.DOTALL,
        )

    def source_of(self, message: Message) -> str:
        """Return the topic that a message's copies are named after: its own, or of a retry letter the first one."""
        from pulsar_native.exceptions import InvalidTopicName

        own, first = message.topic_name(), message.properties().get("REAL_TOPIC")
        if first is not None:
            # Anybody may have set the property.
            with suppress(InvalidTopicName):
                if _base(self.retry_topic(first)) == _base(own):
                    return _base(first)
        return own

    def dead_topic(self, topic: str) -> str:
        """Return the dead-letter topic of a topic."""
        return self.dead_letter_topic or f"{_base(topic)}-{self.subscription}-DLQ"

    def retry_topic(self, topic: str) -> str:
        """Return the retry topic of a topic."""
        return self.retry_letter_topic or f"{_base(topic)}-{self.subscription}-RETRY"

    def retry_topics(self, topics: Sequence[str]) -> list[str]:
        """Return the retry topics of topics, without duplicates."""
        if self.retry_letter_topic is not None:
            return [self.retry_letter_topic]
        return list(dict.fromkeys(self.retry_topic(topic) for topic in topics))


def check_persistent(name: str, topic: str) -> None:
    """Raise ValueError for a dead-letter or retry topic, the value of option `name`, that is not persistent."""
    if not _parsed(topic).is_persistent:
        validation.refuse(
            f"{name}={topic!r} is not persistent: a message is acknowledged once it is sent there, and would be lost; "
            "use a persistent topic"
        )


def _parts(pattern: str) -> tuple[str, str, str]:
    """Return the domain of a topic pattern, its tenant and namespace, and the pattern without the domain."""
    domain, separator, whole = pattern.removeprefix("^").partition("://")
    if not separator:
        domain, whole = "", domain
        if "/" not in whole:
            whole = f"public/default/{whole}"
    return domain + separator, "/".join(whole.split("/", 2)[:2]), whole


def _base(topic: str) -> str:
    return _parsed(topic).base.full


def _parsed(topic: str) -> TopicName:
    from pulsar_native.topic import TopicName

    return TopicName.parse(topic)


@dataclass(frozen=True)
class _DeadLetter:
    message: Message
    cause: BaseException | None
    retry: bool


class DeadLetterPublisher:
    """Publisher of dead letters and retry letters. Blocks in `flush`; not thread-safe."""

    def __init__(
        self, client: Callable[[], Client], options: DeadLetterOptions, redact: Callable[[str], str] = str
    ) -> None:
        """Create it; the client is used at the first publication; `redact` removes secrets from the text of a cause."""
        self._client = client
        self._options = options
        self._redact = redact
        self._held: list[_DeadLetter] = []
        self._bytes = 0
        self._producers: dict[str, Producer] = {}

    def add(self, message: Message, cause: BaseException | None, *, retry: bool) -> None:
        """Queue a letter; publishes the queue when it is large."""
        self._held.append(_DeadLetter(message, cause, retry))
        self._bytes += len(message)
        if self._bytes >= _HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Publish the queue and wait until the broker has stored it; raises `JobFailed` if a letter is not."""
        held, self._held, self._bytes = self._held, [], 0
        failed: list[str] = []
        for letter in held:
            self._send(letter, failed)
        for producer in self._producers.values():
            producer.flush()
        if failed:
            raise JobFailed(f"{len(failed)} of {len(held)} dead letters were not stored; the first: {failed[0]}")

    def _send(self, letter: _DeadLetter, failed: list[str]) -> None:
        message = letter.message
        properties = message.properties()
        origin = self._options.source_of(message)
        tries = _number(properties.get("RECONSUMETIMES")) + 1
        retry = letter.retry and tries <= self._options.max_redeliver_count
        topic = self._options.retry_topic(origin) if retry else self._options.dead_topic(origin)
        parts = dead_letter_properties(message, self._options.subscription, letter.cause, self._redact)
        options = copied_options(message)
        if retry:
            delay = round(1000 * self._options.retry_delay_seconds)
            parts |= {"RECONSUMETIMES": str(tries), "DELAY_TIME": str(delay)}
            options["deliver_after"] = delay

        def stored(result: Any, _: object) -> None:
            if result.value:
                failed.append(f"{message.message_id()} of {message.topic_name()} to {topic}: {result.name}")

        payload = None if message.has_null_value() else message.data()
        self._producer(topic, retry=retry).send_async(payload, stored, properties=parts, **options)

    def _producer(self, topic: str, *, retry: bool) -> Producer:
        found = self._producers.get(topic)
        if found is None:
            if not retry:
                self._subscribe(topic)
            found = self._client().create_producer(topic, block_if_queue_full=True, **PRODUCER_OPTIONS)
            self._producers[topic] = found
        return found

    def _subscribe(self, topic: str) -> None:
        from pulsar_native import ConsumerBusy, ConsumerType, InitialPosition

        name = self._options.initial_subscription_name or self._options.subscription
        # Busy: it exists, and others consume from it.
        with suppress(ConsumerBusy):
            self._client().subscribe(
                topic, name, ConsumerType.Shared, initial_position=InitialPosition.Earliest, receiver_queue_size=1
            ).close()


def copied_options(message: Message) -> dict[str, Any]:
    """Return the options of `send` that give a letter the keys and the event time of its message."""
    options: dict[str, Any] = {}
    if message.has_key():
        text, key = message.partition_key(), message.key_bytes()
        # A key that is not UTF-8 has a text with other characters.
        is_text = not message.has_base64_encoded_key() and text.encode() == key
        options["partition_key"] = text if is_text else key
    if message.ordering_key():
        options["ordering_key"] = message.ordering_key()
    if message.event_timestamp():
        options["event_timestamp"] = message.event_timestamp()
    return options


def dead_letter_properties(
    message: Message, subscription: str, cause: BaseException | None, redact: Callable[[str], str] = str
) -> dict[str, str]:
    """Return the properties of a letter: those of the message, its origin, and the cause without secrets."""
    origin = _origin(message.message_id())
    parts = {
        "REAL_TOPIC": message.topic_name(),
        "ORIGIN_MESSAGE_ID": origin,
        # Properties for older Java clients.
        "ORIGIN_MESSAGE_IDY_TIME": origin,
        "REAL_SUBSCRIPTION": subscription,
        **message.properties(),
    }
    if cause is not None:
        parts["EXCEPTION_TYPE"] = type(cause).__name__
        parts["EXCEPTION_MESSAGE"] = encodable(redact(text_of(cause))[:_CAUSE_LENGTH])
    return parts


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def _origin(message_id: MessageId) -> str:
    """Return an id as in Java's toString: an index in batches only, chunks from first to last."""
    first = message_id.first_chunk_message_id()
    text = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
    if first is not None:
        return f"{first.ledger_id()}:{first.entry_id()}:{first.partition()};{text}"
    return text if message_id.batch_index() < 0 else f"{text}:{message_id.batch_index()}"
