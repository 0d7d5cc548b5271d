"""Sending single messages: ids, names, limits, states and every field, on a real broker."""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

import pulsar_native
import pulsar_native.asyncio
from pulsar_native import (
    AlreadyClosed,
    Client,
    CompressionType,
    ConsumerType,
    InitialPosition,
    InvalidConfiguration,
    InvalidMessage,
    InvalidTopicName,
    MessageId,
    MessageTooBig,
    ProducerAccessMode,
    ProducerBusy,
    ProducerFenced,
    ProducerQueueIsFull,
    PulsarException,
    Result,
    Timeout,
    TopicTerminated,
)
from pulsar_native.protocol.producer import ProducerCore
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.raw import commands_of, sent_entries
from support.relay import TO_BROKER, TO_CLIENT, Command, NewRelay

ReadAll = Callable[..., list[Any]]
Eventually = Callable[..., Any]
Stats = Callable[[str], Any]


def test_what_is_sent_is_read_in_order(client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    name = topic()
    producer = client.create_producer(name)
    ids = [producer.send(b"%d" % number) for number in range(20)]
    messages = read_all(name)
    assert [message.data() for message in messages] == [b"%d" % number for number in range(20)]
    assert [message.message_id() for message in messages] == ids == sorted(set(ids))


@pytest.mark.proves("C41")
@pytest.mark.parametrize("nothing", ["", "  ", None])
def test_a_producer_needs_a_topic(api: Api, nothing: Any) -> None:
    # Nobody listens there: the error comes before any attempt to connect.
    error = InvalidConfiguration if nothing is None else InvalidTopicName
    with pytest.raises(error, match="topic"):
        api.client("pulsar://127.0.0.1:1").create_producer(nothing)


@pytest.mark.proves("C37", "C42", "N9")
def test_a_name_in_use_is_refused_at_once(api: Api, broker: Broker, client: Any, topic: NewTopic) -> None:
    name = topic()
    client.create_producer(name, producer_name="only-one")
    started = time.monotonic()
    with pytest.raises(ProducerBusy, match="only-one") as caught:
        api.client(broker.service_url).create_producer(name, producer_name="only-one")
    assert time.monotonic() - started < 5
    assert caught.value.topic == name and not caught.value.retryable
    assert caught.value.broker and caught.value.request_id is not None


def test_a_name_of_the_brokers_choice_is_unique(client: Any, topic: NewTopic) -> None:
    name = topic()
    names = {client.create_producer(name, producer_name=given).producer_name() for given in (None, None, "")}
    assert len(names) == 3 and all(names), "an empty name is none, as in the official client"


@pytest.mark.proves("C57")
def test_properties_are_in_the_statistics(client: Any, topic: NewTopic, stats: Stats) -> None:
    name = topic()
    client.create_producer(name, producer_name="p", properties={"team": "flights", "é": "1"})
    (publisher,) = stats(name)["publishers"]
    assert publisher["metadata"] == {"team": "flights", "é": "1"}
    assert publisher["producerName"] == "p"


@pytest.mark.proves("C44", "C46")
def test_a_full_queue_raises_or_blocks(api: Api, broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    options: dict[str, Any] = {"max_pending_messages": 5, "batching_enabled": False}
    raising = client.create_producer(topic("raising"), **options)
    blocking = client.create_producer(topic("blocking"), block_if_queue_full=True, **options)
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    outcomes = [api.enqueue(producer, b"x") for producer in (raising, blocking) for _ in range(5)]
    with pytest.raises(ProducerQueueIsFull, match="max_pending_messages"):
        api.enqueue_refused(raising, b"one too many")
    sixth: Future[Any] = Future()
    thread = threading.Thread(target=lambda: sixth.set_result(api.enqueue(blocking, b"6").result(30)))
    thread.start()
    through.wait_for(Command.SEND_RECEIPT, 10)
    thread.join(0.3)
    assert thread.is_alive() and through.count(Command.SEND, TO_BROKER) == 10
    through.release()
    assert [outcome.result(10)[0] for outcome in outcomes] == [Result.Ok] * 10
    assert sixth.result(10)[0] is Result.Ok
    thread.join(10)
    # Every place in the queue is free again.
    assert len(api.send_all(raising, [b"y"] * 5)) == 5


@pytest.mark.proves("C44")
@pytest.mark.parametrize("batched_messages", [0, 7, 1000], ids="batches-of-{}".format)
@pytest.mark.parametrize("limit", [1, 50, 1000], ids="limit-{}".format)
def test_max_pending_messages_counts_open_batch(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, limit: int, batched_messages: int
) -> None:
    through = relay(broker.service_url)
    producer = api.client(through.service_url).create_producer(
        topic(),
        max_pending_messages=limit,
        batching_enabled=batched_messages > 0,
        batching_max_messages=max(batched_messages, 1),
        batching_max_publish_delay_ms=60_000,
    )
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    outcomes = [api.enqueue(producer, b"%d" % number) for number in range(limit)]
    for _ in range(3):
        with pytest.raises(ProducerQueueIsFull, match="max_pending_messages"):
            api.enqueue_refused(producer, b"one too many")
    assert producer.stats().pending_queue_size == limit
    # What finds the queue full sends the open batch, which would be due in a minute.
    through.wait_for(Command.SEND_RECEIPT)
    through.release()
    assert [outcome.result(20)[0] for outcome in outcomes] == [Result.Ok] * limit
    assert len(api.send_all(producer, [b"y"] * limit)) == limit


@pytest.mark.proves("C44")
@pytest.mark.parametrize("blocks", [False, True], ids=["raises", "blocks"])
def test_max_pending_messages_holds_for_many_threads(
    broker: Broker, relay: NewRelay, topic: NewTopic, plain_client: Client, eventually: Callable[..., Any], blocks: bool
) -> None:
    through = relay(broker.service_url)
    limit, many = 200, 6
    with Client(through.service_url) as client:
        producer = client.create_producer(
            topic(),
            max_pending_messages=limit,
            block_if_queue_full=blocks,
            batching_enabled=True,
            batching_max_publish_delay_ms=1,
        )
        through.hold(Command.SEND_RECEIPT, TO_CLIENT)
        refused, accepted = [0] * many, [0] * many

        def send(number: int) -> None:
            for _ in range(100):
                try:
                    producer.send_async(b"x", None)
                except ProducerQueueIsFull:
                    refused[number] += 1
                else:
                    accepted[number] += 1

        threads = [threading.Thread(target=send, args=(number,)) for number in range(many)]
        for thread in threads:
            thread.start()
        eventually(lambda: sum(accepted) >= limit)
        if blocks:
            time.sleep(0.3)  # time enough to accept one too many
        else:
            for thread in threads:
                thread.join(20)
            assert sum(refused) == many * 100 - limit
        assert sum(accepted) == limit == producer.stats().pending_queue_size
        through.release()
        for thread in threads:
            thread.join(20)
        producer.flush()
        assert producer.stats().total_acks_received == (many * 100 if blocks else limit)


@pytest.mark.proves("C43")
def test_send_timeout_and_none(api: Api, broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    for module in (pulsar_native, pulsar_native.asyncio):
        parameters = inspect.signature(module.Client.create_producer).parameters
        assert parameters["send_timeout_millis"].default == 30_000
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    limited = client.create_producer(topic("limited"), send_timeout_millis=300)
    patient = client.create_producer(topic("patient"), send_timeout_millis=0)
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    waiting = api.enqueue(patient, b"waits")
    started = time.monotonic()
    with pytest.raises(Timeout, match=r"0\.3 s"):
        limited.send(b"times out")
    assert 0.25 < time.monotonic() - started < 2
    assert not waiting.done()
    through.release()
    assert waiting.result(10)[0] is Result.Ok


@pytest.mark.proves("C63")
def test_the_oldest_message_times_out_with_all_behind_it(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic()
    through = relay(broker.service_url)
    producer = api.client(through.service_url).create_producer(
        name, send_timeout_millis=3000, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    started = time.monotonic()
    outcomes = [api.enqueue(producer, b"first")]
    time.sleep(1.8)  # younger by more than half of the time-out, and yet failing with the oldest
    outcomes += [api.enqueue(producer, b"%d" % number, deliver_at=1) for number in range(3)]
    outcomes.append(api.enqueue(producer, b"in the open batch"))
    assert {outcome.result(10)[0] for outcome in outcomes} == {Result.Timeout}
    assert 2.9 < time.monotonic() - started < 4.6
    # The receipts come after all, too late, and must not be taken for those of later messages.
    assert through.release() >= 3
    later = producer.send(b"later") if api.name == "blocking" else api.send_all(producer, [b"later"])[0]
    last = read_all(name)[-1]
    assert (last.data(), last.message_id()) == (b"later", later)


@pytest.mark.proves("C56")
def test_sequence_ids_go_on_where_the_name_was_seen_last(
    api: Api, client: Any, broker: Broker, deduplicating: str, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic(namespace=deduplicating)
    producer = client.create_producer(name, producer_name="loader")
    assert producer.last_sequence_id() == -1
    api.send_all(producer, [b"a", b"b", b"c"])
    assert producer.last_sequence_id() == 2
    producer.close()
    again = api.client(broker.service_url).create_producer(name, producer_name="loader")
    assert again.last_sequence_id() == 2
    api.send_all(again, [b"d"])
    again.close()
    told = client.create_producer(name, producer_name="other", initial_sequence_id=99)
    assert told.last_sequence_id() == 99
    api.send_all(told, [b"e", b"f"])
    assert [(m.data(), m.sequence_id()) for m in read_all(name)] == [
        (b"a", 0), (b"b", 1), (b"c", 2), (b"d", 3), (b"e", 100), (b"f", 101),
    ]  # fmt: skip


def test_sync_send_sequence_id_zero_is_stored(
    plain_client: Client, deduplicating: str, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic(namespace=deduplicating)
    for _ in range(2):
        with plain_client.create_producer(name, producer_name="p", initial_sequence_id=0) as producer:
            for content in (b"a", b"b"):
                producer.send(content, sequence_id=0)
    assert [(message.data(), message.sequence_id()) for message in read_all(name)] == [
        (b"a", 0), (b"b", 1), (b"a", 2), (b"b", 3),
    ]  # fmt: skip


@pytest.mark.proves("C65")
def test_receipts_give_the_ids_consumers_see_and_duplicates_succeed(
    api: Api, client: Any, deduplicating: str, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic(namespace=deduplicating)
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    ids = api.send_all(producer, [b"a", b"b", b"c"]) + api.send_all(producer, [b"d"])
    messages = read_all(name)
    assert [message.message_id() for message in messages] == ids
    assert [each.batch_index() for each in ids] == [0, 1, 2, -1]
    (duplicate,) = api.send_all(producer, [b"again"], sequence_id=1)
    assert (duplicate.ledger_id(), duplicate.entry_id()) == (-1, -1)
    assert producer.last_sequence_id() == 3
    assert len(read_all(name)) == 4
    fleeting = client.create_producer(name.replace("persistent", "non-persistent"))
    place = fleeting.send(b"x")
    assert (place.ledger_id(), place.entry_id()) == (0, 0)


@pytest.mark.proves("C62")
class TestAccessModes:
    """Two producers on a topic, in each mode."""

    def test_shared(self, client: Any, topic: NewTopic) -> None:
        name = topic()
        first, second = (client.create_producer(name, access_mode=ProducerAccessMode.Shared) for _ in range(2))
        assert first.send(b"1") < second.send(b"2")

    def test_exclusive(self, client: Any, topic: NewTopic) -> None:
        name = topic()
        holder = client.create_producer(name, access_mode=ProducerAccessMode.Exclusive)
        with pytest.raises(ProducerFenced):
            client.create_producer(name, access_mode=ProducerAccessMode.Exclusive)
        with pytest.raises(ProducerBusy):
            client.create_producer(name)
        holder.send(b"undisturbed")
        holder.close()
        client.create_producer(name, access_mode=ProducerAccessMode.Exclusive).send(b"now")

    def test_waiting(self, api: Api, broker: Broker, topic: NewTopic, stats: Stats, eventually: Eventually) -> None:
        name = topic()
        holder = api.client(broker.service_url).create_producer(name, access_mode=ProducerAccessMode.Exclusive)
        client = api.client(broker.service_url, operation_timeout_seconds=1)
        waiting: Future[Any] = Future()

        def wait() -> None:
            try:
                waiting.set_result(client.create_producer(name, access_mode=ProducerAccessMode.WaitForExclusive))
            except BaseException as error:
                waiting.set_exception(error)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: stats(name)["waitingPublishers"] == 1)
        thread.join(1.5)
        assert not waiting.done(), "the queue for exclusive access is no operation that times out"
        holder.send(b"first")
        holder.close()
        waiting.result(10).send(b"second")
        thread.join(10)

    def test_fencing(self, api: Api, broker: Broker, client: Any, topic: NewTopic) -> None:
        name = topic()
        holder = client.create_producer(name, access_mode=ProducerAccessMode.Exclusive)
        taker = api.client(broker.service_url).create_producer(
            name, access_mode=ProducerAccessMode.ExclusiveWithFencing
        )
        taker.send(b"mine")
        with pytest.raises(ProducerFenced):
            holder.send(b"not any more")
        taker.send(b"still mine")


@pytest.mark.proves("C68")
def test_a_terminated_topic_refuses_pending_later_and_new(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic()
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    producer = client.create_producer(name, batching_enabled=False)
    producer.send(b"last")
    through.hold(Command.SEND, TO_BROKER)
    pending = [api.enqueue(producer, b"too late") for _ in range(3)]
    through.wait_for(Command.SEND, 4)
    broker.admin("POST", name.replace("://", "/") + "/terminate")
    through.release()
    assert {outcome.result(10)[0] for outcome in pending} == {Result.TopicTerminated}
    with pytest.raises(TopicTerminated):
        producer.send(b"later")
    with pytest.raises(TopicTerminated):
        client.create_producer(name)


@pytest.mark.proves("C70")
def test_the_maximum_size_counts_after_compression(client: Any, topic: NewTopic, read_all: ReadAll) -> None:
    name = topic()
    producer = client.create_producer(name, compression_type=CompressionType.ZSTD)
    zeros = bytes(6 * 1024 * 1024)
    producer.send(zeros)
    with pytest.raises(MessageTooBig, match="5242880") as caught:
        producer.send(os.urandom(6 * 1024 * 1024))
    assert caught.value.topic == name
    # Metadata counts too; the refusal costs neither connection nor later messages.
    with pytest.raises(MessageTooBig):
        producer.send(os.urandom(5 * 1024 * 1024 - 2000), properties={"x": "y" * 4000})
    producer.send(b"after")
    assert [message.data() for message in read_all(name)] == [zeros, b"after"]
    assert producer.last_sequence_id() >= 1


@pytest.mark.proves("C72")
def test_the_producer_fills_in_the_metadata(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, read_all: ReadAll
) -> None:
    name = topic()
    through = relay(broker.service_url)
    producer = api.client(through.service_url).create_producer(
        name,
        producer_name="writer",
        compression_type=CompressionType.LZ4,
        schema=pulsar_native.schema.StringSchema(),
        batching_enabled=False,
    )
    before = time.time_ns() // 1_000_000
    api.send_all(producer, ["one" * 100, "two" * 100])
    after = time.time_ns() // 1_000_000
    first, second = (entry.metadata for entry in sent_entries(through))
    assert (first.sequence_id, second.sequence_id) == (0, 1)
    assert before <= first.publish_time <= second.publish_time <= after
    assert (first.producer_name, first.compression, first.uncompressed_size) == ("writer", 1, 300)
    assert first.schema_version == bytes(8)
    for number, message in enumerate(read_all(name)):
        assert message.producer_name() == "writer" and message.sequence_id() == number
        assert before <= message.publish_timestamp() <= after
        assert message.schema_version_bytes() == bytes(8)


@pytest.mark.proves("C76")
def test_a_blocking_send_does_not_wait_for_its_batch(plain_client: Client, topic: NewTopic) -> None:
    producer = plain_client.create_producer(topic(), batching_enabled=True, batching_max_publish_delay_ms=20_000)
    started = time.monotonic()
    producer.send_async(b"in the batch before", None)
    producer.send(b"closes it")
    assert time.monotonic() - started < 5
    assert producer.last_sequence_id() == 1


@pytest.mark.proves("C77")
def test_flush_returns_with_the_last_receipt(api: Api, broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    through = relay(broker.service_url)
    producer = api.client(through.service_url).create_producer(
        topic(), batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    outcomes = [api.enqueue(producer, b"x") for _ in range(10)]
    flushed = threading.Event()
    thread = threading.Thread(target=lambda: (producer.flush(), flushed.set()))
    thread.start()
    through.wait_for(Command.SEND_RECEIPT)
    assert not flushed.wait(0.3) and not any(outcome.done() for outcome in outcomes)
    through.release()
    assert flushed.wait(10) and all(outcome.result(0)[0] is Result.Ok for outcome in outcomes)
    thread.join(10)


@pytest.mark.proves("C78")
@pytest.mark.parametrize("batching", [True, False])
def test_threads_keep_their_order_and_ids_stay_dense(plain_client: Client, topic: NewTopic, batching: bool) -> None:
    threads, each = 8, 10_000 if batching else 1000
    name = topic()
    producer = plain_client.create_producer(
        name, batching_enabled=batching, block_if_queue_full=True, max_pending_messages=5000
    )

    def send(thread: int) -> None:
        for number in range(each):
            producer.send_async(b"%d %d" % (thread, number), None)

    senders = [threading.Thread(target=send, args=(number,)) for number in range(threads)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    producer.flush()
    seen: dict[int, list[int]] = {thread: [] for thread in range(threads)}
    ids: list[int] = []
    with plain_client.create_reader(name, MessageId.earliest) as reader:
        for batch in reader.arrow_batches(columns=["value", "__sequenceId"]):
            ids += batch["__sequenceId"].to_pylist()
            for value in batch["value"].to_pylist():
                thread, number = value.split()
                seen[int(thread)].append(int(number))
    assert ids == list(range(threads * each))
    assert all(numbers == list(range(each)) for numbers in seen.values())


@pytest.mark.proves("C81", "C82")
@pytest.mark.parametrize("batching", [True, False])
def test_every_field_goes_out_and_comes_back(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic, batching: bool
) -> None:
    name = topic()
    through = relay(broker.service_url)
    consumer = client.subscribe(name, "sub", ConsumerType.Shared)
    producer = api.client(through.service_url).create_producer(
        name, producer_name="p", batching_enabled=batching, batching_max_publish_delay_ms=60_000
    )
    fields: dict[str, Any] = {
        "properties": {"a": "1", "é": "ü"},
        "partition_key": "key",
        "ordering_key": "order",
        "event_timestamp": 1_234_567,
        "sequence_id": 7,
    }
    pending = [
        api.enqueue(producer, b"full", **fields),
        api.enqueue(producer, b"bytes key", partition_key=b"\x00\xff"),
        api.enqueue(producer, None, partition_key=""),
        api.enqueue(producer, b"", replication_clusters=["standalone"]),
        api.enqueue(producer, b"here only", disable_replication=True),
    ]
    producer.flush()
    ids = [outcome.result(10)[1] for outcome in pending]
    full, keyed, null, bare, _ = messages = [consumer.receive(10_000) for _ in ids]
    assert [message.message_id() for message in messages] == ids
    assert (full.data(), full.value(), full.properties()) == (b"full", b"full", {"a": "1", "é": "ü"})
    assert (full.partition_key(), full.ordering_key(), full.event_timestamp()) == ("key", "order", 1_234_567)
    assert (full.sequence_id(), full.producer_name(), full.topic_name()) == (7, "p", name)
    assert abs(full.publish_timestamp() - time.time() * 1000) < 60_000
    assert full.has_key() and not full.has_base64_encoded_key() and full.key_bytes() == b"key"
    assert keyed.has_base64_encoded_key() and keyed.key_bytes() == b"\x00\xff" and keyed.partition_key() == "AP8="
    assert null.has_null_value() and null.data() == b"" and null.value() is None and null.has_key()
    assert (bare.data(), bare.properties(), bare.partition_key(), bare.ordering_key()) == (b"", {}, "", "")
    assert (bare.event_timestamp(), bare.redelivery_count(), bare.schema_version_bytes()) == (0, 0, None)
    assert not bare.has_null_value() and not bare.has_key()
    assert [each.metadata.replicate_to for each in sent_entries(through)][-2:] == [["standalone"], ["__local__"]]


@pytest.mark.proves("C81")
def test_delivery_can_be_delayed(api: Api, client: Any, topic: NewTopic) -> None:
    name = topic()
    consumer = client.subscribe(name, "sub", ConsumerType.Shared)
    producer = client.create_producer(name)
    sent = time.time()
    # The broker may deliver up to one of its ticks (1 s) early.
    api.send_all(producer, [b"after"], deliver_after=timedelta(seconds=2))
    api.send_all(producer, [b"at"], deliver_at=int(sent * 1000) + 3200)
    api.send_all(producer, [b"at once"])
    arrivals = [(consumer.receive(10_000).data(), time.time() - sent) for _ in range(3)]
    assert [data for data, _ in arrivals] == [b"at once", b"after", b"at"]
    assert arrivals[0][1] < 2 and 1 <= arrivals[1][1] < 6 and 2.2 <= arrivals[2][1] < 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"properties": {"a": 1}},
        {"partition_key": 5},
        {"ordering_key": b"bytes"},
        {"sequence_id": -1},
        {"event_timestamp": 1.5},
        {"deliver_at": -1, "deliver_after": 1},
        {"disable_replication": True, "replication_clusters": "a"},
    ],
)
def test_wrong_fields_are_refused_and_nothing_is_sent(
    api: Api, client: Any, topic: NewTopic, read_all: ReadAll, wrong: dict[str, Any]
) -> None:
    name = topic()
    producer = client.create_producer(name)
    with pytest.raises(InvalidMessage):
        producer.send(b"x", **wrong)
    api.send_all(producer, [b"good"])
    assert [(message.data(), message.sequence_id()) for message in read_all(name)] == [(b"good", 0)]


@pytest.mark.proves("C85")
class TestSendByState:
    """What send answers in each state of a producer."""

    def test_ready_and_connecting_take_messages(
        self, api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually
    ) -> None:
        through = relay(broker.service_url)
        producer = api.client(through.service_url).create_producer(topic())
        assert producer.is_connected() and api.enqueue(producer, b"ready").result(10)[0] is Result.Ok
        through.refuse()
        through.cut()
        eventually(lambda: not producer.is_connected())
        waiting = api.enqueue(producer, b"connecting")
        assert not waiting.done()
        through.accept()
        assert waiting.result(20)[0] is Result.Ok

    def test_closed(self, api: Api, client: Any, topic: NewTopic) -> None:
        producer = client.create_producer(topic())
        producer.close()
        for call in (producer.close, producer.flush, lambda: producer.send(b"x")):
            with pytest.raises(AlreadyClosed):
                call()
        with pytest.raises(AlreadyClosed):
            api.enqueue_refused(producer, b"x")

    def test_terminated_and_failed(self, api: Api, broker: Broker, client: Any, topic: NewTopic) -> None:
        ended = client.create_producer(topic("ended"))
        broker.admin("POST", ended.topic().replace("://", "/") + "/terminate")
        fenced = client.create_producer(topic("fenced"), access_mode=ProducerAccessMode.Exclusive)
        api.client(broker.service_url).create_producer(
            fenced.topic(), access_mode=ProducerAccessMode.ExclusiveWithFencing
        )
        for producer, error in ((ended, TopicTerminated), (fenced, ProducerFenced)):
            for _ in range(2):
                with pytest.raises(error):
                    producer.send(b"x")


@pytest.mark.proves("C87")
@pytest.mark.parametrize("answered", [True, False])
def test_close_settles_every_pending_message(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, answered: bool, read_all: ReadAll
) -> None:
    name = topic()
    through = relay(broker.service_url)
    # Time enough for what is answered; the other test waits for its end.
    client = api.client(through.service_url, operation_timeout_seconds=20 if answered else 2)
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    if not answered:
        through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    outcomes = [api.enqueue(producer, b"%d" % number) for number in range(100)]
    started = time.monotonic()
    producer.close()
    # Below the send time-out of 30 s.
    assert time.monotonic() - started < 15
    results = {outcome.result(1)[0] for outcome in outcomes}
    assert results == {Result.Ok if answered else Result.AlreadyClosed}
    if answered:
        assert len(read_all(name)) == 100


@pytest.mark.proves("C16")
def test_a_closed_client_makes_nothing(api: Api, broker: Broker, topic: NewTopic) -> None:
    client = api.client(broker.service_url)
    name = topic()
    producer = client.create_producer(name)
    client.close()
    for attempt in (
        lambda: client.create_producer(name),
        lambda: client.subscribe(name, "sub"),
        lambda: client.create_reader(name, MessageId.earliest),
        lambda: client.get_topic_partitions(name),
        lambda: producer.send(b"x"),
        client.close,
    ):
        with pytest.raises(AlreadyClosed):
            attempt()


@pytest.mark.proves("C17")
def test_ids_are_never_reused_on_a_connection(api: Api, broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url)
    name = topic()
    for _ in range(5):
        client.create_producer(name).close()
        client.subscribe(name, "sub", initial_position=InitialPosition.Earliest).close()
    assert through.accepted <= 2
    producers = [each.producer.producer_id for each in commands_of(through, Command.PRODUCER)]
    consumers = [each.subscribe.consumer_id for each in commands_of(through, Command.SUBSCRIBE)]
    requests = [
        getattr(each, field).request_id
        for command, field in (
            (Command.PRODUCER, "producer"),
            (Command.SUBSCRIBE, "subscribe"),
            (Command.LOOKUP, "lookupTopic"),
            (Command.PARTITIONED_METADATA, "partitionMetadata"),
            (Command.CLOSE_PRODUCER, "close_producer"),
            (Command.CLOSE_CONSUMER, "close_consumer"),
        )
        for each in commands_of(through, command)
    ]
    for ids, count in ((producers, 5), (consumers, 5), (requests, 40)):
        assert len(ids) == len(set(ids)) == count


def test_errors_have_the_official_base(client: Any, topic: NewTopic) -> None:
    with pytest.raises(PulsarException):
        client.create_producer("persistent://no-such-tenant/at/all/slashes")


@pytest.mark.proves("C82")
@pytest.mark.parametrize("batching", [False, True])
def test_a_message_tells_the_cluster_it_was_replicated_from(
    api: Api, client: Any, topic: NewTopic, monkeypatch: pytest.MonkeyPatch, batching: bool
) -> None:
    """There is one cluster: the producer writes what a replicator does."""
    made = ProducerCore._metadata

    def replicated(core: ProducerCore, *arguments: Any) -> Any:
        metadata, transaction = made(core, *arguments)
        metadata.replicated_from = "west"
        return metadata, transaction

    name = topic()
    consumer = client.subscribe(name, "sub")
    producer = client.create_producer(name, batching_enabled=batching)
    api.send_all(producer, [b"own", b"too"])
    monkeypatch.setattr(ProducerCore, "_metadata", replicated)
    api.send_all(producer, [b"west", b"too"])
    messages = [consumer.receive(10_000) for _ in range(4)]
    assert [message.replicated_from() for message in messages] == [None, None, "west", "west"]
    assert {message.reader_schema() for message in messages} == {None}
