"""A Spark job that uses every part of the source with credentials by reference, for a search in what it leaves.

spark-submit … secret_driver.py SERVICE_URL TOPIC TARGET FOLDER CREDENTIALS_REF [OPTION=VALUE …]

Reads TOPIC and prints the plans of that, appends the rows to TARGET, streams TOPIC into Parquet and TARGET, with the
checkpoints in FOLDER. If the variable LITERAL_OPTIONS is set, an object in JSON, every one of these is tried with each
of its members as an option, as a user may put a secret there, and the failures are printed instead.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main() -> None:
    """Run the four queries, or try them with a secret as an option."""
    from pyspark.sql import SparkSession, functions

    url, topic, target, folder, reference, *more = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    shared = {"service.url": url, "credentialsRef": reference}
    source = {**shared, "topic": topic, "startingOffsets": "earliest", **dict(each.split("=", 1) for each in more)}
    if "LITERAL_OPTIONS" in os.environ:
        for option, value in json.loads(os.environ["LITERAL_OPTIONS"]).items():
            literal = {option: value}
            try_literal(spark, option, source | literal, {**shared, "topic": target} | literal, f"{folder}/{option}")
        spark.stop()
        return
    frame = spark.read.format("pulsar").options(**source).load()
    # Plans have no options: the topic's name is a literal of the query too.
    frame = frame.withColumn("name", functions.lit(topic))
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


def try_literal(spark: SparkSession, option: str, source: dict[str, str], target: dict[str, str], folder: str) -> None:
    """Run each kind of query with the secret in an option, and print the class and text of its failure."""
    rows = spark.range(2).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS value")
    # A stream that needs no option of ours.
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    sink = ticks.selectExpr("CAST(CAST(value AS STRING) AS BINARY) AS value").writeStream.format("pulsar")
    sink = sink.options(**target).option("checkpointLocation", f"{folder}/checkpoint-write").trigger(availableNow=True)
    parquet = {"path": f"{folder}/rows", "checkpointLocation": f"{folder}/checkpoint-read"}

    def stream_read() -> None:
        found = spark.readStream.format("pulsar").options(**source).load()
        found.writeStream.format("parquet").options(**parquet).trigger(availableNow=True).start().awaitTermination(120)

    tries: dict[str, Callable[[], object]] = {
        "read": lambda: spark.read.format("pulsar").options(**source).load().count(),
        "write": lambda: rows.write.format("pulsar").options(**target).mode("append").save(),
        "stream read": stream_read,
        "stream write": lambda: sink.start().awaitTermination(120),
    }
    for name, query in tries.items():
        try:
            query()
        except Exception as error:
            text = " ".join(str(error).split())
            sys.stdout.write(f"REFUSED {option}, {name}: {type(error).__name__}: {text}\n")


if __name__ == "__main__":
    main()
