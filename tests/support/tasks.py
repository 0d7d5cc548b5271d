"""Operators run as Airflow runs them: in a DAG file by `dag.test()`, or alone with the little context they need."""

from __future__ import annotations

import importlib.util
import json
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class StateStore(dict[str, Any]):
    """Airflow's task state store, in memory."""

    def set(self, key: str, value: Any, **_: object) -> None:
        """Keep a value as JSON keeps it: what the caller changes afterwards is not kept."""
        self[key] = json.loads(json.dumps(value))

    def delete(self, key: str) -> None:
        """Forget a value."""
        self.pop(key, None)


@dataclass
class TaskInstance:
    """Task instance interface that operators use; XComs are kept in `xcoms`."""

    dag_id: str = "a_dag"
    task_id: str = "a_task"
    run_id: str = "a_run"
    map_index: int = -1
    try_number: int = 1
    max_tries: int = 0
    xcoms: dict[str, Any] = field(default_factory=dict)
    stats_tags: dict[str, str] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        """Keep an XCom."""
        self.xcoms[key] = value

    def get_first_reschedule_date(self, context: object) -> None:
        """There was no reschedule before."""


def context_of(run_id: str = "a_run", *, store: StateStore | None = None, **identity: Any) -> dict[str, Any]:
    """Return a context; two with one store are two tries of one task instance."""
    ti = TaskInstance(run_id=run_id, **identity)
    return {
        "ti": ti,
        "task_instance": ti,
        "run_id": run_id,
        "task_state_store": StateStore() if store is None else store,
    }


def dag_in(home: Path, dag_id: str, body: str) -> Any:
    """Write a DAG file whose `with DAG(...)` block holds `body`, import it and return the DAG."""
    text = (
        "import datetime\n"
        "from airflow.sdk import DAG, task\n"
        "from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator\n"
        "from airflow_provider_pulsar.operators.publish import PublishOperator\n"
        "from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator\n"
        "from airflow_provider_pulsar.sensors.message import MessageSensor\n"
        "from airflow_provider_pulsar.sensors.schema import SchemaSensor\n"
        "from airflow_provider_pulsar.sensors.subscription import SubscriptionSensor\n"
        "from airflow_provider_pulsar.sensors.topic import TopicSensor\n\n"
        f"with DAG({dag_id!r}, schedule=None, start_date=datetime.datetime(2026, 1, 1)) as dag:\n"
    )
    path = home / "dags" / f"{dag_id}.py"
    path.write_text(text + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n")
    spec = importlib.util.spec_from_file_location(dag_id, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.dag


def clear_and_run(dag: Any, run: Any) -> Any:
    """Clear every task of a finished run, as a person does in the UI, run it again under its id and return it."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import clear_task_instances
    from airflow.sdk import DagRunState, TaskInstanceState
    from airflow.sdk.definitions.dag import _run_task
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.utils.session import create_session
    from sqlalchemy import select  # type: ignore[import-not-found,unused-ignore]

    with create_session() as session:
        same: Any = session.scalar(select(DagRun).where(DagRun.dag_id == dag.dag_id, DagRun.run_id == run.run_id))
        clear_task_instances(same.get_task_instances(session=session), session)
        session.commit()
        same.dag = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
        same.state = DagRunState.RUNNING
        session.commit()
        while same.state == DagRunState.RUNNING:
            session.expire_all()
            ready, _ = same.update_state(session=session)
            for each in ready:
                each.try_number += 1
                each.state = TaskInstanceState.SCHEDULED
            session.commit()
            for each in ready:
                _run_task(ti=each, task=dag.task_dict[each.task_id], run_triggerer=True)
        return same


def define_connection(monkeypatch: Any, conn_id: str = "pulsar_default", **extra: object) -> str:
    """Define a connection of type pulsar until the test ends, and return its id."""
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": "pulsar", "extra": extra}))
    return conn_id


def states_of(run: Any) -> dict[str, str]:
    """Return the state of each task of a run, mapped ones as task[0]."""
    found = {}
    for ti in run.get_task_instances():
        name = ti.task_id if ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]"
        found[name] = str(ti.state)
    return found


def xcom_of(run: Any, task_id: str, key: str = "return_value") -> Any:
    """Return an XCom of a finished run, None where there is none."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        query = XComModel.get_many(run_id=run.run_id, key=key, task_ids=task_id, dag_ids=run.dag_id)
        found = session.scalars(query).first()
        return None if found is None else XComModel.deserialize_value(found)


def rendered_of(run: Any, task_id: str) -> dict[str, Any]:
    """Return the rendered fields Airflow has stored of a task of a run."""
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.utils.session import create_session
    from sqlalchemy import select  # type: ignore[import-not-found,unused-ignore]

    fields = RenderedTaskInstanceFields
    with create_session() as session:
        chosen = select(fields).where(
            fields.dag_id == run.dag_id, fields.run_id == run.run_id, fields.task_id == task_id
        )
        found = session.scalar(chosen)
        return {} if found is None else dict(found.rendered_fields)
