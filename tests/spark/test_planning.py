"""Plans of loads: which manifest is read again."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import cast

import pytest

from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar.manifest import Document, Manifest
from pyspark_pulsar.offsets import Range
from pyspark_pulsar.planning import _replays, check_output
from pyspark_pulsar.positions import Position
from pyspark_pulsar.request import LoadRequest

SOURCE = {"service.url": "pulsar://h:1", "topic": "persistent://public/default/t", "timeSlackMs": "500"}
TIMES = {"startingTime": "1000", "endingTime": "2000"}
POSITIONS = {"startingOffsets": "earliest", "endingOffsets": '{"persistent://public/default/t": "1:5"}'}


@pytest.mark.parametrize(
    ("source", "planned_ms", "is_done", "replay", "expected"),
    [
        pytest.param(TIMES, 2500, False, "auto", True, id="ended-failed"),
        pytest.param(TIMES, 2500, True, "auto", True, id="ended-done"),
        pytest.param(TIMES, 2499, False, "auto", False, id="early-failed"),
        pytest.param(TIMES, 2499, True, "auto", False, id="early-done"),
        pytest.param(TIMES, 2499, False, "require", True, id="early-required"),
        pytest.param(POSITIONS, 0, False, "auto", True, id="positions-failed"),
        pytest.param(POSITIONS, 0, True, "auto", True, id="positions-done"),
        pytest.param({}, 9999, False, "auto", True, id="open-failed"),
        pytest.param({}, 9999, True, "auto", False, id="open-done"),
        pytest.param({}, 9999, True, "require", True, id="open-required"),
    ],
)
def test_replays(source: dict[str, str], planned_ms: int, is_done: bool, replay: str, expected: bool) -> None:
    document = {"source": {**SOURCE, **source}, "output": {"path": "/x"}, "replay": replay}
    if not source:
        document["interval"] = "all"
    request = LoadRequest.parse(json.dumps(document))
    written_at = datetime.fromtimestamp(planned_ms / 1000, UTC).isoformat(timespec="milliseconds")
    assert _replays(request, Manifest(request.canonical(), [], is_done=is_done, written_at=written_at)) == expected


class Kept:
    """Document with a text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self) -> str:
        return self._text


def load_of(source: dict[str, str], path: str = "/x") -> LoadRequest:
    """Return the request of a load of everything."""
    options = {"service.url": "pulsar://h:1", **source}
    output = {"path": path}
    return LoadRequest.parse(json.dumps({"source": options, "output": output, "interval": "all", "manifest": "/m"}))


@pytest.mark.parametrize(
    ("source", "path", "is_done", "is_refused"),
    [
        pytest.param({"topic": "us"}, "/x", True, True, id="other-topic"),
        pytest.param({"topicsPattern": "public/default/u.*"}, "/x", True, True, id="other-pattern"),
        pytest.param({"topic": "eu-partition-1"}, "/x", True, True, id="one-partition"),
        pytest.param({"topic": "eu"}, "/x", True, False, id="same-topic"),
        pytest.param({"topics": "us,eu"}, "/x", True, False, id="one-topic-more"),
        pytest.param({"topicsPattern": "public/default/e.*"}, "/x", True, False, id="pattern-with-it"),
        pytest.param({"topic": "us"}, "/x", False, False, id="not-finished"),
        pytest.param({"topic": "us"}, "/y", True, False, id="other-path"),
    ],
)
def test_check_output_of_other_topics(source: dict[str, str], path: str, is_done: bool, is_refused: bool) -> None:
    ends = Position(1, 0), Position(1, 5)
    ranges = [Range(f"persistent://public/default/eu-partition-{number}", *ends) for number in range(2)]
    kept = Kept(Manifest(load_of({"topic": "eu"}).canonical(), ranges, is_done=is_done).to_json())
    if not is_refused:
        check_output(load_of(source, path), cast(Document, kept))
        return
    with pytest.raises(InvalidConfiguration, match=r"/x has the rows of a load of persistent.*/eu, .*the manifest /m$"):
        check_output(load_of(source, path), cast(Document, kept))


def test_check_output_other_document_is_passed() -> None:
    check_output(load_of({"topic": "us"}), cast(Document, Kept("{}")))
