"""Connection state machine: handshake, keep-alive, and the table of unanswered requests.

Input is bytes, output is events; bytes to send are collected in `outgoing`. Rules: only the handshake may be sent
before CONNECTED; a PING is answered immediately; a response to a request that is not in the table is ignored (it has
timed out); a request without a response by its deadline fails alone. Every split of the byte stream gives the same
events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from pulsar_native._loggers import get_logger
from pulsar_native.exceptions import (
    AlreadyClosed,
    ConnectError,
    NotConnected,
    ProtocolViolation,
    PulsarException,
    Timeout,
    from_server_error,
)
from pulsar_native.wire import _impl, commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.frames import DEFAULT_MAX_MESSAGE_SIZE, FRAME_PADDING, Frame, FrameDecoder

_log = get_logger(__name__)

_REJECTION_WINDOW_SECONDS = 60.0
# Cached: each attribute access on the enumeration is a search by name.
_SEND_RECEIPT = Kind.SEND_RECEIPT
_PRODUCER_SUCCESS = pb.CommandProducerSuccess
_DATA = (Kind.MESSAGE, _SEND_RECEIPT)


class Phase(Enum):
    """Life-cycle phase of a connection."""

    HANDSHAKE = auto()
    READY = auto()
    CLOSED = auto()


class Answered(NamedTuple):
    """Response or error of a request; `sink` is the object the request was registered with."""

    sink: Any
    answer: Any
    error: PulsarException | None


class Connected(NamedTuple):
    """The broker accepted the handshake."""

    server_version: str


class AuthChallenged(NamedTuple):
    """The broker requests fresh credentials (AUTH_CHALLENGE)."""


class Messages(NamedTuple):
    """Frames of several messages of one consumer, in order."""

    frames: list[Frame]


Event = Frame | Messages | Answered | Connected | AuthChallenged


class ConnectionCore:
    """Connection state machine. Not thread-safe, except `register` and `first_answer`, which only add to the table of
    requests or remove from it; times are seconds of a monotonic clock.
    """

    def __init__(self, broker: str, *, keep_alive: float, request_timeout: float, max_rejected: int = 50) -> None:
        self.broker = broker
        self.phase = Phase.HANDSHAKE
        self.max_message_size = DEFAULT_MAX_MESSAGE_SIZE
        self.protocol_version = 0
        self.server_version = ""
        self.feature_flags: Any = None
        self.outgoing: list[bytes] = []
        self._keep_alive = keep_alive
        self._request_timeout = request_timeout
        # True from a PING until bytes are received.
        self._is_silent = False
        self._decoder = FrameDecoder(cut_messages=_impl.cut_messages)
        # By request id: deadline, time-out in seconds, sink.
        self._requests: dict[int, tuple[float, float, Any]] = {}
        self._waiting: set[int] = set()
        self._max_rejected = max_rejected
        self._rejections = 0
        self._first_rejection = 0.0

    # --- requests -------------------------------------------------------------------------------------------------

    def register(self, request_id: int, sink: Any, now: float, timeout: float | None = None) -> float:
        """Register a request about to be sent; `sink` is returned with its response. Returns when it times out."""
        if self.phase is not Phase.READY:
            raise NotConnected("The connection is not ready for requests", broker=self.broker)
        limit = self._request_timeout if timeout is None else timeout
        self._requests[request_id] = (now + limit, limit, sink)
        return now + limit

    def forget(self, request_id: int) -> None:
        """Remove a request whose caller has given up; its response will be ignored."""
        self._requests.pop(request_id, None)
        self._waiting.discard(request_id)

    @property
    def has_requests(self) -> bool:
        """True while any request waits for its response."""
        return bool(self._requests)

    def rejected(self, now: float) -> bool:
        """Record that the broker rejected a request with TooManyRequests; return True if the connection must be closed.

        That is the case when the broker rejected more than the allowed number within 60 s of the first (Java client
        4.x).
        """
        if self._rejections == 0 or now - self._first_rejection >= _REJECTION_WINDOW_SECONDS:
            self._rejections, self._first_rejection = 0, now
        self._rejections += 1
        return self._rejections > self._max_rejected

    def next_deadline(self) -> float | None:
        """Return when the earliest unanswered request times out."""
        # A copy, as other threads may register requests.
        requests = self._requests.copy()
        return min((at for key, (at, _, _) in requests.items() if key not in self._waiting), default=None)

    def expire(self, now: float) -> list[Answered]:
        """Fail the requests whose deadline has passed, and only those."""
        requests = self._requests.copy()
        late = [key for key, (at, _, _) in requests.items() if at <= now and key not in self._waiting]
        events = []
        for key in late:
            if self._requests.pop(key, None) is None:
                # Answered meanwhile, see `first_answer`.
                continue
            _, limit, sink = requests[key]
            error = Timeout(f"The broker did not answer within {limit:g} s", broker=self.broker, request_id=key)
            events.append(Answered(sink, None, error))
        return events

    def close(self, error: PulsarException | None = None) -> list[Answered]:
        """Fail every unanswered request; no request is accepted afterwards."""
        self.phase = Phase.CLOSED
        error = error or NotConnected("The connection was closed")
        # One error object each: every caller adds the context of its own request.
        requests, self._requests = self._requests, {}
        events = [
            Answered(sink, None, type(error)(error.message, broker=self.broker, request_id=key))
            for key, (_, _, sink) in requests.copy().items()
        ]
        self._waiting.clear()
        return events

    # --- keep-alive -----------------------------------------------------------------------------------------------

    def keep_alive_due(self) -> bool:
        """Send a PING; return False when nothing has come since the previous one and the connection must be closed.

        Called every keep-alive interval, so that a dead peer is detected after at most two of them. On a slow link a
        PONG may wait behind messages for longer: any bytes show that the peer lives.
        """
        if self._is_silent:
            return False
        self._is_silent = True
        self.outgoing.append(commands.PING)
        return True

    # --- bytes ----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes | memoryview) -> list[Event]:
        """Parse bytes of the stream and return their events; raises `ProtocolViolation` on malformed input."""
        if self.phase is Phase.CLOSED:
            raise AlreadyClosed("The connection is closed", broker=self.broker)
        self._is_silent = False
        events: list[Event] = []
        frames = self._decoder.receive(data)
        position = 0
        while position < len(frames):
            # Messages of one consumer are one event: with an event for each, most time would be spent between the
            # functions they pass.
            stop = _impl.messages_end(frames, position)
            if stop - position > 1:
                self._check_ready()
                events.append(Messages(frames[position:stop]))
                position = stop
                continue
            frame = frames[position]
            position += 1
            kind = frame.command.type
            if kind in _DATA:
                self._check_ready()
                events.append(frame)
                continue
            event = self._control(frame, kind)
            if event is not None:
                events.append(event)
        return events

    def _check_ready(self) -> None:
        if self.phase is not Phase.READY:
            raise ProtocolViolation("The broker sent data before the handshake", broker=self.broker)

    def only_receipt(self, data: bytes) -> pb.CommandSendReceipt | None:
        """Return the receipt when these bytes are exactly one SEND_RECEIPT, else None. No state is changed by None."""
        if self.phase is not Phase.READY:
            return None
        command = self._decoder.only_command(data)
        return command.send_receipt if command is not None and command.type == _SEND_RECEIPT else None

    def first_answer(
        self, data: bytes, request_ids: Sequence[int], success: tuple[bytes, pb.CommandSuccess]
    ) -> tuple[Answered, int] | None:
        """Return the response these bytes begin with and its frame's size, and remove its request from the table.

        None, without any change of state, for anything but a whole response, without error, to one of these requests.
        `success` is the SUCCESS of the last one: the usual response to SUBSCRIBE and to a close, which is compared, as
        parsing it takes longer than all the rest of this.
        """
        if self.phase is not Phase.READY:
            return None
        frame, answer = success
        if data.startswith(frame) and self._decoder.is_between_frames:
            entry = self._requests.pop(request_ids[-1], None)
            return None if entry is None else (Answered(entry[2], answer, None), len(frame))
        return self._first_parsed(data, request_ids)

    def _first_parsed(self, data: bytes, request_ids: Sequence[int]) -> tuple[Answered, int] | None:
        first = self._decoder.first_command(data)
        answer = None if first is None else commands.answer_of(first[0])
        if first is None or answer is None or answer[0] not in request_ids or answer[2] is not None:
            return None
        if _is_queued(answer[1]):
            return None
        entry = self._requests.pop(answer[0], None)
        return None if entry is None else (Answered(entry[2], answer[1], None), first[1])

    def _control(self, frame: Frame, kind: int) -> Event | None:
        handler = _CONTROL.get(kind)
        if handler is not None:
            return handler(self, frame)
        answer = commands.answer_of(frame.command)
        if answer is None:
            return frame
        if self.phase is Phase.HANDSHAKE:
            raise self._refused(frame)
        return self._answered(*answer)

    def _refused(self, frame: Frame) -> PulsarException:
        if frame.command.type == Kind.ERROR:
            error = frame.command.error
            return from_server_error(error.error, error.message, broker=self.broker)
        return ProtocolViolation("The broker answered a request before the handshake", broker=self.broker)

    def _answered(self, request_id: int, answer: Any, error: PulsarException | None) -> Event | None:
        entry = self._requests.get(request_id)
        if entry is None:
            _log.debug("Ignoring the response to unknown or timed-out request %d", request_id)
            return None
        if error is None and _is_queued(answer):
            # The producer is queued for exclusive access: a second response with the same request id follows at an
            # unknown time, so the request has no deadline from now on.
            self._waiting.add(request_id)
            return None
        self.forget(request_id)
        if error is not None:
            error.broker = self.broker
        return Answered(entry[2], answer, error)

    def _on_connected(self, frame: Frame) -> Event:
        if self.phase is not Phase.HANDSHAKE:
            raise ProtocolViolation("The broker sent CONNECTED twice", broker=self.broker)
        connected = frame.command.connected
        self.protocol_version = connected.protocol_version
        self.server_version = connected.server_version
        self.feature_flags = connected.feature_flags
        if connected.max_message_size > 0:
            self.max_message_size = connected.max_message_size
            self._decoder.max_frame_size = connected.max_message_size + FRAME_PADDING
        self.phase = Phase.READY
        return Connected(connected.server_version)

    def _on_ping(self, _frame: Frame) -> None:
        self.outgoing.append(commands.PONG)

    def _on_pong(self, _frame: Frame) -> None:
        """Do nothing: its bytes were what mattered."""

    def _on_challenge(self, _frame: Frame) -> Event:
        return AuthChallenged()


_CONTROL: dict[int, Callable[[ConnectionCore, Frame], Event | None]] = {
    Kind.CONNECTED: ConnectionCore._on_connected,
    Kind.PING: ConnectionCore._on_ping,
    Kind.PONG: ConnectionCore._on_pong,
    Kind.AUTH_CHALLENGE: ConnectionCore._on_challenge,
}


def _is_queued(answer: Any) -> bool:
    """Return True if the broker has queued a producer for exclusive access: the actual response follows later."""
    return type(answer) is _PRODUCER_SUCCESS and not answer.producer_ready


def connection_lost(broker: str, reason: str) -> ConnectError:
    """Return the error for a lost connection."""
    return ConnectError(f"The connection to the broker was lost: {reason}", broker=broker)
