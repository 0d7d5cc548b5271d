"""Dictionaries against Avro definitions: everything wrong is named with its path, everything missing filled in."""

from __future__ import annotations

import array
import collections
import datetime
import subprocess
import sys
from decimal import Decimal
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


ARRAY = {"type": "array", "items": "int"}


class Column:
    """Column of a data frame, which is no sequence."""

    ndim = 1

    def __init__(self, *values: object) -> None:
        self._values = values

    def __array__(self) -> Any:
        return np.array(self._values)

    def __iter__(self) -> Any:
        return iter(self._values)


@pytest.mark.parametrize(
    ("definition", "value", "expected"),
    [
        pytest.param("boolean", np.bool_(True), True, id="boolean-numpy"),
        pytest.param("boolean", np.array([False])[0], False, id="boolean-numpy-item"),
        pytest.param(["null", "boolean"], np.bool_(True), True, id="boolean-nullable"),
        pytest.param("bytes", bytearray(b"ab"), b"ab", id="bytes-bytearray"),
        pytest.param("bytes", memoryview(b"abc")[1:], b"bc", id="bytes-memoryview"),
        pytest.param(["null", "string", "bytes"], bytearray(b"ab"), b"ab", id="bytes-union"),
        pytest.param([ARRAY, "bytes"], bytearray(b"ab"), b"ab", id="bytes-no-array"),
        pytest.param({"type": "fixed", "name": "F", "size": 2}, bytearray(b"ab"), b"ab", id="fixed-bytearray"),
        pytest.param({"type": "fixed", "name": "F", "size": 2}, memoryview(b"ab"), b"ab", id="fixed-memoryview"),
        pytest.param(ARRAY, np.array([1, 2]), [1, 2], id="array-numpy"),
        pytest.param(ARRAY, np.array([], dtype=np.int32), [], id="array-numpy-empty"),
        pytest.param(ARRAY, Column(np.int64(1), 2), [1, 2], id="array-column"),
        pytest.param(ARRAY, range(3), [0, 1, 2], id="array-range"),
        pytest.param(ARRAY, collections.deque([1, 2]), [1, 2], id="array-deque"),
        pytest.param(ARRAY, array.array("i", [1, 2]), [1, 2], id="array-array"),
        pytest.param(ARRAY, collections.UserList([1]), [1], id="array-userlist"),
        pytest.param(["null", ARRAY], np.array([1]), [1], id="array-nullable"),
        pytest.param({"type": "array", "items": "boolean"}, np.array([True]), [True], id="array-of-booleans"),
        pytest.param({"type": "array", "items": "double"}, np.array([1.5], np.float32), [1.5], id="array-of-doubles"),
    ],
)
def test_check_converts_other_types(definition: Any, value: object, expected: object) -> None:
    found = compile_check(definition)(value)
    assert found == expected and type(found) is type(expected)
    if isinstance(expected, list) and isinstance(found, list):
        assert [type(each) for each in found] == [type(each) for each in expected]


@pytest.mark.parametrize(
    ("definition", "value"),
    [
        pytest.param("boolean", np.int64(1), id="boolean-integer"),
        pytest.param("boolean", np.array([True]), id="boolean-array"),
        pytest.param("bytes", array.array("b", [1]), id="bytes-array"),
        pytest.param({"type": "fixed", "name": "F", "size": 2}, bytearray(b"abc"), id="fixed-longer"),
        pytest.param({"type": "fixed", "name": "F", "size": 1}, memoryview(array.array("i", [1])), id="fixed-wider"),
        pytest.param(ARRAY, {1, 2}, id="array-set"),
        pytest.param(ARRAY, {1: 2}.values(), id="array-dict-values"),
        pytest.param(ARRAY, {1: 2}.keys(), id="array-dict-keys"),
        pytest.param(ARRAY, {1: 2}, id="array-dict"),
        pytest.param(ARRAY, (each for each in (1, 2)), id="array-generator"),
        pytest.param(ARRAY, b"ab", id="array-bytes"),
        pytest.param(ARRAY, bytearray(b"ab"), id="array-bytearray"),
        pytest.param(ARRAY, memoryview(b"ab"), id="array-memoryview"),
        pytest.param({"type": "array", "items": "string"}, "ab", id="array-text"),
        pytest.param(ARRAY, np.array([[1]]), id="array-of-two-dimensions"),
        pytest.param(ARRAY, np.array(1), id="array-of-no-dimension"),
        pytest.param(ARRAY, np.array([1.0]), id="array-of-floats"),
        pytest.param({"type": "array", "items": "long"}, np.array(["2026-01-02"], "datetime64[ns]"), id="array-times"),
        pytest.param("float", Decimal("1.5"), id="float-decimal"),
        pytest.param({"type": "int", "logicalType": "date"}, "2026-01-02", id="date-text"),
    ],
)
def test_check_refuses_other_types(definition: Any, value: object) -> None:
    with pytest.raises(InvalidRecord):
        compile_check(definition)(value)


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
DATE = {"type": "int", "logicalType": "date"}


@pytest.mark.parametrize(
    ("definition", "value", "expected"),
    [
        pytest.param("float", Decimal("1.5"), 1.5, id="float-decimal"),
        pytest.param(["null", "double"], Decimal("0.1"), 0.1, id="double-decimal"),
        pytest.param(["null", "double", DECIMAL], Decimal("0.10"), Decimal("0.10"), id="double-beside-decimal"),
        pytest.param(DATE, "2026-01-02", datetime.date(2026, 1, 2), id="date-text"),
        pytest.param(["null", DATE], "2026-01-02", datetime.date(2026, 1, 2), id="date-text-nullable"),
        pytest.param(["string", DATE], "2026-01-02", "2026-01-02", id="date-text-behind-string"),
        pytest.param({"type": "string", "logicalType": "date"}, "today", "today", id="text-named-date"),
    ],
)
def test_check_converts_for_logical_types(definition: Any, value: object, expected: object) -> None:
    found = compile_check(definition, logical_types=True)(value)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("definition", "value", "message"),
    [
        pytest.param("double", Decimal("1e999"), "out of the range of double", id="double-decimal-too-large"),
        pytest.param("double", Decimal("sNaN"), "must be double, not Decimal", id="double-decimal-signaling"),
        pytest.param(DATE, "02.01.2026", "is '02.01.2026', which is no date such as", id="date-other-text"),
        pytest.param({"type": "long", "logicalType": "timestamp-millis"}, "2026-01-02", "must be long", id="moment"),
    ],
)
def test_check_refuses_for_logical_types(definition: Any, value: object, message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        compile_check(definition, logical_types=True)(value)


def test_check_imports_no_numpy() -> None:
    program = (
        "import sys; from pulsar_native.schema.datum_check import compile_check;"
        "compile_check({'type': 'array', 'items': 'boolean'})(range(0)); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


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
