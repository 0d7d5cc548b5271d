"""Every public method of live objects in a forked child: it raises `AlreadyClosed` at once, whatever locks other
threads held at the fork. New clients work there all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pulsar_native
import pulsar_native.asyncio
from pulsar_native import AlreadyClosed, Client, MessageId, PushConsumer, PushConsumerConfig
from support.fake_broker import FakeBroker
from support.fake_coordinators import Coordinators
from support.fake_topic import FakeTopic
from support.processes import in_child

pytestmark = [
    pytest.mark.proves("N1"),
    pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning"),
]

LIMIT_SECONDS = 60.0
CALL_SECONDS = 5.0
LOCKS = (type(threading.Lock()), type(threading.RLock()))
# Of the process, and kept usable after a fork by the standard library.
PROCESS_WIDE = (type, types.ModuleType, types.FrameType, types.CodeType, threading.Thread, logging.Logger)
# Methods that return what is known without a lock; all others raise.
QUIET = {
    "Client": {"from_config"},
    "Producer": {"topic", "producer_name", "last_sequence_id", "is_connected", "last_disconnected_timestamp"},
    "Consumer": {
        "topic", "topics", "subscription_name", "consumer_name", "is_connected", "last_disconnected_timestamp",
        "discarded_message_ids",
    },
    "Reader": {"topic", "topics", "is_connected", "discarded_message_ids"},
    "TableView": {"topic", "is_connected", "get", "items", "keys", "values", "snapshot", "for_each"},
    "Transaction": {"txn_id", "state"},
    # Before its start it is only described.
    "PushConsumer": {
        "subscribe", "unsubscribe", "register_message_listener", "register_filter_message_hook",
        "register_consume_message_hook",
    },
}  # fmt: skip


class Hook:
    """A hook of push consumers."""

    def consume_message_before(self, context: object) -> None:
        """Do nothing."""

    def consume_message_after(self, context: object) -> None:
        """Do nothing."""


ARGUMENTS: dict[str, Any] = {
    "callback": None, "config": pulsar_native.ClientConfig(service_url="pulsar://h"),
    "content": b"x", "delay": 1, "key": "a", "message": MessageId(1, 1, -1, -1), "messageid": MessageId.earliest,
    "messages": [b"x"], "namespace": "public/default", "service_url": "pulsar://h",
    "start_message_id": MessageId.latest, "subscription_name": "s", "topic": "t",
}  # fmt: skip


def arguments_of(name: str, method: Callable[..., Any]) -> dict[str, Any]:
    """Return values for the parameters that a method needs."""
    own: dict[str, dict[str, Any]] = {
        "for_each": {"callback": print},
        "for_each_and_listen": {"callback": print},
        "listen": {"callback": print},
        "register_consume_message_hook": {"hook": Hook()},
        "register_filter_message_hook": {"hook": bool},
        "register_message_listener": {"concurrently": print},
        "send_table": {"table": pytest.importorskip("pyarrow").table({"value": [b"x"]})},
    }
    if name in own:
        return own[name]
    needed = inspect.signature(method).parameters.values()
    return {
        each.name: ARGUMENTS[each.name]
        for each in needed
        if each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    }


def locks_of(*objects: object) -> list[Any]:
    """Return the locks that the objects refer to, through others too."""
    found, seen, left = [], set(), list(objects)
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, PROCESS_WIDE):
            continue
        seen.add(id(each))
        if isinstance(each, LOCKS):
            found.append(each)
        elif isinstance(each, types.FunctionType):
            # Not its module's names.
            left.extend(each.__closure__ or ())
        else:
            left.extend(gc.get_referents(each))
    return found


def hold_locks(*objects: object) -> int:
    """Have another thread hold all locks of the objects until the process ends, as one that a fork leaves out does."""
    locks, held = locks_of(*objects), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire(blocking=False)
        held.set()
        threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    assert held.wait(CALL_SECONDS)
    return len(locks)


class Hang(BaseException):
    """Raised in a call that has not returned in time."""


def raise_hang(*_: object) -> None:
    raise Hang


async def finish(result: Any) -> Any:
    """Wait for the result of a method of the asyncio API."""
    if inspect.isasyncgen(result):
        return [each async for each in result]
    return await result if inspect.isawaitable(result) else result


def outcome(api: Any, name: str, method: Callable[..., Any]) -> str:
    """Return what came of a call: "ok", "closed", or another text."""
    arguments = arguments_of(name, method)

    async def on_loop() -> None:
        await finish(method(**arguments))

    signal.setitimer(signal.ITIMER_REAL, CALL_SECONDS)
    try:
        if api is pulsar_native.asyncio:
            asyncio.run(on_loop())
        else:
            result = method(**arguments)
            if inspect.isgenerator(result):
                list(result)
    except Hang:
        return "hangs"
    except AlreadyClosed as error:
        return "closed" if "forked" in str(error) else str(error)
    except Exception as error:
        return repr(error)
    else:
        return "ok"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def outcomes(api: Any, *objects: Any) -> dict[str, str]:
    """Call every public method of the objects, and return the outcomes that are not as they should be."""
    signal.signal(signal.SIGALRM, raise_hang)
    assert hold_locks(*objects) > 10
    wrong = {}
    for target in objects:
        kind = type(target).__name__
        for name in sorted(each for each in dir(target) if not each.startswith("_")):
            method = getattr(target, name)
            if not callable(method):
                continue
            found = outcome(api, name, method)
            if found != ("ok" if name in QUIET[kind] else "closed"):
                wrong[f"{kind}.{name}"] = found
    return wrong


@pytest.fixture
def topic(fake: FakeBroker) -> FakeTopic:
    """Give an empty topic, and a transaction coordinator."""
    Coordinators(fake)
    return FakeTopic(fake)


@pytest.fixture
def client(fake: FakeBroker) -> Iterator[Client]:
    """Give a client of the fake broker."""
    with Client(fake.url, operation_timeout_seconds=5) as made:
        yield made


GROUP = PushConsumerConfig(consumer_group="g")


@pytest.mark.parametrize("listens", [False, True], ids=["receives", "listens"])
def test_sync_methods_in_child_raise(topic: FakeTopic, client: Client, listens: bool) -> None:
    listener: Any = (lambda *_: None) if listens else None
    live = (
        client.create_producer("t"),
        client.subscribe("t", "s", message_listener=listener),
        client.create_reader("t", MessageId.earliest, reader_listener=listener),
        client.create_table_view("t"),
        client.new_transaction(),
        PushConsumer(client, GROUP),
        client,
    )
    # With a listener these are refused in any process.
    refused = {"Consumer.receive", "Consumer.batch_receive", "Reader.read_next"} if listens else set()
    assert set(in_child(lambda: outcomes(pulsar_native, *live), LIMIT_SECONDS)) == refused


def test_asyncio_methods_in_child_raise(fake: FakeBroker, topic: FakeTopic) -> None:
    async def fork() -> Any:
        async with pulsar_native.asyncio.Client(fake.url, operation_timeout_seconds=5) as client:
            live = (
                await client.create_producer("t"),
                await client.subscribe("t", "s"),
                await client.create_reader("t", MessageId.earliest),
                await client.create_table_view("t"),
                await client.new_transaction(),
                pulsar_native.asyncio.PushConsumer(client, GROUP),
                client,
            )

            def child() -> dict[str, str]:
                asyncio._set_running_loop(None)
                return outcomes(pulsar_native.asyncio, *live)

            return in_child(child, LIMIT_SECONDS)

    assert asyncio.run(fork()) == {}


def test_nothing_is_connected_in_child(fake: FakeBroker, topic: FakeTopic, client: Client) -> None:
    fake.partitions["persistent://public/default/p"] = 2
    live = (
        client.create_producer("t"),
        client.create_producer("p", lazy_start_partitioned_producers=True, message_router=lambda *_: 1),
        client.subscribe("t", "s"),
        client.create_reader("t", MessageId.earliest),
        client.create_table_view("t"),
    )
    assert [each.is_connected() for each in live] == [True] * 5
    assert in_child(lambda: [each.is_connected() for each in live], LIMIT_SECONDS) == [False] * 5


def exit_code_of(block: Any) -> object:
    """Return the code with which the child ends that exits inside the block, which its parent has entered."""
    try:
        with contextlib.ExitStack() as stack:
            stack.push(block)
            sys.exit(7)
    except SystemExit as error:
        return error.code


def test_blocks_left_in_child_are_quiet(client: Client) -> None:
    producer, group = client.create_producer("t"), PushConsumer(client, GROUP)
    assert in_child(lambda: [exit_code_of(each) for each in (producer, group, client)], LIMIT_SECONDS) == [7, 7, 7]
    assert producer.is_connected()


@pytest.mark.asyncio
async def test_asyncio_blocks_left_in_child_are_quiet(fake: FakeBroker) -> None:
    async with pulsar_native.asyncio.Client(fake.url) as client:
        producer = await client.create_producer("t")
        group = pulsar_native.asyncio.PushConsumer(client, GROUP)

        async def leave(block: Any) -> None:
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_exit(block)
                raise KeyError("of the block")

        def child() -> list[str]:
            asyncio._set_running_loop(None)
            ends = []
            for block in (producer, group, client):
                try:
                    asyncio.run(leave(block))
                except Exception as error:
                    ends.append(repr(error))
            return ends

        assert in_child(child, LIMIT_SECONDS) == ["KeyError('of the block')"] * 3
        assert producer.is_connected()


def test_fork_in_callback_send_in_child_raises(client: Client) -> None:
    producer, found = client.create_producer("t"), []
    called = threading.Event()

    def forks(*_: object) -> None:
        found.append(in_child(lambda: outcome(pulsar_native, "send", producer.send), LIMIT_SECONDS))
        called.set()

    producer.send_async(b"x", forks)
    assert called.wait(LIMIT_SECONDS)
    assert found == ["closed"]


def use_new_clients(url: str) -> list[str]:
    """Use what takes a lock of the package's modules, with clients of both APIs made here."""
    with Client(url, logger=logging.getLogger("app"), meter_provider=True, operation_timeout_seconds=5) as client:
        group = PushConsumer(client, GROUP)
        group.subscribe("t")
        group.register_message_listener(concurrently=print)
        with group:
            client.create_producer("t")

    async def on_loop() -> None:
        async with pulsar_native.asyncio.Client(url, operation_timeout_seconds=5) as client:
            group = pulsar_native.asyncio.PushConsumer(client, GROUP)
            group.subscribe("t")
            group.register_message_listener(concurrently=print)
            async with group:
                await client.create_producer("t")

    asyncio.run(on_loop())
    return ["sync", "asyncio"]


def test_new_clients_in_child_modules_locked(fake: FakeBroker, topic: FakeTopic, client: Client) -> None:
    def child() -> Any:
        # In a process of its own, where the locks of modules stay held.
        modules = [module for name, module in list(sys.modules.items()) if name.startswith("pulsar_native")]
        assert hold_locks(*(vars(module) for module in modules)) > 5
        return in_child(lambda: use_new_clients(fake.url), LIMIT_SECONDS / 2)

    # Imports what the child uses.
    assert use_new_clients(fake.url) == in_child(child, LIMIT_SECONDS) == ["sync", "asyncio"]
