"""Single options of a publish job, checked by the job, and earlier by callers that know some of them before it.

Pure values, no I/O; names are those of `PublishOptions`.
"""

from __future__ import annotations

from typing import Any

from pulsar_native.jobs import validation

SCHEMAS = ("string", "json", "avro")
COMPRESSIONS = ("none", "lz4", "zlib", "zstd", "snappy")

_CHOICES = {"schema": SCHEMAS, "compression": COMPRESSIONS}
_LEAST = {"batching_max_messages": 1, "batching_max_bytes": 1, "send_timeout_seconds": 0.1, "progress_seconds": 0.1}
_RETENTION = ("retention_minutes", "retention_mb")
_OPTIONAL = ("schema", "create_subscription", *_RETENTION)
CHECKED = (*_CHOICES, *_LEAST, "deduplicate", "create_subscription", *_RETENTION)
"""Fields of `PublishOptions` that `checked` knows."""


def checked(name: str, value: Any) -> Any:
    """Return an option as the job uses it: a choice in lower case. Raises ValueError with its name for a wrong one."""
    if value is None and name in _OPTIONAL:
        return None
    if name in _CHOICES:
        return validation.choice(name, value, _CHOICES[name])
    if name in _LEAST:
        validation.number(name, value, _LEAST[name])
    elif name in _RETENTION:
        _check_retention(name, value)
    elif name == "create_subscription":
        validation.text(name, value)
    elif value != "auto" and not isinstance(value, bool):
        validation.refuse(f"deduplicate must be True, False or 'auto', not {value!r}")
    return value


def check_keeps_nothing(*kept: object) -> None:
    """Raise ValueError if one of the options that keep messages is given; for a non-persistent topic."""
    if any(kept):
        validation.refuse("a non-persistent topic keeps nothing: leave create_subscription and retention out")


def _check_retention(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value == 0:
        validation.refuse(f"{name} must be a whole number from 1, or -1 for no limit, not {value!r}")
    validation.number(name, value, -1)
