"""The manifest of a load: its document, read back, and on a filesystem through Spark."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar import manifest as module
from pyspark_pulsar.manifest import Delivered, Document, Manifest
from pyspark_pulsar.offsets import Range
from pyspark_pulsar.positions import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = "persistent://public/default/t-partition-"
RANGES = [Range(f"{T}0", Position(3, 0), Position(4, 5, 2)), Range(f"{T}1", Position(0, 0), Position(0, 0))]
# A file of Hadoop: magic, version 0, bytes for each checksum (512), and the checksum of other bytes.
STALE_CHECKSUM = b"crc\x00\x00\x00\x02\x00" + bytes(4)
PLAN = Manifest({"source": {"topic": "t"}}, RANGES)


def test_plan_round_trip() -> None:
    found = Manifest.from_json(PLAN.to_json())
    assert found == PLAN
    assert not found.is_done and found.rows is None
    kept = replace(PLAN, columns={"type": "struct", "fields": []}, definition='{"type": "record"}')
    assert Manifest.from_json(kept.to_json()) == kept


def test_manifest_has_rows_and_ids_by_partition() -> None:
    delivered = {f"{T}0": Delivered(9, Position(3, 0), Position(4, 5, 1))}
    done = replace(PLAN, delivered=delivered, seconds=1.5, is_done=True)
    document = json.loads(done.to_json())
    assert (document["status"], document["rows"], document["seconds"]) == ("done", 9, 1.5)
    assert document["partitions"] == [
        {"topic": f"{T}0", "start": "3:0", "end": "4:5:2", "rows": 9, "first": "3:0", "last": "4:5:1"},
        {"topic": f"{T}1", "start": "0:0", "end": "0:0", "rows": 0, "first": None, "last": None},
    ]
    found = Manifest.from_json(done.to_json())
    assert found.is_done and found.ranges == RANGES and found.time == done.time
    assert found.delivered == delivered


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"partitions": [{"topic": "t"}]},
        {"partitions": None},
        {"written_at": "soon"},
        {"request": None},
        {"partitions": [{"topic": "t", "start": "x", "end": "1:2"}]},
    ],
)
def test_manifest_of_other_document_raises(change: dict[str, object]) -> None:
    document = {**json.loads(PLAN.to_json()), **change}
    with pytest.raises(InvalidConfiguration):
        Manifest.from_json(json.dumps(document))
    with pytest.raises(InvalidConfiguration, match="not the manifest of a load"):
        Manifest.from_json("{")


def test_manifest_write_replaces_whole_document(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "out.manifest.json"
    document = Document(spark, f"file://{place}")
    assert document.read() is None
    for text in ("first é\n", "second, and longer\n"):
        (tmp_path / f".{place.name}.crc").write_bytes(STALE_CHECKSUM)
        document.write(text)
        assert document.read() == text == place.read_text()
    assert not [name for name in tmp_path.iterdir() if "new" in name.name and not name.name.startswith(".")]


@pytest.mark.parametrize("kind", ["local", "no links", "rename", "store"])
def test_document_create_never_replaces(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = f"file://{tmp_path}"
    if kind in ("rename", "store"):
        conf = spark.sparkContext._jsc.hadoopConfiguration()
        conf.set(f"fs.viewfs.mounttable.{tmp_path.name}.link./at", folder)
        folder = f"viewfs://{tmp_path.name}/at"
    if kind == "store":
        monkeypatch.setattr(module, "_STORES", ("viewfs",))
    if kind == "no links":

        def refused(*_: object) -> None:
            raise PermissionError

        monkeypatch.setattr(module.os, "link", refused)
    document = Document(spark, f"{folder}/log/1.json")
    if kind in ("local", "no links"):
        (tmp_path / "log").mkdir()
        (tmp_path / "log" / ".1.json.crc").write_bytes(STALE_CHECKSUM)
    assert document.create("first é\n")
    assert not document.create("second\n")
    assert document.read() == "first é\n"
    assert [path.name for path in (tmp_path / "log").iterdir() if not path.name.endswith(".crc")] == ["1.json"]


def test_document_write_by_two_at_once_stays_whole(spark: SparkSession, tmp_path: Path) -> None:
    texts = ["a" * 20_000, "b" * 30_000]
    documents = [Document(spark, f"file://{tmp_path}/x.json") for _ in texts]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(15):
            list(pool.map(Document.write, documents, texts))
            assert documents[0].read() in texts
