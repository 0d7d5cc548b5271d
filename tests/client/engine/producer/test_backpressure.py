"""Refusals of a producer: errors that name the fix, and the report to interceptors of a message that is given up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from pulsar_native.engine.producer import backpressure
from pulsar_native.engine.producer.backpressure import Backpressure, CapacityWaiters
from pulsar_native.exceptions import (
    ChecksumError,
    MemoryBufferIsFull,
    NotConnected,
    OperationNotSupported,
    ProducerQueueIsFull,
    PulsarException,
)

TOPIC = "persistent://public/default/t"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (backpressure.queue_full(7, TOPIC), ProducerQueueIsFull, ("7 messages", "max_pending_messages")),
        (backpressure.memory_full(99, TOPIC), MemoryBufferIsFull, ("99 bytes", "memory_limit_bytes")),
        (backpressure.not_joined(TOPIC), OperationNotSupported, ("another thread",)),
        (
            backpressure.may_be_stored(TOPIC, "cut off"),
            NotConnected,
            ("confirm the message (cut off)", "deduplication", "aborted"),
        ),
        (backpressure.incomplete(TOPIC), NotConnected, ("whole or not", "whether consumers get it", "only if not")),
        (backpressure.lost_to_deduplication(TOPIC), ChecksumError, ("new sequence id",)),
        (backpressure.overtaken(TOPIC), NotConnected, ("deduplication dropped", "aborted", "new one")),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_refusal_names_topic_and_fix(
    error: PulsarException, kind: type[PulsarException], said: tuple[str, ...]
) -> None:
    assert type(error) is kind and error.topic == TOPIC
    for words in said:
        assert words in str(error)


def _never(_wake: Callable[[], None]) -> None:
    pytest.fail("a refusal must not wait")


def test_refusal_of_plain_message_is_the_error() -> None:
    error = backpressure.queue_full(1, TOPIC)
    assert Backpressure(error, _never).refusal() is error
    assert not Backpressure(error, _never).always_waits


def test_refusal_reports_that_message_is_given_up() -> None:
    error = backpressure.memory_full(1, TOPIC)
    given_up: list[PulsarException] = []
    assert Backpressure(error, _never, on_give_up=given_up.append).refusal() is error
    assert given_up == [error]


def test_retried_by_keeps_its_attempt() -> None:
    full = Backpressure(backpressure.queue_full(1, TOPIC), _never)
    outcomes = [full, full, None]
    retry = full.retried_by(lambda: outcomes.pop(0)).retry
    tries = 0
    while retry is not None:
        again, tries = retry(), tries + 1
        retry = None if again is None else again.retry
    assert (tries, outcomes) == (3, [])


@pytest.mark.parametrize(
    ("capacity", "woken"), [(0, []), (1, ["one"]), (3, ["one"]), (4, ["one", "three", "none"]), (None, None)]
)
def test_capacity_given_in_order_up_to_the_first_misfit(capacity: int | None, woken: list[str] | None) -> None:
    waiters = CapacityWaiters()
    told: list[str] = []
    for name, needed in (("one", 1), ("three", 4), ("none", 2), ("five", 5)):
        waiters.add(needed, partial(told.append, name))
    for wake in waiters.pop_ready(capacity):
        wake()
    assert told == (["one", "three", "none", "five"] if woken is None else woken)
    assert len(waiters.waiting) == 4 - len(told)
