"""Dead-letter triage: messages that cannot be processed are set aside with their cause, judged, and sent again."""

from __future__ import annotations

import json

# [START dead_letter_triage]
import os
from collections import Counter

from airflow.sdk import DAG, task

from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from airflow_provider_pulsar.operators.publish import PublishOperator

FOLDER = os.environ.get("EXAMPLES_FOLDER", "/tmp/pulsar-examples")


def check(message):
    """Raise for a payment without a whole number of cents."""
    amount = json.loads(message.data())["cents"]
    if not isinstance(amount, int):
        raise ValueError(f"cents is {type(amount).__name__}")


with DAG("example_dead_letter_triage", schedule=None) as dag:
    book = ConsumeBatchOperator(
        task_id="book",
        topic="payments",
        subscription="booking",
        decode="json",
        process_message=check,
        on_error="dead_letter",
        dead_letter_topic="payments-dead",
        initial_subscription_name="triage",
        path=FOLDER + "/payments/{{ run_id }}.jsonl",
    )

    @task.pulsar_consume(topic="payments-dead", subscription="triage", decode="json", create_topic=True)
    def triage(messages):
        """Mend what can be mended; the batch is acknowledged when this returns."""
        print(Counter(each["properties"]["EXCEPTION_MESSAGE"] for each in messages))
        values = [each["value"] for each in messages]
        return [{**value, "cents": round(float(value["cents"]))} for value in values if value["cents"] is not None]

    mended = triage()
    again = PublishOperator(task_id="publish_again", topic="payments", messages=mended)
    book >> mended >> again
# [END dead_letter_triage]
