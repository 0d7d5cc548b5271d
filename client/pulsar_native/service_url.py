"""Service URLs: parsing and validation.

Rules: a URL is checked before any I/O, and every error names the correct form. No host name is resolved here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from pulsar_native.exceptions import InvalidUrl

_DEFAULT_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 80, "https": 443}
_FORM = (
    "pulsar://host:6650, pulsar+ssl://host:6651, several hosts: pulsar://host1:6650,host2:6650, "
    "or the web service for lookups over HTTP: http://host:8080"
)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[^\s:/@\[\]]+)(?::(\d+))?")


class Address(NamedTuple):
    """Host and port of a broker; immutable and hashable."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServiceUrl:
    """A checked service URL: scheme and addresses in their order."""

    scheme: str
    addresses: tuple[Address, ...]

    @property
    def use_tls(self) -> bool:
        """True if connections to these addresses are encrypted."""
        return self.scheme in ("pulsar+ssl", "https")

    @property
    def is_http(self) -> bool:
        """True if the addresses are web services, for lookups only."""
        return self.scheme in ("http", "https")

    @staticmethod
    def parse(url: str) -> ServiceUrl:
        """Return the parsed URL or raise `InvalidUrl`. Does no I/O."""
        if not isinstance(url, str) or not url.strip():
            raise InvalidUrl(f"The service URL is empty; write {_FORM}")
        return _parse(url)

    def __str__(self) -> str:
        return f"{self.scheme}://{','.join(map(str, self.addresses))}"


# Every lookup's response contains the broker's URL: few different ones, again and again.
@lru_cache(maxsize=256)
def _parse(url: str) -> ServiceUrl:
    # What may hold a secret is refused first, and not repeated: every other error shows the URL.
    if "?" in url or "#" in url:
        raise InvalidUrl(
            "The service URL must not have a query (from ? or # on): give its parts as options of the client, in a "
            "connection as fields"
        )
    if "@" in url:
        raise InvalidUrl("The service URL must not hold credentials; pass `authentication` instead")
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        raise InvalidUrl(f"The service URL {url!r} has no scheme; write {_FORM}")
    if scheme not in _DEFAULT_PORTS:
        raise InvalidUrl(f"The service URL's scheme {scheme!r} is not known; write {_FORM}")
    hosts = rest.rstrip("/")
    return ServiceUrl(scheme, tuple(_address(part, scheme, url) for part in hosts.split(",")))


def parse_address(text: str, what: str, form: str) -> Address:
    """Return the address of `host:port`, or raise `InvalidUrl`: what must be of which form. Does no I/O."""
    match = _HOST.fullmatch(text)
    digits = match[2] if match is not None else None
    port = int(digits) if digits is not None and len(digits) < 6 else 0
    if match is None or not 0 < port < 65536:
        # The text may hold a password: it is not repeated.
        raise InvalidUrl(f"{what} must be {form}, with a port between 1 and 65535 and without credentials")
    return Address(match[1].strip("[]"), port)


def _address(text: str, scheme: str, url: str) -> Address:
    match = _HOST.fullmatch(text.strip())
    if match is None:
        raise InvalidUrl(f"The service URL {url!r} has no usable host in {text.strip()!r}; write {_FORM}")
    digits = match[2] or str(_DEFAULT_PORTS[scheme])
    # int() raises for thousands of digits.
    port = int(digits) if len(digits) < 6 else 0
    if not 0 < port < 65536:
        raise InvalidUrl(f"The service URL {url!r} has a port that is not between 1 and 65535")
    return Address(match[1].strip("[]"), port)
