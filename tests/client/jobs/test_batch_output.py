"""The place of a batch's output: one run gets it, and no other takes it from that one."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from pulsar_native.jobs import batch_output
from pulsar_native.jobs.batch_output import ACKNOWLEDGED, CONSUMED, WRITTEN, BatchOutput, OutputExists, OutputTaken
from pulsar_native.jobs.failures import is_permanent

NOTE: dict[str, Any] = {"manifest": {"path": "x"}}


def output(path: Path, run: str = "one", **options: Any) -> BatchOutput:
    """Return the output of a run."""
    return BatchOutput(str(path), {"run_id": run}, **options)


@pytest.mark.parametrize("mode", ["fail", "append_part"])
def test_one_of_many_runs_gets_a_place(mode: str, tmp_path: Path) -> None:
    path, got, refused = tmp_path / "deep" / "a.jsonl", [], []
    ready = threading.Barrier(8)

    def claim(number: int) -> None:
        mine = output(path, f"run{number}", if_exists=mode)
        ready.wait()
        try:
            mine.claim()
            got.append(mine.path)
        except OutputExists:
            refused.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if mode == "fail":
        assert (got, len(refused)) == ([str(path)], 7)
    else:
        assert sorted(got) == [str(path.parent / f"a-{number:05}.jsonl") for number in range(1, 9)]
    assert not [each for each in path.parent.iterdir() if each.name.startswith(".")]


def test_store_that_cannot_be_opened_is_no_manifest(tmp_path: Path) -> None:
    def closed(path: str) -> Any:
        raise ValueError("no file system")

    with pytest.raises(ValueError, match=r"^no file system$"):
        output(tmp_path / "a", open_path=closed).claim()


def test_later_try_takes_over_and_earlier_one_notices(tmp_path: Path) -> None:
    earlier, later = output(tmp_path / "a"), output(tmp_path / "a")
    earlier.claim()
    later.claim()
    with pytest.raises(OutputTaken):
        earlier.keep(CONSUMED, NOTE)
    with pytest.raises(OutputTaken):
        earlier.check()
    # What it does at its end harms nobody.
    earlier.release()
    later.keep(CONSUMED, NOTE)
    assert json.loads((tmp_path / "_a.manifest.json").read_text())["state"] == CONSUMED


def test_unacknowledged_output_of_the_run_goes(tmp_path: Path) -> None:
    first = output(tmp_path / "a")
    first.claim()
    first.keep(WRITTEN, NOTE)
    (tmp_path / "a").write_text("not acknowledged")
    output(tmp_path / "a").claim()
    assert [each.name for each in tmp_path.iterdir()] == ["_a.manifest.json"]


@pytest.mark.parametrize("state", [CONSUMED, ACKNOWLEDGED])
def test_acknowledged_output_is_found_and_kept(state: str, tmp_path: Path) -> None:
    first = output(tmp_path / "a")
    first.claim()
    first.keep(state, NOTE)
    found = output(tmp_path / "a").find()
    assert found is not None and found["manifest"] == NOTE["manifest"]
    assert output(tmp_path / "a", "two").find() is None
    with pytest.raises(OutputExists, match="another batch of this run") as error:
        output(tmp_path / "a").claim()
    assert is_permanent(error.value)
    with pytest.raises(OutputExists, match="run_id one"):
        output(tmp_path / "a", "two").claim()
    with pytest.raises(OutputExists, match="run_id one"):
        output(tmp_path / "a", "two").require_restorable()
    output(tmp_path / "a", "two", if_exists="overwrite").claim()


def test_file_under_a_claim_is_not_replaced(tmp_path: Path) -> None:
    output(tmp_path / "a").claim()
    (tmp_path / "a").write_text("from elsewhere")
    with pytest.raises(OutputExists):
        output(tmp_path / "a").claim()


def test_manifest_that_is_none_is_refused(tmp_path: Path) -> None:
    for text in ("[]", "no json", ""):
        (tmp_path / "_a.manifest.json").write_text(text)
        with pytest.raises(OutputExists, match="cannot be used as the manifest of a batch"):
            output(tmp_path / "a").find()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *[("a.jsonl", "a-00001.jsonl"), ("a", "a-00001"), ("a.jsonl.gz", "a-00001.jsonl.gz"), (".a", ".a-00001")],
        ("1T00:00:00.000000+00:00.jsonl", "1T00:00:00.000000+00:00-00001.jsonl"),
    ],
)
def test_parts_keep_the_ending(name: str, part: str, tmp_path: Path) -> None:
    mine = output(tmp_path / name, if_exists="append_part")
    mine.claim()
    assert mine.path == str(tmp_path / part)
    next_one = output(tmp_path / name, "another", if_exists="append_part")
    next_one.claim()
    assert next_one.path == str(tmp_path / part.replace("00001", "00002"))


def test_later_try_takes_its_own_part_again(tmp_path: Path) -> None:
    (tmp_path / "a-00001.jsonl").write_text("of nobody")
    first = output(tmp_path / "a.jsonl", if_exists="append_part")
    first.claim()
    assert first.path.endswith("a-00002.jsonl")
    output(tmp_path / "a.jsonl", "another", if_exists="append_part").claim()
    again = output(tmp_path / "a.jsonl", if_exists="append_part")
    again.claim()
    assert again.path == first.path
    with pytest.raises(OutputTaken):
        first.check()


def test_parts_that_are_used_up_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_output, "_MOST_PARTS", 2)
    for number in (1, 2):
        (tmp_path / f"a-0000{number}.jsonl").write_text("x")
    with pytest.raises(OutputExists, match="has 2 parts: choose another path"):
        output(tmp_path / "a.jsonl", if_exists="append_part").claim()


def test_output_of_another_batch_of_the_run_is_refused(tmp_path: Path) -> None:
    first = output(tmp_path / "a")
    first.claim()
    first.keep(CONSUMED, NOTE)
    with pytest.raises(OutputExists, match="is the output of another batch of this run"):
        output(tmp_path / "a").claim()


@pytest.mark.parametrize("mode", ["overwrite", "fail"])
@pytest.mark.parametrize("state", ["receiving", WRITTEN, CONSUMED, ACKNOWLEDGED])
def test_overwrite_of_a_mapped_task_raises(mode: str, state: str, tmp_path: Path) -> None:
    def task(index: int, run: str = "one") -> BatchOutput:
        return BatchOutput(str(tmp_path / "a"), {"run_id": run, "map_index": index}, if_exists=mode)

    first = task(0)
    first.claim()
    first.keep(state, NOTE)
    for refused in (task(1).claim, task(1).require_restorable):
        with pytest.raises(OutputExists, match=r"mapped task of this run \(map_index 0\): put {{ ti.map_index }}"):
            refused()
    first.check()
    if mode == "overwrite":
        task(0).claim()
        task(1, "two").claim()


def test_released_claim_leaves_the_path_free(tmp_path: Path) -> None:
    first = output(tmp_path / "a")
    first.claim()
    first.release()
    assert list(tmp_path.iterdir()) == []
    output(tmp_path / "a", "another").claim()
