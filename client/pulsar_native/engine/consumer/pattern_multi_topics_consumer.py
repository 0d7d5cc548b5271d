"""Pattern topics watcher: keeps the topics of a consumer in step with a topics pattern.

Rules: the list is requested at the start and every discovery period, and where the broker can notify of changes
(PIP-145) a watch is registered; the period stays as the fallback. One task does everything in order, so that a list and
a change never overlap. A topic that cannot be subscribed to now is retried and does not affect the others. A topic that
was deleted is closed, not unsubscribed. On the loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pulsar_native._callback_errors import callback_errors, cancels_task
from pulsar_native._loggers import get_logger
from pulsar_native.config import TopicsChangedListener
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.consumer.topic_subscriptions import TopicSubscriptions
from pulsar_native.engine.loop import create_task
from pulsar_native.enums import RegexSubscriptionMode
from pulsar_native.exceptions import PulsarException, TopicNotFound, log_text
from pulsar_native.protocol.backoff import Backoff
from pulsar_native.protocol.topic_pattern import TopicPattern, WantedTopics
from pulsar_native.topic import TopicName
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pulsar_native.engine.client_context import ClientContext

_log = get_logger("pulsar_native.pattern")

TopicsChanged = Callable[[list[str], list[str]], None]
"""Called on the loop with the topics added to and removed from a consumer."""

_NEVER = float("inf")


class PatternTopicsWatcher:
    """Watcher that keeps a consumer subscribed to the topics a pattern matches."""

    def __init__(
        self,
        client: ClientContext,
        subscriptions: TopicSubscriptions,
        pattern: TopicPattern,
        changed: TopicsChanged | None,
    ) -> None:
        self.pattern = pattern
        self._client = client
        self._subscriptions = subscriptions
        self._changed = changed
        self._mode = subscriptions.config.regex_subscription_mode
        self._period = max(1.0, subscriptions.config.pattern_auto_discovery_period)
        self._wanted = WantedTopics(pattern)
        self._updates: deque[pb.CommandWatchTopicUpdate] = deque()
        self._news = asyncio.Event()
        self._watcher_id = client.next_watcher_id()
        self._watched: Connection | None = None
        # Next attempts to register the watch, and to retry failed subscriptions: seconds of the loop's clock.
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
        """True while the broker notifies of changes."""
        return self._watched is not None

    async def open(self) -> None:
        """Subscribe to the matching topics; the first failure, except for a topic deleted meanwhile, is raised."""
        await self._poll()
        added, _, failures = await self._reconcile()
        for error in failures:
            if not isinstance(error, TopicNotFound):
                raise error
        _log.info("%r means %d topics of %s now", self.pattern.text, len(added), self.pattern.namespace)
        self._subscriptions.add_task(self._client.engine.spawn(self._follow()))

    def leave(self, topic: TopicName) -> None:
        """Exclude a topic the application unsubscribed from, until it was deleted and created again."""
        self._wanted.leave(topic)

    def stay(self, topic: TopicName) -> None:
        """Undo `leave`."""
        self._wanted.stay(topic)

    # --- topic changes ----------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        try:
            await self._follow_on()
        finally:
            if self._watched is not None:
                self._watched.remove_watcher(self._watcher_id)
                # The response is ignored: the broker drops the watcher with the connection, too.
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
                self._apply_updates()
                self._notify(*await self._reconcile())
            except PulsarException as error:
                _log.warning("Cannot look for the topics of %r now: %s", self.pattern.text, log_text(error))
            except Exception:
                # The watcher must go on after any error.
                _log.exception("The topics of %r were not followed this time", self.pattern.text)

    async def _poll(self) -> None:
        # Order of events: updates received before the request are applied first, and those received meanwhile after its
        # response, which may be older; a change that is in both is harmless.
        self._apply_updates()
        found = await self._client.lookup.topics_of_namespace(
            self.pattern.namespace,
            self._mode,
            self._client.deadline(),
            pattern=self.pattern.for_broker,
            known_hash=self._wanted.hash,
        )
        if found.changed:
            self._wanted.replace(found.topics, found.hash)

    def _apply_updates(self) -> None:
        while self._updates:
            update = self._updates.popleft()
            self._wanted.update(update.new_topics, update.deleted_topics, update.topics_hash)

    # --- watch ------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Register a watch with the broker; where it has none, the discovery period is used until the next attempt."""
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
            _log.info("Cannot watch the topics of %r: %s", self.pattern.text, log_text(error))
        else:
            self._watch_backoff.reset()

    async def _watch_on(self, connection: Connection) -> None:
        known = self._wanted.hash
        request_id = self._client.next_request_id()
        frame = commands.watch_topic_list(
            self.pattern.namespace, request_id, self._watcher_id, pattern=self.pattern.for_broker, known_hash=known
        )
        # Updates of an earlier connection are older than the response.
        self._apply_updates()
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
        """Queue an update of created and deleted topics."""
        self._updates.append(update)
        self._news.set()

    def on_connection_lost(self, connection: Connection, reason: str) -> None:
        """Register the watch on another connection."""
        loop = self._client.engine.loop
        self._watched = None
        self._watch_at = loop.time() + self._watch_backoff.next(loop.time())
        self._news.set()

    # --- subscriptions ----------------------------------------------------------------------------------------------

    async def _reconcile(self) -> tuple[list[TopicName], list[TopicName], list[BaseException]]:
        """Subscribe to added and remove deleted topics; return what was added, what removed, and the errors."""
        change = self._wanted.change(self._subscriptions.topics)
        for topic in change.removed:
            await self._subscriptions.remove_topic(topic)
        grown = {*change.grown, *self._subscriptions.incomplete}
        works = [*(self._add(topic) for topic in change.added), *(self._grow(topic) for topic in grown)]
        results = await asyncio.gather(*works, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        joined = [topic for topic in change.added if topic in self._subscriptions.topics]
        loop = self._client.engine.loop
        if failures:
            self._retry_at = loop.time() + self._retry_backoff.next(loop.time())
        else:
            self._retry_at = _NEVER
            self._retry_backoff.reset()
        return joined, change.removed, failures

    async def _add(self, topic: TopicName) -> None:
        count = await self._client.partition_count(topic, auto_create=False)
        await self._subscriptions.add_topic(topic, count)

    async def _grow(self, topic: TopicName) -> None:
        if topic in self._subscriptions.topics:
            await self._subscriptions.update_partitions(topic)

    def _notify(self, added: list[TopicName], removed: list[TopicName], failures: list[BaseException]) -> None:
        for error in failures:
            if not isinstance(error, PulsarException):
                raise error
            _log.warning("Not subscribed to a topic of %r yet: %s", self.pattern.text, log_text(error))
        if not added and not removed:
            return
        joined, left = ([topic.full for topic in topics] for topics in (added, removed))
        _log.info("Of %r joined %s, left %s", self.pattern.text, joined, left)
        if self._changed is not None:
            self._changed(joined, left)


def topics_told(listener: TopicsChangedListener, submit: Callable[[Callable[[], None]], None]) -> TopicsChanged:
    """Return a callback that notifies a listener of added and removed topics on a thread of the application."""

    def notify(added: list[str], removed: list[str]) -> None:
        try:
            if removed:
                listener.on_topics_removed(removed)
            if added:
                listener.on_topics_added(added)
        except callback_errors():
            _log.exception("The listener for changed topics failed")

    return lambda added, removed: submit(lambda: notify(added, removed))


def topics_told_on_loop(listener: TopicsChangedListener) -> TopicsChanged:
    """Return a callback that notifies a listener, whose methods may be coroutines, of added and removed topics on the
    loop.
    """
    # Notified in order, one change after the other, however long a coroutine takes.
    last: list[asyncio.Task[None]] = []

    async def notify(before: asyncio.Task[None] | None, added: list[str], removed: list[str]) -> None:
        if before is not None:
            # Without its error, which is not that of this one.
            await asyncio.wait([before])
        try:
            for method, topics in ((listener.on_topics_removed, removed), (listener.on_topics_added, added)):
                result = method(topics) if topics else None
                if inspect.isawaitable(result):
                    await result
        except callback_errors() as error:
            if cancels_task(error):
                raise
            _log.exception("The listener for changed topics failed")

    def changed(added: list[str], removed: list[str]) -> None:
        task = create_task(notify(last[-1] if last else None, added, removed), asyncio.get_running_loop())
        last[:] = [task]

    return changed
