"""Decoding of a batch's body outside a consumer, compared with the official client."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native import InvalidMessage, MessageBatch, MessageId
from pulsar_native.wire.codec import encode_batch, encode_single_fields
from support.entry_bytes import NO_FIELDS


def body_of(payloads: list[bytes], **fields: Any) -> bytes:
    """Return the body of a batch whose messages have these fields."""
    own = encode_single_fields(**{**NO_FIELDS, **fields})
    return encode_batch(payloads, range(len(payloads)), [own] * len(payloads))


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.text(max_size=5), st.integers(0, 1 << 40))
def test_parse_from_equals_the_official(payloads: list[bytes], key: str, event_time: int) -> None:
    body = body_of(payloads, partition_key=key, properties={"a": key}, event_time=event_time)
    ours = MessageBatch().with_message_id(MessageId(2, 7, 8, -1)).parse_from(body, len(payloads))
    theirs = (
        pulsar.MessageBatch().with_message_id(pulsar.MessageId(2, 7, 8, -1)._msg_id).parse_from(body, len(payloads))
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.data(), mine.partition_key(), mine.properties()) == (other.data(), key, other.properties())
        assert mine.event_timestamp() == other.event_timestamp() == event_time
        found, given_id = mine.message_id(), other.message_id()
        assert (found.ledger_id(), found.entry_id(), found.partition(), found.batch_index()) == (
            given_id.ledger_id(), given_id.entry_id(), given_id.partition(), given_id.batch_index(),
        )  # fmt: skip


def test_parse_from_without_id_has_the_empty_one() -> None:
    (message,) = MessageBatch().parse_from(body_of([b"a"]), 1)
    message_id = message.message_id()
    assert (message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()) == (-1, -1, 0)
    assert message.value() == b"a"


def test_parse_from_nothing_is_empty() -> None:
    assert MessageBatch().parse_from(b"", 0) == []
    assert MessageBatch().parse_from(b"rest", 0) == []


@pytest.mark.parametrize(
    ("body", "count"), [(b"", 1), (b"\0\0\0", 1), (body_of([b"a"])[:-1], 1), (body_of([b"a"]), 2), (b"\xff" * 20, 1)]
)
def test_parse_from_malformed_body_raises(body: bytes, count: int) -> None:
    with pytest.raises(InvalidMessage):
        MessageBatch().parse_from(body, count)


def test_with_message_id_of_another_type_raises() -> None:
    with pytest.raises(InvalidMessage, match="with_message_id takes a MessageId, not tuple"):
        MessageBatch().with_message_id((1, 2))  # type: ignore[arg-type]
