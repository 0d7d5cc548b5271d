"""Schema of an application whose payloads are not as the interface says."""

from __future__ import annotations

from typing import Any

from pulsar_native.schema import BytesSchema


class EncodesTo(BytesSchema):
    """Schema that encodes each value to one object, of any type."""

    def __init__(self, payload: Any) -> None:
        super().__init__()
        self._payload = payload

    def encode(self, obj: object) -> Any:
        """Return the object."""
        return self._payload
