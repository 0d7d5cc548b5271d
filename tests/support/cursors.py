"""Cursors of a real broker's subscriptions."""

from __future__ import annotations

from typing import Any

from support.brokers import Broker
from support.until import wait_until


def wait_for_stored_acknowledgement(broker: Broker, topic: str, subscription: str) -> None:
    """Wait until the broker has stored what was acknowledged on a new subscription, which an unload would lose."""
    path = topic.replace("://", "/")

    def is_stored() -> bool:
        stats: Any = broker.admin("GET", f"{path}/internalStats")
        # The first entry of the cursor's ledger is where the subscription began.
        return bool(stats["cursors"][subscription]["cursorLedgerLastEntry"] >= 1)

    wait_until(is_stored, 30)
