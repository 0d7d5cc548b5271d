"""Decoding of messages with their writer's schema.

Rules: a schema that evolves (Avro) needs the writer's definition, which the registry has under the message's schema
version. It is fetched once per version and attachment, before the message is returned, so that decoding does no I/O. A
version that the registry does not have fails the decoding, not the receiving: the message can still be acknowledged.
Thread-safe: a version may be learnt twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pulsar_native.exceptions import InvalidConfiguration
from pulsar_native.schema.base import Schema
from pulsar_native.schema.errors import InvalidRecord
from pulsar_native.schema.info import SchemaInfo

# How long a version that the registry does not have is not asked for again, in seconds.
_MISSING_SECONDS = 5.0


class _VersionedSchema(Schema[Any]):
    """A consumer's schema at one version of a topic's: for decoding."""

    def __init__(self, schema: Schema[Any], info: SchemaInfo, version: bytes) -> None:
        self._schema = schema
        self._info = info
        self._version = version
        self.separates_key = schema.separates_key

    def encode(self, obj: Any) -> bytes:
        """Raise `InvalidConfiguration`: this schema only decodes."""
        raise InvalidConfiguration("The schema a message was read with only decodes; encode with one of your own")

    def decode(self, data: bytes) -> Any:
        """Return the value of a payload of this version."""
        return self._schema.decode_versioned(data, self._version)

    def decode_separated(self, key: bytes | None, data: bytes | None, schema_version: bytes | None) -> Any:
        """Return the value of a key and a payload of this version."""
        return self._schema.decode_separated(key, data, self._version)


class VersionedDecoder:
    """A consumer's schema with the writers' definitions of one topic.

    Versions are numbered per topic, so a consumer of several topics has one of these for each: `for_topic`.
    """

    def __init__(self, schema: Schema[Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._plain = schema
        self._clock = clock
        self._writers: dict[bytes, SchemaInfo] = {}
        # Versions that the registry did not have, and when it was asked: a schema may be registered again.
        self._missing: dict[bytes, float] = {}
        self._schema = schema.with_writer_schemas(self._find)
        # A schema that does not use writers' schemas returns itself.
        self.needs_writer = self._schema is not schema
        self.info = schema.schema_info()
        self.takes_key = self._schema.separates_key
        # Of a schema that reads all versions alike, which need not be looked at then.
        self.decode_any: Callable[[bytes], Any] | None = None
        if type(self._schema).decode_versioned is Schema.decode_versioned:
            self.decode_any = self._schema.decode

    def for_topic(self) -> VersionedDecoder:
        """Return a decoder of the same schema without any definitions."""
        return VersionedDecoder(self._plain, clock=self._clock)

    def wanted(self, version: bytes | None) -> bytes | None:
        """Return the version if its definition must be fetched, else None."""
        if not version or version in self._writers:
            return None
        asked = self._missing.get(version)
        return version if asked is None or self._clock() - asked >= _MISSING_SECONDS else None

    def learn(self, version: bytes, definition: SchemaInfo) -> None:
        """Store the definition of a version."""
        self._writers[version] = definition

    def miss(self, version: bytes) -> None:
        """Note that the registry does not have a version."""
        self._missing[version] = self._clock()

    def _find(self, version: bytes) -> SchemaInfo:
        try:
            return self._writers[version]
        except KeyError:
            reason = "is no longer in the registry" if version in self._missing else "was not fetched"
            raise InvalidRecord(f"The writer's schema of version {version.hex()} {reason}") from None

    def at_version(self, version: bytes) -> Schema[Any]:
        """Return the schema that decodes messages of a version."""
        return _VersionedSchema(self._schema, self._find(version), version) if self.needs_writer else self._plain

    def decode(self, data: bytes, version: bytes | None) -> Any:
        """Return the value of a payload by its schema version."""
        return self._schema.decode_versioned(data, version)

    def decode_separated(self, key: bytes | None, data: bytes | None, version: bytes | None) -> Any:
        """Return the value of a message whose key is a part of it; None stands for null parts."""
        return self._schema.decode_separated(key, data, version)


class TopicDecoder:
    """The decoder of one topic for all its partitions, another one after any of them was detached.

    A topic that was deleted with its schema and made again begins with version 0 again, which tells nothing of what is
    behind it. Order of events: 1. a partition is detached, and calls `renew`; 2. the topic may be made again; 3. the
    partition attaches, and takes `current`, whose definitions were all fetched after 1. Messages received before keep
    the decoder they came with, and so does a fetch for one of them.
    """

    def __init__(self, decoder: VersionedDecoder) -> None:
        self.current = decoder.for_topic()

    def renew(self) -> None:
        """Have partitions that attach from now on ask for every definition again."""
        self.current = self.current.for_topic()
