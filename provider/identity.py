"""Who a task instance is to Pulsar: names that every try and every clearing of it share, and what it remembers.

Rules: the names depend on dag, task, run and map index only; what is remembered is small, JSON, and kept in Airflow's
task state store, which survives retries and clearing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Context

_LONGEST_NAME = 240


@dataclass(frozen=True)
class TaskIdentity:
    """One task instance, whatever its try."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int

    @staticmethod
    def of(context: Context) -> TaskIdentity:
        """Return the identity of the running task."""
        ti = context["ti"]
        map_index = ti.map_index
        return TaskIdentity(ti.dag_id, ti.task_id, ti.run_id, -1 if map_index is None else map_index)

    @property
    def producer_name(self) -> str:
        """The name under which the broker remembers what this task instance published."""
        name = f"airflow/{self.dag_id}/{self.task_id}/{self.map_index}/{self.run_id}"
        if len(name) <= _LONGEST_NAME:
            return name
        return f"{name[: _LONGEST_NAME - 33]}/{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    @property
    def subscription(self) -> str:
        """The subscription of the task, shared by all its runs."""
        return f"airflow/{self.dag_id}/{self.task_id}"

    def as_properties(self) -> dict[str, str]:
        """Return the identity for the broker's statistics."""
        return {"airflow.dag_id": self.dag_id, "airflow.task_id": self.task_id, "airflow.run_id": self.run_id}


class TaskMemory:
    """A few JSON values of a task instance, kept over its tries and clearing. Blocks for Airflow's answer."""

    def __init__(self, context: Context, key: str) -> None:
        self._store: Any = context.get("task_state_store")
        self._key = key

    def recall(self) -> dict[str, Any] | None:
        """Return what was remembered, None for nothing."""
        found = self._store.get(self._key) if self._store is not None else None
        return found if isinstance(found, dict) else None

    def remember(self, value: Mapping[str, Any]) -> None:
        """Replace what is remembered; raises Airflow's error when it cannot be stored."""
        if self._store is not None:
            self._store.set(self._key, dict(value))

    def forget(self) -> None:
        """Remember nothing."""
        if self._store is not None:
            self._store.delete(self._key)
