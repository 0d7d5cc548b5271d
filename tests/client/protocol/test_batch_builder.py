"""Batch message container: metadata of entries, batches by key."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.message import OutgoingMessage
from pulsar_native.protocol.batch_builder import (
    BatchBuilder,
    message_of,
    shared_keys,
    single_fields,
    split_by_key,
)
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.codec import encode_single_fields
from support.entry_bytes import NO_FIELDS


def metadata() -> pb.MessageMetadata:
    """Return metadata with the required fields."""
    return pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)


def callback(*_: object) -> None:
    """Take a receipt."""


# ---- metadata --------------------------------------------------------------------------------------------------------


def test_single_fields_of_a_full_message() -> None:
    found = metadata()
    single_fields(
        found,
        OutgoingMessage(
            b"x", properties={"a": "1", "b": "2"}, partition_key="aw==", key_is_base64=True, ordering_key="é",
            event_timestamp=9, replicate_to=["one", "two"], deliver_at=0, null_value=True, null_partition_key=True,
        ),
    )  # fmt: skip
    assert [(pair.key, pair.value) for pair in found.properties] == [("a", "1"), ("b", "2")]
    assert (found.partition_key, found.partition_key_b64_encoded, found.ordering_key) == ("aw==", True, "é".encode())
    assert (found.event_time, list(found.replicate_to), found.HasField("deliver_at_time")) == (9, ["one", "two"], True)
    assert found.null_value and found.null_partition_key


def test_fields_of_a_plain_message_are_none() -> None:
    found = metadata()
    single_fields(found, OutgoingMessage(b"x"))
    shared_keys(found, OutgoingMessage(b"x"))
    shared_keys(found, None)
    assert found == metadata()


def test_shared_keys_are_only_the_keys() -> None:
    found = metadata()
    shared_keys(found, OutgoingMessage(b"x", properties={"a": "1"}, partition_key="", ordering_key=b"\xff"))
    assert found.HasField("partition_key") and found.partition_key == "" and found.ordering_key == b"\xff"
    assert not found.properties


_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        "partition_key": st.sampled_from(["", "a", "b"]),
        "ordering_key": st.sampled_from([b"a", b"b"]),
        "event_time": st.integers(0, 1 << 62),
        "null_value": st.booleans(),
    },
)


@given(_FIELDS)
def test_message_of_encoded_fields(fields: dict[str, Any]) -> None:
    encoded = encode_single_fields(**{**NO_FIELDS, **fields})
    found = message_of(pb.SingleMessageMetadata.FromString(encoded + b"\x18\x00"))
    assert found.properties == (fields.get("properties") or {})
    assert found.partition_key == fields.get("partition_key")
    assert found.ordering_key == fields.get("ordering_key", b"").decode()
    assert found.event_timestamp == fields.get("event_time", 0)
    assert found.null_value is fields.get("null_value", False)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4))))
def test_add_ids_keeps_all_in_order(runs: list[tuple[int, int]]) -> None:
    batch = BatchBuilder()
    for start, count in runs:
        batch.add_ids(start, count)
    ids = [number for start, count in runs for number in range(start, start + count)]
    assert list(batch.ids) == ids
    assert isinstance(batch.ids, range) is (ids == list(range(ids[0], ids[0] + len(ids))) if ids else True)


# ---- by key ----------------------------------------------------------------------------------------------------------


@given(st.lists(_FIELDS, min_size=1, max_size=12))
def test_split_by_key_keeps_order_and_attributes(messages: list[dict[str, Any]]) -> None:
    batch = BatchBuilder()
    batch.created, batch.wall, batch.kind, batch.potential_duplicates = 1.5, 9, b"v", True
    keys = []
    for number, fields in enumerate(messages):
        batch.payloads.append(b"%d" % number)
        batch.add_ids(number, 1)
        # The size of the payload is a required field, which the frame adds.
        batch.fields.append(encode_single_fields(**{**NO_FIELDS, **fields}) + b"\x18\x00")
        batch.callbacks.append(callback if number % 2 else None)
        ordering = fields.get("ordering_key")
        keys.append((True, ordering) if ordering else (False, fields.get("partition_key")))
    parts = split_by_key(batch)
    assert [list(part.ids) for part in parts] == [
        [number for number, other in enumerate(keys) if other == key] for key in dict.fromkeys(keys)
    ]
    for part in parts:
        assert part.payloads == [b"%d" % number for number in part.ids]
        assert part.payload_bytes == sum(map(len, part.payloads))
        assert part.fields == [batch.fields[number] for number in part.ids]
        assert part.callbacks == [batch.callbacks[number] for number in part.ids]
        assert (part.created, part.wall, part.kind, part.potential_duplicates) == (1.5, 9, b"v", True)
        assert part.first_key is not None
        assert part.first_key.partition_key == messages[part.ids[0]].get("partition_key")
