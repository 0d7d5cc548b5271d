"""Undecodable entries of a consumer: discarded with their reason, left for redelivery, or waiting for a private key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from pulsar_native.config import ConsumerConfig
from pulsar_native.crypto import CryptoKeyReader, DefaultCryptoKeyReader, EncryptionKey, EncryptionKeyInfo
from pulsar_native.engine.consumer import undecodable
from pulsar_native.engine.consumer.chunk_assembler import assembly_of
from pulsar_native.engine.consumer.undecodable import UndecodableEntries
from pulsar_native.enums import ConsumerCryptoFailureAction
from pulsar_native.exceptions import ChecksumError, CryptoError
from pulsar_native.message_id import MessageId
from pulsar_native.protocol import data_keys
from pulsar_native.protocol.data_keys import KeyWanted
from pulsar_native.protocol.entry_decoder import Corrupt, Delivery, Undecryptable
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.entry import EntryKey
from support.consumer_contexts import ConsumerState
from support.consumer_cores import LEDGER, TOPIC, command
from support.entry_bytes import batch_entry
from support.until import until

Reasons = pb.CommandAck.ValidationError


class Handler:
    """A handler of undecodable entries, and what it had done."""

    def __init__(self, **options: Any) -> None:
        self.state = ConsumerState(ConsumerConfig(subscription_name="s", **options))
        self.watched: list[EntryKey] = []
        self.fetched = 0
        self.chunks = assembly_of(self.state.config)
        self.entries = UndecodableEntries(self.state.context, self.chunks, self.watched.append, self.on_key_fetched)

    def on_key_fetched(self) -> None:
        assert self.state.context.lock.acquire(blocking=False)  # type: ignore[attr-defined]
        self.state.context.lock.release()  # type: ignore[attr-defined]
        self.fetched += 1


def delivery(entry: int = 5) -> Delivery:
    return Delivery(command(entry), batch_entry([b"x"] * 3), 1)


def corrupt(reason: int, permits: int = 3) -> Corrupt:
    return Corrupt(reason, permits, ChecksumError("damaged"))


def test_damaged_entry_acknowledged_with_its_reason() -> None:
    handler = Handler()
    assert handler.entries.on_undecodable(delivery(), corrupt(Reasons.ChecksumMismatch)) == 3
    assert handler.state.connection is not None
    (ack,) = handler.state.connection.commands()
    assert ack.ack.validation_error == Reasons.ChecksumMismatch and ack.ack.consumer_id == 3
    assert [place.entryId for place in ack.ack.message_id] == [5]
    assert list(handler.entries.discarded) == [MessageId(-1, LEDGER, 5, -1, topic=TOPIC)]
    assert (handler.entries.discarded_count, handler.entries.undecrypted_count) == (1, 0)
    assert handler.state.notes == [("receive_failed", 1)] and not handler.watched


def test_damaged_entry_without_connection_is_only_kept() -> None:
    handler = Handler()
    handler.state.connection = None
    handler.entries.on_undecodable(delivery(), corrupt(Reasons.DecompressionError))
    assert handler.entries.discarded_count == 1


def test_discarded_ids_are_limited_and_counted() -> None:
    handler = Handler()
    for entry in range(1200):
        handler.entries.on_undecodable(delivery(entry), corrupt(Reasons.ChecksumMismatch))
    assert len(handler.entries.discarded) == 1000 and handler.entries.discarded_count == 1200
    assert handler.entries.discarded[-1].entry_id() == 1199


def test_undecryptable_discarded_counts_as_undecrypted() -> None:
    handler = Handler(crypto_failure_action=ConsumerCryptoFailureAction.DISCARD)
    handler.entries.on_undecodable(delivery(), corrupt(Reasons.DecryptionError))
    assert (handler.entries.discarded_count, handler.entries.undecrypted_count) == (1, 1)
    assert handler.entries.discards_undecryptable


def test_undecryptable_left_for_redelivery() -> None:
    handler = Handler()
    words = Delivery(command(5, words=[0b011]), batch_entry([b"x"] * 3), 1)
    # Of a partly acknowledged batch only the open messages had permits.
    assert handler.entries.on_undecodable(words, Undecryptable(3, CryptoError("no key"))) == 2
    assert handler.watched == [(LEDGER, 5)] and handler.entries.undecrypted_count == 1
    assert handler.state.connection is not None and not handler.state.connection.commands()
    assert not handler.entries.discarded and not handler.entries.discards_undecryptable


async def test_private_key_fetched_outside_the_lock() -> None:
    threads: list[str] = []

    class NoKeys(DefaultCryptoKeyReader):
        def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
            threads.append(threading.current_thread().name)
            return super().get_private_key(key_name, metadata)

    handler = Handler(crypto_key_reader=NoKeys())
    handler.entries.fetch_key(KeyWanted([EncryptionKey("a", b"", {})]))
    assert handler.entries.is_fetching_key
    await until(lambda: handler.fetched)
    assert handler.fetched == 1
    assert len(threads) == 1 and threads[0].startswith("pulsar-native-plugin")


async def test_private_key_asked_for_again_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key reader that fails is asked again while deliveries wait, after a pause each time."""
    events: list[float | str] = []

    class Failing(CryptoKeyReader):
        def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
            events.append(key_name)
            return super().get_private_key(key_name, metadata)

    async def sleep(seconds: float) -> None:
        events.append(seconds)

    handler = Handler(crypto_key_reader=Failing("", "/missing"))
    monkeypatch.setattr(handler.entries.decryptor, "_clock", lambda: 0.0)
    monkeypatch.setattr(undecodable.asyncio, "sleep", sleep)
    task = handler.entries._fetch(KeyWanted([EncryptionKey("a", b"", {})]))
    await task
    # Told once, in the end: nothing of what waits is decoded in between.
    assert handler.fetched == 1
    assert events == [0.0, "a", *[data_keys.PAUSE_SECONDS, "a"] * (data_keys.ATTEMPTS - 1)]


async def test_private_key_of_closed_consumer_not_fetched() -> None:
    handler = Handler()
    handler.state.is_alive = False
    handler.entries.fetch_key(KeyWanted([]))
    assert not handler.entries.is_fetching_key


async def test_private_key_not_waited_for_after_stop() -> None:
    handler = Handler()
    handler.entries.fetch_key(KeyWanted([]))
    handler.entries.stop()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not handler.fetched
