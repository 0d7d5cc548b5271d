"""Credentials by reference: the location of a secret is passed on, the secret is not.

`env:VAR`, `file:NAME` (a file shipped with `--files`, or an absolute path on driver and executors) and `conf:KEY`
(Spark configuration, in the driver only: `share` turns it into a file). Rules: a reference is resolved where the client
is created, in a task or a planner process, and again at each connection. No error repeats the content. KEY must match
Spark's redaction pattern, so that its value stays out of the event log and the UI.

The content is a token as plain text, or one JSON object: {"method": "token" | "basic" | "oauth2" | "tls", …}.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsar_native.auth import (
    Authentication,
    AuthenticationBasic,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
)
from pulsar_native.exceptions import ErrorGettingAuthenticationData, InvalidConfiguration, PulsarException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADVICE = (
    "Hand the secret over by reference: credentialsRef=env:VARIABLE, file:NAME (shipped with --files) or conf:KEY. "
    "A literal travels in statements and plans, and Spark may have shown this one, in a log too: revoke it."
)
# Words of a key that Spark's default spark.redaction.regex hides.
_REDACTED = re.compile(r"(?i)secret|password|token|credential")
_KINDS = ("env", "file", "conf")
_METHODS = ("token", "basic", "oauth2", "tls")
_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CredentialsRef:
    """Reference to credentials or to a key; immutable, picklable, printable: it holds no secret."""

    kind: str
    name: str

    @staticmethod
    def parse(text: str, option: str = "credentialsRef") -> CredentialsRef:
        """Return the reference or raise `InvalidConfiguration`, which never repeats the text. No I/O."""
        kind, separator, name = text.strip().partition(":")
        if not separator or kind not in _KINDS or not name or "\0" in name:
            raise InvalidConfiguration(
                f"{option} must be env:VARIABLE, file:NAME or conf:KEY, not the secret itself. Spark may have shown a "
                "literal one, in a log too: revoke it"
            )
        if kind == "file" and not name.startswith("/") and "/" in name:
            raise InvalidConfiguration(f"{option}=file:NAME takes a file's name (of --files) or an absolute path")
        if kind == "conf" and not _REDACTED.search(name):
            raise InvalidConfiguration(
                f"{option}=conf:KEY needs a KEY with token, secret, password or credential in it: "
                "Spark hides the values of such keys only"
            )
        return CredentialsRef(kind, name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def read(self, what: str = "credentials") -> str:
        """Return the content, which errors call `what`; blocks for a file; raises `ErrorGettingAuthenticationData`."""
        read = {"env": _read_variable, "file": _read_file, "conf": _read_conf}[self.kind]
        content = read(self.name, f"The {what} {self}").strip()
        if not content:
            raise ErrorGettingAuthenticationData(f"The {what} {self} cannot be found or is empty: {_WHERE[self.kind]}")
        return content

    def resolve(self) -> Authentication:
        """Return the authentication of the content; blocks for a file. Call it where the client is created."""
        kept = _described(self.read(), str(self))
        described = None if kept is None else _from_description(kept, str(self))
        return AuthenticationToken(self._token) if described is None else described

    def _token(self) -> str:
        content = self.read()
        kept = _described(content, str(self))
        token = content if kept is None else kept.get("token", "")
        # Prefix of the Java client's parameters for a token.
        return token.removeprefix("token:")


_WHERE = {
    "env": "the variable must be set for the driver and for the Python workers of the executors",
    "file": "ship the file with --files, or give an absolute path that exists on the driver and the executors",
    "conf": "the key is not in the Spark configuration of this driver",
}


def share(spark: SparkSession, reference: CredentialsRef) -> tuple[CredentialsRef, Callable[[], None]]:
    """Return a reference that Python workers can resolve, and a function to call after the job.

    The value of `conf:KEY` goes into a private file (0600) that Spark ships to the executors like --files; other
    references are returned unchanged. Blocks; call it in the driver. On clusters the driver serves files, encrypted
    only with spark.authenticate and spark.network.crypto.enabled or SSL. Raises `InvalidConfiguration` over Spark
    Connect, whose client is not the driver.
    """
    if reference.kind != "conf":
        return reference, lambda: None
    if not hasattr(spark, "sparkContext"):
        raise InvalidConfiguration(
            f"credentialsRef={reference} needs a classic session: the client of Spark Connect is not the driver, whose "
            "configuration has the secret. Use env: or file:, which the server and its executors can read"
        )
    content = reference.read()
    descriptor, path = tempfile.mkstemp(prefix="pulsar-credentials-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        spark.sparkContext.addFile(path)
    except BaseException:
        _remove(path)
        raise
    return CredentialsRef("file", os.path.basename(path)), lambda: _remove(path)


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


def _read_variable(name: str, _: str) -> str:
    return os.environ.get(name, "")


def _read_file(name: str, what: str) -> str:
    path = name if name.startswith("/") else _shipped(name, what)
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        reason = f"{error.strerror}; {_WHERE['file']}"
        raise ErrorGettingAuthenticationData(f"{what} cannot be read: {reason}") from error
    text = content.decode(errors="replace")
    if len(content) > _MAX_BYTES or "\ufffd" in text:
        raise ErrorGettingAuthenticationData(f"{what}: not UTF-8 text of at most {_MAX_BYTES} bytes")
    return text


def _shipped(name: str, what: str) -> str:
    from pyspark import SparkFiles

    try:
        return str(SparkFiles.get(name))
    except AssertionError as error:  # Neither in a worker nor in a driver with a session.
        raise ErrorGettingAuthenticationData(f"{what} can be read in a running Spark session only") from error


def _read_conf(name: str, what: str) -> str:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        # Planner and task processes have no session, hence no configuration.
        raise ErrorGettingAuthenticationData(
            f"{what} can be read in the driver only: call pyspark_pulsar.share_credentials(spark, "
            f'"conf:{name}") there and pass the reference it returns; over Spark Connect use env: or file:'
        )
    return str(context.getConf().get(name, "") or "")


def _described(content: str, where: str) -> dict[str, str] | None:
    """Return the JSON object of the credentials, None for a plain token; no error has the content."""
    if not content.startswith("{"):
        return None
    try:
        kept = json.loads(content)
    except (ValueError, RecursionError):
        kept = None
    if not isinstance(kept, dict) or not all(isinstance(value, str) for value in kept.values()):
        raise InvalidConfiguration(f"The credentials {where} begin like JSON but are no JSON object of texts")
    return {name: str(value) for name, value in kept.items()}


def _from_description(kept: dict[str, str], where: str) -> Authentication | None:
    """Return the authentication of the parameters; None for a token, which is read again at each use."""
    method = kept.get("method", "")
    given = {name: value for name, value in kept.items() if name != "method"}
    try:
        match method:
            case "basic":
                return AuthenticationBasic(auth_params_string=json.dumps(given))
            case "oauth2":
                made = AuthenticationOauth2(json.dumps(given))
                made.check()
                return made
            case "tls":
                _only(given, ("certificate_path", "private_key_path"))
                return AuthenticationTLS(given.get("certificate_path", ""), given.get("private_key_path", ""))
            case "token":
                _only(given, ("token",))
                return None
    except PulsarException as error:
        raise InvalidConfiguration(f"The credentials {where}: {error.message}") from error
    raise InvalidConfiguration(f'The credentials {where} need "method": one of {", ".join(_METHODS)}')


def _only(given: dict[str, str], names: tuple[str, ...]) -> None:
    if set(given) != set(names):
        raise InvalidConfiguration(f"the fields must be {' and '.join(names)}, not {', '.join(sorted(given))}")
