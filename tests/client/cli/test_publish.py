"""Arguments of `publish`: sources, keys, and what does not go together. Messages themselves: tests/integration."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from pulsar_native.cli import publish as module
from pulsar_native.cli.main import parser
from pulsar_native.jobs.sources import Source
from pulsar_native.jobs.validation import InvalidValue
from support.cli import run


def source(*arguments: str, stdin: bytes = b"") -> Source:
    return module._source(parser().parse_args(["publish", "t", *arguments]), io.BytesIO(stdin))


def test_source_of_standard_input_is_lines() -> None:
    found = source(stdin=b"a\nb \r\n\nc")
    assert list(found) == ["a", "b ", "", "c"] and not found.can_reread
    assert list(source("-", "--input-format", "jsonl", stdin=b'{"a":1}\n[2]\n')) == [{"a": 1}, [2]]
    assert list(source("--input-format", "binary", stdin=b"\xff\n\x00")) == [b"\xff\n\x00"]


def test_source_of_parquet_on_standard_input() -> None:
    import pyarrow as pa
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pa.table({"a": [1, 2]}), out)
    assert list(source("--input-format", "parquet", stdin=out.getvalue())) == [{"a": 1}, {"a": 2}]


def test_source_of_files_by_their_ending(tmp_path: Path) -> None:
    first, second, table = tmp_path / "1.txt", tmp_path / "2.log", tmp_path / "3.csv"
    first.write_text("a\nb\n")
    second.write_text("c\n")
    table.write_text("id\n7\n")
    found = source(str(first), str(second))
    assert list(found) == list(found) == ["a", "b", "c"] and found.can_reread
    assert (list(source(str(table))), source(str(table)).rows) == ([{"id": "7"}], "texts")
    assert list(source(str(first), "--input-format", "binary")) == [b"a\nb\n"]


def test_standard_input_gives_lines_before_it_ends() -> None:
    class Slow(io.RawIOBase):
        """A pipe whose writer waits for the reader."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = [b"a\n", b"b\n"]

        def readable(self) -> bool:
            return True

        def readinto(self, target: bytearray) -> int:  # type: ignore[override]
            part = self.parts.pop(0) if self.parts else b""
            target[: len(part)] = part
            return len(part)

    slow = Slow()
    lines = iter(module._source(parser().parse_args(["publish", "t"]), io.BufferedReader(slow)))
    assert next(lines) == "a" and slow.parts == [b"b\n"]
    assert list(lines) == ["b"]


def test_key_delimiter_splits_lines_once() -> None:
    options = ("--key-delimiter", ":")
    assert list(source(*options, stdin=b"a:1:2\n:3\n")) == [{"value": "1:2", "key": "a"}, {"value": "3", "key": ""}]
    with pytest.raises(InvalidValue, match="line 2 has no ':' between key and value"):
        list(source(*options, stdin=b"a:1\nb\n"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x.txt", "-m", "a"], "give --message or files"),
        (["-m", "a", "--input-format", "csv"], "--input-format is for files"),
        (["-m", "a", "--envelope"], "--envelope is for files of JSON; the messages of --message are texts"),
        (["--identity", "a"], "--identity and --state belong together"),
        (["--state", "s"], "--identity and --state belong together"),
        (["--on-changed", "republish"], "need --identity"),
        (["--key", "a", "--key-field", "b"], "give one of --key,"),
        (["--key-delimiter", ":", "--key-field", "b"], "give one of --key-delimiter"),
        (["--envelope", "--event-time-field", "b"], "in the envelope, not in fields"),
        (["--schema", "json"], "need --schema-file"),
        (["--schema-file", "x"], "need --schema-file, and only they"),
        (["--send-timeout", "0"], "error: --send-timeout must be a number of at least 0.1, not 0"),
        (["--send-timeout", "inf"], "error: --send-timeout must be a number of at least 0.1, not inf"),
        (["--create-subscription", " "], "error: --create-subscription must be a text that is not blank"),
        (["none.txt"], "none.txt is no file"),
        (["none.data"], "says nothing about its format: give --input-format, jsonl"),
        (["a.txt", "b.csv"], r"several formats \(csv, text\)"),
        (["--key-delimiter", ":", "--input-format", "csv"], "--key-delimiter is for lines of text"),
        (["--envelope"], "--envelope is for JSON"),
        (["-m", "a", "--property", "x"], "--property needs NAME=VALUE, not 'x'"),
        (["-m", "a", "--schema", "json", "--schema-file", "/none"], "/none cannot be read"),
        (["-m", "a", "--key-field", "b"], "--key-field is for files; the messages of --message are texts"),
        (["-m", "a", "--property-field", "b"], "--property-field is for files"),
        (["--event-time-field", "b"], "--event-time-field is for JSON, CSV and Parquet: .* text have no fields"),
        (["--key-delimiter", ":", "--property-field", "b"], "--property-field is for JSON, CSV and Parquet"),
        (["--key-delimiter", ""], "--key-delimiter must not be empty"),
        (["--identity", "", "--state", "s"], "error: --identity must be a text that is not blank"),
        (["--identity", "a", "--state", ""], "error: --state must be a text that is not blank"),
        (["--envelope", "--key-field", "b"], "with --envelope key, event time and properties are in the envelope"),
    ],
)
def test_publish_wrong_arguments_exit_with_2(arguments: Sequence[str], words: str) -> None:
    import re

    # Port 1 refuses connections: what is wrong is told before any is made.
    found = run("publish", "t", *arguments, "--url", "pulsar://127.0.0.1:1")
    assert found.code == 2
    assert re.search(words, found.err), found.err


@pytest.mark.parametrize("content", ["{", "[1]", '{"type": "record", "name": "a", "fields": [{}]}'])
def test_publish_schema_file_must_be_an_object(content: str, tmp_path: Path) -> None:
    file = tmp_path / "schema"
    file.write_text(content)
    found = run("publish", "t", "-m", "a", "--schema", "avro", "--schema-file", str(file))
    assert found.code == 2 and "is no" in found.err.replace("is not JSON", "is no JSON")
