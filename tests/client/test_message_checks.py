"""Checks of the fields of a message."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from pulsar_native._message_checks import check_parts, whole_number
from pulsar_native.exceptions import InvalidMessage


@pytest.mark.parametrize(
    "fields",
    [
        (None, None, None, None, None),
        ({"a": "b"}, "k", "o", 0, 0),
        (MappingProxyType({"a": "b"}), b"k", None, (1 << 63) - 1, (1 << 64) - 1),
    ],
    ids=["none", "all", "limits"],
)
def test_check_parts_usual_pass(fields: tuple[Any, ...]) -> None:
    check_parts(*fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (([("a", "b")], None, None, None, None), "properties must be a mapping of str to str"),
        (({"a": 1}, None, None, None, None), "properties must be a mapping of str to str"),
        ((None, 5, None, None, None), "partition_key must be str or bytes, not int"),
        ((None, None, b"o", None, None), "ordering_key must be str, not bytes"),
        ((None, None, None, 1 << 63, None), "sequence_id must be a non-negative int"),
        ((None, None, None, None, 1.5), "event_timestamp must be a non-negative int"),
    ],
    ids=["pairs", "numbers", "key", "ordering-key", "sequence-id", "event-time"],
)
def test_check_parts_wrong_raises(fields: tuple[Any, ...], words: str) -> None:
    with pytest.raises(InvalidMessage, match=words):
        check_parts(*fields)


@pytest.mark.parametrize("number", [True, -1, 8, "1"])
def test_whole_number_wrong_raises(number: Any) -> None:
    with pytest.raises(InvalidMessage, match="n must be a non-negative int up to 7, not"):
        whole_number("n", number, 7)
