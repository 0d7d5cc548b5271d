"""Message queue provider: makes `MessageQueueTrigger(scheme="pulsar")` of common-messaging a Pulsar trigger.

Rule: light to import, since everything that imports `MessageQueueTrigger` imports this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pulsar.extras import missing

try:
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
except ImportError as error:
    raise missing("messaging", 'MessageQueueTrigger(scheme="pulsar")') from error

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger


class PulsarMessageQueueProvider(BaseMessageQueueProvider):
    """Provider of the scheme `pulsar`; the arguments are those of `PulsarMessageQueueTrigger`."""

    scheme = "pulsar"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the class of the trigger."""
        from airflow_provider_pulsar.triggers.msg_queue import PulsarMessageQueueTrigger

        return PulsarMessageQueueTrigger
