"""Connection options of the command line: from options, the environment, or a client.conf of Pulsar's own tools.

Order: an option is preferred to its environment variable, and that to the file. Rules: a secret comes by the name of a
file or a variable only; an option that would hold one is rejected without repeating it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from pulsar_native.cli.errors import UsageError

if TYPE_CHECKING:
    from pulsar_native import AdminClient, Authentication, Client, ClientConfig

DEFAULT_URL = "pulsar://localhost:6650"
_VARIABLES = {
    "url": "PULSAR_SERVICE_URL",
    "admin_url": "PULSAR_ADMIN_URL",
    "client_conf": "PULSAR_CLIENT_CONF",
    "token_file": "PULSAR_TOKEN_FILE",
    "tls_trust_certs": "PULSAR_TLS_TRUST_CERTS",
}
TOKEN_VARIABLE = "PULSAR_TOKEN"
ENVIRONMENT = f"""\
environment:
  {_VARIABLES["url"]}      service URL
  {_VARIABLES["admin_url"]}        URL of the admin interface
  {_VARIABLES["client_conf"]}      path of a client.conf
  {TOKEN_VARIABLE}            a token (method "token")
  {_VARIABLES["token_file"]}       path of a file with a token
  {_VARIABLES["tls_trust_certs"]}  path of a PEM file of trusted certificates
"""
# Options of other tools that hold a secret, and their replacement.
_SECRET_OPTIONS = {
    "--auth-params": "--auth-params-file FILE",
    "--auth-params-string": "--auth-params-file FILE",
    "--token": "--token-file FILE or --token-env NAME",
    "--password": "--auth-params-file FILE",
    "--jwt": "--token-file FILE or --token-env NAME",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the connection options to a command."""
    group = parser.add_argument_group("connection")
    add = group.add_argument
    add("-b", "--url", metavar="URL", help=f"service URL, pulsar:// or pulsar+ssl:// (default {DEFAULT_URL})")
    add("--admin-url", metavar="URL", help="URL of the admin interface, http:// or https://")
    add("--client-conf", metavar="FILE", help="client.conf as pulsar-client and pulsar-admin read it")
    add("--token-file", metavar="FILE", help="file with a token; read at each connection")
    add("--token-env", metavar="NAME", help="environment variable with a token")
    add("--auth-plugin", metavar="NAME", help="token, basic, oauth2, athenz, tls, or the name of Java's class")
    add("--auth-params-file", metavar="FILE", help="file with the plug-in's parameters")
    add("--tls-trust-certs", metavar="FILE", help="PEM file of trusted certificates (default: the system's)")
    add("--tls-cert", metavar="FILE", help="PEM file of the client's certificate")
    add("--tls-key", metavar="FILE", help="PEM file of the client's private key")
    add("--tls-insecure", action="store_true", default=None, help="accept any certificate and host name")
    add("--listener-name", metavar="NAME", help="advertised listener of the brokers")
    add("--timeout", metavar="SECONDS", type=float, default=30, help="limit of one request (default 30)")
    for name, better in _SECRET_OPTIONS.items():
        add(name, action=_Refused, better=better, help=argparse.SUPPRESS)


class _Refused(argparse.Action):
    """Option that would put a secret on the command line, where other users see it."""

    def __init__(self, *args: Any, better: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._better = better

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        parser.error(
            f"{self.option_strings[0]} would show a secret to everybody who can list processes: use {self._better}"
        )


@dataclass(frozen=True)
class Connection:
    """A cluster to talk to. Its clients are opened when asked for."""

    config: ClientConfig
    admin_url: str | None = None

    def client(self) -> Client:
        """Return a client, for a `with` block. No I/O yet."""
        from pulsar_native import Client

        return Client.from_config(self.config)

    def admin(self) -> AdminClient | None:
        """Return the admin client, None without an admin URL. No I/O yet."""
        from pulsar_native import AdminClient, Authentication

        if self.admin_url is None:
            return None
        authentication = self.config.authentication
        return AdminClient(
            self.admin_url,
            authentication if isinstance(authentication, Authentication) else None,
            tls_trust_certs_file_path=self.config.tls_trust_certs_file_path,
            tls_allow_insecure_connection=self.config.tls_allow_insecure_connection,
            tls_validate_hostname=self.config.tls_validate_hostname,
            timeout_seconds=self.config.operation_timeout_seconds,
        )

    def needed_admin(self, action: str) -> AdminClient:
        """Return the admin client; raises `UsageError` naming the action without an admin URL."""
        found = self.admin()
        if found is None:
            raise UsageError(f"{action} needs the admin interface: give --admin-url, or {_VARIABLES['admin_url']}")
        return found

    def redact(self, text: str) -> str:
        """Return a text without the secrets of this connection."""
        from pulsar_native.auth.answers import secrets_of

        for secret in secrets_of(self.config.authentication):
            text = text.replace(secret, "***")
        return text


def connection_of(options: argparse.Namespace, environment: Mapping[str, str]) -> Connection:
    """Return the connection of parsed options; raises `UsageError` naming the option, variable or file.

    Reads the client.conf and the file of parameters; credentials by reference are read when they are used.
    """
    from pulsar_native import ClientConfig
    from pulsar_native.exceptions import PulsarException

    def given(name: str) -> str | None:
        return getattr(options, name) or environment.get(_VARIABLES.get(name, ""), "").strip() or None

    conf_path = given("client_conf")
    conf = {} if conf_path is None else read_client_conf(conf_path)
    insecure = options.tls_insecure or _is_true(conf.get("tlsAllowInsecureConnection"))
    verify = True if "tlsEnableHostnameVerification" not in conf else _is_true(conf["tlsEnableHostnameVerification"])
    if not options.timeout > 0:
        raise UsageError("--timeout must be more than 0 seconds")
    cert = options.tls_cert or conf.get("tlsCertificateFilePath") or None
    key = options.tls_key or conf.get("tlsKeyFilePath") or None
    if (cert is None) != (key is None):
        raise UsageError("--tls-cert and --tls-key belong together: give both")
    try:
        authentication = _authentication(options, environment, conf, (cert, key))
        config = ClientConfig(
            service_url=given("url") or _service_url_of(conf) or DEFAULT_URL,
            authentication=authentication,
            operation_timeout_seconds=options.timeout,
            connection_timeout_ms=max(1, round(min(10.0, options.timeout) * 1000)),
            tls_trust_certs_file_path=given("tls_trust_certs") or conf.get("tlsTrustCertsFilePath") or None,
            tls_certificate_file_path=cert,
            tls_private_key_file_path=key,
            tls_allow_insecure_connection=insecure,
            tls_validate_hostname=verify and not insecure,
            listener_name=options.listener_name,
            proxy_service_url=conf.get("proxyServiceUrl"),
            stats_interval_in_seconds=0,
            memory_limit_bytes=64 * 1024 * 1024,
        )
        made = Connection(config, (given("admin_url") or conf.get("webServiceUrl") or "").rstrip("/") or None)
        _check_tls(options, made)
        admin = made.admin()  # Raises for a malformed URL, before anything is sent.
        if admin is not None:
            admin.close()
        return made
    except PulsarException as error:
        raise UsageError(str(error)) from error


def _service_url_of(conf: Mapping[str, str]) -> str | None:
    """Return the service URL of a client.conf, in pulsar-client's order; a web service serves for lookups as well."""
    return conf.get("brokerServiceUrl") or conf.get("webServiceUrl") or conf.get("serviceUrl")


def _check_tls(options: argparse.Namespace, made: Connection) -> None:
    """Refuse options for TLS where no URL has it: the connection would be plain text, silently.

    Variables and a client.conf may be for other URLs as well.
    """
    from pulsar_native.service_url import ServiceUrl

    given = [name for name in ("trust_certs", "cert", "key", "insecure") if getattr(options, f"tls_{name}")]
    url = str(made.config.service_url)
    if given and not ServiceUrl.parse(url).use_tls and not (made.admin_url or "").lower().startswith("https://"):
        raise UsageError(
            f"--tls-{given[0].replace('_', '-')} is for TLS, and the connection to {url} has none: give a URL with "
            "pulsar+ssl:// or https://"
        )
    if options.tls_insecure and options.tls_trust_certs:
        raise UsageError("--tls-insecure accepts any certificate: give it or --tls-trust-certs, not both")


def _authentication(
    options: argparse.Namespace,
    environment: Mapping[str, str],
    conf: Mapping[str, str],
    certificate: tuple[str | None, str | None],
) -> Authentication | None:
    """Return the plug-in of the first place that names one: options, environment, file; a certificate comes last."""
    from pulsar_native import Authentication, AuthenticationTLS, AuthenticationToken

    named = [name for name in ("token_file", "token_env", "auth_plugin") if getattr(options, name)]
    if len(named) > 1:
        raise UsageError(f"give one of --{' and --'.join(name.replace('_', '-') for name in named)}, not both")
    if options.auth_params_file and not options.auth_plugin:
        raise UsageError("--auth-params-file needs --auth-plugin")
    if options.auth_plugin:
        parameters = _content("--auth-params-file", options.auth_params_file) if options.auth_params_file else ""
        return Authentication(options.auth_plugin, parameters)
    if options.token_env:
        return AuthenticationToken.from_reference(f"env:{options.token_env}")
    path = options.token_file or environment.get(_VARIABLES["token_file"])
    if path:
        return AuthenticationToken.from_reference(f"file://{quote(str(Path(path).absolute()))}")
    if environment.get(TOKEN_VARIABLE, "").strip():
        return AuthenticationToken.from_reference(f"env:{TOKEN_VARIABLE}")
    if conf.get("authPlugin"):
        return Authentication(conf["authPlugin"], conf.get("authParams", ""))
    if certificate[0] is not None and certificate[1] is not None:
        return AuthenticationTLS(certificate[0], certificate[1])
    return None


def read_client_conf(path: str) -> dict[str, str]:
    """Return the settings of a client.conf, empty ones left out; raises `UsageError` for a file that cannot be used."""
    found: dict[str, str] = {}
    text = _content("--client-conf", path).replace("\\\n", "")
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals:
            # The line is not repeated: it may hold a secret.
            raise UsageError(f"line {number} of {path} is not NAME=VALUE")
        if value.strip():
            found[name.strip()] = value.strip()
    if found.get("proxyProtocol", "SNI").upper() != "SNI":
        # Never ignored silently: it changes how to connect.
        raise UsageError(f"{path} sets proxyProtocol to something else than SNI, which is the only one")
    if _is_true(found.get("useKeyStoreTls")):
        raise UsageError(
            f"{path} sets useKeyStoreTls: key stores are Java's; give PEM files by --tls-trust-certs and so on"
        )
    return found


def _content(option: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise UsageError(f"{option}: {path} cannot be read: {reason}") from error


def _is_true(value: str | None) -> bool:
    return (value or "").strip().lower() == "true"
