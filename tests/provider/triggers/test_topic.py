"""TopicTrigger on a loop of its own: its events, its time, and that it blocks nobody."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from airflow_provider_pulsar.triggers import watching
from airflow_provider_pulsar.triggers.topic import TopicTrigger
from broker import Standalone
from pulsar_native import AuthenticationError, Client
from pulsar_native.jobs.watching import TopicWatcher
from support.brokers import Broker, NewTopic
from support.clock import stopped_clock
from support.tasks import define_connection
from support.until import until
from support.waiting import slow_looks

pytestmark = pytest.mark.usefixtures("pulsar_conn")


async def event_of(trigger: TopicTrigger) -> dict[str, Any]:
    """Return the only event of a trigger as it looks after the way through Airflow's database."""
    events = [event.payload async for event in trigger.run()]
    assert len(events) == 1
    found: dict[str, Any] = json.loads(json.dumps(events[0]))
    return found


def send(client: Client, topic: str, count: int) -> None:
    """Publish some messages."""
    producer = client.create_producer(topic)
    for _ in range(count):
        producer.send(b"\xff\x00")
    producer.close()


def test_trigger_serializes(topic: NewTopic) -> None:
    trigger = TopicTrigger(topic(), 5, None, 0.5, time.time() + 60)
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    assert (module, name) == (TopicTrigger.__module__, TopicTrigger.__name__)
    again = TopicTrigger(**json.loads(json.dumps(arguments)))
    assert again.serialize() == trigger.serialize()


@pytest.mark.asyncio
@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize(
    ("template", "words", "is_permanent"),
    [
        ("t-{{ params.typo }}", "no macros and filters of the DAG: 'dict object' has no attribute 'typo'", True),
        ("{{ name() }}", "no macros and filters of the DAG: 'name' is undefined", True),
        ("{{ 't' | cut }}", "No filter named 'cut'", True),
        # One of these is there in another try, perhaps.
        ("{{ missing() }}", "Waiting for {{ missing.. }} failed at the stage 'arguments': KeyError: 'v'", False),
    ],
)
async def test_trigger_not_rendered_ends_at_once(template: str, words: str, is_permanent: bool, silent: bool) -> None:
    def missing() -> str:
        return {}["v"]

    trigger = TopicTrigger(template, poll_interval=0.1, end_time=time.time() + 30, silent_fail=silent)
    trigger.template_fields = ("topic",)
    context: Any = {"params": {}, "missing": missing}
    trigger.render_template_fields(context)
    event = await asyncio.wait_for(event_of(trigger), 10)
    assert event["status"] == "error" and event["permanent"] is is_permanent
    assert re.search(words, event["message"]), event["message"]


def test_trigger_renders_known_names() -> None:
    trigger = TopicTrigger("t-{{ params.day | ds_nodash }}")
    trigger.template_fields = ("topic",)
    context: Any = {"params": {"day": datetime(2026, 1, 31, tzinfo=UTC)}}
    trigger.render_template_fields(context)
    assert trigger.topic == "t-20260131"


@pytest.mark.asyncio
@pytest.mark.proves("A5")
async def test_trigger_finds_later_messages_without_a_thread(client: Client, topic: NewTopic) -> None:
    name = topic(partitions=2)
    before = {thread.ident for thread in threading.enumerate()}
    waiting = asyncio.create_task(event_of(TopicTrigger(name, 3, poll_interval=0.2, end_time=time.time() + 30)))
    gaps, last = [], time.monotonic()
    for _ in range(100):
        await asyncio.sleep(0.01)
        gaps.append(time.monotonic() - last)
        last = time.monotonic()
    assert not waiting.done()
    # Reading Airflow's connection and resolving the host use executors of Airflow and of the loop; the client has none.
    new = [thread.name for thread in threading.enumerate() if thread.ident not in before]
    assert [name for name in new if not name.startswith(("asyncio_", "ThreadPoolExecutor"))] == []
    assert len(new) <= 2
    # The loop was not held for long by the trigger's looks; a busy machine may stop the process now and then.
    assert sorted(gaps)[-3] < 0.5
    await asyncio.to_thread(send, client, name, 3)
    event = await asyncio.wait_for(waiting, 20)
    assert event == {"status": "found", "found": {"topic": name, "partitions": 2, "messages": 3}}


@pytest.mark.asyncio
async def test_trigger_timeout_reports_last_state(topic: NewTopic) -> None:
    started = time.monotonic()
    event = await event_of(TopicTrigger(topic(), 3, poll_interval=0.2, end_time=time.time() + 1))
    assert time.monotonic() - started < 5
    assert event["status"] == "timeout" and "last: the topic does not exist" in event["message"]


@pytest.mark.parametrize(
    ("elapsed", "limit", "execution_timeout", "left"),
    [
        pytest.param(0, None, None, 40, id="dag_test"),
        pytest.param(25, 100, None, 15, id="replaced"),
        pytest.param(50, 100, None, -10, id="replaced_late"),
        pytest.param(25, 100, 3600, 15, id="long_execution_timeout"),
        pytest.param(25, 30, 30, 15, id="short_execution_timeout"),
        pytest.param(-5, 100, None, 40, id="clock_behind"),
    ],
)
@pytest.mark.asyncio
async def test_trigger_started_by_airflow_keeps_limit(
    elapsed: float,
    limit: float | None,
    execution_timeout: float | None,
    left: float,
    monkeypatch: pytest.MonkeyPatch,
    topic: NewTopic,
) -> None:
    clock = stopped_clock(monkeypatch, watching)
    trigger = TopicTrigger(topic(), 1, timeout_seconds=40)
    own = None if execution_timeout is None else timedelta(seconds=execution_timeout)
    task = SimpleNamespace(template_ext=(), template_fields=(), start_trigger_args=None, execution_timeout=own)
    trigger.task_instance = SimpleNamespace(task_id="t", task=task)
    if limit is not None:
        # As Airflow sets it in the triggerer, from what it has stored when it deferred the task.
        trigger.timeout_after = datetime.fromtimestamp(clock.time() - elapsed + limit, UTC)
    monkeypatch.setattr(trigger, "_wait", AsyncMock(return_value={"status": "timeout"}))
    await event_of(trigger)
    assert trigger._left() == pytest.approx(left, abs=0.001)


@pytest.mark.asyncio
async def test_trigger_replaced_after_limit_ends(topic: NewTopic) -> None:
    trigger = TopicTrigger(topic(), 3, poll_interval=0.2, timeout_seconds=3600)
    trigger.timeout_after = datetime.now(UTC) + timedelta(seconds=watching.GRACE_SECONDS)
    event = await asyncio.wait_for(event_of(trigger), 60)
    assert event["status"] == "timeout" and "last: the topic does not exist" in event["message"]


@pytest.mark.asyncio
async def test_trigger_late_slow_look_finds(client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_looks(monkeypatch)
    name = topic()
    await asyncio.to_thread(send, client, name, 3)
    event = await event_of(TopicTrigger(name, 3, poll_interval=0.2, end_time=time.time() + 0.2))
    assert event["status"] == "found"


@pytest.mark.asyncio
@pytest.mark.proves("K10")
@pytest.mark.parametrize("silent", [False, True])
async def test_trigger_broker_down_ends_in_time(silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if not silent:
        server.close()
    define_connection(monkeypatch, service_url=f"pulsar://127.0.0.1:{port}")
    started = time.monotonic()
    event = await event_of(TopicTrigger("t", poll_interval=0.2, end_time=time.time() + 2))
    server.close()
    assert time.monotonic() - started < 8
    assert event["status"] == "timeout" and "failed at the stage 'look-up'" in event["message"], event


@pytest.mark.asyncio
@pytest.mark.parametrize("seconds", [1, 7])
async def test_trigger_time_over_names_the_reason(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    define_connection(monkeypatch, service_url="pulsar://127.0.0.1:1", operation_timeout_seconds=30)
    event = await event_of(TopicTrigger("t", poll_interval=0.2, end_time=time.time() + seconds))
    assert event["status"] == "timeout" and "127.0.0.1:1: Connection refused" in event["message"]


@pytest.mark.asyncio
async def test_trigger_permanent_errors_end_at_once(secure_broker: Standalone, monkeypatch: pytest.MonkeyPatch) -> None:
    define_connection(
        monkeypatch, service_url=secure_broker.service_url, auth_method="token", token=secure_broker.token("guest")
    )
    event = await event_of(TopicTrigger("t", 1, end_time=time.time() + 60))
    assert event["status"] == "error" and event["permanent"] and "AuthorizationError" in event["message"]
    event = await event_of(TopicTrigger("t", 1, pulsar_conn_id="there_is_none", end_time=time.time() + 60))
    assert event["status"] == "error" and "there_is_none" in event["message"]


@pytest.mark.asyncio
@pytest.mark.parametrize("is_corrected", [True, False], ids=["corrected", "same"])
async def test_trigger_refused_reads_the_connection_again(
    client: Client, topic: NewTopic, broker: Broker, monkeypatch: pytest.MonkeyPatch, is_corrected: bool
) -> None:
    name, look, clients = topic(), TopicWatcher.look, []
    send(client, name, 1)

    async def refused_once(watch: TopicWatcher, used: Any) -> Any:
        clients.append(used)
        if len(clients) > 1:
            return await look(watch, used)
        if is_corrected:
            define_connection(monkeypatch, service_url=broker.service_url, operation_timeout_seconds=29)
        raise AuthenticationError("the token has expired")

    monkeypatch.setattr(TopicWatcher, "look", refused_once)
    event = await event_of(TopicTrigger(name, 1, poll_interval=0.1, end_time=time.time() + 60))
    if is_corrected:
        assert event["status"] == "found" and clients[0] is not clients[1]
    else:
        assert event["permanent"] and "the token has expired" in event["message"]


@pytest.mark.asyncio
async def test_trigger_logs_every_change(client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_pulsar.triggers import watching as module

    name = topic()
    trigger = TopicTrigger(name, 3, poll_interval=0.1, end_time=time.time() + 30)
    told: list[str] = []
    monkeypatch.setattr(trigger.log, "info", lambda text, *values: told.append(text % values))
    waiting = asyncio.create_task(event_of(trigger))
    await until(lambda: told)
    await asyncio.sleep(1)
    assert told == [f"Waiting for 3 messages in {name}: the topic does not exist"], "the same is not told at every look"
    monkeypatch.setattr(module, "LOG_SECONDS", 0.3)
    since = time.monotonic()
    await until(lambda: len(told) >= 3)
    assert len(told) <= 2 + (time.monotonic() - since) / 0.3, "but after a while"
    await asyncio.to_thread(send, client, name, 2)
    await until(lambda: told[-1].endswith(": 2 messages are there"))
    await asyncio.to_thread(send, client, name, 1)
    assert (await asyncio.wait_for(waiting, 20))["status"] == "found"


@pytest.mark.asyncio
async def test_trigger_cancelled_closes_connections(client: Client, topic: NewTopic) -> None:
    name = topic()
    send(client, name, 1)
    waiting = asyncio.create_task(event_of(TopicTrigger(name, 3, poll_interval=0.1)))
    await asyncio.sleep(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
