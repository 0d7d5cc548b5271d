"""PulsarToSqlOperator: consumes a bounded batch of a subscription into a table, in one transaction.

The batch is `ConsumeBatchOperator`'s, with its limits, decoding and failed messages; rows and the record of the batch
are `pulsar_native.jobs.sql_sink`. Order of events: the topics of the subscription are claimed in the database, batches
of other tries and runs that are committed but not acknowledged are acknowledged as far as they are of these topics,
messages are received and inserted, rows and the batch's ids are committed together, and then the messages are
acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_pulsar.cut_notes import cut_entries, cut_notes, push_cut
from airflow_provider_pulsar.exceptions import staged
from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from airflow_provider_pulsar.state import TaskState
from airflow_provider_pulsar.transfers._arguments import excluded_defaults, inherited_fields, refuse_excluded
from pulsar_native.jobs import validation

if TYPE_CHECKING:
    from airflow.providers.common.sql.hooks.sql import DbApiHook
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from pulsar_native import Client
    from pulsar_native.jobs.consume_settings import ConsumeCallbacks, ConsumeSettings
    from pulsar_native.jobs.consuming import ConsumeJob
    from pulsar_native.jobs.interfaces import JobState
    from pulsar_native.jobs.sql_sink import SqlSink

_NOT_OURS = (
    *("path", "format", "if_exists", "max_messages_per_file", "max_bytes_per_file", "inline", "inline_limit_bytes"),
    *("process", "process_message", "process_once", "concurrency"),
)
_PLACEHOLDERS = ("?", "%s")
STATE_TABLE = "airflow_pulsar_batches"
"""Default name of the state table."""


class PulsarToSqlOperator(ConsumeBatchOperator):
    """Consume a bounded batch of a subscription into a table of a database, and acknowledge it after the commit.

    All rows of a batch and the record of its message ids are committed in one transaction. With the state table
    (default) every message of an Exclusive or Failover subscription is in the table exactly once, as long as all its
    consumers are this operator with this state table: a try that fails before the commit leaves no row and acknowledges
    nothing; after it every further try (retry, cleared run, run recreated under its id) inserts nothing, acknowledges
    the batch if that had failed, and returns the same manifest. If a run ends for good between the two, the next run of
    the subscription acknowledges its batch before it receives, also if it has other topics besides, fewer, or names
    them in another order; and a try that was overtaken by another one of the same topic, or of the same pattern, cannot
    commit. In a topic that was deleted since, or deleted and created again, nothing is left to acknowledge. With Shared
    and Key_Shared subscriptions several tasks may consume at once, and messages that the broker redelivers to another
    task while their own has not committed are stored by both: use `replace` there.

    A row that the database rejects because of its values (a constraint, a wrong type, NUL in PostgreSQL's text, an
    exception of a trigger) is a failed message, by `on_error`: the default fails the try, and nothing of the batch is
    stored; "skip", "dead_letter" and "retry_letter" acknowledge the message with the batch, whose other rows are
    committed. That needs SAVEPOINT, as PostgreSQL and SQLite have it; without it, and for constraints that are checked
    at the commit (DEFERRABLE), a rejected row fails the try. So does every other error of the database.

    Without a state table (None) ids are kept in Airflow's task state, after the commit: if the try dies between the
    two, or its run is deleted before the acknowledgement, rows are inserted again (at least once); `replace` with a key
    that identifies a message ("__messageId") or its subject makes that harmless.

    The transaction is open from the first rows to the commit. The database must have transactions.

    :param subscription: the subscription's name, not blank. It is made where it does not exist. Templated.
    :param sql_conn_id: the connection of the database, of any type whose hook is a DbApiHook.
    :param table: the table, which must exist, as the database writes its name. Templated.
    :param columns: the columns to fill: a list of names, each of a field of the value, or a dict of column to source.
        A source is a field ("city"), a field of a field ("address.city"), or one of __key, __topic, __messageId,
        __publishTime, __eventTime, __producerName, __sequenceId, __messageProperties (as JSON),
        __messageProperties.NAME and __value. Objects and arrays are stored as JSON. A payload without a schema is
        stored as text, and is a failed message where it is not UTF-8; with decode="bytes" all are stored as bytes.
    :param allow_missing: make a field that a value lacks NULL. Default False: the message fails, by `on_error`.
    :param replace: replace rows of the same key, by the dialect of the database (ON CONFLICT, REPLACE, MERGE). Default
        False.
    :param replace_index: the columns of that key, where the dialect needs them (PostgreSQL). Default none.
    :param rows_per_insert: rows given to the driver at once, from 1; where it rejects one, halves of them are. Default
        1000.
    :param state_table: the table with the records of batches, made where it is missing; default airflow_pulsar_batches.
        For databases without CREATE TABLE IF NOT EXISTS make it before: record_id and subscription_id VARCHAR(40), part
        INTEGER, state VARCHAR(20), content VARCHAR(4000), primary key (record_id, part). Rows whose state is
        acknowledged may be deleted once their runs are not cleared any more. None: see above.
    :param sql_hook_params: arguments of the hook, for instance {"schema": "sales"}. Default none.
    :param kwargs: the parameters of `ConsumeBatchOperator` on topics, subscription, limits, decoding (decode="json" for
        JSON without a schema), failed messages, letters and progress; and those of every task. Those on outputs and
        process functions are refused.

    Needs apache-airflow-providers-common-sql (the extra `sql`). Returns table, rows, and of `ConsumeBatchOperator`'s
    manifest count, bytes, topics, subscription, partitions, stop_reason, seconds, messages_per_second and errors.
    """

    template_fields: Sequence[str] = (
        *inherited_fields(ConsumeBatchOperator.template_fields, _NOT_OURS),
        "table",
    )

    def __init__(
        self,
        *,
        subscription: str,
        sql_conn_id: str,
        table: str,
        columns: Sequence[str] | Mapping[str, str],
        allow_missing: bool = False,
        replace: bool = False,
        replace_index: str | Sequence[str] | None = None,
        rows_per_insert: int = 1000,
        state_table: str | None = STATE_TABLE,
        sql_hook_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        refuse_excluded(kwargs, _NOT_OURS, "PulsarToSqlOperator writes rows of a table")
        self.sql_conn_id = sql_conn_id
        self.table = table
        self.columns = columns
        self.allow_missing = allow_missing
        self.replace = replace
        self.replace_index = replace_index
        self.rows_per_insert = rows_per_insert
        self.state_table = state_table
        self.sql_hook_params = sql_hook_params
        kwargs |= excluded_defaults(ConsumeBatchOperator.__init__, _NOT_OURS)
        super().__init__(subscription=subscription, **kwargs)

    def _check_output(self) -> None:
        from pulsar_native.jobs.sql_sink import RowMapping, StateTable

        validation.text("sql_conn_id", self.sql_conn_id)
        RowMapping.of(self.columns)
        if self.state_table is not None:
            StateTable(validation.text("state_table", self.state_table))
        if self.replace_index is not None and not self.replace:
            validation.refuse("replace_index belongs to replace=True")
        self.rows_per_insert = validation.whole("rows_per_insert", self.rows_per_insert)

    # ---- execution ---------------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> dict[str, Any]:
        """Consume the batch into the table and return its manifest."""
        from airflow_provider_pulsar.hooks.pulsar import PulsarHook
        from airflow_provider_pulsar.transfers._db_hook import db_hook, report_query

        with self._task_client:
            hook = PulsarHook(self.pulsar_conn_id)
            with staged(self._action(), "arguments"):
                settings = self._settings(context, hook)
                validation.text("table", self.table)
                database = db_hook(self.sql_conn_id, self.sql_hook_params)
                callbacks = self._callbacks(context, hook)
            client = self._task_client.open(hook, self._action())
            self._lineage.begin(hook)
            with closing(_transactional(database)) as connection:
                try:
                    sink = self._sink(database, connection, settings)
                    callbacks = replace(callbacks, sink=sink, sink_rows=self.rows_per_insert)
                    job, found = self._consume(context, client, settings, database, connection, callbacks)
                finally:
                    with suppress(Exception):
                        # What is not committed by now never is.
                        connection.rollback()
            push_cut(context, job, settings)
            manifest = {"table": self.table, "rows": found["count"], **found}
            for name in ("path", "format"):
                manifest.pop(name, None)
            report_query(database, f"INSERT INTO {self.table}", rows=sink.rows)
            self._lineage.succeed(self, context, hook, manifest, read=manifest["topics"])
            return manifest

    def _consume(
        self,
        context: Context,
        client: Client,
        settings: ConsumeSettings,
        database: DbApiHook,
        connection: Any,
        callbacks: ConsumeCallbacks,
    ) -> tuple[ConsumeJob, dict[str, Any]]:
        """Acknowledge what earlier runs have committed, run the job, and return it with its manifest."""
        from pulsar_native.jobs.consuming import AcknowledgeJob, ConsumeJob
        from pulsar_native.jobs.sql_sink import SqlBatchState

        notes = cut_notes(context, settings)
        state = self._state(context, settings, database, connection)
        if isinstance(state, SqlBatchState):
            callbacks = replace(callbacks, stored_state=state.description)
            for other in list(state.unacknowledged()):
                earlier = AcknowledgeJob(settings, client, other, self.log, callbacks)
                self._run(earlier, context)
                # Such a run has pushed none.
                notes.append(earlier.cut)
        job = ConsumeJob(settings, client, state, self.log, callbacks, cut=cut_entries(notes, settings))
        return job, self._run(job, context)

    def _openlineage(self) -> OperatorLineage[Any, Any]:
        from airflow_provider_pulsar import openlineage
        from airflow_provider_pulsar.lineage import statement_datasets

        found = super()._openlineage()
        # The statement's values do not matter.
        _, tables = statement_datasets(self.sql_conn_id, self.sql_hook_params, f"INSERT INTO {self.table} VALUES (1)")
        result = self._lineage.result
        counted = {"rows": result["rows"]} if "rows" in result else None
        found.outputs += [openlineage.output_dataset(name, counted) for name in tables]
        return found

    def _sink(self, database: DbApiHook, connection: Any, settings: ConsumeSettings) -> SqlSink:
        from pulsar_native.jobs.sql_sink import RowMapping, SqlSink

        mapping = RowMapping.of(
            self.columns, allow_missing=self.allow_missing, decodes_values=settings.decode == "auto"
        )
        names, dialect = list(mapping.columns), database.dialect
        more: dict[str, Any] = {} if self.replace_index is None else {"replace_index": self.replace_index}

        def statement(row: Sequence[Any]) -> str:
            if self.replace and not more and getattr(dialect, "name", None) == "postgresql":
                more["replace_index"] = _primary_key(connection, self.table)
            generate: Callable[..., str] = dialect.generate_replace_sql if self.replace else dialect.generate_insert_sql
            return generate(self.table, row, names, **more)

        return SqlSink(
            connection, self.table, mapping, statement, lambda value: database._serialize_cell(value, connection)
        )

    def _state(self, context: Context, settings: ConsumeSettings, database: DbApiHook, connection: Any) -> JobState:
        from pulsar_native.jobs.consume_options import ORDERED
        from pulsar_native.jobs.sql_sink import SqlBatchState, StateTable

        if self.state_table is None:
            return _CommittingState(connection, TaskState(context, "consumed"))
        if database.placeholder not in _PLACEHOLDERS:
            validation.refuse(
                f"the state table needs a driver whose placeholder is ? or %s, not {database.placeholder}: pass "
                "state_table=None, with replace=True"
            )
        # The same topics of another cluster are another subscription; in another order they are the same.
        topics = sorted(settings.topics) if settings.pattern is None else [settings.pattern.pattern]
        state = SqlBatchState(
            connection,
            StateTable(self.state_table, database.placeholder),
            [settings.cluster, topics, settings.subscription, dict(settings.run)],
            [settings.cluster, settings.subscription],
            [
                [settings.cluster, topic, settings.subscription]
                for topic in topics
                if settings.subscription_type in ORDERED
            ],
        )
        with staged(self._action(), "state table"):
            state.begin()
        return state


class _CommittingState:
    """State in Airflow's task state store, stored after the commit of the rows."""

    def __init__(self, connection: Any, state: TaskState) -> None:
        self._connection = connection
        self._state = state

    def get(self) -> dict[str, Any] | None:
        """Return the stored object, None for none."""
        return self._state.get()

    def set(self, value: Mapping[str, Any]) -> None:
        """Commit, then store the object."""
        self._connection.commit()
        self._state.set(value)

    def delete(self) -> None:
        """Delete the stored object."""
        self._state.delete()


def _primary_key(connection: Any, table: str) -> list[str]:
    """Return the columns of a PostgreSQL table's primary key, quoted where needed; empty without one.

    Airflow's dialect finds it only for a plain name with its schema. PostgreSQL reads the name here as in the INSERT.
    """
    from pulsar_native.jobs.sql_rows import row_values

    with closing(connection.cursor()) as cursor:
        cursor.execute(
            "SELECT quote_ident(a.attname) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
            "AND a.attnum = ANY(i.indkey) WHERE i.indisprimary AND i.indrelid = to_regclass(%s)",
            (table,),
        )
        found = [row_values(row)[0] for row in cursor.fetchall()]
    # The transaction of the rows begins with their savepoint.
    connection.rollback()
    return found


def _transactional(database: DbApiHook) -> Any:
    """Return a connection without autocommit."""
    connection = database.get_conn()
    if database.get_autocommit(connection):
        database.set_autocommit(connection, False)
    return connection
