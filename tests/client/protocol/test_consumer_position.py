"""Consumer position: start of the next attachment, seeks, and whether anything is left to read."""

from __future__ import annotations

import pytest

from pulsar_native.message_id import MessageId
from pulsar_native.protocol.consumer_position import ConsumerPosition


def at(entry: int, index: int = -1, size: int = 0, ledger: int = 5) -> MessageId:
    return MessageId(-1, ledger, entry, index, batch_size=size)


def reader(start: MessageId | None = MessageId.earliest, *, inclusive: bool = False) -> ConsumerPosition:
    return ConsumerPosition(
        "persistent://public/default/t", -1, start, inclusive=inclusive, is_durable=False, is_reader=True
    )


def consumer(start: MessageId) -> ConsumerPosition:
    return ConsumerPosition("persistent://public/default/t", -1, start, inclusive=False, is_durable=False)


def durable() -> ConsumerPosition:
    return ConsumerPosition("persistent://public/default/t", -1, None, inclusive=False, is_durable=True)


def test_start_of_durable_subscription_is_the_brokers() -> None:
    position = durable()
    position.set_last_dequeued(at(3))
    assert position.start_message_id() is None and position.filter.first_index((5, 0), 4) == 0


def test_start_of_reader_is_behind_last_dequeued() -> None:
    position = reader(at(1), inclusive=True)
    assert position.start_message_id() == at(1) and position.filter.first_index((5, 1), 1) == 0
    position.set_last_dequeued(at(3, 1, 4))
    assert position.start_message_id() == at(3, 1, 4)
    assert [position.filter.first_index((5, entry), 4) for entry in (2, 3, 4)] == [4, 2, 0]
    assert position.start_entry() == (5, 3)


@pytest.mark.parametrize(
    ("last", "entry"),
    [(at(3), (5, 3)), (at(3, 3, 4), (5, 3)), (at(3, 2, 4), (5, 2)), (at(3, 2), (5, 2)), (at(0, 0, 2), None)],
    ids=["entry", "end-of-batch", "in-batch", "batch-of-unknown-size", "in-first-batch"],
)
def test_read_to_is_the_last_whole_entry(last: MessageId, entry: tuple[int, int] | None) -> None:
    position = reader()
    assert position.read_to() is None
    position.set_last_dequeued(last)
    assert position.read_to() == entry


def test_read_to_of_reader_that_starts_behind() -> None:
    position, inclusive = reader(at(3)), reader(at(3), inclusive=True)
    for each in (position, inclusive, reader(MessageId.latest)):
        assert each.read_to() is None
        each.last_decoded = (5, 3)
    assert (position.read_to(), inclusive.read_to()) == ((5, 3), None)
    position.on_seek(at(9), at(9), inclusive=False)
    assert position.read_to() is None


@pytest.mark.parametrize("last", [at(3), at(3, 3, 4)])
def test_start_of_consumer_is_next_entry_and_filters_nothing(last: MessageId) -> None:
    position = consumer(MessageId.earliest)
    position.set_last_dequeued(last)
    assert position.start_message_id() == at(4)
    # Another consumer's may come, and the last one again.
    assert [position.filter.first_index((5, entry), 4) for entry in (2, 3, 4)] == [0, 0, 0]


@pytest.mark.parametrize(("last", "first"), [(at(3, 1, 4), 2), (at(3, 1), 2)])
def test_start_of_consumer_within_batch_filters_batch_only(last: MessageId, first: int) -> None:
    position = consumer(MessageId.earliest)
    position.set_last_dequeued(last)
    assert position.start_message_id() == last
    assert [position.filter.first_index((5, entry), 4) for entry in (2, 3, 4)] == [0, first, 0]


def test_start_of_consumer_at_latest_is_behind_last_message() -> None:
    position = consumer(MessageId.latest)
    assert position.starts_at_latest
    position.pin_latest(at(8, 2))
    assert position.start_message_id() == at(9) and not position.is_before(at(8), may_have_more=False)


@pytest.mark.parametrize(("last", "start"), [(at(8, 2), at(8)), (at(-1), MessageId.earliest)])
def test_latest_is_pinned_to_last_message(last: MessageId, start: MessageId) -> None:
    position = reader(MessageId.latest)
    assert position.starts_at_latest
    position.pin_latest(last)
    assert position.start_message_id() == start and not position.starts_at_latest


@pytest.mark.parametrize(("make", "start"), [("reader", at(-1)), ("consumer", at(0))])
def test_latest_without_last_message_is_pinned_to_mark(make: str, start: MessageId) -> None:
    position = (reader if make == "reader" else consumer)(MessageId.latest)
    # Of an empty topic, or one that was terminated while its last ledger was empty: ledgers before have messages then.
    position.mark_delete = at(-1)
    position.pin_latest(MessageId(-1, -1, -1))
    assert position.start_message_id() == start and not position.starts_at_latest
    assert position.filter.first_index((start.ledger_id(), 0), 1) == 0
    assert position.is_before(at(0), may_have_more=False)
    assert not position.is_before(MessageId(-1, start.ledger_id() - 1, 7), may_have_more=False)


def test_seek_by_time_is_pinned_to_mark() -> None:
    position = reader(at(9))
    position.on_seek(None, None, inclusive=True)
    position.pin_mark()
    assert position.start_entry() is None and position.start_message_id() == MessageId.earliest
    position.mark_delete = at(4)
    position.pin_mark()
    assert position.start_entry() == (5, 4) and position.filter.first_index((5, 4), 1) == 0
    position.start_message_id()
    assert position.filter.first_index((5, 4), 1) == 1


@pytest.mark.parametrize(
    ("inclusive", "index", "words"), [(True, 0, None), (True, 2, [0b1100]), (False, 2, [0b1000]), (False, 3, None)]
)
def test_seek_into_batch_has_words_of_rest(inclusive: bool, index: int, words: list[int] | None) -> None:
    assert durable().sought_words(at(1, index, 4), inclusive=inclusive) == words


def test_seek_of_reader_ignores_inclusive_of_durable() -> None:
    assert reader().sought_words(at(1, 2, 4), inclusive=False) == [0b1100]


def firsts(position: ConsumerPosition, *entries: int) -> list[int]:
    """Return the first index to deliver of entries of two messages that arrive in this order."""
    return [position.filter_of_next((5, entry)).first_index((5, entry), 2) for entry in entries]


@pytest.mark.parametrize(
    ("sought", "inclusive", "before", "after"),
    [
        (at(3), False, [2, 0], [0, 0, 0]),
        (at(3, 0, 2), False, [1, 0], [0, 0, 0]),
        (at(3, 1, 2), True, [1, 0], [0, 0, 0]),
    ],
    ids=["entry", "batch", "batch-inclusive"],
)
def test_durable_seek_ends_when_others_move_back(
    sought: MessageId, inclusive: bool, before: list[int], after: list[int]
) -> None:
    position = durable()
    position.on_seek(sought, sought, inclusive=inclusive)
    assert firsts(position, 3, 4, 3, 4) == before * 2
    assert firsts(position, 2, 3, 4) == after
    position.on_seek(sought, sought, inclusive=inclusive)
    assert firsts(position, 3, 4) == before


def test_durable_seek_behind_chunks_drops_between() -> None:
    position = durable()
    position.on_seek(at(2), at(5), inclusive=False)
    assert firsts(position, 2, 3, 5, 6) == [2, 2, 2, 0]
    assert firsts(position, 1, 3, 5) == [0, 0, 0]


def test_queue_dropped_goes_back_to_last_dequeued() -> None:
    position = reader()
    position.last_decoded = (5, 9)
    position.on_queue_dropped()
    assert position.last_decoded is None
    position.set_last_dequeued(at(6))
    position.on_queue_dropped()
    assert position.last_decoded == (5, 6)


@pytest.mark.parametrize(
    ("end", "past"), [(at(7), True), (at(8), True), (at(9), False), (at(7, 2, 4), True), (at(8, 2, 4), False)]
)
def test_is_past_by_entry(end: MessageId, past: bool) -> None:
    position = reader()
    assert not position.is_past(end)
    position.last_decoded = (5, 7)
    assert position.is_past(end) is past


@pytest.mark.parametrize(
    ("dequeued", "last", "left"),
    [
        (at(3), at(4), True),
        (at(4), at(4), False),
        (at(4), at(3), False),
        (at(4, 1, 3), at(4, 2, 3), True),
        (at(4, 2, 3), at(4, 2, 3), False),
    ],
)
def test_is_before_last_message(dequeued: MessageId, last: MessageId, left: bool) -> None:
    position = reader()
    position.set_last_dequeued(dequeued)
    assert position.is_before(last, may_have_more=False) is left


@pytest.mark.parametrize("inclusive", [True, False])
def test_is_before_start_at_last_message(inclusive: bool) -> None:
    for start in (at(4), at(4, 1, 2)):
        position = reader(start, inclusive=inclusive)
        assert position.is_before(at(4, start.batch_index(), 2), may_have_more=False) is inclusive


def test_is_before_when_rest_is_filtered_out() -> None:
    position = reader(at(2))
    position.last_decoded = (5, 6)
    # All was decoded, and nothing of it is wanted; unless deliveries are still waiting.
    assert not position.is_before(at(6), may_have_more=False)
    assert position.is_before(at(6), may_have_more=True)


def test_is_before_when_start_itself_is_filtered_out() -> None:
    position = reader(at(5), inclusive=True)
    position.last_decoded = (5, 5)
    # For example a chunk that its producer left behind.
    assert not position.is_before(at(5), may_have_more=False)
    assert position.is_before(at(5), may_have_more=True) and position.is_before(at(6), may_have_more=False)


def test_is_before_by_mark_after_seek_by_time() -> None:
    position = reader()
    assert position.is_before(at(0), may_have_more=False)
    position.mark_delete = at(4)
    assert position.is_before(at(5), may_have_more=False) and not position.is_before(at(4), may_have_more=False)


@pytest.mark.parametrize(
    ("start", "is_compacted", "hidden"),
    [
        pytest.param(MessageId.earliest, False, True, id="earliest"),
        pytest.param(MessageId.earliest, True, False, id="compacted-earliest"),
        pytest.param(MessageId.latest, True, True, id="compacted-latest"),
    ],
)
def test_mark_before_a_ledger_hides_no_compacted_message(start: MessageId, is_compacted: bool, hidden: bool) -> None:
    position = ConsumerPosition(
        "persistent://public/default/t",
        -1,
        start,
        inclusive=False,
        is_durable=False,
        is_reader=True,
        is_compacted=is_compacted,
    )
    position.mark_delete = at(-1, ledger=6)
    if position.starts_at_latest:
        position.pin_latest(at(5))
    assert position.is_marked((5, 5)) is hidden
    position.on_seek(None, None, inclusive=True)
    assert position.is_before(at(5), may_have_more=False) is is_compacted
    position.pin_mark()
    assert (position.start_message_id() == MessageId.earliest) is is_compacted


@pytest.mark.parametrize("start", [MessageId.latest, MessageId(-1, 0, 0), MessageId(-1, 7, 3)], ids=str)
@pytest.mark.parametrize("is_durable", [False, True])
def test_position_of_an_unstored_topic_filters_nothing(start: MessageId, is_durable: bool) -> None:
    name = "non-persistent://public/default/t"
    position = ConsumerPosition(name, -1, start, inclusive=False, is_durable=is_durable, is_stored=False)
    for _ in range(2):
        assert position.filter.first_index((0, 0), 5) == 0 and not position.starts_at_latest
        position.set_last_dequeued(MessageId(-1, 0, 0))
        assert position.start_message_id() == (None if is_durable else start)
        position.on_seek(start, start, inclusive=False)


# --- a last message in chunks -----------------------------------------------------------------------------------------


def sought_last(entry: int) -> ConsumerPosition:
    """Return the position of an inclusive reader that has sought the topic's last entry."""
    position = reader(MessageId.latest, inclusive=True)
    position.on_seek(at(entry), at(entry), inclusive=True)
    position.look_for_first_chunk()
    position.start_message_id()
    return position


def first_chunk(position: ConsumerPosition) -> int:
    start = position.start_message_id()
    assert start is not None and (start.ledger_id(), start.entry_id()) == (5, 3000)
    first = start.first_chunk_message_id()
    assert first is not None and first.ledger_id() == 5
    return first.entry_id()


def test_start_moves_back_to_first_chunk_twice() -> None:
    position = sought_last(3000)
    position.last_decoded = (5, 3000)
    assert position.start_at_first_chunk((5, 3000), 2) and position.is_moving_back
    # What is behind the message comes after it, and it is still to come.
    assert position.filter.first_index((6, 9), 1) == 1 and position.is_before(at(3000), may_have_more=False)
    assert first_chunk(position) == 2998 and not position.is_moving_back
    assert [position.filter.first_index((5, entry), 1) for entry in (2999, 3000, 3001)] == [1, 0, 0]
    # Interleaved with others: from further back, once.
    assert position.start_at_first_chunk((5, 3000), 2) and first_chunk(position) == 1998
    assert not position.start_at_first_chunk((5, 3000), 2) and not position.is_moving_back
    assert position.filter.first_index((5, 3001), 1) == 0


@pytest.mark.parametrize(
    ("entry", "chunk", "back"),
    [(3000, 1, True), (2999, 1, False), (3001, 1, False), (3000, 3000, True), (3000, 3001, False)],
    ids=["start", "before", "behind", "ledger-begins", "earlier-ledger"],
)
def test_start_moves_back_for_its_own_entry(entry: int, chunk: int, back: bool) -> None:
    position = sought_last(3000)
    assert position.start_at_first_chunk((5, entry), chunk) is position.is_moving_back is back
    if chunk == entry:
        # Nothing is further back in the ledger.
        assert first_chunk(position) == 0 and not position.start_at_first_chunk((5, entry), chunk)


def test_start_by_id_or_seek_does_not_move_back() -> None:
    assert not reader(at(3000), inclusive=True).start_at_first_chunk((5, 3000), 1)
    position = sought_last(3000)
    assert position.start_at_first_chunk((5, 3000), 1)
    position.on_seek(at(3000), at(3000), inclusive=True)
    assert not position.is_moving_back and not position.start_at_first_chunk((5, 3000), 1)
