"""Results of a publication: counts, ids by entry, failures, and whether a retry can store the rest."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native import MessageId, Result
from pulsar_native.jobs.publish_result import PublishResult


def sent(made: PublishResult, count: int, *, keyed: bool = False) -> None:
    """Queue messages of 10 bytes."""
    for number in range(made.accepted, made.accepted + count):
        made.accept(number, 10, keyed=keyed)


def stored(made: PublishResult, number: int, entry: int, index: int = -1, partition: int = -1) -> None:
    """Give the receipt of a message."""
    made.receipt(number, Result.Ok, MessageId(partition, 7, entry, index))


def test_manifest_counts_by_partition() -> None:
    made = PublishResult(2)
    sent(made, 4)
    stored(made, 0, 5, 0, 0)
    stored(made, 2, 5, 1, 0)
    stored(made, 1, 9, -1, 1)
    made.receipt(3, Result.Ok, MessageId(1, -1, -1, -1))
    assert json.loads(json.dumps(made.manifest())) == {
        "count": 4,
        "stored": 3,
        "duplicates": 1,
        "partitions": {
            "0": {"count": 2, "stored": 2, "first": "7:5:0:0", "last": "7:5:0:1"},
            "1": {"count": 2, "stored": 1, "first": "7:9:1:-1", "last": "7:9:1:-1"},
        },
        "bytes": 40,
    }
    assert made.stored_ids() == ["7:5:0:0..1", "7:9:1:-1"]
    assert (made.failed, made.first_error(), made.is_repeatable()) == (0, None, True)


def test_ids_of_a_batch_are_one() -> None:
    made = PublishResult(0)
    sent(made, 300)
    for number in range(300):
        stored(made, number, number // 100, number % 100)
    assert made.stored_ids() == ["7:0:-1:0..99", "7:1:-1:0..99", "7:2:-1:0..99"]


def test_ids_beyond_the_limit_are_counted() -> None:
    made = PublishResult(0)
    sent(made, 1003)
    for number in range(1003):
        stored(made, number, number)
    shown = made.stored_ids()
    assert (len(shown), shown[999], shown[1000]) == (1001, "7:999:-1:-1", "and 3 more entries")
    assert made.first_ids() == shown[:20]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (Result.MessageTooBig, "message 3: MessageTooBig: it is larger than the broker takes: make it smaller"),
        (Result.AlreadyClosed, "message 3: AlreadyClosed: the producer was closed before it was sent"),
        (Result.Timeout, "message 3: Timeout: the broker did not confirm it"),
        (Result.CryptoError, "message 3: CryptoError: it was not sent, or not stored"),
    ],
)
def test_first_error_is_of_the_lowest_number(result: Result, words: str) -> None:
    made = PublishResult(0)
    sent(made, 6)
    made.receipt(5, Result.Timeout, None)
    made.receipt(3, result, MessageId())
    error = made.first_error()
    assert error is not None and error.startswith(words) and made.failed == 2


def test_accept_after_local_failure_counts_nothing() -> None:
    made = PublishResult(0)
    made.receipt(0, Result.MessageTooBig, None)  # Called while the message is being queued.
    made.accept(0, 10, keyed=False)
    assert (made.accepted, made.resolved, made.failed, made.sent_bytes) == (0, 0, 1, 0)
    assert made.wait(0)


def test_refused_message_is_not_awaited() -> None:
    made = PublishResult(0)
    made.refuse(0, "ValueError: no")
    assert made.wait(0) and made.first_error() == "message 0: ValueError: no"


def test_wait_ends_with_the_last_receipt() -> None:
    made = PublishResult(0)
    sent(made, 2)
    assert not made.wait(0)
    stored(made, 0, 0)
    waiting = threading.Event()
    ended: list[bool] = []

    def wait() -> None:
        waiting.set()
        ended.append(made.wait(30))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(30)
    made.receipt(1, Result.Timeout, None)
    thread.join(30)
    assert ended == [True]


def test_is_repeatable_failure_before_stored_is_not() -> None:
    made = PublishResult(0)
    sent(made, 3)
    stored(made, 0, 0)
    made.receipt(1, Result.Timeout, None)
    assert not made.is_repeatable()  # Message 2 may still be stored.
    made.receipt(2, Result.Timeout, None)
    assert made.is_repeatable()


@given(
    partitions=st.integers(0, 4),
    outcomes=st.lists(st.sampled_from(["stored", "failed"]), min_size=1, max_size=30),
    keyed=st.booleans(),
    order=st.randoms(),
)
def test_is_repeatable_no_failed_id_below_a_stored(
    partitions: int, outcomes: list[str], keyed: bool, order: st.Random
) -> None:
    """The broker drops ids up to the highest stored one of a partition; with keys the partition is not known."""
    count = max(1, partitions)
    made = PublishResult(partitions)
    sent(made, len(outcomes), keyed=keyed)
    numbers = list(range(len(outcomes)))
    order.shuffle(numbers)
    for number in numbers:
        place = number % count if partitions else -1
        if outcomes[number] == "stored":
            stored(made, number, number, partition=place)
        else:
            made.receipt(number, Result.Timeout, None)
    dropped = [
        number
        for number, outcome in enumerate(outcomes)
        if outcome == "failed"
        and any(
            other > number and outcomes[other] == "stored" and (keyed or (other - number) % count == 0)
            for other in range(len(outcomes))
        )
    ]
    assert made.is_repeatable() is not bool(dropped)
