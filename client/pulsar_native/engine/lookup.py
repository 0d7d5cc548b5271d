"""Finding things out before a producer or consumer exists: which broker serves a topic, how many partitions it has.

Rules: every lookup starts at the service URL; a redirect is followed with the `authoritative` flag of the answer, at
most `max_lookup_redirects` times; what may pass (broker starting, bundle moving) is tried again with back-off until
the operation time-out, what cannot pass fails at once. Simultaneous lookups are bounded. On the loop only.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from pulsar_native.config import ClientConfig
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.loop import Engine
from pulsar_native.engine.pool import ConnectionPool
from pulsar_native.exceptions import LookupError, PulsarException, Timeout
from pulsar_native.protocol.backoff import Backoff
from pulsar_native.service_url import Address, ServiceUrl
from pulsar_native.topic import TopicName
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

T = TypeVar("T")


class BrokerOfTopic(NamedTuple):
    """Where a topic is served: the broker's own address, and the one to dial."""

    logical: Address
    physical: Address


class Lookup:
    """Lookups of one client. On the loop only."""

    def __init__(self, engine: Engine, config: ClientConfig, pool: ConnectionPool, request_ids: itertools.count[int]):
        self._engine = engine
        self._config = config
        self._pool = pool
        self._request_ids = request_ids
        self._running = asyncio.Semaphore(config.concurrent_lookup_requests)

    async def broker_of(self, topic: TopicName, deadline: float | None = None) -> BrokerOfTopic:
        """Return which broker serves the topic. One attempt without `deadline`, else retried until then."""
        if deadline is None:
            async with self._running:
                return await self._broker_of(topic)
        return await self.retry(lambda: self.broker_of(topic), topic, deadline)

    async def _broker_of(self, topic: TopicName) -> BrokerOfTopic:
        connection = await self._pool.to_service()
        service = connection.address
        authoritative = False
        for _ in range(self._config.max_lookup_redirects + 1):
            request_id = next(self._request_ids)
            frame = commands.lookup(
                topic.full, request_id, authoritative=authoritative, listener_name=self._config.listener_name
            )
            answer = await self._ask(connection, request_id, frame, topic, pb.CommandLookupTopicResponse)
            address = self._address(answer, topic)
            # Behind a proxy (and on a standalone, which says so too) the service URL is the one that can be reached.
            physical = service if answer.proxy_through_service_url else address
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return BrokerOfTopic(address, physical)
            authoritative = answer.authoritative
            connection = await self._pool.get(address, physical)
        raise LookupError(
            f"The brokers redirected the lookup more than {self._config.max_lookup_redirects} times", topic=topic.full
        )

    def _address(self, answer: pb.CommandLookupTopicResponse, topic: TopicName) -> Address:
        tls = self._pool.service_url.use_tls
        url = answer.brokerServiceUrlTls if tls else answer.brokerServiceUrl
        if not url:
            what = "TLS address" if tls else "address without TLS"
            raise LookupError(f"The broker of the topic has no {what}", topic=topic.full)
        return ServiceUrl.parse(url).addresses[0]

    async def partitions(self, topic: TopicName, deadline: float, *, auto_create: bool = True) -> int:
        """Return the topic's number of partitions, 0 for a topic without; retried until the deadline.

        With `auto_create=False` a topic that does not exist raises `TopicNotFound`.
        """
        return await self.retry(lambda: self._partitions(topic, auto_create), topic, deadline)

    async def _partitions(self, topic: TopicName, auto_create: bool) -> int:
        async with self._running:
            connection = await self._pool.to_service()
            request_id = next(self._request_ids)
            frame = commands.partition_metadata(topic.full, request_id, auto_create=auto_create)
            expected = pb.CommandPartitionedTopicMetadataResponse
            answer = await self._ask(connection, request_id, frame, topic, expected)
            return int(answer.partitions)

    async def schema(self, topic: TopicName, version: bytes | None, deadline: float) -> pb.CommandGetSchemaResponse:
        """Return the topic's schema, the newest or one version; raises `TopicNotFound` when it has none."""

        async def once() -> pb.CommandGetSchemaResponse:
            async with self._running:
                broker = await self._broker_of(topic)
                connection = await self._pool.get(*broker)
                request_id = next(self._request_ids)
                frame = commands.get_schema(topic.full, request_id, version)
                return await self._ask(connection, request_id, frame, topic, pb.CommandGetSchemaResponse)

        return await self.retry(once, topic, deadline)

    async def _ask(
        self, connection: Connection, request_id: int, frame: bytes, topic: TopicName, expected: type[T]
    ) -> T:
        try:
            return await connection.request(request_id, frame, expected)
        except PulsarException as error:
            error.topic = topic.full
            if not error.message:
                error.message = f"The broker knows no topic {topic.full}"
            raise

    async def retry(
        self, attempt: Callable[[], Awaitable[T]], topic: TopicName, deadline: float, *, patient: bool = False
    ) -> T:
        """Try until it works, the deadline passes, or the error is one that no waiting mends.

        A patient attempt may outlast the deadline: it bounds its own requests; only trying again is bounded here.
        """
        loop = self._engine.loop
        backoff = Backoff(
            self._config.starting_backoff_interval_ms / 1000,
            self._config.max_backoff_interval_ms / 1000,
            random.random,
        )
        last: PulsarException | None = None
        for attempts in itertools.count(1):
            try:
                async with asyncio.timeout_at(None if patient else deadline):
                    return await attempt()
            except TimeoutError as error:
                # Our own deadline, or a broker that did not answer: what went wrong before tells more.
                if isinstance(error, PulsarException):
                    last = error
                elif last is None:
                    last = Timeout("The operation was not finished within operation_timeout_seconds")
                    last.__cause__ = error
            except PulsarException as error:
                last = error
                if not error.retryable:
                    raise
            last.topic = topic.full
            last.attempts = attempts
            delay = backoff.next(loop.time())
            if loop.time() + delay >= deadline:
                raise last
            await asyncio.sleep(delay)
        raise AssertionError("unreachable")
