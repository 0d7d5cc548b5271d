"""Messages to publish, from whatever an author has: values, an envelope each, files, or a callable's result.

May not send anything. Rules: a row that cannot be read is an error that says where, never left out; the order is the
source's, since sequence ids are counted along it; files and iterators are streamed.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pulsar_native.jobs import validation
from pulsar_native.jobs.output import PathFactory, local_path

FILE_FORMATS = ("jsonl", "csv", "text")
_PACKED = (".gz", ".zip")
ENVELOPE = ("value", "key", "ordering_key", "event_time", "properties", "deliver_at")
_ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".txt": "text", ".log": "text"}


class MessageParts(NamedTuple):
    """One message: its value before encoding, and what goes along with it."""

    value: Any
    key: str | bytes | None
    ordering_key: str | None
    event_time: int | None
    properties: dict[str, str] | None
    deliver_at: int | None


@dataclass(frozen=True)
class MessageMapping:
    """How the parts of a message are found: by field names in its value, or in an envelope of its own."""

    envelope: bool = False
    key_field: str | None = None
    event_time_field: str | None = None
    property_fields: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def parts(self, item: Any) -> MessageParts:
        """Return the parts of one item; raises ValueError."""
        if self.envelope:
            return self._from_envelope(item)
        key = event_time = None
        properties = dict(self.properties)
        if self.key_field is not None:
            found = _field(item, self.key_field)
            key = None if found is None else found if isinstance(found, bytes) else str(found)
        if self.event_time_field is not None:
            found = _field(item, self.event_time_field)
            event_time = None if found is None else validation.moment(self.event_time_field, found)
        for name in self.property_fields:
            if (found := _field(item, name)) is not None:
                properties[name] = str(found)
        return MessageParts(item, key, None, event_time, properties or None, None)

    def _from_envelope(self, item: Any) -> MessageParts:
        if not isinstance(item, Mapping) or "value" not in item:
            validation.refuse('with envelope=True each message is a dict with "value", and may have "key" and more')
        validation.known("the envelope", item, ENVELOPE)
        properties = {**self.properties, **(item.get("properties") or {})}
        event_time, deliver_at = item.get("event_time"), item.get("deliver_at")
        return MessageParts(
            item["value"],
            item.get("key"),
            item.get("ordering_key"),
            None if event_time is None else validation.moment("event_time", event_time),
            properties or None,
            None if deliver_at is None else validation.moment("deliver_at", deliver_at),
        )


def _field(item: Any, name: str) -> Any:
    if not isinstance(item, Mapping):
        validation.refuse(f"the field {name!r} is taken from a dict, and the message is {type(item).__name__}")
    if name not in item:
        validation.refuse(f"the message has no field {name!r}; {validation.nearest(name, [str(key) for key in item])}")
    return item[name]


class Source:
    """Items to publish, in their order. `is_list` says whether they are all in memory, to be read more than once."""

    def __init__(self, read: Callable[[], Iterable[Any]], *, is_list: bool) -> None:
        self._read = read
        self.is_list = is_list

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read())

    @staticmethod
    def of(given: object) -> Source:
        """Return the source of the argument `messages`: a list, JSON text of one, or an iterator.

        A single value is refused, as one text or dict is rather a mistake than a message.
        """
        if isinstance(given, str):
            try:
                given = json.loads(given)
            except ValueError:
                validation.refuse(
                    "messages is a text, but no JSON array. For a path use file=; for another task's result use its "
                    "output (task.output), or end the template with `| tojson`; one text is a list with one text in it"
                )
        if isinstance(given, str | bytes | Mapping) or given is None:
            validation.refuse(f"messages must be a list or an iterator of messages, not {type(given).__name__}")
        if isinstance(given, Sequence) or (hasattr(given, "__len__") and hasattr(given, "__iter__")):
            items: Any = given
            return Source(lambda: items, is_list=True)
        if isinstance(given, Iterable):
            once = iter(given)
            return Source(lambda: once, is_list=False)
        validation.refuse(f"messages must be a list or an iterator of messages, not {type(given).__name__}")

    @staticmethod
    def of_file(path: str, file_format: str | None, open_path: PathFactory = local_path) -> Source:
        """Return the source of a file; `open_path` makes the path object of its text, local ones by default."""
        chosen = file_format or format_of(path)
        read = {"jsonl": _read_jsonl, "csv": _read_csv, "text": _read_text}[chosen]
        return Source(lambda: read(path, open_path), is_list=False)


def format_of(path: str) -> str:
    """Return a file's format by its ending; raises ValueError for an ending that says nothing."""
    plain = path.lower()
    for ending in _PACKED:
        plain = plain.removesuffix(ending)
    for ending, found in _ENDINGS.items():
        if plain.endswith(ending):
            return found
    validation.refuse(
        f"the ending of {path!r} says nothing about its format: give file_format, {', '.join(FILE_FORMATS)}"
    )


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
        yield stack.enter_context(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""))


def _read_jsonl(path: str, open_path: PathFactory) -> Iterator[Any]:
    with _open(path, open_path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                validation.refuse(f"line {number} of {path} is not JSON: {error}")


def _read_csv(path: str, open_path: PathFactory) -> Iterator[dict[str, str]]:
    with _open(path, open_path) as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                if None in row or None in row.values():
                    validation.refuse(f"line {reader.line_num} of {path} has another number of columns than the first")
                yield row
        except csv.Error as error:
            validation.refuse(f"line {reader.line_num} of {path} is not CSV: {error}")


def _read_text(path: str, open_path: PathFactory) -> Iterator[str]:
    with _open(path, open_path) as file:
        for line in file:
            yield line.rstrip("\r\n")
