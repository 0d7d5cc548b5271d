"""The interval of a bounded load: [start, end) of publish times, everything there is, or what the last success left.

Pure values: no I/O. Rules: an interval that is empty, reversed or open at one end is refused with the fix, never
widened: a template that renders to nothing must not load the whole topic.
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
# What a template of a missing value renders to.
_NOTHING = ("", "none", "null", "undefined")
_OPTIONS = {"interval_start": "startingTime", "interval_end": "endingTime"}


def is_missing(value: object) -> bool:
    """Return whether a bound is not there: None, or the text that a template of a missing value renders to."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)


def is_template(value: object) -> bool:
    """Return whether a value is only known after rendering."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    return value is not None and not isinstance(value, int | float | datetime)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The arguments that say an interval, as they are given: bounds, `interval`, `since`, and the source's options.

    `starts` and `ends` are the names of source options that say a bound themselves.
    """

    start: Any
    end: Any
    interval: str | None = None
    since: str | None = None
    starts: Sequence[str] = ()
    ends: Sequence[str] = ()

    def options(self, *, is_rendered: bool) -> dict[str, str]:
        """Return the bounds as options of the Spark source, none for what is only known after rendering.

        Raises ValueError naming the argument and the fix for what is no interval.
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
            return {"startingTime": iso(validation.moment("interval_start", self.start))}
        return self._both(is_rendered)

    def _both(self, is_rendered: bool) -> dict[str, str]:
        wanted = {"interval_start": (self.start, self.starts), "interval_end": (self.end, self.ends)}
        values = {name: value for name, (value, options) in wanted.items() if not options}
        missing = {name: value for name, value in values.items() if is_missing(value)}
        if missing:
            _refuse_missing(missing)
        if not is_rendered and any(is_template(value) for value in values.values()):
            return {}
        moments = {name: validation.moment(name, value) for name, value in values.items()}
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
    """Refuse an interval that is empty or reversed, with the fix."""
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
