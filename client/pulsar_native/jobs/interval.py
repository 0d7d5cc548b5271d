"""The interval of a bounded load: [start, end) of publish times, everything there is, or what the last success left.

Pure values: no I/O. Rules: an interval that is empty, reversed or open at one end is refused with the fix, never
widened: a template that renders to nothing must not load the whole topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from pulsar_native.jobs import validation

ALL = "all"
LAST_SUCCESS = "last_success"

TIMETABLE = (
    'in Airflow 3 schedule="@hourly" gives runs without a length (data_interval_start == data_interval_end); use '
    'schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC")'
)
CHOICES = (
    "give both bounds, interval='all' for everything in the topic, or since='last_success' for runs without a data "
    "interval (asset-triggered or continuous ones)"
)
# What a template of a missing value renders to.
_NOTHING = ("", "none", "null", "undefined")


@dataclass(frozen=True, slots=True)
class LoadInterval:
    """Publish times in milliseconds since 1970: start inclusive, end exclusive; start < end."""

    start: int
    end: int

    @property
    def start_text(self) -> str:
        """The start as ISO-8601 in UTC."""
        return iso(self.start)

    @property
    def end_text(self) -> str:
        """The end as ISO-8601 in UTC."""
        return iso(self.end)


def is_missing(value: object) -> bool:
    """Return whether a bound is not there: None, or the text that a template of a missing value renders to."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)


def is_template(value: object) -> bool:
    """Return whether a value is only known after rendering."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    return value is not None and not isinstance(value, int | float | datetime)


def bounded(start: Any, end: Any, *, names: tuple[str, str] = ("interval_start", "interval_end")) -> LoadInterval:
    """Return the interval of two rendered bounds (datetime, ISO-8601 text or ms; UTC without zone).

    Raises ValueError naming the bound and the fix when one is missing, both are equal, or end is before start.
    """
    missing = [name for name, value in zip(names, (start, end), strict=True) if is_missing(value)]
    if missing:
        _refuse_missing(missing, names, (start, end))
    found = LoadInterval(validation.moment(names[0], start), validation.moment(names[1], end))
    check_order(found.start, found.end, names=names)
    return found


def check_order(start: int, end: int, *, names: tuple[str, str]) -> None:
    """Refuse an interval that is empty or reversed, with the fix."""
    if start == end:
        validation.refuse(f"The interval is empty: {names[0]} and {names[1]} are both {iso(start)}; {TIMETABLE}")
    if end < start:
        validation.refuse(
            f"The interval is reversed: {names[1]} ({iso(end)}) is before {names[0]} ({iso(start)}); exchange them"
        )


def _refuse_missing(missing: list[str], names: tuple[str, str], values: tuple[object, object]) -> NoReturn:
    rendered = [
        f"{name} was rendered to {value!r}"
        for name, value in zip(names, values, strict=True)
        if name in missing and value
    ]
    what = " and ".join(missing)
    verb = "is" if len(missing) == 1 else "are"
    more = f" ({', '.join(rendered)})" if rendered else ""
    validation.refuse(f"{what} {verb} missing{more}: {CHOICES}; {TIMETABLE}")


def iso(millis: int) -> str:
    """Return milliseconds since 1970 as ISO-8601 text in UTC."""
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")
