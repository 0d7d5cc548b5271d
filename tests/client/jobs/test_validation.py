"""Validation of arguments: accepted forms, and errors that name the argument and the fix."""

from __future__ import annotations

import copy
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.jobs import validation


def test_known_wrong_name_gets_nearest_or_list() -> None:
    validation.known("x", ["key", "value"], ["value", "key"])
    with pytest.raises(ValueError, match=r"the envelope has no 'valeu'; did you mean 'value'\?"):
        validation.known("the envelope", ["key", "valeu"], ["key", "value"])
    with pytest.raises(ValueError, match="there are key, value"):
        validation.known("the envelope", ["zzz"], ["key", "value"])


def test_nearest_ignores_case_of_the_wrong_name() -> None:
    assert validation.nearest("PARQUET", ["jsonl", "parquet"]) == "did you mean 'parquet'?"


@pytest.mark.parametrize("value", ["ZSTD", "zstd", "Zstd"])
def test_choice_returns_lower_case(value: str) -> None:
    assert validation.choice("compression", value, ("none", "zstd")) == "zstd"


@pytest.mark.parametrize("value", [None, 3, "", "zstdx"])
def test_choice_unknown_value_raises(value: object) -> None:
    with pytest.raises(ValueError, match=f"compression={value!r} is not known"):
        validation.choice("compression", value, ("none", "zstd"))


@pytest.mark.parametrize("value", [1, 1.0, 5, 10])
def test_number_within_bounds_passes(value: float) -> None:
    validation.number("n", value, 1, maximum=10)


@pytest.mark.parametrize("value", [True, None, "5", 0.99, 10.01, float("nan"), float("inf")])
def test_number_out_of_bounds_raises(value: object) -> None:
    with pytest.raises(ValueError, match="n must be a number of at least 1 and at most 10, not"):
        validation.number("n", value, 1, maximum=10)


@pytest.mark.parametrize("value", [-1, float("inf")])
def test_number_without_maximum_does_not_name_one(value: float) -> None:
    with pytest.raises(ValueError, match=rf"of at least 0, not {value}$"):
        validation.number("n", value, 0)


@pytest.mark.parametrize(("value", "found"), [(0, 0), (2, 2), (" 3 ", 3)], ids=["minimum", "more", "text"])
def test_whole_from_the_minimum_is_returned(value: object, found: int) -> None:
    assert validation.whole("n", value, 0) == found


@pytest.mark.parametrize("value", [-1, 2.5, 2.0, True, None, ""])
def test_whole_of_anything_else_raises(value: object) -> None:
    with pytest.raises(ValueError, match=f"n must be a whole number of at least 0, not {value!r}"):
        validation.whole("n", value, 0)


@pytest.mark.parametrize(("value", "is_right"), [(0, True), ("9", True), (10, False), ("-1", False)])
def test_whole_between_its_bounds(value: object, is_right: bool) -> None:
    if is_right:
        assert validation.whole("n", value, 0, maximum=9) == int(str(value))
        return
    with pytest.raises(ValueError, match=f"n must be a whole number of at least 0 and at most 9, not {value!r}"):
        validation.whole("n", value, 0, maximum=9)


def function() -> None:
    """Do nothing."""


def generator() -> Iterator[int]:
    """Yield a number."""
    yield 1


async def async_generator() -> AsyncIterator[int]:
    """Yield a number."""
    yield 1


def test_no_generator_refuses_generators_only() -> None:
    for function_ in (None, function, print, lambda: generator()):
        validation.no_generator("process", function_)
    for each in (generator, async_generator):
        with pytest.raises(ValueError, match=r"process is a generator function, .*: return instead of yield"):
            validation.no_generator("process", each)


class Holder:
    """Owner of arguments."""

    def __init__(self, path: object) -> None:
        self.path, self.limit = path, None
        self.given = validation.Given(self, "path", "limit")


@pytest.mark.parametrize("rendered", [None, "", {}, []])
def test_given_rendered_to_nothing_raises(rendered: object) -> None:
    # Airflow renders the templates of a copy.
    owner = copy.copy(Holder("{{ path }}"))
    owner.given.check(owner)
    owner.path = rendered
    with pytest.raises(ValueError, match=f"path was given, .* returned {re.escape(repr(rendered))}"):
        owner.given.check(owner)


@pytest.mark.parametrize("nothing", [None, "", {}, ()])
def test_given_not_given_is_not_checked(nothing: object) -> None:
    owner = Holder(nothing)
    owner.given.check(owner)


@pytest.mark.parametrize("value", ["", " \t", None, 3])
def test_text_blank_raises(value: object) -> None:
    with pytest.raises(ValueError, match="topic must be a text that is not blank"):
        validation.text("topic", value)


def test_text_is_returned_unchanged() -> None:
    assert validation.text("topic", " a ") == " a "


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)), st.integers(-12, 14))
def test_moment_same_for_every_form(naive: datetime, hours: int) -> None:
    naive = naive.replace(microsecond=naive.microsecond // 1000 * 1000)
    utc = naive.replace(tzinfo=UTC)
    millis = (utc - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    away = utc.astimezone(timezone(timedelta(hours=hours)))
    for value in (naive, utc, away, naive.isoformat(), f" {away.isoformat()} ", millis, str(millis), float(millis)):
        assert validation.moment("t", value) == millis  # type: ignore[arg-type]


def test_moment_before_1970_is_negative() -> None:
    assert validation.moment("t", "-5") == -5
    assert validation.moment("t", "1969-12-31T23:59:59Z") == -1000


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59.999999", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00+14:00"])
def test_moment_first_and_last_are_times_in_utc(text: str) -> None:
    for value in (text, datetime.fromisoformat(text)):
        found = datetime.fromtimestamp(validation.moment("t", value) / 1000, UTC)
        assert (found.year, found.hour) in ((1, 0), (9999, 23))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "not True"),
        (None, "not NoneType"),
        (b"5", "not bytes"),
        ("yesterday", "t='yesterday' is neither ISO-8601 text .* nor milliseconds"),
        ("", "neither ISO-8601"),
        ("--5", "neither ISO-8601"),
        ("\u00b2", "neither ISO-8601"),
        (float("nan"), "t must be a point in time, not nan"),
        (float("inf"), "t must be a point in time, not inf"),
        (1_700_000_000_000_000, "t=1700000000000000 is no time in milliseconds .it looks like micro- or nanoseconds"),
        ("1700000000000000000", "is no time in milliseconds"),
        (1.7e18, "is no time in milliseconds"),
        (-(10**40), "is no time in milliseconds"),
        ("9" * 5000, "is no time in milliseconds"),
    ],
)
def test_moment_other_values_raise(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        validation.moment("t", value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", [0, "999999999", 10_000_000_000, "1767225600000", "20261301", "20260101T00", 18260101]
)
def test_publish_time_other_numbers_as_moment(value: int | str) -> None:
    assert validation.publish_time("t", value) == validation.moment("t", value)


@pytest.mark.parametrize(
    "value", [datetime(1970, 1, 21, 10, tzinfo=UTC), "1970-01-21T10:00:00Z", "1970-01-01T05:37:40.101Z"]
)
def test_publish_time_in_1970_as_date_is_kept(value: datetime | str) -> None:
    assert validation.publish_time("t", value) == validation.moment("t", value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            1767225600,
            r"t is 1767225600, .* is 1970-01-21T10:53:45.600000\+00:00; are these seconds\? Write 2026-01-01T",
        ),
        (" 1767225600 ", r"00:00:00\+00:00 as 1767225600000"),
        (1767225600.5, "as 1767225600000"),
        ("1000000000", "are these seconds"),
        ("9999999999", "are these seconds"),
        (20260101, r"t is 20260101, .* is 1970-01-01T05:37:40\.101\+00:00; write a date as 2026-01-01T00:00:00Z"),
        ("20271231", "write a date as 2027-12-31T00:00:00Z"),
    ],
)
def test_publish_time_seconds_or_date_raises(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        validation.publish_time("t", value)  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "found"), [(1, 1), ("7", 7), (" 12 ", 12)])
def test_whole_number_or_its_text(given: object, found: int) -> None:
    assert validation.whole("n", given) == found


@pytest.mark.parametrize("given", [0, "0", -1, "1.0", 1.0, True, "", None, "x", "\u00b2", "9" * 5000])
def test_whole_number_wrong_raises(given: object) -> None:
    with pytest.raises(ValueError, match="n must be a whole number of at least 1, not"):
        validation.whole("n", given)
