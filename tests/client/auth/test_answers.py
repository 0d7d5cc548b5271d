"""Headers, certificates and secrets of plug-ins: those of an application may be anything, and no error repeats them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsar_native.admin import AdminClient
from pulsar_native.auth import Authentication
from pulsar_native.auth.answers import http_headers_of, secrets_of, tls_certificate_of
from pulsar_native.exceptions import AuthorizationError, ErrorGettingAuthenticationData
from support.http_peer import Answer, http_peer


class Given(Authentication):
    """Plug-in that returns one object from each method, or raises it."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self._answer = answer

    def http_headers(self) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def tls_certificate(self) -> Any:
        return self.http_headers()

    def secrets(self) -> Any:
        return self.http_headers()


ODD_HEADERS: list[tuple[object, str]] = [
    (None, "returned NoneType, not dict"),
    (["very-secret"], "returned list, not dict"),
    ({5: "very-secret"}, "returned a name that no header has"),
    ({"very secret\n": "very-secret"}, "returned a name that no header has"),
    ({"Authorization": b"very-secret"}, "a value of 'Authorization' that is not one line of text"),
    ({"Authorization": "very-secret\n"}, "a value of 'Authorization' that is not one line of text"),
    ({"Authorization": "very-secret\u20ac"}, "a value of 'Authorization' that is not one line of text"),
    (RuntimeError("very-secret"), "failed with RuntimeError"),
]


@pytest.mark.parametrize(("headers", "words"), ODD_HEADERS, ids=repr)
def test_http_headers_of_odd_answer_raises(headers: object, words: str) -> None:
    with pytest.raises(ErrorGettingAuthenticationData, match=words) as caught:
        http_headers_of(Given(headers))
    assert "http_headers of the" in str(caught.value) and "very" not in str(caught.value)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer a", "X-Team": "orders\tEU é"}])
def test_http_headers_of_plain_answer_is_kept(headers: dict[str, str]) -> None:
    assert http_headers_of(Given(headers)) == headers


@pytest.mark.parametrize("paths", ["very-secret", ("very-secret",), ("very", None), {"very": "secret"}, 5])
def test_tls_certificate_of_odd_answer_raises(paths: object) -> None:
    with pytest.raises(ErrorGettingAuthenticationData, match="return the paths of a certificate") as caught:
        tls_certificate_of(Given(paths))
    assert "very" not in str(caught.value)


def test_tls_certificate_of_paths_of_any_kind() -> None:
    assert tls_certificate_of(Given((Path("a.pem"), b"a.key"))) == ("a.pem", "a.key")
    assert tls_certificate_of(Given(None)) is None


@pytest.mark.parametrize(("headers", "words"), ODD_HEADERS, ids=repr)
def test_admin_odd_headers_raise_before_a_request(headers: object, words: str) -> None:
    with http_peer(lambda asked: Answer(200, b"[]")) as peer:
        with pytest.raises(ErrorGettingAuthenticationData, match=f"list the clusters: .*{words}") as caught:
            AdminClient(peer.url, Given(headers)).clusters()
        assert "very" not in str(caught.value) and peer.asked == []


def test_admin_odd_certificate_raises_before_a_request() -> None:
    class Odd(Authentication):
        def tls_certificate(self) -> Any:
            return "very-secret"

    with pytest.raises(ErrorGettingAuthenticationData, match="tls_certificate of the") as caught:
        AdminClient("https://127.0.0.1:1", Odd()).clusters()
    assert "very" not in str(caught.value)


ODD_SECRETS: list[tuple[object, list[str]]] = [
    (None, []),
    ("very-secret", []),
    ([None, 5, "", "very-secret"], ["very-secret"]),
    (RuntimeError("very-secret"), []),
    (StopIteration("very-secret"), []),
    (ErrorGettingAuthenticationData("very-secret"), []),
]


@pytest.mark.parametrize(("answer", "kept"), ODD_SECRETS, ids=repr)
def test_secrets_of_odd_answer_keeps_texts(answer: object, kept: list[str]) -> None:
    assert secrets_of(Given(answer)) == kept


def test_secrets_of_plugin_without_method_is_empty() -> None:
    assert secrets_of(object()) == secrets_of(None) == []


@pytest.mark.filterwarnings("error")
def test_secrets_of_coroutine_function_is_empty() -> None:
    class Odd(Authentication):
        async def secrets(self) -> Any:
            return ["very-secret"]

    assert secrets_of(Odd()) == []


@pytest.mark.parametrize("answer", [answer for answer, _ in ODD_SECRETS], ids=repr)
def test_admin_odd_secrets_keep_the_error(answer: object) -> None:
    class Odd(Given):
        def http_headers(self) -> Any:
            return {}

        def secrets(self) -> Any:
            return super().http_headers()

    with http_peer(lambda asked: Answer(403, b'{"reason": "not for you"}')) as peer:
        with pytest.raises(AuthorizationError, match="list the clusters: not for you") as caught:
            AdminClient(peer.url, Odd(answer)).clusters()
        assert "very" not in str(caught.value)
