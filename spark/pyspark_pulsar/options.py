"""The options of a read: names, values and what they may not hold, checked before anything connects.

Names are those of the JVM connector where it has them. Spark folds the case of names, so they are matched without it.
Rules: an unknown name is an error that tells the nearest right one; a name that could carry a secret is refused with
advice and its value is never repeated; what later versions will read is refused as such, never ignored. Does no I/O.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pulsar_native.config import ClientConfig
from pulsar_native.exceptions import InvalidConfiguration, PulsarException
from pulsar_native.service_url import ServiceUrl
from pulsar_native.topic import TopicName
from pyspark_pulsar.credentials import ADVICE, CredentialsRef
from pyspark_pulsar.positions import Offsets, parse_offsets
from pyspark_pulsar.schema import DEFAULT_COLUMNS, METADATA_COLUMNS, SOURCE_COLUMNS
from pyspark_pulsar.times import parse_time

CLIENT_PREFIX = "pulsar.client."

_NAMES = (
    "service.url",
    "admin.url",
    "topic",
    "topics",
    "topicsPattern",
    "startingOffsets",
    "endingOffsets",
    "startingTime",
    "endingTime",
    "timeSlackMs",
    "failOnDataLoss",
    "pollTimeoutMs",
    "columns",
    "includeMetadata",
    "credentialsRef",
    "subscriptionPrefix",
    "valueFormat",
    "pulsar.reader.receiverQueueSize",
)
# Understood, and refused: each with what to do instead.
_REFUSED = {
    "predefinedSubscription": "a batch read uses a non-durable reader and leaves no subscription behind; leave it out",
    "path": "load() takes no path; name the topic with option topic",
    "minPartitions": "splits inside a topic partition are not supported in this version; one task reads one partition",
    "maxEntriesPerPartition": "splits inside a topic partition are not supported in this version",
    "maxBytesPerTrigger": "streaming reads are not supported in this version",
    "waitingForNonExistedTopic": "the topic must be there when the read is planned; wait for it before, with a sensor",
    "allowDifferentTopicSchemas": "values are read as bytes, of any schema; leave it out",
    "readCompacted": "compacted reads are not supported in this version",
}
_SECRET = re.compile(r"auth|token|password|secret|credential", re.IGNORECASE)

# pulsar.client.*: the Java client's configuration names, folded, and what they are in ClientConfig.
_Setting = tuple[str, Callable[[str, str], Any]]


def _integer(name: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,18}", text.strip()):
        raise InvalidConfiguration(f"{name} must be a whole number, not {text[:60]!r}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    folded = text.strip().lower()
    if folded not in ("true", "false"):
        raise InvalidConfiguration(f"{name} must be true or false, not {text[:60]!r}")
    return folded == "true"


def _text(name: str, text: str) -> str:
    if not text.strip():
        raise InvalidConfiguration(f"{name} is empty")
    return text.strip()


def _seconds(name: str, text: str) -> float:
    return _integer(name, text) / 1000


def _nanoseconds(name: str, text: str) -> int:
    return max(1, _integer(name, text) // 1_000_000)


_CLIENT: dict[str, _Setting] = {
    "operationTimeoutMs": ("operation_timeout_seconds", _seconds),
    "connectionTimeoutMs": ("connection_timeout_ms", _integer),
    "connectionsPerBroker": ("connections_per_broker", _integer),
    "keepAliveIntervalSeconds": ("keep_alive_interval_seconds", _integer),
    "maxLookupRedirects": ("max_lookup_redirects", _integer),
    "concurrentLookupRequest": ("concurrent_lookup_requests", _integer),
    "memoryLimitBytes": ("memory_limit_bytes", _integer),
    "initialBackoffIntervalNanos": ("starting_backoff_interval_ms", _nanoseconds),
    "maxBackoffIntervalNanos": ("max_backoff_interval_ms", _nanoseconds),
    "listenerName": ("listener_name", _text),
    "useTls": ("use_tls", _flag),
    "tlsTrustCertsFilePath": ("tls_trust_certs_file_path", _text),
    "tlsAllowInsecureConnection": ("tls_allow_insecure_connection", _flag),
    "tlsHostnameVerificationEnable": ("tls_validate_hostname", _flag),
    "tlsCertificateFilePath": ("tls_certificate_file_path", _text),
    "tlsKeyFilePath": ("tls_private_key_file_path", _text),
}
_CLIENT_NAMES = tuple(CLIENT_PREFIX + name for name in _CLIENT)
_CLIENT_SETTINGS = {(CLIENT_PREFIX + name).lower(): (CLIENT_PREFIX + name, *entry) for name, entry in _CLIENT.items()}
_FOLDED = {name.lower(): name for name in (*_NAMES, *_REFUSED)}


@dataclass(frozen=True, slots=True)
class TopicsPattern:
    """Name the persistent topics of one namespace whose name matches as a whole; the expression is Python's."""

    namespace: str
    expression: str

    @staticmethod
    def parse(text: str) -> TopicsPattern:
        """Return the pattern of `expression`, `tenant/namespace/expression` or either behind `persistent://`."""
        rest = text.strip().removeprefix("persistent://")
        parts = rest.split("/", 2)
        namespace, expression = ("public/default", rest) if len(parts) < 3 else ("/".join(parts[:2]), parts[2])
        try:
            re.compile(expression)
            TopicName.parse(f"{namespace}/any")
        except (re.error, PulsarException) as error:
            raise InvalidConfiguration(f"topicsPattern {text[:80]!r}: {error}") from error
        if not expression or "://" in rest:
            raise InvalidConfiguration(f"topicsPattern {text[:80]!r}: write tenant/namespace/expression")
        return TopicsPattern(namespace, expression)

    def matches(self, topic: str) -> bool:
        """Return whether the topic (not its partition) is one of the pattern's."""
        name = TopicName.parse(topic)
        of_namespace = name.is_persistent and name.namespace == self.namespace
        return of_namespace and re.fullmatch(self.expression, name.local_name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Say what one batch read is about; immutable and picklable, without any secret. Times are milliseconds."""

    service_url: str
    admin_url: str | None
    topics: tuple[str, ...]
    topics_pattern: TopicsPattern | None
    starting_offsets: Offsets
    ending_offsets: Offsets
    starting_time: int | None
    ending_time: int | None
    time_slack_ms: int
    fail_on_data_loss: bool
    poll_timeout_ms: int
    columns: tuple[str, ...]
    credentials: CredentialsRef | None
    subscription_prefix: str | None
    receiver_queue_size: int
    client_settings: tuple[tuple[str, Any], ...]

    @staticmethod
    def parse(options: Mapping[str, str]) -> ReadOptions:
        """Return the checked options; raises `InvalidConfiguration` naming the option and the fix. Does no I/O."""
        given, settings = _sorted_out(options)
        read = ReadOptions(
            service_url=_service_url(given),
            admin_url=_admin_url(given),
            topics=_topics(given),
            topics_pattern=_pattern(given),
            starting_offsets=parse_offsets("startingOffsets", given.get("startingOffsets", "earliest"), "earliest"),
            ending_offsets=parse_offsets("endingOffsets", given.get("endingOffsets", "latest"), "latest"),
            starting_time=_time("startingTime", given),
            ending_time=_time("endingTime", given),
            time_slack_ms=_at_least(0, "timeSlackMs", given, "60000"),
            fail_on_data_loss=_flag("failOnDataLoss", given.get("failOnDataLoss", "true")),
            poll_timeout_ms=_at_least(1, "pollTimeoutMs", given, "60000"),
            columns=_columns(given),
            credentials=CredentialsRef.parse(given["credentialsRef"]) if "credentialsRef" in given else None,
            subscription_prefix=_text("subscriptionPrefix", given["subscriptionPrefix"])
            if "subscriptionPrefix" in given
            else None,
            receiver_queue_size=_at_least(1, "pulsar.reader.receiverQueueSize", given, "1000"),
            client_settings=tuple(sorted(settings.items())),
        )
        read.client_config()  # its own checks, before anything starts
        read._check()
        return read

    def client_config(self) -> ClientConfig:
        """Return the client's configuration, still without credentials."""
        return ClientConfig(service_url=self.service_url, **dict(self.client_settings))

    def _check(self) -> None:
        if self.topics_pattern is not None and self.admin_url is None:
            raise InvalidConfiguration("topicsPattern needs admin.url: the topics are listed over the admin interface")
        start, end = self.starting_time, self.ending_time
        if start is not None and end is not None and end < start:
            raise InvalidConfiguration(f"endingTime ({end} ms) is before startingTime ({start} ms)")


def _sorted_out(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the options by their right names and the client's settings; refuse everything else."""
    given: dict[str, str] = {}
    settings: dict[str, Any] = {}
    for raw, value in options.items():
        folded = raw.lower()
        if folded in _CLIENT_SETTINGS:
            name, field, convert = _CLIENT_SETTINGS[folded]
            settings[field] = convert(name, value)
        elif _FOLDED.get(folded) in _NAMES:
            given[_FOLDED[folded]] = value
        else:
            raise InvalidConfiguration(_refusal(raw))
    if given.get("valueFormat", "raw").strip().lower() != "raw":
        raise InvalidConfiguration(
            "valueFormat can only be raw in this version: decode the column value with from_json, or let "
            "pyspark_pulsar.load do it"
        )
    return given, settings


def _refusal(raw: str) -> str:
    name = _FOLDED.get(raw.lower())
    if name is not None:
        return f"Option {name}: {_REFUSED[name]}"
    if _SECRET.search(raw) and not raw.lower().startswith("credentialsr"):
        return f"Option {raw} is not taken. {ADVICE}"
    known = {name.lower(): name for name in (*_NAMES, *_CLIENT_NAMES)}
    near = difflib.get_close_matches(raw.lower(), known, 1, 0.6)
    hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join((*_NAMES, *_CLIENT_NAMES))}"
    return f"There is no option {raw}; {hint}"


def _service_url(given: Mapping[str, str]) -> str:
    if "service.url" not in given:
        raise InvalidConfiguration("Option service.url is missing; write for example pulsar://host:6650")
    return str(ServiceUrl.parse(given["service.url"]))


def _admin_url(given: Mapping[str, str]) -> str | None:
    url = given.get("admin.url")
    if url is None:
        return None
    if not re.fullmatch(r"https?://[^\s/@]+/?", url.strip()):
        # Not repeated: it may hold a password.
        raise InvalidConfiguration(
            "admin.url must be http://host:8080 or https://host:8443, without user, password or path"
        )
    return url.strip().rstrip("/")


_SELECTIONS = ("topic", "topics", "topicsPattern")


def _topics(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the full names of the topics that are listed, none where a pattern is given."""
    chosen = [name for name in _SELECTIONS if name in given]
    if len(chosen) != 1:
        what = " and ".join(chosen) or "none"
        raise InvalidConfiguration(f"Give exactly one of topic, topics and topicsPattern, not {what}")
    option = chosen[0]
    if option == "topicsPattern":
        return ()
    names: dict[str, None] = {}
    for part in [given[option]] if option == "topic" else given[option].split(","):
        try:
            topic = TopicName.parse(part.strip())
        except PulsarException as error:
            raise InvalidConfiguration(f"{option}: {error.message}") from error
        if not topic.is_persistent:
            raise InvalidConfiguration(f"{topic.full} is not persistent: there is nothing stored to read")
        names[topic.full] = None
    return tuple(names)


def _pattern(given: Mapping[str, str]) -> TopicsPattern | None:
    return TopicsPattern.parse(given["topicsPattern"]) if "topicsPattern" in given else None


def _time(name: str, given: Mapping[str, str]) -> int | None:
    return parse_time(name, given[name]) if name in given else None


def _at_least(minimum: int, name: str, given: Mapping[str, str], default: str) -> int:
    value = _integer(name, given.get(name, default))
    if value < minimum:
        raise InvalidConfiguration(f"{name} must be at least {minimum}, not {value}")
    return value


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns in order: those of `columns`, else value and what includeMetadata adds to it."""
    if "columns" not in given:
        wanted = given.get("includeMetadata", "true").strip().lower()
        if wanted == "all":
            return SOURCE_COLUMNS
        return DEFAULT_COLUMNS if _flag("includeMetadata", wanted) else ("value",)
    if "includeMetadata" in given:
        raise InvalidConfiguration("Give columns or includeMetadata, not both")
    names = [part.strip() for part in given["columns"].split(",")]
    known = {name.lower(): name for name in ("value", *METADATA_COLUMNS)}
    for name in names:
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, 1)
            hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(known.values())}"
            raise InvalidConfiguration(f"columns: there is no column {name!r}; {hint}")
    found = tuple(known[name.lower()] for name in names)
    if len(set(found)) < len(found):
        raise InvalidConfiguration("columns: a column is named twice")
    return found
