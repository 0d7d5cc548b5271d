"""Support of push consumer tests: starting push consumers, and handlers that record their messages."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pulsar_native import ConsumeConcurrentlyStatus, ConsumeFromWhere, ConsumeOrderlyStatus, PushConsumerConfig
from support.apis import Api

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
IN_ORDER = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

Handler = Callable[[list[Any], Any], Any]


class Recorder:
    """A handler that remembers its calls and answers what a function says."""

    def __init__(self, answer: Any = SUCCESS) -> None:
        self._answer = answer
        self._lock = threading.Lock()
        self.calls: list[list[bytes]] = []
        self.contexts: list[Any] = []

    def __call__(self, messages: list[Any], context: Any) -> Any:
        with self._lock:
            self.calls.append([message.data() for message in messages])
            self.contexts.append(context)
        return self._answer(messages, context) if callable(self._answer) else self._answer

    @property
    def seen(self) -> list[bytes]:
        """The contents of all messages, in the order of the calls."""
        with self._lock:
            return [content for call in self.calls for content in call]


class Gate:
    """A handler that is held at some messages until it is opened."""

    def __init__(self, holds: Callable[[bytes], bool] = lambda _content: True, answer: Any = SUCCESS) -> None:
        self._holds = holds
        self._answer = answer
        self.opened = threading.Event()
        self.recorder = Recorder(answer)

    def __call__(self, messages: list[Any], context: Any) -> Any:
        result = self.recorder(messages, context)
        if any(self._holds(message.data()) for message in messages):
            assert self.opened.wait(60)
        return result


class Started:
    """Makes and starts push consumers, and shuts them down after the test."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._made: list[Any] = []
        self._gates: list[Gate] = []

    def make(self, client: Any, topics: str | Sequence[str], handler: Handler, **options: Any) -> Any:
        """Return a push consumer that is not started. Options beyond the settings: orderly, expression."""
        orderly, expression = options.pop("orderly", False), options.pop("expression", "*")
        settings = {
            "consumer_group": f"group-{uuid.uuid4().hex[:8]}",
            "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
            "consume_thread_min": 1,
            "consume_thread_max": 4,
            **options,
        }
        push_consumer = self.api.push_consumer(client, PushConsumerConfig(**settings))
        for name in [topics] if isinstance(topics, str) else topics:
            push_consumer.subscribe(name, expression)
        if isinstance(handler, Gate):
            self._gates.append(handler)
        handle = self.api.handler(handler)
        push_consumer.register_message_listener(**{"orderly" if orderly else "concurrently": handle})
        self._made.append(push_consumer)
        return push_consumer

    def __call__(self, client: Any, topics: str | Sequence[str], handler: Handler, **options: Any) -> Any:
        """Return a push consumer that runs."""
        push_consumer = self.make(client, topics, handler, **options)
        push_consumer.start()
        return push_consumer

    def close(self) -> None:
        """Shut down what the test left."""
        for gate in self._gates:
            gate.opened.set()
        for push_consumer in self._made:
            push_consumer.shutdown(0)


def core_of(push_consumer: Any) -> Any:
    """Return the engine's side of a push consumer of either API."""
    return getattr(push_consumer, "target", push_consumer)._core


def publish(api: Api, client: Any, name: str, contents: Sequence[bytes], **message: Any) -> list[Any]:
    """Publish one entry for each content, and return the ids."""
    producer = client.create_producer(name, batching_enabled=False)
    ids = api.send_all(producer, contents, **message)
    producer.close()
    return ids


def numbered(count: int, prefix: str = "") -> list[bytes]:
    """Return so many contents."""
    return [f"{prefix}{number}".encode() for number in range(count)]


def backlog(stats: Callable[[str], Any], name: str, group: str) -> int:
    """Return how many messages a group has not acknowledged."""
    return int(stats(name)["subscriptions"][group]["msgBacklog"])


def messages_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the push consumers have logged."""
    return [record.getMessage() for record in caplog.records if record.name == "pulsar_native.push_consumer"]
