"""Proxies on 127.0.0.1 that pass bytes on to where the client wants: one reads the TLS server name, one speaks SOCKS5.

Standard library only. Rules: the bytes pass unchanged both ways; a connection that leads nowhere is closed; two threads
per connection; it ends with its `with` block.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

HOST = "127.0.0.1"


class Proxy(ABC):
    """A listening socket, and the connections through it."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"{HOST}:{self.port}"
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @abstractmethod
    def _led(self, client: socket.socket) -> socket.socket | None:
        """Return the connection to where the client wants, None if it leads nowhere."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in list(self._threads):
            thread.join(10)

    def cut(self) -> None:
        """Close all connections; new ones are accepted as before."""
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _start(self, function: object, *args: object) -> None:
        self._threads.append(threading.Thread(target=function, args=args, daemon=True))  # type: ignore[arg-type]
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._start(self._serve, self._listener.accept()[0])

    def _serve(self, client: socket.socket) -> None:
        self._sockets.add(client)
        target = None
        # A ValueError is one of a client that goes in the middle.
        with contextlib.suppress(OSError, ValueError, IndexError):
            target = self._led(client)
        if target is None:
            client.close()
            return
        self._sockets.add(target)
        self._start(self._pump, target, client)
        self._pump(client, target)

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class SniProxy(Proxy):
    """Proxy that leads a TLS connection to the port of its server name; `names` has those that were asked for."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        self.ports = dict(ports)
        self.names: list[str | None] = []
        super().__init__()

    @property
    def url(self) -> str:
        """URL for `proxy_service_url`."""
        return f"pulsar+ssl://{self.address}"

    def _led(self, client: socket.socket) -> socket.socket | None:
        hello = b""
        while not (found := server_name_of(hello)):
            if not (more := client.recv(65536)):
                return None
            hello += more
        self.names += found
        port = self.ports.get(found[0] or "")
        if port is None:
            return None
        target = socket.create_connection((HOST, port), timeout=10)
        target.settimeout(None)
        target.sendall(hello)
        return target


def server_name_of(hello: bytes) -> list[str | None]:
    """Return the server name in a ClientHello, None for one without; nothing while it is not whole."""
    found: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _sock, name, _context: found.append(name)
    incoming = ssl.MemoryBIO()
    incoming.write(hello)
    with contextlib.suppress(ssl.SSLError):
        context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    return found


class Socks5Server(Proxy):
    """SOCKS5 proxy (RFC 1928, 1929) that makes connections, and knows hosts that no resolver here does.

    `asked` has the targets in order, `logins` what was given as user name and password.
    """

    def __init__(self, hosts: Mapping[str, str] | None = None, login: tuple[str, str] | None = None) -> None:
        self.hosts = dict(hosts or {})
        self.login = login
        self.asked: list[tuple[str, int]] = []
        self.logins: list[tuple[str, str]] = []
        super().__init__()

    def _led(self, client: socket.socket) -> socket.socket | None:
        def read(size: int) -> bytes:
            return client.recv(size, socket.MSG_WAITALL)

        version, count = read(2)
        methods = read(count)
        wanted = 0 if self.login is None else 2
        if version != 5 or wanted not in methods:
            client.sendall(b"\x05\xff")
            return None
        client.sendall(bytes([5, wanted]))
        if wanted == 2:
            _, size = read(2)
            name = read(size).decode()
            self.logins.append((name, read(read(1)[0]).decode()))
            client.sendall(bytes([1, 0 if self.logins[-1] == self.login else 1]))
            if self.logins[-1] != self.login:
                return None
        _, command, _, kind = read(4)
        if kind == 3:
            host = read(read(1)[0]).decode()
        else:
            family, size = (socket.AF_INET, 4) if kind == 1 else (socket.AF_INET6, 16)
            host = socket.inet_ntop(family, read(size))
        port = int.from_bytes(read(2))
        self.asked.append((host, port))
        try:
            target = socket.create_connection((self.hosts.get(host, host), port), timeout=10)
        except OSError as error:
            client.sendall(bytes([5, 4 if isinstance(error, socket.gaierror) else 5, 0, 1, 0, 0, 0, 0, 0, 0]))
            return None
        target.settimeout(None)
        # The address is one by name, which few servers send.
        client.sendall(bytes([5, 0 if command == 1 else 7, 0, 3, 3]) + b"out" + bytes(2))
        return target
