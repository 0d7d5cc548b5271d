"""Command `check`: the way to a cluster, stage by stage: name, TCP, TLS, credentials, handshake, lookup, admin."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from pulsar_native.cli.errors import ConditionNotMet

if TYPE_CHECKING:
    from pulsar_native.cli.main import Command

EXAMPLES = """\
examples:
  python -m pulsar_native check --url pulsar+ssl://broker:6651 --token-file /etc/pulsar/token
  python -m pulsar_native check --topic orders --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--topic", metavar="TOPIC", help="look this topic up, with the rights it needs")
    parser.add_argument("--json", action="store_true", help="the stages as one JSON object")


def run(command: Command) -> None:
    """Write the stages; raises `ConditionNotMet` if one failed."""
    from pulsar_native.diagnostics import diagnose

    options, connection = command.options, command.connection
    found = diagnose(
        connection.config,
        admin_url=connection.admin_url,
        topic=options.topic,
        timeout_seconds=min(options.timeout, 30),
    )
    stages = [{"stage": each.name, "ok": each.ok, "detail": connection.redact(each.detail)} for each in found.stages]
    if options.json:
        shown = {"ok": found.ok, "stages": stages, "remarks": list(found.remarks), "codec": found.codec}
        command.stdout.write(json.dumps(shown).encode() + b"\n")
    else:
        for stage in found.stages:
            command.stdout.write(f"{connection.redact(str(stage))}\n".encode())
        for remark in found.remarks:
            command.stdout.write(f"{connection.redact(remark)}\n".encode())
    command.stdout.flush()
    if not found.ok:
        raise ConditionNotMet(f"{connection.config.service_url}: the check failed")
