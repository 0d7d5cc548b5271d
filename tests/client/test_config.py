"""Configuration of clients, producers, consumers and readers: strict, frozen, picklable without secrets."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_native.auth import AuthenticationBasic, AuthenticationToken
from pulsar_native.config import (
    BatchReceivePolicy,
    ClientConfig,
    ConsumerConfig,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    DeadLetterPolicy,
    KeySharedPolicy,
    MultiplierRedeliveryBackoff,
    ProducerConfig,
    ReaderConfig,
    checked_ranges,
)
from pulsar_native.crypto import CryptoKeyReader
from pulsar_native.enums import (
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    KeySharedMode,
    PartitionsRoutingMode,
    SubscriptionMode,
)
from pulsar_native.exceptions import InvalidConfiguration, InvalidTopicName, InvalidUrl
from pulsar_native.message_id import MessageId
from pulsar_native.service_url import Address

URL = "pulsar://localhost:6650"

MINIMAL: list[tuple[type[Any], dict[str, Any]]] = [
    (ClientConfig, {"service_url": URL}),
    (ProducerConfig, {"topic": "t"}),
    (ConsumerConfig, {"subscription_name": "s"}),
    (ReaderConfig, {"topic": "t", "start_message_id": MessageId.earliest}),
    (BatchReceivePolicy, {}),
    (DeadLetterPolicy, {"max_redeliver_count": 3}),
]


@pytest.mark.proves("C18", "C118")
@pytest.mark.parametrize(("kind", "options"), MINIMAL, ids=lambda value: getattr(value, "__name__", ""))
def test_made_from_a_mapping_and_changed_without_changing_the_first(kind: type[Any], options: dict[str, Any]) -> None:
    first = kind.from_mapping(options)
    assert first == kind(**options)
    whole = {field.name: getattr(first, field.name) for field in dataclasses.fields(first)}
    assert kind.from_mapping(whole) == first
    changes = {
        ClientConfig: {"operation_timeout_seconds": 5},
        ProducerConfig: {"batching_enabled": True},
        ConsumerConfig: {"consumer_type": ConsumerType.Shared},
        ReaderConfig: {"receiver_queue_size": 7},
        BatchReceivePolicy: {"max_num_messages": 7},
        DeadLetterPolicy: {"max_redeliver_count": 7},
    }[kind]
    second = first.replace(**changes)
    assert second != first and {name: getattr(second, name) for name in changes} == changes
    assert {field.name: getattr(first, field.name) for field in dataclasses.fields(first)} == whole
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(first, next(iter(changes)), None)


@pytest.mark.proves("C18", "C118")
def test_a_changed_copy_is_checked_too() -> None:
    with pytest.raises(InvalidConfiguration, match="operation_timeout_seconds"):
        ClientConfig(service_url=URL).replace(operation_timeout_seconds=-1)


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        (ClientConfig, {"service_ulr": URL}, "no option 'service_ulr'; did you mean 'service_url'"),
        (ClientConfig, {"service_url": URL, "operation_timeout": 3}, "did you mean 'operation_timeout_seconds'"),
        (
            ProducerConfig,
            {"topic": "t", "batching": True},
            "did you mean 'batching_enabled'|did you mean 'batching_type'",
        ),
        (ConsumerConfig, {"subscription": "s"}, "did you mean 'subscription_name'"),
        (ReaderConfig, {"topic": "t", "start_message": 1}, "did you mean 'start_message_id'"),
        (ClientConfig, {"zzz": 1}, "known are .*service_url"),
    ],
)
def test_an_unknown_option_is_named_with_the_nearest_right_one(
    kind: type[Any], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=told):
        kind.from_mapping(options)


def test_a_missing_option_is_an_error_of_the_configuration() -> None:
    with pytest.raises(InvalidConfiguration, match="ClientConfig needs 'service_url'"):
        ClientConfig.from_mapping({"use_tls": True})
    with pytest.raises(InvalidConfiguration, match="ReaderConfig needs 'topic' and 'start_message_id'"):
        ReaderConfig.from_mapping({})


CLIENT_REFUSALS = [
    ({"service_url": "ftp://localhost:8080"}, InvalidUrl, "scheme"),
    ({"service_url": " "}, InvalidUrl, "empty"),
    ({"operation_timeout_seconds": 0}, InvalidConfiguration, "at least 0.001"),
    ({"operation_timeout_seconds": "30"}, InvalidConfiguration, "must be a number, not str"),
    ({"operation_timeout_seconds": float("nan")}, InvalidConfiguration, "at least"),
    ({"connection_timeout_ms": 0}, InvalidConfiguration, "connection_timeout_ms"),
    ({"message_listener_threads": 0}, InvalidConfiguration, "at least 1"),
    ({"message_listener_threads": 1001}, InvalidConfiguration, "at most 1000"),
    ({"io_threads": 0}, InvalidConfiguration, "io_threads"),
    ({"concurrent_lookup_requests": 0}, InvalidConfiguration, "concurrent_lookup_requests"),
    ({"connections_per_broker": -1}, InvalidConfiguration, "connections_per_broker"),
    ({"connections_per_broker": True}, InvalidConfiguration, "not bool"),
    ({"max_lookup_redirects": -1}, InvalidConfiguration, "max_lookup_redirects"),
    ({"memory_limit_bytes": -1}, InvalidConfiguration, "memory_limit_bytes"),
    ({"starting_backoff_interval_ms": 0}, InvalidConfiguration, "starting_backoff_interval_ms"),
    (
        {"starting_backoff_interval_ms": 500, "max_backoff_interval_ms": 400},
        InvalidConfiguration,
        "max_backoff_interval_ms must be at least 500",
    ),
    ({"tls_certificate_file_path": "c.pem"}, InvalidConfiguration, "belong together"),
    ({"tls_private_key_file_path": "k.pem"}, InvalidConfiguration, "belong together"),
    ({"authentication": "token:abc"}, InvalidConfiguration, "not str"),
]


@pytest.mark.parametrize(("options", "kind", "told"), CLIENT_REFUSALS)
def test_a_clients_options_are_checked(options: dict[str, Any], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        ClientConfig.from_mapping({"service_url": URL, **options})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topic": 5}, "needs a topic"),
        ({"topic": None}, "needs a topic"),
        ({"initial_sequence_id": -2}, "initial_sequence_id"),
        ({"send_timeout_millis": -1}, "send_timeout_millis"),
        ({"max_pending_messages": -1}, "max_pending_messages"),
        ({"batching_max_messages": 0}, "batching_max_messages"),
        ({"batching_max_allowed_size_in_bytes": -1}, "batching_max_allowed_size_in_bytes"),
        ({"batching_max_publish_delay_ms": -1}, "batching_max_publish_delay_ms"),
        ({"properties": {"a": 1}}, "mapping of str to str"),
        ({"properties": ["a"]}, "mapping of str to str"),
        ({"message_routing_mode": PartitionsRoutingMode.CustomPartition}, "needs a message_router"),
        ({"message_router": 3}, "callable"),
    ],
)
def test_a_producers_options_are_checked(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidConfiguration, match=told):
        ProducerConfig.from_mapping({"topic": "t", **options})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param({"subscription_name": " "}, "non-blank subscription_name", marks=pytest.mark.proves("C89")),
        pytest.param({"subscription_name": None}, "non-blank subscription_name", marks=pytest.mark.proves("C89")),
        ({"receiver_queue_size": -1}, "receiver_queue_size"),
        (
            {"receiver_queue_size": 0, "auto_scaled_receiver_queue_size_enabled": True},
            "needs a receiver_queue_size above 0",
        ),
        ({"acknowledgment_group_time_ms": -1}, "acknowledgment_group_time_ms"),
        ({"priority_level": -1}, "priority_level"),
        ({"unacked_messages_timeout_ms": 999}, "at least 1000"),
        pytest.param(
            {"unacked_messages_timeout_ms": 3000, "unacked_messages_tick_ms": 5000},
            "at most 3000",
            marks=pytest.mark.proves("C97"),
        ),
        pytest.param(
            {"unacked_messages_timeout_ms": 3000, "unacked_messages_tick_ms": 99},
            "at least 100",
            marks=pytest.mark.proves("C97"),
        ),
        ({"is_read_compacted": True, "consumer_type": ConsumerType.Shared}, "Exclusive or Failover"),
        ({"negative_ack_redelivery_delay_precision": -1}, "at least 0"),
        ({"negative_ack_redelivery_delay_precision": 1.5}, "number of bits"),
        ({"negative_ack_redelivery_backoff": 5}, "next.redelivery_count"),
        ({"ack_timeout_redelivery_backoff": MultiplierRedeliveryBackoff()}, "needs unacked_messages_timeout_ms"),
        ({"dead_letter_policy": {"max_redeliver_count": 1}}, "ConsumerDeadLetterPolicy"),
        ({"subscription_properties": {1: "a"}}, "mapping of str to str"),
    ],
)
def test_a_consumers_options_are_checked(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidConfiguration, match=told):
        ConsumerConfig.from_mapping({"subscription_name": "s", **options})


@pytest.mark.proves("C106")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_redeliver_count": 0}, "at least 1"),
        ({"max_redeliver_count": "3"}, "must be a number"),
        ({"dead_letter_topic": " "}, "non-blank"),
        ({"initial_subscription_name": ""}, "non-blank"),
        ({"retry_letter_topic": "a/b"}, "Invalid short topic name"),
        ({"dead_letter_producer_options": {"topic": "t"}}, "cannot name the topic"),
        ({"dead_letter_producer_options": {"compresion_type": 1}}, "did you mean 'compression_type'"),
        ({"retry_letter_producer_options": {"max_pending_messages": -1}}, "max_pending_messages"),
        ({"retry_letter_producer_options": 5}, "must be a mapping"),
    ],
)
def test_a_dead_letter_policy_is_checked(options: dict[str, Any], told: str) -> None:
    with pytest.raises((InvalidConfiguration, InvalidTopicName), match=told):
        DeadLetterPolicy.from_mapping({"max_redeliver_count": 3, **options})


def test_empty_names_are_none() -> None:
    producer = ProducerConfig(topic="t", producer_name="", encryption_key="  ")
    assert (producer.producer_name, producer.encryption_key) == (None, None)
    with pytest.raises(InvalidTopicName):
        ProducerConfig(topic=" ")


@pytest.mark.proves("C106")
def test_the_official_spelling_of_the_policy() -> None:
    policy = ConsumerDeadLetterPolicy(3, "dead", "first", retry_letter_topic="again")
    assert policy == DeadLetterPolicy(
        max_redeliver_count=3, dead_letter_topic="dead", initial_subscription_name="first", retry_letter_topic="again"
    )
    assert pickle.loads(pickle.dumps(policy)) == policy


@pytest.mark.proves("C97")
def test_a_tick_that_fits_is_taken() -> None:
    config = ConsumerConfig(subscription_name="s", unacked_messages_timeout_ms=3000, unacked_messages_tick_ms=3000)
    assert config.unacked_messages_tick_ms == 3000


def test_a_batch_receive_policy_needs_a_limit() -> None:
    with pytest.raises(InvalidConfiguration, match="at least one"):
        BatchReceivePolicy(max_num_messages=0, max_num_bytes=-1, timeout_ms=0)


def test_use_tls_changes_nothing() -> None:
    parsed = ClientConfig(service_url="pulsar://a:1,b:2", use_tls=True).parsed_url()
    assert not parsed.use_tls and parsed.addresses == (Address("a", 1), Address("b", 2))


# --- pickling ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("N2")
def test_a_description_crosses_to_another_process_and_the_secret_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKEN_OF_TEST", "topsecret")
    config = ClientConfig(service_url=URL, authentication=AuthenticationToken.from_reference("env:TOKEN_OF_TEST"))
    assert config.authentication is not None and config.authentication.auth_data() == b"topsecret"
    carried = pickle.dumps(config)
    assert b"topsecret" not in carried and "topsecret" not in repr(config)
    # Resolved where it is used: the other side has another value under the same name.
    monkeypatch.setenv("TOKEN_OF_TEST", "othersecret")
    again = pickle.loads(carried)
    assert again.authentication.auth_data() == b"othersecret"
    assert again.replace(authentication=None) == config.replace(authentication=None)


@pytest.mark.proves("N2")
@pytest.mark.parametrize(
    "literal",
    [lambda: AuthenticationToken("topsecret"), lambda: AuthenticationBasic("me", "topsecret")],
    ids=["token", "basic"],
)
def test_a_description_with_a_literal_secret_refuses_to_be_carried(literal: Callable[[], Any]) -> None:
    config = ClientConfig(service_url=URL, authentication=literal())
    with pytest.raises(TypeError, match="reference") as caught:
        pickle.dumps(config)
    assert "topsecret" not in f"{caught.value} {config!r}"


@pytest.mark.parametrize(("kind", "options"), MINIMAL[1:], ids=lambda value: getattr(value, "__name__", ""))
def test_the_other_descriptions_are_picklable(kind: type[Any], options: dict[str, Any]) -> None:
    config = kind(**options)
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        (ProducerConfig, {"topic": "t", "compression_type": "lz4"}, r"compression_type .* CompressionType\.LZ4"),
        (ProducerConfig, {"topic": "t", "batching_enabled": "yes"}, "batching_enabled must be True or False"),
        (
            ConsumerConfig,
            {"subscription_name": "s", "consumer_type": "Shared"},
            r"consumer_type .* ConsumerType\.Shared",
        ),
        (ClientConfig, {"service_url": "pulsar://h:1", "use_tls": 1}, "use_tls must be True or False"),
    ],
)
def test_choices_are_members_and_switches_are_switches(kind: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidConfiguration, match=told):
        kind(**options)


@pytest.mark.parametrize("good", [[(0, 0)], [(0, 65_535)], [[7, 9], [1, 6]], ((10, 20), (21, 21))])
def test_ranges_that_can_be(good: Any) -> None:
    assert checked_ranges("ranges", good) == tuple(tuple(each) for each in good)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (None, "at least one"),
        ([], "at least one"),
        ("0-5", "at least one"),
        ({(0, 1)}, "at least one"),
        ([5], "pairs of int"),
        ([(1, 2, 3)], "pairs of int"),
        ([(0.0, 5)], "pairs of int"),
        ([(False, 5)], "pairs of int"),
        ([("0", "5")], "pairs of int"),
        ([(-1, 5)], "0 <= first <= last <= 65535"),
        ([(0, 65_536)], "0 <= first <= last <= 65535"),
        ([(5, 4)], "0 <= first <= last <= 65535"),
        ([(0, 5), (5, 9)], r"overlap: \(0, 5\) and \(5, 9\)"),
        ([(50, 60), (0, 100)], "overlap"),
        ([(1, 2), (1, 2)], "overlap"),
    ],
)
def test_ranges_that_cannot_be(bad: Any, told: str) -> None:
    with pytest.raises(InvalidConfiguration, match=told):
        checked_ranges("ranges", bad)
    with pytest.raises(InvalidConfiguration, match="sticky_ranges"):
        ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=bad)


def test_policies() -> None:
    split = ConsumerKeySharedPolicy()
    assert (split.key_shared_mode, split.allow_out_of_order_delivery, split.sticky_ranges) == (
        KeySharedMode.AutoSplit,
        False,
        [],
    )
    policy = ConsumerKeySharedPolicy(KeySharedMode.Sticky, True, [(0, 5)])
    assert policy == KeySharedPolicy(
        key_shared_mode=KeySharedMode.Sticky, allow_out_of_order_delivery=True, sticky_ranges=((0, 5),)
    )
    assert pickle.loads(pickle.dumps(policy)) == policy
    for wrong in ({"key_shared_mode": 1}, {"allow_out_of_order_delivery": "yes"}, {"sticky_ranges": [(0, 5)]}):
        with pytest.raises(InvalidConfiguration, match=next(iter(wrong))):
            ConsumerKeySharedPolicy(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="KeyShared"):
        ConsumerConfig(subscription_name="s", consumer_type=ConsumerType.Shared, key_shared_policy=policy)


@pytest.mark.proves("C147")
def test_the_defaults_are_javas() -> None:
    backoff = MultiplierRedeliveryBackoff()
    assert [backoff.next(count) for count in range(8)] == [
        10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 600_000, 600_000,
    ]  # fmt: skip
    assert backoff.next(-1) == 10_000 and backoff.next(10**6) == 600_000
    assert pickle.loads(pickle.dumps(backoff)) == backoff


@pytest.mark.proves("C147")
@pytest.mark.parametrize(
    ("options", "delays"),
    [
        ({"min_delay_ms": 100, "max_delay_ms": 100}, [100, 100, 100]),
        ({"min_delay_ms": 0, "max_delay_ms": 1000}, [0, 0, 0]),
        ({"min_delay_ms": 100, "max_delay_ms": 1000, "multiplier": 1.5}, [100, 150, 225, 337, 506, 759, 1000]),
        ({"min_delay_ms": 100, "max_delay_ms": 1000, "multiplier": 1}, [100, 100, 100]),
    ],
)
def test_other_delays(options: dict[str, Any], delays: list[int]) -> None:
    backoff = MultiplierRedeliveryBackoff(**options)
    assert [backoff.next(count) for count in range(len(delays))] == delays


@pytest.mark.parametrize(
    "options",
    [{"min_delay_ms": -1}, {"min_delay_ms": 700_000}, {"multiplier": 0.5}, {"multiplier": "2"}, {"max_delay_ms": True},
     {"multiplier": float("nan")}],
)  # fmt: skip
def test_what_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration):
        MultiplierRedeliveryBackoff(**options)


def test_reader_topics() -> None:
    several = ReaderConfig(topic=["a", "b"], start_message_id=MessageId.latest)
    assert several.topics == ["a", "b"] and several.replace(topic="a").topics == ["a"]
    several.consumer_config()
    start = MessageId(0, 1, 2)
    with pytest.raises(InvalidConfiguration, match="earliest or"):
        several.replace(start_message_id=start).consumer_config()
    assert several.replace(topic=["a", "a"], start_message_id=start).consumer_config().start_message_id == start
    for wrong in ([], [""], 5, None, ["a", 5]):
        with pytest.raises((InvalidConfiguration, InvalidTopicName), match="a reader needs a topic"):
            several.replace(topic=wrong)
    assert several.replace(subscription_name="mine").consumer_config().subscription_name == "mine"


def test_reader_consumer_config() -> None:
    start = MessageId(0, 1, 2)
    config = ReaderConfig(
        topic="t",
        start_message_id=start,
        start_message_id_inclusive=True,
        receiver_queue_size=5,
        reader_name="me",
        is_read_compacted=True,
        crypto_key_reader=CryptoKeyReader("public", "private"),
        crypto_failure_action=ConsumerCryptoFailureAction.DISCARD,
        auto_update_partitions=False,
        auto_update_partitions_interval_seconds=61,
        max_pending_chunked_message=11,
        auto_ack_oldest_chunked_message_on_queue_full=True,
        expire_time_of_incomplete_chunked_message_ms=12,
        key_hash_range=[(0, 5)],
    )
    consumer = config.consumer_config()
    assert consumer.subscription_mode is SubscriptionMode.NonDurable
    assert consumer.consumer_type is ConsumerType.Exclusive
    assert consumer.initial_position is InitialPosition.Latest
    assert (consumer.start_message_id, consumer.start_message_id_inclusive) == (start, True)
    assert (consumer.receiver_queue_size, consumer.consumer_name, consumer.is_read_compacted) == (5, "me", True)
    assert consumer.crypto_key_reader is config.crypto_key_reader
    assert consumer.crypto_failure_action is ConsumerCryptoFailureAction.DISCARD
    assert (consumer.auto_update_partitions, consumer.auto_update_partitions_interval_seconds) == (False, 61)
    assert (consumer.max_pending_chunked_message, consumer.expire_time_of_incomplete_chunked_message_ms) == (11, 12)
    assert consumer.auto_ack_oldest_chunked_message_on_queue_full
    assert consumer.key_shared_policy is not None and consumer.key_shared_policy.sticky_ranges == [(0, 5)]


def test_reader_subscription_names_are_unique() -> None:
    config = ReaderConfig(topic="t", start_message_id=MessageId.earliest)
    names = {config.consumer_config().subscription_name for _ in range(50)}
    assert len(names) == 50 and all(name.startswith("reader-") for name in names)
    prefixed = config.replace(subscription_role_prefix="job").consumer_config()
    assert prefixed.subscription_name.startswith("job-reader-")
    with pytest.raises(InvalidConfiguration, match=r"MessageId\.earliest"):
        config.replace(start_message_id="earliest").consumer_config()
