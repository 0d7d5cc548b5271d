"""Arguments of both APIs' methods, converted to the engine's: one function per method.

Rules: each function takes the arguments of an API's method as `locals()` returns them on its first line. `_BESIDES`
names the arguments that are not options of the configuration; every other one is an option by its name, and an unknown
one raises TypeError. So a new option is a field of the configuration and a parameter of both APIs' methods; tests
compare them. All checks happen here, before anything is sent.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pulsar_native._message_builder import encoded_fields
from pulsar_native.config import (
    ClientConfig,
    Config,
    ConsumerConfig,
    ConsumerEventListener,
    KeySharedPolicy,
    ProducerConfig,
    ReaderConfig,
    TopicsChangedListener,
)
from pulsar_native.engine.consumer.consumer_events import ConsumerEvents
from pulsar_native.engine.consumer.listener import ListenerThreads
from pulsar_native.engine.consumer.pattern_multi_topics_consumer import TopicsChanged, topics_told, topics_told_on_loop
from pulsar_native.engine.interceptors import ConsumerChain, ProducerChain
from pulsar_native.enums import ConsumerType, InitialPosition, KeySharedMode, RegexSubscriptionMode, SubscriptionMode
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.interceptors import ConsumerInterceptor, ProducerInterceptor, ReaderInterceptor
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.topic_pattern import TopicPattern
from pulsar_native.schema import BytesSchema, Schema, wire_schema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb

D = TypeVar("D", bound=Config)

# Arguments of a method that are not options of its configuration.
_BESIDES: dict[type[Config], frozenset[str]] = {
    # The client itself handles these two.
    ClientConfig: frozenset({"self", "log_conf_file_path", "logger"}),
    ProducerConfig: frozenset({"self", "schema", "interceptors"}),
    ConsumerConfig: frozenset(
        {
            "self",
            "topic",
            "schema",
            "interceptors",
            "message_listener",
            "is_pattern_topic",
            "topics_changed_listener",
            "consumer_event_listener",
            # Without effect: the broker is asked for statistics each time.
            "broker_consumer_stats_cache_time_ms",
        }
    ),
    ReaderConfig: frozenset({"self", "schema", "interceptors", "reader_listener"}),
}
# Options for which None means the configuration's default.
_MAY_BE_NONE = frozenset({"properties", "subscription_properties", "encryption_keys", "batch_receive_policy"})


def _described(kind: type[D], given: Mapping[str, Any]) -> D:
    """Return the configuration made of a method's arguments."""
    besides = _BESIDES[kind]
    return kind(
        **{name: value for name, value in given.items() if name not in besides and (value or name not in _MAY_BE_NONE)}
    )


def client_config(given: Mapping[str, Any]) -> ClientConfig:
    """Return the configuration of a client."""
    return _described(ClientConfig, given)


class ProducerPlan(NamedTuple):
    """Arguments of `ClientCore.create_producer`."""

    config: ProducerConfig
    schema: Schema[Any]
    chain: ProducerChain | None


class ConsumerPlan(NamedTuple):
    """Arguments of `ClientCore.subscribe`."""

    topics: list[str] | TopicPattern
    config: ConsumerConfig
    decoder: VersionedDecoder
    wire_schema: pb.Schema | None
    chain: ConsumerChain | None = None
    changed: TopicsChanged | None = None
    activity: ConsumerEvents | None = None


def producer(given: Mapping[str, Any]) -> ProducerPlan:
    """Return the engine's arguments for those of `create_producer`."""
    config = _described(ProducerConfig, given)
    interceptors: Sequence[ProducerInterceptor] = given["interceptors"]
    # Without interceptors there is no chain, and no cost per message.
    chain = ProducerChain(interceptors, encoded_fields) if interceptors else None
    return ProducerPlan(config, _schema(given), chain)


def consumer(given: Mapping[str, Any], threads: ListenerThreads | None = None) -> ConsumerPlan:
    """Return the engine's arguments for those of `subscribe`; listeners run in `threads`, or on the loop if None."""
    config = _described(ConsumerConfig, given)
    cached = given["broker_consumer_stats_cache_time_ms"]
    if isinstance(cached, bool) or not isinstance(cached, int):
        raise InvalidConfiguration(f"broker_consumer_stats_cache_time_ms must be an int, not {type(cached).__name__}")
    on_event: ConsumerEventListener | None = given["consumer_event_listener"]
    on_topics: TopicsChangedListener | None = given["topics_changed_listener"]
    check_event_listener(on_event, config)
    topics = topics_of(given["topic"], config, is_pattern=given.get("is_pattern_topic", False), listener=on_topics)
    chain = _consumer_chain(given["interceptors"], reads=False)
    changed = None
    if on_topics is not None:
        changed = topics_told_on_loop(on_topics) if threads is None else topics_told(on_topics, threads.assign())
    activity = None
    if on_event is not None:
        activity = ConsumerEvents(on_event, None if threads is None else threads.assign())
    return ConsumerPlan(topics, config, *_schemas(given), chain, changed, activity)


def reader(given: Mapping[str, Any]) -> ConsumerPlan:
    """Return the engine's arguments for those of `create_reader`."""
    config = _described(ReaderConfig, given)
    wanted = reader_config(config)
    chain = _consumer_chain(given["interceptors"], reads=True)
    return ConsumerPlan(config.topics, wanted, *_schemas(given), chain)


def table_view(given: Mapping[str, Any]) -> ConsumerPlan:
    """Return the engine's arguments for those of `create_table_view`: a reader from the beginning, compacted."""
    topic: str = given["topic"]
    config = _described(
        ReaderConfig,
        {**given, "start_message_id": MessageId.earliest, "is_read_compacted": TopicName.parse(topic).is_persistent},
    )
    return ConsumerPlan([topic], reader_config(config), *_schemas(given))


def _schema(given: Mapping[str, Any]) -> Schema[Any]:
    schema = given["schema"]
    if schema is None:
        return BytesSchema()
    if not isinstance(schema, Schema):
        raise InvalidConfiguration(f"schema must be a Schema, such as StringSchema(), not {type(schema).__name__}")
    return schema


def _check_callable(given: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if given.get(name) is not None and not callable(given[name]):
            raise InvalidConfiguration(f"{name} must be callable, not {type(given[name]).__name__}")


def _schemas(given: Mapping[str, Any]) -> tuple[VersionedDecoder, pb.Schema | None]:
    schema = _schema(given)
    return VersionedDecoder(schema), wire_schema(schema)


def _consumer_chain(
    interceptors: Sequence[ConsumerInterceptor] | Sequence[ReaderInterceptor], *, reads: bool
) -> ConsumerChain | None:
    return ConsumerChain(interceptors, reads=reads) if interceptors else None


# --- checks of combinations -------------------------------------------------------------------------------------------


def topics_of(
    topic: str | Sequence[str] | re.Pattern[str],
    config: ConsumerConfig,
    *,
    is_pattern: bool = False,
    listener: TopicsChangedListener | None = None,
) -> list[str] | TopicPattern:
    """Return the topics to subscribe to, or their pattern; raise `InvalidConfiguration` for contradicting options."""
    if isinstance(topic, re.Pattern) or is_pattern:
        if not isinstance(topic, str | re.Pattern):
            raise InvalidConfiguration("A pattern and a list of topics exclude each other; pass one of them")
        if config.is_read_compacted and config.regex_subscription_mode is not RegexSubscriptionMode.PersistentOnly:
            raise InvalidConfiguration(
                "is_read_compacted needs persistent topics: RegexSubscriptionMode.PersistentOnly"
            )
        return TopicPattern.parse(topic)
    if config.regex_subscription_mode is not RegexSubscriptionMode.PersistentOnly:
        raise InvalidConfiguration("regex_subscription_mode needs a pattern as the topic; pass re.compile(...)")
    if listener is not None:
        raise InvalidConfiguration("topics_changed_listener needs a pattern as the topic; pass re.compile(...)")
    if isinstance(topic, str):
        return [topic]
    if not isinstance(topic, list) or not all(isinstance(name, str) for name in topic):
        raise InvalidConfiguration("topic must be a str, a list of str, or a compiled pattern")
    return list(topic)


def check_event_listener(listener: ConsumerEventListener | None, config: ConsumerConfig) -> None:
    """Raise `InvalidConfiguration` for a listener that would never be called or lacks a method."""
    if listener is None:
        return
    if config.consumer_type is not ConsumerType.Failover:
        raise InvalidConfiguration("consumer_event_listener needs consumer_type=ConsumerType.Failover")
    for name in ("became_active", "became_inactive"):
        if not callable(getattr(listener, name, None)):
            raise InvalidConfiguration(
                "consumer_event_listener must have the methods became_active and became_inactive; "
                f"{type(listener).__name__} has no {name}"
            )


def reader_config(config: ReaderConfig) -> ConsumerConfig:
    """Return the configuration of a reader's consumer: non-durable, exclusive, with a unique subscription name."""
    if not isinstance(config.start_message_id, MessageId):
        raise InvalidConfiguration("start_message_id must be a MessageId, such as MessageId.earliest")
    if len(set(config.topics)) > 1 and config.start_message_id not in (MessageId.earliest, MessageId.latest):
        raise InvalidConfiguration(
            "A reader of several topics starts at MessageId.earliest or MessageId.latest, as an id belongs to one of "
            "them; move each with seek(function) then"
        )
    return ConsumerConfig(
        subscription_name=config.subscription_name or _reader_subscription(config.subscription_role_prefix),
        subscription_mode=SubscriptionMode.NonDurable,
        # The broker uses this for a start id behind the end of the topic.
        initial_position=InitialPosition.Latest,
        receiver_queue_size=config.receiver_queue_size,
        consumer_name=config.reader_name,
        is_read_compacted=config.is_read_compacted,
        crypto_key_reader=config.crypto_key_reader,
        crypto_failure_action=config.crypto_failure_action,
        start_message_id=config.start_message_id,
        start_message_id_inclusive=config.start_message_id_inclusive,
        auto_update_partitions=config.auto_update_partitions,
        auto_update_partitions_interval_seconds=config.auto_update_partitions_interval_seconds,
        max_pending_chunked_message=config.max_pending_chunked_message,
        auto_ack_oldest_chunked_message_on_queue_full=config.auto_ack_oldest_chunked_message_on_queue_full,
        expire_time_of_incomplete_chunked_message_ms=config.expire_time_of_incomplete_chunked_message_ms,
        key_shared_policy=None
        if config.key_hash_range is None
        else KeySharedPolicy(key_shared_mode=KeySharedMode.Sticky, sticky_ranges=config.key_hash_range),
    )


def _reader_subscription(prefix: str | None) -> str:
    name = f"reader-{secrets.token_hex(5)}"
    return f"{prefix}-{name}" if prefix else name
