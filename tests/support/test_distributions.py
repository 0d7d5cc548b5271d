"""The three distributions, built as for a release: their files and their metadata."""

from __future__ import annotations

import email
import re
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message

import pytest

import wheels
from wheels import Project

# Given to the build as whoever publishes the documentation does.
_SITE = "https://docs.example.org/pulsar/"
SPEEDUPS = ("pulsar_native/_message_speedups.pyx", "pulsar_native/wire/_speedups.pyx")


@dataclass
class Built:
    """Files of a distribution's wheel and sdist."""

    wheel: set[str]
    sdist: set[str]
    metadata: Message
    project: Project

    @property
    def name(self) -> str:
        """Return the distribution's name."""
        return self.project.name


@pytest.fixture(scope="module", params=wheels.PROJECTS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """Build a distribution twice, by its own backend, without a network."""
    project, out = wheels.PROJECTS[request.param], tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PULSAR_NATIVE_IMPL", "python")
        patch.setenv("DOCUMENTATION_URL", _SITE)
        wheel, sdist = wheels.build(project, out), wheels.build(project, out, "sdist")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (found,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(found))
    with tarfile.open(sdist) as packed:
        members = {name.partition("/")[2] for name in packed.getnames()}
    yield Built(names, members, metadata, project)


def test_wheel_holds_package_and_licence_only(built: Built) -> None:
    package, place = built.project.package, built.project.source
    wanted = {f"{package}/{name.removeprefix(f'{place}/')}" for name in wheels.tracked(place)}
    assert f"{package}/py.typed" in wanted
    missing = {name for name in wanted - built.wheel if not name.endswith((".pyx", ".proto", ".md"))}
    assert not missing
    beside = {name for name in built.wheel - wanted if ".dist-info/" not in name}
    assert not beside
    assert any(name.endswith("/licenses/LICENSE") for name in built.wheel)


def test_sdist_holds_what_a_build_needs(built: Built) -> None:
    folder, place = built.project.folder, built.project.source
    inside = place if folder == "." else place.removeprefix(f"{folder}/")
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


def test_readme_has_no_relative_links(built: Built) -> None:
    # The package's page has no files beside it.
    text = built.metadata.get_payload()
    assert isinstance(text, str)
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", text) == []


def test_provider_wheel_registers_with_airflow(built: Built) -> None:
    if built.name == "airflow-provider-pulsar":
        assert any(name.endswith(".dist-info/entry_points.txt") for name in built.wheel)
        assert "airflow_provider_pulsar/get_provider_info.py" in built.wheel
    else:
        assert not any(name.endswith(".dist-info/entry_points.txt") for name in built.wheel)


def test_documentation_url_is_of_the_provider(built: Built) -> None:
    # Airflow's list of providers takes its link from here.
    links = [url for url in built.metadata.get_all("Project-URL", []) if url.startswith("Documentation,")]
    assert links == ([f"Documentation, {_SITE}"] if built.name == "airflow-provider-pulsar" else [])
