"""Entry decoder of a consumer: `protocol.entry_decoder` with acknowledgements, dead letters, keys and statistics.

Rules: a damaged entry is acknowledged with its validation error, so that it is not redelivered indefinitely, and its id
is kept for the application; an entry that cannot be decrypted is handled by the consumer's crypto failure action. The
ack states of a batch at the broker and here are compared here. Everything under the consumer's lock, in the thread that
receives, except where said.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from pulsar_native.engine.consumer.ack_grouping_tracker import AckGroupingTracker
from pulsar_native.engine.consumer.chunk_assembler import ChunkAssembler
from pulsar_native.engine.consumer.consumer_context import ConsumerContext
from pulsar_native.engine.consumer.dead_letter import DeadLetterRouter
from pulsar_native.engine.metrics.statistics import ConsumerRecorder
from pulsar_native.enums import ConsumerCryptoFailureAction
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.ack_grouping import bits_of
from pulsar_native.protocol.chunk_assembly import ChunkAssembly
from pulsar_native.protocol.data_keys import Decryptor, KeyWanted
from pulsar_native.protocol.entry_decoder import Corrupt, Decoded, Delivery, StartFilter, Undecryptable, decode
from pulsar_native.protocol.permits import expected_permits
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.entry import EntryKey

_log = logging.getLogger("pulsar_native.consumer")

# Assumed without a connection, in bytes.
_MAX_MESSAGE_SIZE = 1 << 23


class EntryDecoder:
    """Decoder of the deliveries of a partition's consumer: its `protocol.consumer.Decoding`.

    `on_key_fetched` is called on the loop when a private key was read, or is known to be missing.
    """

    def __init__(
        self,
        context: ConsumerContext,
        schema: Any,
        chunks: ChunkAssembly,
        chunk_assembler: ChunkAssembler,
        acks: AckGroupingTracker,
        dead_letter_router: DeadLetterRouter | None,
        recorder: ConsumerRecorder | None,
        on_key_fetched: Callable[[], None],
    ) -> None:
        self._context = context
        self._schema = schema
        self._chunks = chunks
        self._chunk_assembler = chunk_assembler
        self._acks = acks
        self._dead_letter_router = dead_letter_router
        self._recorder = recorder
        self._on_key_fetched = on_key_fetched
        config = context.config
        self._decryptor = Decryptor(config.crypto_key_reader, config.crypto_failure_action, time.monotonic)
        self.discards_undecryptable = config.crypto_failure_action is ConsumerCryptoFailureAction.DISCARD
        self._key_task: asyncio.Task[None] | None = None
        self.discarded: deque[MessageId] = deque(maxlen=1000)
        self.discarded_count = 0
        self.undecrypted_count = 0

    # --- decoding ---------------------------------------------------------------------------------------------------

    def is_acknowledged(self, key: EntryKey) -> bool:
        """Return True if the entry was acknowledged here and must not be delivered."""
        self._acks.catch_up()
        return self._acks.group.covers(key)

    def decode(self, delivery: Delivery, start: StartFilter) -> Decoded | None:
        """Return the decoded delivery, None for a chunk of a message that is not complete yet.

        Raises `KeyWanted`, `Corrupt` and `Undecryptable`.
        """
        topic = self._context.topic
        connection = self._context.connection()
        missing = self._acks.group.open_here((delivery.ledger_id, delivery.entry_id))
        decoded = decode(
            delivery,
            together=self._chunk_assembler.assemble,
            topic=topic.full,
            partition=topic.partition,
            schema=self._schema,
            start=start,
            missing=missing,
            max_message_size=connection.max_message_size if connection else _MAX_MESSAGE_SIZE,
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

    def admit(self, decoded: Decoded) -> int:
        """Return how many messages to deliver and count them; 0 where the entry goes to the dead-letter topic."""
        late, router = self._acks.late, self._dead_letter_router
        if late is not None:
            late.delivered(decoded.entry.key, decoded.entry.redelivery_count)
        if router is not None and decoded.wanted > 0 and router.should_redirect(decoded):
            return 0
        if self._recorder is not None and decoded.wanted:
            self._recorder.received(decoded.wanted, decoded.payload_bytes())
        return decoded.wanted

    def on_dropped(self, messages: int, size: int) -> None:
        """Count decoded messages that are dropped, and their payload bytes."""
        if self._recorder is not None:
            self._recorder.received(-messages, -size)

    # --- private keys -----------------------------------------------------------------------------------------------

    @property
    def is_fetching_key(self) -> bool:
        """True after a private key was asked for."""
        return self._key_task is not None

    def fetch_key(self, wanted: KeyWanted) -> None:
        """Have a private key read in another thread; deliveries wait in order meanwhile."""
        self._context.engine.call(self._begin_fetch, wanted)

    def _begin_fetch(self, wanted: KeyWanted) -> None:
        if self._context.is_alive():
            self._key_task = self._context.engine.spawn(self._fetch(wanted))

    async def _fetch(self, wanted: KeyWanted) -> None:
        fetched = await asyncio.to_thread(self._decryptor.fetch, wanted)
        with self._context.lock:
            self._decryptor.learn(fetched)
        self._on_key_fetched()

    def stop(self) -> None:
        """Wait for no private key any more."""
        if self._key_task is not None:
            self._key_task.cancel()

    # --- undecodable entries ------------------------------------------------------------------------------------------

    def on_undecodable(self, delivery: Delivery, error: Corrupt | Undecryptable) -> int:
        """Handle an undecodable delivery: discard it, or leave it unacknowledged until its time-out. Return its
        permits.
        """
        self._context.note("receive_failed", 1)
        if isinstance(error, Corrupt):
            if error.reason == pb.CommandAck.ValidationError.DecryptionError:
                self.undecrypted_count += 1
            self._discard(delivery, error)
            return error.permits
        key = (delivery.ledger_id, delivery.entry_id)
        self.undecrypted_count += 1
        _log.error("%s: entry %d:%d is not delivered: %s", self._context.describe(), *key, error)
        self._acks.watch(key)
        return expected_permits(error.permits, delivery)

    def _discard(self, delivery: Delivery, error: Corrupt) -> None:
        context = self._context
        key = (delivery.ledger_id, delivery.entry_id)
        place = MessageId(context.topic.partition, *key, -1, topic=context.topic.full)
        self.discarded.append(place)
        self.discarded_count += 1
        _log.error("%s: discarding entry %s, which cannot be read: %s", context.describe(), place, error)
        connection = context.connection()
        if connection is not None:
            # A chunked message that cannot be decoded as a whole is discarded as a whole.
            items: list[commands.AckItem] = [(*each, None) for each in self._chunks.pop_entries(key) or (key,)]
            connection.write(
                [commands.ack(context.consumer_id, items, cumulative=False, validation_error=error.reason)]
            )
