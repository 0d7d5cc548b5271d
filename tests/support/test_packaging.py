"""The three distributions fit together, and what is committed names no host."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

import screenshots

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECTS = {
    name: tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"] for name in ("client", "spark", ".")
}


def test_one_version_and_licence_for_all_and_the_changelog_knows_it() -> None:
    versions = {project["version"] for project in PROJECTS.values()}
    assert len(versions) == 1
    assert {project["license"] for project in PROJECTS.values()} == {"Apache-2.0"}
    licences = {(ROOT / name / "LICENSE").read_bytes() for name in PROJECTS}
    assert len(licences) == 1
    assert f"## {versions.pop()}" in (ROOT / "CHANGELOG.md").read_text()


def extras(project: dict[str, Any]) -> list[str]:
    """Return the dependencies of all extras of a project."""
    return [each for group in project.get("optional-dependencies", {}).values() for each in group]


def test_provider_needs_airflow_and_client_only() -> None:
    project = PROJECTS["."]
    assert [re.split(r"[\[>=]", each)[0] for each in project["dependencies"]] == ["apache-airflow", "pulsar-native"]
    assert set(project["optional-dependencies"]) == {"messaging", "openlineage", "spark", "sql"}


def test_our_distributions_depend_on_each_other_exactly_and_one_way() -> None:
    version = PROJECTS["client"]["version"]
    ours = re.compile(r"^(pulsar-native|pyspark-pulsar|airflow-provider-pulsar)")
    wanted = {
        name: sorted(each for each in project["dependencies"] if ours.match(each)) for name, project in PROJECTS.items()
    }
    wanted["."] += [each for each in extras(PROJECTS["."]) if ours.match(each)]
    assert wanted["client"] == []
    assert [each.partition("[")[0].partition("==")[0] for each in wanted["spark"]] == ["pulsar-native"]
    assert len(wanted["."]) == 2
    assert all(each.endswith(f"=={version}") for project in wanted.values() for each in project)


def test_pins_are_exact_and_name_no_host() -> None:
    sources = sorted((ROOT / "requirements").glob("*.in"))
    assert sorted(source.stem for source in sources) == [
        "airflow",
        "airflow-oldest",
        "browser",
        "dev",
        "docs",
        "spark",
        "spark-jvm",
        "spark-official",
        "spark-oldest",
        "tables",
    ]
    for source in sources:
        pins = source.with_suffix(".txt").read_text()
        assert "://" not in pins and "--" not in pins
        for line in pins.splitlines():
            assert line.startswith(("    #", "#")) or re.match(r"^[a-z0-9_.\-]+(\[[a-z,]+\])?==\S+( ; .*)?$", line), (
                line
            )
    assert not (ROOT / "uv.lock").exists()


def test_workflows_make_what_the_makefile_has() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = {
        path.name: set(re.findall(r"(?:- run: make|- target:) ([a-z-]+)$", path.read_text(), re.MULTILINE))
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
    }
    assert made["test.yml"] == {"test", "test-quick"}
    assert made["nightly.yml"] == {"test", "test-long", "test-oldest", "mutants"}
    assert set().union(*made.values()) <= targets


@pytest.mark.parametrize("name", ["airflow", "airflow-oldest"])
def test_full_pyspark_never_meets_airflow(name: str) -> None:
    # Both own the same files; the one installed last would win.
    assert not re.search(r"^pyspark==", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE)


def test_oldest_airflow_has_the_floors_of_the_provider() -> None:
    project = PROJECTS["."]
    floors = dict(
        each.split(">=") for each in project["dependencies"] + extras(project) if each.startswith("apache-airflow")
    )
    assert len(floors) == 5
    pins = dict(re.findall(r"^(apache-airflow[a-z-]*)==(\S+)", _pins("airflow-oldest"), re.MULTILINE))
    # A floor names as many places as it needs: 3.3 is 3.3.0.
    assert {name: pins[name] for name in floors} == {
        name: floor + ".0" * (2 - floor.count(".")) for name, floor in floors.items()
    }
    newest = dict(re.findall(r"^(apache-airflow[a-z-]*)==(\S+)", _pins("airflow"), re.MULTILINE))
    assert newest["apache-airflow"] != pins["apache-airflow"]


def test_oldest_spark_has_the_floor_of_the_data_source() -> None:
    floors = PROJECTS["spark"]["optional-dependencies"]["spark"]
    names = ("spark-oldest", "spark")
    oldest, newest = (re.search(r"^pyspark==(\S+)", _pins(name), re.MULTILINE)[1] for name in names)  # type: ignore[index]
    assert floors == [f"pyspark>={oldest.removesuffix('.0')}"] and newest != oldest


def _pins(name: str) -> str:
    return (ROOT / "requirements" / f"{name}.txt").read_text()


def test_typing_link_leads_to_the_provider() -> None:
    # Type checkers do not follow setuptools' renaming of provider/; the link is committed, so a fresh clone has it.
    link = ROOT / ".typing" / "airflow_provider_pulsar"
    assert link.is_symlink()
    assert link.resolve() == (ROOT / "provider").resolve()
    listed = subprocess.run(["git", "ls-files", "-s", ".typing"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert listed.stdout.startswith("120000 ")


def test_table_of_contents_names_pages_that_exist() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    entries = [
        line
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if line and not line.startswith(":")
    ]
    assert len(entries) > 20
    assert not {name for name in entries if not (ROOT / "docs" / f"{name}.md").exists()}
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in _pages()}
    assert pages - {"index"} <= set(entries)


def _pages() -> list[Path]:
    return [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]


def test_make_targets_named_in_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *_pages()]
    named = {name for page in pages for name in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.MULTILINE)}
    assert {"demo", "test", "docs"} <= named
    assert named <= targets


def test_pictures_of_the_site_exist_and_are_small() -> None:
    used = {
        (page.parent / name).resolve()
        for page in _pages()
        for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text())
    }
    taken = {screenshots.IMAGES / f"{name}.png" for name in screenshots.NAMES}
    assert used == set(screenshots.IMAGES.iterdir()) and taken <= used
    for picture in used:
        content = picture.read_bytes()
        drawn = re.fullmatch(r"growth-[a-z-]+\.svg", picture.name)
        assert content.startswith(b"\x89PNG") if picture in taken else drawn and content.startswith(b"<?xml"), picture
        assert len(content) <= screenshots.MOST_BYTES
