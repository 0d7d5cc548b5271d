"""What the client needs of an authentication plug-in, and the plug-in that does nothing.

Rules for every plug-in: nothing is read, fetched or started in the constructor; `auth_data` and `http_headers` may
block and are called off the event loop, at every connection and every challenge of the broker; no secret appears in
repr, str or an error; a plug-in that holds a literal secret refuses to be pickled, one that holds references pickles
them.
"""

from __future__ import annotations

from typing import NoReturn, Self


class Authentication:
    """Identify the client to brokers; base of the ready plug-ins and of your own.

    A plug-in is used by many connections at once and must be thread-safe. `method_name` is the name of the broker's
    authentication provider (CommandConnect.auth_method_name).
    """

    method_name: str = "none"

    def auth_data(self) -> bytes:
        """Return the credentials for CONNECT and AUTH_RESPONSE; may block; raises `ErrorGettingAuthenticationData`."""
        return b""

    def http_headers(self) -> dict[str, str]:
        """Return the headers that identify a request to the admin interface; may block like `auth_data`."""
        return {}

    def tls_certificate(self) -> tuple[str, str] | None:
        """Return the paths of the client's certificate and private key for TLS, or None."""
        return None

    def secrets(self) -> list[str]:
        """Return every secret text that may show up in logs, derived forms included, for masking. Never raises."""
        return []

    def start(self) -> None:
        """Be told that a client starts to use the plug-in."""

    def close(self) -> None:
        """Be told that the client is closed."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        # Plug-ins are immutable to their users; copying by pickle rules would refuse literal secrets.
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class AuthenticationDisabled(Authentication):
    """Send no credentials; the default of a client."""


def refuse_pickle(what: object, advice: str) -> NoReturn:
    """Raise the TypeError for pickling a plug-in that holds a literal secret."""
    raise TypeError(
        f"{type(what).__name__} holds a literal secret and cannot be pickled: it would travel in plain text. {advice}"
    )
