"""ConsumeBatchOperator over the lives of its run: retried, cleared, forgotten, with its output lost or in the way."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.sdk import NEVER_EXPIRE
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from pulsar_native import AdminClient, Client, Consumer, ConsumerType, InitialPosition, Reader, Timeout
from pulsar_native.jobs import busy, consuming, formats
from support.brokers import Broker, NewTopic
from support.consuming import beside, consume, fill, lines, texts
from support.cursors import wait_for_stored_acknowledgement
from support.tasks import StateStore, context_of
from support.until import wait_until

pytestmark = pytest.mark.usefixtures("pulsar_conn")
KINDS = ["jsonl", "parquet"]


def values(path: Path) -> list[str]:
    """Return the values of an output of either format."""
    if path.suffix == ".parquet":
        return [value.decode() for value in pq.read_table(path)["value"].to_pylist()]
    return texts(path)


class ExpiryStore(StateStore):
    """A state store that remembers how long its values are kept."""

    retention: Any = None

    def set(self, key: str, value: Any, **options: Any) -> None:
        """Keep a value."""
        super().set(key, json.loads(json.dumps(value)), **options)
        self.retention = options.get("retention")


# ---- the run keeps its batch -----------------------------------------------------------------------------------------


@pytest.mark.proves("A12")
@pytest.mark.parametrize("kind", KINDS)
def test_clear_without_state_keeps_the_batch(kind: str, client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, path = topic(partitions=2), tmp_path / f"a.{kind}"
    fill(client, name, range(40), batch=7)
    first = consume(name, path, max_messages=25).execute(context_of())
    written = path.read_bytes()
    # Expired, cleared on success, or the run was deleted and made again: in all cases the store is empty.
    again = consume(name, path, max_messages=25).execute(context_of())
    assert again == first and path.read_bytes() == written
    rest = consume(name, tmp_path / f"b.{kind}").execute(context_of("next"))
    assert rest["count"] == 15
    assert sorted(values(path) + values(tmp_path / f"b.{kind}"), key=int) == [str(n) for n in range(40)]


@pytest.mark.parametrize("needs", ["acknowledgement", "output", "nothing"])
def test_batch_of_another_cluster_is_not_touched(
    needs: str, broker: Broker, connection: Callable[..., str], client: Client, topic: NewTopic, tmp_path: Path,
    monkeypatch: Any,
) -> None:  # fmt: skip
    """Another name of the host stands for another cluster, in which the ids are by chance those of other messages."""
    name, path, store = topic(), tmp_path / "a.jsonl", StateStore()
    fill(client, name, range(8), batch=1)
    keep = client.subscribe(name, "keep")
    if needs == "acknowledgement":
        with monkeypatch.context() as patch:
            patch.setattr(consuming, "acknowledge", _lose_connection)
            with pytest.raises(AirflowException, match="connection lost"):
                consume(name, path, max_messages=5).execute(context_of(store=store))
    else:
        consume(name, path, max_messages=5).execute(context_of(store=store))
    here, there = broker.service_url, broker.service_url.replace("127.0.0.1", "localhost")
    connection(service_url=there)
    if needs == "output":
        path.unlink()
    if needs == "nothing":
        assert consume(name, path, max_messages=5).execute(context_of(store=store))["count"] == 5
    else:
        with pytest.raises(AirflowFailException, match=f"5 messages is of {here}, .* connected to {there}: nothing is"):
            consume(name, path, max_messages=5).execute(context_of(store=store))
        with client.subscribe(name, "sub") as rest:
            assert rest.receive(10_000).data() == (b"0" if needs == "acknowledgement" else b"5")
    # Back there, the run goes on with its batch.
    connection(service_url=here)
    assert consume(name, path, max_messages=5).execute(context_of(store=store))["count"] == 5
    assert texts(path) == [str(n) for n in range(5)]
    assert [*texts_of_rest(client, name)] == ["5", "6", "7"]
    keep.close()


def _lose_connection(*_: object) -> None:
    raise OSError("connection lost")


def texts_of_rest(client: Client, name: str) -> list[str]:
    """Return the messages that the subscription has left."""
    with client.subscribe(name, "sub") as rest:
        return [rest.receive(10_000).data().decode() for _ in range(3)]


def test_note_without_cluster_is_read(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    """Notes of the versions before do not tell."""
    name, path, store = topic(), tmp_path / "a.jsonl", StateStore()
    fill(client, name, range(3))
    first = consume(name, path).execute(context_of(store=store))
    manifest = beside(path)
    for note in (store["consumed"], manifest):
        del note["cluster"]
    path.with_name("_a.jsonl.manifest.json").write_text(json.dumps(manifest))
    assert consume(name, path).execute(context_of(store=store)) == first


@pytest.mark.parametrize("count", [0, 3])
def test_batch_of_topic_created_again_fails(
    count: int, client: Client, topic: NewTopic, admin: AdminClient, tmp_path: Path
) -> None:
    name, path, store = topic(), tmp_path / "a.jsonl", StateStore()
    fill(client, name, range(count))
    first = consume(name, path).execute(context_of(store=store))
    # A run that is deleted has its note beside the output only.
    for kept in (store, StateStore()):
        # While the topic is gone nothing tells that it will be another one.
        admin.delete_topic(name, force=True)
        assert consume(name, path).execute(context_of(store=kept)) == first
        fill(client, name, ["new"])
        with pytest.raises(AirflowFailException, match=f"{count} messages before, and {name} was deleted and created"):
            consume(name, path).execute(context_of(store=kept))
    # What the error says: another batch for the run.
    path.unlink()
    path.with_name("_a.jsonl.manifest.json").unlink()
    assert consume(name, path).execute(context_of(store=StateStore()))["count"] == 1 and texts(path) == ["new"]


def test_batch_of_trimmed_topic_is_kept(
    client: Client, broker: Broker, admin: AdminClient, namespace: Callable[[], str], tmp_path: Path
) -> None:
    """All ledgers of the topic are newer than the batch, as those of a topic that was created again."""
    # Deduplication and retention would hold the old ledger.
    space = namespace()
    broker.admin("POST", f"namespaces/{space}/deduplication", False)
    broker.admin("POST", f"namespaces/{space}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    name, path, store = f"persistent://{space}/t", tmp_path / "a.jsonl", StateStore()
    client.subscribe(name, "sub", initial_position=InitialPosition.Earliest).close()
    fill(client, name, range(3))
    first = consume(name, path).execute(context_of(store=store))
    old = admin.internal_stats(name)["ledgers"][0]["ledgerId"]
    # Without its acknowledgements, the subscription would hold the old ledger.
    wait_for_stored_acknowledgement(broker, name, "sub")
    admin.unload(name)
    fill(client, name, ["later"])

    def trimmed() -> bool:
        broker.admin("POST", f"persistent/{space}/t/trim")
        return bool(admin.internal_stats(name)["ledgers"][0]["ledgerId"] > old)

    wait_until(trimmed)
    assert first["count"] == 3 and consume(name, path).execute(context_of(store=store)) == first


def test_note_never_expires(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, store = topic(), ExpiryStore()
    fill(client, name, range(3))
    consume(name, tmp_path / "a.jsonl").execute(context_of(store=store))
    assert store.retention is NEVER_EXPIRE
    assert store["consumed"]["state"] == beside(tmp_path / "a.jsonl")["state"] == "acknowledged"


@pytest.mark.proves("A12")
@pytest.mark.parametrize("keeps_state", [True, False])
@pytest.mark.parametrize("harm", ["removed", "changed"])
@pytest.mark.parametrize("kind", KINDS)
def test_lost_output_is_read_again(
    kind: str, harm: str, keeps_state: bool, client: Client, topic: NewTopic, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(formats, "_CHUNK_LINES", 50)
    monkeypatch.setattr(formats, "_GROUP_ROWS", 50)
    name, path, store = topic(partitions=3), tmp_path / f"a.{kind}", StateStore()
    fill(client, name, range(50), batch=1)
    fill(client, name, range(50, 400), batch=9, properties={"a": "b"}, event_timestamp=1357016400123)
    first = consume(name, path, max_messages=333).execute(context_of(store=store))
    written = path.read_bytes()
    table = pq.read_table(path) if kind == "parquet" else None
    if harm == "removed":
        path.unlink()
    else:
        path.write_bytes(written[:50] + bytes([written[50] ^ 1]) + written[51:])
    again = consume(name, path, max_messages=333).execute(context_of(store=store if keeps_state else None))
    assert again == first and first["count"] == 333
    if table is None:
        assert path.read_bytes() == written
    else:
        assert pq.read_table(path).equals(table)
    # The note knows the new content: nothing is read again the next time.
    monkeypatch.setattr(Reader, "read_next", None)
    monkeypatch.setattr(Reader, "arrow_batches", None)
    consume(name, path, max_messages=333).execute(context_of(store=store))


@pytest.mark.proves("A12")
def test_shared_batch_is_read_again_as_it_was(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, path = topic(), tmp_path / "a.jsonl"
    fill(client, name, range(100), batch=10)
    holder = client.subscribe(name, "sub", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
    # What another consumer holds, and gives back, comes out of order.
    held = [holder.receive(5000) for _ in range(100)]
    for message in held[::3]:
        holder.acknowledge(message)
    holder.close()
    first = consume(name, path, subscription_type="Shared", max_messages=50).execute(context_of())
    written = path.read_bytes()
    path.unlink()
    assert consume(name, path, subscription_type="Shared", max_messages=50).execute(context_of()) == first
    assert path.read_bytes() == written and len(texts(path)) == 50


def test_chunked_messages_are_read_again(client: Client, topic: NewTopic, tmp_path: Path, admin: AdminClient) -> None:
    name = topic()
    with client.create_producer(name, chunking_enabled=True, chunk_max_message_size=1000) as producer:
        for number in range(3):
            producer.send(b"%d" % number * 4000)
            producer.send(b"small")
    for kind in KINDS:
        path = tmp_path / f"a.{kind}"
        consume(name, path, subscription=kind).execute(context_of(kind))
        written, got = path.read_bytes(), values(path)
        assert sorted(map(len, got)) == [5, 5, 5, 4000, 4000, 4000]
        path.unlink()
        consume(name, path, subscription=kind).execute(context_of(kind))
        assert values(path) == got and (kind == "parquet" or path.read_bytes() == written)
        assert admin.stats(name, precise_backlog=True)["subscriptions"][kind]["msgBacklog"] == 0


@pytest.mark.proves("A12")
@pytest.mark.parametrize("kind", KINDS)
def test_lost_output_of_lost_messages_fails(
    kind: str, client: Client, topic: NewTopic, tmp_path: Path, admin: AdminClient
) -> None:
    name, path = topic(), tmp_path / f"a.{kind}"
    fill(client, name, range(5))
    consume(name, path).execute(context_of())
    path.unlink()
    admin.unload(name)
    admin.delete_topic(name, force=True)
    fill(client, name, range(5, 10))
    with pytest.raises(AirflowFailException, match=r"(?s)only copy of 5 .*\d+:0 of .*remove .*_a\..*'consumed'"):
        consume(name, path).execute(context_of())
    assert not path.exists()
    admin.delete_topic(name, force=True)
    with pytest.raises(AirflowFailException, match="no longer there"):
        consume(name, path).execute(context_of())
    # The advice of the error: give the batch up.
    fill(client, name, range(10, 12))
    (tmp_path / f"_a.{kind}.manifest.json").unlink()
    assert consume(name, path).execute(context_of())["count"] == 2


def test_changed_path_moves_the_batch(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, store = topic(), StateStore()
    fill(client, name, range(20), batch=6)
    consume(name, tmp_path / "a.jsonl", max_messages=10).execute(context_of(store=store))
    moved = consume(name, tmp_path / "b.parquet", max_messages=10).execute(context_of(store=store))
    assert (moved["path"], moved["format"], moved["count"]) == (f"{tmp_path}/b.parquet", "parquet", 10)
    assert values(tmp_path / "a.jsonl") == values(tmp_path / "b.parquet") == [str(n) for n in range(10)]
    assert consume(name, tmp_path / "b.parquet").execute(context_of(store=store)) == moved


def test_changed_decode_writes_the_batch_anew(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, path, store = topic(), tmp_path / "a.jsonl", StateStore()
    fill(client, name, ['{"a": 1}'])
    consume(name, path).execute(context_of(store=store))
    consume(name, path, decode="json").execute(context_of(store=store))
    assert lines(path)[0]["value"] == {"a": 1}


def test_inline_result_is_kept_by_the_state(client: Client, topic: NewTopic) -> None:
    name, store = topic(), StateStore()
    fill(client, name, range(5))
    first = consume(name, inline=True, max_messages=3).execute(context_of(store=store))
    assert consume(name, inline=True, max_messages=3).execute(context_of(store=store)) == first
    assert [each["value"] for each in first["messages"]] == ["0", "1", "2"]


# ---- outputs in the way ----------------------------------------------------------------------------------------------


def test_existing_output_fails_before_receiving(
    client: Client, topic: NewTopic, tmp_path: Path, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, path = topic(), tmp_path / "a.jsonl"
    fill(client, name, range(20), batch=1)
    consume(name, path, max_messages=10).execute(context_of("one"))
    written = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Client, "subscribe", None)
        with pytest.raises(AirflowFailException, match=r"run_id one.* has acknowledged.*append_part"):
            consume(name, path).execute(context_of("two"))
        path.unlink()
        # The messages are acknowledged and their file is gone: its manifest still stands for them.
        with pytest.raises(AirflowFailException, match="run_id one"):
            consume(name, path).execute(context_of("two"))
        (tmp_path / "b.jsonl").write_text("of somebody else")
        with pytest.raises(AirflowFailException, match="not of this run"):
            consume(name, tmp_path / "b.jsonl").execute(context_of("two"))
    assert (tmp_path / "b.jsonl").read_text() == "of somebody else"
    consume(name, path, max_messages=10).execute(context_of("one"))
    assert path.read_bytes() == written
    assert admin.stats(name, precise_backlog=True)["subscriptions"]["sub"]["msgBacklog"] == 10


def test_batch_of_another_source_is_kept(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    """The list of a mapped task, or a template, has changed when the run is cleared."""
    name, other = topic(), topic()
    fill(client, name, range(5))
    fill(client, other, range(5))
    outputs: list[dict[str, Any]] = [{"path": tmp_path / "a.jsonl", "if_exists": "overwrite"}, {"inline": True}]
    for number, options in enumerate(outputs):
        store, sub = StateStore(), f"sub{number}"
        context = context_of(store=store)
        first = consume(name, subscription=sub, **options).execute(context)
        with pytest.raises(AirflowFailException, match=f"5 messages of {name} as {sub} before.* for {other} as {sub}"):
            consume(other, subscription=sub, **options).execute(context)
        assert consume(name, subscription=sub, **options).execute(context) == first
    assert len(texts(tmp_path / "a.jsonl")) == 5


def test_other_deployment_is_another_run(
    broker: Broker, connection: Callable[..., str], client: Client, topic: NewTopic, tmp_path: Path
) -> None:
    name, path = topic(), tmp_path / "a.jsonl"
    fill(client, name, range(10), batch=1)
    for deployment in ("staging", "production"):
        connection(f"pulsar_{deployment}", service_url=broker.service_url, deployment_id=deployment)
    first = consume(name, path, max_messages=5, pulsar_conn_id="pulsar_staging").execute(context_of())
    # The same DAG, task and run there: it must not take staging's output for its own.
    with pytest.raises(AirflowFailException, match="deployment_id staging"):
        consume(name, path, pulsar_conn_id="pulsar_production").execute(context_of())
    other = consume(name, tmp_path / "b.jsonl", pulsar_conn_id="pulsar_production").execute(context_of())
    assert (first["count"], other["count"]) == (5, 5)
    assert texts(path) + texts(tmp_path / "b.jsonl") == [str(n) for n in range(10)]


def test_overwrite_replaces_what_is_there(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, path = topic(), tmp_path / "a.jsonl"
    fill(client, name, range(20), batch=1)
    for run in range(2):
        consume(name, path, max_messages=10, if_exists="overwrite").execute(context_of(f"run{run}"))
    assert texts(path) == [str(n) for n in range(10, 20)]


@pytest.mark.parametrize("kind", KINDS)
def test_append_part_takes_the_next_number(kind: str, client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, path = topic(), tmp_path / f"a.{kind}"
    fill(client, name, range(30), batch=1)
    options: dict[str, Any] = {"max_messages": 10, "if_exists": "append_part"}
    first = consume(name, path, **options).execute(context_of("run1"))
    (tmp_path / f"a-00002.{kind}").write_text("of somebody else")
    second = consume(name, path, **options).execute(context_of("run2"))
    assert [first["path"], second["path"]] == [f"{tmp_path}/a-00001.{kind}", f"{tmp_path}/a-00003.{kind}"]
    # A cleared run finds its own part, with its file and without it.
    assert consume(name, path, **options).execute(context_of("run1")) == first
    (tmp_path / f"a-00001.{kind}").unlink()
    assert consume(name, path, **options).execute(context_of("run1")) == first
    third = consume(name, path, **options).execute(context_of("run3"))
    parts = [values(Path(each["path"])) for each in (first, second, third)]
    assert [int(value) for part in parts for value in part] == list(range(30))


def test_two_runs_at_once_do_not_share_a_path(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, path = topic(), tmp_path / "a.jsonl"
    fill(client, name, range(10))
    refused: list[str] = []

    def meanwhile(manifest: Mapping[str, Any]) -> None:
        with pytest.raises(AirflowFailException, match="being written by another run") as error:
            consume(name, path, subscription="other").execute(context_of("two"))
        refused.append(str(error.value))

    consume(name, path, process=meanwhile).execute(context_of("one"))
    assert len(refused) == 1 and len(texts(path)) == 10


def test_try_without_its_output_acknowledges_nothing(
    client: Client, topic: NewTopic, tmp_path: Path, admin: AdminClient
) -> None:
    name, path = topic(), tmp_path / "a.jsonl"
    fill(client, name, range(10))

    def another_try(manifest: Mapping[str, Any]) -> None:
        # Airflow took this worker for dead and has begun another try elsewhere, through another subscription here.
        consume(name, path, subscription="other").execute(context_of())

    with pytest.raises(AirflowException, match="taken over"):
        consume(name, path, process=another_try).execute(context_of())
    assert admin.stats(name, precise_backlog=True)["subscriptions"]["sub"]["msgBacklog"] == 1
    assert len(texts(path)) == 10


def test_failed_try_leaves_no_claim(client: Client, topic: NewTopic, tmp_path: Path, monkeypatch: Any) -> None:
    name, path = topic(), tmp_path / "a.jsonl"
    fill(client, name, ["no json"])
    with pytest.raises(AirflowException, match="not JSON"):
        consume(name, path, decode="json").execute(context_of("one"))
    assert os.listdir(tmp_path) == []
    # A worker that was killed has left its claim, and what it had written so far.
    with monkeypatch.context() as patch:
        patch.setattr("pulsar_native.jobs.batch_output.BatchOutput.release", lambda self: None)
        patch.setattr("pulsar_native.jobs.output.AtomicFile.discard", lambda self: None)
        with pytest.raises(AirflowException, match="not JSON"):
            consume(name, path, decode="json").execute(context_of("one"))
    assert len(os.listdir(tmp_path)) == 2
    with pytest.raises(AirflowFailException, match="left by it before anything was acknowledged"):
        consume(name, path).execute(context_of("two"))
    consume(name, path).execute(context_of("one"))
    assert sorted(os.listdir(tmp_path)) == ["_a.jsonl.manifest.json", "a.jsonl"]


# ---- acknowledging ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("A11")
def test_refused_acknowledgement_fails_and_is_repeated(
    client: Client, topic: NewTopic, tmp_path: Path, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, path, store = topic(), tmp_path / "a.jsonl", StateStore()
    fill(client, name, range(10), batch=1)

    def refuse(self: Consumer, *_: object) -> None:
        raise Timeout("no receipt")

    with monkeypatch.context() as patch:
        patch.setattr(Consumer, "acknowledge", refuse)
        with pytest.raises(AirflowException, match="stage 'acknowledge': Timeout"):
            consume(name, path).execute(context_of(store=store))
    assert store["consumed"]["state"] == beside(path)["state"] == "consumed"
    fill(client, name, ["later"])
    again = consume(name, path).execute(context_of(store=store))
    assert again["count"] == 10 and len(texts(path)) == 10
    assert admin.stats(name, precise_backlog=True)["subscriptions"]["sub"]["msgBacklog"] == 1


def test_acknowledgements_wait_for_receipts(client: Client, topic: NewTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    real = Client.subscribe

    def subscribe(self: Client, *arguments: Any, **options: Any) -> Consumer:
        seen.append(options)
        return real(self, *arguments, **options)

    monkeypatch.setattr(Client, "subscribe", subscribe)
    name = topic()
    fill(client, name, range(3))
    consume(name, inline=True).execute(context_of("a_run", try_number=2))
    assert seen[0]["ack_receipt_enabled"] is True
    assert seen[0]["consumer_name"] == "airflow/tests/a_dag/a_task/-1/a_run"
    assert seen[0]["properties"] == {
        "airflow.dag_id": "a_dag",
        "airflow.task_id": "a_task",
        "airflow.run_id": "a_run",
        "airflow.map_index": "-1",
        "airflow.deployment_id": "tests",
    }


def test_consumer_of_an_earlier_try_is_waited_for(
    client: Client, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    name = topic()
    fill(client, name, range(3))
    earlier = client.subscribe(name, "sub", initial_position=InitialPosition.Earliest)
    leaving = threading.Timer(2, earlier.close)
    leaving.start()
    try:
        assert consume(name, tmp_path / "a.jsonl").execute(context_of("a"))["count"] == 3
    finally:
        leaving.join()
    monkeypatch.setattr(busy, "BUSY_SECONDS", 1.0)
    with client.subscribe(name, "sub"), pytest.raises(AirflowException, match=r"ConsumerBusy.*subscription_type"):
        consume(name, tmp_path / "b.jsonl").execute(context_of("b"))


# ---- process ---------------------------------------------------------------------------------------------------------


def test_process_runs_again_on_a_cleared_run(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, store = topic(), StateStore()
    fill(client, name, range(3))
    seen: list[Any] = []

    def process(manifest: Mapping[str, Any], run_id: str, **context: Any) -> None:
        seen.append((manifest["count"], run_id, context["ti"].task_id))

    for _ in range(2):
        consume(name, tmp_path / "a.jsonl", process=process).execute(context_of(store=store))
    assert seen == [(3, "a_run", "a_task")] * 2
    consume(name, tmp_path / "a.jsonl", process=process, process_once=True).execute(context_of(store=store))
    assert len(seen) == 2


@pytest.mark.parametrize(
    "process",
    [lambda anything: anything["count"], lambda m, ti, run_id=None: ti.task_id + run_id, lambda *, manifest: manifest],
)
def test_process_takes_manifest_and_context(process: Any, client: Client, topic: NewTopic) -> None:
    name = topic()
    fill(client, name, range(3))
    assert consume(name, inline=True, process=process).execute(context_of())["count"] == 3


def test_process_error_of_a_repeated_run_fails_it(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, path, store = topic(), tmp_path / "a.jsonl", StateStore()
    fill(client, name, range(3))
    consume(name, path).execute(context_of(store=store))

    def fails(manifest: object) -> None:
        raise OSError("the step failed")

    with pytest.raises(OSError, match=re.escape("the step failed")):
        consume(name, path, process=fails).execute(context_of(store=store))
    assert len(texts(path)) == 3


def test_failed_try_reports_what_it_had(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    fill(client, name, ['{"a": 1}', "no json"], batch=1)
    context = context_of()
    with pytest.raises(AirflowException, match="not JSON"):
        consume(name, tmp_path / "a.jsonl", decode="json").execute(context)
    report = context["ti"].xcoms["consume_failure"]
    assert (report["stage"], report["count"], report["acknowledged"]) == ("receive", 1, "nothing")
    assert report["errors"]["count"] == 1 and "not JSON" in report["error"]
