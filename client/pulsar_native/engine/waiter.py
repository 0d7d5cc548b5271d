"""Blocking waits of a thread for the engine: one lock per wait, released once, cheaper than an event or a future.

Rules: a wait in the main thread can be interrupted by Ctrl-C at any time, then it raises `Interrupted`; a wait ends at
its deadline; waking twice is harmless. Once the interpreter has ended the other threads a wait raises `AlreadyClosed`.
Thread-safe.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from threading import get_ident

from pulsar_native.exceptions import AlreadyClosed, Interrupted, PulsarException, Timeout
from pulsar_native.message_id import MessageId

# Python runs the handler of a signal in the main thread, which does not hear of it while it waits for a lock and
# another thread has got the signal. So it looks up this often.
_LOOK_UP_SECONDS = 0.1
_main_thread = threading.main_thread().ident


def _after_fork_in_child() -> None:
    # The thread that forks is the child's main one.
    global _main_thread
    _main_thread = threading.get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def check_interpreter() -> None:
    """Raise `AlreadyClosed` at the interpreter's end, when there is no thread left that a wait could wait for."""
    if sys.is_finalizing():
        raise AlreadyClosed(
            "The interpreter is ending: close clients before, for instance in a function passed to atexit.register"
        )


class Wait:
    """One-time event: one thread waits, another one wakes it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Wake the waiting thread."""
        try:
            self._lock.release()
        except RuntimeError:
            # It was woken before.
            return

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it up to `timeout` seconds; return whether it happened. Ctrl-C raises `Interrupted`."""
        if get_ident() != _main_thread:
            return self._lock.acquire(timeout=-1 if timeout is None else max(timeout, 0))
        try:
            if timeout is not None and timeout <= _LOOK_UP_SECONDS:
                return self._lock.acquire(timeout=max(timeout, 0))
            return self._lock.acquire(timeout=_LOOK_UP_SECONDS) or self._wait_on(timeout)
        except KeyboardInterrupt as error:
            raise Interrupted("The call was interrupted") from error

    def _wait_on(self, timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout - _LOOK_UP_SECONDS
        while True:
            left = _LOOK_UP_SECONDS if deadline is None else min(deadline - time.monotonic(), _LOOK_UP_SECONDS)
            if self._lock.acquire(timeout=max(left, 0)):
                return True
            check_interpreter()
            if left <= 0:
                return False


class AckWait(Wait):
    """Wait for the broker's response to an acknowledgement: used as its callback."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        super().__init__()
        self.error: PulsarException | None = None

    def __call__(self, error: PulsarException | None) -> None:
        """Store the outcome."""
        self.error = error
        self.wake()

    def result(self, timeout: float) -> None:
        """Wait for the response up to `timeout` seconds; raise its error."""
        if not self.wait(timeout):
            raise no_receipt(timeout)
        if self.error is not None:
            raise self.error


def no_receipt(timeout: float) -> Timeout:
    """Return the error for an acknowledgement that could not be sent in time."""
    return Timeout(
        f"The acknowledgement was not answered within {timeout:g} s: the consumer has no connection to the broker. "
        "It is kept, and sent when there is one"
    )


class SendWait(Wait):
    """Wait for the receipt of one message: used as its callback."""

    __slots__ = ("error", "message_id")

    def __init__(self) -> None:
        # As the base class does, without its call.
        self._lock = threading.Lock()
        self._lock.acquire()
        self.error: PulsarException | None = None
        self.message_id: MessageId | None = None

    def __call__(self, error: PulsarException | None, message_id: MessageId | None) -> None:
        """Store the outcome."""
        self.error = error
        self.message_id = message_id
        self.wake()

    def result(self) -> MessageId:
        """Wait for the outcome and return the id, or raise the error."""
        if self.message_id is None and self.error is None:
            # Else this thread read the receipt itself; the wake-up may have failed at the recursion limit then.
            self.wait()
        if self.error is not None:
            raise self.error
        assert self.message_id is not None
        return self.message_id
