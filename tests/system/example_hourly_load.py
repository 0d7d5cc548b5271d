"""Hourly load of what was published in the hour, to be cleared and backfilled: each hour has a path of its own."""

from __future__ import annotations

# [START hourly_load]
import os
from datetime import datetime

from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator

FOLDER = os.environ.get("EXAMPLES_FOLDER", "/tmp/pulsar-examples")
SPARK_ENVIRONMENT = os.environ.get("SPARK_ENVIRONMENT")

# "@hourly" gives runs without a length in Airflow 3.
hourly = CronDataIntervalTimetable("0 * * * *", timezone="UTC")

with DAG("example_hourly_load", schedule=hourly, start_date=datetime(2026, 3, 1), catchup=False) as dag:
    PulsarSparkLoadOperator(
        task_id="load",
        topic="measurements",
        interval_start="{{ data_interval_start }}",
        interval_end="{{ data_interval_end }}",
        output_path=FOLDER + "/measurements/hour={{ data_interval_start.strftime('%Y-%m-%dT%H') }}",
        value_format="json",
        value_schema="sensor STRING, celsius DOUBLE",
        spark_environment=SPARK_ENVIRONMENT,
        conf={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"},
    )
# [END hourly_load]
