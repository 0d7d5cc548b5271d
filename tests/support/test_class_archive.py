"""Class archives of the tests' drivers: made once, made again when damaged or out of date, never a failure."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import class_archive
from class_archive import DRIVER_OPTIONS, archive_options, driver_options


class Maker:
    """Stand-in for the Spark job: writes an archive, or fails, and counts."""

    def __init__(self) -> None:
        self.made = 0
        self.fails = False

    def __call__(self, env: str, archive: Path) -> None:
        """Write the archive of an environment."""
        self.made += 1
        archive.write_bytes(b"classes" * self.made)
        if self.fails:
            raise subprocess.CalledProcessError(1, "spark-submit")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder of the archive of an environment "spark"."""
    monkeypatch.setattr(class_archive, "ENVS", tmp_path)
    (tmp_path / "spark" / "lib" / "python3.11" / "site-packages" / "pyspark" / "jars").mkdir(parents=True)
    return tmp_path / "spark" / "class-archive"


def test_archive_is_made_once(folder: Path) -> None:
    make = Maker()
    options = driver_options("spark", make)
    assert options == f"{DRIVER_OPTIONS} {archive_options(folder / 'spark.jsa')}"
    assert (folder / "spark.jsa").read_bytes() == b"classes"
    assert driver_options("spark", make) == options and make.made == 1


def _damage(folder: Path) -> None:
    (folder / "spark.jsa").write_bytes(b"clasSes")


def _cut(folder: Path) -> None:
    # A JVM would end with SIGABRT.
    (folder / "spark.jsa").write_bytes(b"clas")


def _remove(folder: Path) -> None:
    (folder / "spark.jsa").unlink()


def _garble_stamp(folder: Path) -> None:
    (folder / "stamp.json").write_text('["not a stamp"')


def _other_spark(folder: Path) -> None:
    (next(folder.parent.rglob("jars")) / "spark-core_2.13-9.9.9.jar").touch()


@pytest.mark.parametrize("change", [_damage, _cut, _remove, _garble_stamp, _other_spark])
def test_archive_is_made_again_after(folder: Path, change: Callable[[Path], None]) -> None:
    make = Maker()
    driver_options("spark", make)
    change(folder)
    assert str(folder) in driver_options("spark", make)
    assert make.made == 2 and (folder / "spark.jsa").read_bytes() == b"classes" * 2


def test_archive_of_failed_job_is_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make = Maker()
    make.fails = True
    assert driver_options("spark", make) == DRIVER_OPTIONS
    assert "drivers start without one" in capsys.readouterr().out
    assert not list(folder.glob("*.jsa"))
    assert driver_options("spark", make) == DRIVER_OPTIONS and make.made == 1, "not tried again"
    _other_spark(folder)
    make.fails = False
    assert driver_options("spark", make) != DRIVER_OPTIONS and make.made == 2


def test_archive_of_unwritable_folder_is_left_out(folder: Path) -> None:
    folder.write_text("a file in its place")
    assert driver_options("spark", Maker()) == DRIVER_OPTIONS


# ---- the JVM itself --------------------------------------------------------------------------------------------------


def java(*options: str) -> str:
    """Return what a JVM with the options prints, to either output, while it starts and tells its version."""
    command = [shutil.which("java") or "java", *options, "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
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
    plain = DRIVER_OPTIONS.split()
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
