"""Growing Arrow columns, with numpy and without."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.arrow import arrays
from pulsar_native.arrow.arrays import MapColumn, NumberColumn, TextColumn, ramps, utf8

pytestmark = pytest.mark.usefixtures("implementation")


class Pair(NamedTuple):
    key: str
    value: str


@pytest.fixture
def without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "numpy_or_none", lambda: None)


def filled(column: Any, steps: list[tuple[str, Any]]) -> list[Any]:
    """Do the steps to a column; return the rows they should make."""
    rows: list[Any] = []
    for name, argument in steps:
        if name == "repeat":
            column.repeat(*argument)
            rows += [argument[0]] * argument[1]
        elif name == "repeat_each":
            column.repeat_each(*map(list, zip(*argument, strict=True)))
            rows += [value for value, count in argument for _ in range(count)]
        elif name == "nothing":
            column.nothing(argument)
            rows += [None] * argument
        elif name == "block":
            column.block(b"".join(argument), len(argument[0]) if argument else 3, len(argument))
            rows += argument
        else:
            getattr(column, name)(argument)
            rows += argument
    return rows


@given(
    st.lists(
        st.lists(st.integers(0, 5000))
        | st.tuples(st.integers(0, 5000), st.integers(0, 5000)).map(lambda bounds: range(*bounds)),
        max_size=4,
    )
)
def test_ramps_are_the_numbers_of_all_parts(parts: list[list[int] | range]) -> None:
    assert array("i", ramps(parts)).tolist() == [number for part in parts for number in part]


counts = st.integers(0, 20)
numbers = st.integers(-(2**31), 2**31 - 1)
blocks = st.integers(0, 4).flatmap(lambda width: st.lists(st.binary(min_size=width, max_size=width), max_size=20))
number_steps = st.lists(
    st.tuples(st.just("repeat"), st.tuples(numbers | st.none(), counts))
    | st.tuples(st.just("repeat_each"), st.lists(st.tuples(numbers | st.none(), counts), min_size=1, max_size=4))
    | st.tuples(st.just("nothing"), counts)
    | st.tuples(st.just("extend"), st.lists(numbers))
    | st.tuples(st.just("extend_optional"), st.lists(numbers | st.none())),
    max_size=6,
)
text_steps = st.lists(
    st.tuples(st.just("repeat"), st.tuples(st.binary(max_size=5), counts))
    | st.tuples(st.just("nothing"), counts)
    | st.tuples(st.just("block"), blocks)
    | st.tuples(st.just("extend"), st.lists(st.binary(max_size=5)))
    | st.tuples(st.just("extend_optional"), st.lists(st.binary(max_size=5) | st.none())),
    max_size=6,
)


def check(column: Any, kind: pa.DataType, expected: list[Any]) -> None:
    array = column.finish(pa, kind)
    array.validate(full=True)
    assert array.type == kind
    assert column.rows == len(expected)
    assert array.to_pylist() == expected
    assert array.null_count == expected.count(None)


@given(number_steps)
def test_number_column_returns_added_rows(steps: list[tuple[str, Any]]) -> None:
    for code, kind in (("i", pa.int32()), ("q", pa.int64())):
        column = NumberColumn(code)
        check(column, kind, filled(column, steps))


@given(text_steps)
def test_text_column_returns_added_rows(steps: list[tuple[str, Any]]) -> None:
    column = TextColumn()
    check(column, pa.binary(), filled(column, steps))


@pytest.mark.usefixtures("without_numpy")
def test_text_column_without_numpy_is_equal() -> None:
    column = TextColumn()
    steps = [("repeat", (b"abc", 3)), ("nothing", 2), ("block", [b"ab", b"cd"]), ("block", []), ("repeat", (b"", 2))]
    check(column, pa.binary(), filled(column, steps))


maps = st.lists(st.lists(st.builds(Pair, st.sampled_from("abc"), st.text("xé", max_size=3)), max_size=4))


@given(maps, counts)
def test_map_column_repeated_key_keeps_last(rows: list[list[Pair]], empty: int) -> None:
    column = MapColumn()
    column.extend(rows)
    column.nothing(empty)
    column.extend(rows[:2])
    expected = [list({pair.key: pair.value for pair in row}.items()) for row in [*rows, *[[]] * empty, *rows[:2]]]
    check(column, pa.map_(pa.string(), pa.string()), expected)


def test_map_column_invalid_utf8_replaced() -> None:
    column = MapColumn()
    bad: Any = Pair("k", b"\xffb")  # type: ignore[arg-type]  # what protobuf hands out for such text
    column.extend([[bad, Pair("l", "ok")]])
    check(column, pa.map_(pa.string(), pa.string()), [[("k", "\ufffdb"), ("l", "ok")]])


def test_text_column_invalid_utf8_replaced() -> None:
    for items, expected in (
        ([b"a\xff", None, "é".encode()], ["a\ufffd", None, "é"]),
        ([b"a", None, "é中😀".encode()], ["a", None, "é中😀"]),
        ([b"\xc3", b"\xa9"], ["\ufffd", "\ufffd"]),  # each is bad, although side by side they make a character
    ):
        column = TextColumn()
        column.extend_optional(items)
        check(column, pa.string(), expected)


@pytest.mark.parametrize(
    "add",
    [
        lambda column: column.repeat(b"12345", 3),
        lambda column: column.extend([b"1234567", b"8"]),
        lambda column: column.block(b"12345678", 4, 2),
    ],
)
def test_text_column_offset_overflow_raises(monkeypatch: pytest.MonkeyPatch, add: Callable[[TextColumn], None]) -> None:
    monkeypatch.setattr(arrays, "_MAX_OFFSET", 10)
    column = TextColumn()
    column.extend([b"123"])
    with pytest.raises(ValueError, match="2 GiB"):
        add(column)


def test_utf8() -> None:
    assert utf8("é") == b"\xc3\xa9"
    assert utf8(b"\xff") == b"\xff"
