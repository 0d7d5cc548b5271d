"""Messages of a payload processor: their checks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pulsar_native import InvalidMessage, PayloadMessage


def test_payload_message_defaults() -> None:
    message = PayloadMessage(b"a")
    assert dataclasses.asdict(message) == {
        "data": b"a",
        "properties": {},
        "partition_key": None,
        "ordering_key": None,
        "event_timestamp": None,
        "sequence_id": None,
    }
    assert dataclasses.replace(message, data=None, partition_key=b"k") == PayloadMessage(None, partition_key=b"k")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"data": "a"}, "data must be bytes, or None for a null value, not str"),
        ({"data": memoryview(b"a")}, "data must be bytes"),
        ({"properties": {"a": 1}}, "properties must be a mapping of str to str"),
        ({"partition_key": 1}, "partition_key must be str or bytes, not int"),
        ({"ordering_key": b"k"}, "ordering_key must be str, not bytes"),
        ({"event_timestamp": -1}, "event_timestamp must be a non-negative int"),
        ({"sequence_id": 1 << 63}, "sequence_id must be a non-negative int up to"),
    ],
    ids=["str", "view", "properties", "key", "ordering-key", "event-time", "sequence-id"],
)
def test_payload_message_wrong_field_raises(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidMessage, match=words):
        PayloadMessage(**{"data": b"a", **fields})
