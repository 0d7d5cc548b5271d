"""Command `publish`: messages from arguments, files or standard input to a topic, each with a receipt."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pulsar_native.cli.errors import UsageError
from pulsar_native.jobs import validation
from pulsar_native.jobs.failures import counted
from pulsar_native.jobs.file_state import FileState, MemoryState
from pulsar_native.jobs.publish_options import COMPRESSIONS, SCHEMAS
from pulsar_native.jobs.publishing import PublishIncomplete, PublishJob, PublishOptions, Surroundings
from pulsar_native.jobs.sources import FILE_FORMATS, MessageMapping, Source, format_of

if TYPE_CHECKING:
    from pulsar_native.cli.main import Command
    from pulsar_native.jobs.codecs import Codec

INPUT_FORMATS = (*FILE_FORMATS, "binary")
EXAMPLES = """\
examples:
  echo hello | python -m pulsar_native publish orders
  python -m pulsar_native publish orders -m '{"id": 1}' --key 1 --property source=shell
  printf 'a:1\\nb:2\\n' | python -m pulsar_native publish orders --key-delimiter :
  python -m pulsar_native publish orders day.csv --key-field id --schema json --schema-file order.avsc
  python -m pulsar_native publish orders 2026-01-01.jsonl --identity 2026-01-01 --state /var/lib/orders/state.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add = parser.add_argument
    add("topic", metavar="TOPIC")
    add("files", metavar="FILE", nargs="*", default=[], help="files; - or none: standard input")
    add(
        "-m",
        "--message",
        metavar="TEXT",
        action="append",
        dest="messages",
        help="a message instead of files; repeatable",
    )
    group = parser.add_argument_group("messages")
    add = group.add_argument
    add("--input-format", choices=INPUT_FORMATS, help="default: by the ending of the file; text (a line is a message) "
        "for standard input; binary: a whole file is a message")  # fmt: skip
    add("--key", metavar="KEY", help="key of every message")
    add("--key-delimiter", metavar="TEXT", help="in text: what stands between key and value of a line")
    add("--key-field", metavar="NAME", help="field of the value with the key")
    add("--event-time-field", metavar="NAME", help="field of the value with the event time")
    add("--property", metavar="NAME=VALUE", action="append", default=[], dest="properties", help="repeatable")
    add("--property-field", metavar="NAME", action="append", default=[], dest="property_fields",
        help="field of the value that becomes a property; repeatable")  # fmt: skip
    add("--envelope", action="store_true", help="each message is an object with value, and optionally key, properties, "
        "event_time, ordering_key, deliver_at")  # fmt: skip
    add("--schema", choices=SCHEMAS, help="schema to register")
    add("--schema-file", metavar="FILE", help="record definition of the schema json or avro, in Avro's JSON")
    group = parser.add_argument_group("delivery")
    add = group.add_argument
    add("--compression", choices=COMPRESSIONS, default="none")
    add("--no-batching", action="store_true", help="one entry for each message")
    add("--chunking", action="store_true", help="send messages beyond the broker's maximum size in chunks; no batching")
    add("--send-timeout", metavar="SECONDS", type=float, default=30, help="limit of the wait for receipts (default 30)")
    add("--identity", metavar="NAME", help="publish once, however often this is repeated: the same name for the same "
        "messages. Needs --state, and deduplication by the broker")  # fmt: skip
    add("--state", metavar="FILE", help="local file that remembers publications under --identity")
    add("--allow-duplicates", action="store_true", help="with --identity: publish also where the broker does not "
        "deduplicate, each time again and whatever the messages are")  # fmt: skip
    add("--on-changed", choices=("fail", "republish"), default="fail", help="with --identity, when the messages are "
        "not those published before: fail (default), or publish them besides")  # fmt: skip
    add("--create-subscription", metavar="NAME", help="create this subscription first, so that nothing is lost")
    add("--json", action="store_true", help="write counts and message ids to standard output, as JSON")


def run(command: Command) -> None:
    """Publish; raises `UsageError`, `PublishIncomplete` and errors of the client."""
    options = command.options
    _check(options)
    job_options = _job_options(command)
    source, codec, mapping = _source(options, command.stdin), _codec(options), _mapping(options)
    with contextlib.ExitStack() as stack:
        state: FileState | MemoryState = MemoryState()
        if options.state is not None:
            state = FileState(options.state, f"publish {options.topic} {options.identity}")
            stack.enter_context(state.lock())
        results: list[dict[str, Any]] = []
        around = Surroundings(state, command.console, lambda: False, results.append)
        job = PublishJob(job_options, codec, mapping, source, None, around)
        job.check()
        client = stack.enter_context(command.client())
        admin = command.connection.admin()
        try:
            manifest = job.run(client, admin)
        except PublishIncomplete:
            if options.json and results:
                _write_json(command, results[0])
            raise
    if options.json:
        _write_json(command, manifest)
    dropped = f", {manifest['duplicates']:,} of them stored before" if manifest["duplicates"] else ""
    command.console.summary(
        f"published {counted(manifest['count'])} to {manifest['topic']}{dropped} in {manifest['seconds']:.1f} s"
    )


def _write_json(command: Command, manifest: dict[str, Any]) -> None:
    command.stdout.write(json.dumps(manifest).encode() + b"\n")
    command.stdout.flush()


def _check(options: argparse.Namespace) -> None:
    if options.messages:
        _check_without_files(options)
    _check_identity(options)
    if options.key_delimiter == "":
        raise UsageError("--key-delimiter must not be empty")
    if options.key is not None and (options.key_delimiter or options.key_field or options.envelope):
        raise UsageError("give one of --key, --key-delimiter, --key-field and --envelope")
    if options.key_delimiter is not None and (options.key_field or options.envelope):
        raise UsageError("give one of --key-delimiter, --key-field and --envelope")
    if options.envelope and _fields(options):
        raise UsageError("with --envelope key, event time and properties are in the envelope, not in fields")
    if (options.schema in ("json", "avro")) != (options.schema_file is not None):
        raise UsageError("--schema json and --schema avro need --schema-file, and only they")


def _check_identity(options: argparse.Namespace) -> None:
    for name in ("identity", "state"):
        # A blank one, as of a variable that the shell does not have, would be the same for every publication.
        if getattr(options, name) is not None:
            validation.text(f"--{name}", getattr(options, name))
    if (options.identity is None) != (options.state is None):
        raise UsageError("--identity and --state belong together: the file remembers what was published under the name")
    if options.identity is None and (options.allow_duplicates or options.on_changed != "fail"):
        raise UsageError("--allow-duplicates and --on-changed need --identity")


def _fields(options: argparse.Namespace) -> list[str]:
    """Return the options given that name a field of the value."""
    names = ("key_field", "event_time_field", "property_field")
    given = (options.key_field, options.event_time_field, options.property_fields or None)
    return [f"--{name.replace('_', '-')}" for name, value in zip(names, given, strict=True) if value is not None]


def _check_without_files(options: argparse.Namespace) -> None:
    if options.files:
        raise UsageError("give --message or files, not both")
    if options.input_format:
        raise UsageError("--input-format is for files; the messages of --message are texts")
    if options.envelope:
        raise UsageError("--envelope is for files of JSON; the messages of --message are texts")
    if _fields(options):
        raise UsageError(f"{_fields(options)[0]} is for files; the messages of --message are texts, without fields")


def _job_options(command: Command) -> PublishOptions:
    options = command.options
    named = options.identity is not None
    return PublishOptions(
        topic=options.topic,
        schema=options.schema,
        compression=options.compression,
        batching=not options.no_batching,
        chunking=options.chunking,
        deduplicate=("auto" if options.allow_duplicates else True) if named else False,
        republish_changed=options.on_changed == "republish",
        send_timeout_seconds=options.send_timeout,
        progress_seconds=command.console.progress_seconds,
        create_subscription=options.create_subscription,
        producer_name=f"cli/{options.identity}" if named else None,
        identity=options.identity or "",
    )


def _codec(options: argparse.Namespace) -> Codec:
    from pulsar_native.jobs.codecs import Codec

    definition = None
    if options.schema_file is not None:
        try:
            definition = json.loads(Path(options.schema_file).read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"--schema-file: {options.schema_file} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(f"--schema-file: {options.schema_file} is not JSON: {error}") from error
        if not isinstance(definition, dict):
            raise UsageError(f"--schema-file: {options.schema_file} is no record definition (a JSON object)")
    is_csv = not options.messages and _format(options) == "csv"
    return Codec(options.schema, definition, from_texts=is_csv)


def _mapping(options: argparse.Namespace) -> MessageMapping:
    properties = {}
    for each in options.properties:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise UsageError(f"--property needs NAME=VALUE, not {each!r}")
        properties[name] = value
    return MessageMapping(
        options.envelope or options.key_delimiter is not None,
        options.key_field,
        options.event_time_field,
        tuple(options.property_fields),
        properties,
        options.key,
    )


# ---- sources ---------------------------------------------------------------------------------------------------------


def _format(options: argparse.Namespace) -> str:
    """Return the one format of all files; text for standard input."""
    if options.input_format:
        return str(options.input_format)
    found = {"text" if path == "-" else format_of(path) for path in options.files or ["-"]}
    if len(found) > 1:
        raise UsageError(f"the files have several formats ({', '.join(sorted(found))}): publish them one by one")
    return found.pop()


def _source(options: argparse.Namespace, stdin: BinaryIO) -> Source:
    """Return the source of the arguments."""
    if options.messages:
        return _split(options, Source.of(options.messages))
    chosen = _format(options)
    if options.key_delimiter is not None and chosen != "text":
        raise UsageError("--key-delimiter is for lines of text: use --key-field for fields of a value")
    if _fields(options) and chosen in ("text", "binary"):
        raise UsageError(
            f"{_fields(options)[0]} is for JSON, CSV and Parquet: messages of the format {chosen} have no fields"
        )
    if options.envelope and chosen in ("csv", "text", "binary"):
        raise UsageError(f"--envelope is for JSON: messages of the format {chosen} are no objects")
    parts = [_one(path, options.input_format or chosen, stdin) for path in options.files or ["-"]]
    return _split(options, parts[0] if len(parts) == 1 else _chained(parts))


def _one(path: str, chosen: str, stdin: BinaryIO) -> Source:
    if chosen == "binary":
        if path == "-":
            return Source(lambda: iter([stdin.read()]))
        return Source(lambda: iter([Path(path).read_bytes()]), can_reread=True)
    if path != "-":
        if not Path(path).is_file():
            raise UsageError(f"{path} is no file")
        return Source.of_file(path, chosen)
    inner = Source.of_file("standard input", chosen, lambda _: _Stdin(stdin, seekable=chosen == "parquet"))
    # It can be read once only.
    return Source(lambda: iter(inner), rows=inner.rows)


class _Stdin:
    """Path object of standard input."""

    def __init__(self, stream: BinaryIO, *, seekable: bool) -> None:
        self._stream = stream
        self._seekable = seekable

    def open(self, mode: str) -> BinaryIO:
        """Return the stream; closing it leaves standard input open."""
        return io.BytesIO(self._stream.read()) if self._seekable else _KeptOpen(self._stream)


class _KeptOpen(io.BufferedIOBase, BinaryIO):
    """Stream for reading that stays open when this one is closed. Gives what has arrived, without waiting for more."""

    def __init__(self, stream: BinaryIO) -> None:
        self._inner = stream

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to so many bytes."""
        return self._inner.read(-1 if size is None else size)

    def read1(self, size: int = -1, /) -> bytes:
        """Read what is there, at least one byte unless the stream has ended."""
        read1: Callable[[int], bytes] = getattr(self._inner, "read1", self._inner.read)
        return read1(size)


def _chained(parts: list[Source]) -> Source:
    def read() -> Iterator[Any]:
        for part in parts:
            yield from part

    rereadable = all(part.can_reread for part in parts)
    return Source(read, can_reread=rereadable, rows=parts[0].rows)


def _split(options: argparse.Namespace, source: Source) -> Source:
    """Return a source of envelopes where lines hold key and value."""
    if options.key_delimiter is None:
        return source

    def split(numbered: tuple[int, str]) -> dict[str, Any]:
        number, line = numbered
        key, delimiter, value = line.partition(options.key_delimiter)
        if not delimiter:
            validation.refuse(f"line {number} has no {options.key_delimiter!r} between key and value")
        return {"value": value, "key": key}

    return Source(lambda: map(split, enumerate(source, 1)), is_list=source.is_list, can_reread=source.can_reread)
