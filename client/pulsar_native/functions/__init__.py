"""Interfaces of Pulsar functions: function, context and SerDe classes.

Rules: no function runs here; the functions runtime calls it with a context.
"""

from pulsar_native.functions.context import Context
from pulsar_native.functions.function import Function
from pulsar_native.functions.serde import IdentitySerDe, PickleSerDe, SerDe

__all__ = ["Context", "Function", "IdentitySerDe", "PickleSerDe", "SerDe"]
