"""Pure parts of the benchmarks: results compared, goals beside what was measured, the drain's counting, the cases."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from environments import ROOT
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.frames import encode_command


def load(name: str) -> ModuleType:
    """Import a file of benchmarks/, which may import those beside it."""
    folder = ROOT / "benchmarks"
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Where its dataclasses look for their module.
    sys.modules[spec.name] = module
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    """Import benchmarks/compare.py."""
    return load("compare")


@pytest.fixture(scope="module")
def goals() -> ModuleType:
    """Import benchmarks/goals.py."""
    return load("goals")


@pytest.fixture(scope="module")
def drain() -> ModuleType:
    """Import benchmarks/drain.py."""
    return load("drain")


def result(official: list[float], ours: list[float], **fields: Any) -> dict[str, Any]:
    """Return the result of a run with one case."""
    sides = {"official": {"wall": official, "cpu": official}, "ours": {"wall": ours, "cpu": ours}}
    return {"python": "3.11", "cpus": 2, "processor": "p", "versions": {}, "cases": {"receive": sides}, **fields}


def test_compare_slower_machine_is_no_change(compare: ModuleType) -> None:
    lines, is_worse = compare.compare(result([4, 4, 4], [2, 2, 2]), result([8, 8, 8], [4, 4, 4]))
    assert not is_worse
    assert lines[1].split() == ["receive", "ours", "2.00", "->", "2.00", "2.00", "->", "2.00"]


def test_compare_ranges_that_overlap_are_unmarked(compare: ModuleType) -> None:
    lines, is_worse = compare.compare(result([4, 4, 4], [2, 2, 1]), result([4, 4, 4], [2, 4, 4]))
    assert not is_worse and "worse" not in lines[1]


@pytest.mark.parametrize(("ours", "verdict"), [([1.0, 1.0, 1.1], "better"), ([3.0, 3.0, 3.1], "worse")])
def test_compare_change_is_marked(compare: ModuleType, ours: list[float], verdict: str) -> None:
    lines, is_worse = compare.compare(result([4, 4, 4], [2, 2, 2]), result([4, 4, 4], ours))
    assert lines[1].count(verdict) == 2
    assert is_worse is (verdict == "worse")


def test_compare_new_case_is_left_out(compare: ModuleType) -> None:
    lines, is_worse = compare.compare(result([4], [2]) | {"cases": {}}, result([4], [2]))
    assert len(lines) == 1 and not is_worse


def test_compare_command_names_another_machine(
    compare: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(result([4, 4], [2, 2])))
    new.write_text(json.dumps(result([4, 4], [3, 3], cpus=4)))
    assert compare.main([str(old), str(new)]) == 1
    assert "cpus: 2 before, 4 after" in capsys.readouterr().out


def test_compare_other_peers_are_left_out(compare: ModuleType) -> None:
    old, new = result([4, 4], [2, 2]), result([4, 4], [2, 2])
    old["cases"]["receive"]["java"] = {"wall": [1, 1], "cpu": [1, 1]}
    new["cases"]["receive"]["java"] = {"wall": [9, 9], "cpu": [9, 9]}
    lines, is_worse = compare.compare(old, new)
    assert len(lines) == 2 and not is_worse


def sides(**microseconds: float) -> dict[str, dict[str, list[float]]]:
    """Return the measurements of one case, wall the same as CPU."""
    return {name: {"wall": [value], "cpu": [value]} for name, value in microseconds.items()}


def test_goal_reached_by_both_codecs(goals: ModuleType) -> None:
    goal = goals.Goal("sending", ("publish",), (10, 5), (4, None))
    line = goals.row(goal, {"publish": sides(official=20, compiled=2, python=4)})
    assert line == "| sending | 10 (5.0) | 10 (5.0) | 4.0 | 10 | reached |"


def test_goal_missed_names_codec_and_figure(goals: ModuleType) -> None:
    goal = goals.Goal("sending", ("publish",), (10, 5), (20, None))
    line = goals.row(goal, {"publish": sides(official=20, compiled=2, python=5)})
    assert line.endswith("| not reached: CPU plain Python, wall compiled |")


def test_goal_of_two_cases_takes_the_lower(goals: ModuleType) -> None:
    goal = goals.Goal("values", ("one", "other"), (4, None), (2, None))
    cases = {"one": sides(official=8, ours=1), "other": sides(official=3, ours=1)}
    assert goals.row(goal, cases) == "| values | 4.0 | 3.0 | 2.0 | 3.0 | not reached: CPU compiled |"


def test_goal_without_measurement_says_so(goals: ModuleType) -> None:
    goal = goals.Goal("Java", ("publish",), (0.67, None), peer="java")
    assert goals.row(goal, {"publish": sides(official=2, ours=1)}).endswith("| not measured |")
    assert goals.row(goal, {"publish": sides(java=2, ours=1)}) == "| Java | 0.67 | 2.0 | – | – | reached |"


def test_goal_of_latency_with_a_limit(goals: ModuleType) -> None:
    goal = goals.LatencyGoal("import", "import", "us", limit=60_000)
    found = {"import": {"pulsar": {"us": [90_000]}, "pulsar_native": {"us": [61_000]}}}
    assert goals.latency_row(goal, found).endswith("| < 60 ms | 61 ms (official 90) | not reached: wall |")


def test_goals_show_peers_beside_compiled_figures(goals: ModuleType) -> None:
    cases = {
        "receive": sides(official=9, python=8, compiled=2, java=4, drain=1),
        "columns": sides(official=9, compiled=2, drain=1),
        "getters": sides(official=9, compiled=2),
    }
    assert goals.peers_table(cases).splitlines()[2:] == [
        "| receive | 2.0 | 2.0 | 0.50 | 0.50 |",
        "| columns | – | – | 0.50 | 0.50 |",
    ]


def test_goals_command_writes_between_the_marks(goals: ModuleType, tmp_path: Path) -> None:
    bench, page = tmp_path / "bench.json", tmp_path / "page.md"
    bench.write_text(json.dumps({"cases": {"publish 100 B": sides(official=20, compiled=1, java=3)}}))
    marks = "".join(f"<!-- {name}: begin -->\nold\n<!-- {name}: end -->\n" for name in ("goals", "peers"))
    page.write_text(f"before\n{marks}after\n")
    missing = str(tmp_path / "latency.json")
    assert goals.main(["--bench", str(bench), "--latency", missing, "--write", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| `send_async` 100 B | 18 (8.0) | 20 (–) | 5.0 (4.0) | 20 (–) | reached |" in text
    assert "| publish 100 B | 3.0 | 3.0 | – | – |" in text


def test_goals_page_without_marks_raises(goals: ModuleType) -> None:
    with pytest.raises(ValueError, match="has no <!-- goals: begin -->"):
        goals.replaced("before", "goals", "new")


def test_goals_name_cases_that_exist(goals: ModuleType) -> None:
    cases = {case.name: case for case in load("cases").CASES}
    control = {row for rows in load("cases").CONTROL.values() for row in rows}
    assert {name for goal in goals.GOALS for name in goal.cases} <= cases.keys() | control
    assert all(cases[name].suits("java") for goal in goals.GOALS if goal.peer == "java" for name in goal.cases)
    assert {goal.case for goal in goals.LATENCY_GOALS} <= {name for name, _, _ in load("latency").CASES}


def test_cases_have_names_and_actions_of_their_own() -> None:
    cases = load("cases").CASES
    assert len({case.name for case in cases}) == len(cases)
    assert {case.action for case in cases} <= load("worker").ACTIONS.keys()
    # The drain finds only what was filled in before.
    assert not [case.name for case in cases if case.suits("drain") and not case.is_reading]


def test_run_line_of_another_peer_is_theirs_by_ours() -> None:
    run = load("run")
    runs = {
        run.OFFICIAL: {"wall": [4.0], "cpu": [6.0]},
        run.Side("pulsar_native"): {"wall": [2.0], "cpu": [1.0]},
        run.Side("java"): {"wall": [3.0], "cpu": [0.5]},
    }
    first, second = run.lines("receive", runs).splitlines()
    assert first.split() == ["receive", "4.00", "us/m", "2.00", "us/m", "2.0", "6.0", "0%"]
    assert second.split() == ["java", "/", "ours", "3.00", "us/m", "1.5", "0.50", "0%"]


def test_run_control_round_keeps_each_codecs_own_ratio() -> None:
    run = load("run")
    python, compiled = (run.Side("pulsar_native", codec) for codec in ("python", "compiled"))
    runs: dict[Any, dict[str, list[float]]] = {
        side: {"wall": [], "cpu": []} for side in (run.OFFICIAL, python, compiled)
    }
    # The machine was half as quick while the compiled codec had its turns.
    slow = {"official": {"wall": 200.0, "cpu": 20.0}, "ours": {"wall": 160.0, "cpu": 10.0}}
    quick = {"official": {"wall": 100.0, "cpu": 10.0}, "ours": {"wall": 125.0, "cpu": 20.0}}
    run.add_round(runs, {python: quick, compiled: slow})
    assert runs[run.OFFICIAL] == {"wall": [150.0], "cpu": [15.0]}
    assert runs[python] == {"wall": [187.5], "cpu": [30.0]}
    assert runs[compiled] == {"wall": [120.0], "cpu": [7.5]}
    assert run.lines("reader: close", runs).split()[2:] == [
        *("150.00", "us/m", "187.50", "us/m", "0.80", "0.50", "0%"),
        *("120.00", "us/m", "1.2", "2.0", "0%", "1.56", "4.00"),
    ]


def test_control_ours_is_by_the_ratio_of_pairs() -> None:
    # The middle pair was slow for both: medians of each side alone would give 3 / 2.
    official, ours = [(1e-6, 1e-6), (9e-6, 9e-6), (3e-6, 3e-6)], [(2e-6, 1e-6), (18e-6, 9e-6), (1e-6, 1e-6)]
    found = load("control").figures(official, ours)
    assert found["official"] == pytest.approx({"wall": 3.0, "cpu": 3.0})
    assert found["ours"] == pytest.approx({"wall": 6.0, "cpu": 3.0})


def message(count: int, payload: bytes, *, has_broker_metadata: bool = True) -> bytes:
    """Return a MESSAGE frame with an entry of so many messages."""
    head = b""
    if has_broker_metadata:
        broker = pb.BrokerEntryMetadata(broker_timestamp=7, index=8).SerializeToString()
        head = b"\x0e\x02" + len(broker).to_bytes(4, "big") + broker
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=count)
    own = metadata.SerializeToString()
    rest = head + b"\x0e\x01\0\0\0\0" + len(own).to_bytes(4, "big") + own + payload
    command = pb.CommandMessage(consumer_id=1, message_id=pb.MessageIdData(ledgerId=3, entryId=4))
    kind = pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=command).SerializeToString()
    return (4 + len(kind) + len(rest)).to_bytes(4, "big") + len(kind).to_bytes(4, "big") + kind + rest


@pytest.mark.parametrize("size", [1, 7, 100, 1023, 1500, 5000, 100_000])
def test_drain_counts_the_same_in_any_pieces(drain: ModuleType, size: int) -> None:
    ping = encode_command(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
    frames = [message(1, b"x"), ping, message(900, b"x" * 3000), message(1, b"", has_broker_metadata=False)]
    stream = b"".join(frames * 5)
    counter = drain.MessageCounter()
    for start in range(0, len(stream), size):
        counter.feed(memoryview(stream)[start : start + size])
    assert (counter.messages, counter.pings) == (5 * 902, 5)


def test_drain_ends_on_an_error_of_the_broker(drain: ModuleType) -> None:
    error = pb.CommandError(request_id=1, error=pb.UnknownError, message="no such topic")
    with pytest.raises(SystemExit, match="no such topic"):
        drain.MessageCounter().feed(memoryview(encode_command(pb.BaseCommand(type=pb.BaseCommand.ERROR, error=error))))


def test_growth_figures_join_series_of_one_axis() -> None:
    growth = load("growth")
    point = {1: {"wall_us": 1.0, "cpu_us": 1.0, "megabytes": 1.0}}
    found = growth.figures({"publish": point, "columns": point, "producers": point, "receive": {}})
    assert {name: [each.name for each in together] for name, together in found.items()} == {
        "messages": ["publish", "columns"],
        "producers": ["producers"],
    }


def test_growth_in_parts_keeps_the_other_series(tmp_path: Path) -> None:
    growth = load("growth")
    file = tmp_path / "growth.json"
    file.write_text(json.dumps({"publish": {"10": {"wall_us": 1.0}}}))
    assert growth.kept(argparse.Namespace(series=["receive"], json=file)) == {"publish": {10: {"wall_us": 1.0}}}
    assert growth.kept(argparse.Namespace(series=None, json=file)) == {}
