"""Output of messages: JSON lines, bare values, format strings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import pytest

from pulsar_native.cli.errors import UsageError
from pulsar_native.cli.records import Render, add_arguments, render_of, safe_line, unescaped
from pulsar_native.jobs.codecs import WriterSchema
from pulsar_native.schema import AvroSchema, Schema, SchemaInfo, SchemaType
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
    assert json.loads(safe_line(received(b"\x09", schema=schema), "auto"))["encoding"] == "base64"


class FirstVersion(Schema[object]):
    """The schema of messages that were all written with one definition."""

    def __init__(self, info: SchemaInfo) -> None:
        super().__init__()
        self._inner = WriterSchema(lambda version: info)

    def decode(self, data: bytes) -> object:
        return self._inner.decode_versioned(data, b"\0")


@pytest.mark.parametrize(
    ("kind", "definition", "words"),
    [
        (SchemaType.PROTOBUF, {}, "cannot be decoded without their class"),
        (SchemaType.AVRO, {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string", "default": None}]},
         "The schema definition is not Avro: Default value <None>"),
        (SchemaType.AVRO, "string", "is no JSON object"),
        (SchemaType.JSON, "string", "is no JSON object"),
    ],
    ids=["protobuf", "avro-default", "avro-string", "json-string"],
)  # fmt: skip
def test_json_line_schema_unusable_has_error(kind: SchemaType, definition: object, words: str) -> None:
    schema = FirstVersion(SchemaInfo("t", kind, json.dumps(definition).encode()))
    found = json.loads(render()(received(b"\x02a", schema=schema)))
    assert (found["value"], found["encoding"]) == ("AmE=", "base64")
    assert words in found["error"]


def test_json_line_of_any_depth_is_one_line() -> None:
    to_line = render("--decode", "json")
    # At some depths the value can be decoded, and its line not be written.
    for depth in (*range(430, 490), 600, 5000):
        line = to_line(received(b"[" * depth + b"]" * depth))
        assert b'"encoding":"json"' in line or b'"error":"The value is nested too deep"' in line
    found = json.loads(line)
    assert (found["encoding"], len(found["value"])) == ("base64", 13_336)


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
        (["--as", "value", "--decode", "json"], "--decode is for JSON lines"),
        (["--format", "%s", "--decode", "bytes"], "--decode is for JSON lines"),
    ],
)
def test_wrong_format_raises(arguments: Sequence[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        render(*arguments)


def test_unescaped_keeps_percent_signs() -> None:
    assert unescaped("--delimiter", r"100%% %s\r\n") == b"100%% %s\r\n"
    assert unescaped("--delimiter", r"%\n%") == b"%\n%"
