"""Arguments of `tail` and `peek`. Messages themselves: tests/integration."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from pulsar_native import MessageId
from pulsar_native.cli.errors import UsageError
from pulsar_native.cli.reading import _start
from support.cli import run


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
        (["tail", "--from", "noon"], "LEDGER:ENTRY"),
        (["peek", "-n", "0"], "--lines must be at least 1"),
        (["peek", "-s", "s"], "--subscription needs the admin interface"),
        (["peek", "--property", "=1"], "--property needs NAME"),
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
