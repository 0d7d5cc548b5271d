"""The base plug-in: it sends nothing, and it is what users' own plug-ins start from."""

from __future__ import annotations

import copy
import pickle

import pytest

from pulsar_native.auth import (
    Authentication,
    AuthenticationBasic,
    AuthenticationDisabled,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
)

ALL = [
    AuthenticationDisabled(),
    AuthenticationToken("topsecret"),
    AuthenticationBasic("me", "topsecret"),
    AuthenticationTLS("c.pem", "k.pem"),
    AuthenticationOauth2('{"issuer_url": "https://i", "client_id": "me", "client_secret": "topsecret"}'),
]


def test_disabled_sends_nothing() -> None:
    plugin = AuthenticationDisabled()
    assert (plugin.method_name, plugin.auth_data(), plugin.http_headers(), plugin.tls_certificate()) == (
        "none",
        b"",
        {},
        None,
    )
    assert plugin.secrets() == []
    assert isinstance(pickle.loads(pickle.dumps(plugin)), AuthenticationDisabled)


@pytest.mark.parametrize("plugin", ALL, ids=lambda plugin: type(plugin).__name__)
def test_every_plug_in_keeps_its_secrets_to_itself(plugin: Authentication) -> None:
    assert isinstance(plugin, Authentication)
    assert "topsecret" not in f"{plugin!r} {plugin!s} {[plugin]}"
    plugin.start()
    plugin.close()


@pytest.mark.parametrize("plugin", ALL, ids=lambda plugin: type(plugin).__name__)
def test_copies_are_the_plug_in_itself(plugin: Authentication) -> None:
    """Programs copy configurations; that must neither fail like pickling nor double the secret."""
    assert copy.copy(plugin) is plugin
    assert copy.deepcopy({"auth": plugin})["auth"] is plugin
