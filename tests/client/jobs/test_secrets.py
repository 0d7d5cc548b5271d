"""Detection of secrets: by name in every spelling, by form of the value, nested."""

from __future__ import annotations

import pytest

from pulsar_native.jobs.secrets import is_secret_name, looks_secret, secret_names

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln"


@pytest.mark.parametrize(
    "name",
    [
        "authParams", "auth_params", "AUTH-PARAMS", "pulsar.client.authPluginClassName", "auth", "pulsar.client.auth",
        "my_Api.Key", "db PASSWORD", "passphrase", "client_secret", "tlsPrivateKey", "Authorization", "x-jwt",
    ],
)  # fmt: skip
def test_secret_name_found_in_every_spelling(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["topic", "credentialsRef", "credentials_ref", "private_key_file_path", "token_ref", "author", "authority", 5],
)
def test_secret_name_spares_references_and_paths(name: object) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "value",
    [
        JWT,
        f"--conf x={JWT}",
        "Bearer abc",
        " bearer abc",
        "token:abc",
        "basic:abc",
        "https://me:topsecret@host/path",
        "PULSAR+SSL://me:topsecret@host",
        "-----BEGIN PRIVATE KEY-----\nMII",
        "-----BEGIN RSA PRIVATE KEY-----",
    ],
)
def test_secret_value_found_by_form(value: str) -> None:
    assert looks_secret(value)


@pytest.mark.parametrize(
    "value",
    [
        None, 5, "", "eyJ", "token", "token: ", "bearer", "the bearer of news", "https://host:8443/a@b",
        "pulsar://host:6650", "-----BEGIN CERTIFICATE-----", "persistent://public/default/t",
    ],
)  # fmt: skip
def test_secret_value_spares_plain_texts(value: object) -> None:
    assert not looks_secret(value)


def test_secret_names_include_nested_values() -> None:
    options = {
        "topic": "t",
        "authParams": "",
        "conf": {"a": {"password": "x"}},
        "args": ["--x", ("--y", JWT)],
        "harmless": [{"a": 1}, ("b", None)],
        7: "Bearer abc",
    }
    assert secret_names(options) == ["authParams", "conf", "args", "7"]  # type: ignore[arg-type]
