"""The way of a request: hosts, redirects, time-outs, with a real broker at the end where it matters."""

from __future__ import annotations

import json
import pickle
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from broker import free_port
from broker_keys import make_certificates
from pulsar_native.admin import AdminClient, AdminError
from pulsar_native.auth import Authentication, AuthenticationToken
from pulsar_native.exceptions import ConnectError, InvalidConfiguration, InvalidUrl, ReadError, Timeout, TopicNotFound
from support.brokers import Broker, NewTopic
from support.http_peer import Answer, Asked, http_peer


def redirect_to(url: str, status: int = 307) -> Callable[[Asked], Answer]:
    """Answer with a redirect to the same path elsewhere."""
    return lambda asked: Answer(status, b"", {"Location": f"{url}{asked.path}"})


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_keeps_method_body_and_credentials(broker: Broker, topic: NewTopic, status: int) -> None:
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


def test_the_broker_may_add_to_the_query_of_a_redirect(broker: Broker) -> None:
    def answer(asked: Asked) -> Answer:
        return Answer(307, b"", {"Location": f"{broker.admin_url}{asked.path}?authoritative=true"})

    with http_peer(answer) as other:
        assert AdminClient(other.url).clusters() == ["standalone"]


def test_redirects_have_an_end() -> None:
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
        ("", "More than 10"),
        ("ftp://127.0.0.1/admin/v2/clusters", "no usable address"),
        ("http://127.0.0.1:x/admin/v2/clusters", "no usable address"),
    ],
)
def test_redirects_elsewhere_are_not_followed(location: str, message: str) -> None:
    answer = Answer(307, b"", {"Location": location})
    with http_peer(lambda asked: answer) as other, pytest.raises(ReadError, match=message):
        AdminClient(other.url, AuthenticationToken("abc")).clusters()


def test_no_redirect_from_https_to_http(tmp_path: Path) -> None:
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
def test_other_redirects_are_refusals(status: int) -> None:
    with http_peer(redirect_to("http://127.0.0.1:1", status)) as other, pytest.raises(AdminError) as caught:
        AdminClient(other.url).clusters()
    assert caught.value.status == status


def test_the_next_host_is_tried_when_one_cannot_be_reached(broker: Broker) -> None:
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


def test_a_request_that_was_sent_is_not_sent_again(broker: Broker) -> None:
    asked: list[Asked] = []

    def answer(request: Asked) -> Answer:
        asked.append(request)
        raise ConnectionAbortedError

    with http_peer(answer) as other:
        other_host = urlsplit(broker.admin_url).netloc
        with pytest.raises(ReadError, match="without an answer"):
            AdminClient(f"{other.url},{other_host}").clusters()
    assert len(asked) == 1


def test_the_time_out_holds_over_redirects_and_names_the_action() -> None:
    def slow(asked: Asked) -> Answer:
        time.sleep(0.3)
        return Answer(307, b"", {"Location": asked.path})

    with http_peer(slow) as other:
        began = time.monotonic()
        with pytest.raises(Timeout, match="list the clusters") as caught:
            AdminClient(other.url, timeout_seconds=0.7).clusters()
        assert time.monotonic() - began < 5
    assert caught.value.retryable


def test_nobody_there_is_an_error_that_names_action_topic_and_address() -> None:
    port = free_port()
    with pytest.raises(ConnectError) as caught:
        AdminClient(f"http://127.0.0.1:{port}").stats("x")
    assert (caught.value.topic, caught.value.broker) == ("persistent://public/default/x", f"127.0.0.1:{port}")
    assert str(caught.value).startswith("get the stats of persistent://public/default/x: No connection")


def test_a_path_in_the_admin_url_is_a_prefix(broker: Broker) -> None:
    def strip(asked: Asked) -> Answer:
        return Answer(307, b"", {"Location": broker.admin_url + asked.path.removeprefix("/pulsar")})

    with http_peer(strip) as proxy:
        assert AdminClient(f"{proxy.url}/pulsar/").clusters() == ["standalone"]
    assert proxy.asked[0].path == "/pulsar/admin/v2/clusters"


def test_credentials_are_asked_for_at_each_call() -> None:
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


def test_a_reason_that_repeats_the_token_is_masked() -> None:
    def echo(asked: Asked) -> Answer:
        return Answer(401, json.dumps({"reason": f"cannot authenticate {asked.headers['Authorization']}"}).encode())

    with http_peer(echo) as peer, pytest.raises(Exception, match="authenticate Bearer") as caught:
        AdminClient(peer.url, AuthenticationToken("topsecret")).clusters()
    assert "topsecret" not in f"{caught.value} {caught.value!r}"
    assert b"topsecret" not in pickle.dumps(caught.value)


@pytest.mark.parametrize(
    "url", ["", "localhost:8080", "pulsar://h:6650", "http://h:8080,", "http://h?a=b", "http://h#x"]
)
def test_unusable_admin_urls_are_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidUrl):
        AdminClient(url)


@pytest.mark.parametrize("seconds", [0, -1, None, True, "10"])
def test_unusable_time_outs_are_refused_at_once(seconds: object) -> None:
    with pytest.raises(InvalidConfiguration, match="timeout_seconds"):
        AdminClient("http://127.0.0.1:1", timeout_seconds=seconds)  # type: ignore[arg-type]
