"""The way to a cluster, walked step by step: which stage fails is told, within the time, and nothing is left behind."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from broker import Standalone, free_port
from pulsar_native.auth import Authentication, AuthenticationToken
from pulsar_native.config import ClientConfig
from pulsar_native.diagnostics import Diagnosis, Stage, diagnose
from pulsar_native.exceptions import ErrorGettingAuthenticationData, InvalidTopicName, InvalidUrl
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.frames import FrameDecoder, encode_command
from support.brokers import Broker
from support.fake_broker import FakeBroker, not_found
from support.http_peer import Answer, http_peer
from support.relay import TO_CLIENT, Command, NewRelay


def test_all_is_well(broker: Broker) -> None:
    found = diagnose(ClientConfig(service_url=broker.service_url), admin_url=broker.admin_url)
    assert found.ok
    assert [stage.name for stage in found.stages] == ["TCP", "CONNECT", "lookup", "admin"]
    assert str(found) == "TCP ok, CONNECT ok (Pulsar 4.2.4), lookup ok, admin ok"


def test_a_web_service_as_service_url_is_asked_for_the_broker_and_that_one_connected_to(broker: Broker) -> None:
    found = diagnose(ClientConfig(service_url=broker.admin_url))
    assert [str(stage) for stage in found.stages] == ["TCP ok", "lookup ok"]
    wrong = diagnose(ClientConfig(service_url=broker.service_url.replace("pulsar:", "http:")))
    assert [(stage.name, stage.ok) for stage in wrong.stages] == [("TCP", True), ("lookup", False)]


def test_nothing_is_created(broker: Broker, namespace: Callable[[], str]) -> None:
    name = namespace()
    assert diagnose(ClientConfig(service_url=broker.service_url), topic=f"{name}/new").ok
    assert broker.admin("GET", f"persistent/{name}") == []


def test_a_broker_that_cannot_be_reached_where_it_says_it_is(broker: Broker, relay: NewRelay) -> None:
    closed = free_port()

    def elsewhere(frame: bytes) -> bytes:
        (decoded,) = FrameDecoder(1 << 20).receive(frame)
        answer = decoded.command.lookupTopicResponse
        answer.brokerServiceUrl = f"pulsar://127.0.0.1:{closed}"
        answer.proxy_through_service_url = False
        return encode_command(decoded.command)

    put = relay(broker.service_url)
    put.replace(Command.LOOKUP_RESPONSE, TO_CLIENT, elsewhere)
    found = diagnose(ClientConfig(service_url=put.service_url))
    assert [stage.name for stage in found.stages if not stage.ok] == ["lookup"]
    assert f"it names the broker 127.0.0.1:{closed}, which cannot be reached from here" in str(found)
    assert "advertised address" in str(found)


@pytest.mark.parametrize(
    ("command", "stage"), [(Command.CONNECTED, "CONNECT"), (Command.LOOKUP_RESPONSE, "lookup")], ids=str
)
def test_a_silence_is_told_in_time(broker: Broker, relay: NewRelay, command: Command, stage: str) -> None:
    put = relay(broker.service_url)
    put.drop(command, TO_CLIENT, times=None)
    started = time.monotonic()
    found = diagnose(ClientConfig(service_url=put.service_url), timeout_seconds=2)
    assert time.monotonic() - started < 8
    assert found.stages[-1].name == stage
    assert "no answer within" in found.stages[-1].detail


def test_slow_credentials_are_a_stage(broker: Broker) -> None:
    asked = threading.Event()

    def slow() -> str:
        asked.wait(30)
        return "token"

    config = ClientConfig(service_url=broker.service_url, authentication=AuthenticationToken(slow))
    started = time.monotonic()
    found = diagnose(config, timeout_seconds=0.2)
    assert time.monotonic() - started < 15
    asked.set()
    assert str(found).startswith("TCP ok, credentials failed: no answer within")


def test_no_secret_is_repeated(broker: Broker) -> None:
    class Talkative(Authentication):
        method_name = "token"

        def auth_data(self) -> bytes:
            raise ErrorGettingAuthenticationData("it was my-secret that failed")

        def secrets(self) -> list[str]:
            return ["my-secret", ""]

    found = diagnose(ClientConfig(service_url=broker.service_url, authentication=Talkative()))
    assert found.stages[-1] == Stage("credentials", False, "it was *** that failed")


def test_refused_is_authentication_and_no_rights_is_an_answer(secure_broker: Standalone) -> None:
    config = ClientConfig(service_url=secure_broker.service_url)
    assert diagnose(config).stages[-1].name == "authentication"
    nobody = config.replace(authentication=AuthenticationToken(secure_broker.token("nobody")))
    found = diagnose(nobody, admin_url=secure_broker.admin_url)
    assert found.ok, str(found)
    assert "not allowed for persistent://public/default/connection-test" in str(found)
    assert not diagnose(nobody, topic="mine").ok


def test_of_several_hosts_the_one_that_came_furthest_tells(broker: Broker) -> None:
    closed = free_port()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"pulsar://127.0.0.1:{closed},127.0.0.1:{silent.getsockname()[1]}"
        found = diagnose(ClientConfig(service_url=url), timeout_seconds=2)
    assert [stage.name for stage in found.stages] == ["TCP", "CONNECT"]
    assert found.remarks[0].startswith(f"127.0.0.1:{closed}: TCP failed")
    assert "is a broker running there" in found.remarks[0]


def test_wrong_arguments_are_raised() -> None:
    config = ClientConfig(service_url="pulsar://127.0.0.1:1")
    with pytest.raises(InvalidTopicName):
        diagnose(config, topic="a://b")
    with pytest.raises(InvalidUrl):
        diagnose(config, admin_url="pulsar://a")


def test_the_text_of_a_diagnosis() -> None:
    found = Diagnosis((Stage("TCP", True), Stage("CONNECT", False, "why")), ("h:1: TCP failed: no",))
    assert str(found) == "TCP ok, CONNECT failed: why; h:1: TCP failed: no"


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("code", [pb.TopicNotFound, pb.AuthorizationError])
def test_refused_lookup_fails_for_a_given_topic_only(fake: FakeBroker, code: int, given: bool) -> None:
    fake.answers[Kind.LOOKUP] = lambda _peer, command: [not_found(command, code)]
    config = ClientConfig(service_url=fake.url)
    found = diagnose(config, topic="mine") if given else diagnose(config)
    assert (found.stages[-1].name, found.ok) == ("lookup", not given)


def test_admin_without_rights_is_an_answer(fake: FakeBroker) -> None:
    with http_peer(lambda asked: Answer(403, b'{"reason": "no"}')) as peer:
        found = diagnose(ClientConfig(service_url=fake.url), admin_url=peer.url)
    assert found.ok and found.stages[-1] == Stage("admin", True, "answered, but not allowed to list the clusters")


@pytest.mark.parametrize("secrets", [None, [None, 5], RuntimeError("very-secret")], ids=repr)
def test_diagnose_odd_secrets_keep_the_stage(fake: FakeBroker, secrets: Any) -> None:
    class Odd(Authentication):
        method_name = "token"

        def auth_data(self) -> bytes:
            raise ErrorGettingAuthenticationData("no token in the vault")

        def secrets(self) -> list[str]:
            if isinstance(secrets, BaseException):
                raise secrets
            return secrets  # type: ignore[no-any-return]

    found = diagnose(ClientConfig(service_url=fake.url, authentication=Odd()))
    assert found.stages[-1] == Stage("credentials", False, "no token in the vault")


def test_diagnose_masks_secrets_of_every_host(fake: FakeBroker) -> None:
    class Talkative(Authentication):
        method_name = "token"

        def auth_data(self) -> bytes:
            raise ErrorGettingAuthenticationData("it was my-secret that failed")

        def secrets(self) -> list[str]:
            return ["my-secret"]

    with FakeBroker() as second:
        url = f"{fake.url},{second.address}"
        found = diagnose(ClientConfig(service_url=url, authentication=Talkative()))
    assert found.remarks == (f"{second.address}: credentials failed: it was *** that failed",)


def test_diagnose_wrong_host_name_fails_resolve() -> None:
    found = diagnose(ClientConfig(service_url="pulsar://a..b"))
    assert (found.ok, found.stages[-1].name) == (False, "resolve")
    assert "'a..b' cannot be resolved: " in found.stages[-1].detail


def test_unknown_host_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_arguments: object, **_options: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    found = diagnose(ClientConfig(service_url="pulsar://nowhere.example:6650"))
    assert not found.ok
    assert found.stages[-1].detail == (
        "the host name 'nowhere.example' cannot be resolved: Name or service not known; "
        "check the host of the service URL"
    )
