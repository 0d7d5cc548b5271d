"""Data keys of end-to-end encryption: a producer's data key and its renewal, a consumer's cache of data keys.

Rules: a producer has one data key, encrypted for every named public key, and creates a new one every four hours, when
the public keys are read again. Blocking calls (reading keys) are separate from the data path: `Encryptor.renew` and
`Decryptor.fetch` block and are called off the loop, `encrypt` and `decrypt` never do. An entry whose data key is not
cached raises `KeyWanted`; it is decoded again once `learn` has stored the result. A failure is cached for a second, so
that a stream of undecryptable entries does not read the key file for each, and is reported at least once however late.

The clock (monotonic seconds) and randomness are arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from pulsar_native._callback_errors import callback_errors
from pulsar_native.crypto import EncryptionContext, EncryptionKey, EncryptionKeyInfo, KeyReader
from pulsar_native.enums import CompressionType, ConsumerCryptoFailureAction, ProducerCryptoFailureAction
from pulsar_native.exceptions import CryptoError, PulsarException
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.crypto import (
    DATA_KEY_BYTES,
    TAG_BYTES,
    VECTOR_BYTES,
    Cipher,
    cipher_of,
    opened,
    require_package,
    unwrap,
    wrap,
)

Clock = Callable[[], float]

RENEWAL_SECONDS = 4 * 3600.0
"""Lifetime of a producer's data key, and of an unused one in a consumer's cache."""

RETRY_SECONDS = 60.0
"""Delay before a failed renewal is tried again; the old data key stays in use meanwhile."""

_FAILURE_SECONDS = 1.0
_MAX_CACHED = 1000


class Encryptor:
    """Encryption of a producer. `encrypt` is thread-safe; `renew` is called by one thread at a time."""

    def __init__(
        self,
        names: Sequence[str],
        reader: KeyReader,
        action: ProducerCryptoFailureAction,
        *,
        clock: Clock,
        random: Callable[[int], bytes],
    ) -> None:
        require_package()
        self.action = action
        self.due = clock()
        self._names = names
        self._reader = reader
        self._clock = clock
        self._random = random
        # Replaced as a whole, so that a concurrent `encrypt` uses the old pair or the new one.
        self._current: tuple[Cipher, list[pb.EncryptionKeys]] | None = None

    @property
    def overhead(self) -> int:
        """Upper estimate of the bytes encryption adds to an entry."""
        keys = [] if self._current is None else self._current[1]
        return sum(key.ByteSize() + 8 for key in keys) + VECTOR_BYTES + TAG_BYTES + 8

    def renew(self) -> None:
        """Create a new data key for all names. Blocking: calls the key reader; raises `CryptoError`.

        When any public key cannot be read, the old data key stays in use and `due` is the time of the next attempt.
        """
        data_key = self._random(DATA_KEY_BYTES)
        try:
            wrapped = [_wrapped(name, data_key, self._reader) for name in self._names]
        except CryptoError:
            self.retry_later()
            raise
        self._current = cipher_of(data_key), wrapped
        self.due = self._clock() + RENEWAL_SECONDS

    def retry_later(self) -> None:
        """Set the time of the next attempt after one that failed."""
        self.due = self._clock() + RETRY_SECONDS

    def encrypt(self, metadata: pb.MessageMetadata, body: bytes) -> bytes:
        """Return the body encrypted, and write the metadata readers need.

        Without any data key the body stays unencrypted if the failure action is SEND, else `CryptoError` is raised.
        """
        current = self._current
        if current is None:
            if self.action is ProducerCryptoFailureAction.SEND:
                return body
            raise CryptoError("There is no data key to encrypt with")
        cipher, keys = current
        vector = self._random(VECTOR_BYTES)
        metadata.encryption_keys.extend(keys)
        metadata.encryption_param = vector
        return cipher.encrypt(vector, body, None)


def _wrapped(name: str, data_key: bytes, reader: KeyReader) -> pb.EncryptionKeys:
    try:
        info = _checked(reader.get_public_key(name, {}))
        value = wrap(data_key, info.key)
        # Text may hold a lone surrogate.
        pairs = [pb.KeyValue(key=key, value=text) for key, text in info.metadata.items()]
        return pb.EncryptionKeys(key=name, value=value, metadata=pairs)
    except PulsarException as error:
        raise CryptoError(f"The data key cannot be encrypted for {name!r}: {error.message}") from error
    except callback_errors() as error:
        # The key reader is the application's; any exception of it becomes a CryptoError.
        raise CryptoError(f"The key reader has no public key {name!r}: {type(error).__name__}") from error


def _checked(info: object) -> EncryptionKeyInfo:
    if not isinstance(info, EncryptionKeyInfo):
        raise CryptoError(f"The key reader returned {type(info).__name__}, not EncryptionKeyInfo")
    return info


# --- consumers ------------------------------------------------------------------------------------------------------


class KeyWanted(Exception):
    """Raised when an entry's data key must be fetched from the key reader first."""

    def __init__(self, keys: list[EncryptionKey]) -> None:
        super().__init__("the data key is not known yet")
        self.keys = keys


class Fetched:
    """Result of the key reader for the keys of one entry: a data key for one of them, or the reason for its lack."""

    __slots__ = ("cipher", "digests", "error", "index")

    def __init__(self, digests: list[bytes], index: int, cipher: Cipher | None, error: str) -> None:
        self.digests = digests
        self.index = index
        self.cipher = cipher
        self.error = error


class _Failure:
    """Reason for the lack of a data key, cached until a time (monotonic seconds)."""

    __slots__ = ("is_reported", "reason", "until")

    def __init__(self, reason: str, until: float) -> None:
        self.reason = reason
        self.until = until
        self.is_reported = False


class Decryptor:
    """Decryption of a consumer. `fetch` may run in any thread; all other methods under the consumer's lock."""

    def __init__(self, reader: KeyReader | None, action: ConsumerCryptoFailureAction, clock: Clock) -> None:
        if reader is not None:
            require_package()
        self.action = action
        self._reader = reader
        self._clock = clock
        # By digest of the encrypted data key, least recently used first. Values: cipher, time of the last use.
        self._ciphers: dict[bytes, tuple[Cipher, float]] = {}
        self._failures: dict[bytes, _Failure] = {}

    def decrypt(self, metadata: pb.MessageMetadata, body: bytes) -> bytes:
        """Return the body of an encrypted entry decrypted; raises `KeyWanted` or `CryptoError`."""
        if self._reader is None:
            raise CryptoError("The message is encrypted and this consumer has no key reader: give crypto_key_reader")
        now = self._clock()
        digests = [_digest(key) for key in metadata.encryption_keys]
        whole = b"".join(digests)
        is_known = False
        for digest in digests:
            cipher = self._cached(digest, now)
            if cipher is not None:
                is_known = True
                plain = opened(cipher, metadata.encryption_param, body)
                if plain is not None:
                    return plain
        if is_known:
            raise CryptoError("The message was changed, or not encrypted with its data key")
        failure = self._failures.get(whole)
        # An expired one that was not reported is that of the entry which caused the fetch.
        if failure is None or (failure.is_reported and now >= failure.until):
            raise KeyWanted(keys_of(metadata))
        failure.is_reported = True
        raise CryptoError(failure.reason)

    def _cached(self, digest: bytes, now: float) -> Cipher | None:
        known = self._ciphers.pop(digest, None)
        if known is None or now - known[1] > RENEWAL_SECONDS:
            return None
        self._ciphers[digest] = known[0], now
        return known[0]

    def fetch(self, wanted: KeyWanted) -> Fetched:
        """Call the key reader for each of the keys until one fits. Blocking; never raises."""
        digests = [_digest(key) for key in wanted.keys]
        reasons = []
        for index, key in enumerate(wanted.keys):
            try:
                return Fetched(digests, index, self._data_key(key), "")
            except PulsarException as error:
                reasons.append(f"{key.key!r}: {error.message}")
            except callback_errors() as error:
                # The key reader is the application's; an exception means that it has no key.
                reasons.append(f"{key.key!r}: the key reader raised {type(error).__name__}")
        return Fetched(digests, 0, None, f"No private key fits ({'; '.join(reasons)})")

    def _data_key(self, key: EncryptionKey) -> Cipher:
        assert self._reader is not None
        info = _checked(self._reader.get_private_key(key.key, key.metadata))
        return cipher_of(unwrap(key.value, info.key))

    def learn(self, fetched: Fetched) -> None:
        """Store the result of `fetch` in the cache."""
        now = self._clock()
        whole = b"".join(fetched.digests)
        if fetched.cipher is None:
            _make_room(self._failures)
            self._failures[whole] = _Failure(fetched.error, now + _FAILURE_SECONDS)
            return
        self._failures.pop(whole, None)
        _make_room(self._ciphers)
        self._ciphers[fetched.digests[fetched.index]] = fetched.cipher, now


NO_KEYS = Decryptor(None, ConsumerCryptoFailureAction.FAIL, lambda: 0.0)
"""Decryptor that reads unencrypted entries and refuses all others."""


def keys_of(metadata: pb.MessageMetadata) -> list[EncryptionKey]:
    """Return the encrypted data keys of an entry."""
    return [EncryptionKey(key.key, key.value, _pairs(key.metadata)) for key in metadata.encryption_keys]


def context_of(metadata: pb.MessageMetadata, *, failed: bool) -> EncryptionContext | None:
    """Return the encryption context of an entry, None when it is not encrypted."""
    if not metadata.encryption_keys:
        return None
    is_batch = metadata.HasField("num_messages_in_batch")
    return EncryptionContext(
        keys=keys_of(metadata),
        param=metadata.encryption_param,
        algorithm=metadata.encryption_algo,
        compression_type=CompressionType(metadata.compression),
        uncompressed_message_size=metadata.uncompressed_size,
        batch_size=metadata.num_messages_in_batch if is_batch else -1,
        is_decryption_failed=failed,
    )


def _pairs(pairs: Iterable[pb.KeyValue]) -> dict[str, str]:
    return {pair.key: pair.value for pair in pairs}


def _digest(key: pb.EncryptionKeys | EncryptionKey) -> bytes:
    name = key.key.encode()
    return hashlib.sha256(len(name).to_bytes(4, "big") + name + key.value).digest()


def _make_room(cache: dict[bytes, tuple[Cipher, float]] | dict[bytes, _Failure]) -> None:
    while len(cache) >= _MAX_CACHED:
        del cache[next(iter(cache))]
