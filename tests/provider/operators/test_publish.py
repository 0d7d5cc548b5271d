"""PublishOperator on the real broker: what gets there, what does not, and that it is there once."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pulsar.operators.publish import PublishFailed, PublishNotRepeatable, PublishOperator
from broker import Standalone
from pulsar_native import AdminClient, Client, Message, MessageId
from support.brokers import Broker, NewTopic
from support.tasks import StateStore, clear_and_run, context_of, dag_in, define_connection, states_of, xcom_of

pytestmark = pytest.mark.usefixtures("pulsar_conn")

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "int"], "default": None},
        {"name": "at", "type": "string"},
    ],
}
ROWS = [
    {"carrier": "UA", "delay": 11, "at": "2013-01-01T05:00:00"},
    {"carrier": "AA", "delay": None, "at": "2013-01-01T06:00:00Z"},
    {"carrier": "B6", "delay": -3, "at": "2013-01-01T07:30:00+01:00"},
]


@pytest.fixture
def once(namespace: Callable[[], str], admin: AdminClient, topic: NewTopic) -> Callable[..., str]:
    """Give a factory of topics in a namespace with deduplication."""
    name = namespace()
    admin.set_deduplication(name, True)

    def create(partitions: int = 0) -> str:
        return topic(partitions=partitions, namespace=name)

    return create


def read_all(broker: Broker, topic: str) -> list[Message]:
    """Return everything in a topic, partition by partition."""
    found = []
    with Client(broker.service_url) as client:
        for name in client.get_topic_partitions(topic):
            with client.create_reader(name, MessageId.earliest) as reader:
                while reader.has_message_available():
                    found.append(reader.read_next(5000))
    return found


def publish(topic: str, messages: object = None, **options: Any) -> PublishOperator:
    """Return the operator; without deduplication unless asked for."""
    options.setdefault("deduplicate", False)
    return PublishOperator(task_id="a_task", topic=topic, messages=messages, **options)


# ---- sources ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A6", "A30")
def test_a_dag_publishes_a_list_a_callable_a_file_and_an_xcom(
    airflow_home: Path, tmp_path: Path, broker: Broker, topic: NewTopic
) -> None:
    names = {kind: topic(kind, partitions=2) for kind in ("list", "call", "file", "xcom", "text")}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    dag = dag_in(
        airflow_home,
        "publishing_sources",
        f"""
        @task
        def rows():
            return [{{"n": n}} for n in range(7)]

        def made(count, run_id):
            return ({{"n": n, "run": run_id}} for n in range(count))

        common = dict(deduplicate=False, batching_max_messages=2)
        PublishOperator(task_id="list", topic={names["list"]!r}, messages=["{{{{ task.task_id }}}}", "b"], **common)
        PublishOperator(task_id="call", topic={names["call"]!r}, messages=made, op_kwargs={{"count": 5}}, **common)
        PublishOperator(task_id="file", topic={names["file"]!r}, file={str(tmp_path / "rows.jsonl")!r}, **common)
        PublishOperator(task_id="xcom", topic={names["xcom"]!r}, messages=rows(), **common)
        PublishOperator(
            task_id="text", topic={names["text"]!r}, messages='["{{{{ run_id }}}}", {{"a": 1}}]', **common
        )
        """,
    )
    run = dag.test()
    assert set(states_of(run).values()) == {"success"}, states_of(run)
    data = {kind: sorted(message.data() for message in read_all(broker, name)) for kind, name in names.items()}
    assert data["list"] == [b"b", b"list"]
    assert [json.loads(each) for each in data["call"]] == [{"n": n, "run": run.run_id} for n in range(5)]
    assert sorted(map(json.loads, data["file"]), key=str) == sorted(ROWS, key=str)
    assert [json.loads(each) for each in data["xcom"]] == [{"n": n} for n in range(7)]
    assert data["text"] == sorted([run.run_id.encode(), b'{"a":1}'])
    manifest = xcom_of(run, "xcom")
    assert manifest["count"] == manifest["stored"] == 7 and manifest["duplicates"] == 0
    ids = {str(message.message_id()) for message in read_all(broker, names["xcom"])}
    assert {part[end] for part in manifest["partitions"].values() for end in ("first", "last")} <= ids
    assert sum(part["count"] for part in manifest["partitions"].values()) == 7


@pytest.mark.parametrize("schema", ["json", "avro"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_csv_takes_the_types_of_the_registered_schema(
    schema: str, packed: bool, tmp_path: Path, broker: Broker, topic: NewTopic, admin: AdminClient
) -> None:
    text = "carrier,delay,at\n" + "".join(f"{r['carrier']},{r['delay'] or ''},{r['at']}\n" for r in ROWS)
    path = tmp_path / ("rows.csv.gz" if packed else "rows.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    name = topic()
    manifest = publish(
        name,
        file=str(path),
        schema=schema,
        schema_definition=json.dumps(FLIGHT),
        key_field="carrier",
        event_time_field="at",
        property_fields=["delay"],
        properties={"source": "csv"},
        compression="zstd",
    ).execute(context_of())
    assert manifest["count"] == 3
    registered = admin.get_schema(name)
    assert registered is not None and registered.type.name.lower() == schema
    messages = read_all(broker, name)
    assert [message.partition_key() for message in messages] == ["UA", "AA", "B6"]
    assert [message.event_timestamp() for message in messages] == [1357016400000, 1357020000000, 1357021800000]
    assert messages[0].properties() == {"source": "csv", "delay": "11"}
    assert messages[1].properties() == {"source": "csv"}
    if schema == "json":
        assert [json.loads(message.data()) for message in messages] == ROWS


def test_an_envelope_carries_key_properties_and_time(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    items = [
        {"value": b"\x00\xff", "key": "k", "properties": {"a": "b"}, "event_time": 1700000000000},
        {"value": {"x": 1}, "key": b"\xfe"},
        {"value": None, "key": "gone"},
    ]
    publish(name, items, envelope=True).execute(context_of())
    first, second, third = read_all(broker, name)
    assert (first.data(), first.partition_key(), first.properties()) == (b"\x00\xff", "k", {"a": "b"})
    assert first.event_timestamp() == 1700000000000
    assert (second.data(), second.key_bytes()) == (b'{"x":1}', b"\xfe")
    assert third.has_null_value()


def test_an_iterator_is_streamed(broker: Broker, topic: NewTopic) -> None:
    name = topic()
    alive = 0
    most = 0

    class Row(dict[str, str]):
        def __init__(self) -> None:
            nonlocal alive, most
            super().__init__(text="x" * 2000)
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    manifest = publish(name, lambda: (Row() for _ in range(20_000))).execute(context_of())
    assert manifest["count"] == 20_000
    assert most < 10


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"messages": None}, "exactly one of messages and file"),
        ({"messages": ["a"], "file": "a.csv"}, "exactly one of messages and file"),
        ({"messages": ["a"], "schema": "avor"}, "'avro'"),
        ({"messages": ["a"], "schema": "avro"}, "schema_definition"),
        ({"messages": ["a"], "compression": "lz5"}, "'lz4'"),
        ({"messages": ["a"], "envelope": True, "key_field": "k"}, "envelope"),
        ({"messages": ["a"], "property_fields": "k"}, "list"),
        ({"messages": ["a"], "send_timeout_seconds": 0}, "send_timeout_seconds"),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_read(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PublishOperator(task_id="a_task", topic="t", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"messages": "no json"}, "JSON array"),
        ({"messages": '{"a": 1}'}, "list"),
        ({"messages": lambda: 7}, "list or an iterator"),
        ({"messages": [{"a": 1}], "key_field": "b"}, "message 0: .*'b'"),
        ({"messages": ["a", object()]}, "message 1"),
        ({"messages": [{"carrier": "UA"}], "schema": "json", "schema_definition": FLIGHT}, "message 0"),
        ({"messages": ["a"], "properties": {"a": 1}}, "properties"),
        ({"file": "rows.xml"}, "ending"),
        ({"messages": ["a"], "topic": "non-persistent://public/default/t", "deduplicate": True}, "non-persistent"),
    ],
)
def test_what_templates_made_wrong_is_refused_before_anything_is_sent(
    options: dict[str, Any], words: str, topic: NewTopic, admin: AdminClient
) -> None:
    name = options.pop("topic", None) or topic()
    with pytest.raises((ValueError, AirflowException), match=words):
        publish(name, **options).execute(context_of())
    assert name not in admin.topics("public/default")


def test_a_bad_topic_name_fails_without_retries() -> None:
    with pytest.raises(AirflowFailException, match=r"stage 'arguments'.*InvalidTopicName"):
        publish("persistent://a/b", ["x"]).execute(context_of())


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A6", "K5")
def test_an_oversize_message_fails_the_task_and_the_good_ones_are_known(broker: Broker, topic: NewTopic) -> None:
    name = topic(partitions=2)
    context = context_of()
    with pytest.raises(PublishFailed, match=r"1 messages failed.*message 3: MessageTooBig") as caught:
        publish(name, ["a", "b", "c", "x" * 6_000_000, "d", "e"]).execute(context)
    manifest = caught.value.manifest
    assert context["ti"].xcoms["publish_failure"] == manifest
    assert (manifest["stored"], manifest["failed"], manifest["unconfirmed"]) == (5, 1, 0)
    messages = read_all(broker, name)
    assert sorted(message.data() for message in messages) == [b"a", b"b", b"c", b"d", b"e"]
    assert _spelled_out(manifest["stored_ids"]) == {str(message.message_id()) for message in messages}


def _spelled_out(ids: list[str]) -> set[str]:
    """Return every single id of "7:12:0:0..99" texts."""
    found = set()
    for text in ids:
        place, _, index = text.rpartition(":")
        first, _, last = index.partition("..")
        found |= {f"{place}:{number}" for number in range(int(first), int(last or first) + 1)}
    return found


def test_with_deduplication_nothing_is_stored_behind_a_failed_message(once: Callable[..., str], broker: Broker) -> None:
    name = once(partitions=3)
    store = StateStore()
    bad = [f"m{n}" for n in range(50)]
    bad[20] = "x" * 6_000_000
    with pytest.raises(PublishFailed) as caught:
        publish(name, bad, deduplicate=True).execute(context_of(store=store))
    assert caught.value.manifest["stored"] == 20 and caught.value.manifest["repeatable"]
    good = [f"m{n}" for n in range(50)]
    manifest = publish(name, good, deduplicate=True).execute(context_of(store=store))
    assert (manifest["stored"], manifest["duplicates"]) == (30, 20)
    assert sorted(message.data().decode() for message in read_all(broker, name)) == sorted(good)


@pytest.mark.proves("K5")
def test_a_forbidden_topic_fails_at_once(
    secure_broker: Standalone, monkeypatch: pytest.MonkeyPatch, topic: NewTopic
) -> None:
    conn = define_connection(
        monkeypatch,
        "pulsar_guest",
        service_url=secure_broker.service_url,
        auth_method="token",
        token=secure_broker.token("guest"),
    )
    started = time.monotonic()
    with pytest.raises(AirflowFailException, match=r"stage 'connect': AuthorizationError.*grant") as caught:
        publish(topic(), ["a"], pulsar_conn_id=conn).execute(context_of())
    assert time.monotonic() - started < 20
    assert secure_broker.token("guest") not in str(caught.value)


def test_rows_that_end_in_an_error_fail_the_task(broker: Broker, topic: NewTopic) -> None:
    name = topic()

    def rows() -> Iterator[str]:
        yield "a"
        raise RuntimeError("the source broke")

    with pytest.raises(PublishFailed, match="the source broke") as caught:
        publish(name, rows).execute(context_of())
    assert caught.value.manifest["stored"] == 1
    assert [message.data() for message in read_all(broker, name)] == [b"a"]


# ---- once ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A8")
def test_a_cleared_run_leaves_each_message_once(airflow_home: Path, once: Callable[..., str], broker: Broker) -> None:
    plain, keyed = once(partitions=4), once(partitions=4)
    dag = dag_in(
        airflow_home,
        "publishing_once",
        f"""
        rows = [{{"n": n, "k": str(n % 11)}} for n in range(3000)]
        PublishOperator(task_id="plain", topic={plain!r}, messages=lambda: rows)
        PublishOperator.partial(task_id="keyed", topic={keyed!r}, key_field="k").expand(messages=[rows[:5], rows[5:9]])
        """,
    )
    run = dag.test()
    assert set(states_of(run).values()) == {"success"}, states_of(run)
    again = clear_and_run(dag, run)
    assert again.run_id == run.run_id
    assert set(states_of(again).values()) == {"success"}, states_of(again)
    manifest = xcom_of(again, "plain")
    assert (manifest["count"], manifest["stored"], manifest["duplicates"]) == (3000, 0, 3000)
    assert _numbers(broker, plain) == Counter(range(3000))
    assert _numbers(broker, keyed) == Counter(range(9))
    other = dag.test()
    assert other.run_id != run.run_id
    assert _numbers(broker, plain) == Counter(dict.fromkeys(range(3000), 2))


def _numbers(broker: Broker, topic: str) -> Counter[int]:
    return Counter(json.loads(message.data())["n"] for message in read_all(broker, topic))


_CRASHING = """
import json, os, sys, time
sys.path.insert(0, {tests!r})
from support.tasks import context_of
from airflow_provider_pulsar.operators.publish import PublishOperator

def rows():
    for n in range(4000):
        if n == 2500:
            print("half", flush=True)
        if n >= 2500:
            time.sleep(0.01)
        yield {{"n": n}}

PublishOperator(task_id="a_task", topic={topic!r}, messages=rows).execute(context_of())
"""


@pytest.mark.proves("A8")
def test_a_crash_in_the_middle_and_a_retry_leave_each_message_once(once: Callable[..., str], broker: Broker) -> None:
    name = once(partitions=4)
    script = _CRASHING.format(topic=name, tests=str(Path(__file__).parents[2]))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "half":
                break
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    before = sum(_numbers(broker, name).values())
    assert 0 < before < 4000
    manifest = publish(name, lambda: ({"n": n} for n in range(4000)), deduplicate=True).execute(context_of())
    assert _numbers(broker, name) == Counter(range(4000))
    assert (manifest["duplicates"], manifest["stored"]) == (before, 4000 - before)
    for index in range(4):
        part = [json.loads(m.data())["n"] for m in read_all(broker, f"{name}-partition-{index}")]
        assert part == sorted(part)


def test_without_deduplication_at_the_broker_nothing_is_sent(broker: Broker, topic: NewTopic) -> None:
    name = topic(partitions=2)
    with pytest.raises(AirflowFailException, match=r"deduplication is disabled.*set-deduplication"):
        publish(name, ["a"], deduplicate=True).execute(context_of())
    assert read_all(broker, name) == []


def test_without_an_admin_url_missing_deduplication_is_warned_of(
    broker: Broker, topic: NewTopic, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conn = define_connection(monkeypatch, "pulsar_plain", service_url=broker.service_url)
    publish(topic(), ["a"], deduplicate=True, pulsar_conn_id=conn).execute(context_of())
    assert "publishes its messages again" in capsys.readouterr().out


def test_what_the_broker_has_forgotten_is_not_published_again(
    once: Callable[..., str], broker: Broker, admin: AdminClient
) -> None:
    name = once()
    store = StateStore()
    publish(name, ["a", "b"], deduplicate=True).execute(context_of(store=store))
    # As after the broker's inactivity time: another name is one it does not know.
    store["published"] = {**store["published"], "last": 5}
    with pytest.raises(AirflowFailException, match="no longer knows"):
        publish(name, ["a", "b"], deduplicate=True).execute(context_of(store=store))
    assert len(read_all(broker, name)) == 2


def test_more_partitions_between_two_tries_are_noticed(
    once: Callable[..., str], broker: Broker, admin: AdminClient
) -> None:
    name = once(partitions=2)
    store = StateStore()
    publish(name, ["a", "b", "c"], deduplicate=True).execute(context_of(store=store))
    admin.update_partitions(name, 3)
    with pytest.raises(AirflowFailException, match=r"had 2 partitions .* has 3 now"):
        publish(name, ["a", "b", "c"], deduplicate=True).execute(context_of(store=store))
    assert len(read_all(broker, name)) == 3


def test_what_a_retry_cannot_mend_forbids_it() -> None:
    from pulsar_native import Result
    from pulsar_native.jobs.publish_result import PublishResult

    receipts = PublishResult(2)
    for _ in range(4):
        receipts.accept(1, keyed=False)
    receipts.receipt(0, Result.Ok, MessageId(0, 1, 0))
    receipts.receipt(1, Result.Timeout, None)
    receipts.receipt(2, Result.Ok, MessageId(0, 1, 1))
    assert not receipts.is_repeatable()  # the fourth is not known yet
    receipts.receipt(3, Result.Timeout, None)
    assert receipts.is_repeatable()
    receipts.accept(1, keyed=False)
    receipts.accept(1, keyed=False)
    receipts.receipt(4, Result.Ok, MessageId(0, 1, 2))
    receipts.receipt(5, Result.Ok, MessageId(1, 1, 0))
    assert not receipts.is_repeatable()
    assert issubclass(PublishNotRepeatable, AirflowFailException)


# ---- kill ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A29")
def test_a_kill_ends_publishing_and_disconnects(broker: Broker, topic: NewTopic, admin: AdminClient) -> None:
    name = topic()
    begun = threading.Event()

    def rows() -> Iterator[str]:
        for number in range(100_000):
            if number == 100:
                begun.set()
            time.sleep(0.001)
            yield str(number)

    operator = publish(name, rows)
    killer = threading.Thread(target=lambda: (begun.wait(20), operator.on_kill()))
    killer.start()
    started = time.monotonic()
    with pytest.raises(PublishFailed):
        operator.execute(context_of())
    assert time.monotonic() - started < 15
    killer.join()
    assert admin.stats(name).get("publishers") == []
