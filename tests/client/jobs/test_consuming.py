"""A batch without any orchestrator: the job alone, with a state in memory and a plain logger."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from pulsar_native import Client
from pulsar_native.jobs.batch import BatchLimits
from pulsar_native.jobs.consuming import ConsumeCallbacks, ConsumeJob, ConsumeSettings
from support.brokers import Broker, NewTopic
from support.jobs import MemoryState


def test_job_runs_without_an_orchestrator(broker: Broker, topic: NewTopic, tmp_path: Path) -> None:
    name, state, seen = topic(), MemoryState(), []
    settings = ConsumeSettings(
        [name], "sub", {"job": "nightly"}, path=str(tmp_path / "a.jsonl"), limits=BatchLimits(3, None, None, None)
    )
    callbacks = ConsumeCallbacks(process=lambda manifest: seen.append(manifest["count"]))
    with Client(broker.service_url) as client:
        with client.create_producer(name) as producer:
            for number in range(5):
                producer.send(b"%d" % number)
        made = [ConsumeJob(settings, client, state, logging.getLogger(__name__), callbacks).run() for _ in range(2)]
    assert made[0] == made[1] and seen == [3, 3]
    values = [json.loads(line)["value"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert values == ["0", "1", "2"]
