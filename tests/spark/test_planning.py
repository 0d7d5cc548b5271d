"""Plans of loads: which manifest is read again."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from pyspark_pulsar.manifest import Manifest
from pyspark_pulsar.planning import _replays
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
