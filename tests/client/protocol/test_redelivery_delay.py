"""Delays from redelivery back-offs that fail, in virtual time."""

from __future__ import annotations

import logging
import math
from fractions import Fraction
from typing import Any, cast

import pytest

from pulsar_native.config import MultiplierRedeliveryBackoff, RedeliveryBackoff
from pulsar_native.config.base import MAX_I64
from pulsar_native.protocol.redelivery_delay import RedeliveryDelay

LONGEST = MAX_I64 / 1000


class Returning:
    """Back-off that returns a value, or raises it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def next(self, redelivery_count: int) -> float:
        if isinstance(self.value, BaseException):
            raise self.value
        return cast(float, self.value)


def delay_of(value: Any) -> RedeliveryDelay:
    return RedeliveryDelay(Returning(value), 7.0, "Consumer c: negative_ack_redelivery_backoff")


def warned(caplog: pytest.LogCaptureFixture) -> int:
    return sum(name == "pulsar_native.consumer" and level >= logging.ERROR for name, level, _ in caplog.record_tuples)


@pytest.mark.proves("C147")
def test_redelivery_delay_by_redelivery_count() -> None:
    delay = RedeliveryDelay(MultiplierRedeliveryBackoff(min_delay_ms=1000, max_delay_ms=5000), 7.0, "c")
    assert [delay.seconds(count, 0.0) for count in range(5)] == [1, 2, 4, 5, 5]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0, 0), (250, 0.25), (Fraction(1, 2), 0.0005), (math.inf, LONGEST), (1e300, LONGEST), (10**400, LONGEST)],
    ids=["zero", "int", "fraction", "infinity", "huge-float", "huge-int"],
)
def test_redelivery_delay_bounded(value: Any, seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    assert delay_of(value).seconds(0, 0.0) == seconds
    assert not caplog.records


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (KeyError("no entry"), "KeyError: 'no entry'"),
        (SystemExit(3), "SystemExit: 3"),
        (None, "milliseconds, not NoneType"),
        ("10", "milliseconds, not str"),
        (True, "milliseconds, not bool"),
        (math.nan, "at least 0 milliseconds, not nan"),
        (-5, "at least 0 milliseconds, not -5"),
        (-math.inf, "at least 0 milliseconds, not -inf"),
        (-(10**400), "OverflowError"),
    ],
    ids=["exception", "exit", "none", "str", "bool", "nan", "negative", "minus-infinity", "huge-negative"],
)
def test_redelivery_delay_failing_is_default(value: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    assert delay_of(value).seconds(0, 0.0) == 7.0
    assert "Consumer c: negative_ack_redelivery_backoff failed" in caplog.text and reason in caplog.text
    assert "redelivered after 7 s instead" in caplog.text


def test_redelivery_delay_logs_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    backoff = Returning(None)
    delay = RedeliveryDelay(cast(RedeliveryBackoff, backoff), 7.0, "c")
    for second in range(60):
        delay.seconds(0, 100.0 + second)
    assert warned(caplog) == 1
    backoff.value = 3000
    assert delay.seconds(0, 165.0) == 3
    backoff.value = math.nan
    assert delay.seconds(0, 170.0) == 7.0 and warned(caplog) == 2


def test_redelivery_delay_lets_interrupt_pass() -> None:
    with pytest.raises(KeyboardInterrupt):
        delay_of(KeyboardInterrupt()).seconds(0, 0.0)
