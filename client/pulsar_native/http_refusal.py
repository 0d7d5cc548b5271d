"""What a broker's web service means by refusing a request: its own reason, and the error of the one tree.

Rules: credentials never get into a reason. 401 with a reason is `AuthorizationError` unless it speaks of
authentication, for the broker answers 401 to known roles without permission too. Who judges 404 must know whether the
broker itself said so: another web server's 404 means a wrong URL.
"""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_native.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NotAllowedError,
    PulsarException,
    ServiceUnitNotReady,
)
from pulsar_native.http_exchange import HttpAnswer
from pulsar_native.json_object import parse_json_object

_MAX_REASON = 500

_KINDS: dict[int, type[PulsarException]] = {
    401: AuthenticationError,
    403: AuthorizationError,
    405: NotAllowedError,
    503: ServiceUnitNotReady,
}


def reason_of(answer: HttpAnswer, secrets: Iterable[str] = ()) -> tuple[str, bool]:
    """Return why a request was refused, and whether a broker says so (in its JSON) or only a web server."""
    said = parse_json_object(answer.body.decode(errors="replace"))
    from_broker = said is not None and isinstance(said.get("reason"), str)
    reason = str(said["reason"]) if said is not None and from_broker else answer.reason or "no reason given"
    for secret in secrets:
        reason = reason.replace(secret, "***") if secret else reason
    return reason[:_MAX_REASON], from_broker


def kind_of(status: int, reason: str, from_broker: bool) -> type[PulsarException] | None:
    """Return the error for a refusal that means the same whatever was asked, else None."""
    if status == 401 and from_broker and "authenticat" not in reason.lower():
        # The broker says 401 also to those it knows: its filter refuses strangers without a reason in JSON.
        return AuthorizationError
    return _KINDS.get(status)
