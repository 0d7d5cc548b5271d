"""The error of values that do not fit a schema."""

from __future__ import annotations

import pickle

import pytest

from pulsar_native.exceptions import InvalidMessage, PulsarException
from pulsar_native.schema import AvroSchema, InvalidRecord, JsonSchema, Record, StringSchema
from pulsar_native.schema import Integer as IntegerField


class Row(Record):
    """A record of one number."""

    n = IntegerField(required=True)


@pytest.mark.parametrize("kind", [PulsarException, InvalidMessage, ValueError, TypeError])
def test_invalid_record_caught_by_what_programs_catch(kind: type[Exception]) -> None:
    """The official client raises TypeError for a value of another type, and ValueError for a missing one."""
    for encode in (
        lambda: StringSchema().encode(5),  # type: ignore[arg-type]
        lambda: JsonSchema(Row).encode("text"),
        lambda: AvroSchema(Row).encode("text"),
        lambda: AvroSchema(Row).decode(b""),
    ):
        with pytest.raises(kind):
            encode()


def test_invalid_record_is_not_retried_and_travels() -> None:
    error = InvalidRecord("f.n must be int, not str")
    assert not error.retryable
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is InvalidRecord and str(again) == str(error)
