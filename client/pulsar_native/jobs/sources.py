"""Sources of messages to publish: values, envelopes, tables, files, or a callable's result.

May not send anything. Rules: a row that cannot be read raises with its number and is never left out. The order is the
source's, since sequence ids follow it. Files, tables and iterators are streamed.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from pulsar_native.jobs import tables, validation
from pulsar_native.jobs.async_iteration import is_asynchronous, resolved
from pulsar_native.jobs.output import PathFactory, local_path

FILE_FORMATS = ("jsonl", "json", "csv", "text", "parquet")
_PACKED = (".gz", ".zip")
ENVELOPE = ("value", "key", "ordering_key", "event_time", "properties", "deliver_at")
_ENDINGS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".txt": "text",
    ".log": "text",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_CHUNK = 1 << 20
_MAX_TIME = 2**63 - 1
_LINE_END = re.compile(rb"\r\n|\r|\n")
_SPACE = re.compile(r"[ \t\r\n]*")


class MessageParts(NamedTuple):
    """One message: its value before encoding, and its fields."""

    value: Any
    key: str | bytes | None
    ordering_key: str | None
    event_time: int | None
    properties: dict[str, str] | None
    deliver_at: int | None


class JsonLine(dict[str, Any]):
    """Object of a line of JSON with the line's own text: floats do not hold every number that is written there."""

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self.text = text


@dataclass(frozen=True)
class MessageMapping:
    """Mapping of a message's fields: from fields of its value, or from an envelope; `key` is the same for all."""

    envelope: bool = False
    key_field: str | None = None
    event_time_field: str | None = None
    property_fields: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None

    def parts(self, item: Any, texts: Mapping[str, str] | None = None) -> MessageParts:
        """Return the fields of one item; raises ValueError.

        :param item: the message's value, or the envelope.
        :param texts: the row of a CSV file that the value was made of: key and properties are its texts as they are
            written, but for nulls. Default None: the value has another source.
        """
        if self.envelope:
            return self._from_envelope(item)
        key: str | bytes | None = self.key
        event_time = None
        properties = dict(self.properties)
        if self.key_field is not None:
            found = _as_written(item, self.key_field, texts)
            key = None if found is None else found if isinstance(found, bytes) else str(found)
        if self.event_time_field is not None:
            found = _field(item, self.event_time_field)
            event_time = _time(self.event_time_field, found)
        for name in self.property_fields:
            if (found := _as_written(item, name, texts)) is not None:
                properties[name] = str(found)
        return _checked(MessageParts(item, key, None, event_time, properties or None, None))

    def _from_envelope(self, item: Any) -> MessageParts:
        if not isinstance(item, Mapping) or "value" not in item:
            validation.refuse('with envelope=True each message is a dict with "value", and may have "key" and more')
        validation.known("the envelope", item, ENVELOPE)
        own = item.get("properties") or {}
        if not isinstance(own, Mapping):
            validation.refuse(f"properties must be a dict of texts, not {type(own).__name__}")
        properties = {**self.properties, **own}
        return _checked(
            MessageParts(
                item["value"],
                item.get("key"),
                item.get("ordering_key"),
                _time("event_time", item.get("event_time")),
                properties or None,
                _time("deliver_at", item.get("deliver_at")),
            )
        )


def _time(name: str, value: Any) -> int | None:
    """Return a message's time in milliseconds, None for None; raises ValueError, also for one before 1970."""
    if value is None:
        return None
    millis = validation.moment(name, value)
    if not 0 <= millis <= _MAX_TIME:
        validation.refuse(f"{name} must be from 0 to {_MAX_TIME} milliseconds since 1970, not {millis}")
    return millis


def _checked(parts: MessageParts) -> MessageParts:
    """Return the fields; raises ValueError for one of another type, or one that has no form in UTF-8."""
    key, ordering_key, properties = parts.key, parts.ordering_key, parts.properties
    if key is not None and not isinstance(key, bytes):
        _check_text("key", key, "a text or bytes")
    if ordering_key is not None:
        _check_text("ordering_key", ordering_key)
    if properties is not None:
        for name, text in properties.items():
            _check_text("the name of a property", name)
            _check_text(f"the property {name!r}", text)
    return parts


def _check_text(name: str, value: object, kind: str = "a text") -> None:
    if not isinstance(value, str):
        validation.refuse(f"{name} must be {kind}, not {type(value).__name__}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            validation.refuse(f"{name} cannot be written in UTF-8: {error.reason}")


def _field(item: Any, name: str) -> Any:
    if not isinstance(item, Mapping):
        validation.refuse(f"the field {name!r} is taken from a dict, and the message is {type(item).__name__}")
    if name not in item:
        validation.refuse(f"the message has no field {name!r}; {validation.nearest(name, [str(key) for key in item])}")
    return item[name]


def _as_written(item: Any, name: str, texts: Mapping[str, str] | None) -> Any:
    found = _field(item, name)
    return found if found is None or texts is None else texts[name]


class Source:
    """Items to publish, in their order.

    `is_list`: all are in memory. `can_reread`: they can be read again from the start. `rows`: they come from a table
    ("table") or from texts of columns ("texts").
    """

    def __init__(
        self,
        read: Callable[[], Iterable[Any]],
        *,
        is_list: bool = False,
        can_reread: bool = False,
        rows: str | None = None,
        fingerprint: Callable[[], str] | None = None,
    ) -> None:
        self._read = read
        self._fingerprint = fingerprint
        self.is_list = is_list
        self.can_reread = can_reread or is_list
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read())

    def fingerprint(self) -> str | None:
        """Return a digest of a file's bytes, None if it is not a file. Blocks for reading; may raise OSError."""
        return None if self._fingerprint is None else self._fingerprint()

    @staticmethod
    def of(given: Any) -> Source:
        """Return the source of the argument `messages`: a list, JSON text of one, a table, or an iterator.

        The result of a coroutine function or an async generator is accepted; blocks for its first item. A single text
        or dict raises, as it is probably a mistake, and so does a set, which has no order.
        """
        if is_asynchronous(given):
            given = resolved(given)
        if isinstance(given, str):
            given = _parsed_list(given)
        if given is None or isinstance(given, str | bytes | bytearray | memoryview | Mapping):
            _refuse_type(given, "one message alone is a list with it: [value]")
        if isinstance(given, Set):
            _refuse_type(given, "a set has no order, which retries must keep: pass sorted(…) or a list")
        if (table := tables.reader_of(given)) is not None:
            read, again = table
            return Source(read, is_list=again, rows="table")
        if isinstance(given, Sequence | ValuesView):
            return Source(lambda: given, is_list=True)
        if isinstance(given, type) or not isinstance(given, Iterable):
            _refuse_type(given, "")
        if hasattr(given, "__len__"):
            _refuse_type(given, "pass its messages as a list: list(…), or .tolist() of an array or a Series")
        once = iter(given)
        return Source(lambda: once)

    @staticmethod
    def of_file(path: str, file_format: str | None, open_path: PathFactory = local_path) -> Source:
        """Return the source of a file; `open_path` returns the path object of its text, by default a local one.

        Without a format the suffix decides; then a line of a .jsonl file must not be an array.
        """
        chosen = file_format or format_of(path)
        if chosen == "parquet" and path.lower().endswith(_PACKED):
            validation.refuse(f"{path} is packed: a Parquet file is compressed inside, unpack it")
        readers: dict[str, Callable[[], Iterable[Any]]] = {
            "jsonl": lambda: _read_jsonl(path, open_path, arrays=file_format is not None),
            "json": lambda: _read_json(path, open_path),
            "csv": lambda: _read_csv(path, open_path),
            "text": lambda: _read_text(path, open_path),
            "parquet": lambda: tables.read_parquet(path, open_path),
        }
        return Source(
            readers[chosen],
            can_reread=True,
            rows={"csv": "texts", "parquet": "table"}.get(chosen),
            fingerprint=lambda: _digest_of(path, open_path),
        )


def _refuse_type(given: object, hint: str) -> NoReturn:
    text = f"messages must be a list or an iterator of messages, or a table, not {type(given).__name__}"
    validation.refuse(f"{text}; {hint}" if hint else text)


def _parsed_list(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        validation.refuse(
            "messages is a text, but no JSON array. For a path use file=; for another task's result use its "
            "output (task.output), or end the template with `| tojson`; one text is a list with one text in it"
        )


def format_of(path: str) -> str:
    """Return a file's format by its suffix; raises ValueError for an unknown one."""
    plain = path.lower() if isinstance(path, str) else ""
    for ending in _PACKED:
        plain = plain.removesuffix(ending)
    for ending, found in _ENDINGS.items():
        if plain.endswith(ending):
            return found
    validation.refuse(
        f"the ending of {path!r} says nothing about its format: give file_format, {', '.join(FILE_FORMATS)}"
    )


# ---- files -----------------------------------------------------------------------------------------------------------


def _digest_of(path: str, open_path: PathFactory) -> str:
    found = hashlib.blake2b(digest_size=16)
    with open_path(path).open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


@contextlib.contextmanager
def _open(path: str, open_path: PathFactory) -> Iterator[io.TextIOBase]:
    with contextlib.ExitStack() as stack:
        stream: Any = stack.enter_context(open_path(path).open("rb"))
        if path.lower().endswith(".gz"):
            stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
        elif path.lower().endswith(".zip"):
            archive = stack.enter_context(zipfile.ZipFile(stream))
            names = [name for name in archive.namelist() if not name.endswith("/")]
            if len(names) != 1:
                validation.refuse(f"{path} must hold exactly one file, not {len(names)}")
            stream = stack.enter_context(archive.open(names[0]))
        try:
            yield stack.enter_context(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""))
        except UnicodeDecodeError as error:
            validation.refuse(f"{path} is not UTF-8: {error.reason}")


def _lines(path: str, file: io.TextIOBase) -> Iterator[str]:
    """Yield the lines of a file; raises `InvalidValue` with the number of one that is not UTF-8."""
    number = 0
    try:
        for number, line in enumerate(file, 1):  # noqa: B007
            yield line
    except UnicodeDecodeError as error:
        # Many lines are decoded together, after all complete lines before them were given out.
        number += 1 + len(_LINE_END.findall(error.object[: error.start]))
        validation.refuse(f"line {number} of {path} is not UTF-8: {error.reason}")


def _read_jsonl(path: str, open_path: PathFactory, *, arrays: bool) -> Iterator[Any]:
    """Yield the value of each line; without `arrays` a line that is an array raises."""
    constants: list[str] = []

    def constant(name: str) -> float:
        constants.append(name)
        return float(name)

    decoder = json.JSONDecoder(parse_constant=constant)
    with _open(path, open_path) as file:
        for number, line in enumerate(_lines(path, file), 1):
            if not line.strip():
                continue
            try:
                value = decoder.decode(line)
            except ValueError as error:
                validation.refuse(f"line {number} of {path} is not JSON: {error}")
            if not arrays and isinstance(value, list):
                validation.refuse(
                    f"line {number} of {path} is an array: for its elements as messages give file_format='json', "
                    "for each line's array as one message file_format='jsonl'"
                )
            # NaN and infinity are Python's and not JSON: such a line is not sent as it is.
            yield JsonLine(value, line.strip()) if isinstance(value, dict) and not constants else value
            constants.clear()


def _read_json(path: str, open_path: PathFactory) -> Iterator[Any]:
    """Yield the elements of a file that is one array, else the value of each line."""
    with _open(path, open_path) as file:
        text = ""
        while not text.strip() and (more := file.read(_CHUNK)):
            text = more
        if text.lstrip()[:1] == "[":
            yield from _elements(path, file, text)
            return
    yield from _read_jsonl(path, open_path, arrays=True)


def _elements(path: str, file: io.TextIOBase, text: str) -> Iterator[Any]:
    """Yield the elements of the array that begins in `text` and continues in `file`, with one chunk in memory."""
    decoder = json.JSONDecoder()
    at, number, ended = text.index("[") + 1, 0, False
    while True:
        at = _past_space(text, at)
        if number == 0 and text[at : at + 1] == "]":
            at += 1
            break
        found = _element(decoder, text, at)
        if found is None and ended:
            validation.refuse(f"element {number} of the array in {path} is not JSON, or the array does not end")
        if found is None:
            # An element longer than the text so far: double the chunk, so that it is not parsed too often.
            more = file.read(max(_CHUNK, len(text) - at))
            text, at, ended = text[at:] + more, 0, not more
            continue
        value, at = found
        yield value
        number += 1
        if text[at - 1] == "]":
            break
    if (text[at:] + file.read(_CHUNK)).strip():
        validation.refuse(
            f"{path} goes on behind the array's end: where each line is an array, give file_format='jsonl'"
        )


def _element(decoder: json.JSONDecoder, text: str, at: int) -> tuple[Any, int] | None:
    """Return the element at the position and the end of its delimiter; None if the text is too short."""
    try:
        value, end = decoder.raw_decode(text, at)
    except ValueError:
        return None
    end = _past_space(text, end)
    return (value, end + 1) if text[end : end + 1] in (",", "]") else None


def _past_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _read_csv(path: str, open_path: PathFactory) -> Iterator[dict[str, str]]:
    with _open(path, open_path) as file:
        reader = csv.DictReader(_lines(path, file), strict=True)
        try:
            names = reader.fieldnames or ()
            for name in names:
                # A row has one value of each name.
                if names.count(name) > 1:
                    validation.refuse(f"the first line of {path} names the column {name!r} more than once")
            for row in reader:
                if None in row or None in row.values():
                    validation.refuse(f"line {reader.line_num} of {path} has another number of columns than the first")
                yield row
        except csv.Error as error:
            # The line read last; that of the DictReader is the last good row's.
            validation.refuse(f"line {reader.reader.line_num} of {path} is not CSV: {error}")


def _read_text(path: str, open_path: PathFactory) -> Iterator[str]:
    with _open(path, open_path) as file:
        for line in _lines(path, file):
            yield line.rstrip("\r\n")
