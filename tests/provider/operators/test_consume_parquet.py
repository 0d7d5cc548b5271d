"""ConsumeBatchOperator into Parquet on the real broker: every row, exact bounds, and when the broker is told."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from pulsar_native import AdminClient, Client, ConsumerType, InitialPosition, Message, MessageId, arrow_schema
from pulsar_native.jobs import batch, consuming, formats
from support.brokers import NewTopic
from support.tasks import StateStore, context_of

pytestmark = pytest.mark.usefixtures("pulsar_conn")


def fill(client: Client, topic: str, start: int, stop: int, *, batch: int = 1000) -> None:
    """Publish numbers in entries of `batch` messages."""
    with client.create_producer(
        topic,
        batching_enabled=batch > 1,
        batching_max_messages=batch,
        batching_max_publish_delay_ms=5000,
    ) as producer:
        producer.send_many([b"%d" % number for number in range(start, stop)])


def consume(topic: str | list[str], path: Path, **options: Any) -> ConsumeBatchOperator:
    """Return the operator on the subscription "sub"."""
    options.setdefault("subscription", "sub")
    return ConsumeBatchOperator(task_id="a_task", topic=topic, path=str(path), **options)


def numbers(path: Path | str) -> list[int]:
    """Return the numbers in an output."""
    return [int(value) for value in pq.read_table(path)["value"].to_pylist()]


@pytest.mark.proves("N12")
def test_parquet_rows_are_the_messages(
    client: Client, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=2)
    with client.create_producer(name, batching_max_messages=7, batching_max_publish_delay_ms=20) as producer:
        for number in range(100):
            producer.send_async(
                None if number % 10 == 0 else b"%d" % number,
                None,
                partition_key=f"k{number % 5}" if number % 3 else None,
                properties={"n": str(number), "é": "ü"} if number % 2 else None,
                event_timestamp=1357016400123 + number,
            )
        producer.flush()
    published: list[Message] = []
    for partition in client.get_topic_partitions(name):
        with client.create_reader(partition, MessageId.earliest) as reader:
            while reader.has_message_available():
                published.append(reader.read_next(20_000))
    path = tmp_path / "a.parquet"

    def made(*_arguments: Any) -> None:
        pytest.fail("a message object was made")

    with monkeypatch.context() as patch:
        patch.setattr(Message, "__init__", made)
        manifest = consume(name, path).execute(context_of())
    json.dumps(manifest)
    assert (manifest["count"], manifest["stop_reason"], manifest["format"]) == (100, "end", "parquet")
    assert manifest["bytes"] == sum(map(len, published))
    table = pq.read_table(path)
    assert table.schema.equals(arrow_schema())
    rows = {row["__messageId"]: row for row in table.to_pylist()}
    assert len(rows) == table.num_rows == 100
    for message in published:
        row = rows[message.message_id().serialize()]
        assert row["value"] == (None if message.has_null_value() else message.data())
        assert row["__key"] == (message.key_bytes() if message.has_key() else None)
        assert dict(row["__messageProperties"]) == message.properties()
        assert round(row["__eventTime"].timestamp() * 1000) == message.event_timestamp()
        assert round(row["__publishTime"].timestamp() * 1000) == message.publish_timestamp()
        assert (row["__topic"], row["__partition"]) == (message.topic_name(), message.message_id().partition())
        assert (row["__sequenceId"], row["__producerName"]) == (message.sequence_id(), message.producer_name())
    for partition, part in manifest["partitions"].items():
        own = [message for message in published if message.topic_name() == partition]
        assert (part["count"], part["first"], part["last"]) == (
            len(own), str(own[0].message_id()), str(own[-1].message_id()),
        )  # fmt: skip


def test_parquet_rest_of_an_entry_is_next_batch(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    fill(client, name, 0, 1000)
    got: list[int] = []
    for run in range(3):
        path = tmp_path / f"{run}.parquet"
        manifest = consume(name, path, max_messages="10").execute(context_of(f"run{run}"))
        assert (manifest["count"], manifest["stop_reason"]) == (10, "max_messages")
        got += numbers(path)
    assert got == list(range(30))
    bounded = consume(name, tmp_path / "bytes.parquet", max_bytes=25).execute(context_of("bytes"))
    assert (bounded["count"], bounded["bytes"], bounded["stop_reason"]) == (12, 24, "max_bytes")
    alone = consume(name, tmp_path / "alone.parquet", max_bytes=1).execute(context_of("alone"))
    assert (alone["count"], alone["stop_reason"]) == (1, "max_bytes")
    # The other format goes on at the same place.
    one = consume(name, tmp_path / "one.jsonl", max_messages=1).execute(context_of("one"))
    assert (one["count"], one["format"]) == (1, "jsonl")
    assert json.loads((tmp_path / "one.jsonl").read_text())["value"] == "43"
    rest = consume(name, tmp_path / "rest.out", format="Parquet").execute(context_of("rest"))
    assert (rest["count"], rest["stop_reason"]) == (956, "end")
    assert numbers(tmp_path / "rest.out") == list(range(44, 1000))
    nothing = consume(name, tmp_path / "none.parquet").execute(context_of("none"))
    assert (nothing["count"], nothing["stop_reason"]) == (0, "end")
    # An empty file has its columns all the same.
    assert pq.read_table(tmp_path / "none.parquet").schema.equals(arrow_schema())


def test_parquet_end_of_each_topic_is_exact(
    client: Client, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pulsar_native import Consumer

    plain, parts, empty = topic(), topic(partitions=2), topic(partitions=1)
    fill(client, plain, 0, 20, batch=1)
    fill(client, f"{parts}-partition-0", 20, 40, batch=10)
    fill(client, f"{parts}-partition-1", 40, 3020, batch=10)
    # The end of one partition has come long before that of the other.
    monkeypatch.setattr(batch, "_MOST_ROWS", 100)
    real = Consumer.get_positions

    def then_more_comes(consumer: Consumer) -> Any:
        found = real(consumer)
        few = f"{parts}-partition-0" if consumer.topic() == parts else consumer.topic()
        fill(client, few, 5000, 5100, batch=1 if few == plain else 10)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Consumer, "get_positions", then_more_comes)
        manifest = consume([plain, parts, empty], tmp_path / "a.parquet").execute(context_of("a"))
    assert (manifest["stop_reason"], manifest["count"]) == ("end", 3020)
    assert sorted(numbers(tmp_path / "a.parquet")) == list(range(3020))
    manifest = consume([plain, parts, empty], tmp_path / "b.parquet").execute(context_of("b"))
    assert sorted(numbers(tmp_path / "b.parquet")) == sorted(list(range(5000, 5100)) * 3)


def test_parquet_time_and_idle_limits(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    fill(client, name, 0, 5, batch=1)
    timed = consume(name, tmp_path / "a.parquet", max_seconds=1, until_end=False).execute(context_of("a"))
    assert (timed["count"], timed["stop_reason"]) == (5, "max_seconds")
    held = topic()
    fill(client, held, 0, 5, batch=1)
    with client.subscribe(
        held, "sub", consumer_type=ConsumerType.Shared, initial_position=InitialPosition.Earliest
    ) as holder:
        holder.receive(5000)
        operator = consume(held, tmp_path / "b.parquet", subscription_type="Shared", idle_seconds=1)
        idle = operator.execute(context_of("b"))
    assert (idle["count"], idle["stop_reason"]) == (0, "idle")


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_parquet_acknowledges_after_the_file_is_durable(
    kind: str, client: Client, topic: NewTopic, tmp_path: Path, admin: AdminClient
) -> None:
    name = topic()
    fill(client, name, 0, 25, batch=10)
    path = tmp_path / "a.parquet"
    store = StateStore()
    seen: list[list[int]] = []

    def fails(manifest: Mapping[str, Any]) -> None:
        seen.append(numbers(manifest["path"]))
        raise RuntimeError("the step after consuming failed")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="after consuming"):
            consume(name, path, max_messages=15, process=fails, subscription_type=kind).execute(context_of(store=store))
    assert admin.stats(name, precise_backlog=True)["subscriptions"]["sub"]["msgBacklog"] == 3
    assert seen == [list(range(15))] * 2
    (tmp_path / "taken.parquet").mkdir()
    with pytest.raises(AirflowException, match="already"):
        consume(name, tmp_path / "taken.parquet", subscription_type=kind).execute(context_of("taken"))
    assert sorted(os.listdir(tmp_path)) == ["_a.parquet.manifest.json", "a.parquet", "taken.parquet"]
    consume(name, tmp_path / "b.parquet", subscription_type=kind).execute(context_of("next"))
    assert numbers(tmp_path / "b.parquet") == list(range(25))


@pytest.mark.parametrize("acknowledged", [False, True])
def test_parquet_killed_after_file_gives_each_once(
    acknowledged: bool, client: Client, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    fill(client, name, 0, 100, batch=30)
    store, path = StateStore(), tmp_path / "a.parquet"
    real = consuming.acknowledge

    def dies(*args: Any) -> None:
        if acknowledged:
            real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(consuming, "acknowledge", dies)
    with pytest.raises(KeyboardInterrupt):
        consume(name, path, max_messages=45).execute(context_of(store=store))
    monkeypatch.setattr(consuming, "acknowledge", real)
    written = path.read_bytes()
    # The note is small, and can be kept as JSON.
    assert len(json.dumps(store)) < 5000
    again = consume(name, path, max_messages=45).execute(context_of(store=store))
    assert again["count"] == 45 and path.read_bytes() == written
    consume(name, tmp_path / "b.parquet").execute(context_of("next"))
    assert numbers(path) + numbers(tmp_path / "b.parquet") == list(range(100))


def test_parquet_row_groups_are_written_early(
    client: Client, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "_GROUP_ROWS", 100)
    monkeypatch.setattr(batch, "_MOST_ROWS", 60)
    name = topic()
    fill(client, name, 0, 250, batch=40)
    consume(name, tmp_path / "a.parquet").execute(context_of())
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == [120, 120, 10]
    assert numbers(tmp_path / "a.parquet") == list(range(250))


def test_parquet_writes_to_object_storage(client: Client, topic: NewTopic) -> None:
    from airflow.sdk import ObjectStoragePath
    from airflow.sdk.io import attach
    from fsspec.implementations.memory import MemoryFileSystem

    attach("memory", fs=MemoryFileSystem())
    name = topic()
    fill(client, name, 0, 3)
    path = f"memory://bucket/{name.rpartition('/')[2]}.parquet"
    ConsumeBatchOperator(task_id="a_task", topic=name, subscription="sub", path=path).execute(context_of())
    with ObjectStoragePath(path).open("rb") as file:
        assert pq.read_table(file)["value"].to_pylist() == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "a.parquet", "decode": "json"}, "decode"),
        ({"path": "a.parquet", "decode": "auto"}, "decode"),
        ({"path": "a.parquet", "inline": True}, "inline"),
        ({"inline": True, "format": "parquet"}, "path"),
        ({"path": "a.parquet", "format": "orc"}, "format"),
        ({"path": "a.PARQUET", "decode": "text"}, "decode"),
    ],
)
def test_parquet_contradicting_arguments_raise(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ConsumeBatchOperator(task_id="a_task", topic="t", subscription="sub", **options)


def test_parquet_wrong_templates_raise_before_subscribing() -> None:
    operator = ConsumeBatchOperator(
        task_id="a_task", topic="t", subscription="sub", path="{{ params.path }}", decode="json"
    )
    operator.path = "a.parquet"
    with pytest.raises(ValueError, match="decode"):
        operator.execute(context_of())


def test_parquet_killed_returns_the_messages(
    client: Client, topic: NewTopic, tmp_path: Path, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A part of the file is written by then.
    monkeypatch.setattr(formats, "_GROUP_ROWS", 1)
    name = topic()
    fill(client, name, 0, 30, batch=10)
    store = StateStore()
    operator = consume(name, tmp_path / "a.parquet", until_end=False, max_seconds=60)
    killer = threading.Timer(2, operator.on_kill)
    killer.start()
    started = time.monotonic()
    with pytest.raises(AirflowException):
        operator.execute(context_of(store=store))
    assert time.monotonic() - started < 30
    assert os.listdir(tmp_path) == []
    assert admin.stats(name, precise_backlog=True)["subscriptions"]["sub"]["msgBacklog"] == 3
    consume(name, tmp_path / "a.parquet").execute(context_of(store=store))
    assert numbers(tmp_path / "a.parquet") == list(range(30))
