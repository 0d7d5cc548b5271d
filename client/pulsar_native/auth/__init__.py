"""Authentication plug-ins. See `auth.base` for the rules they all follow.

Those that fetch tokens from a server are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pulsar_native.auth.plugins  # noqa: F401
from pulsar_native.auth.base import Authentication, AuthenticationDisabled
from pulsar_native.auth.basic import AuthenticationBasic
from pulsar_native.auth.reference import SecretReference
from pulsar_native.auth.tls import AuthenticationTLS, client_tls_context
from pulsar_native.auth.token import AuthenticationToken

if TYPE_CHECKING:
    from pulsar_native.auth.athenz import AuthenticationAthenz, RoleToken, ZtsClient
    from pulsar_native.auth.oauth2 import AuthenticationOauth2

_MODULE_OF = {
    "AuthenticationAthenz": "athenz",
    "AuthenticationOauth2": "oauth2",
    "RoleToken": "athenz",
    "ZtsClient": "athenz",
}

__all__ = [
    "Authentication",
    "AuthenticationAthenz",
    "AuthenticationBasic",
    "AuthenticationDisabled",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "RoleToken",
    "SecretReference",
    "ZtsClient",
    "client_tls_context",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return value
