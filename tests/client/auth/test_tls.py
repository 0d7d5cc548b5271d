"""TLS: client certificates and contexts, up to real brokers that require them."""

from __future__ import annotations

import os
import pickle
import pty
import select
import shutil
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from broker import Standalone
from broker_keys import Certificates, make_certificates
from pulsar_native.admin import AdminClient
from pulsar_native.auth import AuthenticationTLS, AuthenticationToken, client_tls_context
from pulsar_native.exceptions import ConnectError, InvalidConfiguration, PulsarException
from support.brokers import OwnBroker


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Give an authority and two pairs that no broker knows."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


def test_tls_returns_certificate_paths(certificates: Certificates) -> None:
    paths = (str(certificates.client_certificate), str(certificates.client_key))
    plugin = AuthenticationTLS(*paths)
    assert (plugin.method_name, plugin.auth_data(), plugin.http_headers()) == ("tls", b"", {})
    assert plugin.tls_certificate() == paths
    assert pickle.loads(pickle.dumps(plugin)).tls_certificate() == paths
    assert AuthenticationTLS(certificates.client_certificate, certificates.client_key).tls_certificate() == paths  # type: ignore[arg-type]


@pytest.mark.parametrize("paths", [("", "k"), ("c", ""), (None, "k"), ("c", 3)])
def test_tls_missing_paths_raise(paths: tuple[str, str]) -> None:
    with pytest.raises(InvalidConfiguration, match="_path of AuthenticationTLS"):
        AuthenticationTLS(*paths)


@pytest.mark.parametrize("name", ["certificate_path", "private_key_path"])
def test_tls_content_as_path_is_not_repeated(name: str) -> None:
    content = "-----BEGIN PRIVATE KEY-----\ntopsecret\n-----END PRIVATE KEY-----"
    with pytest.raises(
        InvalidConfiguration, match=f"{name} .* must be the path of a PEM file, not its content"
    ) as caught:
        AuthenticationTLS(**{"certificate_path": "c.pem", "private_key_path": "k.pem", name: content})
    assert "topsecret" not in str(caught.value)


def test_tls_context_verifies_by_default(certificates: Certificates) -> None:
    strict = client_tls_context(trust_certs_file_path=str(certificates.authority))
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert strict.minimum_version is ssl.TLSVersion.TLSv1_2
    any_host = client_tls_context(trust_certs_file_path=str(certificates.authority), validate_hostname=False)
    assert (any_host.verify_mode, any_host.check_hostname) == (ssl.CERT_REQUIRED, False)
    anything = client_tls_context(allow_insecure_connection=True)
    assert (anything.verify_mode, anything.check_hostname) == (ssl.CERT_NONE, False)
    assert client_tls_context().verify_mode is ssl.CERT_REQUIRED


def test_tls_context_invalid_files_named(certificates: Certificates, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("topsecret")
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(InvalidConfiguration, match=r"missing\.pem.*No such file"):
        client_tls_context(trust_certs_file_path=missing)
    with pytest.raises(InvalidConfiguration, match=r"garbage\.pem"):
        client_tls_context(trust_certs_file_path=str(garbage))
    with pytest.raises(InvalidConfiguration, match=r"missing\.pem"):
        client_tls_context(certificate=(str(certificates.client_certificate), missing))
    with pytest.raises(InvalidConfiguration, match="key values mismatch"):
        client_tls_context(certificate=(str(certificates.client_certificate), str(certificates.server_key)))


def test_tls_context_encrypted_key_raises_without_prompt(certificates: Certificates, tmp_path: Path) -> None:
    encrypted = tmp_path / "encrypted.pem"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-passout", "pass:topsecret", "-in", certificates.client_key, "-out", encrypted],
        check=True,
    )
    program = (
        "import sys; from pulsar_native.auth import client_tls_context\n"
        "try: client_tls_context(certificate=(sys.argv[1], sys.argv[2]))\n"
        "except ValueError as error: print('refused:', error)"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", program, str(certificates.client_certificate), str(encrypted)])
    shown = b""
    while select.select([terminal], [], [], 20)[0] and b"encrypted.pem" not in shown and b"phrase" not in shown:
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # the terminal's other end is gone
            break
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(terminal)
    assert b"refused: The client certificate" in shown and b"encrypted.pem" in shown
    with pytest.raises(InvalidConfiguration, match=r"encrypted\.pem' cannot be used: the key has a password"):
        client_tls_context(certificate=(str(certificates.client_certificate), str(encrypted)))


@pytest.mark.parametrize("insecure", [False, True])
@pytest.mark.parametrize("validate_hostname", [False, True])
@pytest.mark.parametrize("right_authority", [False, True])
@pytest.mark.parametrize("right_host", [False, True])
def test_tls_trust_settings_real_broker(
    secure_broker: Standalone,
    certificates: Certificates,
    insecure: bool,
    validate_hostname: bool,
    right_authority: bool,
    right_host: bool,
) -> None:
    # The broker's certificate is for "localhost" and 127.0.0.1; "127.1" leads there under a name it does not have.
    authority = secure_broker.certificates.authority if right_authority else certificates.authority
    url = secure_broker.admin_url_tls
    admin = AdminClient(
        url if right_host else url.replace("127.0.0.1", "127.1"),
        AuthenticationToken(secure_broker.token()),
        tls_trust_certs_file_path=str(authority),
        tls_allow_insecure_connection=insecure,
        tls_validate_hostname=validate_hostname,
    )
    if insecure or (right_authority and (right_host or not validate_hostname)):
        assert admin.clusters() == ["standalone"]
    else:
        fix = "tls_validate_hostname=False" if right_authority else "not trusted: set tls_trust_certs_file_path"
        with pytest.raises(ConnectError, match=fix):
            admin.clusters()


def test_tls_client_certificate_replaced_real_broker(own_broker: OwnBroker, tmp_path: Path) -> None:
    broker = own_broker(tls_client_auth=True)
    ours = broker.certificates
    certificate, key = tmp_path / "client.pem", tmp_path / "client-key.pem"
    other = make_certificates(tmp_path / "other")
    shutil.copy(other.client_certificate, certificate)
    shutil.copy(other.client_key, key)
    admin = AdminClient(
        broker.admin_url_tls,
        AuthenticationTLS(str(certificate), str(key)),
        tls_trust_certs_file_path=str(ours.authority),
    )
    with pytest.raises(PulsarException):
        admin.clusters()
    shutil.copy(ours.client_certificate, certificate)
    shutil.copy(ours.client_key, key)
    assert admin.clusters() == ["standalone"]
