"""Functions without the parameters that a task fills itself.

Airflow checks the call of a decorated function, `partial` and `expand` in the DAG file by its signature, where those
are not given. It does not check the names of a function with `**kwargs`: `refuse_given` does, in the constructor of the
task, which for a mapped task is called in the worker.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import task_decorator_factory

from pulsar_native.jobs import validation

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import TaskDecorator

_ORIGINAL = "_pulsar_original"


def without_parameters(function: Callable[..., Any], names: Collection[str]) -> Callable[..., Any]:
    """Return the function with a signature that lacks the parameters `names`; `original` returns it as it was."""
    if hasattr(function, _ORIGINAL):
        return function

    def calling(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # In the globals of the function, by which Airflow reads its annotations.
    call = types.FunctionType(
        calling.__code__, getattr(function, "__globals__", globals()), closure=calling.__closure__
    )
    functools.update_wrapper(call, function)
    signature = inspect.signature(function)
    kept = [each for each in signature.parameters.values() if each.name not in names]
    call.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    setattr(call, _ORIGINAL, function)
    return call


def original(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that `without_parameters` was given."""
    found: Callable[..., Any] = getattr(function, _ORIGINAL, function)
    return found


def task_decorator(
    python_callable: Callable[..., Any] | None, parameters: Collection[str], **options: Any
) -> TaskDecorator:
    """Return Airflow's decorator for functions, which sees them without the parameters that the task fills.

    :param python_callable: the function; None where the decorator is used with arguments.
    :param parameters: names of the parameters that the task fills.
    :param options: the other arguments of `task_decorator_factory`.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        # Airflow raises for what cannot be called.
        known = without_parameters(function, parameters) if callable(function) else function
        return task_decorator_factory(known, **options)

    made: Any = decorate if python_callable is None else decorate(python_callable)
    return made  # type: ignore[no-any-return]


def refuse_given(decorator: str, parameters: Collection[str], names: Collection[object] | None) -> None:
    """Raise ValueError for arguments of the function's call that the task fills.

    :param decorator: the decorator, for the error.
    :param parameters: names of the parameters that the task fills.
    :param names: names of the call's arguments, None for none.
    """
    for name in parameters:
        if name in (names or ()):
            validation.refuse(f"{decorator} gives {name} to its function: leave it out of the call")
