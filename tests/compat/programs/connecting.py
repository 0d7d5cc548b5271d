"""Service URLs, time-outs, authentication, TLS, look-ups over HTTP and logging."""

from __future__ import annotations

import base64
import http.server
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from compat.program import Env, Observed, program


@program()
def use_tls_is_ignored(pulsar: ModuleType, env: Env) -> Observed:
    return {"sent": env.client(use_tls=True).create_producer(env.topic()).send(b"x").entry_id()}


@program()
def several_hosts(pulsar: ModuleType, env: Env) -> Observed:
    url = env.service_url.replace("pulsar://", "pulsar://127.0.0.1:1,")
    producers = [env.client(url).create_producer(env.topic(str(number))) for number in range(2)]
    return {"sent": [each.send(b"x").entry_id() for each in producers]}


@program()
def service_info(pulsar: ModuleType, env: Env) -> Observed:
    info = pulsar.Client("pulsar://localhost:6650").get_service_info()
    secure = pulsar.Client("pulsar+ssl://localhost:6651", tls_trust_certs_file_path="/ca.pem").get_service_info()
    return {
        "plain": [info.service_url, info.use_tls],
        "secure": [secure.service_url, secure.use_tls, secure.tls_trust_certs_file_path],
        "type": isinstance(info, pulsar.ServiceInfo),
        "repr": repr(secure),
    }


@program()
def refused_port(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client("pulsar://127.0.0.1:1", operation_timeout_seconds=2)
    began = time.monotonic()
    error = env.error(lambda: client.create_producer("t"))
    return {"error": error, "in time": 1 < time.monotonic() - began < 5}


@program()
def silent_server(pulsar: ModuleType, env: Env) -> Observed:
    server = socket.create_server(("127.0.0.1", 0))
    url = f"pulsar://127.0.0.1:{server.getsockname()[1]}"
    client = env.client(url, operation_timeout_seconds=6, connection_timeout_ms=1000)
    began = time.monotonic()
    error = env.error(lambda: client.create_producer("t"))
    server.close()
    return {"error": error, "time": round(time.monotonic() - began) <= 7}


@contextmanager
def _full_backlog() -> Iterator[str]:
    """Give the address of a port whose handshakes nobody answers: a listener with a full backlog."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(0)
    address = server.getsockname()
    fillers = []
    for _ in range(8):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(address)
        fillers.append(filler)
    try:
        yield f"pulsar://127.0.0.1:{address[1]}"
    finally:
        for each in (*fillers, server):
            each.close()


@program(cases={"producer": ("producer",), "consumer": ("consumer",), "partitions": ("partitions",)})
def connect_time_out(pulsar: ModuleType, env: Env, kind: str) -> Observed:
    with _full_backlog() as url:
        client = pulsar.Client(url, connection_timeout_ms=1000, operation_timeout_seconds=8)
        calls = {
            "producer": lambda: client.create_producer("t"),
            "consumer": lambda: client.subscribe("t", "sub"),
            "partitions": lambda: client.get_topic_partitions("t"),
        }
        began = time.monotonic()
        error = env.error(calls[kind])
        seconds = time.monotonic() - began
        client.close()
    return {"error": error, "after the connect time-out": seconds < 4}


@program()
def unknown_host(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client("pulsar://host.invalid:6650", operation_timeout_seconds=3)
    began = time.monotonic()
    error = env.error(lambda: client.create_producer("t"))
    return {"error": error, "in time": time.monotonic() - began < 5}


@program()
def token_supplier(pulsar: ModuleType, env: Env) -> Observed:
    called: list[int] = []

    def supply() -> str:
        called.append(1)
        return "token"

    client = env.client(authentication=pulsar.AuthenticationToken(supply))
    sent = client.create_producer(env.topic()).send(b"x").entry_id()
    return {"sent": sent, "called": len(called) >= 1}


@program()
def token_supplier_raises(pulsar: ModuleType, env: Env) -> Observed:
    def supply() -> str:
        raise ValueError("no token today")

    client = env.client(authentication=pulsar.AuthenticationToken(supply), operation_timeout_seconds=5)
    began = time.monotonic()
    try:
        client.create_producer(env.topic())
    except Exception as error:
        return {
            "error": env.describe(error),
            "text": "no token today" in str(error),
            "soon": time.monotonic() - began < 3,
        }
    return {}


@program()
def token_supplier_of_another_type(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client(authentication=pulsar.AuthenticationToken(lambda: 5), operation_timeout_seconds=5)
    return {"error": env.error(lambda: client.create_producer(env.topic()))}


@program(cases={"garbage": ("garbage",), "empty": ("{}",), "file": (
    '{"issuer_url": "http://127.0.0.1:1", "private_key": "/nowhere/key.json"}',
)})  # fmt: skip
def oauth2(pulsar: ModuleType, env: Env, parameters: str) -> Observed:
    made = env.error(lambda: pulsar.AuthenticationOauth2(parameters))
    if made is not None:
        return {"made": made}
    client = env.client(authentication=pulsar.AuthenticationOauth2(parameters), operation_timeout_seconds=5)
    began = time.monotonic()
    error = env.error(lambda: client.create_producer(env.topic()))
    return {"made": None, "error": error, "soon": time.monotonic() - began < 4}


@program()
def client_certificate_missing(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client(
        env.service_url.replace("pulsar://", "pulsar+ssl://"), operation_timeout_seconds=4,
        authentication=pulsar.AuthenticationTLS("/nowhere/cert.pem", "/nowhere/key.pem"),
        tls_allow_insecure_connection=True,
    )  # fmt: skip
    return {"error": env.error(lambda: client.create_producer(env.topic()))}


@program()
def trusted_certificates_missing(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client(
        env.service_url.replace("pulsar://", "pulsar+ssl://"), operation_timeout_seconds=4,
        tls_trust_certs_file_path="/nowhere/ca.pem",
    )  # fmt: skip
    return {"error": env.error(lambda: client.create_producer(env.topic()))}


@program(cases={"authority": ("authority",), "certificate": ("certificate",)})
def certificate_files_of_something_else(pulsar: ModuleType, env: Env, kind: str) -> Observed:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"no certificate")
        file.flush()
        options: dict[str, Any] = {"tls_trust_certs_file_path": file.name}
        if kind == "certificate":
            options = {
                "authentication": pulsar.AuthenticationTLS(file.name, file.name), "tls_allow_insecure_connection": True,
            }  # fmt: skip
        client = env.client(
            env.service_url.replace("pulsar://", "pulsar+ssl://"), operation_timeout_seconds=4, **options
        )
        return {"error": env.error(lambda: client.create_producer(env.topic()))}


@program()
def tls_to_a_plain_port(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client(env.service_url.replace("pulsar://", "pulsar+ssl://"), operation_timeout_seconds=4)
    return {"error": env.error(lambda: client.create_producer(env.topic()))}


class _Lookups(http.server.BaseHTTPRequestHandler):
    """Refuses every look-up and notes the headers."""

    seen: list[dict[str, str]]

    def do_GET(self) -> None:
        self.seen.append(dict(self.headers.items()))
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def _lookups() -> Iterator[tuple[str, list[dict[str, str]]]]:
    seen: list[dict[str, str]] = []
    handler = type("Handler", (_Lookups,), {"seen": seen})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()


@program(cases={
    "basic": ("basic",), "method": ("method",), "text": ("text",), "token": ("token",), "none": ("none",),
})  # fmt: skip
def http_lookup_headers(pulsar: ModuleType, env: Env, kind: str) -> Observed:
    kinds: dict[str, Callable[[], Any]] = {
        "basic": lambda: pulsar.AuthenticationBasic("user", "pw"),
        "method": lambda: pulsar.AuthenticationBasic("user", "pw", method="oms3.0"),
        "text": lambda: pulsar.AuthenticationBasic(auth_params_string='{"username": "u", "password": "p"}'),
        "token": lambda: pulsar.AuthenticationToken("abc"),
        "none": lambda: None,
    }
    with _lookups() as (url, seen):
        client = pulsar.Client(url, authentication=kinds[kind](), operation_timeout_seconds=4)
        error = env.error(lambda: client.create_producer("t"))
        client.close()
    header = seen[0].get("Authorization") if seen else "nothing asked"
    if header and header.startswith("Basic "):
        header = "Basic " + base64.b64decode(header[6:]).decode()
    return {"header": header, "error": error}


@program()
def http_lookup(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(env.admin_url), env.topic()
    consumer = client.subscribe(topic, "sub")
    client.create_producer(topic).send(b"x")
    partitioned = env.topic("p", partitions=2)
    return {
        "received": consumer.receive(10_000).data().decode(),
        "partitions": [env.short(each) for each in client.get_topic_partitions(partitioned)],
    }


@program()
def unknown_namespace(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client()
    return {
        "producer": env.error(lambda: client.create_producer("persistent://nobody/nowhere/t")),
        "consumer": env.error(lambda: client.subscribe("persistent://nobody/nowhere/t", "sub")),
        "partitions": env.error(lambda: client.get_topic_partitions("persistent://nobody/nowhere/t")),
    }


@program()
def partitions_of_topics(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client()
    many, one = env.topic("many", partitions=3), env.topic("one")
    names = client.get_topic_partitions(many)
    return {
        "many": [env.short(each) for each in names],
        "one": [env.short(each) for each in client.get_topic_partitions(one)],
        "type": type(names).__name__,
        "partition": [env.short(each) for each in client.get_topic_partitions(many + "-partition-1")],
    }


@program()
def python_logger(pulsar: ModuleType, env: Env) -> Observed:
    records: list[logging.LogRecord] = []

    class Gather(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger = logging.getLogger(f"compat-{time.monotonic_ns()}")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(Gather())
    client = env.client(logger=logger)
    client.create_producer(env.topic()).send(b"x")
    client.close()
    seen = list(records)
    return {
        "records": len(seen) > 0,
        "name": {each.name for each in seen} == {logger.name},
        "levels": all(each.levelno in (10, 20, 30, 40) for each in seen),
        "text": all(isinstance(each.getMessage(), str) for each in seen),
    }


@program()
def logger_level(pulsar: ModuleType, env: Env) -> Observed:
    records: list[Any] = []
    logger = logging.getLogger(f"compat-{time.monotonic_ns()}")
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign, assignment]
    logger.addHandler(handler)
    client = env.client(logger=logger)
    client.create_producer(env.topic()).send(b"x")
    client.close()
    return {"records": len(records)}


@program()
def file_logger(pulsar: ModuleType, env: Env) -> Observed:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "client.log")
        client = env.client(logger=pulsar.FileLogger(pulsar.LoggerLevel.Info, path))
        client.create_producer(env.topic()).send(b"x")
        client.close()
        written = os.path.exists(path) and os.path.getsize(path) > 0
    return {"written": written}


@program()
def logger_objects(pulsar: ModuleType, env: Env) -> Observed:
    console, file = pulsar.ConsoleLogger(), pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/tmp/x")
    return {
        "console": str(console.log_level),
        "level": str(pulsar.ConsoleLogger(pulsar.LoggerLevel.Debug).log_level),
        "file": [str(file.log_level), file.log_file],
        "client": env.error(lambda: pulsar.Client("pulsar://127.0.0.1:1", logger=console).close()),
    }


@program(own_process=True)
def console_logger(pulsar: ModuleType, env: Env) -> Observed:
    """Standard output goes into a file while the client logs."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        try:
            client = pulsar.Client(env.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Info))
            client.create_producer(env.topic()).send(b"x")
            client.close()
        finally:
            os.dup2(kept[0], 1)
        file.seek(0)
        written = file.read()
    return {"written": len(written) > 0, "level": b"INFO" in written}


@program()
def log_conf_file(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client(log_conf_file_path="/nowhere/log.conf")
    return {"sent": client.create_producer(env.topic()).send(b"x").entry_id()}


@program(own_process=True)
def service_info_provider(pulsar: ModuleType, env: Env) -> Observed:
    seen: list[str] = []

    class Provider(pulsar.ServiceInfoProvider):  # type: ignore[misc, name-defined]
        def initial_service_info(self) -> Any:
            seen.append("initial")
            return pulsar.ServiceInfo(env.service_url)

        def initialize(self, on_service_info_update: Any) -> None:
            seen.append("initialize" if callable(on_service_info_update) else "wrong")

        def close(self) -> None:
            seen.append("close")

    client = pulsar.Client(Provider())
    info = client.get_service_info().service_url == env.service_url
    sent = client.create_producer(env.topic()).send(b"x").entry_id()
    client.close()
    return {"sent": sent, "info": info, "seen": seen[:2], "closed": env.until(lambda: "close" in seen, 3)}


@program()
def service_info_provider_base(pulsar: ModuleType, env: Env) -> Observed:
    base = pulsar.ServiceInfoProvider()

    class Wrong(pulsar.ServiceInfoProvider):  # type: ignore[misc, name-defined]
        def initial_service_info(self) -> Any:
            return "pulsar://x:1"

        def initialize(self, on_service_info_update: Any) -> None:
            """Nothing to do."""

    return {
        "initial": env.error(base.initial_service_info),
        "initialize": env.error(lambda: base.initialize(print)),
        "close": base.close(),
        "wrong": env.error(lambda: pulsar.Client(Wrong()).close()),
    }


@program()
def failover_client(pulsar: ModuleType, env: Env) -> Observed:
    primary = pulsar.ServiceInfo(env.service_url)
    client = pulsar.Client(pulsar.AutoClusterFailover(primary, [primary], check_interval_ms=100))
    sent = client.create_producer(env.topic()).send(b"x").entry_id()
    info = client.get_service_info().service_url == env.service_url
    client.close()
    return {"sent": sent, "info": info}


@program()
def listener_name(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client(listener_name="nowhere", operation_timeout_seconds=4)
    return {"error": env.error(lambda: client.create_producer(env.topic()))}


@program()
def crypto_key_reader(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client()
    reader = pulsar.CryptoKeyReader("/nowhere/public.pem", "/nowhere/private.pem")
    return {
        "producer": env.error(
            lambda: client.create_producer(env.topic(), encryption_key="k", crypto_key_reader=reader).send(b"x")
        ),
        "key alone": env.error(lambda: client.create_producer(env.topic("b"), encryption_key="k").send(b"x")),
        "consumer": env.error(lambda: client.subscribe(env.topic("c"), "sub", crypto_key_reader=reader)),
    }


@program()
def encryption(pulsar: ModuleType, env: Env) -> Observed:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    client, topic = env.client(), env.topic()
    with tempfile.TemporaryDirectory() as folder:
        public, private = os.path.join(folder, "public.pem"), os.path.join(folder, "private.pem")
        with open(public, "wb") as file:
            file.write(
                key.public_key().public_bytes(
                    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
                )
            )
        with open(private, "wb") as file:
            file.write(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.TraditionalOpenSSL,
                    serialization.NoEncryption(),
                )
            )
        reader = pulsar.CryptoKeyReader(public, private)
        able = client.subscribe(topic, "able", crypto_key_reader=reader)
        consume = client.create_reader(
            topic, pulsar.MessageId.earliest, crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME
        )
        producer = client.create_producer(
            topic, encryption_key="name", crypto_key_reader=reader, compression_type=pulsar.CompressionType.LZ4
        )
        producer.send(b"secret" * 20)
        message, raw = able.receive(10_000), consume.read_next(10_000)
        context, failed = message.encryption_context(), raw.encryption_context()
        return {
            "data": message.data().decode()[:6],
            "raw": [raw.data() == b"secret" * 20, failed.is_decryption_failed()],
            "context": [
                context.algorithm(), str(context.compression_type()), context.uncompressed_message_size(),
                context.batch_size(), context.is_decryption_failed(), type(context.param()).__name__,
            ],
            "keys": [[each.key, len(each.value), each.metadata] for each in context.keys()],  # noqa: SIM118
            "text": str(context).split(", keys")[0],
            "key text": str(context.keys()[0]),
        }  # fmt: skip


@program(cases={
    "no issuer": ('{"private_key": "/x"}',), "array": ("[1]",), "no text": ("",),
    "bad key": ('{"issuer_url": "http://127.0.0.1:1", "private_key": "data:application/json;base64,xx"}',),
    "no server": ('{"issuer_url": "http://127.0.0.1:1", "client_id": "a", "client_secret": "b"}',),
})  # fmt: skip
def oauth2_at_first_use(pulsar: ModuleType, env: Env, parameters: str) -> Observed:
    client = env.client(authentication=pulsar.AuthenticationOauth2(parameters), operation_timeout_seconds=3)
    return {"error": env.error(lambda: client.create_producer(env.topic()))}


@program()
def plug_in_names(pulsar: ModuleType, env: Env) -> Observed:
    java = "org.apache.pulsar.client.impl.auth."
    made = {
        "token": "token:abc", "TOKEN": "token:abc", java + "AuthenticationToken": "token:abc",
        "basic": '{"username": "u", "password": "p"}',
        java + "AuthenticationBasic": '{"username": "u", "password": "p"}',
        "oauth2": "{}", java + "oauth2.AuthenticationOAuth2": "{}", "unknown": "x", "/nowhere/plugin.so": "x",
    }  # fmt: skip
    return {name: env.error(lambda: pulsar.Authentication(name, made[name])) for name in made}  # noqa: B023


@program(cases={
    "token": ("token", "token:abc"),
    "java token": ("org.apache.pulsar.client.impl.auth.AuthenticationToken", "token:abc"),
    "basic": ("basic", '{"username": "u", "password": "p"}'),
})  # fmt: skip
def plug_ins_over_http(pulsar: ModuleType, env: Env, name: str, parameters: str) -> Observed:
    with _lookups() as (url, seen):
        client = pulsar.Client(url, authentication=pulsar.Authentication(name, parameters), operation_timeout_seconds=4)
        env.error(lambda: client.create_producer("t"))
        client.close()
    return {"header": seen[0].get("Authorization") if seen else "nothing asked"}
