"""Error classes: construction, text, result, and the tree they form."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from compat.program import Env, Observed, program
from compat.programs.names import NAMES


@program(cases={name: (name,) for name in NAMES["exceptions"].split()})
def construct(pulsar: ModuleType, env: Env, name: str) -> Observed:
    kind = getattr(pulsar, name)
    made = [kind(), kind("text"), kind("a", 1), kind(pulsar.Result.Timeout), kind(None)]
    return {
        "str": [str(each) for each in made],
        "args": [[str(part) for part in each.args] for each in made],
        "catch": isinstance(made[0], pulsar.PulsarException),
        "name": kind.__name__,
        "repr": repr(made[1]),
    }


@program()
def raised_by_a_call(pulsar: ModuleType, env: Env) -> Observed:
    consumer = env.client().subscribe(env.topic(), "sub")
    try:
        consumer.receive(50)
    except pulsar.Timeout as error:
        caught = error
    return {
        "type": type(caught).__name__,
        "args": len(caught.args),
        "is Exception": isinstance(caught, Exception),
    }


@program()
def asyncio_exception(pulsar: ModuleType, env: Env) -> Observed:
    kind = env.module("asyncio").PulsarException
    plain, told = kind(pulsar.Result.Timeout), kind(pulsar.Result.AlreadyClosed, "gone")
    return {
        "str": [str(plain), str(told)],
        "error": [str(plain.error()), str(told.error())],
        "is Exception": isinstance(plain, Exception),
        "none": env.error(kind),
        "args": [len(plain.args), len(told.args)],
        "keyword": str(kind(pulsar.Result.Timeout, msg="late")),
    }


@program()
def asyncio_raised(pulsar: ModuleType, env: Env) -> Observed:
    module = env.module("asyncio")

    async def main() -> Observed:
        client = module.Client(env.service_url)
        producer = await client.create_producer(env.topic())
        await producer.close()
        try:
            await producer.send(b"x")
        except module.PulsarException as error:
            return {
                "error": str(error.error()), "name": error.error().name, "value": error.error().value,
                "is": error.error() == pulsar.Result.AlreadyClosed,
            }  # fmt: skip
        finally:
            await client.close()
        return {}

    return env.run(main())


@program()
def interrupted_is(pulsar: ModuleType, env: Env) -> Observed:
    return {
        "pulsar": issubclass(pulsar.Interrupted, pulsar.PulsarException),
        "exception": issubclass(pulsar.Interrupted, Exception),
        "keyboard": issubclass(pulsar.Interrupted, KeyboardInterrupt),
    }


@program()
def texts(pulsar: ModuleType, env: Env) -> Observed:
    client, topic = env.client(), env.topic()
    producer, consumer = client.create_producer(topic), client.subscribe(topic, "sub")
    calls: dict[str, Any] = {
        "receive": lambda: consumer.receive(20),
        "busy": lambda: client.subscribe(topic, "sub"),
        "type": lambda: producer.send("x"),
        "topic": lambda: client.create_producer(topic, schema=5),
    }
    found = {}
    for label, call in calls.items():
        try:
            call()
        except Exception as error:
            found[label] = env.short(str(error))
    return found


@program()
def asyncio_texts(pulsar: ModuleType, env: Env) -> Observed:
    module = env.module("asyncio")

    async def main() -> Observed:
        client = module.Client(env.service_url)
        producer = await client.create_producer(env.topic())
        await producer.close()
        try:
            await producer.send(b"x")
        except module.PulsarException as error:
            return {"closed": env.short(str(error))}
        finally:
            await client.close()
        return {}

    return env.run(main())


@program()
def python_errors_they_are(pulsar: ModuleType, env: Env) -> Observed:
    kinds = (OSError, TimeoutError, ConnectionError, ValueError, TypeError)
    names = ("Timeout", "ConnectError", "InvalidMessage", "InvalidConfiguration", "AlreadyClosed", "InvalidTopicName")
    return {name: [kind.__name__ for kind in kinds if issubclass(getattr(pulsar, name), kind)] for name in names}
