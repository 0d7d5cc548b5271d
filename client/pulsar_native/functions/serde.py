"""SerDe classes: encoding of a Pulsar function's inputs and outputs."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from typing import Any


class SerDe:
    """Base of SerDe classes; subclasses implement both methods."""

    @abstractmethod
    def serialize(self, input: Any) -> bytes:
        """Return the bytes of a value."""

    @abstractmethod
    def deserialize(self, input_bytes: bytes) -> Any:
        """Return the value of bytes."""


class PickleSerDe(SerDe):
    """SerDe with pickle, for trusted producers only: loading a pickle can execute any code."""

    def serialize(self, input: Any) -> bytes:
        """Return the pickled value."""
        return pickle.dumps(input)

    def deserialize(self, input_bytes: bytes) -> Any:
        """Return the value of a pickle."""
        return pickle.loads(input_bytes)


class IdentitySerDe(SerDe):
    """SerDe of numbers and text as UTF-8 text; bytes stay unchanged."""

    _kinds = (int, float, complex, str)

    def serialize(self, input: Any) -> bytes:
        """Return the text of a number or a str, or the bytes; raises TypeError for another type."""
        if type(input) in self._kinds:
            return str(input).encode()
        if type(input) is bytes:
            return input
        raise TypeError(f"IdentitySerDe takes int, float, complex, str and bytes, not {type(input).__name__}")

    def deserialize(self, input_bytes: bytes) -> Any:
        """Return the bytes decoded as the first possible one of int, float, complex and str, else the bytes."""
        for kind in self._kinds:
            try:
                return kind(input_bytes.decode())
            except ValueError:
                continue
        return input_bytes
