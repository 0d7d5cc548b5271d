"""The build of the documentation site: what an interrupted build left, and links without a host."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import checks
import docs
import environments


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Build nothing, into a folder of the test; give the commands of Sphinx."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(docs, "BUILT", tmp_path / "_build")
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(environments, "make", lambda name: None)
    monkeypatch.setattr(checks, "link_provider", lambda: None)
    monkeypatch.setattr(subprocess, "run", run)
    (tmp_path / "_build" / "html").mkdir(parents=True)
    return commands


def test_build_without_index_writes_every_page(built: list[list[str]], tmp_path: Path) -> None:
    assert docs.main(["-E"]) == 0
    (tmp_path / "_build" / "html" / "searchindex.js").touch()
    assert docs.main([]) == 0
    assert ["-a" in command for command in built] == [True, False]
    assert "-E" in built[0] and built[0][-2:] == [str(tmp_path / "docs"), str(tmp_path / "_build" / "html")]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_link_without_host_fails_the_build(
    scheme: str, built: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "_build" / "html" / "reference" / "client.html"
    page.parent.mkdir()
    page.write_text(f'<a href="{scheme}://pulsar.apache.org/">Pulsar</a>')
    assert docs.main([]) == 0 and len(built) == 1
    page.write_text(f'<p>or <a class="reference external" href="{scheme}://">{scheme}://</a></p>')
    assert docs.main([]) == 1
    # The page may be one of an earlier build.
    assert ["-E" in command for command in built[1:]] == [False, True]
    assert docs.main(["-E"]) == 1 and len(built) == 4
    assert "docs: reference/client.html has a link without a host" in capsys.readouterr().err
