"""The manifest of a load: its document, read back, and on a filesystem through Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar.manifest import Delivered, Document, Manifest
from pyspark_pulsar.offsets import Range
from pyspark_pulsar.positions import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = "persistent://public/default/t-partition-"
RANGES = [Range(f"{T}0", Position(3, 0), Position(4, 5, 2)), Range(f"{T}1", Position(0, 0), Position(0, 0))]
PLAN = Manifest({"source": {"topic": "t"}}, RANGES)


def test_plan_round_trip() -> None:
    found = Manifest.from_json(PLAN.to_json())
    assert found == PLAN
    assert not found.is_done and found.rows is None


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
        document.write(text)
        assert document.read() == text == place.read_text()
    assert not [name for name in tmp_path.iterdir() if "new" in name.name and not name.name.startswith(".")]
