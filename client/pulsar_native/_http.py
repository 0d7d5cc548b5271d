"""HTTP requests bounded in time and size, for the admin client, lookups and token issuers.

Rules: one fresh connection per request (nothing is shared between threads or survives a fork); the deadline holds for
the whole exchange, however slowly the peer dribbles (name resolution alone is the system's own and not bounded); no
redirect is followed here; OSError and http.client's errors are mapped at this border; neither a header's value nor a
body is ever part of an error, and credentials never get into a reason.

A broker's 401 with a reason is `AuthorizationError` unless the reason speaks of authentication, for the broker answers
401 to known roles without permission too. Who judges 404 must know whether the broker itself said so: another web
server's 404 means a wrong URL.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from pulsar_native.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    InvalidConfiguration,
    InvalidUrl,
    NotAllowedError,
    PulsarException,
    ReadError,
    ServiceUnitNotReady,
    Timeout,
)

if TYPE_CHECKING:
    import http.client

    from _typeshed import WriteableBuffer

MAX_BODY_BYTES = 64 * 1024 * 1024
REDIRECTS = (307, 308)
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
_DEFAULT_PORTS = {"http": 80, "https": 443}
# OpenSSL's codes of a certificate for another host or address, and of one whose authority is not known.
_OTHER_HOST = (62, 64)
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
# Alerts, as OpenSSL names them, of a server that did not like the client's certificate, and those it may send instead.
_CERTIFICATE_ALERTS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
_UNEXPLAINED_ALERTS = ("HANDSHAKE_FAILURE", "INTERNAL_ERROR")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status, headers (names in lower case) and body of an answer; the last two stay out of its repr."""

    status: int
    reason: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


def parse_http_url(url: str, what: str) -> SplitResult:
    """Return the parts of an http(s) URL with a host and without credentials, or raise `InvalidUrl`. Does no I/O."""
    if not isinstance(url, str) or not url.strip():
        raise InvalidUrl(f"The {what} is empty; write http://host:port or https://host:port")
    try:
        parts = urlsplit(url.strip())
        port_is_valid = parts.port != 0
    except ValueError:
        port_is_valid = False
    if not port_is_valid or not url.isascii() or not url.strip().isprintable() or " " in url.strip():
        # Built outside of the handler: the cause's text may repeat a password.
        raise InvalidUrl(f"The {what} is not a usable URL; write http://host:port or https://host:port")
    if parts.username is not None or parts.password is not None:
        raise InvalidUrl(f"The {what} must not hold credentials; pass `authentication` instead")
    if parts.scheme not in _DEFAULT_PORTS:
        hint = " (that is a service URL)" if parts.scheme in ("pulsar", "pulsar+ssl") else ""
        raise InvalidUrl(
            f"The {what} has the scheme {parts.scheme!r}{hint}; write http://host:port or https://host:port"
        )
    if not parts.hostname:
        raise InvalidUrl(f"The {what} {url!r} names no host; write http://host:port or https://host:port")
    return parts


def exchange(
    method: str,
    url: str,
    *,
    deadline: float,
    connect_deadline: float | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> HttpAnswer:
    """Send one request and return its answer, whatever its status.

    Blocking until `deadline` (time.monotonic() seconds) at most, to connect until `connect_deadline` where that is
    earlier; thread-safe. Raises `ConnectError` while nothing was sent, later `Timeout`, or `ReadError` for a connection
    that breaks, an answer that is not HTTP or larger than `max_body_bytes`. Without `tls`, https trusts the system's.
    """
    # With the e-mail package, which it is made of, a twentieth of importing the client: few programs need it.
    import http.client

    parts = parse_http_url(url, "URL")
    sent = {**(headers or {}), "Connection": "close"}
    for name, value in sent.items():
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidConfiguration(f"The value of the HTTP header {name} has characters that cannot be sent")
    host, port = parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme]
    peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if parts.scheme == "https" and tls is None:
        tls = ssl.create_default_context()
    connect_deadline = min(deadline, connect_deadline or deadline)
    if connect_deadline <= time.monotonic():
        raise ConnectError(
            f"{peer} was not asked {method} {parts.path} in time: fetching the credentials, or what else came before, "
            "took too long",
            broker=peer,
        )
    stream = _open(host, port, tls if parts.scheme == "https" else None, connect_deadline)
    with stream:
        connection = http.client.HTTPConnection(host, port)
        # With an open socket http.client does not connect itself, which it would do without the deadline.
        connection.sock = _Channel(stream, deadline)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request(method, target, body=body, headers=sent)
            with connection.getresponse() as response:
                return _received(response, peer, max_body_bytes)
        except TimeoutError as error:
            raise Timeout(f"{peer} has not answered {method} {parts.path} in time", broker=peer) from error
        except http.client.RemoteDisconnected as error:
            raise ReadError(f"{peer} closed the connection without an answer", broker=peer) from error
        except http.client.HTTPException as error:
            raise ReadError(f"{peer} does not answer in HTTP ({type(error).__name__})", broker=peer) from error
        except OSError as error:
            reason = f"The connection to {peer} broke: {error}"
            if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
                # With TLS 1.3 a client learns that its certificate was refused when it reads the answer.
                reason = tls_failure(peer, error)
            raise ReadError(reason, broker=peer) from error


def tls_failure(peer: str, error: ssl.SSLError) -> str:
    """Return the text for a TLS handshake that failed: the reason, and the option or the port to look at. Pure."""
    text = f"TLS with {peer} failed: {error.reason or error}"
    if not isinstance(error, ssl.SSLCertVerificationError):
        return text + (_alert_hint(text) if "ALERT" in text else "; is this the TLS port?")
    text += f": {error.verify_message.rstrip('.')}"
    if error.verify_code in _OTHER_HOST:
        return f"{text}; use a host name of the certificate, or tls_validate_hostname=False to accept any"
    if error.verify_code in _UNKNOWN_AUTHORITY:
        return f"{text}; its authority is not trusted: set tls_trust_certs_file_path to the authority's certificate"
    return text


def _alert_hint(text: str) -> str:
    """Return what an alert says of the client's certificate: it is the peer's complaint, never ours of the peer's."""
    if any(name in text for name in _CERTIFICATE_ALERTS):
        return "; it refused the client's certificate, or asks for one"
    if any(name in text for name in _UNEXPLAINED_ALERTS):
        return "; does it accept the client's certificate, or ask for one?"
    return ""


def redirected(url: str, answer: HttpAnswer, target: str, broker: str) -> str:
    """Return the URL a redirect leads to; raises `ReadError` for one to another path, or from https to http."""
    if not answer.headers.get("location"):
        raise ReadError("A redirect without an address (the header Location)", broker=broker)
    location = answer.headers["location"]
    # What cannot be joined is refused below, without its text.
    with contextlib.suppress(ValueError):
        location = urljoin(url, location)
    try:
        parts = parse_http_url(location, "redirect")
    except InvalidUrl as error:
        raise ReadError(f"A redirect to no usable address: {error}", broker=broker) from error
    if url.startswith("https:") and parts.scheme != "https":
        raise ReadError(f"A redirect from https to http ({parts.netloc}) is not followed", broker=broker)
    # A proxy may add or remove a prefix of the path; the rest must be the same.
    if not unquote(parts.path).endswith(unquote(urlsplit(target).path)):
        raise ReadError(f"A redirect to another path ({parts.netloc}{parts.path}) is not followed", broker=broker)
    return location


def tried_before(hosts: Iterable[str]) -> str:
    """Return the end of an error of a URL's last host: those that were tried before it. Pure."""
    names = ", ".join(hosts)
    return f"; tried before: {names}" if names else ""


def _open(host: str, port: int, tls: ssl.SSLContext | None, deadline: float) -> socket.socket:
    peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        stream = _connect(host, port, deadline)
        if tls is None:
            return stream
        try:
            stream.settimeout(_remaining(deadline))
            return tls.wrap_socket(stream, server_hostname=host)
        except BaseException:
            stream.close()
            raise
    except TimeoutError as error:
        raise ConnectError(f"No connection to {peer} in time", broker=peer) from error
    except ssl.SSLError as error:
        raise ConnectError(tls_failure(peer, error), broker=peer) from error
    except (OSError, UnicodeError) as error:  # A name that is no host name fails in its encoding.
        raise ConnectError(f"No connection to {peer}: {error}", broker=peer) from error


def _remaining(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return left


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        stream = socket.socket(family, kind, protocol)
        try:
            # An address that does not answer must leave time for the next ones.
            stream.settimeout(_remaining(deadline) / (len(addresses) - tried))
            stream.connect(address)
        except OSError as error:
            stream.close()
            failure = error
        else:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return stream
    raise failure or OSError("the name has no address")


def _received(response: http.client.HTTPResponse, peer: str, max_body_bytes: int) -> HttpAnswer:
    content = response.read(max_body_bytes + 1)
    if len(content) > max_body_bytes:
        raise ReadError(f"The answer of {peer} is larger than {max_body_bytes} bytes", broker=peer)
    if response.length:
        raise ReadError(f"The answer of {peer} ended {response.length} bytes too early", broker=peer)
    names = {name.lower(): value for name, value in response.getheaders()}
    return HttpAnswer(response.status, response.reason, names, content)


class _Channel:
    """The socket interface that http.client uses, with every wait limited by the deadline."""

    def __init__(self, stream: socket.socket, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._stream.settimeout(_remaining(self._deadline))
        self._stream.sendall(data)

    def receive_into(self, buffer: WriteableBuffer) -> int:
        self._stream.settimeout(_remaining(self._deadline))
        return self._stream.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self))

    def close(self) -> None:
        """Do nothing: http.client closes before the body is read; `exchange` closes the real socket."""


class _Incoming(io.RawIOBase):
    def __init__(self, channel: _Channel) -> None:
        self._channel = channel

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._channel.receive_into(buffer)


# --- error responses --------------------------------------------------------------------------------------------------

_MAX_REASON = 500
# What a broker says of an error of its own, before a stack trace.
_UNEXPECTED = re.compile(r"^Message: (\S.*?)\s*^Stacktrace:", re.MULTILINE | re.DOTALL)

_KINDS: dict[int, type[PulsarException]] = {
    401: AuthenticationError,
    403: AuthorizationError,
    405: NotAllowedError,
    503: ServiceUnitNotReady,
}


def reason_of(answer: HttpAnswer, secrets: Iterable[str] = ()) -> tuple[str, bool]:
    """Return the reason of an error response, and True if it is a broker's (JSON) and not another web server's."""
    said = parse_json_object(answer.body.decode(errors="replace"))
    from_broker = said is not None and isinstance(said.get("reason"), str)
    reason = str(said["reason"]) if said is not None and from_broker else answer.reason or "no reason given"
    if (unexpected := _UNEXPECTED.search(reason)) is not None:
        reason = unexpected[1]
    for secret in secrets:
        reason = reason.replace(secret, "***") if secret else reason
    return reason[:_MAX_REASON], from_broker


def kind_of(status: int, reason: str, from_broker: bool) -> type[PulsarException] | None:
    """Return the error class for a status that has the same meaning for every request, else None."""
    if status == 401 and from_broker and "authenticat" not in reason.lower():
        # The broker also answers 401 to authenticated roles: its filter rejects others without a JSON reason.
        return AuthorizationError
    return _KINDS.get(status)


def parse_json_object(text: str | bytes) -> dict[str, object] | None:
    """Return the JSON object in the text, None for anything else. Does not raise."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
