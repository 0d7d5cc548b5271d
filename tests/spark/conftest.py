"""What tests of the Spark source share: one Spark session (starting it takes seconds), and topics to read."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

import pulsar_native
from pulsar_native import MessageId
from support.brokers import Broker
from support.publishing import Publish, publish_groups
from support.spark_versions import spark_before

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# It imports what Spark has since 4.2.
collect_ignore = ["test_stream_reader.py"] if spark_before("4.2") else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what an older Spark cannot do; the newest one runs all."""
    marks = ((item, item.get_closest_marker("needs_spark")) for item in items)
    left_out = [item for item, mark in marks if mark is not None and spark_before(mark.args[0])]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def spark_environment() -> None:
    """Let Spark use the interpreter of this environment and the loopback interface only."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


@pytest.fixture(scope="session")
def spark(spark_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give the session: local, two cores, nothing registered."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def client(broker: Broker) -> Iterator[pulsar_native.Client]:
    """Give a client of the shared broker."""
    with pulsar_native.Client(broker.service_url) as connected:
        yield connected


@pytest.fixture
def publish(client: pulsar_native.Client) -> Publish:
    """Give what publishes batches to the shared broker."""
    return lambda topic, *groups, **message: publish_groups(client, topic, *groups, **message)


@pytest.fixture
def read(spark: SparkSession, broker: Broker) -> Callable[..., DataFrame]:
    """Give what reads a topic of the shared broker with options; "_" in an option's name stands for "."."""

    def load(topic: str, **options: str) -> DataFrame:
        given = {"service.url": broker.service_url, "topic": topic, "pulsar.client.operationTimeoutMs": "10000"}
        given.update({name.replace("_", "."): value for name, value in options.items()})
        return spark.read.format("pulsar").options(**given).load()

    return load


@pytest.fixture
def trimmable(broker: Broker, namespace: Callable[[], str]) -> str:
    """Give a namespace that keeps nothing beyond the open ledger of a topic."""
    name = namespace()
    broker.admin("POST", f"namespaces/{name}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    return name


@pytest.fixture
def trim(broker: Broker, publish: Publish) -> Callable[[str], MessageId]:
    """Give what removes all messages of a topic but one new one, "kept", whose id it returns."""
    return lambda topic: trim_topic(broker, publish, topic)


def trim_topic(broker: Broker, publish: Publish, topic: str) -> MessageId:
    """Close the topic's ledger, publish into a new one, and let the broker delete the closed one."""
    path = topic.replace("://", "/")
    broker.admin("PUT", f"{path}/unload")
    (kept,) = publish(topic, ["kept"])
    deadline = time.monotonic() + 20
    while True:
        broker.admin("POST", f"{path}/trim")
        stats = broker.admin("GET", f"{path}/internalStats")
        assert isinstance(stats, dict)
        if [ledger["ledgerId"] for ledger in stats["ledgers"]] == [kept.ledger_id()]:
            return kept
        assert time.monotonic() < deadline, stats
        time.sleep(0.1)


@pytest.fixture
def empty(broker: Broker, client: pulsar_native.Client) -> Callable[[str], None]:
    """Give what removes all messages of a topic partition in a namespace that retains none."""
    return lambda topic: empty_topic(broker, client, topic)


def empty_topic(broker: Broker, client: pulsar_native.Client, topic: str) -> None:
    """Close the ledger of a topic partition, and let the broker delete it."""
    path = topic.replace("://", "/")
    broker.admin("PUT", f"{path}/unload")
    client.create_reader(topic, MessageId.latest).close()
    deadline = time.monotonic() + 20
    while True:
        broker.admin("POST", f"{path}/trim")
        stats = broker.admin("GET", f"{path}/internalStats")
        assert isinstance(stats, dict)
        if stats["numberOfEntries"] == 0:
            return
        assert time.monotonic() < deadline, stats
        time.sleep(0.1)


@pytest.fixture
def texts() -> Callable[[DataFrame], list[str]]:
    """Give what collects the values of a frame as texts, in the order of the topic."""

    def collect(frame: DataFrame) -> list[str]:
        return [bytes(row["value"]).decode() for row in frame.select("value").collect()]

    return collect
