"""Topic of a fake broker with one consumer: entries are delivered for its first permits, acknowledged ones told."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.entry_bytes import single_entry
from support.fake_broker import MAXU, FakeBroker, Peer, delivery, frame


class FakeTopic:
    """Messages of a topic, each an entry of its own in ledger 1. Thread-safe."""

    def __init__(self, fake: FakeBroker, *payloads: bytes) -> None:
        self._fake = fake
        self._entries = [single_entry(payload) for payload in payloads]
        self._consumer: tuple[Peer, int] | None = None
        self._lock = threading.Lock()
        fake.answers[Kind.FLOW] = self._flow
        fake.answers[Kind.GET_LAST_MESSAGE_ID] = self._last

    def _flow(self, peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        with self._lock:
            if self._consumer is not None:
                return ()
            self._consumer = (peer, command.flow.consumer_id)
            return [delivery(command.flow.consumer_id, entry, at) for at, entry in enumerate(self._entries)]

    def _last(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        count = len(self._entries)
        last = pb.MessageIdData(ledgerId=1 if count else MAXU, entryId=count - 1 if count else MAXU)
        answer = pb.CommandGetLastMessageIdResponse(
            request_id=command.getLastMessageId.request_id, last_message_id=last
        )
        return [frame(Kind.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=answer)]

    def publish(self, payload: bytes, **metadata: Any) -> None:
        """Add a message; it is delivered at once to a consumer that has given permits."""
        self.publish_entry(single_entry(payload, **metadata))

    def publish_entry(self, entry: bytes, *, later: bool = False) -> None:
        """Add an entry; with `later` it is delivered by `deliver`, though it is the topic's last from now on."""
        with self._lock:
            self._entries.append(entry)
        if not later:
            self.deliver(len(self._entries) - 1)

    def deliver(self, number: int) -> None:
        """Deliver an entry to a consumer that has given permits."""
        with self._lock:
            if self._consumer is not None:
                peer, consumer_id = self._consumer
                peer.send(delivery(consumer_id, self._entries[number], number))

    def acknowledged(self, count: int) -> list[int]:
        """Wait for the acknowledgements of so many entries and return their numbers, in order of arrival."""
        commands, found = 0, list[int]()
        while len(found) < count:
            commands += 1
            seen = self._fake.wait(Kind.ACK, commands)
            found = [place.entryId for each in seen for place in each.command.ack.message_id]
        return found
