"""Recognition of secrets where none may stand: in options that reach a command line, a log or a stored plan.

Pure; no I/O. Rules: names are compared without case and without anything between letters and digits, so that no
spelling slips through; no text made here repeats a value. It is better to refuse a harmless name than to pass a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAMES = (
    "authparam",
    "authplugin",
    "authheader",
    "authorization",
    "token",
    "jwt",
    "bearer",
    "oauth",
    "password",
    "passwd",
    "pwd",
    "userpass",
    "passphrase",
    "passcode",
    "secret",
    "credential",
    "privatekey",
    "apikey",
    "accesskey",
    "signingkey",
    "servicekey",
    "keyfiledict",
    "webhookurl",
)
# A reference to a place, which is what should be given instead.
_REFERENCES = ("credentialsref",)
_VALUES = (
    re.compile(r"\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*"),  # a JSON web token
    re.compile(r"(?i)^\s*(?:bearer\s|token:|basic:)\s*\S"),
    re.compile(r"(?i)\b[a-z][a-z0-9+.-]*://[^\s/@]*:[^\s/@]+@"),  # user and password in a URL
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
)


def is_secret_name(name: object) -> bool:
    """Return whether the value under a name like this would be a secret."""
    folded = re.sub(r"[^a-z0-9]", "", str(name).lower())
    if folded in _REFERENCES:
        return False
    # The path of a file or the name of a place is none, whatever lies there.
    if folded.endswith(("filepath", "ref")):
        return False
    return any(part in folded for part in _NAMES) or folded in ("auth", "pulsarclientauth")


def looks_secret(value: object) -> bool:
    """Return whether a value has the form of a secret, whatever its name."""
    return isinstance(value, str) and any(form.search(value) for form in _VALUES)


def secret_names(options: Mapping[str, object]) -> list[str]:
    """Return the names in a mapping whose values are, or look like, secrets; nested mappings and lists are searched."""
    return [str(name) for name, value in options.items() if _is_secret(name, value)]


def _is_secret(name: object, value: object) -> bool:
    return is_secret_name(name) or _holds(value)


def _holds(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_is_secret(name, inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return any(_holds(inner) for inner in value)
    return looks_secret(value)
