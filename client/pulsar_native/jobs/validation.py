"""Validation of arguments before anything is sent or read.

Rules: every error names the argument, the mistake, and the most similar name for a wrong one; no value that may be
secret is repeated. No I/O, no imports of the client.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NoReturn

# Years 1 to 9999, all that a datetime holds: a time of today in microseconds is in the year 55000 and later.
_MIN_MILLIS, _MAX_MILLIS = -62_135_596_800_000, 253_402_300_799_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Seconds since 1970 from September 2001 on: in milliseconds they are of January to April 1970, when no message was.
_SECONDS = range(10**9, 10**10)
# ISO date without dashes.
_DATE = re.compile(r"(19|20|21)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])")


class InvalidValue(ValueError):
    """Raised for a wrong argument, or a value that cannot be used as asked for. Not retryable."""


def refuse(message: str) -> NoReturn:
    """Raise `InvalidValue`, a ValueError."""
    raise InvalidValue(message)


def known(what: str, names: Iterable[str], allowed: Sequence[str]) -> None:
    """Raise for the first unknown name, with the most similar known one."""
    for name in names:
        if name not in allowed:
            refuse(f"{what} has no {name!r}; {nearest(name, allowed)}")


def nearest(name: object, allowed: Sequence[str]) -> str:
    """Return the hint for a wrong name."""
    near = difflib.get_close_matches(str(name).lower(), allowed, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(allowed)}"


def choice(name: str, value: object, allowed: Sequence[str]) -> str:
    """Return the value in lower case; raise unless it is one of those allowed."""
    if not isinstance(value, str) or value.lower() not in allowed:
        refuse(f"{name}={value!r} is not known; {nearest(value, allowed)}")
    return value.lower()


def number(name: str, value: object, minimum: float, *, maximum: float = math.inf) -> None:
    """Raise for anything but a finite number within the bounds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not minimum <= value <= maximum or value == math.inf:  # type: ignore[operator]
        upper = "" if maximum == math.inf else f" and at most {maximum:g}"
        refuse(f"{name} must be a number of at least {minimum:g}{upper}, not {value!r}")


def whole(name: str, value: object, minimum: int = 1, *, maximum: float = math.inf) -> int:
    """Return a whole number within the bounds, from a number or its text; raise for anything else."""
    digits = str(value).strip()
    number = _integer(digits) if digits.isdecimal() and not isinstance(value, bool | float) else None
    if number is None or not minimum <= number <= maximum:
        upper = "" if maximum == math.inf else f" and at most {maximum}"
        refuse(f"{name} must be a whole number of at least {minimum}{upper}, not {value!r}")
    return number


def no_generator(name: str, function: object) -> None:
    """Raise for a generator function, plain or async: a call of it runs nothing."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        refuse(f"{name} is a generator function, of which a call runs nothing: return instead of yield")


def text(name: str, value: object) -> str:
    """Return the text; raise for a blank one."""
    if not isinstance(value, str) or not value.strip():
        refuse(f"{name} must be a text that is not blank, not {value!r}")
    return value


def texts(name: str, value: object) -> dict[str, str]:
    """Return a mapping of texts that are not blank, empty for None; raise for anything else, which is not repeated."""
    given = {} if value is None else value
    if not isinstance(given, Mapping) or not all(
        isinstance(each, str) and each.strip() for pair in given.items() for each in pair
    ):
        refuse(f"{name} must be a dict of texts")
    return {str(each): str(text) for each, text in given.items()}


def moment(name: str, value: datetime | str | int) -> int:
    """Return milliseconds since 1970; from a datetime, ISO-8601 text or milliseconds; UTC without a zone."""
    if isinstance(value, bool):
        refuse(f"{name} must be a datetime, ISO-8601 text or milliseconds since 1970, not {value!r}")
    # A missing time of pandas is a datetime, too, and equal to nothing.
    if value != value or value in (math.inf, -math.inf):
        refuse(f"{name} must be a point in time, not {value!r}")
    if isinstance(value, int | float):
        return _in_milliseconds(name, value)
    if isinstance(value, str):
        value = value.strip()
        if value.removeprefix("-").isdecimal():
            return _in_milliseconds(name, value)
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            refuse(f"{name}={value!r} is neither ISO-8601 text (2013-01-31T05:00:00+00:00) nor milliseconds since 1970")
    if not isinstance(value, datetime):
        refuse(f"{name} must be a datetime, ISO-8601 text or milliseconds since 1970, not {type(value).__name__}")
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    # One with a zone may be some hours beyond the years of UTC, which stands for the earliest or latest time.
    return max(_MIN_MILLIS, min(round(aware.timestamp() * 1000), _MAX_MILLIS))


def publish_time(name: str, value: datetime | str | int) -> int:
    """Return milliseconds since 1970 as `moment` does; raise for a number that is one of seconds or a date."""
    millis = moment(name, value)
    if isinstance(value, int | float) or (isinstance(value, str) and value.strip().isdecimal()):
        check_publish_millis(name, millis)
    return millis


def check_publish_millis(name: str, millis: int) -> None:
    """Raise for a number of milliseconds that can only be one of seconds or a date such as 20260131."""
    text, understood = str(millis), timedelta(milliseconds=millis)
    if millis in _SECONDS:
        meant = (_EPOCH + timedelta(seconds=millis)).isoformat()
        refuse(
            f"{name} is {text}, which in milliseconds since 1970 is {(_EPOCH + understood).isoformat()}; are these "
            f"seconds? Write {meant} as {text}000"
        )
    if _DATE.fullmatch(text):
        date = f"{text[:4]}-{text[4:6]}-{text[6:]}T00:00:00Z"
        refuse(
            f"{name} is {text}, which in milliseconds since 1970 is "
            f"{(_EPOCH + understood).isoformat(timespec='milliseconds')}; write a date as {date}"
        )


def _in_milliseconds(name: str, value: float | str) -> int:
    """Return a number or its text as an integer; raise if it is outside the years 1 to 9999."""
    number = _integer(value)
    if number is None or not _MIN_MILLIS <= number <= _MAX_MILLIS:
        refuse(f"{name}={value!r} is no time in milliseconds (it looks like micro- or nanoseconds)")
    return number


def _integer(value: float | str) -> int | None:
    try:
        return int(value)
    except ValueError:  # A text with more digits than Python converts.
        return None


class Given:
    """Names of optional arguments that a constructor was given, which templates must not render to nothing.

    Made at the constructor's end; `check` is for the time after rendering, and gets the owner, which Airflow copies. A
    default in place of what was asked for would change the result without a word.
    """

    def __init__(self, owner: object, *names: str) -> None:
        self._names = [name for name in names if not is_nothing(getattr(owner, name))]

    def check(self, owner: object) -> None:
        """Raise for an argument that has become None or empty."""
        for name in self._names:
            value = getattr(owner, name)
            if is_nothing(value):
                refuse(f"{name} was given, but its template or upstream task returned {value!r}: leave it out instead")


def is_nothing(value: object) -> bool:
    """Return True for None and for what is empty."""
    return value is None or (isinstance(value, str | Mapping | Sequence) and len(value) == 0)
