"""Protobuf schemas: values and bytes both ways, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import duration_pb2

import pulsar_native.schema as ours
from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema import InvalidRecord, ProtobufNativeSchema, ProtobufSchema
from support.proto_samples import message_class

FLIGHT = message_class("demo.flights.Flight")
JAVA: dict[str, str] = json.loads((Path(__file__).parent / "protobuf_from_java.json").read_text())


@pytest.mark.parametrize("kind", [ProtobufSchema, ProtobufNativeSchema])
def test_values_and_bytes(kind: Any) -> None:
    schema = kind(FLIGHT)
    flight = FLIGHT(carrier="UA", origin={"airport_code": "JFK"}, weights={"a": 1.5})
    assert schema.encode(flight) == flight.SerializeToString()
    assert schema.decode(schema.encode(flight)) == flight
    with pytest.raises(InvalidRecord, match="type Flight, not Duration"):
        schema.encode(duration_pb2.Duration())
    with pytest.raises(InvalidRecord, match="cannot be written"):
        schema.encode(FLIGHT())  # lacks a required field
    for bad in (b"\x0a\x09U", b"\x10\x01"):
        with pytest.raises(InvalidRecord, match=r"no demo\.flights\.Flight"):
            schema.decode(bad)
    for wrong in (dict, "Flight", FLIGHT(carrier="UA")):
        with pytest.raises(InvalidConfiguration, match="generated message class"):
            kind(wrong)


def test_a_native_definition_is_enough_to_decode() -> None:
    flight = FLIGHT(carrier="UA", many=[1, 2], on_time=False, crew=[{"name": "Ann", "role": 2}])
    flight.weights["x"] = 0.5
    flight.stops.add(airport_code="BOS")
    schema = ours.schema_from_info(ProtobufNativeSchema(FLIGHT).schema_info())
    found = schema.decode(flight.SerializeToString())
    assert {name: found[name] for name in ("carrier", "delay", "note", "cabin", "on_time", "many", "weights")} == {
        "carrier": "UA",
        "delay": 7,
        "note": 'say "hi"',
        "cabin": "FIRST",
        "on_time": False,
        "many": [1, 2],
        "weights": {"x": 0.5},
    }
    assert found["crew"] == [{"name": "Ann", "role": "STEWARD"}]
    assert found["stops"] == [{"airport_code": "BOS", "gate": 0}]
    assert (found["origin"], found["next"]) == (None, None)
    assert FLIGHT.FromString(schema.encode({"carrier": "UA", "delay": 1})) == FLIGHT(carrier="UA", delay=1)
    with pytest.raises(InvalidRecord, match="does not fit"):
        schema.encode({"carrier": 5})
