"""Ack grouping: nothing acknowledged too early, nothing forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pulsar_native._message_fields import MessageFields, PendingAcks
from pulsar_native.protocol import redelivered
from pulsar_native.protocol.ack_grouping import AckGroup, bits_of, words_of
from pulsar_native.wire.commands import AckItem

Key = tuple[int, int]
Position = tuple[int, int, int]

# The topic of the model: its entries in order, with their sizes (0 = one message that is in no batch).
SIZES: dict[Key, int] = {(1, 0): 3, (1, 1): 0, (1, 2): 70, (3, 0): 1, (3, 1): 5, (3, 2): 0}
KEYS = list(SIZES)


def places(key: Key) -> list[Position]:
    """Return the messages of an entry."""
    return [(*key, index) for index in range(max(SIZES[key], 1))]


def up_to(key: Key, index: int) -> set[Position]:
    """Return every message up to one, or up to the end of an entry with index -1."""
    last = (*key, index if index >= 0 else 999)
    return {place for other in KEYS for place in places(other) if place <= last}


class BrokerModel:
    """What the broker has as acknowledged; acknowledgements of a batch's messages merge."""

    def __init__(self) -> None:
        self.done: set[Position] = set()

    def take(self, items: Iterable[AckItem], cumulative: AckItem | None) -> None:
        for ledger, entry, words in items:
            self._entry((ledger, entry), words)
        if cumulative is not None:
            ledger, entry, words = cumulative
            self.done |= up_to((ledger, entry - 1), -1)
            self._entry((ledger, entry), words)

    def _entry(self, key: Key, words: object) -> None:
        if key not in SIZES:
            return  # an entry before the ledger's first, which stands for the end of the ledger before
        open_bits = 0 if words is None else bits_of(words)  # type: ignore[arg-type]
        self.done |= {place for place in places(key) if not open_bits >> place[2] & 1}


keys = st.sampled_from(KEYS)


class AckModel(RuleBasedStateMachine):
    """An application that acknowledges, a connection that may lose frames, and a broker."""

    @initialize(batch_index=st.booleans())
    def start(self, batch_index: bool) -> None:
        self.batch_index = batch_index
        self.group = AckGroup(batch_index=batch_index)
        self.broker = BrokerModel()
        self.acked: set[Position] = set()  # what the application acknowledged
        self.due: set[Position] = set()  # of that, what the broker must have at the next flush
        self.sent_up_to: Key | None = None

    def _index(self, data: st.DataObject, key: Key) -> int:
        return data.draw(st.integers(0, SIZES[key] - 1)) if SIZES[key] else -1

    @rule(key=keys, data=st.data())
    def acknowledge(self, key: Key, data: st.DataObject) -> None:
        index = self._index(data, key)
        self._acknowledge(key, index, SIZES[key])
        if self.batch_index:
            self.due.add((*key, max(index, 0)))

    @rule(key=keys)
    def acknowledge_all_of_a_batch(self, key: Key) -> None:
        for index in range(SIZES[key]) or (-1,):
            complete = self._acknowledge(key, index, SIZES[key])
        assert complete
        self.due |= set(places(key))

    @rule(key=keys)
    def acknowledge_a_whole_entry(self, key: Key) -> None:
        known = self.group.partial(key)
        pending: PendingAcks = PendingAcks(lambda _message: None)
        entry = SimpleNamespace(ledger_id=key[0], entry_id=key[1], batch_size=SIZES[key])
        for index in range(SIZES[key]) or (-1,):
            pending.add(MessageFields(entry, index, 0, 0, 0))
        left = self.group.add_taken(pending)
        assert bool(left) is (known is not None)
        if not left:
            self.acked |= set(places(key))
            self.due |= set(places(key))

    @rule(key=keys, data=st.data())
    def acknowledge_by_an_id_without_size(self, key: Key, data: st.DataObject) -> None:
        self._acknowledge(key, self._index(data, key), 0)

    def _acknowledge(self, key: Key, index: int, size: int) -> bool:
        complete = self.group.add(key, index, size)
        self.acked.add((*key, max(index, 0)))
        if complete:
            assert set(places(key)) <= self.acked
            self.due |= set(places(key))
        return complete

    @rule(key=keys, data=st.data())
    def acknowledge_cumulatively(self, key: Key, data: st.DataObject) -> None:
        index = self._index(data, key)
        self.group.add_cumulative(key, index, SIZES[key])
        self.acked |= up_to(key, index)
        self.due |= up_to(key, index)

    @rule(key=keys, data=st.data())
    def acknowledge_cumulatively_by_an_id_without_size(self, key: Key, data: st.DataObject) -> None:
        index = self._index(data, key)
        self.group.add_cumulative(key, index, 0)
        self.acked |= up_to(key, index)

    @rule()
    def flush(self) -> None:
        items, cumulative = self.group.drain()
        self.broker.take(items, cumulative)
        assert not len(self.group)
        if cumulative is not None and cumulative[2] is None:
            self.sent_up_to = cumulative[:2]
        assert self.due <= self.broker.done

    @rule()
    def flush_into_a_dead_connection(self) -> None:
        items, cumulative = self.group.drain()
        self.group.put_back(items, cumulative)

    @rule()
    def reattach(self) -> None:
        self.group.reattached()
        self.sent_up_to = None

    @precondition(lambda self: not self.acked)
    @rule(key=st.sampled_from([key for key in KEYS if SIZES[key] > 1]), data=st.data())
    def deliver_a_batch_partly_acknowledged(self, key: Key, data: st.DataObject) -> None:
        bits = data.draw(st.integers(1, (1 << SIZES[key]) - 1))
        self.group.add_entry(key, bits, SIZES[key])
        before = {place for place in places(key) if not bits >> place[2] & 1}
        self.acked |= before
        self.broker.done |= before

    @rule()
    def seek(self) -> None:
        self.group.clear()
        self.acked.clear()
        self.due.clear()
        self.broker.done.clear()
        self.sent_up_to = None
        assert not len(self.group)
        assert not any(self.group.covers(key) or self.group.partial(key) is not None for key in KEYS)

    @invariant()
    def the_broker_is_never_told_too_much(self) -> None:
        if hasattr(self, "broker"):
            assert self.broker.done <= self.acked

    @invariant()
    def only_what_is_done_is_taken_for_a_duplicate(self) -> None:
        if not hasattr(self, "group"):
            return
        for key in KEYS:
            if self.group.covers(key):
                assert set(places(key)) <= self.acked
                assert key in self.group.complete or key <= self.group.covered_to
            if self.sent_up_to is not None and key <= self.sent_up_to:
                assert self.group.covers(key)
            bits = self.group.partial(key)
            if bits is not None:
                assert {place for place in places(key) if not bits >> place[2] & 1} <= self.acked

    def teardown(self) -> None:
        if hasattr(self, "group"):
            self.flush()


TestAckGroup = pytest.mark.proves("C112", "C128", "C135", "C136")(AckModel.TestCase)


# --- one by one -------------------------------------------------------------------------------------------------


@pytest.mark.proves("C112")
@given(st.integers(0, (1 << 200) - 1))
def test_words_of(bits: int) -> None:
    words = words_of(bits, 200)
    assert bits_of(words) == bits
    assert all(-(1 << 63) <= word < 1 << 63 for word in words)
    assert not words or words[-1]


@pytest.mark.proves("C112")
def test_bits_of_words_of_broker() -> None:
    # 0-2 of 10 acknowledged; 0 and 69 of 70 acknowledged.
    assert words_of(0x3F8, 10) == [0x3F8]
    assert words_of(((1 << 70) - 1) & ~1 & ~(1 << 69), 70) == [-2, 0x1F]
    assert words_of(0, 10) == []


def test_cumulative_only_highest_sent() -> None:
    group = AckGroup(batch_index=False)
    for entry in (3, 7, 5):
        group.add_cumulative((1, entry), -1, 0)
    assert len(group) == 1
    assert group.drain() == ([], (1, 7, None))
    group.add_cumulative((1, 6), -1, 0)
    group.add_cumulative((1, 7), -1, 0)
    assert group.drain() == ([], None)
    assert group.covers((1, 7)) and not group.covers((1, 8))


def test_cumulative_same_batch_higher_index_then_entry() -> None:
    group = AckGroup(batch_index=False)
    group.add_cumulative((1, 5), 3, 10)
    group.add_cumulative((1, 5), 2, 10)
    assert group.drain() == ([], (1, 5, [0b1111110000]))
    group.add_cumulative((1, 5), 7, 10)
    group.add_cumulative((1, 5), 9, 10)
    group.add_cumulative((1, 5), 8, 10)
    assert group.drain() == ([], (1, 5, None))


@pytest.mark.proves("C136")
def test_cumulative_in_batch_keeps_rest() -> None:
    group = AckGroup(batch_index=False)
    group.add_cumulative((1, 5), 3, 10)
    assert group.covers((1, 4)) and not group.covers((1, 5))
    assert group.partial((1, 5)) == 0b1111110000
    group.drain()
    assert group.covers((1, 4)) and not group.covers((1, 5))
    assert group.partial((1, 5)) == 0b1111110000


def test_cumulative_covers_individual() -> None:
    group = AckGroup(batch_index=True)
    group.add((1, 1), -1, 0)
    group.add((1, 2), 0, 3)
    group.add((1, 9), -1, 0)
    group.add_cumulative((1, 4), -1, 0)
    assert group.drain() == ([(1, 9, None)], (1, 4, None))


def test_add_repeated_entry_sent_once() -> None:
    group = AckGroup(batch_index=False)
    for _ in range(3):
        assert group.add((1, 1), -1, 0)
    assert group.drain() == ([(1, 1, None)], None)
    assert group.drain() == ([], None)


@pytest.mark.proves("C135")
def test_add_last_message_sends_batch() -> None:
    group = AckGroup(batch_index=False)
    assert not group.add((1, 1), 0, 3)
    assert not group.add((1, 1), 2, 3)
    assert not group.add((1, 1), 2, 3)
    assert (len(group), group.drain(), group.partial((1, 1))) == (0, ([], None), 0b010)
    assert group.add((1, 1), 1, 3)
    assert group.drain() == ([(1, 1, None)], None)
    assert group.partial((1, 1)) is None


@pytest.mark.proves("C112")
def test_add_batch_index_sends_words() -> None:
    group = AckGroup(batch_index=True)
    group.add((1, 1), 0, 3)
    assert group.drain() == ([(1, 1, [0b110])], None)
    assert group.drain() == ([], None)
    group.add((1, 1), 1, 3)
    assert group.drain() == ([(1, 1, [0b100])], None)
    group.add((1, 1), 2, 3)
    assert group.drain() == ([(1, 1, None)], None)


def test_taken_counts_each_message_once() -> None:
    group = AckGroup(batch_index=True)
    group.add((1, 1), 0, 4)
    group.add((1, 1), 1, 4)
    group.drain()
    assert group.taken == 2
    group.add((1, 1), 2, 4)
    group.drain()
    assert group.taken == 3


def test_add_unknown_batch_size_never_complete() -> None:
    # As the official client writes them: acknowledging 0, 1 and 2 of ten must not acknowledge the other seven.
    group = AckGroup(batch_index=True)
    for index in range(3):
        assert not group.add((1, 1), index, 0)
    assert group.drain() == ([], None)
    # Its size is learnt from a message received: now it can be told.
    assert not group.add((1, 1), 3, 10)
    assert group.drain() == ([(1, 1, [0b1111110000])], None)


@pytest.mark.proves("C112")
def test_put_back_unless_newer() -> None:
    group = AckGroup(batch_index=True)
    group.add((1, 1), -1, 0)
    group.add((1, 2), 0, 3)
    group.add((1, 3), 0, 3)
    items, cumulative = group.drain()
    group.add((1, 2), 1, 3)
    group.add((1, 3), -1, 0)
    group.put_back(items, cumulative)
    assert sorted(group.drain()[0]) == [(1, 1, None), (1, 2, [0b100]), (1, 3, None)]
    group.add_cumulative((1, 5), 3, 10)
    group.put_back(*group.drain())
    assert group.drain() == ([], (1, 5, [0b1111110000]))


def test_reattached_follows_broker() -> None:
    group = AckGroup(batch_index=False)
    group.add_cumulative((1, 9), -1, 0)
    group.drain()
    group.reattached()
    # Somebody moved the subscription back: what comes is wanted, and can be acknowledged again.
    assert not group.covers((1, 3))
    group.add_cumulative((1, 3), -1, 0)
    assert group.drain() == ([], (1, 3, None))


def test_reattached_others_acks_may_reopen() -> None:
    """In a transaction that was aborted since: it is delivered anew, and must be neither hidden nor taken along."""
    group = AckGroup(batch_index=True)
    group.add_entry((1, 1), 0b0111, 4)
    assert group.open_here((1, 1)) == -1
    group.add((1, 1), 0, 4)
    assert group.open_here((1, 1)) & 0b1111 == 0b1110  # type: ignore[operator]
    group.add_entry((1, 1), 0b1111, 4)
    assert group.partial((1, 1)) == 0b1110


def test_own_acks_reported_back_stay_own() -> None:
    group = AckGroup(batch_index=True)
    group.add_entry((1, 1), 0b1111, 4)
    group.add((1, 1), 0, 4)
    # Redelivered after a negative acknowledgement, without what the broker knows to be acknowledged here ...
    group.add_entry((1, 1), 0b1110, 4)
    group.add((1, 1), 1, 4)
    # ... and whole after an unload, at which the broker forgets it.
    group.add_entry((1, 1), 0b1111, 4)
    assert group.partial((1, 1)) == 0b1100
    # Complete now: no message counts as acknowledged by others.
    group.add((1, 1), 2, 4)
    assert group.add((1, 1), 3, 4)
    assert group.drain()[0] == [(1, 1, None)]


@pytest.mark.proves("C112")
def test_add_complete_batch_excludes_others() -> None:
    group = AckGroup(batch_index=False)
    group.add_entry((1, 1), 0b0011, 4)
    assert not group.add((1, 1), 0, 4)
    assert group.add((1, 1), 1, 4)
    group.add((2, 2), -1, 0)
    items, _ = group.drain()
    assert items == [(1, 1, [0b1100]), (2, 2, None)]
    # And so again after a lost connection.
    group.put_back(items, None)
    assert group.drain()[0] == items
    assert group.drain()[0] == []


def test_reattached_by_entry_keeps_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redelivered, "KEPT", 1)
    group = AckGroup(batch_index=True)
    for entry in range(4):
        group.add((1, entry), 0, 2)
    group.reattached(by_entry=True)
    assert group.drain()[0] == [(1, entry, [0b10]) for entry in range(4)]
    group.reattached(by_entry=True)
    assert [group.partial((1, entry)) for entry in range(4)] == [None, None, None, 0b10]


@pytest.mark.parametrize("batch_index", [False, True])
def test_redelivered_entries_of_others_are_bounded(batch_index: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redelivered, "KEPT", 3)
    group = AckGroup(batch_index=batch_index)
    for entry in range(10):
        group.add_entry((1, entry), 0b111, 3)
        group.add((1, entry), 0, 3)
        group.drain()
        # Acknowledged here in part, and the rest by another consumer; the first entry comes back.
        group.redelivered([(1, entry), (2, entry)])
        group.add_entry((1, 0), 0b111, 3)
    assert [entry for entry in range(10) if group.partial((1, entry)) is not None] == [0, 7, 8, 9]
    group.add((1, 0), 1, 3)
    assert group.add((1, 0), 2, 3)
    assert group.drain()[0] == [(1, 0, None)]
