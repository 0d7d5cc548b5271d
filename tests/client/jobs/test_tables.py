"""Rows of tables: dicts by column name, read in pieces, again where possible; other tables refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pulsar_native import InvalidConfiguration
from pulsar_native.jobs import tables
from pulsar_native.jobs.failures import JobRefused
from pulsar_native.jobs.sources import Source

ROWS = [{"n": n, "text": None if n % 3 == 0 else f"t{n}"} for n in range(100)]
TABLE = pa.Table.from_pylist(ROWS)


class Stream:
    """Arrow data of another library, by the stream interface."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._data.__arrow_c_stream__(requested_schema)


class Sized(Stream):
    """The same with a length, as data frames have it."""

    def __len__(self) -> int:
        return len(self._data)


class Struct:
    """One batch of another library, by the array interface."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return TABLE.combine_chunks().to_batches()[0].__arrow_c_array__(requested_schema)


def rows_of(given: object) -> tuple[list[list[dict[str, Any]]], bool]:
    """Return the rows, read as often as possible, and whether that is twice."""
    made = tables.reader_of(given)
    assert made is not None
    read, again = made
    return [list(read()) for _ in range(1 + again)], again


@pytest.mark.parametrize(
    ("given", "again"),
    [
        (TABLE, True),
        (TABLE.combine_chunks().to_batches()[0], True),
        (Sized(TABLE), True),
        (Struct(), True),
        (TABLE.to_reader(7), False),
        (Stream(TABLE), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_reader_of_arrow_data(given: object, again: bool) -> None:
    assert rows_of(given) == ([ROWS] * (1 + again), again)


@pytest.mark.parametrize("given", [[1], "text", {"columns": 1}, 5, None, pa.Table, Stream])
def test_reader_of_no_table_is_none(given: object) -> None:
    assert tables.reader_of(given) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pa.chunked_array([[1]]), r"one Arrow column: pass column\.to_pylist"),
        (Sized(pa.chunked_array([[1]])), r"messages is a .* Sized, one column without a name: pass its \.tolist"),
        (
            type("Frame", (), {"__module__": "vaex.frame", "dtypes": ()})(),
            "messages is a vaex Frame, a table of a kind",
        ),
        (
            # Of pandas 2, without Arrow's stream interface.
            type("Series", (), {"__module__": "pandas.core.series", "iloc": (), "dtypes": ()})(),
            r"messages is a pandas Series, one column without a name: pass its \.tolist",
        ),
    ],
    ids=["array", "series", "frame", "series of pandas 2"],
)
def test_reader_of_other_tables_raises(given: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tables.reader_of(given)


def test_reader_of_frame_with_a_name_twice_raises() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    for given in (twice, twice.to_reader(), Sized(twice)):
        with pytest.raises(ValueError, match="several columns named 'a': rename all but one"):
            tables.reader_of(given)


class Column:
    """One column of a pandas frame, as far as it is used."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def notna(self) -> Column:
        return Column([value is not None and value == value for value in self._values])

    def astype(self, kind: type) -> Column:
        assert kind is object
        return self

    def tolist(self) -> list[Any]:
        return self._values


class Frame:
    """A pandas frame, as far as it is used; `iloc` is the frame itself."""

    __module__ = "pandas.core.frame"

    def __init__(self, columns: dict[Any, list[Any]]) -> None:
        self._columns = columns
        self.columns = list(columns)
        self.pieces: list[int] = []

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    @property
    def iloc(self) -> Frame:
        return self

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            piece = Frame({name: values[item] for name, values in self._columns.items()})
            self.pieces.append(len(piece))
            return piece
        assert item[0] == slice(None)
        return Column(self._columns[self.columns[item[1]]])


def test_reader_of_pandas_missing_values_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_ROWS", 2)
    frame = Frame({"a": [1, float("nan"), 3], 5: ["x", None, "z"]})
    rows = [{"a": 1, "5": "x"}, {"a": None, "5": None}, {"a": 3, "5": "z"}]
    assert rows_of(frame) == ([rows, rows], True)
    assert frame.pieces == [2, 1] * 2


def test_read_parquet_opens_anew_each_time(tmp_path: Path) -> None:
    path = str(tmp_path / "rows")
    parquet.write_table(TABLE, path, row_group_size=30)
    assert list(tables.read_parquet(path)) == ROWS == list(tables.read_parquet(path))
    opened: list[str] = []

    def open_path(text: str) -> Path:
        opened.append(text)
        return Path(path)

    rows: Iterator[Any] = tables.read_parquet("s3://a/rows", open_path)
    assert next(rows) == ROWS[0] and opened == ["s3://a/rows"]


def test_tables_without_pyarrow_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, path = Stream(TABLE), str(tmp_path / "rows.parquet")
    parquet.write_table(TABLE, path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidConfiguration, match=r"^A \w+ Stream needs .*'pulsar-native\[arrow\]'"):
        Source.of(data)
    with pytest.raises(JobRefused, match=r"^Parquet needs .*'pulsar-native\[arrow\]'"):
        list(Source.of_file(path, None))


def test_tables_rows_are_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_ROWS", 7)
    assert list(Source.of(pa.Table.from_pylist(ROWS))) == ROWS


def test_source_of_table_with_one_name_twice_is_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(ValueError, match="several columns named 'a'"):
        Source.of(table)


def test_tables_import_nothing_for_a_list() -> None:
    import subprocess

    script = (
        "import sys; from pulsar_native.jobs.sources import Source; list(Source.of([1]));"
        "assert not {'pyarrow', 'pandas', 'polars'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)
