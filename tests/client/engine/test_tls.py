"""TLS contexts of connections: made once, again when their files have changed, the last good one kept."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_keys import Certificates, make_certificates
from pulsar_native import Authentication, AuthenticationTLS
from pulsar_native.config import ClientConfig
from pulsar_native.engine.tls import TlsContexts, tls_context
from pulsar_native.exceptions import CertificateFileError, ErrorGettingAuthenticationData, InvalidConfiguration
from pulsar_native.service_info import ServiceInfo

URL = "pulsar+ssl://127.0.0.1:1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Give an authority and two pairs."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def files(made: Certificates, tmp_path: Path) -> dict[str, str]:
    """Give copies of an authority and a pair, to be replaced."""
    wanted = {"authority": made.authority, "certificate": made.client_certificate, "key": made.client_key}
    return {name: str(shutil.copy(path, tmp_path / f"{name}.pem")) for name, path in wanted.items()}


def rewrite(path: str, content: str | bytes) -> None:
    """Replace a file by another one, as certificate managers do."""
    new = Path(f"{path}.new")
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(new, path)


def contexts(files: dict[str, str], **options: Any) -> tuple[TlsContexts, ServiceInfo]:
    """Return a client's contexts with a certificate of its own, and its cluster."""
    config = ClientConfig(
        service_url=URL,
        tls_certificate_file_path=files["certificate"],
        tls_private_key_file_path=files["key"],
        **options,
    )
    return TlsContexts(config), ServiceInfo(URL, None, files["authority"])


async def test_context_is_kept_while_files_stay(files: dict[str, str]) -> None:
    made, info = contexts(files)
    first = await made.current(info)
    assert await made.current(info) is first
    assert (first.verify_mode, first.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert [each["subject"] for each in first.get_ca_certs()]


@pytest.mark.parametrize("name", ["authority", "certificate", "key"])
async def test_context_is_new_when_a_file_changed(name: str, files: dict[str, str]) -> None:
    made, info = contexts(files)
    first = await made.current(info)
    rewrite(files[name], Path(files[name]).read_bytes())
    second = await made.current(info)
    assert second is not first and await made.current(info) is second


async def test_context_unusable_replacement_is_not_used(
    files: dict[str, str], made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """The key of a new pair is written before its certificate."""
    own, info = contexts(files)
    first = await own.current(info)
    key = Path(files["key"]).read_bytes()
    rewrite(files["key"], made.server_key.read_bytes())
    with caplog.at_level(logging.WARNING, "pulsar_native.tls"):
        assert await own.current(info) is first
    assert "The replaced TLS files are not used" in caplog.text and "key values mismatch" in caplog.text
    rewrite(files["key"], key)
    assert await own.current(info) is not first


async def test_context_unusable_from_the_start_raises(files: dict[str, str]) -> None:
    rewrite(files["authority"], "not a certificate")
    own, info = contexts(files)
    with pytest.raises(InvalidConfiguration, match=r"authority\.pem"):
        await own.current(info)


async def test_context_of_another_cluster_is_its_own(files: dict[str, str], tmp_path: Path) -> None:
    """A context of the cluster before is no substitute for the next one's authorities."""
    own, info = contexts(files)
    await own.current(info)
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(InvalidConfiguration, match=r"missing\.pem"):
        await own.current(replace(info, tls_trust_certs_file_path=missing))


async def test_context_given_is_used_unchanged(files: dict[str, str]) -> None:
    given = ssl.create_default_context()
    config = ClientConfig(service_url=URL, tls_context=given)
    info = ServiceInfo(URL, AuthenticationTLS("/missing", "/missing"), "/missing")
    assert await TlsContexts(config).current(info) is given is tls_context(config, info)


def test_context_by_options_of_the_client(files: dict[str, str]) -> None:
    info = ServiceInfo(URL, None, files["authority"])
    loose = tls_context(ClientConfig(service_url=URL, tls_allow_insecure_connection=True), info)
    assert (loose.verify_mode, loose.check_hostname) == (ssl.CERT_NONE, False)
    strict = tls_context(ClientConfig(service_url=URL, tls_validate_hostname=True), info)
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_context_certificate_of_credentials_comes_first(files: dict[str, str]) -> None:
    config = ClientConfig(
        service_url=URL, tls_certificate_file_path="/missing.pem", tls_private_key_file_path="/missing.pem"
    )
    own = AuthenticationTLS(files["certificate"], files["key"])
    tls_context(config, ServiceInfo(URL, own, files["authority"]))
    with pytest.raises(InvalidConfiguration, match=r"/missing\.pem"):
        tls_context(config, ServiceInfo(URL, None, files["authority"]))


class Plugin(Authentication):
    """A plug-in whose certificate is a given value or exception."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def tls_certificate(self) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        "very-secret",
        ("very-secret", "b", "c"),
        (None, None),
        (1, 2),
        ValueError("very-secret"),
        StopIteration("very-secret"),
        asyncio.CancelledError("very-secret"),
    ],
    ids=repr,
)
async def test_context_plugin_odd_certificate_raises(answer: object) -> None:
    own = TlsContexts(ClientConfig(service_url=URL))
    with pytest.raises(ErrorGettingAuthenticationData, match="tls_certificate of the") as caught:
        async with asyncio.timeout(10):
            await own.current(ServiceInfo(URL, Plugin(answer)))
    assert "very-secret" not in str(caught.value)


@pytest.mark.parametrize("path", ["/ca\0.pem", "/ca\ud800.pem"])
async def test_context_path_of_no_file_raises(path: str, files: dict[str, str]) -> None:
    own = TlsContexts(ClientConfig(service_url=URL))
    with pytest.raises(CertificateFileError, match="a path cannot be used for a file"):
        await own.current(ServiceInfo(URL, None, path))
    with pytest.raises(CertificateFileError, match="a path cannot be used for a file"):
        await own.current(ServiceInfo(URL, AuthenticationTLS(files["certificate"], path), files["authority"]))
