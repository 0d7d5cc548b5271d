"""The provider as a user has it: its wheels in a clean environment, Airflow's own commands, and the guide followed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import wheels
from environments import ROOT
from support.airflow_stack import AirflowStack
from support.brokers import Broker
from support.dag_blocks import dag_blocks

_PACKAGES = """
import importlib.metadata, json
print(json.dumps(sorted(each.name.lower() for each in importlib.metadata.distributions())))
"""
# What the page with the connection form asks the api-server for.
_FORM = """
import json
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
for each in HookMetaService.hook_meta_data():
    if each.connection_type == "pulsar":
        print(json.dumps([each.hook_name, sorted(each.extra_fields)]))
"""
_SECONDS = 300

pytestmark = pytest.mark.timeout(600)


class Clean:
    """An environment with the provider from its wheels, and an Airflow home of its own."""

    def __init__(self, folder: Path, dist: Path) -> None:
        self.folder, self.dist, self.home = folder / "env", dist, folder / "home"
        (self.home / "dags").mkdir(parents=True)

    @property
    def python(self) -> Path:
        """Return the environment's interpreter."""
        return self.folder / "bin" / "python"

    def install(self, *extras: str) -> None:
        """Install the provider, or more extras of it."""
        # Of the Airflow that runs the tests.
        wheels.install(self.folder, self.dist, extras, pins=Path(sys.prefix).name)

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        """Run a command of the environment and return its output; nothing may come on standard error."""
        base = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
        settings = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            # Airflow's own parser uses what Python 3.14 deprecates.
            "PYTHONWARNINGS": "ignore:FileType is deprecated:PendingDeprecationWarning",
            **(env or {}),
        }
        done = subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            env=base | settings, cwd=self.home, capture_output=True, text=True, timeout=_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        assert done.stderr == ""
        return done.stdout

    def told(self, *command: str) -> Any:
        """Return what a command of Airflow's tells as JSON; another line on its output is an error."""
        return json.loads(self.run("airflow", *command, "-o", "json"))

    def packages(self) -> set[str]:
        """Return the names of the installed distributions."""
        return set(json.loads(self.run("python", "-c", _PACKAGES)))


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with the wheels of the three packages, the client's in plain Python."""
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PULSAR_NATIVE_IMPL", "python")
        patch.setenv("DOCUMENTATION_URL", "https://docs.example.org/")
        for project in wheels.PROJECTS.values():
            wheels.build(project, folder)
    return folder


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory, dist: Path) -> Clean:
    """Give an environment with the provider, without extras."""
    made = Clean(tmp_path_factory.mktemp("clean"), dist)
    made.install()
    return made


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory, dist: Path) -> Clean:
    """Give an environment with the provider and all its extras."""
    made = Clean(tmp_path_factory.mktemp("complete"), dist)
    made.install("messaging", "openlineage", "spark", "sql")
    return made


def test_wheels_without_extras_need_airflow_and_client(clean: Clean) -> None:
    found = clean.packages()
    assert {"apache-airflow", "airflow-provider-pulsar", "pulsar-native"} <= found
    extras = ("common-messaging", "openlineage", "apache-spark")
    assert not {f"apache-airflow-providers-{name}" for name in extras} & found
    assert not {"pyspark-pulsar", "pyspark", "pyspark-client"} & found
    path = clean.run("python", "-c", "import airflow_provider_pulsar as ours; print(ours.__file__)")
    assert path.startswith(str(clean.folder))


def test_wheels_airflow_commands_without_extras(clean: Clean) -> None:
    listed = {each["package_name"]: each for each in clean.told("providers", "list")}
    assert listed["airflow-provider-pulsar"]["version"] == "0.1.0"
    hooks = {each["connection_type"]: each for each in clean.told("providers", "hooks")}
    assert hooks["pulsar"]["hook_name"] == "Apache Pulsar"
    assert hooks["pulsar"]["class"] == "airflow_provider_pulsar.hooks.pulsar.PulsarHook"
    # Quiet, not a warning: what it needs is an extra.
    assert clean.told("providers", "queues") == []


def test_wheels_airflow_describes_provider(complete: Clean) -> None:
    (described,) = complete.told("providers", "get", "airflow-provider-pulsar")
    assert described["Provider"] == "airflow-provider-pulsar"
    (whole,) = complete.told("providers", "get", "airflow-provider-pulsar", "--full")
    assert whole["documentation-url"] == "https://docs.example.org/"


def test_wheels_airflow_commands_with_extras(complete: Clean) -> None:
    assert {"pyspark-pulsar", "pyspark-client", "apache-airflow-providers-common-messaging"} <= complete.packages()
    (queue,) = complete.told("providers", "queues")
    assert queue["queue_class_names"] == "airflow_provider_pulsar.queues.pulsar.PulsarMessageQueueProvider"
    links = {each["extra_link_class_name"] for each in complete.told("providers", "links")}
    assert "airflow_provider_pulsar.links.pulsar.PulsarTopicLink" in links


def test_wheels_airflow_loads_plugin(complete: Clean) -> None:
    plugins = {each["name"] for each in complete.told("plugins")}
    assert "pulsar_event_producer" in plugins


def test_wheels_connection_form_has_the_fields(clean: Clean) -> None:
    name, fields = json.loads(clean.run("python", "-W", "ignore", "-c", _FORM))
    assert name == "Apache Pulsar"
    assert {"service_url", "admin_url", "auth_method", "token"} <= set(fields)


@pytest.fixture
def guide(broker: Broker) -> Callable[[str], str]:
    """Give the function that returns the guide's line with a beginning, as printed but for addresses."""
    text = (ROOT / "docs" / "getting-started" / "event-driven.md").read_text()
    text = text.replace("pulsar://localhost:6650", broker.service_url)
    text = text.replace("http://localhost:8080", broker.admin_url)

    def line(beginning: str) -> str:
        (found,) = re.findall(rf"^{re.escape(beginning)}.*$", text, re.MULTILINE)
        return str(found)

    return line


@pytest.fixture
def stack(complete: Clean, tmp_path: Path, guide: Callable[[str], str]) -> Iterator[AirflowStack]:
    """Give a real Airflow of the environment, with the guide's connection."""
    name, _, value = guide("export AIRFLOW_CONN_PULSAR_DEFAULT=").removeprefix("export ").partition("=")
    made = AirflowStack(tmp_path / "airflow", {name: value.strip("'")}, python=complete.python)
    made.processes.env.pop("PYTHONPATH", None)
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_guide_event_driven_dag_becomes_green(
    stack: AirflowStack, complete: Clean, guide: Callable[[str], str], broker: Broker
) -> None:
    (block,) = [each for each in dag_blocks() if each.page == "docs/getting-started/event-driven.md"]
    # The broker is shared: the topic gets a name that nobody else uses.
    topic = f"orders-{os.getpid()}"
    stack.write_dag_file("paid-orders", block.text.replace('topic="orders"', f"topic={topic!r}"))
    # The subscription is the watcher's: the topic of a broker as installed would be deleted before Airflow is ready.
    pattern = r"python -m pulsar_native publish orders (--create-subscription paid-orders) -m '(.*)'"
    command = re.fullmatch(pattern, guide("python -m pulsar_native "))
    assert command is not None and 'subscription="paid-orders"' in block.text
    # Sent before the watcher may have subscribed, as somebody in a hurry does.
    urls = {"PULSAR_SERVICE_URL": broker.service_url, "PULSAR_ADMIN_URL": broker.admin_url}
    publish = f"{complete.python} -m pulsar_native publish {topic} {command[1]} -q -b {broker.service_url} -m".split()
    subprocess.run([*publish, command[2]], env={**os.environ, **urls}, check=True, timeout=_SECONDS)
    (run,) = stack.wait_runs("paid-orders", 1)
    assert run.succeeded().xcom("collect") == ["ann"]
