"""Varints compared with the protobuf runtime's."""

from __future__ import annotations

from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.varint import VARINT_LAST, VARINT_MORE, varint


def test_varint_width_borders() -> None:
    for bits in range(0, 65, 7):
        for value in {max(0, (1 << bits) - 1), min(1 << bits, (1 << 64) - 1)}:
            key = pb.KeyLongValue(key="", value=value).SerializeToString()
            assert varint(value) == key[3:]


def test_varint_tables_by_seven_bits() -> None:
    for value in range(128):
        assert VARINT_LAST[value] == varint(value) and VARINT_MORE[value] + b"\1" == varint(value + 128)
