"""User name and password authentication, up to a real broker with a password file."""

from __future__ import annotations

import base64
import pickle
import subprocess
from pathlib import Path

import pytest

from pulsar_native.admin import AdminClient
from pulsar_native.auth import AuthenticationBasic
from pulsar_native.exceptions import AuthenticationError, ErrorGettingAuthenticationData, InvalidConfiguration
from support.brokers import OwnBroker

JSON = '{"username": "me", "password": "topsecret"}'
ENCODED = base64.b64encode(b"me:topsecret").decode()


@pytest.mark.parametrize(
    "plugin",
    [
        AuthenticationBasic("me", "topsecret"),
        AuthenticationBasic(auth_params_string=JSON),
        AuthenticationBasic(auth_params_string='{"userId": "me", "password": "topsecret"}'),
    ],
)
def test_basic_parameter_spellings(plugin: AuthenticationBasic) -> None:
    assert plugin.method_name == "basic"
    assert plugin.auth_data() == b"me:topsecret"
    assert plugin.http_headers() == {"Authorization": f"Basic {ENCODED}", "X-Pulsar-Auth-Method-Name": "basic"}
    assert plugin.secrets() == ["topsecret", ENCODED]


def test_basic_method_names_broker_provider() -> None:
    assert AuthenticationBasic("me", "p", method="ldap").method_name == "ldap"
    assert AuthenticationBasic("me", "p", "ldap").http_headers()["X-Pulsar-Auth-Method-Name"] == "ldap"
    text = '{"username": "me", "password": "p", "method": "ldap"}'
    assert AuthenticationBasic(auth_params_string=text).method_name == "ldap"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"username": "me"},
        {"password": "topsecret"},
        {"username": "", "password": "topsecret"},
        {"username": "me:too", "password": "topsecret"},
        {"username": "me", "password": 3},
        {"username": "me", "password": "topsecret", "method": " "},
        {"username": "me", "password": "topsecret", "method": "a\nb"},
        {"auth_params_string": '{"username": "me"}'},
        {"auth_params_string": "me:topsecret"},
    ],
)
def test_basic_incomplete_login_raises(arguments: dict[str, str]) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        AuthenticationBasic(**arguments)
    assert "topsecret" not in str(caught.value)


def test_basic_login_lone_surrogate_raises() -> None:
    for login in (("me", "topsecret\ud800"), ("me\ud800", "topsecret")):
        with pytest.raises(InvalidConfiguration, match="lone surrogate") as caught:
            AuthenticationBasic(*login)
        assert "topsecret" not in str(caught.value)
        assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_basic_from_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "login"
    whole = AuthenticationBasic.from_reference(f"file://{path}")
    assert whole.secrets() == []
    with pytest.raises(ErrorGettingAuthenticationData):
        whole.auth_data()
    path.write_text(JSON)
    assert whole.auth_data() == b"me:topsecret"
    password = AuthenticationBasic.from_reference("env:PULSAR_TEST_PASSWORD", username="me", method="ldap")
    monkeypatch.setenv("PULSAR_TEST_PASSWORD", "one")
    assert password.auth_data() == b"me:one"
    monkeypatch.setenv("PULSAR_TEST_PASSWORD", "two")
    assert (password.auth_data(), password.secrets()[0]) == (b"me:two", "two")


def test_basic_pickle_references_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = AuthenticationBasic.from_reference("env:PULSAR_TEST_PASSWORD", username="me", method="ldap")
    monkeypatch.setenv("PULSAR_TEST_PASSWORD", "topsecret")
    pickled = pickle.dumps(plugin)
    assert b"topsecret" not in pickled
    copied = pickle.loads(pickled)
    assert (copied.auth_data(), copied.method_name) == (b"me:topsecret", "ldap")
    with pytest.raises(TypeError, match="from_reference") as caught:
        pickle.dumps(AuthenticationBasic("me", "topsecret"))
    assert "topsecret" not in str(caught.value)


def test_basic_repr_shows_name_only() -> None:
    assert repr(AuthenticationBasic("me", "topsecret")) == "AuthenticationBasic('me', ***)"
    assert "env:X" in repr(AuthenticationBasic.from_reference("env:X", username="me"))


def test_basic_real_broker(own_broker: OwnBroker, tmp_path: Path) -> None:
    hashed = subprocess.run(
        ["openssl", "passwd", "-apr1", "topsecret"], capture_output=True, text=True, check=True
    ).stdout
    passwords = tmp_path / "htpasswd"
    passwords.write_text(f"admin:{hashed}")
    provider = "org.apache.pulsar.broker.authentication.AuthenticationProviderBasic"
    conf = {
        "authenticationProviders": f"org.apache.pulsar.broker.authentication.AuthenticationProviderToken,{provider}",
        "basicAuthConf": f"file://{passwords}",
    }
    broker = own_broker(tokens=True, conf=conf)
    assert AdminClient(broker.admin_url, AuthenticationBasic("admin", "topsecret")).clusters() == ["standalone"]
    with pytest.raises(AuthenticationError) as caught:
        AdminClient(broker.admin_url, AuthenticationBasic("admin", "wrongsecret")).clusters()
    assert "wrongsecret" not in str(caught.value)
