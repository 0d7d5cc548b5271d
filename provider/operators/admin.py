"""Administration operators: topics, subscriptions, positions, schemas and compaction, as setup or teardown.

All need the admin URL of the connection. Rules: a retry of a finished step changes nothing and succeeds: something made
that is there already, or deleted that is not there, is no error unless asked for. A refusal of the broker fails the
task with its reason; one that no retry can mend fails it without retries. Each returns what it found and did.
"""

from __future__ import annotations

import json
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pulsar.arguments import Given, expanded_names
from airflow_provider_pulsar.exceptions import CheckedArguments, staged
from airflow_provider_pulsar.links.pulsar import PulsarTopicLink
from airflow_provider_pulsar.state import TaskState, cycle_of
from pulsar_native.jobs import validation
from pulsar_native.jobs.failures import explain

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pulsar.hooks.pulsar import PulsarHook
    from pulsar_native import AdminClient, MessageId
    from pulsar_native.exceptions import PulsarException

# Seconds between two looks at something the broker does in the background.
_LOOK_SECONDS = 0.5
# Seconds until reads use what was compacted.
_USE_SECONDS = 30.0
# A broker as installed has no limit, and begins to make any number; see broker-behaviour.md#partitions-without-limit.
_MOST_PARTITIONS = 10_000
# Types of schemas that need an Avro definition.
_AVRO_DEFINED = ("avro", "json", "protobuf")
_DONE_BEFORE = "%s: an earlier try has done it"
# Reasons of HTTP 412 that hold for every try: names that no topic can have, and policies of a partition. The others may
# pass: connected clients, subscriptions, a topic that moves to another broker, another policy.
_WRONG_FOR_GOOD = re.compile(r"""["']-partition-["']|for a partition""")


class _AdminOperator(CheckedArguments, BaseOperator):
    """One request, or a few, of the admin interface about one topic."""

    template_fields: Sequence[str] = ("topic",)
    operator_extra_links = (PulsarTopicLink(),)
    ui_color = "#d5e8fb"

    def __init__(self, *, topic: str, pulsar_conn_id: str = "pulsar_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.pulsar_conn_id = pulsar_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Do it and return what was done."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook

        hook = PulsarHook(self.pulsar_conn_id)
        with staged(self._action(), "arguments"):
            self.topic = self._named(hook)
            self._check_rendered()
        admin = hook.get_admin()
        if admin is None:
            raise AirflowFailException(
                f"{self._action()}: the connection {self.pulsar_conn_id!r} has no admin URL, which administration "
                "needs: fill in its field admin_url, such as http://broker:8080"
            )
        with admin, requested(self._action()):
            found = {"topic": self.topic, **self._run(admin, context)}
        self.log.info("%s: %s", self._action(), found)
        return found

    def _named(self, hook: PulsarHook) -> str:
        """Return the full name of the topic; raises for a wrong one."""
        from pulsar_native.topic import TopicName

        return TopicName.parse(hook.topic_name(validation.text("topic", self.topic))).full

    def _check_rendered(self) -> None:
        """Raise InvalidValue for an argument that is wrong once it is rendered."""

    def _action(self) -> str:
        return f"{type(self).__name__} of {self.topic}"

    @abstractmethod
    def _run(self, admin: AdminClient, context: Context) -> dict[str, Any]:
        """Do it and return what was done."""


# ---- topics ----------------------------------------------------------------------------------------------------------


class PulsarCreateTopicOperator(_AdminOperator):
    """Create a topic, or see that it is there.

    :param topic: the topic, in any spelling. Templated.
    :param partitions: number of partitions, at most 10000, 0 (default) for a topic without. An existing topic with
        fewer gets the missing ones; one with more, or of the other kind, fails the task: partitions cannot be removed.
    :param if_exists: "ok" (default), or "fail" without retries if the topic is there before.
    :param pulsar_conn_id: the connection, with an admin URL. Default pulsar_default.

    Returns topic, partitions, created (False if it was there) and partitions_before. A retry of a task that had created
    the topic, or had asked for it and got no answer, finds it; with if_exists="fail" the task's state tells that it is
    its own.
    """

    def __init__(self, *, topic: str, partitions: int = 0, if_exists: str = "ok", **kwargs: Any) -> None:
        super().__init__(topic=topic, **kwargs)
        self.partitions = validation.whole("partitions", partitions, 0, maximum=_MOST_PARTITIONS)
        self.if_exists = validation.choice("if_exists", if_exists, ("ok", "fail"))

    def _run(self, admin: AdminClient, context: Context) -> dict[str, Any]:
        from pulsar_native.admin import AlreadyExists
        from pulsar_native.exceptions import PulsarException

        state = TaskState(context, "created_topic")
        note = {"topic": self.topic, "partitions": self.partitions}
        is_own = state.get() == note
        # Noted before, since the answer can be lost, or this try end before it arrives.
        state.set(note)
        try:
            if self.partitions:
                admin.create_partitioned_topic(self.topic, self.partitions)
            else:
                admin.create_topic(self.topic)
            return {"partitions": self.partitions, "created": True, "partitions_before": None}
        except PulsarException as error:
            is_there = isinstance(error, AlreadyExists)
            if not is_own and (is_there or not _may_have_been_executed(error)):
                state.delete()
            if not is_there:
                raise
            if self.if_exists == "fail" and not is_own:
                raise AirflowFailException(f"{self._action()}: it exists already") from error
        before = admin.partitions(self.topic)
        if before > self.partitions or (before == 0) != (self.partitions == 0):
            raise AirflowFailException(
                f"{self._action()}: it has {before} partitions, not {self.partitions}; partitions can only be added, "
                "and only to a partitioned topic"
            )
        if before < self.partitions:
            admin.update_partitions(self.topic, self.partitions)
        return {"partitions": self.partitions, "created": False, "partitions_before": before}


class PulsarDeleteTopicOperator(_AdminOperator):
    """Delete a topic with its partitions, messages and schema; as teardown of PulsarCreateTopicOperator too.

    :param topic: the topic, in any spelling. Templated.
    :param force: delete it although it has subscriptions or connected clients. Default False: that fails the task.
    :param if_missing: "ok" (default), or "fail" without retries if the topic is not there.
    :param pulsar_conn_id: the connection, with an admin URL. Default pulsar_default.

    Returns topic and deleted (False if it was not there). A retry of a task that had deleted it, or had asked for that
    and got no answer, succeeds with if_missing="fail" too; a task that is cleared does not.
    """

    def __init__(self, *, topic: str, force: bool = False, if_missing: str = "ok", **kwargs: Any) -> None:
        super().__init__(topic=topic, **kwargs)
        self.force = force
        self.if_missing = validation.choice("if_missing", if_missing, ("ok", "fail"))

    def _run(self, admin: AdminClient, context: Context) -> dict[str, Any]:
        note = {"topic": self.topic, "cycle": cycle_of(context, self.retries)}
        state = TaskState(context, "deleted_topic")
        return _deleted(lambda: admin.delete_topic(self.topic, force=self.force), self.if_missing, state, note)


# ---- subscriptions ---------------------------------------------------------------------------------------------------


class _SubscriptionOperator(_AdminOperator):
    """A request about a durable subscription."""

    template_fields: Sequence[str] = ("topic", "subscription")

    def __init__(self, *, topic: str, subscription: str, **kwargs: Any) -> None:
        super().__init__(topic=topic, **kwargs)
        self.subscription = subscription

    def _check_rendered(self) -> None:
        validation.text("subscription", self.subscription)

    def _action(self) -> str:
        return f"{type(self).__name__} of {self.topic}, {self.subscription}"


class PulsarCreateSubscriptionOperator(_SubscriptionOperator):
    """Create a durable subscription, or see that it is there; the topic must exist.

    :param topic: the topic, in any spelling; a partitioned one gets it on every partition. Templated.
    :param subscription: the subscription's name. Templated.
    :param position: where it begins: "earliest" (default), "latest", or a message id as in a manifest,
        "ledger:entry:partition:batch_index"; of a partitioned topic only the first two (create it there, and move its
        partitions with PulsarResetCursorOperator). An existing subscription stays where it is. Templated.
    :param pulsar_conn_id: the connection, with an admin URL. Default pulsar_default.

    Returns topic, subscription and created (False if it was there).
    """

    template_fields: Sequence[str] = ("topic", "subscription", "position")

    def __init__(self, *, topic: str, subscription: str, position: str = "earliest", **kwargs: Any) -> None:
        super().__init__(topic=topic, subscription=subscription, **kwargs)
        self.position = position

    def _run(self, admin: AdminClient, context: Context) -> dict[str, Any]:
        from pulsar_native.admin import AlreadyExists

        position = _position(self.position)
        try:
            admin.create_subscription(self.topic, self.subscription, position)
        except AlreadyExists:
            return {"subscription": self.subscription, "created": False}
        return {"subscription": self.subscription, "created": True}


class PulsarDeleteSubscriptionOperator(_SubscriptionOperator):
    """Delete a durable subscription; as teardown of PulsarCreateSubscriptionOperator too.

    :param topic: the topic, in any spelling. Templated.
    :param subscription: the subscription's name. Templated.
    :param force: delete it although consumers are connected, which are disconnected. Default False: that fails the
        task.
    :param if_missing: "ok" (default), or "fail" without retries if topic or subscription are not there.
    :param pulsar_conn_id: the connection, with an admin URL. Default pulsar_default.

    Returns topic, subscription and deleted (False if it was not there). A retry of a task that had deleted it, or had
    asked for that and got no answer, succeeds with if_missing="fail" too; a task that is cleared does not.
    """

    def __init__(
        self, *, topic: str, subscription: str, force: bool = False, if_missing: str = "ok", **kwargs: Any
    ) -> None:
        super().__init__(topic=topic, subscription=subscription, **kwargs)
        self.force = force
        self.if_missing = validation.choice("if_missing", if_missing, ("ok", "fail"))

    def _run(self, admin: AdminClient, context: Context) -> dict[str, Any]:
        found = {"subscription": self.subscription}
        note = {"topic": self.topic, **found, "cycle": cycle_of(context, self.retries)}
        done = _deleted(
            lambda: admin.delete_subscription(self.topic, self.subscription, force=self.force),
            self.if_missing,
            TaskState(context, "deleted_subscription"),
            note,
        )
        return {**found, **done}


class PulsarResetCursorOperator(_SubscriptionOperator):
    """Move a subscription to a time or a message: what follows is delivered again, what precedes is acknowledged.

    Connected consumers are disconnected and connect again.

    :param topic: the topic, in any spelling. Templated.
    :param subscription: the subscription's name. Templated.
    :param timestamp: the first message published at or after it comes next: a datetime, ISO-8601 text (UTC without a
        zone) or milliseconds. Templated. Exactly one of `timestamp` and `position` is needed.
    :param position: "earliest", "latest", or a message id as in a manifest, "ledger:entry:partition:batch_index". Of a
        partitioned topic the words move all partitions, an id its partition only, which it must name. Templated.
    :param excluded: with an id, begin after its message. Default False.
    :param pulsar_conn_id: the connection, with an admin URL. Default pulsar_default.

    Returns topic, subscription and position. A retry of a try that had moved it changes nothing, one of a try that had
    moved some of the partitions moves all; a task that is cleared moves it again.
    """

    template_fields: Sequence[str] = ("topic", "subscription", "timestamp", "position")

    def __init__(
        self,
        *,
        topic: str,
        subscription: str,
        timestamp: datetime | str | int | None = None,
        position: str | None = None,
        excluded: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(topic=topic, subscription=subscription, **kwargs)
        if (timestamp is None) == (position is None):
            validation.refuse("PulsarResetCursorOperator needs exactly one of timestamp and position")
        self._by_time = timestamp is not None
        self.timestamp = timestamp
        self.position = position
        self.excluded = excluded

    def _run(self, admin: AdminClient, context: Context) -> dict[str, Any]:
        from pulsar_native import MessageId
        from pulsar_native.topic import TopicName

        target: MessageId | int
        topic, moved = self.topic, [self.topic]
        if self._by_time:
            if self.timestamp is None or self.timestamp in ("", "None"):
                validation.refuse("timestamp rendered to nothing")
            target = validation.publish_time("timestamp", self.timestamp)
        else:
            target, parts = _position(self.position), _partitions(admin, topic)
            if target in (MessageId.earliest, MessageId.latest):
                # The broker moves a partitioned topic to a time only.
                moved = parts or [topic]
            elif parts or not TopicName.parse(topic).is_partition:
                topic = self._owner(target, parts)
                moved = [topic]
        found = {"topic": topic, "subscription": self.subscription, "position": str(target)}
        state = TaskState(context, "cursor_reset")
        done = {**found, "excluded": self.excluded, "done": cycle_of(context, self.retries)}
        if state.get() == done:
            self.log.info(_DONE_BEFORE, self._action())
            return found
        for each in moved:
            admin.reset_cursor(each, self.subscription, target, excluded=self.excluded)
        # This try can still fail before Airflow has recorded its success, and consumers go on meanwhile.
        state.set(done)
        return found

    def _owner(self, target: MessageId, parts: Sequence[str]) -> str:
        """Return the topic or partition that an id belongs to; raises InvalidValue for an id of none."""
        index = target.partition()
        if not parts and index >= 0:
            validation.refuse(
                f"position={self.position!r} is of partition {index}, but {self.topic} has no partitions: give an id "
                "of this topic, whose partition is -1"
            )
        if parts and not 0 <= index < len(parts):
            validation.refuse(
                f"position={self.position!r} names no partition of {self.topic}, which has 0 to {len(parts) - 1}: "
                "write 'ledger:entry:partition'"
            )
        return parts[index] if parts else self.topic


class PulsarSkipMessagesOperator(_SubscriptionOperator):
    """Acknowledge the next messages of a subscription, or all of them, without consuming them.

    :param topic: the topic, in any spelling; with `count` one without partitions, or one partition. Templated.
    :param subscription: the subscription's name. Templated.
    :param count: how many entries to skip, from 1: an entry is a message, or a batch of them. Default None: the whole
        backlog. Templated.
    :param older_than_seconds: skip messages that are older than so many seconds instead, from 1. Default None.
    :param pulsar_conn_id: the connection, with an admin URL. Default pulsar_default.

    Returns topic, subscription, and skipped: "all", "older than N s", or with `count` the number of entries that were
    skipped. Fewer than `count`, or 0, where the backlog had no more: that is a success, with a warning in the log. What
    consumers acknowledge meanwhile counts as skipped, up to `count`. A retry of a try that had skipped skips nothing
    more and returns the same number, with `count` after a lost answer too. A task that had skipped and is cleared skips
    the next ones.
    """

    template_fields: Sequence[str] = ("topic", "subscription", "count", "older_than_seconds")

    def __init__(
        self,
        *,
        topic: str,
        subscription: str,
        count: int | str | None = None,
        older_than_seconds: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(topic=topic, subscription=subscription, **kwargs)
        if count is not None and older_than_seconds is not None:
            validation.refuse("PulsarSkipMessagesOperator takes count or older_than_seconds, not both")
        self._has_limit = count is not None or older_than_seconds is not None
        self.count = count
        self.older_than_seconds = older_than_seconds

    def _run(self, admin: AdminClient, context: Context) -> dict[str, Any]:
        seconds = count = None
        skipped: object = "all"
        if self.older_than_seconds not in (None, ""):
            seconds = validation.whole("older_than_seconds", self.older_than_seconds)
            skipped = f"older than {seconds} s"
        elif self.count not in (None, ""):
            skipped = count = validation.whole("count", self.count)
        elif self._has_limit or not {"count", "older_than_seconds"}.isdisjoint(expanded_names(self)):
            # A template or result that rendered to nothing must not clear everything.
            validation.refuse("count and older_than_seconds rendered to nothing")
        found = {"subscription": self.subscription, "skipped": skipped}
        state = TaskState(context, "skip_request")
        request = {"topic": self.topic, "subscription": self.subscription, "count": skipped}
        done = {**request, "done": cycle_of(context, self.retries)}
        noted = state.get() or {}
        if noted == {**noted, **done}:
            self.log.info(_DONE_BEFORE, self._action())
            return {**found, "skipped": noted.get("skipped", skipped)}
        if seconds is not None:
            admin.expire_messages(self.topic, self.subscription, seconds)
        elif count is not None:
            found["skipped"] = self._skip(admin, state, request, noted if noted == {**noted, **request} else {})
        else:
            admin.clear_backlog(self.topic, self.subscription)
        # Kept: this try can still fail before Airflow has recorded its success.
        state.set({**done, "skipped": found["skipped"]})
        return found

    def _skip(self, admin: AdminClient, state: TaskState, request: dict[str, Any], noted: Mapping[str, Any]) -> int:
        """Skip once, and return the number of entries that were skipped; logs a warning for fewer than `count`.

        An earlier try's request whose answer was lost is not repeated if the broker has executed it.
        """
        from pulsar_native.admin import cursor_of
        from pulsar_native.exceptions import PulsarException, SubscriptionNotFound

        count = request["count"]
        if parts := _partitions(admin, self.topic):
            validation.refuse(
                f"count is for one topic or partition, and {self.topic} is partitioned: give one of its partitions, "
                f"such as {parts[0]}, or older_than_seconds, or leave both out to skip everything"
            )
        stats = admin.internal_stats(self.topic)
        cursor = cursor_of(stats, self.subscription)
        if cursor is None:
            raise SubscriptionNotFound(f"there is no subscription {self.subscription!r}", topic=self.topic)
        at = _numbers(cursor["markDeletePosition"])
        # One that moved less was moved by a consumer, or back by a reset.
        if "to" in noted and noted["at"] < at and noted["to"] <= at:
            there = int(noted.get("there", count))
            self.log.warning(
                "%s: the answer to an earlier try was lost, and the subscription has moved on by %d entries or more "
                "since: they count as skipped",
                self._action(),
                there,
            )
            return there
        # The broker skips those that are there, and does not return their number.
        added, consumed = _counters(stats, cursor)
        there = max(0, min(count, added - consumed))
        state.set({**request, "at": at, "to": _position_after(stats, at, count), "there": there})
        try:
            admin.skip_messages(self.topic, self.subscription, count)
        except PulsarException as error:
            if not _may_have_been_executed(error):
                state.delete()
            raise
        skipped = self._consumed_since(admin, (added, consumed), there, count)
        if skipped < count:
            self.log.warning("%s: the backlog had %d entries to skip, not %d", self._action(), skipped, count)
        return skipped

    def _consumed_since(self, admin: AdminClient, before: tuple[int, int], there: int, count: int) -> int:
        """Return how many entries were acknowledged, at most `count`; `there` where the counters do not show it."""
        from pulsar_native.admin import cursor_of
        from pulsar_native.exceptions import PulsarException

        try:
            stats = admin.internal_stats(self.topic)
        except PulsarException as error:
            self.log.warning("%s: the backlog afterwards is not known: %s", self._action(), error)
            return there
        cursor = cursor_of(stats, self.subscription)
        if cursor is None:
            return there
        added, consumed = _counters(stats, cursor)
        # Both begin again when the topic is loaded again.
        return there if added < before[0] else max(0, min(count, consumed - before[1]))


# ---- schemas ---------------------------------------------------------------------------------------------------------


class PulsarUploadSchemaOperator(_AdminOperator):
    """Register a schema for a topic; the one it has already keeps its version.

    :param topic: the topic, in any spelling. Templated.
    :param schema_type: avro, json, protobuf, string, bytes, or another name of `SchemaType`.
    :param schema_definition: the definition that avro, json and protobuf need: an Avro record definition as a dict or
        as JSON. Default none. Templated; one that is None, empty or no definition then fails the task without retries,
        before anything is sent.
    :param schema_properties: properties of the schema, texts by text. Default none.
    :param pulsar_conn_id: the connection, with an admin URL. Default pulsar_default.

    Returns topic, version (from 0) and type. An incompatible schema fails the task without retries.
    """

    template_fields: Sequence[str] = ("topic", "schema_definition")
    template_fields_renderers = {"schema_definition": "json"}  # noqa: RUF012

    def __init__(
        self,
        *,
        topic: str,
        schema_type: str,
        schema_definition: Mapping[str, Any] | str | None = None,
        schema_properties: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        from pulsar_native.schema import SchemaType

        super().__init__(topic=topic, **kwargs)
        kinds = tuple(kind.name.lower() for kind in SchemaType if kind.value >= -1)
        self.schema_type = validation.choice("schema_type", schema_type, kinds)
        self.schema_definition = schema_definition
        self.schema_properties = dict(schema_properties or {})
        if self.schema_type in _AVRO_DEFINED and not schema_definition:
            validation.refuse(f"schema_type={self.schema_type!r} needs schema_definition")
        self._given = Given(self, "schema_definition")

    def _check_rendered(self) -> None:
        self._given.check(self)
        self._definition()

    def _definition(self) -> bytes:
        """Return the definition as it is sent; raises InvalidValue for what is none."""
        from pulsar_native.schema import InvalidRecord
        from pulsar_native.schema.key_value import definition_to_rest

        definition = self._encoded()
        if self.schema_type == "key_value":
            try:
                definition_to_rest(definition)
            except InvalidRecord as error:
                validation.refuse(f"schema_definition: {error}")
        return definition

    def _encoded(self) -> bytes:
        given = self.schema_definition
        if given is None:
            return b""
        # A list is a union of Avro's.
        if not isinstance(given, str | Mapping | list):
            validation.refuse(f"schema_definition must be a dict or its JSON text, not {given!r}")
        try:
            text = given if isinstance(given, str) else json.dumps(given, allow_nan=False)
            if self.schema_type in _AVRO_DEFINED and not isinstance(json.loads(text), dict | list | str):
                validation.refuse(f"schema_definition must be an Avro definition, not {text!r}")
            return text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            if isinstance(error, validation.InvalidValue):
                raise
            validation.refuse(f"schema_definition is not JSON: {error}")

    def _run(self, admin: AdminClient, context: Context) -> dict[str, Any]:
        from pulsar_native.admin import AdminError
        from pulsar_native.schema import SchemaInfo, SchemaType

        kind = SchemaType[self.schema_type.upper()]
        try:
            version = admin.upload_schema(self.topic, SchemaInfo("", kind, self._definition(), self.schema_properties))
        except AdminError as error:
            if error.status in (409, 422):
                raise AirflowFailException(f"{self._action()}: {error}") from error
            raise
        return {"version": version, "type": kind.name}


class PulsarDeleteSchemaOperator(_AdminOperator):
    """Delete the schema of a topic; a topic without one is no error.

    :param topic: the topic, in any spelling. Templated.
    :param force: delete all its versions for good. Default False: later versions count on.
    :param pulsar_conn_id: the connection, with an admin URL. Default pulsar_default.

    Returns topic and deleted (False if there was none).
    """

    def __init__(self, *, topic: str, force: bool = False, **kwargs: Any) -> None:
        super().__init__(topic=topic, **kwargs)
        self.force = force

    def _run(self, admin: AdminClient, context: Context) -> dict[str, Any]:
        there = admin.get_schema(self.topic) is not None
        if there or self.force:
            admin.delete_schema(self.topic, force=self.force)
        return {"deleted": there}


# ---- compaction ------------------------------------------------------------------------------------------------------


class PulsarCompactTopicOperator(_AdminOperator):
    """Compact a topic: afterwards readers of the compacted view get the last message of each key only.

    :param topic: the topic, in any spelling; of a partitioned one all partitions are compacted. Templated.
    :param wait: wait until it is done (default True); a failed compaction fails the task.
    :param timeout_seconds: how long to wait, from 1, default 3600, for all partitions together. What runs on is waited
        for by the next try.
    :param pulsar_conn_id: the connection, with an admin URL. Default pulsar_default.

    Returns topic and status by topic or partition: SUCCESS, or RUNNING without `wait`, also for a compaction that ran
    already, which may not cover the last messages.
    """

    def __init__(self, *, topic: str, wait: bool = True, timeout_seconds: float = 3600, **kwargs: Any) -> None:
        super().__init__(topic=topic, **kwargs)
        validation.number("timeout_seconds", timeout_seconds, 1)
        self.wait = wait
        self.timeout_seconds = timeout_seconds
        self._killed = False

    def _run(self, admin: AdminClient, context: Context) -> dict[str, Any]:
        deadline = time.monotonic() + self.timeout_seconds
        try:
            topics = _partitions(admin, self.topic) or [self.topic]
            before = {topic: _compacted_ledger(admin, topic) for topic in topics}
            for topic in topics:
                self._start(admin, topic, deadline)
            status = {topic: self._ended(admin, topic, deadline) for topic in topics}
            if self.wait:
                for topic in topics:
                    self._used(admin, topic, before[topic], deadline)
        finally:
            # The operator may be executed again in this process, as by `dag.test()`.
            self._killed = False
        return {"status": status}

    def _start(self, admin: AdminClient, topic: str, deadline: float) -> None:
        from pulsar_native.admin import AdminError

        try:
            admin.compact(topic)
        except AdminError as error:
            # One that runs already was begun before the last messages: it is waited for, and then another one is begun.
            if error.status != 409:
                raise
            if not self.wait:
                return
            self._ended(admin, topic, deadline)
            admin.compact(topic)

    def _ended(self, admin: AdminClient, topic: str, deadline: float) -> str:
        while True:
            found = admin.compaction_status(topic)
            status = str(found.get("status"))
            if status == "ERROR":
                raise AirflowException(
                    f"{self._action()}: the broker could not compact {topic}: {found.get('lastError')}"
                )
            if status != "RUNNING" or not self.wait:
                return status
            self._check_killed()
            if time.monotonic() >= deadline:
                raise AirflowException(f"{self._action()}: {topic} is not compacted after {self.timeout_seconds:g} s")
            time.sleep(_LOOK_SECONDS)

    def _used(self, admin: AdminClient, topic: str, before: int, deadline: float) -> None:
        """Wait until reads use the new compacted ledger, since SUCCESS comes a moment too early.

        See broker-behaviour.md#compaction-in-use. A topic without messages gets none.
        """
        deadline = min(deadline, time.monotonic() + _USE_SECONDS)
        while _compacted_ledger(admin, topic) in (before, -1):
            if not admin.internal_stats(topic).get("numberOfEntries"):
                return
            self._check_killed()
            if time.monotonic() >= deadline:
                self.log.warning("%s: %s is compacted, but reads may not use that yet", self._action(), topic)
                return
            time.sleep(_LOOK_SECONDS)

    def _check_killed(self) -> None:
        if self._killed:
            raise AirflowException(f"{self._action()}: the task was killed")

    def on_kill(self) -> None:
        """End the wait; the broker goes on compacting."""
        self._killed = True


# ---- steps -----------------------------------------------------------------------------------------------------------


@contextmanager
def requested(action: str) -> Iterator[None]:
    """Convert the errors of requests to Airflow's; one that the broker refuses in every try fails the task at once."""
    from pulsar_native.admin import AdminError
    from pulsar_native.exceptions import NotAllowedError

    with staged(action, "request"):
        try:
            yield
        except NotAllowedError as error:  # HTTP 405
            raise AirflowFailException(explain(error, action=action, stage="request")) from error
        except AdminError as error:
            if error.status == 412 and _WRONG_FOR_GOOD.search(error.reason):
                raise AirflowFailException(explain(error, action=action, stage="request")) from error
            raise


def _deleted(delete: Callable[[], None], if_missing: str, state: TaskState, note: Mapping[str, Any]) -> dict[str, Any]:
    """Delete; what is missing counts as deleted by an earlier try if that has left this note."""
    from pulsar_native.exceptions import PulsarException, SubscriptionNotFound, TopicNotFound

    is_own = state.get() == note
    # Noted before, since the answer can be lost, or this try end before it arrives.
    state.set(note)
    try:
        delete()
    except PulsarException as error:
        is_missing = isinstance(error, TopicNotFound | SubscriptionNotFound)
        if not is_own and (is_missing or not _may_have_been_executed(error)):
            state.delete()
        if not is_missing:
            raise
        if if_missing == "fail" and not is_own:
            raise AirflowFailException(str(error)) from error
        return {"deleted": False}
    return {"deleted": True}


def _partitions(admin: AdminClient, topic: str) -> list[str]:
    """Return the partitions of a partitioned topic, none for another one."""
    from pulsar_native.topic import TopicName

    name = TopicName.parse(topic)
    count = 0 if name.is_partition else admin.partitions(topic)
    return [name.with_partition(index).full for index in range(count)]


def _position(text: object) -> MessageId:
    """Return the id of "earliest", "latest" or "ledger:entry[:partition[:batch_index]]"; raises ValueError."""
    from pulsar_native import MessageId

    if isinstance(text, str):
        word = text.strip().lower()
        if word in ("earliest", "latest"):
            return MessageId.earliest if word == "earliest" else MessageId.latest
        parts = word.split(":")
        try:
            numbers = [int(part) for part in parts]
        except ValueError:
            numbers = []
        if 2 <= len(numbers) <= 4:
            ledger, entry, partition, index = [*numbers, -1, -1][:4] if len(numbers) < 4 else numbers
            return MessageId(partition, ledger, entry, index)
    validation.refuse(f"position must be 'earliest', 'latest' or 'ledger:entry:partition:batch_index', not {text!r}")


def _compacted_ledger(admin: AdminClient, topic: str) -> int:
    return admin.internal_stats(topic).get("compactedLedger", {}).get("ledgerId", -1)


def _numbers(position: str) -> list[int]:
    """Return ledger and entry of a position in the broker's statistics, which compare in the order of the topic."""
    ledger, entry = position.split(":")
    return [int(ledger), int(entry)]


def _counters(stats: Mapping[str, Any], cursor: Mapping[str, Any]) -> tuple[int, int]:
    """Return the broker's counters of entries published and acknowledged, whose difference is the backlog."""
    return int(stats["entriesAddedCounter"]), int(cursor["messagesConsumedCounter"])


def _position_after(stats: Mapping[str, Any], at: list[int], count: int) -> list[int]:
    """Return the position `count` entries after another one, or the last position if there are fewer."""
    ledgers = {ledger["ledgerId"]: ledger["entries"] for ledger in stats["ledgers"]}
    if ledgers:
        # The open ledger has none in the list.
        ledgers[max(ledgers)] = stats["currentLedgerEntries"]
    position = at
    for ledger in sorted(each for each in ledgers if each >= at[0]):
        first = at[1] + 1 if ledger == at[0] else 0
        there = max(0, min(count, ledgers[ledger] - first))
        if there:
            position, count = [ledger, first + there - 1], count - there
    return position


def _may_have_been_executed(error: PulsarException) -> bool:
    """Return True for the error of a request that was sent, if it was not refused by the broker."""
    from pulsar_native.admin import AdminError
    from pulsar_native.exceptions import ConnectError, ReadError, ServiceUnitNotReady, Timeout

    if isinstance(error, AdminError):
        # A web server between may have got no answer, or lost it.
        return error.status >= 500
    return isinstance(error, ReadError | ServiceUnitNotReady | Timeout) and not isinstance(error, ConnectError)
