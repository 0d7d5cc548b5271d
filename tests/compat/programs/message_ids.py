"""Message ids: values, order, text and portable bytes."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

from compat.program import Env, Observed, program, text


def _values(each: Any) -> list[int]:
    return [each.ledger_id(), each.entry_id(), each.partition(), each.batch_index()]


@program()
def construct(pulsar: ModuleType, env: Env) -> Observed:
    full, none = pulsar.MessageId(1, 2, 3, 4), pulsar.MessageId()
    return {
        "values": [_values(full), _values(none), _values(pulsar.MessageId(entry_id=7, ledger_id=8))],
        "str": [str(full), str(none)],
        "format": f"{full}",
        "true": [bool(full), bool(none)],
        "text": env.error(lambda: pulsar.MessageId("a", 1, 1, 1)),
        "none": env.error(lambda: pulsar.MessageId(None, 1, 1, 1)),
    }


@program()
def earliest_and_latest(pulsar: ModuleType, env: Env) -> Observed:
    first, last = pulsar.MessageId.earliest, pulsar.MessageId.latest
    return {
        "values": [_values(first), _values(last)],
        "str": [str(first), str(last)],
        "equal": [first == first, first == last],
        "order": [first < last, last > first, first <= first],
        "of an instance": str(pulsar.MessageId().earliest) == str(first),
        "deserialized": _values(pulsar.MessageId.deserialize(first.serialize())),
        "hash": env.error(lambda: {first, last}),
    }


@program()
def comparison(pulsar: ModuleType, env: Env) -> Observed:
    make = pulsar.MessageId
    ids = [make(0, 1, 1, -1), make(0, 1, 2, 0), make(0, 1, 2, 1), make(0, 2, 0, -1), make(1, 2, 0, -1)]
    shuffled = [*ids[2:], *ids[:2]]
    return {
        "less": [[int(a < b) for b in ids] for a in ids],
        "equal": [[int(a == b) for b in ids] for a in ids],
        "at most": [[int(a <= b) for b in ids] for a in ids],
        "unequal": make(0, 1, 1) != make(0, 1, 1),
        "to text": env.error(lambda: make(0, 1, 1) < "x"),
        "sorted": [str(each) for each in sorted(shuffled)],
        "max": str(max(ids)),
    }


@program()
def equal_to_something_else(pulsar: ModuleType, env: Env) -> Observed:
    one = pulsar.MessageId(0, 1, 1)
    return {"none": env.error(lambda: one == None), "text": env.error(lambda: one == "x")}  # noqa: E711


@program()
def portable_bytes(pulsar: ModuleType, env: Env) -> Observed:
    ids = [pulsar.MessageId(*values) for values in ((0, 1, 2, 3), (-1, 1, 2, -1), (3, 2**40, 7, -1), (-1, 0, 0, 0))]
    back = [pulsar.MessageId.deserialize(each.serialize()) for each in ids]
    return {
        "bytes": [each.serialize().hex() for each in ids],
        "back": [_values(each) for each in back],
        "equal": [str(a) == str(b) for a, b in zip(ids, back, strict=True)],
        "type": type(ids[0].serialize()).__name__,
    }


@program()
def wrong_bytes(pulsar: ModuleType, env: Env) -> Observed:
    load = pulsar.MessageId.deserialize
    return {
        "garbage": env.error(lambda: load(b"\xff\xff\xff")),
        "empty": env.error(lambda: load(b"")),
        "text": env.error(lambda: load("text")),
        "none": env.error(lambda: load(None)),
    }


@program()
def sent_and_received(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub")
    sent = client.create_producer(topic).send(b"x")
    received = consumer.receive(10_000).message_id()
    return {
        "equal": sent == received,
        "hash": env.error(lambda: hash(sent)),
        "values": _values(received)[1:],
        "str": str(received) == str(sent),
        "str is its repr": str(received) == repr(received),
        "wrapped": str(pulsar.MessageId.wrap(received)) == str(received),
        "wrapped is MessageId": isinstance(pulsar.MessageId.wrap(received), pulsar.MessageId),
        "stored": pulsar.MessageId.deserialize(received.serialize()) == received,
        "str is stable": str(received) == str(copy.copy(pulsar.MessageId.wrap(received))),
    }


@program()
def of_a_batch(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=2000)
    for number in range(3):
        producer.send_async(b"%d" % number, lambda result, place: None)
    producer.flush()
    messages = env.drain(consumer, 3)
    ids = [each.message_id() for each in messages]
    return {
        "contents": [text(each.data()) for each in messages],
        "indexes": [each.batch_index() for each in ids],
        "one entry": len({each.entry_id() for each in ids}),
        "order": ids == sorted(ids),
        "str": [str(each) == str(pulsar.MessageId.wrap(each)) for each in ids],
    }


@program()
def of_partitions(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic(partitions=2)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    sent = {producer.send(b"%d" % number).partition() for number in range(4)}
    ids = [each.message_id() for each in env.drain(consumer, 4)]
    return {
        "sent": sorted(sent),
        "received": sorted({each.partition() for each in ids}),
    }
