"""Control operations of both clients in turns, in one process: create, close, partitions of a topic.

Usage: benchmarks/control.py [--count 300] [--case NAME …] [--url URL]; without a URL it starts a broker of its own.
Every operation of one client is followed by the same of the other, and each pair begins with the other client than the
one before; printed are the medians and the median of the pairs' ratios, official ÷ ours, above 1 is better than the
official client. So what the machine does besides meets both clients alike, and rare long waits count as one pair only:
this is the measure for operations of a tenth of a millisecond on a machine that is shared, where the totals of run.py
follow the load.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
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

import broker as brokers  # noqa: E402 - lives in dev/

_WARM_UP = 20
Make = Callable[[Any, Any, str, int], Any]

MAKE: dict[str, Make] = {
    "producer": lambda _pulsar, client, topic, _number: client.create_producer(topic),
    "consumer": lambda _pulsar, client, topic, number: client.subscribe(topic, f"sub-{number % 7}"),
    "reader": lambda pulsar, client, topic, _number: client.create_reader(topic, pulsar.MessageId.earliest),
}
CASES = ("partitions", *MAKE)


class Peer:
    """One of the clients, with the seconds its operations took."""

    def __init__(self, name: str, url: str) -> None:
        self.pulsar = importlib.import_module(name)
        quiet = {"logger": self.pulsar.ConsoleLogger(self.pulsar.LoggerLevel.Error)} if name == "pulsar" else {}
        self.client = self.pulsar.Client(url, **quiet)
        self.topic = ""
        self.seconds: dict[str, list[float]] = {}

    def start(self) -> None:
        """Take a topic of its own, which exists."""
        self.topic = f"persistent://public/default/control-{uuid.uuid4().hex}"
        self.client.create_producer(self.topic).close()
        self.seconds = {}

    def make(self, kind: str, number: int) -> Any:
        """Create a producer, a consumer or a reader."""
        return MAKE[kind](self.pulsar, self.client, self.topic, number)

    def timed(self, what: str, action: Callable[[], Any]) -> Any:
        """Do it and note its time."""
        began = time.perf_counter()
        result = action()
        self.seconds.setdefault(what, []).append(time.perf_counter() - began)
        return result


def take_turns(case: str, peers: Sequence[Peer], count: int) -> None:
    """Run one case and print its lines."""
    for peer in peers:
        peer.start()
    for number in range(count + _WARM_UP):
        order = peers if number % 2 else peers[::-1]
        if case == "partitions":
            for peer in order:
                peer.timed(case, partial(peer.client.get_topic_partitions, peer.topic))
            continue
        made = [(peer, peer.timed(f"{case}: create", partial(peer.make, case, number))) for peer in order]
        for peer, each in made:
            peer.timed(f"{case}: close", each.close)
    official, ours = peers
    for what in official.seconds:
        print(line(what, official.seconds[what][_WARM_UP:], ours.seconds[what][_WARM_UP:]), flush=True)


def line(what: str, official: Sequence[float], ours: Sequence[float]) -> str:
    """Return a line of the table."""
    quarter = len(official) // 4
    ratios = [one / other for one, other in zip(official, ours, strict=True)]
    low = sorted(official)[quarter] / sorted(ours)[quarter]
    return (
        f"{what:<20}{statistics.median(official) * 1e6:>10.0f} us{statistics.median(ours) * 1e6:>10.0f} us"
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
    parser.add_argument("--count", type=int, default=300, help="pairs of each case (default 300)")
    parser.add_argument("--case", action="append", choices=CASES, help="only these cases")
    parser.add_argument("--url", help="service URL of a running broker")
    options = parser.parse_args(arguments)
    with served(options.url) as url:
        peers = [Peer("pulsar", url), Peer("pulsar_native", url)]
        print(f"{'operation':<20}{'official':>13}{'ours':>13}{'x pairs':>9}{'x p25':>9}", flush=True)
        for case in options.case or CASES:
            take_turns(case, peers, options.count)
        for peer in peers:
            peer.client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
