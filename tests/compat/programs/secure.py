"""Credentials and TLS: a broker that demands them, its plain and TLS ports, look-ups by the protocol and over HTTP.

What the official client refuses only at the end of its operation time-out has one of two seconds.
"""

from __future__ import annotations

import json
import time
from types import ModuleType
from typing import Any

from compat.program import Env, Observed, program

_JAVA = "org.apache.pulsar.client.impl.auth."
# How a client gets to the broker: which of its addresses.
_PLAIN = ("binary", "http")
_TLS = ("tls", "https")
_CHECKS = ("checked", "unchecked", "insecure")


def _url(env: Env, kind: str) -> str:
    return {"binary": env.service_url, "http": env.admin_url}.get(kind) or env.secrets[f"{kind} url"]


def _connected(pulsar: ModuleType, env: Env, kind: str, seconds: int = 10, **options: Any) -> Observed:
    """Send and receive a message, or describe the error of the first call that fails."""
    if kind in _TLS:
        options.setdefault("tls_trust_certs_file_path", env.secrets["authority"])
    client = env.client(options.pop("url", _url(env, kind)), operation_timeout_seconds=seconds, **options)
    topic, began = env.topic(), time.monotonic()
    try:
        consumer = client.subscribe(topic, "sub")
        client.create_producer(topic).send(b"x")
        return {"received": consumer.receive(10_000).data().decode()}
    except Exception as error:
        return {"error": env.describe(error), "in time": time.monotonic() - began < seconds + 2}


def _token(pulsar: ModuleType, env: Env, name: str = "token") -> Any:
    return pulsar.AuthenticationToken(env.secrets[name])


# --- TLS --------------------------------------------------------------------------------------------------------------


_TLS_CASES = [
    *(("right", host, check, "tls") for host in ("right host", "other host") for check in _CHECKS),
    *(("wrong", "right host", check, "tls") for check in _CHECKS),
    ("wrong", "other host", "checked", "tls"),
    *(("system", "right host", check, "tls") for check in ("checked", "insecure")),
    *((authority, "right host", "checked", "https") for authority in ("right", "wrong")),
    ("wrong", "right host", "insecure", "https"),
]


@program(secure=True, cases={", ".join(case): case for case in _TLS_CASES})
def tls_settings(pulsar: ModuleType, env: Env, authority: str, host: str, check: str, kind: str) -> Observed:
    # Another way to write the same address, which is not in the certificate.
    url = _url(env, kind).replace("127.0.0.1", "127.0.0.1" if host == "right host" else "127.1")
    is_refused = check != "insecure" and (authority != "right" or (host, check) == ("other host", "checked"))
    authorities = {"right": env.secrets["authority"], "wrong": env.secrets["other authority"], "system": None}
    return _connected(
        pulsar, env, kind, 2 if is_refused else 10, url=url,
        authentication=_token(pulsar, env), tls_trust_certs_file_path=authorities[authority],
        tls_validate_hostname=check == "checked", tls_allow_insecure_connection=check == "insecure",
    )  # fmt: skip


@program(secure=True, cases={kind: (kind,) for kind in _TLS})
def tls_without_credentials(pulsar: ModuleType, env: Env, kind: str) -> Observed:
    return _connected(pulsar, env, kind, 2)


# --- certificates -----------------------------------------------------------------------------------------------------


@program(secure=True, cases={
    f"{owner}{kind}": (owner, kind) for owner in ("", "other ", "nobody ") for kind in _TLS
})  # fmt: skip
def client_certificate(pulsar: ModuleType, env: Env, owner: str, kind: str) -> Observed:
    pair = env.secrets[owner + "certificate"], env.secrets[owner + "key"]
    return _connected(pulsar, env, kind, 2 if owner else 10, authentication=pulsar.AuthenticationTLS(*pair))


@program(secure=True)
def client_certificate_with_the_key_of_another(pulsar: ModuleType, env: Env) -> Observed:
    pair = env.secrets["certificate"], env.secrets["other key"]
    return _connected(pulsar, env, "tls", 2, authentication=pulsar.AuthenticationTLS(*pair))


@program(secure=True)
def client_certificate_at_a_plain_port(pulsar: ModuleType, env: Env) -> Observed:
    pair = env.secrets["certificate"], env.secrets["key"]
    return _connected(pulsar, env, "binary", 2, authentication=pulsar.AuthenticationTLS(*pair))


@program(secure=True, cases={"token": ("token",), "none": (None,)})
def client_certificate_by_paths(pulsar: ModuleType, env: Env, token: str | None) -> Observed:
    """The certificate alone does not say who the client is: the broker asks for a method."""
    own = {} if token is None else {"authentication": _token(pulsar, env, token)}
    pair = {
        "tls_certificate_file_path": env.secrets["certificate"], "tls_private_key_file_path": env.secrets["key"],
    }  # fmt: skip
    return _connected(pulsar, env, "tls", 10 if token else 2, **pair, **own)


# --- tokens -----------------------------------------------------------------------------------------------------------


@program(secure=True, cases={
    f"{name}, {kind}": (name, kind)
    for name in ("token", "nobody token", "expired token", "none", "garbage") for kind in (*_PLAIN, "https")
    if name == "token" or kind == "binary" or (kind == "http" and name != "garbage")
})  # fmt: skip
def token(pulsar: ModuleType, env: Env, name: str, kind: str) -> Observed:
    given = None if name == "none" else pulsar.AuthenticationToken(env.secrets.get(name, "very-secret"))
    return _connected(pulsar, env, kind, 10 if name == "token" else 2, authentication=given)


@program(secure=True, cases={
    f"{name}, {kind}": (name, kind) for name in ("right", "wrong", "raising") for kind in _PLAIN
    if name != "wrong" or kind == "binary"
})  # fmt: skip
def token_supplier(pulsar: ModuleType, env: Env, name: str, kind: str) -> Observed:
    called: list[int] = []

    def supply() -> str:
        called.append(1)
        if name == "raising":
            raise ValueError("no token today")
        return env.secrets["token" if name == "right" else "expired token"]

    seen = _connected(
        pulsar, env, kind, 10 if name == "right" else 2, authentication=pulsar.AuthenticationToken(supply)
    )
    return seen | {"called": len(called) > 0}


@program(secure=True)
def token_supplier_that_recovers(pulsar: ModuleType, env: Env) -> Observed:
    answers = ["expired token", "token", "token", "token"]
    auth = pulsar.AuthenticationToken(lambda: env.secrets[answers.pop(0)])
    client, topic = env.client(authentication=auth), env.topic()
    first = env.error(lambda: client.create_producer(topic))
    return {"first": first, "second": env.error(lambda: client.create_producer(topic).send(b"x"))}


@program(secure=True, cases={"token": ("token",), "nobody": ("nobody token",)})  # fmt: skip
def token_of_each_call(pulsar: ModuleType, env: Env, name: str) -> Observed:
    client, topic = env.client(authentication=_token(pulsar, env, name), operation_timeout_seconds=10), env.topic()
    return {
        "partitions": env.error(lambda: client.get_topic_partitions(topic)),
        "producer": env.error(lambda: client.create_producer(topic).close()),
        "subscribe": env.error(lambda: client.subscribe(topic, "sub").close()),
        "several": env.error(lambda: client.subscribe([topic, topic + "-2"], "several").close()),
        "reader": env.error(lambda: client.create_reader(topic, pulsar.MessageId.earliest).close()),
        "table view": env.error(lambda: client.create_table_view(topic).close()),
    }


@program(secure=True, cases={"token": ("token",), "expired": ("expired token",)})
def token_asyncio(pulsar: ModuleType, env: Env, name: str) -> Observed:
    module = env.module("asyncio")

    async def main() -> Any:
        client = module.Client(
            env.service_url,
            authentication=_token(pulsar, env, name),
            operation_timeout_seconds=10 if name == "token" else 2,
        )
        try:
            producer = await client.create_producer(env.topic())
            return (await producer.send(b"x")).entry_id()
        except Exception as error:
            return env.describe(error)
        finally:
            await client.close()

    return {"sent": env.run(main())}


# --- plug-ins by their names ------------------------------------------------------------------------------------------


@program(secure=True, cases={
    f"{name.removeprefix(_JAVA)}, {owner}{kind}": (name, owner, kind)
    for name in ("token", _JAVA + "AuthenticationToken") for owner in ("", "expired ") for kind in _PLAIN
    if not owner or (name == "token" and kind == "binary")
})  # fmt: skip
def plug_in_token(pulsar: ModuleType, env: Env, name: str, owner: str, kind: str) -> Observed:
    auth = pulsar.Authentication(name, "token:" + env.secrets[owner + "token"])
    return _connected(pulsar, env, kind, 2 if owner else 10, authentication=auth)


@program(secure=True, cases={
    f"{name.removeprefix(_JAVA)}, {owner}{kind}": (name, owner, kind)
    for name in ("tls", _JAVA + "AuthenticationTls") for owner in ("", "nobody ") for kind in _TLS
    if kind == "tls" or not owner
})  # fmt: skip
def plug_in_tls(pulsar: ModuleType, env: Env, name: str, owner: str, kind: str) -> Observed:
    pair = env.secrets[owner + "certificate"], env.secrets[owner + "key"]
    auth = pulsar.Authentication(name, "tlsCertFile:{},tlsKeyFile:{}".format(*pair))
    return _connected(pulsar, env, kind, 2 if owner else 10, authentication=auth)


# --- passwords --------------------------------------------------------------------------------------------------------


@program(secure=True, cases={
    f"{name}, {kind}": (name, kind) for name in ("right", "wrong", "unknown") for kind in (*_PLAIN, "tls")
    if name == "right" or kind == "binary" or (kind == "http" and name == "wrong")
})  # fmt: skip
def basic(pulsar: ModuleType, env: Env, name: str, kind: str) -> Observed:
    user = "someone" if name == "unknown" else "admin"
    password = "close" if name == "wrong" else env.secrets["password"]
    return _connected(
        pulsar, env, kind, 10 if name == "right" else 2, authentication=pulsar.AuthenticationBasic(user, password)
    )


@program(secure=True, cases={
    f"{name}, {kind}": (name, kind) for name in ("parameters", "plug-in", "method") for kind in _PLAIN
})  # fmt: skip
def basic_given_as(pulsar: ModuleType, env: Env, name: str, kind: str) -> Observed:
    text = json.dumps({"username": "admin", "password": env.secrets["password"]})
    made = {
        "parameters": lambda: pulsar.AuthenticationBasic(auth_params_string=text),
        "plug-in": lambda: pulsar.Authentication("basic", text),
        # No provider of the broker has this method.
        "method": lambda: pulsar.AuthenticationBasic("admin", env.secrets["password"], method="other"),
    }
    return _connected(pulsar, env, kind, 2 if name == "method" else 10, authentication=made[name]())
