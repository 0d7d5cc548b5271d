"""Values of Airflow's task context: identity of the task instance, callables with context, storage paths.

Rule: names depend on dag, task, run and map index only, so that all tries and clearings share them.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs import validation

if TYPE_CHECKING:
    from airflow.sdk import Context

_LONGEST_NAME = 240
# Characters of an exception's text, far below the largest message of a broker.
_ERROR_LENGTH = 64 * 1024


@dataclass(frozen=True)
class TaskIdentity:
    """One task instance, in any of its tries."""

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
    def text(self) -> str:
        """Default identity of this task instance's publication."""
        return f"{self.dag_id}/{self.task_id}/{self.map_index}/{self.run_id}"

    def producer_name(self, deployment_id: str, identity: str | None = None) -> str:
        """Return the producer name of an identity, by default this one.

        It has deployment and identity; the end of a longer one is a digest.
        """
        name = f"airflow/{deployment_id}/{identity or self.text}"
        if len(name) <= _LONGEST_NAME:
            return name
        return f"{name[: _LONGEST_NAME - 33]}/{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    @property
    def subscription(self) -> str:
        """Subscription of the task, shared by all its runs."""
        return f"airflow/{self.dag_id}/{self.task_id}"

    def as_properties(self) -> dict[str, str]:
        """Return the identity as producer or consumer properties, for the broker's statistics."""
        return {
            "airflow.dag_id": self.dag_id,
            "airflow.task_id": self.task_id,
            "airflow.run_id": self.run_id,
            "airflow.map_index": str(self.map_index),
        }


def call_with_context(function: Callable[..., Any], context: Context, op_kwargs: Mapping[str, Any]) -> Any:
    """Call the function with `op_kwargs`, and with the context values that its parameters name."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return function(**{**context, **op_kwargs})
    values: Any = context
    wanted = (each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.POSITIONAL_ONLY))
    return function(**{name: values[name] for name in wanted if name in values and name not in op_kwargs}, **op_kwargs)


def redacted(text: str) -> str:
    """Return a text without the secrets that Airflow knows of."""
    from airflow.sdk.log import redact  # type: ignore[attr-defined]  # not in its __all__

    return str(redact(text))


def error_text(error: object) -> str:
    """Return the first 65,536 characters of an exception's text, without the secrets that Airflow knows of."""
    from pulsar_native.jobs.failures import text_of

    return redacted(text_of(error))[:_ERROR_LENGTH]


def path_text(path: object) -> Any:
    """Return the text of a path of `pathlib` or an ObjectStoragePath, anything else as it is."""
    from airflow.sdk import ObjectStoragePath

    if isinstance(path, ObjectStoragePath):
        if path.serialize()["kwargs"]:
            validation.refuse(f"{str(path)!r} is an ObjectStoragePath with options: give them in its connection")
        return str(path)
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def storage_path(text: str) -> Any:
    """Return Airflow's ObjectStoragePath of a path or URL; raises ValueError for one that Airflow cannot open.

    May block for the connection of the storage.
    """
    from airflow.sdk import ObjectStoragePath

    if text.startswith("file:") and not text.startswith("file:///"):
        validation.refuse(f"{text!r} names no file in full: write file:///folder/name, or the path alone")
    try:
        path = ObjectStoragePath(text)
        # Airflow asks for it when a file is opened, where this would be an error of the file.
        path.fs  # noqa: B018
    except ValueError as error:
        validation.refuse(
            f"{text!r} cannot be opened: {error}. Check the scheme, and install the Airflow provider of that storage"
        )
    return path
