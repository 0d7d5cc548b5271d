"""Interval of a bounded load: [start, end) of publish times, all messages, or those since the last success.

Pure values: no I/O. Rules: an empty, reversed or half-open interval raises with the fix and is never widened: a
template rendered to nothing must not load the whole topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
# Results of templates of a missing value.
_NOTHING = ("", "none", "null", "undefined")
_OPTIONS = {"interval_start": "startingTime", "interval_end": "endingTime"}


def is_missing(value: object) -> bool:
    """Return True if a bound is missing: None, or the text of a missing value."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)


def is_template(value: object) -> bool:
    """Return True if a value is known only after rendering."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    return value is not None and not isinstance(value, int | float | datetime)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Arguments of an interval: bounds, `interval`, `since`, and the source's options.

    `starts` and `ends` are names of source options that are bounds.
    """

    start: Any
    end: Any
    interval: str | None = None
    since: str | None = None
    starts: Sequence[str] = ()
    ends: Sequence[str] = ()

    def options(self, *, is_rendered: bool) -> dict[str, str]:
        """Return the bounds as options of the Spark source, none if known only after rendering.

        Raises ValueError naming the argument and the fix.
        """
        for name, value, given in (("interval_start", self.start, self.starts), ("interval_end", self.end, self.ends)):
            if value is not None and given:
                validation.refuse(f"give {name} or the source option {given[0]}, not both")
        if self.interval is not None:
            self._check_all()
            return {}
        if self.since is not None:
            self._check_since()
            if self.start is None or (is_template(self.start) and not is_rendered):
                return {}
            if is_missing(self.start):
                validation.refuse(f"interval_start was rendered to {self.start!r}: leave it out, or give a time")
            return {"startingTime": iso(validation.publish_time("interval_start", self.start))}
        return self._both(is_rendered)

    def _both(self, is_rendered: bool) -> dict[str, str]:
        wanted = {"interval_start": (self.start, self.starts), "interval_end": (self.end, self.ends)}
        values = {name: value for name, (value, options) in wanted.items() if not options}
        missing = {name: value for name, value in values.items() if is_missing(value)}
        if missing:
            _refuse_missing(missing)
        if not is_rendered and any(is_template(value) for value in values.values()):
            return {}
        moments = {name: validation.publish_time(name, value) for name, value in values.items()}
        if len(moments) == 2:
            check_order(*moments.values(), names=("interval_start", "interval_end"))
        return {_OPTIONS[name]: iso(moment) for name, moment in moments.items()}

    def _given(self) -> list[str]:
        bounds = {"interval_start": self.start, "interval_end": self.end}
        return [*(name for name, value in bounds.items() if value is not None), *self.starts, *self.ends]

    def _check_all(self) -> None:
        if self.interval != ALL:
            validation.refuse(f"interval can only be 'all', not {self.interval!r}; a bound is interval_start or _end")
        if self.since is not None or self._given():
            besides = ", ".join([*(["since"] if self.since is not None else []), *self._given()])
            validation.refuse(f"interval='all' loads the whole topic: leave out {besides}")

    def _check_since(self) -> None:
        if self.since != LAST_SUCCESS:
            validation.refuse(f"since can only be 'last_success', not {self.since!r}; a time is interval_start")
        if self.end is not None or self.ends:
            validation.refuse(
                "since='last_success' ends at the last message there is when it runs: leave out "
                f"{self.ends[0] if self.ends else 'interval_end'}"
            )


def check_order(start: int, end: int, *, names: tuple[str, str]) -> None:
    """Raise for an empty or reversed interval, with the fix."""
    if start == end:
        validation.refuse(f"The interval is empty: {names[0]} and {names[1]} are both {iso(start)}; {TIMETABLE}")
    if end < start:
        validation.refuse(
            f"The interval is reversed: {names[1]} ({iso(end)}) is before {names[0]} ({iso(start)}); exchange them"
        )


def _refuse_missing(missing: Mapping[str, object]) -> NoReturn:
    rendered = [f"{name} was rendered to {value!r}" for name, value in missing.items() if value is not None]
    what = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    more = f" ({', '.join(rendered)})" if rendered else ""
    validation.refuse(f"{what}{more}: {CHOICES}; {TIMETABLE}")


def iso(millis: int) -> str:
    """Return milliseconds since 1970 as ISO-8601 text in UTC."""
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")
