"""Lookup of a topic's broker: redirects, proxies, retries, limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from broker_keys import Certificates
from pulsar_native import Client
from pulsar_native.engine.client import ClientCore
from pulsar_native.engine.lookup import BrokerOfTopic
from pulsar_native.exceptions import (
    AuthorizationError,
    ConnectError,
    InvalidUrl,
    LookupError,
    PulsarException,
    ReadError,
    Timeout,
    TooManyLookupRequestException,
    TopicNotFound,
)
from pulsar_native.service_url import Address
from pulsar_native.topic import TopicName
from pulsar_native.wire import pulsar_api_pb2 as pb
from pulsar_native.wire.commands import Kind
from support.clock import LoopClock
from support.fake_broker import HOST, FakeBroker, Peer, found, frame, not_found, swallow

Cores = Callable[..., ClientCore]

TOPIC = TopicName.parse("t")


@pytest.fixture
def second() -> Iterator[FakeBroker]:
    """Give another broker."""
    with FakeBroker() as broker:
        yield broker


def at(broker: FakeBroker) -> Address:
    return Address(HOST, broker.port)


def answer_lookups(broker: FakeBroker, url: str, **how: Any) -> None:
    broker.answers[Kind.LOOKUP] = lambda peer, command: [found(command, url, **how)]


def lookups(broker: FakeBroker) -> list[pb.CommandLookupTopic]:
    return [seen.command.lookupTopic for seen in broker.seen(Kind.LOOKUP)]


# --- redirects --------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_lookup_served_by_first_broker(fake: FakeBroker, cores: Cores) -> None:
    core = cores(fake.url, listener_name="external")
    assert await core.lookup.broker_of(TOPIC) == BrokerOfTopic(at(fake), at(fake))
    (asked,) = lookups(fake)
    assert (asked.topic, asked.authoritative) == ("persistent://public/default/t", False)
    assert asked.advertised_listener_name == "external"


@pytest.mark.asyncio
@pytest.mark.proves("C29")
@pytest.mark.parametrize("authoritative", [True, False])
async def test_lookup_redirect_with_authoritative_flag(
    fake: FakeBroker, second: FakeBroker, cores: Cores, authoritative: bool
) -> None:
    answer_lookups(fake, second.url, redirect=True, authoritative=authoritative)
    core = cores(fake.url)
    assert await core.lookup.broker_of(TOPIC) == BrokerOfTopic(at(second), at(second))
    assert [asked.authoritative for asked in lookups(fake)] == [False]
    assert [asked.authoritative for asked in lookups(second)] == [authoritative]


@pytest.mark.asyncio
@pytest.mark.proves("C29")
async def test_lookup_redirect_loop_ends_after_twenty(fake: FakeBroker, second: FakeBroker, cores: Cores) -> None:
    answer_lookups(fake, second.url, redirect=True)
    answer_lookups(second, fake.url, redirect=True)
    core = cores(fake.url)
    with pytest.raises(LookupError, match="redirected the lookup more than 20 times") as caught:
        await core.lookup.broker_of(TOPIC)
    assert caught.value.topic == TOPIC.full
    assert len(lookups(fake)) + len(lookups(second)) == 21
    assert len(fake.peers) == len(second.peers) == 1


@pytest.mark.asyncio
@pytest.mark.proves("C29")
@pytest.mark.parametrize(("allowed", "needed", "works"), [(0, 0, True), (0, 1, False), (3, 3, True), (3, 4, False)])
async def test_lookup_max_redirects_configurable(
    fake: FakeBroker, cores: Cores, allowed: int, needed: int, works: bool
) -> None:
    def redirect_some(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        return [found(command, fake.url, redirect=len(lookups(fake)) <= needed)]

    fake.answers[Kind.LOOKUP] = redirect_some
    core = cores(fake.url, max_lookup_redirects=allowed)
    if works:
        assert (await core.lookup.broker_of(TOPIC)).logical == at(fake)
    else:
        with pytest.raises(LookupError):
            await core.lookup.broker_of(TOPIC)


@pytest.mark.asyncio
@pytest.mark.proves("C25")
async def test_lookup_proxy_uses_service_url_socket(
    fake: FakeBroker, cores: Cores, subscribed: Callable[..., Any]
) -> None:
    answer_lookups(fake, "pulsar://broker-7.internal:6650", through_proxy=True)
    core = cores(fake.url)
    found_at = await core.lookup.broker_of(TOPIC)
    assert found_at == BrokerOfTopic(Address("broker-7.internal", 6650), at(fake))
    await subscribed(core)
    plain, through = (seen.command.connect for seen in fake.seen(Kind.CONNECT))
    assert not plain.HasField("proxy_to_broker_url")
    assert through.proxy_to_broker_url == "broker-7.internal:6650"
    assert [seen.peer.number for seen in fake.seen(Kind.SUBSCRIBE)] == [1]


@pytest.mark.asyncio
@pytest.mark.proves("C25")
async def test_lookup_redirect_behind_proxy(fake: FakeBroker, cores: Cores) -> None:
    names = iter(["pulsar://one.internal:6650", "pulsar://two.internal:6650", "pulsar://three.internal:6650"])

    def onward(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        redirect = len(lookups(fake)) < 3
        return [found(command, next(names), redirect=redirect, authoritative=True, through_proxy=True)]

    fake.answers[Kind.LOOKUP] = onward
    result = await cores(fake.url).lookup.broker_of(TOPIC)
    assert result == BrokerOfTopic(Address("three.internal", 6650), at(fake))
    named = [seen.command.connect.proxy_to_broker_url for seen in fake.seen(Kind.CONNECT)]
    assert named == ["", "one.internal:6650", "two.internal:6650"]


@pytest.mark.asyncio
@pytest.mark.proves("C28")
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_lookup_address_by_tls(
    request: pytest.FixtureRequest, cores: Cores, certificates: Certificates, tls: bool
) -> None:
    broker: FakeBroker = request.getfixturevalue("tls_fake" if tls else "fake")

    def both(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        answer = pb.CommandLookupTopicResponse(
            request_id=command.lookupTopic.request_id,
            response=pb.CommandLookupTopicResponse.Connect,
            brokerServiceUrl="pulsar://plain.example.org:6650",
            brokerServiceUrlTls="pulsar+ssl://tls.example.org:6651",
        )
        return [frame(Kind.LOOKUP_RESPONSE, lookupTopicResponse=answer)]

    broker.answers[Kind.LOOKUP] = both
    core = cores(broker.url, tls_trust_certs_file_path=str(certificates.authority))
    expected = Address("tls.example.org", 6651) if tls else Address("plain.example.org", 6650)
    assert (await core.lookup.broker_of(TOPIC)).logical == expected


@pytest.mark.asyncio
async def test_lookup_without_usable_address_raises(fake: FakeBroker, cores: Cores) -> None:
    answer_lookups(fake, "pulsar+ssl://h:6651")
    with pytest.raises(LookupError, match="no address without TLS"):
        await cores(fake.url).lookup.broker_of(TOPIC)
    answer_lookups(fake, "pulsar://h:not-a-port")
    with pytest.raises(InvalidUrl):
        await cores(fake.url).lookup.broker_of(TOPIC)


# --- what may pass and what may not -----------------------------------------------------------------------------


def fail_first(broker: FakeBroker, times: int, code: int) -> None:
    """Answer the first lookups with an error, the others rightly."""

    def some(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        if len(lookups(broker)) <= times:
            return [not_found(command, code)]
        return [found(command, broker.url)]

    broker.answers[Kind.LOOKUP] = some


@pytest.mark.asyncio
@pytest.mark.proves("C36")
@pytest.mark.parametrize("code", [pb.TooManyRequests, pb.ServiceNotReady, pb.MetadataError])
async def test_lookup_transient_errors_retried(fake: FakeBroker, cores: Cores, code: int) -> None:
    fail_first(fake, 2, code)
    core = cores(fake.url, starting_backoff_interval_ms=20)
    assert (await core.lookup.broker_of(TOPIC, core.deadline())).logical == at(fake)
    times = [seen.at for seen in fake.seen(Kind.LOOKUP)]
    assert len(times) == 3
    # With back-off: 20 ms, then up to 40 ms.
    assert times[1] - times[0] >= 0.017 and times[2] - times[1] >= 0.035


@pytest.mark.asyncio
@pytest.mark.proves("C37")
@pytest.mark.parametrize(
    ("code", "kind"), [(pb.TopicNotFound, TopicNotFound), (pb.AuthorizationError, AuthorizationError)]
)
async def test_lookup_permanent_error_raises(
    fake: FakeBroker, cores: Cores, code: int, kind: type[PulsarException]
) -> None:
    fail_first(fake, 99, code)
    core = cores(fake.url)
    started = time.monotonic()
    with pytest.raises(kind, match="as the test wants it") as caught:
        await core.lookup.broker_of(TOPIC, core.deadline())
    assert time.monotonic() - started < 2 and len(lookups(fake)) == 1
    assert (caught.value.topic, caught.value.broker) == (TOPIC.full, fake.address)
    assert caught.value.request_id is not None


@pytest.mark.asyncio
@pytest.mark.proves("C36", "C225")
async def test_lookup_retry_deadline_raises_broker_error(fake: FakeBroker, cores: Cores) -> None:
    fail_first(fake, 999, pb.TooManyRequests)
    core = cores(fake.url, operation_timeout_seconds=0.4, starting_backoff_interval_ms=20)
    started = time.monotonic()
    with pytest.raises(TooManyLookupRequestException) as caught:
        await core.lookup.broker_of(TOPIC, core.deadline())
    assert 0.2 < time.monotonic() - started < 2
    assert caught.value.attempts == len(lookups(fake)) > 2


@pytest.mark.asyncio
async def test_lookup_broker_starting_late(fake: FakeBroker, cores: Cores, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)
    fake.close()
    core = cores(fake.url, starting_backoff_interval_ms=20)
    waiting = asyncio.create_task(core.lookup.broker_of(TOPIC, core.deadline()))
    await clock.advance(4)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(ConnectError, match="Connection refused") as caught:
        short = cores(fake.url, operation_timeout_seconds=0.2, starting_backoff_interval_ms=20)
        await short.lookup.partitions(TOPIC, short.deadline())
    assert caught.value.attempts and caught.value.attempts > 1


@pytest.mark.asyncio
async def test_lookup_unanswered_timeout_names_topic(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.LOOKUP] = swallow
    core = cores(fake.url, operation_timeout_seconds=0.3)
    with pytest.raises(Timeout, match=f"no answer from {at(fake)}") as caught:
        await core.lookup.broker_of(TOPIC, core.deadline())
    assert caught.value.topic == TOPIC.full


@pytest.mark.asyncio
async def test_lookup_silent_handshake_names_host(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.CONNECT] = swallow
    core = cores(fake.url, operation_timeout_seconds=0.3)
    with pytest.raises(Timeout, match=rf"operation_timeout_seconds; no connection to {at(fake)} yet \[topic="):
        await core.lookup.broker_of(TOPIC, core.deadline())


# --- the other questions ----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_partitions(fake: FakeBroker, cores: Cores) -> None:
    fake.partitions[TOPIC.full] = 3
    core = cores(fake.url)
    assert await core.lookup.partitions(TOPIC, core.deadline()) == 3
    assert await core.lookup.partitions(TopicName.parse("other"), core.deadline(), auto_create=False) == 0
    asked = [
        seen.command.partitionMetadata.metadata_auto_creation_enabled for seen in fake.seen(Kind.PARTITIONED_METADATA)
    ]
    assert asked == [True, False]


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [100_001, 2**32 - 1])
async def test_partitions_too_many_raises(fake: FakeBroker, cores: Cores, count: int) -> None:
    fake.partitions[TOPIC.full] = count
    core = cores(fake.url, operation_timeout_seconds=0.2)
    with pytest.raises(ReadError, match="number of partitions is not from 0 to 100000") as caught:
        await core.lookup.partitions(TOPIC, core.deadline())
    assert caught.value.topic == TOPIC.full


def test_producer_too_many_partitions_raises(fake: FakeBroker) -> None:
    fake.partitions[TOPIC.full] = 2**32 - 1
    with Client(fake.url, operation_timeout_seconds=1) as client, pytest.raises(ReadError, match="0 to 100000"):
        client.create_producer(TOPIC.full)


@pytest.mark.asyncio
async def test_partitions_unknown_topic_named(fake: FakeBroker, cores: Cores) -> None:
    def unknown(_peer: Peer, command: pb.BaseCommand) -> Iterable[bytes]:
        # The message is empty.
        answer = pb.CommandPartitionedTopicMetadataResponse(
            request_id=command.partitionMetadata.request_id,
            response=pb.CommandPartitionedTopicMetadataResponse.Failed,
            error=pb.TopicNotFound,
            message="",
        )
        return [frame(Kind.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer)]

    fake.answers[Kind.PARTITIONED_METADATA] = unknown
    core = cores(fake.url)
    with pytest.raises(TopicNotFound, match=r"does not exist: create it .*\[topic=persistent://public/default/t"):
        await core.lookup.partitions(TOPIC, core.deadline(), auto_create=False)


@pytest.mark.asyncio
@pytest.mark.proves("C11", "C225")
async def test_lookup_concurrency_limit(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.LOOKUP] = swallow
    core = cores(fake.url, concurrent_lookup_requests=2)
    tasks = [asyncio.create_task(core.lookup.broker_of(TopicName.parse(f"t{number}"))) for number in range(5)]
    first = await asyncio.to_thread(fake.wait, Kind.LOOKUP, 2)
    # Answered behind a third one.
    first[0].peer.send(frame(Kind.PING))
    await asyncio.to_thread(fake.wait, Kind.PONG)
    assert len(lookups(fake)) == 2
    first[0].peer.send(found(first[0].command, fake.url))
    third = (await asyncio.to_thread(fake.wait, Kind.LOOKUP, 3))[-1]
    assert third.command.lookupTopic.topic.endswith("/t2")
    answer_lookups(fake, fake.url)
    for seen in fake.seen(Kind.LOOKUP)[1:3]:
        seen.peer.send(found(seen.command, fake.url))
    assert {result.logical for result in await asyncio.gather(*tasks)} == {at(fake)}


@pytest.mark.asyncio
@pytest.mark.proves("C12", "C225")
async def test_lookup_too_many_waiting_raises(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.LOOKUP] = swallow
    core = cores(fake.url, concurrent_lookup_requests=2, max_lookup_requests=3)
    names = [TopicName.parse(f"t{number}") for number in range(4)]
    tasks = [asyncio.create_task(core.lookup.broker_of(name, core.deadline())) for name in names[:3]]
    first = await asyncio.to_thread(fake.wait, Kind.LOOKUP, 2)
    started = time.monotonic()
    for attempt in (
        lambda: core.lookup.broker_of(names[3], core.deadline()),
        lambda: core.lookup.partitions(names[3], core.deadline()),
        lambda: core.lookup.schema(names[3], None, core.deadline()),
    ):
        with pytest.raises(TooManyLookupRequestException, match="max_lookup_requests") as caught:
            await attempt()
        assert caught.value.topic == names[3].full and caught.value.retryable
    assert time.monotonic() - started < 2 and len(lookups(fake)) == 2
    # One ends: the waiting one goes out, and there is room for one more to wait.
    first[0].peer.send(found(first[0].command, fake.url))
    await asyncio.to_thread(fake.wait, Kind.LOOKUP, 3)
    answer_lookups(fake, fake.url)
    last = asyncio.create_task(core.lookup.broker_of(names[3], core.deadline()))
    await asyncio.sleep(0)
    for seen in fake.seen(Kind.LOOKUP)[1:3]:
        seen.peer.send(found(seen.command, fake.url))
    assert {result.logical for result in await asyncio.gather(*tasks, last)} == {at(fake)}
    assert [asked.topic for asked in lookups(fake)] == [name.full for name in names]


@pytest.mark.asyncio
async def test_lookup_cancelled_waiter_frees_slot(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.LOOKUP] = swallow
    core = cores(fake.url, concurrent_lookup_requests=1, max_lookup_requests=2)
    running = asyncio.create_task(core.lookup.broker_of(TOPIC))
    (seen,) = await asyncio.to_thread(fake.wait, Kind.LOOKUP)
    waiting = asyncio.create_task(core.lookup.broker_of(TopicName.parse("u")))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    answer_lookups(fake, fake.url)
    other = asyncio.create_task(core.lookup.broker_of(TopicName.parse("v")))
    await asyncio.sleep(0)
    seen.peer.send(found(seen.command, fake.url))
    await asyncio.gather(running, other)


@pytest.mark.asyncio
@pytest.mark.proves("C13")
async def test_lookup_rejected_too_often_closes_connection(fake: FakeBroker, cores: Cores) -> None:
    fake.answers[Kind.LOOKUP] = lambda peer, command: [not_found(command, pb.TooManyRequests)]
    core = cores(fake.url)
    for _ in range(50):
        with pytest.raises(TooManyLookupRequestException):
            await core.lookup.broker_of(TOPIC)
    assert len(fake.peers) == 1 and not fake.peers[0].gone.is_set()
    with pytest.raises(TooManyLookupRequestException):
        await core.lookup.broker_of(TOPIC)
    assert fake.peers[0].gone.wait(10)
    answer_lookups(fake, fake.url)
    assert (await core.lookup.broker_of(TOPIC)).logical == at(fake)
    assert len(fake.peers) == 2
