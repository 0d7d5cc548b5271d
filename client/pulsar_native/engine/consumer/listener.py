"""Listener threads: call the application's message listeners.

Rules: a consumer stays on one thread, so its listener never runs concurrently and keeps the order; a listener's
exception is logged, its message stays unacknowledged and the next one follows. The threads are daemons, started with
the first listener and ended with the client.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from pulsar_native._callback_errors import CALLBACK_ERRORS
from pulsar_native._loggers import get_logger
from pulsar_native.exceptions import PulsarException

_log = get_logger("pulsar_native.listener")

Drain = Callable[[], None]

# Of a listener thread: the function that submits work to it.
_this_thread = threading.local()


class ListenerThreads:
    """Fixed number of threads to which consumers are assigned. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._queues: list[SimpleQueue[Drain | None]] = []
        self._threads: list[threading.Thread] = []
        # Read before each message: whether listeners may still be called.
        self.is_open = True
        self._next = 0
        self._lock = threading.Lock()

    def assign(self) -> Callable[[Drain], None]:
        """Return a function that submits work to the thread assigned to this consumer; after `stop` it does nothing."""
        with self._lock:
            if not self.is_open:
                return _discard
            if not self._queues:
                for number in range(self._count):
                    queue: SimpleQueue[Drain | None] = SimpleQueue()
                    self._queues.append(queue)
                    name = f"pulsar-native-listener-{number}"
                    thread = threading.Thread(target=_work, args=(queue,), name=name, daemon=True)
                    self._threads.append(thread)
                    thread.start()
            queue = self._queues[self._next % self._count]
            self._next += 1
        return queue.put

    def stop(self) -> None:
        """Have the threads end after the message they are at. Does not block."""
        self.is_open = False
        with self._lock:
            for queue in self._queues:
                queue.put(None)
            self._queues = []

    def join(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the threads to end, but for the one that calls this."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _discard(_drain: Drain) -> None:
    pass


def is_thread_of(submit: Callable[[Drain], None]) -> bool:
    """Return True if the calling thread does the work passed to `submit`, a result of `ListenerThreads.assign`."""
    return getattr(_this_thread, "submit", None) == submit


def _work(queue: SimpleQueue[Drain | None]) -> None:
    _this_thread.submit = queue.put
    while True:
        drain = queue.get()
        if drain is None:
            return
        try:
            drain()
        except PulsarException:
            # Consumers catch their listeners' exceptions; this consumer was closed concurrently, or has failed.
            _log.debug("A listener's consumer was closed", exc_info=True)
        except CALLBACK_ERRORS:
            # The thread calls the listeners of other consumers, too.
            _log.exception("A listener thread cannot deliver a consumer's messages")
        # It holds its consumer, which may be closed before the next one comes.
        del drain
