"""ConsumeBatchOperator with rolling part files: local and object storage, restored, repeated; XCom has the manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.io import attach
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import parquet

from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from pulsar_native import Client, InitialPosition
from support.brokers import NewTopic
from support.tasks import StateStore, context_of, dag_in, states_of, xcom_of

pytestmark = pytest.mark.usefixtures("pulsar_conn")


def published(client: Client, topic: str, count: int, size: int = 10) -> None:
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    producer = client.create_producer(topic, batching_max_messages=7, block_if_queue_full=True)
    for number in range(count):
        producer.send_async(b"%0*d" % (size, number), None)
    producer.flush()
    producer.close()


def consume(topic: str, path: str, **options: Any) -> ConsumeBatchOperator:
    return ConsumeBatchOperator(task_id="a_task", topic=topic, subscription="s", path=path, **options)


def numbers_in(files: list[dict[str, Any]]) -> list[int]:
    found: list[int] = []
    for each in files:
        path = ObjectStoragePath(each["path"])
        if each["path"].endswith(".parquet"):
            with path.open("rb") as file:
                values = [int(value) for value in parquet.read_table(file)["value"].to_pylist()]
        else:
            values = [int(json.loads(line)["value"]) for line in path.read_text().splitlines()]
        assert (len(values), path.stat().st_size) == (each["count"], each["size"])
        found += values
    return found


@pytest.mark.proves("A13")
@pytest.mark.parametrize("where", ["file", "memory"])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_parts_hold_the_batch_and_the_manifest_tells_them(
    ending: str, where: str, client: Client, topic: NewTopic, tmp_path: Path
) -> None:
    attach("memory", fs=MemoryFileSystem())
    name = topic()
    published(client, name, 100)
    folder = f"file://{tmp_path}" if where == "file" else f"memory://bucket/{tmp_path.name}"
    manifest = consume(name, f"{folder}/day.{ending}", max_messages_per_file=30).execute(context_of())
    assert [each["count"] for each in manifest["files"]] == [30, 30, 30, 10]
    assert [each["path"].rpartition("/")[2] for each in manifest["files"]] == [
        f"day.part-0000{number}.{ending}" for number in range(4)
    ]
    assert numbers_in(manifest["files"]) == list(range(100)) and manifest["count"] == 100
    # What goes to XCom does not grow with the payloads.
    assert len(json.dumps(manifest)) < 2_000


@pytest.mark.proves("A13")
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_parts_lost_are_written_again(ending: str, client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, store = topic(), StateStore()
    published(client, name, 50)
    task = consume(name, str(tmp_path / f"day.{ending}"), max_messages_per_file=20)
    first = task.execute(context_of(store=store))
    before = {each["path"]: Path(each["path"]).read_bytes() for each in first["files"]}
    published(client, name, 5)
    assert task.execute(context_of(store=store)) == first
    Path(first["files"][1]["path"]).unlink()
    Path(first["files"][2]["path"]).write_bytes(b"changed")
    assert task.execute(context_of(store=store)) == first
    assert {path: Path(path).read_bytes() for path in before} == before
    other = consume(name, str(tmp_path / f"day.{ending}"), max_messages_per_file=20)
    with pytest.raises(AirflowFailException, match="holds messages that another run"):
        other.execute(context_of("another_run"))


def test_parts_with_other_limits_replace_the_files(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name, store = topic(), StateStore()
    published(client, name, 50)
    path = str(tmp_path / "day.jsonl")
    consume(name, path, max_messages_per_file=10).execute(context_of(store=store))
    again = consume(name, path, max_messages_per_file=40).execute(context_of(store=store))
    assert [each["count"] for each in again["files"]] == [40, 10]
    assert sorted(each.name for each in tmp_path.glob("day.*")) == ["day.part-00000.jsonl", "day.part-00001.jsonl"]


def test_parts_end_by_size(client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    published(client, name, 30, size=1000)
    manifest = consume(name, str(tmp_path / "day.jsonl"), max_bytes_per_file=10_000).execute(context_of())
    assert all(10_000 <= each["size"] < 12_000 for each in manifest["files"][:-1]) and len(manifest["files"]) > 2
    assert numbers_in(manifest["files"]) == list(range(30))


def test_parts_in_a_dag_with_templates(airflow_home: Path, client: Client, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    published(client, name, 25)
    dag = dag_in(
        airflow_home,
        "consuming_parts",
        f"""
        ConsumeBatchOperator(
            task_id="consume", topic={name!r}, subscription="s", path="{tmp_path}/{{{{ run_id | length }}}}.parquet",
            max_messages_per_file=10, if_exists="append_part",
        )
        """,
    )
    run = dag.test()
    assert set(states_of(run).values()) == {"success"}
    files = xcom_of(run, "consume")["files"]
    assert numbers_in(files) == list(range(25)) and files[0]["path"].endswith("-00001.part-00000.parquet")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_messages_per_file": 0}, "max_messages_per_file must be a whole number of at least 1, not 0"),
        ({"max_bytes_per_file": "x"}, "max_bytes_per_file must be a whole number"),
        ({"max_bytes_per_file": 5, "path": None, "inline": True}, "max_bytes_per_file needs a path"),
    ],
)
def test_parts_wrong_limit_fails_when_parsed(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        consume("t", **{"path": "x", **options})
