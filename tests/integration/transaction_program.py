"""A program that moves numbers from one topic to another in transactions, and may die at any point of them.

Arguments: API, service URL, source, target, subscription type, and of which transaction to die at which point
("2:sent", "2:acked", "2:committing"), or "-". It ends when nothing has come for a while.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any

import pulsar_native
import pulsar_native.asyncio
from pulsar_native import ConsumerType, InitialPosition, PulsarException, Timeout

# The time after which the broker lets go of what a dead program has left.
TTL_SECONDS = 1.5
IDLE_MILLIS = 3_500
# A broker that was just started takes seconds to give out the first message of a subscription.
FIRST_MILLIS = 12_000
AT_ONCE = 5
# A broker that takes long to start does not keep the program away for longer.
QUICK: dict[str, Any] = {"max_backoff_interval_ms": 500}


def die() -> None:
    """End as by kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


class Deaths:
    """When to die."""

    def __init__(self, text: str) -> None:
        number, _, self._point = text.partition(":")
        self._left = int(number) if self._point else -1

    def at(self, point: str) -> None:
        """Die here, if it is time."""
        if point == self._point:
            self._left -= 1
            if not self._left:
                if point == "committing":
                    threading.Timer(0.003, die).start()
                else:
                    die()


def options_of(name: str) -> dict[str, Any]:
    """Return how both APIs subscribe."""
    return {"consumer_type": ConsumerType[name], "initial_position": InitialPosition.Earliest}


def move(url: str, source: str, target: str, kind: str, deaths: Deaths) -> None:
    """Move with the sync API."""
    with pulsar_native.Client(url, **QUICK) as client:
        consumer = client.subscribe(source, "mover", **options_of(kind))
        producer = client.create_producer(target, batching_enabled=True)
        patience = FIRST_MILLIS
        while True:
            messages = []
            try:
                messages.append(consumer.receive(patience))
                patience = IDLE_MILLIS
                while len(messages) < AT_ONCE:
                    messages.append(consumer.receive(20))
            except Timeout:
                if not messages:
                    return
            try:
                with client.new_transaction(TTL_SECONDS) as transaction:
                    for message in messages:
                        producer.send_async(b"%d" % (int(message.data()) * 2), None, txn=transaction)
                    deaths.at("sent")
                    consumer.acknowledge(messages, txn=transaction)
                    deaths.at("acked")
                    deaths.at("committing")
            except PulsarException as error:
                sys.stderr.write(f"again: {error}\n")
                consumer.redeliver_unacknowledged_messages()


async def move_async(url: str, source: str, target: str, kind: str, deaths: Deaths) -> None:
    """Move with the asyncio API."""
    async with pulsar_native.asyncio.Client(url, **QUICK) as client:
        consumer = await client.subscribe(source, "mover", **options_of(kind))
        producer = await client.create_producer(target, batching_enabled=True)
        patience = FIRST_MILLIS
        while True:
            messages = []
            try:
                messages.append(await consumer.receive(patience))
                patience = IDLE_MILLIS
                while len(messages) < AT_ONCE:
                    messages.append(await consumer.receive(20))
            except Timeout:
                if not messages:
                    return
            try:
                async with await client.new_transaction(TTL_SECONDS) as transaction:
                    for message in messages:
                        await producer.enqueue(b"%d" % (int(message.data()) * 2), txn=transaction)
                    deaths.at("sent")
                    await consumer.acknowledge(messages, txn=transaction)
                    deaths.at("acked")
                    deaths.at("committing")
            except PulsarException as error:
                sys.stderr.write(f"again: {error}\n")
                consumer.redeliver_unacknowledged_messages()


if __name__ == "__main__":
    own_api, *places, when = sys.argv[1:]
    if own_api == "blocking":
        move(*places, Deaths(when))
    else:
        asyncio.run(move_async(*places, Deaths(when)))
