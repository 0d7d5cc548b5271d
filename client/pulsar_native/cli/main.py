"""Parser and entry point of the command line."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TextIO

from pulsar_native._version import __version__
from pulsar_native.cli import connection as connections
from pulsar_native.cli.errors import EXIT_CODES, ConditionNotMet, ExitCode, UsageError
from pulsar_native.cli.progress import Console
from pulsar_native.jobs.failures import is_permanent
from pulsar_native.jobs.secrets import looks_secret

if TYPE_CHECKING:
    from pulsar_native import Client
    from pulsar_native.cli.connection import Connection


@dataclass(frozen=True)
class _Entry:
    """One command: its module, the names of its functions and examples there, and its argument that takes a list."""

    help: str
    module: str
    arguments: str = "add_arguments"
    run: str = "run"
    examples: str = "EXAMPLES"
    words: str | None = "topics"


COMMANDS = {
    "publish": _Entry("publish messages from arguments, files or standard input", "publish", words="files"),
    "consume": _Entry("consume a bounded batch of a subscription to standard output or a file", "consume"),
    "tail": _Entry("show the last messages of topics, and follow them", "reading", "add_tail_arguments", "tail",
                   "TAIL_EXAMPLES"),
    "peek": _Entry("show the first messages of topics, or the next ones of a subscription", "reading",
                   "add_peek_arguments", "peek", "PEEK_EXAMPLES"),
    "lag": _Entry("show the backlog of subscriptions", "lag"),
    "check": _Entry("check the connection to a cluster stage by stage", "check", words=None),
}  # fmt: skip


@dataclass
class Command:
    """One run of a command: its options, streams and connection."""

    options: argparse.Namespace
    stdin: BinaryIO
    stdout: BinaryIO
    console: Console
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def connection(self) -> Connection:
        """The connection of the options; raises `UsageError`."""
        found = connections.connection_of(self.options, self.environment)
        self.console.redact = found.redact
        return found

    def client(self) -> Client:
        """Return a client, for a `with` block."""
        return self.connection.client()


class _Parser(argparse.ArgumentParser):
    """Parser whose errors repeat nothing that looks like a secret."""

    def error(self, message: str) -> NoReturn:
        words = ("***" if looks_secret(word) else word for word in message.split(" "))
        self.exit(ExitCode.USAGE, f"error: {' '.join(words)}\nsee {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    form = argparse.RawDescriptionHelpFormatter
    made = _Parser(
        prog="python -m pulsar_native",
        description="Publish, consume and look at Apache Pulsar topics.",
        epilog=f"{EXIT_CODES}\n{connections.ENVIRONMENT}\nEach command has --help with examples.",
        formatter_class=form,
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"pulsar-native {__version__}")
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, entry in COMMANDS.items():
        module: Any = import_module(f"pulsar_native.cli.{entry.module}")
        one = commands.add_parser(
            name,
            help=entry.help,
            description=f"{entry.help[0].upper()}{entry.help[1:]}.",
            epilog=f"{getattr(module, entry.examples)}\n{EXIT_CODES}\n{connections.ENVIRONMENT}",
            formatter_class=form,
            allow_abbrev=False,
        )
        getattr(module, entry.arguments)(one)
        connections.add_arguments(one)
        one.add_argument("-q", "--quiet", action="store_true", help="warnings and errors only on standard error")
        one.add_argument("-v", "--verbose", action="store_true", help="progress as lines on standard error")
        one.set_defaults(execute=getattr(module, entry.run))
    return made


def main(
    arguments: Sequence[str] | None = None,
    *,
    stdin: BinaryIO | None = None,
    stdout: BinaryIO | None = None,
    stderr: TextIO | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a command and return its exit code; defaults are those of the process.

    Raises SystemExit for `--help` and for arguments that the parser rejects.
    """
    options = _parsed(arguments)
    # A closed standard error takes nothing, and the exit code says it all.
    console = _JobConsole(stderr or sys.stderr or io.StringIO(), quiet=options.quiet, verbose=options.verbose)
    command = Command(
        options,
        stdin or _process_stream("standard input", sys.stdin),
        stdout or _process_stream("standard output", sys.stdout),
        console,
        os.environ if environment is None else environment,
    )
    run: Callable[[Command], None] = options.execute
    code = _run(command, run)
    _flush_or_drop(command.stdout)
    console.clear()
    return code


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a command, whose files or topics may stand between and after its options."""
    made = parser()
    # A list ends at the first option for argparse, and its `parse_intermixed_args` knows no commands.
    options, rest = made.parse_known_args(arguments)
    end = rest.index("--") if "--" in rest else len(rest)
    words = COMMANDS[options.command].words
    if rest and (words is None or any(word.startswith("-") and word != "-" for word in rest[:end])):
        # `parse_args` would name the help of all commands.
        made.prog = f"{made.prog} {options.command}"
        made.error(f"unrecognized arguments: {' '.join(rest)}")
    if words is not None:
        setattr(options, words, [*getattr(options, words), *rest[:end], *rest[end + 1 :]])
    return options


def _process_stream(name: str, stream: TextIO | None) -> BinaryIO:
    """Return the bytes of a stream of the process; ends it where the stream is closed (the shell's `<&-`)."""
    if stream is None:
        parser().error(f"{name} is closed; use /dev/null instead")
    return stream.buffer


def _run(command: Command, run: Callable[[Command], None]) -> ExitCode:
    console = command.console
    try:
        command.connection  # noqa: B018  # wrong options raise before anything else is looked at
        run(command)
        command.stdout.flush()
    except KeyboardInterrupt:
        console.error("interrupted")
        _drop(command.stdout)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return ExitCode.BROKEN_PIPE
    except (UsageError, ValueError) as error:
        console.error(_spelled(str(error)))
        return ExitCode.USAGE
    except ConditionNotMet as error:
        console.summary(str(error))
        return ExitCode.NOT_MET
    except Exception as error:
        return _failed(console, error)
    return ExitCode.DONE


def _failed(console: Console, error: Exception) -> ExitCode:
    """Show an error and return its exit code; errors that are nobody's to expect are raised."""
    from pulsar_native.exceptions import PulsarException
    from pulsar_native.jobs.publishing import PublishIncomplete

    text = _spelled(str(error).rstrip(".") or "no reason was given")
    if isinstance(error, PublishIncomplete):
        console.error(text)
        return ExitCode.FAILED if error.can_retry else ExitCode.PERMANENT
    if isinstance(error, ImportError):
        console.error(f"{error}; install pulsar-native[arrow,avro]")
        return ExitCode.PERMANENT
    if not isinstance(error, PulsarException | OSError):
        raise error
    console.error(f"{type(error).__name__}: {text}")
    return ExitCode.PERMANENT if _is_permanent(error) else ExitCode.FAILED


# Advice of jobs, as it is for this program; empty where it has no option. Each is a text of `pulsar_native.jobs`.
_SPELLINGS = {
    "deduplicate=True, but ": "",
    "pass deduplicate='auto'": "pass --allow-duplicates",
    "; or accept that with deduplicate=False": "",
    "on_changed='republish'": "--on-changed republish",
    "a list, a table, a file, or a callable) or another identity, or start a new run": "files) or another --identity",
    "this run was published before, and was then deleted and made again, or its state was removed "
    "([state_store] clear_on_success, or manually): if its messages are to stay as they are, mark the task as a "
    "success. Or another Airflow, or another task, publishes under the same deployment_id and identity: give each its "
    "own": "the messages were published before, and the file of --state was removed since: if they are to stay as they "
    "are, nothing is left to do. Or another program publishes under the same --identity: give each its own",
    "Another Airflow or task publishes under the same deployment_id and identity: give each its own": "Another program "
    "publishes under the same --identity: give each its own",
    "A retry or clearing this run would": "A repetition would",
    "publish them by another run, or with deduplicate=False": "publish them under another --identity",
    ", and clear the task": "",
    "the task's stored state 'consumed'": "run this again",
    "if_exists='append_part' or 'overwrite'": "--if-exists append_part or overwrite",
    "on_error='skip', 'dead_letter' or 'retry_letter'": "--on-error skip or dead_letter",
    "; create_topic=True makes it": "",
    "create_subscription='NAME'": "--create-subscription NAME",
    ", retention_minutes=… for readers and loads": "",
    "choose subscription_type='Shared'": "choose --type shared",
    "leave create_subscription and retention out": "leave --create-subscription out",
    "Give private_keys with the keys they were encrypted for": "The command line has no keys: consume them by a "
    "program, with the option private_keys of pulsar_native.jobs",
    "receive with client.subscribe()": "follow it with tail -n 0 --follow",
    "within send_timeout_seconds": "within --send-timeout",
    "give file_format, ": "give --input-format, ",
    "file_format='json'": "--input-format json",
    "file_format='jsonl'": "--input-format jsonl",
    "with envelope=True": "with --envelope",
}
# Arguments of jobs whose values are checked there, with their options.
_CHECKED = {
    "max_messages": "--max-messages",
    "max_bytes": "--max-bytes",
    "max_seconds": "--max-seconds",
    "idle_seconds": "--idle-seconds",
    "max_messages_per_file": "--max-messages-per-file",
    "max_bytes_per_file": "--max-bytes-per-file",
    "subscription": "--subscription",
    "create_subscription": "--create-subscription",
    "send_timeout_seconds": "--send-timeout",
}


def _spelled(text: str) -> str:
    """Return a text of a job with the options of this program for its arguments."""
    for theirs, ours in _SPELLINGS.items():
        text = text.replace(theirs, ours)
    name, must, rest = text.partition(" must be ")
    return f"{_CHECKED.get(name, name)}{must}{rest}"


class _JobConsole(Console):
    """Console whose warnings spell the arguments of jobs as its errors do."""

    def warning(self, event: str, /, *args: Any) -> None:
        """Show a warning on a line of its own."""
        super().warning(_spelled(event % args if args else event))


def _is_permanent(error: Exception) -> bool:
    from pulsar_native.exceptions import SubscriptionNotFound, TopicNotFound

    return is_permanent(error) or isinstance(error, TopicNotFound | SubscriptionNotFound)


def _flush_or_drop(stdout: BinaryIO) -> None:
    """Write what is buffered, or drop it: the interpreter's last flush would fail, and change the exit code."""
    try:
        stdout.flush()
    except (OSError, ValueError):
        _drop(stdout)


def _drop(stdout: BinaryIO) -> None:
    """Point standard output to nowhere."""
    try:
        descriptor = stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
