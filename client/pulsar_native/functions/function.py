"""Interface of a Pulsar function."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from pulsar_native.functions.context import Context


class Function:
    """Base of Pulsar functions; subclasses implement `process`."""

    @abstractmethod
    def process(self, input: Any, context: Context) -> Any:
        """Return the output for a message's value, None for none."""
