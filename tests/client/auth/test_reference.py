"""Secret references: parsed without I/O, read at each use, never repeated in errors."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pulsar_native.auth import SecretReference
from pulsar_native.exceptions import ErrorGettingAuthenticationData, InvalidConfiguration


@pytest.mark.parametrize(
    ("text", "kind", "target"),
    [
        ("env:PULSAR_TOKEN", "env", "PULSAR_TOKEN"),
        ("file:///run/secrets/token", "file", "/run/secrets/token"),
        ("file:/run/secrets/token", "file", "/run/secrets/token"),
        ("file://localhost/run/a%20b", "file", "/run/a b"),
    ],
)
def test_parse(text: str, kind: str, target: str) -> None:
    reference = SecretReference.parse(text)
    assert (reference.kind, reference.target) == (kind, target)
    assert SecretReference.parse(str(reference)) == reference == pickle.loads(pickle.dumps(reference))


@pytest.mark.parametrize(
    "text",
    [
        *("", "topsecret", "env:", "file:", "file://", "file://host/topsecret", "file:topsecret"),
        *("file://[x/topsecret", "file:///-----BEGIN%20KEY-----topsecret", "env:-----BEGIN KEY-----topsecret"),
    ],
)
def test_parse_invalid_raises_without_text(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="env:NAME") as caught:
        SecretReference.parse(text)
    assert "topsecret" not in f"{caught.value!r} {caught.value.__context__!r}"


def test_parse_non_text_raises() -> None:
    with pytest.raises(InvalidConfiguration, match="not bytes"):
        SecretReference.parse(b"env:X")  # type: ignore[arg-type]


def test_read_variable_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = SecretReference.parse("env:PULSAR_TEST_SECRET")
    monkeypatch.setenv("PULSAR_TEST_SECRET", " first\n")
    assert reference.read() == "first"
    monkeypatch.setenv("PULSAR_TEST_SECRET", "second")
    assert reference.read() == "second"
    monkeypatch.setenv("PULSAR_TEST_SECRET", " ")
    with pytest.raises(ErrorGettingAuthenticationData, match="env:PULSAR_TEST_SECRET"):
        reference.read()


def test_read_file_each_time(tmp_path: Path) -> None:
    path = tmp_path / "a secret"
    reference = SecretReference.parse(f"file://{path}")
    with pytest.raises(ErrorGettingAuthenticationData, match="No such file"):
        reference.read()
    path.write_text("first\n")
    assert reference.read() == "first"
    path.write_text("second\n")
    assert reference.read() == "second"


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (b"topsecret\xff", "not UTF-8"), (b"topsecret" * 200_000, "larger than")],
    ids=["empty", "binary", "huge"],
)
def test_read_invalid_file_named_not_repeated(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ErrorGettingAuthenticationData, match=message) as caught:
        SecretReference.parse(f"file://{path}").read()
    assert str(path) in str(caught.value)
    assert "topsecret" not in f"{caught.value!r} {caught.value.__context__!r} {caught.value.__cause__!r}"
