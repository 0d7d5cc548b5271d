"""One measurement of latency.py in a process of its own: prints its figures as JSON on its last line.

The same program text for both clients, since one is a drop-in for the other. Times are microseconds, sizes bytes.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

_SENDS = 3_000
_WARM_UP = 300
# End to end: messages a second, and for how long.
_RATE = 1_000
_SECONDS = 4
_MANY = 1_000
_PENDING = 40_000


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the 50th, 99th and 99.9th percentile in microseconds."""
    ordered = sorted(seconds)
    return {
        name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    }


def memory() -> int:
    """Return the resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def send(_pulsar: Any, client: Any, topic: str) -> dict[str, float]:
    """Send one by one, each waiting for its receipt."""
    producer = client.create_producer(topic)
    payload = os.urandom(100)
    found = []
    for _ in range(_SENDS + _WARM_UP):
        began = time.perf_counter()
        producer.send(payload)
        found.append(time.perf_counter() - began)
    return percentiles(found[_WARM_UP:])


def send_beside_busy_thread(pulsar: Any, client: Any, topic: str) -> dict[str, float]:
    """Send one by one while another thread of the process computes."""
    done = threading.Event()

    def compute() -> None:
        while not done.is_set():
            sum(range(10_000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        return send(pulsar, client, topic)
    finally:
        done.set()
        thread.join()


def end_to_end(pulsar: Any, client: Any, topic: str) -> dict[str, float]:
    """Send at a steady rate, and measure the time until `receive` has returned the message in another thread."""
    consumer = client.subscribe(topic, "latency", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    count, found = _RATE * _SECONDS, []

    def receive() -> None:
        for _ in range(count):
            message = consumer.receive(10_000)
            found.append(time.perf_counter() - float(message.data()))
            consumer.acknowledge(message)

    thread = threading.Thread(target=receive)
    thread.start()
    begun = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, begun + number / _RATE - time.perf_counter()))
        producer.send_async(b"%.7f" % time.perf_counter(), None)
    thread.join(30)
    return percentiles(found[_WARM_UP:])


def many(make: Callable[[Any, str, int], Any]) -> Callable[[Any, Any, str], dict[str, float]]:
    """Return what creates a thousand objects, and measures each by its time and memory."""

    def measure(_pulsar: Any, client: Any, topic: str) -> dict[str, float]:
        kept = [make(client, topic, -1)]
        before, began = memory(), time.perf_counter()
        kept += [make(client, topic, number) for number in range(_MANY)]
        seconds = time.perf_counter() - began
        return {"us": seconds / _MANY * 1e6, "bytes": (memory() - before) / _MANY}

    return measure


def pending(_pulsar: Any, client: Any, topic: str) -> dict[str, float]:
    """Queue messages that wait for their batch, and measure each by its memory."""
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=_PENDING + 1,
        batching_max_allowed_size_in_bytes=64 * 1024 * 1024,
        batching_max_publish_delay_ms=60_000,
        max_pending_messages=_PENDING + 1,
    )
    payloads = [os.urandom(100) for _ in range(_PENDING)]
    before = memory()
    for payload in payloads:
        producer.send_async(payload, None)
    return {"bytes": (memory() - before) / _PENDING}


ACTIONS: dict[str, Callable[[Any, Any, str], dict[str, float]]] = {
    "send": send,
    "send-busy": send_beside_busy_thread,
    "end-to-end": end_to_end,
    "producers": many(lambda client, topic, _number: client.create_producer(topic)),
    "consumers": many(lambda client, topic, number: client.subscribe(topic, f"s{number}")),
    "pending": pending,
}


def main() -> None:
    """Do what the request on the command line says."""
    request = json.loads(sys.argv[1])
    began, cpu, before = time.perf_counter(), time.process_time(), memory()
    pulsar = importlib.import_module(request["peer"])
    # What a program needs at once; ours imports the rest then.
    client_class = pulsar.Client
    figures = {
        "us": (time.perf_counter() - began) * 1e6,
        "cpu": (time.process_time() - cpu) * 1e6,
        "bytes": float(memory() - before),
    }
    if request["action"] != "import":
        options = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)} if request["peer"] == "pulsar" else {}
        client = client_class(request["url"], **options)
        figures = ACTIONS[request["action"]](pulsar, client, request["topic"])
    print(json.dumps(figures), flush=True)
    # Closing what is pending, or a thousand objects, is not measured.
    os._exit(0)


if __name__ == "__main__":
    main()
