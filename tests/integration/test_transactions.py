"""Transactions: what is sent and what is acknowledged counts together, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from pulsar_native import (
    CompressionType,
    ConsumerType,
    CumulativeAcknowledgementNotAllowedError,
    InitialPosition,
    InvalidConfiguration,
    InvalidTxnStatusError,
    MessageId,
    MessageTooBig,
    NotConnected,
    OperationNotSupported,
    ProducerInterceptor,
    Result,
    Timeout,
    TransactionConflict,
    TransactionState,
)
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.relay import TO_CLIENT, Command, NewRelay

pytestmark = pytest.mark.proves("N7")

Eventually = Callable[..., Any]
ReadAll = Callable[..., list[Any]]

EARLIEST = InitialPosition.Earliest
SHARED = ConsumerType.Shared
TYPES = [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared]
BY_ENTRY = (ConsumerType.Shared, ConsumerType.KeyShared)


def received(consumer: Any, count: int) -> list[Any]:
    """Return the next messages."""
    return [consumer.receive(20_000) for _ in range(count)]


def values(messages: list[Any]) -> list[bytes]:
    """Return what messages hold."""
    return [message.data() for message in messages]


def gets_nothing(consumer: Any, millis: int = 400) -> bool:
    """Tell whether nothing comes."""
    with pytest.raises(Timeout):
        consumer.receive(millis)
    return True


# ---- what is sent ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", [True, False])
def test_what_is_sent_counts_when_it_is_committed(api: Api, client: Any, topic: NewTopic, batching: bool) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=batching, compression_type=CompressionType.ZLib)
    consumer = client.subscribe(name, "sub", SHARED, initial_position=EARLIEST)
    other = client.create_producer(topic("other"), batching_enabled=batching)
    seen_elsewhere = client.subscribe(other.topic(), "sub", SHARED, initial_position=EARLIEST)
    producer.send(b"before")
    transaction = client.new_transaction()
    assert transaction.state() is TransactionState.OPEN
    api.send_all(producer, [b"one", b"two"], txn=transaction, partition_key="key", properties={"a": "b"})
    other.send(b"elsewhere", txn=transaction)
    # Plain messages behind those of an open transaction wait with them, whoever sends them.
    api.send_all(producer, [b"plain"])
    many = producer.send_many([b"%d" % number for number in range(50)], txn=transaction)
    assert len(many) == 50
    assert values(received(consumer, 1)) == [b"before"]
    assert gets_nothing(consumer) and gets_nothing(seen_elsewhere, 100)
    # Waits for what has no receipt yet.
    left = [api.enqueue(producer, b"late", txn=transaction) for _ in range(3)]
    transaction.commit()
    assert [each.result(20)[0] for each in left] == [Result.Ok] * 3
    assert transaction.state() is TransactionState.COMMITTED
    messages = received(consumer, 56)
    expected = [b"one", b"two", b"plain", *(b"%d" % number for number in range(50)), b"late", b"late", b"late"]
    assert values(messages) == expected
    assert (messages[0].partition_key(), messages[0].properties()) == ("key", {"a": "b"})
    assert values(received(seen_elsewhere, 1)) == [b"elsewhere"]


def test_what_is_sent_is_gone_when_it_is_aborted(api: Api, client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    name = topic(partitions=3)
    producer = client.create_producer(name, batching_enabled=True)
    consumer = client.subscribe(name, "sub", SHARED, initial_position=EARLIEST)
    with pytest.raises(KeyError, match="on purpose"), client.new_transaction() as transaction:
        for number in range(20):
            api.enqueue(producer, b"aborted", partition_key=f"key{number}", txn=transaction)
        raise KeyError("on purpose")
    assert transaction.state() is TransactionState.ABORTED
    with client.new_transaction() as transaction:
        for number in range(20):
            api.enqueue(producer, b"committed", partition_key=f"key{number}", txn=transaction)
    assert transaction.state() is TransactionState.COMMITTED
    producer.send(b"plain")
    assert sorted(values(received(consumer, 21))) == [b"committed"] * 20 + [b"plain"]
    assert sorted(values(read_all(name))) == [b"committed"] * 20 + [b"plain"]


def test_entries_are_of_one_transaction_or_of_none(api: Api, client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=5_000)
    first, second = client.new_transaction(), client.new_transaction()
    for transaction in (first, second):
        # Once, so that later messages go straight into the open batch.
        api.send_all(producer, [b"registered"], txn=transaction)
    order = [first, first, None, None, second, first, None, second, second]
    outcomes = [
        api.enqueue(producer, b"%d" % number, **({} if transaction is None else {"txn": transaction}))
        for number, transaction in enumerate(order)
    ]
    first.commit()
    second.abort()
    producer.flush()
    places = [outcome.result(20)[1] for outcome in outcomes]
    entries = [place.entry_id() for place in places if place is not None]
    assert [a == b for a, b in pairwise(entries)] == [a is b for a, b in pairwise(order)]
    assert values(read_all(name)) == [b"registered", b"0", b"1", b"2", b"3", b"5", b"6"]


@pytest.mark.parametrize("batching", [False, True])
def test_plain_messages_overtaking_stored_once(
    api: Api, client: Any, topic: NewTopic, read_all: ReadAll, batching: bool
) -> None:
    # The broker recovers the transactions of a topic just loaded first, and confirms plain messages meanwhile. Rarely
    # it fails in that, and closes the producer, which fails the transaction: one of three topics must do.
    for attempt in range(3):
        name = topic(str(attempt))
        producer = client.create_producer(name, batching_enabled=batching)
        transaction = client.new_transaction()
        outcomes = [api.enqueue(producer, b"t%d" % number, txn=transaction) for number in range(3)]
        outcomes += [api.enqueue(producer, b"p%d" % number) for number in range(20)]
        producer.flush()
        assert all(outcome.done() for outcome in outcomes)
        try:
            transaction.commit()
            break
        except NotConnected:
            if attempt == 2:
                raise
    assert [outcome.result(20)[0] for outcome in outcomes] == [Result.Ok] * 23
    found = values(read_all(name))
    assert [each for each in found if each[:1] == b"p"] == [b"p%d" % number for number in range(20)]
    assert [each for each in found if each[:1] == b"t"] == [b"t0", b"t1", b"t2"]


def test_large_messages_and_others_beside(api: Api, client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    name, large = topic(), b"x" * 150_000
    producer = client.create_producer(
        name, chunking_enabled=True, chunk_max_message_size=40_000, batching_enabled=False
    )
    with client.new_transaction() as transaction:
        producer.send(large, txn=transaction)
        producer.send(None, partition_key="k", txn=transaction)
        # Its clusters make it an entry of its own.
        producer.send(b"local", disable_replication=True, txn=transaction)
    gone = client.new_transaction()
    producer.send(large, txn=gone)
    gone.abort()
    consumer = client.subscribe(name, "sub", SHARED, initial_position=EARLIEST)
    chunked, null, local = received(consumer, 3)
    assert (chunked.data(), null.value(), local.data()) == (large, None, b"local")
    assert gets_nothing(consumer, 300)
    # All chunks are acknowledged together, and come again together.
    undone = client.new_transaction()
    consumer.acknowledge(chunked, txn=undone)
    undone.abort()
    (again,) = received(consumer, 1)
    assert again.data() == large
    with client.new_transaction() as transaction:
        consumer.acknowledge([again, null, local], txn=transaction)
    consumer.close()
    assert gets_nothing(client.subscribe(name, "sub", SHARED))
    assert [len(message.data()) for message in read_all(name)] == [150_000, 0, 5]


class Seen(ProducerInterceptor):
    """Replace every message, and remember what became of them."""

    def __init__(self) -> None:
        self.outcomes: list[object] = []

    def before_send(self, producer: Any, message: Any) -> Any:
        """Return another message."""
        return type(message)(message.payload + b"!", partition_key=message.partition_key)

    def on_send_acknowledgement(self, producer: Any, message: Any, message_id: Any, error: Any) -> None:
        """Remember."""
        self.outcomes.append(error)


def test_interceptors_and_lazy_partitions(api: Api, client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    name, seen = topic(partitions=3), Seen()
    producer = client.create_producer(
        name, batching_enabled=True, lazy_start_partitioned_producers=True, interceptors=[seen]
    )
    kept, gone = client.new_transaction(), client.new_transaction()
    for transaction in (kept, gone):
        for number in range(10):
            api.enqueue(producer, b"%d" % number, partition_key=f"key{number}", txn=transaction)
        producer.send_many([b"many"] * 5, txn=transaction)
    kept.commit()
    gone.abort()
    assert sorted(values(read_all(name))) == sorted([b"%d!" % number for number in range(10)] + [b"many!"] * 5)
    assert seen.outcomes == [None] * 30


def test_a_full_queue_is_waited_for_or_told(api: Api, client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=True, max_pending_messages=10, block_if_queue_full=True)
    with client.new_transaction() as transaction:
        for number in range(200):
            api.enqueue(producer, b"%d" % number, txn=transaction)
    assert values(read_all(name)) == [b"%d" % number for number in range(200)]


def test_what_failed_is_not_committed(
    api: Api, topic: NewTopic, read_all: ReadAll, broker: Broker, relay: NewRelay
) -> None:
    name = topic()
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    producer = client.create_producer(name, send_timeout_millis=1_000)
    transaction = client.new_transaction()
    producer.send(b"half", txn=transaction)
    through.drop(Command.SEND_RECEIPT, TO_CLIENT)
    outcome = api.enqueue(producer, b"unconfirmed", txn=transaction)
    with pytest.raises(Timeout, match="send_timeout_millis"):
        transaction.commit()
    assert outcome.result(20)[0] is Result.Timeout
    assert transaction.state() is TransactionState.ABORTED
    assert read_all(name) == []
    # What was refused before it was taken is told at once and does no harm.
    with client.new_transaction() as transaction:
        with pytest.raises(MessageTooBig):
            producer.send(b"x" * 6_000_000, txn=transaction)
        producer.send(b"whole", txn=transaction)
    assert values(read_all(name)) == [b"whole"]


# ---- what is acknowledged --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "batching"), list(zip(TYPES, [False, True, True, False], strict=True)), ids=[kind.name for kind in TYPES]
)
def test_what_is_acknowledged_comes_again_after_an_abort_only(
    api: Api, client: Any, topic: NewTopic, kind: ConsumerType, batching: bool
) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=batching)
    consumer = client.subscribe(name, "sub", kind, initial_position=EARLIEST, receiver_queue_size=100)
    api.send_all(producer, [b"%d" % number for number in range(6)])
    first = received(consumer, 3)
    aborted = client.new_transaction()
    consumer.acknowledge(first[0], txn=aborted)
    consumer.acknowledge(first[1:], txn=aborted)
    # In their first deliveries and once more: 3, 4, 5 were delivered to this consumer but not received.
    aborted.abort()
    again = received(consumer, 6)
    if kind in BY_ENTRY:
        assert sorted(values(again)) == [b"%d" % number for number in range(6)]
        assert {message.data(): message.redelivery_count() for message in again}[b"0"] == 1
    else:
        assert values(again) == [b"%d" % number for number in range(6)]
    assert gets_nothing(consumer)
    with client.new_transaction() as transaction:
        consumer.acknowledge(again[:4], txn=transaction)
        consumer.acknowledge([message.message_id() for message in again[4:]], txn=transaction)
    consumer.redeliver_unacknowledged_messages()
    assert gets_nothing(consumer)
    consumer.close()
    # The broker's own word: nothing is left in the subscription.
    consumer = client.subscribe(name, "sub", kind)
    producer.send(b"new")
    assert values(received(consumer, 1)) == [b"new"]


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover], ids=str)
def test_everything_up_to_a_message(api: Api, client: Any, topic: NewTopic, kind: ConsumerType) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=True)
    consumer = client.subscribe(name, "sub", kind, initial_position=EARLIEST, batch_index_ack_enabled=True)
    producer.send_many([b"%d" % number for number in range(10)])
    producer.send_many([b"%d" % number for number in range(10, 20)])
    messages = received(consumer, 20)
    aborted = client.new_transaction()
    consumer.acknowledge_cumulative(messages[4], txn=aborted)
    consumer.acknowledge_cumulative(messages[14], txn=aborted)
    aborted.abort()
    again = received(consumer, 20)
    assert values(again) == [b"%d" % number for number in range(20)]
    assert gets_nothing(consumer)
    with client.new_transaction() as transaction:
        consumer.acknowledge_cumulative(again[14], txn=transaction)
    consumer.close()
    consumer = client.subscribe(name, "sub", kind, batch_index_ack_enabled=True)
    assert values(received(consumer, 5)) == [b"%d" % number for number in range(15, 20)]


@pytest.mark.parametrize("kind", BY_ENTRY, ids=str)
def test_a_shared_subscription_has_no_such_thing(client: Any, topic: NewTopic, kind: ConsumerType) -> None:
    name = topic()
    client.create_producer(name).send(b"one")
    consumer = client.subscribe(name, "sub", kind, initial_position=EARLIEST)
    (message,) = received(consumer, 1)
    with client.new_transaction() as transaction:
        with pytest.raises(CumulativeAcknowledgementNotAllowedError):
            consumer.acknowledge_cumulative(message, txn=transaction)
        # Refused before it was part of the transaction.
        consumer.acknowledge(message, txn=transaction)
    assert transaction.state() is TransactionState.COMMITTED


@pytest.mark.parametrize("by_index", [True, False])
def test_messages_of_a_batch_one_by_one(client: Any, topic: NewTopic, by_index: bool) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=True)
    consumer = client.subscribe(name, "sub", SHARED, initial_position=EARLIEST, batch_index_ack_enabled=by_index)
    producer.send_many([b"%d" % number for number in range(70)])
    messages = received(consumer, 70)
    assert len({message.message_id().entry_id() for message in messages}) == 1
    one, two, three = (client.new_transaction() for _ in range(3))
    consumer.acknowledge(messages[::2], txn=one)
    # Others of the same batch may be of another transaction, or of none.
    consumer.acknowledge(messages[1], txn=two)
    with pytest.raises(TransactionConflict):
        consumer.acknowledge([messages[3], messages[2]], txn=three)
    for message in messages[5::2]:
        consumer.acknowledge(message)
    two.abort()
    one.commit()
    with pytest.raises(TransactionConflict):
        three.commit()
    assert three.state() is TransactionState.ABORTED
    if by_index:
        again = {message.data() for message in received(consumer, 2)}
        assert again == {b"1", b"3"}
    else:
        # Without acknowledgements by index the plain ones are not sent before the batch is complete, but known here.
        assert {message.data() for message in received(consumer, 2)} == {b"1", b"3"}
    assert gets_nothing(consumer)
    with client.new_transaction() as last:
        consumer.acknowledge([messages[1], messages[3]], txn=last)
    consumer.close()
    assert gets_nothing(client.subscribe(name, "sub", SHARED))


def test_two_transactions_want_the_same_message(client: Any, topic: NewTopic) -> None:
    name = topic()
    producer = client.create_producer(name)
    consumer = client.subscribe(name, "sub", SHARED, initial_position=EARLIEST)
    producer.send(b"one")
    (message,) = received(consumer, 1)
    first, second = client.new_transaction(), client.new_transaction()
    consumer.acknowledge(message, txn=first)
    # Not to the topic it is acknowledged on: the broker may lock up when both end at once (docs/transactions.md).
    client.create_producer(topic("out")).send(b"twice", txn=second)
    with pytest.raises(TransactionConflict) as raised:
        consumer.acknowledge(message, txn=second)
    assert raised.value.topic == name
    with pytest.raises(TransactionConflict, match="already"):
        consumer.acknowledge([message], txn=first)
    # Whoever goes on all the same does not get it committed.
    with pytest.raises(TransactionConflict):
        second.commit()
    assert second.state() is TransactionState.ABORTED
    with pytest.raises(TransactionConflict):
        first.commit()
    (message,) = received(consumer, 1)
    with client.new_transaction() as third:
        consumer.acknowledge(message, txn=third)
    late = client.new_transaction()
    with pytest.raises(TransactionConflict):
        consumer.acknowledge(message, txn=late)
    late.abort()


def test_several_topics_at_once(api: Api, client: Any, topic: NewTopic) -> None:
    names = [topic(partitions=2), topic()]
    for name in names:
        producer = client.create_producer(name)
        api.send_all(producer, [b"%d" % number for number in range(10)])
    consumer = client.subscribe(names, "sub", SHARED, initial_position=EARLIEST)
    messages = received(consumer, 20)
    aborted = client.new_transaction()
    consumer.acknowledge(messages, txn=aborted)
    aborted.abort()
    again = received(consumer, 20)
    with client.new_transaction() as transaction:
        consumer.acknowledge(again, txn=transaction)
    consumer.close()
    assert gets_nothing(client.subscribe(names, "sub", SHARED))


def test_ack_time_outs_mind_what_is_acknowledged(plain_client: Any, topic: NewTopic) -> None:
    name = topic()
    producer = plain_client.create_producer(name)
    consumer = plain_client.subscribe(
        name, "sub", SHARED, initial_position=EARLIEST, unacked_messages_timeout_ms=1_000, unacked_messages_tick_ms=200
    )
    producer.send(b"one")
    (message,) = received(consumer, 1)
    transaction = plain_client.new_transaction()
    consumer.acknowledge(message, txn=transaction)
    # Longer than the ack time-out: as long as the transaction stands, nothing is asked for again.
    assert gets_nothing(consumer, 2_000)
    transaction.abort()
    (message,) = received(consumer, 1)
    assert message.redelivery_count() == 1
    # And now the time-out counts anew.
    (message,) = received(consumer, 1)
    assert message.redelivery_count() == 2
    with plain_client.new_transaction() as transaction:
        consumer.acknowledge(message, txn=transaction)
    assert gets_nothing(consumer, 1_500)


# ---- its life --------------------------------------------------------------------------------------------------------


def test_a_transaction_ends_once(api: Api, client: Any, topic: NewTopic) -> None:
    producer = client.create_producer(topic())
    consumer = client.subscribe(topic("in"), "sub")
    for end in ("commit", "abort"):
        transaction = client.new_transaction()
        getattr(transaction, end)()
        for again in ("commit", "abort"):
            with pytest.raises(InvalidTxnStatusError, match=r"is (COMMITTED|ABORTED)"):
                getattr(transaction, again)()
        with pytest.raises(InvalidTxnStatusError):
            producer.send(b"too late", txn=transaction)
        with pytest.raises(InvalidTxnStatusError):
            producer.send_many([b"too late"], txn=transaction)
        with pytest.raises(InvalidTxnStatusError):
            consumer.acknowledge(MessageId(-1, 0, 0, -1), txn=transaction)
    with client.new_transaction() as transaction:
        transaction.abort()
    assert transaction.state() is TransactionState.ABORTED


def test_the_id_is_the_coordinators(client: Any) -> None:
    ids = [client.new_transaction().txn_id() for _ in range(20)]
    assert len(set(ids)) == 20 and ids[0].least_bits >= 0
    assert str(ids[0]) == f"({ids[0].most_bits},{ids[0].least_bits})"


def test_what_takes_too_long(api: Api, client: Any, topic: NewTopic, eventually: Eventually) -> None:
    source, target = topic("in"), topic("out")
    client.create_producer(source).send(b"one")
    producer = client.create_producer(target, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    consumers = [client.subscribe(source, f"sub{kind}", kind, initial_position=EARLIEST) for kind in TYPES]
    after = client.subscribe(target, "after", initial_position=EARLIEST)
    # Long enough for what is registered below, even on a machine that stands still for a while.
    transaction = client.new_transaction(timeout_seconds=4)
    api.send_all(producer, [b"registered"], txn=transaction)
    # In an open batch that nobody sends: it must never be written after the broker has let go of the transaction.
    open_batch = api.enqueue(producer, b"never", txn=transaction)
    for consumer in consumers:
        consumer.acknowledge(received(consumer, 1), txn=transaction)
    eventually(lambda: transaction.state() is TransactionState.TIME_OUT)
    assert open_batch.result(20)[0] is Result.InvalidTxnStatusError
    for consumer in consumers:
        assert values(received(consumer, 1)) == [b"one"]
    with pytest.raises(InvalidTxnStatusError, match="timed out after"):
        producer.send(b"too late", txn=transaction)
    with pytest.raises(InvalidTxnStatusError, match="timed out after"):
        transaction.commit()
    with pytest.raises(InvalidTxnStatusError, match="timed out after"), client.new_transaction(0.3) as transaction:
        eventually(lambda: transaction.state() is TransactionState.TIME_OUT)
    api.send_all(producer, [b"after"])
    assert values(received(after, 1)) == [b"after"]


def test_what_cannot_take_part(api: Api, client: Any, topic: NewTopic, broker: Broker) -> None:
    name = topic()
    transaction = client.new_transaction()
    with pytest.raises(InvalidConfiguration, match="new_transaction"):
        client.create_producer(name).send(b"x", txn="not one")
    stranger = api.client(broker.service_url)
    with pytest.raises(InvalidConfiguration, match="another client"):
        stranger.create_producer(name).send(b"x", txn=transaction)
    with pytest.raises(InvalidConfiguration, match="another client"):
        stranger.subscribe(name, "sub").acknowledge(MessageId(-1, 0, 0, -1), txn=transaction)
    fleeting = name.replace("persistent", "non-persistent")
    with pytest.raises(OperationNotSupported, match="non-persistent"):
        client.create_producer(fleeting).send(b"x", txn=transaction)
    with pytest.raises(OperationNotSupported, match="non-persistent"):
        client.subscribe(fleeting, "sub").acknowledge(MessageId(-1, 0, 0, -1), txn=transaction)
    for wrong in (0, -1, True, "60"):
        with pytest.raises(InvalidConfiguration, match="timeout_seconds"):
            client.new_transaction(timeout_seconds=wrong)
    transaction.commit()


def test_closing_the_client_aborts(api: Api, client: Any, broker: Broker, topic: NewTopic) -> None:
    name = topic()
    leaving = api.client(broker.service_url)
    producer = leaving.create_producer(name)
    transaction = leaving.new_transaction(timeout_seconds=600)
    producer.send(b"never", txn=transaction)
    leaving.close()
    assert transaction.state() is TransactionState.ABORTED
    client.create_producer(name).send(b"at once")
    assert values(received(client.subscribe(name, "sub", initial_position=EARLIEST), 1)) == [b"at once"]


def test_many_threads_share_a_transaction(plain_client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    name = topic(partitions=4)
    producer = plain_client.create_producer(name, batching_enabled=True, block_if_queue_full=True)
    transaction = plain_client.new_transaction()

    def work(own: int) -> None:
        for number in range(100):
            producer.send_async(b"%d" % number, None, partition_key=f"{own}-{number % 7}", txn=transaction)

    threads = [threading.Thread(target=work, args=(own,)) for own in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    transaction.commit()
    messages = read_all(name)
    assert len(messages) == 600
    by_key: dict[str, list[int]] = {}
    for message in messages:
        by_key.setdefault(message.partition_key(), []).append(int(message.data()))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
