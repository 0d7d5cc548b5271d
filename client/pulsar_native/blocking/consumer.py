"""The blocking consumer and reader: they split, verify and decode entries in the calling thread, and run listeners."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pulsar_native import arguments
from pulsar_native.blocking.part import Part
from pulsar_native.engine.columns import ColumnsRange
from pulsar_native.engine.loop import (
    check_generation,
)
from pulsar_native.engine.topic_consumer import TopicConsumer
from pulsar_native.engine.waiting import Wait
from pulsar_native.exceptions import AlreadyClosed, InvalidConfiguration, Timeout
from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.wire.columns import ALL_COLUMNS

if TYPE_CHECKING:
    import pyarrow

    from pulsar_native.blocking.client import Client

_log = logging.getLogger("pulsar_native")

T = TypeVar("T")
MessageListener = Callable[["Consumer", Message], Any]
_MIB = 1024 * 1024
# How long a bounded read waits before it asks the broker whether there is anything left.
_SETTLE_SECONDS = 0.5


class Receiving(Part):
    """What consumers and readers share: waiting for messages in the calling thread, and listeners."""

    def __init__(self, client: Client, inner: TopicConsumer, decoder: VersionedDecoder) -> None:
        super().__init__(client, inner.client.engine)
        self._inner = inner
        self._decoder = decoder
        self._has_listener = False

    def _take(self, deadline: float | None) -> Message | None:
        """Return the next message, None when none comes before the deadline (monotonic seconds)."""
        check_generation(self._generation)
        inner = self._inner
        # Those who wait already go first.
        message = None if inner.has_waiters() else inner.take()
        if message is None:
            message = self._wait_for(inner.take, deadline)
            if message is None:
                return None
        version = message.entry.schema.wanted(message.schema_version()) if self._decoder.needs_writer else None
        if version is not None:
            self._load_schema(message, version)
        return message

    def _load_schema(self, message: Message, version: bytes) -> None:
        core = self._inner.client
        schema = self._engine.run(core.writer_schema(message.topic_name(), version))
        message.entry.schema.learn(version, schema)

    def _wait_for(self, take: Callable[[], T | None], deadline: float | None) -> T | None:
        """Wait in line until `take` gives something; None when it does not before the deadline (monotonic seconds)."""
        while True:
            wait = Wait()
            self._inner.wait_then(wait.wake)
            try:
                woken = wait.wait(None if deadline is None else deadline - time.monotonic())
                # Taken before the place in the line is given up: else the next one could take it first.
                taken = take() if woken else None
            finally:
                self._inner.forget_wait(wait.wake)
            if taken is not None or not woken:
                return taken

    def _listen(self, listener: Callable[[Message], Any]) -> None:
        self._has_listener = True
        submit = self._client._listeners.assign()
        scheduled = threading.Event()
        inner = self._inner

        def drain() -> None:
            scheduled.clear()
            while True:
                try:
                    message = self._take(time.monotonic())
                except AlreadyClosed:
                    return
                if message is None:
                    return
                try:
                    listener(message)
                except Exception:
                    # The message stays unacknowledged; the ack time-out or the next consumer gets it.
                    _log.exception("The message listener failed for %s", message.message_id())

        def wake() -> None:
            if not scheduled.is_set():
                scheduled.set()
                submit(drain)

        inner.on_ready = wake
        if inner.may_have_more():
            wake()

    def topic(self) -> str:
        """Return the topic's full name, or the names of several joined by commas."""
        return ",".join(topic.full for topic in self._inner.topics)

    def is_connected(self) -> bool:
        """Return whether every partition is connected now."""
        return self._inner.is_connected

    def seek(self, messageid: MessageId | int) -> None:
        """Move to a message id, or to the first message published at or after a time (ms since 1970). Blocks.

        A consumer continues with the message sought; a reader behind it, unless it was made inclusive. A position in
        one partition moves that partition only.
        """
        self._engine.run(self._inner.seek(messageid))

    def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message, entry -1 when it is empty. Blocks."""
        return self._engine.run(self._inner.last_message_id())

    def get_last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of every partition. Blocks."""
        return self._engine.run(self._inner.last_message_ids())

    def has_reached_end_of_topic(self) -> bool:
        """Return whether the topic is terminated and everything in it acknowledged."""
        return all(child.reached_end for child in self._inner.children)

    def discarded_message_ids(self) -> list[MessageId]:
        """Return the entries (at most the last 1,000 a partition) that were damaged and discarded unread."""
        return [message_id for child in self._inner.children for message_id in list(child.discarded)]

    def close(self) -> None:
        """Send gathered acknowledgements and leave; waiting calls raise `AlreadyClosed`. Idempotent."""
        if not self._inner.is_closed:
            self._engine.run(self._inner.close())


class Consumer(Receiving):
    """Receive messages through a subscription. Thread-safe; made by `Client.subscribe`."""

    def __init__(
        self, client: Client, inner: TopicConsumer, decoder: VersionedDecoder, listener: MessageListener | None
    ) -> None:
        super().__init__(client, inner, decoder)
        if listener is not None:
            self._listen(lambda message: listener(self, message))

    def subscription_name(self) -> str:
        """Return the subscription's name."""
        return self._inner.config.subscription_name

    def consumer_name(self) -> str:
        """Return this consumer's name."""
        return self._inner.children[0].name

    def receive(self, timeout_millis: int | None = None) -> Message:
        """Return the next message. Blocks until there is one; raises `Timeout` after `timeout_millis`."""
        if self._has_listener:
            raise InvalidConfiguration("receive() cannot be used on a consumer with a message_listener")
        deadline = None if timeout_millis is None else time.monotonic() + timeout_millis / 1000
        message = self._take(deadline)
        if message is None:
            raise Timeout(f"No message within {timeout_millis} ms", topic=self.topic())
        return message

    def batch_receive(self) -> list[Message]:
        """Return several messages: as many as the batch receive policy says, or as came within its time. Blocks."""
        if self._has_listener:
            raise InvalidConfiguration("batch_receive() cannot be used on a consumer with a message_listener")
        collector = arguments.BatchCollector(self._inner.config.batch_receive_policy, time.monotonic())
        while True:
            message = self._take(collector.deadline)
            if message is None or collector.add(message):
                return collector.messages

    def acknowledge(self, message: Message | MessageId | list[Message | MessageId]) -> None:
        """Tell the broker that a message, or each of a list, is done. Does not block; sent within the group time."""
        check_generation(self._generation)
        if isinstance(message, Message):
            self._inner.acknowledge_message(message)
        else:
            self._inner.acknowledge(arguments.ids_of(message))

    def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Tell the broker that everything up to and including a message is done. Does not block.

        Raises `CumulativeAcknowledgementNotAllowedError` on Shared and Key_Shared subscriptions.
        """
        check_generation(self._generation)
        (message_id,) = arguments.ids_of(message)
        self._inner.owner(message_id).acknowledge_cumulative(message_id)

    def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Ask for a message again after `negative_ack_redelivery_delay_ms`. Does not block."""
        check_generation(self._generation)
        (message_id,) = arguments.ids_of(message)
        self._inner.owner(message_id).negative_acknowledge(message_id)

    def get_positions(self) -> list[tuple[MessageId, MessageId]]:
        """Return the last message id and the subscription's mark-delete position of every partition. Blocks.

        Everything up to the mark-delete position is acknowledged; where it is not below the last id nothing is left
        to receive. (GET_LAST_MESSAGE_ID's consumer_mark_delete_position.)
        """
        return self._engine.run(self._inner.positions())

    def redeliver_unacknowledged_messages(self) -> None:
        """Ask for everything unacknowledged again, now. Does not block."""
        check_generation(self._generation)
        self._inner.redeliver_all()

    def unsubscribe(self, *, force: bool = False) -> None:
        """Remove the subscription at the broker and close. Blocks; `force` also when others are connected to it."""
        self._engine.run(self._inner.unsubscribe(force=force))


class Reader(Receiving):
    """Read a topic from a position of one's own; nothing stays at the broker. Thread-safe."""

    def __init__(
        self,
        client: Client,
        inner: TopicConsumer,
        decoder: VersionedDecoder,
        listener: Callable[[Reader, Message], Any] | None,
    ) -> None:
        super().__init__(client, inner, decoder)
        if listener is not None:
            self._listen(lambda message: listener(self, message))

    def read_next(self, timeout_millis: int | None = None) -> Message:
        """Return the next message. Blocks until there is one; raises `Timeout` after `timeout_millis`."""
        if self._has_listener:
            raise InvalidConfiguration("read_next() cannot be used on a reader with a reader_listener")
        deadline = None if timeout_millis is None else time.monotonic() + timeout_millis / 1000
        message = self._take(deadline)
        if message is None:
            raise Timeout(f"No message within {timeout_millis} ms", topic=self.topic())
        return message

    def has_message_available(self) -> bool:
        """Return whether there is a message between the place reached and the end. Blocks for the broker's answer."""
        return self._engine.run(self._inner.has_message_available())

    def arrow_batches(
        self,
        *,
        end: MessageId | None = None,
        columns: Sequence[str] = ALL_COLUMNS,
        max_rows: int = 10_000,
        max_bytes: int = 8 * _MIB,
        timeout_millis: int = 60_000,
        publish_time: tuple[int | None, int | None] | None = None,
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield Arrow record batches from the reader's place up to `end`, exclusive, to the index in a batch.

        Without `end`, up to the last message there is at the call. `publish_time` is (from, until) in ms, half-open.
        Batches hold at most `max_rows` rows and about `max_bytes`, unless one entry alone is larger. Blocks; raises
        `Timeout` when nothing comes for `timeout_millis`, and `ChecksumError` for a damaged entry: a short result is
        never passed off as the whole.
        """
        work = ColumnsRange(
            self._inner,
            end=end,
            columns=columns,
            max_rows=max_rows,
            max_bytes=max_bytes,
            publish_time=publish_time,
        )
        self._engine.run(work.settle())
        stalled_at = time.monotonic() + timeout_millis / 1000
        while not work.done:
            soon = min(time.monotonic() + _SETTLE_SECONDS, stalled_at)
            taken = self._inner.take_slice() or self._wait_for(self._inner.take_slice, soon)
            if taken is not None:
                work.add(*taken)
                stalled_at = time.monotonic() + timeout_millis / 1000
                yield from work.full()
            elif time.monotonic() >= stalled_at:
                raise Timeout(
                    f"The range is not complete, and nothing came for {timeout_millis} ms", topic=self.topic()
                )
            else:
                self._engine.run(work.settle())
        yield from work.rest()
