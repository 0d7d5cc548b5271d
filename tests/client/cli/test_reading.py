"""Arguments of `tail` and `peek`. Messages themselves: tests/integration."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pulsar_native import Message, MessageId
from pulsar_native.cli.errors import UsageError
from pulsar_native.cli.main import Command
from pulsar_native.cli.reading import _start
from support.cli import Outcome, run
from support.jobs import received


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tail", "-n", "1", "--from", "earliest"], "give -n or --from, not both"),
        (["tail", "-n", "0"], "-n 0 needs --follow"),
        (["tail", "-n", "-1"], "--lines must be at least 0, not -1"),
        (["tail", "--max-messages", "0"], "--max-messages must be at least 1"),
        (["tail", "-f", "--max-seconds", "nan"], "--max-seconds must be at least 0.001, not nan"),
        (["tail", "--from", "\N{SUPERSCRIPT TWO}:1"], "or earliest, latest, LEDGER:ENTRY"),
        (["tail", "--max-seconds", "1"], "--max-seconds needs --follow"),
        (["tail", "--from", "1767225600"], "--from is 1767225600, .*are these seconds"),
        (["tail", "--from", "noon"], "LEDGER:ENTRY"),
        (["peek", "-n", "0"], "--lines must be at least 1"),
        (["peek", "-s", "s"], "--subscription needs the admin interface"),
        (["peek", "--property", "=1"], "--property needs NAME"),
        (["peek", "-s", ""], "--subscription must be a text that is not blank"),
        (["tail", "-f", "--fail-empty"], "--fail-empty needs --max-seconds with --follow"),
        (["tail", "-f", "--fail-empty", "--max-messages", "1"], "--fail-empty needs --max-seconds with --follow"),
        (["tail", "--as", "value", "--decode", "json"], "--decode is for JSON lines"),
    ],
)
def test_reading_wrong_arguments_exit_with_2(arguments: Sequence[str], words: str) -> None:
    found = run(arguments[0], "t", *arguments[1:], "--url", "pulsar://127.0.0.1:1")
    assert found.code == 2
    assert re.search(words, found.err), found.err


@pytest.mark.parametrize(
    "arguments",
    [["tail"], ["tail", "-f"], ["tail", "-n", "2", "-f"], ["tail", "--from", "earliest"], ["peek"]],
    ids=" ".join,
)
def test_reading_non_persistent_topic_exits_with_2(arguments: Sequence[str]) -> None:
    found = run(arguments[0], "t", "non-persistent://a/b/t", *arguments[1:], "--url", "pulsar://127.0.0.1:1")
    assert found.code == 2
    assert "non-persistent://a/b/t is not persistent" in found.err and "tail -n 0 --follow" in found.err


def test_start_of_texts() -> None:
    assert (_start("earliest"), _start("latest")) == (MessageId.earliest, MessageId.latest)
    assert _start("7:12") == MessageId(-1, 7, 12, -1)
    assert _start("1970-01-01T00:00:01") == _start("1000") == 1000
    with pytest.raises(UsageError, match="or earliest, latest, LEDGER:ENTRY"):
        _start("7:x")


# ---- the last messages -----------------------------------------------------------------------------------------------


class Topic:
    """A topic of one partition in memory, its client and its readers; `reads` counts the messages read."""

    def __init__(self, ledgers: dict[int, Sequence[int]]) -> None:
        """`ledgers` has the publish times of the messages of each ledger, an entry each."""
        self.messages = [
            received(b"%d:%d" % (ledger, entry), entry, ledger=ledger, published=time)
            for ledger, times in ledgers.items()
            for entry, time in enumerate(times)
        ]
        self.reads = 0

    def client(self) -> contextlib.AbstractContextManager[Topic]:
        return contextlib.nullcontext(self)

    def get_partition_count(self, topic: str) -> int:
        return 0

    def get_topic_partitions(self, topic: str) -> list[str]:
        return [topic]

    @contextlib.contextmanager
    def create_reader(self, topic: str, start: MessageId, **options: Any) -> Iterator[Reader]:
        yield Reader(self, start)


class Reader:
    def __init__(self, topic: Topic, start: MessageId) -> None:
        self._topic = topic
        self._rest = [each for each in topic.messages if each.message_id() >= start]

    def get_last_message_id(self) -> MessageId:
        return self._topic.messages[-1].message_id()

    def seek(self, time: int) -> None:
        messages = self._topic.messages
        first = next(at for at, each in enumerate(messages) if each.publish_timestamp() >= time)
        self._rest = messages[first:]

    def has_message_available(self) -> bool:
        return bool(self._rest)

    def read_next(self, millis: int) -> Message:
        self._topic.reads += 1
        return self._rest.pop(0)


def tail(topic: Topic, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Outcome:
    monkeypatch.setattr(Command, "client", lambda self: topic.client())
    return run("tail", "t", "--as", "value", *arguments, "--url", "pulsar://127.0.0.1:1")


def values(ledger: int, numbers: range) -> list[bytes]:
    return [b"%d:%d" % (ledger, number) for number in numbers]


BEGIN = 1_700_000_000_000
# A message a second, and three of a ledger that was begun a minute later.
ROLLED = {7: range(BEGIN, BEGIN + 3_000_000, 1000), 9: range(BEGIN + 3_060_000, BEGIN + 3_063_000, 1000)}


@pytest.mark.parametrize(
    ("wanted", "most"), [(3, 10), (10, 400), (100, 800), (4000, 3100)], ids=["ledger", "few", "more", "all"]
)
def test_tail_behind_a_rollover_reads_what_it_shows(wanted: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(ROLLED)
    found = tail(topic, monkeypatch, "-n", str(wanted)).out.split()
    assert found == [*values(7, range(3000)), *values(9, range(3))][-wanted:]
    assert topic.reads <= most


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["--max-messages", "3"], 3),
        (["--max-messages", "3", "--follow"], 3),
        (["-n", "5", "--max-messages", "3"], 3),
        (["-n", "2", "--max-messages", "3"], 2),
    ],
    ids=["default", "follow", "more-lines", "fewer-lines"],
)
def test_tail_max_messages_limits_the_last(
    arguments: Sequence[str], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tail(Topic({7: range(BEGIN, BEGIN + 20)}), monkeypatch, *arguments)
    assert found.out.split() == values(7, range(20))[-count:]


def test_tail_filter_without_a_match_reads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(ROLLED)
    assert tail(topic, monkeypatch, "--key", "none").out == b""
    # A message more for each range, and the first ones of two ledgers.
    assert 3003 <= topic.reads < 3030


def test_tail_of_one_ledger_looks_for_no_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic({7: range(BEGIN, BEGIN + 5)})
    assert tail(topic, monkeypatch).out.split() == values(7, range(5))
    # The first one once more, to know that it is of this ledger.
    assert topic.reads == 6


def test_tail_clocks_that_differ_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic({7: [BEGIN + 90_000, BEGIN, BEGIN + 5_000], 8: [BEGIN + 7_000], 9: [BEGIN + 6_000]})
    assert tail(topic, monkeypatch).out.split() == [*values(7, range(3)), b"8:0", b"9:0"]
