"""Policies operator on a fake admin interface: what is asked of it, what holds, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_pulsar.operators import policies as module
from airflow_provider_pulsar.operators.policies import PulsarSetPoliciesOperator
from support.brokers import NewTopic
from support.clock import stopped_clock
from support.tasks import context_of, define_connection


class FakeAdmin:
    """Admin interface that keeps policies of one namespace; `calls` are what changed them. Some may have no effect."""

    def __init__(self, *without_effect: str) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.found: dict[str, Any] = {}
        self._without_effect = without_effect

    def __getattr__(self, name: str) -> Any:
        verb, _, policy = name.partition("_")

        def call(place: str, *values: Any) -> Any:
            assert place == "a/b"
            if verb == "get":
                return self.found.get(policy)
            self.calls.append((name, *values))
            if policy in self._without_effect:
                return None
            self.found[policy] = None if verb == "remove" else values[0] if len(values) == 1 else values
            return None

        assert verb in ("get", "set", "remove") and policy in ("retention", "message_ttl", "deduplication")
        return call


def applied(admin: FakeAdmin, **policies: Any) -> dict[str, Any]:
    """Set policies of a namespace and return what holds then."""
    operator = PulsarSetPoliciesOperator(task_id="t", namespace="a/b", **policies)
    steps = operator._steps(admin, "a/b")  # type: ignore[arg-type]
    return {name: module._applied("Setting", name, *step) for name, step in steps.items()}


@pytest.mark.parametrize(
    ("policies", "calls", "found"),
    [
        (
            {"retention_minutes": 0, "retention_mb": 0, "message_ttl_seconds": 0, "deduplication": False},
            [("set_retention", 0, 0), ("set_message_ttl", 0), ("set_deduplication", False)],
            {"retention": [0, 0], "message_ttl": 0, "deduplication": False},
        ),
        ({"message_ttl_seconds": 60}, [("set_message_ttl", 60)], {"message_ttl": 60}),
        (
            {"retention_minutes": "remove", "deduplication": "remove", "message_ttl_seconds": "remove"},
            [("remove_retention",), ("remove_message_ttl",), ("remove_deduplication",)],
            {"retention": None, "message_ttl": None, "deduplication": None},
        ),
    ],
    ids=["falsy", "one", "remove"],
)
def test_policies_named_are_set_and_no_others(
    policies: dict[str, Any], calls: list[tuple[Any, ...]], found: dict[str, Any]
) -> None:
    admin = FakeAdmin()
    assert applied(admin, **policies) == found
    assert admin.calls == calls


@pytest.mark.parametrize("name", ["message_ttl_seconds", "backlog_quota_bytes", "backlog_quota_seconds"])
def test_policy_of_broken_number_raises(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number, not 1.5"):
        PulsarSetPoliciesOperator(task_id="t", namespace="a/b", **{name: 1.5})  # type: ignore[arg-type]


@pytest.mark.parametrize(("minutes", "mb"), [(-1, 0), (0, -1), (5, 0), (0, 5)])
def test_retention_zero_of_one_limit_raises(minutes: int, mb: int) -> None:
    with pytest.raises(ValueError, match="0 only together"):
        PulsarSetPoliciesOperator(task_id="t", namespace="a/b", retention_minutes=minutes, retention_mb=mb)


NO_NAMESPACES = pytest.mark.parametrize(
    "name", ["b", "a/b/c", "persistent://a/b", "persistent://a/b/c", "a/", "/b", "a b/c", " a/b ", " "]
)


@NO_NAMESPACES
def test_namespace_of_other_form_raises_at_parsing(name: str) -> None:
    with pytest.raises(ValueError, match="namespace must be"):
        PulsarSetPoliciesOperator(task_id="t", namespace=name, message_ttl_seconds=1)


@NO_NAMESPACES
def test_namespace_rendered_to_other_form_is_final(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    define_connection(monkeypatch, service_url="pulsar://127.0.0.1:1", admin_url="http://127.0.0.1:1")
    operator = PulsarSetPoliciesOperator(task_id="t", namespace="{{ params.place }}", message_ttl_seconds=1)
    operator.namespace = name
    with pytest.raises(AirflowFailException, match="namespace must be"):
        operator.execute(context_of())  # type: ignore[arg-type]  # what it uses of one


def test_policy_of_a_partition_is_final(topic: NewTopic, pulsar_conn: str) -> None:
    name = topic(partitions=2)
    operator = PulsarSetPoliciesOperator(task_id="t", topic=f"{name}-partition-0", message_ttl_seconds=1)
    with pytest.raises(AirflowFailException, match="for a partition"):
        operator.execute(context_of())  # type: ignore[arg-type]  # what it uses of one


def test_policy_without_effect_raises_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = stopped_clock(monkeypatch, module)
    clock.sleep = clock.advance
    began = clock.monotonic()
    with pytest.raises(AirflowException, match=r"accepted message_ttl, but None holds, not 60"):
        applied(FakeAdmin("message_ttl"), message_ttl_seconds=60)
    assert 30 <= clock.monotonic() - began < 31
