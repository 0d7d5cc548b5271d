"""Values of model fields: each type both ways, its Avro type, and values that do not fit."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema import InvalidRecord
from pulsar_native.schema.model_values import LEAVES, Part, deeper, overridden

UTC = datetime.UTC
SECOND = datetime.datetime(1970, 1, 1, 0, 0, 1)
_TIMES = st.datetimes(datetime.datetime(1600, 1, 1), datetime.datetime(2400, 1, 1))
_VALUES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    float: st.floats(allow_nan=False),
    str: st.text(),
    bytes: st.text().map(str.encode),
    type(None): st.none(),
    datetime.datetime: _TIMES.map(lambda moment: moment.replace(tzinfo=UTC)),
    datetime.date: st.dates(),
    datetime.time: st.times(),
    decimal.Decimal: st.integers(-(10**38) + 1, 10**38 - 1).map(lambda number: decimal.Decimal(f"{number}e-18")),
    uuid.UUID: st.uuids(),
}


def avro_of(hint: Any, definition: Any) -> Part:
    """Return the part of a named Avro type, for Avro."""
    return overridden(hint, definition, "f", json=False)


@pytest.mark.parametrize("hint", LEAVES, ids=lambda hint: hint.__name__)
@pytest.mark.parametrize("json", [False, True], ids=["avro", "json"])
@given(data=st.data())
def test_value_there_and_back(hint: Any, json: bool, data: st.DataObject) -> None:
    part, value = LEAVES[hint](json), data.draw(_VALUES[hint])
    encoded = part.encode(value)
    assert part.decode(encoded) == value and type(part.decode(encoded)) is type(value)
    if json:
        assert encoded is None or isinstance(encoded, bool | int | float | str)


@pytest.mark.parametrize("hint", [hint for hint in LEAVES if hint is not type(None)], ids=lambda hint: hint.__name__)
@given(data=st.data())
def test_default_of_definition_reads_back(hint: Any, data: st.DataObject) -> None:
    """Defaults are raw in a definition: numbers and text, bytes with one character each."""
    part, value = LEAVES[hint](False), data.draw(_VALUES[hint])
    written = part.written(value)
    assert isinstance(written, bool | int | float | str) and part.decode(written) == value


@pytest.mark.parametrize("hint", LEAVES, ids=lambda hint: hint.__name__)
@pytest.mark.parametrize("value", [object(), [], {}])
def test_value_of_another_type_raises(hint: Any, value: Any) -> None:
    for json in (False, True):
        for convert in (LEAVES[hint](json).encode, LEAVES[hint](json).decode):
            with pytest.raises(InvalidRecord, match=rf"^ must be .*, not {type(value).__name__}$"):
                convert(value)


def test_bool_is_no_number() -> None:
    for hint in (int, float, datetime.date, datetime.datetime, datetime.time):
        for convert in (LEAVES[hint](True).encode, LEAVES[hint](True).decode):
            with pytest.raises(InvalidRecord, match="not bool"):
                convert(True)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        (LEAVES[int](False), 1 << 63, f" is {1 << 63}, out of the range of long"),
        (avro_of(int, "int"), 1 << 31, ".* out of the range of int"),
        (avro_of(int, "int"), -(1 << 31) - 1, ".* out of the range of int"),
        (LEAVES[bytes](True), b"\xff", " is not UTF-8, and JSON has bytes as text only: use AvroSchema"),
        (LEAVES[datetime.datetime](True), datetime.datetime(2026, 1, 1), r" has no timezone: use datetime.now\(UTC\)"),
        (LEAVES[datetime.datetime](False), datetime.datetime(2026, 1, 1), " has no timezone"),
        (
            avro_of(datetime.datetime, {"type": "long", "logicalType": "local-timestamp-millis"}),
            datetime.datetime(2026, 1, 1, tzinfo=UTC),
            " has a timezone, which local-timestamp-millis has not",
        ),
        (LEAVES[datetime.time](True), datetime.time(1, tzinfo=UTC), " has a timezone, which a time of day has not"),
        (LEAVES[datetime.date](True), datetime.datetime(2026, 1, 1, tzinfo=UTC), " must be date, not datetime"),
    ],
)
def test_value_out_of_range_raises(part: Part, value: Any, words: str) -> None:
    with pytest.raises(InvalidRecord, match=f"^{words}"):
        part.encode(value)


@pytest.mark.parametrize(
    ("hint", "value", "words"),
    [
        (datetime.date, 10**9, "is 1000000000, which Python cannot hold as date"),
        (datetime.datetime, 1 << 62, "which Python cannot hold as datetime"),
        (decimal.Decimal, "ten", "is 'ten', which is no Decimal"),
        (uuid.UUID, "x" * 60, f"is {'x' * 40!r}, which is no UUID"),
    ],
)
def test_number_or_text_without_value_raises(hint: Any, value: Any, words: str) -> None:
    with pytest.raises(InvalidRecord, match=words):
        LEAVES[hint](True).decode(value)


@pytest.mark.parametrize("precision", [1, 28])
def test_decimal_default_of_38_digits_is_exact(precision: int) -> None:
    part, value = LEAVES[decimal.Decimal](False), decimal.Decimal("-12345678901234567890.123456789012345678")
    with decimal.localcontext(prec=precision):
        written = part.written(value)
        assert part.decode(written) == value
    assert int.from_bytes(written.encode("latin-1"), "big", signed=True) == -12345678901234567890123456789012345678


def test_decimal_default_needs_its_scale() -> None:
    part = avro_of(decimal.Decimal, {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})
    assert part.written(decimal.Decimal("1.27")) == "\x7f"
    assert part.decode("\x80") == part.decode(part.written(decimal.Decimal("-1.28"))) == decimal.Decimal("-1.28")
    with pytest.raises(InvalidRecord, match=" has more than 2 digits after the point"):
        part.written(decimal.Decimal("1.234"))


# ---- types named by the application ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "definition", "value", "written"),
    [
        (int, "int", 5, 5),
        (float, "float", 1.5, 1.5),
        (str, "string", "a", "a"),
        (datetime.datetime, "string", datetime.datetime(2026, 1, 2), "2026-01-02T00:00:00"),
        (datetime.date, "string", datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.time, "string", datetime.time(1, 2), "01:02:00"),
        (decimal.Decimal, "string", decimal.Decimal("1.10"), "1.10"),
        (uuid.UUID, "string", uuid.UUID(int=1), str(uuid.UUID(int=1))),
        (datetime.datetime, {"type": "long", "logicalType": "timestamp-millis"}, SECOND.replace(tzinfo=UTC), 1000),
        (datetime.datetime, {"type": "long", "logicalType": "local-timestamp-micros"}, SECOND, 1_000_000),
        (datetime.time, {"type": "int", "logicalType": "time-millis"}, datetime.time(0, 0, 1), 1000),
    ],
)  # fmt: skip
def test_named_type_is_used(hint: Any, definition: Any, value: Any, written: Any) -> None:
    part = overridden(hint, definition, "f", json=True)
    assert part.definition == definition
    assert (part.encode(value), part.written(value), part.decode(written)) == (written, written, value)


@pytest.mark.parametrize(
    ("hint", "definition", "json"),
    [
        (int, "string", False),
        (str, "int", False),
        (int, "float", False),
        (bytes, "string", False),
        (datetime.datetime, {"type": "long", "logicalType": "timestamp-nanos"}, False),
        (datetime.datetime, {"type": "long"}, False),
        (datetime.time, {"type": "long", "logicalType": "timestamp-millis"}, False),
        (decimal.Decimal, {"type": "bytes", "logicalType": "decimal", "precision": 4}, True),
    ],
)
def test_named_type_of_another_kind_raises(hint: Any, definition: Any, json: bool) -> None:
    with pytest.raises(InvalidConfiguration, match=f"f: {hint.__name__} cannot be written as the Avro type") as caught:
        overridden(hint, definition, "f", json=json)
    assert str(caught.value).endswith(" in JSON") is json


def test_deeper_puts_the_step_in_front() -> None:
    error = deeper(".rows", deeper("[3]", InvalidRecord(" must be int, not str")))
    assert isinstance(error, InvalidRecord) and str(error) == ".rows[3] must be int, not str"
