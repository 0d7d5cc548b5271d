"""Blocking waits of a thread."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from pulsar_native.engine.waiter import SendWait, Wait
from pulsar_native.exceptions import AlreadyClosed
from pulsar_native.message_id import MessageId


def test_wait_after_wake_returns() -> None:
    wait = Wait()
    wait.wake()
    wait.wake()
    assert wait.wait(0)


def test_wait_deadline_also_past() -> None:
    started = time.monotonic()
    assert not Wait().wait(0.05)
    assert 0.05 <= time.monotonic() - started < 2
    assert not Wait().wait(-5)


def test_wait_woken_by_other_thread() -> None:
    wait = Wait()
    timer = threading.Timer(0.05, wait.wake)
    timer.start()
    assert wait.wait(10)
    timer.join()


def test_send_wait_is_callback() -> None:
    wait = SendWait()
    place = MessageId(0, 1, 2)
    wait(None, place)
    assert wait.result() is place
    failed = SendWait()
    failed(AlreadyClosed("no"), None)
    with pytest.raises(AlreadyClosed, match="no"):
        failed.result()


@pytest.mark.timeout(20)
def test_send_wait_outcome_without_wake_up() -> None:
    class AtTheRecursionLimit(SendWait):
        def wake(self) -> None:
            raise RecursionError

    wait, place = AtTheRecursionLimit(), MessageId(0, 1, 2)
    with pytest.raises(RecursionError):
        wait(None, place)
    assert wait.result() is place


def test_wait_interrupted_by_ctrl_c() -> None:
    wait = Wait()
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    # A run started in the background of a shell inherits that Ctrl-C is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            wait.wait(30)
        assert time.monotonic() - started < 5
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
