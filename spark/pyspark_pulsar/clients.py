"""Client cache of a process: one client per configuration, kept between tasks, closed when idle.

A Python worker runs many short tasks, and connecting costs more than a small task. Rules: a client is created on first
use in its process and never crosses a fork. Credentials are read at each use, and changed ones create a new client.
Secrets stay in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from pulsar_native import Client
from pulsar_native.auth import Authentication
from pulsar_native.config import ClientConfig
from pyspark_pulsar.credentials import CredentialsRef

# Spark ends an idle Python worker after a minute.
IDLE_SECONDS = 60.0


class Connection(Protocol):
    """Options that determine the client of a read or a write."""

    @property
    def credentials(self) -> CredentialsRef | None: ...
    @property
    def service_url(self) -> str: ...
    @property
    def client_settings(self) -> tuple[tuple[str, Any], ...]: ...
    def client_config(self) -> ClientConfig: ...


@dataclass(eq=False, slots=True)
class _Entry:
    client: Client
    authentication: Authentication | None
    users: int = 0
    idle_since: float = 0.0
    timer: threading.Timer | None = None


_lock = threading.Lock()
_entries: dict[tuple[Any, ...], _Entry] = {}


@contextlib.contextmanager
def shared_client(options: Connection) -> Iterator[tuple[Client, Authentication | None]]:
    """Return the process's client for these options, and its credentials, as a context manager.

    Blocks for a credentials file; raises `ErrorGettingAuthenticationData` if the credentials are missing. Thread-safe.
    The client stays open for `IDLE_SECONDS` after its last use.
    """
    key = _key(options)
    with _lock:
        entry = _entries.get(key)
        if entry is None:
            authentication = options.credentials.resolve() if options.credentials is not None else None
            client = Client.from_config(options.client_config().replace(authentication=authentication))
            entry = _entries[key] = _Entry(client, authentication)
        entry.users += 1
    try:
        yield entry.client, entry.authentication
    finally:
        _release(key, entry)


def close_clients() -> None:
    """Close the clients that are not in use. Blocks; the others are closed when they become idle."""
    with _lock:
        idle = [key for key, entry in _entries.items() if not entry.users]
        closing = [_entries.pop(key) for key in idle]
    for entry in closing:
        if entry.timer is not None:
            entry.timer.cancel()
        entry.client.close()


def _key(options: Connection) -> tuple[Any, ...]:
    kept = options.credentials.read() if options.credentials is not None else ""
    return (
        options.service_url,
        options.client_settings,
        options.credentials,
        hashlib.sha256(kept.encode()).digest(),
    )


def _release(key: tuple[Any, ...], entry: _Entry) -> None:
    with _lock:
        entry.users -= 1
        if entry.users or _entries.get(key) is not entry:
            return
        entry.idle_since = time.monotonic()
        # A timer that runs already looks at the time when it ends: a thread for each use would cost more than the use.
        if entry.timer is None:
            _start_timer(key, entry, IDLE_SECONDS)


def _start_timer(key: tuple[Any, ...], entry: _Entry, seconds: float) -> None:
    entry.timer = threading.Timer(seconds, _close_idle, (key, entry))
    entry.timer.daemon = True
    entry.timer.name = "pulsar-idle-client"
    entry.timer.start()


def _close_idle(key: tuple[Any, ...], entry: _Entry) -> None:
    with _lock:
        entry.timer = None
        if entry.users or _entries.get(key) is not entry:
            return
        left = entry.idle_since + IDLE_SECONDS - time.monotonic()
        if left > 0:
            _start_timer(key, entry, left)
            return
        del _entries[key]
    entry.client.close()


def _forget_after_fork() -> None:
    """Drop the parent's clients in a child process without closing the parent's connections."""
    global _lock
    _lock = threading.Lock()
    _entries.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
