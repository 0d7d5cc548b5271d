"""Single options of a consume job, checked by the job, and earlier by callers that know some of them before it.

Pure values, no I/O; names are those of `ConsumeSettings`, and of the limits of its `parts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsar_native.jobs import validation
from pulsar_native.jobs.batch_output import IF_EXISTS
from pulsar_native.jobs.formats import FORMATS
from pulsar_native.jobs.message_handling import ON_ERROR

if TYPE_CHECKING:
    from pulsar_native import ConsumerType, InitialPosition

SUBSCRIPTION_TYPES = ("exclusive", "shared", "failover", "key_shared")
# Those that deliver the messages of a partition in order.
ORDERED = ("exclusive", "failover")
INITIAL_POSITIONS = ("earliest", "latest")
DECODERS = ("auto", "json", "text", "bytes")

_CHOICES = {
    "subscription_type": SUBSCRIPTION_TYPES,
    "initial_position": INITIAL_POSITIONS,
    "decode": DECODERS,
    "format": FORMATS,
    "if_exists": IF_EXISTS,
    "on_error": ON_ERROR,
}
_LEAST = {"idle_seconds": 0.1, "concurrency": 1, "max_errors": 0, "progress_seconds": 0.1}
# Options without a value have no limit.
_OPTIONAL = ("max_errors", "max_messages_per_file", "max_bytes_per_file")
CHECKED = (*_CHOICES, *_LEAST)
"""Fields of `ConsumeSettings` that `checked` knows."""


def checked(name: str, value: Any) -> Any:
    """Return an option as the job uses it: a choice in lower case. Raises ValueError with its name for a wrong one."""
    if value is None and name in _OPTIONAL:
        return None
    if name in _CHOICES:
        return validation.choice(name, value, _CHOICES[name])
    if name in _LEAST:
        validation.number(name, value, _LEAST[name])
        return value
    return validation.whole(name, value)


def consumer_type_of(name: str) -> ConsumerType:
    """Return the client's value of a `subscription_type`."""
    from pulsar_native import ConsumerType

    return {
        "exclusive": ConsumerType.Exclusive,
        "shared": ConsumerType.Shared,
        "failover": ConsumerType.Failover,
        "key_shared": ConsumerType.KeyShared,
    }[name]


def initial_position_of(name: str) -> InitialPosition:
    """Return the client's value of an `initial_position`."""
    from pulsar_native import InitialPosition

    return InitialPosition.Earliest if name == "earliest" else InitialPosition.Latest
