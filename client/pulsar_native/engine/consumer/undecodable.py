"""Undecodable entries of a consumer: those whose private key must be read first, and those that stay unreadable.

Rules: a damaged entry is acknowledged with its validation error, so that it is not redelivered indefinitely, and its id
is kept for the application; an entry that cannot be decrypted is handled by the consumer's crypto failure action.
Everything under the consumer's lock, in the thread that receives, except where said.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from pulsar_native._loggers import get_logger
from pulsar_native.engine.consumer.consumer_context import ConsumerContext
from pulsar_native.engine.loop import to_plugin_thread
from pulsar_native.enums import ConsumerCryptoFailureAction
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.chunk_assembly import ChunkAssembly
from pulsar_native.protocol.data_keys import Decryptor, KeyWanted
from pulsar_native.protocol.entry_decoder import Corrupt, Delivery, NotDecoded, Undecryptable
from pulsar_native.wire import commands
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.entry import EntryKey

_log = get_logger("pulsar_native.consumer")


class UndecodableEntries:
    """Undecodable entries of a partition's consumer, for its `protocol.entry_decoder.EntryDecoder`.

    `on_key_fetched` is called on the loop when a private key was read, or is known to be missing.
    """

    def __init__(
        self,
        context: ConsumerContext,
        chunks: ChunkAssembly,
        watch: Callable[[EntryKey], None],
        on_key_fetched: Callable[[], None],
    ) -> None:
        """`watch` has an entry redelivered that is not acknowledged in time."""
        self._context = context
        self._chunks = chunks
        self._watch = watch
        self._on_key_fetched = on_key_fetched
        config = context.config
        self.decryptor = Decryptor(config.crypto_key_reader, config.crypto_failure_action, time.monotonic)
        self.discards_undecryptable = config.crypto_failure_action is ConsumerCryptoFailureAction.DISCARD
        self._key_task: asyncio.Task[None] | None = None
        self.discarded: deque[MessageId] = deque(maxlen=1000)
        self.discarded_count = 0
        self.undecrypted_count = 0

    # --- private keys -----------------------------------------------------------------------------------------------

    @property
    def is_fetching_key(self) -> bool:
        """True after a private key was asked for."""
        return self._key_task is not None

    def fetch_key(self, wanted: KeyWanted) -> None:
        """Have a private key read in another thread; deliveries wait in order meanwhile.

        A key reader that cannot answer is asked again after a pause: see `protocol.data_keys`.
        """
        self._context.engine.call(self._begin_fetch, wanted)

    def _begin_fetch(self, wanted: KeyWanted) -> None:
        if self._context.is_alive():
            self._key_task = self._context.engine.spawn(self._fetch(wanted))

    async def _fetch(self, wanted: KeyWanted) -> None:
        is_learned = False
        while not is_learned:
            await asyncio.sleep(self.decryptor.pause())
            fetched = await to_plugin_thread(self.decryptor.fetch, wanted)
            with self._context.lock:
                is_learned = self.decryptor.learn(fetched)
        self._on_key_fetched()

    def stop(self) -> None:
        """Wait for no private key any more."""
        if self._key_task is not None:
            self._key_task.cancel()

    # --- undecodable entries ------------------------------------------------------------------------------------------

    def on_undecodable(self, delivery: Delivery, error: NotDecoded) -> int:
        """Handle an undecodable delivery: discard it, or leave it unacknowledged until its time-out. Return its
        permits.
        """
        self._context.note("receive_failed", 1)
        if isinstance(error, Corrupt):
            if error.reason == pb.CommandAck.ValidationError.DecryptionError:
                self.undecrypted_count += 1
            self._discard(delivery, error)
            return error.permits
        if isinstance(error, Undecryptable):
            self.undecrypted_count += 1
        key = (delivery.ledger_id, delivery.entry_id)
        _log.error("%s: entry %d:%d is not delivered: %s", self._context.describe(), *key, error)
        self._watch(key)
        return delivery.cost(error.permits)

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
