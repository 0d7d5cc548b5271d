"""Options of both APIs' methods: every one reaches the configuration, and unknown ones are refused."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import ssl
import sys
from collections.abc import Callable
from typing import Any

import pytest

import pulsar_native
import pulsar_native.asyncio
from pulsar_native.config import (
    BatchReceivePolicy,
    ClientConfig,
    Config,
    ConsumerConfig,
    DeadLetterPolicy,
    KeySharedPolicy,
    MultiplierRedeliveryBackoff,
    ProducerConfig,
    ReaderConfig,
    TopicConfiguration,
)
from pulsar_native.crypto import CryptoKeyReader
from pulsar_native.engine.client import ClientCore
from pulsar_native.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerCryptoFailureAction,
    ProxyProtocol,
    RegexSubscriptionMode,
    SubscriptionMode,
)
from pulsar_native.exceptions import InvalidConfiguration, InvalidTopicName
from pulsar_native.interceptors import ConsumerInterceptor, ProducerInterceptor, ReaderInterceptor
from pulsar_native.message_id import MessageId
from pulsar_native.payload_processor import MessagePayloadContext, PayloadMessage
from pulsar_native.protocol.topic_pattern import TopicPattern
from pulsar_native.schema import StringSchema

URL = "pulsar://localhost:1"
APIS = {"sync": pulsar_native, "asyncio": pulsar_native.asyncio}
KEYS = CryptoKeyReader("public", "private")


class Processor:
    """A payload processor."""

    def process(self, payload: bytes, context: MessagePayloadContext) -> list[PayloadMessage]:
        return context.messages(payload)


class Requested(Exception):
    """Raised in place of a request, with the arguments of the engine."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__()
        self.arguments = arguments


Request = Callable[[str, dict[str, Any]], tuple[Any, ...]]


@pytest.fixture(params=APIS)
def request_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Request:
    """Call a method of one of the APIs' clients and return the arguments that reach the engine."""

    async def refuse(_core: object, *arguments: Any) -> None:
        raise Requested(*arguments)

    monkeypatch.setattr(ClientCore, "create_producer", refuse)
    monkeypatch.setattr(ClientCore, "subscribe", refuse)

    async def on_loop(method: str, options: dict[str, Any]) -> None:
        async with pulsar_native.asyncio.Client(URL) as client:
            await getattr(client, method)(**options)

    def call(method: str, options: dict[str, Any]) -> tuple[Any, ...]:
        with pytest.raises(Requested) as requested:
            if request.param == "asyncio":
                asyncio.run(on_loop(method, options))
            else:
                with pulsar_native.Client(URL) as client:
                    getattr(client, method)(**options)
        return requested.value.arguments

    return call


# --- every option reaches the configuration ---------------------------------------------------------------------------

CLIENT_OPTIONS: list[dict[str, Any]] = [
    {
        "authentication": pulsar_native.AuthenticationToken("secret"),
        "operation_timeout_seconds": 31,
        "io_threads": 2,
        "message_listener_threads": 3,
        "concurrent_lookup_requests": 4,
        "stats_interval_in_seconds": 5,
        "use_tls": True,
        "tls_trust_certs_file_path": "trust",
        "tls_allow_insecure_connection": True,
        "tls_validate_hostname": True,
        "connection_timeout_ms": 6,
        "listener_name": "listener",
        "tls_private_key_file_path": "key",
        "tls_certificate_file_path": "certificate",
        "connections_per_broker": 7,
        "keep_alive_interval_seconds": 8,
        "max_lookup_redirects": 9,
        "max_lookup_requests": 10,
        "max_number_of_rejected_request_per_connection": 11,
        "connection_max_idle_seconds": 12,
        "service_url_quarantine_init_duration_seconds": 13,
        "service_url_quarantine_max_duration_seconds": 14,
        "memory_limit_bytes": 15,
        "starting_backoff_interval_ms": 16,
        "max_backoff_interval_ms": 17,
        "description": "text",
        "meter_provider": True,
    },
    {"tls_context": ssl.create_default_context()},
    {
        "service_url": "pulsar+ssl://localhost:1",
        "proxy_service_url": "pulsar+ssl://proxy:2",
        "proxy_protocol": ProxyProtocol.SNI,
        "socks5_proxy_address": "proxy:3",
        "socks5_proxy_username": "me",
        "socks5_proxy_password": "secret",
    },
]
PRODUCER_OPTIONS: list[dict[str, Any]] = [
    {
        "topic": "t",
        "producer_name": "name",
        "initial_sequence_id": 5,
        "send_timeout_millis": 30001,
        "compression_type": CompressionType.LZ4,
        "max_pending_messages": 1001,
        "max_pending_messages_across_partitions": 50001,
        "block_if_queue_full": True,
        "batching_enabled": True,
        "batching_max_messages": 1002,
        "batching_max_allowed_size_in_bytes": 1003,
        "batching_max_publish_delay_ms": 11,
        "message_routing_mode": PartitionsRoutingMode.UseSinglePartition,
        "lazy_start_partitioned_producers": True,
        "properties": {"a": "b"},
        "batching_type": BatchingType.KeyBased,
        "encryption_key": "k",
        "crypto_key_reader": KEYS,
        "access_mode": ProducerAccessMode.Exclusive,
        "message_router": lambda message, count: 0,
        "hashing_scheme": HashingScheme.Murmur3_32Hash,
        "compression_min_msg_body_size": 6,
        "chunk_max_message_size": 7,
        "encryption_keys": ["l"],
        "crypto_failure_action": ProducerCryptoFailureAction.SEND,
        "auto_update_partitions": False,
        "auto_update_partitions_interval_seconds": 61,
    },
    {"topic": "t", "chunking_enabled": True, "batching_enabled": False},
]
CONSUMER_OPTIONS: list[dict[str, Any]] = [
    {
        "subscription_name": "s",
        "consumer_type": ConsumerType.KeyShared,
        "receiver_queue_size": 1001,
        "max_total_receiver_queue_size_across_partitions": 50001,
        "consumer_name": "name",
        "unacked_messages_timeout_ms": 5000,
        "negative_ack_redelivery_delay_ms": 60001,
        "properties": {"a": "b"},
        "pattern_auto_discovery_period": 61,
        "initial_position": InitialPosition.Earliest,
        "crypto_key_reader": KEYS,
        "replicate_subscription_state_enabled": True,
        "max_pending_chunked_message": 11,
        "auto_ack_oldest_chunked_message_on_queue_full": True,
        "start_message_id_inclusive": True,
        "batch_receive_policy": BatchReceivePolicy(max_num_messages=3),
        "key_shared_policy": KeySharedPolicy(allow_out_of_order_delivery=True),
        "batch_index_ack_enabled": True,
        "dead_letter_policy": DeadLetterPolicy(max_redeliver_count=3),
        "crypto_failure_action": ConsumerCryptoFailureAction.CONSUME,
        "acknowledgment_group_time_ms": 101,
        "max_acknowledgment_group_size": 1002,
        "ack_receipt_enabled": True,
        "unacked_messages_tick_ms": 1003,
        "ack_timeout_redelivery_backoff": MultiplierRedeliveryBackoff(),
        "negative_ack_redelivery_backoff": MultiplierRedeliveryBackoff(min_delay_ms=1),
        "negative_ack_redelivery_delay_precision": 9,
        "enable_retry": True,
        "subscription_mode": SubscriptionMode.NonDurable,
        "start_paused": True,
        "priority_level": 1,
        "topic_configurations": [TopicConfiguration("t", priority_level=2)],
        "message_payload_processor": Processor(),
        "subscription_properties": {"c": "d"},
        "expire_time_of_incomplete_chunked_message_ms": 60_001,
        "auto_update_partitions": False,
        "auto_update_partitions_interval_seconds": 62,
        "auto_scaled_receiver_queue_size_enabled": True,
    },
    {"subscription_name": "s", "is_read_compacted": True},
    {"subscription_name": "s", "regex_subscription_mode": RegexSubscriptionMode.AllTopics},
]
READER_OPTIONS: list[dict[str, Any]] = [
    {
        "topic": "t",
        "start_message_id": MessageId(1, 2, 3),
        "receiver_queue_size": 1001,
        "auto_scaled_receiver_queue_size_enabled": True,
        "reader_name": "name",
        "subscription_role_prefix": "role",
        "is_read_compacted": True,
        "crypto_key_reader": KEYS,
        "start_message_id_inclusive": True,
        "crypto_failure_action": ConsumerCryptoFailureAction.DISCARD,
        "subscription_name": "s",
        "auto_update_partitions": False,
        "auto_update_partitions_interval_seconds": 61,
        "max_pending_chunked_message": 11,
        "auto_ack_oldest_chunked_message_on_queue_full": True,
        "expire_time_of_incomplete_chunked_message_ms": 60_001,
        "key_hash_range": [(0, 5)],
    },
]
# Fields that no option of the methods sets, or that have one value only.
NO_OPTIONS: dict[type[Config], set[str]] = {
    ClientConfig: {"proxy_protocol"},
    ProducerConfig: {"round_robin_partition_switch_frequency", "initial_subscription_name"},
    ConsumerConfig: {"start_message_id"},
    ReaderConfig: set(),
}


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        (ClientConfig, CLIENT_OPTIONS),
        (ProducerConfig, PRODUCER_OPTIONS),
        (ConsumerConfig, CONSUMER_OPTIONS),
        (ReaderConfig, READER_OPTIONS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_option_tables_have_every_field_not_its_default(kind: type[Any], calls: list[dict[str, Any]]) -> None:
    # Else the tests below would not see that an option is dropped.
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    changed = {name for options in calls for name, value in options.items() if value != defaults[name]}
    assert defaults.keys() - changed == NO_OPTIONS[kind]


@pytest.mark.parametrize("options", CLIENT_OPTIONS, ids=len)
@pytest.mark.parametrize("api", APIS)
def test_client_options_reach_config(api: str, options: dict[str, Any]) -> None:
    options = {"service_url": URL, **options}
    config = APIS[api].Client(**options).config
    assert config == ClientConfig(**options)
    assert config.meter_provider == options.get("meter_provider")


@pytest.mark.parametrize("options", PRODUCER_OPTIONS, ids=len)
def test_create_producer_options_reach_config(request_of: Request, options: dict[str, Any]) -> None:
    assert request_of("create_producer", options)[0] == ProducerConfig(**options)


@pytest.mark.parametrize("options", CONSUMER_OPTIONS, ids=len)
def test_subscribe_options_reach_config(request_of: Request, options: dict[str, Any]) -> None:
    topic = re.compile("a.*") if "regex_subscription_mode" in options else "t"
    assert request_of("subscribe", {"topic": topic, **options})[1] == ConsumerConfig(**options)


@pytest.mark.parametrize("options", READER_OPTIONS, ids=len)
def test_create_reader_options_reach_config(request_of: Request, options: dict[str, Any]) -> None:
    topics, config, *_ = request_of("create_reader", options)
    assert (topics, config) == (["t"], ReaderConfig(**options).consumer_config())


def test_create_table_view_options_reach_config(request_of: Request) -> None:
    options = {
        "topic": "t",
        "subscription_name": "s",
        "auto_update_partitions_interval_seconds": 61,
        "crypto_key_reader": KEYS,
        "crypto_failure_action": ConsumerCryptoFailureAction.DISCARD,
    }
    topics, config, *_ = request_of("create_table_view", options)
    reader = ReaderConfig(**options, start_message_id=MessageId.earliest, is_read_compacted=True)
    assert (topics, config) == (["t"], reader.consumer_config())
    assert config.subscription_mode is SubscriptionMode.NonDurable
    volatile = request_of("create_table_view", {"topic": "non-persistent://public/default/t"})
    assert not volatile[1].is_read_compacted


def test_default_options_are_those_of_the_config(request_of: Request, request: pytest.FixtureRequest) -> None:
    is_asyncio = "asyncio" in request.node.callspec.id
    config, _schema, chain = request_of("create_producer", {"topic": "t"})
    assert (config, chain) == (ProducerConfig(topic="t", batching_enabled=is_asyncio), None)
    consumer = request_of("subscribe", {"topic": "t", "subscription_name": "s"})
    assert consumer[:2] == (["t"], ConsumerConfig(subscription_name="s"))
    assert consumer[3:] == (None, None, None, None)
    options = {"topic": "t", "start_message_id": MessageId.latest, "subscription_name": "s"}
    assert request_of("create_reader", options)[1] == ReaderConfig(**options).consumer_config()


def test_options_none_mean_the_default(request_of: Request) -> None:
    config = request_of("create_producer", {"topic": "t", "properties": None, "encryption_keys": None})[0]
    assert (config.properties, config.encryption_keys) == ({}, ())
    names = ("properties", "subscription_properties", "batch_receive_policy")
    config = request_of("subscribe", {"topic": "t", "subscription_name": "s", **dict.fromkeys(names)})[1]
    assert config == ConsumerConfig(subscription_name="s")


# --- arguments beside the configuration -------------------------------------------------------------------------------


class Listener:
    """Listener of a pattern's topics and of the active consumer."""

    def on_topics_added(self, topics: list[str]) -> None: ...
    def on_topics_removed(self, topics: list[str]) -> None: ...
    def became_active(self, consumer: Any, partition: int) -> None: ...
    def became_inactive(self, consumer: Any, partition: int) -> None: ...


def test_schemas_reach_engine(request_of: Request) -> None:
    schema = StringSchema()
    assert request_of("create_producer", {"topic": "t", "schema": schema})[1] is schema
    for method, needed in (
        ("subscribe", {"subscription_name": "s"}),
        ("create_reader", {"start_message_id": MessageId.earliest}),
        ("create_table_view", {}),
    ):
        decoder, wire = request_of(method, {"topic": "t", "schema": schema, **needed})[2:4]
        assert (decoder.decode(b"text", None), wire.name) == ("text", "STRING"), method


TOPIC: dict[str, Any] = {"topic": "t"}
SUBSCRIPTION: dict[str, Any] = {**TOPIC, "subscription_name": "s"}
START: dict[str, Any] = {**TOPIC, "start_message_id": MessageId.earliest}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("create_producer", {**TOPIC, "max_pending_messages": 1.5}, "max_pending_messages must be an int"),
    ("subscribe", {**SUBSCRIPTION, "priority_level": 1.5}, "priority_level must be an int"),
    ("create_reader", {**START, "max_pending_chunked_message": 1.5}, "max_pending_chunked_message must be an int"),
    ("create_producer", {**TOPIC, "interceptors": 5}, "interceptors must be a list of Producer.* not int"),
    ("subscribe", {**SUBSCRIPTION, "interceptors": True}, "interceptors must be a list of Consumer.* not bool"),
    ("create_reader", {**START, "interceptors": print}, "interceptors must be a list of Reader.* not builtin"),
    ("create_producer", {**TOPIC, "producer_name": "\ud800"}, "producer_name must not hold a lone surrogate"),
    ("subscribe", {**SUBSCRIPTION, "subscription_name": "\ud800"}, "subscription_name must not hold a lone"),
    ("subscribe", {**SUBSCRIPTION, "topic": re.compile("\ud800")}, "topic pattern must not hold a lone surrogate"),
    ("create_reader", {**START, "reader_name": "\ud800"}, "reader_name must not hold a lone surrogate"),
    ("create_table_view", {**TOPIC, "subscription_name": "\ud800"}, "subscription_name must not hold a lone"),
    ("create_producer", {"topic": "\ud800"}, "Invalid topic name .* lone surrogates"),
    ("subscribe", {**SUBSCRIPTION, "topic": ["t", "\ud800"]}, "Invalid topic name .* lone surrogates"),
    ("create_reader", {**START, "topic": "\ud800"}, "Invalid topic name .* lone surrogates"),
    ("create_table_view", {"topic": "\ud800"}, "Invalid topic name .* lone surrogates"),
]


def create(api: str, method: str, options: dict[str, Any]) -> None:
    """Call a method of a client whose broker does not exist."""

    async def create_async() -> None:
        async with pulsar_native.asyncio.Client(URL, operation_timeout_seconds=1) as client:
            await getattr(client, method)(**options)

    if api == "asyncio":
        asyncio.run(create_async())
    else:
        with pulsar_native.Client(URL, operation_timeout_seconds=1) as client:
            getattr(client, method)(**options)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("method", "options", "words"), REFUSED, ids=[f"{number}-{each[0]}" for number, each in enumerate(REFUSED)]
)
def test_option_refused_before_connecting(api: str, method: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidConfiguration, InvalidTopicName), match=words):
        create(api, method, options)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("package", "kind"),
    [("lz4.block", CompressionType.LZ4), ("zstandard", CompressionType.ZSTD), ("cramjam", CompressionType.SNAPPY)],
    ids=["lz4", "zstd", "snappy"],
)
def test_missing_codec_refused_before_connecting(
    monkeypatch: pytest.MonkeyPatch, api: str, package: str, kind: CompressionType
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InvalidConfiguration, match=f"{kind.name} needs the package"):
        create(api, "create_producer", {**TOPIC, "compression_type": kind})


@pytest.mark.parametrize("value", ["no", 0, 5, None], ids=repr)
def test_is_pattern_topic_of_another_type_raises(value: object) -> None:
    with pytest.raises(InvalidConfiguration, match="is_pattern_topic must be True or False"):
        create("asyncio", "subscribe", {**SUBSCRIPTION, "is_pattern_topic": value})


@pytest.mark.parametrize("api", APIS)
def test_schema_of_another_type_raises(api: str) -> None:
    async def create() -> None:
        await pulsar_native.asyncio.Client(URL).create_producer("t", schema=str)  # type: ignore[arg-type]

    with pytest.raises(InvalidConfiguration, match="schema must be a Schema"):
        if api == "asyncio":
            asyncio.run(create())
        else:
            pulsar_native.Client(URL).create_producer("t", schema=str)  # type: ignore[arg-type]


def test_interceptors_reach_engine(request_of: Request) -> None:
    calls: list[tuple[str, dict[str, Any], Any, int]] = [
        ("create_producer", {}, ProducerInterceptor(), 2),
        ("subscribe", {"subscription_name": "s"}, ConsumerInterceptor(), 4),
        ("create_reader", {"start_message_id": MessageId.earliest}, ReaderInterceptor(), 4),
    ]
    for method, needed, interceptor, index in calls:
        chain = request_of(method, {"topic": "t", "interceptors": [interceptor], **needed})[index]
        assert list(chain.interceptors) == [interceptor], method


def test_listeners_reach_engine(request_of: Request) -> None:
    listener = Listener()
    options = {"topic": re.compile("a.*"), "subscription_name": "s", "topics_changed_listener": listener}
    topics, *_, changed, events = request_of("subscribe", options)
    assert isinstance(topics, TopicPattern) and callable(changed) and events is None
    failover = {"consumer_type": ConsumerType.Failover, "consumer_event_listener": listener}
    *_, changed, events = request_of("subscribe", {"topic": "a", "subscription_name": "s", **failover})
    assert changed is None and events._listener is listener


async def test_is_pattern_topic_makes_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_core: object, *arguments: Any) -> None:
        raise Requested(*arguments)

    monkeypatch.setattr(ClientCore, "subscribe", refuse)
    async with pulsar_native.asyncio.Client(URL) as client:
        with pytest.raises(Requested) as requested:
            await client.subscribe("a.*", "s", is_pattern_topic=True)
    assert isinstance(requested.value.arguments[0], TopicPattern)


# --- unknown options --------------------------------------------------------------------------------------------------

NEEDED: dict[str, dict[str, Any]] = {
    "create_producer": {"topic": "t"},
    "subscribe": {"topic": "t", "subscription_name": "s"},
    "create_reader": {"topic": "t", "start_message_id": MessageId.earliest},
    "create_table_view": {"topic": "t"},
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("method", "name"),
    [
        *((method, "colour") for method in NEEDED),
        # Fields of the configuration that are no options.
        ("create_producer", "initial_subscription_name"),
        ("subscribe", "start_message_id"),
        ("create_table_view", "receiver_queue_size"),
    ],
)
def test_unknown_option_raises_type_error(api: str, method: str, name: str) -> None:
    client = APIS[api].Client(URL)

    async def call() -> None:
        await getattr(client, method)(**NEEDED[method], **{name: 1})

    with pytest.raises(TypeError, match=rf"^{method}\(\) got an unexpected keyword argument '{name}'"):
        if api == "asyncio":
            asyncio.run(call())
        else:
            getattr(client, method)(**NEEDED[method], **{name: 1})


@pytest.mark.parametrize("api", APIS)
def test_unknown_client_option_names_the_nearest(api: str) -> None:
    with pytest.raises(TypeError, match=r"^Client\(\) .* 'max_lookup_redirect'; did you mean 'max_lookup_redirects'\?"):
        APIS[api].Client(URL, max_lookup_redirect=1)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("method", "name", "near"),
    [
        ("Client", "operation_timeout", "operation_timeout_seconds"),
        ("create_producer", "batching_enable", "batching_enabled"),
        ("subscribe", "unacked_messages_timeout", "unacked_messages_timeout_ms"),
        ("create_reader", "queue_size", "receiver_queue_size"),
        ("create_table_view", "subscription", "subscription_name"),
    ],
)
def test_unknown_option_names_nearest_parameter(api: str, method: str, name: str, near: str) -> None:
    with pytest.raises(TypeError, match=rf"^{method}\(\) .* '{name}'; did you mean '{near}'\?"):
        if method == "Client":
            APIS[api].Client(URL, **{name: 1})
        called = getattr(APIS[api].Client(URL), method)(**NEEDED[method], **{name: 1})
        asyncio.run(called)
