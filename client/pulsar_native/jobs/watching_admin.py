"""Poll the admin interface until a subscription has a backlog or none, or a topic has a schema.

Rules: no consumer and no subscription is made, and nothing is changed. Calls of the admin interface block, so each look
runs in a thread of the loop's executor. A topic or subscription that does not exist yet is waited for.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pulsar_native.jobs import validation
from pulsar_native.jobs.backlog import backlogs
from pulsar_native.jobs.failures import JobRefused, explain

if TYPE_CHECKING:
    from pulsar_native import AdminClient

NO_ADMIN = "the admin interface is needed for it: set admin_url in the connection"
SCHEMA_TYPES = ("json", "avro", "protobuf", "protobuf_native", "string", "key_value", "bytes")


@dataclass(frozen=True)
class SubscriptionCondition:
    """At least `backlog` entries, or none with `caught_up`, in a subscription of one topic."""

    topic: str
    subscription: str
    backlog: int | None = None
    caught_up: bool = False

    @staticmethod
    def of(topic: object, subscription: object, backlog: object, caught_up: object) -> SubscriptionCondition:
        """Return the checked condition of rendered templates; raises ValueError naming the argument."""
        from pulsar_native.topic import TopicName

        name = TopicName.parse(validation.text("topic", topic))
        if not name.is_persistent:
            validation.refuse(f"{name.full} is not persistent: a non-persistent topic has no backlog")
        if not isinstance(caught_up, bool):
            validation.refuse(f"caught_up must be True or False, not {caught_up!r}")
        if (backlog in (None, "")) != caught_up:
            validation.refuse("give either backlog=N or caught_up=True")
        count = None if caught_up else validation.whole("backlog", backlog)
        return SubscriptionCondition(name.full, validation.text("subscription", subscription), count, caught_up)

    def __str__(self) -> str:
        what = "no backlog" if self.backlog is None else f"a backlog of at least {self.backlog:,} entries"
        return f"{what} of the subscription {self.subscription!r} in {self.topic}"


@dataclass(frozen=True)
class SchemaCondition:
    """A schema in the registry, of one type if named."""

    topic: str
    schema_type: str | None = None

    @staticmethod
    def of(topic: object, schema_type: object = None) -> SchemaCondition:
        """Return the checked condition of rendered templates; raises ValueError naming the argument."""
        from pulsar_native.topic import TopicName

        name = TopicName.parse(validation.text("topic", topic))
        kind = None if schema_type is None else validation.choice("schema_type", schema_type, SCHEMA_TYPES)
        return SchemaCondition(name.base.full, kind)

    def __str__(self) -> str:
        return f"a schema{f' of the type {self.schema_type}' if self.schema_type else ''} of {self.topic}"


class _AdminWatcher:
    """Parts that watchers of the admin interface share."""

    uses: Literal["client", "admin"] = "admin"

    def __init__(self, topic: str) -> None:
        self.seen = ""
        self.stage = "admin"
        self._topic = topic
        self._found = ""

    def failed(self, error: BaseException) -> None:
        """Record a check that failed; the last result stays part of the text."""
        text = explain(error, action=f"looking at {self._topic}", stage=self.stage)
        self.seen = f"{text} (before: {self._found})" if self._found else text

    def _saw(self, text: str) -> None:
        self.seen = self._found = text


class SubscriptionWatcher(_AdminWatcher):
    """Repeated check of a subscription's backlog, as the broker counts it: in entries, a batch being one."""

    def __init__(self, wanted: SubscriptionCondition) -> None:
        super().__init__(wanted.topic)
        self.wanted = wanted

    async def look(self, admin: AdminClient | None, /) -> dict[str, Any] | None:
        """Return topic, subscription and backlog if the condition holds, else None.

        Raises `JobRefused` without an admin client, and its errors.
        """
        from pulsar_native.exceptions import SubscriptionNotFound, TopicNotFound

        wanted = self.wanted
        if admin is None:
            raise JobRefused(f"{wanted}: {NO_ADMIN}")
        try:
            found = await asyncio.to_thread(backlogs, admin, wanted.topic, wanted.subscription)
        except TopicNotFound:
            self._saw("the topic does not exist")
            return None
        except SubscriptionNotFound:
            self._saw("the topic has no such subscription")
            return None
        count = sum(each.entries for each in found)
        self._saw(f"the backlog is {count:,} entries")
        holds = count == 0 if wanted.backlog is None else count >= wanted.backlog
        return {"topic": wanted.topic, "subscription": wanted.subscription, "backlog": count} if holds else None


class SchemaWatcher(_AdminWatcher):
    """Repeated check of the schema registry."""

    def __init__(self, wanted: SchemaCondition) -> None:
        super().__init__(wanted.topic)
        self.wanted = wanted

    async def look(self, admin: AdminClient | None, /) -> dict[str, Any] | None:
        """Return topic, type and version if there is such a schema, else None; raises as the other watcher."""
        if admin is None:
            raise JobRefused(f"{self.wanted}: {NO_ADMIN}")
        info = await asyncio.to_thread(admin.get_schema, self.wanted.topic)
        if info is None:
            self._saw("the topic has no schema")
            return None
        kind = info.type.name.lower()
        self._saw(f"the schema is of the type {kind}")
        if self.wanted.schema_type not in (None, kind):
            return None
        return {"topic": self.wanted.topic, "type": kind, "version": info.version}
