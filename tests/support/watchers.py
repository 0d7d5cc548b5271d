"""Asset watchers of a real Airflow with two triggerers: their DAG, what is published for them, the events they have.

Events are read in Airflow's database, as there are many. Three watchers have matches of their own on one topic, many
assets share a fourth, and one watches a topic of any bytes.
"""

from __future__ import annotations

import contextlib
import json
import random
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from pulsar_native import AdminClient, Client, TopicNotFound
from pulsar_native.admin import NotFound
from support.airflow_stack import AirflowStack
from support.brokers import Broker

_WATCHERS = """
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher, task

MATCHES = {matches!r}

def watched(name, topic, match, **options):
    trigger = MessageQueueTrigger(scheme="pulsar", topic=topic, match=match, **options)
    return Asset(name, watchers=[AssetWatcher(name=f"watch_{{name}}", trigger=trigger)])

assets = [watched(f"{{name}}{suffix}", {topic!r}, match, payload="ids") for name, match in MATCHES.items()]
assets += [watched(f"many{{n}}{suffix}", {topic!r}, {{"key": "rare"}}, payload="none") for n in range({many})]
assets += [watched("bytes{suffix}", {other!r}, None)]
never = Asset("never{suffix}")

# A DAG that is paused has no watchers; this one waits for ever.
with DAG({dag_id!r}, schedule=[*assets, never]):
    @task
    def nothing():
        pass

    nothing()
"""
MATCHES: dict[str, dict[str, Any]] = {
    "by_key": {"key": ["a", "b"]},
    "by_property": {"properties": {"kind": "even"}},
    "by_value": {"jsonpath": "@.n < 100 || @.tags[?@ == 'x']"},
}
MANY = 50
# Triggers of the watchers: three matches, one of many assets, one of the bytes. No triggerer can take all.
TRIGGERS, CAPACITY = 5, 3


@contextlib.contextmanager
def two_triggerers(airflow: AirflowStack, broker: Broker) -> Iterator[AirflowStack]:
    """Replace the triggerer of a real Airflow by two that must share the triggers, until the block ends."""
    airflow.define_connection(service_url=broker.service_url, admin_url=broker.admin_url)
    airflow.kill_triggerer()
    for _ in range(2):
        start_triggerer(airflow)
    yield airflow
    forget_watchers(airflow)
    # A failed test may have left fewer.
    with contextlib.suppress(ValueError):
        for _ in range(3):
            airflow.kill_triggerer()
    airflow.start_triggerer()


def start_triggerer(stack: AirflowStack) -> None:
    """Start a triggerer with room for some of the triggers."""
    stack.start_triggerer("--capacity", str(CAPACITY))


def forget_watchers(stack: AirflowStack) -> None:
    """End all watchers: they outlive the file of their DAG."""
    stack.metadata.rows("DELETE FROM asset_watcher")


def payloads(stack: AirflowStack, asset: str) -> list[Any]:
    """Return the payloads of an asset's events."""
    found = stack.metadata.rows(
        "SELECT e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id WHERE a.name = ?", asset
    )
    # A column of JSON in PostgreSQL, of text in SQLite.
    extras = [json.loads(extra) if isinstance(extra, str) else extra for (extra,) in found]
    assert all(extra["from_trigger"] for extra in extras)
    return [extra["payload"] for extra in extras]


def wait(
    stack: AirflowStack,
    what: str,
    ask: Callable[[], Any],
    seconds: float = 120,
    report: Callable[[], str] | None = None,
) -> Any:
    """Wait for an answer that is true; the report is printed where none comes."""
    return stack.processes.wait_for(what, ask, seconds, report)


class Published:
    """Messages of a topic, and the ids of those that each watcher must see."""

    def __init__(self, client: Client, topic: str) -> None:
        self._producer = client.create_producer(topic)
        self.expected: dict[str, set[str]] = {name: set() for name in MATCHES}
        self.count = 0

    def publish(self, count: int) -> None:
        """Publish so many messages more."""
        for n in range(self.count, self.count + count):
            key, even = "abcde"[n % 5], n % 2 == 0
            value = {"n": n, "tags": ["x"] if n % 7 == 0 else ["y"]}
            sent = self._producer.send(
                json.dumps(value).encode(), partition_key=key, properties={"kind": "even"} if even else {}
            )
            holds = {"by_key": key in "ab", "by_property": even, "by_value": n < 100 or n % 7 == 0}
            for name in MATCHES:
                if holds[name]:
                    self.expected[name].add(str(sent))
        self.count += count

    def rare(self, count: int) -> None:
        """Publish messages that the many assets wait for."""
        for _ in range(count):
            self._producer.send(json.dumps({"n": 1000}).encode(), partition_key="rare")


class Watched:
    """The watchers of one DAG: their subscriptions, events and triggers."""

    def __init__(self, stack: AirflowStack, admin: AdminClient, topic: str, other: str) -> None:
        self.stack, self.admin, self.topic, self.other = stack, admin, topic, other
        self.suffix = f"_{time.time_ns()}"

    def write(self, dag_id: str) -> None:
        """Write the DAG and wait for all subscriptions."""
        text = _WATCHERS.format(
            matches=MATCHES, suffix=self.suffix, topic=self.topic, other=self.other, many=MANY, dag_id=dag_id
        )
        self.stack.write_dag_file(dag_id, textwrap.dedent(text))
        wait(self.stack, "the subscriptions", lambda: len(self.subscriptions()) == len(MATCHES) + 1)
        wait(self.stack, "the bytes' subscription", lambda: subscribed(self.admin, self.other))

    def subscriptions(self) -> dict[str, Any]:
        """Return the statistics of the topic's subscriptions by name; none while the topic does not exist."""
        try:
            return dict(self.admin.stats(self.topic)["subscriptions"])
        except (NotFound, TopicNotFound):
            return {}

    def subscription(self, name: str) -> dict[str, Any]:
        """Return the statistics of a watcher's subscription."""
        (found,) = [stats for key, stats in self.subscriptions().items() if f"-{name}{self.suffix}-" in key]
        assert isinstance(found, dict)
        return found

    def seen(self, name: str) -> Counter[str]:
        """Return how many events a watcher has of each message."""
        return Counter(payload["message_id"] for payload in payloads(self.stack, name + self.suffix))

    def complete(self, published: Published) -> bool:
        """Return whether every watcher has an event of each message."""
        return all(published.expected[name] <= set(self.seen(name)) for name in MATCHES)

    def left(self, published: Published) -> str:
        """Return what is missing: events of messages, and messages without an acknowledgement."""
        missing = {name: sorted(published.expected[name] - set(self.seen(name))) for name in MATCHES}
        keys = ("msgBacklog", "unackedMessages", "msgOutCounter", "msgRateRedeliver", "consumers")
        stats = {name: {key: each[key] for key in keys} for name, each in self.subscriptions().items()}
        return f"no events of: {missing}\nsubscriptions: {json.dumps(stats, indent=1)}"

    def split(self) -> list[int]:
        """Return how many triggers each triggerer has."""
        found = self.stack.metadata.rows(
            "SELECT t.triggerer_id, count(DISTINCT t.id) FROM trigger t JOIN asset_watcher w ON w.trigger_id = t.id "
            "JOIN asset a ON a.id = w.asset_id WHERE a.name LIKE ? GROUP BY t.triggerer_id",
            f"%{self.suffix}",
        )
        return sorted(count for owner, count in found if owner is not None)

    def settled(self) -> bool:
        """Return whether the broker has no message left for the watchers."""
        return all(not stats["msgBacklog"] for stats in self.subscriptions().values())

    def kill_between_receive_and_store(self, published: Published, count: int) -> None:
        """Kill a triggerer when all messages were received and none was stored."""
        with self.stack.metadata.no_events_stored():
            # Counted behind the lock: redeliveries of earlier messages may be stored until it is held.
            before = {name: len(payloads(self.stack, name + self.suffix)) for name in MATCHES}
            published.publish(count)
            wait(self.stack, "unacknowledged messages", lambda: self._waiting() >= count // 2)
            self.stack.kill_triggerer()
            after = {name: len(payloads(self.stack, name + self.suffix)) for name in MATCHES}
        assert after == before
        start_triggerer(self.stack)

    def _waiting(self) -> int:
        return sum(stats["unackedMessages"] for stats in self.subscriptions().values())


def random_bytes(client: Client, topic: str, count: int) -> set[str]:
    """Publish bytes that no decoder is made for, and return their ids."""
    source = random.Random(14)
    producer = client.create_producer(topic)
    texts = [b'{"big": 1' + b"0" * 40 + b"}", b'"\\ud800"', b"\x00", b"", b"[" * 3000]
    return {str(producer.send(each)) for each in [*texts, *(source.randbytes(200) for _ in range(count))]}


def check(watched: Watched, published: Published, disturbed: int) -> None:
    """Check that each watcher has all its messages and no others, with few of them twice."""
    for name in MATCHES:
        seen = watched.seen(name)
        assert set(seen) == published.expected[name], name
        # What was stored and not acknowledged when a triggerer was killed comes again.
        assert sum(seen.values()) - len(seen) <= disturbed, name
    wait(watched.stack, "the last acknowledgements", watched.settled, 30)


def subscribed(admin: AdminClient, topic: str) -> bool:
    """Return whether a topic has a subscription; not while the topic does not exist."""
    try:
        return bool(admin.subscriptions(topic))
    except (NotFound, TopicNotFound):
        return False


def watch_and_kill(
    stack: AirflowStack, client: Client, admin: AdminClient, dag_id: str, topic: str, other: str
) -> None:
    """Kill a triggerer between receive and store; check that each watcher has its events, also those of any bytes."""
    watched = Watched(stack, admin, topic, other)
    watched.write(dag_id)
    published = Published(client, watched.topic)
    published.publish(150)
    published.rare(2)
    wild = random_bytes(client, watched.other, 20)
    wait(stack, "the first events", lambda: watched.complete(published))
    assert sum(watched.split()) == TRIGGERS and len(watched.split()) == 2
    # One trigger and one consumer serve all assets that are watched alike.
    many = watched.subscription(f"many{min(map(str, range(MANY)))}")
    assert len(many["consumers"]) == 1
    assert len(found := sorted(watched.subscriptions())) == len(MATCHES) + 1, found
    watched.kill_between_receive_and_store(published, 150)
    published.publish(50)
    published.rare(1)
    wait(
        stack,
        "all events",
        lambda: watched.complete(published) and watched.settled(),
        180,
        lambda: watched.left(published),
    )
    check(watched, published, 150)
    for number in range(MANY):
        assert len(payloads(stack, f"many{number}{watched.suffix}")) >= 3
    # Payloads nobody can read are events too, and no triggerer has ended.
    wait(stack, "the events of any bytes", lambda: set(watched.seen("bytes")) >= wild)
    assert set(watched.seen("bytes")) == wild
