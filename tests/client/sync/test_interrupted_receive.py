"""Receiving calls of the sync API that an exception interrupts, as that of Ctrl-C: at each of their lines in turn.

The exception comes at the lines of the client's own at which a signal may be handled.
"""

from __future__ import annotations

import dis
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import pulsar_native
from pulsar_native import Client, ConsumerBatchReceivePolicy, ConsumerType, MessageId
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.entry_bytes import batch_entry, single_entry
from support.fake_broker import FakeBroker, Peer, delivery, success

PACKAGE = str(Path(pulsar_native.__file__).parent)
# Packages of functions without a state that a consumer keeps.
STATELESS = tuple(f"{PACKAGE}/{name}/" for name in ("wire", "arrow"))
MOST_LINES = 1000
SECONDS = 10


class Topic:
    """Topic of the fake broker that keeps to permits, and redelivers at a new attachment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[tuple[bytes, int]] = []
        self._acked: set[int] = set()
        self._peer: Peer | None = None
        self._consumer_id = self._permits = self._next = 0

    def publish(self, *payloads: bytes) -> None:
        """Add an entry, a batch if there are several payloads."""
        with self._lock:
            entry = batch_entry(payloads) if len(payloads) > 1 else single_entry(payloads[0])
            self._entries.append((entry, len(payloads)))
            self._send()

    def subscribe(self, peer: Peer, command: pb.CommandSubscribe) -> None:
        """Begin with what is unacknowledged, or behind where a reader is."""
        with self._lock:
            self._peer, self._consumer_id, self._permits = peer, command.consumer_id, 0
            if command.durable:
                self._next = min(set(range(len(self._entries) + 1)) - self._acked)
            else:
                # Inclusive: the client leaves out what it had of the entry.
                self._next = command.start_message_id.entryId if command.start_message_id.ledgerId == 1 else 0

    def flow(self, permits: int) -> None:
        with self._lock:
            self._permits += permits
            self._send()

    def ack(self, entries: Iterable[int]) -> None:
        with self._lock:
            self._acked.update(entries)

    def close(self) -> None:
        with self._lock:
            self._peer = None

    def _send(self) -> None:
        while self._peer is not None and self._permits > 0 and self._next < len(self._entries):
            entry, count = self._entries[self._next]
            self._peer.send(delivery(self._consumer_id, entry, self._next))
            self._permits -= count
            self._next += 1


class Topics:
    """Topics of the fake broker by consumer, each with one."""

    def __init__(self, fake: FakeBroker, *names: str) -> None:
        self.each = {f"persistent://public/default/{name}": Topic() for name in names}
        self._of: dict[int, Topic] = {}
        fake.answers[Kind.SUBSCRIBE] = self._subscribe
        fake.answers[Kind.FLOW] = self._flow
        fake.answers[Kind.ACK] = self._ack
        fake.answers[Kind.CLOSE_CONSUMER] = self._close

    def _subscribe(self, peer: Peer, command: pb.BaseCommand) -> Iterator[bytes]:
        topic = self._of[command.subscribe.consumer_id] = self.each[command.subscribe.topic]
        yield success(command.subscribe.request_id)
        topic.subscribe(peer, command.subscribe)

    def _flow(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        self._of[command.flow.consumer_id].flow(command.flow.messagePermits)
        return ()

    def _ack(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        ids = command.ack.message_id
        is_cumulative = command.ack.ack_type == pb.CommandAck.Cumulative
        entries = range(ids[0].entryId + 1) if is_cumulative else [data.entryId for data in ids if not data.ack_set]
        self._of[command.ack.consumer_id].ack(entries)
        return ()

    def _close(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        self._of[command.close_consumer.consumer_id].close()
        return [success(command.close_consumer.request_id)]


@cache
def never_interrupted(code: CodeType) -> frozenset[int]:
    """Return the first instructions of lines before which no signal is handled: those of `try`, and the ends of `with`.

    Python would not release the lock of the block for an exception there.
    """
    starts = {start: line for start, line in dis.findlinestarts(code) if line is not None}
    entered: set[int] = set()
    found: set[int] = set()
    line = 0
    for each in dis.get_instructions(code):
        line = starts.get(each.offset, line)
        if each.offset in starts and (line in entered or each.opname == "NOP"):
            found.add(each.offset)
        if each.opname == "BEFORE_WITH":
            entered.add(line)
    return frozenset(found)


class Interruption:
    """KeyboardInterrupt at the line of this number that a call runs through in this thread."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.place = ""

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) or name.startswith(STATELESS):
            return None
        if event == "line" and frame.f_lasti not in never_interrupted(frame.f_code):
            self._left -= 1
            if not self._left:
                sys.settrace(None)
                self.place = f"{name.removeprefix(PACKAGE)}:{frame.f_lineno} {frame.f_code.co_name}"
                raise KeyboardInterrupt
        return self._trace

    def of(self, call: Callable[[], object]) -> bool:
        """Call; return True if it has so many lines."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            call()
        except KeyboardInterrupt:
            # Also where the client has replaced it by its own.
            pass
        except pulsar_native.Timeout:
            pass
        finally:
            sys.settrace(before)
        return bool(self.place)


@pytest.fixture
def client(fake: FakeBroker) -> Iterator[Client]:
    """Give a client of the fake broker."""
    with Client(fake.url, operation_timeout_seconds=5) as made:
        yield made


def arrived(consumer: Any, count: int) -> None:
    """Wait until so many messages are queued."""
    deadline = time.monotonic() + SECONDS
    while sum(child.queued_messages() for child in consumer._inner.children) < count:
        assert time.monotonic() < deadline, "The messages did not arrive"
        time.sleep(0.001)


def rest(receive: Callable[[int], Any], last: set[bytes], place: str) -> list[bytes]:
    """Receive until these have come, and return what came."""
    found: list[bytes] = []
    while not last <= set(found):
        try:
            message = receive(SECONDS * 1000)
        except pulsar_native.Timeout:
            pytest.fail(f"After the interruption at {place} {found} came, and nothing more")
        found.append(message.data())
    return found


CALLS: dict[str, Callable[[Any], object]] = {
    "receive": lambda consumer: consumer.receive(1),
    "batch_receive": lambda consumer: consumer.batch_receive(),
    "receive_arrow": lambda consumer: consumer.receive_arrow(max_rows=2, timeout_millis=1),
}


@pytest.mark.parametrize("waits", [False, True], ids=["queued", "empty"])
@pytest.mark.parametrize(
    ("call", "topics", "batch", "options"),
    [
        ("receive", 1, 1, {"receiver_queue_size": 1}),
        ("receive", 1, 1, {"receiver_queue_size": 0}),
        ("receive", 1, 3, {}),
        ("receive", 2, 3, {"receiver_queue_size": 4}),
        ("receive", 1, 1, {"auto_scaled_receiver_queue_size_enabled": True}),
        ("batch_receive", 2, 3, {"receiver_queue_size": 4}),
        ("receive_arrow", 1, 3, {"receiver_queue_size": 4}),
    ],
    ids=["queue of 1", "queue of 0", "batches", "topics", "scaled queue", "batch_receive", "receive_arrow"],
)
def test_consumer_goes_on_after_interruption(
    fake: FakeBroker, client: Client, call: str, topics: int, batch: int, options: dict[str, Any], waits: bool
) -> None:
    names = ["t", "u"][:topics]
    served = Topics(fake, *names)
    consumer = client.subscribe(
        names,
        "s",
        consumer_type=ConsumerType.Shared,
        batch_receive_policy=ConsumerBatchReceivePolicy(4, -1, 1),
        acknowledgment_group_time_ms=0,
        **options,
    )

    def receive(timeout: int) -> Any:
        message = consumer.receive(timeout)
        consumer.acknowledge(message)
        return message

    for number in range(1, MOST_LINES):
        if not waits:
            for topic in served.each.values():
                topic.publish(*(b"%d-%d" % (number, index) for index in range(batch)))
            if not consumer._inner.asks_for_each:
                arrived(consumer, 1)
        interruption = Interruption(number)
        is_interrupted = interruption.of(lambda: CALLS[call](consumer))
        last = {b"last %d of %d" % (number, index) for index in range(topics)}
        for topic, payload in zip(served.each.values(), sorted(last), strict=True):
            topic.publish(payload)
        rest(receive, last, interruption.place)
        if not is_interrupted:
            assert number > 20
            return
    pytest.fail("The call has too many lines")


@pytest.mark.parametrize("batch", [1, 3], ids=["singles", "batches"])
def test_reader_goes_on_after_interruption(fake: FakeBroker, client: Client, batch: int) -> None:
    served = Topics(fake, "t")
    (topic,) = served.each.values()
    reader = client.create_reader("t", MessageId.earliest)
    for number in range(1, MOST_LINES):
        expected = [b"%d-%d" % (number, index) for index in range(2 * batch)]
        topic.publish(*expected[:batch])
        topic.publish(*expected[batch:])
        arrived(reader, 2 * batch)
        interruption = Interruption(number)
        is_interrupted = interruption.of(lambda: reader.read_next(1))
        last = b"last %d" % number
        topic.publish(last)
        found = rest(reader.read_next, {last}, interruption.place)
        # The one that the call was about to return may be lost, but not while entries are decoded.
        needed = expected if "/entry_decoder.py" in interruption.place else expected[1:]
        assert set(needed) <= set(found), interruption.place
        if not is_interrupted:
            assert number > 20
            return
    pytest.fail("The call has too many lines")
