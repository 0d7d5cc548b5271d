"""Connection pool: one connection per broker (or several), created on demand, shared by all producers and consumers.

Rules: the key is the broker's logical address and a slot; concurrent requests for the same key share one attempt; a
failed or closed connection is removed from the pool, so that the next request dials again, and one that is unused for
`connection_max_idle_seconds` is closed. Behind a proxy the socket goes to the service URL and the handshake names the
broker. When the client moves to another cluster, the pool is emptied. On the loop only; a coroutine begun by the
calling thread gets an open connection there, and goes to the loop for everything else.
"""

from __future__ import annotations

import asyncio
import copy
import random

from pulsar_native._loggers import get_logger
from pulsar_native.config import ClientConfig
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.loop import Engine, wait_for_shared
from pulsar_native.engine.metrics.meter import NetworkMeter
from pulsar_native.engine.service_url_provider import ServiceUrlProvider
from pulsar_native.engine.tls import TlsContexts
from pulsar_native.exceptions import AlreadyClosed, ConnectError, PulsarException, Timeout
from pulsar_native.service_url import Address, ServiceUrl

_log = get_logger("pulsar_native.pool")

_Key = tuple[Address, Address, int]


class ConnectionPool:
    """All connections of one client. On the loop, but that any thread gets a connection that is open."""

    def __init__(self, engine: Engine, config: ClientConfig, service: ServiceUrlProvider) -> None:
        self._engine = engine
        self._config = config
        self._service = service
        service.on_change = self.leave
        self._connections: dict[_Key, asyncio.Task[Connection]] = {}
        self._unpooled: set[Connection] = set()
        self._tls = TlsContexts(config)
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.meter: NetworkMeter | None = None

    def next_host(self) -> Address:
        """Return the service URL's next host: the first one random, then in the order they are written."""
        return self._service.hosts.next(self._engine.loop.time())

    async def to_service(self, at: ServiceUrl | None = None) -> Connection:
        """Return a connection to any host of the service URL (or of `at`); unreachable hosts are skipped."""
        if at is None and self._service.is_known and len(self._service.hosts) == 1:
            # No choice, and nothing to note about the host: also by the calling thread.
            (address,) = self._service.url.addresses
            return await self.get(address, address)
        await self._engine.enter_loop()
        if at is None:
            await self._service.known()
        hosts = self._service.hosts if at is None else self._service.rotation(at)
        error: PulsarException | None = None
        for _ in range(len(hosts)):
            address = hosts.next(self._engine.loop.time())
            try:
                return await self.get(address, address)
            except (ConnectError, Timeout) as failure:
                error = failure
        assert error is not None
        raise error

    async def get(self, logical: Address, physical: Address) -> Connection:
        """Return the connection to the broker `logical`; dial `physical` when there is none."""
        if self._closed:
            raise AlreadyClosed("The client is closed")
        slots = self._config.connections_per_broker
        if slots == 0:
            await self._engine.enter_loop()
            connection = await self._open(logical, physical)
            connection.on_gone = self._unpooled.discard
            self._unpooled.add(connection)
            self._watch_idle()
            return connection
        key = (logical, physical, random.randrange(slots) if slots > 1 else 0)
        ready = self._ready(key)
        if ready is not None:
            return ready
        await self._engine.enter_loop()
        task = self._connections.get(key)
        if task is None or (task.done() and not _usable(task)):
            task = self._engine.loop.create_task(self._dial(key))
            # All waiting callers may have been cancelled: a failure without a waiter is not worth a warning.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._connections[key] = task
        # One caller's cancellation must not end the attempt the others wait for.
        try:
            connection = await wait_for_shared(task)
        except asyncio.CancelledError as error:
            # Of the operation time-out, perhaps.
            error.add_note(f"no connection to {physical} yet")
            raise
        except PulsarException as error:
            # Several callers may wait for one attempt, and each adds its own context to the error.
            raise copy.copy(error) from error
        connection.touch()
        return connection

    def only_connection(self, logical: Address, physical: Address) -> Connection | None:
        """Return the connection that `get` returns each time, None while there is none, or where it may be another."""
        is_one = self._config.connections_per_broker == 1 and not self._closed
        return self._ready((logical, physical, 0)) if is_one else None

    def _ready(self, key: _Key) -> Connection | None:
        task = self._connections.get(key)
        if task is None or not _usable(task):
            return None
        connection = task.result()
        connection.touch()
        return connection

    async def _dial(self, key: _Key) -> Connection:
        mine = asyncio.current_task()
        try:
            connection = await self._open(key[0], key[1])
        except BaseException:
            # After a cluster change the key may belong to another attempt already.
            if self._connections.get(key) is mine:
                del self._connections[key]
            raise
        connection.on_gone = lambda _: self._forget(key, connection)
        self._watch_idle()
        return connection

    def _forget(self, key: _Key, connection: Connection) -> None:
        task = self._connections.get(key)
        finished = task is not None and task.done() and not task.cancelled() and task.exception() is None
        if task is not None and finished and task.result() is connection:
            del self._connections[key]

    async def _open(self, logical: Address, physical: Address) -> Connection:
        service, loop = self._service, self._engine.loop
        generation, hosts, info, use_tls = service.generation, service.hosts, service.info, service.use_tls
        await service.begin_with(info.authentication)
        tls = await self._tls.current(info) if use_tls else None
        attempt = None if self.meter is None else self.meter.attempt()
        try:
            connection = await Connection.open(
                self._engine,
                self._config,
                physical=physical,
                logical=logical,
                tls=tls,
                authentication=info.authentication,
                attempt=attempt,
            )
        except Exception as error:
            if attempt is not None:
                attempt.failed(error)
            if isinstance(error, ConnectError | Timeout):
                hosts.failed(physical, loop.time())
            raise
        if self._closed:
            connection.close()
            raise AlreadyClosed("The client was closed meanwhile")
        hosts.succeeded(physical)
        if generation != service.generation:
            connection.close("the client has moved to another cluster")
            raise ConnectError("The client has moved to another cluster meanwhile", broker=str(logical))
        return connection

    # --- cluster change ---------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Close all connections, since the client has moved; attempts in progress fail by themselves when done."""
        connections = self.connections()
        # Cleared first: a handler that reconnects immediately must find none of these.
        self._connections.clear()
        self._unpooled.clear()
        for connection in connections:
            connection.close("the client moves to another cluster")

    def _watch_idle(self) -> None:
        limit = self._config.connection_max_idle_seconds
        if limit > 0 and self._idle_timer is None and not self._closed:
            self._idle_timer = self._engine.loop.call_later(limit / 4, self._release_idle)

    def _release_idle(self) -> None:
        self._idle_timer = None
        now = self._engine.loop.time()
        for connection in self.connections():
            if connection.idle_seconds(now) >= self._config.connection_max_idle_seconds:
                _log.debug("Closing the idle connection to %s", connection.broker)
                connection.close("it was idle")
        if self._connections or self._unpooled:
            self._watch_idle()

    def connections(self) -> list[Connection]:
        """Return the open connections."""
        pooled = [task.result() for task in list(self._connections.values()) if _usable(task)]
        return pooled + [connection for connection in list(self._unpooled) if connection.is_open]

    def close(self) -> None:
        """Close every connection and cancel the attempts in progress."""
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for connection in self.connections():
            connection.close()
        for task in self._connections.values():
            task.cancel()
        self._connections.clear()
        self._unpooled.clear()


def _usable(task: asyncio.Task[Connection]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None and task.result().is_open
