"""Java programs compiled against the broker's jars: once per text, and complete or not at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import java_classes
from environments import SetupError

PROGRAM = """\
import org.apache.pulsar.client.api.MessageId;

public final class Hello {
    public static void main(String[] arguments) {
        System.out.println(arguments[0] + MessageId.earliest.toByteArray().length);
    }
}
"""
pytestmark = pytest.mark.broker


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the classes be kept in a folder of the test."""
    monkeypatch.setattr(java_classes, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def test_compiled_program_runs_and_is_kept(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "Hello.java"
    source.write_text(PROGRAM)
    classes = java_classes.compiled([source], "hello")
    made = (classes / "Hello.class").stat().st_mtime_ns
    assert java_classes.compiled([source], "hello") == classes
    assert (classes / "Hello.class").stat().st_mtime_ns == made
    command = [*java_classes.command(classes, "Hello", ["-Xmx64m"]), "size "]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.startswith("size ") and int(done.stdout.split()[1]) > 0


def test_compiled_wrong_program_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "Hello.java"
    source.write_text(PROGRAM.replace("earliest", "first"))
    with pytest.raises(SetupError, match=r"hello does not compile(.|\n)*symbol"):
        java_classes.compiled([source], "hello")
    assert not list((cache / "hello").iterdir())
