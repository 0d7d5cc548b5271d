"""Command codec: frames of the commands a client sends, and responses of the broker.

Pure functions: values in, bytes (or the parts of a vectored write) out. Field names of the protocol are used in this
module only. May not do: keep state, decide when to send.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pulsar_native.config import ConsumerConfig, ProducerConfig
from pulsar_native.enums import KeySharedMode, SubscriptionMode
from pulsar_native.exceptions import PulsarException, from_server_error
from pulsar_native.message_id import MessageId
from pulsar_native.txn_id import TxnId
from pulsar_native.wire import _impl
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.frames import encode_command, encode_send, varint

PROTOCOL_VERSION = 21
_U64 = (1 << 64) - 1

Kind = pb.BaseCommand.Type


def _head_of(kind: int, field: str) -> bytes:
    """Return what a command begins with: its type, and the tag of the field it is in."""
    number = pb.BaseCommand.DESCRIPTOR.fields_by_name[field].number
    return b"\x08" + varint(kind) + varint(number << 3 | 2)


# Of frequent commands.
_LOOKUP = _head_of(Kind.LOOKUP, "lookupTopic")
_PARTITIONED_METADATA = _head_of(Kind.PARTITIONED_METADATA, "partitionMetadata")
_PRODUCER = _head_of(Kind.PRODUCER, "producer")
_SUBSCRIBE = _head_of(Kind.SUBSCRIBE, "subscribe")
_FLOW = _head_of(Kind.FLOW, "flow")
_CLOSE_PRODUCER = _head_of(Kind.CLOSE_PRODUCER, "close_producer")
_CLOSE_CONSUMER = _head_of(Kind.CLOSE_CONSUMER, "close_consumer")
_GET_LAST_MESSAGE_ID = _head_of(Kind.GET_LAST_MESSAGE_ID, "getLastMessageId")
_SUCCESS = _head_of(Kind.SUCCESS, "success")

PING = encode_command(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
PONG = encode_command(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))

# Cached: each attribute access on the enumeration is a search by name.
_ERROR = Kind.ERROR

# By response type: its field in BaseCommand, and its field for an error.
_ANSWERS: dict[int, tuple[str, str | None]] = {
    Kind.SUCCESS: ("success", None),
    Kind.ERROR: ("error", "error"),
    Kind.PRODUCER_SUCCESS: ("producer_success", None),
    Kind.LOOKUP_RESPONSE: ("lookupTopicResponse", "error"),
    Kind.PARTITIONED_METADATA_RESPONSE: ("partitionMetadataResponse", "error"),
    Kind.GET_LAST_MESSAGE_ID_RESPONSE: ("getLastMessageIdResponse", None),
    Kind.GET_TOPICS_OF_NAMESPACE_RESPONSE: ("getTopicsOfNamespaceResponse", None),
    Kind.GET_SCHEMA_RESPONSE: ("getSchemaResponse", "error_code"),
    Kind.WATCH_TOPIC_LIST_SUCCESS: ("watchTopicListSuccess", None),
    Kind.GET_OR_CREATE_SCHEMA_RESPONSE: ("getOrCreateSchemaResponse", "error_code"),
    Kind.CONSUMER_STATS_RESPONSE: ("consumerStatsResponse", "error_code"),
    Kind.ACK_RESPONSE: ("ackResponse", "error"),
    Kind.TC_CLIENT_CONNECT_RESPONSE: ("tcClientConnectResponse", "error"),
    Kind.NEW_TXN_RESPONSE: ("newTxnResponse", "error"),
    Kind.ADD_PARTITION_TO_TXN_RESPONSE: ("addPartitionToTxnResponse", "error"),
    Kind.ADD_SUBSCRIPTION_TO_TXN_RESPONSE: ("addSubscriptionToTxnResponse", "error"),
    Kind.END_TXN_RESPONSE: ("endTxnResponse", "error"),
}

_FAILED: dict[int, int] = {
    Kind.LOOKUP_RESPONSE: pb.CommandLookupTopicResponse.Failed,
    Kind.PARTITIONED_METADATA_RESPONSE: pb.CommandPartitionedTopicMetadataResponse.Failed,
}


def _framed(head: bytes, fields: bytes) -> bytes:
    """Return the frame of a command with these serialized fields; `head` is what it begins with (`_head_of`).

    Not made from a `BaseCommand`, to which protobuf would copy the fields, as creating a producer or a consumer waits
    for it.
    """
    body = head + varint(len(fields)) + fields
    return (len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body


def _two_numbers(head: bytes, first: int, second: int) -> bytes:
    """Return the frame of a command that has only the fields 1 and 2, both numbers.

    Encoded without protobuf, which takes several microseconds more, for which a caller waits.
    """
    return _framed(head, b"\x08" + varint(first) + b"\x10" + varint(second))


def kind_of(frames: bytes) -> int:
    """Return the type of the first command in these frames, made here."""
    # After the two sizes and the tag of the type: no type takes more than one byte.
    return frames[9]


def answer_of(command: pb.BaseCommand) -> tuple[int, Any, PulsarException | None] | None:
    """Return (request id, response, error) if the command is a response to a request, else None."""
    known = _ANSWERS.get(command.type)
    if known is None:
        return None
    field, error_field = known
    answer = getattr(command, field)
    error: PulsarException | None = None
    if error_field is not None and _is_error(command.type, answer, error_field):
        text = answer.error_message if error_field == "error_code" else answer.message
        code = getattr(answer, error_field)
        error = from_server_error(code, text or pb.ServerError.Name(code), request_id=answer.request_id)
    return answer.request_id, answer, error


def _is_error(kind: int, answer: Any, error_field: str) -> bool:
    if kind == _ERROR or answer.HasField(error_field):
        return True
    # The error code may be unknown to this client: the field then reads as missing.
    failed = _FAILED.get(kind)
    return failed is not None and answer.HasField("response") and answer.response == failed


def _pairs(values: Mapping[str, str]) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=key, value=value) for key, value in values.items()]


def id_data(message_id: MessageId, *, batch_index: bool = True) -> pb.MessageIdData:
    """Return a message id as MessageIdData (-1 becomes 2^64-1)."""
    data = pb.MessageIdData(ledgerId=message_id.ledger_id() & _U64, entryId=message_id.entry_id() & _U64)
    if message_id.partition() >= 0:
        data.partition = message_id.partition()
    if batch_index and message_id.batch_index() >= 0:
        data.batch_index = message_id.batch_index()
    return data


def entry_key(data: pb.MessageIdData) -> tuple[int, int]:
    """Return ledger id and entry id of a MessageIdData; 2^64-1 becomes -1."""
    ledger, entry = data.ledgerId, data.entryId
    return ledger - (1 << 64) if ledger >> 63 else ledger, entry - (1 << 64) if entry >> 63 else entry


def message_id(data: pb.MessageIdData, *, partition: int = -1, topic: str | None = None) -> MessageId:
    """Return the message id of a MessageIdData; 2^64-1 becomes -1."""
    return MessageId(
        partition if partition >= 0 else data.partition,
        *entry_key(data),
        data.batch_index,
        batch_size=data.batch_size,
        topic=topic,
    )


def connect(*, client_version: str, method: str, auth_data: bytes, proxy_to: str | None) -> bytes:
    """Return CONNECT with the feature flags of this client."""
    command = pb.CommandConnect(
        client_version=client_version,
        protocol_version=PROTOCOL_VERSION,
        auth_method_name=method,
        auth_data=auth_data,
        feature_flags=pb.FeatureFlags(
            supports_auth_refresh=True,
            supports_broker_entry_metadata=True,
            supports_partial_producer=True,
            supports_topic_watchers=True,
            supports_get_partitioned_metadata_without_auto_creation=True,
        ),
    )
    if proxy_to is not None:
        command.proxy_to_broker_url = proxy_to
    return encode_command(pb.BaseCommand(type=Kind.CONNECT, connect=command))


def auth_response(*, client_version: str, method: str, auth_data: bytes) -> bytes:
    """Return AUTH_RESPONSE."""
    response = pb.CommandAuthResponse(
        client_version=client_version,
        protocol_version=PROTOCOL_VERSION,
        response=pb.AuthData(auth_method_name=method, auth_data=auth_data),
    )
    return encode_command(pb.BaseCommand(type=Kind.AUTH_RESPONSE, authResponse=response))


def lookup(topic: str, request_id: int, *, authoritative: bool, listener_name: str | None) -> bytes:
    """Return LOOKUP, the request for the broker that serves the topic."""
    command = pb.CommandLookupTopic(topic=topic, request_id=request_id, authoritative=authoritative)
    if listener_name:
        command.advertised_listener_name = listener_name
    return _framed(_LOOKUP, command.SerializeToString())


def partition_metadata(topic: str, request_id: int, *, auto_create: bool) -> bytes:
    """Return PARTITIONED_METADATA, the request for the topic's number of partitions."""
    command = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=request_id)
    if not auto_create:
        command.metadata_auto_creation_enabled = False
    return _framed(_PARTITIONED_METADATA, command.SerializeToString())


def producer(
    config: ProducerConfig,
    *,
    topic: str,
    producer_id: int,
    request_id: int,
    name: str | None,
    name_is_users: bool,
    epoch: int,
    topic_epoch: int | None,
    schema: pb.Schema | None,
) -> bytes:
    """Return PRODUCER. Without a name the field is omitted, since the broker would use "" as a name."""
    command = pb.CommandProducer(
        topic=topic,
        producer_id=producer_id,
        request_id=request_id,
        epoch=epoch,
        user_provided_producer_name=name_is_users,
        producer_access_mode=int(config.access_mode),  # type: ignore[arg-type]
        metadata=_pairs(config.properties),
    )
    if name is not None:
        command.producer_name = name
    if config.encryption_key_names:
        command.encrypted = True
    if topic_epoch is not None:
        command.topic_epoch = topic_epoch
    if schema is not None:
        command.schema.CopyFrom(schema)
    if config.initial_subscription_name is not None:
        command.initial_subscription_name = config.initial_subscription_name
    return _framed(_PRODUCER, command.SerializeToString())


def subscribe(
    config: ConsumerConfig,
    *,
    topic: str,
    consumer_id: int,
    request_id: int,
    consumer_name: str,
    start: MessageId | None,
    schema: pb.Schema | None,
    epoch: int,
    create_topic: bool = True,
) -> bytes:
    """Return SUBSCRIBE; a non-durable subscription sends its start, a durable one has it at the broker.

    Without `create_topic` a missing topic is an error, TopicNotFound.
    """
    durable = config.subscription_mode is SubscriptionMode.Durable
    command = pb.CommandSubscribe(
        topic=topic,
        subscription=config.subscription_name,
        subType=int(config.consumer_type),  # type: ignore[arg-type]
        consumer_id=consumer_id,
        request_id=request_id,
        consumer_name=consumer_name,
        priority_level=config.priority_level_of(topic),
        durable=durable,
        metadata=_pairs(config.properties),
        read_compacted=config.is_read_compacted,
        initialPosition=int(config.initial_position),  # type: ignore[arg-type]
        replicate_subscription_state=config.replicate_subscription_state_enabled,
        subscription_properties=_pairs(config.subscription_properties),
        consumer_epoch=epoch,
    )
    if not create_topic:
        command.force_topic_creation = False
    policy = config.applied_key_shared_policy
    if policy is not None:
        command.keySharedMeta.keySharedMode = int(policy.key_shared_mode)  # type: ignore[assignment]
        command.keySharedMeta.allowOutOfOrderDelivery = policy.allow_out_of_order_delivery
        is_sticky = policy.key_shared_mode is KeySharedMode.Sticky
        for first, last in (policy.sticky_ranges or ()) if is_sticky else ():
            command.keySharedMeta.hashRanges.add(start=first, end=last)
    if not durable and start is not None:
        # Of a chunked message its first chunk: without it the others cannot be assembled.
        command.start_message_id.CopyFrom(id_data(start.first_chunk_message_id() or start))
    if schema is not None:
        command.schema.CopyFrom(schema)
    return _framed(_SUBSCRIBE, command.SerializeToString())


def send(
    *,
    producer_id: int,
    sequence_id: int,
    highest_sequence_id: int,
    count: int,
    metadata: bytes,
    payload: bytes | memoryview,
    is_chunk: bool = False,
    txn_id: TxnId | None = None,
) -> list[bytes | memoryview]:
    """Return SEND as parts for a vectored write. `highest_sequence_id` and the count are for batches only.

    The broker uses the transaction id of the command; the one in the metadata is for readers of the entry.
    """
    if not is_chunk and txn_id is None:
        # Encoded by hand, as this runs for each entry.
        own = b"".join((b"\x08", varint(producer_id), b"\x10", varint(sequence_id)))
        if count > 1:
            own = b"".join((own, b"\x18", varint(count), b"\x30", varint(highest_sequence_id)))
        return encode_send(b"\x08\x06\x32" + varint(len(own)) + own, metadata, payload)
    command = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id)
    if count > 1:
        command.num_messages = count
        command.highest_sequence_id = highest_sequence_id
    if is_chunk:
        command.is_chunk = True
    if txn_id is not None:
        command.txnid_most_bits, command.txnid_least_bits = txn_id
    return encode_send(pb.BaseCommand(type=Kind.SEND, send=command), metadata, payload)


def flow(consumer_id: int, permits: int) -> bytes:
    """Return FLOW; `permits` counts messages and must be positive, as the broker closes the connection on 0."""
    if permits <= 0:
        raise ValueError("FLOW needs at least one permit")
    return _two_numbers(_FLOW, consumer_id, permits)


AckItem = tuple[int, int, Sequence[int] | None]
"""Ledger id, entry id, and the 64-bit words of the entry's unacknowledged messages (None = none)."""


def _ack_ids(items: Iterable[AckItem]) -> list[pb.MessageIdData]:
    ids = []
    for ledger, entry, words in items:
        data = pb.MessageIdData(ledgerId=ledger & _U64, entryId=entry & _U64)
        if words is not None:
            data.ack_set.extend(words)
        ids.append(data)
    return ids


def ack(
    consumer_id: int,
    items: Iterable[AckItem],
    *,
    cumulative: bool,
    validation_error: int | None = None,
    request_id: int | None = None,
) -> bytes:
    """Return ACK of several entries, or of all up to one; the broker responds only when it has a request id."""
    command = pb.CommandAck(
        consumer_id=consumer_id, ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
    )
    each = list(items)
    encoded = _impl.encode_ack_ids(each)
    if encoded is None:
        command.message_id.extend(_ack_ids(each))
    else:
        # A tenth of the time: the runtime makes no Python object for each id.
        command.MergeFromString(encoded)
    if validation_error is not None:
        command.validation_error = validation_error  # type: ignore[assignment]
    if request_id is not None:
        command.request_id = request_id
    return encode_command(pb.BaseCommand(type=Kind.ACK, ack=command))


TransactionalAckItem = tuple[int, int, Sequence[int] | None, int]
"""As `AckItem`, with the entry's number of messages (0: not a batch)."""


def ack_in_transaction(
    consumer_id: int, items: Iterable[TransactionalAckItem], txn_id: TxnId, request_id: int, *, cumulative: bool
) -> bytes:
    """Return ACK of entries, or of all up to one, in a transaction; the broker responds to it."""
    ids = []
    for ledger, entry, words, size in items:
        data = pb.MessageIdData(ledgerId=ledger & _U64, entryId=entry & _U64)
        if words is not None:
            data.ack_set.extend(words)
        if size:
            data.batch_size = size
        ids.append(data)
    command = pb.CommandAck(
        consumer_id=consumer_id,
        ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual,
        message_id=ids,
        txnid_most_bits=txn_id.most_bits,
        txnid_least_bits=txn_id.least_bits,
        request_id=request_id,
    )
    return encode_command(pb.BaseCommand(type=Kind.ACK, ack=command))


def redeliver(consumer_id: int, entries: Iterable[tuple[int, int]], *, epoch: int | None) -> bytes:
    """Return REDELIVER_UNACKNOWLEDGED_MESSAGES; no entries mean everything unacknowledged."""
    command = pb.CommandRedeliverUnacknowledgedMessages(
        consumer_id=consumer_id, message_ids=_ack_ids((ledger, entry, None) for ledger, entry in entries)
    )
    if epoch is not None:
        command.consumer_epoch = epoch
    return encode_command(
        pb.BaseCommand(type=Kind.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=command)
    )


def seek(
    consumer_id: int, request_id: int, *, position: MessageId | None, words: Sequence[int] | None, publish_time: int
) -> bytes:
    """Return SEEK to an id (its batch index as `words`, since the broker ignores the index itself) or to a time."""
    command = pb.CommandSeek(consumer_id=consumer_id, request_id=request_id)
    if position is None:
        command.message_publish_time = publish_time
    else:
        command.message_id.CopyFrom(id_data(position, batch_index=False))
        command.message_id.ack_set.extend(words or ())
    return encode_command(pb.BaseCommand(type=Kind.SEEK, seek=command))


def get_last_message_id(consumer_id: int, request_id: int) -> bytes:
    """Return GET_LAST_MESSAGE_ID, the request for the last deliverable message id of a consumer's topic."""
    return _two_numbers(_GET_LAST_MESSAGE_ID, consumer_id, request_id)


def get_schema(topic: str, request_id: int, version: bytes | None) -> bytes:
    """Return GET_SCHEMA, the request for a topic's schema, the latest or one version."""
    command = pb.CommandGetSchema(topic=topic, request_id=request_id)
    if version is not None:
        command.schema_version = version
    return encode_command(pb.BaseCommand(type=Kind.GET_SCHEMA, getSchema=command))


def get_or_create_schema(topic: str, request_id: int, schema: pb.Schema) -> bytes:
    """Return GET_OR_CREATE_SCHEMA, the request for a schema's version in a topic; registers a new schema."""
    command = pb.CommandGetOrCreateSchema(topic=topic, request_id=request_id, schema=schema)
    return encode_command(pb.BaseCommand(type=Kind.GET_OR_CREATE_SCHEMA, getOrCreateSchema=command))


def topics_of_namespace(
    namespace: str, request_id: int, mode: int, *, pattern: str | None = None, known_hash: str = ""
) -> bytes:
    """Return GET_TOPICS_OF_NAMESPACE; `mode` 0 persistent, 1 non-persistent, 2 all.

    The pattern has no domain. If the hash of the list is still `known_hash`, the broker omits the list.
    """
    command = pb.CommandGetTopicsOfNamespace(namespace=namespace, request_id=request_id, mode=mode)  # type: ignore[arg-type]
    if pattern is not None:
        command.topics_pattern = pattern
    if known_hash:
        command.topics_hash = known_hash
    return encode_command(pb.BaseCommand(type=Kind.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=command))


def watch_topic_list(namespace: str, request_id: int, watcher_id: int, *, pattern: str, known_hash: str) -> bytes:
    """Return WATCH_TOPIC_LIST (PIP-145): the broker reports matching persistent topics as they are created and
    deleted.
    """
    command = pb.CommandWatchTopicList(
        namespace=namespace, request_id=request_id, watcher_id=watcher_id, topics_pattern=pattern
    )
    if known_hash:
        command.topics_hash = known_hash
    return encode_command(pb.BaseCommand(type=Kind.WATCH_TOPIC_LIST, watchTopicList=command))


def close_topic_list_watch(request_id: int, watcher_id: int) -> bytes:
    """Return WATCH_TOPIC_LIST_CLOSE."""
    command = pb.CommandWatchTopicListClose(request_id=request_id, watcher_id=watcher_id)
    return encode_command(pb.BaseCommand(type=Kind.WATCH_TOPIC_LIST_CLOSE, watchTopicListClose=command))


def success(request_id: int) -> tuple[bytes, pb.CommandSuccess]:
    """Return SUCCESS as the broker sends it, to be compared with what arrived instead of parsing that, and parsed."""
    return _framed(_SUCCESS, b"\x08" + varint(request_id)), pb.CommandSuccess(request_id=request_id)


def unsubscribe(consumer_id: int, request_id: int, *, force: bool) -> bytes:
    """Return UNSUBSCRIBE: the broker deletes the subscription."""
    command = pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id, force=force)
    return encode_command(pb.BaseCommand(type=Kind.UNSUBSCRIBE, unsubscribe=command))


def close_producer(producer_id: int, request_id: int) -> bytes:
    """Return CLOSE_PRODUCER."""
    return _two_numbers(_CLOSE_PRODUCER, producer_id, request_id)


def consumer_stats(consumer_id: int, request_id: int) -> bytes:
    """Return CONSUMER_STATS."""
    command = pb.CommandConsumerStats(consumer_id=consumer_id, request_id=request_id)
    return encode_command(pb.BaseCommand(type=Kind.CONSUMER_STATS, consumerStats=command))


def close_consumer(consumer_id: int, request_id: int) -> bytes:
    """Return CLOSE_CONSUMER."""
    return _two_numbers(_CLOSE_CONSUMER, consumer_id, request_id)


# --- transactions -----------------------------------------------------------------------------------------------------


def connect_coordinator(coordinator: int, request_id: int) -> bytes:
    """Return TC_CLIENT_CONNECT_REQUEST: the broker loads the coordinator, if it owns it."""
    command = pb.CommandTcClientConnectRequest(request_id=request_id, tc_id=coordinator)
    return encode_command(pb.BaseCommand(type=Kind.TC_CLIENT_CONNECT_REQUEST, tcClientConnectRequest=command))


def new_transaction(coordinator: int, request_id: int, timeout_ms: int) -> bytes:
    """Return NEW_TXN; the broker aborts the transaction when the time-out is over."""
    command = pb.CommandNewTxn(request_id=request_id, txn_ttl_millis=timeout_ms, tc_id=coordinator)
    return encode_command(pb.BaseCommand(type=Kind.NEW_TXN, newTxn=command))


def add_partition_to_transaction(txn_id: TxnId, topic: str, request_id: int) -> bytes:
    """Return ADD_PARTITION_TO_TXN: registers a topic or partition before messages are sent to it."""
    command = pb.CommandAddPartitionToTxn(
        request_id=request_id,
        txnid_most_bits=txn_id.most_bits,
        txnid_least_bits=txn_id.least_bits,
        partitions=[topic],
    )
    return encode_command(pb.BaseCommand(type=Kind.ADD_PARTITION_TO_TXN, addPartitionToTxn=command))


def add_subscription_to_transaction(txn_id: TxnId, topic: str, subscription: str, request_id: int) -> bytes:
    """Return ADD_SUBSCRIPTION_TO_TXN: registers a subscription before acknowledgements of it are sent."""
    command = pb.CommandAddSubscriptionToTxn(
        request_id=request_id,
        txnid_most_bits=txn_id.most_bits,
        txnid_least_bits=txn_id.least_bits,
        subscription=[pb.Subscription(topic=topic, subscription=subscription)],
    )
    return encode_command(pb.BaseCommand(type=Kind.ADD_SUBSCRIPTION_TO_TXN, addSubscriptionToTxn=command))


def end_transaction(txn_id: TxnId, request_id: int, *, commit: bool) -> bytes:
    """Return END_TXN."""
    command = pb.CommandEndTxn(
        request_id=request_id,
        txnid_most_bits=txn_id.most_bits,
        txnid_least_bits=txn_id.least_bits,
        txn_action=pb.COMMIT if commit else pb.ABORT,
    )
    return encode_command(pb.BaseCommand(type=Kind.END_TXN, endTxn=command))
