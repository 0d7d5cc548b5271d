"""The sync API: the official client's classes and signatures on the engine.

Rules: this package checks arguments, calls the engine and waits; it holds no protocol logic. Messages are sent and
received in the calling thread; only control operations run in the engine's thread. All classes are thread-safe. The
push consumer is imported when it is first used: few programs have one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pulsar_native.sync.client import Client
from pulsar_native.sync.consumer import Consumer, Reader
from pulsar_native.sync.producer import Producer
from pulsar_native.sync.table_view import TableView
from pulsar_native.sync.transaction import Transaction

if TYPE_CHECKING:
    from pulsar_native.sync.push_consumer import PushConsumer

__all__ = ["Client", "Consumer", "Producer", "PushConsumer", "Reader", "TableView", "Transaction"]


def __getattr__(name: str) -> Any:
    if name != "PushConsumer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = importlib.import_module(f"{__name__}.push_consumer").PushConsumer
    return value
