"""Consumer event listener of a Failover subscription: notifications of becoming active or inactive.

Rules: ACTIVE_CONSUMER_CHANGE commands are passed on in their order, and a repeated one only once; after a lost
connection the first one counts as new. Notifications before the API has its consumer object wait for it. The sync API's
listener runs on a listener thread, the asyncio API's on the loop, one call after the other. The consumer is referenced
weakly, since it references this object.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from pulsar_native._callback_errors import callback_errors, cancels_task
from pulsar_native._loggers import get_logger
from pulsar_native.config import ConsumerEventListener
from pulsar_native.engine.loop import create_task

_log = get_logger("pulsar_native.listener")

Submit = Callable[[Callable[[], None]], None]


class ConsumerEvents:
    """Pending notifications of a consumer's event listener."""

    def __init__(self, listener: ConsumerEventListener, submit: Submit | None = None) -> None:
        """Notify `listener` through `submit`, or on the running loop."""
        self._listener = listener
        self._submit = submit
        self._waiting: deque[tuple[bool, int]] = deque()
        self._lock = threading.Lock()
        self._consumer: Callable[[], Any] | None = None
        self._telling: asyncio.Task[None] | None = None

    def bind(self, consumer: Any) -> None:
        """Set the API's consumer, and deliver notifications that waited for it. Thread-safe."""
        with self._lock:
            self._consumer = weakref.ref(consumer)
            self._notify()

    def changed(self, is_active: bool, partition: int) -> None:
        """Process an ACTIVE_CONSUMER_CHANGE. On the loop."""
        with self._lock:
            self._waiting.append((is_active, partition))
            self._notify()

    def _notify(self) -> None:
        # Under the lock, so that none overtakes those that waited for the consumer.
        if self._consumer is None or not self._waiting:
            return
        if self._submit is not None:
            self._submit(self._drain)
        elif self._telling is None or self._telling.done():
            self._telling = create_task(self._drain_on_loop(), asyncio.get_running_loop())

    def _drain(self) -> None:
        while True:
            try:
                word = self._waiting.popleft()
            except IndexError:
                return
            try:
                self._call(*word)
            except callback_errors():
                _log.exception("The consumer event listener failed")

    async def _drain_on_loop(self) -> None:
        while self._waiting:
            try:
                result = self._call(*self._waiting.popleft())
                if inspect.isawaitable(result):
                    await result
            except callback_errors() as error:
                if cancels_task(error):
                    raise
                _log.exception("The consumer event listener failed")

    def _call(self, is_active: bool, partition: int) -> Any:
        consumer = None if self._consumer is None else self._consumer()
        if consumer is None:
            # The consumer object was garbage-collected.
            return None
        method = self._listener.became_active if is_active else self._listener.became_inactive
        return method(consumer, partition)
