"""Producers and consumers with interceptors: they pass messages and acknowledgements through a chain.

Rules: without interceptors none of this is involved; with them a producer is an `InterceptedProducer`, a consumer has a
chain its API calls. `before_send` runs once per message, also when the message has to wait for memory or queue
capacity. `on_send_acknowledgement` runs with its receipt or failure.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pulsar_native._loggers import get_logger
from pulsar_native.config import ConsumerConfig, ProducerConfig
from pulsar_native.engine.consumer.ack_receipts import Done
from pulsar_native.engine.consumer.consumer import PartitionConsumer
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsClient, MultiTopicsConsumer
from pulsar_native.engine.consumer.topic_subscriptions import SubscriptionEvents
from pulsar_native.engine.interceptor_chain import ConsumerChain, ProducerChain
from pulsar_native.engine.producer.backpressure import Backpressure
from pulsar_native.engine.producer.partitioned_producer import TopicProducer, TopicProducerClient
from pulsar_native.engine.producer.producer import PartitionProducer
from pulsar_native.engine.waiter import SendWait
from pulsar_native.exceptions import PulsarException
from pulsar_native.interceptors import ProducerInterceptor
from pulsar_native.message import Message, OutgoingMessage
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.send_op import Callback, SendCallback, as_callback
from pulsar_native.schema.base import Schema
from pulsar_native.schema.versions import VersionedDecoder
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.entry import EntryKey

if TYPE_CHECKING:
    from pulsar_native.engine.transaction import TransactionWork

_log = get_logger("pulsar_native.interceptor")


class InterceptedProducer(TopicProducer):
    """Producer of a topic whose messages pass through a chain first."""

    def __init__(
        self,
        client: TopicProducerClient,
        config: ProducerConfig,
        topic: TopicName,
        partitions: int,
        schema: Schema[Any],
        chain: ProducerChain,
    ) -> None:
        super().__init__(client, config, topic, partitions, schema)
        self.chain = chain
        self._intercepted_send = _InterceptedSend(self)

    def enqueue(
        self,
        payload: bytes,
        fields: bytes,
        extras: OutgoingMessage | None,
        callback: SendCallback | None,
        *,
        flush: bool = False,
        child: PartitionProducer | None = None,
    ) -> Backpressure | None:
        """Pass a message through the interceptors and send it; return the backpressure when it was not accepted."""
        message, caring = self.chain.before_send(extras if extras is not None else OutgoingMessage(payload))
        notifying = _NotifyingCallback(self.chain, caring, message, as_callback(callback))
        # Interceptors may change the message, but not its transaction.
        message.transaction = None if extras is None else extras.transaction

        def attempt() -> Backpressure | None:
            own_fields = self.chain.encode(message)
            chosen = super(InterceptedProducer, self).route(message.payload, message)
            send = partial(chosen.enqueue, message.payload, own_fields, message, notifying, flush=flush)
            full = send()
            # The router chooses once, too.
            return None if full is None else full._replace(retry=send)

        return notifying.tried(attempt)

    def fast_send(self) -> Callable[[bytes, SendCallback | None], Backpressure | None]:
        """Return the path through the interceptors."""
        return lambda payload, callback: self.enqueue(payload, b"", None, callback)

    def fast_path(self) -> None:
        """Return None: every message goes through the interceptors."""

    @property
    def sends_described(self) -> bool:
        """False: interceptors see messages as they were given."""
        return False

    def fast_send_sync(self) -> Callable[[bytes, SendWait], Backpressure | None]:
        """Return the path through the interceptors."""
        return lambda payload, wait: self.enqueue(payload, b"", None, wait, flush=True)

    def route(self, payload: bytes, extras: OutgoingMessage | None) -> PartitionProducer:
        """Return a substitute of the partition's producer: the partition is chosen after the interceptors have run."""
        return self._intercepted_send  # type: ignore[return-value]

    async def update_partitions(self) -> None:
        """Join new partitions and notify the interceptors."""
        before = len(self.children)
        await super().update_partitions()
        if len(self.children) != before:
            self.chain.notify_plain("on_partitions_change", self.topic.full, len(self.children))

    def ended(self) -> None:
        """Release everything, and notify the interceptors."""
        super().ended()
        self.chain.close()


class _InterceptedSend:
    """Substitute of a partition's producer before the partition is known."""

    __slots__ = ("_producer",)

    def __init__(self, producer: InterceptedProducer) -> None:
        self._producer = producer

    def enqueue(
        self,
        payload: bytes,
        fields: bytes,
        extras: OutgoingMessage | None,
        callback: Callback | None,
        *,
        flush: bool = False,
    ) -> Backpressure | None:
        """Pass a message through the interceptors and send it."""
        return self._producer.enqueue(payload, fields, extras, callback, flush=flush)

    def enqueue_entry(self, *_: Any) -> int:
        """Return 0: messages are sent one by one."""
        return 0

    def flush_then(self, done: Callable[[PulsarException | None], None]) -> None:
        """Call `done` when every partition has its receipts."""
        children = deque(self._producer.children)

        def next_one(_error: PulsarException | None) -> None:
            if children:
                children.popleft().flush_then(next_one)
            else:
                done(None)

        next_one(None)


class InterceptedConsumer(MultiTopicsConsumer):
    """Consumer whose interceptors are notified of acknowledgements and redeliveries; the APIs pass arriving messages to
    them.
    """

    def __init__(
        self,
        client: MultiTopicsClient,
        config: ConsumerConfig,
        topics: dict[TopicName, int],
        schema: VersionedDecoder,
        wire_schema: pb.Schema | None,
        chain: ConsumerChain,
    ) -> None:
        self._hears = chain
        super().__init__(client, config, topics, schema, wire_schema)
        self.chain = chain
        if chain.sees_arrival:
            # Decoding of deliveries before the API had its consumer object was deferred until now.
            chain.on_bound = lambda: client.engine.call(self._open_all_arrived)

    def _events(self) -> SubscriptionEvents:
        chain = self._hears
        return dataclasses.replace(
            super()._events(),
            arriving=chain.arriving if chain.sees_arrival else None,
            on_redelivery=self._asked_again,
            on_partitions_change=lambda topic, count: chain.notify_plain("on_partitions_change", topic.full, count),
            # Interceptors are notified of each message.
            allows_fast_acks=False,
        )

    def _asked_again(self, topic: TopicName, method: str, entries: list[EntryKey]) -> None:
        self._hears.said(
            method, {MessageId(topic.partition, ledger, entry, -1, topic=topic.full) for ledger, entry in entries}
        )

    def _open_all_arrived(self) -> None:
        for child in self.children:
            self._arrived(child)

    def _arrived(self, child: PartitionConsumer) -> None:
        if self._hears.sees_arrival and self._hears.is_bound:
            child.open_arrived()
        super()._arrived(child)

    def _say(
        self, method: str, ids: Iterable[MessageId], act: Callable[[Done | None], None], done: Done | None
    ) -> None:
        """Acknowledge and notify; with a receipt, when that has arrived, before the callback that waits for it."""

        def notifying(error: Exception | None) -> None:
            for message_id in ids:
                self._hears.said(method, message_id, error)

        def answered(error: PulsarException | None) -> None:
            notifying(error)
            assert done is not None
            done(error)

        try:
            act(None if done is None else answered)
        except Exception as raised:
            notifying(raised)
            raise
        if done is None:
            notifying(None)

    def acknowledge_message(self, message: Message, done: Done | None = None) -> None:
        """Acknowledge one received message; `done` waits for the receipt."""
        act = partial(super().acknowledge_message, message)
        self._say("on_acknowledge", [message.message_id()], act, done)

    def acknowledge(self, ids: Iterable[MessageId], done: Done | None = None) -> None:
        """Acknowledge messages of any of the topics; `done` waits for the receipts."""
        known = list(ids)
        self._say("on_acknowledge", known, partial(super().acknowledge, known), done)

    def acknowledge_cumulative(self, message_id: MessageId, done: Done | None = None) -> None:
        """Acknowledge everything up to and including a message; `done` waits for the receipt."""
        act = partial(super().acknowledge_cumulative, message_id)
        self._say("on_acknowledge_cumulative", [message_id], act, done)

    async def acknowledge_in(
        self, work: TransactionWork, ids: Sequence[MessageId], *, cumulative: bool = False
    ) -> None:
        """Acknowledge messages in a transaction, and notify the interceptors."""
        method = "on_acknowledge_cumulative" if cumulative else "on_acknowledge"

        def notifying(error: PulsarException | None) -> None:
            for message_id in ids:
                self._hears.said(method, message_id, error)

        try:
            await super().acknowledge_in(work, ids, cumulative=cumulative)
        except PulsarException as error:
            notifying(error)
            raise
        notifying(None)

    def ended(self) -> None:
        """Release everything, and notify the interceptors."""
        super().ended()
        self._hears.close()


class _NotifyingCallback:
    """Callback of a message that notifies the interceptors first."""

    __slots__ = ("_callback", "_caring", "_chain", "_message")

    def __init__(
        self,
        chain: ProducerChain,
        caring: list[ProducerInterceptor],
        message: OutgoingMessage,
        callback: Callback | None,
    ) -> None:
        self._chain = chain
        self._caring = caring
        self._message = message
        self._callback = callback

    def __call__(self, error: PulsarException | None, message_id: MessageId | None) -> None:
        self.report(message_id, error)
        if self._callback is not None:
            self._callback(error, message_id)

    def report(self, message_id: MessageId | None, error: Exception | None) -> None:
        """Notify the interceptors, once."""
        caring, self._caring = self._caring, []
        self._chain.on_receipt(caring, self._message, message_id, error)

    def tried(self, attempt: Callable[[], Backpressure | None]) -> Backpressure | None:
        """Try to send, and notify the interceptors when it fails permanently."""
        try:
            full = attempt()
        except Exception as error:
            self.report(None, error)
            raise
        if full is None:
            return None
        again = full.retry or attempt
        return full._replace(retry=lambda: self.tried(again), on_give_up=lambda error: self.report(None, error))
