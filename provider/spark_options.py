"""Options of Spark's `format("pulsar")` for the fields of a connection, and parts of the load's request.

Holds no secret. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pulsar_native.jobs import interval as intervals
from pulsar_native.jobs import secrets, validation

VALUE_FORMATS = ("json", "avro", "raw", "auto")
VALUE_MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")
OUTPUT_FORMATS = ("parquet", "delta", "iceberg")
WRITE_MODES = ("overwrite", "merge")
OUTPUT_WRITERS = ("auto", "spark", "pyarrow")

# Variable of a local Spark's processes that holds the connection's secret.
CREDENTIALS_VARIABLE = "PULSAR_CREDENTIALS"
_REFERENCES = ("env", "file", "conf")

# Fields of the connection that are options of the data source.
_OPTIONS = {
    "service_url": "service.url",
    "admin_url": "admin.url",
    "listener_name": "pulsar.client.listenerName",
    "tls_trust_certs_file_path": "pulsar.client.tlsTrustCertsFilePath",
    "tls_allow_insecure_connection": "pulsar.client.tlsAllowInsecureConnection",
    "tls_validate_hostname": "pulsar.client.tlsHostnameVerificationEnable",
}
# With the method tls they are a part of the credentials.
_CERTIFICATE = {
    "tls_certificate_file_path": "pulsar.client.tlsCertificateFilePath",
    "tls_key_file_path": "pulsar.client.tlsKeyFilePath",
}
# Client options that the source has too, and the factor of their values.
_CLIENT_OPTIONS = {
    "connection_timeout_ms": ("connectionTimeoutMs", 1),
    "connections_per_broker": ("connectionsPerBroker", 1),
    "keep_alive_interval_seconds": ("keepAliveIntervalSeconds", 1),
    "max_backoff_interval_ms": ("maxBackoffIntervalNanos", 1_000_000),
    "max_lookup_redirects": ("maxLookupRedirects", 1),
    "memory_limit_bytes": ("memoryLimitBytes", 1),
    "starting_backoff_interval_ms": ("initialBackoffIntervalNanos", 1_000_000),
}
# Client options that belong to the address of the brokers.
_OF_ADDRESS = ("use_tls", "proxy_service_url", "socks5_proxy_address")
_log = logging.getLogger(__name__)


def source_options(connection: Mapping[str, object]) -> dict[str, str]:
    """Return the options of `format("pulsar")` for a connection's fields, as texts.

    Logs a warning that names client options which the source does not have.
    """
    found = {}
    fields = _OPTIONS if connection.get("auth_method") == "tls" else _OPTIONS | _CERTIFICATE
    for field, option in fields.items():
        value = connection.get(field)
        if value not in (None, ""):
            found[option] = _text(value)
    # Spark may reach the brokers at other addresses than Airflow.
    for field, option in (("spark_service_url", "service.url"), ("spark_admin_url", "admin.url")):
        if connection.get(field):
            found[option] = str(connection[field])
    timeout = connection.get("operation_timeout_seconds")
    if isinstance(timeout, int | float):
        found["pulsar.client.operationTimeoutMs"] = str(int(timeout * 1000))
    client_options = connection.get("client_options")
    if isinstance(client_options, Mapping):
        found |= _client_options(client_options, has_own_address=bool(connection.get("spark_service_url")))
    return found


def _client_options(given: Mapping[str, Any], *, has_own_address: bool) -> dict[str, str]:
    """Return the options of the source for a connection's `client_options`; `has_own_address` of Spark."""
    left = {name: value for name, value in given.items() if not (has_own_address and name in _OF_ADDRESS)}
    found = {}
    if "use_tls" in left:
        found["pulsar.client.useTls"] = _text(left.pop("use_tls"))
    for name, (option, factor) in _CLIENT_OPTIONS.items():
        if name in left:
            found[f"pulsar.client.{option}"] = str(left.pop(name) * factor)
    if left:
        _log.warning("Spark connects to Pulsar without the connection's client_options %s", ", ".join(left))
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def referenced_key(where: str, reference: str) -> str | None:
    """Return the key of Spark's configuration that a credentialsRef names, None for a reference of another kind.

    Raises ValueError, without repeating it, for what is no reference. `where` names the parameter that has it.
    """
    if reference and not intervals.is_template(reference) and not is_reference(reference):
        refuse_literals(where, ["credentialsRef"])
    kind, _, name = reference.partition(":")
    return name if kind == "conf" else None


def is_reference(text: str) -> bool:
    """Return True for the place of credentials, False for what may be the secret itself."""
    kind, _, name = text.partition(":")
    return kind in _REFERENCES and bool(name)


def refuse_literals(where: str, names: Sequence[str]) -> NoReturn:
    """Raise ValueError for options of the source that are secrets."""
    validation.refuse(
        f"{where} must not hold a secret ({', '.join(sorted(names))}): it would stand on the command line and in logs. "
        "Put it into the connection of pulsar_conn_id, or give the place it is kept at: "
        "credentialsRef='env:VARIABLE', 'file:NAME' or 'conf:KEY'"
    )


def refuse_secrets(where: str, given: object, key: str | None = None) -> None:
    """Raise ValueError for Pulsar's secrets in a parameter of the task (`conf`, `env_vars`); no value is repeated.

    `key` is the key of Spark's configuration that holds the credentials. Other secrets of Spark's are not looked for.
    """
    if not isinstance(given, Mapping):
        return
    ours = {name: value for name, value in given.items() if "pulsar" in str(name).lower() or name == key}
    if exposed := [name for name in ours if secrets.secret_names({name: ours[name]}) or name == key]:
        validation.refuse(
            f"{where} must not hold Pulsar's secrets ({', '.join(map(str, exposed))}): Spark's command line "
            "shows them. Put them into the connection of pulsar_conn_id"
        )


@dataclass(frozen=True, slots=True)
class LoadValue:
    """Decoding of the values of a load; see the parameters of the operator."""

    format: str
    schema: str | None
    mode: str | None
    corrupt_column: str | None

    def __post_init__(self) -> None:
        from pyspark_pulsar.schema import SOURCE_COLUMNS

        kind = validation.choice("value_format", self.format, VALUE_FORMATS)
        is_auto = kind == "auto"
        if self.schema is not None and kind not in ("json", "avro"):
            reason = "takes the schema that the topic has" if is_auto else "keeps the bytes of a value as they are"
            validation.refuse(
                f"value_schema is for json and avro, and value_format={kind!r} {reason}: leave value_schema out, or "
                "set value_format to json or avro"
            )
        for name, given in (("value_mode", self.mode), ("corrupt_column", self.corrupt_column)):
            if given is not None and not is_auto:
                validation.refuse(f"{name} needs value_format='auto'")
        if self.mode is not None:
            validation.choice("value_mode", str(self.mode).lower(), [mode.lower() for mode in VALUE_MODES])
        if self.corrupt_column is not None and str(self.mode).upper() != "PERMISSIVE":
            validation.refuse("corrupt_column needs value_mode='PERMISSIVE': otherwise there is no such column")
        if str(self.corrupt_column).lower() in (name.lower() for name in SOURCE_COLUMNS):
            validation.refuse(
                f"corrupt_column is {self.corrupt_column!r}, the name of another column: take another name"
            )

    def part(self) -> dict[str, str]:
        """Return the part `value` of the request."""
        given = {"schema": self.schema, "mode": self.mode, "corrupt_column": self.corrupt_column}
        return {"format": self.format.lower(), **{name: value for name, value in given.items() if value}}


@dataclass(frozen=True, slots=True)
class LoadColumns:
    """Columns of the output besides those of the value; see the parameters of the operator."""

    derive: Mapping[str, str]
    partition_by: Sequence[str]
    metadata: Sequence[str] | None

    def __post_init__(self) -> None:
        from pyspark_pulsar.schema import METADATA_COLUMNS, metadata_among, named_twice

        validation.known("metadata", self.metadata or (), METADATA_COLUMNS)
        for argument, names in (("derive", list(self.derive)), ("partition_by", self.partition_by)):
            if double := named_twice(names):
                validation.refuse(f"{argument} names columns twice, in upper or lower case: {', '.join(double)}")
        if taken := metadata_among(self.derive):
            validation.refuse(
                f"derive must not replace metadata columns ({', '.join(taken)}): they identify the message of a row; "
                "give the columns other names"
            )

    @property
    def has_publish_time(self) -> bool:
        """True if the output has the column by which an overwrite selects the rows of an interval."""
        return self.metadata is None or "__publishTime" in self.metadata


@dataclass(frozen=True, slots=True)
class LoadOutput:
    """Output of a load besides its path and partitions; see the parameters of the operator."""

    format: str
    table: str | None
    write_mode: str | None
    replace_where: str | None
    writer: str = "auto"

    def check(self, since: str | None) -> None:
        """Raise ValueError for parts that do not go together; templates may be unrendered."""
        validation.choice("output_format", self.format, OUTPUT_FORMATS)
        validation.choice("output_writer", self.writer, OUTPUT_WRITERS)
        kind = self.format.lower()
        given = {"table": self.table, "write_mode": self.write_mode, "replace_where": self.replace_where}
        for name, value in given.items():
            if value is not None and kind == "parquet":
                validation.refuse(f"{name} needs output_format='delta' or 'iceberg'")
        if kind == "parquet":
            return
        if since:
            validation.refuse(f"since={since!r} writes Parquet only: leave out output_format")
        if kind == "iceberg" and not self.table:
            validation.refuse("output_format='iceberg' needs table, such as 'catalog.database.table'")
        if self.write_mode is not None:
            validation.choice("write_mode", self.write_mode, WRITE_MODES)
            if self.write_mode.lower() == "merge" and self.replace_where is not None:
                validation.refuse("replace_where is for write_mode='overwrite': a merge goes by message")

    def check_writer(self, value: LoadValue, columns: LoadColumns) -> None:
        """Raise ValueError if pyarrow is to write what only Spark can."""
        if self.writer.lower() != "pyarrow":
            return
        kind, has_folders = value.format.lower(), self.format.lower() == "parquet" and bool(columns.partition_by)
        reasons = {
            f"value_format={kind!r} is decoded": kind not in ("raw", "auto"),
            "derive is computed": bool(columns.derive),
            "partition_by makes folders that are written": has_folders,
        }
        for reason, holds in reasons.items():
            if holds:
                validation.refuse(f"output_writer='pyarrow', but {reason} by Spark: leave output_writer out")

    def check_overwrite(self, columns: LoadColumns, *, has_times: bool) -> None:
        """Raise ValueError if an overwrite of a table does not know which rows belong to the interval.

        `has_times` is True if both bounds of the interval are publish times.
        """
        if self.format.lower() == "parquet" or (self.write_mode or "").lower() == "merge":
            return
        if self.replace_where is None and not (has_times and columns.has_publish_time):
            validation.refuse(
                "an overwrite must know which rows of the table are the interval's: give interval_start, interval_end "
                "and the column __publishTime in metadata, or replace_where, such as 'hour = 1' with a column of "
                "derive, or write_mode='merge'"
            )

    def part(self) -> dict[str, Any]:
        """Return what the part `output` of the request has besides path and partitions."""
        mode = None if self.write_mode is None else self.write_mode.lower()
        given = {
            "writer": None if self.writer.lower() == "auto" else self.writer.lower(),
            "format": None if self.format.lower() == "parquet" else self.format.lower(),
            "table": self.table, "mode": mode, "replace_where": self.replace_where,
        }  # fmt: skip
        return {name: value for name, value in given.items() if value}
