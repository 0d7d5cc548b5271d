"""Support of ConsumeBatchOperator's tests: topics with messages, the operator on one subscription, its outputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from pulsar_native import Client
from pulsar_native.schema import Schema


def fill(client: Client, topic: str, values: Sequence[Any], *, batch: int = 1000, **options: Any) -> None:
    """Publish values in entries of `batch` messages."""
    schema: Schema[Any] | None = options.pop("schema", None)
    producer = client.create_producer(
        topic,
        schema=schema,
        batching_enabled=batch > 1,
        batching_max_messages=batch,
        batching_max_publish_delay_ms=5000,
        block_if_queue_full=True,
    )
    for value in values:
        data = value if schema is not None or isinstance(value, bytes) else str(value).encode()
        producer.send_async(data, None, **options)
    producer.flush()
    producer.close()


def consume(topic: str | list[str] | None, path: Path | None = None, **options: Any) -> ConsumeBatchOperator:
    """Return the operator on the subscription "sub"."""
    options.setdefault("subscription", "sub")
    return ConsumeBatchOperator(task_id="a_task", topic=topic, path=None if path is None else str(path), **options)


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of an output."""
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def texts(path: Path) -> list[str]:
    """Return the values of an output."""
    return [each["value"] for each in lines(path)]


def beside(path: Path) -> dict[str, Any]:
    """Return the manifest beside an output."""
    found: dict[str, Any] = json.loads((path.parent / f"_{path.name}.manifest.json").read_text())
    return found
