"""Record of publications: digests with checkpoints, comparison, generations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.jobs.publication import (
    ContentChanged,
    ContentDigest,
    ExpectedContent,
    Publication,
    merged,
    new_record,
    restarted,
    shown_ids,
)
from pulsar_native.jobs.sources import MessageParts
from support.jobs import MemoryState

PLAIN = MessageParts(None, None, None, None, None, None)


def digest_of(*payloads: bytes | None, schema: str = "s", parts: MessageParts = PLAIN) -> ContentDigest:
    """Return the digest of messages."""
    digest = ContentDigest(schema)
    for payload in payloads:
        digest.add(payload, parts)
    return digest


def as_record(digest: ContentDigest, count: int | None) -> dict[str, Any]:
    """Return the part of a record that is compared, as the state returns it."""
    found: dict[str, Any] = json.loads(json.dumps({"checkpoints": merged([], digest.with_end()), "count": count}))
    return found


# ---- digest ----------------------------------------------------------------------------------------------------------


def test_digest_checkpoints_at_powers_of_two() -> None:
    digest = digest_of(*[b"x"] * 9)
    assert list(digest.checkpoints) == [1, 2, 4, 8]
    assert list(digest.with_end()) == [1, 2, 4, 8, 9]
    assert digest_of().with_end() == {}


@pytest.mark.parametrize(
    "other",
    [
        digest_of(b"ab", b"", b"c"),
        digest_of(b"a", b"bc"),
        digest_of(b"", b"abc"),
        digest_of(None, b"ab", b"c"),
        digest_of(b"c", b"ab"),
        digest_of(b"ab", b"c", schema="t"),
        digest_of(b"ab", b"c", parts=PLAIN._replace(key="k")),
        digest_of(b"ab", b"c", parts=PLAIN._replace(key=b"k")),
        digest_of(b"ab", b"c", parts=PLAIN._replace(ordering_key="k")),
        digest_of(b"ab", b"c", parts=PLAIN._replace(event_time=1)),
        digest_of(b"ab", b"c", parts=PLAIN._replace(deliver_at=1)),
        digest_of(b"ab", b"c", parts=PLAIN._replace(properties={"a": "1"})),
    ],
)
def test_digest_differs_for_every_difference(other: ContentDigest) -> None:
    assert digest_of(b"ab", b"c").value() != other.value()


def test_digest_ignores_order_of_properties() -> None:
    one, other = ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    assert digest_of(b"x", parts=PLAIN._replace(properties=one)).value() == (
        digest_of(b"x", parts=PLAIN._replace(properties=other)).value()
    )


# ---- comparison ------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=40), st.data())
def test_expected_content_finds_any_change(payloads: list[bytes], data: st.DataObject) -> None:
    record = as_record(digest_of(*payloads), len(payloads))
    place = data.draw(st.integers(0, len(payloads) - 1))
    change = data.draw(st.sampled_from(["none", "other", "fewer", "more"]))
    changed = {
        "none": payloads,
        "other": [*payloads[:place], payloads[place] + b"!", *payloads[place + 1 :]],
        "fewer": payloads[:-1],
        "more": [*payloads, b""],
    }[change]
    expected, digest = ExpectedContent(record), ContentDigest("s")

    def compare() -> None:
        for payload in changed:
            digest.add(payload, PLAIN)
            expected.check(digest)
        expected.end(digest)

    if change == "none":
        compare()
        assert expected.is_behind(len(payloads))
    else:
        with pytest.raises(ContentChanged):
            compare()
        if change == "other":
            # Found at the first checkpoint behind it, not later.
            assert digest.count <= max(1, 2 * place) or digest.count == place + 1


@pytest.mark.parametrize(
    ("payloads", "words"),
    [
        ([b"0", b"1", b"2", b"3", b"?"], "message 4 is not the one published before"),
        ([b"0", b"?", b"2", b"3", b"4"], "message 1 is not"),
        ([b"0", b"1", b"2", b"?", b"4"], "one of the messages 2 to 3 is not"),
        ([b"0", b"1"], "there are 2 messages, fewer than the 5 published before"),
        ([b"0", b"1", b"2", b"3", b"4", b"5"], "there are more messages than the 5 published before"),
    ],
)
def test_expected_content_names_the_place(payloads: list[bytes], words: str) -> None:
    expected = ExpectedContent(as_record(digest_of(b"0", b"1", b"2", b"3", b"4"), 5))
    digest = ContentDigest("s")

    def compare() -> None:
        for payload in payloads:
            digest.add(payload, PLAIN)
            expected.check(digest)
        expected.end(digest)

    with pytest.raises(ContentChanged, match=words):
        compare()


def test_expected_content_of_killed_try_may_go_on() -> None:
    expected = ExpectedContent(as_record(digest_of(b"0", b"1"), None))
    digest = digest_of(b"0")
    expected.check(digest)
    assert not expected.is_behind(1)
    for payload in (b"1", b"2", b"3"):
        digest.add(payload, PLAIN)
        expected.check(digest)
    expected.end(digest)
    assert expected.is_behind(2) and not expected.is_behind(1)


# ---- generations -----------------------------------------------------------------------------------------------------


def record(name: str, **fields: Any) -> dict[str, Any]:
    """Return a record of a try."""
    return new_record(name, 0, True, None) | fields


def test_publication_continues_its_own_record() -> None:
    state = MemoryState()
    first = Publication(state, "me", "t")
    assert (first.number, first.record) == (1, None)
    first.begin(record("a", phase="failed"))
    again = Publication(state, "me", "t")
    assert again.number == 1 and again.record is not None and again.record["phase"] == "failed"
    again.begin(record("a", phase="stored"))
    last = Publication(state, "me", "t")
    assert last.number == 1 and last.record is not None and last.record["phase"] == "stored"


@pytest.mark.parametrize(("identity", "topic", "version"), [("you", "t", 1), ("me", "u", 1), ("me", "t", 0)])
def test_publication_of_others_is_not_continued(identity: str, topic: str, version: int) -> None:
    state = MemoryState()
    Publication(state, "me", "t").begin(record("a"))
    state.set({**(state.get() or {}), "version": version})
    assert Publication(state, identity, topic).record is None


def test_publication_next_generation_shortens_earlier() -> None:
    state = MemoryState()
    made = Publication(state, "me", "t")
    made.begin(record("a", stored=3, checkpoints=[[1, "x"]]))
    made.next_generation("a")
    assert (made.number, made.record) == (2, None)
    made.begin(record("a/2"))
    kept = (state.get() or {})["generations"]
    assert kept[0] == {"producer_name": "a", "phase": "sending", "stored": 3}
    assert kept[1]["producer_name"] == "a/2"
    assert Publication(state, "me", "t").number == 2


def test_publication_name_in_use_takes_another() -> None:
    state = MemoryState()
    made = Publication(state, "me", "t")
    for number, name in ((2, "a"), (3, "a/2")):
        made.next_generation(name)
        assert (made.number, made.record) == (number, None)
    made.begin(record("a/3"))
    kept = [(each["producer_name"], each["phase"]) for each in (state.get() or {})["generations"]]
    assert kept == [("a", "unknown"), ("a/2", "unknown"), ("a/3", "sending")]


def test_publication_changed_without_record_is_second() -> None:
    made = Publication(MemoryState(), "me", "t")
    made.next_generation("a")
    assert (made.number, made.record) == (2, None)


def test_new_record_continues_the_earlier_try() -> None:
    earlier = record("a", stored=4, last=9, ids=["7:1:0:0"], checkpoints=[[1, "x"]], count=12, file="f")
    made = new_record("a", 2, False, earlier)
    assert (made["stored"], made["last"], made["ids"], made["count"]) == (4, 9, ["7:1:0:0"], 12)
    assert (made["checkpoints"], made["file"], made["phase"]) == ([[1, "x"]], None, "sending")
    assert (made["partitions"], made["deduplicated"]) == (2, False)


def test_restarted_record_has_content_and_no_progress() -> None:
    earlier = record("a", phase="sending", stored=4, last=9, ids=["7:1:0:0"], checkpoints=[[1, "x"]], count=12)
    made = restarted(earlier)
    assert made == {**earlier, "phase": "failed", "stored": 0, "last": -1, "ids": []}
    assert new_record("a", 2, True, made)["checkpoints"] == [[1, "x"]]


def test_merged_checkpoints_in_order_of_number() -> None:
    assert merged([[2, "b"], [16, "e"]], {1: "a", 4: "c", 2: "b"}) == [[1, "a"], [2, "b"], [4, "c"], [16, "e"]]


def test_shown_ids_limited() -> None:
    many = [str(number) for number in range(50)]
    assert shown_ids(many[:3], many[3:]) == many[:20]
