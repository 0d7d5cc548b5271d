"""Commands: encoded requests and decoded responses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.config import ConsumerConfig, ProducerConfig
from pulsar_native.enums import (
    ConsumerType,
    InitialPosition,
    ProducerAccessMode,
    SubscriptionMode,
)
from pulsar_native.exceptions import IncompatibleSchema, PulsarException, TopicNotFound, UnknownError
from pulsar_native.message_id import MessageId
from pulsar_native.txn_id import TxnId
from pulsar_native.wire import _impl, commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.entry import parse_entry
from pulsar_native.wire.frames import FrameDecoder, encode_command, encode_send

MAXU = (1 << 64) - 1


def read(frame: bytes) -> pb.BaseCommand:
    (decoded,) = FrameDecoder().receive(frame)
    assert decoded.payload == b""
    return decoded.command


# --- handshake --------------------------------------------------------------------------------------------------


def test_connect() -> None:
    frame = commands.connect(client_version="us", method="token", auth_data=b"secret", proxy_to=None)
    command = read(frame).connect
    assert (command.client_version, command.protocol_version) == ("us", 21)
    assert (command.auth_method_name, command.auth_data) == ("token", b"secret")
    assert not command.HasField("proxy_to_broker_url")
    assert command.feature_flags.supports_topic_watchers
    assert command.feature_flags.supports_auth_refresh and command.feature_flags.supports_broker_entry_metadata
    through = read(commands.connect(client_version="us", method="none", auth_data=b"", proxy_to="b:6650")).connect
    assert through.proxy_to_broker_url == "b:6650"
    assert through.HasField("auth_data") and through.auth_method_name == "none"


def test_auth_response() -> None:
    command = read(commands.auth_response(client_version="us", method="token", auth_data=b"fresh")).authResponse
    assert (command.client_version, command.protocol_version) == ("us", 21)
    assert (command.response.auth_method_name, command.response.auth_data) == ("token", b"fresh")


def test_ping_and_pong() -> None:
    assert read(commands.PING).type == Kind.PING and read(commands.PONG).type == Kind.PONG


# --- lookup -----------------------------------------------------------------------------------------------------


def test_lookup() -> None:
    command = read(commands.lookup("t", 5, authoritative=True, listener_name=None)).lookupTopic
    assert (command.topic, command.request_id, command.authoritative) == ("t", 5, True)
    assert not command.HasField("advertised_listener_name")
    named = read(commands.lookup("t", 5, authoritative=False, listener_name="external")).lookupTopic
    assert named.advertised_listener_name == "external" and not named.authoritative


def test_partition_metadata() -> None:
    command = read(commands.partition_metadata("t", 5, auto_create=True)).partitionMetadata
    assert (command.topic, command.request_id) == ("t", 5)
    assert command.metadata_auto_creation_enabled
    assert not read(
        commands.partition_metadata("t", 5, auto_create=False)
    ).partitionMetadata.metadata_auto_creation_enabled


def test_schema_and_topics() -> None:
    newest = read(commands.get_schema("t", 5, None)).getSchema
    assert (newest.topic, newest.request_id, newest.HasField("schema_version")) == ("t", 5, False)
    assert read(commands.get_schema("t", 5, b"\x01")).getSchema.schema_version == b"\x01"
    watch = read(commands.watch_topic_list("public/default", 6, 7, pattern="public/default/a", known_hash="h"))
    assert watch.watchTopicList == pb.CommandWatchTopicList(
        request_id=6, watcher_id=7, namespace="public/default", topics_pattern="public/default/a", topics_hash="h"
    )
    closing = read(commands.close_topic_list_watch(6, 7)).watchTopicListClose
    assert (closing.request_id, closing.watcher_id) == (6, 7)
    filtered = read(commands.topics_of_namespace("public/default", 6, 2, pattern="p", known_hash="h"))
    assert filtered.getTopicsOfNamespace.topics_pattern == "p" and filtered.getTopicsOfNamespace.topics_hash == "h"
    topics = read(commands.topics_of_namespace("public/default", 6, 2)).getTopicsOfNamespace
    assert not topics.HasField("topics_pattern") and not topics.HasField("topics_hash")
    assert (topics.namespace, topics.request_id, topics.mode) == ("public/default", 6, 2)


# --- producers --------------------------------------------------------------------------------------------------


def producer(config: ProducerConfig, **options: Any) -> pb.CommandProducer:
    arguments: dict[str, Any] = {
        "topic": "full", "producer_id": 3, "request_id": 4, "name": None, "name_is_users": False, "epoch": 0,
        "topic_epoch": None, "schema": None,
    }  # fmt: skip
    return read(commands.producer(config, **{**arguments, **options})).producer


def test_producer() -> None:
    # Without a name the field is left out, since "" would be taken for the name.
    plain = producer(ProducerConfig(topic="t"))
    assert (plain.topic, plain.producer_id, plain.request_id, plain.epoch) == ("full", 3, 4, 0)
    assert not plain.HasField("producer_name") and not plain.user_provided_producer_name
    assert not plain.HasField("topic_epoch") and not plain.HasField("schema")
    config = ProducerConfig(topic="t", properties={"a": "b"}, access_mode=ProducerAccessMode.WaitForExclusive)
    schema = pb.Schema(name="s", type=pb.Schema.Json, schema_data=b"{}")
    full = producer(config, name="me", name_is_users=True, epoch=7, topic_epoch=0, schema=schema)
    assert (full.producer_name, full.user_provided_producer_name, full.epoch) == ("me", True, 7)
    assert full.HasField("topic_epoch") and full.topic_epoch == 0
    assert full.producer_access_mode == pb.WaitForExclusive
    assert {pair.key: pair.value for pair in full.metadata} == {"a": "b"} and full.schema == schema


@pytest.mark.parametrize("mode", ProducerAccessMode)
def test_producer_access_modes_numbers(mode: ProducerAccessMode) -> None:
    command = producer(ProducerConfig(topic="t", access_mode=mode))
    assert pb.ProducerAccessMode.Name(command.producer_access_mode) == mode.name


def test_send() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2).SerializeToString()
    payload = memoryview(b"payload")
    for count in (1, 3):
        parts = commands.send(
            producer_id=3, sequence_id=5, highest_sequence_id=7, count=count, metadata=metadata, payload=payload
        )
        assert parts[-1] is payload  # never copied
        (frame,) = FrameDecoder().receive(b"".join(parts))
        command = frame.command.send
        assert (command.producer_id, command.sequence_id) == (3, 5)
        # For a single message the broker counts one, and answers 2^64-1 as the highest id.
        assert (command.HasField("highest_sequence_id"), command.HasField("is_chunk")) == (count > 1, False)
        assert command.num_messages == (3 if count > 1 else 1)
        entry = parse_entry(frame.payload)
        assert entry.checksum_ok and bytes(entry.body) == b"payload"


@given(st.integers(0, 1 << 40), st.integers(0, (1 << 63) - 2), st.integers(1, 1 << 20), st.integers(0, 500))
def test_send_equals_protobuf_encoding(producer_id: int, number: int, count: int, more: int) -> None:
    command = pb.CommandSend(producer_id=producer_id, sequence_id=number)
    if count > 1:
        command.num_messages, command.highest_sequence_id = count, number + more
    assert commands.send(
        producer_id=producer_id, sequence_id=number, highest_sequence_id=number + more, count=count, metadata=b"m",
        payload=b"p",
    ) == encode_send(pb.BaseCommand(type=Kind.SEND, send=command), b"m", b"p")  # fmt: skip


def test_close_commands() -> None:
    for frame, field, key in (
        (commands.close_producer(3, 4), "close_producer", "producer_id"),
        (commands.close_consumer(3, 4), "close_consumer", "consumer_id"),
    ):
        command = getattr(read(frame), field)
        assert (getattr(command, key), command.request_id) == (3, 4)
    gone = read(commands.unsubscribe(3, 4, force=True)).unsubscribe
    assert (gone.consumer_id, gone.request_id, gone.force) == (3, 4, True)


# --- consumers --------------------------------------------------------------------------------------------------


def subscribe(config: ConsumerConfig, **options: Any) -> pb.CommandSubscribe:
    arguments: dict[str, Any] = {
        "topic": "full", "consumer_id": 3, "request_id": 4, "consumer_name": "me", "start": None, "schema": None,
        "epoch": 0,
    }  # fmt: skip
    return read(commands.subscribe(config, **{**arguments, **options})).subscribe


def test_subscribe() -> None:
    config = ConsumerConfig(
        subscription_name="s",
        consumer_type=ConsumerType.Failover,
        initial_position=InitialPosition.Earliest,
        is_read_compacted=True,
        priority_level=2,
        properties={"a": "b"},
        subscription_properties={"c": "d"},
        replicate_subscription_state_enabled=True,
    )
    schema = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
    command = subscribe(config, schema=schema, epoch=5, start=MessageId(0, 1, 2))
    assert (command.topic, command.subscription, command.consumer_id, command.request_id) == ("full", "s", 3, 4)
    assert (command.consumer_name, command.priority_level, command.consumer_epoch) == ("me", 2, 5)
    assert (command.subType, command.initialPosition) == (pb.CommandSubscribe.Failover, pb.CommandSubscribe.Earliest)
    assert command.durable and command.read_compacted and command.replicate_subscription_state
    assert {pair.key: pair.value for pair in command.metadata} == {"a": "b"}
    assert {pair.key: pair.value for pair in command.subscription_properties} == {"c": "d"}
    assert command.schema == schema
    # A durable subscription has its place at the broker.
    assert not command.HasField("start_message_id")


@pytest.mark.parametrize("kind", ConsumerType)
def test_subscribe_types_numbers(kind: ConsumerType) -> None:
    command = subscribe(ConsumerConfig(subscription_name="s", consumer_type=kind))
    assert pb.CommandSubscribe.SubType.Name(command.subType).replace("_", "") == kind.name


def test_subscribe_reader_start() -> None:
    config = ConsumerConfig(subscription_name="s", subscription_mode=SubscriptionMode.NonDurable)
    start = subscribe(config, start=MessageId(4, 1, 2, 3)).start_message_id
    assert (start.ledgerId, start.entryId, start.partition, start.batch_index) == (1, 2, 4, 3)
    assert not subscribe(config).durable
    earliest = subscribe(config, start=MessageId.earliest).start_message_id
    assert (earliest.ledgerId, earliest.entryId) == (MAXU, MAXU)
    assert not earliest.HasField("batch_index") and not earliest.HasField("partition")


def test_flow() -> None:
    command = read(commands.flow(3, 50)).flow
    assert (command.consumer_id, command.messagePermits) == (3, 50)
    for wrong in (0, -1):
        # The broker closes the connection on it.
        with pytest.raises(ValueError, match="at least one permit"):
            commands.flow(3, wrong)


@pytest.mark.usefixtures("implementation")
@given(st.lists(st.tuples(st.integers(-2, MAXU), st.integers(-2, MAXU))), st.booleans())
def test_ack_ids_as_protobuf_writes_them(entries: list[tuple[int, int]], words: bool) -> None:
    items = [(ledger, entry, None) for ledger, entry in entries]
    wanted = [pb.MessageIdData(ledgerId=ledger & MAXU, entryId=entry & MAXU) for ledger, entry in entries]
    if words:
        wanted.append(pb.MessageIdData(ledgerId=7, entryId=8, ack_set=[5, -1]))
    every = [*items, (7, 8, [5, -1])] if words else items
    assert list(read(commands.ack(3, iter(every), cumulative=False)).ack.message_id) == wanted
    encoded = _impl.encode_ack_ids(list(every))
    if _impl.name == "python" or words:
        assert encoded is None
    else:
        assert encoded == pb.CommandAck(message_id=wanted).SerializePartialToString()


def test_ack() -> None:
    command = read(commands.ack(3, [(1, 2, None), (MAXU >> 1, 5, [-2, 1])], cumulative=False)).ack
    assert (command.consumer_id, command.ack_type) == (3, pb.CommandAck.Individual)
    assert [(data.ledgerId, data.entryId, list(data.ack_set)) for data in command.message_id] == [
        (1, 2, []),
        (MAXU >> 1, 5, [-2, 1]),
    ]
    assert not command.HasField("validation_error") and not command.HasField("request_id")
    assert read(commands.ack(3, [(1, 2, None)], cumulative=True)).ack.ack_type == pb.CommandAck.Cumulative
    damaged = commands.ack(3, [(1, 2, None)], cumulative=False, validation_error=pb.CommandAck.ChecksumMismatch)
    assert read(damaged).ack.validation_error == pb.CommandAck.ChecksumMismatch


def test_redeliver() -> None:
    everything = read(commands.redeliver(3, [], epoch=2)).redeliverUnacknowledgedMessages
    assert (everything.consumer_id, len(everything.message_ids), everything.consumer_epoch) == (3, 0, 2)
    some = read(commands.redeliver(3, [(1, 2), (1, 3)], epoch=None)).redeliverUnacknowledgedMessages
    assert [(data.ledgerId, data.entryId) for data in some.message_ids] == [(1, 2), (1, 3)]
    assert not some.HasField("consumer_epoch")


def test_seek() -> None:
    to_time = read(commands.seek(3, 4, position=None, words=None, publish_time=1234)).seek
    assert (to_time.consumer_id, to_time.request_id, to_time.message_publish_time) == (3, 4, 1234)
    assert not to_time.HasField("message_id")
    to_start = read(commands.seek(3, 4, position=None, words=None, publish_time=0)).seek
    assert to_start.HasField("message_publish_time")
    # The broker ignores the index and takes the words.
    to_id = read(commands.seek(3, 4, position=MessageId(0, 1, 2, 1, batch_size=3), words=[6], publish_time=0)).seek
    assert (to_id.message_id.ledgerId, to_id.message_id.entryId) == (1, 2)
    assert list(to_id.message_id.ack_set) == [6] and not to_id.message_id.HasField("batch_index")
    assert not to_id.HasField("message_publish_time")


def test_last_message_id() -> None:
    command = read(commands.get_last_message_id(3, 4)).getLastMessageId
    assert (command.consumer_id, command.request_id) == (3, 4)


# --- ids --------------------------------------------------------------------------------------------------------

parts = st.integers(-1, 5) | st.integers(-1, (1 << 63) - 1)
small = st.integers(-1, 5) | st.integers(-1, (1 << 31) - 1)


@given(small, parts, parts, small, st.integers(0, 1000))
def test_message_id_round_trip(partition: int, ledger: int, entry: int, index: int, size: int) -> None:
    message_id = MessageId(partition, ledger, entry, index)
    data = commands.id_data(message_id)
    assert 0 <= data.ledgerId <= MAXU
    assert data.HasField("partition") == (partition >= 0)
    assert commands.message_id(data) == message_id
    assert not commands.id_data(message_id, batch_index=False).HasField("batch_index")
    data.batch_size = size
    read_back = commands.message_id(data, partition=7, topic="t")
    assert (read_back.partition(), read_back.topic_name(), read_back.batch_size()) == (7, "t", size)


# --- answers ----------------------------------------------------------------------------------------------------


def answer(kind: Any, field: str, **fields: Any) -> pb.BaseCommand:
    command = pb.BaseCommand(type=kind)
    inner = getattr(command, field)
    inner.SetInParent()
    for name, value in {"request_id": 9, **fields}.items():
        setattr(inner, name, value)
    return command


GOOD = [
    (Kind.SUCCESS, "success", {}),
    (Kind.PRODUCER_SUCCESS, "producer_success", {"producer_name": "p"}),
    (Kind.LOOKUP_RESPONSE, "lookupTopicResponse", {}),
    (Kind.PARTITIONED_METADATA_RESPONSE, "partitionMetadataResponse", {"partitions": 3}),
    (Kind.GET_LAST_MESSAGE_ID_RESPONSE, "getLastMessageIdResponse", {}),
    (Kind.GET_TOPICS_OF_NAMESPACE_RESPONSE, "getTopicsOfNamespaceResponse", {}),
    (Kind.GET_SCHEMA_RESPONSE, "getSchemaResponse", {}),
    (Kind.CONSUMER_STATS_RESPONSE, "consumerStatsResponse", {}),
    (Kind.ACK_RESPONSE, "ackResponse", {"consumer_id": 1}),
]


@pytest.mark.parametrize(("kind", "field", "fields"), GOOD, ids=[field for _, field, _ in GOOD])
def test_answer_of_matches_request(kind: Any, field: str, fields: dict[str, Any]) -> None:
    command = answer(kind, field, **fields)
    found = commands.answer_of(command)
    assert found is not None
    assert (found[0], found[2]) == (9, None)
    assert found[1] == getattr(command, field)


@pytest.mark.parametrize(
    ("kind", "field", "fields", "error", "text"),
    [
        (Kind.ERROR, "error", {"error": pb.TopicNotFound, "message": "gone"}, TopicNotFound, "gone"),
        # For an unknown topic the message is empty.
        (
            Kind.PARTITIONED_METADATA_RESPONSE,
            "partitionMetadataResponse",
            {"error": pb.TopicNotFound, "message": "", "response": pb.CommandPartitionedTopicMetadataResponse.Failed},
            TopicNotFound,
            "TopicNotFound",
        ),
        (Kind.LOOKUP_RESPONSE, "lookupTopicResponse", {"error": pb.MetadataError}, PulsarException, "MetadataError"),
        (
            Kind.GET_SCHEMA_RESPONSE,
            "getSchemaResponse",
            {"error_code": pb.IncompatibleSchema, "error_message": "Empty schema version"},
            IncompatibleSchema,
            "Empty schema version",
        ),
        (
            Kind.CONSUMER_STATS_RESPONSE,
            "consumerStatsResponse",
            {"error_code": pb.UnknownError, "error_message": "?"},
            UnknownError,
            "?",
        ),
        (Kind.ACK_RESPONSE, "ackResponse", {"consumer_id": 1, "error": pb.UnknownError}, UnknownError, "UnknownError"),
    ],
)
def test_answer_of_error(
    kind: Any, field: str, fields: dict[str, Any], error: type[PulsarException], text: str
) -> None:
    found = commands.answer_of(answer(kind, field, **fields))
    assert found is not None and found[0] == 9
    assert isinstance(found[2], error)
    assert (found[2].message, found[2].request_id) == (text, 9)


def test_answer_of_failed_lookup_without_code() -> None:
    for kind, field, failed in (
        (Kind.LOOKUP_RESPONSE, "lookupTopicResponse", pb.CommandLookupTopicResponse.Failed),
        (
            Kind.PARTITIONED_METADATA_RESPONSE,
            "partitionMetadataResponse",
            pb.CommandPartitionedTopicMetadataResponse.Failed,
        ),
    ):
        found = commands.answer_of(answer(kind, field, response=failed, message="no"))
        assert found is not None and isinstance(found[2], UnknownError)
        assert found[2].message == "no"


def test_answer_of_unknown_error_code() -> None:
    # error.error = 99: the runtime cannot name it.
    frame_body = b"\x08\x0e\x72\x07\x08\x09\x10\x63\x1a\x01x"
    (frame,) = FrameDecoder().receive(
        (len(frame_body) + 4).to_bytes(4, "big") + len(frame_body).to_bytes(4, "big") + frame_body
    )
    found = commands.answer_of(frame.command)
    assert found is not None and found[0] == 9
    assert isinstance(found[2], UnknownError) and found[2].message == "x"


@pytest.mark.parametrize(
    "kind", [Kind.MESSAGE, Kind.SEND_RECEIPT, Kind.SEND_ERROR, Kind.CLOSE_PRODUCER, Kind.CLOSE_CONSUMER, Kind.PING]
)
def test_answer_of_other_commands_is_none(kind: Any) -> None:
    assert commands.answer_of(pb.BaseCommand(type=kind)) is None


def test_kind_of_first_command() -> None:
    assert commands.kind_of(commands.close_consumer(1, 2) + commands.PING) == Kind.CLOSE_CONSUMER
    assert max(Kind.values()) < 128, "a type takes one byte"


@pytest.mark.parametrize("numbers", [(0, 0), (1, 2), (127, 128), (300, 70_000), ((1 << 40) + 3, (1 << 64) - 1)])
def test_close_frames_are_the_protocol_s(numbers: tuple[int, int]) -> None:
    one, two = numbers
    producer = pb.CommandCloseProducer(producer_id=one, request_id=two)
    consumer = pb.CommandCloseConsumer(consumer_id=one, request_id=two)
    assert commands.close_producer(one, two) == encode_command(
        pb.BaseCommand(type=Kind.CLOSE_PRODUCER, close_producer=producer)
    )
    assert commands.close_consumer(one, two) == encode_command(
        pb.BaseCommand(type=Kind.CLOSE_CONSUMER, close_consumer=consumer)
    )


def test_ack_in_transaction_holds_words_and_size() -> None:
    frame = commands.ack_in_transaction(3, [(1, 2, [5, -1], 70), (1, 4, None, 0)], TxnId(1, 2), 9, cumulative=False)
    command = read(frame).ack
    batch, single = command.message_id
    assert (list(batch.ack_set), batch.batch_size) == ([5, -1], 70)
    assert not single.ack_set and not single.HasField("batch_size")
    assert (command.txnid_most_bits, command.txnid_least_bits, command.request_id) == (1, 2, 9)
