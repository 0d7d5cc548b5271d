"""The asyncio API: the classes and methods of `pulsar_native` as coroutines on the caller's loop.

Rules: no thread is started; blocking calls (credentials, encryption keys, providers of the service URL, lookups over
HTTP) run in asyncio's default executor. The client belongs to the loop it is first used on. Cancelling a waiting
`receive` loses no message: only a running task dequeues one. The push consumer is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pulsar_native.asyncio.client import Client
from pulsar_native.asyncio.consumer import Consumer, Reader
from pulsar_native.asyncio.producer import Producer
from pulsar_native.asyncio.table_view import TableView
from pulsar_native.asyncio.transaction import Transaction
from pulsar_native.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
)
from pulsar_native.exceptions import PulsarException

if TYPE_CHECKING:
    from pulsar_native.asyncio.push_consumer import PushConsumer

__all__ = [
    "BatchingType",
    "Client",
    "CompressionType",
    "Consumer",
    "ConsumerCryptoFailureAction",
    "InitialPosition",
    "PartitionsRoutingMode",
    "Producer",
    "ProducerAccessMode",
    "PulsarException",
    "PushConsumer",
    "Reader",
    "RegexSubscriptionMode",
    "TableView",
    "Transaction",
]


def __getattr__(name: str) -> Any:
    if name != "PushConsumer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = importlib.import_module(f"{__name__}.push_consumer").PushConsumer
    return value
