"""Airflow for the tests of the provider: a home and a database of their own for the session, and DAGs run in it.

Two of them: the one of this process (`airflow_home`, for `dag.test()` and operators alone), and real processes beside
it (`airflow`), started when the first test asks for them. Rule: Airflow reads its home when it is imported, so it is
set here, before any test module is.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from environments import NO_POSTGRES, ROOT, postgres_folder
from pulsar_native import AdminClient, Client
from pulsar_native.admin import AlreadyExists
from support.airflow_metadata import PostgresMetadata
from support.airflow_stack import AirflowStack
from support.brokers import Broker, NewTopic
from support.postgres import Postgres

# `python -m pytest` puts the project's root on the path, where a build leaves the provider's metadata: Airflow would
# find its plugin twice, and the SDK loads no plugin after one that it has already.
sys.path[:] = [path for path in sys.path if path not in ("", str(ROOT))]

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
    # Without it operators would ask Airflow for a variable, which those run alone cannot.
    "AIRFLOW__PULSAR__DEPLOYMENT_ID": "tests",
}
# OpenLineage's listener reads these when Airflow is imported. Only DAGs named openlineage_… write events.
OPENLINEAGE_EVENTS = HOME / "openlineage.jsonl"
OPENLINEAGE = {
    "AIRFLOW__OPENLINEAGE__EMISSION_POLICY": json.dumps(
        [
            {"scope": {}, "controls": {"emit": False}},
            {"scope": {"dag_id": "openlineage_.*"}, "match_mode": "regex", "controls": {"emit": True}},
        ]
    ),
    "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
        {"type": "file", "log_file_path": str(OPENLINEAGE_EVENTS), "append": True}
    ),
}
os.environ.update(
    SETTINGS | OPENLINEAGE,
    AIRFLOW_HOME=str(HOME),
    AIRFLOW__CORE__DAGS_FOLDER=str(DAGS),
    AIRFLOW__LOGGING__BASE_LOG_FOLDER=str(HOME / "logs"),
)


@pytest.fixture(scope="session")
def airflow_db() -> None:
    """Make the session's database."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Give what defines a connection (pulsar_default, or another id) as a JSON environment variable."""

    def define(conn_id: str = "pulsar_default", *, conn_type: str = "pulsar", **extra: Any) -> str:
        standard = {name: extra.pop(name) for name in ("host", "port", "login", "password", "schema") if name in extra}
        stored = {"conn_type": conn_type, **standard, "extra": extra}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(stored))
        return conn_id

    return define


@pytest.fixture(scope="session")
def airflow_home(airflow_db: None) -> Path:
    """Give Airflow's home, its database made."""
    return HOME


# Files with tests on the real Airflow. The processes that share the suite run each group whole, on an Airflow of its
# own, and begin with these: they take longest, and wait most of the time.
_WITH_AIRFLOW = (
    ("operators/test_consume_stack.py", "test_load_runs.py"),
    (
        "triggers/test_msg_queue_airflow.py",
        "operators/test_consume_topics.py",
        "operators/test_publish_airflow.py",
        "plugins/test_event_producer_airflow.py",
        "sensors/test_start_airflow.py",
        "sensors/test_topic_airflow.py",
        "test_airflow_stack.py",
        "test_masking.py",
        "test_system_airflow.py",
    ),
)


def _group_of(file: str) -> int | None:
    """Return the number of the group a file belongs to, None for one without the real Airflow."""
    return next((number for number, files in enumerate(_WITH_AIRFLOW) if file.endswith(files)), None)


# Other long files, which come next: the last file of a process decides when all are done.
_LONG = (
    "operators/test_spark.py",
    "operators/test_spark_cluster.py",
    "operators/test_spark_submit.py",
    "operators/test_spark_tables.py",
    "triggers/test_msg_queue_postgres.py",
    "decorators/test_spark.py",
    "test_wheels.py",
)


def _turn_of(file: str) -> int:
    """Return when a file is run: the groups first, then the other long files."""
    group = _group_of(file)
    return group if group is not None else len(_WITH_AIRFLOW) + (not file.endswith(_LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep files whole, and those of a group with the real Airflow together."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            group = _group_of(file)
            return file if group is None else f"airflow {group}"

    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses the real processes, and give it the time that their start may take."""
    for item in items:
        if "airflow" in getattr(item, "fixturenames", ()):
            item.add_marker("airflow")
            if _group_of(item.path.as_posix()) is None:
                raise pytest.UsageError(f"{item.path.name} has a test on the real Airflow: add it to _WITH_AIRFLOW")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))
    items.sort(key=lambda item: _turn_of(item.path.as_posix()))


# The plugin of the real processes publishes what DAGs named events_… do, if a test has made the connection and topics.
EVENT_CONNECTION = "pulsar_events"
RUN_EVENTS, TASK_EVENTS = (f"persistent://public/default/airflow-events-{kind}" for kind in ("runs", "tasks"))
EVENT_PRODUCER = {
    "DAG_RUN_EVENTS_ENABLED": "True",
    "TASK_INSTANCE_EVENTS_ENABLED": "True",
    "PULSAR_CONN_ID": EVENT_CONNECTION,
    "DAGRUN_TOPIC": RUN_EVENTS,
    "TASK_INSTANCE_TOPIC": TASK_EVENTS,
    "SOURCE": "tests",
    "DAG_RUN_DAG_ID_ALLOWLIST": "events_*",
    "TASK_INSTANCE_DAG_ID_ALLOWLIST": "events_*",
    "TOPIC_CHECK_RETRY_INTERVAL": "1",
}


_STACK = pytest.StashKey[AirflowStack]()


@pytest.fixture(scope="session")
def airflow(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgres: Postgres
) -> Iterator[AirflowStack]:
    """Give the real Airflow of this session, on PostgreSQL as in production: see support/airflow_stack.py."""
    spark = ROOT / ".envs" / "spark"
    home = tmp_path_factory.mktemp("airflow") / "home"
    env = {
        "EXAMPLES_FOLDER": str(home.parent / "examples"),
        "SPARK_APPLICATIONS": str(ROOT / "tests" / "system" / "applications"),
        "SPARK_ENVIRONMENT": str(spark),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # An operator that names no environment of Spark takes the first spark-submit of the path.
        "PATH": f"{spark / 'bin'}{os.pathsep}{os.environ['PATH']}",
        **{f"AIRFLOW__PULSAR_EVENT_PRODUCER__{name}": value for name, value in EVENT_PRODUCER.items()},
    }
    with postgres.database() as name:
        stack = AirflowStack(home, env, metadata=PostgresMetadata(postgres, name))
        try:
            stack.start()
            request.session.stash[_STACK] = stack
            # Else the first task to use it would create it and wait, maybe longer than its test lets it run.
            stack.add_variable("pulsar_deployment_id", "5e77ab1e00c0ffee")
            yield stack
        finally:
            stack.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Give a PostgreSQL server of the session."""
    folder = postgres_folder()
    if folder is None:
        pytest.skip(f"{NO_POSTGRES} dev/setup postgres installs it (Debian: apt-get install postgresql)")
    server = Postgres(folder)
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def _airflow_tidied(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave the real Airflow to the next test as it was found."""
    yield
    if "airflow" in request.fixturenames:
        stack: AirflowStack = request.getfixturevalue("airflow")
        stack.tidy()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the real Airflow when its last test has run: idle, it takes a quarter of a core from those that follow."""
    if nextitem is not None and _group_of(nextitem.path.as_posix()) is None:
        stack = item.session.stash.get(_STACK, None)
        if stack is not None:
            stack.stop()


@pytest.fixture
def openlineage_events() -> Callable[[str], list[dict[str, Any]]]:
    """Give a function that returns the events of a DAG's tasks, in the order they were written."""
    from airflow.providers.openlineage import conf
    from airflow.providers.openlineage.plugins.listener import get_openlineage_listener

    # Its settings are read, and its client is made, once a process: another test may have had others.
    get_openlineage_listener().adapter._client = None
    for setting in vars(conf).values():
        if hasattr(setting, "cache_clear"):
            setting.cache_clear()

    def read(dag_id: str) -> list[dict[str, Any]]:
        events = [json.loads(line) for line in OPENLINEAGE_EVENTS.read_text().splitlines()]
        return [event for event in events if event["job"]["name"].startswith(f"{dag_id}.")]

    return read


@pytest.fixture
def event_topics(airflow: AirflowStack, broker: Broker) -> dict[str, str]:
    """Define the connection of the event producer and make its topics, given by kind."""
    airflow.define_connection(EVENT_CONNECTION, service_url=broker.service_url, admin_url=broker.admin_url)
    topics = {"dag_run": RUN_EVENTS, "task_instance": TASK_EVENTS}
    with AdminClient(broker.admin_url) as admin:
        for name in topics.values():
            with contextlib.suppress(AlreadyExists):
                admin.create_topic(name)
    return topics


@pytest.fixture
def pulsar_conn(broker: Any, connection: Callable[..., str]) -> str:
    """Define the connection pulsar_default to the shared broker and return its id."""
    return connection(service_url=broker.service_url, admin_url=broker.admin_url)


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    """Give a client of the shared broker."""
    with Client(broker.service_url) as made:
        yield made


@pytest.fixture
def admin(broker: Broker) -> Iterator[AdminClient]:
    """Give the admin client of the shared broker."""
    with AdminClient(broker.admin_url) as made:
        yield made


@pytest.fixture
def once(namespace: Callable[[], str], admin: AdminClient, topic: NewTopic) -> Callable[..., str]:
    """Give a factory of topics in a namespace with deduplication."""
    name = namespace()
    admin.set_deduplication(name, True)
    probe = f"persistent://{name}/probe"
    admin.create_topic(probe)
    deadline = time.monotonic() + 20
    # A broker that is busy may not know the policy yet when the first topic is loaded.
    while admin.stats(probe)["deduplicationStatus"] != "Enabled":
        assert time.monotonic() < deadline
        time.sleep(0.02)

    def create(partitions: int = 0) -> str:
        return topic(partitions=partitions, namespace=name)

    return create
