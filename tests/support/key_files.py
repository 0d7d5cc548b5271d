"""Key files of end-to-end encryption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


def key_pair(folder: Path, name: str = "k", key: Any = None) -> tuple[str, str]:
    """Write a pair of keys, NAME.pub and NAME.key, new ones of RSA by default; return their paths."""
    key = rsa.generate_private_key(65537, 2048) if key is None else key
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    paths = folder / f"{name}.pub", folder / f"{name}.key"
    for path, content in zip(paths, (public, private), strict=True):
        path.write_bytes(content)
    return str(paths[0]), str(paths[1])
