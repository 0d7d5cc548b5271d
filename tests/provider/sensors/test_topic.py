"""TopicSensor on the real broker: what it waits for, in its three modes, and how it gives up."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task_group
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)
from airflow.sdk.execution_time.timeout import timeout

from airflow_provider_pulsar.exceptions import ArgumentRefused
from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from airflow_provider_pulsar.operators.publish import PublishOperator
from airflow_provider_pulsar.sensors.message import MessageSensor
from airflow_provider_pulsar.sensors.schema import SchemaSensor
from airflow_provider_pulsar.sensors.subscription import SubscriptionSensor
from airflow_provider_pulsar.sensors.topic import TopicSensor
from airflow_provider_pulsar.triggers.topic import TopicTrigger
from broker import Standalone
from pulsar_native import AdminClient, Client, Message
from pulsar_native.jobs.watching import STEP_ROWS, TopicCondition, TopicWatcher
from support.brokers import Broker, NewTopic
from support.tasks import StateStore, context_of, dag_in, define_connection, states_of, xcom_of
from support.waiting import slow_looks

pytestmark = pytest.mark.usefixtures("pulsar_conn")


def send(client: Client, topic: str, count: int, *, batch: int = 100, first: int = 0, name: str | None = None) -> None:
    """Publish numbered messages, with their numbers from 1 on as sequence ids: 0 means none."""
    producer = client.create_producer(
        topic, producer_name=name, batching_enabled=batch > 1, batching_max_messages=batch, block_if_queue_full=True
    )
    for number in range(first, first + count):
        producer.send_async(b"x", None, sequence_id=number + 1)
    producer.flush()
    producer.close()


def sensor(topic: str, **options: Any) -> TopicSensor:
    """Return a sensor that looks often and not for long."""
    options = {"poke_interval": 0.2, "timeout": 2, **options}
    return TopicSensor(task_id="a_task", topic=topic, **options)


# ---- what is waited for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("batch", [1, 7])
def test_sensor_counts_stored_messages(partitions: int, batch: int, client: Client, topic: NewTopic) -> None:
    name = topic(partitions=partitions)
    send(client, name, 50, batch=batch)
    found = sensor(name, messages=50).execute(context_of())
    assert found == {"topic": name, "partitions": partitions, "messages": 50}
    with pytest.raises(AirflowSensorTimeout, match=r"51 messages in .*last: 50 messages are there"):
        sensor(name, messages=51, timeout=1).execute(context_of())


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_sensor_late_slow_look_finds(
    mode: str, client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_looks(monkeypatch)
    name = topic()
    send(client, name, 3)
    assert sensor(name, messages=3, mode=mode, timeout=0.2).execute(context_of())["messages"] == 3


def test_sensor_ignores_dropped_duplicates(
    client: Client, broker: Broker, topic: NewTopic, namespace: Callable[[], str]
) -> None:
    own = namespace()
    with AdminClient(broker.admin_url) as admin:
        admin.set_deduplication(own, True)
    name = topic(partitions=2, namespace=own)
    for _ in range(2):
        send(client, name, 40, name="same")
    assert sensor(name, messages=1).execute(context_of())["messages"] == 40


def test_sensor_without_index_reads_messages_once(
    client: Client, broker: Broker, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a broker without exposingBrokerEntryMetadataToClientEnabled gives.
    monkeypatch.setattr(Message, "index", lambda message: None)
    name = topic()
    send(client, name, 30, batch=4)
    assert sensor(name, messages=30).execute(context_of())["messages"] == 30
    watch = TopicWatcher(TopicCondition.of(name, 35, None))
    assert _look(watch, broker.service_url) is None and watch.seen == "30 messages are there"
    assert _look(watch, broker.service_url) is None and watch.seen == "30 messages are there"
    send(client, name, 5, first=30)
    found = _look(watch, broker.service_url)
    assert found is not None and found["messages"] == 35


def _look(watch: Any, service_url: str) -> Any:
    import asyncio

    from pulsar_native.asyncio import Client as AsyncClient

    async def look() -> Any:
        async with AsyncClient(service_url) as client:
            return await watch.look(client)

    return asyncio.run(look())


def test_sensor_waits_for_topic_without_creating_it(client: Client, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    with AdminClient(broker.admin_url) as admin:
        with pytest.raises(AirflowSensorTimeout, match="the topic does not exist"):
            sensor(name, timeout=1).execute(context_of())
        assert name not in admin.topics("public/default")
        timer = threading.Timer(1, admin.create_partitioned_topic, (name, 2))
        timer.start()
        assert sensor(name, timeout=20).execute(context_of()) == {"topic": name, "partitions": 2}
        timer.join()


def test_sensor_published_since_waits_for_message(client: Client, topic: NewTopic) -> None:
    name = topic(partitions=2)
    send(client, name, 3)
    now = datetime.now(UTC)
    since = now + timedelta(seconds=1)
    assert sensor(name, published_since=now - timedelta(minutes=1)).execute(context_of())["published_at"]
    timer = threading.Timer(2, send, (client, name, 1))
    timer.start()
    found = sensor(name, published_since=since.isoformat(), timeout=20).execute(context_of())
    assert datetime.fromisoformat(found["published_at"]) >= since
    timer.join()
    with pytest.raises(AirflowSensorTimeout, match="the newest message is of"):
        sensor(name, published_since=since + timedelta(hours=1)).execute(context_of())


# ---- modes -----------------------------------------------------------------------------------------------------------


def test_sensor_modes_return_the_same_in_a_dag(airflow_home: Path, client: Client, topic: NewTopic) -> None:
    name = topic(partitions=2)
    dag = dag_in(
        airflow_home,
        "sensing",
        f"""
        common = dict(topic={name!r}, messages="{{{{ 20 }}}}", poke_interval=0.5, timeout=60)
        TopicSensor(task_id="poke", mode="poke", **common)
        TopicSensor(task_id="reschedule", mode="reschedule", **common)
        TopicSensor(task_id="deferrable", deferrable=True, **common)
        """,
    )
    timer = threading.Timer(6, send, (client, name, 20))
    timer.start()
    run = dag.test()
    timer.join()
    assert set(states_of(run).values()) == {"success"}, states_of(run)
    for task in ("poke", "reschedule", "deferrable"):
        assert xcom_of(run, task) == {"topic": name, "partitions": 2, "messages": 20}


@pytest.mark.proves("A16")
def test_sensor_soft_fail_skips_in_every_mode(secure_broker: Standalone, monkeypatch: pytest.MonkeyPatch) -> None:
    define_connection(monkeypatch, "refused", service_url=secure_broker.service_url, auth_method="token", token="no")
    for flag in ({"soft_fail": True}, {"never_fail": True}):
        for mode in ({"mode": "poke"}, {"mode": "reschedule"}, {"deferrable": True}):
            with pytest.raises(AirflowSkipException):
                sensor("t", pulsar_conn_id="refused", timeout=60, **flag, **mode).execute(context_of())


def test_sensor_modes_free_the_worker_slot(topic: NewTopic) -> None:
    name = topic()
    with pytest.raises(AirflowRescheduleException):
        sensor(name, mode="reschedule", timeout=60).execute(context_of())
    with pytest.raises(TaskDeferred) as caught:
        sensor(name, deferrable=True, timeout=60).execute(context_of())
    trigger = caught.value.trigger
    assert isinstance(trigger, TopicTrigger)
    assert caught.value.timeout is not None and caught.value.timeout > timedelta(seconds=60)
    assert 50 < (trigger.end_time or 0) - time.time() <= 60
    with pytest.raises(AirflowSkipException):
        sensor(name, soft_fail=True, timeout=1).execute(context_of())


def test_sensor_takes_the_triggers_result() -> None:
    task = sensor("t", deferrable=True)
    assert task.execute_complete(context_of(), {"status": "found", "found": {"a": 1}}) == {"a": 1}
    for event, kind in (
        ({"status": "timeout", "message": "m"}, AirflowSensorTimeout),
        ({"status": "error", "message": "m", "permanent": True}, AirflowFailException),
        ({"status": "error", "message": "m", "permanent": False}, AirflowException),
        (None, AirflowException),
    ):
        with pytest.raises(kind):
            task.execute_complete(context_of(), event)


# ---- giving up -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["poke", "reschedule", "deferrable"])
def test_sensor_permanent_error_fails_at_once(
    mode: str, secure_broker: Standalone, monkeypatch: pytest.MonkeyPatch, topic: NewTopic
) -> None:
    options: dict[str, Any] = {"deferrable": True} if mode == "deferrable" else {"mode": mode}
    guest = secure_broker.token("guest")
    define_connection(monkeypatch, "forbidden", service_url=secure_broker.service_url, auth_method="token", token=guest)
    define_connection(monkeypatch, "refused", service_url=secure_broker.service_url, auth_method="token", token="no")
    define_connection(monkeypatch, "anonymous", service_url=secure_broker.service_url)
    started = time.monotonic()
    for conn, kind in (
        ("forbidden", "AuthorizationError"),
        ("refused", "AuthenticationError"),
        ("anonymous", "AuthenticationError"),
    ):
        with pytest.raises(AirflowFailException, match=kind):
            sensor(topic(), timeout=60, pulsar_conn_id=conn, **options).execute(context_of())
    with pytest.raises(ArgumentRefused, match="Invalid short topic name"):
        sensor("a/b", timeout=60, **options)
    templated = sensor("{{ params.topic }}", timeout=60, **options)
    templated.topic = "a/b"
    with pytest.raises(AirflowFailException, match="InvalidTopicName"):
        templated.execute(context_of())
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"messages": 0}, "messages"),
        ({"messages": "many"}, "messages"),
        ({"messages": 1.5}, "messages"),
        ({"published_since": "yesterday"}, "published_since"),
        ({"messages": 1, "published_since": 1}, "not both"),
        ({"topic": "non-persistent://public/default/t", "messages": 1}, "non-persistent"),
        ({"topic": " "}, "topic"),
    ],
)
def test_sensor_wrong_arguments_raise(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sensor(options.pop("topic", "t"), **options).execute(context_of())


@pytest.mark.parametrize(("name", "rendered"), [("messages", None), ("messages", ""), ("published_since", None)])
def test_sensor_template_rendered_to_nothing_raises(
    client: Client, topic: NewTopic, name: str, rendered: object
) -> None:
    source = topic()
    send(client, source, 1)
    made = sensor(source, **{name: "{{ params.given }}"})
    setattr(made, name, rendered)
    with pytest.raises(ValueError, match=f"{name} was given, .* returned {rendered!r}: leave it out"):
        made.execute(context_of())


@pytest.mark.parametrize("kind", [TopicSensor, MessageSensor, SubscriptionSensor, SchemaSensor])
def test_sensor_mapped_start_from_trigger_raises(kind: type[TopicSensor]) -> None:
    options = {"task_id": "a_task", "deferrable": True}
    with pytest.raises(ValueError, match="start_from_trigger=True is not possible for mapped tasks: leave it out"):
        kind.partial(**options, start_from_trigger=True)
    with DAG("a_dag", schedule=None):
        mapped = kind.partial(**options, start_from_trigger=False).expand(topic=["t"])
    assert mapped.operator_class is kind and mapped.start_from_trigger is False


@pytest.mark.parametrize(
    ("kind", "name", "wrap"),
    [
        (TopicSensor, "messages", lambda result: result),
        (MessageSensor, "match", lambda result: {"key": [result]}),
        (SubscriptionSensor, "backlog", lambda result: result.map(int)),
        (SchemaSensor, "schema_type", lambda result: result["kind"]),
    ],
)
def test_sensor_result_start_from_trigger_raises(kind: type[Any], name: str, wrap: Callable[[Any], object]) -> None:
    options = {"topic": "t", "deferrable": True}
    if kind in (MessageSensor, SubscriptionSensor):
        options["subscription"] = "s"
    with DAG("a_dag", schedule=None):
        given = {name: wrap(TopicSensor(task_id="before", topic="t").output)}
        with pytest.raises(ValueError, match=f"{name} is the result of another task, .*: leave out start_from_trigger"):
            kind(task_id="started", start_from_trigger=True, **options, **given)
        assert kind(task_id="deferred", **options, **given).upstream_task_ids == {"before"}


@pytest.mark.parametrize(
    ("name", "template", "word"),
    [
        ("messages", "{{ ti.xcom_pull('before')['count'] }}", "xcom_pull"),
        ("topic", "{% if task_instance.xcom_pull('before') %}t{% endif %}", "xcom_pull"),
        ("published_since", "{{ prev_data_interval_end_success }}", "prev_data_interval_end_success"),
    ],
)
def test_sensor_pull_start_from_trigger_raises(name: str, template: str, word: str) -> None:
    options = {"topic": "t", "deferrable": True, name: template}
    with pytest.raises(ValueError, match=f"{name} has the template .*, and {word} can be read in a worker only: leave"):
        TopicSensor(task_id="started", start_from_trigger=True, **options)
    assert getattr(TopicSensor(task_id="deferred", **options), name) == template


def test_sensor_pull_within_match_start_raises() -> None:
    options = {"task_id": "a_task", "topic": "t", "subscription": "s", "deferrable": True}
    match = {"properties": {"run": ["a", "{{ ti.xcom_pull('before') }}"]}}
    with pytest.raises(ValueError, match=r"match has the template .*, and xcom_pull can be read in a worker only"):
        MessageSensor(match=match, start_from_trigger=True, **options)
    # As a text that is no template it is a property's value.
    MessageSensor(match={"properties": {"run": "xcom_pull"}}, start_from_trigger=True, **options)


def test_sensor_mapped_group_start_from_trigger_raises() -> None:
    @task_group
    def group(name: str) -> None:
        TopicSensor(task_id="started", topic=name, deferrable=True, start_from_trigger=True)

    with (
        DAG("a_dag", schedule=None),
        pytest.raises(ValueError, match=r"topic is known in a worker only.*expanded task g"),
    ):
        group.expand(name=["a", "b"])


def test_sensor_mapped_default_start_takes_result() -> None:
    with DAG("a_dag", schedule=None, default_args={"deferrable": True, "start_from_trigger": True}):
        result = TopicSensor(task_id="before", topic="t", start_from_trigger=False).output
        mapped = TopicSensor.partial(task_id="mapped", messages=result).expand(topic=["t"])
    made = mapped.unmap({"topic": "t"})
    assert not mapped.start_from_trigger and made.messages is result


# ---- counting where the broker does not number messages --------------------------------------------------------------


@pytest.fixture
def unnumbered(default_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Give a client of a broker as Pulsar is installed, to which the connection leads."""
    define_connection(monkeypatch, service_url=default_broker.service_url, admin_url=default_broker.admin_url)
    with Client(default_broker.service_url) as made:
        yield made


def delivered(broker: Broker, topic: str) -> int:
    """Return how many messages the broker has given to readers of a topic since it was loaded."""
    stats: Any = broker.admin("GET", f"{topic.replace('://', '/')}/stats")
    return int(stats["msgOutCounter"])


def held_topic(client: Client, name: str) -> str:
    """Return a topic that a subscription keeps from being deleted."""
    topic = f"persistent://public/default/{name}-{time.time_ns()}"
    client.subscribe(topic, "held").close()
    return topic


@pytest.mark.proves("A16", "A17")
def test_count_stops_at_the_number_wanted(unnumbered: Client, default_broker: Broker) -> None:
    name = held_topic(unnumbered, "half-a-million")
    producer = unnumbered.create_producer(name, batching_enabled=True, batching_max_messages=1000)
    producer.send_many(b"x" for _ in range(500_000))
    producer.close()
    assert sensor(name, messages=1, timeout=30).execute(context_of())["messages"] >= 1
    # What is sent ahead comes on top: entries of up to 1,000 messages.
    assert delivered(default_broker, name) <= 60_000
    before = delivered(default_broker, name)
    assert sensor(name, messages=70_000, timeout=30).execute(context_of())["messages"] >= 70_000
    assert delivered(default_broker, name) - before <= 70_000 + 60_000


@pytest.mark.proves("A16")
def test_count_survives_reschedule_and_deferral(unnumbered: Client, default_broker: Broker) -> None:
    name, store = held_topic(unnumbered, "kept"), StateStore()
    send(unnumbered, name, 3_000, batch=1)
    for look in range(3):
        before = delivered(default_broker, name)
        with pytest.raises(AirflowRescheduleException):
            sensor(name, messages=3_020, mode="reschedule", timeout=60).execute(context_of(store=store))
        # Every look reads the first message and what is new; the first one reads all.
        assert (delivered(default_broker, name) - before >= 3_000) is (look == 0)
        send(unnumbered, name, 5, batch=1)
    with pytest.raises(TaskDeferred) as caught:
        sensor(name, messages=4_000, deferrable=True, timeout=60).execute(context_of())
    trigger: Any = caught.value.trigger
    assert [part["count"] for part in trigger.serialize()[1]["counted"].values()] == [3_015]
    send(unnumbered, name, 5, batch=1)
    found = sensor(name, messages=3_020, mode="reschedule", timeout=60).execute(context_of(store=store))
    assert found["messages"] == 3_020
    # Another try counts for itself: messages may have been removed since.
    before = delivered(default_broker, name)
    with pytest.raises(AirflowRescheduleException):
        again = context_of(store=store, try_number=2)
        sensor(name, messages=9_999, mode="reschedule", timeout=60).execute(again)
    # The broker counts what it has written a moment later, and not if the reader has been closed by then.
    assert delivered(default_broker, name) - before >= 3_000


def test_count_of_recreated_topic_restarts(unnumbered: Client, default_broker: Broker) -> None:
    name = held_topic(unnumbered, "again")
    send(unnumbered, name, 30)
    watch = TopicWatcher(TopicCondition.of(name, 100, None))
    assert _look(watch, default_broker.service_url) is None and watch.seen == "30 messages are there"
    with AdminClient(default_broker.admin_url) as admin:
        admin.delete_topic(name, force=True)
    assert _look(watch, default_broker.service_url) is None
    assert "was there and is gone" in watch.seen and "set a retention" in watch.seen
    unnumbered.subscribe(name, "held").close()
    send(unnumbered, name, 5)
    assert _look(watch, default_broker.service_url) is None and watch.seen == "5 messages are there"


@pytest.mark.asyncio
async def test_count_yields_to_the_loop_between_steps(unnumbered: Client, default_broker: Broker) -> None:
    from pulsar_native.asyncio import Client as AsyncClient

    name = held_topic(unnumbered, "steps")
    await asyncio.to_thread(send, unnumbered, name, 5_000, batch=1)
    watch = TopicWatcher(TopicCondition.of(name, 5_000, None))
    counted = [0]

    async def tick() -> None:
        while True:
            counted.append(sum(part["count"] for part in (watch.state() or {}).values()))
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    async with AsyncClient(default_broker.service_url) as client:
        found = await watch.look(client)
    ticking.cancel()
    assert found is not None and found["messages"] == 5_000
    # However fast the machine: other work on the loop never waits for more than one step.
    assert max(after - before for before, after in itertools.pairwise(counted)) <= STEP_ROWS
    assert watch.largest_step <= STEP_ROWS


# ---- broker down -----------------------------------------------------------------------------------------------------


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.proves("K10")
@pytest.mark.parametrize("silent", [False, True])
def test_sensor_broker_down_fails_in_time(silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        # One port refuses, the other accepts and never says a word.
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        port = listener.getsockname()[1] if silent else free_port()
        define_connection(monkeypatch, service_url=f"pulsar://127.0.0.1:{port}", operation_timeout_seconds=2)
        started = time.monotonic()
        with pytest.raises(AirflowException, match="Publishing to t failed at the stage 'connect'"):
            PublishOperator(task_id="a", topic="t", messages=["a"], deduplicate=False).execute(context_of())
        with pytest.raises(AirflowException, match="Consuming t as s failed at the stage 'look-up'"):
            ConsumeBatchOperator(task_id="a", topic="t", subscription="s", inline=True).execute(context_of())
        for mode in ("poke", "reschedule"):
            with pytest.raises((AirflowSensorTimeout, AirflowRescheduleException)) as caught:
                sensor("t", timeout=2, mode=mode).execute(context_of())
            if mode == "poke":
                assert "failed at the stage 'look-up'" in str(caught.value)
        with pytest.raises(TaskDeferred):
            sensor("t", timeout=2, deferrable=True).execute(context_of())
        assert time.monotonic() - started < 25


# ---- execution time-out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deferrable", [False, True])
def test_sensor_execution_timeout_ends_busy_look(deferrable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    async def work() -> None:
        while True:
            sum(range(10_000))
            await asyncio.sleep(0)

    async def look(watch: TopicWatcher, client: Any) -> None:
        # Like a task of the client: an exception that ends it does not end the wait below.
        task = asyncio.create_task(work())
        # The time of execution_timeout is over now.
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            await asyncio.wait({asyncio.get_running_loop().create_future()})
        except asyncio.CancelledError:
            stopped.set()
            raise
        finally:
            task.cancel()

    monkeypatch.setattr(TopicWatcher, "look", look)
    # As Airflow applies execution_timeout.
    with pytest.raises(AirflowTaskTimeout), timeout(60):
        sensor("t", deferrable=deferrable, timeout=10).execute(context_of())
    assert stopped.wait(10)
