"""Application for spark-submit: the total of each customer's orders, from a topic into a Parquet path."""

# [START totals_by_customer]
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

from pyspark_pulsar import connection_options

topic, path = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
messages = spark.read.format("pulsar").options(**connection_options(spark)).option("topic", topic).load()
orders = messages.select(from_json(col("value").cast("string"), "customer STRING, amount DOUBLE").alias("order"))
totals = orders.select("order.*").groupBy("customer").sum("amount").withColumnRenamed("sum(amount)", "total")
totals.write.mode("overwrite").parquet(path)
spark.stop()
# [END totals_by_customer]
