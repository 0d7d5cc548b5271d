"""Connection options: options before environment before client.conf, and secrets by reference only."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pulsar_native import Authentication, ClientConfig
from pulsar_native.cli.connection import Connection, add_arguments, connection_of, read_client_conf
from pulsar_native.cli.errors import UsageError

TOKEN = "eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl"


def made(*arguments: str, **environment: str) -> Connection:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return connection_of(parser.parse_args(arguments), environment)


def token_of(connection: Connection) -> str:
    assert isinstance(connection.config.authentication, Authentication)
    return connection.config.authentication.auth_data().decode()


def conf(folder: Path, *lines: str) -> str:
    path = folder / "client.conf"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_connection_without_options_is_local() -> None:
    found = made()
    assert found.config.service_url == "pulsar://localhost:6650"
    assert found.config.authentication is None and found.admin() is None
    assert found.config.tls_validate_hostname and not found.config.tls_allow_insecure_connection


def test_option_precedes_environment_and_file(tmp_path: Path) -> None:
    path = conf(tmp_path, "brokerServiceUrl=pulsar://conf:1", "webServiceUrl=http://conf:2/")
    assert made("--client-conf", path).config.service_url == "pulsar://conf:1"
    assert made(PULSAR_CLIENT_CONF=path).admin_url == "http://conf:2"
    env = {"PULSAR_CLIENT_CONF": path, "PULSAR_SERVICE_URL": "pulsar://env:1", "PULSAR_ADMIN_URL": "http://env:2"}
    assert made(**env).config.service_url == "pulsar://env:1"
    found = made("--url", "pulsar://option:1", "--admin-url", "http://option:2", **env)
    assert (found.config.service_url, found.admin_url) == ("pulsar://option:1", "http://option:2")


def test_client_conf_sets_authentication_and_tls(tmp_path: Path) -> None:
    found = made("--client-conf", conf(
        tmp_path, "# a comment", "! another", "", "authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken",
        f"authParams=token:{TOKEN}", "tlsTrustCertsFilePath=/ca.pem", "tlsEnableHostnameVerification=false",
        "tlsAllowInsecureConnection=true", "proxyServiceUrl=",
    ))  # fmt: skip
    assert token_of(found) == TOKEN
    assert found.config.tls_trust_certs_file_path == "/ca.pem"
    assert found.config.tls_allow_insecure_connection and not found.config.tls_validate_hostname
    assert found.redact(f"refused: {TOKEN}") == "refused: ***"
    assert TOKEN not in repr(found)


@pytest.mark.parametrize(
    ("lines", "url"),
    [
        (["webServiceUrl=https://web:8443/"], "https://web:8443/"),
        (["webServiceUrl=http://web:8080", "brokerServiceUrl="], "http://web:8080"),
        (["serviceUrl=pulsar://old:1"], "pulsar://old:1"),
        (["serviceUrl=pulsar://old:1", "webServiceUrl=http://web:8080"], "http://web:8080"),
        (["webServiceUrl=http://web:8080", "brokerServiceUrl=pulsar://broker:1"], "pulsar://broker:1"),
    ],
    ids=["web", "broker-empty", "old", "web-before-old", "broker-first"],
)
def test_client_conf_service_url_as_pulsar_client(lines: Sequence[str], url: str, tmp_path: Path) -> None:
    path = conf(tmp_path, *lines)
    assert made("--client-conf", path).config.service_url == url
    assert made("--client-conf", path, PULSAR_SERVICE_URL="pulsar://env:1").config.service_url == "pulsar://env:1"


def test_client_conf_sets_sni_proxy(tmp_path: Path) -> None:
    path = conf(tmp_path, "brokerServiceUrl=pulsar+ssl://a", "proxyServiceUrl=pulsar+ssl://p:1", "proxyProtocol=SNI")
    assert made("--client-conf", path).config.proxy_service_url == "pulsar+ssl://p:1"
    with pytest.raises(UsageError, match=r"must begin with pulsar\+ssl://, not pulsar://"):
        made("--client-conf", path, "--url", "pulsar://a")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["proxyServiceUrl=pulsar+ssl://p:1", "proxyProtocol=HTTP"], "sets proxyProtocol to something else than SNI"),
        (["useKeyStoreTls=true"], "key stores are Java's"),
        (["brokerServiceUrl=pulsar://a:1", f"token {TOKEN}"], "line 2 of .* is not NAME=VALUE"),
    ],
)
def test_client_conf_unusable_raises(lines: Sequence[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        read_client_conf(conf(tmp_path, *lines))
    assert TOKEN not in str(raised.value)


def test_client_conf_missing_raises(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--client-conf: .*/none cannot be read: No such file"):
        made("--client-conf", str(tmp_path / "none"))


def test_token_by_file_and_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a token"
    file.write_text(f"{TOKEN}\n")
    monkeypatch.setenv("MY_TOKEN", "of.the.variable")
    monkeypatch.setenv("PULSAR_TOKEN", "of.the.standard")
    assert token_of(made("--token-file", str(file))) == TOKEN
    assert token_of(made("--token-env", "MY_TOKEN", PULSAR_TOKEN_FILE=str(file))) == "of.the.variable"
    assert token_of(made(PULSAR_TOKEN_FILE=str(file))) == TOKEN
    assert token_of(made(PULSAR_TOKEN="of.the.standard")) == "of.the.standard"


def test_plugin_with_parameters_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "parameters"
    file.write_text('{"username": "u", "password": "pass-word"}\n')
    found = made("--auth-plugin", "basic", "--auth-params-file", str(file))
    assert token_of(found) == "u:pass-word"
    assert "pass-word" not in found.redact("u:pass-word")


@pytest.mark.parametrize("secrets", [None, [None, 5], RuntimeError("very-secret")], ids=repr)
def test_redact_odd_secrets_keeps_text(secrets: Any) -> None:
    class Odd(Authentication):
        def secrets(self) -> list[str]:
            if isinstance(secrets, BaseException):
                raise secrets
            return secrets  # type: ignore[no-any-return]

    assert Connection(ClientConfig(service_url="pulsar://a", authentication=Odd())).redact("refused") == "refused"


def test_certificate_alone_authenticates() -> None:
    found = made("--tls-cert", "/c.pem", "--tls-key", "/k.pem", "--url", "pulsar+ssl://a:1")
    assert isinstance(found.config.authentication, Authentication)
    assert found.config.authentication.tls_certificate() == ("/c.pem", "/k.pem")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "kafka://a:1"], "kafka"),
        (["--admin-url", "pulsar://a:1"], "The admin URL has the scheme .pulsar."),
        (["--timeout", "0"], "--timeout must be more than 0"),
        (["--tls-cert", "/c.pem"], "--tls-cert and --tls-key belong together"),
        (["--token-file", "/t", "--token-env", "T"], "give one of --token-file and --token-env"),
        (["--auth-params-file", "/p"], "--auth-params-file needs --auth-plugin"),
        (["--auth-plugin", "token", "--auth-params-file", "/none"], "--auth-params-file: /none cannot be read"),
        (
            ["--tls-trust-certs", "/ca.pem"],
            "--tls-trust-certs is for TLS, and the connection to pulsar://localhost:6650",
        ),
        (
            ["--tls-cert", "/c", "--tls-key", "/k", "--url", "http://a:1"],
            "--tls-cert is for TLS, .* http://a:1 has none",
        ),
        (["--tls-insecure", "--url", "pulsar://a", "--admin-url", "http://a:1"], "--tls-insecure is for TLS"),
        (
            ["--tls-insecure", "--tls-trust-certs", "/ca.pem", "--url", "pulsar+ssl://a:1"],
            "--tls-insecure accepts any certificate: give it or --tls-trust-certs, not both",
        ),
    ],
)
def test_wrong_option_raises_usage_error(arguments: Sequence[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        made(*arguments)


@pytest.mark.parametrize("urls", [["--url", "https://a:1"], ["--admin-url", "HTTPS://a:1"]], ids=["web", "admin"])
def test_tls_option_needs_one_url_with_tls(urls: Sequence[str]) -> None:
    assert made("--tls-insecure", *urls).config.tls_allow_insecure_connection


def test_tls_of_variable_and_file_fits_any_url(tmp_path: Path) -> None:
    path = conf(tmp_path, "tlsCertificateFilePath=/c.pem", "tlsKeyFilePath=/k.pem", "tlsAllowInsecureConnection=true")
    found = made("--url", "pulsar://a:1", PULSAR_CLIENT_CONF=path, PULSAR_TLS_TRUST_CERTS="/ca.pem")
    assert (found.config.service_url, found.config.tls_trust_certs_file_path) == ("pulsar://a:1", "/ca.pem")


@pytest.mark.parametrize("option", ["--token", "--auth-params", "--password"])
def test_secret_as_argument_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        made(option, TOKEN)
    told = capsys.readouterr().err
    assert f"{option} would show a secret" in told and TOKEN not in told


def test_admin_needed_and_missing_raises() -> None:
    with pytest.raises(UsageError, match="lag needs the admin interface: give --admin-url, or PULSAR_ADMIN_URL"):
        made().needed_admin("lag")
