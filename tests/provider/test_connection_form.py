"""The connection form as a person has it: a real api-server, a real browser, labels read from the page."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from airflow import __version__ as airflow_version

from airflow_provider_pulsar.get_provider_info import get_provider_info
from environments import ROOT, browser_path, python_of
from support.airflow_processes import AirflowProcesses
from support.brokers import Broker

_SCRIPT = Path(__file__).with_name("connection_form_browser.py")
# The list of connections has pages: this one is on the first.
CONN_ID = "a_connection_of_the_form"
_HOOK = "airflow_provider_pulsar.hooks.pulsar"
_INFO = "airflow_provider_pulsar.get_provider_info"
# Loaded by every Python process of the api-server; notes each of our modules as it is imported.
_RECORDER = """
import sys

class Recorder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("airflow_provider_pulsar"):
            with open({record!r}, "a") as file:
                file.write(name + "\\n")

sys.meta_path.insert(0, Recorder())
"""


class Imports:
    """The names of our modules that any process of the api-server has imported."""

    def __init__(self, folder: Path) -> None:
        self._record = folder / "imports"
        self._record.touch()
        (folder / "sitecustomize.py").write_text(_RECORDER.format(record=str(self._record)))

    def names(self) -> set[str]:
        return set(self._record.read_text().split())


@contextmanager
def browser(url: str, pictures: Path, asked: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Run the browser's script; it ends with the block."""
    chromium = browser_path()
    assert chromium is not None, "dev/setup browser installs one"
    command = [str(python_of("browser")), str(_SCRIPT), chromium, url, str(pictures), json.dumps(asked)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def told(stream: IO[str] | None) -> Any:
    """Return what the next step found."""
    assert stream is not None
    line = stream.readline()
    assert line, "the browser's script ended early"
    return json.loads(line)


def go_on(stream: IO[str] | None) -> None:
    """Let the script take its next step."""
    assert stream is not None
    stream.write("\n")
    stream.flush()


def expected_fields() -> dict[str, set[str]]:
    """Return the labels by section that provider.yaml describes."""
    kind = get_provider_info()["connection-types"][0]
    sections: dict[str, set[str]] = {}
    for described in kind["conn-fields"].values():
        sections.setdefault(described["schema"]["section"], set()).add(described["label"])
    behaviour = kind["ui-field-behaviour"]
    shown = {"host", "port", "login", "password"} - set(behaviour["hidden-fields"])
    sections["Standard Fields"] = {"Description", *(behaviour["relabeling"][name] for name in shown)}
    return sections


@pytest.mark.airflow
@pytest.mark.proves("K1", "A1", "A2")
@pytest.mark.timeout(600)
def test_connection_form_fields_and_test_button(broker: Broker, airflow_home: Path, tmp_path: Path) -> None:
    imports = Imports(tmp_path)
    pictures = ROOT / ".results"
    pictures.mkdir(exist_ok=True)
    shutil.rmtree(airflow_home / "processes", ignore_errors=True)
    relabeled = get_provider_info()["connection-types"][0]["ui-field-behaviour"]["relabeling"]
    asked = {
        "conn_id": CONN_ID,
        "hook_name": "Apache Pulsar",
        "values": {
            # Airflow 3.3 tests no stored connection without a port: its page sends 0 for none, its server refuses that.
            "Standard Fields": {relabeled["port"]: broker.service_url.rpartition(":")[2]},
            "Pulsar": {"Service URL": broker.service_url, "Admin URL": broker.admin_url},
            "Authentication": {},
        },
    }
    with AirflowProcesses(airflow_home, {"PYTHONPATH": str(tmp_path)}) as airflow:
        airflow.start("api-server")
        with browser(airflow.url, pictures, asked) as script:
            form = told(script.stdout)
            check_form(form)
            go_on(script.stdin)
            assert told(script.stdout) == {"saved": True}
            stored = airflow.call("GET", f"/api/v2/connections/{CONN_ID}")
            assert stored["conn_type"] == "pulsar"
            assert json.loads(stored["extra"])["service_url"] == broker.service_url
            assert _INFO in imports.names(), "the recorder records"
            assert _HOOK not in imports.names(), "the form must not need the hook"
            go_on(script.stdin)
            tested = told(script.stdout)["tested"]
            go_on(script.stdin)
            script.wait(20)
        assert _HOOK in imports.names()
    assert tested == {"status": True, "message": "TCP ok, CONNECT ok (Pulsar 4.2.4), lookup ok, admin ok"}


def check_form(form: Any) -> None:
    """Compare what the page shows with provider.yaml, in both directions."""
    found: dict[str, set[str]] = {}
    for each in form["fields"]:
        found.setdefault(each["section"], set()).add(each["label"])
    assert found.pop("") == {"Connection ID", "Connection Type"}
    found.pop("Extra Fields JSON", None)
    assert found == expected_fields()
    kind = get_provider_info()["connection-types"][0]
    fields = kind["conn-fields"].values()
    secret = {each["label"] for each in fields if each["schema"].get("format") == "password"}
    hidden = {each["label"] for each in form["fields"] if each["type"] == "password"}
    # The page of Airflow 3.3.0 hides what is typed into the password alone, whatever the provider.
    secret = set() if airflow_version == "3.3.0" else secret
    assert hidden == {*secret, kind["ui-field-behaviour"]["relabeling"]["password"]}
    assert form["choices"] == kind["conn-fields"]["auth_method"]["schema"]["enum"]
