"""Detection of secrets in options that reach a command line, a log or a stored plan.

Pure; no I/O. Rules: names are compared without case, and by letters and digits only, so that every spelling is found.
No text repeats a value. A harmless name is rejected rather than a secret accepted.
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
# Prefix of a reference, which is accepted instead of a secret.
_REFERENCES = ("credentialsref",)
_VALUES = (
    re.compile(r"\beyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*"),  # JSON web token
    re.compile(r"(?i)^\s*(?:bearer\s|token:|basic:)\s*\S"),
    re.compile(r"(?i)\b[a-z][a-z0-9+.-]*://[^\s/@]*:[^\s/@]+@"),  # user and password in a URL
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
)


def is_secret_name(name: object) -> bool:
    """Return True if the value of such a name would be a secret."""
    folded = re.sub(r"[^a-z0-9]", "", str(name).lower())
    if folded in _REFERENCES:
        return False
    # The path of a file or the name of a reference is not a secret.
    if folded.endswith(("filepath", "ref")):
        return False
    return any(part in folded for part in _NAMES) or folded in ("auth", "pulsarclientauth")


def looks_secret(value: object) -> bool:
    """Return True if a value has the form of a secret, whatever its name."""
    return isinstance(value, str) and any(form.search(value) for form in _VALUES)


def secret_names(options: Mapping[str, object]) -> list[str]:
    """Return the names in a mapping whose values are, or look like, secrets; nested mappings and lists included."""
    return [str(name) for name, value in options.items() if _is_secret(name, value)]


def _is_secret(name: object, value: object) -> bool:
    return is_secret_name(name) or _holds(value)


def _holds(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_is_secret(name, inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return any(_holds(inner) for inner in value)
    return looks_secret(value)
