"""OAuth2 client credentials against a local issuer, whose tokens a real broker accepts."""

from __future__ import annotations

import base64
import faulthandler
import json
import os
import pickle
import select
import signal
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, quote_plus

import pytest

from broker import Standalone
from broker_keys import make_certificates
from pulsar_native.admin import AdminClient
from pulsar_native.auth import AuthenticationOauth2, oauth2, token_cache
from pulsar_native.exceptions import (
    AuthenticationError,
    ConnectError,
    ErrorGettingAuthenticationData,
    InvalidConfiguration,
    InvalidUrl,
    PulsarException,
)
from support.clock import stopped_clock
from support.http_peer import Answer, Asked, HttpPeer, http_peer

DISCOVERY = "/.well-known/openid-configuration"


def answer_json(content: object, status: int = 200) -> Answer:
    """Answer in JSON."""
    return Answer(status, json.dumps(content).encode(), {"Content-Type": "application/json"})


@dataclass
class Issuer:
    """An OAuth2 issuer that knows one client and counts the tokens it gave."""

    peer: HttpPeer | None = None
    lifetime: object = 3600
    tokens: list[str] = field(default_factory=list)
    make_token: object = None
    failure: Answer | None = None
    # Set while a token request is held until `go`.
    held: threading.Event = field(default_factory=threading.Event)
    go: threading.Event | None = None

    @property
    def url(self) -> str:
        """Return the issuer's URL."""
        assert self.peer is not None
        return self.peer.url

    def forms(self) -> list[dict[str, list[str]]]:
        """Return the forms of all token requests."""
        assert self.peer is not None
        return [parse_qs(asked.body.decode()) for asked in self.peer.asked if asked.method == "POST"]

    def answer(self, asked: Asked) -> Answer:
        """Serve discovery and tokens."""
        if asked.path.endswith(DISCOVERY):
            return answer_json({"token_endpoint": f"{self.url}/oauth/token"})
        if self.go is not None:
            self.held.set()
            assert self.go.wait(10)
        form = parse_qs(asked.body.decode())
        if self.failure is not None:
            return self.failure
        if form.get("client_secret") != ["topsecret"]:
            said = {"error": "invalid_client", "error_description": f"bad secret {form.get('client_secret')}"}
            return answer_json(said, 401)
        self.tokens.append(self.make_token() if callable(self.make_token) else f"token-{len(self.tokens)}")
        content = {"access_token": self.tokens[-1], "token_type": "Bearer", "expires_in": self.lifetime}
        return answer_json({name: value for name, value in content.items() if value is not None})


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """Give a running issuer."""
    made = Issuer()
    with http_peer(made.answer) as made.peer:
        yield made


def parameters(issuer_url: str, **more: str) -> str:
    """Return parameters with id and secret."""
    return json.dumps({"issuer_url": issuer_url, "client_id": "me", "client_secret": "topsecret", **more})


def test_oauth2_client_credentials_grant(issuer: Issuer) -> None:
    plugin = AuthenticationOauth2(parameters(issuer.url + "/", audience="urn:pulsar cluster", scope="a b"))
    assert plugin.method_name == "token"
    assert issuer.peer is not None and issuer.peer.asked == []
    assert plugin.auth_data() == b"token-0"
    assert [(asked.method, asked.path) for asked in issuer.peer.asked] == [("GET", DISCOVERY), ("POST", "/oauth/token")]
    assert issuer.forms() == [
        {
            "grant_type": ["client_credentials"],
            "client_id": ["me"],
            "client_secret": ["topsecret"],
            "audience": ["urn:pulsar cluster"],
            "scope": ["a b"],
        }
    ]
    assert issuer.peer.asked[1].headers["Content-Type"] == "application/x-www-form-urlencoded"


def test_oauth2_token_cached_until_expiry(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, oauth2, token_cache)
    issuer.lifetime = 2
    plugin = AuthenticationOauth2(parameters(issuer.url))
    assert {plugin.auth_data() for _ in range(10)} == {b"token-0"}
    assert plugin.http_headers() == {"Authorization": "Bearer token-0"}
    clock.advance(1.79)
    assert plugin.auth_data() == b"token-0"
    # A tenth of the lifetime before its end, in the background.
    clock.advance(0.02)
    assert plugin.auth_data() == b"token-0"
    assert plugin._cache._refresher is not None
    plugin._cache._refresher.join(10)
    assert plugin.auth_data() == b"token-1"
    assert len(issuer.tokens) == 2


@pytest.mark.parametrize("lifetime", [None, 0, -5, "soon", True])
def test_oauth2_without_lifetime_fetches_each_time(issuer: Issuer, lifetime: object) -> None:
    issuer.lifetime = lifetime
    plugin = AuthenticationOauth2(parameters(issuer.url))
    assert [plugin.auth_data(), plugin.auth_data()] == [b"token-0", b"token-1"]


def test_oauth2_lifetime_as_text(issuer: Issuer) -> None:
    issuer.lifetime = "3600"
    plugin = AuthenticationOauth2(parameters(issuer.url))
    assert [plugin.auth_data(), plugin.auth_data()] == [b"token-0", b"token-0"]


@pytest.mark.parametrize("lifetime", [10**400, "9" * 5000, 1e308, float("inf")], ids=["int", "str", "float", "inf"])
def test_oauth2_huge_lifetime_caches_token(issuer: Issuer, lifetime: object) -> None:
    issuer.lifetime = lifetime
    plugin = AuthenticationOauth2(parameters(issuer.url))
    assert [plugin.auth_data(), plugin.auth_data()] == [b"token-0", b"token-0"]


def test_oauth2_valid_token_survives_unexpected_error(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, oauth2, token_cache)
    issuer.lifetime = 3
    plugin = AuthenticationOauth2(parameters(issuer.url))
    assert plugin.auth_data() == b"token-0"

    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(oauth2, "exchange", fail)
    clock.advance(2.99)
    assert plugin.auth_data() == b"token-0"
    clock.advance(0.02)
    with pytest.raises(RuntimeError):
        plugin.auth_data()


def test_oauth2_valid_token_survives_failing_issuer(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, oauth2, token_cache)
    issuer.lifetime = 3
    plugin = AuthenticationOauth2(parameters(issuer.url))
    assert plugin.auth_data() == b"token-0"
    issuer.failure = Answer(503)
    clock.advance(2.99)
    assert plugin.auth_data() == b"token-0"
    clock.advance(0.02)
    with pytest.raises(ConnectError, match="HTTP 503"):
        plugin.auth_data()
    issuer.failure = None
    assert plugin.auth_data() == b"token-1"


def test_oauth2_threads_fetch_once(issuer: Issuer) -> None:
    issuer.go = threading.Event()
    plugin = AuthenticationOauth2(parameters(issuer.url))
    with ThreadPoolExecutor(8) as pool:
        tokens = [pool.submit(plugin.auth_data) for _ in range(16)]
        assert issuer.held.wait(10)
        issuer.go.set()
        assert {token.result(10) for token in tokens} == {b"token-0"}
    assert len(issuer.tokens) == 1


def test_oauth2_failure_shared_by_waiting_threads(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer.go, issuer.failure = threading.Event(), Answer(503)
    plugin = AuthenticationOauth2(parameters(issuer.url))
    arrived, lock = threading.Semaphore(0), plugin._cache._fork_safe_lock

    def arriving_lock() -> threading.Lock:
        arrived.release()
        return lock()

    monkeypatch.setattr(plugin._cache, "_fork_safe_lock", arriving_lock)
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(plugin.auth_data) for _ in range(8)]
        assert all(arrived.acquire(timeout=10) for _ in calls)
        issuer.go.set()
        errors = [call.exception(10) for call in calls]
    assert [str(error) for error in errors] == [str(errors[0])] * 8 and "HTTP 503" in str(errors[0])
    # Each caller may complete its error with the topic.
    assert {type(error) for error in errors} == {ConnectError} and len({id(error) for error in errors}) == 8
    assert len(issuer.forms()) == 1
    issuer.failure = None
    assert plugin.auth_data() == b"token-0"


def test_oauth2_fork_during_fetch(issuer: Issuer) -> None:
    issuer.go = threading.Event()
    plugin = AuthenticationOauth2(parameters(issuer.url))
    fetching = threading.Thread(target=plugin.auth_data)
    fetching.start()
    assert issuer.held.wait(10)
    child = os.fork()
    if child == 0:
        # The parent asks where it stands, if it does not end in time.
        faulthandler.register(signal.SIGUSR1, sys.__stderr__)
        os._exit(0 if plugin.auth_data().startswith(b"token-") else 1)
    issuer.go.set()
    watch = os.pidfd_open(child)
    try:
        ended_in_time = bool(select.select([watch], [], [], 60)[0])
    finally:
        os.close(watch)
    if not ended_in_time:
        os.kill(child, signal.SIGUSR1)
        time.sleep(0.5)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    fetching.join()
    assert ended_in_time and status == 0


KEY = {"type": "client_credentials", "client_id": "me", "client_secret": "topsecret", "client_email": "me@x"}


def key_forms(path: Path) -> list[str]:
    """Return all ways to name the same private key."""
    encoded = base64.b64encode(json.dumps(KEY).encode()).decode()
    return [
        str(path),
        f"file://{path}",
        f"data:application/json;base64,{encoded}",
        f"data:application/json,{json.dumps(KEY)}",
    ]


@pytest.mark.parametrize("form", range(4), ids=["path", "file", "base64", "data"])
def test_oauth2_private_key_forms(issuer: Issuer, tmp_path: Path, form: int) -> None:
    path = tmp_path / "key.json"
    path.write_text(json.dumps(KEY))
    text = json.dumps({"issuer_url": issuer.url, "private_key": key_forms(path)[form]})
    plugin = AuthenticationOauth2(text)
    assert plugin.auth_data() == b"token-0"
    assert {"topsecret", "token-0"} <= set(plugin.secrets())


def test_oauth2_key_file_with_byte_order_mark(issuer: Issuer, tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text(json.dumps(KEY), encoding="utf-8-sig")
    text = json.dumps({"issuer_url": issuer.url, "private_key": f"file://{path}"})
    assert AuthenticationOauth2(text).auth_data() == b"token-0"


def test_oauth2_replaced_key_file_applies(issuer: Issuer, tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text(json.dumps({**KEY, "client_secret": "outdated"}))
    plugin = AuthenticationOauth2(json.dumps({"issuerUrl": issuer.url, "privateKey": str(path)}))
    with pytest.raises(AuthenticationError, match="invalid_client"):
        plugin.auth_data()
    path.write_text(json.dumps(KEY))
    assert plugin.auth_data() == b"token-0"


@pytest.mark.parametrize(
    "key",
    [
        "/missing/key.json",
        "topsecret",
        "data:application/json;base64,%%%",
        "data:,topsecret",
        'data:,{"client_id": "me"}',
        'data:,{"client_id": "me", "client_secret": "topsecret\\ud800"}',
    ],
)
def test_oauth2_invalid_key_raises_without_key_text(issuer: Issuer, key: str) -> None:
    plugin = AuthenticationOauth2(json.dumps({"issuer_url": issuer.url, "private_key": key}))
    with pytest.raises(ErrorGettingAuthenticationData) as caught:
        plugin.auth_data()
    assert "topsecret" not in f"{caught.value!r} {caught.value.__context__!r}"
    assert plugin.secrets() == []


def test_oauth2_refusal_shows_reason_not_secret(issuer: Issuer) -> None:
    text = json.dumps({"issuer_url": issuer.url, "client_id": "me", "client_secret": "wrongsecret"})
    with pytest.raises(AuthenticationError, match=r"invalid_client: bad secret \['\*\*\*'\]") as caught:
        AuthenticationOauth2(text).auth_data()
    assert "wrongsecret" not in str(caught.value) and not caught.value.retryable


@pytest.mark.parametrize(
    "echo", [quote("top/ secret", safe=""), quote_plus("top/ secret"), base64.b64encode(b"me:top/ secret").decode()]
)
def test_oauth2_refusal_masks_encoded_secret(issuer: Issuer, echo: str) -> None:
    issuer.failure = answer_json({"error": "invalid_client", "error_description": f"got {echo}"}, 401)
    plugin = AuthenticationOauth2(parameters(issuer.url, client_secret="top/ secret"))
    with pytest.raises(AuthenticationError, match=r"invalid_client: got \*\*\*\)"):
        plugin.auth_data()
    assert echo in plugin.secrets()


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Answer(503, b"busy"), ConnectError),
        (Answer(429), ConnectError),
        (Answer(403), AuthenticationError),
        (Answer(404), ErrorGettingAuthenticationData),
        (Answer(302, b"", {"Location": "http://127.0.0.1:1/"}), ErrorGettingAuthenticationData),
        (Answer(200, b"<html>"), ErrorGettingAuthenticationData),
        (answer_json({"token": "x"}), ErrorGettingAuthenticationData),
        (answer_json({"access_token": "two words"}), ErrorGettingAuthenticationData),
        (answer_json({"access_token": "line\nfeed"}), ErrorGettingAuthenticationData),
    ],
)
def test_oauth2_malformed_responses(issuer: Issuer, failure: Answer, kind: type[PulsarException]) -> None:
    issuer.failure = failure
    with pytest.raises(kind) as caught:
        AuthenticationOauth2(parameters(issuer.url)).auth_data()
    assert "topsecret" not in str(caught.value)


def test_oauth2_endpoint_without_tls_refused() -> None:
    asked: list[Asked] = []

    def discover(request: Asked) -> Answer:
        asked.append(request)
        return answer_json({"token_endpoint": "http://issuer.example.org/token"})

    with http_peer(discover) as peer, pytest.raises(InvalidUrl, match="not https"):
        AuthenticationOauth2(parameters(peer.url)).auth_data()
    assert [request.method for request in asked] == ["GET"]


def test_oauth2_issuer_with_tls(tmp_path: Path) -> None:
    keys = make_certificates(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.server_certificate, keys.server_key)
    made = Issuer()
    with http_peer(made.answer, tls=context) as made.peer:
        trusting = AuthenticationOauth2(parameters(made.url, tls_trust_certs_file_path=str(keys.authority)))
        assert trusting.auth_data() == b"token-0"
        with pytest.raises(ConnectError, match="not trusted"):
            AuthenticationOauth2(parameters(made.url)).auth_data()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topsecret", "not a JSON object"),
        ('{"client_id": "me", "client_secret": "topsecret"}', "no issuer_url"),
        ('{"issuer_url": "https://i", "client_id": "me"}', "either private_key"),
        ('{"issuer_url": "https://i", "private_key": "/k", "client_id": "me", "client_secret": "topsecret"}', "either"),
        ('{"issuer_url": "https://i", "private_key": "/k", "audiense": "topsecret"}', "did you mean 'audience'"),
        ('{"issuer_url": "https://i", "private_key": "/k", "type": "password"}', "client_credentials"),
        ('{"issuer_url": "https://i", "private_key": "https://x/topsecret"}', "must be a path, file:///path or data:"),
        ('{"issuer_url": "https://i", "private_key": "-----BEGIN KEY-----topsecret"}', "must be a path, file:///path"),
        (
            '{"issuer_url": "https://i", "private_key": "/k", "trustCertsFilePath": "-----BEGIN KEY-----topsecret"}',
            "tls_trust_certs_file_path in the .* must be a path, not the content of a file",
        ),
        ('{"issuer_url": "https://i", "private_key": "/topsecret\\u0000"}', "must be a path, file:///path or data:"),
        ('{"issuer_url": "https://i", "client_id": "me", "client_secret": "topsecret\\ud800"}', "lone surrogate"),
    ],
)
def test_oauth2_invalid_parameters_raise_at_first_use(text: str, message: str) -> None:
    made = AuthenticationOauth2(text)
    with pytest.raises(InvalidConfiguration, match=message):
        made.check()
    with pytest.raises(AuthenticationError, match=message) as caught:
        made.auth_data()
    assert "topsecret" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__cause__.__context__!r}"


@pytest.mark.parametrize("url", ["http://issuer.example.org", "ftp://x", "https://", "http://10.0.0.1:8080"])
def test_oauth2_issuer_without_tls_refused(url: str) -> None:
    with pytest.raises(InvalidUrl):
        AuthenticationOauth2(parameters(url))


def test_oauth2_pickle_references_only(issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key.json"
    path.write_text(json.dumps(KEY))
    by_key = AuthenticationOauth2(json.dumps({"issuer_url": issuer.url, "private_key": f"file://{path}"}))
    assert by_key.auth_data() == b"token-0"
    pickled = pickle.dumps(by_key)
    assert b"topsecret" not in pickled and b"token-0" not in pickled
    assert pickle.loads(pickled).auth_data() == b"token-1"
    by_variable = AuthenticationOauth2.from_reference("env:PULSAR_TEST_OAUTH2")
    assert by_variable.secrets() == []
    monkeypatch.setenv("PULSAR_TEST_OAUTH2", parameters(issuer.url))
    assert pickle.loads(pickle.dumps(by_variable)).auth_data() == b"token-2"
    data = f"data:application/json,{json.dumps(KEY)}"
    for text in (parameters(issuer.url), json.dumps({"issuer_url": issuer.url, "private_key": data})):
        with pytest.raises(TypeError, match="from_reference") as caught:
            pickle.dumps(AuthenticationOauth2(text))
        assert "topsecret" not in str(caught.value)


def test_oauth2_repr_shows_issuer_only() -> None:
    shown = repr(AuthenticationOauth2(parameters("https://issuer.example.org")))
    assert shown == "AuthenticationOauth2(issuer_url='https://issuer.example.org', ***)"
    assert repr(AuthenticationOauth2.from_reference("env:X")) == "AuthenticationOauth2.from_reference('env:X')"
    # Invalid parameters raise at the first use, not where an object is printed.
    invalid = AuthenticationOauth2('{"client_secret": "s3cret"}')
    assert repr(invalid) == "AuthenticationOauth2(issuer_url='invalid', ***)"


def test_oauth2_real_broker(issuer: Issuer, secure_broker: Standalone) -> None:
    issuer.make_token = secure_broker.token
    admin = AdminClient(secure_broker.admin_url, AuthenticationOauth2(parameters(issuer.url)))
    assert admin.clusters() == ["standalone"]
    assert admin.namespaces("public")
    assert len(issuer.tokens) == 1
