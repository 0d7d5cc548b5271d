"""The publish operator in tests: made with few words, and what it left in a topic."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from airflow_provider_pulsar.operators.publish import PublishOperator
from pulsar_native import Client, Message, MessageId
from support.brokers import Broker
from support.tasks import StateStore


class FileStateStore(StateStore):
    """Airflow's task state store in a file, so that it outlives a process that is killed."""

    def __init__(self, path: Path) -> None:
        super().__init__(json.loads(path.read_text()) if path.exists() else {})
        self._path = path

    def set(self, key: str, value: Any, **options: object) -> None:
        """Keep a value in the file."""
        super().set(key, value, **options)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self))
        fresh.replace(self._path)


def publish(topic: str, messages: object = None, **options: Any) -> PublishOperator:
    """Return the operator; without deduplication unless asked for."""
    options.setdefault("deduplicate", False)
    return PublishOperator(task_id="a_task", topic=topic, messages=messages, **options)


def read_all(broker: Broker, topic: str) -> list[Message]:
    """Return everything in a topic, partition by partition."""
    found = []
    with Client(broker.service_url) as client:
        for name in client.get_topic_partitions(topic):
            with client.create_reader(name, MessageId.earliest) as reader:
                while reader.has_message_available():
                    found.append(reader.read_next(5000))
    return found


def texts(broker: Broker, topic: str) -> list[str]:
    """Return the texts in a topic."""
    return [message.data().decode() for message in read_all(broker, topic)]


def numbers(broker: Broker, topic: str) -> Counter[int]:
    """Return how often each {"n": number} is in a topic."""
    return Counter(json.loads(message.data())["n"] for message in read_all(broker, topic))
