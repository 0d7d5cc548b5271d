"""What a schema says of itself."""

from __future__ import annotations

import pickle

import _pulsar
import pytest

from pulsar_native.exceptions import InvalidMessage
from pulsar_native.schema import SchemaInfo, SchemaType


def test_numbers_are_the_official_ones() -> None:
    official = {name: int(kind) for name, kind in _pulsar.SchemaType.__members__.items()}
    ours = {name: int(kind) for name, kind in SchemaType.__members__.items()}
    assert {name: ours[name] for name in official} == official


def test_info_is_a_value() -> None:
    info = SchemaInfo("AVRO", SchemaType.AVRO, b'{"type": "record"}', {"a": "b"}, version=3)
    assert info == SchemaInfo("AVRO", SchemaType.AVRO, b'{"type": "record"}', {"a": "b"}, version=4)
    assert info != SchemaInfo("AVRO", SchemaType.AVRO, b'{"type": "record"}', {"a": "c"})
    assert hash(info) == hash(SchemaInfo("AVRO", SchemaType.AVRO, b'{"type": "record"}', {"a": "c"}))
    copied = pickle.loads(pickle.dumps(info))
    assert (copied, copied.version) == (info, 3)
    with pytest.raises(TypeError):
        info.properties()["a"] = "c"  # type: ignore[index]


def test_definition() -> None:
    assert SchemaInfo("J", SchemaType.JSON, b'{"type": "record"}').definition() == {"type": "record"}


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'"string"', b"\xff"])
def test_what_is_no_definition(text: bytes) -> None:
    with pytest.raises(InvalidMessage, match="JSON"):
        SchemaInfo("J", SchemaType.JSON, text).definition()
