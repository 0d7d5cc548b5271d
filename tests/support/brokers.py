"""Fixtures of real brokers: some shared by the run, private ones for faults, unique topics and namespaces.

Imports only pytest, the standard library and what needs no more, since every environment loads it.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import re
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from broker import Standalone
from support.until import wait_until


@dataclass(frozen=True)
class Broker:
    """The addresses of the shared broker: no authentication, no TLS, default namespace public/default."""

    service_url: str
    admin_url: str

    def admin(self, method: str, path: str, body: object = None) -> object:
        """Call the admin interface (path below /admin/v2/) and return the JSON of its answer, None for no content."""
        return admin(self.admin_url, method, path, body)

    def wait_unsubscribed(self, topic: str, seconds: float = 10) -> None:
        """Wait until a topic has no subscription; fails after `seconds`.

        The broker confirms the close of a reader, and removes its subscription a moment later.
        """
        path = f"{topic.replace('://', '/')}/subscriptions"
        wait_until(lambda: self.admin("GET", path) == [], seconds)


# Folder of the brokers that all suites of a run share, and the runner's process id; unset without a runner.
SHARED_BROKERS, RUNNER = "PULSAR_TEST_BROKERS", "PULSAR_TEST_RUNNER"
# Name of the suite whose processes have brokers of their own; unset for the others.
BROKER_EACH = "PULSAR_TEST_BROKER_EACH"

# Those this process has started: their process objects must not be collected while the brokers run.
_started_for_all: list[Standalone] = []

# Password of the role "admin" at the secure broker, and the file (htpasswd) that it reads.
PASSWORD = "open-sesame"
_PASSWORDS = "admin:$apr1$pulsarpw$pGLrFNGt0AZM9qCfMAldO0"


class OwnBroker(Protocol):
    """Start a private broker with the options of `broker.Standalone`; it is ready, and stopped after the test."""

    def __call__(self, **options: object) -> Standalone:
        """Return the started broker."""


class NewTopic(Protocol):
    """Name a topic nobody else uses; with partitions it is created as a partitioned one, else on first use."""

    def __call__(self, name: str = "topic", *, partitions: int = 0, namespace: str = "public/default") -> str:
        """Return the full name, persistent://…"""


def admin(admin_url: str, method: str, path: str, body: object = None, *, token: str | None = None) -> object:
    """Call a broker's admin interface; raises urllib's HTTPError when it refuses."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{admin_url}/admin/v2/{path}", data=data, method=method)
    request.add_header("Content-Type", "application/json")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


@contextlib.contextmanager
def shared_by_run(name: str, tmp_path_factory: pytest.TempPathFactory, **options: Any) -> Iterator[Standalone]:
    """Give the run's broker of a name, started by the first session that needs it; its runner stops it.

    Without a runner it is a broker of this session alone.
    """
    shared = os.environ.get(SHARED_BROKERS)
    if shared is None:
        with Standalone(tmp_path_factory.mktemp(name), **options) as started:
            yield started
        return
    Path(shared).mkdir(parents=True, exist_ok=True)
    with Path(shared, f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = Standalone(Path(shared, name), **options)
        if found.process_id() is None:
            _started_for_all.append(found.start(owner=int(os.environ[RUNNER])))
        found.wait_ready()
    yield found


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give the shared broker: the one the runner started, else one of this session.

    The processes of a suite share the runner's, but for a suite of which a test may unload a whole namespace: there
    only the first one gets it.
    """
    process, suite = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get(BROKER_EACH)
    if given := broker_of_runner(process, suite):
        yield given
        return
    with shared_by_run(process if suite is None else f"{suite}-{process}", tmp_path_factory) as started:
        yield Broker(started.service_url, started.admin_url)


def broker_of_runner(process: str, suite: str | None) -> Broker | None:
    """Return the runner's broker, None if there is none for this process of a suite."""
    service_url, admin_url = os.environ.get("PULSAR_TEST_SERVICE_URL"), os.environ.get("PULSAR_TEST_ADMIN_URL")
    if not service_url or not admin_url or (suite is not None and process != "gw0"):
        return None
    return Broker(service_url, admin_url)


@pytest.fixture(scope="session")
def secure_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Give a broker that demands tokens (`token()`) and also listens on TLS ports (`certificates`).

    It looks every second whether a connection's token has ended, and asks for another one then. It knows clients by
    their certificate and by PASSWORD as well.
    """
    providers = ("Token", "Tls", "Basic")
    conf = {
        "authenticationRefreshCheckSeconds": "1",
        "authenticationProviders": ",".join(
            f"org.apache.pulsar.broker.authentication.AuthenticationProvider{each}" for each in providers
        ),
        "basicAuthConf": f"data:;base64,{base64.b64encode(_PASSWORDS.encode()).decode()}",
    }
    with shared_by_run("secure", tmp_path_factory, tokens=True, tls=True, conf=conf) as started:
        yield started


@pytest.fixture(scope="session")
def default_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give a broker that is configured as Pulsar is installed.

    It deletes inactive topics after 60 s, retains nothing, and has no deduplication, no index of messages and no
    transactions.
    """
    with shared_by_run("default", tmp_path_factory, profile="default") as started:
        yield Broker(started.service_url, started.admin_url)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[OwnBroker]:
    """Give a factory of private brokers that the test may configure, kill, pause and restart."""
    started: list[Standalone] = []

    def start(**options: object) -> Standalone:
        fresh = Standalone(tmp_path / f"broker{len(started)}", **options)  # type: ignore[arg-type]
        started.append(fresh)
        return fresh.start().wait_ready()

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> NewTopic:
    """Give a factory of topic names on the shared broker."""

    def name_it(name: str = "topic", *, partitions: int = 0, namespace: str = "public/default") -> str:
        local = f"{name}-{uuid.uuid4().hex[:12]}"
        if partitions:
            broker.admin("PUT", f"persistent/{namespace}/{local}/partitions", partitions)
        return f"persistent://{namespace}/{local}"

    return name_it


@pytest.fixture
def namespace(broker: Broker, request: pytest.FixtureRequest) -> Callable[[], str]:
    """Give a factory of fresh namespaces (public/…) on the shared broker, for tests that set policies."""

    def create() -> str:
        words = re.sub(r"\W+", "-", request.node.name)[:40].strip("-")
        name = f"public/{words}-{uuid.uuid4().hex[:8]}"
        broker.admin("PUT", f"namespaces/{name}")
        return name

    return create


@pytest.fixture
def deduplicating(broker: Broker, namespace: Callable[[], str]) -> str:
    """Give a fresh namespace whose topics deduplicate."""
    name = namespace()
    broker.admin("POST", f"namespaces/{name}/deduplication", True)
    return name
