"""Client of a task try: when a kill counts."""

from __future__ import annotations

import pytest

from airflow_provider_pulsar.task_client import TaskClient, TaskKilled


def test_kill_before_and_within_the_block_counts() -> None:
    client = TaskClient()
    client.kill()
    with client, pytest.raises(TaskKilled, match="Publishing: the task was killed"):
        client.check("Publishing")
    with client:
        client.check("Publishing")
        client.kill()
        assert client.killed


def test_kill_after_the_block_is_not_of_the_next_try() -> None:
    """Airflow kills a task after its time-out, when `execute` has ended, and may try it again in this process."""
    client = TaskClient()
    with pytest.raises(TimeoutError), client:
        raise TimeoutError
    client.kill()
    with client:
        client.check("Publishing")
        assert not client.killed
