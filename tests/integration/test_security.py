"""Tokens and TLS on a real broker that demands them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker import Standalone
from broker_keys import Certificates, make_certificates, make_client_pair
from pulsar_native import (
    Authentication,
    AuthenticationError,
    AuthenticationTLS,
    AuthenticationToken,
    AuthorizationError,
    ConnectError,
    InvalidConfiguration,
    MessageId,
    PulsarException,
    Result,
)
from support.apis import Api
from support.brokers import admin
from support.raw import commands_of
from support.relay import Command, NewRelay

Eventually = Callable[..., Any]

TOPIC = "persistent://public/default/secured"


def test_a_token_opens_the_door(api: Api, secure_broker: Standalone) -> None:
    given: Any
    for given in (secure_broker.token(), lambda: secure_broker.token()):
        client = api.client(secure_broker.service_url, authentication=AuthenticationToken(given))
        assert client.create_producer(TOPIC).send(b"x").entry_id() >= 0
        client.close()


@pytest.mark.parametrize("kind", ["none", "garbage", "expired"])
def test_a_refused_token_is_told_at_once(api: Api, secure_broker: Standalone, kind: str) -> None:
    token = {"none": None, "garbage": "very-secret", "expired": secure_broker.token(lifetime_seconds=-60)}[kind]
    authentication = None if token is None else AuthenticationToken(token)
    client = api.client(secure_broker.service_url, authentication=authentication)
    for call in (lambda: client.create_producer(TOPIC), lambda: client.subscribe(TOPIC, "sub")):
        started = time.monotonic()
        with pytest.raises(AuthenticationError) as caught:
            call()
        assert time.monotonic() - started < 5 and not caught.value.retryable
        assert caught.value.broker and (token is None or token not in str(caught.value))


def test_a_role_without_rights(api: Api, secure_broker: Standalone) -> None:
    client = api.client(secure_broker.service_url, authentication=AuthenticationToken(secure_broker.token("nobody")))
    started = time.monotonic()
    with pytest.raises(AuthorizationError) as caught:
        client.create_producer(TOPIC)
    assert time.monotonic() - started < 5 and not caught.value.retryable


def test_tls(api: Api, secure_broker: Standalone) -> None:
    token = AuthenticationToken(secure_broker.token())
    authority = str(secure_broker.certificates.authority)
    client = api.client(
        secure_broker.service_url_tls,
        authentication=token,
        tls_trust_certs_file_path=authority,
        tls_validate_hostname=True,
    )
    producer = client.create_producer(TOPIC)
    ids = api.send_all(producer, [bytes(200_000)] * 20)
    assert len(set(ids)) == 20
    started = time.monotonic()
    with pytest.raises(PulsarException, match=r"(?i)certificate"):
        api.client(secure_broker.service_url_tls, authentication=token, operation_timeout_seconds=2).create_producer(
            TOPIC
        )
    assert time.monotonic() - started < 6
    api.client(secure_broker.service_url_tls, authentication=token, tls_allow_insecure_connection=True).create_producer(
        TOPIC
    ).send(b"x")


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Give another authority and what it signed, which nobody here trusts."""
    return make_certificates(tmp_path_factory.mktemp("stranger"))


@pytest.mark.proves("C10")
@pytest.mark.parametrize("insecure", [False, True], ids=["secure", "insecure"])
@pytest.mark.parametrize("checks_host", [False, True], ids=["any-host", "checked-host"])
@pytest.mark.parametrize("right_host", [False, True], ids=["wrong-host", "right-host"])
@pytest.mark.parametrize("right_authority", [False, True], ids=["wrong-authority", "right-authority"])
def test_tls_settings_each_effective_on_its_own(
    api: Api,
    secure_broker: Standalone,
    stranger: Certificates,
    right_authority: bool,
    right_host: bool,
    checks_host: bool,
    insecure: bool,
) -> None:
    is_trusted = insecure or (right_authority and (right_host or not checks_host))
    url = secure_broker.service_url_tls
    client = api.client(
        # Another way to write the same address, which is not in the certificate.
        url if right_host else url.replace("127.0.0.1", "127.1"),
        authentication=AuthenticationToken(secure_broker.token()),
        operation_timeout_seconds=10 if is_trusted else 1,
        tls_trust_certs_file_path=str((secure_broker.certificates if right_authority else stranger).authority),
        tls_validate_hostname=checks_host,
        tls_allow_insecure_connection=insecure,
    )
    if is_trusted:
        assert client.create_producer(TOPIC).send(b"x").entry_id() >= 0
        return
    with pytest.raises(PulsarException, match=r"(?i)certificate"):
        client.create_producer(TOPIC)


@pytest.mark.proves("C10")
@pytest.mark.parametrize("insecure", [False, True], ids=["secure", "insecure"])
@pytest.mark.parametrize("checks_host", [False, True], ids=["any-host", "checked-host"])
def test_tls_system_authorities_do_not_trust_the_broker(
    api: Api, secure_broker: Standalone, checks_host: bool, insecure: bool
) -> None:
    client = api.client(
        secure_broker.service_url_tls,
        authentication=AuthenticationToken(secure_broker.token()),
        # It goes on trying for all this time; one handshake may take a second of it on a busy machine.
        operation_timeout_seconds=10 if insecure else 4,
        tls_validate_hostname=checks_host,
        tls_allow_insecure_connection=insecure,
    )
    if insecure:
        assert client.create_producer(TOPIC).send(b"x").entry_id() >= 0
        return
    with pytest.raises(PulsarException, match=r"(?i)certificate"):
        client.create_producer(TOPIC)


@pytest.mark.proves("C179")
def test_a_context_of_the_users_own(api: Api, secure_broker: Standalone, stranger: Certificates) -> None:
    token = AuthenticationToken(secure_broker.token())
    context = ssl.create_default_context(cafile=str(secure_broker.certificates.authority))
    client = api.client(secure_broker.service_url_tls, authentication=token, tls_context=context)
    assert client.create_producer(TOPIC).send(b"x").entry_id() >= 0
    strange = ssl.create_default_context(cafile=str(stranger.authority))
    client = api.client(
        secure_broker.service_url_tls, authentication=token, tls_context=strange, operation_timeout_seconds=1
    )
    with pytest.raises(PulsarException, match=r"(?i)certificate"):
        client.create_producer(TOPIC)
    for more in ({"tls_trust_certs_file_path": "ca.pem"}, {"tls_validate_hostname": True}):
        with pytest.raises(InvalidConfiguration, match="tls_context"):
            api.client(secure_broker.service_url_tls, tls_context=context, **more)
    with pytest.raises(InvalidConfiguration, match="tls_context"):
        api.client(secure_broker.service_url_tls, tls_context=True)


@pytest.fixture(scope="module")
def mutual_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Give a broker that knows its clients by their certificates."""
    with Standalone(tmp_path_factory.mktemp("mutual"), tls_client_auth=True) as started:
        yield started


@pytest.mark.proves("C179", "C178")
@pytest.mark.parametrize("given_as", ["plug-in", "paths"])
def test_a_replaced_certificate_is_taken_up_at_the_next_connect(
    api: Api, mutual_broker: Standalone, relay: NewRelay, tmp_path: Path, eventually: Eventually, given_as: str
) -> None:
    ours = mutual_broker.certificates
    stranger = make_client_pair(tmp_path / "pairs", "stranger", authority_folder=ours.authority.parent)
    certificate, key = tmp_path / "current.pem", tmp_path / "current-key.pem"

    def install(pair: tuple[Path, Path]) -> None:
        shutil.copy(pair[0], certificate)
        shutil.copy(pair[1], key)

    install(stranger)
    through = relay(mutual_broker.service_url_tls, opaque=True)
    plug_in = AuthenticationTLS(str(certificate), str(key))
    identity: dict[str, Any] = {"authentication": plug_in}
    if given_as == "paths":
        identity = {"tls_certificate_file_path": str(certificate), "tls_private_key_file_path": str(key)}
        # The broker still wants to be told how the client identifies itself.
        identity["authentication"] = ByCertificate()
    client = api.client(through.service_url, tls_trust_certs_file_path=str(ours.authority), **identity)
    with pytest.raises(AuthorizationError):
        client.create_producer(TOPIC)
    install((ours.client_certificate, ours.client_key))
    # The connection that is open still has the old identity.
    with pytest.raises(AuthorizationError):
        client.create_producer(TOPIC)
    assert through.cut() == 1
    producer = eventually(lambda: _created(client, TOPIC))
    assert producer.send(b"x").entry_id() >= 0
    # Half of a new pair is no use: the last good one stays.
    shutil.copy(stranger[0], certificate)
    through.cut()
    assert producer.send(b"y").entry_id() >= 0
    # Whole again: the stranger's, which may not send.
    shutil.copy(stranger[1], key)
    through.cut()
    with pytest.raises(AuthorizationError):
        client.create_producer(TOPIC + "-other")


def _created(client: Any, topic: str) -> Any:
    try:
        return client.create_producer(topic)
    except ConnectError:
        return None


class ByCertificate(Authentication):
    """Say that the certificate of the connection is the identity."""

    method_name = "tls"


# --- tokens that end --------------------------------------------------------------------------------------------------


@pytest.mark.proves("C178")
def test_a_token_that_ends_is_renewed_on_the_same_connection(
    api: Api, secure_broker: Standalone, relay: NewRelay
) -> None:
    through = relay(secure_broker.service_url)
    given: list[str] = []

    def supply() -> str:
        given.append(secure_broker.token(lifetime_seconds=3))
        return given[-1]

    client = api.client(through.service_url, authentication=AuthenticationToken(supply))
    consumer = client.subscribe(f"{TOPIC}-refresh-{api.name}", "s")
    producer = client.create_producer(f"{TOPIC}-refresh-{api.name}")
    sent = 0
    deadline = time.monotonic() + 60
    while through.count(Command.AUTH_RESPONSE) < 3:
        assert time.monotonic() < deadline
        producer.send(str(sent).encode())
        sent += 1
        assert consumer.receive(10_000).data() == str(sent - 1).encode()
        time.sleep(0.05)
    producer.send(b"last")
    assert through.accepted == 1 and through.count(Command.AUTH_CHALLENGE) >= 3
    assert through.count(Command.PRODUCER) == through.count(Command.SUBSCRIBE) == 1
    answered = [each.authResponse.response for each in commands_of(through, Command.AUTH_RESPONSE)]
    assert [each.auth_method_name for each in answered] == ["token"] * len(answered)
    assert [each.auth_data.decode() for each in answered] == given[1 : len(answered) + 1]


@pytest.mark.proves("C178")
@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
def test_a_supplier_that_fails_costs_the_connection_and_is_asked_again(
    api: Api,
    secure_broker: Standalone,
    relay: NewRelay,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    through = relay(secure_broker.service_url)
    broken = False

    def supply() -> str:
        if broken:
            raise error("very-secret-vault")
        return secure_broker.token(lifetime_seconds=3)

    client = api.client(through.service_url, authentication=AuthenticationToken(supply))
    producer = client.create_producer(TOPIC + "-supplier")
    assert producer.send(b"before").entry_id() >= 0
    broken = True
    eventually(lambda: through.count(Command.AUTH_CHALLENGE) and not producer.is_connected(), 30)
    broken = False
    assert producer.send(b"after").entry_id() >= 0
    assert through.accepted >= 2
    assert "very-secret-vault" not in caplog.text


# --- rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("C37")
def test_each_refusal_of_a_right_is_an_authorization_error(api: Api, secure_broker: Standalone) -> None:
    where = "public/rights"
    admin_token = secure_broker.token()
    with contextlib.suppress(urllib.error.HTTPError):  # the other API has made it
        admin(secure_broker.admin_url, "PUT", f"namespaces/{where}", token=admin_token)
    for role, rights in (("writer", ["produce"]), ("reader", ["consume"])):
        path = f"namespaces/{where}/permissions/{role}"
        admin(secure_broker.admin_url, "POST", path, rights, token=admin_token)
    name = f"persistent://{where}/topic"

    def client_of(role: str) -> Any:
        return api.client(secure_broker.service_url, authentication=AuthenticationToken(secure_broker.token(role)))

    writer, reader = client_of("writer"), client_of("reader")
    refused = (
        lambda: reader.create_producer(name),
        lambda: writer.subscribe(name, "s"),
        lambda: writer.create_reader(name, MessageId.earliest),
        lambda: client_of("nobody").get_topic_partitions(name),
    )
    consumer = reader.subscribe(name, "s")
    producer = writer.create_producer(name)
    for call in refused:
        with pytest.raises(AuthorizationError) as caught:
            call()
        assert caught.value.topic == name and caught.value.broker and not caught.value.retryable
        assert caught.value.error() is Result.AuthorizationError
    # The same connections serve what is allowed.
    producer.send(b"x")
    assert consumer.receive(10_000).data() == b"x"
