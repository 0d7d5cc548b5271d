"""Messages as rows of a table, and the record of their batch in the same database transaction.

Rules: rows and record are committed together, before anything is acknowledged, and by nobody but `SqlBatchState.set`.
A table of the database, the state table, has one record per batch; it decides whether a batch is stored. With claims
only the latest try of a subscription can commit. Works over any DB-API 2.0 connection without autocommit; one thread.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pulsar_native.jobs import validation
from pulsar_native.jobs.batch_output import ACKNOWLEDGED, CONSUMED, OutputTaken
from pulsar_native.jobs.failures import JobFailed
from pulsar_native.jobs.sql_rows import Savepoints, insert_many, interruption_behind, is_row_error, row_values

if TYPE_CHECKING:
    from pulsar_native import Message

METADATA = (
    "__key",
    "__topic",
    "__messageId",
    "__publishTime",
    "__eventTime",
    "__producerName",
    "__sequenceId",
    "__messageProperties",
    "__value",
)
"""Names of what a message has besides the fields of its value, as the columns of the Parquet output."""
_PROPERTY = "__messageProperties."
_CONTENT = 2000
_CLAIM = "claim"
_TABLE = re.compile(r"\w+(\.\w+)*")


class SqlInsertFailed(JobFailed):
    """Raised when rows cannot be inserted; nothing of the batch is committed or acknowledged."""


class SqlRowRejected(JobFailed):
    """Cause of a failed message whose row the database, or its driver, rejects because of the row's values."""


class StateTableFailed(JobFailed):
    """Raised when the state table can be neither used nor made."""


# ---- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowMapping:
    """Mapping of a message to a row: columns, and where each takes its value.

    A source is a field of the value ("city", "address.city" for a field of a field), one of `METADATA`, or
    "__messageProperties.NAME". With `decodes_values` fields keep their types (bytes, times, decimals), else they are
    those of JSON.
    """

    columns: Mapping[str, str]
    allow_missing: bool = False
    decodes_values: bool = True

    @staticmethod
    def of(given: object, *, allow_missing: bool = False, decodes_values: bool = True) -> RowMapping:
        """Return the mapping of a list of names, or of a dict of column to source; raises ValueError."""
        if isinstance(given, Sequence) and not isinstance(given, str):
            given = {name: name for name in given}
        if not isinstance(given, Mapping) or not given:
            validation.refuse("columns must be a list of column names, or a dict of column name to source")
        for column, source in given.items():
            validation.text("a column", column)
            validation.text(f"the source of the column {column!r}", source)
            if source.startswith("__") and source not in METADATA and not source.startswith(_PROPERTY):
                validation.refuse(
                    f"the column {column!r} has no source {source!r}; {validation.nearest(source, METADATA)}"
                )
        return RowMapping(dict(given), allow_missing, decodes_values)

    def row(self, message: Message, record: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the row of a message and its record; raises ValueError for a field that is missing."""
        value = record["value"]
        if record["encoding"] == "base64":
            value = message.data()
        elif self.decodes_values and record["encoding"] == "json":
            value = message.value()
        return tuple(self._cell(column, message, record, value) for column in self.columns)

    def _cell(self, column: str, message: Message, record: Mapping[str, Any], value: Any) -> Any:
        source = self.columns[column]
        if source.startswith("__"):
            if source == "__value" and self.decodes_values and isinstance(value, bytes):
                # Other payloads are stored as text, and could be the text that stands for these bytes.
                validation.refuse(
                    f"the column {column!r} takes the value as text, and this payload is not UTF-8: decode='bytes' "
                    "stores all payloads as bytes, in a column of bytes"
                )
            return _metadata(source, message, record, value)
        if not isinstance(value, Mapping):
            kind = "null" if value is None else "text" if isinstance(value, str) else type(value).__name__
            hint = ". decode='json' reads JSON that was published without a schema" if isinstance(value, str) else ""
            validation.refuse(f"the field {source!r} is taken from an object, and the value is {kind}{hint}")
        if source in value:
            return value[source]
        found: Any = value
        for name in source.split("."):
            if not isinstance(found, Mapping) or name not in found:
                return self._missing(source, value)
            found = found[name]
        return found

    def _missing(self, source: str, value: Mapping[str, Any]) -> None:
        if not self.allow_missing:
            validation.refuse(
                f"the value has no field {source!r}; {validation.nearest(source, [str(name) for name in value])}. "
                "allow_missing=True makes it NULL"
            )


def _metadata(source: str, message: Message, record: Mapping[str, Any], value: Any) -> Any:
    if source.startswith(_PROPERTY):
        return message.properties().get(source.removeprefix(_PROPERTY))
    times = {"__publishTime": message.publish_timestamp, "__eventTime": message.event_timestamp}
    if source in times:
        millis = times[source]()
        return datetime.fromtimestamp(millis / 1000, UTC) if millis else None
    names = {"__messageId": "message_id", "__producerName": "producer", "__sequenceId": "sequence_id"}
    if source == "__messageProperties":
        return json.dumps(record["properties"], ensure_ascii=False)
    return value if source == "__value" else record[names.get(source, source.removeprefix("__"))]


class SqlSink:
    """Inserts rows into a table within the open transaction; `write` blocks for the database.

    Where the database has savepoints, rejected rows are found by halves: the others are inserted, in their order.
    """

    def __init__(
        self,
        connection: Any,
        table: str,
        mapping: RowMapping,
        statement: Callable[[Sequence[Any]], str],
        bind: Callable[[Any], Any],
    ) -> None:
        """Set the table; `statement` returns the insert statement for a row, `bind` the driver's form of a value."""
        self._connection = connection
        self._table = table
        self._mapping = mapping
        self._statement = statement
        self._bind = bind
        self._savepoints = Savepoints(connection)
        # Number of rows offered before those that are being written.
        self._before = 0
        # Number of rows inserted.
        self.rows = 0

    def row(self, message: Message, record: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the row of a message; raises ValueError for a message that has none."""
        return tuple(self._cell(value) for value in self._mapping.row(message, record))

    def _cell(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return value
        if isinstance(value, Mapping | list | tuple | set):
            from pulsar_native.jobs.json_values import json_safe

            return json.dumps(json_safe(value), ensure_ascii=False)
        return self._bind(value)

    def write(self, rows: Sequence[tuple[Any, ...]], reject: Callable[[int, Exception], None]) -> None:
        """Insert rows; `reject` is called with the index and the error (`SqlRowRejected`) of each rejected row.

        Raises `SqlInsertFailed` for every other failure, and for a rejected row without savepoints.
        """
        if not rows:
            return
        try:
            statement = self._statement(rows[0])
        except Exception as error:
            raise self._failed(0, len(rows), error) from error
        self._insert(statement, rows, 0, reject)
        self._before += len(rows)

    def _insert(
        self, statement: str, rows: Sequence[tuple[Any, ...]], first: int, reject: Callable[[int, Exception], None]
    ) -> None:
        """Insert rows that begin at an index; halves of them where one is rejected."""
        error = self._rejection(statement, rows, first)
        if error is None:
            self.rows += len(rows)
        elif len(rows) > 1:
            half = len(rows) // 2
            self._insert(statement, rows[:half], first, reject)
            self._insert(statement, rows[half:], first + half, reject)
        else:
            rejected = SqlRowRejected(
                f"the database rejected its row for {self._table}: {type(error).__name__}: {error}"
            )
            rejected.__cause__ = error
            reject(first, rejected)

    def _rejection(self, statement: str, rows: Sequence[tuple[Any, ...]], first: int) -> Exception | None:
        """Insert all rows or none; return None, or the error that one of them causes."""
        try:
            self._savepoints.set()
            with closing(self._connection.cursor()) as cursor:
                insert_many(self._connection, cursor, statement, rows)
            self._savepoints.release()
        except Exception as error:
            if (interruption := interruption_behind(error)) is not None:
                raise interruption from None
            if is_row_error(error) and self._undone():
                return error
            raise self._failed(first, len(rows), error) from error
        return None

    def _undone(self) -> bool:
        """Undo a failed insert; False if that is impossible, which leaves its error as the one to raise."""
        try:
            return self._savepoints.undo()
        except Exception:
            return False

    def _failed(self, first: int, count: int, error: Exception) -> SqlInsertFailed:
        start = self._before + first
        return SqlInsertFailed(
            f"the database rejected rows {start + 1} to {start + count} for {self._table}: "
            f"{type(error).__name__}: {error}"
        )


# ---- state -----------------------------------------------------------------------------------------------------------


def digest(value: object) -> str:
    """Return a digest of a JSON value, for a key of the state table."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:40]


@dataclass(frozen=True)
class StateTable:
    """State table and the statements on it. `placeholder` is the driver's, without a name ("?" or "%s").

    A record is one or more rows: record_id, part (from 0), subscription_id, state, content (a part of its JSON).
    """

    name: str
    placeholder: str = "?"

    def __post_init__(self) -> None:
        if not _TABLE.fullmatch(self.name):
            validation.refuse(f"state_table must be a table's name, SCHEMA.TABLE at most, not {self.name!r}")

    @property
    def definition(self) -> str:
        """Statement that makes the table where it is missing."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.name} (record_id VARCHAR(40) NOT NULL, part INTEGER NOT NULL, "
            "subscription_id VARCHAR(40) NOT NULL, state VARCHAR(20) NOT NULL, content VARCHAR(4000) NOT NULL, "
            "PRIMARY KEY (record_id, part))"
        )

    def run(self, connection: Any, statement: str, *values: object) -> tuple[list[Any], int]:
        """Run a statement with "{}" for the table and "?" for a value; return rows and number of changed rows."""
        text = statement.format(self.name).replace("?", self.placeholder)
        with closing(connection.cursor()) as cursor:
            cursor.execute(text, values)
            rows = list(map(row_values, cursor.fetchall())) if cursor.description is not None else []
            return rows, cursor.rowcount


class SqlBatchState:
    """State of one consume job in the state table; a `JobState`. `set` commits what the transaction has."""

    def __init__(
        self, connection: Any, table: StateTable, record: object, subscription: object, claims: Iterable[object] = ()
    ) -> None:
        """Set the keys: `record` identifies the run with its topics, `subscription` the subscription of any topics.

        Of the tries that have one of `claims`, the subscriptions of single topics, only the latest can commit. Without
        claims all can.
        """
        self._connection = connection
        self._table = table
        self._record = digest(record)
        self._subscription = digest(subscription)
        self._token = uuid.uuid4().hex
        # In one order, so that tries that share several wait for each other and do not deadlock.
        self._claims = sorted(digest([_CLAIM, each]) for each in claims)
        self._is_committed = False

    def begin(self) -> None:
        """Make the table where it is missing, and take the subscription over from every other try.

        Blocks while another try commits. Raises `StateTableFailed` for a table that can be neither made nor used.
        """
        refused: Exception | None = None
        try:
            self._table.run(self._connection, self._table.definition)
            self._connection.commit()
        except Exception as error:
            # The table may be there all the same: made before, for a database without IF NOT EXISTS or a role without
            # the right to make one, or in this moment by another try.
            self._connection.rollback()
            refused = error
        try:
            self._take_over() if self._claims else self._read(self._record)
        except Exception as error:
            made = f", and it could not be made: {type(refused).__name__}: {refused}" if refused else ""
            raise StateTableFailed(
                f"the state table {self._table.name} cannot be used: {type(error).__name__}: {error}{made}"
            ) from error
        self._connection.commit()

    def _take_over(self) -> None:
        """Write this try's token into all claims, within the open transaction."""
        for claim in self._claims:
            self._make(claim)
        for claim in self._claims:
            self._table.run(
                self._connection, "UPDATE {} SET content = ? WHERE record_id = ? AND part = 0", self._token, claim
            )

    def _make(self, claim: str) -> None:
        """Insert a claim where it is missing, and commit."""
        if self._is_there(claim):
            return
        try:
            self._insert(claim, _CLAIM, self._token)
            self._connection.commit()
        except Exception:
            # Another first try of the subscription has inserted it since.
            self._connection.rollback()
            if not self._is_there(claim):
                raise

    def _is_there(self, record_id: str) -> bool:
        rows, _ = self._table.run(self._connection, "SELECT part FROM {} WHERE record_id = ? AND part = 0", record_id)
        self._connection.rollback()
        return bool(rows)

    @property
    def description(self) -> str:
        """Name of this run's record for the user."""
        return f"the rows of {self._table.name} whose record_id is '{self._record}'"

    def get(self) -> dict[str, Any] | None:
        """Return this run's record, None without one."""
        found = self._read(self._record)
        self._connection.rollback()
        return found

    def unacknowledged(self) -> Iterator[SqlBatchState]:
        """Yield the states of other runs whose rows are committed, and whose messages are perhaps not acknowledged."""
        rows, _ = self._table.run(
            self._connection,
            "SELECT DISTINCT record_id FROM {} WHERE subscription_id = ? AND state = ? AND record_id <> ?",
            self._subscription, CONSUMED, self._record,
        )  # fmt: skip
        self._connection.rollback()
        for (record_id,) in rows:
            other = SqlBatchState(self._connection, self._table, None, None)
            other._record, other._subscription = record_id, self._subscription
            yield other

    def set(self, value: Mapping[str, Any]) -> None:
        """Store the record and commit, with the rows inserted since `begin`; raises `OutputTaken` after a take-over."""
        try:
            if value["state"] == CONSUMED and not self._is_committed:
                self._pass_fence()
            self.delete()
            kept = dict(value)
            if value["state"] == ACKNOWLEDGED:
                # The ids are needed no more.
                kept |= {"chunks": [], "others": {}}
            self._insert(self._record, str(value["state"]), json.dumps(kept, separators=(",", ":")))
            self._connection.commit()
            self._is_committed = True
        except BaseException:
            with suppress(Exception):
                self._connection.rollback()
            raise

    def _pass_fence(self) -> None:
        """Lock this try's claims until the commit; values change, since some drivers count changed rows only."""
        for claim in self._claims:
            _, count = self._table.run(
                self._connection,
                "UPDATE {} SET content = ? WHERE record_id = ? AND part = 0 AND content = ?",
                f"{self._token}/committed", claim, self._token,
            )  # fmt: skip
            if count != 1:
                raise OutputTaken(
                    "another try or run has taken over this subscription: this one ends, commits and acknowledges "
                    "nothing"
                )

    def delete(self) -> None:
        """Delete this run's record within the open transaction."""
        self._table.run(self._connection, "DELETE FROM {} WHERE record_id = ?", self._record)

    def _read(self, record_id: str) -> dict[str, Any] | None:
        rows, _ = self._table.run(
            self._connection, "SELECT content FROM {} WHERE record_id = ? ORDER BY part", record_id
        )
        if not rows:
            return None
        found: dict[str, Any] = json.loads("".join(content for (content,) in rows))
        return found

    def _insert(self, record_id: str, state: str, content: str) -> None:
        for part, start in enumerate(range(0, len(content), _CONTENT)):
            self._table.run(
                self._connection,
                "INSERT INTO {} (record_id, part, subscription_id, state, content) VALUES (?, ?, ?, ?, ?)",
                record_id, part, self._subscription, state, content[start : start + _CONTENT],
            )  # fmt: skip
