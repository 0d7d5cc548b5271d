"""HTTP lookup over the brokers' web service, for service URLs that begin with http.

Rules: hosts are tried in turn like those of the binary protocol, also after one that does not answer; a redirect (the
broker's 307 to a topic's owner) keeps the path and never goes from https to http; credentials are the plug-in's headers
and its TLS certificate. Requests run in threads, those to all hosts limited together by the operation time-out. Results
are the same as those of the binary protocol, so that callers cannot tell the difference. On the loop only.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from pulsar_native._http import REDIRECTS, HttpAnswer, exchange, kind_of, reason_of, redirected, tried_before
from pulsar_native.auth.answers import http_headers_of, on_refused, secrets_of
from pulsar_native.config import ClientConfig
from pulsar_native.engine.connection import NO_CREDENTIALS
from pulsar_native.engine.loop import Engine, to_plugin_thread
from pulsar_native.engine.service_url_provider import ServiceUrlProvider
from pulsar_native.engine.tls import TlsContexts
from pulsar_native.enums import RegexSubscriptionMode
from pulsar_native.exceptions import (
    AuthenticationError,
    ConnectError,
    LookupError,
    PulsarException,
    ReadError,
    Timeout,
    TooManyLookupRequestException,
    TopicNotFound,
)
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.key_value import definition_from_rest
from pulsar_native.service_info import Credentials
from pulsar_native.service_url import Address, ServiceUrl
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb

_MODES = {
    RegexSubscriptionMode.PersistentOnly: "PERSISTENT",
    RegexSubscriptionMode.NonPersistentOnly: "NON_PERSISTENT",
    RegexSubscriptionMode.AllTopics: "ALL",
}


class HttpLookup:
    """Lookups of one client over HTTP. On the loop only."""

    def __init__(self, engine: Engine, config: ClientConfig, service: ServiceUrlProvider) -> None:
        self._engine = engine
        self._config = config
        self._service = service
        self._tls = TlsContexts(config)

    async def broker_of(self, topic: TopicName) -> Address:
        """Return the address of the topic's broker."""
        query = {"listenerName": self._config.listener_name} if self._config.listener_name else {}
        answer = _object(await self._get(f"/lookup/v2/topic/{topic.lookup_path}", query, topic.full), topic.full)
        use_tls = self._service.use_tls
        url = answer.get("brokerUrlTls") if use_tls else answer.get("brokerUrl")
        if not isinstance(url, str) or not url:
            what = "TLS address" if use_tls else "address without TLS"
            raise LookupError(f"The broker of the topic has no {what}", topic=topic.full)
        return ServiceUrl.parse(url).addresses[0]

    async def partitions(self, topic: TopicName, auto_create: bool) -> int:
        """Return the topic's number of partitions."""
        query = {"checkAllowAutoCreation": str(auto_create).lower()}
        answer = _object(await self._get(f"/admin/v2/{topic.lookup_path}/partitions", query, topic.full), topic.full)
        count = answer.get("partitions")
        if isinstance(count, bool) or not isinstance(count, int):
            raise ReadError("The web service answered without a number of partitions", topic=topic.full)
        return count

    async def topics_of_namespace(self, namespace: str, mode: RegexSubscriptionMode) -> list[str]:
        """Return the namespace's topics, partitions each by its own name."""
        try:
            found = _parsed(await self._get(f"/admin/v2/namespaces/{namespace}/topics", {"mode": _MODES[mode]}, None))
        except TopicNotFound:
            return []
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise ReadError("The web service answered something else than a list of topics")
        return found

    async def schema(self, topic: TopicName, version: bytes | None) -> pb.CommandGetSchemaResponse:
        """Return the topic's schema in the form of the binary protocol."""
        path = f"/admin/v2/{topic.schema_path}"
        if version is not None:
            path += f"/{int.from_bytes(version, 'big', signed=True)}"
        found = _object(await self._get(path, {}, topic.full), topic.full)
        return _schema_response(topic, found)

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _get(self, path: str, query: Mapping[str, str], topic: str | None) -> HttpAnswer:
        service, loop = self._service, self._engine.loop
        info, hosts, scheme = service.info, service.hosts, service.url.scheme
        await service.begin_with(info.authentication)
        target = path + (f"?{urlencode(query)}" if query else "")
        tls = await self._tls.current(info) if scheme == "https" else None
        failure: PulsarException | None = None
        tried: list[str] = []
        deadline = time.monotonic() + self._config.operation_timeout_seconds
        for left in range(len(hosts), 0, -1):
            address = hosts.next(loop.time())
            # A host that accepts the connection and does not answer leaves the others their share of the time.
            share = (deadline - time.monotonic()) / left
            try:
                answer = await to_plugin_thread(
                    _followed, self._config, f"{scheme}://{address}", target, info.authentication, tls, share
                )
            except asyncio.CancelledError as error:
                # Of the operation time-out, perhaps: the last host's share of the time ends with it.
                error.add_note(f"no answer from {address}{tried_before(tried)}")
                raise
            except (ConnectError, Timeout) as error:
                hosts.failed(address, loop.time())
                failure = error
                failure.message += tried_before(tried)
                tried.append(str(address))
                continue
            except PulsarException as error:
                error.topic = topic
                raise
            hosts.succeeded(address)
            if answer.status == 200:
                return answer
            # In a thread, as the plug-in is called for its secrets.
            raise await to_plugin_thread(_refused, answer, topic, str(address), info.authentication)
        assert failure is not None
        failure.topic = topic
        raise failure


def _followed(
    config: ClientConfig,
    base: str,
    target: str,
    authentication: Credentials | None,
    tls: ssl.SSLContext | None,
    seconds: float,
) -> HttpAnswer:
    """Send a request to one host, follow its redirects, and return the last response. Blocks up to `seconds`."""
    deadline = time.monotonic() + seconds
    connect_deadline = time.monotonic() + config.connection_timeout_ms / 1000
    url = base + target
    for _ in range(config.max_lookup_redirects + 1):
        headers = {"Accept": "application/json"}
        if authentication is not None:
            headers |= http_headers_of(authentication)
        answer = exchange("GET", url, deadline=deadline, connect_deadline=connect_deadline, headers=headers, tls=tls)
        if answer.status not in REDIRECTS:
            return answer
        url = redirected(url, answer, target, urlsplit(url).netloc)
        connect_deadline = deadline
    raise LookupError(f"The brokers redirected the lookup more than {config.max_lookup_redirects} times")


def _refused(answer: HttpAnswer, topic: str | None, broker: str, authentication: Credentials | None) -> PulsarException:
    reason, from_broker = reason_of(answer, secrets_of(authentication))
    message = f"{reason} (HTTP {answer.status})"
    kind = kind_of(answer.status, reason, from_broker)
    if kind is not None:
        if kind is AuthenticationError:
            if authentication is None:
                message += NO_CREDENTIALS
            else:
                on_refused(authentication)
        return kind(message, topic=topic, broker=broker)
    if answer.status == 404 and from_broker:
        return TopicNotFound(message, topic=topic, broker=broker)
    if answer.status == 404:
        message += "; is the service URL that of a Pulsar broker's or proxy's web service?"
    if answer.status == 429:
        return TooManyLookupRequestException(message, topic=topic, broker=broker)
    error = LookupError(message, topic=topic, broker=broker)
    error.retryable = answer.status >= 500
    return error


# --- responses ------------------------------------------------------------------------------------------------------


def _parsed(answer: HttpAnswer, topic: str | None = None) -> object:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise ReadError(
            "The web service did not answer in JSON; is the service URL that of a Pulsar broker?", topic=topic
        ) from error


def _object(answer: HttpAnswer, topic: str) -> dict[str, Any]:
    found = _parsed(answer, topic)
    if not isinstance(found, dict):
        raise ReadError("The web service answered something else than a JSON object", topic=topic)
    return found


def _schema_response(topic: TopicName, found: dict[str, Any]) -> pb.CommandGetSchemaResponse:
    kind, data, properties = str(found.get("type")), found.get("data") or "", found.get("properties") or {}
    number = _WIRE_KINDS.get(kind.replace("_", "").lower())
    if number is None:
        raise ReadError(f"The web service names the unknown kind {kind!r} of schema", topic=topic.full)
    version = found.get("version")
    if not isinstance(data, str) or not isinstance(properties, dict):
        raise ReadError(
            "The web service answered a schema without text as data or an object as properties", topic=topic.full
        )
    try:
        return pb.CommandGetSchemaResponse(
            request_id=0,
            schema=pb.Schema(
                name=f"{topic.namespace}/{topic.local_name}",
                type=pb.Schema.Type.Name(number),
                schema_data=_key_value_data(data) if kind == "KEY_VALUE" else data.encode(),
                properties=[{"key": str(key), "value": str(value)} for key, value in properties.items()],
            ),
            schema_version=version.to_bytes(8, "big", signed=True) if isinstance(version, int) else b"",
        )
    except (OverflowError, UnicodeEncodeError) as error:
        raise ReadError("The web service answered a schema that cannot be read", topic=topic.full) from error


# The web service spells AVRO, KEY_VALUE and BOOLEAN what the protocol calls Avro, KeyValue and Bool.
_WIRE_KINDS = {name.lower(): value for name, value in pb.Schema.Type.items()} | {
    "none": 0,
    "boolean": pb.Schema.Type.Value("Bool"),
}


def _key_value_data(data: str) -> bytes:
    """Return the protocol's form of a key-value definition, which the web service returns as one JSON object."""
    try:
        return definition_from_rest(data.encode())
    except InvalidRecord as error:
        raise ReadError("The web service answered a key-value schema that cannot be read") from error
