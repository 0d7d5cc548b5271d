"""Paths of private keys: what is refused, and which files must be there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_native.exceptions import CryptoError
from pulsar_native.jobs.private_keys import checked_paths, key_reader_of, readable_key_reader_of
from support.key_files import key_pair


def test_checked_paths_of_nothing_and_of_files() -> None:
    assert checked_paths(None) == {} == checked_paths({})
    assert checked_paths({"a": "/keys/a.key", "b": "file:///keys/b"}) == {"a": "/keys/a.key", "b": "file:///keys/b"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["a"], "private_keys must be a dict of texts"),
        ({"a": 1}, "private_keys must be a dict of texts"),
        ({"a": " "}, "private_keys must be a dict of texts"),
        ({"a": "Data:application/x-pem-file;base64,AAAA"}, "must be paths of files, not keys"),
        ({"a": "-----BEGIN PRIVATE KEY-----\nAAAA"}, "must be paths of files, not keys"),
    ],
    ids=["list", "number", "blank", "data-url", "pem"],
)
def test_checked_paths_wrong_raises(given: object, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        checked_paths(given)
    assert "AAAA" not in str(refused.value)


def test_key_reader_reads_the_named_key(tmp_path: Path) -> None:
    path = key_pair(tmp_path)[1]
    assert key_reader_of({}) is None is readable_key_reader_of({})
    for reader in (key_reader_of({"k": path}), readable_key_reader_of({"k": path})):
        assert reader is not None
        found = reader.get_private_key("k", {})
        assert found is not None and found.key == Path(path).read_bytes()


def test_key_reader_readable_needs_every_file(tmp_path: Path) -> None:
    keys = {"k": key_pair(tmp_path)[1], "other": str(tmp_path / "none.key")}
    assert key_reader_of(keys) is not None
    with pytest.raises(CryptoError, match=r"The key file .*none\.key cannot be read: No such file"):
        readable_key_reader_of(keys)
