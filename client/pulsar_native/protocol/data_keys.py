"""Data keys of end-to-end encryption: a producer's data key and its renewal, a consumer's cache of data keys.

Rules: a producer has one data key, encrypted for every named public key, and creates a new one every four hours, when
the public keys are read again. Blocking calls (reading keys) are separate from the data path: `Encryptor.renew` and
`Decryptor.fetch` block and are called off the loop, `encrypt` and `decrypt` never do. An entry whose data key is not
cached raises `KeyWanted`; it is decoded again once `learn` has stored the result. That no key fits is cached for a
second, so that a stream of undecryptable entries does not read the key file for each, and is reported at least once
however late. A key reader that could not answer, as it raised, decides over no other entry: it is asked again after a
pause while deliveries wait; when it has failed `ATTEMPTS` times in a row, the entry fails, and alone.

The clock (monotonic seconds) and randomness are arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from pulsar_native._callback_errors import callback_errors
from pulsar_native.crypto import EncryptionContext, EncryptionKey, EncryptionKeyInfo, KeyReader, NoSuchKey
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

UNENCRYPTED_SECONDS = 1.0
"""The same delay while there is no data key at all: messages are sent in plain text meanwhile."""

PAUSE_SECONDS = 0.1
"""Least time between a call of the key reader that failed and the next one."""

ATTEMPTS = 10
"""Number of calls in a row that have to fail before a message is treated as one without a key."""

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
        self.due = self._clock() + (UNENCRYPTED_SECONDS if self._current is None else RETRY_SECONDS)

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
        raise CryptoError(f"The key reader has no public key {name!r}: {_name(error)}") from error


def _checked(info: object) -> EncryptionKeyInfo:
    if not isinstance(info, EncryptionKeyInfo):
        raise CryptoError(f"The key reader returned {type(info).__name__}, not EncryptionKeyInfo")
    return info


# --- consumers ------------------------------------------------------------------------------------------------------


class KeyWanted(Exception):
    """Raised when an entry's data key must be fetched from the key reader first.

    `param` is the entry's initialisation vector, which no other entry with these keys has.
    """

    def __init__(self, keys: list[EncryptionKey], param: bytes = b"") -> None:
        super().__init__("the data key is not known yet")
        self.keys = keys
        self.param = param


class Fetched:
    """Result of the key reader for the keys of one entry: a data key for one of them, or the reason for its lack.

    `is_answer` is False if the key reader could not answer for one of the keys, which then may fit.
    """

    __slots__ = ("cipher", "digests", "error", "index", "is_answer", "param")

    def __init__(
        self, wanted: KeyWanted, index: int, cipher: Cipher | None, error: str = "", *, is_answer: bool = True
    ) -> None:
        self.digests = [_digest(key) for key in wanted.keys]
        self.param = wanted.param
        self.index = index
        self.cipher = cipher
        self.error = error
        self.is_answer = is_answer


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
        # By the digests of an entry's encrypted data keys; with its vector behind them where it is of this entry alone.
        self._failures: dict[bytes, _Failure] = {}
        # Calls of the key reader without an answer in a row, and the time of the next one.
        self._unanswered = 0
        self._next_call = 0.0

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
        param = metadata.encryption_param
        reason = self._failure(whole + param, now) or self._failure(whole, now)
        if reason is None:
            raise KeyWanted(keys_of(metadata), param)
        raise CryptoError(reason)

    def _failure(self, place: bytes, now: float) -> str | None:
        """Return the reason for the lack of a data key, None when the key reader is to be asked."""
        failure = self._failures.get(place)
        if failure is None:
            return None
        if now >= failure.until:
            del self._failures[place]
            # One that was not reported is that of the entry which caused the fetch.
            if failure.is_reported:
                return None
        failure.is_reported = True
        return failure.reason

    def _cached(self, digest: bytes, now: float) -> Cipher | None:
        known = self._ciphers.pop(digest, None)
        if known is None or now - known[1] > RENEWAL_SECONDS:
            return None
        self._ciphers[digest] = known[0], now
        return known[0]

    def fetch(self, wanted: KeyWanted) -> Fetched:
        """Call the key reader for each of the keys until one fits. Blocking; never raises."""
        assert self._reader is not None
        reasons: list[str] = []
        is_answer = True
        for index, key in enumerate(wanted.keys):
            is_read = False
            try:
                info = self._reader.get_private_key(key.key, key.metadata)
                is_read = True
                return Fetched(wanted, index, cipher_of(unwrap(key.value, _checked(info).key)))
            except callback_errors() as error:
                # The key reader is the application's: what it raises may pass, unlike a key that was read.
                is_answer = is_answer and (is_read or isinstance(error, NoSuchKey))
                text = error.message if isinstance(error, PulsarException) else f"the key reader raised {_name(error)}"
                reasons.append(f"{key.key!r}: {text}")
        return Fetched(wanted, 0, None, f"No private key fits ({'; '.join(reasons)})", is_answer=is_answer)

    def pause(self) -> float:
        """Return the seconds to wait before the next `fetch`: 0 unless the key reader could not answer just now."""
        return max(0.0, self._next_call - self._clock())

    def learn(self, fetched: Fetched) -> bool:
        """Store the result of `fetch` in the cache; return False if the key reader is to be asked again instead."""
        now = self._clock()
        whole = b"".join(fetched.digests)
        if not fetched.is_answer:
            self._unanswered += 1
            self._next_call = now + PAUSE_SECONDS
            if self._unanswered < ATTEMPTS:
                return False
            # Expired from the beginning: the entry itself asks again where it is redelivered.
            self._store_failure(whole + fetched.param, fetched.error, now)
            return True
        self._unanswered = 0
        if fetched.cipher is None:
            self._store_failure(whole, fetched.error, now + _FAILURE_SECONDS)
            return True
        self._failures.pop(whole, None)
        _make_room(self._ciphers)
        self._ciphers[fetched.digests[fetched.index]] = fetched.cipher, now
        return True

    def _store_failure(self, place: bytes, reason: str, until: float) -> None:
        _make_room(self._failures)
        self._failures[place] = _Failure(reason, until)


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


def _name(error: BaseException) -> str:
    return type(error).__name__


def _digest(key: pb.EncryptionKeys | EncryptionKey) -> bytes:
    name = key.key.encode()
    return hashlib.sha256(len(name).to_bytes(4, "big") + name + key.value).digest()


def _make_room(cache: dict[bytes, tuple[Cipher, float]] | dict[bytes, _Failure]) -> None:
    while len(cache) >= _MAX_CACHED:
        del cache[next(iter(cache))]
