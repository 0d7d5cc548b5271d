"""The Parquet of a load: staged out of sight, counted, and put in place of what was there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

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


def staged(spark: SparkSession, place: Path, name: str) -> Output:
    """Return an output at a path with one staged file of a name."""
    output = Output(spark, f"file://{place}")
    folder = Path(output.staging.removeprefix("file:"))
    folder.mkdir(parents=True)
    (folder / name).touch()
    return output


def names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def test_publish_by_two_at_once_leaves_one_whole(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(15):
        place = tmp_path / f"{number}" / "out"
        place.mkdir(parents=True)
        for index in range(100):
            (place / f"old-{index}").touch()
        outputs = [staged(spark, place, f"new-{index}") for index in range(2)]
        both = Barrier(2)

        def publish(output: Output, both: Barrier = both) -> str | None:
            both.wait(30)
            try:
                return output.publish()
            except OSError as error:
                return str(error)

        with ThreadPoolExecutor(2) as pool:
            failed = [text for text in pool.map(publish, outputs) if text is not None]
        assert len(failed) < 2 and all("let one run at a time load into a path" in text for text in failed)
        assert names(place) in (["new-0"], ["new-1"])


class OvertakenFiles:
    """Filesystem on which another load publishes right before a rename to the output path."""

    def __init__(self, files: Any, place: Path) -> None:
        self._files, self._place = files, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def rename(self, source: Any, target: Any) -> bool:
        """Rename, as Hadoop does: into a folder that has the name."""
        if target.getName() == self._place.name:
            self._place.mkdir()
            (self._place / "other").touch()
        return bool(self._files.rename(source, target))


def test_publish_into_new_output_of_other_load_raises(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Output, "is_local", False)
    place = tmp_path / "out"
    output = staged(spark, place, "new")
    output._files = OvertakenFiles(output._files, place)
    with pytest.raises(OSError, match=r"could not be renamed .* another load into it ended at the same time"):
        output.publish()
    assert names(place) == ["other"]
    assert names(Path(output.staging.removeprefix("file:"))) == ["new"]


@pytest.mark.parametrize("is_local", [True, False], ids=["local", "hadoop"])
def test_publish_failed_rename_puts_old_output_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    place = tmp_path / "out"
    staged(spark, place, "old").publish()
    output = staged(spark, place, "new")
    rename: Callable[..., bool] = Output._rename

    def refused(self: Output, source: Any, target: Any) -> bool:
        if source is self._staging:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return rename(self, source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Output, "is_local", is_local)
        patch.setattr(Output, "_rename", refused)
        with pytest.raises(PermissionError):
            output.publish()
    assert names(place) == ["old"]
    output.publish()
    assert (names(place), names(tmp_path)) == (["new"], ["out"])


class RecordingFiles:
    """Filesystem that notes which folders are deleted."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self.deleted: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def delete(self, path: Any, recursive: bool) -> bool:
        """Note the name, and delete."""
        self.deleted.append(str(path.getName()))
        return bool(self._files.delete(path, recursive))


def test_publish_deletes_only_renamed_folders(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "out"
    staged(spark, place, "old").publish()
    other, output = staged(spark, place, "other"), staged(spark, place, "new")
    output._files = files = RecordingFiles(output._files)
    output.publish()
    # Neither the other load nor a later one can move a folder of which a part is deleted.
    assert len(files.deleted) == 2 and all(name.startswith(".out.removed-") for name in files.deleted)
    assert not other.is_staged and names(tmp_path) == ["out"]


def test_restore_after_crash_puts_last_output_back(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "out"
    for number in range(2):
        (tmp_path / f".out.replaced-{number}-x").mkdir()
        (tmp_path / f".out.replaced-{number}-x" / f"{number}").touch()
    output = staged(spark, place, "new")
    output.restore()
    assert names(place) == ["1"]
    output.restore()
    assert names(place) == ["1"], "only where there is none"
    output.publish()
    assert (names(place), names(tmp_path)) == (["new"], ["out"]), "what crashed tries left is removed"
    shutil.rmtree(place)
    Output(spark, f"file://{tmp_path}/no/such/out").restore()
