"""The official client's spelling of policies that are descriptions here (see `config`)."""

from __future__ import annotations

from pulsar_native.config import BatchReceivePolicy


def ConsumerBatchReceivePolicy(max_num_message: int, max_num_bytes: int, timeout_ms: int) -> BatchReceivePolicy:
    """Return the policy of `batch_receive`: messages, bytes and milliseconds, whichever is reached first."""
    return BatchReceivePolicy(max_num_messages=max_num_message, max_num_bytes=max_num_bytes, timeout_ms=timeout_ms)
