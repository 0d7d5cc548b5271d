"""Admin errors: responses mapped to exceptions, with the broker's reason and without secrets."""

from __future__ import annotations

import json
import pickle

import pytest

from pulsar_native._http import HttpAnswer
from pulsar_native.admin.errors import AdminError, AlreadyExists, NotFound, refusal
from pulsar_native.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NotAllowedError,
    PulsarException,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    TopicNotFound,
)

TOPIC = "persistent://public/default/x"


def said(status: int, reason: str | None) -> HttpAnswer:
    """Return an answer with the broker's JSON, or with another web server's page."""
    body = json.dumps({"reason": reason}).encode() if reason is not None else b"<html>No</html>"
    return HttpAnswer(status, "Phrase", {}, body)


@pytest.mark.parametrize(
    ("status", "reason", "topic", "kind"),
    [
        (401, None, TOPIC, AuthenticationError),
        (401, "Need to authenticate to perform the request", TOPIC, AuthenticationError),
        (401, "Unauthorized to validateTopicOperation", TOPIC, AuthorizationError),
        (403, "Unauthorized", TOPIC, AuthorizationError),
        (404, "Topic not found", TOPIC, TopicNotFound),
        (404, "Subscription s not found for topic x", TOPIC, SubscriptionNotFound),
        (404, "Tenant not found", None, NotFound),
        (404, None, TOPIC, AdminError),
        (405, "on a partitioned topic is not allowed", TOPIC, NotAllowedError),
        (409, "This topic already exists", TOPIC, AlreadyExists),
        (409, "is not the partitioned topic", TOPIC, AdminError),
        (412, "in use", TOPIC, AdminError),
        (422, "can't be less", TOPIC, AdminError),
        (500, "oh", TOPIC, AdminError),
        (503, "loading", TOPIC, ServiceUnitNotReady),
    ],
)
def test_refusal_class_by_status_and_reason(
    status: int, reason: str | None, topic: str | None, kind: type[PulsarException]
) -> None:
    error = refusal("do it", said(status, reason), topic=topic, broker="host:1")
    assert type(error) is kind
    assert (error.topic, error.broker) == (topic, "host:1")
    assert str(error).startswith(f"do it: {reason or 'Phrase'} (HTTP {status})")
    if isinstance(error, AdminError):
        assert (error.status, error.reason) == (status, reason or "Phrase")
        assert error.retryable is (status >= 500)
        copied = pickle.loads(pickle.dumps(error))
        assert (str(copied), copied.status, copied.retryable) == (str(error), status, error.retryable)


def test_refusal_of_other_server_hints_at_url() -> None:
    assert "is the admin URL" in str(refusal("do it", said(404, None), topic=TOPIC, broker="host:1"))


def test_refusal_reason_shortened_and_masked() -> None:
    error = refusal("do it", said(500, "topsecret " + "x" * 10_000), topic=None, broker="b", secrets=["topsecret", ""])
    assert "topsecret" not in str(error) and "***" in str(error)
    assert len(str(error)) < 1000


def test_refusal_leaves_out_broker_stack_trace() -> None:
    said_by_broker = (
        "\n --- An unexpected error occurred in the server ---\n\nMessage: the broker do not have x listener\n\n"
        "Stacktrace:\n\norg.apache.pulsar.broker.PulsarServerException: the broker do not have x listener\n\tat a.b.C"
    )
    error = refusal("do it", said(500, said_by_broker), topic=TOPIC, broker="b")
    assert str(error).startswith("do it: the broker do not have x listener (HTTP 500)")
    assert "Stacktrace" not in str(error) and "\n" not in str(error)
