"""Event loop of the engine: a daemon thread of its own for the sync API, the caller's loop for the asyncio API.

Rules: nothing starts before the first use. One thread per process serves all blocking clients and ends with the last of
them. It serves the exit handlers of the application, too: those of `atexit`, of `logging` and of `weakref.finalize` may
send and close; the interpreter ends it after them, and calls that wait raise from then on. After a fork the child drops
the parent's engine without writing to the shared sockets (a close from the child would close the parent's producers):
file descriptors are closed, nothing is sent, no lock is acquired. A client records the generation of the process it was
created in, and raises in another.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

from pulsar_native._callback_errors import cancels_task
from pulsar_native._loggers import get_logger
from pulsar_native.engine.eager_call import EagerCall, leave_thread
from pulsar_native.engine.waiter import Wait, check_interpreter
from pulsar_native.exceptions import AlreadyClosed, Interrupted, OperationNotSupported, PulsarException

_log = get_logger("pulsar_native.loop")

T = TypeVar("T")

_READ_BUFFER_BYTES = 1024 * 1024
# What entries take, see `reuse_blocks`.
_LARGEST_REUSED_BYTES = 4 * 1024 * 1024
# Memory kept for larger blocks, which are rare, would be missed elsewhere.
_MOST_REUSED_BYTES = 20 * 1024 * 1024
_reused_bytes = 0
# More than one client needs at once; limited, as a plug-in that never returns keeps a thread for each attempt.
_MAX_PLUGIN_THREADS = 32


def reuse_blocks(size: int) -> None:
    """Have the allocator reuse freed blocks of up to `size` bytes, 20 MiB at most, in this process from now on.

    glibc maps every block of 128 KiB and more by itself, and unmaps it when it is freed, up to the size of the largest
    block freed so far, or 32 MiB; above twice that size it also returns free memory of the heap. The page faults of new
    memory cost a third of receiving messages of 1 KB. So a block of this size is freed once, which is never touched.
    """
    global _reused_bytes
    size = min(size, _MOST_REUSED_BYTES)
    if size > _reused_bytes:
        _reused_bytes = size
        bytes(size)


class _PluginExecutor:
    """Threads for blocking functions of the application, apart from the loop's default executor, which resolves names.

    A thread pool that exists while functions run or wait in it: no idle thread remains. Thread-safe.
    """

    def __init__(self) -> None:
        # Re-entrant: a future that is done already calls back within `submit`.
        self._lock = threading.RLock()
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._running = 0

    def submit(self, function: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Run a function in a thread and return the future of its result."""
        with self._lock:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(_MAX_PLUGIN_THREADS, "pulsar-native-plugin")
            future = self._pool.submit(function)
            self._running += 1
            future.add_done_callback(self._ended)
        return future

    def _ended(self, _future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._running -= 1
            if self._running or self._pool is None:
                return
            pool, self._pool = self._pool, None
            pool.shutdown(wait=False)


class _Process:
    """State of this process: replaced as a whole in a forked child."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        # Set in a child: objects created before the fork check the state object of their own process, the cheapest
        # check for the hot path.
        self.is_over = False
        # Re-entrant: a client that is garbage-collected while this thread holds it releases the engine, too.
        self.lock = threading.RLock()
        self.engine: Engine | None = None
        self.users = 0
        self.plugins = _PluginExecutor()


_process = _Process(0)
# Engines of the parent, kept so that no destructor touches its loop in the child.
_abandoned: list[object] = []
_sockets: weakref.WeakSet[Any] = weakref.WeakSet()
# Consumers whose buffers the APIs use without a check for a fork.
_tracked: weakref.WeakSet[Any] = weakref.WeakSet()


def generation() -> int:
    """Return the number of forks between the first process and this one."""
    return _process.generation


def this_process() -> _Process:
    """Return the state object whose `is_over` becomes True in a forked child."""
    return _process


def check_generation(made_in: int) -> None:
    """Raise when an object created before a fork is used after it; cheap enough for the hot path."""
    if made_in != _process.generation:
        raise AlreadyClosed(
            "This client was made before the process forked; its connections belong to the parent. Create a new client "
            "in this process (Client.from_config(client.config) does it)"
        )


def check_loop(made_in: int, loop: asyncio.AbstractEventLoop) -> None:
    """Raise when an object of the asyncio API is used after a fork, or on another event loop than its client's, where
    it would begin what it cannot wait for. For the loop's thread.
    """
    check_generation(made_in)
    if asyncio.get_running_loop() is not loop:
        raise OperationNotSupported("The client belongs to another event loop; create one for each loop")


def track_socket(sock: Any) -> None:
    """Register a socket, so that a forked child can close its descriptor."""
    _sockets.add(sock)


def track_fork(consumer: Any) -> None:
    """Have `clear_after_fork()` called in a forked child: the buffered messages belong to the parent."""
    _tracked.add(consumer)


def _after_fork_in_child() -> None:
    global _process, _sockets
    for consumer in list(_tracked):
        consumer.clear_after_fork()
    _abandoned.append((_process, list(_sockets)))
    for sock in list(_sockets):
        with contextlib.suppress(OSError):
            # Only the child's copy of the descriptor is closed: no TLS close, no FIN, as the parent still has the
            # connection.
            os.close(sock.detach())
    _sockets = weakref.WeakSet()
    _process.is_over = True
    _process = _Process(_process.generation + 1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class _Call(Wait, Generic[T]):
    """Coroutine that runs as a task of the loop while a thread waits for it: lighter than a future of each side."""

    __slots__ = ("_coroutine", "_discard", "_error", "_has_begun", "_has_result", "_is_cancelled", "_result", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, T] | EagerCall[T], discard: Callable[[T], object] | None) -> None:
        super().__init__()
        self._coroutine = coroutine
        self._discard = discard
        self._task: asyncio.Task[None] | None = None
        self._has_begun = self._has_result = self._is_cancelled = False
        self._result: T
        self._error: BaseException | None = None

    def start(self) -> None:
        """Start the task. On the loop only, as `cancel`."""
        if self._is_cancelled:
            self._coroutine.close()
            return
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        self._has_begun = True
        try:
            self._result = await self._coroutine
            self._has_result = True
        except BaseException as error:
            self._error = error
        if self._is_cancelled:
            self._discard_result()
        # Here, as a callback of the task would wake the thread one round of the loop later.
        self.wake()

    def cancel(self) -> None:
        """Cancel the task, also before its start; a result is discarded, which may be there all the same."""
        self._is_cancelled = True
        self._discard_result()
        if self._task is not None:
            self._task.cancel()
            if not self._has_begun:
                # The task ends without its first step, and nothing would end the coroutine.
                self._coroutine.close()

    def _discard_result(self) -> None:
        if self._has_result and self._discard is not None:
            self._discard(self._result)

    def result(self) -> T:
        """Return the coroutine's result or raise its error. For the waiting thread, once it was woken."""
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            # The error refers to this frame, which would refer to it.
            del error


class Engine:
    """Event loop with the state all its connections share. Thread-safe where said."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        self.loop = loop
        self.thread = thread
        self.generation = _process.generation
        # One large buffer for all connections: what a read leaves in it is copied out before the next read.
        self.read_buffer = memoryview(bytearray(_READ_BUFFER_BYTES))
        reuse_blocks(_LARGEST_REUSED_BYTES)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._gate = threading.RLock()
        self._ended = False
        # The thread it has for itself, if it has one.
        self.own_thread: threading.Thread | None = None

    def on_loop(self) -> bool:
        """Return True if the caller runs on the engine's thread. Thread-safe."""
        return threading.get_ident() == self.thread

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Run a function on the loop: immediately when already there. Thread-safe; ignored after the loop has ended."""
        if self.on_loop():
            function(*args)
        else:
            self.call_soon(function, *args)

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Run a function on the loop, never within this call. Thread-safe; ignored after the loop has ended.

        For the garbage collector, which may interrupt the loop's thread while it holds a lock.
        """
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            # A RecursionError, too, is one.
            if not self.loop.is_closed():
                raise

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in the background and keep it alive. On the loop only."""
        task = create_task(coroutine, self.loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def shield(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, also when the caller is cancelled, who does not get its error then. On the loop
        only.
        """
        task: asyncio.Task[T] = self.spawn(coroutine)
        # Retrieved: an error that nobody waits for is not worth a warning.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(task)

    def run(
        self,
        coroutine: Coroutine[Any, Any, T] | EagerCall[T],
        timeout: float | None = None,
        discard: Callable[[T], object] | None = None,
    ) -> T:
        """Run a coroutine on the engine's thread and wait for it: the sync API. Ctrl-C raises `Interrupted`.

        `discard` is called, on the loop, with a result that the caller does not get because of that, or of what the
        handler of another signal raises.
        """
        self._check_may_block(coroutine)
        # Order of events: what passes the gate is queued before the loop is told to stop, so that its last round starts
        # it and the end cancels it; a later call raises. A call between the two would wait indefinitely.
        call = _Call(coroutine, discard)
        with self._gate:
            if self._ended:
                coroutine.close()
                raise AlreadyClosed("The client is closed")
            self.loop.call_soon_threadsafe(call.start)
        try:
            if not call.wait(timeout):
                raise TimeoutError
            return call.result()
        except asyncio.CancelledError as error:
            raise AlreadyClosed("The client was closed while the call was waiting") from error
        except BaseException:
            # After Ctrl-C, the time-out, or what the handler of a signal raised, of whatever class. Without effect on a
            # call that has ended by itself.
            self.call(call.cancel)
            raise
        finally:
            # An error refers to this frame, which would refer to it.
            del call

    def run_eager(self, coroutine: Coroutine[Any, Any, T], discard: Callable[[T], object] | None = None) -> T:
        """As `run`, but in the calling thread up to the coroutine's first wait, which must be thread-safe."""
        self._check_may_block(coroutine)
        if self._ended:
            coroutine.close()
            raise AlreadyClosed("The client is closed")
        try:
            call = EagerCall(coroutine)
            if call.is_done:
                return call.result()
        except Interrupted:
            raise
        except KeyboardInterrupt as error:
            raise Interrupted("The call was interrupted") from error
        return self.run(call, discard=discard)

    def _check_may_block(self, coroutine: Coroutine[Any, Any, Any] | EagerCall[Any]) -> None:
        try:
            self.check_may_wait()
            check_interpreter()
        except PulsarException:
            coroutine.close()
            raise

    @property
    def is_inherited(self) -> bool:
        """True in a child forked after the engine was made, where its loop does not run. Thread-safe."""
        return self.generation != generation()

    def check_may_wait(self) -> None:
        """Raise `OperationNotSupported` on the engine's thread, where a call that waits would wait for itself, and
        `AlreadyClosed` in a forked child. Thread-safe.
        """
        # First: a child forked in a callback of the client runs on a thread with the identifier of the engine's.
        check_generation(self.generation)
        if self.on_loop():
            raise OperationNotSupported(
                "A blocking call was made inside a callback of the client, where it would wait for itself; "
                "use the *_async form there, or another thread"
            )

    async def enter_loop(self) -> None:
        """Continue on the loop, if the coroutine was begun in the calling thread by `run_eager`."""
        if not self.on_loop():
            await leave_thread()

    def end(self) -> None:
        """End the loop of an engine that has a thread of its own; later calls raise. Thread-safe."""
        with self._gate:
            self._ended = True
        self.call_soon(self.loop.stop)


async def gather(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results, as `asyncio.gather`; a single one without a task."""
    coroutines = list(work)
    if len(coroutines) < 2:
        return [await each for each in coroutines]
    return list(await asyncio.gather(*coroutines))


def create_task(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> asyncio.Task[T]:
    """Return a task that starts in a later round of the loop, also where the application has eager ones.

    An eager task would take its first step within the caller, which may hold a lock. On the loop only.
    """
    return asyncio.Task(coroutine, loop=loop)


async def wait_for_shared(task: asyncio.Task[T]) -> T:
    """Wait for a task that others may wait for, too, so that the caller's cancellation does not end it. On the loop
    only.

    A task that was cancelled itself raises `AlreadyClosed`: the client's end cancels such tasks, but nobody the caller.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError as error:
        if task.cancelled() and not cancels_task(error):
            raise AlreadyClosed("The client was closed meanwhile") from None
        raise


async def to_plugin_thread(function: Callable[..., T], *args: Any) -> T:
    """Run a blocking function of the application as `asyncio.to_thread`, but not in the loop's default executor.

    There slow plug-ins of one client would delay the name resolution of all others.
    """
    return await asyncio.wrap_future(_process.plugins.submit(partial(contextvars.copy_context().run, function, *args)))


async def gather_settled(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently, wait for all of them, and return their results or raise the first error."""
    coroutines = list(work)
    if len(coroutines) < 2:
        return [await each for each in coroutines]
    settled: list[T] = []
    for result in await asyncio.gather(*coroutines, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        settled.append(result)
    return settled


def acquire_thread_engine() -> Engine:
    """Return the process's engine thread, started on first use. Pair with `release_thread_engine`. Thread-safe."""
    process = _process
    with process.lock:
        # Counted first: a client collected meanwhile must not end the engine concurrently.
        process.users += 1
        if process.engine is None:
            process.engine = _start_thread()
        return process.engine


def release_thread_engine(made_in: int, seconds: float) -> None:
    """Give the engine back; the last user ends its thread, and waits up to `seconds` for that unless it is that thread.

    Thread-safe, nothing in a forked child. It may be called by the garbage collector, anywhere: briefly then.
    """
    process = _process
    if made_in != process.generation or sys.is_finalizing():
        return
    with process.lock:
        process.users -= 1
        if process.users > 0 or process.engine is None:
            return
        engine, process.engine = process.engine, None
    engine.end()
    thread = engine.own_thread
    if thread is not None and thread is not threading.current_thread():
        thread.join(seconds)


def _start_thread() -> Engine:
    ready: concurrent.futures.Future[Engine] = concurrent.futures.Future()

    def body() -> None:
        loop = asyncio.new_event_loop()
        try:
            engine = Engine(loop, threading.get_ident())
            engine.own_thread = threading.current_thread()
            ready.set_result(engine)
            _run(loop)
            _finish(loop)
        finally:
            loop.close()

    threading.Thread(target=body, name="pulsar-native-engine", daemon=True).start()
    return ready.result()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped: `sys.exit` in what an application has the client call must not end it, nor
    KeyboardInterrupt, which Ctrl-C raises in the main thread only.
    """
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            what = "sys.exit was called" if isinstance(error, SystemExit) else "KeyboardInterrupt was raised"
            _log.exception("%s in the client's thread, where it ends nothing", what)
        except BaseException:
            # Handlers of the application raise for asyncio's own records, too, which it makes outside of any call.
            _log.exception("An error has left the client's event loop, which is run again")
        else:
            return


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    # Every task takes its first step: one that is cancelled before would not wake the thread that waits for it.
    loop.run_until_complete(asyncio.sleep(0))
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_default_executor())
