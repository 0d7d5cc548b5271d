"""The relay passes frames unchanged, and each fault does what it says and no more."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from support.relay import TO_BROKER, TO_CLIENT, Command, Direction, NewRelay, Relay, command_type


def frame(command: int, rest: bytes = b"") -> bytes:
    """Build a frame whose command is only its type, followed by a payload."""
    body = bytes([0x08, command])
    return (4 + len(body) + len(rest)).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body + rest


class Echo(socketserver.BaseRequestHandler):
    """Send everything back."""

    def handle(self) -> None:
        """Serve one connection until its end."""
        while data := self.request.recv(65536):
            self.request.sendall(data)


class Server(socketserver.ThreadingTCPServer):
    """A server that leaves no thread behind."""

    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: connections are broken on purpose."""


@pytest.fixture
def echo() -> Iterator[str]:
    """Give the URL of an echo server."""
    with Server(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"pulsar://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def connect(relay: Relay) -> socket.socket:
    """Open a connection through the relay."""
    opened = socket.create_connection(("127.0.0.1", relay.port), timeout=5)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def read(client: socket.socket, size: int) -> bytes:
    """Read exactly so many bytes, fewer at the end of the stream."""
    data = b""
    while len(data) < size and (more := client.recv(size - len(data))):
        data += more
    return data


def silent(client: socket.socket, seconds: float = 0.2) -> bool:
    """Tell whether nothing arrives for a while."""
    client.settimeout(seconds)
    try:
        return client.recv(1) is None
    except TimeoutError:
        return True
    finally:
        client.settimeout(5)


def test_command_type_reads_varints_and_rejects_other_bytes() -> None:
    assert command_type(frame(9)) == 9
    assert command_type(b"\0\0\0\x07\0\0\0\x03\x08\x80\x01") == 128
    assert command_type(b"\0\0\0\x05\0\0\0\x01\x10") == -1
    assert command_type(b"") == -1


def test_frames_pass_unchanged_in_any_split_and_are_counted(echo: str, relay: NewRelay) -> None:
    through = relay(echo)
    data = frame(6, b"one") + frame(6, b"x" * 300_000) + frame(18)
    with connect(through) as client:
        for start in range(0, 40, 3):
            client.sendall(data[start : start + 3])
        client.sendall(data[42:])
        assert read(client, len(data)) == data
    assert through.count(Command.SEND, TO_BROKER) == 2
    assert [each.command for each in through.frames(direction=TO_CLIENT)] == [6, 6, 18]
    assert through.frames(Command.PING)[0].data == frame(18)


def test_end_of_stream_passes_each_way(echo: str, relay: NewRelay) -> None:
    with connect(relay(echo)) as client:
        client.sendall(frame(6))
        client.shutdown(socket.SHUT_WR)
        assert read(client, 1000) == frame(6)


def test_cut_ends_connections_and_takes_new_ones(echo: str, relay: NewRelay) -> None:
    through = relay(echo)
    with connect(through) as client:
        client.sendall(frame(6))
        read(client, len(frame(6)))
        assert through.cut() == 1
        assert client.recv(10) == b""
    with connect(through) as client:
        client.sendall(frame(6))
        assert read(client, len(frame(6))) == frame(6)
    assert through.accepted == 2


def test_cut_with_reset_is_an_error_at_the_client(echo: str, relay: NewRelay) -> None:
    through = relay(echo)
    with connect(through) as client:
        client.sendall(frame(6))
        read(client, len(frame(6)))
        through.cut(reset=True)
        with pytest.raises(ConnectionResetError):
            client.recv(10)


def test_cut_after_splits_a_frame(echo: str, relay: NewRelay) -> None:
    through = relay(echo)
    with connect(through) as client:
        through.cut_after(15, TO_CLIENT)
        client.sendall(frame(6, b"0123456789"))
        assert read(client, 100) == frame(6, b"0123456789")[:15]


def test_refuse_and_accept_keep_the_port(echo: str, relay: NewRelay) -> None:
    through = relay(echo)
    through.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect(through)
    through.accept()
    with connect(through) as client:
        client.sendall(frame(6))
        assert read(client, len(frame(6))) == frame(6)


@pytest.mark.parametrize("direction", [TO_BROKER, TO_CLIENT])
def test_stall_loses_nothing(echo: str, relay: NewRelay, direction: object) -> None:
    through = relay(echo)
    with connect(through) as client:
        through.stall(TO_BROKER if direction is TO_BROKER else TO_CLIENT)
        client.sendall(frame(6, b"a") + frame(6, b"b"))
        assert silent(client)
        through.resume()
        assert read(client, 22) == frame(6, b"a") + frame(6, b"b")


def test_half_open_leaves_the_client_without_a_word(echo: str, relay: NewRelay) -> None:
    through = relay(echo)
    with connect(through) as client:
        client.sendall(frame(6))
        read(client, len(frame(6)))
        through.half_open()
        client.sendall(frame(6))
        assert silent(client, 0.3)


def test_delay_is_late_and_complete(echo: str, relay: NewRelay) -> None:
    through = relay(echo)
    with connect(through) as client:
        through.delay(0.2, TO_CLIENT)
        started = time.monotonic()
        client.sendall(frame(6))
        assert read(client, len(frame(6))) == frame(6)
        assert time.monotonic() - started >= 0.2


def test_drop_swallows_only_what_it_names(echo: str, relay: NewRelay) -> None:
    through = relay(echo)
    through.drop(Command.SEND, TO_BROKER)
    with connect(through) as client:
        client.sendall(frame(6, b"lost") + frame(18) + frame(6, b"kept"))
        assert read(client, 24) == frame(18) + frame(6, b"kept")


def test_corrupt_changes_one_byte_once(echo: str, relay: NewRelay) -> None:
    through = relay(echo)
    through.corrupt(Command.SEND, TO_BROKER)
    with connect(through) as client:
        client.sendall(frame(6, b"\x00") * 2)
        assert read(client, 22) == frame(6, b"\xff") + frame(6, b"\x00")


def test_hold_lets_others_overtake_and_release_keeps_order(echo: str, relay: NewRelay) -> None:
    through = relay(echo)
    through.hold(Command.SEND, TO_BROKER)
    with connect(through) as client:
        client.sendall(frame(6, b"1") + frame(6, b"2") + frame(18))
        assert read(client, len(frame(18))) == frame(18)
        through.wait_for(Command.SEND, 2)
        assert silent(client)
        assert through.release() == 2
        assert read(client, 22) == frame(6, b"1") + frame(6, b"2")


def test_cut_at_a_command(echo: str, relay: NewRelay) -> None:
    through = relay(echo)
    through.cut_at(Command.SEND, TO_BROKER)
    with connect(through) as client:
        client.sendall(frame(18) + frame(6))
        assert read(client, 100) in (frame(18), b"")
    with connect(through) as client:
        client.sendall(frame(6))
        assert read(client, len(frame(6))) == frame(6)


def test_wait_for_gives_up(echo: str, relay: NewRelay) -> None:
    with pytest.raises(TimeoutError, match="0 of 1 frames"):
        relay(echo).wait_for(Command.SEND, timeout=0.05)


def test_trickling_changes_nothing_but_the_pieces(echo: str, relay: NewRelay) -> None:
    through = relay(echo)
    with connect(through) as client:
        through.trickle(3, 0.01, TO_CLIENT)
        started = time.monotonic()
        client.sendall(frame(6, b"piece by piece"))
        assert read(client, 24) == frame(6, b"piece by piece")
        assert time.monotonic() - started >= 0.07
        through.trickle(0, 0.0)
        client.sendall(frame(6, b"whole"))
        assert read(client, 15) == frame(6, b"whole")


@pytest.mark.parametrize("direction", [TO_BROKER, TO_CLIENT])
def test_swallowing_one_way_until_release(echo: str, relay: NewRelay, direction: Direction) -> None:
    through = relay(echo)
    with connect(through) as client:
        through.swallow(direction)
        client.sendall(frame(6, b"lost"))
        through.wait_for(Command.SEND)
        assert silent(client)
        through.release()
        client.sendall(frame(6, b"kept"))
        assert read(client, 14) == frame(6, b"kept")
