"""Rows of tables as messages: pandas and polars DataFrames, Arrow tables, batches and streams, Parquet files.

May not import pandas, polars or pyarrow before they are needed. Rules: a row becomes a dict by column name, and a
missing value (null, NaN or NaT of pandas) None. Rows are created a few thousand at a time, so that a file or stream
larger than the memory can be read. A file is opened anew for each reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from pulsar_native.jobs import validation
from pulsar_native.jobs.failures import JobRefused
from pulsar_native.jobs.output import PathFactory, local_path

_ROWS = 8192
# Signs of a table without either of the two interfaces supported here.
_TABLE_LIKE = ("columns", "column_names", "dtypes", "to_pandas", "to_arrow", "__dataframe__", "iterrows")


def reader_of(given: object) -> tuple[Callable[[], Iterator[dict[str, Any]]], bool] | None:
    """Return the reader of a table's rows, and True if it can be called again; None if it is not a table.

    Raises ValueError for an unsupported table, and for two columns of one name.
    """
    if _is_pandas(given):
        if not hasattr(given, "columns"):
            # A Series, which has Arrow's stream interface since pandas 3 only.
            _refuse_column(given)
        return (lambda: _of_pandas(given)), True
    made = _arrow(given)
    if made is not None:
        return made
    if not isinstance(given, type) and any(hasattr(given, name) for name in _TABLE_LIKE):
        validation.refuse(
            f"messages is a {_name(given)}, a table of a kind that cannot be read: pass its rows as a list of dicts, "
            "or a DataFrame of pandas or polars, or an Arrow table"
        )
    return None


def _refuse_column(given: object) -> NoReturn:
    validation.refuse(f"messages is a {_name(given)}, one column without a name: pass its .tolist(), or a table")


def _name(given: object) -> str:
    return f"{type(given).__module__.partition('.')[0]} {type(given).__name__}"


def _unique(names: Iterable[object]) -> list[str]:
    found = [str(name) for name in names]
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        validation.refuse(f"the table has several columns named {twice[0]!r}: rename all but one")
    return found


# ---- pandas ----------------------------------------------------------------------------------------------------------


def _is_pandas(given: Any) -> bool:
    return type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "iloc")


def _of_pandas(frame: Any) -> Iterator[dict[str, Any]]:
    names = _unique(frame.columns)
    for start in range(0, len(frame), _ROWS):
        piece = frame.iloc[start : start + _ROWS]
        columns = []
        for index in range(len(names)):
            column = piece.iloc[:, index]
            present = column.notna().tolist()
            values = column.astype(object).tolist()
            columns.append([value if there else None for value, there in zip(values, present, strict=True)])
        for row in zip(*columns, strict=True):
            yield dict(zip(names, row, strict=True))


# ---- Arrow -----------------------------------------------------------------------------------------------------------


def _arrow(given: Any) -> tuple[Callable[[], Iterator[dict[str, Any]]], bool] | None:
    """Return the reader of Arrow data: pyarrow's types, and the stream interface of others."""
    if isinstance(given, type) or not (hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")):
        return None
    from pulsar_native.arrow.package import import_pyarrow

    pa = import_pyarrow(f"A {_name(given)}")
    if isinstance(given, pa.Array | pa.ChunkedArray):
        validation.refuse("messages is one Arrow column: pass column.to_pylist(), or a table with named columns")
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if isinstance(given, pa.Table):
        _unique(given.column_names)
        return (lambda: _of_batches(pa, given.to_batches(max_chunksize=_ROWS))), True
    if isinstance(given, pa.RecordBatchReader):
        _unique(given.schema.names)
        return (lambda: _of_batches(pa, given)), False
    if not hasattr(given, "__arrow_c_stream__"):
        given = pa.Table.from_batches([pa.record_batch(given)])
        return (lambda: _of_batches(pa, given.to_batches(max_chunksize=_ROWS))), True
    try:
        stream = pa.RecordBatchReader.from_stream(given)
    except pa.ArrowInvalid:
        _refuse_column(given)
    _unique(stream.schema.names)
    if hasattr(given, "__len__"):
        # A DataFrame, which returns a stream of its rows at each call.
        return (lambda: _of_batches(pa, pa.RecordBatchReader.from_stream(given))), True
    return (lambda: _of_batches(pa, stream)), False


def _of_batches(arrow: Any, batches: Iterable[Any]) -> Iterator[dict[str, Any]]:
    from pulsar_native.arrow.python_values import to_rows

    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            yield from to_rows(arrow, batch.slice(start, _ROWS))


def read_parquet(path: str, open_path: PathFactory = local_path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file, a few thousand of one row group at a time. Raises ValueError for another file.

    Blocks for reading; may raise OSError. Raises `JobRefused` without pyarrow.
    """
    from pulsar_native.arrow.package import import_pyarrow

    pa = import_pyarrow("Parquet", JobRefused)
    from pyarrow import parquet

    with open_path(path).open("rb") as stream:
        try:
            with parquet.ParquetFile(stream) as file:
                _unique(file.schema_arrow.names)
                yield from _of_batches(pa, file.iter_batches(batch_size=_ROWS))
        except pa.ArrowInvalid as error:
            validation.refuse(f"{path} is not a Parquet file that can be read: {error}")
