"""Publisher of the Arrow batches of one Spark task.

At least once: whole batches go through the client's producer, which routes messages and fills entries.

Deduplicated: the same rows have the same producer name, partition and sequence id in every repetition of the task, so
that the broker drops those it has. A producer name has the writer (query or job), the Spark partition and the number of
topic partitions; a sequence id is the batch id, shifted by 32 bits, plus the row's number among those of the same topic
partition. A repeated task with another number of topic partitions has other names: its rows may be stored twice, but
are never mistaken for others. Rows with a key go to the partition of its hash; rows without one go to the partitions in
turns of `BLOCK_ROWS`, counted per task, or all to one, which follows from the task's number, by SinglePartition.
Deduplication must be enabled for the topic, which is checked by the broker's answer after the first row.

Transactional: one transaction per task, committed after its last row is stored.

Rules: nothing is reported before its receipt; after a failure nothing more is sent. Blocks; for one thread.
"""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pulsar_native import (
    BulkSendError,
    Client,
    HashingScheme,
    MessageId,
    PartitionsRoutingMode,
    Producer,
    Transaction,
)
from pulsar_native.arrow.encode import null_property
from pulsar_native.exceptions import MessageTooBig, OperationNotSupported, ProducerBusy, PulsarException
from pulsar_native.schema import BytesSchema, Schema
from pulsar_native.topic import TopicName
from pulsar_native.wire.hashing import choose_partition
from pyspark_pulsar.clients import shared_client
from pyspark_pulsar.errors import WriteFailed
from pyspark_pulsar.write_columns import RecordEncoder, WriteColumns
from pyspark_pulsar.write_options import DEDUPLICATED, TRANSACTIONAL, WriteOptions

if TYPE_CHECKING:
    import pyarrow

BLOCK_ROWS = 1000
# Number of rows of one batch in one topic partition, so that batch id and row number make one sequence id.
_ROW_BITS = 32
# Limit of a repeated task's wait for its predecessor to be disconnected.
_BUSY_SECONDS = 60.0
_BUSY_PAUSE_SECONDS = 0.2
_MOST_HASHED = 100_000
# Topics with deduplication, by service URL: checked once per process.
_deduplicating: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True)
class Identity:
    """Writer for deduplication: a job or query, its Spark partition, and the batch."""

    name: str
    partition: int
    batch_id: int

    @property
    def first_sequence_id(self) -> int:
        """Sequence id of the first row in each topic partition.

        At least 2, so that `initial_sequence_id`, 1 below, is never 0, which means none to the client.
        """
        return (self.batch_id << _ROW_BITS) + 2


@dataclass(slots=True)
class Published:
    """Rows that a task has published to one topic."""

    rows: int = 0
    duplicates: int = 0
    first: str | None = None
    last: str | None = None


@dataclass(slots=True)
class _Rows:
    """Rows for one topic in the client's form, and their numbers in the task."""

    table: pyarrow.Table
    numbers: list[int] | range
    partition: int = -1

    def slice(self, start: int, count: int) -> _Rows:
        return _Rows(self.table.slice(start, count), self.numbers[start : start + count], self.partition)

    def filter(self, mask: Any) -> _Rows:
        kept = [number for number, keep in zip(self.numbers, mask.to_pylist(), strict=True) if keep]
        return _Rows(self.table.filter(mask), kept)


class Publisher:
    """Publish rows to their topics; a context manager that closes, or aborts, at its end."""

    def __init__(self, options: WriteOptions, columns: WriteColumns, identity: Identity | None = None) -> None:
        self._options = options
        self._columns = columns
        self._identity = identity
        self._encoder = RecordEncoder(columns) if columns.definition is not None else None
        self._held = ExitStack()
        self._client: Client | None = None
        self._transaction: Transaction | None = None
        self._senders: dict[str, Sender | DeduplicatedSender] = {}
        self._rows = 0
        self.published: dict[str, Published] = {}

    def publish(self, batch: pyarrow.RecordBatch) -> None:
        """Publish the rows of a batch and return after their receipts; raises `WriteFailed`."""
        base, self._rows = self._rows, self._rows + batch.num_rows
        self._check_text(batch, base)
        self._check_event_times(batch, base)
        for topic, rows in self._by_topic(batch, base):
            for part, ids in self._sent(topic, rows):
                _count(self.published.setdefault(topic, Published()), ids, len(part.numbers))

    def finish(self) -> None:
        """Commit the transaction if there is one; raises `WriteFailed`."""
        if self._transaction is not None:
            try:
                self._transaction.commit()
            except PulsarException as error:
                raise WriteFailed(
                    f"The transaction of this task could not be committed: none of its rows are visible, unless it was "
                    f"committed nevertheless: {error}",
                    retryable=error.retryable,
                ) from error
            self._transaction = None

    def __enter__(self) -> Publisher:
        self._client, _ = self._held.enter_context(shared_client(self._options))
        if self._options.delivery_guarantee == TRANSACTIONAL:
            self._transaction = self._client.new_transaction(self._options.transaction_timeout_ms / 1000)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After a failure, later errors must not replace it.
        quiet = contextlib.suppress(PulsarException) if kind is not None else contextlib.nullcontext()
        with self._held:
            if self._transaction is not None:
                with quiet:
                    self._transaction.abort()
            for sender in self._senders.values():
                with quiet:
                    sender.close()

    def _sender(self, topic: str) -> Sender | DeduplicatedSender:
        if topic in self._senders:
            return self._senders[topic]
        assert self._client is not None
        schema = self._encoder.schema if self._encoder is not None else BytesSchema()
        settings = self._options.producer_options()
        if self._options.delivery_guarantee == DEDUPLICATED:
            assert self._identity is not None
            known = (self._options.service_url, topic)
            self._senders[topic] = DeduplicatedSender(self._client, topic, schema, settings, self._identity, known)
        else:
            self._senders[topic] = Sender(self._client, topic, schema, settings, self._transaction)
        return self._senders[topic]

    def _sent(self, topic: str, rows: _Rows) -> Iterator[tuple[_Rows, Any]]:
        part = rows
        try:
            sender = self._sender(topic)
            for part in sender.parts(rows):
                yield part, sender.send(part)
        except BulkSendError as error:
            missing = [*error.unconfirmed, *error.not_stored]
            # Where all that was sent is stored, the first row behind it failed.
            first = min((each.start for each in missing), default=len(error.message_ids))
            number = part.numbers[min(first, len(part.numbers) - 1)]
            raise WriteFailed(
                f"Row {number} of this task, and rows after it, could not be published to {topic}: {error.__cause__}"
                f"{_advice(error.__cause__)}",
                topic=topic,
                retryable=error.retryable,
            ) from error
        except (WriteFailed, OperationNotSupported):
            raise
        except PulsarException as error:
            raise WriteFailed(
                f"Row {part.numbers[0]} of this task, and rows after it, could not be published to {topic}: "
                f"{type(error).__name__}: {error}{_advice(error)}",
                topic=topic,
                retryable=error.retryable,
            ) from error

    # --- rows to messages -------------------------------------------------------------------------------------------

    def _check_text(self, batch: pyarrow.RecordBatch, base: int) -> None:
        """Raise for text that is not UTF-8, which Spark's STRING may hold; a value that is no record is bytes."""
        columns = self._columns
        records = columns.value if self._encoder is not None else ()
        # The topic first, as the error of another column names it.
        for name in (columns.topic, columns.key, columns.properties, *records):
            row = None if name is None else _not_text(batch.column(name))
            if row is None:
                continue
            topic = None if name == columns.topic else self._topic_of(batch, row)
            other = ", or cast the column to BINARY, for a key of bytes" if name == columns.key else ""
            raise WriteFailed(
                f"Row {base + row} of this task{_to(topic)} has text that is not UTF-8 in column {name}: replace such "
                f"bytes, as with make_valid_utf8{other}",
                topic=topic,
            )

    def _check_event_times(self, batch: pyarrow.RecordBatch, base: int) -> None:
        """Raise for an event time before 1970, which no message has."""
        import pyarrow
        import pyarrow.compute as compute

        name = self._columns.event_time
        if name is None:
            return
        row = compute.index(compute.less(batch.column(name).cast(pyarrow.int64()), 0), True).as_py()
        if row >= 0:
            topic = self._topic_of(batch, row)
            raise WriteFailed(
                f"Row {base + row} of this task{_to(topic)} has an event time before 1970 in column {name}: give it "
                "one from 1970 on, or null",
                topic=topic,
            )

    def _topic_of(self, batch: pyarrow.RecordBatch, row: int) -> str | None:
        """Return the topic of a row, as its column or the option names it."""
        topic = None if self._columns.topic is None else batch.column(self._columns.topic)[row].as_py()
        return topic or self._options.topic

    def _by_topic(self, batch: pyarrow.RecordBatch, base: int) -> Iterator[tuple[str, _Rows]]:
        """Yield the topics in the order of their first rows, each with its rows in their order."""
        import pyarrow.compute as compute

        if not batch.num_rows:
            return
        rows = _Rows(self._table(batch, base), range(base, base + batch.num_rows))
        if self._columns.topic is None:
            assert self._options.topic is not None
            yield self._options.topic, rows
            return
        names = batch.column(self._columns.topic)
        if names.null_count:
            if self._options.topic is None:
                row = base + names.is_null().to_pylist().index(True)
                other = "" if self._columns.has_source_topic else ", or set option topic for such rows"
                raise WriteFailed(
                    f"Row {row} of this task has no topic: give it one in column {self._columns.topic}{other}"
                )
            names = names.fill_null(self._options.topic)
        for name in names.unique().to_pylist():
            yield self._topic(name, base, names), rows.filter(compute.equal(names, name))

    def _topic(self, name: str, base: int, names: pyarrow.Array) -> str:
        try:
            return TopicName.parse(name).full
        except PulsarException as error:
            row = base + names.to_pylist().index(name)
            raise WriteFailed(f"Row {row} of this task names a topic that cannot be: {error.message}") from error

    def _table(self, batch: pyarrow.RecordBatch, base: int) -> pyarrow.Table:
        """Return the batch with the client's columns: value, key, properties and event_time."""
        import pyarrow

        columns = self._columns
        found = {"value": self._values(batch, base)}
        if columns.key is not None:
            found["key"] = batch.column(columns.key)
        if columns.properties is not None:
            found["properties"] = batch.column(columns.properties)
            wrong = null_property(found["properties"])
            if wrong is not None:
                row, name = wrong
                raise WriteFailed(
                    f"Row {base + row} of this task has no value for the property {name!r} in column "
                    f"{columns.properties}: leave it out of the map, as with map_filter"
                )
        if columns.event_time is not None:
            found["event_time"] = batch.column(columns.event_time)
        return pyarrow.table(found)

    def _values(self, batch: pyarrow.RecordBatch, base: int) -> pyarrow.Array:
        import pyarrow

        columns, encoder = self._columns, self._encoder
        if encoder is None:
            return batch.column(columns.value[0])
        found = [_in_utc(batch.column(name)) for name in columns.value]
        values = pyarrow.RecordBatch.from_arrays(found, list(columns.value)) if columns.is_record else found[0]
        payloads: list[bytes | None] = []
        for number, record in enumerate(_records(values, base), base):
            try:
                payloads.append(encoder.encode(record))
            except PulsarException as error:
                raise WriteFailed(f"The value of row {number} of this task cannot be encoded: {error}") from error
        return pyarrow.array(payloads, pyarrow.large_binary())


def _to(topic: str | None) -> str:
    return "" if topic is None else f", to {topic},"


def _not_text(column: pyarrow.Array) -> int | None:
    """Return the first row with text that is not UTF-8, also in a STRUCT, ARRAY or MAP; None for none."""
    import pyarrow

    try:
        column.validate(full=True)
    except pyarrow.ArrowInvalid:
        for row in range(len(column)):
            # Its other checks are of no concern here.
            try:
                _in_utc(column.slice(row, 1)).to_pylist()
            except UnicodeDecodeError:
                return row
            except (OverflowError, ValueError):
                continue
    return None


def _in_utc(column: pyarrow.Array) -> pyarrow.Array:
    """Return a column with the same timestamps in UTC: Python does not know every time zone that Spark has."""
    kind = _utc_type(column.type)
    return column if kind == column.type else column.cast(kind)


def _utc_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    import pyarrow

    types = pyarrow.types
    if types.is_timestamp(kind) and kind.tz is not None:
        return pyarrow.timestamp(kind.unit, "UTC")
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_utc_type(field.type)) for field in kind])
    if types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_utc_type(kind.value_type)))
    if types.is_map(kind):
        return pyarrow.map_(kind.key_field, kind.item_field.with_type(_utc_type(kind.item_type)))
    return kind


def _records(values: pyarrow.RecordBatch | pyarrow.Array, base: int) -> list[Any]:
    try:
        return list(values.to_pylist())
    except (OverflowError, ValueError):
        for row in range(len(values)):
            try:
                values.slice(row, 1).to_pylist()
            except (OverflowError, ValueError) as error:
                raise WriteFailed(
                    f"The value of row {base + row} of this task cannot be encoded: {error}. Dates and timestamps must "
                    "be of the years 1 to 9999"
                ) from error
        raise


def _advice(error: BaseException | None) -> str:
    """Return the fix of an error by the options of a write, "" where the error says all."""
    if not isinstance(error, MessageTooBig):
        return ""
    return ". For chunks set pulsar.producer.chunkingEnabled=true and pulsar.producer.batchingEnabled=false"


def _count(told: Published, ids: Any, rows: int) -> None:
    known = [found for found in (ids.get(row) for row in (0, -1)) if found is not None] if rows else []
    duplicates = 0
    if any(found.ledger_id() < 0 for found in known):
        duplicates = sum(1 for row in range(rows) if _is_duplicate(ids.get(row)))
        known = [found for found in (ids.get(row) for row in range(rows)) if not _is_duplicate(found)]
    told.rows += rows - duplicates
    told.duplicates += duplicates
    if known:
        told.first = told.first or str(known[0])
        told.last = str(known[-1])


def _is_duplicate(message_id: MessageId | None) -> bool:
    return message_id is None or message_id.ledger_id() < 0


def _send(producer: Producer, rows: _Rows, transaction: Transaction | None = None) -> Any:
    names = rows.table.column_names
    return producer.send_table(
        rows.table,
        key="key" if "key" in names else None,
        properties="properties" if "properties" in names else (),
        event_time="event_time" if "event_time" in names else None,
        txn=transaction,
    )


class Sender:
    """Publisher of rows to one topic, at least once."""

    def __init__(
        self,
        client: Client,
        topic: str,
        schema: Schema[Any],
        settings: Mapping[str, Any],
        transaction: Transaction | None,
    ) -> None:
        self._producer = client.create_producer(topic, schema=schema, block_if_queue_full=True, **settings)
        self._transaction = transaction

    def parts(self, rows: _Rows) -> Iterable[_Rows]:
        """Return the rows to send, one part after the other."""
        return (rows,)

    def send(self, rows: _Rows) -> Any:
        """Publish rows and return their ids."""
        return _send(self._producer, rows, self._transaction)

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()


class DeduplicatedSender:
    """Publisher of rows to one topic under producer names and sequence ids that a repeated task has again."""

    def __init__(
        self,
        client: Client,
        topic: str,
        schema: Schema[Any],
        settings: Mapping[str, Any],
        identity: Identity,
        known: tuple[str, str],
    ) -> None:
        self._client = client
        self._topic = topic
        self._schema = schema
        self._settings = {**settings, "schema": schema, "block_if_queue_full": True}
        self._scheme = self._settings.get("hashing_scheme", HashingScheme.JavaStringHash)
        self._is_single = settings.get("message_routing_mode") == PartitionsRoutingMode.UseSinglePartition
        self._identity = identity
        self._known = known
        self._partitions = client.get_partition_count(topic, auto_create=True)
        self._name = f"{identity.name}-{identity.partition}-of-{self._partitions}"
        self._unkeyed_rows = 0
        self._hashed: dict[str | bytes, int] = {}
        self._lanes: dict[int, _Lane] = {}

    def parts(self, rows: _Rows) -> Iterator[_Rows]:
        """Return the rows by topic partition; the first one alone until deduplication is confirmed."""
        by_partition: dict[int, list[int]] = {}
        for at, partition in enumerate(self._route(rows)):
            by_partition.setdefault(partition, []).append(at)
        for partition, places in by_partition.items():
            part = _Rows(rows.table.take(places), [rows.numbers[at] for at in places], partition)
            if self._known not in _deduplicating:
                yield part.slice(0, 1)
                part = part.slice(1, len(places) - 1)
            if part.numbers:
                yield part

    def send(self, rows: _Rows) -> Any:
        """Publish rows of one part and return their ids; (-1, -1) for duplicates."""
        lane = self._lanes.get(rows.partition)
        if lane is None:
            lane = self._lanes[rows.partition] = self._open(rows.partition, 0)
        lane.rows += len(rows.numbers)
        ids = _send(lane.producer, rows)
        if self._known not in _deduplicating:
            self._check_deduplication(rows.partition, lane)
        return ids

    def close(self) -> None:
        """Close the producers."""
        for lane in self._lanes.values():
            lane.producer.close()

    def _route(self, rows: _Rows) -> list[int]:
        """Return the topic partition of each row, 0 for a topic without partitions."""
        count = self._partitions
        if count == 0:
            return [0] * len(rows.numbers)
        keys = rows.table.column("key").to_pylist() if "key" in rows.table.column_names else [None] * len(rows.numbers)
        found = []
        for key in keys:
            if key is None:
                block = 0 if self._is_single else self._unkeyed_rows // BLOCK_ROWS
                found.append((self._identity.partition + block) % count)
                self._unkeyed_rows += 1
            else:
                found.append(self._hash(key))
        return found

    def _hash(self, key: str | bytes) -> int:
        chosen = self._hashed.get(key)
        if chosen is None:
            text = key if isinstance(key, str) else base64.b64encode(key).decode()
            chosen = choose_partition(text, self._scheme, self._partitions)
            if len(self._hashed) < _MOST_HASHED:
                self._hashed[key] = chosen
        return chosen

    def _place(self, partition: int) -> str:
        return TopicName.parse(self._topic).with_partition(partition).full if self._partitions else self._topic

    def _open(self, partition: int, rows: int) -> _Lane:
        place, first = self._place(partition), self._identity.first_sequence_id
        stored = self._stored(place)
        if stored >= first + (1 << _ROW_BITS):
            raise OperationNotSupported(
                f"{self._name} has already written batch {stored >> _ROW_BITS} to {place}, so rows of batch "
                f"{self._identity.batch_id} would be dropped as duplicates: give a greater batchId, or another "
                "pulsar.producer.producerName",
                topic=place,
            )
        if stored >= 0:
            _deduplicating.add(self._known)
        producer = self._create(place, initial_sequence_id=first + rows - 1)
        return _Lane(producer, rows)

    def _check_deduplication(self, partition: int, lane: _Lane) -> None:
        """Continue with another producer after the broker has confirmed the first one's sequence ids."""
        del self._lanes[partition]
        lane.producer.close()
        if self._stored(self._place(partition)) < 0:
            raise OperationNotSupported(
                "Deduplication is off at the topic, so repeated rows would not be recognised: switch it on "
                "(pulsar-admin namespaces set-deduplication --enable), or set deliveryGuarantee=at-least-once. The "
                "first row of this task was published",
                topic=self._topic,
            )
        self._lanes[partition] = self._open(partition, lane.rows)

    def _stored(self, place: str) -> int:
        """Return the broker's highest sequence id of this name, -1 for none."""
        with self._create(place) as producer:
            return producer.last_sequence_id()

    def _create(self, place: str, **more: Any) -> Producer:
        """Return a producer of the name after the repeated task's predecessor was disconnected."""
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                return self._client.create_producer(place, producer_name=self._name, **self._settings, **more)
            except ProducerBusy as error:
                if time.monotonic() > deadline:
                    raise ProducerBusy(
                        f"{self._name} has been connected by another task for {_BUSY_SECONDS:.0f} s: set "
                        "spark.speculation=false, and give each job a producerName of its own",
                        topic=place,
                    ) from error
                time.sleep(_BUSY_PAUSE_SECONDS)


@dataclass(slots=True)
class _Lane:
    """Producer of one topic partition, and its number of rows."""

    producer: Producer
    rows: int
