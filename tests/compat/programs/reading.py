"""Readers and table views."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from compat.program import Calls, Env, Observed, program, text


def _filled(env: Env, count: int = 5) -> tuple[Any, str, list[Any]]:
    client, topic = env.client(), env.topic()
    producer = client.create_producer(topic)
    return client, topic, [producer.send(b"%d" % number) for number in range(count)]


def _rest(env: Env, reader: Any) -> list[str | None]:
    contents = []
    while reader.has_message_available():
        contents.append(text(reader.read_next(5000).data()))
    return contents


@program()
def start_positions(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, ids = _filled(env)
    found = {}
    for label, start in {
        "earliest": pulsar.MessageId.earliest,
        "id": ids[2],
        "latest": pulsar.MessageId.latest,
    }.items():
        for inclusive in (False, True):
            reader = client.create_reader(topic, start, start_message_id_inclusive=inclusive)
            found[f"{label} {inclusive}"] = _rest(env, reader)
            reader.close()
    return found


@program()
def attributes(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, _ = _filled(env, 1)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, reader_name="me", subscription_role_prefix="role")
    names = list(env.admin("GET", topic.replace("://", "/") + "/stats")["subscriptions"])
    message = reader.read_next()
    return {
        "topic": env.short(reader.topic()),
        "connected": reader.is_connected(),
        "subscription": [each.split("-")[0] for each in names],
        "message": [isinstance(message, pulsar.Message), text(message.data()), bool(message)],
        "true": bool(reader),
    }


@program()
def available(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    seen = [reader.has_message_available()]
    producer = client.create_producer(topic)
    producer.send(b"x")
    seen.append(env.until(reader.has_message_available))
    reader.read_next()
    seen.append(reader.has_message_available())
    return {"seen": seen, "time-out": env.error(lambda: reader.read_next(100))}


@program()
def left_over_chunk(pulsar: ModuleType, env: Env) -> Observed:
    space = "public/" + env.topic().rpartition("/")[2]
    env.admin("PUT", f"namespaces/{space}", {})
    env.admin("POST", f"namespaces/{space}/deduplication", True)
    client, topic = env.client(), f"persistent://{space}/topic"
    ids = []
    for _ in range(2):
        # The second time all are dropped as duplicates, of the large one only the last chunk.
        producer = client.create_producer(topic, producer_name="p", chunking_enabled=True)
        contents = ((1, b"x" * 6_000_000), (2, b"y"))
        ids += [producer.send(content, sequence_id=number) for number, content in contents]
        producer.close()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [text(reader.read_next(10_000).data()[:1]) for _ in range(2)]
    behind = client.create_reader(topic, ids[1])
    return {"contents": found, "available": behind.has_message_available()}


@program()
def seek(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, ids = _filled(env)
    found = {}
    for inclusive in (False, True):
        reader = client.create_reader(topic, pulsar.MessageId.earliest, start_message_id_inclusive=inclusive)
        answer = reader.seek(ids[2])
        found[f"id {inclusive}"] = [answer, _rest(env, reader)]
        reader.seek(0)
        found[f"time {inclusive}"] = _rest(env, reader)
        reader.seek(pulsar.MessageId.earliest)
        found[f"earliest {inclusive}"] = _rest(env, reader)
        reader.close()
    return found


@program(cases={"exclusive": (False,), "inclusive": (True,)})
def seek_to_latest(pulsar: ModuleType, env: Env, inclusive: bool) -> Observed:
    client, topic, _ = _filled(env)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, start_message_id_inclusive=inclusive)
    reader.seek(pulsar.MessageId.latest)
    before = reader.has_message_available()
    client.create_producer(topic).send(b"new")
    return {"before": before, "rest": env.until(lambda: _rest(env, reader))}


@program()
def seek_to_a_message_of_a_batch(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=5000)
    for number in range(5):
        producer.send_async(b"%d" % number, lambda result, place: None)
    producer.flush()
    found = {}
    for inclusive in (False, True):
        reader = client.create_reader(topic, pulsar.MessageId.earliest, start_message_id_inclusive=inclusive)
        places = [reader.read_next(5000).message_id() for _ in range(5)]
        reader.seek(places[2])
        found[f"sought {inclusive}"] = _rest(env, reader)
        started = client.create_reader(topic, places[1], start_message_id_inclusive=inclusive)
        found[f"started {inclusive}"] = _rest(env, started)
    return found


@program()
def seek_forward_to_latest_message(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, ids = _filled(env)
    found = {}
    for inclusive in (False, True):
        reader = client.create_reader(topic, pulsar.MessageId.earliest, start_message_id_inclusive=inclusive)
        reader.seek(ids[-1])
        found[str(inclusive)] = [reader.has_message_available(), _rest(env, reader)]
    return found


@program()
def listener(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, _ = _filled(env, 3)
    calls = Calls()
    reader = client.create_reader(topic, pulsar.MessageId.earliest, reader_listener=calls)
    called = calls.wait(3)
    return {
        "called": called,
        "contents": [text(message.data()) for _, message in calls.seen],
        "read": env.error(lambda: reader.read_next(100)),
        "message": isinstance(calls.seen[0][1], pulsar.Message),
    }


@program()
def closed(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, ids = _filled(env, 2)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    answer = reader.close()
    calls = {
        "read": lambda: reader.read_next(100), "read for ever": reader.read_next,
        "available": reader.has_message_available, "seek": lambda: reader.seek(ids[0]), "topic": reader.topic,
        "connected": reader.is_connected, "close": reader.close,
    }  # fmt: skip
    return {label: env.error(call) for label, call in calls.items()} | {"answer": answer is None}


@program()
def over_partitions(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic(partitions=2)
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(4)]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    return {
        "all": sorted(str(each) for each in _rest(env, reader)),
        "topic": env.short(reader.topic()),
        "from an id": env.error(lambda: client.create_reader(topic, ids[0])),
        "partition": env.error(lambda: client.create_reader(topic + "-partition-0", pulsar.MessageId.earliest)),
    }


@program()
def stored_position(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, ids = _filled(env)
    start = pulsar.MessageId.deserialize(ids[1].serialize())
    made = pulsar.MessageId(ids[1].partition(), ids[1].ledger_id(), ids[1].entry_id(), ids[1].batch_index())
    return {
        "stored": _rest(env, client.create_reader(topic, start)),
        "made": _rest(env, client.create_reader(topic, made)),
    }


@program()
def compacted(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    producer = client.create_producer(topic)
    for number in range(3):
        producer.send(b"%d" % number, partition_key="k")
    path = topic.replace("://", "/")
    env.admin("PUT", path + "/compaction")
    env.until(lambda: env.admin("GET", path + "/compaction")["status"] == "SUCCESS")
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    return {"rest": _rest(env, reader)}


def _table(pulsar: ModuleType, env: Env, schema: Any = None, **options: Any) -> tuple[Any, Any, str]:
    client, topic = env.client(), env.topic()
    schema = pulsar.schema.BytesSchema() if schema is None else schema
    producer = client.create_producer(topic, schema=schema)
    return client.create_table_view(topic, schema=schema, **options), producer, topic


@program()
def table_view(pulsar: ModuleType, env: Env) -> Observed:
    view, producer, _ = _table(pulsar, env)
    for key, value in (("a", b"1"), ("b", b"2"), ("a", b"3")):
        producer.send(value, partition_key=key)
    arrived = env.until(lambda: view.get("a") == b"3")
    seen: dict[str, Any] = {}
    view.for_each(lambda key, value: seen.update({key: text(value)}))
    return {
        "arrived": arrived,
        "seen": seen,
        "length": len(view),
        "absent": view.get("c"),
        "type": type(view.get("a")).__name__,
        "is": isinstance(view, pulsar.TableView),
        "true": bool(view),
    }


@program()
def table_view_text(pulsar: ModuleType, env: Env) -> Observed:
    view, _, topic = _table(pulsar, env)
    named = env.client().create_table_view(topic, subscription_name="mine")
    return {
        "str": [env.short(str(view)), env.short(str(named))],
        "repr": env.short(repr(named)),
        "empty": [len(view), bool(view)],
    }


@program()
def table_view_tombstone(pulsar: ModuleType, env: Env) -> Observed:
    view, producer, _ = _table(pulsar, env)
    calls = Calls()
    view.for_each_and_listen(lambda key, value: calls(key, None if value is None else text(value)))
    producer.send(b"1", partition_key="a")
    producer.send(None, partition_key="a")
    producer.send(b"2", partition_key="b")
    called = calls.wait(3, 5)
    return {"called": called, "seen": calls.seen, "get": view.get("a"), "length": len(view)}


@program()
def table_view_empty_value(pulsar: ModuleType, env: Env) -> Observed:
    view, producer, _ = _table(pulsar, env)
    calls = Calls()
    view.for_each_and_listen(lambda key, value: calls(key, None if value is None else text(value)))
    producer.send(b"1", partition_key="a")
    producer.send(b"", partition_key="a")
    calls.wait(2, 3)
    value = view.get("a")
    return {"seen": calls.seen, "get": None if value is None else text(value), "length": len(view)}


@program()
def table_view_listener(pulsar: ModuleType, env: Env) -> Observed:
    view, producer, _ = _table(pulsar, env, pulsar.schema.StringSchema())
    producer.send("1", partition_key="a")
    env.until(lambda: view.get("a"))
    calls = Calls()
    answer = view.for_each_and_listen(calls)
    producer.send("2", partition_key="a")
    return {"called": calls.wait(2), "seen": calls.seen, "answer": answer}


@program()
def table_view_closed(pulsar: ModuleType, env: Env) -> Observed:
    view, producer, _ = _table(pulsar, env)
    producer.send(b"1", partition_key="a")
    env.until(lambda: view.get("a"))
    answer = view.close()
    return {"answer": answer, "get": text(view.get("a")), "length": len(view), "again": env.error(view.close)}


@program()
def table_view_of_partitions(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic(partitions=2)
    producer = client.create_producer(topic)
    for number in range(6):
        producer.send(b"%d" % number, partition_key=str(number))
    view = client.create_table_view(topic)
    return {"length": len(view), "values": [text(view.get(str(number))) for number in range(6)]}


@program()
def table_view_without_keys(pulsar: ModuleType, env: Env) -> Observed:
    view, producer, _ = _table(pulsar, env)
    producer.send(b"1")
    producer.send(b"2", partition_key="k")
    env.until(lambda: view.get("k"))
    return {"length": len(view), "empty": None if view.get("") is None else text(view.get(""))}


@program()
def table_view_schema(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema

    class Point(schema.Record):  # type: ignore[misc, name-defined]
        x = schema.Integer()

    view, producer, topic = _table(pulsar, env, schema.JsonSchema(Point))
    producer.send(Point(x=5), partition_key="p")
    env.until(lambda: view.get("p"))
    return {
        "x": view.get("p").x,
        "other schema": env.error(lambda: env.client().create_table_view(topic, schema=schema.StringSchema())),
    }


@program()
def table_view_changed_values(pulsar: ModuleType, env: Env) -> Observed:
    schema = pulsar.schema

    class Order(schema.Record):  # type: ignore[misc, name-defined]
        status = schema.String()
        tags = schema.Array(schema.String())

    view, producer, _ = _table(pulsar, env, schema.JsonSchema(Order))
    producer.send(Order(status="new", tags=["a"]), partition_key="k")
    order = env.until(lambda: view.get("k"))
    order.status = "changed"
    order.tags.append("b")
    calls = Calls()

    def change(key: str, value: Any) -> None:
        calls(key, value.status, list(value.tags))
        value.status = "changed"
        value.tags.clear()

    view.for_each(change)
    view.for_each_and_listen(change)
    view.for_each_and_listen(change)
    producer.send(Order(status="paid", tags=["c"]), partition_key="k")
    called = calls.wait(5)
    left = view.get("k")
    return {
        "called": called,
        "seen": calls.seen,
        "left": [left.status, list(left.tags)],
        "same": view.get("k") is left,
    }


@program()
def table_view_wrong_arguments(pulsar: ModuleType, env: Env) -> Observed:
    view, producer, _ = _table(pulsar, env)
    producer.send(b"1", partition_key="a")
    env.until(lambda: view.get("a"))

    def fail(key: str, value: Any) -> None:
        raise KeyError("of the application")

    wrong: list[Any] = [5, None, b"a", ["a"]]
    return {
        "keys": [env.error(lambda: view.get(key)) for key in wrong],  # noqa: B023
        "callbacks": [env.error(lambda: view.for_each(5)), env.error(lambda: view.for_each_and_listen("x"))],
        "failing": [env.error(lambda: view.for_each(fail)), env.error(lambda: view.for_each_and_listen(fail))],
    }


@program()
def table_view_after_close(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    client.create_producer(topic).send(b"1", partition_key="a")
    closed, left = client.create_table_view(topic), client.create_table_view(topic)
    env.until(lambda: closed.get("a") and left.get("a"))
    closed.close()
    seen: list[Any] = []
    found = {
        "for_each": env.error(lambda: closed.for_each(lambda key, value: seen.append(key))),
        "listen": env.error(lambda: closed.for_each_and_listen(lambda key, value: seen.append(key))),
        "str": env.short(str(closed)),
    }
    client.close()
    return found | {"left": [text(left.get("a")), len(left), env.error(left.close)], "seen": seen}


@program()
def seek_over_partitions(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic(partitions=2)
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(4)]
    found: Observed = {}
    for inclusive in (False, True):
        reader = client.create_reader(topic, pulsar.MessageId.earliest, start_message_id_inclusive=inclusive)
        found[f"start {inclusive}"] = sorted(str(each) for each in _rest(env, reader))
        for label, position in {
            "earliest": pulsar.MessageId.earliest,
            "latest": pulsar.MessageId.latest,
            "time": 0,
        }.items():
            reader.seek(position)
            found[f"{label} {inclusive}"] = sorted(str(each) for each in _rest(env, reader))
        found[f"id {inclusive}"] = env.error(lambda: reader.seek(ids[0]))  # noqa: B023
        last = client.create_reader(topic, pulsar.MessageId.latest, start_message_id_inclusive=inclusive)
        found[f"last {inclusive}"] = sorted(str(each) for each in _rest(env, last))
    return found


@program()
def listener_arguments(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, _ = _filled(env, 3)
    calls = Calls()

    def hear(reader: Any, message: Any) -> None:
        calls(text(message.data()), text(message.value()), env.short(message.topic_name()), env.error(reader.topic))

    reader = client.create_reader(topic, pulsar.MessageId.earliest, reader_listener=hear)
    return {
        "called": calls.wait(3),
        "seen": calls.seen,
        "available": env.error(reader.has_message_available),
        "close": env.error(reader.close),
    }
