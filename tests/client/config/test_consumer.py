"""Configuration of consumers: ranges of the options."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from pulsar_native.config import (
    ConsumerConfig,
    MultiplierRedeliveryBackoff,
    ReaderConfig,
    TopicConfiguration,
)
from pulsar_native.enums import ConsumerType, InitialPosition, SubscriptionMode
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.message_id import MessageId


class AwaitedBackoff:
    """Redelivery back-off that nothing would await."""

    async def next(self, redelivery_count: int) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("options", "message"),
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
        ({"topic_configurations": [("t", 1)]}, "must be a list of TopicConfiguration"),
        ({"topic_configurations": TopicConfiguration("t")}, "must be a list of TopicConfiguration"),
        ({"message_payload_processor": len}, r"needs a method process\(payload, context\)"),
        ({"start_paused": 1}, "start_paused must be True or False, not 1"),
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
        ({"unacked_messages_tick_ms": "x"}, "unacked_messages_tick_ms must be a number, not str"),
        ({"unacked_messages_tick_ms": 99}, "unacked_messages_tick_ms must be at least 100"),
        ({"is_read_compacted": True, "consumer_type": ConsumerType.Shared}, "Exclusive or Failover"),
        ({"negative_ack_redelivery_delay_precision": -1}, "at least 0"),
        ({"negative_ack_redelivery_delay_precision": 1.5}, "number of bits"),
        ({"negative_ack_redelivery_backoff": 5}, "next.redelivery_count"),
        ({"ack_timeout_redelivery_backoff": MultiplierRedeliveryBackoff()}, "needs unacked_messages_timeout_ms"),
        ({"dead_letter_policy": {"max_redeliver_count": 1}}, "ConsumerDeadLetterPolicy"),
        ({"subscription_properties": {1: "a"}}, "mapping of str to str"),
        ({"subscription_mode": "NonDurable"}, "Durable, SubscriptionMode.NonDurable, not 'NonDurable'"),
        ({"negative_ack_redelivery_backoff": MultiplierRedeliveryBackoff}, "next.redelivery_count"),
        ({"negative_ack_redelivery_backoff": AwaitedBackoff()}, "not a coroutine"),
    ],
)
def test_consumer_option_out_of_range_raises(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        ConsumerConfig.from_mapping({"subscription_name": "s", **options})


@pytest.mark.proves("C97")
def test_tick_as_long_as_the_time_out_is_taken() -> None:
    config = ConsumerConfig(subscription_name="s", unacked_messages_timeout_ms=3000, unacked_messages_tick_ms=3000)
    assert config.unacked_messages_tick_ms == 3000


@pytest.mark.parametrize(
    ("position", "start"),
    [(InitialPosition.Earliest, MessageId.earliest), (InitialPosition.Latest, MessageId.latest)],
)
def test_start_of_non_durable_subscription_is_initial_position(position: InitialPosition, start: MessageId) -> None:
    config = ConsumerConfig(subscription_name="s", initial_position=position)
    assert (config.start, config.is_reader) == (None, False)
    config = config.replace(subscription_mode=SubscriptionMode.NonDurable)
    assert (config.start, config.is_reader) == (start, False)
    reader = ReaderConfig(topic="t", start_message_id=MessageId(1, 2, 3)).consumer_config()
    assert (reader.start, reader.is_reader) == (MessageId(1, 2, 3), True)


def test_priority_level_of_topic_is_that_of_first_match() -> None:
    config = ConsumerConfig(
        subscription_name="s",
        priority_level=5,
        topic_configurations=[
            TopicConfiguration("orders", priority_level=1),
            TopicConfiguration("lines-partition-2", priority_level=2),
            TopicConfiguration("same"),
            TopicConfiguration(re.compile("persistent://.*/(orders|lines|same)"), priority_level=3),
        ],
    )
    levels = {
        "orders": 1,
        "orders-partition-7": 1,
        "lines": 3,
        "lines-partition-0": 3,
        "lines-partition-2": 2,
        "same": 5,
        "other": 5,
        "orders-2": 5,
    }
    assert {name: config.priority_level_of(f"persistent://public/default/{name}") for name in levels} == levels
    assert config.priority_level_of("non-persistent://public/default/lines") == 5
    assert pickle.loads(pickle.dumps(config)) == config
