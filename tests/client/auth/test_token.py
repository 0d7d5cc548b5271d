"""Token authentication, up to a real broker that requires tokens."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from broker import Standalone
from pulsar_native.admin import AdminClient
from pulsar_native.auth import AuthenticationToken
from pulsar_native.config import ClientConfig
from pulsar_native.enums import Result
from pulsar_native.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ErrorGettingAuthenticationData,
    InvalidConfiguration,
    log_text,
)
from support.other_thread import OWN_ERRORS, in_other_thread


def supply() -> str:
    """Supply a token; a function of a module, so that it pickles by name."""
    return "supplied"


def test_token_literal() -> None:
    plugin = AuthenticationToken("topsecret")
    assert plugin.method_name == "token"
    assert plugin.auth_data() == b"topsecret"
    assert plugin.http_headers() == {"Authorization": "Bearer topsecret"}
    assert plugin.secrets() == ["topsecret"]
    assert plugin.tls_certificate() is None


def test_token_supplier_called_each_time() -> None:
    tokens = iter(["one", "two", "three"])
    plugin = AuthenticationToken(lambda: next(tokens))
    assert plugin.secrets() == []
    assert plugin.auth_data() == b"one"
    assert plugin.auth_data() == b"two"
    assert plugin.http_headers() == {"Authorization": "Bearer three"}
    assert plugin.secrets() == ["three"]


def test_token_from_reference_read_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    plugin = AuthenticationToken.from_reference(f"file://{path}")
    assert plugin.secrets() == []
    path.write_text("one\n")
    assert (plugin.auth_data(), plugin.secrets()) == (b"one", ["one"])
    path.write_text("two\n")
    assert plugin.auth_data() == b"two"
    monkeypatch.setenv("PULSAR_TEST_TOKEN", "three")
    assert AuthenticationToken.from_reference("env:PULSAR_TEST_TOKEN").auth_data() == b"three"


@pytest.mark.parametrize("token", ["", "two words", "line\nfeed", "\u00fcber", None, b"bytes", 3])
def test_token_invalid_raises(token: object) -> None:
    with pytest.raises(InvalidConfiguration, match="token"):
        AuthenticationToken(token)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("token", "fault"),
    [
        ("", "is empty"),
        ("secret\n", "has white space around it.*strip it"),
        ("top secret", "has white space that no token has"),
        ("s\u00fccret", "has characters that no token has"),
    ],
)
def test_token_error_names_fault_only(token: str, fault: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"^The token {fault}$") as caught:
        AuthenticationToken(token)
    with pytest.raises(ErrorGettingAuthenticationData, match=f"{fault}$"):
        AuthenticationToken(lambda: token).auth_data()
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("text", ["env:NAME", "file:///path"])
def test_token_reference_as_literal_hints_at_fix(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="from_reference"):
        AuthenticationToken(text)


@pytest.mark.parametrize("supplied", ["", "top secret", b"top secret", b"\xff\xfe", None, 5])
def test_token_supplier_result_checked_not_repeated(supplied: object) -> None:
    plugin = AuthenticationToken(lambda: supplied)  # type: ignore[arg-type, return-value]
    with pytest.raises(ErrorGettingAuthenticationData) as caught:
        plugin.auth_data()
    assert caught.value.error() is Result.AuthenticationError
    assert "secret" not in str(caught.value)


def test_token_supplier_may_return_bytes() -> None:
    plugin = AuthenticationToken(lambda: b"topsecret")
    assert (plugin.auth_data(), plugin.secrets()) == (b"topsecret", ["topsecret"])


def test_token_supplier_coroutine_function_raises() -> None:
    async def supply_later() -> str:
        return "topsecret"

    plugin = AuthenticationToken(supply_later)  # type: ignore[arg-type]
    with pytest.raises(ErrorGettingAuthenticationData, match="supplier must be a plain function") as caught:
        plugin.auth_data()
    assert caught.value.error() is Result.AuthenticationError


@pytest.mark.parametrize("error", [StopIteration, SystemExit, asyncio.CancelledError, *OWN_ERRORS])
def test_token_supplier_odd_exception_is_cause(error: type[BaseException]) -> None:
    def fail() -> str:
        raise error("vault")

    with pytest.raises(ErrorGettingAuthenticationData, match=error.__name__) as caught:
        in_other_thread(AuthenticationToken(fail).auth_data)
    assert isinstance(caught.value.__cause__, error) and "vault" not in log_text(caught.value)


def test_token_supplier_exception_is_cause() -> None:
    def fail() -> str:
        raise KeyError("vault")

    with pytest.raises(ErrorGettingAuthenticationData, match="KeyError") as caught:
        AuthenticationToken(fail).auth_data()
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.error() is Result.AuthenticationError
    # For the application its text is told, for a log it is not: it may hold what was fetched.
    assert "vault" in str(caught.value) and "vault" not in log_text(caught.value)
    assert "vault" in str(pickle.loads(pickle.dumps(caught.value)))


def test_token_pickle_reference_and_named_supplier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSAR_TEST_TOKEN", "topsecret")
    pickled = pickle.dumps(AuthenticationToken.from_reference("env:PULSAR_TEST_TOKEN"))
    assert b"topsecret" not in pickled
    monkeypatch.setenv("PULSAR_TEST_TOKEN", "secret of the far end")
    with pytest.raises(ErrorGettingAuthenticationData):
        pickle.loads(pickled).auth_data()
    monkeypatch.setenv("PULSAR_TEST_TOKEN", "far-end")
    assert pickle.loads(pickled).auth_data() == b"far-end"
    reduced = AuthenticationToken(supply).__reduce__()
    assert reduced == (AuthenticationToken, (supply,))


@pytest.mark.proves("N2")
def test_token_config_with_reference_pickles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PULSAR_TEST_TOKEN", "topsecret")
    config = ClientConfig(
        service_url="pulsar+ssl://broker:6651",
        authentication=AuthenticationToken.from_reference("env:PULSAR_TEST_TOKEN"),
        operation_timeout_seconds=7,
    )
    pickled = pickle.dumps(config)
    assert b"topsecret" not in pickled
    program = (
        "import pickle, sys; c = pickle.load(sys.stdin.buffer);"
        "print(c.service_url, c.operation_timeout_seconds, c.authentication.auth_data().decode())"
    )
    far_end = subprocess.run(
        [sys.executable, "-c", program],
        input=pickled,
        capture_output=True,
        check=True,
        env={**os.environ, "PULSAR_TEST_TOKEN": "of-the-far-end"},
    )
    assert far_end.stdout.split() == [b"pulsar+ssl://broker:6651", b"7", b"of-the-far-end"]
    with pytest.raises(TypeError, match="from_reference"):
        pickle.dumps(ClientConfig(service_url="pulsar://broker", authentication=AuthenticationToken("topsecret")))


class Vault:
    """A supplier with state."""

    def __init__(self, token: str) -> None:
        self.token = token

    def __call__(self) -> str:
        """Return the token."""
        return self.token


@pytest.mark.parametrize(
    "plugin",
    [AuthenticationToken("topsecret"), AuthenticationToken(lambda: "x"), AuthenticationToken(Vault("topsecret"))],
)
def test_token_literal_secret_not_picklable(plugin: AuthenticationToken) -> None:
    with pytest.raises(TypeError, match=r"from_reference\('env:NAME'\)") as caught:
        pickle.dumps(plugin)
    assert "topsecret" not in str(caught.value)


def test_token_repr_names_source() -> None:
    assert repr(AuthenticationToken("topsecret")) == "AuthenticationToken(***)"
    assert repr(AuthenticationToken(supply)) == "AuthenticationToken(supply)"
    assert repr(AuthenticationToken(Vault("topsecret"))) == "AuthenticationToken(Vault)"
    assert repr(AuthenticationToken.from_reference("env:X")) == "AuthenticationToken.from_reference('env:X')"


def test_token_real_broker(secure_broker: Standalone) -> None:
    def clusters(token: str) -> list[str]:
        return AdminClient(secure_broker.admin_url, AuthenticationToken(token)).clusters()

    assert clusters(secure_broker.token()) == ["standalone"]
    expired = secure_broker.token(lifetime_seconds=-60)
    with pytest.raises(AuthenticationError) as caught:
        clusters(expired)
    assert expired not in str(caught.value)
    with pytest.raises(AuthorizationError):
        AdminClient(secure_broker.admin_url, AuthenticationToken(secure_broker.token("nobody"))).namespaces("public")


def test_token_supplier_asked_for_each_request(secure_broker: Standalone) -> None:
    lifetimes = iter([60, -60, 60])
    admin = AdminClient(
        secure_broker.admin_url, AuthenticationToken(lambda: secure_broker.token(lifetime_seconds=next(lifetimes)))
    )
    assert admin.clusters() == ["standalone"]
    # The broker says no to an expired token, and yes again to the next one.
    with pytest.raises(AuthenticationError):
        admin.clusters()
    assert admin.clusters() == ["standalone"]
