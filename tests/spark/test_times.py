"""Publish time bounds: the accepted forms, exactly, and what is refused."""

from __future__ import annotations

import pytest

from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar.times import parse_time


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("1357000000123", 1357000000123),
        ("2013-01-01T00:00:00Z", 1356998400000),
        ("2013-01-01T00:00:00+00:00", 1356998400000),
        ("2013-01-01 01:00:00.5+01:00", 1356998400500),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("2013-01-01T00:00:00.000999Z", 1356998400001),
        ("2013-01-01T00:00:00.001Z", 1356998400001),
    ],
)
def test_milliseconds_and_iso_times_with_a_zone_are_read_and_round_up(text: str, milliseconds: int) -> None:
    assert parse_time("startingTime", text) == milliseconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2013-01-01T00:00:00", "endingTime .* without a zone; add Z"),
        ("2013-01-01", "without a zone"),
        ("yesterday", "write milliseconds since 1970 or ISO-8601"),
        ("", "write milliseconds"),
        ("-5", "write milliseconds"),
        ("1.5", "write milliseconds"),
        ("1969-12-31T23:59:59Z", "before 1970"),
        ('{"t": 5}', "one time for all partitions"),
    ],
)
def test_other_times_are_refused_with_the_right_form(text: str, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        parse_time("endingTime", text)
