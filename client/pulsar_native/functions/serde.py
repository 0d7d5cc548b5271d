"""How a Pulsar function's inputs and outputs become bytes, and back."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from typing import Any


class SerDe:
    """An encoding of values: derive from it and implement both methods."""

    @abstractmethod
    def serialize(self, input: Any) -> bytes:
        """Return the bytes of a value."""

    @abstractmethod
    def deserialize(self, input_bytes: bytes) -> Any:
        """Return the value of bytes."""


class PickleSerDe(SerDe):
    """Python's pickle; only for messages of producers you trust, since reading one can run any code."""

    def serialize(self, input: Any) -> bytes:
        """Return the pickled value."""
        return pickle.dumps(input)

    def deserialize(self, input_bytes: bytes) -> Any:
        """Return the value of a pickle."""
        return pickle.loads(input_bytes)


class IdentitySerDe(SerDe):
    """Numbers and text as text in UTF-8, bytes as they are."""

    _kinds = (int, float, complex, str)

    def serialize(self, input: Any) -> bytes:
        """Return the text of a number or a str, or the bytes; raises TypeError for another type."""
        if type(input) in self._kinds:
            return str(input).encode()
        if type(input) is bytes:
            return input
        raise TypeError(f"IdentitySerDe takes int, float, complex, str and bytes, not {type(input).__name__}")

    def deserialize(self, input_bytes: bytes) -> Any:
        """Return the first of int, float, complex and str that the bytes are the text of, else the bytes."""
        for kind in self._kinds:
            try:
                return kind(input_bytes.decode())
            except ValueError:
                continue
        return input_bytes
