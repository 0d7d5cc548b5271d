"""Policies of consumers: dead letters, batch receive, Key_Shared ranges, back-off."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from pulsar_native.config import (
    BatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    DeadLetterPolicy,
    DeadLetterPolicyBuilder,
    KeySharedPolicy,
    MultiplierRedeliveryBackoff,
    TopicConfiguration,
    checked_ranges,
)
from pulsar_native.enums import KeySharedMode
from pulsar_native.exceptions import InvalidConfiguration, InvalidTopicName


@pytest.mark.proves("C106")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_redeliver_count": 0}, "at least 1"),
        ({"max_redeliver_count": "3"}, "must be an int"),
        ({"dead_letter_topic": " "}, "non-blank"),
        ({"initial_subscription_name": ""}, "non-blank"),
        ({"retry_letter_topic": "a/b"}, "Invalid short topic name"),
        ({"dead_letter_producer_options": {"topic": "t"}}, "cannot name the topic"),
        ({"dead_letter_producer_options": {"compresion_type": 1}}, "did you mean 'compression_type'"),
        ({"retry_letter_producer_options": {"max_pending_messages": -1}}, "max_pending_messages"),
        ({"retry_letter_producer_options": 5}, "must be a mapping"),
    ],
)
def test_dead_letter_policy_out_of_range_raises(options: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidConfiguration, InvalidTopicName), match=message):
        DeadLetterPolicy.from_mapping({"max_redeliver_count": 3, **options})


@pytest.mark.proves("C106")
def test_dead_letter_policy_in_the_official_spelling() -> None:
    policy = ConsumerDeadLetterPolicy(3, "dead", "first", retry_letter_topic="again")
    assert policy == DeadLetterPolicy(
        max_redeliver_count=3, dead_letter_topic="dead", initial_subscription_name="first", retry_letter_topic="again"
    )
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_consumer_dead_letter_policy_empty_is_none() -> None:
    policy = ConsumerDeadLetterPolicy(3, "", "")
    built = DeadLetterPolicyBuilder().maxRedeliverCount(3).deadLetterTopic("").initialSubscriptionName("").build()
    assert policy == built == DeadLetterPolicy(max_redeliver_count=3)
    with pytest.raises(InvalidConfiguration, match="non-blank"):
        ConsumerDeadLetterPolicy(3, " ")


def test_batch_receive_policy_without_limit_raises() -> None:
    with pytest.raises(InvalidConfiguration, match="at least one"):
        BatchReceivePolicy(max_num_messages=0, max_num_bytes=-1, timeout_ms=0)


@pytest.mark.parametrize("good", [[(0, 0)], [(0, 65_535)], [[7, 9], [1, 6]], ((10, 20), (21, 21))])
def test_hash_ranges_are_taken(good: Any) -> None:
    assert checked_ranges("ranges", good) == tuple(tuple(each) for each in good)


@pytest.mark.parametrize(
    ("bad", "message"),
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
def test_wrong_hash_ranges_raise(bad: Any, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        checked_ranges("ranges", bad)
    with pytest.raises(InvalidConfiguration, match="sticky_ranges"):
        ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=bad)


def test_key_shared_policy_is_checked() -> None:
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
    for wrong in ({"key_shared_mode": 1}, {"allow_out_of_order_delivery": "yes"}, {"sticky_ranges": [(5, 0)]}):
        with pytest.raises(InvalidConfiguration, match=next(iter(wrong))):
            ConsumerKeySharedPolicy(**wrong)  # type: ignore[arg-type]


@pytest.mark.proves("C147")
def test_multiplier_backoff_defaults_are_javas() -> None:
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
def test_multiplier_backoff_grows_up_to_its_maximum(options: dict[str, Any], delays: list[int]) -> None:
    backoff = MultiplierRedeliveryBackoff(**options)
    assert [backoff.next(count) for count in range(len(delays))] == delays


@pytest.mark.parametrize(
    "options",
    [{"min_delay_ms": -1}, {"min_delay_ms": 700_000}, {"multiplier": 0.5}, {"multiplier": "2"}, {"max_delay_ms": True},
     {"multiplier": float("nan")}, {"multiplier": float("inf")}, {"max_delay_ms": float("inf")},
     {"min_delay_ms": float("inf"), "max_delay_ms": float("inf")}],
)  # fmt: skip
def test_multiplier_backoff_out_of_range_raises(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration):
        MultiplierRedeliveryBackoff(**options)


@pytest.mark.parametrize(
    ("topic", "level", "message"),
    [
        (5, 0, "topic must be a str or a re.Pattern, not int"),
        (re.compile(b"a"), 0, "not of bytes"),
        ("t", -1, "priority_level must be at least 0"),
        ("t", 1.5, "priority_level must be an int"),
        ("a/b", 0, "Invalid short topic name"),
    ],
)
def test_topic_configuration_out_of_range_raises(topic: Any, level: Any, message: str) -> None:
    with pytest.raises((InvalidConfiguration, InvalidTopicName), match=message):
        TopicConfiguration(topic, priority_level=level)
