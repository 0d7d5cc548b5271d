"""Names of types for errors: a class of the official client, `pulsar-client`, has the name of one of this package.

May not import anything of the package.
"""

from __future__ import annotations

_OFFICIAL = ("pulsar", "_pulsar")


def type_name(value: object) -> str:
    """Return the name of a value's type, with the module and the fix for a type of the official client."""
    return class_name(type(value))


def class_name(kind: type) -> str:
    """Return the name of a class, as `type_name` does."""
    return kind.__name__ + origin(kind)


def origin(kind: type) -> str:
    """Return a remark if the class or one of its bases is of the official client, else an empty text."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in _OFFICIAL:
            full = f"{base.__module__}.{base.__qualname__}"
            return f" ({full} of the package pulsar-client: import it from pulsar_native)"
    return ""
