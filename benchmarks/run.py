"""Publish and receive, measured against the official client in one interleaved run, printed as ratios.

Usage: make bench, or benchmarks/run.py [--rounds 3] [--messages N] [--case NAME …]. Every measurement is a process of
its own (worker.py); the two clients take turns, A B A B, so that a change of the machine's speed meets both; the
ratio is official ÷ ours of the medians, above 1 is better than the official client. CPU is user + system of the
client's process, the steadier figure, because the broker shares the machine. Absolute figures are those of the
machine that ran.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "dev"))

import broker as brokers  # noqa: E402 - lives in dev/

PEERS = ("pulsar", "pulsar_native")
_WORKER_SECONDS = 300


@dataclass(frozen=True)
class Case:
    """One workload: what worker.py is to do, and with how many messages of which size."""

    name: str
    action: str
    size: int
    messages: int
    compression: str = "NONE"
    # The Arrow column read has no counterpart: the official side makes the same columns from its messages.
    note: str = ""


CASES = (
    Case("publish 100 B", "publish", 100, 300_000),
    Case("publish 1 KB", "publish", 1024, 100_000),
    Case("publish 1 KB LZ4", "publish", 1024, 100_000, "LZ4"),
    Case("publish 1 KB ZSTD", "publish", 1024, 100_000, "ZSTD"),
    Case("send_many 100 B", "send-many", 100, 300_000),
    Case("send_table 100 B", "send-table", 100, 300_000),
    Case("publish 100 B, callback", "publish-callback", 100, 100_000),
    Case("receive + ack 100 B", "receive", 100, 300_000),
    Case("receive + ack 1 KB", "receive", 1024, 100_000),
    Case("receive + ack 1 KB LZ4", "receive", 1024, 100_000, "LZ4"),
    Case("batch_receive 100 B", "batch-receive", 100, 300_000),
    Case("columns 100 B", "columns", 100, 300_000),
    Case("columns 1 KB", "columns", 1024, 100_000),
    Case("sync send, non-persistent", "latency", 100, 3_000),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each client and case (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of messages")
    parser.add_argument("--case", action="append", default=[], help="only cases whose name holds this text")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if not options.case or any(part in case.name for part in options.case)]
    with tempfile.TemporaryDirectory(prefix="pulsar-bench-") as folder:
        standalone = brokers.Standalone(Path(folder) / "broker")
        standalone.start()
        try:
            standalone.wait_ready()
            machine = f"Python {platform.python_version()}, {os.cpu_count()} CPUs"
            print(f"{machine}, {options.rounds} rounds, medians; x = official / ours")
            print(f"{'case':<28}{'official':>14}{'ours':>14}{'x wall':>9}{'x CPU':>9}{'spread':>9}")
            for case in cases:
                print(measure(case, standalone.service_url, options.rounds, options.scale), flush=True)
        finally:
            standalone.stop()
    return 0


def measure(case: Case, url: str, rounds: int, scale: float) -> str:
    """Run one case in turns and return its line of the table."""
    count = max(100, int(case.messages * scale))
    topics = {peer: _topic(case, peer) for peer in PEERS}
    if case.action in ("receive", "batch-receive", "columns"):
        for peer in PEERS:
            _run("pulsar_native", "fill", case, topics[peer], url, count)
    runs: dict[str, list[dict[str, float]]] = {peer: [] for peer in PEERS}
    for number in range(rounds):
        for peer in PEERS:
            topic = topics[peer] if case.action not in ("publish", "publish-callback") else f"{topics[peer]}-{number}"
            runs[peer].append(_run(peer, case.action, case, topic, url, count))
    wall = {peer: statistics.median(run["wall"] for run in runs[peer]) / count * 1e6 for peer in PEERS}
    cpu = {peer: statistics.median(run["cpu"] for run in runs[peer]) for peer in PEERS}
    walls = [run["wall"] for run in runs["pulsar_native"]]
    spread = (max(walls) - min(walls)) / statistics.median(walls)
    official, ours = PEERS
    return (
        f"{case.name:<28}{wall[official]:>9.2f} us/m{wall[ours]:>9.2f} us/m"
        f"{wall[official] / wall[ours]:>9.1f}{cpu[official] / max(cpu[ours], 1e-9):>9.1f}{spread:>8.0%}"
    )


def _topic(case: Case, peer: str) -> str:
    domain = "non-persistent" if case.action == "latency" else "persistent"
    name = case.name.replace(" ", "-").replace("+", "and").replace(",", "")
    return f"{domain}://public/default/bench-{name}-{peer}"


def _run(peer: str, action: str, case: Case, topic: str, url: str, count: int) -> dict[str, float]:
    request = {
        "peer": peer, "action": action, "topic": topic, "url": url, "count": count, "size": case.size,
        "compression": case.compression,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(HERE / "worker.py"), json.dumps(request)],
        capture_output=True, text=True, timeout=_WORKER_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{case.name} with {peer} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    sys.exit(main())
