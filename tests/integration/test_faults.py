"""What faults leave: a killed broker, unloads, cut and silent connections, held receipts, damaged bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pulsar_native import (
    ChecksumError,
    Client,
    ConsumerType,
    InitialPosition,
    MemoryBufferIsFull,
    MessageId,
    NotAllowedError,
    ProducerQueueIsFull,
    PulsarException,
    Result,
    Timeout,
)
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.frames import encode_command
from support.apis import Api, inner
from support.brokers import Broker, NewTopic, OwnBroker
from support.relay import TO_BROKER, TO_CLIENT, Command, NewRelay, Relay

Eventually = Callable[..., Any]
ReadAll = Callable[..., list[Any]]
Stats = Callable[[str], Any]

EARLIEST = InitialPosition.Earliest


def nothing_pending(producer: Any) -> bool:
    """Tell whether a producer holds no message, and its client no byte, any more."""
    found = inner(producer)
    return all(
        child.core.pending_messages == 0 and child.core.pending_bytes == 0 and not child.core.queue.ops
        for child in found.children
    ) and (found.client.memory.used == 0)


def values_of(service_url: str, name: str) -> list[bytes]:
    """Return the values of a topic in its order."""
    with Client(service_url) as client, client.create_reader(name, MessageId.earliest) as reader:
        return [value for batch in reader.arrow_batches(columns=["value"]) for value in batch["value"].to_pylist()]


class Killed:
    """One API at work while the broker dies and comes back: a producer, a reader and a consumer on a topic."""

    TOTAL = 9_000

    def __init__(self, name: str, service_url: str, pool: ThreadPoolExecutor) -> None:
        self.api = Api(name)
        self.topic = f"killed-{name}"
        self.client = self.api.client(service_url)
        # Without a send time-out: only then may "not confirmed" never be taken for "not stored".
        self.producer = self.client.create_producer(
            self.topic, send_timeout_millis=0, batching_enabled=True, block_if_queue_full=True, batching_max_messages=50
        )
        self.name_before = self.producer.producer_name()
        self.reader = self.client.create_reader(self.topic, MessageId.earliest)
        self.consumer = self.client.subscribe(self.topic, "sub", ConsumerType.Shared, initial_position=EARLIEST)
        self.sent = 0
        self.read: list[int] = []
        self.consumed: set[int] = set()
        self.work = [pool.submit(each) for each in (self._publish, self._read, self._consume)]

    def _publish(self) -> None:
        step = 250
        while self.sent < self.TOTAL:
            self.api.send_all(self.producer, [b"%d" % number for number in range(self.sent, self.sent + step)])
            self.sent += step

    def _read(self) -> None:
        while len(self.read) < self.TOTAL:
            self.read.append(int(self.reader.read_next(80_000).data()))

    def _consume(self) -> None:
        while len(self.consumed) < self.TOTAL:
            message = self.consumer.receive(80_000)
            self.consumed.add(int(message.data()))
            self.consumer.acknowledge(message)


# Three starts of a broker, each 12 s of processor time: 40 s and more where other work takes the processors.
@pytest.mark.proves("C26", "C42", "C66", "C79", "C83", "C119")
def test_a_killed_broker_loses_doubles_and_reorders_nothing(own_broker: OwnBroker, eventually: Eventually) -> None:
    broker = own_broker(deduplication=True)
    with ThreadPoolExecutor(6) as pool:
        apis = [Killed(name, broker.service_url, pool) for name in ("blocking", "asyncio")]
        try:
            for part in (1, 2):
                eventually(lambda part=part: all(each.sent >= each.TOTAL * part // 3 for each in apis))
                broker.kill()
                eventually(lambda: not any(each.producer.is_connected() for each in apis))
                assert all(each.producer.last_sequence_id() >= each.sent - 1 for each in apis)
                broker.start().wait_ready()
            for each in apis:
                for future in each.work:
                    future.result(90)
                assert values_of(broker.service_url, each.topic) == [b"%d" % number for number in range(each.TOTAL)]
                # The broker forgot the reader's position with its life; the reader did not.
                assert each.read == list(range(each.TOTAL))
                assert each.consumed == set(range(each.TOTAL))
                assert each.producer.producer_name() == each.name_before
                # The new broker may move the topic once more while it settles.
                eventually(each.producer.is_connected, 30)
                assert each.producer.last_sequence_id() == each.TOTAL - 1
                assert nothing_pending(each.producer)
        finally:
            for each in apis:
                each.api.close()


@pytest.mark.proves("C66", "C190")
def test_twenty_unloads_while_sending(
    api: Api, client: Any, broker: Broker, deduplicating: str, topic: NewTopic
) -> None:
    name = topic(namespace=deduplicating)
    total = 100_000 if api.name == "blocking" else 20_000
    producer = client.create_producer(
        name, batching_enabled=True, block_if_queue_full=True, send_timeout_millis=0, max_pending_messages=5000
    )
    consumer = client.subscribe(name, "sub", initial_position=EARLIEST)
    done = threading.Event()

    def unload() -> int:
        count = 0
        while count < 20:
            broker.admin("PUT", name.replace("://", "/") + "/unload")
            count += 1
            done.wait(0.1)
        return count

    with ThreadPoolExecutor(1) as pool:
        unloads = pool.submit(unload)
        sent = 0
        while sent < total or not unloads.done():
            api.send_all(producer, [b"%d" % number for number in range(sent, sent + 500)])
            sent += 500
        done.set()
        assert unloads.result(60) == 20
    assert values_of(broker.service_url, name) == [b"%d" % number for number in range(sent)]
    assert producer.is_connected() and nothing_pending(producer)
    assert consumer.receive(20_000).data() == b"0"


def with_close(command: pb.BaseCommand) -> Callable[[bytes], bytes]:
    """Return what puts a command of the broker right behind the first frame it is given, in the same piece."""
    left = [encode_command(command)]
    return lambda frame: frame + (left.pop() if left else b"")


@pytest.mark.proves("C190")
def test_an_unload_in_the_same_breath_as_the_welcome(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually
) -> None:
    name = topic()
    through = relay(broker.service_url)
    through.replace(
        Command.PRODUCER_SUCCESS,
        TO_CLIENT,
        with_close(
            pb.BaseCommand(
                type=pb.BaseCommand.CLOSE_PRODUCER,
                close_producer=pb.CommandCloseProducer(producer_id=0, request_id=2**64 - 1),
            )
        ),
    )
    through.replace(
        Command.SUCCESS,
        TO_CLIENT,
        with_close(
            pb.BaseCommand(
                type=pb.BaseCommand.CLOSE_CONSUMER,
                close_consumer=pb.CommandCloseConsumer(consumer_id=0, request_id=2**64 - 1),
            )
        ),
    )
    client = api.client(through.service_url, operation_timeout_seconds=10)
    consumer = client.subscribe(name, "sub")
    producer = client.create_producer(name)
    # A calling thread that reads its own response is done before the loop has read the close.
    eventually(lambda: (through.count(Command.PRODUCER), through.count(Command.SUBSCRIBE)) == (2, 2))
    assert api.enqueue(producer, b"x").result(10)[0] is Result.Ok
    assert consumer.receive(10_000).data() == b"x"


@pytest.mark.proves("C79")
@pytest.mark.parametrize("fault", ["cut", "reset", "in a frame", "drop", "refuse"])
def test_lost_connections_lose_no_message(
    api: Api, broker: Broker, relay: NewRelay, deduplicating: str, topic: NewTopic, fault: str
) -> None:
    name = topic(namespace=deduplicating)
    through = relay(broker.service_url)
    producer = api.client(through.service_url).create_producer(
        name, batching_enabled=True, batching_max_messages=20, send_timeout_millis=0
    )
    sent = 0
    for _ in range(5):
        if fault == "in a frame":
            through.cut_after(1500, TO_BROKER)
        elif fault == "drop":
            through.drop(Command.SEND_RECEIPT, TO_CLIENT)
            through.cut_after(4000, TO_BROKER)
        outcomes = [api.enqueue(producer, b"%d" % number) for number in range(sent, sent + 200)]
        sent += 200
        if fault in ("cut", "reset"):
            through.cut(reset=fault == "reset")
        elif fault == "refuse":
            through.refuse()
            through.cut()
            time.sleep(0.3)  # the broker is away for a while
            through.accept()
        elif fault == "drop":
            through.cut()
        assert {outcome.result(30)[0] for outcome in outcomes} == {Result.Ok}
    assert values_of(broker.service_url, name) == [b"%d" % number for number in range(sent)]
    assert nothing_pending(producer)


@pytest.mark.proves("C119")
@pytest.mark.parametrize("split", [True, False])
def test_lost_connections_while_consuming(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic, split: bool
) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=False, max_pending_messages=0)
    api.send_all(producer, [b"%d" % number for number in range(3000)])
    through = relay(broker.service_url)
    own = api.client(through.service_url)
    reader = own.create_reader(name, MessageId.earliest, receiver_queue_size=100)
    consumer = own.subscribe(name, "sub", initial_position=EARLIEST, receiver_queue_size=100)
    seen: set[int] = set()
    for number in range(3000):
        if number % 500 == 250:
            if split:
                through.cut_after(5000, TO_CLIENT)
            else:
                through.cut()
        assert int(reader.read_next(20_000).data()) == number
        message = consumer.receive(20_000)
        seen.add(int(message.data()))
        consumer.acknowledge(message)
    while len(seen) < 3000:
        message = consumer.receive(20_000)
        seen.add(int(message.data()))
        consumer.acknowledge(message)
    assert through.accepted > 5


@pytest.mark.proves("C67")
@pytest.mark.parametrize("batching", [False, True], ids=["single", "batch"])
def test_a_byte_damaged_on_the_way_is_sent_again(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, read_all: ReadAll, batching: bool
) -> None:
    name = topic()
    through = relay(broker.service_url)
    producer = api.client(through.service_url).create_producer(name, batching_enabled=batching, batching_max_messages=2)
    producer.send(b"0")
    through.corrupt(Command.SEND, TO_BROKER)
    producer.send(b"1")
    assert [message.data() for message in read_all(name)] == [b"0", b"1"]
    # Those on their way behind it are stored before it comes again: the protocol promises no order then.
    through.corrupt(Command.SEND, TO_BROKER)
    outcomes = [api.enqueue(producer, b"%d" % number) for number in range(2, 6)]
    assert {outcome.result(10)[0] for outcome in outcomes} == {Result.Ok}
    assert {message.data() for message in read_all(name)} == {b"%d" % number for number in range(6)}
    # Damaged here, before it left, no resend can help: it fails alone.
    before = through.count(Command.SEND, TO_BROKER)
    through.drop(Command.SEND, TO_BROKER)
    bad = [api.enqueue(producer, b"damaged") for _ in range(2 if batching else 1)]
    good = [api.enqueue(producer, b"good%d" % number) for number in range(3)]
    through.wait_for(Command.SEND, before + 1)
    op = inner(producer).children[0].core.queue.ops[0]
    op.parts = [*op.parts[:-1], bytes(op.parts[-1]).replace(b"damaged", b"dAmaged")]
    through.cut()
    assert {outcome.result(10)[0] for outcome in bad} == {Result.ChecksumError}
    assert {outcome.result(10)[0] for outcome in good} == {Result.Ok}
    assert b"dAmaged" not in [message.data() for message in read_all(name)] and nothing_pending(producer)


@pytest.mark.proves("C67")
@pytest.mark.parametrize("length", [1, 3], ids=["single", "batch"])
def test_a_damaged_message_that_deduplication_drops_is_an_error_and_not_stored(
    api: Api, broker: Broker, relay: NewRelay, deduplicating: str, topic: NewTopic, read_all: ReadAll, length: int
) -> None:
    name = topic(namespace=deduplicating)
    through = relay(broker.service_url)
    producer = api.client(through.service_url).create_producer(
        name, batching_enabled=length > 1, batching_max_messages=length
    )
    producer.send(b"0")
    through.corrupt(Command.SEND, TO_BROKER)
    outcomes = [api.enqueue(producer, b"%d" % number) for number in range(1, 40)]
    results = [outcome.result(20)[0] for outcome in outcomes]
    stored = [message.data() for message in read_all(name)]
    # Whether those behind it were stored before it came again is the broker's: never is one lost and told Ok.
    assert stored[0] == b"0" and len(set(stored)) == len(stored)
    for number, result in enumerate(results, 1):
        assert (b"%d" % number in stored) is (result is Result.Ok)
    assert set(results[length:]) == {Result.Ok} and results[0] in (Result.Ok, Result.ChecksumError)
    assert len(set(results[:length])) == 1
    producer.send(b"again")
    assert read_all(name)[-1].data() == b"again"


@pytest.mark.proves("C39", "C79")
def test_batch_over_a_policy_fails_alone(
    api: Api, broker: Broker, client: Any, topic: NewTopic, eventually: Eventually, read_all: ReadAll
) -> None:
    name = topic()
    single = client.create_producer(name, batching_enabled=False)
    broker.admin("POST", name.replace("://", "/") + "/maxMessageSize", 1000)
    eventually(lambda: api.enqueue(single, b"x" * 1001).result(10)[0] is Result.NotAllowedError)
    stored = len(read_all(name))
    # No time-out: what is neither confirmed nor refused would wait without a limit. Only flush() sends this batch.
    producer = client.create_producer(
        name,
        send_timeout_millis=0,
        batching_enabled=True,
        batching_max_messages=1000,
        batching_max_publish_delay_ms=60_000,
    )
    refused = [api.enqueue(producer, b"y" * 300) for _ in range(20)]
    with pytest.raises(NotAllowedError, match="Exceed maximum message size"):
        producer.flush()
    (after,) = api.send_all(producer, [b"next"])
    assert {each.result(10)[0] for each in refused} == {Result.NotAllowedError}
    assert [message.data() for message in read_all(name)[stored:]] == [b"next"]
    assert after.ledger_id() >= 0 and nothing_pending(producer)


@pytest.mark.proves("C124", "N5")
@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_damaged_entry_is_discarded_and_told(
    api: Api,
    broker: Broker,
    client: Any,
    relay: NewRelay,
    topic: NewTopic,
    stats: Stats,
    eventually: Eventually,
    domain: str,
) -> None:
    # Entries of persistent topics carry the broker's metadata in front of the checksum, the others never do.
    name = topic().replace("persistent", domain)
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(name, "sub", ConsumerType.Shared)
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    through.corrupt(Command.MESSAGE, TO_CLIENT)
    damaged = api.send_all(producer, [b"a", b"b", b"c"])
    (good,) = api.send_all(producer, [b"next"])
    message = consumer.receive(10_000)
    assert message.data() == b"next" and (message.index() is None) == (domain == "non-persistent")
    (told,) = consumer.discarded_message_ids()
    assert (told.ledger_id(), told.entry_id()) == (damaged[0].ledger_id(), damaged[0].entry_id())
    assert told.topic_name() == name
    if domain == "persistent":
        (frame,) = through.wait_for(Command.ACK)
        assert b"\x20\x02" in frame.data, "validation_error (field 4) = ChecksumMismatch (2)"
        consumer.acknowledge(message)
        eventually(lambda: stats(name)["subscriptions"]["sub"]["msgBacklog"] == 0)
        assert message.message_id() == good


def test_columns_never_pass_a_damaged_range_off_as_whole(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=False)
    api.send_all(producer, [b"%d" % number for number in range(5)])
    through = relay(broker.service_url)
    through.hold(Command.MESSAGE, TO_CLIENT, times=2)
    through.corrupt(Command.MESSAGE, TO_CLIENT)
    reader = api.client(through.service_url).create_reader(name, MessageId.earliest)
    through.wait_for(Command.MESSAGE, 5)
    with pytest.raises(ChecksumError):
        list(reader.arrow_batches(timeout_millis=5000))


@pytest.mark.proves("C21")
def test_the_memory_limit(api: Api, broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url, memory_limit_bytes=1024 * 1024)
    raising = client.create_producer(topic(), batching_enabled=False)
    blocking = client.create_producer(topic(), batching_enabled=False, block_if_queue_full=True)
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    piece = bytes(64 * 1024)
    outcomes = [api.enqueue(raising, piece) for _ in range(16)]
    with pytest.raises(MemoryBufferIsFull, match="1048576"):
        api.enqueue_refused(raising, piece)
    # The limit is the client's: its other producer waits too, and goes on with the first receipt.
    waiting: Future[Any] = Future()
    thread = threading.Thread(target=lambda: waiting.set_result(api.enqueue(blocking, piece).result(30)))
    thread.start()
    thread.join(0.3)
    assert not waiting.done()
    through.release()
    assert {outcome.result(10)[0] for outcome in outcomes} == {Result.Ok} and waiting.result(10)[0] is Result.Ok
    thread.join(10)
    assert nothing_pending(raising) and nothing_pending(blocking)


@pytest.mark.proves("C79")
def test_after_refusals_and_time_outs_nothing_is_counted_as_pending(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually
) -> None:
    through = relay(broker.service_url)
    producer = api.client(through.service_url).create_producer(
        topic(), batching_enabled=False, max_pending_messages=20, send_timeout_millis=400
    )
    for _ in range(3):
        through.hold(Command.SEND_RECEIPT, TO_CLIENT)
        outcomes = [api.enqueue(producer, b"x") for _ in range(20)]
        with pytest.raises(ProducerQueueIsFull):
            api.enqueue_refused(producer, b"x")
        assert {outcome.result(10)[0] for outcome in outcomes} == {Result.Timeout}
        assert nothing_pending(producer)
        through.release()
    assert len(api.send_all(producer, [b"y"] * 20)) == 20 and nothing_pending(producer)


@pytest.mark.proves("C4")
class TestOperationTimeout:
    """A broker that does not answer: every operation ends at the time-out."""

    SECONDS = 1.0

    @pytest.fixture
    def through(self, broker: Broker, relay: NewRelay) -> Relay:
        return relay(broker.service_url)

    @pytest.fixture
    def slow(self, api: Api, through: Relay) -> Any:
        return api.client(through.service_url, operation_timeout_seconds=self.SECONDS)

    def timed(self, call: Callable[[], Any], *, fails: bool = True) -> None:
        started = time.monotonic()
        if fails:
            with pytest.raises(Timeout):
                call()
        else:
            call()
        # Below the sum of two steps with a time-out each, and of the slow steps and one.
        assert 0.9 * self.SECONDS <= time.monotonic() - started <= 1.75 * self.SECONDS

    @pytest.mark.parametrize("answer", ["PARTITIONED_METADATA_RESPONSE", "LOOKUP_RESPONSE", "PRODUCER_SUCCESS"])
    def test_create_producer(self, slow: Any, through: Relay, topic: NewTopic, answer: str) -> None:
        through.drop(Command[answer], TO_CLIENT, times=None)
        self.timed(lambda: slow.create_producer(topic()))

    @pytest.mark.parametrize("answer", ["PARTITIONED_METADATA_RESPONSE", "LOOKUP_RESPONSE", "SUCCESS"])
    def test_subscribe(self, slow: Any, through: Relay, topic: NewTopic, answer: str) -> None:
        through.drop(Command[answer], TO_CLIENT, times=None)
        self.timed(lambda: slow.subscribe(topic(), "sub"))

    @pytest.mark.parametrize("step", ["create_producer", "subscribe"])
    def test_slow_steps_count_as_one_operation(self, slow: Any, through: Relay, topic: NewTopic, step: str) -> None:
        # The connection and the number of partitions take 0.8 of the time-out: the lookup gets only the rest.
        through.delay(0.4 * self.SECONDS)
        through.drop(Command.LOOKUP_RESPONSE, TO_CLIENT, times=None)
        self.timed(lambda: slow.create_producer(topic()) if step == "create_producer" else slow.subscribe(topic(), "s"))
        through.delay(0)

    def test_metadata_and_last_id(self, slow: Any, through: Relay, topic: NewTopic) -> None:
        name = topic()
        consumer = slow.subscribe(name, "sub")
        through.drop(Command.PARTITIONED_METADATA_RESPONSE, TO_CLIENT, times=None)
        through.drop(Command.GET_LAST_MESSAGE_ID_RESPONSE, TO_CLIENT, times=None)
        self.timed(lambda: slow.get_topic_partitions(name))
        self.timed(consumer.get_last_message_id)

    def test_seek_unsubscribe_and_close(self, slow: Any, through: Relay, topic: NewTopic) -> None:
        name = topic()
        first, second, third = (slow.subscribe(name, sub) for sub in ("1", "2", "3"))
        producer = slow.create_producer(name)
        through.drop(Command.SUCCESS, TO_CLIENT, times=None)
        self.timed(lambda: first.seek(MessageId.earliest))
        self.timed(second.unsubscribe)
        # The application is done with these: nothing is to be gained by raising.
        self.timed(third.close, fails=False)
        self.timed(producer.close, fails=False)


@pytest.mark.proves("C27")
def test_one_lost_answer_fails_one_request(api: Api, broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url, operation_timeout_seconds=1)
    consumers = [client.subscribe(topic(), "sub") for _ in range(3)]
    through.drop(Command.GET_LAST_MESSAGE_ID_RESPONSE, TO_CLIENT, times=1)
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(consumer.get_last_message_id) for consumer in consumers]
        errors = [answer.exception(10) for answer in answers]
    assert [type(error) for error in errors if error] == [Timeout] and errors.count(None) == 2
    assert all(consumer.is_connected() for consumer in consumers)


@pytest.mark.proves("C35")
def test_what_was_closed_in_an_outage_stays_away(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, stats: Stats, eventually: Eventually
) -> None:
    name = topic()
    through = relay(broker.service_url)
    client = api.client(through.service_url, operation_timeout_seconds=2)
    producer, consumer = client.create_producer(name), client.subscribe(name, "sub")
    other = client.create_producer(name, producer_name="stays")
    through.refuse()
    through.cut()
    eventually(lambda: not producer.is_connected() and not consumer.is_connected())
    producer.close()
    consumer.close()
    through.accept()
    eventually(other.is_connected)
    seen = through.count(Command.PRODUCER)
    other.send(b"x")
    assert [each["producerName"] for each in stats(name)["publishers"]] == ["stays"]
    assert stats(name)["subscriptions"]["sub"]["consumers"] == []
    assert through.count(Command.PRODUCER) == seen and through.count(Command.SUBSCRIBE) == 1


@pytest.mark.proves("C36")
def test_creation_waits_for_a_broker_that_is_late(api: Api, broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    through = relay(broker.service_url)
    through.refuse()
    late = threading.Timer(1.5, through.accept)
    late.start()
    client = api.client(through.service_url, operation_timeout_seconds=10)
    producer = client.create_producer(topic())
    late.join()
    through.refuse()
    through.cut()
    impatient = api.client(through.service_url, operation_timeout_seconds=1)
    started = time.monotonic()
    with pytest.raises(PulsarException) as caught:
        impatient.subscribe(topic(), "sub")
    assert 0.5 < time.monotonic() - started < 6
    assert caught.value.retryable and (caught.value.attempts or 0) > 1
    # What was established once comes back however long it took.
    outcome = api.enqueue(producer, b"patient")
    with pytest.raises(PulsarException):
        impatient.create_producer(topic())
    through.accept()
    assert outcome.result(20)[0] is Result.Ok


@pytest.mark.parametrize("how", ["stall", "half open"])
def test_a_silent_connection_is_closed_and_made_again(
    api: Api, broker: Broker, relay: NewRelay, topic: NewTopic, eventually: Eventually, how: str
) -> None:
    through = relay(broker.service_url)
    client = api.client(through.service_url, keep_alive_interval_seconds=0.4)
    producer = client.create_producer(topic())
    through.wait_for(Command.PONG, 2)
    assert through.accepted == 1 or producer.is_connected(), "a broker that answers keeps its connections"
    connections = through.accepted
    if how == "stall":
        through.stall(TO_CLIENT)
    else:
        through.half_open()
    eventually(lambda: through.accepted > connections, 10)
    through.resume()
    assert api.enqueue(producer, b"back").result(20)[0] is Result.Ok


def test_a_broker_that_hangs_holds_no_sender(api: Api, broker: Broker, relay: NewRelay, topic: NewTopic) -> None:
    through = relay(broker.service_url)
    producer = api.client(through.service_url).create_producer(
        topic(), send_timeout_millis=4000, batching_enabled=False
    )
    through.stall(TO_BROKER)
    started = time.monotonic()
    # More than the sockets' buffers hold on the way.
    outcomes = [api.enqueue(producer, bytes(1024 * 1024)) for _ in range(40)]
    assert time.monotonic() - started < 3
    assert {outcome.result(10)[0] for outcome in outcomes} == {Result.Timeout}
    through.resume()
