"""SqlToPulsarOperator: publishes the rows of a query, each with a receipt.

The publication is `PublishOperator`'s, with all of its rules; the query's rows are `pulsar_native.jobs.sql_source`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_pulsar.arguments import is_of_worker
from airflow_provider_pulsar.operators.publish import PublishOperator
from airflow_provider_pulsar.transfers._arguments import excluded_defaults, inherited_fields, refuse_excluded
from pulsar_native.jobs import validation
from pulsar_native.jobs.sources import Source
from pulsar_native.jobs.sql_source import FETCH_SIZE, query_source

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

_NOT_OURS = ("messages", "file", "file_format", "op_kwargs", "envelope")


class SqlToPulsarOperator(PublishOperator):
    """Publish the rows of a query, a message a row, and return a manifest of what the broker stored.

    Rows are streamed: with a server-side cursor of psycopg2, psycopg, MySQLdb and pymysql, and by the driver's usual
    cursor elsewhere. A row is a dict by column name. Without a schema it is published as JSON (times and durations in
    ISO-8601, decimals, UUIDs and network addresses as text; bytes, NaN and infinity are refused: convert them in sql);
    `schema` and `schema_definition` give it types. PostgreSQL's drivers count the month of an interval as 30 days and
    the year as 365: cast such an interval to text. psycopg2 itself returns an infinite date as 9999-12-31 and the time
    24:00 as 00:00, where psycopg raises.

    With deduplication a retry stores each row once, as long as the query returns the same rows in the same order: use
    ORDER BY on a unique key, and select by the run's interval rather than by the present time. Other rows than before
    fail the task or are published anew, by `on_changed`.

    :param sql: one statement that returns rows, or the name of a .sql file; columns need different names. PostgreSQL
        declares a cursor for it, so there it is a SELECT, VALUES or TABLE that changes nothing. Templated.
    :param sql_conn_id: the connection of the database, of any type whose hook is a DbApiHook.
    :param topic: the topic, in any spelling. Templated.
    :param parameters: parameters of the statement, in the style of its driver: a list of values, or a dict by name.
        Default none. Templated.
    :param sql_hook_params: arguments of the hook, for instance {"schema": "sales"}. Default none.
    :param fetch_size: rows fetched from the database at once, from 1. Default 5000.
    :param kwargs: the other parameters of `PublishOperator` (key_field, event_time_field, property_fields, schema,
        deduplicate, identity and so on) but for messages, file, file_format, op_kwargs and envelope; and those of every
        task.

    Needs apache-airflow-providers-common-sql (the extra `sql`). Returns and raises what `PublishOperator` does; an
    error of the database fails the try with the manifest of what was stored before it.
    """

    template_fields: Sequence[str] = (
        *inherited_fields(PublishOperator.template_fields, _NOT_OURS),
        *("sql", "parameters"),
    )
    _mappings: ClassVar[Sequence[str]] = (*PublishOperator._mappings, "parameters")
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers = {"sql": "sql", "parameters": "json", "schema_definition": "json"}  # noqa: RUF012

    def __init__(
        self,
        *,
        sql: str,
        sql_conn_id: str,
        topic: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        sql_hook_params: Mapping[str, Any] | None = None,
        fetch_size: int = FETCH_SIZE,
        **kwargs: Any,
    ) -> None:
        refuse_excluded(kwargs, _NOT_OURS, "SqlToPulsarOperator publishes the rows of sql")
        self.sql = sql
        self.sql_conn_id = sql_conn_id
        self.parameters = parameters
        self.sql_hook_params = sql_hook_params
        self.fetch_size = fetch_size
        kwargs |= excluded_defaults(PublishOperator.__init__, _NOT_OURS)
        super().__init__(topic=topic, **kwargs)

    def _check_given(self) -> None:
        validation.text("sql_conn_id", self.sql_conn_id)
        sql: object = self.sql
        if not isinstance(sql, str) and not is_of_worker(sql):
            validation.refuse("sql must be the text of one statement")
        self.fetch_size = validation.whole("fetch_size", self.fetch_size)

    def _source(self, context: Context) -> Source:
        from airflow_provider_pulsar.transfers._db_hook import db_hook, report_query

        sql, parameters = validation.text("sql", self.sql), self._parameters()
        hook = db_hook(self.sql_conn_id, self.sql_hook_params)

        def connect() -> Any:
            report_query(hook, sql, parameters)
            connection = hook.get_conn()
            # A server-side cursor lives in a transaction.
            if hook.get_autocommit(connection):
                hook.set_autocommit(connection, False)
            return connection

        return query_source(connect, sql, parameters, fetch_size=self.fetch_size)

    def _parameters(self) -> Sequence[Any] | Mapping[str, Any] | None:
        given = self.parameters
        if given is None or isinstance(given, Mapping):
            return given
        if isinstance(given, str | bytes | bytearray) or not isinstance(given, Sequence):
            validation.refuse(
                f"parameters must be a list of values, or a dict by name, not {type(given).__name__}; a template of "
                "the whole renders to a text unless its DAG has render_template_as_native_obj=True"
            )
        # Drivers know no other kinds, such as the results of a mapped task.
        return given if isinstance(given, list) else tuple(given)

    def _openlineage(self) -> OperatorLineage[Any, Any]:
        from airflow_provider_pulsar import openlineage
        from airflow_provider_pulsar.lineage import statement_datasets

        found = super()._openlineage()
        tables, _ = statement_datasets(self.sql_conn_id, self.sql_hook_params, self.sql)
        found.inputs += [openlineage.input_dataset(name) for name in tables]
        return found

    def _again(self, context: Context) -> Callable[[], Source]:
        return lambda: self._source(context)
