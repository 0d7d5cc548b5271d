"""Consumers with a message listener: calls, pauses, closes."""

from __future__ import annotations

import threading
import time
from types import ModuleType
from typing import Any

from compat.program import Calls, Env, Observed, program, text


@program()
def listener(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    calls, errors, kinds = Calls(), [], []

    def hear(consumer: Any, message: Any) -> None:
        errors.append(env.error(lambda: consumer.acknowledge(message)))
        kinds.append([isinstance(consumer, pulsar.Consumer), isinstance(message, pulsar.Message)])
        calls(consumer, message)

    consumer = client.subscribe(topic, "sub", message_listener=hear)
    producer = client.create_producer(topic)
    for number in range(3):
        producer.send(b"%d" % number)
    called = calls.wait(3)
    return {
        "called": called,
        "contents": [text(message.data()) for _, message in calls.seen],
        "kinds": kinds,
        "errors": errors,
        "topic": env.short(calls.seen[0][0].topic()),
        "subscription": calls.seen[0][0].subscription_name(),
        "thread": [len(calls.threads), threading.get_ident() in calls.threads],
        "receive": env.error(lambda: consumer.receive(100)),
        "receive without time-out": env.error(consumer.receive),
        "batch": env.error(consumer.batch_receive),
    }


@program()
def listener_paused(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    calls = Calls()
    consumer = client.subscribe(topic, "sub", message_listener=calls)
    producer = client.create_producer(topic)
    producer.send(b"0")
    calls.wait(1)
    answers = [consumer.pause_message_listener()]
    producer.send(b"1")
    time.sleep(0.4)
    during = len(calls.seen)
    answers.append(consumer.resume_message_listener())
    twice = [consumer.resume_message_listener, consumer.pause_message_listener, consumer.pause_message_listener]
    return {
        "answers": answers,
        "during": during,
        "after": calls.wait(2),
        "twice": [env.error(each) for each in twice],
    }


@program()
def pause_without_listener(pulsar: ModuleType, env: Env) -> Observed:
    consumer = env.client().subscribe(env.topic(), "sub")
    return {
        "pause": env.error(consumer.pause_message_listener),
        "resume": env.error(consumer.resume_message_listener),
    }


@program()
def listener_that_raises(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    calls = Calls()

    def hear(consumer: Any, message: Any) -> None:
        calls(consumer, message)
        if message.data() == b"0":
            raise ValueError("of the application")

    client.subscribe(topic, "sub", message_listener=hear)
    producer = client.create_producer(topic)
    for number in range(3):
        producer.send(b"%d" % number)
    return {"called": calls.wait(3, 5)}


@program()
def listener_at_close(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    calls, failed = Calls(), []

    def hear(consumer: Any, message: Any) -> None:
        time.sleep(0.002)
        calls(consumer, message)
        if (error := env.error(lambda: consumer.acknowledge(message))) is not None:
            failed.append(error)

    consumer = client.subscribe(topic, "sub", message_listener=hear)
    producer = client.create_producer(topic)
    for _ in range(500):
        producer.send_async(b"x", lambda result, place: None)
    producer.flush()
    calls.wait(20)
    before = len(calls.seen)
    consumer.close()
    after = len(calls.seen)
    time.sleep(0.5)
    return {
        # Not those in the queue, some 480; on a busy machine some pass before close() is even begun.
        "few during close": after - before <= 200,
        "none after": len(calls.seen) - after <= 1,
        "failed": len(failed) <= 1,
    }


def _close_in_a_listener(env: Env, *, subscribed: bool) -> Observed:
    """Close the consumer that the listener is given, or the one that `subscribe` returned."""
    client, topic = env.client(), env.topic()
    calls, made = Calls(), list[Any]()

    def hear(consumer: Any, message: Any) -> None:
        consumer.acknowledge(message)
        calls(env.error((made[0] if subscribed else consumer).close))

    made.append(client.subscribe(topic, "sub", message_listener=hear))
    client.create_producer(topic).send(b"x")
    return {
        "called": calls.wait(1),
        "error": calls.seen[0][0],
        "again": env.error(lambda: client.subscribe(topic, "sub")),
    }


@program()
def close_in_a_listener(pulsar: ModuleType, env: Env) -> Observed:
    return _close_in_a_listener(env, subscribed=False)


@program()
def close_of_the_subscribed_in_a_listener(pulsar: ModuleType, env: Env) -> Observed:
    return _close_in_a_listener(env, subscribed=True)


@program()
def listener_at_client_close(pulsar: ModuleType, env: Env) -> Observed:
    client, topic, calls = env.client(), env.topic(), Calls()

    def hear(consumer: Any, message: Any) -> None:
        time.sleep(0.002)
        calls(env.error(lambda: consumer.acknowledge(message)))

    client.subscribe(topic, "sub", message_listener=hear)
    producer = client.create_producer(topic, batching_enabled=True)
    for _ in range(300):
        producer.send_async(b"x", lambda result, place: None)
    producer.flush()
    calls.wait(10)
    client.close()
    after = len(calls.seen)
    time.sleep(0.5)
    return {
        "none after": len(calls.seen) - after <= 1,
        "failed": sum(error is not None for (error,) in calls.seen) <= 1,
    }


@program(
    cases={"receive": (lambda consumer: consumer.receive(2000),), "batch": (lambda consumer: consumer.batch_receive(),)}
)
def receive_in_a_send_callback(pulsar: ModuleType, env: Env, call: Any) -> Observed:
    client, topic, calls = env.client(), env.topic(), Calls()
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    producer.send(b"first")
    # The receipt of the second then follows the first message on the connection of both.
    stats = topic.replace("://", "/") + "/stats"
    env.until(lambda: env.admin("GET", stats)["subscriptions"]["sub"]["msgOutCounter"] == 1)
    producer.send_async(b"second", lambda result, place: calls(env.error(lambda: call(consumer))))
    return {"called": calls.wait(1), "error": calls.seen and calls.seen[0][0]}
