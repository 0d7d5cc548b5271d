"""Atomic output: whole files or none, digests, JSON files, exclusive creation."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.jobs import output
from pulsar_native.jobs.output import AtomicFile, Content, content_of, create_json, is_there, json_line, read_json

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def names(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(each.name for each in folder.iterdir())


# ---- lines and paths -------------------------------------------------------------------------------------------------


@given(_JSON)
def test_json_line_is_one_line_of_the_value(value: Any) -> None:
    line = json_line(value)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert json.loads(line) == value


def test_json_line_keeps_text_and_escapes_surrogates() -> None:
    assert json_line({"a": "ü"}) == '{"a":"ü"}\n'.encode()
    assert json_line("\ud800ü") == b'"\\ud800\\u00fc"\n'


def test_local_path_url_raises() -> None:
    assert output.local_path("file:///a/b") == output.local_path("/a/b") == Path("/a/b")
    with pytest.raises(ValueError, match="'s3://a/b' is a URL: only local files"):
        output.local_path("s3://a/b")


# ---- atomic files ----------------------------------------------------------------------------------------------------


def test_atomic_file_appears_with_commit(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a"
    file = AtomicFile(str(path), tag="one")
    file.open()
    file.write(b"ab")
    file.file.write(memoryview(b"cd"))
    assert file.file.tell() == 4
    found = file.finish()
    assert found == Content(4, hashlib.sha256(b"abcd").hexdigest())
    assert names(path.parent) == [".a.one.part"]
    file.commit()
    file.discard()
    assert names(path.parent) == ["a"] and path.read_bytes() == b"abcd"
    assert content_of(str(path)) == found


@pytest.mark.parametrize("finished", [True, False])
def test_atomic_file_discarded_leaves_target(finished: bool, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("before")
    file = AtomicFile(str(path))
    file.open()
    file.write(b"after")
    if finished:
        file.finish()
    file.discard()
    file.discard()
    assert names(tmp_path) == ["a"] and path.read_text() == "before"


def test_atomic_file_overwrites_left_over_and_target(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")
    (tmp_path / ".a.part").write_text("the rest of a killed try, and longer")
    file = AtomicFile(str(tmp_path / "a"))
    file.open()
    file.write(b"after")
    file.finish()
    file.commit()
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "after"


def test_atomic_file_without_path_does_nothing() -> None:
    file = AtomicFile(None)
    file.open()
    file.write(b"x")
    assert file.finish() == Content(0, "")
    file.commit()
    file.discard()


def test_content_of_missing_file_is_none(tmp_path: Path) -> None:
    assert content_of(str(tmp_path / "a")) is None
    assert not is_there(str(tmp_path / "a"))
    (tmp_path / "a").touch()
    assert is_there(str(tmp_path / "a"))
    assert content_of(str(tmp_path / "a")) == Content(0, hashlib.sha256().hexdigest())


# ---- JSON files ------------------------------------------------------------------------------------------------------


def test_json_file_round_trip_and_removal(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "a.json")
    assert read_json(path) is None
    for value in ({"a": [1, "ü"]}, {}):
        output.write_json(path, value)
        assert read_json(path) == value
    output.remove(path)
    output.remove(path)
    assert names(tmp_path / "deep") == []


def test_read_json_of_other_content_raises(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[1]")
    with pytest.raises(ValueError, match="a holds no JSON object"):
        read_json(str(tmp_path / "a"))
    (tmp_path / "a").write_text("{")
    with pytest.raises(ValueError, match="Expecting"):
        read_json(str(tmp_path / "a"))


def test_read_json_keeps_errors_of_the_store() -> None:
    def closed(path: str) -> Any:
        raise ValueError(f"{path}: no file system")

    with pytest.raises(ValueError, match="s3://b/a: no file system") as failed:
        read_json("s3://b/a", closed)
    assert not isinstance(failed.value, output.NotJson)


def test_create_json_one_of_many_writers(tmp_path: Path) -> None:
    path, won, ready = str(tmp_path / "deep" / "a"), [], threading.Barrier(8)

    def create(number: int) -> None:
        ready.wait(30)
        if create_json(path, {"n": number}):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert [read_json(path)] == [{"n": number} for number in won]
    assert names(tmp_path / "deep") == ["a"]


class Store:
    """The path of a file in an object store, as fsspec's paths are; `exclusive` is the store's kind of creation."""

    protocol = "s3"

    def __init__(self, files: dict[str, bytes], name: str, exclusive: str) -> None:
        self._files, self.name, self._exclusive = files, name, exclusive
        self.opened: list[str] = []

    @property
    def parent(self) -> Store:
        return self

    def mkdir(self, **_: object) -> None:
        pass

    def __truediv__(self, name: str) -> Store:
        return Store(self._files, name, self._exclusive)

    def exists(self) -> bool:
        return self.name in self._files and self._exclusive != "raced"

    def replace(self, target: Store) -> None:
        self._files[target.name] = self._files.pop(self.name)

    def unlink(self) -> None:
        del self._files[self.name]

    def open(self, mode: str) -> Any:
        self.opened.append(mode)
        if mode == "xb" and self._exclusive == "none":
            raise ValueError("mode xb is unknown")
        if mode == "xb" and self.name in self._files:
            raise FileExistsError
        store = self

        class Buffer(io.BytesIO):
            def close(self) -> None:
                store._files[store.name] = self.getvalue()
                super().close()

        return Buffer()


@pytest.mark.parametrize("exclusive", ["yes", "none", "raced"])
def test_create_json_in_a_store(exclusive: str) -> None:
    files: dict[str, bytes] = {}

    def open_path(text: str) -> Store:
        return Store(files, text, exclusive)

    assert create_json("a", {"n": 1}, open_path)
    assert not create_json("a", {"n": 2}, open_path)
    assert files == {"a": b'{"n":1}'}


def test_atomic_file_in_a_store_is_renamed() -> None:
    files: dict[str, bytes] = {"a": b"before"}
    file = AtomicFile("a", lambda text: Store(files, text, "yes"))
    file.open()
    file.write(b"after")
    file.finish()
    assert files == {"a": b"before", ".a.part": b"after"}
    file.commit()
    assert files == {"a": b"after"}


def test_file_in_the_current_folder_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    output.write_json("state.json", {"a": 1})
    assert create_json("other.json", {"b": 2})
    assert (read_json("state.json"), read_json("other.json")) == ({"a": 1}, {"b": 2})
