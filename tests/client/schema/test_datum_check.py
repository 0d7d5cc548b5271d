"""Dictionaries against Avro definitions: everything wrong is named with its path, everything missing filled in."""

from __future__ import annotations

import datetime
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema import InvalidRecord
from pulsar_native.schema.datum_check import compile_check
from support.record_twins import Color

ENUM = {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}
INNER = {"type": "record", "name": "Inner", "fields": [{"name": "q", "type": "long"}]}


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    """Return a record R whose fields f0, f1, … have these types."""
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": f"f{n}", "type": t} for n, t in enumerate(fields)],
        **more,
    }


def test_numbers_of_numpy_are_taken() -> None:
    """As by fastavro, which writes the values of data frames."""
    for kind in ("int", "long", ["null", "int"]):
        assert type(compile_check(kind)(np.int64(5))) is int
    for kind in ("float", "double"):
        for number in (np.float32(1.5), np.float64(1.5), Fraction(3, 2)):
            assert compile_check(kind)(number) == 1.5
        assert compile_check(kind)(np.int64(4)) == 4.0
    for kind, value in (("int", np.int64(1 << 40)), ("int", np.float32(1)), ("int", np.bool_(True)), ("float", "1")):
        with pytest.raises(InvalidRecord):
            compile_check(kind)(value)


@pytest.mark.parametrize(
    ("definition", "good", "bad"),
    [
        ("null", [None], [0, "", False]),
        ("boolean", [True, False], [0, None, "true"]),
        ("int", [0, 2**31 - 1, -(2**31)], [2**31, -(2**31) - 1, True, 1.0, "1", None]),
        ("long", [2**63 - 1, -(2**63)], [2**63, True, 1.0]),
        ("float", [1.5, 1, float("nan")], [True, "1", None]),
        ("double", [1.5, 1], [True, "1", None]),
        ("bytes", [b"", b"\xff"], ["text", None, 1]),
        ("string", ["", "text"], [b"bytes", None, 1]),
        ({"type": "string"}, ["text"], [1]),
        ({"type": {"type": "array", "items": "int"}}, [[1, 2], []], [1, ["a"]]),
        (ENUM, ["RED"], ["PINK", None, 1]),
        ({"type": "fixed", "name": "F", "size": 2}, [b"ab"], [b"abc", "ab"]),
        ({"type": "map", "values": "int"}, [{"a": 1}, {}], [{1: 1}, {"a": "b"}, [1]]),
        (["null", "int"], [None, 1], ["a"]),
        (["int", "string"], [1, "a"], [None, 1.5]),
        (["null", "int", {"type": "array", "items": "string"}], [None, 1, ["a"]], [[1]]),
        (["null"], [None], [1]),
        ({"type": "long", "logicalType": "timestamp-millis"}, [1], [datetime.datetime(2013, 1, 1)]),
        ({"type": "int", "logicalType": "no-such"}, [1], ["a"]),
    ],
)
def test_types(definition: Any, good: list[object], bad: list[object]) -> None:
    check = compile_check(definition)
    for value in good:
        assert check(value) is value or check(value) == value
    for value in bad:
        with pytest.raises(InvalidRecord):
            check(value)


def test_options_widen_what_is_taken() -> None:
    assert compile_check("bytes", bytes_as_text=True)("text") == "text"
    moment = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)
    check = compile_check({"type": "long", "logicalType": "timestamp-millis"}, logical_types=True)
    assert (check(moment), check(5)) == (moment, 5)
    with pytest.raises(InvalidRecord):
        check("2013-01-01")
    assert compile_check(ENUM)(Color.RED) == "RED"


def test_what_is_missing_is_filled_in_and_the_value_left_alone() -> None:
    definition = record(["null", "int"], "string", ["string", "null"])
    definition["fields"][1]["default"] = "d"
    given: dict[str, object] = {}
    assert compile_check(definition)(given) == {"f0": None, "f1": "d", "f2": None}
    assert given == {}
    with pytest.raises(InvalidRecord, match="R lacks the field 'f0', which has no default"):
        compile_check(record("int"))({})


def test_unknown_names_are_errors_unless_told_otherwise() -> None:
    definition = record(["null", INNER], "int")
    with pytest.raises(InvalidRecord, match=r"^R has the field 'zz', which the schema has not; R has f0, f1"):
        compile_check(definition)({"f1": 1, "zz": 2})
    with pytest.raises(InvalidRecord, match="did you mean 'f1'"):
        compile_check(definition)({"f1": 1, "f11": 2})
    with pytest.raises(InvalidRecord, match=r"^R\.f0 has the field 'zzz'.*Inner has q .*ignore_unknown_fields"):
        compile_check(definition)({"f0": {"q": 1, "zzz": 2}, "f1": 1})
    lenient = compile_check(definition, ignore_unknown_fields=True)
    assert lenient({"f0": {"q": 1, "zzz": 2}, "f1": 1, "f9": 3}) == {"f0": {"q": 1}, "f1": 1}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"f0": [{"a": {"q": "x"}}]}, r"^R\.f0\[0\]\['a'\]\.q must be long, not str$"),
        ({"f0": [{}, {"a": {}}]}, r"^R\.f0\[1\]\['a'\] lacks the field 'q'"),
        ({"f0": [{"a": 3}]}, r"^R\.f0\[0\]\['a'\] must be a dict for Inner, not int$"),
        ({"f0": 3}, r"^R\.f0 must be a list, not int$"),
        (3, r"^R must be a dict for R, not int$"),
    ],
)
def test_errors_name_the_path(value: object, message: str) -> None:
    check = compile_check(record({"type": "array", "items": {"type": "map", "values": INNER}}))
    with pytest.raises(InvalidRecord, match=message):
        check(value)


def test_all_branches_of_a_union_are_named() -> None:
    with pytest.raises(InvalidRecord, match=r"^R\.f0 must be int, not list, and must be string, not list$"):
        compile_check(record(["null", "int", "string"]))({"f0": []})


def test_union_record_with_most_fields() -> None:
    def named(name: str, *fields: str) -> dict[str, Any]:
        kinds = [{"name": field, "type": "int", "default": 0} for field in fields]
        return {"type": "record", "name": name, "fields": kinds}

    definition = record([named("One", "a"), named("Two", "a", "b"), named("Other", "b", "a", "d")])
    for strict in (False, True):
        check = compile_check(definition, ignore_unknown_fields=not strict)
        assert check({"f0": {"a": 1}}) == {"f0": {"a": 1}}
        assert check({"f0": {"a": 1, "b": 2}}) == {"f0": {"a": 1, "b": 2}}
        assert check({"f0": {"a": 1, "d": 2}}) == {"f0": {"b": 0, "a": 1, "d": 2}}
    # None has all: the record with most of them, the first of equals.
    lenient = compile_check(definition, ignore_unknown_fields=True)
    assert lenient({"f0": {"a": 1, "b": 2, "z": 3}}) == {"f0": {"a": 1, "b": 2}}
    with pytest.raises(InvalidRecord, match="has the field 'z'"):
        compile_check(definition)({"f0": {"a": 1, "b": 2, "z": 3}})
    for value in (("Two", {"a": 1}), {"-type": "Two", "a": 1}):
        with pytest.raises(InvalidRecord):
            compile_check(definition)({"f0": value})
        named_check = compile_check(definition, tuple_notation=True)
        assert named_check({"f0": value}) == {"f0": ("Two", {"a": 1, "b": 0})}


def test_named_types_are_found_again() -> None:
    check = compile_check(record(INNER, "Inner", ["null", "R"], ENUM, "Color"))
    value: dict[str, object] = {"f0": {"q": 1}, "f1": {"q": 2}, "f2": None, "f3": "RED", "f4": "GREEN"}
    nested = {**value, "f2": value}
    assert check(nested) == nested
    with pytest.raises(InvalidRecord, match=r"^R\.f2\.f1\.q must be long"):
        check({**value, "f2": {**value, "f1": {"q": "x"}}})


def test_namespaces() -> None:
    spaced = {**INNER, "namespace": "a.b"}
    inside = record("Inner", {"type": "record", "name": "c.d.Other", "fields": [{"name": "x", "type": "a.b.Inner"}]})
    definition = record(spaced, "a.b.Inner", {**inside, "name": "Mid", "namespace": "a.b"})
    value = {"f0": {"q": 1}, "f1": {"q": 2}, "f2": {"f0": {"q": 3}, "f1": {"x": {"q": 4}}}}
    assert compile_check(definition)(value) == value


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("Unknown", "unknown type 'Unknown'"),
        ({}, "no type"),
        (record("Inner"), "unknown type 'Inner'"),
        ({"type": "record", "fields": []}, "without a name"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "without name or type"),
        ({"type": "record", "name": "R", "fields": ["a"]}, "without name or type"),
        ({"type": "enum", "name": "E"}, "no symbols"),
        ({"type": "array"}, "no type in 'None'"),
        (3, "no type in '3'"),
    ],
)
def test_definitions_that_are_not_avro(definition: Any, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        compile_check(definition)
