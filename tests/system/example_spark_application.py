"""Spark application of one's own, submitted with the Airflow connection to Pulsar."""

from __future__ import annotations

# [START spark_application]
import os
from datetime import datetime

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from airflow_provider_pulsar.operators.spark_submit import PulsarSparkSubmitMixin

APPLICATIONS = os.environ.get("SPARK_APPLICATIONS", "/opt/applications")
FOLDER = os.environ.get("EXAMPLES_FOLDER", "/tmp/pulsar-examples")


class PulsarSparkApplication(PulsarSparkSubmitMixin, SparkSubmitOperator):
    """SparkSubmitOperator with a Pulsar connection."""


with DAG("example_spark_application", schedule=None, start_date=datetime(2026, 3, 1)) as dag:
    PulsarSparkApplication(
        task_id="totals",
        application=APPLICATIONS + "/totals_by_customer.py",
        application_args=["{{ params.topic }}", FOLDER + "/totals"],
        params={"topic": "orders"},
        pulsar_conn_id="pulsar_default",
        conn_id="spark_default",
        spark_environment=os.environ.get("SPARK_ENVIRONMENT"),
        conf={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"},
    )
# [END spark_application]
