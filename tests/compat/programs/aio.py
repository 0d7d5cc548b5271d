"""The asyncio module."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import Any

from compat.program import Env, Observed, program, text

Main = Callable[[ModuleType, Env, Any], Coroutine[Any, Any, Observed]]


def _run(pulsar: ModuleType, env: Env, main: Main, **options: Any) -> Observed:
    async def whole() -> Observed:
        client = env.module("asyncio").Client(env.service_url, operation_timeout_seconds=10, **options)
        try:
            return await main(pulsar, env, client)
        finally:
            await client.close()

    return env.run(whole(), 25)


async def _error(env: Env, call: Callable[[], Any]) -> Any:
    try:
        answer = call()
        if inspect.isawaitable(answer):
            await asyncio.wait_for(answer, 5)
    except BaseException as error:
        found = env.describe(error)
        return found | {"result": str(error.error())} if hasattr(error, "error") else found
    return None


@program()
def send_and_receive(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        topic = env.topic()
        consumer = await client.subscribe(topic, "sub", properties={"a": "b"})
        producer = await client.create_producer(topic, producer_name="p")
        place = await producer.send(
            b"x", properties={"k": "v"}, partition_key="key", ordering_key="o", event_timestamp=5
        )
        message = await consumer.receive()
        answer = await consumer.acknowledge(message)
        return {
            "id": [isinstance(place, pulsar.MessageId), place.entry_id(), place.batch_index()],
            "message": [isinstance(message, pulsar.Message), text(message.data()), message.properties()],
            "keys": [message.partition_key(), message.ordering_key(), message.event_timestamp()],
            "names": [producer.producer_name(), env.short(producer.topic()), producer.last_sequence_id()],
            "consumer": [env.short(consumer.topic()), consumer.subscription_name(), len(consumer.consumer_name()) > 0],
            "connected": producer.is_connected(),
            "answers": [answer, await producer.flush(), await producer.close(), await consumer.close()],
        }

    return _run(pulsar, env, main)


@program()
def gathered_sends(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        producer = await client.create_producer(env.topic())
        places = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(20)))
        return {
            "entries": len({each.entry_id() for each in places}) < 20,
            "indexes": [each.batch_index() for each in places[:3]],
            "order": [str(each) for each in places] == [str(each) for each in sorted(places)],
        }

    return _run(pulsar, env, main)


@program()
def acknowledgements(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        topic = env.topic()
        consumer = await client.subscribe(topic, "sub", negative_ack_redelivery_delay_ms=100)
        producer = await client.create_producer(topic, batching_enabled=False)
        for number in range(5):
            await producer.send(b"%d" % number)
        messages = [await consumer.receive() for _ in range(5)]
        answers = [
            await consumer.acknowledge(messages[0].message_id()),
            await consumer.acknowledge_cumulative(messages[1]),
            await consumer.acknowledge_cumulative(messages[2].message_id()),
            await consumer.negative_acknowledge(messages[3]),
        ]
        again = await asyncio.wait_for(consumer.receive(), 10)
        return {"answers": answers, "again": text(again.data())}

    return _run(pulsar, env, main)


@program()
def redeliver(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        topic = env.topic()
        consumer = await client.subscribe(topic, "sub")
        producer = await client.create_producer(topic)
        await producer.send(b"x")
        await consumer.receive()
        answer = consumer.redeliver_unacknowledged_messages()
        again = await asyncio.wait_for(consumer.receive(), 10)
        return {"answer": answer, "again": text(again.data())}

    return _run(pulsar, env, main)


@program()
def seek(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        topic, found = env.topic(), dict[str, Any]()
        producer = await client.create_producer(topic, batching_enabled=False)
        places = [await producer.send(b"%d" % number) for number in range(4)]
        for inclusive in (False, True):
            consumer = await client.subscribe(topic, f"sub-{inclusive}", start_message_id_inclusive=inclusive)
            answer = await consumer.seek(places[1])
            found[f"id {inclusive}"] = [answer, text((await consumer.receive()).data())]
            await consumer.seek(0)
            found[f"time {inclusive}"] = text((await consumer.receive()).data())
            found[f"wrong {inclusive}"] = [
                await _error(env, lambda: consumer.seek(each))  # noqa: B023
                for each in (None, "x")
            ]
        return found

    return _run(pulsar, env, main)


@program()
def last_message_id(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        topic = env.topic()
        producer = await client.create_producer(topic, batching_enabled=False)
        place = await producer.send(b"x")
        consumer = await client.subscribe(topic, "sub")
        last = await consumer.get_last_message_id()
        return {"same": [last.ledger_id(), last.entry_id()] == [place.ledger_id(), place.entry_id()]}

    return _run(pulsar, env, main)


@program()
def reader(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        topic = env.topic()
        producer = await client.create_producer(topic, batching_enabled=False)
        places = [await producer.send(b"%d" % number) for number in range(3)]
        made = await client.create_reader(topic, pulsar.MessageId.earliest, reader_name="r")
        contents = []
        while await made.has_message_available():
            contents.append(text((await made.read_next()).data()))
        await made.seek(places[1])
        after = text((await made.read_next()).data())
        return {
            "contents": contents, "after": after, "topic": env.short(made.topic()), "connected": made.is_connected(),
            "wrong start": await _error(env, lambda: client.create_reader(topic, "x")),
            "close": [await made.close(), await _error(env, made.close)],
        }  # fmt: skip

    return _run(pulsar, env, main)


@program()
def partitions(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        names = await client.get_topic_partitions(env.topic(partitions=2))
        return {
            "names": [env.short(each) for each in names],
            "wrong": await _error(env, lambda: client.get_topic_partitions(5)),
        }

    return _run(pulsar, env, main)


@program()
def closed(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        topic = env.topic()
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "sub")
        place = await producer.send(b"x")
        await producer.close()
        await consumer.close()
        calls = {
            "send": lambda: producer.send(b"x"), "flush": producer.flush, "close producer": producer.close,
            "receive": consumer.receive, "acknowledge": lambda: consumer.acknowledge(place),
            "negative": lambda: consumer.negative_acknowledge(place), "close consumer": consumer.close,
            "seek": lambda: consumer.seek(place), "unsubscribe": consumer.unsubscribe,
            "last": consumer.get_last_message_id, "redeliver": consumer.redeliver_unacknowledged_messages,
        }  # fmt: skip
        return {label: await _error(env, call) for label, call in calls.items()}

    return _run(pulsar, env, main)


@program()
def closed_client(pulsar: ModuleType, env: Env) -> Observed:
    async def main() -> Observed:
        client, topic = env.module("asyncio").Client(env.service_url), env.topic()
        await client.create_producer(topic)
        first = await _error(env, client.close)
        return {
            "first": first,
            "second": await _error(env, client.close),
            "producer": await _error(env, lambda: client.create_producer(topic)),
            "consumer": await _error(env, lambda: client.subscribe(topic, "sub")),
            "shutdown": await _error(env, client.shutdown),
        }

    return env.run(main())


@program()
def shutdown(pulsar: ModuleType, env: Env) -> Observed:
    async def main() -> Observed:
        client, topic = env.module("asyncio").Client(env.service_url), env.topic()
        producer = await client.create_producer(topic)
        answer = client.shutdown()
        return {
            "plain": not inspect.isawaitable(answer),
            "answer": answer is None,
            "again": await _error(env, client.shutdown),
            "send": await _error(env, lambda: producer.send(b"x")),
            "close": await _error(env, client.close),
        }

    return env.run(main())


@program()
def errors(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        topic = env.topic()
        first = await client.subscribe(topic, "sub")
        exclusive = await client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
        return {
            "busy": await _error(env, lambda: client.subscribe(topic, "sub")),
            "fenced": await _error(env, lambda: client.create_producer(topic)),
            "topic": await _error(env, lambda: client.create_producer("persistent://a")),
            "both": await _error(
                env, lambda: client.create_producer(topic, batching_enabled=True, chunking_enabled=True)
            ),
            "tuple": await _error(env, lambda: client.subscribe((topic,), "sub")),
            "big": await _error(env, lambda: exclusive.send(bytes(6 << 20))),
            "text": await _error(env, lambda: exclusive.send("x")),
            "unsubscribed": await _error(env, lambda: client.subscribe("persistent://a", "sub")),
            "first": env.short(first.topic()),
        }

    return _run(pulsar, env, main)


def _no_token() -> str:
    raise ValueError("no token today")


@program(cases={"raises": (_no_token,), "number": (lambda: 5,), "none": (lambda: None,), "bytes": (lambda: b"x",)})
def token_supplier_fails(pulsar: ModuleType, env: Env, supply: Callable[[], Any]) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        topic = env.topic()
        return {
            "producer": await _error(env, lambda: client.create_producer(topic)),
            "consumer": await _error(env, lambda: client.subscribe(topic, "sub")),
            "reader": await _error(env, lambda: client.create_reader(topic, pulsar.MessageId.earliest)),
        }

    return _run(pulsar, env, main, authentication=pulsar.AuthenticationToken(supply))


@program()
def dropped_consumer(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        topic = env.topic()
        consumer = await client.subscribe(topic, "sub")
        del consumer
        gc.collect()
        await asyncio.sleep(0.3)
        return {"again": await _error(env, lambda: client.subscribe(topic, "sub"))}

    return _run(pulsar, env, main)


@program()
def pattern(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        names = [env.topic("a"), env.topic("b")]
        for name in names:
            producer = await client.create_producer(name)
            await producer.send(name[-1].encode())
        consumer = await client.subscribe(
            names[0][:-1] + ".*", "sub", initial_position=pulsar.InitialPosition.Earliest, is_pattern_topic=True
        )
        contents = sorted([text((await consumer.receive()).data()) or "" for _ in range(2)])
        return {
            "contents": contents,
            "list": await _error(env, lambda: client.subscribe(names, "x", is_pattern_topic=True)),
        }

    return _run(pulsar, env, main)


@program()
def several_topics(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        names = [env.topic("a"), env.topic("b")]
        consumer = await client.subscribe(names, "sub")
        for name in names:
            await (await client.create_producer(name)).send(name[-1].encode())
        messages = [await consumer.receive() for _ in range(2)]
        stored = pulsar.MessageId.deserialize(messages[0].message_id().serialize())
        return {
            "contents": sorted(text(each.data()) or "" for each in messages),
            "without topic": await _error(env, lambda: consumer.acknowledge(stored)),
            "message": await _error(env, lambda: consumer.acknowledge(messages[0])),
        }

    return _run(pulsar, env, main)


@program()
def schemas(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        schema = pulsar.schema

        class Point(schema.Record):  # type: ignore[misc, name-defined]
            x = schema.Integer()

        topic = env.topic()
        consumer = await client.subscribe(topic, "sub", schema=schema.AvroSchema(Point))
        producer = await client.create_producer(topic, schema=schema.AvroSchema(Point))
        await producer.send(Point(x=5))
        return {"x": (await consumer.receive()).value().x, "wrong": await _error(env, lambda: producer.send("x"))}

    return _run(pulsar, env, main)


@program()
def queue_full(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        producer = await client.create_producer(
            env.topic(), max_pending_messages=2, batching_max_publish_delay_ms=60_000, batching_enabled=True
        )
        tasks = [asyncio.ensure_future(_error(env, lambda: producer.send(b"x"))) for _ in range(4)]
        done, _ = await asyncio.wait(tasks, timeout=1)
        refused = [each.result() for each in done]
        await asyncio.wait_for(producer.flush(), 5)
        return {"refused": sorted(refused, key=str), "rest": [await each for each in tasks if each not in done]}

    return _run(pulsar, env, main)


@program()
def options_are_the_clients(pulsar: ModuleType, env: Env) -> Observed:
    make = env.module("asyncio").Client

    async def main() -> Observed:
        client = make("pulsar://127.0.0.1:1", operation_timeout_seconds=3)
        await client.close()
        return {
            "wrong": env.error(lambda: make("pulsar://127.0.0.1:1", nonsense=1)),
            "type": env.error(lambda: make("pulsar://127.0.0.1:1", operation_timeout_seconds="x")),
            "url": env.error(lambda: make(5)),
        }

    return env.run(main())


@program()
def sends_as_tasks_and_futures(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        producer = await client.create_producer(env.topic())
        task = asyncio.create_task(producer.send(b"a"))
        ensured = [asyncio.ensure_future(producer.send(b"b")), asyncio.ensure_future(producer.send(b"c"))]
        done, pending = await asyncio.wait(ensured, timeout=10)
        async with asyncio.TaskGroup() as group:
            grouped = group.create_task(producer.send(b"d"))
        elsewhere = asyncio.run_coroutine_threadsafe(producer.send(b"e"), asyncio.get_running_loop())
        places = [
            *(each.result() for each in ensured), await task, grouped.result(),
            await asyncio.to_thread(elsewhere.result, 10), await asyncio.wait_for(producer.send(b"f"), 10),
            await asyncio.shield(producer.send(b"g")), await next(iter(asyncio.as_completed([producer.send(b"h")]))),
        ]  # fmt: skip
        call = producer.send(b"i")
        known = asyncio.iscoroutine(call)
        return {
            "places": [all(isinstance(each, pulsar.MessageId) for each in places), len(set(map(str, places)))],
            "waited": [len(done), len(pending)],
            "coroutine": [known, await _error(env, lambda: asyncio.wait([call]))],
            "awaited": isinstance(await call, pulsar.MessageId),
        }

    return _run(pulsar, env, main)


@program()
def send_is_awaited_later(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        topic = env.topic()
        consumer = await client.subscribe(topic, "sub")
        producer = await client.create_producer(topic)
        first = producer.send(b"first")
        await producer.send(b"second")
        await first
        return {"received": [text((await consumer.receive()).data()) for _ in range(2)]}

    return _run(pulsar, env, main)


@program()
def receive_is_cancelled(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        topic = env.topic()
        consumer = await client.subscribe(topic, "sub")
        waiting = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(0.2)
        waiting.cancel()
        producer = await client.create_producer(topic)
        await producer.send(b"x")
        received = await _error(env, lambda: asyncio.wait_for(consumer.receive(), 1.5))
        return {"received": received}

    return _run(pulsar, env, main)


@program()
def router(pulsar: ModuleType, env: Env) -> Observed:
    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        seen: list[Any] = []

        def route(message: Any, partitions: int) -> int:
            seen.append([text(message.data()), message.partition_key(), partitions])
            return 1

        producer = await client.create_producer(env.topic(partitions=3), message_router=route)
        place = await producer.send(b"x", partition_key="k")
        return {"partition": place.partition(), "seen": seen}

    return _run(pulsar, env, main)


@program(seconds=60)
def reader_positions(pulsar: ModuleType, env: Env) -> Observed:
    async def rest(reader: Any) -> list[Any]:
        contents = []
        while await reader.has_message_available():
            contents.append(text((await reader.read_next()).data()))
        return contents

    async def main(pulsar: ModuleType, env: Env, client: Any) -> Observed:
        topic, found = env.topic(), dict[str, Any]()
        producer = await client.create_producer(topic, batching_enabled=False)
        places = [await producer.send(b"%d" % number) for number in range(4)]
        starts = {"earliest": pulsar.MessageId.earliest, "latest": pulsar.MessageId.latest, "id": places[1]}
        for label, start in starts.items():
            for inclusive in (False, True):
                reader = await client.create_reader(topic, start, start_message_id_inclusive=inclusive)
                found[f"{label} {inclusive}"] = await rest(reader)
                await reader.seek(places[2])
                found[f"{label} {inclusive} sought"] = await rest(reader)
                await reader.close()
        latest = await client.create_reader(topic, pulsar.MessageId.earliest)
        found["latest"] = await _error(env, lambda: latest.seek(pulsar.MessageId.latest))
        await latest.close()
        for name, call in {
            "read": latest.read_next, "more": latest.has_message_available, "seek": lambda: latest.seek(places[0]),
        }.items():  # fmt: skip
            found[f"closed {name}"] = await _error(env, call)
        return found

    return _run(pulsar, env, main)


@program()
def client_of_two_loops(pulsar: ModuleType, env: Env) -> Observed:
    """A client of a module, used by one `asyncio.run` after the other."""
    client = env.module("asyncio").Client(env.service_url, operation_timeout_seconds=10)

    async def first() -> None:
        await (await client.create_producer(env.topic())).send(b"x")

    async def second() -> Observed:
        return {
            "create": await _error(env, lambda: client.create_producer(env.topic())),
            "close": await _error(env, client.close),
        }

    env.run(first())
    return env.run(second())
