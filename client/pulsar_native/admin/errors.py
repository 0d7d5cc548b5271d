"""Mapping of admin interface responses to exceptions.

Rules: as in `_http`, and 404 is `TopicNotFound` (or `SubscriptionNotFound`) only when the broker itself reports it:
another web server's 404 means a wrong admin URL.
"""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_native._http import HttpAnswer, kind_of, reason_of
from pulsar_native.exceptions import PulsarException, SubscriptionNotFound, TopicNotFound

# End of the error of a response that no Pulsar broker or proxy gives.
IS_IT_PULSAR = "is the admin URL that of a Pulsar broker's or proxy's web service?"


class AdminError(PulsarException):
    """Raised when the admin interface rejects a request; `status` is the HTTP status, `reason` the broker's text."""

    def __init__(
        self,
        message: str = "",
        *,
        topic: str | None = None,
        broker: str | None = None,
        request_id: int | None = None,
        attempts: int | None = None,
        status: int = 0,
        reason: str = "",
    ) -> None:
        super().__init__(message, topic=topic, broker=broker, request_id=request_id, attempts=attempts)
        self.status = status
        self.reason = reason
        self.retryable = status >= 500 or status == 429


class AlreadyExists(AdminError):
    """Raised when a topic, namespace or subscription of that name exists already."""


class NotFound(AdminError):
    """Raised when the tenant, namespace or resource named in the request does not exist."""


def refusal(
    action: str, answer: HttpAnswer, *, topic: str | None, broker: str, secrets: Iterable[str] = ()
) -> PulsarException:
    """Return the error for a response whose status is not 2xx; `action` names the request, as in "delete topic x"."""
    reason, from_broker = reason_of(answer, secrets)
    message = f"{action}: {reason} (HTTP {answer.status})"
    if answer.status == 404 and not from_broker:
        message += f"; {IS_IT_PULSAR}"
    kind = kind_of(answer.status, reason, from_broker)
    if answer.status == 404 and from_broker and topic is not None:
        kind = SubscriptionNotFound if reason.startswith("Subscription ") else TopicNotFound
    if kind is not None:
        return kind(message, topic=topic, broker=broker)
    admin_kind = _admin_kind(answer.status, reason, from_broker)
    return admin_kind(message, topic=topic, broker=broker, status=answer.status, reason=reason)


def _admin_kind(status: int, reason: str, from_broker: bool) -> type[AdminError]:
    if status == 409 and "exists" in reason:
        return AlreadyExists
    return NotFound if status == 404 and from_broker else AdminError
