"""Topic names: parsing, validation and derived forms.

Rules: a name is checked completely here, before any I/O. The three accepted spellings are `topic`,
`tenant/namespace/topic` and `{persistent|non-persistent}://tenant/namespace/topic`; the four-part form of old
clusters is refused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

from pulsar_native.exceptions import InvalidTopicName

PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"

_PARTITION_SUFFIX = "-partition-"
_PARTITION_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_LARGEST_PARTITION = (1 << 31) - 1
# The characters the broker allows in the names of tenants and namespaces (NamedEntity).
_NAMED_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
# Control characters, and lone surrogates, which UTF-8 has no bytes for.
_REFUSED = re.compile(r"[\0-\x1f\ud800-\udfff]")


class TopicName(NamedTuple):
    """A checked topic name; immutable, hashable, printed in its full form."""

    domain: str
    tenant: str
    namespace_portion: str
    local_name: str
    partition: int

    @staticmethod
    def parse(name: str) -> TopicName:
        """Return the parsed name, or raise `InvalidTopicName`. Does no I/O."""
        if not isinstance(name, str):
            raise InvalidTopicName(f"A topic name must be a str, not {type(name).__name__}")
        return _parse(name)

    @property
    def namespace(self) -> str:
        """Tenant and namespace, `public/default`."""
        return f"{self.tenant}/{self.namespace_portion}"

    @property
    def full(self) -> str:
        """Full name, with the partition suffix."""
        return f"{self.domain}://{self.tenant}/{self.namespace_portion}/{self.local_name}"

    @property
    def is_persistent(self) -> bool:
        """True if the broker stores the topic's messages."""
        return self.domain == PERSISTENT

    @property
    def is_partition(self) -> bool:
        """True if the name is that of one partition."""
        return self.partition >= 0

    @property
    def base(self) -> TopicName:
        """Partitioned topic of this partition, or the name itself."""
        if self.partition < 0:
            return self
        local = self.local_name[: self.local_name.rindex(_PARTITION_SUFFIX)]
        return TopicName(self.domain, self.tenant, self.namespace_portion, local, -1)

    def with_partition(self, index: int) -> TopicName:
        """Return the name of one partition of this topic."""
        if self.partition == index:
            return self
        return TopicName(
            self.domain, self.tenant, self.namespace_portion, f"{self.base.local_name}{_PARTITION_SUFFIX}{index}", index
        )

    @property
    def lookup_path(self) -> str:
        """Path for HTTP requests: `persistent/tenant/namespace/topic`, the last part percent-encoded."""
        return f"{self.domain}/{self.tenant}/{self.namespace_portion}/{quote(self.local_name, safe='')}"

    @property
    def schema_path(self) -> str:
        """Path for HTTP requests about the schema: `schemas/tenant/namespace/topic/schema`, the topic encoded twice."""
        # The broker decodes it twice (broker-behaviour.md#decoded-twice): encoded once, "a+b" would mean "a b".
        twice = quote(quote(self.local_name, safe=""), safe="")
        return f"schemas/{self.tenant}/{self.namespace_portion}/{twice}/schema"

    def __str__(self) -> str:
        return self.full


@lru_cache(maxsize=4096)
def _parse(name: str) -> TopicName:
    domain, separator, rest = name.partition("://")
    if not separator:
        domain, rest = PERSISTENT, name
        parts = rest.split("/")
        if len(parts) == 1:
            parts = ["public", "default", *parts]
        elif len(parts) != 3:
            raise InvalidTopicName(
                f"Invalid short topic name {name!r}: write 'topic', 'tenant/namespace/topic' "
                "or 'persistent://tenant/namespace/topic'"
            )
    else:
        if domain not in (PERSISTENT, NON_PERSISTENT):
            raise InvalidTopicName(
                f"Invalid topic domain {domain!r} in {name!r}: it must be '{PERSISTENT}' or '{NON_PERSISTENT}'"
            )
        # A local name may hold slashes only in the retired four-part form, which the broker takes for a cluster name.
        parts = rest.split("/")
        if len(parts) != 3:
            raise InvalidTopicName(f"Invalid topic name {name!r}: expected {domain}://tenant/namespace/topic")
    tenant, namespace, local = parts
    for what, part in (("tenant", tenant), ("namespace", namespace)):
        if not _NAMED_ENTITY.fullmatch(part):
            raise InvalidTopicName(
                f"Invalid {what} {part!r} in topic name {name!r}: letters, digits and -=:._ are allowed"
            )
    if not local.strip() or _REFUSED.search(local):
        raise InvalidTopicName(
            f"Invalid topic name {name!r}: the topic part is blank, or holds control characters or lone surrogates"
        )
    return TopicName(domain, tenant, namespace, local, _partition_of(local))


def _partition_of(local_name: str) -> int:
    head, separator, digits = local_name.rpartition(_PARTITION_SUFFIX)
    # `-partition-007` and `-partition-+1` are ordinary names: only the canonical spelling of an int32 is a partition.
    if separator and head and _PARTITION_NUMBER.fullmatch(digits) and int(digits) <= _LARGEST_PARTITION:
        return int(digits)
    return -1
