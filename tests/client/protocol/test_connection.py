"""Connection state machine: handshake, requests, keep-alive, and any split of the stream."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pulsar_native.exceptions import (
    AlreadyClosed,
    AuthenticationError,
    ConnectError,
    NotConnected,
    ProducerBusy,
    ProtocolViolation,
    PulsarException,
    Timeout,
)
from pulsar_native.protocol.connection import (
    Answered,
    AuthChallenged,
    Connected,
    ConnectionCore,
    Event,
    Messages,
    Phase,
    connection_lost,
)
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.frames import Frame, FrameDecoder, encode_command
from support.entry_bytes import single_entry
from support.wire_strategies import described

MIB = 1024 * 1024


def frame(kind: Any, **fields: Any) -> bytes:
    return encode_command(pb.BaseCommand(type=kind, **fields))


def with_payload(command: bytes, payload: bytes) -> bytes:
    total = int.from_bytes(command[:4], "big") + len(payload)
    return total.to_bytes(4, "big") + command[4:] + payload


def connected(version: int = 21, max_message_size: int | None = 5 * MIB) -> bytes:
    answer = pb.CommandConnected(server_version="Pulsar Server4.2.4", protocol_version=version)
    if max_message_size is not None:
        answer.max_message_size = max_message_size
    return frame(Kind.CONNECTED, connected=answer)


def success(request_id: int) -> bytes:
    return frame(Kind.SUCCESS, success=pb.CommandSuccess(request_id=request_id))


def error(request_id: int, code: int = pb.ProducerBusy, text: str = "taken") -> bytes:
    return frame(Kind.ERROR, error=pb.CommandError(request_id=request_id, error=code, message=text))  # type: ignore[arg-type]


def producer_success(request_id: int, ready: bool) -> bytes:
    answer = pb.CommandProducerSuccess(request_id=request_id, producer_name="p", producer_ready=ready)
    return frame(Kind.PRODUCER_SUCCESS, producer_success=answer)


PING, PONG = frame(Kind.PING, ping=pb.CommandPing()), frame(Kind.PONG, pong=pb.CommandPong())


def core(*, ready: bool = True) -> ConnectionCore:
    made = ConnectionCore("h:6650", keep_alive=30, request_timeout=10)
    if ready:
        assert made.receive(connected()) == [Connected("Pulsar Server4.2.4")]
    return made


# --- handshake --------------------------------------------------------------------------------------------------


@pytest.mark.proves("C24")
def test_handshake_sets_version_and_max_message_size() -> None:
    connection = core(ready=False)
    assert (connection.phase, connection.protocol_version) == (Phase.HANDSHAKE, 0)
    assert connection.receive(connected(19, MIB)) == [Connected("Pulsar Server4.2.4")]
    assert (connection.phase, connection.protocol_version, connection.max_message_size) == (Phase.READY, 19, MIB)
    # And the frames: the whole frame may be 10 KiB larger than a message.
    message = frame(
        Kind.MESSAGE, message=pb.CommandMessage(consumer_id=0, message_id=pb.MessageIdData(ledgerId=1, entryId=2))
    )
    fitting = with_payload(message, bytes(MIB + 10240 - len(message)))
    assert len(fitting) == MIB + 10240
    assert len(connection.receive(fitting)) == 1
    with pytest.raises(ProtocolViolation, match="exceeds the limit"):
        connection.receive(with_payload(message, bytes(MIB + 10241 - len(message))))


def test_handshake_default_max_message_size() -> None:
    connection = core(ready=False)
    connection.receive(connected(21, None))
    assert connection.max_message_size == 5 * MIB


def test_first_answer_takes_only_wanted_responses() -> None:
    connection = core()
    for request_id in (1, 2, 3):
        assert connection.register(request_id, f"sink {request_id}", 0.0, 5.0) == 5.0
    both = success(1) + success(2)
    assert connection.first_answer(both, [2], commands.success(2)) is None, "another request's response comes first"
    taken = connection.first_answer(both, [1, 2], commands.success(2))
    assert taken is not None
    answered, size = taken
    assert answered.sink == "sink 1" and answered.error is None and size == len(success(1))
    assert connection.first_answer(both, [1, 2], commands.success(2)) is None, "it is no longer waited for"
    assert connection.first_answer(success(3)[:-1], [3], commands.success(3)) is None, "it is not whole"
    assert connection.first_answer(success(7), [7], commands.success(7)) is None, "nobody asked"
    # The loop gets the bytes that were not taken, and errors.
    refused = frame(Kind.ERROR, error=pb.CommandError(request_id=3, error=pb.MetadataError, message="no"))
    assert connection.first_answer(refused, [3], commands.success(3)) is None
    events = connection.receive(success(2) + refused)
    assert [event.sink for event in events if isinstance(event, Answered)] == ["sink 2", "sink 3"]
    assert not connection.has_requests and connection.expire(10.0) == []


@pytest.mark.parametrize("request_id", [1, 127, 128, 16_383, 16_384, 2**40])
def test_first_answer_success_needs_no_parsing(request_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = core()
    connection.register(request_id, "sink", 0.0, 5.0)
    monkeypatch.setattr(FrameDecoder, "first_command", None)
    taken = connection.first_answer(success(request_id) + b"more", [request_id], commands.success(request_id))
    assert taken == (Answered("sink", pb.CommandSuccess(request_id=request_id), None), len(success(request_id)))


def test_first_answer_inside_a_frame_takes_nothing() -> None:
    connection = core()
    connection.register(1, "sink", 0.0, 5.0)
    connection.receive(success(2)[:-1])
    assert connection.first_answer(success(1), [1], commands.success(1)) is None


def test_first_answer_after_close_takes_nothing() -> None:
    connection = core()
    connection.register(1, "sink", 0.0)
    assert [event.sink for event in connection.close()] == ["sink"]
    assert connection.first_answer(success(1), [1], commands.success(1)) is None and connection.close() == []


@pytest.mark.proves("C24")
def test_register_before_handshake_raises() -> None:
    connection = core(ready=False)
    with pytest.raises(NotConnected, match="not ready"):
        connection.register(1, "sink", 0.0)
    assert connection.outgoing == [] and connection.next_deadline() is None


@pytest.mark.parametrize(
    "early",
    [
        success(1),
        producer_success(1, True),
        with_payload(
            frame(
                Kind.MESSAGE,
                message=pb.CommandMessage(consumer_id=0, message_id=pb.MessageIdData(ledgerId=1, entryId=2)),
            ),
            single_entry(b"x"),
        ),
        frame(Kind.SEND_RECEIPT, send_receipt=pb.CommandSendReceipt(producer_id=0, sequence_id=0)),
    ],
    ids=["success", "producer success", "message", "receipt"],
)
def test_response_before_handshake_is_violation(early: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="before the handshake"):
        core(ready=False).receive(early)


def test_handshake_refused_returns_broker_error() -> None:
    with pytest.raises(AuthenticationError, match="bad token") as caught:
        core(ready=False).receive(error((1 << 64) - 1, pb.AuthenticationError, "bad token"))
    assert caught.value.broker == "h:6650"


def test_connected_twice_is_violation() -> None:
    with pytest.raises(ProtocolViolation, match="twice"):
        core().receive(connected())


def test_auth_challenge_event() -> None:
    challenge = pb.CommandAuthChallenge(challenge=pb.AuthData(auth_method_name="token", auth_data=b"?"))
    for connection in (core(), core(ready=False)):
        assert connection.receive(frame(Kind.AUTH_CHALLENGE, authChallenge=challenge)) == [AuthChallenged()]


# --- requests ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("C225")
def test_response_matches_request() -> None:
    connection = core()
    connection.register(1, "one", 0.0)
    connection.register(2, "two", 0.0)
    first, second = connection.receive(success(2) + error(1))
    assert isinstance(first, Answered) and (first.sink, first.error) == ("two", None)
    assert first.answer.request_id == 2
    assert isinstance(second, Answered) and second.sink == "one"
    assert isinstance(second.error, ProducerBusy)
    assert (second.error.broker, second.error.request_id, second.error.message) == ("h:6650", 1, "taken")
    assert connection.next_deadline() is None


@pytest.mark.proves("C40")
def test_response_without_request_logged(caplog: pytest.LogCaptureFixture) -> None:
    connection = core()
    connection.register(1, "one", 0.0)
    connection.register(2, "two", 0.0)
    connection.forget(1)
    connection.forget(99)
    with caplog.at_level(logging.DEBUG, "pulsar_native.protocol.connection"):
        events = connection.receive(success(1) + error(7) + producer_success(8, True) + success(2))
    assert [event.sink for event in events if isinstance(event, Answered)] == ["two"]
    assert len(events) == 1
    assert [record.args for record in caplog.records] == [(1,), (7,), (8,)]


@pytest.mark.proves("C27", "C225")
def test_expire_each_request_own_deadline() -> None:
    connection = core()
    connection.register(1, "one", 0.0)
    connection.register(2, "two", 5.0)
    connection.register(3, "three", 5.0, timeout=1.0)
    assert connection.next_deadline() == 6.0
    assert connection.expire(5.999) == []
    (late,) = connection.expire(6.0)
    assert late.sink == "three" and isinstance(late.error, Timeout)
    assert (late.error.request_id, late.error.broker) == (3, "h:6650")
    assert connection.next_deadline() == 10.0
    assert [event.sink for event in connection.expire(10.0)] == ["one"]
    # The answer of the one that was given up comes late: it must not be taken for the other's.
    assert connection.receive(success(1)) == []
    assert [event.sink for event in connection.receive(success(2)) if isinstance(event, Answered)] == ["two"]
    assert connection.expire(1e9) == []


def test_exclusive_producer_queue_no_deadline() -> None:
    connection = core()
    connection.register(1, "waiting", 0.0)
    connection.register(2, "other", 0.0)
    assert connection.receive(producer_success(1, False)) == []
    assert connection.next_deadline() == 10.0
    assert [event.sink for event in connection.expire(1e6)] == ["other"]
    assert connection.next_deadline() is None
    # The second answer has the same request id.
    (event,) = connection.receive(producer_success(1, True))
    assert isinstance(event, Answered) and event.sink == "waiting" and event.answer.producer_ready
    assert connection.receive(producer_success(1, True)) == []


def test_exclusive_producer_queue_error_and_close() -> None:
    connection = core()
    for number in (1, 2):
        connection.register(number, number, 0.0)
        connection.receive(producer_success(number, False))
    (event,) = connection.receive(error(1))
    assert isinstance(event, Answered) and isinstance(event.error, ProducerBusy)
    assert [event.sink for event in connection.close()] == [2]


def test_close_fails_each_request_separately() -> None:
    connection = core()
    for number in range(3):
        connection.register(number, number, 0.0)
    events = connection.close(connection_lost("h:6650", "reset"))
    assert [event.sink for event in events] == [0, 1, 2]
    errors = [event.error for event in events]
    assert all(isinstance(failure, ConnectError) for failure in errors)
    # Whoever asked writes his topic into his error: no two may share one.
    assert len({id(failure) for failure in errors}) == 3
    assert [failure.request_id for failure in errors if failure] == [0, 1, 2]
    assert all(failure is not None and "reset" in failure.message and failure.broker == "h:6650" for failure in errors)
    assert connection.close() == []
    assert connection.phase is Phase.CLOSED
    with pytest.raises(NotConnected):
        connection.register(9, "sink", 0.0)
    with pytest.raises(AlreadyClosed):
        connection.receive(PING)


# --- keep-alive -------------------------------------------------------------------------------------------------


@pytest.mark.proves("C14")
def test_ping_answered_also_before_handshake() -> None:
    for connection in (core(), core(ready=False)):
        assert connection.receive(PING) == []
        assert connection.outgoing == [commands.PONG]
        assert connection.receive(PING + PING) == []
        assert connection.outgoing == [commands.PONG] * 3


@pytest.mark.proves("C14")
def test_keep_alive_silent_peer_detected() -> None:
    connection = core()
    assert connection.keep_alive_due()
    assert connection.outgoing == [commands.PING]
    assert not connection.keep_alive_due()
    assert connection.outgoing == [commands.PING]


class KeepAliveModel(RuleBasedStateMachine):
    """The connection must be given up exactly when nothing came in the interval after a PING."""

    def __init__(self) -> None:
        super().__init__()
        self.connection = core()
        self.is_silent = self.dead = False
        self.written = 0

    @precondition(lambda self: not self.dead)
    @rule()
    def interval(self) -> None:
        alive = self.connection.keep_alive_due()
        assert alive == (not self.is_silent)
        self.dead = not alive
        self.written += alive
        self.is_silent = True

    @rule()
    def pong(self) -> None:
        assert self.connection.receive(PONG) == []
        self.is_silent = False

    @rule()
    def other_traffic(self) -> None:
        # On a slow link a PONG may wait behind it.
        self.connection.receive(PING + success(12345))
        self.written += 1
        self.is_silent = False

    @rule()
    def first_half_of_frame(self) -> None:
        pong = PONG[: len(PONG) // 2], PONG[len(PONG) // 2 :]
        assert self.connection.receive(pong[0]) == []
        self.is_silent = False
        self.interval()
        assert self.connection.receive(pong[1]) == []
        self.is_silent = False

    @invariant()
    def everything_is_written_once(self) -> None:
        assert len(self.connection.outgoing) == self.written


TestKeepAlive = pytest.mark.proves("C14")(KeepAliveModel.TestCase)


# --- any split of the stream ------------------------------------------------------------------------------------


u64 = st.integers(0, 9) | st.integers(0, (1 << 64) - 1)
request_ids = st.integers(0, 12)


@st.composite
def broker_frames(draw: st.DrawFn) -> bytes:
    """One frame a broker may send after the handshake."""
    number = draw(request_ids)
    place = pb.MessageIdData(ledgerId=draw(u64), entryId=draw(u64))
    receipt = pb.CommandSendReceipt(producer_id=draw(u64), sequence_id=draw(u64), message_id=place)
    message = pb.CommandMessage(
        consumer_id=draw(u64), message_id=place, ack_set=draw(st.lists(st.integers(-5, 5), max_size=3))
    )
    never = (1 << 64) - 1
    failed = pb.CommandSendError(producer_id=1, sequence_id=2, error=pb.ChecksumError, message="")
    active = pb.CommandActiveConsumerChange(consumer_id=1, is_active=True)
    plain = [
        PING,
        PONG,
        success(number),
        error(number, draw(st.sampled_from(pb.ServerError.values())), draw(st.text(max_size=9))),
        producer_success(number, draw(st.booleans())),
        frame(Kind.SEND_RECEIPT, send_receipt=receipt),
        frame(Kind.SEND_ERROR, send_error=failed),
        frame(Kind.CLOSE_CONSUMER, close_consumer=pb.CommandCloseConsumer(consumer_id=number, request_id=never)),
        frame(Kind.CLOSE_PRODUCER, close_producer=pb.CommandCloseProducer(producer_id=number, request_id=never)),
        frame(Kind.ACTIVE_CONSUMER_CHANGE, active_consumer_change=active),
        frame(Kind.REACHED_END_OF_TOPIC, reachedEndOfTopic=pb.CommandReachedEndOfTopic(consumer_id=1)),
        # Of a type this client does not know: [total][size][type = 120].
        b"\0\0\0\x06\0\0\0\x02\x08\x78",
    ]
    payload = draw(st.binary(max_size=300))
    return draw(st.sampled_from([*plain, with_payload(frame(Kind.MESSAGE, message=message), payload)]))


def apart(events: Iterable[Event]) -> Iterator[Event]:
    """Return events with one for each message."""
    for event in events:
        yield from event.frames if isinstance(event, Messages) else [event]


def comparable(event: Event) -> Any:
    """Return an event as something that compares: errors by kind and text."""
    if isinstance(event, Frame):
        return described([event])
    if isinstance(event, Answered):
        return event.sink, event.answer, type(event.error), str(event.error)
    return event


@given(st.lists(broker_frames(), max_size=25), st.lists(st.integers(0, 4000), max_size=25))
def test_receive_any_split_same_events(frames: list[bytes], cuts: list[int]) -> None:
    stream = connected() + b"".join(frames)
    outcomes = []
    borders = sorted({min(cut, len(stream)) for cut in cuts})
    for places in ([], borders, range(len(stream))):
        connection = core(ready=False)
        # Requests can only be registered after the handshake: it comes whole, its own split is tested below.
        events = list(connection.receive(stream[: len(connected())]))
        for number in range(0, 12, 2):
            connection.register(number, f"request {number}", 0.0)
        scratch = bytearray(len(stream))
        position = len(connected())
        for place in [*[place for place in places if place > position], len(stream)]:
            # The engine hands over a view into a buffer that it uses again.
            scratch[: place - position] = stream[position:place]
            events += connection.receive(memoryview(scratch)[: place - position])
            scratch[:] = b"\xaa" * len(scratch)
            position = place
        left = [event.sink for event in connection.close()]
        outcomes.append(([comparable(event) for event in apart(events)], b"".join(connection.outgoing), left))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@given(st.integers(1, 60))
def test_handshake_split(size: int) -> None:
    connection = core(ready=False)
    stream = connected()
    events: list[Event] = []
    for start in range(0, len(stream), size):
        assert connection.phase is Phase.HANDSHAKE
        events += connection.receive(stream[start : start + size])
    assert events == [Connected("Pulsar Server4.2.4")] and connection.phase is Phase.READY


@given(st.binary(max_size=200), st.booleans())
def test_receive_hostile_bytes(data: bytes, ready: bool) -> None:
    connection = core(ready=ready)
    if ready:
        connection.register(1, "one", 0.0)
    try:
        events = connection.receive(data)
    except PulsarException:
        events = []
    assert all(isinstance(event, Frame | Answered | Connected | AuthChallenged) for event in events)
    open_requests = 1 if ready and not any(isinstance(event, Answered) for event in events) else 0
    assert len(connection.close()) == open_requests


def test_receive_unknown_command_skipped() -> None:
    connection = core()
    connection.register(1, "one", 0.0)
    events = connection.receive(b"\0\0\0\x06\0\0\0\x02\x08\x78" + success(1))
    assert [event.sink for event in events if isinstance(event, Answered)] == ["one"]


def test_receive_producer_and_consumer_frames_passed_on() -> None:
    connection = core()
    closing = frame(Kind.CLOSE_PRODUCER, close_producer=pb.CommandCloseProducer(producer_id=3, request_id=1))
    (event,) = connection.receive(closing)
    assert isinstance(event, Frame) and event.command.close_producer.producer_id == 3


@pytest.mark.proves("C13")
def message_frame(consumer_id: int, entry: int) -> bytes:
    place = pb.MessageIdData(ledgerId=1, entryId=entry)
    command = frame(Kind.MESSAGE, message=pb.CommandMessage(consumer_id=consumer_id, message_id=place))
    return with_payload(command, b"payload")


def test_receive_messages_of_one_consumer_together(implementation: str) -> None:
    stream = b"".join(message_frame(*each) for each in ((1, 0), (1, 1), (2, 2), (1, 3), (1, 4)))
    events = core().receive(stream + success(9) + message_frame(1, 5))
    sizes = [len(event.frames) if isinstance(event, Messages) else 1 for event in events]
    assert sizes == ([2, 1, 2, 1] if implementation == "compiled" else [1] * 6)
    messages = [event.command.message for event in apart(events) if isinstance(event, Frame)]
    assert [(each.consumer_id, each.message_id.entryId) for each in messages] == [
        (1, 0), (1, 1), (2, 2), (1, 3), (1, 4), (1, 5)
    ]  # fmt: skip


@pytest.mark.usefixtures("implementation")
def test_receive_messages_before_handshake_is_violation() -> None:
    with pytest.raises(ProtocolViolation, match="before the handshake"):
        core(ready=False).receive(message_frame(1, 0) + message_frame(1, 1))


def test_rejected_counted_for_a_minute() -> None:
    connection = ConnectionCore("broker", keep_alive=30, request_timeout=30, max_rejected=2)
    assert [connection.rejected(now) for now in (0.0, 30.0, 60.0, 61.0, 119.0)] == [False, False, False, False, True]
