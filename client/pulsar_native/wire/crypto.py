"""Cryptography of end-to-end encryption: payloads under a data key, and the data key under readers' public keys.

Rules: a payload is AES-256-GCM with a new 12-byte vector for each, its tag of 16 bytes at the end and no associated
data. A data key is encrypted with RSA as OAEP with SHA-1 and MGF1-SHA-1, with an elliptic curve as ECIES (below); both
are what the Java client does, and RSA what the C++ client does. Needs the package cryptography (extra `encryption`),
imported where it is used. May not do: read keys, keep them, or repeat them in an error.

ECIES is ECDH, KDF2 and HMAC, both with SHA-1, without a block cipher, as BouncyCastle's "ECIES" with a MAC key of 128
bits: `point (uncompressed) | data XOR key | MAC`. The KDF's secret is the point followed by the shared x; the first 16
bytes derived are the MAC's key, the rest is the key for the data; the MAC covers the data and 8 zero bytes, the length
of the absent encoding parameters.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Protocol

from pulsar_native.exceptions import CryptoError, InvalidConfiguration

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec, padding
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

DATA_KEY_BYTES = 32
VECTOR_BYTES = 12
TAG_BYTES = 16

_MAC_KEY_BYTES = 16
_MAC_BYTES = 20
_NO_PARAMETERS = bytes(8)


class Cipher(Protocol):
    """AES-GCM under one data key; thread-safe."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: None, /) -> bytes: ...
    def decrypt(self, nonce: bytes, data: bytes, associated_data: None, /) -> bytes: ...


def require_package() -> None:
    """Raise `InvalidConfiguration` with the fix when the package cryptography is missing."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise InvalidConfiguration(
            "Message encryption needs the package cryptography: pip install 'pulsar-native[encryption]'"
        ) from error


def cipher_of(data_key: bytes) -> Cipher:
    """Return the cipher of a data key; raises `CryptoError` when the size is not one of AES."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(data_key) not in (16, 24, 32):
        raise CryptoError(f"A data key has {len(data_key)} bytes, which no AES key has")
    return AESGCM(data_key)


def opened(cipher: Cipher, vector: bytes, body: bytes) -> bytes | None:
    """Return the decrypted payload, None when it has another key or was changed."""
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(vector, body, None)
    except (InvalidTag, ValueError):
        return None


# --- data keys ------------------------------------------------------------------------------------------------------


def wrap(data_key: bytes, public_pem: bytes) -> bytes:
    """Return a data key encrypted with a public key or certificate (PEM); raises `CryptoError`."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    key = _public_key(public_pem)
    if isinstance(key, rsa.RSAPublicKey):
        return key.encrypt(data_key, _oaep())
    if isinstance(key, ec.EllipticCurvePublicKey):
        return _ecies_encrypt(data_key, key)
    raise CryptoError(f"A {type(key).__name__} cannot encrypt a data key; use an RSA or elliptic-curve key")


def unwrap(wrapped: bytes, private_pem: bytes) -> bytes:
    """Return the data key that was encrypted for this private key (PEM); raises `CryptoError`."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    key = _private_key(private_pem)
    if isinstance(key, rsa.RSAPrivateKey):
        try:
            return key.decrypt(wrapped, _oaep())
        except ValueError:
            # Not chained: OpenSSL's reason would only help an attacker.
            raise CryptoError("The data key was not encrypted for this private key") from None
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return _ecies_decrypt(wrapped, key)
    raise CryptoError(f"A {type(key).__name__} cannot decrypt a data key; use an RSA or elliptic-curve key")


def _oaep() -> padding.OAEP:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    # SHA-1 is the protocol's choice; OAEP does not depend on its collision resistance.
    digest = hashes.SHA1()
    return padding.OAEP(mgf=padding.MGF1(digest), algorithm=digest, label=None)


def _public_key(pem: bytes) -> PublicKeyTypes:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    block = _pem_block(pem, (b"PUBLIC KEY", b"RSA PUBLIC KEY", b"CERTIFICATE"), "public")
    try:
        if block.startswith(b"-----BEGIN CERTIFICATE"):
            return x509.load_pem_x509_certificate(block).public_key()
        return load_pem_public_key(block)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CryptoError(f"The public key cannot be used: {error}{_remedy(error)}") from error


def _private_key(pem: bytes) -> PrivateKeyTypes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    labels = (b"PRIVATE KEY", b"RSA PRIVATE KEY", b"EC PRIVATE KEY", b"ENCRYPTED PRIVATE KEY")
    block = _pem_block(pem, labels, "private")
    try:
        return load_pem_private_key(block, password=None)
    except TypeError:
        raise CryptoError("The private key is protected with a password; give one without") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        # Not chained and not quoted: the reason may show parts of the key.
        raise CryptoError(
            f"The private key cannot be read: it is damaged, or of a kind not supported{_remedy(error)}"
        ) from None


def _remedy(error: Exception) -> str:
    # Keys made as Pulsar's documentation shows have explicit parameters.
    return "; cryptography 47 and later can read it" if "explicit parameters" in str(error) else ""


def _pem_block(pem: bytes, labels: tuple[bytes, ...], kind: str) -> bytes:
    """Return the key's own block of a PEM file: curve parameters may precede it."""
    for label in labels:
        head, tail = b"-----BEGIN " + label + b"-----", b"-----END " + label + b"-----"
        start = pem.find(head)
        stop = pem.find(tail, start)
        if 0 <= start < stop:
            return pem[start : stop + len(tail)] + b"\n"
    raise CryptoError(f"This is no {kind} key: a PEM file with a block {labels[0].decode()} was expected")


# --- ECIES ----------------------------------------------------------------------------------------------------------


def _ecies_encrypt(data: bytes, key: ec.EllipticCurvePublicKey) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec

    own = ec.generate_private_key(key.curve)
    point = _point(own.public_key())
    mac_key, stream = _derived(point, own.exchange(ec.ECDH(), key), len(data))
    hidden = _xor(data, stream)
    return point + hidden + _mac(mac_key, hidden)


def _ecies_decrypt(wrapped: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec

    size = (key.curve.key_size + 7) // 8
    stop = 1 + size if wrapped[:1] in (b"\x02", b"\x03") else 1 + 2 * size
    point, hidden, mac = wrapped[:stop], wrapped[stop:-_MAC_BYTES], wrapped[-_MAC_BYTES:]
    mismatch = "The data key was not encrypted for this private key"
    if len(wrapped) <= stop + _MAC_BYTES:
        raise CryptoError(mismatch)
    try:
        peer = ec.EllipticCurvePublicKey.from_encoded_point(key.curve, point)
    except ValueError:
        raise CryptoError(mismatch) from None
    mac_key, stream = _derived(point, key.exchange(ec.ECDH(), peer), len(hidden))
    if not hmac.compare_digest(mac, _mac(mac_key, hidden)):
        raise CryptoError(mismatch)
    return _xor(hidden, stream)


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _derived(point: bytes, shared: bytes, length: int) -> tuple[bytes, bytes]:
    """Return the key of the MAC and the key stream: KDF2 counts from 1."""
    wanted = _MAC_KEY_BYTES + length
    blocks = range(1, -(-wanted // 20) + 1)
    stream = b"".join(hashlib.sha1(point + shared + number.to_bytes(4, "big")).digest() for number in blocks)
    return stream[:_MAC_KEY_BYTES], stream[_MAC_KEY_BYTES:wanted]


def _mac(key: bytes, hidden: bytes) -> bytes:
    return hmac.digest(key, hidden + _NO_PARAMETERS, "sha1")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
