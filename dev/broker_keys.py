"""Make the secrets a test broker needs: HS256 tokens and a small certificate authority.

Standard library and the openssl command only. Not fit for production: keys lie unencrypted in a test's folder.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path


def secret_key(path: Path) -> bytes:
    """Return the HS256 secret kept in the file, made on first use."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(secrets.token_bytes(32))
        path.chmod(0o600)
    return path.read_bytes()


def make_token(key: bytes, subject: str, *, lifetime_seconds: float | None = None) -> str:
    """Return a JSON web token (HS256) for the subject: endless without a lifetime, expired with a negative one."""
    claims: dict[str, object] = {"sub": subject}
    if lifetime_seconds is not None:
        claims["exp"] = int(time.time() + lifetime_seconds)
    signed = b".".join(_base64url(json.dumps(part).encode()) for part in ({"alg": "HS256"}, claims))
    signature = hmac.new(key, signed, hashlib.sha256).digest()
    return (signed + b"." + _base64url(signature)).decode()


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@dataclass(frozen=True)
class Certificates:
    """Paths (PEM) of an authority, the broker's pair for localhost and 127.0.0.1, and the client's pair."""

    authority: Path
    server_certificate: Path
    server_key: Path
    client_certificate: Path
    client_key: Path


def make_certificates(folder: Path, *, client_role: str = "admin") -> Certificates:
    """Make the authority and both pairs in the folder, or return those that are there; takes about a second."""
    made = Certificates(
        authority=folder / "ca.pem",
        server_certificate=folder / "server.pem",
        server_key=folder / "server-key.pem",
        client_certificate=folder / "client.pem",
        client_key=folder / "client-key.pem",
    )
    if made.client_certificate.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    authority_key = folder / "ca-key.pem"
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=Test authority",
             "-addext", "keyUsage=critical,keyCertSign,cRLSign",
             "-keyout", str(authority_key), "-out", str(made.authority))  # fmt: skip
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    _pair(made.authority, authority_key, made.server_certificate, made.server_key, "localhost", names)
    _pair(
        made.authority,
        authority_key,
        made.client_certificate,
        made.client_key,
        client_role,
        "extendedKeyUsage=clientAuth",
    )
    return made


def make_client_pair(folder: Path, role: str, *, authority_folder: Path | None = None) -> tuple[Path, Path]:
    """Make another client's certificate and key in the folder, signed by the authority of `make_certificates`."""
    signer = authority_folder or folder
    folder.mkdir(parents=True, exist_ok=True)
    certificate, key = folder / f"{role}.pem", folder / f"{role}-key.pem"
    _pair(signer / "ca.pem", signer / "ca-key.pem", certificate, key, role, "extendedKeyUsage=clientAuth")
    return certificate, key


def _pair(authority: Path, authority_key: Path, certificate: Path, key: Path, name: str, extension: str) -> None:
    request, extensions = certificate.with_suffix(".csr"), certificate.with_suffix(".ext")
    # PKCS #8 keys: the broker reads no other form.
    subject = ["-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request)]
    _openssl("req", "-new", "-newkey", "rsa:2048", "-nodes", *subject)
    # With the key identifiers that RFC 5280 asks for: Python's default context insists on them since 3.13.
    extensions.write_text(f"{extension}\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n")
    issuer = ["-CA", str(authority), "-CAkey", str(authority_key), "-CAcreateserial", "-days", "3650"]
    _openssl("x509", "-req", "-in", str(request), *issuer, "-extfile", str(extensions), "-out", str(certificate))


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
