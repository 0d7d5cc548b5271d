"""Schemas registered at a real broker: which one decodes a load, and when there is none to trust."""

from __future__ import annotations

import json

import pytest

from pulsar_native import Client
from pulsar_native.exceptions import InvalidConfiguration, OperationNotSupported
from pulsar_native.schema import Int32Schema, KeyValueSchema, StringSchema, TimestampSchema
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.topic_schema import registered_definition
from support.brokers import Broker, NewTopic


def definition(*names: str) -> str:
    """Return a record of optional texts."""
    fields = [{"name": name, "type": ["null", "string"], "default": None} for name in names]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def registered(broker: Broker, kind: str, *topics: str) -> str:
    """Return the definition for a load of the topics."""
    given = {"service.url": broker.service_url, "admin.url": broker.admin_url, "topics": ",".join(topics)}
    return registered_definition(ReadOptions.parse(given), topics, kind)


def register(broker: Broker, topic: str, kind: str, schema: str) -> None:
    """Register a schema at the topic."""
    body = {"type": kind, "schema": schema, "properties": {}}
    broker.admin("POST", f"schemas/{topic.partition('://')[2]}/schema", body)


def test_topic_schemas_must_be_equal(broker: Broker, topic: NewTopic) -> None:
    one, same, other = topic("one"), topic("same", partitions=2), topic("other")
    for name, schema in ((one, definition("a")), (same, definition("a")), (other, definition("a", "b"))):
        register(broker, name, "JSON", schema)
    assert json.loads(registered(broker, "JSON", one, same)) == json.loads(definition("a"))
    with pytest.raises(InvalidConfiguration, match=r"The schemas of .*one.* and .*other.* differ"):
        registered(broker, "JSON", one, other)


def test_topic_schema_newest_json_but_same_avro(broker: Broker, topic: NewTopic) -> None:
    json_topic, avro_topic = topic("json"), topic("avro")
    for name, kind in ((json_topic, "JSON"), (avro_topic, "AVRO")):
        register(broker, name, kind, definition("a"))
        assert json.loads(registered(broker, kind, name)) == json.loads(definition("a"))
        register(broker, name, kind, definition("a", "b"))
    assert json.loads(registered(broker, "JSON", json_topic)) == json.loads(definition("a", "b"))
    with pytest.raises(OperationNotSupported, match=r"has several versions.*set value.format to auto"):
        registered(broker, "AVRO", avro_topic)


def test_topic_schema_without_columns_raises_by_name(broker: Broker, topic: NewTopic) -> None:
    pair = KeyValueSchema(StringSchema(), Int32Schema())
    with Client(broker.service_url) as client:
        for schema in (Int32Schema(), TimestampSchema(), pair):
            name = topic(type(schema).__name__)
            client.create_producer(name, schema=schema).close()
            kind = schema.schema_info().type.name
            with pytest.raises(InvalidConfiguration, match=f"of kind {kind}, .*set value.format to auto"):
                registered(broker, "JSON", name)
