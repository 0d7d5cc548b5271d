"""Sessions of the Spark benchmark: a real one reads a topic, is measured, and leaves no process behind."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from environments import ROOT
from pulsar_native.diagnostics import codec
from support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import benchmarks/spark_sessions.py."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("spark_sessions")


@pytest.mark.parametrize(("peer", "splits"), [("ours", 2), ("load", None)])
def test_session_reads_topics_in_turn(
    sessions: Any, broker: Broker, tmp_path: Path, peer: str, splits: int | None
) -> None:
    urls = sessions.Broker(broker.service_url, broker.admin_url)
    contents = [sessions.Content(2_000, 100, 2, described=True, one_by_one=True), sessions.Content(20, 200_000)]
    topics = [sessions.fill(urls, content) for content in contents]
    side = sessions.Side("ours", peer, "spark", codec(), splits)
    found = sessions.run(side, urls, topics, contents, tmp_path)
    assert len(found.reads) == 2 and all(each["wall"] > 0 and each["cpu"] > 0 for each in found.reads)
    assert found.wall > found.start + found.end + sum(each["wall"] for each in found.reads)
    assert found.cpu > sum(each["cpu"] for each in found.reads)
    assert found.jvm_peak > found.python_peak > 20_000_000
    with pytest.raises(SystemExit, match="ours did not read what was published: rows is 2000 instead of 2001"):
        sessions.check(side, sessions.Content(2_001, 100), sessions.expected(side, contents[0]))


def test_floor_session_reads_stored_batches(sessions: Any, broker: Broker, tmp_path: Path) -> None:
    urls = sessions.Broker(broker.service_url, broker.admin_url)
    content = sessions.Content(2_000, 100, 2, described=True)
    topic = sessions.fill(urls, content)
    found = sessions.run(sessions.FLOOR, urls, [topic, topic], [content, content], tmp_path)
    assert len(found.reads) == 2
    assert len(list(Path(sessions.store(urls, topic, tmp_path)).glob("*.arrow"))) == 2
