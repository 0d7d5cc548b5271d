"""Lineage of a task try: outlet events with their extra, and the reports to Airflow's hook lineage collector.

Rules: only what really happened is reported, after it has happened. A failure to report never fails the task. An extra
is JSON of bounded size: messages never stand in it. OpenLineage's events are in `openlineage.py`, which reads `result`.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_provider_pulsar.assets.pulsar import DEFAULT_PORTS, create_asset, topic_of

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import BaseOperator, Context

    from airflow_provider_pulsar.hooks.pulsar import PulsarHook

_log = logging.getLogger(__name__)
# Longer lists, of partitions, files or topics, are counted in an extra: their number stands in their place.
_LONGEST_LIST = 1000
_LARGE = ("messages", "stored_ids", "errors")


class LineageMethods:
    """Methods of an operator that OpenLineage's provider calls; an operator has `_openlineage`.

    The datasets are those known at the start, with counts once the task has ended; a failed try reports what it had
    done.
    """

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the datasets read and written, as far as they are known."""
        return self._openlineage()

    def get_openlineage_facets_on_complete(self, task_instance: object) -> OperatorLineage[Any, Any]:
        """Return the datasets with counts, and the message ids."""
        return self._openlineage()

    def get_openlineage_facets_on_failure(self, task_instance: object) -> OperatorLineage[Any, Any]:
        """Return the datasets, with what the failed try had done."""
        return self._openlineage()

    @abstractmethod
    def _openlineage(self) -> OperatorLineage[Any, Any]:
        """Return the lineage by what is recorded now."""


class TaskLineage:
    """Record of what a try of an operator has read and written so far. One object serves all calls of `execute`."""

    def __init__(self) -> None:
        self.service_url: str | None = None
        self.result: Mapping[str, Any] = {}

    def begin(self, hook: PulsarHook) -> None:
        """Note the address of the cluster. Blocks for reading the connection."""
        self.result = {}
        self.service_url = hook.service_url()

    def succeed(
        self,
        operator: BaseOperator,
        context: Context,
        hook: PulsarHook,
        result: Mapping[str, Any],
        *,
        read: Sequence[str] = (),
        written: Sequence[str] = (),
        partitions: Mapping[str, Any] | None = None,
    ) -> None:
        """Report the topics read and written, and give the operator's outlets the result as extra.

        :param result: the operator's manifest; with "count" and "partitions", or "rows" instead of "count".
        :param read: names of the topics read.
        :param written: names of the topics written to.
        :param partitions: first and last message id by partition, where `result` has only their number.
        """
        self.result = result
        try:
            hook.report_lineage(read=read, written=written)
            self._fill_outlets(operator, context, event_extra(result, partitions), written)
        except Exception:
            _log.warning("The lineage of %s could not be reported whole", operator.task_id, exc_info=True)

    def fail(self, result: Mapping[str, Any]) -> None:
        """Note what a failed try had done."""
        self.result = result

    def _fill_outlets(
        self, operator: BaseOperator, context: Context, extra: dict[str, Any], written: Sequence[str]
    ) -> None:
        events: Any = context.get("outlet_events")
        if events is None:
            return
        from airflow.sdk import AssetAlias

        for outlet in _of_topics(operator.outlets, written):
            accessor = events[outlet]
            if isinstance(outlet, AssetAlias):
                for topic in written:
                    accessor.add(create_asset(service_url=str(self.service_url), topic=topic), extra=extra)
            else:
                # Keys that a function of the author has set go first.
                accessor.extra = {**extra, **accessor.extra}


def statement_datasets(
    conn_id: str, hook_params: Mapping[str, Any] | None, sql: str
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return namespace and name of the tables that a statement reads and of those it writes, by OpenLineage's parser.

    Empty where the connection's hook has no address of its database (SQLite), or the statement cannot be parsed. Such
    a hook may ask the database for its default schema; nothing raises.
    """
    try:
        from airflow.providers.openlineage.sqlparser import SQLParser

        from airflow_provider_pulsar.transfers._db_hook import db_hook

        hook = db_hook(conn_id, hook_params)
        connection = hook.get_connection(hook.get_conn_id())
        database = hook.get_openlineage_database_info(connection)
        if database is None:
            return [], []
        parser = SQLParser(hook.get_openlineage_database_dialect(connection), hook.get_openlineage_default_schema())
        found = parser.generate_openlineage_metadata_from_sql(sql, hook, database, use_connection=False)
        inputs, outputs = ([(each.namespace, each.name) for each in part] for part in (found.inputs, found.outputs))
        return inputs, outputs
    except Exception:
        _log.info("The tables of the statement are not known for OpenLineage", exc_info=True)
        return [], []


def event_extra(result: Mapping[str, Any], partitions: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the extra of an asset event: count, ids (first and last of each partition) and manifest.

    The manifest has the number of partitions, files or topics in place of a list of more than 1,000; `ids` has the
    first 1,000 partitions.
    """
    if partitions is None:
        partitions = result.get("partitions")
    ids = {}
    if isinstance(partitions, Mapping):
        ids = {name: first_and_last(part) for name, part in partitions.items()}
    manifest = {name: _bounded(value) for name, value in result.items() if name not in _LARGE}
    ids = dict(islice(ids.items(), _LONGEST_LIST))
    return {"count": result.get("count", result.get("rows")), "ids": ids, "manifest": manifest}


def _bounded(value: Any) -> Any:
    """Return a value of a manifest, the number of its elements for a long list or mapping."""
    is_long = isinstance(value, list | Mapping) and len(value) > _LONGEST_LIST
    return len(value) if is_long else value


def first_and_last(partition: Any) -> dict[str, Any]:
    """Return the first and last message id in a partition's part of a manifest, None where there is none."""
    found = partition if isinstance(partition, Mapping) else {}
    return {"first": found.get("first"), "last": found.get("last")}


def _of_topics(outlets: Sequence[Any], topics: Sequence[str]) -> Iterator[Any]:
    """Yield the outlets but those that name another topic."""
    from airflow.sdk import Asset, AssetAlias

    from pulsar_native.topic import TopicName

    wanted = {TopicName.parse(topic).base.full for topic in topics}
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            yield outlet
        elif isinstance(outlet, Asset):
            is_topic = outlet.uri.partition("://")[0] in DEFAULT_PORTS
            if not is_topic or topic_of(outlet.uri) in wanted:
                yield outlet
