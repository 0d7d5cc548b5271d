"""The example DAGs: what they publish, and that they can be read. `make demo` runs them as a whole."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DAGS = Path(__file__).resolve().parents[2] / "dags"


@pytest.fixture
def flights() -> Iterator[ModuleType]:
    """Give the module of the flights DAG."""
    spec = importlib.util.spec_from_file_location("flights_to_parquet", DAGS / "flights_to_parquet.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


def test_month_of_data_set(flights: ModuleType) -> None:
    january = list(flights.flights_of("2013-01-01T00:00:00+00:00", "2013-02-01T00:00:00+00:00"))
    assert len(january) == 27_004
    assert {flight["month"] for flight in january} == {1}
    assert january[0]["carrier"] == "UA" and january[0]["tailnum"] == "N14228"
    late = list(flights.flights_of("2013-01-01T00:00:00+00:00", "2013-02-01T00:00:00+00:00", late=True))
    assert late == [flight for flight in january if (flight["arr_delay"] or 0) > 120]


def test_month_december_ends_with_the_year(flights: ModuleType) -> None:
    december = list(flights.flights_of("2013-12-01T00:00:00+00:00", "2014-01-01T00:00:00+00:00"))
    assert {flight["month"] for flight in december} == {12}


def test_example_task_dependencies(flights: ModuleType) -> None:
    dag = flights.dag
    assert dag.task_dict["load_flights"].upstream_task_ids == {"wait_for_flights"}
    assert dag.task_dict["compare"].upstream_task_ids >= {"load_flights", "consume_late_flights"}
    # What a run leaves at the broker it removes itself, once nothing is left to be cleared.
    assert dag.task_dict["remove_subscriptions"].upstream_task_ids == {"compare"}


def test_example_runs_have_intervals(flights: ModuleType) -> None:
    from airflow.sdk import CronDataIntervalTimetable

    assert isinstance(flights.dag.timetable, CronDataIntervalTimetable)
    load = flights.dag.task_dict["load_flights"]
    assert (load.interval, load.interval_start, load.interval_end) == ("all", None, None)
