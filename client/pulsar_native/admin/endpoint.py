"""Web service endpoint behind an admin URL: hosts tried in order, redirects followed, error responses mapped.

Rules: one time-out for the whole request, redirects and further hosts included, begun once the plug-in has returned its
headers; a redirect (the broker's 307 to a topic's owner) keeps method and body, must keep the path and never goes from
https to http. No state but settings and which hosts are in quarantine, without a lock, so one endpoint serves all
threads, forks and pickles.

Next host: a request goes to it when this one has surely not processed it, which is where no connection was made, and
where the response is 503. A GET also goes to it after 502, 504, and no response in this host's share of the time: it
may be processed twice. PUT, POST and DELETE may not: the second time a creation finds what the first one created, and a
deletion nothing. So they wait for a response until the time-out, and 502 and 504 are their result. A host that fails in
one of these ways is in quarantine, as those of a service URL, and is tried behind the others; but not one whose broker
itself answered 503, which is about the topic or namespace.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from threading import TIMEOUT_MAX
from urllib.parse import urlencode, urlsplit

from pulsar_native._http import (
    REDIRECTS,
    HttpAnswer,
    exchange,
    parse_http_url,
    reason_of,
    redirected,
    tried_before,
)
from pulsar_native.admin.errors import IS_IT_PULSAR, refusal
from pulsar_native.auth.answers import http_headers_of, on_refused, secrets_of, tls_certificate_of
from pulsar_native.auth.base import Authentication
from pulsar_native.auth.tls import client_tls_context
from pulsar_native.config import ClientConfig
from pulsar_native.exceptions import (
    AuthenticationError,
    ConnectError,
    InvalidConfiguration,
    InvalidUrl,
    PulsarException,
    ReadError,
    Timeout,
)
from pulsar_native.protocol.service_resolver import HostRotation

MAX_REDIRECTS = 10
# Of a server that has not processed the request, and of a proxy that does not know whether its broker has.
_UNAVAILABLE, _GATEWAY_FAILED = 503, (502, 504)


class Endpoint:
    """HTTP client for the hosts of one admin URL. Blocking, thread-safe."""

    def __init__(
        self,
        admin_url: str,
        authentication: Authentication,
        *,
        trust_certs_file_path: str | None,
        allow_insecure_connection: bool,
        validate_hostname: bool,
        timeout_seconds: float,
    ) -> None:
        is_number = isinstance(timeout_seconds, int | float) and not isinstance(timeout_seconds, bool)
        if not is_number or not 0 < timeout_seconds <= TIMEOUT_MAX:
            raise InvalidConfiguration(f"timeout_seconds must be a finite number above 0, not {timeout_seconds!r}")
        self.urls = _split_hosts(admin_url)
        self._hosts = _rotation(self.urls)
        self.authentication = authentication
        self.timeout_seconds = timeout_seconds
        self._trust_certs_file_path = trust_certs_file_path
        self._allow_insecure_connection = allow_insecure_connection
        self._validate_hostname = validate_hostname

    def __getstate__(self) -> dict[str, object]:
        # A quarantine ends at a time of this machine's clock.
        return {**self.__dict__, "_hosts": _rotation(self.urls)}

    def ask(
        self,
        action: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | bool] | None = None,
        body: object = None,
        topic: str | None = None,
    ) -> HttpAnswer:
        """Return the 2xx response to a request for an encoded path below /admin/v2, or raise the broker's error."""
        content = None if body is None else json.dumps(body).encode()
        tried: list[str] = []
        try:
            headers = {"Accept": "application/json", **http_headers_of(self.authentication)}
            if method in ("PUT", "POST"):
                headers["Content-Type"] = "application/json"
            # Not before: what the plug-in takes is not a part of the request's time.
            deadline = time.monotonic() + self.timeout_seconds
            request = _Request(method, f"/admin/v2{path}{_query_text(query)}", headers, content, deadline)
            answer, broker = self._from_any_host(request, tried)
        except PulsarException as error:
            error.topic = topic
            error.message = f"{action}: {error.message}{tried_before(tried)}"
            raise
        if not 200 <= answer.status < 300:
            refused = refusal(action, answer, topic=topic, broker=broker, secrets=secrets_of(self.authentication))
            refused.message += tried_before(tried)
            if isinstance(refused, AuthenticationError):
                on_refused(self.authentication)
            raise refused
        if answer.body.lstrip()[:1] == b"<":
            # A request that changes something has no content to check: a login page would pass for its success.
            raise ReadError(f"{action}: the answer is a web page; {IS_IT_PULSAR}", topic=topic, broker=broker)
        return answer

    def _from_any_host(self, request: _Request, tried: list[str]) -> tuple[HttpAnswer, str]:
        """Return the response and the broker that gave it; add the hosts that were passed over to `tried`."""
        urls = self._hosts.in_order(time.monotonic())
        for left, url in zip(range(len(urls), 0, -1), urls, strict=True):
            # A host that accepts the connection and does not answer leaves the others their share of the time.
            turn_ends = time.monotonic() + (request.deadline - time.monotonic()) / left
            try:
                answer, broker = self._follow(request, url, turn_ends)
            except (ConnectError, Timeout) as error:
                self._hosts.failed(url, time.monotonic())
                if left == 1 or not (isinstance(error, ConnectError) or request.is_repeatable):
                    raise
                why = "no connection" if isinstance(error, ConnectError) else "no response in time"
            else:
                self._record(url, answer)
                if left == 1 or not request.goes_on_after(answer.status):
                    return answer, broker
                why = f"HTTP {answer.status}"
            tried.append(f"{urlsplit(url).netloc} ({why})")
        raise AssertionError("an admin URL has a host")

    def _record(self, url: str, answer: HttpAnswer) -> None:
        is_away = answer.status in _GATEWAY_FAILED or (answer.status == _UNAVAILABLE and not reason_of(answer)[1])
        if is_away:
            self._hosts.failed(url, time.monotonic())
        else:
            self._hosts.succeeded(url)

    def _follow(self, request: _Request, base: str, turn_ends: float) -> tuple[HttpAnswer, str]:
        url = base + request.target
        deadline = turn_ends if request.is_repeatable else request.deadline
        connect_deadline = turn_ends
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._exchange(request, url, connect_deadline, deadline)
            broker = urlsplit(url).netloc
            if answer.status not in REDIRECTS:
                return answer, broker
            url = redirected(url, answer, request.target, broker)
            connect_deadline = deadline
        raise ReadError(f"More than {MAX_REDIRECTS} redirects, the last one to {urlsplit(url).netloc}", broker=broker)

    def _exchange(self, request: _Request, url: str, connect_deadline: float, deadline: float) -> HttpAnswer:
        context = None
        if url.startswith("https:"):
            context = client_tls_context(
                trust_certs_file_path=self._trust_certs_file_path,
                allow_insecure_connection=self._allow_insecure_connection,
                validate_hostname=self._validate_hostname,
                certificate=tls_certificate_of(self.authentication),
            )
        return exchange(
            request.method,
            url,
            deadline=deadline,
            connect_deadline=connect_deadline,
            headers=request.headers,
            body=request.content,
            tls=context,
        )


class _Request:
    """State of a request that is constant across hosts and redirects. Not printable: it holds credentials."""

    __slots__ = ("content", "deadline", "headers", "method", "target")

    def __init__(
        self, method: str, target: str, headers: Mapping[str, str], content: bytes | None, deadline: float
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.content = content
        self.deadline = deadline

    @property
    def is_repeatable(self) -> bool:
        """True if the request may be processed twice, by two hosts."""
        return self.method == "GET"

    def goes_on_after(self, status: int) -> bool:
        """Return True if the next host gets the request after a response with this status."""
        return status == _UNAVAILABLE or (status in _GATEWAY_FAILED and self.is_repeatable)


def _rotation(urls: tuple[str, ...]) -> HostRotation[str]:
    # By the defaults of a client's service URL.
    return HostRotation(
        urls,
        lambda: 0.0,
        quarantine_initial=ClientConfig.service_url_quarantine_init_duration_seconds,
        quarantine_maximum=ClientConfig.service_url_quarantine_max_duration_seconds,
    )


def _split_hosts(admin_url: str) -> tuple[str, ...]:
    """Return one URL per host of `http://host1:8080,host2:8080/path`, without a slash at the end."""
    if not isinstance(admin_url, str):
        raise InvalidUrl(f"The admin URL must be a str, not {type(admin_url).__name__}")
    scheme, separator, rest = admin_url.strip().partition("://")
    hosts, slash, path = rest.partition("/")
    urls = []
    for host in hosts.split(","):
        parts = parse_http_url(f"{scheme}{separator}{host.strip()}{slash}{path}", "admin URL")
        if parts.query or parts.fragment:
            raise InvalidUrl("The admin URL must not have a query or a fragment; write http://host:port")
        urls.append(parts.geturl().rstrip("/"))
    return tuple(urls)


def _query_text(query: Mapping[str, str | bool] | None) -> str:
    if not query:
        return ""
    return "?" + urlencode({k: str(v).lower() if isinstance(v, bool) else v for k, v in query.items()})
