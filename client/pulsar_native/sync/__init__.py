"""The sync API: the official client's classes and signatures on the engine.

Rules: this package checks arguments, calls the engine and waits; it holds no protocol logic. Messages are sent and
received in the calling thread; only control operations run in the engine's thread. All classes are thread-safe.
"""

from pulsar_native.sync.client import Client
from pulsar_native.sync.consumer import Consumer, Reader
from pulsar_native.sync.producer import Producer
from pulsar_native.sync.push_consumer import PushConsumer
from pulsar_native.sync.table_view import TableView
from pulsar_native.sync.transaction import Transaction

__all__ = ["Client", "Consumer", "Producer", "PushConsumer", "Reader", "TableView", "Transaction"]
