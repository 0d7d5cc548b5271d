"""TLS contexts of a client's connections: created from its settings, and again when their files have changed.

Rules: files are checked before each new connection, off the loop, so a replaced certificate applies to the next
connection; an unusable replacement (half of a pair is written) is logged, and the last good context stays. A context
passed by the user is used as it is. On the loop only.
"""

from __future__ import annotations

import os
import ssl

from pulsar_native._loggers import get_logger
from pulsar_native.auth import client_tls_context
from pulsar_native.auth.answers import tls_certificate_of
from pulsar_native.config import ClientConfig
from pulsar_native.engine.loop import to_plugin_thread
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.service_info import ServiceInfo

_log = get_logger("pulsar_native.tls")

# Paths with attributes that change with the file's content.
_Fingerprint = tuple[object, ...]


class TlsContexts:
    """TLS contexts of one client. On the loop only."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._made: tuple[_Fingerprint, ssl.SSLContext] | None = None

    async def current(self, info: ServiceInfo) -> ssl.SSLContext:
        """Return the context for a new connection to the cluster; raises `InvalidConfiguration` for unusable files."""
        if self._config.tls_context is not None:
            return self._config.tls_context
        self._made = await to_plugin_thread(_renewed, self._config, info, self._made)
        return self._made[1]


def tls_context(config: ClientConfig, info: ServiceInfo) -> ssl.SSLContext:
    """Return a context for the client's settings on the cluster. Blocking for the files."""
    return config.tls_context or _made(config, info.tls_trust_certs_file_path, _certificate(config, info))


def _renewed(
    config: ClientConfig, info: ServiceInfo, before: tuple[_Fingerprint, ssl.SSLContext] | None
) -> tuple[_Fingerprint, ssl.SSLContext]:
    certificate = _certificate(config, info)
    trusted = info.tls_trust_certs_file_path
    now = (trusted, _state_of(trusted), *((path, _state_of(path)) for path in certificate or ()))
    if before is not None and before[0] == now:
        return before
    try:
        return now, _made(config, trusted, certificate)
    except InvalidConfiguration as error:
        if before is None or before[0][0] != trusted:
            raise
        _log.warning("The replaced TLS files are not used: %s", error)
        return before


def _made(config: ClientConfig, trusted: str | None, certificate: tuple[str, str] | None) -> ssl.SSLContext:
    return client_tls_context(
        trust_certs_file_path=trusted,
        allow_insecure_connection=config.tls_allow_insecure_connection,
        validate_hostname=config.tls_validate_hostname,
        certificate=certificate,
    )


def _certificate(config: ClientConfig, info: ServiceInfo) -> tuple[str, str] | None:
    certificate = None if info.authentication is None else tls_certificate_of(info.authentication)
    if certificate is None and config.tls_certificate_file_path and config.tls_private_key_file_path:
        certificate = (config.tls_certificate_file_path, config.tls_private_key_file_path)
    return certificate


def _state_of(path: str | None) -> tuple[int, ...] | None:
    if not path:
        return None
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # a ValueError is one of a path that cannot be encoded
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
