"""A Spark driver of its own process, to be killed: a topic's stream into Parquet until it is ended.

python stream_driver.py SERVICE_URL TOPIC FOLDER COLUMNS MESSAGES_PER_TRIGGER
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the query; returns only when it fails."""
    from pyspark.sql import SparkSession

    url, topic, folder, columns, limit = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = (
        builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    )
    options = {"service.url": url, "topic": topic, "columns": columns, "maxMessagesPerTrigger": limit}
    frame = spark.readStream.format("pulsar").options(**options).option("startingOffsets", "earliest").load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    writer.start(f"{folder}/rows").awaitTermination()


if __name__ == "__main__":
    main()
