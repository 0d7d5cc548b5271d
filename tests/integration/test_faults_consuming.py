"""Consumers over a bad line: cut, silent, half open, slow. Every message comes, none twice once that is confirmed.

For each API four consumers share a connection: Shared, Exclusive (cumulative acknowledgements), Failover, and
Shared over partitions. All acknowledge single messages of batches and wait for the broker's answer; each stops at a
few gates, where the fault is made, and goes on in the midst of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import pytest

from pulsar_native import Client, ConsumerType, InitialPosition, Timeout
from support.apis import Api
from support.brokers import Broker, NewTopic, OwnBroker, admin
from support.relay import TO_BROKER, TO_CLIENT, Command, NewRelay, Relay

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]

TOTAL = 400
GATES = (60, 170, 280)

# Silence is noticed within two intervals; whatever else hangs, within the time-outs.
IMPATIENT: dict[str, Any] = {
    "keep_alive_interval_seconds": 1,
    "connection_timeout_ms": 1500,
    "starting_backoff_interval_ms": 50,
    "max_backoff_interval_ms": 400,
}
SHAPES = {
    "shared": (ConsumerType.Shared, 0),
    "exclusive": (ConsumerType.Exclusive, 0),
    "failover": (ConsumerType.Failover, 0),
    "partitioned": (ConsumerType.Shared, 3),
}


class Consuming:
    """One consumer at work, and what it saw."""

    def __init__(self, api: Api, plain: Any, client: Any, topic: NewTopic, shape: str) -> None:
        self.shape = shape
        kind, self.partitions = SHAPES[shape]
        self.name = topic(shape, partitions=self.partitions)
        self.consumer = client.subscribe(
            self.name,
            "sub",
            kind,
            initial_position=InitialPosition.Earliest,
            receiver_queue_size=60,
            batch_index_ack_enabled=True,
            ack_receipt_enabled=True,
            acknowledgment_group_time_ms=5,
        )
        producer = plain.create_producer(
            self.name, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=60_000
        )
        api.send_all(producer, [b"%d" % number for number in range(TOTAL)])
        producer.close()
        self.firsts: list[int] = []
        self.confirmed: set[int] = set()
        self.again: list[int] = []
        self.gates = [threading.Event() for _ in GATES]
        self.at_gate = 0

    def run(self) -> None:
        """Receive and acknowledge until all is confirmed."""
        seen: set[int] = set()
        while len(self.confirmed) < TOTAL:
            if self.at_gate < len(GATES) and len(self.confirmed) >= GATES[self.at_gate]:
                gate = self.gates[self.at_gate]
                self.at_gate += 1
                assert gate.wait(60)
            messages = self._some()
            values = [int(message.data()) for message in messages]
            self.again += [value for value in values if value in self.confirmed]
            # An unload may have delivered one of them again.
            self.firsts += [value for value in dict.fromkeys(values) if value not in seen]
            seen.update(values)
            if self.shape == "exclusive":
                self.consumer.acknowledge_cumulative(messages[-1])
            else:
                self.consumer.acknowledge(messages)
            self.confirmed.update(values)

    def _some(self) -> list[Any]:
        """Return a few messages: never as many as a batch has, so that batches are acknowledged in parts."""
        messages = [self.consumer.receive(80_000)]
        try:
            while len(messages) < 7:
                messages.append(self.consumer.receive(50))
        except Timeout:
            pass
        return messages

    def check(self, backlog: Callable[[str], int], *, twice: bool = False) -> None:
        """Fail unless everything came, in order where there is one, and nothing again after it was confirmed."""
        assert self.confirmed == set(range(TOTAL)), self.shape
        if self.shape in ("exclusive", "failover"):
            assert self.firsts == list(range(TOTAL)), self.shape
        if not twice:
            assert self.again == [], self.shape
            with pytest.raises(Timeout):
                self.consumer.receive(200)
            names = [f"{self.name}-partition-{n}" for n in range(self.partitions)] or [self.name]
            assert [backlog(name) for name in names] == [0] * len(names), self.shape


def begin(
    apis: list[Api], service_url: str, plain: Client, topic: NewTopic, *, answer_seconds: float = 20
) -> list[Consuming]:
    """Return consumers of every shape for each API, one connection an API."""
    options = {**IMPATIENT, "operation_timeout_seconds": answer_seconds}
    clients = [api.client(service_url, **options) for api in apis]
    return [Consuming(apis[0], plain, client, topic, shape) for client in clients for shape in SHAPES]


def work_through(works: list[Consuming], fault: Callable[[int], None], eventually: Eventually) -> None:
    """Let all of them work to the end, with a fault at each gate."""
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(work.run) for work in works]

        def at(gate: int) -> bool:
            for future in futures:
                if future.done():
                    # What it raised, rather than waiting for it.
                    future.result()
            return all(work.at_gate > gate for work in works)

        try:
            for round_ in range(len(GATES)):
                eventually(partial(at, round_), 80)
                for work in works:
                    work.gates[round_].set()
                fault(round_)
        finally:
            for work in works:
                for gate in work.gates:
                    gate.set()
        for future in futures:
            future.result(80)


Fault = Callable[[Relay, int, list[Consuming], Eventually], None]


def cut(through: Relay, round_: int, works: list[Consuming], eventually: Eventually) -> None:
    """Where an acknowledgement is lost; where only its answer is; in the middle of a frame, with a reset before."""
    if round_ == 0:
        through.cut_at(Command.ACK, TO_BROKER)
    elif round_ == 1:
        through.cut_at(Command.ACK_RESPONSE, TO_CLIENT)
    else:
        through.cut(reset=True)
        through.cut_after(1700, TO_CLIENT)


def noticed(works: list[Consuming], eventually: Eventually) -> None:
    """Wait until every consumer has given its connection up."""
    eventually(lambda: not any(work.consumer.is_connected() for work in works), 30)


def stall(through: Relay, round_: int, works: list[Consuming], eventually: Eventually) -> None:
    """Hold everything back until the clients have given the connection up, and pass it on then: late, both ways."""
    through.stall(*((), (TO_CLIENT,), (TO_BROKER,))[round_])
    noticed(works, eventually)
    through.resume()


def half_open(through: Relay, round_: int, works: list[Consuming], eventually: Eventually) -> None:
    """Nothing comes any more, nothing arrives any more, or the broker's side has vanished."""
    before = through.accepted
    if round_ == 2:
        through.half_open()
        eventually(lambda: through.accepted >= before + 2, 30)
    else:
        through.swallow((TO_CLIENT, TO_BROKER)[round_])
        noticed(works, eventually)
        through.release()


def slow(through: Relay, round_: int, works: list[Consuming], eventually: Eventually) -> None:
    """A few bytes at a time, and a cut in between."""
    through.trickle(40, 0.001)
    if round_:
        through.cut_after(2000, (TO_BROKER, TO_CLIENT)[round_ - 1])


@pytest.fixture
def apis() -> Iterator[list[Api]]:
    """Give both APIs, to be at work at the same time: most of a fault is waiting."""
    made = [Api(name) for name in ("blocking", "asyncio")]
    yield made
    for each in made:
        each.close()


@pytest.mark.proves("C119", "C128", "C139")
@pytest.mark.parametrize("fault", [cut, stall, half_open, slow])
def test_nothing_is_lost_and_nothing_confirmed_comes_again(
    apis: list[Api],
    plain_client: Client,
    broker: Broker,
    relay: NewRelay,
    topic: NewTopic,
    stats: Stats,
    eventually: Eventually,
    fault: Fault,
) -> None:
    through = relay(broker.service_url)
    works = begin(apis, through.service_url, plain_client, topic)
    work_through(works, lambda round_: fault(through, round_, works, eventually), eventually)

    def backlog(name: str) -> int:
        return int(stats(name)["subscriptions"]["sub"]["msgBacklog"])

    for work in works:
        work.check(backlog)
    assert through.accepted >= 4


@pytest.mark.proves("C119")
def test_unloads_lose_nothing(
    apis: list[Api], plain_client: Client, broker: Broker, topic: NewTopic, eventually: Eventually
) -> None:
    works = begin(apis, broker.service_url, plain_client, topic)

    def unload(_round: int) -> None:
        for work in works:
            broker.admin("PUT", work.name.replace("://", "/") + "/unload")

    work_through(works, unload, eventually)
    for work in works:
        # The broker forgets half acknowledged batches with an unload, and what it has not yet written of a position.
        work.check(lambda _name: 0, twice=True)


@pytest.mark.proves("C119")
def test_a_killed_broker_loses_nothing(apis: list[Api], own_broker: OwnBroker, eventually: Eventually) -> None:
    broker = own_broker()
    numbers = count()

    def named(name: str = "topic", *, partitions: int = 0, namespace: str = "public/default") -> str:
        full = f"persistent://{namespace}/{name}-{next(numbers)}"
        if partitions:
            admin(broker.admin_url, "PUT", full.replace("://", "/") + "/partitions", partitions)
        return full

    def kill(round_: int) -> None:
        # A standalone broker that comes back is its own new leader: bundles are owned anew, topics loaded anew.
        if round_ == 1:
            broker.kill()
            broker.start().wait_ready()

    with Client(broker.service_url) as plain:
        # An acknowledgement waits for its answer while the broker is away.
        works = begin(apis, broker.service_url, plain, named, answer_seconds=80)
        work_through(works, kill, eventually)
    for work in works:
        work.check(lambda _name: 0, twice=True)
