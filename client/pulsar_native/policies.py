"""The official client's spelling of policies that are descriptions here (see `config`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pulsar_native.config import BatchReceivePolicy, DeadLetterPolicy
from pulsar_native.enums import KeySharedMode
from pulsar_native.key_ranges import KeySharedPolicy, Range


def ConsumerBatchReceivePolicy(max_num_message: int, max_num_bytes: int, timeout_ms: int) -> BatchReceivePolicy:
    """Return the policy of `batch_receive`: messages, bytes and milliseconds, whichever is reached first."""
    return BatchReceivePolicy(max_num_messages=max_num_message, max_num_bytes=max_num_bytes, timeout_ms=timeout_ms)


def ConsumerDeadLetterPolicy(
    max_redeliver_count: int,
    dead_letter_topic: str | None = None,
    initial_subscription_name: str | None = None,
    *,
    retry_letter_topic: str | None = None,
    dead_letter_producer_options: Mapping[str, Any] | None = None,
    retry_letter_producer_options: Mapping[str, Any] | None = None,
) -> DeadLetterPolicy:
    """Return the policy that moves a message to the dead-letter topic after so many redeliveries (at least 1)."""
    return DeadLetterPolicy(
        max_redeliver_count=max_redeliver_count,
        dead_letter_topic=dead_letter_topic,
        initial_subscription_name=initial_subscription_name,
        retry_letter_topic=retry_letter_topic,
        dead_letter_producer_options=dead_letter_producer_options or {},
        retry_letter_producer_options=retry_letter_producer_options or {},
    )


def ConsumerKeySharedPolicy(
    key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
    allow_out_of_order_delivery: bool = False,
    sticky_ranges: Sequence[Range] | None = None,
) -> KeySharedPolicy:
    """Return how a Key_Shared subscription divides its keys; `sticky_ranges` are pairs of hashes, 0 to 65535."""
    return KeySharedPolicy(
        key_shared_mode=key_shared_mode,
        allow_out_of_order_delivery=allow_out_of_order_delivery,
        sticky_ranges=sticky_ranges,
    )
