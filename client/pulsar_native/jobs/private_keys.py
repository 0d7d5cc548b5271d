"""Private keys of a job by the paths of their files: checked when given, read by the client when a message needs one.

No text repeats a value that may be a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pulsar_native.jobs import secrets, validation

if TYPE_CHECKING:
    from pulsar_native.crypto import KeyReader


def checked_paths(value: object) -> dict[str, str]:
    """Return the paths of private keys by the keys' names, empty for None; raises ValueError, also for a key itself."""
    keys = validation.texts("private_keys", value)
    if any(text.lower().startswith("data:") or secrets.looks_secret(text) for text in keys.values()):
        validation.refuse("private_keys must be paths of files, not keys: Airflow stores and shows a task's arguments")
    return keys


def key_reader_of(paths: Mapping[str, str]) -> KeyReader | None:
    """Return the reader of private keys, None without any; reads nothing."""
    from pulsar_native import DefaultCryptoKeyReader

    return DefaultCryptoKeyReader(private_keys=dict(paths)) if paths else None


def readable_key_reader_of(paths: Mapping[str, str]) -> KeyReader | None:
    """Return the reader as `key_reader_of` does. Blocks; raises `CryptoError` for a file that cannot be read now.

    A consumer would ask again for a second per entry, and then leave the entry encrypted.
    """
    reader = key_reader_of(paths)
    if reader is not None:
        for name in paths:
            reader.get_private_key(name, {})
    return reader
