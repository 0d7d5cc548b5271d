"""Controlled failover: the request, what an answer may hold, and what stays secret."""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from broker import free_port
from pulsar_native import (
    AuthenticationToken,
    Client,
    ClientConfig,
    ControlledClusterFailover,
    PulsarException,
    controlled_failover,
)
from pulsar_native.exceptions import InvalidConfiguration, InvalidUrl, Timeout
from support.fake_broker import FakeBroker
from support.http_peer import Answer, Asked, HttpPeer, http_peer
from support.until import wait_until

DEFAULT = "pulsar://default:6650"
TOKEN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


def headers() -> dict[str, str]:
    """Return headers with a secret; a function of a module, which pickles."""
    return {"Authorization": "Bearer very-secret"}


def naming(**fields: object) -> Answer:
    """Return the answer of a service that names a cluster."""
    return Answer(200, json.dumps(fields).encode())


class Service:
    """Answer of the web service now, and its address."""

    def __init__(self, peer: HttpPeer) -> None:
        self.peer = peer
        self.answer = naming(serviceUrl=DEFAULT)

    @property
    def url(self) -> str:
        return f"{self.peer.url}/cluster?key=very-secret"


@pytest.fixture
def service() -> Iterator[Service]:
    """Give a web service with an answer to set."""
    made: list[Service] = []

    def answer(_: Asked) -> Answer:
        return made[0].answer

    with http_peer(answer) as peer:
        made.append(Service(peer))
        yield made[0]


def test_request_has_headers_and_query(service: Service) -> None:
    failover = ControlledClusterFailover(DEFAULT, service.url, {"Authorization": "Bearer very-secret"})
    assert failover.check_interval_ms == 30_000 and failover.supply().service_url == DEFAULT
    (asked,) = service.peer.asked
    assert (asked.method, asked.path) == ("GET", "/cluster?key=very-secret")
    assert (asked.headers["Authorization"], asked.headers["Accept"]) == ("Bearer very-secret", "application/json")


def test_headers_function_is_called_for_each_request(service: Service) -> None:
    tokens = iter("ab")
    failover = ControlledClusterFailover(DEFAULT, service.url, lambda: {"X-Token": next(tokens)})
    failover.supply()
    failover.supply()
    assert [asked.headers["X-Token"] for asked in service.peer.asked] == ["a", "b"]
    with pytest.raises(InvalidConfiguration, match="url_provider_header failed with StopIteration"):
        failover.supply()
    odd: Any = lambda: {"X-Token": 5}  # noqa: E731
    with pytest.raises(InvalidConfiguration, match="returned a value of 'X-Token' that is not one line of text"):
        ControlledClusterFailover(DEFAULT, service.url, odd).supply()


def test_answer_with_credentials_is_the_same_cluster_again(service: Service) -> None:
    service.answer = naming(
        serviceUrl="pulsar+ssl://b:6651",
        tlsTrustCertsFilePath="/ca.pem",
        authPluginClassName=TOKEN,
        authParamsString="token:very-secret",
        more="of another version",
    )
    failover = ControlledClusterFailover(DEFAULT, service.url)
    first = failover.supply()
    assert (first.service_url, first.tls_trust_certs_file_path) == ("pulsar+ssl://b:6651", "/ca.pem")
    assert isinstance(first.authentication, AuthenticationToken) and first.authentication.auth_data() == b"very-secret"
    # Another plug-in would be another cluster, with new connections at each poll.
    assert failover.supply() is first
    service.answer = naming(serviceUrl="pulsar://c", authPluginClassName=None, tlsTrustCertsFilePath=" ")
    assert failover.supply().authentication is failover.supply().tls_trust_certs_file_path is None


BAD: dict[str, tuple[Answer, str]] = {
    "status": (Answer(503, b'{"serviceUrl": "pulsar://b"}'), "answered with HTTP 503"),
    "redirect": (Answer(307, headers={"Location": "http://127.0.0.1:1/"}), "answered with HTTP 307"),
    "no JSON": (Answer(200, b"very-secret"), "did not answer with a JSON object"),
    "list": (Answer(200, b'["very-secret"]'), "did not answer with a JSON object"),
    "nested": (Answer(200, b"[" * 60_000), "did not answer with a JSON object"),
    "too large": (Answer(200, b'{"serviceUrl": "pulsar://b", "x": "' + b"x" * 70_000 + b'"}'), "is larger than 65536"),
    "empty": (naming(), "has no serviceUrl"),
    "blank": (naming(serviceUrl=" "), "has no serviceUrl"),
    "number": (naming(serviceUrl=6650), "serviceUrl in the answer of .* is int, not a string"),
    "object": (naming(serviceUrl="pulsar://b", authParamsString={"token": "very-secret"}), "authParamsString .* dict"),
    "URL": (naming(serviceUrl="http//b"), "no scheme"),
    "login": (naming(serviceUrl="pulsar://me:very-secret@b"), "must not hold credentials"),
    "no plug-in": (naming(serviceUrl="pulsar://b", authParamsString="very-secret"), "without authPluginClassName"),
    "unknown": (
        naming(serviceUrl="pulsar://b", authPluginClassName="very.Secret!", authParamsString="x"),
        "There is no authentication plug-in of this name",
    ),
    "parameters": (
        naming(serviceUrl="pulsar://b", authPluginClassName=TOKEN, authParamsString="very-secret"),
        "authParamsString of the token plug-in must be",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_answer_raises_without_secrets(service: Service, name: str) -> None:
    service.answer, words = BAD[name]
    failover = ControlledClusterFailover(DEFAULT, service.url, headers)
    with pytest.raises(PulsarException, match=words) as caught:
        failover.supply()
    assert "very-secret" not in str(caught.value) and "ecret!" not in str(caught.value)
    service.answer = naming(serviceUrl="pulsar://b")
    assert failover.supply().service_url == "pulsar://b"


def test_service_that_is_down_leaves_the_default(fake: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    down = f"http://127.0.0.1:{free_port()}/cluster?key=very-secret"
    with Client(ControlledClusterFailover(fake.url, down, check_interval_ms=10)) as client:
        assert client.get_topic_partitions("t")
        wait_until(lambda: "No connection to 127.0.0.1" in caplog.text, 10)
        assert client.get_service_info().service_url == fake.url
        assert "very-secret" not in repr(client) + repr(client.config) + caplog.text


def test_service_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controlled_failover, "_REQUEST_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        failover = ControlledClusterFailover(DEFAULT, f"http://127.0.0.1:{silent.getsockname()[1]}/cluster?key=secret")
        with pytest.raises(Timeout, match="has not answered GET /cluster in time"):
            failover.supply()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("nonsense", "http://c"), InvalidUrl, "no scheme"),
        ((DEFAULT, "pulsar://c"), InvalidUrl, "The url_provider has the scheme 'pulsar'"),
        ((DEFAULT, "http://me:very-secret@c"), InvalidUrl, "must not hold credentials"),
        ((DEFAULT, None), InvalidUrl, "The url_provider is empty"),
        ((DEFAULT, "http://c", "very-secret"), InvalidConfiguration, "a mapping of str to str or a function, not str"),
        ((DEFAULT, "http://c", {"A B": "very-secret"}), InvalidConfiguration, "url_provider_header has a name that no"),
        ((DEFAULT, "http://c", {"A": b"very-secret"}), InvalidConfiguration, "a value of 'A' that is not one line"),
        ((DEFAULT, "http://c", None, 0), InvalidConfiguration, "check_interval_ms must be a whole number above 0"),
        ((DEFAULT, "http://c", None, 0.5), InvalidConfiguration, "check_interval_ms must be a whole number above 0"),
    ],
)
def test_wrong_argument_refused(arguments: tuple[Any, ...], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        ControlledClusterFailover(*arguments)
    assert "very-secret" not in str(caught.value)


def test_configuration_pickles_headers_by_reference_only(service: Service) -> None:
    for given in (headers, None, {}):
        config = ClientConfig(service_url=ControlledClusterFailover(DEFAULT, service.url, given, 7))
        data = pickle.dumps(config)
        copied = pickle.loads(data).service_url
        assert b"Bearer" not in data and repr(copied) == repr(config.service_url)
        assert copied.supply().service_url == DEFAULT
    assert [asked.headers.get("Authorization") for asked in service.peer.asked] == ["Bearer very-secret", None, None]
    literal = ControlledClusterFailover(DEFAULT, "http://c/x?key=very-secret", {"Authorization": "very-secret"}, 7)
    with pytest.raises(TypeError, match=r"literal secret.*a function of a module") as caught:
        pickle.dumps(ClientConfig(service_url=literal))
    assert "very-secret" not in f"{caught.value} {literal!r} {literal}"
    assert repr(literal).endswith("url_provider='http://c/x', check_interval_ms=7)")
