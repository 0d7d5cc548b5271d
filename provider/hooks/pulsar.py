"""The hook: a connection of type pulsar, opened as a client, an asyncio client or an admin client.

May not open a socket itself. Rules: nothing happens in the constructor; the connection is read once per hook; every
secret it holds, or that is derived from it, is told to Airflow's masker before anything can log it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException
from airflow.sdk.log import amask_secret, mask_secret

from airflow_provider_pulsar.hooks.settings import Settings, read_settings
from pulsar_native import AdminClient, Authentication, AuthenticationOauth2, Client, ClientConfig
from pulsar_native.exceptions import PulsarException

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from pulsar_native.asyncio import Client as AsyncClient

_TEST_SECONDS = 9.5
_SECRET_FIELDS = frozenset(f.name for f in dataclasses.fields(Settings) if not f.repr)


class PulsarHook(BaseHook):
    """Reach the Pulsar cluster of an Airflow connection.

    The plain methods block while Airflow is asked for the connection; the `a…` ones and `get_async_client` are for
    running loops. Not thread-safe. What is wrong with the connection raises `AirflowException` naming the field.
    """

    conn_name_attr = "pulsar_conn_id"
    default_conn_name = "pulsar_default"
    conn_type = "pulsar"
    hook_name = "Apache Pulsar"

    def __init__(self, pulsar_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.pulsar_conn_id = pulsar_conn_id
        self._settings: Settings | None = None
        self._authentication: Authentication | None = None

    # --- clients --------------------------------------------------------------------------------------------------

    def get_client(self) -> Client:
        """Return a client, to be used as a context manager. It connects on first use; reading the connection blocks."""
        return Client.from_config(self.client_config())

    async def get_async_client(self) -> AsyncClient:
        """Return an asyncio client for the running loop, to be used as an async context manager; starts no thread."""
        from pulsar_native.asyncio import Client as AsyncClient

        return AsyncClient.from_config(await self.aclient_config())

    def get_admin(self) -> AdminClient | None:
        """Return a client of the admin interface, None where the connection names no admin URL. Its calls block."""
        return self._admin(self._read())

    async def aget_admin(self) -> AdminClient | None:
        """Return what `get_admin` does, from within a loop. The calls of the admin client still block."""
        return self._admin(await self._aread())

    def get_conn(self) -> Client:
        """Return `get_client()`: Airflow's common name for it."""
        return self.get_client()

    # --- descriptions ---------------------------------------------------------------------------------------------

    def client_config(self) -> ClientConfig:
        """Return the description of the client, checked. Blocks for reading the connection."""
        return self._read().client_config(self._authentication)

    async def aclient_config(self) -> ClientConfig:
        """Return the description of the client from within a loop, as `client_config`."""
        return (await self._aread()).client_config(self._authentication)

    def service_url(self) -> str:
        """Return the service URL, also where the connection has host and port instead. Blocks like `client_config`."""
        return self._read().service_url

    def deployment_id(self) -> str | None:
        """Return the connection's name of this Airflow, None where it has none. Blocks like `client_config`."""
        return self._read().deployment_id

    def connection_options(self) -> dict[str, str | int | bool]:
        """Return what the connection says apart from secrets, by the names of its fields; blocks like `client_config`.

        Only what is set or has a default is there. Safe to log and to show.
        """
        values: dict[str, str | int | bool | None] = dataclasses.asdict(self._read())
        return {name: value for name, value in values.items() if value is not None and name not in _SECRET_FIELDS}

    def credentials(self) -> dict[str, str] | None:
        """Return the credentials with their secrets, for handing over to a program of its own; None for none.

        Blocks for the connection and for a token file. Never log, template or push the result; every secret in it is
        masked in logs. The form is that of `credentialsRef` of the Spark source: {"method": "token", "token": …} etc.
        """
        settings = self._read()
        try:
            found = settings.credentials()
        except PulsarException as error:
            raise self._wrong(error) from error
        for name in ("token", "password", "client_secret", "private_key"):
            if found and name in found and found["method"] != "tls":
                mask_secret(found[name])
        return found

    # --- test -----------------------------------------------------------------------------------------------------

    def test_connection(self) -> tuple[bool, str]:
        """Try the connection stage by stage and return whether it works and what was found, within 10 seconds.

        Blocking; needs no running loop. The first stage that fails ends the test and is named: settings, resolve, TCP,
        TLS, credentials, CONNECT, authentication, lookup, admin.
        """
        from pulsar_native.diagnostics import diagnose

        try:
            settings = self._read()
            found = diagnose(
                self.client_config(),
                admin_url=settings.admin_url,
                topic=settings.test_topic,
                timeout_seconds=_TEST_SECONDS,
            )
        except (AirflowException, PulsarException) as error:
            return False, f"settings failed: {error}"
        return found.ok, str(found)

    # --- reading --------------------------------------------------------------------------------------------------

    def _read(self) -> Settings:
        if self._settings is None:
            settings = self._checked(self.get_connection(self.pulsar_conn_id))
            for secret in self._secrets(settings):
                mask_secret(secret)
            self._settings = settings
        return self._settings

    async def _aread(self) -> Settings:
        if self._settings is None:
            settings = self._checked(await self.aget_connection(self.pulsar_conn_id))
            secrets = (
                await asyncio.to_thread(self._secrets, settings) if settings.reads_files else self._secrets(settings)
            )
            for secret in secrets:
                await amask_secret(secret)
            self._settings = settings
        return self._settings

    def _checked(self, connection: Connection) -> Settings:
        try:
            settings = read_settings(connection)
            self._authentication = settings.authentication(_MaskedOauth2)
            self._admin(settings)
        except PulsarException as error:
            raise self._wrong(error) from error
        return settings

    def _secrets(self, settings: Settings) -> list[str]:
        values: dict[str, Any] = {name: getattr(settings, name) for name in _SECRET_FIELDS}
        derived = self._authentication.secrets() if self._authentication is not None else []
        return [secret for secret in [*values.values(), *derived] if secret]

    def _admin(self, settings: Settings) -> AdminClient | None:
        if settings.admin_url is None:
            return None
        return AdminClient(
            settings.admin_url,
            self._authentication,
            tls_trust_certs_file_path=settings.tls_trust_certs_file_path,
            tls_allow_insecure_connection=settings.tls_allow_insecure_connection,
            tls_validate_hostname=settings.tls_validate_hostname,
            timeout_seconds=settings.operation_timeout_seconds,
        )

    def _wrong(self, error: PulsarException) -> AirflowException:
        return AirflowException(f"The Pulsar connection {self.pulsar_conn_id!r} cannot be used: {error}")


class _MaskedOauth2(AuthenticationOauth2):
    """OAuth2 whose tokens are masked as they come: they are not known when the connection is read.

    Called off the loop by both APIs, where Airflow's blocking way to tell the supervisor is the right one.
    """

    _told: str = ""

    def auth_data(self) -> bytes:
        """Return the access token, masked from now on."""
        data = super().auth_data()
        self._tell(data.decode())
        return data

    def http_headers(self) -> dict[str, str]:
        """Return the bearer header, its token masked from now on."""
        headers = super().http_headers()
        self._tell(headers["Authorization"].partition(" ")[2])
        return headers

    def _tell(self, token: str) -> None:
        if token != self._told:
            mask_secret(token)
            self._told = token
