"""Primitive values as Arrow arrays: equal to what the schemas decode one by one, and wrong ones are named."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.arrow.values import primitive_array
from pulsar_native.schema import BytesSchema, SchemaType, StringSchema
from pulsar_native.schema.primitives import PRIMITIVES

_TIMES = st.times()
_MOMENTS = st.datetimes(timezones=st.just(datetime.UTC))
VALUES: dict[SchemaType, st.SearchStrategy[Any]] = {
    SchemaType.BOOLEAN: st.booleans(),
    SchemaType.INT8: st.integers(-(1 << 7), (1 << 7) - 1),
    SchemaType.INT16: st.integers(-(1 << 15), (1 << 15) - 1),
    SchemaType.INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    SchemaType.INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    SchemaType.FLOAT: st.floats(width=32, allow_nan=False),
    SchemaType.DOUBLE: st.floats(allow_nan=False),
    SchemaType.DATE: _MOMENTS,
    SchemaType.TIMESTAMP: _MOMENTS,
    SchemaType.INSTANT: _MOMENTS,
    SchemaType.TIME: _TIMES,
    SchemaType.LOCAL_DATE: st.dates(),
    SchemaType.LOCAL_TIME: _TIMES,
    SchemaType.LOCAL_DATE_TIME: st.datetimes(),
}
SIZES = {kind: made._form.size for kind, made in PRIMITIVES.items()}


def plain(kind: SchemaType, payload: bytes | None) -> Any:
    """Return the value as the schema decodes it, a time of day as the number of its unit."""
    if payload is None:
        return None
    value: Any = PRIMITIVES[kind]().decode(payload)
    if kind in (SchemaType.TIME, SchemaType.LOCAL_TIME):
        seconds = value.hour * 3600 + value.minute * 60 + value.second
        micros = seconds * 1_000_000 + value.microsecond
        return micros // 1000 if kind is SchemaType.TIME else micros * 1000
    return value


@pytest.mark.parametrize("kind", list(PRIMITIVES), ids=lambda kind: kind.name)
@given(data=st.data())
def test_primitive_array_equals_the_schema(kind: SchemaType, data: st.DataObject) -> None:
    assert PRIMITIVES.keys() == VALUES.keys()
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=12))
    payloads = [None if value is None else PRIMITIVES[kind]().encode(value) for value in values]
    skipped = data.draw(st.integers(0, len(values)))
    found, wrong = primitive_array(kind, pa.array(payloads, pa.binary()).slice(skipped))
    found.validate(full=True)
    assert found.to_pylist() == [plain(kind, payload) for payload in payloads[skipped:]]
    assert wrong == {}


@pytest.mark.parametrize("kind", list(PRIMITIVES), ids=lambda kind: kind.name)
def test_primitive_array_wrong_size_is_named(kind: SchemaType) -> None:
    size = SIZES[kind]
    payloads = [bytes(size), bytes(size + 1), None, b"", bytes(size)]
    found, wrong = primitive_array(kind, pa.array(payloads, pa.binary()))
    assert found.is_null().to_pylist() == [False, True, True, True, False]
    assert wrong == dict.fromkeys((1, 3), f"a message of {kind.name} has {size} bytes")


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (SchemaType.TIMESTAMP, b"\x7f" + b"\xff" * 7),
        (SchemaType.DATE, b"\x80" + bytes(7)),
        (SchemaType.INSTANT, b"\x7f" + b"\xff" * 7 + bytes(4)),
        (SchemaType.INSTANT, bytes(8) + b"\x7f\xff\xff\xff"),
        (SchemaType.LOCAL_DATE, b"\x7f" + b"\xff" * 7),
        (SchemaType.LOCAL_TIME, b"\xff" * 8),
        (SchemaType.LOCAL_DATE_TIME, b"\x7f" + b"\xff" * 7 + bytes(8)),
        (SchemaType.LOCAL_DATE_TIME, bytes(8) + b"\xff" * 8),
    ],
)
def test_primitive_array_out_of_range_is_named(kind: SchemaType, payload: bytes) -> None:
    found, wrong = primitive_array(kind, pa.array([bytes(SIZES[kind]), payload, None], pa.binary()))
    assert found.is_null().to_pylist() == [False, True, True]
    assert wrong == {1: f"the {kind.name} is out of range"}


def test_primitive_array_text_and_bytes() -> None:
    payloads = pa.array(["é".encode(), b"", None, b"\xff"], pa.binary())
    assert primitive_array(BytesSchema().schema_info().type, payloads) == (payloads, {})
    found, wrong = primitive_array(StringSchema().schema_info().type, payloads)
    assert found == pa.array(["é", "", None, None])
    assert list(wrong) == [3] and "not text in UTF-8" in wrong[3]
    assert primitive_array(SchemaType.STRING, payloads.slice(0, 3)) == (pa.array(["é", "", None]), {})


def test_primitive_array_makes_no_object_per_row() -> None:
    import tracemalloc

    rows = 200_000
    payloads = pa.array([(7).to_bytes(8, "big")] * rows, pa.binary())
    tracemalloc.start()
    found, _ = primitive_array(SchemaType.INT64, payloads)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.to_pylist() == [7] * rows
    # Three copies of eight bytes; one object per row would be at least 32 bytes more for each.
    assert peak < rows * 30
