"""What a caller gives a consume job: its settings, checked, and functions of its own. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs import validation
from pulsar_native.jobs.batch import BatchLimits
from pulsar_native.jobs.consume_options import CHECKED, checked
from pulsar_native.jobs.dead_letters import DeadLetterOptions
from pulsar_native.jobs.output import PathFactory, local_path
from pulsar_native.jobs.part_files import PartLimits
from pulsar_native.jobs.private_keys import key_reader_of

if TYPE_CHECKING:
    from pulsar_native import KeyReader, Message
    from pulsar_native.jobs.interfaces import BatchSink

_NOT_STORED = (
    "it stores no messages, so a batch of it has no end and cannot be delivered again; use a persistent topic, or "
    "receive with client.subscribe()"
)


@dataclass(frozen=True)
class ConsumeSettings:
    """Options of a consume job: topics, subscription, limits and output. Raises ValueError naming a wrong one.

    Names of topics become whole ones, and choices lower case. Topics that are not persistent are refused, and so is
    the same topic twice.

    `pattern` replaces `topics`; it leaves out the topics of `dead_letters`. Of these, topics given by name must not be
    among `topics`. `run` identifies the run: the same in all of its tries, another one in every other run.
    `cluster` identifies the cluster of the client: message ids of a batch hold there only.
    `path` is None if the batch is returned inline only, or handled message by message. `parts` divides the output into
    files, whose manifest is that of `path`. `private_keys` are the paths of the keys of encrypted messages by the
    keys' names; messages that are decrypted are not sent to a dead-letter or retry topic, where they would not be
    encrypted.
    """

    topics: Sequence[str]
    subscription: str
    run: Mapping[str, Any]
    pattern: re.Pattern[str] | None = None
    subscription_type: str = "exclusive"
    initial_position: str = "earliest"
    limits: BatchLimits = field(default_factory=lambda: BatchLimits(None, None, None, None))
    until_end: bool = True
    idle_seconds: float = 10
    decode: str = "auto"
    path: str | None = None
    format: str = "jsonl"
    if_exists: str = "fail"
    on_error: str = "fail"
    max_errors: int | None = None
    dead_letters: DeadLetterOptions | None = None
    reads_retry_letters: bool = False
    create_topic: bool = False
    allow_empty_pattern: bool = False
    process_once: bool = False
    concurrency: int = 1
    parts: PartLimits | None = None
    progress_seconds: float = 5
    consumer_name: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    private_keys: Mapping[str, str] = field(default_factory=dict)
    cluster: str | None = None

    def __post_init__(self) -> None:
        validation.text("subscription", self.subscription)
        for name in CHECKED:
            object.__setattr__(self, name, checked(name, getattr(self, name)))
        if self.parts is not None:
            checked("max_messages_per_file", self.parts.messages)
            checked("max_bytes_per_file", self.parts.size)
        if self.pattern is None:
            object.__setattr__(self, "topics", _checked_topics(self.topics))
        elif self.pattern.pattern.startswith("non-persistent:"):
            validation.refuse(f"topics of {self.pattern.pattern!r} are not persistent: {_NOT_STORED}")
        if self.dead_letters is not None:
            self.dead_letters.check_apart(self.topics)

    @property
    def retry_topics(self) -> list[str]:
        """Names of the retry topics consumed with the topics."""
        if not self.reads_retry_letters or self.dead_letters is None:
            return []
        return self.dead_letters.retry_topics(self.topics)

    @property
    def key_reader(self) -> KeyReader | None:
        """Reader of the private keys, None without any."""
        return key_reader_of(self.private_keys)

    @property
    def source(self) -> list[str] | str:
        """Names of the topics, or the pattern."""
        return list(self.topics) if self.pattern is None else self.pattern.pattern

    def takes(self, topic: str) -> bool:
        """Return True if a topic or partition is consumed: by its name, by the pattern, or as a retry topic."""
        from pulsar_native.topic import TopicName

        names = {topic, TopicName.parse(topic).base.full}
        if not names.isdisjoint([*self.topics, *self.retry_topics]):
            return True
        # A pattern may lack the domain.
        names |= {name.partition("://")[2] for name in names}
        return self.pattern is not None and any(map(self.pattern.fullmatch, names))

    @property
    def subscribed(self) -> list[str | re.Pattern[str]]:
        """Topics to subscribe to, or the pattern without the topics of the subscription's own dead letters."""
        if self.pattern is None:
            return list(self.topics)
        return [self.pattern if self.dead_letters is None else self.dead_letters.without_dead_letters(self.pattern)]


@dataclass(frozen=True)
class ConsumeCallbacks:
    """Functions of the caller.

    `check` raises to end the job at once (a kill); `process` is called with a copy of the manifest, and a coroutine it
    returns is awaited; `handle` is called with each message; exceptions `passing` of `handle` end the job whatever
    `on_error` is; `redact` removes secrets from a text; `names` returns the topics of a namespace, for the hint of an
    error; `created` returns when topics and partitions were created, as numbers, of those where it can tell. `sink`
    replaces an output file: it gets the rows, `sink_rows` at once, and the caller's state makes them durable when the
    job stores the batch's ids. `stored_state` names what the user removes for the caller's state to be empty.
    """

    check: Callable[[], None] = lambda: None
    process: Callable[[Mapping[str, Any]], object] | None = None
    handle: Callable[[Message], Any] | None = None
    passing: tuple[type[Exception], ...] = ()
    redact: Callable[[str], str] = str
    names: Callable[[str], Sequence[str]] | None = None
    created: Callable[[Sequence[str]], Mapping[str, int]] = lambda topics: {}
    open_path: PathFactory = local_path
    sink: BatchSink | None = None
    sink_rows: int = 1000
    stored_state: str = "the task's stored state 'consumed'"


def _checked_topics(topics: object) -> list[str]:
    """Return the whole names of topics; raises ValueError."""
    from pulsar_native.topic import TopicName

    if isinstance(topics, str) or not isinstance(topics, Sequence) or not topics:
        validation.refuse("topics must be a list of names, or a pattern in their place")
    parsed = [TopicName.parse(validation.text("topic", topic)) for topic in topics]
    names = [each.full for each in parsed]
    if len(set(names)) < len(names):
        validation.refuse("topic names the same topic twice")
    for each in parsed:
        if not each.is_persistent:
            validation.refuse(f"topic {each.full} is not persistent: {_NOT_STORED}")
        if each.is_partition and each.base.full in names:
            validation.refuse(f"topic names {each.base.full} and its partition {each.full}")
    return names
