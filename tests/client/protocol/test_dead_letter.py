"""Dead-letter tracker, and the properties of a message's copy."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from pulsar_native.message_id import MessageId
from pulsar_native.protocol.dead_letter import (
    DeadLetterTracker,
    Verdict,
    dead_letter_topic,
    letter_properties,
    next_try,
    old_dead_letter_topic,
    old_retry_letter_topic,
    retry_letter_topic,
)
from pulsar_native.topic import TopicName

KEY = (1, 1)
entries = st.tuples(st.just(1), st.integers(0, 3))


@pytest.mark.proves("C149")
def test_delivered_last_remembered_over_limit_sent() -> None:
    dead: DeadLetterTracker[str] = DeadLetterTracker(2)
    assert [dead.delivered(KEY, count, "x") for count in (0, 1)] == [Verdict.GIVE] * 2
    assert dead.refused([KEY]) == ([], [KEY])
    assert dead.delivered(KEY, 2, "last") is Verdict.GIVE and len(dead) == 1
    assert dead.refused([(1, 0), KEY, (1, 2)]) == ([(KEY, "last")], [(1, 0), (1, 2)])
    assert dead.delivered((1, 5), 3, "missed") is Verdict.SEND


@pytest.mark.proves("C149", "C152")
def test_delivered_in_transit_dropped() -> None:
    dead: DeadLetterTracker[str] = DeadLetterTracker(1)
    dead.delivered(KEY, 1, "x")
    dead.refused([KEY])
    assert dead.refused([KEY]) == ([], [])
    assert dead.delivered(KEY, 0, "again") is Verdict.DROP
    dead.failed(KEY)
    assert dead.refused([KEY]) == ([], [KEY])
    assert dead.delivered(KEY, 2, "again") is Verdict.SEND
    dead.arrived(KEY, 0.0)
    # Its acknowledgement may be lost with a connection: it is given once more, and the entry never again.
    assert dead.delivered(KEY, 0, "again") is Verdict.ACKNOWLEDGE
    dead.on_seek()
    assert dead.delivered(KEY, 0, "sought") is Verdict.GIVE


@pytest.mark.proves("C152")
def test_reattached_keeps_in_transit() -> None:
    dead: DeadLetterTracker[str] = DeadLetterTracker(1)
    for number in (1, 2):
        dead.delivered((1, number), 1, "x")
    dead.refused([(1, 2)])
    dead.reattached(0.0)
    assert dead.refused([(1, 1), (1, 2)]) == ([], [(1, 1)])
    assert dead.delivered((1, 2), 0, "again") is Verdict.DROP


@pytest.mark.parametrize(("seconds", "verdict"), [(60.0, Verdict.ACKNOWLEDGE), (60.1, Verdict.GIVE)])
def test_reattached_forgets_stored_dead_letters(seconds: float, verdict: Verdict) -> None:
    dead: DeadLetterTracker[str] = DeadLetterTracker(1)
    dead.arrived(KEY, 5.0)
    dead.arrived((1, 2), 6.0)
    dead.reattached(5.0 + seconds)
    # Late redeliveries were asked for, as by a reset of the cursor; early ones are of lost acknowledgements.
    assert dead.delivered(KEY, 0, "again") is verdict
    assert dead.delivered((1, 2), 0, "again") is Verdict.ACKNOWLEDGE


def test_acknowledged_is_no_dead_letter() -> None:
    dead: DeadLetterTracker[str] = DeadLetterTracker(1)
    dead.delivered(KEY, 1, "x")
    dead.acknowledged(KEY)
    dead.acknowledged(KEY)
    assert dead.refused([KEY]) == ([], [KEY])


def test_dead_lettered_entries_bounded() -> None:
    dead: DeadLetterTracker[str] = DeadLetterTracker(1)
    for number in range(10_001):
        dead.arrived((1, number), 0.0)
    assert dead.delivered((1, 0), 0, "x") is Verdict.GIVE
    assert dead.delivered((1, 1), 0, "x") is Verdict.ACKNOWLEDGE


class DeadLettersModel(RuleBasedStateMachine):
    """Whatever happens, an entry is sent again only after it failed, and what is given out was never sent."""

    def __init__(self) -> None:
        super().__init__()
        self.dead: DeadLetterTracker[int] = DeadLetterTracker(2)
        self.state: dict[tuple[int, int], str] = {}
        self.stored: dict[tuple[int, int], float] = {}
        self.now = 0.0

    @rule(entry=entries, count=st.integers(0, 4))
    def delivered(self, entry: tuple[int, int], count: int) -> None:
        verdict = self.dead.delivered(entry, count, count)
        known = self.state.get(entry, "open")
        expected = {"sending": Verdict.DROP, "dead-lettered": Verdict.ACKNOWLEDGE}.get(known)
        if expected is None:
            expected = Verdict.SEND if count > 2 else Verdict.GIVE
            self.state[entry] = "sending" if count > 2 else "last" if count == 2 else "open"
        assert verdict is expected

    @rule(entry=entries)
    def refused(self, entry: tuple[int, int]) -> None:
        dead, others = self.dead.refused([entry])
        known = self.state.get(entry, "open")
        assert (len(dead), others) == ((1, []) if known == "last" else (0, [] if known == "sending" else [entry]))
        if dead:
            assert dead == [(entry, 2)]
            self.state[entry] = "sending"

    @rule(entry=entries, well=st.booleans())
    def settled(self, entry: tuple[int, int], well: bool) -> None:
        if self.state.get(entry) == "sending":
            if well:
                self.dead.arrived(entry, self.now)
            else:
                self.dead.failed(entry)
            self.state[entry] = "dead-lettered" if well else "open"
            self.stored[entry] = self.now

    @rule(entry=entries)
    def acknowledged(self, entry: tuple[int, int]) -> None:
        self.dead.acknowledged(entry)
        if self.state.get(entry) == "last":
            self.state[entry] = "open"

    @rule(passed=st.sampled_from([0.0, 30.0, 60.0, 61.0]))
    def reattached(self, passed: float) -> None:
        self.now += passed
        self.dead.reattached(self.now)
        for entry, state in self.state.items():
            if state == "last" or (state == "dead-lettered" and self.now - self.stored[entry] > 60):
                self.state[entry] = "open"


TestDeadLetters = pytest.mark.proves("C149", "C152")(DeadLettersModel.TestCase)


# --- names and properties -----------------------------------------------------------------------------------------


@pytest.mark.proves("C106")
def test_topic_names() -> None:
    name = TopicName.parse("orders")
    assert dead_letter_topic(name.full, "sub") == "persistent://public/default/orders-sub-DLQ"
    assert retry_letter_topic(name.full, "sub") == "persistent://public/default/orders-sub-RETRY"
    assert old_dead_letter_topic(name, "sub") == "persistent://public/default/sub-DLQ"
    assert old_retry_letter_topic(TopicName.parse("non-persistent://a/b/c"), "sub") == "persistent://a/b/sub-RETRY"


@pytest.mark.proves("C150")
def test_letter_properties_name_first_origin() -> None:
    single = letter_properties({"a": "1"}, topic="t", message_id=MessageId(2, 5, 7, -1), subscription="sub")
    assert single == {
        "a": "1",
        "REAL_TOPIC": "t",
        "REAL_SUBSCRIPTION": "sub",
        "ORIGIN_MESSAGE_ID": "5:7:2",
        "ORIGIN_MESSAGE_IDY_TIME": "5:7:2",
    }
    assert letter_properties(single, topic="u", message_id=MessageId(-1, 9, 9), subscription="other") == single
    batched = letter_properties({}, topic="t", message_id=MessageId(-1, 5, 7, 3), subscription="sub")
    assert batched["ORIGIN_MESSAGE_ID"] == "5:7:-1:3"
    chunked = MessageId(-1, 5, 9, first_chunk=MessageId(-1, 5, 7))
    in_chunks = letter_properties({}, topic="t", message_id=chunked, subscription="sub")
    assert in_chunks["ORIGIN_MESSAGE_ID"] == "5:7:-1;5:9:-1"


@pytest.mark.proves("C151")
@pytest.mark.parametrize(
    ("before", "times", "dead"),
    [(None, 1, False), ("1", 2, False), ("2", 3, True), ("99", 100, True), ("x", 1, False), ("-1", 1, False),
     ("", 1, False), ("\u0663", 1, False), ("9" * 40, 1, False)],
)  # fmt: skip
def test_next_try_counts_in_properties(before: str | None, times: int, dead: bool) -> None:
    properties = {"own": "1"} if before is None else {"own": "1", "RECONSUMETIMES": before}
    again = next_try(properties, 1500, 2)
    assert again.properties == {"own": "1", "RECONSUMETIMES": str(times), "DELAY_TIME": "1500"}
    assert again.is_dead is dead
