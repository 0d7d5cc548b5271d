"""Events of messages: their fields, their size, and that every encoder takes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsar_native.jobs.codecs import decode
from pulsar_native.jobs.json_values import encodable
from pulsar_native.jobs.message_event import event_of
from support.jobs import TOPIC, received

IDS: dict[str, Any] = {
    "key": None,
    "properties": {},
    "event_time": None,
    "publish_time": "2023-11-14T22:13:20.000+00:00",
    "topic": TOPIC,
    "message_id": "7:3:-1:-1",
    "producer": "p",
    "sequence_id": 5,
}


def valued(payload: bytes, decoder: str = "auto", limit: int = 16384, **fields: Any) -> dict[str, Any]:
    """Return the event with its value of a message."""
    message = received(payload, 3, **fields)
    event = event_of(message, "value", decode(message, decoder), limit)
    assert event is not None and len(json.dumps(event, separators=(",", ":"))) <= limit
    return event


@pytest.mark.proves("A20")
def test_event_has_ids_and_value() -> None:
    assert event_of(received(b"x", 3), "none") is None
    assert event_of(received(b"x", 3), "ids") == IDS
    assert valued(b"x") == IDS | {"value": "x", "encoding": "text"}
    assert valued(b"\xff\x00") == IDS | {"value": "/wA=", "encoding": "base64"}
    assert valued(b'{"a":[1]}', "json") == IDS | {"value": {"a": [1]}, "encoding": "json"}
    assert valued(b"", null_value=True) == IDS | {"value": None, "encoding": "null"}


def test_event_of_bytes_key_and_ordering_key() -> None:
    event = valued(b"x", partition_key="/w==", partition_key_b64_encoded=True, ordering_key=b"o")
    assert (event["key"], event["key_encoding"], event["ordering_key"]) == ("/w==", "base64", "o")


@pytest.mark.proves("A20")
def test_event_beyond_limit_says_what_is_left_out() -> None:
    event = valued(b"x" * 2000, limit=1024)
    assert event == IDS | {"value": None, "encoding": "omitted", "value_bytes": 2000}
    event = valued(b"x" * 2000, limit=1024, properties={"a": "y" * 1000, "b": "z"})
    assert (event["encoding"], event["properties"], event["properties_omitted"]) == ("omitted", {}, 2)
    event = valued(b"x" * 2000, limit=1024, partition_key="k" * 1000)
    assert (event["key"], event["key_omitted"]) == (None, True)


@pytest.mark.proves("A20")
def test_event_takes_what_encoders_refuse() -> None:
    """A triggerer ends with all its triggers where an event cannot be encoded."""
    text = '{"big": 1%s, "half": "\\ud800x", "\\udfff": 1, "least": -9223372036854775808}' % ("0" * 40)
    value = valued(text.encode(), "json")["value"]
    assert value == {"big": "1" + "0" * 40, "half": "?x", "?": 1, "least": -(2**63)}
    deep = valued(b"[" * 200 + b"]" * 200, "json")["value"]
    for _ in range(50):
        (deep,) = deep
    assert deep == "[" * 150 + "]" * 150


@pytest.mark.proves("A20")
def test_event_of_text_with_nul_keeps_it_as_base64() -> None:
    """JSONB of PostgreSQL, in which Airflow keeps XComs and events of deferred tasks, has no NUL."""
    event = valued(b"a\x00b", properties={"p\x00": "\x00q"})
    assert (event["value"], event["encoding"]) == ("YQBi", "base64")
    assert event["properties"] == {"p?": "?q"}
    event = valued(b'{"a\\u0000": ["\\u0000"]}', "json")
    assert (event["value"], event["encoding"]) == ({"a?": ["?"]}, "json")


@pytest.mark.parametrize("value", [None, True, 1.5, 2**64 - 1, "ü\x01", [], {}, [{"a": [1, "x"]}]])
def test_encodable_keeps_other_values(value: Any) -> None:
    assert encodable(value) == value
