"""Base authentication plug-in, and rules for all of them."""

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


def test_disabled_sends_no_credentials() -> None:
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
def test_plugins_hide_secrets(plugin: Authentication) -> None:
    assert isinstance(plugin, Authentication)
    assert "topsecret" not in f"{plugin!r} {plugin!s} {[plugin]}"
    plugin.start()
    plugin.on_refused()
    plugin.close()


@pytest.mark.parametrize("plugin", ALL, ids=lambda plugin: type(plugin).__name__)
def test_plugin_copy_is_same_object(plugin: Authentication) -> None:
    """Programs copy configurations; that must neither fail like pickling nor double the secret."""
    assert copy.copy(plugin) is plugin
    assert copy.deepcopy({"auth": plugin})["auth"] is plugin


def test_on_refused_reaches_a_named_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(AuthenticationOauth2, "on_refused", lambda plugin: told.append(plugin))
    named = Authentication("oauth2", '{"issuer_url": "https://i", "client_id": "me", "client_secret": "topsecret"}')
    named.on_refused()
    assert [type(plugin) for plugin in told] == [AuthenticationOauth2]
