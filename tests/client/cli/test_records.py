"""Output of messages: JSON lines, bare values, format strings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import pytest

from pulsar_native.cli.errors import UsageError
from pulsar_native.cli.records import Render, add_arguments, render_of, safe_record, unescaped
from pulsar_native.schema import AvroSchema
from support.jobs import PUBLISHED, TOPIC, received

BINARY = b"\xff\x00%\n"


def render(*arguments: str) -> Render:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return render_of(parser.parse_args(arguments))


def test_json_line_has_text_and_fields() -> None:
    line = render()(received(b"hello", partition_key="k", properties={"a": "1"}))
    found = json.loads(line)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert (found["value"], found["encoding"], found["key"], found["properties"]) == ("hello", "text", "k", {"a": "1"})


def test_json_line_decodes_as_asked() -> None:
    assert json.loads(render("--decode", "json")(received(b'{"a":1}')))["value"] == {"a": 1}
    assert json.loads(render("--decode", "bytes")(received(b"a")))["value"] == "YQ=="


@pytest.mark.parametrize("decode", ["json", "text"])
def test_json_line_undecodable_has_base64_and_error(decode: str) -> None:
    found = json.loads(render("--decode", decode)(received(BINARY)))
    assert (found["value"], found["encoding"]) == ("/wAlCg==", "base64")
    assert "The message is not" in found["error"]


def test_json_line_of_broken_record_has_base64() -> None:
    schema = AvroSchema(None, {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]})
    assert safe_record(received(b"\x09", schema=schema), "auto")["encoding"] == "base64"


def test_value_is_the_payload_and_the_delimiter() -> None:
    assert render("--as", "value")(received(BINARY)) == BINARY + b"\n"
    assert render("--as", "value", "--delimiter", r"\0")(received(b"a")) == b"a\0"
    assert render("--as", "value", "--delimiter", "")(received(b"a")) == b"a"


def test_format_has_all_fields() -> None:
    message = received(b"val\xff", 3, 1, 2, partition_key="key", event_time=5, properties={"b": "2", "a": "1"})
    found = render("--format", r"%s|%k|%t|%p|%i|%T|%E|%h|%n|%S|%K|%%|\x41\t\\ é\n")(message)
    fields = f"key|{TOPIC}|-1|7:3:-1:1|{PUBLISHED}|5|a=1,b=2|p|4|3|%|A\t\\ é\n"
    assert found == b"val\xff|" + fields.encode()


def test_format_of_binary_key_and_no_key() -> None:
    coded = received(b"x", partition_key="/wA=", partition_key_b64_encoded=True)
    assert render("--format", "%k")(coded) == b"\xff\x00"
    assert render("--format", "[%k]%K")(received(b"x")) == b"[]0"
    wrong = received(b"x", partition_key="abc", partition_key_b64_encoded=True)
    assert render("--format", "%k")(wrong) == b"abc"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "%z"], "there is no %z; there are %s %k"),
        (["--format", "100%"], "--format ends with a single %"),
        (["--format", "100%%%"], "--format ends with a single %"),
        (["--format", "a\\"], r"--format ends with a single \\"),
        (["--as", "value", "--delimiter", "a\\"], r"--delimiter ends with a single \\"),
        (["--format", r"\q"], r"--format: there is no escape \\q"),
        (["--as", "value", "--delimiter", r"\q"], r"--delimiter: there is no escape \\q"),
        (["--format", "%s", "--as", "value"], "give --format or --as, not both"),
        (["--delimiter", ";"], "--delimiter needs --as value"),
        (["--as", "jsonl", "--delimiter", ""], "--delimiter needs --as value"),
        (["--format", "%s", "--delimiter", ";"], "--delimiter needs --as value"),
    ],
)
def test_wrong_format_raises(arguments: Sequence[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        render(*arguments)


def test_unescaped_keeps_percent_signs() -> None:
    assert unescaped("--delimiter", r"100%% %s\r\n") == b"100%% %s\r\n"
    assert unescaped("--delimiter", r"%\n%") == b"%\n%"
