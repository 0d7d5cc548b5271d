"""Plans of loads: which manifest is read again."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import cast

import pytest

from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar.manifest import Document, Manifest
from pyspark_pulsar.offsets import Range
from pyspark_pulsar.planning import _is_same_interval, _replays, check_output
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


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(TIMES, True, id="times"),
        pytest.param({**TIMES, "endingTime": "2001"}, False, id="other-end"),
        pytest.param({"startingOffsets": "earliest", "endingTime": "2000"}, False, id="other-start"),
        pytest.param({**TIMES, "topic": "persistent://public/default/other"}, True, id="other-topic"),
    ],
)
def test_is_same_interval(source: dict[str, str], expected: bool) -> None:
    first, second = (
        LoadRequest.parse(json.dumps({"source": {**SOURCE, **options}, "output": {"path": "/x"}}))
        for options in (TIMES, source)
    )
    assert _is_same_interval(second, Manifest(first.canonical(), [], is_done=True)) == expected


def test_is_same_interval_of_everything_is_false() -> None:
    request = load_of({"topic": "eu"})
    assert not _is_same_interval(request, Manifest(request.canonical(), [], is_done=True))


class Kept:
    """Document with a text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self) -> str:
        return self._text


def load_of(source: dict[str, str], path: str = "/x", **parts: str | None) -> LoadRequest:
    """Return the request of a load of everything."""
    options = {"service.url": "pulsar://h:1", **source}
    request = {"source": options, "output": {"path": path}, "interval": "all", "manifest": "/m", **parts}
    return LoadRequest.parse(json.dumps(request))


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


@pytest.mark.parametrize(
    ("url", "run", "is_refused"),
    [
        pytest.param("pulsar://other:1", "r", True, id="same-run"),
        pytest.param("pulsar://other:1", "s", False, id="other-run"),
        pytest.param("pulsar://other:1", None, False, id="no-run"),
        pytest.param("pulsar://h:1", "r", False, id="same-cluster"),
    ],
)
def test_check_output_of_other_cluster(url: str, run: str | None, is_refused: bool) -> None:
    had = "r" if run is not None else None
    ranges = [Range("persistent://public/default/eu", Position(1, 0), Position(1, 5))]
    kept = Kept(Manifest(load_of({"topic": "eu"}, run=had).canonical(), ranges, is_done=True).to_json())
    request = load_of({"topic": "eu", "service.url": url}, run=run)
    if not is_refused:
        check_output(request, cast(Document, kept))
        return
    with pytest.raises(InvalidConfiguration, match=r"/x has .* from another service.url.*remove the manifest /m$"):
        check_output(request, cast(Document, kept))


def test_check_output_other_document_is_passed() -> None:
    check_output(load_of({"topic": "us"}), cast(Document, Kept("{}")))
