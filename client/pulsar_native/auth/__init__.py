"""Authentication plug-ins. See `auth.base` for the rules they all follow."""

import pulsar_native.auth.plugins  # noqa: F401
from pulsar_native.auth.athenz import AuthenticationAthenz, RoleToken, ZtsClient
from pulsar_native.auth.base import Authentication, AuthenticationDisabled
from pulsar_native.auth.basic import AuthenticationBasic
from pulsar_native.auth.oauth2 import AuthenticationOauth2
from pulsar_native.auth.reference import SecretReference
from pulsar_native.auth.tls import AuthenticationTLS, client_tls_context
from pulsar_native.auth.token import AuthenticationToken

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
