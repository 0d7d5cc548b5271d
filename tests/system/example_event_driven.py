"""Event-driven micro-load: messages of a topic start a run, which loads all that wait into a table.

A watcher with a subscription of its own tells Airflow that there is something; the load has another one. So messages
that arrive while a run is going on are loaded by the next one, none is loaded twice, and none is left.
"""

from __future__ import annotations

# [START event_driven]
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_pulsar.transfers.pulsar_to_sql import PulsarToSqlOperator

paid_orders = Asset(
    "paid_orders",
    watchers=[
        AssetWatcher(
            name="pulsar",
            trigger=MessageQueueTrigger(
                scheme="pulsar",
                topic="orders",
                decode="json",
                match={"jsonpath": "@.status == 'paid'"},
                payload="ids",
            ),
        )
    ],
)

with DAG("example_event_driven", schedule=[paid_orders], max_active_runs=1, catchup=False) as dag:
    PulsarToSqlOperator(
        task_id="load",
        topic="orders",
        subscription="warehouse",
        decode="json",
        sql_conn_id="warehouse",
        table="orders",
        columns={"id": "id", "customer": "customer", "status": "status", "message_id": "__messageId"},
    )
# [END event_driven]
