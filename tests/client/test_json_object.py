"""JSON objects from untrusted text: an object or None, never an exception that carries the text."""

from __future__ import annotations

import pytest

from pulsar_native.json_object import parse_json_object


@pytest.mark.parametrize("text", ['{"a": [1, null]}', b'{"a": [1, null]}'])
def test_an_object_is_returned(text: str | bytes) -> None:
    assert parse_json_object(text) == {"a": [1, None]}


@pytest.mark.parametrize("text", ["", "[1]", "3", "{", "null", b"\xff\xfe{", "[" * 100_000])
def test_anything_else_is_none(text: str | bytes) -> None:
    assert parse_json_object(text) is None
