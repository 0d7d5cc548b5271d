"""SchemaSensor on the real broker."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSensorTimeout

from airflow_provider_pulsar.sensors.schema import SchemaSensor
from pulsar_native import Client
from pulsar_native.schema import AvroSchema, Schema, StringSchema
from support.brokers import NewTopic
from support.waiting import MODES, options_of, wait_with

pytestmark = pytest.mark.usefixtures("pulsar_conn")
RECORD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


def sensor(topic: str, mode: str = "poke", **options: Any) -> SchemaSensor:
    options = {"poke_interval": 0.2, "timeout": 5, **options_of(mode), **options}
    return SchemaSensor(task_id="a_task", topic=topic, **options)


@pytest.mark.proves("A17")
@pytest.mark.parametrize("mode", MODES)
def test_schema_registered_later_is_found(mode: str, client: Client, topic: NewTopic) -> None:
    name, schema = topic(), AvroSchema(None, RECORD)
    later = threading.Timer(0.5, lambda: client.create_producer(name, schema=schema).close())
    later.start()
    found = wait_with(sensor(name, mode), mode)
    later.join()
    assert found == {"topic": name, "type": "avro", "version": 0}


@pytest.mark.parametrize("schema", [StringSchema(), None])
def test_schema_of_another_type_is_waited_for(schema: Schema[Any] | None, client: Client, topic: NewTopic) -> None:
    name = topic()
    client.create_producer(name, schema=schema).close() if schema else client.create_producer(name).close()
    seen = "the schema is of the type string" if schema else "the topic has no schema"
    with pytest.raises(AirflowSensorTimeout, match=rf"a schema of the type avro of {name}; last: {seen}"):
        wait_with(sensor(name, schema_type="AVRO", timeout=0.5), "poke")


def test_schema_type_unknown_fails_when_parsed() -> None:
    with pytest.raises(ValueError, match=r"schema_type='avroo' is not known; did you mean 'avro'\?"):
        sensor("t", schema_type="avroo")
