"""Values that conditions test: records as they are, text as the JSON in it."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_native.jobs.codecs import decode
from pulsar_native.jobs.matched_value import matched_value
from pulsar_native.schema import BytesSchema, InvalidRecord, JsonSchema, Schema, StringSchema
from support.jobs import received

RECORD: dict[str, Any] = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}


@pytest.mark.parametrize(
    "schema", [StringSchema(), BytesSchema(), JsonSchema(RECORD)], ids=lambda one: type(one).__name__
)
@pytest.mark.parametrize("decoder", ["auto", "json"])
def test_matched_value_of_json_is_decoded(schema: Schema[Any], decoder: str) -> None:
    message = received(b'{"n": 5}', schema=schema)
    assert matched_value(message, decode(message, decoder)) == {"n": 5}


@pytest.mark.parametrize("payload", [b"plain", b"\xff\x00"])
def test_matched_value_of_other_text_raises(payload: bytes) -> None:
    message = received(payload)
    with pytest.raises(InvalidRecord):
        matched_value(message, decode(message, "auto"))
