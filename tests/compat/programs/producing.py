"""Producers: what is sent, what callbacks hear, what is refused and how."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial
from types import ModuleType
from typing import Any

from compat.program import Calls, Env, Observed, program, text


def _results(calls: Calls) -> dict[str, int]:
    counts: dict[str, int] = {}
    for result, _ in calls.seen:
        counts[result.name] = counts.get(result.name, 0) + 1
    return counts


def _open_batches(env: Env, client: Any, **options: Any) -> Any:
    """Return a producer whose batches stay open, so that nothing gets a receipt until it is flushed."""
    return client.create_producer(
        env.topic(), batching_enabled=True, batching_max_publish_delay_ms=60_000, batching_max_messages=100_000,
        batching_max_allowed_size_in_bytes=64 << 20, **options,
    )  # fmt: skip


@program()
def send_returns(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic())
    first, second = producer.send(b"a"), producer.send(b"b")
    return {
        "entries": [first.entry_id(), second.entry_id()],
        "partition": first.partition(),
        "index": first.batch_index(),
        "order": first < second,
        "sequence": producer.last_sequence_id(),
    }


@program()
def attributes(pulsar: ModuleType, env: Env) -> Observed:
    topic = env.topic()
    producer = env.client().create_producer(topic, producer_name="mine", initial_sequence_id=7)
    before = producer.last_sequence_id()
    producer.send(b"x")
    return {
        "topic": env.short(producer.topic()),
        "name": producer.producer_name(),
        "sequence": [before, producer.last_sequence_id()],
        "connected": producer.is_connected(),
        "true": bool(producer),
    }


@program()
def short_topic_name(pulsar: ModuleType, env: Env) -> Observed:
    name = env.topic().rsplit("/", 1)[1]
    client = env.client()
    producer = client.create_producer(name)
    consumer = client.subscribe(name, "sub")
    reader = client.create_reader(name, pulsar.MessageId.earliest)
    producer.send(b"x")
    return {
        "producer": env.short(producer.topic()),
        "consumer": env.short(consumer.topic()),
        "reader": env.short(reader.topic()),
        "message": env.short(consumer.receive(10_000).topic_name()),
    }


@program()
def sequence_ids(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic())
    seen = [producer.last_sequence_id()]
    for sequence in (None, 10, None, 0, None):
        producer.send(b"x", sequence_id=sequence)
        seen.append(producer.last_sequence_id())
    return {"seen": seen}


@program()
def sequence_id_zero(pulsar: ModuleType, env: Env) -> Observed:
    """0 is none, as a wrapper's default may be: with a name that the broker knows, too."""
    client, topic = env.client(), env.topic()
    seen = []
    for _ in range(2):
        producer = client.create_producer(topic, producer_name="mine", initial_sequence_id=0)
        seen.append(producer.last_sequence_id())
        producer.send(b"x", sequence_id=0)
        producer.send_async(b"x", lambda result, place: None, sequence_id=0)
        producer.flush()
        seen.append(producer.last_sequence_id())
        producer.close()
    return {"seen": seen}


@program()
def callback_arguments(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic())
    calls = Calls()
    answer = producer.send_async(b"x", calls)
    called = calls.wait(1)
    result, place = calls.seen[0]
    return {
        "returns": answer,
        "called": called,
        "result": [str(result), result == pulsar.Result.Ok, result.name, int(result)],
        "id": [place.entry_id(), place.batch_index(), place.partition()],
        "other thread": threading.get_ident() not in calls.threads,
        "arguments": len(calls.seen[0]),
    }


@program()
def callbacks_in_order(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic(), batching_enabled=True, batching_max_publish_delay_ms=50)
    calls, order = Calls(), list[int]()

    def told(number: int, result: Any, place: Any) -> None:
        order.append(number)
        calls(result, place)

    for number in range(50):
        producer.send_async(b"x", partial(told, number))
    called = calls.wait(50)
    return {"called": called, "order": order == list(range(50)), "results": _results(calls)}


@program()
def callback_when_queue_is_full(pulsar: ModuleType, env: Env) -> Observed:
    producer = _open_batches(env, env.client(), max_pending_messages=5)

    def fill() -> Observed:
        # One more than fit, and no more: when one is refused the batch may be sent, which makes space.
        calls = Calls()
        errors = [env.error(lambda: producer.send_async(b"x", calls)) for _ in range(6)]
        refused = calls.wait(1, 2)
        first = calls.seen[0] if calls.seen else (None, None)
        flushed = env.error(producer.flush)
        calls.wait(6)
        return {
            "raised": [each for each in errors if each],
            "refused at once": [refused, str(first[0])],
            "id": None if first[1] is None else first[1].entry_id(),
            "flushed": flushed,
            "all": _results(calls),
        }

    return {"first": fill(), "again": fill()}


@program()
def full_queue_without_callback(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client()
    producer = _open_batches(env, client, max_pending_messages=2)
    consumer = client.subscribe(producer.topic(), "sub")
    errors, received = [], []
    for _ in range(3):
        # One more than fit, and no more: when one is refused the batch may be sent, which makes space.
        errors += [env.error(lambda: producer.send_async(b"x", None)) for _ in range(3)]
        producer.flush()
        received.append(len(env.more(consumer, 2)))
    return {"errors": errors, "received": received}


@program()
def block_if_queue_full(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic(), max_pending_messages=2, block_if_queue_full=True)
    calls = Calls()
    for _ in range(20):
        producer.send_async(b"x", calls)
    return {"called": calls.wait(20), "results": _results(calls)}


@program()
def callback_when_too_big(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic())
    calls = Calls()
    raised = env.error(lambda: producer.send_async(bytes(6 << 20), calls))
    called = calls.wait(1)
    return {"raised": raised, "called": called, "results": _results(calls)}


@program()
def callback_when_too_big_in_a_batch(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic(), batching_enabled=True)
    calls = Calls()
    raised = [env.error(partial(producer.send_async, bytes(size), calls)) for size in (1, 6 << 20, 1)]
    env.error(producer.flush)
    return {"raised": raised, "called": calls.wait(3), "results": _results(calls)}


@program()
def send_too_big(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic())
    error = env.error(lambda: producer.send(bytes(6 << 20)))
    return {"error": error, "next": producer.send(b"x").entry_id()}


@program()
def callback_after_close(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic())
    producer.close()
    calls = Calls()
    raised = [env.error(lambda: producer.send_async(b"x", calls)) for _ in range(2)]
    return {"raised": raised, "called": calls.wait(2, 2), "results": _results(calls)}


@program()
def callback_after_client_close(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client()
    producer = client.create_producer(env.topic())
    client.close()
    calls = Calls()
    raised = env.error(lambda: producer.send_async(b"x", calls))
    return {"raised": raised, "called": calls.wait(1, 2), "results": _results(calls)}


@program()
def send_after_close(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client()
    one, other = client.create_producer(env.topic()), client.create_producer(env.topic("b"))
    one.close()
    client.close()
    return {"producer": env.error(lambda: one.send(b"x")), "client": env.error(lambda: other.send(b"x"))}


@program()
def open_batch_at_close(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client()
    producer = _open_batches(env, client)
    consumer = client.subscribe(producer.topic(), "sub", initial_position=pulsar.InitialPosition.Earliest)
    calls = Calls()
    for _ in range(3):
        producer.send_async(b"x", calls)
    producer.close()
    return {"called": calls.wait(3, 2), "results": _results(calls), "received": len(env.more(consumer))}


@program()
def open_batch_at_client_close(pulsar: ModuleType, env: Env) -> Observed:
    client, calls = env.client(), Calls()
    producer = _open_batches(env, client)
    for _ in range(3):
        producer.send_async(b"x", calls)
    client.close()
    return {"called": calls.wait(3, 2), "results": _results(calls)}


@program()
def flush_sends_the_batch(pulsar: ModuleType, env: Env) -> Observed:
    producer = _open_batches(env, env.client())
    calls = Calls()
    for _ in range(3):
        producer.send_async(b"x", calls)
    before = len(calls.seen)
    answer = producer.flush()
    return {"before": before, "returns": answer, "called": calls.wait(3, 2), "results": _results(calls)}


@program()
def flush_nothing(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic())
    answers = [producer.flush(), producer.flush()]
    producer.close()
    return {"answers": answers, "closed": env.error(producer.flush)}


@program()
def send_in_a_batch_waits(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic(), batching_enabled=True, batching_max_publish_delay_ms=100)
    return {"id": producer.send(b"x").batch_index(), "sequence": producer.last_sequence_id()}


@program()
def no_batching_delay(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic(), batching_enabled=True, batching_max_publish_delay_ms=0)
    return {"entry": producer.send(b"x").entry_id()}


@program()
def no_batching_size(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_allowed_size_in_bytes=0, batching_max_publish_delay_ms=50
    )
    calls = Calls()
    for number in range(3):
        producer.send_async(b"%d" % number, calls)
    producer.flush()
    return {"results": [calls.wait(3), _results(calls)], "received": env.more(consumer, 3)}


@program()
def more_than_64_mib_waiting(pulsar: ModuleType, env: Env) -> Observed:
    """Twenty partitions keep a batch of four MiB open each."""
    turns = itertools.count()
    producer = env.client().create_producer(
        env.topic(partitions=20), batching_enabled=True, batching_max_publish_delay_ms=60_000,
        batching_max_messages=100_000, batching_max_allowed_size_in_bytes=5_000_000,
        message_router=lambda message, partitions: next(turns) % partitions,
    )  # fmt: skip
    calls = Calls()
    content = bytes(1 << 20)
    raised = [each for _ in range(80) if (each := env.error(lambda: producer.send_async(content, calls)))]
    waiting = len(calls.seen)
    producer.flush()
    return {"raised": raised, "early": waiting, "called": calls.wait(80), "results": _results(calls)}


@program()
def a_slot_is_free_again(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic(), max_pending_messages=1)
    results = []
    for _ in range(5):
        calls = Calls()
        producer.send_async(b"x", calls)
        calls.wait(1)
        results.append(calls.seen[0][0].name)
    return {"results": results}


@program()
def no_pending_messages(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic(), max_pending_messages=0)
    return {"sent": [producer.send(b"x").entry_id() for _ in range(2)]}


@program()
def null_value(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    producer.send(None, partition_key="k")
    producer.send(b"", partition_key="k")
    null, empty = env.drain(consumer, 2)
    return {
        "null": [null.has_null_value(), text(null.data()), bool(null)],
        "empty": [empty.has_null_value(), text(empty.data()), bool(empty)],
        "value": [text(null.value()), text(empty.value())],
    }


@program()
def exclusive_access(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    mode = pulsar.ProducerAccessMode
    first = client.create_producer(topic, access_mode=mode.Exclusive)
    busy = env.error(lambda: client.create_producer(topic, access_mode=mode.Exclusive))
    shared = env.error(lambda: client.create_producer(topic))
    fencing = client.create_producer(topic, access_mode=mode.ExclusiveWithFencing)
    return {
        "busy": busy,
        "shared": shared,
        "fenced": env.error(lambda: first.send(b"x")),
        "new": fencing.send(b"y").entry_id(),
    }


@program()
def same_name_twice(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    first = client.create_producer(topic, producer_name="me")
    second = env.error(lambda: client.create_producer(topic, producer_name="me"))
    first.close()
    return {"second": second, "after": client.create_producer(topic, producer_name="me").producer_name()}


@program(cases={name: (name,) for name in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")})
def compression(pulsar: ModuleType, env: Env, name: str) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, compression_type=getattr(pulsar.CompressionType, name))
    producer.send(b"abc" * 1000)
    producer.send(b"x")
    return {"lengths": [len(each.data()) for each in env.drain(consumer, 2)]}


@program()
def chunks(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub")
    content = bytes(range(256)) * 24_000
    client.create_producer(topic, chunking_enabled=True).send(content)
    message = consumer.receive(15_000)
    consumer.acknowledge(message)
    return {"same": message.data() == content, "id": ";" in str(message.message_id())}


@program()
def router(pulsar: ModuleType, env: Env) -> Observed:
    topic = env.topic(partitions=3)
    seen: list[Any] = []

    def route(message: Any, partitions: int) -> int:
        seen.append([
            text(message.data()), text(message.value()), message.partition_key(), message.ordering_key(),
            message.properties(), message.event_timestamp(), partitions, message.has_null_value(),
            isinstance(message, pulsar.Message), message.redelivery_count(), message.topic_name(),
        ])  # fmt: skip
        return 2

    producer = env.client().create_producer(topic, message_router=route)
    first = producer.send(b"x", {"a": "b"}, partition_key="k", ordering_key="o", event_timestamp=7)
    second = producer.send(b"plain")
    return {"partitions": [first.partition(), second.partition()], "seen": seen}


@program()
def router_answers(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic(partitions=2)
    found = {}
    for label, answer in {"float": 1.0, "true": True, "text": "1"}.items():
        producer = client.create_producer(topic, message_router=lambda message, partitions, answer=answer: answer)
        found[label] = producer.send(b"x").partition()
    return found


@program()
def router_ids(pulsar: ModuleType, env: Env) -> Observed:
    seen: list[str] = []

    def first(message: Any, partitions: int) -> int:
        seen.append(str(message.message_id()))
        return 0

    producer = env.client().create_producer(env.topic(partitions=2), message_router=first)
    producer.send(b"x")
    return {"id": seen}


@program()
def routing_of_keys(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic(partitions=5))
    return {"partitions": [producer.send(b"x", partition_key=f"key-{number}").partition() for number in range(10)]}


@program()
def routing_of_empty_keys(pulsar: ModuleType, env: Env) -> Observed:
    topic = env.topic(partitions=5)
    client = env.client()
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    places = {producer.send(b"x", partition_key="").partition() for _ in range(10)}
    return {"partitions": len(places), "key": consumer.receive(10_000).partition_key()}


@program()
def routing_without_keys(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic(partitions=3)
    modes = pulsar.PartitionsRoutingMode
    spread = client.create_producer(topic, message_routing_mode=modes.RoundRobinDistribution)
    single = client.create_producer(topic, message_routing_mode=modes.UseSinglePartition)
    turns = [spread.send(b"x").partition() for _ in range(6)]
    return {
        "spread": sorted(turns),
        "in turns": (turns[1] - turns[0]) % 3,
        "single": len({single.send(b"x").partition() for _ in range(6)}),
    }


@program()
def routing_of_one_key(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic(partitions=3)
    one = client.create_producer(topic)
    other = client.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.UseSinglePartition)
    places = {each.send(b"x", partition_key="k").partition() for each in (one, other) for _ in range(3)}
    return {"partitions": len(places)}


@program()
def lazy_producers(pulsar: ModuleType, env: Env) -> Observed:
    topic = env.topic(partitions=3)
    producer = env.client().create_producer(topic, lazy_start_partitioned_producers=True)
    paths = [topic.replace("://", "/") + f"-partition-{number}/stats" for number in range(3)]
    first = sum(bool(env.admin("GET", path)["publishers"]) for path in paths)
    return {"started": first, "sent": len({producer.send(b"x").partition() for _ in range(3)})}


@program()
def partitioned_attributes(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic(partitions=2)
    producer = client.create_producer(topic)
    return {
        "topic": env.short(producer.topic()),
        "connected": producer.is_connected(),
        "names": [env.short(each) for each in client.get_topic_partitions(topic)],
        "sequence": producer.last_sequence_id(),
    }


@program()
def delayed_delivery(pulsar: ModuleType, env: Env) -> Observed:
    import datetime

    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"late", deliver_after=datetime.timedelta(seconds=2))
    producer.send(b"at", deliver_at=int(time.time() * 1000) + 100)
    producer.send(b"now")
    first = consumer.receive(10_000).data().decode()
    return {"first": first, "rest": sorted(each.data().decode() for each in env.drain(consumer, 2))}


@program()
def message_of_everything(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub")
    client.create_producer(topic, producer_name="p").send(
        b"x", {"a": "1", "ü": "ß"}, "key", "order", 42, ["standalone"], False, 77, None, None
    )
    message = consumer.receive(10_000)
    return {
        "data": [text(message.data()), text(message.value()), type(message.data()).__name__],
        "properties": [message.properties(), type(message.properties()).__name__],
        "keys": [message.partition_key(), message.ordering_key()],
        "event": message.event_timestamp(),
        "publish": message.publish_timestamp() > 1_600_000_000_000,
        "topic": env.short(message.topic_name()),
        "count": message.redelivery_count(),
        "version": message.schema_version(),
        "producer": message.producer_name(),
        "null": message.has_null_value(),
        "encryption": message.encryption_context(),
        "true": bool(message),
    }


@program()
def message_of_nothing(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub")
    client.create_producer(topic).send(b"x")
    message = consumer.receive(10_000)
    return {
        "properties": message.properties(),
        "keys": [message.partition_key(), message.ordering_key()],
        "event": message.event_timestamp(),
        "equal": message == message,
        "hash": isinstance(hash(message), int),
    }


@program()
def properties_object(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    producer = client.create_producer(topic, properties={"who": "me"})
    consumer = client.subscribe(topic, "sub", properties={"what": "x"})
    stats = env.admin("GET", topic.replace("://", "/") + "/stats")
    assert producer.is_connected() and consumer.is_connected()
    return {
        "producer": stats["publishers"][0]["metadata"],
        "consumer": stats["subscriptions"]["sub"]["consumers"][0]["metadata"],
    }


@program(seconds=60)
def send_timeout(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    producer = client.create_producer(topic, send_timeout_millis=1)
    error = env.error(lambda: [producer.send(bytes(1 << 20)) for _ in range(200)])
    return {"error": error}


@program()
def terminated_topic(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    producer = client.create_producer(topic)
    producer.send(b"x")
    env.admin("POST", topic.replace("://", "/") + "/terminate")
    calls = Calls()
    return {
        "error": env.error(lambda: producer.send(b"y")),
        "async": env.error(lambda: producer.send_async(b"z", calls)),
        "called": [calls.wait(1, 5), _results(calls)],
        "new": env.error(lambda: client.create_producer(topic)),
    }


@program()
def send_from_a_callback(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic())
    calls = Calls()
    producer.send_async(b"x", lambda result, place: producer.send_async(b"y", calls))
    return {"called": calls.wait(1), "entries": [place.entry_id() for _, place in calls.seen]}


@program()
def sequence_ids_going_back(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(env.topic(), producer_name="p")
    for sequence in (5, 6, 5):
        producer.send(b"x", sequence_id=sequence)
    return {"sequence": producer.last_sequence_id()}


@program()
def routing_with_boost_hash(pulsar: ModuleType, env: Env) -> Observed:
    """The one option by which a program keeps the official client's partitions."""
    options = {"hashing_scheme": pulsar.HashingScheme.BoostHash} if hasattr(pulsar, "HashingScheme") else {}
    producer = env.client().create_producer(env.topic(partitions=7), **options)
    # All lengths up to two blocks of the hash, and its longer ways.
    lengths = (*range(1, 34), 63, 64, 65, 96, 127, 128, 129, 300)
    keys = [*(f"key-{number}" for number in range(40)), "ü", "日本", " ", *("xyz" * length for length in lengths)]
    keys += ["x" * length for length in lengths]
    return {
        "partitions": [producer.send(b"x", partition_key=key).partition() for key in keys],
        "ordering": [producer.send(b"x", partition_key="a", ordering_key=key).partition() for key in "bcd"],
    }


@program()
def router_message_has_every_method(pulsar: ModuleType, env: Env) -> Observed:
    seen: dict[str, Any] = {}

    def route(message: Any, partitions: int) -> int:
        for name in (
            "data", "value", "properties", "partition_key", "ordering_key", "publish_timestamp", "event_timestamp",
            "topic_name", "redelivery_count", "schema_version", "producer_name", "has_null_value", "encryption_context",
        ):  # fmt: skip
            seen[name] = env.error(getattr(message, name)) or str(getattr(message, name)())
        return 1

    producer = env.client().create_producer(
        env.topic(partitions=2), message_router=route, schema=pulsar.schema.StringSchema()
    )
    producer.send("x", partition_key="k", properties={"a": "b"}, event_timestamp=5, sequence_id=9)
    return seen


@program()
def router_out_of_range(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic(partitions=2)

    def sent(answer: int) -> Observed:
        calls = Calls()
        producer = client.create_producer(topic, message_router=lambda message, partitions: answer)
        return {
            "send": env.error(lambda: producer.send(b"x")),
            "async": env.error(lambda: producer.send_async(b"x", calls)),
            "key": env.error(lambda: producer.send_async(b"x", calls, partition_key="k")),
            "called": calls.wait(2, 3),
            "results": _results(calls),
        }

    return {str(answer): sent(answer) for answer in (2, -1)}


@program()
def router_that_fails(pulsar: ModuleType, env: Env) -> Observed:
    def fail(message: Any, partitions: int) -> int:
        raise KeyError("of the application")

    client, topic = env.client(), env.topic(partitions=2)
    none = client.create_producer(topic, message_router=lambda message, partitions: None)
    failing = client.create_producer(topic, message_router=fail)
    return {"none": env.error(lambda: none.send(b"x")), "fails": env.error(lambda: failing.send(b"x"))}


@program()
def callback_that_raises(pulsar: ModuleType, env: Env) -> Observed:
    producer, calls = env.client().create_producer(env.topic()), Calls()

    def fail(result: Any, place: Any) -> None:
        calls(result, place)
        raise KeyError("of the application")

    for _ in range(3):
        producer.send_async(b"x", fail)
    return {"called": calls.wait(3), "then": producer.send(b"y").entry_id(), "flush": env.error(producer.flush)}


@program(cases={"tab": ("\t",), "line feed": ("\n",)})
def topic_that_ends_with_space(pulsar: ModuleType, env: Env, end: str) -> Observed:
    return {"error": env.error(lambda: env.client().create_producer(env.topic() + end))}


@program()
def blank_producer_name(pulsar: ModuleType, env: Env) -> Observed:
    return {"name": env.client().create_producer(env.topic(), producer_name=" ").producer_name() == " "}
