"""Data key renewal: before the first message, in time, and never on the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pulsar_native.config import ProducerConfig
from pulsar_native.crypto import CryptoKeyReader, EncryptionKeyInfo
from pulsar_native.engine.loop import Engine
from pulsar_native.engine.producer.key_renewal import KeyRenewal
from pulsar_native.enums import ProducerCryptoFailureAction
from pulsar_native.exceptions import CryptoError
from pulsar_native.protocol import data_keys
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from support.until import until

TOPIC = TopicName.parse("t")


@pytest.fixture
def public(tmp_path: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    path = tmp_path / "a.pub"
    path.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return path


class Noting(CryptoKeyReader):
    """Note in which thread it is asked."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), "")
        self.threads: list[int] = []

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        self.threads.append(threading.get_ident())
        return super().get_public_key(key_name, metadata)


def renewal(reader: CryptoKeyReader, **options: Any) -> KeyRenewal:
    config = ProducerConfig(topic="t", encryption_key="a", crypto_key_reader=reader, **options)
    return KeyRenewal(Engine(asyncio.get_running_loop(), threading.get_ident()), config, TOPIC)


def wrapped(made: KeyRenewal) -> bytes:
    metadata = pb.MessageMetadata()
    made.encryptor.encrypt(metadata, b"x")
    return bytes(metadata.encryption_keys[0].value) if metadata.encryption_keys else b""


@pytest.mark.asyncio
async def test_key_renewal_in_time_off_loop(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_keys, "RENEWAL_SECONDS", 0.02)
    reader = Noting(public)
    made = renewal(reader)
    assert not reader.threads
    await made.start()
    seen = {wrapped(made)}
    await until(lambda: seen.add(wrapped(made)) or len(seen) > 2)
    task = made._task
    assert task is not None
    made.stop()
    assert threading.get_ident() not in reader.threads
    await asyncio.wait([task], timeout=10)
    assert task.cancelled()


@pytest.mark.asyncio
async def test_key_renewal_first_key_fails(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_keys, "UNENCRYPTED_SECONDS", 0.02)
    monkeypatch.setattr(data_keys, "PAUSE_SECONDS", 0.0)
    moved = public.rename(public.with_suffix(".later"))
    reader = Noting(public)
    with pytest.raises(CryptoError, match=r"a\.pub") as caught:
        await renewal(reader).start()
    assert caught.value.topic == TOPIC.full
    made = renewal(reader, crypto_failure_action=ProducerCryptoFailureAction.SEND)
    await made.start()
    assert wrapped(made) == b""
    # The key is tried again, and what is sent from then on is encrypted.
    moved.rename(public)
    await until(lambda: wrapped(made))
    made.stop()


@pytest.mark.asyncio
async def test_key_renewal_send_asks_again_before_plain_text(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_keys, "PAUSE_SECONDS", 0.0)

    class Flaky(Noting):
        def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
            info = super().get_public_key(key_name, metadata)
            if len(self.threads) < data_keys.ATTEMPTS:
                raise OSError("gone")
            return info

    made = renewal(Flaky(public), crypto_failure_action=ProducerCryptoFailureAction.SEND)
    await made.start()
    assert wrapped(made)
    made.stop()
    # A producer that fails says so at once.
    reader = Flaky(public)
    with pytest.raises(CryptoError, match="OSError"):
        await renewal(reader).start()
    assert len(reader.threads) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [MemoryError("secret"), SystemExit("secret"), asyncio.CancelledError("secret")])
async def test_key_renewal_unexpected_error_continues(
    public: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    monkeypatch.setattr(data_keys, "RENEWAL_SECONDS", 0.02)
    monkeypatch.setattr(data_keys, "RETRY_SECONDS", 0.02)
    made = renewal(Noting(public))
    await made.start()
    renew, failures = made.encryptor.renew, [error]

    def fail_once() -> None:
        if failures:
            raise failures.pop()
        renew()

    monkeypatch.setattr(made.encryptor, "renew", fail_once)
    await until(lambda: not failures)
    before = wrapped(made)
    await until(lambda: wrapped(made) != before)
    made.stop()
    (record,) = caplog.records
    assert record.getMessage() == f"The data key of {TOPIC.full} cannot be renewed yet: {type(error).__name__}"
