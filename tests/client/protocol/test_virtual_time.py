"""Timing rules of the protocol in virtual time: no module reads a clock, sleeps or uses its own randomness."""

from __future__ import annotations

import ast
import random
import time
from pathlib import Path

import pytest

import pulsar_native
from pulsar_native.config import ProducerConfig
from pulsar_native.enums import HashingScheme
from pulsar_native.exceptions import Timeout
from pulsar_native.message import OutgoingMessage
from pulsar_native.protocol.backoff import Backoff
from pulsar_native.protocol.connection import ConnectionCore
from pulsar_native.protocol.nack_tracker import NegativeAcksTracker
from pulsar_native.protocol.producer import ProducerCore
from pulsar_native.protocol.routing import RoundRobinRouting
from pulsar_native.protocol.unacked_tracker import UnackedMessageTracker
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

OUTSIDE = {"asyncio", "socket", "ssl", "threading", "time", "datetime", "random", "secrets", "select", "selectors"}
DAY = 86_400.0


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every real clock, sleep and die an error."""

    def never(*_: object) -> float:
        raise AssertionError("the protocol looked at the real clock, or rolled dice of its own")

    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep"):
        monkeypatch.setattr(time, name, never)
    for name in ("random", "uniform", "randrange", "choice"):
        monkeypatch.setattr(random, name, never)


PACKAGE = Path(pulsar_native.__path__[0])
PUSH = ("key_queue", "process_queue", "flow_control", "send_message_back", "offset_file")


@pytest.mark.proves("N13")
@pytest.mark.parametrize(
    "files",
    [sorted((PACKAGE / name).glob("*.py")) for name in ("protocol", "wire", "arrow")]
    + [[PACKAGE / "push" / f"{name}.py" for name in PUSH]],
    ids=["protocol", "wire", "arrow", "push"],
)
def test_protocol_imports_no_clock_socket_random(files: list[Path]) -> None:
    assert len(files) > 4
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            assert not {name.partition(".")[0] for name in names} & OUTSIDE, (file.name, names)


@pytest.mark.proves("N13")
def test_virtual_time_requests_and_keep_alive() -> None:
    core = ConnectionCore("broker", keep_alive=30.0, request_timeout=30.0)
    welcome = pb.CommandConnected(server_version="any", protocol_version=21)
    core.receive(commands.encode_command(pb.BaseCommand(type=commands.Kind.CONNECTED, connected=welcome)))
    core.register(1, "first", DAY, timeout=None)
    core.register(2, "second", DAY + 10, timeout=5.0)
    assert core.next_deadline() == DAY + 15
    assert [each.sink for each in core.expire(DAY + 14.999)] == []
    assert [(each.sink, type(each.error)) for each in core.expire(DAY + 15)] == [("second", Timeout)]
    assert [each.sink for each in core.expire(DAY + 30)] == ["first"]
    assert core.next_deadline() is None
    # The interval is the caller's: one PING without an answer is borne, the second is not sent.
    assert core.keep_alive_due() and not core.keep_alive_due()


@pytest.mark.proves("N13")
def test_virtual_time_batches_and_send_timeouts() -> None:
    config = ProducerConfig(
        topic="t", batching_enabled=True, batching_max_publish_delay_ms=250, send_timeout_millis=30_000
    )
    core = ProducerCore(config, 0, topic="t", partition=-1)
    assert core.next_expiry() is None
    core.add(b"a", b"", None, None, DAY, 0)
    core.add(b"b", b"", None, None, DAY + 0.2, 0)
    assert core.batch_due() == DAY + 0.25 and core.next_expiry() == DAY + 30
    core.close_batch()
    core.add(b"c", b"", None, None, DAY + 29, 0)
    assert core.expire(DAY + 29.999) == []
    # Of the oldest message all are given up, the open batch too.
    assert [op.count for op in core.expire(DAY + 30)] == [2, 1]
    assert core.next_expiry() is None and core.pending_messages == 0


@pytest.mark.proves("N13")
def test_virtual_time_backoff() -> None:
    backoff = Backoff(0.1, 60.0, lambda: 0.0, mandatory_stop=0.0)
    now = DAY
    delays = []
    for _ in range(12):
        delays.append(backoff.next(now))
        now += delays[-1]
    assert delays == pytest.approx([0.1 * 2**step for step in range(10)] + [60.0, 60.0])
    assert Backoff(0.1, 60.0, lambda: 1.0).next(DAY) == 0.1


@pytest.mark.proves("N13")
def test_virtual_time_redelivery() -> None:
    refused = NegativeAcksTracker(60.0)
    refused.add((1, 1), DAY)
    due = refused.next_due()
    assert due is not None and DAY + 60 <= due < DAY + 61
    assert refused.pop_due(DAY + 59.9) == [] and refused.pop_due(due) == [(1, 1)]
    watched = UnackedMessageTracker(10.0, 1.0)
    watched.add((1, 1))
    ticks = 0
    while not watched.advance():
        ticks += 1
    assert 9 <= ticks <= 11


@pytest.mark.proves("N13")
def test_virtual_time_round_robin() -> None:
    routing = RoundRobinRouting(HashingScheme.JavaStringHash, 0, switch_seconds=0.1)
    message = OutgoingMessage(b"")
    assert len({routing.choose(message, 4, DAY + 0.1 * step + 0.05) for step in range(4)}) == 4
    assert len({routing.choose(message, 4, DAY + 0.05 + 0.001 * step) for step in range(4)}) == 1
