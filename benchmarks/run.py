"""Publish and receive, measured against the official client in one interleaved run, printed as ratios.

Usage: make bench, or benchmarks/run.py [--rounds 3] [--scale 1] [--case NAME …] [--impl both] [--peer java]
[--peer drain] [--json FILE].
Every measurement is a process of its own (worker.py); the clients take turns, A B A B, so that a change of the
machine's speed meets both; control operations (create, close, partitions and last message of a topic) are measured by
control.py, where both clients take turns in one process, operation by operation. The ratio is official ÷ ours of the
medians, above 1 is better than the official client. CPU is user + system of the client's process, the steadier figure,
because the broker shares the machine. Absolute figures are those of the machine that ran. With --impl both, our client
runs twice, with its codec in plain Python and compiled (A B C A B C), and the last two figures are plain Python ÷
compiled. With --peer, others take turns too where they can run the case, on a line below, their ratio being theirs ÷
ours: "java" is the Java client (java/Worker.java, its hot paths compiled by unmeasured runs of the same work first),
"drain" reads the socket and throws everything away (drain.py), the limit for receiving. With --json all measurements
are kept, for compare.py and goals.py. All cases with all sides take about 20 minutes on two cores.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "dev"))

from cases import CASES, CONTROL, CONTROL_PAIRS, CONTROL_WARM_UP_PAIRS, Case  # noqa: E402 - beside this file

import broker as brokers  # noqa: E402 - lives in dev/
import java_classes  # noqa: E402
from environments import pulsar_version  # noqa: E402

_WORKER_SECONDS = 300
_JAVA_OPTIONS = ("-Xmx1g",)
# Java's unmeasured runs: at least so many, and until so many messages were handled.
_JAVA_WARM_UP_RUNS = 2
_JAVA_WARM_UP_MESSAGES = 600_000
PEERS = ("java", "drain")
# Topics are read from the broker's memory, as by consumers that keep up. By default entries are kept for a second;
# those of one message come ten times as slowly from the store, whoever reads.
_CONF = {"managedLedgerCacheEvictionTimeThresholdMillis": "600000", "managedLedgerCacheSizeMB": "300"}


@dataclass(frozen=True)
class Side:
    """Side of a measurement: a client by its module, or one of PEERS; of ours the codec to use (none: its choice)."""

    peer: str
    codec: str | None = None

    @property
    def name(self) -> str:
        """Return what the table calls it."""
        return {"pulsar": "official", "pulsar_native": self.codec or "ours"}.get(self.peer, self.peer)

    @property
    def is_ours(self) -> bool:
        """True for this project's client."""
        return self.peer == "pulsar_native"


OFFICIAL = Side("pulsar")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each client and case (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of messages")
    parser.add_argument("--case", action="append", default=[], help="only cases whose name holds this text")
    parser.add_argument("--impl", choices=["python", "compiled", "both"], help="our codec; both: a column for each")
    parser.add_argument("--peer", action="append", choices=PEERS, default=[], help="others that take turns")
    parser.add_argument("--json", type=Path, help="file for all measurements")
    options = parser.parse_args(arguments)

    def is_chosen(name: str) -> bool:
        return not options.case or any(part in name for part in options.case)

    cases = [case for case in CASES if is_chosen(case.name)]
    control = [kind for kind, rows in CONTROL.items() if any(map(is_chosen, rows))]
    codecs = ("python", "compiled") if options.impl == "both" else (options.impl,)
    sides = [OFFICIAL, *(Side("pulsar_native", codec) for codec in codecs), *(Side(peer) for peer in options.peer)]
    with tempfile.TemporaryDirectory(prefix="pulsar-bench-") as folder:
        tls = any(case.tls for case in cases)
        # The heap's size is that of the direct memory, too, where the entries are, and as much again for its store.
        standalone = brokers.Standalone(Path(folder) / "broker", tls=tls, conf=_CONF, heap="2g")
        standalone.start()
        try:
            standalone.wait_ready()
            kept: dict[str, Any] = {**machine(sides), "rounds": options.rounds, "scale": options.scale, "cases": {}}
            print(
                f"Python {kept['python']}, {kept['cpus']} CPUs, {options.rounds} rounds, medians; x = official / ours"
            )
            print(heading(sides))

            def keep(name: str, found: Runs) -> None:
                kept["cases"][name] = {side.name: runs for side, runs in found.items()}
                print(lines(name, found), flush=True)
                if options.json is not None:
                    # After each case: a run that is stopped keeps what it has.
                    options.json.parent.mkdir(parents=True, exist_ok=True)
                    options.json.write_text(json.dumps(kept, indent=1))

            for case in cases:
                keep(case.name, measure(case, standalone, options.rounds, options.scale, sides))
            if control:
                found = measure_control(control, standalone, options.rounds, options.scale, sides)
                for name, runs in found.items():
                    if is_chosen(name):
                        keep(name, runs)
        finally:
            standalone.stop()
    return 0


def machine(sides: Sequence[Side]) -> dict[str, Any]:
    """Return what ran: Python, processors and the versions of the clients."""
    versions = {name: importlib.metadata.version(name) for name in ("pulsar-client", "pulsar-native")}
    if Side("java") in sides:
        versions["java client"] = pulsar_version()
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
    ours = [side for side in sides if side.is_ours]
    text += "".join(f"{side.name:>14}{'x wall':>9}{'x CPU':>9}{'spread':>9}" for side in ours)
    return text + (f"{'py/c wall':>12}{'py/c CPU':>10}" if len(ours) > 1 else "")


Runs = dict[Side, dict[str, list[float]]]
"""Wall and CPU microseconds per message of each measurement, by side."""


def measure(case: Case, broker: brokers.Standalone, rounds: int, scale: float, sides: Sequence[Side]) -> Runs:
    """Run one case in turns and return its measurements, of the sides that can run it."""
    count = max(100, int(case.messages * scale))
    sides = [side for side in sides if case.suits(side.peer)]
    topics = {side: _topic(case, side.peer) for side in sides}
    for topic in dict.fromkeys(topics.values()):
        if case.partitions:
            create_partitions(broker.admin_url, topic, case.partitions)
        if case.is_reading:
            for action in (_filling(case), case.action):
                # The read is not measured: the broker has the topic in its memory then.
                _run(Side("pulsar_native"), action, case, topic, broker, count)
    runs: Runs = {side: {"wall": [], "cpu": []} for side in sides}
    for number in range(rounds):
        for side in sides:
            topic = f"{topics[side]}-{side.name}-{number}" if case.takes_new_topics else topics[side]
            for name, seconds in _run(side, case.action, case, topic, broker, count).items():
                runs[side][name].append(seconds / count * 1e6)
    return runs


def measure_control(
    kinds: Sequence[str], broker: brokers.Standalone, rounds: int, scale: float, sides: Sequence[Side]
) -> dict[str, Runs]:
    """Run kinds of control.py in each round, once for each codec of ours, and return the measurements by row."""
    ours = [side for side in sides if side.is_ours]
    found: dict[str, Runs] = {}
    count = max(20, int(CONTROL_PAIRS * scale))
    # The broker needs that once.
    warm_up = int(CONTROL_WARM_UP_PAIRS * scale)
    for _ in range(rounds):
        measured = {}
        for side in ours:
            measured[side] = _run_control(side, kinds, broker, count, warm_up)
            warm_up = 0
        for row in measured[ours[0]]:
            runs = found.setdefault(row, {side: {"wall": [], "cpu": []} for side in (OFFICIAL, *ours)})
            add_round(runs, {side: measured[side][row] for side in ours})
    return found


def add_round(runs: Runs, measured: Mapping[Side, Mapping[str, Mapping[str, float]]]) -> None:
    """Add a round of control.py: the official client's median, and for each codec that median ÷ its own ratio.

    Each codec ran beside the official client in a process of its own; so its ratio stays that of its own pairs.
    """
    for what in ("wall", "cpu"):
        official = statistics.median(each["official"][what] for each in measured.values())
        runs[OFFICIAL][what].append(official)
        for side, each in measured.items():
            runs[side][what].append(official * each["ours"][what] / each["official"][what])


def lines(name: str, runs: Runs) -> str:
    """Return the lines of the table for the measurements of a case."""
    wall = {side: statistics.median(each["wall"]) for side, each in runs.items()}
    cpu = {side: max(statistics.median(each["cpu"]), 1e-9) for side, each in runs.items()}
    ours = [side for side in runs if side.is_ours]

    def figures(side: Side, above: Side, below: Side) -> str:
        walls = runs[side]["wall"]
        spread = (max(walls) - min(walls)) / statistics.median(walls)
        ratios = "".join(ratio(each[above] / each[below]) for each in (wall, cpu))
        return f"{wall[side]:>9.2f} us/m{ratios}{spread:>9.0%}"

    text = f"{name:<30}{wall[OFFICIAL]:>9.2f} us/m" + "".join(figures(side, OFFICIAL, side) for side in ours)
    if len(ours) > 1:
        python, compiled = ours
        text += f"{wall[python] / wall[compiled]:>12.2f}{cpu[python] / cpu[compiled]:>10.2f}"
    for side in runs:
        if side.peer in PEERS:
            text += f"\n{f'  {side.name} / {ours[-1].name}':<44}" + figures(side, side, ours[-1])
    return text


def ratio(value: float) -> str:
    """Return a ratio as a column of the table."""
    return f"{value:>9.1f}" if value >= 0.995 else f"{value:>9.2f}"


def _topic(case: Case, peer: str) -> str:
    domain = "non-persistent" if case.action == "latency" else "persistent"
    name = re.sub(r"[^\w]+", "-", case.name)
    # The peers beside the two Python clients read what ours reads.
    owner = "pulsar_native" if case.is_reading and peer in PEERS else peer
    return f"{domain}://public/default/bench-{name}-{owner}"


def _filling(case: Case) -> str:
    """Return the action that fills a reading case's topic."""
    return case.action.replace("receive-", "publish-") if case.action in ("receive-json", "receive-avro") else "fill"


def create_partitions(admin_url: str, topic: str, number: int) -> None:
    """Create a partitioned topic. Blocks up to two minutes."""
    path = topic.replace("://", "/")
    request = urllib.request.Request(f"{admin_url}/admin/v2/{path}/partitions", str(number).encode(), method="PUT")
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request, timeout=120).close()


def _run(side: Side, action: str, case: Case, topic: str, broker: brokers.Standalone, count: int) -> dict[str, float]:
    request = {
        "peer": side.peer, "action": action, "topic": topic, "count": count, "size": case.size,
        "compression": case.compression, "batched": case.batched, "described": case.described,
        "partitions": case.partitions, "consumers": case.consumers, "warmUp": _warm_up(count),
        "url": broker.service_url_tls if case.tls else broker.service_url,
        "authority": str(broker.certificates.authority) if case.tls else None,
    }  # fmt: skip
    result: dict[str, float] = _last_line(case.name, side, [*_program(side), json.dumps(request)])
    return result


def _run_control(
    side: Side, kinds: Sequence[str], broker: brokers.Standalone, count: int, warm_up: int
) -> dict[str, dict[str, dict[str, float]]]:
    command = [sys.executable, str(HERE / "control.py"), "--json", "--url", broker.service_url]
    command += ["--count", str(count), "--warm-up", str(warm_up)]
    command += [each for kind in kinds for each in ("--case", kind)]
    result: dict[str, dict[str, dict[str, float]]] = _last_line("control.py", side, command)
    return result


def _last_line(name: str, side: Side, command: Sequence[str]) -> Any:
    """Run a measurement with our codec of that side and return the JSON of its last line; raises SystemExit."""
    env = {**os.environ, **({"PULSAR_NATIVE_IMPL": side.codec} if side.codec else {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WORKER_SECONDS, check=False, env=env)
    if done.returncode:
        raise SystemExit(f"{name} with {side.name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _warm_up(count: int) -> int:
    return max(_JAVA_WARM_UP_RUNS, min(10, _JAVA_WARM_UP_MESSAGES // count))


def _program(side: Side) -> list[str]:
    if side.peer == "java":
        classes = java_classes.compiled([HERE / "java" / "Worker.java"], "java-worker")
        return java_classes.command(classes, "Worker", _JAVA_OPTIONS)
    return [sys.executable, str(HERE / ("drain.py" if side.peer == "drain" else "worker.py"))]


if __name__ == "__main__":
    sys.exit(main())
