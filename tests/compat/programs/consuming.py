"""Consumers: receiving, acknowledging, redelivery, several topics."""

from __future__ import annotations

import re
import threading
import time
from types import ModuleType
from typing import Any

from compat.program import Env, Observed, program, text


@program()
def attributes(pulsar: ModuleType, env: Env) -> Observed:
    topic = env.topic()
    consumer = env.client().subscribe(topic, "sub", consumer_name="me")
    unnamed = env.client().subscribe(topic, "other")
    return {
        "topic": env.short(consumer.topic()),
        "subscription": consumer.subscription_name(),
        "name": consumer.consumer_name(),
        "made name": len(unnamed.consumer_name()) > 0,
        "connected": consumer.is_connected(),
        "true": bool(consumer),
    }


@program()
def receive_times_out(pulsar: ModuleType, env: Env) -> Observed:
    consumer = env.client().subscribe(env.topic(), "sub")
    began = time.monotonic()
    error = env.error(lambda: consumer.receive(200))
    return {"error": error, "time": 0.15 < time.monotonic() - began < 3}


@program()
def receive_true(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    for content in (b"x", b""):
        producer.send(content)
    return {"true": [bool(each) for each in env.drain(consumer, 2)]}


@program()
def acknowledge_by_message_and_id(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, _ = env.filled(0)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    for number in range(4):
        producer.send(b"%d" % number)
    messages = env.drain(consumer, 4)
    answers = [
        consumer.acknowledge(messages[0]),
        consumer.acknowledge(messages[1].message_id()),
        consumer.acknowledge(pulsar.MessageId.deserialize(messages[2].message_id().serialize())),
        consumer.acknowledge(pulsar.MessageId.wrap(messages[0].message_id())),
    ]
    consumer.close()
    again = client.subscribe(topic, "sub")
    return {"answers": answers, "left": env.more(again, 1)}


@program()
def acknowledge_cumulative(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, _ = env.filled()
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    messages = env.drain(consumer, 5)
    answer = consumer.acknowledge_cumulative(messages[2])
    consumer.close()
    return {"answer": answer, "left": env.more(client.subscribe(topic, "sub"), 2)}


@program(cases={"shared": ("Shared",), "key shared": ("KeyShared",)})
def acknowledge_cumulative_refused(pulsar: ModuleType, env: Env, kind: str) -> Observed:
    client, topic, _ = env.filled(1)
    consumer = client.subscribe(
        topic, "sub", getattr(pulsar.ConsumerType, kind), initial_position=pulsar.InitialPosition.Earliest
    )
    message = consumer.receive(10_000)
    return {
        "message": env.error(lambda: consumer.acknowledge_cumulative(message)),
        "id": env.error(lambda: consumer.acknowledge_cumulative(message.message_id())),
    }


@program()
def acknowledge_part_of_a_batch(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.batch()
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    messages = env.drain(consumer, 5)
    for number in (0, 2):
        consumer.acknowledge(messages[number])
    consumer.close()
    return {"again": env.more(client.subscribe(topic, "sub"), 5)}


@program()
def acknowledge_part_with_indexes(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.batch()
    consumer = client.subscribe(
        topic, "sub", initial_position=pulsar.InitialPosition.Earliest, batch_index_ack_enabled=True
    )
    messages = env.drain(consumer, 5)
    for number in (0, 2):
        consumer.acknowledge(messages[number])
    consumer.close()
    return {"again": env.more(client.subscribe(topic, "sub", batch_index_ack_enabled=True), 3)}


@program()
def negative_acknowledge(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, _ = env.filled(3)
    consumer = client.subscribe(
        topic, "sub", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
    )  # fmt: skip
    messages = env.drain(consumer, 3)
    answer = consumer.negative_acknowledge(messages[1])
    consumer.negative_acknowledge(messages[2].message_id())
    again = env.drain(consumer, 2)
    return {
        "answer": answer,
        "again": sorted(text(each.data()) or "" for each in again),
        "counts": [each.redelivery_count() for each in again],
    }


@program()
def negative_acknowledge_one_of_a_batch(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.batch()
    consumer = client.subscribe(
        topic, "sub", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
    )  # fmt: skip
    messages = env.drain(consumer, 5)
    consumer.negative_acknowledge(messages[2])
    return {"again": env.more(consumer, 5)}


@program()
def redeliver_all(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, _ = env.filled(3)
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    messages = env.drain(consumer, 3)
    consumer.acknowledge(messages[0])
    answer = consumer.redeliver_unacknowledged_messages()
    return {"answer": answer, "again": env.more(consumer, 2)}


@program(seconds=40)
def unacked_time_out(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, _ = env.filled(1)
    consumer = client.subscribe(
        topic, "sub", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest,
        unacked_messages_timeout_ms=10_000,
    )  # fmt: skip
    consumer.receive(5000)
    began = time.monotonic()
    again = consumer.receive(20_000)
    return {"count": again.redelivery_count(), "late": time.monotonic() - began > 8}


@program()
def unsubscribe(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, _ = env.filled(1)
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    answer = consumer.unsubscribe()
    return {
        "answer": answer,
        "receive": env.error(lambda: consumer.receive(100)),
        "again": env.error(consumer.unsubscribe),
        "close": env.error(consumer.close),
        "gone": "sub" not in env.admin("GET", topic.replace("://", "/") + "/stats")["subscriptions"],
    }


@program()
def busy_subscription(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    first = client.subscribe(topic, "sub")
    second = env.error(lambda: client.subscribe(topic, "sub"))
    other = env.error(lambda: client.subscribe(topic, "sub", pulsar.ConsumerType.Shared))
    first.close()
    return {"second": second, "other type": other, "after": env.error(lambda: client.subscribe(topic, "sub"))}


@program()
def several_topics(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client()
    topics = [env.topic("a"), env.topic("b")]
    consumer = client.subscribe(topics, "sub")
    sent = [client.create_producer(topic).send(topic[-1].encode()) for topic in topics]
    messages = env.drain(consumer, 2)
    stored = [(each.message_id().serialize(), each.topic_name()) for each in messages]
    named = pulsar.MessageId.deserialize(stored[0][0], topic=stored[0][1])
    return {
        "contents": sorted(text(each.data()) or "" for each in messages),
        "topics": sorted(env.short(each.topic_name()) for each in messages),
        "subscription": consumer.subscription_name(),
        "connected": consumer.is_connected(),
        "without topic": env.error(lambda: consumer.acknowledge(pulsar.MessageId.deserialize(stored[0][0]))),
        "cumulative": env.error(lambda: consumer.acknowledge_cumulative(pulsar.MessageId.deserialize(stored[0][0]))),
        "with topic": env.error(lambda: consumer.acknowledge(named)),
        "other topic": env.error(
            lambda: consumer.acknowledge(pulsar.MessageId.deserialize(stored[0][0], topic="persistent://a/b/c"))
        ),
        "last": env.error(consumer.get_last_message_id),
        "message": env.error(lambda: consumer.acknowledge(messages[1])),
        "sent": env.error(lambda: consumer.acknowledge(sent[0])),
        "left": env.more(client.subscribe(topics[0], "other")),
    }


@program()
def several_topics_name(pulsar: ModuleType, env: Env) -> Observed:
    consumer = env.client().subscribe([env.topic("a"), env.topic("b")], "sub", consumer_name="me")
    return {"topic": env.short(consumer.topic()), "name": consumer.consumer_name()}


@program()
def several_topics_without_messages(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client()
    return {
        "none": env.error(lambda: client.subscribe([], "sub").close()),
        "same twice": env.error(lambda: client.subscribe([env.topic(), env.topic()], "sub").close()),
    }


@program()
def pattern(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client()
    names = [env.topic(each) for each in ("one", "two", "xone")]
    for name in names:
        client.create_producer(name).send(name.rsplit("-", 1)[1].encode())
    shared = names[0].rsplit("-", 1)[0]
    consumer = client.subscribe(
        re.compile(f"{shared}-(one|two)"), "sub", initial_position=pulsar.InitialPosition.Earliest,
        pattern_auto_discovery_period=1,
    )  # fmt: skip
    first = sorted(text(each.data()) or "" for each in env.drain(consumer, 2))
    return {
        "first": first,
        "topic": env.short(consumer.topic()),
        "more": env.more(consumer),
        "name": consumer.subscription_name(),
    }


@program()
def pattern_of_modes(pulsar: ModuleType, env: Env) -> Observed:
    client, name = env.client(), env.topic()
    client.create_producer(name).send(b"persistent")
    found = {}
    for mode in ("PersistentOnly", "AllTopics"):
        consumer = client.subscribe(
            re.compile(name), f"sub-{mode}", initial_position=pulsar.InitialPosition.Earliest,
            regex_subscription_mode=getattr(pulsar.RegexSubscriptionMode, mode),
        )  # fmt: skip
        found[mode] = env.more(consumer, 1)
    return found


@program()
def shared_consumers(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    shared = [client.subscribe(topic, "sub", pulsar.ConsumerType.Shared, receiver_queue_size=1) for _ in range(2)]
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(b"%d" % number)
    parts = [env.more(each, 1) for each in shared]
    return {"all": sorted(parts[0] + parts[1]), "both": all(parts)}


@program()
def key_shared_consumers(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    sticky = pulsar.KeySharedMode.Sticky
    halves = [
        client.subscribe(
            topic, "sub", pulsar.ConsumerType.KeyShared,
            key_shared_policy=pulsar.ConsumerKeySharedPolicy(sticky, sticky_ranges=[each]),
        )
        for each in ((0, 32767), (32768, 65535))
    ]  # fmt: skip
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number, partition_key=str(number))
    return {"parts": [env.more(each, 8) for each in halves]}


@program()
def failover_consumers(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    kind = pulsar.ConsumerType.Failover
    first = client.subscribe(topic, "sub", kind, consumer_name="a")
    second = client.subscribe(topic, "sub", kind, consumer_name="b")
    time.sleep(1.5)
    client.create_producer(topic).send(b"x")
    parts = [env.more(each, timeout_millis=3000) for each in (first, second)]
    return {"one of them": sorted(len(each) for each in parts)}


@program()
def no_queue(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", receiver_queue_size=0)
    producer = client.create_producer(topic)
    producer.send(b"a")
    got = text(consumer.receive().data())
    return {"received": got, "with time-out": env.error(lambda: consumer.receive(200))}


@program()
def no_queue_over_partitions(pulsar: ModuleType, env: Env) -> Observed:
    topic = env.topic(partitions=2)
    return {"error": env.error(lambda: env.client().subscribe(topic, "sub", receiver_queue_size=0))}


@program()
def initial_positions(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, _ = env.filled(2)
    positions = pulsar.InitialPosition
    return {
        name: env.more(client.subscribe(topic, name, initial_position=getattr(positions, name)), least)
        for name, least in (("Earliest", 2), ("Latest", 0))
    }


@program()
def compacted(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    client.create_producer(topic).send(b"x", partition_key="k")
    made = env.error(lambda: client.subscribe(topic, "sub", is_read_compacted=True))
    refused = env.error(lambda: client.subscribe(topic, "shared", pulsar.ConsumerType.Shared, is_read_compacted=True))
    return {"made": made, "shared": refused}


@program()
def closed_consumer(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, ids = env.filled(2)
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    message = consumer.receive(10_000)
    consumer.close()
    calls = {
        "receive": lambda: consumer.receive(100), "receive for ever": consumer.receive,
        "batch": consumer.batch_receive, "acknowledge": lambda: consumer.acknowledge(message),
        "acknowledge id": lambda: consumer.acknowledge(ids[1]),
        "cumulative": lambda: consumer.acknowledge_cumulative(message),
        "negative": lambda: consumer.negative_acknowledge(message), "seek": lambda: consumer.seek(ids[0]),
        "redeliver": consumer.redeliver_unacknowledged_messages, "unsubscribe": consumer.unsubscribe,
        "last": consumer.get_last_message_id, "pause": consumer.pause_message_listener,
        "topic": consumer.topic, "subscription": consumer.subscription_name, "name": consumer.consumer_name,
        "connected": consumer.is_connected, "data": message.data, "id": message.message_id, "value": message.value,
    }  # fmt: skip
    return {label: env.error(call) for label, call in calls.items()} | {"is": consumer.is_connected()}


@program()
def closed_while_receiving(pulsar: ModuleType, env: Env) -> Observed:
    consumer = env.client().subscribe(env.topic(), "sub")
    errors: list[Any] = []
    thread = threading.Thread(target=lambda: errors.append(env.error(consumer.receive)))
    thread.start()
    time.sleep(0.2)
    consumer.close()
    thread.join(5)
    return {"error": errors, "ended": not thread.is_alive()}


@program()
def message_outlives_the_client(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, _ = env.filled(1)
    message = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest).receive(10_000)
    client.close()
    return {"data": text(message.data()), "entry": message.message_id().entry_id()}


@program()
def stored_ids_of_partitions(pulsar: ModuleType, env: Env) -> Observed:
    """An id that was stored has no topic; given to a consumer of one topic with partitions."""
    client, topic = env.client(), env.topic(partitions=2)
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    for number in range(4):
        producer.send(b"%d" % number)
    messages = env.drain(consumer, 4)
    load = pulsar.MessageId.deserialize
    stored = [each.message_id().serialize() for each in messages]
    last = messages[3].message_id()
    made = pulsar.MessageId(last.partition(), last.ledger_id(), last.entry_id(), last.batch_index())
    return {
        "stored": env.error(lambda: consumer.acknowledge(load(stored[0]))),
        "partition": env.error(lambda: consumer.acknowledge(load(stored[0], topic=messages[0].topic_name()))),
        "made": env.error(lambda: consumer.acknowledge(made)),
        "negative": env.error(lambda: consumer.negative_acknowledge(load(stored[2]))),
        "last": env.error(consumer.get_last_message_id),
    }


@program()
def stored_ids_of_a_pattern(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    client.create_producer(topic).send(b"x")
    consumer = client.subscribe(
        re.compile(topic + ".*"), "sub", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100,
        initial_position=pulsar.InitialPosition.Earliest,
    )  # fmt: skip
    message = consumer.receive(10_000)
    stored = pulsar.MessageId.deserialize(message.message_id().serialize())
    return {
        "acknowledge": env.error(lambda: consumer.acknowledge(stored)),
        "negative": env.error(lambda: consumer.negative_acknowledge(stored)),
        "again": env.more(consumer, timeout_millis=1000),
        "negative message": env.error(lambda: consumer.negative_acknowledge(message)),
        "again after that": env.more(consumer, timeout_millis=1000),
        "seek": env.error(lambda: consumer.seek(stored)),
        "unsubscribe": env.error(consumer.unsubscribe),
    }


@program()
def partitions_of_one_consumer(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic(partitions=3)
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    for number in range(6):
        producer.send(b"%d" % number)
    messages = env.drain(consumer, 6)
    return {
        "topic": env.short(consumer.topic()),
        "names": sorted({env.short(each.topic_name()) for each in messages}),
        "cumulative": env.error(lambda: consumer.acknowledge_cumulative(messages[5])),
        "connected": consumer.is_connected(),
        "redeliver": env.error(consumer.redeliver_unacknowledged_messages),
        "unsubscribe": env.error(consumer.unsubscribe),
        "after": env.error(lambda: consumer.receive(100)),
        "close": env.error(consumer.close),
    }


@program()
def unsubscribed(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub")
    client.create_producer(topic).send(b"x")
    message = consumer.receive(5000)
    consumer.unsubscribe()
    return {
        "acknowledge": env.error(lambda: consumer.acknowledge(message)),
        "negative": env.error(lambda: consumer.negative_acknowledge(message)),
        "redeliver": env.error(consumer.redeliver_unacknowledged_messages),
        "seek": env.error(lambda: consumer.seek(0)),
        "connected": consumer.is_connected(),
        "names": [env.short(consumer.topic()), consumer.subscription_name()],
    }


@program()
def properties_are_copied(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub")
    client.create_producer(topic).send(b"x", properties={"a": "1"})
    message = consumer.receive(5000)
    message.properties()["new"] = "x"
    wrapped = [pulsar.MessageId.wrap(message.message_id()) for _ in range(2)]
    return {
        "properties": message.properties(),
        "equal": [wrapped[0] == wrapped[1], wrapped[0] <= wrapped[1], message == consumer],
        "keyword": str(pulsar.MessageId.wrap(msg_id=message.message_id())) == str(wrapped[0]),
    }


@program(
    cases={
        "one topic": (0, 5, 20), "partitions": (2, 5, 20), "as many": (0, 5, 5), "fewer": (0, 5, 3), "of 1": (0, 1, 20),
        "bytes only": (0, 5, -1),
    }
)  # fmt: skip
def batch_receive_with_a_small_queue(pulsar: ModuleType, env: Env, partitions: int, queue: int, most: int) -> Observed:
    client, topic = env.client(), env.topic(partitions=partitions)
    consumer = client.subscribe(
        topic, "sub", receiver_queue_size=queue,
        batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(most, 1024 * 1024, 700),
    )  # fmt: skip
    producer = client.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    for number in range(24):
        producer.send(b"%d" % number)
    sizes, seconds = [], []
    for _ in range(3):
        began = time.monotonic()
        batch = consumer.batch_receive()
        seconds.append(time.monotonic() - began > 0.5)
        sizes.append(len(batch))
        for message in batch:
            consumer.acknowledge(message)
    return {"sizes": sizes, "waited": seconds}
