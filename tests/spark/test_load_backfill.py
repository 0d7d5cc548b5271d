"""Loads of hourly intervals done again, backfilled out of order, and with late messages: identical tables.

The broker is configured as Pulsar is installed, so that it searches by the publish times that the producers gave.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

import pulsar_native
from pulsar_native.engine.producer import producer as producer_module
from pyspark_pulsar import load
from pyspark_pulsar.request import LoadRequest
from support.brokers import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

HOUR = timedelta(hours=1)
SLACK = timedelta(minutes=10)
START = datetime(2026, 3, 1, tzinfo=UTC)
PARTITIONS = 2


@dataclass
class SetClock:
    """Wall clock of a producer, set by the test; the publish time of a message is taken from it."""

    at: datetime = START
    monotonic: Callable[[], float] = field(default=time.monotonic, repr=False)

    def time_ns(self) -> int:
        """Return the time as `time.time_ns` does."""
        return int(self.at.timestamp() * 1000) * 1_000_000


class Publisher:
    """Publish numbered orders at publish times of the test's choice, one entry each."""

    def __init__(self, client: pulsar_native.Client, topic: str) -> None:
        self.topic = topic
        self._producers = [client.create_producer(f"{topic}-partition-{index}") for index in range(PARTITIONS)]
        self.published: dict[datetime, list[int]] = {}
        self._number = 0

    def send(self, at: datetime) -> int:
        """Publish the next order and return its number."""
        number, self._number = self._number, self._number + 1
        with mock.patch.object(producer_module, "time", SetClock(at)):
            text = json.dumps({"number": number, "amount": number / 4})
            self._producers[number % PARTITIONS].send(text.encode(), partition_key=f"k{number % 3}")
        hour = at.replace(minute=0, second=0, microsecond=0)
        self.published.setdefault(hour, []).append(number)
        return number

    def send_hours(self, count: int) -> list[datetime]:
        """Publish hours of orders; those of the last minutes of an hour arrive after the first of the next one."""
        hours = [START + number * HOUR for number in range(count)]
        for hour in hours:
            for minute in (0, 1, 20, 40, 59):
                self.send(hour + timedelta(minutes=minute))
            for late in (timedelta(minutes=5), timedelta(milliseconds=1)):
                self.send(hour + HOUR + timedelta(minutes=2))
                self.send(hour + HOUR - late)
        return hours


@dataclass
class Table:
    """Folder with one partition an hour, loaded by the load application."""

    spark: SparkSession
    broker: Broker
    topic: str
    folder: Path

    def load(self, hour: datetime, **parts: Any) -> load.Outcome:
        """Load one hour."""
        request = {
            "source": {
                "service.url": self.broker.service_url,
                "admin.url": self.broker.admin_url,
                "topic": self.topic,
                "startingTime": hour.isoformat(),
                "endingTime": (hour + HOUR).isoformat(),
                "timeSlackMs": str(int(SLACK.total_seconds() * 1000)),
            },
            "value": {"format": "json", "schema": "number INT, amount DOUBLE"},
            "output": {"path": f"file://{self.folder}/{self.name(hour)}"},
            "run": hour.isoformat(),
            **parts,
        }
        return load.Load(self.spark, LoadRequest.parse(json.dumps(request)), time.monotonic()).run()

    @staticmethod
    def name(hour: datetime) -> str:
        """Return the folder of an hour."""
        return f"hour={hour:%Y%m%d%H}"

    def numbers(self, hour: datetime) -> list[int]:
        """Return the numbers of the orders of an hour, sorted."""
        return sorted(
            row["number"] for row in self.spark.read.parquet(f"file://{self.folder}/{self.name(hour)}").collect()
        )

    def rows(self) -> list[str]:
        """Return all rows with all columns, sorted."""
        frame = self.spark.read.parquet(f"file://{self.folder}")
        return sorted(str(row.asDict()) for row in frame.collect())

    def files(self) -> dict[str, list[str]]:
        """Return the digests of the contents of the files with rows, by hour."""
        found: dict[str, list[str]] = {}
        for path in sorted(self.folder.glob("hour=*/*.parquet")):
            found.setdefault(path.parent.name, []).append(hashlib.sha256(path.read_bytes()).hexdigest())
        return found


@pytest.fixture
def publisher(default_broker: Broker) -> Iterator[Publisher]:
    """Give a publisher of a topic with two partitions, whose messages are retained."""
    space = f"public/hours-{time.time_ns()}"
    default_broker.admin("PUT", f"namespaces/{space}")
    retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    default_broker.admin("POST", f"namespaces/{space}/retention", retention)
    default_broker.admin("PUT", f"persistent/{space}/orders/partitions", PARTITIONS)
    with pulsar_native.Client(default_broker.service_url) as client:
        yield Publisher(client, f"persistent://{space}/orders")


NewTable = Callable[[str], Table]


@pytest.fixture
def table(spark: SparkSession, default_broker: Broker, publisher: Publisher, tmp_path: Path) -> NewTable:
    """Give a factory of tables of the topic."""
    return lambda name: Table(spark, default_broker, publisher.topic, tmp_path / name)


def check_identical(
    table: NewTable, publisher: Publisher, hours: Sequence[datetime], order: Sequence[datetime]
) -> None:
    """Load the hours, do all of them again, and backfill another table in another order; compare all three."""
    first = table("first")
    for hour in hours:
        outcome = first.load(hour)
        assert (outcome.replayed, outcome.rows) == (False, len(publisher.published[hour]))
        assert first.numbers(hour) == sorted(publisher.published[hour])
    rows, files = first.rows(), first.files()
    assert len(rows) == sum(len(publisher.published[hour]) for hour in hours)
    for hour in order:
        assert first.load(hour).replayed
    assert (first.rows(), first.files()) == (rows, files), "done again by the manifest"
    backfilled = table("backfilled")
    for hour in order:
        assert not backfilled.load(hour).replayed
    assert (backfilled.rows(), backfilled.files()) == (rows, files), "planned anew"


@pytest.mark.proves("S5")
def test_backfill_out_of_order_gives_same_table(table: NewTable, publisher: Publisher) -> None:
    hours = publisher.send_hours(4)[:3]
    check_identical(table, publisher, hours, [hours[2], hours[0], hours[1]])


@pytest.mark.slow
@pytest.mark.proves("S5")
def test_backfill_of_a_day_gives_same_table(table: NewTable, publisher: Publisher) -> None:
    hours = publisher.send_hours(25)[:24]
    check_identical(table, publisher, hours, [*hours[1::2], *reversed(hours[::2])])


@pytest.mark.proves("S5")
def test_late_message_joins_its_hour_when_planned_anew(table: NewTable, publisher: Publisher) -> None:
    hours = publisher.send_hours(2)
    orders = table("orders")
    for hour in hours:
        orders.load(hour)
    before, files = orders.rows(), orders.files()
    late = publisher.send(hours[1] - timedelta(minutes=1))
    # The same request again rereads the messages of its manifest.
    assert orders.load(hours[0]).replayed
    assert (orders.rows(), orders.files()) == (before, files)
    assert not orders.load(hours[0], replay="never").replayed
    assert orders.numbers(hours[0]) == sorted(publisher.published[hours[0]])
    assert late in orders.numbers(hours[0])
    assert set(before) < set(orders.rows()) and len(orders.rows()) == len(before) + 1
    assert orders.files()[orders.name(hours[1])] == files[orders.name(hours[1])], "no other hour is changed"
