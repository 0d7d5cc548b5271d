"""Dead letters on a real broker: when a message becomes one, what it says of itself, and what failures do to it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pulsar as official
import pytest

from pulsar_native import (
    CompressionType,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    Message,
    Timeout,
    TopicNotFound,
)
from pulsar_native.admin import AdminClient
from pulsar_native.schema import (
    InvalidRecord,
    JsonSchema,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    Record,
    String,
    StringSchema,
)
from support.apis import Api
from support.brokers import Broker, NewTopic
from support.raw import commands_of
from support.relay import TO_CLIENT, Command, NewRelay

Eventually = Callable[..., Any]
Stats = Callable[[str], Any]
ReadAll = Callable[..., list[Message]]

EARLIEST = InitialPosition.Earliest
SHARED = {"consumer_type": ConsumerType.Shared, "initial_position": EARLIEST, "negative_ack_redelivery_delay_ms": 100}


def refuse(consumer: Any, count: int) -> list[Message]:
    """Receive so many messages, refuse them, and return them."""
    messages = [consumer.receive(15_000) for _ in range(count)]
    for message in messages:
        consumer.negative_acknowledge(message)
    return messages


def nothing_comes(consumer: Any, wait_ms: int = 500) -> bool:
    try:
        consumer.receive(wait_ms)
    except Timeout:
        return True
    return False


def letters(client: Any, name: str, count: int) -> list[Message]:
    """Return the letters of a topic, and make sure that there is none more."""
    with_first = client.subscribe(name, "letters", initial_position=EARLIEST)
    received = [with_first.receive(15_000) for _ in range(count)]
    assert nothing_comes(with_first, 300)
    with_first.close()
    return received


@pytest.mark.proves("C149")
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_after_the_last_redelivery_a_message_goes_to_the_dead_letter_topic_once(
    client: Any, topic: NewTopic, kind: ConsumerType, backlog: Callable[[str], int], eventually: Eventually
) -> None:
    name = topic()
    producer = client.create_producer(name)
    producer.send(b"bad")
    options = {**SHARED, "consumer_type": kind}
    consumer = client.subscribe(name, "sub", **options, dead_letter_policy=ConsumerDeadLetterPolicy(2))
    counts = [refuse(consumer, 1)[0].redelivery_count() for _ in range(3)]
    assert counts == [0, 1, 2]
    producer.send(b"good")
    assert consumer.receive(15_000).data() == b"good"
    assert nothing_comes(consumer)
    (letter,) = letters(client, f"{name}-sub-DLQ", 1)
    assert letter.data() == b"bad"
    eventually(lambda: backlog(name) == 1)  # the good one


@pytest.mark.parametrize("by_index", [False, True], ids=["by-entry", "by-index"])
def test_dead_letter_count_restarts_in_acked_batch(api: Api, client: Any, topic: NewTopic, by_index: bool) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    api.send_all(producer, [b"bad", *(b"%d" % number for number in range(4))])
    consumer = client.subscribe(
        name, "sub", **SHARED, dead_letter_policy=ConsumerDeadLetterPolicy(2), batch_index_ack_enabled=by_index,
        acknowledgment_group_time_ms=0,
    )  # fmt: skip
    counts = []
    # The first message is refused each time, and one of the others acknowledged.
    for others in range(4, -1, -1):
        bad, *rest = [consumer.receive(15_000) for _ in range(1 + others)]
        assert bad.data() == b"bad"
        counts.append(bad.redelivery_count())
        if rest:
            consumer.acknowledge(rest[0])
        consumer.negative_acknowledge(bad)
        if counts[-1] == 2:
            break
    # The count of an entry starts again with each acknowledgement of a part of it (docs/broker-behaviour.md).
    assert counts == ([0, 1, 1, 1, 1] if by_index else [0, 1, 2])
    if by_index:
        assert refuse(consumer, 1)[0].redelivery_count() == 2
    # Without, the last of the others goes with it: what was not acknowledged of the entry.
    dead = [b"bad"] if by_index else [b"bad", b"3"]
    assert [letter.data() for letter in letters(client, f"{name}-sub-DLQ", len(dead))] == dead


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover], ids=lambda kind: kind.name)
def test_dead_letter_policy_uncounted_types_warn(
    client: Any, topic: NewTopic, kind: ConsumerType, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    client.create_producer(name).send(b"bad")
    options = {**SHARED, "consumer_type": kind}
    consumer = client.subscribe(name, "sub", **options, dead_letter_policy=ConsumerDeadLetterPolicy(1))
    assert [refuse(consumer, 1)[0].redelivery_count() for _ in range(5)] == [0] * 5
    with pytest.raises(TopicNotFound):
        AdminClient(broker.admin_url).partitions(f"{name}-sub-DLQ")
    assert caplog.text.count("dead_letter_policy has no effect on the subscription 'sub'") == 1
    retried = client.subscribe(
        name, "retried", **options, dead_letter_policy=ConsumerDeadLetterPolicy(1), enable_retry=True
    )
    for _ in range(2):
        retried.reconsume_later(retried.receive(15_000), 0)
    (letter,) = letters(client, f"{name}-retried-DLQ", 1)
    assert letter.data() == b"bad" and caplog.text.count("has no effect") == 1


@pytest.mark.proves("C149")
def test_of_a_batch_only_what_is_still_open_becomes_a_dead_letter(
    api: Api, client: Any, topic: NewTopic, backlog: Callable[[str], int], eventually: Eventually
) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    api.send_all(producer, [b"%d" % number for number in range(6)], partition_key="key")
    consumer = client.subscribe(name, "sub", **SHARED, dead_letter_policy=ConsumerDeadLetterPolicy(1))
    first = refuse(consumer, 6)
    consumer.acknowledge([first[0], first[5]])
    second = [consumer.receive(15_000) for _ in range(4)]
    consumer.acknowledge(second[1])
    consumer.negative_acknowledge(second[0])
    received = letters(client, f"{name}-sub-DLQ", 3)
    assert sorted(letter.data() for letter in received) == [b"1", b"3", b"4"]
    origins = {letter.data(): letter.properties()["ORIGIN_MESSAGE_ID"].split(":")[3] for letter in received}
    assert origins == {b"1": "1", b"3": "3", b"4": "4"}
    eventually(lambda: backlog(name) == 0)


@pytest.mark.proves("C149", "C158")
def test_a_time_out_counts_like_a_refusal_and_each_partition_asks_for_its_own(
    api: Api, broker: Broker, client: Any, relay: NewRelay, topic: NewTopic
) -> None:
    name = topic(partitions=2)
    producer = client.create_producer(name, batching_enabled=False)
    ids = api.send_all(producer, [b"%d" % number for number in range(4)])
    assert {place.partition() for place in ids} == {0, 1}
    through = relay(broker.service_url)
    consumer = api.client(through.service_url).subscribe(
        name, "sub", ConsumerType.Shared, initial_position=EARLIEST, unacked_messages_timeout_ms=1000,
        unacked_messages_tick_ms=500, dead_letter_policy=ConsumerDeadLetterPolicy(1, f"{name}-dead"),
    )  # fmt: skip
    for count in (0, 1):
        messages = [consumer.receive(15_000) for _ in range(4)]
        assert [message.redelivery_count() for message in messages] == [count] * 4
    received = letters(client, f"{name}-dead", 4)
    assert sorted(letter.data() for letter in received) == [b"0", b"1", b"2", b"3"]
    requests = [
        each.redeliverUnacknowledgedMessages for each in commands_of(through, Command.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    ]
    own = [{(p.ledger_id(), p.entry_id()) for p in ids if p.partition() == partition} for partition in (0, 1)]
    # Each partition asked for its own, and once: the second time they went to the dead-letter topic.
    asked: dict[int, list[tuple[int, int]]] = {}
    for request in requests:
        asked.setdefault(request.consumer_id, []).extend((each.ledgerId, each.entryId) for each in request.message_ids)
    assert sorted(map(sorted, asked.values())) == sorted(map(sorted, own))


@pytest.mark.proves("C106", "C150")
def test_a_dead_letter_keeps_what_the_message_had_and_says_where_it_came_from(
    api: Api, client: Any, broker: Broker, topic: NewTopic, stats: Stats
) -> None:
    name = topic()
    dead = f"{name}-dead"
    producer = client.create_producer(name)
    place = producer.send(
        b"\x00\xff", properties={"own": "1"}, partition_key=b"\x01\x02", ordering_key="order", event_timestamp=77
    )
    null = producer.send(None, partition_key="gone")
    policy = DeadLetterPolicy(
        max_redeliver_count=1,
        dead_letter_topic=dead,
        initial_subscription_name="first",
        dead_letter_producer_options={"compression_type": CompressionType.ZLib, "properties": {"made-by": "policy"}},
    )
    consumer = client.subscribe(name, "sub", **SHARED, consumer_name="me", dead_letter_policy=policy)
    for _ in range(2):
        refuse(consumer, 2)
    # The first subscription was made with the topic: it has both letters, though nobody was there to read them.
    reading = client.subscribe(dead, "first")
    got = sorted((reading.receive(15_000) for _ in range(2)), key=lambda message: message.has_null_value())
    letter, tombstone = got
    assert letter.data() == b"\x00\xff" and letter.key_bytes() == b"\x01\x02" and letter.has_base64_encoded_key()
    assert (letter.ordering_key(), letter.event_timestamp()) == ("order", 77)
    origin = f"{place.ledger_id()}:{place.entry_id()}:-1"
    assert letter.properties() == {
        "own": "1",
        "REAL_TOPIC": name,
        "REAL_SUBSCRIPTION": "sub",
        "ORIGIN_MESSAGE_ID": origin,
        "ORIGIN_MESSAGE_IDY_TIME": origin,
    }
    assert re.fullmatch(re.escape(f"{name}-sub-me-") + "[A-Za-z0-9]{5}-DLQ", letter.producer_name())
    assert tombstone.has_null_value() and tombstone.partition_key() == "gone" and not tombstone.has_base64_encoded_key()
    assert tombstone.properties()["ORIGIN_MESSAGE_ID"] == f"{null.ledger_id()}:{null.entry_id()}:-1"
    (publisher,) = stats(dead)["publishers"]
    assert publisher["metadata"] == {"made-by": "policy"}


@pytest.mark.proves("C150")
def test_the_official_client_reads_our_dead_letters_and_names_its_own_alike(
    client: Any, broker: Broker, topic: NewTopic
) -> None:
    name = topic(partitions=2)
    client.create_producer(name).send(b"x", partition_key="key", properties={"own": "1"})
    peer = official.Client(broker.service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
    ours = client.subscribe(name, "ours", **SHARED, dead_letter_policy=ConsumerDeadLetterPolicy(1))
    theirs = peer.subscribe(
        name, "theirs", official.ConsumerType.Shared, initial_position=official.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100, dead_letter_policy=official.ConsumerDeadLetterPolicy(1),
    )  # fmt: skip
    for _ in range(2):
        partition = refuse(ours, 1)[0].topic_name()
        refuse(theirs, 1)
    found = []
    for subscription in ("ours", "theirs"):
        reader = peer.create_reader(f"{partition}-{subscription}-DLQ", official.MessageId.earliest)
        letter = reader.read_next(15_000)
        found.append((letter.data(), letter.partition_key(), letter.properties()["REAL_TOPIC"]))
        reader.close()
    assert found == [(b"x", "key", partition)] * 2
    peer.close()


class Reading(Record):  # type: ignore[misc]
    sensor = String(required=True)


class Wider(Record):  # type: ignore[misc]
    sensor = String(required=True)
    unit = String(default=None, required_default=True)


Wider.__name__ = "Reading"  # the same record, grown


@pytest.mark.proves("C150")
def test_what_does_not_fit_its_schema_becomes_a_dead_letter_with_that_schema(
    client: Any, broker: Broker, topic: NewTopic
) -> None:
    name = topic()
    client.create_producer(name, schema=JsonSchema(Reading)).send(Reading(sensor="a"))

    class Broken(JsonSchema):
        def encode(self, obj: Any) -> bytes:
            return b"{not json"

    client.create_producer(name, schema=Broken(Reading)).send(Reading(sensor="b"))
    client.create_producer(name, schema=JsonSchema(Wider)).send(Wider(sensor="c", unit="K"))
    consumer = client.subscribe(
        name, "sub", **SHARED, schema=JsonSchema(Wider), dead_letter_policy=ConsumerDeadLetterPolicy(1)
    )
    refused = 0
    while refused < 4:
        message = consumer.receive(15_000)
        try:
            value = message.value()
        except InvalidRecord:
            consumer.negative_acknowledge(message)
            refused += 1
            continue
        if value.sensor == "c":
            consumer.negative_acknowledge(message)
            refused += 1
        else:
            consumer.acknowledge(message)
    dead = f"{name}-sub-DLQ"
    received = letters(client, dead, 2)
    broken, wider = sorted(received, key=lambda letter: letter.data() != b"{not json")
    assert broken.data() == b"{not json" and json.loads(wider.data()) == {"sensor": "c", "unit": "K"}
    # Each has the schema it was written with, by the dead-letter topic's own count of versions.
    path = dead.replace("persistent://", "schemas/") + "/schemas"
    known = {
        each["version"]: len(json.loads(each["data"])["fields"])
        for each in broker.admin("GET", path)["getSchemaResponses"]
    }
    assert (known[broken.int_schema_version()], known[wider.int_schema_version()]) == (1, 2)


@pytest.mark.proves("C149", "C150")
def test_a_message_in_chunks_becomes_one_dead_letter(
    client: Any, topic: NewTopic, backlog: Callable[[str], int], eventually: Eventually
) -> None:
    name = topic()
    content = bytes(range(256)) * 400
    producer = client.create_producer(
        name, batching_enabled=False, chunking_enabled=True, chunk_max_message_size=30_000
    )
    place = producer.send(content)
    policy = ConsumerDeadLetterPolicy(1, dead_letter_producer_options={"chunk_max_message_size": 40_000})
    consumer = client.subscribe(name, "sub", **SHARED, dead_letter_policy=policy)
    for _ in range(2):
        refuse(consumer, 1)
    (letter,) = letters(client, f"{name}-sub-DLQ", 1)
    assert letter.data() == content and letter.message_id().first_chunk_message_id() is not None
    first = place.first_chunk_message_id()
    origin = f"{first.ledger_id()}:{first.entry_id()}:-1;{place.ledger_id()}:{place.entry_id()}:-1"
    assert letter.properties()["ORIGIN_MESSAGE_ID"] == origin
    eventually(lambda: backlog(name) == 0)


@pytest.mark.proves("C150")
def test_pairs_keep_their_separated_keys_null_ones_too(client: Any, topic: NewTopic) -> None:
    name = topic()
    pairs = KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)
    producer = client.create_producer(name, schema=pairs, batching_enabled=False)
    sent = [KeyValue("k", "v"), KeyValue(None, "v"), KeyValue("k", None)]
    for pair in sent:
        producer.send(pair)
    consumer = client.subscribe(name, "sub", **SHARED, schema=pairs, dead_letter_policy=ConsumerDeadLetterPolicy(1))
    for _ in range(2):
        refuse(consumer, 3)
    reading = client.subscribe(f"{name}-sub-DLQ", "letters", initial_position=EARLIEST, schema=pairs)
    received = [reading.receive(15_000).value() for _ in sent]
    assert sorted(received, key=str) == sorted(sent, key=str)


@pytest.mark.proves("C149")
def test_while_the_dead_letter_topic_refuses_the_message_is_redelivered(
    client: Any, broker: Broker, topic: NewTopic, backlog: Callable[[str], int], eventually: Eventually
) -> None:
    name = topic()
    dead = topic()
    broker.admin("PUT", dead.replace("://", "/"))
    broker.admin("POST", dead.replace("://", "/") + "/terminate")
    client.create_producer(name).send(b"bad")
    consumer = client.subscribe(name, "sub", **SHARED, dead_letter_policy=ConsumerDeadLetterPolicy(1, dead))
    for _ in range(2):
        refuse(consumer, 1)
    # Again and again it is tried; the message stays in the subscription meanwhile, and away from the application.
    assert nothing_comes(consumer, 1000)
    assert backlog(name) == 1
    broker.admin("DELETE", dead.replace("://", "/"))
    eventually(lambda: nothing_comes(consumer, 200) and backlog(name) == 0)
    assert [letter.data() for letter in letters(client, dead, 1)] == [b"bad"]


@pytest.mark.proves("C152")
def test_an_unload_with_remembered_messages_sends_no_dead_letter_twice(
    client: Any, broker: Broker, topic: NewTopic, backlog: Callable[[str], int], eventually: Eventually
) -> None:
    name = topic()
    producer = client.create_producer(name, batching_enabled=False)
    for number in range(3):
        producer.send(b"%d" % number)
    policy = ConsumerDeadLetterPolicy(1)
    consumer = client.subscribe(name, "sub", **SHARED, dead_letter_policy=policy)
    refuse(consumer, 3)
    remembered = [consumer.receive(15_000) for _ in range(3)]
    assert [message.redelivery_count() for message in remembered] == [1, 1, 1]
    broker.admin("PUT", name.replace("://", "/") + "/unload")
    # The broker begins to count anew, as nobody was left on the subscription; so do we.
    again = [consumer.receive(15_000) for _ in range(3)]
    assert [message.redelivery_count() for message in again] == [0, 0, 0]
    for message in again:
        consumer.negative_acknowledge(message)
    refuse(consumer, 3)
    received = letters(client, f"{name}-sub-DLQ", 3)
    assert sorted(letter.data() for letter in received) == [b"0", b"1", b"2"]
    eventually(lambda: backlog(name) == 0)


@pytest.mark.proves("C152")
def test_a_connection_lost_while_a_letter_is_on_its_way_sends_it_once(
    api: Api, client: Any, broker: Broker, relay: NewRelay, namespace: Callable[[], str],
    backlog: Callable[[str], int], eventually: Eventually,
) -> None:  # fmt: skip
    space = namespace()
    # So that the producer's resending makes no second one.
    broker.admin("POST", f"namespaces/{space}/deduplication", True)
    name = f"persistent://{space}/orders"
    client.create_producer(name).send(b"bad")
    through = relay(broker.service_url)
    consumer = api.client(through.service_url, starting_backoff_interval_ms=20).subscribe(
        name, "sub", **SHARED, dead_letter_policy=ConsumerDeadLetterPolicy(1)
    )
    through.hold(Command.SEND_RECEIPT, TO_CLIENT)
    for _ in range(2):
        refuse(consumer, 1)
    through.wait_for(Command.SEND_RECEIPT)
    # The letter is stored, and we do not know it yet. What the broker delivers again meanwhile is dropped.
    through.cut()
    through.wait_for(Command.MESSAGE, 3)
    through.release()
    assert [letter.data() for letter in letters(client, f"{name}-sub-DLQ", 1)] == [b"bad"]
    eventually(lambda: backlog(name) == 0)
    assert nothing_comes(consumer)
