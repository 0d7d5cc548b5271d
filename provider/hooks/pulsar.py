"""Hook for a connection of type pulsar, with a client, an asyncio client and an admin client.

Opens no socket itself. Rules: the constructor has no effects. The connection is read once per hook. Every secret it
holds, or that is derived from it, is masked before anything can log it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException
from airflow.sdk.log import amask_secret, mask_secret

from airflow_provider_pulsar import credentials_file
from airflow_provider_pulsar.hooks.settings import Settings, read_settings
from pulsar_native import AdminClient, Authentication, AuthenticationAthenz, AuthenticationOauth2, Client, ClientConfig
from pulsar_native.exceptions import PulsarException

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from pulsar_native.asyncio import Client as AsyncClient

_TEST_SECONDS = 9.5
# Certificates are no secrets, but too long to show.
_SECRET_FIELDS = frozenset(f.name for f in dataclasses.fields(Settings) if not f.repr)
_CERTIFICATES = ("tls_trust_certs", "tls_certificate")


class PulsarHook(BaseHook):
    """Hook for the Pulsar cluster of an Airflow connection. Not thread-safe.

    The plain methods block while Airflow returns the connection; the `a…` ones and `get_async_client` are for running
    loops. A wrong field of the connection raises `AirflowException` with its name.
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

    @classmethod
    def of(cls, connection: Connection) -> PulsarHook:
        """Return the hook of a connection that has been read already. Raises `AirflowException` for a wrong field."""
        hook = cls(connection.conn_id)
        hook._use(connection)
        return hook

    # --- clients --------------------------------------------------------------------------------------------------

    def get_client(self) -> Client:
        """Return a client, for use as a context manager. It connects on first use; reading the connection blocks."""
        return Client.from_config(self.client_config())

    async def get_async_client(self) -> AsyncClient:
        """Return an asyncio client for the running loop, for use as an async context manager; starts no thread."""
        from pulsar_native.asyncio import Client as AsyncClient

        return AsyncClient.from_config(await self.aclient_config())

    def get_admin(self, timeout_seconds: float | None = None) -> AdminClient | None:
        """Return an admin client, None if the connection has no admin URL. Its calls block.

        :param timeout_seconds: limit of each call. Default None: the connection's operation time-out.
        """
        return self._admin(self._read(), timeout_seconds)

    async def aget_admin(self) -> AdminClient | None:
        """Return the admin client from within a loop. Its calls still block."""
        return self._admin(await self._aread())

    def get_conn(self) -> Client:
        """Return `get_client()`, under Airflow's common name."""
        return self.get_client()

    # --- configuration --------------------------------------------------------------------------------------------

    def client_config(self) -> ClientConfig:
        """Return the checked configuration of the client. Blocks for reading the connection."""
        return self._read().client_config(self._authentication)

    async def aclient_config(self) -> ClientConfig:
        """Return the configuration of the client from within a loop, as `client_config`."""
        return (await self._aread()).client_config(self._authentication)

    async def ais_outdated(self) -> bool:
        """Return True if the connection has other settings now than those that this hook has read.

        False also where it cannot be read now.
        """
        try:
            return await PulsarHook(self.pulsar_conn_id)._aread() != self._settings
        except Exception as error:
            # Airflow's answer may fail in any way, and comes for a client that has failed already.
            self.log.warning("The connection %r cannot be read again: %s", self.pulsar_conn_id, error)
            return False

    def service_url(self) -> str:
        """Return the service URL, also of a connection with host and port. Blocks like `client_config`."""
        return self._read().service_url

    def deployment_id(self) -> str | None:
        """Return the connection's deployment id, None without one. Blocks like `client_config`."""
        return self._read().deployment_id

    def topic_url_template(self) -> str | None:
        """Return the connection's template for the pages of topics, None without one. Blocks like `client_config`."""
        return self._read().topic_url_template

    def topic_name(self, topic: str) -> str:
        """Return the name of a topic, a short one in the connection's default namespace. Blocks like `client_config`.

        Without a default namespace, short names are left as they are: they mean public/default.
        """
        return self._read().topic_name(topic)

    def connection_options(self) -> dict[str, Any]:
        """Return the connection's settings without secrets, by field name; blocks like `client_config`.

        Only fields that are set or have a default; `client_options` is a dict. Safe to log and to show.
        """
        values: dict[str, Any] = dataclasses.asdict(self._read())
        plain = {name: value for name, value in values.items() if name not in _SECRET_FIELDS}
        return {name: value for name, value in plain.items() if isinstance(value, str | int | bool | dict)}

    def credentials(self) -> dict[str, str] | None:
        """Return the credentials with their secrets, for another program; None without any.

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

    # --- lineage --------------------------------------------------------------------------------------------------

    def report_lineage(self, *, read: Sequence[str] = (), written: Sequence[str] = ()) -> None:
        """Report topics to Airflow's hook lineage, for tasks that use this hook's clients themselves.

        The operators call it. Without a reader of lineage, such as OpenLineage's provider, it has no effect.

        :param read: names of topics the task has read, in any spelling.
        :param written: names of topics the task has written to.

        Blocks like `client_config`. Raises `AirflowException` for a wrong topic name.
        """
        from airflow.sdk.lineage import get_hook_lineage_collector

        from airflow_provider_pulsar.assets.pulsar import topic_uri

        url = self.service_url()
        try:
            sources = [topic_uri(url, self.topic_name(topic)) for topic in read]
            targets = [topic_uri(url, self.topic_name(topic)) for topic in written]
        except ValueError as error:
            raise AirflowException(f"No lineage can be reported: {error}") from error
        collector = get_hook_lineage_collector()
        for uri in sources:
            collector.add_input_asset(self, uri=uri)
        for uri in targets:
            collector.add_output_asset(self, uri=uri)

    # --- test -----------------------------------------------------------------------------------------------------

    def test_connection(self) -> tuple[bool, str]:
        """Test the connection stage by stage and return success and a message, within 10 seconds.

        Blocks; needs no running loop. The first stage that fails ends the test and is named: settings, resolve, TCP,
        TLS, credentials, CONNECT, authentication, lookup, admin.
        """
        from pulsar_native.diagnostics import diagnose

        try:
            settings = self._read()
            topic = settings.test_topic
            found = diagnose(
                self.client_config(),
                admin_url=settings.admin_url,
                topic=None if topic is None else settings.topic_name(topic),
                timeout_seconds=_TEST_SECONDS,
            )
        except (AirflowException, PulsarException) as error:
            return False, f"settings failed: {error}"
        return found.ok, str(found)

    # --- reading --------------------------------------------------------------------------------------------------

    def _read(self) -> Settings:
        if self._settings is None:
            return self._use(self.get_connection(self.pulsar_conn_id))
        return self._settings

    def _use(self, connection: Connection) -> Settings:
        settings, secrets = self._load(connection)
        for secret in secrets:
            mask_secret(secret)
        self._settings = settings
        return settings

    async def _aread(self) -> Settings:
        if self._settings is None:
            connection = await self.aget_connection(self.pulsar_conn_id)
            # In a thread, since it may read files, and writes those of PEM texts.
            settings, secrets = await asyncio.to_thread(self._load, connection)
            for secret in secrets:
                await amask_secret(secret)
            self._settings = settings
        return self._settings

    def _load(self, connection: Connection) -> tuple[Settings, list[str]]:
        """Return the checked settings and every secret in them. Blocks for files."""
        try:
            settings = read_settings(connection)
            if settings.has_pem_texts:
                settings = settings.with_pem_files(lambda text: str(credentials_file.keep_pem(text)))
            self._authentication = settings.authentication(_MaskedOauth2, _MaskedAthenz)
            self._admin(settings)
        except PulsarException as error:
            raise self._wrong(error) from error
        return settings, self._secrets(settings)

    def _secrets(self, settings: Settings) -> list[str]:
        values: dict[str, Any] = {name: getattr(settings, name) for name in _SECRET_FIELDS.difference(_CERTIFICATES)}
        derived = self._authentication.secrets() if self._authentication is not None else []
        return [secret for secret in [*values.values(), *derived] if secret]

    def _admin(self, settings: Settings, timeout_seconds: float | None = None) -> AdminClient | None:
        if settings.admin_url is None:
            return None
        return AdminClient(
            settings.admin_url,
            self._authentication,
            tls_trust_certs_file_path=settings.tls_trust_certs_file_path,
            tls_allow_insecure_connection=settings.tls_allow_insecure_connection,
            tls_validate_hostname=settings.tls_validate_hostname,
            timeout_seconds=settings.operation_timeout_seconds if timeout_seconds is None else timeout_seconds,
        )

    def _wrong(self, error: PulsarException) -> AirflowException:
        return AirflowException(f"The Pulsar connection {self.pulsar_conn_id!r} cannot be used: {error}")


class _MasksTokens(Authentication):
    """Mix-in of a plug-in that fetches its tokens: masks them then, since none is known when the connection is read.

    Both APIs call it off the loop, so that Airflow's blocking request to the supervisor is allowed.
    """

    _masked: str = ""

    def auth_data(self) -> bytes:
        """Return the token, masked in logs."""
        data = super().auth_data()
        self._mask(data.decode())
        return data

    def http_headers(self) -> dict[str, str]:
        """Return the header with the token, masked in logs."""
        headers = super().http_headers()
        for value in headers.values():
            self._mask(value.removeprefix("Bearer "))
        return headers

    def _mask(self, token: str) -> None:
        if token != self._masked:
            mask_secret(token)
            self._masked = token


class _MaskedAthenz(_MasksTokens, AuthenticationAthenz):
    """Athenz plug-in whose role tokens are masked."""


class _MaskedOauth2(_MasksTokens, AuthenticationOauth2):
    """OAuth2 plug-in whose tokens are masked."""
