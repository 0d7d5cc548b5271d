"""Wanted and measured: each goal for the client's speed beside the ratio that was measured, as a Markdown table.

Usage: make bench-goals, or benchmarks/goals.py [--bench FILE] [--latency FILE] [--write PAGE]. Reads what run.py
(--impl both --peer java --peer drain) and latency.py wrote. A goal is a ratio of medians, official ÷ ours; one that
holds for several cases is held by the lowest of them. What was not measured has a dash. A second table shows the Java
client and the drain beside ours. With --write the tables replace those between the marks of the page.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Pair = tuple[float | None, float | None]
"""A figure for the compiled modules, and one for plain Python."""
NONE: Pair = (None, None)


@dataclass(frozen=True)
class Goal:
    """Ratios wanted of cases of run.py: for CPU and wall, each compiled and plain Python."""

    text: str
    cases: tuple[str, ...]
    cpu: Pair = NONE
    wall: Pair = NONE
    # Whose measurements are divided by ours.
    peer: str = "official"


@dataclass(frozen=True)
class LatencyGoal:
    """Ratio of a figure of latency.py that is wanted, official ÷ ours; or, with a limit, our own microseconds."""

    text: str
    case: str
    figure: str = "p50"
    ratio: float = 1.0
    limit: float | None = None


GOALS = (
    Goal("`send_async` 100 B", ("publish 100 B",), (18, 8), (5, 4)),
    Goal("`send_async` 1 KB", ("publish 1 KB",), (6, 4), (1, 1)),
    Goal("`send_async` 1 KB, LZ4", ("publish 1 KB LZ4",), (4, 3), (1, 1)),
    Goal("`send_async` 1 KB, ZSTD", ("publish 1 KB ZSTD",), (5, 2.5), (1, 1)),
    Goal("`send_async` 100 B with a callback", ("publish 100 B, callback",), (40, 25), (25, 20)),
    Goal("`send_async` with key and two properties", ("publish, key + 2 properties",), (4, 2), (2, None)),
    Goal("`send_many` 100 B", ("send_many 100 B",), (30, 15), (10, 6)),
    Goal("`send_table` 100 B", ("send_table 100 B",), (30, 15), (10, 6)),
    Goal("`receive` + `acknowledge` 100 B", ("receive + ack 100 B",), (10, 4), (6, 3)),
    Goal("`receive` + `acknowledge` 1 KB", ("receive + ack 1 KB",), (4, 2.5), (2.5, 1.5)),
    Goal("the same, keys and all getters read", ("receive, key + all getters",), (4, 1.5), (2, None)),
    Goal("the same over 4 partitions", ("receive + ack, 4 partitions",), (4, 1.5), (2, None)),
    Goal("the same with ack time-out", ("receive + ack, ack time-out",), (4, 1.5), (2, None)),
    Goal("message listener", ("listener + ack 100 B",), (4, 1.5), (2, None)),
    Goal("`batch_receive` 100 B", ("batch_receive 100 B",), (10, 4), (6, 3)),
    Goal("`batch_receive` 1 KB", ("batch_receive 1 KB",), (3, 2), (2, 1.5)),
    Goal("columns 100 B", ("columns 100 B",), (25, 10), (10, None)),
    Goal("columns 1 KB", ("columns 1 KB",), (5, 3), (3, None)),
    Goal("columns with key, time and two properties", ("columns 100 B, all fields",), (15, 2), (8, None)),
    Goal("unbatched topic, `receive` + `acknowledge`", ("receive + ack, unbatched",), (2, 1), (1.5, 1)),
    Goal("asyncio `receive` + `acknowledge`", ("asyncio receive + ack",), (10, 4), (5, None)),
    Goal("asyncio `send`, 1,000 gathered", ("asyncio send, 1,000 at a time",), (10, 4), (5, None)),
    Goal("JSON value per message", ("publish JSON value", "receive + ack JSON value"), (4, None), (2, None)),
    Goal("Avro value per message", ("publish Avro value", "receive + ack Avro value"), (4, None), (2, None)),
    Goal("create and close a producer", ("producer: create", "producer: close"), NONE, (0.91, None)),
    Goal("create and close a consumer", ("consumer: create", "consumer: close"), NONE, (0.91, None)),
    Goal("create and close a reader", ("reader: create", "reader: close"), NONE, (0.91, None)),
    Goal("create and close a client", ("client: create, ask, close",), NONE, (1, None)),
    Goal("partitions of a topic", ("partitions of a topic",), NONE, (0.91, None)),
    Goal("bulk publish 100 B, Java ÷ ours", ("send_many 100 B", "send_table 100 B"), (0.67, None), NONE, "java"),
    Goal("columns 100 B, Java ÷ ours", ("columns 100 B",), (0.67, None), NONE, "java"),
    Goal("columns 1 KB, Java ÷ ours", ("columns 1 KB",), (0.67, None), NONE, "java"),
)
LATENCY_GOALS = (
    LatencyGoal("blocking `send`, non-persistent, p50", "send, non-persistent"),
    LatencyGoal("the same beside a CPU-bound thread", "send beside a busy thread"),
    LatencyGoal("publish to `receive`, non-persistent, p50", "publish to receive, non-persistent"),
    LatencyGoal("import, and `Client` named", "import, and Client named", "us", limit=60_000),
)

Cases = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]


def measured(goal: Goal, cases: Cases, what: str) -> Pair:
    """Return the lowest ratio of a goal's cases, compiled and plain Python; None for what was not measured."""
    compiled, python = (_ratio(goal, cases, what, sides) for sides in (("compiled", "ours"), ("python",)))
    return compiled, python


def _ratio(goal: Goal, cases: Cases, what: str, sides: Sequence[str]) -> float | None:
    found = []
    for name in goal.cases:
        case = cases.get(name, {})
        side = next((each for each in sides if each in case), None)
        if side is None or goal.peer not in case:
            return None
        found.append(statistics.median(case[goal.peer][what]) / max(statistics.median(case[side][what]), 1e-9))
    return min(found)


def shown(number: float | None) -> str:
    """Return a ratio with two digits, as it is compared as well."""
    if number is None:
        return "–"
    return f"{number:.0f}" if number >= 9.95 else f"{number:.1f}" if number >= 0.995 else f"{number:.2f}"


def pair(figures: Pair, wanted: Pair) -> str:
    """Return a pair as text: compiled, and plain Python in brackets where something is wanted of it."""
    compiled, python = figures
    return shown(compiled) if wanted[1] is None else f"{shown(compiled)} ({shown(python)})"


def missed(wanted: Pair, found: Pair) -> list[str]:
    """Return which of a pair are measured and below what is wanted."""
    names = ("compiled", "plain Python")
    return [
        name
        for name, least, most in zip(names, wanted, found, strict=True)
        if least is not None and most is not None and float(shown(most)) < least
    ]


def row(goal: Goal, cases: Cases) -> str:
    """Return a goal's line of the table."""
    cells, below, is_measured = [goal.text], [], False
    for what, name, wanted in (("cpu", "CPU", goal.cpu), ("wall", "wall", goal.wall)):
        found = measured(goal, cases, what)
        # Only what a goal is about.
        relevant = (found[0] if wanted[0] else None, found[1] if wanted[1] else None)
        is_measured = is_measured or relevant != NONE
        cells += [pair(wanted, wanted), pair(relevant, wanted)]
        below += [f"{name} {each}" for each in missed(wanted, relevant)]
    return f"| {' | '.join(cells)} | {_verdict(is_measured, below)} |"


def _verdict(is_measured: bool, below: Sequence[str]) -> str:
    if not is_measured:
        return "not measured"
    return f"not reached: {', '.join(below)}" if below else "reached"


def latency_row(goal: LatencyGoal, found: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> str:
    """Return a latency goal's line of the table, in the columns of wall time."""
    peers = found.get(goal.case)
    if peers is None:
        return f"| {goal.text} | – | – | {_wanted(goal)} | – | not measured |"
    official, ours = (statistics.median(peers[peer][goal.figure]) for peer in ("pulsar", "pulsar_native"))
    if goal.limit is not None:
        figure, is_reached = f"{ours / 1000:.0f} ms (official {official / 1000:.0f})", ours < goal.limit
    else:
        figure, is_reached = shown(official / ours), float(shown(official / ours)) >= goal.ratio
    return f"| {goal.text} | – | – | {_wanted(goal)} | {figure} | {_verdict(True, [] if is_reached else ['wall'])} |"


def _wanted(goal: LatencyGoal) -> str:
    return shown(goal.ratio) if goal.limit is None else f"< {goal.limit / 1000:.0f} ms"


def table(cases: Cases, latency: Mapping[str, Any]) -> str:
    """Return the whole table."""
    lines = [
        "| workload | CPU wanted | CPU measured | wall wanted | wall measured | |",
        "| --- | --- | --- | --- | --- | --- |",
        *(row(goal, cases) for goal in GOALS),
        *(latency_row(goal, latency) for goal in LATENCY_GOALS),
    ]
    return "\n".join(lines)


def peers_table(cases: Cases) -> str:
    """Return the ratios of the Java client and the drain to ours, compiled where it was, of all cases they ran."""
    lines = [
        "| workload | Java ÷ ours, CPU | wall | drain ÷ ours, CPU | wall |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, case in cases.items():
        if "java" in case or "drain" in case:
            goals = (Goal(name, (name,), peer=peer) for peer in ("java", "drain"))
            figures = [measured(goal, cases, what)[0] for goal in goals for what in ("cpu", "wall")]
            lines.append(f"| {' | '.join([name, *map(shown, figures)])} |")
    return "\n".join(lines)


def replaced(page: str, name: str, text: str) -> str:
    """Return the page with the text between the marks of that name; raises ValueError if it has none."""
    first, last = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the page has no {first} with {last} after it")
    return f"{before}{first}\n{text}\n{last}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or write them into a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bench", type=Path, default=ROOT / ".results" / "bench.json", help="result of run.py --json")
    parser.add_argument("--latency", type=Path, default=ROOT / ".results" / "latency.json", help="of latency.py --json")
    parser.add_argument("--write", type=Path, help="page whose tables are replaced")
    options = parser.parse_args(arguments)
    cases = json.loads(options.bench.read_text())["cases"] if options.bench.exists() else {}
    latency = json.loads(options.latency.read_text()) if options.latency.exists() else {}
    if not cases and not latency:
        parser.error(f"neither {options.bench} nor {options.latency} is there: run make bench, make bench-latency")
    tables = {"goals": table(cases, latency), "peers": peers_table(cases)}
    if options.write is None:
        print("\n\n".join(tables.values()))
        return 0
    page = options.write.read_text()
    for name, text in tables.items():
        page = replaced(page, name, text)
    options.write.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
