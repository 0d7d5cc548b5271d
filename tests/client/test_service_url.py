"""Service URLs: schemes, hosts, ports, and refusals that tell the right form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_native.exceptions import InvalidUrl
from pulsar_native.service_url import Address, ServiceUrl


@pytest.mark.parametrize(
    ("url", "scheme", "addresses"),
    [
        ("pulsar://localhost:6650", "pulsar", [("localhost", 6650)]),
        ("pulsar://localhost", "pulsar", [("localhost", 6650)]),
        ("pulsar+ssl://broker.example.org", "pulsar+ssl", [("broker.example.org", 6651)]),
        ("  pulsar://h:1/ ", "pulsar", [("h", 1)]),
        ("pulsar://a:1,b,c:65535", "pulsar", [("a", 1), ("b", 6650), ("c", 65535)]),
        ("pulsar+ssl://a, b:7", "pulsar+ssl", [("a", 6651), ("b", 7)]),
        ("pulsar://[::1]:6650,[fe80::1%eth0]", "pulsar", [("::1", 6650), ("fe80::1%eth0", 6650)]),
        ("pulsar://192.168.0.1:6650", "pulsar", [("192.168.0.1", 6650)]),
        ("http://web:8080,web2/", "http", [("web", 8080), ("web2", 80)]),
        ("https://web", "https", [("web", 443)]),
        ("pulsar://my_host-1.x:6650", "pulsar", [("my_host-1.x", 6650)]),
    ],
)
def test_parse(url: str, scheme: str, addresses: list[tuple[str, int]]) -> None:
    parsed = ServiceUrl.parse(url)
    assert parsed.scheme == scheme
    assert parsed.addresses == tuple(Address(*address) for address in addresses)
    assert parsed.use_tls == (scheme in ("pulsar+ssl", "https"))
    assert parsed.is_http == (scheme in ("http", "https"))
    assert ServiceUrl.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("localhost:6650", "has no scheme"),
        ("pulsar:/localhost", "has no scheme"),
        ("http://localhost:8080/admin", "no usable host"),
        ("kafka://localhost:9092", "'kafka' is not known"),
        ("Pulsar://localhost", "'Pulsar' is not known"),
        ("pulsar://", "no usable host"),
        ("pulsar://a,,b", "no usable host"),
        ("pulsar://:6650", "no usable host"),
        ("pulsar://h:port", "no usable host"),
        ("pulsar://h:1:2", "no usable host"),
        ("pulsar://::1:6650", "no usable host"),
        ("pulsar://h/path", "no usable host"),
        ("pulsar://h h:1", "no usable host"),
        ("pulsar://h:0", "between 1 and 65535"),
        ("pulsar://h:65536", "between 1 and 65535"),
        ("pulsar://h:" + "9" * 5000, "between 1 and 65535"),
    ],
)
def test_a_refusal_tells_what_is_wrong(url: str, told: str) -> None:
    with pytest.raises(InvalidUrl, match=told):
        ServiceUrl.parse(url)


@pytest.mark.parametrize("url", [None, 6650, b"pulsar://h"])
def test_only_text_is_a_url(url: object) -> None:
    with pytest.raises(InvalidUrl):
        ServiceUrl.parse(url)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        pytest.param("pulsar://user:topsecret@h:6650", "`authentication`", id="credentials"),
        pytest.param("user:topsecret@h:6650", "`authentication`", id="credentials-no-scheme"),
        pytest.param("pulsar://h:6650?token=topsecret", "must not have a query", id="query"),
        pytest.param("pulsar://h:6650/#topsecret", "must not have a query", id="fragment"),
        pytest.param("h:6650?token=topsecret", "must not have a query", id="query-no-scheme"),
        pytest.param("h?token=topsecret://", "must not have a query", id="query-as-scheme"),
    ],
)
def test_secret_in_a_url_is_refused_and_not_repeated(url: str, told: str) -> None:
    with pytest.raises(InvalidUrl, match=told) as caught:
        ServiceUrl.parse(url)
    assert "topsecret" not in str(caught.value)


@given(st.text(max_size=30) | st.text("pulsar+:/,@[]0123456789h.% ", max_size=30).map("pulsar://".__add__))
def test_any_text_is_read_or_refused(url: str) -> None:
    try:
        parsed = ServiceUrl.parse(url)
    except InvalidUrl:
        return
    assert parsed.addresses
    assert all(0 < address.port < 65536 and address.host for address in parsed.addresses)
    assert ServiceUrl.parse(str(parsed)) == parsed
