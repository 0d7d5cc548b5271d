"""Arrow receiver on a fake broker: limits, what stays in the queue, ranges, and what cannot be rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest

from pulsar_native.arrow.entry_slice import BatchBudget
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer.arrow_receiver import ArrowReceiver
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.engine.interceptor_chain import ConsumerChain
from pulsar_native.enums import ConsumerCryptoFailureAction
from pulsar_native.exceptions import CryptoError, InvalidConfiguration, InvalidMessage
from pulsar_native.wire import pulsar_api_pb2 as pb
from support.entry_bytes import batch_entry, single_entry
from support.fake_broker import FakeBroker, delivery
from support.until import until

Cores = Callable[..., ClientCore]
Subscribed = Callable[..., Any]

TOPIC = "persistent://public/default/t"
CONSUME: dict[str, Any] = {"crypto_failure_action": ConsumerCryptoFailureAction.CONSUME}
LOCKED = single_entry(b"locked", encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])


def receiver(consumer: MultiTopicsConsumer, rows: int = 100, size: int = 1 << 20) -> ArrowReceiver:
    """Return a receiver; one that goes on when it is full fails instead of not ending."""
    dequeue, calls = MultiTopicsConsumer.dequeue_slice, itertools.count()

    def limited(budget: BatchBudget) -> Any:
        assert next(calls) < 50
        return dequeue(consumer, budget)

    consumer.dequeue_slice = limited  # type: ignore[method-assign]
    return ArrowReceiver(consumer, ["value", "__partition", "__entryId"], rows, size)


async def deliver(fake: FakeBroker, consumer: MultiTopicsConsumer, *entries: bytes, partition: int = 0) -> None:
    """Deliver entries to a partition's consumer, from entry 0 on."""
    child = consumer.children[partition]
    fake.peers[-1].send(*(delivery(child.consumer_id, entry, at) for at, entry in enumerate(entries)))
    await until(lambda: len(child.core.all_deliveries) == len(entries))


def values(receiving: ArrowReceiver) -> list[bytes]:
    return cast(list[bytes], receiving.result().record_batch.column("value").to_pylist())


def rest(consumer: MultiTopicsConsumer) -> list[bytes]:
    """Return the contents of the messages left in the queue."""
    found = []
    while (message := consumer.dequeue()) is not None:
        found.append(message.data())
    return found


async def test_collect_takes_what_there_is(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url))
    receiving = receiver(consumer)
    assert receiving.collect() is None and not receiving.full
    await deliver(fake, consumer, batch_entry([b"0", b"1"]), single_entry(b"2"), single_entry(b"3"))
    assert receiving.collect() is True and not receiving.full
    received = receiving.result()
    assert received.record_batch.to_pydict() == {
        "value": [b"0", b"1", b"2", b"3"],
        "__partition": [-1] * 4,
        "__entryId": [0, 0, 1, 2],
    }
    # Neighbours of one size are one range.
    assert [(each.first_entry, each.last_entry, each.batch_size, each.indexes) for each in received.ranges] == [
        (0, 0, 2, None),
        (1, 2, 0, None),
    ]
    assert {(each.topic, each.ledger_id) for each in received.ranges} == {(TOPIC, 1)}


async def test_collect_nothing_is_batch_without_rows(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    received = receiver(await subscribed(cores(fake.url))).result()
    assert len(received) == 0 and not received.ranges
    assert received.record_batch.schema.names == ["value", "__partition", "__entryId"]


async def test_collect_cuts_a_batch_at_the_rows(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url))
    await deliver(fake, consumer, single_entry(b"0"), batch_entry([b"1", b"2", b"3"]))
    receiving = receiver(consumer, 3)
    receiving.collect()
    assert receiving.full
    received = receiving.result()
    assert [each.indexes for each in received.ranges] == [None, 0b011] and len(received) == 3
    # The rest is the next receive's, of either type.
    following = receiver(consumer)
    following.collect()
    assert values(following) == [b"3"] and following.result().ranges[0].indexes == 0b100


async def test_collect_limit_of_bytes_keeps_the_rest(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url))
    await deliver(fake, consumer, single_entry(b"x" * 60), single_entry(b"y" * 60), single_entry(b"z"))
    receiving = receiver(consumer, size=100)
    receiving.collect()
    assert receiving.full and values(receiving) == [b"x" * 60]
    assert rest(consumer) == [b"y" * 60, b"z"]


async def test_collect_in_turns_keeps_partitions_apart(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.partitions[TOPIC] = 2
    consumer = await subscribed(cores(fake.url))
    await deliver(fake, consumer, single_entry(b"a0"), single_entry(b"a1"))
    await deliver(fake, consumer, single_entry(b"b0"), single_entry(b"b1"), partition=1)
    receiving = receiver(consumer, 3)
    receiving.collect()
    received = receiving.result()
    # One of each in turn; the rows of a partition are adjacent all the same.
    assert received.record_batch.column("value").to_pylist() == [b"a0", b"a1", b"b0"]
    assert received.record_batch.column("__partition").to_pylist() == [0, 0, 1]
    assert [(each.partition, each.first_entry, each.last_entry) for each in received.ranges] == [(0, 0, 1), (1, 0, 0)]
    assert [part.num_rows for _, part in received.parts()] == [2, 1]


async def test_put_back_starts_again_in_order(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url))
    await deliver(fake, consumer, single_entry(b"0"), batch_entry([b"1", b"2", b"3"]), single_entry(b"4"))
    receiving = receiver(consumer, 2)
    receiving.collect()
    receiving.put_back()
    assert not receiving.full
    receiving.collect()
    # The whole budget again.
    assert values(receiving) == [b"0", b"1"]
    receiving.put_back()
    assert rest(consumer) == [b"0", b"1", b"2", b"3", b"4"] and len(receiving.result()) == 0


async def test_restart_drops_collected_of_its_partition(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    fake.partitions[TOPIC] = 2
    consumer = await subscribed(cores(fake.url))
    first, second = (child.core for child in consumer.children)
    await deliver(fake, consumer, single_entry(b"a0"), single_entry(b"a1"))
    await deliver(fake, consumer, single_entry(b"b0"), single_entry(b"b1"), partition=1)
    receiving = receiver(consumer, 3)
    receiving.collect()
    first.restarts += 1
    # The rows they had are free again, those of the other partition are kept.
    assert receiving.collect() and values(receiving) == [b"b0", b"b1"]
    second.restarts += 1
    assert values(receiving) == []
    await deliver(fake, consumer, single_entry(b"c"))
    receiving.collect()
    assert values(receiving) == [b"c"]
    first.restarts += 1
    receiving.put_back()
    assert rest(consumer) == []


async def test_result_of_malformed_rows_puts_back(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url))
    malformed = single_entry(b"1", partition_key="a", partition_key_b64_encoded=True)
    await deliver(fake, consumer, single_entry(b"0"), malformed)
    receiving = ArrowReceiver(consumer, ["__key"], 100, 1 << 20)
    receiving.collect()
    with pytest.raises(InvalidMessage, match="1:1"):
        receiving.result()
    assert rest(consumer) == [b"0", b"1"]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
async def test_result_any_error_puts_back(
    fake: FakeBroker,
    cores: Cores,
    subscribed: Subscribed,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
) -> None:
    def broken(*_: object, **_options: object) -> None:
        raise kind

    consumer = await subscribed(cores(fake.url))
    await deliver(fake, consumer, single_entry(b"0"), single_entry(b"1"))
    receiving = ArrowReceiver(consumer, ["__key"], 100, 1 << 20)
    receiving.collect()
    monkeypatch.setattr("pulsar_native.engine.consumer.arrow_receiver.record_batch", broken)
    with pytest.raises(kind):
        receiving.result()
    assert rest(consumer) == [b"0", b"1"]


async def test_locked_entry_ends_rows_then_raises(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    consumer = await subscribed(cores(fake.url), **CONSUME)
    await deliver(fake, consumer, single_entry(b"0"), LOCKED, single_entry(b"2"))
    receiving = receiver(consumer)
    receiving.collect()
    assert receiving.full and values(receiving) == [b"0"]
    following = receiver(consumer)
    following.collect()
    with pytest.raises(CryptoError, match="1:1") as caught:
        following.result()
    assert caught.value.topic == TOPIC
    # It stays, for an application that wants its bytes.
    assert rest(consumer)[1:] == [b"2"]


@pytest.mark.parametrize(
    ("columns", "rows", "size", "message"),
    [
        ("value", 1, 1, "columns must name"),
        ([], 1, 1, "columns must name"),
        (["value", "missing"], 1, 1, "no column 'missing'"),
        (["value"], 0, 1, "max_rows must be"),
        (["value"], True, 1, "max_rows must be"),
        (["value"], 1.5, 1, "max_rows must be"),
        (["value"], 1, 0, "max_bytes must be"),
    ],
)
async def test_receiver_invalid_argument_raises(
    fake: FakeBroker, cores: Cores, subscribed: Subscribed, columns: Any, rows: Any, size: Any, message: str
) -> None:
    consumer = await subscribed(cores(fake.url))
    with pytest.raises(InvalidConfiguration, match=message):
        ArrowReceiver(consumer, columns, rows, size)


async def test_receiver_needs_queue_and_no_interceptors(fake: FakeBroker, cores: Cores, subscribed: Subscribed) -> None:
    with pytest.raises(InvalidConfiguration, match="needs a queue"):
        receiver(await subscribed(cores(fake.url), receiver_queue_size=0))
    consumer = await subscribed(cores(fake.url))
    consumer.chain = cast(ConsumerChain, object())
    with pytest.raises(InvalidConfiguration, match="interceptors need"):
        receiver(consumer)
