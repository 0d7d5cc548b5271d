"""Decoding messages with the schema they were written with.

Rules: a schema that evolves (Avro) needs the writer's definition, which the registry keeps under the message's schema
version; it is fetched once a version, before the message is handed to the application, so that decoding does no I/O.
Thread-safe: a version learnt twice is the same.
"""

from __future__ import annotations

from typing import Any

from pulsar_native.schema.base import Schema
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.info import SchemaInfo


class VersionedDecoder:
    """A consumer's schema with the writers' definitions it has met on one topic.

    Versions are numbered topic by topic, so a consumer of several topics has one of these for each: `for_topic`.
    """

    def __init__(self, schema: Schema[Any]) -> None:
        self._plain = schema
        self._writers: dict[bytes, SchemaInfo] = {}
        self._schema = schema.with_writer_schemas(self._find)
        # A schema that does not care for writers returns itself.
        self.needs_writer = self._schema is not schema
        self.info = schema.schema_info()
        self.takes_key = self._schema.separates_key

    def for_topic(self) -> VersionedDecoder:
        """Return a decoder of the same schema that has met nothing yet."""
        return VersionedDecoder(self._plain)

    def wanted(self, version: bytes | None) -> bytes | None:
        """Return the version if its definition must be fetched first, else None."""
        return version if version and version not in self._writers else None

    def learn(self, version: bytes, definition: SchemaInfo) -> None:
        """Keep the definition of a version."""
        self._writers[version] = definition

    def _find(self, version: bytes) -> SchemaInfo:
        try:
            return self._writers[version]
        except KeyError:
            raise InvalidRecord(f"The writer's schema of version {version.hex()} was not fetched") from None

    def decode(self, data: bytes, version: bytes | None) -> Any:
        """Return the value of a payload written with a schema version."""
        return self._schema.decode_versioned(data, version)

    def decode_separated(self, key: bytes | None, data: bytes | None, version: bytes | None) -> Any:
        """Return the value of a message whose key is a part of it; None stands for null parts."""
        return self._schema.decode_separated(key, data, version)
