"""Options of batch and streaming writes, checked before anything connects.

Names of producer settings are the Java client's configuration names after `pulsar.producer.`. Rules: as in `options`:
an unknown name raises with the most similar known one, and none may carry a secret. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pulsar_native import CompressionType, HashingScheme, PartitionsRoutingMode, ProducerCryptoFailureAction
from pulsar_native.config import ClientConfig, ProducerConfig
from pulsar_native.exceptions import InvalidConfiguration, PulsarException
from pulsar_native.topic import TopicName
from pyspark_pulsar.credentials import CredentialsRef
from pyspark_pulsar.encryption import WRITE_ACTION, WRITE_KEYS, WRITE_NAMES, KeyRefs
from pyspark_pulsar.options import (
    NO_TABLES,
    admin_url,
    at_least,
    flag,
    integer,
    service_url,
    sort_options,
    text_value,
)

AT_LEAST_ONCE, DEDUPLICATED, TRANSACTIONAL = "at-least-once", "deduplicated", "transactional"
GUARANTEES = (AT_LEAST_ONCE, DEDUPLICATED, TRANSACTIONAL)
FORMATS = ("raw", "json", "avro")
PRODUCER_PREFIX = "pulsar.producer."

_NAMES = (
    "service.url",
    "admin.url",
    "topic",
    "credentialsRef",
    "valueFormat",
    "deliveryGuarantee",
    "batchId",
    "transactionTimeoutMs",
    "pulsar.producer.producerName",
    WRITE_KEYS,
    WRITE_NAMES,
    WRITE_ACTION,
)
_NO_PATH = "save() and start() take no path; name the topic with option topic or a column topic"
_ONE_TOPIC = "a write goes to one topic (option topic), or to the one each row names (column topic)"
_REFUSED = {
    "path": _NO_PATH,
    "paths": _NO_PATH,
    "provider": NO_TABLES,
    "topics": _ONE_TOPIC,
    "topicsPattern": _ONE_TOPIC,
    "pulsar.producer.topicName": "name the topic with option topic or a column topic",
    "pulsar.producer.initialSequenceId": "sequence ids follow from batch and row; see deliveryGuarantee",
}
# Spark's own options of a streaming write, which it also passes to the sink.
_OF_SPARK = ("checkpointLocation", "queryName", "outputMode")
_NAME = re.compile(r"[^\s\x00-\x1f]{1,200}")


def _micros(name: str, text: str) -> int:
    return max(1, integer(name, text) // 1000)


def _one_of(choices: Mapping[str, Any]) -> Callable[[str, str], Any]:
    folded = {word.lower(): value for word, value in choices.items()}

    def convert(name: str, text: str) -> Any:
        if text.strip().lower() not in folded:
            raise InvalidConfiguration(f"{name} must be one of {', '.join(choices)}, not {text[:60]!r}")
        return folded[text.strip().lower()]

    return convert


_PRODUCER: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "sendTimeoutMs": ("send_timeout_millis", integer),
    "maxPendingMessages": ("max_pending_messages", integer),
    "batchingEnabled": ("batching_enabled", flag),
    "batchingMaxMessages": ("batching_max_messages", integer),
    "batchingMaxBytes": ("batching_max_allowed_size_in_bytes", integer),
    "batchingMaxPublishDelayMicros": ("batching_max_publish_delay_ms", _micros),
    "compressionType": ("compression_type", _one_of({kind.name: kind for kind in CompressionType})),
    "chunkingEnabled": ("chunking_enabled", flag),
    "hashingScheme": ("hashing_scheme", _one_of({kind.name: kind for kind in HashingScheme})),
    "messageRoutingMode": (
        "message_routing_mode",
        _one_of(
            {
                "SinglePartition": PartitionsRoutingMode.UseSinglePartition,
                "RoundRobinPartition": PartitionsRoutingMode.RoundRobinDistribution,
            }
        ),
    ),
}
_SETTINGS = {PRODUCER_PREFIX + name: entry for name, entry in _PRODUCER.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of one write; immutable and picklable, without secrets."""

    service_url: str
    admin_url: str | None
    topic: str | None
    credentials: CredentialsRef | None
    value_format: str
    delivery_guarantee: str
    producer_name: str | None
    batch_id: int | None
    transaction_timeout_ms: int
    client_settings: tuple[tuple[str, Any], ...]
    producer_settings: tuple[tuple[str, Any], ...]
    public_keys: KeyRefs | None = None
    encryption_keys: tuple[str, ...] = ()
    sends_unencrypted: bool = False

    @staticmethod
    def parse(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
        """Return the checked options; raises `InvalidConfiguration` naming the option and the fix. No I/O."""
        own = {name: value for name, value in options.items() if name.lower() not in _FOLDED_OF_SPARK}
        given, client, producer = sort_options(own, _NAMES, _REFUSED, _SETTINGS)
        _check_encryption(given)
        write = WriteOptions(
            service_url=service_url(given),
            admin_url=admin_url(given),
            topic=_topic(given["topic"]) if "topic" in given else None,
            credentials=CredentialsRef.parse(given["credentialsRef"]) if "credentialsRef" in given else None,
            value_format=_choice("valueFormat", given, FORMATS),
            delivery_guarantee=_choice("deliveryGuarantee", given, GUARANTEES),
            producer_name=_producer_name(given),
            batch_id=at_least(0, "batchId", given, "0") if "batchId" in given else None,
            transaction_timeout_ms=at_least(1, "transactionTimeoutMs", given, "600000"),
            client_settings=tuple(sorted(client.items())),
            producer_settings=tuple(sorted(producer.items())),
            public_keys=KeyRefs.parse(WRITE_KEYS, given[WRITE_KEYS]) if WRITE_KEYS in given else None,
            encryption_keys=_key_names(given),
            sends_unencrypted=_choice(WRITE_ACTION, given, ("fail", "send")) == "send",
        )
        write.client_config()  # The configurations' own checks, before anything starts.
        ProducerConfig(topic=write.topic or "any", **write.producer_options())
        write._check(given, streaming)
        return write

    def client_config(self) -> ClientConfig:
        """Return the client's configuration without credentials."""
        return ClientConfig(service_url=self.service_url, **dict(self.client_settings))

    def producer_options(self) -> dict[str, Any]:
        """Return the producer's settings, with the keys of encryption."""
        settings: dict[str, Any] = {"batching_enabled": True, **dict(self.producer_settings)}
        if self.encryption_keys:
            action = ProducerCryptoFailureAction.SEND if self.sends_unencrypted else ProducerCryptoFailureAction.FAIL
            keys = {"encryption_keys": self.encryption_keys, "crypto_key_reader": self.public_keys}
            settings |= {**keys, "crypto_failure_action": action}
        return settings

    def _check(self, given: Mapping[str, str], streaming: bool) -> None:
        if self.delivery_guarantee != DEDUPLICATED:
            for name in ("batchId", "pulsar.producer.producerName"):
                if name in given:
                    raise InvalidConfiguration(f"{name} is for deliveryGuarantee={DEDUPLICATED} only; leave it out")
        if "transactionTimeoutMs" in given and self.delivery_guarantee != TRANSACTIONAL:
            raise InvalidConfiguration(f"transactionTimeoutMs is for deliveryGuarantee={TRANSACTIONAL}; leave it out")
        if streaming and self.batch_id is not None:
            raise InvalidConfiguration("batchId is for batch writes: a streaming query has batch ids of its own")
        if not streaming and (self.batch_id is None) != (self.producer_name is None):
            raise InvalidConfiguration(
                "Give pulsar.producer.producerName and batchId together: the name says which job writes, the id which "
                "run; a repeated run has the same id, the next one a greater one"
            )
        if self.batch_id is not None and self.batch_id >= 1 << 31:
            raise InvalidConfiguration(f"batchId must be below 2147483648, not {self.batch_id}")


def _check_encryption(given: Mapping[str, str]) -> None:
    if (WRITE_KEYS in given) != (WRITE_NAMES in given):
        raise InvalidConfiguration(
            f"Give {WRITE_NAMES} and {WRITE_KEYS} together: the names of the keys, and where the public keys are"
        )
    if WRITE_ACTION in given and WRITE_NAMES not in given:
        raise InvalidConfiguration(f"{WRITE_ACTION} is for encrypted writes: give {WRITE_NAMES}, or leave it out")


def _key_names(given: Mapping[str, str]) -> tuple[str, ...]:
    if WRITE_NAMES not in given:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in given[WRITE_NAMES].split(",")))
    if not all(names):
        raise InvalidConfiguration(f"{WRITE_NAMES} must be names of keys after commas, none of them empty")
    return names


_FOLDED_OF_SPARK = frozenset(name.lower() for name in _OF_SPARK)


def _topic(text: str) -> str:
    try:
        return TopicName.parse(text.strip()).full
    except PulsarException as error:
        raise InvalidConfiguration(f"topic: {error.message}") from error


def _choice(name: str, given: Mapping[str, str], choices: tuple[str, ...]) -> str:
    value = given.get(name, choices[0]).strip().lower()
    if value not in choices:
        raise InvalidConfiguration(f"{name} must be one of {', '.join(choices)}, not {given[name][:60]!r}")
    return value


def _producer_name(given: Mapping[str, str]) -> str | None:
    if "pulsar.producer.producerName" not in given:
        return None
    name = text_value("pulsar.producer.producerName", given["pulsar.producer.producerName"])
    if not _NAME.fullmatch(name):
        raise InvalidConfiguration("pulsar.producer.producerName must have no blanks and at most 200 characters")
    return name
