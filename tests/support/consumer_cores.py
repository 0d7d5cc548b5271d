"""Consumer cores with a topic that behaves as the broker does, without a connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pulsar_native.message import Message
from pulsar_native.message_id import MessageId
from pulsar_native.protocol.consumer import ConsumerCore
from pulsar_native.protocol.consumer_position import ConsumerPosition
from pulsar_native.protocol.data_keys import KeyWanted
from pulsar_native.protocol.entry_decoder import (
    Decoded,
    Delivery,
    NotDecoded,
    StartFilter,
    decode,
    single_entry_decoder,
)
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.entry import EntryKey
from pulsar_native.wire.frames import FrameDecoder
from support.entry_bytes import batch_entry, single_entry

TOPIC = "persistent://public/default/t"
LEDGER = 7


class PlainDecoding:
    """Decoding of entries without acknowledgements, dead letters, keys and statistics."""

    def __init__(self) -> None:
        self.acknowledged: set[EntryKey] = set()
        self.redirected: set[EntryKey] = set()
        self.wanted: list[KeyWanted] = []
        self.key_missing = False
        self.undecodable: list[EntryKey] = []
        self.counted = 0
        self._singles = single_entry_decoder(TOPIC, -1, None)

    def is_acknowledged(self, key: EntryKey) -> bool:
        return key in self.acknowledged

    def decode(self, delivery: Delivery, start: StartFilter) -> Decoded | None:
        if self.key_missing:
            raise KeyWanted([])
        return decode(
            delivery,
            topic=TOPIC,
            partition=-1,
            schema=None,
            start=start,
            missing=None,
            max_message_size=1 << 20,
            together=lambda *_: None,
        )

    def decode_singles(
        self, deliveries: deque[Delivery], attachment: int, epoch: int, after: EntryKey, most: int, most_bytes: int
    ) -> list[Message]:
        if self.key_missing:
            return []
        done = dict.fromkeys(self.acknowledged | self.redirected)
        messages = self._singles.decode(deliveries, attachment, epoch, after, done, most, most_bytes)
        self.counted += len(messages)
        return messages

    def on_undecodable(self, delivery: Delivery, error: NotDecoded) -> int:
        self.undecodable.append((delivery.ledger_id, delivery.entry_id))
        return delivery.cost(error.permits)

    def admit(self, decoded: Decoded) -> int:
        if decoded.entry.key in self.redirected:
            return 0
        self.counted += decoded.wanted
        return decoded.wanted

    def fetch_key(self, wanted: KeyWanted) -> None:
        self.wanted.append(wanted)

    def on_dropped(self, messages: int, size: int) -> None:
        self.counted -= messages


def core_of(
    queue_size: int = 10,
    *,
    start: MessageId | None = None,
    inclusive: bool = False,
    durable: bool = True,
    **options: Any,
) -> tuple[ConsumerCore, PlainDecoding]:
    """Return a consumer core and its decoding."""
    decoding = PlainDecoding()
    position = ConsumerPosition(TOPIC, -1, start, inclusive=inclusive, is_durable=durable, is_reader=not durable)
    return ConsumerCore(3, queue_size, position, decoding, **options), decoding


def command(entry: int, *, epoch: int | None = None, words: Sequence[int] = ()) -> pb.CommandMessage:
    """Return a MESSAGE command for an entry."""
    message = pb.CommandMessage(consumer_id=3, message_id=pb.MessageIdData(ledgerId=LEDGER, entryId=entry))
    message.ack_set.extend(words)
    if epoch is not None:
        message.consumer_epoch = epoch
    return message


def written(core: ConsumerCore) -> list[pb.BaseCommand]:
    """Return the commands the core has collected since the last call."""
    frames, core.outgoing = core.outgoing, []
    return [frame.command for frame in FrameDecoder().receive(b"".join(frames))]


@dataclass
class BrokerTopic:
    """A topic and one subscription at the broker: what is published, sent, in transit and not acknowledged."""

    rewinds: bool
    entries: list[tuple[int, int]] = field(default_factory=list)
    published: int = 0
    permits: int = 0
    epoch: int = 0
    transit: deque[tuple[pb.CommandMessage, bytes, int]] = field(default_factory=deque)
    to_send: deque[int] = field(default_factory=deque)
    acknowledged: set[int] = field(default_factory=set)

    def publish(self, count: int) -> None:
        """Add an entry of so many messages, 0 for one that is not in a batch."""
        self.to_send.append(len(self.entries))
        self.entries.append((self.published, count))
        self.published += max(1, count)

    def payload(self, entry: int) -> bytes:
        first, count = self.entries[entry]
        if not count:
            return single_entry(b"%d" % first)
        return batch_entry([b"%d" % number for number in range(first, first + count)])

    def numbers(self, entry: int) -> range:
        first, count = self.entries[entry]
        return range(first, first + max(1, count))

    def send(self) -> None:
        """Send the next entry, if there are permits."""
        if self.permits > 0 and self.to_send:
            entry = self.to_send.popleft()
            cost = len(self.numbers(entry))
            self.permits -= cost
            message = command(entry, epoch=self.epoch if self.rewinds else None)
            self.transit.append((message, self.payload(entry), cost))

    def restart(self, entries: Sequence[int]) -> None:
        """Send these entries again, before the others where the subscription has an order."""
        again = [entry for entry in entries if entry not in self.acknowledged]
        self.to_send = deque(sorted({*again, *self.to_send}))

    def apply(self, commands: Sequence[pb.BaseCommand]) -> None:
        """Process the consumer's commands."""
        for each in commands:
            if each.HasField("flow"):
                assert each.flow.messagePermits > 0
                self.permits += each.flow.messagePermits
            elif each.HasField("redeliverUnacknowledgedMessages"):
                request = each.redeliverUnacknowledgedMessages
                self.epoch = max(self.epoch, request.consumer_epoch if request.HasField("consumer_epoch") else 0)
                ids = [data.entryId for data in request.message_ids]
                self.restart(ids or range(len(self.entries)))
