"""Schemas of an application: payloads that are not as the interface says, contents that can be read once."""

from __future__ import annotations

from typing import IO, Any

from pulsar_native.schema import BytesSchema


class EncodesTo(BytesSchema):
    """Schema that encodes each value to one object, of any type."""

    def __init__(self, payload: Any) -> None:
        super().__init__()
        self._payload = payload

    def encode(self, obj: object) -> Any:
        """Return the object."""
        return self._payload


class ReadsFiles(BytesSchema):
    """Schema of files, which it reads to their ends; an empty one raises."""

    def encode(self, obj: IO[bytes]) -> Any:  # type: ignore[override]
        """Return the rest of a file, as a bytearray if it starts with `array`."""
        left = obj.read()
        if not left:
            raise EOFError("the file is empty")
        return bytearray(left) if left.startswith(b"array") else left
