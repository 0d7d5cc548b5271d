"""Statistics and close reports: immutable values, and sums over what was closed."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from pulsar_native.stats import ClientStats, CloseReport, ConsumerClose, ConsumerStats, ProducerClose, ProducerStats


def closed_producer(sent: int, failed: int, left: int) -> ProducerClose:
    """Return the result of closing a producer."""
    return ProducerClose(topic="t", producer_name="p", sent=sent, failed=failed, left=left)


def closed_consumer(queued: int, acks_sent: int, acks_left: int) -> ConsumerClose:
    """Return the result of closing a consumer."""
    return ConsumerClose(
        topic="t", subscription_name="s", consumer_name="c", queued=queued, acks_sent=acks_sent, acks_left=acks_left
    )


def test_close_report_sums_its_parts() -> None:
    report = CloseReport(
        seconds=0.5,
        producers=(closed_producer(1, 2, 3), closed_producer(10, 20, 30)),
        consumers=(closed_consumer(4, 5, 6), closed_consumer(40, 50, 60)),
    )
    assert (report.sent, report.failed, report.left, report.acks_left, report.complete) == (11, 22, 33, 66, False)
    assert str(report) == (
        "closed in 0.500 s: 11 messages sent, 22 failed, 33 left; "
        "55 acknowledgements sent, 66 left, 44 messages not taken"
    )


@pytest.mark.parametrize(
    ("producer", "consumer", "complete"),
    [
        (closed_producer(1, 0, 0), closed_consumer(5, 1, 0), True),
        (closed_producer(0, 1, 0), closed_consumer(0, 0, 0), True),
        (closed_producer(0, 0, 1), closed_consumer(0, 0, 0), False),
        (closed_producer(0, 0, 0), closed_consumer(0, 0, 1), False),
    ],
)
def test_close_report_complete_without_leftovers(
    producer: ProducerClose, consumer: ConsumerClose, complete: bool
) -> None:
    assert CloseReport(producers=(producer,), consumers=(consumer,)).complete is complete
    assert CloseReport().complete


@pytest.mark.parametrize("kind", [ProducerStats, ConsumerStats, ClientStats])
def test_stats_start_at_zero_and_never_change(kind: type) -> None:
    made = kind()
    for field in dataclasses.fields(kind):
        assert not getattr(made, field.name)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, 1)


def test_stats_of_partitions_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        ProducerStats().partition_stats["t"] = ProducerStats()  # type: ignore[index]
    with pytest.raises(TypeError):
        ConsumerStats().partition_stats["t"] = ConsumerStats()  # type: ignore[index]


def test_close_report_travels() -> None:
    report = CloseReport(producers=(closed_producer(1, 2, 3),))
    assert pickle.loads(pickle.dumps(report)) == report
