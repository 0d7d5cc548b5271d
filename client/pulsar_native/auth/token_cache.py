"""Cache of a token that a plug-in fetches: one fetch at a time, shortly before the last token ends.

Rules: a valid token is returned at once; when it is about to end, one fetch runs in the background, on a daemon thread.
Callers wait for a fetch only without a valid token, or when the last one ends within seconds or was refused by a
broker; callers during a fetch get its result, and its error, too. A fetch that fails while the last token is still
valid is not an error, and is not repeated for 10 s. Thread-safe, also in a child forked during a fetch.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pulsar_native._loggers import get_logger
from pulsar_native.exceptions import PulsarException, log_text

_log = get_logger("pulsar_native.auth")

# A token that ends sooner may not reach the broker in time: another one is waited for.
_LATE_SECONDS = 5.0
# Pause after a failed fetch, while the last token is valid.
_RETRY_SECONDS = 10.0
# A token refused earlier than this after its fetch is no reason for another: the issuer would be asked endlessly.
_REFUSABLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class FetchedToken:
    """Text of a token, its lifetime from the start of the fetch, and how long before its end to fetch another; all in
    seconds.
    """

    text: str = field(repr=False)
    lifetime: float
    early: float


@dataclass(frozen=True, slots=True)
class _Moment:
    # Of both clocks: one may be set, and the other stands still while the machine is suspended.
    wall: float
    monotonic: float

    @classmethod
    def now(cls) -> _Moment:
        return cls(time.time(), time.monotonic())

    def seconds_ago(self) -> float:
        return max(time.time() - self.wall, time.monotonic() - self.monotonic)


@dataclass(frozen=True, slots=True)
class _Held:
    token: FetchedToken
    since: _Moment

    def ends_within(self, seconds: float) -> bool:
        return self.since.seconds_ago() >= self.token.lifetime - seconds

    def is_due(self) -> bool:
        return self.ends_within(self.token.early)

    def is_late(self) -> bool:
        return self.ends_within(min(_LATE_SECONDS, self.token.early / 2))

    def has_ended(self) -> bool:
        return self.ends_within(0.0)


class TokenCache:
    """The last token of a plug-in."""

    def __init__(self) -> None:
        self._held: _Held | None = None
        # The token that a broker refused.
        self._refused: _Held | None = None
        # Of the last fetch, if it failed.
        self._failure: Exception | None = None
        self._failed_at: _Moment | None = None
        self._lock = threading.Lock()
        self._lock_pid = os.getpid()
        self._refresher: threading.Thread | None = None

    @property
    def last(self) -> str | None:
        """Return the last token, which may have ended, None while there is none."""
        return self._held.token.text if self._held else None

    def get(self, fetch: Callable[[], FetchedToken]) -> str:
        """Return the token; blocks for a fetch when there is none, or it ends within seconds, or was refused."""
        known_failure = self._failure
        held = self._held
        if held is not None and not self._is_wanted_now(held):
            if held.is_due() and not self._has_just_failed():
                self._refresh_in_background(fetch)
            return held.token.text
        with self._fork_safe_lock():
            held = self._held
            if held is not None and not self._is_wanted_now(held):
                return held.token.text
            try:
                self._held = held = self._fetch_once(fetch, known_failure)
            except Exception:
                if held is None or held.has_ended():
                    raise
            return held.token.text

    def on_refused(self) -> None:
        """Fetch another token at the next use, unless the last one was fetched within the last seconds.

        Where that fails, the last one is used until its end: the broker may refuse for reasons of its own.
        """
        held = self._held
        if held is not None and held.since.seconds_ago() >= _REFUSABLE_SECONDS:
            self._refused = held

    def _is_wanted_now(self, held: _Held) -> bool:
        """Return True if callers wait for another token than this one."""
        if held.has_ended():
            return True
        return (held.is_late() or held is self._refused) and not self._has_just_failed()

    def _has_just_failed(self) -> bool:
        failed_at = self._failed_at
        return failed_at is not None and failed_at.seconds_ago() < _RETRY_SECONDS

    def _fork_safe_lock(self) -> threading.Lock:
        # A child forked during a fetch inherits the lock as held by a thread it does not have.
        if self._lock_pid != os.getpid():
            self._lock, self._lock_pid = threading.Lock(), os.getpid()
        return self._lock

    def _refresh_in_background(self, fetch: Callable[[], FetchedToken]) -> None:
        lock = self._fork_safe_lock()
        if not lock.acquire(blocking=False):
            # A fetch is under way.
            return
        try:
            if self._refresher is None or not self._refresher.is_alive():
                # A daemon: an issuer that does not answer must not keep the process.
                self._refresher = threading.Thread(
                    target=self._refresh, args=(fetch,), name="pulsar-native-token", daemon=True
                )
                self._refresher.start()
        except RuntimeError as error:
            # No more threads, or the interpreter ends: the token is still valid.
            _log.debug("No thread to refresh the token: %s", error)
        finally:
            lock.release()

    def _refresh(self, fetch: Callable[[], FetchedToken]) -> None:
        with self._fork_safe_lock():
            held = self._held
            if held is None or not held.is_due():
                # A caller has fetched one meanwhile.
                return
            try:
                self._held = self._fetch_once(fetch, self._failure)
            except Exception as error:
                reason = log_text(error) if isinstance(error, PulsarException) else type(error).__name__
                _log.warning("The token cannot be refreshed yet, the last one is used until its end: %s", reason)

    def _fetch_once(self, fetch: Callable[[], FetchedToken], known_failure: Exception | None) -> _Held:
        """Fetch a token, or raise the error of the fetch that the caller has waited for. With the lock."""
        if self._failure is not None and self._failure is not known_failure:
            raise copy.copy(self._failure)
        begun = _Moment.now()
        try:
            token = fetch()
        except Exception as error:
            # A copy for each caller, which may complete it; without the traceback, whose frames refer to the secret.
            self._failure, self._failed_at = copy.copy(error), _Moment.now()
            raise
        self._failure = self._failed_at = None
        return _Held(token, begun)
