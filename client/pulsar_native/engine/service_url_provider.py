"""Service URL provider: the cluster in use, watched and changed during the client's life.

Rules: nothing is queried or watched before the first use. A change closes all connections and every handler reconnects
by a new lookup; results of requests begun before a change are recognised by their generation and discarded. Providers
and plug-ins are called off the loop; their errors never end the client. On the loop only, except `push`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from pulsar_native._callback_errors import CALLBACK_ERRORS, cancels_task, result_of
from pulsar_native._loggers import get_logger
from pulsar_native.config import ClientConfig
from pulsar_native.controlled_failover import ControlledClusterFailover
from pulsar_native.engine.loop import Engine, to_plugin_thread
from pulsar_native.engine.proxies import dial_broker
from pulsar_native.engine.tls import tls_context
from pulsar_native.exceptions import (
    AlreadyClosed,
    ErrorGettingAuthenticationData,
    InvalidConfiguration,
    PulsarException,
    log_text,
)
from pulsar_native.protocol.service_resolver import FailoverCore, HostRotation
from pulsar_native.service_info import (
    AutoClusterFailover,
    Credentials,
    PolledServiceInfo,
    ServiceInfo,
    ServiceInfoProvider,
)
from pulsar_native.service_url import Address, ServiceUrl

if TYPE_CHECKING:
    from pulsar_native.service_info import ServiceSource

_log = get_logger("pulsar_native.service")


class ServiceUrlProvider:
    """Cluster of one client. On the loop only, except `push`."""

    def __init__(self, engine: Engine, config: ClientConfig) -> None:
        self._engine = engine
        self._config = config
        self.generation = 0
        self.is_known = False
        self.on_change: Callable[[], None] = lambda: None
        # Set at the next change, and replaced then.
        self._moved = asyncio.Event()
        self._starting = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._provider: ServiceInfoProvider | None = None
        # Started plug-ins, and the one being started.
        self._plugins: list[Credentials] = []
        self._closed = False
        if isinstance(config.service_url, str):
            self._use(self._by_config(str(config.parsed_url())))

    def _by_config(self, url: str) -> ServiceInfo:
        return ServiceInfo(url, self._config.authentication, self._config.tls_trust_certs_file_path)

    # --- current cluster --------------------------------------------------------------------------------------------

    async def known(self) -> ServiceInfo:
        """Return the cluster; calls the provider at the first use, and raises when that fails."""
        if not self.is_known:
            try:
                async with self._starting:
                    if not self.is_known:
                        await self._begin(self._config.service_url)
            except asyncio.CancelledError as error:
                # Of the operation time-out, perhaps.
                error.add_note("the provider of the service URL has not answered yet")
                raise
        return self.info

    async def _begin(self, source: ServiceSource) -> None:
        if isinstance(source, AutoClusterFailover):
            self._use(source.primary)
            self._watching = self._engine.spawn(self._fail_over(source))
        elif isinstance(source, ControlledClusterFailover):
            self._use(self._by_config(source.default_service_url))
            self._watching = self._engine.spawn(self._poll(source, 0))
        elif isinstance(source, PolledServiceInfo) or (
            callable(source) and not hasattr(source, "initial_service_info")
        ):
            polled = source if isinstance(source, PolledServiceInfo) else PolledServiceInfo(source)
            info = await self._asked(polled.supply)
            self._check_open()
            self._use(info)
            self._watching = self._engine.spawn(self._poll(polled, polled.check_interval_ms))
        else:
            # Stored first: closing the client closes it, also during its start.
            self._provider = provider = cast(ServiceInfoProvider, source)
            info = await self._asked(provider.initial_service_info)
            self._check_open()
            self._use(info)
            self.is_known = False
            await self._called("initialize of the ServiceInfoProvider", provider.initialize, self.push)
            self.is_known = True

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("The client is closed")

    async def _asked(self, supply: Callable[[], str | ServiceInfo]) -> ServiceInfo:
        answer = await self._called("The service URL's supplier", supply)
        if isinstance(answer, str):
            return self._by_config(answer)
        if not isinstance(answer, ServiceInfo):
            raise InvalidConfiguration(f"The service URL's supplier returned {type(answer).__name__}, not ServiceInfo")
        own = self._config
        return dataclasses.replace(
            answer,
            authentication=own.authentication if answer.authentication is None else answer.authentication,
            tls_trust_certs_file_path=answer.tls_trust_certs_file_path or own.tls_trust_certs_file_path,
        )

    async def _called(self, what: str, function: Callable[..., Any], *args: Any) -> Any:
        return await to_plugin_thread(result_of, what, InvalidConfiguration, function, *args)

    def _use(self, info: ServiceInfo) -> None:
        url = ServiceUrl.parse(info.service_url)
        config = self._config
        config.check_url(url)
        self.info = info
        self.url = url
        # Of a broker's two addresses that a lookup over HTTP gives, the one with TLS may be wanted.
        self.use_tls = url.use_tls or (config.use_tls and url.is_http)
        self.hosts = self.rotation(self.url)
        self.generation += 1
        self.is_known = True

    def rotation(self, url: ServiceUrl) -> HostRotation[Address]:
        """Return the rotation of a URL's hosts."""
        return HostRotation(
            url.addresses,
            random.random,
            quarantine_initial=self._config.service_url_quarantine_init_duration_seconds,
            quarantine_maximum=self._config.service_url_quarantine_max_duration_seconds,
        )

    async def begin_with(self, authentication: Credentials | None) -> None:
        """Start a plug-in before its first use; each one once, and again after it failed."""
        if authentication is not None and (self._starting.locked() or not self._has_started(authentication)):
            # To its end: a plug-in that is being started must not be started by the next caller, too.
            await self._engine.shield(self._start(authentication))

    def _has_started(self, authentication: Credentials) -> bool:
        return any(authentication is each for each in self._plugins)

    async def _start(self, authentication: Credentials) -> None:
        async with self._starting:
            if self._has_started(authentication):
                return
            self._check_open()
            # Stored first: closing the client closes it, also during its start.
            self._plugins.append(authentication)
            what, failure = "start of the authentication plug-in", ErrorGettingAuthenticationData
            try:
                await to_plugin_thread(result_of, what, failure, authentication.start)
            except PulsarException:
                self._plugins.remove(authentication)
                raise

    # --- changes ----------------------------------------------------------------------------------------------------

    def push(self, info: ServiceInfo) -> None:
        """Move the client to another cluster. Thread-safe; raises ValueError for anything but a ServiceInfo."""
        if not isinstance(info, ServiceInfo):
            raise InvalidConfiguration(f"A ServiceInfo is needed here, not {type(info).__name__}")
        self._config.check_url(ServiceUrl.parse(info.service_url))
        self._engine.call(self.change, info)

    def change(self, info: ServiceInfo) -> None:
        """Move the client to another cluster, or do nothing when it is there already."""
        if self._closed or (self.is_known and info == self.info):
            return
        self._use(info)
        _log.info("The client moves to %s", info.service_url)
        self.on_change()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the client moves: a back-off from one cluster says nothing of the next one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._moved.wait()

    def change_url(self, url: str) -> None:
        """Move the client to another URL, with its current credentials and trusted certificates."""
        self._check_open()
        self.change(dataclasses.replace(self.info, service_url=url))

    async def _poll(self, source: PolledServiceInfo, first_ms: int) -> None:
        delay = first_ms
        while True:
            await asyncio.sleep(delay / 1000)
            delay = source.check_interval_ms
            try:
                self.change(await self._asked(source.supply))
            except PulsarException as error:
                _log.warning("The service URL stays as it is: %s", error)
            except CALLBACK_ERRORS as error:
                if cancels_task(error):
                    raise
                _log.warning("The service URL stays as it is: %s", type(error).__name__)

    async def _fail_over(self, source: AutoClusterFailover) -> None:
        clusters = [source.primary, *source.secondary]
        core = FailoverCore(
            len(clusters),
            failover_threshold=source.failover_threshold,
            switch_back_threshold=source.switch_back_threshold,
        )
        while True:
            try:
                if await self._checked(core, clusters):
                    self.change(clusters[core.current])
            except CALLBACK_ERRORS as error:
                if cancels_task(error):
                    raise
                _log.warning("The check of the clusters failed with %s", type(error).__name__)
            await asyncio.sleep(source.check_interval_ms / 1000)

    async def _checked(self, core: FailoverCore, clusters: list[ServiceInfo]) -> bool:
        check = core.check()
        try:
            asked = next(check)
            while True:
                asked = check.send(await self._answers(clusters[asked]))
        except StopIteration as done:
            return bool(done.value)

    async def _answers(self, info: ServiceInfo) -> bool:
        config, tls = self._config, None
        with contextlib.suppress(PulsarException):
            if config.proxy_address is not None:
                # A connection to the proxy says nothing of the cluster: it finds the broker by the handshake.
                await self.begin_with(info.authentication)
                tls = await to_plugin_thread(tls_context, config, info)
            for address in ServiceUrl.parse(info.service_url).addresses:
                with contextlib.suppress(PulsarException):
                    timeout = config.connection_timeout_ms / 1000
                    (await dial_broker(self._engine, config, address, timeout=timeout, tls=tls)).close()
                    return True
        return False

    # --- close ------------------------------------------------------------------------------------------------------

    def close(self) -> asyncio.Future[Any] | None:
        """Stop watching and close the plug-ins and the provider; returns a future of their ends, if there are any."""
        if self._closed:
            return None
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
        closes = [("close of the authentication plug-in", each.close) for each in self._plugins]
        self._plugins.clear()
        provider, self._provider = self._provider, None
        if provider is not None:
            closes.append(("close of the ServiceInfoProvider", provider.close))
        if not closes:
            return None
        # Each may join a thread of its own, so not on the loop; the loop's end waits for its executor.
        loop = self._engine.loop
        if loop.is_closed():
            for each in closes:
                threading.Thread(target=_close, args=each).start()
            return None
        try:
            return asyncio.gather(*(loop.run_in_executor(None, _close, *each) for each in closes))
        except RuntimeError:
            # At the end of the interpreter executors take nothing any more.
            for each in closes:
                _close(*each)
            return None


def _close(what: str, close: Callable[[], None]) -> None:
    try:
        result_of(what, InvalidConfiguration, close)
    except PulsarException as error:
        _log.warning("Closing the client: %s", log_text(error))
