"""Arguments of `consume` that do not go together. Batches themselves: tests/integration."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from support.cli import run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--wait"], "--wait needs --max-messages, --max-bytes or --max-seconds"),
        (["--key", "a"], "say --unmatched acknowledge or --unmatched keep"),
        (["--unmatched", "keep"], "--unmatched needs a filter"),
        (["--run", "a"], "--run needs --output"),
        (["--json"], "--json needs --output"),
        (["--max-messages-per-file", "5"], "--max-messages-per-file needs --output"),
        (["-o", "x", "--max-messages-per-file", "0"], "--max-messages-per-file must be a whole number of at least 1"),
        (["-o", "x", "--max-bytes-per-file", "0"], "error: --max-bytes-per-file must be a whole number of at least 1"),
        (["--output-format", "jsonl"], "--output-format needs --output"),
        (["-o", "x", "--as", "value"], "are for standard output"),
        (["-o", "x.parquet", "--key", "a", "--unmatched", "keep"], "Parquet has all messages"),
        (["-o", "x.parquet", "--decode", "json"], "Parquet has all messages"),
        (["-n", "0"], "error: --max-messages must be a number of at least 1, not 0"),
        (["--max-bytes", "0"], "error: --max-bytes must be a number of at least 1, not 0"),
        (["--max-seconds", "0"], "error: --max-seconds must be a number of at least 0.001, not 0"),
        (["--idle-seconds", "nan"], "--idle-seconds must be a number of at least 0.1, not nan"),
        (["--format", "%z"], "there is no %z"),
        (["-o", "x", "--delimiter", ";"], "--as, --format and --delimiter are for standard output"),
        (["--if-exists", "overwrite"], "--if-exists needs --output FILE"),
        (["-o", "-", "--if-exists", "fail"], "--if-exists needs --output FILE"),
        (["-o", "-", "--run", "a"], "--run needs --output FILE"),
        (["--dead-letter-topic", "d"], "--dead-letter-topic needs --on-error dead_letter"),
        (["--dead-letter-topic", "d", "--on-error", "skip"], "--dead-letter-topic needs --on-error dead_letter"),
        (["--wait", "-n", "1", "--idle-seconds", "1"], "--idle-seconds is for the end .* give --max-seconds"),
        (["-o", ""], "error: --output must be a text that is not blank"),
        (["-o", "x", "--run", ""], "error: --run must be a text that is not blank"),
        (["--state", ""], "error: --state must be a text that is not blank"),
        (["--as", "value", "--decode", "json"], "--decode is for JSON lines"),
        (["--as", "value", "--on-error", "skip"], "--on-error is for JSON lines"),
        (["--format", "%s", "--on-error", "dead_letter"], "--on-error is for JSON lines"),
    ],
)
def test_consume_wrong_arguments_exit_with_2(arguments: Sequence[str], words: str) -> None:
    found = run("consume", "t", "-s", "s", *arguments, "--url", "pulsar://127.0.0.1:1")
    assert found.code == 2
    assert re.search(words, found.err), found.err


def test_consume_non_persistent_topic_exits_with_2() -> None:
    found = run("consume", "non-persistent://public/default/t", "-s", "s", "--url", "pulsar://127.0.0.1:1")
    assert found.code == 2 and "t is not persistent" in found.err
    assert found.err.endswith("or follow it with tail -n 0 --follow\n")


def test_consume_blank_subscription_exits_with_2() -> None:
    found = run("consume", "t", "-s", " ")
    assert (found.code, found.err) == (2, "error: --subscription must be a text that is not blank, not ' '\n")


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ("persistent://public/default/t", "topic names the same topic twice"),
        ("t-partition-1", "topic names persistent://public/default/t and its partition .*/t-partition-1"),
    ],
    ids=["same", "partition"],
)
def test_consume_topic_twice_exits_with_2(second: str, words: str) -> None:
    # Port 1 refuses connections: two consumers of one subscription would wait for each other.
    found = run("consume", "t", second, "-s", "s", "--url", "pulsar://127.0.0.1:1")
    assert found.code == 2
    assert re.search(words, found.err), found.err
