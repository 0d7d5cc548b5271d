"""Data-quality gate: a batch is acknowledged and passed on only if it is good; a bad one stays in its subscription."""

from __future__ import annotations

import json

# [START quality_gate]
import os

from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from airflow_provider_pulsar.operators.publish import PublishOperator

FOLDER = os.environ.get("EXAMPLES_FOLDER", "/tmp/pulsar-examples")


def values_of(path):
    """Yield the values of a batch."""
    with open(path, encoding="utf-8") as lines:
        yield from (json.loads(line)["value"] for line in lines)


def gate(manifest):
    """Fail without retries, and so leave the whole batch unacknowledged, if more than 1 % of the readings are wrong."""
    values = list(values_of(manifest["path"]))
    wrong = [value for value in values if not -60 <= value["celsius"] <= 60]
    if len(wrong) > len(values) / 100:
        raise AirflowFailException(f"{len(wrong)} of {len(values)} readings are out of range, such as {wrong[0]}")


with DAG("example_quality_gate", schedule=None) as dag:
    take = ConsumeBatchOperator(
        task_id="take",
        topic="readings",
        subscription="gate",
        decode="json",
        path=FOLDER + "/readings/{{ run_id }}.jsonl",
        process=gate,
    )
    pass_on = PublishOperator(
        task_id="pass_on",
        topic="readings-checked",
        messages=values_of,
        op_kwargs={"path": "{{ ti.xcom_pull('take')['path'] }}"},
        create_subscription="dashboard",
    )
    take >> pass_on
# [END quality_gate]
