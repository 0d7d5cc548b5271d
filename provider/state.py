"""State of a task instance that survives retries and clearing: small JSON values in Airflow's task state store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Context


class TaskState:
    """A few JSON values of a task instance, kept over its tries and clearing. Blocks for Airflow's answer."""

    def __init__(self, context: Context, key: str) -> None:
        self._store: Any = context.get("task_state_store")
        self._key = key

    def get(self) -> dict[str, Any] | None:
        """Return the value, None for none."""
        found = self._store.get(self._key) if self._store is not None else None
        return found if isinstance(found, dict) else None

    def set(self, value: Mapping[str, Any]) -> None:
        """Replace the value; raises Airflow's error when it cannot be stored."""
        if self._store is not None:
            self._store.set(self._key, dict(value))

    def delete(self) -> None:
        """Delete the value."""
        if self._store is not None:
            self._store.delete(self._key)
