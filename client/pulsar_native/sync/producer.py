"""The blocking producer: a message is encoded and often written in the calling thread.

Rules: nothing crosses threads once per message except what the engine needs to be woken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsar_native import _message_builder, _validation
from pulsar_native._validation import is_argument_error
from pulsar_native.engine.interceptors import InterceptedProducer
from pulsar_native.engine.loop import (
    check_generation,
    this_process,
)
from pulsar_native.engine.metrics.statistics import of_producer
from pulsar_native.engine.producer.backpressure import Backpressure
from pulsar_native.engine.producer.bulk_send import BulkSend, Slice
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.engine.transaction import SendOperation
from pulsar_native.engine.waiter import SendWait, Wait
from pulsar_native.exceptions import (
    AlreadyClosed,
    Interrupted,
    InvalidConfiguration,
    OperationNotSupported,
    PulsarException,
    Timeout,
)
from pulsar_native.message_id import MessageId
from pulsar_native.message_ids import MessageIds
from pulsar_native.protocol.send_op import Callback, ResultCallback, as_callback
from pulsar_native.schema import BytesSchema, Schema
from pulsar_native.stats import CloseReport, ProducerStats
from pulsar_native.sync._base import Closeable

if TYPE_CHECKING:
    import pyarrow

    from pulsar_native.sync.client import Client
    from pulsar_native.sync.transaction import Transaction

SendCallback = ResultCallback


class Producer(Closeable):
    """Publish messages to one topic. Thread-safe; made by `Client.create_producer`."""

    def __init__(self, client: Client, inner: TopicProducer, schema: Schema[Any]) -> None:
        super().__init__(client, inner.client.engine)
        self._inner = inner
        if isinstance(inner, InterceptedProducer):
            inner.chain.bind(self)
        self._schema = schema
        self._plain_bytes = type(schema) is BytesSchema
        self._separates_key = schema.separates_key
        # For the hot path, which calls as little as it can.
        self._process = this_process()
        self._take_plain = inner.fast_send()
        self._take_waiting = inner.fast_send_sync()
        self._block = inner.config.block_if_queue_full

    def _described(self) -> str:
        return f"{self._inner.name} of {self._inner.topic.full}"

    def topic(self) -> str:
        """Return the topic's full name."""
        return self._inner.topic.full

    def producer_name(self) -> str:
        """Return the producer's name, given or made by the broker."""
        return self._inner.name

    def last_sequence_id(self) -> int:
        """Return the highest sequence id the broker has confirmed, -1 initially."""
        return self._inner.last_sequence_id

    def is_connected(self) -> bool:
        """Return whether the producer is connected to the broker of every partition now."""
        return self._inner.is_connected

    def stats(self) -> ProducerStats:
        """Return what was sent so far; see `pulsar_native.ProducerStats`. Does not block."""
        return of_producer(self._inner)

    def send(
        self,
        content: Any,
        properties: Mapping[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | int | None = None,
        schema: Schema[Any] | None = None,
        txn: Transaction | None = None,
    ) -> MessageId:
        """Publish a message and return its id. Blocks until the broker has stored it, or the send time-out.

        A batch that is open is sent with it. `schema` is for a value of another schema than the producer's: its first
        use registers it, which may raise `IncompatibleSchema`. In a `txn`, consumers get it when that is
        committed; raises `InvalidTxnStatusError` when it is not open any more. The id is (-1, -1) when the broker
        dropped a duplicate.
        Raises `Timeout`, `MessageTooBig`, `ProducerQueueIsFull` and others; a raised message may still have been
        stored.
        """
        wait = SendWait()
        try:
            if (
                type(content) is bytes and self._plain_bytes and properties is None and partition_key is None
                and ordering_key is None and sequence_id is None and replication_clusters is None
                and not disable_replication and event_timestamp is None and deliver_at is None and deliver_after is None
                and schema is None and txn is None and not self._process.is_over
            ):  # fmt: skip
                full = self._take_waiting(content, wait)
                if full is not None:
                    self._wait_for_room(full, partial(self._take_waiting, content, wait))
                return wait.result()
            self._send(
                content, wait, properties, partition_key, ordering_key, sequence_id, replication_clusters,
                disable_replication, event_timestamp, deliver_at, deliver_after, schema, txn, flush=True,
            )  # fmt: skip
            return wait.result()
        except KeyboardInterrupt as error:
            # While the frame was written, or the receipt read by this thread.
            raise error if isinstance(error, Interrupted) else Interrupted("The send was interrupted") from error

    def send_async(
        self,
        content: Any,
        callback: SendCallback | None,
        properties: Mapping[str, str] | None = None,
        partition_key: str | bytes | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | int | None = None,
        schema: Schema[Any] | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Publish a message and return at once; `callback(result, message_id)` is called in the engine's thread.

        A message that is refused (queue or memory full, too big, producer closed, …) raises nothing where there is a
        callback: that is called once for each message, here with the `Result` and an empty id. Without one it raises.
        Arguments that are wrong raise always. Blocks only while the queue is full and `block_if_queue_full` is set,
        and for the first message of another `schema`, or of a `txn` to a partition. Commit waits for what was sent
        in the transaction, and aborts when any of it failed.
        """
        if callback is None:
            told = None
        elif callable(callback):
            told = (callback,)
        else:
            raise InvalidConfiguration(f"callback must be callable or None, not {type(callback).__name__}")
        try:
            if (
                type(content) is bytes and self._plain_bytes and properties is None and partition_key is None
                and ordering_key is None and sequence_id is None and replication_clusters is None
                and not disable_replication and event_timestamp is None and deliver_at is None
                and deliver_after is None and schema is None and txn is None and not self._process.is_over
            ):  # fmt: skip
                full = self._take_plain(content, told)
                if full is not None:
                    self._wait_for_room(full, partial(self._take_plain, content, told))
                return
            self._send(
                content, as_callback(told), properties, partition_key, ordering_key,
                sequence_id, replication_clusters, disable_replication, event_timestamp, deliver_at, deliver_after,
                schema, txn,
            )  # fmt: skip
        except PulsarException as error:
            if callback is None or is_argument_error(error):
                raise
            callback(error.error(), MessageId())

    def _send(
        self,
        content: Any,
        callback: Callback | None,
        properties: Mapping[str, str] | None,
        partition_key: str | bytes | None,
        ordering_key: str | None,
        sequence_id: int | None,
        replication_clusters: list[str] | None,
        disable_replication: bool,
        event_timestamp: int | None,
        deliver_at: int | None,
        deliver_after: timedelta | int | None,
        schema: Schema[Any] | None,
        txn: Transaction | None,
        *,
        flush: bool = False,
    ) -> None:
        check_generation(self._generation)
        payload: bytes | None
        null_key, version = False, None
        if self._plain_bytes and schema is None and type(content) is bytes:
            payload = content
        elif schema is None and not self._separates_key:
            payload = None if content is None else self._schema.encode(content)
        else:
            payload, partition_key, null_key = _message_builder.encoded(schema or self._schema, content, partition_key)
            version = None if schema is None else self._version_of(schema)
        if (
            payload is not None and properties is None and partition_key is None and ordering_key is None
            and sequence_id is None and replication_clusters is None and not disable_replication
            and event_timestamp is None and deliver_at is None and deliver_after is None
            and version is None and not null_key and txn is None
        ):  # fmt: skip
            full = self._inner.enqueue(payload, b"", None, callback, flush=flush)
            if full is not None:
                self._wait_for_room(full, lambda: self._inner.enqueue(payload, b"", None, callback, flush=flush))
            return
        message = _message_builder.outgoing(
            payload,
            properties=properties,
            partition_key=partition_key,
            ordering_key=ordering_key,
            sequence_id=sequence_id,
            replication_clusters=replication_clusters,
            disable_replication=disable_replication,
            event_timestamp=event_timestamp,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
            null_partition_key=null_key,
            schema_version=version,
        )
        fields = _message_builder.encoded_fields(message)
        child = self._inner.route(message.payload, message)
        if txn is not None:
            callback = _message_builder.into_transaction(txn, self._inner, message, callback)
        try:
            full = child.enqueue(message.payload, fields, message, callback, flush=flush)
            if full is not None:
                self._wait_for_room(
                    full, lambda: child.enqueue(message.payload, fields, message, callback, flush=flush)
                )
        except BaseException:
            if isinstance(callback, SendOperation):
                callback.withdraw()
            raise

    def _version_of(self, schema: Schema[Any]) -> bytes | None:
        schemas = self._inner.message_schemas
        try:
            return schemas.versions[schema.schema_info()]
        except KeyError:
            if self._engine.on_loop():
                raise OperationNotSupported(
                    "The first message of a schema registers it, which a callback of the client cannot wait for: "
                    "send one from another thread first"
                ) from None
            return self._engine.run(schemas.register(schema))

    def _wait_for_room(self, full: Backpressure, again: Callable[[], Backpressure | None]) -> None:
        attempt: Backpressure | None = full
        while attempt is not None:
            if not (self._block or attempt.always_waits) or self._engine.on_loop():
                # In a callback of the engine waiting would stop the receipts that make room.
                raise attempt.refusal()
            wait = Wait()
            attempt.wait_for_room(wait.wake)
            while not wait.wait(1.0):
                check_generation(self._generation)
            attempt = again() if attempt.retry is None else attempt.retry()

    def send_many(
        self,
        messages: Iterable[Any],
        *,
        progress: Callable[[int], Any] | None = None,
        txn: Transaction | None = None,
    ) -> MessageIds:
        """Publish contents, or `NewMessage`s with keys and properties, and return their ids in order.

        Blocks until all are confirmed; at most `max_pending_messages` and the client's memory limit are on their way,
        whatever `block_if_queue_full` says. With `batching_enabled` whole entries are filled at once, without it every
        message is an entry. All of it may be sent in a `txn`. `progress(confirmed)` is called in this thread
        now and then, and at the end. Raises `BulkSendError`, which tells what is stored; if nothing was sent yet, the
        error itself.
        """
        return self._send_slices(_message_builder.slices_of(messages, self._schema, self._inner.config), progress, txn)

    def send_table(
        self,
        table: pyarrow.Table | pyarrow.RecordBatch,
        *,
        value: str | Sequence[str] = "value",
        key: str | None = None,
        properties: str | Sequence[str] | Mapping[str, str] = (),
        event_time: str | None = None,
        progress: Callable[[int], Any] | None = None,
        txn: Transaction | None = None,
    ) -> MessageIds:
        """Publish the rows of an Arrow table and return their ids in order; needs pyarrow.

        `value` is the column of the payloads: bytes or text, or, with a schema at the producer, what that encodes; a
        list of columns makes records. `key` is a column of text or bytes; `properties` are columns (a mapping renames:
        property to column) or one column of maps; `event_time` is a column of timestamps or of ms since 1970. A null
        value is a tombstone, other nulls are left out. Otherwise as `send_many`.
        """
        slices = _message_builder.table_slices(
            table, self._schema, self._inner.config, value=value, key=key, properties=properties, event_time=event_time
        )
        return self._send_slices(slices, progress, txn)

    def _send_slices(
        self, slices: Iterator[Slice], progress: Callable[[int], Any] | None, txn: Transaction | None
    ) -> MessageIds:
        check_generation(self._generation)
        if self._engine.on_loop():
            raise OperationNotSupported("A bulk send would wait for itself in a callback of the client; use a thread")
        if txn is None:
            return self._sent(BulkSend(self._inner), slices, progress)
        own = _validation.sending_work_of(txn, self._inner)
        with own.bulk(BulkSend(self._inner, own.core)) as work:
            return self._sent(work, slices, progress)

    def _sent(self, work: BulkSend, slices: Iterator[Slice], progress: Callable[[int], Any] | None) -> MessageIds:
        while work.add_next(slices):
            while (full := work.push()) is not None:
                wait = Wait()
                full.wait_for_room(wait.wake)
                self._outwait(wait)
            if progress is not None:
                progress(work.confirmed)
        outcomes = Wait()
        work.flush_then(outcomes.wake)
        self._outwait(outcomes)
        if progress is not None:
            progress(work.confirmed)
        return work.result()

    def _outwait(self, wait: Wait) -> None:
        while not wait.wait(1.0):
            check_generation(self._generation)

    def flush(self, timeout: float | None = None) -> None:
        """Send the open batch and block until everything sent before is confirmed.

        Raises the error of the last message if it failed, `AlreadyClosed`, and `Timeout` after `timeout` seconds;
        without one, the send time-out bounds the wait.
        """
        check_generation(self._generation)
        if self._inner.is_closed:
            raise AlreadyClosed("The producer is closed", topic=self.topic())
        deadline = None if timeout is None else time.monotonic() + timeout
        waits = []
        for child in self._inner.children:
            wait = SendWait()
            child.flush_then(lambda error, wait=wait: wait(error, None))  # type: ignore[misc]
            waits.append(wait)
        for wait in waits:
            if not wait.wait(None if deadline is None else deadline - time.monotonic()):
                raise Timeout(f"Not everything was confirmed within {timeout:g} s", topic=self.topic())
            if wait.error is not None:
                raise wait.error

    def close(self, timeout: float | None = None) -> CloseReport:
        """Flush and close; return what was sent, what failed and what was left.

        Raises `AlreadyClosed` when it, or its client, was closed before. Blocks up to `timeout` seconds, else the
        operation time-out; what is not confirmed by then fails.
        """
        limit = _validation.checked_timeout(timeout)
        if self._inner.is_closed:
            raise AlreadyClosed("The producer is closed already", topic=self.topic())
        began = time.monotonic()
        parts = self._engine.run(self._inner.close(limit))
        return CloseReport(seconds=time.monotonic() - began, producers=parts)
