"""Connection fields for places without files: PEM texts, Athenz; default namespace, client options, topic page."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import airflow.sdk
import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_pulsar import credentials_file
from airflow_provider_pulsar.get_provider_info import get_provider_info
from airflow_provider_pulsar.hooks.pulsar import PulsarHook
from airflow_provider_pulsar.hooks.settings import CLIENT_OPTIONS
from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from airflow_provider_pulsar.operators.publish import PublishOperator
from airflow_provider_pulsar.sensors.message import MessageSensor
from airflow_provider_pulsar.sensors.topic import TopicSensor
from airflow_provider_pulsar.triggers.message import MessageTrigger
from airflow_provider_pulsar.triggers.msg_queue import PulsarMessageQueueTrigger
from airflow_provider_pulsar.triggers.topic import TopicTrigger
from broker import Standalone
from pulsar_native import AdminClient, ClientConfig
from support.brokers import Broker
from support.http_peer import Answer, http_peer
from support.publish_tasks import read_all
from support.tasks import context_of

Connection = Callable[..., str]
URL = "pulsar://127.0.0.1:1"
# No key of anything: only its form matters where it is used.
_BODY = base64.b64encode(bytes(range(120))).decode()
CERTIFICATE = f"-----BEGIN CERTIFICATE-----\n{_BODY[:64]}\n{_BODY[64:128]}\n{_BODY[128:]}\n-----END CERTIFICATE-----\n"
KEY = CERTIFICATE.replace("CERTIFICATE", "PRIVATE KEY")


# ---- PEM texts -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A2", "A4")
@pytest.mark.parametrize("joined", [False, True])
def test_pem_text_of_authority_connects(secure_broker: Standalone, connection: Connection, joined: bool) -> None:
    text = secure_broker.certificates.authority.read_text()
    fields = {
        "service_url": secure_broker.service_url_tls,
        "admin_url": secure_broker.admin_url,
        "token": secure_broker.token(),
        # As a one-line field of a form leaves it.
        "tls_trust_certs": text.replace("\n", " ") if joined else text,
    }
    hook = PulsarHook(connection(**fields))
    ok, found = hook.test_connection()
    assert ok, found
    path = hook.client_config().tls_trust_certs_file_path
    assert path is not None and stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert Path(path).read_text().strip() == text.strip()
    del fields["tls_trust_certs"]
    assert not PulsarHook(connection(**fields)).test_connection()[0]


@pytest.mark.parametrize("spell", [str, lambda text: text.replace("\n", "\\n"), lambda text: text.replace("\n", "")])
def test_pem_texts_of_client_certificate(spell: Callable[[str], str], connection: Connection) -> None:
    fields = {"service_url": "pulsar+ssl://127.0.0.1:1"}
    hook = PulsarHook(connection(**fields, tls_certificate=spell(CERTIFICATE), tls_private_key=spell(KEY)))
    config = hook.client_config()
    assert config.authentication is not None and config.authentication.method_name == "tls"
    certificate, key = config.authentication.tls_certificate() or ("", "")
    assert (Path(certificate).read_text(), Path(key).read_text()) == (CERTIFICATE, KEY)
    # The same text is one file, and neither text is in what is shown.
    assert (PulsarHook().client_config().authentication or config.authentication).tls_certificate() == (
        certificate,
        key,
    )
    assert _BODY[:20] not in repr(hook.connection_options()) + repr(config) + repr(vars(hook))


@pytest.mark.usefixtures("own_folder")
def test_pem_texts_are_not_written_in_the_loop(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    write, in_loop = credentials_file.write, []

    def record(*arguments: str) -> Path:
        in_loop.append(asyncio._get_running_loop() is not None)
        return write(*arguments)

    monkeypatch.setattr(credentials_file, "write", record)
    hook = PulsarHook(connection(service_url="pulsar+ssl://h:1", tls_trust_certs=CERTIFICATE))
    path = asyncio.run(hook.aclient_config()).tls_trust_certs_file_path
    assert path is not None and Path(path).read_text() == CERTIFICATE
    assert in_loop == [False]


@pytest.mark.proves("A3")
def test_pem_private_keys_are_masked(connection: Connection) -> None:
    from airflow.sdk._shared.secrets_masker import redact, reset_secrets_masker

    reset_secrets_masker()
    for name in ("tls_private_key", "athenz_private_key"):
        assert redact({name: KEY}) == {name: "***"}
    more = {"tls_certificate": CERTIFICATE, "tls_private_key": KEY}
    PulsarHook(connection(service_url="pulsar+ssl://h:1", **more)).client_config()
    assert _BODY[:64] not in str(redact(f"the key {KEY}"))


def test_pem_files_end_with_their_process(tmp_path: Path) -> None:
    code = "from airflow_provider_pulsar import credentials_file as f; print(f.keep_pem('text'), f.keep_pem('text'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.split()[-2:]
    assert first == second and not Path(first).exists()
    kept = credentials_file.keep_pem("another")
    credentials_file.remove_stale()
    assert kept.read_text() == "another"


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of credentials for this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(credentials_file, "_kept", {})
    return credentials_file.folder()


def test_pem_file_of_forked_child_ends_with_it(own_folder: Path) -> None:
    # Airflow's task process clears what its parent has registered.
    code = """
import atexit, os
from airflow_provider_pulsar import credentials_file
credentials_file.keep_pem("text")
if (pid := os.fork()) == 0:
    atexit._clear()
    print(credentials_file.keep_pem("text"), flush=True)
    atexit._run_exitfuncs()
    os._exit(0)
os.waitpid(pid, 0)
print(*credentials_file.folder().glob(f"*_{pid}_*"), "left")
"""
    environment = {**os.environ, "TMPDIR": str(own_folder.parent)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    written, left = done.stdout.split()[-2:]
    assert left == "left" and written.startswith(str(own_folder)) and not Path(written).exists()
    assert not list(own_folder.iterdir())


def test_pem_file_full_disk_raises_and_leaves_none(
    own_folder: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    fdopen = os.fdopen

    def full(descriptor: int, mode: str) -> Any:
        fdopen(descriptor, mode).close()
        # The system's device that is always full.
        return open("/dev/full", mode)

    monkeypatch.setattr(credentials_file.os, "fdopen", full)
    hook = PulsarHook(connection(service_url="pulsar+ssl://h:1", tls_trust_certs=CERTIFICATE))
    message = f"credentials cannot be kept in {own_folder.parent}: .*No space left"
    with pytest.raises(AirflowException, match=message):
        hook.client_config()
    passed, found = hook.test_connection()
    assert not passed and re.match(f"settings failed: .*{message}", found)
    assert not list(own_folder.iterdir())


def test_remove_stale_passes_what_is_no_file(own_folder: Path) -> None:
    stale = f"{credentials_file._host()}_{2**22 + 1}_1_{'0' * 16}"
    (own_folder / f"{stale}.pem").mkdir()
    (own_folder / f"{stale}.json").touch()
    assert credentials_file.write("text").read_text() == "text"
    assert not (own_folder / f"{stale}.json").exists()


def test_start_of_process_that_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_path: Path) -> str:
        raise ProcessLookupError(3, "No such process")

    monkeypatch.setattr(Path, "read_text", gone)
    assert credentials_file._start_of(1) == "ended"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tls_trust_certs": "/path/ca.pem"}, "'tls_trust_certs' must be the text of a PEM file"),
        ({"tls_trust_certs": KEY}, "from -----BEGIN CERTIFICATE-----"),
        ({"tls_private_key": CERTIFICATE}, "from -----BEGIN PRIVATE KEY-----"),
        ({"tls_trust_certs": CERTIFICATE, "tls_trust_certs_file_path": "/ca.pem"}, "not both"),
        ({"tls_private_key": KEY.replace(_BODY[:8], "Proc-Ty:")}, "no base64 text, or one with a password"),
        ({"jwt_file": KEY}, "'jwt_file' must be the path of a file, not its content"),
        ({"oauth2_credentials_file": "data:,{}"}, "'oauth2_credentials_file' must be the path of a file"),
        ({"athenz_key_file_path": KEY}, "'athenz_key_file_path' must be the path of a file"),
        ({"tls_trust_certs_file_path": KEY}, "'tls_trust_certs_file_path' must be the path of a file"),
        ({"tls_certificate": CERTIFICATE}, "belong together"),
        ({"tls_private_key": KEY}, r"\(or 'tls_private_key'\) belong together"),
        ({"auth_method": "athenz"}, "needs the field 'athenz_key_file_path'"),
        ({"auth_method": "athenz", "athenz_private_key": KEY}, "needs the field 'athenz_tenant_domain'"),
        ({"default_namespace": "public"}, "must be tenant/namespace"),
        ({"default_namespace": "a/b/c"}, "must be tenant/namespace"),
        ({"client_options": "{"}, "must be a JSON object"),
        ({"client_options": ["memory_limit_bytes"]}, "must be a JSON object"),
        ({"client_options": {"memory_limit": 1}}, "did you mean 'memory_limit_bytes'"),
        ({"client_options": {"listener_name": "x"}}, "it is a field of its own"),
        ({"client_options": {"authentication": "token:s3cret"}}, "has no option 'authentication'"),
        ({"client_options": {"connections_per_broker": "two"}}, "connections_per_broker"),
        ({"client_options": {"socks5_proxy_address": "me:s3cret@p:1"}}, "socks5_proxy_address must be host:port"),
        ({"client_options": {"socks5_proxy_password": "s3cret"}}, "has no option 'socks5_proxy_password'"),
        ({"client_options": {"proxy_service_url": "pulsar+ssl://p:1"}}, "the service URL must begin with pulsar.ssl"),
        ({"client_options": {"connections_per_broker": 1.5}}, "connections_per_broker must be an int"),
        ({"topic_url_template": "ftp://console/{topic}"}, "must begin with http"),
        ({"topic_url_template": "https://console/{name}"}, "unknown name {name}"),
        ({"topic_url_template": "https://u:s3cret@console/{topic}"}, "'topic_url_template' must not hold credentials"),
        ({"service_url": "pulsar://u:s3cret@h:1"}, "'service_url': .* must not hold credentials"),
        ({"service_url": "pulsar://h:1?token=s3cret"}, "'service_url': .* must not have a query .* as fields"),
        ({"admin_url": "http://u:s3cret@h:1"}, "'admin_url': .* must not hold credentials"),
        ({"spark_credentials_ref": "s3cret"}, "'spark_credentials_ref' must be env:NAME"),
        ({"spark_credentials_ref": "token:s3cret"}, "'spark_credentials_ref' must be env:NAME"),
        ({"spark_credentials_ref": "env:"}, "'spark_credentials_ref' must be env:NAME"),
        ({"spark_service_url": "pulsar://u:s3cret@h:1"}, "'spark_service_url': .* must not hold credentials"),
        ({"spark_admin_url": "http://u:s3cret@h:1"}, "'spark_admin_url': .* must not hold credentials"),
    ],
)
def test_connection_new_fields_wrong_values_raise(fields: dict[str, Any], message: str, connection: Connection) -> None:
    with pytest.raises(AirflowException, match=message) as caught:
        PulsarHook(connection(**{"service_url": URL, **fields})).client_config()
    assert "s3cret" not in str(caught.value) and _BODY[:20] not in str(caught.value)


def test_connection_half_surrogate_raises() -> None:
    fields = {"service_url": URL, "oauth2_issuer_url": "http://i", "oauth2_private_key": "s3cret\ud800"}
    read = airflow.sdk.Connection(conn_id="c", conn_type="pulsar", extra=json.dumps(fields))
    with pytest.raises(AirflowException, match="'oauth2_private_key' has half of a surrogate pair"):
        PulsarHook.of(read)


# ---- Athenz ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("A4")
@pytest.mark.parametrize(("by_path", "by_header"), [(False, False), (True, True)])
def test_athenz_role_token_from_connection(
    by_path: bool, by_header: bool, connection: Connection, tmp_path: Path
) -> None:
    from airflow.sdk._shared.secrets_masker import redact, reset_secrets_masker
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(encoding, form, serialization.NoEncryption()).decode()
    path = tmp_path / "key.pem"
    path.write_text(pem)
    given = {"athenz_key_file_path": str(path)} if by_path else {"athenz_private_key": pem.replace("\n", " ")}
    answer = {"token": "v=Z1;d=the-role", "expiryTime": int(time.time()) + 7200}
    reset_secrets_masker()
    with http_peer(lambda asked: Answer(body=json.dumps(answer).encode())) as zts:
        hook = PulsarHook(
            connection(
                service_url=URL,
                athenz_tenant_domain="tenant.one",
                athenz_tenant_service="loader",
                athenz_provider_domain="provider.two",
                athenz_zts_url=zts.url,
                athenz_key_id="7",
                **given,
            )
        )
        plugin = hook.client_config().authentication
        assert plugin is not None and plugin.method_name == "athenz"
        assert "the-role" in str(redact("sent v=Z1;d=the-role"))
        found = [*plugin.http_headers().values()] if by_header else [plugin.auth_data().decode()]
        assert found == ["v=Z1;d=the-role"]
        assert "the-role" not in str(redact("sent v=Z1;d=the-role"))
        assert ";k=7;" in zts.asked[0].headers["Athenz-Principal-Auth"]
    with pytest.raises(
        AirflowException, match=r"of another method \(token, basic, oauth2, tls\).*spark_credentials_ref"
    ):
        hook.credentials()


# ---- names, options, forms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("orders", "persistent://sales/eu/orders"),
        ("public/default/orders", "public/default/orders"),
        ("non-persistent://a/b/c", "non-persistent://a/b/c"),
        (" ", " "),
    ],
)
def test_default_namespace_names_short_topics(topic: str, name: str, connection: Connection) -> None:
    assert PulsarHook(connection(service_url=URL, default_namespace="sales/eu")).topic_name(topic) == name
    assert PulsarHook(connection(service_url=URL)).topic_name(topic) == topic


@pytest.mark.proves("A1")
def test_default_namespace_holds_in_operators(
    broker: Broker, connection: Connection, namespace: Callable[[], str], tmp_path: Path
) -> None:
    space = namespace()
    connection(service_url=broker.service_url, admin_url=broker.admin_url, default_namespace=space)
    publish = PublishOperator(task_id="p", topic="short", messages=[1], deduplicate=False)
    assert publish.execute(context_of())["topic"] == f"persistent://{space}/short"
    assert [each.data() for each in read_all(broker, f"persistent://{space}/short")] == [b"1"]
    path = tmp_path / "out.jsonl"
    consume = ConsumeBatchOperator(task_id="c", topic=["short"], subscription="s", path=str(path))
    assert consume.execute(context_of())["topics"] == [f"persistent://{space}/short"]


@pytest.mark.proves("A1")
def test_default_namespace_holds_in_sensors_and_triggers(
    broker: Broker, connection: Connection, namespace: Callable[[], str]
) -> None:
    space = namespace()
    connection(service_url=broker.service_url, admin_url=broker.admin_url, default_namespace=space)
    full = f"persistent://{space}/sensed"
    PublishOperator(task_id="p", topic="sensed", messages=["a"], deduplicate=False).execute(context_of())
    assert TopicSensor(task_id="s", topic="sensed", messages=1).execute(context_of())["topic"] == full
    event: Any = asyncio.run(anext(TopicTrigger(topic="sensed", messages=1).run()))  # type: ignore[arg-type]
    assert event.payload["found"]["topic"] == full
    found = MessageSensor(task_id="m", topic="sensed", subscription="s").execute(context_of())
    assert (found["topic"], found["value"]) == (full, "a")
    resumed = MessageSensor(task_id="m", topic="sensed", subscription="late")
    event = asyncio.run(anext(MessageTrigger(topic="sensed", subscription="late").run()))  # type: ignore[arg-type]
    assert resumed.execute_complete(context_of(), event.payload)["topic"] == full
    with AdminClient(broker.admin_url) as admin:
        backlogs = {name: each["msgBacklog"] for name, each in admin.stats(full)["subscriptions"].items()}
    assert backlogs == {"s": 0, "late": 0}
    watcher = PulsarMessageQueueTrigger(topic="sensed", subscription="w", initial_position="earliest")
    assert asyncio.run(_first_event(watcher)).payload["topic"] == full


async def _first_event(trigger: PulsarMessageQueueTrigger) -> Any:
    async with aclosing(trigger.run()) as events:  # type: ignore[type-var]
        return await anext(events)


def test_client_options_reach_the_client(connection: Connection) -> None:
    options = {"connections_per_broker": 2, "memory_limit_bytes": 1, "socks5_proxy_address": "p:1080"}
    for given in (options, json.dumps(options)):
        config = PulsarHook(connection(service_url=URL, client_options=given)).client_config()
        assert {name: getattr(config, name) for name in options} == options


def test_client_options_are_fields_of_the_client() -> None:
    assert set(CLIENT_OPTIONS) <= set(ClientConfig.__dataclass_fields__)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("pulsar://127.0.0.1:1/sales/eu", id="uri"),
        pytest.param(json.dumps({"conn_type": "pulsar", "host": "h", "schema": "sales/eu"}), id="json"),
    ],
)
def test_connection_schema_raises(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PULSAR_DEFAULT", text)
    with pytest.raises(AirflowException, match=r"'schema' \(the path of a connection URI\).*'default_namespace'"):
        PulsarHook().client_config()
    ok, found = PulsarHook().test_connection()
    assert not ok and "default_namespace" in found


def test_connection_form_hides_schema() -> None:
    (kind,) = get_provider_info()["connection-types"]
    assert kind["ui-field-behaviour"]["hidden-fields"] == ["schema"]


def test_connection_uri_path_slash_is_no_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PULSAR_DEFAULT", "pulsar://h:1/?default_namespace=sales%2Feu")
    assert PulsarHook().topic_name("t") == "persistent://sales/eu/t"


@pytest.mark.proves("A1")
@pytest.mark.parametrize("form", ["uri", "json", "extra_text"])
def test_connection_forms_are_the_same(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {
        "service_url": "pulsar+ssl://b:6651",
        "admin_url": "https://b:8443",
        "tls_certificate": CERTIFICATE,
        "tls_private_key": KEY,
        "default_namespace": "sales/eu",
        "client_options": json.dumps({"connections_per_broker": 2}),
        "topic_url_template": "https://console/{tenant}/{topic}",
    }
    text = {
        "uri": "pulsar://?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in extra.items()),
        "json": json.dumps({"conn_type": "pulsar", "extra": extra}),
        "extra_text": json.dumps({"conn_type": "pulsar", "extra": json.dumps(extra)}),
    }[form]
    monkeypatch.setenv("AIRFLOW_CONN_PULSAR_DEFAULT", text)
    hook = PulsarHook()
    config = hook.client_config()
    assert (config.service_url, config.connections_per_broker) == ("pulsar+ssl://b:6651", 2)
    assert config.authentication is not None and config.authentication.method_name == "tls"
    assert hook.topic_name("t") == "persistent://sales/eu/t"
    assert hook.topic_url_template() == "https://console/{tenant}/{topic}"
