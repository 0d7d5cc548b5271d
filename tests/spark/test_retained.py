"""Limit of a move of a load's subscription: the loaded intervals, and the messages between them.

The broker is configured as Pulsar is installed, so that it searches by the publish times that the producers gave.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

import pulsar_native
from pulsar_native import InitialPosition
from pulsar_native.engine.producer import producer as producer_module
from pulsar_native.exceptions import SubscriptionNotFound
from pyspark_pulsar.batch_reader import PulsarBatchReader
from pyspark_pulsar.manifest import Delivered
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.positions import Position
from pyspark_pulsar.retained import Interval, _Cursor, advance, format_notes, loaded_until, merged, with_own
from pyspark_pulsar.scan import Counts, counted_batches
from support.brokers import Broker


def test_merged_joins_what_touches() -> None:
    assert merged([(20, 30), (0, 10), (10, 15), (22, 25)]) == [(0, 15), (20, 30)]


@pytest.mark.parametrize(
    ("loaded", "expected"),
    [
        pytest.param([(0, 10)], (10, None), id="all"),
        pytest.param([(6, 10)], (None, 5), id="earlier"),
        pytest.param([(0, 4)], (None, 5), id="later"),
        pytest.param([(0, 6)], (6, None), id="part"),
        pytest.param([(0, 6), (7, 10)], (10, None), id="empty-gap"),
        pytest.param([(0, 6), (9, 10)], (6, 8), id="gap"),
        pytest.param([(0, 2), (4, 10)], (2, 3), id="behind"),
        pytest.param([(4, 10)], (None, 3), id="behind-first"),
    ],
)
def test_loaded_until(loaded: list[Interval], expected: tuple[int | None, int | None]) -> None:
    # In order of their arrival.
    times = (5, 3, 8)
    found = loaded_until(5, loaded, lambda gap: next((at for at in times if gap[0] <= at < gap[1]), None))
    assert found == expected


def test_notes_of_early_load_round_trip() -> None:
    whole, early = with_own('[[0, 10], [20, 30], [30, 40, "7:5"], [4, 9, "7:1"]]', (40, 50), Position(7, 9))
    assert (whole, early) == ([(0, 10), (20, 30)], {(30, 40): Position(7, 5), (40, 50): Position(7, 9)})
    assert format_notes(whole, early, 10) == '[[20, 30], [30, 40, "7:5"], [40, 50, "7:9"]]'
    # Loaded again after the slack.
    assert with_own(format_notes(whole, early, 40), (40, 50), None) == ([(40, 50)], {})


def test_first_gap_begins_at_zero() -> None:
    gaps: list[Interval] = []
    assert loaded_until(5, [(4, 6), (7, 8)], gaps.append) == (8, None)
    assert gaps == [(0, 4), (6, 7)]


class Cursors:
    """An admin client and a broker of one topic without messages, whose statistics have these cursors."""

    def __init__(self, **cursors: str) -> None:
        self.cursors = cursors
        self.starts: list[Any] = []

    def internal_stats(self, topic: str) -> dict[str, Any]:
        return {"cursors": {name: {"markDeletePosition": place} for name, place in self.cursors.items()}}

    def reader(self, topic: str, start: Any, **options: Any) -> Cursors:
        self.starts.append(start)
        return self

    def has_message_available(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("subscription", "entry"), [("a+b", 4), ("a b", 8), ("team/~load*", 6)], ids=["plus", "space", "java"]
)
def test_first_held_reads_its_own_cursor(subscription: str, entry: int) -> None:
    fake = Cursors(**{"a+b": "7:7", "a%2Bb": "7:3", "team%2F%7Eload*": "7:5"})
    cursor = _Cursor(cast(Any, None), subscription, cast(Any, fake), cast(Any, fake), datetime.now(UTC))
    assert cursor._first_held(cast(Any, fake), "t") is None
    assert [(start.ledger_id(), start.entry_id()) for start in fake.starts] == [(7, entry)]


def test_first_held_without_subscription_raises() -> None:
    fake = Cursors()
    cursor = _Cursor(cast(Any, None), "load", cast(Any, fake), cast(Any, fake), datetime.now(UTC))
    with pytest.raises(SubscriptionNotFound, match="'load'"):
        cursor._first_held(cast(Any, fake), "t")


MINUTE = 60_000
HOUR = 60 * MINUTE
START = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)


class Hours:
    """Topic without retention, and loads of its hours with a subscription, which Spark has no part in."""

    def __init__(self, broker: Broker, client: pulsar_native.Client, topic: str) -> None:
        self.broker, self.client, self.topic = broker, client, topic
        client.subscribe(topic, "load", initial_position=InitialPosition.Earliest).close()

    def publish(self, times: Sequence[int]) -> None:
        """Publish a message for each publish time, in ms from the start, with the time as its value."""
        producer = self.client.create_producer(self.topic, batching_enabled=False)
        for at in times:
            clock = SimpleNamespace(monotonic=time.monotonic, time_ns=lambda at=at: (START + at) * 1_000_000)
            with mock.patch.object(producer_module, "time", clock):
                producer.send(str(at).encode())
        producer.close()

    def load(self, hour: int, seconds: float | None = None) -> list[int]:
        """Load an hour, and move the subscription; return the times of its messages, in the order of the topic.

        The plan was made `seconds` after the end of the hour; without them, when this is called.
        """
        options = ReadOptions.parse(
            {
                "service.url": self.broker.service_url,
                "admin.url": self.broker.admin_url,
                "topic": self.topic,
                "startingTime": str(START + hour * HOUR),
                "endingTime": str(START + (hour + 1) * HOUR),
                "columns": "value,__topic,__ledgerId,__entryId,__batchIndex",
            }
        )
        reader, counts, values = PulsarBatchReader(options), cast(Counts, {}), []
        splits = reader.splits()
        for number, split in enumerate(splits):
            for rows in counted_batches(reader, number, pickle.dumps(split), counts):
                values += [int(value) for value in rows["value"].to_pylist()]
        delivered: dict[str, Delivered] = {each.topic: each.delivered for each in counts.values()}
        ranges = [item for split in splits for item in split.ranges]
        planned_at = datetime.now(UTC)
        if seconds is not None:
            planned_at = datetime.fromtimestamp((START + (hour + 1) * HOUR) / 1000 + seconds, UTC)
        advance(options, "load", ranges, delivered, planned_at=planned_at, in_order=False)
        return values

    def held(self) -> int:
        """Return the number of messages that the subscription holds."""
        stats = self.broker.admin("GET", f"{self.topic.replace('://', '/')}/stats")
        assert isinstance(stats, dict)
        return int(stats["subscriptions"]["load"]["msgBacklog"])


@pytest.fixture
def hours(default_broker: Broker) -> Iterator[Hours]:
    """Give the hours of a fresh topic."""
    with pulsar_native.Client(default_broker.service_url) as client:
        yield Hours(default_broker, client, f"persistent://public/default/hours-{time.time_ns()}")


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the data source logged, without the client, whose reader may have to connect again."""
    return [record.getMessage() for record in caplog.records if record.name == "pyspark_pulsar"]


@pytest.mark.parametrize(
    ("minutes", "loaded", "unread"),
    [
        pytest.param((10, 30, 120.02, 119.98, 150, 170), (0, 2), 119.98, id="late"),
        pytest.param((120.02, 119.98, 150, 170), (2,), 119.98, id="late-first"),
        pytest.param((10, 60.02, 59.98, 150, 170, 175), (2,), 10, id="earlier"),
        pytest.param((10, 30, 60.02, 59.98, 150, 170), (0, 2), 60.02, id="early"),
        pytest.param((10, 30, 60.02, 59.98, 60.03, 150, 170), (0, 2), 60.02, id="both"),
        pytest.param((0, 59.98, 60.02, 59.99, 119, 180.02, 179.98, 181), (0, 2, 3), 60.02, id="several"),
    ],
)
def test_subscription_holds_message_out_of_order(
    hours: Hours, caplog: pytest.LogCaptureFixture, minutes: Sequence[float], loaded: Sequence[int], unread: float
) -> None:
    times = [round(minute * MINUTE) for minute in minutes]
    hours.publish(times)
    for hour in loaded:
        assert hours.load(hour) == [at for at in times if at // HOUR == hour]
    first = next(number for number, at in enumerate(times) if at // HOUR not in loaded)
    assert hours.held() >= len(times) - first, "all that was not loaded"
    at = datetime.fromtimestamp((START + round(unread * MINUTE)) / 1000, UTC)
    assert f"it holds messages of {at:%Y-%m-%dT%H:%M:%S}" in _warnings(caplog)[-1]
    caplog.clear()
    for hour in range(4):
        if hour not in loaded:
            assert hours.load(hour) == [at for at in times if at // HOUR == hour]
    # What is within the slack before the end, and the last message.
    assert hours.held() <= 3 and not _warnings(caplog)


def test_subscription_passes_empty_hour(hours: Hours, caplog: pytest.LogCaptureFixture) -> None:
    times = [minute * MINUTE for minute in (10, 59, 121, 150, 170)]
    hours.publish(times)
    for hour in (0, 2):
        hours.load(hour)
    assert hours.held() == 1 and not _warnings(caplog)


def test_loaded_hour_before_held_message_is_noted(hours: Hours, caplog: pytest.LogCaptureFixture) -> None:
    times = [round(minute * MINUTE) for minute in (10, 60.02, 59.98, 90, 150, 170)]
    hours.publish(times)
    hours.load(0)
    # The first message held is of the second hour, and one of the first hour is behind it.
    hours.load(2)
    assert hours.held() == 5 and "it holds messages of 2026-03-01T01:00:01" in caplog.text
    caplog.clear()
    hours.load(1)
    assert hours.held() == 1 and not _warnings(caplog)


def test_reset_to_the_time_of_the_warning_moves_on(hours: Hours, caplog: pytest.LogCaptureFixture) -> None:
    hours.publish([round(minute * MINUTE) for minute in (10, 60.02, 59.98, 90, 110, 130, 170)])
    hours.load(1)
    (message,) = _warnings(caplog)
    assert "reset the subscription to 2026-03-01T01:01:00" in message
    hours.broker.admin(
        "POST", f"{hours.topic.replace('://', '/')}/subscription/load/resetcursor/{START + HOUR + MINUTE}"
    )
    caplog.clear()
    hours.load(2)
    assert hours.held() == 1 and not _warnings(caplog)


def test_subscription_of_early_plans_moves_on(hours: Hours, caplog: pytest.LogCaptureFixture) -> None:
    backlogs = []
    for hour in range(4):
        hours.publish([round((hour * 60 + minute) * MINUTE) for minute in (0.1, 10, 30, 59.99)])
        assert len(hours.load(hour, seconds=10)) == 4
        backlogs.append(hours.held())
    # Each hour is held until the next one is loaded, with the message before the last minute before it and those since.
    assert backlogs == [4, 6, 6, 6] and not _warnings(caplog)


def test_subscription_holds_message_later_than_plan(hours: Hours, caplog: pytest.LogCaptureFixture) -> None:
    times = [round(minute * MINUTE) for minute in (-10, 10, 30, 59.5, 60.1, 59.9, 70, 110, 119.5)]
    hours.publish(times[:1])
    hours.load(-1)
    hours.publish(times[1:4])
    assert hours.load(0, seconds=10) == times[1:4]
    hours.publish(times[4:])
    for seconds in (10, None):
        caplog.clear()
        assert hours.load(1, seconds) == [at for at in times[1:] if at >= HOUR]
        assert "holds messages of 2026-03-01T00:59:54" in _warnings(caplog)[-1]
        assert hours.held() >= 8, "the whole hour, which is to be loaded again"
    caplog.clear()
    assert hours.load(0) == [at for at in times[1:] if at < HOUR]
    # What is within the slack before the end, and the last message.
    assert hours.held() <= 2 and not _warnings(caplog)
