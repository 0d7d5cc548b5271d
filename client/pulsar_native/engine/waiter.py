"""How a thread waits for the engine: one lock per wait, released once, cheaper than an event or a future.

Rules: a wait can be interrupted by Ctrl-C at any time and ends at its deadline; waking twice is harmless. Thread-safe.
"""

from __future__ import annotations

import threading

from pulsar_native.exceptions import PulsarException, Timeout
from pulsar_native.message_id import MessageId


class Wait:
    """Something one thread waits for and another makes happen."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Make it happen."""
        try:
            self._lock.release()
        except RuntimeError:
            # It was woken before.
            return

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it up to `timeout` seconds; return whether it happened."""
        return self._lock.acquire(timeout=-1 if timeout is None else max(timeout, 0))


class AckWait(Wait):
    """The broker's answer to an acknowledgement: used as its callback."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        super().__init__()
        self.error: PulsarException | None = None

    def __call__(self, error: PulsarException | None) -> None:
        """Take the outcome."""
        self.error = error
        self.wake()

    def result(self, timeout: float) -> None:
        """Wait for the answer up to `timeout` seconds; raise its error."""
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
    """The receipt of one message: used as its callback."""

    __slots__ = ("error", "message_id")

    def __init__(self) -> None:
        # As the base does, without its call.
        self._lock = threading.Lock()
        self._lock.acquire()
        self.error: PulsarException | None = None
        self.message_id: MessageId | None = None

    def __call__(self, error: PulsarException | None, message_id: MessageId | None) -> None:
        """Take the outcome."""
        self.error = error
        self.message_id = message_id
        self.wake()

    def result(self) -> MessageId:
        """Wait for the outcome and return the id, or raise the error."""
        self.wait()
        if self.error is not None:
            raise self.error
        assert self.message_id is not None
        return self.message_id
