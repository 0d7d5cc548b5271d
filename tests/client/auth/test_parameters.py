"""JSON parameter texts: known names and strings only, errors without secrets."""

from __future__ import annotations

import pickle

import pytest

from pulsar_native.auth.parameters import parse_parameters
from pulsar_native.exceptions import InvalidConfiguration

NAMES = {"username": "username", "userId": "username", "password": "password"}


def test_parse_parameters_spellings() -> None:
    assert parse_parameters('{"userId": "me", "password": "p"}', NAMES, "text") == {"username": "me", "password": "p"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topsecret", "not a JSON object"),
        ('{"password": "topsecret"', "not a JSON object"),
        ('["topsecret"]', "not a JSON object"),
        ('{"passwort": "topsecret"}', "did you mean 'password'"),
        ('{"zzz": "topsecret"}', "known are password, userId, username"),
        ('{"password": ["topsecret"]}', "'password' in the text must be a str"),
    ],
)
def test_parse_parameters_error_names_fix_not_value(text: str, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message) as caught:
        parse_parameters(text, NAMES, "text")
    assert "topsecret" not in f"{caught.value!r} {caught.value.__context__!r}"
    assert b"topsecret" not in pickle.dumps(caught.value)


def test_parse_parameters_non_text_raises() -> None:
    with pytest.raises(InvalidConfiguration, match="not dict"):
        parse_parameters({"password": "x"}, NAMES, "text")  # type: ignore[arg-type]
