"""Publish and receive, measured against the official client in one interleaved run, printed as ratios.

Usage: make bench, or benchmarks/run.py [--rounds 3] [--scale 1] [--case NAME …] [--impl both] [--json FILE].
Every measurement is a process of its own (worker.py); the clients take turns, A B A B, so that a change of the
machine's speed meets both; the ratio is official ÷ ours of the medians, above 1 is better than the official client. CPU
is user + system of the client's process, the steadier figure, because the broker shares the machine. Absolute figures
are those of the machine that ran. With --impl both, our client runs twice, with its codec in plain Python and compiled
(A B C A B C), and the last two figures are plain Python ÷ compiled. With --json all measurements are kept, for
compare.py.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "dev"))

import broker as brokers  # noqa: E402 - lives in dev/

_WORKER_SECONDS = 300
# Actions that read what is filled in first.
_READING = (
    "receive", "receive-getters", "receive-timeout", "receive-key-shared", "receive-asyncio", "listener",
    "batch-receive", "columns", "columns-full", "has-more",
)  # fmt: skip


@dataclass(frozen=True)
class Side:
    """Who is measured: a client by its module, and of ours the codec it is to use (none: the one it chooses)."""

    peer: str
    codec: str | None = None

    @property
    def name(self) -> str:
        """Return what the table calls it."""
        return "official" if self.peer == "pulsar" else self.codec or "ours"


OFFICIAL = Side("pulsar")


@dataclass(frozen=True)
class Case:
    """One workload: what worker.py is to do, and with how many messages of which size."""

    name: str
    action: str
    size: int
    messages: int
    compression: str = "NONE"
    # What a reading case finds in its topic: batches, or entries of one message.
    batched: bool = True
    # The topic's number of partitions; 0: it has none.
    partitions: int = 0
    # Whether its messages have a key, two properties and an event time.
    described: bool = False


CASES = (
    Case("publish 100 B", "publish", 100, 300_000),
    Case("publish 1 KB", "publish", 1024, 100_000),
    Case("publish 1 KB LZ4", "publish", 1024, 100_000, "LZ4"),
    Case("publish 1 KB ZSTD", "publish", 1024, 100_000, "ZSTD"),
    Case("send_many 100 B", "send-many", 100, 300_000),
    Case("send_table 100 B", "send-table", 100, 300_000),
    Case("publish 100 B, callback", "publish-callback", 100, 100_000),
    Case("publish, key + 2 properties", "publish", 100, 200_000, described=True),
    Case("asyncio send, 1,000 at a time", "publish-asyncio", 100, 100_000),
    Case("receive + ack 100 B", "receive", 100, 300_000),
    Case("receive + ack 1 KB", "receive", 1024, 100_000),
    Case("receive + ack 1 KB LZ4", "receive", 1024, 100_000, "LZ4"),
    Case("receive, key + all getters", "receive-getters", 100, 200_000, described=True),
    Case("receive + ack, 4 partitions", "receive", 100, 300_000, partitions=4),
    Case("receive + ack, ack time-out", "receive-timeout", 100, 300_000),
    Case("receive + ack, Key_Shared", "receive-key-shared", 100, 200_000, described=True),
    Case("listener + ack 100 B", "listener", 100, 300_000),
    Case("asyncio receive + ack", "receive-asyncio", 100, 100_000),
    Case("batch_receive 100 B", "batch-receive", 100, 300_000),
    Case("batch_receive 1 KB", "batch-receive", 1024, 100_000),
    Case("columns 100 B", "columns", 100, 300_000),
    Case("columns 1 KB", "columns", 1024, 100_000),
    Case("columns 100 B, all fields", "columns-full", 100, 200_000, described=True),
    Case("sync send, non-persistent", "latency", 100, 3_000),
    Case("receive + ack, unbatched", "receive", 100, 30_000, batched=False),
    Case("read while there is more", "has-more", 100, 100_000),
    Case("message id to bytes and back", "message-ids", 100, 200_000),
    Case("producer: create", "create-producer", 100, 300),
    Case("producer: close", "close-producer", 100, 300),
    Case("consumer: create", "create-consumer", 100, 300),
    Case("consumer: close", "close-consumer", 100, 300),
    Case("reader: create", "create-reader", 100, 300),
    Case("reader: close", "close-reader", 100, 300),
    Case("partitions of a topic", "lookup", 100, 1_000),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each client and case (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of messages")
    parser.add_argument("--case", action="append", default=[], help="only cases whose name holds this text")
    parser.add_argument("--impl", choices=["python", "compiled", "both"], help="our codec; both: a column for each")
    parser.add_argument("--json", type=Path, help="file for all measurements")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if not options.case or any(part in case.name for part in options.case)]
    codecs = ("python", "compiled") if options.impl == "both" else (options.impl,)
    sides = [OFFICIAL, *(Side("pulsar_native", codec) for codec in codecs)]
    with tempfile.TemporaryDirectory(prefix="pulsar-bench-") as folder:
        standalone = brokers.Standalone(Path(folder) / "broker")
        standalone.start()
        try:
            standalone.wait_ready()
            kept: dict[str, Any] = {**machine(), "rounds": options.rounds, "scale": options.scale, "cases": {}}
            print(
                f"Python {kept['python']}, {kept['cpus']} CPUs, {options.rounds} rounds, medians; x = official / ours"
            )
            print(heading(sides))
            for case in cases:
                found = measure(case, standalone, options.rounds, options.scale, sides)
                kept["cases"][case.name] = {side.name: runs for side, runs in found.items()}
                print(line(case.name, found), flush=True)
                if options.json is not None:
                    # After each case: a run that is stopped keeps what it has.
                    options.json.parent.mkdir(parents=True, exist_ok=True)
                    options.json.write_text(json.dumps(kept, indent=1))
        finally:
            standalone.stop()
    return 0


def machine() -> dict[str, Any]:
    """Return what ran: Python, processors and the versions of both clients."""
    versions = {name: importlib.metadata.version(name) for name in ("pulsar-client", "pulsar-native")}
    return {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "processor": _processor(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((each.partition(":")[2].strip() for each in lines if each.startswith("model name")), "")


def heading(sides: Sequence[Side]) -> str:
    """Return the first line of the table."""
    text = f"{'case':<30}{'official':>14}"
    text += "".join(f"{side.name:>14}{'x wall':>9}{'x CPU':>9}{'spread':>9}" for side in sides[1:])
    return text + (f"{'py/c wall':>12}{'py/c CPU':>10}" if len(sides) > 2 else "")


Runs = dict[Side, dict[str, list[float]]]
"""Wall and CPU microseconds per message of each measurement, by side."""


def measure(case: Case, broker: brokers.Standalone, rounds: int, scale: float, sides: Sequence[Side]) -> Runs:
    """Run one case in turns and return its measurements."""
    count = max(100, int(case.messages * scale))
    url = broker.service_url
    topics = {side: _topic(case, side.peer) for side in sides}
    if case.action in _READING:
        for topic in dict.fromkeys(topics.values()):
            if case.partitions:
                create_partitions(broker.admin_url, topic, case.partitions)
            _run(Side("pulsar_native"), "fill", case, topic, url, count)
    runs: Runs = {side: {"wall": [], "cpu": []} for side in sides}
    for number in range(rounds):
        for side in sides:
            new = case.action.startswith("publish")
            topic = f"{topics[side]}-{side.name}-{number}" if new else topics[side]
            for name, seconds in _run(side, case.action, case, topic, url, count).items():
                runs[side][name].append(seconds / count * 1e6)
    return runs


def line(name: str, runs: Runs) -> str:
    """Return the line of the table for the measurements of a case."""
    sides = list(runs)
    wall = {side: statistics.median(runs[side]["wall"]) for side in sides}
    cpu = {side: max(statistics.median(runs[side]["cpu"]), 1e-9) for side in sides}
    text = f"{name:<30}{wall[OFFICIAL]:>9.2f} us/m"
    for side in sides[1:]:
        walls = runs[side]["wall"]
        spread = (max(walls) - min(walls)) / statistics.median(walls)
        text += (
            f"{wall[side]:>9.2f} us/m{wall[OFFICIAL] / wall[side]:>9.1f}{cpu[OFFICIAL] / cpu[side]:>9.1f}{spread:>9.0%}"
        )
    if len(sides) > 2:
        python, compiled = sides[1:]
        text += f"{wall[python] / wall[compiled]:>12.2f}{cpu[python] / cpu[compiled]:>10.2f}"
    return text


def _topic(case: Case, peer: str) -> str:
    domain = "non-persistent" if case.action == "latency" else "persistent"
    name = case.name.replace(" ", "-").replace("+", "and").replace(",", "").replace(":", "")
    return f"{domain}://public/default/bench-{name}-{peer}"


def create_partitions(admin_url: str, topic: str, number: int) -> None:
    """Create a partitioned topic. Blocks up to two minutes."""
    path = topic.replace("://", "/")
    request = urllib.request.Request(f"{admin_url}/admin/v2/{path}/partitions", str(number).encode(), method="PUT")
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request, timeout=120).close()


def _run(side: Side, action: str, case: Case, topic: str, url: str, count: int) -> dict[str, float]:
    request = {
        "peer": side.peer, "action": action, "case_action": case.action, "topic": topic, "url": url,
        "count": count, "size": case.size, "compression": case.compression, "batched": case.batched,
        "described": case.described,
    }  # fmt: skip
    env = {**os.environ, **({"PULSAR_NATIVE_IMPL": side.codec} if side.codec else {})}
    done = subprocess.run(
        [sys.executable, str(HERE / "worker.py"), json.dumps(request)],
        capture_output=True, text=True, timeout=_WORKER_SECONDS, check=False, env=env,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{case.name} with {side.name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    sys.exit(main())
