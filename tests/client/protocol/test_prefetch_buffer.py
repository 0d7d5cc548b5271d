"""Prefetch buffer: counts, order, and concurrent pops."""

from __future__ import annotations

import threading
from typing import Any

from pulsar_native.message import Message
from pulsar_native.protocol.entry_decoder import Decoded, Delivery, StartFilter, decode
from pulsar_native.protocol.prefetch_buffer import PrefetchBuffer
from pulsar_native.wire import pulsar_api_pb2 as pb
from support.entry_bytes import batch_entry


def batch(first: int, count: int) -> bytes:
    return batch_entry([b"%d" % number for number in range(first, first + count)], first_sequence_id=first)


def decoded(count: int) -> Decoded:
    message = pb.CommandMessage(consumer_id=0, message_id=pb.MessageIdData(ledgerId=1, entryId=2))
    found = decode(
        Delivery(message, batch(0, count), 1),
        topic="persistent://public/default/t",
        partition=-1,
        schema=None,
        start=StartFilter(None, False),
        missing=None,
        max_message_size=1 << 20,
        together=lambda *_: None,
    )
    assert found is not None
    return found


def values(messages: Any) -> list[int]:
    return [int(message.data()) for message in messages]


def test_prefetch_reclaim_counts_and_keeps_order() -> None:
    prefetch = PrefetchBuffer()
    assert not prefetch.uncounted and prefetch.taken() == (0, None)
    entry = decoded(10)
    prefetch.fill_from(entry, 2, 9)
    assert values([prefetch.messages.popleft(), prefetch.messages.popleft()]) == [2, 3]
    taken, last = prefetch.taken()
    assert taken == 2 and last is not None and last.message_id().batch_index() == 3
    assert prefetch.taken() == (0, None)
    prefetch.messages.popleft()
    assert values(reversed(prefetch.reclaim())) == [5, 6, 7, 8]
    taken, last = prefetch.taken()
    assert taken == 1 and last is not None and last.message_id().batch_index() == 4
    assert not prefetch.uncounted and not prefetch.messages


def test_prefetch_concurrent_pop_and_reclaim() -> None:
    entry = decoded(2000)
    for _ in range(20):
        prefetch = PrefetchBuffer()
        prefetch.fill_from(entry, 0, 2000)
        taken: list[Message] = []
        begun = threading.Barrier(3)

        def take(
            prefetch: PrefetchBuffer = prefetch, taken: list[Message] = taken, begun: threading.Barrier = begun
        ) -> None:
            begun.wait()
            try:
                while True:
                    taken.append(prefetch.messages.popleft())
            except IndexError:
                return

        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        begun.wait()
        back = prefetch.reclaim()
        count, last = prefetch.taken()
        for thread in threads:
            thread.join()
        assert count == len(taken) == 2000 - len(back)
        assert sorted(values(taken)) + values(reversed(back)) == list(range(2000))
        assert last is None or int(last.data()) == count - 1
