"""Entry decoder of a consumer: `protocol.entry_decoder` with its consumer's state, and handling of undecodable entries.

Rules: a damaged entry is acknowledged with its validation error, so that it is not redelivered indefinitely, and its id
is kept for the application; an entry that cannot be decrypted is handled by the consumer's crypto failure action. The
ack states of a batch at the broker and here are compared here. Everything under the consumer's lock, in the thread that
receives.
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
from pulsar_native.enums import ConsumerCryptoFailureAction
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
    """Decoder of a `PartitionConsumer`'s deliveries."""

    def __init__(self, consumer: PartitionConsumer, chunks: ChunkAssembly, acks: AckGroupingTracker) -> None:
        self._consumer = consumer
        self._chunks = chunks
        self._acks = acks
        self._chunk_assembler = ChunkAssembler(consumer, chunks, acks)
        config = consumer.config
        self._decryptor = Decryptor(config.crypto_key_reader, config.crypto_failure_action, time.monotonic)
        self.discards_undecryptable = config.crypto_failure_action is ConsumerCryptoFailureAction.DISCARD
        self.discarded: deque[MessageId] = deque(maxlen=1000)
        self.discarded_count = 0
        self.undecrypted_count = 0

    def decode(self, delivery: Delivery, connection: Connection | None) -> Decoded | None:
        """Return the decoded delivery, None for a chunk of a message that is not complete yet.

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
            start=consumer.position.filter,
            missing=missing,
            max_message_size=connection.max_message_size if connection else 1 << 23,
            decryptor=self._decryptor,
        )
        if decoded is not None and decoded.entry.is_batch and (missing is not None or delivery.ack_words is not None):
            self._compare_acks(delivery, decoded, missing)
        return decoded

    def _compare_acks(self, delivery: Delivery, decoded: Decoded, missing: int | None) -> None:
        """Compare the ack states of a batch at the broker and here."""
        key, size = decoded.entry.key, decoded.entry.batch_size
        there = (1 << size) - 1 if delivery.ack_words is None else bits_of(delivery.ack_words)
        self._acks.group.add_entry(key, there, size)
        if missing is not None and there & ~missing:
            # An acknowledgement in transit when the connection was lost may not have arrived; the messages stay
            # filtered out here, but the broker must receive it before another consumer gets them.
            self._acks.resend(key)

    def fetch_key(self, wanted: KeyWanted) -> Callable[[], None]:
        """Read a private key; return a function that stores it, to be called under the lock. In a thread, without
        lock.
        """
        return partial(self._decryptor.learn, self._decryptor.fetch(wanted))

    def on_undecodable(self, delivery: Delivery, error: Corrupt | Undecryptable, connection: Connection | None) -> int:
        """Handle an undecodable delivery: discard it, or leave it unacknowledged until its time-out. Return its
        permits.
        """
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
            # A chunked message that cannot be decoded as a whole is discarded as a whole.
            items: list[commands.AckItem] = [(*each, None) for each in self._chunks.pop_entries(key) or (key,)]
            connection.write(
                [commands.ack(consumer.consumer_id, items, cumulative=False, validation_error=error.reason)]
            )
