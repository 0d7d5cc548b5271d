"""Filters of messages by options: key, properties, range of publish times."""

from __future__ import annotations

import argparse

from pulsar_native.cli.errors import UsageError
from pulsar_native.jobs.message_filter import MessageFilter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of filters; all given ones must hold."""
    group = parser.add_argument_group("filters")
    add = group.add_argument
    add("--key", metavar="KEY", action="append", default=[], help="key; repeated: one of them")
    add("--key-regex", metavar="REGEX", help="regular expression of the whole key")
    add("--property", metavar="NAME[=VALUE]", action="append", default=[], dest="properties",
        help="property with this value, or any; repeated for one name: one of the values")  # fmt: skip
    add("--since", metavar="TIME", help="published at or after this time: ISO-8601 (UTC without zone) or ms since 1970")
    add("--until", metavar="TIME", help="published before this time")


def match_of(options: argparse.Namespace) -> MessageFilter:
    """Return the filter of parsed options; raises `UsageError`."""
    properties: dict[str, list[str]] = {}
    for each in options.properties:
        name, equals, value = each.partition("=")
        if not name:
            raise UsageError(f"--property needs NAME or NAME=VALUE, not {each!r}")
        properties.setdefault(name, []).extend([value] if equals else [])
    given = {
        "key": options.key or None,
        "key_regex": options.key_regex,
        "properties": properties,
        "since": options.since,
        "until": options.until,
    }
    try:
        return MessageFilter.of(given)
    except ValueError as error:
        text = str(error)
        for name in ("key_regex", "since", "until"):
            text = text.replace(f"filter[{name!r}]", f"--{name.replace('_', '-')}")
        raise UsageError(text) from error
