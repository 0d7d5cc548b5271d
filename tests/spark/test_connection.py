"""Options of a connection in Spark's configuration: which properties are read, and that no secret is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pulsar_native.exceptions import InvalidConfiguration, InvalidUrl
from pyspark_pulsar import connection_options
from pyspark_pulsar.connection import options_of
from support.brokers import Broker, NewTopic
from support.publishing import Publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

URL = {"spark.pulsar.service.url": "pulsar://h:1"}


def test_connection_options_read_a_topic(
    spark: SparkSession, broker: Broker, topic: NewTopic, publish: Publish
) -> None:
    publish(name := topic(), ["1", "2", "3"])
    session = spark.newSession()
    with pytest.raises(
        InvalidConfiguration, match=r"PulsarSparkSubmitMixin, or with --conf spark\.pulsar\.service\.url="
    ):
        connection_options(session)
    session.conf.set("spark.pulsar.service.url", broker.service_url)
    session.conf.set("spark.pulsar.client.operationTimeoutMs", "5000")
    session.conf.set("spark.pulsar.myToken", "s3cret")
    options = connection_options(session)
    assert options == {"service.url": broker.service_url, "pulsar.client.operationTimeoutMs": "5000"}
    assert session.read.format("pulsar").options(**options).option("topic", name).load().count() == 3
    copy = session.range(2).selectExpr("cast(id as string) as value").write.format("pulsar").options(**options)
    copy.option("topic", topic()).mode("append").save()


def test_options_of_properties_in_any_case() -> None:
    properties = {
        "SPARK.pulsar.Service.URL": "pulsar://h:1",
        "spark.pulsar.admin.url": "http://h:2",
        "spark.pulsar.credentialsref": "file:/run/token",
        "spark.pulsar.client.listenerName": "inner",
        "spark.pulsar.client.tlsHostnameVerificationEnable": " ",
        "spark.pulsar.topic": "t",
        "spark.pulsar.token": "s3cret",
        "spark.pulsarx.service.url": "x",
        "spark.app.name": "x",
    }
    assert options_of(properties) == {
        "service.url": "pulsar://h:1",
        "admin.url": "http://h:2",
        "credentialsRef": "file:/run/token",
        "pulsar.client.listenerName": "inner",
    }


@pytest.mark.parametrize(
    ("properties", "error", "message"),
    [
        ({"spark.pulsar.client.listnerName": "a"}, InvalidConfiguration, "did you mean pulsar.client.listenerName"),
        ({"spark.pulsar.client.authParams": "s3cret"}, InvalidConfiguration, "Hand the secret over by reference"),
        (
            {"spark.pulsar.client.operationTimeoutMs": "soon"},
            InvalidConfiguration,
            "operationTimeoutMs must be a whole",
        ),
        ({"spark.pulsar.credentialsRef": "s3cret"}, InvalidConfiguration, "not the secret itself"),
        ({"spark.pulsar.admin.url": "http://me:s3cret@h"}, InvalidConfiguration, "without user, password or path"),
        ({"spark.pulsar.service.url": "pulsar://me:s3cret@h:1"}, InvalidUrl, "must not hold credentials"),
    ],
)
def test_options_of_wrong_properties_raise(properties: dict[str, str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as refused:
        options_of(URL | properties)
    assert "s3cret" not in str(refused.value)
