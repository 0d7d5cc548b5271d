"""Threads that hand messages to the application's listeners.

Rules: a consumer stays on one thread, so its listener never runs twice at once and keeps the order;
a listener that raises is logged, its message stays unacknowledged and the next one follows. The threads are daemons,
made with the first listener and ended with the client.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

_log = logging.getLogger("pulsar_native.listener")

Drain = Callable[[], None]


class ListenerThreads:
    """A fixed number of threads among which consumers are dealt out. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._queues: list[SimpleQueue[Drain | None]] = []
        self._next = 0
        self._lock = threading.Lock()

    def assign(self) -> Callable[[Drain], None]:
        """Return a function that runs work on the thread this consumer is bound to."""
        with self._lock:
            if not self._queues:
                for number in range(self._count):
                    queue: SimpleQueue[Drain | None] = SimpleQueue()
                    self._queues.append(queue)
                    name = f"pulsar-native-listener-{number}"
                    threading.Thread(target=_work, args=(queue,), name=name, daemon=True).start()
            queue = self._queues[self._next % self._count]
            self._next += 1
        return queue.put

    def stop(self) -> None:
        """End the threads once they have done what is queued."""
        with self._lock:
            for queue in self._queues:
                queue.put(None)
            self._queues = []


def _work(queue: SimpleQueue[Drain | None]) -> None:
    while True:
        drain = queue.get()
        if drain is None:
            return
        try:
            drain()
        except Exception:
            # Consumers catch what their listener raises; this is a consumer closed under our hands.
            _log.debug("A listener's consumer was closed", exc_info=True)
