"""Plug-ins by name and one text of parameters, as C++ and Java programs configure them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pulsar_native.auth import (
    Authentication,
    AuthenticationAthenz,
    AuthenticationBasic,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
)
from pulsar_native.auth.base import plugin_named
from pulsar_native.exceptions import InvalidConfiguration

JAVA = "org.apache.pulsar.client.impl.auth."
OAUTH2 = json.dumps({"issuer_url": "https://i", "client_id": "me", "client_secret": "topsecret"})
ATHENZ = json.dumps(
    {
        "tenantDomain": "d", "tenantService": "s", "providerDomain": "p", "privateKey": "file:///k", "keyId": "0",
        "ztsUrl": "https://z",
    }
)  # fmt: skip


@pytest.mark.parametrize(
    ("names", "parameters", "kind"),
    [
        (["token", "TOKEN", f"{JAVA}AuthenticationToken"], "token:topsecret", AuthenticationToken),
        (["tls", f"{JAVA}AuthenticationTls"], "tlsCertFile:/c,tlsKeyFile:/k", AuthenticationTLS),
        (["basic", f"{JAVA}AuthenticationBasic"], "username:me,password:topsecret", AuthenticationBasic),
        (["oauth2", f"{JAVA}oauth2.AuthenticationOAuth2"], OAUTH2, AuthenticationOauth2),
        (["athenz", f"{JAVA}AuthenticationAthenz"], ATHENZ, AuthenticationAthenz),
    ],
)
def test_plugin_by_each_of_its_names(names: list[str], parameters: str, kind: type[Authentication]) -> None:
    for name in names:
        assert type(plugin_named(name, parameters)) is kind
        wrapped = Authentication(name, parameters)
        assert wrapped.method_name == plugin_named(name, parameters).method_name
        assert "topsecret" not in repr(wrapped)


@pytest.mark.parametrize("text", ["token:abc", '{"token": "abc"}'])
def test_token_plugin_takes_text_and_json(text: str) -> None:
    assert Authentication("token", text).auth_data() == b"abc"


def test_token_plugin_takes_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("from.a.file\n")
    monkeypatch.setenv("PULSAR_TEST_TOKEN", "from.the.environment")
    assert Authentication("token", f"file://{tmp_path}/token").auth_data() == b"from.a.file"
    assert Authentication("token", "env:PULSAR_TEST_TOKEN").auth_data() == b"from.the.environment"


@pytest.mark.parametrize("text", ["topsecret", '{"token": 5}', '{"topsecret": "x"}', "[]", "", "TOKEN:topsecret"])
def test_token_plugin_other_text_raises_without_it(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="must be token:…, file:///…, env:… or a JSON object") as caught:
        Authentication("token", text)
    assert "topsecret" not in repr(caught.value)


@pytest.mark.parametrize("text", ["tlsCertFile:/c,tlsKeyFile:/k:1", '{"tlsCertFile": "/c", "tlsKeyFile": "/k:1"}'])
def test_tls_plugin_takes_pairs_and_json(text: str) -> None:
    assert Authentication("tls", text).tls_certificate() == ("/c", "/k:1")


@pytest.mark.parametrize("text", ["", "tlsCertFile:/c", '{"tlsCertFile": "/c", "tlsKeyFile": 5}'])
def test_tls_plugin_missing_path_raises(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="_path of AuthenticationTLS"):
        Authentication("tls", text)


@pytest.mark.parametrize(
    ("text", "data", "method"),
    [
        ("username:me,password:a:b", b"me:a:b", "basic"),
        ("userId:me,password:p,method:other", b"me:p", "other"),
        ('{"userId": "me", "password": "p,q"}', b"me:p,q", "basic"),
    ],
)
def test_basic_plugin_takes_pairs_and_json(text: str, data: bytes, method: str) -> None:
    made = Authentication("basic", text)
    assert (made.auth_data(), made.method_name) == (data, method)


def test_basic_plugin_missing_password_raises() -> None:
    with pytest.raises(InvalidConfiguration, match="password"):
        Authentication("basic", "username:me")


@pytest.mark.parametrize("name", ["", "kerberos", "/usr/lib/libauth.so", "org.apache.pulsar.Token"])
def test_plugin_unknown_name_raises(name: str) -> None:
    with pytest.raises(
        InvalidConfiguration, match=f"no authentication plug-in {name!r}: known are token, tls, basic"
    ) as caught:
        Authentication(name, "token:topsecret")
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize("name", ["nope topsecret", "token:topsecret", f"{'e' * 50}.topsecret.{'x' * 20}"])
def test_plugin_name_of_other_text_not_repeated(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match="no authentication plug-in of this name: known are") as caught:
        Authentication(name, "")
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize(("name", "text"), [(5, ""), ("token", b"token:x")])
def test_plugin_arguments_of_another_type_raise(name: object, text: object) -> None:
    with pytest.raises(InvalidConfiguration, match="of Authentication must be a str, not"):
        Authentication(name, text)  # type: ignore[arg-type]
