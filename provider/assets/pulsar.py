"""Assets of topics: URIs `pulsar://host:port/tenant/namespace/topic` and `pulsar+ssl://…`.

May not do I/O nor import the client's engine. Rules: two spellings of one topic are one asset. The canonical URI has
hosts in lower case with their ports, in alphabetical order; tenant, namespace and topic each percent-encoded; no domain
for a persistent topic and `non-persistent` before the tenant for the other kind. Airflow calls the handler for every
asset of these schemes; it raises ValueError, which shows as an import error of the DAG.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from pulsar_native.exceptions import InvalidTopicName
from pulsar_native.topic import NON_PERSISTENT, PERSISTENT, TopicName

if TYPE_CHECKING:
    from airflow.sdk import Asset
    from pydantic.types import JsonValue

DEFAULT_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
# Schemes of a service URL that looks topics up over HTTP: the brokers behind it are those of the binary scheme.
_HTTP_SCHEMES = {"http": ("pulsar", 8080), "https": ("pulsar+ssl", 8443)}
_HOST = re.compile(r"(?P<host>\[[0-9a-f:.%]+\]|[^\[\]:\s]+)(:(?P<port>\d{1,5}))?")
_FORM = "write pulsar://host:6650/tenant/namespace/topic"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Return the canonical form of a topic's asset URI; raises ValueError for one that names no topic.

    The path is `/topic` (of public/default), `/tenant/namespace/topic`, either of them after `/persistent` or
    `/non-persistent`, or a whole topic name (`/persistent://tenant/namespace/topic`). Credentials, a query and a
    fragment are refused: none of them is part of a topic's identity.
    """
    if "@" in uri.netloc:
        raise ValueError("A URI of scheme pulsar must not hold credentials: they belong to the connection")
    if uri.query or uri.fragment:
        raise ValueError(
            f"A URI of scheme pulsar has no query and no fragment; a '?' or '#' of a topic is encoded: {_FORM}"
        )
    hosts = _hosts(uri.netloc, DEFAULT_PORTS.get(uri.scheme, 6650))
    return SplitResult(uri.scheme, hosts, _path(_topic_of_path(uri.path)), "", "")


def create_asset(
    *,
    topic: str,
    service_url: str | None = None,
    host: str | None = None,
    port: int | None = None,
    tls: bool = False,
    name: str | None = None,
    group: str | None = None,
    extra: dict[str, JsonValue] | None = None,
) -> Asset:
    """Return the asset of a topic.

    :param topic: the topic, in any spelling.
    :param service_url: where the brokers answer, as in the connection: pulsar://, pulsar+ssl://, or http(s)://, whose
        asset has the default port of the binary protocol. Needed unless `host` is given.
    :param host: the host instead of `service_url`.
    :param port: port of `host`, by default 6650, with `tls` 6651.
    :param tls: whether `host` is reached over TLS (default False).
    :param name: the asset's name, by default its URI.
    :param group: the asset's group, by default Airflow's.
    :param extra: the asset's extra, JSON values, by default none.

    Raises ValueError for a wrong topic or address.
    """
    from airflow.sdk import Asset

    if (service_url is None) == (host is None):
        raise ValueError("create_asset needs exactly one of service_url and host")
    if service_url is None:
        service_url = f"{'pulsar+ssl' if tls else 'pulsar'}://{host}" + (f":{port}" if port is not None else "")
    elif port is not None or tls:
        raise ValueError("port and tls belong to host; a service_url has both itself")
    given: dict[str, Any] = {"uri": topic_uri(service_url, topic), "extra": extra}
    given |= {key: value for key, value in (("name", name), ("group", group)) if value is not None}
    return Asset(**given)


def topic_uri(service_url: str, topic: str) -> str:
    """Return the canonical asset URI of a topic at a service URL; raises ValueError."""
    return f"{cluster_uri(service_url)}{_path(_parsed(topic))}"


def cluster_uri(service_url: str) -> str:
    """Return scheme, hosts and ports of a service URL in canonical form: the OpenLineage namespace of its topics."""
    parts = urlsplit(service_url)
    scheme, port = parts.scheme, DEFAULT_PORTS.get(parts.scheme)
    netloc = parts.netloc.rpartition("@")[2]
    if scheme in _HTTP_SCHEMES:
        # The port of the web service is not the broker's.
        scheme, _ = _HTTP_SCHEMES[scheme]
        port = DEFAULT_PORTS[scheme]
        netloc = ",".join(re.sub(r":\d+$", "", each) for each in netloc.split(","))
    if port is None:
        raise ValueError(f"The service URL has no scheme of Pulsar: {_FORM.removesuffix('/tenant/namespace/topic')}")
    return f"{scheme}://{_hosts(netloc, port)}"


def topic_of(uri: str) -> str:
    """Return the full topic name of an asset URI; raises ValueError."""
    parts = urlsplit(uri)
    if parts.scheme not in DEFAULT_PORTS:
        raise ValueError(f"The URI is not of scheme pulsar or pulsar+ssl: {_FORM}")
    return _topic_of_path(parts.path).full


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> Any:
    """Return the OpenLineage dataset of a topic's asset; `lineage_context` is the hook that reported it, not used.

    The namespace is scheme, host and port; the name is the full topic name, such as persistent://public/default/orders.
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset

    parts = urlsplit(asset.uri)
    return Dataset(namespace=f"{parts.scheme}://{parts.netloc}", name=topic_of(asset.uri))


def _hosts(netloc: str, default_port: int) -> str:
    found = []
    for each in netloc.split(","):
        match = _HOST.fullmatch(each.strip().lower())
        if match is None or not 0 < int(match["port"] or default_port) < 65536:
            raise ValueError(f"A URI of scheme pulsar needs a host, and a port from 1 to 65535 if any: {_FORM}")
        found.append(f"{match['host']}:{int(match['port'] or default_port)}")
    return ",".join(sorted(set(found)))


def _topic_of_path(path: str) -> TopicName:
    text = path.strip("/")
    for domain in (PERSISTENT, NON_PERSISTENT):
        if text.startswith(f"{domain}://"):
            text = f"{domain}/{text.removeprefix(f'{domain}://')}"
    parts = [unquote(part) for part in text.split("/")]
    domain = PERSISTENT
    if len(parts) in (2, 4) and parts[0] in (PERSISTENT, NON_PERSISTENT):
        domain, *parts = parts
    if len(parts) == 1:
        parts = ["public", "default", *parts]
    if len(parts) != 3 or any("/" in part for part in parts):
        raise ValueError(f"A URI of scheme pulsar names one topic: {_FORM}")
    return _parsed(f"{domain}://{'/'.join(parts)}")


def _parsed(topic: str) -> TopicName:
    try:
        return TopicName.parse(topic)
    except InvalidTopicName as error:
        raise ValueError(str(error)) from error


def _path(topic: TopicName) -> str:
    parts = [topic.tenant, topic.namespace_portion, topic.local_name]
    if not topic.is_persistent:
        parts.insert(0, NON_PERSISTENT)
    return "/" + "/".join(quote(part, safe="") for part in parts)
