"""SQL to topic to Parquet: the orders of a day from a database, through a topic, into a file of the lake."""

from __future__ import annotations

# [START sql_to_parquet]
import os

from airflow.sdk import DAG

from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from airflow_provider_pulsar.transfers.sql_to_pulsar import SqlToPulsarOperator

FOLDER = os.environ.get("EXAMPLES_FOLDER", "/tmp/pulsar-examples")

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "total", "type": "double"},
    ],
}

with DAG("example_sql_to_parquet", schedule=None, params={"day": "2026-01-01"}) as dag:
    publish = SqlToPulsarOperator(
        task_id="publish",
        sql="SELECT id, customer, total FROM orders WHERE day = ? ORDER BY id",
        parameters=["{{ params.day }}"],
        sql_conn_id="shop",
        topic="orders-{{ run_id }}",
        key_field="customer",
        schema="avro",
        schema_definition=ORDER,
        create_subscription="lake",
    )
    lake = ConsumeBatchOperator(
        task_id="lake",
        topic="orders-{{ run_id }}",
        subscription="lake",
        path=FOLDER + "/orders/day={{ params.day }}/orders.parquet",
        if_exists="overwrite",
    )
    publish >> lake
# [END sql_to_parquet]
