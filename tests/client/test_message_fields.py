"""Fields of messages in plain Python and compiled: the same results, errors included."""

from __future__ import annotations

import asyncio
import copy
import gc
import importlib
import importlib.util
import inspect
import os
import random
import struct
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import environments
import pulsar_native
from pulsar_native import Consumer, Producer, Reader
from pulsar_native import _message_fields as chosen
from pulsar_native import asyncio as asyncio_api
from pulsar_native.enums import CompressionType
from pulsar_native.message import KeyedMessage, Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.entry_decoder import StartFilter, decode, single_parser
from pulsar_native.wire import _impl
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.frames import Frame
from support.entry_bytes import assemble, batch_entry, metadata_of, single_entry
from support.other_thread import OWN_ERRORS, in_other_thread


def plain() -> ModuleType:
    """Return the module in plain Python, whatever is chosen here."""
    path = Path(pulsar_native.__file__).parent / "_message_fields.py"
    spec = importlib.util.spec_from_file_location("plain_message_fields", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PULSAR_NATIVE_IMPL", "python")
        spec.loader.exec_module(module)
    assert not module.is_compiled
    return module


def compiled() -> ModuleType:
    """Return the compiled module."""
    return importlib.import_module("pulsar_native._message_speedups")


@pytest.fixture(params=["python"] if environments.no_speedups() else ["python", "compiled"])
def fields(request: pytest.FixtureRequest) -> ModuleType:
    """Give each of the two modules."""
    return plain() if request.param == "python" else compiled()


class Entry:
    """Entry with the attributes that a message reads."""

    def __init__(self, body: bytes | bytearray = b"", number: int = 8, batch_size: int = 4) -> None:
        self.body = body
        self.topic, self.partition = "persistent://public/default/t", 2
        self.ledger_id, self.entry_id = 7, number
        self.is_batch, self.batch_size = batch_size > 0, batch_size
        self.first_chunk: MessageId | None = None
        self.asked: list[tuple[int, int]] = []

    def fields(self, meta_start: int, payload_start: int) -> Any:
        self.asked.append((meta_start, payload_start))
        return {"at": meta_start}


def kind_of(fields: ModuleType) -> Any:
    return type("Kind", (fields.MessageFields,), {"__slots__": ()})


def test_message_fields_data_and_id(fields: ModuleType) -> None:
    entry = Entry(b"..hello..")
    message = kind_of(fields)(entry, 3, 0, 2, 7)
    assert (message.data(), len(message), message.batch_index) == (b"hello", 5, 3)
    place = message.message_id()
    assert place == MessageId(2, 7, 8, 3) and place.batch_size() == 4 and place.topic_name() == entry.topic
    entry.is_batch, entry.first_chunk = False, MessageId(2, 7, 1)
    chunked = kind_of(fields)(entry, -1, 0, 0, 9).message_id()
    assert (chunked.batch_size(), chunked.first_chunk_message_id()) == (0, entry.first_chunk)
    assert message._single() is message._single() and entry.asked == [(0, 2)]


@pytest.mark.parametrize("places", [(0, 0), (9, 9), (3, 100), (100, 200), (5, 2)])
def test_message_fields_data_outside_body_as_slice(fields: ModuleType, places: tuple[int, int]) -> None:
    body = b"..hello.."
    for held in (body, bytearray(body)):
        message = kind_of(fields)(Entry(held), 0, 0, *places)
        assert message.data() == body[places[0] : places[1]]


def test_message_fields_invalid_utf8_replaced(fields: ModuleType) -> None:
    raw = pb.SingleMessageMetadata.FromString(b"\x0a\x06\x0a\x01a\x12\x01\xff\x12\x01\xfe\x18\x00")
    message = kind_of(fields)(SimpleNamespace(fields=lambda *_: raw), 0, 0, 0, 0)
    assert (message.partition_key(), message.properties()) == ("\ufffd", {"a": "\ufffd"})


def test_message_fields_may_be_null(fields: ModuleType) -> None:
    kind = kind_of(fields)
    null, plain = (
        pb.SingleMessageMetadata(payload_size=5, null_value=each).SerializeToString() for each in (True, False)
    )
    other = pb.SingleMessageMetadata(payload_size=5, sequence_id=7, partition_key="k").SerializeToString()
    # 0x48 elsewhere: the fields are read then.
    doubtful = pb.SingleMessageMetadata(payload_size=5, partition_key="H").SerializeToString()
    for meta, expected in ((null, True), (plain, True), (other, False), (doubtful, True)):
        message = kind(Entry(b"...." + meta + b"hello"), 0, 4, 4 + len(meta), 9 + len(meta))
        assert message._may_be_null() is expected
    # Without a batch the mark is among the entry's metadata.
    assert kind(Entry(b"hello"), -1, 0, 0, 5)._may_be_null()


def test_message_fields_bulk_creation(fields: ModuleType) -> None:
    kind, entry = kind_of(fields), Entry(bytes(range(100)))
    uniform = fields.make_uniform_messages(kind, entry, 2, 5, 3, 4)
    places = [(index * 11 + 4, index * 11 + 7, index * 11 + 11) for index in range(2, 5)]
    listed = fields.make_messages(kind, entry, 2, 5, places)
    for made in (uniform, listed):
        assert [type(message) for message in made] == [kind] * 3
        assert [message.batch_index for message in made] == [2, 3, 4]
        assert [message.data() for message in made] == [entry.body[start:end] for _, start, end in places]
        assert [message._meta_start for message in made] == [start for start, _, _ in places]
    assert fields.make_uniform_messages(kind, entry, 5, 5, 3, 4) == []


def ignored(_message: object) -> None:
    """Take no notice of a message that is added while nobody groups them."""


def test_pending_acks_runs_as_indexes_tell(fields: ModuleType) -> None:
    chance = random.Random(7)
    kind, entries = kind_of(fields), [Entry(number=number) for number in range(4)]
    pending = fields.PendingAcks(ignored)
    for _ in range(300):
        acked = [kind(chance.choice(entries), chance.randrange(-1, 5), 0, 0, 0) for _ in range(chance.randrange(12))]
        if chance.random() < 0.5:
            acked = [kind(entries[0], index, 0, 0, 0) for index in range(chance.randrange(1, 9))]
        for message in acked:
            pending.add(message)
        assert len(pending) == len(acked) and bool(pending) is bool(acked)
        if acked and chance.random() < 0.3:
            gone = acked.pop(chance.randrange(len(acked)))
            pending.remove(gone)
            assert len(pending) == len(acked)
        runs = pending.take_runs()
        assert not pending and pending.take_runs() == []
        found = []
        for entry, first, number, indexes in runs:
            own = list(range(first, first + number)) if indexes is None else indexes
            assert len(own) == number and own[0] == first
            found += [(entry.entry_id, index) for index in own]
        assert sorted(found) == sorted((message.entry.entry_id, message.batch_index) for message in acked)
        assert all(run[0] is not following[0] for run, following in pairwise(runs))


def test_pending_acks_whole_entries_apart(fields: ModuleType) -> None:
    chance = random.Random(11)
    kind = kind_of(fields)
    for _ in range(300):
        entries = [Entry(number=number, batch_size=chance.choice((0, 1, 3))) for number in range(5)]
        complete, partial = {(7, 0): 9}, {(7, number): "open" for number in (1, 2) if chance.random() < 0.5}
        pending = fields.PendingAcks(ignored)
        acked: dict[int, list[int]] = {}
        for entry in chance.sample(entries, 4):
            indexes = list(range(max(entry.batch_size, 1)))
            if entry.batch_size > 1 and chance.random() < 0.3:
                chance.shuffle(indexes)
            for index in indexes[: chance.choice((1, 3))]:
                acked.setdefault(entry.entry_id, []).append(index if entry.batch_size else -1)
                pending.add(kind(entry, acked[entry.entry_id][-1], 0, 0, 0))
        runs = pending.take_parts(complete, partial)
        assert not len(pending)
        whole = {
            number for number, indexes in acked.items()
            if (7, number) not in partial and indexes in ([-1], list(range(entries[number].batch_size)))
        }  # fmt: skip
        assert complete == {(7, 0): 9} | {(7, number): entries[number].batch_size or 1 for number in whole - {0}}
        left = {
            run[0].entry_id: list(range(run[1], run[1] + run[2])) if run[3] is None else run[3] for run in runs
        }  # fmt: skip
        assert left == {number: indexes for number, indexes in acked.items() if number not in whole}


def test_make_deliveries_as_one_by_one(fields: ModuleType) -> None:
    kind = type("Kind", (fields.DeliveryFields,), {"__slots__": ()})
    frames = []
    for number in range(5):
        message = pb.CommandMessage(consumer_id=3, message_id=pb.MessageIdData(ledgerId=1 << 40, entryId=number))
        message.redelivery_count = number
        message.ack_set.extend(range(number % 2))
        frames.append(Frame(pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=message), b"%d" % number))
    names = ("ledger_id", "entry_id", "redelivery_count", "ack_words", "payload", "attachment", "epoch")
    made = fields.make_deliveries(kind, frames, 4)
    single = [kind(frame.command.message, frame.payload, 4) for frame in frames]
    assert [type(each) for each in made] == [kind] * 5
    assert [[getattr(each, name) for name in names] for each in made] == [
        [getattr(each, name) for name in names] for each in single
    ]
    assert fields.make_deliveries(kind, [], 4) == []


def test_pending_acks_flag_remove_and_clear(fields: ModuleType) -> None:
    kind, pending = kind_of(fields), fields.PendingAcks(ignored)
    first, second = kind(Entry(number=1), 0, 0, 0, 0), kind(Entry(number=2), 0, 0, 0, 0)
    assert not pending.is_open
    pending.is_open = True
    pending.add(first)
    with pytest.raises(ValueError):
        pending.remove(second)
    assert pending.is_open and len(pending) == 1
    pending.clear()
    assert not pending and pending.take_runs() == []


def test_pending_acks_add_while_closed_calls_owner(fields: ModuleType) -> None:
    kind, told = kind_of(fields), []
    first, second, third = (kind(Entry(number=number), 0, 0, 0, 0) for number in range(3))

    def on_closed(message: Any) -> None:
        # Added already: whoever groups them now finds it.
        told.append((message, len(pending)))
        if message is second:
            pending.remove(message)
            raise ValueError("closed")

    pending = fields.PendingAcks(on_closed)
    pending.add(first)
    with pytest.raises(ValueError, match="closed"):
        pending.add(second)
    pending.is_open = True
    pending.add(third)
    assert told == [(first, 1), (second, 2)] and len(pending) == 2


def test_pending_acks_of_several_threads_all_taken(fields: ModuleType) -> None:
    kind, pending = kind_of(fields), fields.PendingAcks(ignored)
    entries = [Entry(number=number) for number in range(3)]
    own = [[kind(entry, index, 0, 0, 0) for index in range(3000)] for entry in entries]
    begun = threading.Barrier(4)

    def append(messages: list[Any]) -> None:
        begun.wait(10)
        for message in messages:
            pending.add(message)

    threads = [threading.Thread(target=append, args=(messages,)) for messages in own]
    for thread in threads:
        thread.start()
    begun.wait(10)
    runs = []
    while any(thread.is_alive() for thread in threads):
        runs += pending.take_runs()
    runs += pending.take_runs()
    assert sum(number for _, _, number, _ in runs) == 9000
    for entry in entries:
        found = [
            index
            for each, first, number, indexes in runs
            if each is entry
            for index in (range(first, first + number) if indexes is None else indexes)
        ]
        assert sorted(found) == list(range(3000))


def queue_of(fields: ModuleType, way: str, entry: Entry) -> Any:
    """Return a queue with the messages 2 to 5 of an entry."""
    kind, queue = kind_of(fields), fields.MessageQueue()
    if way == "uniform":
        queue.extend_uniform(kind, entry, 2, 6, 3, 4)
    elif way == "places":
        places = [(index * 11 + 4, index * 11 + 7, index * 11 + 11) for index in range(9)]
        queue.extend_places(kind, entry, 2, 6, places)
    elif way == "packed":
        places = [(index * 11 + 4, index * 11 + 7, index * 11 + 11) for index in range(9)]
        queue.extend_packed(kind, entry, 2, 6, b"".join(struct.pack("=iii", *place) for place in places))
    else:
        queue.extend(fields.make_uniform_messages(kind, entry, 2, 6, 3, 4))
    return queue


@pytest.mark.parametrize("way", ["uniform", "places", "packed", "made"])
def test_message_queue_from_both_ends(fields: ModuleType, way: str) -> None:
    entry = Entry(bytes(range(100)))
    queue = queue_of(fields, way, entry)
    assert len(queue) == 4
    first, last = queue.popleft(), queue.pop()
    assert (first.batch_index, last.batch_index, len(queue)) == (2, 5, 2)
    for message in (first, last):
        at = message.batch_index * 11
        assert message.data() == entry.body[at + 7 : at + 11] and message.entry is entry
        assert (message._meta_start, len(message)) == (at + 4, 4)
    # Messages made before follow those of the entry.
    queue.extend_uniform(kind_of(fields), entry, 7, 8, 3, 4)
    queue.extend_packed(kind_of(fields), entry, 0, 1, struct.pack("=iii", 4, 7, 11))
    left = [queue.popleft() for _ in range(4)]
    assert [message.batch_index for message in left] == [3, 4, 7, 0] and not queue
    assert [message.data() for message in left[2:]] == [entry.body[84:88], entry.body[7:11]]
    for take in (queue.pop, queue.popleft):
        with pytest.raises(IndexError):
            take()


@pytest.mark.parametrize("way", ["uniform", "places", "packed", "made"])
def test_message_queue_drains_up_to_count_and_bytes(fields: ModuleType, way: str) -> None:
    def drained(count: int, most: int) -> tuple[list[int], int, int]:
        messages: list[Any] = []
        queue = queue_of(fields, way, Entry(bytes(100)))
        size = queue.drain_to(messages, count, most)
        return [message.batch_index for message in messages], size, len(queue)

    assert drained(9, 1000) == ([2, 3, 4, 5], 16, 0)
    assert drained(3, 1000) == ([2, 3, 4], 12, 1)
    assert drained(9, 8) == ([2, 3], 8, 2) and drained(9, 11) == ([2, 3], 8, 2)
    assert drained(9, 3) == ([], 0, 4) and drained(9, -1) == ([], 0, 4)
    assert drained(0, 1000) == ([], 0, 4)


@pytest.mark.parametrize("way", ["uniform", "places", "packed", "made"])
def test_message_queue_size_of_the_first(fields: ModuleType, way: str) -> None:
    queue = queue_of(fields, way, Entry(bytes(100)))
    queue.extend([kind_of(fields)(Entry(), -1, 0, 3, 10)])
    seen = []
    while len(queue):
        seen.append((queue.first_size(), len(queue.popleft())))
    assert seen == [(4, 4)] * 4 + [(7, 7)] and queue.first_size() == -1


@given(
    sizes=st.lists(st.integers(0, 9), max_size=20),
    made=st.integers(0, 20),
    packed=st.booleans(),
    calls=st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 30)), max_size=6),
)
def test_message_queue_drains_what_fits(
    sizes: list[int], made: int, packed: bool, calls: list[tuple[int, int]]
) -> None:
    places = [(0, sum(sizes[:index]), sum(sizes[: index + 1])) for index in range(len(sizes))]
    expected = list(sizes)
    for fields in [plain()] if environments.no_speedups() else [plain(), compiled()]:
        kind, entry, queue = kind_of(fields), Entry(bytes(200), batch_size=len(sizes)), fields.MessageQueue()
        first = max(0, len(sizes) - made)
        if packed:
            queue.extend_packed(kind, entry, 0, first, b"".join(struct.pack("=iii", *place) for place in places))
        else:
            queue.extend_places(kind, entry, 0, first, places)
        queue.extend([kind(entry, index, *places[index]) for index in range(first, len(sizes))])
        expected = list(sizes)
        for count, most in calls:
            fitting, left = [], most
            while expected and len(fitting) < count and expected[0] <= left:
                left -= expected[0]
                fitting.append(expected.pop(0))
            messages: list[Any] = []
            assert queue.drain_to(messages, count, most) == sum(fitting)
            assert list(map(len, messages)) == fitting and len(queue) == len(expected)


def test_message_queue_drained_by_several_threads_loses_nothing(fields: ModuleType) -> None:
    kind, entry, queue = kind_of(fields), Entry(bytes(100)), fields.MessageQueue()
    places = [(0, 0, index % 5) for index in range(20_000)]
    queue.extend_packed(kind, entry, 0, len(places), b"".join(struct.pack("=iii", *place) for place in places))
    begun = threading.Barrier(3)
    taken: list[list[Any]] = [[], [], []]

    def drain(own: list[Any]) -> None:
        begun.wait(10)
        while len(queue):
            queue.drain_to(own, 7, 9)

    threads = [threading.Thread(target=drain, args=(own,)) for own in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    indexes = [[message.batch_index for message in own] for own in taken]
    assert all(own == sorted(own) for own in indexes)
    assert sorted(index for own in indexes for index in own) == list(range(len(places)))


def test_message_queue_frees_the_entry(fields: ModuleType) -> None:
    entry = Entry(bytes(100))
    before = sys.getrefcount(entry)
    for empty in ("clear", "popleft", "pop"):
        queue = queue_of(fields, "uniform", entry)
        assert sys.getrefcount(entry) > before
        for _ in range(1 if empty == "clear" else 4):
            getattr(queue, empty)()
        assert len(queue) == 0 and sys.getrefcount(entry) == before, empty


def test_message_queue_compiled_checks_places_and_kind() -> None:
    # Plain Python reads the places at once, the compiled queue on dequeue.
    for fields in [] if environments.no_speedups() else [compiled()]:
        queue = fields.MessageQueue()
        with pytest.raises(ValueError, match="places of 1"):
            queue.extend_places(kind_of(fields), Entry(), 0, 2, [(0, 1, 2)])
        with pytest.raises(ValueError, match="places of 1"):
            queue.extend_packed(kind_of(fields), Entry(), 0, 2, bytes(12))
        with pytest.raises(TypeError, match="no kind of message"):
            queue.extend_uniform(int, Entry(), 0, 2, 3, 4)
        assert len(queue) == 0


def test_compiled_forms_look_like_their_methods() -> None:
    for method in (
        Consumer.receive, Consumer.acknowledge, Reader.read_next, Producer.send_async, asyncio_api.Producer.send
    ):  # fmt: skip
        assert inspect.signature(method).return_annotation and method.__doc__
        assert method.__qualname__.partition(".")[0] in ("Consumer", "Producer", "Reader")
        assert hasattr(method, "__wrapped__") is chosen.is_compiled
    assert list(inspect.signature(Consumer.acknowledge).parameters) == ["self", "message", "txn"]
    if chosen.is_compiled:
        # The parameters are repeated there: by position they must mean the same.
        for form in (compiled().send_async, compiled().send):
            assert _parameters(form.__wrapped__) == _parameters(form, of_form=True)


def _parameters(function: Any, *, of_form: bool = False) -> list[tuple[str, Any]]:
    signature = inspect.signature(function, follow_wrapped=not of_form)
    return [(each.name, each.default) for each in signature.parameters.values()]


def test_message_class_same_with_either_implementation() -> None:
    entry: Any = Entry(b"hello")
    for kind in (Message, KeyedMessage):
        message = kind(entry, 1, 0, 0, 5)
        assert type(message) is kind and isinstance(message, Message) and issubclass(kind, chosen.MessageFields)
        assert kind.__slots__ == () and not hasattr(message, "__dict__")
        with pytest.raises(AttributeError):
            message.anything = 1  # type: ignore[attr-defined]
        for method in (
            Message.data, Message.message_id, Message.properties, Message.partition_key, Message.ordering_key,
            Message.event_timestamp, Message.publish_timestamp, Message.topic_name, Message.redelivery_count,
        ):  # fmt: skip
            # Python 3.13 removes the indentation of docstrings when it compiles; Cython does not.
            doc = inspect.getdoc(method) or ""
            assert doc == inspect.getdoc(getattr(plain().MessageFields, method.__name__))
            assert doc.startswith("Return the")
        assert copy.copy(message).data() == b"hello" and copy.copy(message).message_id() == message.message_id()
    assert Message[bytes] is not None


# ---- messages to send ------------------------------------------------------------------------------------------------


def test_buffer_drains_payloads_in_order(fields: ModuleType) -> None:
    buffer = fields.FastPathBuffer()
    assert (buffer.capacity, buffer.max_payload, buffer.is_open, buffer.has_tuples) == (0, 0, False, False)
    buffer.capacity, buffer.is_open = 5, True
    buffer.items.extend([b"a", b"b"])
    buffer.close()
    assert (buffer.capacity, buffer.is_open) == (0, False)
    assert buffer.drain() == ([b"a", b"b"], None, None, 2) and buffer.drain() == ([], None, None, 0)


def test_buffer_drains_callbacks_and_fields_beside_payloads(fields: ModuleType) -> None:
    buffer = fields.FastPathBuffer()
    buffer.has_tuples = True
    callback = (print,)
    buffer.items.extend([b"a", (b"bb", callback, b""), (b"c", None, b"own"), b"d"])
    fields_of = [b"", b"", b"own", b""]
    assert buffer.drain() == ([b"a", b"bb", b"c", b"d"], [None, callback, None, None], fields_of, 5)
    assert buffer.drain() == ([], [], [], 0)


def test_buffer_append_during_drain_stays() -> None:
    """A writer appends between the copy and the removal; compiled, nothing comes between these two."""

    class Raced(list[Any]):
        def __getitem__(self, item: Any) -> Any:
            copied = super().__getitem__(item)
            self.append(b"late")
            return copied

    buffer = plain().FastPathBuffer()
    buffer.items = Raced([b"a"])
    assert buffer.drain() == ([b"a"], None, None, 1)
    assert list(buffer.items) == [b"late"]


def test_callbacks_get_result_and_own_ids(fields: ModuleType) -> None:
    called: list[Any] = []
    unstored = MessageId()

    def note(*arguments: Any) -> None:
        called.append(arguments)

    fields.call_back([None, (note,), note], (None, "ok"), (2, 7, 8), "t", unstored, called.clear)
    (result, first), (error, second) = called
    assert (result, error) == ("ok", None)
    for index, message_id in ((1, first), (2, second)):
        assert message_id == MessageId(2, 7, 8, index)
        assert (message_id.batch_size(), message_id.topic_name()) == (3, "t")
        assert message_id.first_chunk_message_id() is None
    called.clear()
    late = TimeoutError("late")
    fields.call_back([(note,), note], (late, "timed out"), None, "t", unstored, called.clear)
    assert called == [("timed out", unstored), (late, None)] and called[0][1] is unstored


@pytest.mark.parametrize("kind", [ValueError, SystemExit, asyncio.CancelledError, *OWN_ERRORS])
def test_callbacks_after_a_raising_one_are_called(fields: ModuleType, kind: type[BaseException]) -> None:
    called: list[Any] = []

    def broken(*_: Any) -> None:
        raise kind("the application's own")

    def failed() -> None:
        called.append(sys.exc_info()[1])

    callbacks = [broken, (broken,), lambda *_: called.append("last")]
    in_other_thread(fields.call_back, callbacks, (None, 0), None, "t", MessageId(), failed)
    assert [str(each) for each in called] == ["the application's own", "the application's own", "last"]


@pytest.mark.parametrize("kind", OWN_ERRORS)
def test_callback_interrupts_the_main_thread(fields: ModuleType, kind: type[BaseException]) -> None:
    def broken(*_: Any) -> None:
        raise kind

    with pytest.raises(kind):
        fields.call_back([broken, broken], (None, 0), None, "t", MessageId(), lambda: pytest.fail("logged"))


# ---- entries of one message ---------------------------------------------------------------------------------------

# Entries that need nothing but parsing, and all others.
ORDINARY = {
    "single": single_entry(b"hello", partition_key="k", event_time=5),
    "empty": single_entry(b""),
    "batch of one": batch_entry([b"hello"], singles=[{"properties": {"a": "b"}}]),
    "with the broker's metadata": batch_entry([b"x"], broker=pb.BrokerEntryMetadata(broker_timestamp=5, index=9)),
    "without checksum": assemble(metadata_of(), b"body", checksum=False),
}
OTHERS = {
    "batch": batch_entry([b"one", b"two"]),
    "compressed": single_entry(b"hello" * 9, compression=CompressionType.LZ4),
    "encrypted": single_entry(b"hello", encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")]),
    "chunk": single_entry(b"hello", uuid="u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=10),
    "compacted out": batch_entry([b"hello"], compacted_out=[0]),
    "compacted": batch_entry([b"hello"], compacted_batch_indexes=[0]),
    "wrong checksum": single_entry(b"hello")[:-1] + b"O",
    "no entry": b"damaged",
    "body too short": assemble(metadata_of(num_messages_in_batch=1), b"\0\0\0\x05\x18\x05"),
}


@pytest.fixture(params=_impl.available())
def singles(request: pytest.FixtureRequest, fields: ModuleType) -> Iterator[Any]:
    """Give each decoder of entries of one message with each parser; its kinds of entry and message are its module's."""
    _impl.select(request.param)
    entry_kind: Any = type("EntryKind", (fields.EntryFields,), {"__slots__": ()})
    yield fields.SingleEntryDecoder(single_parser(), _impl.only_place, entry_kind, kind_of(fields), "t", 2, None)
    _impl.select(os.environ.get(_impl.VARIABLE) or None)


def delivered(
    fields: ModuleType, payload: bytes, entry: int, *, words: Sequence[int] = (), attachment: int = 3, epoch: int = 0
) -> Any:
    place = pb.MessageIdData(ledgerId=7, entryId=entry)
    message = pb.CommandMessage(consumer_id=1, message_id=place, ack_set=words, redelivery_count=4)
    return fields.DeliveryFields(message, payload, attachment, epoch)


@pytest.mark.parametrize("name", ORDINARY)
def test_single_entry_decoder_as_the_usual_one(fields: ModuleType, singles: Any, name: str) -> None:
    queue = deque([delivered(fields, ORDINARY[name], number) for number in (5, 6)])
    usual = decode(
        delivered(chosen, ORDINARY[name], 6), topic="t", partition=2, schema=None, start=StartFilter(None, False),
        missing=None, max_message_size=1 << 20, together=lambda *_: None,
    )  # fmt: skip
    assert usual is not None
    wanted: Any = usual.messages()[0]
    first, second = singles.decode(queue, 3, 0, (7, 4), {}, 10, 100)
    assert not queue and first.message_id() < second.message_id() == wanted.message_id()
    assert second.message_id().batch_size() == wanted.message_id().batch_size()
    assert (second.data(), len(second), second._meta_start) == (wanted.data(), len(wanted), wanted._meta_start)
    for attribute in ("ledger_id", "entry_id", "redelivery_count", "is_batch", "batch_size", "topic", "partition",
                      "schema", "publish_time", "first_chunk", "decryption_failed", "body"):  # fmt: skip
        assert getattr(second.entry, attribute) == getattr(wanted.entry, attribute), attribute
    parsed = wanted.entry.parsed
    assert (second.entry.parsed.index, second.entry.parsed.metadata) == (parsed.index, parsed.metadata)
    # No second copy of the payload is kept: released, or the body itself.
    assert second.entry.parsed.body == b"" or second.entry.parsed.body is second.entry.body


@pytest.mark.parametrize("name", OTHERS)
def test_single_entry_decoder_leaves_the_others(fields: ModuleType, singles: Any, name: str) -> None:
    queue = deque(
        [delivered(fields, ORDINARY["single"], 5), *(delivered(fields, OTHERS[name], number) for number in (6, 7))]
    )
    assert [message.data() for message in singles.decode(queue, 3, 0, (7, 4), {}, 10, 100)] == [b"hello"]
    assert [each.entry_id for each in queue] == [6, 7] and singles.decode(queue, 3, 0, (7, 4), {}, 10, 100) == []


def test_single_entry_decoder_limits(fields: ModuleType, singles: Any) -> None:
    def left(*queued: Any, after: int = 4, most: int = 10, size: int = 100) -> list[int]:
        queue = deque(queued)
        messages = singles.decode(queue, 3, 0, (7, after), {(7, 8): 1}, most, size)
        assert len(messages) + len(queue) == len(queued)
        return [each.entry_id for each in queue]

    entries = [delivered(fields, ORDINARY["single"], number) for number in range(5, 10)]
    assert left(*entries) == [8, 9], "acknowledged"
    assert left(*entries, after=5) == [5, 6, 7, 8, 9]
    assert left(*entries, most=2) == [7, 8, 9] and left(*entries, most=0) == [5, 6, 7, 8, 9]
    # Of five bytes each: none more when there are so many.
    assert left(*entries, size=5) == [6, 7, 8, 9] and left(*entries, size=6) == [7, 8, 9]
    assert left(*entries[:3], *entries[:2]) == [5, 6], "again"
    assert left(entries[0], delivered(fields, ORDINARY["single"], 6, attachment=2)) == [6]
    assert left(entries[0], delivered(fields, ORDINARY["single"], 6, epoch=1)) == [6]
    assert left(entries[0], delivered(fields, ORDINARY["batch of one"], 6, words=[1])) == [6]
    assert left() == []


def test_messages_are_freed_with_their_entry() -> None:
    entry: Any = Entry(b"hello" * 20)
    before = sys.getrefcount(entry)
    made = chosen.make_uniform_messages(Message, entry, 0, 10, 1, 5)
    assert sys.getrefcount(entry) == before + 10
    assert not chosen.is_compiled or not any(map(gc.is_tracked, made))
    del made
    assert sys.getrefcount(entry) == before


def test_ids_are_freed_with_their_topic() -> None:
    entry: Any = Entry(b"hello" * 20)
    topic = entry.topic = "".join(("persistent://public/", "default/t"))
    entry.first_chunk = MessageId(2, 7, 1)
    before = sys.getrefcount(topic), sys.getrefcount(entry.first_chunk)
    made = [message.message_id() for message in chosen.make_uniform_messages(Message, entry, 0, 10, 1, 5)]
    assert (sys.getrefcount(topic), sys.getrefcount(entry.first_chunk)) == (before[0] + 10, before[1] + 10)
    assert not chosen.is_compiled or not any(map(gc.is_tracked, made))
    made[0]._topic = made[0]._partition = None  # type: ignore[assignment]
    assert sys.getrefcount(topic) == before[0] + 9
    del made
    assert (sys.getrefcount(topic), sys.getrefcount(entry.first_chunk)) == before


def test_messages_to_send_are_untracked() -> None:
    def callback(*_: object) -> None:
        """Do nothing."""

    # In plain Python the tuples are left to the collector.
    for fields in [] if environments.no_speedups() else [compiled()]:
        buffer = fields.FastPathBuffer()
        buffer.capacity, buffer.max_payload, buffer.is_open = 5, 100, True
        before = sys.getrefcount(callback)
        producer = SimpleNamespace(_fast_path=buffer, _process=SimpleNamespace(is_over=False))
        fields.send_async(producer, b"x", callback)
        (item,) = buffer.items
        assert item == (b"x", (callback,), b"") and not gc.is_tracked(item) and not gc.is_tracked(item[1])
        del item
        buffer.close()
        buffer.drain()
        assert sys.getrefcount(callback) == before
