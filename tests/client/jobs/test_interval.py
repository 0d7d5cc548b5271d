"""Intervals of a bounded load: never empty, reversed, half open or wider than asked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.jobs.interval import Bounds, check_order, is_missing, is_template, iso

START, END = "2013-01-31T05:00:00Z", "2013-01-31T06:00:00Z"
BOTH = {"startingTime": "2013-01-31T05:00:00.000+00:00", "endingTime": "2013-01-31T06:00:00.000+00:00"}
TEMPLATE = "{{ data_interval_start }}"


@pytest.mark.parametrize("is_rendered", [True, False])
def test_bounds_become_source_options(is_rendered: bool) -> None:
    assert Bounds(START, END).options(is_rendered=is_rendered) == BOTH
    at = datetime(2013, 1, 31, 5, tzinfo=UTC)
    assert Bounds(at, round(at.timestamp() * 1000) + 3_600_000).options(is_rendered=is_rendered) == BOTH


def test_bounds_templates_wait_for_rendering() -> None:
    assert Bounds(TEMPLATE, END).options(is_rendered=False) == {}
    assert Bounds(object(), END).options(is_rendered=False) == {}
    with pytest.raises(ValueError, match="interval_start="):
        Bounds(TEMPLATE, END).options(is_rendered=True)


def test_bounds_one_of_source_options_leaves_the_other() -> None:
    assert Bounds(None, END, starts=["startingOffsets"]).options(is_rendered=True) == {"endingTime": BOTH["endingTime"]}
    assert Bounds(None, None, starts=["startingOffsets"], ends=["endingTime"]).options(is_rendered=True) == {}


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (Bounds(None, None), "interval_start and interval_end are missing: give both .*CronDataIntervalTimetable"),
        (Bounds(START, None), "interval_end is missing:"),
        (Bounds(START, "None"), r"interval_end is missing \(interval_end was rendered to 'None'\)"),
        (Bounds(" ", END), "interval_start was rendered to ' '"),
        (Bounds(START, START), "The interval is empty: interval_start and interval_end are both 2013-01-31T05:00:00"),
        (Bounds(END, START), r"reversed: interval_end \(2013-01-31T05.*\) is before interval_start .*exchange them"),
        (Bounds(START, END, starts=["startingTime"]), "give interval_start or the source option startingTime, not"),
        (Bounds(None, END, starts=["a"], ends=["endingTime"]), "give interval_end or the source option endingTime"),
        (Bounds(START, 1767225600), "interval_end is 1767225600, .*are these seconds"),
        (Bounds("20130131", None, since="last_success"), "interval_start is 20130131, .*write a date as 2013-01-31"),
        (Bounds(START, "tomorrow"), "interval_end='tomorrow'"),
        (Bounds(None, None, interval="everything"), "interval can only be 'all', not 'everything'"),
        (Bounds(START, None, interval="all"), "leave out interval_start"),
        (Bounds(None, None, interval="all", since="last_success", ends=["e"]), "leave out since, e"),
        (Bounds(None, None, since="2013"), "since can only be 'last_success', not '2013'"),
        (Bounds(None, END, since="last_success"), "leave out interval_end"),
        (Bounds(None, None, since="last_success", ends=["endingTime"]), "leave out endingTime"),
        (Bounds("undefined", None, since="last_success"), "interval_start was rendered to 'undefined': leave it out"),
    ],
)  # fmt: skip
def test_bounds_wrong_interval_raises_with_fix(bounds: Bounds, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bounds.options(is_rendered=True)


def test_bounds_all_and_since_have_no_end() -> None:
    assert Bounds(None, None, interval="all").options(is_rendered=True) == {}
    assert Bounds(None, None, since="last_success").options(is_rendered=True) == {}
    assert Bounds(TEMPLATE, None, since="last_success").options(is_rendered=False) == {}
    found = Bounds(START, None, since="last_success").options(is_rendered=False)
    assert found == {"startingTime": BOTH["startingTime"]}


@pytest.mark.parametrize("value", [None, "", " ", "None", "NULL", "undefined"])
def test_missing_bound(value: object) -> None:
    assert is_missing(value)


@pytest.mark.parametrize("value", [0, "0", "no", START])
def test_missing_bound_spares_values(value: object) -> None:
    assert not is_missing(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("{{ x }}", True), ("{% if x %}", True), (object(), True), (None, False), (5, False), (START, False)],
)
def test_template_known_by_form(value: Any, expected: bool) -> None:
    assert is_template(value) is expected
    assert is_template(datetime(2013, 1, 1)) is False


@given(st.integers(-(10**13), 10**13), st.integers(-3, 3) | st.integers(-(10**13), 10**13))
def test_check_order_passes_only_forward_intervals(start: int, length: int) -> None:
    end = start + length
    if start < end:
        check_order(start, end, names=("a", "b"))
    else:
        with pytest.raises(ValueError, match="empty: a and b" if start == end else "reversed: b"):
            check_order(start, end, names=("a", "b"))


def test_iso_has_milliseconds_and_zone() -> None:
    assert iso(0) == "1970-01-01T00:00:00.000+00:00"
    assert iso(1_359_608_400_007) == "2013-01-31T05:00:00.007+00:00"
