"""Opening deliveries: verified, decrypted, decompressed and unpacked; and what becomes of those that cannot be.

Rules: a damaged entry is acknowledged with the reason, so that it does not come for ever, and its
id is kept for the application; what cannot be decrypted goes by the consumer's failure action. What the broker and we
know to be acknowledged of a batch is compared here. Everything under the consumer's lock, in the thread that receives.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pulsar_native.engine.connection import Connection
from pulsar_native.engine.consumer.ack_grouping_tracker import AckGroupingTracker
from pulsar_native.engine.consumer.chunk_assembler import ChunkAssembler
from pulsar_native.engine.consumer.permits import expected_permits
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.ack_grouping import bits_of
from pulsar_native.protocol.chunk_assembly import ChunkAssembly
from pulsar_native.protocol.data_keys import Decryptor, KeyWanted
from pulsar_native.protocol.entry_decoder import Corrupt, Decoded, Delivery, Undecryptable, decode
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from pulsar_native.engine.consumer.consumer import PartitionConsumer

_log = logging.getLogger("pulsar_native.consumer")


class EntryDecoder:
    """What a `PartitionConsumer` does with a delivery before its messages are given out."""

    def __init__(self, consumer: PartitionConsumer, chunks: ChunkAssembly, acks: AckGroupingTracker) -> None:
        self._consumer = consumer
        self._chunks = chunks
        self._acks = acks
        self._chunk_assembler = ChunkAssembler(consumer, chunks, acks)
        config = consumer.config
        self._decryptor = Decryptor(config.crypto_key_reader, config.crypto_failure_action, time.monotonic)
        self.discarded: deque[MessageId] = deque(maxlen=1000)
        self.discarded_count = 0
        self.undecrypted_count = 0

    def decode(self, delivery: Delivery, connection: Connection | None) -> Decoded | None:
        """Return what a delivery holds, None for a chunk of a message that is not complete yet.

        Raises `KeyWanted`, `Corrupt` and `Undecryptable`.
        """
        consumer = self._consumer
        missing = self._acks.group.open_here((delivery.ledger_id, delivery.entry_id))
        decoded = decode(
            delivery,
            together=self._chunk_assembler.assemble,
            topic=consumer.topic.full,
            partition=consumer.topic.partition,
            schema=consumer.schema,
            start=consumer.positions.filter,
            missing=missing,
            max_message_size=connection.max_message_size if connection else 1 << 23,
            decryptor=self._decryptor,
        )
        if decoded is not None and decoded.entry.is_batch and (missing is not None or delivery.ack_words is not None):
            self._compare_acks(delivery, decoded, missing)
        return decoded

    def _compare_acks(self, delivery: Delivery, decoded: Decoded, missing: int | None) -> None:
        """Compare what the broker and we know to be acknowledged of a batch."""
        key, size = decoded.entry.key, decoded.entry.batch_size
        there = (1 << size) - 1 if delivery.ack_words is None else bits_of(delivery.ack_words)
        self._acks.group.add_entry(key, there, size)
        if missing is not None and there & ~missing:
            # An acknowledgement on its way when the connection broke may not have arrived; the messages stay skipped
            # here, but the broker must hear of them before another consumer gets them.
            self._acks.resend(key)

    def fetch_key(self, wanted: KeyWanted) -> Callable[[], None]:
        """Read a private key; returns what takes it over, to be called under the lock. In a thread, without lock."""
        return partial(self._decryptor.learn, self._decryptor.fetch(wanted))

    def on_undecodable(self, delivery: Delivery, error: Corrupt | Undecryptable, connection: Connection | None) -> int:
        """Do without a delivery: discard it, or leave it unacknowledged until its time-out. Returns its permits."""
        consumer = self._consumer
        consumer.note("receive_failed")
        if isinstance(error, Corrupt):
            if error.reason == pb.CommandAck.ValidationError.DecryptionError:
                self.undecrypted_count += 1
            self._discard(delivery, error, connection)
            return error.permits
        key = (delivery.ledger_id, delivery.entry_id)
        self.undecrypted_count += 1
        _log.error("%s: entry %d:%d is not delivered: %s", consumer.describe(), *key, error)
        if self._acks.unacked is not None:
            self._acks.unacked.add(key)
        return expected_permits(error.permits, delivery)

    def _discard(self, delivery: Delivery, error: Corrupt, connection: Connection | None) -> None:
        consumer = self._consumer
        key = (delivery.ledger_id, delivery.entry_id)
        place = MessageId(consumer.topic.partition, *key, -1, topic=consumer.topic.full)
        self.discarded.append(place)
        self.discarded_count += 1
        _log.error("%s: discarding entry %s, which cannot be read: %s", consumer.describe(), place, error)
        if connection is not None:
            # A message in chunks that cannot be read as a whole goes as a whole.
            items: list[commands.AckItem] = [(*each, None) for each in self._chunks.take_entries(key) or (key,)]
            connection.write(
                [commands.ack(consumer.consumer_id, items, cumulative=False, validation_error=error.reason)]
            )
