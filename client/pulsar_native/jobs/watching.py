"""Poll a topic until it exists, has N messages, or has one newer than T. Shared by sensor and trigger.

Rules: asyncio only, no thread. Nothing stays at the broker (non-durable readers), and no topic is created. Permanent
errors are raised; every other state is in `seen`. Counts are of stored messages, without duplicates that the broker
dropped. If the broker has message indexes (entry metadata), two messages per partition are read; else messages are
counted by reading, partition by partition, in steps of `STEP_ROWS` between which the loop is free, each message once,
up to the number wanted. So they are once the first or the last message is in chunks, each of which has an index. Counts
can be carried to another process (`state`). Nothing is decrypted: what is needed of a message is its entry's metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from pulsar_native.jobs import validation
from pulsar_native.jobs.failures import explain

if TYPE_CHECKING:
    from pulsar_native import ClientConfig, EncryptionContext, Message, MessageId
    from pulsar_native.asyncio import Client, Reader

_READ_MS = 10_000
# Messages counted before other tasks of the loop run: a few milliseconds, also without the compiled codec.
STEP_ROWS = 200
# A look has at least so many seconds, also when the time of the whole wait is over sooner: what it would have found,
# and why it failed, would else be lost on a busy machine.
MIN_LOOK_SECONDS = 5.0
# The client's operations end so long before the look: an operation that fails names the reason, a look ended does not.
_RESERVE_SECONDS = 1.0
# Entries the broker sends ahead; those beyond the number wanted are discarded.
_QUEUE = 50
# Partitions polled at once.
_AT_ONCE = 8
# After a seek by time the first message arrives at once, or there is none.
_SEARCH_MS = 1_000
GONE = (
    "the broker removes a topic without subscriptions once it is inactive, by default after a minute, with its "
    "messages: set a retention for the namespace, or create a subscription before publishing"
)


@dataclass(frozen=True)
class TopicCondition:
    """Condition of a wait; without `messages` and `published_since` (ms), the existence of the topic."""

    topic: str
    messages: int | None = None
    published_since: int | None = None

    @staticmethod
    def of(topic: object, messages: object, published_since: Any) -> TopicCondition:
        """Return the checked condition of rendered templates; raises ValueError."""
        from pulsar_native.topic import TopicName

        name = TopicName.parse(validation.text("topic", topic))
        if messages is not None and published_since is not None:
            validation.refuse("give messages or published_since, not both: they are two sensors")
        since = None if published_since is None else validation.publish_time("published_since", published_since)
        count = None if messages is None else validation.whole("messages", messages)
        if not name.is_persistent and (count is not None or since is not None):
            validation.refuse("a non-persistent topic stores no messages: only its existence can be waited for")
        return TopicCondition(name.full, count, since)

    def __str__(self) -> str:
        if self.messages is not None:
            return f"{self.messages:,} messages in {self.topic}"
        if self.published_since is not None:
            return f"a message in {self.topic} published since {_iso(self.published_since)}"
        return f"the topic {self.topic}"


def config_of_look(config: ClientConfig, seconds: float | None) -> ClientConfig:
    """Return the settings for a client of a look limited to so many seconds, at least `MIN_LOOK_SECONDS`; None is no
    limit.
    """
    if seconds is None:
        return config
    limit = min(config.operation_timeout_seconds, seconds - _RESERVE_SECONDS)
    return config.replace(operation_timeout_seconds=limit)


def arguments_of(condition: type[Any], holder: object) -> dict[str, Any]:
    """Return the fields of a condition's dataclass, by the attributes of the same names of a sensor or trigger."""
    return {each.name: getattr(holder, each.name) for each in fields(condition)}


class Watcher(Protocol):
    """Repeated check of one condition. `uses` is what `look` needs: the asyncio client, or the admin client (or None).

    `wanted` is the condition, whose text is for logs; `seen` describes the last result, `stage` the current stage.
    """

    seen: str
    stage: str

    @property
    def uses(self) -> Literal["client", "admin"]:
        """Name of the source."""

    @property
    def wanted(self) -> object:
        """Condition."""

    async def look(self, source: Any, /) -> dict[str, Any] | None:
        """Return the result as JSON if the condition holds, else None; raises the client's errors."""

    def failed(self, error: BaseException) -> None:
        """Record a look that failed."""


@dataclass(frozen=True)
class _Ends:
    """First message id and last one of a partition, None without messages; their number if indexes count them."""

    first: MessageId | None = None
    last: MessageId | None = None
    count: int | None = None


@dataclass
class _Counted:
    """Number of messages of a partition counted by reading: from the first retained one up to and including an id."""

    first: MessageId
    count: int = 0
    upto: MessageId | None = None


@dataclass
class TopicWatcher:
    """Repeated check of one topic; for one task, the client may change between checks.

    `seen` describes the last result, `stage` is look-up, count or read.
    """

    uses: ClassVar[Literal["client", "admin"]] = "client"

    wanted: TopicCondition
    seen: str = ""
    stage: str = "look-up"
    largest_step: int = 0
    _found: str = ""
    _was_there: bool = False
    _counted: dict[str, _Counted] = field(default_factory=dict)
    # Per partition: the last id, and the time found, of a search without a result.
    _searched: dict[str, tuple[MessageId, int]] = field(default_factory=dict)

    def state(self) -> dict[str, Any] | None:
        """Return the counts as JSON, None for none; `restore` continues from them."""
        if not self._counted:
            return None
        return {
            name: {"first": _place(known.first), "count": known.count, "upto": _place(known.upto)}
            for name, known in self._counted.items()
            if known.upto is not None
        }

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continue from the counts of another watcher of the same topic; anything else restarts the count."""
        self._was_there = bool(state)
        for name, known in (state or {}).items():
            first, upto = _message_id(known["first"]), _message_id(known["upto"])
            self._counted[name] = _Counted(first, int(known["count"]), upto)

    async def look(self, client: Client) -> dict[str, Any] | None:
        """Return the result as JSON if the condition holds, else None; raises the client's errors."""
        found = await self._look(client)
        self._found = self.seen
        return found

    async def _look(self, client: Client) -> dict[str, Any] | None:
        from pulsar_native.exceptions import TopicNotFound
        from pulsar_native.topic import TopicName

        topic = TopicName.parse(self.wanted.topic)
        self.stage = "look-up"
        try:
            count = await client.get_partition_count(topic.full)
        except TopicNotFound:
            self._counted.clear()
            self.seen = f"the topic was there and is gone: {GONE}" if self._was_there else "the topic does not exist"
            return None
        self._was_there = True
        names = [topic.with_partition(index).full for index in range(count)] or [topic.full]
        found = {"topic": topic.full, "partitions": count}
        if self.wanted.messages is not None:
            return await self._enough(client, names, found)
        if self.wanted.published_since is not None:
            return await self._recent(client, names, found)
        self.seen = "the topic exists"
        return found

    def failed(self, error: BaseException) -> None:
        """Record a check that failed; the last result stays part of the text."""
        text = explain(error, action=f"looking at {self.wanted.topic}", stage=self.stage)
        self.seen = f"{text} (before: {self._found})" if self._found else text

    # ---- messages ----------------------------------------------------------------------------------------------------

    async def _enough(self, client: Client, names: list[str], found: Mapping[str, Any]) -> dict[str, Any] | None:
        self.stage = "count"
        wanted, total = self.wanted.messages or 0, 0
        limit = asyncio.Semaphore(_AT_ONCE)

        async def ends(name: str) -> _Ends:
            async with limit:
                return await _ends_of(client, name, by_index=name not in self._counted)

        for name, of_name in zip(names, await asyncio.gather(*map(ends, names)), strict=True):
            total += await self._stored(client, name, of_name, wanted - total)
        self.seen = f"{total:,} messages are there"
        return {**found, "messages": total} if total >= wanted else None

    async def _stored(self, client: Client, name: str, ends: _Ends, enough: int) -> int:
        """Return the number of stored messages, or at least `enough`; none are read if it is None."""
        if ends.first is None or ends.last is None:
            self._counted.pop(name, None)
            return 0
        if ends.count is not None:
            return ends.count
        known = self._counted.get(name)
        if known is None or _place(known.first) != _place(ends.first):
            # Counted messages were removed since, or the topic was recreated.
            known = self._counted[name] = _Counted(ends.first)
        if known.count < enough and (known.upto is None or _place(known.upto)[:2] < _place(ends.last)[:2]):
            await self._count(client, name, known, enough)
        return known.count

    async def _count(self, client: Client, name: str, known: _Counted, enough: int) -> None:
        """Count up to the number or the end; an interrupted count is kept."""
        from pulsar_native.exceptions import CryptoError

        try:
            await self._count_rows(client, name, known, enough)
        except CryptoError:
            # Encrypted bytes are no rows.
            await self._count_messages(client, name, known, enough)

    async def _count_rows(self, client: Client, name: str, known: _Counted, enough: int) -> None:
        columns = ("__ledgerId", "__entryId", "__batchIndex")
        async with await _reader_behind(client, name, known) as reader:
            async for rows in reader.arrow_batches(columns=columns, max_rows=STEP_ROWS):
                self.largest_step = max(self.largest_step, rows.num_rows)
                known.count += rows.num_rows
                known.upto = _message_id([column[-1].as_py() for column in rows.columns])
                if known.count >= enough:
                    return
                # The next rows may be queued already: without this the loop would not run others.
                await asyncio.sleep(0)

    async def _count_messages(self, client: Client, name: str, known: _Counted, enough: int) -> None:
        left = STEP_ROWS
        async with await _reader_behind(client, name, known) as reader:
            while known.count < enough and (message := await _next(reader)) is not None:
                known.count += _messages_in(message)
                known.upto = _message_id(_place(message.message_id()))
                left -= 1
                if not left:
                    left = STEP_ROWS
                    await asyncio.sleep(0)

    # ---- time --------------------------------------------------------------------------------------------------------

    async def _recent(self, client: Client, names: list[str], found: Mapping[str, Any]) -> dict[str, Any] | None:
        self.stage = "read"
        newest = max(await asyncio.gather(*(self._newest(client, name) for name in names)))
        wanted = self.wanted.published_since or 0
        if newest > 0:
            self.seen = f"the newest message is of {_iso(newest)}"
        else:
            self.seen = "there are no messages" if newest else f"there is no message since {_iso(wanted)}"
        return {**found, "published_at": _iso(newest)} if newest > 0 and newest >= wanted else None

    async def _newest(self, client: Client, name: str) -> int:
        """Return the publish time of the last message, or of an earlier one that is recent enough.

        -1 without messages, 0 if none is recent enough and the last entry is a chunk of a message that is not complete.
        """
        from pulsar_native import MessageId
        from pulsar_native.exceptions import Timeout

        wanted = self.wanted.published_since or 0
        async with await _reader(client, name, MessageId.earliest, queue=1) as reader:
            last = await reader.get_last_message_id()
            if last.entry_id() < 0:
                return -1
            searched, newest = self._searched.get(name, (None, 0))
            if searched == last:
                return newest
            message = await _last(reader)
            newest = 0 if message is None else message.publish_timestamp()
            if newest >= wanted and newest:
                return newest
            # Clocks of producers differ: a message before the last one may have a later time.
            await reader.seek(wanted)
            try:
                newest = max(newest, (await reader.read_next(_SEARCH_MS)).publish_timestamp())
            except Timeout:
                self._searched[name] = (last, newest)
        return newest


async def _ends_of(client: Client, name: str, *, by_index: bool) -> _Ends:
    from pulsar_native import MessageId

    async with await _reader(client, name, MessageId.earliest, queue=1) as reader:
        last = await reader.get_last_message_id()
        first = None if last.entry_id() < 0 else await _next(reader)
        if first is None:
            return _Ends()
        newest = await _last(reader) if by_index and first.index() is not None else None
    return _Ends(first.message_id(), last, None if newest is None else _count_by_index(first, newest))


def _count_by_index(first: Message, last: Message) -> int | None:
    """Return the number of messages from one to another, None if the indexes do not say it."""
    start, end = first.index(), last.index()
    in_chunks = any(each.message_id().first_chunk_message_id() is not None for each in (first, last))
    return None if start is None or end is None or in_chunks else end - start + _messages_in(last)


def _messages_in(message: Message) -> int:
    """Return 1, or the number of messages of an encrypted batch, which is read as one with the first one's index."""
    context = undecrypted(message)
    return 1 if context is None else max(1, context.batch_size())


def undecrypted(message: Message) -> EncryptionContext | None:
    """Return the encryption context of a message that is still encrypted, None of any other."""
    context = message.encryption_context()
    return context if context is not None and context.is_decryption_failed() else None


async def _reader(
    client: Client, name: str, start: MessageId, *, inclusive: bool = True, queue: int = _QUEUE
) -> Reader:
    from pulsar_native import ConsumerCryptoFailureAction

    return await client.create_reader(
        name,
        start,
        start_message_id_inclusive=inclusive,
        receiver_queue_size=queue,
        crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
    )


async def _reader_behind(client: Client, name: str, known: _Counted) -> Reader:
    """Return a reader of what is not counted yet."""
    return await _reader(client, name, known.upto or known.first, inclusive=known.upto is None)


async def _next(reader: Reader) -> Message | None:
    """Return the next message, None if there is none: the last entries may be chunks that no producer completed."""
    return await reader.read_next(_READ_MS) if await reader.has_message_available() else None


async def _last(reader: Reader) -> Message | None:
    """Return the last message, None if the last entry is of a message in chunks that is not complete."""
    from pulsar_native import MessageId

    # By its id, which of a message in chunks names the last one only, the others would not be read.
    await reader.seek(MessageId.latest)
    return await _next(reader)


def _message_id(place: Sequence[int]) -> MessageId:
    from pulsar_native import MessageId

    ledger, entry, batch = place
    return MessageId(-1, ledger, entry, batch)


def _place(message_id: MessageId | None) -> list[int]:
    assert message_id is not None
    return [message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()]


def _iso(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")
