"""Declarative matching of messages: key, properties, and an RFC 9535 expression on the decoded value.

Pure; no I/O. Rules: the description is checked before anything is received. A condition on the value is JSONPath as RFC
9535 defines it, without extensions, evaluated by the package python-jsonpath in its strict mode. A message that lacks
what a condition names does not match; it is not an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs import validation

if TYPE_CHECKING:
    from pulsar_native import Message

CONDITIONS = ("key", "properties", "jsonpath")
_STRINGS = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")

Texts = frozenset[str]


class MessageMatch:
    """Conditions that all must hold for a message to match; without any, every message matches.

    :param description: None, or a mapping with any of
        `key`: a text, or a list of texts of which the message's key must be one;
        `properties`: a mapping of names to a text or a list of texts of which the property must be one;
        `jsonpath`: RFC 9535 syntax on the decoded value. A query, which begins with `$`, matches where it selects at
        least one node: `$.items[?@.price > 100]`. Anything else is a logical expression (section 2.3.5.1), in which `@`
        is the value: `@.amount > 100 && @.status == 'paid'`. A null value never matches.

    Raises ValueError for anything else, with the name of the condition.
    """

    def __init__(self, description: object = None) -> None:
        if description is None:
            description = {}
        if not isinstance(description, Mapping):
            validation.refuse(f"match must be a mapping with {', '.join(CONDITIONS)}, not {description!r}")
        validation.known("match", [str(name) for name in description], CONDITIONS)
        self._keys = _texts("match['key']", description["key"]) if "key" in description else None
        self._properties = _properties(description["properties"]) if "properties" in description else {}
        self._selects = _compiled(description["jsonpath"]) if "jsonpath" in description else None

    @property
    def needs_value(self) -> bool:
        """True if a condition is on the value, which must be decoded for it."""
        return self._selects is not None

    def matches_metadata(self, message: Message) -> bool:
        """Return True if the conditions on key and properties hold."""
        if self._keys is not None and (not message.has_key() or message.partition_key() not in self._keys):
            return False
        if not self._properties:
            return True
        found = message.properties()
        return all(found.get(name) in texts for name, texts in self._properties.items())

    def matches_value(self, value: Any) -> bool:
        """Return True if the condition on the value holds; `value` is a JSON value."""
        return self._selects is None or (value is not None and self._selects(value))


def _properties(described: object) -> dict[str, Texts]:
    if not isinstance(described, Mapping) or not described or not all(isinstance(name, str) for name in described):
        validation.refuse(f"match['properties'] must be a mapping of names to texts, not {described!r}")
    return {name: _texts(f"match['properties'][{name!r}]", value) for name, value in described.items()}


def _texts(name: str, value: object) -> Texts:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list | tuple) or not values or not all(isinstance(each, str) for each in values):
        validation.refuse(f"{name} must be a text or a list of texts, not {value!r}")
    return frozenset(values)


def _compiled(path: object) -> Callable[[Any], bool]:
    """Return a function that tells whether a value fulfils a query or an expression."""
    text = validation.text("match['jsonpath']", path).strip()
    try:
        from jsonpath import JSONPathEnvironment, JSONPathError
    except ImportError:
        validation.refuse("match['jsonpath'] needs python-jsonpath: pip install 'pulsar-native[jsonpath]'")
    is_query = text.startswith("$")
    if not is_query and "$" in _STRINGS.sub("", text):
        validation.refuse(f"match['jsonpath']={text!r}: in an expression the value is @, not $")
    try:
        query = JSONPathEnvironment(strict=True).compile(text if is_query else f"$[?({text})]")
    except JSONPathError as error:
        hint = " (an expression on the value itself begins with @: @.amount > 100)" if is_query else ""
        validation.refuse(f"match['jsonpath']={text!r} is not valid in RFC 9535: {str(error).splitlines()[0]}{hint}")
    # A filter tests the elements of an array: for an expression the value is the only one.
    return lambda value: any(True for _ in query.finditer(value if is_query else [value]))
