"""The event trigger in Airflow's own shared stream on a loop: when messages are acknowledged, by whom, and to whom."""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Asset
from airflow.sdk.definitions.asset import AssetUriRef
from airflow.sdk.execution_time.context import AssetStateStoreAccessors
from airflow.sdk.log import mask_secret
from airflow.sdk.serde import serialize
from airflow.triggers.shared_stream import SharedStreamManager, reject_shared_stream_event
from structlog.testing import capture_logs

from airflow_provider_pulsar.triggers.msg_queue import (
    PulsarMessageQueueTrigger,
    WatcherRefused,
    asset_names,
    subscription_name,
)
from airflow_provider_pulsar.triggers.shared_stream import PulsarStreamProducer
from pulsar_native import Client, ConsumerType, CryptoKeyReader, InitialPosition
from support.brokers import Broker, NewTopic
from support.key_files import key_pair
from support.relay import Relay

pytestmark = pytest.mark.usefixtures("pulsar_conn")

_ALLOWED = "AIRFLOW__PULSAR__CALLBACK_ALLOWLIST"


def is_odd(record: Mapping[str, Any]) -> bool:
    """A match function of users."""
    return bool(int(record["value"]) % 2)


async def cancelled_once(record: Mapping[str, Any]) -> bool:
    """Await a cancelled task of one's own for the message "bad"."""
    if record["value"] == "bad":
        own = asyncio.ensure_future(asyncio.sleep(9))
        own.cancel()
        await own
    return True


def fails(record: Mapping[str, Any]) -> bool:
    """Raise with the secret of a connection."""
    raise OSError("GET /?key=s3cr3t-t0ken-of-a-connection failed")


def watching(topic: str, asset: str = "an_asset", **options: Any) -> PulsarMessageQueueTrigger:
    """Return a trigger as the triggerer makes it for an asset."""
    made = PulsarMessageQueueTrigger(topic, **({"initial_position": "earliest"} | options))
    again = PulsarMessageQueueTrigger(**json.loads(json.dumps(made.serialize()[1])))
    again.asset_state_store = AssetStateStoreAccessors(inlets=[Asset(asset)])
    return again


def deferred(topic: str, **options: Any) -> PulsarMessageQueueTrigger:
    """Return a trigger as the triggerer makes it for a deferred task."""
    made = PulsarMessageQueueTrigger(topic, **({"initial_position": "earliest", "subscription": "s"} | options))
    made.task_instance = SimpleNamespace(task_id="wait")
    return made


class Triggerer:
    """The triggerer's part in a shared stream: it drives triggers, and confirms events when told."""

    def __init__(self, **options: Any) -> None:
        self.manager = SharedStreamManager(**options)
        self.events: dict[int, list[Any]] = {}
        self.stored = True
        # Airflow writes a line of its log between getting an event and queueing it: events got, and leave to go on.
        self.fired = 0
        self.logged = asyncio.Event()
        self.logged.set()
        self._unconfirmed: list[int] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def run(self, trigger: PulsarMessageQueueTrigger) -> list[Any]:
        """Run a trigger and return the list that its events go to."""
        number = trigger.trigger_id = len(self._tasks)
        self.events[number] = []
        self._tasks[number] = asyncio.create_task(self._run(number, trigger))
        return self.events[number]

    async def _run(self, number: int, trigger: PulsarMessageQueueTrigger) -> None:
        key = trigger.shared_stream_key()
        raw = self.manager.subscribe(trigger_id=number, trigger=trigger, key=key)
        try:
            async for event in trigger.filter_shared_stream(raw):
                self.fired += 1
                await self.logged.wait()
                seq = self.manager.bind_pending_event(trigger_id=number, key=key)
                assert seq is not None
                self.events[number].append(event.payload)
                self._unconfirmed.append(seq)
                if self.stored:
                    self.store()
        finally:
            await self.manager.unsubscribe(number, key)

    def store(self) -> None:
        """Confirm that all events are stored."""
        self.manager.confirm_persisted(self._unconfirmed)
        self._unconfirmed.clear()

    def cancel(self, number: int) -> None:
        """Cancel a trigger."""
        self._tasks[number].cancel()

    async def close(self) -> None:
        """End as a triggerer that is stopped does."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.wait(self._tasks.values())
        await self.manager.stop_all()


@asynccontextmanager
async def triggerer(**options: Any) -> AsyncIterator[Triggerer]:
    """Give a triggerer, stopped at the end."""
    made = Triggerer(**options)
    try:
        yield made
    finally:
        await made.close()


async def until(condition: Callable[[], Any], seconds: float = 20) -> None:
    """Wait until the answer is true; it may block."""
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def publish(client: Client, topic: str, values: list[bytes], **options: Any) -> None:
    """Publish values, an entry each."""
    producer = client.create_producer(topic, block_if_queue_full=True)
    for value in values:
        producer.send_async(value, None, **options)
    producer.flush()
    producer.close()


def subscriptions(broker: Broker, topic: str) -> dict[str, Any]:
    """Return the statistics of the subscriptions of a topic by name."""
    found: Any = broker.admin("GET", f"{topic.replace('://', '/')}/stats?getPreciseBacklog=true")
    return dict(found["subscriptions"])


def backlog(broker: Broker, topic: str) -> int:
    """Return how many messages the only subscription of a topic has."""
    (stats,) = subscriptions(broker, topic).values()
    return int(stats["msgBacklog"])


def stats_of(broker: Broker, topic: str, subscription: str) -> tuple[int, int]:
    """Return backlog of a subscription, and how many of its messages were sent and not acknowledged."""
    stats = subscriptions(broker, topic).get(subscription, {})
    return stats.get("msgBacklog", 0), stats.get("unackedMessages", 0)


# ---- acknowledgements ------------------------------------------------------------------------------------------------


@pytest.mark.proves("A18")
async def test_trigger_acknowledges_what_is_stored(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b"%d" % n for n in range(5)])
    async with triggerer() as airflow:
        airflow.stored = False
        events = airflow.run(watching(name))
        await until(lambda: len(events) == 5)
        assert backlog(broker, name) == 5
        airflow.store()
        await until(lambda: backlog(broker, name) == 0)
        publish(client, name, [b"5"])
        await until(lambda: len(events) == 6)
        assert backlog(broker, name) == 1
    # Stopped before it stored the sixth: the next triggerer has it, and no other.
    async with triggerer() as airflow:
        events = airflow.run(watching(name))
        await until(lambda: events)
        assert [event["value"] for event in events] == ["5"]


@pytest.mark.proves("A18", "A21")
async def test_trigger_window_is_bounded_by_airflows_queue(
    client: Client, broker: Broker, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TRIGGERER__SHARED_STREAM_SUBSCRIBER_QUEUE_SIZE", "10")
    name = topic()
    publish(client, name, [b"%d" % n for n in range(200)])
    async with triggerer(max_subscriber_queue=10) as airflow:
        airflow.stored = False
        events = airflow.run(watching(name))
        # No queue overflows, however long storing takes; the broker keeps what there is no room for.
        for stored in range(10, 200, 10):
            await until(lambda: len(events) >= stored)  # noqa: B023
            await asyncio.sleep(0.02)
            assert len(events) <= stored + 10
            # Acknowledgements are gathered for a moment, so the broker counts what was stored just now as well.
            await until(lambda: next(iter(subscriptions(broker, name).values()))["unackedMessages"] <= 20)
            assert len(events) <= stored + 10
            airflow.store()
        airflow.stored = True
        airflow.store()
        await until(lambda: len(events) == 200)
        assert sorted(int(event["value"]) for event in events) == list(range(200))


@pytest.mark.proves("A18", "K3")
async def test_trigger_cancelled_before_event_is_queued_redelivers(
    client: Client, broker: Broker, topic: NewTopic
) -> None:
    """As when another triggerer takes the trigger over."""
    name = topic()
    publish(client, name, [b"0", b"1", b"2"])
    async with triggerer() as airflow:
        first = airflow.run(watching(name))
        await until(lambda: len(first) == 3 and backlog(broker, name) == 0)
        airflow.logged.clear()
        publish(client, name, [b"3", b"4"])
        await until(lambda: airflow.fired == 4)
        airflow.cancel(0)
        await until(lambda: all(not stats["consumers"] for stats in subscriptions(broker, name).values()))
        assert (len(first), backlog(broker, name)) == (3, 2)
        airflow.logged.set()
        again = airflow.run(watching(name))
        await until(lambda: backlog(broker, name) == 0)
        assert [event["value"] for event in again] == ["3", "4"]


async def test_trigger_failed_store_redelivers(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b"a"])
    async with triggerer(ack_timeout=0.5) as airflow:
        airflow.stored = False
        first = airflow.run(watching(name))
        await until(lambda: first)
        # Airflow gives up the trigger whose event it could not store, and runs it again.
        with pytest.raises(Exception, match="did not finish processing"):
            await airflow._tasks[0]
        airflow.stored = True
        second = airflow.run(watching(name))
        await until(lambda: second)
        assert (first[0]["message_id"], second[0]["value"]) == (second[0]["message_id"], "a")


async def test_deferred_task_takes_one_message(client: Client, broker: Broker, topic: NewTopic) -> None:
    """Airflow confirms each event as stored, also one that no task waits for."""
    name = topic()
    publish(client, name, [b"%d" % n for n in range(100)])
    async with triggerer() as airflow:
        events = airflow.run(deferred(name))
        # One of the others is held until Airflow cancels the trigger, and one is prefetched.
        await until(lambda: stats_of(broker, name, "s") == (99, 2))
    assert [event["value"] for event in events] == ["0"]
    async with triggerer() as airflow:
        events = [airflow.run(deferred(name)) for _ in range(2)]
        await until(lambda: all(events) and backlog(broker, name) == 97)
    values = {event["value"] for (event,) in events}
    # Two tasks of one subscription never have the same message. Each has prefetched another one of the rest.
    assert len(values) == 2 and "0" not in values and backlog(broker, name) == 97


async def test_deferred_task_not_resumed_redelivers(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b"a"])
    async with triggerer() as airflow:
        airflow.stored = False
        first = airflow.run(deferred(name))
        await until(lambda: first)
    async with triggerer() as airflow:
        second = airflow.run(deferred(name))
        await until(lambda: second and backlog(broker, name) == 0)
    assert first[0]["message_id"] == second[0]["message_id"]


async def test_deferred_task_has_airflows_keys_as_text(client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b'{"__id__": 1}'])
    async with triggerer() as airflow:
        events = airflow.run(deferred(name, decode="json"))
        await until(lambda: events)
    assert events[0]["value"] == '{"__id__": 1}' and serialize(events[0])


class Rejecting(PulsarMessageQueueTrigger):
    """A trigger of users that rejects messages."""

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Reject all."""
        async for _ in shared_stream:
            reject_shared_stream_event()
        nothing: list[Any] = []
        for event in nothing:
            yield event


async def test_trigger_rejected_becomes_dead_letter(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b"a"])
    async with triggerer() as airflow:
        airflow.run(Rejecting(name, subscription="s", initial_position="earliest"))
        await until(lambda: "s" in subscriptions(broker, name) and backlog(broker, name) == 0)
    with client.subscribe(f"{name}-s-DLQ", "s") as consumer:
        assert consumer.receive(timeout_millis=10_000).data() == b"a"


async def test_trigger_decrypts_what_it_is_sent(
    client: Client, broker: Broker, topic: NewTopic, tmp_path: Path
) -> None:
    name = topic()
    options = {"encryption_key": "k", "crypto_key_reader": CryptoKeyReader(*key_pair(tmp_path))}
    with client.create_producer(name, **options) as producer:
        for value in (b'{"n": 1}', b'{"n": 2}'):
            producer.send(value)
    match = {"jsonpath": "@.n == 2"}
    made = watching(name, match=match, private_keys={"k": str(tmp_path / "k.key")})
    assert "PRIVATE" not in json.dumps(made.serialize()) and str(tmp_path) in str(made.shared_stream_key())
    async with triggerer() as airflow:
        events, none = airflow.run(made), airflow.run(watching(name, match=match))
        await until(lambda: events)
        # The one that does not match is acknowledged; without keys both stay.
        await until(lambda: sorted(each["msgBacklog"] for each in subscriptions(broker, name).values()) == [0, 2])
        assert [event["value"] for event in events] == ['{"n": 2}'] and not none


# ---- subscriptions ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("K7")
async def test_trigger_alike_share_one_consumer(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b"1", b"2"])
    async with triggerer() as airflow:
        events = [airflow.run(watching(name)) for _ in range(50)]
        await until(lambda: all(len(each) == 2 for each in events))
        (stats,) = subscriptions(broker, name).values()
        assert len(stats["consumers"]) == 1
        assert stats["isDurable"] and stats["type"] == "Shared"
        assert stats["subscriptionProperties"] == {"created_by": "airflow", "asset": "an_asset"}
        # One that goes takes nothing from the others.
        airflow.cancel(0)
        publish(client, name, [b"3"])
        await until(lambda: all(len(each) == 3 for each in events[1:]))


@pytest.mark.proves("A18", "K7")
async def test_triggers_of_different_matches_see_all_theirs(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b"%d" % n for n in range(20)], properties={"kind": "x"})
    matches: list[dict[str, Any] | None] = [None, {"jsonpath": "@ >= 10"}, {"properties": {"kind": "x"}}]
    # In a triggerer each, as Airflow may distribute them.
    async with triggerer() as one, triggerer() as two, triggerer() as three:
        events = [each.run(watching(name, match=match)) for each, match in zip((one, two, three), matches, strict=True)]
        # Watchers of another asset that are alike are stored in a row of their own, which another triggerer may run.
        events.append(two.run(watching(name, "another_asset")))
        await until(lambda: [len(each) for each in events] == [20, 10, 20, 20])
    assert len(subscriptions(broker, name)) == 4


def test_subscription_name_is_of_asset_and_arguments() -> None:
    arguments = watching("t", "s3://bucket/orders äpfel").serialize()[1]
    name = subscription_name(arguments, "prod")
    assert name == subscription_name(dict(reversed(arguments.items())), "prod")
    assert name.startswith("airflow-prod-s3-bucket-orders-pfel-") and name.isascii() and "/" not in name
    others = [
        subscription_name(watching(**options).serialize()[1], "prod")
        for options in (
            {"topic": "u"},
            {"topic": "t", "asset": "other"},
            {"topic": "t", "match": {"key": "a"}},
            {"topic": "t", "payload": "ids"},
            {"topic": "t", "private_keys": {"k": "/keys/k"}},
        )
    ]
    assert len({name, subscription_name(arguments, "test"), *others}) == 7
    assert subscription_name(watching("t", subscription="mine").serialize()[1], "prod") == "mine"
    # Each time a task is deferred it is another trigger.
    tasks = [deferred("t", subscription=None, initial_position="latest") for _ in range(2)]
    tasks[0].trigger_id, tasks[1].trigger_id = 1, 2
    assert tasks[0].shared_stream_key() != tasks[1].shared_stream_key()
    names = {subscription_name(each.serialize()[1], "prod") for each in tasks}
    assert names == {subscription_name({"topic": "t"}, "prod")}


def test_subscription_name_ignores_defaults() -> None:
    """An argument that a later version adds does not change the names."""
    plain = PulsarMessageQueueTrigger("t")
    said = PulsarMessageQueueTrigger("t", payload="value", decode="auto", receiver_queue_size=200)
    assert plain.serialize() == said.serialize()
    assert plain.serialize()[1] == {"topic": "t"}
    # A change of this name loses the position of every watcher.
    assert subscription_name({"topic": "t", "_asset": "a"}, "d") == "airflow-d-a-5b25176be01c9c81"


async def test_subscription_name_has_the_deployment(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b"1"])
    async with triggerer() as airflow:
        events = airflow.run(watching(name, "orders"))
        await until(lambda: events)
    (found,) = subscriptions(broker, name)
    assert found == subscription_name(watching(name, "orders").serialize()[1], "tests")


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A18")
def test_message_queue_trigger_scheme_is_this_trigger() -> None:
    made = MessageQueueTrigger(scheme="pulsar", topic="t", match={"key": "a"})
    assert type(made.trigger) is PulsarMessageQueueTrigger
    path, arguments = made.serialize()
    assert path == f"{PulsarMessageQueueTrigger.__module__}.PulsarMessageQueueTrigger"
    assert arguments == {"topic": "t", "match": {"key": "a"}}


def test_queue_provider_import_is_light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever imports `MessageQueueTrigger` imports every queue provider."""
    module = "airflow_provider_pulsar.queues.pulsar"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for name in ("pulsar_native", "jsonpath", "airflow_provider_pulsar.triggers.msg_queue"):
        monkeypatch.setitem(sys.modules, name, None)
    assert importlib.import_module(module).PulsarMessageQueueProvider().scheme_matches("pulsar")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "exactly one of topic and topic_pattern"),
        ({"topic": "t", "topic_pattern": "u"}, "exactly one of topic and topic_pattern"),
        ({"topic": ["t", ""]}, "topic must be a text"),
        ({"topic": 5}, "topic must be a text or a list of texts, not 5"),
        ({"topic": b"t"}, "topic must be a text or a list of texts"),
        ({"topic": {"t": 1}}, "topic must be a text or a list of texts"),
        ({"topic": [5]}, "topic must be a text"),
        ({"topic": "a/b"}, "a/b"),
        ({"topic": ["t", "persistent://t/n/"]}, "persistent://t/n/"),
        ({"topic": "t", "dead_letter_topic": "a/b"}, "a/b"),
        ({"topic": "public/default/{{ var.value.t }}"}, "is a template: the arguments of a watcher are not rendered"),
        ({"topic": ["t", "{{ ds }}"]}, "topic=.*is a template"),
        ({"topic_pattern": "public/default/{{ ds }}.*"}, "topic_pattern=.*is a template"),
        ({"topic": "t", "subscription": "{{ ds }}"}, "subscription='{{ ds }}' is a template"),
        ({"topic": "t", "match": {"value": 1}}, "match has no 'value'"),
        ({"topic": "t", "match": "@.amount > 100"}, "match must be a mapping with .*, not '@.amount > 100'"),
        ({"topic": "t", "match": ""}, "match must be a mapping"),
        ({"topic": "t", "match": []}, "match must be a mapping"),
        ({"topic": "t", "match": 5}, "match must be a mapping"),
        ({"topic": "t", "subscription": 0}, "subscription must be a text"),
        ({"topic": "t", "subscription": []}, "subscription must be a text"),
        ({"topic": "t", "receiver_queue_size": 1.5}, "receiver_queue_size must be a whole number"),
        ({"topic": "t", "max_redeliver_count": 1.5}, "max_redeliver_count must be a whole number"),
        ({"topic": "t", "pulsar_conn_id": 5}, "pulsar_conn_id must be a text"),
        ({"topic": "t", "match": {"jsonpath": "@."}}, "not valid in RFC 9535"),
        ({"topic": "t", "payload": "all"}, "payload='all' is not known"),
        ({"topic": "t", "dead_letter_topic": object()}, "dead_letter_topic must be a text"),
        ({"topic": "t", "match_function": "os.system"}, r"'os.system' is not allowed.*\[pulsar\] callback_allowlist"),
        ({"topic": "t", "private_keys": ["k"]}, "private_keys must be a dict of texts"),
        ({"topic": "t", "private_keys": {"k": "data:,x"}}, "private_keys must be paths of files"),
        ({"topic": "t", "private_keys": {"k": "{{ var.value.k }}"}}, "private_keys=.*is a template"),
        ({"topic": "t", "match_function": "eval"}, "must be the dotted path of a function"),
        ({"topic": ["u", "t"], "dead_letter_topic": "public/default/t"}, "is also a topic that is consumed"),
    ],
)
def test_trigger_wrong_argument_raises(arguments: dict[str, Any], words: str) -> None:
    # Anything but a TypeError in a constructor would end the triggerer and all its triggers.
    with pytest.raises(WatcherRefused, match=words) as caught:
        PulsarMessageQueueTrigger(**arguments)
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, ValueError)


@pytest.mark.proves("A15")
@pytest.mark.parametrize(("allowed", "is_allowed"), [("", False), ("os", False), ("os.system", True), ("a, o*m", True)])
def test_match_function_needs_the_allowlist(monkeypatch: pytest.MonkeyPatch, allowed: str, is_allowed: bool) -> None:
    monkeypatch.setenv(_ALLOWED, allowed)
    if is_allowed:
        assert PulsarMessageQueueTrigger("t", match_function="os.system").match_function == "os.system"
    else:
        with pytest.raises(WatcherRefused, match="is not allowed"):
            PulsarMessageQueueTrigger("t", match_function="os.system")


@pytest.mark.proves("A15")
async def test_match_function_selects(client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_ALLOWED, f"{__name__}.*")
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    name = topic()
    publish(client, name, [b"%d" % n for n in range(6)])
    async with triggerer() as airflow:
        events = airflow.run(watching(name, match_function=f"{__name__}.is_odd"))
        await until(lambda: len(events) == 3)
        assert [event["value"] for event in events] == ["1", "3", "5"]


async def test_match_function_cancelled_watcher_goes_on(
    client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_ALLOWED, f"{__name__}.*")
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    name = topic()
    publish(client, name, [b"1", b"bad", b"2"])
    async with triggerer() as airflow:
        events = airflow.run(watching(name, match_function=f"{__name__}.cancelled_once", max_redeliver_count=0))
        await until(lambda: len(events) == 2)
        assert [event["value"] for event in events] == ["1", "2"]


async def test_match_function_error_is_masked_in_letter(
    client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask_secret("s3cr3t-t0ken-of-a-connection")
    monkeypatch.setenv(_ALLOWED, f"{__name__}.*")
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    name = topic()
    publish(client, name, [b"x"])
    async with triggerer() as airflow:
        airflow.run(watching(name, match_function=f"{__name__}.fails", subscription="s", max_redeliver_count=0))
        # Shared, as the watcher's own subscription of that name.
        shared = {"consumer_type": ConsumerType.Shared, "initial_position": InitialPosition.Earliest}
        with client.subscribe(f"{name}-s-DLQ", "s", **shared) as consumer:
            letter = await asyncio.to_thread(consumer.receive, 20_000)
    assert letter.properties()["EXCEPTION_MESSAGE"] == "GET /?key=*** failed"


def _this_module() -> Any:
    """Return a module with the functions of this one: pytest need not have it among the imported ones."""
    import types

    made = types.ModuleType(__name__)
    made.is_odd, made.fails, made.cancelled_once = is_odd, fails, cancelled_once  # type: ignore[attr-defined]
    return made


# ---- anything else ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("A20", "K2")
async def test_trigger_events_of_any_bytes_are_encoded(client: Client, topic: NewTopic) -> None:
    """Encode as on the way from the triggerer's runner, where a failure ends the triggerer."""
    from airflow.jobs.triggerer_job_runner import TriggerEventEntry, messages
    from airflow.sdk.execution_time.comms import _RequestFrame
    from airflow.triggers.base import TriggerEvent

    source = random.Random(3)
    wild = [b'{"n": 1%s, "\\ud800": "\\udfff"}' % (b"0" * 40), b"", b"\x00", b"[" * 2000 + b"]" * 2000]
    wild += [source.randbytes(source.randrange(300)) for _ in range(50)]
    name = topic()
    publish(client, name, wild)
    publish(client, name, [b'{"n": 1%s, "\\ud800": "\\udfff"}' % (b"0" * 40)], partition_key=b"\xff\xfe")
    async with triggerer() as airflow:
        events = airflow.run(watching(name))
        parsed = airflow.run(watching(name, decode="json"))
        await until(lambda: len(events) == len(wild) + 1 and len(parsed) >= 2)
        for event in [*events, *parsed]:
            entry = TriggerEventEntry(trigger_id=1, event=TriggerEvent(event), persist_seq=1)  # type: ignore[no-untyped-call]
            state = messages.TriggerStateChanges(events=[entry])
            assert _RequestFrame(id=1, body=state.model_dump()).as_bytes()
            json.dumps(event).encode()


async def test_trigger_waits_for_its_connection(
    client: Client, broker: Broker, topic: NewTopic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("airflow_provider_pulsar.triggers.shared_stream._RETRY_SECONDS", 0)
    name = topic()
    publish(client, name, [b"1"])
    async with triggerer() as airflow:
        events = airflow.run(watching(name, pulsar_conn_id="missing"))
        await until(lambda: "the stage 'settings'" in caplog.text)
        assert "missing" in caplog.text and not airflow._tasks[0].done()
        stored = {"conn_type": "pulsar", "extra": {"service_url": broker.service_url}}
        monkeypatch.setenv("AIRFLOW_CONN_MISSING", json.dumps(stored))
        await until(lambda: events)


async def test_trigger_takes_up_corrected_connection(
    client: Client, connection: Callable[..., str], broker: Broker, topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    publish(client, name, [b"1"])
    wrong = connection("corrected", service_url="pulsar://127.0.0.1:1", operation_timeout_seconds=1)
    async with triggerer() as airflow:
        events = airflow.run(watching(name, pulsar_conn_id=wrong))
        await until(lambda: "127.0.0.1:1" in caplog.text)
        connection("corrected", service_url=broker.service_url)
        await until(lambda: events)


async def test_trigger_follows_a_connection_that_moved(
    client: Client,
    connection: Callable[..., str],
    broker: Broker,
    topic: NewTopic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("pulsar_native.jobs.matching_stream._CHECK_SECONDS", 0.1)
    name = topic()
    with Relay(broker.service_url) as relay:
        moved = connection("moved", service_url=relay.service_url)
        async with triggerer() as airflow:
            events = airflow.run(watching(name, pulsar_conn_id=moved))
            await until(lambda: "Receiving from" in caplog.text)
            connection("moved", service_url=broker.service_url)
            relay.refuse()
            relay.cut()
            publish(client, name, [b"1"])
            await until(lambda: events)


async def test_trigger_run_alone_acknowledges_the_one_before(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b"1", b"2"])
    # As dag.test() does: one event is taken, and the generator is closed.
    for expected in ("1", "1"):
        events = PulsarMessageQueueTrigger(name, subscription="s", initial_position="earliest").run()
        event = await asyncio.wait_for(anext(events), 20)
        assert event.payload["value"] == expected
        await events.aclose()  # type: ignore[attr-defined]
    events = PulsarMessageQueueTrigger(name, subscription="s").run()
    assert [(await anext(events)).payload["value"] for _ in range(2)] == ["1", "2"]
    await events.aclose()  # type: ignore[attr-defined]
    consumer = client.subscribe(name, "s", initial_position=InitialPosition.Earliest)
    assert consumer.receive(timeout_millis=10_000).data() == b"2"


async def test_trigger_run_alone_has_airflows_keys_as_text(client: Client, topic: NewTopic) -> None:
    name = topic()
    publish(client, name, [b'{"__id__": 1}'])
    events = PulsarMessageQueueTrigger(name, subscription="s", initial_position="earliest", decode="json").run()
    event = await asyncio.wait_for(anext(events), 20)
    await events.aclose()  # type: ignore[attr-defined]
    assert event.payload["value"] == '{"__id__": 1}' and serialize(event.payload)


async def test_producer_closes_before_it_opened() -> None:
    await PulsarStreamProducer({"topic": "t"}).aclose()


def test_trigger_is_the_same_from_airflows_database() -> None:
    """Airflow compares a DAG file with what it stored: a difference would make a new trigger at each parse."""
    from airflow.models.trigger import Trigger
    from airflow.serialization.decoders import smart_decode_trigger_kwargs
    from airflow.serialization.encoders import encode_trigger
    from airflow.triggers.base import BaseEventTrigger

    match = {"key": ["a"], "properties": {"kind": ["x", "y"]}, "jsonpath": "@.a == 'ü'"}
    made = MessageQueueTrigger(scheme="pulsar", topic=["t", "u"], match=match, receiver_queue_size=5)
    said = encode_trigger(made)
    stored = Trigger(classpath=said["classpath"], kwargs=said["kwargs"])
    kwargs = Trigger._decrypt_kwargs(stored.encrypted_kwargs)
    assert BaseEventTrigger.hash(stored.classpath, kwargs) == BaseEventTrigger.hash(said["classpath"], said["kwargs"])
    decoded: Any = smart_decode_trigger_kwargs
    again = PulsarMessageQueueTrigger(**{name: decoded(value) for name, value in kwargs.items()})
    assert again.serialize() == made.serialize() and again.match == match


def test_watcher_asset_is_known_or_refused() -> None:
    names = ["b", "a", "it's", 'the "best"', "both ' and \"", "back\\slash'", "name='x'", "ü, uri='u'"]
    store = AssetStateStoreAccessors(inlets=[*map(Asset, names), AssetUriRef("u://name='y'")])
    shown = repr(store)

    class Changed:
        """A state store of another Airflow, which keeps the names elsewhere."""

        def __repr__(self) -> str:
            return shown

    assert sorted(asset_names(store)) == sorted(asset_names(Changed())) == sorted(names)
    assert asset_names(None) == []
    with pytest.raises(TypeError, match="subscription="):
        asset_names(object())


@pytest.mark.parametrize(("assets", "warned"), [(["b", "a"], ["a, b"]), (["a"], []), ([], [])])
async def test_watcher_of_several_assets_warns(assets: list[str], warned: list[str]) -> None:
    trigger = PulsarMessageQueueTrigger("t")
    trigger.asset_state_store = AssetStateStoreAccessors(inlets=[*map(Asset, assets)])

    async def nothing() -> AsyncIterator[Any]:
        for event in ():
            yield event

    with capture_logs() as lines:
        assert [event async for event in trigger.filter_shared_stream(nothing())] == []
    found = [(line["log_level"], line["event"].partition(" have")[0]) for line in lines]
    assert found == [("warning", f"The assets {each}") for each in warned]
