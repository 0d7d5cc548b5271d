"""Key files of end-to-end encryption."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


def key_pair(folder: Path) -> tuple[str, str]:
    """Write a new pair of keys; return the paths of the public and of the private one."""
    key = rsa.generate_private_key(65537, 2048)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    paths = folder / "k.pub", folder / "k.key"
    for path, content in zip(paths, (public, private), strict=True):
        path.write_bytes(content)
    return str(paths[0]), str(paths[1])
