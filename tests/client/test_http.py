"""One HTTP exchange: bounded by its deadline against every slow peer, its errors typed and free of secrets."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker import free_port
from broker_keys import make_certificates
from pulsar_native import _http
from pulsar_native._http import exchange, parse_http_url, parse_json_object
from pulsar_native.exceptions import ConnectError, InvalidConfiguration, InvalidUrl, ReadError, Timeout
from support.clock import Clock, stopped_clock
from support.http_peer import Answer, http_peer

HEAD = b"HTTP/1.1 200 OK\r\n"


@contextlib.contextmanager
def raw_peer(converse: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accept one connection, read the request's head, and let the test write raw bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            stream, _ = listening.accept()
            with stream, contextlib.suppress(OSError):
                received = b""
                while b"\r\n\r\n" not in received:
                    received += stream.recv(65536)
                converse(stream)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            thread.join()


def ask(url: str, seconds: float = 5, **options: object) -> bytes:
    """Send a GET with a deadline some seconds ahead and return the body."""
    return exchange("GET", url, deadline=time.monotonic() + seconds, **options).body  # type: ignore[arg-type]


def test_request_and_answer_travel_whole() -> None:
    with http_peer(lambda asked: Answer(201, asked.body * 2, {"X-Kind": "double"})) as peer:
        answer = exchange(
            "POST",
            f"{peer.url}/a%20b?c=d",
            deadline=time.monotonic() + 5,
            headers={"Authorization": "Bearer x"},
            body=b"z" * 100_000,
        )
    assert (answer.status, answer.headers["x-kind"], answer.body) == (201, "double", b"z" * 200_000)
    asked = peer.asked[0]
    assert (asked.method, asked.path, asked.headers["Authorization"]) == ("POST", "/a%20b?c=d", "Bearer x")
    assert "x-kind" not in repr(answer)


def test_https_untrusted_certificate_names_option(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server_certificate, made.server_key)
    untrusted = pytest.raises(ConnectError, match=r"CERTIFICATE_VERIFY_FAILED.*set tls_trust_certs_file_path")
    with http_peer(lambda _: Answer(), tls=context) as peer, untrusted:
        ask(peer.url)


def test_https_plain_port_asks_for_tls_port() -> None:
    with http_peer(lambda _: Answer()) as peer, pytest.raises(ConnectError, match="is this the TLS port"):
        ask(peer.url.replace("http:", "https:"))


REFUSED = "it refused the client's certificate, or asks for one"


def test_https_refused_certificate_is_the_clients(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server_certificate, made.server_key)
    context.load_verify_locations(made.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    # Later versions tell it when the answer is read, see below.
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    trusting = ssl.create_default_context(cafile=str(made.authority))
    hint = "HANDSHAKE_FAILURE; does it accept the client's certificate"
    with http_peer(lambda _: Answer(), tls=context) as peer, pytest.raises(ConnectError, match=hint):
        ask(peer.url, tls=trusting)


def alert(reason: str) -> ssl.SSLError:
    """Return an error as of an alert that the peer sent."""
    error = ssl.SSLError(1, f"[SSL: {reason}] (_ssl.c:1)")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", f"; {REFUSED}"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", f"; {REFUSED}"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", f"; {REFUSED}"),
        ("TLSV1_ALERT_UNKNOWN_CA", f"; {REFUSED}"),
        ("TLSV1_ALERT_INTERNAL_ERROR", "; does it accept the client's certificate, or ask for one?"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", ""),
    ],
)
def test_tls_failure_alert_names_whose_certificate(reason: str, hint: str) -> None:
    assert _http.tls_failure("peer", alert(reason)) == f"TLS with peer failed: {reason}{hint}"


def test_https_alert_after_the_handshake_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_channel: object, _buffer: object) -> int:
        raise alert("SSLV3_ALERT_BAD_CERTIFICATE")

    monkeypatch.setattr(_http._Channel, "receive_into", refused)
    with raw_peer(lambda _stream: None) as url, pytest.raises(ReadError, match=f"BAD_CERTIFICATE; {REFUSED}"):
        ask(url)


@pytest.mark.parametrize("seconds", [(-1.0, 5.0), (5.0, -1.0)], ids=["whole", "connect"])
def test_no_time_left_does_not_blame_the_peer(seconds: tuple[float, float]) -> None:
    whole, connect = (time.monotonic() + each for each in seconds)
    with http_peer(lambda _: Answer()) as peer:
        with pytest.raises(ConnectError, match="was not asked GET /x in time: fetching the credentials"):
            exchange("GET", f"{peer.url}/x", deadline=whole, connect_deadline=connect)
        assert not peer.asked


def test_chunked_answer() -> None:
    with raw_peer(
        lambda s: s.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    ) as url:
        assert ask(url) == b"abcde"


def dribble(stream: socket.socket, clock: Clock, *, start: bytes) -> None:
    """Send a byte now and then, each well within any per-read time-out."""
    stream.sendall(start)
    for _ in range(500):
        stream.sendall(b"x")
        clock.advance(0.05)


@pytest.mark.parametrize(
    "start",
    [b"", b"HTTP/1.1 200 OK\r\nX-Long: ", HEAD + b"Content-Length: 1000\r\n\r\n"],
    ids=["silent", "head", "body"],
)
def test_deadline_holds_however_slow_the_peer(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, _http)

    def converse(stream: socket.socket) -> None:
        if start:
            dribble(stream, clock, start=start)
        else:
            stream.recv(1)  # until the other side gives up

    with raw_peer(converse) as url:
        began = time.monotonic()
        with pytest.raises(Timeout, match="in time"):
            exchange("GET", url, deadline=clock.monotonic() + 0.4)
        assert (0 if start else 0.35) < time.monotonic() - began < 5


def test_a_peer_that_never_accepts_is_left_at_the_connect_deadline() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        began = time.monotonic()
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        with pytest.raises(ConnectError, match="in time"):
            ask(url, seconds=30, connect_deadline=time.monotonic() + 0.3)
        assert time.monotonic() - began < 5
        for filler in fillers:
            filler.close()


def test_a_silent_first_address_leaves_time_for_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    with http_peer(lambda asked: Answer(200, b"second")) as live, socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        second = ("127.0.0.1", int(live.url.rpartition(":")[2]))
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in (full.getsockname(), second)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *names, **options: found)
        assert ask("http://two-addresses:1", seconds=1.5) == b"second"
        for filler in fillers:
            filler.close()


def test_a_closed_port_is_a_connect_error_that_names_it() -> None:
    port = free_port()
    with pytest.raises(ConnectError, match=f"127.0.0.1:{port}") as caught:
        ask(f"http://127.0.0.1:{port}")
    assert caught.value.retryable


@pytest.mark.parametrize("host", ["a..b", "a" * 64], ids=["empty label", "long label"])
def test_request_wrong_host_name_is_connect_error(host: str) -> None:
    with pytest.raises(ConnectError, match=f"No connection to {host}:80: .*label"):
        ask(f"http://{host}")


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"", "without an answer"),
        (b"SSH-2.0-x\r\n", "does not answer in HTTP"),
        (HEAD + b"Content-Length: 10\r\n\r\nabc", "too early"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nff\r\nabc", "does not answer in HTTP"),
        (HEAD + b"\r\n" + b"x" * 3000, "larger than 2000"),
    ],
    ids=["nothing", "other protocol", "short body", "short chunk", "too large"],
)
def test_damaged_answers_are_read_errors(sent: bytes, message: str) -> None:
    with raw_peer(lambda stream: stream.sendall(sent)) as url, pytest.raises(ReadError, match=message) as caught:
        ask(url, max_body_bytes=2000)
    peer = url.removeprefix("http://")
    assert peer in caught.value.message and caught.value.broker == peer


def test_a_header_that_cannot_be_sent_is_refused_without_repeating_it() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        ask("http://127.0.0.1:1", headers={"Authorization": "Bearer topsecret\r\nX: y"})
    assert "topsecret" not in str(caught.value) and "Authorization" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "empty"),
        ("localhost:8080", "scheme"),
        ("pulsar://localhost:6650", "that is a service URL"),
        ("http://", "names no host"),
        ("http://host:99999", "not a usable URL"),
        ("http://host:0", "not a usable URL"),
        ("http://ho st", "not a usable URL"),
        ("http://host/\u00fc", "not a usable URL"),
        ("http://[::1", "not a usable URL"),
    ],
)
def test_unusable_urls_are_refused_before_any_io(url: str, message: str) -> None:
    with pytest.raises(InvalidUrl, match=message):
        parse_http_url(url, "admin URL")


@pytest.mark.parametrize("url", ["http://me:topsecret@host", "http://me:topsecret@host:bad"])
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidUrl) as caught:
        parse_http_url(url, "admin URL")
    chain = f"{caught.value!r} {caught.value.__context__!r} {caught.value.__cause__!r}"
    assert "topsecret" not in chain


@pytest.mark.parametrize("text", ['{"a": [1, null]}', b'{"a": [1, null]}'])
def test_an_object_is_returned(text: str | bytes) -> None:
    assert parse_json_object(text) == {"a": [1, None]}


@pytest.mark.parametrize("text", ["", "[1]", "3", "{", "null", b"\xff\xfe{", "[" * 100_000])
def test_anything_else_is_none(text: str | bytes) -> None:
    assert parse_json_object(text) is None
