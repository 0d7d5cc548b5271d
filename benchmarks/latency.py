"""Latency, memory, creation and import time of both clients in turns, printed as ratios.

Usage: make bench-latency, or benchmarks/latency.py [--rounds 3] [--case NAME …] [--json FILE]. Every measurement is a
process of its own (latency_worker.py), the clients take turns, printed are medians; the ratio is official ÷ ours, above
1 is better than the official client. Percentiles are those of one process, the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control import served

HERE = Path(__file__).resolve().parent
_WORKER_SECONDS = 300
PEERS = ("pulsar", "pulsar_native")
# Case, action of the worker, and the domain of its topic: a non-persistent one leaves the broker's disk out.
CASES = (
    ("send, non-persistent", "send", "non-persistent"),
    ("send, persistent", "send", "persistent"),
    ("send beside a busy thread", "send-busy", "non-persistent"),
    ("publish to receive, non-persistent", "end-to-end", "non-persistent"),
    ("publish to receive, persistent", "end-to-end", "persistent"),
    ("import, and Client named", "import", "persistent"),
    ("1,000 producers, each", "producers", "persistent"),
    ("1,000 consumers, each", "consumers", "persistent"),
    ("pending message", "pending", "persistent"),
)
_UNITS = {"bytes": "B"}

Figures = dict[str, list[float]]


def measure(action: str, domain: str, url: str, rounds: int) -> dict[str, Figures]:
    """Run one case in turns and return the figures of each peer."""
    found: dict[str, Figures] = {peer: {} for peer in PEERS}
    for number in range(rounds):
        for peer in PEERS if number % 2 else PEERS[::-1]:
            topic = f"{domain}://public/default/latency-{uuid.uuid4().hex}"
            for name, value in _run({"peer": peer, "action": action, "topic": topic, "url": url}).items():
                found[peer].setdefault(name, []).append(value)
    return found


def _run(request: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, str(HERE / "latency_worker.py"), json.dumps(request)],
        capture_output=True, text=True, timeout=_WORKER_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode or not done.stdout.strip():
        raise SystemExit(f"{request['action']} with {request['peer']} failed:\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def lines(case: str, found: dict[str, Figures]) -> list[str]:
    """Return the lines of the table for a case, one for each of its figures."""
    official, ours = (found[peer] for peer in PEERS)
    made = []
    for name in ours:
        one, other = statistics.median(official[name]), statistics.median(ours[name])
        ratio = one / other if other > 0 else float("inf")
        unit = _UNITS.get(name, "us")
        made.append(f"{case:<36}{name:>6}{one:>12.0f} {unit:<2}{other:>12.0f} {unit:<2}{ratio:>8.2f}")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each client and case (default 3)")
    parser.add_argument("--case", action="append", default=[], help="only cases whose name holds this text")
    parser.add_argument("--url", help="service URL of a running broker")
    parser.add_argument("--json", type=Path, help="file for all measurements")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if not options.case or any(part in case[0] for part in options.case)]
    kept: dict[str, Any] = {}
    with served(options.url) as url:
        print(f"{'case':<36}{'':>6}{'official':>15}{'ours':>15}{'x':>8}", flush=True)
        for name, action, domain in cases:
            found = kept[name] = measure(action, domain, url, options.rounds)
            print("\n".join(lines(name, found)), flush=True)
            if options.json is not None:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(kept, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
