"""Messages as bytes of the output: a JSON line, the bare value, or a format string as kcat's.

Rules: every message is one record, whatever it holds; a value that cannot be decoded is shown as base64 with the
reason. The output is flushed by its caller.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pulsar_native.cli.errors import UsageError
from pulsar_native.exceptions import PulsarException
from pulsar_native.jobs.batch import record_of
from pulsar_native.jobs.consume_options import DECODERS
from pulsar_native.jobs.output import json_line

if TYPE_CHECKING:
    from pulsar_native import Message

FORMATS = ("jsonl", "value")
_ESCAPED = re.compile(r"()\\(x[0-9a-fA-F]{2}|.)|([^\\]+)", re.DOTALL)
_TOKEN = re.compile(r"%(.)|\\(x[0-9a-fA-F]{2}|.)|([^%\\]+)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_ENCRYPTED = "The message is encrypted, and the command line has no keys"
Render = Callable[["Message"], bytes]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the output of messages."""
    group = parser.add_argument_group("output")
    add = group.add_argument
    add("--as", dest="shape", choices=FORMATS, default="jsonl", help="jsonl: one JSON object a message (default); "
        "value: the payload as it is, and the delimiter")  # fmt: skip
    add("--format", metavar="TEXT", help=r"format of a message instead, as kcat's: %%s value, %%k key, %%t topic, "
        r"%%p partition, %%i message id, %%T publish time and %%E event time in ms, %%h properties, %%n producer, "
        r"%%S and %%K length of value and key in bytes; \n \t \r \0 \\ \xHH")  # fmt: skip
    add("--delimiter", metavar="TEXT", help=r"after each value with --as value (default \n)")
    add("--decode", choices=DECODERS, default="auto", help="value in JSON lines: auto (default: by the schema the "
        "message was published with; else text, or base64), json, text, bytes (base64)")  # fmt: skip


def is_json(options: argparse.Namespace) -> bool:
    """Return True if messages become JSON lines, the only output for which values are decoded."""
    return options.format is None and options.shape == "jsonl"


def render_of(options: argparse.Namespace) -> Render:
    """Return the function from a message to its bytes; raises `UsageError` for options that do not go together."""
    if options.delimiter is not None and options.shape != "value":
        raise UsageError("--delimiter needs --as value")
    if options.format is not None and options.shape != "jsonl":
        raise UsageError("give --format or --as, not both")
    if options.decode != "auto" and not is_json(options):
        raise UsageError("--decode is for JSON lines: --as value and --format write payloads as they are")
    if options.format is not None:
        return _formatted(options.format)
    if options.shape == "value":
        delimiter = b"\n" if options.delimiter is None else unescaped("--delimiter", options.delimiter)
        return lambda message: message.data() + delimiter
    decoder: str = options.decode
    return lambda message: safe_line(message, decoder)


def safe_line(message: Message, decoder: str) -> bytes:
    """Return a message as a JSON line; one whose value cannot be decoded has base64 and the field `error`."""
    encryption = message.encryption_context()
    if encryption is not None and encryption.is_decryption_failed():
        return json_line({**record_of(message, "bytes"), "error": _ENCRYPTED})
    try:
        return json_line(record_of(message, decoder))
    except (PulsarException, ValueError, RecursionError) as error:
        # Nothing is fetched here: it is the value, or a registered schema that decodes none (PROTOBUF, wrong Avro).
        reason = "The value is nested too deep" if isinstance(error, RecursionError) else str(error)
        return json_line({**record_of(message, "bytes"), "error": reason})


def unescaped(option: str, text: str) -> bytes:
    r"""Return the bytes of a text with the escapes \n \t \r \0 \\ \xHH; raises `UsageError`."""
    found = b""
    for _, escape, plain in _tokens(option, _ESCAPED, text):
        found += _escaped(option, escape) if escape else plain.encode()
    return found


def _tokens(option: str, kind: re.Pattern[str], text: str) -> Iterator[tuple[str, str, str]]:
    """Return the field, the escape and the plain text of each token; raises `UsageError` for half a one at the end."""
    end = 0
    for token in kind.finditer(text):
        end = token.end()
        field, escape, plain = token.groups("")
        yield field, escape, plain
    if end < len(text):
        raise UsageError(f"{option} ends with a single {text[-1]}; write it twice for the character itself")


def _escaped(option: str, escape: str) -> bytes:
    if escape[0] == "x" and len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    if escape not in _ESCAPES:
        raise UsageError(rf"{option}: there is no escape \{escape}; there are \n \t \r \0 \\ \xHH")
    return _ESCAPES[escape]


def _formatted(text: str) -> Render:
    parts: list[bytes | Render] = []
    for percent, escape, plain in _tokens("--format", _TOKEN, text):
        if percent == "%":
            parts.append(b"%")
        elif percent:
            if percent not in _FIELDS:
                raise UsageError(
                    f"--format: there is no %{percent}; there are {' '.join(f'%{each}' for each in _FIELDS)}"
                )
            parts.append(_FIELDS[percent])
        else:
            parts.append(_escaped("--format", escape) if escape else plain.encode())
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def _key(message: Message) -> bytes:
    return message.key_bytes() if message.has_key() else b""


def _text(value: object) -> bytes:
    return str(value).encode(errors="surrogateescape")


_FIELDS: dict[str, Render] = {
    "s": lambda message: message.data(),
    "k": _key,
    "t": lambda message: _text(message.topic_name()),
    "p": lambda message: _text(message.message_id().partition()),
    "i": lambda message: _text(message.message_id()),
    "T": lambda message: _text(message.publish_timestamp()),
    "E": lambda message: _text(message.event_timestamp()),
    "h": lambda message: _text(",".join(f"{name}={value}" for name, value in sorted(message.properties().items()))),
    "n": lambda message: _text(message.producer_name()),
    "S": lambda message: _text(len(message.data())),
    "K": lambda message: _text(len(_key(message))),
}
