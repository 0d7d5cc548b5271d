"""Growth of Spark reads: cost per row and peak memory as rows, partitions and sizes of messages grow.

Part of spark_run.py (--growth). Each point is a session of its own, which reads a small topic twice, so that there is a
Python worker for each core, and the point's topic then; only that read is measured. A cost per row that rises with the
rows is a cost that depends on more than the row; what a read costs whatever it reads is the cost per row of the first
points. Memory is the peak of the largest Python process, which is a worker, and of the JVM.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import spark_sessions
from spark_sessions import Broker, Content, Session, Side

_WARM_UP = Content(100_000, 100, 4)


@dataclass(frozen=True)
class Series:
    """One kind of growth: its name, the axis, and the topic of each point."""

    name: str
    axis: str
    points: Mapping[int, Content]

    def scaled(self, scale: float, most: int) -> dict[int, Content]:
        """Return the topics: of the series of rows those up to `most` rows, else all with their rows multiplied."""
        if self.axis == "rows":
            return {point: each for point, each in self.points.items() if point <= most}
        return {
            point: replace(each, rows=max(8, each.partitions, round(each.rows * scale)))
            for point, each in self.points.items()
        }


_MANY = (100_000, 1_000_000, 10_000_000, 100_000_000)
_PARTITIONS = (1, 4, 16, 64, 256)
_SIZES = (100, 1024, 64 * 1024, 1024 * 1024)
SERIES = (
    Series("rows", "rows", {rows: Content(rows, 100, 1) for rows in _MANY}),
    # The same rows in more and more partitions, whose entries become smaller; and more and more equal partitions.
    Series("partitions", "partitions", {each: Content(2_000_000, 100, each) for each in _PARTITIONS}),
    Series(
        "equal partitions",
        "partitions",
        {each: Content(100_000 * each, 100, each, one_by_one=True) for each in _PARTITIONS},
    ),
    Series("bytes", "bytes of a message", {size: Content((512 << 20) // size, size, 1) for size in _SIZES}),
)


def run_all(options: argparse.Namespace, broker: Broker, sides: Sequence[Side], folder: Path) -> dict[str, Any]:
    """Run the chosen series, print them, and return all measurements."""
    kept: dict[str, Any] = {}
    warm_up = spark_sessions.fill(broker, _WARM_UP)
    for series in SERIES:
        if options.case and not any(word in series.name for word in options.case):
            continue
        contents = series.scaled(options.scale, options.most)
        topics = {point: spark_sessions.fill(broker, content) for point, content in contents.items()}
        for side in sides:
            found: dict[int, list[Session]] = {point: [] for point in contents}
            for _ in range(options.rounds):
                for point, content in contents.items():
                    reads = [_WARM_UP, _WARM_UP, content]
                    found[point].append(
                        spark_sessions.run(side, broker, [warm_up, warm_up, topics[point]], reads, folder)
                    )
            print(table(series, side.name, contents, found), flush=True)
            kept.setdefault(series.name, {})[side.name] = {
                point: [asdict(session) for session in sessions] for point, sessions in found.items()
            }
    return kept


def table(series: Series, side: str, contents: Mapping[int, Content], found: Mapping[int, Sequence[Session]]) -> str:
    """Return a series as a Markdown table of medians; the further columns compare a point with the one before."""
    lines = [
        f"| {series.name}, {side}: {series.axis} | rows | wall us per row | CPU us per row | MB/s | further us per row "
        "| worker MB | JVM MB |",
        f"|{' ---: |' * 8}",
    ]
    before: tuple[int, float] | None = None
    for point, sessions in found.items():
        rows, size = contents[point].rows, contents[point].size
        wall, cpu = (statistics.median(each.reads[-1][name] for each in sessions) for name in ("wall", "cpu"))
        python, jvm = (max(getattr(each, name) for each in sessions) / 1e6 for name in ("python_peak", "jvm_peak"))
        cells = [
            f"{point:,}", f"{rows:,}", f"{wall / rows * 1e6:.2f}", f"{cpu / rows * 1e6:.2f}",
            f"{rows * size / wall / 1e6:.0f}", further(before, (rows, wall)), f"{python:.0f}", f"{jvm:.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
        before = rows, wall
    return "\n".join(lines) + "\n"


def further(before: tuple[int, float] | None, now: tuple[int, float]) -> str:
    """Return the microseconds of each row that a point has more than the one before, "" if it has none more."""
    if before is None or now[0] <= before[0]:
        return ""
    return f"{(now[1] - before[1]) / (now[0] - before[0]) * 1e6:.2f}"
