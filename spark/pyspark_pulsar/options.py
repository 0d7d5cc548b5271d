"""Options of batch and streaming reads, checked before anything connects.

Names are the JVM connector's, else the Java client's. Spark ignores the case of names, so it is ignored here. Rules: an
unknown name raises with the most similar known one. A name that may carry a secret raises with advice, and its value is
never repeated. Unsupported known options raise instead of being ignored. No I/O.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pulsar_native.config import ClientConfig
from pulsar_native.exceptions import InvalidConfiguration, InvalidUrl, PulsarException
from pulsar_native.jobs import validation
from pulsar_native.jobs.secrets import looks_secret
from pulsar_native.service_url import ServiceUrl
from pulsar_native.topic import TopicName
from pyspark_pulsar.credentials import ADVICE, CredentialsRef
from pyspark_pulsar.encryption import READ_ACTION, READ_KEYS, WRITE_KEYS, KeyRefs
from pyspark_pulsar.positions import Offsets, Position, parse_offsets
from pyspark_pulsar.schema import DEFAULT_COLUMNS, METADATA_COLUMNS, SOURCE_COLUMNS

CLIENT_PREFIX = "pulsar.client."

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
# Year 2200; later numbers are in another unit.
_LATEST_MS = (datetime(2200, 1, 1, tzinfo=UTC) - _EPOCH) // _MILLISECOND

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
    "mode",
    "columnNameOfCorruptRecord",
    "pulsar.reader.receiverQueueSize",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "predefinedSubscription",
    "readCompacted",
    "pushDownPredicate",
    "minPartitions",
    "maxEntriesPerPartition",
    "maxBytesPerPartition",
    "pulsar.reader.autoUpdatePartitionsIntervalSeconds",
    READ_KEYS,
    READ_ACTION,
)
# Options of one kind of read only, with the reason.
_STREAM_ONLY = {
    "maxMessagesPerTrigger": "a batch read has no triggers; bound it with endingOffsets or endingTime",
    "maxBytesPerTrigger": "a batch read has no triggers; bound it with endingOffsets or endingTime",
    "predefinedSubscription": "a batch read uses a non-durable reader and leaves no subscription behind; leave it out",
    "pulsar.reader.autoUpdatePartitionsIntervalSeconds": "a batch read looks once; leave it out",
}
_FIXED = "the tasks of a micro-batch depend on its offsets alone, so that a repeated one has the same tasks"
_BATCH_ONLY = {
    "minPartitions": _FIXED,
    "maxEntriesPerPartition": _FIXED,
    "maxBytesPerPartition": _FIXED,
    "pushDownPredicate": "Spark pushes no filters into a stream; leave it out",
    "endingOffsets": "a stream has no end; use trigger(availableNow=True), or spark.read for a bounded range",
    "endingTime": "a stream has no end; use trigger(availableNow=True), or spark.read for a bounded range",
}
_ACTIONS = "FAIL fails the read, DISCARD leaves such messages out"
_NO_PATH = "load() takes no path; name the topic with option topic"
NO_TABLES = "tables are not supported; use CREATE TEMPORARY VIEW ... USING pulsar"
# Known options that raise, with the alternative.
_REFUSED = {
    "path": _NO_PATH,
    "paths": _NO_PATH,
    # Which Spark adds to the options of a table.
    "provider": NO_TABLES,
    "waitingForNonExistedTopic": "the topic must be there when the read is planned; wait for it before, with a sensor",
    "allowDifferentTopicSchemas": "raw values may be of any schema, those of valueFormat=auto of one; leave it out",
}
# Options whose own checks refuse a secret, with a text of their own.
_CHECKED_FOR_SECRETS: dict[str, Callable[[str], object]] = {
    "service.url": lambda text: service_url({"service.url": text}),
    "admin.url": lambda text: admin_url({"admin.url": text}),
    "credentialsref": CredentialsRef.parse,
    READ_KEYS.lower(): partial(KeyRefs.parse, READ_KEYS),
    WRITE_KEYS.lower(): partial(KeyRefs.parse, WRITE_KEYS),
}
# Spark passes each option of a table a second time, with this prefix.
_OF_TABLE = "option."
_SECRET = re.compile(r"auth|token|password|secret|credential", re.IGNORECASE)

# pulsar.client.*: the Java client's configuration names in lower case, with their names in ClientConfig.
_Setting = tuple[str, Callable[[str, str], Any]]


def integer(name: str, text: str) -> int:
    """Return an option as an integer; raises `InvalidConfiguration`."""
    if not re.fullmatch(r"[+-]?\d{1,18}", text.strip()):
        raise InvalidConfiguration(f"{name} must be a whole number, not {text[:60]!r}")
    return int(text)


def flag(name: str, text: str) -> bool:
    """Return an option as a boolean; raises `InvalidConfiguration`."""
    folded = text.strip().lower()
    if folded not in ("true", "false"):
        raise InvalidConfiguration(f"{name} must be true or false, not {text[:60]!r}")
    return folded == "true"


def text_value(name: str, text: str) -> str:
    """Return the text of an option; raises `InvalidConfiguration` for a blank one."""
    if not text.strip():
        raise InvalidConfiguration(f"{name} is empty")
    return text.strip()


def _seconds(name: str, text: str) -> float:
    return integer(name, text) / 1000


def _nanoseconds(name: str, text: str) -> int:
    return max(1, integer(name, text) // 1_000_000)


# Limit of the payloads without a receipt, per task; the connector's default.
MEMORY_LIMIT_BYTES = 64 * 1024 * 1024

_CLIENT: dict[str, _Setting] = {
    "operationTimeoutMs": ("operation_timeout_seconds", _seconds),
    "connectionTimeoutMs": ("connection_timeout_ms", integer),
    "connectionsPerBroker": ("connections_per_broker", integer),
    "keepAliveIntervalSeconds": ("keep_alive_interval_seconds", integer),
    "maxLookupRedirects": ("max_lookup_redirects", integer),
    "concurrentLookupRequest": ("concurrent_lookup_requests", integer),
    "memoryLimitBytes": ("memory_limit_bytes", integer),
    "initialBackoffIntervalNanos": ("starting_backoff_interval_ms", _nanoseconds),
    "maxBackoffIntervalNanos": ("max_backoff_interval_ms", _nanoseconds),
    "listenerName": ("listener_name", text_value),
    "useTls": ("use_tls", flag),
    "tlsTrustCertsFilePath": ("tls_trust_certs_file_path", text_value),
    "tlsAllowInsecureConnection": ("tls_allow_insecure_connection", flag),
    "tlsHostnameVerificationEnable": ("tls_validate_hostname", flag),
    "tlsCertificateFilePath": ("tls_certificate_file_path", text_value),
    "tlsKeyFilePath": ("tls_private_key_file_path", text_value),
}
_CLIENT_NAMES = tuple(CLIENT_PREFIX + name for name in _CLIENT)
_CLIENT_SETTINGS = {(CLIENT_PREFIX + name).lower(): (CLIENT_PREFIX + name, *entry) for name, entry in _CLIENT.items()}


@dataclass(frozen=True, slots=True)
class TopicsPattern:
    """Pattern of whole names of persistent topics in one namespace; a Python expression."""

    namespace: str
    expression: str

    @staticmethod
    def parse(text: str) -> TopicsPattern:
        """Return the pattern of `expression`, `tenant/namespace/expression` or either after `persistent://`."""
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
        """Return True if the pattern matches the topic (not its partition)."""
        name = TopicName.parse(topic)
        of_namespace = name.is_persistent and name.namespace == self.namespace
        return of_namespace and re.fullmatch(self.expression, name.local_name) is not None


# Spark's names of the policies for records that cannot be decoded.
FAILFAST, DROPMALFORMED, PERMISSIVE = "FAILFAST", "DROPMALFORMED", "PERMISSIVE"
_MODES = (FAILFAST, DROPMALFORMED, PERMISSIVE)
CORRUPT_COLUMN = "_corrupt"
# In the option columns: all columns of a decoded value.
ALL_FIELDS = "*"


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """Options of decoding by the registered schema: `mode` for messages that are not of it, and the column for them."""

    mode: str = FAILFAST
    corrupt_column: str = CORRUPT_COLUMN

    @staticmethod
    def parse(given: Mapping[str, str]) -> ValueOptions | None:
        """Return the options of valueFormat=auto, None for raw; raises `InvalidConfiguration`."""
        value_format = given.get("valueFormat", "raw").strip().lower()
        if value_format not in ("raw", "auto"):
            raise InvalidConfiguration(f"valueFormat must be raw or auto, not {given['valueFormat'][:60]!r}")
        if value_format == "raw":
            for name in ("mode", "columnNameOfCorruptRecord"):
                if name in given:
                    raise InvalidConfiguration(f"{name} needs valueFormat=auto: raw values are never corrupt")
            return None
        mode = given.get("mode", FAILFAST).strip().upper()
        if mode not in _MODES:
            raise InvalidConfiguration(f"mode must be one of {', '.join(_MODES)}, not {given['mode'][:60]!r}")
        if "columnNameOfCorruptRecord" in given and mode != PERMISSIVE:
            raise InvalidConfiguration(
                f"columnNameOfCorruptRecord needs mode=PERMISSIVE: with {mode} there is no column"
            )
        column = text_value("columnNameOfCorruptRecord", given.get("columnNameOfCorruptRecord", CORRUPT_COLUMN))
        if column.lower() in (name.lower() for name in SOURCE_COLUMNS):
            raise InvalidConfiguration(
                f"columnNameOfCorruptRecord is {column}, the name of another column: set it to another name"
            )
        return ValueOptions(mode, column)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of one batch or streaming read; immutable and picklable, without secrets.

    Times are milliseconds. `values` are the options of decoding by the registered schema, None for raw values;
    with them the names in `columns` are not checked yet. `private_keys` are the keys of encrypted messages.
    `push_down_predicate` lets the read apply filters of the query.
    """

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
    max_messages_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    predefined_subscription: str | None = None
    auto_update_partitions_interval_seconds: int = 60
    read_compacted: bool = False
    push_down_predicate: bool = False
    min_partitions: int | None = None
    max_entries_per_partition: int | None = None
    max_bytes_per_partition: int | None = None
    values: ValueOptions | None = None
    private_keys: KeyRefs | None = None
    discards_undecryptable: bool = False

    @staticmethod
    def parse(options: Mapping[str, str], *, streaming: bool | None = False) -> ReadOptions:
        """Return the checked options; raises `InvalidConfiguration` naming the option and the fix. No I/O.

        `streaming` is the kind of read; None accepts the options of both, if the kind is not known yet.
        """
        given, settings = _sorted_out(options)
        _check_kind(given, streaming)
        read = ReadOptions(
            service_url=service_url(given),
            admin_url=admin_url(given),
            topics=_topics(given),
            topics_pattern=_pattern(given),
            starting_offsets=_starting_offsets(given, streaming),
            ending_offsets=parse_offsets("endingOffsets", given.get("endingOffsets", "latest"), "latest"),
            starting_time=_time("startingTime", given),
            ending_time=_time("endingTime", given),
            time_slack_ms=at_least(0, "timeSlackMs", given, "60000"),
            fail_on_data_loss=flag("failOnDataLoss", given.get("failOnDataLoss", "true")),
            poll_timeout_ms=at_least(1, "pollTimeoutMs", given, "60000"),
            columns=_columns(given),
            values=ValueOptions.parse(given),
            credentials=CredentialsRef.parse(given["credentialsRef"]) if "credentialsRef" in given else None,
            subscription_prefix=text_value("subscriptionPrefix", given["subscriptionPrefix"])
            if "subscriptionPrefix" in given
            else None,
            receiver_queue_size=at_least(1, "pulsar.reader.receiverQueueSize", given, "20000"),
            client_settings=tuple(sorted(settings.items())),
            max_messages_per_trigger=_limit("maxMessagesPerTrigger", given),
            max_bytes_per_trigger=_limit("maxBytesPerTrigger", given),
            predefined_subscription=text_value("predefinedSubscription", given["predefinedSubscription"])
            if "predefinedSubscription" in given
            else None,
            auto_update_partitions_interval_seconds=at_least(
                1, "pulsar.reader.autoUpdatePartitionsIntervalSeconds", given, "60"
            ),
            min_partitions=_limit("minPartitions", given),
            max_entries_per_partition=_limit("maxEntriesPerPartition", given),
            max_bytes_per_partition=_limit("maxBytesPerPartition", given),
            private_keys=KeyRefs.parse(READ_KEYS, given[READ_KEYS]) if READ_KEYS in given else None,
            discards_undecryptable=_discards(given.get(READ_ACTION, "FAIL")),
            read_compacted=flag("readCompacted", given.get("readCompacted", "false")),
            push_down_predicate=flag("pushDownPredicate", given.get("pushDownPredicate", "false")),
        )
        read.client_config()  # The position's own checks, before anything starts.
        read._check()
        return read

    def has_range(self, topic: str) -> bool:
        """Return True if the options give a range of positions of a topic, which therefore had messages."""
        start, end = (offsets.by_topic.get(topic) for offsets in (self.starting_offsets, self.ending_offsets))
        return isinstance(start, Position) and isinstance(end, Position) and start < end

    @property
    def finds_loss(self) -> bool:
        """True if messages missing at the start of a range fail the read; compaction removes some on purpose."""
        return self.fail_on_data_loss and not self.read_compacted

    @property
    def has_split_limits(self) -> bool:
        """True if the options limit how much a task reads."""
        limits = (self.min_partitions, self.max_entries_per_partition, self.max_bytes_per_partition)
        return any(limit is not None for limit in limits)

    def client_config(self) -> ClientConfig:
        """Return the client's configuration without credentials."""
        settings = {"memory_limit_bytes": MEMORY_LIMIT_BYTES, **dict(self.client_settings)}
        url = self.service_url
        if settings.get("use_tls") and url.startswith("pulsar://"):
            # The client uses the scheme only.
            url = url.replace("pulsar://", "pulsar+ssl://", 1)
        return ClientConfig(service_url=url, **settings)

    def _check(self) -> None:
        if self.has_split_limits and self.admin_url is None:
            raise InvalidConfiguration(
                "minPartitions, maxEntriesPerPartition and maxBytesPerPartition need admin.url: the broker tells only "
                "there how many entries a ledger has"
            )
        if self.values is not None and self.admin_url is None:
            raise InvalidConfiguration("valueFormat=auto needs admin.url: the topic's schema is read over it")
        start, end = self.starting_time, self.ending_time
        if start is not None and end is not None and end < start:
            raise InvalidConfiguration(f"endingTime ({end} ms) is before startingTime ({start} ms)")


def _check_kind(given: Mapping[str, str], streaming: bool | None) -> None:
    """Raise `InvalidConfiguration` for an option that only the other kind of read has."""
    if streaming is None:
        return
    kind, others = ("streaming", _BATCH_ONLY) if streaming else ("batch", _STREAM_ONLY)
    for name in given:
        if name in others:
            raise InvalidConfiguration(f"Option {name} is not for {kind} reads: {others[name]}")


def _starting_offsets(given: Mapping[str, str], streaming: bool | None) -> Offsets:
    """Return the start: by default the earliest message for a batch, the end for a stream."""
    text = text_value("startingOffsets", given.get("startingOffsets", "latest" if streaming else "earliest"))
    return parse_offsets("startingOffsets", text, "earliest", *(() if streaming is False else ("latest",)))


def _discards(text: str) -> bool:
    """Return True if messages that cannot be decrypted are left out; raises `InvalidConfiguration`."""
    action = text.strip().upper()
    if action == "CONSUME":
        raise InvalidConfiguration(
            f"{READ_ACTION}=CONSUME has no rows: an encrypted batch hides its messages; {_ACTIONS}"
        )
    if action not in ("FAIL", "DISCARD"):
        raise InvalidConfiguration(f"{READ_ACTION} must be FAIL or DISCARD, not {text[:60]!r}")
    return action == "DISCARD"


def _limit(name: str, given: Mapping[str, str]) -> int | None:
    return at_least(1, name, given, "1") if name in given else None


def _sorted_out(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the options by their canonical names and the client's settings; raise for others."""
    given, settings, _ = sort_options(options, _NAMES, _REFUSED, {})
    return given, settings


def sort_options(
    options: Mapping[str, str],
    names: Sequence[str],
    refused: Mapping[str, str],
    more_settings: Mapping[str, tuple[str, Callable[[str, str], Any]]],
) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
    """Return the options by their canonical names, the client's settings, and the settings of `more_settings`.

    `refused` are known names that raise, with the alternative. Raises `InvalidConfiguration` for those, for unknown
    names, with the most similar known one, and first of all for a secret, which Spark may have shown. No I/O.
    """
    for raw, value in options.items():
        _check_secret(raw, value)
    folded_refused = {name.lower(): name for name in refused}
    for raw in options:
        if (name := folded_refused.get(raw.lower())) is not None:
            raise InvalidConfiguration(f"Option {name}: {refused[name]}")
    folded_names = {name.lower(): name for name in names}
    folded_settings = {name.lower(): (name, *entry) for name, entry in more_settings.items()}
    given: dict[str, str] = {}
    client: dict[str, Any] = {}
    more: dict[str, Any] = {}
    spellings: dict[str, str] = {}
    for raw, value in options.items():
        folded = raw.lower()
        if folded in spellings:
            raise InvalidConfiguration(
                f"Options {spellings[folded]} and {raw} are the same: case is ignored; leave one out"
            )
        spellings[folded] = raw
        if folded in _CLIENT_SETTINGS:
            name, field, convert = _CLIENT_SETTINGS[folded]
            client[field] = convert(name, value)
        elif folded in folded_settings:
            name, field, convert = folded_settings[folded]
            more[field] = convert(name, value)
        elif folded in folded_names:
            given[folded_names[folded]] = value
        else:
            raise InvalidConfiguration(_unknown(raw, (*names, *_CLIENT_NAMES, *more_settings)))
    return given, client, more


def _check_secret(raw: str, value: str) -> None:
    """Raise for an option that is, or may be, a secret."""
    name = raw[len(_OF_TABLE) :] if raw.lower().startswith(_OF_TABLE) else raw
    check = _CHECKED_FOR_SECRETS.get(name.lower())
    if check is not None:
        check(value)
    elif looks_secret(value):
        raise InvalidConfiguration(f"The value of option {name} looks like a secret. {ADVICE}")
    elif _SECRET.search(name) and not name.lower().startswith("credentialsr"):
        raise InvalidConfiguration(f"Option {name} is not taken. {ADVICE}")


def _unknown(raw: str, names: Sequence[str]) -> str:
    known = {name.lower(): name for name in names}
    near = difflib.get_close_matches(raw.lower(), known, 1, 0.6)
    hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(names)}"
    return f"There is no option {raw}; {hint}"


def service_url(given: Mapping[str, str]) -> str:
    """Return the checked service URL; raises `InvalidConfiguration` or `InvalidUrl`."""
    if "service.url" not in given:
        raise InvalidConfiguration("Option service.url is missing; write for example pulsar://host:6650")
    url = given["service.url"]
    if "@" in url:
        raise InvalidUrl(f"service.url must not hold credentials. {ADVICE}")
    return str(ServiceUrl.parse(url))


def admin_url(given: Mapping[str, str]) -> str | None:
    """Return the checked admin URL, None if there is none; raises `InvalidConfiguration`."""
    url = given.get("admin.url")
    if url is None:
        return None
    if not re.fullmatch(r"https?://[^\s/@]+/?", url.strip()):
        # Not repeated: it may have a password.
        raise InvalidConfiguration(
            "admin.url must be http://host:8080 or https://host:8443, without user, password or path"
            f"{f'. {ADVICE}' if '@' in url else ''}"
        )
    return url.strip().rstrip("/")


_SELECTIONS = ("topic", "topics", "topicsPattern")


def _topics(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the full names of the listed topics, none for a pattern."""
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


def parse_time(option: str, text: str) -> int:
    """Return milliseconds since 1970 from a number of them or an ISO-8601 time with its zone.

    A time without a zone raises, since driver and executors may have different ones. A fraction of a millisecond is
    rounded up, which keeps `[start, end)` exact for publish times in whole milliseconds.
    """
    text = text.strip()
    if re.fullmatch(r"\d{1,16}", text):
        return _milliseconds(option, text)
    if text.startswith("{"):
        raise InvalidConfiguration(f"{option} takes one time for all partitions, not JSON by partition")
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        form = "milliseconds since 1970 or ISO-8601 such as 2026-01-31T00:00:00Z"
        raise InvalidConfiguration(f"{option} is {text[:60]!r}; write {form}") from error
    if time.tzinfo is None:
        raise InvalidConfiguration(f"{option} is {text!r}, a time without a zone; add Z or an offset such as +01:00")
    if time < _EPOCH:
        raise InvalidConfiguration(f"{option} is {text!r}, a time before 1970, which no message has")
    return -((_EPOCH - time) // _MILLISECOND)


def _milliseconds(option: str, text: str) -> int:
    value = int(text)
    if value >= _LATEST_MS:
        raise InvalidConfiguration(
            f"{option} is {text}, which in milliseconds since 1970 is beyond the year 2200; are these microseconds?"
        )
    try:
        validation.check_publish_millis(option, value)
    except validation.InvalidValue as error:
        raise InvalidConfiguration(str(error)) from error
    return value


def _time(name: str, given: Mapping[str, str]) -> int | None:
    return parse_time(name, given[name]) if name in given else None


def at_least(minimum: int, name: str, given: Mapping[str, str], default: str) -> int:
    """Return an option as an integer, or its default; raises `InvalidConfiguration` below the minimum."""
    value = integer(name, given.get(name, default))
    if value < minimum:
        raise InvalidConfiguration(f"{name} must be at least {minimum}, not {value}")
    return value


# Columns by the values of includeMetadata.
_METADATA = {"true": DEFAULT_COLUMNS[1:], "false": (), "all": SOURCE_COLUMNS[1:]}


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns in order: those of `columns`, else value and the columns of includeMetadata.

    Where values are decoded, `ALL_FIELDS` stands for the columns of the value, which are not known yet.
    """
    if "columns" not in given:
        wanted = given.get("includeMetadata", "true")
        metadata = _METADATA.get(wanted.strip().lower())
        if metadata is None:
            raise InvalidConfiguration(f"includeMetadata must be true, false or all, not {wanted[:60]!r}")
        return ("value" if ValueOptions.parse(given) is None else ALL_FIELDS, *metadata)
    if "includeMetadata" in given:
        raise InvalidConfiguration("Give columns or includeMetadata, not both")
    names = [part.strip() for part in given["columns"].split(",")]
    if ValueOptions.parse(given) is not None:
        return tuple(names)  # Names of the schema too, which is not known yet.
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
