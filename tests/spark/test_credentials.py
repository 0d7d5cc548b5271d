"""Credentials by reference: what is accepted, what is made of it, and that nothing of it shows."""

from __future__ import annotations

import json
import pickle
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_native.auth import AuthenticationBasic, AuthenticationOauth2, AuthenticationTLS
from pulsar_native.exceptions import ErrorGettingAuthenticationData, InvalidConfiguration
from pyspark_pulsar.credentials import CredentialsRef, share

OAUTH2 = {"issuer_url": "https://issuer", "client_id": "me", "client_secret": "s3cret", "audience": "all"}


@pytest.mark.parametrize("text", ["env:A", "file:token.txt", "file:/run/secrets/token", "conf:spark.pulsar.token"])
def test_reference_is_unchanged_and_pickles(text: str) -> None:
    reference = CredentialsRef.parse(text)
    assert str(reference) == text
    assert pickle.loads(pickle.dumps(reference)) == reference


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s3cret", "must be env:VARIABLE"),
        ("token:s3cret", "must be env:VARIABLE"),
        ("env:", "must be env:VARIABLE"),
        ("file:s3cret/../x", "a file's name .* or an absolute path"),
        ("conf:spark.s3cret-without-the-word", "needs a KEY with token, secret"),
    ],
)
def test_reference_of_other_scheme_raises(text: str, message: str) -> None:
    if text.startswith("conf:"):
        text = "conf:spark.pulsar.jwt"
    with pytest.raises(InvalidConfiguration, match=message) as refused:
        CredentialsRef.parse(text)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "content", ["abc.def", " abc.def\n", "token:abc.def", '{"method": "token", "token": "abc.def"}']
)
def test_token_from_environment_variable(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSAR_TEST_CREDENTIALS", content)
    found = CredentialsRef.parse("env:PULSAR_TEST_CREDENTIALS").resolve()
    assert found.method_name == "token"
    assert found.auth_data() == b"abc.def"


def test_token_rotated_is_used_at_next_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    found = CredentialsRef.parse(f"file:{file}").resolve()
    assert found.auth_data() == b"first"
    file.write_text("second")
    assert found.auth_data() == b"second"


def test_other_methods_from_json(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    reference = CredentialsRef.parse(f"file:{file}")
    file.write_text(json.dumps({"method": "basic", "username": "me", "password": "s3cret"}))
    basic = reference.resolve()
    assert isinstance(basic, AuthenticationBasic) and basic.auth_data() == b"me:s3cret"
    file.write_text(json.dumps({"method": "oauth2", **OAUTH2}))
    assert isinstance(reference.resolve(), AuthenticationOauth2)
    file.write_text(json.dumps({"method": "tls", "certificate_path": "/c.pem", "private_key_path": "/k.pem"}))
    tls = reference.resolve()
    assert isinstance(tls, AuthenticationTLS) and tls.tls_certificate() == ("/c.pem", "/k.pem")


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ('{"method": "s3cret"', "begin like JSON but are no JSON object of texts"),
        ('{"method": 5}', "no JSON object of texts"),
        ('{"token": "s3cret"}', 'need "method": one of token, basic, oauth2, tls'),
        ('{"method": "kerberos", "x": "s3cret"}', 'need "method": one of'),
        ('{"method": "token", "tokn": "s3cret"}', "fields must be token, not tokn"),
        ('{"method": "basic", "username": "me", "pasword": "s3cret"}', "did you mean 'password'"),
        ('{"method": "tls", "certificate_path": "s3cret"}', "must be certificate_path and private_key_path"),
        ('{"method": "oauth2", "client_secret": "s3cret"}', "has no issuer_url"),
    ],
)
def test_wrong_parameters_raise_without_repeating_them(
    kept: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSAR_TEST_CREDENTIALS", kept)
    with pytest.raises(InvalidConfiguration, match=message) as refused:
        CredentialsRef.parse("env:PULSAR_TEST_CREDENTIALS").resolve()
    text = f"{refused.value} {refused.value.__context__} {refused.value.__cause__}"
    assert "s3cret" not in text


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("env:PULSAR_TEST_NOT_SET", "env:PULSAR_TEST_NOT_SET cannot be found or is empty: the variable must be set"),
        ("file:/no/such/file", "file:/no/such/file cannot be read: No such file"),
    ],
)
def test_missing_source_is_named(reference: str, message: str) -> None:
    with pytest.raises(ErrorGettingAuthenticationData, match=message):
        CredentialsRef.parse(reference).resolve()


def test_file_not_text_raises(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_bytes(b"\xff\xfe\x00s3cret")
    with pytest.raises(ErrorGettingAuthenticationData, match="not UTF-8") as refused:
        CredentialsRef.parse(f"file:{file}").resolve()
    assert "s3cret" not in f"{refused.value} {refused.value.__context__}"


def test_share_over_connect_names_other_references() -> None:
    # A session of Spark Connect has no context.
    session: Any = SimpleNamespace()
    assert share(session, CredentialsRef("env", "TOKEN"))[0] == CredentialsRef("env", "TOKEN")
    with pytest.raises(InvalidConfiguration, match=r"conf:spark\.x\.token needs a classic session: .* env: or file:"):
        share(session, CredentialsRef("conf", "spark.x.token"))


@pytest.mark.parametrize("fails", [False, True])
def test_shared_file_is_left_only_if_spark_has_it(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(CredentialsRef, "read", lambda _: "s3cret")
    shipped: list[str] = []

    def add(path: str) -> None:
        shipped.append(Path(path).read_text())
        if fails:
            raise OSError("no space left")

    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(addFile=add))
    reference = CredentialsRef("conf", "spark.pulsar.token")
    if fails:
        with pytest.raises(OSError, match="no space left"):
            share(spark, reference)
    else:
        made, forget = share(spark, reference)
        assert [path.name for path in tmp_path.iterdir()] == [made.name]
        forget()
    assert shipped == ["s3cret"] and list(tmp_path.iterdir()) == []
