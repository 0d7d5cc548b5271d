"""Engine loop: one thread for all blocking clients, ended with the last, dropped after a fork."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pulsar_native
from pulsar_native.auth import Authentication
from pulsar_native.config import ClientConfig, ProducerConfig
from pulsar_native.engine import loop as loop_module
from pulsar_native.engine.connection import credentials_of
from pulsar_native.engine.loop import (
    Engine,
    acquire_thread_engine,
    check_generation,
    release_thread_engine,
    to_plugin_thread,
    wait_for_shared,
)
from pulsar_native.engine.producer.key_renewal import KeyRenewal
from pulsar_native.engine.service_url_provider import ServiceUrlProvider
from pulsar_native.engine.tls import TlsContexts
from pulsar_native.engine.waiter import Wait
from pulsar_native.exceptions import (
    AlreadyClosed,
    CryptoError,
    InvalidConfiguration,
    OperationNotSupported,
    Timeout,
)
from pulsar_native.service_info import ServiceInfo
from pulsar_native.topic import TopicName
from pulsar_native.wire.commands import Kind
from support.fake_broker import FakeBroker
from support.other_thread import Own
from support.until import wait_until

TESTS = Path(__file__).resolve().parents[2]


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pulsar-native-engine"]


def wait_until_gone(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_engine_one_thread_until_last_client() -> None:
    assert engine_threads() == []
    first = acquire_thread_engine()
    second = acquire_thread_engine()
    threads = engine_threads()
    assert first is second and len(threads) == 1
    release_thread_engine(first.generation, 10)
    assert first.run(asyncio.sleep(0, "still here")) == "still here"
    release_thread_engine(first.generation, 10)
    wait_until_gone(threads)
    again = acquire_thread_engine()
    assert again is not first
    release_thread_engine(again.generation, 10)
    wait_until_gone(engine_threads())


def test_engine_starts_on_first_use(fake: FakeBroker) -> None:
    client = pulsar_native.Client(fake.url)
    assert engine_threads() == [] and fake.peers == []
    client.close()
    assert engine_threads() == []


@pytest.mark.parametrize("end", ["close", "shutdown", "collected"])
def test_engine_thread_ends_with_last_client(fake: FakeBroker, end: str) -> None:
    clients = [pulsar_native.Client(fake.url) for _ in range(2)]
    for client in clients:
        client.create_producer("t").send(b"x")
    threads = engine_threads()
    assert len(threads) == 1
    while clients:
        assert threads[0].is_alive()
        client = clients.pop()
        if end == "collected":
            del client
            gc.collect()
        else:
            getattr(client, end)()
    wait_until_gone(threads)
    assert all(peer.gone.wait(10) for peer in fake.peers)


def test_engine_blocking_call_on_loop_raises() -> None:
    engine = acquire_thread_engine()

    async def inside() -> None:
        with pytest.raises(OperationNotSupported, match="inside a callback"):
            engine.run(asyncio.sleep(0))

    engine.run(inside())
    release_thread_engine(engine.generation, 10)
    wait_until_gone(engine_threads())


def test_engine_run_errors_and_timeouts() -> None:
    engine = acquire_thread_engine()

    async def fails() -> None:
        raise Timeout("mine")

    with pytest.raises(Timeout, match="mine"):
        engine.run(fails())
    with pytest.raises(TimeoutError):
        engine.run(asyncio.Event().wait(), timeout=0.05)
    release_thread_engine(engine.generation, 10)
    wait_until_gone(engine_threads())
    with pytest.raises(AlreadyClosed):
        engine.run(asyncio.sleep(0))
    # Silent, as whoever calls this has nobody to tell.
    engine.call(print, "never")


@pytest.mark.parametrize("raised", [KeyboardInterrupt, LookupError])
@pytest.mark.parametrize("result", ["before", "in spite"])
def test_engine_interrupted_call_discards_its_result(
    monkeypatch: pytest.MonkeyPatch, result: str, raised: type[BaseException]
) -> None:
    engine = acquire_thread_engine()
    has_begun = threading.Event()
    discarded: list[str] = []
    wait = Wait.wait

    async def make() -> str:
        has_begun.set()
        if result == "in spite":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return "made"

    def interrupted(call: Wait, seconds: float | None = None) -> bool:
        assert has_begun.wait(10)
        if result == "before":
            wait(call, 10)
        raise raised

    with monkeypatch.context() as patched:
        patched.setattr(Wait, "wait", interrupted)
        with pytest.raises(raised):
            engine.run(make(), discard=discarded.append)
    wait_until(lambda: discarded == ["made"])
    assert engine.run(make_now(), discard=discarded.append) == "now"
    release_thread_engine(engine.generation, 10)
    wait_until_gone(engine_threads())
    assert discarded == ["made"]


async def make_now() -> str:
    return "now"


def test_engine_end_fails_waiting_call() -> None:
    engine = acquire_thread_engine()
    told: list[BaseException] = []
    waits = threading.Event()

    async def wait() -> None:
        waits.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            engine.run(wait())
        except BaseException as error:
            told.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    assert waits.wait(10)
    release_thread_engine(engine.generation, 10)
    caller.join(10)
    assert not caller.is_alive()
    assert isinstance(told[0], AlreadyClosed)
    wait_until_gone(engine_threads())


def test_engine_end_fails_call_before_its_first_step() -> None:
    engine = acquire_thread_engine()
    told: list[BaseException] = []
    entered, go_on = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        go_on.wait(10)

    def call() -> None:
        try:
            engine.run(asyncio.Event().wait())
        except BaseException as error:
            told.append(error)

    engine.call_soon(block)
    assert entered.wait(10)
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    # The call is queued behind what blocks the loop, and the end behind the call: its task is made in the last round.
    wait_until(lambda: engine.loop._ready)  # type: ignore[attr-defined]
    release_thread_engine(engine.generation, 0)
    go_on.set()
    caller.join(10)
    assert not caller.is_alive()
    assert isinstance(told[0], AlreadyClosed)
    wait_until_gone(engine_threads())


def test_engine_call_soon_loses_no_call_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = acquire_thread_engine()

    def at_the_recursion_limit(*_arguments: object) -> None:
        raise RecursionError

    try:
        with monkeypatch.context() as patched:
            patched.setattr(engine.loop, "call_soon_threadsafe", at_the_recursion_limit)
            with pytest.raises(RecursionError):
                engine.call_soon(print)
    finally:
        release_thread_engine(engine.generation, 5)
    wait_until(engine.loop.is_closed)
    engine.call_soon(print)


def test_engine_run_after_end_raises() -> None:
    outcomes: list[object] = []

    def rounds() -> None:
        for _ in range(40):
            engine = acquire_thread_engine()
            release_thread_engine(engine.generation, 10)
            try:
                outcomes.append(engine.run(asyncio.sleep(0)))
            except AlreadyClosed as error:
                outcomes.append(error)

    caller = threading.Thread(target=rounds, daemon=True)
    caller.start()
    caller.join(20)
    assert not caller.is_alive()
    assert len(outcomes) == 40 and all(isinstance(outcome, AlreadyClosed) for outcome in outcomes)
    wait_until_gone(engine_threads())


def test_engine_acquire_during_client_collection() -> None:
    # The garbage collector runs wherever it likes, also in a thread that holds the lock.
    dropped = acquire_thread_engine()
    with loop_module._process.lock:
        engine = acquire_thread_engine()
        release_thread_engine(dropped.generation, 10)
    assert engine.run(asyncio.sleep(0, "alive")) == "alive"
    release_thread_engine(engine.generation, 10)
    wait_until_gone(engine_threads())


def interrupt() -> None:
    raise KeyboardInterrupt


def fail_with_handler(kind: type[BaseException] = RuntimeError) -> None:
    """Raise an error whose record the application's log handler raises for."""
    logging.getLogger("asyncio").addHandler(Raising(kind))
    raise ValueError("in a callback")


class Raising(logging.Handler):
    """Handler that raises for its first two records: asyncio reports the error of the first one by the second."""

    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__()
        self.kind, self.count = kind, 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        if self.count == 2:
            logging.getLogger("asyncio").removeHandler(self)
        raise self.kind("collector is down")


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (sys.exit, "sys.exit was called"),
        (interrupt, "KeyboardInterrupt was raised"),
        (fail_with_handler, "collector is down"),
        (partial(fail_with_handler, Own), "collector is down"),
    ],
    ids=["exit", "interrupt", "handler", "handler of any class"],
)
def test_engine_outlives_exit_on_its_thread(
    caplog: pytest.LogCaptureFixture, end: Callable[[], None], words: str
) -> None:
    engine = acquire_thread_engine()
    engine.call(end)
    assert engine.run(asyncio.sleep(0, "alive"), timeout=10) == "alive"
    assert words in caplog.text
    release_thread_engine(engine.generation, 10)
    wait_until_gone(engine_threads())


def test_engine_call_immediate_on_loop() -> None:
    engine = acquire_thread_engine()
    seen: list[tuple[str, bool]] = []

    async def inside() -> None:
        engine.call(lambda: seen.append(("inside", engine.on_loop())))
        assert seen

    engine.run(inside())
    happened = threading.Event()
    engine.call(lambda: (seen.append(("outside", engine.on_loop())), happened.set()))
    assert happened.wait(10)
    assert seen == [("inside", True), ("outside", True)]
    assert not engine.on_loop()
    release_thread_engine(engine.generation, 10)
    wait_until_gone(engine_threads())


@pytest.mark.asyncio
async def test_engine_spawn_keeps_task_alive() -> None:
    engine = Engine(asyncio.get_running_loop(), threading.get_ident())
    begun, finished = asyncio.Event(), asyncio.Event()

    async def body() -> None:
        begun.set()
        # Nothing else refers to what the task waits for.
        await asyncio.to_thread(gc.collect)
        finished.set()

    engine.spawn(body())
    await begun.wait()
    gc.collect()
    await asyncio.wait_for(finished.wait(), 10)


@pytest.mark.asyncio
async def test_engine_spawn_starts_later_with_eager_tasks() -> None:
    loop = asyncio.get_running_loop()
    begun: list[str] = []

    def eager(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        # Before Python 3.12 there are none: it is enough to be asked.
        begun.append("eager")
        return asyncio.Task(coroutine, loop=loop, **options)

    async def body() -> None:
        begun.append("body")

    loop.set_task_factory(getattr(asyncio, "eager_task_factory", eager))
    task = Engine(loop, threading.get_ident()).spawn(body())
    assert begun == []
    await task
    assert begun == ["body"]


def plugin_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("pulsar-native-plugin")]


@pytest.mark.asyncio
async def test_shared_task_outlives_a_cancelled_caller() -> None:
    release = asyncio.Event()
    task = asyncio.create_task(release.wait())
    first, second = (asyncio.create_task(wait_for_shared(task)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    release.set()
    assert await second is True


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_shared_task_cancelled_is_not_the_callers_cancellation(is_cancelled: bool) -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    caller = asyncio.create_task(wait_for_shared(task))
    await asyncio.sleep(0)
    task.cancel()
    if is_cancelled:
        caller.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else AlreadyClosed):
        await caller


async def test_plugin_threads_blocked_leave_default_executor() -> None:
    release, done = threading.Event(), []
    # More than there are threads, also in the default executor of a large machine.
    calls = [asyncio.create_task(to_plugin_thread(lambda: (release.wait(60), done.append(None)))) for _ in range(40)]
    await asyncio.sleep(0)
    try:
        assert len(plugin_threads()) == 32
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 10) == "free"
        # One that waits for a thread, and one that has begun.
        calls[-1].cancel()
        calls[0].cancel()
        await asyncio.wait(calls[-1:], timeout=10)
    finally:
        release.set()
    await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
    wait_until_gone(plugin_threads())
    assert [call.cancelled() for call in calls] == [True] + [False] * 38 + [True] and len(done) == 39


@pytest.mark.asyncio
async def test_plugin_thread_result_error_and_context() -> None:
    called_by: ContextVar[str] = ContextVar("called_by")
    called_by.set("caller")
    assert await to_plugin_thread(called_by.get, "nobody") == "caller"
    with pytest.raises(KeyError, match="mine"):
        await to_plugin_thread({}.__getitem__, "mine")
    wait_until_gone(plugin_threads())


def test_plugin_threads_work_in_forked_child() -> None:
    async def fork_during_calls() -> int:
        release = threading.Event()
        calls = [asyncio.create_task(to_plugin_thread(release.wait, 60)) for _ in range(40)]
        await asyncio.sleep(0)
        child = os.fork()
        if child == 0:
            worker = threading.Thread(target=lambda: os._exit(asyncio.run(to_plugin_thread(int, 7))))
            worker.start()
            worker.join(30)
            os._exit(1)
        release.set()
        await asyncio.gather(*calls)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert asyncio.run(fork_during_calls()) == 7
    wait_until_gone(plugin_threads())


def engine() -> Engine:
    return Engine(asyncio.get_running_loop(), threading.get_ident())


class NamingThreads(Authentication):
    """Plug-in and key reader that remember the names of the threads that they are called in."""

    method_name = "mine"

    def __init__(self) -> None:
        self.threads: list[str] = []

    def note(self, *_: object) -> Any:
        self.threads.append(threading.current_thread().name)

    start = auth_data = tls_certificate = get_public_key = get_private_key = note


async def call_supplier(plugin: NamingThreads) -> None:
    with pytest.raises(InvalidConfiguration):
        await ServiceUrlProvider(engine(), ClientConfig(service_url=plugin.note)).known()


async def start_plugin(plugin: NamingThreads) -> None:
    await ServiceUrlProvider(engine(), ClientConfig(service_url="pulsar://localhost")).begin_with(plugin)


async def make_tls_context(plugin: NamingThreads) -> None:
    await TlsContexts(ClientConfig(service_url="pulsar+ssl://localhost")).current(
        ServiceInfo("pulsar+ssl://localhost", plugin, None)
    )


async def make_data_key(plugin: NamingThreads) -> None:
    config = ProducerConfig(topic="t", encryption_key="a", crypto_key_reader=plugin)
    with pytest.raises(CryptoError):
        await KeyRenewal(engine(), config, TopicName.parse("t")).start()


@pytest.mark.asyncio
@pytest.mark.parametrize("use", [credentials_of, call_supplier, start_plugin, make_tls_context, make_data_key])
async def test_plugin_called_in_plugin_thread(use: Callable[[NamingThreads], Coroutine[Any, Any, Any]]) -> None:
    plugin = NamingThreads()
    await use(plugin)
    assert plugin.threads and all(name.startswith("pulsar-native-plugin") for name in plugin.threads)


def test_check_generation_other_process_raises() -> None:
    check_generation(loop_module.generation())
    with pytest.raises(AlreadyClosed, match=r"Client\.from_config"):
        check_generation(loop_module.generation() - 1)


FORK = """
    import asyncio, os, signal, sys, threading
    import pulsar_native as pulsar
    import pulsar_native.asyncio
    from support.fake_broker import FakeBroker
    from pulsar_native.wire.commands import Kind

    signal.alarm(40)
    broker = FakeBroker()
    client = pulsar.Client(broker.url)
    unused, unused_async = pulsar.Client(broker.url), pulsar.asyncio.Client(broker.url)
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=60000)
    consumer = client.subscribe("t", "s")
    producer.send(b"before")
    # A batch is open and the lock of the producer is held while the process forks.
    producer.send_async(b"open", None)
    producer._inner.children[0]._lock.acquire()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        refused = 0
        for call in (
            lambda: producer.send(b"x"), lambda: producer.send_async(b"x", None), producer.flush, producer.close,
            lambda: consumer.receive(100), consumer.close, lambda: client.create_producer("t"), client.close,
        ):
            try:
                call()
            except pulsar.AlreadyClosed as error:
                refused += "fork" in str(error)
        with pulsar.Client.from_config(client.config) as own:
            own.create_producer("t").send(b"from the child")
        # A client that was not used yet has no connections of the parent.
        unused.create_producer("t").send(b"from the child")
        unused.close()

        async def send() -> None:
            async with unused_async:
                await (await unused_async.create_producer("t")).send(b"from the child")

        asyncio.run(send())
        del producer, consumer, client
        os._exit(refused)
    producer._inner.children[0]._lock.release()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 8, status
    # The parent's connection has heard nothing of all that: no goodbye, no FIN, and the batch is still there.
    producer.flush()
    producer.send(b"after")
    assert producer.is_connected() and consumer.is_connected()
    sent = [(seen.peer.number, seen.command.send.num_messages) for seen in broker.seen(Kind.SEND)]
    assert sent == [(0, 1), (1, 1), (2, 1), (3, 1), (0, 1), (0, 1)], sent
    client.close()
    unused.close()
    broker.close()
    print("done")
"""


@pytest.mark.proves("N1")
def test_fork_child_has_own_client() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORK)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "dev")])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


@pytest.mark.parametrize("last", ["", "client.close()"])
def test_interpreter_exit_does_not_hang(fake: FakeBroker, last: str) -> None:
    program = f"""
        import pulsar_native as pulsar
        client = pulsar.Client({fake.url!r})
        producer = client.create_producer("t")
        consumer = client.subscribe("t", "s", message_listener=lambda consumer, message: None)
        producer.send(b"x")
        {last}
        print("done")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (0, "done", "")


_EXIT_HANDLERS = {
    "atexit": """
        import atexit
        @atexit.register
        def bye():
            producer.send(b"last")
            client.close()
        {start}
    """,
    "finalize": """
        import weakref
        class Kept: pass
        kept = Kept()
        def bye():
            producer.send(b"last")
            client.close()
        weakref.finalize(kept, bye)
        {start}
    """,
    "logging": """
        import logging, logging.handlers
        {start}
        class Sending(logging.Handler):
            def emit(self, record):
                producer.send(record.getMessage().encode())
            def close(self):
                client.close()
                super().close()
        sending = Sending()
        log = logging.getLogger("app")
        log.addHandler(logging.handlers.MemoryHandler(100, target=sending))
        log.warning("last")
    """,
}


@pytest.mark.parametrize("handler", list(_EXIT_HANDLERS))
def test_exit_handlers_registered_before_may_send(fake: FakeBroker, handler: str) -> None:
    start = f"import pulsar_native; client = pulsar_native.Client({fake.url!r}); producer = client.create_producer('t')"
    program = textwrap.dedent(_EXIT_HANDLERS[handler]).replace("{start}", start)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [seen.command.send.num_messages for seen in fake.seen(Kind.SEND)] == [1]
    assert len(fake.seen(Kind.CLOSE_PRODUCER)) == 1


@pytest.mark.parametrize("call", ["client.create_producer('u')", "client.close()", "consumer.receive()"])
def test_call_at_the_interpreters_end_raises(fake: FakeBroker, call: str) -> None:
    program = f"""
        import sys
        import pulsar_native
        from pulsar_native import AlreadyClosed
        class Last:
            def __del__(self):
                assert sys.is_finalizing()
                try:
                    {call}
                except AlreadyClosed as error:
                    write(str(error))
        write = sys.stdout.write
        client = pulsar_native.Client({fake.url!r})
        consumer = client.subscribe("t", "s")
        # Destroyed with its module, once the threads are gone.
        sys.modules["last"] = last = type(sys)("last")
        last.kept = Last()
        del last
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("The interpreter is ending: close clients before")


def test_dropped_client_at_the_interpreters_end_is_silent(fake: FakeBroker) -> None:
    program = f"""
        import pulsar_native
        client = pulsar_native.Client({fake.url!r})
        client.subscribe("t", "s", message_listener=lambda consumer, message: None)
        for number in range(100):
            client.create_producer("t", batching_max_publish_delay_ms=60_000).send_async(b"x", None)
        print("done")
    """
    command = [sys.executable, "-W", "default", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")
