"""The error this room adds to the client's tree: data that a read was to deliver is gone.

Rules: everything else is an error of `pulsar_native.exceptions`; no error holds a secret or the text of an option
that may hold one. The class's name appears in what Spark reports of a failed task, and `load` knows it by that name.
"""

from __future__ import annotations

from pulsar_native.exceptions import PulsarException

ADVICE = (
    "Nothing was skipped in silence: set failOnDataLoss=false to read what is left, and let retention (or a durable "
    "subscription) hold messages at least as long as loads look back."
)


class DataLoss(PulsarException):
    """Tell that messages of the asked range are no longer in the topic; trying again cannot help."""
