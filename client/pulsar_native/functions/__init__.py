"""What programs written as Pulsar functions import: the interface of a function, its context, and encodings.

Rules: nothing runs here; the runtime that calls a function gives it the context.
"""

from pulsar_native.functions.context import Context
from pulsar_native.functions.function import Function
from pulsar_native.functions.serde import IdentitySerDe, PickleSerDe, SerDe

__all__ = ["Context", "Function", "IdentitySerDe", "PickleSerDe", "SerDe"]
