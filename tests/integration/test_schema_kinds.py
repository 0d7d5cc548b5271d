"""Every kind of schema on the real broker, on both APIs: what is registered, what travels, and what is refused."""

from __future__ import annotations

import base64
import threading
from datetime import UTC, date, datetime, time
from typing import Any

import pytest

import pulsar_native
import pulsar_native.schema as ours
from pulsar_native.admin import AdminClient
from pulsar_native.exceptions import IncompatibleSchema, InvalidConfiguration, InvalidMessage, OperationNotSupported
from pulsar_native.schema import GenericRecord, InvalidRecord, KeyValue, KeyValueEncodingType, SchemaType
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.proto_samples import message_class

EARLIEST = pulsar_native.InitialPosition.Earliest
FLIGHT = message_class("demo.flights.Flight")
NUMBER = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]}
WIDER = {**NUMBER, "fields": [{"name": "n", "type": "int"}, {"name": "more", "type": "string", "default": "-"}]}
MOMENT = datetime(2026, 11, 21, 12, 0, 0, 123000, UTC)
SAMPLES: list[tuple[ours.Schema[Any], SchemaType, Any]] = [
    (ours.BooleanSchema(), SchemaType.BOOLEAN, True),
    (ours.Int8Schema(), SchemaType.INT8, -8),
    (ours.Int16Schema(), SchemaType.INT16, -16),
    (ours.Int32Schema(), SchemaType.INT32, -32),
    (ours.Int64Schema(), SchemaType.INT64, -(1 << 60)),
    (ours.FloatSchema(), SchemaType.FLOAT, 1.5),
    (ours.DoubleSchema(), SchemaType.DOUBLE, 0.1),
    (ours.DateSchema(), SchemaType.DATE, MOMENT),
    (ours.TimeSchema(), SchemaType.TIME, time(1, 2, 3, 4000)),
    (ours.TimestampSchema(), SchemaType.TIMESTAMP, MOMENT),
    (ours.InstantSchema(), SchemaType.INSTANT, MOMENT.replace(microsecond=123456)),
    (ours.LocalDateSchema(), SchemaType.LOCAL_DATE, date(2026, 11, 21)),
    (ours.LocalTimeSchema(), SchemaType.LOCAL_TIME, time(1, 2, 3, 4)),
    (ours.LocalDateTimeSchema(), SchemaType.LOCAL_DATE_TIME, datetime(2026, 11, 21, 1, 2, 3, 4)),
    (ours.ProtobufSchema(FLIGHT), SchemaType.PROTOBUF, FLIGHT(carrier="UA", delay=3)),
    (ours.ProtobufNativeSchema(FLIGHT), SchemaType.PROTOBUF_NATIVE, FLIGHT(carrier="UA", delay=3)),
]


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    """Give the registry's view."""
    return AdminClient(broker.admin_url)


@pytest.mark.parametrize(("schema", "kind", "value"), SAMPLES, ids=[kind.name for _, kind, _ in SAMPLES])
def test_every_kind_is_registered_and_travels(
    client: Any, plain_client: Any, admin: AdminClient, topic: NewTopic, schema: Any, kind: SchemaType, value: Any
) -> None:
    name = topic()
    client.create_producer(name, schema=schema).send(value)
    message = client.subscribe(name, "s", schema=schema, initial_position=EARLIEST).receive(10_000)
    assert message.value() == value
    assert message.schema_version_bytes() == (0).to_bytes(8, "big") == message.schema_version().encode()
    registered = admin.get_schema(name)
    assert registered is not None and (registered.type, registered.version) == (kind, 0)
    if kind is SchemaType.PROTOBUF_NATIVE:
        assert ours.schema_from_info(registered).decode(message.data())["carrier"] == "UA"
    elif kind is not SchemaType.PROTOBUF:
        assert ours.schema_from_info(registered).decode(message.data()) == value


@pytest.mark.parametrize("encoding", KeyValueEncodingType)
@pytest.mark.parametrize("batching", [True, False])
def test_keys_and_values_travel_with_their_nulls(
    client: Any, api: Api, topic: NewTopic, encoding: KeyValueEncodingType, batching: bool
) -> None:
    name = topic()
    schema = ours.KeyValueSchema(ours.StringSchema(), ours.Int32Schema(), encoding)
    consumer = client.subscribe(name, "s", schema=schema)
    follower = client.subscribe(name, "any", schema=ours.AutoConsumeSchema())
    pairs = [KeyValue("k", 7), KeyValue(None, 8), KeyValue("k", None), KeyValue(None, None)]
    producer = client.create_producer(
        name, schema=schema, batching_enabled=batching, batching_max_publish_delay_ms=60_000
    )
    api.send_all(producer, pairs)
    received = [consumer.receive(10_000) for _ in pairs]
    assert [message.value() for message in received] == pairs
    assert [follower.receive(10_000).value() for _ in pairs] == pairs
    separated = encoding is KeyValueEncodingType.SEPARATED
    assert [message.has_key() for message in received] == [separated, False, separated, False]
    assert [message.has_null_value() for message in received] == [False, False, separated, separated]
    if separated:
        assert received[0].partition_key() == base64.b64encode(b"k").decode()
        assert received[0].has_base64_encoded_key() and received[0].data() == b"\0\0\0\x07"
        with pytest.raises(InvalidMessage, match="partition_key must not be given"):
            producer.send(KeyValue("k", 7), partition_key="other")


def test_a_pairs_definition_is_the_same_from_both_interfaces(client: Any, admin: AdminClient, topic: NewTopic) -> None:
    name = topic()
    schema = ours.KeyValueSchema(ours.StringSchema(), ours.AvroSchema(NUMBER), KeyValueEncodingType.SEPARATED)
    client.create_producer(name, schema=schema).send(KeyValue("k", {"n": 1}))
    registered = admin.get_schema(name)
    assert registered is not None
    found = ours.schema_from_info(registered).decode_separated(b"k", b"\x02", None)
    assert found == KeyValue("k", {"n": 1})


def test_separated_keys_route_as_keys_of_bytes_do(client: Any, plain_client: Any, topic: NewTopic) -> None:
    name = topic(partitions=4)
    schema = ours.KeyValueSchema(ours.StringSchema(), ours.StringSchema(), KeyValueEncodingType.SEPARATED)
    producer, plain = client.create_producer(name, schema=schema), plain_client.create_producer(name)
    for key in ("a", "b", "c", "d", "e"):
        place = producer.send(KeyValue(key, "v"))
        assert plain.send(b"v", partition_key=key.encode()).partition() == place.partition()


@pytest.mark.proves("C173")
def test_a_consumer_takes_whatever_the_topic_has_version_by_version(
    broker: Broker, client: Any, api: Api, admin: AdminClient, topic: NewTopic
) -> None:
    name = topic()
    narrow, wide = (ours.AvroSchema(schema_definition=each) for each in (NUMBER, WIDER))
    consumer = client.subscribe(name, "s", schema=ours.AutoConsumeSchema())
    client.create_producer(name).send(b"\xffraw")
    client.create_producer(name, schema=narrow).send({"n": 1})
    client.create_producer(name, schema=wide).send({"n": 2, "more": "x"})
    messages = [consumer.receive(10_000) for _ in range(3)]
    raw, first, second = (message.value() for message in messages)
    assert raw == b"\xffraw" and messages[0].reader_schema() is None
    readers = [message.reader_schema() for message in messages[1:]]
    assert [reader.schema_info().definition() for reader in readers] == [NUMBER, WIDER]
    assert readers[0].decode(messages[1].data()) == first
    # Each by its own version, not resolved to the newest.
    assert (first, second) == ({"n": 1}, {"n": 2, "more": "x"})
    assert isinstance(first, GenericRecord) and isinstance(second, GenericRecord)
    assert first.schema_info.definition() == NUMBER and second.schema_info.definition() == WIDER
    assert (first.schema_version, second.schema_version) == (bytes(8), (1).to_bytes(8, "big"))
    with pytest.raises(InvalidConfiguration, match="for consumers"):
        client.create_producer(name, schema=ours.AutoConsumeSchema())
    registered = admin.get_schema(name)
    assert registered is not None and registered.version == 1, "following registers nothing"


@pytest.mark.proves("C173")
@pytest.mark.parametrize(("schema", "kind", "value"), SAMPLES, ids=[kind.name for _, kind, _ in SAMPLES])
def test_every_kind_is_followed(
    broker: Broker, client: Any, topic: NewTopic, schema: Any, kind: SchemaType, value: Any
) -> None:
    name = topic()
    client.create_producer(name, schema=schema).send(value)
    reader = client.create_reader(name, pulsar_native.MessageId.earliest, schema=ours.AutoConsumeSchema())
    message = reader.read_next(10_000)
    if kind is SchemaType.PROTOBUF:
        with pytest.raises(OperationNotSupported, match="ProtobufSchema"):
            message.value()
        assert FLIGHT.FromString(message.data()) == value
    elif kind is SchemaType.PROTOBUF_NATIVE:
        found = message.value()
        assert isinstance(found, GenericRecord) and found.schema_info.type is kind
        assert (found["carrier"], found["delay"], found["cabin"], found["origin"]) == ("UA", 3, "FIRST", None)
    else:
        assert message.value() == value


@pytest.mark.proves("C174")
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (ours.AvroSchema(schema_definition=NUMBER), b"\x02", [b"", b"\x02\x00"]),
        (ours.JsonSchema(schema_definition=NUMBER), b'{"n": 1}', [b"{", b'{"n": "x"}', b"{}"]),
        (ours.Int32Schema(), bytes(4), [bytes(3)]),
        (ours.StringSchema(), b"text", [b"\xff"]),
        (ours.ProtobufNativeSchema(FLIGHT), b"\x0a\x02UA", [b"\x0a\x09UA", b""]),
        (ours.ProtobufSchema(FLIGHT), b"\x0a\x02UA", [b"\x0a\x09UA"]),
        (ours.KeyValueSchema(ours.StringSchema(), ours.Int32Schema()), b"\xff" * 8, [b"\xff" * 9, b""]),
    ],
    ids=["avro", "json", "int32", "string", "protobuf_native", "protobuf", "key_value"],
)
def test_bytes_are_checked_against_the_topics_schema(
    broker: Broker, client: Any, admin: AdminClient, topic: NewTopic, schema: Any, good: bytes, bad: list[bytes]
) -> None:
    name = topic()
    client.create_producer(name, schema=schema).close()
    producer = client.create_producer(name, schema=ours.AutoProduceBytesSchema())
    for each in bad:
        with pytest.raises(InvalidRecord):
            producer.send(each)
    with pytest.raises(InvalidRecord, match="type bytes"):
        producer.send("text")
    consumer = client.subscribe(name, "s", schema=schema, initial_position=EARLIEST)
    producer.send(good)
    message = consumer.receive(10_000)
    assert message.data() == good
    assert message.schema_version_bytes() == bytes(8), "the topic's own version"
    registered = admin.get_schema(name)
    assert registered is not None and registered.version == 0


@pytest.mark.proves("C174")
def test_bytes_for_a_topic_without_schema_are_plain(
    broker: Broker, client: Any, admin: AdminClient, topic: NewTopic
) -> None:
    name = topic()
    producer = client.create_producer(name, schema=ours.AutoProduceBytesSchema())
    consumer = client.subscribe(name, "s", initial_position=EARLIEST)
    producer.send(b"\xff")
    message = consumer.receive(10_000)
    assert (message.data(), message.schema_version_bytes()) == (b"\xff", None)
    assert admin.get_schema(name) is None
    given = ours.AutoProduceBytesSchema(ours.Int32Schema())
    checked = client.create_producer(other := topic("checked"), schema=given)
    with pytest.raises(InvalidRecord):
        checked.send(b"\0")
    checked.send(bytes(4))
    registered = admin.get_schema(other)
    assert registered is not None and registered.type is SchemaType.INT32
    with pytest.raises(InvalidConfiguration, match="for producers"):
        client.subscribe(name, "t", schema=ours.AutoProduceBytesSchema())


@pytest.mark.proves("C173", "C174")
def test_the_topics_schema_is_found_over_http_too(broker: Broker, api: Api, topic: NewTopic) -> None:
    client = api.client(broker.admin_url)
    name, plain = topic(), topic("plain")
    schema = ours.KeyValueSchema(ours.StringSchema(), ours.AvroSchema(NUMBER))
    client.create_producer(name, schema=schema).send(KeyValue("k", {"n": 1}))
    client.create_producer(name, schema=ours.AutoProduceBytesSchema()).send(schema.encode(KeyValue("l", {"n": 2})))
    client.create_producer(plain, schema=ours.AutoProduceBytesSchema()).send(b"\xff")
    for each, expected in ((name, [("k", {"n": 1}), ("l", {"n": 2})]), (plain, [b"\xff"])):
        consumer = client.subscribe(each, "s", schema=ours.AutoConsumeSchema(), initial_position=EARLIEST)
        assert [consumer.receive(20_000).value() for _ in expected] == expected


@pytest.mark.proves("C175")
def test_a_json_schema_is_registered_in_its_avro_form(
    broker: Broker, client: Any, admin: AdminClient, topic: NewTopic
) -> None:
    """The form a peer of protocol version 13 or newer takes; this broker has one far above."""
    name = topic()
    client.create_producer(name, schema=ours.JsonSchema(schema_definition=NUMBER)).close()
    registered = admin.get_schema(name)
    assert registered is not None and registered.type is SchemaType.JSON
    assert registered.definition() == NUMBER
    # The broker itself reads it as Avro: an Avro-incompatible change is refused.
    other = {**NUMBER, "fields": [{"name": "n", "type": "string"}]}
    with pytest.raises(IncompatibleSchema):
        client.create_producer(name, schema=ours.JsonSchema(schema_definition=other))


@pytest.mark.proves("C81")
def test_messages_have_schemas_of_their_own(
    broker: Broker, client: Any, api: Api, admin: AdminClient, topic: NewTopic
) -> None:
    name = topic()
    narrow, wide = (ours.AvroSchema(schema_definition=each) for each in (NUMBER, WIDER))
    producer = client.create_producer(name, schema=narrow, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    consumer = client.subscribe(name, "s", schema=ours.AutoConsumeSchema())
    sent: list[tuple[Any, Any]] = [
        ({"n": 1}, None), ({"n": 2}, None), ({"n": 3, "more": "x"}, wide), ({"n": 4, "more": "y"}, wide),
        (b"\xff", ours.BytesSchema()), ({"n": 5}, narrow), ({"n": 6}, None),
    ]  # fmt: skip
    outcomes = [api.enqueue(producer, value, **({"schema": schema} if schema else {})) for value, schema in sent]
    producer.flush()
    places = [outcome.result(30)[1] for outcome in outcomes]
    # The version is the entry's: a batch ends where the schema changes.
    entries = [(place.ledger_id(), place.entry_id()) for place in places if place is not None]
    assert [entries.index(entry) for entry in entries] == [0, 0, 2, 2, 4, 5, 5]
    messages = [consumer.receive(10_000) for _ in sent]
    assert [message.value() for message in messages] == [value for value, _ in sent]
    assert [message.int_schema_version() for message in messages] == [0, 0, 1, 1, None, 0, 0]
    registered = admin.get_schema(name)
    assert registered is not None and registered.definition() == WIDER


@pytest.mark.proves("C81")
def test_a_messages_schema_on_partitions_and_producers_without_one(
    broker: Broker, client: Any, admin: AdminClient, topic: NewTopic
) -> None:
    name = topic(partitions=3)
    producer = client.create_producer(name)
    schema = ours.KeyValueSchema(ours.StringSchema(), ours.Int32Schema(), KeyValueEncodingType.SEPARATED)
    consumer = client.subscribe(name, "s", schema=ours.AutoConsumeSchema(), initial_position=EARLIEST)
    pairs = [KeyValue(str(number), number) for number in range(6)] + [KeyValue(None, None)]
    for pair in pairs:
        producer.send(pair, schema=schema)
    found = [consumer.receive(10_000).value() for _ in pairs]
    assert sorted(found, key=str) == sorted(pairs, key=str)
    with pytest.raises(IncompatibleSchema):
        producer.send("text", schema=ours.StringSchema())
    for only_for_creation in (ours.AutoConsumeSchema(), ours.AutoProduceBytesSchema()):
        with pytest.raises(InvalidConfiguration):
            producer.send(b"", schema=only_for_creation)


def test_a_callback_cannot_wait_for_a_registration(plain_client: Any, topic: NewTopic) -> None:
    """It runs in the thread that would have to answer; a schema that is known needs no answer."""
    producer = plain_client.create_producer(topic())
    producer.send({"n": 0}, schema=(known := ours.AvroSchema(NUMBER)))
    outcomes: list[Any] = []
    done = threading.Event()

    def callback(result: Any, place: Any) -> None:
        producer.send_async({"n": 1}, None, schema=known)
        try:
            producer.send_async({"n": 1, "more": ""}, None, schema=ours.AvroSchema(WIDER))
        except OperationNotSupported as error:
            outcomes.append(error.message)
        done.set()

    producer.send_async(b"x", callback)
    producer.flush()
    assert done.wait(20) and len(outcomes) == 1 and "another thread" in outcomes[0]


@pytest.mark.proves("C177")
def test_a_refused_schema_shows_both_sides(client: Any, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name, schema=ours.AvroSchema(schema_definition=NUMBER))
    other = ours.AvroSchema(
        schema_definition={"type": "record", "name": "N", "fields": [{"name": "word", "type": "string"}]}
    )
    for refused in (
        lambda: client.create_producer(name, schema=other),
        lambda: client.subscribe(name, "s", schema=other),
        lambda: producer.send({"word": "x"}, schema=other),
    ):
        with pytest.raises(IncompatibleSchema) as caught:
            refused()
        message = str(caught.value)
        assert "the topic's schema: version 0, AVRO" in message and '"name": "n"' in message
        assert "the schema given: AVRO" in message and '"name": "word"' in message
        assert caught.value.topic is not None and name.endswith(caught.value.topic.rpartition("/")[2])
    producer.send({"n": 1})
