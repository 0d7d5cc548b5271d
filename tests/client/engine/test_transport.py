"""Transport: writing from any thread, reading on the loop, inline reads, and connecting."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker_keys import Certificates
from pulsar_native.engine.loop import Engine
from pulsar_native.engine.transport import Transport, _after, _resolve, dial
from pulsar_native.exceptions import ConnectError
from pulsar_native.service_url import Address
from pulsar_native.wire.commands import Kind
from support.fake_broker import HOST, FakeBroker
from support.http_peer import Answer, http_peer
from support.until import until


class Ends:
    """A transport and the socket at its other end, both with small buffers, over TLS if there are certificates."""

    def __init__(self, certificates: Certificates | None = None) -> None:
        here, self.there = socket.socketpair()
        for each in (here, self.there):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            each.settimeout(10)
        if certificates is not None:
            here, self.there = tls_ends(here, self.there, certificates)
        here.setblocking(False)
        self.engine = Engine(asyncio.get_running_loop(), threading.get_ident())
        self.received = bytearray()
        self.reasons: list[str] = []
        self.transport = Transport(self.engine, here, self._data, self.reasons.append)
        self.transport.start()

    def _data(self, data: memoryview) -> None:
        self.received += data

    def read(self, count: int) -> bytes:
        """Return the next bytes at the other end, at most 3,000 at a time as a slow peer reads them."""
        got = bytearray()
        while len(got) < count and (data := self.there.recv(min(count - len(got), 3000))):
            got += data
        return bytes(got)

    def close(self) -> None:
        self.transport.close()
        self.there.close()


def tls_ends(
    client: socket.socket, server: socket.socket, certificates: Certificates
) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    """Return both sockets with TLS between them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server_certificate, certificates.server_key)
    trust = ssl.create_default_context(cafile=str(certificates.authority))
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(context.wrap_socket, server, server_side=True)
        return trust.wrap_socket(client, server_hostname=HOST), accepting.result()


@pytest.fixture(params=["plain", "tls"])
def ends(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Callable[[], Ends]]:
    """Give a function that makes connected ends, plain ones and with TLS."""
    made: list[Ends] = []

    def make() -> Ends:
        made.append(Ends(certificates if request.param == "tls" else None))
        return made[-1]

    yield make
    for each in made:
        each.there.close()


@pytest.mark.asyncio
async def test_write_sends_from_calling_thread(ends: Callable[[], Ends]) -> None:
    pair = ends()
    pair.transport.write([b"hello ", memoryview(b"world"), b"", b"!"])
    # The loop had no chance to run: it was written by the call itself.
    assert pair.read(12) == b"hello world!"
    pair.close()


@pytest.mark.asyncio
async def test_write_stalled_peer_blocks_nobody(ends: Callable[[], Ends]) -> None:
    pair = ends()
    frames = [struct.pack(">I", number) + bytes([number % 251]) * (37 * number % 5000) for number in range(400)]
    started = time.monotonic()
    for frame in frames:
        pair.transport.write([frame[:4], b"", memoryview(frame)[4:]])
    assert time.monotonic() - started < 5
    whole = b"".join(frames)
    assert await asyncio.to_thread(pair.read, len(whole)) == whole
    pair.transport.write([b"after"])
    assert await asyncio.to_thread(pair.read, 5) == b"after"
    pair.close()


@pytest.mark.asyncio
async def test_write_from_threads_keeps_frames_whole(ends: Callable[[], Ends]) -> None:
    pair = ends()
    rounds, writers = 150, 4

    def write(writer: int) -> None:
        for number in range(rounds):
            body = bytes([writer]) * (number * 53 % 3000)
            pair.transport.write([struct.pack(">III", len(body), writer, number), body])

    def read() -> list[tuple[int, int]]:
        stream = pair.there.makefile("rb")
        order = []
        for _ in range(rounds * writers):
            size, writer, number = struct.unpack(">III", stream.read(12))
            assert stream.read(size) == bytes([writer]) * size
            order.append((writer, number))
        return order

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    reading = asyncio.create_task(asyncio.to_thread(read))
    for thread in threads:
        thread.start()
    order = await asyncio.wait_for(reading, 30)
    for thread in threads:
        thread.join()
    for writer in range(writers):
        assert [number for who, number in order if who == writer] == list(range(rounds))
    pair.close()


@pytest.mark.asyncio
async def test_write_more_buffers_than_iov_max(ends: Callable[[], Ends]) -> None:
    pair = ends()
    pair.transport.write([bytes(100_000)])
    for number in range(3000):
        pair.transport.write([struct.pack(">I", number)])
    got = await asyncio.to_thread(pair.read, 112_000)
    assert list(struct.unpack(">3000I", got[100_000:])) == list(range(3000))
    pair.close()


@pytest.mark.asyncio
async def test_read_passes_received_bytes(ends: Callable[[], Ends]) -> None:
    pair = ends()
    pair.there.sendall(b"abc")
    await until(lambda: pair.received == b"abc")
    pair.close()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.asyncio
async def test_read_end_reported_once(reset: bool) -> None:
    listener = socket.create_server((HOST, 0))
    engine = Engine(asyncio.get_running_loop(), threading.get_ident())
    here = await dial(engine, Address(HOST, listener.getsockname()[1]), timeout=5, tls=None, server_name=None)
    there, _ = listener.accept()
    reasons: list[str] = []
    transport = Transport(engine, here, lambda data: None, reasons.append)
    transport.start()
    if reset:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    there.close()
    await until(lambda: reasons)
    for _ in range(3):
        transport.write([b"nobody hears it"])
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(reasons) == 1 and transport.closed
    assert ("reset" in reasons[0]) if reset else (reasons == ["the broker closed it"])
    transport.close()
    listener.close()


@pytest.mark.asyncio
async def test_write_error_reported_on_loop(ends: Callable[[], Ends]) -> None:
    pair = ends()
    pair.there.close()
    pair.transport.write([b"x"])
    pair.transport.write([b"y"])
    assert pair.reasons == []
    await until(lambda: pair.reasons)
    assert len(pair.reasons) == 1 and pair.transport.closed
    assert pair.transport.local_port == -1


@pytest.mark.asyncio
async def test_close_drops_unwritten_silently(ends: Callable[[], Ends]) -> None:
    pair = ends()
    pair.transport.write([bytes(1 << 20)])
    pair.transport.close()
    pair.transport.close()
    pair.transport.write([b"x"])
    for _ in range(10):
        await asyncio.sleep(0)
    assert pair.reasons == []


def test_after_returns_unsent_buffers() -> None:
    buffers = [b"abc", b"", memoryview(b"de"), b"f"]
    for sent in range(7):
        rest = _after(buffers, sent)
        assert b"".join(bytes(buffer) for buffer in rest or ()) == b"abcdef"[sent:]
        assert (rest is None) == (sent == 6)


# --- connecting -------------------------------------------------------------------------------------------------


def engine_here() -> Engine:
    return Engine(asyncio.get_running_loop(), threading.get_ident())


def resolve_to(monkeypatch: pytest.MonkeyPatch, addresses: list[tuple[str, int]]) -> None:
    """Make every name resolve to these addresses, in this order."""

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


def closed_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def black_hole() -> Iterator[tuple[str, int]]:
    """Give an address that takes no connection and refuses none: a listener whose queue is full."""
    listener = socket.socket()
    listener.bind((HOST, 0))
    listener.listen(0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    yield listener.getsockname()
    for each in (*fillers, listener):
        each.close()


@pytest.mark.proves("C9")
@pytest.mark.asyncio
async def test_dial_sets_tcp_nodelay(fake: FakeBroker) -> None:
    sock = await dial(engine_here(), Address(HOST, fake.port), timeout=5, tls=None, server_name=None)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert not sock.getblocking()
    sock.close()


@pytest.mark.proves("C23")
@pytest.mark.asyncio
async def test_dial_tries_every_address(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, [(HOST, closed_port()), (HOST, closed_port()), (HOST, fake.port)])
    sock = await dial(engine_here(), Address("somewhere", 6650), timeout=5, tls=None, server_name=None)
    assert sock.getpeername() == (HOST, fake.port)
    sock.close()


@pytest.mark.asyncio
async def test_dial_numeric_address_without_lookup(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        raise AssertionError("a numeric address was looked up")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    sock = await dial(engine_here(), Address("127.0.0.1", fake.port), timeout=5, tls=None, server_name=None)
    assert sock.getpeername() == ("127.0.0.1", fake.port)
    sock.close()
    # A machine may have no IPv6: what is resolved is compared, and nothing connected.
    expected = [(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("::1", 6650, 0, 0))]
    assert await _resolve(engine_here(), Address("::1", 6650), 5) == expected


@pytest.mark.proves("C23", "C15")
@pytest.mark.asyncio
async def test_dial_silent_address_keeps_others_time(
    fake: FakeBroker, black_hole: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, [black_hole, (HOST, fake.port)])
    started = time.monotonic()
    sock = await dial(engine_here(), Address("somewhere", 6650), timeout=0.3, tls=None, server_name=None)
    assert sock.getpeername() == (HOST, fake.port)
    assert 0.3 <= time.monotonic() - started < 3
    sock.close()


@pytest.mark.proves("C23")
@pytest.mark.asyncio
async def test_dial_error_of_last_address(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, [(HOST, closed_port()), (HOST, closed_port())])
    with pytest.raises(ConnectError, match=r"somewhere:6650.*refused") as caught:
        await dial(engine_here(), Address("somewhere", 6650), timeout=5, tls=None, server_name=None)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    assert caught.value.broker == "somewhere:6650"


@pytest.mark.proves("C15")
@pytest.mark.asyncio
async def test_dial_times_out(black_hole: tuple[str, int]) -> None:
    started = time.monotonic()
    with pytest.raises(ConnectError, match=r"connection_timeout_ms \(0.3 s\)"):
        await dial(engine_here(), Address(*black_hole), timeout=0.3, tls=None, server_name=None)
    assert 0.3 <= time.monotonic() - started < 3


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("name", "is_trusted", "expected"),
    [
        (HOST, False, "CERTIFICATE_VERIFY_FAILED.*set tls_trust_certs_file_path"),
        ("elsewhere", True, "CERTIFICATE_VERIFY_FAILED.*not valid for 'elsewhere'.*tls_validate_hostname"),
    ],
    ids=["authority", "host"],
)
async def test_dial_untrusted_certificate_names_option(
    tls_fake: FakeBroker, certificates: Certificates, name: str, is_trusted: bool, expected: str
) -> None:
    tls = ssl.create_default_context(cafile=str(certificates.authority) if is_trusted else None)
    with pytest.raises(ConnectError, match=f"^TLS with .* failed: {expected}") as caught:
        await dial(engine_here(), Address(HOST, tls_fake.port), timeout=5, tls=tls, server_name=name)
    assert caught.value.retryable


@pytest.mark.asyncio
async def test_dial_plain_port_asks_for_tls_port() -> None:
    with http_peer(lambda _: Answer()) as peer:
        address = Address(HOST, int(peer.url.rpartition(":")[2]))
        with pytest.raises(ConnectError, match=r"TLS with .* failed: .*; is this the TLS port"):
            await dial(engine_here(), address, timeout=5, tls=ssl.create_default_context(), server_name=HOST)


@pytest.mark.asyncio
async def test_dial_unresolvable_name_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(ConnectError, match=r"'nowhere' cannot be resolved: .*not known"):
        await dial(engine_here(), Address("nowhere", 6650), timeout=5, tls=None, server_name=None)


@pytest.mark.asyncio
async def test_dial_wrong_name_raises_connect_error() -> None:
    with pytest.raises(ConnectError, match=r"'a\.\.b' cannot be resolved: "):
        await dial(engine_here(), Address("a..b", 6650), timeout=5, tls=None, server_name=None)


@pytest.mark.asyncio
async def test_dial_cancelled_leaves_no_socket(black_hole: tuple[str, int]) -> None:
    watched = asyncio.get_running_loop()._selector.get_map()  # type: ignore[attr-defined]
    before = len(watched)
    attempt = asyncio.create_task(dial(engine_here(), Address(*black_hole), timeout=9, tls=None, server_name=None))
    await until(lambda: len(watched) > before)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert len(watched) == before


# --- looking in the loop's stead ----------------------------------------------------------------------------------

# Over TLS the loop always reads.
plain = pytest.mark.parametrize("ends", ["plain"], indirect=True)


async def begin_inline(pair: Ends) -> None:
    """Have the test lead; the first time only asks for it."""
    assert not pair.transport.begin_inline_read()
    await asyncio.sleep(0)
    assert pair.transport.begin_inline_read()


@plain
@pytest.mark.asyncio
async def test_inline_read_leaves_other_bytes_to_loop(ends: Callable[[], Ends]) -> None:
    pair = ends()
    await begin_inline(pair)
    assert not pair.transport.begin_inline_read(), "one at a time"
    pair.there.send(b"mine")
    assert pair.transport.peek(10, Kind.PRODUCER) == b"mine"
    for _ in range(20):
        await asyncio.sleep(0)
    assert not pair.received
    pair.transport.discard(4)
    pair.there.send(b"yours")
    assert pair.transport.peek(10, Kind.PRODUCER) == b"yours"
    pair.transport.end_inline_read()
    await until(lambda: pair.received == b"yours")
    pair.there.send(b" too")
    await until(lambda: pair.received == b"yours too")
    pair.transport.pause_inline_reads()
    tries = 1
    while not pair.transport.begin_inline_read():
        tries += 1
    assert tries > 50
    assert pair.transport.peek(0.001, Kind.PRODUCER) == b""
    pair.transport.end_inline_read()
    pair.close()


@plain
@pytest.mark.asyncio
async def test_inline_read_connection_may_end(ends: Callable[[], Ends]) -> None:
    pair = ends()
    await begin_inline(pair)
    pair.there.close()
    assert pair.transport.peek(10, Kind.PRODUCER) == b""
    pair.transport.end_inline_read()
    await until(lambda: pair.reasons)
    assert not pair.transport.begin_inline_read()
    pair = ends()
    await begin_inline(pair)
    pair.transport.close()
    assert pair.transport.peek(10, Kind.PRODUCER) == b""
    pair.transport.discard(1)
    pair.transport.end_inline_read()
    assert not pair.transport.begin_inline_read()


class Readiness:
    """Poll object that notes whether each read polled before it slept; bytes are ready at once, or never."""

    def __init__(self, *, ready: bool) -> None:
        self.ready = ready
        self.waits: list[float] = []

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        self.waits.append(milliseconds)
        return [(0, 0)] if self.ready else []

    def slept_at_once(self) -> bool:
        """Return whether the last wait was the only one, and forget them."""
        waits, self.waits = self.waits, []
        assert waits[-1] > 0 and not any(waits[:-1])
        return len(waits) == 1


@plain
@pytest.mark.asyncio
async def test_peek_polls_before_it_sleeps(ends: Callable[[], Ends]) -> None:
    pair = ends()
    await begin_inline(pair)
    late, soon = Readiness(ready=False), Readiness(ready=True)
    pair.transport._readiness = late

    def sleeps(count: int) -> list[bool]:
        """Return for each of many reads whether it slept at once."""
        found = []
        for _ in range(count):
            assert pair.transport.peek(0.02, Kind.SUBSCRIBE) == b""
            found.append(late.slept_at_once())
        return found

    first = sleeps(300)
    vain = first.index(True)
    assert 2 <= vain <= 20, "some may be late by chance"
    again = first.index(False, vain)
    assert again - vain >= 50, "one that polls in vain costs as much as the rest of the read"
    assert pair.transport.peek(0.02, Kind.LOOKUP) == b"" and not late.slept_at_once(), "counted apart"
    # One that comes at once, after the pause, makes the count of vain ones begin again.
    pair.transport._readiness = soon
    for _ in range(300):
        pair.transport.peek(0.02, Kind.SUBSCRIBE)
    assert soon.waits[-1] == 0
    pair.transport._readiness = late
    assert not any(sleeps(vain))
    pair.transport.end_inline_read()
    pair.close()
