"""Lookup: the broker that serves a topic, numbers of partitions, namespace topics, schemas.

Rules: every lookup starts at the service URL; a redirect is followed with the response's `authoritative` flag, at most
`max_lookup_redirects` times; transient errors (broker starting, bundle moving) are retried with back-off until the
operation time-out, permanent ones fail immediately. Concurrent lookups are limited, and so are waiting ones. With an
http(s) service URL the web service is used instead. On the loop; the first attempt may be begun by the calling thread,
which reads the responses itself while nothing but them arrives.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from pulsar_native.config import ClientConfig
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.eager_call import EagerCall
from pulsar_native.engine.http_lookup import HttpLookup
from pulsar_native.engine.lookup_limit import LookupLimit, LookupQueueIsFull
from pulsar_native.engine.loop import Engine
from pulsar_native.engine.metrics.meter import NetworkMeter
from pulsar_native.engine.pool import ConnectionPool
from pulsar_native.engine.service_url_provider import ServiceUrlProvider
from pulsar_native.enums import RegexSubscriptionMode
from pulsar_native.exceptions import (
    BrokerMetadataError,
    ConnectError,
    ConnectTimeout,
    LookupError,
    PulsarException,
    ReadError,
    ServiceUnitNotReady,
    Timeout,
    TopicNotFound,
)
from pulsar_native.protocol.backoff import Backoff
from pulsar_native.protocol.topic_pattern import TopicListing
from pulsar_native.service_url import Address, ServiceUrl
from pulsar_native.topic import TopicName
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

T = TypeVar("T")

# Far more than a cluster serves.
_MAX_PARTITIONS = 100_000
# Cached: each access is a search by name.
_CONNECT = pb.CommandLookupTopicResponse.Connect
_NO_TOPIC = (
    "The topic or its namespace does not exist: create it or publish to it first; as installed, a broker deletes a "
    "topic without producer and subscription after about a minute"
)


class BrokerOfTopic(NamedTuple):
    """Addresses of the broker that serves a topic: its own, and the one to dial."""

    logical: Address
    physical: Address


class Lookup:
    """Lookups of one client. On the loop, or begun by the calling thread (`Engine.run_eager`)."""

    def __init__(
        self,
        engine: Engine,
        config: ClientConfig,
        pool: ConnectionPool,
        service: ServiceUrlProvider,
        request_ids: itertools.count[int],
    ):
        self._engine = engine
        self._config = config
        self._pool = pool
        self._service = service
        self._request_ids = request_ids
        self._http = HttpLookup(engine, config, service)
        slots = config.concurrent_lookup_requests
        self._limit = LookupLimit(engine, slots, max(0, config.max_lookup_requests - slots))
        self.meter: NetworkMeter | None = None

    async def _admitted(self, kind: str, question: Callable[[], Awaitable[T]], at: ServiceUrl | None = None) -> T:
        """Run a lookup when the limit allows; raises `TooManyLookupRequestException` when too many wait already.

        `kind` is the lookup type of PIP-342, `at` the cluster if it is not the client's.
        """
        if self.meter is not None:
            await self._engine.enter_loop()
        if not self._limit.try_acquire():
            await self._engine.enter_loop()
            await self._limit.acquire()
        try:
            return await (question() if self.meter is None else self._measured(self.meter, kind, question, at))
        finally:
            self._limit.release()

    async def _measured(
        self, meter: NetworkMeter, kind: str, question: Callable[[], Awaitable[T]], at: ServiceUrl | None
    ) -> T:
        began, failed = self._engine.loop.time(), True
        try:
            answer = await question()
            failed = False
            return answer
        finally:
            # A cancelled one has failed, too: the operation time-out ends it that way.
            is_http = at.is_http if at is not None else self._service.is_known and self._service.url.is_http
            meter.looked_up(kind, "http" if is_http else "binary", self._engine.loop.time() - began, failed=failed)

    async def _is_http(self, at: ServiceUrl | None) -> bool:
        if at is None and self._service.is_known and not self._service.url.is_http:
            return False
        await self._engine.enter_loop()
        if at is not None:
            return at.is_http
        await self._service.known()
        return self._service.url.is_http

    async def broker_of(
        self, topic: TopicName, deadline: float | None = None, *, at: ServiceUrl | None = None
    ) -> BrokerOfTopic:
        """Return the broker that serves the topic. One attempt without `deadline`, else retried until then.

        `at` is the service URL of another cluster than the client's, to which the topic has migrated.
        """
        if deadline is None:
            return await self._admitted("topic", lambda: self._broker_of(topic, at), at)
        return await self.retry(lambda: self.broker_of(topic, at=at), topic, deadline)

    async def _broker_of(self, topic: TopicName, at: ServiceUrl | None) -> BrokerOfTopic:
        is_http = await self._is_http(at)
        generation = self._service.generation
        if is_http:
            address = await self._http.broker_of(topic)
            found = BrokerOfTopic(address, address)
        else:
            found = await self._binary_broker_of(topic, at)
        if at is None and generation != self._service.generation:
            raise ServiceUnitNotReady("The client has moved to another cluster meanwhile", topic=topic.full)
        return found

    async def _binary_broker_of(self, topic: TopicName, at: ServiceUrl | None) -> BrokerOfTopic:
        connection = await self._pool.to_service(at)
        service = connection.address
        authoritative = False
        for _ in range(self._config.max_lookup_redirects + 1):
            request_id = next(self._request_ids)
            frame = self._lookup_frame(topic, request_id, authoritative=authoritative)
            answer = await self._ask(connection, request_id, frame, topic, pb.CommandLookupTopicResponse)
            found = self._found(answer, topic, service)
            if answer.response == _CONNECT:
                return found
            authoritative = answer.authoritative
            connection = await self._pool.get(*found)
        raise LookupError(
            f"The brokers redirected the lookup more than {self._config.max_lookup_redirects} times", topic=topic.full
        )

    def _lookup_frame(self, topic: TopicName, request_id: int, *, authoritative: bool) -> bytes:
        return commands.lookup(
            topic.full, request_id, authoritative=authoritative, listener_name=self._config.listener_name
        )

    def _found(self, answer: pb.CommandLookupTopicResponse, topic: TopicName, service: Address) -> BrokerOfTopic:
        address = self._address(answer, topic)
        # Behind a proxy (and on a standalone, which sets the flag too) only the service URL can be reached.
        return BrokerOfTopic(address, service if answer.proxy_through_service_url else address)

    def _address(self, answer: pb.CommandLookupTopicResponse, topic: TopicName) -> Address:
        tls = self._service.use_tls
        url = answer.brokerServiceUrlTls if tls else answer.brokerServiceUrl
        if not url:
            what = "TLS address" if tls else "address without TLS"
            raise LookupError(f"The broker of the topic has no {what}", topic=topic.full)
        return ServiceUrl.parse(url).addresses[0]

    async def partitions(self, topic: TopicName, deadline: float, *, auto_create: bool = True) -> int:
        """Return the topic's number of partitions, 0 for an unpartitioned topic; retried until the deadline.

        With `auto_create=False` a missing topic raises `TopicNotFound`.
        """
        return await self.retry(
            lambda: self._admitted("metadata", lambda: self._partitions(topic, auto_create)), topic, deadline
        )

    async def partitions_and_broker(
        self, topic: TopicName, deadline: float, meanwhile: Callable[[], None]
    ) -> tuple[int, BrokerOfTopic | None]:
        """Return the topic's number of partitions, and of an unpartitioned one perhaps the broker that serves it.

        Called by a thread that reads responses itself: both are asked at once where the limit has room for two, the
        second in vain for a partitioned topic. None stands for a broker that is to be looked up the usual way.
        `meanwhile` is called by that thread while the broker works on them, or not at all.
        """
        if self._engine.on_loop() or self.meter is not None:
            return await self.partitions(topic, deadline), None
        return await self.retry(
            lambda: self._admitted("metadata", lambda: self._partitions_and_broker(topic, meanwhile)), topic, deadline
        )

    async def _partitions_and_broker(
        self, topic: TopicName, meanwhile: Callable[[], None]
    ) -> tuple[int, BrokerOfTopic | None]:
        if self._engine.on_loop() or await self._is_http(None) or not self._limit.try_acquire():
            return await self._partitions(topic, True), None
        try:
            generation = self._service.generation
            connection = await self._pool.to_service()
            ids = next(self._request_ids), next(self._request_ids)
            frames = commands.partition_metadata(topic.full, ids[0], auto_create=True)
            frames += self._lookup_frame(topic, ids[1], authoritative=False)
            begun = (
                None if self._engine.on_loop() else connection.begin_inline_requests(ids, frames, meanwhile=meanwhile)
            )
            if begun is None:
                return await self._partitions(topic, True), None
            try:
                counted = await self._answer(
                    connection.answer(ids[0], begun[0], pb.CommandPartitionedTopicMetadataResponse), topic, connection
                )
                if counted.partitions:
                    return _checked_count(counted.partitions, topic), None
                try:
                    answer = await connection.answer(ids[1], begun[1], pb.CommandLookupTopicResponse)
                    is_found = answer.response == _CONNECT
                    found = self._found(answer, topic, connection.address) if is_found else None
                except PulsarException:
                    found = None
            finally:
                connection.forget(ids[1], begun[1])
            return 0, found if generation == self._service.generation else None
        finally:
            self._limit.release()

    async def _partitions(self, topic: TopicName, auto_create: bool) -> int:
        if await self._is_http(None):
            return _checked_count(await self._http.partitions(topic, auto_create), topic)
        connection = await self._pool.to_service()
        request_id = next(self._request_ids)
        frame = commands.partition_metadata(topic.full, request_id, auto_create=auto_create)
        expected = pb.CommandPartitionedTopicMetadataResponse
        answer = await self._ask(connection, request_id, frame, topic, expected)
        return _checked_count(answer.partitions, topic)

    async def topics_of_namespace(
        self,
        namespace: str,
        mode: RegexSubscriptionMode,
        deadline: float,
        *,
        pattern: str | None = None,
        known_hash: str = "",
    ) -> TopicListing:
        """Return the full names of a namespace's topics, partitions each by its own; retried until the deadline.

        The broker may apply the pattern (then `filtered` is True), and may omit the list when its hash is the known one
        (then `changed` is False). A pattern it does not support is omitted.
        """
        # Errors of a lookup contain a topic; this one stands for the namespace.
        anybody = TopicName.parse(f"persistent://{namespace}/topics")

        async def ask(asked: str | None) -> TopicListing:
            if await self._is_http(None):
                return TopicListing(await self._http.topics_of_namespace(namespace, mode))
            connection = await self._pool.to_service()
            request_id = next(self._request_ids)
            frame = commands.topics_of_namespace(namespace, request_id, int(mode), pattern=asked, known_hash=known_hash)
            answer = await self._ask(connection, request_id, frame, anybody, pb.CommandGetTopicsOfNamespaceResponse)
            return TopicListing(list(answer.topics), answer.filtered, answer.changed, answer.topics_hash)

        async def once() -> TopicListing:
            try:
                return await ask(pattern)
            except BrokerMetadataError:
                # The retry without it also works for patterns RE2 has no syntax for, such as a look-ahead.
                if pattern is None:
                    raise
                return await ask(None)

        return await self.retry(lambda: self._admitted("list-topics", once), anybody, deadline)

    async def schema(self, topic: TopicName, version: bytes | None, deadline: float) -> pb.CommandGetSchemaResponse:
        """Return the topic's schema, the latest or one version; raises `TopicNotFound` when it has none."""

        async def once() -> pb.CommandGetSchemaResponse:
            if await self._is_http(None):
                return await self._http.schema(topic, version)
            broker = await self._broker_of(topic, None)
            connection = await self._pool.get(*broker)
            request_id = next(self._request_ids)
            frame = commands.get_schema(topic.full, request_id, version)
            return await self._ask(connection, request_id, frame, topic, pb.CommandGetSchemaResponse)

        return await self.retry(lambda: self._admitted("schema", once), topic, deadline)

    async def _ask(
        self, connection: Connection, request_id: int, frame: bytes, topic: TopicName, expected: type[T]
    ) -> T:
        return await self._answer(connection.request(request_id, frame, expected), topic, connection)

    async def _answer(self, asked: Awaitable[T], topic: TopicName, connection: Connection) -> T:
        try:
            return await asked
        except asyncio.CancelledError as error:
            # Of the operation time-out, perhaps.
            error.add_note(f"no answer from {connection.address}")
            raise
        except PulsarException as error:
            error.topic = topic.full
            # The name of the code stands for an empty text.
            if isinstance(error, TopicNotFound) and error.message == "TopicNotFound":
                error.message = _NO_TOPIC
            raise

    async def retry(
        self, attempt: Callable[[], Coroutine[Any, Any, T]], topic: TopicName, deadline: float, *, patient: bool = False
    ) -> T:
        """Retry until it succeeds, the deadline passes, or the error is permanent.

        A broker that does not answer within the connect time-out ends it, one that refuses a connection does not. A
        patient attempt may outlast the deadline: it bounds its own requests; only trying again is bounded here.
        """
        if self._engine.on_loop():
            return await self._retry(attempt, topic, deadline, patient)
        begun = EagerCall(attempt())
        if begun.is_done and not begun.has_raised(PulsarException):
            # An error of another class is that of a signal's handler: a time limit of the application, perhaps.
            return begun.result()
        try:
            # Its rest on the loop, where it can be timed.
            await self._engine.enter_loop()
        except BaseException:
            begun.close()
            raise
        first = [begun]
        return await self._retry(lambda: first.pop() if first else attempt(), topic, deadline, patient)

    async def _retry(self, attempt: Callable[[], Awaitable[T]], topic: TopicName, deadline: float, patient: bool) -> T:
        loop = self._engine.loop
        backoff: Backoff | None = None
        generation = self._service.generation
        last: PulsarException | None = None
        for attempts in itertools.count(1):
            try:
                async with asyncio.timeout_at(None if patient else deadline):
                    return await attempt()
            except ConnectTimeout as error:
                error.topic, error.attempts = topic.full, attempts
                raise
            except TimeoutError as error:
                # The deadline set here, or a broker that did not respond: the error before it is more helpful.
                if isinstance(error, PulsarException):
                    last = error
                elif last is None:
                    # The cancellation that it caused has passed through what was waited for.
                    waited_for = "; ".join(["", *getattr(error.__cause__, "__notes__", ())])
                    last = Timeout(f"The operation was not finished within operation_timeout_seconds{waited_for}")
                    last.__cause__ = error
            except PulsarException as error:
                last = error
                if not error.retryable or isinstance(error, LookupQueueIsFull):
                    error.topic = topic.full
                    raise
            last.topic = topic.full
            last.attempts = attempts
            if backoff is None or generation != self._service.generation:
                generation = self._service.generation
                backoff = self._backoff()
            delay = backoff.next(loop.time())
            if loop.time() + delay >= deadline:
                raise _in_time(last)
            await self._service.pause(delay)
        raise AssertionError("unreachable")

    def _backoff(self) -> Backoff:
        return Backoff(
            self._config.starting_backoff_interval_ms / 1000,
            self._config.max_backoff_interval_ms / 1000,
            random.random,
        )


def _checked_count(count: int, topic: TopicName) -> int:
    # Every partition costs memory, and time of the loop that all clients share.
    if not 0 <= count <= _MAX_PARTITIONS:
        raise ReadError(f"The number of partitions is not from 0 to {_MAX_PARTITIONS}", topic=topic.full)
    return count


def _in_time(error: PulsarException) -> PulsarException:
    """Return the last error at the deadline: where no broker could be reached it is a time-out, too."""
    if type(error) is not ConnectError:
        return error
    late = ConnectTimeout(error.message, topic=error.topic, broker=error.broker, attempts=error.attempts)
    late.__cause__ = error
    return late
