"""Connection check in stages, for connection tests; and the name of the codec in use.

Rules: the check ends within the time given, at the first stage that fails; several hosts of a service URL are checked
concurrently, of which one must answer. Nothing is created on the cluster. No text has a secret of the authentication
plug-in.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from pulsar_native.admin import AdminClient
from pulsar_native.auth import Authentication
from pulsar_native.auth.answers import secrets_of
from pulsar_native.config import ClientConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.connection import Connection, credentials_of
from pulsar_native.engine.loop import Engine, acquire_thread_engine, generation, release_thread_engine
from pulsar_native.engine.proxies import dial_broker, first_hop
from pulsar_native.engine.tls import tls_context
from pulsar_native.exceptions import AuthenticationError, AuthorizationError, PulsarException, TopicNotFound
from pulsar_native.service_info import ServiceInfo
from pulsar_native.service_url import Address, ServiceUrl
from pulsar_native.topic import TopicName
from pulsar_native.wire import _impl

DEFAULT_TOPIC = "persistent://public/default/connection-test"
# Limit for joining the engine's thread, which a name resolver that does not answer keeps.
_JOIN_SECONDS = 1.0
_VERSION = re.compile(r"\d+(\.\d+)+\S*")


class Stage(NamedTuple):
    """Result of one stage; `detail` may be empty.

    Names: resolve, TCP, TLS, credentials, CONNECT ("authentication" if that failed), lookup, admin.
    """

    name: str
    ok: bool
    detail: str = ""

    def __str__(self) -> str:
        if self.ok:
            return f"{self.name} ok ({self.detail})" if self.detail else f"{self.name} ok"
        return f"{self.name} failed: {self.detail}"


@dataclass(frozen=True)
class Diagnosis:
    """Result of a connection check: stages in order, up to the one that failed, and remarks on hosts that failed.

    `codec` is the result of `codec()` in this process.
    """

    stages: tuple[Stage, ...]
    remarks: tuple[str, ...] = ()
    codec: str = field(default_factory=lambda: codec())

    @property
    def ok(self) -> bool:
        """True if every stage passed."""
        return all(stage.ok for stage in self.stages)

    def __str__(self) -> str:
        return "; ".join([", ".join(map(str, self.stages)), *self.remarks])


def codec() -> str:
    """Return the implementation of the hot codecs in this process: "compiled", or "python" for pure Python.

    It is chosen at import by the environment variable PULSAR_NATIVE_IMPL; by default the compiled one is used if it is
    installed. Both have the same behaviour.
    """
    return _impl.name


def diagnose(
    config: ClientConfig, *, admin_url: str | None = None, topic: str | None = None, timeout_seconds: float = 10
) -> Diagnosis:
    """Check the connection to a cluster: name, TCP, TLS, credentials, handshake, lookup, admin interface.

    Blocks up to `timeout_seconds`; thread-safe. Failed stages are part of the result; raises only for arguments
    (`InvalidUrl`, `InvalidTopicName`, `InvalidConfiguration`).

    :param config: configuration of the client to check.
    :param admin_url: URL of the admin interface. Default None: not checked.
    :param topic: topic to look up. Default None: `persistent://public/default/connection-test`, for which an
        authorization error counts as success, since the credentials may be limited to other namespaces.
    :param timeout_seconds: limit in seconds. Default 10.
    """
    walk = ConnectionCheck(config, topic, timeout_seconds)
    admin = _admin(config, admin_url, timeout_seconds) if admin_url else None
    made_in = generation()
    engine = acquire_thread_engine()
    try:
        found = engine.run(walk.walk(engine, admin))
    finally:
        release_thread_engine(made_in, _JOIN_SECONDS)
    return _masked(found, secrets_of(config.authentication))


def _masked(found: Diagnosis, secrets: Sequence[str]) -> Diagnosis:
    def masked(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "***")
        return text

    stages = (stage._replace(detail=masked(stage.detail)) for stage in found.stages)
    return Diagnosis(tuple(stages), tuple(masked(remark) for remark in found.remarks))


def _admin(config: ClientConfig, admin_url: str, timeout_seconds: float) -> AdminClient:
    authentication = config.authentication
    return AdminClient(
        admin_url,
        authentication if isinstance(authentication, Authentication) else None,
        tls_trust_certs_file_path=config.tls_trust_certs_file_path,
        tls_allow_insecure_connection=config.tls_allow_insecure_connection,
        tls_validate_hostname=config.tls_validate_hostname,
        timeout_seconds=timeout_seconds / 2,
    )


class _Failed(Exception):
    """The walk is over: the last stage of the list says why."""


@dataclass
class _Path:
    """Stages of one host so far."""

    address: Address
    stages: list[Stage] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(stage.ok for stage in self.stages)

    def failure(self) -> str:
        return next((f"{self.address}: {stage}" for stage in self.stages if not stage.ok), "")


class ConnectionCheck:
    """One connection check. Its coroutines run on the engine's loop."""

    def __init__(self, config: ClientConfig, topic: str | None, timeout_seconds: float) -> None:
        self._url = config.parsed_url()
        self._topic = TopicName.parse(topic or DEFAULT_TOPIC)
        self._topic_was_given = topic is not None
        # A stage that hangs must leave time for reporting it, and half of the time for the later stages.
        self._total = timeout_seconds * 0.9
        self._cap = timeout_seconds * 0.45
        self._config = config.replace(
            # The limits of the stages apply first, since their errors name the stage.
            operation_timeout_seconds=timeout_seconds,
            connection_timeout_ms=int(timeout_seconds * 1000),
            connections_per_broker=1,
        )
        self._deadline = 0.0

    async def walk(self, engine: Engine, admin: AdminClient | None) -> Diagnosis:
        self._deadline = engine.loop.time() + self._total
        paths = [_Path(address) for address in self._url.addresses]
        await asyncio.gather(*(self._to_host(engine, path) for path in paths))
        good = [path for path in paths if path.ok]
        # Of several failed hosts, the one with the most stages is reported.
        best = good[0] if good else max(paths, key=lambda path: len(path.stages))
        remarks = tuple(path.failure() for path in paths if path is not best and not path.ok)
        stages = best.stages
        if good:
            with contextlib.suppress(_Failed):
                await self._lookup(engine, [path.address for path in good], stages)
                if admin is not None:
                    await self._ask_admin(admin, stages)
        return Diagnosis(tuple(stages), remarks)

    async def _to_host(self, engine: Engine, path: _Path) -> None:
        with contextlib.suppress(_Failed):
            await self._reach(engine, path)

    async def _reach(self, engine: Engine, path: _Path) -> None:
        address, stages, config = path.address, path.stages, self._config
        async with self._stage("resolve", stages, quiet=True):
            await _resolve(first_hop(config, address))
        async with self._stage("TCP", stages):
            (await dial_broker(engine, config, address, timeout=self._total, tls=None)).close()
        tls = None
        if self._url.use_tls:
            async with self._stage("TLS", stages):
                tls = await asyncio.to_thread(_tls_context, config)
                (await dial_broker(engine, config, address, timeout=self._total, tls=tls)).close()
        if self._url.is_http:
            # An HTTP service URL is for lookups only; the broker is connected to after the lookup.
            return
        async with self._stage("credentials", stages, quiet=True):
            await credentials_of(config.authentication)
        async with self._stage("CONNECT", stages):
            connection = await Connection.open(
                engine,
                config,
                physical=address,
                logical=address,
                tls=tls,
                authentication=config.authentication,
            )
            version = _VERSION.search(connection.core.server_version)
            connection.close()
        if version is not None:
            stages[-1] = Stage("CONNECT", True, f"Pulsar {version[0]}")

    async def _lookup(self, engine: Engine, addresses: Sequence[Address], stages: list[Stage]) -> None:
        url = ServiceUrl(self._url.scheme, tuple(addresses))
        core = ClientCore(engine, self._config.replace(service_url=str(url)))
        try:
            async with self._stage("lookup", stages):
                try:
                    found = await core.lookup.broker_of(self._topic)
                except TopicNotFound:
                    if self._topic_was_given:
                        raise
                    return
                except AuthorizationError:
                    if self._topic_was_given:
                        raise
                    stages.append(Stage("lookup", True, f"answered, but not allowed for {self._topic.full}"))
                    return
                await self._reach_broker(core, found.logical, found.physical)
        finally:
            core.shutdown()

    async def _reach_broker(self, core: ClientCore, logical: Address, physical: Address) -> None:
        try:
            await core.pool.get(logical, physical)
        except PulsarException as error:
            error.message = (
                f"it names the broker {logical}, which cannot be reached from here ({error.message}); check the "
                "broker's advertised address, or the listener name"
            )
            raise

    async def _ask_admin(self, admin: AdminClient, stages: list[Stage]) -> None:
        async with self._stage("admin", stages):
            try:
                await asyncio.to_thread(admin.clusters)
            except AuthorizationError:
                # The role was authenticated, which is all that this stage checks.
                stages.append(Stage("admin", True, "answered, but not allowed to list the clusters"))

    @asynccontextmanager
    async def _stage(self, name: str, stages: list[Stage], *, quiet: bool = False) -> AsyncIterator[None]:
        """Record the result of a stage within its share of the time; a quiet stage is recorded only if it fails."""
        before = len(stages)
        left = min(self._cap, self._deadline - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(left):
                yield
        except PulsarException as error:
            refused = name == "CONNECT" and isinstance(error, AuthenticationError)
            said = (error.message or type(error).__name__) + _FIXES.get(name, "")
            stages.append(Stage("authentication" if refused else name, False, said))
        except TimeoutError:
            stages.append(Stage(name, False, f"no answer within {max(left, 0):.1f} s{_HINTS.get(name, '')}"))
        except OSError as error:
            stages.append(Stage(name, False, (error.strerror or str(error)) + _FIXES.get(name, "")))
        else:
            if not quiet and len(stages) == before:
                stages.append(Stage(name, True))
            return
        raise _Failed


_HINTS = {
    "CONNECT": "; is this the broker's binary port, and does TLS match the URL's scheme?",
    "TLS": "; is this the broker's TLS port?",
    "admin": "; is this the web service of the brokers?",
}
# Of a stage that failed at once, where the error itself does not say what to look at.
_FIXES = {
    "resolve": "; check the host of the service URL",
    "TCP": "; is a broker running there, and are host and port those of its binary protocol?",
}


async def _resolve(address: Address) -> None:
    loop = asyncio.get_running_loop()
    try:
        await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OSError(error.errno, f"the host name {address.host!r} cannot be resolved: {error.strerror}") from error
    except UnicodeError as error:  # A name that is no host name fails in its encoding.
        raise OSError(f"the host name {address.host!r} cannot be resolved: {error}") from error


def _tls_context(config: ClientConfig) -> ssl.SSLContext:
    info = ServiceInfo(str(config.parsed_url()), config.authentication, config.tls_trust_certs_file_path)
    return tls_context(config, info)
