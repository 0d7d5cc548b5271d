"""The three distributions, built as for a release: their files and their metadata."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# Distribution -> folder of its project, what its source needs, its package and where that lies.
PROJECTS = {
    "pulsar-native": ("client", ("client",), "pulsar_native", "client/pulsar_native"),
    "pyspark-pulsar": ("spark", ("spark",), "pyspark_pulsar", "spark/pyspark_pulsar"),
    "airflow-provider-pulsar": (
        ".",
        ("provider", "pyproject.toml", "setup.py", "README.md", "LICENSE"),
        "airflow_provider_pulsar",
        "provider",
    ),
}
SPEEDUPS = ("pulsar_native/_message_speedups.pyx", "pulsar_native/wire/_speedups.pyx")
_CALL = "import sys, {module} as b; b.build_{kind}(sys.argv[1])"


@dataclass
class Built:
    """Files of a distribution's wheel and sdist."""

    wheel: set[str]
    sdist: set[str]
    metadata: Message
    name: str = field(default="")


def _copy(parts: tuple[str, ...], folder: Path) -> None:
    """Copy the committed and the new files of a project, so that building writes nothing into the checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *parts],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)


@pytest.fixture(scope="module", params=PROJECTS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build a distribution twice, by its own backend, without a network."""
    project, parts, _, _ = PROJECTS[request.param]
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    _copy(parts, source)
    backend = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["build-system"]["build-backend"]
    for kind in ("sdist", "wheel"):
        done = subprocess.run(
            [sys.executable, "-c", _CALL.format(module=backend, kind=kind), str(out)],
            cwd=source / project,
            env={**os.environ, "PULSAR_NATIVE_IMPL": "python"},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (found,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(found))
    with tarfile.open(sdist) as packed:
        members = {name.partition("/")[2] for name in packed.getnames()}
    return Built(names, members, metadata, request.param)


def test_wheel_holds_package_and_licence_only(built: Built) -> None:
    _, _, package, place = PROJECTS[built.name]
    committed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", place],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    wanted = {f"{package}/{name.removeprefix(f'{place}/')}" for name in committed if (ROOT / name).is_file()}
    assert f"{package}/py.typed" in wanted
    missing = {name for name in wanted - built.wheel if not name.endswith((".pyx", ".proto", ".md"))}
    assert not missing
    beside = {name for name in built.wheel - wanted if ".dist-info/" not in name}
    assert not beside
    assert any(name.endswith("/licenses/LICENSE") for name in built.wheel)


def test_sdist_holds_what_a_build_needs(built: Built) -> None:
    project, _, _, place = PROJECTS[built.name]
    inside = place if project == "." else place.removeprefix(f"{project}/")
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO", f"{inside}/py.typed"} <= built.sdist
    assert (built.name != "pulsar-native") or {"hatch_build.py", *SPEEDUPS} <= built.sdist
    assert (built.name != "airflow-provider-pulsar") or {"setup.py", "provider/provider.yaml"} <= built.sdist
    assert not [name for name in built.sdist if name.endswith((".so", ".pyd", ".c", ".pyc")) or "tests/" in name]


def test_metadata_is_complete(built: Built) -> None:
    data = built.metadata
    assert data["Name"] == built.name
    assert data["License-Expression"] == "Apache-2.0"
    assert data["Author"] == "The airflow-provider-pulsar contributors"
    assert data["Requires-Python"] == ">=3.11"
    assert data["Description-Content-Type"] == "text/markdown"
    assert len(str(data["Keywords"]).split(",")) >= 5
    assert len(data.get_all("Project-URL", [])) >= 2
    pythons = {c.rpartition(" ")[2] for c in data.get_all("Classifier", []) if c.startswith("Programming Language")}
    assert {"3.11", "3.12", "3.13", "3.14"} <= pythons
    assert "Typing :: Typed" in data.get_all("Classifier", [])


def test_readme_begins_with_how_to_install(built: Built) -> None:
    text = built.metadata.get_payload()
    assert isinstance(text, str)
    first_screen = "\n".join(text.splitlines()[:25])
    assert re.search(rf'^pip install "?{re.escape(built.name)}\b', first_screen, re.MULTILINE), first_screen


def test_provider_wheel_registers_with_airflow(built: Built) -> None:
    if built.name == "airflow-provider-pulsar":
        assert any(name.endswith(".dist-info/entry_points.txt") for name in built.wheel)
        assert "airflow_provider_pulsar/get_provider_info.py" in built.wheel
    else:
        assert not any(name.endswith(".dist-info/entry_points.txt") for name in built.wheel)
