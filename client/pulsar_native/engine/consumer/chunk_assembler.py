"""Chunk assembler of a consumer: `protocol.chunk_assembly` with a clock, a timer, and acknowledgement of unusable
chunks.

Rules: chunks are added in the thread that receives, under the consumer's lock; the loop is woken only to arm the timer
of incomplete messages. An incomplete message ages only while its other chunks can arrive: not without a connection, and
not while the broker has no permits. A reader acknowledges no chunks, and no consumer those of an attachment that has
ended: they are delivered again, and may be complete then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pulsar_native._loggers import get_logger
from pulsar_native.config import ConsumerConfig
from pulsar_native.engine.consumer.ack_grouping_tracker import AckGroupingTracker
from pulsar_native.engine.consumer.consumer_context import ConsumerContext
from pulsar_native.protocol.chunk_assembly import ChunkAssembly, ChunkedMessage
from pulsar_native.wire.entry import EntryKey, ParsedEntry

_log = get_logger("pulsar_native.consumer")


def assembly_of(config: ConsumerConfig) -> ChunkAssembly:
    """Return the chunk assembly for a consumer's configuration."""
    return ChunkAssembly(
        max_pending=config.max_pending_chunked_message,
        auto_ack_oldest=config.auto_ack_oldest_chunked_message_on_queue_full,
        expiry=config.expire_time_of_incomplete_chunked_message_ms / 1000,
        note_orphans=config.is_reader,
    )


class ChunkAssembler:
    """Chunk assembler of a partition's consumer.

    `has_undecoded` returns True while a delivery is not decoded yet, `may_receive` while the broker can send one.
    `on_orphan` is called under the lock with the entry and the number of a chunk without its predecessor.
    """

    def __init__(
        self,
        context: ConsumerContext,
        assembly: ChunkAssembly,
        acks: AckGroupingTracker,
        has_undecoded: Callable[[], bool],
        may_receive: Callable[[], bool],
        on_orphan: Callable[[EntryKey, int], None],
    ) -> None:
        self._context = context
        self._assembly = assembly
        self._acks = acks
        self._has_undecoded = has_undecoded
        self._may_receive = may_receive
        self._on_orphan = on_orphan
        self._is_reader = context.config.is_reader
        self._timer_armed = False

    def assemble(self, entry: EntryKey, parsed: ParsedEntry, piece: bytes | memoryview) -> ChunkedMessage | None:
        """Add a chunk and return its message when it is complete. Called under the lock."""
        chunks = self._assembly
        message = chunks.add(entry, parsed, piece, time.monotonic(), time.time_ns() // 1_000_000)
        if message is None and not chunks.is_incomplete(parsed.metadata.uuid):
            self._on_orphan(entry, parsed.metadata.chunk_id)
        if message is not None and not self._is_reader:
            chunks.give(message)
        self._pass_on_unusable()
        if not self._timer_armed and (due := chunks.next_expiry()) is not None:
            self._timer_armed = True
            # May run immediately, in this thread: it must not acquire the lock.
            self._context.engine.call(self._arm_timer, due)
        return message

    def restart_ages(self) -> None:
        """Let incomplete messages age from now on: no chunk could arrive before. Called under the lock."""
        self._assembly.restart_ages(time.monotonic())

    def _arm_timer(self, due: float) -> None:
        self._context.call_later(max(due - time.monotonic(), 0.05), self._timer)

    def _pass_on_unusable(self) -> None:
        """Acknowledge superseded chunks, and track dropped ones until their redelivery. Called under the lock."""
        chunks = self._assembly
        left_over, unusable = chunks.acknowledge, chunks.unusable
        chunks.acknowledge, chunks.unusable = [], []
        if self._context.connection() is None:
            # What still was in the queue when the connection was lost: it is delivered again at the next attachment.
            return
        if left_over and not self._is_reader:
            self._acks.add_left_over(left_over)
        for key in unusable:
            self._acks.watch(key)

    def _timer(self) -> None:
        """Expire incomplete messages. On the loop."""
        context, chunks = self._context, self._assembly
        with context.lock:
            now = time.monotonic()
            if not self._may_receive():
                chunks.restart_ages(now)
            # An undecoded delivery may be the missing chunk: nothing expires before it is decoded.
            elif not self._has_undecoded() and (count := chunks.expire(now)):
                _log.warning(
                    "%s: %d chunked messages received no further chunk in time: dropped", context.describe(), count
                )
                self._pass_on_unusable()
            due = chunks.next_expiry() if context.is_alive() else None
            self._timer_armed = due is not None
        if due is not None:
            self._arm_timer(due)
