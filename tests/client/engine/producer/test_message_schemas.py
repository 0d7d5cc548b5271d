"""Schemas of single messages: each is registered once, at any connected partition, before its first message."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_native.config import ProducerConfig
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.producer.partitioned_producer import TopicProducer
from pulsar_native.exceptions import IncompatibleSchema
from pulsar_native.schema import BytesSchema, StringSchema
from pulsar_native.wire import pulsar_api_pb2 as pb
from support.fake_broker import FakeBroker, registry

Cores = Callable[..., ClientCore]


async def producer_of(core: ClientCore) -> TopicProducer:
    return await core.create_producer(ProducerConfig(topic="t"), BytesSchema())


async def test_own_schema_known_without_registration(fake: FakeBroker, cores: Cores) -> None:
    asked = registry(fake)
    schemas = (await producer_of(cores(fake.url))).message_schemas
    assert schemas.versions == {BytesSchema().schema_info(): None} and not asked


async def test_register_remembers_the_version(fake: FakeBroker, cores: Cores) -> None:
    asked = registry(fake, b"\x00\x07")
    schemas = (await producer_of(cores(fake.url))).message_schemas
    assert await schemas.register(StringSchema()) == b"\x00\x07"
    assert schemas.versions[StringSchema().schema_info()] == b"\x00\x07"
    assert asked == ["persistent://public/default/t"]


async def test_register_bytes_schema_has_no_version(fake: FakeBroker, cores: Cores) -> None:
    asked = registry(fake)
    producer = await cores(fake.url).create_producer(ProducerConfig(topic="t"), StringSchema())
    assert await producer.message_schemas.register(BytesSchema()) == b"" and not asked


async def test_register_retries_an_unloaded_topic(fake: FakeBroker, cores: Cores) -> None:
    asked = registry(fake, pb.TopicNotFound, b"\x01")
    producer = await producer_of(cores(fake.url, starting_backoff_interval_ms=1))
    assert await producer.message_schemas.register(StringSchema()) == b"\x01" and len(asked) == 2


async def test_register_refused_schema_is_not_remembered(fake: FakeBroker, cores: Cores) -> None:
    asked = registry(fake, pb.IncompatibleSchema)
    schemas = (await producer_of(cores(fake.url))).message_schemas
    with pytest.raises(IncompatibleSchema) as caught:
        await schemas.register(StringSchema())
    assert caught.value.topic == "persistent://public/default/t"
    assert list(schemas.versions) == [BytesSchema().schema_info()] and len(asked) == 1
