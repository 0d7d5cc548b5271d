"""Functions are called by the runtime as `process(input, context)`, whichever client they are written for."""

from __future__ import annotations

import inspect
from typing import Any

import pulsar

from pulsar_native.functions import Context, Function


class Exclaim(Function):
    """A function with state in its context."""

    def process(self, input: Any, context: Context) -> Any:
        """Return the input with the function's name."""
        return f"{input} {context.get_function_name()}!"


class Runtime(Context):
    """A runtime's context."""

    def get_function_name(self) -> str:
        """Return a name."""
        return "exclaim"


def test_function_is_called_with_input_and_context() -> None:
    assert Exclaim().process("a", Runtime()) == "a exclaim!"


def test_function_has_the_official_signature() -> None:
    ours, theirs = (list(inspect.signature(kind.process).parameters) for kind in (Function, pulsar.Function))
    assert ours == theirs
