"""Token (JWT) authentication: a literal token, a supplier called each time, or a reference.

Rules: see `auth.base`. A token is printable ASCII without white space, checked before it can reach a header.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable

from pulsar_native._callback_errors import callback_errors
from pulsar_native.auth.base import Authentication, refuse_pickle
from pulsar_native.auth.reference import SecretReference, is_reference
from pulsar_native.enums import Result
from pulsar_native.exceptions import ErrorGettingAuthenticationData, InvalidConfiguration, PulsarException

_TOKEN = re.compile(r"[\x21-\x7e]+")
_ADVICE = "Use AuthenticationToken.from_reference('env:NAME') or ('file:///path'), read where the client is made."


class AuthenticationToken(Authentication):
    """Authenticate with a JSON web token.

    `token` is the text, or a callable without arguments that returns it, as str or bytes: called at each connection and
    each challenge, off the event loop, possibly from several threads, so it may block and refresh. Thread-safe when the
    callable is.
    """

    method_name = "token"

    def __init__(self, token: str | Callable[[], str | bytes]) -> None:
        if isinstance(token, str):
            if is_reference(token):
                raise InvalidConfiguration("Pass a reference to AuthenticationToken.from_reference(...)")
            if not _TOKEN.fullmatch(token):
                raise InvalidConfiguration(f"The token {_fault(token)}")
        elif not callable(token):
            raise InvalidConfiguration(f"The token must be a str or a callable, not {type(token).__name__}")
        self._source: str | Callable[[], str | bytes] | SecretReference = token
        self._last_supplied = ""

    @classmethod
    def from_reference(cls, reference: str) -> AuthenticationToken:
        """Return a plug-in that reads the token from `env:NAME` or `file:///path` at each use; it can be pickled."""
        made = cls.__new__(cls)
        made._source = SecretReference.parse(reference)
        made._last_supplied = ""
        return made

    def auth_data(self) -> bytes:
        """Return the token; blocking as its supplier or file is; raises `ErrorGettingAuthenticationData`."""
        return self._token().encode()

    def http_headers(self) -> dict[str, str]:
        """Return the bearer header; blocking as `auth_data`."""
        return {"Authorization": f"Bearer {self._token()}"}

    def secrets(self) -> list[str]:
        """Return the current token; of a supplier the last one it returned, for it is not called here."""
        if isinstance(self._source, str):
            return [self._source]
        if isinstance(self._source, SecretReference):
            try:
                return [self._source.read()]
            except PulsarException:
                return []
        return [self._last_supplied] if self._last_supplied else []

    def _token(self) -> str:
        if isinstance(self._source, str):
            return self._source
        error: Callable[[str], PulsarException]
        if isinstance(self._source, SecretReference):
            token, error = self._source.read(), ErrorGettingAuthenticationData
        else:
            token, error = self._supplied(self._source), _failed
        if not _TOKEN.fullmatch(token):
            raise error(f"The token of {self!r} {_fault(token)}")
        return token

    def _supplied(self, supplier: Callable[[], object]) -> str:
        try:
            token = supplier()
        except callback_errors() as error:
            failure = _failed(f"The token supplier failed ({type(error).__name__})")
            failure.supplier_error = str(error)
            raise failure from error
        if inspect.iscoroutine(token):
            token.close()
            raise _failed("The token supplier must be a plain function, not a coroutine function: it is not awaited")
        if isinstance(token, bytes):
            # Read from a file, for example; the characters of a token are checked after this.
            token = token.decode("latin-1")
        if not isinstance(token, str):
            raise _failed(f"The token supplier returned {type(token).__name__}, not str")
        self._last_supplied = token
        return token

    def __reduce__(self) -> tuple[object, ...]:
        if isinstance(self._source, SecretReference):
            return (AuthenticationToken.from_reference, (str(self._source),))
        if isinstance(self._source, types.FunctionType) and "<" not in self._source.__qualname__:
            # A module's function pickles as its name, so it is a reference too. Any other callable may carry the secret
            # in its state.
            return (AuthenticationToken, (self._source,))
        refuse_pickle(self, _ADVICE)

    def __repr__(self) -> str:
        if isinstance(self._source, str):
            return "AuthenticationToken(***)"
        if isinstance(self._source, SecretReference):
            return f"AuthenticationToken.from_reference({str(self._source)!r})"
        return f"AuthenticationToken({getattr(self._source, '__qualname__', type(self._source).__name__)})"


def _fault(token: str) -> str:
    """Return what is wrong with a text that is no token, without repeating it."""
    if not token.strip():
        return "is empty"
    if token != token.strip():
        return "has white space around it, such as the end of a line: strip it"
    return f"has {'white space' if len(token.split()) > 1 else 'characters'} that no token has"


def _failed(text: str) -> ErrorGettingAuthenticationData:
    """Return the error for a failed supplier, with the code the official client has for it."""
    error = ErrorGettingAuthenticationData(text)
    error.result = Result.AuthenticationError
    return error
