"""Optional arguments of a task that must not be None or empty once they are given: by its author or by `expand`."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow.sdk import get_current_context
from airflow.sdk.definitions.mappedoperator import MappedOperator

from pulsar_native.jobs import validation

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator


class Given(validation.Given):
    """Names of optional arguments that a task was given, also by `expand` and `expand_kwargs`.

    `check` is for the time of the execution. Of `mappings` an empty one means what it says, and only None is nothing.
    """

    def __init__(self, owner: BaseOperator, *names: str, mappings: Sequence[str] = ()) -> None:
        super().__init__(owner, *names)
        self._optional = names
        self._mappings = mappings
        self._given_mappings = [name for name in mappings if getattr(owner, name) is not None]

    def check(self, owner: BaseOperator) -> None:  # type: ignore[override]  # an operator only
        """Raise for an argument that is or has become None or empty."""
        super().check(owner)
        for name in self._given_mappings:
            if getattr(owner, name) is None:
                validation.refuse(
                    f"{name} was given, but its template or upstream task returned None: leave it out, or return an "
                    "empty dict"
                )
        expanded = expanded_names(owner)
        for name in (*self._optional, *self._mappings):
            value = getattr(owner, name)
            is_missing = value is None if name in self._mappings else validation.is_nothing(value)
            if name in expanded and is_missing:
                validation.refuse(
                    f"{name} was given by expand or expand_kwargs, but is {value!r} for this mapped task: use "
                    f"expand_kwargs, and leave the key {name} out for such a task"
                )


def expanded_names(operator: BaseOperator) -> Collection[str]:
    """Return the names of the arguments that the running task got by `expand` or `expand_kwargs`.

    None of these is known to the constructor as given: it gets the resolved values, and None looks like the default.
    """
    dag = operator.get_dag()
    # In its DAG a mapped task is what it was before it was expanded.
    mapped = None if dag is None else dag.task_dict.get(operator.task_id)
    if not isinstance(mapped, MappedOperator):
        return ()
    # The Task SDK's attribute, though not in its documentation. A decorated function is expanded over its own
    # arguments, which are not here.
    given = mapped.expand_input
    if isinstance(given.value, Mapping):
        return given.value.keys()
    # With expand_kwargs each mapped task may have other keys.
    return given.resolve(get_current_context())[0].keys()


def is_of_worker(value: object) -> bool:
    """Return True for what Airflow resolves in the worker: a task's result, an argument of an expanded task group."""
    # Airflow's criterion: these have no common public class, and paths have another `resolve`.
    return callable(getattr(value, "resolve", None)) and not isinstance(value, os.PathLike)


def known_values(given: object) -> object:
    """Return a mapping without the values that are known in the worker only, anything else as it is."""
    if not isinstance(given, Mapping):
        return given
    return {name: value for name, value in given.items() if not is_of_worker(value)}
