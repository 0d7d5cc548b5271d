"""Operator for policies of topics and namespaces: retention, TTL, backlog quotas, deduplication.

Needs the admin URL of the connection. Rules: what is not named stays as it is; the task ends when the broker answers
with what was set; a retry sets the same again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pulsar.exceptions import CheckedArguments, staged
from airflow_provider_pulsar.links.pulsar import PulsarTopicLink
from airflow_provider_pulsar.operators.admin import requested
from pulsar_native.jobs import validation
from pulsar_native.jobs.interval import is_template

if TYPE_CHECKING:
    from airflow.sdk import Context

    from pulsar_native import AdminClient

# Seconds until all brokers know a policy of a topic.
_POLICY_SECONDS = 30.0
_QUOTA_POLICY = "producer_request_hold"
REMOVE = "remove"
"""Value of a policy that removes what is set, so that the level above applies."""


class PulsarSetPoliciesOperator(CheckedArguments, BaseOperator):
    """Set retention, message TTL, backlog quotas and deduplication of a topic or a namespace, and wait until they hold.

    What is left out stays as it is; "remove" removes what is set, so that the level above applies. Numbers are whole.

    :param topic: the topic, which must exist. Templated. Exactly one of `topic` and `namespace` is needed.
    :param namespace: the namespace, as tenant/namespace, whatever the connection's default_namespace is. Templated.
    :param retention_minutes: how long acknowledged messages are kept, -1 without limit, 0 of both not at all; "remove"
        removes both limits. Needs `retention_mb` as well.
    :param retention_mb: up to how many megabytes, as above.
    :param message_ttl_seconds: after how many seconds messages are acknowledged for every subscription, 0 for never.
    :param backlog_quota_bytes: limit of a subscription's backlog, from 1; "remove" removes this and the next.
    :param backlog_quota_seconds: limit of the age of its oldest message, from 1.
    :param backlog_quota_policy: what happens at the limit: producer_request_hold (default: producers wait),
        producer_exception, or consumer_backlog_eviction (the oldest messages are acknowledged).
    :param deduplication: switch the broker's deduplication on or off.
    :param pulsar_conn_id: the connection, with an admin URL. Default pulsar_default.

    Returns topic or namespace, and for each policy named what holds now. A retry sets the same again.
    """

    template_fields: Sequence[str] = ("topic", "namespace")
    operator_extra_links = (PulsarTopicLink(),)
    ui_color = "#d5e8fb"

    def __init__(
        self,
        *,
        topic: str | None = None,
        namespace: str | None = None,
        retention_minutes: int | str | None = None,
        retention_mb: int | None = None,
        message_ttl_seconds: int | str | None = None,
        backlog_quota_bytes: int | str | None = None,
        backlog_quota_seconds: int | None = None,
        backlog_quota_policy: str = _QUOTA_POLICY,
        deduplication: bool | str | None = None,
        pulsar_conn_id: str = "pulsar_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (topic is None) == (namespace is None):
            validation.refuse("PulsarSetPoliciesOperator needs exactly one of topic and namespace")
        self.topic = topic
        self.namespace = namespace
        self.retention_minutes = retention_minutes
        self.retention_mb = retention_mb
        self.message_ttl_seconds = message_ttl_seconds
        self.backlog_quota_bytes = backlog_quota_bytes
        self.backlog_quota_seconds = backlog_quota_seconds
        self.backlog_quota_policy = backlog_quota_policy
        self.deduplication = deduplication
        self.pulsar_conn_id = pulsar_conn_id
        if isinstance(namespace, str) and not is_template(namespace):
            _checked_namespace(namespace)
        self._check()

    def _check(self) -> None:
        from pulsar_native.admin.stats import BACKLOG_QUOTA_POLICIES

        self.backlog_quota_policy = validation.choice(
            "backlog_quota_policy", self.backlog_quota_policy, BACKLOG_QUOTA_POLICIES
        )
        numbers = {
            "retention_minutes": (self.retention_minutes, -1),
            "retention_mb": (self.retention_mb, -1),
            "message_ttl_seconds": (self.message_ttl_seconds, 0),
            "backlog_quota_bytes": (self.backlog_quota_bytes, 1),
            "backlog_quota_seconds": (self.backlog_quota_seconds, 1),
        }
        for name, (value, least) in numbers.items():
            if value is not None and (value != REMOVE or name in ("retention_mb", "backlog_quota_seconds")):
                validation.number(name, value, least)
                if not isinstance(value, int):
                    validation.refuse(f"{name} must be a whole number, not {value!r}")
        given = [value for value, _ in numbers.values()] + [self.deduplication]
        if all(value is None for value in given):
            validation.refuse("PulsarSetPoliciesOperator has no policy to set")
        self._check_combinations()
        if self.deduplication is not None and self.deduplication != REMOVE and not isinstance(self.deduplication, bool):
            validation.refuse(f"deduplication must be True, False or 'remove', not {self.deduplication!r}")

    def _check_combinations(self) -> None:
        """Raise for limits that only hold together, and for those without effect beside others."""
        if self.retention_minutes != REMOVE and (self.retention_minutes is None) != (self.retention_mb is None):
            validation.refuse("retention_minutes and retention_mb belong together; -1 is without limit")
        if self.retention_minutes == REMOVE and self.retention_mb is not None:
            validation.refuse("retention_minutes='remove' removes both limits: leave retention_mb out")
        if (self.retention_minutes == 0) != (self.retention_mb == 0):
            validation.refuse(
                "retention_minutes and retention_mb are 0 only together, which keeps nothing: give -1 for the one that "
                "is not to limit"
            )
        if self.backlog_quota_bytes == REMOVE and self.backlog_quota_seconds is not None:
            validation.refuse("backlog_quota_bytes='remove' removes both limits: leave backlog_quota_seconds out")
        has_quota = self.backlog_quota_bytes not in (None, REMOVE) or self.backlog_quota_seconds is not None
        if self.backlog_quota_policy != _QUOTA_POLICY and not has_quota:
            validation.refuse("backlog_quota_policy belongs to backlog_quota_bytes or backlog_quota_seconds")

    def execute(self, context: Context) -> dict[str, Any]:
        """Set the policies, wait until the broker answers with them, and return them."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook
        from pulsar_native.topic import TopicName

        hook = PulsarHook(self.pulsar_conn_id)
        action = f"Setting the policies of {self.topic or self.namespace}"
        with staged(action, "arguments"):
            if self.topic is not None:
                self.topic = TopicName.parse(hook.topic_name(validation.text("topic", self.topic))).full
            place = self.topic or _checked_namespace(self.namespace)
        admin = hook.get_admin()
        if admin is None:
            raise AirflowFailException(f"{action}: the connection {self.pulsar_conn_id!r} has no admin URL")
        with admin, requested(action):
            found = {name: _applied(action, name, *step) for name, step in self._steps(admin, place).items()}
        self.log.info("%s: %s", action, found)
        return {"topic" if self.topic else "namespace": place, **found}

    def _steps(self, admin: AdminClient, place: str) -> dict[str, tuple[Callable[[], None], Callable[[], Any], Any]]:
        """Return for each policy: what sets it, what reads it, and what is to be read then."""
        minutes = self.retention_minutes
        retention = (minutes, self.retention_mb) if isinstance(minutes, int) else minutes
        policies: dict[str, tuple[Any, Callable[..., None], Callable[[str], None], Callable[[str], Any]]] = {
            "retention": (retention, admin.set_retention, admin.remove_retention, admin.get_retention),
            "message_ttl": (
                self.message_ttl_seconds,
                admin.set_message_ttl,
                admin.remove_message_ttl,
                admin.get_message_ttl,
            ),
            "deduplication": (
                self.deduplication,
                admin.set_deduplication,
                admin.remove_deduplication,
                admin.get_deduplication,
            ),
        }
        steps: dict[str, tuple[Callable[[], None], Callable[[], Any], Any]] = {}
        for name, (wanted, change, remove, read) in policies.items():
            if wanted == REMOVE:
                steps[name] = (partial(remove, place), partial(read, place), None)
            elif wanted is not None:
                values = wanted if isinstance(wanted, tuple) else (wanted,)
                steps[name] = (partial(change, place, *values), partial(read, place), wanted)
        if self.backlog_quota_bytes is not None or self.backlog_quota_seconds is not None:
            steps["backlog_quota"] = self._quota_step(admin, place)
        return steps

    def _quota_step(self, admin: AdminClient, place: str) -> tuple[Callable[[], None], Callable[[], Any], Any]:
        size, seconds, policy = self.backlog_quota_bytes, self.backlog_quota_seconds, self.backlog_quota_policy

        def read() -> dict[str, Any]:
            found: Mapping[str, Any] = admin.get_backlog_quotas(place)
            kinds = (("destination_storage", "limitSize"), ("message_age", "limitTime"))
            return {kind: [found[kind][limit], found[kind]["policy"]] for kind, limit in kinds if kind in found}

        if size == REMOVE:
            return lambda: admin.remove_backlog_quotas(place), read, {}
        given = {"destination_storage": size, "message_age": seconds}
        wanted = {kind: [limit, policy] for kind, limit in given.items() if limit is not None}
        limits: dict[str, Any] = {"limit_bytes": size, "limit_seconds": seconds}
        return (
            lambda: admin.set_backlog_quota(place, policy, **limits),  # type: ignore[arg-type]  # checked before
            lambda: {kind: limit for kind, limit in read().items() if kind in wanted},
            wanted,
        )


def _checked_namespace(value: object) -> str:
    """Return tenant/namespace; raise InvalidValue for anything else, such as a topic's name, which is a place too."""
    from airflow_provider_pulsar.hooks.settings import parse_namespace
    from pulsar_native.exceptions import InvalidTopicName

    text = validation.text("namespace", value)
    try:
        return parse_namespace(text)
    except InvalidTopicName:
        validation.refuse(f"namespace must be tenant/namespace, such as public/default, not {text!r}")


def _applied(action: str, name: str, change: Callable[[], None], read: Callable[[], Any], wanted: object) -> Any:
    """Set a policy and wait until the broker answers with it: it reads those of topics from a topic of its own."""
    change()
    deadline = time.monotonic() + _POLICY_SECONDS
    while (found := read()) != wanted:
        if time.monotonic() >= deadline:
            raise AirflowException(f"{action}: the broker has accepted {name}, but {found!r} holds, not {wanted!r}")
        time.sleep(0.1)
    # XCom stores a tuple as Airflow's own object, and a list as JSON.
    return list(found) if isinstance(found, tuple) else found
