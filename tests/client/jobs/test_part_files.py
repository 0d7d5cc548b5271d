"""Output in several files: where they end, that all or none appear, and what an earlier try left."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_native.jobs.output import AtomicFile, Content
from pulsar_native.jobs.part_files import PartFiles, PartLimits, content_of_parts, part_path, remove_parts


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def written(path: str, limits: PartLimits, lines: int, *, commit: bool = True, tag: str = "") -> PartFiles:
    file = PartFiles(path, limits, tag=tag)
    file.open()
    for number in range(lines):
        file.write(b"%d\n" % number)
    file.finish()
    if commit:
        file.commit()
    return file


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("a/day.jsonl", "a/day.part-00007.jsonl"),
        ("day.tar.gz", "day.part-00007.tar.gz"),
        ("s3://b/day", "s3://b/day.part-00007"),
        ("a/.day", "a/.day.part-00007"),
        ("a/.day.jsonl", "a/.day.part-00007.jsonl"),
        ("1T16:21:16.784+00:00.parquet", "1T16:21:16.784+00:00.part-00007.parquet"),
        ("1T16:21:16.784+00:00.jsonl.GZ", "1T16:21:16.784+00:00.part-00007.jsonl.GZ"),
        ("b/1T16:21:16.784+00:00", "b/1T16:21:16.784+00:00.part-00007"),
    ],
)
def test_part_path_keeps_folder_and_ending(path: str, part: str) -> None:
    assert part_path(path, 7) == part


@pytest.mark.parametrize(
    ("limits", "lines", "counts"),
    [
        (PartLimits(messages=2), 5, [2, 2, 1]),
        (PartLimits(messages=2), 4, [2, 2]),
        (PartLimits(messages=2), 0, [0]),
        (PartLimits(size=3), 5, [2, 2, 1]),
        (PartLimits(size=1), 2, [1, 1]),
        (PartLimits(messages=3, size=4), 4, [2, 2]),
        (PartLimits(), 5, [5]),
    ],
)
def test_files_end_at_their_limits(limits: PartLimits, lines: int, counts: list[int], tmp_path: Path) -> None:
    path = str(tmp_path / "day.jsonl")
    file = written(path, limits, lines)
    found = file.described()
    assert [each["count"] for each in found] == counts
    assert [each["path"] for each in found] == [part_path(path, number) for number in range(len(counts))]
    texts = [Path(each["path"]).read_text() for each in found]
    assert "".join(texts) == "".join(f"{number}\n" for number in range(lines))
    assert [each["size"] for each in found] == [len(text) for text in texts]
    assert names(tmp_path) == sorted(Path(each["path"]).name for each in found)


def test_content_is_that_of_the_files_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "day.jsonl")
    file = PartFiles(path, PartLimits(messages=1))
    file.open()
    for line in (b"a\n", b"b\n"):
        file.write(line)
    content = file.finish()
    file.commit()
    paths = [each["path"] for each in file.described()]
    assert content_of_parts(paths) == content and content.size == 4
    Path(paths[1]).write_bytes(b"c\n")
    assert content_of_parts(paths) != content
    Path(paths[1]).unlink()
    assert content_of_parts(paths) is None
    assert content_of_parts([]) != Content(0, "")


def test_no_file_appears_before_the_commit(tmp_path: Path) -> None:
    file = written(str(tmp_path / "day.jsonl"), PartLimits(messages=1), 2, commit=False, tag="t")
    assert names(tmp_path) == [".day.part-00000.jsonl.t.part", ".day.part-00001.jsonl.t.part"]
    file.discard()
    assert names(tmp_path) == []


def test_commit_removes_parts_of_a_longer_try(tmp_path: Path) -> None:
    path = str(tmp_path / "day.jsonl")
    written(path, PartLimits(messages=1), 4)
    written(path, PartLimits(messages=1), 2)
    assert names(tmp_path) == ["day.part-00000.jsonl", "day.part-00001.jsonl"]


def test_remove_parts_of_a_try_that_died_half_way(tmp_path: Path) -> None:
    path = str(tmp_path / "day.jsonl")
    file = written(path, PartLimits(messages=1), 3, commit=False, tag="t")
    file._files[0].commit()
    (tmp_path / "other.jsonl").write_text("")
    remove_parts(path, tag="t")
    assert names(tmp_path) == ["other.jsonl"]


def test_one_file_is_never_full(tmp_path: Path) -> None:
    file = AtomicFile(str(tmp_path / "day.jsonl"))
    assert file.room is None and file.add(10) is False
    with pytest.raises(NotImplementedError):
        file.roll()
