"""The pool of connections: one per broker (or several), made on demand, shared by all producers and consumers.

Rules: the key is the broker's logical address and a slot; concurrent requests for the same key share one attempt; a
failed or closed connection leaves the pool, so that the next request dials again. Behind a proxy the socket goes to the
service URL and the handshake names the broker. On the loop only.
"""

from __future__ import annotations

import asyncio
import copy
import random
import ssl

from pulsar_native.auth import client_tls_context
from pulsar_native.config import ClientConfig
from pulsar_native.engine.connection import Connection
from pulsar_native.engine.loop import Engine
from pulsar_native.exceptions import AlreadyClosed, ConnectError, PulsarException, Timeout
from pulsar_native.service_url import Address, ServiceUrl

_Key = tuple[Address, Address, int]


class ConnectionPool:
    """All connections of one client. On the loop only."""

    def __init__(self, engine: Engine, config: ClientConfig) -> None:
        self._engine = engine
        self._config = config
        self.service_url: ServiceUrl = config.parsed_url()
        self._connections: dict[_Key, asyncio.Task[Connection]] = {}
        self._unpooled: set[Connection] = set()
        self._next_host = random.randrange(len(self.service_url.addresses))
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    def next_host(self) -> Address:
        """Return the service URL's next host: the first one random, then in the order they are written."""
        addresses = self.service_url.addresses
        address = addresses[self._next_host % len(addresses)]
        self._next_host += 1
        return address

    async def to_service(self) -> Connection:
        """Return a connection to any host of the service URL; hosts that cannot be reached are passed over."""
        error: PulsarException | None = None
        for _ in self.service_url.addresses:
            address = self.next_host()
            try:
                return await self.get(address, address)
            except (ConnectError, Timeout) as failure:
                error = failure
        assert error is not None
        raise error

    async def get(self, logical: Address, physical: Address) -> Connection:
        """Return a connection to the broker `logical`, dialled at `physical` unless there is one."""
        if self._closed:
            raise AlreadyClosed("The client is closed")
        slots = self._config.connections_per_broker
        if slots == 0:
            connection = await self._open(logical, physical)
            connection.on_gone = self._unpooled.discard
            self._unpooled.add(connection)
            return connection
        key = (logical, physical, random.randrange(slots))
        task = self._connections.get(key)
        if task is None or (task.done() and not _usable(task)):
            task = self._engine.loop.create_task(self._dial(key))
            # All who waited may have been cancelled: a failure nobody asks for any more is not worth a warning.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._connections[key] = task
        # One caller's cancellation must not end the attempt the others wait for.
        try:
            return await asyncio.shield(task)
        except PulsarException as error:
            # Several may wait for one attempt, and each adds to its error what it was about.
            raise copy.copy(error) from error

    async def _dial(self, key: _Key) -> Connection:
        try:
            connection = await self._open(key[0], key[1])
        except BaseException:
            self._connections.pop(key, None)
            raise
        connection.on_gone = lambda _: self._forget(key, connection)
        if self._closed:
            connection.close()
            raise AlreadyClosed("The client was closed meanwhile")
        return connection

    def _forget(self, key: _Key, connection: Connection) -> None:
        task = self._connections.get(key)
        finished = task is not None and task.done() and not task.cancelled() and task.exception() is None
        if task is not None and finished and task.result() is connection:
            del self._connections[key]

    async def _open(self, logical: Address, physical: Address) -> Connection:
        return await Connection.open(
            self._engine, self._config, physical=physical, logical=logical, tls=await self._tls_context()
        )

    async def _tls_context(self) -> ssl.SSLContext | None:
        if not self.service_url.use_tls:
            return None
        if self._tls is None:
            config = self._config
            certificate = config.authentication.tls_certificate() if config.authentication else None
            if certificate is None and config.tls_certificate_file_path and config.tls_private_key_file_path:
                certificate = (config.tls_certificate_file_path, config.tls_private_key_file_path)
            # Reads files, so not on the loop.
            self._tls = await asyncio.to_thread(
                client_tls_context,
                trust_certs_file_path=config.tls_trust_certs_file_path,
                allow_insecure_connection=config.tls_allow_insecure_connection,
                validate_hostname=config.tls_validate_hostname,
                certificate=certificate,
            )
        return self._tls

    def connections(self) -> list[Connection]:
        """Return the open connections."""
        pooled = [task.result() for task in self._connections.values() if _usable(task)]
        return pooled + [connection for connection in self._unpooled if connection.is_open]

    def close(self) -> None:
        """Close every connection and give up the attempts under way."""
        self._closed = True
        for connection in self.connections():
            connection.close()
        for task in self._connections.values():
            task.cancel()
        self._connections.clear()
        self._unpooled.clear()


def _usable(task: asyncio.Task[Connection]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None and task.result().is_open
