"""User name and password authentication, as the official client's AuthenticationBasic.

Rules: see `auth.base`.
"""

from __future__ import annotations

import base64
from typing import NamedTuple

from pulsar_native.auth.base import Authentication, refuse_pickle
from pulsar_native.auth.parameters import parse_parameters
from pulsar_native.auth.reference import SecretReference
from pulsar_native.exceptions import InvalidConfiguration, PulsarException

_ADVICE = "Use AuthenticationBasic.from_reference('env:NAME') or ('file:///path'), read where the client is made."
# The Java client's name of the first one is userId.
_PARAMETERS = {"username": "username", "userId": "username", "password": "password", "method": "method"}


class _Login(NamedTuple):
    username: str
    password: str

    def pair(self) -> str:
        return f"{self.username}:{self.password}"

    def encoded(self) -> str:
        return base64.b64encode(self.pair().encode()).decode()


class AuthenticationBasic(Authentication):
    """Authenticate with user name and password.

    Give both, or `auth_params_string`: JSON with "username" and "password" (and "method"). `method` is the name of the
    broker's provider. Thread-safe; blocks only to read a reference.
    """

    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        method: str = "basic",
        auth_params_string: str | None = None,
    ) -> None:
        if auth_params_string is not None:
            given = parse_parameters(auth_params_string, _PARAMETERS, "auth_params_string of AuthenticationBasic")
            username, password = given.get("username"), given.get("password")
            method = given.get("method", method)
        self.method_name = _checked_method(method)
        self._login: _Login | None = _checked_login(username, password)
        self._reference: SecretReference | None = None
        self._username: str | None = None

    @classmethod
    def from_reference(
        cls, reference: str, *, username: str | None = None, method: str = "basic"
    ) -> AuthenticationBasic:
        """Return a plug-in that reads `env:NAME` or `file:///path` at each use; it can be pickled.

        With `username` the secret is the password; without, it is the JSON of `auth_params_string`.
        """
        made = cls.__new__(cls)
        made.method_name = _checked_method(method)
        made._login, made._username = None, username
        made._reference = SecretReference.parse(reference)
        return made

    def auth_data(self) -> bytes:
        """Return `username:password`; blocking only for a reference; raises `ErrorGettingAuthenticationData`."""
        return self._current().pair().encode()

    def http_headers(self) -> dict[str, str]:
        """Return the header of HTTP's basic scheme, and the one with the broker provider's name."""
        return {
            "Authorization": f"Basic {self._current().encoded()}",
            "X-Pulsar-Auth-Method-Name": self.method_name,
        }

    def secrets(self) -> list[str]:
        """Return the password and the base64 form of the pair."""
        try:
            login = self._current()
        except PulsarException:
            return []
        return [login.password, login.encoded()]

    def _current(self) -> _Login:
        if self._login is not None:
            return self._login
        assert self._reference is not None
        secret = self._reference.read()
        if self._username is not None:
            return _checked_login(self._username, secret)
        given = parse_parameters(secret, _PARAMETERS, str(self._reference))
        return _checked_login(given.get("username"), given.get("password"))

    def __reduce__(self) -> tuple[object, ...]:
        if self._reference is None:
            refuse_pickle(self, _ADVICE)
        return (_from_reference, (str(self._reference), self._username, self.method_name))

    def __repr__(self) -> str:
        if self._reference is None:
            return f"AuthenticationBasic({self._current().username!r}, ***)"
        return f"AuthenticationBasic.from_reference({str(self._reference)!r}, username={self._username!r})"


def _from_reference(reference: str, username: str | None, method: str) -> AuthenticationBasic:
    return AuthenticationBasic.from_reference(reference, username=username, method=method)


def _checked_method(method: str) -> str:
    if not isinstance(method, str) or not method.isascii() or not method.isprintable() or not method.strip():
        raise InvalidConfiguration("The method of AuthenticationBasic must be a non-blank ASCII str")
    return method


def _checked_login(username: str | None, password: str | None) -> _Login:
    if not isinstance(username, str) or not username or not isinstance(password, str) or not password:
        raise InvalidConfiguration("AuthenticationBasic needs a username and a password, both non-empty str")
    if ":" in username:
        raise InvalidConfiguration("The username of AuthenticationBasic must not hold a colon: it ends the name")
    try:
        (username + password).encode()
        is_utf8 = True
    except UnicodeEncodeError:
        is_utf8 = False
    if not is_utf8:  # raised here: a UnicodeEncodeError would carry the password as its context
        raise InvalidConfiguration(
            "The username and the password of AuthenticationBasic must not hold a lone surrogate: UTF-8 has none"
        )
    return _Login(username, password)
