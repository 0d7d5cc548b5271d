"""Fan-out: one mapped task per region publishes to the region's topic; a region that fails is retried alone."""

from __future__ import annotations

# [START fan_out_publish]
from airflow.sdk import DAG, task

from airflow_provider_pulsar.operators.publish import PublishOperator

with DAG("example_fan_out_publish", schedule=None) as dag:

    @task
    def prices():
        """Return the arguments of each mapped task."""
        regions = {"north": 1.1, "south": 0.9, "west": 1.0}
        return [
            {
                "topic": f"prices-{region}",
                "messages": [{"item": item, "price": round(item * factor, 2)} for item in range(1, 101)],
            }
            for region, factor in regions.items()
        ]

    publish = PublishOperator.partial(
        task_id="publish",
        key_field="item",
        compression="zstd",
        create_subscription="shops",
        map_index_template="{{ task.topic }}",
    ).expand_kwargs(prices())

    @task
    def total(manifests):
        """Return how many messages are stored: each mapped task returns its manifest."""
        return sum(manifest["count"] for manifest in manifests)

    total(publish.output)
# [END fan_out_publish]
