"""Push consumer configuration, handler contexts and results: values, checked at construction.

Names, defaults and ranges are those of RocketMQ's DefaultMQPushConsumer 4.9.8 in snake_case, where Pulsar has the same
thing. Times are milliseconds unless the name says otherwise.
"""

from __future__ import annotations

import inspect
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from pulsar_native.config import Config, DeadLetterPolicy
from pulsar_native.config.base import check_function, check_key_reader
from pulsar_native.crypto import KeyReader
from pulsar_native.enums import ConsumerCryptoFailureAction
from pulsar_native.exceptions import InvalidConfiguration

if TYPE_CHECKING:
    from pulsar_native.message import Message
    from pulsar_native.message_id import MessageId

# RocketMQ's message delay levels: 1s 5s 10s 30s 1m … 10m 20m 30m 1h 2h. Level 1 is the first.
DELAY_LEVELS_MS = tuple(seconds * 1000 for seconds in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200))
# Property that holds a message's tag.
TAG_PROPERTY = "TAGS"
_GROUP = re.compile(r"[%|a-zA-Z0-9_.\-]+")
# Instance name when none is set; `member_name` derives a unique one from it.
_DEFAULT_INSTANCE = "DEFAULT"
_LARGEST = (1 << 31) - 1


class MessageModel(Enum):
    """Clustering (the members of a group share the messages) or broadcasting (each member receives all of them)."""

    CLUSTERING = "clustering"
    BROADCASTING = "broadcasting"


class ConsumeFromWhere(Enum):
    """Start position of a group without offsets."""

    LAST_OFFSET = "last"
    FIRST_OFFSET = "first"
    TIMESTAMP = "timestamp"


class ConsumeOrder(Enum):
    """Unit of order of an orderly push consumer."""

    PARTITION = "partition"
    KEY = "key"


class ConsumeConcurrentlyStatus(Enum):
    """Result of a concurrent handler; None and an exception mean RECONSUME_LATER."""

    CONSUME_SUCCESS = "success"
    RECONSUME_LATER = "later"


class ConsumeOrderlyStatus(Enum):
    """Result of an orderly handler; None and an exception mean SUSPEND_CURRENT_QUEUE_A_MOMENT."""

    SUCCESS = "success"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "suspend"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass
class ConsumeConcurrentlyContext:
    """Context of a concurrent handler's call; the handler may set its fields."""

    topic: str
    partition: int
    # Of the messages of the call, those up to this index succeeded; -1 is none of them. By default all.
    ack_index: int = _LARGEST
    # 0: the delay level follows from the previous tries; -1: dead-letter topic immediately; above: this level.
    delay_level_when_next_consume: int = 0


@dataclass
class ConsumeOrderlyContext:
    """Context of an orderly handler's call; the handler may set its fields."""

    topic: str
    partition: int
    key: str | None
    # Number of previous failed calls with these messages; the largest, where they differ.
    attempts: int = 0
    # False: SUCCESS leaves the messages uncommitted, COMMIT acknowledges all uncommitted ones, ROLLBACK redelivers
    # them.
    auto_commit: bool = True
    # -1: the value of the configuration.
    suspend_current_queue_time_millis: int = -1


ConsumeContext = ConsumeConcurrentlyContext | ConsumeOrderlyContext


class ConsumeMessageHook(Protocol):
    """Hook called before and after each call of the handler, for tracing; its exceptions are logged and have no effect.

    Called where the handler runs: in its thread, or on the loop. Both methods are plain ones, which are not awaited.
    `status` is None when the handler failed.
    """

    def consume_message_before(self, messages: Sequence[Message], context: ConsumeContext) -> None: ...
    def consume_message_after(
        self,
        messages: Sequence[Message],
        context: ConsumeContext,
        status: ConsumeConcurrentlyStatus | ConsumeOrderlyStatus | None,
    ) -> None: ...


@dataclass(frozen=True, kw_only=True)
class PushConsumerConfig(Config):
    """Configuration of a push consumer. The group is the subscription's name.

    `instance_name` distinguishes the members of one process: a group can run once under each name. Limits of a topic
    (-1: none) are divided among its partitions and replace those for a partition (`queue`). `max_reconsume_times` of -1
    is sixteen tries for concurrent handlers, and unlimited for orderly ones. `crypto_key_reader` and
    `crypto_failure_action` are those of `ConsumerConfig`, the options of producers those of `DeadLetterPolicy`.
    """

    consumer_group: str
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_order: ConsumeOrder = ConsumeOrder.KEY
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    # yyyyMMddHHmmss in local time, as RocketMQ writes it; None means half an hour ago.
    consume_timestamp: str | None = None
    instance_name: str = _DEFAULT_INSTANCE
    consume_thread_min: int = 20
    consume_thread_max: int = 20
    consume_concurrently_max_span: int = 2000
    pull_threshold_for_queue: int = 1000
    pull_threshold_size_for_queue: int = 100
    pull_threshold_for_topic: int = -1
    pull_threshold_size_for_topic: int = -1
    # True counts unfinished messages against the client's memory_limit_bytes, together with those to be sent, and stops
    # polling at it.
    within_memory_limit: bool = False
    pull_interval: int = 0
    pull_batch_size: int = 32
    consume_message_batch_max_size: int = 1
    max_reconsume_times: int = -1
    suspend_current_queue_time_millis: int = 1000
    consume_timeout_minutes: float = 15
    await_termination_millis_when_shutdown: int = 0
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS
    dead_letter_topic: str | None = None
    retry_letter_topic: str | None = None
    # Copies of encrypted messages are encrypted where these have encryption_key and crypto_key_reader. Not in the
    # hash, as mappings have none.
    dead_letter_producer_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    retry_letter_producer_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    crypto_key_reader: KeyReader | None = None
    # FAIL does not deliver what cannot be decrypted: in clustering it stays unacknowledged, in broadcasting the stored
    # position stays before it. DISCARD passes over it, CONSUME hands it over encrypted.
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    # Folder of the offset files in broadcasting; None is a folder in the user's home.
    offset_store_folder: str | None = None
    persist_consumer_offset_interval: int = 5000
    # Interval in which added partitions are discovered.
    poll_name_server_interval: int = 30000

    def __post_init__(self) -> None:
        self._check_options({"crypto_key_reader": check_key_reader})
        self._check_group()
        for name, low, high in _RANGES:
            _whole(name, getattr(self, name), low, high)
        for name, low, high in _OPTIONAL_RANGES:
            if getattr(self, name) != -1:
                _whole(name, getattr(self, name), low, high)
        if self.consume_thread_min > self.consume_thread_max:
            raise InvalidConfiguration("consume_thread_min must not be above consume_thread_max")
        minutes = self.consume_timeout_minutes
        if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes < _LARGEST:
            raise InvalidConfiguration(f"consume_timeout_minutes must be a number above 0, not {minutes!r}")
        self._check_names()
        if not isinstance(self.delay_levels_ms, list | tuple):
            raise InvalidConfiguration(
                f"delay_levels_ms must be a list or tuple of milliseconds, not {self.delay_levels_ms!r}"
            )
        object.__setattr__(self, "delay_levels_ms", tuple(self.delay_levels_ms))
        if not self.delay_levels_ms:
            raise InvalidConfiguration("delay_levels_ms must name at least one delay")
        for delay in self.delay_levels_ms:
            _whole("each of delay_levels_ms", delay, 0, (1 << 63) - 1)
        if self.consume_timestamp is not None:
            _time(self.consume_timestamp)

    def _check_group(self) -> None:
        group = self.consumer_group
        if not isinstance(group, str) or not _GROUP.fullmatch(group) or len(group) > 255:
            raise InvalidConfiguration(
                f"consumer_group must be 1 to 255 letters, digits or one of _ - . % |, not {group!r}"
            )
        if not group.strip("."):
            raise InvalidConfiguration(f"consumer_group must be more than dots, not {group!r}")
        if group == "DEFAULT_CONSUMER":
            raise InvalidConfiguration("consumer_group must be a name of your own, not DEFAULT_CONSUMER")

    def _check_names(self) -> None:
        own = self.instance_name
        if not isinstance(own, str) or not own.strip() or "/" in own or not own.isprintable():
            raise InvalidConfiguration(
                f"instance_name must be a non-blank str without / and control characters, not {own!r}"
            )
        # The policy checks the names of its topics, and the options of its producers.
        self.dead_letter_policy()
        folder = self.offset_store_folder
        if folder is not None and not (isinstance(folder, str) and folder.strip() and "\0" not in folder):
            raise InvalidConfiguration(f"offset_store_folder must be None or the name of a folder, not {folder!r}")

    def dead_letter_policy(self) -> DeadLetterPolicy:
        """Return the policy of the consumers, by which the broker's redeliveries (after a member left) are no failures
        of the handler: only the push consumer counts those.
        """
        return DeadLetterPolicy(
            max_redeliver_count=_LARGEST,
            dead_letter_topic=self.dead_letter_topic,
            retry_letter_topic=self.retry_letter_topic,
            dead_letter_producer_options=self.dead_letter_producer_options,
            retry_letter_producer_options=self.retry_letter_producer_options,
        )

    @property
    def member_name(self) -> str:
        """Name of this member: host and process, or host and instance name where it must outlive the process."""
        own = self.instance_name
        if own == _DEFAULT_INSTANCE and self.message_model is MessageModel.CLUSTERING:
            own = str(os.getpid())
        return f"{socket.gethostname()}@{own}"

    def start_time_ms(self, now_ms: int) -> int:
        """Return the start time for CONSUME_FROM_TIMESTAMP, in ms since 1970."""
        if self.consume_timestamp is None:
            return now_ms - 30 * 60 * 1000
        return int(_time(self.consume_timestamp).timestamp() * 1000)


_RANGES = (
    ("consume_thread_min", 1, 1000),
    ("consume_thread_max", 1, 1000),
    ("consume_concurrently_max_span", 1, 65535),
    ("pull_threshold_for_queue", 1, 65535),
    ("pull_threshold_size_for_queue", 1, 1024),
    ("pull_interval", 0, 65535),
    ("pull_batch_size", 1, 1024),
    ("consume_message_batch_max_size", 1, 1024),
    ("suspend_current_queue_time_millis", 10, 30000),
    ("await_termination_millis_when_shutdown", 0, _LARGEST),
    ("persist_consumer_offset_interval", 1, _LARGEST),
    ("poll_name_server_interval", 1, _LARGEST),
)
# -1 stands for "not set" in these.
_OPTIONAL_RANGES = (
    ("max_reconsume_times", 0, _LARGEST),
    ("pull_threshold_for_topic", 1, 6_553_500),
    ("pull_threshold_size_for_topic", 1, 102_400),
)


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidConfiguration(f"{name} must be a whole number from {low} to {high}, not {value!r}")


def _time(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y%m%d%H%M%S").astimezone()
    except (TypeError, ValueError):
        raise InvalidConfiguration(f"consume_timestamp must be yyyyMMddHHmmss, not {text!r}") from None


def check_config(config: object) -> PushConsumerConfig:
    """Return the argument if it is a `PushConsumerConfig`; raise otherwise."""
    if not isinstance(config, PushConsumerConfig):
        raise InvalidConfiguration(f"A push consumer needs a PushConsumerConfig, not {type(config).__name__}")
    return config


def message_listener(
    concurrently: Callable[..., Any] | None, orderly: Callable[..., Any] | None
) -> tuple[Callable[..., Any], bool]:
    """Return a push consumer's handler and True if it is orderly; there must be exactly one."""
    handler = orderly if concurrently is None else concurrently
    if handler is None or (concurrently is not None and orderly is not None):
        raise InvalidConfiguration("A push consumer has one handler: a concurrent one, or orderly=..., never both")
    if not callable(handler):
        raise InvalidConfiguration(f"A handler is called with messages and a context, and {handler!r} cannot be called")
    return handler, concurrently is None


def is_unawaited(result: object) -> bool:
    """Return True for an awaitable result of a function that is not awaited; a coroutine is closed."""
    if inspect.iscoroutine(result):
        # Closed, Python does not warn of it a second time.
        result.close()
    return inspect.isawaitable(result)


def check_consume_message_hook(hook: object) -> None:
    """Raise `InvalidConfiguration` for a hook that lacks a method, or has one that would have to be awaited."""
    for name in ("consume_message_before", "consume_message_after"):
        check_function(f"{type(hook).__name__}.{name} of a consume message hook", getattr(hook, name, None))


def drain_limit(await_termination_millis: int | None) -> int | None:
    """Return the time limit for running handlers at shutdown in ms, None for the configured one."""
    if await_termination_millis is not None:
        _whole("await_termination_millis", await_termination_millis, 0, _LARGEST)
    return await_termination_millis


class TagFilter:
    """Tag expression of a subscription: `*` for all, or tags as in `a || b`. A message has its tag in the property
    `TAGS`.
    """

    def __init__(self, expression: str | None = "*") -> None:
        if expression is not None and not isinstance(expression, str):
            raise InvalidConfiguration(f"A tag expression is a str such as 'a || b', not {expression!r}")
        text = (expression or "*").strip() or "*"
        self.tags = frozenset() if text == "*" else frozenset(tag.strip() for tag in text.split("||"))
        if "" in self.tags:
            raise InvalidConfiguration(f"The tag expression {expression!r} has an empty tag; write it as 'a || b'")
        for tag in self.tags:
            if any(character.isspace() for character in tag):
                raise InvalidConfiguration(
                    f"{tag!r} is no tag: tags have no blanks, and SQL conditions are not supported; "
                    "register_filter_message_hook() can do what tags cannot"
                )

    def wants(self, message: Message) -> bool:
        """Return True if the handler is to receive the message."""
        return not self.tags or message.properties().get(TAG_PROPERTY) in self.tags


@dataclass(frozen=True)
class PushConsumerStats:
    """Counters of a push consumer since its start, and current gauges; in messages unless said otherwise."""

    # Rounds of the polling loop.
    rounds: int
    taken: int
    # Excluded by tag or filter, and redeliveries of messages in work.
    filtered: int
    duplicates: int
    succeeded: int
    failed: int
    sent_back: int
    dead_letters: int
    # Failed messages in broadcasting.
    dropped: int
    # Entries that were not handed over, as they cannot be decrypted (FAIL and DISCARD).
    decryption_failed: int
    # Number of times polling of a partition was stopped, by reason: count, size, span, memory.
    throttled: dict[str, int]
    unfinished: int
    unfinished_bytes: int


@dataclass(frozen=True)
class ShutdownReport:
    """Result of a push consumer's shutdown."""

    # Messages whose handlers ended during the wait, and those still unfinished: they are redelivered.
    finished: int
    unfinished: int
    # Lowest unfinished position of each partition that has one.
    positions: dict[str, MessageId]
