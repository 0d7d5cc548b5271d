"""Conditions on single messages: parts, JSON, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from pulsar_native import Message
from pulsar_native.jobs.message_filter import MessageFilter
from support.jobs import PUBLISHED, received


def message(key: str | None = None, **properties: str) -> Message:
    fields = {} if key is None else {"partition_key": key}
    return received(properties=properties, **fields)


@pytest.mark.parametrize(
    ("given", "matching", "others"),
    [
        ({"key": "a"}, [message("a")], [message("b"), message(), message("")]),
        ({"key": ["a", "b"]}, [message("a"), message("b")], [message("ab")]),
        ({"key": ""}, [message("")], [message(), message("a")]),
        ({"key_regex": "a.*"}, [message("a"), message("abc")], [message("ba"), message()]),
        ({"properties": {"x": "1"}}, [message(x="1", y="2")], [message(x="2"), message(y="1"), message()]),
        ({"properties": {"x": ["1", "2"], "y": []}}, [message(x="2", y="")], [message(x="2"), message(x="3", y="")]),
        ({"since": PUBLISHED}, [message()], []),
        ({"since": PUBLISHED + 1}, [], [message()]),
        ({"until": PUBLISHED + 1}, [message()], []),
        ({"until": PUBLISHED}, [], [message()]),
        ({"key": "a", "properties": {"x": "1"}}, [message("a", x="1")], [message("a"), message("b", x="1")]),
        (None, [message(), message("a")], []),
    ],
)
def test_filter_all_parts_must_hold(given: Any, matching: list[Message], others: list[Message]) -> None:
    found = MessageFilter.of(given)
    again = MessageFilter.of(json.loads(json.dumps(found.as_json())))
    assert again == found
    assert all(map(found.matches, matching)) and not any(map(found.matches, others))


def test_filter_text_and_emptiness() -> None:
    assert str(MessageFilter.of({})) == "any message" and MessageFilter.of({}).is_empty
    found = MessageFilter.of({"key": "a", "since": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)})
    assert str(found) == "key=['a'], since=1000" and not found.is_empty


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("key=a", "filter must be a dict with some of key, key_regex"),
        ({"keys": "a"}, "filter has no 'keys'; did you mean 'key'"),
        ({"key": 5}, r"filter\['key'\] must be a text or a list of texts, not 5"),
        ({"key": [1]}, r"filter\['key'\] must be"),
        ({"key_regex": "("}, "is no regular expression"),
        ({"properties": ["a"]}, r"filter\['properties'\] must be a dict"),
        ({"properties": {"a": 1}}, "must be a text or a list of texts, not 1"),
        ({"until": 1767225600}, r"filter\['until'\] is 1767225600, .*are these seconds"),
        ({"since": "noon"}, r"filter\['since'\]='noon'"),
        ({"since": 5, "until": 5}, r"filter\['until'\] must be after"),
    ],
)
def test_filter_wrong_part_raises(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MessageFilter.of(given)
