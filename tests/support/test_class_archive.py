"""Class archives of the tests' JVMs: made once, made again when damaged or out of date, never a failure."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

import class_archive
import environments
from class_archive import JVM_OPTIONS, archive_options, broker_options, driver_options


class Maker:
    """Stand-in for the job: writes an archive, or fails, and counts."""

    def __init__(self) -> None:
        self.made = 0
        self.fails = False

    def __call__(self, archive: Path) -> None:
        """Write the archive."""
        self.made += 1
        archive.write_bytes(b"classes" * self.made)
        if self.fails:
            raise subprocess.CalledProcessError(1, "spark-submit")


@dataclass
class Kind:
    """Options of one kind of JVM, with the folder of its archive and that of its jars."""

    options: Callable[[Callable[[Path], None]], str]
    folder: Path
    jars: Path

    @property
    def archive(self) -> Path:
        """Return the path of its archive."""
        return self.folder / f"{self.folder.parent.name}.jsa"


@pytest.fixture(params=["spark", "broker"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kind:
    """Give the drivers of an environment "spark", and the broker."""
    monkeypatch.setattr(class_archive, "ENVS", tmp_path)
    monkeypatch.setattr(class_archive, "jars_folder", lambda: tmp_path / "lib")
    is_spark = request.param == "spark"
    jars = tmp_path / ("spark/lib/python3.11/site-packages/pyspark/jars" if is_spark else "lib")
    jars.mkdir(parents=True)
    options = partial(driver_options, "spark") if is_spark else broker_options
    return Kind(options, tmp_path / request.param / "class-archive", jars)


def test_archive_is_made_once(kind: Kind) -> None:
    make = Maker()
    options = kind.options(make)
    assert options == f"{JVM_OPTIONS} {archive_options(kind.archive)}"
    assert kind.archive.read_bytes() == b"classes"
    assert kind.options(make) == options and make.made == 1


def test_archive_wanted_twice_at_once_is_made_once(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = threading.Event()
    monkeypatch.setattr(environments, "say", lambda _text: waits.set())
    make = Maker()
    others: list[Future[str]] = []

    def make_while_another_waits(archive: Path) -> None:
        others.append(pool.submit(kind.options, make))
        assert waits.wait(10), "nothing kept the other one from making it too"
        make(archive)

    with ThreadPoolExecutor(1) as pool:
        options = kind.options(make_while_another_waits)
        assert others[0].result(10) == options
    assert make.made == 1 and kind.archive.read_bytes() == b"classes"


def _damage(kind: Kind) -> None:
    kind.archive.write_bytes(b"clasSes")


def _cut(kind: Kind) -> None:
    # A JVM would end with SIGABRT.
    kind.archive.write_bytes(b"clas")


def _remove(kind: Kind) -> None:
    kind.archive.unlink()


def _garble_stamp(kind: Kind) -> None:
    (kind.folder / "stamp.json").write_text('["not a stamp"')


def _other_jars(kind: Kind) -> None:
    (kind.jars / "core_2.13-9.9.9.jar").touch()


@pytest.mark.parametrize("change", [_damage, _cut, _remove, _garble_stamp, _other_jars])
def test_archive_is_made_again_after(kind: Kind, change: Callable[[Kind], None]) -> None:
    make = Maker()
    kind.options(make)
    change(kind)
    assert str(kind.archive) in kind.options(make)
    assert make.made == 2 and kind.archive.read_bytes() == b"classes" * 2


def test_archive_of_failed_job_is_left_out(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    make = Maker()
    make.fails = True
    assert kind.options(make) == JVM_OPTIONS
    assert "JVMs start without one" in capsys.readouterr().out
    assert not list(kind.folder.glob("*.jsa"))
    assert kind.options(make) == JVM_OPTIONS and make.made == 1, "not tried again"
    _other_jars(kind)
    make.fails = False
    assert kind.options(make) != JVM_OPTIONS and make.made == 2


def test_archive_of_unwritable_folder_is_left_out(kind: Kind) -> None:
    kind.folder.parent.mkdir(exist_ok=True)
    kind.folder.write_text("a file in its place")
    assert kind.options(Maker()) == JVM_OPTIONS


# ---- the JVM itself --------------------------------------------------------------------------------------------------


def java(*options: str) -> str:
    """Return what a JVM with the options prints, to either output, while it starts and tells its version."""
    command = [shutil.which("java") or "java", *options, "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout + done.stderr


def _whole(archive: bytes) -> bytes:
    return archive


def _text(archive: bytes) -> bytes:
    return b"no archive"


def _other_header(archive: bytes) -> bytes:
    return archive[:8] + bytes(byte ^ 0xFF for byte in archive[8:64]) + archive[64:]


@pytest.mark.parametrize("change", [_whole, _text, _other_header])
def test_jvm_starts_without_fitting_archive(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    made, archive = tmp_path / "made.jsa", tmp_path / "with space" / "spark.jsa"
    plain = JVM_OPTIONS.split()
    java(f"-XX:ArchiveClassesAtExit={made}", "-Xlog:cds*=off", *plain)
    archive.parent.mkdir()
    archive.write_bytes(change(made.read_bytes()))
    # Spark splits the options as a shell does.
    options = shlex.split(archive_options(archive))
    printed = java(*options, *plain)
    assert "[cds" not in printed and "warning" not in printed.lower()
    assert "version" in printed
    # Other classes in front of the path than when it was made.
    assert "warning" not in java(*options, *plain, "-cp", str(tmp_path)).lower()
