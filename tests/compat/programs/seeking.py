"""Consumers: seeking by id and time, and the last message id."""

from __future__ import annotations

import time
from types import ModuleType

from compat.program import Env, Observed, program


@program()
def seek_to_a_message(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, ids = env.filled()
    found = {}
    for inclusive in (False, True):
        consumer = client.subscribe(topic, f"sub-{inclusive}", start_message_id_inclusive=inclusive)
        answer = consumer.seek(ids[2])
        found[str(inclusive)] = [answer, env.more(consumer, 2)]
        consumer.close()
    return found


@program()
def seek_to_a_message_of_a_batch(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.batch()
    found = {}
    for inclusive in (False, True):
        consumer = client.subscribe(
            topic, f"sub-{inclusive}", start_message_id_inclusive=inclusive,
            initial_position=pulsar.InitialPosition.Earliest,
        )  # fmt: skip
        place = env.drain(consumer, 5)[2].message_id()
        consumer.seek(place)
        found[str(inclusive)] = env.more(consumer, 2)
        consumer.close()
    return found


@program()
def seek_to_a_wrapped_id(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, ids = env.filled()
    consumer = client.subscribe(topic, "sub")
    consumer.seek(pulsar.MessageId.wrap(ids[3]))
    return {"after": env.more(consumer, 1)}


@program()
def seek_to_the_ends(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, _ = env.filled()
    consumer = client.subscribe(topic, "sub")
    consumer.seek(pulsar.MessageId.earliest)
    first = env.more(consumer, 5)
    consumer.seek(pulsar.MessageId.latest)
    last = env.more(consumer)
    client.create_producer(topic).send(b"new")
    return {"earliest": first, "latest": last, "new": env.more(consumer, 1)}


@program()
def seek_to_the_ends_inclusive(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, _ = env.filled()
    consumer = client.subscribe(topic, "sub", start_message_id_inclusive=True)
    consumer.seek(pulsar.MessageId.earliest)
    first = env.more(consumer, 5)
    consumer.seek(pulsar.MessageId.latest)
    return {"earliest": first, "latest": env.more(consumer)}


@program()
def seek_to_a_time(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, _ = env.filled(2)
    time.sleep(0.05)
    middle = int(time.time() * 1000)
    client.create_producer(topic).send(b"new")
    consumer = client.subscribe(topic, "sub")
    consumer.seek(middle)
    after = env.more(consumer, 1)
    consumer.seek(0)
    return {"after": after, "all": env.more(consumer, 3)}


@program()
def seek_of_partitions(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic(partitions=2)
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(4)]
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    env.drain(consumer, 4)
    found: Observed = {"id": env.error(lambda: consumer.seek(ids[0]))}
    for label, position in {"earliest": pulsar.MessageId.earliest, "time": 0}.items():
        found[label] = env.error(lambda: consumer.seek(position))  # noqa: B023
        found[f"{label} again"] = sorted(env.more(consumer, 4))
    return found


@program()
def seek_after_acknowledging(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, ids = env.filled()
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    for message in env.drain(consumer, 5):
        consumer.acknowledge(message)
    consumer.seek(ids[1])
    again = env.more(consumer, 3)
    consumer.close()
    return {"again": again, "later": env.more(client.subscribe(topic, "sub"), 3)}


@program()
def last_message_id(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, ids = env.filled(3)
    consumer = client.subscribe(topic, "sub")
    last = consumer.get_last_message_id()
    empty = client.subscribe(env.topic("empty"), "sub").get_last_message_id()
    return {
        "equal": last == ids[2],
        "values": [last.entry_id(), last.partition(), last.batch_index()],
        "empty": [empty.ledger_id() >= 0, empty.entry_id()],
    }


@program(cases={kind: (kind,) for kind in ("Shared", "Failover", "KeyShared")})
def seek_of_every_type(pulsar: ModuleType, env: Env, kind: str) -> Observed:
    client, topic, ids = env.filled()
    found = {}
    for inclusive in (False, True):
        consumer = client.subscribe(
            topic, f"sub-{inclusive}", getattr(pulsar.ConsumerType, kind), start_message_id_inclusive=inclusive
        )
        consumer.seek(ids[2])
        # A Failover consumer gets nothing for its first second.
        found[f"id {inclusive}"] = env.more(consumer, 3 if inclusive else 2)
        consumer.seek(pulsar.MessageId.latest)
        found[f"latest {inclusive}"] = env.more(consumer)
        consumer.close()
    return found
