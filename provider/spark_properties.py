"""Spark properties of a Pulsar connection: `spark.pulsar.…`, which `pyspark_pulsar.connection_options` reads.

For whatever starts Spark from a mapping of properties; needs no package of Spark. Rules: no secret is among them, at
most the reference of one. A property that is there already is left, in any spelling.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_pulsar.spark_options import source_options

if TYPE_CHECKING:
    from airflow.sdk import Connection, Context

CREDENTIALS_REF = "spark.pulsar.credentialsRef"
_log = logging.getLogger(__name__)


def inject_pulsar_connection_into_spark_properties(
    properties: Mapping[str, Any] | None, connection: Connection | str, context: Context
) -> dict[str, Any]:
    """Return Spark's properties and those of a Pulsar connection, without its secret.

    For operators that start Spark in another way than `PulsarSparkSubmitMixin`, such as those of managed services; the
    application calls `pyspark_pulsar.connection_options(spark)`. The form is that of OpenLineage's helpers.

    :param properties: the properties so far, which win over those of the connection; None for none.
    :param connection: the connection of type pulsar, or its id. Its field `spark_credentials_ref` becomes the
        property spark.pulsar.credentialsRef: Spark must have the secret there already.
    :param context: context of the running task; not used yet.

    Blocks for reading the connection. Raises `AirflowException` for a connection with a wrong field.
    """
    # Who parses DAGs needs no client.
    from airflow_provider_pulsar.hooks.pulsar import PulsarHook

    hook = PulsarHook(connection) if isinstance(connection, str) else PulsarHook.of(connection)
    return with_connection(properties or {}, hook.connection_options())


def with_connection(properties: Mapping[str, Any], fields: Mapping[str, object]) -> dict[str, Any]:
    """Return the properties and those of a connection's fields that are not set yet. No I/O."""
    added = {_property(option): text for option, text in source_options(fields).items()}
    if reference := fields.get("spark_credentials_ref"):
        added[CREDENTIALS_REF] = str(reference)
    kept = [name for name in added if is_set(properties, name)]
    if kept:
        _log.info("Set already, and not taken from the Pulsar connection: %s", ", ".join(kept))
    return {**properties, **{name: text for name, text in added.items() if name not in kept}}


def is_set(properties: Mapping[str, Any], name: str) -> bool:
    """Return True if a property is there, in any spelling: options of the source have none."""
    return any(str(each).lower() == name.lower() for each in properties)


def _property(option: str) -> str:
    return f"spark.{option}" if option.startswith("pulsar.") else f"spark.pulsar.{option}"
