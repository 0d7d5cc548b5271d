"""Filters by options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import pytest

from pulsar_native.cli.errors import UsageError
from pulsar_native.cli.filters import add_arguments, match_of
from pulsar_native.jobs.message_filter import MessageFilter


def match(*arguments: str) -> MessageFilter:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return match_of(parser.parse_args(arguments))


def test_filter_without_options_matches_all() -> None:
    assert match().is_empty


def test_filter_of_options() -> None:
    found = match(
        "--key", "a", "--key", "b", "--key-regex", ".", "--property", "x=1", "--property", "x=2", "--property", "y",
        "--property", "z=", "--since", "1970-01-01T00:00:01Z", "--until", "2000",
    )  # fmt: skip
    assert found == MessageFilter(("a", "b"), ".", (("x", ("1", "2")), ("y", ()), ("z", ("",))), 1000, 2000)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--property", "=x"], "--property needs NAME or NAME=VALUE, not '=x'"),
        (["--key-regex", "("], r"--key-regex='\(' is no regular expression"),
        (["--since", "yesterday"], "--since='yesterday' is neither ISO-8601"),
        (["--since", "5", "--until", "5"], "--until must be after --since"),
    ],
)
def test_filter_wrong_option_raises(arguments: Sequence[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        match(*arguments)
