"""A Spark job that uses several credentials references: each for a read and a write, and for a stream or a load.

spark-submit … credentials_job.py SERVICE_URL TOPIC FOLDER REFERENCE…

Prints the plans and the results. The variable PULSAR_LITERAL has a secret that is given as an option at the end, which
must be refused.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def say(*parts: object) -> None:
    """Print one line."""
    sys.stdout.write(" ".join(str(part) for part in parts) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the job."""
    from pyspark.sql import SparkSession

    import pyspark_pulsar

    url, topic, folder, *references = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    for name in ("pulsar_native", "pyspark_pulsar"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    spark = SparkSession.builder.appName("credentials").getOrCreate()
    pyspark_pulsar.register(spark)
    for number, reference in enumerate(references):
        source = {"service.url": url, "topic": topic}
        shared = {**source, "credentialsRef": pyspark_pulsar.share_credentials(spark, reference)}
        say("read:", reference, _read(spark, shared))
        say("written:", reference, _write(spark, shared))
        if number % 2 == 0:
            say("streamed:", reference, _stream(spark, shared, f"{folder}/{number}"))
        else:
            say("loaded:", reference, _load(spark, {**source, "credentialsRef": reference}, f"{folder}/{number}"))
    for name in ("pulsar.client.authParams", "authParams", "token", "credentialsRef"):
        say("refused:", name, _refusal(spark, {**source, name: os.environ["PULSAR_LITERAL"]}))
    spark.stop()


def _read(spark: SparkSession, options: dict[str, str]) -> int:
    frame = spark.read.format("pulsar").options(**options).load()
    frame.explain(True)
    frame.explain("formatted")
    frame.createOrReplaceTempView("messages")
    spark.sql("EXPLAIN COST SELECT * FROM messages").show(truncate=False)
    return spark.sql("SELECT * FROM messages").count()


def _write(spark: SparkSession, options: dict[str, str]) -> int:
    frame = spark.range(1).selectExpr("cast(id AS STRING) AS value")
    frame.write.format("pulsar").options(**options).mode("append").save()
    return 1


def _stream(spark: SparkSession, options: dict[str, str], folder: str) -> int:
    frame = spark.readStream.format("pulsar").options(**options).option("startingOffsets", "earliest").load()
    frame.explain(True)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(availableNow=True).start(f"{folder}/rows")
    query.awaitTermination()
    query.explain(True)
    say("progress:", query.lastProgress)
    return spark.read.parquet(f"{folder}/rows").count()


def _load(spark: SparkSession, source: dict[str, str], folder: str) -> int | None:
    from pyspark_pulsar.load import Load
    from pyspark_pulsar.request import LoadRequest

    request = {"source": source, "output": {"path": f"file://{folder}/load"}, "interval": "all"}
    outcome = Load(spark, LoadRequest.parse(json.dumps(request)), time.monotonic()).run()
    say(outcome.to_line())
    return outcome.rows


def _refusal(spark: SparkSession, options: dict[str, str]) -> str:
    try:
        spark.read.format("pulsar").options(**options).load().count()
    except Exception as error:
        return " ".join(str(error).split())
    return "accepted"


if __name__ == "__main__":
    main()
