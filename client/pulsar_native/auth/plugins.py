"""The plug-ins by the names that the C++ and the Java client give them, made from one text of parameters.

Those that fetch tokens from a server are imported when one is made: they take a tenth of the client's import.
"""

from __future__ import annotations

from collections.abc import Callable

from pulsar_native._http import parse_json_object
from pulsar_native.auth.base import PLUGINS, Authentication
from pulsar_native.auth.basic import AuthenticationBasic
from pulsar_native.auth.tls import AuthenticationTLS
from pulsar_native.auth.token import AuthenticationToken
from pulsar_native.exceptions import InvalidConfiguration

_JAVA = "org.apache.pulsar.client.impl.auth."


def _token(text: str) -> Authentication:
    kind, _, value = text.partition(":")
    if kind == "token":
        return AuthenticationToken(value)
    if kind in ("file", "env"):
        return AuthenticationToken.from_reference(text)
    found = parse_json_object(text)
    given = None if found is None else found.get("token")
    if isinstance(given, str):
        return AuthenticationToken(given)
    raise InvalidConfiguration(
        "authParamsString of the token plug-in must be token:…, file:///…, env:… or a JSON object"
    )


def _tls(text: str) -> Authentication:
    found = _pairs(text)
    return AuthenticationTLS(found.get("tlsCertFile", ""), found.get("tlsKeyFile", ""))


def _basic(text: str) -> Authentication:
    if parse_json_object(text) is not None:
        return AuthenticationBasic(auth_params_string=text)
    found = _pairs(text)
    return AuthenticationBasic(
        found.get("username", found.get("userId")), found.get("password"), found.get("method", "basic")
    )


def _oauth2(text: str) -> Authentication:
    from pulsar_native.auth.oauth2 import AuthenticationOauth2

    return AuthenticationOauth2(text)


def _athenz(text: str) -> Authentication:
    from pulsar_native.auth.athenz import AuthenticationAthenz

    return AuthenticationAthenz(text)


def _pairs(text: str) -> dict[str, str]:
    """Return `name:value,name:value`, or a JSON object of texts."""
    found = parse_json_object(text)
    if found is not None:
        return {name: value for name, value in found.items() if isinstance(value, str)}
    return {name: value for name, _, value in (pair.partition(":") for pair in text.split(","))}


_MAKERS: dict[str, tuple[Callable[[str], Authentication], str]] = {
    "token": (_token, "AuthenticationToken"),
    "tls": (_tls, "AuthenticationTls"),
    "basic": (_basic, "AuthenticationBasic"),
    "oauth2": (_oauth2, "oauth2.AuthenticationOAuth2"),
    "athenz": (_athenz, "AuthenticationAthenz"),
}

for _name, (_maker, _java) in _MAKERS.items():
    PLUGINS[_name] = PLUGINS[(_JAVA + _java).lower()] = _maker
