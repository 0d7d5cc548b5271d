"""The schema registered at the topics of a load, for decoding their values.

Asked over the admin interface. Rules: the topics of one load must agree; a kind of schema other than the asked one is
an error that names both.
"""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_native.admin import AdminClient
from pulsar_native.exceptions import InvalidConfiguration, OperationNotSupported
from pulsar_native.schema import SchemaInfo, SchemaType
from pyspark_pulsar.broker import admin_client
from pyspark_pulsar.options import ReadOptions


def registered_definition(options: ReadOptions, topics: Sequence[str], kind: str) -> str:
    """Return the definition (an Avro schema in JSON) registered at all the topics, of kind JSON or AVRO.

    Blocking. Raises `InvalidConfiguration` when there is none or not one for all, and for Avro
    `OperationNotSupported` when the schema has changed since the first version: the rows do not say which one they
    were written with.
    """
    if options.admin_url is None:
        raise InvalidConfiguration("Decoding by the registered schema needs admin.url, or give value.schema")
    credentials = options.credentials.resolve() if options.credentials is not None else None
    with admin_client(options, credentials) as admin:
        found = {topic: _definition(admin, topic, kind) for topic in topics}
    first_topic, definition = next(iter(found.items()))
    for topic, other in found.items():
        if other != definition:
            raise InvalidConfiguration(
                f"The schemas of {first_topic} and {topic} differ: load them apart, or give value.schema"
            )
    return definition


def _definition(admin: AdminClient, topic: str, kind: str) -> str:
    info = admin.get_schema(topic)
    if info is None:
        raise InvalidConfiguration(f"{topic} has no registered schema: give value.schema, or load raw values")
    if info.type not in (SchemaType.JSON, SchemaType.AVRO):
        raise InvalidConfiguration(
            f"{topic} has a schema of kind {info.type.name}, and only JSON and AVRO become columns: load raw values, "
            "and decode them with pulsar_native.schema.schema_from_info"
        )
    if info.type.name != kind:
        raise InvalidConfiguration(
            f"{topic} has a schema of kind {info.type.name}, not {kind}: set value.format to fit"
        )
    if kind == "AVRO" and _has_changed(admin, topic, info):
        raise OperationNotSupported(
            f"The Avro schema of {topic} has several versions, and values do not say which one they were written with: "
            "give the writer's definition as value.schema, or publish JSON"
        )
    return info.schema()


def _has_changed(admin: AdminClient, topic: str, latest: SchemaInfo) -> bool:
    first = admin.get_schema(topic, 0)
    return first is not None and first.schema() != latest.schema()
