"""The errors of values and payloads that do not fit a schema."""

from __future__ import annotations

import json
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


def test_invalid_text_is_what_python_raises() -> None:
    for decode in (StringSchema().decode, JsonSchema(Row).decode):
        with pytest.raises(UnicodeDecodeError, match="not text in UTF-8: invalid start byte at byte 2") as caught:
            decode(b"ok\xff")
        assert isinstance(caught.value, InvalidRecord)
        assert (caught.value.object, caught.value.start, caught.value.encoding) == (b"ok\xff", 2, "utf-8")
        again = pickle.loads(pickle.dumps(caught.value))
        assert (type(again), str(again), again.start) == (type(caught.value), str(caught.value), 2)


def test_invalid_json_is_what_python_raises() -> None:
    with pytest.raises(json.JSONDecodeError, match="The message is not JSON: Expecting value: line 1") as caught:
        JsonSchema(Row).decode(b" nothing")
    assert isinstance(caught.value, InvalidRecord)
    assert (caught.value.doc, caught.value.pos, caught.value.lineno) == (" nothing", 1, 1)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.pos) == (type(caught.value), str(caught.value), 1)
