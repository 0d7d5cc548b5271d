"""Producer state machine: ids, batches, the pending queue, and the encoded bytes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pulsar_native.enums import BatchingType, CompressionType
from pulsar_native.exceptions import MessageTooBig, PulsarException, Timeout, UnknownError
from pulsar_native.protocol import producer
from pulsar_native.protocol.batch_builder import BatchBuilder
from pulsar_native.protocol.data_keys import Encryptor
from pulsar_native.protocol.producer import ProducerCore
from pulsar_native.protocol.send_op import PendingQueue, SendOp, SendReceipt
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.codec import parse_single, split_batch, usual_fields
from pulsar_native.wire.compression import decompress
from pulsar_native.wire.entry import parse_entry
from pulsar_native.wire.frames import FrameDecoder
from support.producer_cores import TOPIC, add, bytes_of, core, read
from support.signals import TimeLimit, time_limit

# --- against a model --------------------------------------------------------------------------------------------


# Fields of a message as the fast path takes them.
DESCRIBED = usual_fields({"a": "b"}, "key", "order", 7) or b""


class Message(NamedTuple):
    """A message of the model: its number, what it is, and how it stood to what the broker has when it was added."""

    number: int
    payload: bytes
    kind: str  # fresh, known (the broker has it) or uncertain (sent before, no receipt)


class ProducerModel(RuleBasedStateMachine):
    """The producer against a list of what the application sent and what became of it."""

    MAX_MESSAGES, MAX_BYTES, LARGEST = 4, 300, 2000

    @initialize(
        batching=st.booleans(),
        last=st.sampled_from([-1, -1, 20]),
        initial=st.sampled_from([None, None, 0, 100]),
        compression=st.sampled_from([CompressionType.NONE, CompressionType.LZ4]),
    )
    def start(self, batching: bool, last: int, initial: int | None, compression: CompressionType) -> None:
        self.core = core(
            max_message_size=self.LARGEST,
            last_sequence_id=last,
            batching_enabled=batching,
            batching_max_messages=self.MAX_MESSAGES,
            batching_max_allowed_size_in_bytes=self.MAX_BYTES,
            send_timeout_millis=10_000,
            initial_sequence_id=initial,
            compression_type=compression,
        )
        self.now = 0.0
        self.outstanding: list[Message] = []
        self.added_at: list[float] = []
        self.done: list[tuple[bytes, PulsarException | None]] = []
        self.written: list[SendOp] = []
        self.snapshots: dict[int, bytes] = {}
        self.ops: list[SendOp] = []  # kept alive, so that id() stays theirs
        self.next = (last + 1) if initial is None else initial + 1
        self.pushed = max(last, -1 if initial is None else initial)
        self.stored = last
        self.published = last if initial is None else initial
        self.counter = 0

    # --- the application

    @rule(
        size=st.integers(0, 150),
        number=st.none() | st.integers(0, 130),
        own=st.sampled_from([False, False, False, True]),
        key=st.sampled_from([None, "k"]),
    )
    def send(self, size: int, number: int | None, own: bool, key: str | None) -> None:
        self.counter += 1
        payload = b"%d." % self.counter + bytes(size)
        parts: dict[str, Any] = {}
        if number is not None:
            parts["sequence_id"] = number
        if own:
            parts["deliver_at"] = 5
        if key:
            parts["partition_key"] = key
        used = self.next if number is None else number
        kind = "fresh" if used > self.pushed else "known" if used <= self.stored else "uncertain"
        before = len(self.core.queue.ops)
        callback = lambda error, place: self.done.append((payload, error))  # noqa: E731
        ready = add(self.core, payload, self.now, callback, **parts)
        self.outstanding.append(Message(used, payload, kind))
        self.added_at.append(self.now)
        self.next = max(self.next, used + 1)
        self.pushed = max(self.pushed, used)
        self._wrote(ready)
        assert list(self.core.queue.ops)[before:] == ready
        if not self.core.batching or own:
            assert not self.core.batch_is_open

    @rule(in_a_batch=st.booleans())
    def send_too_much(self, in_a_batch: bool) -> None:
        payload = random.Random(self.counter).randbytes(self.LARGEST)
        parts = {} if in_a_batch else {"deliver_at": 1}
        with pytest.raises(MessageTooBig):
            add(self.core, payload, self.now, None, **parts)

    @rule(
        sizes=st.lists(st.integers(0, 150), min_size=1, max_size=6),
        late=st.booleans(),
        waits=st.booleans(),
        fields=st.sampled_from([b"", b"", DESCRIBED]),
    )
    def put(self, sizes: list[int], late: bool, waits: bool, fields: bytes) -> None:
        """Put messages into the fast path while it is open, or too late, as threads do that saw it open before."""
        self._wrote(self.core.drain_fast_path())
        self.core.open_fast_path(100, 10_000)
        fast_path = self.core.fast_path
        if late:
            fast_path.close()
        for size in sizes:
            payload = b"%d." % (self.counter + 1) + bytes(size)
            size = len(payload) + len(fields)
            if not late and (len(fast_path.items) >= fast_path.capacity or size > fast_path.max_payload):
                continue
            self.counter += 1
            callback = lambda error, place, payload=payload: self.done.append((payload, error))  # noqa: E731
            fast_path.has_tuples = True
            fast_path.items.append((payload, callback, fields))
            kind = "fresh" if self.next > self.pushed else "known" if self.next <= self.stored else "uncertain"
            self.outstanding.append(Message(self.next, payload, kind))
            self.added_at.append(self.now)
            self.pushed = max(self.pushed, self.next)
            self.next += 1
        if late:
            assert not fast_path.is_open
            self._wrote(self.core.drain_late(self.now, 1))
        elif not waits:
            assert self.core.drain_fast_path() == []

    @rule()
    def flush(self) -> None:
        self._wrote(self.core.close_batch())
        assert not self.core.batch_is_open

    @rule(seconds=st.sampled_from([0.001, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # --- the broker

    def _wrote(self, ops: list[SendOp]) -> None:
        for op in ops:
            assert id(op) not in self.snapshots
            self.snapshots[id(op)] = bytes_of(op)
            self.ops.append(op)
            self._check_entry(op)
        self.written += ops

    def _check_entry(self, op: SendOp) -> None:
        position = sum(other.count for other in list(self.core.queue.ops)[: list(self.core.queue.ops).index(op)])
        mine = self.outstanding[position : position + op.count]
        sent = read(op)
        assert sent.messages == [(message.number, message.payload) for message in mine]
        assert (sent.command.producer_id, sent.command.sequence_id) == (7, mine[0].number)
        assert op.highest_sequence_id == max(message.number for message in mine)
        assert op.size == sum(len(message.payload) for message in mine)
        if op.count > 1:
            assert op.count <= self.MAX_MESSAGES
            assert len(sent.body) <= self.MAX_BYTES + 40
            assert len({message.kind for message in mine}) == 1 and mine[0].kind != "uncertain"
            assert sent.command.num_messages == op.count == sent.entry.metadata.num_messages_in_batch
            assert sent.command.highest_sequence_id == op.highest_sequence_id
        else:
            # A batch of one is a plain message, and the broker's count stays unset.
            assert not sent.entry.is_batch and not sent.command.HasField("num_messages")
            assert not sent.command.HasField("highest_sequence_id")

    @precondition(lambda self: self.core.queue.ops)
    @rule()
    def receipt(self) -> None:
        head = self.core.queue.ops[0]
        outcome, op = self.core.queue.receipt(head.sequence_id)
        assert (outcome, op) == (SendReceipt.COMPLETED, head)
        head.complete(None, (2, 5, 6), TOPIC)
        self._settle(head.count, None)
        self.published = max(self.published, head.highest_sequence_id)
        self.stored = max(self.stored, head.highest_sequence_id)

    def _settle(self, count: int, error: type[PulsarException] | None) -> None:
        settled, self.outstanding = self.outstanding[:count], self.outstanding[count:]
        self.added_at = self.added_at[count:]
        recent = self.done[-count:] if count else []
        assert [payload for payload, _ in recent] == [message.payload for message in settled]
        assert all((failure is None) if error is None else isinstance(failure, error) for _, failure in recent)

    @rule(number=st.integers(0, 130))
    def receipt_of_something_else(self, number: int) -> None:
        before = list(self.core.queue.ops)
        if before and before[0].sequence_id == number:
            return
        outcome, op = self.core.queue.receipt(number)
        ahead = bool(before) and number > before[0].sequence_id
        assert (outcome, op) == (SendReceipt.OUT_OF_STEP if ahead else SendReceipt.IGNORED, None)
        assert list(self.core.queue.ops) == before

    @rule(number=st.integers(0, 130))
    def refused_for_good(self, number: int) -> None:
        queue = self.core.queue
        head, *others = queue.ops or [None]
        if any(op.is_named_by(number) for op in others):
            return
        error = MessageTooBig("no")
        queue.refuse(number, error)
        taken = queue.take_refused()
        if head is None or number != max(head.sequence_id, head.highest_sequence_id):
            assert not taken and not queue.refused
            return
        assert taken == [(head, error)]
        head.complete(MessageTooBig("no"), None, TOPIC)
        self._settle(head.count, MessageTooBig)

    @rule(stored=st.booleans())
    def reconnect(self, stored: bool) -> None:
        # What the broker has stored may be ahead of the receipts we have.
        highest = max((message.number for message in self.outstanding), default=-1)
        last = max(self.stored, highest) if stored else self.stored
        before = list(self.core.queue.ops)
        self.core.connected("the-name", last, b"", self.LARGEST)
        assert list(self.core.queue.ops) == before
        self.stored = max(self.stored, last)
        if not self.outstanding:
            self.pushed = max(self.pushed, last)

    @rule()
    def send_time_out(self) -> None:
        due = self.core.next_expiry()
        assert due == (self.added_at[0] + 10.0 if self.outstanding else None)
        ops = self.core.expire(self.now)
        assert bool(ops) == (due is not None and self.now >= due)
        if ops:
            self._gave_up(ops, Timeout)

    @rule()
    def give_up(self) -> None:
        self._gave_up(self.core.drain(), Timeout)

    def _gave_up(self, ops: list[SendOp], error: type[PulsarException]) -> None:
        for op in ops:
            op.complete(error("late"), None, TOPIC)
        self._settle(len(self.outstanding), error)
        assert not self.outstanding and not self.core.queue.ops and not self.core.batch_is_open

    # --- always

    @invariant()
    def counts_never_drift(self) -> None:
        if hasattr(self, "core"):
            assert self.core.pending_messages == len(self.outstanding)
            assert self.core.pending_bytes == sum(len(message.payload) for message in self.outstanding)
            assert self.core.queue.last_published == self.published
            assert self.core.last_pushed + len(self.core.fast_path.items) == self.pushed
            assert not self.core.failed

    @invariant()
    def what_waits_keeps_its_order_and_its_bytes(self) -> None:
        if hasattr(self, "core"):
            for op in self.core.queue.ops:
                assert bytes_of(op) == self.snapshots[id(op)]
                assert op.is_intact()
            waiting = [number for op in self.core.queue.ops for number, _ in read(op).messages]
            assert waiting == [message.number for message in self.outstanding[: len(waiting)]]
            assert self.core.batch_is_open == (len(waiting) < len(self.outstanding))

    @invariant()
    def each_message_is_settled_once(self) -> None:
        if hasattr(self, "core"):
            assert len(self.done) + len(self.outstanding) == self.counter
            assert len({payload for payload, _ in self.done}) == len(self.done)

    def teardown(self) -> None:
        if hasattr(self, "core"):
            self.give_up()
            assert (self.core.pending_messages, self.core.pending_bytes) == (0, 0)


TestProducer = pytest.mark.proves("C63", "C64", "C75", "C79")(ProducerModel.TestCase)


def test_fast_path_leaves_last_message_to_add() -> None:
    made = core(batching_enabled=True, batching_max_messages=10, batching_max_allowed_size_in_bytes=1000)
    made.open_fast_path(100, 10_000)
    assert not made.fast_path.capacity, "no batch is open"
    add(made, bytes(50), 0.0, None)
    made.open_fast_path(100, 10_000)
    assert (made.fast_path.capacity, made.fast_path.max_payload, made.fast_path.is_open) == (8, 50, True)
    made.drain_fast_path()
    assert (made.fast_path.capacity, made.fast_path.is_open) == (0, False)
    made.open_fast_path(3, 10_000)
    assert made.fast_path.capacity == 3
    made.open_fast_path(100, 120)
    assert made.fast_path.capacity == 2, "of the memory limit there is no more"
    made.fast_path.items.extend([bytes(50), bytes(50)])
    made.reserved_bytes = 120
    assert made.drain_fast_path() == [] and made.reserved_bytes == 20 and made.pending_messages == 3
    (op,) = made.close_batch()
    assert ids([op]) == [[0, 1, 2]] and list(op.callbacks) == [None] * 3


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("by_key", [BatchingType.Default, BatchingType.KeyBased])
def test_fast_path_fields_as_added(late: bool, by_key: BatchingType) -> None:
    slow, quick = (core(batching_enabled=True, batching_max_messages=20, batching_type=by_key) for _ in range(2))
    parts: list[dict[str, Any]] = [{}, {"partition_key": "k"}, {"properties": {"a": "b"}, "event_timestamp": 7}] * 4
    payloads = [b"%d" % number + bytes(number) for number in range(len(parts))]
    if not late:
        for made in (slow, quick):
            add(made, b"first", 0.0, None, partition_key="f")
        quick.open_fast_path(100, 10_000)
    quick.fast_path.has_tuples = True
    for payload, part in zip(payloads, parts, strict=True):
        fields = usual_fields(part.get("properties"), part.get("partition_key"), None, part.get("event_timestamp"))
        add(slow, payload, 0.0, None, **part)
        quick.fast_path.items.append((payload, None, fields or b"") if fields else payload)
    assert (quick.drain_late(0.0, 1_700_000_000_000) if late else quick.drain_fast_path()) == []
    wanted, found = slow.close_batch(), quick.close_batch()
    assert list(map(bytes_of, found)) == list(map(bytes_of, wanted))


def test_fast_path_size_counts_fields() -> None:
    made = core(batching_enabled=True, batching_max_messages=100, batching_max_allowed_size_in_bytes=2000)
    add(made, bytes(20), 0.0, None, properties={"name": "v" * 80})
    size = 20 + len(usual_fields({"name": "v" * 80}, None, None, None) or b"")
    made.open_fast_path(100, 10_000)
    assert made.fast_path.max_payload == size == 110
    assert made.fast_path.capacity == (1999 - made.open_batch.size) // (size + made.open_batch.size - size) < 14


def test_fast_path_closed_for_possible_duplicates() -> None:
    made = core(batching_enabled=True, last_sequence_id=20)
    add(made, b"again", 0.0, None, sequence_id=3)
    made.open_fast_path(100, 10_000)
    assert not made.fast_path.capacity
    add(made, b"new", 0.0, None)
    made.open_fast_path(100, 10_000)
    assert made.fast_path.capacity


def test_fast_path_late_append_of_refused_message() -> None:
    made = core(batching_enabled=True, batching_max_messages=2, max_message_size=2000)
    made.fast_path.items.extend([b"a", b"b", b"c"])
    with pytest.raises(MessageTooBig):
        add(made, random.Random(1).randbytes(2000), 0.0, None)
    assert ids(made.drain_fast_path()) == [[0, 1]]
    assert ids(made.close_batch()) == [[2]]


@pytest.mark.parametrize("own", [False, True])
def test_fast_path_append_during_add_keeps_ids(monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    made = core(batching_enabled=True, batching_max_messages=2)
    frame = made._frame

    def framed(*arguments: Any, **options: Any) -> Any:
        # Another thread puts one at the worst moment, having seen the offer of before.
        made.fast_path.items.append(b"late")
        return frame(*arguments, **options)

    monkeypatch.setattr(made, "_frame", framed)
    add(made, b"a", 0.0, None)
    written = add(made, b"b", 0.0, None, **({"deliver_at": 5} if own else {}))
    monkeypatch.undo()
    written += made.drain_late(0.0, 1)
    written += made.close_batch()
    numbers = [number for entry in ids(written) for number in entry]
    assert numbers == list(range(len(numbers))) and len(numbers) == 4 - (not own)
    assert max(op.count for op in written) <= 2


# --- ids --------------------------------------------------------------------------------------------------------


def ids(ops: list[SendOp]) -> list[list[int]]:
    return [[number for number, _ in read(op).messages] for op in ops]


@pytest.mark.proves("C56")
@pytest.mark.parametrize(
    ("options", "last", "first", "published"),
    [
        ({}, -1, 0, -1),
        ({}, 20, 21, 20),
        ({"initial_sequence_id": 100}, -1, 101, 100),
        ({"initial_sequence_id": 100}, 20, 101, 100),
        ({"initial_sequence_id": 5}, 20, 6, 5),
        ({"initial_sequence_id": -1}, 20, 0, -1),
    ],
)
def test_sequence_ids_continue_from_broker_or_config(
    options: dict[str, Any], last: int, first: int, published: int
) -> None:
    made = core(last_sequence_id=last, batching_enabled=False, **options)
    assert made.queue.last_published == published
    assert ids(add(made) + add(made)) == [[first], [first + 1]]


@pytest.mark.proves("C56")
def test_sequence_ids_kept_at_reconnect() -> None:
    made = core(batching_enabled=False)
    add(made)
    made.queue.receipt(0)
    made.connected("the-name", 7, b"", 5 << 20)
    assert ids(add(made)) == [[1]]


@pytest.mark.proves("C75")
def test_possible_duplicates_leave_batch() -> None:
    made = core()
    ready = []
    for number in (5, 6, 5, 7):
        ready += add(made, sequence_id=number)
    assert ids(ready + made.close_batch()) == [[5, 6], [5], [7]]


@pytest.mark.proves("C75")
def test_known_duplicates_share_batch_uncertain_alone() -> None:
    # The broker drops a batch for one message that it has, so 11 to 13 must not travel together: they
    # were sent, their receipts never came, and the broker may have some of them.
    made = core(last_sequence_id=10)
    for number in (11, 12, 13):
        add(made, sequence_id=number)
    made.drain()
    ready = []
    for number in (8, 10, 9, 11, 12, 13, 14, 15):
        ready += add(made, sequence_id=number)
    ready += made.close_batch()
    assert ids(ready) == [[8, 10, 9], [11], [12], [13], [14, 15]]
    assert ready[0].highest_sequence_id == 10


# --- batches ----------------------------------------------------------------------------------------------------


def test_batch_closes_at_message_count() -> None:
    made = core()
    ready = [op for _ in range(2500) for op in add(made)]
    assert [op.count for op in ready + made.close_batch()] == [1000, 1000, 500]


def test_batch_closes_before_oversized_message() -> None:
    made = core(batching_max_allowed_size_in_bytes=128 * 1024)
    ready = [op for _ in range(10) for op in add(made, bytes(50 * 1024))]
    ready += made.close_batch()
    assert [op.count for op in ready] == [2] * 5
    assert all(len(bytes_of(op)) < 128 * 1024 for op in ready)


def test_batch_due_after_delay_of_first_message() -> None:
    made = core(batching_max_publish_delay_ms=20)
    assert not made.batch_is_open
    add(made, now=5.0)
    add(made, now=5.015)
    assert made.batch_is_open and made.batch_due() == pytest.approx(5.02)


@pytest.mark.proves("C74")
@pytest.mark.parametrize("part", [{"deliver_at": 5}, {"replicate_to": ["west"]}])
def test_entry_attributes_make_own_entry_in_order(part: dict[str, Any]) -> None:
    made = core()
    assert add(made, b"0") == [] and add(made, b"1") == []
    ready = add(made, b"2", **part)
    assert [[payload for _, payload in read(op).messages] for op in ready] == [[b"0", b"1"], [b"2"]]
    alone = read(ready[1]).entry
    assert not alone.is_batch
    if "deliver_at" in part:
        assert alone.metadata.deliver_at_time == 5
    else:
        assert list(alone.metadata.replicate_to) == ["west"]


class Sealing(Encryptor):
    """Encryption with many keys, whose bytes can be read here."""

    def __init__(self) -> None:
        self._current = None

    @property
    def overhead(self) -> int:
        return 20 * 270

    def encrypt(self, metadata: pb.MessageMetadata, body: bytes) -> bytes:
        for number in range(20):
            metadata.encryption_keys.add(key=f"k{number}", value=bytes(256))
        return b"sealed" + body


@pytest.mark.proves("C181")
def test_entry_compressed_encrypted_keeps_bytes() -> None:
    made = core(compression_type=CompressionType.ZSTD, encryptor=Sealing())
    for _ in range(3):
        add(made, b"x" * 1000)
    (op,) = made.close_batch()
    (frame,) = FrameDecoder().receive(bytes_of(op))
    entry = parse_entry(frame.payload)
    assert bytes(entry.body[:6]) == b"sealed" and len(entry.metadata.encryption_keys) == 20
    body = decompress(CompressionType.ZSTD, bytes(entry.body[6:]), entry.metadata.uncompressed_size, 1 << 20)
    assert [body[start:stop] for _, start, stop in split_batch(body, 3)] == [b"x" * 1000] * 3


def test_entry_size_includes_encryption_keys() -> None:
    made = core(max_message_size=50_000, batching_max_allowed_size_in_bytes=1 << 20, encryptor=Sealing())
    ready = [op for _ in range(200) for op in add(made, bytes(1000))]
    ready += made.close_batch()
    assert sum(op.count for op in ready) == 200 and not made.failed
    assert max(sum(map(len, op.parts)) for op in ready) > 40_000


def test_batch_encoding_error_fails_alone() -> None:
    # Incompressible data grows when it is compressed: the sum fitted, the entry does not.
    made = core(
        max_message_size=70_000, batching_max_allowed_size_in_bytes=1 << 20, compression_type=CompressionType.LZ4
    )
    noise = random.Random(0)
    add(made, noise.randbytes(34_780))
    add(made, noise.randbytes(34_780))
    assert made.close_batch() == []
    ((op, error),) = made.failed
    assert op.count == 2 and isinstance(error, MessageTooBig)
    assert (made.pending_messages, made.pending_bytes, list(made.queue.ops)) == (0, 0, [])
    assert ids(add(made, b"next") + made.close_batch()) == [[2]]


def test_batch_encoding_error_unforeseen_fails_alone() -> None:
    made = core(encryptor=Sealing())
    add(made, b"x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sealing, "encrypt", lambda *_: 1 / 0)
        assert made.close_batch() == []
    ((op, error),) = made.failed
    assert op.count == 1 and isinstance(error, UnknownError) and isinstance(error.__cause__, ZeroDivisionError)
    assert (made.pending_messages, made.pending_bytes, list(made.queue.ops)) == (0, 0, [])
    assert ids(add(made, b"next") + made.close_batch()) == [[1]]


@pytest.mark.parametrize("fast", [False, True], ids=["batch", "fast-path"])
def test_batch_ended_by_time_limit_is_kept(fast: bool) -> None:
    made = core(encryptor=Sealing(), batching_max_messages=3)
    add(made, b"x")
    if fast:
        made.open_fast_path(9, 10_000)
        made.fast_path.items.extend([b"y", b"z"])
    with pytest.MonkeyPatch.context() as patch, time_limit() as interrupted:
        patch.setattr(Sealing, "encrypt", interrupted)
        with pytest.raises(TimeLimit):
            made.close_batch()
    assert made.failed == []
    assert [op.count for op in made.close_batch()] == [3 if fast else 1]


def interrupt(patch: pytest.MonkeyPatch, interrupted: Callable[..., Any], place: str) -> None:
    """Have the signal come while the second entry is encoded, or when it has been queued."""
    kind: type = ProducerCore if place == "_frame" else PendingQueue
    real, calls = getattr(kind, place), itertools.count(1)

    def step(*args: Any, **options: Any) -> Any:
        is_second = next(calls) == 2
        if is_second and place == "_frame":
            interrupted()
        result = real(*args, **options)
        if is_second:
            interrupted()
        return result

    patch.setattr(kind, place, step)


PLACES = pytest.mark.parametrize("place", ["_frame", "append"], ids=["encoding", "queued"])


def payloads_of(ops: list[SendOp]) -> list[bytes]:
    """Return the payloads of entries, in order."""
    return [payload for op in ops for _, payload in read(op).messages]


@PLACES
def test_key_batch_ended_by_time_limit_is_kept(place: str) -> None:
    made = core(batching_type=BatchingType.KeyBased)
    for number in range(6):
        add(made, b"%d" % number, partition_key=f"k{number % 3}", callback=(number,))
    with pytest.MonkeyPatch.context() as patch, time_limit() as interrupted:
        interrupt(patch, interrupted, place)
        with pytest.raises(TimeLimit):
            made.close_batch()
    assert (made.failed, made.pending_messages, made.pending_bytes) == ([], 6, 6)
    size = made.open_batch.size
    # The next one of a key that is queued already.
    add(made, b"6", partition_key="k0", callback=(6,))
    assert made.open_batch.size > size > len(made.open_batch.payloads)
    ready = made.close_batch()
    assert ready == list(made.queue.ops) and made.close_batch() == []
    # Their ids increase, as the broker's deduplication needs it.
    assert [op.sequence_id for op in ready] == [3, 4, 5, 6]
    assert payloads_of(ready) == [b"0", b"3", b"1", b"4", b"2", b"5", b"6"]
    assert [callback for op in ready for callback in op.callbacks] == [(int(each),) for each in payloads_of(ready)]


@PLACES
def test_key_batch_ended_in_add_is_kept(place: str) -> None:
    made = core(batching_type=BatchingType.KeyBased, batching_max_messages=3)
    with pytest.MonkeyPatch.context() as patch, time_limit() as interrupted:
        interrupt(patch, interrupted, place)
        with pytest.raises(TimeLimit):
            for number in range(9):
                add(made, b"%d" % number, partition_key=f"k{number}")
                # Drained by the message that fills the batch.
                made.open_fast_path(1, 10)
    # What is queued is written before what follows.
    ready = made.drain_fast_path()
    assert ready == list(made.queue.ops) and len(ready) == (1 if place == "_frame" else 2)
    ready += add(made, b"3", partition_key="k3") + made.close_batch()
    assert ready == list(made.queue.ops) and payloads_of(ready) == [b"0", b"1", b"2", b"3"]


@PLACES
def test_add_behind_late_ended_is_kept(place: str) -> None:
    made = core(batching_max_messages=3)
    add(made, b"0")
    made.open_fast_path(1, 10_000)
    made.fast_path.items.extend([b"1", b"2", b"3", b"4"])
    with pytest.MonkeyPatch.context() as patch, time_limit() as interrupted:
        interrupt(patch, interrupted, place)
        with pytest.raises(TimeLimit):
            add(made, b"5")
    ready = made.close_batch()
    assert ready == list(made.queue.ops) and payloads_of(ready) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("column", ["payloads", "fields", "callbacks"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_late_append_ended_half_added_is_kept(column: str, after: bool) -> None:
    made = core()
    add(made, b"0", callback=(0,))
    made.open_fast_path(1, 10_000)
    made.fast_path.has_tuples = True
    made.fast_path.items.extend((b"%d" % number, (number,), b"") for number in range(1, 5))
    with time_limit() as interrupted:
        calls = itertools.count(1)

        class Column(list[Any]):
            def append(self, item: Any) -> None:
                is_second = next(calls) == 2
                if is_second and not after:
                    interrupted()
                super().append(item)
                if is_second:
                    interrupted()

        setattr(made.open_batch, column, Column(getattr(made.open_batch, column)))
        with pytest.raises(TimeLimit):
            made.drain_late(0.0, 1)
    (op,) = made.close_batch()
    assert (op.callbacks, op.size, made.failed) == ([(number,) for number in range(5)], 5, [])
    assert payloads_of([op]) == [b"%d" % number for number in range(5)]
    (numbers,) = ids([op])
    assert numbers == sorted(set(numbers))
    # The next one has an id of its own.
    assert ids(add(made, b"5") + made.close_batch())[0][0] > numbers[-1]


@pytest.mark.parametrize("place", ["_frame", "append", "add_ids", "described_by"])
def test_late_append_ended_by_time_limit_is_kept(place: str) -> None:
    made = core(batching_max_messages=3)
    add(made, b"0", callback=(0,))
    made.open_fast_path(1, 10_000)
    made.fast_path.has_tuples = True
    made.fast_path.items.extend((b"%d" % number, (number,), b"") for number in range(1, 9))
    with pytest.MonkeyPatch.context() as patch, time_limit() as interrupted:
        if place in ("_frame", "append"):
            interrupt(patch, interrupted, place)
        else:
            # The fourth of them has not been added yet.
            owner: Any = BatchBuilder if place == "add_ids" else producer
            real, calls = getattr(owner, place), itertools.count(1)
            patch.setattr(owner, place, lambda *args: interrupted() if next(calls) == 4 else real(*args))
        with pytest.raises(TimeLimit):
            made.drain_late(0.0, 1)
    assert (made.failed, made.pending_messages, made.pending_bytes) == ([], 9, 9)
    ready = made.close_batch()
    assert ready == list(made.queue.ops) and made.close_batch() == []
    assert payloads_of(ready) == [b"%d" % number for number in range(9)]
    assert [callback for op in ready for callback in op.callbacks] == [(number,) for number in range(9)]
    numbers = list(itertools.chain(*ids(ready)))
    assert numbers == sorted(set(numbers))


# --- what the entry says ----------------------------------------------------------------------------------------


@pytest.mark.proves("C72")
def test_metadata_of_single_message() -> None:
    made = core(batching_enabled=False, schema=b"\0\0\0\0\0\0\0\x05")
    (op,) = add(
        made, b"hello", properties={"a": "b"}, partition_key="key", ordering_key="ord", event_timestamp=123,
        null_value=False,
    )  # fmt: skip
    metadata = read(op).entry.metadata
    assert (metadata.producer_name, metadata.sequence_id) == ("the-name", 0)
    assert (metadata.publish_time, metadata.event_time) == (1_700_000_000_000, 123)
    assert (metadata.uncompressed_size, metadata.schema_version) == (5, b"\0\0\0\0\0\0\0\x05")
    assert {pair.key: pair.value for pair in metadata.properties} == {"a": "b"}
    assert (metadata.partition_key, metadata.ordering_key) == ("key", b"ord")
    assert metadata.HasField("partition_key_b64_encoded") and not metadata.partition_key_b64_encoded
    assert not metadata.HasField("compression") and not metadata.HasField("null_value")


def test_metadata_of_null_value_and_byte_key() -> None:
    made = core(batching_enabled=False)
    (op,) = add(made, b"", partition_key="a2V5MQ==", key_is_base64=True, null_value=True)
    metadata = read(op).entry.metadata
    assert metadata.null_value and metadata.partition_key_b64_encoded
    assert metadata.HasField("uncompressed_size") and metadata.uncompressed_size == 0


def test_batch_of_one_keeps_fields() -> None:
    made = core()
    add(made, b"x", properties={"a": "b"}, event_timestamp=9)
    (op,) = made.close_batch()
    metadata = read(op).entry.metadata
    assert not read(op).entry.is_batch
    assert metadata.event_time == 9 and [pair.key for pair in metadata.properties] == ["a"]


@pytest.mark.proves("C72")
def test_metadata_of_batch() -> None:
    made = core(schema=b"\x01")
    add(made, b"one", partition_key="first")
    add(made, b"two", partition_key="second", properties={"a": "b"})
    (op,) = made.close_batch()
    sent = read(op)
    metadata = sent.entry.metadata
    assert (metadata.sequence_id, metadata.highest_sequence_id, metadata.num_messages_in_batch) == (0, 1, 2)
    assert (metadata.partition_key, metadata.schema_version) == ("first", b"\x01")
    assert not metadata.HasField("uncompressed_size")
    singles = [parse_single(sent.body[meta:start]) for meta, start, _ in split_batch(sent.body, 2)]
    assert [single.partition_key for single in singles] == ["first", "second"]
    assert [pair.key for pair in singles[1].properties] == ["a"]


@pytest.mark.parametrize("kind", [kind for kind in CompressionType if kind is not CompressionType.NONE])
@pytest.mark.parametrize("count", [1, 3])
def test_compression_of_whole_entry(kind: CompressionType, count: int) -> None:
    made = core(compression_type=kind)
    for _ in range(count):
        add(made, b"a" * 500)
    (op,) = made.close_batch()
    sent = read(op)
    assert sent.entry.metadata.compression == kind.value
    assert sent.entry.metadata.uncompressed_size == len(sent.body)
    assert len(sent.entry.body) < 200
    assert [payload for _, payload in sent.messages] == [b"a" * 500] * count


def test_compression_skips_small_bodies() -> None:
    made = core(batching_enabled=False, compression_type=CompressionType.LZ4, compression_min_msg_body_size=100)
    small, large = add(made, b"a" * 100) + add(made, b"a" * 101)
    assert not read(small).entry.metadata.HasField("compression")
    assert read(large).entry.metadata.compression == CompressionType.LZ4.value


# --- the maximum size -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", [True, False])
def test_max_message_size_after_compression(batching: bool) -> None:
    made = core(max_message_size=1 << 20, batching_enabled=batching, compression_type=CompressionType.ZSTD)
    (op,) = add(made, bytes(6 << 20)) or made.close_batch()
    assert read(op).body == bytes(6 << 20)
    with pytest.raises(MessageTooBig, match="maxMessageSize") as caught:
        add(made, random.Random(0).randbytes(1 << 20))
    assert caught.value.topic == TOPIC
    assert (made.pending_messages, len(made.queue.ops)) == (1, 1)


@pytest.mark.parametrize("batching", [True, False])
def test_max_message_size_with_metadata_and_reserve(batching: bool) -> None:
    made = core(max_message_size=10_000, batching_enabled=batching)
    largest = 0
    for size in range(9_700, 10_001):
        try:
            ready = add(made, bytes(size)) + made.close_batch()
        except MessageTooBig:
            break
        largest = len(read(ready[-1]).body) + read(ready[-1]).entry.metadata.ByteSize()
    assert 10_000 - 140 <= largest <= 10_000 - 100
    with pytest.raises(MessageTooBig):
        add(made, b"x", properties={"a": "b" * 10_000})


# --- receipts ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("C43")
def test_send_timeout_zero_waits_forever() -> None:
    made = core(send_timeout_millis=0)
    add(made)
    made.close_batch()
    add(made)
    assert made.next_expiry() is None and made.expire(1e12) == []


@pytest.mark.proves("C63")
def test_expire_includes_open_batch() -> None:
    made = core(send_timeout_millis=10_000, batching_max_messages=2)
    for now in (0.0, 1.0, 9.0):
        add(made, now=now)
    assert made.next_expiry() == 10.0
    assert made.expire(9.999) == []
    assert [op.count for op in made.expire(10.0)] == [2, 1]
    assert "send_timeout_millis (10 s)" in made.timeout_error().message
    # A late receipt of what was given up does no harm.
    assert made.queue.receipt(0) == (SendReceipt.IGNORED, None)
    add(made, now=11.0)
    made.close_batch()
    assert made.queue.receipt(2) == (SendReceipt.IGNORED, None)
    assert made.queue.receipt(3)[0] is SendReceipt.COMPLETED


# --- schemas of single messages ---------------------------------------------------------------------------------


def test_batch_closes_at_schema_change() -> None:
    made = core(schema=b"\1")
    ready = [op for version in (None, None, b"\2", b"\2", b"", None) for op in add(made, schema_version=version)]
    ready += made.close_batch()
    found = [(read(op).entry.metadata.schema_version, len(read(op).messages)) for op in ready]
    assert found == [(b"\1", 2), (b"\2", 2), (b"", 1), (b"\1", 1)]
    assert [number for op in ready for number, _ in read(op).messages] == [0, 1, 2, 3, 4, 5]


def test_batch_accepts_plain_message_of_producer_schema() -> None:
    made = core(schema=b"\1")
    assert add(made, sequence_id=0) == [] and add(made) == []
    (op,) = made.close_batch()
    assert len(read(op).messages) == 2


@pytest.mark.parametrize("options", [{"batching_enabled": False}, {}])
def test_add_own_schema_and_null_key(options: dict[str, Any]) -> None:
    made = core(schema=b"\1", **options)
    (op,) = add(made, schema_version=b"\2", null_partition_key=True) + made.close_batch()
    metadata = read(op).entry.metadata
    assert metadata.schema_version == b"\2" and metadata.null_partition_key
    (own,) = add(made, deliver_at=5, schema_version=b"") + made.close_batch()
    assert not read(own).entry.metadata.HasField("schema_version")


# --- whole entries ----------------------------------------------------------------------------------------------


def whole(made: ProducerCore, payloads: list[bytes], outcomes: list[Any]) -> list[SendOp]:
    """Take as many messages as fit as one entry."""
    count, size = made.fits(payloads, None, 1000)
    return made.add_entry(payloads[:count], size, None, None, lambda *outcome: outcomes.append(outcome), 0.0, 0)


def test_add_entry_equals_single_messages() -> None:
    contents = [b"x" * number for number in range(40)]
    singly, at_once = core(batching_enabled=True), core(batching_enabled=True)
    for content in contents:
        add(singly, content)
    (wanted,) = singly.close_batch()
    told: list[Any] = []
    (made,) = whole(at_once, contents, told)
    assert read(made).body == read(wanted).body
    assert (made.sequence_id, made.highest_sequence_id, made.count) == (0, 39, 40)
    assert (at_once.pending_messages, at_once.pending_bytes, at_once.last_pushed) == (40, sum(range(40)), 39)
    made.complete(None, (-1, 5, 6), TOPIC)
    ((error, place),) = told
    assert error is None and (place.entry_id(), place.batch_index(), place.batch_size()) == (6, 39, 40)


def test_add_entry_after_open_batch_within_limits() -> None:
    made = core(batching_enabled=True, batching_max_messages=10, batching_max_allowed_size_in_bytes=1000)
    add(made, b"open")
    told: list[Any] = []
    ready = whole(made, [b"x"] * 30, told)
    assert [op.count for op in ready] == [1, 10]
    assert [op.sequence_id for op in ready] == [0, 1]
    assert made.fits([b"x" * 100] * 30, None, 1000) == (1000 // 124, 1000 // 124 * 100)
    assert made.fits([b"x" * 100] * 30, [b"y" * 100] * 30, 1000) == (1000 // 224, 1000 // 224 * 100)
    assert made.fits([b"x"] * 30, None, 4) == (4, 4)
    assert made.fits([b"x" * 2000, b"x"], None, 1000) == (0, 0)


def test_add_entry_refused_where_each_message_counts() -> None:
    assert core(batching_enabled=False).fits([b"x"] * 5, None, 100) == (0, 0)
    repeating = core(batching_enabled=True)
    add(repeating, b"x", sequence_id=10)
    repeating.close_batch()
    repeating._next_sequence_id = 5
    assert repeating.fits([b"x"] * 5, None, 100) == (0, 0)
