"""Data keys in virtual time: creation, renewal, caching, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from pulsar_native.crypto import EncryptionKeyInfo, NoSuchKey
from pulsar_native.enums import CompressionType, ConsumerCryptoFailureAction, ProducerCryptoFailureAction
from pulsar_native.exceptions import CryptoError
from pulsar_native.protocol import data_keys
from pulsar_native.protocol.data_keys import (
    ATTEMPTS,
    NO_KEYS,
    PAUSE_SECONDS,
    RENEWAL_SECONDS,
    RETRY_SECONDS,
    UNENCRYPTED_SECONDS,
    Decryptor,
    Encryptor,
    KeyWanted,
    context_of,
)
from pulsar_native.wire import pulsar_api_pb2 as pb
from support.entry_bytes import metadata_of
from support.other_thread import OWN_ERRORS, in_other_thread

FAIL, SEND = ProducerCryptoFailureAction
READER_ERRORS = [
    CryptoError("gone"), OSError("gone"), KeyError("secret"), SystemExit("secret"), asyncio.CancelledError("secret"),
]  # fmt: skip


@cache
def pair(name: str) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    return (
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


class Time:
    """A clock the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Ring:
    """A key reader that notes who was asked for, and fails where it is told to."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.asked: list[str] = []
        self.metadata: list[Mapping[str, str]] = []
        self.error: BaseException | None = None
        self.generation = ""

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        return self._get(0, key_name, {"owner": key_name})

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        self.metadata.append(metadata)
        return self._get(1, key_name, metadata)

    def _get(self, half: int, name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        self.asked.append(name)
        if self.error is not None:
            raise self.error
        if name not in self.names:
            raise NoSuchKey("no such key")
        return EncryptionKeyInfo(pair(name + self.generation)[half], metadata)


class Numbers:
    """Randomness that never repeats and is noted."""

    def __init__(self) -> None:
        self.given: list[bytes] = []

    def __call__(self, size: int) -> bytes:
        self.given.append(len(self.given).to_bytes(size, "big"))
        return self.given[-1]


def encryptor(
    ring: Any, *names: str, action: ProducerCryptoFailureAction = FAIL, time: Time | None = None
) -> Encryptor:
    return Encryptor(names, ring, action, clock=time or Time(), random=Numbers())


def decryptor(ring: Any, time: Time | None = None) -> Decryptor:
    return Decryptor(ring, ConsumerCryptoFailureAction.FAIL, time or Time())


def sealed(made: Encryptor, body: bytes = b"body") -> tuple[pb.MessageMetadata, bytes]:
    metadata = metadata_of(0)
    return metadata, made.encrypt(metadata, body)


def read(made: Decryptor, metadata: pb.MessageMetadata, body: bytes) -> bytes:
    """Decrypt as the engine does: ask the key reader when that is wanted, until it answers or has failed too often."""
    try:
        return made.decrypt(metadata, body)
    except KeyWanted as wanted:
        while not made.learn(made.fetch(wanted)):
            pass
    return made.decrypt(metadata, body)


# --- writing --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("C180")
def test_encrypt_new_vector_and_key_per_reader() -> None:
    ring = Ring("a", "b")
    made = encryptor(ring, "a", "b")
    made.renew()
    entries = [sealed(made) for _ in range(3)]
    vectors = {metadata.encryption_param for metadata, _ in entries}
    assert len(vectors) == 3 and {len(vector) for vector in vectors} == {12}
    for metadata, body in entries:
        assert [key.key for key in metadata.encryption_keys] == ["a", "b"]
        assert [(pair.key, pair.value) for pair in metadata.encryption_keys[1].metadata] == [("owner", "b")]
        assert not metadata.HasField("encryption_algo") and b"body" not in body and len(body) == 4 + 16
        # The names cost more than guessed by nobody: the room of a batch counts on it.
        assert metadata.ByteSize() - metadata_of(0).ByteSize() + 16 <= made.overhead
        for name in ("a", "b"):
            assert read(decryptor(Ring(name)), metadata, body) == b"body"


@pytest.mark.proves("C180")
def test_renew_every_four_hours_with_current_public_keys() -> None:
    time, ring = Time(), Ring("a")
    made = encryptor(ring, "a", time=time)
    assert made.due == time.now
    made.renew()
    assert RENEWAL_SECONDS == 4 * 3600 and made.due == time.now + RENEWAL_SECONDS
    before = sealed(made)
    assert sealed(made)[0].encryption_keys[0] == before[0].encryption_keys[0]
    time.now = made.due
    ring.generation = "-new"
    made.renew()
    after = sealed(made)
    assert after[0].encryption_keys[0].value != before[0].encryption_keys[0].value
    old, new = Ring("a"), Ring("a")
    new.generation = "-new"
    assert read(decryptor(new), *after) == b"body"
    assert read(decryptor(old), *before) == b"body"
    with pytest.raises(CryptoError):
        read(decryptor(old), *after)


@pytest.mark.proves("C60")
@pytest.mark.parametrize("error", READER_ERRORS, ids=repr)
def test_renew_failure_keeps_data_key(error: BaseException) -> None:
    for action in ProducerCryptoFailureAction:
        time, ring = Time(), Ring("a")
        made = encryptor(ring, "a", action=action, time=time)
        made.renew()
        wrapped = sealed(made)[0].encryption_keys[0].value
        time.now = made.due
        ring.error = error
        with pytest.raises(CryptoError, match="'a'") as caught:
            made.renew()
        assert "secret" not in caught.value.message
        assert made.due == time.now + RETRY_SECONDS
        metadata, body = sealed(made)
        assert metadata.encryption_keys[0].value == wrapped and b"body" not in body


@pytest.mark.parametrize("kind", OWN_ERRORS)
def test_reader_error_of_any_class_in_thread_isolated(kind: type[BaseException]) -> None:
    ring = Ring("a")
    made, reading = encryptor(ring, "a"), decryptor(ring, Time())
    made.renew()
    entry = sealed(made)
    ring.error = kind("secret")
    with pytest.raises(CryptoError, match=f"'a': {kind.__name__}"):
        in_other_thread(made.renew)
    with pytest.raises(CryptoError, match=f"the key reader raised {kind.__name__}"):
        in_other_thread(read, reading, *entry)


@pytest.mark.proves("C60")
def test_encrypt_without_key_follows_failure_action() -> None:
    with pytest.raises(CryptoError, match="no data key"):
        sealed(encryptor(Ring(), "a"))
    time = Time()
    open_one = encryptor(Ring(), "a", action=SEND, time=time)
    with pytest.raises(CryptoError):
        open_one.renew()
    # Plain text goes out: the next attempt is soon.
    assert open_one.due == time.now + UNENCRYPTED_SECONDS < time.now + RETRY_SECONDS
    metadata, body = sealed(open_one)
    assert body == b"body" and not metadata.encryption_keys and not metadata.HasField("encryption_param")


@pytest.mark.parametrize("metadata", [{"a": 5}, {"a": b"\xff"}, {"a": "\ud800"}, None], ids=repr)
def test_renew_unusable_metadata_raises_crypto_error(metadata: Any) -> None:
    class Changing(Ring):
        def get_public_key(self, key_name: str, metadata_so_far: Mapping[str, str]) -> EncryptionKeyInfo:
            info = super().get_public_key(key_name, metadata_so_far)
            info.metadata = metadata
            return info

    time = Time()
    made = encryptor(Changing("a"), "a", time=time)
    with pytest.raises(CryptoError, match="no public key 'a'"):
        made.renew()
    assert made.due == time.now + UNENCRYPTED_SECONDS


def test_renew_invalid_key_info_names_mistake() -> None:
    class Wrong(Ring):
        def get_public_key(self, key_name: str, metadata: Any) -> EncryptionKeyInfo:
            return EncryptionKeyInfo(pair(key_name)[0], {"version": 2})  # type: ignore[dict-item]

    with pytest.raises(CryptoError, match="for 'a': The metadata of a key must be a mapping of str to str"):
        encryptor(Wrong("a"), "a").renew()


def test_renew_invalid_reader_result_raises() -> None:
    class Wrong:
        def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> Any:
            return None

        get_private_key = get_public_key

    with pytest.raises(CryptoError, match="returned NoneType"):
        encryptor(Wrong(), "a").renew()
    made = encryptor(Ring("a"), "a")
    made.renew()
    with pytest.raises(CryptoError, match="returned NoneType"):
        read(decryptor(Wrong()), *sealed(made))


# --- reading --------------------------------------------------------------------------------------------------------


def test_fetch_once_and_evict_unused() -> None:
    time, ring = Time(), Ring("a")
    made, reading = encryptor(Ring("a"), "a"), decryptor(ring, time)
    made.renew()
    for _ in range(3):
        assert read(reading, *sealed(made)) == b"body"
        time.now += RENEWAL_SECONDS
    assert ring.asked == ["a"] and ring.metadata == [{"owner": "a"}]
    time.now += 1
    assert read(reading, *sealed(made)) == b"body"
    assert ring.asked == ["a", "a"]
    made.renew()
    assert read(reading, *sealed(made)) == b"body"
    assert ring.asked == ["a", "a", "a"]


def test_cache_evicts_least_recently_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_keys, "_MAX_CACHED", 2)
    ring = Ring("a")
    reading, entries = decryptor(ring), []
    for _ in range(3):
        made = encryptor(Ring("a"), "a")
        made.renew()
        entries.append(sealed(made))
    for number in (0, 1, 0, 2, 0):
        read(reading, *entries[number])
    assert len(ring.asked) == 3
    read(reading, *entries[1])
    assert len(ring.asked) == 4


@pytest.mark.parametrize("lacking", ["none", "no-such-key", "another-key"])
def test_fetch_no_key_fits_cached_for_a_second(lacking: str) -> None:
    class Lacking(Ring):
        def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> Any:
            if lacking == "none":
                self.asked.append(key_name)
                return None
            return super().get_private_key(key_name, metadata)

    time, ring = Time(), Lacking(*["a"] * (lacking == "another-key"))
    ring.generation = "-other"
    made, reading = encryptor(Ring("a"), "a"), decryptor(ring, time)
    made.renew()
    for _ in range(3):
        # For all entries with this data key.
        with pytest.raises(CryptoError, match="'a'"):
            read(reading, *sealed(made))
    assert len(ring.asked) == 1 and reading.pause() == 0
    time.now += 1
    # Asked again; and however late the entry that had the key asked for comes again, it gets the answer.
    entry = sealed(made)
    with pytest.raises(KeyWanted) as wanted:
        reading.decrypt(*entry)
    assert reading.learn(reading.fetch(wanted.value))
    time.now += 100
    with pytest.raises(CryptoError):
        reading.decrypt(*entry)
    with pytest.raises(KeyWanted):
        reading.decrypt(*entry)
    assert len(ring.asked) == 2


@pytest.mark.parametrize("error", READER_ERRORS, ids=repr)
def test_fetch_short_failure_costs_no_message(error: BaseException) -> None:
    time, ring = Time(), Ring("a")
    made, reading = encryptor(Ring("a"), "a"), decryptor(ring, time)
    made.renew()
    entry = sealed(made)
    with pytest.raises(KeyWanted) as wanted:
        reading.decrypt(*entry)
    ring.error = error
    for _ in range(ATTEMPTS - 1):
        assert reading.pause() == 0 and not reading.learn(reading.fetch(wanted.value))
        # In the meantime no entry fails.
        for each in (entry, sealed(made)):
            with pytest.raises(KeyWanted):
                reading.decrypt(*each)
        assert reading.pause() == pytest.approx(PAUSE_SECONDS)
        time.now += PAUSE_SECONDS + 0.001
    ring.error = None
    assert reading.learn(reading.fetch(wanted.value)) and reading.decrypt(*entry) == b"body"
    # The failures are counted from 0 again.
    other = encryptor(Ring("a"), "a")
    other.renew()
    with pytest.raises(KeyWanted) as wanted:
        reading.decrypt(*sealed(other))
    ring.error = error
    assert not reading.learn(reading.fetch(wanted.value))


@pytest.mark.parametrize("error", READER_ERRORS, ids=repr)
def test_fetch_long_failure_fails_entry_by_entry(error: BaseException) -> None:
    ring = Ring("a")
    made, reading = encryptor(Ring("a"), "a"), decryptor(ring)
    made.renew()
    ring.error = error
    first, second, third = (sealed(made) for _ in range(3))
    with pytest.raises(CryptoError, match="'a'") as caught:
        read(reading, *first)
    assert "secret" not in str(caught.value) and len(ring.asked) == ATTEMPTS
    # The next one asks itself: once, as the key reader has failed for long.
    with pytest.raises(KeyWanted) as wanted:
        reading.decrypt(*second)
    assert reading.pause() == pytest.approx(PAUSE_SECONDS) and reading.learn(reading.fetch(wanted.value))
    # Its failure is of no other entry, even where that comes before it.
    with pytest.raises(KeyWanted):
        reading.decrypt(*third)
    with pytest.raises(CryptoError):
        reading.decrypt(*second)
    assert len(ring.asked) == ATTEMPTS + 1
    ring.error = None
    assert [read(reading, *each) for each in (third, second, first)] == [b"body"] * 3
    assert len(ring.asked) == ATTEMPTS + 2


def test_fetch_unanswered_key_may_fit() -> None:
    class Half(Ring):
        def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
            self.error = OSError("gone") if key_name == "a" else None
            return super().get_private_key(key_name, metadata)

    made = encryptor(Ring("a", "b"), "a", "b")
    made.renew()
    assert read(decryptor(Half("b")), *sealed(made)) == b"body"
    # Of the second one it is known that there is none: the first one is asked for again.
    ring = Half()
    with pytest.raises(CryptoError, match="'a': the key reader raised OSError; 'b': no such key"):
        read(decryptor(ring), *sealed(made))
    assert ring.asked == ["a", "b"] * ATTEMPTS


def test_fetch_failure_told_in_time_not_told_late() -> None:
    time, ring = Time(), Ring()
    made, reading = encryptor(Ring("a"), "a"), decryptor(ring, time)
    made.renew()
    entry = sealed(made)
    with pytest.raises(CryptoError, match="no such key"):
        read(reading, *entry)
    ring.names.add("a")
    time.now += 1
    # The key reader is asked again for the first entry, not only for the second one.
    assert read(reading, *entry) == b"body" and ring.asked == ["a", "a"]


def test_fetch_tries_each_key() -> None:
    made = encryptor(Ring("a", "b", "c"), "a", "b", "c")
    made.renew()
    ring = Ring("b", "c")
    reading = decryptor(ring)
    for _ in range(2):
        assert read(reading, *sealed(made)) == b"body"
    assert ring.asked == ["a", "b"]
    with pytest.raises(CryptoError, match="'a': no such key; 'b': no such key; 'c': no such key"):
        read(decryptor(Ring()), *sealed(made))


def test_decrypt_changed_message_no_refetch() -> None:
    ring = Ring("a")
    made, reading = encryptor(Ring("a"), "a"), decryptor(ring)
    made.renew()
    metadata, body = sealed(made)
    read(reading, metadata, body)
    for changed in (b"", body[:-1], bytes([body[0] ^ 1]) + body[1:]):
        with pytest.raises(CryptoError, match="was changed"):
            reading.decrypt(metadata, changed)
    assert ring.asked == ["a"]


def test_decrypt_without_key_reader_raises() -> None:
    made = encryptor(Ring("a"), "a")
    made.renew()
    with pytest.raises(CryptoError, match="crypto_key_reader"):
        NO_KEYS.decrypt(*sealed(made))


# --- what messages tell ---------------------------------------------------------------------------------------------


def test_context_of() -> None:
    assert context_of(metadata_of(0), failed=False) is None
    keys = [pb.EncryptionKeys(key="k", value=b"v", metadata=[pb.KeyValue(key="a", value="1")])]
    metadata = metadata_of(
        0, encryption_keys=keys, encryption_param=b"vector", encryption_algo="AES", uncompressed_size=9,
        compression=pb.ZSTD, num_messages_in_batch=4,
    )  # fmt: skip
    context = context_of(metadata, failed=True)
    assert context is not None
    (key,) = context.keys()
    assert (key.key, key.value, key.metadata) == ("k", b"v", {"a": "1"})
    assert (context.param(), context.algorithm(), context.compression_type()) == (
        b"vector",
        "AES",
        CompressionType.ZSTD,
    )
    assert (context.uncompressed_message_size(), context.batch_size(), context.is_decryption_failed()) == (9, 4, True)
    single = context_of(metadata_of(0, encryption_keys=keys), failed=False)
    assert single is not None and (single.batch_size(), single.is_decryption_failed()) == (-1, False)
    assert "value_len=1" in repr(single)
