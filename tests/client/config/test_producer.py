"""Configuration of producers: ranges of the options, and empty names."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_native.config import ProducerConfig
from pulsar_native.enums import PartitionsRoutingMode
from pulsar_native.exceptions import InvalidConfiguration, InvalidTopicName


async def routed(_message: Any, _partitions: int) -> int:
    """Return the first partition."""
    return 0


class CoroutineRouter:
    """A router that is called as a coroutine function."""

    async def __call__(self, _message: Any, _partitions: int) -> int:
        return 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": 5}, "needs a topic .*not int"),
        ({"topic": b"t"}, "needs a topic .*not bytes"),
        ({"topic": None}, "needs a topic .*not NoneType"),
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
        ({"message_router": routed}, "message_router must be a plain function"),
        ({"message_router": CoroutineRouter()}, "message_router must be a plain function"),
    ],
)
def test_producer_option_out_of_range_raises(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        ProducerConfig.from_mapping({"topic": "t", **options})


def test_empty_producer_name_is_none() -> None:
    producer = ProducerConfig(topic="t", producer_name="", encryption_key="  ")
    assert (producer.producer_name, producer.encryption_key) == (None, None)
    with pytest.raises(InvalidTopicName):
        ProducerConfig(topic=" ")
