"""Keys of end-to-end encryption by reference: where a PEM file is is passed on, the key is not.

An option holds one reference (`env:VAR`, `file:NAME`, `conf:KEY`) for keys of any name, or a JSON object from the name
of a key to its reference. Rules: as for credentials: a reference is resolved where it is used, in a task, and the key
is read again at each use. No error repeats the content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pulsar_native import EncryptionKeyInfo
from pulsar_native.exceptions import CryptoError, ErrorGettingAuthenticationData, InvalidConfiguration
from pyspark_pulsar.credentials import CredentialsRef

READ_KEYS = "pulsar.reader.defaultCryptoKeyReader"
READ_ACTION = "pulsar.reader.cryptoFailureAction"
WRITE_KEYS = "pulsar.producer.defaultCryptoKeyReader"
WRITE_NAMES = "pulsar.producer.encryptionKeys"
WRITE_ACTION = "pulsar.producer.cryptoFailureAction"


@dataclass(frozen=True, slots=True)
class KeyRefs:
    """Key reader of references; immutable, picklable, printable: it holds no key.

    `default` is the reference for names that `named` lacks. `option` is the name of the option, for errors.
    """

    option: str
    default: CredentialsRef | None = None
    named: tuple[tuple[str, CredentialsRef], ...] = ()

    @staticmethod
    def parse(option: str, text: str) -> KeyRefs:
        """Return the references of an option; raises `InvalidConfiguration`, which never repeats the text. No I/O."""
        if not text.strip().startswith("{"):
            return KeyRefs(option, CredentialsRef.parse(text, option))
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        if not isinstance(document, dict) or not document or not all(isinstance(at, str) for at in document.values()):
            raise InvalidConfiguration(
                f'{option} must be a reference, or a JSON object such as {{"key-name": "file:key.pem"}}'
            )
        named = (
            (name, CredentialsRef.parse(place, f"{option}, key {name[:60]!r},")) for name, place in document.items()
        )
        return KeyRefs(option, named=tuple(named))

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the public key of this name. Blocks for a file; raises `CryptoError`."""
        return self._key(key_name, "public")

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Return the private key of this name. Blocks for a file; raises `CryptoError`."""
        return self._key(key_name, "private")

    def check(self) -> None:
        """Read all keys; raises `CryptoError` for one that cannot be found. Blocks for a file."""
        for name in ("", *(name for name, _ in self.named)):
            if name or self.default is not None:
                self._key(name, "private")

    def mapped(self, function: Callable[[CredentialsRef], CredentialsRef]) -> str:
        """Return the text of the option with other references."""
        if self.default is not None:
            return str(function(self.default))
        return json.dumps({name: str(function(place)) for name, place in self.named})

    def _key(self, name: str, kind: str) -> EncryptionKeyInfo:
        place = dict(self.named).get(name, self.default)
        if place is None:
            known = ", ".join(name for name, _ in self.named)
            raise CryptoError(f"{self.option} names no {kind} key {name!r}; it has {known}")
        try:
            return EncryptionKeyInfo(place.read("key").encode())
        except ErrorGettingAuthenticationData as error:
            raise CryptoError(f"{self.option}: {error.message}") from error
