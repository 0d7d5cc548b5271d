"""The hook: connections in all their forms, authentication up to real brokers, and the connection test's stages."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_pulsar.hooks import pulsar as hook_module
from airflow_provider_pulsar.hooks.pulsar import PulsarHook
from airflow_provider_pulsar.hooks.settings import EXTRA_FIELDS
from broker import Standalone, free_port
from pulsar_native import MessageId
from pulsar_native.exceptions import AuthenticationError, AuthorizationError
from pyspark_pulsar.credentials import CredentialsRef
from support.brokers import Broker, NewTopic, OwnBroker
from support.http_peer import Answer, Asked, http_peer

Connection = Callable[..., str]
URL = "pulsar://127.0.0.1:6650"


# ---- forms of a connection -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("pulsar://broker.example:6651", "pulsar://broker.example:6651"),
        ("pulsar://broker.example", "pulsar://broker.example"),
        ("pulsar://?service_url=pulsar%3A%2F%2Fa%3A1%2Cb%3A2", "pulsar://a:1,b:2"),
        ("pulsar://pulsar+ssl://broker.example:6651", "pulsar+ssl://broker.example:6651"),
        ("pulsar+ssl://broker.example:6651", "pulsar+ssl://broker.example:6651"),
        ("pulsar-ssl://broker.example:6651", "pulsar+ssl://broker.example:6651"),
        ('{"conn_type": "pulsar-ssl", "host": "broker.example", "port": 6651}', "pulsar+ssl://broker.example:6651"),
    ],
)
def test_connection_from_uri(uri: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PULSAR_DEFAULT", uri)
    assert PulsarHook().client_config().service_url == expected


def test_connection_uri_values_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_P",
        "pulsar://user:p%40ss@broker:6650/?tls_validate_hostname=false&operation_timeout_seconds=7&listener_name=inner",
    )
    config = PulsarHook("p").client_config()
    assert (config.tls_validate_hostname, config.operation_timeout_seconds, config.listener_name) == (False, 7, "inner")
    assert config.authentication is not None
    assert config.authentication.auth_data() == b"user:p@ss"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"host": "a", "port": 1}, "pulsar://a:1"),
        ({"host": "a:1,b:2"}, "pulsar://a:1,b:2"),
        ({"host": "a,b:2", "port": 1}, "pulsar://a:1,b:2"),
        ({"host": "::1", "port": 1}, "pulsar://[::1]:1"),
        ({"host": "pulsar+ssl://a", "port": 1}, "pulsar+ssl://a:1"),
        ({"service_url": "pulsar://a:1, b:2"}, "pulsar://a:1, b:2"),
        ({"service_url": "pulsar://a,b", "port": 1}, "pulsar://a:1,b:1"),
        ({"service_url": "pulsar://a:1", "port": 1, "host": ""}, "pulsar://a:1"),
    ],
)
def test_connection_host_and_port_or_service_url(fields: dict[str, Any], expected: str, connection: Connection) -> None:
    hook = PulsarHook(connection(**fields))
    assert hook.service_url() == expected
    hook.client_config().parsed_url()


def test_connection_empty_form_fields_are_defaults(connection: Connection) -> None:
    empty = {name: None if number % 2 else "" for number, name in enumerate(EXTRA_FIELDS)}
    hook = PulsarHook(connection(**{**empty, "service_url": URL}))
    config = hook.client_config()
    assert config.authentication is None
    assert config.tls_validate_hostname
    assert not config.tls_allow_insecure_connection
    assert config.operation_timeout_seconds == 30
    assert hook.get_admin() is None
    assert hook.credentials() is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "'service_url' \\(or 'host'\\) is empty"),
        ({"service_url": "http://a:1/path"}, "no usable host"),
        ({"service_url": URL, "host": "a"}, "either the field 'service_url' or the field 'host'"),
        ({"service_url": URL, "port": 7}, "'port' says 7"),
        ({"service_url": URL, "adminurl": "x"}, "no field 'adminurl'.*did you mean 'admin_url'"),
        ({"service_url": URL, "token_file": "x"}, "no field 'token_file'.*did you mean 'jwt_file'"),
        ({"service_url": URL, "pasword": "s3cret-value"}, "did you mean 'password'"),
        ({"service_url": URL, "zzz": "s3cret-value"}, "known are admin_url, "),
        ({"service_url": URL, "auth_method": "tokn"}, "'auth_method'.*did you mean 'token'"),
        ({"service_url": URL, "auth_method": "token file"}, "did you mean 'token_file'"),
        ({"service_url": URL, "auth_method": "s3cret-value"}, "one of none, token, token_file"),
        ({"service_url": URL, "auth_method": "token"}, "'token' needs the field 'token'"),
        ({"service_url": URL, "auth_method": "token_file"}, "needs the field 'jwt_file'"),
        ({"service_url": URL, "jwt_file": "relative"}, "'jwt_file' must be an absolute path"),
        ({"service_url": URL, "auth_method": "basic", "login": "me"}, "'basic' needs the field 'password'"),
        ({"service_url": URL, "auth_method": "oauth2"}, "needs the field 'oauth2_client_id'"),
        ({"service_url": URL, "auth_method": "tls"}, "needs the field 'tls_certificate_file_path'"),
        ({"service_url": URL, "token": "s3cret-value", "login": "me", "password": "x"}, "token and basic fit: choose"),
        ({"service_url": URL, "token": ["s3cret-value"]}, "'token' must be a text, not list"),
        ({"service_url": URL, "operation_timeout_seconds": 0}, "'operation_timeout_seconds' must be .* from 1 to 3600"),
        ({"service_url": URL, "operation_timeout_seconds": True}, "must be a whole number"),
        ({"service_url": URL, "operation_timeout_seconds": "9" * 5000}, "must be a whole number from 1 to 3600"),
        ({"service_url": URL, "operation_timeout_seconds": "s3cret-value"}, "from 1 to 3600, not another text"),
        ({"service_url": URL, "tls_validate_hostname": "s3cret-value"}, "must be true or false, not another text"),
        ({"service_url": URL, "tls_allow_insecure_connection": ["s3cret-value"]}, "must be true or false, not list"),
        ({"service_url": URL, "default_namespace": "s3cret-value"}, "must be tenant/namespace, such as"),
        ({"service_url": URL, "jwt_file": "/s3cret-value\0"}, "'jwt_file' has a control character"),
        ({"host": "a\0"}, "'host' has a control character"),
        ({"service_url": URL, "deployment_id": "a b"}, "'deployment_id' may have up to 64 letters"),
        ({"service_url": URL, "deployment_id": "a" * 65}, "'deployment_id' may have up to 64 letters"),
        ({"service_url": URL, "deployment": "a"}, "did you mean 'deployment_id'"),
        ({"service_url": URL, "tls_validate_hostname": "maybe"}, "'tls_validate_hostname' must be true or false"),
        ({"service_url": URL, "admin_url": "pulsar://a:1"}, "admin URL"),
        ({"service_url": URL, "tls_certificate_file_path": "/a"}, "belong together"),
        ({"service_url": URL, "tls_key_file_path": "/a"}, "and 'tls_key_file_path' .* belong together"),
        ({"conn_type": "kafka", "bootstrap.servers": "a"}, "its type is 'kafka', not 'pulsar'; there is no field"),
    ],
)
def test_connection_errors_name_field_without_value(
    fields: dict[str, Any], message: str, connection: Connection
) -> None:
    hook = PulsarHook(connection(**fields))
    with pytest.raises(AirflowException, match=message) as raised:
        hook.client_config()
    assert "pulsar_default" in str(raised.value)
    assert "s3cret-value" not in str(raised.value)
    assert hook.test_connection() == (False, f"settings failed: {raised.value}")


def test_connection_extra_not_json_raises_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"conn_type": "pulsar", "host": "a", "extra": "token: s3cret-value"}
    monkeypatch.setenv("AIRFLOW_CONN_P", json.dumps(stored))
    with pytest.raises(AirflowException, match="'extra' is not a JSON object") as raised:
        PulsarHook("p").client_config()
    assert "s3cret-value" not in str(raised.value)


def test_hook_options_have_no_secret(connection: Connection) -> None:
    fields: dict[str, Any] = {
        "service_url": URL,
        "admin_url": "http://a:1",
        "login": "me",
        "password": "s3cret-value",
        "auth_method": "basic",
        "token": "s3cret-value",
        "oauth2_client_secret": "s3cret-value",
        "oauth2_private_key": "s3cret-value",
        "spark_service_url": "pulsar://inner:6650",
        "spark_admin_url": "http://inner:8080",
        "spark_credentials_ref": "env:CREDENTIALS",
    }
    hook = PulsarHook(connection(**fields))
    options = hook.connection_options()
    assert "s3cret-value" not in repr(options) + repr(hook.client_config()) + repr(vars(hook))
    for name in ("service_url", "admin_url", "spark_service_url", "spark_admin_url", "spark_credentials_ref"):
        assert options[name] == fields[name]


SETTINGS_FIELDS = {
    *("default_namespace", "client_options", "topic_url_template"),
    *("tls_trust_certs", "tls_certificate", "tls_private_key"),
    *(field for field in EXTRA_FIELDS if field.startswith("athenz_")),
}
# One value per field, unlike the base connection's, with the fields it needs beside it.
_TLS = {"service_url": "pulsar+ssl://127.0.0.1:1"}
_OAUTH2 = {"oauth2_issuer_url": "https://issuer", "oauth2_client_id": "i", "oauth2_client_secret": "longer-secret"}
_KEY = {"oauth2_issuer_url": "https://issuer", "oauth2_private_key": '{"client_id": "i", "client_secret": "s"}'}
_CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "service_url": ({}, "pulsar://b:1"),
    "admin_url": ({}, "http://b:1"),
    "listener_name": ({}, "inner"),
    "operation_timeout_seconds": ({}, 3),
    "auth_method": ({"token": "one-token"}, "none"),
    "token": ({}, "a-token"),
    "jwt_file": ({"jwt_file": "/one"}, "/two"),
    "oauth2_issuer_url": (_OAUTH2, "https://other"),
    "oauth2_client_id": (_OAUTH2, "other"),
    "oauth2_client_secret": (_OAUTH2, "other-secret"),
    "oauth2_credentials_file": ({"oauth2_issuer_url": "https://issuer", "oauth2_credentials_file": "/one"}, "/two"),
    "oauth2_private_key": (_KEY, '{"client_id": "i", "client_secret": "t"}'),
    "oauth2_audience": (_OAUTH2, "them"),
    "oauth2_scope": (_OAUTH2, "all"),
    "tls_trust_certs_file_path": (_TLS, "/ca.pem"),
    "tls_validate_hostname": (_TLS, False),
    "tls_allow_insecure_connection": (_TLS, True),
    "tls_certificate_file_path": ({**_TLS, "tls_key_file_path": "/k", "tls_certificate_file_path": "/c"}, "/other"),
    "tls_key_file_path": ({**_TLS, "tls_key_file_path": "/k", "tls_certificate_file_path": "/c"}, "/other"),
}
_SHOWN_ONLY = {"spark_service_url", "spark_admin_url", "spark_credentials_ref"}  # test_hook_options_have_no_secret
# test_connection_test_topic, test_connection_deployment_id; the rest in test_settings.py
_TESTED = {"test_topic", "deployment_id", *SETTINGS_FIELDS}


def test_connection_fields_all_have_a_case() -> None:
    assert {*_CHANGES, *_SHOWN_ONLY, *_TESTED} == set(EXTRA_FIELDS)


@pytest.mark.parametrize("field", _CHANGES)
def test_connection_field_changes_client_config(field: str, connection: Connection) -> None:
    def observe(fields: dict[str, Any]) -> str:
        hook = PulsarHook(connection(**{"service_url": URL, **fields}))
        config = hook.client_config()
        admin = hook.get_admin()
        try:
            credentials: object = hook.credentials()
        except AirflowException as error:
            credentials = str(error)
        return f"{config!r} {credentials!r} {admin and vars(admin)['_endpoint'].urls}"

    base, value = _CHANGES[field]
    assert observe({**base, field: value}) != observe(base)


def test_connection_deployment_id(connection: Connection) -> None:
    assert PulsarHook(connection(service_url=URL)).deployment_id() is None
    assert PulsarHook(connection(service_url=URL, deployment_id=" eu-1.prod ")).deployment_id() == "eu-1.prod"


# ---- clients and authentication --------------------------------------------------------------------------------------


def test_hook_clients_connect(pulsar_conn: str, topic: NewTopic) -> None:
    hook, name = PulsarHook(pulsar_conn), topic()
    with hook.get_client() as client:
        client.create_producer(name).send(b"hello")
    admin = hook.get_admin()
    assert admin is not None
    assert admin.internal_stats(name)["entriesAddedCounter"] == 1

    async def read() -> bytes:
        hook = PulsarHook(pulsar_conn)
        async with await hook.get_async_client() as client:
            reader = await client.create_reader(name, MessageId.earliest)
            return (await reader.read_next(5000)).data()

    assert asyncio.run(read()) == b"hello"


@pytest.mark.proves("A5")
def test_hook_async_client_starts_no_thread(pulsar_conn: str, topic: NewTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread beside the loop's own executor, which resolves names and is asyncio's."""
    name, started = topic(), []
    start = threading.Thread.start

    def record(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    async def work() -> list[bytes]:
        # Airflow looks connections up in a thread of its own, which stays.
        await PulsarHook.aget_connection(pulsar_conn)
        before = {thread.name for thread in threading.enumerate()}
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", record)
            async with await PulsarHook(pulsar_conn).get_async_client() as client:
                consumer = await client.subscribe(name, "sub")
                producer = await client.create_producer(name)
                for number in range(10):
                    await producer.send(b"%d" % number)
                got = [(await consumer.receive(5000)).data() for _ in range(10)]
                started.extend({thread.name for thread in threading.enumerate()} - before)
        return got

    assert asyncio.run(work()) == [b"%d" % number for number in range(10)]
    assert {thread for thread in started if not thread.startswith("asyncio_")} == set()


def test_hook_async_connection_in_a_running_loop(secure: Connection, tmp_path: Path) -> None:
    path = tmp_path / "jwt"
    path.write_text("a-token-in-a-file")
    conn_id = secure(jwt_file=str(path))

    async def work() -> Any:
        hook = PulsarHook(conn_id)
        config = await hook.aclient_config()
        admin = await hook.aget_admin()
        return config, admin

    config, admin = asyncio.run(work())
    assert config.authentication.auth_data() == b"a-token-in-a-file"
    assert admin is not None


def test_hook_is_outdated_after_another_connection(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"service_url": URL, "auth_method": "token", "token": "one"}
    conn_id = connection("renewed", **old)

    async def work() -> list[bool]:
        hook, found = PulsarHook(conn_id), []
        await hook.aclient_config()
        for changed in ({}, {"token": "two"}, {"service_url": "pulsar://127.0.0.1:6651"}, {"no_field": "x"}):
            connection("renewed", **{**old, **changed})
            found.append(await hook.ais_outdated())
        monkeypatch.delenv("AIRFLOW_CONN_RENEWED")
        return [*found, await hook.ais_outdated()]

    # False for one that is wrong or missing, too: no client can be made of it.
    assert asyncio.run(work()) == [False, True, True, False, False]


@pytest.fixture
def secure(secure_broker: Standalone, connection: Connection) -> Connection:
    """Give what defines a connection to the broker that demands tokens."""

    def define(**fields: Any) -> str:
        given = {"service_url": secure_broker.service_url, "admin_url": secure_broker.admin_url, **fields}
        return connection("secure", **given)

    return define


def produces(conn_id: str) -> bool:
    """Return whether the connection's client can publish; refusals only are no."""
    hook = PulsarHook(conn_id)
    try:
        with hook.get_client() as client:
            client.create_producer("public/default/hook-test").send(b"x")
            admin = hook.get_admin()
            assert admin is None or admin.topics("public/default")
    except (AuthenticationError, AuthorizationError):
        return False
    return True


@pytest.mark.proves("A4")
def test_hook_token_literal_file_and_tls(secure_broker: Standalone, secure: Connection, tmp_path: Path) -> None:
    path = tmp_path / "jwt"
    path.write_text(secure_broker.token() + "\n")
    over_tls = {
        "service_url": secure_broker.service_url_tls,
        "admin_url": secure_broker.admin_url_tls,
        "tls_trust_certs_file_path": str(secure_broker.certificates.authority),
    }
    assert not produces(secure())
    assert not produces(secure(token=secure_broker.token("nobody")))
    assert not produces(secure(auth_method="none", token=secure_broker.token()))
    assert produces(secure(token=secure_broker.token()))
    assert produces(secure(auth_method="token", password=secure_broker.token()))
    assert produces(secure(auth_method="token_file", jwt_file=str(path)))
    assert produces(secure(token=secure_broker.token(), **over_tls))
    path.write_text("no-such-token")
    assert not produces(secure(jwt_file=str(path)))


@contextmanager
def token_issuer(token: str) -> Iterator[str]:
    """Give the URL of an OAuth2 issuer that gives this token for the client secret `client-secret-value`."""
    urls: list[str] = []

    def answer(asked: Asked) -> Answer:
        if asked.method == "GET":
            return Answer(body=json.dumps({"token_endpoint": f"{urls[0]}/token"}).encode())
        if b"client_secret=client-secret-value" not in asked.body:
            return Answer(401, b'{"error": "invalid_client"}')
        return Answer(body=json.dumps({"access_token": token, "expires_in": 60}).encode())

    with http_peer(answer) as peer:
        urls.append(peer.url)
        yield peer.url


@pytest.mark.proves("A4")
def test_hook_oauth2_by_secret_and_by_key(secure_broker: Standalone, secure: Connection, tmp_path: Path) -> None:
    key = json.dumps({"client_id": "me", "client_secret": "client-secret-value"})
    path = tmp_path / "key.json"
    path.write_text(key)
    with token_issuer(secure_broker.token()) as issuer:
        by_secret = {"oauth2_client_id": "me", "oauth2_client_secret": "client-secret-value"}
        for given in (by_secret, {"oauth2_private_key": key}, {"oauth2_credentials_file": str(path)}):
            assert produces(secure(oauth2_issuer_url=issuer, **given))
        refused = secure(oauth2_issuer_url=issuer, oauth2_client_id="me", oauth2_client_secret="wrong")
        assert not produces(refused)
        ok, text = PulsarHook(refused).test_connection()
        assert not ok
        assert text.startswith("TCP ok, credentials failed: The OAuth2 issuer")


@pytest.mark.proves("A4")
def test_hook_client_certificate(own_broker: OwnBroker, connection: Connection) -> None:
    broker = own_broker(tls_client_auth=True)
    fields = {
        "service_url": broker.service_url_tls,
        "tls_trust_certs_file_path": str(broker.certificates.authority),
    }
    certificate = {
        "tls_certificate_file_path": str(broker.certificates.client_certificate),
        "tls_key_file_path": str(broker.certificates.client_key),
    }
    assert produces(connection(auth_method="tls", **fields, **certificate))
    ok, text = PulsarHook(connection(**fields, auth_method="none")).test_connection()
    assert not ok, text


def test_hook_basic_authentication(connection: Connection) -> None:
    config = PulsarHook(connection(service_url=URL, login="me", password="p4ssword")).client_config()
    assert config.authentication is not None
    assert config.authentication.method_name == "basic"
    assert config.authentication.auth_data() == b"me:p4ssword"


@pytest.mark.parametrize("method", ["token", "jwt_file", "basic", "oauth2", "oauth2_file", "tls"])
def test_hook_credentials_for_the_spark_source(
    method: str, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept"
    path.write_text("a-token" if method == "jwt_file" else '{"client_id": "i", "client_secret": "longer-secret"}')
    fields: dict[str, dict[str, str]] = {
        "token": {"token": "a-token"},
        "jwt_file": {"jwt_file": str(path)},
        "basic": {"login": "me", "password": "p4ssword"},
        "oauth2": _OAUTH2,
        "oauth2_file": {"oauth2_issuer_url": "https://issuer", "oauth2_credentials_file": str(path)},
        "tls": {"tls_certificate_file_path": "/c", "tls_key_file_path": "/k", "auth_method": "tls"},
    }
    hook = PulsarHook(connection(service_url=URL, **fields[method]))
    credentials, own = hook.credentials(), hook.client_config().authentication
    path.unlink()  # the other program sees no file of this machine
    monkeypatch.setenv("KEPT", json.dumps(credentials))
    found = CredentialsRef.parse("env:KEPT").resolve()
    assert own is not None
    assert found.method_name == own.method_name
    if method in ("token", "jwt_file"):
        assert found.auth_data() == b"a-token"
    elif method == "tls":
        assert found.tls_certificate() == ("/c", "/k")
    else:
        assert {"longer-secret", "p4ssword"} & set(found.secrets())


# ---- lineage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["read", "written"])
def test_hook_lineage_of_wrong_topic_raises(side: str, connection: Connection) -> None:
    hook = PulsarHook(connection(service_url=URL))
    with pytest.raises(AirflowException, match=r"No lineage can be reported: .*a/b"):
        hook.report_lineage(**{side: ["t", "a/b"]})


# ---- masking ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A3")
def test_hook_masks_every_secret(connection: Connection, tmp_path: Path) -> None:
    from airflow.sdk._shared.secrets_masker import redact, reset_secrets_masker

    path = tmp_path / "jwt"
    path.write_text("token-of-a-file")
    key = json.dumps({"client_id": "i", "client_secret": "secret-of-the-key"})
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"token": "token-of-a-field"}, ["token-of-a-field"]),
        ({"jwt_file": str(path)}, ["token-of-a-file"]),
        ({"login": "me", "password": "p4ssword"}, ["p4ssword", base64.b64encode(b"me:p4ssword").decode()]),
        ({"oauth2_issuer_url": "https://i", "oauth2_private_key": key}, ["secret-of-the-key", base64_of(key)]),
        (_OAUTH2, ["longer-secret"]),
    ]
    for fields, secrets in cases:
        conn_id = connection(service_url=URL, **fields)
        for within_loop in (False, True):
            reset_secrets_masker()
            assert [redact(f"a {secret} b") for secret in secrets] == [f"a {secret} b" for secret in secrets]
            hook = PulsarHook(conn_id)
            if within_loop:
                asyncio.run(hook.aclient_config())
            else:
                hook.client_config()
            assert [redact(f"a {secret} b") for secret in secrets] == ["a *** b"] * len(secrets)


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("by_header", [False, True])
def test_hook_masks_fetched_token(by_header: bool, connection: Connection) -> None:
    from airflow.sdk._shared.secrets_masker import redact, reset_secrets_masker

    reset_secrets_masker()
    with token_issuer("token-that-was-fetched") as issuer:
        fields = {**_OAUTH2, "oauth2_issuer_url": issuer, "oauth2_client_secret": "client-secret-value"}
        authentication = PulsarHook(connection(service_url=URL, **fields)).client_config().authentication
        assert authentication is not None
        assert redact("token-that-was-fetched") == "token-that-was-fetched"
        if by_header:
            assert authentication.http_headers() == {"Authorization": "Bearer token-that-was-fetched"}
        else:
            assert authentication.auth_data() == b"token-that-was-fetched"
        assert redact("token-that-was-fetched") == "***"


# ---- the connection test ---------------------------------------------------------------------------------------------


def tried(conn_id: str) -> tuple[bool, str]:
    """Return what the connection test says; it has 10 seconds."""
    started = time.monotonic()
    result = PulsarHook(conn_id).test_connection()
    assert time.monotonic() - started < 10
    return result


@contextmanager
def silent_port() -> Iterator[int]:
    """Give a port that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield int(listening.getsockname()[1])


@pytest.mark.proves("A2")
def test_connection_test_all_stages_pass(broker: Broker, connection: Connection) -> None:
    assert tried(connection(service_url=broker.service_url)) == (True, "TCP ok, CONNECT ok (Pulsar 4.2.4), lookup ok")
    assert tried(connection(service_url=broker.service_url, admin_url=broker.admin_url)) == (
        True,
        "TCP ok, CONNECT ok (Pulsar 4.2.4), lookup ok, admin ok",
    )
    # Lookups over HTTP: the lookup's stage reaches the broker it names.
    assert tried(connection(service_url=broker.admin_url)) == (True, "TCP ok, lookup ok")


@pytest.mark.proves("A2")
def test_connection_test_names_failed_stage(broker: Broker, connection: Connection) -> None:
    closed = free_port()
    with silent_port() as silent:
        cases = [
            ({"service_url": "ftp://127.0.0.1:1"}, "settings failed: .*scheme 'ftp' is not known"),
            ({"service_url": "pulsar://no-such-host.invalid"}, "resolve failed: .*no-such-host.invalid"),
            ({"service_url": f"pulsar://127.0.0.1:{closed}"}, f"TCP failed: Cannot connect to 127.0.0.1:{closed}"),
            ({"service_url": f"pulsar://127.0.0.1:{silent}"}, "TCP ok, CONNECT failed: no answer within"),
            ({"service_url": f"pulsar+ssl://127.0.0.1:{silent}"}, "TCP ok, TLS failed: no answer within"),
            ({"service_url": broker.service_url.replace(":", "+ssl:", 1)}, "TCP ok, TLS failed: TLS with"),
            ({"service_url": broker.admin_url.replace("http", "pulsar")}, "TCP ok, CONNECT failed: .*binary port"),
            ({"service_url": broker.service_url, "jwt_file": "/none"}, "TCP ok, credentials failed: .*file:///none"),
            (
                {"service_url": broker.service_url, "admin_url": f"http://127.0.0.1:{closed}"},
                "TCP ok, CONNECT ok .*, lookup ok, admin failed: ",
            ),
            (
                {"service_url": broker.service_url, "admin_url": f"http://127.0.0.1:{silent}"},
                "TCP ok, CONNECT ok .*, lookup ok, admin failed: no answer within",
            ),
        ]
        for fields, expected in cases:
            ok, text = tried(connection(**fields))
            assert not ok
            assert re_match(expected, text), text


def re_match(pattern: str, text: str) -> bool:
    import re

    return re.match(pattern, text) is not None


@pytest.mark.proves("A2")
def test_connection_test_refused_credentials(secure_broker: Standalone, secure: Connection) -> None:
    refused = "TCP ok, authentication failed: The broker refused the credentials"
    missing = "no credentials were given: set authentication"
    assert tried(secure()) == (False, f"{refused}: Failed to authenticate; {missing}")
    ok, text = tried(secure(token=secure_broker.token()[:-4] + "AAAA"))
    assert not ok
    assert text.startswith(refused) and missing not in text
    tls = secure_broker.service_url_tls
    ok, text = tried(secure(service_url=tls, token=secure_broker.token()))
    assert not ok
    assert re_match("TCP ok, TLS failed: .*CERTIFICATE_VERIFY_FAILED", text), text
    authority = str(secure_broker.certificates.authority)
    assert tried(secure(service_url=tls, token=secure_broker.token(), tls_trust_certs_file_path=authority)) == (
        True,
        "TCP ok, TLS ok, CONNECT ok (Pulsar 4.2.4), lookup ok, admin ok",
    )


def test_connection_test_topic(broker: Broker, secure_broker: Standalone, connection: Connection) -> None:
    ok, text = tried(connection(service_url=broker.service_url, test_topic="public/no-such-namespace/x"))
    assert not ok
    assert re_match("TCP ok, CONNECT ok .*, lookup failed: ", text), text
    # A role without any rights: known to the broker, but not allowed to look anything up.
    nobody = {"service_url": secure_broker.service_url, "token": secure_broker.token("nobody")}
    ok, text = tried(connection(**nobody))
    assert ok, text
    assert "lookup ok (answered, but not allowed for persistent://public/default/connection-test)" in text
    ok, text = tried(connection(**nobody, test_topic="public/default/mine"))
    assert not ok
    assert "lookup failed: " in text


def test_connection_test_topic_in_default_namespace(broker: Broker, connection: Connection) -> None:
    space = {"default_namespace": "public/no-such-namespace", "test_topic": "x"}
    ok, text = tried(connection(service_url=broker.service_url, **space))
    assert not ok
    assert "lookup failed: " in text


def test_connection_test_one_host_of_several_passes(broker: Broker, connection: Connection) -> None:
    closed = free_port()
    with silent_port() as silent:
        hosts = f"127.0.0.1:{closed},{broker.service_url.partition('://')[2]},127.0.0.1:{silent}"
        ok, text = tried(connection(service_url=f"pulsar://{hosts}"))
        assert ok, text
        assert f"127.0.0.1:{closed}: TCP failed" in text
        assert f"127.0.0.1:{silent}: CONNECT failed" in text


def test_connection_test_with_and_without_loop(pulsar_conn: str) -> None:
    async def within() -> tuple[bool, str]:
        return PulsarHook(pulsar_conn).test_connection()

    assert asyncio.run(within())[0]


def test_hook_constructor_has_no_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_module, "read_settings", lambda _: pytest.fail("read"))
    assert PulsarHook("no_such_connection").pulsar_conn_id == "no_such_connection"


def test_hook_missing_connection_is_airflows_error() -> None:
    with pytest.raises(AirflowException, match="no_such_connection"):
        PulsarHook("no_such_connection").get_client()
