"""Apache Pulsar for Apache Airflow: hooks, operators, sensors and triggers.

Rules: no socket and no protocol here, which belong to `pulsar_native`. Nothing starts at import or in a constructor.
pyspark is never imported in this process.
"""
