"""Consume, transform, produce in one transaction: each order gives one invoice, whatever dies in between."""

from __future__ import annotations

# [START transaction]
import json
from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_pulsar.hooks.pulsar import PulsarHook

with DAG("example_transaction", schedule=None) as dag:

    @task(retries=2, retry_delay=timedelta(seconds=1))
    def invoice():
        """Make invoices of the orders that wait, a transaction for each batch, and return their number."""
        import pulsar_native as pulsar

        hook, done = PulsarHook(), 0
        with hook.get_client() as client:
            orders = client.subscribe(
                hook.topic_name("orders-to-bill"),
                "invoicing",
                initial_position=pulsar.InitialPosition.Earliest,
                batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(100, 0, 2000),
            )
            # Keeps the invoices for a consumer that comes later; with a queue of 0 none is delivered here.
            shared = pulsar.ConsumerType.Shared
            client.subscribe(hook.topic_name("invoices"), "accounting", shared, receiver_queue_size=0).close()
            invoices = client.create_producer(hook.topic_name("invoices"))
            while messages := orders.batch_receive():
                # Committed as a whole at the end of the block, aborted as a whole by an exception or a kill.
                with client.new_transaction(timeout_seconds=60) as transaction:
                    for message in messages:
                        order = json.loads(message.data())
                        bill = {"order": order["id"], "total": order["count"] * order["price"]}
                        invoices.send_async(json.dumps(bill).encode(), None, txn=transaction)
                    orders.acknowledge(messages, txn=transaction)
                done += len(messages)
        return done

    invoice()
# [END transaction]
