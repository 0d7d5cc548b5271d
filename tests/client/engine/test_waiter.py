"""How a thread waits for the engine."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from pulsar_native.engine.waiter import SendWait, Wait
from pulsar_native.exceptions import AlreadyClosed
from pulsar_native.message_id import MessageId


def test_what_happened_before_is_not_waited_for() -> None:
    wait = Wait()
    wait.wake()
    wait.wake()
    assert wait.wait(0)


def test_a_wait_ends_at_its_deadline_also_one_that_has_passed() -> None:
    started = time.monotonic()
    assert not Wait().wait(0.05)
    assert 0.05 <= time.monotonic() - started < 2
    assert not Wait().wait(-5)


def test_another_thread_wakes() -> None:
    wait = Wait()
    timer = threading.Timer(0.05, wait.wake)
    timer.start()
    assert wait.wait(10)
    timer.join()


def test_a_receipt_is_its_own_callback() -> None:
    wait = SendWait()
    place = MessageId(0, 1, 2)
    wait(None, place)
    assert wait.result() is place
    failed = SendWait()
    failed(AlreadyClosed("no"), None)
    with pytest.raises(AlreadyClosed, match="no"):
        failed.result()


def test_ctrl_c_ends_a_wait_at_once() -> None:
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
