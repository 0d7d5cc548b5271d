"""Command `lag`: backlog of subscriptions, as the broker counts it, for people, scripts and alerts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pulsar_native.cli.errors import ConditionNotMet, UsageError
from pulsar_native.jobs.backlog import Backlog, backlogs

if TYPE_CHECKING:
    from pulsar_native.cli.main import Command

EXAMPLES = """\
examples:
  python -m pulsar_native lag orders
  python -m pulsar_native lag orders -s reports --max 1000 --quiet || notify "reports is behind"
"""
_COLUMNS = ("topic", "subscription", "type", "entries", "unacked", "delayed", "consumers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add = parser.add_argument
    add("topics", metavar="TOPIC", nargs="+")
    add("-s", "--subscription", metavar="NAME", help="this subscription only (default: all)")
    add("--max", metavar="N", type=int, help="exit with 3 if a subscription has more entries than N in a topic")
    add("--json", action="store_true", help="one JSON object for each partition and subscription")


def run(command: Command) -> None:
    """Write the backlogs; raises `ConditionNotMet` for one above --max."""
    options = command.options
    if options.max is not None and options.max < 0:
        raise UsageError("--max must be at least 0")
    found: list[Backlog] = []
    totals: dict[tuple[str, str], int] = {}
    with command.connection.needed_admin("lag") as admin:
        for topic in options.topics:
            of_topic = backlogs(admin, topic, options.subscription)
            for each in of_topic:
                totals[topic, each.subscription] = totals.get((topic, each.subscription), 0) + each.entries
            found += of_topic
    if options.json:
        for each in found:
            command.stdout.write(json.dumps(each.as_json()).encode() + b"\n")
    else:
        command.stdout.write(_table(found).encode())
    command.stdout.flush()
    if options.max is not None:
        behind = [f"{name} has {count:,} in {topic}" for (topic, name), count in totals.items() if count > options.max]
        if behind:
            raise ConditionNotMet(f"more than {options.max:,} entries of backlog: {'; '.join(behind)}")


def _table(found: Sequence[Backlog]) -> str:
    rows = [[str(getattr(each, name)) for name in _COLUMNS] for each in found]
    lines = [[name.upper() for name in _COLUMNS], *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(_COLUMNS))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )
