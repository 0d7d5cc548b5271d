"""Arrow range reader on a fake broker: where a range ends, what is left out, and passes for messages that began before
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer.arrow_range_reader import ArrowRangeReader
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.enums import ConsumerCryptoFailureAction, SubscriptionMode
from pulsar_native.exceptions import ChecksumError, CryptoError, InvalidConfiguration
from pulsar_native.message_id import MessageId
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.entry_bytes import PUBLISHED, batch_entry, single_entry
from support.fake_broker import MAXU, FakeBroker, Peer, delivery, frame
from support.until import until

Cores = Callable[..., ClientCore]
Subscribed = Callable[..., Any]

TOPIC = "persistent://public/default/t"
LOCKED = single_entry(b"locked", encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])


def place(entry: int, index: int = -1) -> MessageId:
    return MessageId(-1, 1, entry, index)


def last_is(fake: FakeBroker, *entries: int) -> None:
    """Have the broker name these entries as the last ones, by consumer; -1 for an empty topic, and what searches it."""

    def answer(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked = command.getLastMessageId
        entry = dict(enumerate(entries)).get(asked.consumer_id, -1)
        last = pb.MessageIdData(ledgerId=1, entryId=entry % (MAXU + 1))
        response = pb.CommandGetLastMessageIdResponse(request_id=asked.request_id, last_message_id=last)
        return [frame(Kind.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=response)]

    fake.answers[Kind.GET_LAST_MESSAGE_ID] = answer


class Reading:
    """A reader and a bounded read of it, without the waiting of the APIs."""

    def __init__(self, fake: FakeBroker, consumer: MultiTopicsConsumer, **options: Any) -> None:
        options = {"end": None, "columns": ["value"], "max_rows": 100, "max_bytes": 1 << 20, **options}
        options.setdefault("publish_time", None)
        self.fake, self.consumer = fake, consumer
        self.work = ArrowRangeReader(consumer, **options)

    async def deliver(self, entries: dict[int, bytes], *, partition: int = 0) -> None:
        """Deliver entries and have them added."""
        child = self.consumer.children[partition]
        self.fake.peers[-1].send(*(delivery(child.consumer_id, entry, at) for at, entry in entries.items()))
        await until(lambda: len(child.core.all_deliveries) == len(entries))
        self.add_queued()

    def add_queued(self) -> None:
        """Have everything added that is queued."""
        while not self.work.must_go_back and (taken := self.consumer.dequeue_rows()) is not None:
            self.work.add(*taken)

    def rows(self) -> list[bytes]:
        """Return the remaining rows."""
        return [value for batch in self.work.rest() for value in batch.column("value").to_pylist()]

    def sought(self) -> list[tuple[int, int]]:
        asked = [seen.command.seek.message_id for seen in self.fake.seen(Kind.SEEK)]
        return [(each.ledgerId, each.entryId) for each in asked]


@pytest.fixture
def reading(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> Callable[..., Any]:
    """Give a function that subscribes a reader and begins a read."""

    async def begin(start: MessageId = MessageId.earliest, **options: Any) -> Reading:
        action = options.pop("action", ConsumerCryptoFailureAction.FAIL)
        consumer = await subscribed(
            cores(fake.url),
            subscription_mode=SubscriptionMode.NonDurable,
            start_message_id=start,
            start_message_id_inclusive=options.pop("inclusive", False),
            is_read_compacted=options.pop("is_read_compacted", False),
            crypto_failure_action=action,
        )
        return Reading(fake, consumer, **options)

    return begin


def singles(*entries: int) -> dict[int, bytes]:
    return {entry: single_entry(b"%d" % entry) for entry in entries}


# --- ends -------------------------------------------------------------------------------------------------------


async def test_range_ends_at_last_message_of_its_start(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 2)
    made = await reading()
    await made.work.refresh_ends()
    # Published since.
    last_is(fake, 4)
    await made.deliver(singles(0, 1))
    await made.work.refresh_ends()
    assert not made.work.done and made.work.open_children() == made.consumer.children
    await made.deliver(singles(2, 3, 4))
    assert made.work.done and made.rows() == [b"0", b"1", b"2"] and made.work.open_children() == []


@pytest.mark.parametrize("start", [MessageId.earliest, MessageId.latest, place(9)], ids=["seek", "latest", "entry"])
async def test_range_behind_mark_is_done_at_once(
    fake: FakeBroker, reading: Callable[..., Any], start: MessageId
) -> None:
    # The broker's position is behind its last entry: a seek by time, or to `latest`, leaves no entry here.
    fake.set_last(9, mark=9)
    made = await reading(start)
    await made.work.refresh_ends()
    assert made.work.done and made.rows() == []


async def test_range_between_mark_and_last_is_awaited(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    # Published while the reader attached at `latest`: in front of the id that it asked for, and not delivered yet.
    fake.set_last(9, mark=8)
    made = await reading(MessageId.latest)
    await made.work.refresh_ends()
    assert not made.work.done
    await made.deliver(singles(9))
    assert made.work.done and made.rows() == [b"9"]


async def test_range_mark_behind_removed_ledger_is_awaited(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    # The last message is a compacted one; the ledger that had it is removed, and the cursor is at the next one.
    def answer(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        response = pb.CommandGetLastMessageIdResponse(
            request_id=command.getLastMessageId.request_id,
            last_message_id=pb.MessageIdData(ledgerId=1, entryId=9),
            consumer_mark_delete_position=pb.MessageIdData(ledgerId=2, entryId=MAXU),
        )
        return [frame(Kind.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=response)]

    fake.answers[Kind.GET_LAST_MESSAGE_ID] = answer
    made = await reading(is_read_compacted=True)
    await made.work.refresh_ends()
    assert not made.work.done
    await made.deliver(singles(9))
    assert made.work.done and made.rows() == [b"9"]


@pytest.mark.parametrize(
    ("start", "last", "end"),
    [
        (MessageId.earliest, -1, None),
        (place(4), -1, None),
        (place(4), 3, None),
        (place(4), 9, place(3)),
    ],
    ids=["empty", "empty-from-entry", "behind-last", "behind-end"],
)
async def test_range_of_nothing_is_done_at_once(
    fake: FakeBroker, reading: Callable[..., Any], start: MessageId, last: int, end: MessageId | None
) -> None:
    last_is(fake, last)
    made = await reading(start, end=end)
    await made.work.refresh_ends()
    assert made.work.done and made.rows() == []


@pytest.mark.parametrize(
    ("end", "rows"),
    [
        (place(2), [b"0", b"a", b"b", b"c"]),
        (place(1), [b"0"]),
        (place(1, 0), [b"0"]),
        (place(1, 2), [b"0", b"a", b"b"]),
        (place(0), []),
    ],
    ids=["next-entry", "batch", "batch-first", "batch-index", "first-entry"],
)
async def test_range_end_is_exclusive_to_the_index(
    fake: FakeBroker, reading: Callable[..., Any], end: MessageId, rows: list[bytes]
) -> None:
    last_is(fake, 5)
    made = await reading(end=end)
    await made.work.refresh_ends()
    await made.deliver({**singles(0), 1: batch_entry([b"a", b"b", b"c"]), **singles(2, 3)})
    assert made.work.done and made.rows() == rows


async def test_range_end_removed_closed_by_later_entry(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 9)
    made = await reading(end=place(5))
    await made.work.refresh_ends()
    await made.deliver(singles(0, 3))
    # Entry 4 may still come.
    assert not made.work.done
    await made.deliver(singles(7))
    assert made.work.done and made.rows() == [b"0", b"3"]


async def test_range_end_unreached_closed_by_last_id(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 3)
    made = await reading(end=place(8))
    await made.work.refresh_ends()
    await made.deliver(singles(0))
    await made.work.refresh_ends()
    assert not made.work.done
    await made.deliver(singles(3))
    await made.work.refresh_ends()
    assert made.work.done and made.rows() == [b"0", b"3"]


async def test_range_of_partitions_ends_with_each(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    fake.partitions[TOPIC] = 2
    last_is(fake, 1, 0)
    made = await reading(columns=["value", "__partition"])
    await made.work.refresh_ends()
    await made.deliver(singles(0), partition=1)
    assert not made.work.done and made.work.open_children() == made.consumer.children[:1]
    await made.deliver(singles(0, 1))
    assert made.work.done
    # A record batch is of one partition.
    assert sorted(batch.column("__partition").to_pylist() for batch in made.work.rest()) == [[0, 0], [1]]


async def test_range_by_publish_time_is_half_open(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 3)
    made = await reading(publish_time=(PUBLISHED + 1, PUBLISHED + 3))
    await made.work.refresh_ends()
    await made.deliver({at: single_entry(b"%d" % at, publish_time=PUBLISHED + at) for at in range(4)})
    assert made.work.done and made.rows() == [b"1", b"2"]


# --- record batches ---------------------------------------------------------------------------------------------


async def test_full_yields_batches_of_their_size(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 5)
    made = await reading(max_rows=2)
    await made.work.refresh_ends()
    await made.deliver(singles(0))
    assert list(made.work.full()) == []
    await made.deliver(singles(1))
    assert [batch.column("value").to_pylist() for batch in made.work.full()] == [[b"0", b"1"]]
    await made.deliver(singles(2, 3, 4))
    # What does not fill a record batch is not one of its own.
    assert [batch.column("value").to_pylist() for batch in made.work.full()] == [[b"2", b"3"]]
    assert list(made.work.full()) == []
    await made.deliver(singles(5))
    assert [batch.column("value").to_pylist() for batch in made.work.full()] == [[b"4", b"5"]]
    assert list(made.work.full()) == [] and made.rows() == []


async def test_full_yields_batches_of_their_bytes(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 5)
    made = await reading(max_bytes=100)
    await made.work.refresh_ends()
    await made.deliver({0: single_entry(b"x" * 60)})
    assert list(made.work.full()) == []
    await made.deliver({1: single_entry(b"y" * 60), 2: single_entry(b"z" * 30)})
    assert [batch.num_rows for batch in made.work.full()] == [1]
    assert list(made.work.full()) == []
    await made.deliver({3: single_entry(b"w" * 5), 4: single_entry(b"v" * 100)})
    # The last one is full by itself.
    assert [batch.num_rows for batch in made.work.full()] == [3, 1]


# --- entries of one message -------------------------------------------------------------------------------------


async def add_next(made: Reading, entries: dict[int, bytes]) -> list[int]:
    """Deliver entries, have the next one added, and return those that are queued then."""
    child = made.consumer.children[0]
    made.fake.peers[-1].send(*(delivery(child.consumer_id, entry, at) for at, entry in entries.items()))
    await until(lambda: len(child.core.all_deliveries) == len(entries))
    taken = made.consumer.dequeue_rows()
    assert taken is not None
    made.work.add(*taken)
    return [each.entry_id for each in child.core.all_deliveries]


@pytest.mark.parametrize("end", [place(3), place(3, 1)], ids=["entry", "batch-index"])
async def test_single_messages_added_together_not_beyond_end(
    fake: FakeBroker, reading: Callable[..., Any], end: MessageId
) -> None:
    last_is(fake, 5)
    made = await reading(end=end)
    await made.work.refresh_ends()
    at_end = single_entry(b"3") if end == place(3) else batch_entry([b"a", b"b"])
    entries = {**singles(0, 1, 2), 3: at_end, **singles(4, 5)}
    assert await add_next(made, entries) == [3, 4, 5]
    if end == place(3):
        assert made.work.done and made.rows() == [b"0", b"1", b"2"]
        following = made.consumer.dequeue_rows()
        assert following is not None and following[1].entry_id == 3
        return
    assert not made.work.done
    made.add_queued()
    assert made.work.done and made.rows() == [b"0", b"1", b"2", b"a"]


async def test_single_messages_added_together_within_limits(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 9)
    made = await reading(max_rows=3, max_bytes=100)
    await made.work.refresh_ends()
    assert await add_next(made, singles(0, 1, 2, 3)) == [3]
    assert [batch.num_rows for batch in made.work.full()] == [3]
    made.add_queued()
    assert await add_next(made, {4: single_entry(b"x" * 120), **singles(5)}) == [5]
    assert [batch.num_rows for batch in made.work.full()] == [1, 1]


async def test_single_messages_added_together_within_publish_time(
    fake: FakeBroker, reading: Callable[..., Any]
) -> None:
    last_is(fake, 3)
    made = await reading(publish_time=(PUBLISHED + 1, PUBLISHED + 3))
    await made.work.refresh_ends()
    entries = {at: single_entry(b"%d" % at, publish_time=PUBLISHED + at) for at in range(4)}
    assert await add_next(made, entries) == []
    assert made.work.done and made.rows() == [b"1", b"2"]


async def test_single_messages_behind_damaged_entry_raise(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 3)
    made = await reading()
    await made.work.refresh_ends()
    assert await add_next(made, {**singles(0, 1), 2: single_entry(b"2")[:-1] + b"x", **singles(3)}) == [2, 3]
    with pytest.raises(ChecksumError, match="1:2"):
        made.add_queued()


def pairs(*entries: int) -> dict[int, bytes]:
    return {entry: batch_entry([b"%da" % entry, b"%db" % entry]) for entry in entries}


@pytest.mark.parametrize("end", [place(3), place(3, 1)], ids=["entry", "batch-index"])
async def test_batches_added_together_not_beyond_end(
    fake: FakeBroker, reading: Callable[..., Any], end: MessageId
) -> None:
    last_is(fake, 5)
    made = await reading(end=end)
    await made.work.refresh_ends()
    assert await add_next(made, {**pairs(0, 1), **singles(2), **pairs(3, 4)}) == [3, 4]
    if end == place(3):
        assert made.work.done and made.rows() == [b"0a", b"0b", b"1a", b"1b", b"2"]
        following = made.consumer.dequeue_rows()
        assert following is not None and following[1].entry_id == 3
        return
    assert not made.work.done
    made.add_queued()
    assert made.work.done and made.rows() == [b"0a", b"0b", b"1a", b"1b", b"2", b"3a"]


async def test_batches_added_together_within_limits(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 9)
    made = await reading(max_rows=4, max_bytes=200)
    await made.work.refresh_ends()
    assert await add_next(made, pairs(0, 1, 2, 3)) == [2, 3]
    assert [batch.num_rows for batch in made.work.full()] == [4]
    made.add_queued()
    assert [batch.num_rows for batch in made.work.full()] == [4]
    large = batch_entry([b"x" * 120, b"y" * 120])
    assert await add_next(made, {**pairs(4), 5: large, **pairs(6)}) == [6]


async def test_batches_added_together_within_publish_time(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 3)
    made = await reading(publish_time=(PUBLISHED + 1, PUBLISHED + 3))
    await made.work.refresh_ends()
    entries = {at: batch_entry([b"%d" % at, b"-"], publish_time=PUBLISHED + at) for at in range(4)}
    assert await add_next(made, entries) == []
    assert made.work.done and made.rows() == [b"1", b"-", b"2", b"-"]


@pytest.mark.parametrize("place_of_it", [1, 2])
@pytest.mark.parametrize("bad", ["damaged", "locked"])
async def test_batches_added_together_with_unreadable_entry_raise(
    fake: FakeBroker, reading: Callable[..., Any], place_of_it: int, bad: str
) -> None:
    last_is(fake, 2)
    made = await reading(action=ConsumerCryptoFailureAction.CONSUME)
    await made.work.refresh_ends()
    unreadable = LOCKED if bad == "locked" else batch_entry([b"a", b"b"])[:-1] + b"x"
    with pytest.raises(CryptoError if bad == "locked" else ChecksumError):
        await made.deliver({**pairs(0, 1, 2), place_of_it: unreadable})
        await made.work.refresh_ends()
    assert not made.work.done


# --- what cannot be read ----------------------------------------------------------------------------------------


async def test_range_with_damaged_entry_raises(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 2)
    made = await reading()
    await made.work.refresh_ends()
    await made.deliver({0: single_entry(b"0"), 1: single_entry(b"1")[:-1] + b"x"})
    with pytest.raises(ChecksumError, match="1:1") as caught:
        await made.work.refresh_ends()
    assert caught.value.topic == TOPIC
    # Nor by the next entry is the range complete.
    with pytest.raises(ChecksumError):
        await made.deliver(singles(2))


@pytest.mark.parametrize("action", ConsumerCryptoFailureAction)
async def test_range_with_locked_entry_raises(
    fake: FakeBroker, reading: Callable[..., Any], action: ConsumerCryptoFailureAction
) -> None:
    last_is(fake, 1)
    made = await reading(action=action)
    await made.work.refresh_ends()
    if action is ConsumerCryptoFailureAction.DISCARD:
        # To leave it out is what the application chose.
        await made.deliver({0: LOCKED, **singles(1)})
        assert made.work.done and made.rows() == [b"1"]
        return
    with pytest.raises(CryptoError, match="cannot be decrypted"):
        await made.deliver({0: LOCKED, **singles(1)})


# --- messages in chunks -----------------------------------------------------------------------------------------


def chunk(number: int, uuid: str = "m") -> bytes:
    return single_entry(b"ab", uuid=uuid, chunk_id=number, num_chunks_from_msg=2, total_chunk_msg_size=4)


async def test_chunks_before_range_read_in_order(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 1203)
    made = await reading(place(1200), end=place(1204))
    await made.work.refresh_ends()
    await made.deliver({1201: chunk(1), **singles(1202, 1203)})
    assert made.work.must_go_back and not made.work.done
    await made.work.refresh_ends()
    assert made.sought() == [(1, 200)] and not made.work.must_go_back
    # Of what comes before it, nothing is of the range.
    await made.deliver({**singles(1199), 1200: chunk(0), 1201: chunk(1), **singles(1202, 1203)})
    assert made.work.done and made.rows() == [b"abab", b"1202", b"1203"]


@pytest.mark.parametrize("form", [singles, pairs])
async def test_chunks_before_range_amid_entries_in_order(
    fake: FakeBroker, reading: Callable[..., Any], form: Callable[..., dict[int, bytes]]
) -> None:
    last_is(fake, 1206)
    made = await reading(place(1200), end=place(1207))
    await made.work.refresh_ends()
    rest = {**form(1203), 1204: chunk(1, "n"), **form(1205), **singles(1206)}
    entries = {**form(1201), 1202: chunk(1), **rest}
    await made.deliver(entries)
    # The step back finds the first chunk of one of them only.
    await made.work.go_back()
    await made.deliver({1199: chunk(0), **entries})
    assert made.work.must_go_back
    await made.work.go_back()
    await made.deliver({150: chunk(0, "n"), 1199: chunk(0), **entries})
    of_form = [[b"%d" % at] if form is singles else [b"%da" % at, b"%db" % at] for at in (1201, 1203, 1205)]
    assert made.work.done and made.sought() == [(1, 200), (MAXU, MAXU)]
    assert made.rows() == [*of_form[0], b"abab", *of_form[1], b"abab", *of_form[2], b"1206"]


@pytest.mark.parametrize("inclusive", [True, False])
async def test_chunks_ending_at_start_of_range(fake: FakeBroker, reading: Callable[..., Any], inclusive: bool) -> None:
    last_is(fake, 1201)
    made = await reading(place(1200), end=place(1202), inclusive=inclusive)
    await made.work.refresh_ends()
    await made.deliver({1200: chunk(1), **singles(1201)})
    if inclusive:
        await made.work.go_back()
        await made.deliver({1199: chunk(0), 1200: chunk(1), **singles(1201)})
    assert made.work.done and made.rows() == ([b"abab"] if inclusive else []) + [b"1201"]


async def test_chunks_never_found_end_the_range(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 1202)
    made = await reading(place(1200))
    await made.work.refresh_ends()
    await made.deliver({1201: chunk(1), **singles(1202)})
    for _ in range(2):
        assert made.work.must_go_back
        await made.work.go_back()
        await made.deliver({1201: chunk(1), **singles(1202)})
    # From the beginning on there is no first chunk.
    assert made.sought() == [(1, 200), (MAXU, MAXU)] and made.work.done and made.rows() == [b"1202"]


async def test_chunks_ending_behind_range_not_sought(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 9)
    made = await reading(place(4), end=place(6))
    await made.work.refresh_ends()
    # Entry 5 was removed. The message is of the next range, as its last chunk is.
    await made.deliver({7: chunk(1)})
    await made.work.refresh_ends()
    assert made.work.done and made.rows() == [] and made.sought() == []


async def test_chunks_ending_before_read_not_sought(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 7)
    before = await reading(place(4))
    fake.peers[-1].send(delivery(0, chunk(1), 5), delivery(0, single_entry(b"6"), 6))
    await until(lambda: before.consumer.has_queued())
    assert before.consumer.dequeue() is not None
    made = Reading(fake, before.consumer)
    await made.work.refresh_ends()
    await made.deliver(singles(7))
    assert made.work.done and made.rows() == [b"7"] and made.sought() == []


async def test_chunks_of_many_messages_all_kept(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 23)
    made = await reading()
    await made.work.refresh_ends()
    # More than a consumer keeps by default: dropped, they would be missing without a word.
    for number in range(2):
        await made.deliver({12 * number + at: chunk(number, str(at)) for at in range(12)})
    assert made.work.done and made.rows() == [b"abab"] * 12


async def test_range_from_beginning_never_goes_back(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    last_is(fake, 1)
    made = await reading()
    await made.work.refresh_ends()
    await made.deliver({0: chunk(1), **singles(1)})
    assert made.work.done and made.rows() == [b"1"] and not made.work.must_go_back


# --- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["value", "missing"]}, "no column 'missing'"),
        ({"max_rows": 0}, "must be positive"),
        ({"max_bytes": 0}, "must be positive"),
    ],
)
async def test_range_invalid_argument_raises(
    reading: Callable[..., Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        await reading(**options)


async def test_range_end_over_partitions_raises(fake: FakeBroker, reading: Callable[..., Any]) -> None:
    fake.partitions[TOPIC] = 2
    with pytest.raises(InvalidConfiguration, match="partition by partition"):
        await reading(end=place(3))
