"""Broker of any number of topic partitions that counts what it is asked: for measurements of scale.

Every partition holds the same small entries in ledger 1. Rules: a consumer gets entries from its start position, as
many as it has permits; a seek by time moves it to the beginning; commands are counted by name, connections and the
partitions asked for once each. Thread-safe. As a program it serves until its input ends, and answers each line there
with the counts since the last one:

    python -m support.counting_broker TOPICS PARTITIONS ENTRIES
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterable

from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from pulsar_native.wire.frames import Frame
from support.entry_bytes import single_entry
from support.fake_broker import FakeBroker, Peer, delivery, frame, success

LEDGER = 1


class CountingBroker(FakeBroker):
    """Fake broker whose partitions all hold the same number of entries; use it in a `with` block."""

    def __init__(self, entries: int, payload: bytes = b"x" * 100) -> None:
        self._count_lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._held = entries
        self._entry = single_entry(payload)
        # Next entry of each consumer of each connection.
        self._next: dict[tuple[int, int], int] = {}
        super().__init__()
        self.answers.update(
            {
                Kind.SUBSCRIBE: self._subscribe,
                Kind.FLOW: self._flow,
                Kind.GET_LAST_MESSAGE_ID: self._last,
            }
        )

    def counts(self) -> dict[str, int]:
        """Return the commands by name and the connections since the last call."""
        with self._count_lock:
            found, self._counts = self._counts, Counter()
        return dict(sorted(found.items()))

    def _take(self, peer: Peer, received: Frame) -> None:
        # Not kept, as there may be a million of them.
        name = Kind.Name(received.command.type)
        with self._count_lock:
            self._counts[name] += 1
        self._answer(peer, received.command)

    def _subscribe(self, peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked = command.subscribe
        start = asked.start_message_id.entryId if asked.HasField("start_message_id") else 0
        # The id "earliest" is -1, that is 2^64 - 1 on the wire; "latest" is behind all of them.
        is_earliest = start >= 1 << 63
        with self._count_lock:
            self._next[peer.number, asked.consumer_id] = 0 if is_earliest else start
        return [success(asked.request_id)]

    def _flow(self, peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        asked = command.flow
        with self._count_lock:
            first = self._next.get((peer.number, asked.consumer_id), self._held)
            behind = min(first + asked.messagePermits, self._held)
            self._next[peer.number, asked.consumer_id] = max(first, behind)
        return [delivery(asked.consumer_id, self._entry, entry, ledger_id=LEDGER) for entry in range(first, behind)]

    def _last(self, _peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        answer = pb.CommandGetLastMessageIdResponse(
            request_id=command.getLastMessageId.request_id,
            last_message_id=pb.MessageIdData(ledgerId=LEDGER, entryId=self._held - 1),
        )
        return [frame(Kind.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=answer)]


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def topic_names(topics: int) -> list[str]:
    """Return the names of the topics."""
    return [f"persistent://public/default/scale-{number}" for number in range(topics)]


def main(arguments: list[str]) -> None:
    """Serve, and print the URL and then the counts for each line of the input."""
    topics, partitions, entries = map(int, arguments)
    with CountingBroker(entries) as broker:
        broker.partitions = dict.fromkeys(topic_names(topics), partitions)
        _print(broker.url)
        for _ in sys.stdin:
            _print(json.dumps({**broker.counts(), "connections": len(broker.peers)}))


if __name__ == "__main__":
    main(sys.argv[1:])
