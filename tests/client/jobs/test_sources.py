"""Sources of messages: tables, files, asynchronous results, and what is refused."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pulsar_native.jobs import sources
from pulsar_native.jobs.sources import MessageMapping, Source
from pulsar_native.jobs.validation import InvalidValue

ROWS = [{"n": n, "text": None if n % 3 == 0 else f"t{n}"} for n in range(20_000)]


class Frame:
    """A DataFrame of a library that offers Arrow's stream interface, as polars does."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.columns = table.column_names

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


# ---- tables ----------------------------------------------------------------------------------------------------------

_TABLES: dict[str, tuple[Callable[[pa.Table], Any], bool]] = {
    "table": (lambda table: table, True),
    "batch": (lambda table: table.combine_chunks().to_batches()[0], True),
    "reader": (lambda table: table.to_reader(1000), False),
    "frame": (Frame, True),
}


@pytest.mark.proves("A6")
@pytest.mark.parametrize("kind", _TABLES)
def test_source_of_arrow_gives_rows(kind: str) -> None:
    make, again = _TABLES[kind]
    source = Source.of(make(pa.Table.from_pylist(ROWS)))
    assert (source.rows, source.can_reread, source.is_list) == ("table", again, again)
    assert list(source) == ROWS
    if again:
        assert list(source) == ROWS


def test_source_of_parquet_streams_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.table({"n": range(400_000), "text": ["x" * 100] * 400_000})
    parquet.write_table(table, path, row_group_size=20_000, compression="zstd", use_dictionary=False)
    size = table.nbytes
    del table
    before = pa.total_allocated_bytes()
    source = Source.of_file(str(path), None)
    most = count = 0
    for count, row in enumerate(source, 1):  # noqa: B007
        if count % 5000 == 0:
            most = max(most, pa.total_allocated_bytes() - before)
    assert count == 400_000 and row == {"n": 399_999, "text": "x" * 100}
    assert 0 < most < size / 4


def test_source_of_parquet_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"a,b\n1,2\n")
    with pytest.raises(ValueError, match="is not a Parquet file"):
        list(Source.of_file(str(path), None))
    with pytest.raises(ValueError, match="packed"):
        Source.of_file("rows.parquet.gz", None)


# ---- what is no list of messages -------------------------------------------------------------------------------------


class Unknown:
    """A table of an unknown kind."""

    columns = ("a", "b")

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


class Sized:
    """Something with a length that is no sequence, such as a pandas Series or a numpy array."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[str]:
        return iter("ab")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"a": 1}, r"\[value\]"),
        ({"a": 1}.keys(), r"sorted"),
        ({"a", "b"}, r"has no order.*sorted"),
        ("no json", r"JSON array"),
        ('"text"', r"\[value\]"),
        (b"bytes", r"\[value\]"),
        (bytearray(b"bytes"), r"\[value\]"),
        (None, r"NoneType"),
        (7, r"not int"),
        (Unknown(), r"table of a kind that cannot be read.*list of dicts"),
        (Sized(), r"list\(…\), or \.tolist\(\)"),
        (pa.array([1]), r"one Arrow column.*to_pylist"),
        (list, r"not type"),
    ],
)
def test_source_of_no_list_of_messages_is_refused(given: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Source.of(given)


@pytest.mark.parametrize("given", [[1, 2], (1, 2), range(1, 3), {"a": 1, "b": 2}.values(), "[1, 2]"])
def test_source_of_sequence_is_read_twice(given: Any) -> None:
    source = Source.of(given)
    assert source.is_list and list(source) == list(source) == [1, 2]


# ---- JSON files ------------------------------------------------------------------------------------------------------


def file_of(folder: Path, name: str, text: str) -> str:
    """Write a file and return its path."""
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[{"a": 1}, {"a": [2, "]"]}]', [{"a": 1}, {"a": [2, "]"]}]),
        (' \n[1,\n2 ,\n"x"\n]\n', [1, 2, "x"]),
        ("[]", []),
        ("[[1], [2]]", [[1], [2]]),
        ('{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        ('{"a": 1}\n[2]\n', [{"a": 1}, [2]]),
        ("", []),
        ("\ufeff[1]", [1]),
    ],
)
def test_source_of_json_file_takes_array_or_lines(text: str, found: list[Any], tmp_path: Path) -> None:
    assert list(Source.of_file(file_of(tmp_path, "rows.json", text), None)) == found
    assert list(Source.of_file(file_of(tmp_path, "rows", text), "json")) == found


@pytest.mark.parametrize("text", ["[1,", "[1 2]", "[1,]", "[nope]", "[", '["a'])
def test_source_of_broken_json_array_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of the array in"):
        list(Source.of_file(file_of(tmp_path, "rows.json", text), None))


def test_source_of_json_file_of_arrays_names_the_format(tmp_path: Path) -> None:
    path = file_of(tmp_path, "rows.json", "[1, 2]\n[3]\n")
    with pytest.raises(ValueError, match="file_format='jsonl'"):
        list(Source.of_file(path, None))
    assert list(Source.of_file(path, "jsonl")) == [[1, 2], [3]]


def test_source_of_jsonl_line_with_array_is_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path, "rows.jsonl", '{"a": 1}\n[{"a": 2}]\n')
    with pytest.raises(ValueError, match=r"line 2 .* is an array: .*file_format='json'.*file_format='jsonl'"):
        list(Source.of_file(path, None))
    assert list(Source.of_file(path, "jsonl")) == [{"a": 1}, [{"a": 2}]]


def test_source_of_json_array_streams_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_CHUNK", 7)
    values = [{"n": n, "text": "x" * (n % 40)} for n in range(200)]
    for indent in (None, 1):
        path = file_of(tmp_path, "rows.json", json.dumps(values, indent=indent))
        assert list(Source.of_file(path, None)) == values


def test_source_of_large_json_array_takes_linear_time(tmp_path: Path) -> None:
    path = file_of(tmp_path, "rows.json", json.dumps([{"n": n} for n in range(300_000)]))
    began = time.process_time()
    assert sum(1 for _ in Source.of_file(path, None)) == 300_000
    assert time.process_time() - began < 10


# ---- asynchronous ----------------------------------------------------------------------------------------------------


def test_source_of_coroutine_and_async_generator() -> None:
    closed = []

    async def some() -> list[int]:
        await asyncio.sleep(0)
        return [1, 2]

    async def each() -> AsyncIterator[int]:
        try:
            for number in (1, 2):
                await asyncio.sleep(0)
                yield number
        finally:
            closed.append(True)

    async def of_each() -> AsyncIterator[int]:
        return each()

    assert list(Source.of(some())) == [1, 2] and Source.of(some()).is_list
    assert list(Source.of(each())) == [1, 2]
    assert list(Source.of(of_each())) == [1, 2]
    for item in (rows := iter(Source.of(each()))):
        assert item == 1
        break
    rows.close()  # type: ignore[attr-defined]
    assert closed == [True] * 3


def test_source_of_failing_async_generator_raises_it() -> None:
    async def each() -> AsyncIterator[int]:
        yield 1
        raise RuntimeError("the source broke")

    rows = iter(Source.of(each()))
    assert next(rows) == 1
    with pytest.raises(RuntimeError, match="the source broke"):
        next(rows)


# ---- packed files, and CSV -------------------------------------------------------------------------------------------


def packed(path: Path, **files: str) -> str:
    """Write a zip file with these files and return its path."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.mkdir("folder")
        for name, text in files.items():
            archive.writestr(f"folder/{name}.csv", text)
    return str(path)


def test_source_of_packed_files_reads_what_is_inside(tmp_path: Path) -> None:
    text = "n,text\n1,a\n2,b\n"
    rows = [{"n": "1", "text": "a"}, {"n": "2", "text": "b"}]
    gz = tmp_path / "a.CSV.gz"
    gz.write_bytes(gzip.compress(text.encode("utf-8-sig")))
    for path in (str(gz), packed(tmp_path / "a.csv.zip", one=text)):
        source = Source.of_file(path, None)
        assert list(source) == list(source) == rows and source.rows == "texts"
    fingerprint = Source.of_file(str(gz), None).fingerprint()
    gz.write_bytes(gzip.compress(b"n\n1\n"))
    assert fingerprint != Source.of_file(str(gz), None).fingerprint()


@pytest.mark.parametrize("files", [{}, {"one": "a\n", "two": "a\n"}])
def test_source_of_zip_with_not_one_file_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    path = packed(tmp_path / "a.csv.zip", **files)
    with pytest.raises(ValueError, match=f"must hold exactly one file, not {len(files)}"):
        list(Source.of_file(path, None))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n1,2,3\n", "line 3 of .* has another number of columns than the first"),
        ("a,b\n1\n", "line 2 of .* has another number of columns"),
        ("a,b,a\n1,2,3\n", "the first line of .* names the column 'a' more than once"),
        ('a,b\n1,"2\n', "line 2 of .* is not CSV: unexpected end of data"),
    ],
)
def test_source_of_broken_csv_names_the_line(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        list(Source.of_file(str(path), None))


def test_source_of_broken_jsonl_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"a": \n')
    with pytest.raises(ValueError, match=r"line 3 of .* is not JSON"):
        list(Source.of_file(str(path), None))


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize(
    ("suffix", "good"),
    [("txt", b"a"), ("jsonl", b"{}"), ("csv", b"a"), ("txt", b"a" * 9_000)],
    ids=["text", "jsonl", "csv", "long"],
)
def test_source_of_no_utf_8_names_the_line(suffix: str, good: bytes, ending: bytes, tmp_path: Path) -> None:
    # Far behind the first chunk that is decoded.
    path = tmp_path / f"a.{suffix}"
    path.write_bytes((good + ending) * 5_000 + b"\xc3\xa4" + b"\xff" + ending + good)
    with pytest.raises(InvalidValue, match=r"^line 5001 of .* is not UTF-8: invalid start byte$"):
        for _ in Source.of_file(str(path), None):
            pass


def test_source_of_json_array_of_no_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'["a", "\xff"]')
    with pytest.raises(InvalidValue, match=r"a.json is not UTF-8: invalid start byte"):
        list(Source.of_file(str(path), None))


# ---- fields of a message ---------------------------------------------------------------------------------------------


def test_mapping_takes_fields_of_the_value() -> None:
    mapping = MessageMapping(
        key_field="k", event_time_field="at", property_fields=("p", "none"), properties={"all": "x"}, key="unused"
    )
    item = {"k": 5, "at": 1_700_000_000_000, "p": True, "none": None}
    parts = mapping.parts(item)
    assert (parts.value, parts.key, parts.event_time) == (item, "5", 1_700_000_000_000)
    assert parts.properties == {"all": "x", "p": "True"} and parts.ordering_key is parts.deliver_at is None
    # Null fields are none, and a key of bytes stays one.
    assert mapping.parts({"k": None, "at": None, "p": None, "none": None})[1:5] == (None, None, None, {"all": "x"})
    assert MessageMapping(key_field="k").parts({"k": b"b"}).key == b"b"
    assert MessageMapping(key="same").parts("x")[:5] == ("x", "same", None, None, None)


def test_mapping_of_a_csv_row_takes_texts_as_written() -> None:
    mapping = MessageMapping(key_field="k", event_time_field="at", property_fields=("p", "none"))
    item = {"k": 5, "at": 1_700_000_000_000, "p": True, "none": None}
    parts = mapping.parts(item, {"k": "05", "at": "2023-11-14T22:13:20", "p": "true", "none": "NA"})
    assert parts[:5] == (item, "05", None, 1_700_000_000_000, {"p": "true"})
    assert mapping.parts(item | {"k": None}, {"k": "", "at": "", "p": "", "none": ""}).key is None


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"k": "\udcff"}, "key cannot be written in UTF-8"),
        ({"p": "\udcff"}, "the property 'p' cannot be written in UTF-8"),
        ({"at": -1}, "at must be from 0 to"),
    ],
)
def test_mapping_of_a_wrong_field_is_refused(item: dict[str, object], words: str) -> None:
    mapping = MessageMapping(key_field="k", event_time_field="at", property_fields=("p",))
    with pytest.raises(ValueError, match=words):
        mapping.parts({"k": None, "p": None, "at": None, **item})


@pytest.mark.parametrize("path", [5, Path("a.csv")])
def test_format_of_no_text_is_refused(path: object) -> None:
    with pytest.raises(ValueError, match=r"the ending of .* says nothing about its format"):
        sources.format_of(path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("item", "words"),
    [("x", "the field 'key' is taken from a dict, and the message is str"), ({"kay": 1}, "has no field 'key'; .*kay")],
)
def test_mapping_of_a_missing_field_is_refused(item: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MessageMapping(key_field="key").parts(item)


def test_mapping_of_an_envelope_takes_all_parts() -> None:
    mapping = MessageMapping(envelope=True, properties={"all": "x", "own": "y"})
    full = {
        "value": 1,
        "key": "k",
        "ordering_key": "o",
        "event_time": 5,
        "deliver_at": 6,
        "properties": {"own": "z"},
    }
    assert mapping.parts(full) == (1, "k", "o", 5, {"all": "x", "own": "z"}, 6)
    assert MessageMapping(envelope=True).parts({"value": None}) == (None, None, None, None, None, None)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("x", 'each message is a dict with "value"'),
        ({"key": "a"}, "with envelope=True"),
        ({"value": 1, "kee": 2}, "kee"),
        ({"value": 1, "key": 5}, "key must be a text or bytes, not int"),
        ({"value": 1, "key": "\udcff"}, "key cannot be written in UTF-8"),
        ({"value": 1, "ordering_key": b"5"}, "ordering_key must be a text, not bytes"),
        ({"value": 1, "ordering_key": "\udcff"}, "ordering_key cannot be written in UTF-8"),
        ({"value": 1, "properties": "abc"}, "properties must be a dict of texts, not str"),
        ({"value": 1, "properties": ["a"]}, "properties must be a dict of texts, not list"),
        ({"value": 1, "properties": {"n": 5}}, "the property 'n' must be a text, not int"),
        ({"value": 1, "properties": {"n": "\ud83d"}}, "the property 'n' cannot be written in UTF-8"),
        ({"value": 1, "properties": {5: "n"}}, "the name of a property must be a text, not int"),
        ({"value": 1, "event_time": -1}, "event_time must be from 0 to .* milliseconds since 1970, not -1"),
        ({"value": 1, "event_time": float("inf")}, "event_time must be a point in time"),
        ({"value": 1, "deliver_at": -1}, "deliver_at must be from 0 to"),
        ({"value": 1, "deliver_at": 2**63}, "deliver_at=9223372036854775808 is no time in milliseconds"),
    ],
)
def test_mapping_of_no_envelope_is_refused(item: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MessageMapping(envelope=True).parts(item)
