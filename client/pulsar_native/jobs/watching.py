"""Looking at a topic until it is as wanted: it exists, holds enough messages, or holds a recent enough one.

Rules: asyncio only, no thread, so that sensor and triggerer share it; leaves nothing at the broker (non-durable
readers) and creates no topic; what cannot get better by waiting is raised, everything else is told in `seen`. Counts
are of stored messages: what the broker dropped as duplicates was never stored. Where the broker numbers messages (entry
metadata with an index) two messages a partition are read, else all of them once, and later only the new ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs import validation
from pulsar_native.jobs.failures import explain

if TYPE_CHECKING:
    from pulsar_native import Message, MessageId
    from pulsar_native.asyncio import Client, Reader

_READ_MS = 10_000
# After a search by time the first message comes at once or, when there is none, never.
_SEARCH_MS = 1_000


@dataclass(frozen=True)
class TopicCondition:
    """What is waited for. Without `messages` and `published_since` (ms) it is the topic itself."""

    topic: str
    messages: int | None = None
    published_since: int | None = None

    @staticmethod
    def of(topic: object, messages: object, published_since: Any) -> TopicCondition:
        """Return the checked wish, of rendered templates; raises ValueError."""
        from pulsar_native.topic import TopicName

        name = TopicName.parse(validation.text("topic", topic))
        if messages not in (None, "") and published_since not in (None, ""):
            validation.refuse("give messages or published_since, not both: they are two sensors")
        since = None if published_since in (None, "") else validation.moment("published_since", published_since)
        count = None if messages in (None, "") else _whole(messages)
        if not name.is_persistent and (count is not None or since is not None):
            validation.refuse("a non-persistent topic stores no messages: only its existence can be waited for")
        return TopicCondition(name.full, count, since)

    def __str__(self) -> str:
        if self.messages is not None:
            return f"{self.messages:,} messages in {self.topic}"
        if self.published_since is not None:
            return f"a message in {self.topic} published since {_iso(self.published_since)}"
        return f"the topic {self.topic}"


def _whole(value: object) -> int:
    text = str(value).strip()
    if isinstance(value, bool | float) or not text.isdigit() or int(text) < 1:
        validation.refuse(f"messages must be a whole number of at least 1, not {value!r}")
    return int(text)


@dataclass
class _Counted:
    """Messages of a partition counted by reading, up to an id."""

    count: int = 0
    upto: MessageId | None = None


@dataclass
class TopicWatcher:
    """Look at one topic, again and again; belongs to one task, the client may change between looks.

    `seen` says in words what the last look found, `stage` how far it has come: look-up, count or read.
    """

    wanted: TopicCondition
    seen: str = ""
    stage: str = "look-up"
    _found: str = ""
    _counted: dict[str, _Counted] = field(default_factory=dict)
    _searched: dict[str, MessageId] = field(default_factory=dict)

    async def look(self, client: Client) -> dict[str, Any] | None:
        """Return what was found, for JSON, when it is as wanted, else None; raises the client's errors."""
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
            self.seen = "the topic does not exist"
            return None
        names = [topic.with_partition(index).full for index in range(count)] or [topic.full]
        found = {"topic": topic.full, "partitions": count}
        if self.wanted.messages is not None:
            return await self._enough(client, names, found)
        if self.wanted.published_since is not None:
            return await self._recent(client, names, found)
        self.seen = "the topic exists"
        return found

    def failed(self, error: BaseException) -> None:
        """Note that a look ended in an error; what an earlier one saw stays part of the words."""
        text = explain(error, action=f"looking at {self.wanted.topic}", stage=self.stage)
        self.seen = f"{text} (before: {self._found})" if self._found else text

    # ---- messages ----------------------------------------------------------------------------------------------------

    async def _enough(self, client: Client, names: list[str], found: Mapping[str, Any]) -> dict[str, Any] | None:
        self.stage = "count"
        total = sum(await asyncio.gather(*(self._stored(client, name) for name in names)))
        self.seen = f"{total:,} messages are there"
        return {**found, "messages": total} if total >= (self.wanted.messages or 0) else None

    async def _stored(self, client: Client, name: str) -> int:
        from pulsar_native import MessageId

        async with await _reader(client, name, MessageId.earliest) as reader:
            last = await reader.get_last_message_id()
            if last.entry_id() < 0:
                return 0
            known = self._counted.get(name)
            if known is not None and known.upto == last:
                return known.count
            first_index = (await reader.read_next(_READ_MS)).index()
        if first_index is not None and known is None:
            last_index = (await _message_at(client, name, last)).index()
            if last_index is not None:
                return last_index - first_index + 1
        return await self._count(client, name, last, known or _Counted())

    async def _count(self, client: Client, name: str, last: MessageId, known: _Counted) -> int:
        from pulsar_native import MessageId

        start = known.upto or MessageId.earliest
        async with await _reader(client, name, start, inclusive=known.upto is None) as reader:
            async for rows in reader.arrow_batches(columns=("__batchIndex",)):
                known.count += rows.num_rows
        known.upto = last
        self._counted[name] = known
        return known.count

    # ---- time --------------------------------------------------------------------------------------------------------

    async def _recent(self, client: Client, names: list[str], found: Mapping[str, Any]) -> dict[str, Any] | None:
        self.stage = "read"
        newest = max(await asyncio.gather(*(self._newest(client, name) for name in names)))
        self.seen = f"the newest message is of {_iso(newest)}" if newest else "there are no messages"
        wanted = self.wanted.published_since or 0
        return {**found, "published_at": _iso(newest)} if newest and newest >= wanted else None

    async def _newest(self, client: Client, name: str) -> int:
        """Return the publish time of the last message, or of an earlier one that is as recent as wanted; 0 for none."""
        from pulsar_native import MessageId
        from pulsar_native.exceptions import Timeout

        wanted = self.wanted.published_since or 0
        async with await _reader(client, name, MessageId.earliest) as reader:
            last = await reader.get_last_message_id()
            if last.entry_id() < 0:
                return 0
            newest = (await _message_at(client, name, last)).publish_timestamp()
            if newest >= wanted or self._searched.get(name) == last:
                return newest
            # Producers' clocks differ: a message before the last one may carry a later time.
            await reader.seek(wanted)
            try:
                newest = max(newest, (await reader.read_next(_SEARCH_MS)).publish_timestamp())
            except Timeout:
                self._searched[name] = last
        return newest


async def _reader(client: Client, name: str, start: MessageId, *, inclusive: bool = True) -> Reader:
    return await client.create_reader(name, start, start_message_id_inclusive=inclusive)


async def _message_at(client: Client, name: str, place: MessageId) -> Message:
    async with await _reader(client, name, place) as reader:
        return await reader.read_next(_READ_MS)


def _iso(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")
