"""Cache of a token that a plug-in fetches: one fetch at a time, shortly before the last token ends.

Rules: callers during a fetch wait for its result, and get its error, too; a fetch that fails while the last token is
still valid is not an error. Thread-safe, also in a child forked during a fetch.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FetchedToken:
    """Text of a token, the times, in seconds since the epoch, from which to fetch another, and at which it ends."""

    text: str = field(repr=False)
    refresh_at: float
    ends_at: float


class TokenCache:
    """The last token of a plug-in."""

    def __init__(self) -> None:
        self._token: FetchedToken | None = None
        # Of the last fetch, if it failed.
        self._failure: Exception | None = None
        self._lock = threading.Lock()
        self._lock_pid = os.getpid()

    @property
    def last(self) -> str | None:
        """Return the last token, which may have ended, None while there is none."""
        return self._token.text if self._token else None

    def get(self, fetch: Callable[[], FetchedToken]) -> str:
        """Return the token, fetched when there is none or it is about to end; blocks for the fetch."""
        known_failure = self._failure
        with self._fork_safe_lock():
            token = self._token
            if token is not None and time.time() < token.refresh_at:
                return token.text
            try:
                self._token = token = self._fetch_once(fetch, known_failure)
            except Exception:
                if token is None or time.time() >= token.ends_at:
                    raise
            return token.text

    def _fork_safe_lock(self) -> threading.Lock:
        # A child forked during a fetch inherits the lock as held by a thread it does not have.
        if self._lock_pid != os.getpid():
            self._lock, self._lock_pid = threading.Lock(), os.getpid()
        return self._lock

    def _fetch_once(self, fetch: Callable[[], FetchedToken], known_failure: Exception | None) -> FetchedToken:
        """Fetch a token, or raise the error of the fetch that the caller has waited for. With the lock."""
        if self._failure is not None and self._failure is not known_failure:
            raise copy.copy(self._failure)
        try:
            token = fetch()
        except Exception as error:
            # A copy for each caller, which may complete it; without the traceback, whose frames refer to the secret.
            self._failure = copy.copy(error)
            raise
        self._failure = None
        return token
