"""ConsumeBatchOperator and the topics it is told: missing ones, patterns, and a broker as it is installed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from broker import Standalone
from pulsar_native import AdminClient, Client, MessageId
from support.brokers import Broker, NewTopic
from support.consuming import consume, fill, texts
from support.cursors import wait_for_stored_acknowledgement
from support.tasks import StateStore, clear_and_run, context_of, dag_in, states_of, xcom_of

# ---- topics that are not there ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_admin", [True, False])
def test_missing_topic_fails_without_creating_it(
    with_admin: bool,
    broker: Broker,
    connection: Callable[..., str],
    client: Client,
    topic: NewTopic,
    tmp_path: Path,
    admin: AdminClient,
) -> None:
    connection(service_url=broker.service_url, **({"admin_url": broker.admin_url} if with_admin else {}))
    name = topic("orders")
    fill(client, name, range(3))
    wrong = f"{name}s"
    with pytest.raises(AirflowException, match="stage 'look-up': TopicNotFound") as error:
        consume([name, wrong], tmp_path / "a.jsonl").execute(context_of())
    assert f"there is no topic {wrong}" in str(error.value) and "create_topic=True" in str(error.value)
    assert (f"did you mean {name}?" in str(error.value)) is with_admin
    assert wrong not in admin.topics("public/default") and list(tmp_path.iterdir()) == []
    assert admin.subscriptions(name) == []
    made = consume([name, wrong], tmp_path / "a.jsonl", create_topic=True).execute(context_of())
    assert made["count"] == 3 and admin.subscriptions(wrong) == ["sub"]


# ---- several topics and patterns -------------------------------------------------------------------------------------


@pytest.mark.proves("A19")
@pytest.mark.usefixtures("pulsar_conn")
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("compiled", [True, False])
def test_pattern_reads_all_topics_that_match(
    kind: str, compiled: bool, client: Client, namespace: Callable[[], str], topic: NewTopic, tmp_path: Path
) -> None:
    space = namespace()
    names = [topic(f"orders-{day}", namespace=space, partitions=2 * (day == "tue")) for day in ("mon", "tue", "wed")]
    for number, name in enumerate([*names, topic("returns", namespace=space)]):
        fill(client, name, [str(number)] * 5, batch=2)
    text = f"persistent://{space}/orders-.*"
    given: dict[str, Any] = {"topic": re.compile(text)} if compiled else {"topic": None, "topic_pattern": text}
    path = tmp_path / f"a.{kind}"
    operator = consume(path=path, **given)
    manifest = operator.execute(context_of())
    assert manifest["count"] == 15 and set(manifest["topics"]) == set(names)
    assert {part.partition("-partition-")[0] for part in manifest["partitions"]} == set(names)
    written = path.read_bytes()
    path.unlink()
    assert operator.execute(context_of()) == manifest
    assert kind == "parquet" or path.read_bytes() == written
    again = consume(path=tmp_path / f"b.{kind}", **given).execute(context_of("next"))
    assert (again["count"], again["stop_reason"]) == (0, "end")


@pytest.mark.usefixtures("pulsar_conn")
def test_pattern_compiled_keeps_its_flags(
    client: Client, namespace: Callable[[], str], topic: NewTopic, tmp_path: Path
) -> None:
    space = namespace()
    names = [topic(name, namespace=space) for name in ("Orders-a", "orders-b")]
    for name in names:
        fill(client, name, ["x"])
    pattern = re.compile(f"persistent://{space}/orders-.*", re.IGNORECASE)
    found = consume(pattern, tmp_path / "a.jsonl").execute(context_of())  # type: ignore[arg-type]
    assert (found["count"], set(found["topics"])) == (2, set(names))


@pytest.mark.proves("A19")
@pytest.mark.usefixtures("pulsar_conn")
def test_pattern_without_topics_fails(tmp_path: Path, namespace: Callable[[], str]) -> None:
    options: dict[str, Any] = {"topic": None, "topic_pattern": f"persistent://{namespace()}/none-.*"}
    with pytest.raises(AirflowException, match="no topic matches the pattern"):
        consume(path=tmp_path / "a.jsonl", **options).execute(context_of())
    assert list(tmp_path.iterdir()) == []
    found = consume(path=tmp_path / "a.jsonl", allow_empty_pattern=True, **options).execute(context_of())
    assert (found["count"], found["topics"]) == (0, [])


@pytest.mark.usefixtures("pulsar_conn")
def test_pattern_leaves_out_own_dead_letters(client: Client, namespace: Callable[[], str], topic: NewTopic) -> None:
    """The dead-letter topic has a Shared subscription of the name, and the batch an Exclusive one."""
    space = namespace()
    name = topic("orders", namespace=space)
    options: dict[str, Any] = {"topic": None, "topic_pattern": f"persistent://{space}/orders-.*", "decode": "json"}
    for number in range(3):
        fill(client, name, ["bad"])
        found = consume(inline=True, on_error="dead_letter", **options).execute(context_of(f"run{number}"))
        assert (found["errors"]["dead_letters"], found["topics"]) == (1, [name])


LETTERS = ("dead_letter_topic", "retry_letter_topic")


@pytest.mark.parametrize("name", LETTERS)
def test_dead_letter_topic_consumed_raises_at_parse(name: str) -> None:
    options: Any = {"task_id": "a", "subscription": "s", "inline": True, name: "{{ ds }}"}
    for given in ("{{ ds }}", ["t", "{{ ds }}"]):
        with pytest.raises(ValueError, match=f"{name}='{{{{ ds }}}}' is also a topic that is consumed"):
            ConsumeBatchOperator(topic=given, **options)
    ConsumeBatchOperator(topic="t", **options)


@pytest.mark.parametrize("name", LETTERS)
def test_dead_letter_topic_consumed_fails(
    name: str, connection: Callable[..., str], broker: Broker, topic: NewTopic
) -> None:
    """Other spellings of the topic, too, which depend on the connection."""
    connection(service_url=broker.service_url, default_namespace="public/default")
    options: dict[str, Any] = {name: f"{topic()}-partition-1", "inline": True}
    short = options[name].rpartition("/")[2].removesuffix("-partition-1")
    with pytest.raises(AirflowException, match=f"{name}='.*-1' is also a topic that is consumed .*/{short}.: "):
        consume(short, **options).execute(context_of())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": None}, "exactly one of topic and topic_pattern"),
        ({"topic": "t", "topic_pattern": "p"}, "exactly one of topic and topic_pattern"),
    ],
)
def test_topic_and_pattern_exclude_each_other(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ConsumeBatchOperator(task_id="a", subscription="s", inline=True, **options)


@pytest.mark.usefixtures("pulsar_conn")
def test_broken_pattern_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no regular expression"):
        consume(path=tmp_path / "a.jsonl", topic=None, topic_pattern="a(").execute(context_of())


# ---- a broker as it is installed -------------------------------------------------------------------------------------


@pytest.fixture
def default_client(default_broker: Broker, connection: Callable[..., str]) -> Iterator[Client]:
    """Define the connection to the broker with Pulsar's defaults, without an admin URL, and give a client of it."""
    connection(service_url=default_broker.service_url)
    with Client(default_broker.service_url) as client:
        yield client


@pytest.fixture(scope="module")
def entry_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Give a broker that keeps acknowledgements of whole entries only, and topics nobody uses for a while."""
    conf = {"acknowledgmentAtBatchIndexLevelEnabled": "false", "brokerDeleteInactiveTopicsEnabled": "false"}
    with Standalone(tmp_path_factory.mktemp("entry_broker"), profile="default", conf=conf) as started:
        yield Broker(started.service_url, started.admin_url)


@pytest.fixture
def entry_client(entry_broker: Broker, connection: Callable[..., str]) -> Iterator[Client]:
    """Define the connection to the broker that acknowledges entries only, and give a client of it."""
    connection(service_url=entry_broker.service_url)
    with Client(entry_broker.service_url) as client:
        yield client


class Runs:
    """The runs of one task, one after another, which see the XComs of those before as Airflow gives them.

    Of the runs before, that is the one of the highest logical date, those without one last or, as in PostgreSQL, first;
    of equal ones that stored last.
    """

    def __init__(self, *, undated_first: bool = False) -> None:
        self._undated = 1000 if undated_first else -1
        self._xcoms: list[tuple[int, str, bool, Any]] = []

    def context(self, number: int, *, dated: bool = True, store: StateStore | None = None) -> dict[str, Any]:
        """Return the context of the next run, or of a cleared one, whose XComs are gone."""
        self._xcoms = [each for each in self._xcoms if each[0] != number]
        found = context_of(f"run{number}", store=store)
        found["dag_run"] = SimpleNamespace(logical_date=number if dated else None)
        task = found["ti"]

        def pull(*, key: str, include_prior_dates: bool, map_indexes: int | None = None, **_: object) -> Any:
            assert include_prior_dates
            own = [each for each in self._xcoms if each[1] == key and each[0] <= number]
            own.sort(key=lambda each: each[0] if each[2] else self._undated)
            if map_indexes is None:
                return own[0][3] if len(own) == 1 else [each[3] for each in own] or [None]
            return own[-1][3] if own else None

        def push(key: str, value: Any) -> None:
            self._xcoms.append((number, key, dated, json.loads(json.dumps(value))))

        task.xcom_pull, task.xcom_push = pull, push
        return found


@pytest.mark.proves("A9", "K9")
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("shared", ["Exclusive", "Shared"])
def test_broker_acknowledging_entries_gives_each_once(
    kind: str, shared: str, entry_client: Client, topic: NewTopic, tmp_path: Path
) -> None:
    name, runs, got = topic(), Runs(), []
    # Such a broker delivers a cut entry again as a whole.
    fill(entry_client, name, range(1000), batch=1000)
    fill(entry_client, name, range(1000, 1020), batch=10)
    for number, most in enumerate([10, 10, 985, 10, None]):
        path = tmp_path / f"{number}.{kind}"
        operator = consume(name, path, max_messages=most, subscription_type=shared)
        manifest = operator.execute(runs.context(number))
        assert manifest["count"] == (most or 5)
        got += _values(path)
    assert [int(value) for value in got] == list(range(1020))
    nothing = consume(name, tmp_path / f"none.{kind}", subscription_type=shared).execute(runs.context(9))
    assert nothing["count"] == 0


@pytest.mark.parametrize("undated_first", [False, True])
def test_cut_entries_of_dated_and_other_runs(
    undated_first: bool, entry_client: Client, topic: NewTopic, tmp_path: Path
) -> None:
    name, runs = topic(), Runs(undated_first=undated_first)
    stores = [StateStore() for _ in range(9)]
    fill(entry_client, name, range(40), batch=40)

    def run(number: int) -> list[str]:
        path = tmp_path / f"{number}.jsonl"
        context = runs.context(number, dated=number in (1, 4, 5, 7), store=stores[number])
        consume(name, path, max_messages=4).execute(context)
        return texts(path)

    # Scheduled runs, and those by assets or manual ones, which have no logical date.
    got = [run(number) for number in range(7)]
    # Cleared, a run notes again what it held then.
    assert [run(number) for number in (4, 2, 6, 3)] == [got[4], got[2], got[6], got[3]]
    got += [run(number) for number in (7, 8)]
    assert [int(value) for part in got for value in part] == list(range(36))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("shared", ["Exclusive", "Shared"])
@pytest.mark.parametrize("keeps_singles", [True, False])
def test_reset_cursor_delivers_cut_entries_again(
    keeps_singles: bool, kind: str, shared: str, request: Any, topic: NewTopic, tmp_path: Path
) -> None:
    client: Client = request.getfixturevalue("default_client" if keeps_singles else "entry_client")
    broker: Broker = request.getfixturevalue("default_broker" if keeps_singles else "entry_broker")
    name, runs, got = topic(), Runs(), []
    keep = client.subscribe(name, "keep")
    fill(client, name, range(30), batch=7)
    with AdminClient(broker.admin_url) as admin:
        for number, reset in enumerate([False, True, False, True, False, False]):
            if reset:
                admin.reset_cursor(name, "sub", MessageId.earliest)
            path = tmp_path / f"{number}.{kind}"
            consume(name, path, max_messages=10, subscription_type=shared).execute(runs.context(number))
            got.append([int(value) for value in _values(path)])
    keep.close()
    again = list(range(30))
    assert got == [again[:10], again[:10], again[10:20], again[:10], again[10:20], again[20:]]


def _values(path: Path) -> list[str]:
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        return [value.decode() for value in pq.read_table(path)["value"].to_pylist()]
    return texts(path)


@pytest.mark.proves("K9")
def test_default_broker_cuts_a_batch_exactly(default_client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, got = topic(), []
    fill(default_client, name, range(1000), batch=1000)
    for number, count in enumerate([10, 10, 980]):
        path = tmp_path / f"{number}.jsonl"
        manifest = consume(name, path, max_messages=10 if number < 2 else None).execute(context_of(f"run{number}"))
        assert manifest["count"] == count
        got += texts(path)
    assert got == [str(n) for n in range(1000)]


def test_next_run_skips_messages_of_the_last_one(
    airflow_home: Path, entry_client: Client, topic: NewTopic, tmp_path: Path
) -> None:
    name = topic()
    fill(entry_client, name, range(50), batch=50)
    dag = dag_in(
        airflow_home,
        "consume_cut_entries",
        f"""
        ConsumeBatchOperator(
            task_id="batch", topic={name!r}, subscription="sub", max_messages=20,
            path={str(tmp_path)!r} + "/{{{{ run_id }}}}.jsonl",
        )
        """,
    )
    runs = [dag.test() for _ in range(3)]
    assert [set(states_of(run).values()) for run in runs] == [{"success"}] * 3
    parts = [texts(tmp_path / f"{run.run_id}.jsonl") for run in runs]
    assert [len(part) for part in parts] == [20, 20, 10]
    assert [int(value) for part in parts for value in part] == list(range(50))
    # Cleared, a run pushes again what the others have to know.
    clear_and_run(dag, runs[0])
    assert xcom_of(runs[0], "batch", "consume_cut_entries_repeated")["entries"][name][0][2:4] == [
        f"{(1 << 20) - 1:x}",
        50,
    ]


def test_mapped_run_skips_messages_of_the_last_one(
    airflow_home: Path, entry_client: Client, topic: NewTopic, tmp_path: Path
) -> None:
    first, second = topic(), topic()
    for name in (first, second):
        fill(entry_client, name, range(10), batch=10)
    dag = dag_in(
        airflow_home,
        "consume_cut_mapped",
        f"""
        @task
        def topics(dag_run=None):
            return dag_run.conf["topics"]

        ConsumeBatchOperator.partial(
            task_id="batch", subscription="sub", max_messages=4,
            path={str(tmp_path)!r} + "/{{{{ run_id }}}}.{{{{ ti.map_index }}}}.jsonl",
        ).expand(topic=topics())
        """,
    )
    # A topic is added in front of the list, which gives the other one another index, and removed again.
    runs = [dag.test(run_conf={"topics": topics}) for topics in ([second], [first, second], [second])]
    assert [set(states_of(run).values()) for run in runs] == [{"success"}] * 3
    got = [[int(value) for value in texts(tmp_path / f"{run.run_id}.{index}.jsonl")]
           for run, index in zip(runs, (0, 1, 0), strict=True)]  # fmt: skip
    assert got == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_broker_acknowledging_entries_loses_none(entry_client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    fill(entry_client, name, range(30), batch=30)
    first = consume(name, tmp_path / "a.jsonl", max_messages=10).execute(context_of("a"))
    second = consume(name, tmp_path / "b.jsonl").execute(context_of("b"))
    # Nobody knows of the first run any more: its ten come again. At least once, never less.
    assert (first["count"], second["count"]) == (10, 30)
    assert consume(name, tmp_path / "c.jsonl").execute(context_of("c"))["count"] == 0


def test_default_broker_reads_a_lost_output_again(default_client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, path = topic(), tmp_path / "a.jsonl"
    fill(default_client, name, range(30), batch=7)
    consume(name, path, max_messages=10).execute(context_of())
    written = path.read_bytes()
    path.unlink()
    # The ledger is still open: what is acknowledged in it is not removed yet.
    consume(name, path, max_messages=10).execute(context_of())
    assert path.read_bytes() == written


def test_default_broker_names_trimmed_messages(
    default_broker: Broker, default_client: Client, topic: NewTopic, tmp_path: Path
) -> None:
    name, path = topic(), tmp_path / "a.jsonl"
    fill(default_client, name, range(5))
    consume(name, path).execute(context_of())
    path.unlink()
    wait_for_stored_acknowledgement(default_broker, name, "sub")
    # An unload closes the ledger, and everything in it is acknowledged.
    with AdminClient(default_broker.admin_url) as admin:
        admin.unload(name)
        fill(default_client, name, range(5, 6))
        admin.trim(name)
        _until_trimmed(admin, name)
    with pytest.raises(AirflowException, match=r"only copy of 5 .*retention policy"):
        consume(name, path).execute(context_of())


def _until_trimmed(admin: AdminClient, topic: str) -> None:
    import time

    deadline = time.monotonic() + 30
    while len(admin.internal_stats(topic)["ledgers"]) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_new_subscription_on_an_emptied_topic_warns(
    default_broker: Broker, default_client: Client, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    warned: list[str] = []
    fill(default_client, name, range(5))
    with AdminClient(default_broker.admin_url) as admin:
        admin.unload(name)
        default_client.create_producer(name).close()
        admin.trim(name)
        _until_trimmed(admin, name)
    operator = consume(name, tmp_path / "a.jsonl")
    monkeypatch.setattr(operator.log, "warning", lambda text, *more: warned.append(text % more))
    assert operator.execute(context_of())["count"] == 0
    warned = [each for each in warned if "Task Runner" not in each]
    assert len(warned) == 1 and "one that sub has acknowledged" in warned[0] and "retention policy" in warned[0]
