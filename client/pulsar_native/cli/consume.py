"""Command `consume`: one bounded batch of a subscription to standard output or a file, then acknowledged.

Order of events: the messages are written and flushed (a file: durable and renamed) before anything is acknowledged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import uuid
from typing import TYPE_CHECKING, Any

from pulsar_native.cli import filters, records
from pulsar_native.cli.errors import ConditionNotMet, UsageError
from pulsar_native.jobs import validation
from pulsar_native.jobs.batch import BatchLimits, CutEntries
from pulsar_native.jobs.batch_output import IF_EXISTS
from pulsar_native.jobs.consume_options import INITIAL_POSITIONS, SUBSCRIPTION_TYPES
from pulsar_native.jobs.consume_settings import ConsumeCallbacks, ConsumeSettings
from pulsar_native.jobs.consuming import ConsumeJob
from pulsar_native.jobs.dead_letters import DeadLetterOptions
from pulsar_native.jobs.failures import counted
from pulsar_native.jobs.file_state import FileState, MemoryState
from pulsar_native.jobs.formats import FORMATS, format_of
from pulsar_native.jobs.part_files import PartLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsar_native import Message
    from pulsar_native.cli.main import Command
    from pulsar_native.jobs.message_filter import MessageFilter

ON_ERROR = ("fail", "skip", "dead_letter")
EXAMPLES = """\
examples:
  python -m pulsar_native consume orders -s reports                        # everything there is, as JSON lines
  python -m pulsar_native consume orders -s reports -n 100 --as value
  python -m pulsar_native consume orders -s lake -o day.parquet --run 2026-01-01
  python -m pulsar_native consume orders -s eu --property region=eu --unmatched acknowledge
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add = parser.add_argument
    add("topics", metavar="TOPIC", nargs="+")
    add("-s", "--subscription", metavar="NAME", required=True, help="made where it does not exist")
    add("--type", choices=SUBSCRIPTION_TYPES, default="exclusive", dest="subscription_type")
    add("--from", choices=INITIAL_POSITIONS, default="earliest", dest="initial_position",
        help="where a new subscription begins (default earliest)")  # fmt: skip
    group = parser.add_argument_group("end of the batch (default: the end the topics have at the start)")
    add = group.add_argument
    add("-n", "--max-messages", metavar="N", type=int)
    add("--max-bytes", metavar="N", type=int, help="bytes of payloads")
    add("--max-seconds", metavar="S", type=float)
    add("--wait", action="store_true", help="go on at the end of the topics, until one of the limits")
    add("--idle-seconds", metavar="S", type=float, help="without --wait: how long to wait for messages that are there "
        "but do not come (default 10)")  # fmt: skip
    add("--fail-empty", action="store_true", help="exit with 3 if there was no message")
    filters.add_arguments(parser)
    parser.add_argument("--unmatched", choices=("acknowledge", "keep"),
        help="what becomes of messages that the filters leave out; needed with filters")  # fmt: skip
    records.add_arguments(parser)
    group = parser.add_argument_group("file")
    add = group.add_argument
    add("-o", "--output", metavar="FILE", help="a file instead of standard output (-), complete or not there; its "
        "manifest is _FILE.manifest.json beside it")  # fmt: skip
    add("--output-format", choices=FORMATS, help="default: parquet for a file that ends in .parquet, else jsonl")
    add("--max-messages-per-file", metavar="N", type=int, help="divide it into files FILE.part-00000.EXT and so on")
    add("--max-bytes-per-file", metavar="N", type=int, help="begin another such file at this size")
    add("--run", metavar="NAME", help="name of this run: a repetition under the same name has the same messages, and "
        "none twice (default: a new run each time)")  # fmt: skip
    add("--if-exists", choices=IF_EXISTS, help="a file that is not of this run (default fail)")
    add("--state", metavar="FILE", help="local file that remembers entries consumed in part; one process at a time")
    add("--json", action="store_true", help="with --output: write the manifest to standard output, as JSON")
    group = parser.add_argument_group("messages that cannot be decoded")
    add = group.add_argument
    add(
        "--on-error",
        choices=ON_ERROR,
        default="fail",
        help="fail (default), leave out, or move to the dead-letter topic",
    )
    add("--dead-letter-topic", metavar="TOPIC", help="default TOPIC-SUBSCRIPTION-DLQ")


def run(command: Command) -> None:
    """Consume the batch; raises `UsageError`, `ConditionNotMet` and errors of the client and the file system."""
    options = command.options
    if options.output == "-":
        options.output = None
    match = filters.match_of(options)
    settings = _settings(command, match)
    with contextlib.ExitStack() as stack:
        state: FileState | MemoryState = MemoryState()
        cut = None
        if options.state is not None:
            state = FileState(options.state, f"consume {' '.join(options.topics)} {options.subscription}")
            stack.enter_context(state.lock())
            cut = CutEntries((state.get() or {}).get("cut"))
        client = stack.enter_context(command.client())
        calls = ConsumeCallbacks(
            process=None if options.output is not None else lambda _: command.stdout.flush(),
            handle=_handler(command, match),
            passing=(OSError,),
            redact=command.connection.redact,
        )
        # The record beside the output knows the run; the state has the entries consumed in part only.
        job = ConsumeJob(settings, client, MemoryState(), command.console, calls, cut=cut)
        manifest = job.run()
        if options.state is not None:
            state.set({"cut": job.cut})
    if options.json:
        command.stdout.write(json.dumps(manifest).encode() + b"\n")
        command.stdout.flush()
    _tell(command, manifest)


def _tell(command: Command, manifest: Mapping[str, Any]) -> None:
    errors = manifest.get("errors") or {}
    left = {"skipped": "left out", "nacked": "kept at the broker", "dead_letters": "moved to the dead-letter topic"}
    more = "".join(f", {errors[name]:,} {text}" for name, text in left.items() if errors.get(name))
    to = f" to {manifest['path']}" if manifest["path"] else ""
    command.console.summary(
        f"consumed {counted(manifest['count'])}{to}{more} in {manifest['seconds']:.1f} s ({manifest['stop_reason']})"
    )
    if command.options.fail_empty and not manifest["count"]:
        raise ConditionNotMet(f"there was no message for {command.options.subscription}")


def _settings(command: Command, match: MessageFilter) -> ConsumeSettings:
    options = command.options
    chosen = format_of(options.output, options.output_format)
    _check(options, match, chosen)
    return ConsumeSettings(
        topics=options.topics,
        subscription=options.subscription,
        run={"run": options.run or f"{os.getpid()}-{uuid.uuid4().hex}"},
        subscription_type=options.subscription_type,
        initial_position=options.initial_position,
        limits=BatchLimits.of(options.max_messages, options.max_bytes, options.max_seconds, None),
        until_end=not options.wait,
        idle_seconds=ConsumeSettings.idle_seconds if options.idle_seconds is None else options.idle_seconds,
        # A payload that is written as it is needs no schema, and cannot fail to decode.
        decode=options.decode if records.is_json(options) else "bytes",
        path=options.output,
        format=chosen,
        if_exists=options.if_exists or "fail",
        parts=_parts(options),
        on_error=options.on_error,
        dead_letters=DeadLetterOptions(options.subscription, dead_letter_topic=options.dead_letter_topic),
        progress_seconds=command.console.progress_seconds,
        consumer_name=f"cli/{options.run}" if options.run else None,
    )


def _parts(options: argparse.Namespace) -> PartLimits | None:
    found = PartLimits(options.max_messages_per_file, options.max_bytes_per_file)
    return None if found == PartLimits() else found


def _check(options: argparse.Namespace, match: MessageFilter, chosen: str) -> None:
    for name in ("output", "run", "state"):
        # A blank one, as of a variable that the shell does not have, would be a new run, or another file.
        if getattr(options, name) is not None:
            validation.text(f"--{name}", getattr(options, name))
    if options.wait and options.max_messages is options.max_bytes is options.max_seconds is None:
        raise UsageError("--wait needs --max-messages, --max-bytes or --max-seconds; to follow a topic: tail --follow")
    if options.wait and options.idle_seconds is not None:
        raise UsageError("--idle-seconds is for the end of the topics: with --wait give --max-seconds")
    if not match.is_empty and options.unmatched is None:
        raise UsageError("filters leave messages out: say --unmatched acknowledge or --unmatched keep")
    if match.is_empty and options.unmatched is not None:
        raise UsageError("--unmatched needs a filter")
    if options.dead_letter_topic is not None and options.on_error != "dead_letter":
        raise UsageError("--dead-letter-topic needs --on-error dead_letter")
    if chosen == "parquet" and (not match.is_empty or options.decode != "auto" or options.on_error != "fail"):
        raise UsageError("Parquet has all messages as they were published: no filters, --decode or --on-error with it")
    _check_output(options)


def _check_output(options: argparse.Namespace) -> None:
    if options.output is not None:
        if not records.is_json(options) or options.delimiter is not None:
            raise UsageError("--as, --format and --delimiter are for standard output: a file has JSON lines or Parquet")
        return
    for name in ("output_format", "run", "if_exists", "json", "max_messages_per_file", "max_bytes_per_file"):
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} needs --output FILE")
    if options.on_error != "fail" and not records.is_json(options):
        raise UsageError("--on-error is for JSON lines: --as value and --format write payloads that are not decoded")


def _handler(command: Command, match: MessageFilter) -> Any:
    """Return the function called with each message, None where nothing is to be done."""
    from pulsar_native.jobs.message_handling import MessageResult

    options = command.options
    if options.output is not None and match.is_empty:
        return None
    unmatched = MessageResult.SKIP if options.unmatched == "acknowledge" else MessageResult.NACK
    render = records.render_of(options) if options.output is None else None

    def handle(message: Message) -> MessageResult:
        if not match.matches(message):
            return unmatched
        if render is not None:
            command.console.clear()
            command.stdout.write(render(message))
        return MessageResult.ACK

    return handle
