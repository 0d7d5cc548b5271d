"""Closing, shutting down, dropping; threads and sockets left; interrupts and forks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import signal
import socket
import threading
import time
from types import ModuleType
from typing import Any

from compat.program import Calls, Env, Observed, program, text


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _few_left(env: Env, before: int) -> bool:
    """Return whether the threads end, but for one that the official client leaves by chance."""
    return env.until(lambda: _threads() <= before + 1, 5)


def _sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count


@program()
def close_twice(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    parts = {
        "producer": client.create_producer(topic),
        "consumer": client.subscribe(topic, "sub"),
        "reader": client.create_reader(topic, pulsar.MessageId.earliest),
        "view": client.create_table_view(topic),
    }
    found = {}
    for name, part in parts.items():
        found[name] = [env.error(part.close), env.error(part.close)]
    found["client"] = [env.error(client.close), env.error(client.close)]
    return found


@program()
def close_returns(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    parts = [
        client.create_producer(topic), client.subscribe(topic, "sub"),
        client.create_reader(topic, pulsar.MessageId.earliest), client,
    ]  # fmt: skip
    return {"answers": [each.close() is None for each in parts]}


@program()
def parts_after_the_client(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    producer, consumer = client.create_producer(topic), client.subscribe(topic, "sub")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    client.close()
    return {
        "producer": env.error(producer.close),
        "consumer": env.error(consumer.close),
        "reader": env.error(reader.close),
        "receive": env.error(lambda: consumer.receive(100)),
        "read": env.error(lambda: reader.read_next(100)),
        "flush": env.error(producer.flush),
        "connected": [producer.is_connected(), consumer.is_connected(), reader.is_connected()],
    }


@program()
def closed_client(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    client.create_producer(topic)
    client.close()
    return {
        "producer": env.error(lambda: client.create_producer(topic)),
        "consumer": env.error(lambda: client.subscribe(topic, "sub")),
        "reader": env.error(lambda: client.create_reader(topic, pulsar.MessageId.earliest)),
        "view": env.error(lambda: client.create_table_view(topic)),
        "partitions": env.error(lambda: client.get_topic_partitions(topic)),
        "shutdown": [env.error(client.shutdown), env.error(client.shutdown)],
        "close": env.error(client.close),
    }


@program()
def unused_client(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client("pulsar://127.0.0.1:1")
    return {"close": [env.error(client.close), env.error(client.close)], "shutdown": env.error(client.shutdown)}


@program()
def shutdown(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    producer, consumer = client.create_producer(topic), client.subscribe(topic, "sub")
    answers = [env.error(client.shutdown), env.error(client.shutdown)]
    return {
        "answers": answers,
        "send": env.error(lambda: producer.send(b"x")),
        "receive": env.error(lambda: consumer.receive(100)),
        "new": env.error(lambda: client.create_producer(topic)),
        "close": env.error(client.close),
        "parts": [env.error(producer.close), env.error(consumer.close)],
    }


@program()
def shutdown_with_messages_waiting(pulsar: ModuleType, env: Env) -> Observed:
    client, calls = env.client(), Calls()
    producer = client.create_producer(env.topic(), batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for _ in range(3):
        producer.send_async(b"x", calls)
    # The official one returns at once or after seconds, by chance.
    client.shutdown()
    return {"called": calls.wait(3, 2), "results": sorted(result.name for result, _ in calls.seen)}


@program()
def closed_producer(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    producer = client.create_producer(topic, producer_name="p")
    producer.send(b"x")
    producer.close()
    return {
        "send": env.error(lambda: producer.send(b"x")),
        "flush": env.error(producer.flush),
        "close": env.error(producer.close),
        "topic": env.short(producer.topic()),
        "name": producer.producer_name(),
        "sequence": producer.last_sequence_id(),
        "connected": producer.is_connected(),
    }


@program(own_process=True)
def threads_after_close(pulsar: ModuleType, env: Env) -> Observed:
    before = _threads()
    client = env.client()
    topic = env.topic()
    consumer = client.subscribe(topic, "sub", message_listener=lambda consumer, message: None)
    client.create_producer(topic).send(b"x")
    during = _threads()
    client.close()
    del consumer, client
    env.close()
    gc.collect()
    return {"more during": during > before, "few left": _few_left(env, before), "python": threading.active_count()}


@program(own_process=True)
def threads_after_dropping(pulsar: ModuleType, env: Env) -> Observed:
    before = _threads()
    client = pulsar.Client(env.service_url)
    producer = client.create_producer(env.topic())
    producer.send(b"x")
    del producer, client
    gc.collect()
    return {"python": threading.active_count(), "left": env.until(lambda: _threads() == before, 5)}


@program(own_process=True)
def sockets_after_close(pulsar: ModuleType, env: Env) -> Observed:
    before = _sockets()
    clients = [env.client() for _ in range(3)]
    for client in clients:
        client.create_producer(env.topic()).send(b"x")
    during = _sockets()
    for client in clients:
        client.close()
    return {"during": during >= before + 3, "left": env.until(lambda: _sockets() <= before, 5)}


@program(own_process=True)
def exit_without_close(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    producer.send(b"x")
    return {"received": text(consumer.receive(10_000).data())}


@program(own_process=True)
def exit_with_a_listener(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, calls = env.client(), env.topic(), Calls()
    client.subscribe(topic, "sub", message_listener=lambda consumer, message: calls(message))
    client.create_producer(topic).send(b"x")
    return {"called": calls.wait(1)}


@program(own_process=True)
def dropped_producer_in_a_loop(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    client.create_producer(topic).close()
    threads, sockets = _threads(), _sockets()
    for _ in range(50):
        client.create_producer(topic).close()
    return {"threads": _threads() - threads, "sockets": _sockets() - sockets}


@program(own_process=True)
def dropped_consumer(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    for number in range(3):
        client.subscribe(topic, f"sub-{number}")
    gc.collect()
    return {"subscribed": len(env.admin("GET", topic.replace("://", "/") + "/stats")["subscriptions"])}


def _interrupt(pulsar: ModuleType, env: Env, call: Any) -> Observed:
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    errors = _raised(env, call)
    return {"errors": errors, "soon": time.monotonic() - began < 0.5 + 2}


def _raised(env: Env, call: Any) -> list[Any]:
    """Return the errors of a call and of the signal handler that runs after it, where the call did not notice."""
    errors: list[BaseException] = []
    try:
        try:
            call()
        except BaseException as error:
            errors.append(error)
        time.sleep(0.1)
    except KeyboardInterrupt as error:
        errors.append(error)
    return [env.describe(error) for error in errors]


@program(own_process=True, seconds=15)
def interrupted_receive(pulsar: ModuleType, env: Env) -> Observed:
    consumer = env.client().subscribe(env.topic(), "sub")
    return _interrupt(pulsar, env, lambda: consumer.receive())


@program(own_process=True, seconds=15)
def interrupted_receive_with_time_out(pulsar: ModuleType, env: Env) -> Observed:
    consumer = env.client().subscribe(env.topic(), "sub")
    return _interrupt(pulsar, env, lambda: consumer.receive(5000))


@program(own_process=True, seconds=15)
def interrupted_read(pulsar: ModuleType, env: Env) -> Observed:
    reader = env.client().create_reader(env.topic(), pulsar.MessageId.earliest)
    return _interrupt(pulsar, env, lambda: reader.read_next())


@program(own_process=True, seconds=15)
def interrupted_batch_receive(pulsar: ModuleType, env: Env) -> Observed:
    consumer = env.client().subscribe(
        env.topic(), "sub", batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(10, -1, 5000)
    )
    return _interrupt(pulsar, env, lambda: consumer.batch_receive())


def _silent() -> tuple[socket.socket, str]:
    """Return a server that accepts and says nothing."""
    server = socket.create_server(("127.0.0.1", 0))
    return server, f"pulsar://127.0.0.1:{server.getsockname()[1]}"


@program(own_process=True, seconds=20)
def interrupted_create(pulsar: ModuleType, env: Env) -> Observed:
    server, url = _silent()
    client = pulsar.Client(url, operation_timeout_seconds=8)
    found = _interrupt(pulsar, env, lambda: client.create_producer("t"))
    server.close()
    return found


@program(own_process=True, seconds=15)
def interrupted_send(pulsar: ModuleType, env: Env) -> Observed:
    producer = env.client().create_producer(
        env.topic(), batching_enabled=True, batching_max_publish_delay_ms=5000, block_if_queue_full=True
    )
    for _ in range(5):
        found = _interrupt(pulsar, env, lambda: [producer.send(b"x") for _ in range(1_000_000)])
        # Between two calls the interrupt is not the client's.
        if found["errors"] != [env.describe(KeyboardInterrupt())]:
            break
    return found


@program(own_process=True, seconds=15)
def interrupted_in_another_thread(pulsar: ModuleType, env: Env) -> Observed:
    """The signal is sent to a thread that is not the main one; Python's handler runs in the main one all the same."""
    consumer = env.client().subscribe(env.topic(), "sub")

    def send() -> None:
        time.sleep(0.5)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    threading.Thread(target=send).start()
    began = time.monotonic()
    errors = _raised(env, lambda: consumer.receive(3000))
    return {"errors": errors, "soon": time.monotonic() - began < 0.5 + 2}


@program()
def pickled(pulsar: ModuleType, env: Env) -> Observed:
    client = env.client()
    place = pulsar.MessageId(0, 1, 2, 3)
    return {
        "client": env.error(lambda: pickle.dumps(client)) is not None,
        "enum": pickle.loads(pickle.dumps(pulsar.CompressionType.LZ4)) == pulsar.CompressionType.LZ4,
        "result": str(pickle.loads(pickle.dumps(pulsar.Result.Timeout))),
        "id": place.ledger_id(),
    }


@program()
def many_clients(pulsar: ModuleType, env: Env) -> Observed:
    topic = env.topic()
    for _ in range(5):
        client = env.client()
        client.create_producer(topic).send(b"x")
        client.close()
    reader = env.client().create_reader(topic, pulsar.MessageId.earliest)
    count = 0
    while reader.has_message_available():
        reader.read_next(5000)
        count += 1
    return {"count": count}


@program()
def with_statement(pulsar: ModuleType, env: Env) -> Observed:
    with contextlib.closing(env.client()) as client:
        producer = client.create_producer(env.topic())
        with contextlib.closing(producer):
            sent = producer.send(b"x").entry_id()
    return {"sent": sent, "closed": env.error(lambda: client.create_producer("t"))}


@program()
def threads_send_and_receive(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    threads = [threading.Thread(target=lambda: [producer.send(b"x") for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"received": len(env.drain(consumer, 80))}


@program(own_process=True)
def threads_after_clients_in_turn(pulsar: ModuleType, env: Env) -> Observed:
    before, left = _threads(), list[bool]()
    for _ in range(3):
        clients = [pulsar.Client(env.service_url) for _ in range(2)]
        for client in clients:
            client.create_producer(env.topic()).send(b"x")
        for client in clients:
            client.close()
        del client, clients
        gc.collect()
        left.append(_few_left(env, before + len(left)))
    return {"few left": left}


@program(own_process=True)
def threads_after_an_asyncio_client(pulsar: ModuleType, env: Env) -> Observed:
    before = _threads()

    async def main() -> None:
        client = env.module("asyncio").Client(env.service_url)
        await (await client.create_producer(env.topic())).send(b"x")
        await client.close()

    asyncio.run(main())
    gc.collect()
    return {"few left": _few_left(env, before)}
