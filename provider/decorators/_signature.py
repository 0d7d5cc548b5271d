"""Functions without the parameters that a task fills itself.

Airflow checks the call of a decorated function in the DAG file by its signature, where those are not given.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

_ORIGINAL = "_pulsar_original"


def without_parameters(function: Callable[..., Any], names: Collection[str]) -> Callable[..., Any]:
    """Return the function with a signature that lacks the parameters `names`; `original` returns it as it was."""
    if hasattr(function, _ORIGINAL):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    signature = inspect.signature(function)
    kept = [each for each in signature.parameters.values() if each.name not in names]
    call.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    setattr(call, _ORIGINAL, function)
    return call


def original(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that `without_parameters` was given."""
    found: Callable[..., Any] = getattr(function, _ORIGINAL, function)
    return found
