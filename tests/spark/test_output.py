"""The Parquet of a load: staged out of sight, counted, and put in place of what was there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_pulsar import output as module
from pyspark_pulsar.output import Output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rows(spark: SparkSession, *places: tuple[str, int, int, int]) -> DataFrame:
    """Return rows with the identities given: topic, ledger, entry and batch index."""
    return spark.createDataFrame(list(places), "__topic STRING, __ledgerId LONG, __entryId LONG, __batchIndex INT")


@pytest.mark.parametrize(("by_jvm", "seconds"), [(False, -1.0), (True, 2.0), (True, -1.0)], ids=["local", "jvm", "job"])
def test_output_counts_rows_on_disk(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_jvm: bool, seconds: float
) -> None:
    monkeypatch.setattr(module, "_FOOTER_SECONDS", seconds)
    if by_jvm:
        monkeypatch.setattr(Output, "_count_local", lambda output: None)
    output = Output(spark, f"file://{tmp_path}/table/day=1")
    frame = rows(spark, ("t", 9, 1, -1), ("t", 10, 0, 0), ("t", 10, 0, 11), ("t", 10, 0, 2), ("u", 3, 4, -1))
    output.write(frame.repartition(3), ["__ledgerId"])
    assert output.count_rows() == 5
    removed = next(tmp_path.rglob("__ledgerId=3/*.parquet"))
    removed.unlink()
    assert output.count_rows() == 4


def test_output_with_cut_off_file_raises(spark: SparkSession, tmp_path: Path) -> None:
    output = Output(spark, f"file://{tmp_path}/out")
    output.write(rows(spark, ("t", 1, 0, -1), ("t", 1, 1, -1)), [])
    file = next(tmp_path.rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(Exception, match="Checksum error"):
        output.count_rows()


def test_output_is_replaced_when_published(spark: SparkSession, tmp_path: Path) -> None:
    table, path = f"file://{tmp_path}/table", f"file://{tmp_path}/table/day=1"
    output = Output(spark, path)
    output.write(rows(spark, ("t", 1, 0, -1), ("t", 1, 1, -1)), ["__entryId"])
    assert list((tmp_path / "table").glob("day=*")) == []
    output.publish()
    Path(tmp_path / "table" / ".day=1.manifest.json").write_text("{}")
    assert sorted(row["__entryId"] for row in spark.read.parquet(table).collect()) == [0, 1]
    again = Output(spark, path)
    again.write(rows(spark, ("t", 2, 7, -1)), ["__entryId"])
    assert sorted(row["__entryId"] for row in spark.read.parquet(table).collect()) == [0, 1], "staging is not seen"
    again.publish()
    (left,) = spark.read.parquet(table).collect()
    assert (left["__ledgerId"], left["__entryId"], left["day"]) == (2, 7, 1)


def test_output_failed_write_leaves_place_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    path = f"file://{tmp_path}/out"
    output = Output(spark, path)
    output.write(rows(spark, ("t", 1, 0, -1)), [])
    output.publish()
    bad = rows(spark, ("t", 1, 0, -1)).selectExpr("*", "CAST(raise_error('no') AS STRING) AS x")
    with pytest.raises(Exception, match="no"):
        output.write(bad, [])
    assert [row["__ledgerId"] for row in spark.read.parquet(path).collect()] == [1]
    output.write(rows(spark, ("t", 5, 0, -1)), [])
    output.publish()
    assert [row["__ledgerId"] for row in spark.read.parquet(path).collect()] == [5]
