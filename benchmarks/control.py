"""Control operations of both clients in turns, in one process: create, close, partitions and last message of a topic.

Usage: benchmarks/control.py [--count 300] [--warm-up 2000] [--case NAME …] [--url URL] [--json]; without a URL it
starts a broker of its own. run.py measures its rows of these operations by this program, a process for each round and
codec.
A broker that has just started is two to three times as slow, and what compiles its code keeps the cores busy, until it
has served some thousands of these operations: pairs of all cases, before those that are measured, are for that.
Every operation of one client is followed by the same of the other, and each pair begins with the other client than the
one before; printed are the medians and the median of the pairs' ratios, official ÷ ours, above 1 is better than the
official client. So what the machine does besides meets both clients alike, and rare long waits count as one pair only:
this is the measure for operations of a tenth of a millisecond on a machine that is shared, where totals of separate
processes follow the load. With --json the last line holds the figures, in microseconds an operation.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "dev"))

from cases import CONTROL, CONTROL_PAIRS, CONTROL_WARM_UP_PAIRS  # noqa: E402 - beside this file

import broker as brokers  # noqa: E402 - lives in dev/

# Pairs on new topics that are not measured.
_FIRST = 20
Make = Callable[[Any, Any, str, int], Any]

MAKE: dict[str, Make] = {
    "producer": lambda _pulsar, client, topic, _number: client.create_producer(topic),
    "consumer": lambda _pulsar, client, topic, number: client.subscribe(topic, f"sub-{number % 7}"),
    "reader": lambda pulsar, client, topic, _number: client.create_reader(topic, pulsar.MessageId.earliest),
}
# Wall and CPU seconds of each operation, by the operation's name.
Seconds = dict[str, list[tuple[float, float]]]
Figures = dict[str, dict[str, float]]
"""Wall and CPU microseconds of an operation: "official", and "ours"."""


class Peer:
    """One of the clients, with the seconds its operations took."""

    def __init__(self, name: str, url: str) -> None:
        self.pulsar = importlib.import_module(name)
        quiet = {"logger": self.pulsar.ConsoleLogger(self.pulsar.LoggerLevel.Error)} if name == "pulsar" else {}
        self.client = self.pulsar.Client(url, **quiet)
        self.topic = ""
        self.seconds: Seconds = {}

    def start(self) -> None:
        """Take a topic of its own, which exists."""
        self.topic = f"persistent://public/default/control-{uuid.uuid4().hex}"
        self.client.create_producer(self.topic).close()
        self.seconds = {}

    def make(self, kind: str, number: int) -> Any:
        """Create a producer, a consumer or a reader."""
        return MAKE[kind](self.pulsar, self.client, self.topic, number)

    def questions(self, case: str) -> dict[str, Callable[[], Any]]:
        """Return the operations of a case that only asks the broker, by their names; none for the other cases."""
        if case == "partitions":
            return {"partitions of a topic": partial(self.client.get_topic_partitions, self.topic)}
        if case == "last message":
            reader = self.client.create_reader(self.topic, self.pulsar.MessageId.earliest)
            consumer = self.client.subscribe(self.topic, "sub")
            producer = self.client.create_producer(self.topic)
            producer.send(b"the last one")
            producer.close()
            consumer.receive()
            reader.read_next()
            return {
                "last message id": consumer.get_last_message_id,
                "has message, at the end": reader.has_message_available,
            }
        return {}

    def timed(self, what: str, action: Callable[[], Any]) -> Any:
        """Do it and note its time: wall, and CPU of the whole process, threads of the client included."""
        cpu, wall = time.process_time(), time.perf_counter()
        result = action()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.seconds.setdefault(what, []).append((wall, cpu))
        return result


def take_turns(case: str, peers: Sequence[Peer], count: int) -> None:
    """Run this number of pairs of one case, on new topics."""
    for peer in peers:
        peer.start()
    questions = {peer: peer.questions(case) for peer in peers}
    for number in range(count):
        order = peers if number % 2 else peers[::-1]
        if questions[order[0]]:
            for what in questions[order[0]]:
                for peer in order:
                    peer.timed(what, questions[peer][what])
            continue
        made = [(peer, peer.timed(f"{case}: create", partial(peer.make, case, number))) for peer in order]
        for peer, each in made:
            peer.timed(f"{case}: close", each.close)


def measure(case: str, peers: Sequence[Peer], count: int) -> dict[str, Figures]:
    """Run one case, print its lines and return the figures of its operations."""
    take_turns(case, peers, count + _FIRST)
    official, ours = peers
    found = {}
    for what in official.seconds:
        pairs = official.seconds[what][_FIRST:], ours.seconds[what][_FIRST:]
        print(line(what, *([wall for wall, _ in each] for each in pairs)), flush=True)
        found[what] = figures(*pairs)
    return found


def figures(official: Sequence[tuple[float, float]], ours: Sequence[tuple[float, float]]) -> Figures:
    """Return the official client's medians, and ours as that median divided by the median of the pairs' ratios.

    So official ÷ ours is what the pairs gave, not what two medians give that were taken in different moments.
    """
    found: Figures = {"official": {}, "ours": {}}
    for place, what in enumerate(("wall", "cpu")):
        pairs = [(max(one[place], 1e-9), max(other[place], 1e-9)) for one, other in zip(official, ours, strict=True)]
        median = statistics.median(one for one, _ in pairs) * 1e6
        found["official"][what] = median
        found["ours"][what] = median / statistics.median(one / other for one, other in pairs)
    return found


def line(what: str, official: Sequence[float], ours: Sequence[float]) -> str:
    """Return a line of the table."""
    quarter = len(official) // 4
    ratios = [one / other for one, other in zip(official, ours, strict=True)]
    low = sorted(official)[quarter] / sorted(ours)[quarter]
    return (
        f"{what:<24}{statistics.median(official) * 1e6:>10.0f} us{statistics.median(ours) * 1e6:>10.0f} us"
        f"{statistics.median(ratios):>9.2f}{low:>9.2f}"
    )


@contextlib.contextmanager
def served(url: str | None) -> Iterator[str]:
    """Give the URL of a broker: the one named, or one of its own."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="pulsar-bench-") as folder:
        standalone = brokers.Standalone(Path(folder) / "broker")
        standalone.start()
        try:
            standalone.wait_ready()
            yield standalone.service_url
        finally:
            standalone.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=CONTROL_PAIRS, help="pairs of each case (default %(default)s)")
    parser.add_argument(
        "--warm-up", type=int, default=CONTROL_WARM_UP_PAIRS, help="pairs before them (default %(default)s)"
    )
    parser.add_argument("--case", action="append", choices=tuple(CONTROL), help="only these cases")
    parser.add_argument("--url", help="service URL of a running broker")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON in the last line")
    options = parser.parse_args(arguments)
    with served(options.url) as url:
        peers = [Peer("pulsar", url), Peer("pulsar_native", url)]
        print(f"{'operation':<24}{'official':>13}{'ours':>13}{'x pairs':>9}{'x p25':>9}", flush=True)
        found: dict[str, Figures] = {}
        cases = options.case or CONTROL
        for case in cases:
            take_turns(case, peers, options.warm_up)
        for case in cases:
            found |= measure(case, peers, options.count)
        for peer in peers:
            peer.client.close()
    if options.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
