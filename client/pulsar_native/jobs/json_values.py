"""JSON values of whatever a message or a row may hold.

May import nothing of the client: processes that parse DAGs import this. Bytes are written as marked base64 only.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

_DEPTH = 50
_LEAST, _MOST = -(2**63), 2**64 - 1


def json_safe(value: Any) -> Any:
    """Return a JSON value: bytes as {"base64": …}, times as ISO-8601, decimals and UUIDs as text."""
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): json_safe(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [json_safe(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Enum):
        return json_safe(value.value)
    if isinstance(value, Decimal | UUID):
        return str(value)
    return str(value)


def storable(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a message, or a part of one with its value and encoding, as Airflow's databases store it.

    JSONB of PostgreSQL has no NUL: a text with one becomes base64, which keeps it; elsewhere see `encodable`.
    """
    found = dict(record)
    if found.get("encoding") == "text" and "\0" in found["value"]:
        found |= {"value": base64.b64encode(found["value"].encode()).decode(), "encoding": "base64"}
    return {name: encodable(value) for name, value in found.items()}


def encodable(value: Any, depth: int = _DEPTH) -> Any:
    """Return a JSON value that every encoder and every database takes.

    Integers beyond 64 bits become text, NUL and a surrogate without its pair a question mark, and what is nested deeper
    than `depth` its JSON text.
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        return str(value)
    if not isinstance(value, dict | list):
        return value
    if depth == 0:
        return json.dumps(value)
    if isinstance(value, list):
        return [encodable(each, depth - 1) for each in value]
    return {_text(name): encodable(each, depth - 1) for name, each in value.items()}


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        value = value.encode(errors="replace").decode()
    return value.replace("\0", "?")
