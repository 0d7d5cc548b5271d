"""Non-blocking socket with vectored writes from any thread.

The loop reads into the engine's one large buffer and passes it to the connection; a writer's frame goes to the kernel
from the writer's own thread when nothing is queued, and only what the kernel does not accept is queued for the loop. So
a stalled broker never blocks a caller, and outgoing data is not copied. Rule: frames are written whole and in the order
of `write`.

A thread that waits for one receipt may read the socket itself (`begin_inline_read` to `end_inline_read`): that saves
two thread switches. Anything but exactly that receipt it leaves in the socket, for the loop. The receipt is removed
from the socket after it was processed: interrupted (Ctrl-C) between the two, the loop reads it again and ignores it. No
thread ever blocks on `_reading`, so it has no place in the lock order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_native._callback_errors import is_of_signal_handler
from pulsar_native._http import tls_failure
from pulsar_native.engine.loop import Engine, track_socket
from pulsar_native.engine.socks5 import Socks5Proxy
from pulsar_native.exceptions import ConnectError, ConnectTimeout
from pulsar_native.service_url import Address

# The kernel rejects more buffers than this in one vectored write (IOV_MAX is 1024 on Linux).
_MAX_BUFFERS = 512

# Bytes an inline read peeks at, more than any receipt has.
_PEEK_BYTES = 512
# Number of inline reads that are refused after one found something else than its receipt.
_INLINE_READ_PAUSE = 100
# Longest time that an inline read polls before its thread sleeps. To be woken takes 30 us and more, as the processor
# has gone to sleep meanwhile; a near broker answers nine of ten requests within 60 us of polling. What takes longer may
# wait for this processor: the system has placed a thread of the broker on it, which runs when this thread sleeps.
_SPIN_SECONDS = 100e-6
# Number of inline reads that polled in vain, one after the other, after which the next ones sleep at once.
_MOST_VAIN_SPINS = 4
_SPIN_PAUSE = 100

Buffer = bytes | memoryview


class _Spin:
    """Polling of inline reads for one type of command, as long as it is worth it.

    The receipt of a stored message takes milliseconds, and the response to a reader's SUBSCRIBE half of one.
    """

    __slots__ = ("_vain",)

    def __init__(self) -> None:
        # Polls in vain one by one; below 0, the number of reads that are still to sleep at once.
        self._vain = 0

    def poll(self, readiness: Any) -> bool:
        """Return True if bytes arrive while it polls."""
        if self._vain < 0:
            self._vain += 1
            return False
        deadline = time.perf_counter() + _SPIN_SECONDS
        while not readiness.poll(0):
            if time.perf_counter() >= deadline:
                self._vain = self._vain + 1 if self._vain < _MOST_VAIN_SPINS else -_SPIN_PAUSE
                return False
        self._vain = 0
        return True


class Transport:
    """One connected socket. `write` and inline reads are thread-safe, everything else belongs to the loop."""

    def __init__(
        self,
        engine: Engine,
        sock: socket.socket,
        on_data: Callable[[memoryview], None],
        on_closed: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._sock = sock
        self._fd = sock.fileno()
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        self._on_data = on_data
        self._on_closed = on_closed
        # Also held while a TLS socket is read: OpenSSL does not allow both at once.
        self._lock = threading.Lock()
        self._backlog: deque[Buffer] = deque()
        self._writer_armed = False
        self.closed = False
        # Held by the reading thread. The next four are for inline reads: the epoll object the loop watches instead of
        # the socket after the first one, the poll object an inline read waits with, the number of inline reads still to
        # be refused, and the polls by type of the command whose response is waited for.
        self._reading = threading.Lock()
        self._watch: Any = None
        self._readiness: Any = None
        self._pause = 0
        self._spins: dict[int, _Spin] = {}

    @property
    def local_port(self) -> int:
        """Local port, which brokers show in their statistics."""
        with contextlib.suppress(OSError):
            return int(self._sock.getsockname()[1])
        return -1

    def start(self) -> None:
        """Start reading."""
        self._engine.loop.add_reader(self._fd, self._readable)

    # --- reading --------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        if self._watch is None:
            self._read()
        elif self._reading.acquire(blocking=False):
            try:
                self._read()
            finally:
                self._reading.release()

    def _read(self) -> None:
        buffer = self._engine.read_buffer
        while not self.closed:
            try:
                if self._is_tls:
                    with self._lock:
                        count = self._sock.recv_into(buffer)
                else:
                    count = self._sock.recv_into(buffer)
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
                return
            except ssl.SSLWantWriteError:
                self._engine.loop.add_writer(self._fd, self._writable)
                return
            except OSError as error:
                self._lost(error.strerror or str(error))
                return
            if not count:
                self._lost("the broker closed it")
                return
            self._on_data(buffer[:count])
            # The loop calls again for a plain socket, so that no connection starves the others; bytes that TLS has
            # already decrypted would not wake the loop, so they are drained here.
            if not self._is_tls:
                return

    # --- inline reads -----------------------------------------------------------------------------------------------

    def begin_inline_read(self) -> bool:
        """Let the calling thread read instead of the loop until `end_inline_read`; False if busy. Thread-safe."""
        watch = self._watch
        if watch is None:
            self._prepare_inline_read()
            return False
        if self._pause:
            self._pause -= 1
            return False
        if self.closed or not self._reading.acquire(blocking=False):
            return False
        try:
            watch.modify(self._fd, 0)
        except (OSError, ValueError):
            # Closed concurrently.
            self._reading.release()
            return False
        except BaseException:
            self.end_inline_read()
            raise
        return True

    def _prepare_inline_read(self) -> None:
        # Reading TLS may need writing, and other systems have no epoll: there the loop always reads.
        if not self._is_tls and hasattr(select, "epoll") and not self.closed:
            self._engine.call(self._watch_through)

    def _watch_through(self) -> None:
        """Have the loop watch an epoll object around the socket, which any thread may disable and enable."""
        if self._watch is None and not self.closed:
            watch = select.epoll()
            watch.register(self._fd, select.EPOLLIN)
            self._readiness = select.poll()
            self._readiness.register(self._fd, select.POLLIN)
            self._engine.loop.remove_reader(self._fd)
            self._engine.loop.add_reader(watch.fileno(), self._readable)
            self._watch = watch

    def peek(self, seconds: float, kind: int) -> bytes:
        """Wait for the next bytes and return their beginning without consuming them; b"" when none arrived in time.

        It polls for a moment before the thread sleeps, where that has been worth it for this type of command.
        """
        spin = self._spins.get(kind)
        if spin is None:
            spin = self._spins[kind] = _Spin()
        ready = spin.poll(self._readiness) or self._readiness.poll(seconds * 1000)
        return self._received(_PEEK_BYTES, socket.MSG_PEEK) if ready else b""

    def discard(self, count: int) -> None:
        """Remove bytes that `peek` returned from the socket."""
        self._received(count, 0)

    def _received(self, count: int, flags: int) -> bytes:
        # The lock keeps the socket's descriptor from being closed, and reused for another socket, during the call.
        with self._lock:
            try:
                return b"" if self.closed else self._sock.recv(count, flags)
            except OSError as error:
                if is_of_signal_handler(error):
                    # A TimeoutError, perhaps.
                    raise
                return b""

    def pause_inline_reads(self) -> None:
        """Refuse inline reads for a while: the loop reads."""
        self._pause = _INLINE_READ_PAUSE

    def end_inline_read(self) -> None:
        """Let the loop read again."""
        try:
            self._watch.modify(self._fd, select.EPOLLIN)
        except (OSError, ValueError):
            # Closed concurrently.
            return
        finally:
            self._reading.release()

    # --- writing --------------------------------------------------------------------------------------------------

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send the buffers of one frame, now or as soon as the kernel accepts them. Thread-safe, never blocks.

        An exception of a signal handler ends the connection: a part of the frame may be written.
        """
        try:
            with self._lock:
                if self.closed:
                    return
                if self._backlog:
                    self._backlog.extend(buffers)
                    return
                rest = self._send_now(buffers)
                if rest is None:
                    return
                self._backlog.extend(rest)
            self._engine.call(self._arm_writer)
        except BaseException:
            self._engine.call_soon(self._lost, "an exception of a signal handler interrupted a write")
            raise

    def _send_now(self, buffers: Sequence[Buffer]) -> Sequence[Buffer] | None:
        """Write what the kernel accepts and return the rest, None when there is none.

        The rest is the end of `buffers`, from the first that was not written whole, which may be cut.
        """
        try:
            if self._is_tls:
                return self._send_tls(buffers)
            sent = self._sock.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            return buffers
        except OSError as error:
            if is_of_signal_handler(error):
                raise
            reason = error.strerror or str(error)
            # Not immediately: the lock is held here.
            self._engine.call_soon(self._lost, reason)
            return None
        return _after(buffers, sent)

    def _send_tls(self, buffers: Sequence[Buffer]) -> Sequence[Buffer] | None:
        for index, buffer in enumerate(buffers):
            unsent = memoryview(buffer)
            while unsent:
                try:
                    unsent = unsent[self._sock.send(unsent) :]
                except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    # OpenSSL requires the same bytes at the retry: they become the head of the backlog.
                    return [unsent, *buffers[index + 1 :]]
        return None

    def _arm_writer(self) -> None:
        if not self.closed and not self._writer_armed:
            self._writer_armed = True
            self._engine.loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        with self._lock:
            while self._backlog and not self.closed:
                buffers = [self._backlog[i] for i in range(min(len(self._backlog), _MAX_BUFFERS))]
                rest = self._send_now(buffers)
                for _ in buffers:
                    self._backlog.popleft()
                if rest:
                    self._backlog.extendleft(reversed(rest))
                    return
            if not self.closed:
                self._engine.loop.remove_writer(self._fd)
                self._writer_armed = False

    # --- end ------------------------------------------------------------------------------------------------------

    def _lost(self, reason: str) -> None:
        if not self.closed:
            self.close()
            self._on_closed(reason)

    def close(self) -> None:
        """Close the socket without waiting; unwritten data is dropped. On the loop only."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._backlog.clear()
        if self._watch is None:
            self._engine.loop.remove_reader(self._fd)
        else:
            self._engine.loop.remove_reader(self._watch.fileno())
            self._watch.close()
        self._engine.loop.remove_writer(self._fd)
        with contextlib.suppress(OSError):
            self._sock.close()


def _after(buffers: Sequence[Buffer], sent: int) -> list[Buffer] | None:
    """Return the rest of the buffers after the first `sent` bytes."""
    for index, buffer in enumerate(buffers):
        size = len(buffer)
        if sent < size:
            return [memoryview(buffer)[sent:], *buffers[index + 1 :]]
        sent -= size
    return None


async def dial(
    engine: Engine,
    address: Address,
    *,
    timeout: float,
    tls: ssl.SSLContext | None,
    server_name: str | None,
    socks5: Socks5Proxy | None = None,
) -> socket.socket:
    """Connect to the first address of a name that accepts the connection, and finish TLS; raises `ConnectError`.

    The time-out applies to each address, so that one that drops all packets does not use up the time of the others.
    With `socks5` the name is the proxy's, which connects to the address.
    """
    last: OSError | None = None
    hop = address if socks5 is None else socks5.address
    for family, kind, protocol, _, target in await _resolve(engine, hop, timeout):
        sock = socket.socket(family, kind, protocol)
        track_socket(sock)
        try:
            async with asyncio.timeout(timeout):
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await engine.loop.sock_connect(sock, target)
                if socks5 is not None:
                    await socks5.connect(engine.loop, sock, address)
                return sock if tls is None else await _handshake(engine, sock, tls, server_name or address.host)
        except OSError as error:
            sock.close()
            if isinstance(error, ConnectError):
                # What the SOCKS5 proxy answers is the same at its other addresses.
                raise
            last = error
        except BaseException:
            sock.close()
            raise
    kind = ConnectTimeout if _is_own_time_out(last) else ConnectError
    through = None if socks5 is None else socks5.address
    raise kind(_why(address, through, last, timeout), broker=str(address)) from last


async def _resolve(engine: Engine, address: Address, timeout: float) -> list[tuple[Any, ...]]:
    if numeric := _numeric(address):
        return numeric
    try:
        async with asyncio.timeout(timeout):
            return await engine.loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # A name that is no host name fails in its encoding.
        reason = str(error) or f"no answer within connection_timeout_ms ({timeout:g} s)"
        raise ConnectError(
            f"The host name {address.host!r} cannot be resolved: {reason}", broker=str(address)
        ) from error


def _numeric(address: Address) -> list[tuple[Any, ...]]:
    """Return what a numeric address resolves to, nothing for a name: a look-up would take a thread and a codec."""
    for family, rest in ((socket.AF_INET, ()), (socket.AF_INET6, (0, 0))):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(family, address.host)
            return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address.host, address.port, *rest))]
    return []


def _is_own_time_out(error: OSError | None) -> bool:
    # It has no number, that of the system has one.
    return isinstance(error, TimeoutError) and error.errno is None


def _why(address: Address, through: Address | None, error: OSError | None, timeout: float) -> str:
    if isinstance(error, ssl.SSLError):
        return tls_failure(str(address), error)
    way = "" if through is None else f" through the SOCKS5 proxy {through}"
    if _is_own_time_out(error):
        return f"Connecting to {address}{way} took longer than connection_timeout_ms ({timeout:g} s)"
    reason = os.strerror(error.errno) if error is not None and error.errno else str(error)
    return f"Cannot connect to {address}{way}: {reason}"


async def _handshake(engine: Engine, sock: socket.socket, tls: ssl.SSLContext, server_name: str) -> socket.socket:
    wrapped = tls.wrap_socket(sock, server_hostname=server_name, do_handshake_on_connect=False)
    track_socket(wrapped)
    try:
        while True:
            try:
                wrapped.do_handshake()
                return wrapped
            except ssl.SSLWantReadError:
                await _ready(engine, wrapped.fileno(), read=True)
            except ssl.SSLWantWriteError:
                await _ready(engine, wrapped.fileno(), read=False)
    except BaseException:
        wrapped.close()
        raise


async def _ready(engine: Engine, fd: int, *, read: bool) -> None:
    loop = engine.loop
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    if read:
        loop.add_reader(fd, wake)
    else:
        loop.add_writer(fd, wake)
    try:
        await future
    finally:
        if read:
            loop.remove_reader(fd)
        else:
            loop.remove_writer(fd)
