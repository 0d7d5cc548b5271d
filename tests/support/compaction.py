"""Compaction of a topic of a real broker, until readers are served from the compacted ledger."""

from __future__ import annotations

import time
from typing import Any

from support.brokers import Broker
from support.until import wait_until


def compact(broker: Broker, topic: str, seconds: float = 30) -> None:
    """Compact a topic and wait until its reads use the new compacted ledger; fails after `seconds`.

    The status SUCCESS alone is not enough, and a topic may have to be loaded again for a compaction to have any effect:
    broker-behaviour.md#compaction-in-use.
    """
    path = topic.replace("://", "/")
    before = _compacted_ledger(broker, path)
    begun = 0.0

    def begin() -> None:
        nonlocal begun
        broker.admin("PUT", f"{path}/compaction")
        begun = time.monotonic()

    def is_in_use() -> bool:
        found: Any = broker.admin("GET", f"{path}/compaction")
        assert found["status"] != "ERROR", found
        if found["status"] != "SUCCESS":
            return False
        if _compacted_ledger(broker, path) not in (before, -1):
            return True
        if time.monotonic() > begun + seconds / 3:
            broker.admin("PUT", f"{path}/unload")
            begin()
        return False

    begin()
    wait_until(is_in_use, seconds)


def _compacted_ledger(broker: Broker, path: str) -> int:
    stats: Any = broker.admin("GET", f"{path}/internalStats")
    ledger: int = stats["compactedLedger"]["ledgerId"]
    return ledger
