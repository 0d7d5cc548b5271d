"""DbApiHook of a connection, as Airflow's SQL operators find it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_pulsar.extras import missing
from pulsar_native.jobs import validation

if TYPE_CHECKING:
    from airflow.providers.common.sql.hooks.sql import DbApiHook


def db_hook(conn_id: str, hook_params: Mapping[str, Any] | None) -> DbApiHook:
    """Return the hook of a connection; raises ValueError for one that is no database. Blocks for the connection."""
    try:
        from airflow.providers.common.sql.hooks.sql import DbApiHook
    except ImportError as error:
        raise missing("sql", "A transfer from or to a database") from error
    from airflow.sdk import BaseHook

    if hook_params is not None and not isinstance(hook_params, Mapping):
        validation.refuse(f"sql_hook_params must be a mapping, not {type(hook_params).__name__}")
    connection: Any = BaseHook.get_connection(conn_id)
    hook = connection.get_hook(hook_params=dict(hook_params or {}))
    if not isinstance(hook, DbApiHook):
        validation.refuse(
            f"sql_conn_id={conn_id!r} has the type {connection.conn_type!r}, which is no database: its hook must be a "
            "DbApiHook"
        )
    return hook


def report_query(hook: DbApiHook, sql: str, parameters: Any = None, rows: int | None = None) -> None:
    """Report a statement to Airflow's hook lineage collector, which OpenLineage reads."""
    with suppress(Exception):
        # Lineage never fails a task, and older versions of the provider have no such function.
        from airflow.providers.common.sql.hooks.lineage import send_sql_hook_lineage

        send_sql_hook_lineage(context=hook, sql=sql, sql_parameters=parameters, row_count=rows)
