"""PublishOperator with deduplication on the real broker: each message once over tries, and never another's."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pulsar.operators.publish import PublishFailed, PublishNotRepeatable
from pulsar_native import AdminClient, MessageId
from support.brokers import Broker, NewTopic
from support.processes import child_process
from support.publish_tasks import FileStateStore, numbers, publish, read_all, texts
from support.tasks import StateStore, clear_and_run, context_of, dag_in, define_connection, states_of, xcom_of

pytestmark = pytest.mark.usefixtures("pulsar_conn")

OLD = [f"m{n}" for n in range(40)]


def once_more(store: StateStore, topic: str, messages: object = None, **options: Any) -> dict[str, Any]:
    """Publish in one more try of the task whose state is in the store."""
    manifest: dict[str, Any] = publish(topic, messages, deduplicate="auto", **options).execute(context_of(store=store))
    return manifest


def record_of(store: StateStore) -> dict[str, Any]:
    """Return what the state keeps of the last generation."""
    record: dict[str, Any] = store["published"]["generations"][-1]
    return record


# ---- the same content ------------------------------------------------------------------------------------------------


@pytest.mark.proves("A8")
def test_publish_cleared_run_leaves_each_message_once(
    airflow_home: Path, once: Callable[..., str], broker: Broker
) -> None:
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
    assert xcom_of(run, "plain")["deduplicated"] is True
    again = clear_and_run(dag, run)
    assert again.run_id == run.run_id
    assert set(states_of(again).values()) == {"success"}, states_of(again)
    manifest = xcom_of(again, "plain")
    assert (manifest["count"], manifest["stored"], manifest["duplicates"]) == (3000, 0, 3000)
    assert numbers(broker, plain) == Counter(range(3000))
    assert numbers(broker, keyed) == Counter(range(9))
    other = dag.test()
    assert other.run_id != run.run_id
    assert numbers(broker, plain) == Counter(dict.fromkeys(range(3000), 2))


@pytest.mark.parametrize("partitions", [0, 2])
def test_publish_to_recreated_topic_by_two_tasks(
    partitions: int, once: Callable[..., str], admin: AdminClient, broker: Broker
) -> None:
    """A run whose setup makes the topic is cleared: the second task finds what the first has published again."""
    name, stores = once(partitions), [StateStore(), StateStore()]
    for _ in range(2):
        for number, store in enumerate(stores):
            manifest = once_more(store, name, ["a", "b"], identity=f"task-{number}")
            assert (manifest["stored"], manifest["duplicates"], manifest["deduplicated"]) == (2, 0, True)
        # A retry of either finds its own messages.
        assert [once_more(stores[n], name, ["a", "b"], identity=f"task-{n}")["duplicates"] for n in range(2)] == [2, 2]
        assert Counter(texts(broker, name)) == Counter({"a": 2, "b": 2})
        admin.delete_topic(name, force=True)
        if partitions:
            admin.create_partitioned_topic(name, partitions)


_CRASHING = """
import sys, time
from pathlib import Path
sys.path[:0] = {paths!r}
from support.publish_tasks import FileStateStore, publish
from support.tasks import context_of

def rows():
    for n in range(4000):
        if n == 2500:
            print("half", flush=True)
        if n >= 2500:
            time.sleep(0.01)
        yield {{"n": n}}

store = FileStateStore(Path({store!r}))
publish({topic!r}, rows, deduplicate=True).execute(context_of(store=store))
"""


def crash_halfway(topic: str, store: Path) -> None:
    """Publish 4000 messages in a process that is killed after 2500."""
    tests = Path(__file__).parents[2]
    script = _CRASHING.format(topic=topic, store=str(store), paths=[str(tests), str(tests.parent / "dev")])
    with child_process([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.strip() == "half" for line in process.stdout)
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def test_publish_large_messages_in_chunks_once(
    airflow_home: Path, once: Callable[..., str], broker: Broker, tmp_path: Path
) -> None:
    name, path = once(), tmp_path / "large.jsonl"
    dag = dag_in(
        airflow_home,
        "publishing_chunks",
        f"""
        publish = PublishOperator(
            task_id="publish", topic={name!r}, messages=lambda: ["a", "b" * 6_000_000, "c"], chunking=True
        )
        publish >> ConsumeBatchOperator(task_id="consume", topic={name!r}, subscription="s", path={str(path)!r})
        """,
    )
    run = dag.test()
    assert states_of(run) == {"publish": "success", "consume": "success"}
    again = clear_and_run(dag, run)
    manifest = xcom_of(again, "publish")
    assert (manifest["stored"], manifest["duplicates"]) == (0, 3)
    assert [message.data()[:2] for message in read_all(broker, name)] == [b"a", b"bb", b"c"]
    values = [json.loads(line)["value"] for line in path.read_text().splitlines()]
    assert values == ["a", "b" * 6_000_000, "c"]


@pytest.mark.proves("A8")
def test_publish_retry_after_kill_stores_the_rest(once: Callable[..., str], broker: Broker, tmp_path: Path) -> None:
    name = once(partitions=4)
    crash_halfway(name, tmp_path / "state.json")
    before = sum(numbers(broker, name).values())
    assert 0 < before < 4000
    store = FileStateStore(tmp_path / "state.json")
    assert record_of(store)["phase"] == "sending"
    manifest = once_more(store, name, lambda: ({"n": n} for n in range(4000)))
    assert numbers(broker, name) == Counter(range(4000))
    assert (manifest["duplicates"], manifest["stored"]) == (before, 4000 - before)
    for index in range(4):
        part = [n for n, _ in numbers(broker, f"{name}-partition-{index}").items()]
        assert part == sorted(part)


def test_publish_changed_after_kill_fails_at_once(once: Callable[..., str], broker: Broker, tmp_path: Path) -> None:
    name = once()
    crash_halfway(name, tmp_path / "state.json")
    before = sum(numbers(broker, name).values())
    with pytest.raises(AirflowFailException, match="message 0 is not the one published before"):
        once_more(FileStateStore(tmp_path / "state.json"), name, lambda: ({"n": -n - 1} for n in range(4000)))
    assert sum(numbers(broker, name).values()) == before


def test_publish_state_is_there_before_the_first_message(once: Callable[..., str]) -> None:
    store = StateStore()
    seen: list[dict[str, Any]] = []

    def rows() -> Iterator[str]:
        seen.append(dict(record_of(store)))
        yield "a"

    once_more(store, once(), rows)
    assert (seen[0]["phase"], seen[0]["last"], seen[0]["deduplicated"]) == ("sending", -1, True)
    assert (record_of(store)["phase"], record_of(store)["last"], record_of(store)["count"]) == ("stored", 0, 1)


def test_publish_state_never_expires(once: Callable[..., str]) -> None:
    from airflow.sdk import NEVER_EXPIRE

    class Strict(StateStore):
        def set(self, key: str, value: Any, **options: object) -> None:
            assert options["retention"] is NEVER_EXPIRE
            super().set(key, value)

    store = Strict()
    once_more(store, once(), ["a"])
    assert record_of(store)["phase"] == "stored"


def test_publish_stores_nothing_behind_a_failed_message(once: Callable[..., str], broker: Broker) -> None:
    name = once(partitions=3)
    store = StateStore()
    bad = [f"m{n}" for n in range(50)]
    bad[20] = "x" * 6_000_000
    with pytest.raises(PublishFailed) as caught:
        once_more(store, name, bad)
    assert caught.value.manifest["stored"] == 20 and caught.value.manifest["repeatable"]
    good = [f"m{n}" for n in range(50)]
    manifest = once_more(store, name, good)
    assert (manifest["stored"], manifest["duplicates"]) == (30, 20)
    assert sorted(texts(broker, name)) == sorted(good)


def test_publish_forgotten_by_the_broker_raises(once: Callable[..., str], broker: Broker) -> None:
    name = once()
    store = StateStore()
    once_more(store, name, ["a", "b"])
    # As after the broker's inactivity time: it knows less than was published.
    record_of(store)["last"] = 5
    with pytest.raises(AirflowFailException, match="no longer knows"):
        once_more(store, name, ["a", "b"])
    assert len(read_all(broker, name)) == 2


def test_publish_killed_long_ago_raises(once: Callable[..., str], broker: Broker) -> None:
    name = once()
    store = StateStore()
    once_more(store, name, ["a", "b"])
    # Killed right after the start, hours ago; meanwhile the broker forgot this producer, whose name is another here.
    record_of(store).update(phase="sending", last=-1, producer_name="forgotten", at=time.time() - 7 * 3600)
    with pytest.raises(AirflowFailException, match="no longer knows"):
        once_more(store, name, ["a", "b"])
    record_of(store)["at"] = time.time()
    assert once_more(store, name, ["a", "b"])["stored"] == 2


def test_publish_more_partitions_than_before_raises(
    once: Callable[..., str], broker: Broker, admin: AdminClient
) -> None:
    name = once(partitions=2)
    store = StateStore()
    once_more(store, name, ["a", "b", "c"])
    admin.update_partitions(name, 3)
    with pytest.raises(AirflowFailException, match=r"had 2 partitions .* has 3 now"):
        once_more(store, name, ["a", "b", "c"])
    assert len(read_all(broker, name)) == 3


def test_publish_not_repeatable_forbids_retries() -> None:
    from pulsar_native import Result
    from pulsar_native.jobs.publish_result import PublishResult

    receipts = PublishResult(2)
    for number in range(4):
        receipts.accept(number, 1, keyed=False)
    receipts.receipt(0, Result.Ok, MessageId(0, 1, 0))
    receipts.receipt(1, Result.Timeout, None)
    receipts.receipt(2, Result.Ok, MessageId(0, 1, 1))
    assert not receipts.is_repeatable()  # the fourth is not known yet
    receipts.receipt(3, Result.Timeout, None)
    assert receipts.is_repeatable()
    receipts.accept(4, 1, keyed=False)
    receipts.accept(5, 1, keyed=False)
    receipts.receipt(4, Result.Ok, MessageId(0, 1, 2))
    receipts.receipt(5, Result.Ok, MessageId(1, 1, 0))
    assert not receipts.is_repeatable()
    assert issubclass(PublishNotRepeatable, AirflowFailException)


def test_publish_result_separates_failures_and_duplicates() -> None:
    from pulsar_native import Result
    from pulsar_native.jobs.publish_result import PublishResult

    receipts = PublishResult(0)
    receipts.receipt(0, Result.MessageTooBig, MessageId())
    receipts.accept(0, 1, keyed=False)
    assert (receipts.accepted, receipts.resolved, receipts.failed, receipts.duplicates) == (0, 0, 1, 0)
    receipts.accept(1, 1, keyed=False)
    receipts.receipt(1, Result.Timeout, MessageId())
    receipts.accept(2, 1, keyed=False)
    receipts.receipt(2, Result.Ok, MessageId())
    assert (receipts.accepted, receipts.resolved, receipts.failed, receipts.duplicates) == (2, 2, 2, 1)
    assert receipts.wait(0)


# ---- other content ---------------------------------------------------------------------------------------------------

_CHANGES = {
    "text": [*OLD[:30], "other", *OLD[31:]],
    "order": [OLD[1], OLD[0], *OLD[2:]],
    "more": [*OLD, "one more"],
    "fewer": OLD[:-1],
    "none": [],
}


@pytest.mark.proves("A8")
@pytest.mark.parametrize("change", _CHANGES)
@pytest.mark.parametrize("kind", ["list", "iterator", "file"])
def test_publish_changed_content_fails_by_name(
    kind: str, change: str, once: Callable[..., str], broker: Broker, tmp_path: Path
) -> None:
    name = once(partitions=2)
    store = StateStore()
    path = tmp_path / "rows.txt"

    def source(values: list[str]) -> dict[str, Any]:
        if kind == "file":
            path.write_text("".join(f"{value}\n" for value in values))
            return {"file": str(path)}
        return {"messages": values if kind == "list" else lambda: iter(values)}

    once_more(store, name, **source(OLD))
    with pytest.raises(AirflowFailException, match=r"ContentChanged: .* published before|: .* published before"):
        once_more(store, name, **source(_CHANGES[change]))
    assert sorted(texts(broker, name)) == sorted(OLD)
    assert once_more(store, name, **source(OLD))["duplicates"] == len(OLD)
    assert sorted(texts(broker, name)) == sorted(OLD)


@pytest.mark.parametrize(
    "other",
    [
        {"key": "other"},
        {"properties": {"a": "c"}},
        {"event_time": 1},
        {"ordering_key": "o"},
        {"value": None},
        {"deliver_at": 1},
    ],
)
def test_publish_digest_covers_all_of_a_message(other: dict[str, Any], once: Callable[..., str]) -> None:
    name, store = once(), StateStore()
    item = {"value": "", "key": "k", "properties": {"a": "b"}}
    once_more(store, name, [item], envelope=True)
    with pytest.raises(AirflowFailException, match="message 0 is not the one published before"):
        once_more(store, name, [item | other], envelope=True)


def test_publish_digest_covers_the_schema(once: Callable[..., str]) -> None:
    name, store = once(), StateStore()
    fields = [{"name": "a", "type": "string"}]
    definition = {"type": "record", "name": "R", "fields": fields}
    once_more(store, name, [{"a": "b"}], schema="json", schema_definition=definition)
    fields.append({"name": "b", "type": ["null", "string"], "default": None})
    with pytest.raises(AirflowFailException, match="not the one published before"):
        once_more(store, name, [{"a": "b"}], schema="json", schema_definition=definition)


def test_publish_file_with_another_mapping_is_changed(once: Callable[..., str], tmp_path: Path) -> None:
    name, store = once(), StateStore()
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "1", "b": "2"}\n')
    once_more(store, name, file=str(path), key_field="a")
    assert once_more(store, name, file=str(path), key_field="a")["duplicates"] == 1
    with pytest.raises(AirflowFailException, match="not the one published before"):
        once_more(store, name, file=str(path), key_field="b")


def test_publish_partial_try_may_change_only_the_rest(once: Callable[..., str], broker: Broker) -> None:
    name, store = once(), StateStore()

    def ending_after(count: int) -> Iterator[str]:
        yield from OLD[:count]
        raise RuntimeError("the source broke")

    with pytest.raises(PublishFailed, match="the source broke"):
        once_more(store, name, lambda: ending_after(10))
    with pytest.raises(AirflowFailException, match="one of the messages 8 to 9 is not"):
        once_more(store, name, [*OLD[:9], "other", *OLD[10:]])
    with pytest.raises(AirflowFailException, match="fewer than the 10"):
        once_more(store, name, OLD[:9])
    manifest = once_more(store, name, [*OLD[:10], "new", "rest"])
    assert (manifest["duplicates"], manifest["stored"]) == (10, 2)
    assert texts(broker, name) == [*OLD[:10], "new", "rest"]


@pytest.mark.parametrize("kind", ["list", "iterator"])
def test_publish_on_changed_republishes_as_generations(kind: str, once: Callable[..., str], broker: Broker) -> None:
    name, store = once(), StateStore()

    def source(values: list[str]) -> Any:
        return values if kind == "list" else lambda: iter(values)

    assert once_more(store, name, source(["wrong-1", "wrong-2"]), on_changed="republish")["generation"] == 1
    right = ["right-1", "right-2", "right-3"]
    manifest = once_more(store, name, source(right), on_changed="republish")
    assert (manifest["generation"], manifest["stored"], manifest["duplicates"]) == (2, 3, 0)
    assert manifest["producer_name"].endswith("/2")
    again = once_more(store, name, source(right), on_changed="republish")
    assert (again["generation"], again["stored"], again["duplicates"]) == (2, 0, 3)
    third = once_more(store, name, source(["x"]), on_changed="republish")
    assert (third["generation"], third["stored"]) == (3, 1)
    assert texts(broker, name) == ["wrong-1", "wrong-2", *right, "x"]
    assert [each["stored"] for each in store["published"]["generations"]] == [2, 3, 1]


# ---- identity and deployment -----------------------------------------------------------------------------------------


def test_publish_lost_state_fails_before_sending(once: Callable[..., str], broker: Broker) -> None:
    name = once()
    once_more(StateStore(), name, ["a", "b"])
    for messages in (["a", "b"], ["c"]):
        store = StateStore()
        with pytest.raises(AirflowFailException, match=r"nothing is remembered .* deleted and made again"):
            once_more(store, name, messages)
        assert not store, "the next try is a first one, too"
    assert texts(broker, name) == ["a", "b"]


def test_publish_lost_state_republishes_where_asked(once: Callable[..., str], broker: Broker) -> None:
    name = once()
    for number in (1, 2, 3):
        manifest = once_more(StateStore(), name, ["a"], on_changed="republish")
        assert (manifest["generation"], manifest["stored"]) == (number, 1)
    assert texts(broker, name) == ["a", "a", "a"]


def test_publish_identity_is_templated_and_separates(
    airflow_home: Path, once: Callable[..., str], broker: Broker
) -> None:
    name = once()
    dag = dag_in(
        airflow_home,
        "publishing_identity",
        f"""
        common = dict(topic={name!r}, messages=["a"])
        PublishOperator(task_id="first", identity="of {{{{ dag.dag_id }}}}", **common) >> [
            PublishOperator(task_id="other", identity="another", **common),
            PublishOperator(task_id="same", identity="of {{{{ dag.dag_id }}}}", **common),
        ]
        """,
    )
    run = dag.test()
    assert states_of(run) == {"first": "success", "other": "success", "same": "failed"}
    assert xcom_of(run, "first")["producer_name"] == "airflow/tests/of publishing_identity"
    assert texts(broker, name) == ["a", "a"]


def test_publish_another_identity_publishes_again(once: Callable[..., str], broker: Broker) -> None:
    name, store = once(), StateStore()
    once_more(store, name, ["a"])
    assert once_more(store, name, ["b"], identity="second")["stored"] == 1
    assert texts(broker, name) == ["a", "b"]


@pytest.mark.proves("A8")
def test_publish_two_deployments_are_independent(
    once: Callable[..., str], broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = once()
    urls = {"service_url": broker.service_url, "admin_url": broker.admin_url}
    for deployment in ("staging", "production"):
        conn = define_connection(monkeypatch, f"pulsar_{deployment}", deployment_id=deployment, **urls)
        manifest = once_more(StateStore(), name, [deployment], pulsar_conn_id=conn)
        assert manifest["stored"] == 1
        assert manifest["producer_name"] == f"airflow/{deployment}/a_dag/a_task/-1/a_run"
    assert texts(broker, name) == ["staging", "production"]


def test_publish_deployment_sharing_an_id_fails_by_name(once: Callable[..., str], broker: Broker) -> None:
    name = once()
    once_more(StateStore(), name, ["of staging"])
    with pytest.raises(AirflowFailException, match=r"another Airflow.*deployment_id.*give each its own"):
        once_more(StateStore(), name, ["of production"])
    assert texts(broker, name) == ["of staging"]


def test_publish_state_outlives_a_changed_deployment_id(
    once: Callable[..., str], broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, store = once(), StateStore()
    once_more(store, name, ["a"])
    monkeypatch.setenv("AIRFLOW__PULSAR__DEPLOYMENT_ID", "renamed")
    assert once_more(store, name, ["a"])["duplicates"] == 1
    assert texts(broker, name) == ["a"]


def test_publish_long_identity_keeps_names_apart(once: Callable[..., str], broker: Broker) -> None:
    name = once()
    names = {once_more(StateStore(), name, ["a"], identity="i" * 500 + end)["producer_name"] for end in ("1", "2")}
    assert len(names) == 2 and max(map(len, names)) <= 250
    assert len(texts(broker, name)) == 2


def test_deployment_id_is_created_once(
    airflow_home: Path, once: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models import Variable

    from airflow_provider_pulsar.deployment import VARIABLE

    monkeypatch.delenv("AIRFLOW__PULSAR__DEPLOYMENT_ID")
    dag = dag_in(
        airflow_home,
        "publishing_deployment",
        f'PublishOperator.partial(task_id="many", topic={once()!r}).expand(messages=[["a"], ["b"]])',
    )
    runs = [dag.test(), dag.test()]
    kept = Variable.get(VARIABLE)
    assert len(kept) == 16
    for run in runs:
        assert states_of(run) == {"many[0]": "success", "many[1]": "success"}
        assert xcom_of(run, "many")["producer_name"].startswith(f"airflow/{kept}/publishing_deployment/many/")
    Variable.delete(VARIABLE)
    monkeypatch.setenv("AIRFLOW__PULSAR__DEPLOYMENT_ID", "from the config")
    with pytest.raises(AirflowException, match=r"deployment_id of Airflow's configuration may have letters"):
        publish(once(), ["a"], deduplicate=True).execute(context_of())


def test_deployment_id_that_cannot_be_kept_fails(once: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__PULSAR__DEPLOYMENT_ID")
    from airflow.sdk import Variable

    def refuse(key: str, *_: object, **__: object) -> None:
        raise PermissionError(key)

    monkeypatch.setattr(Variable, "get", refuse)
    with pytest.raises(AirflowException, match=r"neither read nor made .*give deployment_id in the connection"):
        publish(once(), ["a"], deduplicate="auto").execute(context_of())


# ---- without deduplication at the broker -----------------------------------------------------------------------------


@pytest.fixture(params=["admin URL", "none"])
def any_conn(request: pytest.FixtureRequest, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> str:
    """Define a connection with and without an admin URL."""
    more = {"admin_url": broker.admin_url} if request.param == "admin URL" else {}
    return define_connection(monkeypatch, "pulsar_any", service_url=broker.service_url, **more)


def test_publish_demanding_deduplication_sends_nothing(broker: Broker, topic: NewTopic) -> None:
    name = topic(partitions=2)
    with pytest.raises(AirflowFailException, match=r"it is disabled at the broker.*set-deduplication"):
        publish(name, ["a"], deduplicate=True).execute(context_of())
    assert read_all(broker, name) == []


def test_publish_demanding_without_admin_stops_at_first(
    broker: Broker, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = define_connection(monkeypatch, "pulsar_plain", service_url=broker.service_url)
    name = topic(partitions=2)
    with pytest.raises(PublishNotRepeatable, match=r"has no deduplication: .*set-deduplication") as caught:
        publish(name, ["a", "b"], deduplicate=True, pulsar_conn_id=conn).execute(context_of())
    assert caught.value.manifest["stored"] == 1
    assert texts(broker, name) == ["a"]


def test_publish_auto_uses_what_the_broker_has(any_conn: str, once: Callable[..., str], broker: Broker) -> None:
    name, store = once(partitions=3), StateStore()
    rows = [{"n": n} for n in range(100)]
    for stored, duplicates in ((100, 0), (0, 100)):
        manifest = once_more(store, name, rows, pulsar_conn_id=any_conn)
        assert (manifest["deduplicated"], manifest["repeatable"]) == (True, True)
        assert (manifest["stored"], manifest["duplicates"]) == (stored, duplicates)
    assert numbers(broker, name) == Counter(range(100))


def test_publish_auto_without_deduplication_logs_one_line(
    any_conn: str, broker: Broker, topic: NewTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic(partitions=2)
    manifest = once_more(StateStore(), name, OLD, pulsar_conn_id=any_conn)
    assert (manifest["deduplicated"], manifest["repeatable"], manifest["stored"]) == (False, False, len(OLD))
    assert sorted(texts(broker, name)) == sorted(OLD)
    lines = [line for line in capsys.readouterr().out.splitlines() if "deduplication" in line]
    assert len(lines) == 1
    assert "a retry publishes all messages again" in lines[0] and "set-deduplication" in lines[0]


@pytest.mark.proves("A8")
@pytest.mark.parametrize("deduplicate", ["auto", False])
def test_publish_plain_retry_names_possible_duplicates(
    deduplicate: Any, broker: Broker, topic: NewTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    name, store = topic(), StateStore()

    def rows(count: int) -> Iterator[str]:
        yield from OLD[:count]
        if count < len(OLD):
            raise RuntimeError("the source broke")

    with pytest.raises(PublishFailed, match="the source broke") as caught:
        publish(name, lambda: rows(7), deduplicate=deduplicate).execute(context_of(store=store))
    assert caught.value.manifest["repeatable"] is False and not isinstance(caught.value, PublishNotRepeatable)
    capsys.readouterr()
    publish(name, lambda: rows(40), deduplicate=deduplicate).execute(context_of(store=store))
    log = capsys.readouterr().out
    assert "An earlier try stored 7 messages" in log and "will be there twice" in log
    first = str(read_all(broker, name)[0].message_id()).rsplit(":", 1)[0]
    assert first in log
    assert texts(broker, name) == [*OLD[:7], *OLD]


def test_publish_deduplication_switched_off_raises(
    namespace: Callable[[], str], topic: NewTopic, admin: AdminClient, broker: Broker
) -> None:
    space = namespace()
    admin.set_deduplication(space, True)
    name, store = topic(namespace=space), StateStore()
    once_more(store, name, ["a", "b"])
    admin.set_deduplication(space, False)
    deadline = time.monotonic() + 20
    while admin.stats(name)["deduplicationStatus"] != "Disabled" and time.monotonic() < deadline:
        time.sleep(0.1)
    with pytest.raises(AirflowFailException, match=r"had deduplication .* has none now.*2 messages would be stored tw"):
        once_more(store, name, ["a", "b"])
    assert texts(broker, name) == ["a", "b"]
    publish(name, ["a", "b"], deduplicate=False).execute(context_of(store=store))
    assert texts(broker, name) == ["a", "b", "a", "b"]
