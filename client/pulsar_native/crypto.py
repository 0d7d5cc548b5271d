"""What an application sees of end-to-end encryption: readers of keys, and what a message says about its encryption.

Rules: a reader may block and is called off the event loop; keys are read where they are used, every time, so that a
replaced file is taken up without a restart. No key appears in repr, str or an error. A reader that holds a private key
itself refuses to be pickled; one that holds paths pickles them. No cryptography here: `wire.encryption` has it.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol, runtime_checkable
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from pulsar_native.enums import CompressionType
from pulsar_native.exceptions import CryptoError, InvalidConfiguration

_MAX_KEY_BYTES = 1024 * 1024


class EncryptionKeyInfo:
    """A public or private key as PEM text, and metadata to travel with what it encrypts. Immutable."""

    __slots__ = ("key", "metadata")

    def __init__(self, key: bytes, metadata: Mapping[str, str] | None = None) -> None:
        if not isinstance(key, bytes):
            raise InvalidConfiguration(f"A key must be the bytes of a PEM file, not {type(key).__name__}")
        self.key = key
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata or {}))

    def __repr__(self) -> str:
        return f"EncryptionKeyInfo({len(self.key)} bytes, metadata={dict(self.metadata)})"


@runtime_checkable
class KeyReader(Protocol):
    """Find keys by name; Java's CryptoKeyReader. Any object with these two methods will do.

    Both may block and are called in other threads; any exception means that the key is not to be had.
    """

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the key to encrypt data keys with; its metadata are written into every message."""
        ...

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the key to decrypt data keys with; `metadata` are those found in the message."""
        ...


class CryptoKeyReader:
    """Read one public and one private key from PEM files, whatever the key's name. Picklable, thread-safe.

    A producer needs only the public key, a consumer only the private one: the other path may name no file.
    """

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        for name, path in (("public_key_path", public_key_path), ("private_key_path", private_key_path)):
            if not isinstance(path, str | os.PathLike):
                raise InvalidConfiguration(f"{name} must be a path, not {type(path).__name__}")
        self._public = os.fspath(public_key_path)
        self._private = os.fspath(private_key_path)

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the public key. Blocking: reads the file; raises `CryptoError`."""
        return EncryptionKeyInfo(_read_file(self._public))

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the private key. Blocking: reads the file; raises `CryptoError`."""
        return EncryptionKeyInfo(_read_file(self._private))

    def __repr__(self) -> str:
        return f"CryptoKeyReader({self._public!r}, {self._private!r})"


class DefaultCryptoKeyReader:
    """Find keys by name in two mappings, else take the default ones; Java's class of this name. Thread-safe.

    A key is given as a path, a `file:` or `data:` URL as in Java, or the bytes of a PEM file.
    """

    def __init__(
        self,
        default_public_key: str | bytes | None = None,
        default_private_key: str | bytes | None = None,
        *,
        public_keys: Mapping[str, str | bytes] | None = None,
        private_keys: Mapping[str, str | bytes] | None = None,
    ) -> None:
        self._default_public = default_public_key
        self._default_private = default_private_key
        self._public = dict(public_keys or {})
        self._private = dict(private_keys or {})
        for place in (default_public_key, default_private_key, *self._public.values(), *self._private.values()):
            if place is not None and not isinstance(place, str | bytes):
                raise InvalidConfiguration(
                    f"A key is given as a path, a file: or data: URL, or bytes, not as {type(place).__name__}"
                )

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the public key of that name, or the default one. Blocking; raises `CryptoError`."""
        return _found("public", key_name, self._public.get(key_name, self._default_public))

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the private key of that name, or the default one. Blocking; raises `CryptoError`."""
        return _found("private", key_name, self._private.get(key_name, self._default_private))

    def __getstate__(self) -> dict[str, object]:
        if any(_is_literal(place) for place in (self._default_private, *self._private.values())):
            raise TypeError(
                "DefaultCryptoKeyReader holds a private key and cannot be pickled: it would travel in plain text. "
                "Give the path of its file"
            )
        return self.__dict__

    def __repr__(self) -> str:
        defaults = [self._default_public is not None, self._default_private is not None]
        return (
            f"DefaultCryptoKeyReader(public_keys of {sorted(self._public)}, private_keys of {sorted(self._private)}, "
            f"default public key {defaults[0]}, default private key {defaults[1]})"
        )


def _found(kind: str, name: str, place: str | bytes | None) -> EncryptionKeyInfo:
    if place is None:
        raise CryptoError(f"There is no {kind} key named {name!r}, and no default one")
    if isinstance(place, bytes):
        return EncryptionKeyInfo(place)
    if place.startswith("data:"):
        return EncryptionKeyInfo(_read_data_url(place))
    return EncryptionKeyInfo(_read_file(_path_of(place) if place.startswith("file:") else place))


def _is_literal(place: str | bytes | None) -> bool:
    return isinstance(place, bytes) or (place is not None and place.startswith("data:"))


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise CryptoError(f"{url!r} names another machine; write file:///absolute/path")
    return unquote(parts.path)


def _read_data_url(url: str) -> bytes:
    """Return what a data URL holds; the text is never repeated, as it may be a private key."""
    head, comma, content = url.partition(",")
    try:
        if comma:
            return base64.b64decode(content, validate=True) if head.endswith(";base64") else unquote_to_bytes(content)
    except ValueError:
        pass
    raise CryptoError("A key's data: URL is not of the form data:application/x-pem-file;base64,…")


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_KEY_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no path"
        raise CryptoError(f"The key file {path} cannot be read: {reason}") from error
    if len(content) > _MAX_KEY_BYTES:
        raise CryptoError(f"The key file {path} is larger than {_MAX_KEY_BYTES} bytes")
    return content


class EncryptionKey:
    """A message's data key, encrypted with one public key: its name, the encrypted bytes, metadata. Immutable."""

    __slots__ = ("key", "metadata", "value")

    def __init__(self, key: str, value: bytes, metadata: Mapping[str, str]) -> None:
        self.key = key
        self.value = value
        self.metadata = dict(metadata)

    def __repr__(self) -> str:
        return f"EncryptionKey(key={self.key}, value_len={len(self.value)}, metadata={self.metadata})"


class EncryptionContext:
    """How a message was encrypted and compressed: with it, an application can decrypt what came undecrypted."""

    __slots__ = (
        "_algorithm", "_batch_size", "_compression_type", "_is_decryption_failed", "_keys", "_param", "_size",
    )  # fmt: skip

    def __init__(
        self,
        *,
        keys: list[EncryptionKey],
        param: bytes,
        algorithm: str,
        compression_type: CompressionType,
        uncompressed_message_size: int,
        batch_size: int,
        is_decryption_failed: bool,
    ) -> None:
        self._keys = keys
        self._param = param
        self._algorithm = algorithm
        self._compression_type = compression_type
        self._size = uncompressed_message_size
        self._batch_size = batch_size
        self._is_decryption_failed = is_decryption_failed

    def keys(self) -> list[EncryptionKey]:
        """Return the encrypted data keys, one for each public key of the producer."""
        return list(self._keys)

    def param(self) -> bytes:
        """Return the parameter of the encryption: the 12 bytes of AES-GCM's initialisation vector."""
        return self._param

    def algorithm(self) -> str:
        """Return the algorithm's name if the producer wrote one; Pulsar's own clients write none."""
        return self._algorithm

    def compression_type(self) -> CompressionType:
        """Return how the payload was compressed before it was encrypted."""
        return self._compression_type

    def uncompressed_message_size(self) -> int:
        """Return the size before compression in bytes, 0 when the producer did not write it."""
        return self._size

    def batch_size(self) -> int:
        """Return the number of messages of the batch, -1 when it is no batch."""
        return self._batch_size

    def is_decryption_failed(self) -> bool:
        """Return whether the message is handed over as it came: encrypted, and as a whole batch if it is one."""
        return self._is_decryption_failed

    def __repr__(self) -> str:
        return (
            f"EncryptionContext(algorithm={self._algorithm}, compression_type={self._compression_type.name}, "
            f"uncompressed_message_size={self._size}, is_decryption_failed={self._is_decryption_failed}, "
            f"keys={self._keys})"
        )
