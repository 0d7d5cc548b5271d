"""Consumed batch: limits, ids of chunks, entries consumed in part, acknowledging, messages as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native import EntryRange, MessageId
from pulsar_native.jobs import batch as module
from pulsar_native.jobs.batch import Batch, BatchLimits, CutEntries, acknowledge, record_of
from pulsar_native.schema import InvalidRecord
from support.jobs import PUBLISHED, TOPIC, cut_note, received

NONE = BatchLimits(None, None, None, None)


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_limits_from_rendered_texts() -> None:
    assert BatchLimits.of("10", "1000", "0.5", 7) == BatchLimits(10, 1000, 0.5, 7)
    assert BatchLimits.of(10, None, "", None) == BatchLimits(10, None, None, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ten", None, None), "max_messages='ten' is no number"),
        ((0, None, None), "max_messages must be a number of at least 1, not 0"),
        ((None, "-5", None), "max_bytes must be a number of at least 1, not -5"),
        ((None, None, 0), "max_seconds must be a number of at least 0.001, not 0"),
        ((None, None, True), "max_seconds must be"),
    ],
)
def test_limits_wrong_value_raises(arguments: tuple[Any, Any, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BatchLimits.of(*arguments, None)


@given(
    messages=st.none() | st.integers(1, 8),
    size=st.none() | st.integers(1, 60),
    sizes=st.lists(st.integers(0, 30), max_size=12),
)
def test_takes_never_beyond_limits_but_the_first(messages: int | None, size: int | None, sizes: list[int]) -> None:
    batch = Batch(BatchLimits(messages, size, None, None))
    taken = [each for each in sizes if batch.stop_reason is None and batch.takes(each, 0)]
    assert batch.is_empty is not bool(taken)
    assert messages is None or len(taken) <= messages
    assert size is None or len(taken) <= 1 or sum(taken) <= size
    if batch.stop_reason is None:
        assert taken == sizes
    elif batch.stop_reason == "max_messages":
        assert len(taken) == messages
    else:
        assert batch.stop_reason == "max_bytes" and size is not None
        full = sum(taken) >= size
        assert full or sum(taken) + sizes[len(taken)] > size


def test_takes_first_message_unless_too_long_inline() -> None:
    batch = Batch(BatchLimits(None, 5, None, 100))
    assert not batch.is_too_long(100) and batch.is_too_long(101)
    assert not batch.takes(1, 101) and batch.stop_reason == "inline_limit"
    batch = Batch(BatchLimits(None, 5, None, 100))
    assert batch.takes(50, 60) and batch.stop_reason == "max_bytes"


def test_takes_inline_limit_counts_lines() -> None:
    batch = Batch(BatchLimits(None, None, None, 100))
    assert batch.takes(1, 60) and batch.takes(1, 40) and not batch.takes(1, 1)
    assert batch.stop_reason == "inline_limit"


def test_room_shrinks_with_rows() -> None:
    assert Batch(NONE).room() == (20_000, 8 << 20)
    batch = Batch(BatchLimits(5, 100, None, None))
    batch.add_rows(EntryRange(TOPIC, -1, 7, 0, 1), 60, PUBLISHED)
    assert batch.room() == (3, 40)
    assert batch.takes_rows(40) and not batch.takes_rows(41) and batch.stop_reason == "max_bytes"


# ---- content ---------------------------------------------------------------------------------------------------------


def test_manifest_and_chunks_of_messages() -> None:
    batch = Batch(NONE)
    batch.add(received(b"ab", 0))
    batch.add(received(b"c", 1))
    batch.end_chunk([{"a": 1}])
    batch.end_chunk()
    batch.add(received(b"d", 9, topic=f"{TOPIC}-2"))
    batch.add_other(received(b"e", 2))
    assert batch.manifest() == {
        "count": 3,
        "bytes": 4,
        "partitions": {
            TOPIC: {"count": 2, "first": "7:0:-1:-1", "last": "7:1:-1:-1"},
            f"{TOPIC}-2": {"count": 1, "first": "7:9:-1:-1", "last": "7:9:-1:-1"},
        },
        "stop_reason": None,
    }
    assert batch.chunks() == [{TOPIC: [[7, 0, 1]]}, {f"{TOPIC}-2": [[7, 9, 9]]}]
    assert batch.others() == {TOPIC: [[7, 2, 2]]}


def test_manifest_inline_has_the_messages() -> None:
    batch = Batch(BatchLimits(None, None, None, 100))
    batch.add(received(b"a", 0))
    batch.end_chunk([{"value": "a"}])
    assert batch.manifest()["messages"] == [{"value": "a"}]


def test_rows_count_as_messages() -> None:
    batch = Batch(NONE)
    batch.add_rows(EntryRange(TOPIC, -1, 7, 0, 3, 5), 200, PUBLISHED)
    batch.add_rows(EntryRange(TOPIC, -1, 7, 4, 4, 5, 0b00110), 20, PUBLISHED)
    batch.add_other_rows(EntryRange(TOPIC, -1, 7, 4, 4, 5, 0b00001), PUBLISHED)
    found = batch.manifest()
    assert (found["count"], found["bytes"]) == (22, 220)
    assert found["partitions"][TOPIC] == {"count": 22, "first": "7:0:-1:0", "last": "7:4:-1:2"}
    assert batch.chunks() == [{TOPIC: [[7, 0, 3], [7, 4, 1, 2, 5]]}]
    assert batch.others() == {TOPIC: [[7, 4, 0, 0, 5]]}
    assert batch.cut.as_json() == cut_note({TOPIC: [[7, 4, "7", 5, PUBLISHED]]})


# ---- entries consumed in part ----------------------------------------------------------------------------------------

OTHER = "persistent://public/default/u"
FIVE = {TOPIC: [[7, 3, "5", 5, PUBLISHED]]}


@given(st.lists(st.sets(st.integers(0, 4), max_size=5), max_size=5))
def test_cut_entries_over_batches_give_each_message_once(batches: list[set[int]]) -> None:
    """A broker redelivers the whole entry to each batch, which takes some of its messages."""
    state: Any = {}
    given: list[int] = []
    for wanted in batches:
        cut = CutEntries([json.loads(json.dumps(state))])
        batch = Batch(NONE, cut)
        for index in range(5):
            message = received(b"x", 3, index, 5)
            if cut.is_known(message):
                batch.add_other(message)
            elif index in wanted:
                given.append(index)
                batch.add(message)
        state = cut.as_json()
        if len(given) == 5:
            break  # The broker has the whole entry acknowledged.
    assert len(given) == len(set(given)) == len(set().union(*batches))
    assert not state or not state["entries"] or len(given) not in (0, 5)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.data())
def test_cut_entries_latest_note_wins_in_any_order(sizes: list[int], data: Any) -> None:
    """Runs take entry after entry of five; the notes of all come in any order, some of them again."""
    notes: list[Any] = []
    taken = 0
    for size in sizes:
        again = data.draw(st.lists(st.sampled_from(notes), max_size=3)) if notes else []
        cut = CutEntries(data.draw(st.permutations([*notes, *again])))
        batch = Batch(NONE, cut)
        first = taken // 5
        came = [(entry, index) for entry in range(first, first + 2) for index in range(5)]
        new = [received(b"x", *place, 5) for place in came if not cut.is_known(received(b"x", *place, 5))]
        for message in new[:size]:
            batch.add(message)
        assert (new[0].message_id().entry_id(), new[0].message_id().batch_index()) == divmod(taken, 5)
        taken += size
        if note := cut.as_json():
            notes.append({**note, "marks": {TOPIC: [7, taken // 5 - 1]}})


def test_cut_entries_completed_stay_known_in_the_batch() -> None:
    """The message that completes an entry may come before messages that an earlier batch has."""
    cut = CutEntries([cut_note({TOPIC: [[7, 3, "17", 5, PUBLISHED]]})])
    batch = Batch(NONE, cut)
    batch.add(received(b"x", 3, 3, 5))
    last = received(b"x", 3, 4, 5)
    assert cut and cut.is_known(last) and cut.has(TOPIC, 7, range(3, 4))
    batch.add_other(last)
    # Noted, so that the earlier note is not the latest one any more.
    assert cut.as_json() == cut_note({}, 2)
    assert not CutEntries([cut_note({}, 2), cut_note(FIVE)]) and CutEntries([cut_note({}, 2)]).as_json() == {}


def test_cut_entries_of_another_entry_are_unknown() -> None:
    cut = CutEntries([cut_note(FIVE)])
    assert cut and cut.is_known(received(b"x", 3, 2, 5))
    assert not cut.is_known(received(b"x", 3, 1, 5))
    assert not cut.is_known(received(b"x", 3, 2, 6))
    assert not cut.is_known(received(b"x", 3, 2, 5, published=PUBLISHED + 1))
    assert not cut.is_known(received(b"x", 3, 2, 5, ledger=8))
    assert not cut.is_known(received(b"x", 3, 2, 5, topic=OTHER))
    assert cut.has(TOPIC, 7, range(2, 4)) and not cut.has(TOPIC, 7, range(4, 9)) and not cut.has(TOPIC, 8, range(9))


def test_cut_entries_of_another_subscription_are_unknown() -> None:
    notes = [{**cut_note(FIVE), "subscription": ["pulsar://a:6650", name]} for name in ("one", "other")]
    assert CutEntries(notes, ["pulsar://a:6650", "one"])
    assert not CutEntries(notes, ["pulsar://b:6650", "one"]) and not CutEntries(notes)
    found = CutEntries(notes[1:], ["pulsar://a:6650", "one"])
    Batch(NONE, found).add(received(b"x", 3, 0, 5))
    assert found.as_json() == {
        **cut_note({TOPIC: [[7, 3, "1", 5, PUBLISHED]]}),
        "subscription": notes[0]["subscription"],
    }


def test_cut_entries_of_concurrent_batches_are_joined() -> None:
    notes = [
        cut_note({TOPIC: [[7, 3, bits, 5, PUBLISHED]]}, 4, {TOPIC: [7, mark]}) for bits, mark in (("1", 1), ("4", 2))
    ]
    cut = CutEntries([notes[0], cut_note({TOPIC: [[7, 3, "2", 5, PUBLISHED]]}, 3), notes[1]])
    assert [cut.is_known(received(b"x", 3, index, 5)) for index in range(5)] == [True, False, True, False, False]
    assert cut.as_json()["number"] == 5


@pytest.mark.parametrize("entry", [2, 0])
def test_cut_entries_forgotten_after_a_reset(entry: int) -> None:
    """Deliver what was acknowledged, up to entry 2, which only a cursor that was moved back does."""
    both = {**FIVE, OTHER: FIVE[TOPIC]}
    cut = CutEntries([cut_note(both, marks={TOPIC: [7, 2], OTHER: [7, 2]})])
    assert not cut.is_known(received(b"x", entry))
    assert not cut.is_known(received(b"x", 3, 2, 5)) and cut.is_known(received(b"x", 3, 2, 5, topic=OTHER))
    assert cut.as_json()["entries"] == {OTHER: FIVE[TOPIC]}


def test_cut_entries_behind_a_hole_stay_known() -> None:
    """Entry 2 was left unacknowledged (nack, or another consumer's), so that it comes before what goes on."""
    cut = CutEntries([cut_note(FIVE, marks={TOPIC: [7, 1]})])
    assert not cut.is_known(received(b"x", 2)) and cut.is_known(received(b"x", 3, 2, 5))
    assert cut.has(TOPIC, 7, range(2, 4)) and not cut.has(TOPIC, 7, range(1, 4))


@pytest.mark.parametrize(
    ("mark", "acknowledged", "known"),
    [
        ((7, 2), (7, 2), True),
        ((7, 2), (7, 3), True),
        ((7, 2), (7, 1), False),
        ((7, 2), (6, 9), False),
        ((7, -1), (6, 9), True),
    ],
    ids=["there", "ahead", "back", "back-a-ledger", "ledger-start"],
)
def test_cut_entries_by_mark_delete_position(mark: tuple[int, int], acknowledged: tuple[int, int], known: bool) -> None:
    cut = CutEntries([cut_note(FIVE, marks={TOPIC: list(mark)})])
    cut.check_position(TOPIC, MessageId(-1, *acknowledged, -1))
    cut.check_position(OTHER, MessageId(-1, 0, 0, -1))
    assert bool(cut) is known


def test_cut_entries_forgotten_late_keep_own_messages() -> None:
    cut = CutEntries([cut_note(FIVE, marks={TOPIC: [7, 2]})])
    batch = Batch(NONE, cut)
    batch.add(received(b"x", 3, 1, 5))
    assert not cut.is_known(received(b"x", 0))
    assert cut.as_json()["entries"] == {TOPIC: [[7, 3, "2", 5, PUBLISHED]]}


def test_cut_entries_keep_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_CUT", 2)
    cut = CutEntries([cut_note({TOPIC: [[7, entry, "1", 5, 0] for entry in (4, 1, 9)]})])
    assert [each[1] for each in cut.as_json()["entries"][TOPIC]] == [4, 9]
    assert (
        CutEntries(cut_note(FIVE))
        and not CutEntries(None)
        and not CutEntries([None])
        and not CutEntries(["damaged", {TOPIC: [[7, 4, "1", 5, 0]]}])
    )


# ---- acknowledging ---------------------------------------------------------------------------------------------------


class Consumer:
    """A consumer that keeps what is acknowledged."""

    def __init__(self, topic: str, *parts: str) -> None:
        self._topic, self._parts = topic, list(parts)
        self.acknowledged: list[list[MessageId]] = []

    def topic(self) -> str:
        return self._topic

    def topics(self) -> list[str]:
        return self._parts

    def acknowledge(self, ids: list[MessageId]) -> None:
        self.acknowledged.append(ids)


def test_acknowledge_by_owner_in_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_IDS", 3)
    one, other = Consumer(TOPIC), Consumer("many", "persistent://public/default/u")
    ranges = [
        {TOPIC: [[7, 0, 3]], "persistent://public/default/u": [[8, 1, 2, 3, 5]]},
        {f"{TOPIC}-partition-4": [[9, 0, 0]]},
    ]
    acknowledge([one, other], ranges)  # type: ignore[list-item]
    assert [len(each) for each in one.acknowledged] == [3, 2]
    flat = [(each.ledger_id(), each.entry_id(), each.partition()) for ids in one.acknowledged for each in ids]
    assert flat == [(7, 0, -1), (7, 1, -1), (7, 2, -1), (7, 3, -1), (9, 0, 4)]
    ((first, last),) = other.acknowledged
    assert [(each.entry_id(), each.batch_index(), each.batch_size()) for each in (first, last)] == [
        (1, 2, 5),
        (1, 3, 5),
    ]


def test_acknowledge_topic_of_nobody_is_returned() -> None:
    one, other = Consumer(TOPIC), "persistent://public/default/v"
    left = acknowledge([one], [{other: [[7, 0, 0]], TOPIC: [[8, 0, 1]]}, {other: [[7, 1, 1]]}])  # type: ignore[list-item]
    assert left == {other} and [len(each) for each in one.acknowledged] == [2]


# ---- messages as JSON ------------------------------------------------------------------------------------------------


def test_record_of_plain_message() -> None:
    assert record_of(received(b"ab", 3), "text") == {
        "value": "ab",
        "encoding": "text",
        "key": None,
        "properties": {},
        "event_time": None,
        "publish_time": "2023-11-14T22:13:20.000+00:00",
        "topic": TOPIC,
        "message_id": "7:3:-1:-1",
        "producer": "p",
        "sequence_id": 5,
    }


def test_record_of_keys_and_times() -> None:
    fields = {"partition_key": "/w==", "partition_key_b64_encoded": True, "ordering_key": b"o"}
    found = record_of(received(b"", properties={"a": "1"}, event_time=1, **fields), "text")
    assert (found["key"], found["key_encoding"], found["ordering_key"]) == ("/w==", "base64", "o")
    assert (found["properties"], found["event_time"]) == ({"a": "1"}, "1970-01-01T00:00:00.001+00:00")
    assert record_of(received(partition_key=""), "text")["key"] == ""
    assert record_of(received(event_time=(1 << 64) - 1), "text")["event_time"] == str((1 << 64) - 1)


def test_record_of_undecodable_value_raises() -> None:
    with pytest.raises(InvalidRecord, match="not JSON"):
        record_of(received(b"{"), "json")
