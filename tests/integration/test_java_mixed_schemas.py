"""Topics with values of several schemas, and pairs with nulls, shared with the Java client."""

from __future__ import annotations

import base64
from typing import Any

import pytest

import pulsar_native.schema as ours
from pulsar_native import InitialPosition
from pulsar_native.schema import KeyValue, KeyValueEncodingType
from support.brokers import NewTopic
from support.java_peer import JavaClient


@pytest.mark.parametrize("encoding", KeyValueEncodingType)
def test_pairs_with_nulls_go_both_ways(
    client: Any, java: JavaClient, topic: NewTopic, encoding: KeyValueEncodingType
) -> None:
    name = topic()
    kind = {"key": "string", "value": "int32", "encoding": encoding.value}
    schema = ours.KeyValueSchema(ours.StringSchema(), ours.Int32Schema(), encoding)
    pairs: list[KeyValue[str, int]] = [KeyValue("k\u00fc", 7), KeyValue(None, 8), KeyValue("k", None)]
    javas = [{"key": pair.key, "value": pair.value} for pair in pairs]
    producer = client.create_producer(name, schema=schema)
    for pair in pairs:
        producer.send(pair)
    theirs = java.producer(name, kind)
    for each in javas:
        theirs.send(each)
    read = java.consumer(name, schema=kind).receive(6)
    assert [message.value for message in read] == javas * 2
    assert [(message.key, message.key_is_base64) for message in read[:3]] == [
        (message.key, message.key_is_base64) for message in read[3:]
    ]
    assert {message.schema_version for message in read} == {bytes(8)}
    for used in (schema, ours.AutoConsumeSchema()):
        consumer = client.subscribe(name, str(used), schema=used, initial_position=InitialPosition.Earliest)
        assert [consumer.receive(20_000).value() for _ in range(6)] == pairs * 2


@pytest.mark.proves("C81", "C173")
def test_each_follows_the_others_mixed_schemas(client: Any, java: JavaClient, topic: NewTopic) -> None:
    """Java's producer of another definition, and our message of a schema of its own, on one topic."""
    name = topic()
    narrow = ours.AvroSchema({"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]})
    wide = ours.AvroSchema(
        {"type": "record", "name": "N",
         "fields": [{"name": "n", "type": "int"}, {"name": "more", "type": "string", "default": "-"}]}
    )  # fmt: skip
    producer = client.create_producer(name, schema=narrow, batching_enabled=True)
    producer.send({"n": 1})
    producer.send({"n": 2, "more": "x"}, schema=wide)
    producer.send({"n": 3})
    java.producer(name, "auto_produce").send(base64.b64encode(b"\x08\x02y").decode())
    expected = [{"n": 1}, {"n": 2, "more": "x"}, {"n": 3}, {"n": 4, "more": "y"}]
    messages = java.consumer(name, schema="auto_consume").receive(4)
    assert [message.value for message in messages] == expected
    versions = [int.from_bytes(message.schema_version or b"\xff", "big") for message in messages]
    assert versions == [0, 1, 0, 1]
    consumer = client.subscribe(
        name, "ours", schema=ours.AutoConsumeSchema(), initial_position=InitialPosition.Earliest
    )
    assert [consumer.receive(20_000).value() for _ in range(4)] == expected
