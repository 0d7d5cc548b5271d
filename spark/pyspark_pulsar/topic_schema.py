"""Registered schema of the topics of a read or a load, for decoding their values.

Read from the admin interface. Rules: the schemas of the topics must be equal; a schema of another type than requested
raises with both types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pulsar_native.admin import AdminClient
from pulsar_native.exceptions import InvalidConfiguration, OperationNotSupported
from pulsar_native.schema import SchemaInfo, SchemaType
from pyspark_pulsar.broker import Broker, admin_client
from pyspark_pulsar.options import ReadOptions
from pyspark_pulsar.value_schema import ValueSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# A topic without a schema holds bytes.
_NO_SCHEMA = SchemaInfo("BYTES", SchemaType.BYTES)


def registered_definition(options: ReadOptions, topics: Sequence[str], kind: str) -> str:
    """Return the definition (an Avro schema in JSON) registered at all the topics, of type JSON or AVRO.

    Blocks; needs the option admin.url. Raises `InvalidConfiguration` if there is none or the topics differ, and for
    Avro `OperationNotSupported` if the schema has changed since its first version, since rows do not have their schema
    version.
    """
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
            f"{topic} has a schema of kind {info.type.name}, which value.format {kind.lower()} does not read: set "
            "value.format to auto"
        )
    if info.type.name != kind:
        raise InvalidConfiguration(
            f"{topic} has a schema of kind {info.type.name}, not {kind}: set value.format to fit"
        )
    if kind == "AVRO" and _has_changed(admin, topic, info):
        raise OperationNotSupported(
            f"The Avro schema of {topic} has several versions, and values do not say which one they were written with: "
            "set value.format to auto, or give the writer's definition as value.schema"
        )
    return info.schema()


def _has_changed(admin: AdminClient, topic: str, latest: SchemaInfo) -> bool:
    first = admin.get_schema(topic, 0)
    return first is not None and first.schema() != latest.schema()


def read_schema(options: ReadOptions, given: StructType | None = None) -> ValueSchema:
    """Return the decoding of a read by its topics' newest schema, or by the newest that has the columns `given`.

    The schema may have got a version between the analysis of a query, which fixed its columns, and its planning. Blocks
    for a request per topic. Raises `InvalidConfiguration` if the topics' schemas differ, for a schema or a column
    without a type, and if no version has the columns.
    """
    assert options.values is not None
    with Broker(options) as broker:
        first, *others = broker.topics()
        info = broker.schema(first)
        for other in others:
            if _identity(broker.schema(other)) != _identity(info):
                raise InvalidConfiguration(
                    f"The schemas of {first} and {other} differ: read them apart, or with valueFormat=raw"
                )
        found = ValueSchema.of(info or _NO_SCHEMA, options.columns, options.values)
        if given is None or given == found.struct():
            return found
        newest = found.struct().simpleString()
        for version in range((info.version or 0) - 1 if info is not None else -1, -1, -1):
            older = broker.schema(first, version)
            fitting = None if older is None else _decoding(older, options, given)
            if fitting is not None:
                return fitting
    raise InvalidConfiguration(
        f"The schema of this read is {given.simpleString()}, and the newest one of {first} gives {newest}: leave "
        ".schema(...) out and choose columns with option columns"
    )


def _decoding(info: SchemaInfo, options: ReadOptions, given: StructType) -> ValueSchema | None:
    """Return the decoding by an older schema, None if it has not the given columns."""
    assert options.values is not None
    try:
        found = ValueSchema.of(info, options.columns, options.values)
    except InvalidConfiguration:
        return None
    return found if found.struct() == given else None


def _identity(info: SchemaInfo | None) -> tuple[object, ...]:
    return () if info is None else (info.type, info.data, dict(info.properties()).get("kv.encoding.type"))
