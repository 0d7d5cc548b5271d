"""Tokens and TLS on a real broker that demands them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from broker import Standalone
from pulsar_native import AuthenticationError, AuthenticationToken, AuthorizationError, PulsarException
from support.faces import Face

TOPIC = "persistent://public/default/secured"


def test_a_token_opens_the_door(face: Face, secure_broker: Standalone) -> None:
    given: Any
    for given in (secure_broker.token(), lambda: secure_broker.token()):
        client = face.client(secure_broker.service_url, authentication=AuthenticationToken(given))
        assert client.create_producer(TOPIC).send(b"x").entry_id() >= 0
        client.close()


@pytest.mark.parametrize("kind", ["none", "garbage", "expired"])
def test_a_refused_token_is_told_at_once(face: Face, secure_broker: Standalone, kind: str) -> None:
    token = {"none": None, "garbage": "very-secret", "expired": secure_broker.token(lifetime_seconds=-60)}[kind]
    authentication = None if token is None else AuthenticationToken(token)
    client = face.client(secure_broker.service_url, authentication=authentication)
    for call in (lambda: client.create_producer(TOPIC), lambda: client.subscribe(TOPIC, "sub")):
        started = time.monotonic()
        with pytest.raises(AuthenticationError) as caught:
            call()
        assert time.monotonic() - started < 5 and not caught.value.retryable
        assert caught.value.broker and (token is None or token not in str(caught.value))


def test_a_role_without_rights(face: Face, secure_broker: Standalone) -> None:
    client = face.client(secure_broker.service_url, authentication=AuthenticationToken(secure_broker.token("nobody")))
    started = time.monotonic()
    with pytest.raises(AuthorizationError) as caught:
        client.create_producer(TOPIC)
    assert time.monotonic() - started < 5 and not caught.value.retryable


def test_tls(face: Face, secure_broker: Standalone) -> None:
    token = AuthenticationToken(secure_broker.token())
    authority = str(secure_broker.certificates.authority)
    client = face.client(
        secure_broker.service_url_tls,
        authentication=token,
        tls_trust_certs_file_path=authority,
        tls_validate_hostname=True,
    )
    producer = client.create_producer(TOPIC)
    ids = face.send_all(producer, [bytes(200_000)] * 20)
    assert len(set(ids)) == 20
    started = time.monotonic()
    with pytest.raises(PulsarException, match=r"(?i)certificate"):
        face.client(secure_broker.service_url_tls, authentication=token, operation_timeout_seconds=2).create_producer(
            TOPIC
        )
    assert time.monotonic() - started < 3
    face.client(
        secure_broker.service_url_tls, authentication=token, tls_allow_insecure_connection=True
    ).create_producer(TOPIC).send(b"x")
