"""Admin client: the part of Pulsar's admin interface (REST, v2) that loading, sensing, testing and set-up need.

Rules: blocking, the standard library's HTTP only; every request ends within the time-out (name resolution and the
plug-in's credentials apart); every name is checked and percent-encoded; nothing is cached and
nothing is retried, but for a request that goes to the next host (`endpoint.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

from pulsar_native._http import HttpAnswer
from pulsar_native.admin.endpoint import Endpoint
from pulsar_native.admin.errors import AdminError
from pulsar_native.admin.stats import (
    BACKLOG_QUOTA_POLICIES,
    BacklogQuota,
    BacklogQuotaPolicy,
    CompactionStatus,
    InternalStats,
    PartitionedStats,
    TopicStats,
)
from pulsar_native.auth.base import Authentication, AuthenticationDisabled
from pulsar_native.config.base import MAX_I32, MAX_I64, check_encodable, check_integer
from pulsar_native.exceptions import (
    AlreadyClosed,
    InvalidConfiguration,
    InvalidTopicName,
    OperationNotSupported,
    ReadError,
    ServiceUnitNotReady,
    TopicNotFound,
)
from pulsar_native.message_id import MessageId
from pulsar_native.schema.info import SchemaInfo, SchemaType
from pulsar_native.schema.key_value import definition_from_rest, definition_to_rest
from pulsar_native.service_info import check_authentication
from pulsar_native.topic import TopicName

_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_T = TypeVar("_T")


class AdminClient:
    """Query and change topics, namespaces and subscriptions over the admin interface.

    `admin_url` is `http(s)://host:port`; further hosts after commas are tried, in their order, when one cannot be
    reached or answers 503. Calls that read (GET) also go to the next host after 502 and 504, and when a host does not
    answer in its share of the time-out. Calls that change something raise then, since the broker may have processed
    them. A host that failed so is tried behind the others for a minute, and longer when it fails again.

    `timeout_seconds` (default 10) bounds every request, all hosts included; the time that the authentication plug-in
    takes for its headers is added to it. The caller keeps ownership of the plug-in: it is neither started nor closed.
    Blocking, thread-safe, usable after a fork, and picklable where its authentication is. Every method may raise
    `ConnectError`, `Timeout`, `ReadError`, `ErrorGettingAuthenticationData`, `AuthenticationError`,
    `AuthorizationError`, `ServiceUnitNotReady` (HTTP 503), and `AdminError` with the HTTP status for errors without a
    class of their own; they are those of the last host, and name the hosts tried before it.
    """

    def __init__(
        self,
        admin_url: str,
        authentication: Authentication | None = None,
        *,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = True,
        timeout_seconds: float = 10,
    ) -> None:
        check_authentication(authentication)
        self._endpoint = Endpoint(
            admin_url,
            AuthenticationDisabled() if authentication is None else authentication,
            trust_certs_file_path=tls_trust_certs_file_path,
            allow_insecure_connection=tls_allow_insecure_connection,
            validate_hostname=tls_validate_hostname,
            timeout_seconds=timeout_seconds,
        )
        self._closed = False

    # ---- cluster and namespaces --------------------------------------------------------------------------------------

    def broker_health(self) -> bool:
        """Return True if the broker's health check succeeds: it can write and read a message of its own.

        With several hosts in the admin URL it is that of one of them that can be reached.
        """
        try:
            return self._ask("check the broker's health", "GET", "/brokers/health").body.strip() == b"ok"
        except (AdminError, ServiceUnitNotReady) as error:
            if isinstance(error, AdminError) and error.status < 500:
                raise
            return False

    def clusters(self) -> list[str]:
        """Return the names of the clusters."""
        return _strings(self._ask("list the clusters", "GET", "/clusters"))

    def namespaces(self, tenant: str) -> list[str]:
        """Return the tenant's namespaces as `tenant/namespace`; raises `NotFound` for an unknown tenant."""
        answer = self._ask(f"list the namespaces of {tenant}", "GET", f"/namespaces/{_entity(tenant, 'tenant')}")
        return _strings(answer)

    def create_namespace(self, namespace: str) -> None:
        """Create `tenant/namespace`; raises `AlreadyExists`, and `NotFound` for an unknown tenant."""
        self._ask(f"create namespace {namespace}", "PUT", f"/namespaces/{_namespace(namespace)}")

    def delete_namespace(self, namespace: str, force: bool = False) -> None:
        """Delete `tenant/namespace`; raises `NotFound`, and without `force` `AdminError` (status 409) if it has topics.

        With `force` its topics are deleted too, if the broker has forceDeleteNamespaceAllowed.
        """
        path = f"/namespaces/{_namespace(namespace)}"
        self._ask(f"delete namespace {namespace}", "DELETE", path, query={"force": force})

    def topics(self, namespace: str) -> list[str]:
        """Return the full names of the namespace's topics, partitions each by its own name, sorted.

        Persistent ones, and the non-persistent ones that are loaded; no system topics. Raises `NotFound`.
        """
        path = f"/namespaces/{_namespace(namespace)}/topics"
        return sorted(_strings(self._ask(f"list the topics of {namespace}", "GET", path, query={"mode": "ALL"})))

    def set_retention(self, namespace_or_topic: str, minutes: int, mb: int) -> None:
        """Keep acknowledged messages for `minutes` and up to `mb` megabytes per topic.

        -1 is unlimited, 0 of both disables retention, 0 of one is refused (`AdminError`, status 400). A topic must
        exist; its policy takes effect soon, and the broker must have topic policies enabled.
        """
        check_integer("minutes", minutes, -1, MAX_I32)
        check_integer("mb", mb, -1, MAX_I64)
        body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mb}
        if _is_namespace(namespace_or_topic):
            path = f"/namespaces/{_namespace(namespace_or_topic)}/retention"
            self._ask(f"set the retention of {namespace_or_topic}", "POST", path, body=body)
        else:
            self._ask_topic("set the retention of", "POST", namespace_or_topic, "/retention", body=body)

    def get_retention(self, namespace_or_topic: str, *, applied: bool = False) -> tuple[int, int] | None:
        """Return the retention set for the namespace or topic itself as (minutes, megabytes), None for none.

        For a topic, `applied` returns the effective policy: the topic's own, else the namespace's, else the broker's.
        Raises `NotFound`, `TopicNotFound`.
        """
        if _is_namespace(namespace_or_topic):
            path = f"/namespaces/{_namespace(namespace_or_topic)}/retention"
            answer = self._ask(f"get the retention of {namespace_or_topic}", "GET", path)
        else:
            query = {"applied": applied}
            answer = self._ask_topic("get the retention of", "GET", namespace_or_topic, "/retention", query=query)
        if not answer.body.strip():
            return None
        found = _object(answer)
        return _number(found, "retentionTimeInMinutes"), _number(found, "retentionSizeInMB")

    def remove_retention(self, namespace_or_topic: str) -> None:
        """Remove the retention set for the namespace or topic itself; the level above applies again."""
        self._change("remove the retention of", "DELETE", namespace_or_topic, "/retention", "/retention")

    def get_applied_retention(self, topic: str) -> tuple[int, int]:
        """Return the retention that holds for a topic as (minutes, megabytes), wherever it was set.

        -1 is without limit, 0 is not at all. The broker must have topic policies on (they are by default).
        """
        base = TopicName.parse(topic).base.full
        answer = self._ask_topic("get the retention of", "GET", base, "/retention", query={"applied": True})
        found = _object(answer)
        return _number(found, "retentionTimeInMinutes"), _number(found, "retentionSizeInMB")

    # ---- topics ------------------------------------------------------------------------------------------------------

    def create_topic(self, topic: str) -> None:
        """Create an unpartitioned topic (or one missing partition); raises `AlreadyExists`."""
        self._ask_topic("create topic", "PUT", topic)

    def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic; raises `AlreadyExists`, also for an unpartitioned topic of that name."""
        check_integer("partitions", partitions, 1, MAX_I32)
        self._ask_topic("create partitioned topic", "PUT", topic, "/partitions", body=partitions)

    def update_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of partitions of a partitioned topic; it can never shrink (`AdminError`, status 422)."""
        check_integer("partitions", partitions, 1, MAX_I32)
        self._ask_topic("update the partitions of", "POST", topic, "/partitions", body=partitions)

    def partitions(self, topic: str) -> int:
        """Return the number of partitions, 0 for an unpartitioned topic; raises `TopicNotFound`; never creates the
        topic.
        """
        return _number(_object(self._ask_topic("get the partitions of", "GET", topic, "/partitions")), "partitions")

    def delete_topic(self, topic: str, force: bool = False) -> None:
        """Delete a topic, with its partitions and schema; raises `TopicNotFound`.

        Without `force` a topic with subscriptions or connected clients is not deleted (`AdminError`, status 412).
        """
        path = ""
        if not TopicName.parse(topic).is_partition:
            # Not by `partitions`: an error is to name this call. The broker tells of no missing non-persistent topic.
            found = _object(self._ask_topic("delete topic", "GET", topic, "/partitions"))
            path = "/partitions" if _number(found, "partitions") > 0 else ""
        self._ask_topic("delete topic", "DELETE", topic, path, query={"force": force})

    def unload(self, topic: str) -> None:
        """Unload the topic (or all its partitions) from its broker: clients look it up and connect again."""
        self._ask_topic("unload", "PUT", topic, "/unload")

    def terminate(self, topic: str) -> list[MessageId]:
        """Terminate the topic: it accepts no more messages. Return the last id, for a partitioned topic one per
        partition.

        The entry id is -1 where nothing was ever published.
        """
        if self._is_partitioned(topic):
            last = _object(self._ask_topic("terminate", "POST", topic, "/terminate/partitions"))
            return [_message_id(last[index], partition=int(index)) for index in sorted(last, key=int)]
        return [_message_id(_parsed(self._ask_topic("terminate", "POST", topic, "/terminate")))]

    def trim(self, topic: str) -> None:
        """Start deleting the closed ledgers that retention and subscriptions no longer need."""
        self._ask_topic("trim", "POST", topic, "/trim")

    def compact(self, topic: str) -> None:
        """Start a compaction of the topic, or of all its partitions; see `compaction_status`."""
        self._ask_topic("compact", "PUT", topic, "/compaction")

    def compaction_status(self, topic: str) -> CompactionStatus:
        """Return the state of the last compaction of a topic or of one partition."""
        answer = self._ask_one("get the compaction status of", "GET", topic, "/compaction")
        return _shaped(answer, CompactionStatus)

    # ---- statistics --------------------------------------------------------------------------------------------------

    def stats(self, topic: str, *, precise_backlog: bool = False) -> TopicStats:
        """Return the statistics of an unpartitioned topic or of one partition.

        With `precise_backlog` the backlog excludes acknowledged messages between others, which costs the broker more.
        """
        query = {"getPreciseBacklog": precise_backlog}
        return _shaped(self._ask_one("get the stats of", "GET", topic, "/stats", query=query), TopicStats)

    def partitioned_stats(
        self, topic: str, *, per_partition: bool = True, precise_backlog: bool = False
    ) -> PartitionedStats:
        """Return the sums over a partitioned topic, and with `per_partition` each partition's statistics."""
        query = {"perPartition": per_partition, "getPreciseBacklog": precise_backlog}
        answer = self._ask_topic("get the stats of", "GET", topic, "/partitioned-stats", query=query)
        return _shaped(answer, PartitionedStats)

    def internal_stats(self, topic: str) -> InternalStats:
        """Return ledgers, cursors and sizes of an unpartitioned topic or of one partition."""
        return _shaped(self._ask_one("get the internal stats of", "GET", topic, "/internalStats"), InternalStats)

    # ---- subscriptions and positions ---------------------------------------------------------------------------------

    def subscriptions(self, topic: str) -> list[str]:
        """Return the names of the subscriptions of a topic, of a partitioned one those of its partitions."""
        return _strings(self._ask_topic("list the subscriptions of", "GET", topic, "/subscriptions"))

    def create_subscription(self, topic: str, subscription: str, position: MessageId = MessageId.latest) -> None:
        """Create a durable subscription of a topic, or of all its partitions; raises `AlreadyExists`, `TopicNotFound`.

        It begins after the last message, with `MessageId.earliest` at the first one, or at a message's id, which for a
        partitioned topic must be asked of the partition it belongs to (`InvalidConfiguration` otherwise).
        """
        path, body = f"/subscription/{_subscription(subscription)}", _position(position)
        action, name = f"create subscription {subscription} of", TopicName.parse(topic)
        # The broker would make a topic that does not exist (broker-behaviour.md#admin-creates-topics).
        count = _number(_object(self._ask_topic(action, "GET", topic, "/partitions")), "partitions")
        # A partition's own name has no partitions.
        if count and position not in (MessageId.earliest, MessageId.latest):
            # The broker would take it for the place in every partition, before which nothing is delivered.
            raise InvalidConfiguration(
                f"{action} {name}: the topic is partitioned, and the id {position} is of one partition only: create it "
                "at the earliest or latest message, then reset it on the partitions, '...-partition-0' and so on"
            )
        _check_partition(action, position, name)
        self._ask_topic(action, "PUT", topic, path, body=body)

    def reset_cursor(self, topic: str, subscription: str, position: MessageId | int, *, excluded: bool = False) -> None:
        """Move a subscription to a message id or to a publish time (ms since the epoch). Consumers are disconnected.

        Messages from there on are delivered again, those before it count as acknowledged. `excluded` begins after the
        message of an id. A time also moves the partitions of a partitioned topic; an id, `MessageId.earliest` and
        `latest` move one partition or an unpartitioned topic. Raises `SubscriptionNotFound`, `TopicNotFound`, and
        `InvalidConfiguration` for an id of another partition.
        """
        path = f"/subscription/{_subscription(subscription)}/resetcursor"
        action = f"reset subscription {subscription} of"
        body: object = None
        if isinstance(position, MessageId):
            _check_partition(action, position, TopicName.parse(topic))
            body = {**_position(position), "excluded": excluded}
        elif isinstance(position, bool) or not isinstance(position, int) or not 0 <= position <= MAX_I64:
            raise InvalidConfiguration(
                f"position must be a MessageId or milliseconds from 0 to {MAX_I64}, not {position!r}"
            )
        else:
            path += f"/{position}"
        self._ask_topic(action, "POST", topic, path, body=body)

    def skip_messages(self, topic: str, subscription: str, count: int) -> None:
        """Acknowledge the next `count` entries of a subscription of one topic or partition.

        The broker counts entries, which may be batches of messages. A partitioned topic is refused
        (`NotAllowedError`). Raises `SubscriptionNotFound`.
        """
        check_integer("count", count, 1, MAX_I32)
        path = f"/subscription/{_subscription(subscription)}/skip/{count}"
        self._ask_topic(f"skip messages of subscription {subscription} of", "POST", topic, path)

    def clear_backlog(self, topic: str, subscription: str) -> None:
        """Acknowledge all messages that a subscription of a topic, or of all its partitions, has not consumed."""
        path = f"/subscription/{_subscription(subscription)}/skip_all"
        self._ask_topic(f"clear the backlog of subscription {subscription} of", "POST", topic, path)

    def expire_messages(self, topic: str, subscription: str, seconds: int) -> None:
        """Acknowledge the messages of a subscription that are older than so many seconds."""
        check_integer("seconds", seconds, 1, MAX_I32)
        path = f"/subscription/{_subscription(subscription)}/expireMessages/{seconds}"
        self._ask_topic(f"expire messages of subscription {subscription} of", "POST", topic, path)

    def update_subscription_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        """Replace the properties of a subscription, which the topic's stats show.

        :param topic: topic; of a partitioned one each partition.
        :param subscription: name of the subscription.
        :param properties: all its properties from now on.
        """
        path = f"/subscription/{_subscription(subscription)}/properties"
        action = f"update the properties of subscription {subscription} of"
        self._ask_topic(action, "PUT", topic, path, body=dict(properties))

    def delete_subscription(self, topic: str, subscription: str, force: bool = False) -> None:
        """Delete a subscription of a topic, or of all its partitions.

        Raises `SubscriptionNotFound`, and without `force` `AdminError` (status 412) while consumers are connected.
        """
        path = f"/subscription/{_subscription(subscription)}"
        self._ask_topic(f"delete subscription {subscription} of", "DELETE", topic, path, query={"force": force})

    def message_id_by_time(self, topic: str, timestamp_ms: int) -> MessageId:
        """Return the first entry at or after a publish time (ms since the epoch) of one topic or partition.

        An estimate: the broker's search assumes that times never decrease. After the last message it is the id of the
        next one; for time 0 it is (-1, -1), the earliest.
        """
        check_integer("timestamp_ms", timestamp_ms, 0, MAX_I64)
        answer = self._ask_one("find a time in", "GET", topic, f"/messageid/{timestamp_ms}")
        return _message_id(_parsed(answer))

    def last_message_id(self, topic: str) -> MessageId:
        """Return the id of the last entry of one topic or partition, entry id -1 while it is empty.

        It counts entries that are never delivered (transaction markers), unlike a reader's get_last_message_id. The
        broker also has entry id -1 for a topic that was terminated while its last ledger was empty.
        """
        return _message_id(_parsed(self._ask_one("get the last message id of", "GET", topic, "/lastMessageId")))

    # ---- policies ----------------------------------------------------------------------------------------------------

    def set_deduplication(self, namespace_or_topic: str, enabled: bool) -> None:
        """Enable or disable the broker's deduplication for a namespace (`tenant/namespace`) or a topic.

        A topic must exist, and the change applies within moments; the broker must have topic policies enabled.
        """
        if not isinstance(enabled, bool):
            # The broker takes other values for one of the two, and none for no change.
            raise InvalidConfiguration(f"enabled must be True or False, not {enabled!r}")
        if _is_namespace(namespace_or_topic):
            path = f"/namespaces/{_namespace(namespace_or_topic)}/deduplication"
            self._ask(f"set deduplication of {namespace_or_topic}", "POST", path, body=enabled)
        else:
            self._ask_topic("set deduplication of", "POST", namespace_or_topic, "/deduplicationEnabled", body=enabled)

    def get_deduplication(self, namespace_or_topic: str) -> bool | None:
        """Return the value set for the namespace or topic itself, None where the level above applies."""
        if _is_namespace(namespace_or_topic):
            path = f"/namespaces/{_namespace(namespace_or_topic)}/deduplication"
            answer = self._ask(f"get deduplication of {namespace_or_topic}", "GET", path)
        else:
            answer = self._ask_topic("get deduplication of", "GET", namespace_or_topic, "/deduplicationEnabled")
        return None if not answer.body.strip() else _parsed(answer) is True

    def remove_deduplication(self, namespace_or_topic: str) -> None:
        """Remove the value set for the namespace or topic itself; the level above applies again."""
        self._change("remove deduplication of", "DELETE", namespace_or_topic, "/deduplication", "/deduplicationEnabled")

    def set_message_ttl(self, namespace_or_topic: str, seconds: int) -> None:
        """Have messages acknowledged for every subscription after so many seconds; 0 switches that off."""
        check_integer("seconds", seconds, 0, MAX_I32)
        if _is_namespace(namespace_or_topic):
            path = f"/namespaces/{_namespace(namespace_or_topic)}/messageTTL"
            self._ask(f"set the message TTL of {namespace_or_topic}", "POST", path, body=seconds)
        else:
            query = {"messageTTL": str(seconds)}
            self._ask_topic("set the message TTL of", "POST", namespace_or_topic, "/messageTTL", query=query)

    def get_message_ttl(self, namespace_or_topic: str) -> int | None:
        """Return the seconds set for the namespace or topic itself, None where the level above applies."""
        answer = self._change("get the message TTL of", "GET", namespace_or_topic, "/messageTTL", "/messageTTL")
        found = _parsed(answer) if answer.body.strip() else None
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def remove_message_ttl(self, namespace_or_topic: str) -> None:
        """Remove the value set for the namespace or topic itself; the level above applies again."""
        self._change("remove the message TTL of", "DELETE", namespace_or_topic, "/messageTTL", "/messageTTL")

    def set_backlog_quota(
        self,
        namespace_or_topic: str,
        policy: BacklogQuotaPolicy,
        *,
        limit_bytes: int | None = None,
        limit_seconds: int | None = None,
    ) -> None:
        """Limit what the slowest subscription may have in its backlog, by its size or by the oldest message's age.

        A policy for each kind of limit that is given: `limit_bytes` (at least 1, "destination_storage") and
        `limit_seconds` (at least 1, "message_age"), of which one is needed. The policy is "producer_request_hold",
        "producer_exception" or "consumer_backlog_eviction".
        """
        given = {"destination_storage": limit_bytes, "message_age": limit_seconds}
        if policy not in BACKLOG_QUOTA_POLICIES:
            raise InvalidConfiguration(f"policy must be one of {', '.join(BACKLOG_QUOTA_POLICIES)}, not {policy!r}")
        if not any(value is not None for value in given.values()):
            raise InvalidConfiguration("a backlog quota needs limit_bytes or limit_seconds")
        # Both before the first request: one of two wrong limits changes nothing.
        if limit_bytes is not None:
            check_integer("limit_bytes", limit_bytes, 1, MAX_I64)
        if limit_seconds is not None:
            check_integer("limit_seconds", limit_seconds, 1, MAX_I32)
        for kind, value in given.items():
            if value is None:
                continue
            limit = {"limitSize": value} if kind == "destination_storage" else {"limitTime": value}
            # Without a size the broker takes 0 for the limit.
            body = {"limitSize": -1, "limitTime": -1, **limit, "policy": policy}
            query = {"backlogQuotaType": kind}
            path = "/backlogQuota"
            self._change("set the backlog quota of", "POST", namespace_or_topic, path, path, query=query, body=body)

    def get_backlog_quotas(self, namespace_or_topic: str) -> dict[str, BacklogQuota]:
        """Return the quotas set for the namespace or topic itself by kind (destination_storage, message_age)."""
        path = "/backlogQuotaMap"
        answer = self._change("get the backlog quotas of", "GET", namespace_or_topic, path, path)
        found: Any = _object(answer) if answer.body.strip() else {}
        typed: dict[str, BacklogQuota] = found
        return typed

    def remove_backlog_quotas(self, namespace_or_topic: str) -> None:
        """Remove the quotas set for the namespace or topic itself; the level above applies again."""
        for kind in ("destination_storage", "message_age"):
            query = {"backlogQuotaType": kind}
            path = "/backlogQuota"
            self._change("remove the backlog quota of", "DELETE", namespace_or_topic, path, path, query=query)

    # ---- schema ------------------------------------------------------------------------------------------------------

    def get_schema(self, topic: str, version: int | None = None) -> SchemaInfo | None:
        """Return the topic's registered schema, the latest or that `version` (from 0); None when there is none.

        An unknown topic has no schema: the registry does not distinguish the two. Raises `OperationNotSupported` for a
        schema type unknown to this client.
        """
        name = _checked(TopicName.parse(topic).base)
        path = f"/{name.schema_path}"
        if version is not None:
            check_integer("version", version, 0, MAX_I64)
            path += f"/{version}"
        try:
            found = _object(self._ask(f"get the schema of {name}", "GET", path, topic=name.full))
        except TopicNotFound:
            return None
        return _schema_info(name, found)

    def upload_schema(self, topic: str, schema: SchemaInfo) -> int:
        """Register a schema for a topic and return its version; the version it has already if it is registered.

        Raises `AdminError` with status 409 for an incompatible schema, 422 for an invalid one.
        """
        if not isinstance(schema, SchemaInfo):
            raise InvalidConfiguration(f"schema must be a SchemaInfo (schema_info() of a schema), not {schema!r}")
        name = _checked(TopicName.parse(topic).base)
        path = f"/{name.schema_path}"
        body = {
            "type": schema.type.name,
            "schema": definition_to_rest(schema.data) if schema.type is SchemaType.KEY_VALUE else schema.data.decode(),
            "properties": dict(schema.properties()),
        }
        found = _object(self._ask(f"upload the schema of {name}", "POST", path, topic=name.full, body=body))
        version = found.get("version")
        if not isinstance(version, dict):
            raise ReadError("The answer of the admin interface has no schema version")
        return _number(version, "version")

    def delete_schema(self, topic: str, *, force: bool = False) -> None:
        """Delete the schema of a topic: later versions go on counting. With `force` its history is deleted too.

        A topic without a schema is no error to the broker.
        """
        name = _checked(TopicName.parse(topic).base)
        path = f"/{name.schema_path}"
        self._ask(f"delete the schema of {name}", "DELETE", path, topic=name.full, query={"force": force})

    # ---- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Refuse further calls with `AlreadyClosed`; there is no connection to close."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"AdminClient({','.join(self._endpoint.urls)!r}, {self._endpoint.authentication!r})"

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _ask(self, action: str, method: str, path: str, **options: Any) -> HttpAnswer:
        if self._closed:
            raise AlreadyClosed(f"{action}: the admin client is closed")
        return self._endpoint.ask(action, method, path, **options)

    def _ask_topic(self, action: str, method: str, topic: str, path: str = "", **options: Any) -> HttpAnswer:
        name = _checked(TopicName.parse(topic))
        return self._ask(f"{action} {name}", method, f"/{name.lookup_path}{path}", topic=name.full, **options)

    def _ask_one(self, action: str, method: str, topic: str, path: str, **options: Any) -> HttpAnswer:
        """Request that a partitioned topic's own name cannot answer; the broker's "not found" alone would mislead."""
        try:
            return self._ask_topic(action, method, topic, path, **options)
        except TopicNotFound as error:
            if self._is_partitioned(topic):
                error.message += "; it is partitioned: ask its partitions, '...-partition-0' and so on"
            raise

    def _change(
        self, action: str, method: str, namespace_or_topic: str, namespace_path: str, topic_path: str, **options: Any
    ) -> HttpAnswer:
        """Request a policy of a namespace or a topic."""
        if _is_namespace(namespace_or_topic):
            path = f"/namespaces/{_namespace(namespace_or_topic)}{namespace_path}"
            return self._ask(f"{action} {namespace_or_topic}", method, path, **options)
        return self._ask_topic(action, method, namespace_or_topic, topic_path, **options)

    def _is_partitioned(self, topic: str) -> bool:
        try:
            return not TopicName.parse(topic).is_partition and self.partitions(topic) > 0
        except TopicNotFound:
            return False


# ---- names into paths ------------------------------------------------------------------------------------------------


def _entity(name: str, what: str) -> str:
    # "." and ".." would act as path steps, even percent-encoded.
    if not isinstance(name, str) or not _ENTITY.fullmatch(name) or name in (".", ".."):
        raise InvalidConfiguration(f"Invalid {what} {name!r}: letters, digits and -=:._ are allowed")
    return quote(name, safe="")


def _namespace(namespace: str) -> str:
    parts = namespace.split("/") if isinstance(namespace, str) else []
    if len(parts) != 2:
        raise InvalidConfiguration(f"Invalid namespace {namespace!r}: write 'tenant/namespace'")
    return f"{_entity(parts[0], 'tenant')}/{_entity(parts[1], 'namespace')}"


def _subscription(name: str) -> str:
    if not isinstance(name, str) or not name.strip() or name in (".", ".."):
        raise InvalidConfiguration(f"Invalid subscription name {name!r}")
    check_encodable("The subscription name", name)
    # The broker decodes these names twice, too (broker-behaviour.md#decoded-twice).
    return quote(quote(name, safe=""), safe="")


def _checked(name: TopicName) -> TopicName:
    if {name.tenant, name.namespace_portion, name.local_name} & {".", ".."}:
        raise InvalidTopicName(f"The topic name {name.full!r} cannot be used over HTTP: '.' and '..' are path steps")
    return name


def _position(position: MessageId) -> dict[str, int]:
    if not isinstance(position, MessageId):
        raise InvalidConfiguration(f"position must be a MessageId, not {type(position).__name__}")
    return {
        "ledgerId": position.ledger_id(),
        "entryId": position.entry_id(),
        "partitionIndex": position.partition(),
        "batchIndex": position.batch_index(),
    }


def _check_partition(action: str, position: MessageId, name: TopicName) -> None:
    """Raise for the id of a message in another partition: the broker would take it for a place in this one."""
    index = position.partition()
    if index >= 0 and index != name.partition:
        raise InvalidConfiguration(
            f"{action} {name}: the id {position} is of partition {index}, which is another topic: name that, "
            f"'...-partition-{index}', or give an id of this one"
        )


def _is_namespace(name: str) -> bool:
    return isinstance(name, str) and "://" not in name and name.count("/") == 1


# ---- answers into values ---------------------------------------------------------------------------------------------


def _parsed(answer: HttpAnswer) -> object:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise ReadError("The admin interface did not answer in JSON") from error


def _object(answer: HttpAnswer) -> dict[str, object]:
    found = _parsed(answer)
    if not isinstance(found, dict):
        raise ReadError("The admin interface answered something else than an object")
    return found


def _shaped(answer: HttpAnswer, shape: type[_T]) -> _T:
    found: Any = _object(answer)
    typed: _T = found
    return typed


def _strings(answer: HttpAnswer) -> list[str]:
    found = _parsed(answer)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ReadError("The admin interface answered something else than a list of names")
    return found


def _number(found: dict[str, object], name: str) -> int:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ReadError(f"The answer of the admin interface has no number {name}")
    return value


def _message_id(found: object, partition: int | None = None) -> MessageId:
    if not isinstance(found, dict):
        raise ReadError("The admin interface answered something else than a message id")
    index = _number(found, "partitionIndex") if partition is None else partition
    return MessageId(index, _number(found, "ledgerId"), _number(found, "entryId"), _number(found, "batchIndex"))


def _schema_info(topic: TopicName, found: dict[str, object]) -> SchemaInfo:
    kind, data, properties = found.get("type"), found.get("data"), found.get("properties")
    if kind not in SchemaType.__members__:
        raise OperationNotSupported(f"The schema of {topic} is of the unknown kind {kind!r}", topic=topic.full)
    definition = str(data or "").encode()
    return SchemaInfo(
        name=topic.local_name,
        type=SchemaType[str(kind)],
        schema=definition_from_rest(definition) if kind == "KEY_VALUE" else definition,
        properties={str(k): str(v) for k, v in properties.items()} if isinstance(properties, dict) else {},
        version=_number(found, "version"),
    )
