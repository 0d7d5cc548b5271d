"""Checks of the arguments of both APIs."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from pulsar_native import _validation
from pulsar_native.config import ConsumerConfig, DeadLetterPolicy, KeySharedPolicy
from pulsar_native.enums import ConsumerType, RegexSubscriptionMode
from pulsar_native.exceptions import InvalidConfiguration, InvalidMessage
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.topic_pattern import TopicPattern


class Entry:
    """As much of an entry as a message's id needs."""

    ledger_id, entry_id, partition, topic = 1, 2, 0, "persistent://public/default/t"
    redelivery_count, batch_size, is_batch, first_chunk = 0, 3, True, None


def message_of(index: int, size: int = 0) -> Message:
    return Message(Entry(), index, 0, 0, size)  # type: ignore[arg-type]


def test_ids_of() -> None:
    message = message_of(1)
    place = MessageId(0, 1, 2, 1)
    assert _validation.ids_of(message) == [place]
    assert _validation.ids_of(place) == [place]
    assert _validation.ids_of([message, MessageId(0, 9, 9)]) == [place, MessageId(0, 9, 9)]
    assert _validation.ids_of(()) == []
    for wrong in (None, 5, b"x", "id", [5]):
        with pytest.raises(InvalidMessage, match="message id"):
            _validation.ids_of(wrong)  # type: ignore[arg-type]


def test_time_outs() -> None:
    assert _validation.deadline(None, 7.0) is None
    assert _validation.deadline(250, 7.0) == 7.25
    for wrong in ("5", True, 1.5, timedelta(seconds=1)):
        with pytest.raises(InvalidConfiguration, match="timeout_millis must be an int"):
            _validation.deadline(wrong, 0.0)  # type: ignore[arg-type]


def test_checked_topics() -> None:
    config = ConsumerConfig(subscription_name="s")
    assert _validation.checked_topics("a", config) == ["a"]
    assert _validation.checked_topics(["a", "b"], config) == ["a", "b"]
    for wrong, kind in (
        (None, "NoneType"),
        (5, "int"),
        (b"a", "bytes"),
        ([b"a"], "bytes"),
        ({"a"}, "set"),
        (("a",), "tup"),
    ):
        with pytest.raises(InvalidConfiguration, match=f"a list of str, or a compiled pattern, not {kind}"):
            _validation.checked_topics(wrong, config)  # type: ignore[arg-type]
    for pattern in (
        _validation.checked_topics(re.compile("a.*"), config),
        _validation.checked_topics("a.*", config, is_pattern=True),
    ):
        assert isinstance(pattern, TopicPattern) and pattern.for_broker == "public/default/a.*"


def test_work_of_no_transaction_names_the_parameter() -> None:
    with pytest.raises(InvalidConfiguration, match="txn must be what new_transaction"):
        _validation.work_of(5, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", list(ConsumerType), ids=lambda kind: kind.name)
@pytest.mark.parametrize("retries", [False, True], ids=["plain", "retry"])
@pytest.mark.parametrize("policy", [None, DeadLetterPolicy(max_redeliver_count=2)], ids=["none", "policy"])
def test_dead_letter_policy_unused_warns(
    caplog: pytest.LogCaptureFixture, kind: ConsumerType, retries: bool, policy: DeadLetterPolicy | None
) -> None:
    config = ConsumerConfig(subscription_name="s", consumer_type=kind, dead_letter_policy=policy, enable_retry=retries)
    _validation.warn_of_unused_policy(config)
    is_unused = policy is not None and not retries and kind in (ConsumerType.Exclusive, ConsumerType.Failover)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * is_unused
    if is_unused:
        assert f"dead_letter_policy has no effect on the subscription 's': it is {kind.name}" in caplog.text
        assert "ConsumerType.Shared or KeyShared" in caplog.text and "enable_retry=True" in caplog.text


@pytest.mark.parametrize(
    ("kind", "policy", "message"),
    [
        (ConsumerType.KeyShared, KeySharedPolicy(), None),
        (ConsumerType.Shared, KeySharedPolicy(), "key_shared_policy has no effect on the subscription 's'"),
        (ConsumerType.KeyShared, KeySharedPolicy(sticky_ranges=[(0, 5)]), "sticky_ranges has no effect"),
    ],
    ids=["used", "shared", "auto_split"],
)
def test_key_shared_policy_unused_warns(
    caplog: pytest.LogCaptureFixture, kind: ConsumerType, policy: KeySharedPolicy, message: str | None
) -> None:
    _validation.warn_of_unused_policy(
        ConsumerConfig(subscription_name="s", consumer_type=kind, key_shared_policy=policy)
    )
    assert [message in record.message for record in caplog.records if message] == [True] * (message is not None)
    assert len(caplog.records) == (message is not None)


def test_regex_mode_without_pattern_warns(caplog: pytest.LogCaptureFixture) -> None:
    config = ConsumerConfig(subscription_name="s", regex_subscription_mode=RegexSubscriptionMode.AllTopics)
    assert _validation.checked_topics("a", config) == ["a"]
    assert "regex_subscription_mode has no effect on the subscription 's'" in caplog.text
