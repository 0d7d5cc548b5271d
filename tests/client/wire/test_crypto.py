"""Encryption: data keys under RSA and elliptic curves, payloads under data keys, and invalid input."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_native.exceptions import CryptoError
from pulsar_native.wire.crypto import DATA_KEY_BYTES, TAG_BYTES, VECTOR_BYTES, cipher_of, opened, unwrap, wrap

DATA_KEY = bytes(range(32))

# Written by the Java client 4.2.4 for the public key of this number on the curve P-256.
JAVA_PRIVATE = 0xFB25589E9905C4B34A084E2B3DD06507306E1E0E9E911613801F0FE542F25C35
JAVA_WRAPPED = bytes.fromhex(
    "04a4746cf418dbb9d60d85b408451b4b964640695b9b49a1b56522b8e5a1c426379daa685b9488e6d1aa6a1776f6158c0dcbb51483622db9"
    "02a40e4dc418f26f1e6374deff933f1986222019483a32b9ce548a0adbf6c7102ab3a95bdd8eaad4665512027df7f7c70c2edae011956014"
    "c9612d6d7e"
)
JAVA_VECTOR = bytes.fromhex("dfe3acde43fc850ed3b06d8d")
JAVA_BODY = bytes.fromhex("ab3c7eefd6c52d043c5e922c0b99ce872483aaa776")


@cache
def rsa_key(number: int = 0) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def public(key: Any, form: PublicFormat = PublicFormat.SubjectPublicKeyInfo) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.PEM, form))


def private(key: Any, form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def certificate(key: Any) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "reader")])
    now = datetime.datetime(2026, 1, 1)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(1))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


@pytest.mark.proves("C180")
def test_unwrap_ecies_of_java() -> None:
    data_key = unwrap(JAVA_WRAPPED, private(ec.derive_private_key(JAVA_PRIVATE, ec.SECP256R1())))
    assert opened(cipher_of(data_key), JAVA_VECTOR, JAVA_BODY) == b"hello"


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
def test_wrap_elliptic_curves(curve: ec.EllipticCurve) -> None:
    key, other = ec.generate_private_key(curve), ec.generate_private_key(curve)
    wrapped = wrap(DATA_KEY, public(key))
    assert len(wrapped) == 1 + 2 * -(-curve.key_size // 8) + 32 + 20
    assert wrapped != wrap(DATA_KEY, public(key))
    for form in (PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL):
        assert unwrap(wrapped, private(key, form)) == DATA_KEY
    for place in (0, 1, 40, -30, -1):
        damaged = bytearray(wrapped)
        damaged[place] ^= 1
        with pytest.raises(CryptoError, match="not encrypted for this private key"):
            unwrap(bytes(damaged), private(key))
    with pytest.raises(CryptoError, match="not encrypted for this private key"):
        unwrap(wrapped, private(other))


def test_wrap_openssl_key_with_curve_parameters(tmp_path: Path) -> None:
    for form in ("named_curve", "explicit"):
        run(tmp_path, "ecparam", "-name", "secp521r1", "-genkey", "-param_enc", form, "-out", "key.pem")
        run(tmp_path, "ec", "-in", "key.pem", "-pubout", "-param_enc", form, "-out", "pub.pem")
        assert b"EC PARAMETERS" in (tmp_path / "key.pem").read_bytes()
        wrapped = wrap(DATA_KEY, (tmp_path / "pub.pem").read_bytes())
        assert unwrap(wrapped, (tmp_path / "key.pem").read_bytes()) == DATA_KEY


def test_wrap_explicit_parameters_names_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*arguments: object, **options: object) -> None:
        # As cryptography before 47 does.
        raise ValueError("ECDSA keys with explicit parameters are unsupported at this time")

    key = ec.generate_private_key(ec.SECP256R1())
    publics, privates = public(key), private(key)
    monkeypatch.setattr("cryptography.hazmat.primitives.serialization.load_pem_public_key", load)
    monkeypatch.setattr("cryptography.hazmat.primitives.serialization.load_pem_private_key", load)
    with pytest.raises(CryptoError, match=r"explicit parameters .*; cryptography 47 and later can read it$"):
        wrap(DATA_KEY, publics)
    with pytest.raises(CryptoError, match=r"of a kind not supported; cryptography 47 and later can read it$"):
        unwrap(b"x", privates)


def run(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=240)


@pytest.mark.proves("C180")
def test_wrap_rsa_key_forms() -> None:
    key = rsa_key()
    publics = [public(key), public(key, PublicFormat.PKCS1), certificate(key), b"Comment\n" + public(key) + b"\n\n"]
    for pem in publics:
        wrapped = wrap(DATA_KEY, pem)
        assert len(wrapped) == 256
        for form in (PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL):
            assert unwrap(wrapped, private(key, form)) == DATA_KEY
    with pytest.raises(CryptoError, match="not encrypted for this private key"):
        unwrap(wrapped, private(rsa_key(1)))


@settings(max_examples=20)  # loading an RSA key verifies it, which takes its time
@given(st.binary(max_size=300))
def test_unwrap_any_bytes_raises(wrapped: bytes) -> None:
    curve = ec.derive_private_key(JAVA_PRIVATE, ec.SECP256R1())
    for key in (private(rsa_key()), private(curve)):
        with pytest.raises(CryptoError):
            unwrap(wrapped, key)


def test_wrap_invalid_key_raises() -> None:
    own = private(rsa_key())
    damaged = own[:200] + b"AAAA" + own[204:]
    locked = rsa_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))
    for pem, reason in (
        (b"", "no private key"), (public(rsa_key()), "no private key"), (damaged, "cannot be read"),
        (locked, "password"), (private(ed25519.Ed25519PrivateKey.generate()), "RSA or elliptic-curve"),
        (b"-----BEGIN PRIVATE KEY-----", "no private key"),
    ):  # fmt: skip
        with pytest.raises(CryptoError, match=reason) as caught:
            unwrap(bytes(256), pem)
        shown = f"{caught.value!r} {caught.value.__cause__!r}"
        assert not any(line.decode() in shown for line in pem.splitlines() if len(line) > 20)
    for pem, reason in (
        (b"", "no public key"), (own, "no public key"),
        (public(rsa_key())[:99] + b"\n-----END PUBLIC KEY-----", "cannot be used"),
        (public(ed25519.Ed25519PrivateKey.generate()), "RSA or elliptic-curve"),
    ):  # fmt: skip
        with pytest.raises(CryptoError, match=reason):
            wrap(DATA_KEY, pem)


@pytest.mark.proves("C180")
def test_cipher_payloads() -> None:
    cipher = cipher_of(DATA_KEY)
    vector = os.urandom(12)
    body = cipher.encrypt(vector, b"payload", None)
    assert len(body) == len(b"payload") + 16
    assert opened(cipher, vector, body) == b"payload"
    assert opened(cipher, vector, cipher.encrypt(vector, b"", None)) == b""
    for wrong_vector, wrong_body in ((bytes(12), body), (vector, body[:-1]), (vector, b""), (b"", body), (b"x", body)):
        assert opened(cipher, wrong_vector, wrong_body) is None
    assert opened(cipher_of(bytes(32)), vector, body) is None
    with pytest.raises(CryptoError, match="5 bytes"):
        cipher_of(b"short")


def test_cipher_sizes_are_those_of_java() -> None:
    # AES-GCM with a data key of 256 bits, a vector of 96 and a tag of 128.
    assert (DATA_KEY_BYTES, VECTOR_BYTES, TAG_BYTES) == (32, 12, 16)


def test_crypto_missing_package_named_when_needed() -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import pulsar_native\n"
        "from pulsar_native.wire.crypto import require_package\n"
        "try: require_package()\n"
        "except pulsar_native.InvalidConfiguration as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert "pulsar-native[encryption]" in done.stdout, done.stderr
    loaded = "import sys, pulsar_native, pulsar_native.asyncio; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=240)
    assert done.stdout == "False\n", done.stderr
