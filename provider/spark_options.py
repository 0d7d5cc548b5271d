"""Options of Spark's `format("pulsar")` for the fields of a connection. Holds no secret."""

from __future__ import annotations

from collections.abc import Mapping

# Fields of the connection that are options of the data source.
_OPTIONS = {
    "service_url": "service.url",
    "admin_url": "admin.url",
    "listener_name": "pulsar.client.listenerName",
    "tls_trust_certs_file_path": "pulsar.client.tlsTrustCertsFilePath",
    "tls_allow_insecure_connection": "pulsar.client.tlsAllowInsecureConnection",
    "tls_validate_hostname": "pulsar.client.tlsHostnameVerificationEnable",
}


def source_options(connection: Mapping[str, object]) -> dict[str, str]:
    """Return the options of `format("pulsar")` for a connection's fields, as texts."""
    found = {}
    for field, option in _OPTIONS.items():
        value = connection.get(field)
        if value not in (None, ""):
            found[option] = str(value).lower() if isinstance(value, bool) else str(value)
    # Spark may reach the brokers at other addresses than Airflow.
    for field, option in (("spark_service_url", "service.url"), ("spark_admin_url", "admin.url")):
        if connection.get(field):
            found[option] = str(connection[field])
    timeout = connection.get("operation_timeout_seconds")
    if isinstance(timeout, int | float):
        found["pulsar.client.operationTimeoutMs"] = str(int(timeout * 1000))
    return found
