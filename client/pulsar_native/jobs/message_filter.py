"""Filter of single messages by key, properties and publish time.

Pure: no I/O. Rules: all given parts must hold; a condition without parts matches every message. Arguments are JSON
values, so that a filter can be carried to another process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs import validation

if TYPE_CHECKING:
    from pulsar_native import Message

PARTS = ("key", "key_regex", "properties", "since", "until")


@dataclass(frozen=True)
class MessageFilter:
    """Checked condition; `of` makes it. Times are publish times in milliseconds, `since` included, `until` excluded."""

    keys: tuple[str, ...] = ()
    key_regex: str | None = None
    properties: tuple[tuple[str, tuple[str, ...]], ...] = ()
    since: int | None = None
    until: int | None = None

    @staticmethod
    def of(given: Mapping[str, Any] | None) -> MessageFilter:
        """Return the condition of a mapping with some of `PARTS`; raises ValueError naming the part.

        `key` and each value of `properties` are a text or a list of texts, of which one must be equal. An empty list
        of a property only asks for its presence. `key_regex` must match the whole key. `since` and `until` are
        datetimes, ISO-8601 texts (UTC without zone) or milliseconds.
        """
        if given is None:
            return MessageFilter()
        if not isinstance(given, Mapping):
            validation.refuse(f"filter must be a dict with some of {', '.join(PARTS)}, not {type(given).__name__}")
        validation.known("filter", given, PARTS)
        regex = given.get("key_regex")
        if regex is not None:
            try:
                re.compile(validation.text("filter['key_regex']", regex))
            except re.error as error:
                validation.refuse(f"filter['key_regex']={regex!r} is no regular expression: {error}")
        properties = given.get("properties") or {}
        if not isinstance(properties, Mapping):
            validation.refuse('filter[\'properties\'] must be a dict such as {"region": "eu"}')
        since, until = (
            None if given.get(name) is None else validation.publish_time(f"filter[{name!r}]", given[name])
            for name in ("since", "until")
        )
        if since is not None and until is not None and until <= since:
            validation.refuse("filter['until'] must be after filter['since']: no message lies between them")
        return MessageFilter(
            () if given.get("key") is None else _texts("key", given["key"]),
            regex,
            tuple((str(name), _texts(f"properties[{name!r}]", value)) for name, value in sorted(properties.items())),
            since,
            until,
        )

    @property
    def is_empty(self) -> bool:
        """True if every message matches."""
        return self == MessageFilter()

    def as_json(self) -> dict[str, Any]:
        """Return the condition as JSON values, which `of` accepts."""
        found: dict[str, Any] = {
            "key": list(self.keys) or None,
            "key_regex": self.key_regex,
            "properties": {name: list(values) for name, values in self.properties} or None,
            "since": self.since,
            "until": self.until,
        }
        return {name: value for name, value in found.items() if value is not None}

    def matches(self, message: Message) -> bool:
        """Return True if the message meets all parts. A message without key has no key that could be equal."""
        if self.since is not None and message.publish_timestamp() < self.since:
            return False
        if self.until is not None and message.publish_timestamp() >= self.until:
            return False
        if (self.keys or self.key_regex is not None) and not self._has_key(message):
            return False
        return not self.properties or self._has_properties(message.properties())

    def _has_key(self, message: Message) -> bool:
        if not message.has_key():
            return False
        key = message.partition_key()
        if self.keys and key not in self.keys:
            return False
        return self.key_regex is None or re.fullmatch(self.key_regex, key) is not None

    def _has_properties(self, found: Mapping[str, str]) -> bool:
        return all(name in found and (not values or found[name] in values) for name, values in self.properties)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.as_json().items()) or "any message"


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence) and not isinstance(value, bytes) and all(isinstance(each, str) for each in value):
        return tuple(value)
    validation.refuse(f"filter[{name!r}] must be a text or a list of texts, not {value!r}")
