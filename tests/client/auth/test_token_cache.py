"""The cache of fetched tokens: the last token while it is valid, and one fetch for all callers, also when it fails."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulsar_native.auth import token_cache
from pulsar_native.auth.token_cache import FetchedToken, TokenCache
from pulsar_native.exceptions import ConnectError
from support.clock import stopped_clock


class Issuer:
    """Issuer of tokens of 100 s, due for another fetch after 40 s; a fetch waits for `go`."""

    def __init__(self, lifetime: float = 100.0, early: float = 60.0) -> None:
        self.fetches = 0
        self.lifetime, self.early = lifetime, early
        self.is_broken = False
        self.go = threading.Event()
        self.go.set()
        self.threads: list[threading.Thread] = []

    def __call__(self) -> FetchedToken:
        self.fetches += 1
        number = self.fetches
        self.threads.append(threading.current_thread())
        assert self.go.wait(10)
        if self.is_broken:
            raise ConnectError("broken")
        return FetchedToken(f"token-{number}", self.lifetime, self.early)


def end_refresh(cache: TokenCache) -> None:
    """Wait for the fetch in the background."""
    assert cache._refresher is not None
    cache._refresher.join(10)
    assert not cache._refresher.is_alive()


def test_due_token_is_returned_during_a_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, token_cache)
    issuer, cache = Issuer(), TokenCache()
    assert cache.get(issuer) == "token-1"
    clock.advance(39.9)
    assert cache.get(issuer) == "token-1" and issuer.fetches == 1
    clock.advance(0.2)
    issuer.go.clear()
    # The issuer does not answer: nobody waits for it, and it is asked once.
    assert {cache.get(issuer) for _ in range(5)} == {"token-1"}
    assert cache._refresher is not None and cache._refresher.daemon
    issuer.go.set()
    end_refresh(cache)
    assert cache.get(issuer) == cache.last == "token-2"
    assert issuer.threads == [threading.current_thread(), cache._refresher]


def test_valid_token_is_kept_when_a_refresh_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = stopped_clock(monkeypatch, token_cache)
    issuer, cache = Issuer(), TokenCache()
    cache.get(issuer)
    issuer.is_broken = True
    clock.advance(50)
    assert cache.get(issuer) == "token-1"
    end_refresh(cache)
    assert "cannot be refreshed yet" in caplog.text and "broken" in caplog.text
    # Not repeated at once, but after a while.
    clock.advance(9.9)
    assert cache.get(issuer) == "token-1" and issuer.fetches == 2
    clock.advance(0.2)
    assert cache.get(issuer) == "token-1"
    end_refresh(cache)
    assert issuer.fetches == 3


@pytest.mark.parametrize(("early", "late"), [(60.0, 95.1), (2.0, 99.1)])
def test_late_token_is_replaced_or_kept(monkeypatch: pytest.MonkeyPatch, early: float, late: float) -> None:
    clock = stopped_clock(monkeypatch, token_cache)
    issuer, cache = Issuer(early=early), TokenCache()
    cache.get(issuer)
    clock.advance(late)
    issuer.is_broken = True
    assert [cache.get(issuer), cache.get(issuer)] == ["token-1"] * 2 and issuer.fetches == 2
    clock.advance(100 - late)
    with pytest.raises(ConnectError):
        cache.get(issuer)
    issuer.is_broken = False
    assert cache.get(issuer) == "token-4"
    clock.advance(late)
    assert cache.get(issuer) == "token-5" and cache._refresher is None


def test_no_token_before_the_first_fetch() -> None:
    assert TokenCache().last is None


def test_thread_that_cannot_start_leaves_valid_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    clock = stopped_clock(monkeypatch, token_cache)
    issuer, cache = Issuer(), TokenCache()
    cache.get(issuer)
    clock.advance(50)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        assert cache.get(issuer) == "token-1"
    cache.get(issuer)
    end_refresh(cache)
    assert cache.get(issuer) == "token-2"


@pytest.mark.parametrize("clock_name", ["_time", "_monotonic"], ids=["wall", "monotonic"])
def test_token_ends_when_one_clock_stands_still(monkeypatch: pytest.MonkeyPatch, clock_name: str) -> None:
    # The wall clock is set back, or the monotonic one stands still while the machine is suspended.
    clock = stopped_clock(monkeypatch, token_cache)
    issuer, cache = Issuer(), TokenCache()
    cache.get(issuer)
    clock.advance(101)
    setattr(clock, clock_name, getattr(clock, clock_name) - 101)
    assert cache.get(issuer) == "token-2"


def test_refused_token_is_replaced_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, token_cache)
    issuer, cache = Issuer(), TokenCache()
    cache.on_refused()
    cache.get(issuer)
    # What the issuer has just given it would give again.
    cache.on_refused()
    clock.advance(4.9)
    cache.on_refused()
    assert cache.get(issuer) == "token-1"
    clock.advance(0.2)
    cache.on_refused()
    assert [cache.get(issuer), cache.get(issuer)] == ["token-2"] * 2 and issuer.fetches == 2
    # The broker's trouble, not the token's: it is used again while the issuer has no other.
    issuer.is_broken = True
    clock.advance(6)
    for _ in range(3):
        cache.on_refused()
        assert cache.get(issuer) == "token-2"
    assert issuer.fetches == 3
    issuer.is_broken = False
    clock.advance(10)
    assert cache.get(issuer) == "token-4"


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
