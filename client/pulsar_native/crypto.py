"""Public types of end-to-end encryption: key readers, and the encryption context of a message.

Rules: a key reader may block and is called off the event loop; keys are read at each use, so that a replaced file needs
no restart. No key appears in repr, str or an error, so a key's text is no path. A reader that holds a private key
refuses to be pickled; one that holds paths pickles them. The cryptography is in `wire.crypto`.
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
# Begin of a PEM file's text, and of its base64 form.
_PEM_MARKS = ("-----BEGIN", "LS0tLS1CRUdJTi")


def is_key_text(path: str) -> bool:
    """Return True if a text is the content of a PEM file, or a `data:` URL: a path is shown in texts, it is not."""
    return any(mark in path for mark in _PEM_MARKS) or path.lstrip()[:5].lower() == "data:"


class NoSuchKey(CryptoError):
    """Raised by this package's key readers for a name they have no key of, now or later."""


class EncryptionKeyInfo:
    """A public or private key with metadata. Immutable.

    :param key: the bytes of a PEM file. Raises `InvalidConfiguration` for another type.
    :param metadata: metadata of the key, str to str, written into each message. Default none. Raises
        `InvalidConfiguration` for another type.
    """

    __slots__ = ("key", "metadata")

    def __init__(self, key: bytes, metadata: Mapping[str, str] | None = None) -> None:
        if not isinstance(key, bytes):
            raise InvalidConfiguration(f"A key must be the bytes of a PEM file, not {type(key).__name__}")
        if metadata is not None and not (
            isinstance(metadata, Mapping)
            and all(isinstance(name, str) and isinstance(text, str) for name, text in metadata.items())
        ):
            raise InvalidConfiguration("The metadata of a key must be a mapping of str to str")
        self.key = key
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata or {}))

    def __repr__(self) -> str:
        return f"EncryptionKeyInfo({len(self.key)} bytes, metadata={dict(self.metadata)})"


@runtime_checkable
class KeyReader(Protocol):
    """Interface of key readers (Java: CryptoKeyReader): any object with these two methods.

    Both may block; they are called in other threads. Any exception means that the key is not available for the time
    being: a consumer asks again, at most ten times a second.
    """

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the public key that encrypts data keys.

        :param key_name: name of the key.
        :param metadata: metadata of the key so far.
        """
        ...

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo | None:
        """Return the private key that decrypts data keys, None if there is no key of this name.

        :param key_name: name of the key in the message.
        :param metadata: metadata of the key in the message.
        """
        ...


class CryptoKeyReader:
    """Key reader of one public and one private PEM file, for any key name. Picklable, thread-safe.

    A producer needs the public key only, a consumer the private key only: the other file need not exist.

    :param public_key_path: path of the public key. Raises `InvalidConfiguration` for another type, and for the content
        of a file.
    :param private_key_path: path of the private key.
    """

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        for name, path in (("public_key_path", public_key_path), ("private_key_path", private_key_path)):
            if not isinstance(path, str | os.PathLike):
                raise InvalidConfiguration(f"{name} must be a path, not {type(path).__name__}")
            if is_key_text(os.fsdecode(path)):
                raise InvalidConfiguration(
                    f"{name} must be the path of a PEM file, not its content (DefaultCryptoKeyReader takes bytes)"
                )
        self._public = os.fspath(public_key_path)
        self._private = os.fspath(private_key_path)

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the public key. Blocks: reads the file; raises `CryptoError`."""
        return EncryptionKeyInfo(_read_file(self._public))

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the private key. Blocks: reads the file; raises `CryptoError`."""
        return EncryptionKeyInfo(_read_file(self._private))

    def __repr__(self) -> str:
        return f"CryptoKeyReader({self._public!r}, {self._private!r})"


class DefaultCryptoKeyReader:
    """Key reader with keys by name and default keys; Java's class of this name. Thread-safe.

    A key is a path, a `file:` or `data:` URL as in Java, or the bytes of a PEM file. Raises `InvalidConfiguration` for
    another type, and for the content of a PEM file as a str. Picklable unless it holds a private key itself.

    :param default_public_key: public key for names that `public_keys` lacks. Default None.
    :param default_private_key: private key for names that `private_keys` lacks. Default None.
    :param public_keys: public keys by name. Default none.
    :param private_keys: private keys by name. Default none.
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
            if isinstance(place, str) and is_key_text(place) and not _is_literal(place):
                raise InvalidConfiguration(
                    "A str is the path of a key's PEM file, not its content: give a path, a file: URL, "
                    "data:application/x-pem-file;base64,…, or the content as bytes"
                )

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the public key of this name, or the default one. Blocks; raises `CryptoError`."""
        return _found("public", key_name, self._public.get(key_name, self._default_public))

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the private key of this name, or the default one. Blocks; raises `CryptoError`."""
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
        raise NoSuchKey(f"There is no {kind} key named {name!r}, and no default one")
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
    """Return the content of a data URL; errors do not repeat its text, which may be a private key."""
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
    """Data key of a message, encrypted with one public key: name of that key, encrypted bytes, metadata. Immutable."""

    __slots__ = ("key", "metadata", "value")

    def __init__(self, key: str, value: bytes, metadata: Mapping[str, str]) -> None:
        self.key = key
        self.value = value
        self.metadata = dict(metadata)

    def __repr__(self) -> str:
        return f"EncryptionKey(key={self.key}, value_len={len(self.value)}, metadata={self.metadata})"


class EncryptionContext:
    """Encryption and compression of a message, for decrypting it in the application (ConsumerCryptoFailureAction)."""

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
        """Return the encryption parameter: AES-GCM's initialisation vector of 12 bytes."""
        return self._param

    def algorithm(self) -> str:
        """Return the name of the algorithm, "" if the producer wrote none, as Pulsar's own clients do."""
        return self._algorithm

    def compression_type(self) -> CompressionType:
        """Return the compression of the payload before encryption."""
        return self._compression_type

    def uncompressed_message_size(self) -> int:
        """Return the size before compression in bytes, 0 if the producer wrote none."""
        return self._size

    def batch_size(self) -> int:
        """Return the number of messages of the batch, -1 if it is not a batch."""
        return self._batch_size

    def is_decryption_failed(self) -> bool:
        """Return whether the message is still encrypted, and a whole batch if it is one."""
        return self._is_decryption_failed

    def __repr__(self) -> str:
        return (
            f"EncryptionContext(algorithm={self._algorithm}, compression_type={self._compression_type.name}, "
            f"uncompressed_message_size={self._size}, is_decryption_failed={self._is_decryption_failed}, "
            f"keys={self._keys})"
        )
