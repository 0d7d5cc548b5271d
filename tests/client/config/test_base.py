"""Base of the configurations: made from mappings, strict, frozen, picklable."""

from __future__ import annotations

import dataclasses
import os
import pickle
from typing import Any

import pytest

from pulsar_native.config import (
    BatchReceivePolicy,
    ClientConfig,
    ConsumerConfig,
    DeadLetterPolicy,
    ProducerConfig,
    ReaderConfig,
)
from pulsar_native.crypto import CryptoKeyReader
from pulsar_native.enums import ConsumerType
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.message_id import MessageId

URL = "pulsar://localhost:6650"


MINIMAL: list[tuple[type[Any], dict[str, Any]]] = [
    (ClientConfig, {"service_url": URL}),
    (ProducerConfig, {"topic": "t"}),
    (ConsumerConfig, {"subscription_name": "s"}),
    (ReaderConfig, {"topic": "t", "start_message_id": MessageId.earliest}),
    (BatchReceivePolicy, {}),
    (DeadLetterPolicy, {"max_redeliver_count": 3}),
]


class CoroutineKeyReader:
    """A key reader of coroutine functions."""

    async def get_public_key(self, *_: Any) -> None:
        """Do nothing."""

    get_private_key = get_public_key


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ProducerConfig, {"topic": "t", "encryption_key": "k"}),
        (ConsumerConfig, {"subscription_name": "s"}),
        (ReaderConfig, {"topic": "t", "start_message_id": MessageId.earliest}),
    ],
)
def test_key_reader_of_coroutines_raises(kind: type[Any], options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration, match=r"crypto_key_reader\.get_public_key must be a plain function"):
        kind.from_mapping({**options, "crypto_key_reader": CoroutineKeyReader()})


COUNTS: list[tuple[type[Any], str]] = [
    (ProducerConfig, "max_pending_messages"),
    (ProducerConfig, "max_pending_messages_across_partitions"),
    (ProducerConfig, "batching_max_messages"),
    (ProducerConfig, "batching_max_allowed_size_in_bytes"),
    (ProducerConfig, "chunk_max_message_size"),
    (ProducerConfig, "compression_min_msg_body_size"),
    (ConsumerConfig, "receiver_queue_size"),
    (ConsumerConfig, "max_total_receiver_queue_size_across_partitions"),
    (ConsumerConfig, "max_acknowledgment_group_size"),
    (ConsumerConfig, "max_pending_chunked_message"),
    (ConsumerConfig, "priority_level"),
    (DeadLetterPolicy, "max_redeliver_count"),
]


@pytest.mark.parametrize(("kind", "name"), COUNTS, ids=[name for _, name in COUNTS])
@pytest.mark.parametrize("value", [1.5, 2.0, float("inf"), float("nan"), True, "3"], ids=repr)
def test_count_that_is_no_int_raises(kind: type[Any], name: str, value: object) -> None:
    with pytest.raises(InvalidConfiguration, match=f"^{name} must be an int, not {type(value).__name__}"):
        kind.from_mapping({**dict(MINIMAL)[kind], name: value})


BAD = "name\ud800"
TEXTS: list[tuple[type[Any], str, object]] = [
    (ClientConfig, "listener_name", BAD),
    (ProducerConfig, "producer_name", BAD),
    (ProducerConfig, "initial_subscription_name", BAD),
    (ProducerConfig, "properties", {"a": BAD}),
    (ProducerConfig, "properties", {BAD: "a"}),
    (ConsumerConfig, "subscription_name", BAD),
    (ConsumerConfig, "consumer_name", BAD),
    (ConsumerConfig, "properties", {"a": BAD}),
    (ConsumerConfig, "subscription_properties", {"a": BAD}),
    (ReaderConfig, "reader_name", BAD),
    (ReaderConfig, "subscription_name", BAD),
    (ReaderConfig, "subscription_role_prefix", BAD),
    (DeadLetterPolicy, "initial_subscription_name", BAD),
]


@pytest.mark.parametrize(("kind", "name", "value"), TEXTS, ids=[f"{kind.__name__}-{name}" for kind, name, _ in TEXTS])
def test_text_with_lone_surrogate_raises(kind: type[Any], name: str, value: object) -> None:
    with pytest.raises(InvalidConfiguration, match=f"^{name} must not hold a lone surrogate"):
        kind.from_mapping({**dict(MINIMAL)[kind], name: value})


@pytest.mark.parametrize("name", ["encryption_key", "encryption_keys"])
def test_key_name_with_lone_surrogate_raises(name: str) -> None:
    names: object = BAD if name == "encryption_key" else ["good", BAD]
    with pytest.raises(InvalidConfiguration, match=f"^{name} must not hold a lone surrogate"):
        ProducerConfig.from_mapping({"topic": "t", name: names, "crypto_key_reader": CryptoKeyReader("a", "b")})


def test_path_with_lone_surrogate_is_a_file_name() -> None:
    # What os.fsdecode makes of a file name that is not UTF-8.
    path = os.fsdecode(b"/tmp/\xff.pem")
    assert ClientConfig(service_url=URL, tls_trust_certs_file_path=path).tls_trust_certs_file_path == path


@pytest.mark.proves("C18", "C118")
@pytest.mark.parametrize(("kind", "options"), MINIMAL, ids=lambda value: getattr(value, "__name__", ""))
def test_replace_leaves_the_first_unchanged(kind: type[Any], options: dict[str, Any]) -> None:
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
def test_replace_checks_the_copy() -> None:
    with pytest.raises(InvalidConfiguration, match="operation_timeout_seconds"):
        ClientConfig(service_url=URL).replace(operation_timeout_seconds=-1)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
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
def test_unknown_option_names_the_nearest(kind: type[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        kind.from_mapping(options)


def test_missing_option_is_named() -> None:
    with pytest.raises(InvalidConfiguration, match="ClientConfig needs 'service_url'"):
        ClientConfig.from_mapping({"use_tls": True})
    with pytest.raises(InvalidConfiguration, match="ReaderConfig needs 'topic' and 'start_message_id'"):
        ReaderConfig.from_mapping({})


@pytest.mark.parametrize(("kind", "options"), MINIMAL[1:], ids=lambda value: getattr(value, "__name__", ""))
def test_config_without_secret_is_picklable(kind: type[Any], options: dict[str, Any]) -> None:
    config = kind(**options)
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("kind", "options", "message"),
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
def test_choice_and_flag_of_another_type_raise(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        kind(**options)
