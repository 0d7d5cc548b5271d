"""Listener threads: call the application's message listeners.

Rules: a consumer stays on one thread, so its listener never runs concurrently and keeps the order; a listener's
exception is logged, its message stays unacknowledged and the next one follows. The threads are daemons, started with
the first listener and ended with the client. With an executor of the application a consumer's calls run where that has
them run; its listener thread only passes them on, as many at a time as its queue holds.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from pulsar_native._callback_errors import callback_errors
from pulsar_native._loggers import get_logger
from pulsar_native.config import MessageListenerExecutor
from pulsar_native.exceptions import PulsarException
from pulsar_native.message import Message

_log = get_logger("pulsar_native.listener")

Drain = Callable[[], None]

# Clients wait so long at the interpreter's end, in which a listener may end its call.
_JOIN_SECONDS_AT_EXIT = 1.0

# Of a listener thread: the function that submits work to it.
_this_thread = threading.local()


# Those with threads of this process.
_existing: weakref.WeakSet[ListenerThreads] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    # The child has none of these threads, and one of them may have held a lock.
    os.register_at_fork(after_in_child=_existing.clear)


class ListenerThreads:
    """Fixed number of threads to which consumers are assigned. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._queues: list[SimpleQueue[Drain | None]] = []
        self._threads: list[threading.Thread] = []
        # Read before each message: whether listeners may still be called.
        self.is_open = True
        self._next = 0
        # Calls that executors run, of consumers that still are.
        self._executed: weakref.WeakSet[ExecutedCalls] = weakref.WeakSet()
        self._lock = threading.Lock()

    def assign(self) -> Callable[[Drain], None]:
        """Return a function that submits work to the thread assigned to this consumer; after `stop` it does nothing."""
        with self._lock:
            if not self.is_open:
                return _discard
            if not self._queues:
                _existing.add(self)
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

    def executed_calls(
        self, executor: MessageListenerExecutor, limit: int, may_begin: Callable[[], bool], wake: Drain
    ) -> ExecutedCalls:
        """Return the calls of a consumer that an executor runs, which `join` waits for."""
        calls = ExecutedCalls(executor, limit, lambda: self.is_open and may_begin(), wake)
        with self._lock:
            self._executed.add(calls)
        return calls

    def stop(self) -> None:
        """Have the threads end after the message they are at. Does not block."""
        self.is_open = False
        with self._lock:
            for queue in self._queues:
                queue.put(None)
            self._queues = []

    def join(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the threads, and the calls of executors, to end, but for the calling one."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            executed = list(self._executed)
        for calls in executed:
            calls.wait_ended(max(0.0, deadline - time.monotonic()))


class ExecutedCalls:
    """Calls of a consumer's listener that the application's executor runs. Thread-safe.

    Rules: at most `limit` of them are passed on and have not ended. Whether one may begin is decided when it is run,
    together with its being counted as running: so once what `may_begin` tells has changed, and `wait_ended` has
    returned, none runs and none begins. One that may not begin puts its message back into the queue.
    """

    def __init__(
        self, executor: MessageListenerExecutor, limit: int, may_begin: Callable[[], bool], wake: Drain
    ) -> None:
        self._execute = executor.execute
        self._limit = limit
        self._may_begin = may_begin
        self._wake = wake
        self._open = 0
        # Threads of those that run.
        self._running: list[int] = []
        self._changed = threading.Condition()

    @property
    def is_full(self) -> bool:
        """True while no further one may be passed on; `wake` is called when that has changed."""
        return self._open >= self._limit

    def start(self, message: Message, call: Drain, put_back: Drain) -> None:
        """Pass a call on. Raises what the executor raises; the call is not made then, unless it has begun."""
        is_over = False

        def run() -> None:
            nonlocal is_over
            with self._changed:
                if is_over:
                    return
                is_over = True
                begins = self._may_begin()
                if begins:
                    self._running.append(threading.get_ident())
            try:
                (call if begins else put_back)()
            finally:
                self._end(began=begins)

        with self._changed:
            self._open += 1
        try:
            self._execute(message, run)
        except BaseException:
            with self._changed:
                if not is_over:
                    is_over = True
                    self._open -= 1
            raise

    def _end(self, *, began: bool) -> None:
        with self._changed:
            if began:
                self._running.remove(threading.get_ident())
            looks_again = self.is_full or not began
            self._open -= 1
            self._changed.notify_all()
        if looks_again:
            self._wake()

    def wait_ended(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for those that run, unless one of them is the caller."""
        with self._changed:
            # Two of them that waited for each other would never end.
            if threading.get_ident() not in self._running:
                self._changed.wait_for(lambda: not self._running, min(timeout, threading.TIMEOUT_MAX))


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
        except callback_errors():
            # The thread calls the listeners of other consumers, too.
            _log.exception("A listener thread cannot deliver a consumer's messages")
        # It holds its consumer, which may be closed before the next one comes.
        del drain


@atexit.register
def _stop_at_exit() -> None:
    # A thread that the interpreter's end stops in the middle of a print leaves its stream locked, which is fatal.
    existing = list(_existing)
    for each in existing:
        each.stop()
    deadline = time.monotonic() + _JOIN_SECONDS_AT_EXIT
    for each in existing:
        each.join(max(0.0, deadline - time.monotonic()))
