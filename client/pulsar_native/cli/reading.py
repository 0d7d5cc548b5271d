"""Commands `tail` and `peek`: messages of topics read without a subscription; nothing stays at the broker."""

from __future__ import annotations

import argparse
import collections
import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pulsar_native.cli import filters, records
from pulsar_native.cli.errors import ConditionNotMet, UsageError
from pulsar_native.jobs import validation
from pulsar_native.jobs.failures import counted

if TYPE_CHECKING:
    from pulsar_native import Client, Message, MessageId, Reader
    from pulsar_native.cli.main import Command
    from pulsar_native.jobs.message_filter import MessageFilter

TAIL_EXAMPLES = """\
examples:
  python -m pulsar_native tail orders                                  # the last 10 messages
  python -m pulsar_native tail orders -n 0 --follow --as value         # new messages as they come
  python -m pulsar_native tail orders --from 2026-01-01T00:00Z --until 2026-01-02T00:00Z --property region=eu
  python -m pulsar_native tail orders --from earliest --format '%k %s\\n' | head -3
"""
PEEK_EXAMPLES = """\
examples:
  python -m pulsar_native peek orders                                  # the oldest message
  python -m pulsar_native peek orders -n 5 --subscription reports      # the next 5 that reports will receive
"""
_SLICE_MS = 200
_QUEUE = 500
# First distance in time from the last ledger.
_FIRST_MS = 10


def add_tail_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `tail`."""
    add = parser.add_argument
    add("topics", metavar="TOPIC", nargs="+")
    add("-n", "--lines", metavar="N", type=int, help="last N messages that match (default 10)")
    add("--from", dest="start", metavar="WHERE", help="instead of -n: earliest, latest, a time (ISO-8601, UTC without "
        "zone, or ms since 1970), or a message id LEDGER:ENTRY")  # fmt: skip
    add("-f", "--follow", action="store_true", help="go on with new messages until interrupted")
    add("--max-messages", metavar="N", type=int, help="end after N messages that match; with -n, of the last "
        "ones")  # fmt: skip
    add("--max-seconds", metavar="S", type=float, help="with --follow: end after S seconds")
    _add_common(parser)


def add_peek_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `peek`."""
    add = parser.add_argument
    add("topics", metavar="TOPIC", nargs="+")
    add("-n", "--lines", metavar="N", type=int, default=1, help="first N messages that match (default 1)")
    add("-s", "--subscription", metavar="NAME", help="begin where this subscription is (needs the admin interface)")
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fail-empty", action="store_true", help="exit with 3 if no message matches")
    filters.add_arguments(parser)
    records.add_arguments(parser)


def tail(command: Command) -> None:
    """Write the last messages, and with --follow those to come."""
    options = command.options
    if options.lines is not None and options.start is not None:
        raise UsageError("give -n or --from, not both")
    for name, least in (("lines", 0), ("max_messages", 1), ("max_seconds", 0.001)):
        _at_least(name, getattr(options, name), least)
    if options.max_seconds is not None and not options.follow:
        raise UsageError("--max-seconds needs --follow: without it the end of the topics ends the command")
    if options.lines == 0 and not options.follow:
        raise UsageError("-n 0 needs --follow: there would be nothing to show")
    if options.fail_empty and options.follow and options.max_seconds is None:
        raise UsageError("--fail-empty needs --max-seconds with --follow, which ends without a message only then")
    if not options.follow or (options.start is None and options.lines != 0):
        _need_stored(options.topics)
    work = _Reading(command)
    start = None if options.start is None else _start(options.start)
    with command.client() as client:
        work.tail(client, start)
    work.end()


def peek(command: Command) -> None:
    """Write the first messages of topics, or the next ones of a subscription."""
    options = command.options
    _at_least("lines", options.lines, 1)
    if options.subscription is not None:
        validation.text("subscription", options.subscription)
    _need_stored(options.topics)
    work = _Reading(command)
    admin = command.connection.needed_admin("--subscription") if options.subscription else None
    with command.client() as client:
        if admin is None:
            work.first(client, options.lines)
        else:
            from pulsar_native.jobs.backlog import next_positions

            starts = {}
            for topic in options.topics:
                starts.update(next_positions(admin, topic, options.subscription))
            work.next(client, starts, options.lines)
    work.end()


def _at_least(name: str, value: float | None, least: float) -> None:
    # Not a number is none of at least anything.
    if value is not None and not value >= least:
        raise UsageError(f"--{name.replace('_', '-')} must be at least {least:g}, not {value:g}")


def _need_stored(topics: Sequence[str]) -> None:
    """Refuse topics that store no messages."""
    from pulsar_native.topic import TopicName

    for topic in topics:
        if not TopicName.parse(topic).is_persistent:
            raise UsageError(f"{topic} is not persistent: it stores no messages; follow it with tail -n 0 --follow")


def _start(text: str) -> MessageId | int:
    """Return the position of --from: an id, or a time in ms."""
    from pulsar_native import MessageId

    if text in ("earliest", "latest"):
        return MessageId.earliest if text == "earliest" else MessageId.latest
    ledger, colon, entry = text.partition(":")
    if colon and ledger.isdecimal() and entry.isdecimal():
        return MessageId(-1, int(ledger), int(entry), -1)
    try:
        return validation.publish_time("--from", text)
    except ValueError as error:
        raise UsageError(f"{error}; or earliest, latest, LEDGER:ENTRY") from error


class _Reading:
    """One command: filters, output, and the number of messages written."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._options = command.options
        self._match: MessageFilter = filters.match_of(command.options)
        self._render = records.render_of(command.options)
        self._needs_schema = records.is_json(command.options) and command.options.decode == "auto"
        self.count = 0

    def end(self) -> None:
        """Tell what was written."""
        self._command.stdout.flush()
        self._command.console.summary(counted(self.count))
        if self._options.fail_empty and not self.count:
            raise ConditionNotMet(f"no message matches in {', '.join(self._options.topics)}")

    # ---- tail --------------------------------------------------------------------------------------------------------

    def tail(self, client: Client, start: MessageId | int | None) -> None:
        """Write from a position, or the last messages; then follow."""
        from pulsar_native import MessageId

        names = self._partitions(client)
        if start is None and (wanted := self._wanted()):
            # The readers of --follow begin where this ends, so that nothing is missed or shown twice.
            found = [self._last(client, name, wanted) for name in names]
            newest = heapq.merge(*(messages for messages, _ in found), key=_order)
            for message in collections.deque(newest, wanted):
                self._write(message)
            if self._options.follow and not self._is_done():
                self._follow(client, {name: end for name, (_, end) in zip(names, found, strict=True)})
            return
        if self._options.follow:
            self._follow(client, dict.fromkeys(names, MessageId.latest if start is None else start))
            return
        assert start is not None
        for message in heapq.merge(*(self._to_end(client, name, start) for name in names), key=_order):
            if not self._match.matches(message):
                continue
            self._write(message)
            if self._is_done():
                return

    def _wanted(self) -> int:
        """Return the number of last messages to write."""
        lines = 10 if self._options.lines is None else int(self._options.lines)
        most = self._options.max_messages
        return lines if most is None else min(lines, most)

    def _last(self, client: Client, name: str, wanted: int) -> tuple[list[Message], MessageId]:
        """Return the last matching messages of a partition in order, and the id of its last message.

        Reads backwards, range by range, until there are enough, since entries hold any number of messages.
        """
        from pulsar_native import MessageId

        with self._reader(client, name, MessageId.latest) as reader:
            last = reader.get_last_message_id()
        if last.entry_id() < 0:
            return [], MessageId.earliest
        found: list[Message] = []
        end: tuple[int, int, int] | None = None
        for start in self._starts(client, name, last, wanted):
            # What is behind `end` was read before.
            newest: collections.deque[Message] = collections.deque(maxlen=wanted - len(found))
            first = end
            for message in self._to_end(client, name, start, last):
                here = _place(message.message_id())
                if end is not None and here >= end:
                    break
                first = here if first is None else min(first, here)
                if self._match.matches(message):
                    newest.append(message)
            end = first
            found = [*newest, *found]
            if len(found) == wanted:
                break
        return found, last

    def _starts(self, client: Client, name: str, last: MessageId, wanted: int) -> Iterator[MessageId | int]:
        """Yield ever earlier positions, the last one at the first message of the partition.

        Positions of entries within the last ledger, and times before it: ids of earlier ledgers are not known, and the
        first of a ledger that a broker has just begun must not mean all messages of the topic.
        """
        from pulsar_native import MessageId

        distance = wanted - 1
        while distance < last.entry_id():
            yield MessageId(-1, last.ledger_id(), last.entry_id() - distance, -1)
            distance = max(1, distance) * 4
        begin = MessageId(-1, last.ledger_id(), 0, -1)
        yield begin
        oldest = next(self._to_end(client, name, MessageId.earliest, last), None)
        if oldest is None or oldest.message_id().ledger_id() == last.ledger_id():
            return
        newer = next(self._to_end(client, name, begin, last), None)
        distance = _FIRST_MS
        # Where the clocks of producers differ, the last range is only larger than needed.
        while newer is not None and oldest.publish_timestamp() < newer.publish_timestamp() - distance:
            yield newer.publish_timestamp() - distance
            distance *= 8
        yield MessageId.earliest

    def _to_end(
        self, client: Client, name: str, start: MessageId | int, end: MessageId | None = None
    ) -> Iterator[Message]:
        """Yield the messages of a partition from a position to its last one at the call."""
        from pulsar_native import MessageId

        with self._reader(client, name, MessageId.earliest if isinstance(start, int) else start) as reader:
            end = reader.get_last_message_id() if end is None else end
            if end.entry_id() < 0:
                return
            if isinstance(start, int):
                reader.seek(start)
            while reader.has_message_available():
                message = self._next(reader, 1000)
                if message is None:
                    continue
                here = _place(message.message_id())
                if here > _place(end):
                    return
                yield message
                if here >= _place(end):
                    return

    def _follow(self, client: Client, starts: Mapping[str, MessageId | int]) -> None:
        """Write new messages until interrupted or a limit."""
        from pulsar_native import MessageId

        limit = self._options.max_seconds
        deadline = None if limit is None else time.monotonic() + limit
        readers: list[Reader] = []
        for name, start in starts.items():
            first = MessageId.earliest if isinstance(start, int) else start
            # An id of --from is included; the last message shown, or the end of the topic, is not.
            reader = self._reader(client, name, first, inclusive=self._options.start not in (None, "latest"))
            if isinstance(start, int):
                reader.seek(start)
            readers.append(reader)
        while not self._is_done() and (deadline is None or time.monotonic() < deadline):
            arrived = False
            for reader in readers:
                while not self._is_done() and (message := self._next(reader, 0)) is not None:
                    arrived = True
                    if self._match.matches(message):
                        self._write(message)
            if not arrived:
                self._command.stdout.flush()
                # One reader is waited for; several are looked at in turn.
                message = self._next(readers[0], _SLICE_MS if len(readers) == 1 else _SLICE_MS // 4)
                if message is not None and self._match.matches(message):
                    self._write(message)

    # ---- peek --------------------------------------------------------------------------------------------------------

    def first(self, client: Client, wanted: int) -> None:
        """Write the first matching messages of the topics."""
        from pulsar_native import MessageId

        self._some([self._to_end(client, name, MessageId.earliest) for name in self._partitions(client)], wanted)

    def next(
        self, client: Client, starts: dict[str, tuple[MessageId, Callable[[MessageId], bool]]], wanted: int
    ) -> None:
        """Write the next messages of a subscription; `starts` is the result of `next_positions`."""

        def unacknowledged(name: str) -> Iterator[Message]:
            start, is_acknowledged = starts[name]
            return (each for each in self._to_end(client, name, start) if not is_acknowledged(each.message_id()))

        self._some([unacknowledged(name) for name in starts], wanted)

    def _some(self, partitions: Sequence[Iterator[Message]], wanted: int) -> None:
        for message in heapq.merge(*partitions, key=_order):
            if self._match.matches(message):
                self._write(message)
            if self.count >= wanted:
                return

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _partitions(self, client: Client) -> list[str]:
        names: list[str] = []
        for topic in self._options.topics:
            # Raises TopicNotFound; a reader alone would create the topic.
            client.get_partition_count(topic)
            names += client.get_topic_partitions(topic)
        return list(dict.fromkeys(names))

    def _reader(self, client: Client, name: str, start: MessageId, *, inclusive: bool = True) -> Reader:
        from pulsar_native.enums import ConsumerCryptoFailureAction as OnFailure
        from pulsar_native.jobs.codecs import WriterSchema

        is_json = records.is_json(self._options)
        return client.create_reader(
            name,
            start,
            # A line says that its message is encrypted; an encrypted payload as it is would say nothing.
            crypto_failure_action=OnFailure.CONSUME if is_json else OnFailure.FAIL,
            schema=WriterSchema() if self._needs_schema else None,
            receiver_queue_size=_QUEUE,
            start_message_id_inclusive=inclusive,
        )

    def _next(self, reader: Reader, millis: int) -> Message | None:
        from pulsar_native.exceptions import Timeout

        with suppress(Timeout):
            return reader.read_next(max(1, millis))
        return None

    def _is_done(self) -> bool:
        most = getattr(self._options, "max_messages", None)
        return most is not None and self.count >= most

    def _write(self, message: Message) -> None:
        self._command.stdout.write(self._render(message))
        self.count += 1


def _place(message_id: MessageId) -> tuple[int, int, int]:
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def _order(message: Message) -> tuple[int, str, tuple[int, int, int]]:
    return message.publish_timestamp(), message.topic_name(), _place(message.message_id())
