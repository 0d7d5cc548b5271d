"""Authentication plug-in interface, and the plug-in without credentials.

Rules for every plug-in: nothing is read, fetched or started in the constructor; its methods may block and are called
off the event loop, `auth_data` and `http_headers` at every connection and every challenge of the broker; none is a
coroutine function; no secret appears in repr, str or an error; a plug-in that holds a literal secret refuses to be
pickled, one that holds references pickles them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn, Self

from pulsar_native.exceptions import InvalidConfiguration


class Authentication:
    """Authenticate the client to brokers; base class of the built-in plug-ins and of your own.

    A plug-in is used by many connections at once and must be thread-safe. `method_name` is the name of the broker's
    authentication provider (CommandConnect.auth_method_name).
    """

    method_name: str = "none"

    def __init__(self, dynamicLibPath: str = "", authParamsString: str = "") -> None:
        """Name a plug-in and its parameters, as in the official client; subclasses call it without arguments.

        `dynamicLibPath` is token, tls, basic, oauth2 or athenz, or the name of Java's class; a shared library cannot be
        loaded. `authParamsString` is `token:…`, `file:///…` or `env:…` for a token, `tlsCertFile:…,tlsKeyFile:…` for
        TLS, else a JSON object. Raises `InvalidConfiguration`.
        """
        self._plugin: Authentication | None = None
        if type(self) is Authentication and (dynamicLibPath or authParamsString):
            self._plugin = plugin_named(dynamicLibPath, authParamsString)
            self.method_name = self._plugin.method_name

    def auth_data(self) -> bytes:
        """Return the credentials for CONNECT and AUTH_RESPONSE; may block; raises `ErrorGettingAuthenticationData`."""
        plugin = self._named()
        return b"" if plugin is None else plugin.auth_data()

    def http_headers(self) -> dict[str, str]:
        """Return the headers that authenticate a request to the admin interface; may block like `auth_data`."""
        plugin = self._named()
        return {} if plugin is None else plugin.http_headers()

    def tls_certificate(self) -> tuple[str, str] | None:
        """Return the paths of the client's certificate and private key for TLS, or None."""
        plugin = self._named()
        return None if plugin is None else plugin.tls_certificate()

    def secrets(self) -> list[str]:
        """Return every secret text that may appear in logs, derived forms included, for masking. Never raises."""
        plugin = self._named()
        return [] if plugin is None else plugin.secrets()

    def on_refused(self) -> None:
        """Note that a broker does not accept the last credentials any more; may block. Does nothing by default.

        Called when a broker refused them at the start of a connection or in an HTTP request (status 401), or asks for
        others on a connection and `auth_data` returned the same: a plug-in that caches them should fetch others at the
        next call. It may be called at every attempt to connect, so a plug-in limits its fetches. What it raises is
        logged by its type.
        """
        plugin = self._named()
        if plugin is not None:
            plugin.on_refused()

    def start(self) -> None:
        """Start the plug-in: called when a client starts to use it, and again when it failed; may block."""
        plugin = self._named()
        if plugin is not None:
            plugin.start()

    def close(self) -> None:
        """Close the plug-in: called when the client is closed; may block. What it raises is logged by its type."""
        plugin = self._named()
        if plugin is not None:
            plugin.close()

    def _named(self) -> Authentication | None:
        # A plug-in that does not call the base's constructor has none.
        return getattr(self, "_plugin", None)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        # Plug-ins are immutable to their users; copying by pickle rules would refuse literal secrets.
        return self

    def __repr__(self) -> str:
        plugin = self._named()
        return f"{type(self).__name__}()" if plugin is None else repr(plugin)


class AuthenticationDisabled(Authentication):
    """Send no credentials; the default of a client."""


# Maker of a plug-in from its parameters, by each of its names in small letters; see `auth.plugins`.
PLUGINS: dict[str, Callable[[str], Authentication]] = {}
# As long as Java's names; a token is longer.
_PLUGIN_NAME = re.compile(r"[\w./$-]{0,70}")


def plugin_named(dynamicLibPath: str = "", authParamsString: str = "") -> Authentication:
    """Return the ready plug-in of a name; raises `InvalidConfiguration` for one there is not."""
    for name, value in (("dynamicLibPath", dynamicLibPath), ("authParamsString", authParamsString)):
        if not isinstance(value, str):
            raise InvalidConfiguration(f"{name} of Authentication must be a str, not {type(value).__name__}")
    maker = PLUGINS.get(dynamicLibPath.lower())
    if maker is None:
        # Other text may be the credentials, passed as the wrong argument.
        name = f" {dynamicLibPath!r}" if _PLUGIN_NAME.fullmatch(dynamicLibPath) else " of this name"
        raise InvalidConfiguration(
            f"There is no authentication plug-in{name}: known are token, tls, basic, oauth2, athenz and "
            "the Java client's classes; shared libraries cannot be loaded"
        )
    return maker(authParamsString)


def refuse_pickle(what: object, advice: str) -> NoReturn:
    """Raise the TypeError for pickling a plug-in that holds a literal secret."""
    raise TypeError(
        f"{type(what).__name__} holds a literal secret and cannot be pickled: it would travel in plain text. {advice}"
    )
