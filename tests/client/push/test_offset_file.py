"""File format of a broadcasting member's offsets."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.message_id import MessageId
from pulsar_native.push.offset_file import decode_offsets, encode_offsets

numbers = st.integers(0, (1 << 62) - 1)
ids = st.builds(MessageId, st.integers(-1, 99), numbers, numbers, st.integers(-1, 999))


@pytest.mark.proves("C214")
@given(st.dictionaries(st.text(min_size=1), ids, max_size=5))
def test_offsets_round_trip(offsets: dict[str, MessageId]) -> None:
    read = decode_offsets(encode_offsets(offsets))
    assert read == offsets and all(place.topic_name() == name for name, place in read.items())


def test_offsets_nothing_done_is_earliest() -> None:
    text = encode_offsets({"t": MessageId.earliest})
    assert decode_offsets(text) == {"t": MessageId.earliest} and '"text": "-1:-1:-1:-1"' in text


def test_offsets_unknown_fields_ignored() -> None:
    content = json.loads(encode_offsets({"t": MessageId(0, 1, 2)}))
    content["new"] = content["offsetTable"]["t"]["new"] = 1
    assert decode_offsets(json.dumps(content)) == {"t": MessageId(0, 1, 2)}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"offsetTable": []}', '{"offsetTable": {"t": 5}}', '{"offsetTable": {"t": {"id": "zz"}}}',
     '{"offsetTable": {"t": {"id": "ff"}}}', '{"offsetTable": {"t": {}}}', "[" * 100_000],
    ids=["empty", "open", "list", "no table", "list as table", "number", "not hex", "no id", "without id", "deep"],
)  # fmt: skip
def test_offsets_invalid_text_raises(text: str) -> None:
    with pytest.raises(ValueError):
        decode_offsets(text)
