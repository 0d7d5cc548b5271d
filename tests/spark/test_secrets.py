"""Credentials in none of the places where Spark, the system or a load show something: each reference, each use."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pulsar_native
import py_files
from support import credentials_job
from support.brokers import OwnBroker
from support.processes import command_lines
from support.spark_cluster import SparkCluster

pytestmark = pytest.mark.timeout(900)

USER, PASSWORD = "admin", "never-in-any-log-55081"
# As `htpasswd -m` writes it.
_HTPASSWD = "admin:$apr1$hlqJ3c0x$3MOCmymtAEZxvZd6B2Lgh0"
_PROVIDERS = ("Token", "Basic")
_CONF_TOKEN, _CONF_PASSWORD = "spark.orders.pulsar.token", "spark.orders.pulsar.password"


class Places:
    """Texts by the name of the place they were found in."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def add_files(self, name: str, paths: Iterator[Path]) -> None:
        """Add the contents of files, of which there must be one at least."""
        found = {f"{name} {path}": path.read_bytes().decode("utf-8", "replace") for path in paths if path.is_file()}
        assert found, f"no {name}"
        self.texts.update(found)

    def with_any(self, secrets: dict[str, str]) -> list[str]:
        """Return the places that have a secret, with its name; plain or in base64."""
        forms = {name: (text, base64.b64encode(text.encode()).decode().rstrip("=")) for name, text in secrets.items()}
        return [
            f"{name} in {place}"
            for place, text in self.texts.items()
            for name, kinds in forms.items()
            if any(form in text for form in kinds)
        ]


class ProcessList:
    """Command lines of all processes while a `with` block runs."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            self.seen |= command_lines()

    def __enter__(self) -> ProcessList:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()


def submit(
    cluster: SparkCluster, folder: Path, properties: dict[str, str], *arguments: str
) -> tuple[subprocess.CompletedProcess[str], ProcessList]:
    """Run the job with secret settings in a private file, and its events logged uncompressed."""
    (folder / "events").mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{folder}/events",
        **properties,
    }
    file = folder / "spark.properties"
    file.touch(0o600)
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    zipped = py_files.build(folder / "pulsar.zip")
    job = credentials_job.__file__
    with ProcessList() as processes:
        done = cluster.submit(
            "--properties-file", str(file), "--py-files", str(zipped), *arguments[:2], job, *arguments[2:],
            # The process that plans a stream does not look into --py-files.
            env={"PYTHONPATH": str(zipped)}, timeout=500,
        )  # fmt: skip
    return done, processes


@pytest.mark.slow
@pytest.mark.proves("D10")
def test_credentials_are_in_no_log_plan_or_checkpoint(own_broker: OwnBroker, tmp_path: Path) -> None:
    htpasswd = tmp_path / "htpasswd"
    htpasswd.write_text(f"{_HTPASSWD}\n")
    package = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
    conf = {
        "authenticationProviders": ",".join(f"{package}{kind}" for kind in _PROVIDERS),
        "basicAuthConf": f"file://{htpasswd}",
    }
    broker = own_broker(tokens=True, conf=conf)
    tokens = {
        kind: broker.token(lifetime_seconds=50_000 + number) for number, kind in enumerate(("env", "file", "conf"))
    }
    literal = broker.token(lifetime_seconds=60_000)
    basic = json.dumps({"method": "basic", "username": USER, "password": PASSWORD})
    secrets = {f"token of {kind}": token.rpartition(".")[2] for kind, token in {**tokens, "option": literal}.items()}
    secrets |= {"password": PASSWORD, "basic header": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}
    (tmp_path / "orders.token").write_text(tokens["file"])
    (tmp_path / "basic.json").write_text(basic)
    env = {"ORDERS_TOKEN": tokens["env"], "ORDERS_BASIC": basic, "PULSAR_LITERAL": literal}
    references = [
        "env:ORDERS_TOKEN", "env:ORDERS_BASIC", f"file:{tmp_path}/basic.json", "file:orders.token",
        f"conf:{_CONF_TOKEN}", f"conf:{_CONF_PASSWORD}",
    ]  # fmt: skip
    topic = "persistent://public/default/orders"
    with pulsar_native.Client(broker.service_url, pulsar_native.AuthenticationToken(literal)) as client:
        client.create_producer(topic).send_many([b"a", b"b", b"c"])
    cluster = SparkCluster(tmp_path / "cluster", env=env)
    try:
        done, processes = submit(
            cluster.start(), tmp_path, {_CONF_TOKEN: tokens["conf"], _CONF_PASSWORD: basic},
            "--files", str(tmp_path / "orders.token"), broker.service_url, topic, f"{tmp_path}/out", *references,
        )  # fmt: skip
    finally:
        cluster.stop()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    check_job(done.stdout, references)
    places = Places()
    places.texts |= {"stdout": done.stdout, "stderr": done.stderr, "process list": "\n".join(sorted(processes.seen))}
    places.add_files("event log", (tmp_path / "events").rglob("*"))
    places.add_files("cluster log", cluster.folder.glob("*.log"))
    places.add_files("executor log", cluster.folder.glob("work-*/*/*/std*"))
    places.add_files("checkpoint", (tmp_path / "out").glob("*/checkpoint/**/*"))
    places.add_files("manifest", (tmp_path / "out").glob("*/.load.manifest.json"))
    # The search covers what it is meant to.
    assert "credentials_job.py" in places.texts["process list"] and "pyspark.daemon" in places.texts["process list"]
    assert "== Physical Plan ==" in done.stdout and "credentialsRef" in done.stdout + str(places.texts)
    assert places.with_any({"marker": "SparkListenerApplicationEnd"})
    assert places.with_any(secrets) == []


def check_job(stdout: str, references: list[str]) -> None:
    """Check that every use of every reference did what it should, so that each secret was really in use."""
    for number, reference in enumerate(references):
        # Each reference adds one message to the three there are.
        assert f"read: {reference} {3 + number}\n" in stdout
        use = "loaded" if number % 2 else "streamed"
        assert f"{use}: {reference} {4 + number}\n" in stdout
    refusals = [line for line in stdout.splitlines() if line.startswith("refused:")]
    assert len(refusals) == 4 and not [line for line in refusals if "InvalidConfiguration" not in line]
