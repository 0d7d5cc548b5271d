"""Arguments of an operator that a transfer derived from it does not have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pulsar_native.jobs import validation


def inherited_fields(template_fields: Collection[str], excluded: Collection[str]) -> tuple[str, ...]:
    """Return the template fields of the operator without those of arguments that the transfer does not have."""
    return tuple(name for name in template_fields if name not in excluded)


def refuse_excluded(given: Mapping[str, object], excluded: Collection[str], purpose: str) -> None:
    """Raise ValueError for an argument that the transfer does not have; None is the same as none."""
    for name in excluded:
        if given.get(name) is not None:
            validation.refuse(f"{purpose}: leave {name} out")


def excluded_defaults(constructor: Callable[..., None], excluded: Collection[str]) -> dict[str, Any]:
    """Return the operator's defaults of arguments that the transfer does not have.

    Airflow fills an argument that the operator's constructor is not given from `default_args`.
    """
    parameters = inspect.signature(constructor).parameters
    return {name: parameters[name].default for name in excluded}
