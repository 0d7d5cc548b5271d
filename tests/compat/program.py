"""What the compatibility programs are made of: their registry, and the environment each one is given.

A program is a function `(pulsar, env) -> dict`: it uses only names of the official client (through the module it is
given), and returns values that JSON can hold and that depend on nothing but the client. Rules: imports neither client;
standard library only, so that a runner starts quickly.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")
Observed = dict[str, Any]
Body = Callable[..., Observed]

# Marks the classes of an error in an observation: an error of ours passes for the official one where any `except`
# clause that catches that one catches ours too.
ERROR = "$error"


@dataclass(frozen=True)
class Program:
    """A program, under the id its test and its accepted differences have."""

    id: str
    body: Body
    arguments: tuple[Any, ...]
    # Whether it needs a process of its own, in whose main thread it runs.
    own_process: bool
    seconds: float
    # Whether its broker demands credentials, which are in `Env.secrets`, and also listens on TLS ports.
    secure: bool


PROGRAMS: dict[str, Program] = {}


def program(
    *,
    own_process: bool = False,
    seconds: float = 30,
    cases: Mapping[str, tuple[Any, ...]] | None = None,
    secure: bool = False,
) -> Callable[[Body], Body]:
    """Register a function as a program, once for each of `cases` (id -> further arguments)."""

    def register(body: Body) -> Body:
        area = body.__module__.rsplit(".", 1)[-1]
        for case, arguments in ({"": ()} if cases is None else cases).items():
            name = f"{area}.{body.__name__}" + (f"[{case}]" if case else "")
            if name in PROGRAMS:
                raise ValueError(f"Two programs are called {name}")
            PROGRAMS[name] = Program(name, body, arguments, own_process, seconds, secure)
        return body

    return register


class Env:
    """What a program is given besides the module: topics and clients of its own, and the words to describe errors."""

    def __init__(
        self, pulsar: ModuleType, service_url: str, admin_url: str, secrets: Mapping[str, str] | None = None
    ) -> None:
        self.pulsar = pulsar
        self.secrets = secrets or {}
        self.service_url = service_url
        self.admin_url = admin_url
        self._prefix = f"compat-{uuid.uuid4().hex[:12]}"
        self._open: list[Any] = []
        self._names = _error_names(pulsar)

    def module(self, name: str) -> ModuleType:
        """Import a module of the package, such as `schema` or `schema.definition`."""
        return importlib.import_module(f"{self.pulsar.__name__}.{name}")

    def topic(self, name: str = "topic", *, partitions: int = 0) -> str:
        """Return a topic's full name that is this program's own; with partitions it is created."""
        full = f"persistent://public/default/{self._prefix}-{name}"
        if partitions:
            self.admin("PUT", full.replace("://", "/") + "/partitions", partitions)
        return full

    def short(self, text: str) -> str:
        """Return a text without this program's prefix, so that both clients' agree."""
        return text.replace(self._prefix, "PREFIX")

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """Call the broker's admin interface."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.admin_url}/admin/v2/{path}", data=data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def client(self, url: str | None = None, **options: Any) -> Any:
        """Return a client of the shared broker, closed after the program."""
        options.setdefault("operation_timeout_seconds", 10)
        client = self.pulsar.Client(url or self.service_url, **options)
        self._open.append(client)
        return client

    def filled(self, count: int = 5, **options: Any) -> tuple[Any, str, list[Any]]:
        """Return a client, a topic with messages 0, 1, …, and their ids."""
        client, topic = self.client(), self.topic()
        producer = client.create_producer(topic, **options)
        ids = [producer.send(b"%d" % number) for number in range(count)]
        return client, topic, ids

    def batch(self, count: int = 5) -> tuple[Any, str]:
        """Return a client and a topic with one entry of so many messages."""
        client, topic = self.client(), self.topic()
        producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=5000)
        for number in range(count):
            producer.send_async(b"%d" % number, lambda result, place: None)
        producer.flush()
        return client, topic

    def close(self) -> None:
        """Close what is open."""
        for each in self._open:
            with contextlib.suppress(Exception):
                each.close()
        self._open.clear()

    def error(self, call: Callable[[], Any]) -> Any:
        """Call, and describe the error raised; None when there was none."""
        try:
            call()
        except BaseException as error:
            return self.describe(error)
        return None

    def describe(self, error: BaseException) -> dict[str, list[str]]:
        """Describe an error by the names under which a program can catch it, its own first."""
        names = []
        for kind in type(error).__mro__[:-1]:
            names += self._names.get(kind) or ([kind.__name__] if kind.__module__ == "builtins" else [])
        return {ERROR: names}

    def until(self, question: Callable[[], T], seconds: float = 10) -> T:
        """Ask until the answer is true, and return it; the last answer when time is up."""
        deadline = time.monotonic() + seconds
        while not (answer := question()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return answer

    def drain(self, consumer: Any, count: int, timeout_millis: int = 10_000) -> list[Any]:
        """Receive so many messages."""
        return [consumer.receive(timeout_millis) for _ in range(count)]

    def more(self, consumer: Any, least: int = 0, timeout_millis: int = 800) -> list[str | None]:
        """Receive until nothing comes for a while, which is longer before so many came; return the contents."""
        contents: list[str | None] = []
        with contextlib.suppress(self.pulsar.Timeout):
            while True:
                message = consumer.receive(timeout_millis if len(contents) >= least else 10_000)
                contents.append(text(message.data()))
        return contents

    def wait_delivered(self, topic: str, count: int) -> None:
        """Wait until so many messages of a topic are in the queue of the consumer of the subscription "sub"."""
        path = topic.replace("://", "/") + "/stats"
        self.until(lambda: self.admin("GET", path)["subscriptions"]["sub"]["msgOutCounter"] >= count)
        # From the broker into the queue, of which the clients tell nothing.
        time.sleep(0.3)

    def run(self, main: Coroutine[Any, Any, T], seconds: float = 20) -> T:
        """Run a coroutine on a loop of its own."""
        return asyncio.run(asyncio.wait_for(main, seconds))


def text(data: bytes | None) -> str | None:
    """Return bytes as the text they hold."""
    return None if data is None else bytes(data).decode("utf-8", "backslashreplace")


class Calls:
    """Gathers what a callback is called with, from any thread."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.threads: set[int] = set()
        self._lock = threading.Condition()

    def __call__(self, *arguments: Any) -> None:
        with self._lock:
            self.seen.append(arguments)
            self.threads.add(threading.get_ident())
            self._lock.notify_all()

    def wait(self, count: int, seconds: float = 10) -> bool:
        """Wait until it was called so often."""
        with self._lock:
            return self._lock.wait_for(lambda: len(self.seen) >= count, seconds)


def _error_names(pulsar: ModuleType) -> dict[type, list[str]]:
    """Return the names by which programs know the package's error classes."""
    names: dict[type, list[str]] = {}
    for label, module in (("pulsar", "exceptions"), ("asyncio", "asyncio")):
        there = importlib.import_module(f"{pulsar.__name__}.{module}")
        for name in dir(there):
            kind = getattr(there, name)
            if isinstance(kind, type) and issubclass(kind, BaseException) and _is_own(kind, pulsar):
                names.setdefault(kind, []).append(f"{label}.{name}")
    return names


def _is_own(kind: type, pulsar: ModuleType) -> bool:
    return kind.__module__.split(".")[0].lstrip("_") == pulsar.__name__
