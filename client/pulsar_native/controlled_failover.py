"""Controlled failover: a web service says which cluster a client uses (Java's ControlledClusterFailover, PIP-121).

Rules: nothing is requested before the client's first use, and never on its loop; a redirect is not followed, since the
headers may hold a secret; headers, the URL's query and the credentials in an answer never get into a text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pulsar_native._callback_errors import result_of
from pulsar_native._http import HttpAnswer, exchange, parse_http_url, parse_json_object
from pulsar_native._type_names import type_name
from pulsar_native.auth.answers import checked_headers
from pulsar_native.auth.base import plugin_named, refuse_pickle
from pulsar_native.exceptions import InvalidConfiguration, ReadError
from pulsar_native.service_info import PolledServiceInfo, ServiceInfo
from pulsar_native.service_url import ServiceUrl

# Limit of the whole request: a thread of the process waits for it, also after the client was closed.
_REQUEST_SECONDS = 10
# Far more than the four texts of an answer need.
_MAX_ANSWER_BYTES = 64 * 1024
_FIELDS = ("serviceUrl", "tlsTrustCertsFilePath", "authPluginClassName", "authParamsString")
_HEADER = "url_provider_header"
_ADVICE = "Let url_provider_header be a function of a module, which is pickled by its name."


class ControlledClusterFailover(PolledServiceInfo):
    """Failover that a web service controls: it says which cluster the client uses (PIP-121).

    The client begins at the default service URL, asks the web service at once and then at each interval, and moves when
    the answer is another one: status 200 and a JSON object with `serviceUrl`, and perhaps `authPluginClassName` with
    `authParamsString` (as `Authentication` takes them) and `tlsTrustCertsFilePath`. What it leaves out is the client's
    own. Any other answer, or none within 10 s, is logged, and the client stays where it is. `https://` is verified with
    the system's trusted certificates; redirects are not followed.

    Picklable, except with headers as a mapping. Raises `InvalidUrl` for a malformed URL, `InvalidConfiguration` for
    arguments of another type or out of range.

    :param default_service_url: the service URL until the first answer.
    :param url_provider: `http://` or `https://` URL of the web service.
    :param url_provider_header: HTTP headers of the request, such as one with a token; a mapping of str to str, or a
        plain function that returns one, called for each request, off the event loop. Default None: no headers.
    :param check_interval_ms: milliseconds between two requests, at least 1. Default 30000.
    """

    def __init__(
        self,
        default_service_url: str,
        url_provider: str,
        url_provider_header: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
        check_interval_ms: int = 30_000,
    ) -> None:
        super().__init__(self._ask, check_interval_ms)
        ServiceUrl.parse(default_service_url)
        self._parts = parse_http_url(url_provider, "url_provider")
        if isinstance(url_provider_header, Mapping):
            url_provider_header = checked_headers(f"{_HEADER} has", dict(url_provider_header), InvalidConfiguration)
        elif url_provider_header is not None and not callable(url_provider_header):
            raise InvalidConfiguration(
                f"{_HEADER} must be a mapping of str to str or a function, not {type_name(url_provider_header)}"
            )
        self.default_service_url = default_service_url
        self.url_provider = url_provider
        self._headers = url_provider_header
        # The last answer and what was made of it: the same answer is the same cluster, with the same plug-in.
        self._last: tuple[tuple[str, ...], ServiceInfo] | None = None

    def __repr__(self) -> str:
        return (
            f"ControlledClusterFailover(default_service_url={self.default_service_url!r}, "
            f"url_provider={self._where()!r}, check_interval_ms={self.check_interval_ms})"
        )

    def __getstate__(self) -> dict[str, object]:
        if isinstance(self._headers, Mapping) and self._headers:
            refuse_pickle(self, _ADVICE)
        return {**self.__dict__, "_last": None}

    def _where(self) -> str:
        return f"{self._parts.scheme}://{self._parts.netloc}{self._parts.path}"

    def _ask(self) -> ServiceInfo:
        """Return the cluster that the web service names. Blocks; raises a `PulsarException` for any other answer."""
        answer = exchange(
            "GET",
            self._parts.geturl(),
            deadline=time.monotonic() + _REQUEST_SECONDS,
            headers={**self._current_headers(), "Accept": "application/json"},
            max_body_bytes=_MAX_ANSWER_BYTES,
        )
        texts = self._texts_of(answer)
        if self._last is None or self._last[0] != texts:
            self._last = (texts, self._made_of(texts))
        return self._last[1]

    def _current_headers(self) -> Mapping[str, str]:
        if not callable(self._headers):
            return self._headers or {}
        found = result_of(_HEADER, InvalidConfiguration, self._headers)
        return checked_headers(f"{_HEADER} returned", found, InvalidConfiguration)

    def _texts_of(self, answer: HttpAnswer) -> tuple[str, ...]:
        """Return the values of the fields, "" for one that is missing or null."""
        if answer.status != 200:
            raise ReadError(f"{self._where()} answered with HTTP {answer.status}")
        found = parse_json_object(answer.body)
        if found is None:
            raise ReadError(f"{self._where()} did not answer with a JSON object")
        texts = []
        for name in _FIELDS:
            value = found.get(name)
            if value is not None and not isinstance(value, str):
                raise ReadError(f"{name} in the answer of {self._where()} is {type(value).__name__}, not a string")
            texts.append((value or "").strip())
        if not texts[0]:
            raise ReadError(f"The answer of {self._where()} has no serviceUrl")
        return tuple(texts)

    def _made_of(self, texts: tuple[str, ...]) -> ServiceInfo:
        url, trusted, plugin, parameters = texts
        if parameters and not plugin:
            raise ReadError(f"The answer of {self._where()} has authParamsString without authPluginClassName")
        return ServiceInfo(url, plugin_named(plugin, parameters) if plugin else None, trusted or None)
