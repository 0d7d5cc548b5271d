"""Configuration of readers, and of the consumer behind one."""

from __future__ import annotations

import pytest

from pulsar_native.config import ReaderConfig
from pulsar_native.crypto import CryptoKeyReader
from pulsar_native.enums import ConsumerCryptoFailureAction, ConsumerType, InitialPosition, SubscriptionMode
from pulsar_native.exceptions import InvalidConfiguration, InvalidTopicName
from pulsar_native.message_id import MessageId


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
    for wrong in (b"t", [b"t"]):
        with pytest.raises(InvalidConfiguration, match=r"a reader needs a topic, .*not bytes"):
            several.replace(topic=wrong)
    assert several.replace(subscription_name="mine").consumer_config().subscription_name == "mine"


def test_reader_consumer_config() -> None:
    start = MessageId(0, 1, 2)
    config = ReaderConfig(
        topic="t",
        start_message_id=start,
        start_message_id_inclusive=True,
        receiver_queue_size=5,
        auto_scaled_receiver_queue_size_enabled=True,
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
    assert consumer.auto_scaled_receiver_queue_size_enabled
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


@pytest.mark.parametrize("start", [MessageId.earliest, MessageId.latest, MessageId(0, 7, 3, 1)])
def test_reader_consumer_config_of_defaults_equals_checked(start: MessageId) -> None:
    made = ReaderConfig(topic="t", start_message_id=start).consumer_config()
    # A copy is checked, and has all options.
    assert made.replace() == made and vars(made.replace()).keys() == vars(made).keys()
    checked = ReaderConfig(topic="t", start_message_id=start, receiver_queue_size=10).consumer_config()
    name = made.subscription_name
    assert checked.replace(receiver_queue_size=1000, subscription_name=name) == made
    other = ReaderConfig(topic="t", start_message_id=start).consumer_config()
    assert made.properties is not other.properties and made.subscription_name != other.subscription_name
