"""The asyncio face: the same nouns and verbs as `pulsar_native`, awaited, on the caller's loop.

Rules: no thread is started (credentials that may block are read in asyncio's default executor); the client belongs to
the loop it is first used on. Cancelling a waiting `receive` loses no message: a message is taken only by a task that
runs.
"""

from pulsar_native.asyncio.client import Client
from pulsar_native.asyncio.consumer import Consumer, Reader
from pulsar_native.asyncio.producer import Producer
from pulsar_native.exceptions import PulsarException

__all__ = ["Client", "Consumer", "Producer", "PulsarException", "Reader"]
