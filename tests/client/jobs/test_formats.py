"""Output formats: chunks in the order of ids, row groups, entries that earlier batches have in part."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pulsar_native import EntryRange, arrow_schema
from pulsar_native.jobs import formats
from pulsar_native.jobs.batch import Batch, BatchLimits, CutEntries
from pulsar_native.jobs.failures import JobRefused
from pulsar_native.jobs.formats import JsonLinesWriter, ParquetWriter, SinkWriter, format_of
from pulsar_native.jobs.id_ranges import ids_of
from pulsar_native.jobs.message_handling import ErrorPolicy, MessageFailed, MessageHandler
from pulsar_native.jobs.output import AtomicFile
from pulsar_native.message import Message
from support.jobs import PUBLISHED, TOPIC, cut_note, received


def new_batch(*notes: Any, **limits: Any) -> Batch:
    """Return an empty batch."""
    given = {"messages": None, "bytes": None, "seconds": None, "inline_bytes": None, **limits}
    return Batch(BatchLimits(**given), CutEntries(notes))


@pytest.fixture
def output(tmp_path: Path) -> Iterator[AtomicFile]:
    file = AtomicFile(str(tmp_path / "out"))
    file.open()
    yield file
    file.discard()


def content(output: AtomicFile, folder: Path) -> Path:
    """Complete the output and return its path."""
    output.finish()
    output.commit()
    return folder / "out"


@pytest.mark.parametrize(
    ("path", "chosen", "found"),
    [
        (None, None, "jsonl"),
        ("a.jsonl", None, "jsonl"),
        ("a.PARQUET", None, "parquet"),
        ("a.parquet.gz", None, "jsonl"),
        ("a.parquet", "JSONL", "jsonl"),
        ("a", "parquet", "parquet"),
    ],
)
def test_format_chosen_or_by_suffix(path: str | None, chosen: str | None, found: str) -> None:
    assert format_of(path, chosen) == found


def test_format_unknown_raises() -> None:
    with pytest.raises(ValueError, match=r"format='parket' is not known; did you mean 'parquet'"):
        format_of("a", "parket")


def test_format_of_unrendered_path_is_jsonl() -> None:
    assert format_of(object(), None) == "jsonl"  # type: ignore[arg-type]


# ---- lines -----------------------------------------------------------------------------------------------------------


class Flow:
    """A receiver of given messages, then of none."""

    def __init__(self, *messages: Message) -> None:
        self._left = list(messages)
        self.waited: list[float] = []

    def next(self, millis: float) -> Message | None:
        self.waited.append(millis)
        return self._left.pop(0) if self._left else None


def lines(output: AtomicFile, **options: Any) -> JsonLinesWriter:
    """Return a writer of text lines."""
    return JsonLinesWriter(output, MessageHandler("text", ErrorPolicy("fail", None, None), **options))


def test_jsonl_chunk_in_order_of_ids(output: AtomicFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_CHUNK_LINES", 3)
    other = "persistent://public/default/s"
    flow, batch, writer = (
        Flow(*(received(entry=n) for n in (5, 2)), received(topic=other, entry=9), received(entry=1)),
        new_batch(),
        lines(output),
    )
    while writer.take(flow, batch, 50):  # type: ignore[arg-type]
        pass
    writer.finish(batch, lambda: None)
    rows = [json.loads(line) for line in content(output, tmp_path).read_text().splitlines()]
    assert [(row["topic"], row["message_id"].split(":")[1]) for row in rows] == [
        (other, "9"), (TOPIC, "2"), (TOPIC, "5"), (TOPIC, "1"),
    ]  # fmt: skip
    assert batch.chunks() == [{other: [[7, 9, 9]], TOPIC: [[7, 2, 2], [7, 5, 5]]}, {TOPIC: [[7, 1, 1]]}]


def test_jsonl_chunk_ends_by_bytes(output: AtomicFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_CHUNK_BYTES", 1)
    batch, writer = new_batch(inline_bytes=10_000), lines(output)
    for entry in range(2):
        writer.take(Flow(received(entry=entry)), batch, 50)  # type: ignore[arg-type]
    assert len(batch.chunks()) == 2 and [each["value"] for each in batch.messages] == ["x", "x"]


def test_jsonl_running_calls_are_awaited_and_counted(output: AtomicFile, tmp_path: Path) -> None:
    gates: list[asyncio.Event] = []

    async def call(message: Message) -> None:
        gates.append(asyncio.Event())
        await gates[-1].wait()

    batch, writer = new_batch(), lines(output, function=call, concurrency=1)
    flow = Flow(received(entry=0), received(entry=1))
    assert writer.take(flow, batch, 50)  # type: ignore[arg-type]
    assert writer.take(flow, batch, 0)  # type: ignore[arg-type]  # The call runs: no message is taken.
    assert flow.waited == [50] and batch.count == 0
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        gates[0].set()

    writer.finish(batch, check)
    assert checks and batch.count == 1
    assert len(content(output, tmp_path).read_text().splitlines()) == 1
    writer.discard()


# ---- a sink ----------------------------------------------------------------------------------------------------------


class Sink:
    """A sink that refuses one value."""

    def __init__(self) -> None:
        self.written: list[list[str]] = []

    def row(self, message: Message, record: Mapping[str, Any]) -> str:
        if record["value"] == "bad":
            raise ValueError("there is no column for it")
        return str(record["value"])

    def write(self, rows: Sequence[Any], reject: Callable[[int, Exception], None]) -> None:
        self.written.append([row for row in rows if row != "rejected"])
        for index, row in enumerate(rows):
            if row == "rejected":
                reject(index, LookupError("the table does not take it"))


def sink_writer(sink: Sink, rows: int, policy: ErrorPolicy) -> SinkWriter:
    """Return a writer into a sink."""
    return SinkWriter(sink, rows, MessageHandler("text", policy))


def test_sink_gets_rows_in_order_of_reception() -> None:
    sink, batch = Sink(), new_batch()
    writer = sink_writer(sink, 2, ErrorPolicy("fail", None, None))
    flow = Flow(*(received(b"%d" % n, entry=n) for n in (5, 2, 9)))
    while writer.take(flow, batch, 50):  # type: ignore[arg-type]
        pass
    assert sink.written == [["5", "2"]]
    writer.finish(batch, lambda: None)
    assert sink.written == [["5", "2"], ["9"]] and batch.count == 3
    # One chunk: the rows are never written again.
    assert len(batch.chunks()) == 1


def test_sink_refused_row_is_a_failed_message() -> None:
    sink, batch, policy = Sink(), new_batch(), ErrorPolicy("skip", None, None)
    writer = sink_writer(sink, 10, policy)
    flow = Flow(received(b"bad"), received(b"good", entry=1))
    while writer.take(flow, batch, 50):  # type: ignore[arg-type]
        pass
    writer.finish(batch, lambda: None)
    assert sink.written == [["good"]] and policy.manifest()["skipped"] == 1


def test_sink_refused_row_ends_a_strict_job() -> None:
    batch = new_batch()
    writer = sink_writer(Sink(), 10, ErrorPolicy("fail", None, None))
    with pytest.raises(MessageFailed, match="there is no column for it"):
        writer.take(Flow(received(b"bad")), batch, 50)  # type: ignore[arg-type]
    assert batch.count == 0


def test_sink_rejected_row_is_a_failed_message() -> None:
    sink, batch, policy = Sink(), new_batch(), ErrorPolicy("skip", None, None)
    writer = sink_writer(sink, 2, policy)
    flow = Flow(*(received(text, entry=n) for n, text in enumerate((b"1", b"rejected", b"2"))))
    while writer.take(flow, batch, 50):  # type: ignore[arg-type]
        pass
    writer.finish(batch, lambda: None)
    found = policy.manifest()
    assert (sink.written, batch.count, found["count"], found["skipped"]) == ([["1"], ["2"]], 2, 1, 1)
    (failed,) = found["messages"]
    assert failed["error"] == "LookupError: the table does not take it"
    # Its id is acknowledged, but none of the output's.
    (chunk,), others = batch.chunks(), batch.others()
    assert (len(list(ids_of(chunk))), [str(each) for _, each in ids_of(others)]) == (2, [failed["id"]])


def test_sink_rejected_row_ends_a_strict_job() -> None:
    batch = new_batch()
    writer = sink_writer(Sink(), 1, ErrorPolicy("fail", None, None))
    with pytest.raises(MessageFailed, match="LookupError: the table does not take it"):
        writer.take(Flow(received(b"rejected")), batch, 50)  # type: ignore[arg-type]
    assert batch.count == 0


# ---- rows ------------------------------------------------------------------------------------------------------------


def rows_of(count: int, first: int = 0) -> pa.RecordBatch:
    """Return rows with the client's columns; `value` counts."""
    schema = arrow_schema()
    millis = {"__publishTime": PUBLISHED, "__brokerPublishTime": PUBLISHED}
    columns = []
    for field in schema:
        if field.name == "value":
            columns.append(pa.array([b"%d" % n for n in range(first, first + count)], field.type))
        elif field.name in millis:
            columns.append(
                pa.array([millis[field.name]] * count, pa.int64()).cast(pa.timestamp("ms")).cast(field.type, safe=False)
            )
        else:
            columns.append(pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))


class Rows:
    """A receiver of given rows."""

    def __init__(self, *parts: tuple[EntryRange, pa.RecordBatch]) -> None:
        self._parts = list(parts)
        self.rooms: list[tuple[int, int]] = []

    def next_rows(self, millis: float, max_rows: int, max_bytes: int) -> list[tuple[EntryRange, pa.RecordBatch]]:
        self.rooms.append((max_rows, max_bytes))
        return [self._parts.pop(0)] if self._parts else []


def written(output: AtomicFile, folder: Path, flow: Rows, batch: Batch) -> parquet.ParquetFile:
    """Write all rows and return the file."""
    writer = ParquetWriter(output)
    while batch.stop_reason is None and writer.take(flow, batch, 50):  # type: ignore[arg-type]
        pass
    writer.finish(batch, lambda: None)
    return parquet.ParquetFile(content(output, folder))


def test_parquet_groups_sorted_by_ids(output: AtomicFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_GROUP_ROWS", 4)
    batch = new_batch()
    flow = Rows(
        (EntryRange(TOPIC, -1, 7, 4, 5), rows_of(2, 4)),
        (EntryRange(TOPIC, -1, 7, 0, 1), rows_of(2, 0)),
        (EntryRange(TOPIC, -1, 6, 9, 9, 3), rows_of(3, 90)),
    )
    file = written(output, tmp_path, flow, batch)
    assert file.schema_arrow.names == arrow_schema().names
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [4, 3]
    assert file.read(["value"])["value"].to_pylist() == [b"0", b"1", b"4", b"5", b"90", b"91", b"92"]
    assert batch.chunks() == [{TOPIC: [[7, 0, 1], [7, 4, 5]]}, {TOPIC: [[6, 9, 9]]}]
    assert (batch.count, batch.bytes) == (7, 10)


def test_parquet_without_rows_is_a_file(output: AtomicFile, tmp_path: Path) -> None:
    file = written(output, tmp_path, Rows(), new_batch())
    assert file.metadata.num_rows == 0 and file.schema_arrow.names == arrow_schema().names


def test_parquet_rows_beyond_limit_are_left(output: AtomicFile, tmp_path: Path) -> None:
    batch = new_batch(bytes=3)
    flow = Rows((EntryRange(TOPIC, -1, 7, 0, 1), rows_of(2)), (EntryRange(TOPIC, -1, 7, 2, 3), rows_of(2, 2)))
    file = written(output, tmp_path, flow, batch)
    assert (file.metadata.num_rows, batch.count, batch.stop_reason) == (2, 2, "max_bytes")
    assert flow.rooms == [(20_000, 3), (20_000, 1)]


@pytest.mark.parametrize(
    ("indexes", "kept"),
    [(None, [b"1", b"3", b"4"]), (0b01111, [b"1", b"3"]), (0b00101, []), (0b11010, [b"1", b"3", b"4"])],
)
def test_parquet_leaves_out_rows_of_earlier_batches(
    indexes: int | None, kept: list[bytes], output: AtomicFile, tmp_path: Path
) -> None:
    """Messages 0 and 2 of the batch are in an earlier one."""
    batch = new_batch(cut_note({TOPIC: [[7, 3, "5", 5, PUBLISHED]]}, marks={TOPIC: [7, 2]}))
    present = [index for index in range(5) if indexes is None or indexes >> index & 1]
    rows = rows_of(5).take(pa.array(present))
    file = written(output, tmp_path, Rows((EntryRange(TOPIC, -1, 7, 3, 3, 5, indexes), rows)), batch)
    assert file.read(["value"])["value"].to_pylist() == kept
    known = [index for index in present if index in (0, 2)]
    found = [index for each in batch.others().get(TOPIC, []) for index in range(each[2], each[3] + 1)]
    assert found == known and batch.count == len(kept)


def test_parquet_rows_after_a_reset_are_complete(output: AtomicFile, tmp_path: Path) -> None:
    """Entry 2 was acknowledged when entry 3 was cut."""
    batch = new_batch(cut_note({TOPIC: [[7, 3, "5", 5, PUBLISHED]]}, marks={TOPIC: [7, 2]}))
    flow = Rows((EntryRange(TOPIC, -1, 7, 2, 3, 5), rows_of(10)))
    assert written(output, tmp_path, flow, batch).metadata.num_rows == 10 and batch.others() == {}


def test_parquet_writer_without_pyarrow_is_refused(output: AtomicFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(JobRefused, match=r"^Parquet needs .*'pulsar-native\[arrow\]'"):
        ParquetWriter(output)


def test_parquet_discard_without_a_file_or_twice(output: AtomicFile) -> None:
    writer = ParquetWriter(output)
    writer.discard()
    writer.write_rows([rows_of(1)])
    writer.discard()
    writer.discard()
