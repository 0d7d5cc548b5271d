"""Readers of keys: where they look, what they refuse, and that no key shows."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_native.crypto import (
    CryptoKeyReader,
    DefaultCryptoKeyReader,
    EncryptionKey,
    EncryptionKeyInfo,
    KeyReader,
)
from pulsar_native.exceptions import CryptoError, InvalidConfiguration

SECRET = b"-----BEGIN PRIVATE KEY-----\nvery-secret\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "a.pub").write_bytes(b"public a")
    (tmp_path / "a key").write_bytes(SECRET)
    return tmp_path


def test_one_pair_of_files_whatever_the_name(files: Path) -> None:
    reader = CryptoKeyReader(str(files / "a.pub"), str(files / "a key"))
    assert isinstance(reader, KeyReader)
    for name in ("a", "b", ""):
        assert reader.get_public_key(name, {}).key == b"public a"
        assert reader.get_private_key(name, {"x": "y"}).key == SECRET
    # A replaced file is taken up.
    (files / "a.pub").write_bytes(b"public b")
    assert reader.get_public_key("a", {}).key == b"public b"
    again = pickle.loads(pickle.dumps(reader))
    assert again.get_public_key("a", {}).key == b"public b" and repr(again) == repr(reader)


def test_files_that_cannot_be_read(files: Path) -> None:
    for path in ("", str(files / "missing"), str(files), "a\0b"):
        with pytest.raises(CryptoError, match="cannot be read"):
            CryptoKeyReader(path, path).get_private_key("a", {})
    (files / "large").write_bytes(bytes(1024 * 1024 + 1))
    with pytest.raises(CryptoError, match="larger"):
        CryptoKeyReader(str(files / "large"), "").get_public_key("a", {})


def test_keys_by_name_in_every_form(files: Path) -> None:
    encoded = base64.b64encode(b"public d").decode()
    reader = DefaultCryptoKeyReader(
        str(files / "a.pub"),
        public_keys={
            "b": (files / "a key").as_uri(),
            "c": b"public c",
            "d": f"data:application/x-pem-file;base64,{encoded}",
            "e": "data:,public%20e",
        },
        private_keys={"a": str(files / "a key")},
    )
    assert isinstance(reader, KeyReader)
    found = {name: reader.get_public_key(name, {}).key for name in "abcde"}
    assert found == {"a": b"public a", "b": SECRET, "c": b"public c", "d": b"public d", "e": b"public e"}
    assert reader.get_private_key("a", {}).key == SECRET
    with pytest.raises(CryptoError, match="no private key named 'z', and no default"):
        reader.get_private_key("z", {})
    with pytest.raises(CryptoError, match="another machine"):
        DefaultCryptoKeyReader("file://elsewhere/key").get_public_key("a", {})


@pytest.mark.parametrize("url", ["data:", "data:;base64,%%%", "data:application/x-pem-file;base64,secret?"])
def test_a_broken_data_url_is_not_repeated(url: str) -> None:
    with pytest.raises(CryptoError, match="not of the form") as caught:
        DefaultCryptoKeyReader(default_private_key=url).get_private_key("a", {})
    assert "secret" not in str(caught.value)


def test_literal_private_keys_do_not_travel() -> None:
    for options in ({"default_private_key": SECRET}, {"private_keys": {"a": "data:,very-secret"}}):
        reader = DefaultCryptoKeyReader(**options)  # type: ignore[arg-type]
        assert "secret" not in repr(reader)
        with pytest.raises(TypeError, match="Give the path") as caught:
            pickle.dumps(reader)
        assert "secret" not in str(caught.value)
    paths = DefaultCryptoKeyReader(b"public", private_keys={"a": "/path"})
    assert repr(pickle.loads(pickle.dumps(paths))) == repr(paths)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SECRET.decode(), id="pem"),
        pytest.param(f"file:///tmp/{SECRET.decode()}", id="file"),
        pytest.param(base64.b64encode(SECRET).decode(), id="base64"),
        pytest.param(" DATA:;base64,very-secret", id="data"),
    ],
)
def test_key_text_as_path_raises_without_it(text: str) -> None:
    makes: list[Callable[[], object]] = [
        lambda: CryptoKeyReader(text, ""),
        lambda: CryptoKeyReader("", text),
        lambda: DefaultCryptoKeyReader(text),
        lambda: DefaultCryptoKeyReader(None, text),
        lambda: DefaultCryptoKeyReader(public_keys={"a": text}),
        lambda: DefaultCryptoKeyReader(private_keys={"a": "/path", "b": text}),
    ]
    for make in makes:
        with pytest.raises(InvalidConfiguration, match=r"the path of a .*PEM file, not its content.* bytes") as caught:
            make()
        assert "very-secret" not in str(caught.value) and text not in str(caught.value)


def test_key_reader_data_url_as_path_raises() -> None:
    with pytest.raises(InvalidConfiguration, match="private_key_path must be the path of a PEM file"):
        CryptoKeyReader("/path", "data:,very-secret")


def test_what_is_no_place_of_a_key() -> None:
    wrong: Any
    for wrong in (5, bytearray(b"x"), ["path"]):
        for make in (
            lambda wrong=wrong: DefaultCryptoKeyReader(public_keys={"a": wrong}),
            lambda wrong=wrong: CryptoKeyReader("", wrong),
            lambda wrong=wrong: EncryptionKeyInfo(wrong),
        ):
            with pytest.raises(InvalidConfiguration, match=type(wrong).__name__):
                make()
    with pytest.raises(InvalidConfiguration):
        CryptoKeyReader(None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("metadata", ["ab", [("a", "b")], {1: "b"}, {"a": None}, {"a": b"b"}])
def test_key_info_metadata_other_type_raises(metadata: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="metadata of a key must be a mapping of str to str"):
        EncryptionKeyInfo(b"key", metadata)


def test_what_is_shown_of_keys() -> None:
    info = EncryptionKeyInfo(SECRET, {"a": "b"})
    assert info.metadata == {"a": "b"} and "secret" not in repr(info)
    assert repr(EncryptionKey("k", b"secret", {"a": "b"})) == "EncryptionKey(key=k, value_len=6, metadata={'a': 'b'})"
