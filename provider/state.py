"""Task state that survives retries and clearing: small JSON values in Airflow's task state store.

Rule: a value never expires. It is lost when its run is deleted, with `[state_store] clear_on_success`, or by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Context


def cycle_of(context: Context, retries: int | None) -> dict[str, Any]:
    """Return what the tries of a task have in common until it is cleared, with its option `retries`.

    Clearing sets the limit of tries to those made and `retries` more, a retry does not change it. Where `retries` was
    lowered in between, clearing may leave the limit as it was: it counts as cleared when `retries` has changed.
    """
    return {"max_tries": context["ti"].max_tries, "retries": retries}


class TaskState:
    """JSON values of a task instance, kept over its tries and clearing. Blocks for Airflow's answer."""

    def __init__(self, context: Context, key: str) -> None:
        self._store: Any = context.get("task_state_store")
        self._key = key

    def get(self) -> dict[str, Any] | None:
        """Return the value, None without one."""
        found = self._store.get(self._key) if self._store is not None else None
        return found if isinstance(found, dict) else None

    def set(self, value: Mapping[str, Any]) -> None:
        """Replace the value, which never expires; raises Airflow's error if it cannot be stored."""
        from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # its stub file lacks the name

        if self._store is not None:
            self._store.set(self._key, dict(value), retention=NEVER_EXPIRE)

    def delete(self) -> None:
        """Delete the value."""
        if self._store is not None:
            self._store.delete(self._key)
