"""JSON values of what messages and rows hold."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from uuid import UUID

from pulsar_native.jobs.json_values import json_safe
from pulsar_native.schema import SchemaType


class Color(Enum):
    """An enumeration in a message."""

    RED = "red"


class Level(IntEnum):
    """An enumeration of numbers."""

    HIGH = 3


def test_json_safe_other_types() -> None:
    value = {
        1: b"\xff",
        "t": (date(2026, 1, 2), time(3, 4), datetime(2026, 1, 2, tzinfo=UTC)),
        "n": [Decimal("1.10"), UUID(int=0), float("-inf"), 1.5, True, None],
        "e": Color.RED,
        "s": {5},
        "o": SchemaType.AVRO.__class__,
    }
    found = json_safe(value)
    json.dumps(found, allow_nan=False)
    assert found["1"] == {"base64": base64.b64encode(b"\xff").decode()}
    assert found["t"] == ["2026-01-02", "03:04:00", "2026-01-02T00:00:00+00:00"]
    assert found["n"] == ["1.10", str(UUID(int=0)), "-inf", 1.5, True, None]
    assert (found["e"], found["s"], found["o"]) == ("red", [5], str(SchemaType))


def test_json_safe_values_of_enumerations_and_views() -> None:
    assert json_safe({"level": Level.HIGH, Color.RED: memoryview(b"a")}) == {
        "level": 3,
        "Color.RED": {"base64": "YQ=="},
    }
    assert json_safe(float("nan")) == "nan" and type(json_safe(Level.HIGH)) is int
