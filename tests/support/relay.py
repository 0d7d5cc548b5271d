"""Put a TCP relay between a client and a broker, to cut, stall, delay, hold, drop and damage what passes.

Knows of the protocol only that a frame is [u32 total][u32 command size][command][…] and that a command begins with its
type (varint of field 1). Standard library and pytest only. Rules: it listens on 127.0.0.1; without a fault bytes pass
unchanged and in order, except that in lookup answers the broker's address becomes the relay's, so that the client stays
on it; one thread per direction of a connection, and every method may be called from any thread.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

import pytest

from broker import free_port

HOST = "127.0.0.1"
_LARGEST_FRAME = 64 * 1024 * 1024


class Command(enum.IntEnum):
    """The command types tests name; any other number works as well."""

    CONNECT = 2
    CONNECTED = 3
    SUBSCRIBE = 4
    PRODUCER = 5
    SEND = 6
    SEND_RECEIPT = 7
    SEND_ERROR = 8
    MESSAGE = 9
    ACK = 10
    FLOW = 11
    UNSUBSCRIBE = 12
    SUCCESS = 13
    ERROR = 14
    CLOSE_PRODUCER = 15
    CLOSE_CONSUMER = 16
    PRODUCER_SUCCESS = 17
    PING = 18
    PONG = 19
    REDELIVER_UNACKNOWLEDGED_MESSAGES = 20
    PARTITIONED_METADATA = 21
    PARTITIONED_METADATA_RESPONSE = 22
    LOOKUP = 23
    LOOKUP_RESPONSE = 24
    SEEK = 28
    GET_LAST_MESSAGE_ID = 29
    GET_LAST_MESSAGE_ID_RESPONSE = 30
    GET_TOPICS_OF_NAMESPACE = 32
    GET_TOPICS_OF_NAMESPACE_RESPONSE = 33
    AUTH_CHALLENGE = 36
    AUTH_RESPONSE = 37
    ACK_RESPONSE = 38
    NEW_TXN = 50
    NEW_TXN_RESPONSE = 51
    ADD_PARTITION_TO_TXN = 52
    ADD_PARTITION_TO_TXN_RESPONSE = 53
    ADD_SUBSCRIPTION_TO_TXN = 54
    ADD_SUBSCRIPTION_TO_TXN_RESPONSE = 55
    END_TXN = 56
    END_TXN_RESPONSE = 57
    TC_CLIENT_CONNECT_REQUEST = 62
    TC_CLIENT_CONNECT_RESPONSE = 63
    WATCH_TOPIC_LIST = 64
    WATCH_TOPIC_LIST_SUCCESS = 65
    WATCH_TOPIC_UPDATE = 66
    WATCH_TOPIC_LIST_CLOSE = 67


class Direction(enum.Enum):
    """Direction of the bytes."""

    TO_BROKER = "to broker"
    TO_CLIENT = "to client"


TO_BROKER, TO_CLIENT = Direction.TO_BROKER, Direction.TO_CLIENT


@dataclass(frozen=True)
class Seen:
    """One frame that reached the relay: when (monotonic seconds), which way, its type and all its bytes."""

    at: float
    direction: Direction
    command: int
    data: bytes = field(repr=False)


def command_type(frame: bytes) -> int:
    """Return the command type of a whole frame, -1 where it does not begin as a command does."""
    command = frame[8:]
    if len(command) < 2 or command[0] != 0x08:
        return -1
    value = shift = 0
    for byte in command[1:6]:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    return -1


class _Connection:
    """The two sockets of one relayed connection."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self._sockets = {TO_BROKER: (client, broker), TO_CLIENT: (broker, client)}
        self.write_lock = {TO_BROKER: threading.Lock(), TO_CLIENT: threading.Lock()}
        self.silent = False
        self._reset = False
        self._open = 2

    def source(self, direction: Direction) -> socket.socket:
        return self._sockets[direction][0]

    def sink(self, direction: Direction) -> socket.socket:
        return self._sockets[direction][1]

    def send(self, direction: Direction, data: bytes) -> None:
        if self.silent:
            return
        with self.write_lock[direction], contextlib.suppress(OSError):
            self.sink(direction).sendall(data)

    def finish(self, direction: Direction) -> None:
        """Pass the end of one direction on; the second end closes both sockets, and so does any without a broker."""
        if self._reset:
            return
        self._open -= 1
        if self._open <= 0 or self.silent:
            self.close()
            return
        with contextlib.suppress(OSError):
            self.sink(direction).shutdown(socket.SHUT_WR)

    def close(self, *, reset: bool = False) -> None:
        # Set first: a pump that wakes must not send the FIN that would go before the RST.
        self._reset = self._reset or reset
        for each in self._sockets[TO_BROKER]:
            with contextlib.suppress(OSError):
                if reset:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Wakes the pump, which else keeps the socket open after close; closing both ways would send a FIN.
                each.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
            each.close()

    def lose_broker(self) -> None:
        """Close the broker's side only; the client's stays open and hears nothing any more."""
        self.silent = True
        with contextlib.suppress(OSError):
            self.sink(TO_BROKER).shutdown(socket.SHUT_RDWR)


# What a rule makes of a frame: other bytes, or None to swallow it.
Action = Callable[[_Connection, bytes], bytes | None]


@dataclass
class _Rule:
    direction: Direction
    command: int | None
    action: Action
    left: int | None
    # Whether it acts in one step with the recording of the frame: who has seen a frame that is held may release it.
    at_once: bool = False

    def applies(self, direction: Direction, command: int) -> bool:
        if direction is not self.direction or self.left == 0:
            return False
        return self.command is None or self.command == command


class Relay:
    """Relay connections to one broker; a context manager.

    `opaque=True` passes bytes without looking for frames (TLS): then only cut, stall, delay and half_open work.
    """

    def __init__(self, service_url: str, *, opaque: bool = False) -> None:
        target = urlsplit(service_url)
        self._target = (target.hostname or HOST, target.port or 6650)
        self._scheme = target.scheme
        self._opaque = opaque
        self.port = free_port()
        self._rewrite = (f":{self._target[1]}".encode(), f":{self.port}".encode())
        if len(self._rewrite[0]) != len(self._rewrite[1]):
            raise ValueError("the broker's port needs five digits: the relay writes its own over it")
        self._change = threading.Condition()
        self._stalled: set[Direction] = set()
        self._delays = {TO_BROKER: 0.0, TO_CLIENT: 0.0}
        self._cut_after: dict[Direction, int | None] = {TO_BROKER: None, TO_CLIENT: None}
        self._trickles = {TO_BROKER: (0, 0.0), TO_CLIENT: (0, 0.0)}
        self._rules: list[_Rule] = []
        self._connections: list[_Connection] = []
        self._held: deque[tuple[_Connection, Direction, bytes]] = deque()
        self._closed = False
        self.seen: list[Seen] = []
        self.accepted = 0
        self._listener: socket.socket | None = None
        self.accept()

    @property
    def service_url(self) -> str:
        """Return the URL for the client."""
        return f"{self._scheme}://{HOST}:{self.port}"

    # ---- faults ------------------------------------------------------------------------------------------------------

    def cut(self, *, reset: bool = False) -> int:
        """Close all connections (with RST if asked) and return how many; new ones are accepted as before."""
        with self._change:
            connections, self._connections = self._connections, []
            self._held.clear()
            self._change.notify_all()
        for each in connections:
            each.close(reset=reset)
        return len(connections)

    def cut_after(self, size: int, direction: Direction) -> None:
        """Cut as soon as `size` further bytes have passed that way, in the middle of a frame if it falls there."""
        with self._change:
            self._cut_after[direction] = size

    def refuse(self) -> None:
        """Stop listening, as a broker that is down does; connections that exist go on."""
        with self._change:
            listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def accept(self) -> None:
        """Listen (again) on the same port."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, self.port))
        listener.listen(64)
        self._listener = listener
        threading.Thread(target=self._accept_loop, args=(listener,), name="relay-accept", daemon=True).start()

    def stall(self, *directions: Direction) -> None:
        """Stop passing bytes that way (both ways by default); the connections stay open, nothing is lost."""
        with self._change:
            self._stalled.update(directions or Direction)

    def resume(self) -> None:
        """Let stalled directions pass again."""
        with self._change:
            self._stalled.clear()
            self._change.notify_all()

    def half_open(self) -> None:
        """Drop the broker's side of every connection and keep the client's: a peer that vanished without a word."""
        with self._change:
            connections = list(self._connections)
        for each in connections:
            each.lose_broker()

    def delay(self, seconds: float, direction: Direction = TO_CLIENT) -> None:
        """Pass every further piece that way late by this long; 0 ends it."""
        self._delays[direction] = seconds

    def trickle(self, size: int, seconds: float, *directions: Direction) -> None:
        """Pass bytes that way (both ways by default) a few at a time with a pause after each piece; size 0 ends it."""
        for direction in directions or Direction:
            self._trickles[direction] = (size, seconds)

    def swallow(self, direction: Direction) -> None:
        """Let nothing through that way from now on, until `release`; the connections stay open."""
        self.drop(None, direction, times=None)

    def drop(self, command: int | None, direction: Direction, times: int | None = 1) -> None:
        """Swallow the next frames of that command (None: of any); times None: all from now on."""
        self._add(_Rule(direction, command, lambda connection, frame: None, times))

    def let_pass(self, command: int | None, direction: Direction, times: int = 1) -> None:
        """Keep the next frames of that command from rules that are made later."""
        self._add(_Rule(direction, command, lambda connection, frame: frame, times))

    def corrupt(self, command: int | None, direction: Direction, *, at: int = -1, times: int | None = 1) -> None:
        """Flip the bits of one byte, counted from the frame's end by default, in the next frames of that command."""

        def flip(connection: _Connection, frame: bytes) -> bytes:
            changed = bytearray(frame)
            changed[at] ^= 0xFF
            return bytes(changed)

        self._add(_Rule(direction, command, flip, times))

    def replace(self, command: int | None, direction: Direction, change: Callable[[bytes], bytes | None]) -> None:
        """Pass what `change` makes of each frame of that command, nothing where it returns None."""
        self._add(_Rule(direction, command, lambda connection, frame: change(frame), None))

    def cut_at(self, command: int | None, direction: Direction) -> None:
        """Cut everything when the next frame of that command arrives; the frame itself is not passed on."""

        def cut(connection: _Connection, frame: bytes) -> None:
            self.cut()

        self._add(_Rule(direction, command, cut, 1))

    def hold(self, command: int | None, direction: Direction, times: int | None = None) -> None:
        """Set frames of that command aside until `release`; others overtake them."""

        def keep(connection: _Connection, frame: bytes) -> None:
            self._held.append((connection, direction, frame))

        self._add(_Rule(direction, command, keep, times, at_once=True))

    def release(self) -> int:
        """End all rules, pass the frames held so far in their order, and return their number."""
        with self._change:
            self._rules.clear()
            held, self._held = self._held, deque()
            # A frame that arrives meanwhile waits for the lock, and does not overtake these.
            for connection, direction, frame in held:
                connection.send(direction, frame)
        return len(held)

    @property
    def held(self) -> int:
        """Return how many frames are set aside."""
        return len(self._held)

    # ---- what was seen -----------------------------------------------------------------------------------------------

    def frames(self, command: int | None = None, direction: Direction | None = None) -> list[Seen]:
        """Return the frames seen so far, of one command or way if given, in the order of arrival."""
        with self._change:
            return [
                each
                for each in self.seen
                if (command is None or each.command == command) and (direction is None or each.direction is direction)
            ]

    def count(self, command: int | None = None, direction: Direction | None = None) -> int:
        """Return how many such frames were seen."""
        return len(self.frames(command, direction))

    def wait_for(self, command: int, count: int = 1, timeout: float = 10) -> list[Seen]:
        """Wait until `count` frames of that command were seen and return them; raises TimeoutError."""
        with self._change:
            if not self._change.wait_for(lambda: self._seen(command) >= count, timeout):
                raise TimeoutError(f"{self._seen(command)} of {count} frames of command {command} after {timeout} s")
        return self.frames(command)

    def _seen(self, command: int) -> int:
        return sum(1 for each in self.seen if each.command == command)

    @property
    def connections(self) -> int:
        """Return how many connections are open through the relay."""
        return len(self._connections)

    # ---- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop listening and cut everything."""
        self._closed = True
        self.refuse()
        self.resume()
        self.cut()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _add(self, rule: _Rule) -> None:
        with self._change:
            self._rules.append(rule)

    def _accept_loop(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                broker = socket.create_connection(self._target, timeout=10)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            for each in (client, broker):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(client, broker)
            with self._change:
                self._connections.append(connection)
            for direction in Direction:
                pump = threading.Thread(target=self._pump, args=(connection, direction), name="relay", daemon=True)
                pump.start()

    def _pump(self, connection: _Connection, direction: Direction) -> None:
        buffer = bytearray()
        source = connection.source(direction)
        while True:
            try:
                data = source.recv(256 * 1024)
            except OSError:
                data = b""
            if not data:
                break
            buffer += data
            for frame in self._take_frames(buffer):
                self._pass(connection, direction, frame)
        if buffer:
            self._pass(connection, direction, bytes(buffer))
        if not (connection.silent and direction is TO_CLIENT):
            connection.finish(direction)
        if direction is TO_BROKER:
            with self._change, contextlib.suppress(ValueError):
                self._connections.remove(connection)

    def _take_frames(self, buffer: bytearray) -> Iterator[bytes]:
        """Take the whole frames off the buffer's front; what does not look like frames goes as it comes."""
        while len(buffer) >= 4 or (self._opaque and buffer):
            size = 4 + int.from_bytes(buffer[:4], "big")
            if self._opaque or size > _LARGEST_FRAME:
                size = len(buffer)
            if len(buffer) < size:
                return
            frame = bytes(buffer[:size])
            del buffer[:size]
            yield frame

    def _pass(self, connection: _Connection, direction: Direction, frame: bytes) -> None:
        command = -1 if self._opaque else command_type(frame)
        passed = frame.replace(*self._rewrite) if command == Command.LOOKUP_RESPONSE else frame
        changed: bytes | None = passed
        with self._change:
            self.seen.append(Seen(time.monotonic(), direction, command, frame))
            rule = self._rule_of(direction, command)
            if rule is not None and rule.at_once:
                changed = rule.action(connection, passed)
            self._change.notify_all()
        if rule is not None and not rule.at_once:
            changed = rule.action(connection, passed)
        if self._delays[direction]:
            time.sleep(self._delays[direction])
        with self._change:
            self._change.wait_for(lambda: direction not in self._stalled)
        if changed is not None:
            self._forward(connection, direction, changed)

    def _rule_of(self, direction: Direction, command: int) -> _Rule | None:
        """Return the rule that takes a frame, which counts for it; the lock is held."""
        rule = next((each for each in self._rules if each.applies(direction, command)), None)
        if rule is not None and rule.left is not None:
            rule.left -= 1
        return rule

    def _forward(self, connection: _Connection, direction: Direction, frame: bytes) -> None:
        with self._change:
            left = self._cut_after[direction]
            if left is not None:
                self._cut_after[direction] = left - len(frame) if left > len(frame) else None
        if left is not None and left <= len(frame):
            connection.send(direction, frame[:left])
            self.cut()
            return
        size, pause = self._trickles[direction]
        for start in range(0, len(frame) if size else 0, size or 1):
            connection.send(direction, frame[start : start + size])
            time.sleep(pause)
        if not size:
            connection.send(direction, frame)


class NewRelay(Protocol):
    """Put a relay before a broker; it is closed after the test."""

    def __call__(self, service_url: str, *, opaque: bool = False) -> Relay:
        """Return the relay; its `service_url` is for the client."""


@pytest.fixture
def relay() -> Iterator[NewRelay]:
    """Give a factory of relays."""
    with contextlib.ExitStack() as stack:

        def put(service_url: str, *, opaque: bool = False) -> Relay:
            return stack.enter_context(Relay(service_url, opaque=opaque))

        yield put
