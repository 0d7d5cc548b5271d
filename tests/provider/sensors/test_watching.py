"""Arguments that all sensors have."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_pulsar.sensors.message import MessageSensor
from airflow_provider_pulsar.sensors.schema import SchemaSensor
from airflow_provider_pulsar.sensors.subscription import SubscriptionSensor
from airflow_provider_pulsar.sensors.topic import TopicSensor
from airflow_provider_pulsar.sensors.watching import WatchingSensor

SENSORS: dict[type[WatchingSensor], dict[str, Any]] = {
    TopicSensor: {},
    MessageSensor: {"subscription": "s"},
    SchemaSensor: {},
    SubscriptionSensor: {"subscription": "s", "backlog": 1},
}


@pytest.mark.parametrize("kind", SENSORS)
def test_deferrable_with_exponential_backoff_raises(kind: type[WatchingSensor]) -> None:
    options: dict[str, Any] = {"task_id": "a_task", "topic": "t", "exponential_backoff": True, **SENSORS[kind]}
    assert kind(**options, deferrable=False).exponential_backoff
    with pytest.raises(ValueError, match="exponential_backoff=True does not go with deferrable=True"):
        kind(**options, deferrable=True)
