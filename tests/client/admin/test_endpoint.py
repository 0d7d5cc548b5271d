"""Admin endpoint: hosts, redirects and time-outs, in part against a real broker."""

from __future__ import annotations

import json
import pickle
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from broker import free_port
from broker_keys import make_certificates
from pulsar_native import _http
from pulsar_native.admin import AdminClient, AdminError, endpoint
from pulsar_native.auth import Authentication, AuthenticationToken
from pulsar_native.exceptions import (
    ConnectError,
    InvalidConfiguration,
    InvalidUrl,
    PulsarException,
    ReadError,
    ServiceUnitNotReady,
    Timeout,
    TopicNotFound,
)
from support.brokers import Broker, NewTopic
from support.clock import stopped_clock
from support.http_peer import Answer, Asked, HttpPeer, hanging_peer, http_peer


def redirect_to(url: str, status: int = 307) -> Callable[[Asked], Answer]:
    """Answer with a redirect to the same path elsewhere."""
    return lambda asked: Answer(status, b"", {"Location": f"{url}{asked.path}"})


@pytest.mark.parametrize("status", [307, 308])
def test_redirect_keeps_method_body_credentials(broker: Broker, topic: NewTopic, status: int) -> None:
    name = topic()
    with http_peer(redirect_to(broker.admin_url, status)) as other:
        admin = AdminClient(other.url, AuthenticationToken("abc"))
        admin.create_partitioned_topic(name, 3)
        assert admin.partitions(name) == 3
        admin.delete_topic(name)
        with pytest.raises(TopicNotFound):
            admin.partitions(name)
    assert [asked.method for asked in other.asked] == ["PUT", "GET", "GET", "DELETE", "GET"]
    seen: list[Asked] = []

    def owner(asked: Asked) -> Answer:
        seen.append(asked)
        return Answer(204)

    with http_peer(owner) as last, http_peer(redirect_to(last.url)) as first:
        AdminClient(first.url, AuthenticationToken("abc")).create_partitioned_topic("x", 7)
    assert (seen[0].method, seen[0].body, seen[0].headers["Authorization"]) == ("PUT", b"7", "Bearer abc")
    assert seen[0].headers["Content-Type"] == "application/json"


def test_redirect_query_extended_by_broker(broker: Broker) -> None:
    def answer(asked: Asked) -> Answer:
        return Answer(307, b"", {"Location": f"{broker.admin_url}{asked.path}?authoritative=true"})

    with http_peer(answer) as other:
        assert AdminClient(other.url).clusters() == ["standalone"]


def test_redirect_loop_ends() -> None:
    def again(asked: Asked) -> Answer:
        return Answer(307, b"", {"Location": asked.path})

    with http_peer(again) as other, pytest.raises(ReadError, match="More than 10 redirects"):
        AdminClient(other.url).clusters()
    assert len(other.asked) == 11


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("http://127.0.0.1:1/admin/v2/brokers/health", "another path"),
        ("/login", "another path"),
        ("", "without an address"),
        ("ftp://127.0.0.1/admin/v2/clusters", "no usable address"),
        ("http://127.0.0.1:x/admin/v2/clusters", "no usable address"),
    ],
)
def test_redirect_to_other_path_not_followed(location: str, message: str) -> None:
    answer = Answer(307, b"", {"Location": location})
    with http_peer(lambda asked: answer) as other, pytest.raises(ReadError, match=message):
        AdminClient(other.url, AuthenticationToken("abc")).clusters()


def test_redirect_https_to_http_refused(tmp_path: Path) -> None:
    keys = make_certificates(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.server_certificate, keys.server_key)
    with http_peer(lambda asked: Answer(200, b"[]")) as plain:
        with http_peer(redirect_to(plain.url), tls=context) as first:
            admin = AdminClient(first.url, tls_trust_certs_file_path=str(keys.authority))
            with pytest.raises(ReadError, match="from https to http"):
                admin.clusters()
        assert plain.asked == []


@pytest.mark.parametrize("status", [301, 302, 303])
def test_redirect_other_status_raises(status: int) -> None:
    with http_peer(redirect_to("http://127.0.0.1:1", status)) as other, pytest.raises(AdminError) as caught:
        AdminClient(other.url).clusters()
    assert caught.value.status == status


def test_next_host_tried_when_unreachable(broker: Broker) -> None:
    good = urlsplit(broker.admin_url).netloc
    admin = AdminClient(f"http://127.0.0.1:{free_port()}, {good}/")
    assert admin.clusters() == ["standalone"]
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(silent.getsockname())
        began = time.monotonic()
        hosts = f"http://127.0.0.1:{silent.getsockname()[1]},{good}"
        assert AdminClient(hosts, timeout_seconds=4).clusters() == ["standalone"]
        assert 1.9 < time.monotonic() - began < 4
        for filler in fillers:
            filler.close()


CALLS: dict[str, Callable[[AdminClient], object]] = {
    "GET": lambda admin: admin.clusters(),
    "PUT": lambda admin: admin.create_topic("t"),
    "POST": lambda admin: admin.trim("t"),
    "DELETE": lambda admin: admin.delete_namespace("a/b"),
}


def admin_of(*peers: HttpPeer, **options: Any) -> AdminClient:
    """Return an admin client of these hosts, in this order."""
    return AdminClient("http://" + ",".join(urlsplit(peer.url).netloc for peer in peers), **options)


@pytest.mark.parametrize(
    ("method", "status", "is_passed_on"),
    [
        ("GET", 502, True), ("GET", 503, True), ("GET", 504, True),
        ("PUT", 503, True), ("POST", 503, True), ("DELETE", 503, True),
        ("PUT", 502, False), ("POST", 502, False), ("DELETE", 504, False), ("POST", 504, False),
        ("GET", 500, False),
    ],
)  # fmt: skip
def test_next_host_after_proxy_without_broker(method: str, status: int, is_passed_on: bool) -> None:
    call = CALLS[method]
    with (
        http_peer(lambda asked: Answer(status, b"<html>")) as away,
        http_peer(lambda asked: Answer(200, b"[]")) as good,
    ):
        admin = admin_of(away, good)
        if is_passed_on:
            call(admin)
        else:
            with pytest.raises(AdminError) as caught:
                call(admin)
            assert (caught.value.status, good.asked) == (status, [])
        assert [asked.method for asked in away.asked] == [method]
        is_quarantined = status != 500
        if is_quarantined:
            call(admin)
            assert len(away.asked) == 1


def test_next_host_after_silent_one_reads() -> None:
    with hanging_peer() as silent, http_peer(lambda asked: Answer(200, b'["c"]')) as good:
        admin = admin_of(silent, good, timeout_seconds=2)
        began = time.monotonic()
        assert admin.clusters() == ["c"]
        assert 0.9 < time.monotonic() - began < 2
        # It is in quarantine, also for a request that may not be repeated.
        admin.trim("t")
        assert (len(silent.asked), len(good.asked)) == (1, 2)


def test_silent_host_changing_request_not_repeated() -> None:
    with hanging_peer() as silent, http_peer(lambda asked: Answer(204)) as good:
        admin = admin_of(silent, good, timeout_seconds=0.5)
        with pytest.raises(Timeout, match=r"^trim .*/t: 127\.0\.0\.1:\d+ has not answered POST"):
            admin.trim("t")
        assert good.asked == []
        admin.trim("t")
        assert (len(silent.asked), len(good.asked)) == (1, 1)


@pytest.mark.parametrize("last", ["silent", "503", "gone"])
def test_every_host_fails_error_names_all(last: str) -> None:
    with (
        hanging_peer() as silent,
        http_peer(lambda asked: Answer(502)) as away,
        http_peer(lambda asked: Answer(503)) as unready,
    ):
        with http_peer(lambda asked: Answer()) as gone:
            pass
        peers = {"silent": silent, "502": away, "503": unready, "gone": gone}
        whys = {"silent": "no response in time", "502": "HTTP 502", "503": "HTTP 503", "gone": "no connection"}
        order = [*(name for name in peers if name != last), last]
        names = {name: urlsplit(peer.url).netloc for name, peer in peers.items()}
        with pytest.raises(PulsarException) as caught:
            admin_of(*(peers[name] for name in order), timeout_seconds=2).clusters()
    kinds = {"silent": Timeout, "503": ServiceUnitNotReady, "gone": ConnectError}
    assert type(caught.value) is kinds[last] and caught.value.broker == names[last]
    before = ", ".join(f"{names[name]} ({whys[name]})" for name in order[:-1])
    assert caught.value.message.endswith(f"; tried before: {before}")


def test_broker_not_ready_is_not_quarantined() -> None:
    unready = Answer(503, b'{"reason": "The namespace bundle is being unloaded"}')
    with http_peer(lambda asked: unready) as first, http_peer(lambda asked: Answer(200, b"[]")) as second:
        admin = admin_of(first, second)
        for _ in range(2):
            admin.clusters()
        assert (len(first.asked), len(second.asked)) == (2, 2)


def test_quarantine_ends_and_does_not_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, endpoint)
    monkeypatch.setattr(_http, "time", clock)
    answers = [Answer(502), Answer(502)]

    def recovers(asked: Asked) -> Answer:
        return answers.pop() if answers else Answer(200, b"[]")

    with http_peer(recovers) as first, http_peer(lambda asked: Answer(200, b"[]")) as second:
        admin = admin_of(first, second)
        admin.clusters()
        pickle.loads(pickle.dumps(admin)).clusters()
        assert (len(first.asked), len(second.asked)) == (2, 2)
        admin.clusters()
        assert len(first.asked) == 2
        clock.advance(60)
        admin.clusters()
        assert (len(first.asked), len(second.asked)) == (3, 3)


def test_sent_request_not_repeated(broker: Broker) -> None:
    asked: list[Asked] = []

    def answer(request: Asked) -> Answer:
        asked.append(request)
        raise ConnectionAbortedError

    with http_peer(answer) as other:
        other_host = urlsplit(broker.admin_url).netloc
        with pytest.raises(ReadError, match="without an answer"):
            AdminClient(f"{other.url},{other_host}").clusters()
    assert len(asked) == 1


def test_timeout_covers_redirects_and_names_action(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, endpoint)
    monkeypatch.setattr(_http, "time", clock)

    gave_up = threading.Event()

    def slow(asked: Asked) -> Answer:
        if len(other.asked) == 3:
            # Half a second is left, of the clock that stands still.
            return Answer(200 if gave_up.wait(10) else 500)
        clock.advance(30)
        return Answer(307, b"", {"Location": asked.path})

    with http_peer(slow) as other:
        with pytest.raises(Timeout, match="list the clusters") as caught:
            AdminClient(other.url, timeout_seconds=60.5).clusters()
        gave_up.set()
    assert caught.value.retryable


def test_timeout_begins_after_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, endpoint)
    monkeypatch.setattr(_http, "time", clock)

    class Slow(Authentication):
        def http_headers(self) -> dict[str, str]:
            clock.advance(6)
            return {}

    with http_peer(lambda asked: Answer(200, b"[]")) as peer:
        assert AdminClient(peer.url, Slow(), timeout_seconds=5).clusters() == []


def test_unreachable_error_names_action_topic_address() -> None:
    port = free_port()
    with pytest.raises(ConnectError) as caught:
        AdminClient(f"http://127.0.0.1:{port}").stats("x")
    assert (caught.value.topic, caught.value.broker) == ("persistent://public/default/x", f"127.0.0.1:{port}")
    assert str(caught.value).startswith("get the stats of persistent://public/default/x: No connection")


@pytest.mark.parametrize("page", [b"<html>Sign in</html>", b"\n <!DOCTYPE html>"])
def test_web_page_is_no_success(page: bytes) -> None:
    expected = pytest.raises(ReadError, match=r"set the retention of a/b: .* web page; is the admin URL")
    with http_peer(lambda asked: Answer(200, page)) as other, expected:
        AdminClient(other.url).set_retention("a/b", 1, 1)


def test_admin_url_path_is_prefix(broker: Broker) -> None:
    def strip(asked: Asked) -> Answer:
        return Answer(307, b"", {"Location": broker.admin_url + asked.path.removeprefix("/pulsar")})

    with http_peer(strip) as proxy:
        assert AdminClient(f"{proxy.url}/pulsar/").clusters() == ["standalone"]
    assert proxy.asked[0].path == "/pulsar/admin/v2/clusters"


def test_credentials_requested_per_call() -> None:
    class Counting(Authentication):
        calls = 0

        def http_headers(self) -> dict[str, str]:
            self.calls += 1
            return {"Authorization": f"Bearer {self.calls}"}

    with http_peer(lambda asked: Answer(200, b"[]")) as peer:
        admin = AdminClient(peer.url, Counting())
        admin.clusters()
        admin.clusters()
    assert [asked.headers["Authorization"] for asked in peer.asked] == ["Bearer 1", "Bearer 2"]


@pytest.mark.parametrize(("status", "refused"), [(401, 1), (403, 0)])
def test_refused_credentials_reported(status: int, refused: int) -> None:
    class Refreshing(AuthenticationToken):
        refused = 0

        def on_refused(self) -> None:
            self.refused += 1

    plugin = Refreshing("topsecret")
    with http_peer(lambda asked: Answer(status)) as peer, pytest.raises(PulsarException):
        AdminClient(peer.url, plugin).clusters()
    assert plugin.refused == refused


def test_error_reason_masks_token() -> None:
    def echo(asked: Asked) -> Answer:
        return Answer(401, json.dumps({"reason": f"cannot authenticate {asked.headers['Authorization']}"}).encode())

    with http_peer(echo) as peer, pytest.raises(Exception, match="authenticate Bearer") as caught:
        AdminClient(peer.url, AuthenticationToken("topsecret")).clusters()
    assert "topsecret" not in f"{caught.value} {caught.value!r}"
    assert b"topsecret" not in pickle.dumps(caught.value)


@pytest.mark.parametrize(
    "url", ["", "localhost:8080", "pulsar://h:6650", "http://h:8080,", "http://h?a=b", "http://h#x"]
)
def test_admin_url_invalid_raises(url: str) -> None:
    with pytest.raises(InvalidUrl):
        AdminClient(url)


@pytest.mark.parametrize("seconds", [0, -1, None, True, "10", float("inf"), float("nan"), 2**70])
def test_timeout_invalid_raises(seconds: object) -> None:
    with pytest.raises(InvalidConfiguration, match="timeout_seconds"):
        AdminClient("http://127.0.0.1:1", timeout_seconds=seconds)  # type: ignore[arg-type]
