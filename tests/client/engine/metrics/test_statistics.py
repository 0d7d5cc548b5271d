"""Percentiles and intervals, in virtual time."""

from __future__ import annotations

import random

import pytest

from pulsar_native.engine.metrics.statistics import PRODUCER_COUNTS, Durations, Latencies, ProducerRecorder, Recorder
from pulsar_native.protocol.send_op import SendOp


@pytest.mark.proves("C183")
def test_latencies_percentiles_within_bucket() -> None:
    chance = random.Random(7)
    values = sorted(chance.lognormvariate(-5, 1.5) for _ in range(5000))
    latencies = Latencies()
    for value in chance.sample(values, len(values)):
        latencies.add(value)
    for share in (0.5, 0.75, 0.95, 0.99, 0.999):
        exact = values[round(share * len(values)) - 1]
        assert latencies.percentile(share) == pytest.approx(exact, rel=0.05)
    assert latencies.millis()["send_latency_millis_max"] == values[-1] * 1000


def test_latencies_percentile_at_most_maximum_or_zero() -> None:
    latencies = Latencies()
    assert set(latencies.millis().values()) == {0.0}
    latencies.add(0.0)
    assert latencies.percentile(0.5) == 0.0
    latencies.add(0.25)
    assert latencies.percentile(1) <= 0.25


def test_latencies_merge() -> None:
    first, second, both = Latencies(), Latencies(), Latencies()
    for number in range(1, 100):
        (first if number % 2 else second).add(number / 1000)
        both.add(number / 1000)
    first.merge(second)
    assert first.millis() == both.millis()


def test_recorder_intervals_share_totals() -> None:
    recorder = Recorder(("a",), 100.0)
    recorder.count("a", 10)
    found = recorder.figures(recorder.counts, {"a": "rate"}, 104.0)
    assert found == {"interval_seconds": 4.0, "total_a": 10, "num_a": 10, "rate": 2.5}
    recorder.roll(104.0, recorder.counts)
    recorder.count("a", 5)
    assert recorder.figures(recorder.counts, {"a": "rate"}, 106.0) == {
        "interval_seconds": 2.0,
        "total_a": 15,
        "num_a": 5,
        "rate": 2.5,
    }
    assert recorder.figures(recorder.counts, {"a": "rate"}, 104.0)["rate"] == 0.0


def test_recorder_latency_from_first_message() -> None:
    told: list[tuple[float, bool]] = []
    sent: list[tuple[float, bool]] = []
    durations = Durations(lambda *took: told.append(took), lambda *took: sent.append(took))
    recorder = ProducerRecorder(0.0, durations)
    op = SendOp(0, 2, (), [None, None, None], 30, created=5.0)
    recorder.sent([op, op])
    op.written = 5.25
    recorder.completed(op, False, 5.5)
    recorder.completed(op, True, 6.0)
    assert recorder.counts == dict(zip(PRODUCER_COUNTS, (6, 60, 3, 3), strict=True))
    assert told == [(0.5, False), (1.0, True)]
    assert sent == [(0.25, False), (0.75, True)]
    assert recorder.seen().maximum == 0.5
    recorder.roll(7.0, recorder.counts)
    assert recorder.seen().maximum == 0.0
    # What fails before it was written was never on its way.
    recorder.completed(SendOp(3, 3, (), [None], 10, created=7.0), True, 8.0)
    assert (len(told), len(sent)) == (3, 2)


def test_recorder_written_time_only_when_measured() -> None:
    recorder = ProducerRecorder(0.0, None)
    op = SendOp(0, 0, (), [None], 10, created=5.0)
    recorder.sent([op])
    assert not hasattr(op, "written")
    recorder.completed(op, False, 5.5)
