"""Declarative matching: key, properties, and RFC 9535 on the value."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pulsar_native.jobs.matching import MessageMatch
from support.jobs import received


def matches(description: Any, **fields: Any) -> bool:
    """Return whether a message with these fields matches."""
    return MessageMatch(description).matches_metadata(received(**fields))


@pytest.mark.proves("A15")
def test_match_key_is_one_of_the_texts() -> None:
    assert matches({"key": "a"}, partition_key="a") and matches({"key": ["b", "a"]}, partition_key="a")
    assert not matches({"key": "a"}, partition_key="b") and not matches({"key": "a"})
    assert not matches({"key": ""}) and matches({"key": ""}, partition_key="")


@pytest.mark.proves("A15")
def test_match_properties_must_all_hold() -> None:
    both = {"properties": {"kind": ["order", "refund"], "region": "eu"}}
    assert matches(both, properties={"kind": "refund", "region": "eu", "more": "x"})
    assert not matches(both, properties={"kind": "refund"})
    assert not matches(both, properties={"kind": "refund", "region": "us"})
    assert not matches(both | {"key": "a"}, properties={"kind": "refund", "region": "eu"})


def test_match_without_conditions_takes_all() -> None:
    descriptions: list[Any] = [None, {}]
    for description in descriptions:
        match = MessageMatch(description)
        assert match.matches_metadata(received()) and not match.needs_value
        assert match.matches_value(None)


ORDER = {"status": "paid", "amount": 250, "items": [{"price": 40}, {"price": 120}], "customer": {"id": None}}


@pytest.mark.proves("A15")
@pytest.mark.parametrize(
    ("path", "holds"),
    [
        ("@.status == 'paid' && @.amount > 100", True),
        ("@.status == 'paid' && @.amount > 300", False),
        ("@.items[?@.price > 100]", True),
        ("!@.refund", True),
        ("@.refund", False),
        ("@.customer.id == null", True),
        ("@.amount > 'a'", False),
        ("match(@.status, 'p.*d') && length(@.items) == 2", True),
        ("@.status == 'in $' || @.amount == 250", True),
        (" $.items[?@.price > 100] ", True),
        ("$.items[?@.price > 1000]", False),
        ("$.customer.id", True),
        ("$..price", True),
        ("$.none", False),
    ],
)
def test_match_jsonpath_holds(path: str, holds: bool) -> None:
    match = MessageMatch({"jsonpath": path})
    assert match.needs_value and match.matches_value(ORDER) is holds
    # Other values are no match, not an error; a null value has nothing to be tested.
    assert not match.matches_value(None)
    others: list[Any] = [5, "text", [], {}, True]
    for other in others:
        match.matches_value(other)


def test_match_jsonpath_tests_plain_values() -> None:
    match = MessageMatch({"jsonpath": "@ > 5"})
    assert [match.matches_value(value) for value in (4, 6, "6", [6], None)] == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ("key", "match must be a mapping with key, properties, jsonpath"),
        ({"keys": "a"}, "match has no 'keys'; did you mean 'key'?"),
        ({"key": 5}, r"match\['key'\] must be a text or a list of texts, not 5"),
        ({"key": []}, r"match\['key'\] must be a text or a list of texts"),
        ({"key": ["a", 1]}, r"match\['key'\] must be a text or a list of texts"),
        ({"properties": ["a"]}, r"match\['properties'\] must be a mapping"),
        ({"properties": {}}, r"match\['properties'\] must be a mapping of names to texts, not {}"),
        ({"properties": None}, r"match\['properties'\] must be a mapping of names to texts, not None"),
        ({"properties": {"a": None}}, r"match\['properties'\]\['a'\] must be a text"),
        ({"jsonpath": None}, r"match\['jsonpath'\] must be a text"),
        ({"jsonpath": 5}, r"match\['jsonpath'\] must be a text"),
        ({"jsonpath": " "}, r"match\['jsonpath'\] must be a text that is not blank"),
        ({"jsonpath": "$.amount > 100"}, "not valid in RFC 9535.*begins with @"),
        ({"jsonpath": "amount > 100"}, "not valid in RFC 9535"),
        ({"jsonpath": "@.a == $.b"}, "in an expression the value is @"),
        ({"jsonpath": "@.a ="}, "not valid in RFC 9535"),
        # Extensions of the library that RFC 9535 does not have.
        ({"jsonpath": "@.a and @.b"}, "not valid in RFC 9535"),
        ({"jsonpath": "@.a in ['x']"}, "not valid in RFC 9535"),
    ],
)
def test_match_wrong_description_raises(description: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MessageMatch(description)


def test_match_jsonpath_without_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonpath", None)
    assert MessageMatch({"key": "a"})
    with pytest.raises(ValueError, match=r"pulsar-native\[jsonpath\]"):
        MessageMatch({"jsonpath": "@.a"})
