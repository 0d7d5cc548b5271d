"""The DAGs that README.md and docs/ print run as they are printed, on the real Airflow, broker and Spark.

A run that succeeds is not enough: every message published is loaded or consumed, once over two runs, and no task that
ends well has done nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import pyarrow.parquet as pq
import pytest

import pulsar_native
from broker import Standalone
from support.airflow_run import Run
from support.airflow_stack import AirflowStack
from support.brokers import OwnBroker
from support.dag_blocks import DagBlock, dag_blocks, template_context

BLOCKS = dag_blocks()
# Tasks of these operators say in their XCom how many messages they took in hand.
_READERS = ("ConsumeBatchOperator", "PulsarSparkLoadOperator")
_WORKERS = ("PublishOperator", *_READERS)


def test_blocks_are_found_and_have_ids() -> None:
    assert "README" in {block.page for block in BLOCKS}
    assert all(block.dag_ids for block in BLOCKS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("profile", ["default", "testing"])
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_printed_dag_loads_what_it_publishes(
    block: DagBlock, profile: str, airflow: AirflowStack, own_broker: OwnBroker, tmp_path: Path
) -> None:
    broker = own_broker(profile=profile, deduplication=profile == "testing", heap="512m")
    airflow.define_connection(service_url=broker.service_url, admin_url=broker.admin_url)
    airflow.define_connection("spark_default", conn_type="spark", host="local[1]")
    block = block.moved(tmp_path)
    airflow.write_dag_file(block.dag_ids[0], block.text)
    published: list[dict[str, Any]] = []
    runs: list[Run] = []
    for _ in range(2):
        published += publish_beside(block, broker, len(published))
        for dag_id in block.dag_ids:
            if airflow.dag(dag_id)["timetable_summary"] == "Asset":
                continue
            run, rows = start(airflow, block, dag_id, len(published))
            published += rows
            runs.append(run.wait(240).succeeded())
    for dag_id in block.dag_ids:
        if airflow.dag(dag_id)["timetable_summary"] == "Asset":
            runs += [run.succeeded() for run in airflow.wait_runs(dag_id, 2, timeout=240)]
    assert published, "add what this block reads to publish_beside or write_inputs"
    check_work(runs, len(published))
    check_outputs(runs, published)


def start(airflow: AirflowStack, block: DagBlock, dag_id: str, first: int) -> tuple[Run, list[dict[str, Any]]]:
    """Trigger a run as the button does, make its input files before it may begin, and return it with their rows."""
    airflow.pause(dag_id)
    run = airflow.run(dag_id, logical_date=datetime.now(UTC), wait=False)
    context = template_context(run.info())
    rows = block.write_inputs(
        lambda text: jinja2.Template(text, undefined=jinja2.StrictUndefined).render(context), first
    )
    airflow.unpause(dag_id)
    return run, rows


def publish_beside(block: DagBlock, broker: Standalone, first: int) -> list[dict[str, Any]]:
    """Publish to the topics of a block that only reads, and return the rows."""
    if "PublishOperator(" in block.text or "pulsar_publish" in block.text:
        return []
    rows: list[dict[str, Any]] = []
    with pulsar_native.Client(broker.service_url) as client:
        for topic in sorted(block.literals("topic")):
            more = block.rows(first + len(rows))
            client.create_producer(topic).send_many([json.dumps(row).encode() for row in more])
            rows += more
    return rows


def check_work(runs: list[Run], published: int) -> None:
    """Demand that each task did something, and that each reading one took every message once over all runs."""
    done: Counter[str] = Counter()
    for run in runs:
        for task in run.tasks():
            assert task["state"] == "success", f"{task['task_id']} of {run} is {task['state']}\n{run.report()}"
            if task["operator"] not in _WORKERS:
                continue
            result = run.xcom(task["task_id"], map_index=task["map_index"])
            count = result.get("rows", result.get("count"))
            assert count, f"{task['task_id']} of {run} is green and did nothing: {result}\n{run.report()}"
            if task["operator"] in _READERS:
                done[f"{run.dag_id}.{task['task_id']}"] += count
    assert done, "no task of the block reads"
    assert set(done.values()) == {published}, done


def check_outputs(runs: list[Run], published: list[dict[str, Any]]) -> None:
    """Compare the rows of the outputs of each reading task, over all runs, with what was published."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        for task in run.tasks():
            if task["operator"] in _READERS:
                path = run.xcom(task["task_id"], map_index=task["map_index"])["path"]
                found.setdefault(f"{run.dag_id}.{task['task_id']}", []).extend(rows_of(Path(path)))
    columns = set(published[0])
    for task_id, rows in found.items():
        plain = [{name: value for name, value in row.items() if name in columns} for row in rows]
        assert Counter(map(_text, plain)) == Counter(map(_text, published)), task_id


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet path or of a JSON lines file of messages."""
    if path.suffix == ".jsonl":
        return [json.loads(line)["value"] for line in path.read_text().splitlines()]
    return list(pq.read_table(path).to_pylist())


def _text(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)
