"""Push consumer configuration: RocketMQ's ranges, strict and picklable; tags and contexts."""

from __future__ import annotations

import os
import pickle
import socket
import time
from typing import Any

import pytest

from pulsar_native.config import ConsumerConfig, DeadLetterPolicy
from pulsar_native.crypto import CryptoKeyReader
from pulsar_native.enums import ConsumerCryptoFailureAction, ProducerCryptoFailureAction
from pulsar_native.exceptions import InvalidConfiguration, InvalidTopicName
from pulsar_native.push.config import (
    ConsumeConcurrentlyContext,
    ConsumeFromWhere,
    MessageModel,
    PushConsumerConfig,
    TagFilter,
    check_consume_message_hook,
    drain_limit,
)

KEYS = CryptoKeyReader("ours.pub", "ours.key")
ENCRYPTS = {"encryption_key": "ours", "crypto_key_reader": KEYS}
RANGES: list[tuple[str, list[Any], list[Any]]] = [
    ("consume_thread_min", [1, 20], [0, 1001, 1.5, "1", True, None]),
    ("consume_thread_max", [20, 1000], [0, 1001, "1"]),
    ("consume_concurrently_max_span", [1, 65535], [0, 65536]),
    ("pull_threshold_for_queue", [1, 65535], [0, 65536]),
    ("pull_threshold_size_for_queue", [1, 1024], [0, 1025]),
    ("pull_threshold_for_topic", [-1, 1, 6_553_500], [0, -2, 6_553_501]),
    ("pull_threshold_size_for_topic", [-1, 1, 102_400], [0, -2, 102_401]),
    ("pull_interval", [0, 65535], [-1, 65536]),
    ("pull_batch_size", [1, 1024], [0, 1025]),
    ("consume_message_batch_max_size", [1, 1024], [0, 1025]),
    ("max_reconsume_times", [-1, 0, 5], [-2, "5"]),
    ("suspend_current_queue_time_millis", [10, 30_000], [9, 30_001]),
    ("consume_timeout_minutes", [15, 0.01], [0, -1, "15", True, float("inf"), float("nan")]),
    ("await_termination_millis_when_shutdown", [0, 5000], [-1, None]),
    ("persist_consumer_offset_interval", [1], [0]),
    ("poll_name_server_interval", [1], [0]),
    ("delay_levels_ms", [(0,), (5, 10)], [[], [-1], ["1s"], [1.5], 5, None, "5", {5}, {5: 5}, iter([5])]),
    ("consume_timestamp", [None, "20260102030405"], ["2026-01-02", "", 5]),
    ("instance_name", ["one"], ["", " ", "a/b", "a\0b", "a\nb", None]),
    ("offset_store_folder", [None, "folder"], ["", " ", "a\0b", 5]),
    ("crypto_key_reader", [None, KEYS], ["key.pem", 5]),
    ("crypto_failure_action", list(ConsumerCryptoFailureAction), ["FAIL", None, ProducerCryptoFailureAction.FAIL]),
    ("dead_letter_producer_options", [{}, ENCRYPTS], [None, [], {"topic": "t"}]),
    ("retry_letter_producer_options", [{}, ENCRYPTS], [None, "a", {"topic": "t"}]),
    ("message_model", list(MessageModel), ["clustering", None]),
    ("consume_from_where", list(ConsumeFromWhere), ["first"]),
]


@pytest.mark.proves("C200")
@pytest.mark.parametrize(("name", "good", "bad"), RANGES, ids=[name for name, _, _ in RANGES])
def test_config_out_of_range_raises(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert getattr(PushConsumerConfig(consumer_group="g", **{name: value}), name) == value
    for value in bad:
        with pytest.raises(InvalidConfiguration, match=name):
            PushConsumerConfig(consumer_group="g", **{name: value})


@pytest.mark.proves("C200")
def test_config_defaults_of_rocketmq() -> None:
    config = PushConsumerConfig(consumer_group="g")
    assert (config.consume_thread_min, config.consume_thread_max, config.pull_batch_size) == (20, 20, 32)
    assert (config.pull_threshold_for_queue, config.pull_threshold_size_for_queue) == (1000, 100)
    assert (config.consume_concurrently_max_span, config.consume_message_batch_max_size) == (2000, 1)
    assert (config.consume_timeout_minutes, config.suspend_current_queue_time_millis) == (15, 1000)
    assert (config.max_reconsume_times, config.persist_consumer_offset_interval) == (-1, 5000)
    assert ConsumeConcurrentlyContext("t", -1).ack_index > 1 << 30


@pytest.mark.parametrize("name", ["dead_letter_producer_options", "retry_letter_producer_options"])
def test_config_options_of_copies_checked(name: str) -> None:
    options: dict[str, Any] = {name: {"encryption_keyy": "ours"}}
    with pytest.raises(InvalidConfiguration, match="did you mean 'encryption_key'"):
        PushConsumerConfig(consumer_group="g", **options)
    options[name] = ENCRYPTS
    policy = PushConsumerConfig(consumer_group="g", **options).dead_letter_policy()
    assert policy == DeadLetterPolicy(max_redeliver_count=policy.max_redeliver_count, **options)


def test_config_encryption_defaults_of_consumers() -> None:
    ours, other = PushConsumerConfig(consumer_group="g"), ConsumerConfig(subscription_name="g")
    assert (ours.crypto_key_reader, ours.crypto_failure_action) == (
        other.crypto_key_reader,
        other.crypto_failure_action,
    )
    # With a mapping in it, too, a configuration is a key.
    assert len({ours, PushConsumerConfig(consumer_group="g")}) == 1


def test_config_cross_checks_and_pickle() -> None:
    with pytest.raises(InvalidConfiguration, match="consume_thread_min must not be above"):
        PushConsumerConfig(consumer_group="g", consume_thread_min=5, consume_thread_max=4)
    with pytest.raises(InvalidTopicName):
        PushConsumerConfig(consumer_group="g", dead_letter_topic="a/b")
    config = PushConsumerConfig(consumer_group="g", instance_name="i", delay_levels_ms=[5, 10])
    assert config.delay_levels_ms == (5, 10)
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(InvalidConfiguration, match="did you mean 'pull_interval'"):
        PushConsumerConfig.from_mapping({"consumer_group": "g", "pull_intervall": 1})


@pytest.mark.proves("C193")
@pytest.mark.parametrize("group", ["", " ", None, 5, "a b", "a/b", "..", "DEFAULT_CONSUMER", "x" * 256])
def test_config_group_name(group: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="consumer_group"):
        PushConsumerConfig(consumer_group=group)
    assert PushConsumerConfig(consumer_group="a_b-c.d%e|f").consumer_group


@pytest.mark.proves("C198")
def test_member_name_by_process_or_instance() -> None:
    host = socket.gethostname()
    assert PushConsumerConfig(consumer_group="g").member_name == f"{host}@{os.getpid()}"
    assert PushConsumerConfig(consumer_group="g", instance_name="two").member_name == f"{host}@two"
    # What is kept in a file must be found again by the next process.
    broadcasting = PushConsumerConfig(consumer_group="g", message_model=MessageModel.BROADCASTING)
    assert broadcasting.member_name == f"{host}@DEFAULT"


@pytest.mark.proves("C195")
def test_start_time_default_half_an_hour() -> None:
    assert PushConsumerConfig(consumer_group="g").start_time_ms(10_000_000) == 10_000_000 - 1_800_000
    text = "20260102030405"
    expected = int(time.mktime(time.strptime(text, "%Y%m%d%H%M%S"))) * 1000
    assert PushConsumerConfig(consumer_group="g", consume_timestamp=text).start_time_ms(0) == expected


class Tagged:
    """A message as far as a filter looks at it."""

    def __init__(self, tag: str | None) -> None:
        self._tag = tag

    def properties(self) -> dict[str, str]:
        return {} if self._tag is None else {"TAGS": self._tag}


@pytest.mark.proves("C196")
@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("*", ["a", "b", "c", None]), (None, ["a", "b", "c", None]), ("", ["a", "b", "c", None]),
        (" * ", ["a", "b", "c", None]), ("a", ["a"]), ("a || b", ["a", "b"]), ("a||b", ["a", "b"]), ("x", []),
    ],
)  # fmt: skip
def test_tag_filter(expression: str | None, wanted: list[str | None]) -> None:
    chosen = TagFilter(expression)
    messages: list[Any] = [Tagged(tag) for tag in ("a", "b", "c", None)]
    given = [tag for tag, message in zip(("a", "b", "c", None), messages, strict=True) if chosen.wants(message)]
    assert given == wanted


@pytest.mark.proves("C196")
@pytest.mark.parametrize("wrong", ["a ||", "||", "a > 5", 5, ["a"]])
def test_tag_filter_invalid_raises(wrong: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="tag"):
        TagFilter(wrong)


@pytest.mark.proves("C229")
def test_drain_limit() -> None:
    assert drain_limit(None) is None and drain_limit(0) == 0
    for wrong in (-1, 0.5, "1", True):
        with pytest.raises(InvalidConfiguration, match="await_termination_millis"):
            drain_limit(wrong)  # type: ignore[arg-type]


class Hook:
    """A hook of plain methods."""

    def consume_message_before(self, _messages: Any, _context: Any) -> None: ...
    def consume_message_after(self, _messages: Any, _context: Any, _status: Any) -> None: ...


class AsyncHook(Hook):
    """A hook with a method that would have to be awaited."""

    async def consume_message_after(self, _messages: Any, _context: Any, _status: Any) -> None: ...


class OnlyBefore:
    """A hook that lacks a method."""

    def consume_message_before(self, _messages: Any, _context: Any) -> None: ...


@pytest.mark.parametrize("wrong", [None, OnlyBefore(), AsyncHook()])
def test_hook_without_method_or_async_raises(wrong: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="of a consume message hook must be"):
        check_consume_message_hook(wrong)
    check_consume_message_hook(Hook())
