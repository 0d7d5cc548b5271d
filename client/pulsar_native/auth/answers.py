"""Answers of an authentication plug-in besides `auth_data`, checked: one of the application may return anything.

Rules: all functions block as the plug-in does, never on the loop; no error has the text of a header or of what the
plug-in raised, which may be a secret.
"""

from __future__ import annotations

import os
import re

from pulsar_native._callback_errors import result_of
from pulsar_native._loggers import get_logger
from pulsar_native.exceptions import ErrorGettingAuthenticationData, PulsarException, log_text
from pulsar_native.service_info import Credentials

_log = get_logger("pulsar_native.auth")

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def http_headers_of(authentication: Credentials) -> dict[str, str]:
    """Return the headers that authenticate a request; raises `ErrorGettingAuthenticationData`."""
    what, failure = "http_headers of the authentication plug-in", ErrorGettingAuthenticationData
    headers = result_of(what, failure, lambda: authentication.http_headers())
    return checked_headers(f"{what} returned", headers, failure)


def checked_headers(what: str, headers: object, failure: type[PulsarException]) -> dict[str, str]:
    """Return the headers if they are a dict of names and values that can be sent, or raise `failure`.

    `what` begins its text: where they are from, and a verb.
    """
    if not isinstance(headers, dict):
        raise failure(f"{what} {type(headers).__name__}, not dict")
    for name, value in headers.items():
        # The values are not repeated: they are the secret.
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise failure(f"{what} a name that no header has")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise failure(f"{what} a value of {name!r} that is not one line of text")
    return headers


def tls_certificate_of(authentication: Credentials) -> tuple[str, str] | None:
    """Return the paths of the client's certificate and key, or None; raises `ErrorGettingAuthenticationData`."""
    what = "tls_certificate of the authentication plug-in"
    paths = result_of(what, ErrorGettingAuthenticationData, lambda: authentication.tls_certificate())
    if paths is None:
        return None
    is_pair = isinstance(paths, tuple | list) and len(paths) == 2
    if not is_pair or not all(isinstance(path, str | bytes | os.PathLike) for path in paths):
        raise ErrorGettingAuthenticationData(f"{what} must return the paths of a certificate and of its key, or None")
    return os.fsdecode(paths[0]), os.fsdecode(paths[1])


def on_refused(authentication: object) -> None:
    """Report to a plug-in that the broker does not accept its last credentials; logs what it raises, by its type."""
    what = "on_refused of the authentication plug-in"
    try:
        # Optional: a plug-in need not be an `Authentication`.
        result_of(what, ErrorGettingAuthenticationData, lambda: getattr(authentication, "on_refused", lambda: None)())
    except PulsarException as error:
        _log.warning("%s", log_text(error))


def secrets_of(authentication: object) -> list[str]:
    """Return the texts to mask, none for a plug-in without `secrets` or one that fails. Does not raise."""
    what = "secrets of the authentication plug-in"
    try:
        secrets = result_of(what, ErrorGettingAuthenticationData, lambda: getattr(authentication, "secrets", list)())
    except PulsarException:
        # Called for the text of another error, which must not be lost.
        return []
    if not isinstance(secrets, list | tuple | set | frozenset):
        return []
    return [secret for secret in secrets if isinstance(secret, str) and secret]
