"""Arguments that transfers have from their operators."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator

from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from airflow_provider_pulsar.operators.publish import PublishOperator
from airflow_provider_pulsar.transfers import pulsar_to_sql, sql_to_pulsar

TRANSFERS: dict[str, tuple[type[BaseOperator], type[BaseOperator], tuple[str, ...], dict[str, Any]]] = {
    "sql_to_pulsar": (
        sql_to_pulsar.SqlToPulsarOperator,
        PublishOperator,
        sql_to_pulsar._NOT_OURS,
        {"sql": "SELECT 1", "encryption_keys": {"k": "/keys/{{ 'k' }}.pub"}},
    ),
    "pulsar_to_sql": (
        pulsar_to_sql.PulsarToSqlOperator,
        ConsumeBatchOperator,
        pulsar_to_sql._NOT_OURS,
        {"subscription": "s", "table": "t", "columns": ["a"], "private_keys": {"k": "/keys/{{ 'k' }}.key"}},
    ),
}


def make(name: str, **more: Any) -> Any:
    kind, _, _, options = TRANSFERS[name]
    return kind(task_id="a_task", topic="t", sql_conn_id="shop", **options, **more)


@pytest.mark.parametrize("name", TRANSFERS)
def test_transfer_templates_are_those_of_its_base(name: str) -> None:
    kind, base, excluded, _ = TRANSFERS[name]
    assert set(base.template_fields) - set(excluded) <= set(kind.template_fields)
    assert not set(excluded) & set(kind.template_fields)


@pytest.mark.parametrize(
    ("name", "field", "rendered"),
    [
        ("sql_to_pulsar", "encryption_keys", {"k": "/keys/k.pub"}),
        ("pulsar_to_sql", "private_keys", {"k": "/keys/k.key"}),
    ],
)
def test_transfer_renders_paths_of_keys(name: str, field: str, rendered: dict[str, str]) -> None:
    operator = make(name)
    operator.render_template_fields({})
    assert getattr(operator, field) == rendered


EXCLUDED = [(name, field) for name in TRANSFERS for field in TRANSFERS[name][2]]


@pytest.mark.parametrize(("name", "field"), EXCLUDED)
def test_transfer_argument_it_does_not_have(name: str, field: str) -> None:
    with pytest.raises(ValueError, match=f": leave {field} out"):
        make(name, **{field: "x"})


@pytest.mark.parametrize(("name", "field"), [("sql_to_pulsar", "file"), ("pulsar_to_sql", "path")])
def test_transfer_none_is_no_argument(name: str, field: str) -> None:
    assert getattr(make(name, **{field: None}), field) is None


@pytest.mark.parametrize(("name", "field"), EXCLUDED)
def test_transfer_default_args_leave_excluded_alone(name: str, field: str) -> None:
    default = getattr(make(name), field)
    with DAG("a_dag", schedule=None, default_args={field: "x", "pulsar_conn_id": "other"}):
        made = make(name)
    assert getattr(made, field) == default and made.pulsar_conn_id == "other"


def test_sql_to_pulsar_sql_is_text_or_result() -> None:
    options: dict[str, Any] = {"topic": "t", "sql_conn_id": "shop"}
    with DAG("a_dag", schedule=None):
        result = PublishOperator(task_id="before", topic="t", messages=[1]).output
        made = sql_to_pulsar.SqlToPulsarOperator(task_id="later", sql=result["sql"], **options)  # type: ignore[arg-type]
        assert made.upstream_task_ids == {"before"}
    for wrong in (["SELECT 1"], b"SELECT 1", None):
        with pytest.raises(ValueError, match="sql must be the text of one statement"):
            sql_to_pulsar.SqlToPulsarOperator(task_id="a_task", sql=wrong, **options)  # type: ignore[arg-type]
