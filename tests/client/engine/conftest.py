"""A fake broker, and client cores on the test's own loop, closed after it."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from broker_keys import Certificates, make_certificates
from pulsar_native.config import ClientConfig, ConsumerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.consumer.multi_topics_consumer import MultiTopicsConsumer
from pulsar_native.engine.loop import Engine
from pulsar_native.schema import BytesSchema
from pulsar_native.schema.versions import VersionedDecoder
from support.fake_broker import FakeBroker


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Give an authority and what it signed."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls_fake(certificates: Certificates) -> Iterator[FakeBroker]:
    """Give a fake broker that speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server_certificate, certificates.server_key)
    with FakeBroker(tls=context) as broker:
        yield broker


@pytest_asyncio.fixture
async def cores() -> AsyncIterator[Callable[..., ClientCore]]:
    """Give a function that makes the core of a client on this loop."""
    made: list[ClientCore] = []

    def make(service_url: str, **options: Any) -> ClientCore:
        options = {"operation_timeout_seconds": 5.0, "connection_timeout_ms": 5000, **options}
        config = ClientConfig(service_url=service_url, **options)
        core = ClientCore(Engine(asyncio.get_running_loop(), threading.get_ident()), config)
        made.append(core)
        return core

    yield make
    for core in made:
        core.shutdown()
    # What the shutdown cancelled ends now and not in the next test.
    await asyncio.sleep(0)


@pytest.fixture
def subscribed() -> Callable[..., Any]:
    """Give a function that subscribes to a topic of bytes."""

    async def subscribe(core: ClientCore, topic: str = "t", **options: Any) -> MultiTopicsConsumer:
        config = ConsumerConfig(subscription_name="s", **options)
        return await core.subscribe([topic], config, VersionedDecoder(BytesSchema()), None)

    return subscribe
