"""Options of a connection in Spark's configuration: spark.pulsar.service.url and so on.

Rules: only a connection's options are read, since other properties named spark.pulsar.… may be secrets that a
`credentialsRef=conf:…` refers to. The options are checked as those of a read are; no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_native.exceptions import InvalidConfiguration
from pyspark_pulsar.credentials import CredentialsRef
from pyspark_pulsar.options import CLIENT_PREFIX, admin_url, service_url, sort_options

_PREFIX = "spark.pulsar."
_NAMES = ("service.url", "admin.url", "credentialsRef")


def options_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a connection; raises `InvalidConfiguration` if there is none, or for a wrong one."""
    found = {
        option: text for name, text in properties.items() if (option := _option(name)) is not None and text.strip()
    }
    if "service.url" not in found:
        raise InvalidConfiguration(
            "Spark's configuration has no Pulsar connection: submit the application by an operator made of "
            "PulsarSparkSubmitMixin, or with --conf spark.pulsar.service.url=pulsar://host:6650"
        )
    given, _, _ = sort_options(found, _NAMES, {}, {})
    service_url(given)
    admin_url(given)
    if "credentialsRef" in given:
        CredentialsRef.parse(given["credentialsRef"])
    return found


def _option(name: str) -> str | None:
    """Return the option of the source that a property stands for, None for other properties."""
    if not name.lower().startswith(_PREFIX):
        return None
    rest = name[len(_PREFIX) :]
    if f"pulsar.{rest}".lower().startswith(CLIENT_PREFIX):
        return f"pulsar.{rest}"
    return next((option for option in _NAMES if option.lower() == rest.lower()), None)
