"""Growth: cost per message and memory as messages, partitions, unacknowledged messages, producers and consumers grow.

    make bench-growth, or .envs/spark/bin/python benchmarks/growth.py [--rounds 3] [--most 1000000] [--url URL]
        [--admin-url URL] [--series NAME …] [--json FILE] [--plots FOLDER]

Each point is a process of its own, measured `--rounds` times in turns over all points of its series, so that a change
of the machine's speed meets every point alike; printed are the medians as Markdown. CPU is user and system time of the
client's process, memory the growth of its resident size. Flat columns are what is wanted: a rising one is a cost that
depends on more than the message. With `--plots` the series are drawn as SVG (matplotlib). With `--series` the file of
`--json` keeps the other series it has.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "dev"))

from run import create_partitions  # noqa: E402 - beside this file

import broker as brokers  # noqa: E402 - lives in dev/

_WORKER_SECONDS = 900
_SIZE = 100
Point = dict[str, float]


@dataclass(frozen=True)
class Series:
    """One kind of growth: its name, the axis, the points, and what one step is ("message", "producer")."""

    name: str
    axis: str
    points: tuple[int, ...]
    step: str = "message"

    def steps(self, point: int, messages: int) -> int:
        """Return by how many steps the cost of a point is divided."""
        if self.step != "message":
            return point
        return point if self.axis == "messages" else messages


SERIES = (
    Series("publish", "messages", (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)),
    Series("receive", "messages", (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)),
    Series("columns", "messages", (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)),
    Series("receive-partitions", "partitions", (1, 4, 16, 64, 256, 1_000)),
    Series("receive-unacknowledged", "unacknowledged messages", (1, 10, 100, 1_000, 10_000)),
    Series("producers", "producers", (1, 10, 100, 1_000), "producer"),
    Series("consumers", "consumers", (1, 10, 100, 1_000), "consumer"),
)
# Messages of the series that grow by something else; those of all partitions together.
_MESSAGES = 200_000


# ---- one measurement, in a process of its own ------------------------------------------------------------------------


def measure(request: dict[str, Any]) -> Point:
    """Do what the request says and return wall and CPU seconds and the growth of the resident size in bytes."""
    import pulsar_native as pulsar

    with pulsar.Client(request["url"], memory_limit_bytes=0) as client:
        work = WORK[request["series"]](pulsar, client, request)
        size, cpu, wall = _resident(), time.process_time(), time.perf_counter()
        work()
        return {
            "wall": time.perf_counter() - wall,
            "cpu": time.process_time() - cpu,
            "bytes": max(0, _resident() - size),
        }


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _contents(count: int) -> Any:
    payloads = [os.urandom(_SIZE) for _ in range(256)]
    return (payloads[number & 255] for number in range(count))


def fill(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Publish what a reading series finds."""

    def run() -> None:
        with client.create_producer(
            request["topic"], batching_enabled=True, max_pending_messages=50_000, block_if_queue_full=True
        ) as producer:
            producer.send_many(_contents(request["messages"]))

    return run


def publish(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Send each message by itself, batched, and flush."""
    producer = client.create_producer(
        request["topic"], batching_enabled=True, max_pending_messages=50_000, block_if_queue_full=True
    )

    def run() -> None:
        send = producer.send_async
        for content in _contents(request["messages"]):
            send(content, None)
        producer.flush()

    return run


def receive(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Receive and acknowledge all, `held` messages later."""
    held = request["point"] if request["series"] == "receive-unacknowledged" else 1
    consumer = client.subscribe(
        request["topic"],
        f"growth-{uuid.uuid4().hex}",
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )

    def run() -> None:
        open_messages: deque[Any] = deque()
        for _ in range(request["messages"]):
            open_messages.append(consumer.receive(60_000))
            if len(open_messages) >= held:
                consumer.acknowledge(open_messages.popleft())
        while open_messages:
            consumer.acknowledge(open_messages.popleft())

    return run


def columns(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Read record batches up to the topic's last message."""
    import pyarrow  # noqa: F401 - imported before anything is measured

    reader = client.create_reader(request["topic"], pulsar.MessageId.earliest)

    def run() -> None:
        (end,) = reader.get_last_message_ids()
        rows = sum(len(batch) for batch in reader.arrow_batches(end=end))
        # The end is exclusive.
        if rows != request["messages"] - 1:
            raise SystemExit(f"{rows} rows of {request['messages']}")

    return run


def producers(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Create producers of one topic, and keep them."""
    kept: list[Any] = request["kept"]
    return lambda: kept.extend(client.create_producer(request["topic"]) for _ in range(request["point"]))


def consumers(pulsar: Any, client: Any, request: dict[str, Any]) -> Callable[[], None]:
    """Create consumers of one subscription, and keep them."""
    kept: list[Any] = request["kept"]
    shared = pulsar.ConsumerType.Shared
    return lambda: kept.extend(client.subscribe(request["topic"], "all", shared) for _ in range(request["point"]))


WORK: dict[str, Callable[[Any, Any, dict[str, Any]], Callable[[], None]]] = {
    "fill": fill,
    "publish": publish,
    "receive": receive,
    "columns": columns,
    "receive-partitions": receive,
    "receive-unacknowledged": receive,
    "producers": producers,
    "consumers": consumers,
}


# ---- the series ------------------------------------------------------------------------------------------------------


def run_series(series: Series, options: argparse.Namespace) -> dict[int, Point]:
    """Measure every point of a series and return the medians by point."""
    points = [point for point in series.points if point <= _largest(series, options)]
    topics: dict[int, str] = {}
    for point in points:
        topics[point] = _filled_topic(series, point, options)
    runs: dict[int, list[Point]] = {point: [] for point in points}
    for _ in range(options.rounds):
        for point in points:
            topic = topics[point] if series.name != "publish" else _new_topic(series)
            runs[point].append(_in_process(series.name, point, _messages(series, point, options), topic, options))
    return {point: _medians(series, point, runs[point], options) for point in points}


def _largest(series: Series, options: argparse.Namespace) -> int:
    return int(options.most) if series.axis == "messages" else series.points[-1]


def _messages(series: Series, point: int, options: argparse.Namespace) -> int:
    return point if series.axis == "messages" else min(_MESSAGES, options.most)


def _medians(series: Series, point: int, runs: Sequence[Point], options: argparse.Namespace) -> Point:
    steps = series.steps(point, _messages(series, point, options))
    return {
        "wall_us": statistics.median(run["wall"] for run in runs) / steps * 1e6,
        "cpu_us": statistics.median(run["cpu"] for run in runs) / steps * 1e6,
        "megabytes": statistics.median(run["bytes"] for run in runs) / 1e6,
    }


def _new_topic(series: Series) -> str:
    return f"persistent://public/default/growth-{series.name}-{uuid.uuid4().hex}"


def _filled_topic(series: Series, point: int, options: argparse.Namespace) -> str:
    topic = _new_topic(series)
    if series.axis == "partitions" and point > 1:
        create_partitions(options.admin_url, topic, point)
    if series.step == "message" and series.name != "publish":
        _in_process("fill", point, _messages(series, point, options), topic, options)
    return topic


def _in_process(name: str, point: int, messages: int, topic: str, options: argparse.Namespace) -> Point:
    request = {"series": name, "point": point, "messages": messages, "topic": topic, "url": options.url}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--measure", json.dumps(request)],
        capture_output=True, text=True, timeout=_WORKER_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{name} with {point} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    found: Point = json.loads(done.stdout.splitlines()[-1])
    return found


def table(series: Series, found: dict[int, Point]) -> str:
    """Return a series as a Markdown table."""
    lines = [
        f"| {series.name}: {series.axis} | wall us per {series.step} | CPU us per {series.step} | memory MB |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for point, each in found.items():
        lines.append(f"| {point:,} | {each['wall_us']:.2f} | {each['cpu_us']:.2f} | {each['megabytes']:.1f} |")
    return "\n".join(lines) + "\n"


def figures(results: Mapping[str, dict[int, Point]]) -> dict[str, list[Series]]:
    """Return the series of each figure by its name: those with the same axis share one."""
    found: dict[str, list[Series]] = {}
    for series in SERIES:
        if results.get(series.name):
            found.setdefault(series.axis.replace(" ", "-"), []).append(series)
    return found


def plot(name: str, together: Sequence[Series], results: Mapping[str, dict[int, Point]], folder: Path) -> None:
    """Draw cost and memory of the series of one figure over their axis, which is logarithmic, as growth-NAME.svg."""
    import matplotlib

    matplotlib.use("svg")
    # The same figures give the same file, and text stays text.
    matplotlib.rcParams.update({"svg.hashsalt": "growth", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, (costs, memory) = pyplot.subplots(1, 2, figsize=(9, 3))
    for number, series in enumerate(together):
        found, color = results[series.name], f"C{number}"
        for key, label, style in (("wall_us", "wall", "-"), ("cpu_us", "CPU", "--")):
            values = [each[key] for each in found.values()]
            costs.plot(list(found), values, style, color=color, marker="o", label=f"{series.name}, {label}")
        values = [each["megabytes"] for each in found.values()]
        memory.plot(list(found), values, color=color, marker="o", label=series.name)
    costs.set_ylabel(f"µs per {together[0].step}")
    memory.set_ylabel("MB of memory more")
    for axes in (costs, memory):
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(together[0].axis)
        axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(folder / f"growth-{name}.svg", metadata={"Date": None})
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the series, print them, and write what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each point (default 3)")
    parser.add_argument("--most", type=int, default=1_000_000, help="messages at the most (default 1,000,000)")
    parser.add_argument("--series", action="append", choices=[each.name for each in SERIES], help="only these")
    parser.add_argument("--url", help="service URL of a running broker; by default one is started")
    parser.add_argument("--admin-url", help="URL of its admin interface")
    parser.add_argument("--json", type=Path, help="file for the medians; keeps its other series with --series")
    parser.add_argument("--plots", type=Path, help="folder for the plots")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure is not None:
        print(json.dumps(measure({**json.loads(options.measure), "kept": []})))
        return 0
    if (options.url is None) != (options.admin_url is None):
        parser.error("--url and --admin-url belong together")
    if options.url is not None:
        return run_all(options)
    with tempfile.TemporaryDirectory(prefix="pulsar-growth-") as folder:
        standalone = brokers.Standalone(Path(folder) / "broker")
        standalone.start()
        try:
            standalone.wait_ready()
            options.url, options.admin_url = standalone.service_url, standalone.admin_url
            return run_all(options)
        finally:
            standalone.stop()


def run_all(options: argparse.Namespace) -> int:
    """Run the chosen series against a running broker."""
    results = kept(options)
    for series in SERIES:
        if not options.series or series.name in options.series:
            found = results[series.name] = run_series(series, options)
            print(table(series, found), flush=True)
            write(results, options)
    return 0


def kept(options: argparse.Namespace) -> dict[str, dict[int, Point]]:
    """Return the series of the JSON file, when only some are measured: a long run can be made in parts."""
    if not options.series or options.json is None or not options.json.exists():
        return {}
    found = json.loads(options.json.read_text())
    return {name: {int(point): each for point, each in points.items()} for name, points in found.items()}


def write(results: Mapping[str, dict[int, Point]], options: argparse.Namespace) -> None:
    """Write what was asked for; after each series, so that a run that is stopped keeps what it has."""
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1))
    if options.plots is not None:
        options.plots.mkdir(parents=True, exist_ok=True)
        for name, together in figures(results).items():
            plot(name, together, results, options.plots)


if __name__ == "__main__":
    sys.exit(main())
