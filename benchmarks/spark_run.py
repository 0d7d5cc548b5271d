"""Spark reads of topics into Parquet files, against the JVM connector and the official client, in turns, as ratios.

Usage: make bench-spark, or .envs/spark/bin/python benchmarks/spark_run.py [--rounds 3] [--scale 1] [--case NAME …]
[--side NAME …] [--growth [--most ROWS]] [--url URL --admin-url URL] [--json FILE]; without a URL it starts a broker of
its own. The sides are the JVM connector (3.1.1.4 on PySpark 3.5.8), the official client in mapInArrow, and our data
source with its compiled codec and in plain Python; `load`, what our load application does with raw values: it plans in
the driver's process, and its tasks write the files (`load-python`: in plain Python, in the case with a goal for it);
and in warm cases with one partition `split`, which reads it in two tasks (option minPartitions; the JVM connector has
one task for each topic partition). `floor` is a data source whose tasks read the same record batches from Arrow files,
written by Spark: a client that costs nothing would be as fast. Each session is a process tree of its own; the sides
take turns, A B C D A B C D, so that a change of the machine's speed meets all, and before cold cases a first session of
each is not measured. Warm figures are those of the last reads of a session; a cold one is a session with one read, from
the start of the process to its end. CPU is user and system of the session's processes: driver, JVM and Python workers,
those that have ended too, without the broker, which shares the machine.

The ratio is JVM connector ÷ side of the medians, above 1 is better than the JVM connector; beside it the goal, if the
case has one. With --growth, cost per row and peak memory as rows, partitions and sizes grow (spark_growth.py). With
--json all measurements are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "dev"))

import spark_growth  # noqa: E402 - beside this file
import spark_sessions  # noqa: E402
from spark_sessions import (  # noqa: E402
    COMPILED,
    JVM,
    LOAD_PYTHON,
    OFFICIAL,
    SIDES,
    SPLIT,
    Broker,
    Content,
    Session,
    Side,
)

import broker as brokers  # noqa: E402 - lives in dev/

_LEAST_ROWS = 1_000
# Goal of CPU is that of wall: CPU seconds no more than the JVM connector's divided by the same number.
_OFFICIAL_GOAL = 5.0


@dataclass(frozen=True)
class Case:
    """One workload: the topic, the reads of a session, and the goals, as ratios to the JVM connector.

    `cold` is a session with one read, of which everything is measured; else `warm_up` reads of a session are not
    measured and `reads` are.
    """

    name: str
    content: Content
    goals: Mapping[str, float]
    warm_up: int = 1
    reads: int = 2
    cold: bool = False

    def has(self, side: Side) -> bool:
        """Return True if a side takes part: `split` if warm with one partition, `load-python` if it has a goal."""
        if side is LOAD_PYTHON:
            return side.name in self.goals
        return side is not SPLIT or (not self.cold and self.content.partitions <= 1)

    def scaled(self, scale: float) -> Content:
        """Return the topic with its rows multiplied."""
        return replace(self.content, rows=max(_LEAST_ROWS, round(self.content.rows * scale)))


def _goals(ratio: float) -> dict[str, float]:
    return {"compiled": ratio, "load": ratio}


_ONE, _FOUR = Content(300_000, 100, 1), Content(300_000, 100, 4)
CASES = (
    Case("3 M x 100 B, warm", Content(3_000_000, 100, 1), {**_goals(2.5), "python": 1.5, "load-python": 1.5}),
    Case("1 M x 1 KB, warm", Content(1_000_000, 1024, 1), _goals(1.5)),
    Case("1 M, key + 2 properties, warm", Content(1_000_000, 100, 1, described=True), _goals(2.5)),
    Case("300 k, 1 partition, warm", _ONE, _goals(1.5), warm_up=3, reads=3),
    Case("300 k, 4 partitions, warm", _FOUR, _goals(1.5), warm_up=3, reads=3),
    Case("300 k, 1 partition, cold", _ONE, _goals(1.2), cold=True),
    Case("300 k, 4 partitions, cold", _FOUR, _goals(1.2), cold=True),
)

Sessions = dict[Side, list[Session]]
"""The sessions of each side in one case, in the order of the rounds."""


def figures(case: Case, sessions: Sequence[Session]) -> dict[str, list[float]]:
    """Return wall and CPU seconds of what is measured: each session if cold, else each read after the warm-up."""
    if case.cold:
        return {"wall": [each.wall for each in sessions], "cpu": [each.cpu for each in sessions]}
    reads = [read for each in sessions for read in each.reads[case.warm_up :]]
    return {name: [read[name] for read in reads] for name in ("wall", "cpu")}


def measure(case: Case, broker: Broker, sides: Sequence[Side], rounds: int, scale: float, folder: Path) -> Sessions:
    """Publish a case's topic, run its sessions in turns, and return them."""
    content = case.scaled(scale)
    topic = spark_sessions.fill(broker, content)
    count = 1 if case.cold else case.warm_up + case.reads
    found: Sessions = {side: [] for side in sides if case.has(side)}
    for _ in range(rounds):
        for side in found:
            found[side].append(spark_sessions.run(side, broker, [topic] * count, [content] * count, folder))
    return found


def prepare(broker: Broker, sides: Sequence[Side], folder: Path) -> None:
    """Run a session of each side that is not measured: it reads the files of its environment from the disk."""
    content = Content(_LEAST_ROWS, 100)
    topic = spark_sessions.fill(broker, content)
    for side in sides:
        spark_sessions.run(side, broker, [topic], [content], folder)


def heading() -> str:
    """Return the head of the table."""
    titles = ("case", "side", "wall s", "CPU s", "x wall", "x CPU", "goal", "x official", "spread", "worker MB")
    return f"| {' | '.join(titles)} |\n| --- | --- |{' ---: |' * (len(titles) - 2)}"


def lines(case: Case, found: Sessions) -> list[str]:
    """Return the lines of the table for a case, one for each side."""
    medians = {
        side: {name: statistics.median(each) for name, each in figures(case, sessions).items()}
        for side, sessions in found.items()
    }
    return [_line(case, side, found[side], medians) for side in found]


def _line(case: Case, side: Side, sessions: Sequence[Session], medians: Mapping[Side, Mapping[str, float]]) -> str:
    own, walls = medians[side], figures(case, sessions)["wall"]
    peak = max(each.python_peak for each in sessions) / 1e6
    cells = [
        case.name, side.name, f"{own['wall']:.2f}", f"{own['cpu']:.2f}",
        ratio(medians.get(JVM), own, "wall"), ratio(medians.get(JVM), own, "cpu"), _goal(case, side),
        ratio(medians.get(OFFICIAL), own, "wall") if side.peer in ("ours", "load") else "",
        f"{(max(walls) - min(walls)) / own['wall']:.0%}", f"{peak:.0f}" if peak else "",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def ratio(peer: Mapping[str, float] | None, own: Mapping[str, float], name: str) -> str:
    """Return peer ÷ own, "" without the peer; CPU has a resolution of a hundredth of a second."""
    return "" if peer is None else f"{peer[name] / max(own[name], 0.01):.2f}"


def _goal(case: Case, side: Side) -> str:
    goal = case.goals.get(side.name)
    return "" if goal is None else f"{goal:.1f}"


def stages(case: Case, found: Sessions) -> list[str]:
    """Return a line for each side that says where the seconds of a cold session are, none for another case."""
    if not case.cold:
        return []
    texts = []
    for side, sessions in found.items():
        parts = {
            "session": [each.start for each in sessions],
            "read": [each.reads[0]["wall"] for each in sessions],
            "end": [each.end for each in sessions],
        }
        cpu = statistics.median(each.reads[0]["cpu"] for each in sessions)
        shown = ", ".join(f"{name} {statistics.median(each):.2f}" for name, each in parts.items())
        texts.append(f"  {case.name}, {side.name}: {shown} s; CPU of the read {cpu:.2f} s")
    return texts


def machine() -> dict[str, Any]:
    """Return what ran."""
    return {"python": platform.python_version(), "cpus": os.cpu_count(), "system": platform.platform()}


def run_cases(options: argparse.Namespace, broker: Broker, sides: Sequence[Side], folder: Path) -> None:
    """Run the chosen cases and print them; after each, all measurements are kept."""
    kept: dict[str, Any] = {**machine(), "rounds": options.rounds, "scale": options.scale, "cases": {}}
    print(f"{kept['cpus']} CPUs, {options.rounds} rounds, scale {options.scale:g}; x = JVM connector / side")
    print(f"goal of CPU as of wall; goal of x official {_OFFICIAL_GOAL:g}\n\n{heading()}", flush=True)
    notes: list[str] = []
    cases = chosen(options.case)
    if any(case.cold for case in cases):
        prepare(broker, sides, folder)
    for case in cases:
        found = measure(case, broker, sides, options.rounds, options.scale, folder)
        print("\n".join(lines(case, found)), flush=True)
        notes += stages(case, found)
        kept["cases"][case.name] = {side.name: [asdict(each) for each in found[side]] for side in found}
        save(options.json, kept)
    print("\n".join(["", *notes]), flush=True)


def chosen(words: Sequence[str]) -> list[Case]:
    """Return the cases whose name holds one of the words, all without words."""
    return [case for case in CASES if not words or any(word in case.name for word in words)]


def save(path: Path | None, kept: Mapping[str, Any]) -> None:
    """Write the measurements, if a file is named."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept, indent=1))


@contextmanager
def served(options: argparse.Namespace, folder: Path) -> Iterator[Broker]:
    """Give the broker that is named, or one of its own."""
    if options.url is not None:
        yield Broker(options.url, options.admin_url)
        return
    standalone = brokers.Standalone(folder / "broker")
    standalone.start()
    try:
        standalone.wait_ready()
        yield Broker(standalone.service_url, standalone.admin_url)
    finally:
        standalone.stop()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the checked options of the command line; exits with status 2 for wrong ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="sessions of each side and case (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of rows (default 1)")
    parser.add_argument("--case", action="append", default=[], help="only cases, or series, whose name holds this text")
    parser.add_argument("--side", action="append", choices=[side.name for side in SIDES], help="only these sides")
    parser.add_argument("--growth", action="store_true", help="cost per row as the topic grows, instead of the cases")
    parser.add_argument(
        "--most", type=int, default=10_000_000, help="with --growth: rows at the most (default 10,000,000)"
    )
    parser.add_argument("--url", help="service URL of a running broker")
    parser.add_argument("--admin-url", help="admin URL of a running broker")
    parser.add_argument("--json", type=Path, help="file for all measurements")
    options = parser.parse_args(arguments)
    if (options.url is None) != (options.admin_url is None):
        parser.error("--url and --admin-url belong together")
    if options.rounds < 1 or options.scale <= 0 or options.most < 1:
        parser.error("--rounds, --scale and --most must be above 0")
    known = spark_growth.SERIES if options.growth else CASES
    if not any(word in each.name for each in known for word in options.case or [""]):
        parser.error(f"no case has such a name; there are: {'; '.join(each.name for each in known)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = parse(arguments)
    default = [COMPILED.name] if options.growth else [side.name for side in SIDES]
    sides = [side for side in SIDES if side.name in (options.side or default)]
    with tempfile.TemporaryDirectory(prefix="pulsar-spark-") as name, served(options, Path(name)) as broker:
        if options.growth:
            kept = {**machine(), "rounds": options.rounds, "scale": options.scale}
            save(options.json, {**kept, "series": spark_growth.run_all(options, broker, sides, Path(name))})
        else:
            run_cases(options, broker, sides, Path(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
