"""Arguments of an operator that a transfer derived from it does not have."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pulsar_native.jobs import validation


def inherited_fields(template_fields: Collection[str], excluded: Collection[str]) -> tuple[str, ...]:
    """Return the template fields of the operator without those of arguments that the transfer does not have."""
    return tuple(name for name in template_fields if name not in excluded)


def refuse_excluded(given: Mapping[str, object], excluded: Collection[str], purpose: str) -> None:
    """Raise ValueError for an argument that the transfer does not have; None is the same as none."""
    for name in excluded:
        if given.get(name) is not None:
            validation.refuse(f"{purpose}: leave {name} out")
