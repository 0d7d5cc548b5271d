"""Apache Pulsar for Apache Airflow: hooks, operators, sensors and triggers.

Rules: nothing here opens a socket or knows the protocol, `pulsar_native` does; nothing starts at import or in a
constructor; pyspark never enters this process.
"""
