"""Peers of the benchmark against a real broker: each does a small case to its end, in a process of its own."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from types import ModuleType

import pytest

from environments import ROOT
from support.brokers import Broker

PEERS = {"pulsar", "pulsar_native", "java", "drain"}


@pytest.fixture(scope="module")
def run() -> Iterator[ModuleType]:
    """Import benchmarks/run.py, which imports files beside it."""
    folder = str(ROOT / "benchmarks")
    sys.path.insert(0, folder)
    try:
        import run as module  # type: ignore[import-not-found, unused-ignore]

        yield module
    finally:
        sys.path.remove(folder)
        for name in ("run", "cases"):
            sys.modules.pop(name, None)


def measure(run: ModuleType, broker: Broker, action: str, **fields: object) -> dict[str, dict[str, list[float]]]:
    """Run 200 messages of a case by each peer that can, and return what they took."""
    case = run.Case(f"{action} {uuid.uuid4().hex}", action, 100, 200, **fields)
    found = run.measure(case, broker, 1, 1.0, [run.Side(peer) for peer in sorted(PEERS)])
    return {side.peer: runs for side, runs in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"partitions": 3}, {"batched": False}], ids=["partitions", "unbatched"])
def test_receive_case_runs_by_the_drain(run: ModuleType, broker: Broker, fields: dict[str, object]) -> None:
    found = measure(run, broker, "receive", **fields)
    assert found.keys() == PEERS - {"java"}
    assert all(len(runs["wall"]) == 1 and runs["wall"][0] > 0 for runs in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("action", ["receive", "columns"])
def test_plain_case_runs_by_every_peer(run: ModuleType, broker: Broker, action: str) -> None:
    assert measure(run, broker, action).keys() == PEERS


@pytest.mark.slow
def test_publish_case_runs_by_the_java_client(run: ModuleType, broker: Broker) -> None:
    assert measure(run, broker, "publish-callback", described=True).keys() == PEERS - {"drain"}


@pytest.mark.parametrize("action", ["publish-json", "receive-avro", "listeners", "client"])
def test_case_of_python_clients_runs_by_both(run: ModuleType, broker: Broker, action: str) -> None:
    assert measure(run, broker, action, consumers=3).keys() == {"pulsar", "pulsar_native"}


@pytest.mark.slow
def test_control_operations_run_by_both_codecs_in_turns(run: ModuleType, broker: Broker) -> None:
    ours = [run.Side("pulsar_native", codec) for codec in ("python", "compiled")]
    cases = ["partitions", "reader", "last message"]
    found = run.measure_control(cases, broker, 2, 0.05, [run.OFFICIAL, *ours, run.Side("java")])
    rows = ["partitions of a topic", "reader: create", "reader: close", "last message id", "has message, at the end"]
    assert list(found) == rows
    for runs in found.values():
        assert runs.keys() == {run.OFFICIAL, *ours}
        assert all(len(each) == 2 and min(each) > 0 for side in runs.values() for each in side.values())
