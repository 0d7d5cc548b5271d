"""The three distributions fit together, and what is committed names no host."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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


def test_our_distributions_depend_on_each_other_exactly_and_one_way() -> None:
    version = PROJECTS["client"]["version"]
    ours = re.compile(r"^(pulsar-native|pyspark-pulsar|airflow-provider-pulsar)")
    wanted = {
        name: sorted(each for each in project["dependencies"] if ours.match(each)) for name, project in PROJECTS.items()
    }
    assert wanted["client"] == []
    assert [each.partition("[")[0].partition("==")[0] for each in wanted["spark"]] == ["pulsar-native"]
    assert len(wanted["."]) == 2
    assert all(each.endswith(f"=={version}") for project in wanted.values() for each in project)


def test_pins_are_exact_and_name_no_host() -> None:
    sources = sorted((ROOT / "requirements").glob("*.in"))
    assert [source.stem for source in sources] == ["airflow", "browser", "dev", "spark"]
    for source in sources:
        pins = source.with_suffix(".txt").read_text()
        assert "://" not in pins and "--" not in pins
        for line in pins.splitlines():
            assert line.startswith(("    #", "#")) or re.match(r"^[a-z0-9_.\-]+(\[[a-z,]+\])?==\S+( ; .*)?$", line), (
                line
            )
    assert not (ROOT / "uv.lock").exists()


def test_full_pyspark_never_meets_airflow() -> None:
    # Both own the same files; the one installed last would win.
    assert not re.search(r"^pyspark==", (ROOT / "requirements" / "airflow.txt").read_text(), re.MULTILINE)
