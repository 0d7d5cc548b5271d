"""Negative acks tracker, in virtual time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.config import MultiplierRedeliveryBackoff
from pulsar_native.protocol.nack_tracker import NegativeAcksTracker
from pulsar_native.protocol.redelivery_delay import RedeliveryDelay

entries = st.tuples(st.integers(0, 3), st.integers(0, 5))


@pytest.mark.proves("C146")
@given(st.floats(0, 100), st.floats(0, 10**6))
def test_nack_due_after_delay_and_slice(delay: float, now: float) -> None:
    refused = NegativeAcksTracker(delay)
    refused.add((1, 1), now)
    due = refused.next_due()
    assert due is not None
    wanted = now + max(delay, 0.1)
    assert wanted - 1e-6 <= due <= wanted + 0.256 + 1e-6
    assert refused.pop_due(due - 0.01) == []
    assert refused.pop_due(due) == [(1, 1)]
    assert (len(refused), refused.next_due()) == (0, None)


@pytest.mark.proves("C146")
@pytest.mark.parametrize("start", [0.0, 0.01, 51.2])
def test_nack_same_slice_due_together(start: float) -> None:
    refused = NegativeAcksTracker(1.0)
    # From one border of a slice to just before the next: three refusals, one request.
    border = math.ceil((start + 1.0) / 0.256) * 0.256 - 1.0
    for number, at in enumerate((border + 0.001, border + 0.1, border + 0.255)):
        refused.add((1, 9 - number), at)
    due = refused.next_due()
    assert due is not None
    assert refused.pop_due(due) == [(1, 7), (1, 8), (1, 9)]


@pytest.mark.proves("C146")
def test_nack_again_restarts_delay_ack_ends_it() -> None:
    refused = NegativeAcksTracker(1.0)
    refused.add((1, 1), 0.0)
    refused.add((1, 2), 0.0)
    refused.add((1, 1), 5.0)
    assert refused.pop_due(2.0) == [(1, 2)]
    refused.remove((1, 1))
    refused.remove((1, 1))
    assert refused.pop_due(100.0) == [] and refused.next_due() is None
    refused.add((1, 1), 0.0)
    refused.clear()
    assert len(refused) == 0


@pytest.mark.proves("C146")
@given(st.dictionaries(entries, st.floats(0, 10)), st.floats(0, 12))
def test_pop_due_in_order_keeps_rest(times: dict[tuple[int, int], float], now: float) -> None:
    refused = NegativeAcksTracker(1.0)
    for entry, at in times.items():
        refused.add(entry, at)
    taken = refused.pop_due(now)
    assert taken == sorted(taken)
    assert len(refused) == len(times) - len(taken)
    for entry, at in times.items():
        if entry in taken:
            assert at + 1.0 <= now + 1e-9
        else:
            assert now < at + 1.0 + 0.256 + 1e-9


@pytest.mark.proves("C146")
@pytest.mark.parametrize("bits", [0, 4, 8, 10])
def test_nack_precision_in_bits(bits: int) -> None:
    refused = NegativeAcksTracker(1.0, precision_bits=bits)
    width = 2**bits / 1000
    for number in range(20):
        refused.add((1, number), number * width / 10 + 5 * width)
    due: list[float] = []
    while (at := refused.next_due()) is not None:
        due.append(at)
        assert refused.pop_due(at)
    assert 2 <= len(due) <= 4
    assert all(abs(at / width - round(at / width)) < 1e-6 for at in due)


BACKOFF = RedeliveryDelay(MultiplierRedeliveryBackoff(min_delay_ms=1000, max_delay_ms=5000), 60.0, "c")


@pytest.mark.proves("C147")
def test_nack_backoff_by_redelivery_count() -> None:
    refused = NegativeAcksTracker(60.0, precision_bits=0, backoff=BACKOFF)
    for count, delay in enumerate((1.0, 2.0, 4.0, 5.0, 5.0)):
        refused.add((1, 1), 100.0, count)
        assert refused.next_due() == pytest.approx(100.0 + delay, abs=0.002)
    none = RedeliveryDelay(MultiplierRedeliveryBackoff(min_delay_ms=0), 60.0, "c")
    short = NegativeAcksTracker(60.0, precision_bits=0, backoff=none)
    assert short.add((1, 1), 100.0) == short.next_due() == pytest.approx(100.1, abs=0.002), "never below Java's 100 ms"
