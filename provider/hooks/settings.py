"""Settings of a connection of type pulsar: the standard fields and the extras as one checked value.

May not import Airflow or do I/O. Rules: the names of `Settings`' extras are the conn-fields of provider.yaml. Every
error names the field and the fix, never the value of a field that may be secret. Texts, numbers and switches may all be
texts, since connection URIs have nothing else.
"""

from __future__ import annotations

import base64
import dataclasses
import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from airflow_provider_pulsar.spark_options import is_reference
from airflow_provider_pulsar.topic_url import check_template
from pulsar_native import (
    AdminClient,
    Authentication,
    AuthenticationAthenz,
    AuthenticationBasic,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
    ClientConfig,
)
from pulsar_native.auth import SecretReference
from pulsar_native.crypto import is_key_text
from pulsar_native.exceptions import InvalidConfiguration, InvalidTopicName, InvalidUrl, PulsarException
from pulsar_native.service_url import ServiceUrl
from pulsar_native.topic import TopicName

METHODS = ("none", "token", "token_file", "basic", "oauth2", "tls", "athenz")
_DEFAULT_TIMEOUT_SECONDS = 30
# Names of other tools that are not similar to ours.
_KNOWN_AS = {
    "token_file": "jwt_file",
    "token_path": "jwt_file",
    "username": "login",
    "issuer_url": "oauth2_issuer_url",
    "client_id": "oauth2_client_id",
    "client_secret": "oauth2_client_secret",
    "audience": "oauth2_audience",
    "scope": "oauth2_scope",
    "authParams": "auth_method",
    "authPlugin": "auth_method",
    "ca_cert": "tls_trust_certs_file_path",
    "use_tls": "service_url (pulsar+ssl://…)",
    "namespace": "default_namespace",
    "tenant": "default_namespace",
}


def _checked_oauth2(parameters: str) -> Authentication:
    """Return the plug-in; errors in its parameters are raised here, where the connection is read."""
    made = AuthenticationOauth2(parameters)
    made.check()
    return made


# Memory limit of a task, which shares its worker with others.
MEMORY_LIMIT_BYTES = 64 * 1024 * 1024


class AirflowConnection(Protocol):
    """Fields of Airflow's connection object."""

    conn_type: str | None
    host: str | None
    port: int | None
    schema: str | None
    login: str | None
    password: str | None
    extra: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked connection. Its repr has no secret; `None` is an empty field."""

    service_url: str
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    admin_url: str | None = None
    listener_name: str | None = None
    operation_timeout_seconds: int = _DEFAULT_TIMEOUT_SECONDS
    test_topic: str | None = None
    deployment_id: str | None = None
    default_namespace: str | None = None
    client_options: Mapping[str, object] | None = None
    topic_url_template: str | None = None
    auth_method: str = "none"
    token: str | None = field(default=None, repr=False)
    jwt_file: str | None = None
    oauth2_issuer_url: str | None = None
    oauth2_client_id: str | None = None
    oauth2_client_secret: str | None = field(default=None, repr=False)
    oauth2_credentials_file: str | None = None
    oauth2_private_key: str | None = field(default=None, repr=False)
    oauth2_audience: str | None = None
    oauth2_scope: str | None = None
    athenz_tenant_domain: str | None = None
    athenz_tenant_service: str | None = None
    athenz_provider_domain: str | None = None
    athenz_zts_url: str | None = None
    athenz_key_id: str | None = None
    athenz_key_file_path: str | None = None
    athenz_private_key: str | None = field(default=None, repr=False)
    tls_trust_certs_file_path: str | None = None
    tls_trust_certs: str | None = field(default=None, repr=False)
    tls_validate_hostname: bool = True
    tls_allow_insecure_connection: bool = False
    tls_certificate_file_path: str | None = None
    tls_certificate: str | None = field(default=None, repr=False)
    tls_key_file_path: str | None = None
    tls_private_key: str | None = field(default=None, repr=False)
    spark_service_url: str | None = None
    spark_admin_url: str | None = None
    spark_credentials_ref: str | None = None

    @property
    def has_pem_texts(self) -> bool:
        """True if certificates or keys are given as texts, which must be files before they can be used."""
        return any(getattr(self, text) is not None for text, _, _ in _PEM_FIELDS)

    def with_pem_files(self, keep: Callable[[str], str]) -> Settings:
        """Return the settings with paths instead of PEM texts; `keep` returns the path of a file with a text."""
        paths = {path: keep(text) for name, path, _ in _PEM_FIELDS if (text := getattr(self, name)) is not None}
        return dataclasses.replace(self, **paths)  # type: ignore[arg-type]  # all of them are texts

    def client_config(self, authentication: Authentication | None) -> ClientConfig:
        """Return the configuration of a client; raises `InvalidConfiguration` or `InvalidUrl`."""
        # With the method tls the certificate belongs to the plug-in.
        own = self.auth_method != "tls"
        config = ClientConfig(
            service_url=self.service_url,
            authentication=authentication,
            operation_timeout_seconds=self.operation_timeout_seconds,
            connection_timeout_ms=min(10, self.operation_timeout_seconds) * 1000,
            tls_trust_certs_file_path=self.tls_trust_certs_file_path,
            tls_allow_insecure_connection=self.tls_allow_insecure_connection,
            tls_validate_hostname=self.tls_validate_hostname,
            tls_certificate_file_path=self.tls_certificate_file_path if own else None,
            tls_private_key_file_path=self.tls_key_file_path if own else None,
            listener_name=self.listener_name,
            memory_limit_bytes=MEMORY_LIMIT_BYTES,
        )
        options: dict[str, Any] = dict(self.client_options or {})
        return dataclasses.replace(config, **options) if options else config

    def topic_name(self, topic: str) -> str:
        """Return a topic's name, a short one in the connection's default namespace; others are left as they are."""
        if self.default_namespace is None or "/" in topic or not topic.strip():
            return topic
        return f"persistent://{self.default_namespace}/{topic}"

    def authentication(
        self,
        oauth2: Callable[[str], Authentication] = _checked_oauth2,
        athenz: Callable[[str], Authentication] = AuthenticationAthenz,
    ) -> Authentication | None:
        """Return the plug-in of the method, None without one; `oauth2` and `athenz` create those of their methods."""
        match self.auth_method:
            case "token":
                return AuthenticationToken(self._needed("token", self.token or self.password))
            case "token_file":
                return AuthenticationToken.from_reference(
                    _file_url("jwt_file", self._needed("jwt_file", self.jwt_file))
                )
            case "basic":
                login, password = self._needed("login", self.login), self._needed("password", self.password)
                return AuthenticationBasic(login, password)
            case "oauth2":
                return oauth2(json.dumps(self._oauth2_parameters()))
            case "tls":
                return AuthenticationTLS(
                    self._needed("tls_certificate_file_path", self.tls_certificate_file_path),
                    self._needed("tls_key_file_path", self.tls_key_file_path),
                )
            case "athenz":
                return athenz(json.dumps(self._athenz_parameters()))
        return None

    def credentials(self) -> dict[str, str] | None:
        """Return the credentials for another program, secrets included; None without any.

        Blocks for reading a token file or a key file, whose content is returned: the other program may not have this
        machine's files. Raises `ErrorGettingAuthenticationData`.
        """
        match self.auth_method:
            case "token" | "token_file":
                plugin = self.authentication()
                assert plugin is not None
                return {"method": "token", "token": plugin.auth_data().decode()}
            case "basic":
                assert self.login is not None and self.password is not None
                return {"method": "basic", "username": self.login, "password": self.password}
            case "oauth2":
                return {"method": "oauth2", **self._oauth2_parameters(inline=True)}
            case "tls":
                assert self.tls_certificate_file_path is not None and self.tls_key_file_path is not None
                return {
                    "method": "tls",
                    "certificate_path": self.tls_certificate_file_path,
                    "private_key_path": self.tls_key_file_path,
                }
            case "athenz":
                raise InvalidConfiguration(
                    "auth_method 'athenz' cannot be handed over to Spark, which does not know it: give Spark "
                    "credentials of another method (token, basic, oauth2, tls), and name their place in the field "
                    "'spark_credentials_ref'"
                )
        return None

    def _athenz_parameters(self) -> dict[str, str]:
        if self.athenz_private_key is not None:
            content = base64.b64encode(self.athenz_private_key.encode()).decode()
            private_key = f"data:application/x-pem-file;base64,{content}"
        else:
            path = self._needed("athenz_key_file_path", self.athenz_key_file_path)
            private_key = _file_url("athenz_key_file_path", path)
        given = {
            "tenantDomain": self._needed("athenz_tenant_domain", self.athenz_tenant_domain),
            "tenantService": self._needed("athenz_tenant_service", self.athenz_tenant_service),
            "providerDomain": self._needed("athenz_provider_domain", self.athenz_provider_domain),
            "ztsUrl": self._needed("athenz_zts_url", self.athenz_zts_url),
            "privateKey": private_key,
            "keyId": self.athenz_key_id,
            "caCert": self.tls_trust_certs_file_path,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _oauth2_parameters(self, *, inline: bool = False) -> dict[str, str]:
        """Return the parameters of `AuthenticationOauth2`; with `inline` a key file's content instead of its path."""
        private_key = None
        if self.oauth2_private_key is not None:
            private_key = _data_url(self.oauth2_private_key)
        elif self.oauth2_credentials_file is not None:
            private_key = _file_url("oauth2_credentials_file", self.oauth2_credentials_file)
            if inline:
                private_key = _data_url(SecretReference.parse(private_key).read())
        else:
            self._needed("oauth2_client_id", self.oauth2_client_id)
            self._needed("oauth2_client_secret", self.oauth2_client_secret)
        given = {
            "issuer_url": self._needed("oauth2_issuer_url", self.oauth2_issuer_url),
            "client_id": self.oauth2_client_id,
            "client_secret": self.oauth2_client_secret,
            "private_key": private_key,
            "audience": self.oauth2_audience,
            "scope": self.oauth2_scope,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _needed(self, name: str, value: str | None) -> str:
        if value is None:
            raise InvalidConfiguration(f"auth_method {self.auth_method!r} needs the field {name!r}")
        return value


STANDARD_FIELDS = frozenset({"host", "port", "login", "password"})
EXTRA_FIELDS = tuple(f.name for f in dataclasses.fields(Settings) if f.name not in STANDARD_FIELDS)


def read_settings(connection: AirflowConnection) -> Settings:
    """Return the checked settings; raises `InvalidConfiguration` (or `InvalidUrl`) naming the field."""
    try:
        return _checked_settings(connection)
    except PulsarException as error:
        # Not refused for itself: a connection of a type of the deployment's own, or a generic one, may be right.
        if "pulsar" not in (connection.conn_type or "pulsar"):
            error.message = f"its type is {connection.conn_type!r}, not 'pulsar'; {error.message}"
        raise


def _checked_settings(connection: AirflowConnection) -> Settings:
    extras = _extras(connection.extra)
    _refuse_unknown(extras)
    if connection.schema:
        # Most likely meant as the namespace: without it, short names would be topics of public/default.
        raise InvalidConfiguration(
            "the field 'schema' (the path of a connection URI) has no meaning: leave it empty, and give the namespace "
            "of short topic names in the field 'default_namespace' (in a URI ?default_namespace=tenant%2Fnamespace)"
        )
    given = {name: value for name, raw in extras.items() if (value := _PARSERS[name](name, raw)) is not None}
    given["login"], given["password"] = connection.login or None, connection.password or None
    given["service_url"] = _service_url(connection, given.get("service_url"))
    if "auth_method" not in given:
        given["auth_method"] = _evident_method(given)
    for text, path, _ in _PEM_FIELDS:
        if text in given and path in given:
            raise InvalidConfiguration(f"give either the field {text!r} or the field {path!r}, not both")
    settings = Settings(**given)
    checked = settings.with_pem_files(lambda _: "/in/the/connection.pem")
    pair = (checked.tls_certificate_file_path, checked.tls_key_file_path)
    if settings.auth_method != "tls" and (pair[0] is None) != (pair[1] is None):
        raise InvalidConfiguration(
            "the fields 'tls_certificate_file_path' (or 'tls_certificate') and 'tls_key_file_path' (or "
            "'tls_private_key') belong together: fill in both or neither"
        )
    checked.client_config(checked.authentication())  # Raises for fields that contradict each other.
    return settings


def _extras(text: str | None) -> dict[str, Any]:
    if not text or not text.strip():
        return {}
    try:
        extras = json.loads(text)
    except ValueError:
        extras = None
    if not isinstance(extras, dict):  # Raised here: the parser's error would have the text.
        raise InvalidConfiguration("the field 'extra' is not a JSON object")
    return extras


def _refuse_unknown(extras: Mapping[str, Any]) -> None:
    for name in extras:
        if name in _PARSERS:
            continue
        near = difflib.get_close_matches(name, [*_PARSERS, *STANDARD_FIELDS], 1)
        meant = _KNOWN_AS.get(name) or (near[0] if near else None)
        hint = f"did you mean {meant!r}?" if meant else f"known are {', '.join(sorted(_PARSERS))}"
        raise InvalidConfiguration(f"there is no field {name!r} in the extras; {hint}")


def _text(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidConfiguration(f"the field {name!r} must be a text, not {type(value).__name__}")
    # Not by an encoding: the error of one holds the text.
    if _SURROGATE.search(value):
        raise InvalidConfiguration(f"the field {name!r} has half of a surrogate pair, which is no character")
    if _CONTROL.search(value):
        raise InvalidConfiguration(f"the field {name!r} has a control character, such as NUL: remove it")
    return value.strip() or None


def _path(name: str, value: Any) -> str | None:
    """Return the path of a file, or a reference to one; its content has a field of its own, which is not shown."""
    text = _text(name, value)
    if text is not None and is_key_text(text):
        raise InvalidConfiguration(f"the field {name!r} must be the path of a file, not its content")
    return text


def _seconds(name: str, value: Any) -> int | None:
    if value is None or value == "":
        return None
    # Python converts no text of thousands of digits.
    is_short = isinstance(value, str) and len(value) < 100
    number = int(value) if is_short and value.strip().isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 3600:
        raise InvalidConfiguration(f"the field {name!r} must be a whole number from 1 to 3600, not {_kind(value)}")
    return number


def _switch(name: str, value: Any) -> bool | None:
    if value is None or value == "":
        return None
    word = str(value).strip().lower()
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off"):
        return False
    raise InvalidConfiguration(f"the field {name!r} must be true or false, not {_kind(value)}")


def _kind(value: Any) -> str:
    """Return a value's type for an error: the value may be a secret in the wrong field."""
    return {str: "another text", int: "another number"}.get(type(value), type(value).__name__)


def _deployment(name: str, value: Any) -> str | None:
    text = _text(name, value)
    if text is not None and not _DEPLOYMENT.fullmatch(text):
        raise InvalidConfiguration(f"the field {name!r} may have up to 64 letters, digits and - _ . only")
    return text


def _method(name: str, value: Any) -> str | None:
    text = _text(name, value)
    if text is None or text in METHODS:
        return text
    near = difflib.get_close_matches(text.lower().replace(" ", "_").replace("-", "_"), METHODS, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(METHODS)} is needed"
    raise InvalidConfiguration(f"the field {name!r} has an unknown method; {hint}")


def _pem(name: str, value: Any) -> str | None:
    """Return a PEM text in its usual lines, however a form or a variable has joined them."""
    text = _text(name, value)
    if text is None:
        return None
    kinds = next(kinds for field_name, _, kinds in _ALL_PEM if field_name == name)
    blocks = _PEM_BLOCK.findall(text.replace("\\n", "\n"))
    if not blocks or not any(kind.endswith(kinds) for kind, _ in blocks):
        raise InvalidConfiguration(
            f"the field {name!r} must be the text of a PEM file, from -----BEGIN {kinds}----- to the end of its last "
            "line; the path of a file has a field of its own"
        )
    lines: list[str] = []
    for kind, body in blocks:
        plain = "".join(body.split())
        if not _BASE64.fullmatch(plain):
            raise InvalidConfiguration(
                f"the field {name!r} has a {kind} that is no base64 text, or one with a password"
            )
        lines += [f"-----BEGIN {kind}-----", *re.findall(".{1,64}", plain), f"-----END {kind}-----"]
    return "\n".join(lines) + "\n"


def _namespace(name: str, value: Any) -> str | None:
    text = _text(name, value)
    if text is None:
        return None
    try:
        return parse_namespace(text)
    except InvalidTopicName:
        pass
    # Raised here: the parser's error has the text.
    raise InvalidConfiguration(f"the field {name!r} must be tenant/namespace, such as public/default")


def parse_namespace(text: str) -> str:
    """Return tenant/namespace; raise `InvalidTopicName` for anything else, such as a topic's name."""
    return TopicName.parse(f"persistent://{text}/topic").namespace


def _checked_by(check: Callable[[str], object]) -> Callable[[str, Any], str | None]:
    """Return the parser of a text that `check` accepts; its errors do not repeat credentials."""

    def parse(name: str, value: Any) -> str | None:
        text = _text(name, value)
        try:
            if text is not None:
                check(text)
        except InvalidUrl as error:
            raise InvalidConfiguration(f"the field {name!r}: {error}") from error
        return text

    return parse


def _reference(name: str, value: Any) -> str | None:
    text = _text(name, value)
    if text is not None and not is_reference(text):
        raise InvalidConfiguration(f"the field {name!r} must be env:NAME, file:/path or conf:KEY, never the secret")
    return text


def _client_options(name: str, value: Any) -> dict[str, object] | None:
    """Return the options, each known and with a value that `ClientConfig` accepts."""
    if value is None or value == "":
        return None
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidConfiguration(f"the field {name!r} must be a JSON object of option names and values")
    for option in found:
        if option in CLIENT_OPTIONS:
            continue
        near = difflib.get_close_matches(str(option), CLIENT_OPTIONS, 1)
        own = EXTRA_FIELDS if option in EXTRA_FIELDS else ()
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(CLIENT_OPTIONS)}"
        raise InvalidConfiguration(
            f"the field {name!r} has no option {option!r}; {'it is a field of its own' if own else hint}"
        )
    return found or None


def _url_template(name: str, value: Any) -> str | None:
    text = _text(name, value)
    if text is not None:
        try:
            check_template(text)
        except ValueError as error:
            raise InvalidConfiguration(f"the field {name!r} {error}") from error
    return text


# Options of the client that no field of the form stands for and that a connection can hold.
CLIENT_OPTIONS = (
    "connection_max_idle_seconds",
    "connection_timeout_ms",
    "connections_per_broker",
    "description",
    "keep_alive_interval_seconds",
    "max_backoff_interval_ms",
    "max_lookup_redirects",
    "max_lookup_requests",
    "max_number_of_rejected_request_per_connection",
    "memory_limit_bytes",
    "message_listener_threads",
    "proxy_service_url",
    "service_url_quarantine_init_duration_seconds",
    "service_url_quarantine_max_duration_seconds",
    "socks5_proxy_address",
    "starting_backoff_interval_ms",
    "stats_interval_in_seconds",
    "use_tls",
)
# Field with a PEM text, the field with a path that stands for it, and the kind of its block.
_PEM_FIELDS = (
    ("tls_trust_certs", "tls_trust_certs_file_path", "CERTIFICATE"),
    ("tls_certificate", "tls_certificate_file_path", "CERTIFICATE"),
    ("tls_private_key", "tls_key_file_path", "PRIVATE KEY"),
)
_ALL_PEM = (*_PEM_FIELDS, ("athenz_private_key", "athenz_key_file_path", "PRIVATE KEY"))
_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_PORT = re.compile(r":(\d+)$")
# Airflow reads the scheme of a connection's URI as its type, with _ in place of -.
_TLS_TYPES = ("pulsar+ssl", "pulsar-ssl", "pulsar_ssl")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# Lines and tabs may be in a PEM text and in JSON.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_DEPLOYMENT = re.compile(r"[\w.-]{1,64}")
_SPECIAL: dict[str, Callable[[str, Any], Any]] = {
    "jwt_file": _path,
    "oauth2_credentials_file": _path,
    "operation_timeout_seconds": _seconds,
    "tls_validate_hostname": _switch,
    "tls_allow_insecure_connection": _switch,
    "auth_method": _method,
    "deployment_id": _deployment,
    "default_namespace": _namespace,
    "client_options": _client_options,
    "topic_url_template": _url_template,
    "service_url": _checked_by(ServiceUrl.parse),
    "admin_url": _checked_by(AdminClient),
    "spark_service_url": _checked_by(ServiceUrl.parse),
    "spark_admin_url": _checked_by(AdminClient),
    "spark_credentials_ref": _reference,
    **{name: _pem for name, _, _ in _ALL_PEM},
    **{path: _path for _, path, _ in _ALL_PEM},
}
_PARSERS: dict[str, Callable[[str, Any], Any]] = {name: _SPECIAL.get(name, _text) for name in EXTRA_FIELDS}


def _service_url(connection: AirflowConnection, url: str | None) -> str:
    """Return the service URL of its own field or of the host; the port is for hosts without one."""
    host = _text("host", connection.host or None) or ""
    if url is not None:
        if host:
            raise InvalidConfiguration("give either the field 'service_url' or the field 'host', not both")
    elif not host:
        raise InvalidConfiguration("the field 'service_url' (or 'host') is empty; write pulsar://host:6650")
    elif "://" in host:
        url = host
    else:
        scheme = "pulsar+ssl" if connection.conn_type in _TLS_TYPES else "pulsar"
        bare_ipv6 = host.count(":") > 1 and "[" not in host and "," not in host
        url = f"{scheme}://[{host}]" if bare_ipv6 else f"{scheme}://{host}"
    if host:
        _checked_by(ServiceUrl.parse)("host", url)
    return _with_port(url, connection.port) if connection.port else url


def _with_port(url: str, port: int) -> str:
    scheme, separator, rest = url.partition("://")
    hosts = [host.strip() for host in rest.rstrip("/").split(",")]
    ports = [found[1] if (found := _PORT.search(host)) else None for host in hosts]
    if None not in ports and str(port) not in ports:
        raise InvalidConfiguration(f"the field 'port' says {port}, but the hosts have ports of their own")
    named = [host if own else f"{host}:{port}" for host, own in zip(hosts, ports, strict=True)]
    return f"{scheme}{separator}{','.join(named)}"


def _evident_method(given: Mapping[str, Any]) -> str:
    """Return the method of the filled fields if the drop-down is empty."""
    signs = {
        "token": given.get("token") or (given["password"] and not given["login"]),
        "token_file": given.get("jwt_file"),
        "basic": given["login"],
        "oauth2": given.get("oauth2_issuer_url"),
        "athenz": given.get("athenz_tenant_domain"),
    }
    found = [method for method, sign in signs.items() if sign]
    if len(found) > 1:
        raise InvalidConfiguration(f"the field 'auth_method' is empty, but {' and '.join(found)} fit: choose one")
    if found:
        return found[0]
    certificate = given.get("tls_certificate_file_path") or given.get("tls_certificate")
    return "tls" if certificate and (given.get("tls_key_file_path") or given.get("tls_private_key")) else "none"


def _file_url(name: str, path: str) -> str:
    if path.startswith("file:"):
        return path
    if not path.startswith("/"):
        raise InvalidConfiguration(f"the field {name!r} must be an absolute path")
    return f"file://{quote(path)}"


def _data_url(content: str) -> str:
    """Return a key file's content as the private_key that AuthenticationOauth2 takes."""
    return f"data:application/json;base64,{base64.b64encode(content.encode()).decode()}"
