"""OAuth2 client credentials (RFC 6749, 4.4): fetch a token from an issuer, cache it until shortly before its expiry.

Rules: see `auth.base`. The token endpoint is discovered from the issuer at each fetch (OpenID Connect discovery), the
key file is read at each fetch; secrets are sent over https only, or to the local machine; one fetch at a time, within
20 seconds, in the background while the last token is valid, and then its failure is not an error.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from urllib.parse import quote, quote_plus, unquote_to_bytes, urlencode

from pulsar_native._http import HttpAnswer, exchange, parse_http_url, parse_json_object
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
    InvalidUrl,
    PulsarException,
)

_FETCH_TIMEOUT_SECONDS = 20.0
_MAX_ANSWER_BYTES = 1024 * 1024
_DISCOVERY_PATH = "/.well-known/openid-configuration"
_ADVICE = (
    "Use AuthenticationOauth2.from_reference('env:NAME') or ('file:///path'), or give the secret as a private_key "
    "that is a 'file:///path', read where the client is made."
)
# Names of the C++ and Python clients, and the Java client's spellings of the same.
_PARAMETERS = {
    "type": "type",
    "issuer_url": "issuer_url",
    "issuerUrl": "issuer_url",
    "private_key": "private_key",
    "privateKey": "private_key",
    "client_id": "client_id",
    "clientId": "client_id",
    "client_secret": "client_secret",
    "clientSecret": "client_secret",
    "audience": "audience",
    "scope": "scope",
    "tls_trust_certs_file_path": "trust_certs",
    "trustCertsFilePath": "trust_certs",
}


@dataclass(frozen=True, slots=True)
class _Parameters:
    """Checked parameters; those that may be secret stay out of the repr."""

    issuer_url: str
    private_key: str = field(repr=False)
    client_id: str
    client_secret: str = field(repr=False)
    audience: str
    scope: str
    trust_certs: str

    @staticmethod
    def parse(text: str, what: str) -> _Parameters:
        given = parse_parameters(text, _PARAMETERS, what)
        if given.get("type", "client_credentials") != "client_credentials":
            raise InvalidConfiguration(f"The {what} has a type other than 'client_credentials', the only one there is")
        parameters = _Parameters(
            issuer_url=given.get("issuer_url", "").rstrip("/"),
            private_key=given.get("private_key", ""),
            client_id=given.get("client_id", ""),
            client_secret=given.get("client_secret", ""),
            audience=given.get("audience", ""),
            scope=given.get("scope", ""),
            trust_certs=given.get("trust_certs", ""),
        )
        if not _is_utf8("".join(astuple(parameters))):
            raise InvalidConfiguration(f"The {what} has a parameter with a lone surrogate, which no request can hold")
        if not parameters.issuer_url:
            raise InvalidConfiguration(f"The {what} has no issuer_url")
        _check_url(parameters.issuer_url, "issuer_url")
        if bool(parameters.private_key) == bool(parameters.client_id and parameters.client_secret):
            raise InvalidConfiguration(f"The {what} needs either private_key, or client_id and client_secret")
        if not _is_place_of_key(parameters.private_key):
            raise InvalidConfiguration(
                f"The private_key in the {what} must be a path, file:///path or data:application/json;base64,…"
            )
        if is_key_text(parameters.trust_certs):
            raise InvalidConfiguration(
                f"The tls_trust_certs_file_path in the {what} must be a path, not the content of a file"
            )
        return parameters

    def has_literal_secret(self) -> bool:
        return bool(self.client_secret) or self.private_key.startswith("data:")


class AuthenticationOauth2(Authentication):
    """Authenticate with a token of an OAuth2 issuer, fetched with the client credentials grant.

    `auth_params_string` is a JSON object: "issuer_url"; "private_key" (a path, `file:///path`, or
    `data:application/json;base64,...` of a JSON with client_id and client_secret) or "client_id" and "client_secret";
    "audience" and "scope" as the issuer requires. Nothing is fetched before the first use. Thread-safe: callers during
    a fetch wait for its result, and get its error, too.
    """

    method_name = "token"

    def __init__(self, auth_params_string: str) -> None:
        if not isinstance(auth_params_string, str):
            raise InvalidConfiguration(
                f"The auth_params_string of AuthenticationOauth2 must be a str, not {type(auth_params_string).__name__}"
            )
        self._parameters: _Parameters | None = None
        # Invalid parameters raise at the first use, as in the official client.
        self._mistake: InvalidConfiguration | None = None
        try:
            self._parameters = _Parameters.parse(auth_params_string, "auth_params_string of AuthenticationOauth2")
        except InvalidConfiguration as error:
            self._mistake = error
        self._reference: SecretReference | None = None
        self._text = auth_params_string
        self._prepare()

    @classmethod
    def from_reference(cls, reference: str) -> AuthenticationOauth2:
        """Return a plug-in that reads the JSON of `auth_params_string` from `env:NAME` or `file:///path`.

        It is read at each fetch, and the plug-in can be pickled.
        """
        made = cls.__new__(cls)
        made._parameters = None
        made._mistake = None
        made._reference = SecretReference.parse(reference)
        made._text = ""
        made._prepare()
        return made

    def _prepare(self) -> None:
        self._cache = TokenCache()

    def check(self) -> None:
        """Raise `InvalidConfiguration` for parameters that cannot be used, without waiting for the first use."""
        if self._mistake is not None:
            raise self._mistake

    def auth_data(self) -> bytes:
        """Return the access token; another one is fetched in the background when it is about to expire.

        Blocking for a fetch, at most 20 s (plus the name resolution), when there is none, or it expires within seconds,
        or a broker refused it. Raises `AuthenticationError` when the issuer
        refuses, `ConnectError` or `Timeout` when it cannot be reached, `ErrorGettingAuthenticationData` when its
        response is unusable.
        """
        return self._cache.get(self._fetch).encode()

    def http_headers(self) -> dict[str, str]:
        """Return the bearer header; blocking as `auth_data`."""
        return {"Authorization": f"Bearer {self._cache.get(self._fetch)}"}

    def on_refused(self) -> None:
        """Fetch another token at the next use, as the broker does not accept the last one any more.

        At most once in 5 s; where the fetch fails, the last one is used until it expires.
        """
        self._cache.on_refused()

    def secrets(self) -> list[str]:
        """Return the client secret and its encoded forms, the last token, and a private key passed as data."""
        found = [self._cache.last] if self._cache.last else []
        try:
            parameters = self._current_parameters()
            found += _secret_forms(*_client_of(parameters))
        except PulsarException:
            return found
        if parameters.private_key.startswith("data:"):
            found.append(parameters.private_key)
            found.append(parameters.private_key.partition(",")[2])
        return found

    def _current_parameters(self) -> _Parameters:
        if self._parameters is not None:
            return self._parameters
        if self._mistake is not None:
            raise AuthenticationError(str(self._mistake)) from self._mistake
        assert self._reference is not None
        return _Parameters.parse(self._reference.read(), str(self._reference))

    def _fetch(self) -> FetchedToken:
        parameters = self._current_parameters()
        client = _client_of(parameters)
        issuer = _Issuer(parameters, time.monotonic() + _FETCH_TIMEOUT_SECONDS, _secret_forms(*client))
        form = {"grant_type": "client_credentials", "client_id": client[0], "client_secret": client[1]}
        form |= {name: value for name in ("audience", "scope") if (value := getattr(parameters, name))}
        return _token_of(issuer.ask("POST", issuer.token_endpoint(), form))

    def __reduce__(self) -> tuple[object, ...]:
        if self._reference is not None:
            return (AuthenticationOauth2.from_reference, (str(self._reference),))
        if self._parameters is None or self._parameters.has_literal_secret():
            refuse_pickle(self, _ADVICE)
        return (AuthenticationOauth2, (self._text,))

    def __repr__(self) -> str:
        if self._reference is not None:
            return f"AuthenticationOauth2.from_reference({str(self._reference)!r})"
        issuer = self._parameters.issuer_url if self._parameters is not None else "invalid"
        return f"AuthenticationOauth2(issuer_url={issuer!r}, ***)"


class _Issuer:
    """Requests to one issuer during one fetch."""

    def __init__(self, parameters: _Parameters, deadline: float, secrets: Iterable[str]) -> None:
        self._url = parameters.issuer_url
        self._trust_certs = parameters.trust_certs or None
        self._deadline = deadline
        self._secrets = tuple(secrets)

    def token_endpoint(self) -> str:
        endpoint = self.ask("GET", self._url + _DISCOVERY_PATH).get("token_endpoint")
        if not isinstance(endpoint, str):
            raise ErrorGettingAuthenticationData(f"The OAuth2 issuer {self._url} names no token_endpoint")
        _check_url(endpoint, "token_endpoint of the OAuth2 issuer")
        return endpoint

    def ask(self, method: str, url: str, form: Mapping[str, str] | None = None) -> dict[str, object]:
        headers = {"Accept": "application/json"}
        body = None
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            body = urlencode(form).encode()
        context = client_tls_context(trust_certs_file_path=self._trust_certs) if url.startswith("https:") else None
        answer = exchange(
            method,
            url,
            deadline=self._deadline,
            headers=headers,
            body=body,
            tls=context,
            max_body_bytes=_MAX_ANSWER_BYTES,
        )
        content = parse_json_object(answer.body.decode(errors="replace"))
        if answer.status != 200:
            raise self._refusal(answer, content or {})
        if content is None:
            raise ErrorGettingAuthenticationData(f"The OAuth2 issuer {self._url} did not answer in JSON")
        return content

    def _refusal(self, answer: HttpAnswer, content: Mapping[str, object]) -> PulsarException:
        said = ": ".join(str(content[name]) for name in ("error", "error_description") if content.get(name))
        for secret in self._secrets:
            said = said.replace(secret, "***")
        message = f"The OAuth2 issuer {self._url} refused (HTTP {answer.status}{', ' + said[:300] if said else ''})"
        if answer.status >= 500 or answer.status == 429:
            return ConnectError(message)
        if answer.status in (400, 401, 403):
            return AuthenticationError(message)
        return ErrorGettingAuthenticationData(message)


def _token_of(answer: Mapping[str, object]) -> FetchedToken:
    text, lifetime = answer.get("access_token"), answer.get("expires_in")
    if not isinstance(text, str) or not text.isascii() or not text.isprintable() or not text or " " in text:
        raise ErrorGettingAuthenticationData("The answer of the OAuth2 issuer has no usable access_token")
    if isinstance(lifetime, str) and lifetime.isdecimal():
        lifetime = float(lifetime)
    if isinstance(lifetime, bool) or not isinstance(lifetime, int | float) or not lifetime > 0:
        lifetime = 0.0  # unknown: used once, fetched again at the next connection
    # An int of JSON may exceed every float.
    lifetime = min(lifetime, sys.float_info.max)
    # A margin of a tenth of the lifetime, at most a minute, for latency to the broker and for clock skew.
    return FetchedToken(text, lifetime, min(60.0, lifetime / 10))


def _client_of(parameters: _Parameters) -> tuple[str, str]:
    """Return client id and secret; reads the key file, so that a replaced one applies."""
    if not parameters.private_key:
        return parameters.client_id, parameters.client_secret
    # Windows' editors begin a file with a byte order mark.
    key = parse_json_object(_key_text(parameters.private_key).removeprefix("\ufeff")) or {}
    client_id, client_secret = key.get("client_id"), key.get("client_secret")
    if (
        not isinstance(client_id, str)
        or not isinstance(client_secret, str)
        or not client_id
        or not client_secret
        or not _is_utf8(client_id + client_secret)
    ):
        raise ErrorGettingAuthenticationData(
            "The private_key of AuthenticationOauth2 is not a JSON object with client_id and client_secret"
        )
    return client_id, client_secret


def _secret_forms(client_id: str, client_secret: str) -> list[str]:
    """Return the secret as it may appear in an issuer's answer: as it is, in a URL, and in HTTP's basic scheme."""
    pairs = (f"{client_id}:{client_secret}", f"{quote_plus(client_id)}:{quote_plus(client_secret)}")
    forms = [client_secret, quote_plus(client_secret), quote(client_secret, safe="")]
    forms += [base64.b64encode(pair.encode()).decode() for pair in pairs]
    return list(dict.fromkeys(forms))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_place_of_key(private_key: str) -> bool:
    """Return True for a path, a `file:` and a `data:` URL; False for the content of a PEM file, which is no JSON."""
    if "\0" in private_key or private_key.startswith("data:"):
        return "\0" not in private_key
    return not is_key_text(private_key) and ("://" not in private_key or private_key.startswith("file:"))


def _key_text(private_key: str) -> str:
    if private_key.startswith("data:"):
        head, _, data = private_key.partition(",")
        raw = unquote_to_bytes(data)
        try:
            return (base64.b64decode(raw, validate=True) if head.endswith(";base64") else raw).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""
    if not private_key.startswith("file:"):
        if not os.path.isabs(private_key) and not os.path.isfile(private_key):
            # Not repeated: it may be the secret itself.
            raise ErrorGettingAuthenticationData(
                "The private_key of AuthenticationOauth2 names no file; give an absolute path to have it named here"
            )
        return SecretReference("file", private_key).read()
    return SecretReference.parse(private_key).read()


def _check_url(url: str, what: str) -> None:
    """Raise for a URL that would send the client secret unencrypted over a network."""
    parts = parse_http_url(url, what)
    if parts.scheme != "https" and not _is_this_machine(parts.hostname or ""):
        raise InvalidUrl(f"The {what} {url} is not https: the client secret would travel in plain text")


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
