"""Athenz authentication: principal token, role token and its caching."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from pulsar_native import Client, PulsarException
from pulsar_native.auth import AuthenticationAthenz, RoleToken, athenz, token_cache
from pulsar_native.exceptions import (
    AuthenticationError,
    ConnectError,
    ErrorGettingAuthenticationData,
    InvalidConfiguration,
)
from pulsar_native.wire.commands import Kind
from support.clock import stopped_clock
from support.fake_broker import FakeBroker
from support.http_peer import Answer, Asked, http_peer
from support.other_thread import OWN_ERRORS, in_other_thread

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


@pytest.fixture
def key_path(tmp_path: Path) -> Path:
    """Give the key's file."""
    path = tmp_path / "key.pem"
    path.write_bytes(PEM)
    return path


def parameters(zts_url: str, private_key: str, **more: str) -> str:
    return json.dumps(
        {
            "tenantDomain": "tenant.one",
            "tenantService": "loader",
            "providerDomain": "provider.two",
            "privateKey": private_key,
            "ztsUrl": zts_url,
            **more,
        }
    )


def token_answer(name: str, lifetime: float) -> Answer:
    return Answer(body=json.dumps({"token": name, "expiryTime": int(time.time() + lifetime)}).encode())


def check_principal(text: str) -> dict[str, str]:
    """Return the parts of a principal token whose signature is ours."""
    unsigned, _, signature = text.rpartition(";s=")
    signed = base64.b64decode(signature.translate(str.maketrans("._-", "+/=")))
    KEY.public_key().verify(signed, unsigned.encode(), padding.PKCS1v15(), hashes.SHA256())
    return dict(part.split("=", 1) for part in unsigned.split(";"))


@pytest.mark.proves("C178")
@pytest.mark.parametrize("spelled", ["path", "file", "data"])
def test_athenz_role_token_fetched_once_signed(key_path: Path, spelled: str) -> None:
    key = {
        "path": str(key_path),
        "file": f"file://{key_path}",
        "data": "data:application/x-pem-file;base64," + base64.b64encode(PEM).decode(),
    }[spelled]
    with http_peer(lambda asked: token_answer("v=Z1;d=role", 7200)) as zts:
        plug_in = AuthenticationAthenz(parameters(zts.url, key, keyId="7"))
        assert zts.asked == []
        assert plug_in.method_name == "athenz"
        assert plug_in.auth_data() == b"v=Z1;d=role"
        assert plug_in.http_headers() == {"Athenz-Role-Auth": "v=Z1;d=role"}
        (asked,) = zts.asked
    assert asked.path == "/zts/v1/domain/provider.two/token?minExpiryTime=7200&maxExpiryTime=86400"
    parts = check_principal(asked.headers["Athenz-Principal-Auth"])
    assert (parts["v"], parts["d"], parts["n"], parts["k"]) == ("S1", "tenant.one", "loader", "7")
    assert abs(int(parts["t"]) - time.time()) < 60 and int(parts["e"]) - int(parts["t"]) == 3600
    assert parts["h"] and parts["a"]
    assert plug_in.secrets() == ["v=Z1;d=role"] and "role" not in repr(plug_in)


def test_athenz_header_names(key_path: Path) -> None:
    with http_peer(lambda asked: token_answer("r", 7200)) as zts:
        names = {"principalHeader": "Who", "roleHeader": "As"}
        plug_in = AuthenticationAthenz(parameters(zts.url + "/zts/v1/", str(key_path), **names))
        assert plug_in.http_headers() == {"As": "r"}
        check_principal(zts.asked[0].headers["Who"])
        assert zts.asked[0].path.startswith("/zts/v1/domain/")


def test_athenz_expiring_token_refetched_or_kept(key_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch, token_cache, athenz)
    answers = [token_answer("first", 30), Answer(503), token_answer("second", 7200)]

    def answer(asked: Asked) -> Answer:
        return answers[min(len(zts.asked) - 1, 2)]

    with http_peer(answer) as zts:
        plug_in = AuthenticationAthenz(parameters(zts.url, str(key_path)))

        def refreshed() -> bytes:
            """Have another token fetched, and return the one after that."""
            assert plug_in.auth_data() == b"first"
            assert plug_in._cache._refresher is not None
            plug_in._cache._refresher.join(10)
            return plug_in.auth_data()

        assert plug_in.auth_data() == b"first"
        assert refreshed() == b"first" and len(zts.asked) == 2
        clock.advance(11)
        assert refreshed() == b"second"
        # Refused by a broker, as after its key was replaced.
        clock.advance(6)
        plug_in.on_refused()
        assert [plug_in.auth_data(), plug_in.auth_data()] == [b"second"] * 2 and len(zts.asked) == 4


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(401), AuthenticationError),
        (Answer(429), ConnectError),
        (Answer(500), ConnectError),
        (Answer(body=b'{"token": "x", "expiryTime": true}'), ErrorGettingAuthenticationData),
        (Answer(body=b'{"token": "x", "expiryTime": 1%s}' % (b"0" * 400)), ErrorGettingAuthenticationData),
        (Answer(body=b"not json"), ErrorGettingAuthenticationData),
        (Answer(body=b'{"token": "x"}'), ErrorGettingAuthenticationData),
        (Answer(body=b'{"token": "", "expiryTime": 9999999999}'), ErrorGettingAuthenticationData),
    ],
)
def test_athenz_server_errors(key_path: Path, answer: Answer, error: type[PulsarException]) -> None:
    with http_peer(lambda asked: answer) as zts:
        with pytest.raises(error) as caught:
            AuthenticationAthenz(parameters(zts.url, str(key_path))).auth_data()
        assert type(caught.value) is error and "failed with" not in str(caught.value)


def test_athenz_server_or_key_missing(key_path: Path, tmp_path: Path) -> None:
    with http_peer(lambda asked: token_answer("r", 7200)) as zts:
        gone = zts.url
        for key in (str(tmp_path / "none.pem"), "data:;base64,!!", "data:,x"):
            with pytest.raises(ErrorGettingAuthenticationData):
                AuthenticationAthenz(parameters(zts.url, key)).auth_data()
        (tmp_path / "bad.pem").write_text("-----BEGIN PRIVATE KEY-----\nvery-secret\n-----END PRIVATE KEY-----\n")
        with pytest.raises(ErrorGettingAuthenticationData, match="not an RSA key") as caught:
            AuthenticationAthenz(parameters(zts.url, str(tmp_path / "bad.pem"))).auth_data()
        assert "very-secret" not in str(caught.value)
    with pytest.raises(ConnectError):
        AuthenticationAthenz(parameters(gone, str(key_path))).auth_data()


@pytest.mark.parametrize("name", ["tenantDomain", "tenantService", "providerDomain", "privateKey", "ztsUrl"])
def test_athenz_missing_parameters_raise(name: str) -> None:
    given = json.loads(parameters("http://zts:4443", "/key.pem"))
    del given[name]
    with pytest.raises(InvalidConfiguration, match=name):
        AuthenticationAthenz(json.dumps(given))


def test_athenz_pickle_only_references(key_path: Path) -> None:
    plug_in = AuthenticationAthenz(parameters("http://zts:4443", f"file://{key_path}"))
    assert repr(pickle.loads(pickle.dumps(plug_in))) == repr(plug_in)
    literal = "data:;base64," + base64.b64encode(PEM).decode()
    with pytest.raises(TypeError, match="literal secret"):
        pickle.dumps(AuthenticationAthenz(parameters("http://zts:4443", literal)))


@pytest.mark.parametrize("has_own_client", [False, True], ids=["built-in", "own"])
@pytest.mark.parametrize("name", ["privateKey", "caCert"])
def test_athenz_pem_text_as_path_raises(name: str, has_own_client: bool) -> None:
    text = parameters("http://zts:4443", "/key.pem", **{name: PEM.decode()})
    with pytest.raises(InvalidConfiguration, match=f"{name} .* must be a path.*, not the content of a file") as caught:
        AuthenticationAthenz(text, OwnZts() if has_own_client else None)
    assert "-----" not in str(caught.value)


@pytest.mark.parametrize("key", ["MIIEvQIBADANBgkq", "file:///a/-----BEGIN KEY-----"])
def test_athenz_key_as_path_is_not_repeated(key: str) -> None:
    with pytest.raises((ErrorGettingAuthenticationData, InvalidConfiguration), match="privateKey") as caught:
        AuthenticationAthenz(parameters("http://127.0.0.1:1", key)).auth_data()
    assert "MII" not in str(caught.value) and "BEGIN" not in str(caught.value)


def test_athenz_literal_key_own_client_no_pickle() -> None:
    literal = parameters("http://zts:4443", "data:;base64," + base64.b64encode(PEM).decode())
    with pytest.raises(TypeError, match="literal secret"):
        pickle.dumps(AuthenticationAthenz(literal, OwnZts()))
    own = athenz.HttpZtsClient("http://zts:4443", "a", "b", json.loads(literal)["privateKey"])
    with pytest.raises(TypeError, match="literal secret"):
        pickle.dumps(AuthenticationAthenz('{"providerDomain": "p"}', own))


def test_athenz_relative_key_path_is_read(key_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (key_path.parent / "100%41.pem").write_bytes(PEM)
    monkeypatch.chdir(key_path.parent)
    with http_peer(lambda asked: token_answer("r", 7200)) as zts:
        assert AuthenticationAthenz(parameters(zts.url, "100%41.pem")).auth_data() == b"r"


class OwnZts:
    """A ZTS client of the application's own."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failure: type[BaseException] | None = None

    def role_token(self, provider_domain: str) -> RoleToken:
        if self.failure is not None:
            raise self.failure("very-secret")
        self.asked.append(provider_domain)
        return RoleToken(f"role-{len(self.asked)}", time.time() + 7200)


@pytest.mark.proves("C178")
def test_athenz_custom_zts_client() -> None:
    own = OwnZts()
    plug_in = AuthenticationAthenz('{"providerDomain": "p"}', zts_client=own)
    with FakeBroker() as broker, Client(broker.url, authentication=plug_in) as client:
        client.create_producer("t")
        connect: Any = broker.seen(Kind.CONNECT)[0].command.connect
        assert (connect.auth_method_name, connect.auth_data) == ("athenz", b"role-1")
    assert own.asked == ["p"]
    broken = OwnZts()
    for failure in (RuntimeError, SystemExit, asyncio.CancelledError, *OWN_ERRORS):
        broken.failure = failure
        with pytest.raises(ErrorGettingAuthenticationData, match=failure.__name__) as caught:
            in_other_thread(AuthenticationAthenz('{"providerDomain": "p"}', zts_client=broken).auth_data)
        assert "very-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "returned",
    [
        None,
        "role",
        ("role", 9e9),
        RoleToken(b"role", 9e9),  # type: ignore[arg-type]
        RoleToken("role", None),  # type: ignore[arg-type]
        RoleToken("role", "9"),  # type: ignore[arg-type]
        RoleToken("role", True),
        RoleToken("role", 10**400),
    ],
    ids=lambda returned: repr(returned)[:40],
)
def test_athenz_zts_client_other_result_raises(returned: Any) -> None:
    class Odd:
        def role_token(self, provider_domain: str) -> RoleToken:
            return returned  # type: ignore[no-any-return]

    plug_in = AuthenticationAthenz('{"providerDomain": "p"}', zts_client=Odd())
    with pytest.raises(ErrorGettingAuthenticationData, match=rf"\({type(returned).__name__}\): it must return a Role"):
        plug_in.auth_data()
    assert plug_in.secrets() == []
