"""Commands and programs of the system that a set-up needs: how they end, where they are, how they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from ast import literal_eval
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import environments
from environments import SetupError
from support.processes import command_lines


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Let nothing of PostgreSQL be here, and apt-get, run as root, do nothing; give the packages it is asked for."""
    asked: list[str] = []

    def run(what: str, command: Sequence[str], **options: Any) -> None:
        if "install" in command:
            asked.append(command[-1])

    (tmp_path / "apt-get").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(environments, "run", run)
    monkeypatch.setattr(environments, "_debian_postgres", list)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return asked


def test_postgres_folder_has_both_programs(installed: list[str], tmp_path: Path) -> None:
    (tmp_path / "postgres").touch()
    assert environments.postgres_folder() is None
    (tmp_path / "initdb").touch()
    assert environments.postgres_folder() == tmp_path
    environments.make_postgres()
    assert installed == []


def test_postgres_missing_is_installed(installed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SetupError, match="apt-get installed PostgreSQL, but"):
        environments.make_postgres()
    assert installed == ["postgresql"]
    (tmp_path / "apt-get").unlink()
    with pytest.raises(SetupError, match=r"No PostgreSQL server here.*Debian: apt-get install postgresql"):
        environments.make_postgres()
    (tmp_path / "apt-get").touch(mode=0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SetupError, match="needs root or a sudo"):
        environments.make_postgres()
    assert installed == ["postgresql"]


def test_run_command_that_stalls_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its children end with it: one that lives on would keep the output open."""
    child = f"sleep 60.{os.getpid()}"
    command = ["sh", "-c", f"echo begun; {child} & wait"]
    monkeypatch.setattr(environments, "_COMMAND_SECONDS", 2)
    started = time.monotonic()
    with pytest.raises(SetupError, match=r"(?s)jars failed.*begun\nended, as it was not done after 2 s"):
        environments.run("jars", command)
    assert time.monotonic() - started < 40
    assert "jars: failed, trying once more (ended, as it" in capfd.readouterr().out
    assert not any(child in line for line in command_lines())


def test_run_command_output_shown_when_it_fails() -> None:
    with pytest.raises(SetupError, match=r"(?s)thing failed: sh -c .*no such thing"):
        environments.run("thing", ["sh", "-c", "echo no such thing; exit 3"])


def test_compiled_pyspark_is_imported_in_tests_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark names the archives of its Python sources on PYTHONPATH; those of an application stay there."""
    packages = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    environments.import_compiled_pyspark(tmp_path / "env" / "bin" / "python")
    archives = [str(tmp_path / name) for name in ("app.zip", "pyspark.zip", "py4j-0.10.9.9-src.zip", "more.zip")]
    program = f"import site, sys; site.addsitedir({str(packages)!r}); print(sys.path)"

    def searched(**variables: str) -> list[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(archives), **variables}
        printed = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True).stdout
        return [path for path in literal_eval(printed.decode()) if path in archives]

    monkeypatch.delenv(environments.COMPILED_PYSPARK, raising=False)
    assert searched() == archives
    assert searched(**{environments.COMPILED_PYSPARK: "1"}) == [archives[0], archives[3]]


def test_make_waits_only_for_the_same_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun, goes_on, made = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        assert goes_on.wait(30)
        made.append("slow")

    monkeypatch.setattr(environments, "ENVS", tmp_path)
    monkeypatch.setattr(environments, "TARGETS", {"slow": slow, "quick": lambda: made.append("quick")})
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(environments.make, "slow", "quick")
        assert begun.wait(30)
        environments.make("quick")
        second = pool.submit(environments.make, "slow")
        goes_on.set()
        first.result(30)
        second.result(30)
    assert made == ["quick", "slow", "quick", "slow"] or made == ["quick", "slow", "slow", "quick"]
