"""A Spark job that uses every part of the source with credentials by reference, for a search in what it leaves.

spark-submit … secret_driver.py SERVICE_URL TOPIC TARGET FOLDER CREDENTIALS_REF [OPTION=VALUE …]

Reads TOPIC and prints the plans of that, appends the rows to TARGET, streams TOPIC into Parquet and TARGET, with the
checkpoints in FOLDER.
"""

from __future__ import annotations

import sys
from typing import Any


def main() -> None:
    """Run the four queries."""
    from pyspark.sql import SparkSession

    url, topic, target, folder, reference, *more = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    shared = {"service.url": url, "credentialsRef": reference}
    source = {**shared, "topic": topic, "startingOffsets": "earliest", **dict(each.split("=", 1) for each in more)}
    frame = spark.read.format("pulsar").options(**source).load()
    frame.explain(True)
    plan: Any = frame
    execution = plan._jdf.queryExecution()
    sys.stdout.write(f"PLANS {execution.toString()} {execution.analyzed().toJSON()}\nROWS {frame.count()}\n")
    frame.select("value").write.format("pulsar").options(**shared).option("topic", target).mode("append").save()
    stream = spark.readStream.format("pulsar").options(**source).load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint-read")
    writer.trigger(availableNow=True).start(f"{folder}/rows").awaitTermination(120)
    sink = stream.select("value").writeStream.format("pulsar").options(**shared).option("topic", target)
    sink = sink.option("checkpointLocation", f"{folder}/checkpoint-write")
    sink.trigger(availableNow=True).start().awaitTermination(120)
    spark.stop()


if __name__ == "__main__":
    main()
