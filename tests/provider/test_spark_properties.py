"""The Spark properties of a connection, for whatever starts Spark."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException

from airflow_provider_pulsar.hooks.pulsar import PulsarHook
from airflow_provider_pulsar.spark_options import source_options
from airflow_provider_pulsar.spark_properties import inject_pulsar_connection_into_spark_properties as inject
from pyspark_pulsar.connection import options_of
from pyspark_pulsar.options import ReadOptions
from support.tasks import context_of

FIELDS = {"service_url": "pulsar://h:1", "admin_url": "http://h:2", "listener_name": "inner", "token": "hush-hush"}


def test_inject_equals_the_options_of_the_source(connection: Callable[..., str]) -> None:
    conn_id = connection("other", **FIELDS)
    found = inject({"spark.own": "1"}, conn_id, context_of())  # type: ignore[arg-type]
    assert found["spark.own"] == "1" and "hush-hush" not in json.dumps(found)
    assert "spark.pulsar.credentialsRef" not in found
    # What the application is given: exactly what the connection says, by the names of the source.
    assert options_of(found) == source_options(PulsarHook(conn_id).connection_options())
    assert options_of(found)["pulsar.client.listenerName"] == "inner"


def test_inject_client_options(connection: Callable[..., str], caplog: pytest.LogCaptureFixture) -> None:
    given = {
        "connections_per_broker": 2,
        "connection_timeout_ms": 3000,
        "starting_backoff_interval_ms": 50,
        "use_tls": True,
        "socks5_proxy_address": "proxy:1080",
    }
    fields = {**FIELDS, "tls_certificate_file_path": "/c.pem", "tls_key_file_path": "/k.pem", "client_options": given}
    with caplog.at_level(logging.WARNING, logger="airflow_provider_pulsar"):
        found = options_of(inject(None, connection(**fields), context_of()))  # type: ignore[arg-type]
    wanted = {
        "connectionsPerBroker": "2",
        "connectionTimeoutMs": "3000",
        "initialBackoffIntervalNanos": "50000000",
        "useTls": "true",
        "tlsCertificateFilePath": "/c.pem",
        "tlsKeyFilePath": "/k.pem",
    }
    assert wanted.items() <= {name.removeprefix("pulsar.client."): text for name, text in found.items()}.items()
    config = ReadOptions.parse({**found, "topic": "t"}).client_config()
    assert (config.use_tls, config.starting_backoff_interval_ms, config.connections_per_broker) == (True, 50, 2)
    assert "without the connection's client_options socks5_proxy_address" in caplog.text
    caplog.clear()
    # Spark's own address has neither the proxy nor the TLS of the other one.
    own = options_of(inject(None, connection(**fields, spark_service_url="pulsar://inner:1"), context_of()))  # type: ignore[arg-type]
    assert "pulsar.client.useTls" not in own and not caplog.text


def test_inject_certificate_of_credentials_is_left_out(connection: Callable[..., str]) -> None:
    fields = {"service_url": "pulsar+ssl://h:1", "tls_certificate_file_path": "/c.pem", "tls_key_file_path": "/k.pem"}
    found = options_of(inject(None, connection(**fields), context_of()))  # type: ignore[arg-type]
    assert not [name for name in found if "ertificate" in name or "KeyFile" in name]


def test_inject_connection_that_was_read_already() -> None:
    read = Connection(conn_id="any", conn_type="pulsar", extra=json.dumps({**FIELDS, "spark_credentials_ref": "env:A"}))
    found = inject(None, read, context_of())  # type: ignore[arg-type]
    assert (found["spark.pulsar.service.url"], found["spark.pulsar.credentialsRef"]) == ("pulsar://h:1", "env:A")
    wrong = Connection(conn_id="any", conn_type="pulsar", extra=json.dumps({"servce_url": "pulsar://h:1"}))
    with pytest.raises(AirflowException, match=r"'any' cannot be used: .*did you mean 'service_url'"):
        inject(None, wrong, context_of())  # type: ignore[arg-type]


def test_inject_properties_that_are_set_are_left(
    connection: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    own = {"spark.pulsar.Service.Url": "pulsar://mine:1", "spark.pulsar.credentialsRef": "env:MINE"}
    conn_id = connection(**FIELDS, spark_credentials_ref="env:A")
    with caplog.at_level(logging.INFO, logger="airflow_provider_pulsar"):
        found = inject(own, conn_id, context_of())  # type: ignore[arg-type]
    assert {name: found[name] for name in own} == own
    assert [name for name in found if name.lower() == "spark.pulsar.service.url"] == ["spark.pulsar.Service.Url"]
    assert found["spark.pulsar.admin.url"] == "http://h:2"
    assert "spark.pulsar.service.url, spark.pulsar.credentialsRef" in caplog.text
    assert own == {"spark.pulsar.Service.Url": "pulsar://mine:1", "spark.pulsar.credentialsRef": "env:MINE"}
