"""Airflow for the tests of the provider: a home and a database of their own for the session, and DAGs run in it.

Rule: Airflow reads its home when it is imported, so it is set here, before any test module is.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import shutil
import tempfile
import textwrap
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

HOME = Path(tempfile.mkdtemp(prefix="airflow-tests-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
DAGS = HOME / "dags"
DAGS.mkdir()
for _name in [name for name in os.environ if name.startswith("AIRFLOW")]:
    del os.environ[_name]
SETTINGS = {
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__PARALLELISM": "2",
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    "AIRFLOW__SCHEDULER__ENABLE_TRACEMALLOC": "False",
}
os.environ.update(
    SETTINGS,
    AIRFLOW_HOME=str(HOME),
    AIRFLOW__CORE__DAGS_FOLDER=str(DAGS),
    AIRFLOW__LOGGING__BASE_LOG_FOLDER=str(HOME / "logs"),
)

HEADER = """\
from datetime import datetime, timedelta
from airflow.sdk import DAG, task
#from airflow_provider_pulsar.operators.consume import ConsumeBatchOperator
from airflow_provider_pulsar.operators.publish import PublishOperator
#from airflow_provider_pulsar.operators.spark import PulsarSparkLoadOperator
#from airflow_provider_pulsar.sensors.topic import TopicSensor

with DAG({dag_id!r}, schedule=None, start_date=datetime(2024, 1, 1), default_args={defaults}) as dag:
"""
DEFAULTS = "{'retry_delay': timedelta(0)}"


@dataclass
class Run:
    """A finished DAG run."""

    dag: Any
    run_id: str
    state: str

    def _instances(self) -> list[Any]:
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            chosen = select(TaskInstance).where(
                TaskInstance.dag_id == self.dag.dag_id, TaskInstance.run_id == self.run_id
            )
            return list(session.scalars(chosen))

    def task(self, task_id: str, map_index: int = -1) -> Any:
        """Return the task instance."""
        (found,) = [each for each in self._instances() if (each.task_id, each.map_index) == (task_id, map_index)]
        return found

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        """Return an XCom, None where there is none."""
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        with create_session() as session:
            found = session.scalar(
                XComModel.get_many(run_id=self.run_id, dag_ids=self.dag.dag_id, task_ids=task_id, key=key)
            )
            # SQLite gives JSON back as text, other databases as what it means.
            return (
                json.loads(found.value)
                if found is not None and isinstance(found.value, str)
                else getattr(found, "value", None)
            )

    def rendered(self, task_id: str) -> dict[str, Any]:
        """Return the rendered fields Airflow has stored of the task."""
        from airflow.models.renderedtifields import RenderedTaskInstanceFields
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            chosen = select(RenderedTaskInstanceFields).where(
                RenderedTaskInstanceFields.dag_id == self.dag.dag_id,
                RenderedTaskInstanceFields.run_id == self.run_id,
                RenderedTaskInstanceFields.task_id == task_id,
            )
            found = session.scalar(chosen)
            return {} if found is None else dict(found.rendered_fields)

    def clear_and_run(self) -> Run:
        """Clear every task of the run, as a person does in the UI, and run it again under the same run id."""
        from airflow.models.dagrun import DagRun
        from airflow.models.taskinstance import clear_task_instances
        from airflow.sdk import DagRunState, TaskInstanceState
        from airflow.sdk.definitions.dag import _run_task
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            run = session.scalar(select(DagRun).where(DagRun.dag_id == self.dag.dag_id, DagRun.run_id == self.run_id))
            clear_task_instances(run.get_task_instances(session=session), session)
            session.commit()
            run.dag = _scheduler_dag(self.dag)
            run.state = DagRunState.RUNNING
            session.commit()
            while run.state == DagRunState.RUNNING:
                session.expire_all()
                ready, _ = run.update_state(session=session)
                for each in ready:
                    each.try_number += 1
                    each.state = TaskInstanceState.SCHEDULED
                session.commit()
                for each in ready:
                    _run_task(ti=each, task=self.dag.task_dict[each.task_id], run_triggerer=True)
            return Run(self.dag, self.run_id, str(run.state))


def _scheduler_dag(dag: Any) -> Any:
    from airflow.serialization.serialized_objects import DagSerialization

    return DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))


@pytest.fixture(scope="session")
def airflow_db() -> None:
    """Make the session's database."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture
def run_dag(airflow_db: None) -> Iterator[Callable[..., Run]]:
    """Give what runs a DAG: the text of its tasks, as inside `with DAG(…)`, and names the text may use."""
    files: list[Path] = []

    def run(body: str, *, defaults: str = DEFAULTS, **names: Any) -> Run:
        dag_id = f"dag_{uuid.uuid4().hex[:12]}"
        path = DAGS / f"{dag_id}.py"
        files.append(path)
        constants = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        tasks = textwrap.indent(textwrap.dedent(body), "    ")
        path.write_text(constants + HEADER.format(dag_id=dag_id, defaults=defaults) + tasks)
        spec = importlib.util.spec_from_file_location(dag_id, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        now = datetime.now(UTC)
        finished = module.dag.test(logical_date=now, run_after=now)
        return Run(module.dag, finished.run_id, str(finished.state))

    yield run
    for path in files:
        path.unlink()


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Give what defines a connection (pulsar_default, or another id) as a JSON environment variable."""

    def define(conn_id: str = "pulsar_default", *, conn_type: str = "pulsar", **extra: Any) -> str:
        standard = {name: extra.pop(name) for name in ("host", "port", "login", "password") if name in extra}
        stored = {"conn_type": conn_type, **standard, "extra": extra}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(stored))
        return conn_id

    return define


@pytest.fixture
def pulsar_conn(pulsar: str) -> str:
    """Define the connection pulsar_default to the shared broker and return its id."""
    return pulsar


@pytest.fixture(scope="session")
def airflow_home(airflow_db: None) -> Path:
    """Give Airflow's home, its database made."""
    return HOME


@pytest.fixture
def pulsar(broker: Any, connection: Callable[..., str]) -> str:
    """Define the connection pulsar_default to the shared broker and return its id."""
    return connection(service_url=broker.service_url, admin_url=broker.admin_url)


def read_all(service_url: str, topic: str, **options: Any) -> list[Any]:
    """Return all messages of a topic, partition by partition."""
    from pulsar_native import Client, MessageId

    found = []
    with Client(service_url, **options) as client:
        for partition in client.get_topic_partitions(topic):
            reader = client.create_reader(partition, MessageId.earliest)
            while reader.has_message_available():
                found.append(reader.read_next(10_000))
            reader.close()
    return found


@pytest.fixture
def stored(broker: Any) -> Callable[[str], list[Any]]:
    """Give what returns all messages of a topic of the shared broker."""
    return lambda topic: read_all(broker.service_url, topic)


@pytest.fixture
def values(broker: Any) -> Callable[[str], list[str]]:
    """Give what returns the values of all messages as texts, sorted."""
    return lambda topic: sorted(message.data().decode() for message in read_all(broker.service_url, topic))


@pytest.fixture
def publish(broker: Any) -> Callable[..., None]:
    """Give what publishes texts or bytes to a topic of the shared broker, each with its number as key."""

    def send(topic: str, items: list[Any], *, batch: int = 1000) -> None:
        from pulsar_native import Client

        with Client(broker.service_url) as client:
            producer = client.create_producer(
                topic, batching_enabled=batch > 1, batching_max_messages=batch, block_if_queue_full=True,
                batching_max_publish_delay_ms=1000,
            )  # fmt: skip
            for number, item in enumerate(items):
                data = item if isinstance(item, bytes) else str(item).encode()
                producer.send_async(data, None, partition_key=str(number))
            producer.flush()

    return send
