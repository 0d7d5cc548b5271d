"""Two results of run.py compared: how the ratios to the official client have changed.

Usage: make bench-compare OLD=FILE NEW=FILE, or benchmarks/compare.py OLD NEW. Compared are ratios, official ÷ ours,
which each run has measured in turns: absolute times of two runs would compare the load of the machine. A change is
marked only where the ranges of the two runs, each the lowest to the highest ratio of a round, do not overlap. Exit
status 1 if a CPU ratio has become worse that way. Other peers (the Java client, the drain) are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Result = dict[str, Any]
# How run.py calls this project's client: by the codec of the run.
OURS = ("ours", "python", "compiled")


def ratios(case: Result, side: str, what: str) -> list[float]:
    """Return official ÷ ours of each round."""
    pairs = zip(case["official"][what], case[side][what], strict=True)
    return [official / max(ours, 1e-9) for official, ours in pairs]


def changed(old: Sequence[float], new: Sequence[float]) -> str:
    """Return "better" or "worse" where the ranges do not overlap, else an empty text."""
    if min(new) > max(old):
        return "better"
    return "worse" if max(new) < min(old) else ""


def compare(old: Result, new: Result) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether a CPU ratio has become worse."""
    lines = [f"{'case':<30}{'side':>10}{'x wall':>16}{'':>8}{'x CPU':>16}{'':>8}"]
    is_worse = False
    for name, case in new["cases"].items():
        before = old["cases"].get(name, {})
        for side in case:
            if side not in OURS or side not in before:
                continue
            text = f"{name:<30}{side:>10}"
            for what in ("wall", "cpu"):
                one, other = ratios(before, side, what), ratios(case, side, what)
                verdict = changed(one, other)
                is_worse = is_worse or (what == "cpu" and verdict == "worse")
                text += f"{statistics.median(one):>7.2f} ->{statistics.median(other):>6.2f}{verdict:>8}"
            lines.append(text.rstrip())
    return lines, is_worse


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two files and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path, help="result of run.py --json, before")
    parser.add_argument("new", type=Path, help="result of run.py --json, after")
    options = parser.parse_args(arguments)
    old, new = (json.loads(path.read_text()) for path in (options.old, options.new))
    for key in ("python", "cpus", "processor", "versions"):
        if old[key] != new[key]:
            print(f"{key}: {old[key]} before, {new[key]} after")
    lines, is_worse = compare(old, new)
    print("\n".join(lines))
    return 1 if is_worse else 0


if __name__ == "__main__":
    sys.exit(main())
