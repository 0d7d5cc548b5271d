"""TLS: authentication by a client certificate, and construction of a client's TLS context.

Rules: certificate files are read when a context is created, at each connection, so replaced files apply to the next
connection. Nothing below TLS 1.2.
"""

from __future__ import annotations

import os
import ssl

from pulsar_native.auth.base import Authentication
from pulsar_native.crypto import is_key_text
from pulsar_native.exceptions import CertificateFileError, InvalidConfiguration

# Of a file that cannot be read, an ssl.SSLError among them, and of a path with a character that no path has.
_UNUSABLE = (OSError, ValueError, TypeError)


class AuthenticationTLS(Authentication):
    """Authenticate with a client certificate (mutual TLS); both paths name PEM files.

    Thread-safe, never blocks, and picklable: paths are references.
    """

    method_name = "tls"

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        for name, path in (("certificate_path", certificate_path), ("private_key_path", private_key_path)):
            if not isinstance(path, str | os.PathLike) or not os.fspath(path):
                raise InvalidConfiguration(f"{name} of AuthenticationTLS must be the path of a PEM file")
            # A path is shown in texts.
            if is_key_text(os.fsdecode(path)):
                raise InvalidConfiguration(
                    f"{name} of AuthenticationTLS must be the path of a PEM file, not its content"
                )
        self._certificate_path = os.fspath(certificate_path)
        self._private_key_path = os.fspath(private_key_path)

    def tls_certificate(self) -> tuple[str, str]:
        """Return the paths of the certificate and its private key."""
        return (self._certificate_path, self._private_key_path)

    def __repr__(self) -> str:
        return f"AuthenticationTLS({self._certificate_path!r}, {self._private_key_path!r})"


def client_tls_context(
    *,
    trust_certs_file_path: str | None = None,
    allow_insecure_connection: bool = False,
    validate_hostname: bool = True,
    certificate: tuple[str, str] | None = None,
) -> ssl.SSLContext:
    """Return the TLS context of one connection.

    Blocking for reading the files; thread-safe. Without `trust_certs_file_path` the system's authorities are trusted.
    `allow_insecure_connection` accepts any certificate of any host. Raises `CertificateFileError` naming the file that
    cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if allow_insecure_connection:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.check_hostname = validate_hostname
        _load_authorities(context, trust_certs_file_path)
    if certificate is not None:
        _load_certificate(context, *certificate)
    return context


def _load_authorities(context: ssl.SSLContext, path: str | None) -> None:
    if not path:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    try:
        context.load_verify_locations(cafile=path)
    except _UNUSABLE as error:
        raise CertificateFileError(f"The trusted certificates {path!r} cannot be used: {_reason(error)}") from error


def _load_certificate(context: ssl.SSLContext, certificate_path: str, private_key_path: str) -> None:
    has_password = False

    def no_password() -> str:
        nonlocal has_password
        has_password = True
        return ""

    try:
        # Without a password argument, OpenSSL would prompt on the terminal for an encrypted key's.
        context.load_cert_chain(certificate_path, private_key_path, password=no_password)
    except _UNUSABLE as error:
        reason = "the key has a password: give the path of one without" if has_password else _reason(error)
        raise CertificateFileError(
            f"The client certificate {certificate_path!r} with the key {private_key_path!r} cannot be used: {reason}"
        ) from error


def _reason(error: OSError | ValueError | TypeError) -> str:
    if not isinstance(error, OSError):
        return "a path cannot be used for a file"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no PEM certificate or key").replace("_", " ").lower()
    return error.strerror or type(error).__name__
