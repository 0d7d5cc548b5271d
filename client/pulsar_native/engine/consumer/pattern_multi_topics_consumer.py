"""The topics of a pattern: found, followed as they come and go, and kept in a consumer.

Rules: the list is asked for at the start and every discovery period, and where the
broker can tell of changes (PIP-145) it is asked to; the period stays as the fallback. One task does everything in
order, so that a list and a change never cross. A topic that cannot be subscribed to now is tried again and leaves the
others alone. A topic that has vanished is closed, not unsubscribed. On the loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pulsar_native.config import TopicsChangedListener
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.enums import RegexSubscriptionMode
from pulsar_native.exceptions import PulsarException, TopicNotFound
from pulsar_native.protocol.backoff import Backoff
from pulsar_native.protocol.topic_pattern import TopicPattern, WantedTopics
from pulsar_native.topic import TopicName
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pulsar_native.engine.client import ClientCore

_log = logging.getLogger("pulsar_native.pattern")

TopicsChanged = Callable[[list[str], list[str]], None]
"""Be told of the topics that joined and left a consumer. Called on the loop."""

_NEVER = float("inf")


class PatternTopicsWatcher:
    """Keeps a consumer subscribed to the topics a pattern means."""

    def __init__(
        self, client: ClientCore, consumer: MultiTopicsConsumer, pattern: TopicPattern, changed: TopicsChanged | None
    ) -> None:
        self.pattern = pattern
        self._client = client
        self._consumer = consumer
        self._changed = changed
        self._mode = consumer.config.regex_subscription_mode
        self._period = max(1.0, consumer.config.pattern_auto_discovery_period)
        self._wanted = WantedTopics(pattern)
        self._updates: deque[pb.CommandWatchTopicUpdate] = deque()
        self._news = asyncio.Event()
        self._watcher_id = client.next_watcher_id()
        self._watched: Connection | None = None
        # When to try to watch, and when to try what failed, again: seconds of the loop's clock.
        self._watch_at = 0.0 if self._mode is RegexSubscriptionMode.PersistentOnly else _NEVER
        self._retry_at = _NEVER
        self._watch_backoff = self._backoff()
        self._retry_backoff = self._backoff()

    def _backoff(self) -> Backoff:
        config = self._client.config
        first = config.starting_backoff_interval_ms / 1000
        return Backoff(first, min(config.max_backoff_interval_ms / 1000, self._period), random.random)

    @property
    def is_watched(self) -> bool:
        """Whether the broker tells of changes at present."""
        return self._watched is not None

    async def open(self) -> None:
        """Subscribe to the topics there are; the first failure, but for a topic that has just gone, is raised."""
        await self._poll()
        added, _, failures = await self._reconcile()
        for error in failures:
            if not isinstance(error, TopicNotFound):
                raise error
        _log.info("%r means %d topics of %s now", self.pattern.text, len(added), self.pattern.namespace)
        self._consumer.add_task(self._client.engine.spawn(self._follow()))

    def leave(self, topic: TopicName) -> None:
        """Do not subscribe again to a topic the application unsubscribed from, until it is a new one."""
        self._wanted.leave(topic)

    def stay(self, topic: TopicName) -> None:
        """Take `leave` back."""
        self._wanted.stay(topic)

    # --- following ----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            await self._follow_on()
        finally:
            if self._watched is not None:
                self._watched.remove_watcher(self._watcher_id)
                # The answer is of no interest: the broker forgets the watcher with the connection, too.
                self._watched.write([commands.close_topic_list_watch(self._client.next_request_id(), self._watcher_id)])

    async def _follow_on(self) -> None:
        loop = self._client.engine.loop
        poll_at = loop.time() + self._period
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(poll_at, self._watch_at, self._retry_at)):
                    await self._news.wait()
            self._news.clear()
            try:
                if loop.time() >= self._watch_at:
                    await self._watch()
                if loop.time() >= poll_at:
                    poll_at = loop.time() + self._period
                    await self._poll()
                self._take_updates()
                self._tell(*await self._reconcile())
            except PulsarException as error:
                _log.warning("Cannot look for the topics of %r now: %s", self.pattern.text, error)
            except Exception:
                # Whatever it is, the topics must be followed on.
                _log.exception("The topics of %r were not followed this time", self.pattern.text)

    async def _poll(self) -> None:
        # Order of events: what the broker told before it is asked is taken first, and what it tells meanwhile on top of
        # its answer, which may be older; a change that is in both does no harm.
        self._take_updates()
        found = await self._client.lookup.topics_of_namespace(
            self.pattern.namespace,
            self._mode,
            self._client.deadline(),
            pattern=self.pattern.for_broker,
            known_hash=self._wanted.hash,
        )
        if found.changed:
            self._wanted.replace(found.topics, found.hash)

    def _take_updates(self) -> None:
        while self._updates:
            update = self._updates.popleft()
            self._wanted.update(update.new_topics, update.deleted_topics, update.topics_hash)

    # --- watching -----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Ask the broker to tell of changes; where it does not, the period has to do until we ask again."""
        loop = self._client.engine.loop
        self._watch_at = loop.time() + self._period
        if self._client.service.url.is_http:
            return
        try:
            connection = await self._client.pool.to_service()
            flags = connection.core.feature_flags
            if flags is None or not flags.supports_topic_watchers:
                return
            await self._watch_on(connection)
        except PulsarException as error:
            if error.retryable:
                self._watch_at = loop.time() + self._watch_backoff.next(loop.time())
            _log.info("The broker does not tell about topics of %r now: %s", self.pattern.text, error)
        else:
            self._watch_backoff.reset()

    async def _watch_on(self, connection: Connection) -> None:
        known = self._wanted.hash
        request_id = self._client.next_request_id()
        frame = commands.watch_topic_list(
            self.pattern.namespace, request_id, self._watcher_id, pattern=self.pattern.for_broker, known_hash=known
        )
        # What it told over an earlier connection is older than the answer.
        self._take_updates()
        connection.add_watcher(self._watcher_id, self)
        try:
            answer = await connection.request(request_id, frame, pb.CommandWatchTopicListSuccess)
        except BaseException:
            connection.remove_watcher(self._watcher_id)
            raise
        if answer.topics_hash != known:
            self._wanted.replace(answer.topic, answer.topics_hash)
        if connection.is_open:
            self._watched = connection
            self._watch_at = _NEVER

    def on_topics_update(self, update: pb.CommandWatchTopicUpdate) -> None:
        """Take note of topics that came or went."""
        self._updates.append(update)
        self._news.set()

    def on_connection_lost(self, connection: Connection, reason: str) -> None:
        """Watch on another connection."""
        loop = self._client.engine.loop
        self._watched = None
        self._watch_at = loop.time() + self._watch_backoff.next(loop.time())
        self._news.set()

    # --- subscribing --------------------------------------------------------------------------------------------------

    async def _reconcile(self) -> tuple[list[TopicName], list[TopicName], list[BaseException]]:
        """Make the consumer's topics those that are wanted; return what joined, what left, and what went wrong."""
        change = self._wanted.change(self._consumer.topics)
        for topic in change.removed:
            await self._consumer.remove_topic(topic)
        grown = change.grown if self._consumer.config.auto_update_partitions else []
        works = [*(self._add(topic) for topic in change.added), *(self._grow(topic) for topic in grown)]
        results = await asyncio.gather(*works, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        joined = [topic for topic in change.added if topic in self._consumer.topics]
        loop = self._client.engine.loop
        if failures:
            self._retry_at = loop.time() + self._retry_backoff.next(loop.time())
        else:
            self._retry_at = _NEVER
            self._retry_backoff.reset()
        return joined, change.removed, failures

    async def _add(self, topic: TopicName) -> None:
        count = await self._client.partition_count(topic, auto_create=False)
        await self._consumer.add_topic(topic, count)

    async def _grow(self, topic: TopicName) -> None:
        if topic in self._consumer.topics:
            await self._consumer.update_partitions(topic)

    def _tell(self, added: list[TopicName], removed: list[TopicName], failures: list[BaseException]) -> None:
        for error in failures:
            if not isinstance(error, PulsarException):
                raise error
            _log.warning("Not subscribed to a topic of %r yet: %s", self.pattern.text, error)
        if not added and not removed:
            return
        joined, left = ([topic.full for topic in topics] for topics in (added, removed))
        _log.info("Of %r joined %s, left %s", self.pattern.text, joined, left)
        if self._changed is not None:
            self._changed(joined, left)


def topics_told(listener: TopicsChangedListener, submit: Callable[[Callable[[], None]], None]) -> TopicsChanged:
    """Return what tells a listener of topics that joined and left, on a thread of the application's side."""

    def tell(added: list[str], removed: list[str]) -> None:
        try:
            if removed:
                listener.on_topics_removed(removed)
            if added:
                listener.on_topics_added(added)
        except Exception:
            _log.exception("The listener for changed topics failed")

    return lambda added, removed: submit(lambda: tell(added, removed))


def topics_told_on_loop(listener: TopicsChangedListener) -> TopicsChanged:
    """Return what tells a listener whose methods may be coroutines of topics that joined and left, on the loop."""
    # Told in order, one change after the other, however long a coroutine takes.
    last: list[asyncio.Task[None]] = []

    async def tell(before: asyncio.Task[None] | None, added: list[str], removed: list[str]) -> None:
        if before is not None:
            await before
        try:
            for method, topics in ((listener.on_topics_removed, removed), (listener.on_topics_added, added)):
                result = method(topics) if topics else None
                if inspect.isawaitable(result):
                    await result
        except Exception:
            _log.exception("The listener for changed topics failed")

    def changed(added: list[str], removed: list[str]) -> None:
        task = asyncio.get_running_loop().create_task(tell(last[-1] if last else None, added, removed))
        last[:] = [task]

    return changed
