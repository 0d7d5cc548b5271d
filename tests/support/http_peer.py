"""HTTP server on 127.0.0.1 with answers given by the test; it records the requests.

Standard library only. It ends with its `with` block; one thread per connection.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """One answer to give."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class HttpPeer:
    """The running server: its URL, and the requests in the order they came."""

    url: str
    asked: list[Asked] = field(default_factory=list)


@contextlib.contextmanager
def http_peer(answer: Callable[[Asked], Answer], *, tls: ssl.SSLContext | None = None) -> Iterator[HttpPeer]:
    """Serve until the block ends; with `tls` over https."""
    peer = HttpPeer("")

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = Asked(self.command, self.path, dict(self.headers), body)
            peer.asked.append(asked)
            given = answer(asked)
            self.send_response(given.status)
            for name, value in given.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(given.body)))
            self.end_headers()
            self.wfile.write(given.body)

        do_GET = do_PUT = do_POST = do_DELETE = _handle

        def log_message(self, format: str, *args: object) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer((HOST, 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    peer.url = f"{'https' if tls else 'http'}://{HOST}:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield peer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def hanging_peer() -> Iterator[HttpPeer]:
    """Accept connections and requests until the block ends, and send no response."""
    over = threading.Event()

    def never(asked: Asked) -> Answer:
        over.wait(30)
        return Answer()

    with http_peer(never) as peer:
        try:
            yield peer
        finally:
            over.set()
