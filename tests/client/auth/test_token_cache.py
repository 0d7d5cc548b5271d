"""The cache of fetched tokens: one fetch for all callers, also when it fails, and the last token while it is valid."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulsar_native.auth.token_cache import FetchedToken, TokenCache
from pulsar_native.exceptions import ConnectError


class Issuer:
    """Issuer of tokens that are due for another fetch at once, and end after `lifetime` seconds."""

    def __init__(self, lifetime: float = 100.0) -> None:
        self.fetches = 0
        self.lifetime = lifetime
        self.is_broken = False

    def __call__(self) -> FetchedToken:
        self.fetches += 1
        if self.is_broken:
            raise ConnectError("broken")
        return FetchedToken(f"token-{self.fetches}", 0.0, time.time() + self.lifetime)


def test_valid_token_is_kept_when_a_fetch_fails() -> None:
    issuer, cache = Issuer(), TokenCache()
    assert cache.last is None
    assert [cache.get(issuer), cache.get(issuer)] == ["token-1", "token-2"]
    issuer.is_broken = True
    assert cache.get(issuer) == cache.last == "token-2" and issuer.fetches == 3


def test_ended_token_is_not_returned_when_a_fetch_fails() -> None:
    issuer, cache = Issuer(lifetime=-1.0), TokenCache()
    cache.get(issuer)
    issuer.is_broken = True
    with pytest.raises(ConnectError):
        cache.get(issuer)


def test_callers_during_a_failing_fetch_get_its_error() -> None:
    cache, go, fetches = TokenCache(), threading.Event(), []
    arrived, lock = threading.Semaphore(0), cache._fork_safe_lock

    def arriving_lock() -> threading.Lock:
        arrived.release()
        return lock()

    def fetch() -> FetchedToken:
        fetches.append(1)
        assert go.wait(10)
        raise ConnectError("broken")

    cache._fork_safe_lock = arriving_lock  # type: ignore[method-assign]
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(cache.get, fetch) for _ in range(8)]
        assert all(arrived.acquire(timeout=10) for _ in calls)
        go.set()
        errors = [call.exception(10) for call in calls]
    assert {type(error) for error in errors} == {ConnectError} and len({id(error) for error in errors}) == 8
    assert len(fetches) == 1
    with pytest.raises(ConnectError):
        cache.get(fetch)
    assert len(fetches) == 2


def test_token_is_not_in_its_repr() -> None:
    assert "secret" not in repr(FetchedToken("secret", 0.0, 0.0))
