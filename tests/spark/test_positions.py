"""Positions and offsets options: reading, order, and what is refused."""

from __future__ import annotations

import json

import pytest

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.message_id import MessageId
from pyspark_pulsar.positions import Position, format_offsets, parse_offsets

T0 = "persistent://public/default/t-partition-0"


@pytest.mark.parametrize(
    ("text", "position"),
    [("12:0", Position(12, 0)), ("12:7:3", Position(12, 7, 3)), (" 0:0:0 ", Position(0, 0, 0))],
)
def test_position_round_trip(text: str, position: Position) -> None:
    assert Position.parse(text) == position
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize("text", ["", "12", "12:", "a:b", "-1:0", "1:2:3:4", "1:2:-1", "1.5:2", "1:2:x"])
def test_position_invalid_raises(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="ledger:entry"):
        Position.parse(text)


def test_positions_order() -> None:
    ordered = ["1:9", "2:0", "2:0:0", "2:0:1", "2:0:10", "2:1", "10:0"]
    assert [str(position) for position in sorted(map(Position.parse, reversed(ordered)))] == ordered
    assert Position(2, 0, 5).entry_start == Position(2, 0)
    assert Position(2, 0, 5).after_entry == Position(2, 1)


def test_position_of_message_id_and_first_chunk() -> None:
    assert Position.of_message(MessageId(3, 5, 6, 7)) == Position(5, 6, 7)
    assert Position.of_message(MessageId(3, 5, 9, -1, first_chunk=MessageId(3, 5, 6, -1))) == Position(5, 6)
    assert Position(5, 6, 7).message_id(3) == MessageId(3, 5, 6, 7)


def test_offsets_word_is_for_every_topic() -> None:
    assert parse_offsets("startingOffsets", "Earliest", "earliest").of(T0) == "earliest"
    assert parse_offsets("endingOffsets", " latest ", "latest").of(T0) == "latest"


def test_offsets_json_has_short_or_full_topics() -> None:
    offsets = parse_offsets("endingOffsets", '{"t-partition-0": "4:5:6", "public/default/u": "latest"}', "latest")
    assert offsets.of(T0) == Position(4, 5, 6)
    assert offsets.of("persistent://public/default/u") == "latest"
    with pytest.raises(InvalidConfiguration, match=r"says nothing about persistent://public/default/v"):
        offsets.of("persistent://public/default/v")


def test_offsets_byte_arrays_of_the_jvm_connector() -> None:
    message_id = MessageId(2, 300, 4, 5, batch_size=9)
    signed = [byte - 256 if byte > 127 else byte for byte in message_id.serialize()]
    assert any(byte < 0 for byte in signed)
    for array in (signed, list(message_id.serialize())):
        offsets = parse_offsets("startingOffsets", json.dumps({T0: array}), "earliest")
        assert offsets.of(T0) == Position(300, 4, 5)
    earliest = json.dumps({T0: list(MessageId.earliest.serialize())})
    assert parse_offsets("startingOffsets", earliest, "earliest").of(T0) == "earliest"
    with pytest.raises(InvalidConfiguration, match="no meaning here"):
        parse_offsets("endingOffsets", earliest, "latest")


@pytest.mark.parametrize(
    ("option", "text", "symbol", "message"),
    [
        ("startingOffsets", "latest", "earliest", "startingOffsets cannot be 'latest' in a batch read"),
        ("endingOffsets", "earliest", "latest", "endingOffsets cannot be 'earliest' in a batch read"),
        ("startingOffsets", "newest", "earliest", "must be 'earliest' or JSON"),
        ("startingOffsets", "{", "earliest", "not valid JSON"),
        ("startingOffsets", "{}", "earliest", "names no topic"),
        ("startingOffsets", '{"t": "1:2", "t": "1:3"}', "earliest", "named twice"),
        ("startingOffsets", '{"t": "1:2", "public/default/t": "1:3"}', "earliest", "one topic twice"),
        ("startingOffsets", '{"t": 5}', "earliest", "startingOffsets of t: 5 is not a position"),
        ("startingOffsets", '{"t": "x"}', "earliest", "startingOffsets of t: 'x' is not a position"),
        ("startingOffsets", '{"t": [1, 2, 300]}', "earliest", "bytes of a serialised message id"),
        ("startingOffsets", '{"t": [1]}', "earliest", "not a serialized message id"),
        ("startingOffsets", '{"t": [true]}', "earliest", "bytes of a serialised message id"),
        ("startingOffsets", '{"t": "1:1:2147483648"}', "earliest", "the batch index 2.31 - 1"),
        ("startingOffsets", '{"t": "9223372036854775808:1"}', "earliest", "ledger and entry are at most 2.63 - 1"),
        ("startingOffsets", '{"a/b": "1:2"}', "earliest", "startingOffsets: Invalid short topic name"),
    ],
)
def test_offsets_wrong_raise_with_option_and_reason(option: str, text: str, symbol: str, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        parse_offsets(option, text, symbol)  # type: ignore[arg-type]


def test_offsets_of_other_topic_raise() -> None:
    offsets = parse_offsets("startingOffsets", '{"t-partition-9": "1:2"}', "earliest")
    with pytest.raises(
        InvalidConfiguration, match=r"t-partition-9, which is not read; the partitions are .*partition-0"
    ):
        offsets.check_names([T0])


def test_offsets_formatted_round_trip() -> None:
    bounds = {T0: Position(1, 2, 3), "persistent://a/b/c": Position(4, 5)}
    offsets = parse_offsets("startingOffsets", format_offsets(bounds), "earliest")
    assert dict(offsets.by_topic) == bounds
