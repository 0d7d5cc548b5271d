"""Sensors in each of their modes, without processes of Airflow: what worker and triggerer call, in their order."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException, TaskDeferred
from airflow.sdk.serde import deserialize, serialize

from pulsar_native.jobs.watching import TopicWatcher
from support.tasks import StateStore, context_of

MODES = ("poke", "reschedule", "deferrable", "start_from_trigger")
MOST_LOOKS = 60
_LATE_SECONDS = 1.5


def options_of(mode: str) -> dict[str, Any]:
    """Return a sensor's options for a mode."""
    if mode in ("poke", "reschedule"):
        return {"mode": mode}
    return {"deferrable": True, "start_from_trigger": mode == "start_from_trigger"}


async def event_of(trigger: Any) -> dict[str, Any]:
    """Return the only event of a trigger as it looks after the way through Airflow's database."""
    events = [event.payload async for event in trigger.run()]
    assert len(events) == 1
    found: Any = deserialize(json.loads(json.dumps(serialize(events[0]))))
    assert isinstance(found, dict)
    return found


def through_database(trigger: Any) -> Any:
    """Return the trigger as the triggerer makes it of its serialized form."""
    path, arguments = trigger.serialize()
    assert path == f"{type(trigger).__module__}.{type(trigger).__name__}"
    return type(trigger)(**json.loads(json.dumps(arguments)))


def complete(sensor: Any, trigger: Any, context: Any) -> Any:
    """Run a trigger to its event, and resume the task with it."""
    event = asyncio.run(event_of(through_database(trigger)))
    return sensor.resume_execution("execute_complete", {"event": event}, context)


def wait_with(sensor: Any, mode: str, context: Any = None) -> Any:
    """Run a sensor to its end in the way of its mode, and return its result or raise its error."""
    context = context_of(store=StateStore()) if context is None else context
    if mode == "start_from_trigger":
        module, _, name = sensor.start_trigger_args.trigger_cls.rpartition(".")
        kind = getattr(__import__(module, fromlist=[name]), name)
        return complete(sensor, kind(**json.loads(json.dumps(sensor.start_trigger_args.trigger_kwargs))), context)
    for _ in range(MOST_LOOKS):
        try:
            return sensor.execute(context)
        except AirflowRescheduleException as again:
            # As long as Airflow would wait for the next process.
            time.sleep(max(0.05, again.reschedule_date.timestamp() - time.time()))
        except TaskDeferred as deferred:
            return complete(sensor, deferred.trigger, context)
    raise AssertionError(f"the sensor looked {MOST_LOOKS} times")


def slow_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each look at a topic take a second and a half longer, as on a busy machine."""
    look = TopicWatcher.look

    async def late(watch: TopicWatcher, client: Any) -> Any:
        await asyncio.sleep(_LATE_SECONDS)
        return await look(watch, client)

    monkeypatch.setattr(TopicWatcher, "look", late)
