"""Schema sensor: waits until a topic has a schema in the registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_pulsar.sensors.watching import WatchingSensor
from pulsar_native.jobs.watching import arguments_of
from pulsar_native.jobs.watching_admin import SchemaCondition, SchemaWatcher


class SchemaSensor(WatchingSensor):
    """Wait until a topic has a schema. Needs the admin interface of the connection.

    :param topic: the topic, in any spelling. Templated.
    :param schema_type: json, avro, protobuf, protobuf_native, string, key_value or bytes. Default None: any. Templated.
    :param deferrable: wait in the triggerer.
    :param start_from_trigger: begin in the triggerer, without a worker for the first look; needs `deferrable`. Not for
        mapped tasks, nor for arguments that are the result of another task.
    :param pulsar_conn_id: the connection.
    :param poke_interval: seconds between two looks.

    Returns topic, type and version (from 0) of the schema.
    """

    template_fields: Sequence[str] = ("topic", "schema_type")
    trigger_class = "airflow_provider_pulsar.triggers.schema.SchemaTrigger"

    def __init__(self, *, topic: str, schema_type: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.schema_type = schema_type
        self.prepare()

    def condition(self) -> dict[str, Any]:
        """Return the arguments of the condition."""
        return arguments_of(SchemaCondition, self)

    def watcher(self) -> SchemaWatcher:
        """Return the watcher."""
        return SchemaWatcher(SchemaCondition.of(**self.condition()))
