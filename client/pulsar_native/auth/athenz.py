"""Athenz authentication: a role token from a ZTS server, fetched with a principal token signed by the service's key.

Rules: see `auth.base`. The ZTS client is pluggable (`ZtsClient`); the built-in one speaks HTTP and signs with the
package `cryptography`. A role token is cached, and another one fetched a minute before its expiry; one fetch at a time,
in the background while the last token is valid, and then its failure is not an error; the key is read at each fetch.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeGuard
from urllib.parse import quote, unquote_to_bytes

from pulsar_native._callback_errors import callback_errors
from pulsar_native._http import exchange, parse_http_url, parse_json_object
from pulsar_native.auth.base import Authentication, refuse_pickle
from pulsar_native.auth.parameters import parse_parameters
from pulsar_native.auth.reference import SecretReference
from pulsar_native.auth.tls import client_tls_context
from pulsar_native.auth.token_cache import FetchedToken, TokenCache
from pulsar_native.crypto import is_key_text
from pulsar_native.exceptions import (
    AuthenticationError,
    ConnectError,
    ErrorGettingAuthenticationData,
    InvalidConfiguration,
    PulsarException,
)

_FETCH_TIMEOUT_SECONDS = 30.0
_MAX_ANSWER_BYTES = 1024 * 1024
_EARLY_SECONDS = 60.0
_PRINCIPAL_LIFETIME_SECONDS = 3600
_MIN_EXPIRY_SECONDS = 2 * 3600
_MAX_EXPIRY_SECONDS = 24 * 3600
_ADVICE = "Give the key as a privateKey that is a 'file:///path', read where the client is made."
_PARAMETERS = {
    name: name
    for name in (
        "tenantDomain",
        "tenantService",
        "providerDomain",
        "privateKey",
        "keyId",
        "ztsUrl",
        "principalHeader",
        "roleHeader",
        "caCert",
    )
}


class RoleToken(NamedTuple):
    """A role token and its expiry (seconds since the epoch)."""

    token: str
    expiry_time: float


class ZtsClient(Protocol):
    """Client that fetches role tokens. Called off the event loop, one call at a time, so it may block."""

    def role_token(self, provider_domain: str) -> RoleToken: ...


class AuthenticationAthenz(Authentication):
    """Authenticate with an Athenz role token.

    `auth_params_string` is a JSON object: "tenantDomain", "tenantService", "providerDomain", "privateKey" (a path,
    `file:///path`, or `data:application/x-pem-file;base64,...`), "ztsUrl", and optionally "keyId" ("0"),
    "principalHeader", "roleHeader" and "caCert" (the path of the server's authority). With a `zts_client` of your own,
    only "providerDomain" (and "roleHeader") is needed. Nothing is fetched before the first use. Thread-safe.
    """

    method_name = "athenz"

    def __init__(self, auth_params_string: str, zts_client: ZtsClient | None = None) -> None:
        given = parse_parameters(auth_params_string, _PARAMETERS, "auth_params_string of AuthenticationAthenz")
        needed = ["providerDomain"]
        if zts_client is None:
            needed += ["tenantDomain", "tenantService", "privateKey", "ztsUrl"]
        missing = [name for name in needed if not given.get(name)]
        if missing:
            raise InvalidConfiguration(
                f"The auth_params_string of AuthenticationAthenz has no {' and no '.join(missing)}"
            )
        private_key = given.get("privateKey", "")
        _check_places(private_key, given.get("caCert"))
        # Also one that a client of the application's own leaves unused: the text is pickled.
        self._has_literal_key = _is_literal(private_key)
        if isinstance(zts_client, HttpZtsClient):
            self._has_literal_key |= _is_literal(zts_client.private_key)
        self._text = auth_params_string
        self._provider_domain = given["providerDomain"]
        self._role_header = given.get("roleHeader") or "Athenz-Role-Auth"
        self._own_client = zts_client
        self._zts: ZtsClient = zts_client or HttpZtsClient(
            zts_url=given["ztsUrl"],
            tenant_domain=given["tenantDomain"],
            tenant_service=given["tenantService"],
            private_key=private_key,
            key_id=given.get("keyId") or "0",
            principal_header=given.get("principalHeader") or "Athenz-Principal-Auth",
            trust_certs_file_path=given.get("caCert"),
        )
        self._cache = TokenCache()

    def auth_data(self) -> bytes:
        """Return the role token; another one is fetched in the background when it is about to expire.

        Blocking for a fetch, at most 30 s, when there is none, or it expires within seconds, or a broker refused it.
        Raises `AuthenticationError` when the server refuses, `ConnectError` or
        `Timeout` when it cannot be reached, `ErrorGettingAuthenticationData` when the key or the response is unusable.
        """
        return self._cache.get(self._fetch).encode()

    def http_headers(self) -> dict[str, str]:
        """Return the header with the role token; blocking as `auth_data`."""
        return {self._role_header: self._cache.get(self._fetch)}

    def on_refused(self) -> None:
        """Fetch another role token at the next use, as the broker does not accept the last one any more.

        At most once in 5 s; where the fetch fails, the last one is used until it expires.
        """
        self._cache.on_refused()

    def secrets(self) -> list[str]:
        """Return the last role token."""
        return [self._cache.last] if self._cache.last else []

    def _fetch(self) -> FetchedToken:
        begun_at = time.time()
        try:
            found = self._zts.role_token(self._provider_domain)
        except PulsarException:
            raise
        except callback_errors() as error:
            # The client may be the application's own: its error's text may contain the key.
            raise ErrorGettingAuthenticationData(f"The ZTS client failed with {type(error).__name__}") from error
        token, ends = getattr(found, "token", None), getattr(found, "expiry_time", None)
        is_text = isinstance(token, str) and token.isascii() and token.isprintable()
        if not token or not is_text or not _is_time(ends):
            raise ErrorGettingAuthenticationData(
                f"The ZTS client gave no usable role token ({type(found).__name__}): it must return a RoleToken with "
                "ASCII text and its expiry_time in seconds since the epoch"
            )
        return FetchedToken(token, float(ends) - begun_at, _EARLY_SECONDS)

    def __reduce__(self) -> tuple[object, ...]:
        if self._has_literal_key:
            refuse_pickle(self, _ADVICE)
        return (AuthenticationAthenz, (self._text, self._own_client))

    def __repr__(self) -> str:
        return f"AuthenticationAthenz(providerDomain={self._provider_domain!r})"


@dataclass(frozen=True)
class HttpZtsClient:
    """ZTS client over HTTP, for the service `tenant_domain.tenant_service`. Blocking, thread-safe."""

    zts_url: str
    tenant_domain: str
    tenant_service: str
    private_key: str = field(repr=False)
    key_id: str = "0"
    principal_header: str = "Athenz-Principal-Auth"
    trust_certs_file_path: str | None = None

    def __post_init__(self) -> None:
        parse_http_url(self.zts_url, "ztsUrl")

    def role_token(self, provider_domain: str) -> RoleToken:
        """Fetch a role token for a provider's domain."""
        base = self.zts_url.rstrip("/").removesuffix("/zts/v1")
        expiry = f"minExpiryTime={_MIN_EXPIRY_SECONDS}&maxExpiryTime={_MAX_EXPIRY_SECONDS}"
        url = f"{base}/zts/v1/domain/{quote(provider_domain, safe='')}/token?{expiry}"
        context = None
        if url.startswith("https:"):
            context = client_tls_context(trust_certs_file_path=self.trust_certs_file_path)
        answer = exchange(
            "GET",
            url,
            deadline=time.monotonic() + _FETCH_TIMEOUT_SECONDS,
            headers={self.principal_header: self.principal_token(), "Accept": "application/json"},
            tls=context,
            max_body_bytes=_MAX_ANSWER_BYTES,
        )
        if answer.status >= 500 or answer.status == 429:
            raise ConnectError(f"The ZTS server has no role token for {provider_domain} now (HTTP {answer.status})")
        if answer.status != 200:
            raise AuthenticationError(f"The ZTS server refused a role token for {provider_domain} ({answer.status})")
        found = parse_json_object(answer.body.decode(errors="replace")) or {}
        token, ends = found.get("token"), found.get("expiryTime")
        if not isinstance(token, str) or not _is_time(ends):
            raise ErrorGettingAuthenticationData("The ZTS server answered without a role token and its expiry time")
        return RoleToken(token, float(ends))

    def principal_token(self) -> str:
        """Return the principal token, signed (RSA with SHA-256, in Athenz's variant of base64)."""
        now = int(time.time())
        unsigned = (
            f"v=S1;d={self.tenant_domain};n={self.tenant_service};h={socket.gethostname()};"
            f"a={secrets.token_hex(8)};t={now};e={now + _PRINCIPAL_LIFETIME_SECONDS};k={self.key_id}"
        )
        signature = base64.b64encode(self._signed(unsigned.encode())).decode()
        return f"{unsigned};s={signature.translate(_Y64)}"

    def _signed(self, content: bytes) -> bytes:
        try:
            from cryptography.hazmat.primitives import hashes, serialization
            from cryptography.hazmat.primitives.asymmetric import padding, rsa
        except ImportError:
            raise ErrorGettingAuthenticationData(
                "AuthenticationAthenz signs with cryptography: install pulsar-native[encryption], or give a zts_client"
            ) from None
        try:
            key = serialization.load_pem_private_key(self._key_bytes(), password=None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, rsa.RSAPrivateKey):
            # Raised here: the parser's error may contain parts of the key.
            raise ErrorGettingAuthenticationData("The privateKey of AuthenticationAthenz is not an RSA key in PEM")
        return key.sign(content, padding.PKCS1v15(), hashes.SHA256())

    def _key_bytes(self) -> bytes:
        if _is_literal(self.private_key):
            kind, comma, data = self.private_key.partition(",")
            try:
                found = base64.b64decode(unquote_to_bytes(data), validate=True) if kind.endswith(";base64") else b""
            except binascii.Error:
                found = b""
            if not comma or not found:
                raise ErrorGettingAuthenticationData("The privateKey of AuthenticationAthenz is not base64 data")
            return found
        path = self.private_key
        if path.startswith("file:"):
            return SecretReference.parse(path).read().encode()
        if not os.path.isabs(path) and not os.path.isfile(path):
            # Not repeated: it may be the key itself.
            raise ErrorGettingAuthenticationData(
                "The privateKey of AuthenticationAthenz names no file; give an absolute path to have it named here"
            )
        return SecretReference("file", os.path.abspath(path)).read().encode()


def _check_places(private_key: str, authority: str | None) -> None:
    """Raise for the content of a PEM file where its path is expected, without repeating it."""
    if is_key_text(private_key) and not _is_literal(private_key):
        raise InvalidConfiguration(
            "The privateKey of AuthenticationAthenz must be a path, file:///path or "
            "data:application/x-pem-file;base64,…, not the content of a file"
        )
    if is_key_text(authority or ""):
        raise InvalidConfiguration("The caCert of AuthenticationAthenz must be a path, not the content of a file")


def _is_literal(private_key: str) -> bool:
    """Return True if the key itself is in the parameters."""
    return private_key.startswith("data:")


def _is_time(value: object) -> TypeGuard[int | float]:
    # False for NaN, too; an int of JSON may exceed every float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


_Y64 = str.maketrans("+/=", "._-")
