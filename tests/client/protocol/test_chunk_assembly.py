"""Chunk assembly: interleaved, resent, redelivered, missing, too many, too old; in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.protocol import redelivered
from pulsar_native.protocol.chunk_assembly import ChunkAssembly
from pulsar_native.wire.entry import ParsedEntry
from support.entry_bytes import PUBLISHED, metadata_of

pytestmark = pytest.mark.proves("C80")


class Topic:
    """Entries in a row, handed to an assembly: `send("a", 0, of=3)` is chunk 0 of the message with uuid a."""

    def __init__(self, **options: Any) -> None:
        self.assembly = ChunkAssembly(**options)
        self.now = 100.0
        self.wall = PUBLISHED
        self.stored: list[tuple[str, int, int]] = []
        self.whole: list[tuple[str, bytes]] = []

    def send(self, uuid: str, *chunk_ids: int, of: int) -> None:
        for chunk_id in chunk_ids:
            self.stored.append((uuid, chunk_id, of))
            self.deliver(len(self.stored) - 1)

    def deliver(self, entry: int) -> None:
        uuid, chunk_id, count = self.stored[entry]
        metadata = metadata_of(uuid=uuid, chunk_id=chunk_id, num_chunks_from_msg=count)
        piece = memoryview(b"%s%d " % (uuid.encode(), chunk_id))
        message = self.assembly.add((7, entry), ParsedEntry(metadata, piece), piece, self.now, self.wall)
        if message is not None:
            self.whole.append((uuid, message.body()))
            self.assembly.give(message)

    def given(self, entry: int) -> list[int]:
        return [number for _, number in self.assembly.redelivered([(7, entry)])]

    @property
    def acknowledged(self) -> list[int]:
        return [entry for _, entry in self.assembly.acknowledge]

    @property
    def unusable(self) -> list[int]:
        return [entry for _, entry in self.assembly.unusable]


def test_add_interleaved_messages_complete_by_last_chunk() -> None:
    topic = Topic()
    topic.send("a", 0, of=3)
    topic.send("b", 0, of=2)
    topic.send("a", 1, of=3)
    topic.send("b", 1, of=2)
    assert len(topic.assembly) == 1
    topic.send("a", 2, of=3)
    assert topic.whole == [("b", b"b0 b1 "), ("a", b"a0 a1 a2 ")]
    assert (topic.given(3), topic.given(4), not topic.assembly) == ([1, 3], [0, 2, 4], True)
    assert (topic.acknowledged, topic.unusable) == ([], [])


def test_add_restarted_message_supersedes_first_attempt() -> None:
    topic = Topic()
    topic.send("a", 0, 1, of=3)
    topic.send("a", 0, 1, 2, of=3)
    assert topic.whole == [("a", b"a0 a1 a2 ")] and topic.given(4) == [2, 3, 4]
    assert (topic.acknowledged, topic.unusable) == ([0, 1], [])


def test_add_resent_chunk_superseded() -> None:
    topic = Topic()
    topic.send("a", 0, 1, 2, 1, 2, 3, of=4)
    assert topic.whole == [("a", b"a0 a1 a2 a3 ")] and topic.given(5) == [0, 1, 2, 5]
    assert (topic.acknowledged, topic.unusable) == ([3, 4], [])


def test_add_resent_chunk_of_complete_message_superseded() -> None:
    topic = Topic()
    topic.send("a", 0, 1, 2, 1, 2, of=3)
    assert len(topic.whole) == 1 and (topic.acknowledged, topic.unusable) == ([3, 4], [])
    # Those of the message itself, when it is to be delivered again, are not.
    topic.deliver(2)
    assert (topic.acknowledged, topic.unusable) == ([3, 4], [2])
    topic.deliver(0)
    topic.deliver(1)
    topic.deliver(2)
    assert topic.whole == [("a", b"a0 a1 a2 ")] * 2
    for number in range(100):
        topic.send(f"b{number}", 0, 1, of=2)
    topic.send("a", 2, of=3)
    assert topic.unusable == [2, len(topic.stored) - 1]


def test_add_redelivered_entry_neither_used_nor_acked() -> None:
    topic = Topic()
    topic.send("a", 0, 1, of=3)
    topic.deliver(0)
    topic.deliver(1)
    topic.send("a", 2, of=3)
    assert topic.whole == [("a", b"a0 a1 a2 ")] and topic.given(2) == [0, 1, 2]
    assert (topic.acknowledged, topic.unusable) == ([], [])


def test_add_orphan_chunk_unacked_until_expiry() -> None:
    topic = Topic(expiry=60.0, note_orphans=True)
    topic.assembly.keep_all()
    topic.send("a", 1, 2, of=3)
    topic.send("b", 0, 2, of=3)
    assert (topic.whole, topic.acknowledged) == ([], []) and sorted(topic.unusable) == [0, 1, 2, 3]
    assert topic.assembly.orphans == {"a": (7, 1), "b": (7, 3)}
    late = Topic(expiry=60.0)
    late.wall = PUBLISHED + 60_001
    late.send("a", 1, of=3)
    assert (late.acknowledged, late.unusable) == ([0], [])


@pytest.mark.proves("C114", "C115")
@pytest.mark.parametrize("auto_ack", [True, False])
def test_add_over_max_pending_drops_oldest(auto_ack: bool) -> None:
    topic = Topic(max_pending=10, auto_ack_oldest=auto_ack)
    names = [f"p{number}" for number in range(12)]
    for name in names:
        topic.send(name, 0, of=2)
    assert len(topic.assembly) == 10
    for name in names:
        topic.send(name, 1, of=2)
    assert [uuid for uuid, _ in topic.whole] == names[2:]
    assert (topic.acknowledged if auto_ack else topic.unusable)[:2] == [0, 1]
    assert topic.unusable[-2:] == [12, 13]
    unlimited = Topic(max_pending=0)
    for name in names:
        unlimited.send(name, 0, of=2)
    assert len(unlimited.assembly) == 12


@pytest.mark.proves("C116")
def test_expire_incomplete_message() -> None:
    topic = Topic(expiry=60.0)
    assert topic.assembly.next_expiry() is None
    topic.send("a", 0, of=3)
    topic.now += 30
    topic.send("b", 0, of=3)
    topic.now += 20
    topic.send("a", 1, of=3)
    assert topic.assembly.next_expiry() == 190.0
    assert topic.assembly.expire(189.9) == 0
    assert topic.assembly.expire(190.0) == 1 and topic.acknowledged == [1]
    topic.send("a", 2, of=3)
    assert topic.whole == [("a", b"a0 a1 a2 ")] and topic.assembly.next_expiry() is None
    never = Topic(expiry=0.0)
    never.send("a", 0, of=2)
    assert never.assembly.next_expiry() is None and never.assembly.expire(10.0**9) == 0


@pytest.mark.proves("C116")
def test_expire_counts_from_restarted_ages() -> None:
    topic = Topic(expiry=60.0)
    topic.send("a", 0, of=2)
    topic.send("b", 0, of=2)
    topic.assembly.restart_ages(150.0)
    assert topic.assembly.next_expiry() == 210.0 and topic.assembly.expire(209.9) == 0
    assert topic.assembly.expire(210.0) == 2 and topic.acknowledged == [0, 1]


def test_pop_entries_acks_all_chunks_once() -> None:
    topic = Topic()
    topic.send("a", 0, 1, of=2)
    assert topic.assembly.delivered
    assert topic.assembly.pop_entries((7, 1)) == ((7, 0), (7, 1))
    assert topic.assembly.pop_entries((7, 1)) == () and not topic.assembly.delivered


def test_safe_position_keeps_later_messages_chunks() -> None:
    topic = Topic()
    topic.send("a", 0, of=2)  # 0
    topic.send("b", 0, of=2)  # 1
    topic.send("a", 1, of=2)  # 2
    assert topic.assembly.safe_position((7, 2)) == (7, 0)
    topic.send("b", 1, of=2)  # 3: complete, not acknowledged
    assert topic.assembly.safe_position((7, 2)) == (7, 0)
    assert topic.assembly.safe_position((7, 3)) == (7, 3) and not topic.assembly.delivered
    assert topic.assembly.safe_position((7, 9)) == (7, 9)


def test_clear_and_drop_incomplete() -> None:
    topic = Topic()
    topic.send("a", 0, 1, of=2)
    topic.send("b", 0, of=2)
    topic.assembly.drop_incomplete()
    assert not topic.assembly and topic.assembly.delivered
    topic.assembly.clear()
    assert not topic.assembly.delivered


@given(st.data())
def test_any_order_of_chunks_delivers_each_message_once(data: st.DataObject) -> None:
    """Producers send chunks in order; deliveries may jump back to any earlier entry at any time."""
    counts = data.draw(st.lists(st.integers(2, 5), min_size=1, max_size=5))
    left = {f"m{index}": list(range(count)) for index, count in enumerate(counts)}
    topic = Topic(max_pending=0)
    while left:
        uuid = data.draw(st.sampled_from(sorted(left)))
        chunk_id = left[uuid].pop(0)
        if not left[uuid]:
            del left[uuid]
        count = counts[int(uuid[1:])]
        topic.send(uuid, chunk_id, of=count)
        known = {entry for message in topic.assembly._pending.values() for _, entry in message.entries}
        if known:
            for entry in data.draw(st.lists(st.sampled_from(sorted(known)), max_size=3)):
                topic.deliver(entry)
    expected = {f"m{index}": b"".join(b"m%d%d " % (index, n) for n in range(c)) for index, c in enumerate(counts)}
    assert len(topic.whole) == len(expected) and dict(topic.whole) == expected
    assert (topic.acknowledged, topic.unusable) == ([], [])


def test_orphan_last_chunk_sent_twice_has_first_position() -> None:
    topic = Topic(note_orphans=True)
    topic.send("a", 1, 1, of=2)
    assert topic.assembly.orphans == {"a": (7, 0)}
    # After a seek they are read again.
    topic.assembly.clear()
    assert topic.assembly.orphans == {}


def test_chunks_of_a_restarted_message_are_its_own() -> None:
    topic = Topic(note_orphans=True)
    topic.send("a", 0, 1, of=2)
    # Sent again, and dropped before it is whole: its last chunk is not one left over from the first time.
    topic.send("a", 0, of=2)
    topic.assembly.drop_incomplete()
    topic.send("a", 1, of=2)
    assert topic.unusable == [3] and topic.acknowledged == []
    assert topic.assembly.orphans == {"a": (7, 3)}


def test_redelivered_messages_of_others_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redelivered, "KEPT", 3)
    topic = Topic()
    for number in range(10):
        topic.send(f"m{number}", 0, 1, of=2)
        assert topic.given(2 * number + 1) == [2 * number, 2 * number + 1]
        # The first message comes back.
        topic.deliver(0)
        topic.deliver(1)
    assert [entry for _, entry in topic.assembly.delivered] == [1, 15, 17, 19]
